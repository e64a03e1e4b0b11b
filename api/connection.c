/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making connections from the client's side, and ending them. A handshake is run by whoever waits for
 * it; what it agrees on is put in place by the home engine thread, asked through its ring.
 */
#include "objects.h"

#include "bootstrap.h"
#include "fault.h"
#include "log.h"
#include "nic/netdev.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ATTEMPTS = 3 };
enum { COPIES_NS = 1000000000 }; /* how long a close waits for copies to and from devices */

/* ---- handles --------------------------------------------------------------------------------- */

/*
 * Layout of uccl_handle.listener: version, family (4 or 6), port, address, scope. The scope, which is the number of
 * an interface here, is 0 in a listener's handle: that goes to other machines. It says where a link-local address is
 * that was given by uccl_handle_from_address().
 */
enum { HANDLE_VERSION = 1, HANDLE_ADDRESS = 4, HANDLE_SCOPE = 20 };

void handle_put(struct uccl_handle *handle, const union nic_address *address)
{
    uint8_t *at = handle->listener;
    memset(handle, 0, sizeof *handle);
    at[0] = HANDLE_VERSION;
    if (address->any.sa_family == AF_INET6) {
        at[1] = 6;
        memcpy(at + 2, &address->v6.sin6_port, 2);
        memcpy(at + HANDLE_ADDRESS, &address->v6.sin6_addr, 16);
        memcpy(at + HANDLE_SCOPE, &address->v6.sin6_scope_id, 4);
    } else {
        at[1] = 4;
        memcpy(at + 2, &address->v4.sin_port, 2);
        memcpy(at + HANDLE_ADDRESS, &address->v4.sin_addr, 4);
    }
}

static bool handle_get(const struct uccl_handle *handle, union nic_address *address)
{
    const uint8_t *at = handle->listener;
    memset(address, 0, sizeof *address);
    if (at[0] != HANDLE_VERSION || (at[1] != 4 && at[1] != 6))
        return false;
    if (at[1] == 6) {
        address->v6.sin6_family = AF_INET6;
        memcpy(&address->v6.sin6_port, at + 2, 2);
        memcpy(&address->v6.sin6_addr, at + HANDLE_ADDRESS, 16);
        memcpy(&address->v6.sin6_scope_id, at + HANDLE_SCOPE, 4);
    } else {
        address->v4.sin_family = AF_INET;
        memcpy(&address->v4.sin_port, at + 2, 2);
        memcpy(&address->v4.sin_addr, at + HANDLE_ADDRESS, 4);
    }
    return true;
}

socklen_t address_length(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

void address_text(const union nic_address *address, char *out, size_t size)
{
    char host[INET6_ADDRSTRLEN + 24] = "?", port[8] = "?";
    getnameinfo(&address->any, address_length(address), host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, size, address->any.sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

UCCL_API int uccl_handle_from_address(const char *host, uint16_t port, struct uccl_handle *out)
{
    if (!host || !out || port == 0)
        return UCCL_EINVAL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    errno = 0;
    int failed = getaddrinfo(host, service, &hints, &found);
    if (failed) {
        char why[FAULT_TEXT];
        int error = errno; /* of what the resolver did last: without a descriptor no name is known */
        bool ran_out = failed == EAI_MEMORY || (error && fault_error(error) == UCCL_ENOMEM);
        LOG_ERR("cannot resolve '%s': %s", host,
                ran_out ? fault_text(failed == EAI_MEMORY ? ENOMEM : error, why) : gai_strerror(failed));
        return ran_out ? UCCL_ENOMEM : UCCL_EADDR;
    }
    union nic_address address;
    memset(&address, 0, sizeof address);
    memcpy(&address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    handle_put(out, &address);
    return UCCL_OK;
}

/* ---- connections of the engine --------------------------------------------------------------- */

bool take_conn_id(struct uccl_engine *engine, uint32_t *id)
{
    for (uint32_t i = 0; i < CORE_CONNS_MAX; i++) {
        uint32_t index = (engine->conn_cursor + i) % CORE_CONNS_MAX;
        uint64_t bit = UINT64_C(1) << index % 64;
        if (engine->conn_indices[index / 64] & bit)
            continue;
        engine->conn_indices[index / 64] |= bit;
        engine->conn_cursor = index + 1;
        *id = index | (uint32_t)++engine->conn_generations[index] << CORE_CONN_INDEX_BITS;
        return true;
    }
    LOG_ERR("cannot open one more connection: all %d are in use", CORE_CONNS_MAX);
    return false;
}

void put_conn_id(struct uccl_engine *engine, uint32_t id)
{
    uint32_t index = id % CORE_CONNS_MAX;
    engine->conn_indices[index / 64] &= ~(UINT64_C(1) << index % 64);
}

struct open_call {
    struct uccl_conn *conn;
    struct peer_flow *flow;
    uint32_t remote_id;
    unsigned stripe;
    bool announce;  /* the home end, at the side that connects */
};

static void open_in_core(struct engine_thread *thread, void *argument)
{
    struct open_call *call = argument;
    struct conn_end *end = &call->conn->ends[call->stripe];
    struct peer_flow *flow = call->flow;
    uint32_t id = call->conn->id;
    uint64_t now_ns = clock_now_ns();
    call->conn->stripes.at[call->stripe].conn =
        call->stripe ? core_part_conn_open(thread->core, end->memory, flow->flow, &flow->setup, id,
                                           call->remote_id, call->stripe, end, now_ns)
                     : core_conn_open(thread->core, end->memory, flow->flow, &flow->setup, id,
                                      call->remote_id, end, now_ns);
    if (call->announce)
        core_conn_announce(thread->core, call->conn->stripes.at[0].conn, now_ns);
}

static void unmap_ends(struct uccl_conn *conn)
{
    for (unsigned i = 0; i < CORE_STRIPES_MAX && conn->ends[i].memory; i++)
        munmap(conn->ends[i].memory, conn->ends[i].memory_bytes);
}

static bool map_ends(struct uccl_conn *conn, const struct flow_setup *setup)
{
    const struct params *params = &conn->engine->params;
    for (unsigned i = 0; i < conn->stripes.count; i++) {
        struct conn_end *end = &conn->ends[i];
        end->of = conn;
        end->memory_bytes = i ? core_part_conn_size(params, setup) : core_conn_size(params, setup);
        end->memory = mmap(NULL, end->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                           -1, 0);
        if (end->memory == MAP_FAILED) {
            end->memory = NULL;
            unmap_ends(conn);
            return false;
        }
    }
    return true;
}

int conn_make(struct uccl_engine *engine, struct peer *peer, unsigned home, uint32_t id,
              uint32_t remote_id, const union nic_address *address, struct uccl_conn **out)
{
    struct uccl_conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return UCCL_ENOMEM;
    conn->engine = engine;
    conn->thread = peer->flows[home].thread;
    conn->peer = peer;
    conn->id = id;
    conn->address = *address;
    conn->stripes.count = peer->flows_open;
    conn->stripes.min_bytes = engine->params.stripe_min_kb * 1024;
    if (peer->flows[home].setup.places)
        conn->stripes.min_bytes = UINT64_MAX; /* one flow's NIC carries a message */
    if (!map_ends(conn, &peer->flows[home].setup)) {
        free(conn);
        return UCCL_ENOMEM;
    }
    for (unsigned i = conn->stripes.count; i-- > 0;) { /* home last: what it announces, the parts are ready for */
        struct peer_flow *flow = &peer->flows[(home + i) % peer->flows_open];
        struct open_call call = {conn, flow, remote_id, i, i == 0 && !peer->is_server};
        conn->stripes.at[i].thread = flow->thread;
        thread_run(flow->thread, open_in_core, &call);
    }
    conn->next = engine->conns;
    if (conn->next)
        conn->next->prev = conn;
    engine->conns = conn;
    *out = conn;
    return UCCL_OK;
}

void connection_on_event(void *context, const struct core_event *event)
{
    (void)context;
    if (event->kind == CORE_EVENT_FLOW_DEAD) {
        peer_flow_died(event->owner);
        return;
    }
    struct conn_end *end = event->owner;
    if (event->kind == CORE_EVENT_CONN_FAILED)
        atomic_store_explicit(&end->of->status, event->status, memory_order_release);
    else
        atomic_store_explicit(&end->ended, 1, memory_order_release);
}

struct close_call {
    struct conn *conn;
    uint64_t linger_ns;
};

static void close_in_core(struct engine_thread *thread, void *argument)
{
    struct close_call *call = argument;
    core_conn_close(thread->core, call->conn, call->linger_ns, clock_now_ns());
}

static void await_none(struct uccl_conn *conn, _Atomic uint32_t *count, uint64_t deadline_ns)
{
    uint32_t left;
    while ((left = atomic_load(count)) && thread_wait(conn->thread, count, left, deadline_ns))
        ;
}

/*
 * Home is over: so are the ends that carry parts. Requests that the core has ended may wait still: for a word between
 * engine threads, which these get across as long as they run, or for their last copies to and from a device.
 */
static void end_parts(struct uccl_conn *conn)
{
    for (unsigned i = 1; i < conn->stripes.count; i++) {
        struct engine_thread *thread = conn->stripes.at[i].thread;
        struct close_call call = {conn->stripes.at[i].conn, 0};
        thread_run(thread, close_in_core, &call);
        thread_wait(thread, &conn->ends[i].ended, 0, UINT64_MAX);
    }
    await_none(conn, &conn->stripes.striped, UINT64_MAX);
}

/* Those that no device keeps requests of any more. Under the lock. */
static void free_kept(struct uccl_engine *engine)
{
    for (struct uccl_conn **link = &engine->kept, *conn; (conn = *link);) {
        if (atomic_load(&conn->stripes.staged)) {
            link = &conn->next;
            continue;
        }
        *link = conn->next;
        free(conn);
    }
}

/* Under the lock. */
static void conn_free(struct uccl_conn *conn)
{
    struct uccl_engine *engine = conn->engine;
    *(conn->prev ? &conn->prev->next : &engine->conns) = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    unmap_ends(conn);
    put_conn_id(engine, conn->id);
    peer_put(&engine->peers, conn->peer);
    conn->next = engine->kept; /* where a device hangs, its requests count here still */
    engine->kept = conn;
    free_kept(engine);
}

static void conn_start_close(struct uccl_conn *conn, uint64_t linger_ms)
{
    struct close_call call = {conn->stripes.at[0].conn, linger_ms * 1000000};
    atomic_store_explicit(&conn->status, UCCL_ECLOSED, memory_order_release);
    thread_run(conn->thread, close_in_core, &call);
}

/*
 * Closes a connection that the application never got, without waiting for its end: whoever makes the
 * next one frees it, or uccl_close().
 */
void conn_abandon(struct uccl_conn *conn)
{
    conn_start_close(conn, 0);
    pthread_mutex_lock(&conn->engine->lock);
    conn->abandoned = true;
    conn->engine->abandoned++;
    pthread_mutex_unlock(&conn->engine->lock);
}

void free_abandoned(struct uccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (struct uccl_conn *conn = engine->abandoned ? engine->conns : NULL, *next; conn; conn = next) {
        next = conn->next;
        if (conn->abandoned && atomic_load_explicit(&conn->ends[0].ended, memory_order_acquire)) {
            engine->abandoned--;
            end_parts(conn);
            conn_free(conn);
        }
    }
    free_kept(engine);
    pthread_mutex_unlock(&engine->lock);
}

UCCL_API int uccl_conn_close(uccl_conn *conn)
{
    if (!conn)
        return UCCL_EINVAL;
    struct uccl_engine *engine = conn->engine;
    conn_start_close(conn, engine->params.linger_ms);
    /* the core ends it within the linger time and a grace, whatever the peer does */
    thread_wait(conn->thread, &conn->ends[0].ended, 0, UINT64_MAX);
    end_parts(conn);
    await_none(conn, &conn->stripes.staged, clock_now_ns() + COPIES_NS);
    pthread_mutex_lock(&engine->lock);
    conn_free(conn);
    pthread_mutex_unlock(&engine->lock);
    return UCCL_OK;
}

UCCL_API int uccl_conn_status(const uccl_conn *conn)
{
    return conn ? atomic_load_explicit(&conn->status, memory_order_acquire) : UCCL_EINVAL;
}

UCCL_API int uccl_conn_peer(const uccl_conn *conn, char *out, size_t size)
{
    if (!conn || !out || size == 0)
        return UCCL_EINVAL;
    address_text(&conn->address, out, size);
    return UCCL_OK;
}

/* ---- connect --------------------------------------------------------------------------------- */

/* A connect under way; its address stands in the handle's state bytes between never-blocking calls. */
struct connecting {
    struct uccl_engine *engine;
    struct bootstrap *boot;
    struct peer *peer;
    struct uccl_conn *conn;       /* in place, but not the application's before READY has left */
    union nic_address address;
    uint64_t deadline_ns;
    unsigned attempts;
    uint32_t conn_id;
    bool has_id;
};

static void connecting_free(struct connecting *c)
{
    pthread_mutex_lock(&c->engine->lock);
    if (c->has_id)
        put_conn_id(c->engine, c->conn_id);
    if (c->peer)
        peer_put(&c->engine->peers, c->peer);
    pthread_mutex_unlock(&c->engine->lock);
    if (c->boot)
        bootstrap_free(c->boot);
    if (c->conn)
        conn_abandon(c->conn);
    free(c);
}

static int connecting_start(struct connecting *c)
{
    return bootstrap_connect(&c->address, c->engine->id, c->deadline_ns, &c->boot);
}

/* The server's engine id is known: our side of the offer. Under the lock. */
static int client_offer(struct connecting *c)
{
    struct uccl_engine *engine = c->engine;
    union nic_address address;
    bootstrap_peer_address(c->boot, &address);
    int error = peer_get(&engine->peers, bootstrap_peer_id(c->boot), false, &address, &c->peer);
    if (error)
        return error;
    if (!c->has_id && !take_conn_id(engine, &c->conn_id))
        return UCCL_ENOMEM;
    c->has_id = true;
    unsigned home = engine->next_home++ % engine->thread_count;
    struct boot_offer offer = {.conn_id = c->conn_id, .home = (uint16_t)home};
    peer_fill_offer(c->peer, &engine->params, &offer);
    bootstrap_offer(c->boot, &offer);
    return UCCL_OK;
}

int offer_reached(struct uccl_engine *engine, const struct boot_offer *offer)
{
    int error = UCCL_OK;
    for (unsigned i = 0; i < offer->flow_count && i < engine->thread_count && !error; i++)
        error = engine->nic->reach(engine->device, &offer->flows[i].address);
    return error;
}

/* The server's offer is here: put flow and connection in place. Under the lock. */
static int client_accept_offer(struct connecting *c)
{
    struct uccl_engine *engine = c->engine;
    const struct boot_offer *offer = bootstrap_peer_offer(c->boot);
    if (offer->home >= engine->thread_count)
        return UCCL_EPROTO;
    int error = peer_take_offer(&engine->peers, c->peer, offer);
    if (!error)
        error = conn_make(engine, c->peer, offer->home, c->conn_id, offer->conn_id, &c->address,
                          &c->conn);
    if (!error) {
        c->peer = NULL; /* the connection's now, and the id too */
        c->has_id = false;
        bootstrap_accept_offer(c->boot);
    }
    return error;
}

/* One of us has forgotten the other: begin again, with new flows. */
static int connecting_again(struct connecting *c)
{
    if (++c->attempts >= ATTEMPTS)
        return UCCL_EPROTO;
    bootstrap_free(c->boot);
    c->boot = NULL;
    pthread_mutex_lock(&c->engine->lock);
    peer_put(&c->engine->peers, c->peer);
    pthread_mutex_unlock(&c->engine->lock);
    c->peer = NULL;
    return connecting_start(c);
}

/* Goes as far as it can. UCCL_EAGAIN: wait for the socket. 0: connected. */
static int connecting_step(struct connecting *c)
{
    for (;;) {
        int error = UCCL_OK;
        switch (bootstrap_step(c->boot, clock_now_ns())) {
        case BOOT_NEED_OFFER:
            pthread_mutex_lock(&c->engine->lock);
            error = client_offer(c);
            pthread_mutex_unlock(&c->engine->lock);
            break;
        case BOOT_HAVE_OFFER:
            error = offer_reached(c->engine, bootstrap_peer_offer(c->boot));
            if (error)
                break;
            pthread_mutex_lock(&c->engine->lock);
            error = client_accept_offer(c);
            pthread_mutex_unlock(&c->engine->lock);
            if (error == UCCL_EAGAIN) {
                bootstrap_reject(c->boot, UCCL_EAGAIN);
                error = connecting_again(c);
            }
            break;
        case BOOT_DONE:
            return UCCL_OK;
        case BOOT_FAILED:
            return bootstrap_status(c->boot);
        default:
            return UCCL_EAGAIN;
        }
        if (error) {
            bootstrap_reject(c->boot, error);
            return error;
        }
    }
}

static int connecting_new(struct uccl_engine *engine, const union nic_address *address, int timeout_ms,
                          struct connecting **out)
{
    struct connecting *c = calloc(1, sizeof *c);
    if (!c)
        return UCCL_ENOMEM;
    free_abandoned(engine);
    uint64_t limit_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : engine->params.connect_ms;
    c->engine = engine;
    c->address = *address;
    netdev_find_scope(engine->params.socket_ifname, &c->address);
    c->deadline_ns = clock_now_ns() + limit_ms * 1000000;
    int error = connecting_start(c);
    if (error) {
        connecting_free(c);
        return error;
    }
    *out = c;
    return UCCL_OK;
}

int poll_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_now_ns();
    if (deadline_ns == UINT64_MAX)
        return -1;
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
    return ms > 3600000 ? 3600000 : (int)ms;
}

UCCL_API int uccl_connect(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms, uccl_conn **out)
{
    union nic_address address;
    struct connecting *c;
    if (!engine || !handle || !out || !handle_get(handle, &address))
        return UCCL_EINVAL;
    memcpy(&c, handle->state, sizeof c);
    if (!c) {
        int error = connecting_new(engine, &address, timeout_ms, &c);
        if (error)
            return error;
        memcpy(handle->state, &c, sizeof c);
    }
    int result;
    while ((result = connecting_step(c)) == UCCL_EAGAIN && timeout_ms != 0) {
        struct pollfd fd = {.fd = bootstrap_fd(c->boot), .events = bootstrap_events(c->boot)};
        poll(&fd, 1, poll_ms(bootstrap_deadline(c->boot)));
    }
    if (result == UCCL_EAGAIN)
        return result;
    memset(handle->state, 0, sizeof handle->state);
    if (result == UCCL_OK) {
        *out = c->conn;
        c->conn = NULL;
    }
    connecting_free(c);
    return result;
}

UCCL_API void uccl_connect_cancel(struct uccl_handle *handle)
{
    struct connecting *c;
    if (!handle)
        return;
    memcpy(&c, handle->state, sizeof c);
    memset(handle->state, 0, sizeof handle->state);
    if (c)
        connecting_free(c);
}

/* ---- end of the engine --------------------------------------------------------------------- */

void connections_end(struct uccl_engine *engine)
{
    while (engine->listeners)
        uccl_listener_close(engine->listeners);
    for (struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        conn_start_close(conn, engine->params.linger_ms); /* all linger at the same time */
    uint64_t deadline_ns = 0;
    while (engine->conns) {
        struct uccl_conn *conn = engine->conns;
        thread_wait(conn->thread, &conn->ends[0].ended, 0, UINT64_MAX);
        end_parts(conn);
        deadline_ns = deadline_ns ? deadline_ns : clock_now_ns() + COPIES_NS;
        await_none(conn, &conn->stripes.staged, deadline_ns);
        pthread_mutex_lock(&engine->lock);
        conn_free(conn);
        pthread_mutex_unlock(&engine->lock);
    }
}
