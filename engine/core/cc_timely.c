/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timely: a rate that follows the gradient of the round trip time (Mittal et al., "TIMELY: RTT-based
 * Congestion Control for the Datacenter", SIGCOMM 2015), in the patched form that has a fixed point
 * (Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT 2016): between
 * Tlow and Thigh the additive and the multiplicative term are weighted by the gradient, and the
 * latter is in proportion to the delay above Tlow.
 *
 * Where this differs from the papers, and why:
 * - The window is rate * srtt, as the engine holds back by window, with srtt counted up to Thigh: a
 *   window that grew with the queue would feed it.
 * - One update per round trip instead of one per completed segment, with the multiplicative term times
 *   the chunks acked in it: the same decrease per chunk for fewer operations. It is that of 16 chunks
 *   at least, and above Thigh that of 64, or many flows of few chunks would hardly ever decrease.
 * - Tlow and Thigh are half and twice the delay target (papers: 35 and 350 us for NICs with hardware
 *   time stamps). Through sockets 35 us is the noise of the scheduler; ten times that as a ratio would
 *   let queues of milliseconds stand.
 * - The gradient is relative to the larger of minimum RTT and Tlow, again because of that noise.
 * - The additive step is one chunk per round trip, as in Swift, and a start-up phase doubles the rate
 *   per round trip up to Tlow.
 * Owned by the flow's thread.
 */
#include "core/cc.h"

#include <assert.h>

enum {
    RATE_SHIFT = 26,  /* rate: bytes per 2^26 ns */
    BETA_65536 = 524, /* 0.008 per chunk acked */
    BETA_CHUNKS_MIN = 16,
    CUT_MAX_65536 = 32768, /* 0.5 per round trip: that of 64 chunks */
    DIFF_SHARE = 8,        /* of a new difference in the smoothed one: 1/8 */
    QUARTER_1024 = 256,
    HYPER_AFTER = 5, /* updates below Tlow in a row, from which on the step is HYPER_STEPS */
    HYPER_STEPS = 5,
};
#define TIMELY_DELAY_MAX_NS (UINT64_C(1) << 33) /* 8 s */

static uint64_t low_ns(const struct cc *cc)
{
    return cc->target_ns / 2;
}

static uint64_t high_ns(const struct cc *cc)
{
    return cc->target_ns * 2;
}

/* The time by which rate and window are converted. */
static uint64_t round_ns(const struct cc *cc)
{
    return cc->srtt_ns < high_ns(cc) ? cc->srtt_ns : high_ns(cc);
}

/* The rate that fills so many bytes per round trip. */
static uint64_t rate_of(const struct cc *cc, uint64_t bytes)
{
    return (bytes << RATE_SHIFT) / round_ns(cc);
}

/* The window that the rate means, and back: rate and window are bounded by the largest window, which
 * keeps rate * round_ns at or below cwnd_max << 26. */
static void timely_apply(struct cc *cc, uint64_t rate)
{
    uint64_t rate_max = rate_of(cc, cc->cwnd_max_bytes);
    if (rate > rate_max)
        rate = rate_max;
    cc_set_window(cc, (rate * round_ns(cc)) >> RATE_SHIFT);
    /* Where the window's floor cuts in, the rate must not run away below it. */
    uint64_t rate_min = rate_of(cc, cc->cwnd_bytes);
    cc->timely.rate = rate > rate_min ? rate : rate_min;
    if (cc->timely.rate == 0)
        cc->timely.rate = 1;
}

static void timely_init(struct cc *cc)
{
    assert(cc->target_ns >= 2); /* the thresholds divide */
    cc->timely.rate = 0;
}

static void timely_keep_srtt(struct cc *cc, uint64_t srtt_ns)
{
    if (srtt_ns)
        cc->srtt_ns = srtt_ns < TIMELY_DELAY_MAX_NS ? srtt_ns : TIMELY_DELAY_MAX_NS;
}

/* Gradient of the delay per round trip in 1/1024, within +-1024. */
static int64_t timely_gradient_1024(struct cc *cc, uint64_t rtt_ns, uint64_t min_rtt_ns)
{
    int64_t diff_ns = (int64_t)rtt_ns - (int64_t)cc->timely.prev_rtt_ns;
    cc->timely.prev_rtt_ns = rtt_ns;
    cc->timely.rtt_diff_ns += (diff_ns - cc->timely.rtt_diff_ns) / DIFF_SHARE;

    uint64_t scale_ns = min_rtt_ns > low_ns(cc) && min_rtt_ns < TIMELY_DELAY_MAX_NS ? min_rtt_ns : low_ns(cc);
    int64_t gradient = cc->timely.rtt_diff_ns * 1024 / (int64_t)scale_ns;
    return gradient > 1024 ? 1024 : gradient < -1024 ? -1024 : gradient;
}

/* The additive step as a rate: `steps` chunks per round trip, or half a window below one. */
static uint64_t timely_step(const struct cc *cc, unsigned steps)
{
    uint64_t step_bytes = cc->cwnd_bytes < cc->chunk_bytes ? cc->cwnd_bytes / 2 + 1 : cc->chunk_bytes;
    return rate_of(cc, steps * step_bytes);
}

/* The multiplicative factor of an update, in 1/65536. */
static uint64_t timely_beta(const struct cc *cc)
{
    uint64_t acked_bytes = cc->timely.acked_bytes;
    if (acked_bytes > cc->cwnd_max_bytes)
        acked_bytes = cc->cwnd_max_bytes;
    uint64_t beta = BETA_65536 * acked_bytes / cc->chunk_bytes;
    if (beta < BETA_65536 * BETA_CHUNKS_MIN)
        beta = BETA_65536 * BETA_CHUNKS_MIN;
    return beta < CUT_MAX_65536 ? beta : CUT_MAX_65536;
}

/* `share_65536` of the rate per round trip, at most half of it. */
static uint64_t timely_cut(uint64_t rate, uint64_t share_65536)
{
    if (share_65536 > CUT_MAX_65536)
        share_65536 = CUT_MAX_65536;
    return rate - rate / 65536 * share_65536 - rate % 65536 * share_65536 / 65536;
}

/* One round trip is over: the new rate. */
static uint64_t timely_update(struct cc *cc, uint64_t rtt_ns, uint64_t min_rtt_ns)
{
    uint64_t rate = cc->timely.rate, beta_65536 = timely_beta(cc);
    int64_t gradient_1024 = timely_gradient_1024(cc, rtt_ns, min_rtt_ns);
    bool limited = cc->timely.cwnd_limited;

    if (rtt_ns < low_ns(cc)) {
        if (!limited)
            return rate;
        if (cc->startup)
            return rate * 2;
        if (cc->timely.increases < HYPER_AFTER)
            cc->timely.increases++;
        return rate + timely_step(cc, cc->timely.increases == HYPER_AFTER ? HYPER_STEPS : 1);
    }
    cc->timely.increases = 0;
    cc->startup = false;
    if (rtt_ns > high_ns(cc))
        return timely_cut(rate, CUT_MAX_65536 * (rtt_ns - high_ns(cc)) / rtt_ns);

    uint64_t weight_1024 = gradient_1024 <= -QUARTER_1024  ? 0
                           : gradient_1024 >= QUARTER_1024 ? 1024
                                                           : (uint64_t)(2 * gradient_1024 + 512);
    uint64_t error_1024 = (rtt_ns - low_ns(cc)) * 1024 / low_ns(cc);
    rate = timely_cut(rate, beta_65536 * weight_1024 / 1024 * error_1024 / 1024);
    return limited ? rate + timely_step(cc, 1) * (1024 - weight_1024) / 1024 : rate;
}

static void timely_on_ack(struct cc *cc, const struct cc_ack *ack)
{
    if (ack->acked_bytes > 0)
        cc->rto_streak = 0;
    timely_keep_srtt(cc, ack->srtt_ns);
    if (ack->acked_bytes < UINT64_C(1) << 40)
        cc->timely.acked_bytes += ack->acked_bytes;
    cc->timely.cwnd_limited |= ack->cwnd_limited;
    if (ack->rtt_ns == 0 || cc->srtt_ns == 0)
        return;
    uint64_t rtt_ns = ack->rtt_ns < TIMELY_DELAY_MAX_NS ? ack->rtt_ns : TIMELY_DELAY_MAX_NS;
    if (cc->timely.rate == 0) {
        cc->timely.rate = rate_of(cc, cc->cwnd_bytes);
        cc->timely.prev_rtt_ns = rtt_ns;
    } else if (ack->now_ns - cc->timely.last_update_ns < cc->srtt_ns) {
        return;
    }
    uint64_t rate = timely_update(cc, rtt_ns, ack->min_rtt_ns);
    uint64_t rate_min = rate_of(cc, cc_delay_floor(cc, cc->timely.cwnd_limited));
    timely_apply(cc, rate > rate_min ? rate : rate_min);
    cc->timely.last_update_ns = ack->now_ns;
    cc->timely.acked_bytes = 0;
    cc->timely.cwnd_limited = false;
}

/* Window and rate together. */
static void timely_set_window(struct cc *cc, uint64_t cwnd_bytes)
{
    cc_set_window(cc, cwnd_bytes);
    if (cc->srtt_ns && cc->timely.rate)
        timely_apply(cc, rate_of(cc, cc->cwnd_bytes));
}

static void timely_on_loss(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns)
{
    timely_keep_srtt(cc, srtt_ns);
    cc->startup = false;
    if (!cc_may_decrease(cc, now_ns, cc->srtt_ns))
        return;
    cc->last_decrease_ns = now_ns;
    timely_set_window(cc, cc->cwnd_bytes / 2);
}

static void timely_on_rto(struct cc *cc, uint64_t now_ns)
{
    timely_set_window(cc, cc_after_rto(cc, now_ns));
}

const struct cc_ops cc_timely = {
    .name = "timely",
    .init = timely_init,
    .on_ack = timely_on_ack,
    .on_loss = timely_on_loss,
    .on_rto = timely_on_rto,
};
