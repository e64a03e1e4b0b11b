/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of an engine: one per process incarnation that we talk to (its 128-bit engine id), with a flow per
 * pair of engine threads that all connections to it share. A connection to the engine itself has a peer
 * at each end.
 *
 * Tokens are drawn when a peer is first met and kept while it is known, so that any number of
 * handshakes in any order agree. A handshake that brings other tokens than known means that the peer
 * has forgotten us: the old flows are dead and a new peer takes their place.
 *
 * Threads: application threads under the engine's lock; flows are touched by their engine thread.
 */
#ifndef UCCL_PEER_H
#define UCCL_PEER_H

#include "bootstrap.h"
#include "thread.h"

struct peer_flow {
    struct engine_thread *thread;
    struct flow *flow;       /* NULL until the peer's tokens are known */
    struct flow_setup setup;
    void *memory;
    size_t memory_bytes;
    uint32_t slot;           /* flow slot of the thread */
    bool dead;
};

struct peer {
    struct peer *next;
    uint8_t engine_id[16];
    bool is_server;          /* our end; tells the ends of a connection to ourselves apart */
    union nic_address address;
    uint32_t references;     /* connections and handshakes */
    uint64_t idle_since_ns;  /* when the last reference went */
    unsigned flow_count;     /* our threads */
    unsigned flows_open;     /* flows in use: the smaller of both sides' counts */
    bool dead;
    struct peer_flow flows[BOOT_FLOWS_MAX];
};

struct peer_table {
    struct peer *peers;
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

/* Finds a living peer, or makes one, and takes a reference. UCCL_ENOMEM, UCCL_EADDR, UCCL_EIO. */
int peer_get(struct peer_table *table, const uint8_t engine_id[16], bool is_server,
             const union nic_address *address, struct peer **out);
/* The last reference of a dead peer frees it; a living one is kept a while for the next connection. */
void peer_put(struct peer_table *table, struct peer *peer);

/* Our side of the flows, for an offer. */
void peer_fill_offer(const struct peer *peer, const struct params *params, struct boot_offer *offer);

/*
 * Takes what the peer offers: opens the flows that are not open. UCCL_EAGAIN: the tokens are not those that we
 * know; the peer is dead now, put it and start over. UCCL_ENOMEM.
 */
int peer_take_offer(struct peer_table *table, struct peer *peer, const struct boot_offer *offer);

/* A flow's CORE_EVENT_FLOW_DEAD, seen by its engine thread. */
void peer_flow_died(struct peer_flow *flow);

#endif
