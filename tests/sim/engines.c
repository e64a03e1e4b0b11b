/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of whole engines: what networks, machines and applications may do to them. */
#include "../lies.h"
#include "../param_defaults.h"
#include "cluster.h"
#include "core/units.h"
#include "scenarios.h"
#include "service.h"
#include "unequal.h"

typedef void (*set_fn)(struct cluster_options *options, struct rng *rng);

static void set_defaults(struct cluster_options *options, struct rng *rng)
{
    *options = (struct cluster_options){
        .params = param_defaults(),
        .mixed = true,
        .nodes = 2 + rng_below(rng, 2),
        .workers = 2,
        .pattern = PATTERN_CHAIN,
        .sessions = 2,
        .fabric = {.host_mbps = 40000,
                   .queue_bytes = 1000000,
                   .ecn_bytes = 500000,
                   .delay_ns = 5 * NS_PER_US,
                   .jitter_ns = 2 * NS_PER_US},
        .nic = {.datagram_bytes = 1472, .rx_bytes = 4 << 20, .gro = rng_below(rng, 2)},
        .sockets = {.delay_ns = 20 * NS_PER_US},
        .messages = 40,
        .size_max = 200000,
        .outstanding = 16,
        .device = {.latency_ns = 20 * NS_PER_US, .mbps = 100000},
        .post_gap_ns = 20 * NS_PER_US,
        .recv_gap_ns = 20 * NS_PER_US,
        .events = rng_below(rng, 2),
        .preempt_every = rng_below(rng, 2) * 200,
        .preempt_ns = 20 * NS_PER_US,
    };
    struct params *params = &options->params;
    params->backend = BACKEND_UDP; /* whose place nic_sim.c takes */
    params->num_engines = 2;
    params->spin_us = 5;
    params->lend = LEND_NO;
    params->max_requests = 1024;
    params->tx_buffers = 16;
    params->tx_small_buffers = 128;
    params->dead_peer_ms = 3000;
    params->linger_ms = 5000;
    params->log_level = 0;
}

static void set_clean(struct cluster_options *options, struct rng *rng)
{
    options->meets_once = true;
    options->nic.in_place = rng_below(rng, 2);
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
}

static void set_loss(struct cluster_options *options, struct rng *rng)
{
    options->fabric.loss_ppm = 1000u << rng_below(rng, 7);
    options->fabric.burst_ppm = rng_below(rng, 2) * 500;
    options->fabric.burst_ns = 1u << (14 + rng_below(rng, 9));
    options->nic.in_place = rng_below(rng, 2);
}

static void set_reorder(struct cluster_options *options, struct rng *rng)
{
    options->fabric.reorder_ppm = 50000;
    options->fabric.reorder_ns = 1u << (14 + rng_below(rng, 7));
    options->fabric.duplicate_ppm = 50000;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->nic.in_place = rng_below(rng, 2);
}

static void set_corrupt(struct cluster_options *options, struct rng *rng)
{
    options->fabric.corrupt_ppm = 20000;
    options->fabric.truncate_ppm = 10000;
    options->params.payload_crc = rng_below(rng, 2);
}

/* Threads that share one engine, kept from running at any moment. */
static void set_lend(struct cluster_options *options, struct rng *rng)
{
    options->meets_once = true;
    options->mixed = false;
    options->params.num_engines = 1 + rng_below(rng, 2);
    options->params.lend = LEND_YES;
    options->params.spin_us = rng_below(rng, 2) ? rng_below(rng, 20) : 0;
    options->workers = WORKERS_MAX;
    options->sessions = 3;
    options->preempt_every = 4u << rng_below(rng, 8);
    options->preempt_ns = 1u << (10 + rng_below(rng, 8));
    options->size_max = 60000;
    options->recv_gap_ns = options->post_gap_ns = 1u << (12 + rng_below(rng, 10));
}

static void set_preempt(struct cluster_options *options, struct rng *rng)
{
    options->workers = WORKERS_MAX;
    options->preempt_every = 1u << rng_below(rng, 6);
    options->preempt_ns = 1u << (8 + rng_below(rng, 12));
    options->size_max = 60000;
    options->messages = 20;
}

static void set_stripes(struct cluster_options *options, struct rng *rng)
{
    options->params.num_engines = 2 + rng_below(rng, 3);
    options->params.stripe_min_kb = 64;
    options->size_max = 700000;
    options->messages = 16;
    options->fabric.loss_ppm = rng_below(rng, 2) * 5000;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->cancel_permille = rng_below(rng, 2) * 300;
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
    if (rng_below(rng, 2))
        options->preempt_ns = 1u << (14 + rng_below(rng, 8));
}

/* Commands between engine threads find full rings, and the threads are slow to empty them. */
static void set_stripes_full(struct cluster_options *options, struct rng *rng)
{
    options->mixed = false;
    options->nodes = 2;
    options->params.num_engines = 2 + rng_below(rng, 3);
    options->params.lend = rng_below(rng, 2) ? LEND_YES : LEND_NO;
    options->params.stripe_min_kb = 64;
    options->params.ring_entries = 16;
    options->params.max_requests = 4096;
    options->outstanding = 60;
    options->messages = 60;
    options->size_max = 150000;
    options->size_min = 66000;
    options->nic.datagram_bytes = 8972;
    options->post_gap_ns = options->recv_gap_ns = 0;
    options->preempt_every = 8u << rng_below(rng, 6);
    options->preempt_ns = 1u << (14 + rng_below(rng, 6));
    options->cancel_permille = rng_below(rng, 2) * 500;
    options->close_early = rng_below(rng, 3) == 0;
}

/* Rings and pools that are full all the time. */
static void set_full(struct cluster_options *options, struct rng *rng)
{
    options->params.ring_entries = 16;
    options->params.max_requests = 24 + rng_below(rng, 48);
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->params.stripe_min_kb = 64;
    /* of each of up to four connections: receives that wait leave requests to send with */
    options->outstanding = (unsigned)options->params.max_requests / 5;
    options->messages = 80;
    options->post_gap_ns = options->recv_gap_ns = 0;
    options->size_max = 150000;
    options->cancel_permille = rng_below(rng, 2) * 200;
}

static void set_cancel(struct cluster_options *options, struct rng *rng)
{
    options->cancel_permille = 100 + rng_below(rng, 700);
    options->workers = 1 + rng_below(rng, WORKERS_MAX);
    options->preempt_every = 8u << rng_below(rng, 8);
    options->preempt_ns = 1u << (12 + rng_below(rng, 7));
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->params.stripe_min_kb = 64;
}

static void set_close(struct cluster_options *options, struct rng *rng)
{
    options->close_early = true;
    options->sessions = 4;
    options->cancel_permille = rng_below(rng, 2) * 100;
    options->params.stripe_min_kb = 64;
    options->params.linger_ms = rng_below(rng, 2) ? 5000 : rng_below(rng, 10);
    options->fabric.loss_ppm = rng_below(rng, 2) * 20000;
}

static struct outage *add_outage(struct cluster_options *options, struct rng *rng, uint64_t longest_ns)
{
    struct outage *outage = &options->fabric.outages[options->fabric.outage_count++];
    uint64_t begin_ns = rng_below(rng, 20u * NS_PER_MS);
    uint64_t end_ns = begin_ns + rng_below(rng, (uint32_t)longest_ns);
    *outage = (struct outage){
        .from = FABRIC_ANY, .to = FABRIC_ANY, .path = FABRIC_ANY, .begin_ns = begin_ns, .end_ns = end_ns};
    return outage;
}

/*
 * Aborts amid messages, whose last words are lost: the peer goes on talking to a connection that is no more. An abort
 * is over when nothing of it has been acked for a fifth of a second.
 */
static void set_abort(struct cluster_options *options, struct rng *rng)
{
    options->close_early = options->abort_early = true;
    options->nodes = 2;
    options->sessions = 8;
    options->messages = 200;
    options->size_max = 1u << (6 + rng_below(rng, 12));
    options->outstanding = 32;
    options->post_gap_ns = options->recv_gap_ns = 1u << (16 + rng_below(rng, 5));
    options->params.stripe_min_kb = 16;
    options->params.num_engines = 1 + rng_below(rng, 2);
    options->params.linger_ms = rng_below(rng, 10);
    options->fabric.loss_ppm = rng_below(rng, 2) * 20000;
    for (unsigned i = 1 + rng_below(rng, 4); i > 0; i--) {
        struct outage *outage = add_outage(options, rng, 1);
        outage->from = (uint16_t)rng_below(rng, 2);
        outage->to = !outage->from;
        outage->end_ns = outage->begin_ns + 200u * NS_PER_MS + rng_below(rng, 500u * NS_PER_MS);
    }
}

/* Firewalls at either end or at both; where the paths are few, and where there are more than ports are told of. */
static void set_firewalls(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 2 + rng_below(rng, 2);
    options->guarded = 1 + rng_below(rng, (1u << options->nodes) - 1);
    options->params.path_policy = rng_below(rng, 3);
    options->params.port_entropy = UINT64_C(1) << rng_below(rng, 6);
    options->fabric.loss_ppm = rng_below(rng, 2) * 20000;
    options->sessions = 1 + rng_below(rng, 3);
    options->post_gap_ns = rng_below(rng, 4) ? options->post_gap_ns : 200u * NS_PER_MS;
}

static void set_crash(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 2 + rng_below(rng, 3);
    options->pattern = rng_below(rng, 2) ? PATTERN_ALL : PATTERN_CHAIN;
    options->sessions = 1 + rng_below(rng, 2);
    options->params.dead_peer_ms = 50 + rng_below(rng, 400);
    options->crashes = 1 + rng_below(rng, CRASHES_MAX);
    options->crash_ns = 1u << (20 + rng_below(rng, 9));
    options->down_ns = 1u << (10 + rng_below(rng, 20));
    options->post_gap_ns = options->recv_gap_ns = NS_PER_MS;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->fabric.duplicate_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ns = 50u * NS_PER_MS; /* what the old life sent meets the new one */
}

/* Of one path. The draws have an order. */
static void add_path_outage(struct cluster_options *options, struct rng *rng, uint64_t longest_ns)
{
    struct outage *outage = add_outage(options, rng, longest_ns);
    outage->path = (uint16_t)rng_below(rng, 4);
}

/* Paths, directions and hosts that die and come back. */
static void set_outages(struct cluster_options *options, struct rng *rng)
{
    options->messages = 80;
    options->post_gap_ns = options->recv_gap_ns = 500u * NS_PER_US;
    for (unsigned i = 1 + rng_below(rng, 6); i > 0; i--) {
        struct outage *outage = add_outage(options, rng, 300u * NS_PER_MS);
        unsigned kind = rng_below(rng, 4);
        if (kind != 1)
            outage->from = (uint16_t)rng_below(rng, options->nodes);
        if (kind != 2)
            outage->to = (uint16_t)rng_below(rng, options->nodes);
        if (kind == 3) {
            outage->path = (uint16_t)rng_below(rng, 4);
            outage->end_ns += 1000u * NS_PER_MS;
        }
    }
}

/* Any node stops and continues, any time; more is drawn. `parts`: the longest stop, in tenths of the dead-peer time. */
static void use_stops(struct cluster_options *options, struct rng *rng, unsigned parts)
{
    enum { DRIFT_PPM = 200 };
    options->pattern = rng_below(rng, 2) ? PATTERN_ALL : PATTERN_CHAIN;
    options->sessions = 1 + rng_below(rng, 2);
    options->params.dead_peer_ms = 200 + rng_below(rng, 600);
    options->params.linger_ms = 1000;
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->drift_ppm = DRIFT_PPM;
    options->stops = 1 + rng_below(rng, 4);
    options->stop_ns = options->params.dead_peer_ms * parts * (NS_PER_MS / 10);
    options->stop_gap_ns = options->params.dead_peer_ms * (NS_PER_MS / 2);
    options->post_gap_ns = options->recv_gap_ns = 2u << (20 + rng_below(rng, 5));
    options->cancel_permille = rng_below(rng, 2) * 100;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->close_early = rng_below(rng, 3) == 0;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    if (rng_below(rng, 2))
        set_lend(options, rng);
    options->meets_once = false; /* who was given up is met again */
}

/* Too short for anybody to be given up. */
static void set_node_stops(struct cluster_options *options, struct rng *rng)
{
    use_stops(options, rng, 7);
}

/* Who is given up, and lives, connects again. */
static void set_node_stops_dead(struct cluster_options *options, struct rng *rng)
{
    use_stops(options, rng, 30);
}

/* One direction between the first two nodes is gone for good. */
static void set_dead(struct cluster_options *options, struct rng *rng)
{
    options->expect_dead = true;
    options->params.dead_peer_ms = 50 + rng_below(rng, 400);
    struct outage *outage = add_outage(options, rng, 1);
    outage->from = (uint16_t)rng_below(rng, 2);
    outage->to = !outage->from;
    outage->end_ns = UINT64_MAX;
}

static void set_incast(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 5 + rng_below(rng, 12);
    options->pattern = PATTERN_STAR;
    options->sessions = 1;
    options->messages = 20;
    options->fabric.host_mbps = 1000u << rng_below(rng, 5);
    options->fabric.queue_bytes = 100000;
    options->fabric.ecn_bytes = 30000;
}

static void set_spines(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 8;
    options->pattern = PATTERN_ALL;
    options->sessions = 1;
    options->messages = 6;
    options->fabric.hosts_per_leaf = 2;
    options->fabric.spines = 2 + rng_below(rng, 3);
    options->fabric.spine_mbps = 10000;
    options->fabric.queue_bytes = 200000;
    options->fabric.ecn_bytes = 50000;
    options->params.path_policy = rng_below(rng, 3);
    add_path_outage(options, rng, 500u * NS_PER_MS);
}

static void set_many(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 40 + rng_below(rng, 160);
    options->pattern = rng_below(rng, 2) ? PATTERN_CHAIN : PATTERN_STAR;
    options->workers = 1;
    options->sessions = 1;
    options->messages = 6;
    options->size_max = 50000;
    options->params.num_engines = 1;
    options->fabric.loss_ppm = rng_below(rng, 2) * 5000;
    if (options->pattern == PATTERN_STAR)
        options->nodes /= 3;
}

static void set_mtu(struct cluster_options *options, struct rng *rng)
{
    options->nic.datagram_bytes = 512 + rng_below(rng, 9000);
    options->datagram_later_bytes = 512 + rng_below(rng, 9000);
    options->change_datagram_ns = 1 + rng_below(rng, 5 * NS_PER_MS);
    options->nic.in_place = rng_below(rng, 2);
    options->fabric.loss_ppm = rng_below(rng, 2) * 5000;
}

static void set_drift(struct cluster_options *options, struct rng *rng)
{
    options->drift_ppm = 1u << rng_below(rng, 15);
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->post_gap_ns = options->recv_gap_ns = 1u << (14 + rng_below(rng, 9));
}

static void set_handshakes(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 3 + rng_below(rng, 3);
    options->pattern = PATTERN_ALL;
    options->sessions = 6;
    options->messages = 4;
    options->size_max = 20000;
    options->sockets.silent_ppm = rng_below(rng, 2) * 200000;
    options->sockets.delay_ns = 1u << (10 + rng_below(rng, 14));
    options->params.connect_ms = 500;
    options->preempt_every = 20;
}

/* Listeners are closed in the middle of handshakes: whoever was told that it is connected learns that it is not. */
static void set_relisten(struct cluster_options *options, struct rng *rng)
{
    set_handshakes(options, rng);
    options->sockets.silent_ppm = 0;
    options->sockets.delay_ns = 1u << (14 + rng_below(rng, 8));
    options->params.connect_ms = 2000;
    options->relistens = 1 + rng_below(rng, 8);
}

/* Hosts with several addresses, some of which are other hosts' too, or lead nowhere. */
static void set_addresses(struct cluster_options *options, struct rng *rng)
{
    set_handshakes(options, rng);
    options->sockets.silent_ppm = 0;
    options->sockets.delay_ns = 1u << (10 + rng_below(rng, 14));
    options->params.connect_ms = 3000;
    options->several_addresses = true;
}

static void set_slow_receiver(struct cluster_options *options, struct rng *rng)
{
    options->recv_gap_ns = 1u << (18 + rng_below(rng, 5));
    options->post_gap_ns = 0;
    options->outstanding = 48;
    options->size_max = 60000;
    options->nic.rx_bytes = 100000u << rng_below(rng, 5);
}

static void set_refuse(struct cluster_options *options, struct rng *rng)
{
    options->nic.refuse_ppm = 200000;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
}

/* Sockets that are full for a time, and tell when they are no more. */
static void set_full_socket(struct cluster_options *options, struct rng *rng)
{
    options->nic.refuse_ppm = 1000u << rng_below(rng, 8);
    options->nic.full_ns = 100000u << rng_below(rng, 6);
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
}

static void set_self(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 1;
    options->pattern = PATTERN_SELF;
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
}

/* Logical GiB, without memory for them. */
static void set_huge(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 2;
    options->sessions = 1;
    options->mixed = false;
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->messages = 2;
    options->size_max = UINT64_C(300) << 20;
    options->size_min = 64 << 20;
    unsigned rare = rng_below(rng, 64);
    if (rare < 4) {
        options->messages = 1;
        options->size_min = options->size_max = (UINT64_C(1) << (rare ? 30 : 32)) + 5;
    }
    options->nic.datagram_bytes = 65472;
    options->fabric.host_mbps = 100000;
    options->nic.in_place = true;
    options->preempt_every = 0;
}

static void use_devices(struct cluster_options *options, struct rng *rng)
{
    options->device_permille = 300 + rng_below(rng, 700);
    options->device.latency_ns = 1u << (10 + rng_below(rng, 10));
    options->device.mbps = 1000u << rng_below(rng, 8);
    options->params.gpu_block_kb = 64u << rng_below(rng, 3);
    options->params.gpu_blocks = 8u << rng_below(rng, 3);
    options->params.gpu_streams = 1 + rng_below(rng, 3);
}

static void quick_devices(struct cluster_options *options)
{
    options->device.latency_ns = options->device.latency_ns % 10000 + 100;
    options->device.mbps += 10000;
}

/* Messages in memory that must be staged, in every state that requests end in. */
static void set_devices(struct cluster_options *options, struct rng *rng)
{
    use_devices(options, rng);
    options->params.lend = rng_below(rng, 2) ? LEND_YES : LEND_NO;
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->params.stripe_min_kb = 64;
    options->size_max = 700000;
    options->messages = 24;
    options->cancel_permille = rng_below(rng, 2) ? rng_below(rng, 500) : 0;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->close_early = rng_below(rng, 2);
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->nic.in_place = rng_below(rng, 2);
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 512 + rng_below(rng, 64000);
}

/* A NIC that reads and writes most of that memory by itself, over queue pairs that lose, fail and are cut off. */
static void use_direct(struct cluster_options *options, struct rng *rng)
{
    use_devices(options, rng);
    quick_devices(options);
    options->params.gdr_level = GDR_LEVEL_SYS; /* no topology is looked at */
    options->params.packet_lifetime_ms = 20;
    options->params.qp_retry_ms = 1;
    options->params.qp_depth = 64u << rng_below(rng, 3);
    options->nic.queue_pairs = true;
    options->nic.unreachable_permille = rng_below(rng, 2) ? rng_below(rng, 500) : 0;
    options->nic.open_fail_ppm = rng_below(rng, 2) * 100000;
    options->nic.fail_ppm = rng_below(rng, 2) ? 1000u << rng_below(rng, 6) : 0;
    options->nic.work_ns = 1u << (6 + rng_below(rng, 10));
    options->nic.drain_ns = 1u << (10 + rng_below(rng, 12));
    options->nic.datagram_bytes = 1024u << rng_below(rng, 3);
}

/* Large datagrams vanish, between any nodes: from the beginning or later, for a while or for ever. */
static void set_mtu_hole(struct cluster_options *options, struct rng *rng)
{
    static const uint32_t sizes[] = {1472, 4096, 8972, 65472};
    bool direct = rng_below(rng, 4) == 0;
    if (direct)
        use_direct(options, rng);
    else if (rng_below(rng, 2))
        use_devices(options, rng);
    options->nic.datagram_bytes = sizes[rng_below(rng, direct ? 2 : 4)];
    options->nic.in_place = rng_below(rng, 2);
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->params.stripe_min_kb = 64;
    options->params.payload_crc = rng_below(rng, 2);
    options->size_max = 1u << (16 + rng_below(rng, 5));
    options->post_gap_ns = options->recv_gap_ns = 1u << (14 + rng_below(rng, 7));
    options->cancel_permille = rng_below(rng, 2) * 200;
    options->fabric.loss_ppm = rng_below(rng, 2) * 5000;
    for (unsigned i = 1 + rng_below(rng, 3); i > 0; i--) {
        struct outage *outage = add_outage(options, rng, 1000u * NS_PER_MS);
        outage->passing_bytes = CORE_DATAGRAM_BASE + rng_below(rng, options->nic.datagram_bytes - CORE_DATAGRAM_BASE);
        if (rng_below(rng, 2))
            outage->begin_ns = 0;
        if (rng_below(rng, 2))
            outage->end_ns = UINT64_MAX;
        if (rng_below(rng, 2))
            outage->from = (uint16_t)rng_below(rng, options->nodes);
    }
}

static void set_direct(struct cluster_options *options, struct rng *rng)
{
    use_direct(options, rng);
    options->params.lend = rng_below(rng, 2) ? LEND_YES : LEND_NO;
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->size_max = 1u << (18 + rng_below(rng, 4));
    options->messages = 24;
    options->cancel_permille = rng_below(rng, 2) ? rng_below(rng, 500) : 0;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->close_early = rng_below(rng, 2);
    options->fabric.loss_ppm = rng_below(rng, 2) ? 1000u << rng_below(rng, 7) : 0; /* not `*`: that has no order */
    options->fabric.duplicate_ppm = rng_below(rng, 2) * 10000;
    options->fabric.reorder_ppm = rng_below(rng, 2) * 10000;
    options->fabric.reorder_ns = 1u << (14 + rng_below(rng, 6));
    for (unsigned i = rng_below(rng, 4); i > 0; i--)
        add_path_outage(options, rng, 100u * NS_PER_MS);
}

static void set_direct_crash(struct cluster_options *options, struct rng *rng)
{
    set_crash(options, rng);
    use_direct(options, rng);
    options->size_max = 700000;
    options->close_early = rng_below(rng, 2);
    options->cancel_permille = rng_below(rng, 2) * 100;
}

/* Processes die with copies under way, and come back. */
static void set_device_crash(struct cluster_options *options, struct rng *rng)
{
    set_crash(options, rng);
    use_devices(options, rng);
    options->params.stripe_min_kb = 64;
    quick_devices(options); /* who waits for its device longer than for a peer is called dead */
}

static void set_pipes(struct cluster_options *options, struct rng *rng)
{
    static const set_fn others[] = {set_clean, set_stripes, set_devices, set_cancel, set_close, set_lend, set_full};
    others[rng_below(rng, sizeof others / sizeof others[0])](options, rng);
    options->meets_once = false;
    use_pipes(options, rng);
}

static void set_pipes_crash(struct cluster_options *options, struct rng *rng)
{
    (rng_below(rng, 2) ? set_device_crash : set_crash)(options, rng);
    use_pipes(options, rng);
}

/* All at once. */
static void set_storm(struct cluster_options *options, struct rng *rng)
{
    set_crash(options, rng);
    if (rng_below(rng, 2)) {
        use_devices(options, rng);
        quick_devices(options);
    }
    options->pattern = PATTERN_ALL;
    options->workers = WORKERS_MAX;
    options->params.num_engines = 1 + rng_below(rng, 4);
    options->params.stripe_min_kb = 64;
    options->params.payload_crc = rng_below(rng, 2);
    options->params.path_policy = rng_below(rng, 3);
    options->params.cc = rng_below(rng, 3);
    options->preempt_every = 8u << rng_below(rng, 6);
    options->cancel_permille = rng_below(rng, 200);
    options->truncate_permille = rng_below(rng, 200);
    options->close_early = rng_below(rng, 2);
    options->drift_ppm = rng_below(rng, 1000);
    options->nic.refuse_ppm = rng_below(rng, 20000);
    options->nic.datagram_bytes = 512 + rng_below(rng, 9000);
    options->sockets.silent_ppm = rng_below(rng, 2) * 100000;
    options->fabric.loss_ppm = rng_below(rng, 40000);
    options->fabric.burst_ppm = rng_below(rng, 200);
    options->fabric.burst_ns = 1u << (14 + rng_below(rng, 8));
    options->fabric.corrupt_ppm = rng_below(rng, 10000);
    options->fabric.truncate_ppm = rng_below(rng, 10000);
}

/* One node of several lies to all others, and they must not notice it in what they have with each other. */
static void use_hostile(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 3 + rng_below(rng, 2);
    options->pattern = PATTERN_ALL;
    options->hostile = 1 + rng_below(rng, options->nodes);
    options->lies_permille = 1u << rng_below(rng, 10);
    options->lie_gap_ns = 1u << (14 + rng_below(rng, 7));
    options->messages = 24;
    options->habit = (uint8_t)(rng_below(rng, 2) ? rng_below(rng, LIAR_HABITS) : LIAR_HONEST);
    options->params.dead_peer_ms = 1000 + rng_below(rng, 2000);
    options->params.linger_ms = rng_below(rng, 200);
    options->params.payload_crc = rng_below(rng, 2);
    options->params.cc = rng_below(rng, 3);
    options->nic.in_place = rng_below(rng, 2);
    options->honest_ns = 1000u * NS_PER_MS;
}

static void set_hostile(struct cluster_options *options, struct rng *rng)
{
    use_hostile(options, rng);
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->cancel_permille = rng_below(rng, 2) * 200;
}

/* It knows parts, and the flows that carry them. */
static void set_hostile_stripes(struct cluster_options *options, struct rng *rng)
{
    use_hostile(options, rng);
    options->params.num_engines = 2 + rng_below(rng, 3);
    options->params.stripe_min_kb = 64;
    options->size_max = 700000;
    options->messages = 12;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->cancel_permille = rng_below(rng, 2) * 300;
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
}

static void set_hostile_loss(struct cluster_options *options, struct rng *rng)
{
    set_hostile_stripes(options, rng);
    options->fabric.loss_ppm = 1000u << rng_below(rng, 6);
    options->fabric.reorder_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ns = 1u << (14 + rng_below(rng, 6));
    options->fabric.duplicate_ppm = rng_below(rng, 2) * 20000;
    options->size_max = 300000;
}

/* Memory that is staged. */
static void set_hostile_devices(struct cluster_options *options, struct rng *rng)
{
    set_hostile_stripes(options, rng);
    use_devices(options, rng);
    quick_devices(options);
}

/* Its NIC writes where it was not granted to, under wrong names, and reads; what others grant and write it twists, too.
 */
static void set_hostile_direct(struct cluster_options *options, struct rng *rng)
{
    use_hostile(options, rng);
    use_direct(options, rng);
    options->nic.in_place = false;
    options->nic.open_fail_ppm = 0; /* how soon honest nodes are through is to depend on nothing but the hostile one */
    options->nic.fail_ppm = 0;
    options->nic.refusal_fails = rng_below(rng, 2);
    options->params.num_engines = 1 + rng_below(rng, 3);
    options->params.port_entropy = 1 + rng_below(rng, 4);
    options->params.grants = 16u << rng_below(rng, 3);
    options->size_max = 1u << (17 + rng_below(rng, 4));
    options->cancel_permille = rng_below(rng, 2) * 300;
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->fabric.loss_ppm = rng_below(rng, 2) * 2000;
}

static void set_hostile_pipes(struct cluster_options *options, struct rng *rng)
{
    static const set_fn others[] = {set_hostile, set_hostile_stripes, set_hostile_devices};
    others[rng_below(rng, 3)](options, rng);
    use_pipes(options, rng);
    options->honest_ns = 0;
}

static void run(const struct scenario *scenario, uint64_t seed, bool print_trace, struct run_result *result)
{
    struct cluster_options options;
    struct cluster_result cluster_result;
    struct rng rng = {seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
    set_defaults(&options, &rng);
    ((set_fn)scenario->set)(&options, &rng);
    options.unequal = unequal_seed(&rng);
    if (print_trace)
        options.params.log_level = UCCL_LOG_DEBUG;
    cluster_run(&options, seed, print_trace, &cluster_result);
    *result = (struct run_result){.hash = cluster_result.hash,
                                  .sim_ns = cluster_result.sim_ns,
                                  .messages = cluster_result.messages,
                                  .bytes = cluster_result.bytes,
                                  .datagrams = cluster_result.datagrams,
                                  .faults = cluster_result.faults};
}

#define SCENARIO(name, set)                                                                                            \
    {                                                                                                                  \
        name, run, (void (*)(void))(set)                                                                               \
    }

static const struct scenario scenarios[] = {
    SCENARIO("engines-clean", set_clean),
    SCENARIO("engines-loss", set_loss),
    SCENARIO("engines-reorder", set_reorder),
    SCENARIO("engines-corrupt", set_corrupt),
    SCENARIO("engines-lend", set_lend),
    SCENARIO("engines-preempt", set_preempt),
    SCENARIO("engines-stripes", set_stripes),
    SCENARIO("engines-full", set_full),
    SCENARIO("engines-cancel", set_cancel),
    SCENARIO("engines-close", set_close),
    SCENARIO("engines-abort", set_abort),
    SCENARIO("engines-crash", set_crash),
    SCENARIO("engines-outages", set_outages),
    SCENARIO("engines-firewalls", set_firewalls),
    SCENARIO("engines-dead", set_dead),
    SCENARIO("engines-incast", set_incast),
    SCENARIO("engines-spines", set_spines),
    SCENARIO("engines-many", set_many),
    SCENARIO("engines-mtu", set_mtu),
    SCENARIO("engines-mtu-hole", set_mtu_hole),
    SCENARIO("engines-drift", set_drift),
    SCENARIO("engines-handshakes", set_handshakes),
    SCENARIO("engines-relisten", set_relisten),
    SCENARIO("engines-addresses", set_addresses),
    SCENARIO("engines-slow-receiver", set_slow_receiver),
    SCENARIO("engines-refuse", set_refuse),
    SCENARIO("engines-self", set_self),
    SCENARIO("engines-huge", set_huge),
    SCENARIO("engines-devices", set_devices),
    SCENARIO("engines-device-crash", set_device_crash),
    SCENARIO("engines-direct", set_direct),
    SCENARIO("engines-direct-crash", set_direct_crash),
    SCENARIO("engines-storm", set_storm),
    SCENARIO("engines-stripes-full", set_stripes_full),
    SCENARIO("engines-full-socket", set_full_socket),
    SCENARIO("engines-stops", set_node_stops),
    SCENARIO("engines-stops-dead", set_node_stops_dead),
    SCENARIO("engines-pipes", set_pipes),
    SCENARIO("engines-pipes-crash", set_pipes_crash),
    SCENARIO("engines-threads", set_threads),
    SCENARIO("engines-half-dead", set_half_dead),
    SCENARIO("service-wait", service_wait),
    SCENARIO("service-accept", service_accept),
    SCENARIO("service-connections", service_connections),
    SCENARIO("service-peers", service_peers),
    SCENARIO("service-credit", service_credit),
    SCENARIO("service-ranges", service_ranges),
    SCENARIO("service-small", service_small),
    SCENARIO("service-lives", service_lives),
    SCENARIO("onesided", onesided_scenario),
    SCENARIO("onesided-direct", onesided_direct),
    SCENARIO("onesided-rails", onesided_rails),
    SCENARIO("onesided-direct-rails", onesided_direct_rails),
    SCENARIO("onesided-crash", onesided_crash),
    SCENARIO("onesided-stops", onesided_stops),
    SCENARIO("onesided-hostile", onesided_hostile),
    SCENARIO("onesided-pipes", onesided_pipes),
    SCENARIO("onesided-pipes-crash", onesided_pipes_crash),
    SCENARIO("onesided-pipes-stops", onesided_pipes_stops),
    SCENARIO("hostile-engines", set_hostile),
    SCENARIO("hostile-stripes", set_hostile_stripes),
    SCENARIO("hostile-loss", set_hostile_loss),
    SCENARIO("hostile-devices", set_hostile_devices),
    SCENARIO("hostile-direct", set_hostile_direct),
    SCENARIO("hostile-pipes", set_hostile_pipes),
    SCENARIO("onesided-hostile-pipes", onesided_hostile_pipes),
};

unsigned engine_scenarios(const struct scenario **out)
{
    *out = scenarios;
    return sizeof scenarios / sizeof scenarios[0];
}
