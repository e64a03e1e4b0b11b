/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a flow gives up a silent peer. Silence is our own running time since the first unanswered ask: a probe, a
 * retransmission, or a packet that the NIC refused. The peer is dead after UCCL_DEAD_PEER_MS of silence with at least
 * SILENCE_ASKS asks. Time in which this process did not run (stopped, debugged, suspended) does not count: a timer that
 * fires far too late shows it.
 *
 * A flow that gives a peer up sends a farewell, and another for each later packet of the peer. So a peer that was
 * stopped for too long learns of it, and does not wait for ever.
 */
#ifndef UCCL_SILENCE_H
#define UCCL_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

struct flow;

enum {
    SILENCE_ASKS = 3,
    SILENCE_PARTS = 16, /* UCCL_DEAD_PEER_MS / 16: least time between asks that count; a timer so late shows a stop */
    SILENCE_QUIET = 4,  /* UCCL_DEAD_PEER_MS / 4 of quiet: the flow asks, even if a retransmission is to come later */
};

struct silence {
    uint64_t since_ns; /* time of the first unanswered ask; not after the peer's last packet: none is unanswered */
    uint64_t asked_ns; /* time of the last ask that counts */
    uint64_t ran_ns;   /* when this process last ran for sure: no time before is subtracted again */
    uint32_t asks;     /* since `since_ns` */
};

/* A packet that the peer should answer is sent, or the NIC refused it. */
void silence_ask(struct flow *flow, uint64_t now_ns);
/* A timer of the flow that was due at `deadline_ns` fires now. */
void silence_overrun(struct flow *flow, uint64_t deadline_ns, uint64_t now_ns);
/* Whether an ask has not been answered so far. */
bool silence_is_unanswered(const struct flow *flow);
/* Whether the silence has lasted long enough to give the peer up. */
bool silence_is_death(const struct flow *flow, uint64_t now_ns);
/* When a probe asks next: after a while of silence, and again and again once something is not answered. */
uint64_t silence_next_ask(const struct flow *flow);
/* When to act on silence next: by a probe, unless one is `due` already, or by giving up. */
uint64_t silence_deadline(const struct flow *flow, bool due);

#endif
