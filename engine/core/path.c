/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path choice. The network hashes a path to one of many equal-cost links. Some of those are slow, hot or gone, and
 * only feedback shows it. Every choice is bounded: a report put each entry into the ring, a penalised path that is
 * passed over loses one of the units that a report gave it, and no scan is longer than the number of paths. Owned by
 * the flow's thread.
 *
 * Source of recycling: Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive Load Balancing and Failure
 * Mitigation" (2024). The penalties are the fallback when there is nothing to recycle. The exploring turns are ours:
 * they find a path that has healed even while the ring never runs empty.
 */
#include "core/path.h"

#include "defs/params.h"

#include <assert.h>

enum {
    PENALTY_CONGESTED = 2,
    PENALTY_LOST = 16,
    EXPLORE_EVERY = 64,   /* choices */
    SLOW_FACTOR = 2,      /* a sample above this times the set's delay is slow */
    RECYCLE_QUARTERS = 5, /* a sample above so many quarters of it does not recycle its path */
    CLOSING_ROW = 8,      /* losses in a row, and acks of others meanwhile, that close a path which has worked */
    PATH_DELAY_SHARE = 8, /* smoothing of a path's delay */
    DELAY_FADING = 64,    /* share of a delay above the set's that each choice of another path takes off */
    SET_DELAY_SHARE = 32, /* and of the set's */
};

void path_set_init(struct path_set *set, struct path *paths, uint16_t count, unsigned policy, struct rng *rng)
{
    assert(count >= 1 && count <= PATHS_MAX);
    assert(policy <= PATH_RR);
    *set = (struct path_set){
        .paths = paths,
        .rng = rng,
        .count = count,
        .until_explore = EXPLORE_EVERY,
        .policy = (uint8_t)policy,
    };
    for (unsigned i = 0; i < count; i++)
        paths[i] = (struct path){.next_seq = 1};
}

static uint16_t take_turn(struct path_set *set)
{
    uint16_t path = set->cursor;
    set->cursor = (uint16_t)(path + 1 == set->count ? 0 : path + 1);
    return path;
}

/* Whether `path` is the one to avoid, and another exists. */
static bool is_avoided(const struct path_set *set, uint16_t path, int avoid)
{
    return path == avoid && set->count > 1;
}

/*
 * Whether it carries nothing now because others work: it is closed, or has not worked yet and has a packet in flight.
 * So not much is lost on a path that swallows all.
 */
static bool is_shut(const struct path_set *set, uint16_t path_number)
{
    if (set->good == 0 || set->good == set->count)
        return false;
    const struct path *path = &set->paths[path_number];
    return path->closed || (!path->worked && path->in_flight > 0);
}

static bool is_barred(const struct path_set *set, uint16_t path, int avoid)
{
    return is_avoided(set, path, avoid) || is_shut(set, path);
}

static uint16_t choose_round_robin(struct path_set *set, int avoid)
{
    for (unsigned scanned = 0; scanned < set->count; scanned++) {
        uint16_t path = take_turn(set);
        if (!is_barred(set, path, avoid))
            return path;
    }
    bool avoided_works = avoid >= 0 && avoid < set->count && !is_shut(set, (uint16_t)avoid);
    return avoided_works ? (uint16_t)avoid : take_turn(set);
}

/* Round robin that passes over penalised paths; if all are penalised, plain round robin. */
static uint16_t choose_unpenalised(struct path_set *set, int avoid)
{
    for (unsigned scanned = 0; scanned < set->count; scanned++) {
        uint16_t path = take_turn(set);
        if (is_barred(set, path, avoid))
            continue;
        if (set->paths[path].penalty == 0)
            return path;
        set->paths[path].penalty--;
    }
    return choose_round_robin(set, avoid);
}

static uint16_t choose_recycled(struct path_set *set, int avoid)
{
    if (set->until_explore == 0) {
        set->until_explore = EXPLORE_EVERY;
        return choose_unpenalised(set, avoid);
    }
    set->until_explore--;
    while (set->recycled_count > 0) {
        uint16_t path = set->recycled[set->recycled_head];
        set->recycled_head = (uint16_t)((set->recycled_head + 1) % PATHS_MAX);
        set->recycled_count--;
        /* Entries from before it went bad go unused. */
        if (set->paths[path].penalty == 0 && !is_barred(set, path, avoid))
            return path;
    }
    return choose_unpenalised(set, avoid);
}

/* How long a chunk would wait on this path. An unknown delay counts as the average; a loss shows no delay,
 * hence the penalty. Below 2^63, as a window has far fewer than 2^22 chunks. */
static uint64_t path_cost(const struct path_set *set, uint16_t path_number)
{
    const struct path *path = &set->paths[path_number];
    uint64_t delay_ns = path->delay_ns ? path->delay_ns : set->delay_ns;
    return (delay_ns + 1) * ((uint64_t)path->in_flight + 1) * (path->penalty + 1u);
}

/* Nothing comes back from a path that is never taken: what is held against it wears off. */
static void forgive_some(const struct path_set *set, struct path *path)
{
    if (path->penalty > 0)
        path->penalty--;
    if (path->delay_ns > set->delay_ns)
        path->delay_ns -= (path->delay_ns - set->delay_ns + DELAY_FADING - 1) / DELAY_FADING;
}

static uint16_t choose_of_two(struct path_set *set, int avoid)
{
    bool skips = avoid >= 0 && avoid < set->count && set->count > 1;
    uint32_t count = set->count - skips;
    if (count == 1)
        return skips && avoid == 0 ? 1 : 0;
    uint16_t first = (uint16_t)rng_below(set->rng, count);
    uint16_t second = (uint16_t)rng_below(set->rng, count - 1);
    if (second >= first)
        second++; /* uniform over the others */
    if (skips && first >= avoid)
        first++;
    if (skips && second >= avoid)
        second++;
    if (is_shut(set, first))
        first = choose_round_robin(set, avoid);
    if (is_shut(set, second) || second == first)
        return first;
    uint16_t better = path_cost(set, second) < path_cost(set, first) ? second : first;
    forgive_some(set, &set->paths[better == first ? second : first]);
    return better;
}

uint16_t path_choose(struct path_set *set, int avoid)
{
    switch (set->policy) {
    case PATH_RECYCLE:
        return choose_recycled(set, avoid);
    case PATH_POW2:
        return choose_of_two(set, avoid);
    default:
        return choose_round_robin(set, avoid);
    }
}

/* Whether it may swallow all that it carries. */
static bool is_suspect(const struct path *path)
{
    return path->closed || (!path->worked && path->losses > 0);
}

uint16_t path_choose_for_ack(struct path_set *set, int avoid)
{
    return set->suspects ? path_choose_safe(set, avoid, false) : path_choose(set, avoid);
}

uint16_t path_choose_safe(struct path_set *set, int avoid, bool at_a_loss)
{
    if (set->closes && avoid >= 0 && at_a_loss) {
        uint16_t path = avoid == 0 ? take_turn(set) : 0;
        return is_avoided(set, path, avoid) ? take_turn(set) : path;
    }
    uint16_t chosen = path_choose(set, avoid);
    if (set->good == 0 || set->paths[chosen].worked)
        return chosen;
    int best = -1;
    for (unsigned i = 1; i < set->count; i++) {
        uint16_t path = (uint16_t)((chosen + i) % set->count);
        if (!set->paths[path].worked || set->paths[path].closed)
            continue;
        best = path;
        if (path != avoid)
            break;
    }
    return best < 0 ? chosen : (uint16_t)best;
}

int path_next_closed(const struct path_set *set, uint16_t from)
{
    for (unsigned i = 0; set->closed && i < set->count; i++) {
        uint16_t path = (uint16_t)((from + i) % set->count);
        if (set->paths[path].closed)
            return path;
    }
    return -1;
}

void path_works(struct path_set *set, uint16_t path_number)
{
    struct path *path = &set->paths[path_number];
    set->suspects -= is_suspect(path);
    path->losses = 0;
    if (path->worked && !path->closed)
        return;
    set->good++;
    set->closed -= path->closed;
    path->worked = true;
    path->closed = false;
}

/*
 * A path that has never worked closes with its first loss. One that has worked closes after some losses in a row,
 * unless the acks of others were missing too. The last working path stays open.
 */
static void take_loss(struct path_set *set, struct path *path)
{
    if (path->losses == 0)
        path->row_acks = set->acks;
    set->suspects += !path->worked && path->losses == 0;
    if (path->losses < UINT8_MAX)
        path->losses++;
    bool is_good = path->worked && !path->closed;
    if (path->closed || set->good - is_good < 1)
        return;
    if (path->worked && (path->losses < CLOSING_ROW || set->acks - path->row_acks < CLOSING_ROW))
        return;
    set->suspects += !is_suspect(path);
    path->closed = true;
    set->closed++;
    set->good -= is_good;
}

void path_unanswered(struct path_set *set, uint16_t path)
{
    if (set->closes)
        take_loss(set, &set->paths[path]);
}

static uint32_t smooth(uint32_t old_ns, uint32_t sample_ns, uint32_t share)
{
    if (old_ns == 0)
        return sample_ns;
    return (uint32_t)(((uint64_t)old_ns * (share - 1) + sample_ns) / share);
}

/* Takes the sample in; true: it is far above the set's delay. */
static bool take_delay(struct path_set *set, struct path *path, uint64_t rtt_ns)
{
    uint32_t sample_ns = rtt_ns < UINT32_MAX ? (uint32_t)rtt_ns : UINT32_MAX;
    bool slow = set->delay_ns != 0 && sample_ns > (uint64_t)SLOW_FACTOR * set->delay_ns;
    path->delay_ns = smooth(path->delay_ns, sample_ns, PATH_DELAY_SHARE);
    set->delay_ns = smooth(set->delay_ns, sample_ns, SET_DELAY_SHARE);
    return slow;
}

/*
 * Whether good feedback is good enough to use the path again before its turn. In a full network marks come only once a
 * queue stands; a delay a little above the others' shows it sooner.
 */
static bool is_quick(const struct path_set *set, uint64_t rtt_ns)
{
    return rtt_ns == 0 || rtt_ns < (uint64_t)set->delay_ns * RECYCLE_QUARTERS / 4 + 1;
}

static void recycle(struct path_set *set, uint16_t path)
{
    if (set->recycled_count == PATHS_MAX) { /* the oldest entry says least about the present */
        set->recycled_head = (uint16_t)((set->recycled_head + 1) % PATHS_MAX);
        set->recycled_count--;
    }
    set->recycled[(set->recycled_head + set->recycled_count) % PATHS_MAX] = path;
    set->recycled_count++;
}

void path_report(struct path_set *set, uint16_t path_number, enum path_feedback feedback, uint64_t rtt_ns)
{
    assert(path_number < set->count);
    struct path *path = &set->paths[path_number];
    if (set->closes && feedback == PATH_LOST) {
        take_loss(set, path);
    } else if (set->closes) {
        set->acks++;
        path_works(set, path_number);
    }
    if (rtt_ns > 0 && take_delay(set, path, rtt_ns) && feedback == PATH_GOOD)
        feedback = PATH_CONGESTED;

    switch (feedback) {
    case PATH_GOOD:
        path->penalty /= 2;
        if (path->penalty == 0 && set->policy == PATH_RECYCLE && is_quick(set, rtt_ns))
            recycle(set, path_number);
        break;
    case PATH_CONGESTED:
        if (path->penalty < PENALTY_CONGESTED)
            path->penalty = PENALTY_CONGESTED;
        break;
    case PATH_LOST:
        path->penalty = (uint8_t)(path->penalty < UINT8_MAX - PENALTY_LOST ? path->penalty + PENALTY_LOST : UINT8_MAX);
        break;
    }
}
