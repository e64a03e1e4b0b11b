/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of one flow and which one the next chunk takes. Policies (UCCL_PATH_POLICY):
 *   recycle  uses paths again whose acks came back uncongested, in about the usual time, first in first out (REPS,
 *            Bonato et al. 2024). If there is none, and now and then to explore: the next path without a penalty, in
 *            round robin. Marks, delay and losses penalise a path; being passed over and good feedback wear it off
 *   pow2     the better of two random paths by smoothed delay, chunks in flight and penalty; being the worse wears
 *            penalty and delay off (Mitzenmacher 2001)
 *   rr       round robin, whatever the feedback
 * All policies close a path over which nothing is acked while others work: a firewall that knows other ports, or a
 * broken link, swallows all that it carries. An ack, or the echo of a probe (reach.h), opens it again.
 */
#ifndef UCCL_PATH_H
#define UCCL_PATH_H

#include "core/queue.h"
#include "core/rng.h"

#include <stdbool.h>
#include <stdint.h>

enum { PATHS_MAX = 256 };

/* Of a path that is a connection. */
enum channel_state { CHANNEL_DOWN, CHANNEL_FULL, CHANNEL_ROOM };

struct path {
    uint32_t next_seq;   /* path sequence of the next transmission, from 1 */
    uint32_t acked_seq;  /* highest path sequence that an ack named; 0: none */
    uint32_t turn_seq;   /* next_seq when it had room again: a turn of its began then (channel.c) */
    uint32_t in_flight;  /* chunks; sent.c counts them */
    struct queue flying; /* and lists them, by time of transmission */
    uint32_t delay_ns;   /* smoothed; 0: unknown */
    uint32_t row_acks;   /* acks over all paths when its losses in a row began */
    uint8_t penalty;     /* choices that still pass over it */
    uint8_t losses;      /* in a row, without an ack for it in between; saturates */
    bool worked;         /* a packet that it carried has been acked, or echoed */
    bool closed;         /* carries nothing but probes */
    uint8_t channel;     /* enum channel_state, of a reliable rail */
};

struct path_set {
    struct path *paths; /* `count` of them, memory of the flow */
    struct rng *rng;
    uint32_t delay_ns; /* smoothed over all paths; 0: unknown */
    uint32_t acks;     /* reports that were no losses */
    uint16_t count;
    uint16_t good, closed;  /* paths that have worked and are not closed; that are closed */
    uint16_t suspects;      /* paths that are closed, or have lost something and never worked */
    uint16_t cursor;        /* of round robin: the path whose turn is next */
    uint16_t until_explore; /* choices from the ring until one that ignores the ring */
    uint16_t recycled_head, recycled_count;
    uint16_t recycled[PATHS_MAX]; /* ring of paths with good feedback */
    uint8_t policy;               /* PATH_* of params.h */
    bool closes;                  /* paths close, since reach.c tries closed ones */
};

enum path_feedback { PATH_GOOD, PATH_CONGESTED, PATH_LOST };

/* Resets the paths too. 1 <= count <= PATHS_MAX. Paths close if the caller sets `closes` afterwards. */
void path_set_init(struct path_set *set, struct path *paths, uint16_t count, unsigned policy, struct rng *rng);
/* The path for the next chunk; `avoid` (or -1): the path that just lost it, not chosen if another is there. */
uint16_t path_choose(struct path_set *set, int avoid);
/*
 * The path for a retransmission or a probe: one that has worked, if there is one. Where nothing seems to work
 * (`at_a_loss`), another path than the last, and every other time the first one: firewalls know its ports from the
 * handshake.
 */
uint16_t path_choose_safe(struct path_set *set, int avoid, bool at_a_loss);
/*
 * The path for an ack. Nothing tells whether acks arrive, so once a path seems to swallow packets they go where packets
 * have arrived. Until then all paths take them in turn: who only receives has a path or two that have worked, and acks
 * crowd the links of these.
 */
uint16_t path_choose_for_ack(struct path_set *set, int avoid);
/* The next closed path to try, from `from` on, or -1. */
int path_next_closed(const struct path_set *set, uint16_t from);
/*
 * The last packet over the path is repeated for want of an answer: that counts for closing the path, and not as
 * feedback.
 */
void path_unanswered(struct path_set *set, uint16_t path);
/* A packet over the path was acked or echoed after all. */
void path_works(struct path_set *set, uint16_t path);
/*
 * An ack, mark or loss on `path`, once per chunk or per ack. `rtt_ns` 0: no sample. A sample far above those of the
 * other paths turns good feedback into congested.
 */
void path_report(struct path_set *set, uint16_t path, enum path_feedback feedback, uint64_t rtt_ns);

#endif
