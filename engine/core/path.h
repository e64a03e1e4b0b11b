/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of one flow and which one the next chunk takes. Policies (UCCL_PATH_POLICY):
 *   recycle  paths whose acks came back uncongested are used again, newest feedback first in first out
 *            (REPS, Bonato et al. 2024); when none is there, the next in round robin that carries no
 *            penalty; marked, slow or lost paths get a penalty that decays ("recycle, else bitmap")
 *   pow2     the better of two random paths by smoothed delay and chunks in flight (Mitzenmacher 2001)
 *   rr       round robin, whatever the feedback
 */
#ifndef UCCL_PATH_H
#define UCCL_PATH_H

#include "core/rng.h"

#include <stdbool.h>
#include <stdint.h>

enum { PATHS_MAX = 256 };

struct path {
    uint32_t next_seq;       /* path sequence of the next transmission, from 1 */
    uint32_t acked_seq;      /* highest path sequence that an ack named; 0: none */
    uint32_t in_flight;      /* chunks */
    uint32_t delay_ns;       /* smoothed; 0: unknown */
    uint8_t penalty;         /* rounds of choice for which recycle passes it over */
    uint32_t rx_seq;         /* receive side: newest path sequence seen from the peer */
    uint32_t rx_time_stamp;  /* its time stamp, to echo */
    uint64_t rx_at_ns;       /* when it came */
    bool rx_news;            /* not yet in an ack */
};

struct path_set {
    struct path *paths;      /* `count` of them, memory of the flow */
    uint16_t count;
    uint8_t policy;          /* PATH_* of params.h */
    uint16_t cursor;         /* of round robin */
    uint16_t recycled[PATHS_MAX]; /* ring of paths with good feedback */
    uint16_t recycled_head, recycled_count;
    struct rng *rng;
};

enum path_feedback { PATH_GOOD, PATH_CONGESTED, PATH_LOST };

void path_set_init(struct path_set *set, struct path *paths, uint16_t count, unsigned policy,
                   struct rng *rng);
/* The path for the next chunk; `avoid` (or -1): the path that just lost it, not chosen if another is there. */
uint16_t path_choose(struct path_set *set, int avoid);
/* An ack, mark or loss on `path`. `rtt_ns` 0: no sample. */
void path_report(struct path_set *set, uint16_t path, enum path_feedback feedback, uint64_t rtt_ns);

#endif
