/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"
#include "pipes.h"
#include "rails.h"

#include "core/transmit.h"

#include <stdio.h>

/* ---- a descriptor ---------------------------------------------------------------------------- */

static const struct params *end_params(const struct world *world, const struct pair *pair, unsigned side)
{
    return &world->ends[pair->end[side]].params;
}

/* The largest datagram of all rails: a chunk is as it was cut, over whichever it goes. */
static uint32_t largest_of(const struct flow_setup *setup)
{
    uint32_t largest = setup->rails[0].datagram_bytes;
    for (unsigned i = 1; i < setup->rail_count; i++) {
        if (setup->rails[i].datagram_bytes > largest)
            largest = setup->rails[i].datagram_bytes;
    }
    return largest;
}

static void check_shape(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    if (desc->kind == TX_PLACE) {
        if (!desc->on_path || desc->count == 0 || desc->place_bytes == 0 ||
            desc->place_bytes > end_params(world, pair, side)->chunk_size_kb * 1024)
            world_fail(world, "%u writes of %u bytes", desc->count, desc->place_bytes);
        return;
    }
    uint64_t whole = desc->count == 64 ? UINT64_MAX : (UINT64_C(1) << desc->count) - 1;
    if (desc->count == 0 || desc->mask == 0 || desc->mask & ~whole)
        world_fail(world, "a descriptor with count %u and mask %llx", desc->count, (unsigned long long)desc->mask);
    uint32_t setup_bytes = largest_of(&pair->setup[side]);
    uint32_t datagram_max =
        setup_bytes > world->options->datagram_bytes_later ? setup_bytes : world->options->datagram_bytes_later;
    if (desc->datagram_bytes > datagram_max || desc->last_bytes > desc->datagram_bytes)
        world_fail(world, "a datagram of %u, last %u bytes, where %u fit", desc->datagram_bytes, desc->last_bytes,
                   datagram_max);
    if (!world->nic && !pipes_are(world->options, desc->rail) &&
        (uint64_t)(desc->count - 1) * desc->datagram_bytes + desc->last_bytes > CORE_TRAIN_BYTES_MAX)
        world_fail(world, "a train of %u times %u bytes", desc->count, desc->datagram_bytes);
}

/* A size is used once a datagram of it has got through. Retransmissions are as they were cut, if not in fragments. */
static void check_size(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    uint32_t largest = desc->count > 1 ? desc->datagram_bytes : desc->last_bytes;
    if (!pipes_are(world->options, desc->rail) && !desc->retransmission && !desc->whole && !desc->on_path &&
        largest > CORE_DATAGRAM_BASE && largest > pair->passed_bytes[side][desc->rail])
        world_fail(world, "a datagram of %u bytes, where %u is the largest that has got through", largest,
                   pair->passed_bytes[side][desc->rail]);
}

/* Nothing beyond the windows, but one chunk, a probe, and what control frames may have more. */
static void check_windows(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    const struct flow *flow = desc->flow;
    const struct rail *rail = &flow->rails[desc->rail];
    uint32_t flying = 0;
    for (unsigned i = 0; i < flow->rail_count; i++) /* what goes beside datagrams takes nothing of the buffer */
        flying += flow->rails[i].reliable && !flow->rails->reliable ? 0 : flow->rails[i].flying_chunks;
    if (!desc->sequenced || flying == 1 || pair->probe_was_due[side])
        return;
    if (rail->flying_chunks > 1 && rail->flying_payload > rail->cc.cwnd_bytes + CONTROL_RESERVE_BYTES)
        world_fail(world, "%llu bytes in flight with a window of %llu", (unsigned long long)rail->flying_payload,
                   (unsigned long long)rail->cc.cwnd_bytes);
    if (flow->sent.flying_charge > flow->peer_window_bytes + CONTROL_RESERVE_BYTES)
        world_fail(world, "%llu kernel bytes in flight to a buffer of %llu",
                   (unsigned long long)flow->sent.flying_charge, (unsigned long long)flow->peer_window_bytes);
}

/* A window below a chunk: data keeps its distance. */
static void check_pace(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    const struct chunk *chunk = sent_chunk(&desc->flow->sent, desc->seq);
    if (desc->sequenced && chunk->payload_bytes && !pair->probe_was_due[side] &&
        pair->paced_until_ns[side][desc->rail] > world_clock_ns(world, &world->ends[pair->end[side]]))
        world_fail(world, "%u bytes %llu ns ahead of their time", chunk->payload_bytes,
                   (unsigned long long)(pair->paced_until_ns[side][desc->rail] -
                                        world_clock_ns(world, &world->ends[pair->end[side]])));
}

/* It is the only one that works. */
static bool is_last(const struct path_set *set, uint16_t path)
{
    return set->count == 1 || (set->good == 1 && set->paths[path].worked && !set->paths[path].closed);
}

/* A retransmission takes another path than the transmission that was lost, where there is one. */
static void check_path(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    if (desc->fragment) /* the chunk that it is of goes so */
        desc = &desc->flow->image.desc;
    struct transmission *last = &pair->last[side][desc->seq % LAST_MAX];
    if (!desc->sequenced || world->options->pipe_bytes || desc->flow->sent.window > LAST_MAX)
        return;
    if (desc->retransmission && last->known && last->seq == desc->seq && !last->on_path && !desc->on_path &&
        last->path == desc->path && last->path_seq != desc->path_seq &&
        !is_last(&desc->flow->rails[desc->rail].paths, desc->port))
        world_fail(world, "chunk %llu is retransmitted on path %u, which has lost it", (unsigned long long)desc->seq,
                   desc->path);
    for (unsigned i = 0; i < (desc->kind == TX_PLACE ? desc->count : 1); i++)
        pair->last[side][(desc->seq + i) % LAST_MAX] =
            (struct transmission){desc->seq + i, desc->path_seq, desc->path, true, desc->on_path};
}

/*
 * What the peer's NIC lets ours write goes as a write, as long as there is a queue pair, whose rail works. What our NIC
 * has not taken may go as datagrams the next time, which is the first that it is sent.
 */
static void check_placed(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    const struct flow *flow = desc->flow;
    const struct transmission *last = &pair->last[side][desc->seq % LAST_MAX];
    bool refused = flow->sent.window > LAST_MAX || (last->known && last->seq == desc->seq);
    unsigned pairs = 0;
    for (unsigned i = 0; i < flow->rail_count; i++) {
        const struct rail *rail = &flow->rails[i];
        pairs |= (unsigned)(rail->qps_usable && (flow->rail_count == 1 || rail_usable(rail))) << rail->pair;
    }
    if (desc->kind == TX_BULK && !desc->retransmission && !refused &&
        conn_grant(desc->bulk_msg->conn, desc->bulk_msg, pairs))
        world_fail(world, "a granted chunk goes as datagrams, though a queue pair is up");
}

/* While connections beside datagrams take a large message, it goes over these. */
static void check_way(struct world *world, const struct tx_desc *desc)
{
    const struct flow *flow = desc->flow;
    if (desc->kind == TX_BULK && !desc->retransmission && !flow->rails[desc->rail].reliable &&
        tx_bulk_rail(flow, desc->bulk_msg))
        world_fail(world, "a large message goes as datagrams over rail %u, though connections take it", desc->rail);
}

void judge_desc(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    unsigned datagrams = (unsigned)__builtin_popcountll(desc->mask);
    if (desc->sequenced && !probe_proven(&desc->flow->rails[desc->rail].probe))
        world_fail(world, "payload or control for an address that has not answered");
    check_shape(world, pair, side, desc);
    check_placed(world, pair, side, desc);
    check_path(world, pair, side, desc);
    if (desc->kind == TX_PLACE)
        return;
    check_size(world, pair, side, desc);
    check_windows(world, pair, side, desc);
    check_pace(world, pair, side, desc);
    check_way(world, desc);
    world->retransmitted += desc->retransmission ? datagrams : 0;
    rails_judge(world, pair, side, desc);
    if (desc->port < 32 && pair->link[side][desc->rail].net.dead_paths >> desc->port & 1)
        world->into_dead += datagrams;
}

/*
 * As long as no path is known to work, all are tried as often as windows allow. From then on one that is closed costs
 * the chunk whose loss shows that, whatever share of all datagrams that is.
 */
void judge_refused(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    if (!desc->sequenced || desc->flow->rails[desc->rail].paths.good == 0 ||
        pair->refused[side][desc->path].path_seq == desc->path_seq)
        return;
    pair->refused[side][desc->path].path_seq = desc->path_seq;
    if (++pair->refused[side][desc->path].chunks > world->options->refused_chunks)
        world_fail(world, "firewalls refused %u chunks of path %u, while others worked",
                   pair->refused[side][desc->path].chunks, desc->path);
}

void judge_before(struct world *world, const struct end *end)
{
    for (unsigned i = 0; i < world->pair_count; i++) {
        struct pair *pair = &world->pairs[i];
        for (unsigned side = 0; side < 2; side++) {
            const struct flow *flow = pair->flow[side];
            if (&world->ends[pair->end[side]] != end || !flow)
                continue;
            pair->probe_was_due[side] = false;
            for (unsigned k = 0; k < flow->rail_count; k++) {
                const struct rail *rail = &flow->rails[k];
                pair->probe_was_due[side] |= rail->loss.tail_probe_due;
                pair->paced_until_ns[side][k] = rail->cc.pace_gap_ns ? rail->pace_until_ns : 0;
            }
        }
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* No core refuses a frame that came as an honest peer sent it. */
static void judge_understanding(const struct world *world)
{
    for (unsigned i = 0; i < 2; i++)
        if (world->options->net[i].corrupt_ppm || world->options->net[i].truncate_ppm)
            return;
    for (unsigned i = 0; i < world->end_count; i++)
        if (world->ends[i].counters.rx_malformed)
            world_fail(world, "end %u refuses frames of honest peers", i);
}

void judge_run(const struct world *world)
{
    const struct options *options = world->options;
    enum { SLACK = 16 };
    uint64_t needless = world->retransmitted > world->dropped ? world->retransmitted - world->dropped : 0;
    if (world->trace.print)
        printf("# %llu datagrams, %llu lost, %llu into dead paths, %llu refused, %llu retransmitted (%llu needlessly), "
               "%.3f ms, "
               "%.3f ms among those that live\n",
               (unsigned long long)world->datagrams, (unsigned long long)world->dropped,
               (unsigned long long)world->into_dead, (unsigned long long)world->refused,
               (unsigned long long)world->retransmitted, (unsigned long long)needless,
               (double)(world->now_ns - world->start_ns) / 1e6,
               (double)(world->living_end_max_ns - world->start_ns) / 1e6);
    rails_judge_run(world);
    judge_understanding(world);
    if (options->needless_permille && needless > SLACK + world->datagrams * options->needless_permille / 1000)
        world_fail(world, "%llu of %llu datagrams were repeated needlessly", (unsigned long long)needless,
                   (unsigned long long)world->datagrams);
    for (unsigned i = 0; options->no_hole && i < world->end_count; i++) {
        if (world->ends[i].counters.mtu_holes)
            world_fail(world, "end %u has seen a hole for large datagrams where there is none", i);
    }
    if (options->retransmissions_max && world->retransmitted > options->retransmissions_max)
        world_fail(world, "%llu datagrams were repeated", (unsigned long long)world->retransmitted);
    if (options->living_ns && world->living_end_max_ns > world->start_ns + options->living_ns)
        world_fail(world, "silent peers held those up that live, until %.3f ms",
                   (double)(world->living_end_max_ns - world->start_ns) / 1e6);
    if (options->refused_permille && world->refused > SLACK + world->datagrams * options->refused_permille / 1000)
        world_fail(world, "firewalls refused %llu of %llu datagrams", (unsigned long long)world->refused,
                   (unsigned long long)world->datagrams);
    if (options->dead_permille && world->into_dead > SLACK + world->datagrams * options->dead_permille / 1000)
        world_fail(world, "%llu of %llu datagrams went into a dead path", (unsigned long long)world->into_dead,
                   (unsigned long long)world->datagrams);
}
