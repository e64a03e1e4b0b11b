/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing engines, their events and counters. */
#include "objects.h"
#include "ways.h"

#include "base/config.h"
#include "base/cores.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/race_point.h"
#include "nic/backend.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { FEW_CORES = 4, ENGINES_BY_DEFAULT = 4, CORES_PER_ENGINE = 4 };

/* 0: no parameter depends on them. */
static unsigned cores_that_count(const struct params *params)
{
    return params->num_engines == 0 || params->lend == LEND_AUTO ? cores_usable() : 0;
}

static bool engine_lends(const struct uccl_engine *engine, unsigned cores)
{
    const struct params *params = &engine->params;
    bool able = engine->nic->caps.lendable;
    return params->lend == LEND_YES || (params->lend == LEND_AUTO && able && cores <= FEW_CORES);
}

/* One for each of `nics` where cores allow. */
static unsigned engines_to_start(const struct params *params, unsigned nics, unsigned cores)
{
    if (params->num_engines)
        return (unsigned)params->num_engines;
    unsigned wanted = cores / CORES_PER_ENGINE, most = nics > ENGINES_BY_DEFAULT ? nics : ENGINES_BY_DEFAULT;
    return wanted < 1 ? 1 : wanted > most ? most : wanted;
}

/* The rate at which this NIC receives; some drivers report nothing, or nonsense. */
static uint64_t link_mbps(const struct params *params, const struct uccl_device *properties)
{
    enum { UNKNOWN_MBPS = 100000, MOST_MBPS = 3200000 };
    if (params->link_gbps)
        return params->link_gbps * 1000;
    uint64_t mbps = properties->speed_mbps;
    return mbps && mbps <= MOST_MBPS ? mbps : UNKNOWN_MBPS;
}

/* The device of NIC `end`, counted round, or the one that the engine uses. */
static void device_of(const struct uccl_engine *engine, unsigned end, struct uccl_device *out)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = nic_ends(engine->nic, ends);
    union nic_address address;
    *out = (struct uccl_device){.numa_node = -1};
    engine->nic->ops->device(engine->nic, count ? engine->nic->ends->device(engine->nic, end % count) : BACKEND_DEVICE,
                             out, &address);
}

/* How many of several NICs work now. One without carrier costs the others no thread, and no share of their rate. */
static unsigned working_nics(const struct uccl_engine *engine, unsigned nics)
{
    unsigned count = 0;
    for (unsigned i = 0; i < nics; i++)
        count += engine->nic->ends->up(engine->nic, i);
    return count;
}

/* The rate of all NICs together that work; of all, if none does yet. */
static uint64_t links_mbps(const struct uccl_engine *engine, unsigned nics)
{
    uint64_t sum = 0;
    bool all = working_nics(engine, nics) == 0;
    for (unsigned i = 0; i < nics || i == 0; i++) {
        struct uccl_device properties;
        if (!all && !engine->nic->ends->up(engine->nic, i))
            continue;
        device_of(engine, i, &properties);
        sum += link_mbps(&engine->params, &properties);
    }
    return sum;
}

static int start_threads(struct uccl_engine *engine)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned nics = nic_ends(engine->nic, ends), working = working_nics(engine, nics);
    unsigned cores = cores_that_count(&engine->params), count = engines_to_start(&engine->params, working, cores);
    uint64_t mbps = links_mbps(engine, nics);
    engine->threads = aligned_alloc(64, count * sizeof *engine->threads);
    if (!engine->threads)
        return UCCL_ENOMEM;
    memset(engine->threads, 0, count * sizeof *engine->threads);
    for (unsigned i = 0; i < count; i++) {
        uint64_t seed = 0;
        struct uccl_device properties;
        device_of(engine, i, &properties);
        if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
            seed = clock_now_ns() + i;
        int error = thread_start(&engine->threads[i], &(struct thread_setup){.params = &engine->params,
                                                                             .process = engine->process,
                                                                             .nic = engine->nic,
                                                                             .index = i,
                                                                             .lend = engine_lends(engine, cores),
                                                                             .numa_node = properties.numa_node,
                                                                             .link_mbps = mbps / count,
                                                                             .seed = seed,
                                                                             .event_fd = engine->event_fd,
                                                                             .event_armed = &engine->event_armed,
                                                                             .on_event = connection_on_event,
                                                                             .context = engine});
        if (error)
            return error;
        engine->thread_count++;
    }
    return UCCL_OK;
}

static void stop_threads(struct uccl_engine *engine)
{
    for (unsigned i = 0; i < engine->thread_count; i++)
        thread_stop(&engine->threads[i]);
    for (unsigned i = 0; i < engine->thread_count; i++) /* after all have stopped: each may have commands for another */
        thread_free(&engine->threads[i]);
    engine->thread_count = 0;
}

static int engine_build(struct uccl_engine *engine)
{
    if (getrandom(engine->id, sizeof engine->id, 0) != sizeof engine->id) {
        LOG_ERR("cannot draw an engine id: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    engine->event_fd = descriptor_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (engine->event_fd < 0) {
        char text[FAULT_TEXT];
        int error = errno;
        LOG_ERR("cannot make an event descriptor: %s", fault_text(error, text));
        return fault_error(error);
    }
    engine->conn_generations = calloc(CORE_CONNS_MAX, sizeof *engine->conn_generations);
    engine->conn_indices = calloc(CORE_CONNS_MAX / 64, sizeof *engine->conn_indices);
    if (!engine->conn_generations || !engine->conn_indices)
        return UCCL_ENOMEM;
    int error = request_pool_init(&engine->requests, engine->params.max_requests);
    if (!error)
        error = request_pool_init(&engine->parts, engine->params.max_requests);
    if (!error)
        error = backend_open(&engine->params, &engine->nic);
    engine->direct = (struct direct){.params = &engine->params, .nic = engine->nic, .machine = &engine->machine};
    if (!error)
        error = start_threads(engine);
    if (!error)
        error = peer_table_init(&engine->peers, &engine->params, engine->threads, engine->thread_count);
    return error;
}

static void free_mrs(struct uccl_engine *engine)
{
    for (struct queue_link *link; (link = engine->mrs.head);) {
        queue_remove(&engine->mrs, link);
        free(QUEUE_HOLDER(link, struct uccl_mr, of_engine));
    }
}

static void engine_destroy(struct uccl_engine *engine)
{
    stop_threads(engine);
    if (!inherited(engine)) /* else engine_forget() has done it, where it may */
        free_mrs(engine);
    while (engine->kept) { /* no thread uses them any more */
        struct uccl_conn *conn = engine->kept;
        engine->kept = conn->next;
        onesided_free(conn->stripes.onesided);
        free(conn);
    }
    closed_free(&engine->closed);
    closed_free(&engine->closed_exports);
    free(engine->threads);
    if (engine->nic)
        engine->nic->ops->close(engine->nic);
    if (engine->requests.slabs)
        request_pool_free(&engine->requests);
    if (engine->parts.slabs)
        request_pool_free(&engine->parts);
    free(engine->conn_generations);
    free(engine->conn_indices);
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    exports_end(engine);
    notes_free(&engine->notes);
    mem_cache_free(&engine->regions);
    gpu_map_free(engine->gpus);
    topology_close(engine->machine.machine);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

UCCL_API int uccl_open(const uccl_config *config, uccl_engine **out)
{
    if (!out)
        return UCCL_EINVAL;
    CANCEL_LATER;
    struct uccl_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return UCCL_ENOMEM;
    engine->event_fd = -1;
    engine->process = process_enter();
    if (process_unwatched())
        LOG_WARNING("children of fork() must leave this process's engines alone: pthread_atfork: %s",
                    strerror(process_unwatched()));
    pthread_mutex_init(&engine->lock, NULL);
    int error = config_resolve(config, &engine->params);
    notes_init(&engine->notes);
    mem_cache_init(&engine->regions, (uint32_t)engine->params.mr_cache);
    if (!error) {
        log_set_level((enum uccl_log_level)engine->params.log_level);
        error = engine_build(engine);
    }
    if (error) {
        engine_destroy(engine);
        return error;
    }
    *out = engine;
    return UCCL_OK;
}

/*
 * In a child of fork(): frees the child's copy of the engine and closes its descriptors; the parent's stay as they are.
 * Lists that another thread was changing under the lock at the fork may be half changed: they are left.
 */
static void engine_forget(struct uccl_engine *engine)
{
    if (pthread_mutex_trylock(&engine->lock) == 0) {
        connects_inherited(engine);
        listeners_forget(engine);
        ways_forget(engine);
        connections_forget(engine);
        peer_table_forget(&engine->peers);
        free_mrs(engine);
        pthread_mutex_unlock(&engine->lock);
    }
    bool leave = !engine->nic->caps.close_in_child;
    for (unsigned i = 0; i < engine->thread_count; i++) {
        engine->threads[i].started = false;
        if (leave)
            engine->threads[i].queue = NULL;
    }
    if (leave)
        engine->nic = NULL;
    engine_destroy(engine);
}

/*
 * Waits until threads have left uccl_wait(). All requests are over, except those of a hung GPU: who waits for these is
 * sent away. The limit is for threads that have vanished inside the call.
 */
static void let_callers_go(struct uccl_engine *engine)
{
    enum { NAP_NS = 20 * NS_PER_US };
    uint64_t deadline_ns = clock_now_ns() + 10 * NS_PER_S;
    for (unsigned i = 0; i < engine->thread_count; i++) {
        atomic_store(&engine->threads[i].dismisses, 1); /* pairs with the load in wait_and_collect() */
        while (atomic_load(&engine->threads[i].callers) && clock_now_ns() < deadline_ns) {
            struct timespec nap = {0, NAP_NS};
            nanosleep(&nap, NULL);
        }
    }
}

UCCL_API int uccl_close(uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    CANCEL_LATER;
    if (inherited(engine)) {
        engine_forget(engine);
        return UCCL_OK;
    }
    connects_end(engine);
    listeners_end(engine);
    connections_end(engine);
    ways_end(engine);
    let_callers_go(engine);
    pthread_mutex_lock(&engine->lock);
    peer_table_free(&engine->peers);
    for (struct queue_link *link = engine->all_exports.head; link; link = link->next)
        nics_leave(engine, QUEUE_HOLDER(link, struct uccl_export, of_engine)->nic);
    for (struct queue_link *link = engine->mrs.head; link; link = link->next) {
        struct uccl_mr *mr = QUEUE_HOLDER(link, struct uccl_mr, of_engine);
        mr_leave_range(engine, mr);
        nics_leave(engine, mr->nic);
    }
    pthread_mutex_unlock(&engine->lock);
    engine_destroy(engine);
    return UCCL_OK;
}

/* ---- events, counters ------------------------------------------------------------------------ */

UCCL_API int uccl_event_fd(uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    return engine->event_fd;
}

UCCL_API int uccl_event_arm(uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    uint64_t count;
    ssize_t got = read(engine->event_fd, &count, sizeof count);
    (void)got; /* EAGAIN: the descriptor was clear */
    RACE_POINT();
    /* before the application's tests: pairs with the exchange in thread_tell_waiters() */
    atomic_exchange(&engine->event_armed, 1);
    RACE_POINT();
    for (unsigned i = 0; i < engine->thread_count; i++)
        thread_reclaim(&engine->threads[i]); /* the caller is about to poll(), not to drive the engine */
    return UCCL_OK;
}

/* Offsets of the counters, in the order of their rows. */
static const size_t counter_offsets[] = {
#define COUNTER(field, doc) offsetof(struct counters, field),
#include "defs/counters.def"
#undef COUNTER
};

static uint64_t counter_of(const struct engine_thread *thread, unsigned index)
{
    const char *counters = (const char *)thread->counters;
    return atomic_load_explicit((const _Atomic uint64_t *)(counters + counter_offsets[index]), memory_order_relaxed);
}

UCCL_API int uccl_thread_counter(const uccl_engine *engine, unsigned thread, unsigned index, uint64_t *value)
{
    if (!engine || !value || index >= sizeof counter_offsets / sizeof counter_offsets[0])
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    if (thread >= engine->thread_count)
        return UCCL_ENODEV;
    *value = counter_of(&engine->threads[thread], index);
    return UCCL_OK;
}

UCCL_API int uccl_counter(const uccl_engine *engine, unsigned index, uint64_t *value)
{
    if (!engine || !value || index >= sizeof counter_offsets / sizeof counter_offsets[0])
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    uint64_t sum = 0;
    for (unsigned i = 0; i < engine->thread_count; i++)
        sum += counter_of(&engine->threads[i], index);
    *value = sum;
    return UCCL_OK;
}

UCCL_API int uccl_counter_by_name(const uccl_engine *engine, const char *name, uint64_t *value)
{
    const char *candidate, *doc;
    if (!name)
        return UCCL_EINVAL;
    for (unsigned i = 0; uccl_counter_info(i, &candidate, &doc) == UCCL_OK; i++) {
        if (strcmp(candidate, name) == 0)
            return uccl_counter(engine, i, value);
    }
    return UCCL_EINVAL;
}
