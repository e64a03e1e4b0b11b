/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that the flows of an engine thread share. A flow with a silent peer may keep its buffers for long, and the
 * others must not notice. So a dynamic threshold decides (Choudhury and Hahne, "Dynamic queue length thresholds for
 * shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998): a flow may take one more while it
 * holds less than is free. One flow alone gets half. Of n flows that take all they can at the same time each gets an
 * (n + 1)th, and as much stays free. Of flows that do so one after another, each takes half of the rest. Each pool has
 * a reserve besides, for flows that hold nothing; the pool's owner describes it.
 */
#ifndef UCCL_POOL_H
#define UCCL_POOL_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether a flow that holds `held` may take more, where `left` are free. */
static inline bool pool_allows(uint64_t held, uint64_t left)
{
    return held < left;
}

/* Free buffers, last in first out, so that the warm one is used next. */
struct pool {
    uint8_t **free;
    uint32_t count;
};

/* `held`: how many buffers the flow holds. NULL: it has its share. */
static inline uint8_t *pool_take(struct pool *pool, uint32_t *held)
{
    if (!pool_allows(*held, pool->count))
        return 0;
    ++*held;
    return pool->free[--pool->count];
}

static inline void pool_put(struct pool *pool, uint32_t *held, uint8_t *buffer)
{
    assert(*held);
    --*held;
    pool->free[pool->count++] = buffer;
}

#endif
