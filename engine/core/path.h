/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of one flow and which one the next chunk takes. Policies (UCCL_PATH_POLICY):
 *   recycle  paths whose acks came back uncongested, in about the usual time, are used again, first in
 *            first out (REPS, Bonato et al. 2024); when there is none, and now and then to explore, the
 *            next in round robin without a penalty; marked, slow and lost paths get one, which wears off by being passed over and
 *            by good feedback
 *   pow2     the better of two random paths by smoothed delay, chunks in flight and penalty, which wears
 *            off by being the worse (Mitzenmacher 2001)
 *   rr       round robin, whatever the feedback
 * All of them keep off paths that nothing comes back from while others work, since a firewall that knows other ports, or a broken
 * link, swallows all that they carry: such a path is closed, until an ack or the echo of a probe (reach.h) says otherwise.
 */
#ifndef UCCL_PATH_H
#define UCCL_PATH_H

#include "core/queue.h"
#include "core/rng.h"

#include <stdbool.h>
#include <stdint.h>

enum { PATHS_MAX = 256 };

struct path {
    uint32_t next_seq;       /* path sequence of the next transmission, from 1 */
    uint32_t acked_seq;      /* highest path sequence that an ack named; 0: none */
    uint32_t in_flight;      /* chunks; sent.c counts them */
    struct queue flying;     /* and lists them, by time of transmission */
    uint32_t delay_ns;       /* smoothed; 0: unknown */
    uint32_t row_acks;       /* acks over all paths when its losses in a row began */
    uint8_t penalty;         /* choices for which it is still passed over */
    uint8_t losses;          /* in a row, without an ack for it in between; saturates */
    bool worked;             /* something that it carried has been acked, or echoed */
    bool closed;             /* carries nothing but probes */
};

struct path_set {
    struct path *paths;      /* `count` of them, memory of the flow */
    struct rng *rng;
    uint32_t delay_ns;       /* smoothed over all paths; 0: unknown */
    uint32_t acks;           /* reports that were no losses */
    uint16_t count;
    uint16_t good, closed;   /* paths that have worked and are not closed; that are closed */
    uint16_t cursor;         /* of round robin: the path whose turn is next */
    uint16_t until_explore;  /* choices from the ring until one that ignores it */
    uint16_t recycled_head, recycled_count;
    uint16_t recycled[PATHS_MAX]; /* ring of paths with good feedback */
    uint8_t policy;          /* PATH_* of params.h */
    bool closes;             /* paths close: somebody tries them again */
};

enum path_feedback { PATH_GOOD, PATH_CONGESTED, PATH_LOST };

/* Resets the paths too. 1 <= count <= PATHS_MAX. None closes unless `closes` is set then. */
void path_set_init(struct path_set *set, struct path *paths, uint16_t count, unsigned policy,
                   struct rng *rng);
/* The path for the next chunk; `avoid` (or -1): the path that just lost it, not chosen if another is there. */
uint16_t path_choose(struct path_set *set, int avoid);
/*
 * The same for what had better arrive: retransmissions, acks, probes. A path that has worked, if there is one. Where nothing seems to work
 * (`at_a_loss`), whatever was not taken last time, and every other time the first one: firewalls know its ports, which the
 * handshake told.
 */
uint16_t path_choose_safe(struct path_set *set, int avoid, bool at_a_loss);
/* A closed path that is due to be tried, from `from` on, or -1. */
int path_next_closed(const struct path_set *set, uint16_t from);
/* What went over the path last is repeated for want of an answer: that counts for closing it, and not as feedback. */
void path_unanswered(struct path_set *set, uint16_t path);
/* Something has come back over the path after all. */
void path_works(struct path_set *set, uint16_t path);
/* An ack, mark or loss on `path`, once per chunk or per ack. `rtt_ns` 0: no sample. A sample far
 * above what the others have makes good feedback a congested one. */
void path_report(struct path_set *set, uint16_t path, enum path_feedback feedback, uint64_t rtt_ns);

#endif
