/* SPDX-License-Identifier: Apache-2.0 */
#include "pipes.h"

#include "core/state.h"
#include "rails.h"

#include <stdlib.h>
#include <string.h>

enum { PIPES_MAX = 8, READS_MAX = 4 };

struct pipe {
    uint32_t generation; /* of the connection; odd: it is broken */
    bool up[2];          /* the side has not learned that it is broken */
    bool waits[2];       /* the side was refused */
    uint64_t queued[2];  /* bytes of the side under way */
    uint64_t last_ns[2]; /* when its newest record arrives */
};

static struct pipe pipes[PAIRS_MAX][RAILS_MAX][PIPES_MAX];

/* A datagram under way. Of one of bulk the payload is read as it comes, as tcp/in.c does. */
struct record {
    size_t length;
    size_t there; /* bytes of payload that have been read */
    uint8_t *to;  /* into the receive's buffer; NULL: not there */
    bool begun;   /* reading has, so that `to` is known */
    bool gone;    /* the buffer is, since then */
    uint8_t bytes[];
};

enum pipe_what { PIPE_PART, PIPE_RECORD, PIPE_LEARNS, PIPE_OPENS };

struct pipe_event {
    uint8_t what; /* enum pipe_what */
    uint8_t side; /* that it happens to */
    uint8_t rail;
    uint16_t port;
    struct pair *pair;
    uint32_t generation;
    struct record *record; /* PIPE_PART, PIPE_RECORD: the last of them */
    size_t there;          /* PIPE_PART: bytes of payload that have come */
};

static struct pipe *pipe_of(const struct world *world, const struct pair *pair, unsigned rail, unsigned port)
{
    return &pipes[pair - world->pairs][rail][port];
}

static void push(struct world *world, uint64_t at_ns, struct pipe_event event)
{
    struct pipe_event *kept = malloc(sizeof *kept);
    if (!kept)
        abort();
    *kept = event;
    world_push(world, at_ns, EVENT_PIPE, event.pair->end[event.side], kept, 0);
}

/* The connection is made, by side 0, once no cut is in the way; side 1 hears of it before any record. */
static void open_pipe(struct world *world, struct pair *pair, unsigned rail, unsigned port, uint64_t at_ns)
{
    struct pipe *pipe = pipe_of(world, pair, rail, port);
    uint32_t generation = pipe->generation + (pipe->generation & 1);
    at_ns = rails_whole_at(world, rail, at_ns);
    if (at_ns == UINT64_MAX)
        return;
    uint64_t later_ns = at_ns + rng_below(&world->rng, 50 * NS_PER_US);
    for (unsigned side = 0; side < 2; side++)
        push(world, side ? later_ns : at_ns,
             (struct pipe_event){PIPE_OPENS, (uint8_t)side, (uint8_t)rail, (uint16_t)port, pair, generation, NULL, 0});
    pipe->last_ns[0] = pipe->last_ns[1] = later_ns;
}

/* Those that are down, as both sides know, are made. */
static void create_rail(struct world *world, struct pair *pair, unsigned rail)
{
    unsigned paths = pair->flow[0]->rails[rail].paths.count;
    if (pair->flow[1]->rails[rail].paths.count < paths)
        paths = pair->flow[1]->rails[rail].paths.count;
    if (paths > PIPES_MAX)
        paths = PIPES_MAX;
    for (unsigned port = 0; port < paths; port++) {
        const struct pipe *pipe = pipe_of(world, pair, rail, port);
        if (!pipe->up[0] && !pipe->up[1])
            open_pipe(world, pair, rail, port, world->now_ns + rng_below(&world->rng, NS_PER_MS));
    }
}

void pipes_create(struct world *world, struct pair *pair)
{
    for (unsigned rail = 0; rail < pair->setup[0].rail_count; rail++) {
        if (pipes_are(world->options, rail))
            create_rail(world, pair, rail);
    }
}

void pipes_begin(struct world *world, struct pair *pair)
{
    memset(pipes[pair - world->pairs], 0, sizeof pipes[0]);
    if (world->options->pipes_wanted)
        return;
    pair->flow[0]->rails_wanted = WANTED_TOLD; /* they have been before */
    pipes_create(world, pair);
}

static void break_pipe(struct world *world, struct pair *pair, unsigned rail, unsigned port)
{
    const struct options *options = world->options;
    struct pipe *pipe = pipe_of(world, pair, rail, port);
    uint64_t known_ns = world->now_ns;
    world->faults++;
    pipe->generation++;
    pipe->queued[0] = pipe->queued[1] = 0;
    for (unsigned side = 0; side < 2; side++) {
        uint64_t at_ns = world->now_ns + rng_below(&world->rng, (uint32_t)options->pipe_late_ns + 1);
        push(world, at_ns,
             (struct pipe_event){PIPE_LEARNS, (uint8_t)side, (uint8_t)rail, (uint16_t)port, pair, pipe->generation,
                                 NULL, 0});
        if (at_ns > known_ns)
            known_ns = at_ns;
    }
    known_ns += options->pipe_heal_min_ns;
    open_pipe(world, pair, rail, port, known_ns + 1 + rng_below(&world->rng, (uint32_t)options->pipe_heal_ns + 1));
}

/* A cut swallows what is sent by the rail, in one direction at least. */
static bool is_cut(const struct world *world, unsigned rail)
{
    return rails_swallow(world, 0, rail) || rails_swallow(world, 1, rail);
}

bool pipes_take(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port)
{
    struct pipe *pipe = pipe_of(world, pair, rail, port);
    if (!pipe->up[side])
        world_fail(world, "a record for path %u, which is down", port);
    if (pipe->queued[side] < world->options->pipe_bytes)
        return true;
    pipe->waits[side] = true;
    return false;
}

/* The payload comes from `begin_ns` to `end_ns` in some pieces, the last of them with the record's end. */
static void come_in_parts(struct world *world, const struct pipe_event *last, uint64_t begin_ns, uint64_t end_ns)
{
    size_t bytes = last->record->length - WIRE_BULK_HEADER_BYTES, there = 0;
    unsigned parts = rng_below(&world->rng, READS_MAX);
    for (unsigned i = 0; i < parts; i++) {
        struct pipe_event part = *last;
        there += rng_below(&world->rng, (uint32_t)(bytes - there) + 1);
        part.what = PIPE_PART;
        part.there = there;
        push(world, begin_ns + (end_ns - begin_ns) / (parts + 1) * (i + 1), part);
    }
}

void pipes_carry(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port,
                 const uint8_t *bytes, size_t length)
{
    const struct options *options = world->options;
    const struct net *net = &pair->link[side][rail].net;
    struct pipe *pipe = pipe_of(world, pair, rail, port);
    world->datagrams++;
    if (!(pipe->generation & 1) && is_cut(world, rail))
        break_pipe(world, pair, rail, port);
    if (pipe->generation & 1) { /* the side does not know yet: its buffer fills */
        world->dropped++;
        pipe->queued[side] += length;
        return;
    }
    struct record *record = malloc(sizeof *record + length);
    if (!record)
        abort();
    *record = (struct record){.length = length};
    memcpy(record->bytes, bytes, length);
    uint64_t begin_ns = world->now_ns + net->delay_ns, at_ns = begin_ns + length * 8000 / net->rate_mbps;
    at_ns += rng_below(&world->rng, (uint32_t)net->jitter_ns + 1);
    if (world_chance(world, options->pipe_stall_ppm))
        at_ns += rng_below(&world->rng, (uint32_t)options->pipe_stall_ns);
    if (at_ns < pipe->last_ns[side])
        at_ns = pipe->last_ns[side];
    if (begin_ns < pipe->last_ns[side])
        begin_ns = pipe->last_ns[side];
    pipe->last_ns[side] = at_ns;
    pipe->queued[side] += length;
    struct pipe_event event = {PIPE_RECORD, (uint8_t)!side,   (uint8_t)rail, (uint16_t)port,
                               pair,        pipe->generation, record,        0};
    if (wire_is_bulk(bytes, length))
        come_in_parts(world, &event, begin_ns, at_ns);
    push(world, at_ns, event);
    if (options->pipe_lossy_ppm && world_chance(world, options->pipe_lossy_ppm)) {
        struct end *end = &world->ends[pair->end[side]];
        core_path_lossy(end->core, pair->flow[side], rail, world_clock_ns(world, end));
    }
    if (world_chance(world, options->pipe_break_ppm))
        break_pipe(world, pair, rail, port);
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint8_t *target_of(struct world *world, const struct end *end, const struct record *record)
{
    struct core_msg *msg;
    uint64_t offset;
    if (core_copy_target(end->core, record->bytes, record->length, record->length, &msg, &offset) != 1)
        return NULL;
    return app_place(world, msg, offset, record->length - WIRE_BULK_HEADER_BYTES);
}

/* Reads payload up to `there` to where it belongs, as long as its message wants it. */
static void read_on(struct world *world, const struct end *end, struct record *record, size_t there)
{
    uint8_t *to = target_of(world, end, record);
    if (!record->begun)
        record->to = to;
    record->begun = true;
    record->gone |= record->to && to != record->to;
    if (record->to && !record->gone)
        memcpy(record->to + record->there, record->bytes + WIRE_BULK_HEADER_BYTES + record->there,
               there - record->there);
    record->there = there;
}

/* The record is whole. What its message does not want any more nobody may look at. */
static void take(struct world *world, struct end *end, struct record *record)
{
    static const uint8_t nothing[CORE_RECORD_BYTES_MAX];
    const uint8_t *payload = NULL;
    if (wire_is_bulk(record->bytes, record->length)) {
        read_on(world, end, record, record->length - WIRE_BULK_HEADER_BYTES);
        payload = record->gone ? nothing : record->to;
    }
    if (payload)
        memset(record->bytes + WIRE_BULK_HEADER_BYTES, 0xee, record->length - WIRE_BULK_HEADER_BYTES);
    core_rx_copied(end->core, record->bytes, record->length, payload, false, world_clock_ns(world, end));
    app_copy(world, end);
}

static void give_room(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port)
{
    struct end *end = &world->ends[pair->end[side]];
    if (!end->halted)
        core_path_room(end->core, pair->flow[side], rail, (uint16_t)port, world_clock_ns(world, end));
    end->dirty = true;
}

void pipes_event(struct world *world, void *what)
{
    struct pipe_event event = *(struct pipe_event *)what;
    struct pipe *pipe = pipe_of(world, event.pair, event.rail, event.port);
    struct end *end = &world->ends[event.pair->end[event.side]];
    unsigned from = !event.side;
    free(what);
    switch ((enum pipe_what)event.what) {
    case PIPE_PART:
        if (event.generation == pipe->generation && !end->halted)
            read_on(world, end, event.record, event.there);
        break;
    case PIPE_RECORD:
        if (event.generation != pipe->generation || end->halted) {
            world->dropped++;
            free(event.record);
            break;
        }
        pipe->queued[from] -= event.record->length;
        take(world, end, event.record);
        free(event.record);
        if (pipe->waits[from] && pipe->up[from] && pipe->queued[from] < world->options->pipe_bytes / 2) {
            pipe->waits[from] = false;
            give_room(world, event.pair, from, event.rail, event.port);
        }
        break;
    case PIPE_LEARNS:
        pipe->up[event.side] = pipe->waits[event.side] = false;
        pipe->queued[event.side] = 0;
        if (!end->halted)
            core_path_broken(end->core, event.pair->flow[event.side], event.rail, event.port,
                             world_clock_ns(world, end));
        break;
    case PIPE_OPENS:
        if (event.generation < pipe->generation)
            break; /* it has broken again meanwhile */
        pipe->generation = event.generation;
        pipe->up[event.side] = true;
        pipe->waits[event.side] = false;
        give_room(world, event.pair, event.side, event.rail, event.port);
        break;
    }
    end->dirty = true;
}

void pipes_free_event(void *what)
{
    struct pipe_event *event = what;
    if (event->what == PIPE_RECORD)
        free(event->record);
    free(event);
}

/* ---- scenarios -------------------------------------------------------------------------------- */

/* Paths that are connections, which break, stall and are full (pipes.h). */
void pipes_alone(struct options *options, struct rng *rng)
{
    options->pipe_bytes = 1000 + rng_below(rng, 600000);
    options->pipe_break_ppm = rng_below(rng, 3) ? rng_below(rng, 20000) : 0;
    options->pipe_stall_ppm = rng_below(rng, 20000);
    options->pipe_stall_ns = 2 * NS_PER_MS;
    options->pipe_heal_ns = 5 * NS_PER_MS;
    options->pipe_late_ns = rng_below(rng, 4) ? 100 * NS_PER_US : 100 * NS_PER_MS;
    options->datagram_bytes = rng_below(rng, 3) ? CORE_RECORD_BYTES_MAX : 2000 + rng_below(rng, 100000);
    options->window_bytes = UINT64_C(1) << 40;
    options->params.port_entropy = 1 + rng_below(rng, 6);
    options->paths_in_order = true;
    options->size_max = 2000000;
    options->cancel_permille = 20;
    options->truncate_permille = 20;
}

/*
 * The same beside datagrams, which carry the small messages and stand in where all pipes are broken. Datagrams get
 * lost, and for a while all of them do.
 */
void pipes_beside(struct options *options, struct rng *rng)
{
    uint64_t window_bytes = options->window_bytes;
    uint32_t datagram_bytes = options->datagram_bytes;
    pipes_alone(options, rng);
    options->pipes_beside = true;
    options->rails = 2;
    options->window_bytes = window_bytes;
    options->datagram_bytes = rng_below(rng, 2) ? datagram_bytes : 8972;
    options->paths_in_order = false;
    options->params.tcp_bulk_kb = 64 + rng_below(rng, 400);
    options->params.nic_dead_ms = 10 + rng_below(rng, 300);
    options->pipe_heal_ns = rng_below(rng, 2) ? options->pipe_heal_ns : 1000 * NS_PER_MS;
    for (unsigned side = 0; side < 2; side++) {
        options->more_rails[0].net[side] = options->net[side];
        options->net[side].loss_ppm = rng_below(rng, 2) ? rng_below(rng, 30000) : 0;
        options->net[side].reorder_ppm = rng_below(rng, 2) * 10000;
        options->net[side].reorder_ns = NS_PER_MS;
    }
    uint64_t begin_ns = rng_below(rng, 30 * NS_PER_MS), end_ns = 40 * NS_PER_MS + rng_below(rng, 900 * NS_PER_MS);
    if (rng_below(rng, 3) == 0)
        options->cuts[options->cut_count++] =
            (struct cut){.rail = 0, .kind = CUT_BLACK, .begin_ns = begin_ns, .end_ns = end_ns};
}

/*
 * The same with two NICs: two rails of datagrams and, behind them, two of pipes. A NIC dies with both of its rails, or
 * only its datagrams or its pipes do. An end learns late that pipes are broken; nothing may wait for that.
 */
void pipes_beside_nics(struct options *options, struct rng *rng)
{
    enum { NICS = 2, BOTH = 0, DATAGRAMS = 1, PIPES = 2 };
    pipes_beside(options, rng);
    options->cut_count = 0;
    options->rails = 2 * NICS;
    for (unsigned side = 0; side < 2; side++) {
        options->more_rails[1].net[side] = options->more_rails[2].net[side] = options->more_rails[0].net[side];
        options->more_rails[0].net[side] = options->net[side];
    }
    options->params.nic_dead_ms = 10 + rng_below(rng, 100);
    options->params.dead_peer_ms = 4000;
    options->messages = 100;
    options->send_gap_ns = options->recv_gap_ns = 4 * NS_PER_MS;
    options->pipe_lossy_ppm = rng_below(rng, 3) ? 0 : rng_below(rng, 20000);
    bool late = rng_below(rng, 2); /* of a single pipe the others know nothing: all break, in cuts that are noticed */
    if (late) {
        options->pipe_break_ppm = 0;
        options->pipe_late_ns = 1200u * NS_PER_MS;
        options->message_ns = 900u * NS_PER_MS;
    }
    uint64_t at_ns = 0;
    for (unsigned i = rng_below(rng, 5); i > 0; i--) {
        unsigned nic = rng_below(rng, NICS), what = rng_below(rng, 3);
        struct cut cut = {.rail = (uint8_t)nic, .kind = (uint8_t)rng_below(rng, 3), .side = (uint8_t)rng_below(rng, 2)};
        cut.begin_ns = at_ns + rng_below(rng, 100 * NS_PER_MS);
        cut.end_ns = at_ns = cut.begin_ns + (late ? 500 * NS_PER_MS : 1) + rng_below(rng, 400 * NS_PER_MS);
        if (what != PIPES)
            options->cuts[options->cut_count++] = cut;
        cut.rail = (uint8_t)(nic + NICS);
        cut.kind = CUT_BLACK;
        if (what != DATAGRAMS)
            options->cuts[options->cut_count++] = cut;
    }
}

/*
 * The same, but rails of both kinds are cut at times of their own, several at once: datagrams each way, pipes both
 * ways. In each direction one rail of datagrams works, or the pipes of one NIC do.
 */
void pipes_tangle(struct options *options, struct rng *rng)
{
    enum { NICS = 2 };
    pipes_beside_nics(options, rng);
    options->cut_count = 0;
    options->pipe_break_ppm = 0;
    options->pipe_late_ns = rng_below(rng, 2) ? 1200u * NS_PER_MS : 100 * NS_PER_MS;
    options->message_ns = 2500u * NS_PER_MS;
    options->one_way = rng_below(rng, 4) == 0;
    options->messages = 200;
    options->send_gap_ns = options->recv_gap_ns = 10 * NS_PER_MS;
    bool by_pipes = rng_below(rng, 2);
    uint8_t works[2] = {(uint8_t)rng_below(rng, NICS), 0};
    works[1] = by_pipes ? works[0] : (uint8_t)rng_below(rng, NICS);
    for (uint8_t i = 0; i < 3 * NICS; i++) {
        bool of_pipes = i >= 2 * NICS;
        struct cut cut = {.rail = of_pipes ? (uint8_t)(i - NICS) : i / 2, .kind = of_pipes ? CUT_BLACK : CUT_ONE_WAY};
        cut.side = of_pipes ? 0 : i % 2;
        bool spared = by_pipes ? of_pipes && cut.rail == NICS + works[0] : !of_pipes && cut.rail == works[cut.side];
        uint64_t at_ns = 20 * NS_PER_MS; /* addresses are proven */
        for (unsigned k = rng_below(rng, 4); k > 0 && !spared; k--) {
            cut.begin_ns = at_ns + rng_below(rng, 200 * NS_PER_MS);
            cut.end_ns = at_ns = cut.begin_ns + 1 + rng_below(rng, 700 * NS_PER_MS);
            options->cuts[options->cut_count++] = cut;
        }
    }
}

/* Pipes beside datagrams are made only when they are wanted, since datagrams get no answer any more. */
void pipes_wanted(struct options *options, struct rng *rng)
{
    pipes_beside(options, rng);
    options->pipes_wanted = true;
    options->pipe_break_ppm /= 50; /* what was cut into datagrams goes as so many records */
    options->size_max = rng_below(rng, 2) ? 2000 : 200000;
    options->params.dead_peer_ms = 4000;
    options->message_ns = options->pipe_break_ppm ? 0 : 2000 * NS_PER_MS;
    options->send_gap_ns = options->recv_gap_ns = 2 * NS_PER_MS; /* the end is not near when datagrams stop */
    options->cuts[0] = (struct cut){.kind = CUT_BLACK, .end_ns = UINT64_MAX};
    options->cuts[0].begin_ns = 10 * NS_PER_MS + rng_below(rng, 20 * NS_PER_MS); /* addresses are proven */
    options->cut_count = 1;
}

/*
 * Pipes break, and are to be made again in a minute, since datagrams carry all meanwhile. Then these stop, too.
 */
void pipes_again(struct options *options, struct rng *rng)
{
    pipes_wanted(options, rng);
    options->pipes_wanted = false;
    options->pipe_break_ppm = 0;
    options->pipe_heal_min_ns = UINT64_C(60000) * NS_PER_MS;
    options->size_max = 200000;
    options->messages = 200;
    options->message_ns = 2000 * NS_PER_MS;
    options->send_gap_ns = options->recv_gap_ns = 4 * NS_PER_MS; /* as above */
    struct cut cut = {.rail = 1, .kind = CUT_BLACK, .begin_ns = 5 * NS_PER_MS};
    cut.end_ns = cut.begin_ns + 1 + rng_below(rng, 200 * NS_PER_MS);
    options->cuts[options->cut_count++] = cut;
    options->cuts[0].begin_ns = cut.end_ns + rng_below(rng, 50 * NS_PER_MS);
}

/* Several rails of such paths, which are cut one at a time. */
void pipes_rails(struct options *options, struct rng *rng)
{
    pipes_alone(options, rng);
    options->rails = 2 + rng_below(rng, 2);
    options->params.dead_peer_ms = 4000;
    options->messages = 100;
    options->send_gap_ns = options->recv_gap_ns = 4 * NS_PER_MS;
    for (unsigned i = 1; i < options->rails; i++) {
        for (unsigned side = 0; side < 2; side++) {
            options->more_rails[i - 1].net[side] = options->net[side];
            options->more_rails[i - 1].net[side].rate_mbps >>= i;
        }
        options->more_rails[i - 1].datagram_bytes = options->datagram_bytes;
    }
    uint64_t at_ns = 0;
    for (unsigned i = rng_below(rng, 4); i > 0; i--) {
        struct cut cut = {.rail = (uint8_t)rng_below(rng, options->rails), .kind = CUT_BLACK};
        cut.begin_ns = at_ns + rng_below(rng, 100 * NS_PER_MS);
        cut.end_ns = cut.begin_ns + 1 + rng_below(rng, 400 * NS_PER_MS);
        options->cuts[options->cut_count++] = cut;
        at_ns = cut.end_ns;
    }
}
