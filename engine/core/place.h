/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that the NIC places: grants, chunks that travel as writes with immediate, and the proof that a
 * buffer is out of every NIC's reach before its request ends.
 *
 * A receive that ends without being whole is held until no original of its chunks can arrive any more:
 *   DEFER_REVOKE_DUE    the peer is still to be told (END, FIN)
 *   DEFER_REVOKE_SENT   it has been, by chunk `deferred_until`, which is not acked yet
 *   DEFER_ARRIVAL  the peer makes no more chunks for it; all chunks before `deferred_until` must have arrived. By the
 *               rule of retransmissions (data_qp.h) a chunk that has arrived has no copy left that could be placed
 *   DEFER_DRAIN  or all queue pairs must be drained here: the peer is dead, or the linger of a close is over
 * Where the peer takes a message back it says so in some chunk: that is DEFER_ARRIVAL until that chunk. Where we
 * do, the ack of the chunk that told it says how many chunks the peer had made by then.
 *
 * A send that ends is held (DEFER_WORK) while a work request reads it.
 */
#ifndef UCCL_PLACE_H
#define UCCL_PLACE_H

#include "core/conn.h"
#include "core/sent.h"

enum deferral { DEFER_NONE, DEFER_WORK, DEFER_REVOKE_DUE, DEFER_REVOKE_SENT, DEFER_ARRIVAL, DEFER_DRAIN };

struct place {
    struct core_msg **grants; /* by slot */
    uint16_t *free;           /* slots that are free */
    uint32_t free_count, slot_count;
    struct msg_list deferred; /* receives that have ended, but are not reported */
};

size_t place_size(const struct params *params, const struct flow_setup *setup);
void place_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup);

/* Gives the receive a slot, for its clear-to-send. False: it cannot be placed to, is watched, or no slot is free. */
bool place_grant(struct flow *flow, struct core_msg *msg);

/* A receive has ended with its bytes whole: nothing can be under way to it. */
void place_end_whole(struct flow *flow, struct core_msg *msg, uint64_t moved_bytes);
/* It has ended otherwise; `deferral` says what is to be proven, DEFER_ARRIVAL from the chunk that is being read. */
void place_end_early(struct flow *flow, struct core_msg *msg, int32_t status, enum deferral deferral);
/* The peer is told now, by chunk `seq`, that receive `number` (UINT64_MAX: every one) has ended. */
void place_revoke_sent(struct conn *conn, uint64_t number, uint64_t seq);
/* The peer says, in the chunk that is being read, that it sends this one, or none, any more. */
void place_peer_ended(struct conn *conn, uint64_t number);
/* The connection ends without waiting for the peer any longer. */
void place_give_up(struct conn *conn);

/* The peer is dead. */
void place_flow_dead(struct flow *flow);

/* An ack has been dealt with; `next`: the peer's chunks numbered by then, as it is on the wire. */
void place_on_ack(struct flow *flow, uint32_t next);
/* Chunks have arrived. */
void place_on_arrival(struct flow *flow);
/* A queue pair has been drained here. */
void place_on_drained(struct flow *flow);

/* A write came over a data QP that receives. */
void place_rx(struct flow *flow, uint16_t qp, uint32_t immediate, uint32_t length, uint64_t now_ns);

#endif
