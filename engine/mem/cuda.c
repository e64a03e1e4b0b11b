/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA memory, through the driver. An application's thread asks it about pointers alone, which changes
 * nothing. Copies run in the context that the memory was allocated in, else in the device's primary
 * one if that is active; none is ever made. It is current in the engine thread for the length of
 * each call.
 */
#include "log.h"
#include "mem/copies.h"
#include "mem/cuda_api.h"
#include "mem/mem.h"
#include "mem/runtime.h"

#include <stdio.h>
#include <stdlib.h>

enum { VERSION_MIN = 11000, NAME_TEXT = 64 };

#define CUDA_POINTER(name, ours, theirs) int(*name) ours;
static struct cuda {
    CUDA_FUNCTIONS(CUDA_POINTER)
} cuda;

#define CUDA_NAME(name, ours, theirs) #name,
static const char *const names[] = {CUDA_FUNCTIONS(CUDA_NAME)};
static const char *const sonames[] = {"libcuda.so.1", NULL};

static struct mem_runtime runtime = {.sonames = sonames,
                                     .names = names,
                                     .functions = (void **)&cuda,
                                     .count = sizeof names / sizeof names[0],
                                     .lock = PTHREAD_MUTEX_INITIALIZER};
_Static_assert(sizeof cuda == sizeof names, "a function for each name");

struct mem_stage {
    struct mem_copies copies;
    void *context;
    int device;
    bool retained;  /* the primary context is kept for us */
    bool failed;    /* that has been logged */
};

static const char *error_text(int error)
{
    const char *text;
    return cuda.cuGetErrorString(error, &text) == 0 && text ? text : "unknown error";
}

/* ---- what there is --------------------------------------------------------------------------- */

static int cuda_identify(const void *address, struct mem_identity *out)
{
    int kind = 0, device = -1;
    void *context = NULL;
    uintptr_t base = 0;
    size_t length = 0;
    uint64_t id = 0;
    int attributes[] = {CUDA_ATTRIBUTE_MEMORY_TYPE, CUDA_ATTRIBUTE_DEVICE_ORDINAL, CUDA_ATTRIBUTE_CONTEXT,
                        CUDA_ATTRIBUTE_RANGE_START, CUDA_ATTRIBUTE_RANGE_SIZE,     CUDA_ATTRIBUTE_BUFFER_ID};
    void *data[] = {&kind, &device, &context, &base, &length, &id};
    enum { COUNT = sizeof data / sizeof data[0] };
    /* of an address that it does not know it says nothing, without an error */
    if (!mem_runtime_find(&runtime, false) ||
        cuda.cuPointerGetAttributes(COUNT, attributes, data, (uintptr_t)address) || kind != CUDA_MEMORY_DEVICE)
        return UCCL_ENOTSUP;
    *out = (struct mem_identity){.ops = &mem_cuda_ops,
                                 .device = device,
                                 .context = context,
                                 .base = base,
                                 .base_length = length,
                                 .buffer_id = id};
    int handle;
    if (cuda.cuDeviceGet(&handle, device) || cuda.cuDeviceGetPCIBusId(out->pci, sizeof out->pci, handle))
        out->pci[0] = '\0';
    return UCCL_OK;
}

static void name_devices(int count, char *text, size_t size, size_t used)
{
    for (int i = 0; i < count && used < size; i++) {
        char name[NAME_TEXT] = "?", pci[MEM_PCI_TEXT] = "?";
        int handle;
        if (cuda.cuDeviceGet(&handle, i) || cuda.cuDeviceGetName(name, sizeof name, handle) ||
            cuda.cuDeviceGetPCIBusId(pci, sizeof pci, handle))
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s %s", i ? ", " : ": ", name, pci);
    }
}

static int cuda_status(char *text, size_t size)
{
    int version = 0, count = 0;
    if (!mem_runtime_find(&runtime, true)) {
        if (runtime.missing)
            snprintf(text, size, "the driver is too old: %s has no %s (CUDA 11.0 or later is needed)",
                     runtime.soname, runtime.missing);
        else
            snprintf(text, size, "no driver: %s is not installed", sonames[0]);
        return UCCL_ENOTSUP;
    }
    if (cuda.cuDriverGetVersion(&version) == 0 && version < VERSION_MIN) {
        snprintf(text, size, "the driver is too old: it is for CUDA %d.%d, 11.0 or later is needed",
                 version / 1000, version % 1000 / 10);
        return UCCL_ENOTSUP;
    }
    int error = cuda.cuInit(0);
    if (error == 0)
        error = cuda.cuDeviceGetCount(&count);
    if (error || count == 0) {
        snprintf(text, size, "driver for CUDA %d.%d, which does not work here: %s", version / 1000,
                 version % 1000 / 10, error_text(error ? error : CUDA_NO_DEVICE));
        return UCCL_ENOTSUP;
    }
    int used = snprintf(text, size, "driver for CUDA %d.%d, %d device%s", version / 1000, version % 1000 / 10,
                        count, count == 1 ? "" : "s");
    name_devices(count, text, size, (size_t)used);
    return UCCL_OK;
}

static int cuda_device(int index, struct mem_device *out)
{
    char text[MEM_STATUS_TEXT];
    int handle;
    if (cuda_status(text, sizeof text) || cuda.cuDeviceGet(&handle, index))
        return UCCL_ENODEV;
    if (cuda.cuDeviceGetName(out->model, sizeof out->model, handle))
        out->model[0] = '\0';
    if (cuda.cuDeviceGetPCIBusId(out->pci, sizeof out->pci, handle))
        out->pci[0] = '\0';
    return UCCL_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Logs the first failure of a device. */
static int failure(struct mem_stage *stage, const char *what, int error)
{
    if (!stage->failed)
        LOG_ERR("CUDA device %d: %s: %s (%d)", stage->device, what, error_text(error), error);
    stage->failed = true;
    return UCCL_EIO;
}

static int enter(struct mem_stage *stage)
{
    int error = cuda.cuCtxPushCurrent_v2(stage->context);
    return error ? failure(stage, "its context cannot be used", error) : UCCL_OK;
}

static void leave(void)
{
    void *context;
    cuda.cuCtxPopCurrent_v2(&context);
}

/*
 * The context of the memory, or the device's primary one. That is kept while we use it, and taken only where the
 * application has it.
 */
static int take_context(struct mem_stage *stage, const struct mem_identity *of)
{
    int handle, active = 0, error = cuda.cuDeviceGet(&handle, of->device);
    unsigned flags;
    void *primary = NULL;
    if (!error)
        error = cuda.cuDevicePrimaryCtxGetState(handle, &flags, &active);
    if (!error && active)
        error = cuda.cuDevicePrimaryCtxRetain(&primary, handle);
    if (error)
        return failure(stage, "its context cannot be found", error);
    stage->retained = primary && (!of->context || primary == of->context);
    stage->context = of->context ? of->context : primary;
    if (primary && !stage->retained)
        cuda.cuDevicePrimaryCtxRelease_v2(handle);
    if (stage->context)
        return UCCL_OK;
    LOG_ERR("CUDA device %d: its memory belongs to no context, and the device's primary one is not in use",
            of->device);
    return UCCL_ENOTSUP;
}

/* In the context. */
static int make_streams(struct mem_stage *stage)
{
    struct mem_copies *copies = &stage->copies;
    int error = 0;
    for (unsigned i = 0; !error && i < 2 * copies->streams; i++)
        error = cuda.cuStreamCreate(&copies->handles[i], CUDA_STREAM_NON_BLOCKING);
    for (unsigned i = 0; !error && i < copies->slots; i++)
        error = cuda.cuEventCreate(&copies->copies[i].event, CUDA_EVENT_DISABLE_TIMING);
    return error ? failure(stage, "cannot make streams and events", error) : UCCL_OK;
}

static void cuda_stage_close(struct mem_stage *stage)
{
    struct mem_copies *copies = &stage->copies;
    int handle;
    if (stage->context && cuda.cuCtxPushCurrent_v2(stage->context) == 0) {
        for (unsigned i = 0; i < copies->slots; i++) {
            if (copies->copies[i].event)
                cuda.cuEventDestroy_v2(copies->copies[i].event);
        }
        for (unsigned i = 0; i < 2 * copies->streams; i++) {
            if (copies->handles[i])
                cuda.cuStreamDestroy_v2(copies->handles[i]);
        }
        leave();
    }
    if (stage->retained && cuda.cuDeviceGet(&handle, stage->device) == 0)
        cuda.cuDevicePrimaryCtxRelease_v2(handle);
    mem_copies_free(copies);
    free(stage);
}

static int cuda_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max,
                           struct mem_stage **out)
{
    struct mem_stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return UCCL_ENOMEM;
    stage->device = of->device;
    /* a capture of the application's, on any thread, must not be disturbed by what this thread does */
    int mode = CUDA_CAPTURE_RELAXED;
    cuda.cuThreadExchangeStreamCaptureMode(&mode);
    int error = mem_copies_make(&stage->copies, streams, copies_max) ? UCCL_OK : UCCL_ENOMEM;
    if (!error)
        error = take_context(stage, of);
    if (!error)
        error = enter(stage);
    if (!error) {
        error = make_streams(stage);
        leave();
    }
    if (error) {
        cuda_stage_close(stage);
        return error;
    }
    *out = stage;
    return UCCL_OK;
}

static int cuda_pin(struct mem_stage *stage, void *memory, size_t length)
{
    if (enter(stage))
        return UCCL_EIO;
    int error = cuda.cuMemHostRegister_v2(memory, length, CUDA_HOST_PORTABLE);
    leave();
    if (error == 0)
        return UCCL_OK;
    LOG_ERR("CUDA device %d: cannot pin %zu bytes of host memory: %s (%d)", stage->device, length,
            error_text(error), error);
    return UCCL_ENOMEM;
}

static void cuda_unpin(struct mem_stage *stage, void *memory)
{
    if (enter(stage))
        return;
    cuda.cuMemHostUnregister(memory);
    leave();
}

static int cuda_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address,
                     void *host_address, size_t length, void *cookie)
{
    struct mem_copy *copy = mem_copies_take(&stage->copies, direction);
    if (!copy)
        return UCCL_EAGAIN;
    void *stream = stage->copies.handles[copy->stream];
    int error = enter(stage);
    if (!error) {
        int failed = direction == MEM_FROM_DEVICE
                         ? cuda.cuMemcpyDtoHAsync_v2(host_address, device_address, length, stream)
                         : cuda.cuMemcpyHtoDAsync_v2(device_address, host_address, length, stream);
        if (!failed)
            failed = cuda.cuEventRecord(copy->event, stream);
        leave();
        if (failed)
            error = failure(stage, "cannot queue a copy", failed);
    }
    if (error)
        mem_copies_put(&stage->copies, copy);
    else
        mem_copies_start(&stage->copies, copy, cookie);
    return error;
}

static int cuda_poll(struct mem_stage *stage, void **cookie)
{
    for (unsigned i = 0; i < 2 * stage->copies.streams; i++) {
        const struct mem_copy *copy = mem_copies_ask(&stage->copies, i);
        int error = copy ? cuda.cuEventQuery(copy->event) : CUDA_NOT_READY;
        if (error == CUDA_NOT_READY)
            continue;
        *cookie = mem_copies_end(&stage->copies, i);
        return error ? failure(stage, "a copy failed", error) : 1;
    }
    return 0;
}

const struct mem_ops mem_cuda_ops = {
    .name = "cuda",
    .kind = UCCL_MEM_CUDA,
    .cpu_readable = false,
    .identify = cuda_identify,
    .status = cuda_status,
    .device = cuda_device,
    .stage_open = cuda_stage_open,
    .stage_close = cuda_stage_close,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .copy = cuda_copy,
    .poll = cuda_poll,
};
