/* SPDX-License-Identifier: Apache-2.0 */
#include "base/race_point.h"

#if defined(UCCL_RACE_POINTS) && !defined(SIM_SEAM)

#include "core/rng.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* Of DELAYS delays this many sleep, long or short; the others yield. */
enum { DELAYS = 16, LONG = 1, SHORT = 3, LONG_NS = 400000, SHORT_NS = 40000 };

static _Atomic uint64_t seed_now;
static _Atomic uint32_t delays_one_in, threads;
static _Thread_local struct rng rng;

void race_points_begin(uint64_t seed, uint32_t one_in)
{
    atomic_store_explicit(&delays_one_in, one_in, memory_order_relaxed);
    atomic_store_explicit(&seed_now, seed, memory_order_relaxed);
}

static uint64_t draw(uint64_t seed)
{
    if (rng.state == 0)
        rng.state = seed + UINT64_C(1000003) * (1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed));
    return rng_next(&rng);
}

void race_point(void)
{
    uint64_t seed = atomic_load_explicit(&seed_now, memory_order_relaxed);
    if (seed == 0)
        return;
    uint64_t random = draw(seed), choice = random % DELAYS;
    random /= DELAYS;
    uint32_t one_in = atomic_load_explicit(&delays_one_in, memory_order_relaxed);
    if (random % one_in != 0)
        return;
    random /= one_in;
    if (choice < LONG + SHORT) {
        struct timespec pause = {0, (long)(random % (choice < LONG ? LONG_NS : SHORT_NS))};
        nanosleep(&pause, NULL);
    } else {
        sched_yield();
    }
}

#endif
