/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control of one rail behind a table of functions, chosen at run time. It says how many bytes may be in
 * flight (cwnd_bytes) and, when that is below one chunk, how long to wait between chunks (pace_gap_ns). Integer
 * arithmetic only. docs/congestion-control.md says what the algorithms do.
 */
#ifndef UCCL_CC_H
#define UCCL_CC_H

#include "defs/params.h"

#include <stdbool.h>
#include <stdint.h>

struct cc_ops;

struct cc {
    const struct cc_ops *ops;
    uint64_t cwnd_bytes;  /* bytes that may be in flight: chunk_bytes / 64 to cwnd_max_bytes */
    uint64_t pace_gap_ns; /* 0, or time between chunks where cwnd is below one chunk */
    uint64_t cwnd_max_bytes;
    uint32_t chunk_bytes;     /* a full chunk */
    uint64_t target_ns;       /* base delay target (UCCL_SWIFT_TARGET_US) */
    uint64_t speculate_bytes; /* sent without asking the receiver (UCCL_SPECULATE_KB) */
    /* the algorithm's own */
    uint64_t srtt_ns;          /* as last given; 0: not yet */
    uint64_t last_decrease_ns; /* 0: never */
    unsigned rto_streak;       /* timeouts since the last acked byte */
    bool startup;              /* no congestion seen yet: grow by what is acked */
    uint64_t remainder;        /* of the additive increase, in bytes * bytes, below cwnd */
    struct {
        uint64_t rate; /* bytes per 2^26 ns; 0: no RTT yet */
        uint64_t prev_rtt_ns;
        int64_t rtt_diff_ns; /* smoothed difference of successive samples */
        uint64_t last_update_ns;
        uint64_t acked_bytes; /* since then */
        bool cwnd_limited;    /* since then */
        unsigned increases;   /* updates below Tlow in a row */
    } timely;
};

struct cc_ack {
    uint64_t now_ns;
    uint64_t rtt_ns;  /* newest sample, without ack delay; 0: this ack brought none */
    uint64_t srtt_ns; /* of the rail; 0: no sample yet */
    uint64_t min_rtt_ns;
    uint64_t acked_bytes; /* newly acked */
    bool ce;              /* congestion was marked since the last ack; delay-based algorithms ignore it */
    bool cwnd_limited;    /* the window or its gap, not the application, held the sender back */
};

struct cc_ops {
    const char *name;
    bool credited; /* payload waits for the receiver's grants as well (credit.h) */
    void (*init)(struct cc *cc);
    void (*on_ack)(struct cc *cc, const struct cc_ack *ack);
    void (*on_loss)(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns); /* chunks declared lost; may come in bursts */
    void (*on_rto)(struct cc *cc, uint64_t now_ns);
};

extern const struct cc_ops cc_swift, cc_timely, cc_eqds;

/* `chunk_bytes`: a full chunk; the initial window is 16 of them, at least 256 KiB, within the maximum. */
void cc_init(struct cc *cc, const struct params *params, uint32_t chunk_bytes);

/* ---- for the algorithms ---- */

/* Sets the window within its bounds, and the gap that goes with it. */
void cc_set_window(struct cc *cc, uint64_t cwnd_bytes);
/* Whether a round trip has passed since the last decrease. `rtt_ns` 0: not known. */
bool cc_may_decrease(const struct cc *cc, uint64_t now_ns, uint64_t rtt_ns);
/* One chunk per round trip, spread over its acks; below one chunk the window at most doubles per
 * chunk acked. Returns the new window and does not set it. */
uint64_t cc_additive(struct cc *cc, uint64_t acked_bytes);
/* The smallest window that delay alone may set: a quarter of a chunk, a whole one where the window did
 * not hold the sender back; a window that loss made smaller stays as it is. */
uint64_t cc_delay_floor(const struct cc *cc, bool cwnd_limited);
/* The reaction to a timeout: the window to set. It is halved at most once per round trip, and is one chunk from the
 * third timeout without an ack. */
uint64_t cc_after_rto(struct cc *cc, uint64_t now_ns);

#endif
