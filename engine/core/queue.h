/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First-in first-out queues of objects with one link per queue that they may be on. Every call takes constant time. A
 * zeroed queue is empty, a zeroed link on no queue.
 */
#ifndef UCCL_QUEUE_H
#define UCCL_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

struct queue_link {
    struct queue_link *next;
    struct queue_link **to_here; /* the pointer to this link; NULL: it is on no queue */
};

struct queue {
    struct queue_link *head;
    struct queue_link **end; /* the last link's `next`; not valid while the queue is empty */
};

static inline bool queue_has(const struct queue_link *link)
{
    return link->to_here != NULL;
}

/* The last link: its `next`, to which `end` points, is its first member. */
static inline struct queue_link *queue_last(const struct queue *queue)
{
    return queue->head ? (struct queue_link *)queue->end : NULL;
}

/* Appends the link. False: it is on a queue already, where it stays. */
static inline bool queue_append(struct queue *queue, struct queue_link *link)
{
    if (queue_has(link))
        return false;
    link->to_here = queue->head ? queue->end : &queue->head;
    link->next = NULL;
    *link->to_here = link;
    queue->end = &link->next;
    return true;
}

/* Takes the link off the queue, if it is on it. */
static inline void queue_remove(struct queue *queue, struct queue_link *link)
{
    if (!queue_has(link))
        return;
    *link->to_here = link->next;
    if (link->next)
        link->next->to_here = link->to_here;
    else
        queue->end = link->to_here;
    link->to_here = NULL;
}

/* The `type` whose `member` this link is; NULL of NULL. */
static inline void *queue_holder(const struct queue_link *link, size_t offset)
{
    return link ? (char *)link - offset : NULL;
}
#define QUEUE_HOLDER(link, type, member) ((type *)queue_holder(link, offsetof(type, member)))

#endif
