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

static uint64_t rail_deadline(const struct rail *rail, bool expects)
{
    const struct flow *flow = rail->flow;
    uint64_t at = loss_deadline(rail);
    if (rail->loss.rack_at_ns < at)
        at = rail->loss.rack_at_ns;
    if (rail->cut) /* nothing can be asked */
        return at;
    if (rail->pace_until_ns > flow->core->now_ns && has_data(flow) && rail->pace_until_ns < at)
        at = rail->pace_until_ns;
    if (rail->probe.ask_at_ns < at)
        at = rail->probe.ask_at_ns;
    if (rail->mtu.at_ns < at)
        at = rail->mtu.at_ns;
    uint64_t reach_at = reach_deadline(rail, expects), try_at = rail->asked ? rail_next_try(rail, expects) : UINT64_MAX;
    if (reach_at < at)
        at = reach_at;
    return try_at < at ? try_at : at;
}

static void expire_probes(struct rail *rail, uint64_t now_ns)
{
    bool expects = flow_expects_peer(rail->flow);
    probe_expire(rail, now_ns);
    if (rail->mtu.at_ns <= now_ns || rail->mtu.raise_ns <= now_ns)
        mtu_expire(rail, now_ns);
    reach_expire(rail, expects, now_ns);
    rail_expire_tries(rail, expects, now_ns);
}

static void rail_expire(struct rail *rail, uint64_t now_ns)
{
    if (!rail->cut)
        expire_probes(rail, now_ns);
    loss_expire_rack(rail, now_ns);
}

static void rail_expire_loss(struct rail *rail, uint64_t now_ns)
{
    loss_expire(rail, now_ns);
    if (has_data(rail->flow) && rail->pace_until_ns <= now_ns)
        flow_wake(rail->flow);
}

static uint64_t earliest(struct flow *flow)
{
    bool expects = flow_expects_peer(flow), asks = flow_due_probe(flow);
    assert(!asks || queue_has(&flow->ready)); /* due probes have no deadline */
    uint64_t at = expects ? silence_deadline(flow, asks) : UINT64_MAX;
    if (flow->ack.pending && !flow->ack.now && flow->ack.at_ns < at)
        at = flow->ack.at_ns;
    if (flow->credit_tx.ask_at_ns < at)
        at = flow->credit_tx.ask_at_ns;
    uint64_t place_at = place_deadline(flow);
    if (place_at < at)
        at = place_at;
    uint64_t data_qps_at = data_qps_all_usable(&flow->qps) ? UINT64_MAX : data_qps_deadline(flow);
    if (data_qps_at < at)
        at = data_qps_at;
    EACH_RAIL(flow, rail)
    {
        uint64_t rail_at = rail_deadline(rail, expects);
        if (rail_at < at)
            at = rail_at;
    }
    return at;
}

void flow_update_timer(struct flow *flow)
{
    if (!flow->dead)
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
    EACH_RAIL(flow, rail)
    rail_expire(rail, now_ns);
    if (flow_expects_peer(flow)) {
        if (silence_is_death(flow, now_ns)) {
            flow_give_up(flow, true);
            return;
        }
        if (silence_next_ask(flow) <= now_ns)
            flow_ask(flow);
    }
    place_expire(flow, now_ns);
    EACH_RAIL(flow, rail)
    rail_expire_loss(rail, now_ns);
    if (!data_qps_all_usable(&flow->qps))
        data_qps_expire(flow, now_ns);
}
