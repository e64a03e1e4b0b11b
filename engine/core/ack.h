/* SPDX-License-Identifier: Apache-2.0 */
/* Acks: ack.c acts on the peer's, ack_send.c decides when ours go and what they say. */
#ifndef UCCL_ACK_H
#define UCCL_ACK_H

#include "core/wire.h"

struct chunk;
struct conn;
struct flow;

struct ack {
    bool pending;         /* something arrived since our last ack */
    bool now;             /* it goes at once */
    uint32_t chunks;      /* chunks completed since our last ack */
    uint32_t number;      /* of our next ack */
    uint64_t at_ns;       /* when a pending ack goes out by itself */
    uint16_t path;        /* that our last ack took */
    uint16_t path_before; /* and the one before */
    bool repeats;         /* the peer retransmits chunks that have arrived: perhaps `path` swallows acks */
    bool peer_seen;       /* an ack of the peer has come */
    uint32_t peer_number; /* of the newest of them */
};

/* An ack has come; not `fresh`: in a retransmission. False: it acks chunks that were never sent. */
bool ack_on_frame(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns);
/* A chunk of the flow's `sent` is acked whole: frees what its record refers to. */
void ack_on_chunk(void *flow, struct chunk *chunk);
/* Takes `count` chunks from `seq` on as acked, since a reliable NIC reports that its writes on data QP `qp` are placed.
 * Skips chunks that have moved to another path since. */
void ack_on_placed(struct flow *flow, uint64_t seq, uint32_t count, uint16_t qp);

/* An ack is owed: at once, or within `delay_ns`. */
void ack_owe(struct flow *flow, uint64_t delay_ns, bool now);
/* An ack is owed: at once, or after the usual delay (UCCL_ACK_DELAY_US). */
void ack_owe_delayed(struct flow *flow, bool now);
/* Fills in an ack that is about to leave: none is owed any more. */
void ack_fill(struct flow *flow, struct wire_ack *ack, uint64_t now_ns);
/* The NIC has refused that ack: one is owed at once; `repeats`: as ack.repeats was. */
void ack_undo(struct flow *flow, bool repeats);

#endif
