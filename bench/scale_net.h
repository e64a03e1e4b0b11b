/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of scale_sim: a fat tree of links with output queues (scale_model.h), packets on
 * their way, and the queue of events that moves virtual time. One thread; what is random comes from
 * one seed.
 */
#ifndef SCALE_NET_H
#define SCALE_NET_H

#include "core/rng.h"
#include "scale_matrix.h"
#include "scale_model.h"

struct link {
    uint64_t free_ps;     /* when all that waits has left */
    uint32_t ps_per_byte; /* 0: the link is dead and swallows everything */
    bool host;            /* its end is a host, not a switch */
};

/* One datagram. Payload is not carried: its bytes are nobody's business here. */
struct packet {
    uint32_t length;       /* bytes on the wire */
    uint16_t header_bytes; /* of them, those that follow below */
    uint8_t hop, hops;
    bool ce;
    uint32_t host; /* where it goes */
    uint32_t next_free;
    uint32_t links[MODEL_HOPS_MAX];
    uint8_t header[];
};

enum { PACKET_SMALL_BYTES = 256, PACKET_LARGE_BYTES = 8192, PACKET_CLASSES = 2 };

struct packet_pool {
    uint8_t *memory;
    uint32_t bytes;      /* of one packet */
    uint32_t room, used; /* packets */
    uint32_t free_head;  /* 1 + index; 0: none */
};

enum event_kind { EVENT_PACKET, EVENT_HOST, EVENT_START };

struct event {
    uint64_t at_ps;
    uint64_t order; /* of two at one time, the one scheduled first comes first */
    uint32_t what;  /* packet handle, host, or message */
    uint32_t kind;  /* enum event_kind */
};

struct net {
    uint32_t k, half;       /* ports of a switch, and half of them */
    uint32_t cores_per_agg; /* uplinks of an aggregation switch: half, or fewer when oversubscribed */
    uint32_t hosts;
    uint64_t now_ps;
    struct rng rng;
    uint64_t hash_seed;
    struct link *links;
    uint32_t link_count;
    uint32_t first[5]; /* of each group of links: see net_link() */
    struct packet_pool pools[PACKET_CLASSES];
    struct event *heap;
    size_t heap_count, heap_room;
    uint64_t next_order;
    /* counted */
    uint64_t sent, dropped_full, dropped_dead, marked, events;
    uint64_t queue_max_bytes;
};

enum link_group { LINK_HOST_UP, LINK_HOST_DOWN, LINK_TOR, LINK_AGG, LINK_GROUPS };

/* The smallest tree that holds so many nodes. `oversubscription`: the k/2 uplinks of an aggregation
 * switch are reduced to this part of them. */
void net_create(struct net *net, uint32_t nodes, uint32_t oversubscription, uint64_t seed);
void net_destroy(struct net *net);

/* Sets both directions of an uplink: quarters of its rate, 0 for dead. False: there is no such
 * link. */
bool net_set_link(struct net *net, const struct failure *link, unsigned quarters);
/* `count` uplinks of racks, no two of one rack while there are others, chosen by the seed. */
void net_fail_links(struct net *net, uint32_t count, unsigned quarters);

/* The time in which everything can have been received (model_bound_ps()); 0: that has no bound. */
uint64_t net_ideal_ps(const struct net *net, const struct matrix *matrix);

/* A packet to fill in (length, header_bytes, header), of at most so many header bytes. */
uint32_t net_new_packet(struct net *net, uint32_t header_bytes);
struct packet *net_packet(const struct net *net, uint32_t handle);
void net_free_packet(struct net *net, uint32_t handle);
/* Hands it to the NIC of `src`. */
void net_send(struct net *net, uint32_t handle, uint32_t src, uint32_t dst, uint32_t path);
/* Bytes that wait at the NIC of a host, and when no more than so many do. */
uint64_t net_nic_backlog(const struct net *net, uint32_t host);
uint64_t net_nic_drained_ps(const struct net *net, uint32_t host, uint64_t bytes);

void net_schedule(struct net *net, uint64_t at_ps, enum event_kind kind, uint32_t what);
/* The next event that is not a packet's move inside the network; a packet's is its arrival at a
 * host. False: nothing is left. */
bool net_next(struct net *net, struct event *event);

#endif
