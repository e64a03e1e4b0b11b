/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message numbers live in two windows of `window` slots, [delivered, delivered + window) for sends and [recv_base,
 * recv_base + window) for receives; further messages wait in a backlog. The receiver moves both windows: a number
 * passes when its receive is done AND, after an abort, the sender has agreed. So no CREDIT that makes a send look
 * delivered can overtake its ABORT.
 *
 * Each eager message has a slot in the receiver's ring (an absolute offset in the frame), whether its receive is posted
 * or not. So there is no pool and no fragmentation, and credit is one number.
 */
#include "core/conn_slots.h"

#include <assert.h>
#include <string.h>

/* ---- set-up ---------------------------------------------------------------------------------- */

size_t conn_size(const struct flow_setup *setup)
{
    return round64(sizeof(struct conn)) + round64(setup->msg_window * sizeof(struct send_slot)) +
           round64(setup->msg_window * sizeof(struct recv_slot)) + DUE_KINDS * round64(setup->msg_window / 8 + 8) +
           (size_t)setup->eager_window_kb * 1024;
}

struct conn *conn_init(void *memory, struct flow *flow, const struct flow_setup *setup, uint32_t local_id,
                       uint32_t remote_id, void *owner)
{
    uint8_t *at = memory;
    struct conn *conn = memory;
    conn->flow = flow;
    conn->owner = owner;
    conn->local_id = local_id;
    conn->remote_id = remote_id;
    conn->window = setup->msg_window;
    conn->eager_bytes = flow->core->params->eager_kb * 1024;
    conn->fin_seq = UINT64_MAX;
    conn->abort_seq = UINT64_MAX;
    at += round64(sizeof *conn);
    conn->send_slots = (struct send_slot *)at;
    at += round64(conn->window * sizeof(struct send_slot));
    conn->recv_slots = (struct recv_slot *)at;
    at += round64(conn->window * sizeof(struct recv_slot));
    for (unsigned kind = 0; kind < DUE_KINDS; kind++) {
        conn->due[kind] = (uint64_t *)at;
        at += round64(conn->window / 8 + 8);
    }
    conn->ring = at;
    conn->ring_bytes = setup->eager_window_kb * 1024;
    conn->ring_limit = conn->ring_bytes;
    conn->linger.of_conn = true;
    conn->overtakes = 1 << FRAME_CREDIT | 1 << FRAME_CTS | 1 << FRAME_ABORT;
    return conn;
}

/* ---- frames due ---------------------------------------------------------------------------- */

void conn_set_due(struct conn *conn, enum due kind, uint64_t number)
{
    uint32_t index = (uint32_t)number & (conn->window - 1);
    uint64_t bit = UINT64_C(1) << index % 64;
    if (!(conn->due[kind][index / 64] & bit)) {
        conn->due[kind][index / 64] |= bit;
        conn->due_count[kind]++;
    }
    flow_add_ctrl(conn);
}

/* The lowest number at or after `base` whose bit is set; one is set. */
static uint64_t first_due(const struct conn *conn, enum due kind, uint64_t base)
{
    assert(conn->due_count[kind]);
    uint32_t start = (uint32_t)base & (conn->window - 1);
    uint32_t words = (conn->window + 63) / 64;
    for (uint32_t i = 0; i <= words; i++) {
        uint32_t word = (start / 64 + i) % words;
        uint64_t bits = conn->due[kind][word];
        if (i == 0)
            bits &= UINT64_MAX << start % 64;
        if (bits) {
            uint32_t index = word * 64 + (unsigned)__builtin_ctzll(bits);
            return base + ((index - start) & (conn->window - 1));
        }
    }
    assert(!"a due bit was counted but is not set");
    return base;
}

/* ---- early ends, close ----------------------------------------------------------------------- */

bool conn_on_abort(struct conn *conn, const struct wire_abort *end)
{
    /* only codes of ours, whatever the peer sends */
    int32_t status = end->status == UCCL_ETRUNCATED ? UCCL_ETRUNCATED : UCCL_ECANCELED;
    return end->of_send ? conn_on_abort_of_send(conn, end->msg, status) : conn_on_abort_of_recv(conn, end->msg, status);
}

void conn_cancel(struct conn *conn, struct core_msg *msg)
{
    if (msg->state == MSG_BACKLOG)
        msg->flags |= MSG_CANCELLED;
    else if (msg->kind == CORE_SEND && msg->state != MSG_ENDED && !(msg->flags & MSG_DELIVERED))
        conn_end_send_early(conn, msg, UCCL_ECANCELED);
    else if (msg->kind == CORE_SEND && msg->state != MSG_ENDED)
        conn_end_settling(conn, msg);
    else if (msg->kind == CORE_RECV && msg->state == MSG_WAITING)
        conn_withdraw(conn, recv_slot(conn, msg->number), UCCL_ECANCELED);
}

static void forget_due(struct conn *conn)
{
    for (unsigned kind = 0; kind < DUE_KINDS; kind++) {
        memset(conn->due[kind], 0, conn->window / 8 + 8);
        conn->due_count[kind] = 0;
    }
    conn->credit_due = false;
}

void conn_fail(struct conn *conn, int32_t status, enum deferral proof)
{
    if (conn->state == CONN_FAILED || conn->state == CONN_OVER)
        return;
    bool closing = conn->state == CONN_CLOSING;
    conn->state = CONN_FAILED;
    conn->status = status;
    conn_fail_parts(conn, status);
    conn_fail_sends(conn, status);
    /* receives withdrawn before: their ABORT is dropped below. Without the peer's word they wait for the FIN, too */
    if (proof == DEFER_ARRIVAL)
        place_peer_ended(conn, UINT64_MAX);
    conn_fail_recvs(conn, status, proof);
    forget_due(conn);
    conn->fin_due = false;
    if (closing) {
        conn->state = CONN_CLOSING;
        conn_try_finish(conn);
    } else {
        message_conn_event(conn);
    }
}

void conn_submit(struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    bool is_send = msg->kind == CORE_SEND;
    message_begin(conn, msg, now_ns);
    int32_t status = UCCL_OK;
    if (conn->state == CONN_FAILED)
        status = conn->status;
    else if (conn->state != CONN_OPEN || (is_send ? conn->peer_receives_over : conn->peer_sends_over))
        status = UCCL_ECLOSED;
    if (status != UCCL_OK) {
        msg->state = MSG_ENDED;
        message_complete(conn->flow, msg, status, 0);
    } else if (is_send) {
        conn_submit_send(conn, msg);
    } else {
        conn_submit_recv(conn, msg);
    }
}

/*
 * Whether the peer has every ABORT. A later one may arrive while an earlier one is lost, so all chunks of frames up to
 * the last ABORT count. A chunk that is being laid out (`next_seq`) has not even left.
 */
static bool aborts_acked(const struct conn *conn)
{
    const struct sent *sent = &conn->flow->sent;
    if (conn->abort_seq == UINT64_MAX)
        return true;
    for (uint64_t seq = sent->cumulative; seq <= conn->abort_seq; seq++) {
        const struct chunk *chunk = sent_chunk(sent, seq);
        if (seq == sent->next_seq || (chunk->state != CHUNK_FREE && chunk->kind == CHUNK_FRAMES))
            return false;
    }
    return true;
}

/* Holds the FIN until every ABORT is acked: else the peer would report ECLOSED as the reason. */
static void fin_is_due(struct conn *conn)
{
    if (!aborts_acked(conn))
        return; /* conn_try_finish() comes back here when they are acked */
    conn->fin_due = true;
    flow_add_ctrl(conn);
}

bool conn_on_fin(struct conn *conn, const struct wire_fin *fin)
{
    if (conn->state == CONN_FAILED || conn->state == CONN_OVER)
        return true;
    conn->peer_receives_over |= fin->receives_over;
    conn->peer_sends_over |= fin->sends_over;
    if (fin->sends_over)
        place_peer_ended(conn, UINT64_MAX);
    if (conn->peer_receives_over)
        conn_fail_sends(conn, UCCL_ECLOSED);
    if (conn->peer_sends_over)
        conn_fail_recvs(conn, UCCL_ECLOSED, DEFER_ARRIVAL);
    if (conn->peer_receives_over && conn->peer_sends_over && conn->state == CONN_OPEN)
        conn_fail(conn, UCCL_ECLOSED, DEFER_ARRIVAL);
    return true;
}

void conn_announce(struct conn *conn)
{
    conn->announced = true;
    conn->credit_due = true;
    flow_add_ctrl(conn);
}

/*
 * No frame has named the connection, in either direction. Its peer may never have known it. Or the peer has announced
 * it, and learns by GONE that it has ended.
 */
static bool is_embryonic(const struct conn *conn)
{
    return !conn->heard && !conn->announced && conn->send_next == 0 && conn->recv_next == 0;
}

enum { FIN_GRACE_NS = 200 * NS_PER_MS, FIN_MOMENT_NS = NS_PER_MS };

/*
 * Whether the peer has left packets unanswered for about as long as a close lingers: on this flow, or on another one
 * while this flow heard nothing either. A little less is enough: the FIN leaves after the close has begun.
 */
static bool is_silent(const struct conn *conn)
{
    uint64_t patience_ns = conn->flow->core->params->linger_ms * NS_PER_MS / 8 * 7;
    if (patience_ns < FIN_GRACE_NS)
        patience_ns = FIN_GRACE_NS;
    return flow_unanswered(conn->flow, patience_ns) || conn->flow->heard_ns < conn->silent_since_ns;
}

/*
 * A close does not wait again for a silent peer: closing its connections one by one takes as long as closing one. The
 * FIN gets a moment to leave, and is repeated as long as the flow lives.
 */
static uint64_t at_most_for_silent(const struct conn *conn, uint64_t linger_ns)
{
    return linger_ns > FIN_MOMENT_NS && is_silent(conn) ? FIN_MOMENT_NS : linger_ns;
}

/* The connection is over, but a NIC may still write to some receives: after the linger all data QPs are drained. */
static void end_with_deferred(struct conn *conn, uint64_t linger_ns, uint64_t now_ns)
{
    conn->state = CONN_OVER;
    if (conn->deferred)
        timer_arm(&conn->flow->core->wheel, &conn->linger, now_ns + linger_ns);
    message_conn_event(conn);
}

/* A connection that has failed says so by itself, and the peer may not have heard it. */
static bool is_telling(const struct conn *conn)
{
    const struct flow *flow = conn->flow;
    return conn->state == CONN_FAILED && !flow->dead &&
           (conn->fin_due || (conn->fin_seq != UINT64_MAX && !sent_is_acked(&flow->sent, conn->fin_seq)));
}

void conn_close(struct conn *conn, uint64_t linger_ns, uint64_t now_ns)
{
    struct timer_wheel *wheel = &conn->flow->core->wheel;
    linger_ns = at_most_for_silent(conn, linger_ns);
    if (conn->state == CONN_CLOSING || conn->state == CONN_OVER) {
        if (timer_armed(&conn->linger) && conn->linger.deadline_ns > now_ns + linger_ns)
            timer_arm(wheel, &conn->linger, now_ns + linger_ns);
        return;
    }
    conn_fail_parts(conn, UCCL_ECANCELED);
    if (!is_telling(conn) && (conn->state == CONN_FAILED || conn->for_parts || is_embryonic(conn))) {
        end_with_deferred(conn, linger_ns, now_ns);
        return;
    }
    if (conn->state == CONN_FAILED) /* nobody is to hear of that any more */
        queue_remove(&conn->flow->core->conn_events, &conn->event);
    conn->state = CONN_CLOSING;
    conn_fail_recvs(conn, UCCL_ECANCELED, DEFER_REVOKE_DUE);
    if (!conn->fin_sends_sent)
        fin_is_due(conn);
    timer_arm(wheel, &conn->linger, now_ns + linger_ns);
    queue_append(&conn->flow->closers, &conn->closer);
}

void conn_try_finish(struct conn *conn)
{
    if (conn->state != CONN_CLOSING)
        return;
    const struct sent *sent = &conn->flow->sent;
    bool fin_acked = conn->fin_sends_sent && conn->fin_seq != UINT64_MAX && sent_is_acked(sent, conn->fin_seq);
    if (conn->sends_pending == 0 && !conn->deferred && (fin_acked || conn->flow->dead)) {
        conn->state = CONN_OVER;
        queue_remove(&conn->flow->closers, &conn->closer);
        timer_disarm(&conn->flow->core->wheel, &conn->linger);
        message_conn_event(conn);
    } else if (conn->sends_pending == 0 ? !conn->fin_sends_sent : conn->fin_seq == UINT64_MAX) {
        fin_is_due(conn);
    }
}

void conn_report_deferred(struct core_msg *msg)
{
    struct conn *conn = msg->conn;
    message_report(conn->flow, msg);
    msg->deferral = DEFER_NONE;
    if (--conn->deferred)
        return;
    if (conn->event_waits)
        message_conn_event(conn);
    conn_try_finish(conn);
}

static uint64_t delivered_beyond(const struct conn *conn)
{
    uint64_t beyond = 0;
    for (unsigned i = 0; i < 64; i++) {
        uint64_t number = conn->recv_base + 1 + i;
        if (number >= conn->recv_admitted || i + 1 >= conn->window)
            break;
        if (recv_slot(conn, number)->flags & RECV_DONE)
            beyond |= UINT64_C(1) << i;
    }
    return beyond;
}

/* The CREDIT frame of this moment. */
static struct wire_credit credit_of(const struct conn *conn)
{
    return (struct wire_credit){
        .conn = conn->remote_id,
        .delivered = (uint32_t)conn->recv_base,
        .eager_total = (uint32_t)(conn->ring_freed + conn->ring_bytes),
        .beyond = delivered_beyond(conn),
    };
}

void conn_keep_fin(struct conn *conn)
{
    struct wire_credit credit = credit_of(conn);
    gone_keep_fin(conn, &credit);
}

void conn_owe_fin(struct conn *conn)
{
    assert(conn->state == CONN_FAILED);
    conn->abort_seq = UINT64_MAX; /* the FIN waits for no ABORT any more */
    conn->fin_due = true;
    flow_add_ctrl(conn);
}

/* Aborts the sends and gives the FIN a moment more, once; after that the connection is over in any case. */
void conn_linger_over(struct conn *conn)
{
    struct core *core = conn->flow->core;
    if (conn->state == CONN_OVER)
        place_give_up(conn);
    if (conn->state != CONN_CLOSING)
        return;
    bool said = conn->fin_sends_sent;
    conn->abort_seq = UINT64_MAX; /* the FIN waits for no ABORT any more */
    conn_fail_sends(conn, UCCL_ECANCELED);
    conn_try_finish(conn);
    if (conn->state == CONN_OVER)
        return;
    if (!said && !conn->graced) {
        conn->graced = true;
        timer_arm(&core->wheel, &conn->linger, core->now_ns + at_most_for_silent(conn, FIN_GRACE_NS));
        return;
    }
    conn->state = CONN_OVER;
    if (conn->fin_sends_sent)
        gone_await_fin(conn);
    else
        conn_keep_fin(conn);
    conn->status = is_silent(conn) ? UCCL_ETIMEDOUT : UCCL_OK;
    queue_remove(&conn->flow->closers, &conn->closer);
    message_conn_event(conn);
    place_give_up(conn);
}

/* ---- control frames out ---------------------------------------------------------------------- */

static unsigned put_credit(struct conn *conn, uint8_t *at)
{
    struct wire_credit credit = credit_of(conn);
    conn->credit_due = false;
    conn->completions = 0;
    return wire_put_credit(at, &credit);
}

/* Whether a message of which bytes have come needs a clear-to-send to go on, or to take further flows. */
static bool needs_cts(const struct conn *conn, const struct recv_slot *slot)
{
    return slot->msg->ahead && (slot->msg->stripes > 1 || slot->total_bytes > conn->ahead_bytes);
}

static unsigned put_cts(struct conn *conn, uint8_t *at)
{
    uint64_t number = first_due(conn, DUE_CTS, conn->recv_base);
    struct recv_slot *slot = recv_slot(conn, number);
    conn_clear_due(conn, DUE_CTS, number);
    const struct core_msg *msg = slot->msg;
    if (!msg || (slot->flags & RECV_DATA && !needs_cts(conn, slot)))
        return 0;
    struct wire_cts cts = {.conn = conn->remote_id,
                           .msg = (uint32_t)number,
                           .length = msg->size_bytes,
                           .stripes = msg->stripes,
                           .range_units = msg->range_units,
                           .watched = msg->watched};
    slot->flags |= RECV_CLEARED;
    if (place_grant(conn->flow, slot->msg)) {
        cts.placeable = msg->placeable;
        cts.address = msg->grant_address;
        memcpy(cts.keys, msg->grant_keys, sizeof cts.keys);
        cts.slot = (uint16_t)(msg->grant_slot - 1);
        cts.stripes = cts.range_units = 0;
    }
    return wire_put_cts(at, &cts);
}

static unsigned put_rts(struct conn *conn, uint8_t *at)
{
    uint64_t number = first_due(conn, DUE_RTS, conn->delivered);
    struct core_msg *msg = send_slot(conn, number)->msg;
    conn_clear_due(conn, DUE_RTS, number);
    if (!msg || (msg->state != MSG_WAITING && !(msg->flags & MSG_TOTAL_DUE)))
        return 0;
    msg->flags &= (uint8_t)~MSG_TOTAL_DUE;
    return wire_put_rts(at, &(struct wire_rts){conn->remote_id, (uint32_t)number, msg->size_bytes});
}

static unsigned put_abort(struct conn *conn, uint8_t *at, bool of_send, uint64_t seq)
{
    enum due kind = of_send ? DUE_ABORT_SEND : DUE_ABORT_RECV;
    uint64_t number = first_due(conn, kind, of_send ? conn->delivered : conn->recv_base);
    int32_t status = of_send ? send_slot(conn, number)->abort_status : recv_slot(conn, number)->abort_status;
    conn_clear_due(conn, kind, number);
    conn->abort_seq = seq;
    if (!of_send)
        place_revoke_sent(conn, number, seq);
    return wire_put_abort(at, &(struct wire_abort){conn->remote_id, (uint32_t)number, status, of_send});
}

/*
 * FIN, behind a CREDIT of its own: were the CREDIT lost in an earlier datagram, the peer would fail sends that we have
 * received.
 */
static unsigned put_fin(struct conn *conn, uint8_t *at, uint64_t seq)
{
    uint8_t *begin = at;
    struct wire_fin fin = {conn->remote_id, conn->sends_pending == 0 || conn->state == CONN_FAILED, true};
    at += put_credit(conn, at);
    conn->fin_due = false;
    conn->fin_sends_sent |= fin.sends_over;
    conn->fin_seq = seq;
    place_revoke_sent(conn, UINT64_MAX, seq);
    at += wire_put_fin(at, &fin);
    return (unsigned)(at - begin);
}

unsigned conn_put_ctrl(struct conn *conn, uint8_t *at, unsigned room, uint64_t seq)
{
    uint8_t *begin = at, *end = at + room;
    bool fin_may_go = conn->fin_due && aborts_acked(conn); /* ABORTs in this datagram arrive before the FIN */
    /* CREDIT comes first, and no frame goes without it: the peer refuses numbers beyond the window that this credit
     * opens, and the chunk with a later CREDIT may have to wait for this one. */
    if (conn->credit_due && room < WIRE_CREDIT_BYTES)
        return 0;
    if (conn->credit_due)
        at += put_credit(conn, at);
    while (conn->due_count[DUE_CTS] && end - at >= WIRE_CTS_BYTES + WIRE_CTS_ENTRY_BYTES_MAX)
        at += put_cts(conn, at);
    while (conn->due_count[DUE_RTS] && end - at >= WIRE_RTS_BYTES)
        at += put_rts(conn, at);
    while (conn->due_count[DUE_ABORT_RECV] && end - at >= WIRE_ABORT_BYTES)
        at += put_abort(conn, at, false, seq);
    while (conn->due_count[DUE_ABORT_SEND] && end - at >= WIRE_ABORT_BYTES)
        at += put_abort(conn, at, true, seq);
    if (!fin_may_go)
        conn->fin_due = false; /* conn_try_finish() sets it again */
    if (conn->fin_due && end - at >= WIRE_CREDIT_BYTES + WIRE_FIN_BYTES)
        at += put_fin(conn, at, seq);
    return (unsigned)(at - begin);
}
