/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of one engine thread. Only the engine's owner writes; anyone may read at any time, so
 * the fields are atomics used with relaxed order (a plain add on every machine that matters).
 */
#ifndef UCCL_COUNTERS_H
#define UCCL_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct counters {
#define COUNTER(field, doc) _Atomic uint64_t field;
#include "counters.def"
#undef COUNTER
};

#define COUNT(counters, field, n)                                                                                      \
    atomic_store_explicit(&(counters)->field, atomic_load_explicit(&(counters)->field, memory_order_relaxed) + (n),    \
                          memory_order_relaxed)

#endif
