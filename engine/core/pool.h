/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the flows of an engine thread share. Some of them may keep theirs for as long as a silent peer is believed to
 * live, and the others must not notice. So a dynamic threshold decides (Choudhury and Hahne, "Dynamic queue length
 * thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998): a flow may take one
 * more while it holds less than is free. One flow alone gets half. Of n flows that take all they can at the same time
 * each gets an (n + 1)th, and as much stays free; of flows that do so one after another each takes half of what the
 * ones before have left. Each pool has a reserve besides, for flows that hold nothing: it is told where the pool is.
 */
#ifndef UCCL_POOL_H
#define UCCL_POOL_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether a flow that holds so much may take more, of which so much is free. */
static inline bool pool_allows(uint64_t held, uint64_t left)
{
    return held < left;
}

/* Free buffers, last in first out, so that the warm one is used next. */
struct pool {
    uint8_t **free;
    uint32_t count;
};

/* `held`: how many of them the flow holds. NULL: it has its share. */
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
