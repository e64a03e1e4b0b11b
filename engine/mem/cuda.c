/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA memory, through the driver. An application's thread only asks it about pointers, which changes nothing. Copies
 * run in the context that the memory was allocated in, or else in the device's primary context if that is active. The
 * engine never makes a context. The engine thread pushes the context for each call and pops it afterwards.
 */
#include "base/log.h"
#include "mem/copies.h"
#include "mem/cuda_api.h"
#include "mem/mem.h"
#include "mem/runtime.h"

#include <stdio.h>

enum { VERSION_MIN = 11000, NAME_TEXT = 64 };

#define CUDA_POINTER(name, ours, theirs) int(*name) ours;
static struct cuda {
    CUDA_FUNCTIONS(CUDA_POINTER)
    CUDA_OPTIONAL_FUNCTIONS(CUDA_POINTER)
} cuda;

#define CUDA_NAME(name, ours, theirs) #name,
static const char *const names[] = {CUDA_FUNCTIONS(CUDA_NAME) CUDA_OPTIONAL_FUNCTIONS(CUDA_NAME)};
static const char *const sonames[] = {"libcuda.so.1", NULL};

static struct mem_runtime runtime = {.sonames = sonames,
                                     .names = names,
                                     .functions = (void **)&cuda,
                                     .count = sizeof names / sizeof names[0],
                                     .optional = 1};
_Static_assert(sizeof cuda == sizeof names, "a function for each name");

static const char *error_text(int error)
{
    const char *text;
    return cuda.cuGetErrorString(error, &text) == 0 && text ? text : "unknown error";
}

/* ---- what there is --------------------------------------------------------------------------- */

static int cuda_identify(const void *address, struct mem_identity *out)
{
    int kind = 0, device = -1, managed = 0;
    void *context = NULL;
    uintptr_t base = 0;
    size_t length = 0;
    uint64_t id = 0;
    int attributes[] = {CUDA_ATTRIBUTE_MEMORY_TYPE, CUDA_ATTRIBUTE_DEVICE_ORDINAL, CUDA_ATTRIBUTE_CONTEXT,
                        CUDA_ATTRIBUTE_RANGE_START, CUDA_ATTRIBUTE_RANGE_SIZE,     CUDA_ATTRIBUTE_BUFFER_ID,
                        CUDA_ATTRIBUTE_IS_MANAGED};
    void *data[] = {&kind, &device, &context, &base, &length, &id, &managed};
    enum { COUNT = sizeof data / sizeof data[0] };
    /* for an unknown address the driver returns neither an error nor values */
    if (!mem_runtime_find(&runtime, false) ||
        cuda.cuPointerGetAttributes(COUNT, attributes, data, (uintptr_t)address) || kind != CUDA_MEMORY_DEVICE)
        return UCCL_ENOTSUP;
    *out = (struct mem_identity){.ops = &mem_cuda_ops,
                                 .device = device,
                                 .context = context,
                                 .base = base,
                                 .base_length = length,
                                 .buffer_id = id,
                                 .managed = managed};
    int handle;
    if (cuda.cuDeviceGet(&handle, device) || cuda.cuDeviceGetPCIBusId(out->pci, sizeof out->pci, handle))
        out->pci[0] = '\0';
    return UCCL_OK;
}

/*
 * The context of the memory is pushed, if it has one. A thread that captures a stream may not make calls that could be
 * unsafe. This call is safe, but the driver cannot know that.
 */
static int cuda_export_dmabuf(const struct mem_identity *of, uintptr_t from, size_t length, int *fd,
                              uint64_t *offset_bytes, char why[MEM_WHY_TEXT])
{
    int mode = CUDA_CAPTURE_RELAXED, handle = -1;
    void *context;
    if (!cuda.cuMemGetHandleForAddressRange) {
        snprintf(why, MEM_WHY_TEXT, "the driver exports no dma-bufs (CUDA 11.7 or later is needed)");
        return UCCL_ENOTSUP;
    }
    cuda.cuThreadExchangeStreamCaptureMode(&mode);
    int error = of->context ? cuda.cuCtxPushCurrent_v2(of->context) : 0;
    if (!error) {
        error = cuda.cuMemGetHandleForAddressRange(&handle, from, length, CUDA_RANGE_DMA_BUF, 0);
        if (of->context)
            cuda.cuCtxPopCurrent_v2(&context);
    }
    cuda.cuThreadExchangeStreamCaptureMode(&mode); /* back to what it was */
    if (error || handle < 0) {
        snprintf(why, MEM_WHY_TEXT, "the driver exports no dma-buf: %.40s (%d)", error_text(error), error);
        return UCCL_ENOTSUP;
    }
    *fd = handle;
    *offset_bytes = 0;
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
            snprintf(text, size, "the driver is too old: %s has no %s (CUDA 11.0 or later is needed)", runtime.soname,
                     runtime.missing);
        else
            snprintf(text, size, "no driver: %s is not installed", sonames[0]);
        return UCCL_ENOTSUP;
    }
    if (cuda.cuDriverGetVersion(&version) == 0 && version < VERSION_MIN) {
        snprintf(text, size, "the driver is too old: it is for CUDA %d.%d, 11.0 or later is needed", version / 1000,
                 version % 1000 / 10);
        return UCCL_ENOTSUP;
    }
    int error = cuda.cuInit(0);
    if (error == 0)
        error = cuda.cuDeviceGetCount(&count);
    if (error || count == 0) {
        snprintf(text, size, "driver for CUDA %d.%d, which does not work here: %s", version / 1000, version % 1000 / 10,
                 error_text(error ? error : CUDA_NO_DEVICE));
        return UCCL_ENOTSUP;
    }
    int used =
        snprintf(text, size, "driver for CUDA %d.%d%s, %d device%s", version / 1000, version % 1000 / 10,
                 cuda.cuMemGetHandleForAddressRange ? "" : " (exports no dma-bufs)", count, count == 1 ? "" : "s");
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

static int enter(struct mem_stage *stage)
{
    int error = cuda.cuCtxPushCurrent_v2(stage->context);
    return error ? mem_copies_failed(stage, "its context cannot be used", error) : UCCL_OK;
}

static void leave(void)
{
    void *context;
    cuda.cuCtxPopCurrent_v2(&context);
}

/*
 * Takes the context of the memory, or else the device's primary context if the application has it active. The primary
 * context is retained while we use it.
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
        return mem_copies_failed(stage, "its context cannot be found", error);
    stage->retained = primary && (!of->context || primary == of->context);
    stage->context = of->context ? of->context : primary;
    if (primary && !stage->retained)
        cuda.cuDevicePrimaryCtxRelease_v2(handle);
    if (stage->context)
        return UCCL_OK;
    LOG_ERR("CUDA device %d: its memory belongs to no context, and the device's primary one is not in use", of->device);
    return UCCL_ENOTSUP;
}

static void cuda_stage_close(struct mem_stage *stage)
{
    int handle, device = stage->device;
    bool retained = stage->retained;
    mem_copies_close(stage);
    if (retained && cuda.cuDeviceGet(&handle, device) == 0)
        cuda.cuDevicePrimaryCtxRelease_v2(handle);
}

static int cuda_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max, struct mem_stage **out)
{
    const struct mem_calls calls = {
        .name = "CUDA",
        .not_ready = CUDA_NOT_READY,
        .pin_flags = CUDA_HOST_PORTABLE,
        .stream_flags = CUDA_STREAM_NON_BLOCKING,
        .event_flags = CUDA_EVENT_DISABLE_TIMING,
        .error_text = error_text,
        .enter = enter,
        .leave = leave,
        .pin = cuda.cuMemHostRegister_v2,
        .unpin = cuda.cuMemHostUnregister,
        .from_device = cuda.cuMemcpyDtoHAsync_v2,
        .to_device = cuda.cuMemcpyHtoDAsync_v2,
        .stream_create = cuda.cuStreamCreate,
        .stream_destroy = cuda.cuStreamDestroy_v2,
        .event_create = cuda.cuEventCreate,
        .event_destroy = cuda.cuEventDestroy_v2,
        .event_record = cuda.cuEventRecord,
        .event_query = cuda.cuEventQuery,
    };
    struct mem_stage *stage = mem_copies_make(&calls, of->device, streams, copies_max);
    if (!stage)
        return UCCL_ENOMEM;
    /* calls of this thread must not disturb a capture of the application, on any thread */
    int mode = CUDA_CAPTURE_RELAXED;
    cuda.cuThreadExchangeStreamCaptureMode(&mode);
    int error = take_context(stage, of);
    if (!error)
        error = mem_copies_open(stage);
    if (error) {
        cuda_stage_close(stage);
        return error;
    }
    *out = stage;
    return UCCL_OK;
}

const struct mem_ops mem_cuda_ops = {
    .name = "cuda",
    .kind = UCCL_MEM_CUDA,
    .cpu_readable = false,
    .identify = cuda_identify,
    .status = cuda_status,
    .device = cuda_device,
    .export_dmabuf = cuda_export_dmabuf,
    .stage_open = cuda_stage_open,
    .stage_close = cuda_stage_close,
    .pin = mem_copies_pin,
    .unpin = mem_copies_unpin,
    .copy = mem_copies_copy,
    .poll = mem_copies_poll,
};
