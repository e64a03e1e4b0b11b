/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of whole engines with several threads each: how messages are shared, and a thread that nothing reaches. */
#include "core/units.h"
#include "service.h"

/*
 * Messages alone and in streams, of none to all ranges that there are flows. Up to eight flows, so that some home flows
 * have no share of a stream (stripe.c); what parts need runs out in some seeds.
 */
void set_threads(struct cluster_options *options, struct rng *rng)
{
    options->mixed = rng_below(rng, 2);
    options->nodes = 2;
    options->params.num_engines = 5 + rng_below(rng, 4);
    options->params.stripe_min_kb = 64u << rng_below(rng, 2);
    options->params.ring_entries = 16u << rng_below(rng, 5);
    options->params.max_requests = 32u << rng_below(rng, 5);
    options->params.lend = rng_below(rng, 2) ? LEND_YES : LEND_NO;
    options->params.spin_us = rng_below(rng, 2) * 20;
    options->sessions = 1 + rng_below(rng, 2);
    options->outstanding = 1 + rng_below(rng, 6);
    options->messages = 30;
    options->size_max = UINT64_C(150000) << rng_below(rng, 4);
    options->size_min = rng_below(rng, 2) * 66000;
    options->post_gap_ns = options->recv_gap_ns = rng_below(rng, 2) * 20 * NS_PER_US;
    options->cancel_permille = rng_below(rng, 3) == 0 ? 300 : 0;
    options->truncate_permille = rng_below(rng, 3) == 0 ? 100 : 0;
    options->close_early = rng_below(rng, 4) == 0;
    options->fabric.loss_ppm = rng_below(rng, 2) * 5000;
    options->nic.in_place = rng_below(rng, 2);
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
    if (rng_below(rng, 2)) {
        options->preempt_every = 8u << rng_below(rng, 6);
        options->preempt_ns = 1u << (14 + rng_below(rng, 6));
    }
}

/*
 * What the first two nodes send to one engine thread of the other is lost, for longer than the dead-peer time. The
 * others give nobody up, nor do they carry on with half of a connection.
 */
void set_half_dead(struct cluster_options *options, struct rng *rng)
{
    options->expect_dead = true;
    options->params.num_engines = 2 + rng_below(rng, 3);
    options->params.dead_peer_ms = 50 + rng_below(rng, 100);
    options->params.stripe_min_kb = 64;
    options->size_max = rng_below(rng, 4) ? 60000 : 200000; /* without parts, or with some */
    options->sessions = 2 + rng_below(rng, 3);
    options->post_gap_ns = options->recv_gap_ns = 1u << (23 + rng_below(rng, 3)); /* they still talk then */
    uint64_t begin_ns = rng_below(rng, 50u * NS_PER_MS), dead_ns = options->params.dead_peer_ms * NS_PER_MS;
    bool heals = rng_below(rng, 2);
    uint8_t queue = (uint8_t)(1 + rng_below(rng, (uint32_t)options->params.num_engines));
    for (uint16_t from = 0; from < 2; from++)
        options->fabric.outages[options->fabric.outage_count++] =
            (struct outage){.from = from,
                            .to = !from,
                            .path = FABRIC_ANY,
                            .queue = queue,
                            .begin_ns = begin_ns,
                            .end_ns = heals ? begin_ns + 2 * dead_ns : UINT64_MAX};
}
