/* SPDX-License-Identifier: Apache-2.0 */
/* The pipes of nic_pipes.c: how they are made, carry records, break and end. */
#include "nic_pipes.h"

#include "seam.h"

#include <stdio.h>

enum {
    PARTS_MAX = 4,     /* in which a record comes */
    SETUP_NS = 100000, /* longest time in which a pipe is made */
    AGAIN_NS = 20000000,
    AGAIN_DOUBLINGS = 4,
};

struct sim_pipes sim_pipes;
struct sim_pipe_options sim_pipe_options;

void *sim_pipe_make(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        abort();
    return memory;
}

/* Whoever sleeps in the queue, or in the one that it stands beside, has something to do. */
void sim_pipe_wake(struct half *half)
{
    struct pipe_queue *queue = half->peer->queue;
    half->fresh = true;
    if (queue->setup.beside) {
        struct sim_queue *main = sim_queue_of(queue->setup.beside);
        main->woken = true;
        machine_wake(queue->nic->process, main, 1);
    } else {
        queue->woken = true;
        machine_wake(queue->nic->process, queue, 1);
    }
}

/* ---- pipes ------------------------------------------------------------------------------------- */

static void free_records(struct way *way)
{
    struct record *record;
    while ((record = way->head)) {
        way->head = record->next;
        free(record);
    }
    way->tail = &way->head;
}

static void dial_later(struct half *half)
{
    struct pipe_peer *peer = half->peer;
    unsigned doublings = half->failures < AGAIN_DOUBLINGS ? half->failures : AGAIN_DOUBLINGS;
    uint64_t wait_ns = half->failures ? (uint64_t)AGAIN_NS << doublings : 0;
    half->failures++;
    machine_at(machine.now_ns + wait_ns + sim_pipe_within(SETUP_NS) + 1, sim_pipe_dial, peer,
               (uint64_t)(half - peer->halves));
}

/* The end has learned that its pipe is no more. */
void sim_pipe_let_go(struct half *half)
{
    struct link *link = half->link;
    link->ends[half->end] = NULL;
    half->link = NULL;
    half->up = half->refused = half->room_due = false;
    half->broken_due = true;
    COUNT(half->peer->queue->setup.counters, tcp_broken, 1);
    sim_pipe_wake(half);
    if (half->peer->flow.dials)
        dial_later(half);
}

static void learn(void *what, uint64_t end)
{
    struct link *link = what;
    if (link->ends[end])
        sim_pipe_let_go(link->ends[end]);
}

void sim_pipe_break(struct link *link)
{
    link->broken = true;
    for (unsigned end = 0; end < 2; end++) {
        free_records(&link->ways[end]);
        machine_at(machine.now_ns + sim_pipe_within(sim_pipe_options.late_ns) + 1, learn, link, end);
    }
}

/* Its other end reads what is under way, and then the end. */
static void ends_well(void *what, uint64_t end)
{
    struct link *link = what;
    link->ways[end].ended = true;
    if (link->ends[!end])
        sim_pipe_wake(link->ends[!end]);
}

void sim_pipe_hang_up(struct half *half)
{
    struct link *link = half->link;
    if (!link)
        return;
    struct way *way = &link->ways[half->end];
    link->ends[half->end] = NULL;
    half->link = NULL;
    uint64_t at_ns = machine.now_ns + sim_pipe_within(SETUP_NS);
    machine_at((at_ns > way->last_ns ? at_ns : way->last_ns) + 1, ends_well, link, half->end);
}

static void come_up(void *what, uint64_t end)
{
    struct link *link = what;
    struct half *half = link->ends[end];
    if (!half)
        return;
    half->up = half->room_due = true;
    COUNT(half->peer->queue->setup.counters, tcp_connected, 1);
    sim_pipe_wake(half);
}

/* The end of the flow that expects this token, if it is dialled. */
static struct pipe_peer *find_peer(unsigned node, uint64_t token)
{
    struct pipe_peer *peer = sim_pipes.peers;
    while (peer &&
           !(peer->queue && peer->introduced && !peer->flow.dials && peer->own == node && peer->flow.rx_token == token))
        peer = peer->next;
    return peer;
}

void sim_pipe_dial(void *what, uint64_t path)
{
    struct pipe_peer *peer = what, *other = find_peer(peer->node, peer->flow.tx_token);
    struct half *half = &peer->halves[path];
    if (!peer->queue || half->link)
        return;
    if (!other || path >= other->paths) {
        dial_later(half);
        return;
    }
    struct link *link = sim_pipe_make(sizeof *link);
    struct half *far = &other->halves[path];
    if (far->link) /* it has not learned yet that it is broken */
        sim_pipe_let_go(far);
    link->next = sim_pipes.links;
    sim_pipes.links = link;
    half->failures = 0;
    for (unsigned end = 0; end < 2; end++) {
        struct half *own = end ? far : half;
        link->ends[end] = own;
        link->ways[end].tail = &link->ways[end].head;
        own->link = link;
        own->end = (uint8_t)end;
    }
    uint64_t later_ns = machine.now_ns + 1 + sim_pipe_within(SETUP_NS);
    link->ways[0].last_ns = link->ways[1].last_ns = later_ns;
    come_up(link, 0);
    machine_at(later_ns, come_up, link, 1);
}

/* ---- from begin to end --------------------------------------------------------------------------------- */

void nic_pipes_begin(const struct sim_pipe_options *options)
{
    sim_pipe_options = *options;
    sim_pipes.rng.state = options->seed;
}

void nic_pipes_end(void)
{
    while (sim_pipes.links) {
        struct link *link = sim_pipes.links;
        sim_pipes.links = link->next;
        free_records(&link->ways[0]);
        free_records(&link->ways[1]);
        free(link);
    }
    while (sim_pipes.peers) {
        struct pipe_peer *peer = sim_pipes.peers;
        sim_pipes.peers = peer->next;
        free(peer->liar);
        free(peer);
    }
}

void sim_pipe_forget_spent(struct pipe_queue *queue)
{
    while (queue->spent_count)
        free(queue->spent[--queue->spent_count]);
}

void sim_pipe_remove_peer(struct pipe_peer *peer)
{
    for (unsigned i = 0; i < peer->paths; i++)
        sim_pipe_hang_up(&peer->halves[i]);
    peer->queue = NULL;
}

void nic_pipes_kill(unsigned node)
{
    for (struct pipe_peer *peer = sim_pipes.peers; peer; peer = peer->next) {
        if (!peer->queue || peer->own != node)
            continue;
        sim_pipe_forget_spent(peer->queue);
        sim_pipe_remove_peer(peer);
    }
}

/* ---- sending --------------------------------------------------------------------------------------- */

/* So many bytes more have come. */
static void arrive(void *what, uint64_t bytes)
{
    struct link *link = what;
    unsigned from = bytes & 1;
    link->ways[from].arrived += bytes >> 1;
    if (!link->broken && link->ends[!from])
        sim_pipe_wake(link->ends[!from]);
}

void sim_pipe_carry(struct link *link, unsigned from, const uint8_t *bytes, uint32_t length)
{
    const struct sim_pipe_options *options = &sim_pipe_options;
    struct way *way = &link->ways[from];
    struct record *record = sim_pipe_make(sizeof *record + length);
    *record = (struct record){.at = way->sent, .length = length};
    memcpy(record->bytes, bytes, length);
    *way->tail = record;
    way->tail = &record->next;
    uint64_t left = PREFIX_BYTES + (uint64_t)length;
    way->sent += left;
    uint64_t begin_ns = machine.now_ns + options->delay_ns, end_ns = begin_ns + left * 8000 / options->mbps;
    if (sim_pipe_chance(options->stall_ppm))
        end_ns += sim_pipe_within(options->stall_ns);
    if (begin_ns < way->last_ns)
        begin_ns = way->last_ns;
    if (end_ns < begin_ns)
        end_ns = begin_ns;
    way->last_ns = end_ns;
    unsigned parts = rng_below(&sim_pipes.rng, PARTS_MAX);
    for (unsigned i = 1; i <= parts; i++) {
        uint64_t some = rng_below(&sim_pipes.rng, (uint32_t)left);
        machine_at(begin_ns + (end_ns - begin_ns) / (parts + 1) * i, arrive, link, some << 1 | from);
        left -= some;
    }
    machine_at(end_ns, arrive, link, left << 1 | from);
}
