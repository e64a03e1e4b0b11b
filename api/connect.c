/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to the listener that a handle names. Whoever waits for a handshake runs it. Between the calls of a
 * never-blocking connect the state bytes of the handle name the connect. Handles travel between machines, so these
 * bytes may come from anybody: they hold no pointer, and name a connect only together with a nonce drawn for it.
 */
#include "objects.h"

#include "base/log.h"
#include "boot/bootstrap.h"
#include "handle.h"
#include "nic/netdev.h"
#include "nic/pair.h"
#include "race.h"
#include "ways.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- a connect under way --------------------------------------------------------------------- */

/* How long a first contact waits for another one with the same engine, to share its flows. */
static const uint64_t SHARE_NS = 100 * NS_PER_MS;

/* While its datagrams have not come back, a connect looks this often whether the server has given up. */
static const uint64_t TRY_NS = 20 * NS_PER_MS;

/*
 * A connect that could go beside waits so long for its datagrams, or half of the time that it has left if that is less.
 */
static const uint64_t GO_BESIDE_NS = NS_PER_S;

/* client_offer() returns it beside errors: begin anew. */
enum { BEGIN_ANEW = 1 };

struct connecting {
    struct connecting *next; /* of the engine, under its lock */
    struct uccl_engine *engine;
    struct race race;       /* between the listener's addresses, until its HELLO */
    struct bootstrap *boot; /* the handshake with the winner. NULL: none yet, or it could not begin again */
    struct way_query *ways; /* asks for those to the server; NULL: nobody does */
    struct peer *peer;
    struct uccl_conn *conn;                                   /* open; the application gets it once READY has left */
    struct peer_flow *home;                                   /* its flow; READY waits until the flow is proven */
    uint8_t named[sizeof((struct uccl_handle *)0)->listener]; /* bytes of the handle */
    union nic_address address;                                /* the winner's */
    struct conn_wishes wishes;
    uint32_t conn_id;
    bool has_id;
    uint8_t peer_id[16]; /* where it meets: */
    bool meets;          /* a first contact: this handshake made `peer`, and alone carries its tokens */
    uint64_t asked_ns;   /* when the connect began */
    bool waits;          /* for another first contact with the same engine; since when: */
    uint64_t waits_since_ns;
    uint64_t handshake_ns; /* time for the handshake after the server's HELLO; 0: the race's deadline holds */
    bool begun_anew;       /* once, after another first contact succeeded, or `afresh` */
    bool afresh;           /* the server has forgotten the peer that we claimed: claims nothing more */
    bool beside;           /* its flows use the queues beside the main ones, since */
    bool unanswered;       /* no datagram has come back, */
    bool recalled;         /* or none had come back from another peer on the host of late */
    uint64_t go_beside_ns; /* when it takes these, unless datagrams come back; UINT64_MAX: never */
    uint32_t slot;         /* in the table below, where it has one: */
    uint64_t nonce;        /* not 0 */
    char missing[256];     /* for the log, if no datagram comes back */
};

unsigned connects_count(const struct uccl_engine *engine)
{
    unsigned count = 0;
    for (const struct connecting *c = engine->connecting; c; c = c->next)
        count++;
    return count;
}

/* Under the lock. */
static void unlink_connecting(struct connecting *c)
{
    struct connecting **link = &c->engine->connecting;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
}

/* In a child of fork(): its connection, if any, is freed with the engine. */
static void connecting_forget(struct connecting *c)
{
    bootstrap_free(c->boot);
    race_end(&c->race);
    free(c);
}

static void connecting_free(struct connecting *c)
{
    struct uccl_engine *engine = c->engine;
    pthread_mutex_lock(&engine->lock);
    unlink_connecting(c);
    if (c->has_id)
        put_conn_id(engine, c->conn_id);
    if (c->peer)
        peer_put(&engine->peers, c->peer);
    pthread_mutex_unlock(&engine->lock);
    ways_leave(engine, c->ways);
    bootstrap_free(c->boot);
    race_end(&c->race);
    if (c->conn)
        conn_abandon(c->conn);
    free(c);
}

/*
 * Whether another connect is about to meet this engine. It sends its tokens to one server alone, so this connect cannot
 * join it yet. Waiting a little lets the two share flows. Sharing is a saving, not a must: the wait is short, and
 * only for the same host, since a stranger may show that engine id elsewhere.
 */
static bool another_meets(const struct connecting *c)
{
    for (const struct connecting *other = c->engine->connecting; other; other = other->next) {
        if (other != c && other->meets && other->wishes.traffic_class == c->wishes.traffic_class &&
            nic_same_host(&other->address, &c->address) &&
            memcmp(other->peer_id, bootstrap_peer_id(c->boot), sizeof other->peer_id) == 0)
            return true;
    }
    return false;
}

/* The peers that the connect may share. */
static struct peer_of peer_wished(const struct connecting *c)
{
    return (struct peer_of){.engine_id = bootstrap_peer_id(c->boot), .traffic_class = c->wishes.traffic_class};
}

uint64_t kinds_taken(const struct uccl_engine *engine)
{
    const struct nic_device_ops *beside = engine->nic->beside;
    return BOOT_TAKES(engine->nic->ops->kind) | (beside ? BOOT_TAKES(beside->kind) : 0);
}

bool takes_both(const struct uccl_engine *engine, const struct bootstrap *boot)
{
    const struct nic *nic = engine->nic;
    uint64_t both = kinds_taken(engine);
    return nic->beside && engine->params.cc != CC_EQDS && (bootstrap_features(boot) & both) == both;
}

/* Whether both sides take flows over the queues beside our main ones; `only`: and the peer takes no others of ours. */
static bool can_go_beside(const struct connecting *c, bool only)
{
    const struct nic *nic = c->engine->nic;
    uint64_t both = bootstrap_features(c->boot);
    return nic->beside && both & BOOT_TAKES(nic->beside->kind) && !(only && both & BOOT_TAKES(nic->ops->kind));
}

/*
 * No proof fits: the connect waits for another first contact, begins anew after one, or becomes one. UCCL_EAGAIN: it
 * waits. Under the lock.
 */
static int client_meet(struct connecting *c)
{
    struct uccl_engine *engine = c->engine;
    const struct peer_of of = peer_wished(c);
    uint64_t now_ns = clock_now_ns();
    if (!c->begun_anew) {
        c->waits_since_ns = c->waits ? c->waits_since_ns : now_ns;
        c->waits = another_meets(c) && now_ns - c->waits_since_ns < SHARE_NS;
        if (c->waits)
            return UCCL_EAGAIN;
        /* another met the server while its answer was under way: the server can prove its flows now */
        if (peer_met_since(&engine->peers, &of, c->asked_ns)) {
            c->begun_anew = true;
            return BEGIN_ANEW;
        }
    }
    struct nic_host host;
    bootstrap_host(c->boot, &host);
    if (!c->beside && can_go_beside(c, false))
        c->recalled = beside_hosts_have(&engine->peers.beside_hosts, &c->address, now_ns);
    c->beside = c->beside || c->recalled || can_go_beside(c, true);
    enum peer_queues queues = c->beside ? PEER_BESIDE : takes_both(engine, c->boot) ? PEER_BOTH : PEER_MAIN;
    int error = peer_new(&engine->peers, &of, queues, &host, &c->peer);
    c->meets = !error;
    memcpy(c->peer_id, of.engine_id, sizeof c->peer_id);
    return error;
}

/*
 * The flow of the next connection to this server, out of `count`: they take turns. Engines that connect to each other,
 * as collectives do, start half way apart: a few connections each way use different threads.
 */
static uint16_t next_home(struct uccl_engine *engine, const uint8_t *server_id, unsigned count)
{
    unsigned from = memcmp(engine->id, server_id, sizeof engine->id) < 0 ? 0 : count / 2;
    return (uint16_t)((engine->next_home++ + from) % count);
}

/* Makes our offer, once the server's engine id and proofs are known. Under the lock. */
static int client_offer(struct connecting *c)
{
    struct uccl_engine *engine = c->engine;
    if (!c->has_id && !take_conn_id(engine, &c->conn_id))
        return UCCL_ENOMEM;
    c->has_id = true;
    const struct peer_of of = peer_wished(c);
    if (!c->afresh)
        c->peer = peer_known(&engine->peers, c->boot, &of);
    int error = c->peer ? UCCL_OK : client_meet(c);
    if (error)
        return error;
    struct boot_offer offer = {.conn_id = c->conn_id, .known = !c->meets};
    struct boot_key key = peer_key(c->peer);
    if (c->meets)
        peer_fill_offer(c->peer, &engine->params, &offer);
    unsigned flows = c->meets ? c->peer->flow_count : c->peer->flows_open;
    unsigned turn_there = c->wishes.end >= 0 ? engine->next_at[c->wishes.end]++ : 0;
    int home = options_home(engine, &c->wishes, flows, turn_there);
    uint16_t turn = next_home(engine, bootstrap_peer_id(c->boot), flows);
    offer.home = home >= 0 ? (uint16_t)home : turn;
    options_offer(&c->wishes, &offer);
    bootstrap_offer(c->boot, &offer, c->meets ? NULL : &key);
    return UCCL_OK;
}

/* Opens flow and connection by the server's offer. UCCL_EAGAIN: the flows have died. Under the lock. */
static int client_accept_offer(struct connecting *c, uint32_t closed)
{
    struct uccl_engine *engine = c->engine;
    const struct boot_offer *offer = bootstrap_peer_offer(c->boot);
    int error = UCCL_OK;
    if (c->meets)
        error = peer_take_offer(&engine->peers, c->peer, offer, bootstrap_features(c->boot), closed);
    else if (!peer_lives(c->peer))
        error = UCCL_EAGAIN;
    if (!error && offer->home >= c->peer->flows_open) {
        LOG_WARNING("the server wants flow %u of %u for a connection", offer->home, c->peer->flows_open);
        error = UCCL_EPROTO;
    }
    if (!error)
        error = conn_make(engine, &(struct conn_plan){c->peer, offer->home, c->conn_id, offer, &c->wishes, &c->address},
                          &c->conn);
    if (!error) {
        c->home = &c->peer->flows[offer->home];
        c->peer = NULL; /* the connection owns peer and id now */
        c->has_id = false;
    }
    return error;
}

/* Writes the log line for the case that no datagram comes back. */
static void say_missing(struct connecting *c)
{
    const struct nic_queue *queue = peer_queue(c->home->peer, c->home->thread);
    const struct boot_offer *offer = bootstrap_peer_offer(c->boot);
    struct nic_queue_address ours;
    char here[NIC_QUEUE_TEXT], there[NIC_QUEUE_TEXT] = "another queue"; /* of a known peer, whose offer has none */
    queue->ops->address(queue, &ours);
    nic_queue_address_text(&ours, here);
    if (c->meets)
        nic_queue_address_text(&offer->flows[offer->home].address, there);
    snprintf(c->missing, sizeof c->missing,
             "the handshake passes, but no data came back: sent from %s here to %s there; does a firewall drop it? "
             "UCCL_BACKEND chooses another kind of network",
             here, there);
}

/* Flow and connection are open: sends READY once the flow is proven, at once for a known peer. */
static void client_try(struct connecting *c)
{
    if (peer_flow_state(c->home) == FLOW_PROVEN) {
        bootstrap_accept_offer(c->boot);
        return;
    }
    uint64_t now_ns = clock_now_ns(), half_ns = (bootstrap_deadline(c->boot) - now_ns) / 2;
    bool beside = c->home->peer->queues != PEER_BESIDE && can_go_beside(c, false);
    c->go_beside_ns = beside ? now_ns + (half_ns < GO_BESIDE_NS ? half_ns : GO_BESIDE_NS) : UINT64_MAX;
    say_missing(c);
    bootstrap_try(c->boot, c->missing);
}

/* Begins again with the winner; each reason counts once: `begun_anew`, `afresh`, `beside`. `boot` is NULL after a
 * failure. */
static int connecting_again(struct connecting *c)
{
    ways_leave(c->engine, c->ways);
    c->ways = NULL;
    bootstrap_free(c->boot);
    c->boot = NULL;
    pthread_mutex_lock(&c->engine->lock);
    if (c->peer)
        peer_put(&c->engine->peers, c->peer);
    c->peer = NULL;
    pthread_mutex_unlock(&c->engine->lock);
    int error = bootstrap_connect(&c->address, c->engine->id, c->race.target.listener, c->race.deadline_ns,
                                  c->race.attempts[c->race.winner].fault, &c->boot);
    if (!error)
        bootstrap_add_features(c->boot, kinds_taken(c->engine));
    return error;
}

/* No datagram comes back: begins again with flows over the queues beside. */
static int connecting_beside(struct connecting *c)
{
    char text[NETDEV_ADDRESS_TEXT];
    LOG_WARNING("peer %s: %s. Its data goes over TCP connections (UCCL_BACKEND=auto)",
                netdev_address_text(&c->address, text), c->missing);
    bootstrap_reject(c->boot, UCCL_EAGAIN);
    pthread_mutex_lock(&c->engine->lock);
    peer_give_up(c->conn->peer);
    pthread_mutex_unlock(&c->engine->lock);
    conn_abandon(c->conn); /* and with it the peer */
    c->conn = NULL;
    c->home = NULL;
    c->meets = false;
    c->beside = c->unanswered = true;
    return connecting_again(c);
}

/* UCCL_EAGAIN: the flow is not proven yet. */
static int client_prove(struct connecting *c)
{
    switch (peer_flow_state(c->home)) {
    case FLOW_PROVEN:
        bootstrap_accept_offer(c->boot);
        return UCCL_OK;
    case FLOW_UNPROVEN:
        return clock_now_ns() < c->go_beside_ns ? UCCL_EAGAIN : connecting_beside(c);
    default: {
        char text[NETDEV_ADDRESS_TEXT];
        if (c->go_beside_ns != UINT64_MAX)
            return connecting_beside(c);
        int status = atomic_load_explicit(&c->conn->status, memory_order_acquire);
        LOG_WARNING("the flow to %s has died before the handshake was over: %s", netdev_address_text(&c->address, text),
                    c->missing);
        return status ? status : UCCL_EPEERDEAD;
    }
    }
}

/* The handshake has succeeded. */
static void client_done(struct connecting *c)
{
    pthread_mutex_lock(&c->engine->lock);
    peer_met(&c->engine->peers, c->conn->peer);
    if (c->unanswered)
        beside_hosts_add(&c->engine->peers.beside_hosts, &c->address, clock_now_ns());
    pthread_mutex_unlock(&c->engine->lock);
}

/* A step before there is a winner. */
static int connecting_race(struct connecting *c)
{
    int error = race_step(&c->race, clock_now_ns(), &c->boot);
    if (!error)
        c->address = c->race.target.addresses[c->race.winner];
    if (!error && c->handshake_ns) { /* somebody accepts: the time of the handshake begins */
        c->race.deadline_ns = clock_now_ns() + c->handshake_ns;
        bootstrap_set_deadline(c->boot, c->race.deadline_ns);
    }
    return error;
}

/* One step. UCCL_EAGAIN: wait, for the socket or another connect. 0: a state further, or connected (`*done`). */
static int connecting_advance(struct connecting *c, bool *done)
{
    int error = UCCL_OK;
    if (c->race.winner < 0)
        return connecting_race(c);
    uint32_t closed;
    switch (bootstrap_step(c->boot, clock_now_ns())) {
    case BOOT_NEED_OFFER:
        pthread_mutex_lock(&c->engine->lock);
        error = client_offer(c);
        pthread_mutex_unlock(&c->engine->lock);
        if (error != BEGIN_ANEW)
            return error;
        bootstrap_reject(c->boot, UCCL_EAGAIN);
        return connecting_again(c);
    case BOOT_HAVE_OFFER:
        error = ways_ask(c->engine, c->boot, true, &c->ways, &closed);
        if (error)
            return error;
        pthread_mutex_lock(&c->engine->lock);
        error = client_accept_offer(c, closed);
        pthread_mutex_unlock(&c->engine->lock);
        if (error == UCCL_OK)
            client_try(c);
        if (error != UCCL_EAGAIN)
            return error;
        bootstrap_reject(c->boot, UCCL_EAGAIN);
        c->afresh = c->begun_anew = true;
        return connecting_again(c);
    case BOOT_TRYING:
        return client_prove(c);
    case BOOT_DONE:
        client_done(c);
        *done = true;
        return UCCL_OK;
    case BOOT_FAILED:
        error = bootstrap_status(c->boot);
        if (error != UCCL_EAGAIN)
            return error;
        c->afresh = c->begun_anew = true;
        return connecting_again(c);
    default:
        return UCCL_EAGAIN;
    }
}

/* The host may have changed: the next connect asks anew whether datagrams reach it. */
static void connecting_unrecall(struct connecting *c)
{
    pthread_mutex_lock(&c->engine->lock);
    beside_hosts_forget(&c->engine->peers.beside_hosts, &c->address);
    pthread_mutex_unlock(&c->engine->lock);
}

/* Goes as far as possible. UCCL_EAGAIN: wait for the socket. 0: connected. */
static int connecting_step(struct connecting *c)
{
    bool done = false;
    int error;
    do
        error = connecting_advance(c, &done);
    while (!error && !done);
    if (error == UCCL_EAGAIN)
        return error;
    if (error && c->boot)
        bootstrap_reject(c->boot, error);
    if (error && c->recalled)
        connecting_unrecall(c);
    race_tell(&c->race, error);
    return error;
}

/* How long a call that waits does so: UCCL_CONNECT_MS without a time limit of its own. */
static uint64_t limit_ms_of(const struct uccl_engine *engine, int timeout_ms)
{
    return timeout_ms > 0 ? (uint64_t)timeout_ms : engine->params.connect_ms;
}

static int connecting_new(struct uccl_engine *engine, const struct uccl_handle *handle, int timeout_ms,
                          const struct uccl_conn_options *options, struct connecting **out)
{
    struct handle_target target;
    struct conn_wishes wishes;
    if (!handle_get(handle, &target) || options_read(engine, options, &wishes))
        return UCCL_EINVAL;
    struct connecting *c = calloc(1, sizeof *c);
    if (!c)
        return UCCL_ENOMEM;
    free_abandoned(engine);
    uint64_t limit_ms = limit_ms_of(engine, timeout_ms);
    if (timeout_ms == 0 && engine->params.accept_wait_ms) {
        c->handshake_ns = limit_ms * NS_PER_MS;
        limit_ms = engine->params.accept_wait_ms;
    }
    c->engine = engine;
    c->wishes = wishes;
    memcpy(c->named, handle->listener, sizeof c->named);
    c->asked_ns = clock_now_ns();
    race_init(&c->race, &target, engine->id, engine->params.socket_ifname, c->asked_ns,
              c->asked_ns + limit_ms * NS_PER_MS);
    c->race.features = kinds_taken(engine);
    pthread_mutex_lock(&engine->lock);
    c->next = engine->connecting;
    engine->connecting = c;
    pthread_mutex_unlock(&engine->lock);
    *out = c;
    return UCCL_OK;
}

/* ---- between the calls of a never-blocking connect ------------------------------------------- */

enum { PENDING_MAX = 4096 };

/* Nonces below PENDING_NONCES name no connect. */
enum { PENDING_FREE = 0, PENDING_CLAIMED = 1, PENDING_NONCES = 2 };

/*
 * Never-blocking connects between two calls, of all engines, since uccl_connect_cancel() names no engine. A call claims
 * a connect by exchanging its nonce (acquire) and returns it by another exchange (release): a handle that two threads
 * use, or a forged one, finds nothing. No lock, so a fork or a lost thread keeps nothing.
 */
static struct {
    _Atomic uint64_t nonce;
    uint32_t generation; /* counts uses of the slot */
    struct connecting *connecting;
} pending[PENDING_MAX];

/* The state bytes of a handle; all zero: no connect under way. */
struct pending_state {
    uint32_t slot; /* from 1 */
    uint32_t generation;
    uint64_t nonce;
};
_Static_assert(sizeof(struct pending_state) == sizeof((struct uccl_handle *)0)->state, "fills the state bytes");

/* Takes a slot for a connect, and claims it. */
static int pending_take(struct connecting *c)
{
    uint64_t nonce;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) {
        LOG_ERR("cannot draw a number for a connect: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    for (uint32_t slot = 0; slot < PENDING_MAX; slot++) {
        uint64_t expected = PENDING_FREE;
        if (!atomic_compare_exchange_strong(&pending[slot].nonce, &expected, (uint64_t)PENDING_CLAIMED))
            continue;
        pending[slot].generation++;
        pending[slot].connecting = c;
        c->slot = slot;
        c->nonce = nonce < PENDING_NONCES ? nonce + PENDING_NONCES : nonce;
        return UCCL_OK;
    }
    LOG_ERR("cannot begin one more connect: all %d are under way", PENDING_MAX);
    return UCCL_ENOMEM;
}

/* Claims the connect of this state; NULL: none, or another call works on it. */
static struct connecting *pending_claim(const struct uccl_handle *handle)
{
    struct pending_state state;
    memcpy(&state, handle->state, sizeof state);
    if (state.slot < 1 || state.slot > PENDING_MAX || state.nonce < PENDING_NONCES)
        return NULL;
    uint32_t slot = state.slot - 1;
    uint64_t expected = state.nonce;
    if (!atomic_compare_exchange_strong(&pending[slot].nonce, &expected, (uint64_t)PENDING_CLAIMED))
        return NULL;
    struct connecting *c = pending[slot].connecting;
    /* the nonce alone names the connect; the rest detects a handle patched together */
    if (pending[slot].generation == state.generation && memcmp(handle->listener, c->named, sizeof c->named) == 0)
        return c;
    atomic_store_explicit(&pending[slot].nonce, state.nonce, memory_order_release);
    return NULL;
}

/* Returns the connect at the end of a call. */
static void pending_keep(struct connecting *c, struct uccl_handle *handle)
{
    struct pending_state state = {c->slot + 1, pending[c->slot].generation, c->nonce};
    memcpy(handle->state, &state, sizeof state);
    atomic_store_explicit(&pending[c->slot].nonce, c->nonce, memory_order_release);
}

/* Frees the slot of a connect that is over. */
static void pending_put(struct connecting *c)
{
    if (c->nonce)
        atomic_store_explicit(&pending[c->slot].nonce, (uint64_t)PENDING_FREE, memory_order_release);
}

void connects_end(struct uccl_engine *engine)
{
    for (struct connecting *c = engine->connecting, *next; c; c = next) {
        uint64_t expected = c->nonce;
        next = c->next;
        if (c->nonce && atomic_compare_exchange_strong(&pending[c->slot].nonce, &expected, (uint64_t)PENDING_CLAIMED)) {
            pending_put(c);
            connecting_free(c);
        }
    }
}

void connects_inherited(struct uccl_engine *engine)
{
    while (engine->connecting) {
        struct connecting *c = engine->connecting;
        engine->connecting = c->next;
        pending_put(c);
        connecting_forget(c);
    }
}

void connects_forget(void)
{
    for (uint32_t slot = 0; slot < PENDING_MAX; slot++)
        pending[slot].nonce = PENDING_FREE;
}

/* ---- connect --------------------------------------------------------------------------------- */

/* A call that waits goes on with a connect of calls that did not: its limit takes the place of theirs. */
static void connecting_limit(struct connecting *c, int timeout_ms)
{
    uint64_t now_ns = clock_now_ns(), limit_ns = limit_ms_of(c->engine, timeout_ms) * NS_PER_MS;
    c->handshake_ns = 0;
    race_limit(&c->race, now_ns, now_ns + limit_ns);
    if (c->boot)
        bootstrap_set_deadline(c->boot, now_ns + limit_ns);
    if (c->go_beside_ns != UINT64_MAX && c->go_beside_ns > now_ns + limit_ns / 2)
        c->go_beside_ns = now_ns + limit_ns / 2;
}

static bool has_state(const struct uccl_handle *handle)
{
    static const uint8_t none[sizeof handle->state];
    return memcmp(handle->state, none, sizeof none) != 0;
}

/* Finds the connect that the handle's state names, or makes one. */
static int connecting_of(struct uccl_engine *engine, const struct uccl_handle *handle, int timeout_ms,
                         const struct uccl_conn_options *options, struct connecting **out)
{
    if (!has_state(handle))
        return connecting_new(engine, handle, timeout_ms, options, out);
    struct connecting *c = pending_claim(handle);
    if (!c)
        return UCCL_EINVAL;
    if (c->engine != engine) {
        atomic_store_explicit(&pending[c->slot].nonce, c->nonce, memory_order_release);
        return UCCL_EINVAL;
    }
    if (timeout_ms != 0)
        connecting_limit(c, timeout_ms);
    *out = c;
    return UCCL_OK;
}

static void wait_for_step(const struct connecting *c)
{
    if (c->race.winner < 0) {
        race_wait(&c->race);
        return;
    }
    if (bootstrap_trying(c->boot)) {
        uint64_t look_ns = clock_now_ns() + TRY_NS, end_ns = bootstrap_deadline(c->boot);
        thread_wait(c->home->thread, &c->home->state, FLOW_UNPROVEN, look_ns < end_ns ? look_ns : end_ns);
        return;
    }
    struct pollfd fd = {.fd = bootstrap_fd(c->boot), .events = bootstrap_events(c->boot)};
    bool asks = bootstrap_has_offer(c->boot);
    if (asks)
        fd = (struct pollfd){.fd = ways_fd(c->ways), .events = POLLIN};
    /* no descriptor signals that another connect has ended, or that there is a place for one more question */
    bool blind = c->waits || (asks && !c->ways);
    sleep_on(&fd, 1, blind ? 1 : clock_poll_ms(bootstrap_deadline(c->boot)));
}

UCCL_API int uccl_connect_with(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms,
                               const struct uccl_conn_options *options, uccl_conn **out)
{
    struct connecting *c;
    if (!engine || !handle || !out)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    int result = connecting_of(engine, handle, timeout_ms, options, &c);
    if (result)
        return result;
    while ((result = connecting_step(c)) == UCCL_EAGAIN && timeout_ms != 0)
        wait_for_step(c);
    if (result == UCCL_EAGAIN && !c->nonce) {
        int error = pending_take(c);
        result = error ? error : result;
    }
    if (result == UCCL_EAGAIN) {
        pending_keep(c, handle);
        return result;
    }
    memset(handle->state, 0, sizeof handle->state);
    if (result == UCCL_OK) {
        conn_hand_out(c->conn);
        *out = c->conn;
        c->conn = NULL;
    }
    pending_put(c);
    connecting_free(c);
    return result;
}

UCCL_API int uccl_connect(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms, uccl_conn **out)
{
    return uccl_connect_with(engine, handle, timeout_ms, NULL, out);
}

UCCL_API void uccl_connect_cancel(struct uccl_handle *handle)
{
    if (!handle)
        return;
    CANCEL_LATER;
    struct connecting *c = pending_claim(handle);
    if (!c)
        return;
    memset(handle->state, 0, sizeof handle->state);
    pending_put(c);
    if (!inherited(c->engine)) {
        connecting_free(c);
    } else if (pthread_mutex_trylock(&c->engine->lock) == 0) { /* else the list may be half changed: leave it */
        unlink_connecting(c);
        pthread_mutex_unlock(&c->engine->lock);
        connecting_forget(c);
    }
}
