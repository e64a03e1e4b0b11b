/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that carry parts of striped messages for a home connection on another engine thread. They have no
 * window: a part has its number from home, and a receive part stands in a list at its slot until its owner ends it. A
 * send part completes when its owner has nothing left to give to it and its chunks are acked; the home connection
 * learns of the delivery. Only DATA frames arrive here (receive.c); a packet for an unknown part is not acked.
 *
 * No end knows what the others have. Each takes at most as many bytes as the message has, all of them inside of it, and
 * reports them; the message is whole when the sum is its length. So a peer that sends bytes twice, over one flow or
 * over two, spoils its own message and nothing else, as one that sends wrong bytes.
 */
#include "core/conn_slots.h"

#include <assert.h>

static void complete_part(struct conn *conn, struct core_msg *msg, int32_t status, uint64_t moved_bytes)
{
    msg->state = MSG_ENDED;
    message_complete(conn->flow, msg, status, moved_bytes);
}

void conn_submit_part(struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    assert(conn->for_parts && msg->stripes > 1);
    message_begin(conn, msg, now_ns);
    msg->placeable = 0; /* placing knows whole messages alone */
    if (conn->state != CONN_OPEN) {
        complete_part(conn, msg, conn->state == CONN_FAILED ? conn->status : UCCL_ECLOSED, 0);
    } else if (msg->kind == CORE_RECV) {
        struct recv_slot *slot = recv_slot(conn, msg->number);
        msg->state = MSG_WAITING;
        msg->next = slot->msg;
        slot->msg = msg;
    } else {
        conn_ask_range(conn, msg);
    }
}

/* Takes a receive part off its slot's list. */
static void unlist_part(struct conn *conn, struct core_msg *msg)
{
    struct core_msg **link = &recv_slot(conn, msg->number)->msg;
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
    complete_part(conn, msg, status, msg->kind == CORE_RECV ? msg->offset_bytes : 0);
}

void conn_part_sent(struct conn *conn, struct core_msg *msg)
{
    if (msg->state != MSG_SENT)
        return;
    msg_remove(&conn->settling, msg);
    complete_part(conn, msg, UCCL_OK, 0);
}

static struct core_msg *find_part(const struct conn *conn, uint32_t truncated)
{
    struct core_msg *msg = recv_slot(conn, truncated)->msg;
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
    if (!msg || data->stripes != msg->stripes || data->total > msg->size_bytes ||
        (msg->offset_bytes && data->total != msg->end_bytes) || data->length > data->total - msg->offset_bytes ||
        data->length > data->total - data->offset || !msg_takes(msg, data->offset, data->length, data->total))
        return NULL;
    return msg;
}

void conn_arrived(struct conn *conn, struct core_msg *msg, const struct wire_data *data)
{
    msg->end_bytes = data->total;
    msg->available_bytes += data->length;
    if (data->length)
        queue_append(&conn->flow->core->arrivals, &msg->spread);
}

bool conn_on_part_data(struct conn *conn, const struct wire_data *data)
{
    struct core_msg *msg = conn_part_target(conn, data);
    if (!msg)
        return false;
    msg->offset_bytes += data->length;
    if (data->length)
        core_copy_push(conn->flow->core,
                       (struct core_copy){
                           .from = data->payload, .msg = msg, .offset_bytes = data->offset, .length = data->length});
    conn_arrived(conn, msg, data);
    return true;
}

void conn_fail_parts(struct conn *conn, int32_t status)
{
    struct core_msg *msg;
    if (!conn->for_parts)
        return;
    while ((msg = conn->bulk.head) || (msg = conn->settling.head))
        conn_end_part(conn, msg, status);
    for (uint32_t i = 0; i < conn->window; i++) {
        while ((msg = conn->recv_slots[i].msg))
            conn_end_part(conn, msg, status);
    }
}
