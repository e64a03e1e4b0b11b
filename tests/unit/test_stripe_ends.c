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
