/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path neither allocates nor takes a lock once warm. This program defines malloc, free and
 * their kin and pthread_mutex_lock itself, forwards them, and counts the calls of all threads while
 * small, eager and large messages go back and forth between two engines of the process. Over UDP alone: for what a TCP
 * socket does not take of a record there is memory only while it waits.
 */
#include "engines.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { WARM_UP = 300, ROUNDS = 3000, WINDOW = 8, LARGE = 300000 };

static _Atomic int counting;
static _Atomic unsigned allocations, locks;

#if !SANITIZED /* whose run-time libraries do the same */

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static void (*real_free)(void *);
static int (*real_lock)(pthread_mutex_t *);

/* dlsym() itself may allocate: from here, and never freed. */
static _Alignas(16) char early[1 << 16];
static _Atomic size_t early_used;
static _Thread_local int looking;

static void *take_early(size_t size)
{
    size_t at = atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15);
    return at + size <= sizeof early ? early + at : NULL;
}

static int is_early(const void *memory)
{
    return (const char *)memory >= early && (const char *)memory < early + sizeof early;
}

static void find_all(void)
{
    looking = 1;
    *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    *(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    looking = 0;
}

static void count(_Atomic unsigned *counter)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add(counter, 1);
}

void *malloc(size_t size)
{
    count(&allocations);
    if (looking)
        return take_early(size);
    if (!real_malloc)
        find_all();
    return real_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count(&allocations);
    if (looking)
        return take_early(n * size);
    if (!real_malloc)
        find_all();
    return real_calloc(n, size);
}

void *realloc(void *memory, size_t size)
{
    count(&allocations);
    if (looking || is_early(memory)) {
        void *more = take_early(size);
        if (more && memory)
            memcpy(more, memory, size);
        return more;
    }
    if (!real_malloc)
        find_all();
    return real_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count(&allocations);
    if (!real_malloc)
        find_all();
    return real_aligned_alloc(alignment, size);
}

void free(void *memory)
{
    count(&allocations);
    if (!memory || is_early(memory))
        return;
    if (!real_malloc)
        find_all();
    real_free(memory);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    count(&locks);
    if (!real_lock) {
        if (looking)
            return 0; /* one thread, at start-up */
        find_all();
    }
    return real_lock(mutex);
}

#endif

static const size_t sizes[] = {0, 1, 100, 1400, 8192, 8193, 65536, LARGE};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static uint8_t out[WINDOW][LARGE], in[2][WINDOW][LARGE];

/* A window of messages each way; the ends are awaited by waiting and by testing. */
static void exchange(uccl_conn *conn[2], unsigned round)
{
    uccl_request *requests[4 * WINDOW];
    unsigned count_of = 0;
    for (unsigned i = 0; i < WINDOW; i++) {
        /* the largest are rare, to be done in time */
        size_t size = sizes[(round + i) % (round % 16 ? SIZES - 2 : SIZES)];
        for (int side = 0; side < 2; side++) {
            int early_send = (int)(round + i) % 2;
            if (early_send)
                OK(uccl_send_async(conn[side], out[i], size, NULL, &requests[count_of++]));
            OK(uccl_recv_async(conn[!side], in[side][i], size, NULL, &requests[count_of++]));
            if (!early_send)
                OK(uccl_send_async(conn[side], out[i], size, NULL, &requests[count_of++]));
        }
    }
    for (unsigned i = 0; i < count_of; i++) {
        int done = 0;
        if (i % 3 == 0)
            for (unsigned k = 0; k < 100 && !done; k++)
                OK(uccl_test(requests[i], &done, NULL));
        if (!done)
            OK(uccl_wait(requests[i], 20000, NULL));
    }
}

static void variant(const char *lend)
{
    uccl_engine *engine[2] = {engine_open(lend, "50"), engine_open(lend, "50")};
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    engines_connect(engine[0], &handle, listener, conn);
    for (unsigned round = 0; round < WARM_UP; round++)
        exchange(conn, round);
    atomic_store(&allocations, 0);
    atomic_store(&locks, 0);
    atomic_store(&counting, 1);
    for (unsigned round = 0; round < ROUNDS; round++)
        exchange(conn, round);
    atomic_store(&counting, 0);
    printf("# UCCL_LEND=%s: %u allocations, %u locks in %u messages\n", lend, atomic_load(&allocations),
           atomic_load(&locks), 2 * ROUNDS * WINDOW);
    fflush(stdout);
    CHECK(atomic_load(&allocations) == 0, "the data path allocates");
    CHECK(atomic_load(&locks) == 0, "the data path locks");
    OK(uccl_close(engine[0]));
    OK(uccl_close(engine[1]));
    end_case("UCCL_LEND=%s", lend);
}

enum { CASES = 2 };

int main(void)
{
    begin_cases(CASES);
    setenv("UCCL_BACKEND", "udp", 1);
#if !SANITIZED
    /* the counters count at all */
    atomic_store(&counting, 1);
    void *volatile memory = malloc(100);
    free(memory);
    CHECK(atomic_load(&allocations) == 2, "malloc is not interposed");
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    CHECK(atomic_load(&locks) == 1, "pthread_mutex_lock is not interposed");
    atomic_store(&counting, 0);
#endif
    variant("yes");
    variant("no");
    return 0;
}
