/* SPDX-License-Identifier: Apache-2.0 */
/* Known bytes in a region of GPU or host memory, with guards around them: put there, and compared. */
#ifndef UCCL_TEST_CONTENTS_H
#define UCCL_TEST_CONTENTS_H

#include "../stress/engines.h"

#include "device.h"
#include "stream.h"

enum { GUARD = 128, POISON = 0xdb };

/* The bytes of message `number`. */
static inline void fill(struct region *region, uint64_t offset, uint64_t size, uint64_t number)
{
    tool_fill(region_scratch(region, region->base + offset, size), size, 0, number);
    region_store(region, region->base + offset, size);
}

/* Poisons where bytes are to go, and around them. */
static inline void poison(struct region *region, uint64_t offset, uint64_t size)
{
    unsigned char *at = region->base + offset - GUARD;
    tool_poison(region_scratch(region, at, size + 2 * GUARD), size + 2 * GUARD);
    region_store(region, at, size + 2 * GUARD);
}

/* `size` bytes at `offset` are message `number`; what follows up to `room`, and the guards, are untouched. */
static inline void expect(struct region *region, uint64_t offset, uint64_t size, uint64_t room, uint64_t number)
{
    struct tool_mismatch mismatch;
    unsigned char *at = region->base + offset - GUARD;
    uint64_t whole = room + 2 * GUARD;
    unsigned char *contents = region_scratch(region, at, whole);
    region_load(region, at, whole);
    bool right = tool_verify(contents + GUARD, size, 0, number, &mismatch);
    CHECK(right, "size %lu, offset %lu: wrong at %lu: %lx for %lx", size, offset, mismatch.offset, mismatch.got,
          mismatch.expected);
    for (uint64_t i = 0; i < whole; i++)
        CHECK((i >= GUARD && i < GUARD + size) || contents[i] == POISON, "size %lu, offset %lu: byte %ld was written",
              size, offset, (long)i - GUARD);
}

#endif
