/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marked points between two steps of which another thread may come in between: between a look and the exchange that
 * relies on it, before something is published, after something is armed. Windows there are a few instructions wide, and
 * a stress test alone hits them once in hours. A build with -Drace_points=true delays threads at these points, at random
 * and now and then; in all others a point is nothing at all.
 *
 * A delay makes no order between threads of its own (nothing here is stronger than relaxed), so that ThreadSanitizer
 * sees what it saw before.
 */
#ifndef UCCL_RACE_POINT_H
#define UCCL_RACE_POINT_H

#include <stdint.h>

#if defined(UCCL_RACE_POINTS) && !defined(SIM_SEAM) /* the simulator preempts at each atomic operation anyway */

#define RACE_POINT() race_point()

void race_point(void);
/*
 * Threads are delayed from here on, at one visit of a point in `one_in`. What each thread draws follows from the seed, which
 * is not 0, and from its order of coming.
 */
void race_points_begin(uint64_t seed, uint32_t one_in);

#else

#define RACE_POINT() ((void)0)

#endif

#endif
