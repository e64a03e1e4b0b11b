/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The largest datagram that gets through to the peer (RFC 8899: packetization layer path MTU discovery). Interfaces and
 * kernel may be wrong about a route: large packets vanish in the middle, and no error comes back.
 *
 * The flow begins with datagrams that every network carries (the base). At once it sends one padded probe of the
 * route's size, beside the traffic; nothing waits for its echo. The echo, a small datagram, makes that size the
 * rail's. If no echo comes while small datagrams get through, a binary search finds the largest size that does. The
 * flow repeats the search later, more and more rarely. Where nothing gets through at all, the search ends without a
 * result, and begins anew when something does.
 *
 * A black hole that appears later shows by repeated losses of large datagrams: none arrives, and each time small ones
 * get through. Then the flow falls back to the base and searches as at the beginning. It sends large datagrams that
 * were under way again in fragments (image.h).
 *
 * Owned by the flow's thread.
 */
#ifndef UCCL_MTU_H
#define UCCL_MTU_H

#include <stdbool.h>
#include <stdint.h>

struct rail;
struct rail_setup;
struct sent_acked;

enum {
    MTU_TRIES = 3,         /* probes of one size that may be lost while small datagrams pass; also rounds of losses */
    MTU_TOP_TRIES = 6,     /* the same for the route's own size: general loss should not look like a hole */
    MTU_SILENT_TRIES = 8,  /* probes lost while nothing else passes either, after which the search waits for that */
    MTU_STEP_BYTES = 128,  /* of payload: the step of the search (and the unit of watched receives) */
    MTU_RAISE_BACKOFF = 6, /* most doublings of the pause between two searches */
};
#define MTU_RAISE_NS (10 * NS_PER_S) /* pause until the next search, at first */

struct mtu {
    uint32_t limit_bytes;   /* largest datagram that the route and the peer take */
    uint32_t peer_bytes;    /* largest datagram that the peer takes, whatever the route */
    uint32_t base_bytes;    /* datagrams up to this size are small */
    bool searches;          /* sizes above the base are tried before they are used */
    uint32_t bad_bytes;     /* smallest size that does not get through; beyond the limit: none is known */
    uint32_t trying_bytes;  /* size of the probe under way; 0: none is */
    uint64_t nonce;         /* of that size's probes */
    uint64_t at_ns;         /* when the newest probe counts as lost; UINT64_MAX: none is under way */
    uint64_t raise_ns;      /* when the search begins again, if the flow is in use; UINT64_MAX: never */
    uint8_t tries, silent;  /* probes of this size lost while small datagrams passed; lost together with them */
    bool interrupted;       /* the search has ended in silence: it begins anew once something passes */
    uint8_t backoff;        /* of raise_ns */
    uint8_t rounds;         /* of losses since a large datagram has arrived; saturates */
    uint8_t losses;         /* rounds in which a small datagram got through */
    uint64_t counted_ns;    /* when the last round was counted: datagrams sent before belong to that round */
    bool small_passed;      /* a small datagram sent after small_from_ns got through */
    uint64_t small_from_ns; /* when the probe left, or this round began */
    bool hole_reported;     /* the owner has been told of a hole, or is about to be */
    bool hole_report_due;   /* CORE_EVENT_FLOW_HOLE waits */
    uint32_t held;          /* of core->big: the padding */
    uint8_t *padding;       /* of the probe under way */
};

/* Whether the next padded probe takes the first path: every other one does, since firewalls pass it (probe_opens()). */
static inline bool mtu_opens(const struct mtu *mtu)
{
    return (mtu->tries + mtu->silent) % 2 == 0;
}

void mtu_init(struct rail *rail, const struct rail_setup *setup);
/* Begins a search from the top, unless the size is known already. */
void mtu_search(struct rail *rail);
/* The flow ends: returns its buffer to the core. */
void mtu_forget(struct rail *rail);
/* The route now takes datagrams of `bytes`. */
void mtu_set_route(struct rail *rail, uint32_t bytes);
/* A padded probe is about to leave: its size, and `*buffer` to lay it out in; 0: not now. */
uint32_t mtu_probe(struct rail *rail, uint8_t **buffer, uint64_t now_ns);
/* The NIC has refused it, which is no loss. */
void mtu_undo(struct rail *rail);
/* An echo has come. */
void mtu_on_echo(struct rail *rail, uint64_t nonce, uint64_t now_ns);
/* A chunk of a large message is about to leave as datagrams. */
void mtu_gives_large(struct rail *rail);
/* An ack has come while rail->watches. */
void mtu_on_ack(struct rail *rail, const struct sent_acked *acked);
/* Chunks have been declared lost; `by_time`: nothing comes back at all. True: a black hole swallows large datagrams. */
bool mtu_on_losses(struct rail *rail, bool by_time, uint64_t now_ns);
/* The rail did not get small datagrams through either: losses so far say nothing about sizes. */
void mtu_forgive(struct rail *rail);
void mtu_expire(struct rail *rail, uint64_t now_ns);

#endif
