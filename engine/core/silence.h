/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a silent peer is given up. Silence is our own running time since the first ask that the peer has not answered:
 * a probe, a retransmission, a packet that the NIC refused. The peer is dead after
 * UCCL_DEAD_PEER_MS of it with at least SILENCE_ASKS asks. Time in which this process did not run (stopped, debugged,
 * suspended) does not count: a timer that fires far too late tells of it.
 *
 * Whoever gives a peer up tells it, and tells it again for each of its packets, so that both learn it: a peer that was stopped for so long that it
 * has been given up does not wait for ever.
 */
#ifndef UCCL_SILENCE_H
#define UCCL_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

struct flow;

enum {
    SILENCE_ASKS = 3,
    SILENCE_PARTS = 16, /* of UCCL_DEAD_PEER_MS: asks that count are so far apart, and so late a timer means a stop */
    SILENCE_QUIET = 4,  /* after this part of it the flow asks, even where a retransmission is to come later */
};

struct silence {
    uint64_t since_ns; /* first ask that is not answered; not after the last packet of the peer: there is none */
    uint64_t asked_ns; /* the last one that counts */
    uint64_t ran_ns;   /* this process did run then: no time before is subtracted again */
    uint32_t asks;     /* since `since_ns` */
};

/* The peer should answer what is being sent, or could not be. */
void silence_ask(struct flow *flow, uint64_t now_ns);
/* A timer of the flow that was due at `deadline_ns` fires now. */
void silence_overrun(struct flow *flow, uint64_t deadline_ns, uint64_t now_ns);
/* Whether the peer is to be given up. */
bool silence_is_death(const struct flow *flow, uint64_t now_ns);
/* When a probe asks next: after a while of silence, and again and again once something is not answered. */
uint64_t silence_next_ask(const struct flow *flow);
/* The first thing that is to be done about silence: a probe, unless one is `due` already, or giving up. */
uint64_t silence_deadline(const struct flow *flow, bool due);

#endif
