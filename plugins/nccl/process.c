/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of the plugin in a process. NCCL loads it when its first communicator is made, and unloads it after the
 * last, which may happen many times; the library itself stays (-z nodelete), since engine threads run its code.
 *
 * Everything that NCCL gets has an owner, the context that asked for it. After a failure NCCL closes part of what it
 * has, so finalize ends what its context still owns. Versions before 11 have no finalize: their engines close with the
 * last communicator, and a listener that nobody closed stays.
 *
 * Init never fails: some releases of NCCL crash on that. What cannot be used is no device.
 *
 * A child of fork() has none of the engine's threads, and locks that nobody will give back. If engines were open, every
 * call fails in the child, before it touches anything. If not, the child begins anew.
 */
#include "plugin.h"

#include <stdatomic.h>
#include <stdlib.h>

pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;
struct context shared_context = {NCCL_NET_UNDEFINED};
volatile bool process_is_child;

static atomic_int engines_open;
static unsigned contexts; /* under the lock, like these */
static struct owned everything = {&everything, &everything, NULL, NULL};

/* ---- forks ------------------------------------------------------------------------------------ */

static void in_child(void)
{
    process_is_child = atomic_load(&engines_open) != 0;
    contexts = 0;
    pthread_mutex_init(&plugin_lock, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void process_engines(int change)
{
    atomic_fetch_add(&engines_open, change);
}

/* ---- owners ----------------------------------------------------------------------------------- */

void owned_add(struct owned *owned, struct context *owner, void (*end)(struct owned *))
{
    owned->owner = owner;
    owned->end = end;
    owned->next = &everything;
    owned->prev = everything.prev;
    owned->prev->next = owned->next->prev = owned;
}

void owned_remove(struct owned *owned)
{
    owned->prev->next = owned->next;
    owned->next->prev = owned->prev;
}

/* The first that `owner` has left, taken off the list; NULL: none. */
static struct owned *take_owned(const struct context *owner)
{
    pthread_mutex_lock(&plugin_lock);
    struct owned *owned = everything.next;
    while (owned != &everything && owned->owner != owner)
        owned = owned->next;
    if (owned != &everything)
        owned_remove(owned);
    else
        owned = NULL;
    pthread_mutex_unlock(&plugin_lock);
    return owned;
}

/* ---- init, finalize --------------------------------------------------------------------------- */

static void begin(nccl_logger_fn logger)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    log_start(logger);
    pthread_mutex_lock(&plugin_lock);
    bool afresh = contexts == 0 && atomic_load(&engines_open) == 0;
    requests_configure(afresh);
    if (afresh) /* else their numbers are in use */
        devices_look();
    pthread_mutex_unlock(&plugin_lock);
}

enum nccl_result plugin_init_shared(nccl_logger_fn logger)
{
    begin(logger);
    return NCCL_SUCCESS;
}

enum nccl_result plugin_init(struct context **context, const struct nccl_net_comm_config *config, nccl_logger_fn logger)
{
    struct context *made = malloc(sizeof *made);
    if (made)
        made->traffic_class = config ? config->trafficClass : NCCL_NET_UNDEFINED;
    else
        made = &shared_context; /* which nobody ends */
    begin(logger);
    pthread_mutex_lock(&plugin_lock);
    contexts++;
    pthread_mutex_unlock(&plugin_lock);
    *context = made;
    return NCCL_SUCCESS;
}

bool plugin_keeps_engines(void)
{
    return contexts > 0;
}

enum nccl_result plugin_finalize(struct context *context)
{
    struct owned *owned;
    if (context && context != &shared_context) {
        while ((owned = take_owned(context)))
            owned->end(owned);
        free(context);
    }
    pthread_mutex_lock(&plugin_lock);
    contexts -= contexts > 0;
    pthread_mutex_unlock(&plugin_lock);
    engines_close_idle();
    return NCCL_SUCCESS;
}
