/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/log.h"
#include "objects.h"

#include <stdio.h>
#include <string.h>

enum { OPTIONS_BYTES_MAX = 4096 }; /* no version has as many; who has not set `size` may say anything */

/*
 * Copies the fields that the caller's version of the struct has. A later version may have more: those must be 0, since
 * a wish must not go unnoticed.
 */
static bool copy_known(const struct uccl_conn_options *options, struct uccl_conn_options *out)
{
    const uint8_t *bytes = (const uint8_t *)options;
    memset(out, 0, sizeof *out);
    if (options->size < offsetof(struct uccl_conn_options, thread) + sizeof options->thread ||
        options->size > OPTIONS_BYTES_MAX)
        return false;
    for (size_t i = sizeof *out; i < options->size; i++) {
        if (bytes[i])
            return false;
    }
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    return true;
}

/* The NIC in use that is device `device`; -1: none, or the engine uses one NIC. */
static int end_of_device(const struct uccl_engine *engine, int device)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = nic_ends(engine->nic, ends);
    for (unsigned i = 0; i < count; i++) {
        if (engine->nic->ends->device(engine->nic, i) == device)
            return (int)i;
    }
    return -1;
}

/* The device of that name; -1: none. */
static int device_named(const struct uccl_engine *engine, const char *name, struct uccl_device *out)
{
    union nic_address address;
    for (int i = 0; engine->nic->ops->device(engine->nic, i, out, &address) == UCCL_OK; i++) {
        if (strcmp(out->name, name) == 0)
            return i;
    }
    return -1;
}

static const char *read_device(const struct uccl_engine *engine, const char *name, struct conn_wishes *out)
{
    struct uccl_device device;
    int index = device_named(engine, name, &device);
    if (index < 0)
        return "device is none of the engine's";
    out->end = end_of_device(engine, index);
    return out->end < 0 && engine->nic->ends ? "device is not in use (UCCL_MAX_NICS)" : NULL;
}

/* Of NUMA node `node`: the first NIC in use there. */
static int end_of_node(const struct uccl_engine *engine, int node)
{
    struct uccl_device device;
    union nic_address address;
    for (int i = 0; engine->nic->ops->device(engine->nic, i, &device, &address) == UCCL_OK; i++) {
        if (device.numa_node == node && end_of_device(engine, i) >= 0)
            return end_of_device(engine, i);
    }
    return -1;
}

static const char *read_near(struct uccl_engine *engine, const char *near, struct conn_wishes *out)
{
    struct uccl_gpu gpu;
    struct uccl_device device;
    int node, end = 0;
    if (sscanf(near, "node:%d%n", &node, &end) == 1 && !near[end]) {
        out->end = end_of_node(engine, node);
        return NULL;
    }
    for (int i = 0; uccl_gpu_get(engine, i, &gpu) == UCCL_OK; i++) {
        if (strcmp(gpu.name, near) != 0)
            continue;
        out->end = end_of_device(engine, gpu.used_device);
        if (uccl_device_get(engine, gpu.used_device, &device) == UCCL_OK)
            LOG_INFORM("%s -> %s (%s)", near, device.name,
                       uccl_distance_name(uccl_gpu_distance(engine, i, gpu.used_device)));
        return NULL;
    }
    return "near is neither a GPU here nor a NUMA node";
}

/* NULL, or what is wrong. */
static const char *read_places(struct uccl_engine *engine, const struct uccl_conn_options *from,
                               struct conn_wishes *out)
{
    const char *fault = from->near ? read_near(engine, from->near, out) : NULL;
    if (!fault && from->device)
        fault = read_device(engine, from->device, out);
    return fault;
}

static const char *read_fields(const struct uccl_conn_options *from, unsigned threads, struct conn_wishes *out)
{
    if (from->thread > threads)
        return "thread is none of the engine's threads";
    if (from->parts != UCCL_PARTS_DEFAULT && from->parts != UCCL_PARTS_ON && from->parts != UCCL_PARTS_OFF)
        return "parts is none of enum uccl_parts";
    if (from->private_bytes > UCCL_PRIVATE_MAX)
        return "private_bytes is more than UCCL_PRIVATE_MAX";
    if (from->private_bytes && !from->private_data)
        return "private_bytes without private_data";
    if (from->traffic_class > UINT8_MAX)
        return "traffic_class is above 255";
    out->thread = from->thread;
    out->traffic_class = (uint8_t)from->traffic_class;
    out->parts = (struct stripe_wish){.off = from->parts == UCCL_PARTS_OFF, .from_bytes = from->parts_from_bytes};
    out->private_bytes = (uint16_t)from->private_bytes;
    if (from->private_bytes)
        memcpy(out->private_data, from->private_data, from->private_bytes);
    return NULL;
}

int options_read(struct uccl_engine *engine, const struct uccl_conn_options *options, struct conn_wishes *out)
{
    struct uccl_conn_options known;
    memset(out, 0, sizeof *out);
    out->end = -1;
    if (!options)
        return UCCL_OK;
    if (!copy_known(options, &known)) {
        LOG_ERR("struct uccl_conn_options: size %zu is that of no version that this library knows, or fields that it "
                "does not know are set",
                options->size);
        return UCCL_EINVAL;
    }
    const char *fault = read_fields(&known, engine->thread_count, out);
    if (!fault)
        fault = read_places(engine, &known, out);
    if (!fault)
        return UCCL_OK;
    LOG_ERR(
        "struct uccl_conn_options: %s (thread %u of %u, parts %d, private_bytes %zu, traffic_class %u, device %s, near "
        "%s)",
        fault, known.thread, engine->thread_count, (int)known.parts, known.private_bytes, known.traffic_class,
        known.device ? known.device : "any", known.near ? known.near : "unknown");
    return UCCL_EINVAL;
}

int options_home(const struct uccl_engine *engine, const struct conn_wishes *wishes, unsigned flows, unsigned turn)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = nic_ends(engine->nic, ends);
    if (wishes->thread)
        return (int)((wishes->thread - 1) % flows);
    if (wishes->end < 0 || count == 0)
        return -1;
    unsigned end = (unsigned)wishes->end, threads = flows > end ? (flows - end - 1) / count + 1 : 0;
    return (int)(threads ? end + turn % threads * count : end % flows); /* thread t has NIC t % count first */
}

void options_offer(const struct conn_wishes *wishes, struct boot_offer *offer)
{
    offer->private_bytes = wishes->private_bytes;
    memcpy(offer->private_data, wishes->private_data, wishes->private_bytes);
}
