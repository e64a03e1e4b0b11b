/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that carry parts of striped messages for a home connection on another engine thread. They have no
 * window: a part has its number from home, and stands in a list at its slot until its bytes are here. A send part
 * completes when its chunks are acked; the home connection learns of the delivery. Only DATA frames arrive here
 * (receive.c); a packet for an unknown part is not acked.
 */
#include "core/state.h"

#include <assert.h>

static struct recv_slot *part_slot(const struct conn *conn, uint64_t number)
{
    return &conn->recv_slots[number & (conn->window - 1)];
}

/* The bytes of a message of `total` bytes, cut into n parts, that come over this end. */
static void part_range(const struct conn *conn, uint64_t number, uint64_t total, unsigned n, uint64_t *from,
                       uint64_t *to)
{
    core_stripe(total, n, core_stripe_part(number, n, conn->stripe_ends, conn->stripe), from, to);
}

static void complete_part(struct conn *conn, struct core_msg *msg, int32_t status, uint64_t moved_bytes)
{
    msg->state = MSG_ENDED;
    message_complete(conn->flow, msg, status, moved_bytes);
}

void conn_submit_part(struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    assert(conn->stripe && core_stripe_part(msg->number, msg->stripes, conn->stripe_ends, conn->stripe) < msg->stripes);
    message_begin(conn, msg, now_ns);
    msg->placeable = false; /* placing knows whole messages alone */
    if (conn->state != CONN_OPEN) {
        complete_part(conn, msg, conn->state == CONN_FAILED ? conn->status : UCCL_ECLOSED, 0);
    } else if (msg->kind == CORE_RECV) {
        struct recv_slot *slot = part_slot(conn, msg->number);
        msg->state = MSG_WAITING;
        msg->next = slot->msg;
        slot->msg = msg;
    } else {
        part_range(conn, msg->number, msg->size_bytes, msg->stripes, &msg->offset_bytes, &msg->end_bytes);
        assert(msg->offset_bytes < msg->end_bytes);
        if (msg->block_bytes) {
            conn_park(conn, msg);
            conn_want(conn, msg);
            return;
        }
        msg->state = MSG_BULK;
        msg_append(&conn->bulk, msg);
        flow_add_active(conn);
    }
}

/* Takes a receive part off its slot's list. */
static void unlist_part(struct conn *conn, struct core_msg *msg)
{
    struct core_msg **link = &part_slot(conn, msg->number)->msg;
    while (*link != msg)
        link = &(*link)->next;
    *link = msg->next;
    msg->next = NULL;
}

void conn_end_part(struct conn *conn, struct core_msg *msg, int32_t status)
{
    if (msg->state == MSG_ENDED)
        return;
    if (msg->kind == CORE_RECV) {
        unlist_part(conn, msg);
    } else {
        sent_abandon(&conn->flow->sent, msg);
        msg_remove(msg->state == MSG_BULK ? &conn->bulk : &conn->settling, msg);
    }
    complete_part(conn, msg, status, 0);
}

void conn_part_sent(struct conn *conn, struct core_msg *msg)
{
    if (msg->state != MSG_SENT)
        return;
    uint64_t from, to;
    part_range(conn, msg->number, msg->size_bytes, msg->stripes, &from, &to);
    msg_remove(&conn->settling, msg);
    complete_part(conn, msg, UCCL_OK, to - from);
}

static struct core_msg *find_part(const struct conn *conn, uint32_t truncated)
{
    struct core_msg *msg = part_slot(conn, truncated)->msg;
    while (msg && (uint32_t)msg->number != truncated)
        msg = msg->next;
    return msg;
}

bool conn_knows_part(const struct conn *conn, uint32_t truncated)
{
    return find_part(conn, truncated) != NULL;
}

struct core_msg *conn_part_target(const struct conn *conn, const struct wire_data *data)
{
    struct core_msg *msg = find_part(conn, data->msg);
    if (!msg || data->stripes != msg->stripes || data->total > msg->size_bytes)
        return NULL;
    uint64_t from, to;
    part_range(conn, msg->number, data->total, data->stripes, &from, &to);
    if (data->offset < from || data->offset > to || data->length > to - data->offset ||
        msg->offset_bytes + data->length > to - from || !msg_takes(msg, data->offset, data->length, data->total))
        return NULL;
    return msg;
}

bool conn_on_part_data(struct conn *conn, const struct wire_data *data)
{
    struct core_msg *msg = conn_part_target(conn, data);
    uint64_t from, to;
    if (!msg)
        return false;
    part_range(conn, msg->number, data->total, data->stripes, &from, &to);
    msg->offset_bytes += data->length; /* of a receive part: bytes that have arrived */
    if (data->length)
        core_copy_push(conn->flow->core,
                       (struct core_copy){
                           .from = data->payload, .msg = msg, .offset_bytes = data->offset, .length = data->length});
    if (msg->offset_bytes == to - from) {
        unlist_part(conn, msg);
        complete_part(conn, msg, UCCL_OK, to - from);
    }
    return true;
}

void conn_fail_parts(struct conn *conn, int32_t status)
{
    struct core_msg *msg;
    if (!conn->stripe)
        return;
    while ((msg = conn->bulk.head) || (msg = conn->settling.head))
        conn_end_part(conn, msg, status);
    for (uint32_t i = 0; i < conn->window; i++) {
        while ((msg = conn->recv_slots[i].msg))
            conn_end_part(conn, msg, status);
    }
}
