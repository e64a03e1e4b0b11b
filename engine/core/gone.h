/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow answers a frame for an unknown connection by GONE with the id in the frame. So the peer does not wait for
 * ever for a connection that has ended without a word (its listener was closed, its FIN gave up). Nobody answers GONE
 * itself. It travels in a numbered packet, so that it arrives.
 *
 * A connection may be over before its FIN is acked: an abort does not wait. A CREDIT in front of that FIN names the
 * delivered messages. A GONE that overtook both would fail delivered sends. So the flow answers no frame for the
 * connection before the ack. Nothing is missed: the FIN is repeated as long as the flow lives, and does all that GONE
 * would.
 *
 * The FIN may not even have left when the connection is over: during an outage, chunks in flight leave no room. Then
 * the flow keeps the FIN and its CREDIT, and sends both as soon as it can. It does so too while the peer's address is
 * not proven: a peer that only receives has no frame for which it would get an answer.
 *
 * All connections to a peer may fail at once, when another flow to it is dead. Those of which the flow has no room to
 * keep a FIN have it due themselves (conn_owe_fin()), and a close of theirs waits for it.
 */
#ifndef UCCL_GONE_H
#define UCCL_GONE_H

#include "core/wire.h"

struct flow;

enum {
    GONE_IDS = CORE_FRAMES_MAX, /* answers that may wait: those to one packet find room */
    GONE_PER_PACKET_MAX = 16,   /* GONE frames in one packet: bounds the searches that they start */
    GONE_BUCKETS = 256,
    GONE_FINS = 256, /* FINs on their way, of connections that are over, that a flow remembers */
};

/* The last FIN of a connection that is over. */
struct gone_fin {
    union {
        uint64_t seq;              /* of the chunk that carries it */
        struct wire_credit credit; /* kept: goes in front of the FIN */
    };
    uint32_t id;             /* of the connection, as the peer writes it */
    bool used, kept, queued; /* kept: still to be sent; queued: its id waits in `ids` */
    bool bars;               /* kept, and no data QP opens before the peer has it */
};

struct gone {
    uint32_t ids[GONE_IDS]; /* answers due: GONE, or a FIN that was kept; first in, first out */
    uint32_t first, count;
    struct conn *by_remote[GONE_BUCKETS]; /* all connections, by the id that we write into frames */
    struct gone_fin fins[GONE_FINS];      /* by the low bits of the id; a later one replaces it */
    uint32_t barring;                     /* FINs with `bars`; one that was replaced counts for good */
    uint32_t key;                         /* secret, of the hash: a peer cannot choose ids that share a bucket */
};

void gone_add_conn(struct conn *conn);
void gone_remove_conn(struct conn *conn);

/* The connection is over, and its FIN, which closes both halves, is not acked yet. */
void gone_await_fin(const struct conn *conn);
/* The flow sends a FIN for the connection, behind `credit`: none has left, or the peer does not know why it failed. */
void gone_keep_fin(struct conn *conn, const struct wire_credit *credit);

/* No data QP opens before the peer has the FIN that is kept of the connection. False: none is. */
bool gone_bars_data_qps(const struct conn *conn);
/* Whether the FIN that was kept of the connection has left, and in which chunk. */
bool gone_fin_left(const struct conn *conn, uint64_t *seq);

/* The peer's address is proven: FINs that were kept until then leave. */
void gone_send_fins(struct flow *flow);

/* How many more may be answered. */
unsigned gone_room(const struct flow *flow);
/* The peer has named an unknown connection: an answer is due, unless there is no room or a FIN is on its way. */
void gone_answer(struct flow *flow, uint32_t id);
/* Writes the answers that are due (GONE, or a kept CREDIT and FIN) as frames of chunk `seq` into the `room` bytes at
 * `at`. Returns the bytes written, and the number of frames in `*frames`. */
unsigned gone_put(struct flow *flow, uint8_t *at, uint32_t room, uint64_t seq, unsigned *frames);

/* The connection that the peer calls by this id, or NULL. */
struct conn *gone_find(struct flow *flow, uint32_t remote_id);

#endif
