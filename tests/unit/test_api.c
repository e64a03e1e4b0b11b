/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of the public header, call by call: engines, parameters, listening, connecting and closing.
 * test_api_messages.c has messages, test_api_arguments.c wrong arguments.
 */
#include "../await_callers.h"
#include "api_pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

/* ---- helpers --------------------------------------------------------------------------------- */

/* A TCP socket on loopback that is bound, and listens or not; its port. */
static int bound_socket(int listening, uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    cr_assert(!listening || listen(fd, 8) == 0);
    getsockname(fd, (struct sockaddr *)&address, &length);
    *port = ntohs(address.sin_port);
    return fd;
}

/* ---- engines --------------------------------------------------------------------------------- */

BOTH(api_engine, opens_closes_and_opens_again)
{
    uccl_engine *first = open_engine(lend, NULL);
    unsigned files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    for (int round = 0; round < 4; round++) {
        uccl_engine *engines[3];
        for (int i = 0; i < 3; i++)
            engines[i] = open_engine(lend, "NUM_ENGINES", i == 2 ? "3" : "1", NULL);
        for (int i = 0; i < 3; i++)
            IS(uccl_close(engines[(i + round) % 3]), 0);
    }
    cr_assert_eq(entries_of("/proc/self/fd"), files, "descriptors leak");
    cr_assert_eq(entries_of("/proc/self/task"), threads, "threads leak");
    IS(uccl_close(first), 0);
}

Test(api_engine, bad_parameters_by_setter, .timeout = TIMEOUT_S)
{
    uccl_config *config;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_config_create(&config), 0);
    IS(uccl_config_set(config, "NO_SUCH_THING", "1"), UCCL_EINVAL);
    IS(uccl_config_set(config, "CC", "bbr"), UCCL_EINVAL);
    IS(uccl_config_set(config, "UCCL_PORT_ENTROPY", "0"), UCCL_EINVAL);
    IS(uccl_config_set(config, "PORT_ENTROPY", "many"), UCCL_EINVAL);
    IS(uccl_config_set(config, "PORT_ENTROPY", NULL), UCCL_EINVAL);
    IS(uccl_config_set(config, NULL, "1"), UCCL_EINVAL);
    IS(uccl_config_set(NULL, "CC", "swift"), UCCL_EINVAL);
    IS(uccl_config_set(config, "UCCL_CC", "timely"), 0);
    uccl_config_destroy(config);
    uccl_config_destroy(NULL);
}

Test(api_engine, bad_parameters_by_environment, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = (uccl_engine *)&engine;
    uccl_set_log(log_nothing, NULL);
    setenv("UCCL_SOCKET_IFNAME", "lo", 1);
    setenv("UCCL_CC", "bbr", 1);
    IS(uccl_open(NULL, &engine), UCCL_EINVAL);
    setenv("UCCL_CC", "swift", 1);
    setenv("UCCL_RING_ENTRIES", "17", 1); /* no power of two */
    IS(uccl_open(NULL, &engine), UCCL_EINVAL);
    unsetenv("UCCL_RING_ENTRIES");
    setenv("UCCL_SOCKET_IFNAME", "=nosuchif0", 1);
    IS(uccl_open(NULL, &engine), UCCL_ENODEV);
    cr_assert(engine == (uccl_engine *)&engine, "written though it failed");
    setenv("UCCL_SOCKET_IFNAME", "lo", 1);
    IS(uccl_open(NULL, &engine), 0);
    IS(uccl_close(engine), 0);
}

/* A second close is found out, though other objects have been made since. */
BOTH(api_engine, closed_objects_are_not_closed_again)
{
    struct pair pair;
    struct uccl_handle handle;
    uccl_listener *listener, *other;
    uccl_conn *conn[2], *none = NULL;
    uccl_mr *mr, *next;
    uccl_request *request;
    struct uccl_mr_info info;
    uccl_export *exported;
    uccl_remote *remote;
    uint8_t ref[UCCL_REF_BYTES];
    char memory[64];
    uccl_set_log(log_nothing, NULL);
    pair_open(&pair, lend);
    IS(uccl_reg_mr(pair.engine[1], memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
    IS(uccl_export_mr(mr, memory, sizeof memory, UCCL_ACCESS_READ, ref, &exported), 0);
    IS(uccl_listen(pair.engine[1], 0, 0, &handle, &listener), 0);
    IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
    IS(uccl_dereg_mr(mr), 0);
    IS(uccl_listener_close(listener), 0);
    IS(uccl_conn_close(pair.conn[0]), 0);
    IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &next), 0);
    IS(uccl_listen(pair.engine[1], 0, 0, &handle, &other), 0);
    connect_now(pair.engine[0], &handle, other, conn);
    IS(uccl_dereg_mr(mr), UCCL_EINVAL);
    IS(uccl_mr_get_info(mr, &info), UCCL_EINVAL);
    IS(uccl_send_async(conn[0], memory, 1, mr, &request), UCCL_EINVAL);
    IS(uccl_send_async(conn[0], NULL, 0, mr, &request), UCCL_EINVAL); /* nor is it used by no byte */
    IS(uccl_recv_async(conn[0], NULL, 0, mr, &request), UCCL_EINVAL);
    IS(uccl_flush(conn[0], NULL, 0, mr, &request), UCCL_EINVAL);
    IS(uccl_listener_close(listener), UCCL_EINVAL);
    IS(uccl_accept(listener, -1, &none), UCCL_EINVAL);
    IS(uccl_listener_port(listener), 0);
    IS(uccl_conn_close(pair.conn[0]), UCCL_EINVAL);
    IS(uccl_send_async(pair.conn[0], memory, 1, NULL, &request), UCCL_ECLOSED);
    IS(uccl_recv_async(pair.conn[0], memory, 1, NULL, &request), UCCL_ECLOSED);
    IS(uccl_flush(pair.conn[0], memory, 1, NULL, &request), UCCL_ECLOSED);
    IS(uccl_conn_status(pair.conn[0]), UCCL_ECLOSED);
    IS(uccl_conn_abort(pair.conn[0]), 0);
    IS(uccl_conn_peer(pair.conn[0], memory, sizeof memory), UCCL_ECLOSED);
    IS(uccl_conn_private(pair.conn[0], memory, sizeof memory), UCCL_ECLOSED);
    IS(uccl_conn_peer_id(pair.conn[0], (uint8_t *)memory), UCCL_ECLOSED); /* the peer may be gone */
    IS(uccl_import(pair.conn[0], ref, &remote), UCCL_ECLOSED);
    IS(uccl_write_async(pair.conn[0], NULL, 0, NULL, &request), UCCL_ECLOSED);
    IS(uccl_read_async(pair.conn[0], NULL, 0, NULL, &request), UCCL_ECLOSED);
    IS(uccl_notify_async(pair.conn[0], NULL, 0, &request), UCCL_ECLOSED);
    IS(uccl_quiet_async(pair.conn[0], &request), UCCL_ECLOSED);
    IS(uccl_fence(pair.conn[0]), UCCL_ECLOSED);
    exchange(conn[0], conn[1], 1000, 1);
    for (int i = 0; i < 200; i++) { /* what is kept is bounded */
        IS(uccl_dereg_mr(next), 0);
        IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &next), 0);
    }
    exchange(conn[1], conn[0], 1000, 2);
    pair_close(&pair);
}

struct waiter {
    uccl_request *request;
    int status;
};

static void *wait_without_end(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = uccl_wait(waiter->request, -1, NULL);
    return NULL;
}

/* As in a handler of exit(), when nobody can tell threads to stop. */
BOTH(api_engine, close_lets_waiting_threads_go)
{
    enum { WAITERS = 4 };
    struct pair pair;
    struct waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    uint8_t bytes[WAITERS];
    pair_open(&pair, lend);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (struct waiter){post_recv(pair.conn[0], &bytes[i], 1), 7};
        cr_assert_eq(pthread_create(&threads[i], NULL, wait_without_end, &waiters[i]), 0);
    }
    await_callers(pair.engine[0], WAITERS);
    IS(uccl_close(pair.engine[0]), 0);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
        IS(waiters[i].status, UCCL_ECANCELED);
    }
    IS(uccl_close(pair.engine[1]), 0);
}

static void keep_interface(void *user, const struct uccl_interface *interface)
{
    *(struct uccl_interface *)user = *interface;
}

/* Interfaces are known without an engine, and the settings choose among them. */
Test(api_engine, interfaces, .timeout = TIMEOUT_S)
{
    struct uccl_interface interface = {0};
    uccl_config *config;
    IS(uccl_config_create(&config), 0);
    IS(uccl_config_set(config, "SOCKET_IFNAME", "=lo"), 0);
    IS(uccl_interfaces(config, keep_interface, &interface), 1);
    cr_assert_str_eq(interface.name, "lo");
    cr_assert(strcmp(interface.address, "127.0.0.1") == 0 || strcmp(interface.address, "::1") == 0, "%s",
              interface.address);
    cr_assert(interface.mtu >= 1500 && interface.is_loopback && interface.rank > 0 && interface.numa_node == -1);
    IS(uccl_config_set(config, "SOCKET_IFNAME", "nosuchif"), 0);
    IS(uccl_interfaces(config, keep_interface, &interface), 0);
    uccl_config_destroy(config);
}

/* Both ends of a pair, and two connections, agree on who is who. */
Test(api_engine, peers_have_ids, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_conn *other[2];
    uint8_t id[4][16];
    pair_open(&pair, "no");
    connect_now(pair.engine[0], &pair.handle, pair.listener, other);
    for (int i = 0; i < 2; i++) {
        IS(uccl_conn_peer_id(pair.conn[i], id[i]), 0);
        IS(uccl_conn_peer_id(other[i], id[2 + i]), 0);
    }
    cr_assert_arr_eq(id[0], id[2], 16);
    cr_assert_arr_eq(id[1], id[3], 16);
    cr_assert_arr_neq(id[0], id[1], 16);
    pair_close(&pair);
}

Test(api_engine, devices_say_who_they_are, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = open_engine("yes", "NUM_ENGINES", "2", NULL);
    struct uccl_device device;
    cr_assert(uccl_device_count(engine) >= 1);
    IS(uccl_device_get(engine, 0, &device), 0);
    cr_assert_str_eq(device.name, "lo");
    cr_assert_str_eq(device.backend, "udp");
    cr_assert_eq(device.engines, 2);
    cr_assert(device.is_loopback && device.mtu >= 1280 && device.address[0]);
    IS(uccl_close(engine), 0);
}

/* ---- listening, connecting ------------------------------------------------------------------- */

Test(api_connect, handle_has_128_bytes_and_no_state, .timeout = TIMEOUT_S)
{
    static const uint8_t zeros[16];
    struct pair pair;
    cr_assert_eq(sizeof(struct uccl_handle), 128);
    pair_open(&pair, "yes");
    cr_assert(memcmp(pair.handle.state, zeros, 16) == 0, "a finished connect leaves state behind");
    pair_close(&pair);
}

Test(api_connect, port_in_use, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle;
    uccl_listener *first, *second = NULL;
    uccl_engine *engine = open_engine("no", NULL);
    uccl_set_log(log_nothing, NULL);
    IS(uccl_listen(engine, 0, 0, &handle, &first), 0);
    uint16_t port = uccl_listener_port(first);
    cr_assert(port != 0);
    IS(uccl_listen(engine, 0, port, &handle, &second), UCCL_EADDR);
    IS(uccl_listen(engine, -1, port, &handle, &second), UCCL_EADDR);
    cr_assert(!second);
    IS(uccl_listener_close(first), 0);
    IS(uccl_listen(engine, -1, port, &handle, &second), 0);
    cr_assert_eq(uccl_listener_port(second), port);
    IS(uccl_close(engine), 0); /* closes the listener too */
    uint16_t again;
    close(bound_socket(0, &again));
}

Test(api_connect, nobody_comes, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn = NULL;
    uccl_engine *engine = open_engine("yes", NULL);
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    uint64_t shortest_ms = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t begin_ms = now_ms();
        IS(uccl_accept(listener, 0, &conn), UCCL_EAGAIN);
        if (now_ms() - begin_ms < shortest_ms)
            shortest_ms = now_ms() - begin_ms;
    }
    cr_assert_lt(shortest_ms, 50);
    uint64_t start_ms = now_ms();
    IS(uccl_accept(listener, 150, &conn), UCCL_ETIMEDOUT);
    uint64_t took_ms = now_ms() - start_ms;
    cr_assert(took_ms >= 149 && took_ms < 1500, "took %d ms", (int)took_ms);
    cr_assert(!conn);
    IS(uccl_close(engine), 0);
}

Test(api_connect, refused_and_silent, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle;
    uccl_conn *conn = NULL;
    uint16_t port;
    uccl_engine *engine = open_engine("yes", NULL);
    uccl_set_log(log_nothing, NULL);

    int fd = bound_socket(0, &port);
    IS(uccl_handle_from_address("127.0.0.1", port, &handle), 0);
    IS(uccl_connect(engine, &handle, 5000, &conn), UCCL_EREFUSED);
    int result;
    while ((result = uccl_connect(engine, &handle, 0, &conn)) == UCCL_EAGAIN)
        sleep_us(100);
    IS(result, UCCL_EREFUSED);
    close(fd);

    fd = bound_socket(1, &port);
    IS(uccl_handle_from_address("127.0.0.1", port, &handle), 0);
    uint64_t start_ms = now_ms();
    IS(uccl_connect(engine, &handle, 200, &conn), UCCL_ETIMEDOUT);
    uint64_t took_ms = now_ms() - start_ms;
    cr_assert(took_ms >= 199 && took_ms < 2000, "took %d ms", (int)took_ms);
    IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);
    uccl_connect_cancel(&handle);
    uccl_connect_cancel(&handle);
    close(fd);

    uccl_engine *hasty = open_engine("no", "CONNECT_MS", "100", NULL);
    fd = bound_socket(1, &port);
    IS(uccl_handle_from_address("127.0.0.1", port, &handle), 0);
    IS(uccl_connect(hasty, &handle, -1, &conn), UCCL_ETIMEDOUT);
    close(fd);
    cr_assert(!conn);
    IS(uccl_close(hasty), 0);
    IS(uccl_close(engine), 0);
}

/* Somebody accepts long after the time of a handshake: the time for that had not begun. */
BOTH(api_connect, accepted_late)
{
    uccl_engine *client = open_engine(lend, "CONNECT_MS", "1500", "ACCEPT_WAIT_MS", "60000", NULL);
    uccl_engine *server = open_engine(lend, NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2] = {0};
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    for (int i = 0; i < 3; i++) {
        IS(uccl_connect(client, &handle, 0, &conn[0]), UCCL_EAGAIN);
        sleep_us(600000);
    }
    connect_now(client, &handle, listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Who accepts and then says nothing more has the time of a handshake, not that of the wait before it. */
Test(api_connect, accepted_and_silent, .timeout = TIMEOUT_S)
{
    uccl_engine *client = open_engine("no", "CONNECT_MS", "100", "ACCEPT_WAIT_MS", "86400000", NULL);
    uccl_engine *server = open_engine("no", NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2] = {0};
    int result;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    IS(uccl_connect(client, &handle, 0, &conn[0]), UCCL_EAGAIN);
    sleep_us(1000);
    IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
    while ((result = uccl_connect(client, &handle, 0, &conn[0])) == UCCL_EAGAIN)
        sleep_us(1000);
    IS(result, UCCL_ETIMEDOUT);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

struct late {
    uccl_listener *listener;
    uccl_conn *conn;
};

static void *accept_late(void *argument)
{
    struct late *late = argument;
    sleep_us(100000);
    IS(uccl_accept(late->listener, SOON_MS, &late->conn), 0);
    return NULL;
}

/* A call that waits ends by its own limit, whatever the calls before it have left of theirs: before and after HELLO. */
BOTH(api_connect, goes_on_with_a_limit)
{
    static const char *const waits[] = {"0", "30000"};
    for (unsigned i = 0; i < 4; i++) {
        uccl_engine *client = open_engine(lend, "CONNECT_MS", "30000", "ACCEPT_WAIT_MS", waits[i % 2], NULL);
        uccl_engine *server = open_engine(lend, NULL);
        struct uccl_handle handle;
        uccl_listener *listener;
        uccl_conn *conn[2] = {0};
        uccl_set_log(log_nothing, NULL);
        IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
        IS(uccl_connect(client, &handle, 0, &conn[0]), UCCL_EAGAIN);
        if (i / 2) {
            sleep_us(1000);
            IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
            sleep_us(1000);
            IS(uccl_connect(client, &handle, 0, &conn[0]), UCCL_EAGAIN);
        }
        uint64_t start_ms = now_ms();
        IS(uccl_connect(client, &handle, 200, &conn[0]), UCCL_ETIMEDOUT);
        uint64_t took_ms = now_ms() - start_ms;
        cr_assert(took_ms >= 199 && took_ms < 5000, "took %d ms", (int)took_ms);
        IS(uccl_close(client), 0);
        IS(uccl_close(server), 0);
    }
}

/* And has all of it. */
BOTH(api_connect, goes_on_when_time_is_up)
{
    uccl_engine *client = open_engine(lend, "CONNECT_MS", "20", NULL);
    uccl_engine *server = open_engine(lend, NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2] = {0};
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    IS(uccl_connect(client, &handle, 0, &conn[0]), UCCL_EAGAIN);
    sleep_us(40000);
    struct late late = {.listener = listener};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, accept_late, &late), 0);
    IS(uccl_connect(client, &handle, SOON_MS, &conn[0]), 0);
    pthread_join(thread, NULL);
    exchange(conn[0], late.conn, 1000, 1);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Gives up after each number of steps; nothing blocks, and the next connect works. */
BOTH(api_connect, cancelled_at_every_step)
{
    uccl_engine *client = open_engine(lend, NULL), *server = open_engine(lend, NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    bool finished = false;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    for (int steps = 1; !finished && steps < 20; steps++) {
        uccl_conn *conn[2] = {0};
        int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
        for (int i = 0; i < steps; i++) {
            if (i % 2 == 0 && connected == UCCL_EAGAIN)
                connected = uccl_connect(client, &handle, 0, &conn[0]);
            else if (accepted == UCCL_EAGAIN)
                accepted = uccl_accept(listener, 0, &conn[1]);
            sleep_us(1000);
        }
        finished = connected == 0;
        uint64_t start_ms = now_ms();
        if (!finished) {
            IS(connected, UCCL_EAGAIN);
            uccl_connect_cancel(&handle);
            IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
        } else if (accepted == UCCL_EAGAIN) {
            IS(uccl_accept(listener, SOON_MS, &conn[1]), 0);
        }
        cr_assert(now_ms() - start_ms < 1000, "%d steps: took %d ms", steps, (int)(now_ms() - start_ms));
        if (!finished)
            connect_now(client, &handle, listener, conn);
        exchange(conn[0], conn[1], 20000, (unsigned)steps);
        exchange(conn[1], conn[0], 100, (unsigned)steps);
        IS(uccl_conn_close(conn[0]), 0);
        IS(uccl_conn_close(conn[1]), 0);
    }
    cr_assert(finished);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Both connect to each other at the same time: two connections, neither mixed up with the other. */
BOTH(api_connect, simultaneous)
{
    uccl_engine *engine[2];
    uccl_listener *listener[2];
    struct uccl_handle handle[2];
    uccl_conn *conn[2] = {0}, *accepted[2] = {0};
    for (int i = 0; i < 2; i++) {
        engine[i] = open_engine(lend, NULL);
        IS(uccl_listen(engine[i], 0, 0, &handle[i], &listener[i]), 0);
    }
    uint64_t end_ms = now_ms() + SOON_MS;
    while (!conn[0] || !conn[1] || !accepted[0] || !accepted[1]) {
        for (int i = 0; i < 2; i++) {
            int result = conn[i] ? 0 : uccl_connect(engine[i], &handle[!i], 0, &conn[i]);
            cr_assert(result == 0 || result == UCCL_EAGAIN, "connect: %d", result);
            result = accepted[i] ? 0 : uccl_accept(listener[i], 0, &accepted[i]);
            cr_assert(result == 0 || result == UCCL_EAGAIN, "accept: %d", result);
        }
        cr_assert(now_ms() < end_ms);
    }
    for (unsigned i = 0; i < 20; i++) {
        size_t length = i % 2 ? 100 : 300000;
        exchange(conn[0], accepted[1], length, 4 * i);
        exchange(accepted[1], conn[0], length, 4 * i + 1);
        exchange(conn[1], accepted[0], length, 4 * i + 2);
        exchange(accepted[0], conn[1], length, 4 * i + 3);
    }
    IS(uccl_close(engine[0]), 0);
    IS(uccl_close(engine[1]), 0);
}

BOTH(api_connect, to_oneself)
{
    uccl_engine *engine = open_engine(lend, NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2], *more[2];
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    connect_now(engine, &handle, listener, conn);
    connect_now(engine, &handle, listener, more);
    for (unsigned i = 0; i < 20; i++) {
        exchange(conn[0], conn[1], i % 2 ? 10 : 200000, i);
        exchange(conn[1], conn[0], i % 2 ? 200000 : 10, i + 100);
        exchange(more[0], more[1], 5000, i + 200);
    }
    IS(uccl_conn_close(conn[0]), 0);
    IS(uccl_conn_close(conn[1]), 0);
    exchange(more[1], more[0], 5000, 7);
    IS(uccl_close(engine), 0);
}

BOTH(api_connect, sixty_five_at_once)
{
    enum { CONNECTIONS = 65 };
    struct pair pair;
    uccl_conn *conn[CONNECTIONS][2];
    uccl_request *send[CONNECTIONS], *recv[CONNECTIONS];
    static uint8_t out[CONNECTIONS][20000], in[CONNECTIONS][20000];
    pair_open(&pair, lend);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn[i]);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        size_t length = i % 3 ? 20000 : 50;
        fill(out[i], length, i);
        send[i] = post_send(conn[i][i % 2], out[i], length);
        recv[i] = post_recv(conn[i][!(i % 2)], in[i], sizeof in[i]);
    }
    for (unsigned i = CONNECTIONS; i-- > 0;) {
        check(in[i], end_of(recv[i], 0), i);
        end_of(send[i], 0);
    }
    for (unsigned i = 0; i < CONNECTIONS; i++)
        IS(uccl_conn_close(conn[i][i % 2]), 0);
    exchange(pair.conn[0], pair.conn[1], 1000, 3);
    pair_close(&pair);
}

/* Connect and close, again and again: nothing is used up, no step is slow. */
BOTH(api_connect, two_hundred_times)
{
    struct pair pair;
    pair_open(&pair, lend);
    IS(uccl_conn_close(pair.conn[0]), 0);
    IS(uccl_conn_close(pair.conn[1]), 0);
    unsigned files = entries_of("/proc/self/fd");
    unsigned slow = 0;
    for (unsigned i = 0; i < 200; i++) {
        uint64_t start_ms = now_ms();
        connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
        exchange(pair.conn[i % 2], pair.conn[!(i % 2)], i % 4 ? 100 : 70000, i);
        IS(uccl_conn_close(pair.conn[i / 2 % 2]), 0);
        IS(uccl_conn_close(pair.conn[!(i / 2 % 2)]), 0);
        slow += now_ms() - start_ms >= 40;
    }
    cr_assert_lt(slow, 100, "%u of 200 cycles took 40 ms or more", slow); /* some do on a busy machine */
    cr_assert_eq(entries_of("/proc/self/fd"), files);
    pair_close(&pair);
}

/* A server outlives more client processes than it may know at a time. */
Test(api_connect, clients_come_and_go, .timeout = TIMEOUT_S)
{
    uccl_engine *server = open_engine("yes", NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    for (unsigned i = 0; i < 100; i++) {
        uccl_engine *client = open_engine("yes", NULL);
        uccl_conn *conn[2];
        connect_now(client, &handle, listener, conn);
        exchange(conn[0], conn[1], 100, i);
        IS(uccl_close(client), 0);
        IS(uccl_conn_close(conn[1]), 0);
    }
    IS(uccl_close(server), 0);
}

Test(api_connect, ipv6, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle, by_address;
    uccl_listener *listener;
    uccl_conn *conn[2];
    char text[96];
    if (access("/proc/net/if_inet6", F_OK) != 0)
        cr_skip_test("this machine has no IPv6");
    uccl_engine *a = open_engine("yes", NULL), *b = open_engine("no", NULL);
    IS(uccl_listen(b, -1, 0, &handle, &listener), 0);
    IS(uccl_handle_from_address("::1", uccl_listener_port(listener), &by_address), 0);
    connect_now(a, &by_address, listener, conn);
    IS(uccl_conn_peer(conn[0], text, sizeof text), 0);
    cr_assert(strncmp(text, "[::1]:", 6) == 0, "peer is %s", text);
    exchange(conn[0], conn[1], 1000000, 1);
    exchange(conn[1], conn[0], 100, 2);
    IS(uccl_close(a), 0);
    IS(uccl_close(b), 0);
}

/* ---- closing --------------------------------------------------------------------------------- */

static void await_closed(uccl_conn *conn)
{
    uint64_t end_ms = now_ms() + SOON_MS;
    while (uccl_conn_status(conn) != UCCL_ECLOSED && now_ms() < end_ms)
        sleep_us(1000);
    IS(uccl_conn_status(conn), UCCL_ECLOSED);
}

BOTH(api_close, peer_learns_of_it)
{
    struct pair pair;
    char byte;
    uccl_request *request = NULL;
    pair_open(&pair, lend);
    IS(uccl_conn_status(pair.conn[0]), 0);
    IS(uccl_conn_status(pair.conn[1]), 0);
    IS(uccl_conn_close(pair.conn[0]), 0);
    await_closed(pair.conn[1]);
    IS(uccl_recv_async(pair.conn[1], &byte, 1, NULL, &request), UCCL_ECLOSED);
    IS(uccl_send_async(pair.conn[1], &byte, 1, NULL, &request), UCCL_ECLOSED);
    cr_assert(!request);
    IS(uccl_conn_close(pair.conn[1]), 0);
    pair_close(&pair);
}

/* Receives and a send that nobody takes, on both sides, when one side closes. */
BOTH(api_close, with_requests_outstanding)
{
    struct pair pair;
    static uint8_t buffer[6][200000];
    uccl_request *recv[2], *send[2], *eager[2];
    pair_open(&pair, lend);
    exchange(pair.conn[0], pair.conn[1], 10, 1);
    /* receive 1 is for the send of the peer, which comes only for the number before */
    for (int i = 0; i < 2; i++)
        recv[i] = post_recv(pair.conn[i], buffer[i], 10);
    uint64_t start_ms = now_ms();
    IS(uccl_conn_close(pair.conn[0]), 0);
    cr_assert(now_ms() - start_ms < 1500, "close took %d ms", (int)(now_ms() - start_ms));
    end_of(recv[0], UCCL_ECANCELED);
    end_of(recv[1], UCCL_ECLOSED);
    IS(uccl_conn_close(pair.conn[1]), 0);

    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    for (int i = 0; i < 2; i++) {
        send[i] = post_send(pair.conn[i], buffer[2 + i], sizeof buffer[0]);
        eager[i] = post_send(pair.conn[i], buffer[4 + i], 100);
    }
    start_ms = now_ms();
    IS(uccl_conn_close(pair.conn[0]), 0); /* lingers for UCCL_LINGER_MS=300 */
    cr_assert(now_ms() - start_ms < 2000, "close took %d ms", (int)(now_ms() - start_ms));
    end_of(send[0], UCCL_ECANCELED);
    end_of(eager[0], UCCL_ECANCELED);
    end_of(send[1], UCCL_ECLOSED);
    end_of(eager[1], UCCL_ECLOSED);
    IS(uccl_conn_close(pair.conn[1]), 0);
    pair_close(&pair);
}

/* What was accepted for sending arrives although the connection is closed at once. */
BOTH(api_close, delivers_what_is_under_way)
{
    struct pair pair;
    static uint8_t out[3000000], in[3000000];
    uccl_engine *linger[2];
    pair_open(&pair, lend);
    for (int i = 0; i < 2; i++)
        linger[i] = open_engine(lend, NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    IS(uccl_listen(linger[1], 0, 0, &handle, &listener), 0);
    connect_now(linger[0], &handle, listener, conn);
    fill(out, sizeof out, 1);
    uccl_request *recv = post_recv(conn[1], in, sizeof in);
    uccl_request *send = post_send(conn[0], out, sizeof out);
    IS(uccl_conn_close(conn[0]), 0);
    cr_assert_eq(end_of(send, 0), sizeof out);
    cr_assert_eq(end_of(recv, 0), sizeof in);
    check(in, sizeof in, 1);
    for (int i = 0; i < 2; i++)
        IS(uccl_close(linger[i]), 0);
    pair_close(&pair);
}

static void *close_conn(void *conn)
{
    return (void *)(intptr_t)uccl_conn_close(conn);
}

static void *close_engine(void *engine)
{
    return (void *)(intptr_t)uccl_close(engine);
}

/* Both ends at the same moment: neither waits out the linger time for the other. */
BOTH(api_close, both_ends_at_once)
{
    struct pair pair;
    pthread_t thread;
    void *result;
    uint64_t slowest_ms = 0;
    for (unsigned i = 0; i < 12; i++) {
        struct uccl_handle handle;
        uccl_listener *listener;
        for (int k = 0; k < 2; k++)
            pair.engine[k] = open_engine(lend, NULL);
        IS(uccl_listen(pair.engine[1], 0, 0, &handle, &listener), 0);
        connect_now(pair.engine[0], &handle, listener, pair.conn);
        exchange(pair.conn[0], pair.conn[1], 100, i);
        uint64_t start_ms = now_ms();
        bool engines = i % 2;
        pthread_create(&thread, NULL, engines ? close_engine : close_conn,
                       engines ? (void *)pair.engine[0] : (void *)pair.conn[0]);
        IS(engines ? uccl_close(pair.engine[1]) : uccl_conn_close(pair.conn[1]), 0);
        pthread_join(thread, &result);
        cr_assert(!result);
        if (now_ms() - start_ms > slowest_ms)
            slowest_ms = now_ms() - start_ms;
        if (!engines)
            pair_close(&pair);
    }
    cr_assert(slowest_ms < 1000, "a close took %d ms", (int)slowest_ms);
}

BOTH(api_close, engine_of_the_peer)
{
    struct pair pair;
    static uint8_t buffer[3][100000];
    uccl_request *recv, *send;
    pair_open(&pair, lend);
    recv = post_recv(pair.conn[1], buffer[0], 1000);
    send = post_send(pair.conn[1], buffer[1], sizeof buffer[1]);
    post_recv(pair.conn[0], buffer[2], 1); /* does not match: 1 byte for 100000 */
    IS(uccl_close(pair.engine[0]), 0);
    end_of(recv, UCCL_ECLOSED);
    size_t bytes;
    int status = uccl_wait(send, SOON_MS, &bytes);
    cr_assert(status == UCCL_ECLOSED || status == UCCL_ETRUNCATED, "status %d", status);
    await_closed(pair.conn[1]);
    IS(uccl_close(pair.engine[1]), 0);
}

BOTH(api_close, engine_with_everything_outstanding)
{
    struct pair pair;
    static uint8_t buffer[64][30000];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_mr *mr;
    uint16_t port;
    int fd = bound_socket(1, &port);
    pair_open(&pair, lend);
    uint64_t start_ms = now_ms();
    for (int i = 0; i < 2; i++) {
        IS(uccl_listen(pair.engine[i], 0, 0, &handle, &listener), 0);
        connect_now(pair.engine[!i], &handle, listener, conn);
        IS(uccl_reg_mr(pair.engine[i], buffer, sizeof buffer, UCCL_MEM_HOST, &mr), 0);
        for (int k = 0; k < 32; k++)
            post_send(conn[k % 2], buffer[k], k % 4 < 2 ? 30000 : 100);
        for (int k = 0; k < 32; k++)
            post_recv(pair.conn[k % 2], buffer[k], 30000);
    }
    close(fd);
    for (int i = 0; i < 2; i++) {
        start_ms = now_ms();
        IS(uccl_close(pair.engine[i]), 0);
        cr_assert(now_ms() - start_ms < 2000, "close took %d ms", (int)(now_ms() - start_ms));
    }
}
