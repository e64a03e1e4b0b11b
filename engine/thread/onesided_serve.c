/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine does for a peer's one-sided operations. The application takes no part. A peer may write anything into
 * its messages: every range, right and reference is checked when it is named, and an export is entered
 * (export_enter()) as long as a message may copy to or from it.
 */
#include "thread/onesided.h"

#include "base/clock.h"
#include "mem/mem.h"
#include "thread/state.h"

#include <stdlib.h>
#include <string.h>

/* ---- receives that the engine posts ------------------------------------------------------------ */

static struct one_fifo *fifo_of(struct onesided *one, enum one_kind kind)
{
    return kind == ONE_CONTROL_IN ? &one->controls : &one->arriving;
}

static void post(struct onesided *one, struct one_request *r)
{
    struct one_fifo *fifo = fifo_of(one, r->kind);
    r->over = r->goes = false;
    r->next_in = NULL;
    if (fifo->head)
        fifo->tail->next_in = r;
    else
        fifo->head = r;
    fifo->tail = r;
    one_submit(r, r->bytes, r->kind == ONE_CONTROL_IN ? CONTROL_BYTES_MAX : NOTE_HEADER_BYTES + UCCL_NOTIFY_MAX, NULL,
               NULL);
}

void serve_called(struct onesided *one, enum annex annex)
{
    enum one_kind kind = annex == ANNEX_CONTROL ? ONE_CONTROL_IN : ONE_NOTE_IN;
    unsigned count = annex == ANNEX_CONTROL ? CONTROL_POSTED : NOTES_POSTED;
    size_t bytes = annex == ANNEX_CONTROL ? CONTROL_BYTES_MAX : NOTE_HEADER_BYTES + UCCL_NOTIFY_MAX;
    if ((annex != ANNEX_CONTROL && annex != ANNEX_NOTES) || one->closed)
        return;
    for (unsigned i = 0; i < count; i++) {
        struct one_request *r = one_take(one, kind);
        if (r)
            r->bytes = malloc(bytes);
        if (r && r->bytes) {
            post(one, r);
            continue;
        }
        if (r)
            one_put(r);
        if (i == 0) /* fewer will do, but none */
            one_break(one, UCCL_ENOMEM);
        return;
    }
}

static struct one_request *pop(struct one_fifo *fifo)
{
    struct one_request *r = fifo->head;
    fifo->head = r->next_in;
    return r;
}

/* The peer has cancelled the message of this receive; or no message comes any more. */
static void pass_over(struct onesided *one, struct one_request *r)
{
    if (r->request.msg.status == UCCL_ECANCELED && !one->status)
        post(one, r);
    else
        one_put(r);
}

static void on_control(struct onesided *one, const struct one_request *r);

/*
 * Handles messages of ANNEX_CONTROL in the order in which they were sent. While many of the peer's operations are under
 * way here, they wait. An honest peer, which has its bytes, may begin more: here an operation also waits for threads
 * that have parts of it, and for acks. None of those under way needs a message that waits.
 */
static void take_controls(struct onesided *one)
{
    struct one_request *r;
    while ((r = one->controls.head) && r->over && one->serving < SERVED_MAX) {
        pop(&one->controls);
        if (r->request.msg.status != UCCL_OK) {
            pass_over(one, r);
            continue;
        }
        on_control(one, r);
        if (one->parting)
            one_put(r);
        else
            post(one, r);
    }
}

void serve_received(struct one_request *r)
{
    r->over = true;
    if (r->kind == ONE_CONTROL_IN)
        take_controls(r->of);
    else
        serve_notes(r->of);
}

/* ---- exports ----------------------------------------------------------------------------------- */

static void leave_all(struct one_request *r)
{
    while (r->pinned)
        export_leave(r->exports[--r->pinned]);
}

/* A message that may use the exports of `count` pieces. NULL: no memory. */
static struct one_request *take_for(struct onesided *one, enum one_kind kind, unsigned count)
{
    struct one_request *r = one_take(one, kind);
    if (r)
        r->exports = count > 1 ? malloc(count * sizeof *r->exports) : &r->only;
    if (!r || r->exports)
        return r;
    one_put(r);
    return NULL;
}

/* Enters the exports of all pieces. False: one is refused. */
static bool enter_all(struct one_request *r, const struct control *control, unsigned right)
{
    for (unsigned i = 0; i < control->count; i++) {
        struct control_piece piece = control_piece(control, i);
        struct exported *exported = export_enter(r->of->exports, &piece.ref, right, piece.offset, piece.length);
        if (exported)
            r->exports[r->pinned++] = exported;
        /* the CPU cannot reach it: such a piece travels alone, and not inside */
        if (!exported ||
            (exported->memory && piece.length && (control->count > 1 || control->flags & CONTROL_INLINE))) {
            COUNT(r->of->thread->counters, accesses_refused, 1);
            leave_all(r);
            return false;
        }
    }
    return true;
}

/* Submits a message to or from the exports that it has entered. False: no memory. */
static bool submit_exported(struct one_request *r, const struct control *control)
{
    const struct exported *first = r->exports[0];
    if (control->count == 1) {
        one_submit(r, first->base + control_piece(control, 0).offset, control->total, first->memory, first->nic_mr);
        return true;
    }
    r->pieces = payload_pieces_new(control->count);
    if (!r->pieces)
        return false;
    uint64_t at = 0;
    for (unsigned i = 0; i < control->count; i++) {
        struct control_piece piece = control_piece(control, i);
        at += piece.length;
        r->pieces->piece[i] = (struct payload_piece){r->exports[i]->base + piece.offset, at};
    }
    one_submit(r, NULL, control->total, NULL, NULL);
    return true;
}

/* ---- writes ------------------------------------------------------------------------------------ */

static void note_status(struct served *served, int32_t status)
{
    if (served->status == UCCL_OK)
        served->status = status;
}

static struct served *slot_of(struct onesided *one, uint64_t id)
{
    return &one->served[id / 2 % OPS_MAX];
}

/* The signal of an operation whose bytes are all there. */
static int32_t apply_signal(struct onesided *one, const struct served *served)
{
    const struct control_tail *signal = &served->signal;
    struct exported *exported =
        export_enter(one->exports, &signal->ref, UCCL_ACCESS_WRITE, signal->offset, sizeof signal->value);
    bool good = exported && !exported->memory && (uintptr_t)(exported->base + signal->offset) % 8 == 0;
    if (good) {
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(exported->base + signal->offset);
        if (served->tail == CONTROL_SET)
            atomic_store(word, signal->value); /* a release: the bytes come first */
        else
            atomic_fetch_add(word, signal->value);
    } else {
        COUNT(one->thread->counters, accesses_refused, 1);
    }
    if (exported)
        export_leave(exported);
    return good ? UCCL_OK : UCCL_EACCESS;
}

/*
 * A DONE is due. After a tail the application here often answers by an operation of its own, with which the DONE can
 * travel, so it waits as long as an ack would.
 */
static void owe_done(struct onesided *one, const struct served *served)
{
    bool waits = served->tail && served->status == UCCL_OK;
    if (!waits)
        one->dones_ns = 0;
    else if (one->done_count == 0)
        one->dones_ns = clock_now_ns() + one->thread->params->ack_delay_us * NS_PER_US;
    one->dones[one->done_count++] = (struct done){served->id, served->status};
    one_be_due(one);
}

/* Ends an operation once all of its bytes are there. */
static void try_finish(struct onesided *one, struct served *served)
{
    if (!served->last || served->pending || served->finished)
        return;
    if (served->status == UCCL_OK && served->tail & (CONTROL_SET | CONTROL_ADD))
        note_status(served, apply_signal(one, served));
    served->finished = true;
    served->used = served->tail == CONTROL_NOTE;
    if (one->done_count == CONTROL_DONES_MAX)
        one_send_dones(one);
    owe_done(one, served);
}

static void judge_waiting(struct onesided *one);

/* The operation of a WRITE. NULL: the peer breaks the protocol. */
static struct served *find_served(struct onesided *one, const struct control *control)
{
    if (!one->served)
        one->served = calloc(OPS_MAX, sizeof *one->served);
    if (!one->dones)
        one->dones = malloc(CONTROL_DONES_MAX * sizeof *one->dones);
    if (!one->served || !one->dones) {
        one_break(one, UCCL_ENOMEM);
        return NULL;
    }
    struct served *served = slot_of(one, control->id);
    if (!(control->flags & CONTROL_FIRST))
        return served->used && !served->last && served->id == control->id ? served : NULL;
    if (control->id <= served->id || (served->used && !served->finished))
        return NULL;
    if (served->used)
        judge_waiting(one);
    *served = (struct served){.id = control->id, .used = true};
    return served;
}

static void copy_inside(const struct one_request *r, const struct control *control)
{
    const uint8_t *from = control->payload;
    for (unsigned i = 0; i < control->count; i++) {
        struct control_piece piece = control_piece(control, i);
        if (piece.length)
            memcpy(r->exports[i]->base + piece.offset, from, piece.length);
        from += piece.length;
    }
}

/* The payload of a WRITE, which is inside or the next message of ANNEX_WRITES. False: no memory. */
static bool take_payload(struct onesided *one, struct served *served, const struct control *control)
{
    struct one_request *r = take_for(one, ONE_WRITE_IN, control->count);
    if (!r)
        return false;
    bool allowed = enter_all(r, control, UCCL_ACCESS_WRITE);
    if (!allowed)
        note_status(served, UCCL_EACCESS);
    if (control->flags & CONTROL_INLINE || control->total == 0) {
        if (allowed && control->flags & CONTROL_INLINE)
            copy_inside(r, control);
        leave_all(r);
        one_put(r);
        return true;
    }
    r->served = served;
    r->ahead = true;
    served->pending++;
    one->serving++;
    if (!allowed) { /* too short for it: so it ends on both sides */
        one_submit(r, NULL, 0, NULL, NULL);
        return true;
    }
    if (submit_exported(r, control))
        return true;
    served->pending--;
    one->serving--;
    leave_all(r);
    one_put(r);
    return false;
}

static bool on_write(struct onesided *one, const struct control *control)
{
    struct served *served = find_served(one, control);
    if (!served)
        return false;
    if (!take_payload(one, served, control)) {
        one_break(one, UCCL_ENOMEM);
        return true;
    }
    if (control->flags & CONTROL_LAST) {
        served->last = true;
        served->tail = control->flags & (CONTROL_SET | CONTROL_ADD | CONTROL_NOTE);
        served->signal = control->tail;
        if (control->flags & CONTROL_CANCELLED)
            note_status(served, UCCL_ECANCELED);
    }
    try_finish(one, served);
    serve_notes(one);
    return true;
}

/* ---- reads ------------------------------------------------------------------------------------- */

static bool on_read(struct onesided *one, const struct control *control)
{
    if (control->total == 0)
        return true;
    struct one_request *r = take_for(one, ONE_READ_OUT, control->count);
    if (!r) {
        one_break(one, UCCL_ENOMEM);
        return true;
    }
    one->serving++;
    if (!enter_all(r, control, UCCL_ACCESS_READ)) {
        one_submit(r, NULL, 0, NULL, NULL);
    } else if (!submit_exported(r, control)) {
        one->serving--;
        leave_all(r);
        one_put(r);
        one_break(one, UCCL_ENOMEM);
    }
    return true;
}

/* ---- all --------------------------------------------------------------------------------------- */

static void on_control(struct onesided *one, const struct one_request *r)
{
    struct control control;
    bool good = control_parse(r->bytes, r->request.msg.moved_bytes, &control);
    if (good && control.kind == CONTROL_DONE)
        ops_on_done(one, &control);
    else if (good && !one->status)
        good = control.kind == CONTROL_WRITE ? on_write(one, &control) : on_read(one, &control);
    if (good)
        return;
    /* what follows has no meaning any more */
    COUNT(one->thread->counters, rx_malformed, 1);
    one_break(one, UCCL_EPROTO);
}

/* What the initiator of a write is told of a message that has not brought all bytes. */
static int32_t why_not_whole(const struct one_request *r)
{
    int32_t status = r->request.msg.status;
    if (r->revoked)
        return UCCL_EACCESS;
    if (status == UCCL_ENOMEM)
        return UCCL_EPEERNOMEM; /* ours */
    return status == UCCL_ECANCELED || status == UCCL_EIO ? status : UCCL_EACCESS;
}

/* Whether a message has ended with its connection, not by itself. Of memory of a device its copies may have failed. */
static bool ended_with_connection(const struct one_request *r)
{
    int32_t status = r->request.msg.status;
    bool copies = r->request.staged.memory && (status == UCCL_EIO || status == UCCL_ENOMEM);
    if (status == UCCL_OK || status == UCCL_ECANCELED || status == UCCL_ETRUNCATED)
        return false;
    return !copies || r->of->status || core_conn_has_failed(r->request.msg.conn);
}

void serve_ended(struct one_request *r)
{
    struct onesided *one = r->of;
    const struct core_msg *msg = &r->request.msg;
    struct served *served = r->served;
    bool whole = msg->status == UCCL_OK && msg->moved_bytes == msg->size_bytes && r->pinned;
    leave_all(r);
    one->thread->ended_some = true; /* a revocation may wait for it */
    one->serving--;
    if (r->kind == ONE_WRITE_IN) {
        served->pending--;
        served->lost = served->lost || ended_with_connection(r);
        if (!whole)
            note_status(served, why_not_whole(r));
        try_finish(one, served);
    }
    one_put(r);
    take_controls(one);
    serve_notes(one);
}

/* ---- notifications ----------------------------------------------------------------------------- */

/* LOST: with its connection, so none behind it may be told: notifications come in order, without a gap. */
enum verdict { NOTE_GOES, NOTE_WAITS, NOTE_DROPPED, NOTE_LOST };

/* What becomes of a notification that has arrived. */
static enum verdict judge_note(struct onesided *one, const struct one_request *r)
{
    bool waits;
    uint64_t id;
    if (!note_parse(r->bytes, r->request.msg.moved_bytes, &waits, &id)) {
        COUNT(one->thread->counters, rx_malformed, 1);
        return NOTE_DROPPED;
    }
    if (!waits)
        return NOTE_GOES;
    struct served *served = one->served ? slot_of(one, id) : NULL;
    if (!served || served->id < id)
        return one->status ? NOTE_LOST : NOTE_WAITS; /* its WRITE has not come yet */
    if (served->id > id || !served->used || (served->last && served->tail != CONTROL_NOTE))
        return NOTE_DROPPED;
    if (!served->finished)
        return one->status && !served->pending ? NOTE_LOST : NOTE_WAITS;
    served->used = false;
    return served->status == UCCL_OK ? NOTE_GOES : served->lost ? NOTE_LOST : NOTE_DROPPED;
}

/*
 * While the oldest finds no room in the queue, the peer may begin an operation in the slot of one whose notification
 * waits behind: that is judged now, or would be dropped. It has arrived, or the slot were not free at the peer.
 */
static void judge_waiting(struct onesided *one)
{
    for (struct one_request *r = one->arriving.head; r && r->over; r = r->next_in)
        r->goes = r->goes || (r->request.msg.status == UCCL_OK && judge_note(one, r) == NOTE_GOES);
}

/* Puts a notification into the engine's queue. False: not now. */
static bool deliver(struct onesided *one, struct one_request *r)
{
    if (!notes_add(one->notes, one, &one->waiting, r->bytes + NOTE_HEADER_BYTES,
                   r->request.msg.moved_bytes - NOTE_HEADER_BYTES)) {
        if (one->waiting.again)
            one_be_due(one);
        return false;
    }
    COUNT(one->thread->counters, notifications, 1);
    one->thread->ended_some = true;
    return true;
}

void serve_notes(struct onesided *one)
{
    struct one_request *r;
    while ((r = one->arriving.head) && r->over) {
        if (r->request.msg.status != UCCL_OK) {
            one->notes_end = one->notes_end || ended_with_connection(r);
            pop(&one->arriving);
            pass_over(one, r);
            continue;
        }
        if (one->closed || one->notes_end) {
            pop(&one->arriving);
            one_put(r);
            continue;
        }
        if (!r->goes) {
            enum verdict verdict = judge_note(one, r);
            if (verdict == NOTE_WAITS)
                return;
            if (verdict == NOTE_LOST) {
                one->notes_end = true;
                continue;
            }
            r->goes = verdict == NOTE_GOES;
        }
        if (r->goes && !deliver(one, r))
            return;
        pop(&one->arriving);
        post(one, r);
    }
}
