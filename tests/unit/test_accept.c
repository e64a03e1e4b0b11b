/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads that accept on one listener: each waits for its own time, and all connections find one of them. */
#include "api_pair.h"
#include "base/process.h"
#include "logged.h"
#include "wrapped_syscall.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* How often a thread looks: whoever waits does not do so all the time. */
static _Thread_local unsigned looks, wakes; /* wakes: of other threads */

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    looks++;
    return __real_poll(fds, count, timeout_ms);
}

static bool on_syscall(long number, const long argument[6])
{
    looks += number == SYS_futex && argument[1] == FUTEX_WAIT_PRIVATE;
    wakes += number == SYS_futex && argument[1] == FUTEX_WAKE_PRIVATE;
    return false;
}

/* Somebody sets the clock of the day back by an hour after each look at it: no wait may depend on it. */
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int result = __real_clock_gettime(clock, out);
    if (clock == CLOCK_REALTIME)
        out->tv_sec += 3600;
    return result;
}

enum { LOOKS_MOST = 20 }; /* in a tenth of a second */

struct acceptor {
    pthread_t pthread;
    uccl_listener *listener;
    int timeout_ms;
    _Atomic bool begun;
    int result;
    uccl_conn *conn;
    uint64_t took_ms;
    unsigned looks, wakes;
};

static void *accept_one(void *argument)
{
    struct acceptor *acceptor = argument;
    uint64_t since_ms = now_ms();
    acceptor->begun = true;
    acceptor->result = uccl_accept(acceptor->listener, acceptor->timeout_ms, &acceptor->conn);
    acceptor->took_ms = now_ms() - since_ms;
    acceptor->looks = looks;
    acceptor->wakes = wakes;
    return NULL;
}

static void begin(struct acceptor *acceptor, uccl_listener *listener, int timeout_ms)
{
    *acceptor = (struct acceptor){.listener = listener, .timeout_ms = timeout_ms};
    cr_assert_eq(pthread_create(&acceptor->pthread, NULL, accept_one, acceptor), 0);
    while (!acceptor->begun)
        sleep_us(100);
}

static bool is_closed(int fd)
{
    uint8_t byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* The first byte of a HELLO has come; the kernel holds back who is mute. */
static int begin_handshake(in_port_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    cr_assert_eq(send(fd, "\xb7", 1, MSG_NOSIGNAL), 1);
    return fd;
}

/*
 * A burst of clients of one host fills the table of handshakes. The next of them waits for room, and goes with the
 * listener; none drops another one.
 */
Test(accept, who_waits_for_room_goes_with_the_listener, .timeout = TIMEOUT_S)
{
    enum { CLIENTS = 300 };
    uccl_engine *engine = open_engine("no", NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn;
    int fd[CLIENTS];
    bool in_time = false;
    for (unsigned tries = 0; tries < 20; tries++) {
        IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
        unsigned before = entries_of("/proc/self/fd"), closed = 0;
        uint64_t begin_ms = now_ms();
        for (unsigned i = 0; i < CLIENTS; i++)
            fd[i] = begin_handshake(uccl_listener_port(listener));
        unsigned let_in = 0;
        for (unsigned i = 0; i < 4 && let_in < 257; i++) {
            IS(uccl_accept(listener, 0, &conn), UCCL_EAGAIN);
            let_in = entries_of("/proc/self/fd") - before - CLIENTS;
        }
        cr_assert_leq(let_in, 257);
        for (unsigned i = 0; i < CLIENTS; i++)
            closed += is_closed(fd[i]);
        in_time = now_ms() < begin_ms + 90; /* else those that say no more are dropped anyway */
        cr_assert(!in_time || closed == 0, "%u were dropped", closed);
        IS(uccl_listener_close(listener), 0);
        cr_assert_eq(entries_of("/proc/self/fd"), before + CLIENTS - 1, "%u were let in", let_in);
        for (unsigned i = 0; i < CLIENTS; i++)
            close(fd[i]);
        if (let_in == 257 && in_time)
            break;
    }
    cr_assert(in_time, "this machine is too slow");
    IS(uccl_close(engine), 0);
}

Test(accept, a_time_that_has_passed_is_over)
{
    cr_assert_eq(cancel_look_ns(100, 50), 50);
    cr_assert_eq(cancel_look_ns(100, 100), 100);
    cr_assert_eq(cancel_look_ns(100, 100 + CANCEL_LOOK_NS), 100 + CANCEL_LOOK_NS);
    cr_assert_eq(cancel_look_ns(100, UINT64_MAX), 100 + CANCEL_LOOK_NS);
}

/* A process gives up the right to open anything, as in a sandbox: poll() takes no descriptor any more. */
Test(accept, without_the_right_to_descriptors_it_naps, .timeout = TIMEOUT_S)
{
    enum { WAIT_MS = 200 };
    struct rlimit limit, none;
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn;
    uccl_engine *engine = open_engine("no", NULL);
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    uint64_t begin_ms = now_ms();
    unsigned before = looks;
    int result = uccl_accept(listener, WAIT_MS, &conn);
    uint64_t took_ms = now_ms() - begin_ms;
    unsigned looked = looks - before;
    setrlimit(RLIMIT_NOFILE, &limit);
    IS(result, UCCL_ETIMEDOUT);
    cr_assert_leq(looked, 2 * took_ms + LOOKS_MOST, "%u looks in %lu ms", looked, took_ms);
    IS(uccl_close(engine), 0);
}

BOTH(accept, the_second_waits_for_its_time)
{
    enum { SHORT_MS = 60 };
    struct acceptor first, second;
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn = NULL;
    uccl_engine *server = open_engine(lend, NULL), *client = open_engine(lend, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    begin(&first, listener, -1);
    sleep_us(20000); /* so that whoever comes now is the second */
    begin(&second, listener, SHORT_MS);
    pthread_join(second.pthread, NULL);
    IS(second.result, UCCL_ETIMEDOUT);
    cr_assert_geq(second.took_ms, SHORT_MS, "after %d ms", (int)second.took_ms);
    cr_assert_leq(second.looks, LOOKS_MOST, "%u looks", second.looks);
    IS(uccl_accept(listener, 0, &conn), UCCL_EAGAIN);
    IS(uccl_connect(client, &handle, SOON_MS, &conn), 0);
    pthread_join(first.pthread, NULL);
    IS(first.result, 0);
    exchange(conn, first.conn, 1000, 1);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Whoever waits for its turn is told, and does not find out by looking. */
Test(accept, the_next_is_woken, .timeout = TIMEOUT_S)
{
    struct acceptor acceptors[2];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_engine *engine = open_engine("no", NULL);
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    begin(&acceptors[0], listener, 5);
    pthread_join(acceptors[0].pthread, NULL);
    cr_assert_eq(acceptors[0].wakes, 0, "nobody waits");
    begin(&acceptors[0], listener, 500);
    sleep_us(20000); /* so that whoever comes now is the second */
    begin(&acceptors[1], listener, 1000);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(acceptors[i].pthread, NULL);
        IS(acceptors[i].result, UCCL_ETIMEDOUT);
    }
    cr_assert_eq(acceptors[0].wakes, 1);
    IS(uccl_close(engine), 0);
}

BOTH(accept, whoever_times_out_lets_others_in)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_engine *server = open_engine(lend, NULL), *client = open_engine(lend, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    looks = 0;
    IS(uccl_accept(listener, 60, &conn[1]), UCCL_ETIMEDOUT);
    cr_assert_leq(looks, LOOKS_MOST, "%u looks", looks);
    for (unsigned i = 0; i < 3; i++) {
        IS(uccl_accept(listener, 5, &conn[1]), UCCL_ETIMEDOUT);
        IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
    }
    connect_now(client, &handle, listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

BOTH(accept, each_gets_one)
{
    enum { COUNT = 4 };
    struct acceptor acceptors[COUNT];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[COUNT];
    uccl_engine *server = open_engine(lend, NULL), *client = open_engine(lend, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    for (unsigned i = 0; i < COUNT; i++)
        begin(&acceptors[i], listener, i ? SOON_MS : -1);
    for (unsigned i = 0; i < COUNT; i++)
        IS(uccl_connect(client, &handle, SOON_MS, &conn[i]), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        pthread_join(acceptors[i].pthread, NULL);
        IS(acceptors[i].result, 0);
        for (unsigned other = 0; other < i; other++)
            cr_assert_neq(acceptors[i].conn, acceptors[other].conn);
    }
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/*
 * The listener is closed before it has accepted: whatever step the handshake has reached, the client learns just that.
 * The last steps come to the client that has sent its READY, to whom the connection tells it.
 */
BOTH(accept, nobody_accepts_any_more)
{
    enum { STEPS_MAX = 12 };
    uccl_engine *server = open_engine(lend, NULL), *client = open_engine(lend, NULL);
    unsigned told = 0, steps;
    bool accepted = false;
    for (steps = 0; !accepted && steps < STEPS_MAX; steps++) {
        struct uccl_handle handle;
        uccl_listener *listener;
        uccl_conn *here = NULL, *there = NULL;
        int result = UCCL_EAGAIN;
        IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
        for (unsigned i = 0; i < steps; i++) {
            if (i % 2 == 0 && result == UCCL_EAGAIN)
                result = uccl_connect(client, &handle, 0, &here);
            else if (i % 2)
                accepted |= uccl_accept(listener, 0, &there) == 0;
            sleep_us(2000);
        }
        memset(&logged, 0, sizeof logged);
        uccl_set_log(take_log, NULL);
        IS(uccl_listener_close(listener), 0);
        for (uint64_t until_ms = now_ms() + 5000; result == UCCL_EAGAIN && now_ms() < until_ms; sleep_us(200))
            result = uccl_connect(client, &handle, 0, &here);
        uccl_set_log(NULL, NULL);
        if (here && !there) { /* it has sent READY */
            for (uint64_t until_ms = now_ms() + 5000; !uccl_conn_status(here) && now_ms() < until_ms;)
                sleep_us(200);
            IS(uccl_conn_status(here), UCCL_ECLOSED);
        } else if (!there) {
            IS(result, UCCL_EREFUSED);
            cr_assert(steps < 4 || strstr(logged.text, "its listener was closed"), "%u: %s", steps, logged.text);
            told += strstr(logged.text, "its listener was closed") != NULL;
        }
        if (here)
            IS(uccl_conn_close(here), 0);
        if (there)
            IS(uccl_conn_close(there), 0);
    }
    cr_assert(accepted && told >= 2, "%u steps, %u told", steps, told);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}
