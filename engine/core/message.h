/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and completes messages. Defers the completion event of a message whose result is known while a work request of
 * the NIC still reads its payload (message.c), or may still write into its buffer (place.h).
 */
#ifndef UCCL_MESSAGE_H
#define UCCL_MESSAGE_H

#include "core/core.h"

struct msg_list {
    struct core_msg *head, *tail;
};

static inline void msg_append(struct msg_list *list, struct core_msg *msg)
{
    msg->next = NULL;
    msg->prev = list->tail;
    if (list->tail)
        list->tail->next = msg;
    else
        list->head = msg;
    list->tail = msg;
}

static inline void msg_remove(struct msg_list *list, struct core_msg *msg)
{
    if (msg->prev)
        msg->prev->next = msg->next;
    else
        list->head = msg->next;
    if (msg->next)
        msg->next->prev = msg->prev;
    else
        list->tail = msg->prev;
    msg->next = msg->prev = NULL;
}

/* Whether a piece of a message may be copied to its buffer: to a watched one in whole units, except at the end. */
static inline bool msg_takes(const struct core_msg *msg, uint64_t offset, uint32_t length, uint64_t total)
{
    return !msg->watched ||
           (offset % CORE_WATCHED_BYTES == 0 && (length % CORE_WATCHED_BYTES == 0 || offset + length == total));
}

/* A message is submitted: clears the core's fields, keeps the caller's. */
void message_begin(struct conn *conn, struct core_msg *msg, uint64_t now_ns);
/* The result of a message is final: it is reported now, or when the NIC has read its payload. */
void message_complete(struct flow *flow, struct core_msg *msg, int32_t status, uint64_t moved_bytes);
/*
 * Reports a complete message to the application: it waits for core_next_event(). One that was deferred:
 * conn_report_deferred().
 */
void message_report(struct flow *flow, struct core_msg *msg);
/* Queues an event of the connection, behind those of its messages. */
void message_conn_event(struct conn *conn);

#endif
