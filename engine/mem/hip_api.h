/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the HIP runtime (libamdhip64.so, ROCm 5 to 7) that we use, declared by ourselves: FUNCTION(name, our
 * parameters, those of hip_runtime_api.h). A test compares the latter with the vendor's header where that is installed.
 * We use hipPointerGetAttribute(), since the struct of hipPointerGetAttributes() has changed.
 */
#ifndef UCCL_HIP_API_H
#define UCCL_HIP_API_H

#include <stddef.h>
#include <stdint.h>

#define HIP_FUNCTIONS(FUNCTION)                                                                                        \
    FUNCTION(hipInit, (unsigned flags), (unsigned int))                                                                \
    FUNCTION(hipRuntimeGetVersion, (int *version), (int *))                                                            \
    FUNCTION(hipPeekAtLastError, (void), (void))                                                                       \
    FUNCTION(hipGetLastError, (void), (void))                                                                          \
    FUNCTION(hipGetDeviceCount, (int *count), (int *))                                                                 \
    FUNCTION(hipSetDevice, (int device), (int))                                                                        \
    FUNCTION(hipDeviceGetName, (char *name, int size, int device), (char *, int, hipDevice_t))                         \
    FUNCTION(hipDeviceGetPCIBusId, (char *text, int size, int device), (char *, int, int))                             \
    FUNCTION(hipPointerGetAttribute, (void *data, int attribute, uintptr_t address),                                   \
             (void *, hipPointer_attribute, hipDeviceptr_t))                                                           \
    FUNCTION(hipHostRegister, (void *memory, size_t length, unsigned flags), (void *, size_t, unsigned int))           \
    FUNCTION(hipHostUnregister, (void *memory), (void *))                                                              \
    FUNCTION(hipMemcpyDtoHAsync, (void *to, uintptr_t from, size_t length, void *stream),                              \
             (void *, hipDeviceptr_t, size_t, hipStream_t))                                                            \
    FUNCTION(hipMemcpyHtoDAsync, (uintptr_t to, const void *from, size_t length, void *stream),                        \
             (hipDeviceptr_t, void *, size_t, hipStream_t))                                                            \
    FUNCTION(hipStreamCreateWithFlags, (void **stream, unsigned flags), (hipStream_t *, unsigned))                     \
    FUNCTION(hipStreamDestroy, (void *stream), (hipStream_t))                                                          \
    FUNCTION(hipEventCreateWithFlags, (void **event, unsigned flags), (hipEvent_t *, unsigned))                        \
    FUNCTION(hipEventDestroy, (void *event), (hipEvent_t))                                                             \
    FUNCTION(hipEventRecord, (void *event, void *stream), (hipEvent_t, hipStream_t))                                   \
    FUNCTION(hipEventQuery, (void *event), (hipEvent_t))

/*
 * From libhsa-runtime64.so.1 of ROCm 5.6 and later, which HIP uses: HIP itself exports dma-bufs only since ROCm 7. It
 * is declared in hsa_ext_amd.h and returns a hsa_status_t.
 */
#define HSA_OPTIONAL_FUNCTIONS(FUNCTION)                                                                               \
    FUNCTION(hsa_amd_portable_export_dmabuf, (const void *address, size_t length, int *fd, uint64_t *offset_bytes),    \
             (const void *, size_t, int *, uint64_t *))

/* VALUE(its name here, its value, its name in hip_runtime_api.h) */
#define HIP_VALUES(VALUE)                                                                                              \
    VALUE(HIP_NO_DEVICE, 100, hipErrorNoDevice)                                                                        \
    VALUE(HIP_NOT_READY, 600, hipErrorNotReady)                                                                        \
    VALUE(HIP_ATTRIBUTE_MEMORY_TYPE, 2, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE)                                             \
    VALUE(HIP_ATTRIBUTE_BUFFER_ID, 7, HIP_POINTER_ATTRIBUTE_BUFFER_ID)                                                 \
    VALUE(HIP_ATTRIBUTE_IS_MANAGED, 8, HIP_POINTER_ATTRIBUTE_IS_MANAGED)                                               \
    VALUE(HIP_ATTRIBUTE_DEVICE_ORDINAL, 9, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                       \
    VALUE(HIP_ATTRIBUTE_RANGE_START, 11, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR)                                       \
    VALUE(HIP_ATTRIBUTE_RANGE_SIZE, 12, HIP_POINTER_ATTRIBUTE_RANGE_SIZE)                                              \
    VALUE(HIP_STREAM_NON_BLOCKING, 1, hipStreamNonBlocking)                                                            \
    VALUE(HIP_EVENT_DISABLE_TIMING, 2, hipEventDisableTiming)                                                          \
    VALUE(HIP_HOST_PORTABLE, 1, hipHostRegisterPortable)

enum hip_value {
#define HIP_VALUE(ours, value, theirs) ours = value,
    HIP_VALUES(HIP_VALUE)
#undef HIP_VALUE
    /* hipMemoryTypeDevice has changed: up to ROCm 5, and from 6 on (as in CUDA) */
    HIP_MEMORY_DEVICE_5 = 1,
    HIP_MEMORY_DEVICE_6 = 2,
    HIP_MAJOR_UNIT = 10000000, /* the units of hipRuntimeGetVersion() */
    HIP_MINOR_UNIT = 100000,
};

#endif
