/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several application threads at both ends: some only send and some only receive, all on the same connections, waiting
 * side by side in each way there is. Numbers of threads may differ between the ends.
 *
 *   callers serve PORT SENDERS RECEIVERS
 *   callers call HOST PORT CONNECTIONS MESSAGES SENDERS RECEIVERS
 *
 * Each end sends MESSAGES on each connection. A message carries its connection, the thread that sent it, and its number
 * among that thread's. A receiver checks every byte, and that the messages of one sender reach it in their order; an
 * end checks that each message comes once. At the server each connection has threads of its own, at the client all
 * threads use every connection. Exit status 0 when all was right.
 *
 * The server takes connections with two threads, any number of clients one after another. On SIGUSR1 it prints a line
 * of what its engine has in use (api/budget.h). On SIGUSR2 a long time seems to pass for peers that nobody uses; the
 * engine forgets them when it looks next. On SIGTERM it ends: 0 when all it received was right. A connection that fails
 * is counted, and is no fault of the server.
 */
#include "../../api/budget.h"
#include "../../api/objects.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uccl/engine.h>
#include <unistd.h>

enum {
    THREADS_MAX = 4,
    CONNECTIONS_MAX = 16,
    MESSAGES_MAX = 4096,
    WINDOW = THREADS_MAX, /* requests of a thread on a connection; fewer than senders could wait in a circle */
    BYTES_MAX = 200000,
    MAGIC = 0x63616c6c,
};

struct header {
    uint32_t magic, connection, sender, number;
};

/* The first message on each connection. */
struct hello {
    uint32_t magic, connection, messages;
};

/* One end of a connection. */
struct channel {
    uccl_conn *conn;
    struct hello hello;
    bool serves;
    _Atomic int error; /* the first; from then on nobody uses it */
    _Atomic uint8_t seen[THREADS_MAX][MESSAGES_MAX];
};

struct slot {
    uccl_request *request;
    unsigned char *bytes;
};

/* A thread on some channels. */
struct worker {
    pthread_t thread;
    uccl_engine *engine;
    struct channel *channels;
    unsigned channel_count, index, of; /* which, among those that do the same */
    bool sends;
    struct slot slots[CONNECTIONS_MAX][WINDOW];
    int64_t newest[CONNECTIONS_MAX][THREADS_MAX]; /* number received from each sender, or -1 */
};

struct server {
    uccl_engine *engine;
    uccl_listener *listener;
    unsigned senders, receivers;
    _Atomic unsigned running, served, failed;
    _Atomic bool wrong, over;
};

static _Atomic bool told_to_count, told_to_age, told_to_end;

static void wrong(const struct channel *channel, const char *what)
{
    fprintf(stderr, "callers: connection %u: %s\n", channel->hello.connection, what);
}

static void set_error(struct channel *channel, int error)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&channel->error, &none, error) && error == UCCL_EPROTO)
        wrong(channel, "what was received is wrong");
}

/* ---- contents -------------------------------------------------------------------------------- */

static size_t length_of(uint32_t sender, uint32_t number)
{
    static const size_t lengths[] = {sizeof(struct header), 64, 300, 4096, 9001, 70000, BYTES_MAX};
    return lengths[(sender * 5 + number * 11 + number / 7) % (sizeof lengths / sizeof lengths[0])];
}

static unsigned char content(const struct header *header, bool from_server, size_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 9) + offset + header->number * 97 + header->sender * 31 +
                           header->connection * 7 + from_server);
}

static size_t fill(const struct channel *channel, unsigned char *bytes, uint32_t sender, uint32_t number)
{
    struct header header = {MAGIC, channel->hello.connection, sender, number};
    size_t length = length_of(sender, number);
    memcpy(bytes, &header, sizeof header);
    for (size_t i = sizeof header; i < length; i++)
        bytes[i] = content(&header, channel->serves, i);
    return length;
}

/* What a receive has brought. */
static bool is_right(struct channel *channel, const unsigned char *bytes, size_t length, int64_t newest[THREADS_MAX])
{
    struct header header;
    if (length < sizeof header)
        return false;
    memcpy(&header, bytes, sizeof header);
    if (header.magic != MAGIC || header.connection != channel->hello.connection || header.sender >= THREADS_MAX ||
        header.number >= channel->hello.messages || length != length_of(header.sender, header.number))
        return false;
    for (size_t i = sizeof header; i < length; i++)
        if (bytes[i] != content(&header, !channel->serves, i))
            return false;
    if ((int64_t)header.number <= newest[header.sender] ||
        atomic_exchange(&channel->seen[header.sender][header.number], 1))
        return false; /* out of order, or twice */
    newest[header.sender] = header.number;
    return true;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* How a thread waits depends on its number. */
static int wait_for(const struct worker *worker, uccl_request *request, size_t *bytes)
{
    int error, done = 0;
    switch (worker->index % 3) {
    case 0:
        return uccl_wait(request, -1, bytes);
    case 1:
        while ((error = uccl_wait(request, 2, bytes)) == UCCL_ETIMEDOUT)
            ;
        return error;
    default:
        while ((error = uccl_test(request, &done, bytes)) == 0 && !done)
            sched_yield();
        return error;
    }
}

static void collect(struct worker *worker, unsigned at, struct slot *slot)
{
    struct channel *channel = &worker->channels[at];
    size_t bytes = 0;
    if (!slot->request)
        return;
    int error = wait_for(worker, slot->request, &bytes);
    slot->request = NULL;
    if (!error && !worker->sends && !is_right(channel, slot->bytes, bytes, worker->newest[at]))
        error = UCCL_EPROTO;
    if (error)
        set_error(channel, error);
}

static void post(struct worker *worker, unsigned at, struct slot *slot, uint32_t number, uccl_mr *mr)
{
    struct channel *channel = &worker->channels[at];
    size_t length = worker->sends ? fill(channel, slot->bytes, worker->index, number) : BYTES_MAX;
    int error;
    do {
        error = worker->sends ? uccl_send_async(channel->conn, slot->bytes, length, mr, &slot->request)
                              : uccl_recv_async(channel->conn, slot->bytes, length, mr, &slot->request);
    } while (error == UCCL_EAGAIN && sched_yield() == 0);
    if (error) {
        slot->request = NULL;
        set_error(channel, error);
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    size_t bytes = (size_t)worker->channel_count * WINDOW * BYTES_MAX;
    unsigned char *memory = malloc(bytes);
    uccl_mr *mr = NULL;
    int error = memory ? uccl_reg_mr(worker->engine, memory, bytes, UCCL_MEM_HOST, &mr) : UCCL_ENOMEM;
    for (unsigned at = 0; at < worker->channel_count; at++) {
        for (unsigned i = 0; i < WINDOW && memory; i++)
            worker->slots[at][i] = (struct slot){NULL, memory + (size_t)(at * WINDOW + i) * BYTES_MAX};
        if (error)
            set_error(&worker->channels[at], error);
        memset(worker->newest[at], 0xff, sizeof worker->newest[at]);
    }
    /* WINDOW rounds more than there are messages, for what is under way then */
    for (uint32_t number = 0, most = 0; memory && number <= most + WINDOW; number++) {
        for (unsigned at = 0; at < worker->channel_count; at++) {
            struct channel *channel = &worker->channels[at];
            uint32_t messages = channel->hello.messages;
            uint32_t share = messages / worker->of + (worker->index < messages % worker->of);
            struct slot *slot = &worker->slots[at][number % WINDOW];
            most = share > most ? share : most;
            collect(worker, at, slot);
            if (number < share && !atomic_load(&channel->error))
                post(worker, at, slot, number, mr);
        }
    }
    if (mr)
        uccl_dereg_mr(mr);
    free(memory);
    return NULL;
}

/* All threads of these channels, until they have ended. */
static void work_all(uccl_engine *engine, struct channel *channels, unsigned count, unsigned senders,
                     unsigned receivers)
{
    struct worker *workers = calloc(senders + receivers, sizeof *workers);
    unsigned started = 0;
    for (; workers && started < senders + receivers; started++) {
        bool sends = started < senders;
        workers[started] = (struct worker){
            .engine = engine,
            .channels = channels,
            .channel_count = count,
            .index = sends ? started : started - senders,
            .of = sends ? senders : receivers,
            .sends = sends,
        };
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]))
            break;
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < count && started < senders + receivers; i++)
        set_error(&channels[i], UCCL_ENOMEM);
    free(workers);
}

/* One message by itself. */
static int alone(uccl_conn *conn, bool sends, void *bytes, size_t length)
{
    uccl_request *request;
    size_t received = length;
    int error;
    while ((error = sends ? uccl_send_async(conn, bytes, length, NULL, &request)
                          : uccl_recv_async(conn, bytes, length, NULL, &request)) == UCCL_EAGAIN)
        sched_yield();
    if (!error)
        error = uccl_wait(request, -1, &received);
    return !error && received != length ? UCCL_EPROTO : error;
}

/* ---- the server ------------------------------------------------------------------------------ */

struct visit {
    struct server *server;
    struct channel channel;
};

static void *visit(void *argument)
{
    struct visit *visit = argument;
    struct server *server = visit->server;
    struct channel *channel = &visit->channel;
    uint32_t bye = MAGIC;
    int error = alone(channel->conn, false, &channel->hello, sizeof channel->hello);
    if (!error && (channel->hello.magic != MAGIC || channel->hello.messages > MESSAGES_MAX))
        error = UCCL_EPROTO;
    if (!error) {
        work_all(server->engine, channel, 1, server->senders, server->receivers);
        error = atomic_load(&channel->error);
        if (error == UCCL_EPROTO)
            atomic_store(&server->wrong, true);
    }
    if (!error)
        alone(channel->conn, true, &bye, sizeof bye); /* the client may be gone once it has come */
    uccl_conn_close(channel->conn);
    atomic_fetch_add(error ? &server->failed : &server->served, 1);
    free(visit);
    atomic_fetch_sub(&server->running, 1);
    return NULL;
}

static void *accept_all(void *argument)
{
    struct server *server = argument;
    while (!atomic_load(&server->over)) {
        uccl_conn *conn;
        pthread_t thread;
        if (uccl_accept(server->listener, 100, &conn))
            continue;
        struct visit *visitor = calloc(1, sizeof *visitor);
        if (!visitor)
            abort();
        visitor->server = server;
        visitor->channel.conn = conn;
        visitor->channel.serves = true;
        atomic_fetch_add(&server->running, 1);
        if (pthread_create(&thread, NULL, visit, visitor) || pthread_detach(thread))
            abort();
    }
    return NULL;
}

static void print_budget(const struct server *server)
{
    struct budget b;
    engine_budget(server->engine, &b);
#define FIELD(name) printf(#name " %llu ", (unsigned long long)b.name)
    FIELD(peers), FIELD(unmet_peers), FIELD(flow_slots), FIELD(flows), FIELD(conns), FIELD(abandoned_conns);
    FIELD(kept_conns), FIELD(conn_ids), FIELD(connecting), FIELD(listeners), FIELD(handshakes), FIELD(registrations);
    FIELD(regions), FIELD(requests), FIELD(buffers), FIELD(staged);
#undef FIELD
    printf("running %u served %u failed %u\n", atomic_load(&server->running), atomic_load(&server->served),
           atomic_load(&server->failed));
}

static void age_peers(struct uccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (struct peer *peer = engine->peers.peers; peer; peer = peer->next)
        peer->idle_since_ns = 0;
    pthread_mutex_unlock(&engine->lock);
    puts("aged");
}

static void on_signal(int number)
{
    atomic_store(number == SIGUSR1 ? &told_to_count : number == SIGUSR2 ? &told_to_age : &told_to_end, true);
}

static int serve(uccl_engine *engine, unsigned port, unsigned senders, unsigned receivers)
{
    static struct server server;
    struct sigaction action = {.sa_handler = on_signal};
    struct timespec moment = {0, 5000000};
    struct uccl_handle handle;
    pthread_t acceptors[2];
    server.engine = engine;
    server.senders = senders;
    server.receivers = receivers;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    int error = uccl_listen(engine, -1, (uint16_t)port, &handle, &server.listener);
    if (error)
        return error;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&acceptors[i], NULL, accept_all, &server))
            abort();
    while (!atomic_load(&told_to_end)) {
        if (atomic_exchange(&told_to_age, false))
            age_peers(engine);
        if (atomic_exchange(&told_to_count, false))
            print_budget(&server);
        nanosleep(&moment, NULL);
    }
    atomic_store(&server.over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(acceptors[i], NULL);
    uccl_listener_close(server.listener);
    while (atomic_load(&server.running))
        nanosleep(&moment, NULL);
    print_budget(&server);
    return atomic_load(&server.wrong) ? UCCL_EPROTO : 0;
}

/* ---- the client ------------------------------------------------------------------------------ */

static int call(uccl_engine *engine, const char *host, unsigned port, unsigned connections, unsigned messages,
                unsigned senders, unsigned receivers)
{
    struct channel *channels = calloc(connections, sizeof *channels);
    struct uccl_handle handle;
    unsigned connected = 0;
    int error = channels ? uccl_handle_from_address(host, (uint16_t)port, &handle) : UCCL_ENOMEM;
    for (; !error && connected < connections; connected++) {
        struct channel *channel = &channels[connected];
        struct uccl_handle to = handle;
        channel->hello = (struct hello){MAGIC, connected, messages};
        error = uccl_connect(engine, &to, -1, &channel->conn);
        if (error)
            break;
        error = alone(channel->conn, true, &channel->hello, sizeof channel->hello);
    }
    if (!error) {
        puts("connected");
        work_all(engine, channels, connections, senders, receivers);
    }
    for (unsigned i = 0; i < connected; i++) {
        uint32_t bye = 0;
        if (!error)
            error = atomic_load(&channels[i].error);
        if (!error)
            error = alone(channels[i].conn, false, &bye, sizeof bye);
        uccl_conn_close(channels[i].conn);
    }
    free(channels);
    return error;
}

static unsigned number(const char *text, unsigned least, unsigned most)
{
    long value = strtol(text, NULL, 10);
    if (value >= (long)least && value <= (long)most)
        return (unsigned)value;
    fprintf(stderr, "callers: %s is not from %u to %u\n", text, least, most);
    exit(2);
}

int main(int argc, char **argv)
{
    uccl_engine *engine;
    bool serves = argc == 5 && strcmp(argv[1], "serve") == 0;
    if (!serves && !(argc == 8 && strcmp(argv[1], "call") == 0)) {
        fprintf(
            stderr,
            "usage: callers serve PORT SENDERS RECEIVERS | call HOST PORT CONNECTIONS MESSAGES SENDERS RECEIVERS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    unsigned port = number(argv[serves ? 2 : 3], 1, 65535);
    unsigned senders = number(argv[argc - 2], 1, THREADS_MAX), receivers = number(argv[argc - 1], 1, THREADS_MAX);
    int error = uccl_open(NULL, &engine);
    if (error) {
        fprintf(stderr, "callers: open: %s\n", uccl_strerror(error));
        return 1;
    }
    if (serves)
        error = serve(engine, port, senders, receivers);
    else
        error = call(engine, argv[2], port, number(argv[4], 1, CONNECTIONS_MAX), number(argv[5], 1, MESSAGES_MAX),
                     senders, receivers);
    if (error)
        fprintf(stderr, "callers: %s\n", uccl_strerror(error));
    if (uccl_close(engine) && !error)
        error = UCCL_EIO;
    return error ? 1 : 0;
}
