/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ack.h"
#include "core/state.h"

void ack_owe(struct flow *flow, uint64_t delay_ns, bool now)
{
    uint64_t at_ns = flow->core->now_ns + delay_ns;
    if (!flow->ack.pending || at_ns < flow->ack.at_ns)
        flow->ack.at_ns = at_ns;
    flow->ack.pending = true;
    if (now && !flow->ack.now) {
        flow->ack.now = true;
        flow_wake(flow);
    }
}

void ack_owe_delayed(struct flow *flow, bool now)
{
    ack_owe(flow, flow->core->params->ack_delay_us * NS_PER_US, now);
}

void ack_fill(struct flow *flow, struct wire_ack *ack, uint64_t now_ns)
{
    sack_fill(&flow->sack, ack, now_ns);
    ack->number = flow->ack.number++;
    ack->window_kb = (uint32_t)(share_of(flow) / 1024);
    ack->next = (uint32_t)flow->sent.next_seq;
    flow->ack.pending = false;
    flow->ack.now = false;
    flow->ack.chunks = 0;
    COUNT(flow->core->counters, tx_acks, 1);
    /* Paths that found no room do not wait for the next packet, which may come minutes later: the peer would take
     * the wait for our usual ack delay, and lengthen its timers. */
    if (sack_has_pending(&flow->sack))
        ack_owe_delayed(flow, false);
}

void ack_undo(struct flow *flow, bool repeats)
{
    sack_undo(&flow->sack);
    flow->ack.pending = flow->ack.now = true;
    flow->ack.repeats |= repeats;
    flow->ack.path = flow->ack.path_before;
}
