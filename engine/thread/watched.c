/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memcpy() promises neither order nor size of its stores: it ends with stores that overlap earlier ones, and `rep
 * movsb` may store in any order. Here each store is written out and volatile, so compilers neither merge nor reorder
 * them.
 *
 * Order: x86-64 keeps stores in program order for all observers. arm64 does not, so a barrier stands before the last
 * store of each 128 bytes and of the copy. The barrier is for devices too (outer shareable), since GPUs read along.
 * Where a fragment ends within 128 bytes, the same thread copies the rest of them later, and the barrier before their
 * last store covers all.
 *
 * Tests read the object code of this file: it has one function, without calls.
 */
#include "thread/watched.h"

#include "core/core.h"

#include <stdatomic.h>
#include <string.h>

/* Earlier stores appear before later ones. */
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

/* Stores the largest aligned word below 8 bytes that fits here; returns its bytes. */
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

/* Stores words of 8 bytes, at least one, up to the end of the unit; returns their bytes. */
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

/* Stores a whole unit: CORE_WATCHED_BYTES, aligned to as many. */
static inline void store_unit(uint8_t *to, const uint8_t *from)
{
    _Static_assert(CORE_WATCHED_BYTES == 128, "the stores that are written out");
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
            in_order(); /* it may be the last store of a unit, or of the copy */
            bytes = store_part(to, from, length);
        }
        to += bytes;
        from += bytes;
        length -= bytes;
    }
}
