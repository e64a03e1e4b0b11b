/* SPDX-License-Identifier: Apache-2.0 */
/* When the parts of a send end with it: a peer that has the message may leave their chunks without acks. */
#include "thread/onesided.h"
#include "thread/state.h"

#include "duo.h"

enum { RING = 64 };
static struct params params;
static struct engine_thread home = {.params = &params}, other = {.params = &params};
static struct uccl_request request, part;
static struct stripe_set stripes;

/* A send over two flows, which the home thread has finished with (`over`) or not. */
static void open_send(bool over)
{
    duo_open();
    home.core = duo_core[0];
    cr_assert_eq(ring_init(&other.ring, RING), 0);
    stripes = (struct stripe_set){.count = 2, .at = {{.thread = &home}, {.thread = &other}}};
    request = (struct uccl_request){.msg = {.kind = CORE_SEND, .state = over ? MSG_ENDED : MSG_SENT},
                                    .thread = &home,
                                    .stripes = &stripes,
                                    .parts = &part,
                                    .unfinished = over ? 1 : 2,
                                    .home_over = over};
    part = (struct uccl_request){
        .msg = {.kind = CORE_SEND, .state = MSG_SENT}, .thread = &other, .parent = &request, .state = REQUEST_PENDING};
}

/* The command to the other thread, if there is one. */
static bool is_told(void)
{
    struct ring_entry entry;
    if (!ring_pop(&other.ring, &entry))
        return false;
    cr_assert_eq(entry.object, &part);
    cr_assert_eq(entry.what & COMMAND_MASK, COMMAND_END_PART);
    cr_assert_not(ring_pop(&other.ring, &entry), "once");
    return true;
}

Test(stripe_ends, parts_of_what_is_sent_wait_for_their_acks)
{
    open_send(false);
    request.msg.state = MSG_ENDED;
    stripe_ended(&home, &request);
    cr_assert(!is_told() && request.unfinished == 1);
    ring_free(&other.ring);
}

Test(stripe_ends, not_those_of_what_is_ended_early)
{
    for (unsigned after = 0; after < 2; after++) {
        open_send(after);
        if (!after) { /* the core ends it as delivered */
            request.msg.state = MSG_ENDED;
            stripe_end_early(&home, &request, duo_now);
            cr_assert_not(is_told(), "its own event comes first");
            stripe_ended(&home, &request);
        } else {
            stripe_end_early(&home, &request, duo_now);
        }
        cr_assert(is_told());
        cr_assert_eq(request.unfinished, 1, "the part is to come");
        ring_free(&other.ring);
    }
}

/* Its home has finished with the answer to a read, whose memory is no longer exported. */
Test(stripe_ends, those_of_what_is_revoked_too)
{
    struct exported exported = {.users = 1}, another = {.users = 0};
    struct onesided one = {.thread = &home};
    struct one_request *r = aligned_alloc(REQUEST_ALIGNMENT, (sizeof *r + 63) / 64 * 64);
    open_send(true);
    *r = (struct one_request){.request = request, .of = &one, .kind = ONE_READ_OUT, .pinned = 1, .only = &exported};
    r->exports = &r->only;
    part.parent = &r->request;
    one.requests = r;
    home.ones = &one;
    onesided_revoke(&home, &another);
    cr_assert_not(is_told());
    onesided_revoke(&home, &exported);
    cr_assert(is_told() && r->revoked && r->request.unfinished == 1);
    ring_free(&other.ring);
    free(r);
}

/* The flow of a part dies while the connection is opened: before the home end is, or after. */
Test(stripe_ends, an_end_that_fails_early_fails_the_connection)
{
    static _Atomic uint32_t armed;
    for (unsigned open = 0; open < 2; open++) {
        duo_open();
        home.core = duo_core[0];
        home.event_armed = &armed;
        stripes = (struct stripe_set){.count = 2, .holds = 2, .at = {{.thread = &home}, {.thread = &other}}};
        struct conn **conn = &stripes.at[0].conns[CLASS_MESSAGES];
        *conn = open ? duo_conn[0][0] : NULL;
        if (open)
            stripe_home_open(&home, &stripes, duo_now);
        cr_assert_not(core_conn_has_failed(duo_conn[0][0]));
        stripe_fail(&home, &stripes, UCCL_EPEERDEAD, duo_now);
        cr_assert_eq(core_conn_has_failed(duo_conn[0][0]), open);
        cr_assert_eq(stripes.holds, 1);
        *conn = duo_conn[0][0];
        stripe_home_open(&home, &stripes, duo_now);
        cr_assert(core_conn_has_failed(duo_conn[0][0]));
    }
}

/* Several of its connections may fail: home hears of it once. */
Test(stripe_ends, home_is_told_once)
{
    struct ring_entry entry;
    cr_assert_eq(ring_init(&home.ring, RING), 0);
    stripes = (struct stripe_set){.count = 2, .holds = 2, .at = {{.thread = &home}, {.thread = &other}}};
    stripe_end_failed(&stripes, 1, UCCL_EPEERDEAD);
    stripe_end_failed(&stripes, 1, UCCL_EPEERDEAD);
    cr_assert_eq(stripes.holds, 3);
    cr_assert(ring_pop(&home.ring, &entry));
    cr_assert_eq(entry.object, &stripes);
    cr_assert_eq(entry.what & COMMAND_MASK, COMMAND_FAIL);
    cr_assert_eq((int32_t)(entry.what >> 32), UCCL_EPEERDEAD);
    cr_assert_not(ring_pop(&home.ring, &entry));
    ring_free(&home.ring);
}
