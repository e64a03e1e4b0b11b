/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of a core, for its own files. */
#ifndef UCCL_CORE_STATE_H
#define UCCL_CORE_STATE_H

#include "core/flow.h"
#include "core/pool.h"
#include "core/units.h"

#include <assert.h>

enum {
    SCRATCH_COUNT = 64,                                 /* more than a NIC's largest batch of sends */
    SCRATCH_BYTES = CORE_TRAIN_MAX * WIRE_HEADER_BYTES, /* a train of bare headers, or an ack */
};

struct core {
    const struct params *params;
    struct counters *counters;
    crc32c_fn crc32c;
    bool paths_in_order, whole_trains, places_reliably, places_in_order; /* core_setup */
    struct rng rng;
    uint64_t now_ns;    /* of the current call */
    uint64_t waited_ns; /* core_waited() */
    struct timer_wheel wheel;
    struct queue ready; /* flows with something to send, in turn */
    struct pacer pacer;
    struct flow *flows[CORE_FLOWS_MAX];
    struct conn *conns[CORE_CONNS_MAX];
    struct pool small, big; /* buffers of trains of frames */
    struct images images;
    uint8_t *scratch;
    uint32_t scratch_next;
    uint32_t flow_end; /* one past the highest flow slot in use */

    struct share share; /* of the receive buffer */

    struct core_copy copies[CORE_COPIES_MAX];
    uint32_t copy_next, copy_count;
    struct tx_piece pieces[CORE_GATHER_MAX];

    struct msg_list ended;         /* complete, for core_next_event(): leaders (ahead.c) first, */
    struct core_msg *last_leader;  /* up to this one; NULL: there are none */
    struct queue ranges, arrivals; /* messages with CORE_EVENT_RANGE, CORE_EVENT_ARRIVED */
    struct queue wanted;           /* with CORE_EVENT_WANTED */
    struct core_release *releases; /* core_releases_max() of them */
    uint32_t release_next, release_count;
    struct queue conn_events, flow_events;
    struct queue acting; /* flows whose data QPs have actions for core_next_qp_action() */
};

/* Whether the rail's connections lose much, so that large messages leave them for now. */
static inline bool rail_is_lossy(const struct rail *rail)
{
    return rail->flow->core->now_ns < rail->lossy_until_ns;
}

enum { TOKEN_SLOT_BITS = 12 };
_Static_assert(CORE_FLOWS_MAX == 1 << TOKEN_SLOT_BITS, "a token's low bits name the flow slot");
static inline uint32_t token_slot(uint64_t token)
{
    return (uint32_t)token & (CORE_FLOWS_MAX - 1);
}

/* Rounds up: parts of an object's memory begin on cache lines. */
static inline size_t round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Queues a copy. There is room: a frame makes at most two, twice where it lets a receive in. */
static inline void core_copy_push(struct core *core, struct core_copy copy)
{
    assert(core->copy_count < CORE_COPIES_MAX);
    core->copies[core->copy_count++] = copy;
}

/* Most releases of one core_rx() (acked chunks) or one core_tx() (eager messages). */
static inline size_t core_releases_max(const struct params *params)
{
    return params->chunk_window > CORE_GATHER_MAX ? params->chunk_window : CORE_GATHER_MAX;
}

/* Bytes of a staged message that are not sent again (staged.c); of others: does nothing. */
void core_release_push(struct core *core, struct core_msg *msg, uint64_t offset_bytes, uint64_t length);

#endif
