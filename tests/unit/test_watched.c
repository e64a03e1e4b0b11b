/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy into watched receives (engine/thread/watched.h), instruction by instruction: the processor's trap flag is
 * set, and after each instruction the handler looks at the buffer, as a reader on another processor could.
 */
#include "thread/watched.h"

#include "core/core.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

enum {
    UNIT = CORE_WATCHED_BYTES,
    SIZE_MAX_BYTES = 1100,
    ROOM = 2048,
    SOURCES = 16, /* alignments */
#if defined(__SANITIZE_ADDRESS__)
    STRIDE = 29, /* between sizes: what looks after each access takes many instructions */
#else
    STRIDE = 1,
#endif
};

static _Alignas(UNIT) uint8_t target[ROOM], source[ROOM], before[ROOM], after[ROOM];

static void fill(void)
{
    for (unsigned i = 0; i < ROOM; i++) {
        before[i] = (uint8_t)(i * 7 + 1);
        source[i] = (uint8_t) ~(i * 11 + (i >> 8));
    }
}

/* What a copy is to come to; every byte that it writes changes. */
static void prepare(size_t at, const uint8_t *from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        before[at + i] = (uint8_t)(from[i] + 1 + i % 5);
    memcpy(target, before, ROOM);
    memcpy(after, before, ROOM);
    memcpy(after + at, from, length);
}

Test(watched, every_size_and_alignment)
{
    fill();
    for (size_t at = 0; at < 2 * UNIT; at++) {
        for (size_t from = 0; from < SOURCES; from++) {
            for (size_t length = 0; length < 300; length++) {
                prepare(at, source + from, length);
                watched_copy(target + at, source + from, length);
                cr_assert(memcmp(target, after, ROOM) == 0, "%zu bytes from %zu to %zu", length, from, at);
            }
        }
    }
}

#if defined(__x86_64__)

/* What the handler looks at, and what it finds. */
static struct {
    size_t from, to; /* of the target: what is written */
    size_t done;     /* bytes from there on that have appeared */
    uint64_t steps, torn, disordered, foreign;
} seen;

/* Bytes [at, at + 8) of the target that are written: whether some of these have appeared and others not. */
static bool is_torn(size_t at)
{
    return memcmp(target + at, after + at, 8) != 0 && memcmp(target + at, before + at, 8) != 0;
}

/*
 * A copy appears from its beginning to its end, in whole words of 8, and smaller ones where it has no whole ones. That
 * is more than is promised across units. Bytes that did not change cannot be told, but all of them do.
 */
static void look(void)
{
    size_t done = seen.done;
    while (done < seen.to && target[done] == after[done])
        done++;
    if (memcmp(target, before, seen.from) != 0 || memcmp(target + seen.to, before + seen.to, ROOM - seen.to) != 0)
        seen.foreign++;
    if (memcmp(target + done, before + done, seen.to - done) != 0)
        seen.disordered++;
    for (size_t at = (seen.done + 7) / 8 * 8; at + 8 <= seen.to && at < done + 8; at += 8)
        if (at >= seen.from && is_torn(at))
            seen.torn++;
    seen.done = done;
    seen.steps++;
}

static void on_trap(int signal)
{
    (void)signal;
    look();
}

/* The handler runs after each instruction, its own excepted, until the flag is cleared. */
#define TRAP_FLAG_ON                                                                                                   \
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::        \
                         : "memory", "cc")
#define TRAP_FLAG_OFF                                                                                                  \
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::      \
                         : "memory", "cc")

typedef void (*copy_fn)(void *to, const void *from, size_t length);

static void step_through(copy_fn copy, size_t at, const uint8_t *from, size_t length)
{
    prepare(at, from, length);
    seen.from = seen.done = at;
    seen.to = at + length;
    TRAP_FLAG_ON;
    copy(target + at, from, length);
    TRAP_FLAG_OFF;
    cr_assert(memcmp(target, after, ROOM) == 0);
    cr_assert_eq(seen.done, seen.to, "the handler has not seen the end of %zu bytes", length);
}

static void begin(void)
{
    fill();
    memset(&seen, 0, sizeof seen);
    cr_assert_eq(sigaction(SIGTRAP, &(struct sigaction){.sa_handler = on_trap}, NULL), 0);
}

/* All sizes, and all alignments of the source. */
Test(watched, no_instruction_tears, .timeout = 100)
{
    begin();
    for (size_t length = 0; length <= SIZE_MAX_BYTES; length += STRIDE) {
        step_through(watched_copy, 0, source + length % SOURCES, length);
        cr_assert_eq(seen.torn + seen.disordered + seen.foreign, 0, "%zu bytes, alignment %zu", length,
                     length % SOURCES);
    }
    for (size_t from = 0; from < SOURCES; from++) {
        for (size_t length = 1; length <= UNIT + 32; length += 2 + STRIDE) {
            step_through(watched_copy, UNIT, source + from, length);
            cr_assert_eq(seen.torn + seen.disordered + seen.foreign, 0, "%zu bytes, alignment %zu", length, from);
        }
    }
    cr_assert_gt(seen.steps, 50000);
}

/* It begins or ends within a unit: where the eager ring wraps, and where a message ends. */
Test(watched, no_instruction_tears_within_a_unit, .timeout = 100)
{
    begin();
    for (size_t at = 1; at < UNIT; at += 3) {
        for (size_t length = at % 7; length <= UNIT + 20; length += 6 + STRIDE) {
            step_through(watched_copy, at, source + at % SOURCES, length);
            cr_assert_eq(seen.torn + seen.disordered + seen.foreign, 0, "%zu bytes to %zu", length, at);
        }
    }
}

/* ---- that the test can fail ------------------------------------------------------------------ */

static void by_bytes(void *to, const void *from, size_t length)
{
    volatile uint8_t *byte = to;
    for (size_t i = 0; i < length; i++)
        byte[i] = ((const uint8_t *)from)[i];
}

static void by_words_from_the_end(void *to, const void *from, size_t length)
{
    volatile uint64_t *word = to;
    for (size_t i = length / 8; i-- > 0;)
        word[i] = ((const uint64_t *)from)[i];
}

/* As memcpy() does: the end first, by words that overlap those before. */
static void by_words_that_overlap(void *to, const void *from, size_t length)
{
    typedef uint64_t word __attribute__((aligned(1)));
    volatile word *end = (volatile word *)((uint8_t *)to + length - 8);
    *end = *(const word *)((const uint8_t *)from + length - 8);
    for (size_t i = 0; i < length / 8; i++)
        ((volatile word *)to)[i] = ((const word *)from)[i];
}

static void beyond(void *to, const void *from, size_t length)
{
    volatile uint8_t *byte = to;
    byte[length]++;
    byte[length]--;
    watched_copy(to, from, length);
}

Test(watched, wrong_copies_are_found)
{
    begin();
    step_through(by_bytes, 0, source, 64);
    cr_assert_gt(seen.torn, 0);
    begin();
    step_through(by_words_from_the_end, 0, source, 64);
    cr_assert_gt(seen.disordered, 0);
    cr_assert_eq(seen.torn, 0);
    begin();
    step_through(by_words_that_overlap, 0, source, 61);
    cr_assert_gt(seen.disordered, 0);
    begin();
    step_through(beyond, 0, source, 64);
    cr_assert_gt(seen.foreign, 0);
}

#endif
