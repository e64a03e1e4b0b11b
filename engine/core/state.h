/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of a core, for its own files. */
#ifndef UCCL_CORE_STATE_H
#define UCCL_CORE_STATE_H

#include "core/flow.h"
#include "core/pool.h"

#include <assert.h>

enum {
    SCRATCH_COUNT = 64,                                  /* more than a NIC stages before it flushes */
    SCRATCH_BYTES = CORE_TRAIN_MAX * WIRE_HEADER_BYTES,  /* a train of bare headers, or an ack */
};

struct core {
    const struct params *params;
    struct counters *counters;
    crc32c_fn crc32c;
    bool paths_in_order, places_reliably, places_in_order; /* core_setup */
    struct rng rng;
    uint64_t now_ns;                /* of the current call */
    uint64_t waited_ns;             /* core_waited() */
    struct timer_wheel wheel;
    struct queue ready;             /* flows with something to send, in turn */
    struct pacer pacer;
    struct flow *flows[CORE_FLOWS_MAX];
    struct conn *conns[CORE_CONNS_MAX];
    struct pool small, big;         /* buffers of trains of frames */
    struct images images;
    uint8_t *scratch;
    uint32_t scratch_next;
    uint32_t flow_end;              /* one past the highest flow slot in use */

    /* how the receive buffer is shared: among the flows that were heard of lately, and less of it after
     * the kernel has dropped something */
    uint64_t share_epoch_ns;        /* begin of the current period */
    uint32_t share_epoch;           /* its number */
    uint32_t flows_heard, flows_heard_before; /* in this period and in the last one */
    uint32_t share_divisor;         /* 1; doubles in a period with drops, halves in one without */
    uint64_t kernel_drops_seen;

    struct core_copy copies[CORE_COPIES_MAX];
    uint32_t copy_next, copy_count;
    struct tx_piece pieces[CORE_GATHER_MAX];

    struct msg_list ended;          /* for core_next_event() */
    struct queue splits, wanted;    /* of messages */
    struct core_release *releases;  /* core_releases_max() of them */
    uint32_t release_next, release_count;
    struct queue conn_events, flow_events;
    struct queue paths;             /* flows whose data QPs want something done, for core_next_path() */
};

/* Pieces of an object's memory begin on cache lines. */
static inline size_t round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static inline void msg_append(struct msg_list *list, struct core_msg *msg)
{
    msg->next = 0;
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
    msg->next = msg->prev = 0;
}

/* Whether such a piece of a message may be copied to the buffer: to a watched one in whole units, but at its end. */
static inline bool msg_takes(const struct core_msg *msg, uint64_t offset, uint32_t length, uint64_t total)
{
    return !msg->watched ||
           (offset % CORE_WATCHED_BYTES == 0 && (length % CORE_WATCHED_BYTES == 0 || offset + length == total));
}

/* Queues a copy. There is room: a frame makes at most two, twice where it lets a receive in. */
static inline void core_copy_push(struct core *core, struct core_copy copy)
{
    assert(core->copy_count < CORE_COPIES_MAX);
    core->copies[core->copy_count++] = copy;
}

/* What one core_rx() may release, acked chunks, or one core_tx(), eager messages. */
static inline size_t core_releases_max(const struct params *params)
{
    return params->chunk_window > CORE_GATHER_MAX ? params->chunk_window : CORE_GATHER_MAX;
}

/* These bytes, where the message is staged, are not sent again (staged.c). */
void core_release_push(struct core *core, struct core_msg *msg, uint64_t offset_bytes, uint64_t length);

#endif
