/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of two or more real cores: what networks and applications may do to them. */
#include "../param_defaults.h"
#include "judge.h"
#include "pipes.h"
#include "placing.h"
#include "rails.h"
#include "scenarios.h"
#include "stops.h"
#include "unequal.h"

typedef void (*set_fn)(struct options *options, struct rng *rng);

static void set_defaults(struct options *options)
{
    *options = (struct options){
        .params = param_defaults(),
        .eager_kb_of_last = UINT64_MAX,
        .ends = 2,
        .conns = 3,
        .datagram_bytes = 1472,
        .chunk_window = 1024,
        .msg_window = 1024,
        .eager_window_kb = 256,
        .window_bytes = 4 << 20,
        .halt_ns = UINT64_MAX,
        .messages = 60,
        .size_max = 300000,
        .outstanding = 16,
        .send_gap_ns = 20 * NS_PER_US,
        .recv_gap_ns = 20 * NS_PER_US,
        .recv_late_ns = 2 * NS_PER_MS,
        .close_after_ns = 5 * NS_PER_MS,
        .linger_ns = UINT64_C(20000) * NS_PER_MS,
        .limit_ns = UINT64_C(120000) * NS_PER_MS,
    };
    for (unsigned i = 0; i < 2; i++)
        options->net[i] = (struct net){.delay_ns = 20 * NS_PER_US, .jitter_ns = 5 * NS_PER_US, .rate_mbps = 40000};
}

/* Applies to both directions. */
#define EACH_NET(options, net) for (struct net *net = (options)->net; net < (options)->net + 2; net++)

static void set_loss(struct options *options, unsigned ppm)
{
    EACH_NET(options, net)
    net->loss_ppm = ppm;
}

/* Each direction loses none, or `ppm`, or a multiple of that below `count`. */
static void draw_loss(struct options *options, struct rng *rng, unsigned count, unsigned ppm)
{
    EACH_NET(options, net)
    net->loss_ppm = rng_below(rng, count) * ppm;
}

static void set_clean(struct options *options, struct rng *rng)
{
    if (rng_below(rng, 2)) { /* many messages at once */
        options->send_gap_ns = options->recv_gap_ns = 0;
        options->outstanding = 2000;
    }
    options->paths_in_order = rng_below(rng, 2);
}

static void set_loss1(struct options *options, struct rng *rng)
{
    set_loss(options, 10000);
    options->paths_in_order = rng_below(rng, 2);
}

static void set_loss5(struct options *options, struct rng *rng)
{
    (void)rng;
    set_loss(options, 50000);
}

static void set_loss30(struct options *options, struct rng *rng)
{
    (void)rng;
    set_loss(options, 300000);
    options->size_max = 50000;
    options->messages = 30;
}

static void set_burst(struct options *options, struct rng *rng)
{
    EACH_NET(options, net)
    {
        net->burst_ppm = 1000;
        net->burst_ns = 1u << (14 + rng_below(rng, 10));
    }
}

static void set_reorder(struct options *options, struct rng *rng)
{
    EACH_NET(options, net)
    {
        net->reorder_ppm = 50000;
        net->reorder_ns = 1u << (15 + rng_below(rng, 6));
    }
}

static void set_dup(struct options *options, struct rng *rng)
{
    set_reorder(options, rng);
    EACH_NET(options, net)
    net->duplicate_ppm = 100000;
}

static void set_corrupt(struct options *options, struct rng *rng)
{
    (void)rng;
    EACH_NET(options, net)
    {
        net->corrupt_ppm = 20000;
        net->truncate_ppm = 10000;
    }
}

static void set_payload_crc(struct options *options, struct rng *rng)
{
    set_corrupt(options, rng);
    options->params.payload_crc = true;
    options->size_max = 150000;
}

static void set_blackhole(struct options *options, struct rng *rng)
{
    unsigned from = rng_below(rng, 3); /* either direction, or both */
    options->no_hole = true;
    for (unsigned i = 0; i < 2; i++) {
        if (from != !i) {
            options->net[i].black_from_ns = rng_below(rng, 5 * NS_PER_MS);
            options->net[i].black_until_ns = options->net[i].black_from_ns + rng_below(rng, 3000u * NS_PER_MS);
        }
    }
}

static void set_oneway_dead(struct options *options, struct rng *rng)
{
    struct net *net = &options->net[rng_below(rng, 2)];
    net->black_from_ns = rng_below(rng, 5 * NS_PER_MS);
    net->black_until_ns = UINT64_MAX;
    options->params.dead_peer_ms = 500;
    options->expect_dead = true;
}

static void set_dead_path(struct options *options, struct rng *rng)
{
    options->params.path_policy = rng_below(rng, 3);
    struct net *net = &options->net[rng_below(rng, 2)];
    net->dead_paths = 1u << rng_below(rng, 4);
}

static void set_slow_receiver(struct options *options, struct rng *rng)
{
    options->recv_gap_ns = 1u << (18 + rng_below(rng, 5));
    options->send_gap_ns = 0;
    options->outstanding = 64;
    options->messages = 100;
    options->size_max = 60000;
}

static void set_stall(struct options *options, struct rng *rng)
{
    options->stall_every_ns = 1u << (17 + rng_below(rng, 6));
    options->stall_ns = 1u << (17 + rng_below(rng, 8));
    /* Longer stalls are taken for a queue, as is a long way: chunks of a KiB would go one by one, 20 ms apart. */
    options->same_rate = options->stall_ns > 4u * NS_PER_MS;
    draw_loss(options, rng, 2, 5000);
}

static void set_tiny_window(struct options *options, struct rng *rng)
{
    options->chunk_window = 64;
    options->msg_window = 16;
    options->eager_window_kb = 128;
    options->window_bytes = 1024u << rng_below(rng, 8);
    options->outstanding = 40;
    options->params.tx_buffers = 4;
    options->params.tx_small_buffers = 64;
    options->params.chunk_size_kb = 1u << rng_below(rng, 7);
    options->params.eager_kb = 64 >> rng_below(rng, 7);
    options->size_max = 100000;
    draw_loss(options, rng, 2, 20000);
}

static void set_few_buffers(struct options *options, struct rng *rng)
{
    options->params.tx_buffers = 4;
    options->params.tx_small_buffers = 64;
    options->conns = 100;
    options->messages = 20;
    options->size_max = 10000;
    options->send_gap_ns = options->recv_gap_ns = 0;
    options->ends = 2 + rng_below(rng, 4);
    options->conns = 120 / options->ends;
    draw_loss(options, rng, 2, 20000);
}

static void set_mtu512(struct options *options, struct rng *rng)
{
    set_reorder(options, rng);
    options->datagram_bytes = 512;
    options->params.port_entropy = 32;
    set_loss(options, 20000);
}

static void set_lo(struct options *options, struct rng *rng)
{
    options->datagram_bytes = 65472;
    options->size_max = 2000000;
    options->messages = 25;
    draw_loss(options, rng, 2, 20000);
}

static void set_jumbo(struct options *options, struct rng *rng)
{
    options->datagram_bytes = 8972 - rng_below(rng, 1000);
    options->size_max = 1000000;
    draw_loss(options, rng, 2, 20000);
}

static void set_mtu_change(struct options *options, struct rng *rng)
{
    options->datagram_bytes = 512 + rng_below(rng, 9000);
    options->datagram_bytes_later = 512 + rng_below(rng, 9000);
    options->change_datagram_ns = rng_below(rng, 5 * NS_PER_MS);
    set_loss(options, 10000);
}

/* Large datagrams vanish, in one direction or both: from the beginning, or after a while, and perhaps not for ever. */
static void set_mtu_hole(struct options *options, struct rng *rng)
{
    static const uint32_t sizes[] = {1472, 4096, 8972, 65472};
    unsigned from = rng_below(rng, 3);
    bool later = rng_below(rng, 2), heals = rng_below(rng, 2);
    options->datagram_bytes = sizes[rng_below(rng, 4)];
    options->size_max = 1u << (14 + rng_below(rng, 7));
    options->cancel_permille = rng_below(rng, 2) * 100;
    options->params.payload_crc = rng_below(rng, 2);
    options->tx_fail_ppm = rng_below(rng, 2) * 100000;
    options->messages = 40;
    options->send_gap_ns = 1000u * NS_PER_US;
    options->close_after_ns = 1 + rng_below(rng, 2) * 3000ull * NS_PER_MS;
    for (unsigned i = 0; i < 2; i++) {
        struct net *net = &options->net[i];
        uint64_t begin_ns = later ? rng_below(rng, 15 * NS_PER_MS) : 0;
        uint64_t length_ns = rng_below(rng, 500u * NS_PER_MS);
        net->loss_ppm = rng_below(rng, 2) * 10000;
        net->duplicate_ppm = net->reorder_ppm = rng_below(rng, 2) * 20000;
        net->reorder_ns = 50 * NS_PER_US;
        if (from == !i)
            continue;
        net->hole_bytes = CORE_DATAGRAM_BASE + rng_below(rng, options->datagram_bytes - CORE_DATAGRAM_BASE);
        net->hole_from_ns = begin_ns;
        net->hole_until_ns = heals ? begin_ns + length_ns : UINT64_MAX;
    }
    options->limit_ns = UINT64_C(8000) * NS_PER_MS;
}

static void set_large(struct options *options, struct rng *rng)
{
    options->conns = 1;
    options->messages = 6;
    options->size_max = 4 << 20;
    draw_loss(options, rng, 2, 2000);
}

static void set_many_conns(struct options *options, struct rng *rng)
{
    options->conns = 200;
    options->messages = 6;
    options->size_max = 20000;
    options->msg_window = 64;
    draw_loss(options, rng, 2, 10000);
}

static void set_incast(struct options *options, struct rng *rng)
{
    options->ends = 6;
    options->conns = 2;
    options->messages = 30;
    options->size_max = 200000;
    EACH_NET(options, net)
    {
        net->rate_mbps = 1000 << rng_below(rng, 4);
        net->queue_bytes = 100000;
    }
}

static void set_congested(struct options *options, struct rng *rng)
{
    options->conns = 2;
    options->messages = 30;
    EACH_NET(options, net)
    {
        net->rate_mbps = 10 << rng_below(rng, 8);
        net->queue_bytes = 20000 << rng_below(rng, 5);
        net->delay_ns = 1u << (13 + rng_below(rng, 10));
        net->ce_ppm = 20000;
    }
}

static void set_timely(struct options *options, struct rng *rng)
{
    set_congested(options, rng);
    options->params.cc = CC_TIMELY;
}

static void set_eqds(struct options *options, struct rng *rng)
{
    if (rng_below(rng, 2))
        set_incast(options, rng);
    else
        set_congested(options, rng);
    options->params.cc = CC_EQDS;
    options->params.speculate_kb = 1u << rng_below(rng, 9);
    draw_loss(options, rng, 3, 20000);
}

static void set_truncation(struct options *options, struct rng *rng)
{
    options->truncate_permille = 300;
    draw_loss(options, rng, 2, 20000);
    if (rng_below(rng, 2))
        options->eager_kb_of_last = rng_below(rng, 65);
}

static void set_cancel(struct options *options, struct rng *rng)
{
    options->cancel_permille = 100 + rng_below(rng, 800);
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->messages = 120;
    if (rng_below(rng, 2))
        options->msg_window = 16;
    EACH_NET(options, net)
    {
        net->loss_ppm = rng_below(rng, 2) * 20000;
        net->reorder_ppm = 20000;
        net->reorder_ns = NS_PER_MS;
    }
}

static void set_cancel_eager(struct options *options, struct rng *rng)
{
    set_cancel(options, rng);
    options->messages = 400;
    options->size_max = options->params.eager_kb * 1024;
    options->eager_window_kb = 128;
    options->outstanding = 1 + rng_below(rng, 100);
}

static void set_close(struct options *options, struct rng *rng)
{
    options->close_early = true;
    options->cancel_permille = rng_below(rng, 2) * 100;
    options->linger_ns = rng_below(rng, 2) ? options->linger_ns : rng_below(rng, 5 * NS_PER_MS);
    options->conns = 12;
    EACH_NET(options, net)
    {
        net->loss_ppm = rng_below(rng, 2) * 30000;
        net->reorder_ppm = 20000;
        net->reorder_ns = NS_PER_MS;
    }
}

static void set_dead_peer(struct options *options, struct rng *rng)
{
    options->ends = 2 + rng_below(rng, 3);
    options->params.dead_peer_ms = 50 + rng_below(rng, 2000);
    options->halt_ns = rng_below(rng, 20 * NS_PER_MS);
    options->expect_dead = true;
    options->close_early = rng_below(rng, 2);
    draw_loss(options, rng, 2, 20000);
}

/* In front of one end or both. Where the peer's ports are few, all are opened; the others are found to be closed, and
 * asked seldom. */
static void set_firewalls(struct options *options, struct rng *rng)
{
    uint32_t which = 1 + rng_below(rng, 3);
    options->params.path_policy = rng_below(rng, 3);
    options->params.port_entropy = UINT64_C(1) << 2 * rng_below(rng, 3);
    options->size_max = 300000;
    EACH_NET(options, net)
    {
        net->firewall = which >> (net - options->net) & 1;
        net->loss_ppm = rng_below(rng, 2) * 20000;
    }
    options->refused_permille = 30;
}

/* Only the pair of ports that the handshake tells is open, and more are told than there are. */
static void set_closed_paths(struct options *options, struct rng *rng)
{
    set_firewalls(options, rng);
    options->params.port_entropy = 17 + rng_below(rng, 48);
    options->params.dead_peer_ms = 2000;
    options->refused_permille = 0;
    options->refused_chunks = 1;
}

static void set_policy_rr(struct options *options, struct rng *rng)
{
    set_loss1(options, rng);
    options->params.path_policy = PATH_RR;
    options->params.port_entropy = 1 + rng_below(rng, 256);
}

static void set_policy_pow2(struct options *options, struct rng *rng)
{
    set_loss1(options, rng);
    options->params.path_policy = PATH_POW2;
    options->params.port_entropy = 1 + rng_below(rng, 256);
}

static void set_self(struct options *options, struct rng *rng)
{
    set_clean(options, rng);
    options->ends = 1;
    draw_loss(options, rng, 2, 20000);
}

static void set_tx_failed(struct options *options, struct rng *rng)
{
    options->tx_fail_ppm = 200000;
    draw_loss(options, rng, 2, 20000);
}

static void set_long_way(struct options *options, struct rng *rng)
{
    options->same_rate = true; /* so much delay is taken for a queue: a quarter of a chunk goes in a round trip */
    EACH_NET(options, net)
    {
        net->delay_ns = 5u * NS_PER_MS + rng_below(rng, 100 * NS_PER_MS);
        net->jitter_ns = 1 + rng_below(rng, 10 * NS_PER_MS);
        net->rate_mbps = 1000;
        net->loss_ppm = rng_below(rng, 2) * 2000;
    }
    options->recv_late_ns = 500 * NS_PER_MS;
}

static void set_idle(struct options *options, struct rng *rng)
{
    options->messages = 12;
    options->size_max = 100000;
    options->params.dead_peer_ms = 100;
    options->send_gap_ns = 1000u * NS_PER_MS;
    options->recv_gap_ns = 100u * NS_PER_MS;
    options->close_after_ns = 1000u * NS_PER_MS;
    draw_loss(options, rng, 2, 10000);
}

static void set_no_eager(struct options *options, struct rng *rng)
{
    options->params.eager_kb = rng_below(rng, 2) * 64;
    options->eager_kb_of_last = rng_below(rng, 2) ? UINT64_MAX : 0;
    options->params.ack_delay_us = rng_below(rng, 2) * 500;
    options->params.ack_every = 1 + rng_below(rng, 64);
    draw_loss(options, rng, 2, 10000);
}

static void set_wrap(struct options *options, struct rng *rng)
{
    options->wrap = true;
    options->messages = 400;
    options->size_max = 30000;
    options->eager_window_kb = 128;
    options->msg_window = 16u << rng_below(rng, 6);
    options->chunk_window = 64u << rng_below(rng, 4);
    options->cancel_permille = rng_below(rng, 2) * 100;
    draw_loss(options, rng, 2, 20000);
}

/* All at once. */
static void set_storm(struct options *options, struct rng *rng)
{
    set_tiny_window(options, rng);
    set_reorder(options, rng);
    options->ends = 2 + rng_below(rng, 2);
    options->datagram_bytes = 512 + rng_below(rng, 3000);
    options->params.path_policy = rng_below(rng, 3);
    options->params.cc = rng_below(rng, 3);
    options->params.payload_crc = rng_below(rng, 2);
    options->close_early = rng_below(rng, 2);
    options->cancel_permille = rng_below(rng, 200);
    options->truncate_permille = rng_below(rng, 200);
    options->tx_fail_ppm = rng_below(rng, 50000);
    options->stall_every_ns = 1u << (20 + rng_below(rng, 5));
    options->stall_ns = 1u << (17 + rng_below(rng, 6));
    EACH_NET(options, net)
    {
        net->loss_ppm = rng_below(rng, 60000);
        net->burst_ppm = rng_below(rng, 500);
        net->burst_ns = 1u << (14 + rng_below(rng, 10));
        net->duplicate_ppm = rng_below(rng, 50000);
        net->corrupt_ppm = rng_below(rng, 20000);
        net->truncate_ppm = rng_below(rng, 20000);
        net->ce_ppm = rng_below(rng, 20000);
    }
}

/* What goes on while ends stop and continue. */
static void set_any(struct options *options, struct rng *rng)
{
    static const set_fn sets[] = {set_clean,       set_loss1,         set_reorder,    set_corrupt,      set_few_buffers,
                                  set_mtu512,      set_incast,        set_truncation, set_cancel_eager, set_close,
                                  set_policy_pow2, set_wrap,          set_eqds,       set_tx_failed,    set_no_eager,
                                  set_cancel,      set_slow_receiver, set_many_conns};
    sets[rng_below(rng, sizeof sets / sizeof *sets)](options, rng);
}

static void set_stops(struct options *options, struct rng *rng)
{
    set_any(options, rng);
    stops_below(options, rng);
}

static void set_stops_dead(struct options *options, struct rng *rng)
{
    set_any(options, rng);
    stops_above(options, rng);
}

static void set_stops_together(struct options *options, struct rng *rng)
{
    set_any(options, rng);
    stops_together(options, rng);
}

static void set_stops_probes(struct options *options, struct rng *rng)
{
    set_any(options, rng);
    stops_probes(options, rng);
}

static void play(const struct scenario *scenario, uint64_t seed, bool may_differ, bool print_trace,
                 struct run_result *result)
{
    static struct options options;
    static struct world world;
    struct rng rng = {seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
    set_defaults(&options);
    ((set_fn)scenario->set)(&options, &rng);
    options.unequal = may_differ && unequal_seed(&rng);
    world_create(&world, scenario->name, &options, seed, print_trace);
    world_run(&world);
    *result = (struct run_result){.hash = world.trace.hash,
                                  .sim_ns = world.now_ns - world.start_ns,
                                  .messages = world.requests_ended / 2,
                                  .bytes = world.bytes_moved / 2,
                                  .datagrams = world.datagrams,
                                  .faults = world.faults};
}

static void run(const struct scenario *scenario, uint64_t seed, bool print_trace, struct run_result *result)
{
    play(scenario, seed, true, print_trace, result);
}

/* What is bounded depends on parameters: the ends have the same. */
static void run_bounded(const struct scenario *scenario, uint64_t seed, bool print_trace, struct run_result *result)
{
    play(scenario, seed, false, print_trace, result);
}

#define SCENARIO(name, set)                                                                                            \
    {                                                                                                                  \
        name, run, (void (*)(void))(set)                                                                               \
    }
#define BOUNDED(name, set)                                                                                             \
    {                                                                                                                  \
        name, run_bounded, (void (*)(void))(set)                                                                       \
    }

static const struct scenario scenarios[] = {
    SCENARIO("clean", set_clean),
    SCENARIO("pipes", pipes_alone),
    SCENARIO("pipes-beside", pipes_beside),
    SCENARIO("pipes-beside-nics", pipes_beside_nics),
    BOUNDED("pipes-again", pipes_again),
    BOUNDED("pipes-tangle", pipes_tangle),
    SCENARIO("pipes-wanted", pipes_wanted),
    SCENARIO("pipes-rails", pipes_rails),
    SCENARIO("loss1", set_loss1),
    SCENARIO("loss5", set_loss5),
    SCENARIO("loss30", set_loss30),
    SCENARIO("burst", set_burst),
    SCENARIO("reorder", set_reorder),
    SCENARIO("dup", set_dup),
    SCENARIO("corrupt", set_corrupt),
    SCENARIO("payload-crc", set_payload_crc),
    SCENARIO("blackhole", set_blackhole),
    SCENARIO("oneway-dead", set_oneway_dead),
    SCENARIO("dead-path", set_dead_path),
    SCENARIO("firewalls", set_firewalls),
    SCENARIO("closed-paths", set_closed_paths),
    SCENARIO("slow-receiver", set_slow_receiver),
    SCENARIO("stall", set_stall),
    SCENARIO("tiny-window", set_tiny_window),
    SCENARIO("few-buffers", set_few_buffers),
    SCENARIO("mtu512", set_mtu512),
    SCENARIO("lo", set_lo),
    SCENARIO("jumbo", set_jumbo),
    SCENARIO("mtu-change", set_mtu_change),
    SCENARIO("mtu-hole", set_mtu_hole),
    SCENARIO("large", set_large),
    SCENARIO("many-conns", set_many_conns),
    SCENARIO("incast", set_incast),
    SCENARIO("congested", set_congested),
    SCENARIO("timely", set_timely),
    SCENARIO("eqds", set_eqds),
    SCENARIO("truncation", set_truncation),
    SCENARIO("cancel", set_cancel),
    SCENARIO("cancel-eager", set_cancel_eager),
    SCENARIO("close", set_close),
    SCENARIO("dead-peer", set_dead_peer),
    SCENARIO("rr", set_policy_rr),
    SCENARIO("pow2", set_policy_pow2),
    SCENARIO("self", set_self),
    SCENARIO("tx-failed", set_tx_failed),
    SCENARIO("long-way", set_long_way),
    SCENARIO("idle", set_idle),
    SCENARIO("no-eager", set_no_eager),
    SCENARIO("wrap", set_wrap),
    SCENARIO("storm", set_storm),
    SCENARIO("rails-calm", rails_calm),
    BOUNDED("rails-shares", rails_shares),
    BOUNDED("rails-cuts", rails_cuts),
    BOUNDED("rails-crosswise", rails_crosswise),
    BOUNDED("rails-oneway", rails_oneway),
    BOUNDED("rails-tangle", rails_tangle),
    BOUNDED("rails-tangle-stops", rails_tangle_stops),
    BOUNDED("rails-flaps", rails_flaps),
    SCENARIO("rails-cold", rails_cold),
    BOUNDED("rails-late", rails_late),
    SCENARIO("rails-sizes", rails_sizes),
    BOUNDED("rails-dead", rails_dead),
    SCENARIO("rails-placing", rails_placing),
    SCENARIO("rails-storm", rails_storm),
    BOUNDED("needless", bounds_needless),
    BOUNDED("lone", bounds_lone),
    BOUNDED("bulk", bounds_bulk),
    BOUNDED("overtaking", bounds_reorder),
    BOUNDED("silence", bounds_silence),
    BOUNDED("outages", bounds_outages),
    BOUNDED("dead-path-bounds", bounds_dead_path),
    BOUNDED("crawl", bounds_crawl),
    BOUNDED("strays", bounds_strays),
    BOUNDED("narrow", bounds_narrow),
    BOUNDED("empty", bounds_empty),
    BOUNDED("stopped-peers", bounds_stopped),
    BOUNDED("stopped-many", bounds_stopped_many),
    BOUNDED("stops", set_stops),
    BOUNDED("stops-dead", set_stops_dead),
    BOUNDED("stops-together", set_stops_together),
    BOUNDED("stops-probes", set_stops_probes),
    SCENARIO("placing-clean", placing_clean),
    SCENARIO("placing-loss", placing_loss),
    SCENARIO("placing-silent", placing_silent),
    SCENARIO("placing-late", placing_late),
    SCENARIO("placing-cancel", placing_cancel),
    SCENARIO("placing-close", placing_close),
    SCENARIO("placing-fail", placing_fail),
    SCENARIO("placing-drain", placing_drain),
    SCENARIO("placing-oneway", placing_oneway),
    SCENARIO("placing-reorder", placing_reorder),
    SCENARIO("placing-reliable", placing_reliable),
    SCENARIO("placing-dead-peer", placing_dead_peer),
    SCENARIO("placing-orphan", placing_orphan),
    SCENARIO("placing-tiny", placing_tiny),
    SCENARIO("placing-storm", placing_storm),
};

unsigned core_scenarios(const struct scenario **out)
{
    *out = scenarios;
    return sizeof scenarios / sizeof scenarios[0];
}
