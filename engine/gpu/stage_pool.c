/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/stage_pool.h"

#include "base/unmap.h"
#include "core/pool.h"

#include <assert.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 * 1024 * 1024 };

/* Best effort: pages come from this node while it has some. */
static void prefer_node(void *memory, size_t bytes, int numa_node)
{
    unsigned long nodes[16] = {0}, bits = 8 * sizeof nodes[0];
    if (numa_node < 0 || (unsigned long)numa_node >= bits * 16)
        return;
    nodes[(unsigned long)numa_node / bits] = 1ul << (unsigned long)numa_node % bits;
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, bits * 16, 0);
}

/* Large pages, if the kernel has some: fewer to pin and to look up. */
static bool map(struct stage_pool *pool)
{
    pool->mapped_bytes = pool->memory_bytes + HUGE_PAGE;
    pool->mapped = mmap(NULL, pool->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool->mapped == MAP_FAILED) {
        pool->mapped = NULL;
        return false;
    }
    pool->memory = pool->mapped + (HUGE_PAGE - (uintptr_t)pool->mapped % HUGE_PAGE) % HUGE_PAGE;
    madvise(pool->memory, pool->memory_bytes, MADV_HUGEPAGE);
    return true;
}

bool stage_pool_make(struct stage_pool *pool, uint32_t block_bytes, uint32_t block_count, int numa_node)
{
    uint32_t span_count = block_count * STAGE_SPANS_PER_BLOCK;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = ((size_t)block_bytes * block_count + page - 1) / page * page;
    *pool = (struct stage_pool){
        .memory_bytes = bytes,
        .block_bytes = block_bytes,
        .block_count = block_count,
        .blocks = calloc(block_count, sizeof *pool->blocks),
        .spans = calloc(span_count, sizeof *pool->spans),
    };
    if (!pool->blocks || !pool->spans || !map(pool)) {
        stage_pool_free(pool);
        return false;
    }
    prefer_node(pool->memory, bytes, numa_node);
    for (uint32_t i = block_count; i-- > 0;) {
        pool->blocks[i].memory = pool->memory + (size_t)i * block_bytes;
        pool->blocks[i].next = pool->free_blocks;
        pool->free_blocks = &pool->blocks[i];
    }
    for (uint32_t i = span_count; i-- > 0;) {
        pool->spans[i].next = pool->free_spans;
        pool->free_spans = &pool->spans[i];
    }
    pool->free_block_count = block_count;
    pool->free_span_count = span_count;
    return true;
}

void stage_pool_free(struct stage_pool *pool)
{
    if (pool->mapped)
        unmap(pool->mapped, pool->mapped_bytes);
    free(pool->blocks);
    free(pool->spans);
    *pool = (struct stage_pool){0};
}

/* How many of `count` things a side may still take, if it has taken some and some are free. */
static uint32_t left_of(uint32_t count, uint32_t taken, uint32_t free_count)
{
    uint32_t most = count - count / 4;
    return most - taken < free_count ? most - taken : free_count;
}

static uint32_t blocks_left(const struct stage_pool *pool, enum stage_side side)
{
    return left_of(pool->block_count, pool->taken[side], pool->free_block_count);
}

static uint32_t spans_left(const struct stage_pool *pool, enum stage_side side)
{
    return left_of(pool->block_count * STAGE_SPANS_PER_BLOCK, pool->spans_taken[side], pool->free_span_count);
}

uint32_t stage_pool_room(const struct stage_pool *pool, enum stage_side side)
{
    uint32_t blocks = blocks_left(pool, side), spans = spans_left(pool, side) / STAGE_SPANS_PER_BLOCK;
    return blocks < spans ? blocks : spans;
}

static struct stage_block *take_block(struct stage_pool *pool, enum stage_side side)
{
    struct stage_block *block = pool->free_blocks;
    if (blocks_left(pool, side) == 0)
        return NULL;
    pool->free_blocks = block->next;
    pool->free_block_count--;
    pool->taken[side]++;
    block->side = (uint8_t)side;
    block->used_bytes = 0;
    return block;
}

static void put_block(struct stage_pool *pool, struct stage_block *block)
{
    pool->taken[block->side]--;
    pool->free_block_count++;
    block->next = pool->free_blocks;
    pool->free_blocks = block;
}

/* A block that a slice of this length fits into; NULL: none is left. */
static struct stage_block *shared_block(struct stage_pool *pool, enum stage_side side, uint32_t length)
{
    struct stage_block *block = pool->shared[side];
    if (block && length <= pool->block_bytes - block->used_bytes)
        return block;
    block = take_block(pool, side);
    if (block) /* the block before is free once its last span is */
        pool->shared[side] = block;
    return block;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* What one may hold for each that it leaves. */
static const unsigned weights[STAGE_SIDES] = {[STAGE_SENDS] = 1, [STAGE_RECEIVES] = 4};

/* What is left of the blocks but for a reserve, in bytes. */
static uint64_t bytes_left(const struct stage_pool *pool, enum stage_side side, uint32_t reserve)
{
    const struct stage_block *shared = pool->shared[side];
    uint64_t left_bytes = (uint64_t)blocks_left(pool, side) * pool->block_bytes;
    uint64_t reserve_bytes = (uint64_t)reserve * pool->block_bytes;
    left_bytes += shared ? pool->block_bytes - shared->used_bytes : 0;
    return left_bytes > reserve_bytes ? left_bytes - reserve_bytes : 0;
}

static bool has_share(const struct stage_pool *pool, enum stage_side side, const struct stage_held *held)
{
    unsigned weight = weights[side];
    uint32_t reserve = held->spans ? pool->block_count / 8 : 0, spans = spans_left(pool, side);
    return pool_allows(held->bytes / weight, bytes_left(pool, side, reserve)) &&
           spans > reserve * STAGE_SPANS_PER_BLOCK &&
           pool_allows(held->spans / weight, spans - reserve * STAGE_SPANS_PER_BLOCK);
}

/* How much more one may take that holds `held` while `left` is free: until it holds `weight` times the rest. */
static uint64_t may_take(uint64_t held, uint64_t left, unsigned weight)
{
    return weight * left > held ? (weight * left - held + weight) / (weight + 1) : 0;
}

uint32_t stage_pool_share(const struct stage_pool *pool, enum stage_side side, const struct stage_held *held)
{
    uint32_t reserve = pool->block_count / 8, reserved_spans = reserve * STAGE_SPANS_PER_BLOCK;
    uint32_t spans = spans_left(pool, side), left_spans = spans > reserved_spans ? spans - reserved_spans : 0;
    uint64_t bytes = may_take(held->bytes, bytes_left(pool, side, reserve), weights[side]);
    uint64_t blocks = bytes / pool->block_bytes;
    uint64_t in_spans = may_take(held->spans, left_spans, weights[side]) / STAGE_SPANS_PER_BLOCK;
    return (uint32_t)(blocks < in_spans ? blocks : in_spans);
}

/* ---- spans ----------------------------------------------------------------------------------- */

struct stage_span *stage_span_take(struct stage_pool *pool, enum stage_side side, uint32_t length,
                                   struct stage_held *held)
{
    uint32_t bytes = (length + STAGE_SLICE_UNIT - 1) / STAGE_SLICE_UNIT * STAGE_SLICE_UNIT;
    bool slice = bytes <= pool->block_bytes / 2;
    struct stage_span *span = pool->free_spans;
    assert(length && length <= pool->block_bytes);
    if (spans_left(pool, side) == 0 || (held && !has_share(pool, side, held)))
        return NULL;
    struct stage_block *block = slice ? shared_block(pool, side, bytes) : take_block(pool, side);
    if (!block)
        return NULL;
    pool->free_spans = span->next;
    pool->free_span_count--;
    pool->spans_taken[side]++;
    *span = (struct stage_span){.block = block,
                                .memory = block->memory + block->used_bytes,
                                .length = length,
                                .left_bytes = length,
                                .held = held};
    if (held) {
        held->bytes += length;
        held->spans++;
    }
    block->used_bytes += slice ? bytes : pool->block_bytes;
    block->spans++;
    return span;
}

void stage_span_put(struct stage_pool *pool, struct stage_span *span)
{
    struct stage_block *block = span->block;
    assert(span->copies == 0 && block->spans);
    if (span->held) {
        span->held->bytes -= span->length;
        span->held->spans--;
    }
    span->next = pool->free_spans;
    pool->free_spans = span;
    pool->free_span_count++;
    pool->spans_taken[block->side]--;
    if (--block->spans)
        return;
    if (block == pool->shared[block->side])
        pool->shared[block->side] = NULL;
    put_block(pool, block);
}

bool stage_span_add(struct stage_span *span, uint32_t from, uint32_t to)
{
    for (unsigned i = 0; i < span->range_count; i++) {
        if (span->ranges[i].to != from && span->ranges[i].from != to)
            continue;
        /* the two become one, which may touch another */
        from = span->ranges[i].from < from ? span->ranges[i].from : from;
        to = span->ranges[i].to > to ? span->ranges[i].to : to;
        span->ranges[i] = span->ranges[--span->range_count];
        i = UINT_MAX; /* from the beginning */
    }
    if (span->range_count == STAGE_RANGES)
        return false;
    span->ranges[span->range_count].from = from;
    span->ranges[span->range_count++].to = to;
    return true;
}
