/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way of a flow: a NIC here and a NIC of the peer that reach each other. A flow has one rail or several. Sequence
 * numbers, acks, connections and messages are the flow's; a rail has what belongs to the way: an address, the size of
 * datagrams, paths, data QPs, round trips, congestion control, what is in flight and when that counts as lost. Path
 * numbers, as the wire has them, count through all rails of the sender: those of a rail are consecutive. Each end uses
 * its rails as it sees fit, and accepts packets that come over any.
 *
 * Owned by the flow's thread.
 */
#ifndef UCCL_RAIL_H
#define UCCL_RAIL_H

#include "core/cc.h"
#include "core/channel.h"
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
    uint64_t flight_bytes; /* payload that was in flight before the ack */
    uint64_t rtt_ns;       /* shortest sample; 0: none */
    unsigned lost;
    bool was_flying; /* something was in flight before the ack */
    bool ce;
};

enum rail_state { RAIL_UP, RAIL_SUSPECT, RAIL_DOWN };

struct rail {
    struct flow *flow;
    struct rail *next; /* of the flow; NULL: the last */
    uint32_t destination;
    uint32_t datagram_bytes; /* size of full datagrams, which is known to get through */
    uint16_t first_path;     /* number of its first path */
    uint8_t index;           /* among the flow's rails */
    uint8_t pair;            /* rail_setup */
    bool reliable;           /* its paths are connections (channel.c) */
    bool payload_crc;        /* datagrams have a checksum of their payload; TCP has its own */

    /* rail_state.c */
    uint8_t state;      /* enum rail_state */
    bool joins;         /* not in use yet: no connection of it has been up */
    bool cut;           /* the device says that it is gone */
    bool asked;         /* probes ask whether it works */
    bool reported_down; /* what the owner knows */
    uint8_t tries;      /* probes since `doubt_ns`, or since an answer; saturates */
    uint8_t answers;    /* in a row, while it is down */
    uint8_t flaps;      /* times that it went down soon after its return */
    uint16_t try_acks;  /* low bits of the number of the flow's next ack when the newest try left */
    uint64_t doubt_ns;  /* since when it is asked */
    uint64_t heard_ns;  /* last answer */
    uint64_t up_ns;     /* when it came back */
    uint64_t try_at_ns; /* when the newest try has waited for long enough */
    uint64_t try_nonce; /* of the first try since the last answer; the next ones count up from it */
    uint32_t try_count; /* how many they are, each of which may still be answered */

    /* in flight (sent.c): chunks whose last transmission went over this rail */
    struct queue by_time;
    uint64_t flying_payload; /* against the congestion window */
    uint32_t flying_chunks;
    uint64_t bulk_seq, bulk_ns;       /* the flow's next chunk, and the time, when the rail was last given bulk */
    bool bulk_tries;                  /* that was to learn an old estimate anew */
    uint32_t reorder_threshold;       /* of sent_lose_by_path() */
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
    struct path_set qps; /* its data QPs (data_qp.h): path sequences, delays and penalties; chooses */
    uint16_t qps_usable; /* of them, those that may be written to */
    struct probe probe;
    struct reach reach;
    struct mtu mtu;
    uint64_t last_ack_ns;    /* last ack that made progress, or first transmission after idle */
    uint64_t pace_until_ns;  /* cwnd below a chunk: no data before */
    uint64_t again_ns;       /* when a chunk last went again for want of acks (loss.c) */
    uint64_t lossy_until_ns; /* large messages go as datagrams until then (core_path_lossy()); 0: never did */
    uint64_t lossy_ns;       /* and how long that is */
    bool window_limited;     /* the window has held a chunk back since the last ack */
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
/* It is in use from here on. */
void rail_enter(struct rail *rail);
/* Begins with congestion control anew. */
void rail_init_cc(struct rail *rail);

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

/* Whether chunks may go over it; whether they may if no rail is usable. */
static inline bool rail_usable(const struct rail *rail)
{
    return rail->state == RAIL_UP && probe_proven(&rail->probe);
}
static inline bool rail_carries(const struct rail *rail)
{
    return probe_proven(&rail->probe) && !rail->cut;
}

/* Acks that went over it seem lost: it is asked. */
void rail_doubt(struct rail *rail);
/* No ack of what connections carry comes: if another rail gets through meanwhile, this one is asked. */
void rail_stalls(struct rail *rail);
/* A timeout has passed without an answer. */
void rail_suspect(struct rail *rail);
/* A packet that left over it at `sent_ns` has arrived. */
void rail_heard(struct rail *rail, uint64_t sent_ns, uint64_t now_ns);
/*
 * Rails that join the others are in use once the peer is proven and a connection of theirs is up. With the first of
 * them all are on the flow's list, the others as if their devices were gone.
 */
void rail_join(struct flow *flow);
/* Its address is proven. */
void rail_proven(struct rail *rail);
void rail_on_echo(struct rail *rail, uint64_t nonce, uint64_t now_ns);
/* The device reports that the NIC here is gone, or is back. */
void rail_cut(struct rail *rail);
void rail_mend(struct rail *rail);
/* A probe is about to leave: its nonce. */
uint64_t rail_try(struct rail *rail, uint64_t now_ns);
/* The NIC has refused it. */
void rail_untry(struct rail *rail);
/* Whether this nonce is that of a try which has not been answered. */
static inline bool rail_tried(const struct rail *rail, uint64_t nonce)
{
    return nonce - rail->try_nonce < rail->try_count;
}
/*
 * When rail_expire_tries() has something to do; UINT64_MAX: not before something else happens. It asks while the flow
 * `expects` something of the peer, or sends acks, which may be lost.
 */
uint64_t rail_next_try(const struct rail *rail, bool expects);
void rail_expire_tries(struct rail *rail, bool expects, uint64_t now_ns);
/* CORE_EVENT_RAIL_LOST or CORE_EVENT_RAIL_BACK waits. */
bool rail_has_report(const struct rail *rail);

/* The NIC has refused a descriptor: where paths are connections, this one waits for core_path_room(). */
void channel_refused(struct rail *rail, uint16_t port);

/* Whether it takes bulk now, or control and small messages, as far as its connections are concerned. */
static inline bool rail_has_room(const struct rail *rail, bool bulk)
{
    return !rail->reliable || channel_choose(&rail->paths, bulk) >= 0;
}
/* The path, counted within the rail, for probes; -1: of a reliable rail none has room. */
static inline int rail_probe_path(struct rail *rail, int avoid)
{
    return rail->reliable ? channel_choose(&rail->paths, false) : path_choose_safe(&rail->paths, avoid, false);
}
/* The same for acks. */
static inline int rail_ack_path(struct rail *rail, int avoid)
{
    return rail->reliable ? channel_choose(&rail->paths, false) : path_choose_for_ack(&rail->paths, avoid);
}

/* The flying chunk that was sent last, or first, over this rail; NULL when none flies. */
struct chunk;
struct chunk *rail_newest(const struct rail *rail);
struct chunk *rail_oldest(const struct rail *rail);
/* The one that was sent next after this flying chunk. */
struct chunk *rail_next(const struct chunk *chunk);

/*
 * How long until another chunk would have arrived, in units that only compare. Connections have no window of ours: what
 * is in flight and how long it takes stand for their rate. 0: the estimate is old.
 */
uint64_t rail_cost(const struct rail *rail);
/* It is about to be given a new part of a large message. */
void rail_give_bulk(struct rail *rail, uint64_t now_ns);
/* The retransmission timeout after `backoff` doublings. */
uint64_t rail_rto_ns(const struct rail *rail, unsigned backoff);
/* How long an answer that is still to come takes at most, as far as is known. */
uint64_t rail_probe_ns(const struct rail *rail);

#endif
