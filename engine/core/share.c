/* SPDX-License-Identifier: Apache-2.0 */
#include "core/share.h"
#include "core/state.h"

enum { RX_SHARE_MIN_BYTES = 64 * 1024 };

void share_init(struct core *core, uint64_t now_ns)
{
    core->share = (struct share){.begun_ns = now_ns, .period = 1, .divisor = 1};
}

/* Begins a new period when it is time. */
static void begin_period(struct core *core)
{
    enum { PERIOD_NS = 50 * NS_PER_MS, DIVISOR_MAX = 64 };
    struct share *share = &core->share;
    if (core->now_ns - share->begun_ns < PERIOD_NS)
        return;
    uint64_t drops = atomic_load_explicit(&core->counters->rx_kernel_drops, memory_order_relaxed);
    if (drops != share->drops_seen && share->divisor < DIVISOR_MAX)
        share->divisor *= 2;
    else if (drops == share->drops_seen && share->divisor > 1)
        share->divisor /= 2;
    share->drops_seen = drops;
    share->begun_ns = core->now_ns;
    share->period++;
    share->heard_before = share->heard;
    share->heard = 0;
}

void share_note(struct flow *flow)
{
    struct core *core = flow->core;
    begin_period(core);
    if (flow->heard_period != core->share.period) {
        flow->heard_period = core->share.period;
        core->share.heard++;
    }
}

uint64_t share_of(const struct flow *flow)
{
    const struct share *share = &flow->core->share;
    uint64_t heard = share->heard > share->heard_before ? share->heard : share->heard_before;
    uint64_t bytes = flow->rx_window_bytes / ((heard ? heard : 1) * share->divisor);
    return bytes > RX_SHARE_MIN_BYTES ? bytes : RX_SHARE_MIN_BYTES;
}
