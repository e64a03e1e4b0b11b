/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

#include "base/descriptor.h"
#include "base/log.h"
#include "objects.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    QUERIES_MAX = 32,
    QUERIES_SHARE = 4, /* of one host */
};

struct way_query {
    struct way_query *next; /* of the engine, under its lock */
    struct nic *nic;
    struct nic_queue_address theirs;
    bool client;
    bool left; /* under the lock */
    uint64_t source;
    int fd; /* readable: it is over */
    pthread_t thread;
    _Atomic bool stop;
    _Atomic bool over; /* what follows is written; pairs with the acquires in ways_ask() and free_left() */
    int error;
    uint32_t closed;
};

static void *query_main(void *argument)
{
    struct way_query *query = argument;
    query->error = query->nic->ways->ask(query->nic, &query->theirs, query->client, &query->stop, &query->closed);
    atomic_store_explicit(&query->over, true, memory_order_release);
    eventfd_write(query->fd, 1);
    return NULL;
}

static void query_free(struct way_query *query)
{
    close(query->fd);
    free(query);
}

/* Frees queries that nobody needs, and whose threads have ended. Under the lock. */
static void free_left(struct uccl_engine *engine)
{
    for (struct way_query **link = &engine->way_queries; *link;) {
        struct way_query *query = *link;
        if (!query->left || !atomic_load_explicit(&query->over, memory_order_acquire)) {
            link = &query->next;
            continue;
        }
        *link = query->next;
        pthread_join(query->thread, NULL);
        query_free(query);
    }
}

/* Whether one more thread may ask for this host. Under the lock. */
static bool has_place(const struct uccl_engine *engine, uint64_t source)
{
    unsigned all = 0, own = 0;
    for (const struct way_query *query = engine->way_queries; query; query = query->next, all++)
        own += query->source == source;
    return all < QUERIES_MAX && own < QUERIES_SHARE;
}

/* UCCL_EAGAIN: a thread asks, or will when there is a place for it. Without a thread the caller waits. */
static int query_begin(struct uccl_engine *engine, const struct nic_queue_address *theirs, bool client, uint64_t source,
                       struct way_query **out, uint32_t *closed)
{
    _Atomic bool never = false;
    pthread_mutex_lock(&engine->lock);
    free_left(engine);
    bool place = has_place(engine, source);
    struct way_query *query = place ? calloc(1, sizeof *query) : NULL;
    if (query) {
        *query = (struct way_query){
            .nic = engine->nic, .theirs = *theirs, .client = client, .source = source, .next = engine->way_queries};
        query->fd = descriptor_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (query->fd >= 0 && thread_create_deaf(&query->thread, query_main, query) == 0) {
            engine->way_queries = query;
            *out = query;
        } else {
            if (query->fd >= 0)
                close(query->fd);
            free(query);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    if (!place || *out)
        return UCCL_EAGAIN;
    return engine->nic->ways->ask(engine->nic, theirs, client, &never, closed);
}

int ways_ask(struct uccl_engine *engine, const struct bootstrap *boot, bool client, struct way_query **query,
             uint32_t *closed)
{
    const struct boot_offer *offer = bootstrap_peer_offer(boot);
    const struct nic_way_ops *ways = engine->nic->ways;
    const struct nic_queue_address *first = &offer->flows[0].address;
    *closed = 0;
    if (!ways || offer->known)
        return UCCL_OK;
    if (*query) {
        struct way_query *asked = *query;
        if (!atomic_load_explicit(&asked->over, memory_order_acquire))
            return UCCL_EAGAIN;
        int error = asked->error;
        *closed = asked->closed;
        ways_leave(engine, asked);
        *query = NULL;
        return error;
    }
    for (unsigned i = 1; i < offer->flow_count && i < engine->thread_count; i++) {
        if (!ways->same(first, &offer->flows[i].address)) {
            LOG_WARNING("a peer's queues 0 and %u have different ports: it is no engine", i);
            return UCCL_EPROTO;
        }
    }
    return query_begin(engine, first, client, bootstrap_source(boot), query, closed);
}

int ways_fd(const struct way_query *query)
{
    return query ? query->fd : -1;
}

void ways_leave(struct uccl_engine *engine, struct way_query *query)
{
    if (!query)
        return;
    atomic_store(&query->stop, true);
    pthread_mutex_lock(&engine->lock);
    query->left = true;
    free_left(engine);
    pthread_mutex_unlock(&engine->lock);
}

void ways_end(struct uccl_engine *engine)
{
    while (engine->way_queries) {
        struct way_query *query = engine->way_queries;
        engine->way_queries = query->next;
        atomic_store(&query->stop, true);
        pthread_join(query->thread, NULL);
        query_free(query);
    }
}

void ways_forget(struct uccl_engine *engine)
{
    while (engine->way_queries) {
        struct way_query *query = engine->way_queries;
        engine->way_queries = query->next;
        query_free(query);
    }
}
