/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send half of a connection: numbers, how each message travels (eager, granted, striped), credit, and completion,
 * which takes the receiver's CREDIT and the last chunk's ack.
 */
#include "core/conn_slots.h"

#include <assert.h>
#include <string.h>

/*
 * An eager message of which nothing was sent gives up its slot in the peer's ring. Those behind it, of which nothing
 * was sent either, move forward. The peer knows of none of these slots.
 */
static void give_up_ring_slot(struct conn *conn, struct core_msg *msg)
{
    if (!(msg->flags & MSG_CHARGED) || msg->offset_bytes)
        return;
    conn->ring_used = msg->ring_at;
    while ((msg = msg->next)) {
        if (!(msg->flags & MSG_CHARGED))
            continue;
        msg->ring_at = conn->ring_used;
        conn->ring_used += eager_charge(msg->size_bytes);
    }
}

static void want_eagers(struct conn *conn);

static void unqueue_send(struct conn *conn, struct core_msg *msg)
{
    if (msg->state == MSG_EAGER) {
        conn->eager_unwanted -= msg->block_bytes && !(msg->flags & MSG_WANTED);
        give_up_ring_slot(conn, msg);
        msg_remove(&conn->eager, msg);
        want_eagers(conn);
        if (conn->eager.head) /* its credit may have gone to this message */
            flow_add_active(conn);
    } else if (msg->state == MSG_BULK)
        msg_remove(&conn->bulk, msg);
}

static void end_send(struct conn *conn, struct core_msg *msg, int32_t status)
{
    conn->sends_pending--;
    msg->state = MSG_ENDED;
    message_complete(conn->flow, msg, status, status == UCCL_OK ? msg->size_bytes : 0);
    if (conn->state == CONN_CLOSING && conn->sends_pending == 0)
        conn_try_finish(conn);
}

void conn_end_send_early(struct conn *conn, struct core_msg *msg, int32_t status)
{
    struct send_slot *slot = send_slot(conn, msg->number);
    sent_abandon(&conn->flow->sent, msg);
    unqueue_send(conn, msg);
    slot->msg = NULL;
    slot->abort_status = status;
    conn_set_due(conn, DUE_ABORT_SEND, msg->number);
    if (status == UCCL_ETRUNCATED)
        COUNT(counters(conn), truncated, 1);
    end_send(conn, msg, status);
}

void conn_end_settling(struct conn *conn, struct core_msg *msg)
{
    assert(msg->flags & MSG_DELIVERED && !conn->for_parts);
    msg_remove(&conn->settling, msg);
    sent_abandon(&conn->flow->sent, msg);
    end_send(conn, msg, UCCL_OK);
}

/* Queues a send that may go from now on. For a staged one the core asks for its bytes first. */
static void queue_bulk(struct conn *conn, struct core_msg *msg)
{
    if (msg->block_bytes) {
        conn_park(conn, msg);
        conn_want(conn, msg);
        return;
    }
    msg->state = MSG_BULK;
    msg_append(&conn->bulk, msg);
    flow_add_active(conn);
}

void conn_send_range(struct conn *conn, struct core_msg *msg, uint64_t from, uint64_t to)
{
    assert(msg->flags & MSG_ASKS && msg->state == MSG_PARKED && from <= to && to <= msg->size_bytes);
    msg->flags &= (uint8_t)~MSG_ASKS;
    if (from == to || msg->flags & MSG_DELIVERED) { /* on `settling`; a peer may say so while bytes are left */
        msg->state = MSG_SENT;
        if (msg->chunks_live == 0)
            conn_chunk_gone(conn, msg);
        return;
    }
    if (conn->for_parts)
        msg_remove(&conn->settling, msg);
    msg->offset_bytes = from;
    msg->end_bytes = to;
    queue_bulk(conn, msg);
}

/* Queues a send that has its clear-to-send. A striped one asks for its first range. */
static void start_bulk(struct conn *conn, struct core_msg *msg, const struct send_slot *slot)
{
    msg->end_bytes = msg->size_bytes;
    msg->watched = slot->watched;
    /* the NIC reads the payload itself: no need to fetch it, where a data QP can write */
    if (msg->block_bytes && msg->placeable & slot->placeable & data_qps_pairs(conn->flow))
        msg->block_bytes = 0;
    if (conn_grant(conn, msg, UINT8_MAX) && msg->size_bytes < slot->granted_bytes) {
        msg->flags |= MSG_TOTAL_DUE;
        conn_set_due(conn, DUE_RTS, msg->number);
    }
    if (slot->stripes <= 1) {
        queue_bulk(conn, msg);
        return;
    }
    msg->stripes = slot->stripes;
    msg->range_units = slot->range_units;
    msg->end_bytes = 0;
    conn_ask_range(conn, msg);
}

/* A send enters the window: decides how it travels. */
static void admit_send(struct conn *conn, struct core_msg *msg)
{
    struct send_slot *slot = send_slot(conn, msg->number);
    conn->send_admitted = msg->number + 1;
    slot->msg = msg;
    msg->state = MSG_WAITING;
    if (slot->abort_status) {
        conn_end_send_early(conn, msg, slot->abort_status);
    } else if (msg->flags & MSG_CANCELLED) {
        conn_end_send_early(conn, msg, UCCL_ECANCELED);
    } else if (slot->granted && msg->size_bytes > slot->granted_bytes) {
        conn_end_send_early(conn, msg, UCCL_ETRUNCATED);
    } else if (msg->size_bytes <= conn->eager_bytes) {
        msg->state = MSG_EAGER;
        msg->flags |= slot->granted ? MSG_GRANTED : 0;
        msg->end_bytes = msg->size_bytes;
        msg_append(&conn->eager, msg);
        conn->eager_unwanted += msg->block_bytes > 0;
        want_eagers(conn);
        flow_add_active(conn);
    } else if (slot->granted) {
        start_bulk(conn, msg, slot);
    } else if (msg->ahead && conn_may_follow(conn)) {
        conn_await_leader(conn, msg);
    } else {
        conn_set_due(conn, DUE_RTS, msg->number);
    }
}

static void admit_sends(struct conn *conn)
{
    struct core_msg *msg;
    while ((msg = conn->send_backlog.head) && msg->number < conn->delivered + conn->window) {
        msg_remove(&conn->send_backlog, msg);
        admit_send(conn, msg);
    }
}

void conn_submit_send(struct conn *conn, struct core_msg *msg)
{
    msg->number = conn->send_next++;
    conn->sends_pending++;
    if (msg->number < conn->delivered + conn->window && !conn->send_backlog.head)
        admit_send(conn, msg);
    else
        msg_append(&conn->send_backlog, msg);
}

bool conn_on_cts(struct conn *conn, const struct wire_cts *cts)
{
    uint64_t number = wire_expand(cts->msg, conn->delivered);
    if (number < conn->delivered)
        return true;
    if (number >= conn->delivered + conn->window)
        return false;
    struct send_slot *slot = send_slot(conn, number);
    struct core_msg *msg = slot->msg;
    slot->granted = true;
    slot->granted_bytes = cts->length;
    slot->stripes = cts->stripes;
    slot->range_units = cts->range_units;
    slot->watched = cts->watched;
    if (cts->placeable && conn->flow->qps.count) {
        slot->placeable = cts->placeable;
        slot->slot = cts->slot;
        memcpy(slot->keys, cts->keys, sizeof slot->keys);
        slot->address = cts->address;
        data_qps_want(conn->flow);
    }
    if (!msg || (msg->state > MSG_EAGER && !(msg->flags & MSG_AHEAD)))
        return true;
    if (msg->size_bytes > cts->length) {
        conn_end_send_early(conn, msg, UCCL_ETRUNCATED);
        return true;
    }
    if (msg->flags & MSG_AHEAD) {
        conn_on_late_cts(conn, msg, slot);
        return true;
    }
    if (msg->state == MSG_WAITING) {
        conn_clear_due(conn, DUE_RTS, number);
        start_bulk(conn, msg, slot);
        return true;
    } else if (!(msg->flags & (MSG_CHARGED | MSG_GRANTED)) && conn->blocked) {
        /* it needs no credit any more, and overtakes those that wait for some */
        msg->flags |= MSG_GRANTED;
        msg_remove(&conn->eager, msg);
        msg->next = conn->eager.head;
        if (msg->next)
            msg->next->prev = msg;
        else
            conn->eager.tail = msg;
        conn->eager.head = msg;
    }
    want_eagers(conn);
    flow_add_active(conn);
    return true;
}

/* The receiver has this message, which completes now or once its chunks are acked. */
static void mark_delivered(struct conn *conn, uint64_t number)
{
    struct send_slot *slot = send_slot(conn, number);
    struct core_msg *msg = slot->msg;
    slot->msg = NULL;
    if (!msg)
        return;
    msg->flags |= MSG_DELIVERED;
    if (msg->chunks_live)
        msg_append(&conn->settling, msg);
    else
        end_send(conn, msg, UCCL_OK);
}

/*
 * Whether the peer can have this message: every byte of it was sent, or it was aborted here. Of a striped one the other
 * flows may have sent the rest before the owner has answered that no range is left.
 */
static bool deliverable(const struct conn *conn, uint64_t number)
{
    const struct core_msg *msg = send_slot(conn, number)->msg;
    return !msg || msg->state == MSG_SENT || (msg->flags & MSG_ASKS && msg->end_bytes > 0);
}

uint64_t conn_credited(const struct conn *conn, const struct wire_credit *credit, uint64_t so_far)
{
    uint64_t delivered = wire_expand(credit->delivered, conn->delivered);
    return delivered > so_far && delivered <= conn->send_admitted ? delivered : so_far;
}

bool conn_on_credit(struct conn *conn, const struct wire_credit *credit)
{
    uint64_t delivered = wire_expand(credit->delivered, conn->delivered);
    if (delivered < conn->delivered)
        return true; /* an older CREDIT, overtaken */
    if (delivered > conn->send_admitted)
        return false;
    for (uint64_t number = conn->delivered; number < delivered; number++) {
        if (!deliverable(conn, number))
            return false;
    }
    for (; conn->delivered < delivered; conn->delivered++) {
        mark_delivered(conn, conn->delivered);
        *send_slot(conn, conn->delivered) = (struct send_slot){0};
        conn_clear_due(conn, DUE_RTS, conn->delivered);
        conn_clear_due(conn, DUE_ABORT_SEND, conn->delivered);
    }
    for (uint64_t bits = credit->beyond; bits; bits &= bits - 1) {
        uint64_t number = delivered + 1 + (unsigned)__builtin_ctzll(bits);
        if (number < conn->send_admitted && deliverable(conn, number))
            mark_delivered(conn, number);
    }
    uint64_t limit = wire_expand(credit->eager_total, conn->ring_limit);
    if (limit > conn->ring_limit && limit <= conn->ring_used + conn->ring_bytes) {
        conn->ring_limit = limit;
        if (conn->blocked && conn->eager.head)
            flow_add_active(conn);
        conn->blocked = false;
        want_eagers(conn);
    }
    admit_sends(conn);
    return true;
}

void conn_chunk_gone(struct conn *conn, struct core_msg *msg)
{
    if (conn->for_parts) {
        conn_part_sent(conn, msg);
    } else if (msg->flags & MSG_DELIVERED) {
        msg_remove(&conn->settling, msg);
        end_send(conn, msg, UCCL_OK);
    }
}

const struct send_slot *conn_grant(const struct conn *conn, const struct core_msg *msg, unsigned pairs)
{
    const struct send_slot *slot = send_slot(conn, msg->number);
    return !conn->for_parts && !msg->block_bytes && msg->placeable & slot->placeable & pairs ? slot : NULL;
}

/* Whether an eager message may go: it has its slot in the peer's ring, needs none, or finds room for one. */
static bool may_go(struct conn *conn, struct core_msg *msg)
{
    if (msg->flags & (MSG_CHARGED | MSG_GRANTED) || conn->ring_used + eager_charge(msg->size_bytes) <= conn->ring_limit)
        return true;
    if (send_slot(conn, msg->number)->granted)
        msg->flags |= MSG_GRANTED;
    return msg->flags & MSG_GRANTED;
}

/* Gives an eager message its slot in the peer's ring, where it needs one. False: there is no room. */
static bool reserve_ring(struct conn *conn, struct core_msg *msg)
{
    if (!may_go(conn, msg))
        return false;
    if (!(msg->flags & (MSG_CHARGED | MSG_GRANTED))) {
        msg->ring_at = conn->ring_used;
        conn->ring_used += eager_charge(msg->size_bytes);
        msg->flags |= MSG_CHARGED;
    }
    return true;
}

/*
 * Asks for the payload of staged eager messages that have a slot in the peer's ring. Slots follow the order of the
 * numbers, so those before take theirs first.
 */
static void want_eagers(struct conn *conn)
{
    for (struct core_msg *msg = conn->eager.head; msg && conn->eager_unwanted; msg = msg->next) {
        if (!reserve_ring(conn, msg))
            return;
        if (msg->block_bytes && !(msg->flags & MSG_WANTED)) {
            conn->eager_unwanted--;
            conn_want(conn, msg);
        }
    }
}

struct core_msg *conn_eager_ready(struct conn *conn)
{
    struct core_msg *msg = conn->eager.head;
    if (!msg)
        return NULL;
    if (!may_go(conn, msg)) {
        if (!conn->blocked) {
            conn->blocked = true;
            COUNT(counters(conn), eager_blocked, 1);
        }
        return NULL;
    }
    return msg->block_bytes == 0 || msg->available_bytes == msg->size_bytes ? msg : NULL;
}

void conn_take_eager(struct conn *conn, struct core_msg *msg, uint32_t room, struct wire_eager *eager)
{
    bool placed = reserve_ring(conn, msg);
    assert(placed);
    (void)placed;
    uint64_t left = msg->size_bytes - msg->offset_bytes;
    if (left > room) /* its receive may be watched: cut in whole units */
        left = room - room % CORE_WATCHED_BYTES;
    *eager = (struct wire_eager){
        .conn = conn->remote_id,
        .msg = (uint32_t)msg->number,
        .total = (uint32_t)msg->size_bytes,
        .offset = (uint32_t)msg->offset_bytes,
        .ring = (uint32_t)msg->ring_at,
        .length = (uint32_t)left,
        .granted = msg->flags & MSG_GRANTED,
    };
    msg->offset_bytes += eager->length;
    if (msg->offset_bytes == msg->size_bytes) {
        msg_remove(&conn->eager, msg);
        msg->state = MSG_SENT;
        core_release_push(conn->flow->core, msg, 0, msg->size_bytes); /* the train has a copy */
        if (conn->follower)
            conn_lead(conn, msg->number);
    }
}

void conn_take_bulk(struct conn *conn, struct core_msg *msg, uint64_t bytes)
{
    msg->offset_bytes += bytes;
    assert(msg->offset_bytes <= msg->end_bytes);
    if (msg->offset_bytes == msg->end_bytes) {
        msg_remove(&conn->bulk, msg);
        if (msg->stripes > 1)
            conn_ask_range(conn, msg);
        else
            msg->state = msg->end_bytes == msg->size_bytes ? MSG_SENT : MSG_PARKED; /* ahead of its clear-to-send */
    } else if (msg->block_bytes && msg->offset_bytes == msg->available_bytes) {
        msg_remove(&conn->bulk, msg);
        conn_park(conn, msg);
    }
}

void conn_take_shared(struct conn *conn, struct core_msg *msg, uint32_t room, struct wire_data *data)
{
    uint64_t left = conn_bulk_left(msg);
    if (left > room)
        left = msg->watched ? room - room % CORE_WATCHED_BYTES : room;
    *data = (struct wire_data){
        .conn = conn->remote_id,
        .msg = (uint32_t)msg->number,
        .stripes = msg->stripes,
        .offset = msg->offset_bytes,
        .total = msg->size_bytes,
        .length = (uint32_t)left,
    };
    conn_take_bulk(conn, msg, left);
    core_release_push(conn->flow->core, msg, data->offset, left); /* the train has a copy */
}

/* ---- aborts -------------------------------------------------------------------------------- */

bool conn_on_abort_of_recv(struct conn *conn, uint32_t truncated, int32_t status)
{
    uint64_t number = wire_expand(truncated, conn->delivered);
    if (number < conn->delivered)
        return true;
    if (number >= conn->delivered + conn->window)
        return false;
    struct send_slot *slot = send_slot(conn, number);
    if (slot->msg)
        conn_end_send_early(conn, slot->msg, status);
    else if (number >= conn->send_admitted)
        slot->abort_status = status; /* for a send that is not posted yet */
    return true;
}

void conn_fail_sends(struct conn *conn, int32_t status)
{
    struct core_msg *msg;
    while ((msg = conn->settling.head))
        conn_end_settling(conn, msg);
    for (uint64_t number = conn->delivered; number < conn->send_admitted; number++) {
        msg = send_slot(conn, number)->msg;
        if (!msg)
            continue;
        send_slot(conn, number)->msg = NULL;
        sent_abandon(&conn->flow->sent, msg);
        unqueue_send(conn, msg);
        end_send(conn, msg, status);
    }
    while ((msg = conn->send_backlog.head)) {
        msg_remove(&conn->send_backlog, msg);
        end_send(conn, msg, status);
    }
}
