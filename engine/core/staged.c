/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends whose payload the shell fetches block by block to memory that the NIC can read (`block_bytes` of core_msg). The
 * core asks for a message (CORE_EVENT_WANTED), sends the bytes that core_available() reports, cuts no chunk across
 * blocks, and releases bytes that it will not send again (core_next_release()).
 *
 * The core asks once only the congestion window stands between a message and the wire: it has its clear-to-send, or
 * its slot in the peer's eager ring. So fetched blocks go out soon, whatever the peer's application does, and a
 * bounded number of blocks serves any number of messages.
 *
 * A started message without available bytes is PARKED: on no list, or on `settling` if it is a part. So is a striped
 * one, staged or not, that waits for its next range.
 */
#include "core/conn_slots.h"

#include <assert.h>

void conn_want(struct conn *conn, struct core_msg *msg)
{
    assert(!(msg->flags & MSG_WANTED));
    msg->flags |= MSG_WANTED;
    msg->available_bytes = msg->offset_bytes;
    queue_append(&conn->flow->core->wanted, &msg->wanted);
}

void conn_park(struct conn *conn, struct core_msg *msg)
{
    msg->state = MSG_PARKED;
    if (conn->for_parts)
        msg_append(&conn->settling, msg);
}

void conn_ask_range(struct conn *conn, struct core_msg *msg)
{
    msg->flags |= MSG_ASKS;
    msg->flags &= (uint8_t)~MSG_WANTED; /* each range is fetched anew */
    conn_park(conn, msg);
    queue_append(&conn->flow->core->ranges, &msg->spread);
}

void conn_available(struct conn *conn, struct core_msg *msg, uint64_t bytes)
{
    if (msg->state == MSG_ENDED)
        return;
    assert(bytes > msg->available_bytes && bytes <= msg->end_bytes);
    msg->available_bytes = bytes;
    if (msg->state == MSG_PARKED) {
        if (conn->for_parts)
            msg_remove(&conn->settling, msg);
        msg->state = MSG_BULK;
        msg_append(&conn->bulk, msg);
    }
    flow_add_active(conn);
}

void core_release_push(struct core *core, struct core_msg *msg, uint64_t offset_bytes, uint64_t length)
{
    if (msg->block_bytes == 0)
        return;
    assert(core->release_count < core_releases_max(core->params));
    core->releases[core->release_count++] = (struct core_release){msg, offset_bytes, length};
}
