/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way of a flow: a NIC here and a NIC of the peer that reach each other. A flow has one rail or several. Sequence
 * numbers, acks, connections and messages are the flow's; a rail has what belongs to the way: an address, the size of
 * datagrams, paths, round trips, congestion control, what is in flight and when that counts as lost. Path numbers, as
 * the wire has them, count through all rails of the sender: those of a rail are consecutive. Each end uses its rails as
 * it sees fit, and accepts packets that come over any.
 *
 * Owned by the flow's thread.
 */
#ifndef UCCL_RAIL_H
#define UCCL_RAIL_H

#include "core/cc.h"
#include "core/loss.h"
#include "core/mtu.h"
#include "core/path.h"
#include "core/probe.h"
#include "core/reach.h"
#include "core/rtt.h"

struct flow;
struct rail_setup;

/* What one ack brought. */
struct sent_acked {
    uint64_t payload_bytes; /* of chunks now acked whole */
    uint32_t chunks;
    bool parts;        /* some datagram of an incomplete chunk is newly acked */
    bool large;        /* some large datagram is newly acked; set only while `watches` */
    uint64_t small_ns; /* likewise for small ones: when the newest was surely sent, or before; 0: none */
    bool spurious;     /* an acked chunk had been declared lost: its retransmission is, or was, needless */
};

/* What an ack that is being read brings for a rail, beside `acked`. */
struct rail_report {
    struct cc_ack cc;
    unsigned lost;
    bool was_flying;       /* something was in flight before the ack */
    uint64_t flight_bytes; /* and so much of it */
};

struct rail {
    struct flow *flow;
    uint32_t destination;
    uint32_t datagram_bytes; /* size of full datagrams, which is known to get through */
    uint16_t first_path;     /* number of its first path */
    uint8_t index;           /* among the flow's rails */

    /* in flight (sent.c): chunks whose last transmission went over this rail */
    struct queue by_time;
    uint64_t flying_payload; /* against the congestion window */
    uint32_t flying_chunks;
    uint32_t reorder_window_quarters; /* RACK's reordering window in quarters of min_rtt; grows */
    uint64_t too_soon_ns;             /* chunks sent after this cannot have been acked yet (now - min_rtt) */
    uint64_t newest_acked_ns;         /* transmission time of the newest chunk known to have arrived */
    uint32_t base_bytes;              /* datagrams above it are large (mtu.h) */
    bool watches;                     /* mtu.h wants to know whether acks name large or small datagrams */
    uint64_t large_lost_ns;           /* transmission time of the newest large chunk lost since mtu.h looked; 0: none */
    struct sent_acked acked;          /* by the ack that is being read */
    struct rail_report report;

    struct rtt rtt;
    struct cc cc;
    struct loss loss;
    struct path_set paths;
    struct probe probe;
    struct reach reach;
    struct mtu mtu;
    uint64_t last_ack_ns;   /* last ack that made progress, or first transmission after idle */
    uint64_t pace_until_ns; /* cwnd below a chunk: no data before */
    bool window_limited;    /* the window has held a chunk back since the last ack */
};

/* How many paths each rail has: UCCL_PORT_ENTROPY, less if all rails would have more than PATHS_MAX. */
struct params;
struct flow_setup;
uint16_t rail_path_count(const struct params *params, const struct flow_setup *setup);

/* `paths`: memory of its paths. */
void rail_init(struct flow *flow, unsigned index, const struct flow_setup *setup, uint16_t first_path,
               struct path *paths, uint64_t now_ns);
/* Once the flow is set up: asks for the proof of the rail's address, and for the size that gets through. */
void rail_begin(struct rail *rail, const struct rail_setup *setup);

/* The number of a path within the rail, for path.h, and back. */
static inline uint16_t rail_local(const struct rail *rail, uint16_t path)
{
    return (uint16_t)(path - rail->first_path);
}
static inline uint16_t rail_global(const struct rail *rail, uint16_t local)
{
    return (uint16_t)(rail->first_path + local);
}
static inline bool rail_has_path(const struct rail *rail, uint16_t path)
{
    return path >= rail->first_path && path - rail->first_path < rail->paths.count;
}
/* What path.h is to avoid: `path`, or -1 if it is of another rail, or none. */
static inline int rail_avoids(const struct rail *rail, int path)
{
    return path >= 0 && rail_has_path(rail, (uint16_t)path) ? path - rail->first_path : -1;
}

/* The flying chunk that was sent last, or first, over this rail; NULL when none flies. */
struct chunk;
struct chunk *rail_newest(const struct rail *rail);
struct chunk *rail_oldest(const struct rail *rail);

/* The retransmission timeout after `backoff` doublings. */
uint64_t rail_rto_ns(const struct rail *rail, unsigned backoff);
/* How long an answer that is still to come takes at most, as far as is known. */
uint64_t rail_probe_ns(const struct rail *rail);

#endif
