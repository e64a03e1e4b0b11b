/* SPDX-License-Identifier: Apache-2.0 */
/* Waits until other threads are inside uccl_wait(): on a busy machine no sleep is long enough for that. */
#ifndef UCCL_TEST_AWAIT_CALLERS_H
#define UCCL_TEST_AWAIT_CALLERS_H

#include "../api/objects.h"

#include <time.h>

static inline void await_callers(const uccl_engine *engine, unsigned count)
{
    unsigned inside;
    do {
        struct timespec nap = {0, 1000000};
        nanosleep(&nap, NULL);
        inside = 0;
        for (unsigned i = 0; i < engine->thread_count; i++)
            inside += atomic_load(&engine->threads[i].callers);
    } while (inside < count);
}

#endif
