/* SPDX-License-Identifier: Apache-2.0 */
#include "request/request.h"

#include "base/race_point.h"

#include <stdlib.h>
#include <string.h>

int request_pool_init(struct request_pool *pool, uint64_t max_requests)
{
    *pool = (struct request_pool){0};
    pool->request_max = (uint32_t)max_requests;
    pool->slab_max = (uint32_t)((max_requests + SLAB_REQUESTS - 1) / SLAB_REQUESTS);
    pool->slabs = calloc(pool->slab_max, sizeof *pool->slabs);
    if (!pool->slabs)
        return UCCL_ENOMEM;
    pthread_mutex_init(&pool->grow, NULL);
    return UCCL_OK;
}

void request_pool_free(struct request_pool *pool)
{
    for (uint32_t i = 0; i < atomic_load(&pool->slab_count); i++)
        free(pool->slabs[i]);
    free(pool->slabs);
    pthread_mutex_destroy(&pool->grow);
}

static struct uccl_request *pool_at(struct request_pool *pool, uint32_t index)
{
    return &pool->slabs[index / SLAB_REQUESTS][index % SLAB_REQUESTS];
}

static void pool_push(struct request_pool *pool, struct uccl_request *request)
{
    uint64_t top = atomic_load_explicit(&pool->top, memory_order_relaxed), next;
    do {
        atomic_store_explicit(&request->next, (uint32_t)top, memory_order_relaxed);
        next = ((top >> 32) + 1) << 32 | (request->index + 1);
        RACE_POINT();
        /* release pairs with the acquire in pool_pop(): the request's fields, and its slab */
    } while (
        !atomic_compare_exchange_weak_explicit(&pool->top, &top, next, memory_order_release, memory_order_relaxed));
}

static struct uccl_request *pool_pop(struct request_pool *pool)
{
    uint64_t top = atomic_load_explicit(&pool->top, memory_order_acquire), next;
    struct uccl_request *request;
    do {
        if ((uint32_t)top == 0)
            return NULL;
        request = pool_at(pool, (uint32_t)top - 1);
        RACE_POINT();
        next = ((top >> 32) + 1) << 32 | atomic_load_explicit(&request->next, memory_order_relaxed);
        RACE_POINT();
        /* acquire on success and failure: both read a request that pool_push() published */
    } while (
        !atomic_compare_exchange_weak_explicit(&pool->top, &top, next, memory_order_acquire, memory_order_acquire));
    return request;
}

static bool pool_grow(struct request_pool *pool)
{
    pthread_mutex_lock(&pool->grow);
    uint32_t count = atomic_load(&pool->slab_count);
    struct uccl_request *slab = NULL;
    if ((uint32_t)atomic_load(&pool->top) == 0 && count < pool->slab_max)
        slab = aligned_alloc(REQUEST_ALIGNMENT, SLAB_REQUESTS * sizeof *slab);
    if (slab) {
        memset(slab, 0, SLAB_REQUESTS * sizeof *slab);
        uint32_t left = pool->request_max - count * SLAB_REQUESTS;
        pool->slabs[count] = slab;
        atomic_store(&pool->slab_count, count + 1);
        for (uint32_t i = left < SLAB_REQUESTS ? left : SLAB_REQUESTS; i-- > 0;) {
            slab[i].index = count * SLAB_REQUESTS + i;
            slab[i].pool = pool;
            pool_push(pool, &slab[i]);
        }
    }
    bool more = (uint32_t)atomic_load(&pool->top) != 0;
    pthread_mutex_unlock(&pool->grow);
    return more;
}

struct uccl_request *request_take(struct request_pool *pool)
{
    struct uccl_request *request;
    while (!(request = pool_pop(pool))) {
        if (!pool_grow(pool))
            return NULL;
    }
    return request;
}

void request_put(struct uccl_request *request)
{
    atomic_fetch_add_explicit(&request->generation, 1, memory_order_relaxed);
    RACE_POINT();
    atomic_store_explicit(&request->state, REQUEST_FREE, memory_order_relaxed);
    RACE_POINT();
    pool_push(request->pool, request);
}
