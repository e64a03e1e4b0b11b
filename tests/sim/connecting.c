/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the engines of cluster.c get to know each other: the fibers that connect and accept, in all ways that there are.
 */
#include "cluster.h"
#include "request/request.h"
#include "seam.h"

#include "../../api/handle.h"
#include "../../api/objects.h"

enum {
    ATTEMPTS_MAX = 60,
    ACCEPT_MS = 20,
    FOUND_MS = 2000, /* an address among others is, by then */
};

/* What a client sends first on each connection: which session it is of. */
struct hello {
    uint32_t magic, session;
};
static const uint32_t HELLO_MAGIC = 0x68656c6f;

static struct session *session_of(uint32_t index)
{
    struct session *session = cluster.sessions;
    while (session && session->index != index)
        session = session->next;
    return session;
}

struct greeter {
    struct node *node;
    uccl_conn *conn;
};

/* Waits for a small message at either end of a new connection, whatever happens to it. */
static int wait_hello(uccl_request *request, size_t *bytes)
{
    int status = uccl_wait(request, HELLO_MS, bytes);
    if (status != UCCL_ETIMEDOUT)
        return status;
    while (uccl_cancel(request) == UCCL_EAGAIN)
        machine_sleep(10000);
    status = uccl_wait(request, -1, bytes);
    return status == UCCL_OK ? UCCL_OK : UCCL_ETIMEDOUT;
}

static int say_hello(struct node *node, uccl_conn *conn, const struct session *session)
{
    const struct hello hello = {HELLO_MAGIC, session->index};
    uccl_request *request;
    size_t bytes;
    int error;
    while ((error = uccl_send_async(conn, &hello, sizeof hello, NULL, &request)) == UCCL_EAGAIN)
        machine_sleep(10000);
    if (!error)
        error = wait_hello(request, &bytes);
    if (!error) {
        node->sends++;
        node->bytes_sent += bytes;
    }
    return error;
}

static int hear_hello(struct node *node, uccl_conn *conn, struct hello *hello)
{
    uccl_request *request;
    size_t bytes;
    int error;
    while ((error = uccl_recv_async(conn, hello, sizeof *hello, NULL, &request)) == UCCL_EAGAIN)
        machine_sleep(10000);
    if (!error)
        error = wait_hello(request, &bytes);
    if (!error) {
        node->receives++;
        node->bytes_received += bytes;
    }
    return error;
}

/* In one way or the other: nothing is pending on it. */
static void end_conn(uccl_conn *conn, uint64_t way)
{
    int error = way % 2 ? uccl_conn_abort(conn) : uccl_conn_close(conn);
    if (error)
        machine_fail("closing returned %d", error);
}

/* An address that is not the listener's: of another node, whose listener has the same port, or of nobody. */
static uint32_t wrong_address(const struct node *server)
{
    uint32_t some = cluster_random(cluster.options.nodes);
    switch (cluster_random(3)) {
    case 0:
        return some == server->index ? SOCKETS_SILENT : ADDRESS_FIRST + some;
    case 1:
        return SOCKETS_SILENT + some;
    default:
        return ADDRESS_FIRST + cluster.options.nodes + some; /* a host without this port */
    }
}

/* The server's handle as it would be if its host had more addresses, most of which lead elsewhere. */
static void add_addresses(const struct node *server, struct uccl_handle *handle)
{
    struct handle_target target;
    if (!handle_get(handle, &target) || target.count != 1)
        machine_fail("node %u: its handle does not name its address", server->index);
    unsigned count = 1 + cluster_random(HANDLE_ADDRESSES_MAX);
    union nic_address own = target.addresses[0], addresses[HANDLE_ADDRESSES_MAX];
    for (unsigned i = 0; i < count; i++) {
        addresses[i] = own;
        addresses[i].v4.sin_addr.s_addr = htonl(wrong_address(server));
    }
    addresses[cluster_random(count)] = own;
    handle_put(handle, target.listener, htons(LISTEN_PORT), addresses, count);
}

/* Connects in one of the ways that there are. */
static int try_connect(struct node *node, const struct node *server, uccl_conn **out)
{
    struct uccl_handle handle = server->handle;
    if (cluster.options.several_addresses)
        add_addresses(server, &handle);
    if (cluster_random(2))
        return uccl_connect(node->engine, &handle, 1 + (int)cluster_random(3000), out);
    bool gives_up = cluster_random(8) == 0;
    for (unsigned tries = 0;; tries++) {
        int error = uccl_connect(node->engine, &handle, 0, out);
        if (error != UCCL_EAGAIN)
            return error;
        if (gives_up && tries == 3) {
            uccl_connect_cancel(&handle);
            return UCCL_EAGAIN;
        }
        machine_sleep(cluster_random(100000));
    }
}

static void check_connect_error(const struct relation *relation, int error)
{
    const struct cluster_options *options = &cluster.options;
    bool hurt =
        options->crashes || options->stops || options->sockets.silent_ppm || options->expect_dead || options->relistens;
    if (error == UCCL_EAGAIN || error == UCCL_ETIMEDOUT || cluster_hostile_relation(relation))
        return;
    if (error == UCCL_ECLOSED && options->close_early) /* by the server, before a datagram of it had come */
        return;
    if (!hurt || (error != UCCL_EREFUSED && error != UCCL_EPROTO && error != UCCL_EPEERDEAD && error != UCCL_ECLOSED &&
                  error != UCCL_EIO))
        machine_fail("node %u cannot connect to node %u: %d", relation->client, relation->server, error);
}

static void connector_main(void *argument)
{
    struct relation *relation = argument;
    struct node *node = &cluster.nodes[relation->client], *server = &cluster.nodes[relation->server];
    machine_sleep(relation->delay_ns);
    while (!server->known)
        machine_sleep(100000);
    for (;; relation->attempts++) {
        uccl_conn *conn;
        if (relation->attempts == DEAD_ATTEMPTS && (cluster.options.expect_dead || cluster_hostile_relation(relation)))
            break;
        if (relation->attempts == ATTEMPTS_MAX)
            machine_fail("node %u gives up on connecting to node %u", relation->client, relation->server);
        uint64_t begun_ns = machine.now_ns;
        int error = try_connect(node, server, &conn);
        if (cluster.options.several_addresses && error && error != UCCL_EAGAIN &&
            (error != UCCL_ETIMEDOUT || machine.now_ns - begun_ns > UINT64_C(1000000) * FOUND_MS))
            machine_fail("node %u does not find node %u among several addresses: %d", relation->client,
                         relation->server, error);
        machine_note("connect", relation->client, relation->server, (uint64_t)(int64_t)error);
        if (!error) {
            struct session *session = cluster_session(relation);
            if (!nic_sim_heard(relation->client, relation->server))
                machine_fail("node %u is connected to node %u, of which no datagram has come", relation->client,
                             relation->server);
            error = say_hello(node, conn, session);
            if (error == UCCL_ETIMEDOUT && cluster.options.relistens)
                machine_fail("node %u: its connection to node %u says nothing, and does not end", relation->client,
                             relation->server);
            if (!error) {
                cluster_attach(&session->sides[0], node, conn);
                break;
            }
            session->sides[0].failed = true;
            end_conn(conn, session->index);
        }
        check_connect_error(relation, error);
        machine_sleep(1000000 + cluster_random(100000000));
    }
    cluster_opened(node);
}

void connecting_start(struct relation *relation, uint64_t delay_ns)
{
    struct node *node = &cluster.nodes[relation->client];
    relation->delay_ns = delay_ns;
    cluster_opening(node);
    machine_spawn(node->process, connector_main, relation);
}

/* The server's side of a new connection: hears which session it is. */
static void greeter_main(void *argument)
{
    struct greeter greeter = *(struct greeter *)argument;
    struct node *node = greeter.node;
    struct hello hello = {0};
    sim_free(argument);
    int error = hear_hello(node, greeter.conn, &hello);
    struct session *session = error ? NULL : session_of(hello.session);
    unsigned client = ntohl(greeter.conn->peer->host.address.v4.sin_addr.s_addr) - ADDRESS_FIRST;
    if (!error && (hello.magic != HELLO_MAGIC || !session || session->relation->server != node->index ||
                   session->relation->client != client || session->sides[1].state != SIDE_ABSENT)) {
        if (!cluster_hostile_node(client) && !cluster_hostile_node(node->index))
            machine_fail("node %u hears a hello that nobody said", node->index);
        error = UCCL_EPROTO;
    }
    if (error)
        end_conn(greeter.conn, machine.now_ns);
    else
        cluster_attach(&session->sides[1], node, greeter.conn);
    cluster_opened(node);
}

/* The listener goes, with all handshakes in whatever state they are, and a new one comes. */
static void listen_again(struct node *node)
{
    uccl_listener_close(node->listener);
    machine_sleep(1 + cluster_random(1000000));
    if (uccl_listen(node->engine, -1, LISTEN_PORT, &node->handle, &node->listener))
        machine_fail("node %u cannot listen again", node->index);
}

void connecting_accept(void *argument)
{
    struct node *node = argument;
    unsigned relistens = cluster.options.relistens;
    while (!cluster.finishing) {
        uccl_conn *conn;
        if (relistens && cluster_random(16) == 0) {
            listen_again(node);
            relistens--;
        }
        int error = uccl_accept(node->listener, cluster_random(4) ? ACCEPT_MS : 0, &conn);
        if (error == UCCL_EAGAIN)
            machine_sleep(cluster_random(1000000));
        if (error == UCCL_EAGAIN || error == UCCL_ETIMEDOUT)
            continue;
        if (error)
            machine_fail("uccl_accept() returned %d", error);
        struct greeter *greeter = sim_malloc(sizeof *greeter);
        *greeter = (struct greeter){node, conn};
        cluster_opening(node);
        machine_spawn(node->process, greeter_main, greeter);
    }
    node->helpers--;
}
