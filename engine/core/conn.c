/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message numbers live in two windows of `window` slots, [delivered, delivered + window) for sends and
 * [recv_base, recv_base + window) for receives; further messages wait in a backlog. The receiver moves
 * both: a number passes when its receive is done here AND, had it ended early, the sender agreed. So
 * an END frame can never be overtaken by the CREDIT that would make the send look delivered.
 *
 * Eager bytes have a place in the receiver's ring from the moment they are sent (an absolute offset in
 * the frame), whether the receive is posted or not: no pool, no fragmentation, credit is one number.
 */
#include "core/conn.h"
#include "core/state.h"

#include <assert.h>
#include <string.h>

enum { EAGER_CHARGE_UNIT = 64 }; /* bounds the messages, empty ones too, that a ring can hold */

/* ---- set-up ---------------------------------------------------------------------------------- */

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

size_t conn_size(const struct params *params, const struct flow_setup *setup)
{
    (void)params;
    return round64(sizeof(struct conn)) + round64(setup->msg_window * sizeof(struct send_slot)) +
           round64(setup->msg_window * sizeof(struct recv_slot)) +
           DUE_KINDS * round64(setup->msg_window / 8 + 8) + (size_t)setup->eager_window_kb * 1024;
}

struct conn *conn_init(void *memory, struct flow *flow, const struct params *params,
                       const struct flow_setup *setup, uint32_t local_id, uint32_t remote_id, void *owner)
{
    (void)params;
    uint8_t *at = memory;
    struct conn *conn = memory;
    conn->flow = flow;
    conn->owner = owner;
    conn->local_id = local_id;
    conn->remote_id = remote_id;
    conn->window = setup->msg_window;
    conn->fin_seq = UINT64_MAX;
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
    return conn;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static inline struct send_slot *send_slot(const struct conn *conn, uint64_t number)
{
    return &conn->send_slots[number & (conn->window - 1)];
}

static inline struct recv_slot *recv_slot(const struct conn *conn, uint64_t number)
{
    return &conn->recv_slots[number & (conn->window - 1)];
}

static inline struct counters *counters(const struct conn *conn)
{
    return conn->flow->core->counters;
}

static inline uint64_t eager_limit(const struct conn *conn)
{
    return conn->flow->core->params->eager_kb * 1024;
}

static void set_due(struct conn *conn, enum due kind, uint64_t number)
{
    uint32_t index = (uint32_t)number & (conn->window - 1);
    uint64_t bit = UINT64_C(1) << index % 64;
    if (!(conn->due[kind][index / 64] & bit)) {
        conn->due[kind][index / 64] |= bit;
        conn->due_count[kind]++;
    }
    flow_add_ctrl(conn);
}

static void clear_due(struct conn *conn, enum due kind, uint64_t number)
{
    uint32_t index = (uint32_t)number & (conn->window - 1);
    uint64_t bit = UINT64_C(1) << index % 64;
    if (conn->due[kind][index / 64] & bit) {
        conn->due[kind][index / 64] &= ~bit;
        conn->due_count[kind]--;
    }
}

/* The lowest number at or after `base` whose bit is set; there is one. */
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

/* What an eager message of this size takes of the ring. */
static inline uint64_t eager_charge(uint64_t size_bytes)
{
    uint64_t charge = (size_bytes + EAGER_CHARGE_UNIT - 1) & ~(uint64_t)(EAGER_CHARGE_UNIT - 1);
    return charge ? charge : EAGER_CHARGE_UNIT;
}

/* ---- send side ------------------------------------------------------------------------------- */

static void unqueue_send(struct conn *conn, struct core_msg *msg)
{
    if (msg->state == MSG_EAGER)
        msg_remove(&conn->eager, msg);
    else if (msg->state == MSG_BULK)
        msg_remove(&conn->bulk, msg);
}

static void end_send(struct conn *conn, struct core_msg *msg, int32_t status)
{
    conn->sends_pending--;
    msg->state = MSG_ENDED;
    flow_msg_ended(conn->flow, msg, status, status == UCCL_OK ? msg->size_bytes : 0);
    if (conn->state == CONN_CLOSING && conn->sends_pending == 0)
        conn_try_finish(conn);
}

/* Takes a send of the window back and tells the peer, which holds its number until it hears. */
static void end_send_early(struct conn *conn, struct core_msg *msg, int32_t status)
{
    struct send_slot *slot = send_slot(conn, msg->number);
    flow_void_chunks(conn->flow, msg);
    unqueue_send(conn, msg);
    slot->msg = NULL;
    slot->end_status = status;
    set_due(conn, DUE_END_SEND, msg->number);
    if (status == UCCL_ETRUNCATED)
        COUNT(counters(conn), truncated, 1);
    end_send(conn, msg, status);
}

/* A send that has its clear-to-send is queued, whole or as part 0 of what the other flows share. */
static void start_bulk(struct conn *conn, struct core_msg *msg, const struct send_slot *slot)
{
    struct core *core = conn->flow->core;
    uint64_t from;
    msg->state = MSG_BULK;
    msg->end_bytes = msg->size_bytes;
    if (slot->stripes > 1) {
        msg->stripes = slot->stripes;
        core_stripe(msg->size_bytes, msg->stripes, 0, &from, &msg->end_bytes);
        msg->next_split = NULL;
        if (core->splits_tail)
            core->splits_tail->next_split = msg;
        else
            core->splits_head = msg;
        core->splits_tail = msg;
    }
    msg_append(&conn->bulk, msg);
    flow_add_active(conn);
}

/* A send enters the window: how it travels is decided here. */
static void admit_send(struct conn *conn, struct core_msg *msg)
{
    struct send_slot *slot = send_slot(conn, msg->number);
    conn->send_admitted = msg->number + 1;
    slot->msg = msg;
    msg->state = MSG_WAITING;
    if (slot->end_status) {
        end_send_early(conn, msg, slot->end_status);
    } else if (msg->flags & MSG_CANCELLED) {
        end_send_early(conn, msg, UCCL_ECANCELED);
    } else if (slot->granted && msg->size_bytes > slot->granted_bytes) {
        end_send_early(conn, msg, UCCL_ETRUNCATED);
    } else if (msg->size_bytes <= eager_limit(conn)) {
        msg->state = MSG_EAGER;
        msg->flags |= slot->granted ? MSG_GRANTED : 0;
        msg_append(&conn->eager, msg);
        flow_add_active(conn);
    } else if (slot->granted) {
        start_bulk(conn, msg, slot);
    } else {
        set_due(conn, DUE_RTS, msg->number);
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

static void submit_send(struct conn *conn, struct core_msg *msg)
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
    if (!msg || msg->state > MSG_EAGER)
        return true;
    if (msg->size_bytes > cts->length) {
        end_send_early(conn, msg, UCCL_ETRUNCATED);
        return true;
    }
    if (msg->state == MSG_WAITING) {
        clear_due(conn, DUE_RTS, number);
        start_bulk(conn, msg, slot);
        return true;
    } else if (!(msg->flags & (MSG_CHARGED | MSG_GRANTED)) && conn->blocked) {
        /* no credit needed any more: it overtakes those that wait for some */
        msg->flags |= MSG_GRANTED;
        msg_remove(&conn->eager, msg);
        msg->next = conn->eager.head;
        if (msg->next)
            msg->next->prev = msg;
        else
            conn->eager.tail = msg;
        conn->eager.head = msg;
    }
    flow_add_active(conn);
    return true;
}

/* The receiver has this message. It ends now, or once its chunks are acked. */
static void mark_delivered(struct conn *conn, uint64_t number)
{
    struct send_slot *slot = send_slot(conn, number);
    struct core_msg *msg = slot->msg;
    slot->delivered = true;
    slot->msg = NULL;
    if (!msg)
        return;
    msg->flags |= MSG_DELIVERED;
    if (msg->chunks_live)
        msg_append(&conn->settling, msg);
    else
        end_send(conn, msg, UCCL_OK);
}

/* Can the peer have this message? Not unless every byte of it was sent, or it had ended here. */
static bool deliverable(const struct conn *conn, uint64_t number)
{
    const struct core_msg *msg = send_slot(conn, number)->msg;
    return !msg || msg->state == MSG_SENT;
}

bool conn_on_credit(struct conn *conn, const struct wire_credit *credit)
{
    uint64_t delivered = wire_expand(credit->delivered, conn->delivered);
    if (delivered < conn->delivered)
        return true; /* an older one, overtaken */
    if (delivered > conn->send_admitted)
        return false;
    for (uint64_t number = conn->delivered; number < delivered; number++) {
        if (!deliverable(conn, number))
            return false;
    }
    for (; conn->delivered < delivered; conn->delivered++) {
        mark_delivered(conn, conn->delivered);
        *send_slot(conn, conn->delivered) = (struct send_slot){0};
        clear_due(conn, DUE_RTS, conn->delivered);
        clear_due(conn, DUE_END_SEND, conn->delivered);
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
    }
    admit_sends(conn);
    return true;
}

void conn_chunk_gone(struct conn *conn, struct core_msg *msg)
{
    if (conn->stripe) {
        conn_part_sent(conn, msg);
    } else if (msg->flags & MSG_DELIVERED) {
        msg_remove(&conn->settling, msg);
        end_send(conn, msg, UCCL_OK);
    }
}

struct core_msg *conn_eager_ready(struct conn *conn)
{
    struct core_msg *msg = conn->eager.head;
    if (!msg || msg->flags & (MSG_CHARGED | MSG_GRANTED))
        return msg;
    if (conn->ring_used + eager_charge(msg->size_bytes) <= conn->ring_limit)
        return msg;
    if (send_slot(conn, msg->number)->granted) {
        msg->flags |= MSG_GRANTED;
        return msg;
    }
    if (!conn->blocked) {
        conn->blocked = true;
        COUNT(counters(conn), eager_blocked, 1);
    }
    return NULL;
}

void conn_take_eager(struct conn *conn, struct core_msg *msg, uint32_t room, struct wire_eager *eager)
{
    if (!(msg->flags & (MSG_CHARGED | MSG_GRANTED))) {
        msg->ring_at = conn->ring_used;
        conn->ring_used += eager_charge(msg->size_bytes);
        msg->flags |= MSG_CHARGED;
    }
    uint64_t left = msg->size_bytes - msg->offset_bytes;
    *eager = (struct wire_eager){
        .conn = conn->remote_id,
        .msg = (uint32_t)msg->number,
        .total = (uint32_t)msg->size_bytes,
        .offset = (uint32_t)msg->offset_bytes,
        .ring = (uint32_t)msg->ring_at,
        .length = left < room ? (uint32_t)left : room,
        .granted = msg->flags & MSG_GRANTED,
    };
    msg->offset_bytes += eager->length;
    if (msg->offset_bytes == msg->size_bytes) {
        msg_remove(&conn->eager, msg);
        msg->state = MSG_SENT;
    }
}

void conn_take_bulk(struct conn *conn, struct core_msg *msg, uint64_t bytes)
{
    msg->offset_bytes += bytes;
    assert(msg->offset_bytes <= msg->end_bytes);
    if (msg->offset_bytes == msg->end_bytes) {
        msg_remove(&conn->bulk, msg);
        msg->state = MSG_SENT;
        if (conn->stripe)
            msg_append(&conn->settling, msg);
    }
}

/* ---- receive side ---------------------------------------------------------------------------- */

static void end_recv(struct conn *conn, struct core_msg *msg, int32_t status, uint64_t moved_bytes)
{
    msg->state = MSG_ENDED;
    flow_msg_ended(conn->flow, msg, status, moved_bytes);
}

static void admit_recv(struct conn *conn, struct core_msg *msg);

/* Moves the window past numbers that are done, and lets as many receives in from the backlog. */
static void advance_recv(struct conn *conn)
{
    struct recv_slot *slot;
    while ((slot = recv_slot(conn, conn->recv_base))->flags & RECV_DONE) {
        if (slot->charged && slot->ring_at + eager_charge(slot->total_bytes) > conn->ring_freed)
            conn->ring_freed = slot->ring_at + eager_charge(slot->total_bytes);
        clear_due(conn, DUE_CTS, conn->recv_base);
        clear_due(conn, DUE_END_RECV, conn->recv_base);
        *slot = (struct recv_slot){0};
        conn->recv_base++;
        struct core_msg *msg = conn->recv_backlog.head;
        if (msg) {
            msg_remove(&conn->recv_backlog, msg);
            admit_recv(conn, msg);
        }
    }
}

/* This number is over on both sides; the sender hears of it by the next CREDIT. */
static void recv_done(struct conn *conn, struct recv_slot *slot)
{
    slot->msg = NULL;
    slot->flags |= RECV_DONE;
    conn->completions++;
    bool many = conn->completions * 8 >= conn->window;
    advance_recv(conn);
    flow_credit_due(conn, many);
}

static void deliver(struct conn *conn, struct recv_slot *slot)
{
    end_recv(conn, slot->msg, UCCL_OK, slot->total_bytes);
    recv_done(conn, slot);
}

/* Ends a receive of the window early; its number is held until the sender agrees. */
static void withdraw(struct conn *conn, struct recv_slot *slot, int32_t status)
{
    struct core_msg *msg = slot->msg;
    uint64_t number = msg->number;
    slot->msg = NULL;
    slot->flags |= RECV_WITHDRAWN;
    slot->end_status = status;
    clear_due(conn, DUE_CTS, number);
    set_due(conn, DUE_END_RECV, number);
    if (status == UCCL_ETRUNCATED)
        COUNT(counters(conn), truncated, 1);
    end_recv(conn, msg, status, 0);
}

/* Copies between the ring and a message or a datagram, in two pieces where the ring wraps. */
static void copy_ring(struct conn *conn, uint64_t ring_at, struct core_msg *msg, uint64_t offset,
                      const uint8_t *payload, uint64_t length)
{
    struct core *core = conn->flow->core;
    while (length) {
        uint64_t at = ring_at % conn->ring_bytes;
        uint64_t piece = conn->ring_bytes - at < length ? conn->ring_bytes - at : length;
        if (msg)
            core_copy_push(core, (struct core_copy){.from = conn->ring + at,
                                                    .msg = msg,
                                                    .offset_bytes = offset,
                                                    .length = piece});
        else
            core_copy_push(core, (struct core_copy){.from = payload,
                                                    .to = conn->ring + at,
                                                    .length = piece});
        ring_at += piece;
        offset += piece;
        payload = payload ? payload + piece : NULL;
        length -= piece;
    }
}

/* A message collected in the ring, whole, meets its receive. */
static void deliver_from_ring(struct conn *conn, struct recv_slot *slot)
{
    copy_ring(conn, slot->ring_at, slot->msg, 0, NULL, slot->total_bytes);
    deliver(conn, slot);
}

/* A receive enters the window; its send may have announced itself, or arrived, already. */
static void admit_recv(struct conn *conn, struct core_msg *msg)
{
    struct recv_slot *slot = recv_slot(conn, msg->number);
    conn->recv_admitted = msg->number + 1;
    slot->msg = msg;
    msg->state = MSG_WAITING;
    if (slot->end_status) {
        end_recv(conn, msg, slot->end_status, 0);
        recv_done(conn, slot);
    } else if (msg->flags & MSG_CANCELLED) {
        withdraw(conn, slot, UCCL_ECANCELED);
    } else if (slot->flags & RECV_KNOWN && slot->total_bytes > msg->size_bytes) {
        withdraw(conn, slot, UCCL_ETRUNCATED);
    } else if (slot->flags & RECV_IN_RING) {
        if (slot->arrived_bytes == slot->total_bytes)
            deliver_from_ring(conn, slot);
    } else if (slot->flags & RECV_KNOWN || msg->size_bytes > eager_limit(conn)) {
        set_due(conn, DUE_CTS, msg->number);
    }
}

static void submit_recv(struct conn *conn, struct core_msg *msg)
{
    msg->number = conn->recv_next++;
    if (msg->number < conn->recv_base + conn->window && !conn->recv_backlog.head)
        admit_recv(conn, msg);
    else
        msg_append(&conn->recv_backlog, msg);
}

/* The slot that a frame about send `truncated` speaks of; NULL with `*good` when it is over already. */
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

/* The length of the message is known now. False: it contradicts what was known. */
static bool learn_total(struct conn *conn, struct recv_slot *slot, uint64_t total)
{
    if (slot->flags & RECV_KNOWN)
        return slot->total_bytes == total;
    slot->flags |= RECV_KNOWN;
    slot->total_bytes = total;
    if (slot->msg && total > slot->msg->size_bytes)
        withdraw(conn, slot, UCCL_ETRUNCATED);
    return true;
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
        set_due(conn, DUE_CTS, slot->msg->number);
    return true;
}

/* Bytes of a granted message that come over this flow: all, or the first part. */
static uint64_t home_bytes(const struct recv_slot *slot)
{
    uint64_t from = 0, to = slot->total_bytes;
    if (slot->stripes > 1)
        core_stripe(slot->total_bytes, slot->stripes, 0, &from, &to);
    return to;
}

static void deliver_if_whole(struct conn *conn, struct recv_slot *slot)
{
    unsigned expected = 0;
    uint64_t from, to;
    for (unsigned i = 1; i < slot->stripes; i++) {
        core_stripe(slot->total_bytes, slot->stripes, i, &from, &to);
        expected += from < to;
    }
    if (slot->arrived_bytes == home_bytes(slot) && slot->parts_arrived == expected)
        deliver(conn, slot);
}

bool conn_on_data(struct conn *conn, const struct wire_data *data)
{
    if (conn->stripe)
        return conn_on_part_data(conn, data);
    bool good;
    struct recv_slot *slot = find_recv(conn, data->msg, &good);
    if (!slot)
        return good;
    if (!slot->msg || !(slot->flags & RECV_CLEARED) || data->total > slot->msg->size_bytes)
        return false;
    if (data->stripes > 1 && data->stripes != slot->msg->stripes)
        return false;
    if (!learn_total(conn, slot, data->total) || slot->flags & RECV_IN_RING)
        return false;
    if (!(slot->flags & RECV_DATA))
        slot->stripes = data->stripes;
    uint64_t own_bytes = home_bytes(slot);
    if (slot->stripes != data->stripes || data->offset > own_bytes ||
        data->length > own_bytes - data->offset || slot->arrived_bytes + data->length > own_bytes)
        return false;
    slot->flags |= RECV_DATA;
    slot->arrived_bytes += data->length;
    if (data->length)
        core_copy_push(conn->flow->core, (struct core_copy){.from = data->payload,
                                                            .msg = slot->msg,
                                                            .offset_bytes = data->offset,
                                                            .length = data->length});
    deliver_if_whole(conn, slot);
    return true;
}

void conn_part_arrived(struct conn *conn, struct core_msg *msg)
{
    struct recv_slot *slot = recv_slot(conn, msg->number);
    if (slot->msg != msg)
        return;
    slot->parts_arrived++;
    if (slot->flags & RECV_DATA)
        deliver_if_whole(conn, slot);
}

/* Where an eager message lies in our ring. False: it does not fit there. */
static bool ring_place(const struct conn *conn, const struct wire_eager *eager, uint64_t *ring_at)
{
    *ring_at = wire_expand(eager->ring, conn->ring_freed);
    return *ring_at >= conn->ring_freed &&
           *ring_at + eager_charge(eager->total) <= conn->ring_freed + conn->ring_bytes;
}

/*
 * A piece of an eager message that ended before it came. The sender has charged its place in the ring,
 * and would never get that back if we did not learn of it: all before it is over when its number is.
 */
static void charge_ended(struct conn *conn, const struct wire_eager *eager)
{
    uint64_t number = wire_expand(eager->msg, conn->recv_base), ring_at;
    if (eager->granted || !ring_place(conn, eager, &ring_at))
        return;
    if (number < conn->recv_base || number > UINT64_MAX / 2) {
        conn->ring_freed = ring_at + eager_charge(eager->total);
        flow_credit_due(conn, false);
        return;
    }
    struct recv_slot *slot = recv_slot(conn, number);
    if (slot->charged)
        return;
    slot->charged = true;
    slot->ring_at = ring_at;
    slot->total_bytes = eager->total;
}

/* The first piece of an eager message settles where it is collected. False: no such place. */
static bool place_eager(struct conn *conn, struct recv_slot *slot, const struct wire_eager *eager)
{
    if (slot->flags & RECV_DATA)
        return slot->total_bytes == eager->total && slot->charged == !eager->granted;
    if (eager->granted && !(slot->flags & RECV_CLEARED))
        return false;
    uint64_t ring_at = 0;
    if (!eager->granted && !ring_place(conn, eager, &ring_at))
        return false;
    if (!learn_total(conn, slot, eager->total))
        return false;
    slot->ring_at = ring_at;
    slot->charged = !eager->granted;
    if (!(slot->flags & RECV_WITHDRAWN) && !slot->msg) {
        slot->flags |= RECV_IN_RING;
        COUNT(counters(conn), eager_unexpected, 1);
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
    if (!place_eager(conn, slot, eager))
        return false;
    if (slot->flags & RECV_WITHDRAWN)
        return true; /* just truncated: the rest of it is stale */
    if (slot->arrived_bytes + eager->length > slot->total_bytes)
        return false;
    slot->arrived_bytes += eager->length;
    if (slot->flags & RECV_IN_RING) {
        copy_ring(conn, slot->ring_at + eager->offset, NULL, 0, eager->payload, eager->length);
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

/* ---- early ends, close ----------------------------------------------------------------------- */

/* What an END frame means to the application: never a code that a peer made up. */
static int32_t end_status(const struct wire_end *end)
{
    return end->status == UCCL_ETRUNCATED ? UCCL_ETRUNCATED : UCCL_ECANCELED;
}

/* The peer's receive has ended early: so does our send, and we say so. */
static bool on_end_of_recv(struct conn *conn, const struct wire_end *end)
{
    uint64_t number = wire_expand(end->msg, conn->delivered);
    if (number < conn->delivered)
        return true;
    if (number >= conn->delivered + conn->window)
        return false;
    struct send_slot *slot = send_slot(conn, number);
    if (slot->msg)
        end_send_early(conn, slot->msg, end_status(end));
    else if (number >= conn->send_admitted)
        slot->end_status = end_status(end); /* for the send that is still to come */
    return true;
}

bool conn_on_end(struct conn *conn, const struct wire_end *end)
{
    if (!end->of_send)
        return on_end_of_recv(conn, end);
    uint64_t number = wire_expand(end->msg, conn->recv_base);
    if (number < conn->recv_base)
        return true;
    if (number >= conn->recv_base + conn->window)
        return false;
    struct recv_slot *slot = recv_slot(conn, number);
    if (slot->flags & RECV_DONE)
        return true;
    if (slot->flags & RECV_WITHDRAWN) {
        recv_done(conn, slot);
    } else if (slot->msg) {
        end_recv(conn, slot->msg, end_status(end), 0);
        recv_done(conn, slot);
    } else {
        slot->end_status = end_status(end); /* for the receive that is still to come */
    }
    return true;
}

void conn_cancel(struct conn *conn, struct core_msg *msg)
{
    if (msg->state == MSG_BACKLOG)
        msg->flags |= MSG_CANCELLED;
    else if (msg->kind == CORE_SEND && msg->state != MSG_ENDED && !(msg->flags & MSG_DELIVERED))
        end_send_early(conn, msg, UCCL_ECANCELED);
    else if (msg->kind == CORE_RECV && msg->state == MSG_WAITING)
        withdraw(conn, recv_slot(conn, msg->number), UCCL_ECANCELED);
}

static void fail_sends(struct conn *conn, int32_t status)
{
    struct core_msg *msg;
    while ((msg = conn->settling.head)) {
        msg_remove(&conn->settling, msg);
        flow_void_chunks(conn->flow, msg);
        end_send(conn, msg, UCCL_OK); /* delivered, though the ack was still to come */
    }
    for (uint64_t number = conn->delivered; number < conn->send_admitted; number++) {
        msg = send_slot(conn, number)->msg;
        if (!msg)
            continue;
        send_slot(conn, number)->msg = NULL;
        flow_void_chunks(conn->flow, msg);
        unqueue_send(conn, msg);
        end_send(conn, msg, status);
    }
    while ((msg = conn->send_backlog.head)) {
        msg_remove(&conn->send_backlog, msg);
        end_send(conn, msg, status);
    }
}

static void fail_recvs(struct conn *conn, int32_t status)
{
    struct core_msg *msg;
    for (uint64_t number = conn->recv_base; number < conn->recv_admitted; number++) {
        struct recv_slot *slot = recv_slot(conn, number);
        msg = slot->msg;
        slot->msg = NULL;
        slot->flags |= RECV_WITHDRAWN;
        if (msg)
            end_recv(conn, msg, status, 0);
    }
    while ((msg = conn->recv_backlog.head)) {
        msg_remove(&conn->recv_backlog, msg);
        end_recv(conn, msg, status, 0);
    }
}

static void forget_due(struct conn *conn)
{
    for (unsigned kind = 0; kind < DUE_KINDS; kind++) {
        memset(conn->due[kind], 0, conn->window / 8 + 8);
        conn->due_count[kind] = 0;
    }
    conn->credit_due = false;
}

void conn_fail(struct conn *conn, int32_t status)
{
    if (conn->state == CONN_FAILED || conn->state == CONN_OVER)
        return;
    bool closing = conn->state == CONN_CLOSING;
    conn->state = CONN_FAILED;
    conn->status = status;
    conn_fail_parts(conn, status);
    fail_sends(conn, status);
    fail_recvs(conn, status);
    forget_due(conn);
    conn->fin_due = false;
    if (closing) {
        conn->state = CONN_CLOSING;
        conn_try_finish(conn);
    } else {
        flow_conn_event(conn);
    }
}

void conn_submit(struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    *msg = (struct core_msg){
        .conn = conn, .size_bytes = msg->size_bytes, .kind = msg->kind, .stripes = msg->stripes};
    bool is_send = msg->kind == CORE_SEND;
    flow_msg_started(conn->flow, now_ns);
    int32_t status = UCCL_OK;
    if (conn->state == CONN_FAILED)
        status = conn->status;
    else if (conn->state != CONN_OPEN ||
             (is_send ? conn->peer_receives_over : conn->peer_sends_over))
        status = UCCL_ECLOSED;
    if (status != UCCL_OK) {
        msg->state = MSG_ENDED;
        flow_msg_ended(conn->flow, msg, status, 0);
    } else if (is_send) {
        submit_send(conn, msg);
    } else {
        submit_recv(conn, msg);
    }
}

bool conn_on_fin(struct conn *conn, const struct wire_fin *fin)
{
    if (conn->state == CONN_FAILED || conn->state == CONN_OVER)
        return true;
    conn->peer_receives_over |= fin->receives_over;
    conn->peer_sends_over |= fin->sends_over;
    if (conn->peer_receives_over)
        fail_sends(conn, UCCL_ECLOSED);
    if (conn->peer_sends_over)
        fail_recvs(conn, UCCL_ECLOSED);
    if (conn->peer_receives_over && conn->peer_sends_over && conn->state == CONN_OPEN)
        conn_fail(conn, UCCL_ECLOSED);
    return true;
}

void conn_close(struct conn *conn, uint64_t linger_ns, uint64_t now_ns)
{
    if (conn->state == CONN_CLOSING || conn->state == CONN_OVER)
        return;
    conn_fail_parts(conn, UCCL_ECANCELED);
    if (conn->state == CONN_FAILED || conn->stripe) {
        conn->state = CONN_OVER;
        flow_conn_event(conn);
        return;
    }
    conn->state = CONN_CLOSING;
    fail_recvs(conn, UCCL_ECANCELED);
    conn->fin_due = true;
    flow_add_ctrl(conn);
    timer_arm(&conn->flow->core->wheel, &conn->linger, now_ns + linger_ns);
    conn->flow->closing++;
}

void conn_try_finish(struct conn *conn)
{
    if (conn->state != CONN_CLOSING)
        return;
    const struct sent *sent = &conn->flow->sent;
    bool fin_acked = conn->fin_sends_said && conn->fin_seq != UINT64_MAX &&
                     (conn->fin_seq < sent->cumulative ||
                      sent_chunk(sent, conn->fin_seq)->state == CHUNK_FREE);
    if (conn->sends_pending == 0 && (fin_acked || conn->flow->dead)) {
        conn->state = CONN_OVER;
        conn->flow->closing--;
        timer_disarm(&conn->flow->core->wheel, &conn->linger);
        flow_conn_event(conn);
    } else if (conn->sends_pending == 0 && !conn->fin_sends_said) {
        conn->fin_due = true;
        flow_add_ctrl(conn);
    }
}

/* First the sends are given up and the FIN gets a moment more; then it is over in any case. */
void conn_linger_over(struct conn *conn)
{
    enum { FIN_GRACE_NS = 200 * 1000 * 1000 };
    struct core *core = conn->flow->core;
    if (conn->state != CONN_CLOSING)
        return;
    bool said = conn->fin_sends_said;
    fail_sends(conn, UCCL_ECANCELED);
    conn_try_finish(conn);
    if (conn->state == CONN_OVER)
        return;
    if (!said) {
        timer_arm(&core->wheel, &conn->linger, core->now_ns + FIN_GRACE_NS);
        return;
    }
    conn->state = CONN_OVER;
    conn->flow->closing--;
    flow_conn_event(conn);
}

/* ---- control frames out ---------------------------------------------------------------------- */

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

static unsigned put_credit(struct conn *conn, uint8_t *at)
{
    conn->credit_due = false;
    conn->completions = 0;
    return wire_put_credit(at, &(struct wire_credit){
                                   .conn = conn->remote_id,
                                   .delivered = (uint32_t)conn->recv_base,
                                   .eager_total = (uint32_t)(conn->ring_freed + conn->ring_bytes),
                                   .beyond = delivered_beyond(conn),
                               });
}

static unsigned put_cts(struct conn *conn, uint8_t *at)
{
    uint64_t number = first_due(conn, DUE_CTS, conn->recv_base);
    struct recv_slot *slot = recv_slot(conn, number);
    clear_due(conn, DUE_CTS, number);
    if (!slot->msg || slot->flags & RECV_DATA)
        return 0;
    slot->flags |= RECV_CLEARED;
    return wire_put_cts(at, &(struct wire_cts){conn->remote_id, (uint32_t)number,
                                               slot->msg->size_bytes, slot->msg->stripes});
}

static unsigned put_rts(struct conn *conn, uint8_t *at)
{
    uint64_t number = first_due(conn, DUE_RTS, conn->delivered);
    struct core_msg *msg = send_slot(conn, number)->msg;
    clear_due(conn, DUE_RTS, number);
    if (!msg || msg->state != MSG_WAITING)
        return 0;
    return wire_put_rts(at, &(struct wire_rts){conn->remote_id, (uint32_t)number, msg->size_bytes});
}

static unsigned put_end(struct conn *conn, uint8_t *at, bool of_send)
{
    enum due kind = of_send ? DUE_END_SEND : DUE_END_RECV;
    uint64_t number = first_due(conn, kind, of_send ? conn->delivered : conn->recv_base);
    int32_t status = of_send ? send_slot(conn, number)->end_status : recv_slot(conn, number)->end_status;
    clear_due(conn, kind, number);
    return wire_put_end(at, &(struct wire_end){conn->remote_id, (uint32_t)number, status, of_send});
}

/*
 * FIN, behind a CREDIT of its own: were that lost in an earlier datagram, the peer would take sends
 * for failed that we have received.
 */
static unsigned put_fin(struct conn *conn, uint8_t *at, uint64_t seq)
{
    uint8_t *begin = at;
    struct wire_fin fin = {conn->remote_id, conn->sends_pending == 0, true};
    at += put_credit(conn, at);
    conn->fin_due = false;
    conn->fin_receives_said = true;
    conn->fin_sends_said |= fin.sends_over;
    if (fin.sends_over)
        conn->fin_seq = seq;
    at += wire_put_fin(at, &fin);
    return (unsigned)(at - begin);
}

unsigned conn_put_ctrl(struct conn *conn, uint8_t *at, unsigned room, uint64_t seq)
{
    uint8_t *begin = at, *end = at + room;
    if (conn->credit_due && !conn->fin_due && room >= WIRE_CREDIT_BYTES)
        at += put_credit(conn, at);
    while (conn->due_count[DUE_CTS] && end - at >= WIRE_CTS_BYTES)
        at += put_cts(conn, at);
    while (conn->due_count[DUE_RTS] && end - at >= WIRE_RTS_BYTES)
        at += put_rts(conn, at);
    while (conn->due_count[DUE_END_RECV] && end - at >= WIRE_END_BYTES)
        at += put_end(conn, at, false);
    while (conn->due_count[DUE_END_SEND] && end - at >= WIRE_END_BYTES)
        at += put_end(conn, at, true);
    if (conn->fin_due && end - at >= WIRE_CREDIT_BYTES + WIRE_FIN_BYTES)
        at += put_fin(conn, at, seq);
    return (unsigned)(at - begin);
}
