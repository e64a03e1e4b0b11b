/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our operations at the peer. An operation is in the list of its connection from its call to its end. It is sent once
 * those before it are sent, no fence stands in between and there is room (OPS_MAX, PARTS_MAX). It ends in ops_launch()
 * alone, so that all other functions may keep a pointer to it.
 */
#include "thread/onesided.h"

#include "base/clock.h"
#include "base/race_point.h"
#include "thread/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct op *op_new(enum op_kind kind, size_t count, size_t note_bytes)
{
    if (count > (SIZE_MAX - sizeof(struct op)) / sizeof(struct op_piece) - 1)
        return NULL;
    struct op *op = malloc(sizeof *op + (count + 1) * sizeof op->pieces[0]);
    if (!op)
        return NULL;
    *op = (struct op){.kind = (uint8_t)kind, .reads = kind == OP_READ, .count = count, .note_bytes = note_bytes};
    op->note = note_bytes ? malloc(note_bytes) : NULL;
    if (note_bytes && !op->note) {
        free(op);
        return NULL;
    }
    return op;
}

void op_free(struct op *op)
{
    free(op->note);
    free(op);
}

/* ---- the list -------------------------------------------------------------------------------- */

static void unlink_op(struct onesided *one, struct op *op)
{
    *(op->prev ? &op->prev->next : &one->first) = op->next;
    *(op->next ? &op->next->prev : &one->last) = op->prev;
    if (one->unsent == op)
        one->unsent = op->next;
}

static struct op **slot_of(const struct onesided *one, uint64_t id)
{
    return &one->inflight[id / 2 % OPS_MAX];
}

static void count_end(struct engine_thread *thread, const struct op *op)
{
    if (op->status != UCCL_OK)
        return;
    if (op->reads)
        COUNT(thread->counters, reads, 1);
    else if (op->kind == OP_WRITE)
        COUNT(thread->counters, writes, 1);
}

static void end_op(struct onesided *one, struct op *op)
{
    struct engine_thread *thread = one->thread;
    struct uccl_request *request = op->request;
    assert(op->live == 0 && !op->ripe);
    unlink_op(one, op);
    if (op->started)
        *slot_of(one, op->id) = NULL;
    for (size_t i = 0; i < op->count; i++) {
        if (op->pieces[i].mr_users)
            atomic_fetch_sub_explicit(op->pieces[i].mr_users, 1, memory_order_release);
    }
    count_end(thread, op);
    if (request) {
        request->msg.status = op->status;
        request->msg.moved_bytes = op->status == UCCL_OK ? op->bytes : 0;
        request->op = NULL;
        thread->ended_some = true;
        RACE_POINT();
        /* pairs with the acquire in test and wait */
        atomic_store_explicit(&request->state, REQUEST_ENDED, memory_order_release);
    }
    op_free(op);
}

/* Has the operation end, if nothing is left to send or to wait for. */
static void ripen(struct onesided *one, struct op *op)
{
    if (op->live || !op->all_sent || op->ripe)
        return;
    op->ripe = true;
    op->next_ripe = one->ripe;
    one->ripe = op;
}

static void note_status(struct op *op, int32_t status)
{
    if (op->status == UCCL_OK)
        op->status = status;
}

/* ---- sending --------------------------------------------------------------------------------- */

static struct one_request *take_for(struct onesided *one, struct op *op, enum one_kind kind)
{
    struct one_request *r = one_take(one, kind);
    if (!r) {
        note_status(op, UCCL_ENOMEM);
        one_break(one, UCCL_ENOMEM);
        return NULL;
    }
    r->op = op;
    op->live++;
    return r;
}

/* What the peer calls the tail of a read, for which it knows no operation. */
static uint64_t tail_id(const struct op *op)
{
    return op->reads ? op->id | 1 : op->id;
}

/* Sends the operation's notification; `waits`: for the operation, at the peer. */
static void send_note(struct onesided *one, struct op *op, bool waits)
{
    one_send_dones(one);
    struct one_request *r = take_for(one, op, ONE_NOTE_OUT);
    if (!r)
        return;
    r->bytes = op->note;
    op->note = NULL;
    note_put_header(r->bytes, waits, tail_id(op));
    one_submit(r, r->bytes, op->note_bytes, NULL, NULL);
}

/* The pieces of the next part: those from `next_piece` on, before the result. One on a device goes alone. */
static size_t part_end(const struct op *op, uint64_t *total, bool *host)
{
    size_t i = op->next_piece;
    *total = 0;
    *host = true;
    for (; i < op->count && i < op->next_piece + CONTROL_PIECES_MAX; i++) {
        const struct op_piece *piece = &op->pieces[i];
        bool device = piece->memory || !piece->remote_host;
        if (device && i > op->next_piece)
            break;
        *total += piece->length;
        *host = !device;
        if (device)
            return i + 1;
    }
    return i;
}

/* The part's payload, to be sent or received. False: no memory. */
static bool submit_payload(struct onesided *one, struct op *op, enum one_kind kind, size_t end, uint64_t total)
{
    struct one_request *r = take_for(one, op, kind);
    if (!r)
        return false;
    const struct op_piece *piece = &op->pieces[op->next_piece];
    size_t count = end - op->next_piece;
    if (count > 1) {
        r->pieces = payload_pieces_new((unsigned)count);
        if (!r->pieces) {
            op->live--;
            one_put(r);
            one_break(one, UCCL_ENOMEM);
            return false;
        }
        uint64_t at = 0;
        for (size_t i = 0; i < count; i++) {
            at += piece[i].length;
            r->pieces->piece[i] = (struct payload_piece){piece[i].local, at};
        }
    }
    one->parts++;
    r->ahead = kind == ONE_WRITE_OUT && piece->remote_host;
    one_submit(r, count > 1 ? NULL : piece->local, total, count > 1 ? NULL : piece->memory,
               count > 1 ? NULL : piece->nic_mr);
    return true;
}

/* A WRITE or READ of the pieces up to `end`. */
static void send_part_control(struct onesided *one, struct op *op, unsigned flags, size_t end, uint64_t total)
{
    one_send_dones(one); /* into the same datagram */
    size_t count = end - op->next_piece;
    size_t inline_bytes = flags & CONTROL_INLINE ? total : 0;
    struct control control = {.kind = op->kind == OP_WRITE ? CONTROL_WRITE : CONTROL_READ,
                              .flags = (uint8_t)flags,
                              .count = (uint16_t)count,
                              .id = op->id,
                              .tail = op->signal};
    uint8_t *bytes = malloc(CONTROL_HEADER_BYTES + CONTROL_TAIL_BYTES + count * CONTROL_PIECE_BYTES + inline_bytes);
    uint8_t *at = bytes;
    if (bytes) {
        at = control_put_header(at, &control);
        for (size_t i = op->next_piece; i < end; i++)
            at = control_put_piece(at, &(struct control_piece){op->pieces[i].remote.ref, op->pieces[i].remote.offset,
                                                               op->pieces[i].length});
        for (size_t i = op->next_piece; inline_bytes && i < end; i++) {
            if (op->pieces[i].length)
                memcpy(at, op->pieces[i].local, op->pieces[i].length);
            at += op->pieces[i].length;
        }
    }
    one->controls_out += one_send_control(one, ONE_CONTROL_OUT, bytes, (size_t)(at - bytes));
}

/* The tail that goes with the last WRITE. */
static unsigned tail_flags(const struct op *op)
{
    if (op->tail == CONTROL_NOTE)
        return CONTROL_NOTE;
    return op->tail && op->tail_host ? op->tail : 0;
}

static bool fits_inside(size_t pieces, uint64_t total)
{
    size_t head = CONTROL_HEADER_BYTES + CONTROL_TAIL_BYTES + pieces * CONTROL_PIECE_BYTES;
    return total <= CONTROL_INLINE_MAX && total <= CONTROL_BYTES_MAX - head;
}

static void send_write(struct onesided *one, struct op *op)
{
    uint64_t total;
    bool host;
    size_t end = part_end(op, &total, &host);
    bool last = end == op->count, inside = (host && fits_inside(end - op->next_piece, total)) || total == 0;
    unsigned tail = last ? tail_flags(op) : 0;
    unsigned flags = tail | (op->first_sent ? 0 : CONTROL_FIRST) | (last ? CONTROL_LAST : 0);
    op->first_sent = true;
    send_part_control(one, op, flags | (inside ? CONTROL_INLINE : 0), end, total);
    if (one->status || (!inside && !submit_payload(one, op, ONE_WRITE_OUT, end, total)))
        return;
    op->next_piece = end;
    op->all_sent = last;
    if (tail)
        op->tail = 0;
    if (tail & CONTROL_NOTE && op->note)
        send_note(one, op, true);
}

static void send_read(struct onesided *one, struct op *op)
{
    uint64_t total;
    bool host;
    size_t end = part_end(op, &total, &host);
    if (total && submit_payload(one, op, ONE_READ_IN, end, total)) /* no answer would hold back READs of nothing */
        send_part_control(one, op, 0, end, total);
    op->next_piece = end;
    op->all_sent = end == op->count;
}

/* Gives the operation its id. False: as many are under way as may be. */
static bool start(struct onesided *one, struct op *op)
{
    if (!one->inflight)
        one->inflight = calloc(OPS_MAX, sizeof(struct op *));
    if (!one->inflight) {
        one_break(one, UCCL_ENOMEM);
        return false;
    }
    uint64_t id = 2 * (one->next_op + 1);
    if (*slot_of(one, id))
        return false;
    one->next_op++;
    *slot_of(one, id) = op;
    op->id = id;
    op->started = true;
    op->all_sent = op->kind == OP_READ && op->count == 0;
    if (op->kind == OP_WRITE) {
        op->awaits_done = true;
        op->live++;
    }
    return true;
}

/* Sends what there is room for. False: something is left. */
static bool send_some(struct onesided *one, struct op *op)
{
    if (!op->started && !start(one, op))
        return false;
    while (!op->all_sent && !one->status) {
        if (one->parts >= PARTS_MAX || one->controls_out >= CONTROLS_OUT_MAX)
            return false;
        if (op->kind == OP_WRITE)
            send_write(one, op);
        else
            send_read(one, op);
    }
    if (op->all_sent && !one->status && op->kind == OP_READ && op->tail == CONTROL_NOTE)
        send_note(one, op, true); /* it takes its place in the order now */
    return op->all_sent;
}

/* Sends no more of the operation; the peer learns that a write ends here. */
static void stop(struct onesided *one, struct op *op)
{
    if (op->all_sent)
        return;
    op->all_sent = true;
    op->next_piece = op->count;
    if (op->kind == OP_WRITE && !one->status) {
        unsigned first = op->first_sent ? 0 : CONTROL_FIRST;
        op->first_sent = true;
        send_part_control(one, op, first | CONTROL_LAST | CONTROL_CANCELLED | CONTROL_INLINE, op->count, 0);
    }
    if (one->unsent == op)
        one->unsent = op->next;
}

/* ---- the end of an operation ------------------------------------------------------------------- */

/*
 * A tail that could not go with the bytes: of a read, since they arrive here, and a signal to memory of a device, which
 * is a write of its own.
 */
static void send_tail(struct onesided *one, struct op *op)
{
    bool note = op->tail == CONTROL_NOTE;
    for (size_t i = 0; i < op->count; i++) {
        if (op->pieces[i].mr_users)
            atomic_fetch_sub_explicit(op->pieces[i].mr_users, 1, memory_order_release);
    }
    op->id |= 1; /* another operation for the peer */
    op->kind = OP_WRITE;
    op->first_sent = op->all_sent = false;
    op->next_piece = 0;
    op->count = !note && !op->tail_host;
    op->pieces[0] = (struct op_piece){.local = (uint8_t *)&op->signal.value,
                                      .length = sizeof op->signal.value,
                                      .remote = {.ref = op->signal.ref, .offset = op->signal.offset}};
    op->awaits_done = true;
    op->live++;
    if (op->status != UCCL_OK) { /* the notification waits there for nothing */
        op->tail = 0;
        stop(one, op);
        return;
    }
    if (!note && !op->tail_host)
        op->tail = 0;
    send_write(one, op);
}

/* Whether the peer is to be told of the tail: that all before it has happened, or that it is not to be. */
static bool tail_is_due(const struct onesided *one, const struct op *op)
{
    if (!op->tail || one->status)
        return false;
    if (op->tail == CONTROL_NOTE && op->reads)
        return !op->note;
    return op->status == UCCL_OK && !op->cancelled;
}

/* Ends the operations that are ripe, and those behind that waited for them alone. */
static void reap(struct onesided *one)
{
    struct op *op;
    while ((op = one->ripe)) {
        one->ripe = op->next_ripe;
        op->ripe = false;
        if (op->cancelled && op->tail)
            note_status(op, UCCL_ECANCELED);
        if (tail_is_due(one, op)) {
            send_tail(one, op);
            ripen(one, op);
            continue;
        }
        if (one->status && op->tail)
            note_status(op, one->status);
        end_op(one, op);
    }
    while ((op = one->first) && op->kind == OP_QUIET && one->unsent != op) {
        op->status = op->cancelled ? UCCL_ECANCELED : one->status;
        end_op(one, op);
    }
}

/* Nothing can go on: what was sent ends without its DONE. */
static void drop(struct onesided *one)
{
    one->dropped = true;
    for (struct op *op = one->first; op; op = op->next) {
        if (!op->started)
            continue;
        if (op->awaits_done) {
            op->awaits_done = false;
            op->live--;
            note_status(op, one->status);
        }
        if (!op->all_sent)
            note_status(op, one->status);
        op->all_sent = true;
        ripen(one, op);
    }
    while (one->unsent && one->unsent->started)
        one->unsent = one->unsent->next;
}

/* Ends what has nothing left to wait for. */
static void settle(struct onesided *one)
{
    do {
        if (one->status && !one->dropped)
            drop(one);
        reap(one);
    } while (one->status && !one->dropped);
}

void ops_launch(struct onesided *one)
{
    struct op *op;
    for (settle(one); (op = one->unsent); settle(one)) {
        if (one->status && !op->started) {
            note_status(op, one->status);
            end_op(one, op);
            continue;
        }
        if (op->kind == OP_FENCE) {
            if (one->first != op)
                return;
            end_op(one, op);
            continue;
        }
        if (op->kind == OP_NOTIFY) {
            op->all_sent = true;
            send_note(one, op, false);
        } else if (op->kind != OP_QUIET && !send_some(one, op)) {
            if (!one->status)
                return;
            continue; /* it has broken: drop() ends it */
        }
        one->unsent = op->next;
        if (op->kind != OP_QUIET)
            ripen(one, op);
    }
}

void ops_on_done(struct onesided *one, const struct control *control)
{
    for (unsigned i = 0; i < control->count; i++) {
        int32_t status;
        uint64_t id = control_done(control, i, &status);
        struct op *op = one->inflight ? *slot_of(one, id) : NULL;
        if (!op || op->id != id || !op->awaits_done || !op->all_sent) {
            COUNT(one->thread->counters, rx_malformed, 1);
            continue;
        }
        op->awaits_done = false;
        op->live--;
        if (status != UCCL_OK)
            note_status(op, op->cancelled ? UCCL_ECANCELED : op->fault ? op->fault : status);
        ripen(one, op);
    }
}

void ops_part_ended(struct one_request *r)
{
    struct onesided *one = r->of;
    struct op *op = r->op;
    const struct core_msg *msg = &r->request.msg;
    int32_t status = msg->status;
    bool note = r->kind == ONE_NOTE_OUT, refused = false;
    if (r->kind == ONE_READ_IN && status == UCCL_OK && msg->moved_bytes != msg->size_bytes)
        status = UCCL_EACCESS; /* a refusal has no bytes */
    one->parts -= !note;
    if (status == UCCL_ECANCELED || status == UCCL_ETRUNCATED) {
        refused = !op->cancelled && !one->status;
        status = op->cancelled ? UCCL_ECANCELED : one->status ? one->status : UCCL_EACCESS;
    }
    op->live--;
    if (r->kind == ONE_WRITE_OUT) { /* DONE tells how it ended at the peer, or has told; without it, drop() */
        if (status != UCCL_OK && !refused && !op->fault)
            op->fault = status;
        if (op->fault && op->status == UCCL_ECANCELED && !op->cancelled) /* the peer was quicker */
            op->status = op->fault;
        status = UCCL_OK;
    }
    if (status != UCCL_OK)
        note_status(op, status);
    one_put(r);
    if (refused && !note)
        stop(one, op);
    ripen(one, op);
}

/* ---- calls ----------------------------------------------------------------------------------- */

void ops_submit(struct onesided *one, struct op *op)
{
    op->prev = one->last;
    *(op->prev ? &op->prev->next : &one->first) = op;
    one->last = op;
    if (!one->unsent)
        one->unsent = op;
    for (size_t i = 0; i < op->count; i++)
        op->bytes += op->pieces[i].length;
    if (op->kind == OP_NOTIFY)
        op->bytes = op->note_bytes - NOTE_HEADER_BYTES;
}

void ops_cancel(struct onesided *one, struct op *op)
{
    uint64_t now_ns = clock_now_ns();
    op->cancelled = true;
    if (op->kind == OP_NOTIFY ? op->note != NULL : !op->started) { /* nothing of it was sent */
        op->status = UCCL_ECANCELED;
        end_op(one, op);
    } else {
        stop(one, op);
        for (struct one_request *r = one->requests; r; r = r->next) {
            /* a notification that has left cannot be taken back: whether it has arrived is not known here */
            if (r->op == op && (r->kind != ONE_NOTE_OUT || r->request.msg.offset_bytes == 0))
                core_cancel(one->thread->core, &r->request.msg, now_ns);
        }
        ripen(one, op);
    }
}
