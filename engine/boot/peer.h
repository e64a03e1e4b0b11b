/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of an engine. All connections to a peer share its flows, one per pair of engine threads, and with them the
 * traffic class of what we send. So connections of different classes have different peers. A peer is whoever has
 * the tokens of these flows. An engine id is only a name: whoever shows the id without knowing the tokens becomes a new
 * peer (bootstrap.h), so several peers may have one id. A connection to the engine itself has a peer at each end.
 *
 * Tokens are drawn for one handshake and sent in that one alone. Its agreements hold as long as the peer is known; no
 * later handshake changes them or touches a flow. A peer that has forgotten us cannot prove our flows: it gets new
 * ones, and the old ones end by the dead-peer rule, or unused.
 *
 * Threads: application threads under the engine's lock. Only its engine thread touches a flow.
 */
#ifndef UCCL_PEER_H
#define UCCL_PEER_H

#include "boot/beside_hosts.h"
#include "boot/bootstrap.h"
#include "core/core.h"

struct engine_thread;

enum peer_flow_state {
    FLOW_UNPROVEN, /* no datagram has come back yet (probe.h) */
    FLOW_PROVEN,
    FLOW_DEAD,
};

struct peer;

/* Over which queues of the engine threads a peer is met (nic_queue.beside). */
enum peer_queues {
    PEER_MAIN,   /* the main ones alone */
    PEER_BESIDE, /* those beside them alone, since the main ones do not reach it */
    PEER_BOTH,   /* the main ones, and those beside for large messages, if the peer agrees */
};

struct peer_flow {
    struct engine_thread *thread;
    struct peer *peer;
    struct flow *flow; /* NULL until the peer's tokens are known */
    struct flow_setup setup;
    void *memory;
    size_t memory_bytes;
    uint64_t nonce;               /* of the rail that is the handshake's route */
    uint32_t datagram_bytes;      /* that this route takes */
    uint8_t nics[CORE_RAILS_MAX]; /* of ours, per rail: as in struct nic_host */
    uint32_t rails_lost;          /* bits: rails whose loss was counted; the engine thread's */
    bool beside;                  /* we have connected the paths beside; the engine thread's */
    uint32_t slot;                /* flow slot of the thread */
    _Atomic uint32_t state;       /* enum peer_flow_state; written by the engine thread */
};

struct peer {
    struct peer *next; /* in the order in which they were met */
    uint8_t engine_id[16];
    bool is_server; /* our end is the server's; tells the ends of a connection to ourselves apart */
    bool met;       /* a handshake with it has succeeded; without that it is freed soon */
    bool dead;
    uint8_t queues; /* enum peer_queues */
    struct nic_host host;
    uint32_t references;        /* connections and handshakes */
    uint64_t met_ns;            /* when the first one succeeded */
    uint64_t idle_since_ns;     /* when the last reference was put */
    unsigned flow_count;        /* our threads */
    unsigned flows_open;        /* flows in use: the smaller of both sides' counts; 0: not yet */
    _Atomic uint64_t silent_ns; /* when a close last ended without an answer; 0: never */
    _Atomic uint64_t nics_lost; /* bits: those of ours whose rails to it have been told as lost */
    _Atomic bool hole_warned;   /* large datagrams to it vanish; the first engine thread that sees it warns */
    struct peer_flow flows[BOOT_FLOWS_MAX];
};

struct peer_table {
    struct peer *peers;
    unsigned unmet; /* of them, clients whose first handshake has not succeeded yet */
    const struct params *params;
    struct engine_thread *threads;
    unsigned thread_count;
    unsigned end_count;                   /* NICs, if the engine uses several; else 0 */
    uint64_t *slots_used[BOOT_FLOWS_MAX]; /* bitmap of flow slots per thread */
    struct beside_hosts beside_hosts;
};

int peer_table_init(struct peer_table *table, const struct params *params, struct engine_thread *threads,
                    unsigned thread_count);
/* Closes every flow. The engine threads still run; no connection is left. */
void peer_table_free(struct peer_table *table);

/* In a child of fork(): frees the memory alone. */
void peer_table_forget(struct peer_table *table);

/* Which peers are meant. */
struct peer_of {
    const uint8_t *engine_id; /* 16 bytes */
    bool is_server;
    uint8_t traffic_class;
};

/* Writes the keys of these peers, if they live, oldest first, for bootstrap_prove(). Returns how many. */
unsigned peer_keys(struct peer_table *table, const struct peer_of *of, struct boot_key keys[BOOT_PROOFS_MAX]);
/* The living one of these peers whose key the other side has proved, with one more reference; NULL: none. */
struct peer *peer_known(struct peer_table *table, const struct bootstrap *boot, const struct peer_of *of);
/*
 * Makes a peer with fresh tokens and one reference, and opens the queues beside the main ones if it needs them first.
 * UCCL_ENOMEM: no memory, no flow slot, or too many handshakes with unknown clients;
 * UCCL_EADDR, UCCL_EIO. Logged.
 */
int peer_new(struct peer_table *table, const struct peer_of *of, enum peer_queues queues, const struct nic_host *host,
             struct peer **out);
/* Whether a first handshake with one of these has succeeded since then, and the peer lives. */
bool peer_met_since(struct peer_table *table, const struct peer_of *of, uint64_t since_ns);
/* Notes that a handshake with the peer has succeeded. */
void peer_met(struct peer_table *table, struct peer *peer);
/* Puts a reference. The last frees a dead peer; a living one stays a while: for a next connection, or to send GONE. */
void peer_put(struct peer_table *table, struct peer *peer);

/* Fills in our side of the flows, for the offer of the first handshake with this peer. */
void peer_fill_offer(const struct peer *peer, const struct params *params, struct boot_offer *offer);

/*
 * Opens the flows by the other side's offer in that handshake and the features of both sides. `closed`: bits of pairs
 * of NICs that do not reach each other (nic_way_ops). On failure the caller puts the peer.
 */
int peer_take_offer(struct peer_table *table, struct peer *peer, const struct boot_offer *offer, uint64_t features,
                    uint32_t closed);

/* The key by which the two ends prove that they know the flows. */
struct boot_key peer_key(const struct peer *peer);
/* Whether its flows are all usable still. */
bool peer_lives(struct peer *peer);
/* No further connection shall use its flows. */
void peer_give_up(struct peer *peer);
/* The queue of an engine thread that its flows use. */
struct nic_queue *peer_queue(const struct peer *peer, const struct engine_thread *thread);

/* CORE_EVENT_FLOW_PROVEN or CORE_EVENT_FLOW_DEAD of a flow, on its engine thread. */
void peer_flow_turned(struct peer_flow *flow, enum peer_flow_state state);

/* CORE_EVENT_FLOW_HOLE of a flow, on its engine thread: warns once per peer. */
void peer_flow_has_hole(struct peer_flow *flow, uint32_t passing_bytes, uint32_t route_bytes);

/* CORE_EVENT_RAILS_WANTED of a flow, on its engine thread: the side that has connected the handshake connects its paths
 * beside. `silent`: datagrams get no answer. */
void peer_flow_connect_beside(struct peer_flow *flow, bool silent);

/* CORE_EVENT_RAIL_LOST or CORE_EVENT_RAIL_BACK of a flow, on its engine thread: counts for its NIC, and warns once. */
void peer_flow_lost_rail(struct peer_flow *flow, unsigned rail, bool lost);

/* Over which pairs of NICs the flow may place. */
struct request_pairs peer_pairs(const struct peer_flow *flow);

static inline enum peer_flow_state peer_flow_state(const struct peer_flow *flow)
{
    /* pairs with peer_flow_turned() */
    return (enum peer_flow_state)atomic_load_explicit(&flow->state, memory_order_acquire);
}

#endif
