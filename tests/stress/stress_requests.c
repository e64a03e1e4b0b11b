/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of requests under eight threads. Each takes some, marks them as its own, hands some over to
 * another thread that puts them back, and checks that nobody else has marked what it holds. Few
 * requests and quick turns make the same one come back while another thread still looks at an old top
 * of the stack (ABA); the tag in the top word is what must save it.
 */
#include "stress.h"

#include "request/request.h"

#include <pthread.h>

enum { THREADS = 8, HELD_MAX = 12, MAILBOXES = 16, LIMIT = 700 };

static struct {
    struct request_pool pool;
    unsigned rounds;
    _Atomic uint32_t holder[1024]; /* by index: thread + 1, or 0 */
    _Atomic(struct uccl_request *) mailbox[MAILBOXES];
    _Atomic uint64_t taken, refused;
} shared;

struct thread_of {
    pthread_t thread;
    uint32_t mark;
    uint64_t random;
};

static void put(struct uccl_request *request, uint32_t mark)
{
    uint32_t was = atomic_exchange(&shared.holder[request->index], 0);
    CHECK(was == mark, "request %u of thread %u is held by thread %u", request->index, mark, was);
    CHECK(request->msg.number == mark, "request %u was written by %u", request->index, (unsigned)request->msg.number);
    request_put(request);
}

static struct uccl_request *take(uint32_t mark)
{
    struct uccl_request *request = request_take(&shared.pool);
    if (!request) {
        atomic_fetch_add(&shared.refused, 1);
        return NULL;
    }
    atomic_fetch_add(&shared.taken, 1);
    CHECK(request->index < LIMIT, "request %u is beyond the limit", request->index);
    uint32_t was = atomic_exchange(&shared.holder[request->index], mark);
    CHECK(was == 0, "request %u was handed out twice, to %u and %u", request->index, was, mark);
    request->msg.number = mark; /* plain: TSan says whether taking is ordered after putting */
    return request;
}

/* Leaves a request for somebody else to put back, or puts back what somebody left. */
static void trade(struct uccl_request *request, uint32_t mark, uint64_t random)
{
    atomic_store(&shared.holder[request->index], UINT32_MAX);
    request->msg.number = UINT32_MAX;
    struct uccl_request *other = atomic_exchange(&shared.mailbox[random % MAILBOXES], request);
    (void)mark;
    if (other)
        put(other, UINT32_MAX);
}

static void *churn(void *argument)
{
    struct thread_of *self = argument;
    struct uccl_request *held[HELD_MAX];
    unsigned count = 0;
    for (unsigned round = 0; round < shared.rounds; round++) {
        uint64_t random = random_next(&self->random);
        /* mostly one out, one in: the top of the stack is where it all happens */
        unsigned want = random % 8 ? 2 : HELD_MAX;
        while (count < want && (held[count] = take(self->mark)))
            count++;
        if (random % 64 == 1)
            sched_yield();
        unsigned keep = random / 64 % 3;
        while (count > keep) {
            struct uccl_request *request = held[--count];
            if (random / 256 % 4 == 0)
                trade(request, self->mark, random / 1024);
            else
                put(request, self->mark);
        }
    }
    while (count)
        put(held[--count], self->mark);
    return NULL;
}

/* Exactly as many as allowed can be out at once, each of them once. */
static void exhaust(void)
{
    static struct uccl_request *all[LIMIT];
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < LIMIT; i++) {
            all[i] = take(1);
            CHECK(all[i], "only %u of %u requests", i, LIMIT);
        }
        CHECK(!request_take(&shared.pool), "more requests than allowed");
        for (unsigned i = 0; i < LIMIT; i++)
            put(all[(i * 11) % LIMIT], 1); /* 11 and 700 have no common divisor */
    }
}

enum { CASES = 1 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    static struct thread_of threads[THREADS];
    uint64_t seed = seed_of(argc, argv);
    CHECK(request_pool_init(&shared.pool, LIMIT) == 0, "out of memory");
    shared.rounds = SANITIZED ? 40000 : 1600000;
    for (uint32_t i = 0; i < THREADS; i++) {
        threads[i] = (struct thread_of){.mark = i + 1, .random = seed + i};
        CHECK(pthread_create(&threads[i].thread, NULL, churn, &threads[i]) == 0, "pthread_create");
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i].thread, NULL);
    for (unsigned i = 0; i < MAILBOXES; i++)
        if (atomic_load(&shared.mailbox[i]))
            put(atomic_load(&shared.mailbox[i]), UINT32_MAX);
    exhaust();
    end_case("%llu requests taken", (unsigned long long)atomic_load(&shared.taken));
    request_pool_free(&shared.pool);
    return 0;
}
