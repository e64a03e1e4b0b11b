/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a connection (conn.c, conn_send.c, conn_recv.c) share. */
#ifndef UCCL_CONN_SLOTS_H
#define UCCL_CONN_SLOTS_H

#include "core/state.h"

static inline struct send_slot *send_slot(const struct conn *conn, uint64_t number)
{
    return &conn->send_slots[number & (conn->window - 1)];
}

static inline struct recv_slot *recv_slot(const struct conn *conn, uint64_t number)
{
    return &conn->recv_slots[number & (conn->window - 1)];
}

static inline struct counters *counters(const struct conn *conn)
{
    return conn->flow->core->counters;
}

enum { EAGER_CHARGE_UNIT = 64 }; /* bounds the number of messages, even empty ones, in a ring */

/* What an eager message of this size takes of the ring. */
static inline uint64_t eager_charge(uint64_t size_bytes)
{
    uint64_t charge = (size_bytes + EAGER_CHARGE_UNIT - 1) & ~(uint64_t)(EAGER_CHARGE_UNIT - 1);
    return charge ? charge : EAGER_CHARGE_UNIT;
}

/* conn.c: a frame about message `number` is due, or no longer. */
void conn_set_due(struct conn *conn, enum due kind, uint64_t number);
static inline void conn_clear_due(struct conn *conn, enum due kind, uint64_t number)
{
    uint32_t index = (uint32_t)number & (conn->window - 1);
    uint64_t bit = UINT64_C(1) << index % 64;
    if (conn->due_count[kind] && conn->due[kind][index / 64] & bit) {
        conn->due[kind][index / 64] &= ~bit;
        conn->due_count[kind]--;
    }
}

/* conn_send.c */
void conn_submit_send(struct conn *conn, struct core_msg *msg);
/* Aborts a send of the window. The peer keeps its number until the ABORT arrives. */
void conn_end_send_early(struct conn *conn, struct core_msg *msg, int32_t status);
/* Completes a send that is delivered, and does not wait for the acks of its chunks. */
void conn_end_settling(struct conn *conn, struct core_msg *msg);
/* The peer has aborted a receive: aborts our send too, and confirms it. */
bool conn_on_abort_of_recv(struct conn *conn, uint32_t truncated, int32_t status);
/* Ends every send. */
void conn_fail_sends(struct conn *conn, int32_t status);

/* conn_recv.c */
void conn_submit_recv(struct conn *conn, struct core_msg *msg);
/* Aborts a receive of the window. Its number stays until the sender agrees. */
void conn_withdraw(struct conn *conn, struct recv_slot *slot, int32_t status);
/* The peer has aborted a send, or confirms that we aborted our receive. */
bool conn_on_abort_of_send(struct conn *conn, uint32_t truncated, int32_t status);
/* Completes every receive; `deferral`: the proof that granted ones wait for. */
void conn_fail_recvs(struct conn *conn, int32_t status, enum deferral deferral);

#endif
