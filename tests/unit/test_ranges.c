/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of a striped message, step by step: the flows that carry it are the test's, and another one can step in at
 * each RACE_POINT() of stripe.c. test_stripe.c has engines and threads.
 */
#include "base/race_point.h"

static void step_in(void);
#undef RACE_POINT
#define RACE_POINT() step_in()
#include "../../engine/thread/stripe.c"

#include <criterion/criterion.h>

enum { SIZE = 10 * 1000 * 1000, CHUNK = 60000, RANGES_MAX = 1000, PUSHES_MAX = 16, REQUESTS = 16 };

static struct engine_thread home, other;
static struct stripe_set stripes;
static struct request_pool pool;
static struct uccl_request *whole, *part; /* on `home` and on `other` */
static void (*next_step)(void);           /* what steps in next; NULL: nothing */
static struct {
    uint64_t from, to;
} taken[RANGES_MAX];
static unsigned taken_count, wholes, parts_ended;
static struct {
    const struct engine_thread *to;
    const void *object;
    uint32_t command;
} pushed[PUSHES_MAX];
static unsigned push_count;

static void step_in(void)
{
    void (*step)(void) = next_step;
    next_step = NULL;
    if (step)
        step();
}

/* ---- what stripe.c calls ---- */

void __wrap_core_send_range(struct core *core, struct core_msg *msg, uint64_t from, uint64_t to);
void __wrap_core_send_range(struct core *core, struct core_msg *msg, uint64_t from, uint64_t to)
{
    (void)core;
    cr_assert(msg == &whole->msg || msg == &part->msg);
    cr_assert(from <= to && to <= SIZE);
    if (from == to)
        return;
    cr_assert_lt(taken_count, RANGES_MAX);
    taken[taken_count].from = from;
    taken[taken_count++].to = to;
}

void __wrap_core_msg_whole(struct core *core, struct core_msg *msg, uint64_t total, uint64_t now);
void __wrap_core_msg_whole(struct core *core, struct core_msg *msg, uint64_t total, uint64_t now)
{
    (void)core, (void)now;
    cr_assert(msg == &whole->msg && total == SIZE);
    wholes++;
}

void __wrap_core_end_part(struct core *core, struct core_msg *msg, uint64_t now);
void __wrap_core_end_part(struct core *core, struct core_msg *msg, uint64_t now)
{
    (void)core, (void)now;
    cr_assert_eq(msg, &part->msg);
    parts_ended++;
}

bool __wrap_thread_push(struct engine_thread *thread, void *object, uint64_t what);
bool __wrap_thread_push(struct engine_thread *thread, void *object, uint64_t what)
{
    cr_assert_lt(push_count, PUSHES_MAX);
    pushed[push_count].to = thread;
    pushed[push_count].object = object;
    pushed[push_count++].command = (uint32_t)what;
    return true;
}

/* ---- a message of two flows ---- */

static void take_whole(uint8_t kind, uint64_t size, unsigned flows)
{
    static const struct params params;
    cr_assert_eq(request_pool_init(&pool, REQUESTS), UCCL_OK);
    stripe_init(&stripes, flows, &params, false, &(struct stripe_wish){0}, &pool);
    for (unsigned i = 0; i < flows; i++)
        stripes.at[i].thread = i ? &other : &home;
    whole = request_take(&pool);
    whole->pool = &pool;
    whole->stripes = &stripes;
    whole->thread = &home;
    whole->msg = (struct core_msg){.kind = kind, .size_bytes = size, .stripes = (uint8_t)flows};
}

static void setup(uint8_t kind)
{
    take_whole(kind, SIZE, 3);
    whole->msg.stripes = 2;
    whole->unfinished = 2;
    cr_assert(make_part(whole, 1));
    part = whole->parts;
    part->thread = &other;
    part->pool = &pool;
    if (kind == CORE_SEND) {
        whole->msg.end_bytes = 1; /* it has had a range */
        whole->flows = 2;
        whole->parts_made = 1;
    }
}

static void tear_down(void)
{
    request_pool_free(&pool);
}

static void setup_send(void)
{
    setup(CORE_SEND);
}

static void setup_recv(void)
{
    setup(CORE_RECV);
}

static void part_takes(void)
{
    stripe_range(&other, part, CHUNK);
}

/* Whatever another flow takes between the look and the exchange: each byte goes once. */
Test(ranges, each_byte_is_taken_once, .init = setup_send, .fini = tear_down)
{
    uint64_t end = 0;
    for (unsigned i = 0, before = 0; i == 0 || taken_count > before; i++) {
        before = taken_count;
        next_step = i % 3 ? part_takes : NULL;
        stripe_range(&home, whole, CHUNK);
        next_step = NULL;
    }
    cr_assert_gt(taken_count, 10);
    for (unsigned sorted = 0; sorted < taken_count; sorted++) {
        unsigned next = 0;
        while (next < taken_count && taken[next].from != end)
            next++;
        cr_assert_lt(next, taken_count, "nobody, or who overlaps another, has byte %lu", (unsigned long)end);
        end = taken[next].to;
    }
    cr_assert_eq(end, SIZE);
    cr_assert_eq(push_count, 0, "two flows are all that carry it");
}

/* A send has ended early, and the part does not know yet: it gets nothing more. */
Test(ranges, nothing_is_taken_of_what_has_ended, .init = setup_send, .fini = tear_down)
{
    whole->msg.stripes = 3;
    stripe_range(&other, part, CHUNK);
    cr_assert_eq(taken_count, 1);
    whole->msg.status = UCCL_ECANCELED;
    stripe_ended(&home, whole);
    cr_assert(push_count == 1 && pushed[0].to == &other && pushed[0].object == part);
    cr_assert_eq(pushed[0].command, COMMAND_END_PART);
    stripe_range(&other, part, CHUNK);
    cr_assert_eq(taken_count, 1);
}

/* Flows of a receive that say different lengths: the first one counts. */
Test(ranges, a_message_has_one_length, .init = setup_recv, .fini = tear_down)
{
    stripe_arrived(&home, whole, SIZE / 2, SIZE);
    stripe_arrived(&other, part, SIZE / 2 - 1, SIZE - 1);
    stripe_arrived(&home, whole, SIZE / 2 - 2, SIZE + 1);
    cr_assert(whole->total_bytes == SIZE && whole->spread_bytes == SIZE / 2);
    cr_assert(wholes == 0 && push_count == 0);
    stripe_arrived(&other, part, SIZE / 2, SIZE);
    cr_assert(push_count == 1 && pushed[0].to == &home && pushed[0].object == whole);
    cr_assert_eq(pushed[0].command, COMMAND_LOOK);
    cr_assert_eq(parts_ended, 1);
    stripe_look(&home, whole, 0);
    cr_assert_eq(wholes, 1);
}

/* The last of a message's flows to end frees all parts, its own too, which may then be in other use. */
Test(ranges, an_ended_part_is_left_alone, .init = setup_recv, .fini = tear_down)
{
    static _Atomic uint32_t armed;
    home.event_armed = &armed;
    whole->unfinished = 1;
    stripe_ended(&other, part);
    cr_assert_eq(whole->state, REQUEST_ENDED);
    cr_assert_eq(part->state, REQUEST_FREE);
}

/* ---- how a message is shared ---- */

enum { UNIT = CORE_STRIPE_UNIT };
static unsigned of_home; /* ranges that the home flow took as the message began */

/* A send of so many bytes begins, with `sends` under way. Returns how many flows beside the home one begin with it. */
static unsigned begins(uint64_t size, unsigned flows, unsigned sends, uint64_t number)
{
    take_whole(CORE_SEND, size, flows);
    stripes.sends[CLASS_MESSAGES] = sends;
    whole->msg.number = number;
    taken_count = push_count = 0;
    stripe_range(&home, whole, CHUNK);
    cr_assert_leq(taken_count, 1);
    of_home = taken_count;
    unsigned begun = push_count;
    for (unsigned i = 0; i < begun; i++)
        cr_assert(pushed[i].to == &other && pushed[i].command == COMMAND_PART);
    cr_assert_eq(whole->flows, begun + taken_count);
    if (whole->parts)
        part = whole->parts;
    for (unsigned before = taken_count - 1; whole->parts && before != taken_count;) { /* one carries all the rest */
        before = taken_count;
        part_takes();
    }
    tear_down();
    return begun;
}

/* Its ranges are as even as pages allow, and one for each of so many flows. */
static void is_cut_evenly(uint64_t size, unsigned ranges)
{
    uint64_t length = taken[0].to;
    cr_assert_eq(taken_count, ranges, "%u", taken_count);
    cr_assert(length % 4096 == 0 && length < size / ranges + 4096);
    for (unsigned i = 0; i < ranges; i++)
        cr_assert(taken[i].from == i * length && taken[i].to == (i + 1 < ranges ? (i + 1) * length : size));
}

/* A short message that is nearly alone goes over all flows at the same time, in ranges of 32 KiB and more. */
Test(ranges, a_lone_short_message_is_cut_finer)
{
    cr_assert_eq(begins(2 * UNIT, 8, 1, 0), 3);
    is_cut_evenly(2 * UNIT, 4);
    cr_assert_eq(begins(2 * UNIT + 1, 8, 3, 0), 4);
    is_cut_evenly(2 * UNIT + 1, 5);
    cr_assert_eq(begins(16 * UNIT, 8, 1, 0), 7);
    is_cut_evenly(16 * UNIT, 8);
    cr_assert_eq(begins(2 * UNIT, 3, 1, 0), 2);
    is_cut_evenly(2 * UNIT, 3);
    cr_assert_eq(begins(2 * UNIT, 2, 1, 0), 1, "two flows: in chunks");
    cr_assert(taken_count == 2 && taken[0].to == CHUNK);
}

/* Threads that sleep are woken for a chunk each at least. */
Test(ranges, sleeping_threads_are_woken_for_more)
{
    other.owner = THREAD_SLEEPS;
    cr_assert(begins(2 * UNIT, 8, 1, 0) == 1 && taken[0].to == CHUNK);
    cr_assert(begins(8 * UNIT, 8, 1, 0) == 7 && taken[0].to == CHUNK);
    other.owner = THREAD_RUNS;
}

/* A longer one begins on all flows, too, but the faster ones carry more of it. */
Test(ranges, a_longer_message_is_taken_in_chunks)
{
    cr_assert_eq(begins(16 * UNIT + 1, 8, 1, 0), 7);
    cr_assert(taken_count == 17 && taken[0].to == CHUNK && taken[1].to == 2 * CHUNK, "%u", taken_count);
    cr_assert_eq(begins(SIZE, 8, 1, 0), 7);
    cr_assert_gt(taken_count, 100);
}

/* Of a stream no range is finer than a chunk, and as many flows begin as there are ranges. */
Test(ranges, a_stream_is_cut_in_chunks)
{
    cr_assert_eq(begins(2 * UNIT, 8, 4, 0), 2);
    cr_assert(taken_count == 2 && taken[0].to == CHUNK);
    cr_assert(begins(4 * UNIT, 8, 40, 3) == 4 && of_home == 0);
    cr_assert(begins(UNIT, 5, 4, 0) == 1 && of_home == 0);
    cr_assert_eq(begins(9 * UNIT, 8, 4, 0), 7, "more ranges than flows");
    cr_assert_eq(of_home, 1);
    cr_assert(begins(4 * UNIT, 4, 4, 2) == 3 && of_home == 1);
    cr_assert(begins(2 * UNIT, 4, 4, 1) == 1 && of_home == 1, "its turn");
    cr_assert(begins(2 * UNIT, 4, 4, 2) == 2 && of_home == 0, "the others' turn");
}

/* A home flow that would leave a message to others carries it if there are no parts for them. */
Test(ranges, without_parts_nothing_is_left)
{
    for (unsigned units = 1; units <= 4; units += 3) {
        take_whole(CORE_SEND, units * UNIT, 8);
        stripes.sends[CLASS_MESSAGES] = 4;
        while (request_take(&pool))
            ;
        taken_count = push_count = 0;
        stripe_range(&home, whole, CHUNK);
        cr_assert(taken_count == 1 && push_count == 0 && whole->flows == 1);
        whole->msg.end_bytes = taken[0].to;
        while (taken[taken_count - 1].to < units * UNIT)
            stripe_range(&home, whole, CHUNK);
        tear_down();
    }
}

/* What went ahead of the clear-to-send is over: the rest is shared. */
Test(ranges, the_rest_is_shared)
{
    take_whole(CORE_SEND, 4 * UNIT, 8);
    whole->msg.offset_bytes = 3 * UNIT + 1;
    stripe_range(&home, whole, CHUNK);
    cr_assert(taken_count == 1 && taken[0].from == 3 * UNIT + 1 && taken[0].to == 4 * UNIT && push_count == 0);
    tear_down();
}
