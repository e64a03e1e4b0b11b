/* SPDX-License-Identifier: Apache-2.0 */
#include "core/loss.h"
#include "core/state.h"

enum {
    RTO_BACKOFF_MAX = 16,
    TIMEOUTS_TO_WANT = 5, /* in a row: connections, which may get through where datagrams do not */
};

void loss_init(struct rail *rail)
{
    rail->loss.rack_at_ns = UINT64_MAX;
}

/* Congestion control is about to react to losses that may prove needless. */
static void remember_window(struct rail *rail, uint64_t now_ns)
{
    if (rail->loss.undo_cwnd_bytes == 0) {
        rail->loss.undo_cwnd_bytes = rail->cc.cwnd_bytes;
        rail->loss.undo_startup = rail->cc.startup;
    }
    rail->loss.undo_since_ns = now_ns;
}

void loss_settle(struct rail *rail, bool spurious)
{
    if (rail->loss.undo_cwnd_bytes == 0)
        return;
    if (spurious && rail->loss.undo_cwnd_bytes > rail->cc.cwnd_bytes)
        cc_set_window(&rail->cc, rail->loss.undo_cwnd_bytes);
    if (spurious && rail->loss.undo_startup)
        rail->cc.startup = true;
    if (spurious || rail->newest_acked_ns > rail->loss.undo_since_ns)
        rail->loss.undo_cwnd_bytes = 0;
}

/* `lost` chunks were declared lost for another reason than congestion: restores the window. */
static void forgive(struct rail *rail, unsigned lost)
{
    COUNT(rail->flow->core->counters, lost_chunks, lost);
    loss_settle(rail, true);
    rail->loss.rto_backoff = 0;
    rail->pace_until_ns = rail->flow->core->now_ns;
    flow_wake(rail->flow);
}

/*
 * Losses may show that large datagrams vanish. Then these are sent again as small ones, and congestion is not to
 * blame.
 */
static void look_for_hole(struct rail *rail, bool by_time, uint64_t now_ns)
{
    if (mtu_on_losses(rail, by_time, now_ns))
        forgive(rail, sent_lose_large(&rail->flow->sent, rail));
}

void loss_count(struct rail *rail, unsigned lost, uint64_t now_ns)
{
    if (lost == 0)
        return;
    COUNT(rail->flow->core->counters, lost_chunks, lost);
    remember_window(rail, now_ns);
    rail->cc.ops->on_loss(&rail->cc, now_ns, rail->rtt.srtt_ns);
    credit_on_loss(rail->flow);
    look_for_hole(rail, false, now_ns);
    flow_wake(rail->flow);
}

/* ---- chunks whose acks do not come ----------------------------------------------------------- */

/* Whether the rail's connections are full, and something waits. */
static bool holds_up(const struct rail *rail)
{
    const struct flow *flow = rail->flow;
    return (flow->active.head || sent_first_lost(&flow->sent)) && rail_usable(rail) && !rail_has_room(rail, true);
}

/*
 * Acks of chunks over connections may go as datagrams, which get lost, and the newest ack has no successor. So where no
 * ack makes progress for a timeout, one chunk goes again: its duplicate makes the peer say all. It goes behind the
 * others, so that this is rare where the connection is merely slow; the wait doubles. Time passes, too, where nothing
 * is in flight any more, but something waits for room on full connections.
 */
static uint64_t again_deadline(const struct rail *rail)
{
    if (!rail->reliable || rail->flow->rails->reliable || (rail->flying_chunks == 0 && !holds_up(rail)))
        return UINT64_MAX;
    uint64_t since_ns = rail->last_ack_ns, rto_ns = rail_rto_ns(rail, 0);
    if (rail->again_ns <= since_ns)
        return since_ns + rto_ns;
    uint64_t passed_ns = rail->again_ns - since_ns;
    return rail->again_ns + (passed_ns > rto_ns ? passed_ns : rto_ns);
}

static void send_again(struct rail *rail, uint64_t now_ns)
{
    struct sent *sent = &rail->flow->sent;
    if (again_deadline(rail) > now_ns)
        return;
    rail->again_ns = now_ns;
    for (unsigned i = 0; i < rail->paths.count; i++) {
        struct chunk *chunk = QUEUE_HOLDER(rail->paths.paths[i].flying.head, struct chunk, by_path);
        if (!chunk)
            continue;
        sent_lose(sent, chunk);
        rail->loss.tail_probe_due = true; /* after breaks what waits for acks may fill the window */
        COUNT(rail->flow->core->counters, tlp_fired, 1);
        break;
    }
    rail_stalls(rail);
    flow_wake(rail->flow);
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* The tail-loss probe comes before the timeout, once. */
static bool may_probe_tail(const struct rail *rail)
{
    return !rail->loss.tail_probed && rail->loss.rto_backoff == 0 && rail->rtt.srtt_ns;
}

uint64_t loss_deadline(const struct rail *rail)
{
    if (rail->reliable)
        return again_deadline(rail);
    const struct chunk *oldest = rail_oldest(rail), *newest = rail_newest(rail);
    if (!oldest)
        return UINT64_MAX;
    uint64_t from_ns = oldest->sent_ns > rail->last_ack_ns ? oldest->sent_ns : rail->last_ack_ns;
    uint64_t rto_at = from_ns + rail_rto_ns(rail, rail->loss.rto_backoff);
    uint64_t probe_at = newest->sent_ns + rail_probe_ns(rail);
    return may_probe_tail(rail) && probe_at < rto_at ? probe_at : rto_at;
}

static void probe_tail(struct rail *rail)
{
    rail->loss.tail_probed = true;
    rail->loss.tail_probe_due = true;
    COUNT(rail->flow->core->counters, tlp_fired, 1);
    struct chunk *newest = rail_newest(rail);
    struct sent *sent = &rail->flow->sent;
    if (chunk_is_ahead(newest)) /* its leader may be lost, without which it is not acked */
        newest = rail_oldest(rail);
    path_unanswered(sent_set(sent, newest), sent_path(sent, newest));
    sent_lose(sent, newest);
    look_for_hole(rail, true, rail->flow->core->now_ns);
    flow_wake(rail->flow);
}

static void time_out(struct rail *rail, uint64_t now_ns)
{
    struct sent *sent = &rail->flow->sent;
    unsigned lost = 0;
    struct chunk *chunk;
    COUNT(rail->flow->core->counters, rto_fired, 1);
    while ((chunk = rail_oldest(rail))) {
        path_report(sent_set(sent, chunk), sent_path(sent, chunk), PATH_LOST, 0);
        sent_lose(sent, chunk);
        lost++;
    }
    COUNT(rail->flow->core->counters, lost_chunks, lost);
    if (rail->loss.rto_backoff < RTO_BACKOFF_MAX)
        rail->loss.rto_backoff++;
    if (rail->loss.rto_backoff >= TIMEOUTS_TO_WANT)
        flow_want_rails(rail->flow, WANTED_IN_SILENCE);
    rail->last_ack_ns = now_ns;
    rail->loss.rack_at_ns = UINT64_MAX;
    remember_window(rail, now_ns);
    rail->cc.ops->on_rto(&rail->cc, now_ns);
    credit_on_loss(rail->flow);
    look_for_hole(rail, true, now_ns);
    rail_suspect(rail);
    flow_wake(rail->flow);
}

void loss_expire_rack(struct rail *rail, uint64_t now_ns)
{
    if (rail->loss.rack_at_ns <= now_ns)
        loss_count(rail, sent_lose_by_time(&rail->flow->sent, rail, now_ns, &rail->loss.rack_at_ns), now_ns);
}

void loss_expire(struct rail *rail, uint64_t now_ns)
{
    if (loss_deadline(rail) > now_ns)
        return;
    if (rail->reliable) {
        send_again(rail, now_ns);
        return;
    }
    silence_ask(rail->flow, now_ns);
    if (may_probe_tail(rail))
        probe_tail(rail);
    else
        time_out(rail, now_ns);
}
