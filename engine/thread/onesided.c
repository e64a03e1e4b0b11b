/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/onesided.h"

#include "base/clock.h"
#include "thread/state.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CONTROL_PIECES_MAX == (int)PAYLOAD_PIECES_MAX, "a WRITE or READ has the pieces of one message");

static const struct annex_setup annexes[ANNEXES] = {
    [ANNEX_CONTROL] = {.msg_window = 512, .eager_bytes = CONTROL_BYTES_MAX, .eager_window_kb = 256},
    [ANNEX_WRITES] = {.msg_window = 512, .ahead_bytes = WRITE_AHEAD_BYTES},
    [ANNEX_READS] = {.msg_window = 512},
    [ANNEX_NOTES] = {.msg_window = 1024, .eager_bytes = UCCL_NOTIFY_MAX + NOTE_HEADER_BYTES, .eager_window_kb = 256},
};

const struct annex_setup *onesided_annex(enum annex annex)
{
    return &annexes[annex];
}

static void ended(struct engine_thread *thread, struct uccl_request *request);

/* ---- set-up ---------------------------------------------------------------------------------- */

struct onesided *onesided_new(struct engine_thread *thread, struct stripe_set *home, void *owner,
                              struct exports *exports, struct notes *notes)
{
    struct onesided *one = calloc(1, sizeof *one);
    if (!one)
        return NULL;
    one->thread = thread;
    one->home = home;
    one->owner = owner;
    one->exports = exports;
    one->notes = notes;
    one->on_ended = ended;
    return one;
}

void onesided_begin(struct onesided *one)
{
    struct engine_thread *thread = one->thread;
    one->next = thread->ones;
    if (one->next)
        one->next->prev = one;
    thread->ones = one;
    core_annex_follow(one->annexes[ANNEX_WRITES], one->annexes[ANNEX_CONTROL]);
}

void onesided_free(struct onesided *one)
{
    if (!one)
        return;
    for (struct one_request *r; (r = one->arriving.head);) { /* they found no room in the queue */
        one->arriving.head = r->next_in;
        free(r->bytes);
        free(r);
    }
    free(one->inflight);
    free(one->served);
    free(one->dones);
    free(one);
}

void onesided_end_thread(struct engine_thread *thread)
{
    while (thread->ones_free) {
        struct one_request *r = thread->ones_free;
        thread->ones_free = r->next;
        free(r);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void be_due_no_more(struct onesided *one)
{
    struct onesided **link = &one->thread->ones_due;
    if (!one->due)
        return;
    while (*link != one)
        link = &(*link)->next_due;
    *link = one->next_due;
    one->due = false;
}

/*
 * What is left once the annexes have ended may wait for copies of a device, which may hang. Then our hold ends before
 * it: the other ends close, and the connection is freed but for this struct (api/close.c). Each such message has a hold
 * of its own.
 */
static void settle(struct onesided *one)
{
    struct engine_thread *thread = one->thread;
    ops_launch(one);
    bool over = !one->live && !one->first, copies = one->live && one->live == one->copied, held = !one->parting;
    if (!one->closed || one->ended < ANNEXES)
        return;
    if (!one->told) { /* what is live may wait for parts, and these for acks that never come */
        one->told = true;
        stripe_home_over(one->home);
    }
    if (!over && !copies)
        return;
    if (over) {
        be_due_no_more(one);
        *(one->prev ? &one->prev->next : &thread->ones) = one->next;
        if (one->next)
            one->next->prev = one->prev;
    }
    one->parting = true;
    if (held)
        stripe_let_go(one->home);
}

static void ended(struct engine_thread *thread, struct uccl_request *request)
{
    struct one_request *r = (struct one_request *)request;
    struct onesided *one = r->of;
    struct stripe_set *home = one->home;
    bool staged = request->staged.memory;
    (void)thread;
    *(r->prev ? &r->prev->next : &one->requests) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    one->live--;
    one->copied -= staged;
    switch ((enum one_kind)r->kind) {
    case ONE_DONES_OUT:
        one->dones_out--;
        one_put(r);
        break;
    case ONE_CONTROL_OUT:
        one->controls_out--;
        one_put(r);
        break;
    case ONE_CONTROL_IN:
    case ONE_NOTE_IN:
        serve_received(r);
        break;
    case ONE_WRITE_IN:
    case ONE_READ_OUT:
        serve_ended(r);
        break;
    case ONE_WRITE_OUT:
    case ONE_READ_IN:
    case ONE_NOTE_OUT:
        ops_part_ended(r);
        break;
    }
    settle(one);
    if (staged) { /* the last hold, perhaps */
        atomic_fetch_sub(&home->staged, 1);
        stripe_let_go(home);
    }
}

void onesided_event(struct onesided *one, enum annex annex, enum core_event_kind kind, int32_t status)
{
    if (kind == CORE_EVENT_CONN_CALLED)
        serve_called(one, annex);
    else if (kind == CORE_EVENT_CONN_FAILED && status == UCCL_EPEERDEAD)
        one_break(one, status); /* perhaps only a flow of parts is dead, and the peer waits on the other annexes */
    else if (kind == CORE_EVENT_CONN_FAILED && (annex == ANNEX_CONTROL || status != UCCL_ECLOSED))
        one_fail(one, status); /* what lives on of the other annexes may bring notifications yet */
    else if (kind == CORE_EVENT_CONN_FAILED)
        ; /* a peer that closes them all: its last DONEs come before the control annex fails */
    else
        one->ended++;
    settle(one);
}

void onesided_peer_dead(struct onesided *one)
{
    one_break(one, UCCL_EPEERDEAD);
    settle(one);
}

void onesided_close(struct onesided *one, uint64_t linger_ns, uint64_t now_ns)
{
    if (one->ended == ANNEXES)
        return;
    one_send_dones(one); /* of what the peer's application may have seen already */
    one->closed = true;
    one_fail(one, UCCL_ECANCELED);
    for (unsigned i = 0; i < ANNEXES; i++)
        core_conn_close(one->thread->core, one->annexes[i], linger_ns, now_ns);
    settle(one);
}

void onesided_flush(struct engine_thread *thread, bool all)
{
    struct onesided *one;
    struct onesided *due = thread->ones_due;
    thread->ones_due = NULL;
    while ((one = due)) {
        due = one->next_due;
        one->due = false;
        if (all || !one->dones_ns || one->dones_ns <= clock_now_ns())
            one_send_dones(one);
        else
            one_be_due(one);
        serve_notes(one);
        settle(one); /* it may have broken */
    }
}

void onesided_resume(struct engine_thread *thread, struct onesided *one)
{
    (void)thread;
    struct stripe_set *home = one->home;
    serve_notes(one);
    stripe_let_go(home);
}

void onesided_revoke(struct engine_thread *thread, const struct exported *exported)
{
    uint64_t now_ns = clock_now_ns();
    for (struct onesided *one = thread->ones, *next_one; one; one = next_one) {
        next_one = one->next;
        for (struct one_request *r = one->requests, *next; r; r = next) {
            next = r->next;
            for (unsigned i = 0; i < r->pinned; i++)
                r->revoked |= r->exports[i] == exported;
            if (r->revoked)
                stripe_end_early(thread, &r->request, now_ns);
        }
    }
}

void onesided_submit(struct engine_thread *thread, struct op *op)
{
    struct onesided *one = op->of;
    (void)thread;
    ops_submit(one, op);
    settle(one);
}

void onesided_cancel(struct engine_thread *thread, struct op *op)
{
    struct onesided *one = op->of;
    (void)thread;
    ops_cancel(one, op);
    settle(one);
}
