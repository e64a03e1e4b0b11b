/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for CUDA's driver library, libcuda.so.1, over fake_gpu.h: what the engine and the tools look up in it,
 * with the driver's rules about initialisation, contexts and page-locked memory. Built without any vendor's header.
 */
#include "fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};

/* OLD: a driver for CUDA 10.0 */
#ifndef OLD
enum { DRIVER_VERSION = 12040 };
#else
enum { DRIVER_VERSION = 10000 };
#endif
enum { STACK_MAX = 16 };

struct context {
    int device, retained;
};

#ifndef OLD
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode);
#endif

static struct context primary[FAKE_DEVICES_MAX];
static int initialised;
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local unsigned depth; /* stack[depth] is the current one */

/* Counts the call, and ends it where a failure was asked for. */
#define ENTER                                                                                                          \
    do {                                                                                                               \
        int failure_ = fake_enter(__func__);                                                                           \
        if (failure_)                                                                                                  \
            return failure_;                                                                                           \
    } while (0)

#define NEED_INIT                                                                                                      \
    do {                                                                                                               \
        ENTER;                                                                                                         \
        if (!initialised)                                                                                              \
            return NOT_INITIALIZED;                                                                                    \
    } while (0)

/* A current context that is alive. */
#define NEED_CONTEXT                                                                                                   \
    do {                                                                                                               \
        NEED_INIT;                                                                                                     \
        if (!stack[depth] || !stack[depth]->retained)                                                                  \
            return INVALID_CONTEXT;                                                                                    \
    } while (0)

/* ---- the driver ------------------------------------------------------------------------------ */

FAKE_API int cuInit(unsigned flags);
FAKE_API int cuInit(unsigned flags)
{
    ENTER;
    if (flags)
        return INVALID_VALUE;
    initialised = 1;
    return fake_devices() ? SUCCESS : 100; /* CUDA_ERROR_NO_DEVICE */
}

FAKE_API int cuDriverGetVersion(int *version);
FAKE_API int cuDriverGetVersion(int *version)
{
    ENTER;
    *version = DRIVER_VERSION;
    return SUCCESS;
}

FAKE_API int cuGetErrorString(int error, const char **text);
FAKE_API int cuGetErrorString(int error, const char **text)
{
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == 803 ? "driver mismatch" : "some error";
    return SUCCESS;
}

/* ---- devices and contexts -------------------------------------------------------------------- */

FAKE_API int cuDeviceGetCount(int *count);
FAKE_API int cuDeviceGetCount(int *count)
{
    NEED_INIT;
    *count = fake_devices();
    return SUCCESS;
}

FAKE_API int cuDeviceGet(int *device, int ordinal);
FAKE_API int cuDeviceGet(int *device, int ordinal)
{
    NEED_INIT;
    if (ordinal < 0 || ordinal >= fake_devices())
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

FAKE_API int cuDeviceGetName(char *name, int length, int device);
FAKE_API int cuDeviceGetName(char *name, int length, int device)
{
    NEED_INIT;
    snprintf(name, (size_t)length, "Fake GPU %d", device);
    return SUCCESS;
}

FAKE_API int cuDeviceGetPCIBusId(char *pci, int length, int device);
FAKE_API int cuDeviceGetPCIBusId(char *pci, int length, int device)
{
    NEED_INIT;
    fake_pci(device, pci, (size_t)length);
    return SUCCESS;
}

FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    NEED_INIT;
    *flags = 0;
    *active = primary[device].retained != 0;
    return SUCCESS;
}

FAKE_API int cuDevicePrimaryCtxRetain(struct context **context, int device);
FAKE_API int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    NEED_INIT;
    if (device < 0 || device >= fake_devices())
        return INVALID_DEVICE;
    primary[device].device = device;
    if (primary[device].retained++ == 0)
        fake_context_made(device);
    fake_hold(1);
    *context = &primary[device];
    return SUCCESS;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device);
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    NEED_INIT;
    if (!primary[device].retained)
        return INVALID_CONTEXT;
    primary[device].retained--;
    fake_hold(-1);
    return SUCCESS;
}

FAKE_API int cuCtxGetCurrent(struct context **context);
FAKE_API int cuCtxGetCurrent(struct context **context)
{
    NEED_INIT;
    *context = stack[depth];
    return SUCCESS;
}

FAKE_API int cuCtxSetCurrent(struct context *context);
FAKE_API int cuCtxSetCurrent(struct context *context)
{
    NEED_INIT;
    stack[depth] = context;
    return SUCCESS;
}

FAKE_API int cuCtxPushCurrent_v2(struct context *context);
FAKE_API int cuCtxPushCurrent_v2(struct context *context)
{
    NEED_INIT;
    if (depth + 1 == STACK_MAX)
        fake_violation("contexts are pushed and never popped");
    if (!context || !context->retained)
        return INVALID_CONTEXT;
    stack[++depth] = context;
    return SUCCESS;
}

FAKE_API int cuCtxPopCurrent_v2(struct context **context);
FAKE_API int cuCtxPopCurrent_v2(struct context **context)
{
    NEED_INIT;
    if (!depth)
        return INVALID_CONTEXT;
    if (context)
        *context = stack[depth];
    stack[depth--] = NULL;
    return SUCCESS;
}

/* For applications; an engine would wait for work that is not its own. */
FAKE_API int cuCtxSynchronize(void);
FAKE_API int cuCtxSynchronize(void)
{
    NEED_CONTEXT;
    return SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

FAKE_API int cuMemAlloc_v2(uintptr_t *out, size_t bytes);
FAKE_API int cuMemAlloc_v2(uintptr_t *out, size_t bytes)
{
    NEED_CONTEXT;
    void *memory = fake_alloc(stack[depth]->device, bytes);
    *out = (uintptr_t)memory;
    return memory ? SUCCESS : OUT_OF_MEMORY;
}

FAKE_API int cuMemFree_v2(uintptr_t memory);
FAKE_API int cuMemFree_v2(uintptr_t memory)
{
    NEED_CONTEXT;
    return fake_free((void *)memory) ? SUCCESS : INVALID_VALUE;
}

#ifndef OLD
/* A dma-buf of whole pages of one allocation; of its size alone. Any context will do, none as well. */
FAKE_API int cuMemGetHandleForAddressRange(int *out, uintptr_t address, size_t bytes, int type,
                                           unsigned long long flags);
FAKE_API int cuMemGetHandleForAddressRange(int *out, uintptr_t address, size_t bytes, int type,
                                           unsigned long long flags)
{
    NEED_INIT;
    int mode = 2; /* relaxed: it could be an unsafe call, for all that the driver knows */
    cuThreadExchangeStreamCaptureMode(&mode);
    if (mode != 2)
        fake_violation("a call that a capture of the application's forbids");
    if (address % 4096 || bytes % 4096 || type != 1 || flags)
        return INVALID_VALUE;
    *out = memfd_create("fake-dma-buf", MFD_CLOEXEC);
    return *out >= 0 && ftruncate(*out, (off_t)bytes) == 0 ? SUCCESS : OUT_OF_MEMORY;
}
#endif

FAKE_API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
FAKE_API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    NEED_CONTEXT;
    (void)flags;
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory || !fake_pin(memory, bytes)) {
        free(memory);
        return OUT_OF_MEMORY;
    }
    *out = memory;
    return SUCCESS;
}

FAKE_API int cuMemFreeHost(void *memory);
FAKE_API int cuMemFreeHost(void *memory)
{
    NEED_CONTEXT;
    if (!fake_unpin(memory))
        return INVALID_VALUE;
    free(memory);
    return SUCCESS;
}

FAKE_API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
FAKE_API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    NEED_CONTEXT;
    (void)flags;
    return fake_pin(memory, bytes) ? SUCCESS : ALREADY_REGISTERED;
}

FAKE_API int cuMemHostUnregister(void *memory);
FAKE_API int cuMemHostUnregister(void *memory)
{
    NEED_CONTEXT;
    return fake_unpin(memory) ? SUCCESS : NOT_REGISTERED;
}

/* One attribute of an address that is known. False: no such attribute. */
static bool attribute_of(int attribute, const struct fake_allocation *a, bool device, uintptr_t address, void *out)
{
    switch (attribute) {
    case 1: /* context */
        *(void **)out = device ? &primary[a->device] : NULL;
        return true;
    case 2: /* memory type: 1 host, 2 device */
        *(unsigned *)out = device ? 2 : 1;
        return true;
    case 3: /* device pointer */
        *(uintptr_t *)out = address;
        return true;
    case 7: /* buffer id */
        *(unsigned long long *)out = a->id;
        return true;
    case 8: /* managed: one byte, as the driver writes it */
        *(unsigned char *)out = getenv("FAKE_GPU_MANAGED") != NULL;
        return true;
    case 9: /* device ordinal */
        *(int *)out = device ? a->device : -2;
        return true;
    case 11: /* range start */
        *(uintptr_t *)out = a->base;
        return true;
    case 12: /* range size */
        *(size_t *)out = a->length;
        return true;
    default:
        return false;
    }
}

/* False: the driver does not know the address. */
static bool look_up(uintptr_t address, struct fake_allocation *a, bool *device)
{
    *a = (struct fake_allocation){.device = -2};
    *device = fake_find((void *)address, a);
    return *device || fake_pinned((void *)address, &a->base, &a->length);
}

/* Zeros, not an error, for what is unknown. */
FAKE_API int cuPointerGetAttributes(unsigned count, const int *attributes, void **out, uintptr_t address);
FAKE_API int cuPointerGetAttributes(unsigned count, const int *attributes, void **out, uintptr_t address)
{
    NEED_INIT;
    struct fake_allocation a;
    bool device, known = look_up(address, &a, &device);
    for (unsigned i = 0; i < count; i++) {
        if (known && attribute_of(attributes[i], &a, device, address, out[i]))
            continue;
        bool wide = attributes[i] != 2 && attributes[i] != 8 && attributes[i] != 9;
        memset(out[i], 0, attributes[i] == 8 ? 1 : wide ? 8 : 4);
    }
    return SUCCESS;
}

FAKE_API int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes);
FAKE_API int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes)
{
    NEED_CONTEXT;
    return fake_copy((void *)to, from, bytes) ? SUCCESS : INVALID_VALUE;
}

FAKE_API int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes);
FAKE_API int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes)
{
    NEED_CONTEXT;
    return fake_copy(to, (void *)from, bytes) ? SUCCESS : INVALID_VALUE;
}

/* ---- streams and events ---------------------------------------------------------------------- */

FAKE_API int cuStreamCreate(struct fake_stream **out, unsigned flags);
FAKE_API int cuStreamCreate(struct fake_stream **out, unsigned flags)
{
    NEED_CONTEXT;
    if (flags != 1) /* CU_STREAM_NON_BLOCKING */
        fake_violation("a stream that waits for the application's default stream");
    *out = fake_stream_make(stack[depth]->device);
    return SUCCESS;
}

#ifndef OLD
/* What a thread's calls may do to captures of other threads. */
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode);
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int current; /* global */
    NEED_INIT;
    int before = current;
    current = *mode;
    *mode = before;
    return SUCCESS;
}
#endif

FAKE_API int cuStreamDestroy_v2(struct fake_stream *stream);
FAKE_API int cuStreamDestroy_v2(struct fake_stream *stream)
{
    NEED_INIT;
    if (!stream)
        return INVALID_HANDLE;
    fake_stream_end(stream);
    return SUCCESS;
}

FAKE_API int cuEventCreate(struct fake_event **out, unsigned flags);
FAKE_API int cuEventCreate(struct fake_event **out, unsigned flags)
{
    NEED_CONTEXT;
    if (!(flags & 2)) /* CU_EVENT_DISABLE_TIMING */
        fake_violation("an event that takes the time, which costs");
    *out = fake_event_make();
    return SUCCESS;
}

FAKE_API int cuEventDestroy_v2(struct fake_event *event);
FAKE_API int cuEventDestroy_v2(struct fake_event *event)
{
    NEED_INIT;
    if (!event)
        return INVALID_HANDLE;
    fake_event_end(event);
    return SUCCESS;
}

FAKE_API int cuEventRecord(struct fake_event *event, struct fake_stream *stream);
FAKE_API int cuEventRecord(struct fake_event *event, struct fake_stream *stream)
{
    NEED_CONTEXT;
    if (!stream)
        fake_violation("an event on the application's default stream");
    fake_event_record(event, stream);
    return SUCCESS;
}

FAKE_API int cuEventQuery(struct fake_event *event);
FAKE_API int cuEventQuery(struct fake_event *event)
{
    NEED_INIT;
    return fake_event_poll(event) ? SUCCESS : NOT_READY;
}

static int queue_copy(void *to, const void *from, size_t bytes, struct fake_stream *stream)
{
    if (!stream)
        fake_violation("a copy on the application's default stream");
    return fake_stream_copy(stream, to, from, bytes) ? SUCCESS : INVALID_VALUE;
}

FAKE_API int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, struct fake_stream *stream);
FAKE_API int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, struct fake_stream *stream)
{
    NEED_CONTEXT;
    return queue_copy((void *)to, from, bytes, stream);
}

FAKE_API int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, struct fake_stream *stream);
FAKE_API int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, struct fake_stream *stream)
{
    NEED_CONTEXT;
    return queue_copy(to, (void *)from, bytes, stream);
}

/* ---- what an engine must not call ------------------------------------------------------------ */

FAKE_API int cuStreamSynchronize(struct fake_stream *stream);
FAKE_API int cuStreamSynchronize(struct fake_stream *stream)
{
    (void)stream;
    fake_violation("%s: a thread waits for the GPU", __func__);
}

FAKE_API int cuEventSynchronize(struct fake_event *event);
FAKE_API int cuEventSynchronize(struct fake_event *event)
{
    (void)event;
    fake_violation("%s: a thread waits for the GPU", __func__);
}
