/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory of an engine thread, in blocks. A message takes spans: a span is a block, or for small messages
 * a slice of a block that several share. A shared block is handed out from its beginning to its end, and is free
 * again when all its spans are. Spans live no longer than a copy and a trip through the network, so this is good
 * enough.
 *
 * Invariant: each side (sends, receives) leaves the other at least a quarter of blocks and spans, so neither can
 * starve the other. Spans of a send stay taken until its chunks are acked, those of a receive until its device has
 * copied them. So a flow whose peer is silent, and a device that copies nothing, leave the others some (core/pool.h),
 * and an eighth is for flows and devices that hold none. A device gets a larger part: there are few.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_STAGE_POOL_H
#define UCCL_STAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct uccl_request;

enum stage_side { STAGE_SENDS, STAGE_RECEIVES, STAGE_SIDES };

enum {
    STAGE_RANGES = 8, /* separate ranges that a span of a receive may have got */
    STAGE_SPANS_PER_BLOCK = 32,
    STAGE_SLICE_UNIT = 64,
};

/* What a flow holds for its sends, or a device for its receives. */
struct stage_held {
    uint64_t bytes;
    uint32_t spans;
};

struct stage_block {
    struct stage_block *next; /* free */
    uint8_t *memory;
    uint32_t spans;      /* in it */
    uint32_t used_bytes; /* handed out */
    uint8_t side;        /* enum stage_side */
};

enum span_state {
    SPAN_FETCHING,  /* send: a copy from the device is in flight */
    SPAN_READY,     /* send: its bytes may be sent */
    SPAN_FILLING,   /* receive: payload arrives from the network */
    SPAN_UPLOADING, /* receive: its payload goes up to the device */
    SLOT_RESERVED,  /* bounce slot (bounce.h): its copy is to be issued */
    SLOT_FETCHING,  /* and is on its way */
    SLOT_READY,     /* its chunk may be sent */
    SLOT_SENT,      /* and is being sent */
};

struct stage_span {
    struct stage_span *next, *prev;   /* in the list of its request, of free spans, or of those to be uploaded */
    struct stage_span *older, *newer; /* in the list of all that are FILLING */
    struct uccl_request *request;
    struct stage_block *block;
    struct stage_held *held; /* that it counts in */
    uint8_t *memory;
    uint64_t offset_bytes; /* into the message */
    uint32_t length;
    uint32_t left_bytes; /* send: not released by the core yet */
    uint32_t copies;     /* in flight */
    uint64_t ready_ns;   /* bounce slot: since when it is ready */
    uint8_t state;       /* enum span_state */
    uint8_t range_count, ranges_sent;
    struct {
        uint32_t from, to;  /* relative to the span */
    } ranges[STAGE_RANGES]; /* receive: what has arrived */
};

struct stage_pool {
    uint8_t *memory; /* NULL: not made yet */
    size_t memory_bytes;
    uint8_t *mapped; /* the mapping around it: `memory` begins on a large page */
    size_t mapped_bytes;
    uint32_t block_bytes;
    uint32_t block_count;
    struct stage_block *blocks, *free_blocks;
    struct stage_span *spans, *free_spans;
    uint32_t free_block_count, free_span_count;
    uint32_t taken[STAGE_SIDES]; /* blocks */
    uint32_t spans_taken[STAGE_SIDES];
    struct stage_block *shared[STAGE_SIDES]; /* the block that slices come from, or NULL */
};

/* Maps the memory, on this NUMA node unless it is -1 (unknown). False: out of memory. */
bool stage_pool_make(struct stage_pool *pool, uint32_t block_bytes, uint32_t block_count, int numa_node);
void stage_pool_free(struct stage_pool *pool);

/* Blocks that this side can take now, each with its share of spans. */
uint32_t stage_pool_room(const struct stage_pool *pool, enum stage_side side);

/* The same for a flow or device that holds so much; the last block of a share does not count. */
uint32_t stage_pool_share(const struct stage_pool *pool, enum stage_side side, const struct stage_held *held);

/*
 * Takes a span of `length` bytes, at most a block. It counts in `held`; `held` NULL: no share limits it. Returns NULL
 * if no span is left for this side, or `held` has reached its share.
 */
struct stage_span *stage_span_take(struct stage_pool *pool, enum stage_side side, uint32_t length,
                                   struct stage_held *held);
void stage_span_put(struct stage_pool *pool, struct stage_span *span);

/* Bytes [from, to) of the span have arrived. False: the span cannot keep one range more apart. */
bool stage_span_add(struct stage_span *span, uint32_t from, uint32_t to);
static inline bool stage_span_full(const struct stage_span *span)
{
    return span->range_count == 1 && span->ranges[0].from == 0 && span->ranges[0].to == span->length;
}

#endif
