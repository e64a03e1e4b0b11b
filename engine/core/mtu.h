/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large a datagram may be that gets through to the peer (RFC 8899: packetization layer path MTU discovery). What
 * the interfaces and the kernel say of a route may be wrong: large packets vanish in the middle, and nobody tells.
 *
 * The flow begins with datagrams that every network carries (the base) and probes for the route's size at once, by one
 * padded probe that travels with what is sent anyway. Its echo, a small one, makes that the size; nothing waits for it.
 * If no echo comes while small datagrams get through, a binary search finds the largest size that does, and the search
 * is repeated later, more and more rarely.
 *
 * A black hole that appears under way shows as losses of large datagrams, again and again, with none that arrives, and
 * small ones that get through each time: then the flow is back at the base, and searches as at the beginning. Large
 * datagrams that were on their way go in pieces (image.h).
 *
 * Owned by the flow's thread.
 */
#ifndef UCCL_MTU_H
#define UCCL_MTU_H

#include <stdbool.h>
#include <stdint.h>

struct flow;
struct flow_setup;
struct sent_acked;

enum {
    MTU_TRIES = 3,       /* probes of one size that are lost while small datagrams pass; or rounds of losses */
    MTU_TOP_TRIES = 6,   /* of the route's own size: nobody is to hear of a hole where much is lost */
    MTU_SILENT_TRIES = 8,/* that are lost with all else: the search is put off */
    MTU_STEP_BYTES = 128,/* of payload: the search is no finer (what watched receives have their fragments cut at) */
    MTU_RAISE_BACKOFF = 6, /* times that the pause between two searches doubles */
};
#define MTU_RAISE_NS UINT64_C(10000000000) /* pause until the next search, at first */

struct mtu {
    uint32_t limit_bytes;  /* what the route and the peer take */
    uint32_t peer_bytes;   /* what the peer takes, whatever the route */
    uint32_t base_bytes;   /* datagrams that large are not large */
    bool searches;         /* sizes above the base are tried before they are used */
    uint32_t bad_bytes;    /* smallest size that does not get through; beyond the limit: none is known */
    uint32_t trying_bytes; /* what the probe under way has; 0: none is */
    uint64_t nonce;        /* of that size's probes */
    uint64_t at_ns;        /* when the newest is given up; UINT64_MAX: none is under way */
    uint64_t raise_ns;     /* then the search begins again, if the flow is in use; UINT64_MAX: never */
    uint8_t tries, silent; /* of this size: lost while small datagrams passed, and lost with them */
    uint8_t backoff;       /* of raise_ns */
    uint8_t rounds;        /* of losses, since a large datagram has arrived; saturates */
    uint8_t losses;        /* those of them in which a small one got through */
    uint64_t counted_ns;   /* when the last one was counted: what was sent before belongs to it */
    bool small_passed;     /* that was sent since a probe has left, or in this round */
    uint64_t small_from_ns;/* when that began */
    bool hole_reported;    /* the owner knows that sizes do not get through */
    bool hole_report_due;  /* it is about to be told */
    uint32_t held;         /* of core->big: the padding */
    uint8_t *padding;      /* of the probe under way */
};

/* Whether the next padded probe takes the first path: every other one does, which firewalls pass (probe_opens()). */
static inline bool mtu_opens(const struct mtu *mtu)
{
    return (mtu->tries + mtu->silent) % 2 == 0;
}

void mtu_init(struct flow *flow, const struct flow_setup *setup);
/* Begins at the top: at once where there is something to find out. */
void mtu_search(struct flow *flow);
/* The flow ends: nothing of it is left with the core. */
void mtu_forget(struct flow *flow);
/* What the route takes has changed. */
void mtu_set_route(struct flow *flow, uint32_t bytes);
/* A padded probe is about to leave: its bytes, `*buffer` to lay it out in; 0: not now. */
uint32_t mtu_probe(struct flow *flow, uint8_t **buffer, uint64_t now_ns);
/* An echo has come. */
void mtu_on_echo(struct flow *flow, uint64_t nonce, uint64_t now_ns);
/* An ack has come, while flow->sent.watches: a size is tried, or losses are counted. */
void mtu_on_ack(struct flow *flow, const struct sent_acked *acked);
/* Chunks have been declared lost; `by_time`: nothing comes back at all. True: large datagrams vanish, whichever are under way. */
bool mtu_on_losses(struct flow *flow, bool by_time, uint64_t now_ns);
void mtu_expire(struct flow *flow, uint64_t now_ns);

#endif
