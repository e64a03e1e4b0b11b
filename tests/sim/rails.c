/* SPDX-License-Identifier: Apache-2.0 */
#include "rails.h"

#include "core/state.h"
#include "placing.h"
#include "stops.h"

#include <stdio.h>

enum { FLAPS = 12 }; /* cuts of a rail, at most */

/* ---- nets and cuts ---------------------------------------------------------------------------- */

const struct net *rails_net(const struct options *options, unsigned side, unsigned rail)
{
    return rail ? &options->more_rails[rail - 1].net[side] : &options->net[side];
}

uint32_t rails_datagram(const struct options *options, unsigned rail)
{
    uint32_t bytes = rail ? options->more_rails[rail - 1].datagram_bytes : 0;
    return bytes ? bytes : options->datagram_bytes;
}

static bool is_now(const struct world *world, const struct cut *cut)
{
    uint64_t at_ns = world->now_ns - world->start_ns;
    return at_ns >= cut->begin_ns && at_ns < cut->end_ns;
}

bool rails_swallow(const struct world *world, unsigned side, unsigned rail)
{
    const struct options *options = world->options;
    for (unsigned i = 0; i < options->cut_count; i++) {
        const struct cut *cut = &options->cuts[i];
        if (cut->rail == rail && is_now(world, cut) && (cut->kind != CUT_ONE_WAY || cut->side == side))
            return true;
    }
    return false;
}

uint64_t rails_whole_at(const struct world *world, unsigned rail, uint64_t at_ns)
{
    const struct options *options = world->options;
    for (unsigned i = 0; i < options->cut_count; i++) {
        const struct cut *cut = &options->cuts[i];
        if (cut->rail != rail || at_ns < world->start_ns + cut->begin_ns || at_ns - world->start_ns >= cut->end_ns)
            continue;
        return cut->end_ns == UINT64_MAX ? UINT64_MAX : rails_whole_at(world, rail, world->start_ns + cut->end_ns);
    }
    return at_ns;
}

void rails_create(struct world *world)
{
    const struct options *options = world->options;
    for (unsigned i = 0; i < options->cut_count; i++) {
        const struct cut *cut = &options->cuts[i];
        for (unsigned end = 0; cut->kind == CUT_DEVICE && end < world->end_count; end++) {
            if ((end == 0) != (cut->side == 0))
                continue;
            world_push(world, world->start_ns + cut->begin_ns, EVENT_RAIL, end, NULL, i);
            if (cut->end_ns != UINT64_MAX)
                world_push(world, world->start_ns + cut->end_ns, EVENT_RAIL, end, NULL, i);
        }
    }
}

void rails_event(struct world *world, struct end *end, unsigned index)
{
    const struct cut *cut = &world->options->cuts[index];
    bool gone = is_now(world, cut);
    for (unsigned i = 0; i < world->pair_count; i++) {
        struct pair *pair = &world->pairs[i];
        if (&world->ends[pair->end[cut->side]] != end)
            continue;
        world_note(world, gone ? "device gone" : "device back", i, cut->side, cut->rail);
        pair->device_gone[cut->side][cut->rail] = gone;
        core_destination_changed(end->core, pair->setup[cut->side].rails[cut->rail].destination, !gone,
                                 world_clock_ns(world, end));
    }
}

/* ---- judging ---------------------------------------------------------------------------------- */

/* Nothing goes to a device that is gone, and no chunk over a rail that does not work while another does. */
void rails_judge(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc)
{
    const struct flow *flow = desc->flow;
    const struct rail *rail = &flow->rails[desc->rail];
    if (desc->rail >= flow->rail_count || desc->destination % 64 != pair->setup[side].rails[0].destination % 64 ||
        desc->destination / 64 != desc->rail)
        world_fail(world, "rail %u with destination %u", desc->rail, desc->destination);
    if (flow->rail_count == 1)
        return;
    bool usable = false, better = false; /* connections that lose much are no better than a rail in doubt */
    for (unsigned i = 0; i < flow->rail_count; i++) {
        bool is = rail_usable(&flow->rails[i]) && !pair->device_gone[side][i];
        usable |= is;
        better |= is && !rail_is_lossy(&flow->rails[i]);
    }
    if (pair->device_gone[side][desc->rail] && usable)
        world_fail(world, "a packet for a device that is gone");
    bool pinned = desc->on_path && desc->kind != TX_PLACE; /* a retransmission where the original may still arrive */
    if (desc->sequenced && better && !rail_usable(rail) && !pinned)
        world_fail(world, "a chunk over rail %u in state %u, while another one is usable", desc->rail, rail->state);
    if (!desc->sequenced || desc->kind != TX_BULK)
        return;
    world->rail_bytes[desc->rail] += (uint64_t)__builtin_popcountll(desc->mask) * desc->datagram_bytes;
    world->rail_sides[desc->rail] |= (uint8_t)(1u << side);
}

/* Whether no cut has touched the rail for so long. */
static bool is_whole(const struct world *world, unsigned rail, uint64_t ns)
{
    const struct options *options = world->options;
    uint64_t at_ns = world->now_ns - world->start_ns;
    for (unsigned i = 0; i < options->cut_count; i++) {
        const struct cut *cut = &options->cuts[i];
        if (cut->rail == rail && cut->begin_ns < at_ns && (cut->end_ns > at_ns || at_ns - cut->end_ns < ns))
            return false;
    }
    return at_ns > ns;
}

/* A lost packet may have brought a rail into doubt a moment ago. */
static bool just_doubted(const struct world *world, const struct rail *rail)
{
    return rail->state == RAIL_SUSPECT &&
           world->now_ns - rail->doubt_ns < world->options->params.nic_dead_ms * NS_PER_MS;
}

/* A rail that has been whole for long is used again. */
static void judge_return(const struct world *world)
{
    for (unsigned i = 0; i < world->pair_count; i++) {
        for (unsigned side = 0; side < 2; side++) {
            struct flow *flow = world->pairs[i].flow[side];
            EACH_RAIL(flow, rail)
            {
                if (is_whole(world, rail->index, world->options->rails_whole_ns) && !rail_usable(rail) &&
                    !just_doubted(world, rail))
                    world_fail(world, "side %u does not use rail %u, which is whole (state %u)", side, rail->index,
                               rail->state);
            }
        }
    }
}

void rails_judge_run(const struct world *world)
{
    const struct options *options = world->options;
    uint64_t sum = 0, rates = 0, moves = 0;
    for (unsigned i = 0; i < world->end_count; i++)
        moves += world->ends[i].counters.rail_moves;
    for (unsigned i = 0; i < options->rails; i++) {
        sum += world->rail_bytes[i];
        rates += rails_net(options, 0, i)->rate_mbps;
    }
    if (world->trace.print && options->rails > 1)
        printf("# %u rails lost, %u back, %llu chunks moved, longest message %.3f ms\n", world->rails_lost,
               world->rails_back, (unsigned long long)moves, (double)world->message_max_ns / 1e6);
    for (unsigned i = 0; i < options->rails; i++) {
        if (world->trace.print)
            printf("# rail %u: %llu bytes\n", i, (unsigned long long)world->rail_bytes[i]);
        uint64_t fair = rates ? sum * rails_net(options, 0, i)->rate_mbps / rates : 0;
        if (options->each_rail_carries && world->rail_sides[i] != 3)
            world_fail(world, "rail %u has carried nothing of some side (%u)", i, world->rail_sides[i]);
        if (options->share_permille && (world->rail_bytes[i] < fair - fair * options->share_permille / 1000 ||
                                        world->rail_bytes[i] > fair + fair * options->share_permille / 1000))
            world_fail(world, "rail %u carried %llu bytes, where %llu are its share", i,
                       (unsigned long long)world->rail_bytes[i], (unsigned long long)fair);
    }
    if (options->message_ns && world->message_max_ns > options->message_ns)
        world_fail(world, "a message took %.3f ms", (double)world->message_max_ns / 1e6);
    if (options->rails_whole_ns)
        judge_return(world);
    if (options->rails_return && world->rails_back != world->rails_lost)
        world_fail(world, "%u rails were lost, %u are back", world->rails_lost, world->rails_back);
    if (options->rails_lost_min && world->rails_lost < options->rails_lost_min)
        world_fail(world, "%u rails were lost, where %u were cut", world->rails_lost, options->rails_lost_min);
}

/* ---- scenarios -------------------------------------------------------------------------------- */

/* So many rails with nets of their own, as the first one's so far. */
static void with_rails(struct options *options, unsigned rails)
{
    options->rails = rails;
    options->params.port_entropy = 4;
    for (unsigned i = 1; i < rails; i++) {
        for (unsigned side = 0; side < 2; side++)
            options->more_rails[i - 1].net[side] = options->net[side];
        options->more_rails[i - 1].datagram_bytes = options->datagram_bytes;
    }
}

#define EACH_RAIL_NET(options, net)                                                                                    \
    for (unsigned rail_##net = 0; rail_##net < (options)->rails; rail_##net++)                                         \
        for (struct net *net = rail_##net ? (options)->more_rails[rail_##net - 1].net : (options)->net,                \
                        *end_of_##net = net + 2;                                                                       \
             net < end_of_##net; net++)

static void add_cut(struct options *options, struct cut cut)
{
    if (options->cut_count < CUTS_MAX)
        options->cuts[options->cut_count++] = cut;
}

static struct cut any_cut(const struct options *options, struct rng *rng, uint64_t from_ns, uint64_t most_ns)
{
    struct cut cut = {.rail = (uint8_t)rng_below(rng, options->rails),
                      .kind = (uint8_t)rng_below(rng, 3),
                      .side = (uint8_t)rng_below(rng, 2)};
    cut.begin_ns = from_ns;
    cut.end_ns = from_ns + 1 + rng_below(rng, (uint32_t)most_ns);
    return cut;
}

/* Rails of unequal rates, delays and sizes, in a quiet network. */
void rails_calm(struct options *options, struct rng *rng)
{
    with_rails(options, 2 + rng_below(rng, 3));
    EACH_RAIL_NET(options, net)
    {
        net->rate_mbps = 1000u << rng_below(rng, 6);
        net->delay_ns = (1 + rng_below(rng, 200)) * NS_PER_US;
    }
}

/* One connection that always has something to send gets at least 0.85 of the sum of its rails. */
void rails_shares(struct options *options, struct rng *rng)
{
    static const uint32_t rates[][4] = {{2000, 2000}, {2000, 4000}, {4000, 1000}, {2000, 2000, 2000, 4000}};
    unsigned which = rng_below(rng, 4);
    options->conns = 1;
    options->one_way = true;
    options->one_size = true;
    options->messages = 12;
    options->outstanding = 4;
    options->size_max = 4 << 20;
    options->send_gap_ns = options->recv_gap_ns = options->recv_late_ns = 0;
    options->datagram_bytes = 8972;
    with_rails(options, which == 3 ? 4 : 2);
    uint64_t sum_mbps = 0, bytes = options->messages * options->size_max;
    EACH_RAIL_NET(options, net)
    {
        net->rate_mbps = rates[which][rail_net];
        net->queue_bytes = 1 << 20;
        sum_mbps += net == end_of_net - 1 ? net->rate_mbps : 0;
    }
    options->share_permille = 150;
    options->living_ns = bytes * 8000 * 100 / 85 / sum_mbps;
}

static void steady(struct options *options, struct rng *rng)
{
    options->conns = 2;
    options->messages = 600;
    options->size_max = 1u << (10 + rng_below(rng, 9));
    options->outstanding = 4;
    options->send_gap_ns = options->recv_gap_ns = 8 * NS_PER_MS;
    options->recv_late_ns = 0;
    options->params.dead_peer_ms = 4000;
    options->limit_ns = UINT64_C(60000) * NS_PER_MS;
    options->message_ns = 1000 * NS_PER_MS;
    options->no_hole = true;
}

/* Rails are cut in all ways, one at a time; messages go on, and the rails come back. */
void rails_cuts(struct options *options, struct rng *rng)
{
    steady(options, rng);
    with_rails(options, 2 + rng_below(rng, 3));
    uint64_t at_ns = rng_below(rng, 20 * NS_PER_MS);
    for (unsigned i = 0; i < 2; i++) {
        struct cut cut = any_cut(options, rng, at_ns, 600u * NS_PER_MS);
        add_cut(options, cut);
        at_ns = cut.end_ns + 100 * NS_PER_MS + rng_below(rng, 300 * NS_PER_MS);
    }
    EACH_RAIL_NET(options, net)
    net->loss_ppm = 1000;
}

/* A NIC dies here and another one there: what is left of one rail is a direction, or nothing for a while. */
void rails_crosswise(struct options *options, struct rng *rng)
{
    steady(options, rng);
    options->message_ns = 2500u * NS_PER_MS;
    with_rails(options, 2);
    uint64_t begin_ns = rng_below(rng, 100 * NS_PER_MS), length_ns = rng_below(rng, 1500u * NS_PER_MS);
    for (uint8_t side = 0; side < 2; side++)
        add_cut(options, (struct cut){.rail = side,
                                      .kind = (uint8_t)rng_below(rng, 3),
                                      .side = side,
                                      .begin_ns = begin_ns + side * rng_below(rng, 100 * NS_PER_MS),
                                      .end_ns = begin_ns + length_ns});
}

/* One direction of a rail is dead, for good or for a while. The other one is of use, and so is the other rail. */
void rails_oneway(struct options *options, struct rng *rng)
{
    steady(options, rng);
    with_rails(options, 2);
    struct cut cut = {.rail = (uint8_t)rng_below(rng, 2), .kind = CUT_ONE_WAY};
    cut.side = (uint8_t)rng_below(rng, 2);
    cut.begin_ns = rng_below(rng, 50 * NS_PER_MS);
    cut.end_ns = rng_below(rng, 2) ? UINT64_MAX : cut.begin_ns + rng_below(rng, 900u * NS_PER_MS);
    add_cut(options, cut);
}

/*
 * Each direction of each rail is cut and heals at times of its own, several at once, and some rails take long. One rail
 * works in each direction all the time, though not the same one perhaps. One end may have fewer NICs.
 */
void rails_tangle(struct options *options, struct rng *rng)
{
    steady(options, rng);
    with_rails(options, 2 + rng_below(rng, 3));
    options->rails_of_last = rng_below(rng, 2) ? 0 : 1 + rng_below(rng, options->rails);
    unsigned of_last = options->rails_of_last ? options->rails_of_last : options->rails, works[2];
    works[0] = rng_below(rng, options->rails);
    works[1] = rng_below(rng, of_last);
    options->one_way = rng_below(rng, 4) == 0;
    options->send_gap_ns = options->recv_gap_ns = 20 * NS_PER_MS;
    bool far = rng_below(rng, 2);
    options->message_ns = far ? 0 : 2500u * NS_PER_MS; /* congestion control takes so much delay for a queue */
    options->limit_ns = UINT64_C(600000) * NS_PER_MS;
    EACH_RAIL_NET(options, net)
    {
        net->delay_ns = UINT64_C(1) << (12 + rng_below(rng, far ? 13 : 8));
        net->loss_ppm = rng_below(rng, 2) * 2000;
    }
    for (unsigned i = 0; i < 2 * options->rails; i++) {
        uint8_t rail = (uint8_t)(i / 2), side = i % 2;
        uint64_t at_ns = rng_below(rng, 100 * NS_PER_MS);
        bool both = rail != works[0] && rail != works[1] && rail < of_last;
        for (unsigned k = rng_below(rng, 4); k > 0 && rail != works[side]; k--) {
            uint8_t kind = both ? (uint8_t)rng_below(rng, 3) : CUT_ONE_WAY;
            uint64_t begin_ns = at_ns + rng_below(rng, 300 * NS_PER_MS);
            at_ns = begin_ns + 1 + rng_below(rng, 700 * NS_PER_MS);
            bool stays = rng_below(rng, 8) == 0;
            add_cut(options, (struct cut){rail, kind, side, begin_ns, stays ? UINT64_MAX : at_ns});
        }
    }
    options->rails_whole_ns = 2500u * NS_PER_MS;
}

/* The same where ends stop meanwhile, as by SIGSTOP, for less than it takes to be given up. */
void rails_tangle_stops(struct options *options, struct rng *rng)
{
    rails_tangle(options, rng);
    stops_below(options, rng);
    options->message_ns = options->rails_whole_ns = 0;
    EACH_RAIL_NET(options, net)
    {
        if (net->delay_ns > NS_PER_MS)
            net->delay_ns = NS_PER_MS;
    }
}

/* A link goes up and down. */
void rails_flaps(struct options *options, struct rng *rng)
{
    steady(options, rng);
    with_rails(options, 2);
    uint64_t at_ns = 0;
    uint8_t rail = (uint8_t)rng_below(rng, 2), kind = (uint8_t)rng_below(rng, 3), side = (uint8_t)rng_below(rng, 2);
    for (unsigned i = 0; i < FLAPS; i++) {
        uint64_t begin_ns = at_ns + rng_below(rng, 60 * NS_PER_MS),
                 end_ns = begin_ns + 1 + rng_below(rng, 60 * NS_PER_MS);
        add_cut(options,
                (struct cut){.rail = rail, .kind = kind, .side = side, .begin_ns = begin_ns, .end_ns = end_ns});
        at_ns = end_ns;
    }
}

/* Some rails never answer, the first one among them perhaps. */
void rails_cold(struct options *options, struct rng *rng)
{
    with_rails(options, 2 + rng_below(rng, 3));
    unsigned works = rng_below(rng, options->rails);
    for (uint8_t i = 0; i < options->rails; i++) {
        if (i != works)
            add_cut(options, (struct cut){.rail = i, .kind = 1 + (uint8_t)rng_below(rng, 2), .end_ns = UINT64_MAX});
    }
    EACH_RAIL_NET(options, net)
    net->loss_ppm = rng_below(rng, 2) * 20000;
}

/* All rails but one do not work from the beginning, and come later. Then they carry, too. */
void rails_late(struct options *options, struct rng *rng)
{
    steady(options, rng);
    options->size_max = 1 << 18;
    with_rails(options, 2 + rng_below(rng, 3));
    unsigned works = rng_below(rng, options->rails);
    for (uint8_t i = 0; i < options->rails; i++) {
        struct cut cut = any_cut(options, rng, 0, 900u * NS_PER_MS);
        cut.rail = i;
        if (i != works)
            add_cut(options, cut);
    }
    options->each_rail_carries = true;
}

/* Unequal sizes of datagrams: chunks of a rail with large ones go over one with small ones. */
void rails_sizes(struct options *options, struct rng *rng)
{
    static const uint32_t sizes[] = {1232, 1472, 4096, 8972, 20000};
    options->datagram_bytes = sizes[rng_below(rng, 5)];
    options->size_max = 1 << 20;
    options->messages = 30;
    options->conns = 2;
    with_rails(options, 2);
    options->more_rails[0].datagram_bytes = sizes[rng_below(rng, 5)];
    uint64_t at_ns = rng_below(rng, 8 * NS_PER_MS);
    for (unsigned i = 0; i < 3; i++) {
        struct cut cut = any_cut(options, rng, at_ns, 100 * NS_PER_MS);
        add_cut(options, cut);
        at_ns = cut.end_ns + rng_below(rng, 10 * NS_PER_MS);
    }
    EACH_RAIL_NET(options, net)
    {
        net->rate_mbps = 4000;
        net->loss_ppm = rng_below(rng, 2) * 10000;
    }
}

/* NICs that place payload, whose queue pairs are the first rail's. What was written there may arrive late. */
void rails_placing(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->path_stall_ns = 1u << (20 + rng_below(rng, 9));
    options->paths_reliable = rng_below(rng, 2);
    options->cancel_permille = rng_below(rng, 2) * rng_below(rng, 300);
    options->messages = 60;
    with_rails(options, 2 + rng_below(rng, 2));
    uint64_t at_ns = 2 * NS_PER_MS;
    for (unsigned i = 1 + rng_below(rng, 4); i > 0; i--) {
        struct cut cut = any_cut(options, rng, at_ns + rng_below(rng, 10 * NS_PER_MS), 800 * NS_PER_MS);
        cut.rail = rng_below(rng, 4) ? 0 : cut.rail;
        add_cut(options, cut);
        at_ns = cut.end_ns;
    }
    EACH_RAIL_NET(options, net)
    net->loss_ppm = rng_below(rng, 2) * 20000;
}

/* The peer dies, beside cuts. */
void rails_dead(struct options *options, struct rng *rng)
{
    options->ends = 2 + rng_below(rng, 2);
    options->params.dead_peer_ms = 200 + rng_below(rng, 1500);
    options->halt_ns = rng_below(rng, 40 * NS_PER_MS);
    options->expect_dead = true;
    with_rails(options, 2 + rng_below(rng, 2));
    for (unsigned i = rng_below(rng, 3); i > 0; i--) {
        uint64_t from_ns = rng_below(rng, 60 * NS_PER_MS);
        struct cut cut = any_cut(options, rng, from_ns, 100 * NS_PER_MS);
        add_cut(options, cut);
    }
    EACH_RAIL_NET(options, net)
    net->loss_ppm = rng_below(rng, 2) * 20000;
}

/* All at once. */
void rails_storm(struct options *options, struct rng *rng)
{
    options->ends = 2 + rng_below(rng, 2);
    options->conns = 4;
    options->messages = 80;
    options->size_max = 1u << (10 + rng_below(rng, 9));
    options->send_gap_ns = options->recv_gap_ns = NS_PER_MS;
    options->datagram_bytes = 512 + rng_below(rng, 9000);
    options->params.path_policy = rng_below(rng, 3);
    options->params.cc = rng_below(rng, 3);
    options->params.payload_crc = rng_below(rng, 2);
    options->params.nic_dead_ms = 10 + rng_below(rng, 300);
    options->close_early = rng_below(rng, 2);
    options->cancel_permille = rng_below(rng, 200);
    options->truncate_permille = rng_below(rng, 200);
    options->tx_fail_ppm = rng_below(rng, 50000);
    options->stall_every_ns = 1u << (20 + rng_below(rng, 5));
    options->stall_ns = 1u << (17 + rng_below(rng, 6));
    with_rails(options, 2 + rng_below(rng, 3));
    EACH_RAIL_NET(options, net)
    {
        net->rate_mbps = 500u << rng_below(rng, 6);
        net->delay_ns = (1 + rng_below(rng, 300)) * NS_PER_US;
        net->loss_ppm = rng_below(rng, 40000);
        net->duplicate_ppm = rng_below(rng, 30000);
        net->reorder_ppm = rng_below(rng, 30000);
        net->reorder_ns = NS_PER_MS;
        net->corrupt_ppm = rng_below(rng, 10000);
    }
    for (unsigned i = 0; i + 1 < options->rails; i++)
        options->more_rails[i].datagram_bytes = 512 + rng_below(rng, 9000);
    uint64_t at_ns = 0;
    for (unsigned i = rng_below(rng, FLAPS); i > 0; i--) {
        at_ns += rng_below(rng, 60 * NS_PER_MS);
        struct cut cut = any_cut(options, rng, at_ns, 300 * NS_PER_MS);
        add_cut(options, cut);
    }
}
