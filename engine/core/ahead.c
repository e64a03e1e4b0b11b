/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends that start before their clear-to-send. On an annex that follows another one (core_annex_follow()) the peer
 * posts a receive when it has read the leader, which is the message that announces the send. So a send starts once its
 * leader is in a chunk, and finds its receive posted, unless the leader was lost or overtaken. Then its bytes are
 * early: they are not acked, and come again (receive.c).
 *
 * Until the clear-to-send comes at most `ahead_bytes` of a message go, over the home flow alone. The clear-to-send
 * allows the rest, over further flows too. The receiver leaves it out where the bytes of a message have begun to come
 * and need none.
 *
 * The chunks of such a message take the path of the leader as long as that is under way, so that they do not overtake
 * it. A packet that is early acts in no part. So bytes never share a chunk with their leader, which could not arrive
 * then; and each chunk waits for earlier ones only.
 *
 * `ring_at` of a message is, until it starts, the end of its leaders' numbers; then the chunk with the last of them. Of
 * one that waits for its clear-to-send it is 0.
 */
#include "core/conn_slots.h"

#include <assert.h>

static void queue(struct conn *conn, struct core_msg *msg)
{
    msg->state = MSG_BULK;
    msg_append(&conn->bulk, msg);
    flow_add_active(conn);
}

static void start(struct conn *conn, struct core_msg *msg)
{
    assert(!msg->block_bytes);
    msg->flags |= MSG_AHEAD;
    msg->ring_at = conn->flow->sent.next_seq;
    msg->end_bytes = msg->size_bytes < conn->ahead_bytes ? msg->size_bytes : conn->ahead_bytes;
    queue(conn, msg);
}

/* Starts the messages whose leaders are in chunks. */
static void start_led(struct conn *conn)
{
    if (conn->ahead_next < conn->delivered)
        conn->ahead_next = conn->delivered;
    for (; conn->ahead_next < conn->send_admitted; conn->ahead_next++) {
        struct core_msg *msg = send_slot(conn, conn->ahead_next)->msg;
        if (!msg || msg->state != MSG_WAITING || !msg->ring_at)
            continue; /* it is over, or waits for its clear-to-send, or has that */
        if (msg->ring_at > conn->leader->eager_put)
            return;
        start(conn, msg);
    }
}

void conn_await_leader(struct conn *conn, struct core_msg *msg)
{
    msg->ring_at = conn->leader->send_next;
    start_led(conn);
}

void conn_lead(struct conn *leader, uint64_t number)
{
    if (leader->eager_put <= number)
        leader->eager_put = number + 1;
    start_led(leader->follower);
}

void conn_on_late_cts(struct conn *conn, struct core_msg *msg, const struct send_slot *slot)
{
    msg->flags &= (uint8_t)~MSG_AHEAD;
    if (msg->state == MSG_SENT)
        return;
    if (slot->stripes > 1 && !slot->range_units) {
        if (msg->state == MSG_BULK)
            msg_remove(&conn->bulk, msg);
        msg->stripes = slot->stripes;
        msg->end_bytes = 0;
        conn_ask_range(conn, msg);
        return;
    }
    msg->end_bytes = msg->size_bytes;
    if (msg->state == MSG_PARKED)
        queue(conn, msg);
}

bool chunk_is_ahead(const struct chunk *chunk)
{
    return chunk->kind == CHUNK_BULK && chunk->bulk.msg->flags & MSG_AHEAD;
}

int conn_leader_path(const struct core_msg *msg, const struct rail *rail)
{
    const struct sent *sent = &rail->flow->sent;
    const struct chunk *leader = sent_chunk(sent, msg->ring_at);
    bool flies = msg->flags & MSG_AHEAD && msg->ring_at >= sent->cumulative && leader->state == CHUNK_FLYING;
    return flies && !leader->placed && leader->rail == rail->index && !rail->reliable ? leader->path : -1;
}

bool conn_awaits_recv(const struct conn *conn, uint32_t truncated)
{
    uint64_t number = wire_expand(truncated, conn->recv_base);
    if (conn->state != CONN_OPEN || number < conn->recv_base || number >= conn->recv_base + conn->window)
        return false;
    const struct recv_slot *slot = recv_slot(conn, number);
    return number >= conn->recv_admitted || (slot->msg && !slot->msg->ahead && !(slot->flags & RECV_CLEARED));
}
