/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides are told of a write that has failed at its target (engine/thread/onesided_serve.c). */
#include "thread/onesided.h"
#include "thread/state.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static struct params params;
static struct engine_thread thread = {.params = &params};

static struct one_request *new_request(struct onesided *one, enum one_kind kind)
{
    struct one_request *r = aligned_alloc(REQUEST_ALIGNMENT, (sizeof *r + 63) / 64 * 64);
    *r = (struct one_request){.of = one, .kind = (uint8_t)kind, .pinned = 1};
    r->exports = &r->only;
    return r;
}

/* The DONE of a write whose message has ended so, with `moved` of 100 bytes. */
static int32_t done_of(int32_t status, uint64_t moved, bool revoked)
{
    struct exported exported = {.users = 1};
    struct served served = {.id = 2, .used = true, .last = true, .pending = 1};
    struct done dones[CONTROL_DONES_MAX];
    struct onesided one = {.thread = &thread, .dones = dones, .serving = 1};
    struct one_request *r = new_request(&one, ONE_WRITE_IN);
    r->served = &served;
    r->revoked = revoked;
    r->only = &exported;
    r->request.msg = (struct core_msg){.kind = CORE_RECV, .status = status, .moved_bytes = moved, .size_bytes = 100};
    serve_ended(r);
    cr_assert(exported.users == 0 && one.serving == 0 && served.finished && one.done_count == 1);
    thread.ones_due = NULL;
    return dones[0].status;
}

Test(onesided_serve, the_initiator_learns_why)
{
    cr_assert_eq(done_of(UCCL_OK, 100, false), UCCL_OK);
    cr_assert_eq(done_of(UCCL_OK, 99, false), UCCL_EACCESS);
    cr_assert_eq(done_of(UCCL_ENOMEM, 0, false), UCCL_EPEERNOMEM);
    cr_assert_eq(done_of(UCCL_EIO, 0, false), UCCL_EIO);
    cr_assert_eq(done_of(UCCL_ECANCELED, 0, false), UCCL_ECANCELED);
    cr_assert_eq(done_of(UCCL_ECANCELED, 0, true), UCCL_EACCESS, "a revocation cancels it");
    cr_assert_eq(done_of(UCCL_ENOMEM, 0, true), UCCL_EACCESS);
    cr_assert_eq(done_of(UCCL_ETRUNCATED, 0, false), UCCL_EACCESS);
}

/* A notification that has arrived, behind the others; `id`: of the operation whose tail it is, 0: of none. */
static void note_arrives(struct onesided *one, uint64_t id)
{
    struct one_request *r = new_request(one, ONE_NOTE_IN), **link = &one->arriving.head;
    r->bytes = malloc(NOTE_HEADER_BYTES + 1);
    *note_put_header(r->bytes, id, id) = 'n';
    r->request.msg = (struct core_msg){.kind = CORE_RECV, .moved_bytes = NOTE_HEADER_BYTES + 1};
    r->over = true;
    while (*link)
        link = &(*link)->next_in;
    *link = one->arriving.tail = r;
}

/* The peer dies while the first of two writes lacks bytes. The second is whole, but its notification would come first.
 */
Test(onesided_serve, nothing_is_told_behind_what_is_lost_with_its_connection)
{
    static struct served served[OPS_MAX];
    static struct counters counters;
    struct exported exported = {.users = 1};
    struct done dones[CONTROL_DONES_MAX];
    struct notes notes;
    struct onesided one = {.thread = &thread, .dones = dones, .serving = 1, .served = served, .notes = &notes};
    thread.counters = &counters;
    notes_init(&notes);
    served[1] = (struct served){.id = 2, .used = true, .last = true, .tail = CONTROL_NOTE, .pending = 1};
    served[2] = (struct served){.id = 4, .used = true, .last = true, .tail = CONTROL_NOTE, .finished = true};
    note_arrives(&one, 2);
    note_arrives(&one, 4);
    note_arrives(&one, 0);
    serve_notes(&one);
    cr_assert_not_null(one.arriving.head, "all wait for the first");
    struct one_request *r = new_request(&one, ONE_WRITE_IN);
    r->served = &served[1];
    r->only = &exported;
    r->request.msg = (struct core_msg){.kind = CORE_RECV, .status = UCCL_EPEERDEAD, .size_bytes = 100};
    serve_ended(r);
    cr_assert_null(one.arriving.head);
    cr_assert_null(notes.head);
    notes_free(&notes);
}
