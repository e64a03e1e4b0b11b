/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that many threads make and end at the same time, each end in another way, with requests pending that some
 * other thread waits for, through small rings and few requests. Every request ends, with a status that the header
 * allows, every close ends, and nothing is freed twice or too early (run under the sanitizers).
 */
#include "engines.h"

#include <pthread.h>

enum { THREADS = 4, POSTS = 6, LARGE = 200000, WAIT_MS = 20000 };

struct worker {
    pthread_t thread;
    uccl_engine *engine[2];
    uccl_listener *listener;
    struct uccl_handle handle;
    uint64_t random;
    unsigned rounds, ends[4];
    char in[2][POSTS][LARGE]; /* what is received, by side; nobody looks at it */
};

struct waiter {
    pthread_t thread;
    uccl_request *request;
    int status;
};

static void *wait_for_it(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = uccl_wait(waiter->request, WAIT_MS, NULL);
    return NULL;
}

static void check_status(int status)
{
    CHECK(status == UCCL_OK || status == UCCL_ECANCELED || status == UCCL_ECLOSED || status == UCCL_ETRUNCATED,
          "status %d", status);
}

/* Posts what may match and what will not. Returns how many it got through. */
static unsigned post_some(struct worker *worker, unsigned side, uccl_conn *conn, uccl_request *requests[POSTS])
{
    static char out[LARGE];
    unsigned count = 0;
    for (unsigned i = 0; i < POSTS; i++) {
        size_t length = random_next(&worker->random) % 2 ? LARGE : random_next(&worker->random) % 3000;
        int error = i % 2 ? uccl_send_async(conn, out, length, NULL, &requests[count])
                          : uccl_recv_async(conn, worker->in[side][i], length, NULL, &requests[count]);
        CHECK(error == UCCL_OK || error == UCCL_EAGAIN || error == UCCL_ECLOSED, "posting: %d", error);
        count += error == UCCL_OK;
    }
    return count;
}

static uccl_request *close_async(uccl_conn *conn)
{
    uccl_request *request = NULL;
    int error;
    while ((error = uccl_conn_close_async(conn, &request)) == UCCL_EAGAIN)
        ; /* others use up ring and requests, and go on */
    OK(error);
    return request;
}

static void end_conn(struct worker *worker, uccl_conn *conn)
{
    unsigned way = (unsigned)(random_next(&worker->random) % 4);
    int done = 0, status = UCCL_OK;
    uccl_request *request;
    worker->ends[way]++;
    switch (way) {
    case 0:
        OK(uccl_conn_close(conn));
        return;
    case 1:
        OK(uccl_conn_abort(conn));
        return;
    case 2:
        request = close_async(conn);
        while (!done)
            OK(uccl_test(request, &done, NULL));
        return;
    default:
        request = close_async(conn);
        if (random_next(&worker->random) % 2)
            status = uccl_wait(request, 1, NULL);
        else
            status = UCCL_ETIMEDOUT;
        if (status == UCCL_ETIMEDOUT) {
            OK(uccl_conn_abort(conn));
            status = uccl_wait(request, WAIT_MS, NULL);
        }
        OK(status);
    }
}

static void one_round(struct worker *worker)
{
    uccl_conn *conn[2];
    uccl_request *requests[2][POSTS];
    unsigned counts[2], first = (unsigned)(random_next(&worker->random) % 2);
    struct waiter waiter = {.status = UCCL_OK};
    engines_connect(worker->engine[0], &worker->handle, worker->listener, conn);
    for (unsigned side = 0; side < 2; side++)
        counts[side] = post_some(worker, side, conn[side], requests[side]);
    if (counts[first] && random_next(&worker->random) % 2) {
        waiter.request = requests[first][--counts[first]];
        CHECK(pthread_create(&waiter.thread, NULL, wait_for_it, &waiter) == 0, "pthread_create");
    }
    sleep_us(random_next(&worker->random) % 300);
    end_conn(worker, conn[first]);
    end_conn(worker, conn[!first]);
    if (waiter.request)
        pthread_join(waiter.thread, NULL);
    check_status(waiter.status);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < counts[side]; i++)
            check_status(uccl_wait(requests[side][i], WAIT_MS, NULL));
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    for (unsigned i = 0; i < worker->rounds; i++)
        one_round(worker);
    return NULL;
}

static void variant(uint64_t seed, const char *lend, const char *engines)
{
    static struct worker workers[THREADS];
    uccl_engine *engine[2];
    unsigned ends[4] = {0};
    uint64_t start_ns = now_ns();
    for (unsigned i = 0; i < 2; i++)
        engine[i] = engine_open_with("LEND", lend, "NUM_ENGINES", engines, "LINGER_MS", "2000", "STRIPE_MIN_KB", "64",
                                     "RING_ENTRIES", "16", "MAX_REQUESTS", "96", NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        struct worker *worker = &workers[i];
        memcpy(worker->engine, engine, sizeof engine);
        memset(worker->ends, 0, sizeof worker->ends);
        worker->random = seed + i;
        worker->rounds = SANITIZED ? 25 : 100;
        OK(uccl_listen(engine[1], 0, 0, &worker->handle, &worker->listener));
        CHECK(pthread_create(&worker->thread, NULL, worker_main, worker) == 0, "pthread_create");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        for (unsigned way = 0; way < 4; way++)
            ends[way] += workers[i].ends[way];
    }
    for (unsigned i = 0; i < 2; i++)
        OK(uccl_close(engine[i]));
    end_case("UCCL_LEND=%s UCCL_NUM_ENGINES=%s: %u closed, %u aborted, %u closed by a request, %u of these cut short, "
             "%.1f s",
             lend, engines, ends[0], ends[1], ends[2], ends[3], (double)(now_ns() - start_ns) / 1e9);
}

enum { CASES = 3 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    uint64_t seed = seed_of(argc, argv);
    variant(seed, "yes", "1");
    variant(seed + 100, "yes", "3");
    variant(seed + 200, "no", "3");
    return 0;
}
