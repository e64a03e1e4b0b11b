/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's clock: monotonic, and the same for all threads. */
#ifndef UCCL_CLOCK_H
#define UCCL_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);

/* Milliseconds until the deadline, for poll(), at most an hour; -1: UINT64_MAX, never. */
int clock_poll_ms(uint64_t deadline_ns);

#endif
