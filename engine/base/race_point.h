/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks points where another thread may step in: between a look and the exchange that relies on it, before a
 * publication, after arming. Such windows are a few instructions wide; a stress test alone hits them once in hours. A
 * build with -Drace_points=true delays threads at these points at random. In other builds a point is nothing.
 *
 * A delay orders nothing between threads (nothing here is stronger than relaxed), so that ThreadSanitizer still sees
 * each race.
 */
#ifndef UCCL_RACE_POINT_H
#define UCCL_RACE_POINT_H

#include <stdint.h>

#if defined(UCCL_RACE_POINTS) && !defined(SIM_SEAM) /* the simulator preempts at each atomic operation anyway */

#define RACE_POINT() race_point()

void race_point(void);
/*
 * From here on delays a thread at one of `one_in` visits to a point. Each thread's draws follow from the seed, which is
 * not 0, and from the order in which threads come.
 */
void race_points_begin(uint64_t seed, uint32_t one_in);

#else

#define RACE_POINT() ((void)0)

#endif

#endif
