/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A steady stream of verified messages over one connection, while a script does harm to the network. It ends after
 * SECONDS, or at SIGTERM.
 *
 *   steady receive PORT
 *   steady send ADDRESS PORT SECONDS SIZE OUTSTANDING
 *   steady fetch ADDRESS PORT SECONDS SIZE OUTSTANDING (the other direction: the listening end sends)
 *
 * Buffers are registered, so a NIC that places payload does. Each message has its number in every word. The sender
 * prints "messages N longest N ms lost N back N moved N down NAMES": the longest time that a message took while others
 * went before and behind it, and what the engine says about its NICs. Each end prints "held N ms": the longest time for
 * which the machine did not run the process, which a message may take in addition. Exit status 0 when all messages came
 * right at both ends.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uccl/engine.h>

enum { OUTSTANDING_MAX = 16, LIMIT_MS = 30000, NAP_MS = 10 };

/* The wishes of the connecting end, which the other gets as private data. */
struct task {
    uint64_t size_bytes;
    uint32_t outstanding;
    uint32_t fetch_s; /* the listening end sends for so long; 0: the connecting end sends */
};

static void must(const char *what, int error)
{
    if (error >= 0)
        return;
    fprintf(stderr, "steady: %s: %s (%d)\n", what, uccl_strerror(error), error);
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static _Atomic uint64_t held_ms;

/* A thread that only naps, and sees when it wakes too late. */
static void *watch_machine(void *unused)
{
    for (;;) {
        uint64_t since_ms = now_ms();
        nanosleep(&(struct timespec){0, NAP_MS * 1000000}, NULL);
        uint64_t over_ms = now_ms() - since_ms - NAP_MS;
        if (over_ms > held_ms)
            held_ms = over_ms;
    }
    return unused;
}

static void end(uccl_engine *engine, uccl_conn *conn, uint64_t *buffers)
{
    must("close", uccl_conn_close(conn));
    must("close", uccl_close(engine));
    free(buffers);
    printf("held %" PRIu64 " ms\n", held_ms);
}

/* All buffers lie behind each other, and are one registration. */
static uint64_t *make_buffers(uccl_engine *engine, const struct task *task, uint64_t **buffers, uccl_mr **mr)
{
    size_t words = task->size_bytes / sizeof **buffers;
    uint64_t *all = calloc(task->outstanding, task->size_bytes);
    if (!all)
        must("memory", UCCL_ENOMEM);
    must("register", uccl_reg_mr(engine, all, task->outstanding * task->size_bytes, UCCL_MEM_HOST, mr));
    for (unsigned i = 0; i < task->outstanding; i++)
        buffers[i] = all + i * words;
    return all;
}

static void fill(uint64_t *buffer, const struct task *task, uint64_t number)
{
    for (uint64_t i = 0; i < task->size_bytes / sizeof *buffer; i++)
        buffer[i] = number << 32 | i;
}

static void verify(const uint64_t *buffer, const struct task *task, uint64_t number)
{
    for (uint64_t i = 0; i < task->size_bytes / sizeof *buffer; i++) {
        if (buffer[i] == (number << 32 | i))
            continue;
        fprintf(stderr, "steady: message %" PRIu64 " has %" PRIx64 " at word %" PRIu64 "\n", number, buffer[i], i);
        exit(1);
    }
}

/* The last message is empty. */
static int receive(uccl_engine *engine, uccl_conn *conn, const struct task *task)
{
    uccl_request *request[OUTSTANDING_MAX];
    uint64_t *buffer[OUTSTANDING_MAX], number = 0;
    uccl_mr *mr;
    size_t bytes;
    uint64_t *all = make_buffers(engine, task, buffer, &mr);
    for (unsigned i = 0; i < task->outstanding; i++)
        must("receive", uccl_recv_async(conn, buffer[i], task->size_bytes, mr, &request[i]));
    for (;; number++) {
        unsigned i = number % task->outstanding;
        must("a receive", uccl_wait(request[i], LIMIT_MS, &bytes));
        if (bytes == 0)
            break;
        verify(buffer[i], task, number);
        int error = uccl_recv_async(conn, buffer[i], task->size_bytes, mr, &request[i]);
        if (error != UCCL_ECLOSED) /* the sender has closed: what it sent is here */
            must("receive", error);
    }
    end(engine, conn, all);
    printf("messages %" PRIu64 "\n", number);
    return 0;
}

static void report(uccl_engine *engine, uint64_t messages, uint64_t longest_ms)
{
    uint64_t moved = 0, lost = 0, back = 0;
    struct uccl_device device;
    struct uccl_device_stats stats = {.size = sizeof stats};
    must("counter", uccl_counter_by_name(engine, "rail_moves", &moved));
    for (int i = 0; uccl_device_stats(engine, i, &stats) == UCCL_OK; i++) {
        lost += stats.losses;
        back += stats.returns;
    }
    printf("messages %" PRIu64 " longest %" PRIu64 " ms lost %" PRIu64 " back %" PRIu64 " moved %" PRIu64 " down",
           messages, longest_ms, lost, back, moved);
    for (int i = 0; uccl_device_get(engine, i, &device) == UCCL_OK && uccl_device_stats(engine, i, &stats) == UCCL_OK;
         i++) {
        if (!stats.up)
            printf(" %s", device.name);
    }
    printf("\n");
}

static volatile sig_atomic_t told;

static void stop(int signal)
{
    (void)signal;
    told = 1;
}

static int send_steadily(uccl_engine *engine, uccl_conn *conn, const struct task *task, uint64_t seconds)
{
    uccl_request *request[OUTSTANDING_MAX];
    uccl_mr *mr;
    uint64_t *buffer[OUTSTANDING_MAX], posted_ms[OUTSTANDING_MAX], longest_ms = 0, number = 0, ended = 0;
    uint64_t *all = make_buffers(engine, task, buffer, &mr);
    uint64_t end_ms = now_ms() + seconds * 1000;
    signal(SIGTERM, stop);
    while (ended < number || (now_ms() < end_ms && !told)) {
        while (number - ended < task->outstanding && now_ms() < end_ms && !told) {
            unsigned i = number % task->outstanding;
            fill(buffer[i], task, number);
            posted_ms[i] = now_ms();
            must("send", uccl_send_async(conn, buffer[i], task->size_bytes, mr, &request[i]));
            number++;
        }
        if (ended == number)
            break;
        must("a send", uccl_wait(request[ended % task->outstanding], LIMIT_MS, NULL));
        uint64_t took_ms = now_ms() - posted_ms[ended % task->outstanding];
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        ended++;
    }
    report(engine, number, longest_ms);
    must("send", uccl_send_async(conn, NULL, 0, NULL, &request[0]));
    must("the last send", uccl_wait(request[0], LIMIT_MS, NULL));
    end(engine, conn, all);
    return 0;
}

static int serve(uccl_engine *engine, uint16_t port)
{
    uccl_listener *listener;
    uccl_conn *conn;
    struct uccl_handle handle;
    struct task task;
    must("listen", uccl_listen(engine, -1, port, &handle, &listener));
    must("accept", uccl_accept(listener, LIMIT_MS, &conn));
    if (uccl_conn_private(conn, &task, sizeof task) != sizeof task || task.outstanding > OUTSTANDING_MAX)
        must("the task", UCCL_EPROTO);
    return task.fetch_s ? send_steadily(engine, conn, &task, task.fetch_s) : receive(engine, conn, &task);
}

static int call(uccl_engine *engine, bool fetches, char **arguments)
{
    uint64_t seconds = strtoull(arguments[2], NULL, 10);
    struct task task = {.size_bytes = strtoull(arguments[3], NULL, 10),
                        .outstanding = (uint32_t)strtoul(arguments[4], NULL, 10),
                        .fetch_s = fetches ? (uint32_t)seconds : 0};
    struct uccl_conn_options options = {
        .size = sizeof options, .private_data = &task, .private_bytes = sizeof task, .thread = 1};
    struct uccl_handle handle;
    uccl_conn *conn;
    must("handle", uccl_handle_from_address(arguments[0], (uint16_t)atoi(arguments[1]), &handle));
    must("connect", uccl_connect_with(engine, &handle, LIMIT_MS, &options, &conn));
    return fetches ? receive(engine, conn, &task) : send_steadily(engine, conn, &task, seconds);
}

int main(int count, char **arguments)
{
    uccl_engine *engine;
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch_machine, NULL) || pthread_detach(watcher))
        must("a thread", UCCL_ENOMEM);
    must("open", uccl_open(NULL, &engine));
    if (count == 3 && strcmp(arguments[1], "receive") == 0)
        return serve(engine, (uint16_t)atoi(arguments[2]));
    if (count == 7 && (strcmp(arguments[1], "send") == 0 || strcmp(arguments[1], "fetch") == 0))
        return call(engine, arguments[1][0] == 'f', arguments + 2);
    fprintf(stderr, "usage: steady receive PORT | steady send|fetch ADDRESS PORT SECONDS SIZE OUTSTANDING\n");
    return 2;
}
