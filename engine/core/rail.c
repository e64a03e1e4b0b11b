/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip bounds of a rail, its congestion control, and how it compares to others. Nothing here calls back. */
#include "core/rail.h"
#include "core/state.h"

enum {
    PROBE_SHARE = 100, /* the tail is probed no sooner than after a hundredth of the timeout's floor */
    OLD_CHUNKS = 128,  /* an estimate is old after so many chunks by other rails, */
    OLD_TRIPS = 32,    /* and so many of the round trips that it says */
};

uint64_t rail_rto_ns(const struct rail *rail, unsigned backoff)
{
    const struct params *params = rail->flow->core->params;
    uint64_t min_ns = params->rto_min_us * NS_PER_US, max_ns = params->rto_max_us * NS_PER_US;
    if (rail->rtt.srtt_ns == 0) /* the floor is no estimate: without a sample, wait twice as long */
        min_ns = 2 * min_ns < max_ns ? 2 * min_ns : max_ns;
    return rtt_rto(&rail->rtt, backoff, min_ns, max_ns);
}

uint64_t rail_probe_ns(const struct rail *rail)
{
    uint64_t ns = 2 * rail->rtt.srtt_ns + rail->rtt.peer_ack_delay_ns;
    uint64_t least_ns = rail->flow->core->params->rto_min_us * NS_PER_US / PROBE_SHARE;
    return ns < least_ns ? least_ns : ns;
}

void rail_init_cc(struct rail *rail)
{
    const struct params *params = rail->flow->core->params;
    cc_init(&rail->cc, params, (uint32_t)params->chunk_size_kb * 1024);
    if (rail->reliable) {
        rail->cc.ops = &cc_none;
        cc_none.init(&rail->cc);
    }
}

/*
 * The round trip that a try of the rail is likely to cost. One that was measured in a stall says nothing of the time
 * behind it: only where a try has shown that it is still so long, it is believed.
 */
static uint64_t trip_ns(const struct rail *rail)
{
    const struct rtt *rtt = &rail->rtt;
    return rail->bulk_tries || rtt->srtt_ns < rtt->min_ns ? rtt->srtt_ns : rtt->min_ns;
}

/*
 * Whether what is known of the rail was learned long ago: before it was mended, or its queues drained. At most one
 * chunk in OLD_CHUNKS goes there to learn it anew, and no message waits for that more than a share of the time. What
 * the main rail carries besides says nothing of what it would do with a large message.
 */
static bool is_estimate_old(const struct rail *rail)
{
    const struct flow *flow = rail->flow;
    return rail->flying_payload < rail->cc.chunk_bytes / 2 && flow->sent.next_seq - rail->bulk_seq >= OLD_CHUNKS &&
           flow->core->now_ns - rail->bulk_ns >= OLD_TRIPS * trip_ns(rail);
}

void rail_give_bulk(struct rail *rail, uint64_t now_ns)
{
    rail->bulk_tries = rail->flow->rail_count > 1 && is_estimate_old(rail);
    if (rail->bulk_tries) {
        rail->window_limited = true; /* by what was known, which has kept all others away */
        rail->rtt.renews = true;
    }
    rail->bulk_seq = rail->flow->sent.next_seq;
    rail->bulk_ns = now_ns;
}

uint64_t rail_cost(const struct rail *rail)
{
    if (is_estimate_old(rail))
        return 0;
    uint64_t srtt_ns = rail->rtt.srtt_ns ? rail->rtt.srtt_ns : 1, most_ns = UINT64_C(1) << 24;
    if (srtt_ns > most_ns)
        srtt_ns = most_ns;
    return (rail->flying_payload + rail->cc.chunk_bytes) * srtt_ns / (rail->reliable ? 1 : rail->cc.cwnd_bytes);
}
