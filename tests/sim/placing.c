/* SPDX-License-Identifier: Apache-2.0 */
#include "placing.h"
#include "rails.h"

#include "core/crc32c.h"
#include "core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRIES_NS = 30 * NS_PER_MS, /* until a reliable queue pair gives a packet up */
    DESTINATIONS = 64,           /* of a rail (world.c) */
    KEY_RAIL_SHIFT = 24,         /* of a key: which rail's NIC takes it */
};

/* A buffer of the application, as the NIC knows it; kept when the request has ended. */
struct region {
    const struct core_msg *msg; /* NULL: the request has ended */
    uint8_t *memory;
    uint64_t bytes;
    uint8_t kind;
};

/* One end of a connection of the NIC; kept to the end of the run, since packets may still name it. */
struct queue_pair {
    struct pair *pair;
    uint8_t side;
    uint8_t rail;
    uint16_t path;
    uint32_t generation, psn;
    struct queue_pair *peer;   /* once connected */
    bool error, closed;        /* takes and sends nothing any more */
    bool broken;               /* swallows what comes, as if nothing were wrong */
    bool stuck;                /* reliable: has given a packet up, which it will say soon */
    uint64_t reads_ns;         /* when its last work request is, or was, executed */
    uint64_t arrives_ns;       /* when the last packet that it has sent arrives */
    uint64_t stalled_until_ns; /* the way of its packets */
};

enum work_kind { WORK_READ, WORK_ARRIVE, WORK_DRAIN, WORK_FAIL, WORK_ANSWER };

/* Something that a NIC is about to do. */
struct work {
    struct queue_pair *queue_pair; /* that does it; WORK_ARRIVE: that receives */
    struct work *next;             /* to be passed to the core */
    const struct core_msg *msg;    /* whose payload it reads */
    uint32_t key, local_key;       /* of the remote buffer; of the local one */
    uint64_t offset, address, cookie;
    uint32_t immediate, length;
    uint8_t kind;         /* enum work_kind */
    bool write, finished; /* finished: a completion of the sender */
    bool waited;          /* for the peer's NIC */
    enum core_qp_kind answer;
    uint8_t *bytes; /* of a send, or read payload */
};

struct nic {
    struct region *regions;
    uint32_t region_count;
    struct queue_pair **queue_pairs;
    uint32_t queue_pair_count;
    struct work *done[ENDS_MAX], **done_tail[ENDS_MAX]; /* for the core of each end */
};

static struct nic *nic_of(const struct world *world)
{
    return world->nic;
}

static void *grown(void *array, uint32_t count, size_t bytes)
{
    if (count & (count - 1)) /* else: as large as it was made */
        return array;
    void *larger = realloc(array, (count ? 2 * (size_t)count : 1) * bytes);
    if (!larger)
        abort();
    return larger;
}

void placing_create(struct world *world)
{
    world->nic = sim_alloc(sizeof *world->nic);
    for (unsigned i = 0; i < ENDS_MAX; i++)
        world->nic->done_tail[i] = &world->nic->done[i];
}

static void free_work(struct work *work)
{
    free(work->bytes);
    free(work);
}

void placing_free_event(void *what)
{
    free_work(what);
}

void placing_destroy(struct world *world)
{
    struct nic *nic = nic_of(world);
    for (unsigned i = 0; i < ENDS_MAX; i++) {
        while (nic->done[i]) {
            struct work *work = nic->done[i];
            nic->done[i] = work->next;
            free_work(work);
        }
    }
    for (uint32_t i = 0; i < nic->queue_pair_count; i++)
        free(nic->queue_pairs[i]);
    free(nic->queue_pairs);
    free(nic->regions);
    free(nic);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void placing_register(struct world *world, struct core_msg *msg, uint8_t *memory, uint64_t bytes)
{
    struct nic *nic = nic_of(world);
    unsigned rails = world->options->rails > 1 ? world->options->rails : 1;
    msg->placeable = 0;
    if (rng_below(&world->app_rng, 1000) < world->options->unregistered_permille)
        return;
    nic->regions = grown(nic->regions, nic->region_count, sizeof *nic->regions);
    nic->regions[nic->region_count++] = (struct region){msg, memory, bytes, msg->kind};
    msg->placeable = (uint8_t)((1u << rails) - 1);
    if (rails > 1 && rng_below(&world->app_rng, 4) == 0) /* not by all NICs */
        msg->placeable &= (uint8_t)rng_below(&world->app_rng, 1u << rails);
    for (unsigned i = 0; i < rails; i++)
        msg->grant_keys[i] = msg->placeable >> i & 1 ? nic->region_count | i << KEY_RAIL_SHIFT : 0;
}

static struct region *region_of(const struct world *world, const struct core_msg *msg)
{
    struct nic *nic = nic_of(world);
    for (uint32_t i = nic->region_count; i-- > 0;) {
        if (nic->regions[i].msg == msg)
            return &nic->regions[i];
    }
    return NULL;
}

void placing_forget(struct world *world, const struct core_msg *msg)
{
    struct region *region = region_of(world, msg);
    if (region)
        region->msg = NULL;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static struct queue_pair *find(const struct world *world, const struct pair *pair, unsigned side, uint16_t path,
                               uint32_t generation)
{
    const struct nic *nic = nic_of(world);
    for (uint32_t i = nic->queue_pair_count; i-- > 0;) {
        struct queue_pair *found = nic->queue_pairs[i];
        if (found->pair == pair && found->side == side && found->path == path && found->generation == generation)
            return found;
    }
    return NULL;
}

static unsigned end_of(const struct queue_pair *queue_pair)
{
    return queue_pair->pair->end[queue_pair->side];
}

static struct work *new_work(struct queue_pair *queue_pair, enum work_kind kind)
{
    struct work *work = calloc(1, sizeof *work);
    if (!work)
        abort();
    work->queue_pair = queue_pair;
    work->kind = (uint8_t)kind;
    return work;
}

static void later(struct world *world, struct work *work, uint64_t at_ns)
{
    world_push(world, at_ns, EVENT_NIC, end_of(work->queue_pair), work, 0);
}

static uint64_t up_to(struct world *world, uint64_t ns)
{
    return ns ? rng_below(&world->rng, (uint32_t)ns) : 0;
}

/* For the core of the queue pair's end, in the order in which it happened. */
static void report(struct world *world, struct work *work)
{
    struct nic *nic = nic_of(world);
    unsigned end = end_of(work->queue_pair);
    work->next = NULL;
    *nic->done_tail[end] = work;
    nic->done_tail[end] = &work->next;
    world->ends[end].dirty = true;
}

/* The queue pair fails by itself, as the NIC notices. */
static void fail_later(struct world *world, struct queue_pair *queue_pair, uint64_t ns)
{
    later(world, new_work(queue_pair, WORK_FAIL), world->now_ns + ns);
}

static void answer(struct world *world, struct queue_pair *queue_pair, enum core_qp_kind kind)
{
    struct work *work = new_work(queue_pair, WORK_ANSWER);
    work->answer = kind;
    if (world->options->nic_answer_ns)
        later(world, work, world->now_ns + up_to(world, world->options->nic_answer_ns));
    else
        report(world, work);
}

static void open_path(struct world *world, struct pair *pair, unsigned side, const struct core_qp_action *action)
{
    struct nic *nic = nic_of(world);
    struct queue_pair *queue_pair = calloc(1, sizeof *queue_pair);
    if (!queue_pair)
        abort();
    nic->queue_pairs = grown(nic->queue_pairs, nic->queue_pair_count, sizeof *nic->queue_pairs);
    nic->queue_pairs[nic->queue_pair_count++] = queue_pair;
    *queue_pair = (struct queue_pair){.pair = pair,
                                      .side = (uint8_t)side,
                                      .rail = (uint8_t)(action->destination / DESTINATIONS),
                                      .path = action->path,
                                      .generation = action->generation,
                                      .psn = (uint32_t)rng_next(&world->rng) & 0xffffff};
    answer(world, queue_pair, QP_OPEN);
}

static void connect_path(struct world *world, struct queue_pair *queue_pair, const struct core_qp_action *action)
{
    struct nic *nic = nic_of(world);
    if (action->number == 0 || action->number > nic->queue_pair_count)
        world_fail(world, "a queue pair is connected to number %u", action->number);
    struct queue_pair *peer = nic->queue_pairs[action->number - 1];
    if (peer->pair != queue_pair->pair || peer->side == queue_pair->side || peer->path != queue_pair->path ||
        peer->rail != queue_pair->rail || peer->generation != queue_pair->generation || peer->psn != action->psn)
        world_fail(world, "a queue pair is connected to a stranger");
    queue_pair->peer = peer;
    answer(world, queue_pair, QP_CONNECT);
}

bool placing_act(struct world *world, struct end *end)
{
    struct core_qp_action action;
    bool some = false;
    while (core_next_qp_action(end->core, &action)) {
        struct pair *pair = &world->pairs[action.destination % DESTINATIONS / 2];
        unsigned side = action.destination % 2;
        struct queue_pair *queue_pair = find(world, pair, side, action.path, action.generation);
        some = true;
        world_note(world, "path", action.destination, (uint64_t)action.path << 8 | action.kind, action.generation);
        if ((action.kind == QP_OPEN) == (queue_pair && !queue_pair->closed))
            world_fail(world, "action %d about a queue pair that is %s", action.kind,
                       queue_pair ? "there" : "not there");
        switch (action.kind) {
        case QP_OPEN:
            open_path(world, pair, side, &action);
            break;
        case QP_CONNECT:
            connect_path(world, queue_pair, &action);
            break;
        case QP_DRAIN: /* takes its time, in which things go on */
            later(world, new_work(queue_pair, WORK_DRAIN), world->now_ns + up_to(world, world->options->nic_drain_ns));
            break;
        case QP_CLOSE:
            if (!queue_pair->error)
                world_fail(world, "a queue pair is closed that was not drained");
            queue_pair->closed = true;
            break;
        }
    }
    return some;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Work requests are executed in order, and read payload only then. */
static void queue_work(struct world *world, struct queue_pair *queue_pair, struct work *work)
{
    uint64_t at_ns = world->now_ns + up_to(world, world->options->nic_work_ns);
    if (at_ns < queue_pair->reads_ns)
        at_ns = queue_pair->reads_ns;
    queue_pair->reads_ns = at_ns;
    later(world, work, at_ns);
}

static void send_write(struct world *world, struct queue_pair *queue_pair, const struct tx_desc *desc, unsigned index)
{
    struct work *work = new_work(queue_pair, WORK_READ);
    uint64_t at = (uint64_t)index * desc->place_bytes;
    struct region *local = region_of(world, desc->bulk_msg);
    if (!local || !(desc->bulk_msg->placeable >> queue_pair->rail & 1))
        world_fail(world, "a write of memory that the NIC does not reach");
    work->local_key = (uint32_t)(local - nic_of(world)->regions) + 1;
    work->bytes = malloc(desc->place_bytes);
    work->msg = desc->bulk_msg;
    work->offset = desc->bulk_offset + at;
    work->address = desc->remote_address + at;
    work->length = desc->place_bytes;
    work->immediate = wire_immediate_after(desc->immediate, index);
    work->key = desc->remote_key;
    work->write = true;
    queue_work(world, queue_pair, work);
}

/* The first retransmission of a write is cut to what the path takes now, unless that makes too many. */
static void check_cut(const struct world *world, const struct tx_desc *desc)
{
    const struct flow *flow = desc->flow;
    const struct chunk *chunk = sent_chunk(&flow->sent, desc->seq);
    uint32_t fits = flow->rails[desc->rail].datagram_bytes, stride = fits - WIRE_BULK_HEADER_BYTES;
    if (chunk->transmissions == 2 && desc->kind == TX_BULK && chunk->payload_bytes <= CORE_TRAIN_MAX * stride &&
        desc->datagram_bytes > fits)
        world_fail(world, "a retransmission of datagrams of %u bytes where %u fit", desc->datagram_bytes, fits);
}

static void send_datagrams(struct world *world, struct queue_pair *queue_pair, const struct tx_desc *desc)
{
    check_cut(world, desc);
    for (unsigned i = 0; i < desc->count; i++) {
        if (!(desc->mask >> i & 1))
            continue;
        struct work *work = new_work(queue_pair, WORK_READ);
        work->length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
        work->bytes = malloc(work->length);
        world_lay_out(world, desc, i, work->bytes);
        if (desc->kind == TX_BULK)
            work->local_key = (uint32_t)(region_of(world, desc->bulk_msg) - nic_of(world)->regions) + 1;
        queue_work(world, queue_pair, work);
    }
}

void placing_send(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    struct queue_pair *queue_pair = find(world, pair, side, desc->path, desc->generation);
    if (!queue_pair || queue_pair->closed || !queue_pair->peer || queue_pair->rail != desc->rail)
        world_fail(world, "sending over a queue pair that is not connected");
    struct work *cookie = new_work(queue_pair, WORK_READ);
    for (unsigned i = 0; desc->kind == TX_PLACE && i < desc->count; i++)
        send_write(world, queue_pair, desc, i);
    if (desc->kind != TX_PLACE)
        send_datagrams(world, queue_pair, desc);
    cookie->finished = true; /* behind them: the completion of the last one */
    cookie->cookie = desc->cookie;
    queue_work(world, queue_pair, cookie);
    if (world_chance(world, world->options->path_fail_ppm))
        fail_later(world, queue_pair, up_to(world, NS_PER_MS));
}

/* Whether the network loses it; a write of many packets that loses one in the middle breaks its way. */
static bool loses(struct world *world, struct queue_pair *queue_pair, const struct work *work)
{
    const struct options *options = world->options;
    struct link *link = &queue_pair->pair->link[queue_pair->side][queue_pair->rail];
    uint64_t at_ns = world->now_ns - world->start_ns;
    if (at_ns >= link->net.black_from_ns && at_ns < link->net.black_until_ns)
        return true;
    if (rails_swallow(world, queue_pair->side, queue_pair->rail))
        return true;
    if (queue_pair->path < 32 && link->net.dead_paths >> queue_pair->path & 1 && at_ns >= options->path_dies_ns &&
        at_ns < options->path_lives_ns)
        return true;
    if (!world_chance(world, options->path_loss_ppm))
        return false;
    if (work->length > options->datagram_bytes && world_chance(world, options->path_breaks_ppm))
        queue_pair->peer->broken = true;
    return true;
}

/* When what leaves now arrives: behind all that left before, unless this NIC is one that reorders. */
static uint64_t arrival(struct world *world, struct queue_pair *queue_pair)
{
    const struct options *options = world->options;
    const struct net *net = &queue_pair->pair->link[queue_pair->side][queue_pair->rail].net;
    uint64_t at_ns = world->now_ns + net->delay_ns + up_to(world, net->jitter_ns);
    if (world_chance(world, options->path_stall_ppm))
        queue_pair->stalled_until_ns = world->now_ns + up_to(world, options->path_stall_ns);
    if (options->paths_reorder)
        return at_ns + (world_chance(world, options->path_stall_ppm) ? up_to(world, options->path_stall_ns) : 0);
    if (at_ns < queue_pair->stalled_until_ns)
        at_ns = queue_pair->stalled_until_ns;
    if (at_ns < queue_pair->arrives_ns)
        at_ns = queue_pair->arrives_ns;
    queue_pair->arrives_ns = at_ns;
    return at_ns;
}

static const struct region *checked_region(const struct world *world, const struct work *work)
{
    const struct region *region = &nic_of(world)->regions[work->local_key - 1];
    if (!region->msg || region->kind != CORE_SEND)
        world_fail(world, "the NIC reads a send that has ended");
    return region;
}

/* A reliable queue pair has repeated a packet in vain. */
static void give_up(struct world *world, struct queue_pair *queue_pair)
{
    if (queue_pair->stuck)
        return;
    queue_pair->stuck = true;
    fail_later(world, queue_pair, RETRIES_NS);
}

/* A work request is executed: its payload is read, and it leaves. */
static void execute(struct world *world, struct work *work)
{
    struct queue_pair *queue_pair = work->queue_pair;
    bool reliable = world->options->paths_reliable;
    if (queue_pair->error || queue_pair->stuck) {
        free_work(work);
        return;
    }
    if (work->finished) { /* a reliable one when the peer's NIC has said so */
        uint64_t at_ns =
            queue_pair->arrives_ns + queue_pair->pair->link[!queue_pair->side][queue_pair->rail].net.delay_ns;
        if (reliable && !work->waited) {
            work->waited = true;
            later(world, work, at_ns > world->now_ns ? at_ns : world->now_ns);
            return;
        }
        report(world, work);
        return;
    }
    if (work->write) {
        const struct region *region = checked_region(world, work);
        if (work->offset > region->bytes || work->length > region->bytes - work->offset)
            world_fail(world, "the NIC reads beyond a send");
        memcpy(work->bytes, region->memory + work->offset, work->length);
    } else if (work->local_key) {
        checked_region(world, work);
    }
    if (loses(world, queue_pair, work)) {
        if (reliable)
            give_up(world, queue_pair);
        free_work(work);
        return;
    }
    work->kind = WORK_ARRIVE;
    work->queue_pair = queue_pair->peer;
    later(world, work, arrival(world, queue_pair));
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The heart of it: memory changes now. */
static void place(struct world *world, const struct work *work)
{
    struct nic *nic = nic_of(world);
    uint32_t key = work->key & ((1u << KEY_RAIL_SHIFT) - 1);
    if (key == 0 || key > nic->region_count || work->key >> KEY_RAIL_SHIFT != work->queue_pair->rail)
        world_fail(world, "a write with key %#x over rail %u", work->key, work->queue_pair->rail);
    const struct region *region = &nic->regions[key - 1];
    if (!region->msg)
        world_fail(world, "stale placement: %u bytes into a buffer that the application has got back", work->length);
    if (region->msg->watched)
        world_fail(world, "the NIC writes to a watched receive");
    world_note(world, "placed", end_of(work->queue_pair), work->immediate, work->length);
    uint64_t at = work->address - (uint64_t)(uintptr_t)region->memory;
    if (region->kind != CORE_RECV || at > region->bytes || work->length > region->bytes - at)
        world_fail(world, "a write outside of its buffer");
    memcpy(region->memory + at, work->bytes, work->length);
}

static void arrive(struct world *world, struct work *work)
{
    struct queue_pair *queue_pair = work->queue_pair;
    if (queue_pair->error || queue_pair->broken || !queue_pair->peer || world->ends[end_of(queue_pair)].halted) {
        if (world->options->paths_reliable && queue_pair->peer)
            give_up(world, queue_pair->peer);
        free_work(work);
        return;
    }
    if (work->write)
        place(world, work);
    report(world, work);
}

void placing_event(struct world *world, struct event *event)
{
    struct work *work = event->what;
    switch ((enum work_kind)work->kind) {
    case WORK_READ:
        execute(world, work);
        break;
    case WORK_ARRIVE:
        arrive(world, work);
        break;
    case WORK_DRAIN:
        work->queue_pair->error = true;
        report(world, work);
        break;
    case WORK_FAIL:
    case WORK_ANSWER:
        report(world, work);
        break;
    }
}

/* ---- to the core ----------------------------------------------------------------------------- */

static void tell_answer(struct world *world, struct end *end, struct flow *flow, const struct work *work)
{
    const struct queue_pair *queue_pair = work->queue_pair;
    struct nic *nic = nic_of(world);
    if (world_chance(world, world->options->path_open_fail_ppm)) {
        if (work->answer == QP_OPEN)
            ((struct queue_pair *)queue_pair)->closed = true;
        core_qp_failed(end->core, flow, queue_pair->path, queue_pair->generation, world_clock_ns(world, end));
        return;
    }
    if (work->answer == QP_CONNECT) {
        core_qp_connected(end->core, flow, queue_pair->path, queue_pair->generation, world_clock_ns(world, end));
        return;
    }
    uint32_t number = 0;
    while (nic->queue_pairs[number++] != queue_pair)
        ;
    core_qp_opened(end->core, flow, queue_pair->path, queue_pair->generation, number, queue_pair->psn,
                   world_clock_ns(world, end));
}

static void tell(struct world *world, struct end *end, struct work *work)
{
    struct queue_pair *queue_pair = work->queue_pair;
    struct flow *flow = queue_pair->pair->flow[queue_pair->side];
    uint16_t path = queue_pair->path;
    uint32_t generation = queue_pair->generation;
    switch ((enum work_kind)work->kind) {
    case WORK_READ:
        core_tx_done(end->core, work->cookie, world_clock_ns(world, end));
        break;
    case WORK_ARRIVE:
        if (work->write)
            core_rx_immediate(end->core, flow, path, generation, work->immediate, work->length,
                              world_clock_ns(world, end));
        else
            core_rx_on_qp(end->core, flow, path, generation, work->bytes, work->length, world_clock_ns(world, end));
        app_copy(world, end);
        break;
    case WORK_DRAIN:
        core_qp_drained(end->core, flow, path, generation, world_clock_ns(world, end));
        break;
    case WORK_FAIL:
        core_qp_failed(end->core, flow, path, generation, world_clock_ns(world, end));
        break;
    case WORK_ANSWER:
        tell_answer(world, end, flow, work);
        break;
    }
}

void placing_poll(struct world *world, struct end *end)
{
    struct nic *nic = nic_of(world);
    unsigned index = (unsigned)(end - world->ends);
    while (nic->done[index]) {
        struct work *work = nic->done[index];
        nic->done[index] = work->next;
        if (!nic->done[index])
            nic->done_tail[index] = &nic->done[index];
        tell(world, end, work);
        free_work(work);
    }
}

void placing_check(struct world *world)
{
    uint64_t placed = 0;
    for (unsigned i = 0; i < world->end_count; i++)
        placed += atomic_load_explicit(&world->ends[i].counters.rx_placed, memory_order_relaxed);
    if (placed == 0 && world->options->placed)
        world_fail(world, "nothing was placed");
}

void placing_report(const struct flow *flow)
{
    static const char *const states[] = {"closed", "opening", "offered", "connecting", "up", "draining", "drained"};
    const struct sent *sent = &flow->sent;
    for (unsigned i = 0; i < flow->qps.count; i++) {
        const struct data_qp *qp = &flow->qps.qps[i];
        printf("#   path %u generation %u: %s, peer%s%s%s, %u work requests, %u rounds\n", i, qp->generation,
               states[qp->state], qp->peer.offered ? " offered" : "", qp->peer.ready ? " ready" : "",
               qp->peer.drained ? " drained" : "", qp->requests, qp->rounds);
    }
    if (sent->next_seq != sent->cumulative) {
        const struct chunk *chunk = sent_chunk(sent, sent->cumulative);
        printf("#   oldest chunk: state %u, kind %u, %s path %u, %u transmissions, %u datagrams\n", chunk->state,
               chunk->kind, chunk->placed ? "placed over" : "datagrams of", chunk->path, chunk->transmissions,
               chunk->count);
    }
}
