/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control of one flow behind a table of functions, chosen at run time. It says how many
 * bytes may be in flight (cwnd_bytes) and, when that is below one chunk, how long to wait between
 * chunks (pace_gap_ns). Integer arithmetic only.
 */
#ifndef UCCL_CC_H
#define UCCL_CC_H

#include "defs/params.h"

#include <stdbool.h>
#include <stdint.h>

struct cc_ops;

struct cc {
    const struct cc_ops *ops;
    uint64_t cwnd_bytes;     /* bytes that may be in flight */
    uint64_t pace_gap_ns;    /* 0, or time between chunks where cwnd is below one chunk */
    uint64_t cwnd_max_bytes;
    uint32_t chunk_bytes;    /* a full chunk of this flow */
    uint64_t target_ns;      /* Swift's base target */
    /* the algorithm's own */
    uint64_t last_decrease_ns;
    uint64_t srtt_ns;
    union {
        struct {
            uint64_t remainder; /* of the additive increase, in bytes * cwnd */
            unsigned retransmit_rtts;
        } swift;
        struct {
            uint64_t prev_rtt_ns;
            int64_t rtt_diff_ns; /* smoothed gradient numerator */
            uint64_t min_rtt_ns;
            uint64_t rate;       /* bytes per second */
            unsigned increases;  /* in a row, for hyperactive increase */
            uint64_t last_update_ns;
        } timely;
    };
};

struct cc_ack {
    uint64_t now_ns;
    uint64_t rtt_ns;      /* newest sample, net of hold time; 0: this ack brought none */
    uint64_t srtt_ns;     /* of the flow; 0: no sample yet */
    uint64_t min_rtt_ns;
    uint64_t acked_bytes; /* newly acked */
    bool ce;              /* congestion was marked since the last ack */
    bool cwnd_limited;    /* the window, not the application, held the sender back */
};

struct cc_ops {
    const char *name;
    void (*init)(struct cc *cc);
    void (*on_ack)(struct cc *cc, const struct cc_ack *ack);
    void (*on_loss)(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns); /* chunks declared lost; may come in bursts */
    void (*on_rto)(struct cc *cc, uint64_t now_ns);
};

extern const struct cc_ops cc_swift, cc_timely;

/* `chunk_bytes`: a full chunk; the initial window is 16 of them within the maximum. */
void cc_init(struct cc *cc, const struct params *params, uint32_t chunk_bytes);

#endif
