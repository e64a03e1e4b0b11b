/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the receive buffer is shared among the flows of a core: those that were heard of lately have equal parts, and all less
 * after the kernel has dropped something.
 */
#include "core/state.h"

enum { NS_PER_MS = 1000000, RX_SHARE_MIN_BYTES = 64 * 1024 };

/* Begins a new period of the shares when it is time. */
static void turn_share_epoch(struct core *core)
{
    enum { EPOCH_NS = 50 * NS_PER_MS, DIVISOR_MAX = 64 };
    if (core->now_ns - core->share_epoch_ns < EPOCH_NS)
        return;
    uint64_t drops = atomic_load_explicit(&core->counters->rx_kernel_drops, memory_order_relaxed);
    if (drops != core->kernel_drops_seen && core->share_divisor < DIVISOR_MAX)
        core->share_divisor *= 2;
    else if (drops == core->kernel_drops_seen && core->share_divisor > 1)
        core->share_divisor /= 2;
    core->kernel_drops_seen = drops;
    core->share_epoch_ns = core->now_ns;
    core->share_epoch++;
    core->flows_heard_before = core->flows_heard;
    core->flows_heard = 0;
}

void flow_heard(struct flow *flow, uint64_t now_ns)
{
    struct core *core = flow->core;
    flow->last_rx_ns = flow->heard_ns = now_ns;
    flow->packets_heard++;
    turn_share_epoch(core);
    if (flow->heard_epoch != core->share_epoch) {
        flow->heard_epoch = core->share_epoch;
        core->flows_heard++;
    }
}

/* What this flow may have in flight to us, so that all together fit into the receive buffer. */
uint64_t flow_rx_share(const struct flow *flow)
{
    const struct core *core = flow->core;
    uint64_t heard = core->flows_heard > core->flows_heard_before ? core->flows_heard
                                                                 : core->flows_heard_before;
    uint64_t share = flow->rx_window_bytes / ((heard ? heard : 1) * core->share_divisor);
    return share > RX_SHARE_MIN_BYTES ? share : RX_SHARE_MIN_BYTES;
}
