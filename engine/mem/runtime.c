/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/runtime.h"

#include "base/log.h"
#include "base/process.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all fields but `ready`, of all runtimes */

static void runtime_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

static void runtime_watch_forks(void)
{
    process_in_child(runtime_in_child);
}

/* Under the lock. */
static bool look_up(struct mem_runtime *runtime, void *library)
{
    for (unsigned i = 0; i < runtime->count; i++) {
        runtime->functions[i] = dlsym(library, runtime->names[i]);
        if (!runtime->functions[i] && i < runtime->count - runtime->optional) {
            runtime->missing = runtime->names[i];
            LOG_WARNING("%s has no %s: too old, its memory cannot be used", runtime->soname, runtime->missing);
            return false;
        }
    }
    return true;
}

bool mem_runtime_find(struct mem_runtime *runtime, bool load)
{
    if (atomic_load_explicit(&runtime->ready, memory_order_acquire))
        return true;
    static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;
    pthread_once(&forks_watched, runtime_watch_forks);
    pthread_mutex_lock(&lock);
    bool ready = atomic_load_explicit(&runtime->ready, memory_order_relaxed);
    for (unsigned i = 0; !ready && !runtime->missing && runtime->sonames[i]; i++) {
        void *library = dlopen(runtime->sonames[i], RTLD_NOW | (load ? 0 : RTLD_NOLOAD)); /* never closed */
        if (!library)
            continue;
        runtime->soname = runtime->sonames[i];
        ready = look_up(runtime, library);
        atomic_store_explicit(&runtime->ready, ready, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return ready;
}
