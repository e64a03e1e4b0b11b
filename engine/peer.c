/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include "log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum { SLOT_WORDS = CORE_FLOWS_MAX / 64 };

/* An unused peer answers repeats of the other side's last frames for a while, and is then forgotten. */
static const uint64_t IDLE_NS = UINT64_C(10) * 1000000000;

int peer_table_init(struct peer_table *table, const struct nic_ops *nic, const struct params *params,
                    struct engine_thread *threads, unsigned thread_count)
{
    *table = (struct peer_table){
        .nic = nic, .params = params, .threads = threads, .thread_count = thread_count};
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

/* ---- what the engine thread does ------------------------------------------------------------- */

struct flow_call {
    struct peer_flow *flow;
    const union nic_address *host;
    const struct nic_queue_address *address;
    uint32_t datagram_bytes; /* that the route takes */
    int error;
};

static void ask_route(struct engine_thread *thread, void *argument)
{
    struct flow_call *call = argument;
    call->error = thread->nic->route(thread->queue, call->host, &call->datagram_bytes);
}

static void open_flow(struct engine_thread *thread, void *argument)
{
    struct flow_call *call = argument;
    struct peer_flow *flow = call->flow;
    call->error = thread->nic->peer_add(thread->queue, call->host, call->address,
                                        &flow->setup.destination, &call->datagram_bytes);
    if (!call->error)
        flow->flow = core_flow_open(thread->core, flow->memory, &flow->setup, clock_now_ns());
}

static void close_flow(struct engine_thread *thread, void *argument)
{
    struct peer_flow *flow = argument;
    thread_flush(thread); /* the peer may linger for an ack that is owed */
    core_flow_close(thread->core, flow->flow);
    thread->nic->peer_remove(thread->queue, flow->setup.destination);
    flow->flow = NULL;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void free_flows(struct peer_table *table, struct peer *peer, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct peer_flow *flow = &peer->flows[i];
        if (flow->flow)
            thread_run(flow->thread, close_flow, flow);
        if (flow->memory)
            munmap(flow->memory, flow->memory_bytes);
        put_slot(table, i, flow->slot);
    }
}

static void forget(struct peer_table *table, struct peer *peer)
{
    for (struct peer **link = &table->peers; *link; link = &(*link)->next) {
        if (*link == peer) {
            *link = peer->next;
            break;
        }
    }
    free_flows(table, peer, peer->flow_count);
    free(peer);
}

/* Frees peers that nobody uses and nobody will: dead, or unused for long. */
static void reap(struct peer_table *table)
{
    uint64_t now_ns = clock_now_ns();
    for (struct peer *peer = table->peers, *next; peer; peer = next) {
        next = peer->next;
        for (unsigned i = 0; i < peer->flow_count; i++)
            peer->dead |= __atomic_load_n(&peer->flows[i].dead, __ATOMIC_ACQUIRE);
        if (peer->references == 0 && (peer->dead || now_ns - peer->idle_since_ns > IDLE_NS))
            forget(table, peer);
    }
}

static int make_flow(struct peer_table *table, struct peer *peer, unsigned index)
{
    struct peer_flow *flow = &peer->flows[index];
    struct engine_thread *thread = &table->threads[index];
    int slot = take_slot(table, index);
    if (slot < 0) {
        LOG_ERR("cannot talk to one more peer: all %d flows of engine thread %u are in use",
                CORE_FLOWS_MAX, index);
        return UCCL_ENOMEM;
    }
    uint64_t random[2]; /* of the token and of the nonce */
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        LOG_ERR("cannot talk to one more peer: getrandom: %s", strerror(errno));
        put_slot(table, index, (uint32_t)slot);
        return UCCL_EIO;
    }
    flow->thread = thread;
    flow->slot = (uint32_t)slot;
    flow->setup = (struct flow_setup){
        .rx_token = core_make_token(random[0], (uint32_t)slot),
        .nonce = random[1] ? random[1] : 1,
        .features = WIRE_FEATURES,
        .rx_window_bytes = table->nic->queue_rx_bytes(thread->queue),
        .owner = flow,
    };
    struct flow_call call = {.host = &peer->address};
    thread_run(thread, ask_route, &call);
    flow->setup.datagram_bytes = call.datagram_bytes;
    if (call.error)
        put_slot(table, index, flow->slot);
    return call.error;
}

int peer_get(struct peer_table *table, const uint8_t engine_id[16], bool is_server,
             const union nic_address *address, struct peer **out)
{
    reap(table);
    for (struct peer *peer = table->peers; peer; peer = peer->next) {
        if (!peer->dead && peer->is_server == is_server &&
            memcmp(peer->engine_id, engine_id, sizeof peer->engine_id) == 0) {
            peer->references++;
            *out = peer;
            return UCCL_OK;
        }
    }
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return UCCL_ENOMEM;
    memcpy(peer->engine_id, engine_id, sizeof peer->engine_id);
    peer->is_server = is_server;
    peer->address = *address;
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
    peer->next = table->peers;
    table->peers = peer;
    *out = peer;
    return UCCL_OK;
}

void peer_put(struct peer_table *table, struct peer *peer)
{
    assert(peer->references);
    if (--peer->references == 0)
        peer->idle_since_ns = clock_now_ns();
    reap(table);
}

void peer_table_free(struct peer_table *table)
{
    while (table->peers)
        forget(table, table->peers);
    for (unsigned i = 0; i < table->thread_count; i++)
        free(table->slots_used[i]);
}

void peer_fill_offer(const struct peer *peer, const struct params *params, struct boot_offer *offer)
{
    offer->flow_count = (uint16_t)peer->flow_count;
    offer->chunk_window = (uint32_t)params->chunk_window;
    offer->msg_window = (uint32_t)params->msg_window;
    offer->eager_window_kb = (uint32_t)params->eager_window_kb;
    for (unsigned i = 0; i < peer->flow_count; i++) {
        const struct peer_flow *flow = &peer->flows[i];
        offer->flows[i] = (struct boot_flow){
            .token = flow->setup.rx_token,
            .datagram_bytes = flow->setup.datagram_bytes,
            .rx_bytes = flow->setup.rx_window_bytes,
        };
        flow->thread->nic->queue_address(flow->thread->queue, &offer->flows[i].address);
    }
}

static uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

int peer_take_offer(struct peer_table *table, struct peer *peer, const struct boot_offer *offer)
{
    const struct params *params = table->params;
    unsigned count = offer->flow_count < peer->flow_count ? offer->flow_count : peer->flow_count;
    for (unsigned i = 0; i < count; i++) {
        if (peer->flows[i].flow && peer->flows[i].setup.tx_token != offer->flows[i].token)
            peer->dead = true;
    }
    if (peer->dead)
        return UCCL_EAGAIN;
    for (unsigned i = 0; i < count; i++) {
        struct peer_flow *flow = &peer->flows[i];
        const struct boot_flow *theirs = &offer->flows[i];
        if (flow->flow)
            continue;
        flow->setup.tx_token = theirs->token;
        flow->setup.datagram_bytes = smaller(flow->setup.datagram_bytes, theirs->datagram_bytes);
        flow->setup.tx_window_bytes = theirs->rx_bytes;
        flow->setup.chunk_window = smaller(params->chunk_window, offer->chunk_window);
        flow->setup.msg_window = smaller(params->msg_window, offer->msg_window);
        flow->setup.eager_window_kb = smaller(params->eager_window_kb, offer->eager_window_kb);
        flow->setup.places = flow->thread->nic->places(flow->thread->queue, &theirs->address);
        if (flow->setup.places)
            flow->setup.chunk_window = smaller(flow->setup.chunk_window, CORE_PLACE_WINDOW_MAX);
        flow->memory_bytes = core_flow_size(params, &flow->setup);
        flow->memory = mmap(NULL, flow->memory_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (flow->memory == MAP_FAILED) {
            flow->memory = NULL;
            return UCCL_ENOMEM;
        }
        struct flow_call call = {.flow = flow, .host = &peer->address, .address = &theirs->address};
        thread_run(flow->thread, open_flow, &call);
        if (call.error)
            return call.error;
    }
    peer->flows_open = count;
    return UCCL_OK;
}

void peer_flow_died(struct peer_flow *flow)
{
    /* pairs with the acquire in reap() */
    __atomic_store_n(&flow->dead, true, __ATOMIC_RELEASE);
}
