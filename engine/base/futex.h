/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on a word of memory until somebody changes it and says so (futex(2), among the threads of a process). */
#ifndef UCCL_FUTEX_H
#define UCCL_FUTEX_H

#include "core/units.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word == value, at most for `timeout_ns`. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec timeout = {(time_t)(timeout_ns / NS_PER_S), (long)(timeout_ns % NS_PER_S)};
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, 0);
}

/* Wakes up to `count` of those who sleep on it. */
static inline void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

#endif
