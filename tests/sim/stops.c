/* SPDX-License-Identifier: Apache-2.0 */
#include "stops.h"

enum {
    DRIFT_PPM = 200, /* of quartz at its worst */
    SLACK_NS = 20000000,
    GAP_PARTS = 2, /* of UCCL_DEAD_PEER_MS between two stops: time to be heard of, whatever is lost */
};

static uint64_t dead_ns(const struct options *options)
{
    return options->params.dead_peer_ms * NS_PER_MS;
}

static uint64_t up_to(struct rng *rng, uint64_t most)
{
    return most ? rng_next(rng) % most : 0;
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void plan_stops(struct world *world, struct end *end, struct rng *rng)
{
    const struct options *options = world->options;
    unsigned index = (unsigned)(end - world->ends);
    uint64_t at_ns = world->start_ns;
    for (unsigned i = 0; i < options->stops; i++) {
        at_ns += options->stop_gap_ns + up_to(rng, options->stop_gap_ns);
        if (options->stops_together && index)
            at_ns = world->ends[0].stops[i].begin_ns;
        struct stop *stop = &end->stops[i];
        stop->begin_ns = at_ns;
        at_ns += options->stop_min_ns + up_to(rng, options->stop_ns - options->stop_min_ns);
        stop->end_ns = at_ns;
        if (options->stops_together) /* the next one begins when all have run for a while */
            at_ns = stop->begin_ns + options->stop_ns;
        world_push(world, stop->begin_ns, EVENT_STOP, index, NULL, 0);
        world_push(world, stop->end_ns, EVENT_GO_ON, index, NULL, 0);
    }
    end->stop_count = options->stops;
}

void stops_create(struct world *world)
{
    struct rng rng = {world->seed ^ UINT64_C(0x73746f7073)};
    for (unsigned i = 0; i < world->end_count; i++) {
        struct end *end = &world->ends[i];
        uint32_t drift_ppm = world->options->drift_ppm;
        end->drift_ppm = (int32_t)rng_below(&rng, 2 * drift_ppm + 1) - (int32_t)drift_ppm;
        plan_stops(world, end, &rng);
    }
}

static struct stop *stop_at(const struct world *world, struct end *end, bool ends)
{
    for (unsigned i = 0; i < end->stop_count; i++) {
        struct stop *stop = &end->stops[i];
        if ((ends ? stop->end_ns : stop->begin_ns) == world->now_ns)
            return stop;
    }
    world_fail(world, "a stop that is not planned");
}

void stops_begin(struct world *world, struct end *end)
{
    world_note(world, "stop", (uint64_t)(end - world->ends), 0, 0);
    end->stalled_until_ns = stop_at(world, end, false)->end_ns;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

/* How long `own` ran during a stop of its peer, until now; `stops`: how often it was stopped meanwhile. */
static uint64_t silence(const struct world *world, const struct end *own, const struct stop *stop, unsigned *stops)
{
    uint64_t until_ns = stop->end_ns < world->now_ns ? stop->end_ns : world->now_ns;
    *stops = 0;
    if (stop->begin_ns >= until_ns)
        return 0;
    uint64_t silent_ns = until_ns - stop->begin_ns;
    for (unsigned i = 0; i < own->stop_count; i++) {
        uint64_t from_ns = own->stops[i].begin_ns > stop->begin_ns ? own->stops[i].begin_ns : stop->begin_ns;
        uint64_t to_ns = own->stops[i].end_ns < until_ns ? own->stops[i].end_ns : until_ns;
        if (to_ns <= from_ns)
            continue;
        silent_ns -= to_ns - from_ns;
        ++*stops;
    }
    return silent_ns;
}

void stops_judge_death(struct world *world, const struct pair *pair, unsigned side)
{
    const struct end *own = &world->ends[pair->end[side]], *other = &world->ends[pair->end[!side]];
    uint64_t needed_ns = dead_ns(world->options) * 3 / 4; /* what was lost before the stop is not known here */
    unsigned stops;
    if (pair->dead[!side])
        return;
    for (unsigned i = 0; i < other->stop_count; i++) {
        const struct stop *stop = &other->stops[i];
        if (world->now_ns < stop->end_ns + dead_ns(world->options) / 4 &&
            silence(world, own, stop, &stops) >= needed_ns)
            return;
    }
    world_fail(world, "end %u calls end %u dead, which lives", pair->end[side], pair->end[!side]);
}

/*
 * Who waited all the time, and ran, has given the stopped one up. It is asked after a quarter of the time; of each stop
 * of our own a sixteenth may go unnoticed, and as much may pass until the next look.
 */
void stops_end(struct world *world, struct end *end)
{
    const struct stop *stop = stop_at(world, end, true);
    world_note(world, "go on", (uint64_t)(end - world->ends), 0, 0);
    for (unsigned i = 0; i < world->pair_count; i++) {
        const struct pair *pair = &world->pairs[i];
        for (unsigned side = 0; side < 2; side++) {
            const struct end *own = &world->ends[pair->end[side]];
            uint64_t dead = dead_ns(world->options);
            unsigned stops;
            if (&world->ends[pair->end[!side]] != end || own == end || own->stalled_until_ns > world->now_ns ||
                silence(world, own, stop, &stops) < dead * 5 / 4 + stops * dead / 8 + SLACK_NS)
                continue;
            int conn = app_waits(world, pair, side, stop->begin_ns);
            if (conn >= 0)
                world_fail(world, "connection %d waits for end %u, which was silent for %.3f ms", conn,
                           pair->end[!side], (double)(stop->end_ns - stop->begin_ns) / 1e6);
        }
    }
}

/* ---- scenarios ------------------------------------------------------------------------------- */

/* The application is busy all the time. */
static void use_stops(struct options *options, struct rng *rng, uint64_t least_ns, uint64_t most_ns)
{
    options->stops = 1 + rng_below(rng, STOPS_MAX);
    options->stop_min_ns = least_ns;
    options->stop_ns = most_ns;
    options->stop_gap_ns = dead_ns(options) / GAP_PARTS;
    options->drift_ppm = rng_below(rng, DRIFT_PPM + 1);
    options->send_gap_ns = options->recv_gap_ns =
        2 * options->stops * (most_ns + options->stop_gap_ns) / options->messages;
    options->outstanding = 1 + rng_below(rng, options->outstanding);
    options->limit_ns = UINT64_C(20000) * NS_PER_MS + 4 * options->stops * (most_ns + 2 * options->stop_gap_ns);
}

static void use_dead_peer(struct options *options, struct rng *rng)
{
    options->params.dead_peer_ms = 400 + rng_below(rng, 1000);
}

/* Too short for anybody to be given up. */
void stops_below(struct options *options, struct rng *rng)
{
    use_dead_peer(options, rng);
    use_stops(options, rng, 0, dead_ns(options) * 7 / 10);
}

/* Some of them long enough. */
void stops_above(struct options *options, struct rng *rng)
{
    use_dead_peer(options, rng);
    use_stops(options, rng, 0, dead_ns(options) * 3);
    options->expect_dead = true;
}

/* All at once, as when a whole host is suspended: each notices that it did not run itself. */
void stops_together(struct options *options, struct rng *rng)
{
    use_dead_peer(options, rng);
    uint64_t stop_ns = dead_ns(options) * (1 + rng_below(rng, 5));
    use_stops(options, rng, stop_ns, stop_ns + dead_ns(options) / 2);
    options->stops_together = true;
}

/* Probes alone get lost, or their echoes, one way: for a while, or for good, since both talk. */
void stops_probes(struct options *options, struct rng *rng)
{
    use_dead_peer(options, rng);
    use_stops(options, rng, 0, dead_ns(options) / 2);
    struct net *net = &options->net[rng_below(rng, 2)];
    net->lost_probes = 1 + rng_below(rng, 2);
    net->probes_from_ns = 50 * NS_PER_MS + rng_below(rng, (uint32_t)dead_ns(options)); /* the address has been proven */
    net->probes_until_ns =
        rng_below(rng, 2) ? UINT64_MAX : net->probes_from_ns + rng_below(rng, (uint32_t)dead_ns(options));
}
