/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening and accepting. Handshakes of the server side are run by whoever accepts, several at a time, so
 * that a silent stranger holds nobody up.
 */
#include "objects.h"

#include "bootstrap.h"
#include "fault.h"
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HANDSHAKES_MAX = 64, BACKLOG = 1024, ACCEPT_AGAIN_MS = 50 };

/* A handshake of the server side. */
struct accepting {
    struct bootstrap *boot;
    struct uccl_conn *conn; /* in place, but not the application's before READY */
};

struct uccl_listener {
    struct uccl_listener *next;
    struct uccl_engine *engine;
    int fd;
    uint16_t port;
    pthread_mutex_t lock;   /* one thread accepts at a time */
    bool exhausted;         /* the last accept found no descriptor or memory: not at once again */
    unsigned count;
    struct accepting accepting[HANDSHAKES_MAX];
};

static int listen_on(union nic_address *address, int *out)
{
    int one = 1, zero = 0;
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    socklen_t length = sizeof *address;
    if (bind(fd, &address->any, address_length(address)) || listen(fd, BACKLOG) ||
        getsockname(fd, &address->any, &length)) {
        int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

static uint16_t *port_of(union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? &address->v6.sin6_port : &address->v4.sin_port;
}

UCCL_API int uccl_listen(uccl_engine *engine, int device, uint16_t port, struct uccl_handle *handle,
                         uccl_listener **out)
{
    if (!engine || !handle || !out || device < -1)
        return UCCL_EINVAL;
    struct uccl_device properties;
    union nic_address advertised, address;
    int error = engine->nic->device(engine->device, device < 0 ? 0 : device, &properties, &advertised);
    if (error)
        return error;
    if (device < 0) {
        memset(&address, 0, sizeof address);
        address.v6.sin6_family = AF_INET6;
    } else {
        address = advertised;
    }
    *port_of(&address) = htons(port);
    struct uccl_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return UCCL_ENOMEM;
    int failed = listen_on(&address, &listener->fd);
    if (failed == EAFNOSUPPORT && device < 0) { /* IPv6 is off */
        memset(&address, 0, sizeof address);
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons(port);
        failed = listen_on(&address, &listener->fd);
    }
    if (failed) {
        char text[96], why[FAULT_TEXT];
        address_text(&address, text, sizeof text);
        LOG_ERR("cannot listen on %s: %s", text, fault_text(failed, why));
        free(listener);
        return failed == EADDRINUSE || failed == EADDRNOTAVAIL || failed == EACCES ? UCCL_EADDR : fault_error(failed);
    }
    listener->engine = engine;
    listener->port = ntohs(*port_of(&address));
    pthread_mutex_init(&listener->lock, NULL);
    *port_of(&advertised) = htons(listener->port);
    if (advertised.any.sa_family == AF_INET6)
        advertised.v6.sin6_scope_id = 0; /* our number of the interface: it means nothing elsewhere */
    handle_put(handle, &advertised);
    pthread_mutex_lock(&engine->lock);
    listener->next = engine->listeners;
    engine->listeners = listener;
    pthread_mutex_unlock(&engine->lock);
    *out = listener;
    return UCCL_OK;
}

UCCL_API uint16_t uccl_listener_port(const uccl_listener *listener)
{
    return listener ? listener->port : 0;
}

/* accept() asks for a descriptor before it looks whether anybody waits. */
static bool somebody_waits(const struct uccl_listener *listener)
{
    struct pollfd listening = {.fd = listener->fd, .events = POLLIN};
    return poll(&listening, 1, 0) > 0;
}

/* Takes waiting TCP connections in, for as long as there is room. */
static void accept_strangers(struct uccl_listener *listener)
{
    struct uccl_engine *engine = listener->engine;
    while (listener->count < HANDSHAKES_MAX) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            char text[FAULT_TEXT];
            int error = errno;
            bool exhausted = error != EAGAIN && error != EINTR && error != ECONNABORTED && somebody_waits(listener);
            if (exhausted && !listener->exhausted)
                LOG_WARNING("cannot accept on port %u: %s", listener->port, fault_text(error, text));
            listener->exhausted = exhausted;
            return;
        }
        listener->exhausted = false;
        struct accepting *accepting = &listener->accepting[listener->count];
        *accepting = (struct accepting){0};
        uint64_t deadline_ns = clock_now_ns() + engine->params.connect_ms * 1000000;
        if (bootstrap_serve(fd, engine->id, deadline_ns, &accepting->boot) == UCCL_OK)
            listener->count++;
    }
}

/* The client's offer is here: put flow and connection in place, and answer. Under the engine's lock. */
static int server_answer(struct uccl_engine *engine, struct accepting *accepting)
{
    const struct boot_offer *theirs = bootstrap_peer_offer(accepting->boot);
    union nic_address address;
    struct peer *peer;
    uint32_t id;
    bootstrap_peer_address(accepting->boot, &address);
    int error = peer_get(&engine->peers, bootstrap_peer_id(accepting->boot), true, &address, &peer);
    if (error)
        return error;
    error = peer_take_offer(&engine->peers, peer, theirs);
    if (error == UCCL_EAGAIN) { /* the client has forgotten us since: new flows for both */
        peer_put(&engine->peers, peer);
        error = peer_get(&engine->peers, bootstrap_peer_id(accepting->boot), true, &address, &peer);
        if (error)
            return error;
        error = peer_take_offer(&engine->peers, peer, theirs);
    }
    unsigned flows = theirs->flow_count < peer->flow_count ? theirs->flow_count : peer->flow_count;
    unsigned home = theirs->home % flows;
    if (!error && !take_conn_id(engine, &id))
        error = UCCL_ENOMEM;
    if (!error) {
        error = conn_make(engine, peer, home, id, theirs->conn_id, &address, &accepting->conn);
        if (error)
            put_conn_id(engine, id);
    }
    if (error) {
        peer_put(&engine->peers, peer);
        return error;
    }
    struct boot_offer ours = {.conn_id = id, .home = (uint16_t)home};
    peer_fill_offer(peer, &engine->params, &ours);
    bootstrap_offer(accepting->boot, &ours);
    return UCCL_OK;
}

/* True: the handshake is over, with `*conn` set where it went well. */
static bool accepting_step(struct uccl_listener *listener, struct accepting *accepting,
                           struct uccl_conn **conn)
{
    struct uccl_engine *engine = listener->engine;
    for (;;) {
        switch (bootstrap_step(accepting->boot, clock_now_ns())) {
        case BOOT_HAVE_OFFER: {
            int error = offer_reached(engine, bootstrap_peer_offer(accepting->boot));
            if (!error) {
                pthread_mutex_lock(&engine->lock);
                error = server_answer(engine, accepting);
                pthread_mutex_unlock(&engine->lock);
            }
            if (error)
                bootstrap_reject(accepting->boot, error);
            break;
        }
        case BOOT_DONE:
            *conn = accepting->conn;
            return true;
        case BOOT_FAILED:
            if (accepting->conn)
                conn_abandon(accepting->conn);
            return true;
        default:
            return false;
        }
    }
}

static struct uccl_conn *step_all(struct uccl_listener *listener)
{
    struct uccl_conn *conn = NULL;
    for (unsigned i = 0; i < listener->count && !conn;) {
        struct accepting *accepting = &listener->accepting[i];
        if (!accepting_step(listener, accepting, &conn)) {
            i++;
            continue;
        }
        bootstrap_free(accepting->boot);
        *accepting = listener->accepting[--listener->count];
    }
    return conn;
}

static void wait_for_sockets(struct uccl_listener *listener, uint64_t deadline_ns)
{
    struct pollfd fds[HANDSHAKES_MAX + 1];
    unsigned count = 0;
    for (unsigned i = 0; i < listener->count; i++) {
        struct bootstrap *boot = listener->accepting[i].boot;
        fds[count++] = (struct pollfd){.fd = bootstrap_fd(boot), .events = bootstrap_events(boot)};
        if (bootstrap_deadline(boot) < deadline_ns)
            deadline_ns = bootstrap_deadline(boot);
    }
    if (listener->exhausted) {
        uint64_t again_ns = clock_now_ns() + ACCEPT_AGAIN_MS * UINT64_C(1000000);
        deadline_ns = again_ns < deadline_ns ? again_ns : deadline_ns;
    } else if (listener->count < HANDSHAKES_MAX)
        fds[count++] = (struct pollfd){.fd = listener->fd, .events = POLLIN};
    poll(fds, count, poll_ms(deadline_ns));
}

UCCL_API int uccl_accept(uccl_listener *listener, int timeout_ms, uccl_conn **out)
{
    if (!listener || !out)
        return UCCL_EINVAL;
    uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + (uint64_t)timeout_ms * 1000000;
    if (pthread_mutex_trylock(&listener->lock)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += timeout_ms % 1000 * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (timeout_ms == 0)
            return UCCL_EAGAIN;
        if (timeout_ms < 0)
            pthread_mutex_lock(&listener->lock);
        else if (pthread_mutex_timedlock(&listener->lock, &until))
            return UCCL_ETIMEDOUT;
    }
    struct uccl_conn *conn;
    bool exhausted;
    free_abandoned(listener->engine);
    for (;;) {
        accept_strangers(listener);
        conn = step_all(listener);
        exhausted = listener->exhausted && listener->count == 0; /* no handshake will give a descriptor back */
        if (conn || exhausted || clock_now_ns() >= deadline_ns)
            break;
        wait_for_sockets(listener, deadline_ns);
    }
    pthread_mutex_unlock(&listener->lock);
    if (!conn)
        return exhausted ? UCCL_ENOMEM : timeout_ms == 0 ? UCCL_EAGAIN : UCCL_ETIMEDOUT;
    *out = conn;
    return UCCL_OK;
}

UCCL_API int uccl_listener_close(uccl_listener *listener)
{
    if (!listener)
        return UCCL_EINVAL;
    struct uccl_engine *engine = listener->engine;
    pthread_mutex_lock(&engine->lock);
    for (struct uccl_listener **link = &engine->listeners; *link; link = &(*link)->next) {
        if (*link == listener) {
            *link = listener->next;
            break;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    for (unsigned i = 0; i < listener->count; i++) {
        struct accepting *accepting = &listener->accepting[i];
        bootstrap_free(accepting->boot);
        if (accepting->conn)
            conn_abandon(accepting->conn);
    }
    close(listener->fd);
    pthread_mutex_destroy(&listener->lock);
    free(listener);
    return UCCL_OK;
}
