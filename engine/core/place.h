/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that the NIC places: grants, chunks that travel as writes with immediate, and the proof that a
 * buffer is out of every NIC's reach before its request completes.
 *
 * A receive that ends without being whole completes once no original of its chunks can arrive any more:
 *   DEFER_REVOKE_DUE   an ABORT or a FIN to the peer is due
 *   DEFER_REVOKE_SENT  chunk `deferred_until` carries it, and is not acked yet
 *   DEFER_ARRIVAL      the peer makes no more chunks for the receive; waits until all chunks before `deferred_until`
 *                      have arrived. A chunk that has arrived has no copy left that could be placed (data_qp.h)
 *   DEFER_DRAIN        waits until all data QPs are drained here: the peer is dead or does not answer, or the linger of
 *                      a close is over
 * Where the peer aborts, some chunk carries its ABORT: the receive waits for the arrival of all chunks before that one.
 * Where we abort, the ack of the chunk with our ABORT says how many chunks the peer had made by then.
 *
 * A send completes (DEFER_WORK) once no work request reads its payload.
 */
#ifndef UCCL_PLACE_H
#define UCCL_PLACE_H

#include "core/conn.h"
#include "core/sent.h"

struct place {
    struct core_msg **grants; /* by slot */
    uint16_t *free;           /* slots that are free */
    uint32_t free_count, slot_count;
    struct msg_list deferred; /* receives that have ended, but are not reported yet */
    uint64_t deferred_ns;     /* since when the first of them waits */
};

size_t place_size(const struct params *params, const struct flow_setup *setup);
void place_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup);

/* Gives the receive a slot, for its clear-to-send. False: no NIC may write to its buffer, or no slot is free. */
bool place_grant(struct flow *flow, struct core_msg *msg);

/* A receive is whole: no write to it can be under way. */
void place_end_whole(struct flow *flow, struct core_msg *msg, uint64_t moved_bytes);
/*
 * A receive has ended otherwise; `deferral`: the proof to wait for. DEFER_ARRIVAL: up to the chunk that is being read.
 */
void place_end_early(struct flow *flow, struct core_msg *msg, int32_t status, enum deferral deferral);
/* Chunk `seq` carries the ABORT of receive `number`, or the FIN (UINT64_MAX: of every receive). */
void place_revoke_sent(struct conn *conn, uint64_t number, uint64_t seq);
/* The chunk that is being read says that the peer no longer sends this message, or any (UINT64_MAX). */
void place_peer_ended(struct conn *conn, uint64_t number);
/* The connection ends without waiting for the peer any longer. */
void place_give_up(struct conn *conn);

/*
 * The peer has had UCCL_DEAD_PEER_MS to let go of the first receive that has ended early, and lives: it breaks the
 * protocol. All such receives wait for drains from now on, as when the peer is dead. UINT64_MAX: none waits for it.
 */
uint64_t place_deadline(const struct flow *flow);
void place_expire(struct flow *flow, uint64_t now_ns);

/* All receives that have ended early wait for drains from now on: the peer is dead, or as good as dead to them. */
void place_drain_all(struct flow *flow);

/* An ack has acted; `next`: the number of the peer's next chunk by then, as on the wire. */
void place_on_ack(struct flow *flow, uint32_t next);
/* Chunks have arrived. */
void place_on_arrival(struct flow *flow);
/* A queue pair has been drained here. */
void place_on_drained(struct flow *flow);

/* A write came over a data QP that receives. */
void place_rx(struct flow *flow, uint16_t qp, uint32_t immediate, uint32_t length, uint64_t now_ns);

#endif
