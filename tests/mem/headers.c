/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we declare of the vendors' libraries, against the vendors' headers where those are installed. The compiler
 * checks it: compiling is the test. A plain main, for machines with CUDA and little else.
 */
#include "mem/cuda_api.h"
#include "mem/hip_api.h"

#include <stdio.h>

/* Our type of a parameter is as large as theirs, and is passed in the same kind of register. */
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " for " #theirs)

#if __has_include(<hip/hip_runtime_api.h>)
#define __HIP_PLATFORM_AMD__ 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <hip/hip_runtime_api.h>
#pragma GCC diagnostic pop

#define HIP_PROTOTYPE(name, ours, theirs)                                                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), hipError_t(*) theirs), #name);
HIP_FUNCTIONS(HIP_PROTOTYPE)
#define HIP_SAME(ours, value, theirs) _Static_assert((int)ours == (int)theirs, #ours);
HIP_VALUES(HIP_SAME)
SAME_SIZE(int, hipError_t);
SAME_SIZE(int, hipPointer_attribute);
SAME_SIZE(uintptr_t, hipDeviceptr_t);
SAME_SIZE(void *, hipStream_t);
SAME_SIZE(void *, hipEvent_t);

#if __has_include(<hsa/hsa_ext_amd.h>)
#include <hsa/hsa_ext_amd.h>
#if defined(HSA_AMD_INTERFACE_VERSION_MINOR) && HSA_AMD_INTERFACE_VERSION_MINOR >= 1
#define HSA_PROTOTYPE(name, ours, theirs)                                                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), hsa_status_t(*) theirs), #name);
HSA_OPTIONAL_FUNCTIONS(HSA_PROTOTYPE)
SAME_SIZE(int, hsa_status_t);
#endif
#endif

_Static_assert((int)hipMemoryTypeDevice == (HIP_VERSION_MAJOR > 5 ? HIP_MEMORY_DEVICE_6 : HIP_MEMORY_DEVICE_5),
               "hipMemoryTypeDevice");
#define HAS_HIP "HIP "
#else
#define HAS_HIP ""
#endif

#if __has_include(<cuda.h>)
#include <cuda.h>

#define CUDA_PROTOTYPE(name, ours, theirs)                                                                             \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) theirs), #name);
CUDA_FUNCTIONS(CUDA_PROTOTYPE)
#define CUDA_SAME(ours, value, theirs) _Static_assert((int)ours == (int)theirs, #ours);
CUDA_VALUES(CUDA_SAME)
SAME_SIZE(int, CUresult);
SAME_SIZE(int, CUpointer_attribute);
SAME_SIZE(int, CUstreamCaptureMode);
SAME_SIZE(int, CUdevice);
SAME_SIZE(uintptr_t, CUdeviceptr);
SAME_SIZE(void *, CUcontext);
#if CUDA_VERSION >= 11070
CUDA_OPTIONAL_FUNCTIONS(CUDA_PROTOTYPE)
CUDA_OPTIONAL_VALUES(CUDA_SAME)
SAME_SIZE(int, CUmemRangeHandleType);
#endif
#define HAS_CUDA "CUDA "
#else
#define HAS_CUDA ""
#endif

enum { CASES = 1 };

int main(void)
{
    /* nothing to compare with is no failure: there are machines without either */
    printf("1..%d\nok - compared with the headers of: %s\n", CASES, HAS_HIP HAS_CUDA);
    return 0;
}
