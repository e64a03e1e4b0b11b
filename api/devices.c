/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of an engine. Any thread. */
#include "objects.h"

#include <string.h>

UCCL_API int uccl_device_count(const uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    return engine->nic->ops->device_count(engine->nic);
}

UCCL_API int uccl_device_get(const uccl_engine *engine, int device, struct uccl_device *out)
{
    union nic_address address;
    if (!engine || !out)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    int error = engine->nic->ops->device(engine->nic, device, out, &address);
    if (!error)
        out->engines = engine->thread_count;
    return error;
}

/* Adds up what the queues of all engine threads have counted for NIC `end`. */
static void add_up(const struct uccl_engine *engine, unsigned end, struct uccl_device_stats *out)
{
    for (unsigned i = 0; i < engine->thread_count; i++) {
        const struct nic_end_counters *of = &engine->threads[i].queue->ends[end];
        out->tx_datagrams += atomic_load_explicit(&of->tx_datagrams, memory_order_relaxed);
        out->tx_bytes += atomic_load_explicit(&of->tx_bytes, memory_order_relaxed);
        out->rx_datagrams += atomic_load_explicit(&of->rx_datagrams, memory_order_relaxed);
        out->rx_bytes += atomic_load_explicit(&of->rx_bytes, memory_order_relaxed);
        out->losses += atomic_load_explicit(&of->losses, memory_order_relaxed);
        out->returns += atomic_load_explicit(&of->returns, memory_order_relaxed);
    }
}

UCCL_API int uccl_device_stats(const uccl_engine *engine, int device, struct uccl_device_stats *stats)
{
    if (!engine || !stats || stats->size < offsetof(struct uccl_device_stats, up) || stats->size > sizeof *stats)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    if (device < 0 || device >= engine->nic->ops->device_count(engine->nic))
        return UCCL_ENODEV;
    struct nic_end ends[NIC_ENDS_MAX];
    struct uccl_device_stats out = {.size = stats->size, .up = 1};
    unsigned count = nic_ends(engine->nic, ends);
    for (unsigned i = 0; i < count; i++) {
        if (engine->nic->ends->device(engine->nic, i) != device)
            continue;
        out.in_use = 1;
        out.up = engine->nic->ends->up(engine->nic, i);
        add_up(engine, i, &out);
    }
    memcpy(stats, &out, stats->size);
    return UCCL_OK;
}
