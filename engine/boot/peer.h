/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of an engine, with a flow per pair of engine threads that all connections to a peer share. A peer is who has
 * the tokens of these flows. An engine id is only its name: whoever claims the id without knowing the tokens becomes a
 * peer of its own (bootstrap.h), so that several may have one id. A connection to the engine itself has a peer at each end.
 *
 * Tokens are drawn for one handshake and told in that one alone. What it agrees on holds for as long as the peer is
 * known; no later handshake changes it, or touches a flow. A peer that has forgotten us cannot prove that it knows
 * our flows: it gets new ones, and the old ones end by the dead-peer rule or unused.
 *
 * Threads: application threads under the engine's lock; flows are touched by their engine thread.
 */
#ifndef UCCL_PEER_H
#define UCCL_PEER_H

#include "boot/bootstrap.h"
#include "thread/thread.h"

enum flow_life {
    FLOW_UNPROVEN,           /* nothing says yet that datagrams get across (probe.h) */
    FLOW_PROVEN,
    FLOW_DEAD,
};

struct peer;

struct peer_flow {
    struct engine_thread *thread;
    struct peer *peer;
    struct flow *flow;       /* NULL until the peer's tokens are known */
    struct flow_setup setup;
    void *memory;
    size_t memory_bytes;
    uint32_t slot;           /* flow slot of the thread */
    _Atomic uint32_t life;   /* enum flow_life; written by the engine thread */
};

struct peer {
    struct peer *next;       /* in the order in which they were met */
    uint8_t engine_id[16];
    bool is_server;          /* our end; tells the ends of a connection to ourselves apart */
    bool met;                /* a handshake with it has come to its end; if that fails it is freed soon */
    bool dead;
    struct nic_host host;
    uint32_t references;     /* connections and handshakes */
    uint64_t met_ns;         /* when that was */
    uint64_t idle_since_ns;  /* when the last reference went */
    unsigned flow_count;     /* our threads */
    unsigned flows_open;     /* flows in use: the smaller of both sides' counts; 0: not yet */
    _Atomic uint64_t silent_ns; /* when a close last ended without an answer; 0: never */
    _Atomic bool hole_told;  /* that large datagrams to it vanish; any engine thread may be the first to see it */
    struct peer_flow flows[BOOT_FLOWS_MAX];
};

struct peer_table {
    struct peer *peers;
    unsigned unmet;          /* of them, whose client has not come to the end of its handshake */
    const struct nic_ops *nic;
    const struct params *params;
    struct engine_thread *threads;
    unsigned thread_count;
    uint64_t *slots_used[BOOT_FLOWS_MAX]; /* bitmap of flow slots per thread */
};

int peer_table_init(struct peer_table *table, const struct nic_ops *nic, const struct params *params,
                    struct engine_thread *threads, unsigned thread_count);
/* Closes every flow; the threads still run. No connection is left. */
void peer_table_free(struct peer_table *table);

/* In a child of fork(): frees the memory alone. */
void peer_table_forget(struct peer_table *table);

/* Keys of the living peers with this engine id, the oldest first, for bootstrap_prove(). Returns how many. */
unsigned peer_keys(struct peer_table *table, const uint8_t engine_id[16], bool is_server,
                   struct boot_key keys[BOOT_PROOFS_MAX]);
/* The living peer whose key the other side has proved to have, with a reference more; NULL: none. */
struct peer *peer_known(struct peer_table *table, const struct bootstrap *boot, bool is_server);
/*
 * Makes a peer with fresh tokens, and one reference. UCCL_ENOMEM: also where flow slots are used up, or too many
 * handshakes with unknown clients are under way; UCCL_EADDR, UCCL_EIO. Logged.
 */
int peer_new(struct peer_table *table, const uint8_t engine_id[16], bool is_server, const struct nic_host *host,
             struct peer **out);
/* Has a first handshake with this engine id come to its end since then? Its peer lives. */
bool peer_met_since(struct peer_table *table, const uint8_t engine_id[16], bool is_server, uint64_t since_ns);
/* A handshake with it has come to its end. */
void peer_met(struct peer_table *table, struct peer *peer);
/* The last reference of a dead peer frees it; a living one is kept a while: for the next connection, or to tell GONE. */
void peer_put(struct peer_table *table, struct peer *peer);

/* Our side of the flows, for the offer of a handshake that is the first with this peer. */
void peer_fill_offer(const struct peer *peer, const struct params *params, struct boot_offer *offer);

/*
 * Takes what the other side offers in that handshake, and the features that both have: opens the flows. On failure the
 * peer is to be put.
 */
int peer_take_offer(struct peer_table *table, struct peer *peer, const struct boot_offer *offer, uint64_t features);

/* What the two ends prove to each other with. */
struct boot_key peer_key(const struct peer *peer);
/* Its flows can be used still. */
bool peer_lives(struct peer *peer);

/* A flow's CORE_EVENT_FLOW_PROVEN or CORE_EVENT_FLOW_DEAD, seen by its engine thread. */
void peer_flow_turned(struct peer_flow *flow, enum flow_life life);

/* A flow's CORE_EVENT_FLOW_HOLE, seen by its engine thread: warns once per peer. */
void peer_flow_has_hole(struct peer_flow *flow, uint32_t passing_bytes, uint32_t route_bytes);

static inline enum flow_life peer_flow_life(const struct peer_flow *flow)
{
    return (enum flow_life)atomic_load_explicit(&flow->life, memory_order_acquire); /* pairs with peer_flow_turned() */
}

#endif
