/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An idle engine uses less than 1% of a core: opened and nothing else; connected, after some traffic;
 * with a receive pending and a thread blocked in uccl_wait(); and when that wait is given up. With
 * lent engines and with engine threads of their own.
 */
#include "engines.h"

#include <pthread.h>
#include <sys/resource.h>

enum { MEASURED_MS = 1500, SETTLE_MS = 300 };

static uint64_t cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

/* Of two engines, each; a sanitizer makes everything dearer. */
static void measure(const char *lend, const char *what)
{
    sleep_us(SETTLE_MS * 1000);
    uint64_t before_ns = cpu_ns(), start_ns = now_ns();
    sleep_us(MEASURED_MS * 1000);
    double percent = 100.0 * (double)(cpu_ns() - before_ns) / (double)(now_ns() - start_ns) / 2;
    printf("# UCCL_LEND=%s, %s: %.3f%% of a core per engine\n", lend, what, percent);
    fflush(stdout);
    CHECK(percent < (SANITIZED ? 5.0 : 1.0), "not idle");
}

static void *wait_for_it(void *request)
{
    OK(uccl_wait(request, -1, NULL));
    return NULL;
}

static void variant(const char *lend)
{
    uccl_engine *engine[2] = {engine_open(lend, "50"), engine_open(lend, "50")};
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_request *send, *recv;
    pthread_t waiter;
    char byte = 0;

    measure(lend, "opened");
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    engines_connect(engine[0], &handle, listener, conn);
    for (unsigned i = 0; i < 1000; i++) {
        OK(uccl_recv_async(conn[1], &byte, 1, NULL, &recv));
        OK(uccl_send_async(conn[0], "x", 1, NULL, &send));
        OK(uccl_wait(recv, -1, NULL));
        OK(uccl_wait(send, -1, NULL));
    }
    measure(lend, "connected");
    OK(uccl_recv_async(conn[1], &byte, 1, NULL, &recv));
    measure(lend, "a receive pending");
    CHECK(uccl_wait(recv, 20, NULL) == UCCL_ETIMEDOUT, "nothing was sent");
    measure(lend, "a receive pending, its wait given up");
    CHECK(pthread_create(&waiter, NULL, wait_for_it, recv) == 0, "pthread_create");
    measure(lend, "a receive pending, a thread in uccl_wait()");
    /* and it wakes up at once when there is something to do */
    uint64_t start_ns = now_ns();
    OK(uccl_send_async(conn[0], "x", 1, NULL, &send));
    OK(uccl_wait(send, 5000, NULL));
    pthread_join(waiter, NULL);
    CHECK(now_ns() - start_ns < UINT64_C(3000000000), "waking took %u ms", (unsigned)((now_ns() - start_ns) / 1000000));
    OK(uccl_close(engine[0]));
    OK(uccl_close(engine[1]));
    end_case("UCCL_LEND=%s", lend);
}

enum { CASES = 2 };

int main(void)
{
    begin_cases(CASES);
    variant("yes");
    variant("no");
    return 0;
}
