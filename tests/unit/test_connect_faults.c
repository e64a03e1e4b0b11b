/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failure at each system call and allocation of a connect and an accept that never block: the n-th call of a function
 * on this thread fails, for each function and each n, until a run comes through in which none did. Whatever failed, the
 * call says so by an error that is not "again", nothing stays behind, and the next connect with the same handle works.
 *
 * The linker puts __wrap_NAME() in place of NAME() (tests/meson.build).
 */
#include "api_pair.h"

#include "../../api/objects.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>

/* ---- failing --------------------------------------------------------------------------------- */

#define CALLS(ROW)                                                                                                     \
    ROW(socket, EMFILE) ROW(setsockopt, EINVAL) ROW(getsockopt, EBADF) ROW(connect, ENETUNREACH) ROW(accept4, EMFILE)   \
    ROW(getpeername, ENOTCONN) ROW(fcntl64, EBADF) ROW(send, EIO) ROW(recv, EIO) ROW(poll, ENOMEM)                      \
    ROW(getrandom, ENOSYS) ROW(mmap64, ENOMEM) ROW(malloc, ENOMEM) ROW(calloc, ENOMEM) ROW(listen, EADDRINUSE)          \
    ROW(bind, EADDRINUSE) ROW(getsockname, ENOBUFS)

enum call {
#define ROW(name, error) CALL_##name,
    CALLS(ROW)
#undef ROW
    CALL_COUNT
};
static const struct {
    const char *name;
    int error;
} calls[] = {
#define ROW(name, error) {#name, error},
    CALLS(ROW)
#undef ROW
};

static _Thread_local struct {
    bool armed;
    enum call call;
    unsigned left;  /* calls until the one that fails */
    bool failed;    /* it has */
} plan;

static _Atomic uint64_t mapped_bytes;

static bool fails(enum call call)
{
    if (!plan.armed || plan.call != call || plan.failed || --plan.left)
        return false;
    plan.failed = true;
    errno = calls[call].error;
    return true;
}

#define WRAP(result, name, failure, parameters, arguments)                                                             \
    result __real_##name parameters;                                                                                   \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters                                                                                    \
    {                                                                                                                  \
        return fails(CALL_##name) ? (failure) : __real_##name arguments;                                               \
    }

WRAP(int, socket, -1, (int family, int type, int protocol), (family, type, protocol))
WRAP(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t length),
     (fd, level, name, value, length))
WRAP(int, getsockopt, -1, (int fd, int level, int name, void *value, socklen_t *length),
     (fd, level, name, value, length))
WRAP(int, connect, -1, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
WRAP(int, bind, -1, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
WRAP(int, listen, -1, (int fd, int backlog), (fd, backlog))
WRAP(int, accept4, -1, (int fd, struct sockaddr *address, socklen_t *length, int flags), (fd, address, length, flags))
WRAP(int, getsockname, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(int, getpeername, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(ssize_t, send, -1, (int fd, const void *bytes, size_t length, int flags), (fd, bytes, length, flags))
WRAP(ssize_t, recv, -1, (int fd, void *bytes, size_t length, int flags), (fd, bytes, length, flags))
WRAP(int, poll, -1, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms))
WRAP(ssize_t, getrandom, -1, (void *out, size_t length, unsigned flags), (out, length, flags))
WRAP(void *, malloc, NULL, (size_t bytes), (bytes))
WRAP(void *, calloc, NULL, (size_t count, size_t bytes), (count, bytes))

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    int argument = va_arg(arguments, int);
    va_end(arguments);
    return fails(CALL_fcntl64) ? -1 : __real_fcntl64(fd, command, argument);
}

void *__real_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails(CALL_mmap64))
        return MAP_FAILED;
    void *memory = __real_mmap64(address, bytes, protection, flags, fd, offset);
    if (memory != MAP_FAILED)
        atomic_fetch_add(&mapped_bytes, bytes);
    return memory;
}

int __real_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes)
{
    atomic_fetch_sub(&mapped_bytes, bytes);
    return __real_munmap(memory, bytes);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void log_nothing(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

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
        cr_assert(accepted == 0 || accepted == UCCL_EAGAIN || (accepted == UCCL_ENOMEM && plan.failed));
        if (connected_ms && now_ms() > connected_ms + 50)
            return; /* the server's half has failed, READY or not */
        cr_assert(now_ms() < end_ms, "%s: connect %d, accepted %d", calls[plan.call].name, world->result,
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

enum scenario { FIRST_CONTACT, KNOWN, LOST };

/* One run; false: it has not come to the n-th call. */
static bool run(enum scenario scenario, enum call call, unsigned n)
{
    static const uint8_t none[16];
    struct world world = {.client = open_engine("no", "CONNECT_MS", "2000", "LINGER_MS", "0", "NUM_ENGINES", "2", NULL),
                          .server = open_engine("no", "CONNECT_MS", "2000", "LINGER_MS", "0", "NUM_ENGINES", "2", NULL)};
    IS(uccl_listen(world.server, 0, 0, &world.handle, &world.listener), 0);
    struct world before = world;
    if (scenario != FIRST_CONTACT) {
        connect_both(&world);
        IS(world.result, 0);
        before = world;
        world.lose = scenario == LOST;
    }
    plan.call = call;
    plan.left = n;
    plan.failed = false;
    plan.armed = true;
    connect_both(&world);
    plan.armed = false;
    world.lose = false;
    const char *name = calls[call].name;
    cr_assert(world.result <= 0 && world.result != UCCL_EAGAIN, "%s %u: %d", name, n, world.result);
    cr_assert(memcmp(world.handle.state, none, sizeof none) == 0, "%s %u leaves a state", name, n);
    cr_assert(world.client->connecting == NULL, "%s %u leaves a connect", name, n);
    cr_assert(world.result == 0 || plan.failed, "%s: no call failed, but the connect did: %d", name, world.result);
    cr_assert(world.result == 0 || !world.conn[0], "an output although it failed");
    if (world.result == 0 && world.conn[1])
        exchange(world.conn[0], world.conn[1], 1000, n);
    close_both(&world);
    connect_both(&world);
    cr_assert(world.result == 0 && world.conn[1], "%s %u: the next connect: %d", name, n, world.result);
    exchange(world.conn[0], world.conn[1], 1000, n);
    if (scenario != FIRST_CONTACT)
        exchange(before.conn[1], before.conn[0], 1000, n); /* what stood stands */
    IS(uccl_close(world.client), 0);
    IS(uccl_close(world.server), 0);
    return plan.failed;
}

static void run_all(enum scenario scenario)
{
    uccl_set_log(log_nothing, NULL);
    run(scenario, CALL_socket, 1000000); /* what is made once per process */
    int files = open_files();
    uint64_t mapped = atomic_load(&mapped_bytes);
    for (enum call call = 0; call < CALL_COUNT; call++) {
        if (call == CALL_listen || call == CALL_bind || call == CALL_getsockname)
            continue;
        unsigned n = 1;
        while (run(scenario, call, n) && n < 200) {
            cr_assert_eq(open_files(), files, "%s %u leaves descriptors", calls[call].name, n);
            cr_assert_eq(atomic_load(&mapped_bytes), mapped, "%s %u leaves mappings", calls[call].name, n);
            n++;
        }
        cr_assert(n < 200);
        bool expected = call != CALL_poll; /* of the others some are called in each scenario */
        cr_assert(!expected || n > 1, "%s is never called", calls[call].name);
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
    int files = open_files();
    for (enum call call = 0; call < CALL_COUNT; call++) {
        for (unsigned n = 1;; n++) {
            listener = NULL;
            plan.call = call;
            plan.left = n;
            plan.failed = false;
            plan.armed = true;
            int result = uccl_listen(engine, 0, 0, &handle, &listener);
            plan.armed = false;
            cr_assert(result == 0 || (result < UCCL_EAGAIN && !listener), "%s %u: %d", calls[call].name, n, result);
            if (listener)
                IS(uccl_listener_close(listener), 0);
            cr_assert_eq(open_files(), files, "%s %u leaves descriptors", calls[call].name, n);
            if (!plan.failed)
                break;
            cr_assert(result != 0 || call == CALL_setsockopt, "%s %u is not noticed", calls[call].name, n);
        }
    }
    IS(uccl_close(engine), 0);
}
