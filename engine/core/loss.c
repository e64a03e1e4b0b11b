/* SPDX-License-Identifier: Apache-2.0 */
#include "core/loss.h"
#include "core/state.h"

enum { RTO_BACKOFF_MAX = 16 };

void loss_init(struct flow *flow)
{
    flow->loss.rack_at_ns = UINT64_MAX;
}

/* Congestion control is about to react to losses that may prove needless. */
static void remember_window(struct flow *flow, uint64_t now_ns)
{
    if (flow->loss.undo_cwnd_bytes == 0) {
        flow->loss.undo_cwnd_bytes = flow->cc.cwnd_bytes;
        flow->loss.undo_startup = flow->cc.startup;
    }
    flow->loss.undo_since_ns = now_ns;
}

void loss_settle(struct flow *flow, bool spurious)
{
    if (flow->loss.undo_cwnd_bytes == 0)
        return;
    if (spurious && flow->loss.undo_cwnd_bytes > flow->cc.cwnd_bytes)
        cc_set_window(&flow->cc, flow->loss.undo_cwnd_bytes);
    if (spurious && flow->loss.undo_startup)
        flow->cc.startup = true;
    if (spurious || flow->sent.newest_acked_ns > flow->loss.undo_since_ns)
        flow->loss.undo_cwnd_bytes = 0;
}

/* `lost` chunks were declared lost for another reason than congestion: restores the window. */
static void forgive(struct flow *flow, unsigned lost)
{
    COUNT(flow->core->counters, lost_chunks, lost);
    loss_settle(flow, true);
    flow->loss.rto_backoff = 0;
    flow->pace_until_ns = flow->core->now_ns;
    flow_wake(flow);
}

/*
 * Losses may show that large datagrams vanish. Then these are sent again as small ones, and congestion is not to
 * blame.
 */
static void look_for_hole(struct flow *flow, bool by_time, uint64_t now_ns)
{
    if (mtu_on_losses(flow, by_time, now_ns))
        forgive(flow, sent_lose_large(&flow->sent));
}

void loss_count(struct flow *flow, unsigned lost, uint64_t now_ns)
{
    if (lost == 0)
        return;
    COUNT(flow->core->counters, lost_chunks, lost);
    remember_window(flow, now_ns);
    flow->cc.ops->on_loss(&flow->cc, now_ns, flow->rtt.srtt_ns);
    credit_on_loss(flow);
    look_for_hole(flow, false, now_ns);
    flow_wake(flow);
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* The tail-loss probe comes before the timeout, once. */
static bool may_probe_tail(const struct flow *flow)
{
    return !flow->loss.tail_probed && flow->loss.rto_backoff == 0 && flow->rtt.srtt_ns;
}

uint64_t loss_deadline(const struct flow *flow)
{
    const struct chunk *oldest = sent_oldest(&flow->sent), *newest = sent_newest(&flow->sent);
    if (!oldest)
        return UINT64_MAX;
    uint64_t from_ns = oldest->sent_ns > flow->last_ack_ns ? oldest->sent_ns : flow->last_ack_ns;
    uint64_t rto_at = from_ns + flow_rto_ns(flow, flow->loss.rto_backoff);
    uint64_t probe_at = newest->sent_ns + flow_probe_ns(flow);
    return may_probe_tail(flow) && probe_at < rto_at ? probe_at : rto_at;
}

static void probe_tail(struct flow *flow)
{
    flow->loss.tail_probed = true;
    flow->loss.tail_probe_due = true;
    COUNT(flow->core->counters, tlp_fired, 1);
    struct chunk *newest = sent_newest(&flow->sent);
    path_unanswered(newest->placed ? &flow->qps.set : &flow->paths, newest->path);
    sent_lose(&flow->sent, newest);
    look_for_hole(flow, true, flow->core->now_ns);
    flow_wake(flow);
}

static void time_out(struct flow *flow, uint64_t now_ns)
{
    struct sent *sent = &flow->sent;
    unsigned lost = 0;
    struct chunk *chunk;
    COUNT(flow->core->counters, rto_fired, 1);
    while ((chunk = sent_oldest(sent))) {
        path_report(chunk->placed ? &flow->qps.set : &flow->paths, chunk->path, PATH_LOST, 0);
        sent_lose(sent, chunk);
        lost++;
    }
    COUNT(flow->core->counters, lost_chunks, lost);
    if (flow->loss.rto_backoff < RTO_BACKOFF_MAX)
        flow->loss.rto_backoff++;
    flow->last_ack_ns = now_ns;
    flow->loss.rack_at_ns = UINT64_MAX;
    remember_window(flow, now_ns);
    flow->cc.ops->on_rto(&flow->cc, now_ns);
    credit_on_loss(flow);
    look_for_hole(flow, true, now_ns);
    flow_wake(flow);
}

void loss_expire_rack(struct flow *flow, uint64_t now_ns)
{
    if (flow->loss.rack_at_ns <= now_ns)
        loss_count(flow, sent_lose_by_time(&flow->sent, &flow->rtt, now_ns, &flow->loss.rack_at_ns), now_ns);
}

void loss_expire(struct flow *flow, uint64_t now_ns)
{
    if (loss_deadline(flow) > now_ns)
        return;
    silence_ask(flow, now_ns);
    if (may_probe_tail(flow))
        probe_tail(flow);
    else
        time_out(flow, now_ns);
}
