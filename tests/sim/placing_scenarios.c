/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of NICs that place payload. Each keeps the application busy with buffers of which it takes back
 * what has ended at once, and lets one kind of fault meet one rule of docs/architecture.md (placement).
 */
#include "placing.h"

static void set_nics(struct options *options, struct rng *rng)
{
    options->places = options->placed = true;
    options->size_max = 400000;
    options->messages = 80;
    options->nic_work_ns = 1u << (6 + rng_below(rng, 9));
    options->nic_drain_ns = 1u << (10 + rng_below(rng, 10));
    options->nic_answer_ns = rng_below(rng, 2) ? 1u << (10 + rng_below(rng, 10)) : 0;
    options->params.qp_retry_ms = 1;
    options->params.dead_peer_ms = 20000;
    options->params.eager_kb = rng_below(rng, 9);
    if (rng_below(rng, 2))
        options->unregistered_permille = rng_below(rng, 200);
}

void placing_clean(struct options *options, struct rng *rng)
{
    set_nics(options, rng);
    if (rng_below(rng, 2)) {
        options->send_gap_ns = options->recv_gap_ns = 0;
        options->outstanding = 200;
    }
}

/* Writes are lost; retransmissions come over the same queue pair, and datagrams are lost too. */
void placing_loss(struct options *options, struct rng *rng)
{
    set_nics(options, rng);
    options->path_loss_ppm = 1u << (10 + rng_below(rng, 8));
    for (unsigned i = 0; i < 2; i++)
        options->net[i].loss_ppm = rng_below(rng, 2) * 20000;
    options->params.path_policy = rng_below(rng, 3);
}

/* A lost packet in the middle of a write makes the queue pair swallow everything. */
void placing_silent(struct options *options, struct rng *rng)
{
    placing_loss(options, rng);
    options->path_loss_ppm = 1u << (10 + rng_below(rng, 6));
    options->path_breaks_ppm = PPM / 2;
}

/* Originals come late, up to seconds, when the sender has long retransmitted them. */
void placing_late(struct options *options, struct rng *rng)
{
    set_nics(options, rng);
    options->path_stall_ppm = 1u << (9 + rng_below(rng, 6));
    options->path_stall_ns = 1u << (20 + rng_below(rng, 11));
    options->path_loss_ppm = rng_below(rng, 2) * 5000;
    options->params.rto_min_us = 1000;
}

/* The same, while messages are taken back and connections closed: buffers are given back early. */
void placing_cancel(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->cancel_permille = 100 + rng_below(rng, 800);
    options->truncate_permille = rng_below(rng, 2) * 100;
    options->messages = 120;
    options->nic_work_ns = 1u << (6 + rng_below(rng, 16)); /* what is cancelled is still to be read */
    if (rng_below(rng, 2))
        options->msg_window = 16;
}

void placing_close(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->close_early = true;
    options->placed = false; /* a close may come before a queue pair is up */
    options->cancel_permille = rng_below(rng, 2) * 100;
    options->linger_ns = rng_below(rng, 2) ? options->linger_ns : rng_below(rng, 5 * NS_PER_MS);
    options->conns = 12;
    options->messages = 40;
    for (unsigned i = 0; i < 2; i++)
        options->net[i].loss_ppm = rng_below(rng, 2) * 20000;
}

/* Queue pairs fail, and making or connecting them does. */
void placing_fail(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->path_fail_ppm = 1u << (9 + rng_below(rng, 6));
    options->path_open_fail_ppm = rng_below(rng, 2) * 200000;
    /* all queue pairs may fail to open at first, and all messages be over before a second try */
    options->placed = options->path_open_fail_ppm == 0;
    options->tx_fail_ppm = rng_below(rng, 2) * 50000;
    for (unsigned i = 0; i < 2; i++)
        options->net[i].loss_ppm = rng_below(rng, 2) * 20000;
}

/* One end notices a failure; the other hears of it late, while originals are still under way to it. */
void placing_drain(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->path_fail_ppm = 4000u << rng_below(rng, 3);
    options->path_stall_ppm = 10000u << rng_below(rng, 3);
    options->path_stall_ns = 1u << (20 + rng_below(rng, 4));
    options->nic_drain_ns = 1u << (18 + rng_below(rng, 5));
    for (unsigned i = 0; i < 2; i++)
        options->net[i].loss_ppm = 20000 + rng_below(rng, 100000);
}

/* One direction of some queue pairs swallows everything for a while, or for good. */
void placing_oneway(struct options *options, struct rng *rng)
{
    set_nics(options, rng);
    unsigned side = rng_below(rng, 2);
    options->net[side].dead_paths = 1 + rng_below(rng, 15);
    options->path_dies_ns = rng_below(rng, 5 * NS_PER_MS);
    options->path_lives_ns = rng_below(rng, 2) ? UINT64_MAX : options->path_dies_ns + rng_below(rng, 1000 * NS_PER_MS);
    options->placed = false; /* all may be dead from the start */
}

/* Queue pairs that reorder: the core must not place. */
void placing_reorder(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->paths_reorder = true;
    options->path_stall_ppm = 50000;
    options->path_loss_ppm = 20000;
    options->placed = false;
}

/* The NIC repeats what is lost, and fails when that is in vain. */
void placing_reliable(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->paths_reliable = true;
    options->path_loss_ppm = rng_below(rng, 2) ? 1u << (7 + rng_below(rng, 6)) : 0;
    options->path_fail_ppm = rng_below(rng, 2) ? 1u << (9 + rng_below(rng, 5)) : 0;
    options->cancel_permille = rng_below(rng, 2) * 200;
    options->nic_work_ns = 1u << (6 + rng_below(rng, 16));
}

void placing_dead_peer(struct options *options, struct rng *rng)
{
    placing_late(options, rng);
    options->ends = 2 + rng_below(rng, 3);
    options->params.dead_peer_ms = 50 + rng_below(rng, 500);
    options->halt_ns = rng_below(rng, 20 * NS_PER_MS);
    if (options->ends > 2) { /* those that live must be done in time */
        options->path_stall_ns = 1u << (16 + rng_below(rng, 6));
    } else { /* what the peer sent last comes when it counts as dead */
        options->params.dead_peer_ms = 50;
        options->halt_ns /= 4;
        options->path_stall_ns = 128 * NS_PER_MS;
        options->path_stall_ppm = PPM / 10;
        options->nic_drain_ns = 32 * NS_PER_MS;
    }
    options->expect_dead = true;
    options->close_early = rng_below(rng, 2);
    options->paths_reliable = rng_below(rng, 2);
    if (!options->paths_reliable) /* stalls alone take less; a reliable queue pair takes RETRIES_NS for each loss */
        options->living_ns = 300 * NS_PER_MS;
    options->placed = false;
}

/* The peer dies, and its NIC goes on with what it was given. */
void placing_orphan(struct options *options, struct rng *rng)
{
    set_nics(options, rng);
    options->conns = 1;
    options->messages = 20;
    options->outstanding = 6;
    options->params.eager_kb = 0;
    options->params.qp_retransmit_rounds = 100; /* slow, but not broken */
    options->params.port_entropy = 1 + rng_below(rng, 4);
    options->params.dead_peer_ms = 50;
    options->nic_work_ns = 1u << (26 + rng_below(rng, 4));
    options->nic_drain_ns = 48 * NS_PER_MS;
    options->halt_ns = rng_below(rng, 200 * NS_PER_MS);
    options->paths_reliable = rng_below(rng, 2);
    options->expect_dead = true;
    options->placed = false;
}

/* Few chunks, few grants, no room; numbers wrap. */
void placing_tiny(struct options *options, struct rng *rng)
{
    placing_silent(options, rng);
    options->chunk_window = 64;
    options->msg_window = 16;
    options->params.grants = 16;
    options->params.qp_depth = 64;
    options->params.chunk_size_kb = 1u << rng_below(rng, 7);
    options->datagram_bytes = 512 + rng_below(rng, 4000);
    options->datagram_bytes_later = 512 + rng_below(rng, 4000);
    options->change_datagram_ns = rng_below(rng, 5 * NS_PER_MS);
    options->params.port_entropy = 1u << rng_below(rng, 6);
    options->wrap = rng_below(rng, 2);
    options->window_bytes = 4096u << rng_below(rng, 8);
    options->outstanding = 40;
}

/* All at once. */
void placing_storm(struct options *options, struct rng *rng)
{
    placing_tiny(options, rng);
    options->placed = false;
    options->wrap = false;
    options->ends = 2 + rng_below(rng, 2);
    options->close_early = rng_below(rng, 2);
    options->cancel_permille = rng_below(rng, 300);
    options->truncate_permille = rng_below(rng, 200);
    options->tx_fail_ppm = rng_below(rng, 50000);
    options->stall_every_ns = 1u << (20 + rng_below(rng, 5));
    options->stall_ns = 1u << (17 + rng_below(rng, 6));
    options->path_stall_ppm = 1u << (9 + rng_below(rng, 5));
    options->path_stall_ns = 1u << (20 + rng_below(rng, 9));
    options->path_fail_ppm = 1u << rng_below(rng, 14);
    options->path_open_fail_ppm = rng_below(rng, 200000);
    options->nic_work_ns = 1u << (6 + rng_below(rng, 16));
    options->params.rto_min_us = 1000;
    for (unsigned i = 0; i < 2; i++) {
        options->net[i].loss_ppm = rng_below(rng, 40000);
        options->net[i].reorder_ppm = 20000;
        options->net[i].reorder_ns = NS_PER_MS;
        options->net[i].duplicate_ppm = rng_below(rng, 50000);
        options->net[i].corrupt_ppm = rng_below(rng, 20000);
    }
}
