/* SPDX-License-Identifier: Apache-2.0 */
#include "core/message.h"
#include "core/state.h"

#include <assert.h>
#include <string.h>

void message_begin(struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    memset(msg, 0, offsetof(struct core_msg, kind));
    msg->conn = conn;
    flow_expect_peer(conn->flow, now_ns);
    conn->flow->msgs_pending++;
}

void message_complete(struct flow *flow, struct core_msg *msg, int32_t status, uint64_t moved_bytes)
{
    struct core *core = flow->core;
    msg->status = status;
    msg->moved_bytes = moved_bytes;
    queue_remove(msg->kind == CORE_SEND ? &core->ranges : &core->arrivals, &msg->spread);
    if (msg->work_live) {
        msg->deferral = DEFER_WORK;
        msg->conn->deferred++;
    } else {
        message_report(flow, msg);
    }
}

/* Behind the leaders that wait, and before all others. */
static void append_leader(struct core *core, struct core_msg *msg)
{
    struct core_msg *before = core->last_leader;
    msg->prev = before;
    msg->next = before ? before->next : core->ended.head;
    *(before ? &before->next : &core->ended.head) = msg;
    *(msg->next ? &msg->next->prev : &core->ended.tail) = msg;
    core->last_leader = msg;
}

void message_report(struct flow *flow, struct core_msg *msg)
{
    struct counters *counters = flow->core->counters;
    struct conn *conn = msg->conn;
    assert(flow->msgs_pending && !msg->work_live && !msg->grant_slot);
    flow->msgs_pending--;
    if (conn->follower && msg->kind == CORE_RECV)
        append_leader(flow->core, msg);
    else
        msg_append(&flow->core->ended, msg);
    if (msg->kind == CORE_RECV)
        flow_note_bulk(flow, msg, msg->moved_bytes);
    if (msg->status == UCCL_OK && !conn->uncounted) {
        if (msg->kind == CORE_SEND) {
            COUNT(counters, msgs_sent, 1);
            COUNT(counters, bytes_sent, msg->moved_bytes);
        } else {
            COUNT(counters, msgs_received, 1);
            COUNT(counters, bytes_received, msg->moved_bytes);
        }
    }
}

void message_conn_event(struct conn *conn)
{
    conn->event_waits = conn->deferred > 0; /* no event of a connection comes before those of its messages */
    if (!conn->event_waits)
        queue_append(&conn->flow->core->conn_events, &conn->event);
}
