/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to a process that is killed, and how long it takes to end them all.
 *
 *   closers HOW COUNT     HOW: close (one after another), async (all at once, then wait), abort
 *
 * Half of the connections have a receive and a send pending that the peer never takes. Each request must end, and with
 * what the header says. Prints "HOW of COUNT took N ms". Exit status 0 when all went well, else 1.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <uccl/engine.h>
#include <unistd.h>

enum { COUNT_MAX = 64, LARGE = 1 << 20 };

static uccl_conn *conns[COUNT_MAX];
static uccl_request *pending[COUNT_MAX][2];
static char buffers[2][LARGE];

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void must_be(const char *what, int error, int expected)
{
    if (error == expected)
        return;
    fprintf(stderr, "closers: %s: %s (%d), not %d\n", what, uccl_strerror(error), error, expected);
    exit(1);
}

/* The peer: accepts, and does nothing more. */
static void serve(int to_parent, unsigned count)
{
    uccl_engine *engine;
    uccl_listener *listener;
    struct uccl_handle handle;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must_be("open", uccl_open(NULL, &engine), 0);
    must_be("listen", uccl_listen(engine, -1, 0, &handle, &listener), 0);
    uint16_t port = uccl_listener_port(listener);
    if (write(to_parent, &port, sizeof port) != sizeof port)
        exit(1);
    for (unsigned i = 0; i < count; i++)
        must_be("accept", uccl_accept(listener, 10000, &conns[i]), 0);
    for (;;)
        pause();
}

static void connect_all(int from_child, unsigned count, uccl_engine **engine)
{
    struct uccl_handle handle;
    uint16_t port;
    if (read(from_child, &port, sizeof port) != sizeof port)
        exit(1);
    must_be("open", uccl_open(NULL, engine), 0);
    for (unsigned i = 0; i < count; i++) {
        must_be("address", uccl_handle_from_address("127.0.0.1", port, &handle), 0);
        must_be("connect", uccl_connect(*engine, &handle, 10000, &conns[i]), 0);
        if (i % 2)
            continue;
        must_be("send", uccl_send_async(conns[i], buffers[0], LARGE, NULL, &pending[i][0]), 0);
        must_be("receive", uccl_recv_async(conns[i], buffers[1], LARGE, NULL, &pending[i][1]), 0);
    }
}

static void end_all(const char *how, unsigned count)
{
    uccl_request *closes[COUNT_MAX];
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(how, "close") == 0)
            must_be("close", uccl_conn_close(conns[i]), 0);
        else if (strcmp(how, "async") == 0)
            must_be("close_async", uccl_conn_close_async(conns[i], &closes[i]), 0);
        else
            must_be("abort", uccl_conn_abort(conns[i]), 0);
    }
    for (unsigned i = 0; i < count && strcmp(how, "async") == 0; i++)
        must_be("the request of a close", uccl_wait(closes[i], -1, NULL), 0);
    for (unsigned i = 0; i < count; i += 2) {
        for (unsigned k = 0; k < 2; k++)
            must_be("a pending request", uccl_wait(pending[i][k], -1, NULL), UCCL_ECANCELED);
    }
}

int main(int argc, char **argv)
{
    unsigned count = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
    uccl_engine *engine;
    int ends[2];
    if (count == 0 || count > COUNT_MAX || pipe(ends))
        return 2;
    pid_t peer = fork();
    if (peer == 0)
        serve(ends[1], count);
    connect_all(ends[0], count, &engine);
    kill(peer, SIGKILL);
    waitpid(peer, NULL, 0);
    long start = now_ms();
    end_all(argv[1], count);
    printf("%s of %u took %ld ms\n", argv[1], count, now_ms() - start);
    start = now_ms();
    must_be("the engine's close", uccl_close(engine), 0);
    printf("the engine's close took %ld ms\n", now_ms() - start);
    return 0;
}
