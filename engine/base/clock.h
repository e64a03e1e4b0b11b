/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's clock: monotonic, and the same for all threads. */
#ifndef UCCL_CLOCK_H
#define UCCL_CLOCK_H

#include "core/units.h"

uint64_t clock_now_ns(void);

/* When a public call's time is up; `timeout_ms` below 0: UINT64_MAX, never. */
static inline uint64_t clock_deadline_ns(uint64_t now_ns, int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : now_ns + (uint64_t)timeout_ms * NS_PER_MS;
}

/* Milliseconds until the deadline, for poll(), at most an hour; -1: UINT64_MAX, never. */
int clock_poll_ms(uint64_t deadline_ns);

#endif
