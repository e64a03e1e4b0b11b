/* SPDX-License-Identifier: Apache-2.0 */
#include "nic_queue.h"

#include "../lies.h"
#include "core/state.h"
#include "core/wire.h"
#include "firewall.h"
#include "nic/udp/train.h"
#include "payload.h"
#include "request/request.h"
#include "seam.h"
#include "thread/thread.h"

#include <stdio.h>

enum {
    PEERS_MAX = 4096,
    GRO_BYTES_MAX = 65536,
    SEND_NS = 100, /* what a call costs */
    POLL_NS = 100,
    NAP_NS_MAX = 100000, /* the longest sleep over work that wakes nobody */
    LIES_SLOWER = 50,    /* unprompted lies: the gap grows by 1/50 of the time */
};

static struct sim_nic *nics; /* by node */
static unsigned nic_count;

void nic_sim_begin(unsigned nodes)
{
    firewalls_forget();
    nic_count = nodes;
    nics = calloc(nodes, sizeof *nics);
    if (!nics)
        abort();
}

void nic_sim_end(void)
{
    nic_place_end();
    nic_pipes_end();
    for (unsigned i = 0; i < nic_count; i++)
        repeats_forget(&nics[i].repeats);
    free(nics);
    nics = NULL;
}

static void lie_now(void *what, uint64_t extra);

void nic_sim_set(unsigned node, const struct nic_sim_options *options)
{
    nics[node].options = *options;
    if (options->lies_permille)
        nics[node].lies.state = rng_next(&machine.rng);
    nic_ends_plan(&nics[node], node);
    if (options->lie_gap_ns)
        machine_at(machine.now_ns + options->lie_gap_ns, lie_now, &nics[node], 0);
}

const struct nic_sim_counts *nic_sim_counts(unsigned node)
{
    return &nics[node].counts;
}

const struct repeats *nic_sim_repeats(unsigned node)
{
    return &nics[node].repeats;
}

bool nic_sim_heard(unsigned node, unsigned from)
{
    return nics[node].counts.heard[from / 64 % 4] >> from % 64 & 1;
}

bool nic_sim_lies(unsigned node)
{
    return nics[node].options.lies_permille > 0;
}

void nic_sim_change_datagram(unsigned node, uint32_t datagram_bytes)
{
    nics[node].options.datagram_bytes = datagram_bytes;
    for (unsigned i = 0; i < NIC_QUEUES_MAX; i++) {
        struct sim_queue *queue = nics[node].queues[i];
        for (uint32_t k = 0; queue && k < queue->peer_count; k++) {
            if (queue->peers[k].used) {
                queue->peers[k].datagram_bytes = datagram_bytes;
                queue->peers[k].news = true;
            }
        }
    }
}

/* ---- one user at a time ---------------------------------------------------------------------- */

static void enter(struct sim_queue *queue, const char *call)
{
    if (queue->in_use)
        machine_fail("%s() on a NIC queue of node %u that another thread is using", call, queue->nic->process->index);
    queue->in_use = true;
}

static void leave(struct sim_queue *queue)
{
    queue->in_use = false;
}

static const struct nic_queue_ops sim_queue_ops;
static const struct nic_datagram_ops sim_datagram_ops;

/* ---- the device ------------------------------------------------------------------------------ */

unsigned nic_sim_node(uint32_t address)
{
    unsigned node = 0;
    while (node < nic_count && nic_ends_address(&nics[node], 0) != address)
        node++;
    return node;
}

static int sim_nic_open(const struct params *params, struct nic **out)
{
    (void)params;
    struct process *process = machine_process();
    struct sim_nic *nic = &nics[process->index];
    nic->process = process;
    nic->counts = (struct nic_sim_counts){0};
    repeats_forget(&nic->repeats);
    nic->base = (struct nic){.ops = &udp_device_ops,
                             .ends = nic->options.nics ? &nic_ends_ops : NULL,
                             .pairs = nic->options.nics && nic->options.queue_pairs ? nic_ends_pairs : NULL,
                             .memory = nic->options.queue_pairs ? &nic_place_memory_ops : NULL,
                             .caps = {.in_order = nic->options.queue_pairs,
                                      .whole_trains = !nic->options.queue_pairs,
                                      .lendable = true,
                                      .room_wakes = nic->options.full_ns && !nic->options.queue_pairs}};
    *out = &nic->base;
    return UCCL_OK;
}

void nic_sim_close(struct nic *base)
{
    struct sim_nic *nic = sim_nic_of(base);
    nic_place_check_memory(nic->process);
    nic->process = NULL;
}

int nic_sim_device_count(const struct nic *nic)
{
    unsigned nics_here = sim_nic_of(nic)->options.nics;
    return nics_here ? (int)nics_here : 1;
}

int nic_sim_device(const struct nic *base, int index, struct uccl_device *out, union nic_address *address)
{
    const struct sim_nic *nic = sim_nic_of(base);
    if (index < 0 || index >= nic_sim_device_count(base))
        return UCCL_EINVAL;
    *out = (struct uccl_device){.numa_node = -1};
    snprintf(out->name, sizeof out->name, index ? "sim%u-%d" : "sim%u", nic->process->index, index);
    memset(address, 0, sizeof *address);
    address->v4.sin_family = AF_INET;
    address->v4.sin_addr.s_addr = htonl(nic_ends_address(nic, (unsigned)index));
    return UCCL_OK;
}

int nic_sim_addresses(const struct nic *nic, union nic_address *out, int max)
{
    struct uccl_device device;
    return max > 0 && nic_sim_device(nic, 0, &device, out) == UCCL_OK ? 1 : 0;
}

static int sim_queue_open(struct nic *base, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct sim_nic *nic = sim_nic_of(base);
    struct sim_queue *queue = sim_calloc(1, sizeof *queue);
    queue->base = (struct nic_queue){.nic = base,
                                     .ops = &sim_queue_ops,
                                     .datagram = &sim_datagram_ops,
                                     .data_qp = nic->options.queue_pairs ? &nic_place_data_qp_ops : NULL};
    queue->nic = nic;
    queue->setup = *setup;
    queue->inbox_tail = &queue->inbox;
    queue->peers = sim_calloc(PEERS_MAX, sizeof *queue->peers);
    nic->queues[setup->index] = queue;
    *out = &queue->base;
    return UCCL_OK;
}

static void discard(struct sim_queue *queue)
{
    while (queue->inbox) {
        struct packet *packet = queue->inbox;
        queue->inbox = packet->next;
        free(packet);
        queue->nic->counts.discarded++;
    }
    for (unsigned i = 0; i < NIC_HELD_MAX; i++) {
        free(queue->held[i].packet);
        free(queue->held[i].joined);
        free(queue->held[i].spread);
    }
}

static void forget_liars(struct sim_queue *queue)
{
    for (uint32_t i = 0; i < queue->peer_count; i++)
        free(queue->peers[i].liar);
}

void nic_sim_check_core(const struct engine_thread *thread, unsigned node)
{
    const struct core *core = thread->core;
    if (core->small.count != thread->params->tx_small_buffers || core->big.count != thread->params->tx_buffers)
        machine_fail("buffers of engine thread %u of node %u are missing: %u small, %u big left", thread->index, node,
                     core->small.count, core->big.count);
    if (core_deadline(core) != UINT64_MAX)
        machine_fail("a timer of engine thread %u of node %u is left", thread->index, node);
    if (thread->notices || ring_busy(&thread->ring))
        machine_fail("commands of engine thread %u of node %u are left", thread->index, node);
    if (thread->waiters || thread->lend_requests)
        machine_fail("engine thread %u of node %u still has waiters", thread->index, node);
}

static void sim_queue_close(struct nic_queue *base)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "queue_close");
    nic_sim_check_core(queue->setup.owner, queue->nic->process->index);
    for (uint32_t i = 0; i < queue->peer_count; i++)
        if (queue->peers[i].used)
            machine_fail("a queue of node %u is closed with a destination", queue->nic->process->index);
    nic_place_kill(queue);
    discard(queue);
    forget_liars(queue);
    queue->nic->queues[queue->setup.index] = NULL;
    sim_free(queue->peers);
    sim_free(queue);
}

void nic_sim_kill(unsigned node)
{
    nic_pipes_kill(node);
    for (unsigned i = 0; i < NIC_QUEUES_MAX; i++) {
        if (nics[node].queues[i]) {
            nic_place_kill(nics[node].queues[i]);
            discard(nics[node].queues[i]);
            forget_liars(nics[node].queues[i]);
        }
        nics[node].queues[i] = NULL;
    }
    nic_place_drop_memory(nics[node].process);
    nics[node].process = NULL;
}

static void sim_queue_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    const struct sim_queue *queue = sim_queue_of(base);
    uint64_t ports = queue->setup.params->port_entropy;
    if (ports > NIC_PORTS_TOLD_MAX)
        ports = NIC_PORTS_TOLD_MAX;
    *out = (struct nic_queue_address){.length = (uint8_t)(1 + 2 * ports),
                                      .bytes = {NIC_ADDRESS_UDP, (uint8_t)queue->setup.index}};
    out->bytes[2] = 0x5a;
}

static uint64_t sim_queue_rx_bytes(const struct nic_queue *queue)
{
    return sim_queue_of(queue)->nic->options.rx_bytes;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static int sim_route(struct nic_queue *base, const struct nic_host *host, uint32_t *datagram_bytes)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "route");
    int error = host->address.any.sa_family == AF_INET ? UCCL_OK : UCCL_EADDR;
    *datagram_bytes = queue->nic->options.datagram_bytes;
    leave(queue);
    return error;
}

static struct liar *make_liar(struct sim_nic *nic)
{
    struct liar *liar = malloc(sizeof *liar);
    if (!liar)
        abort();
    liar_init(liar, rng_next(&nic->lies));
    return liar;
}

static int sim_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *address,
                        uint32_t *destination, uint32_t *datagram_bytes)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "peer_add");
    uint32_t at = 0;
    while (at < queue->peer_count && queue->peers[at].used)
        at++;
    unsigned own = host->nic ? host->nic - 1 : 0, far = queue->nic->base.pairs ? 0 : own, node = 0;
    while (node < nic_count && nic_ends_address(&nics[node], far) != ntohl(host->address.v4.sin_addr.s_addr))
        node++;
    if (at == PEERS_MAX || node == nic_count || address->bytes[2] != 0x5a)
        machine_fail("node %u adds a peer that nobody told it of", queue->nic->process->index);
    if (ntohl(host->local.v4.sin_addr.s_addr) != nic_ends_address(queue->nic, far))
        machine_fail("node %u is to send from an address that is not its own", queue->nic->process->index);
    if (at == queue->peer_count)
        queue->peer_count++;
    *datagram_bytes = queue->nic->options.datagram_bytes;
    queue->peers[at] = (struct peer_to){.node = (uint16_t)node,
                                        .port = address->bytes[1],
                                        .nic = (uint8_t)own,
                                        .datagram_bytes = *datagram_bytes,
                                        .used = true};
    if (queue->nic->options.lies_permille)
        queue->peers[at].liar = make_liar(queue->nic);
    *destination = at;
    leave(queue);
    return UCCL_OK;
}

static void sim_peer_remove(struct nic_queue *base, uint32_t destination)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "peer_remove");
    nic_place_forget(queue, destination);
    free(queue->peers[destination].liar);
    queue->peers[destination].liar = NULL;
    queue->peers[destination].used = false;
    leave(queue);
}

static bool sim_follow(struct nic_queue *base, uint32_t *destination, uint32_t *datagram_bytes)
{
    struct sim_queue *queue = sim_queue_of(base);
    for (uint32_t i = 0; i < queue->peer_count; i++) {
        struct peer_to *peer = &queue->peers[i];
        if (!peer->used || !peer->news)
            continue;
        peer->news = false;
        *destination = i;
        *datagram_bytes = peer->datagram_bytes;
        return true;
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends a datagram that the engine on this node has not made. */
static void put_lie(const struct sim_nic *nic, const struct peer_to *peer, uint16_t path, const uint8_t *bytes,
                    size_t length)
{
    const struct fabric_way way = {nic->process->index, peer->node, peer->nic, peer->port, path};
    fabric_send(&way, bytes, (uint32_t)length, (uint32_t)length);
}

/* The liar of a random flow to that node. */
static const struct liar *some_liar(struct sim_nic *nic, unsigned node)
{
    const struct liar *chosen = NULL;
    unsigned seen = 0;
    for (unsigned i = 0; i < NIC_QUEUES_MAX; i++) {
        for (uint32_t k = 0; nic->queues[i] && k < nic->queues[i]->peer_count; k++) {
            const struct peer_to *peer = &nic->queues[i]->peers[k];
            if (peer->used && peer->node == node && rng_below(&nic->lies, ++seen) == 0)
                chosen = peer->liar;
        }
    }
    return chosen;
}

static void invent(struct sim_nic *nic, const struct peer_to *peer, uint16_t path)
{
    static uint8_t lie[LIE_BYTES_MAX];
    peer->liar->other = some_liar(nic, peer->node);
    size_t length = liar_invent(peer->liar, LIE_BYTES_MAX, lie);
    if (length)
        put_lie(nic, peer, path, lie, length);
}

/* Sends unprompted lies to all peers, fewer and fewer. */
static void lie_now(void *what, uint64_t extra)
{
    struct sim_nic *nic = what;
    (void)extra;
    for (unsigned i = 0; i < NIC_QUEUES_MAX; i++) {
        struct sim_queue *queue = nic->process ? nic->queues[i] : NULL;
        for (uint32_t k = 0; queue && k < queue->peer_count; k++) {
            if (queue->peers[k].used)
                invent(nic, &queue->peers[k], (uint16_t)rng_below(&nic->lies, 4));
        }
        if (queue)
            nic_place_lie(queue);
    }
    machine_at(machine.now_ns + nic->options.lie_gap_ns + machine.now_ns / LIES_SLOWER, lie_now, nic, 0);
}

/* Sends a datagram of a hostile node's engine, and lies around it or instead of it. */
static void lie(struct sim_nic *nic, const struct peer_to *peer, uint16_t path, const uint8_t *bytes, uint32_t length)
{
    static uint8_t spoilt[CORE_TRAIN_BYTES_MAX], twisted[CORE_TRAIN_BYTES_MAX + LIE_BYTES_MAX];
    bool twists = false, instead = false;
    liar_hear(peer->liar, bytes, length);
    liar_spoil(peer->liar, nic->options.habit, bytes, length, spoilt);
    if (rng_below(&nic->lies, 1000) < nic->options.lies_permille) {
        twists = rng_below(&nic->lies, 2);
        instead = twists && rng_below(&nic->lies, 2); /* else one number has two contents */
        for (unsigned i = rng_below(&nic->lies, 4); i > 1; i--)
            invent(nic, peer, path);
    }
    if (twists)
        put_lie(nic, peer, path, twisted, liar_twist(peer->liar, spoilt, length, twisted));
    if (!instead)
        put_lie(nic, peer, path, spoilt, length);
}

static void put(struct sim_queue *queue, const struct tx_desc *desc, const uint8_t *bytes, uint32_t length)
{
    const struct peer_to *peer = &queue->peers[desc->destination];
    uint32_t header = bytes[2] | (uint32_t)bytes[3] << 8;
    queue->nic->counts.sent++;
    COUNT(queue->setup.counters, tx_datagrams, 1);
    COUNT(queue->setup.counters, tx_bytes, length);
    unsigned node = queue->nic->process->index;
    const struct fabric_way way = {node, peer->node, peer->nic, peer->port, desc->path};
    bool opens = !desc->sequenced && desc->opens;
    bool guards = queue->nic->options.guarded || nics[peer->node].options.guarded;
    if (queue->nic->gone >> peer->nic & 1)
        machine_note("no device", node, peer->node, length);
    else if (guards &&
             !firewall_passes(node * NIC_QUEUES_MAX + queue->setup.index, peer->node * NIC_QUEUES_MAX + peer->port,
                              desc->path, opens, nics[peer->node].options.guarded, machine.now_ns))
        machine_note("guarded", node, peer->node, length);
    else if (opens)
        machine_note("opens", node, peer->node, desc->path); /* nobody reads that port */
    else if (peer->liar)
        lie(queue->nic, peer, desc->path, bytes, length);
    else
        fabric_send(&way, bytes, length, desc->payload_crc ? length : header);
}

const uint8_t *nic_sim_lay_out(const struct nic_queue_setup *setup, const struct tx_desc *desc, unsigned i,
                               uint32_t *length)
{
    static uint8_t datagram[CORE_RECORD_BYTES_MAX];
    *length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
    if (desc->kind == TX_FRAMES) {
        uint8_t *at = desc->buffer + (size_t)i * desc->datagram_bytes;
        wire_seal(desc, i, at, *length, setup->crc32c);
        return at;
    }
    uint32_t bytes = i + 1u == desc->count ? desc->bulk_last : desc->bulk_stride;
    uint8_t *payload = datagram + WIRE_BULK_HEADER_BYTES;
    if (bytes + WIRE_BULK_HEADER_BYTES != *length || *length > sizeof datagram)
        machine_fail("a bulk datagram of %u bytes with %u of payload", *length, bytes);
    setup->gather(payload, desc->bulk_msg, desc->bulk_offset + (uint64_t)i * desc->bulk_stride, bytes);
    uint32_t crc = desc->payload_crc ? setup->crc32c(0, payload, bytes) : 0;
    wire_bulk_header(desc, i, crc, setup->crc32c, datagram);
    return datagram;
}

/* Whether the queue takes a descriptor now. An engine that it wakes when it does must not poll it meanwhile. */
static bool has_room(struct sim_queue *queue)
{
    const struct nic_sim_options *options = &queue->nic->options;
    if (machine.now_ns < queue->full_until_ns) {
        if (++queue->tries > NIC_TRIES_MAX)
            machine_fail("an engine of node %u polls a queue that is full", queue->nic->process->index);
        return false;
    }
    if (machine_random(1000000) >= options->refuse_ppm)
        return true;
    queue->full_until_ns = options->full_ns ? machine.now_ns + options->full_ns : 0;
    queue->tries = 0;
    return false;
}

static bool sim_nic_send(struct nic_queue *base, const struct tx_desc *desc)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "send");
    machine_spend(SEND_NS);
    if (desc->destination >= queue->peer_count || !queue->peers[desc->destination].used)
        machine_fail("a descriptor for a destination that is not there");
    if (desc->sequenced && !probe_proven(&desc->flow->rails[desc->rail].probe))
        machine_fail("payload or control for an address that has not answered");
    if (desc->flow->rails[desc->rail].destination != desc->destination)
        machine_fail("a descriptor of rail %u for another destination", desc->rail);
    for (uint32_t i = 0; desc->kind == TX_FRAMES && i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        queue->setup.gather(desc->buffer + piece->at, piece->msg, piece->offset_bytes, piece->length);
    }
    if (sim_pipe_options.soon && desc->flow->rail_count < desc->flow->rail_most)
        flow_count_bulk(desc->flow, UINT32_MAX);
    bool room = has_room(queue);
    if (room && desc->on_path)
        room = nic_place_send(queue, desc);
    for (unsigned i = 0; room && !desc->on_path && i < desc->count; i++) {
        uint32_t length;
        if (!(desc->mask >> i & 1))
            continue;
        const uint8_t *datagram = nic_sim_lay_out(&queue->setup, desc, i, &length);
        put(queue, desc, datagram, length);
    }
    if (room)
        repeats_note(&queue->nic->repeats, desc);
    leave(queue);
    return room;
}

static unsigned sim_nic_flush(struct nic_queue *base)
{
    struct sim_queue *queue = sim_queue_of(base);
    enter(queue, "flush");
    machine_system_call(SEND_NS);
    leave(queue);
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

bool nic_sim_deliver(struct packet *packet, enum drop *why)
{
    *why = DROP_OUTAGE;
    if (nics[packet->to].gone >> packet->nic & 1)
        return false;
    if (packet->port == NIC_PLACE_PORT)
        return nic_place_deliver(packet, why);
    struct sim_nic *nic = &nics[packet->to];
    struct sim_queue *queue = nic->process && packet->port < NIC_QUEUES_MAX ? nic->queues[packet->port] : NULL;
    *why = DROP_NOBODY;
    return queue && nic_sim_receive(queue, packet, why);
}

bool nic_sim_receive(struct sim_queue *queue, struct packet *packet, enum drop *why)
{
    struct sim_nic *nic = queue->nic;
    uint64_t charge = packet->length + CORE_KERNEL_BYTES;
    if (queue->inbox_bytes + charge > nic->options.rx_bytes) {
        *why = DROP_SOCKET;
        COUNT(queue->setup.counters, rx_kernel_drops, 1);
        return false;
    }
    queue->inbox_bytes += charge;
    packet->next = NULL;
    *queue->inbox_tail = packet;
    queue->inbox_tail = &packet->next;
    machine_wake(nic->process, queue, 1);
    return true;
}

static struct packet *take(struct sim_queue *queue)
{
    struct packet *packet = queue->inbox;
    queue->inbox = packet->next;
    if (!queue->inbox)
        queue->inbox_tail = &queue->inbox;
    queue->inbox_bytes -= packet->length + CORE_KERNEL_BYTES;
    if (packet->port != NIC_PLACE_PORT) {
        queue->nic->counts.polled++;
        queue->nic->counts.heard[packet->from / 64 % 4] |= UINT64_C(1) << packet->from % 64;
    }
    return packet;
}

/* Joins consecutive datagrams of one peer and size into one buffer, as GRO does; the last may be shorter. */
static void join(struct sim_queue *queue, struct held *held, struct nic_rx *rx)
{
    const struct packet *first = held->packet, *next;
    while ((next = queue->inbox) && next->port == first->port && rx->length % rx->stride == 0 &&
           next->from == first->from && next->nic == first->nic && next->ce == first->ce &&
           next->length <= rx->stride && next->length > 0 && rx->length + next->length <= GRO_BYTES_MAX) {
        if (!held->joined) {
            held->joined = malloc(GRO_BYTES_MAX);
            if (!held->joined)
                abort();
            memcpy(held->joined, first->bytes, first->length);
        }
        struct packet *packet = take(queue);
        memcpy(held->joined + rx->length, packet->bytes, packet->length);
        rx->length += packet->length;
        rx->data = held->joined;
        free(packet);
    }
}

/*
 * Receives it again, as udp/mmsg.c does: with the payload in the receive's buffer, if the core gives a target. `out`:
 * the buffers of this poll(). Application buffers have no memory, so memory of our own stands for them until the
 * prediction is checked.
 */
static void put_in_place(struct sim_queue *queue, struct held *held, struct nic_rx *rx, const struct nic_rx *out)
{
    struct iovec iovecs[TRAIN_IOVECS_MAX];
    train_foresee(&queue->setup, rx->data, rx, out, (unsigned)(rx - out));
    if (rx->in_place == 0)
        return;
    held->spread = malloc(2 * GRO_BYTES_MAX);
    if (!held->spread)
        abort();
    struct nic_rx own = *rx;
    own.data = held->spread;
    own.payload = held->spread + GRO_BYTES_MAX;
    train_spread(&own, held->spread, GRO_BYTES_MAX, iovecs);
    size_t foreseen_bytes = 0;
    for (unsigned i = 0, at = 0; at < rx->length; i++) {
        size_t bytes = iovecs[i].iov_len < rx->length - at ? iovecs[i].iov_len : rx->length - at;
        memcpy(iovecs[i].iov_base, rx->data + at, bytes);
        at += (unsigned)bytes;
        if (i % 2)
            foreseen_bytes += bytes;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)rx->payload;
    payload_foreseen(to, own.payload, foreseen_bytes);
    train_settle(&own, iovecs);
    for (unsigned i = 0; i < own.in_place; i++) {
        sim_memcpy(to, iovecs[2 * i + 1].iov_base, iovecs[2 * i + 1].iov_len);
        to += iovecs[2 * i + 1].iov_len;
    }
    rx->data = own.data;
    rx->in_place = own.in_place;
}

/* As nic_rx has it. */
static uint8_t nic_of(const struct sim_queue *queue, const struct packet *packet)
{
    return (uint8_t)(queue->nic->options.nics ? packet->nic + 1 : 0);
}

static unsigned sim_nic_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct sim_queue *queue = sim_queue_of(base);
    unsigned count = 0;
    bool place = queue->nic->options.in_place;
    enter(queue, "poll");
    machine_system_call(POLL_NS);
    while (queue->inbox && count < max && count < NIC_HELD_MAX) {
        struct held *held = &queue->held[count];
        if (held->packet)
            machine_fail("a received buffer was not released before the next poll()");
        struct nic_rx *rx = &out[count];
        struct packet *packet = take(queue);
        if (packet->port == NIC_PLACE_PORT && !nic_place_receive(packet, rx)) {
            free(packet);
            continue;
        }
        held->packet = packet;
        if (packet->port == NIC_PLACE_PORT) {
            queue->nic->counts.on_path++;
            rx->slot = count++;
            continue;
        }
        *rx = (struct nic_rx){.data = packet->bytes,
                              .length = packet->length,
                              .stride = packet->length ? packet->length : 1,
                              .ce = packet->ce,
                              .nic = nic_of(queue, packet),
                              .slot = count++};
        if (queue->nic->options.gro && packet->length)
            join(queue, held, rx);
        if (place && wire_is_bulk(rx->data, rx->stride))
            put_in_place(queue, held, rx, out);
        /* a duplicate of bytes yet to be copied could go in place now; payload.c wants each byte written once */
        place &= (uint64_t)rx->in_place * rx->stride >= rx->length;
    }
    if (count > 0)
        queue->tries = 0; /* the spin before a sleep begins anew */
    leave(queue);
    return count;
}

static void sim_nic_release(struct nic_queue *base, const struct nic_rx *rx)
{
    struct sim_queue *queue = sim_queue_of(base);
    struct held *held = &queue->held[rx->slot];
    if (!held->packet)
        machine_fail("a received buffer is released twice");
    free(held->packet);
    free(held->joined);
    free(held->spread);
    *held = (struct held){0};
}

static void sim_nic_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    (void)beside_fd;
    struct sim_queue *queue = sim_queue_of(base);
    const struct engine_thread *thread = queue->setup.owner;
    if (queue->sleeping)
        machine_fail("two threads sleep in one NIC queue of node %u", queue->nic->process->index);
    bool owns = thread->owner == THREAD_SLEEPS || thread->owner == BORROWER_SLEEPS; /* still */
    if (owns && thread->notices && timeout_ns > NAP_NS_MAX)
        machine_fail("engine thread %u of node %u sleeps for %.3f ms over commands to others", thread->index,
                     queue->nic->process->index, (double)timeout_ns / 1e6);
    sim_step();
    queue->tries = 0;
    if (queue->full_until_ns > machine.now_ns && queue->full_until_ns - machine.now_ns < timeout_ns)
        timeout_ns = queue->full_until_ns - machine.now_ns;
    queue->sleeping = true;
    if (!queue->inbox && !queue->woken)
        machine_park(queue, machine_deadline(timeout_ns));
    queue->woken = false;
    queue->sleeping = false;
}

static void sim_nic_wake(struct nic_queue *base)
{
    struct sim_queue *queue = sim_queue_of(base);
    sim_step();
    queue->woken = true;
    machine_wake(queue->nic->process, queue, 1);
}

/* Replaces the library's UDP backend: the only one that engines find here. */
const struct nic_device_ops udp_device_ops = {
    .open = sim_nic_open,
    .close = nic_sim_close,
    .device_count = nic_sim_device_count,
    .device = nic_sim_device,
    .addresses = nic_sim_addresses,
    .queue_open = sim_queue_open,
};

static const struct nic_queue_ops sim_queue_ops = {
    .close = sim_queue_close,
    .address = sim_queue_address,
    .rx_bytes = sim_queue_rx_bytes,
    .arm = nic_arm_nothing,
    .wait = sim_nic_wait,
    .wake = sim_nic_wake,
};

static const struct nic_datagram_ops sim_datagram_ops = {
    .route = sim_route,
    .peer_add = sim_peer_add,
    .peer_remove = sim_peer_remove,
    .send = sim_nic_send,
    .flush = sim_nic_flush,
    .poll = sim_nic_poll,
    .release = sim_nic_release,
    .follow = sim_follow,
};
