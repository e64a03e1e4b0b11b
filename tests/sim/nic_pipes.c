/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP backend of whole engines: each path is a pipe between two queues, alone (BACKEND_TCP) or beside the queues of
 * datagrams (BACKEND_AUTO). A pipe keeps order and loses nothing, has room for so many bytes, stalls, and breaks. Then
 * all that is under way on it is lost in both directions, each end learns of it at a time of its own, and the side that
 * dials makes it again. Payload of bulk is read as it comes, by the rules of tcp/in.c: to where it belongs, asked for
 * before each read, and discarded once that has gone.
 *
 * Nothing of it lies in the memory of a process, which may be killed.
 */
#include "nic_pipes.h"

#include "../lies.h"
#include "core/state.h"
#include "payload.h"
#include "seam.h"
#include "thread/thread.h"

#include <stdio.h>

enum {
    SLOT_BYTES = 131080, /* read at once from path 0 */
    PLAIN_MAX = 65536,
    CALL_NS = 100,
    FIRST_NS = 100000, /* longest time until a path is dialled first */
};

static struct pipe_queue *pipe_queue_of(const struct nic_queue *queue)
{
    return (struct pipe_queue *)(uintptr_t)queue;
}

static void enter(struct pipe_queue *queue, const char *call)
{
    if (queue->in_use)
        machine_fail("%s() on a queue of pipes of node %u that another thread is using", call,
                     queue->nic->process->index);
    queue->in_use = true;
}

static void leave(struct pipe_queue *queue)
{
    queue->in_use = false;
}

/* ---- the device --------------------------------------------------------------------------------- */

static const struct nic_queue_ops pipe_queue_ops;
static const struct nic_datagram_ops pipe_datagram_ops;
static const struct nic_channel_ops pipe_channel_ops;

static int pipe_device_open(const struct params *params, struct nic **out)
{
    int status = udp_device_ops.open(params, out);
    if (status != 0)
        return status;
    (*out)->ops = &tcp_device_ops;
    (*out)->caps = (struct nic_caps){.reliable = true, .in_order = true, .lendable = true, .room_wakes = true};
    return UCCL_OK;
}

static int pipe_queue_open(struct nic *nic, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct pipe_queue *queue = sim_calloc(1, sizeof *queue);
    queue->base = (struct nic_queue){
        .nic = nic, .ops = &pipe_queue_ops, .datagram = &pipe_datagram_ops, .channel = &pipe_channel_ops};
    queue->nic = sim_nic_of(nic);
    queue->setup = *setup;
    queue->zeros = sim_calloc(1, CORE_RECORD_BYTES_MAX);
    *out = &queue->base;
    return UCCL_OK;
}

static void pipe_queue_close(struct nic_queue *base)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    enter(queue, "queue_close");
    for (struct pipe_peer *peer = sim_pipes.peers; peer; peer = peer->next)
        if (peer->queue == queue)
            machine_fail("an engine thread of node %u leaves a destination of pipes", peer->own);
    if (!queue->setup.beside)
        nic_sim_check_core(queue->setup.owner, queue->nic->process->index);
    sim_pipe_forget_spent(queue);
    sim_free(queue->zeros);
    sim_free(queue);
}

static uint16_t own_paths(const struct pipe_queue *queue)
{
    uint64_t paths = queue->setup.params->port_entropy;
    return (uint16_t)(paths < PATHS_OF_PIPES ? paths : PATHS_OF_PIPES);
}

enum { ADDRESS_BYTES = 4, ADDRESS_MARK = 0x5b };

static void pipe_queue_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    const struct pipe_queue *queue = pipe_queue_of(base);
    *out = (struct nic_queue_address){
        .length = ADDRESS_BYTES,
        .bytes = {NIC_ADDRESS_TCP, (uint8_t)queue->setup.index, ADDRESS_MARK, (uint8_t)(own_paths(queue) - 1)}};
}

static uint64_t pipe_rx_bytes(const struct nic_queue *queue)
{
    (void)queue;
    return UINT64_C(1) << 40;
}

static void pipe_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    (void)beside_fd;
    if (queue->sleeping)
        machine_fail("two threads sleep in one queue of pipes of node %u", queue->nic->process->index);
    sim_step();
    queue->sleeping = true;
    if (timeout_ns && !queue->woken)
        machine_park(queue, machine_deadline(timeout_ns));
    queue->woken = queue->sleeping = false;
}

static void pipe_wake(struct nic_queue *base)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    sim_step();
    queue->woken = true;
    machine_wake(queue->nic->process, queue, 1);
}

/* ---- peers --------------------------------------------------------------------------------------- */

static struct pipe_peer *peer_of(const struct pipe_queue *queue, uint32_t destination)
{
    struct pipe_peer *peer = sim_pipes.peers;
    while (peer && !(peer->queue == queue && peer->destination == destination))
        peer = peer->next;
    if (!peer)
        machine_fail("a destination of pipes that is not there");
    return peer;
}

static int pipe_route(struct nic_queue *queue, const struct nic_host *host, uint32_t *datagram_bytes)
{
    (void)queue, (void)host;
    *datagram_bytes = CORE_RECORD_BYTES_MAX;
    return UCCL_OK;
}

static int pipe_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *address,
                         uint32_t *destination, uint32_t *datagram_bytes)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    enter(queue, "peer_add");
    struct pipe_peer *peer = sim_pipe_make(sizeof *peer);
    uint16_t theirs = (uint16_t)(address->bytes[3] + 1), own = own_paths(queue);
    if (address->length != ADDRESS_BYTES || address->bytes[0] != NIC_ADDRESS_TCP || address->bytes[2] != ADDRESS_MARK)
        machine_fail("node %u adds a peer that nobody told it of", queue->nic->process->index);
    *peer = (struct pipe_peer){.next = sim_pipes.peers,
                               .queue = queue,
                               .own = queue->nic->process->index,
                               .node = nic_sim_node(ntohl(host->address.v4.sin_addr.s_addr)),
                               .destination = queue->destinations++ | (queue->setup.beside ? NIC_BESIDE : 0),
                               .paths = own < theirs ? own : theirs};
    for (unsigned i = 0; i < peer->paths; i++)
        peer->halves[i].peer = peer;
    if (queue->nic->options.lies_permille) {
        peer->liar = sim_pipe_make(sizeof *peer->liar);
        liar_init(peer->liar, rng_next(&queue->nic->lies));
    }
    sim_pipes.peers = peer;
    *destination = peer->destination;
    *datagram_bytes = CORE_RECORD_BYTES_MAX;
    leave(queue);
    return UCCL_OK;
}

static void pipe_peer_remove(struct nic_queue *base, uint32_t destination)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    enter(queue, "peer_remove");
    sim_pipe_remove_peer(peer_of(queue, destination));
    leave(queue);
}

static bool pipe_follow(struct nic_queue *queue, uint32_t *destination, uint32_t *datagram_bytes)
{
    (void)queue, (void)destination, (void)datagram_bytes;
    return false;
}

static void pipe_introduce(struct nic_queue *base, uint32_t destination, const struct nic_flow *flow)
{
    struct pipe_peer *peer = peer_of(pipe_queue_of(base), destination);
    peer->flow = *flow;
    peer->introduced = true;
    for (unsigned i = 0; flow->dials && i < peer->paths; i++)
        machine_at(machine.now_ns + 1 + sim_pipe_within(FIRST_NS), sim_pipe_dial, peer, i);
}

static bool pipe_event(struct nic_queue *base, struct nic_channel_event *out)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    for (struct pipe_peer *peer = sim_pipes.peers; peer; peer = peer->next) {
        for (unsigned i = 0; peer->queue == queue && i < peer->paths; i++) {
            struct half *half = &peer->halves[i];
            if (!half->broken_due && !half->room_due)
                continue;
            *out = (struct nic_channel_event){.flow = peer->flow.flow,
                                              .rail = peer->flow.rail,
                                              .destination = peer->destination,
                                              .path = (uint16_t)i,
                                              .broken = half->broken_due};
            if (!half->broken_due)
                half->room_due = false;
            half->broken_due = false;
            return true;
        }
    }
    return false;
}

static int pipe_watch(struct nic_queue *base, uint64_t *timeout_ns)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    for (struct pipe_peer *peer = sim_pipes.peers; peer; peer = peer->next)
        for (unsigned i = 0; peer->queue == queue && i < peer->paths; i++)
            if (peer->halves[i].fresh || peer->halves[i].broken_due || peer->halves[i].room_due)
                *timeout_ns = 0;
    return -1;
}

static bool pipe_swallowed(const struct nic_queue *queue, uint32_t destination)
{
    (void)queue, (void)destination;
    return false;
}

/* ---- sending -------------------------------------------------------------------------------------- */

/* Bytes that the engine on this node has not made. What is no record ends the pipe. */
static void put_lie(struct half *half, const uint8_t *bytes, size_t length)
{
    struct link *link = half->link;
    if (link->broken)
        return;
    bool bulk = wire_is_bulk(bytes, length);
    if (length >= WIRE_HEADER_BYTES && length <= (bulk ? CORE_RECORD_BYTES_MAX : PLAIN_MAX))
        sim_pipe_carry(link, half->end, bytes, (uint32_t)length);
    else
        sim_pipe_break(link);
}

/* Another flow of the node to the same peer, or this one. */
static const struct liar *some_liar(const struct pipe_peer *peer)
{
    const struct liar *chosen = peer->liar;
    unsigned seen = 0;
    for (const struct pipe_peer *other = sim_pipes.peers; other; other = other->next)
        if (other->queue && other->own == peer->own && other->node == peer->node &&
            rng_below(&peer->queue->nic->lies, ++seen) == 0)
            chosen = other->liar;
    return chosen;
}

/* As in nic_sim.c. */
static void lie(struct half *half, const uint8_t *bytes, uint32_t length)
{
    static uint8_t spoilt[CORE_RECORD_BYTES_MAX], twisted[CORE_RECORD_BYTES_MAX + LIE_BYTES_MAX], made[LIE_BYTES_MAX];
    struct pipe_peer *peer = half->peer;
    struct sim_nic *nic = peer->queue->nic;
    bool twists = false, instead = false;
    liar_hear(peer->liar, bytes, length);
    liar_spoil(peer->liar, nic->options.habit, bytes, length, spoilt);
    if (rng_below(&nic->lies, 1000) < nic->options.lies_permille) {
        twists = rng_below(&nic->lies, 2);
        instead = twists && rng_below(&nic->lies, 2);
        for (unsigned i = rng_below(&nic->lies, 4); i > 1; i--) {
            peer->liar->other = some_liar(peer);
            size_t invented = liar_invent(peer->liar, LIE_BYTES_MAX, made);
            if (invented)
                put_lie(half, made, invented);
        }
    }
    if (twists)
        put_lie(half, twisted, liar_twist(peer->liar, spoilt, length, twisted));
    if (!instead)
        put_lie(half, spoilt, length);
}

static bool has_room(const struct half *half)
{
    const struct way *way = half->link ? &half->link->ways[half->end] : NULL;
    return half->up && (!way || way->sent - way->taken < sim_pipe_options.bytes);
}

static bool pipe_send(struct nic_queue *base, const struct tx_desc *desc)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    enter(queue, "send");
    machine_spend(CALL_NS);
    struct pipe_peer *peer = peer_of(queue, desc->destination);
    struct half *half = desc->port < peer->paths ? &peer->halves[desc->port] : NULL;
    for (uint32_t i = 0; desc->kind == TX_FRAMES && i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        queue->setup.gather(desc->buffer + piece->at, piece->msg, piece->offset_bytes, piece->length);
    }
    if (!half || !has_room(half)) {
        if (half)
            half->refused = true;
        leave(queue);
        return false;
    }
    for (unsigned i = 0; i < desc->count; i++) {
        uint32_t length;
        if (!(desc->mask >> i & 1))
            continue;
        const uint8_t *datagram = nic_sim_lay_out(&queue->setup, desc, i, &length);
        queue->nic->counts.sent++;
        COUNT(queue->setup.counters, tx_datagrams, 1);
        COUNT(queue->setup.counters, tx_bytes, length);
        machine_note("into a pipe", peer->own, peer->node, length);
        if (half->link && !half->link->broken && peer->liar)
            lie(half, datagram, length);
        else if (half->link && !half->link->broken)
            sim_pipe_carry(half->link, half->end, datagram, length);
    }
    repeats_note(&queue->nic->repeats, desc);
    if (half->link && !half->link->broken && sim_pipe_chance(sim_pipe_options.break_ppm))
        sim_pipe_break(half->link);
    leave(queue);
    return true;
}

static unsigned pipe_flush(struct nic_queue *base)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    enter(queue, "flush");
    machine_system_call(CALL_NS);
    leave(queue);
    return 0;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

static uint8_t *target_of(const struct pipe_queue *queue, const struct record *record)
{
    unsigned count = 0;
    void *target = queue->setup.kept_target(queue->setup.owner, record->bytes, record->length, record->length, &count);
    return count == 1 ? target : NULL;
}

/* Whether a record of this poll has gone to the same place: of bytes that the core has yet to hear of. */
static bool is_taken(const struct nic_rx *out, unsigned count, const uint8_t *to)
{
    for (unsigned i = 0; i < count; i++)
        if (out[i].in_place && out[i].payload == to)
            return true;
    return false;
}

/* Reads payload up to `have` bytes to where it belongs, as long as its message wants it. */
static void read_on(const struct pipe_queue *queue, struct record *record, uint32_t have, const struct nic_rx *out,
                    unsigned count)
{
    uint8_t *to = target_of(queue, record);
    if (!record->begun)
        record->to = to;
    record->begun = true;
    record->gone |= record->to && to != record->to;
    if (record->to && !record->gone && !is_taken(out, count, record->to))
        payload_foreseen(record->to + record->read, record->bytes + WIRE_BULK_HEADER_BYTES + record->read,
                         have - record->read);
    record->read = have;
}

/* The bulk record is whole. */
static struct nic_rx whole_body(const struct pipe_queue *queue, struct record *record, const struct nic_rx *out,
                                unsigned count)
{
    uint32_t bytes = record->length - WIRE_BULK_HEADER_BYTES;
    record->gone |= record->to && target_of(queue, record) != record->to;
    struct nic_rx rx = {.data = record->bytes, .length = record->length, .stride = record->length, .in_place = 1};
    if (record->gone) {
        if (target_of(queue, record))
            machine_fail("bytes that were discarded are wanted after all");
        rx.payload = queue->zeros;
    } else if (record->to) {
        rx.payload = record->to;
        if (!is_taken(out, count, record->to))
            sim_memcpy(record->to, record->bytes + WIRE_BULK_HEADER_BYTES, bytes);
    } else {
        rx.payload = record->bytes + WIRE_BULK_HEADER_BYTES;
    }
    return rx;
}

/* Whether the sender's end is told that there is room. */
static void give_room(struct half *sender)
{
    const struct way *way = &sender->link->ways[sender->end];
    if (!sender->refused || !sender->up || way->sent - way->taken >= sim_pipe_options.bytes / 2)
        return;
    sender->refused = false;
    sender->room_due = true;
    sim_pipe_wake(sender);
}

static unsigned read_half(struct pipe_queue *queue, struct half *half, struct nic_rx *out, unsigned count, unsigned max)
{
    struct link *link = half->link;
    struct way *way = &link->ways[!half->end];
    unsigned path = (unsigned)(half - half->peer->halves);
    struct record *record;
    bool bulk = false;
    while (count < max && !bulk && (record = way->head)) {
        uint64_t have = way->arrived - record->at;
        bool whole = have >= PREFIX_BYTES + (uint64_t)record->length, short_head = have < HEAD_BYTES;
        bulk =
            wire_is_bulk(record->bytes, record->length) && !(path == 0 && whole && !record->begun && have < SLOT_BYTES);
        if (bulk && !short_head)
            read_on(queue, record, (uint32_t)((whole ? PREFIX_BYTES + record->length : have) - HEAD_BYTES), out, count);
        if (!whole)
            break;
        out[count] = bulk ? whole_body(queue, record, out, count)
                          : (struct nic_rx){.data = record->bytes, .length = record->length, .stride = record->length};
        count++;
        way->head = record->next;
        if (!way->head)
            way->tail = &way->head;
        way->taken += PREFIX_BYTES + (uint64_t)record->length;
        queue->spent[queue->spent_count++] = record;
        queue->nic->counts.polled++;
        queue->nic->counts.heard[half->peer->node / 64 % 4] |= UINT64_C(1) << half->peer->node % 64;
    }
    record = way->head;
    half->fresh = record && way->arrived - record->at >= PREFIX_BYTES + (uint64_t)record->length;
    if (link->ends[!half->end])
        give_room(link->ends[!half->end]);
    if (!record && way->ended)
        sim_pipe_let_go(half);
    return count;
}

static unsigned pipe_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct pipe_queue *queue = pipe_queue_of(base);
    unsigned count = 0, skip = queue->turn++ % 4;
    enter(queue, "poll");
    machine_system_call(CALL_NS);
    sim_pipe_forget_spent(queue);
    if (max > SPENT_MAX)
        max = SPENT_MAX;
    for (struct pipe_peer *peer = sim_pipes.peers; peer; peer = peer->next) {
        for (unsigned k = 0; peer->queue == queue && k < peer->paths; k++) {
            struct half *half = &peer->halves[(k + skip) % peer->paths];
            if (!half->fresh || count == max)
                continue;
            half->fresh = false;
            if (half->link && half->up)
                count = read_half(queue, half, out, count, max);
        }
    }
    leave(queue);
    return count;
}

static void pipe_release(struct nic_queue *queue, const struct nic_rx *rx)
{
    (void)queue, (void)rx; /* the next poll() takes all back */
}

/* Replaces the library's TCP backend, as nic_sim.c does UDP's. */
const struct nic_device_ops tcp_device_ops = {
    .kind = NIC_ADDRESS_TCP,
    .open = pipe_device_open,
    .close = nic_sim_close,
    .device_count = nic_sim_device_count,
    .device = nic_sim_device,
    .addresses = nic_sim_addresses,
    .queue_open = pipe_queue_open,
};

static const struct nic_queue_ops pipe_queue_ops = {
    .close = pipe_queue_close,
    .address = pipe_queue_address,
    .rx_bytes = pipe_rx_bytes,
    .arm = nic_arm_nothing,
    .wait = pipe_wait,
    .wake = pipe_wake,
};

static const struct nic_datagram_ops pipe_datagram_ops = {
    .route = pipe_route,
    .peer_add = pipe_peer_add,
    .peer_remove = pipe_peer_remove,
    .send = pipe_send,
    .flush = pipe_flush,
    .poll = pipe_poll,
    .release = pipe_release,
    .follow = pipe_follow,
};

static const struct nic_channel_ops pipe_channel_ops = {
    .introduce = pipe_introduce,
    .event = pipe_event,
    .watch = pipe_watch,
    .swallowed = pipe_swallowed,
};

#ifdef HAVE_VERBS
/* No node has such a device. */
static int no_verbs(const struct params *params, struct nic **out)
{
    (void)params, (void)out;
    return UCCL_ENODEV;
}

const struct nic_device_ops verbs_device_ops = {.kind = NIC_ADDRESS_VERBS, .open = no_verbs};
#endif
