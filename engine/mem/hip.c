/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HIP memory (AMD GPUs). An application's thread only asks about pointers, which changes nothing. HIP has a current
 * device per thread and cannot push one, so the engine thread sets it before each call.
 *
 * HIP keeps a thread's last error until the thread asks for it, since ROCm 7 also past calls that succeed. Applications
 * ask after they launch a kernel, and would take an error of a question of ours for one of theirs. So whatever an
 * application's thread calls here forgets its own errors.
 */
#include "base/log.h"
#include "mem/copies.h"
#include "mem/hip_api.h"
#include "mem/mem.h"
#include "mem/runtime.h"

#include <stdio.h>

enum { VERSION_MIN = 5 };

#define HIP_POINTER(name, ours, theirs) int(*name) ours;
static struct hip {
    HIP_FUNCTIONS(HIP_POINTER)
} hip;

#define HIP_NAME(name, ours, theirs) #name,
static const char *const names[] = {HIP_FUNCTIONS(HIP_NAME)};
static const char *const sonames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", NULL};

static struct mem_runtime runtime = {
    .sonames = sonames, .names = names, .functions = (void **)&hip, .count = sizeof names / sizeof names[0]};
_Static_assert(sizeof hip == sizeof names, "a function for each name");

static struct hsa {
    HSA_OPTIONAL_FUNCTIONS(HIP_POINTER)
} hsa;

static const char *const hsa_names[] = {HSA_OPTIONAL_FUNCTIONS(HIP_NAME)};
static const char *const hsa_sonames[] = {"libhsa-runtime64.so.1", NULL};

static struct mem_runtime hsa_runtime = {
    .sonames = hsa_sonames, .names = hsa_names, .functions = (void **)&hsa, .count = 1, .optional = 1};
_Static_assert(sizeof hsa == sizeof hsa_names, "a function for each name");

/* ---- what there is --------------------------------------------------------------------------- */

/* `before`: the thread's last error before our calls. One of the application's own stays. */
static void forget_errors(int before)
{
    if (before == 0)
        hip.hipGetLastError();
}

static bool attribute(int which, void *data, const void *address)
{
    return hip.hipPointerGetAttribute(data, which, (uintptr_t)address) == 0;
}

static int runtime_version(void)
{
    int version = 0;
    return hip.hipRuntimeGetVersion(&version) == 0 ? version : 0;
}

static int identify(const void *address, struct mem_identity *out)
{
    unsigned kind = 0;
    int device = -1, managed = 0;
    if (!attribute(HIP_ATTRIBUTE_MEMORY_TYPE, &kind, address))
        return UCCL_ENOTSUP;
    unsigned on_device = runtime_version() / HIP_MAJOR_UNIT > 5 ? HIP_MEMORY_DEVICE_6 : HIP_MEMORY_DEVICE_5;
    if (kind != on_device || !attribute(HIP_ATTRIBUTE_DEVICE_ORDINAL, &device, address))
        return UCCL_ENOTSUP;
    *out = (struct mem_identity){.ops = &mem_hip_ops, .device = device};
    if (!attribute(HIP_ATTRIBUTE_RANGE_START, &out->base, address) ||
        !attribute(HIP_ATTRIBUTE_RANGE_SIZE, &out->base_length, address))
        out->base = 0;
    if (!attribute(HIP_ATTRIBUTE_BUFFER_ID, &out->buffer_id, address)) /* may write only its lower half */
        out->buffer_id = 0;
    out->managed = attribute(HIP_ATTRIBUTE_IS_MANAGED, &managed, address) && managed;
    if (hip.hipDeviceGetPCIBusId(out->pci, sizeof out->pci, device))
        out->pci[0] = '\0';
    return UCCL_OK;
}

static int hip_identify(const void *address, struct mem_identity *out)
{
    if (!mem_runtime_find(&runtime, false))
        return UCCL_ENOTSUP;
    int before = hip.hipPeekAtLastError(), error = identify(address, out);
    forget_errors(before);
    return error;
}

/* HIP uses the HSA library, so a process with memory of HIP has it. */
static int hip_export_dmabuf(const struct mem_identity *of, uintptr_t from, size_t length, int *fd,
                             uint64_t *offset_bytes, char why[MEM_WHY_TEXT])
{
    (void)of;
    if (!mem_runtime_find(&hsa_runtime, false) || !hsa.hsa_amd_portable_export_dmabuf) {
        snprintf(why, MEM_WHY_TEXT, "%s exports no dma-bufs (ROCm 5.6 or later is needed)", hsa_sonames[0]);
        return UCCL_ENOTSUP;
    }
    int status = hsa.hsa_amd_portable_export_dmabuf((const void *)from, length, fd, offset_bytes);
    if (status) {
        snprintf(why, MEM_WHY_TEXT, "the runtime exports no dma-buf: status 0x%x", (unsigned)status);
        return UCCL_ENOTSUP;
    }
    return UCCL_OK;
}

static int describe(char *text, size_t size)
{
    int count = 0;
    int version = runtime_version(), major = version / HIP_MAJOR_UNIT;
    int minor = version % HIP_MAJOR_UNIT / HIP_MINOR_UNIT;
    if (major < VERSION_MIN) {
        snprintf(text, size, "the runtime is too old: %s is HIP %d.%d, 5.0 or later is needed", runtime.soname, major,
                 minor);
        return UCCL_ENOTSUP;
    }
    int error = hip.hipInit(0);
    if (error == 0)
        error = hip.hipGetDeviceCount(&count);
    if (error || count == 0) {
        snprintf(text, size, "HIP %d.%d (%s), which does not work here: %s (error %d)", major, minor, runtime.soname,
                 error && error != HIP_NO_DEVICE ? "it does not start" : "no device", error ? error : HIP_NO_DEVICE);
        return UCCL_ENOTSUP;
    }
    int used =
        snprintf(text, size, "HIP %d.%d (%s), %d device%s", major, minor, runtime.soname, count, count == 1 ? "" : "s");
    for (int i = 0; i < count && (size_t)used < size; i++) {
        char pci[MEM_PCI_TEXT];
        if (hip.hipDeviceGetPCIBusId(pci, sizeof pci, i) == 0)
            used += snprintf(text + used, size - (size_t)used, "%s %s", i ? "," : ":", pci);
    }
    return UCCL_OK;
}

static int hip_status(char *text, size_t size)
{
    if (!mem_runtime_find(&runtime, true)) {
        if (runtime.missing)
            snprintf(text, size, "the runtime is too old: %s has no %s (ROCm 5.0 or later is needed)", runtime.soname,
                     runtime.missing);
        else
            snprintf(text, size, "no runtime: none of libamdhip64.so.5, .6, .7 is installed");
        return UCCL_ENOTSUP;
    }
    int before = hip.hipPeekAtLastError(), error = describe(text, size);
    forget_errors(before);
    return error;
}

static int hip_device(int index, struct mem_device *out)
{
    char text[MEM_STATUS_TEXT];
    int count = 0;
    if (hip_status(text, sizeof text))
        return UCCL_ENODEV;
    int before = hip.hipPeekAtLastError();
    if (hip.hipGetDeviceCount(&count) || index >= count) {
        forget_errors(before);
        return UCCL_ENODEV;
    }
    if (hip.hipDeviceGetName(out->model, sizeof out->model, index))
        out->model[0] = '\0';
    if (hip.hipDeviceGetPCIBusId(out->pci, sizeof out->pci, index))
        out->pci[0] = '\0';
    forget_errors(before);
    return UCCL_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static const char *error_text(int error)
{
    (void)error; /* its text would need one more function */
    return "error";
}

static int enter(struct mem_stage *stage)
{
    int error = hip.hipSetDevice(stage->device);
    return error ? mem_copies_failed(stage, "it cannot be used", error) : UCCL_OK;
}

static void leave(void)
{
}

static int hip_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max, struct mem_stage **out)
{
    const struct mem_calls calls = {
        .name = "HIP",
        .not_ready = HIP_NOT_READY,
        .pin_flags = HIP_HOST_PORTABLE,
        .stream_flags = HIP_STREAM_NON_BLOCKING,
        .event_flags = HIP_EVENT_DISABLE_TIMING,
        .error_text = error_text,
        .enter = enter,
        .leave = leave,
        .pin = hip.hipHostRegister,
        .unpin = hip.hipHostUnregister,
        .from_device = hip.hipMemcpyDtoHAsync,
        .to_device = hip.hipMemcpyHtoDAsync,
        .stream_create = hip.hipStreamCreateWithFlags,
        .stream_destroy = hip.hipStreamDestroy,
        .event_create = hip.hipEventCreateWithFlags,
        .event_destroy = hip.hipEventDestroy,
        .event_record = hip.hipEventRecord,
        .event_query = hip.hipEventQuery,
    };
    struct mem_stage *stage = mem_copies_make(&calls, of->device, streams, copies_max);
    int error = stage ? mem_copies_open(stage) : UCCL_ENOMEM;
    if (error && stage)
        mem_copies_close(stage);
    if (!error)
        *out = stage;
    return error;
}

const struct mem_ops mem_hip_ops = {
    .name = "hip",
    .kind = UCCL_MEM_HIP,
    .cpu_readable = false,
    .identify = hip_identify,
    .status = hip_status,
    .device = hip_device,
    .export_dmabuf = hip_export_dmabuf,
    .stage_open = hip_stage_open,
    .stage_close = mem_copies_close,
    .pin = mem_copies_pin,
    .unpin = mem_copies_unpin,
    .copy = mem_copies_copy,
    .poll = mem_copies_poll,
};
