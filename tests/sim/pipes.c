/* SPDX-License-Identifier: Apache-2.0 */
#include "pipes.h"

#include "core/state.h"
#include "rails.h"

#include <stdlib.h>
#include <string.h>

enum { PIPES_MAX = 8 };

struct pipe {
    uint32_t generation; /* of the connection; odd: it is broken */
    bool up[2];          /* the side has not learned that it is broken */
    bool waits[2];       /* the side was refused */
    uint64_t queued[2];  /* bytes of the side under way */
    uint64_t last_ns[2]; /* when its newest record arrives */
};

static struct pipe pipes[PAIRS_MAX][RAILS_MAX][PIPES_MAX];

enum pipe_what { PIPE_RECORD, PIPE_LEARNS, PIPE_OPENS };

struct pipe_event {
    uint8_t what; /* enum pipe_what */
    uint8_t side; /* that it happens to */
    uint8_t rail;
    uint16_t port;
    struct pair *pair;
    uint32_t generation;
    struct datagram *datagram; /* PIPE_RECORD */
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
             (struct pipe_event){PIPE_OPENS, (uint8_t)side, (uint8_t)rail, (uint16_t)port, pair, generation, NULL});
    pipe->last_ns[0] = pipe->last_ns[1] = later_ns;
}

static void create_rail(struct world *world, struct pair *pair, unsigned rail)
{
    unsigned paths = pair->flow[0]->rails[rail].paths.count;
    if (pair->flow[1]->rails[rail].paths.count < paths)
        paths = pair->flow[1]->rails[rail].paths.count;
    if (paths > PIPES_MAX)
        paths = PIPES_MAX;
    for (unsigned port = 0; port < paths; port++)
        open_pipe(world, pair, rail, port, world->now_ns + rng_below(&world->rng, NS_PER_MS));
}

void pipes_create(struct world *world, struct pair *pair)
{
    memset(pipes[pair - world->pairs], 0, sizeof pipes[0]);
    for (unsigned rail = 0; rail < pair->setup[0].rail_count; rail++) {
        if (pipes_are(world->options, rail))
            create_rail(world, pair, rail);
    }
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
                                 NULL});
        if (at_ns > known_ns)
            known_ns = at_ns;
    }
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

void pipes_carry(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port,
                 const uint8_t *bytes, size_t length)
{
    const struct options *options = world->options;
    const struct net *net = &pair->link[side][rail].net;
    struct pipe *pipe = pipe_of(world, pair, rail, port);
    world->datagrams++;
    if (pipe->generation & 1) { /* the side does not know yet */
        world->dropped++;
        return;
    }
    if (is_cut(world, rail)) {
        world->dropped++;
        break_pipe(world, pair, rail, port);
        return;
    }
    struct datagram *datagram = malloc(sizeof *datagram + length);
    if (!datagram)
        abort();
    *datagram = (struct datagram){.length = length};
    memcpy(datagram->bytes, bytes, length);
    uint64_t at_ns = world->now_ns + net->delay_ns + length * 8000 / net->rate_mbps;
    at_ns += rng_below(&world->rng, (uint32_t)net->jitter_ns + 1);
    if (world_chance(world, options->pipe_stall_ppm))
        at_ns += rng_below(&world->rng, (uint32_t)options->pipe_stall_ns);
    if (at_ns < pipe->last_ns[side])
        at_ns = pipe->last_ns[side];
    pipe->last_ns[side] = at_ns;
    pipe->queued[side] += length;
    push(world, at_ns,
         (struct pipe_event){PIPE_RECORD, (uint8_t)!side, (uint8_t)rail, (uint16_t)port, pair, pipe->generation,
                             datagram});
    if (options->pipe_lossy_ppm && world_chance(world, options->pipe_lossy_ppm)) {
        struct end *end = &world->ends[pair->end[side]];
        core_path_lossy(end->core, pair->flow[side], rail, world_clock_ns(world, end));
    }
    if (world_chance(world, options->pipe_break_ppm))
        break_pipe(world, pair, rail, port);
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
    case PIPE_RECORD:
        if (event.generation != pipe->generation || end->halted) {
            world->dropped++;
            free(event.datagram);
            break;
        }
        pipe->queued[from] -= event.datagram->length;
        core_rx(end->core, event.datagram->bytes, event.datagram->length, false, world_clock_ns(world, end));
        app_copy(world, end);
        free(event.datagram);
        if (pipe->waits[from] && pipe->up[from] && pipe->queued[from] < world->options->pipe_bytes / 2) {
            pipe->waits[from] = false;
            give_room(world, event.pair, from, event.rail, event.port);
        }
        break;
    case PIPE_LEARNS:
        pipe->up[event.side] = pipe->waits[event.side] = false;
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
    free(event->datagram);
    free(event);
}
