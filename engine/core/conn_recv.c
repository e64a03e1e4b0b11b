/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receive half of a connection: posted receives, eager data (also before its receive is posted), truncation, and
 * the window of message numbers, which advances past consecutive completed receives.
 */
#include "core/conn_slots.h"

#include <assert.h>

/* Completes a receive that is not whole. If it was granted, it waits for the proof that `deferral` names. */
static void end_recv(struct conn *conn, struct core_msg *msg, int32_t status, enum deferral deferral)
{
    msg->state = MSG_ENDED;
    if (msg->grant_slot)
        place_end_early(conn->flow, msg, status, deferral);
    else
        message_complete(conn->flow, msg, status, 0);
}

static void admit_recv(struct conn *conn, struct core_msg *msg);

/* Moves the window past numbers that are done, and admits as many receives from the backlog. */
static void advance_recv(struct conn *conn)
{
    struct recv_slot *slot;
    while ((slot = recv_slot(conn, conn->recv_base))->flags & RECV_DONE) {
        if (slot->charged && slot->ring_at + eager_charge(slot->total_bytes) > conn->ring_freed)
            conn->ring_freed = slot->ring_at + eager_charge(slot->total_bytes);
        conn_clear_due(conn, DUE_CTS, conn->recv_base);
        conn_clear_due(conn, DUE_ABORT_RECV, conn->recv_base);
        *slot = (struct recv_slot){0};
        conn->recv_base++;
        struct core_msg *msg = conn->recv_backlog.head;
        if (msg) {
            msg_remove(&conn->recv_backlog, msg);
            admit_recv(conn, msg);
        }
    }
}

/* Credit is due: it rides on the next packet, or goes with the ack timer. */
static void owe_credit(struct conn *conn, bool now)
{
    conn->credit_due = true;
    queue_append(&conn->flow->ctrl, &conn->ctrl);
    ack_owe_delayed(conn->flow, now);
}

/* This number is over on both sides; the next CREDIT tells the sender. */
static void recv_done(struct conn *conn, struct recv_slot *slot)
{
    slot->msg = NULL;
    slot->flags |= RECV_DONE;
    conn->completions++;
    bool many = conn->completions * 8 >= conn->window;
    advance_recv(conn);
    owe_credit(conn, many);
}

static void deliver(struct conn *conn, struct recv_slot *slot)
{
    struct core_msg *msg = slot->msg;
    msg->state = MSG_ENDED;
    if (msg->grant_slot)
        place_end_whole(conn->flow, msg, slot->total_bytes);
    else
        message_complete(conn->flow, msg, UCCL_OK, slot->total_bytes);
    recv_done(conn, slot);
}

void conn_withdraw(struct conn *conn, struct recv_slot *slot, int32_t status)
{
    struct core_msg *msg = slot->msg;
    uint64_t number = msg->number;
    slot->msg = NULL;
    slot->flags |= RECV_WITHDRAWN;
    slot->abort_status = status;
    conn_clear_due(conn, DUE_CTS, number);
    conn_set_due(conn, DUE_ABORT_RECV, number);
    if (status == UCCL_ETRUNCATED)
        COUNT(counters(conn), truncated, 1);
    end_recv(conn, msg, status, DEFER_REVOKE_DUE);
}

/* Copies from the ring to a message, or from a datagram to the ring: twice where the ring wraps. */
static void copy_ring(struct conn *conn, uint64_t ring_at, struct core_msg *msg, const uint8_t *payload,
                      uint64_t length)
{
    struct core *core = conn->flow->core;
    for (uint64_t offset = 0, piece; offset < length; offset += piece) {
        uint64_t at = (ring_at + offset) % conn->ring_bytes;
        piece = conn->ring_bytes - at < length - offset ? conn->ring_bytes - at : length - offset;
        if (msg)
            core_copy_push(
                core, (struct core_copy){.from = conn->ring + at, .msg = msg, .offset_bytes = offset, .length = piece});
        else
            core_copy_push(core, (struct core_copy){.from = payload + offset, .to = conn->ring + at, .length = piece});
    }
}

/* A whole message in the ring meets its receive. */
static void deliver_from_ring(struct conn *conn, struct recv_slot *slot)
{
    copy_ring(conn, slot->ring_at, slot->msg, NULL, slot->total_bytes);
    deliver(conn, slot);
}

/* A receive enters the window; the RTS or bytes of its send may have come already. */
static void admit_recv(struct conn *conn, struct core_msg *msg)
{
    struct recv_slot *slot = recv_slot(conn, msg->number);
    conn->recv_admitted = msg->number + 1;
    slot->msg = msg;
    msg->state = MSG_WAITING;
    if (slot->abort_status) {
        end_recv(conn, msg, slot->abort_status, DEFER_ARRIVAL);
        recv_done(conn, slot);
    } else if (msg->flags & MSG_CANCELLED) {
        conn_withdraw(conn, slot, UCCL_ECANCELED);
    } else if (slot->flags & RECV_KNOWN && slot->total_bytes > msg->size_bytes) {
        conn_withdraw(conn, slot, UCCL_ETRUNCATED);
    } else if (slot->flags & RECV_IN_RING) {
        if (slot->arrived_bytes == slot->total_bytes)
            deliver_from_ring(conn, slot);
    } else if (slot->flags & RECV_KNOWN || msg->size_bytes > conn->eager_bytes) {
        conn_set_due(conn, DUE_CTS, msg->number);
    }
}

void conn_submit_recv(struct conn *conn, struct core_msg *msg)
{
    msg->number = conn->recv_next++;
    if (msg->number < conn->recv_base + conn->window && !conn->recv_backlog.head)
        admit_recv(conn, msg);
    else
        msg_append(&conn->recv_backlog, msg);
}

/* The slot of the message in a frame; NULL: beyond the window, or over already (`*good`). */
static struct recv_slot *find_recv(struct conn *conn, uint32_t truncated, bool *good)
{
    uint64_t number = wire_expand(truncated, conn->recv_base);
    *good = number < conn->recv_base + conn->window || number > UINT64_MAX / 2;
    if (*good && number >= conn->recv_base && number <= UINT64_MAX / 2) {
        struct recv_slot *slot = recv_slot(conn, number);
        if (!(slot->flags & (RECV_WITHDRAWN | RECV_DONE)))
            return slot;
    }
    if (*good)
        COUNT(counters(conn), rx_stale_frames, 1);
    return NULL;
}

/* Notes the length of the message. False: it contradicts an earlier one. */
static bool learn_total(struct conn *conn, struct recv_slot *slot, uint64_t total)
{
    if (slot->flags & RECV_KNOWN)
        return slot->total_bytes == total;
    if (total < slot->arrived_bytes)
        return false;
    slot->flags |= RECV_KNOWN;
    slot->total_bytes = total;
    if (slot->msg && total > slot->msg->size_bytes)
        conn_withdraw(conn, slot, UCCL_ETRUNCATED);
    return true;
}

static void deliver_if_whole(struct conn *conn, struct recv_slot *slot)
{
    if (slot->arrived_bytes == slot->total_bytes)
        deliver(conn, slot);
}

bool conn_on_rts(struct conn *conn, const struct wire_rts *rts)
{
    bool good;
    struct recv_slot *slot = find_recv(conn, rts->msg, &good);
    if (!slot)
        return good;
    if (!learn_total(conn, slot, rts->total))
        return false;
    if (slot->msg && !(slot->flags & (RECV_CLEARED | RECV_DATA)))
        conn_set_due(conn, DUE_CTS, slot->msg->number);
    else if (slot->msg && slot->msg->grant_slot && slot->flags & RECV_DATA)
        deliver_if_whole(conn, slot); /* only the RTS tells the total of writes */
    return true;
}

/* Whether DATA agrees with its receive and with earlier frames of its message. */
static bool data_fits(const struct recv_slot *slot, const struct wire_data *data)
{
    if (!slot->msg || !(slot->flags & RECV_CLEARED || slot->msg->ahead) || slot->flags & RECV_IN_RING ||
        data->total > slot->msg->size_bytes)
        return false;
    if (slot->flags & RECV_KNOWN && slot->total_bytes != data->total)
        return false;
    if ((data->stripes > 1 && data->stripes != slot->msg->stripes) ||
        (slot->flags & RECV_DATA && data->stripes != slot->stripes && !slot->msg->ahead))
        return false;
    return data->length <= data->total - data->offset && slot->arrived_bytes + data->length <= data->total &&
           msg_takes(slot->msg, data->offset, data->length, data->total);
}

struct core_msg *conn_data_target(const struct conn *conn, const struct wire_data *data)
{
    if (conn->for_parts)
        return conn_part_target(conn, data);
    uint64_t number = wire_expand(data->msg, conn->recv_base);
    if (number < conn->recv_base || number >= conn->recv_base + conn->window)
        return NULL;
    const struct recv_slot *slot = recv_slot(conn, number);
    bool open = !(slot->flags & (RECV_WITHDRAWN | RECV_DONE));
    return open && data_fits(slot, data) ? slot->msg : NULL;
}

/*
 * Whether honest bytes came ahead of the clear-to-send to a receive that does not take them: it is too short, or none
 * will be posted any more.
 */
static bool is_unwanted(struct conn *conn, struct recv_slot *slot, const struct wire_data *data)
{
    if (!conn->leader || (slot->msg && (data->total <= slot->msg->size_bytes || !learn_total(conn, slot, data->total))))
        return false;
    COUNT(counters(conn), rx_stale_frames, 1);
    return true;
}

/* Whether the message needs the other flows' bytes, too. One that began ahead may end without them. */
static bool is_shared(const struct recv_slot *slot, const struct wire_data *data)
{
    return data->stripes > 1 || (slot->msg->ahead && slot->msg->stripes > 1 && slot->arrived_bytes < slot->total_bytes);
}

bool conn_on_data(struct conn *conn, const struct wire_data *data)
{
    if (conn->for_parts)
        return conn_on_part_data(conn, data);
    bool good;
    struct recv_slot *slot = find_recv(conn, data->msg, &good);
    if (!slot)
        return good;
    if (!data_fits(slot, data))
        return is_unwanted(conn, slot, data);
    learn_total(conn, slot, data->total);
    slot->stripes = data->stripes;
    slot->flags |= RECV_DATA;
    slot->arrived_bytes += data->length;
    if (data->length)
        core_copy_push(conn->flow->core, (struct core_copy){.from = data->payload,
                                                            .msg = slot->msg,
                                                            .offset_bytes = data->offset,
                                                            .length = data->length});
    if (is_shared(slot, data))
        conn_arrived(conn, slot->msg, data);
    else
        deliver_if_whole(conn, slot);
    return true;
}

bool conn_on_placed(struct conn *conn, struct core_msg *msg, uint32_t length)
{
    struct recv_slot *slot = recv_slot(conn, msg->number);
    uint64_t most = slot->flags & RECV_KNOWN ? slot->total_bytes : msg->size_bytes;
    assert(slot->msg == msg && slot->flags & RECV_CLEARED);
    if (length == 0 || length > most - slot->arrived_bytes)
        return false;
    slot->flags |= RECV_DATA;
    slot->arrived_bytes += length;
    if (slot->arrived_bytes == msg->size_bytes)
        learn_total(conn, slot, msg->size_bytes);
    if (slot->flags & RECV_KNOWN)
        deliver_if_whole(conn, slot);
    return true;
}

void conn_whole(struct conn *conn, struct core_msg *msg, uint64_t total)
{
    struct recv_slot *slot = recv_slot(conn, msg->number);
    bool open = slot->flags & RECV_CLEARED || msg->ahead;
    if (slot->msg == msg && open && total <= msg->size_bytes && learn_total(conn, slot, total))
        deliver(conn, slot);
}

/* The slot of an eager message in our ring. False: it does not fit. */
static bool ring_slot_of(const struct conn *conn, const struct wire_eager *eager, uint64_t *ring_at)
{
    *ring_at = wire_expand(eager->ring, conn->ring_freed);
    uint64_t beyond_freed = *ring_at - conn->ring_freed, charge = eager_charge(eager->total);
    return *ring_at % EAGER_CHARGE_UNIT == 0 && beyond_freed <= conn->ring_bytes &&
           charge <= conn->ring_bytes - beyond_freed; /* a sum might overflow */
}

/*
 * Bytes have come of an eager message that is over already. The sender has charged its slot in the ring, and gets it
 * back only if we count it: the ring before this slot is free once the number passes.
 */
static void charge_ended(struct conn *conn, const struct wire_eager *eager)
{
    uint64_t number = wire_expand(eager->msg, conn->recv_base), ring_at;
    if (eager->granted || !ring_slot_of(conn, eager, &ring_at))
        return;
    if (number < conn->recv_base || number > UINT64_MAX / 2) {
        conn->ring_freed = ring_at + eager_charge(eager->total);
        owe_credit(conn, false);
        return;
    }
    struct recv_slot *slot = recv_slot(conn, number);
    if (slot->charged)
        return;
    slot->charged = true;
    slot->ring_at = ring_at;
    slot->total_bytes = eager->total;
}

/* The first frame of an eager message decides whether the ring collects it. False: it contradicts earlier frames. */
static bool settle_eager(struct conn *conn, struct recv_slot *slot, const struct wire_eager *eager)
{
    if (slot->flags & RECV_DATA)
        return slot->total_bytes == eager->total && slot->charged == !eager->granted;
    if (eager->granted && !(slot->flags & RECV_CLEARED))
        return false;
    uint64_t ring_at = 0;
    if (!eager->granted && !ring_slot_of(conn, eager, &ring_at))
        return false;
    if (!learn_total(conn, slot, eager->total))
        return false;
    slot->ring_at = ring_at;
    slot->charged = !eager->granted;
    if (!(slot->flags & RECV_WITHDRAWN) && !slot->msg) {
        slot->flags |= RECV_IN_RING;
        COUNT(counters(conn), eager_unexpected, 1);
        if (conn->calls)
            message_conn_event(conn);
        conn->calls = false;
    }
    slot->flags |= RECV_DATA;
    return true;
}

bool conn_on_eager(struct conn *conn, const struct wire_eager *eager)
{
    bool good;
    struct recv_slot *slot = find_recv(conn, eager->msg, &good);
    if (!slot) {
        if (good)
            charge_ended(conn, eager);
        return good;
    }
    if ((slot->msg && !msg_takes(slot->msg, eager->offset, eager->length, eager->total)) ||
        !settle_eager(conn, slot, eager))
        return false;
    if (slot->flags & RECV_WITHDRAWN)
        return true; /* just truncated: its further bytes are stale */
    if (slot->arrived_bytes + eager->length > slot->total_bytes)
        return false;
    slot->arrived_bytes += eager->length;
    if (slot->flags & RECV_IN_RING) {
        copy_ring(conn, slot->ring_at + eager->offset, NULL, eager->payload, eager->length);
        if (slot->arrived_bytes == slot->total_bytes && slot->msg)
            deliver_from_ring(conn, slot);
        return true;
    }
    if (eager->length)
        core_copy_push(conn->flow->core, (struct core_copy){.from = eager->payload,
                                                            .msg = slot->msg,
                                                            .offset_bytes = eager->offset,
                                                            .length = eager->length});
    if (slot->arrived_bytes == slot->total_bytes)
        deliver(conn, slot);
    return true;
}

/* ---- aborts -------------------------------------------------------------------------------- */

bool conn_on_abort_of_send(struct conn *conn, uint32_t truncated, int32_t status)
{
    uint64_t number = wire_expand(truncated, conn->recv_base);
    if (number < conn->recv_base)
        return true;
    if (number >= conn->recv_base + conn->window)
        return false;
    struct recv_slot *slot = recv_slot(conn, number);
    if (slot->flags & RECV_DONE)
        return true;
    if (slot->flags & RECV_WITHDRAWN) {
        place_peer_ended(conn, number);
        recv_done(conn, slot);
    } else if (slot->msg) {
        end_recv(conn, slot->msg, status, DEFER_ARRIVAL);
        recv_done(conn, slot);
    } else {
        slot->abort_status = status; /* for a receive that is not posted yet */
    }
    return true;
}

void conn_fail_recvs(struct conn *conn, int32_t status, enum deferral deferral)
{
    struct core_msg *msg;
    for (uint64_t number = conn->recv_base; number < conn->recv_admitted; number++) {
        struct recv_slot *slot = recv_slot(conn, number);
        msg = slot->msg;
        slot->msg = NULL;
        slot->flags |= RECV_WITHDRAWN;
        if (msg)
            end_recv(conn, msg, status, deferral);
    }
    while ((msg = conn->recv_backlog.head)) {
        msg_remove(&conn->recv_backlog, msg);
        end_recv(conn, msg, status, deferral);
    }
}
