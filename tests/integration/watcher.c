/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader sees of receives that are pending, as GPU kernels read them under NCCL's protocols LL and LL128.
 *
 *   watcher receive PORT SECONDS watched|plain SIZE...    plain: ends as soon as both kinds of tear have been seen
 *   watcher send ADDRESS PORT SIZE...
 *
 * Each 8 bytes are {data, flag}; the flag is the number of the step, and data follows from connection, step and place.
 * A thread reads the buffers of the current step over and over. It counts words with the new flag and other data
 * ("torn"), and aligned 128 bytes whose last word has the new flag and another one has not ("behind"). The receiver
 * posts all receives of a step, of sizes in turn, and then tells the sender to go on. Contents are verified at the end
 * of each step. Prints "steps N scans N torn N behind N". Exit status 0 when all messages came right, whatever was
 * seen.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uccl/engine.h>

enum { CONNS = 4, SLOTS = 4, SIZES_MAX = 16, LIMIT_MS = 30000, ALIGNMENT = 4096, LINE_WORDS = 16 };

static size_t sizes[SIZES_MAX];
static unsigned size_count;
static uint64_t *slots[CONNS][SLOTS];
static _Atomic uint32_t current; /* step */
static _Atomic uint64_t scans, torn, behind;
static _Atomic int stop;

static void must(const char *what, int error)
{
    if (error >= 0)
        return;
    fprintf(stderr, "watcher: %s: %s (%d)\n", what, uccl_strerror(error), error);
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static size_t words_of(uint32_t step)
{
    return sizes[step % size_count] / sizeof(uint64_t);
}

static uint64_t word_of(unsigned conn, uint32_t step, size_t index)
{
    return (uint64_t)step << 32 | (uint32_t)(step * 2654435761u ^ conn << 28 ^ (uint32_t)index * 40503u);
}

/* ---- watching -------------------------------------------------------------------------------- */

static uint64_t load(uint64_t *word)
{
    return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire);
}

/* Ends early where the step does. */
static void look_at(unsigned conn, uint32_t step)
{
    uint64_t *words = slots[conn][step % SLOTS];
    size_t count = words_of(step);
    for (size_t line = 0; line < count; line += LINE_WORDS) {
        size_t end = line + LINE_WORDS < count ? line + LINE_WORDS : count;
        bool last_is_new = load(&words[end - 1]) >> 32 == step;
        for (size_t i = line; i < end; i++) {
            uint64_t word = load(&words[i]);
            bool is_new = word >> 32 == step;
            bool is_torn = is_new && word != word_of(conn, step, i), is_behind = last_is_new && !is_new;
            if ((is_torn || is_behind) && atomic_load(&current) != step)
                return;
            torn += is_torn;
            behind += is_behind;
        }
    }
}

static void *watch(void *unused)
{
    while (!atomic_load(&stop)) {
        uint32_t step = atomic_load(&current);
        for (unsigned conn = 0; conn < CONNS && step; conn++)
            look_at(conn, step);
        scans++;
    }
    return unused;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Each size has been there twice at least. */
static bool go_on(uint64_t end_ms, uint32_t step, bool plain)
{
    return (now_ms() < end_ms || step < 2 * size_count) && !(plain && torn && behind);
}

static void verify(uint32_t step)
{
    for (unsigned conn = 0; conn < CONNS; conn++) {
        for (size_t i = 0; i < words_of(step); i++) {
            if (slots[conn][step % SLOTS][i] == word_of(conn, step, i))
                continue;
            fprintf(stderr, "watcher: step %u, connection %u: word %zu is %016llx, not %016llx\n", step, conn, i,
                    (unsigned long long)slots[conn][step % SLOTS][i], (unsigned long long)word_of(conn, step, i));
            exit(1);
        }
    }
}

static void receive_step(uccl_conn *const conns[CONNS], uint32_t step, bool watched)
{
    uccl_request *receives[CONNS], *go;
    for (unsigned conn = 0; conn < CONNS; conn++)
        must("receive", uccl_recv_with_async(conns[conn], slots[conn][step % SLOTS], words_of(step) * sizeof(uint64_t),
                                             NULL, watched ? UCCL_RECV_WATCHED : 0, &receives[conn]));
    atomic_store(&current, step);
    must("go", uccl_send_async(conns[0], &step, sizeof step, NULL, &go));
    must("go", uccl_wait(go, LIMIT_MS, NULL));
    for (unsigned conn = 0; conn < CONNS; conn++) {
        size_t bytes = 0;
        must("wait", uccl_wait(receives[conn], LIMIT_MS, &bytes));
        if (bytes != words_of(step) * sizeof(uint64_t))
            must("length", UCCL_EIO);
    }
    verify(step);
}

static size_t largest(void)
{
    size_t most = 0;
    for (unsigned i = 0; i < size_count; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return (most + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int receive(uint16_t port, unsigned seconds, bool watched)
{
    uccl_engine *engine;
    uccl_listener *listener;
    struct uccl_handle handle;
    uccl_conn *conns[CONNS], *conn;
    pthread_t watcher;
    uint64_t end_ms, duplicates, datagrams;
    uint32_t step = 0;
    must("open", uccl_open(NULL, &engine));
    must("listen", uccl_listen(engine, -1, port, &handle, &listener));
    for (unsigned i = 0; i < CONNS; i++) {
        unsigned number = CONNS; /* a network that delays some packets may swap two connections */
        must("accept", uccl_accept(listener, LIMIT_MS, &conn));
        must("number", uccl_conn_private(conn, &number, sizeof number));
        if (number >= CONNS)
            must("number", UCCL_EPROTO);
        conns[number] = conn;
        for (unsigned k = 0; k < SLOTS; k++) {
            slots[i][k] = aligned_alloc(ALIGNMENT, largest());
            if (!slots[i][k])
                return 1;
            memset(slots[i][k], 0, largest());
        }
    }
    if (pthread_create(&watcher, NULL, watch, NULL))
        return 1;
    end_ms = now_ms() + seconds * UINT64_C(1000);
    while (go_on(end_ms, step, !watched))
        receive_step(conns, ++step, watched);
    atomic_store(&stop, 1);
    pthread_join(watcher, NULL);
    must("counter", uccl_counter_by_name(engine, "rx_datagrams", &datagrams));
    must("counter", uccl_counter_by_name(engine, "rx_duplicates", &duplicates));
    printf("steps %u scans %llu torn %llu behind %llu; %llu datagrams, %llu duplicates\n", step,
           (unsigned long long)scans, (unsigned long long)torn, (unsigned long long)behind,
           (unsigned long long)datagrams, (unsigned long long)duplicates);
    must("close", uccl_close(engine));
    return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static int send_all(const char *address, uint16_t port)
{
    uccl_engine *engine;
    struct uccl_handle handle;
    uccl_conn *conns[CONNS];
    uint64_t *words[CONNS];
    must("address", uccl_handle_from_address(address, port, &handle));
    must("open", uccl_open(NULL, &engine));
    for (unsigned i = 0; i < CONNS; i++) {
        struct uccl_conn_options options = {.size = sizeof options, .private_data = &i, .private_bytes = sizeof i};
        must("connect", uccl_connect_with(engine, &handle, LIMIT_MS, &options, &conns[i]));
        words[i] = malloc(largest());
        if (!words[i])
            return 1;
    }
    for (;;) {
        uccl_request *go, *sends[CONNS];
        uint32_t step;
        int error = uccl_recv_async(conns[0], &step, sizeof step, NULL, &go);
        if (!error)
            error = uccl_wait(go, LIMIT_MS, NULL);
        if (error == UCCL_ECLOSED)
            break;
        must("go", error);
        for (unsigned conn = 0; conn < CONNS; conn++) {
            for (size_t i = 0; i < words_of(step); i++)
                words[conn][i] = word_of(conn, step, i);
            must("send",
                 uccl_send_async(conns[conn], words[conn], words_of(step) * sizeof(uint64_t), NULL, &sends[conn]));
        }
        for (unsigned conn = 0; conn < CONNS; conn++)
            must("send", uccl_wait(sends[conn], LIMIT_MS, NULL));
    }
    must("close", uccl_close(engine));
    for (unsigned i = 0; i < CONNS; i++)
        free(words[i]);
    return 0;
}

static void take_sizes(char **arguments)
{
    for (; *arguments && size_count < SIZES_MAX; arguments++)
        sizes[size_count++] = strtoull(*arguments, NULL, 10) / sizeof(uint64_t) * sizeof(uint64_t);
}

int main(int argc, char **argv)
{
    bool receives = argc > 5 && strcmp(argv[1], "receive") == 0;
    if (!receives && !(argc > 4 && strcmp(argv[1], "send") == 0)) {
        fprintf(stderr, "usage: watcher receive PORT SECONDS watched|plain SIZE...\n"
                        "       watcher send ADDRESS PORT SIZE...\n");
        return 2;
    }
    take_sizes(argv + (receives ? 5 : 4));
    return receives ? receive((uint16_t)atoi(argv[2]), (unsigned)atoi(argv[3]), strcmp(argv[4], "watched") == 0)
                    : send_all(argv[2], (uint16_t)atoi(argv[3]));
}
