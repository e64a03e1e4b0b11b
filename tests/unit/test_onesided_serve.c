/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides are told of a write that has failed at its target (engine/thread/onesided_serve.c). */
#include "mem/mem.h"
#include "thread/onesided.h"
#include "thread/state.h"

#include "duo.h"

static struct params params;
static struct counters counters;
static struct engine_thread thread = {.params = &params, .counters = &counters};

/* A request for more memory than there is fails under AddressSanitizer as elsewhere. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

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

/*
 * Of two writes the first lacks bytes and ends with `status`, the second is whole, but its notification would come
 * first. How many of three notifications are told, of which the third is of no write.
 */
static unsigned told_behind(int32_t status, bool staged, bool failed)
{
    static struct served served[OPS_MAX];
    static const struct mem_identity memory;
    struct exported exported = {.users = 1};
    struct done dones[CONTROL_DONES_MAX];
    struct notes notes;
    struct onesided one = {.thread = &thread, .dones = dones, .serving = 1, .served = served, .notes = &notes};
    unsigned told = 0;
    duo_defaults();
    duo_open();
    thread.core = duo_core[0];
    one.annexes[ANNEX_NOTES] = duo_conn[0][0];
    one.annexes[ANNEX_WRITES] = duo_conn[0][1];
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
    r->request.staged.memory = staged ? &memory : NULL;
    r->request.msg =
        (struct core_msg){.conn = one.annexes[ANNEX_WRITES], .kind = CORE_RECV, .status = status, .size_bytes = 100};
    if (failed)
        core_conn_fail(thread.core, r->request.msg.conn, status, duo_now);
    serve_ended(r);
    for (const struct note *note = notes.head; note; note = note->next)
        told++;
    notes_free(&notes);
    return told;
}

Test(onesided_serve, nothing_is_told_behind_what_is_lost_with_its_connection)
{
    static const int32_t codes[] = {UCCL_EPEERDEAD, UCCL_ECLOSED, UCCL_ETIMEDOUT, UCCL_EPROTO, UCCL_ENOMEM, UCCL_EIO};
    for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        cr_assert_eq(told_behind(codes[i], false, true), 0, "%s", uccl_strerror(codes[i]));
        cr_assert_eq(told_behind(codes[i], true, true), 0, "%s", uccl_strerror(codes[i]));
    }
    cr_assert_eq(told_behind(UCCL_ECLOSED, false, false), 0, "the peer sends nothing more");
}

/* Nor is the notification of a write that was refused, but those behind it are. */
Test(onesided_serve, what_has_failed_by_itself_leaves_a_gap)
{
    static const int32_t codes[] = {UCCL_ECANCELED, UCCL_ETRUNCATED, UCCL_ENOMEM, UCCL_EIO};
    for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++)
        cr_assert_eq(told_behind(codes[i], true, false), 2, "%s", uccl_strerror(codes[i]));
}

/* There is no memory for a notification, and none waits: nobody takes one, and says that there is room again. */
Test(onesided_serve, a_notification_waits_for_memory)
{
    struct notes notes;
    struct onesided one = {.thread = &thread, .closed = true, .notes = &notes};
    notes_init(&notes);
    note_arrives(&one, 0);
    struct one_request *r = one.arriving.head;
    uint64_t length = r->request.msg.moved_bytes;
    r->goes = true;
    r->request.msg.moved_bytes = UINT64_MAX / 4; /* more memory than there is */
    one.closed = false;
    serve_notes(&one);
    cr_assert(!notes.head && one.arriving.head == r && thread.ones_due == &one);
    onesided_flush(&thread, true);
    cr_assert(!notes.head && thread.ones_due == &one, "as often as need be");
    r->request.msg.moved_bytes = length;
    one.annexes[ANNEX_NOTES] = (duo_defaults(), duo_open(), duo_conn[0][0]);
    thread.core = duo_core[0];
    onesided_flush(&thread, true);
    cr_assert(notes.head && !thread.ones_due && !one.arriving.head->over);
    notes_free(&notes);
}

/* Write `number` of a peer, of no bytes. */
static void write_arrives(struct onesided *one, uint64_t number)
{
    struct one_request *r = new_request(one, ONE_CONTROL_IN);
    r->bytes = malloc(CONTROL_BYTES_MAX);
    uint8_t *end = control_put_header(
        r->bytes, &(struct control){
                      .kind = CONTROL_WRITE, .flags = CONTROL_FIRST | CONTROL_LAST | CONTROL_INLINE, .id = 2 * number});
    r->request.msg = (struct core_msg){.kind = CORE_RECV, .moved_bytes = (uint64_t)(end - r->bytes)};
    r->pinned = 0;
    one->controls.head = one->controls.tail = r;
    serve_received(r);
    one->controls.head = NULL; /* posted again */
}

/* Answers that the peer does not take wait here, but not any number of them. */
Test(onesided_serve, a_peer_that_takes_no_answers_is_given_up)
{
    enum { WRITES = 3 * DONES_OUT_MAX };
    struct onesided one = {.thread = &thread};
    duo_defaults();
    duo_open();
    thread.core = duo_core[0];
    for (unsigned i = 0; i < ANNEXES; i++)
        one.annexes[i] = duo_conn[0][i];
    for (unsigned i = 1; i <= WRITES; i++) {
        write_arrives(&one, i);
        onesided_flush(&thread, true);
        cr_assert(one.dones_out == (i < DONES_OUT_MAX ? i : DONES_OUT_MAX) && (one.status != 0) == (i > DONES_OUT_MAX));
    }
    cr_assert_eq(one.status, UCCL_EPROTO);
}

/* A notification that is lost itself, as memory is short, and one behind it that has come. */
Test(onesided_serve, nothing_is_told_behind_a_notification_that_is_lost)
{
    struct notes notes;
    struct onesided one = {.thread = &thread, .status = UCCL_ENOMEM, .notes = &notes};
    notes_init(&notes);
    note_arrives(&one, 0);
    note_arrives(&one, 0);
    one.arriving.head->request.msg.status = UCCL_ENOMEM;
    serve_notes(&one);
    cr_assert_null(one.arriving.head);
    cr_assert_null(notes.head);
    notes_free(&notes);
}
