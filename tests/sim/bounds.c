/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios that bound what it costs to deliver everything: time, repeats, visits to a dead path. Each bound is
 * above what the worst of some hundred seeds needs, and below what a core needs that lacks the rule in
 * question (tests/mutation/mutants.txt).
 */
#include "judge.h"

/* One connection, one way, one message at a time. */
static void one_by_one(struct options *options)
{
    options->conns = 1;
    options->one_way = true;
    options->outstanding = 1;
    options->send_gap_ns = options->recv_gap_ns = options->recv_late_ns = 0;
}

static void lose(struct options *options, uint32_t ppm)
{
    options->net[0].loss_ppm = options->net[1].loss_ppm = ppm;
}

/* Nothing is repeated that was not lost, but for what a probe or a late ack costs. */
void bounds_needless(struct options *options, struct rng *rng)
{
    options->conns = 1;
    options->size_max = 1000000;
    options->messages = 40;
    lose(options, rng_below(rng, 2) * 10000);
    options->needless_permille = 100;
}

/* Small messages, one by one: all losses are tails. */
void bounds_lone(struct options *options, struct rng *rng)
{
    one_by_one(options);
    options->messages = 300;
    options->size_max = 8000;
    bool loss = rng_below(rng, 2);
    lose(options, loss ? 50000 : 0);
    options->needless_permille = 100;
    options->limit_ns = (loss ? 300 : 60) * NS_PER_MS;
}

/* Large messages through some loss. */
void bounds_bulk(struct options *options, struct rng *rng)
{
    (void)rng;
    options->conns = 1;
    options->one_way = true;
    options->messages = 8;
    options->size_max = 1 << 20;
    options->one_size = true;
    lose(options, 5000);
    options->needless_permille = 60;
    options->limit_ns = 300 * NS_PER_MS;
}

/* Datagrams overtake each other: losses that were none do not cost the window. */
void bounds_reorder(struct options *options, struct rng *rng)
{
    bounds_bulk(options, rng);
    lose(options, 0);
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].delay_ns = 100 * NS_PER_US;
        options->net[i].reorder_ppm = 10000;
        options->net[i].reorder_ns = NS_PER_MS;
    }
    options->messages = 48;
    options->needless_permille = 200;
    options->limit_ns = 180 * NS_PER_MS;
}

/* Seconds of silence are not filled with repeats. */
void bounds_silence(struct options *options, struct rng *rng)
{
    (void)rng;
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].black_from_ns = NS_PER_MS;
        options->net[i].black_until_ns = UINT64_C(4000) * NS_PER_MS;
    }
    options->conns = 1;
    options->retransmissions_max = 6000;
}

/* Short outages, again and again: what backed off comes back. */
void bounds_outages(struct options *options, struct rng *rng)
{
    (void)rng;
    one_by_one(options);
    options->messages = 300;
    options->size_max = 30000;
    options->one_size = true;
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].burst_ppm = 2000;
        options->net[i].burst_ns = 40 * NS_PER_MS;
    }
    options->limit_ns = UINT64_C(2000) * NS_PER_MS;
}

/* One path in four swallows everything: it is asked now and then, not used. */
void bounds_dead_path(struct options *options, struct rng *rng)
{
    options->conns = 2;
    options->size_max = 300000;
    options->one_size = true;
    options->messages = 20;
    options->params.path_policy = rng_below(rng, 2) ? PATH_RECYCLE : PATH_POW2;
    options->params.port_entropy = 4;
    for (unsigned i = 0; i < 2; i++)
        options->net[i].dead_paths = 1u << rng_below(rng, 4);
    options->dead_permille = 130;
    options->limit_ns = 600 * NS_PER_MS;
}

/* A bottleneck of a few packets: windows below a chunk, and data that keeps its distance. */
void bounds_crawl(struct options *options, struct rng *rng)
{
    options->conns = 2;
    options->messages = 20;
    options->size_max = 60000;
    options->params.cc = rng_below(rng, 2) ? CC_SWIFT : CC_TIMELY;
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].rate_mbps = 50;
        options->net[i].queue_bytes = 20000;
    }
}

/* One that holds a part of each train: every retransmission brings some more of its chunk across, and none takes
 * longer. */
void bounds_narrow(struct options *options, struct rng *rng)
{
    options->conns = 2;
    options->one_way = true;
    options->messages = 10;
    options->size_max = 200000;
    options->one_size = true;
    options->outstanding = 20;
    options->params.cc = rng_below(rng, 2) ? CC_SWIFT : CC_TIMELY;
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].rate_mbps = 20;
        options->net[i].queue_bytes = 10000;
    }
    options->limit_ns = UINT64_C(24000) * NS_PER_MS;
}

/* Messages of one byte, and of none: whoever waits for credit asks for it, however little there is to send. */
void bounds_empty(struct options *options, struct rng *rng)
{
    one_by_one(options);
    options->messages = 300;
    options->size_max = rng_below(rng, 3);
    options->params.cc = CC_EQDS;
    options->params.speculate_kb = 1;
    lose(options, 100000);
    options->limit_ns = UINT64_C(20000) * NS_PER_MS;
}

/* What an earlier incarnation of the peer sent is still under way. */
void bounds_strays(struct options *options, struct rng *rng)
{
    for (unsigned i = 0; i < 2; i++)
        options->net[i].stray_ppm = 100000;
    lose(options, rng_below(rng, 2) * 10000);
}

/*
 * Some peers fall silent and keep what they have of all that peers share, until they are given up; the others do not
 * notice. All messages are eager, and receives are announced one by one, so that buffers of frames are short.
 */
void bounds_stopped(struct options *options, struct rng *rng)
{
    options->ends = 5;
    options->halts = 1 + rng_below(rng, 3);
    options->halt_ns = rng_below(rng, NS_PER_MS);
    options->expect_dead = true;
    options->params.dead_peer_ms = 2000;
    bool small = rng_below(rng, 2); /* the one kind of buffers, or the other */
    options->params.tx_buffers = small ? 2 : 32;
    options->params.tx_small_buffers = small ? 512 : 2;
    options->conns = 3;
    options->messages = 400;
    options->size_max = options->params.eager_kb * 1024;
    options->one_size = true;
    options->outstanding = 400;
    options->send_gap_ns = options->recv_gap_ns = 50 * NS_PER_US;
    options->living_ns = 15 * NS_PER_MS;
}

/* One after another, until nothing is left of what is shared: those that live have what each has of its own. */
void bounds_stopped_many(struct options *options, struct rng *rng)
{
    bounds_stopped(options, rng);
    options->ends = ENDS_MAX;
    options->halts = 9;
    options->halt_gap_ns = 500 * NS_PER_US;
    options->conns = 2;
    options->params.tx_buffers = 2;
    options->params.tx_small_buffers = 4;
    options->living_ns = 1000u * NS_PER_MS;
}
