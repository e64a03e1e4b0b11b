/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks and spans of pinned memory (stage_pool.c). */
#include "fini.h"
#include "gpu/stage_pool.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 65536, BLOCKS = 8, MOST = 6 };

static struct stage_pool pool;

static void set_up(void)
{
    cr_assert(stage_pool_make(&pool, BLOCK, BLOCKS, -1));
}

static void tear_down(void)
{
    FINI_ASSERT(pool.free_block_count == BLOCKS);
    FINI_ASSERT(pool.free_span_count == BLOCKS * STAGE_SPANS_PER_BLOCK);
    stage_pool_free(&pool);
}

TestSuite(stage_pool, .init = set_up, .fini = tear_down, .timeout = 30);

static struct stage_span *take(enum stage_side side, uint32_t length)
{
    struct stage_span *span = stage_span_take(&pool, side, length, NULL);
    if (span) {
        cr_assert_eq(span->length, length);
        cr_assert(span->memory >= pool.memory && span->memory + length <= pool.memory + pool.memory_bytes);
        memset(span->memory, 1, length);
    }
    return span;
}

Test(stage_pool, a_side_leaves_the_other_some)
{
    struct stage_span *spans[BLOCKS];
    for (unsigned i = 0; i < MOST; i++)
        cr_assert(spans[i] = take(STAGE_SENDS, BLOCK));
    cr_assert_null(take(STAGE_SENDS, BLOCK));
    cr_assert_null(take(STAGE_SENDS, 10));
    cr_assert_eq(stage_pool_room(&pool, STAGE_SENDS), 0);
    cr_assert_eq(stage_pool_room(&pool, STAGE_RECEIVES), BLOCKS - MOST);
    for (unsigned i = MOST; i < BLOCKS; i++)
        cr_assert(spans[i] = take(STAGE_RECEIVES, BLOCK));
    cr_assert_null(take(STAGE_RECEIVES, BLOCK));
    for (unsigned i = 0; i < BLOCKS; i++)
        stage_span_put(&pool, spans[i]);
}

/* A flow that is never acked leaves others their part, and those that hold none an eighth besides. */
Test(stage_pool, a_flow_leaves_others_some)
{
    struct stage_held held[5] = {0};
    struct stage_span *spans[BLOCKS];
    unsigned count = 0;
    while ((spans[count] = stage_span_take(&pool, STAGE_SENDS, BLOCK, &held[0])))
        count++;
    cr_assert(count == 3 && held[0].bytes == 3 * BLOCK); /* of the six for sends one is for those that hold none */
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_SENDS, BLOCK, &held[1]));
    cr_assert_null(stage_span_take(&pool, STAGE_SENDS, 64, &held[0]));
    cr_assert_null(stage_span_take(&pool, STAGE_SENDS, BLOCK, &held[1]));
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_SENDS, BLOCK, &held[2]));
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_SENDS, 64, &held[3]));
    cr_assert_eq(held[3].bytes, 64);
    cr_assert_null(stage_span_take(&pool, STAGE_SENDS, 64, &held[3])); /* the rest is for those that hold none */
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_SENDS, 64, &held[4]));
    while (count)
        stage_span_put(&pool, spans[--count]);
    for (unsigned i = 0; i < 5; i++)
        cr_assert(held[i].bytes == 0 && held[i].spans == 0);
}

/* So does a device that copies nothing of what it receives, though it gets more. */
Test(stage_pool, a_device_leaves_others_some)
{
    struct stage_held held[3] = {0};
    struct stage_span *spans[BLOCKS];
    unsigned count = 0;
    cr_assert_eq(stage_pool_share(&pool, STAGE_RECEIVES, &held[0]), 4);
    for (; (spans[count] = stage_span_take(&pool, STAGE_RECEIVES, BLOCK, &held[0])); count++)
        cr_assert_eq(stage_pool_share(&pool, STAGE_RECEIVES, &held[0]), 3 - count);
    cr_assert_eq(count, 4);
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_RECEIVES, BLOCK, &held[1]));
    cr_assert_null(stage_span_take(&pool, STAGE_RECEIVES, BLOCK, &held[1]));
    cr_assert(spans[count++] = stage_span_take(&pool, STAGE_RECEIVES, BLOCK, &held[2]));
    while (count)
        stage_span_put(&pool, spans[--count]);
}

/* Messages of few bytes take spans: those are shared like blocks. */
Test(stage_pool, spans_are_left_to_others)
{
    for (enum stage_side side = 0; side < STAGE_SIDES; side++) {
        struct stage_span *spans[BLOCKS * STAGE_SPANS_PER_BLOCK];
        struct stage_held held[2] = {0};
        unsigned count = 0;
        while ((spans[count] = stage_span_take(&pool, side, 1, &held[0])))
            count++;
        cr_assert_eq(stage_pool_share(&pool, side, &held[0]), 0);
        cr_assert_eq(count, (unsigned)STAGE_SPANS_PER_BLOCK * (MOST - 1) * (side == STAGE_SENDS ? 1 : 4) /
                                (side == STAGE_SENDS ? 2 : 5));
        cr_assert(spans[count++] = stage_span_take(&pool, side, 1, &held[1]));
        while (count)
            stage_span_put(&pool, spans[--count]);
    }
}

Test(stage_pool, spans_are_shared_out_as_well)
{
    struct stage_span *spans[BLOCKS * STAGE_SPANS_PER_BLOCK];
    unsigned count = 0;
    while ((spans[count] = take(STAGE_SENDS, 1)))
        count++;
    cr_assert_eq(count, MOST * STAGE_SPANS_PER_BLOCK);
    cr_assert(spans[count] = take(STAGE_RECEIVES, 1));
    for (unsigned i = 0; i <= count; i++)
        stage_span_put(&pool, spans[i]);
}

Test(stage_pool, slices_do_not_overlap)
{
    enum { COUNT = 12 };
    struct stage_span *spans[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        cr_assert(spans[i] = take(STAGE_RECEIVES, BLOCK / 4 - 60 - i));
    for (unsigned i = 0; i < COUNT; i++)
        memset(spans[i]->memory, (int)i, spans[i]->length);
    for (unsigned i = 0; i < COUNT; i++) {
        for (unsigned k = 0; k < spans[i]->length; k++)
            cr_assert_eq(spans[i]->memory[k], i);
    }
    cr_assert_eq(pool.free_block_count, BLOCKS - COUNT / 4);
    for (unsigned i = 0; i < COUNT; i += 2)
        stage_span_put(&pool, spans[i]);
    for (unsigned i = 1; i < COUNT; i += 2)
        stage_span_put(&pool, spans[i]);
}

Test(stage_pool, a_shared_block_begins_anew)
{
    struct stage_span *first = take(STAGE_SENDS, 100);
    uint8_t *memory = first->memory;
    stage_span_put(&pool, first);
    for (unsigned i = 0; i < 10000; i++) { /* far more than a block holds */
        struct stage_span *span = take(STAGE_SENDS, 100);
        cr_assert_eq(span->memory, memory);
        stage_span_put(&pool, span);
    }
}

/* ---- ranges ---------------------------------------------------------------------------------- */

Test(stage_pool, ranges_grow_together)
{
    struct stage_span *span = take(STAGE_RECEIVES, 1000);
    cr_assert(stage_span_add(span, 200, 300));
    cr_assert(stage_span_add(span, 400, 500));
    cr_assert(stage_span_add(span, 0, 100));
    cr_assert_eq(span->range_count, 3);
    cr_assert(stage_span_add(span, 300, 400)); /* joins two */
    cr_assert_eq(span->range_count, 2);
    cr_assert(stage_span_add(span, 100, 200));
    cr_assert_eq(span->range_count, 1);
    cr_assert_not(stage_span_full(span));
    cr_assert(stage_span_add(span, 500, 1000));
    cr_assert(stage_span_full(span));
    stage_span_put(&pool, span);
}

Test(stage_pool, too_many_ranges)
{
    struct stage_span *span = take(STAGE_RECEIVES, 1000);
    for (unsigned i = 0; i < STAGE_RANGES; i++)
        cr_assert(stage_span_add(span, 20 * i, 20 * i + 10));
    cr_assert_not(stage_span_add(span, 900, 910));
    cr_assert_eq(span->range_count, STAGE_RANGES);
    cr_assert(stage_span_add(span, 10, 20)); /* no further one */
    cr_assert_eq(span->range_count, STAGE_RANGES - 1);
    cr_assert(stage_span_add(span, 900, 910));
    stage_span_put(&pool, span);
}

/* Any order of any pieces makes it full, and no sooner than the last of them. */
Test(stage_pool, random_orders)
{
    uint32_t random = 1;
    for (unsigned round = 0; round < 2000; round++) {
        struct stage_span *span = take(STAGE_RECEIVES, STAGE_RANGES * 100);
        unsigned order[STAGE_RANGES];
        for (unsigned i = 0; i < STAGE_RANGES; i++) {
            random = random * 1664525u + 1013904223u;
            unsigned j = (random >> 8) % (i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (unsigned i = 0; i < STAGE_RANGES; i++) {
            cr_assert_not(stage_span_full(span));
            cr_assert(stage_span_add(span, 100 * order[i], 100 * order[i] + 100));
        }
        cr_assert(stage_span_full(span));
        stage_span_put(&pool, span);
    }
}

/* Bytes that this process has mapped. */
static size_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

Test(stage_pool, gives_its_memory_back)
{
    enum { TIMES = 64, MIB = 1024 * 1024 };
    struct stage_pool one;
    size_t before = mapped_bytes();
    for (unsigned i = 0; i < TIMES; i++) {
        cr_assert(stage_pool_make(&one, MIB, 4, -1));
        stage_pool_free(&one);
    }
    cr_assert_lt(mapped_bytes(), before + TIMES * MIB);
}
