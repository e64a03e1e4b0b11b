/* SPDX-License-Identifier: Apache-2.0 */
#include "budget.h"

#include "core/state.h"
#include "objects.h"

/* Counts what one core has in use. By the owner. */
static void count_core(struct engine_thread *thread, void *argument)
{
    struct budget *budget = argument;
    const struct core *core = thread->core;
    for (uint32_t i = 0; i < core->flow_end; i++)
        budget->flows += core->flows[i] != NULL;
    budget->buffers += thread->params->tx_buffers - core->big.count;
    budget->buffers += thread->params->tx_small_buffers - core->small.count;
    budget->staged += atomic_load(&thread->staged);
}

static void count_peers(const struct peer_table *table, struct budget *budget)
{
    for (const struct peer *peer = table->peers; peer; peer = peer->next)
        budget->peers++;
    budget->unmet_peers = table->unmet;
    for (unsigned i = 0; i < table->thread_count; i++) {
        for (unsigned word = 0; word < CORE_FLOWS_MAX / 64; word++)
            budget->flow_slots += (unsigned)__builtin_popcountll(table->slots_used[i][word]);
    }
}

static void count_conns(const struct uccl_engine *engine, struct budget *budget)
{
    for (const struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        budget->conns++;
    for (const struct uccl_conn *conn = engine->kept; conn; conn = conn->next)
        budget->kept_conns++;
    budget->abandoned_conns = engine->abandoned;
    for (unsigned word = 0; word < CORE_CONNS_MAX / 64; word++)
        budget->conn_ids += (unsigned)__builtin_popcountll(engine->conn_indices[word]);
}

static void count_regions(struct mem_cache *cache, struct budget *budget)
{
    pthread_mutex_lock(&cache->lock);
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++) {
        for (const struct mem_region *region = cache->buckets[i]; region; region = region->next)
            budget->regions++;
    }
    budget->idle_regions = cache->idle;
    pthread_mutex_unlock(&cache->lock);
}

static void count_requests(struct request_pool *pool, struct budget *budget)
{
    uint32_t slabs = atomic_load(&pool->slab_count);
    for (uint32_t i = 0; i < slabs * SLAB_REQUESTS && i < pool->request_max; i++)
        budget->requests += atomic_load(&pool->slabs[i / SLAB_REQUESTS][i % SLAB_REQUESTS].state) != REQUEST_FREE;
}

void engine_budget(struct uccl_engine *engine, struct budget *out)
{
    unsigned handshakes;
    *out = (struct budget){0};
    free_abandoned(engine);
    pthread_mutex_lock(&engine->lock);
    count_peers(&engine->peers, out);
    count_conns(engine, out);
    out->connecting = connects_count(engine);
    out->listeners = listeners_count(engine, &handshakes);
    out->handshakes = handshakes;
    for (const struct queue_link *link = engine->mrs.head; link; link = link->next)
        out->registrations++;
    for (unsigned i = 0; i < engine->thread_count; i++)
        thread_run(&engine->threads[i], count_core, out);
    pthread_mutex_unlock(&engine->lock);
    count_regions(&engine->regions, out);
    count_requests(&engine->requests, out);
    count_requests(&engine->parts, out);
}
