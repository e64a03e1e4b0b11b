/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memcpy() promises no order and no size of its stores, and keeps to none: it ends with stores that overlap earlier
 * ones, and `rep movsb` stores as it likes. Here each store is written out, and is volatile too: compilers neither merge
 * nor reorder those.
 *
 * Order: x86-64 keeps stores in program order for all observers. arm64 does not, so that a barrier stands before the
 * last store of each 128 bytes, and of the copy; it is for devices as well (outer shareable), since GPUs read along.
 * Where a fragment ends within 128 bytes, those behind it are copied later by the same thread, and the barrier before
 * their last store covers all.
 *
 * This file is read as object code by tests: one function, and no call in it.
 */
#include "thread/watched.h"

#include "core/core.h"

#include <stdatomic.h>
#include <string.h>

/* What has been stored before appears before what will be stored. */
static inline void in_order(void)
{
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_release);
#elif defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#else
    atomic_thread_fence(memory_order_release);
#endif
}

#define STORE(type, to, from)                                                                                          \
    do {                                                                                                               \
        type word;                                                                                                     \
        memcpy(&word, from, sizeof word);                                                                              \
        atomic_store_explicit((volatile _Atomic type *)(void *)(to), word, memory_order_relaxed);                      \
    } while (0)

/* The largest word, of less than 8 bytes or aligned to less, that may be stored here; returns its bytes. */
static inline unsigned store_part(uint8_t *to, const uint8_t *from, size_t left)
{
    if ((uintptr_t)to % 4 == 0 && left >= 4) {
        STORE(uint32_t, to, from);
        return 4;
    }
    if ((uintptr_t)to % 2 == 0 && left >= 2) {
        STORE(uint16_t, to, from);
        return 2;
    }
    STORE(uint8_t, to, from);
    return 1;
}

/* Words of 8 bytes, one at least, as far as the unit goes; returns their bytes. */
static inline size_t store_words(uint8_t *to, const uint8_t *from, size_t left)
{
    size_t unit = CORE_WATCHED_BYTES - (uintptr_t)to % CORE_WATCHED_BYTES;
    size_t last = (left < unit ? left : unit) / 8 * 8 - 8;
    for (size_t at = 0; at < last; at += 8)
        STORE(uint64_t, to + at, from + at);
    in_order();
    STORE(uint64_t, to + last, from + last);
    return last + 8;
}

/* CORE_WATCHED_BYTES, aligned to as many. */
static inline void store_unit(uint8_t *to, const uint8_t *from)
{
    _Static_assert(CORE_WATCHED_BYTES == 128, "as many as are written out");
    STORE(uint64_t, to, from);
    STORE(uint64_t, to + 8, from + 8);
    STORE(uint64_t, to + 16, from + 16);
    STORE(uint64_t, to + 24, from + 24);
    STORE(uint64_t, to + 32, from + 32);
    STORE(uint64_t, to + 40, from + 40);
    STORE(uint64_t, to + 48, from + 48);
    STORE(uint64_t, to + 56, from + 56);
    STORE(uint64_t, to + 64, from + 64);
    STORE(uint64_t, to + 72, from + 72);
    STORE(uint64_t, to + 80, from + 80);
    STORE(uint64_t, to + 88, from + 88);
    STORE(uint64_t, to + 96, from + 96);
    STORE(uint64_t, to + 104, from + 104);
    STORE(uint64_t, to + 112, from + 112);
    in_order();
    STORE(uint64_t, to + 120, from + 120);
}

void watched_copy(void *target, const void *source, size_t length)
{
    uint8_t *to = target;
    const uint8_t *from = source;
    while (length) {
        size_t bytes = CORE_WATCHED_BYTES;
        if ((uintptr_t)to % CORE_WATCHED_BYTES == 0 && length >= CORE_WATCHED_BYTES) {
            store_unit(to, from);
        } else if ((uintptr_t)to % 8 == 0 && length >= 8) {
            bytes = store_words(to, from, length);
        } else {
            in_order(); /* it may be the last of a unit, or of the copy */
            bytes = store_part(to, from, length);
        }
        to += bytes;
        from += bytes;
        length -= bytes;
    }
}
