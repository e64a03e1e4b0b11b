/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame for a connection that is not known here is answered by GONE with the id that it named, so that the peer does not
 * wait for ever for a connection that has ended without a word (its listener was closed, its FIN gave up).
 * GONE itself is never answered, and travels in a numbered packet, so that it gets there.
 *
 * A connection may be over before its FIN is acked: an abort does not wait. In front of that FIN is a CREDIT that says what
 * was delivered. A GONE that overtook both would fail sends that were delivered. So frames for the connection are not
 * answered before the ack. None is missed: the FIN is repeated as long as the flow lives, and ends all that GONE would.
 *
 * The FIN may not even have left when the connection is over: what is in flight leaves no room while the network is out. Then the
 * flow keeps it, with its CREDIT, and sends both as soon as it can.
 */
#ifndef UCCL_GONE_H
#define UCCL_GONE_H

#include "core/wire.h"

struct flow;

enum {
    GONE_IDS = CORE_FRAMES_MAX, /* that may wait to be told: those of one packet find room */
    GONE_PER_PACKET_MAX = 16,   /* GONE frames in one packet: bounds the search that each of them starts */
    GONE_BUCKETS = 256,
    GONE_FINS = 256,            /* connections that are over with a FIN on its way: as many are remembered */
};

/* The last FIN of a connection that is over. */
struct gone_fin {
    union {
        uint64_t seq;              /* of the chunk that carries it */
        struct wire_credit credit; /* while it is still to be sent: goes in front of it */
    };
    uint32_t id;                   /* of the connection, as the peer writes it */
    bool used, kept, queued;       /* kept: still to be sent; queued: its turn comes, in `ids` */
};

struct gone {
    uint32_t ids[GONE_IDS];               /* to be told, by GONE or by a FIN that was kept; first in, first out */
    uint32_t first, count;
    struct conn *by_remote[GONE_BUCKETS]; /* all connections, by the id that we write into frames */
    struct gone_fin fins[GONE_FINS];      /* by the low bits of the id; a later one replaces it */
    uint32_t key;                         /* of the hash: a peer cannot choose ids that share a bucket */
};

void gone_add_conn(struct conn *conn);
void gone_remove_conn(struct conn *conn);

/* The connection is over before its FIN, which says that both halves are, is acked. */
void gone_await_fin(const struct conn *conn);
/* Nor has that FIN left, or the connection has failed for a reason that the peer does not know: the flow tells it. */
void gone_keep_fin(struct conn *conn, const struct wire_credit *credit);

/* How many more may be answered. */
unsigned gone_room(const struct flow *flow);
/* The peer has named a connection that is not known; dropped where there is no room, or where a FIN is on its way. */
void gone_answer(struct flow *flow, uint32_t id);
/* Writes what is to be told into [at, at + room), in the chunk `seq`: the bytes written, and how many `frames`. */
unsigned gone_put(struct flow *flow, uint8_t *at, uint32_t room, uint64_t seq, unsigned *frames);

/* The connection that the peer calls by this id, or NULL. */
struct conn *gone_find(struct flow *flow, uint32_t remote_id);

#endif
