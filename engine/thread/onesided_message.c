/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of annexes: made, submitted and freed. */
#include "base/clock.h"
#include "nic/nic.h"
#include "thread/onesided.h"
#include "thread/state.h"

#include <stdlib.h>
#include <string.h>

static const enum annex annex_of[] = {
    [ONE_CONTROL_OUT] = ANNEX_CONTROL, [ONE_DONES_OUT] = ANNEX_CONTROL, [ONE_CONTROL_IN] = ANNEX_CONTROL,
    [ONE_WRITE_OUT] = ANNEX_WRITES,    [ONE_WRITE_IN] = ANNEX_WRITES,   [ONE_READ_OUT] = ANNEX_READS,
    [ONE_READ_IN] = ANNEX_READS,       [ONE_NOTE_OUT] = ANNEX_NOTES,    [ONE_NOTE_IN] = ANNEX_NOTES,
};

/* Messages of the other annexes have no parts: they are sent at once. */
static const enum stripe_class class_of[ANNEXES] = {[ANNEX_WRITES] = CLASS_WRITES, [ANNEX_READS] = CLASS_READS};

static bool is_receive(enum one_kind kind)
{
    return kind == ONE_CONTROL_IN || kind == ONE_WRITE_IN || kind == ONE_READ_IN || kind == ONE_NOTE_IN;
}

struct one_request *one_take(struct onesided *one, enum one_kind kind)
{
    struct engine_thread *thread = one->thread;
    struct one_request *r = thread->ones_free;
    if (r) {
        thread->ones_free = r->next;
    } else {
        size_t size = (sizeof *r + REQUEST_ALIGNMENT - 1) & ~(size_t)(REQUEST_ALIGNMENT - 1);
        r = aligned_alloc(REQUEST_ALIGNMENT, size);
        if (!r)
            return NULL;
        memset(r, 0, sizeof *r);
    }
    r->of = one;
    r->kind = (uint8_t)kind;
    r->over = r->revoked = r->ahead = false;
    r->op = NULL;
    r->served = NULL;
    r->bytes = NULL;
    r->pieces = NULL;
    r->pinned = 0;
    return r;
}

void one_put(struct one_request *r)
{
    struct engine_thread *thread = r->of->thread;
    free(r->bytes);
    free(r->pieces);
    if (r->exports != &r->only)
        free(r->exports);
    r->exports = NULL;
    atomic_fetch_add_explicit(&r->request.generation, 1, memory_order_relaxed); /* late commands are about this use */
    r->next = thread->ones_free;
    thread->ones_free = r;
}

void one_submit(struct one_request *r, uint8_t *buffer, uint64_t bytes, const struct mem_identity *memory,
                const struct nic_mr *nic_mr)
{
    struct onesided *one = r->of;
    struct engine_thread *thread = one->thread;
    struct uccl_request *request = &r->request;
    enum annex annex = annex_of[r->kind];
    r->prev = NULL;
    r->next = one->requests;
    if (r->next)
        r->next->prev = r;
    one->requests = r;
    one->live++;
    request->buffer = buffer;
    request->pieces = r->pieces;
    request->exported = r->kind == ONE_WRITE_IN;
    request->class = (uint8_t)class_of[annex];
    request->stripes = request->class == CLASS_MESSAGES ? NULL : one->home;
    request->parts = NULL;
    request->let_go = false;
    request->to_home = (struct notice){0};
    request->service = one->on_ended;
    request->staged.memory = bytes ? memory : NULL;
    request->msg = (struct core_msg){
        .conn = one->annexes[annex],
        .kind = is_receive(r->kind) ? CORE_RECV : CORE_SEND,
        .size_bytes = bytes,
        .ahead = r->ahead && !memory,
        .grant_address = (uintptr_t)buffer,
    };
    payload_reach(request, bytes && !r->pieces ? nic_mr : NULL, &one->pairs);
    atomic_store_explicit(&request->thread, thread, memory_order_relaxed);
    atomic_store_explicit(&request->unfinished, 1, memory_order_relaxed);
    atomic_store_explicit(&request->part_status, UCCL_OK, memory_order_relaxed);
    atomic_store_explicit(&request->home_over, false, memory_order_relaxed);
    atomic_store_explicit(&request->state, REQUEST_PENDING, memory_order_relaxed);
    if (request->staged.memory) {
        atomic_fetch_add(&thread->staged, 1); /* a borrower gives the engine back */
        atomic_fetch_add(&one->home->holds, 1);
        atomic_fetch_add(&one->home->staged, 1);
        one->copied++;
    }
    if (request->stripes)
        stripe_submit(thread, request, clock_now_ns());
    else
        core_submit(thread->core, request->msg.conn, &request->msg, clock_now_ns());
    payload_copies(thread->core);
}

bool one_send_control(struct onesided *one, enum one_kind kind, uint8_t *bytes, size_t length)
{
    struct one_request *r = bytes ? one_take(one, kind) : NULL;
    if (!r) {
        free(bytes);
        one_break(one, UCCL_ENOMEM);
        return false;
    }
    r->bytes = bytes;
    one_submit(r, bytes, length, NULL, NULL);
    return true;
}

void one_send_dones(struct onesided *one)
{
    unsigned count = one->done_count;
    if (count == 0)
        return;
    one->done_count = 0;
    if (one->status)
        return;
    if (one->dones_out == DONES_OUT_MAX) { /* it begins operations, and takes no answers */
        COUNT(one->thread->counters, rx_malformed, 1);
        one_break(one, UCCL_EPROTO);
        return;
    }
    uint8_t *bytes = malloc(CONTROL_HEADER_BYTES + count * CONTROL_DONE_BYTES), *at = bytes;
    if (bytes)
        at = control_put_header(at, &(struct control){.kind = CONTROL_DONE, .count = (uint16_t)count});
    for (unsigned i = 0; bytes && i < count; i++)
        at = control_put_done(at, one->dones[i].id, one->dones[i].status);
    one->dones_out += one_send_control(one, ONE_DONES_OUT, bytes, (size_t)(at - bytes));
}

void one_be_due(struct onesided *one)
{
    if (one->due)
        return;
    one->due = true;
    one->next_due = one->thread->ones_due;
    one->thread->ones_due = one;
}

void one_break(struct onesided *one, int32_t status)
{
    for (unsigned i = 0; i < ANNEXES && !one->parting; i++)
        core_conn_fail(one->thread->core, one->annexes[i], status, clock_now_ns());
    one_fail(one, status);
}
