/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the HIP runtime, libamdhip64.so.5 or .6 (ROCM says which), over fake_gpu.h: what the engine and the
 * tools look up in it. Kinds of memory have the numbers of either. Built without any vendor's header.
 */
#include "fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef ROCM
#define ROCM 6
#endif

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};

/* Kinds of memory: their numbers moved with ROCm 6. */
enum { TYPE_HOST = ROCM >= 6 ? 1 : 0, TYPE_DEVICE = ROCM >= 6 ? 2 : 1 };

static bool used[FAKE_DEVICES_MAX];
static _Thread_local int current;
static _Thread_local int last_error; /* as since ROCm 7: until somebody asks for it */

static int told(int error)
{
    last_error = error ? error : last_error;
    return error;
}

#define ENTER                                                                                                          \
    do {                                                                                                               \
        int failure_ = fake_enter(__func__);                                                                           \
        if (failure_ || !fake_devices())                                                                               \
            return told(failure_ ? failure_ : NO_DEVICE);                                                              \
    } while (0)

/* HIP makes what it needs on a device with the first call that uses it. */
static void use(int device)
{
    if (!used[device])
        fake_context_made(device);
    used[device] = true;
}

/* ---- the runtime ----------------------------------------------------------------------------- */

FAKE_API int hipInit(unsigned flags);
FAKE_API int hipInit(unsigned flags)
{
    ENTER;
    return flags ? INVALID_VALUE : SUCCESS;
}

FAKE_API int hipRuntimeGetVersion(int *version);
FAKE_API int hipRuntimeGetVersion(int *version)
{
    ENTER;
    *version = ROCM * 10000000 + 230000;
    return SUCCESS;
}

FAKE_API int hipPeekAtLastError(void);
FAKE_API int hipPeekAtLastError(void)
{
    return last_error;
}

FAKE_API int hipGetLastError(void);
FAKE_API int hipGetLastError(void)
{
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

FAKE_API const char *hipGetErrorString(int error);
FAKE_API const char *hipGetErrorString(int error)
{
    return error == OUT_OF_MEMORY ? "out of memory" : error == 719 ? "unspecified launch failure" : "some error";
}

/* ---- devices --------------------------------------------------------------------------------- */

FAKE_API int hipGetDeviceCount(int *count);
FAKE_API int hipGetDeviceCount(int *count)
{
    ENTER;
    *count = fake_devices();
    return SUCCESS;
}

FAKE_API int hipDeviceGetName(char *name, int length, int device);
FAKE_API int hipDeviceGetName(char *name, int length, int device)
{
    ENTER;
    snprintf(name, (size_t)length, "Fake GPU %d", device);
    return SUCCESS;
}

FAKE_API int hipDeviceGetPCIBusId(char *pci, int length, int device);
FAKE_API int hipDeviceGetPCIBusId(char *pci, int length, int device)
{
    ENTER;
    if (device < 0 || device >= fake_devices())
        return INVALID_DEVICE;
    fake_pci(device, pci, (size_t)length);
    return SUCCESS;
}

FAKE_API int hipDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
FAKE_API int hipDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER;
    *flags = 0;
    *active = used[device];
    return SUCCESS;
}

FAKE_API int hipGetDevice(int *device);
FAKE_API int hipGetDevice(int *device)
{
    ENTER;
    *device = current;
    return SUCCESS;
}

FAKE_API int hipSetDevice(int device);
FAKE_API int hipSetDevice(int device)
{
    ENTER;
    if (device < 0 || device >= fake_devices())
        return INVALID_DEVICE;
    current = device;
    return SUCCESS;
}

/* For applications; an engine would wait for work that is not its own. */
FAKE_API int hipDeviceSynchronize(void);
FAKE_API int hipDeviceSynchronize(void)
{
    ENTER;
    return SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

FAKE_API int hipMalloc(void **out, size_t bytes);
FAKE_API int hipMalloc(void **out, size_t bytes)
{
    ENTER;
    use(current);
    *out = fake_alloc(current, bytes);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

FAKE_API int hipFree(void *memory);
FAKE_API int hipFree(void *memory)
{
    ENTER;
    return fake_free(memory) ? SUCCESS : INVALID_VALUE;
}

FAKE_API int hipHostMalloc(void **out, size_t bytes, unsigned flags);
FAKE_API int hipHostMalloc(void **out, size_t bytes, unsigned flags)
{
    ENTER;
    (void)flags;
    use(current);
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory || !fake_pin(memory, bytes)) {
        free(memory);
        return OUT_OF_MEMORY;
    }
    *out = memory;
    return SUCCESS;
}

FAKE_API int hipHostFree(void *memory);
FAKE_API int hipHostFree(void *memory)
{
    ENTER;
    if (!fake_unpin(memory))
        return INVALID_VALUE;
    free(memory);
    return SUCCESS;
}

FAKE_API int hipHostRegister(void *memory, size_t bytes, unsigned flags);
FAKE_API int hipHostRegister(void *memory, size_t bytes, unsigned flags)
{
    ENTER;
    (void)flags;
    use(current);
    return fake_pin(memory, bytes) ? SUCCESS : ALREADY_REGISTERED;
}

FAKE_API int hipHostUnregister(void *memory);
FAKE_API int hipHostUnregister(void *memory)
{
    ENTER;
    return fake_unpin(memory) ? SUCCESS : NOT_REGISTERED;
}

FAKE_API int hipPointerGetAttribute(void *out, int attribute, void *address);
FAKE_API int hipPointerGetAttribute(void *out, int attribute, void *address)
{
    ENTER;
    struct fake_allocation found;
    if (!fake_find(address, &found))
        return told(INVALID_VALUE);
    switch (attribute) {
    case 2: /* memory type */
        *(int *)out = TYPE_DEVICE;
        return SUCCESS;
    case 7: /* buffer id: every runtime so far gives the allocation's, which may come again */
        *(unsigned long long *)out = found.id;
        return SUCCESS;
    case 8: /* managed */
        *(int *)out = getenv("FAKE_GPU_MANAGED") != NULL;
        return SUCCESS;
    case 9: /* device ordinal */
        *(int *)out = found.device;
        return SUCCESS;
    case 11: /* range start */
        *(uintptr_t *)out = found.base;
        return SUCCESS;
    case 12: /* range size */
        *(size_t *)out = found.length;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

FAKE_API int hipMemcpy(void *to, const void *from, size_t bytes, int direction);
FAKE_API int hipMemcpy(void *to, const void *from, size_t bytes, int direction)
{
    ENTER;
    (void)direction;
    return fake_copy(to, from, bytes) ? SUCCESS : INVALID_VALUE;
}

#if ROCM >= 6
/* Of libhsa-runtime64.so.1, below. */
FAKE_API int hsa_amd_portable_export_dmabuf(const void *address, size_t bytes, int *fd, uint64_t *offset);
FAKE_API int hsa_amd_portable_export_dmabuf(const void *address, size_t bytes, int *fd, uint64_t *offset)
{
    int failure = fake_enter(__func__);
    (void)address;
    if (failure)
        return failure;
    *fd = memfd_create("fake-dma-buf", MFD_CLOEXEC);
    *offset = 4096;
    return *fd >= 0 && ftruncate(*fd, (off_t)bytes + 4096) == 0 ? SUCCESS : INVALID_VALUE;
}
#endif

/* ---- streams and events ---------------------------------------------------------------------- */

FAKE_API int hipStreamCreateWithFlags(struct fake_stream **out, unsigned flags);
FAKE_API int hipStreamCreateWithFlags(struct fake_stream **out, unsigned flags)
{
    ENTER;
    if (flags != 1) /* hipStreamNonBlocking */
        fake_violation("a stream that waits for the application's default stream");
    use(current);
    *out = fake_stream_make(current);
    return SUCCESS;
}

FAKE_API int hipStreamDestroy(struct fake_stream *stream);
FAKE_API int hipStreamDestroy(struct fake_stream *stream)
{
    ENTER;
    if (!stream)
        return INVALID_HANDLE;
    fake_stream_end(stream);
    return SUCCESS;
}

FAKE_API int hipEventCreateWithFlags(struct fake_event **out, unsigned flags);
FAKE_API int hipEventCreateWithFlags(struct fake_event **out, unsigned flags)
{
    ENTER;
    if (!(flags & 2)) /* hipEventDisableTiming */
        fake_violation("an event that takes the time, which costs");
    use(current);
    *out = fake_event_make();
    return SUCCESS;
}

FAKE_API int hipEventDestroy(struct fake_event *event);
FAKE_API int hipEventDestroy(struct fake_event *event)
{
    ENTER;
    if (!event)
        return INVALID_HANDLE;
    fake_event_end(event);
    return SUCCESS;
}

FAKE_API int hipEventRecord(struct fake_event *event, struct fake_stream *stream);
FAKE_API int hipEventRecord(struct fake_event *event, struct fake_stream *stream)
{
    ENTER;
    if (!stream)
        fake_violation("an event on the application's default stream");
    fake_event_record(event, stream);
    return SUCCESS;
}

FAKE_API int hipEventQuery(struct fake_event *event);
FAKE_API int hipEventQuery(struct fake_event *event)
{
    ENTER;
    return fake_event_poll(event) ? SUCCESS : NOT_READY;
}

static int queue_copy(void *to, const void *from, size_t bytes, struct fake_stream *stream)
{
    if (!stream)
        fake_violation("a copy on the application's default stream");
    return fake_stream_copy(stream, to, from, bytes) ? SUCCESS : INVALID_VALUE;
}

FAKE_API int hipMemcpyDtoHAsync(void *to, uintptr_t from, size_t bytes, struct fake_stream *stream);
FAKE_API int hipMemcpyDtoHAsync(void *to, uintptr_t from, size_t bytes, struct fake_stream *stream)
{
    ENTER;
    return queue_copy(to, (void *)from, bytes, stream);
}

FAKE_API int hipMemcpyHtoDAsync(uintptr_t to, const void *from, size_t bytes, struct fake_stream *stream);
FAKE_API int hipMemcpyHtoDAsync(uintptr_t to, const void *from, size_t bytes, struct fake_stream *stream)
{
    ENTER;
    return queue_copy((void *)to, from, bytes, stream);
}

/* ---- what an engine must not call ------------------------------------------------------------ */

FAKE_API int hipStreamSynchronize(struct fake_stream *stream);
FAKE_API int hipStreamSynchronize(struct fake_stream *stream)
{
    (void)stream;
    fake_violation("%s: a thread waits for the GPU", __func__);
}

FAKE_API int hipEventSynchronize(struct fake_event *event);
FAKE_API int hipEventSynchronize(struct fake_event *event)
{
    (void)event;
    fake_violation("%s: a thread waits for the GPU", __func__);
}
