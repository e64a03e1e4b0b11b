/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a flow does as time passes. One timer per flow, armed at or before the earliest deadline and re-armed lazily.
 */
#include "core/state.h"

#include <assert.h>

/* Whether messages or retransmissions wait, which pacing may hold back. */
static bool has_data(const struct flow *flow)
{
    return flow->active.head || sent_first_lost(&flow->sent);
}

static uint64_t earliest(const struct flow *flow)
{
    uint64_t at = loss_deadline(flow), data_qps_at = data_qps_deadline(flow);
    if (data_qps_at < at)
        at = data_qps_at;
    if (flow->loss.rack_at_ns < at)
        at = flow->loss.rack_at_ns;
    if (flow->ack.pending && !flow->ack.now && flow->ack.at_ns < at)
        at = flow->ack.at_ns;
    if (flow->pace_until_ns > flow->core->now_ns && has_data(flow) && flow->pace_until_ns < at)
        at = flow->pace_until_ns;
    if (flow->credit_tx.ask_at_ns < at)
        at = flow->credit_tx.ask_at_ns;
    if (flow->probe.ask_at_ns < at)
        at = flow->probe.ask_at_ns;
    if (flow->mtu.at_ns < at)
        at = flow->mtu.at_ns;
    uint64_t reach_at = reach_deadline(flow, flow_expects_peer(flow));
    if (reach_at < at)
        at = reach_at;
    if (flow_expects_peer(flow)) {
        uint64_t silence_at = silence_deadline(flow, flow->probe.due);
        if (silence_at < at)
            at = silence_at;
    }
    return at;
}

void flow_update_timer(struct flow *flow)
{
    if (flow->dead)
        return;
    assert(!flow->probe.due || queue_has(&flow->ready)); /* due probes have no deadline */
    flow_arm(flow, earliest(flow));
}

void flow_expire(struct flow *flow, uint64_t now_ns)
{
    if (flow->dead)
        return;
    silence_overrun(flow, flow->timer.deadline_ns, now_ns);
    if (flow->ack.pending && flow->ack.at_ns <= now_ns)
        ack_owe_delayed(flow, true);
    if (flow->credit_tx.ask_at_ns <= now_ns)
        credit_ask_again(flow, now_ns);
    probe_expire(flow, now_ns);
    if (flow->mtu.at_ns <= now_ns || flow->mtu.raise_ns <= now_ns)
        mtu_expire(flow, now_ns);
    reach_expire(flow, flow_expects_peer(flow), now_ns);
    loss_expire_rack(flow, now_ns);
    if (flow_expects_peer(flow)) {
        if (silence_is_death(flow, now_ns)) {
            flow_give_up(flow, true);
            return;
        }
        if (silence_next_ask(flow) <= now_ns) {
            flow->probe.due |= PROBE_ASK;
            flow_wake(flow);
        }
    }
    loss_expire(flow, now_ns);
    if (has_data(flow) && flow->pace_until_ns <= now_ns)
        flow_wake(flow);
    data_qps_expire(flow, now_ns);
}
