/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every failure, both ways: the n-th call of a function fails in one of two engines, for each row of a table, each
 * side, and each n until a run comes through in which none did. A row says which codes that side may end with, and
 * which the other one; all of them must have been seen, and no others. Whatever failed, what was held is given back,
 * and a later transfer works, both ways.
 */
#include "two_sides.h"

#include "nic/udp/udp.h"

enum { N_MAX = 300 };

#define GOOD ONE(UCCL_OK)
#define NOMEM ONE(UCCL_ENOMEM)
#define IO ONE(UCCL_EIO)
#define ADDR ONE(UCCL_EADDR)
#define PROTO ONE(UCCL_EPROTO)
#define REFUSED ONE(UCCL_EREFUSED)
#define CLOSED ONE(UCCL_ECLOSED)
#define DEAD ONE(UCCL_EPEERDEAD)

TestSuite(failures, .timeout = 4 * TIMEOUT_S);

static const char *text_of(codes set, char out[256])
{
    size_t at = 0;
    out[0] = '\0';
    for (int code = 0; code < 16; code++) {
        if (set >> code & 1)
            at += (size_t)snprintf(out + at, 256 - at, "%s%s", at ? ", " : "", uccl_strerror(-code));
    }
    return out;
}

static void check_codes(const char *what, enum call call, int error, codes seen, codes expected)
{
    char some[256], must[256], may[256];
    bool right = (seen & ~(expected | expected >> 16)) == 0 && (expected & 0xffff & ~seen) == 0;
    cr_assert(right, "%s: %s fails with %s: {%s}, where {%s} must be and {%s} may be", what, call_names[call],
              strerror(error), text_of(seen, some), text_of(expected & 0xffff, must), text_of(expected >> 16, may));
}

static void check_held(const struct held *before, const char *what, enum call call, unsigned n)
{
    struct held now = held_now();
    cr_assert(now.files == before->files, "%s: %s %u leaves %d descriptors", what, call_names[call], n,
              now.files - before->files);
    cr_assert(now.mapped == before->mapped, "%s: %s %u leaves %ld mapped bytes", what, call_names[call], n,
              (long)(now.mapped - before->mapped));
    cr_assert(now.threads == before->threads, "%s: %s %u leaves %ld threads", what, call_names[call], n,
              (long)(now.threads - before->threads));
    cr_assert(now.blocks == before->blocks, "%s: %s %u leaves %ld blocks", what, call_names[call], n,
              (long)(now.blocks - before->blocks));
}

/* ---- open ------------------------------------------------------------------------------------ */

struct open_row {
    enum call call;
    int error;
    codes expected[3]; /* by mode; 0: it is not called */
};

static const struct open_row open_rows[] = {
    {CALL_socket, EMFILE, {GOOD | NOMEM, GOOD | NOMEM, GOOD | NOMEM}}, /* one that asks may be of another family */
    {CALL_socket, ENOBUFS, {GOOD | NOMEM, GOOD | NOMEM, GOOD | NOMEM}},
    {CALL_socket, EAFNOSUPPORT, {GOOD | IO, GOOD | IO, GOOD | IO}},
    {CALL_socket, EPERM, {GOOD | IO, GOOD | IO, GOOD | IO}},
    {CALL_bind, EADDRINUSE, {GOOD | IO, GOOD | IO, GOOD | IO}},
    {CALL_getsockname, ENOBUFS, {NOMEM, NOMEM, NOMEM}},
    {CALL_setsockopt, ENOPROTOOPT, {GOOD | IO, GOOD | IO, GOOD | IO}},
    {CALL_getsockopt, ENOPROTOOPT, {GOOD, GOOD, GOOD}},
    {CALL_getifaddrs, ENOMEM, {NOMEM, NOMEM, NOMEM}},
    {CALL_getifaddrs, EPERM, {IO, IO, IO}},
    {CALL_ioctl, ENOTTY, {GOOD, GOOD, GOOD}},
    {CALL_fopen64, ENOENT, {GOOD, GOOD, GOOD}},
    {CALL_eventfd, EMFILE, {NOMEM, NOMEM, NOMEM}},
    {CALL_eventfd, ENODEV, {IO, IO, IO}},
    {CALL_getrandom, ENOSYS, {GOOD | IO, GOOD | IO, GOOD | IO}}, /* a seed need not be a secret */
    {CALL_pthread_create, EAGAIN, {NOMEM, NOMEM, NOMEM}},
    {CALL_mmap64, ENOMEM, {NOMEM, NOMEM, NOMEM}},
    {CALL_calloc, ENOMEM, {NOMEM, NOMEM, NOMEM}},
    {CALL_aligned_alloc, ENOMEM, {NOMEM, NOMEM, NOMEM}},
    {CALL_io_uring_queue_init_params, EMFILE, {0, 0, NOMEM}},
    {CALL_io_uring_queue_init_params, EPERM, {0, 0, ONE(UCCL_ENOTSUP)}},
    {CALL_io_uring_register_buf_ring, ENOMEM, {0, 0, ONE(UCCL_ENOTSUP)}},
};

static bool has_ipv6(const struct uccl_engine *engine)
{
    return udp_queue_of(engine->threads[0].queue)->v6;
}

/* Short of something, an engine fails; it does not come out as one without IPv6. */
static void check_family(const struct uccl_engine *engine, const struct uccl_engine *other, const struct open_row *row,
                         unsigned n)
{
    bool lacking = row->error == EMFILE || row->error == ENOBUFS;
    cr_assert(!lacking || has_ipv6(engine) == has_ipv6(other), "%s %u: no IPv6", call_names[row->call], n);
}

/* The client's engine, or the server's: it shows when they work with each other. */
static bool open_once(enum mode mode, enum side side, const struct open_row *row, unsigned n, codes *seen)
{
    struct world world = {0};
    for (enum side at = CLIENT; at <= SERVER; at++) {
        if (at == side)
            arm_failure(side, row->call, row->error, n, false);
        int error = try_open(mode, at, &world.engine[at - CLIENT]);
        if (at != side) {
            IS(error, 0);
            continue;
        }
        if (disarm_failure())
            *seen |= ONE(error);
        else
            IS(error, 0);
        cr_assert(error == 0 || !world.engine[at - CLIENT], "an output although it failed");
        if (error)
            IS(try_open(mode, at, &world.engine[at - CLIENT]), 0);
    }
    bool failed = atomic_load(&plan.failed) > 0;
    if (failed) {
        check_family(world.engine[0], world.engine[1], row, n);
        IS(uccl_listen(world.engine[1], 0, 0, &world.handle, &world.listener), 0);
        connect_well(&world);
        transfer(&world, n);
        close_conns(&world);
    }
    close_world(&world);
    return failed;
}

EACH_MODE(failures, opening)
{
    struct held before = held_when_warm(mode);
    for (size_t i = 0; i < sizeof open_rows / sizeof *open_rows; i++) {
        const struct open_row *row = &open_rows[i];
        codes seen = 0;
        enum side side = i % 2 ? CLIENT : SERVER;
        for (unsigned n = 1; n < N_MAX && open_once(mode, side, row, n, &seen); n++)
            check_held(&before, "open", row->call, n);
        check_codes(modes[mode].name, row->call, row->error, seen, row->expected[mode]);
    }
}

/* ---- listen ---------------------------------------------------------------------------------- */

struct listen_row {
    enum call call;
    int error;
    codes expected;
};

static const struct listen_row listen_rows[] = {
    {CALL_socket, EMFILE, GOOD | NOMEM}, {CALL_socket, EAFNOSUPPORT, GOOD},  {CALL_socket, EACCES, GOOD | ADDR},
    {CALL_bind, EADDRINUSE, ADDR},       {CALL_bind, EACCES, ADDR},          {CALL_bind, ENOMEM, NOMEM},
    {CALL_listen, EADDRINUSE, ADDR},     {CALL_getsockname, ENOBUFS, NOMEM}, {CALL_setsockopt, ENOPROTOOPT, GOOD},
    {CALL_getifaddrs, ENOMEM, NOMEM},    {CALL_getrandom, ENOSYS, IO},       {CALL_calloc, ENOMEM, NOMEM},
};

Test(failures, listening)
{
    uccl_set_log(log_nothing, NULL);
    for (int device = -1; device < 1; device++) {
        uccl_engine *engine = NULL;
        IS(try_open(THREADS, SERVER, &engine), 0);
        struct held before = held_now();
        int64_t kept = 0; /* what is closed is freed later */
        for (size_t i = 0; i < sizeof listen_rows / sizeof *listen_rows; i++) {
            const struct listen_row *row = &listen_rows[i];
            codes seen = 0;
            for (unsigned n = 1; n < N_MAX; n++) {
                struct uccl_handle handle;
                uccl_listener *listener = NULL;
                arm_failure(SERVER, row->call, row->error, n, false);
                acting = SERVER;
                int error = uccl_listen(engine, device, 0, &handle, &listener);
                acting = NOBODY;
                bool failed = disarm_failure();
                cr_assert((error == 0) == (listener != NULL));
                if (failed)
                    seen |= ONE(error);
                else
                    IS(error, 0);
                if (listener) {
                    IS(uccl_listener_close(listener), 0);
                    kept += kept < CLOSED_KEPT;
                }
                struct held now = before;
                now.blocks += kept;
                check_held(&now, "listen", row->call, n);
                if (!failed)
                    break;
            }
            if (device < 0 || (row->call != CALL_getifaddrs && row->error != EAFNOSUPPORT && row->call != CALL_socket))
                check_codes("listen", row->call, row->error, seen, row->expected);
        }
        IS(uccl_close(engine), 0);
    }
}

/* ---- handshake ------------------------------------------------------------------------------- */

struct meet_row {
    enum call call;
    int error;
    codes client_fails[2]; /* what the client's call ends with, and whether the server accepts it (else EAGAIN) */
    codes server_fails[2];
};

#define NONE ONE(UCCL_EAGAIN)

static const struct meet_row meet_rows[] = {
    /* of the route a second socket may tell what the first has not */
    {CALL_socket, EMFILE, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_socket, EACCES, {ADDR | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_connect, ENETUNREACH, {ADDR | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_connect, EPERM, {ADDR | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_connect, ECONNREFUSED, {REFUSED | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_connect, EAGAIN, {IO | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_connect, ENOBUFS, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_accept4, EMFILE, {0, 0}, {GOOD, GOOD | MAY(NOMEM)}},
    {CALL_accept4, ECONNABORTED, {0, 0}, {GOOD, GOOD}},
    {CALL_accept4, EINTR, {0, 0}, {GOOD, GOOD}},
    {CALL_accept4, ENETDOWN, {0, 0}, {GOOD, GOOD}},
    {CALL_accept4, EPERM, {0, 0}, {GOOD, GOOD}},
    {CALL_getpeername, ENOTCONN, {0, 0}, {REFUSED, NONE}}, /* the client has left */
    {CALL_getsockname, ENOBUFS, {GOOD, GOOD}, {GOOD, GOOD}},
    {CALL_fcntl64, EBADF, {GOOD, GOOD}, {REFUSED | MAY(GOOD), NONE | MAY(GOOD)}}, /* of TCP, or of the handshake */
    {CALL_getsockopt, EBADF, {IO | MAY(GOOD), NONE | MAY(GOOD)}, {GOOD, GOOD}},
    {CALL_setsockopt, EINVAL, {GOOD, GOOD}, {GOOD, GOOD}},
    {CALL_send, EIO, {IO, NONE}, {IO, NONE}},
    {CALL_send, ENOBUFS, {NOMEM, NONE}, {NOMEM, NONE}},
    {CALL_send, ECONNRESET, {CLOSED | MAY(REFUSED), NONE}, {CLOSED | MAY(REFUSED | PROTO), NONE}},
    /* a server that does not get READY has not the client's connection, which ends */
    {CALL_recv, EIO, {IO, NONE}, {IO | MAY(REFUSED | GOOD), NONE}},
    {CALL_recv, ECONNRESET, {CLOSED | MAY(REFUSED), NONE}, {CLOSED | MAY(REFUSED | PROTO | GOOD), NONE}},
    {CALL_recv, ENOMEM, {NOMEM, NONE}, {NOMEM | MAY(REFUSED | GOOD), NONE}},
    {CALL_poll, ENOMEM, {GOOD, GOOD}, {GOOD, GOOD}},
    {CALL_getrandom, ENOSYS, {IO, NONE}, {IO | REFUSED, NONE}},
    /* without memory for a queue of TCP large messages go over UDP, too */
    {CALL_mmap64, ENOMEM, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}},
    {CALL_malloc, ENOMEM, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}},
    {CALL_calloc, ENOMEM, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {NOMEM | REFUSED | MAY(GOOD), NONE | MAY(GOOD)}},
    {CALL_realloc, ENOMEM, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}, {NOMEM | MAY(GOOD), NONE | MAY(GOOD)}},
};

/* Slots and numbers in use are those of what lives. */
static void check_tables(struct uccl_engine *engine, const char *what, enum call call, unsigned n)
{
    unsigned used = 0, flows = 0, references = 0, indices = 0, conns = 0;
    for (unsigned i = 0; i < engine->thread_count; i++)
        for (unsigned word = 0; word < CORE_FLOWS_MAX / 64; word++)
            used += (unsigned)__builtin_popcountll(engine->peers.slots_used[i][word]);
    for (const struct peer *peer = engine->peers.peers; peer; peer = peer->next) {
        flows += peer->flow_count;
        references += peer->references;
    }
    for (unsigned word = 0; word < CORE_CONNS_MAX / 64; word++)
        indices += (unsigned)__builtin_popcountll(engine->conn_indices[word]);
    for (const struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        conns++;
    cr_assert(used == flows, "%s: %s %u: %u flow slots are in use, by %u flows", what, call_names[call], n, used,
              flows);
    cr_assert(indices == conns, "%s: %s %u: %u numbers are in use, by %u connections", what, call_names[call], n,
              indices, conns);
    cr_assert(references == conns, "%s: %s %u: peers are held %u times, by %u connections", what, call_names[call], n,
              references, conns);
    cr_assert(!engine->connecting, "%s: %s %u leaves a connect", what, call_names[call], n);
}

/* Half a connection does not live: a receive on it ends, with an error. */
static codes end_of_half(uccl_conn *conn)
{
    uint8_t byte;
    uccl_request *request = NULL;
    int error = uccl_recv_async(conn, &byte, 1, NULL, &request);
    if (!error)
        error = uccl_wait(request, SOON_MS, NULL);
    return ONE(error);
}

static bool meet_once(enum mode mode, enum side side, const struct meet_row *row, unsigned n, bool for_good,
                      codes seen[2], codes *half)
{
    struct world world;
    open_world(&world, mode);
    arm_failure(side, row->call, row->error, n, for_good);
    int result = connect_sides(&world);
    bool failed = disarm_failure();
    bool accepted = world.conn[1] != NULL;
    if (failed) {
        seen[0] |= ONE(result);
        seen[1] |= world.accepts | (accepted ? 0 : NONE);
    } else {
        IS(result, 0);
        cr_assert(accepted);
    }
    if (result == 0 && accepted)
        transfer(&world, n);
    else if (result == 0 || accepted)
        *half |= end_of_half(world.conn[accepted]);
    close_conns(&world);
    for (int i = 0; i < 2; i++)
        check_tables(world.engine[i], modes[mode].name, row->call, n);
    if (failed) {
        connect_well(&world);
        transfer(&world, n);
    }
    close_world(&world);
    return failed;
}

EACH_MODE(failures, meeting)
{
    struct held before = held_when_warm(mode);
    for (size_t i = 0; i < sizeof meet_rows / sizeof *meet_rows; i++) {
        for (enum side side = CLIENT; side <= SERVER; side++) {
            const struct meet_row *row = &meet_rows[i];
            const codes *expected = side == CLIENT ? row->client_fails : row->server_fails;
            codes seen[2] = {0}, half = 0;
            char what[64];
            for (unsigned n = 1; n < N_MAX && meet_once(mode, side, row, n, false, seen, &half); n++)
                check_held(&before, "meet", row->call, n);
            for (enum side told = CLIENT; told <= SERVER; told++) {
                snprintf(what, sizeof what, "%s: %s, failure at %s", modes[mode].name,
                         told == CLIENT ? "client" : "server", side == CLIENT ? "client" : "server");
                check_codes(what, row->call, row->error, seen[told - CLIENT], expected[told - CLIENT]);
            }
            check_codes("half a connection", row->call, row->error, half, MAY(CLOSED));
        }
    }
}

/* A handshake may get through where no datagram has a way. */
EACH_MODE(failures, no_route)
{
    static const struct meet_row row = {.call = CALL_connect, .error = ENETUNREACH};
    static const codes expected[2] = {ADDR | MAY(GOOD), NONE | MAY(GOOD)};
    struct held before = held_when_warm(mode);
    for (enum side side = CLIENT; side <= SERVER; side++) {
        codes seen[2] = {0}, half = 0;
        for (unsigned n = 1; n < N_MAX && meet_once(mode, side, &row, n, true, seen, &half); n++)
            check_held(&before, "no route", row.call, n);
        for (unsigned told = 0; told < 2; told++)
            check_codes(side == CLIENT ? "none from client" : "none from server", row.call, row.error, seen[told],
                        expected[told]);
        check_codes("half a connection", row.call, row.error, half, MAY(CLOSED));
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* What fails once while messages are under way both ways: all arrive. By modes, where it is called. */
static const struct {
    enum call call;
    int error;
    bool called[3];
} message_rows[] = {
    {CALL_sendmmsg, EPERM, {true, true, true}},
    {CALL_sendmmsg, ENETUNREACH, {true, true, true}},
    {CALL_sendmmsg, EHOSTUNREACH, {true, true, true}},
    {CALL_sendmmsg, EMSGSIZE, {true, true, true}},
    {CALL_sendmmsg, EINVAL, {true, true, true}},
    {CALL_sendmmsg, EIO, {true, true, true}},
    {CALL_sendmmsg, EAGAIN, {true, true, true}},
    {CALL_sendmmsg, ENOBUFS, {true, true, true}},
    {CALL_sendmmsg, ENOMEM, {true, true, true}},
    {CALL_sendmmsg, ECONNREFUSED, {true, true, true}},
    {CALL_sendmmsg, EINTR, {true, true, true}},
    {CALL_recvmmsg, ENOMEM, {true, true, false}},
    {CALL_recvmmsg, EBADF, {true, true, false}},
    {CALL_recvmmsg, ECONNREFUSED, {true, true, false}},
    {CALL_recvmmsg, EINTR, {true, true, false}},
    {CALL_ppoll, ENOMEM, {true, true, false}},
    {CALL_ppoll, EINTR, {true, true, false}},
    {CALL_read, EAGAIN, {true, true, false}},
    {CALL_futex_wait, EINTR, {true, true, true}},
    {CALL_futex_wait, ENOMEM, {true, true, true}},
    {CALL_io_uring_submit_and_get_events, EINTR, {false, false, true}},
    {CALL_io_uring_submit_and_get_events, EBUSY, {false, false, true}},
    {CALL_io_uring_submit_and_get_events, ENOMEM, {false, false, true}},
    {CALL_io_uring_submit_and_wait_timeout, EINTR, {false, false, true}},
    {CALL_io_uring_submit_and_wait_timeout, EAGAIN, {false, false, true}},
    {CALL_io_uring_submit_and_wait_timeout, EBADF, {false, false, true}},
    {CALL_ring_receive, 0, {false, false, true}},
};

EACH_MODE(failures, messaging)
{
    enum { SOME = 4, TRIES_MAX = 200 }; /* what is called now and then takes more of them */
    static const unsigned some[SOME] = {1, 2, 3, 7};
    begin(mode);
    struct held before = held_now();
    struct world world;
    open_world(&world, mode);
    connect_well(&world);
    int good[2];
    messages(&world, 0, good); /* what is taken once */
    for (size_t i = 0; i < sizeof message_rows / sizeof *message_rows; i++) {
        for (enum side side = CLIENT; side <= SERVER; side++) {
            enum call call = message_rows[i].call;
            bool expected = message_rows[i].called[mode] && call != CALL_futex_wait, called = false;
            for (size_t at = 0; at < SOME || (expected && !called && at < TRIES_MAX); at++) {
                unsigned n = some[at % SOME];
                arm_failure(side, call, message_rows[i].error, n, false);
                messages(&world, n, good);
                called |= disarm_failure();
                cr_assert(good[0] == 0 && good[1] == 0, "%s: %s %u of %s: %d, %d", modes[mode].name, call_names[call],
                          n, side == CLIENT ? "client" : "server", good[0], good[1]);
            }
            cr_assert(called || !expected, "%s is never called", call_names[call]);
        }
    }
    close_world(&world);
    check_held(&before, "messages", CALL_sendmmsg, 0);
}

/* An end that still hears the other one, which may give it up first, and then says so with a FIN. */
#define DEAD_OR_ENDED MAY(DEAD | ONE(UCCL_ECLOSED))

/*
 * What fails from some message on: the requests of both ends end with these codes. Once it works again, so does a fresh
 * connection.
 */
static const struct {
    enum call call;
    int error;
    codes failing, other;
    bool modes[3];
} lasting_rows[] = {
    {CALL_sendmmsg, EPERM, DEAD_OR_ENDED, DEAD, {true, true, true}},
    {CALL_sendmmsg, ENOBUFS, DEAD_OR_ENDED, DEAD, {true, true, true}},
    {CALL_sendmmsg, EAGAIN, DEAD_OR_ENDED, DEAD, {true, true, true}},
    {CALL_recvmmsg, EBADF, DEAD, DEAD_OR_ENDED, {true, true, false}},
    {CALL_ppoll, ENOMEM, GOOD, GOOD, {true, true, false}},
    {CALL_futex_wait, ENOMEM, GOOD, GOOD, {true, true, true}},
    {CALL_io_uring_submit_and_get_events, EBADF, GOOD, GOOD, {false, false, true}},
    {CALL_io_uring_submit_and_wait_timeout, ENOMEM, GOOD, GOOD, {false, false, true}},
};

/* A request may fail a moment before its connection does: by a FIN, before home gives the peer up. */
static bool connection_follows(uccl_conn *conn, int status)
{
    for (uint64_t end_ms = now_ms() + 2000;; sleep_us(1000)) {
        int is = uccl_conn_status(conn);
        if (is == status || (status && (is == UCCL_ECLOSED || is == UCCL_EPEERDEAD)))
            return true;
        if (now_ms() >= end_ms)
            return false;
    }
}

EACH_MODE(failures, failing_for_good)
{
    begin(mode);
    backend = "udp"; /* TCP would carry on where datagrams do not leave */
    dead_peer_ms = "500";
    for (size_t i = 0; i < sizeof lasting_rows / sizeof *lasting_rows; i++) {
        for (enum side side = CLIENT; side <= SERVER && lasting_rows[i].modes[mode]; side++) {
            struct held before = held_now();
            struct world world;
            int status[2];
            char what[64];
            open_world(&world, mode);
            connect_well(&world);
            transfer(&world, 1);
            arm_failure(side, lasting_rows[i].call, lasting_rows[i].error, 3, true);
            uint64_t begin_ms = now_ms();
            messages(&world, 2, status);
            disarm_failure();
            cr_assert(now_ms() < begin_ms + 9000, "%s: it takes %llu ms", call_names[lasting_rows[i].call],
                      (unsigned long long)(now_ms() - begin_ms));
            for (int at = 0; at < 2; at++) {
                snprintf(what, sizeof what, "%s: for good at %s, %s", modes[mode].name,
                         side == CLIENT ? "client" : "server", at ? "server" : "client");
                check_codes(what, lasting_rows[i].call, lasting_rows[i].error, ONE(status[at]),
                            at == (int)side - CLIENT ? lasting_rows[i].failing : lasting_rows[i].other);
                cr_assert(connection_follows(world.conn[at], status[at]), "%s: %d, the connection %d", what, status[at],
                          uccl_conn_status(world.conn[at]));
            }
            close_conns(&world);
            connect_well(&world);
            transfer(&world, 3);
            close_world(&world);
            check_held(&before, "for good", lasting_rows[i].call, 0);
        }
    }
}

#ifdef HAVE_LIBURING
/* A ring that could not be enabled at first hears once it can be. */
Test(failures, ring_enabled_late)
{
    begin(RING);
    for (enum side side = CLIENT; side <= SERVER; side++) {
        struct world world;
        arm_failure(side, CALL_ring_enable, EINVAL, 1, false);
        open_world(&world, RING);
        uint64_t end_ms = now_ms() + SOON_MS;
        while (!atomic_load(&plan.failed)) {
            cr_assert(now_ms() < end_ms);
            sleep_us(1000);
        }
        disarm_failure();
        connect_well(&world);
        transfer(&world, 1);
        close_world(&world);
    }
}
#endif

/* ---- signals, and bytes one by one ----------------------------------------------------------- */

EACH_MODE(failures, interruptions)
{
    begin(mode);
    struct held before = held_now();
    struct world world;
    int status[2];
    atomic_store(&interrupting, true);
    open_world(&world, mode);
    connect_well(&world);
    messages(&world, 1, status);
    cr_assert(status[0] == 0 && status[1] == 0);
    for (int i = 0; i < 2; i++) {
        acting = i ? SERVER : CLIENT;
        IS(uccl_conn_close(world.conn[i]), 0);
    }
    close_world(&world);
    acting = NOBODY;
    atomic_store(&interrupting, false);
    check_held(&before, "interruptions", CALL_send, 0);
}

Test(failures, dribbling_handshake)
{
    uccl_set_log(log_nothing, NULL);
    struct world world;
    open_world(&world, THREADS);
    atomic_store(&dribbling, true);
    connect_well(&world);
    atomic_store(&dribbling, false);
    transfer(&world, 1);
    close_world(&world);
}

/* ---- close ----------------------------------------------------------------------------------- */

static const struct {
    enum call call;
    int error;
} close_rows[] = {{CALL_sendmmsg, EPERM}, {CALL_sendmmsg, ENOBUFS}, {CALL_recvmmsg, ENOMEM}, {CALL_ppoll, EINTR},
                  {CALL_malloc, ENOMEM},  {CALL_calloc, ENOMEM},    {CALL_mmap64, ENOMEM},   {CALL_futex_wait, EINTR},
                  {CALL_ring_receive, 0}, {CALL_read, EAGAIN}};

/* What was accepted for sending arrives, though the first goodbyes get lost, or all of one side's. */
EACH_MODE(failures, closing)
{
    static uint8_t bytes[100000], received[100000];
    begin(mode);
    linger_ms = "10000"; /* on a busy machine 300 ms may pass before all has arrived */
    fill(bytes, sizeof bytes, 1);
    struct held before = held_now();
    struct world world;
    open_world(&world, mode);
    for (size_t i = 0; i < sizeof close_rows / sizeof *close_rows; i++) {
        for (enum side side = CLIENT; side <= SERVER; side++) {
            for (int closer = 0; closer < 2; closer++) {
                connect_well(&world);
                uccl_request *receive = post_recv(world.conn[!closer], received, sizeof received);
                uccl_request *pending = post_recv(world.conn[!closer], received, 1);
                uccl_request *own = post_recv(world.conn[closer], received, 1);
                uccl_request *send = post_send(world.conn[closer], bytes, sizeof bytes);
                arm_failure(side, close_rows[i].call, close_rows[i].error, 1, false);
                acting = closer ? SERVER : CLIENT;
                IS(uccl_conn_close(world.conn[closer]), 0);
                acting = closer ? CLIENT : SERVER;
                cr_assert_eq(end_of(receive, 0), sizeof received);
                end_of(pending, UCCL_ECLOSED);
                IS(uccl_conn_status(world.conn[!closer]), UCCL_ECLOSED);
                IS(uccl_conn_close(world.conn[!closer]), 0);
                acting = NOBODY;
                disarm_failure();
                end_of(own, UCCL_ECANCELED);
                end_of(send, 0);
                check(received, sizeof received, 1);
            }
        }
        for (int at = 0; at < 2; at++)
            check_tables(world.engine[at], "close", close_rows[i].call, 1);
    }
    connect_well(&world);
    transfer(&world, 1);
    close_world(&world);
    check_held(&before, "close", CALL_sendmmsg, 0);
}

/* ---- registrations, requests ----------------------------------------------------------------- */

Test(failures, registering)
{
    static uint8_t bytes[4096];
    uccl_set_log(log_nothing, NULL);
    struct held before = held_now();
    struct world world;
    open_world(&world, THREADS);
    connect_well(&world);
    for (int side = 0; side < 2; side++) {
        unsigned n = 1;
        for (bool failed = true; failed; n++) {
            uccl_mr *mr = NULL;
            arm_failure(TESTER, CALL_calloc, ENOMEM, n, false);
            acting = TESTER;
            int error = uccl_reg_mr(world.engine[side], bytes, sizeof bytes, UCCL_MEM_HOST, &mr);
            acting = NOBODY;
            failed = disarm_failure();
            IS(error, failed ? UCCL_ENOMEM : 0);
            cr_assert(failed == !mr);
            if (mr)
                IS(uccl_dereg_mr(mr), 0);
        }
        cr_assert_gt(n, 2);
    }
    transfer(&world, 1);
    close_world(&world);
    check_held(&before, "register", CALL_calloc, 0);
}
