/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzzers share: promises, and memory as a core wants it. */
#ifndef FUZZ_REQUIRE_H
#define FUZZ_REQUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not assert(): it must also hold in a build without. */
static inline void require_that(bool promise, const char *what)
{
    if (promise)
        return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}
#define require(promise) require_that(promise, #promise)

/* Zeroed, and aligned to cache lines. */
static inline void *zeroed(size_t bytes)
{
    size_t rounded = (bytes + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, rounded);
    require(memory);
    return memset(memory, 0, rounded);
}

#endif
