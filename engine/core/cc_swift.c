/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swift: keep the delay at a target, by additive increase below it and multiplicative decrease in
 * proportion to the excess above it (Kumar et al., "Swift: Delay is Simple and Effective for
 * Congestion Control in the Datacenter", SIGCOMM 2020, algorithm 1 and section 3.5). Flow scaling
 * raises the target of small windows: many flows need a longer queue to stay apart, and the smaller
 * of two flows is held back less, which makes them equal.
 *
 * Where this differs from the paper, and why:
 * - There is one delay, the round trip without the peer's ack delay, and of waiting for either owner where the NIC
 *   says when things came (core_waited()). Sockets give no such time stamps, so there the two hosts are
 *   within the target, which is larger for it.
 * - A start-up phase grows by what is acked, less and less towards the target; the paper leaves a new
 *   flow to its additive increase, which at 64 KiB chunks is slow over long fat paths.
 * - Only a window that held the sender back grows.
 * - Delay takes the window down to a quarter of a chunk; only loss takes it further (cc_delay_floor()).
 * - Below one chunk the window at most doubles per chunk acked (see cc_additive()).
 * The target is not raised with the shortest round trip seen: a flow that starts while a queue stands
 * would take it for the path and starve the others (tests/unit/test_cc.c, swift/latecomer). A path
 * longer than the target needs the parameter.
 * Owned by the flow's thread.
 */
#include "core/cc.h"

#include <assert.h>

enum {
    BETA_1024 = 819,         /* 0.8: decrease per relative excess */
    DECREASE_MAX_1024 = 512, /* 0.5 */
    /* Flow scaling adds fs_range at 1/16 chunk, nothing from 64 chunks on; with 1/sqrt at these two
     * of 4 and 1/8, alpha/sqrt(w) + beta is fs_range * (8/sqrt(w) - 1) / 31. */
    ROOT_UNIT = 256, /* fixed point of sqrt(w) */
};
#define SWIFT_DELAY_MAX_NS (UINT64_C(1) << 40)

/* Floor of the square root, a bit a round. */
static uint64_t square_root(uint64_t value)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 31; bit > 0; bit >>= 1) {
        uint64_t candidate = root | bit;
        if (candidate * candidate <= value)
            root = candidate;
    }
    return root;
}

/* What flow scaling adds to the target; its range is the base target itself. */
static uint64_t flow_scaling_ns(const struct cc *cc)
{
    uint64_t root = square_root(cc->cwnd_bytes * (ROOT_UNIT * ROOT_UNIT) / cc->chunk_bytes);
    assert(root > 0); /* the window's floor is 1/64 chunk or a byte */
    if (root >= 8 * ROOT_UNIT)
        return 0;
    uint64_t scaling_ns = cc->target_ns * (8 * ROOT_UNIT - root) / (31 * root);
    return scaling_ns < cc->target_ns ? scaling_ns : cc->target_ns;
}

static void swift_init(struct cc *cc)
{
    cc->remainder = 0;
}

static void swift_grow(struct cc *cc, const struct cc_ack *ack, uint64_t rtt_ns, uint64_t target_ns)
{
    if (!ack->cwnd_limited || cc->cwnd_bytes >= cc->cwnd_max_bytes)
        return;
    uint64_t grown_bytes = cc_additive(cc, ack->acked_bytes);
    if (cc->startup) {
        /* In full up to half the target, from there on fading out. */
        uint64_t acked_bytes = ack->acked_bytes < cc->cwnd_bytes ? ack->acked_bytes : cc->cwnd_bytes;
        uint64_t room_1024 = (target_ns - rtt_ns) * 2048 / target_ns;
        uint64_t step_bytes = room_1024 >= 1024 ? acked_bytes : acked_bytes * room_1024 / 1024;
        if (grown_bytes < cc->cwnd_bytes + step_bytes)
            grown_bytes = cc->cwnd_bytes + step_bytes;
    }
    cc_set_window(cc, grown_bytes);
}

static void swift_shrink(struct cc *cc, const struct cc_ack *ack, uint64_t rtt_ns, uint64_t target_ns)
{
    cc->startup = false;
    /* The sample too: srtt lags behind a growing queue, and the next cut must see this one's effect. */
    uint64_t round_ns = rtt_ns > cc->srtt_ns ? rtt_ns : cc->srtt_ns;
    if (!cc_may_decrease(cc, ack->now_ns, round_ns))
        return;
    uint64_t cut_1024 = BETA_1024 * (rtt_ns - target_ns) / rtt_ns;
    if (cut_1024 > DECREASE_MAX_1024)
        cut_1024 = DECREASE_MAX_1024;
    uint64_t shrunk_bytes = cc->cwnd_bytes - cc->cwnd_bytes * cut_1024 / 1024;
    uint64_t floor_bytes = cc_delay_floor(cc, ack->cwnd_limited);
    if (shrunk_bytes < floor_bytes)
        shrunk_bytes = floor_bytes;
    cc->last_decrease_ns = ack->now_ns;
    cc_set_window(cc, shrunk_bytes);
}

static void swift_on_ack(struct cc *cc, const struct cc_ack *ack)
{
    if (ack->acked_bytes > 0)
        cc->rto_streak = 0;
    if (ack->srtt_ns) {
        cc->srtt_ns = ack->srtt_ns;
        if (cc->pace_gap_ns > 0)
            cc_set_window(cc, cc->cwnd_bytes); /* the gap follows srtt */
    }
    if (ack->rtt_ns == 0)
        return;
    uint64_t rtt_ns = ack->rtt_ns < SWIFT_DELAY_MAX_NS ? ack->rtt_ns : SWIFT_DELAY_MAX_NS;
    uint64_t target_ns = cc->target_ns;
    if (rtt_ns > target_ns)
        target_ns += flow_scaling_ns(cc); /* not computed on an uncongested path */
    if (rtt_ns <= target_ns)
        swift_grow(cc, ack, rtt_ns, target_ns);
    else
        swift_shrink(cc, ack, rtt_ns, target_ns);
}

static void swift_on_loss(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns)
{
    if (srtt_ns)
        cc->srtt_ns = srtt_ns;
    cc->startup = false;
    if (!cc_may_decrease(cc, now_ns, cc->srtt_ns))
        return;
    cc->last_decrease_ns = now_ns;
    cc_set_window(cc, cc->cwnd_bytes / 2);
}

static void swift_on_rto(struct cc *cc, uint64_t now_ns)
{
    cc_set_window(cc, cc_after_rto(cc, now_ns));
}

const struct cc_ops cc_swift = {
    .name = "swift",
    .init = swift_init,
    .on_ack = swift_on_ack,
    .on_loss = swift_on_loss,
    .on_rto = swift_on_rto,
};
