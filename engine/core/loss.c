/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Losses of a flow's chunks: what congestion control hears of them, whether they prove needless, and the timers that find them,
 * tail-loss probe and retransmission timeout (RFC 8985 7, RFC 6298 5). Which chunks are lost by the order on a path or by time is
 * in sent.h.
 */
#include "core/state.h"

/* Congestion control is about to react to losses that may prove to be none. */
void flow_remember_window(struct flow *flow, uint64_t now_ns)
{
    if (flow->undo_cwnd_bytes == 0) {
        flow->undo_cwnd_bytes = flow->cc.cwnd_bytes;
        flow->undo_startup = flow->cc.startup;
    }
    flow->undo_since_ns = now_ns;
}

/* A loss has proved needless, or the losses have proved real: chunks sent since are acked. */
void flow_settle_window(struct flow *flow, bool spurious)
{
    if (flow->undo_cwnd_bytes == 0)
        return;
    if (spurious && flow->undo_cwnd_bytes > flow->cc.cwnd_bytes)
        cc_set_window(&flow->cc, flow->undo_cwnd_bytes);
    if (spurious && flow->undo_startup)
        flow->cc.startup = true;
    if (spurious || flow->sent.newest_acked_ns > flow->undo_since_ns)
        flow->undo_cwnd_bytes = 0;
}

void flow_forgive_losses(struct flow *flow, unsigned lost)
{
    COUNT(flow->core->counters, lost_chunks, lost);
    flow_settle_window(flow, true);
    flow->rto_backoff = 0;
    flow->pace_until_ns = flow->core->now_ns;
    flow_wake(flow);
}

void flow_count_losses(struct flow *flow, unsigned lost, uint64_t now_ns)
{
    if (lost == 0)
        return;
    COUNT(flow->core->counters, lost_chunks, lost);
    flow_remember_window(flow, now_ns);
    flow->cc.ops->on_loss(&flow->cc, now_ns, flow->rtt.srtt_ns);
    credit_on_loss(flow);
    mtu_on_losses(flow, false, now_ns);
    flow_wake(flow);
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* When the loss timers next act: the tail-loss probe first, once, then the RTO. */
uint64_t flow_loss_deadline(const struct flow *flow)
{
    const struct chunk *oldest = sent_oldest(&flow->sent), *newest = sent_newest(&flow->sent);
    if (!oldest)
        return UINT64_MAX;
    uint64_t from_ns = oldest->sent_ns > flow->last_ack_ns ? oldest->sent_ns : flow->last_ack_ns;
    uint64_t rto_at = from_ns + flow_backed_off_rto_ns(flow, flow->rto_backoff);
    uint64_t probe_at = newest->sent_ns + flow_probe_ns(flow);
    if (!flow->probed && flow->rto_backoff == 0 && flow->rtt.srtt_ns && probe_at < rto_at)
        return probe_at;
    return rto_at;
}

void flow_probe_tail(struct flow *flow)
{
    flow->probed = true;
    flow->probe_due = true;
    COUNT(flow->core->counters, tlp_fired, 1);
    struct chunk *newest = sent_newest(&flow->sent);
    path_unanswered(newest->placed ? &flow->qps.set : &flow->paths, newest->path);
    sent_lose(&flow->sent, newest);
    mtu_on_losses(flow, true, flow->core->now_ns);
    flow_wake(flow);
}

void flow_retransmission_timeout(struct flow *flow, uint64_t now_ns)
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
    if (flow->rto_backoff < 16)
        flow->rto_backoff++;
    flow->last_ack_ns = now_ns;
    flow->rack_at_ns = UINT64_MAX;
    flow_remember_window(flow, now_ns);
    flow->cc.ops->on_rto(&flow->cc, now_ns);
    credit_on_loss(flow);
    mtu_on_losses(flow, true, now_ns);
    flow_wake(flow);
}
