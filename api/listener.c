/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening and accepting. Whoever accepts runs the server side of all handshakes, many at a time, so that a silent
 * stranger delays nobody.
 *
 * Whoever reaches the port may fill the table of handshakes. So a full table drops handshakes that are hardly an honest
 * client's: first one that has sent no HELLO for some time; then the oldest of a host that has more than its share, in
 * favour of a host that has less; then one that has stalled since its HELLO. Else the newcomer waits, and the kernel's
 * queue behind it: a burst of honest clients is served in turn, and nobody is refused. The kernel itself keeps
 * connections on which no byte has come (TCP_DEFER_ACCEPT).
 */
#include "objects.h"

#include "base/descriptor.h"
#include "base/fault.h"
#include "base/futex.h"
#include "base/log.h"
#include "boot/bootstrap.h"
#include "handle.h"
#include "nic/backend.h"
#include "nic/netdev.h"
#include "nic/pair.h"
#include "ways.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    HANDSHAKES_MAX = 256,
    HANDSHAKES_SHARE = 64, /* of one host, where others need some */
    BACKLOG = 1024,
    ADDRESSES_MAX = 256,  /* of this machine */
    ACCEPT_AGAIN_MS = 50, /* after an accept that failed */
    FULL_AGAIN_MS = 20,   /* between two looks at a full table, of handshakes or of questions for ways */
};

/* After this long a handshake may be dropped: without a HELLO, or stalled after it. */
static const uint64_t SILENT_NS = 100 * NS_PER_MS;
static const uint64_t STALLED_NS = NS_PER_S;

/* A handshake of the server side. */
struct accepting {
    struct bootstrap *boot; /* NULL: none */
    struct way_query *ways; /* asks for those to the client; NULL: nobody does */
    struct uccl_conn *conn; /* open; the application gets it at READY */
    uint64_t since_ns;
    bool unread;     /* its socket has bytes to read: look_for_unread() */
    uint64_t source; /* bootstrap_source() */
};

enum turn { TURN_FREE, TURN_TAKEN, TURN_AWAITED }; /* AWAITED: taken, and others may wait for it */

struct uccl_listener {
    struct uccl_listener *next;
    struct uccl_engine *engine;
    int fd;
    uint16_t port;
    uint64_t nonce; /* in its handle and in its HELLOs; not 0 */
    struct conn_wishes wishes;
    _Atomic uint32_t turn; /* one thread accepts at a time: enum turn; a futex */
    bool closed;
    int fault; /* of the last accept() though a client waits: try again later; 0: none */
    unsigned count;
    struct accepting accepting[HANDSHAKES_MAX];
    struct accepting newcomer; /* accepted, waits for room in the table */
};

static int listen_on(union nic_address *address, uint64_t connect_ms, int *out)
{
    int one = 1, zero = 0, defer_s = (int)((connect_ms + 999) / 1000);
    int fd = descriptor_keep(socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    /* Without this option a silent client enters the table sooner. */
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &defer_s, sizeof defer_s);
    socklen_t length = sizeof *address;
    if (bind(fd, &address->any, nic_address_length(address)) || listen(fd, BACKLOG) ||
        getsockname(fd, &address->any, &length)) {
        int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

/* Opens the socket on `device`'s address or, below 0, on all; `*address` becomes the socket's. Logged. */
static int listener_open_socket(const struct uccl_engine *engine, int device, uint16_t port, union nic_address *address,
                                int *fd)
{
    if (device < 0) {
        memset(address, 0, sizeof *address);
        address->v6.sin6_family = AF_INET6;
    }
    *nic_address_port(address) = htons(port);
    int failed = listen_on(address, engine->params.connect_ms, fd);
    if (failed == EAFNOSUPPORT && device < 0) { /* IPv6 is off */
        memset(address, 0, sizeof *address);
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        failed = listen_on(address, engine->params.connect_ms, fd);
    }
    if (failed) {
        char text[NETDEV_ADDRESS_TEXT], why[FAULT_TEXT];
        LOG_ERR("cannot listen on %s: %s", netdev_address_text(address, text), fault_text(failed, why));
        return failed == EADDRINUSE || failed == EADDRNOTAVAIL || failed == EACCES ? UCCL_EADDR : fault_error(failed);
    }
    return UCCL_OK;
}

static bool is_among(const union nic_address *address, const union nic_address *others, int count)
{
    for (int i = 0; i < count; i++) {
        if (nic_same_host(address, &others[i]))
            return true;
    }
    return false;
}

/*
 * Lists the addresses of this machine that the socket covers, the device's own first. Omits interface numbers, which
 * mean nothing on another machine. `more`: room to list in.
 */
static int offer_addresses(const struct uccl_engine *engine, int device, const union nic_address *own,
                           const union nic_address *bound, union nic_address out[ADDRESSES_MAX],
                           union nic_address more[ADDRESSES_MAX])
{
    int count = 1, all;
    out[0] = *own;
    all = device < 0 ? engine->nic->ops->addresses(engine->nic, more, ADDRESSES_MAX) : 0;
    if (all < 0)
        return all;
    for (int i = 0; i < all && count < ADDRESSES_MAX; i++) {
        bool covered = bound->any.sa_family == AF_INET6 || more[i].any.sa_family == AF_INET;
        if (covered && !is_among(&more[i], out, count))
            out[count++] = more[i];
    }
    for (int i = 0; i < count; i++) {
        if (out[i].any.sa_family == AF_INET6)
            out[i].v6.sin6_scope_id = 0;
    }
    return count;
}

static int draw_nonce(uint64_t *nonce)
{
    if (getrandom(nonce, sizeof *nonce, 0) != sizeof *nonce) {
        LOG_ERR("cannot draw a number for a listener: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    *nonce += *nonce == 0;
    return UCCL_OK;
}

UCCL_API int uccl_listen_with(uccl_engine *engine, int device, uint16_t port, const struct uccl_conn_options *options,
                              struct uccl_handle *handle, uccl_listener **out)
{
    if (!engine || !handle || !out || device < -1)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    struct uccl_device properties;
    union nic_address own, bound;
    struct conn_wishes wishes;
    if (options_read(engine, options, &wishes))
        return UCCL_EINVAL;
    int error = engine->nic->ops->device(engine->nic, device < 0 ? BACKEND_DEVICE : device, &properties, &own);
    if (error)
        return error;
    struct uccl_listener *listener = calloc(1, sizeof *listener);
    union nic_address *offered = calloc(2, sizeof(union nic_address[ADDRESSES_MAX])); /* too large for some stacks */
    bound = own;
    error = listener && offered ? listener_open_socket(engine, device, port, &bound, &listener->fd) : UCCL_ENOMEM;
    if (error) {
        free(offered);
        free(listener);
        return error;
    }
    int count = offer_addresses(engine, device, &own, &bound, offered, offered + ADDRESSES_MAX);
    error = count < 0 ? count : draw_nonce(&listener->nonce);
    if (error) {
        close(listener->fd);
        free(offered);
        free(listener);
        return error;
    }
    listener->engine = engine;
    listener->wishes = wishes;
    listener->port = ntohs(*nic_address_port(&bound));
    handle_put(handle, listener->nonce, htons(listener->port), offered, (unsigned)count);
    free(offered);
    pthread_mutex_lock(&engine->lock);
    listener->next = engine->listeners;
    engine->listeners = listener;
    pthread_mutex_unlock(&engine->lock);
    *out = listener;
    return UCCL_OK;
}

UCCL_API int uccl_listen(uccl_engine *engine, int device, uint16_t port, struct uccl_handle *handle,
                         uccl_listener **out)
{
    return uccl_listen_with(engine, device, port, NULL, handle, out);
}

UCCL_API uint16_t uccl_listener_port(const uccl_listener *listener)
{
    return listener && !inherited(listener->engine) && !listener->closed ? listener->port : 0;
}

/* ---- the table of handshakes ----------------------------------------------------------------- */

static void accepting_free(struct uccl_engine *engine, struct accepting *accepting)
{
    ways_leave(engine, accepting->ways);
    bootstrap_free(accepting->boot);
    if (accepting->conn)
        conn_abandon(accepting->conn);
}

/* Tells the client, if it is one, that nobody will accept it. */
static void refuse(struct uccl_engine *engine, struct accepting *accepting)
{
    if (bootstrap_greeted(accepting->boot))
        bootstrap_reject(accepting->boot, UCCL_EREFUSED);
    accepting_free(engine, accepting);
}

/* Takes handshake i out of the table. */
static struct accepting take_out(struct uccl_listener *listener, unsigned i)
{
    struct accepting accepting = listener->accepting[i];
    listener->accepting[i] = listener->accepting[--listener->count];
    return accepting;
}

/* Looks which handshakes have unread bytes: their delay may be ours. */
static void look_for_unread(struct uccl_listener *listener)
{
    struct pollfd fds[HANDSHAKES_MAX];
    for (unsigned i = 0; i < listener->count; i++)
        fds[i] = (struct pollfd){.fd = bootstrap_fd(listener->accepting[i].boot), .events = POLLIN};
    bool looked = poll(fds, listener->count, 0) >= 0;
    for (unsigned i = 0; i < listener->count; i++)
        listener->accepting[i].unread = !looked || fds[i].revents;
}

/* The oldest handshake without unread bytes, with or without its HELLO; `source`: only of that host. -1: none. */
static int oldest_handshake(const struct uccl_listener *listener, bool greeted, const uint64_t *source)
{
    int found = -1;
    for (unsigned i = 0; i < listener->count; i++) {
        const struct accepting *accepting = &listener->accepting[i];
        if (!accepting->unread && bootstrap_greeted(accepting->boot) == greeted &&
            (!source || accepting->source == *source) &&
            (found < 0 || accepting->since_ns < listener->accepting[found].since_ns))
            found = (int)i;
    }
    return found;
}

static unsigned handshakes_of(const struct uccl_listener *listener, uint64_t source)
{
    unsigned count = 0;
    for (unsigned i = 0; i < listener->count; i++)
        count += listener->accepting[i].source == source;
    return count;
}

/* The host with the most handshakes, and their number. */
static unsigned greediest_source(const struct uccl_listener *listener, uint64_t *source)
{
    unsigned most = 0;
    for (unsigned i = 0; i < listener->count; i++) {
        unsigned count = handshakes_of(listener, listener->accepting[i].source);
        if (count > most) {
            most = count;
            *source = listener->accepting[i].source;
        }
    }
    return most;
}

/* The handshake to drop for a newcomer from `source`, or -1. */
static int whom_to_drop(struct uccl_listener *listener, uint64_t source)
{
    uint64_t now_ns = clock_now_ns(), other = 0;
    look_for_unread(listener);
    int i = oldest_handshake(listener, false, NULL);
    if (i >= 0 && now_ns - listener->accepting[i].since_ns >= SILENT_NS)
        return i;
    if (handshakes_of(listener, source) < HANDSHAKES_SHARE && greediest_source(listener, &other) > HANDSHAKES_SHARE) {
        i = oldest_handshake(listener, false, &other);
        return i >= 0 ? i : oldest_handshake(listener, true, &other);
    }
    i = oldest_handshake(listener, true, NULL);
    return i >= 0 && now_ns - listener->accepting[i].since_ns >= STALLED_NS ? i : -1;
}

/* Makes room in the table for one more. False: not yet. */
static bool make_room(struct uccl_listener *listener, uint64_t source)
{
    if (listener->count < HANDSHAKES_MAX)
        return true;
    int i = whom_to_drop(listener, source);
    if (i < 0)
        return false;
    struct accepting dropped = take_out(listener, (unsigned)i);
    LOG_INFORM("port %u: %d handshakes are under way; one that has come no further than %s for %u ms is dropped",
               listener->port, HANDSHAKES_MAX, bootstrap_greeted(dropped.boot) ? "its HELLO" : "its TCP connection",
               (unsigned)((clock_now_ns() - dropped.since_ns) / NS_PER_MS));
    accepting_free(listener->engine, &dropped);
    return true;
}

/* Whether a client waits: accept() may fail for lack of a descriptor even if none does. */
static bool somebody_waits(const struct uccl_listener *listener)
{
    struct pollfd listening = {.fd = listener->fd, .events = POLLIN};
    return poll(&listening, 1, 0) > 0;
}

/* Accepts a TCP connection as the newcomer. */
static bool accept_newcomer(struct uccl_listener *listener)
{
    struct uccl_engine *engine = listener->engine;
    struct accepting newcomer = {.since_ns = clock_now_ns()};
    int fd = descriptor_keep(accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
        char text[FAULT_TEXT];
        int error = errno;
        bool passing = error == EAGAIN || error == EINTR || error == ECONNABORTED || !somebody_waits(listener);
        if (!passing && !listener->fault)
            LOG_WARNING("cannot accept on port %u: %s", listener->port, fault_text(error, text));
        listener->fault = passing ? UCCL_OK : fault_error(error);
        return false;
    }
    listener->fault = UCCL_OK;
    uint64_t deadline_ns = newcomer.since_ns + engine->params.connect_ms * NS_PER_MS;
    if (bootstrap_serve(fd, engine->id, listener->nonce, deadline_ns, &newcomer.boot))
        return false;
    bootstrap_add_features(newcomer.boot, kinds_taken(engine));
    newcomer.source = bootstrap_source(newcomer.boot);
    listener->newcomer = newcomer;
    return true;
}

/* Takes in waiting TCP connections while there is room. */
static void accept_strangers(struct uccl_listener *listener)
{
    for (unsigned i = 0; i < HANDSHAKES_MAX; i++) {
        if (!listener->newcomer.boot && !accept_newcomer(listener))
            return;
        if (!make_room(listener, listener->newcomer.source))
            return;
        listener->accepting[listener->count++] = listener->newcomer;
        listener->newcomer = (struct accepting){0};
    }
}

/* ---- handshakes ------------------------------------------------------------------------------ */

/* The peers that a connection of this listener may share. */
static struct peer_of server_peers(const struct uccl_listener *listener, const struct bootstrap *boot)
{
    return (struct peer_of){
        .engine_id = bootstrap_peer_id(boot), .is_server = true, .traffic_class = listener->wishes.traffic_class};
}

/* Proves which flows with the client's engine id we have. */
static void server_prove(const struct uccl_listener *listener, struct bootstrap *boot)
{
    struct uccl_engine *engine = listener->engine;
    const struct peer_of of = server_peers(listener, boot);
    struct boot_key keys[BOOT_PROOFS_MAX];
    pthread_mutex_lock(&engine->lock);
    unsigned count = peer_keys(&engine->peers, &of, keys);
    pthread_mutex_unlock(&engine->lock);
    bootstrap_prove(boot, keys, count);
}

/* Finds or makes the peer of the client's offer, with flows and a reference. UCCL_EAGAIN: forgotten meanwhile. */
static int server_peer(const struct uccl_listener *listener, struct bootstrap *boot, uint32_t closed, struct peer **out)
{
    struct uccl_engine *engine = listener->engine;
    const struct boot_offer *theirs = bootstrap_peer_offer(boot);
    const struct peer_of of = server_peers(listener, boot);
    if (theirs->known) {
        *out = peer_known(&engine->peers, boot, &of);
        if (!*out)
            LOG_INFORM("port %u: a client claims flows that are not known here; it is to begin again", listener->port);
        return *out ? UCCL_OK : UCCL_EAGAIN;
    }
    struct nic_host host;
    bootstrap_host(boot, &host);
    bool both = takes_both(engine, boot) && theirs->flows[0].beside.length;
    bool beside = nic_goes_beside(engine->nic, &theirs->flows[0].address);
    enum peer_queues queues = beside ? PEER_BESIDE : both ? PEER_BOTH : PEER_MAIN;
    int error = peer_new(&engine->peers, &of, queues, &host, out);
    if (error)
        return error;
    error = peer_take_offer(&engine->peers, *out, theirs, bootstrap_features(boot), closed);
    if (error)
        peer_put(&engine->peers, *out);
    return error;
}

/* Opens flow and connection by the client's offer, and answers. Under the engine's lock. */
static int server_answer(const struct uccl_listener *listener, struct accepting *accepting, uint32_t closed)
{
    struct uccl_engine *engine = listener->engine;
    const struct boot_offer *theirs = bootstrap_peer_offer(accepting->boot);
    union nic_address address;
    struct peer *peer;
    uint32_t id;
    bootstrap_peer_address(accepting->boot, &address);
    int error = server_peer(listener, accepting->boot, closed, &peer);
    if (error)
        return error;
    const struct conn_wishes *wishes = &listener->wishes;
    int wished = options_home(engine, wishes, peer->flows_open, theirs->home);
    unsigned home = wished >= 0 ? (unsigned)wished : theirs->home % peer->flows_open;
    if (!take_conn_id(engine, &id))
        error = UCCL_ENOMEM;
    if (!error) {
        error = conn_make(engine, &(struct conn_plan){peer, home, id, theirs, wishes, &address}, &accepting->conn);
        if (error)
            put_conn_id(engine, id);
    }
    if (error) {
        peer_put(&engine->peers, peer);
        return error;
    }
    struct boot_offer ours = {.conn_id = id, .home = (uint16_t)home, .known = theirs->known};
    struct boot_key key = peer_key(peer);
    options_offer(wishes, &ours);
    if (!ours.known)
        peer_fill_offer(peer, &engine->params, &ours);
    bootstrap_offer(accepting->boot, &ours, ours.known ? &key : NULL);
    return UCCL_OK;
}

/* True: the handshake is over; `*conn` is set if it succeeded. */
static bool accepting_step(struct uccl_listener *listener, struct accepting *accepting, struct uccl_conn **conn)
{
    struct uccl_engine *engine = listener->engine;
    for (;;) {
        switch (bootstrap_step(accepting->boot, clock_now_ns())) {
        case BOOT_NEED_PROOFS:
            server_prove(listener, accepting->boot);
            break;
        case BOOT_HAVE_OFFER: {
            uint32_t closed;
            int error = ways_ask(engine, accepting->boot, false, &accepting->ways, &closed);
            if (error == UCCL_EAGAIN)
                return false;
            if (!error) {
                pthread_mutex_lock(&engine->lock);
                error = server_answer(listener, accepting, closed);
                pthread_mutex_unlock(&engine->lock);
            }
            if (error)
                bootstrap_reject(accepting->boot, error);
            break;
        }
        case BOOT_DONE:
            pthread_mutex_lock(&engine->lock);
            peer_met(&engine->peers, accepting->conn->peer);
            pthread_mutex_unlock(&engine->lock);
            *conn = accepting->conn;
            accepting->conn = NULL;
            return true;
        case BOOT_FAILED:
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
        if (!accepting_step(listener, &listener->accepting[i], &conn)) {
            i++;
            continue;
        }
        struct accepting over = take_out(listener, i);
        accepting_free(listener->engine, &over);
    }
    return conn;
}

static void wait_for_sockets(struct uccl_listener *listener, uint64_t deadline_ns)
{
    struct pollfd fds[HANDSHAKES_MAX + 1];
    unsigned count = 0;
    bool full = listener->newcomer.boot != NULL;
    for (unsigned i = 0; i < listener->count; i++) {
        struct bootstrap *boot = listener->accepting[i].boot;
        bool asks = bootstrap_has_offer(boot);
        int ways = ways_fd(listener->accepting[i].ways);
        fds[count++] =
            (struct pollfd){.fd = asks ? ways : bootstrap_fd(boot), .events = asks ? POLLIN : bootstrap_events(boot)};
        full = full || (asks && ways < 0);
        if (bootstrap_deadline(boot) < deadline_ns)
            deadline_ns = bootstrap_deadline(boot);
    }
    if (listener->fault || full) {
        unsigned again_ms = listener->fault ? ACCEPT_AGAIN_MS : FULL_AGAIN_MS;
        uint64_t again_ns = clock_now_ns() + again_ms * NS_PER_MS;
        deadline_ns = again_ns < deadline_ns ? again_ns : deadline_ns;
    }
    if (!listener->fault && !listener->newcomer.boot) {
        fds[count++] = (struct pollfd){.fd = listener->fd, .events = POLLIN};
    }
    sleep_on(fds, count, clock_poll_ms(deadline_ns));
}

static bool take_turn(struct uccl_listener *listener)
{
    uint32_t free = TURN_FREE;
    return atomic_compare_exchange_strong(&listener->turn, &free, TURN_TAKEN);
}

static void end_turn(void *argument)
{
    struct uccl_listener *listener = argument;
    if (atomic_exchange(&listener->turn, TURN_FREE) == TURN_AWAITED)
        futex_wake(&listener->turn, 1);
}

/* Waits behind other threads that accept. False: time is up. `cancel_state_` is that of CANCEL_LATER. */
static bool await_turn(struct uccl_listener *listener, uint64_t deadline_ns, int cancel_state_)
{
    if (take_turn(listener))
        return true;
    while (atomic_exchange(&listener->turn, TURN_AWAITED) != TURN_FREE) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return false;
        CANCEL_HERE;
        futex_wait(&listener->turn, TURN_AWAITED, cancel_look_ns(now_ns, deadline_ns) - now_ns);
    }
    return true;
}

UCCL_API int uccl_accept(uccl_listener *listener, int timeout_ms, uccl_conn **out)
{
    if (!listener || !out)
        return UCCL_EINVAL;
    if (inherited(listener->engine))
        return UCCL_EFORKED;
    if (listener->closed)
        return UCCL_EINVAL;
    CANCEL_LATER;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ms);
    if (!(timeout_ms == 0 ? take_turn(listener) : await_turn(listener, deadline_ns, cancel_state_)))
        return timeout_ms == 0 ? UCCL_EAGAIN : UCCL_ETIMEDOUT;
    struct uccl_conn *conn;
    bool exhausted;
    for (;;) {
        free_abandoned(listener->engine); /* of failed handshakes, so that they hold no flow slots */
        accept_strangers(listener);
        conn = step_all(listener);
        /* no handshake will free a descriptor; other failures concern one client, or pass */
        exhausted = listener->fault == UCCL_ENOMEM && listener->count == 0;
        if (conn || exhausted || clock_now_ns() >= deadline_ns)
            break;
        uint64_t look_ns = cancel_look_ns(clock_now_ns(), deadline_ns);
        wait_for_sockets(listener, look_ns);
        if (look_ns < deadline_ns && clock_now_ns() >= look_ns) {
            pthread_cleanup_push(end_turn, listener);
            CANCEL_HERE;
            pthread_cleanup_pop(0);
        }
    }
    end_turn(listener);
    if (!conn)
        return exhausted ? UCCL_ENOMEM : timeout_ms == 0 ? UCCL_EAGAIN : UCCL_ETIMEDOUT;
    conn_hand_out(conn);
    *out = conn;
    return UCCL_OK;
}

unsigned listeners_count(const struct uccl_engine *engine, unsigned *handshakes)
{
    unsigned count = 0;
    *handshakes = 0;
    for (const struct uccl_listener *listener = engine->listeners; listener; listener = listener->next, count++)
        *handshakes += listener->count;
    return count;
}

static void listener_forget(struct uccl_listener *listener)
{
    for (unsigned i = 0; i < listener->count; i++)
        bootstrap_free(listener->accepting[i].boot);
    bootstrap_free(listener->newcomer.boot);
    close(listener->fd);
    free(listener);
}

void listeners_forget(struct uccl_engine *engine)
{
    while (engine->listeners) {
        struct uccl_listener *listener = engine->listeners;
        engine->listeners = listener->next;
        listener_forget(listener);
    }
}

UCCL_API int uccl_listener_close(uccl_listener *listener)
{
    if (!listener)
        return UCCL_EINVAL;
    if (inherited(listener->engine))
        return UCCL_EFORKED;
    if (listener->closed)
        return UCCL_EINVAL;
    CANCEL_LATER;
    struct uccl_engine *engine = listener->engine;
    listener->closed = true;
    pthread_mutex_lock(&engine->lock);
    for (struct uccl_listener **link = &engine->listeners; *link; link = &(*link)->next) {
        if (*link == listener) {
            *link = listener->next;
            break;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    for (unsigned i = 0; i < listener->count; i++)
        refuse(engine, &listener->accepting[i]);
    accepting_free(engine, &listener->newcomer);
    shutdown(listener->fd, SHUT_RDWR); /* also for copies that children of fork() have */
    close(listener->fd);
    pthread_mutex_lock(&engine->lock);
    keep_closed(&engine->closed, listener);
    pthread_mutex_unlock(&engine->lock);
    return UCCL_OK;
}

void listeners_end(struct uccl_engine *engine)
{
    while (engine->listeners)
        uccl_listener_close(engine->listeners);
}
