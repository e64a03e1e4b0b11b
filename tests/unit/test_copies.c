/* SPDX-License-Identifier: Apache-2.0 */
/* Copies on the streams of a device (mem/copies.c), on a runtime that does and refuses what the test says. */
#include "mem/copies.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 3, SLOTS = 8, NOT_READY = 600, REFUSED = 719, OBJECTS = 64 };

/* A stream or an event. An event has the number of the copy that it is behind. */
struct object {
    bool alive;
    unsigned copies, copy;
};

static struct {
    struct object objects[OBJECTS];
    unsigned made, alive, refuse_made;                /* the number of what cannot be made; 0: all can */
    unsigned inside;                                  /* enter() without its leave() */
    int enter_error, copy_error, record_error, query; /* what the calls return */
    unsigned ended;                                   /* copies so far that have ended */
    unsigned queued;
    enum mem_direction direction[OBJECTS * 16]; /* of each copy */
    struct object *stream[OBJECTS * 16];
} runtime;

static struct mem_stage *stage;
static int cookies[OBJECTS * 16];

static const char *error_text(int error)
{
    return error == REFUSED ? "refused" : "another error";
}

static int enter(struct mem_stage *of)
{
    cr_assert_eq(of, stage);
    runtime.inside += runtime.enter_error == 0;
    return runtime.enter_error;
}

static void leave(void)
{
    cr_assert_eq(runtime.inside--, 1);
}

static int make(void **out, unsigned flags)
{
    cr_assert_eq(runtime.inside, 1);
    cr_assert_lt(runtime.made, OBJECTS);
    if (++runtime.made == runtime.refuse_made || flags != 1)
        return REFUSED;
    struct object *object = &runtime.objects[runtime.made - 1];
    *object = (struct object){.alive = true};
    runtime.alive++;
    *out = object;
    return 0;
}

static int destroy(void *object)
{
    cr_assert_eq(runtime.inside, 1);
    cr_assert(((struct object *)object)->alive);
    ((struct object *)object)->alive = false;
    runtime.alive--;
    return 0;
}

static int queue_copy(enum mem_direction direction, struct object *stream)
{
    cr_assert_eq(runtime.inside, 1);
    if (runtime.copy_error)
        return runtime.copy_error;
    stream->copies++;
    runtime.direction[runtime.queued] = direction;
    runtime.stream[runtime.queued++] = stream;
    return 0;
}

static int from_device(void *to, uintptr_t from, size_t length, void *stream)
{
    cr_assert(to && from == 4096 && length == 10);
    return queue_copy(MEM_FROM_DEVICE, stream);
}

static int to_device(uintptr_t to, const void *from, size_t length, void *stream)
{
    cr_assert(from && to == 4096 && length == 10);
    return queue_copy(MEM_TO_DEVICE, stream);
}

static int record(void *event, void *stream)
{
    cr_assert_eq(runtime.inside, 1);
    if (runtime.record_error)
        return runtime.record_error;
    cr_assert_eq(runtime.stream[runtime.queued - 1], stream);
    ((struct object *)event)->copy = runtime.queued;
    return 0;
}

static int query(void *event)
{
    return ((struct object *)event)->copy > runtime.ended ? NOT_READY : runtime.query;
}

static int copy(enum mem_direction direction)
{
    static uint8_t host[16];
    int error = mem_copies_copy(stage, direction, 4096, host, 10, &cookies[runtime.queued]);
    cr_assert_eq(runtime.inside, 0);
    return error;
}

/* Looks often enough that the runtime is asked. */
static int poll_once(void **cookie)
{
    int result = 0;
    for (unsigned looks = 0; looks < 100000 && result == 0; looks++)
        result = mem_copies_poll(stage, cookie);
    return result;
}

static int open_stage(unsigned refuse_made)
{
    const struct mem_calls calls = {.name = "TEST",
                                    .not_ready = NOT_READY,
                                    .stream_flags = 1,
                                    .event_flags = 1,
                                    .error_text = error_text,
                                    .enter = enter,
                                    .leave = leave,
                                    .from_device = from_device,
                                    .to_device = to_device,
                                    .stream_create = make,
                                    .stream_destroy = destroy,
                                    .event_create = make,
                                    .event_destroy = destroy,
                                    .event_record = record,
                                    .event_query = query};
    memset(&runtime, 0, sizeof runtime);
    runtime.refuse_made = refuse_made;
    stage = mem_copies_make(&calls, 0, STREAMS, SLOTS);
    cr_assert_not_null(stage);
    return mem_copies_open(stage);
}

static void close_stage(void)
{
    mem_copies_close(stage);
    cr_assert_eq(runtime.alive, 0);
    cr_assert_eq(runtime.inside, 0);
}

static void log_nothing(void *user, enum uccl_log_level level, const char *text)
{
    (void)user, (void)level, (void)text;
}

static void set_up(void)
{
    uccl_set_log(log_nothing, NULL);
}

TestSuite(copies, .init = set_up, .timeout = 30);

/* Copies of a direction share no stream with the other one, and use all of theirs alike. */
Test(copies, streams_take_turns)
{
    void *cookie;
    cr_assert_eq(open_stage(0), 0);
    for (unsigned i = 0; i < 4 * STREAMS; i++) {
        cr_assert_eq(copy(i % 2 ? MEM_TO_DEVICE : MEM_FROM_DEVICE), 0);
        runtime.ended = runtime.queued;
        cr_assert_eq(poll_once(&cookie), 1);
        cr_assert_eq(cookie, &cookies[i]);
    }
    for (unsigned i = 0; i < runtime.queued; i++) {
        cr_assert_eq(runtime.stream[i]->copies, 2);
        for (unsigned k = 0; k < i; k++)
            cr_assert(runtime.direction[i] == runtime.direction[k] || runtime.stream[i] != runtime.stream[k]);
    }
    close_stage();
}

/* As many copies at once as there are slots; each is told once, those of a stream in order. */
Test(copies, slots_come_back)
{
    void *cookie;
    bool told[OBJECTS * 16] = {false};
    cr_assert_eq(open_stage(0), 0);
    for (unsigned round = 0; round < 10; round++) {
        unsigned first = runtime.queued;
        for (unsigned i = 0; i < SLOTS; i++)
            cr_assert_eq(copy(i % 3 ? MEM_TO_DEVICE : MEM_FROM_DEVICE), 0);
        cr_assert_eq(copy(MEM_TO_DEVICE), UCCL_EAGAIN);
        cr_assert_eq(copy(MEM_FROM_DEVICE), UCCL_EAGAIN);
        cr_assert_eq(poll_once(&cookie), 0);
        while (runtime.ended < runtime.queued) {
            runtime.ended++;
            cr_assert_eq(poll_once(&cookie), 1);
            cr_assert_eq(cookie, &cookies[runtime.ended - 1]);
            cr_assert_not(told[runtime.ended - 1]);
            told[runtime.ended - 1] = true;
        }
        cr_assert_eq(poll_once(&cookie), 0);
        cr_assert_eq(runtime.queued - first, SLOTS);
    }
    close_stage();
}

/* In either direction: what the runtime refuses has not begun, and takes no slot. */
Test(copies, what_is_refused_leaves_nothing)
{
    void *cookie;
    cr_assert_eq(open_stage(0), 0);
    for (unsigned i = 0; i < 4 * SLOTS; i++) {
        enum mem_direction direction = i % 2 ? MEM_TO_DEVICE : MEM_FROM_DEVICE;
        *(i / 2 % 2 ? &runtime.enter_error : &runtime.copy_error) = i / 2 % 2 ? UCCL_EIO : REFUSED;
        cr_assert_eq(copy(direction), UCCL_EIO, "direction %d", (int)direction);
        runtime.enter_error = runtime.copy_error = 0;
    }
    cr_assert_eq(poll_once(&cookie), 0);
    for (unsigned i = 0; i < SLOTS; i++)
        cr_assert_eq(copy(MEM_TO_DEVICE), 0);
    runtime.ended = runtime.queued;
    for (unsigned i = 0; i < SLOTS; i++)
        cr_assert_eq(poll_once(&cookie), 1);
    close_stage();
}

/* A copy that fails is told with its cookie; those behind it are asked for. One without an event is given one later. */
Test(copies, failures_are_of_one_copy)
{
    void *cookie;
    cr_assert_eq(open_stage(0), 0);
    for (unsigned i = 0; i < 2; i++) {
        runtime.record_error = i ? REFUSED : 0; /* the second has no event */
        cr_assert_eq(copy(i ? MEM_TO_DEVICE : MEM_FROM_DEVICE), 0);
    }
    cr_assert_eq(poll_once(&cookie), UCCL_EIO, "an event that cannot be recorded twice");
    cr_assert_eq(cookie, &cookies[1]);
    runtime.record_error = 0;
    runtime.query = REFUSED;
    runtime.ended = runtime.queued;
    cr_assert_eq(poll_once(&cookie), UCCL_EIO);
    cr_assert_eq(cookie, &cookies[0]);
    runtime.query = 0;
    runtime.record_error = REFUSED;
    cr_assert_eq(copy(MEM_TO_DEVICE), 0);
    runtime.record_error = 0;
    cr_assert_eq(poll_once(&cookie), 0, "it has an event now, and is under way");
    runtime.ended = runtime.queued;
    cr_assert_eq(poll_once(&cookie), 1);
    close_stage();
}

/* Of a stage that cannot be made whole nothing is left. */
Test(copies, half_a_stage_is_none)
{
    for (unsigned i = 1; i <= 2 * STREAMS + SLOTS; i++) {
        cr_assert_eq(open_stage(i), UCCL_EIO);
        close_stage();
    }
    cr_assert_eq(open_stage(0), 0);
    cr_assert_eq(runtime.alive, 2 * STREAMS + SLOTS);
    close_stage();
}
