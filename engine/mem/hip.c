/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HIP memory (AMD GPUs). An application's thread asks about pointers alone, which changes nothing. HIP
 * knows the current device of a thread and no way to push one: the engine thread, which is ours, sets it
 * before each call.
 */
#include "log.h"
#include "mem/copies.h"
#include "mem/hip_api.h"
#include "mem/mem.h"
#include "mem/runtime.h"

#include <stdio.h>
#include <stdlib.h>

enum { VERSION_MIN = 5 };

#define HIP_POINTER(name, ours, theirs) int(*name) ours;
static struct hip {
    HIP_FUNCTIONS(HIP_POINTER)
} hip;

#define HIP_NAME(name, ours, theirs) #name,
static const char *const names[] = {HIP_FUNCTIONS(HIP_NAME)};
static const char *const sonames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", NULL};

static struct mem_runtime runtime = {.sonames = sonames,
                                     .names = names,
                                     .functions = (void **)&hip,
                                     .count = sizeof names / sizeof names[0],
                                     .lock = PTHREAD_MUTEX_INITIALIZER};
_Static_assert(sizeof hip == sizeof names, "a function for each name");

struct mem_stage {
    struct mem_copies copies;
    int device;
    bool failed; /* that has been logged */
};

/* ---- what there is --------------------------------------------------------------------------- */

static bool attribute(int which, void *data, const void *address)
{
    return hip.hipPointerGetAttribute(data, which, (uintptr_t)address) == 0;
}

static int runtime_version(void)
{
    int version = 0;
    return hip.hipRuntimeGetVersion(&version) == 0 ? version : 0;
}

static int hip_identify(const void *address, struct mem_identity *out)
{
    unsigned kind = 0;
    int device = -1;
    if (!mem_runtime_find(&runtime, false) || !attribute(HIP_ATTRIBUTE_MEMORY_TYPE, &kind, address))
        return UCCL_ENOTSUP;
    unsigned on_device =
        runtime_version() / HIP_MAJOR_UNIT > 5 ? HIP_MEMORY_DEVICE_6 : HIP_MEMORY_DEVICE_5;
    if (kind != on_device || !attribute(HIP_ATTRIBUTE_DEVICE_ORDINAL, &device, address))
        return UCCL_ENOTSUP;
    *out = (struct mem_identity){.ops = &mem_hip_ops, .device = device};
    if (!attribute(HIP_ATTRIBUTE_RANGE_START, &out->base, address) ||
        !attribute(HIP_ATTRIBUTE_RANGE_SIZE, &out->base_length, address))
        out->base = 0;
    if (!attribute(HIP_ATTRIBUTE_BUFFER_ID, &out->buffer_id, address)) /* may write its lower half alone */
        out->buffer_id = 0;
    if (hip.hipDeviceGetPCIBusId(out->pci, sizeof out->pci, device))
        out->pci[0] = '\0';
    return UCCL_OK;
}

static int hip_status(char *text, size_t size)
{
    int count = 0;
    if (!mem_runtime_find(&runtime, true)) {
        if (runtime.missing)
            snprintf(text, size, "the runtime is too old: %s has no %s (ROCm 5.0 or later is needed)",
                     runtime.soname, runtime.missing);
        else
            snprintf(text, size, "no runtime: none of libamdhip64.so.5, .6, .7 is installed");
        return UCCL_ENOTSUP;
    }
    int version = runtime_version(), major = version / HIP_MAJOR_UNIT;
    int minor = version % HIP_MAJOR_UNIT / HIP_MINOR_UNIT;
    if (major < VERSION_MIN) {
        snprintf(text, size, "the runtime is too old: %s is HIP %d.%d, 5.0 or later is needed", runtime.soname,
                 major, minor);
        return UCCL_ENOTSUP;
    }
    int error = hip.hipInit(0);
    if (error == 0)
        error = hip.hipGetDeviceCount(&count);
    if (error || count == 0) {
        snprintf(text, size, "HIP %d.%d (%s), which does not work here: %s (error %d)", major, minor,
                 runtime.soname, error && error != HIP_NO_DEVICE ? "it does not start" : "no device",
                 error ? error : HIP_NO_DEVICE);
        return UCCL_ENOTSUP;
    }
    int used = snprintf(text, size, "HIP %d.%d (%s), %d device%s", major, minor, runtime.soname, count,
                        count == 1 ? "" : "s");
    for (int i = 0; i < count && (size_t)used < size; i++) {
        char pci[MEM_PCI_TEXT];
        if (hip.hipDeviceGetPCIBusId(pci, sizeof pci, i) == 0)
            used += snprintf(text + used, size - (size_t)used, "%s %s", i ? "," : ":", pci);
    }
    return UCCL_OK;
}

static int hip_device(int index, struct mem_device *out)
{
    char text[MEM_STATUS_TEXT];
    int count = 0;
    if (hip_status(text, sizeof text) || hip.hipGetDeviceCount(&count) || index >= count)
        return UCCL_ENODEV;
    if (hip.hipDeviceGetName(out->model, sizeof out->model, index))
        out->model[0] = '\0';
    if (hip.hipDeviceGetPCIBusId(out->pci, sizeof out->pci, index))
        out->pci[0] = '\0';
    return UCCL_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Logs the first failure of a device. */
static int failure(struct mem_stage *stage, const char *what, int error)
{
    if (!stage->failed)
        LOG_ERR("HIP device %d: %s: error %d", stage->device, what, error);
    stage->failed = true;
    return UCCL_EIO;
}

static int enter(struct mem_stage *stage)
{
    int error = hip.hipSetDevice(stage->device);
    return error ? failure(stage, "it cannot be used", error) : UCCL_OK;
}

static int make_streams(struct mem_stage *stage)
{
    struct mem_copies *copies = &stage->copies;
    int error = 0;
    for (unsigned i = 0; !error && i < 2 * copies->streams; i++)
        error = hip.hipStreamCreateWithFlags(&copies->handles[i], HIP_STREAM_NON_BLOCKING);
    for (unsigned i = 0; !error && i < copies->slots; i++)
        error = hip.hipEventCreateWithFlags(&copies->copies[i].event, HIP_EVENT_DISABLE_TIMING);
    return error ? failure(stage, "cannot make streams and events", error) : UCCL_OK;
}

static void hip_stage_close(struct mem_stage *stage)
{
    struct mem_copies *copies = &stage->copies;
    hip.hipSetDevice(stage->device);
    for (unsigned i = 0; i < copies->slots; i++) {
        if (copies->copies[i].event)
            hip.hipEventDestroy(copies->copies[i].event);
    }
    for (unsigned i = 0; i < 2 * copies->streams; i++) {
        if (copies->handles[i])
            hip.hipStreamDestroy(copies->handles[i]);
    }
    mem_copies_free(copies);
    free(stage);
}

static int hip_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max,
                          struct mem_stage **out)
{
    struct mem_stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return UCCL_ENOMEM;
    stage->device = of->device;
    int error = mem_copies_make(&stage->copies, streams, copies_max) ? UCCL_OK : UCCL_ENOMEM;
    if (!error)
        error = enter(stage);
    if (!error)
        error = make_streams(stage);
    if (error) {
        hip_stage_close(stage);
        return error;
    }
    *out = stage;
    return UCCL_OK;
}

static int hip_pin(struct mem_stage *stage, void *memory, size_t length)
{
    if (enter(stage))
        return UCCL_EIO;
    int error = hip.hipHostRegister(memory, length, HIP_HOST_PORTABLE);
    if (error == 0)
        return UCCL_OK;
    LOG_ERR("HIP device %d: cannot pin %zu bytes of host memory: error %d", stage->device, length, error);
    return UCCL_ENOMEM;
}

static void hip_unpin(struct mem_stage *stage, void *memory)
{
    if (enter(stage) == UCCL_OK)
        hip.hipHostUnregister(memory);
}

static int hip_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address,
                    void *host_address, size_t length, void *cookie)
{
    struct mem_copy *copy = mem_copies_take(&stage->copies, direction);
    if (!copy)
        return UCCL_EAGAIN;
    void *stream = stage->copies.handles[copy->stream];
    int error = enter(stage);
    if (!error) {
        int failed = direction == MEM_FROM_DEVICE
                         ? hip.hipMemcpyDtoHAsync(host_address, device_address, length, stream)
                         : hip.hipMemcpyHtoDAsync(device_address, host_address, length, stream);
        if (!failed)
            failed = hip.hipEventRecord(copy->event, stream);
        if (failed)
            error = failure(stage, "cannot queue a copy", failed);
    }
    if (error)
        mem_copies_put(&stage->copies, copy);
    else
        mem_copies_start(&stage->copies, copy, cookie);
    return error;
}

static int hip_poll(struct mem_stage *stage, void **cookie)
{
    for (unsigned i = 0; i < 2 * stage->copies.streams; i++) {
        const struct mem_copy *copy = mem_copies_ask(&stage->copies, i);
        int error = copy ? hip.hipEventQuery(copy->event) : HIP_NOT_READY;
        if (error == HIP_NOT_READY)
            continue;
        *cookie = mem_copies_end(&stage->copies, i);
        return error ? failure(stage, "a copy failed", error) : 1;
    }
    return 0;
}

const struct mem_ops mem_hip_ops = {
    .name = "hip",
    .kind = UCCL_MEM_HIP,
    .cpu_readable = false,
    .identify = hip_identify,
    .status = hip_status,
    .device = hip_device,
    .stage_open = hip_stage_open,
    .stage_close = hip_stage_close,
    .pin = hip_pin,
    .unpin = hip_unpin,
    .copy = hip_copy,
    .poll = hip_poll,
};
