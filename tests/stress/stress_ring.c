/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring: many producers and one consumer at a time, whose role passes between threads the
 * way an engine's ownership does, by compare-and-exchange on one word. Every item comes out exactly
 * once and in its producer's order; a full ring refuses and loses nothing; nobody waits for anybody.
 */
#include "stress.h"

#include "base/ring.h"

#include <pthread.h>
#include <string.h>

enum {
    PRODUCERS = 6,
    CONSUMERS = 3,
    ENTRIES = 64, /* few: often full */
    TURN_MAX = 200,
    LIMIT_S = 120,
};

enum { FREE_NOW, TAKEN };

static struct {
    struct ring ring;
    uint64_t items;         /* of each producer */
    _Atomic uint32_t owner; /* FREE_NOW or TAKEN */
    _Atomic uint64_t refused;
    _Atomic uint32_t producers_left;
    /* the owner's own, unlocked on purpose: TSan says whether the hand-over orders it */
    uint64_t next[PRODUCERS];
    uint64_t taken;
} shared;

struct thread_of {
    pthread_t thread;
    uint64_t index;
    uint64_t random;
};

static void *produce(void *argument)
{
    struct thread_of *self = argument;
    uint64_t end_ns = now_ns() + LIMIT_S * UINT64_C(1000000000);
    for (uint64_t i = 0; i < shared.items;) {
        struct ring_entry entry = {(void *)(uintptr_t)(self->index + 1), i};
        if (ring_push(&shared.ring, entry)) {
            i++;
            continue;
        }
        atomic_fetch_add(&shared.refused, 1);
        CHECK(now_ns() < end_ns, "producer %u: full for ever", (unsigned)self->index);
        if (random_next(&self->random) % 4 == 0)
            sched_yield();
        else
            sleep_us(random_next(&self->random) % 50);
    }
    atomic_fetch_sub(&shared.producers_left, 1);
    return NULL;
}

static void take_turn(struct thread_of *self)
{
    struct ring_entry entry;
    uint64_t limit = 1 + random_next(&self->random) % TURN_MAX;
    for (uint64_t i = 0; i < limit && ring_pop(&shared.ring, &entry); i++) {
        uint64_t producer = (uint64_t)(uintptr_t)entry.object - 1;
        CHECK(producer < PRODUCERS, "garbage");
        CHECK(entry.what == shared.next[producer], "producer %u: item %llu, expected %llu", (unsigned)producer,
              (unsigned long long)entry.what, (unsigned long long)shared.next[producer]);
        shared.next[producer]++;
        shared.taken++;
    }
}

static void *consume(void *argument)
{
    struct thread_of *self = argument;
    uint64_t end_ns = now_ns() + LIMIT_S * UINT64_C(1000000000);
    int over = 0;
    while (!over) {
        uint32_t expected = FREE_NOW;
        if (!atomic_compare_exchange_strong(&shared.owner, &expected, TAKEN)) {
            sched_yield();
            continue;
        }
        bool none_left = atomic_load(&shared.producers_left) == 0; /* before the look at the ring */
        take_turn(self);
        over = none_left && !ring_busy(&shared.ring);
        atomic_store(&shared.owner, FREE_NOW);
        CHECK(now_ns() < end_ns, "consumer %u: no end", (unsigned)self->index);
        if (random_next(&self->random) % 16 == 0)
            sleep_us(random_next(&self->random) % 100);
    }
    return NULL;
}

/* One thread: exactly as many as there are entries fit, again and again around the ring. */
static void fill_and_drain(void)
{
    struct ring ring;
    struct ring_entry entry;
    CHECK(ring_init(&ring, 16) == 0, "out of memory");
    uint64_t in = 0, out = 0;
    for (unsigned lap = 0; lap < 100; lap++) {
        for (unsigned i = 0; ring_push(&ring, (struct ring_entry){&ring, in}); i++, in++)
            CHECK(i < 16, "more than fit");
        CHECK(in - out == 16, "%llu fit", (unsigned long long)(in - out));
        CHECK(ring_busy(&ring), "full, but not busy");
        for (unsigned i = 0; i < 1 + lap % 16; i++) {
            CHECK(ring_pop(&ring, &entry) && entry.what == out && entry.object == &ring, "wrong item");
            out++;
        }
    }
    while (ring_pop(&ring, &entry))
        CHECK(entry.what == out++, "wrong item");
    CHECK(in == out && !ring_busy(&ring), "not empty");
    ring_free(&ring);
}

enum { CASES = 1 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    static struct thread_of threads[PRODUCERS + CONSUMERS];
    uint64_t seed = seed_of(argc, argv);
    fill_and_drain();
    CHECK(ring_init(&shared.ring, ENTRIES) == 0, "out of memory");
    shared.items = SANITIZED ? 30000 : 300000;
    atomic_store(&shared.producers_left, PRODUCERS);
    for (uint64_t i = 0; i < PRODUCERS + CONSUMERS; i++) {
        bool producer = i < PRODUCERS;
        threads[i] = (struct thread_of){.index = producer ? i : i - PRODUCERS, .random = seed + i};
        CHECK(pthread_create(&threads[i].thread, NULL, producer ? produce : consume, &threads[i]) == 0,
              "pthread_create");
    }
    for (unsigned i = 0; i < PRODUCERS + CONSUMERS; i++)
        pthread_join(threads[i].thread, NULL);
    CHECK(shared.taken == PRODUCERS * shared.items, "%llu of %llu items came out", (unsigned long long)shared.taken,
          (unsigned long long)(PRODUCERS * shared.items));
    CHECK(atomic_load(&shared.refused) > 0, "the ring was never full: the test is too gentle");
    end_case("%llu items, %llu refused", (unsigned long long)shared.taken,
             (unsigned long long)atomic_load(&shared.refused));
    ring_free(&shared.ring);
    return 0;
}
