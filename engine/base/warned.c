/* SPDX-License-Identifier: Apache-2.0 */
#include "base/warned.h"

#include "base/process.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_MAX = 64,      /* bytes of a key that count */
    WARNINGS_MAX = 64, /* per process; a flood of them helps nobody */
};

static pthread_mutex_t warned_lock = PTHREAD_MUTEX_INITIALIZER;

static void warned_in_child(void)
{
    pthread_mutex_init(&warned_lock, NULL);
}

static void warned_watch_forks(void)
{
    process_in_child(warned_in_child);
}

bool warned_first(const char *key)
{
    static char warned[WARNINGS_MAX][KEY_MAX + 1];
    static unsigned count;
    static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;
    bool first = true;
    pthread_once(&forks_watched, warned_watch_forks);
    pthread_mutex_lock(&warned_lock);
    for (unsigned i = 0; i < count && first; i++)
        first = strncmp(warned[i], key, KEY_MAX) != 0;
    first = first && count < WARNINGS_MAX;
    if (first)
        snprintf(warned[count++], sizeof warned[0], "%s", key);
    pthread_mutex_unlock(&warned_lock);
    return first;
}
