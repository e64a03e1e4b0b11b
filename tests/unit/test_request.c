/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of requests: what its top word says, and how it grows. And the ring that takes them to a thread. */
#include "base/ring.h"
#include "request/request.h"

#include <criterion/criterion.h>
#include <time.h>

enum { LIMIT = 2 * SLAB_REQUESTS + 10, TIMEOUT_S = 20 };

static struct request_pool pool;

static void set_up(void)
{
    cr_assert_eq(request_pool_init(&pool, LIMIT), UCCL_OK);
}

static void tear_down(void)
{
    request_pool_free(&pool);
}

TestSuite(request, .init = set_up, .fini = tear_down, .timeout = TIMEOUT_S);

/* A thread that was kept from the CPU between its look at the top and its exchange must see that others were here. */
Test(request, the_top_is_never_the_same_again)
{
    struct uccl_request *a = request_take(&pool), *b;
    request_put(a);
    uint64_t before = pool.top;
    cr_assert_eq(request_take(&pool), a);
    b = request_take(&pool);
    request_put(a);
    cr_assert_eq((uint32_t)pool.top, (uint32_t)before, "the same one is on top");
    cr_assert_neq(pool.top, before, "which an exchange would take for the one that it had seen");
    request_put(b);
    cr_assert_eq(request_take(&pool), b, "the one freed last is taken first");
    request_put(b);
}

Test(request, as_many_as_allowed)
{
    static struct uccl_request *taken[LIMIT];
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < LIMIT; i++) {
            cr_assert((taken[i] = request_take(&pool)), "only %u", i);
            cr_assert_lt(taken[i]->index, LIMIT);
            cr_assert_eq(pool.slab_count, round ? 3 : i / SLAB_REQUESTS + 1);
        }
        cr_assert_null(request_take(&pool));
        for (unsigned i = 0; i < LIMIT; i++)
            request_put(taken[i]);
    }
}

/* A handle is of one epoch, for as long as fewer epochs have passed than it can tell apart. */
Test(request, a_handle_is_of_one_epoch)
{
    struct uccl_request *request = request_take(&pool);
    for (unsigned i = 0; i < 2 * REQUEST_ALIGNMENT; i++) {
        struct uccl_request *handle = request_handle(request);
        cr_assert_null(request_find(handle), "it is not posted");
        request->state = REQUEST_PENDING;
        cr_assert_eq(request_find(handle), request);
        request->state = REQUEST_ENDED;
        cr_assert_eq(request_find(handle), request);
        request_put(request);
        cr_assert_null(request_find(handle), "it is free");
        cr_assert_eq(request_take(&pool), request);
        request->state = REQUEST_PENDING;
        cr_assert_null(request_find(handle), "it lives again");
        request->state = REQUEST_FREE;
    }
    cr_assert_null(request_find(NULL));
    request_put(request);
}

static _Atomic unsigned taken_count;

static void *take_one(void *argument)
{
    struct uccl_request **out = argument;
    *out = request_take(&pool);
    taken_count++;
    return NULL;
}

/* Two threads that find none at the same time: one slab is enough for both. */
Test(request, two_that_find_none)
{
    pthread_t threads[2];
    struct uccl_request *taken[2];
    pthread_mutex_lock(&pool.grow);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, take_one, &taken[i]), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    cr_assert_eq(taken_count, 0, "the pool grew in spite of the lock");
    pthread_mutex_unlock(&pool.grow);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(pool.slab_count, 1);
    cr_assert(taken[0] && taken[1] && taken[0] != taken[1]);
    for (unsigned i = 0; i < 2; i++)
        request_put(taken[i]);
}

/* As many as there are entries fit, lap after lap, and come out as they went in. */
Test(request, the_ring_goes_round)
{
    enum { ENTRIES = 8, LAPS = 20 };
    struct ring ring;
    struct ring_entry entry;
    uint64_t in = 0, out = 0;
    cr_assert_eq(ring_init(&ring, ENTRIES), UCCL_OK);
    for (unsigned lap = 0; lap < LAPS; lap++) {
        cr_assert(!ring_busy(&ring) && !ring_pop(&ring, &entry));
        for (unsigned i = 0; i < ENTRIES; i++) {
            cr_assert(ring_push(&ring, (struct ring_entry){&ring, in++}));
            cr_assert(ring_busy(&ring));
        }
        cr_assert_not(ring_push(&ring, (struct ring_entry){&ring, in}));
        for (unsigned i = 0; i < ENTRIES; i++) {
            cr_assert(ring_pop(&ring, &entry));
            cr_assert(entry.what == out++ && entry.object == &ring);
            cr_assert_eq(ring_busy(&ring), i + 1 < ENTRIES);
        }
    }
    ring_free(&ring);
}
