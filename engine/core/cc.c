/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to all congestion control algorithms: the window's bounds and the pace below one chunk. Invariant:
 * after every call chunk / 64 <= cwnd_bytes <= cwnd_max_bytes, and pace_gap_ns is 0 exactly when cwnd_bytes is a chunk
 * or more, or no round trip is known. Owned by the flow's thread.
 *
 * Overflow: windows are below 2^36 bytes, chunks below 2^17, times below 2^41 ns; every product of
 * two is formed so that it stays below 2^63.
 */
#include "core/cc.h"
#include "core/units.h"

#include <assert.h>
#include <stddef.h>

enum {
    FLOOR_SHIFT = 6,        /* the smallest window is chunk / 64 */
    DELAY_FLOOR_SHIFT = 2,  /* the smallest that delay alone makes: chunk / 4 */
    RTO_STREAK_RESTART = 3, /* timeouts without an ack, after which only a chunk is in flight */
};
/* A peer that stops for seconds inflates srtt; it must not stop us for a minute. With 64 KiB chunks
 * 10 ms are still slow enough for 1,900 senders to share 100 Gbps. */
#define PACE_GAP_MAX_NS (10 * NS_PER_MS)

void cc_set_window(struct cc *cc, uint64_t cwnd_bytes)
{
    uint64_t floor_bytes = cc->chunk_bytes >> FLOOR_SHIFT;
    if (floor_bytes == 0)
        floor_bytes = 1;
    if (cwnd_bytes < floor_bytes)
        cwnd_bytes = floor_bytes;
    if (cwnd_bytes > cc->cwnd_max_bytes)
        cwnd_bytes = cc->cwnd_max_bytes;
    cc->cwnd_bytes = cwnd_bytes;

    cc->pace_gap_ns = 0;
    if (cwnd_bytes < cc->chunk_bytes) {
        /* srtt beyond the longest gap cannot make the gap longer, nor the product overflow */
        uint64_t srtt_ns = cc->srtt_ns < PACE_GAP_MAX_NS ? cc->srtt_ns : PACE_GAP_MAX_NS;
        uint64_t gap_ns = srtt_ns * cc->chunk_bytes / cwnd_bytes;
        cc->pace_gap_ns = gap_ns < PACE_GAP_MAX_NS ? gap_ns : PACE_GAP_MAX_NS;
    }
}

bool cc_may_decrease(const struct cc *cc, uint64_t now_ns, uint64_t rtt_ns)
{
    if (cc->last_decrease_ns == 0)
        return true;
    if (rtt_ns == 0)
        rtt_ns = cc->target_ns;
    return now_ns >= cc->last_decrease_ns && now_ns - cc->last_decrease_ns >= rtt_ns;
}

uint64_t cc_additive(struct cc *cc, uint64_t acked_bytes)
{
    uint64_t chunk_bytes = cc->chunk_bytes, cwnd_bytes = cc->cwnd_bytes;
    if (acked_bytes > cc->cwnd_max_bytes)
        acked_bytes = cc->cwnd_max_bytes;
    if (cwnd_bytes < chunk_bytes) {
        /* A whole chunk at once would be up to 64 windows, from every sender of an incast alike. */
        if (acked_bytes > chunk_bytes)
            acked_bytes = chunk_bytes;
        uint64_t grown_bytes = cwnd_bytes + cwnd_bytes * acked_bytes / chunk_bytes;
        return grown_bytes > cwnd_bytes ? grown_bytes : cwnd_bytes + 1;
    }
    uint64_t product = acked_bytes * chunk_bytes + cc->remainder;
    cc->remainder = product % cwnd_bytes;
    return cwnd_bytes + product / cwnd_bytes;
}

uint64_t cc_delay_floor(const struct cc *cc, bool cwnd_limited)
{
    /* Through sockets a long delay is often a thread that does not run, which a smaller window cures
     * as little as it cures a long cable; a sender that it throttled to chunk / 64 would crawl. */
    uint64_t floor_bytes = cwnd_limited ? cc->chunk_bytes >> DELAY_FLOOR_SHIFT : cc->chunk_bytes;
    return cc->cwnd_bytes < floor_bytes ? cc->cwnd_bytes : floor_bytes;
}

uint64_t cc_after_rto(struct cc *cc, uint64_t now_ns)
{
    uint64_t cwnd_bytes = cc->cwnd_bytes;
    if (cc->rto_streak < RTO_STREAK_RESTART)
        cc->rto_streak++;
    if (cc->rto_streak == RTO_STREAK_RESTART) {
        /* Nothing is known about the network any more: begin again, with one chunk. */
        cc->startup = true;
        cc->last_decrease_ns = now_ns;
        return cwnd_bytes < cc->chunk_bytes ? cwnd_bytes : cc->chunk_bytes;
    }
    cc->startup = false;
    if (!cc_may_decrease(cc, now_ns, cc->srtt_ns))
        return cwnd_bytes;
    cc->last_decrease_ns = now_ns;
    return cwnd_bytes / 2;
}
