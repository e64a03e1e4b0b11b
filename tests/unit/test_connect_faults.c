/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failure at each system call and allocation of a connect and an accept that never block: the n-th call of a function
 * on this thread fails, for each function and each n, until a run comes through in which none did. Whatever failed, the
 * call says so by an error that is not "again", nothing stays behind, and the next connect with the same handle works.
 */
#include "api_pair.h"
#include "failing.h"

#include "../../api/objects.h"

static const struct {
    enum call call;
    int error;
} calls[] = {
    {CALL_socket, EMFILE},
    {CALL_setsockopt, EINVAL},
    {CALL_getsockopt, EBADF},
    {CALL_connect, ENETUNREACH},
    {CALL_accept4, EMFILE},
    {CALL_getpeername, ENOTCONN},
    {CALL_fcntl64, EBADF},
    {CALL_send, EIO},
    {CALL_recv, EIO},
    {CALL_poll, ENOMEM},
    {CALL_getrandom, ENOSYS},
    {CALL_mmap64, ENOMEM},
    {CALL_malloc, ENOMEM},
    {CALL_calloc, ENOMEM},
    {CALL_listen, EADDRINUSE},
    {CALL_bind, EADDRINUSE},
    {CALL_getsockname, ENOBUFS},
};
enum { CALLS_TRIED = sizeof calls / sizeof *calls };

/* The n-th call of a function on this thread fails; the engine threads are left alone. */
static void arm(unsigned index, unsigned n)
{
    arm_failure(TESTER, calls[index].call, calls[index].error, n, false);
    acting = TESTER;
}

static bool disarm(void)
{
    acting = NOBODY;
    return disarm_failure();
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct world {
    uccl_engine *client, *server;
    uccl_listener *listener;
    struct uccl_handle handle;
    uccl_conn *conn[2];
    int result; /* of the connect */
    bool lose;  /* the server loses the peer that the client has claimed */
};

/* Steps both sides until the connect is over, and the accept, or nothing has come of it for a while. */
static void connect_both(struct world *world)
{
    uint64_t end_ms = now_ms() + SOON_MS, connected_ms = 0;
    world->conn[0] = world->conn[1] = NULL;
    world->result = UCCL_EAGAIN;
    while (world->result == UCCL_EAGAIN || (world->result == 0 && !world->conn[1])) {
        if (world->result == UCCL_EAGAIN)
            world->result = uccl_connect(world->client, &world->handle, 0, &world->conn[0]);
        if (world->result == 0 && !connected_ms)
            connected_ms = now_ms();
        struct peer *peer = world->server->peers.peers;
        if (world->lose && world->client->peers.peers && world->client->peers.peers->references > 1 && peer)
            peer->dead = true;
        int accepted = world->conn[1] ? UCCL_EAGAIN : uccl_accept(world->listener, 0, &world->conn[1]);
        cr_assert(accepted == 0 || accepted == UCCL_EAGAIN || (accepted == UCCL_ENOMEM && atomic_load(&plan.failed)));
        if (connected_ms && now_ms() > connected_ms + 50)
            return; /* the server's half has failed, READY or not */
        cr_assert(now_ms() < end_ms, "%s: connect %d, accepted %d", call_names[plan.call], world->result,
                  world->conn[1] != NULL);
    }
}

static void close_both(struct world *world)
{
    for (int i = 0; i < 2; i++) {
        if (world->conn[i])
            IS(uccl_conn_close(world->conn[i]), 0);
    }
}

/* What the engine counts agrees with what it has. */
static void check_books(uccl_engine *engine, const char *name, unsigned n)
{
    const struct peer_table *table = &engine->peers;
    unsigned conns = 0, ids = 0, peers = 0, references = 0, unmet = 0;
    for (const struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        conns++;
    for (unsigned i = 0; i < CORE_CONNS_MAX / 64; i++)
        ids += (unsigned)__builtin_popcountll(engine->conn_indices[i]);
    for (const struct peer *peer = table->peers; peer; peer = peer->next) {
        peers++;
        references += peer->references;
        unmet += peer->is_server && !peer->met;
    }
    cr_assert_eq(ids, conns, "%s %u: %u numbers of connections, %u connections", name, n, ids, conns);
    cr_assert_eq(references, conns, "%s %u: %u references to peers, %u connections", name, n, references, conns);
    cr_assert_eq(table->unmet, unmet, "%s %u: %u peers not met, not %u", name, n, unmet, table->unmet);
    for (unsigned t = 0; t < table->thread_count; t++) {
        unsigned slots = 0;
        for (unsigned i = 0; i < CORE_FLOWS_MAX / 64; i++)
            slots += (unsigned)__builtin_popcountll(table->slots_used[t][i]);
        cr_assert_eq(slots, peers, "%s %u: %u slots, %u peers", name, n, slots, peers);
    }
}

enum scenario { FIRST_CONTACT, KNOWN, LOST };

/* One run; false: it has not come to the n-th call. */
static bool run(enum scenario scenario, unsigned call, unsigned n)
{
    static const uint8_t none[16];
    struct world world = {.client = open_engine("no", "CONNECT_MS", "2000", "LINGER_MS", "0", "NUM_ENGINES", "2", NULL),
                          .server =
                              open_engine("no", "CONNECT_MS", "2000", "LINGER_MS", "0", "NUM_ENGINES", "2", NULL)};
    IS(uccl_listen(world.server, 0, 0, &world.handle, &world.listener), 0);
    struct world before = world;
    if (scenario != FIRST_CONTACT) {
        connect_both(&world);
        IS(world.result, 0);
        before = world;
        world.lose = scenario == LOST;
    }
    arm(call, n);
    connect_both(&world);
    bool failed = disarm();
    world.lose = false;
    const char *name = call_names[calls[call].call];
    cr_assert(world.result <= 0 && world.result != UCCL_EAGAIN, "%s %u: %d", name, n, world.result);
    cr_assert(memcmp(world.handle.state, none, sizeof none) == 0, "%s %u leaves a state", name, n);
    cr_assert(!world.client->connecting, "%s %u leaves a connect", name, n);
    cr_assert(world.result == 0 || failed, "%s: no call failed, but the connect did: %d", name, world.result);
    cr_assert(world.result == 0 || !world.conn[0], "an output although it failed");
    if (world.result == 0 && world.conn[1])
        exchange(world.conn[0], world.conn[1], 1000, n);
    close_both(&world);
    connect_both(&world);
    cr_assert(world.result == 0 && world.conn[1], "%s %u: the next connect: %d", name, n, world.result);
    exchange(world.conn[0], world.conn[1], 1000, n);
    check_books(world.client, name, n);
    check_books(world.server, name, n);
    if (scenario != FIRST_CONTACT)
        exchange(before.conn[1], before.conn[0], 1000, n); /* what stood stands */
    IS(uccl_close(world.client), 0);
    IS(uccl_close(world.server), 0);
    return failed;
}

static void run_all(enum scenario scenario)
{
    uccl_set_log(log_nothing, NULL);
    run(scenario, 0, 1000000); /* what is made once per process */
    struct held held = held_now();
    for (unsigned call = 0; call < CALLS_TRIED; call++) {
        enum call which = calls[call].call;
        if (which == CALL_listen || which == CALL_bind || which == CALL_getsockname)
            continue;
        unsigned n = 1;
        while (run(scenario, call, n) && n < 200) {
            struct held now = held_now();
            cr_assert_eq(now.files, held.files, "%s %u leaves descriptors", call_names[which], n);
            cr_assert_eq(now.mapped, held.mapped, "%s %u leaves mappings", call_names[which], n);
            n++;
        }
        cr_assert(n < 200);
        bool expected = which != CALL_poll; /* of the others some are called in each scenario */
        cr_assert(!expected || n > 1, "%s is never called", call_names[which]);
    }
}

TestSuite(connect_faults, .timeout = 4 * TIMEOUT_S);

Test(connect_faults, first_contact)
{
    run_all(FIRST_CONTACT);
}

Test(connect_faults, known_peers)
{
    run_all(KNOWN);
}

/* The client begins anew in the middle: also that may fail. */
Test(connect_faults, peers_lost_meanwhile)
{
    run_all(LOST);
}

Test(connect_faults, listening)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_set_log(log_nothing, NULL);
    uccl_engine *engine = open_engine("no", NULL);
    int files = held_now().files;
    for (unsigned call = 0; call < CALLS_TRIED; call++) {
        const char *name = call_names[calls[call].call];
        for (unsigned n = 1;; n++) {
            listener = NULL;
            arm(call, n);
            int result = uccl_listen(engine, 0, 0, &handle, &listener);
            bool failed = disarm();
            cr_assert(result == 0 || (result < UCCL_EAGAIN && !listener), "%s %u: %d", name, n, result);
            if (listener)
                IS(uccl_listener_close(listener), 0);
            cr_assert_eq(held_now().files, files, "%s %u leaves descriptors", name, n);
            if (!failed)
                break;
            cr_assert(result != 0 || calls[call].call == CALL_setsockopt, "%s %u is not noticed", name, n);
        }
    }
    IS(uccl_close(engine), 0);
}

/* What the system says of a connect, and what the application hears. */
Test(connect_faults, errors_of_a_connect)
{
    static const struct {
        int system_error, error;
    } rows[] = {
        {ECONNREFUSED, UCCL_EREFUSED},
        {ETIMEDOUT, UCCL_ETIMEDOUT},
        {ENETUNREACH, UCCL_EADDR},
        {EHOSTUNREACH, UCCL_EADDR},
        {ENETDOWN, UCCL_EADDR},
        {EHOSTDOWN, UCCL_EADDR},
        {ENONET, UCCL_EADDR},
        {EADDRNOTAVAIL, UCCL_EADDR},
        {EAFNOSUPPORT, UCCL_EADDR},
        {EINVAL, UCCL_EADDR},
        {ENODEV, UCCL_EADDR},
        {ENXIO, UCCL_EADDR},
        {EACCES, UCCL_EADDR},
        {EPERM, UCCL_EADDR},
        {ECONNRESET, UCCL_EREFUSED},
        {ECONNABORTED, UCCL_EREFUSED},
        {EPIPE, UCCL_EREFUSED},
        {EMFILE, UCCL_ENOMEM},
        {ENFILE, UCCL_ENOMEM},
        {ENOBUFS, UCCL_ENOMEM},
        {ENOMEM, UCCL_ENOMEM},
        {EIO, UCCL_EIO},
        {EBADF, UCCL_EIO},
    };
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_set_log(log_nothing, NULL);
    uccl_engine *engine = open_engine("no", NULL);
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    unsigned files = entries_of("/proc/self/fd");
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uccl_conn *conn = NULL;
        arm_failure(TESTER, CALL_connect, rows[i].system_error, 1, false);
        acting = TESTER;
        int result = uccl_connect(engine, &handle, SOON_MS, &conn);
        bool failed = disarm();
        cr_assert(failed && result == rows[i].error, "%s: %d, not %d", strerror(rows[i].system_error), result,
                  rows[i].error);
        cr_assert_null(conn);
        cr_assert_eq(entries_of("/proc/self/fd"), files);
    }
    IS(uccl_close(engine), 0);
}
