/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine takes, it gives back: the same steps over and over, and then what the process holds is counted.
 * Memory of the heap, mappings, descriptors and threads by the system; numbers of connections, peers and places in the
 * NIC's table by the engine's own books.
 */
#include "api_pair.h"

#include "../../api/objects.h"
#include "nic/udp/udp.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

enum {
    WARM_UP = 4, /* cycles in which caches fill */
    CYCLES = 16,
    HEAP_SLACK = 24,     /* bytes per cycle: less than the smallest piece of the heap */
    MAPPED_SLACK = 2048, /* less than a page */
    KEPT_CYCLES = 2 * CLOSED_KEPT,
    TRIES = 12,
};

__attribute__((constructor)) static void set_up(void)
{
    uccl_set_log(log_nothing, NULL);
    mallopt(M_ARENA_MAX, 1); /* else a thread's own caches come and go */
}

/* ---- what the process holds ------------------------------------------------------------------ */

struct held {
    size_t heap_bytes, mapped_bytes;
    unsigned files, tasks;
};

/* What can be written: address space that is only reserved comes and goes. */
static size_t mapped_bytes(void)
{
    char line[512], rights[8];
    unsigned long from, to;
    size_t sum = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[1] == 'w' && !strstr(line, "[heap]"))
            sum += to - from;
    }
    fclose(file);
    return sum;
}

static struct held look(void)
{
    struct mallinfo2 heap;
    malloc_trim(0);
    heap = mallinfo2();
    return (struct held){.heap_bytes = heap.uordblks + heap.hblkhd,
                         .mapped_bytes = mapped_bytes(),
                         .files = entries_of("/proc/self/fd"),
                         .tasks = entries_of("/proc/self/task")};
}

/* Sanitizers keep what is freed; their own check of leaks sees the heap. */
static bool keeps_what_is_freed(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

/* A leak grows each time; caches do not. */
static bool has_grown(const struct held *before, const struct held *after, unsigned cycles)
{
    cr_assert_eq(after->files, before->files, "%u descriptors instead of %u", after->files, before->files);
    cr_assert_eq(after->tasks, before->tasks, "%u threads instead of %u", after->tasks, before->tasks);
    return !keeps_what_is_freed() && (after->heap_bytes > before->heap_bytes + cycles * HEAP_SLACK ||
                                      after->mapped_bytes > before->mapped_bytes + cycles * MAPPED_SLACK);
}

/* Runs it until caches are full, and then as many times more, after which no more may be held. */
static void repeat(void (*cycle)(void *), void *argument, unsigned warm_up, unsigned cycles)
{
    struct held before, after;
    unsigned tries = 0;
    for (unsigned i = 0; i < warm_up; i++)
        cycle(argument);
    for (;;) {
        before = look();
        for (unsigned i = 0; i < cycles; i++)
            cycle(argument);
        after = look();
        if (!has_grown(&before, &after, cycles))
            return;
        cr_assert_lt(++tries, TRIES, "%zd bytes of the heap and %zd mapped ones in %u cycles",
                     (ssize_t)(after.heap_bytes - before.heap_bytes),
                     (ssize_t)(after.mapped_bytes - before.mapped_bytes), cycles);
    }
}

/* ---- what an engine holds -------------------------------------------------------------------- */

struct books {
    unsigned conn_ids, conns, peers, connects, nic_peers, slots;
};

static struct books books_of(uccl_engine *engine)
{
    struct books books = {0};
    pthread_mutex_lock(&engine->lock);
    for (unsigned i = 0; i < CORE_CONNS_MAX / 64; i++)
        books.conn_ids += (unsigned)__builtin_popcountll(engine->conn_indices[i]);
    for (const struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        books.conns++;
    for (const struct peer *peer = engine->peers.peers; peer; peer = peer->next)
        books.peers++;
    for (unsigned t = 0; t < engine->thread_count; t++) {
        const struct udp_queue *queue = udp_queue_of(engine->threads[t].queue);
        for (uint32_t i = 0; i < queue->peer_count; i++)
            books.nic_peers += queue->peers[i].used;
        for (unsigned i = 0; i < CORE_FLOWS_MAX / 64; i++)
            books.slots += (unsigned)__builtin_popcountll(engine->peers.slots_used[t][i]);
    }
    books.connects = engine->connecting != NULL;
    pthread_mutex_unlock(&engine->lock);
    return books;
}

static void check_books(uccl_engine *engine, unsigned conns)
{
    struct books books = books_of(engine);
    cr_assert_eq(books.conn_ids, conns, "%u numbers of connections, %u connections", books.conn_ids, conns);
    cr_assert_eq(books.conns, conns);
    cr_assert_eq(books.peers, 1);
    cr_assert_eq(books.connects, 0);
    cr_assert_eq(books.nic_peers, engine->thread_count, "%u places in the NIC's table", books.nic_peers);
    cr_assert_eq(books.slots, engine->thread_count, "%u flow slots", books.slots);
}

/* ---- engines --------------------------------------------------------------------------------- */

static const char *udp_io = "mmsg";

static void open_and_close(void *lend)
{
    static uint8_t memory[4096];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_mr *mr;
    uccl_engine *engine = open_engine(lend, "NUM_ENGINES", "2", "PIN", "1", "UDP_IO", udp_io, NULL);
    IS(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    for (unsigned i = 0; i < 2; i++)
        IS(uccl_reg_mr(engine, memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
    IS(uccl_dereg_mr(mr), 0);
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    IS(uccl_listener_close(listener), 0);
    IS(uccl_close(engine), 0);
}

BOTH(leaks, engines)
{
    repeat(open_and_close, (void *)(uintptr_t)lend, WARM_UP, CYCLES);
}

#ifdef HAVE_LIBURING
Test(leaks, engines_with_a_ring, .timeout = TIMEOUT_S)
{
    udp_io = "uring";
    repeat(open_and_close, (void *)(uintptr_t) "no", WARM_UP, CYCLES);
}
#endif

/* What is closed is kept for a while, so that closing it again is noticed. */
static void register_once(void *engine)
{
    static uint8_t memory[4096];
    uccl_mr *mr;
    IS(uccl_reg_mr(engine, memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
    IS(uccl_dereg_mr(mr), 0);
}

static void listen_once(void *engine)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    IS(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    IS(uccl_listener_close(listener), 0);
}

Test(leaks, registrations_and_listeners, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = open_engine("yes", NULL);
    repeat(register_once, engine, KEPT_CYCLES, KEPT_CYCLES);
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++)
        cr_assert_null(engine->regions.buckets[i], "host memory is not kept for the next registration");
    repeat(listen_once, engine, KEPT_CYCLES, KEPT_CYCLES);
    IS(uccl_close(engine), 0);
}

static void ask_once(void *argument)
{
    char value[64], source[256];
    (void)argument;
    IS(uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source), 0);
}

Test(leaks, configuration_file, .timeout = TIMEOUT_S)
{
    char name[] = "/tmp/uccl-leaks-XXXXXX";
    int fd = mkstemp(name);
    cr_assert_eq(write(fd, "LINGER_MS=100\n", 14), 14);
    close(fd);
    setenv("UCCL_CONF_FILE", name, 1);
    repeat(ask_once, NULL, WARM_UP, CYCLES);
    unlink(name);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void connect_and_close(void *argument)
{
    struct pair *pair = argument;
    uccl_conn *conn[2];
    connect_now(pair->engine[0], &pair->handle, pair->listener, conn);
    exchange(conn[0], conn[1], 100, 1);
    exchange(conn[1], conn[0], 100000, 2);
    IS(uccl_conn_close(conn[0]), 0);
    IS(uccl_conn_close(conn[1]), 0);
    for (int i = 0; i < 2; i++)
        check_books(pair->engine[i], 1);
}

BOTH(leaks, connections)
{
    struct pair pair;
    pair_open(&pair, lend);
    repeat(connect_and_close, &pair, CLOSED_KEPT, CYCLES);
    pair_close(&pair);
}

/* Nobody waits for the end of these: the next call that has to do with connections frees them. */
static void connect_and_abort(void *argument)
{
    struct pair *pair = argument;
    uccl_conn *conn[4];
    uint64_t end_ms = now_ms() + SOON_MS;
    connect_now(pair->engine[0], &pair->handle, pair->listener, conn);
    connect_now(pair->engine[0], &pair->handle, pair->listener, conn + 2);
    for (int i = 0; i < 4; i++)
        IS(uccl_conn_abort(conn[i]), 0);
    for (int i = 0; i < 2; i++) {
        for (; books_of(pair->engine[i]).conns > 1 && now_ms() < end_ms; sleep_us(1000))
            free_abandoned(pair->engine[i]);
        check_books(pair->engine[i], 1);
    }
}

BOTH(leaks, aborted_connections)
{
    struct pair pair;
    pair_open(&pair, lend);
    repeat(connect_and_abort, &pair, CLOSED_KEPT / 2, CYCLES);
    pair_close(&pair);
}

/* ---- peers ----------------------------------------------------------------------------------- */

struct server {
    uccl_engine *engine;
    uccl_listener *listener;
    struct uccl_handle handle;
    const char *lend;
};

static void serve(struct server *server, const char *lend)
{
    server->lend = lend;
    server->engine = open_engine(lend, NULL);
    IS(uccl_listen(server->engine, 0, 0, &server->handle, &server->listener), 0);
}

/* As if the engine had seen nothing of its peers for a long time, or as if they had died. */
static void forsake(uccl_engine *engine, bool dead)
{
    pthread_mutex_lock(&engine->lock);
    for (struct peer *peer = engine->peers.peers; peer; peer = peer->next) {
        cr_assert_eq(peer->references, 0);
        if (dead)
            peer_flow_turned(&peer->flows[0], FLOW_DEAD);
        else
            peer->idle_since_ns -= UINT64_C(3600) * 1000000000;
    }
    pthread_mutex_unlock(&engine->lock);
}

/* Whoever is met next makes the engine forget those that are gone. */
static void come_and_go(struct server *server, bool dead)
{
    uccl_conn *conn[2];
    uccl_engine *client = open_engine(server->lend, "LINGER_MS", "100", NULL);
    connect_now(client, &server->handle, server->listener, conn);
    check_books(server->engine, 1);
    exchange(conn[0], conn[1], 100, 1);
    IS(uccl_conn_close(conn[0]), 0);
    IS(uccl_conn_close(conn[1]), 0);
    IS(uccl_close(client), 0);
    check_books(server->engine, 0);
    forsake(server->engine, dead);
}

static void come_and_rest(void *server)
{
    come_and_go(server, false);
}

static void come_and_die(void *server)
{
    come_and_go(server, true);
}

BOTH(leaks, clients_that_come_and_go)
{
    struct server server;
    serve(&server, lend);
    for (unsigned i = 0; i < CLOSED_KEPT; i++)
        come_and_rest(&server);
    repeat(come_and_rest, &server, WARM_UP, CYCLES / 2);
    repeat(come_and_die, &server, WARM_UP, CYCLES / 2);
    IS(uccl_close(server.engine), 0);
}

/* ---- handshakes that do not end well --------------------------------------------------------- */

struct attempt {
    struct pair pair;
    struct uccl_handle nowhere, another;
};

static void fail_and_cancel(void *argument)
{
    struct attempt *attempt = argument;
    struct pair *pair = &attempt->pair;
    uccl_conn *conn = NULL, *none;
    IS(uccl_connect(pair->engine[0], &attempt->nowhere, SOON_MS, &conn), UCCL_EREFUSED);
    int result;
    while ((result = uccl_connect(pair->engine[0], &attempt->another, 0, &conn)) == UCCL_EAGAIN)
        uccl_accept(pair->listener, 0, &none);
    IS(result, UCCL_EREFUSED);
    for (int steps = 0; steps < 4; steps++) { /* each further than the one before */
        struct uccl_handle handle = pair->handle;
        int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
        for (int i = 0; i <= steps && connected == UCCL_EAGAIN && accepted == UCCL_EAGAIN; i++) {
            connected = uccl_connect(pair->engine[0], &handle, 0, &conn);
            sleep_us(500);
            accepted = uccl_accept(pair->listener, 0, &none);
        }
        if (connected == UCCL_EAGAIN)
            uccl_connect_cancel(&handle);
        else
            IS(uccl_conn_close(conn), 0);
        if (accepted == UCCL_OK)
            IS(uccl_conn_abort(none), 0);
        while ((accepted = uccl_accept(pair->listener, 20, &none)) == UCCL_OK) /* READY had left */
            IS(uccl_conn_abort(none), 0);
        IS(accepted, UCCL_ETIMEDOUT);
    }
    uint64_t end_ms = now_ms() + SOON_MS;
    for (int i = 0; i < 2; i++) {
        for (; books_of(pair->engine[i]).conns > 1 && now_ms() < end_ms; sleep_us(1000))
            free_abandoned(pair->engine[i]);
        check_books(pair->engine[i], 1);
    }
}

BOTH(leaks, handshakes_that_fail)
{
    struct attempt attempt;
    uccl_listener *listener;
    struct pair *pair = &attempt.pair;
    pair_open(pair, lend);
    IS(uccl_listen(pair->engine[1], 0, 0, &attempt.nowhere, &listener), 0);
    IS(uccl_listener_close(listener), 0);
    attempt.another = pair->handle;
    attempt.another.listener[4] ^= 1;                /* the listener's number: another one answers there */
    for (unsigned i = 0; i < CLOSED_KEPT / 8; i++) { /* until what is kept of closed ones is full */
        connect_and_abort(pair);
        connect_and_abort(pair);
    }
    repeat(fail_and_cancel, &attempt, CLOSED_KEPT / 4, CYCLES / 2);
    pair_close(pair);
}

/* More connects, one after another, than there may be at once. */
Test(leaks, places_of_connects, .timeout = 4 * TIMEOUT_S)
{
    enum { CONNECTS = 4200 };
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct uccl_handle handle;
    uccl_conn *conn = NULL;
    uccl_engine *engine = open_engine("yes", NULL);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 8) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    for (unsigned i = 0; i < CONNECTS; i++) {
        IS(uccl_handle_from_address("127.0.0.1", ntohs(address.sin_port), &handle), 0);
        IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);
        uccl_connect_cancel(&handle);
        close(accept(fd, NULL, NULL));
    }
    close(fd);
    IS(uccl_close(engine), 0);
}
