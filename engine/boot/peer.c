/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/peer.h"

#include "base/log.h"
#include "base/unmap.h"
#include "boot/rails.h"
#include "nic/netdev.h"
#include "thread/thread.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum { SLOT_WORDS = CORE_FLOWS_MAX / 64 };

/* The share of flow slots for clients whose handshakes are under way: a stranger decides how long one takes. */
enum { UNMET_MAX = CORE_FLOWS_MAX / 4 };

/* An unused peer stays this long, to answer repeats of the other side's last frames. */
static const uint64_t IDLE_NS = 10 * NS_PER_S;
/* Connections of one of several rails break where nothing has been acknowledged for so many times UCCL_NIC_DEAD_MS. */
enum { RAIL_PATIENCE = 4 };

/* A client may have finished a handshake that failed here: its flows stay this long, to answer GONE. */
static const uint64_t UNMET_IDLE_NS = 2 * NS_PER_S;

int peer_table_init(struct peer_table *table, const struct params *params, struct engine_thread *threads,
                    unsigned thread_count)
{
    struct nic_end ends[NIC_ENDS_MAX];
    const struct nic *nic = threads[0].queue->nic;
    *table = (struct peer_table){
        .params = params, .threads = threads, .thread_count = thread_count, .end_count = nic_ends(nic, ends)};
    for (unsigned i = 0; i < thread_count; i++) {
        table->slots_used[i] = calloc(SLOT_WORDS, sizeof(uint64_t));
        if (!table->slots_used[i]) {
            while (i-- > 0)
                free(table->slots_used[i]);
            return UCCL_ENOMEM;
        }
    }
    return UCCL_OK;
}

/* A free flow slot of a thread, or -1. */
static int take_slot(struct peer_table *table, unsigned thread)
{
    uint64_t *used = table->slots_used[thread];
    for (unsigned word = 0; word < SLOT_WORDS; word++) {
        if (used[word] == UINT64_MAX)
            continue;
        unsigned bit = (unsigned)__builtin_ctzll(~used[word]);
        used[word] |= UINT64_C(1) << bit;
        return (int)(word * 64 + bit);
    }
    return -1;
}

static void put_slot(struct peer_table *table, unsigned thread, uint32_t slot)
{
    table->slots_used[thread][slot / 64] &= ~(UINT64_C(1) << slot % 64);
}

struct nic_queue *peer_queue(const struct peer *peer, const struct engine_thread *thread)
{
    return peer->queues == PEER_BESIDE ? thread->queue->beside : thread->queue;
}

/* ---- what the engine thread does ------------------------------------------------------------- */

struct flow_call {
    struct peer_flow *flow;
    uint32_t datagram_bytes; /* that the route takes */
    int error;
};

/* For open_flow(). */
struct open_call {
    struct peer_flow *flow;
    const struct params *params;
    struct rail_plan *rails; /* those of the peer, in our order */
    unsigned rail_count;
    const struct boot_flow *theirs;
    int left_out; /* why some rail was */
    int error;
};

/* The first peer that needs the queue beside the main one opens it. */
static void ask_route(struct engine_thread *thread, void *argument)
{
    struct flow_call *call = argument;
    struct peer *peer = call->flow->peer;
    if (peer->queues != PEER_MAIN && !thread->queue->beside)
        call->error = thread_open_beside(thread);
    if (call->error && peer->queues == PEER_BOTH) {
        peer->queues = PEER_MAIN;
        call->error = UCCL_OK;
    }
    struct nic_queue *queue = peer_queue(peer, thread);
    if (!call->error)
        call->error = queue->datagram->route(queue, &peer->host, &call->datagram_bytes);
}

static void remove_rails(struct engine_thread *thread, struct flow_setup *setup)
{
    while (setup->rail_count > 0) {
        uint32_t destination = setup->rails[--setup->rail_count].destination;
        struct nic_queue *queue = nic_queue_to(thread->queue, destination);
        queue->datagram->peer_remove(queue, destination);
    }
}

/* Bytes of a datagram in an IP packet to this address. */
static uint32_t datagram_in(uint32_t packet_bytes, const union nic_address *address)
{
    uint32_t headers = nic_udp_headers(address);
    return packet_bytes - headers > CORE_DATAGRAM_MIN ? packet_bytes - headers : CORE_DATAGRAM_MIN;
}

/* A rail that leads nowhere is left out, unless it is the handshake's. Of several NICs one may have failed. */
static int add_rail(struct engine_thread *thread, struct open_call *call, const struct rail_plan *plan)
{
    struct flow_setup *setup = &call->flow->setup;
    struct nic_queue *queue = peer_queue(call->flow->peer, thread);
    struct rail_setup rail = {.base_bytes = queue->channel ? 0 : CORE_DATAGRAM_BASE,
                              .reliable = queue->channel,
                              .greets = call->flow->peer->is_server,
                              .peer_ports = nic_queue_ports(&call->theirs->address)};
    rail.nonce = call->flow->nonce;
    if (!plan->handshake && getrandom(&rail.nonce, sizeof rail.nonce, 0) != sizeof rail.nonce) {
        LOG_ERR("cannot talk to one more peer: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    rail.nonce += rail.nonce == 0;
    int error = UCCL_EADDR;
    if (!plan->closed)
        error = queue->datagram->peer_add(queue, &plan->host, &call->theirs->address, &rail.destination,
                                          &rail.datagram_bytes);
    if ((error == UCCL_EADDR || (error == UCCL_EIO && queue->nic->pairs)) && !plan->handshake) {
        call->left_out = error;
        return UCCL_OK;
    }
    if (error)
        return error;
    rail.peer_datagram_bytes = plan->peer_mtu && !queue->channel ? datagram_in(plan->peer_mtu, &plan->host.address)
                                                                 : call->theirs->datagram_bytes;
    if (plan->handshake) /* as the offer said */
        rail.datagram_bytes = call->flow->datagram_bytes;
    if (rail.datagram_bytes > rail.peer_datagram_bytes)
        rail.datagram_bytes = rail.peer_datagram_bytes;
    rail.pair = plan->pair;
    call->flow->nics[setup->rail_count] = (uint8_t)plan->host.nic;
    setup->rails[setup->rail_count++] = rail;
    return UCCL_OK;
}

/* A rail of connections for large messages, where both ends offer that. Without it there is a flow, too. */
static void add_beside(struct engine_thread *thread, struct open_call *call, const struct rail_plan *plan)
{
    struct flow_setup *setup = &call->flow->setup;
    struct nic_queue *queue = thread->queue->beside;
    struct rail_setup rail = {.reliable = true, .joins = true};
    if (call->flow->peer->queues != PEER_BOTH || !call->theirs->beside.length || setup->rail_count == CORE_RAILS_MAX ||
        queue->datagram->peer_add(queue, &plan->host, &call->theirs->beside, &rail.destination, &rail.datagram_bytes) !=
            0)
        return;
    rail.peer_datagram_bytes = rail.datagram_bytes;
    call->flow->nics[setup->rail_count] = (uint8_t)plan->host.nic;
    setup->rails[setup->rail_count++] = rail;
}

/* How many rails of connections stand beside those of datagrams. They come last. */
static unsigned count_beside(const struct flow_setup *setup)
{
    unsigned count = 0;
    while (count < setup->rail_count && setup->rails[setup->rail_count - 1 - count].joins)
        count++;
    return count;
}

/* Connects the paths of rail `rail`, one of `rails` that are connections, or lets the peer connect them. */
static void introduce(struct peer_flow *flow, struct nic_queue *queue, unsigned rail, unsigned rails)
{
    const struct params *params = flow->thread->params;
    bool joins = flow->setup.rails[rail].joins;
    bool alone = flow->setup.rail_count == 1;
    uint64_t patience_ms = alone ? params->dead_peer_ms : RAIL_PATIENCE * params->nic_dead_ms;
    queue->channel->introduce(
        queue, flow->setup.rails[rail].destination,
        &(struct nic_flow){.flow = flow->flow,
                           .rail = (uint8_t)rail,
                           .rails = (uint8_t)rails,
                           .rx_token = flow->setup.rx_token,
                           .tx_token = flow->setup.tx_token,
                           .dials = !flow->peer->is_server,
                           .beside = joins,
                           .patience_ms = patience_ms < params->dead_peer_ms ? patience_ms : params->dead_peer_ms});
}

static void introduce_beside(struct peer_flow *flow)
{
    unsigned count = count_beside(&flow->setup);
    for (unsigned i = flow->setup.rail_count - count; i < flow->setup.rail_count; i++)
        introduce(flow, flow->thread->queue->beside, i, count);
}

static int map_flow(struct open_call *call)
{
    struct peer_flow *flow = call->flow;
    flow->memory_bytes = core_flow_size(call->params, &flow->setup);
    flow->memory = mmap(NULL, flow->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (flow->memory != MAP_FAILED)
        return UCCL_OK;
    flow->memory = NULL;
    LOG_ERR("cannot map %zu bytes for a flow: %s", flow->memory_bytes, strerror(errno));
    return UCCL_ENOMEM;
}

static void open_flow(struct engine_thread *thread, void *argument)
{
    struct open_call *call = argument;
    struct peer_flow *flow = call->flow;
    for (unsigned i = 0; i < call->rail_count && !call->error; i++)
        call->error = add_rail(thread, call, &call->rails[i]);
    if (!call->error && flow->setup.rail_count == 0)
        call->error = call->left_out;
    for (unsigned i = 0; i < call->rail_count && !call->error; i++)
        add_beside(thread, call, &call->rails[i]);
    if (!call->error)
        call->error = map_flow(call);
    if (call->error) {
        remove_rails(thread, &flow->setup);
        return;
    }
    flow->flow = core_flow_open(thread->core, flow->memory, &flow->setup, clock_now_ns());
    struct nic_queue *queue = peer_queue(flow->peer, thread);
    for (unsigned i = 0; queue->channel && i < flow->setup.rail_count; i++)
        introduce(flow, queue, i, flow->setup.rail_count);
    if (flow->peer->is_server)
        introduce_beside(flow);
}

void peer_flow_connect_beside(struct peer_flow *flow, bool silent)
{
    char text[NETDEV_ADDRESS_TEXT];
    if (flow->peer->is_server)
        return;
    netdev_address_text(&flow->peer->host.address, text);
    if (!flow->beside && silent)
        LOG_INFORM("peer %s: datagrams get no answer; connects TCP", text);
    else if (!flow->beside)
        LOG_INFORM("peer %s: connects TCP for large messages", text);
    flow->beside = true;
    introduce_beside(flow);
}

static void close_flow(struct engine_thread *thread, void *argument)
{
    struct peer_flow *flow = argument;
    thread_send_acks(thread); /* the peer may wait for an ack that is owed */
    core_flow_close(thread->core, flow->flow);
    remove_rails(thread, &flow->setup);
    flow->flow = NULL;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void free_flow(struct peer_flow *flow)
{
    if (flow->flow)
        thread_run(flow->thread, close_flow, flow);
    if (flow->memory)
        unmap(flow->memory, flow->memory_bytes);
    flow->memory = NULL;
}

static void free_flows(struct peer_table *table, struct peer *peer, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        free_flow(&peer->flows[i]);
        put_slot(table, i, peer->flows[i].slot);
    }
}

static void peer_forget(struct peer_table *table, struct peer *peer)
{
    struct peer **link = &table->peers;
    while (*link != peer)
        link = &(*link)->next;
    *link = peer->next;
    table->unmet -= peer->is_server && !peer->met;
    free_flows(table, peer, peer->flow_count);
    free(peer);
}

bool peer_lives(struct peer *peer)
{
    for (unsigned i = 0; i < peer->flow_count; i++)
        peer->dead |= peer_flow_state(&peer->flows[i]) == FLOW_DEAD;
    return !peer->dead;
}

void peer_give_up(struct peer *peer)
{
    peer->dead = true;
}

/* How long a living peer stays without references. */
static uint64_t kept_ns(const struct peer *peer)
{
    if (peer->met)
        return IDLE_NS;
    return peer->is_server && peer->flows_open ? UNMET_IDLE_NS : 0;
}

/* Frees peers without references that are dead or have been unused for long. */
static void peer_free_unused(struct peer_table *table)
{
    uint64_t now_ns = clock_now_ns();
    for (struct peer *peer = table->peers, *next; peer; peer = next) {
        next = peer->next;
        bool lives = peer_lives(peer);
        if (peer->references == 0 && (!lives || now_ns - peer->idle_since_ns >= kept_ns(peer)))
            peer_forget(table, peer);
    }
}

/* Frees the peer that has been unused for longest, of all or of those not met. False: all are in use. */
static bool peer_forget_idlest(struct peer_table *table, bool unmet)
{
    struct peer *idlest = NULL;
    for (struct peer *peer = table->peers; peer; peer = peer->next) {
        if (peer->references == 0 && !(unmet && peer->met) && (!idlest || peer->idle_since_ns < idlest->idle_since_ns))
            idlest = peer;
    }
    if (idlest)
        peer_forget(table, idlest);
    return idlest != NULL;
}

static int make_flow(struct peer_table *table, struct peer *peer, unsigned index)
{
    struct peer_flow *flow = &peer->flows[index];
    struct engine_thread *thread = &table->threads[index];
    uint64_t random[2]; /* of the token and of a nonce */
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        LOG_ERR("cannot talk to one more peer: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    int slot = take_slot(table, index);
    while (slot < 0 && peer_forget_idlest(table, false))
        slot = take_slot(table, index);
    if (slot < 0) {
        LOG_ERR("cannot talk to one more peer: all %d flows of engine thread %u are in use", CORE_FLOWS_MAX, index);
        return UCCL_ENOMEM;
    }
    flow->thread = thread;
    flow->peer = peer;
    flow->slot = (uint32_t)slot;
    flow->nonce = random[1];
    struct flow_call call = {.flow = flow};
    thread_run(thread, ask_route, &call);
    flow->datagram_bytes = call.datagram_bytes;
    if (call.error) {
        put_slot(table, index, flow->slot);
        return call.error;
    }
    const struct nic_queue *queue = peer_queue(peer, thread);
    flow->setup = (struct flow_setup){
        .rx_token = core_make_token(random[0], (uint32_t)slot),
        .rx_window_bytes = queue->ops->rx_bytes(queue),
        .owner = flow,
    };
    return UCCL_OK;
}

/* Whether the peer is one of these, lives, and has open flows. */
static bool peer_usable(struct peer *peer, const struct peer_of *of)
{
    return peer->flows_open && peer->is_server == of->is_server && peer->host.traffic_class == of->traffic_class &&
           memcmp(peer->engine_id, of->engine_id, sizeof peer->engine_id) == 0 && peer_lives(peer);
}

struct boot_key peer_key(const struct peer *peer)
{
    const struct flow_setup *setup = &peer->flows[0].setup;
    return peer->is_server ? (struct boot_key){.to_client = setup->tx_token, .to_server = setup->rx_token}
                           : (struct boot_key){.to_client = setup->rx_token, .to_server = setup->tx_token};
}

unsigned peer_keys(struct peer_table *table, const struct peer_of *of, struct boot_key keys[BOOT_PROOFS_MAX])
{
    unsigned count = 0;
    /* oldest first: later strangers with this id do not push out earlier peers */
    for (struct peer *peer = table->peers; peer && count < BOOT_PROOFS_MAX; peer = peer->next) {
        if (peer_usable(peer, of))
            keys[count++] = peer_key(peer);
    }
    return count;
}

struct peer *peer_known(struct peer_table *table, const struct bootstrap *boot, const struct peer_of *of)
{
    for (struct peer *peer = table->peers; peer; peer = peer->next) {
        if (!peer_usable(peer, of))
            continue;
        struct boot_key key = peer_key(peer);
        if (bootstrap_proves(boot, &key)) {
            peer->references++;
            return peer;
        }
    }
    return NULL;
}

int peer_new(struct peer_table *table, const struct peer_of *of, enum peer_queues queues, const struct nic_host *host,
             struct peer **out)
{
    peer_free_unused(table);
    if (of->is_server && table->unmet >= UNMET_MAX && !peer_forget_idlest(table, true)) {
        LOG_WARNING("cannot talk to one more peer: %u handshakes are under way", table->unmet);
        return UCCL_ENOMEM;
    }
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return UCCL_ENOMEM;
    memcpy(peer->engine_id, of->engine_id, sizeof peer->engine_id);
    peer->is_server = of->is_server;
    peer->queues = (uint8_t)queues;
    peer->host = *host;
    peer->host.traffic_class = of->traffic_class;
    peer->references = 1;
    for (unsigned i = 0; i < table->thread_count; i++) {
        int error = make_flow(table, peer, i);
        if (error) {
            free_flows(table, peer, i);
            free(peer);
            return error;
        }
    }
    peer->flow_count = table->thread_count;
    table->unmet += of->is_server;
    struct peer **link = &table->peers;
    while (*link)
        link = &(*link)->next;
    *link = peer;
    *out = peer;
    return UCCL_OK;
}

void peer_met(struct peer_table *table, struct peer *peer)
{
    if (peer->met)
        return;
    table->unmet -= peer->is_server;
    peer->met = true;
    peer->met_ns = clock_now_ns();
    if (peer->queues != PEER_BESIDE) /* datagrams have come */
        beside_hosts_forget(&table->beside_hosts, &peer->host.address);
}

bool peer_met_since(struct peer_table *table, const struct peer_of *of, uint64_t since_ns)
{
    for (struct peer *peer = table->peers; peer; peer = peer->next) {
        if (peer->met && peer->met_ns >= since_ns && peer_usable(peer, of))
            return true;
    }
    return false;
}

void peer_put(struct peer_table *table, struct peer *peer)
{
    assert(peer->references);
    if (--peer->references == 0)
        peer->idle_since_ns = clock_now_ns();
    peer_free_unused(table);
}

void peer_table_free(struct peer_table *table)
{
    while (table->peers)
        peer_forget(table, table->peers);
    for (unsigned i = 0; i < table->thread_count; i++)
        free(table->slots_used[i]);
}

void peer_table_forget(struct peer_table *table)
{
    while (table->peers) {
        struct peer *peer = table->peers;
        table->peers = peer->next;
        for (unsigned i = 0; i < peer->flow_count; i++) {
            if (peer->flows[i].memory)
                unmap(peer->flows[i].memory, peer->flows[i].memory_bytes);
        }
        free(peer);
    }
    peer_table_free(table); /* empty by now */
}

/* ---- the first handshake --------------------------------------------------------------------- */

void peer_fill_offer(const struct peer *peer, const struct params *params, struct boot_offer *offer)
{
    assert(!peer->met);
    offer->flow_count = (uint16_t)peer->flow_count;
    offer->chunk_window = (uint32_t)params->chunk_window;
    offer->msg_window = (uint32_t)params->msg_window;
    offer->eager_window_kb = (uint32_t)params->eager_window_kb;
    for (unsigned i = 0; i < peer->flow_count; i++) {
        const struct peer_flow *flow = &peer->flows[i];
        offer->flows[i] = (struct boot_flow){
            .token = flow->setup.rx_token,
            .datagram_bytes = flow->datagram_bytes,
            .rx_bytes = flow->setup.rx_window_bytes,
        };
        const struct nic_queue *queue = peer_queue(peer, flow->thread);
        queue->ops->address(queue, &offer->flows[i].address);
        if (peer->queues == PEER_BOTH)
            flow->thread->queue->beside->ops->address(flow->thread->queue->beside, &offer->flows[i].beside);
    }
    if (peer->queues != PEER_BESIDE)
        rails_offer(peer->flows[0].thread->queue->nic, offer);
}

static uint32_t smaller_u32(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Opens a flow. Its setup has the windows agreed on. */
static int start_flow(struct peer_table *table, struct peer_flow *flow, struct open_call *call)
{
    unsigned ends = table->end_count;
    flow->setup.tx_token = call->theirs->token;
    flow->setup.tx_window_bytes = call->theirs->rx_bytes;
    struct rail_plan own[CORE_RAILS_MAX];
    memcpy(own, call->rails, call->rail_count * sizeof own[0]);
    call->rails = own;
    if (flow->thread->queue->nic->pairs) /* flow i begins with pair i */
        rails_prefer(own, flow->thread->index % call->rail_count);
    else if (ends)
        rails_order(own, call->rail_count, flow->thread->index % ends);
    thread_run(flow->thread, open_flow, call);
    return call->error;
}

int peer_take_offer(struct peer_table *table, struct peer *peer, const struct boot_offer *offer, uint64_t features,
                    uint32_t closed)
{
    assert(!peer->flows_open && !offer->known);
    const struct params *params = table->params;
    unsigned count = offer->flow_count < peer->flow_count ? offer->flow_count : peer->flow_count;
    bool places = true; /* all flows or none: a connection spans several */
    for (unsigned i = 0; i < count; i++) {
        const struct nic_queue *queue = peer_queue(peer, peer->flows[i].thread);
        places = places && queue->data_qp && queue->data_qp->places(queue, &offer->flows[i].address);
    }
    const struct nic *nic = peer->flows[0].thread->queue->nic;
    struct rail_plan rails[CORE_RAILS_MAX] = {{.host = peer->host, .handshake = true}};
    unsigned rail_count =
        peer->queues == PEER_BESIDE ? 1 : rails_plan(nic, &peer->host, offer, !peer->is_server, rails);
    rails_tell(nic, rails, rail_count);
    for (unsigned i = 0; i < rail_count; i++)
        rails[i].closed = nic->ways && closed >> rails[i].pair & 1;
    uint32_t chunk_window = smaller_u32(params->chunk_window, offer->chunk_window);
    for (unsigned i = 0; i < count; i++) {
        struct flow_setup *setup = &peer->flows[i].setup;
        setup->features = features;
        setup->places = places;
        setup->pairs = places ? (uint8_t)rail_count : 0;
        setup->chunk_window = places ? smaller_u32(chunk_window, CORE_PLACE_WINDOW_MAX) : chunk_window;
        setup->msg_window = smaller_u32(params->msg_window, offer->msg_window);
        setup->eager_window_kb = smaller_u32(params->eager_window_kb, offer->eager_window_kb);
        struct open_call call = {.flow = &peer->flows[i],
                                 .params = params,
                                 .rails = rails,
                                 .rail_count = rail_count,
                                 .theirs = &offer->flows[i]};
        int error = start_flow(table, &peer->flows[i], &call);
        if (error)
            return error;
    }
    peer->flows_open = count;
    return UCCL_OK;
}

struct request_pairs peer_pairs(const struct peer_flow *flow)
{
    const struct flow_setup *setup = &flow->setup;
    struct request_pairs pairs = {.count = setup->pairs};
    for (unsigned i = 0; setup->places && i < setup->rail_count; i++)
        pairs.nics[setup->rails[i].pair] = flow->nics[i] ? (uint8_t)(flow->nics[i] - 1) : 0;
    return pairs;
}

void peer_flow_turned(struct peer_flow *flow, enum peer_flow_state state)
{
    /* pairs with the acquires in peer_flow_state() and thread_wait() */
    atomic_store_explicit(&flow->state, (uint32_t)state, memory_order_release);
}

void peer_flow_has_hole(struct peer_flow *flow, uint32_t passing_bytes, uint32_t route_bytes)
{
    struct peer *peer = flow->peer;
    const union nic_address *address = &peer->host.address;
    char text[NETDEV_ADDRESS_TEXT];
    if (atomic_exchange_explicit(&peer->hole_warned, true, memory_order_relaxed)) /* guards nothing else */
        return;
    uint32_t headers = nic_udp_headers(address), passing = passing_bytes + headers;
    LOG_WARNING("peer %s: packets of %u bytes vanish on the way to it, though the route takes %u; those of %u get "
                "through, and larger ones are not sent for now. Set UCCL_MTU=%u, or mend the MTU of an interface in "
                "between",
                netdev_address_text(address, text), route_bytes + headers, route_bytes + headers, passing, passing);
}

enum { BESIDE_SHIFT = 32 }; /* of nics_lost: bits of rails of connections beside those of datagrams */

/* The rail, and one beside it, are all that there is to the peer. `alone`: the other one is lost. */
static void tell_of_one_of_two(const char *peer, bool beside, bool lost, bool alone)
{
    if (beside && lost && alone)
        LOG_WARNING("peer %s: its TCP connections are broken, too; nothing gets through for now", peer);
    else if (beside && alone)
        LOG_WARNING("peer %s: its TCP connections are there again; TCP carries all", peer);
    else if (beside && lost)
        LOG_INFORM("peer %s: its TCP connections are broken; UDP carries all", peer);
    else if (beside)
        LOG_INFORM("peer %s: TCP carries large messages again", peer);
    else if (lost && alone)
        LOG_WARNING("peer %s: datagrams do not get through, either; nothing does for now", peer);
    else if (lost)
        LOG_WARNING("peer %s: datagrams do not get through any more; TCP carries all", peer);
    else
        LOG_WARNING("peer %s: datagrams get through again", peer);
}

/* Of several rails. */
static void tell_of_nic(const char *peer, const char *nic, bool lost)
{
    if (lost)
        LOG_WARNING("peer %s: nothing gets through by network interface %s; what it carried goes over the others", peer,
                    nic);
    else
        LOG_WARNING("peer %s: network interface %s works again", peer, nic);
}

/* Of several rails of datagrams, with others of connections beside them. */
static void tell_of_kind(const char *peer, const char *nic, bool beside, bool lost)
{
    if (beside && lost)
        LOG_WARNING("peer %s: no TCP gets through by network interface %s; what it carried goes over the others", peer,
                    nic);
    else if (beside)
        LOG_WARNING("peer %s: TCP gets through by network interface %s again", peer, nic);
    else if (lost)
        LOG_WARNING("peer %s: no datagram gets through by network interface %s; what it carried goes over the others",
                    peer, nic);
    else
        LOG_WARNING("peer %s: datagrams get through by network interface %s again", peer, nic);
}

void peer_flow_lost_rail(struct peer_flow *flow, unsigned rail, bool lost)
{
    struct nic_queue *queue = flow->thread->queue;
    unsigned nic = flow->nics[rail], count = flow->setup.rail_count, count_of_beside = count_beside(&flow->setup);
    struct uccl_device device = {.name = "the kernel's route"};
    union nic_address address;
    char text[NETDEV_ADDRESS_TEXT];
    bool beside = flow->setup.rails[rail].joins, one_of_two = count == 2 && count_of_beside == 1;
    uint32_t destination = flow->setup.rails[rail].destination;
    const struct nic_queue *of = nic_queue_to(queue, destination);
    if (lost && !one_of_two && of->channel && !of->channel->swallowed(of, destination))
        return; /* the peer has ended its connections */
    if (!lost && !(flow->rails_lost >> rail & 1))
        return; /* its loss was no fault of the NIC */
    flow->rails_lost ^= UINT32_C(1) << rail;
    if (nic && lost)
        COUNT(&queue->ends[nic - 1], losses, 1);
    else if (nic)
        COUNT(&queue->ends[nic - 1], returns, 1);
    uint64_t bit = UINT64_C(1) << (nic + (beside ? BESIDE_SHIFT : 0));
    uint64_t before =
        lost ? atomic_fetch_or(&flow->peer->nics_lost, bit) : atomic_fetch_and(&flow->peer->nics_lost, ~bit);
    if (lost == ((before & bit) != 0)) /* another thread, or another rail of this NIC, has told it */
        return;
    if (nic)
        queue->nic->ops->device(queue->nic, queue->nic->ends->device(queue->nic, nic - 1), &device, &address);
    netdev_address_text(&flow->peer->host.address, text);
    if (one_of_two)
        tell_of_one_of_two(text, beside, lost, (before | bit) != bit);
    else if (count_of_beside)
        tell_of_kind(text, device.name, beside, lost);
    else
        tell_of_nic(text, device.name, lost);
}
