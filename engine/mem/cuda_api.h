/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver (libcuda.so.1) that we use, declared by ourselves: FUNCTION(name, our parameters,
 * those of cuda.h). A test compares the latter with the vendor's header where that is installed.
 *
 * We use the driver and not the runtime library: a machine has one driver, whatever toolkit a program was built with
 * (11 to 13, linked statically or not). Its functions never change under one name. Asking it about a pointer makes no
 * context, and a context can be pushed and popped without a trace.
 */
#ifndef UCCL_CUDA_API_H
#define UCCL_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_FUNCTIONS(FUNCTION)                                                                                       \
    FUNCTION(cuInit, (unsigned flags), (unsigned int))                                                                 \
    FUNCTION(cuDriverGetVersion, (int *version), (int *))                                                              \
    FUNCTION(cuGetErrorString, (int error, const char **text), (CUresult, const char **))                              \
    FUNCTION(cuDeviceGetCount, (int *count), (int *))                                                                  \
    FUNCTION(cuDeviceGet, (int *device, int ordinal), (CUdevice *, int))                                               \
    FUNCTION(cuDeviceGetName, (char *name, int size, int device), (char *, int, CUdevice))                             \
    FUNCTION(cuDeviceGetPCIBusId, (char *text, int size, int device), (char *, int, CUdevice))                         \
    FUNCTION(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active),                                   \
             (CUdevice, unsigned int *, int *))                                                                        \
    FUNCTION(cuDevicePrimaryCtxRetain, (void **context, int device), (CUcontext *, CUdevice))                          \
    FUNCTION(cuDevicePrimaryCtxRelease_v2, (int device), (CUdevice))                                                   \
    FUNCTION(cuCtxPushCurrent_v2, (void *context), (CUcontext))                                                        \
    FUNCTION(cuCtxPopCurrent_v2, (void **context), (CUcontext *))                                                      \
    FUNCTION(cuThreadExchangeStreamCaptureMode, (int *mode), (CUstreamCaptureMode *))                                  \
    FUNCTION(cuPointerGetAttributes, (unsigned count, int *attributes, void **data, uintptr_t address),                \
             (unsigned int, CUpointer_attribute *, void **, CUdeviceptr))                                              \
    FUNCTION(cuMemHostRegister_v2, (void *memory, size_t length, unsigned flags), (void *, size_t, unsigned int))      \
    FUNCTION(cuMemHostUnregister, (void *memory), (void *))                                                            \
    FUNCTION(cuMemcpyDtoHAsync_v2, (void *to, uintptr_t from, size_t length, void *stream),                            \
             (void *, CUdeviceptr, size_t, CUstream))                                                                  \
    FUNCTION(cuMemcpyHtoDAsync_v2, (uintptr_t to, const void *from, size_t length, void *stream),                      \
             (CUdeviceptr, const void *, size_t, CUstream))                                                            \
    FUNCTION(cuStreamCreate, (void **stream, unsigned flags), (CUstream *, unsigned int))                              \
    FUNCTION(cuStreamDestroy_v2, (void *stream), (CUstream))                                                           \
    FUNCTION(cuEventCreate, (void **event, unsigned flags), (CUevent *, unsigned int))                                 \
    FUNCTION(cuEventDestroy_v2, (void *event), (CUevent))                                                              \
    FUNCTION(cuEventRecord, (void *event, void *stream), (CUevent, CUstream))                                          \
    FUNCTION(cuEventQuery, (void *event), (CUevent))

/* Newer than the oldest driver that we support (CUDA 11.7). */
#define CUDA_OPTIONAL_FUNCTIONS(FUNCTION)                                                                              \
    FUNCTION(cuMemGetHandleForAddressRange,                                                                            \
             (void *handle, uintptr_t address, size_t length, int type, unsigned long long flags),                     \
             (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))

/* VALUE(its name here, its value, its name in cuda.h) */
#define CUDA_VALUES(VALUE)                                                                                             \
    VALUE(CUDA_NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                                                                   \
    VALUE(CUDA_NOT_READY, 600, CUDA_ERROR_NOT_READY)                                                                   \
    VALUE(CUDA_MEMORY_DEVICE, 2, CU_MEMORYTYPE_DEVICE)                                                                 \
    VALUE(CUDA_ATTRIBUTE_CONTEXT, 1, CU_POINTER_ATTRIBUTE_CONTEXT)                                                     \
    VALUE(CUDA_ATTRIBUTE_MEMORY_TYPE, 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                             \
    VALUE(CUDA_ATTRIBUTE_BUFFER_ID, 7, CU_POINTER_ATTRIBUTE_BUFFER_ID)                                                 \
    VALUE(CUDA_ATTRIBUTE_IS_MANAGED, 8, CU_POINTER_ATTRIBUTE_IS_MANAGED)                                               \
    VALUE(CUDA_ATTRIBUTE_DEVICE_ORDINAL, 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                       \
    VALUE(CUDA_ATTRIBUTE_RANGE_START, 11, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                                       \
    VALUE(CUDA_ATTRIBUTE_RANGE_SIZE, 12, CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                              \
    VALUE(CUDA_STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)                                                         \
    VALUE(CUDA_EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING)                                                       \
    VALUE(CUDA_HOST_PORTABLE, 1, CU_MEMHOSTREGISTER_PORTABLE)                                                          \
    VALUE(CUDA_CAPTURE_RELAXED, 2, CU_STREAM_CAPTURE_MODE_RELAXED)

#define CUDA_OPTIONAL_VALUES(VALUE) VALUE(CUDA_RANGE_DMA_BUF, 1, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)

enum cuda_value {
#define CUDA_VALUE(ours, value, theirs) ours = value,
    CUDA_VALUES(CUDA_VALUE) CUDA_OPTIONAL_VALUES(CUDA_VALUE)
#undef CUDA_VALUE
};

#endif
