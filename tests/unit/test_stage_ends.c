/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives that end early for a device that stands still: what no copy has begun of keeps no request. The stage alone,
 * without engines (gpu/stage.h).
 */
#include "stage_pair.h"

#include "../param_defaults.h"
#include "gpu/stage.h"

enum { BLOCKS = 8, BLOCK = 64 * 1024, DEVICE_COPIES = 256, SLICE = 64 };

static struct params params;
static struct counters counters;
static struct mem_identity identity;
static struct stage *stage;
static struct gpu_context context;
static _Atomic uint32_t staged;
static uint8_t *memory;
static unsigned ended;

static void note_ended(void *owner, struct uccl_request *request)
{
    cr_assert(owner == &context && request->staged.over);
    ended++;
}

static void set_up(void)
{
    params = param_defaults();
    params.gpu_blocks = BLOCKS;
    params.gpu_block_kb = BLOCK / 1024;
    context = (struct gpu_context){.params = &params,
                                   .counters = &counters,
                                   .numa_node = -1,
                                   .staged = &staged,
                                   .ended = note_ended,
                                   .owner = &context};
    stage = stage_open(&context);
    memory = fake_alloc(MAX_BYTES, 0);
    IS(fake_identify(memory, &identity), UCCL_OK);
    fill(shadow, MAX_BYTES, 3);
    fake.hold = true;
}

static void tear_down(void)
{
    fake.hold = false;
    while (staged)
        stage_progress(stage);
    stage_close(stage);
    stage_free(stage);
    fake_free(memory);
}

/* Its memory begins at `at`. */
static void begin(struct uccl_request *request, size_t at, size_t size)
{
    *request = (struct uccl_request){.msg = {.kind = CORE_RECV, .size_bytes = size}, .buffer = memory + at};
    request->staged.memory = &identity;
    staged++;
    stage_begin(stage, request, 0);
    stage_began(stage, request);
}

static void arrives(struct uccl_request *request, size_t offset, size_t length)
{
    stage_write(stage, request, offset, shadow + offset, length);
}

/* True: it ends at once. */
static bool cancelled(struct uccl_request *request)
{
    request->msg.status = UCCL_ECANCELED;
    return stage_over(stage, request);
}

static bool all_over(struct uccl_request *request)
{
    request->msg.moved_bytes = request->msg.size_bytes;
    return stage_over(stage, request);
}

static uint64_t spills(void)
{
    return atomic_load(&counters.gpu_spills);
}

/* What is in the device's memory. */
static void expect(size_t at, size_t length, bool arrived)
{
    static uint8_t found[MAX_BYTES];
    fake_read(found, memory + at, length);
    if (arrived)
        check(found, length, 3);
    for (size_t i = 0; i < length && !arrived; i++)
        cr_assert_eq(found[i], 0, "byte %zu was written", at + i);
}

/* Found in review: they waited behind what was kept for other receives. */
Test(stage_ends, bytes_on_the_heap_keep_no_receive, .init = set_up, .timeout = 30)
{
    static struct uccl_request first, second, third;
    begin(&first, 0, BLOCKS * BLOCK);
    for (size_t at = 0; spills() < 3; at += 1000) {
        arrives(&first, at, 1000);
        stage_progress(stage);
    }
    begin(&second, BLOCKS * BLOCK, 3000);
    begin(&third, (BLOCKS + 1) * BLOCK, 3000);
    uint64_t before = spills();
    arrives(&second, 0, 1000);
    arrives(&third, 0, 3000);
    arrives(&second, 2000, 1000);
    cr_assert_eq(spills(), before + 3, "there is no block for them");
    cr_assert(cancelled(&second), "nothing touches its memory");
    cr_assert_not(all_over(&third));
    cr_assert_not(cancelled(&first), "the device copies its blocks");
    fake.hold = false;
    while (staged)
        stage_progress(stage);
    cr_assert_eq(ended, 2);
    expect(BLOCKS * BLOCK, 3000, false);
    expect((BLOCKS + 1) * BLOCK, 3000, true);
    tear_down();
}

/* Nor do blocks whose copies have not begun. */
Test(stage_ends, copies_that_have_not_begun_keep_no_receive, .init = set_up, .timeout = 30)
{
    static struct uccl_request requests[3];
    for (unsigned i = 0; i < 3; i++) {
        begin(&requests[i], i * BLOCK, BLOCK);
        arrives(&requests[i], 0, BLOCK);
    }
    cr_assert(cancelled(&requests[1]));
    cr_assert(cancelled(&requests[2]));
    cr_assert_not(all_over(&requests[0]));
    fake.hold = false;
    while (staged)
        stage_progress(stage);
    expect(0, BLOCK, true);
    expect(BLOCK, 2 * BLOCK, false);
    cr_assert_eq(fake.copies, 1);
    tear_down();
}

/* Of a block with several ranges the device has taken one: that one is waited for, and the others are not copied. */
Test(stage_ends, a_copy_that_has_begun_is_waited_for, .init = set_up, .timeout = 30)
{
    enum { RANGES = 9, APART = 200, LENGTH = 100, AT = DEVICE_COPIES * SLICE };
    static struct uccl_request many[DEVICE_COPIES - 1], last;
    params.gpu_blocks = 4 * BLOCKS;
    for (unsigned i = 0; i < DEVICE_COPIES - 1; i++) {
        begin(&many[i], i * SLICE, SLICE);
        arrives(&many[i], 0, SLICE);
        cr_assert_not(all_over(&many[i]));
    }
    stage_progress(stage);
    begin(&last, AT, RANGES * APART);
    for (unsigned i = 0; i < RANGES; i++)
        arrives(&last, i * APART, LENGTH);
    cr_assert_eq(spills(), 0);
    stage_progress(stage);
    cr_assert_not(cancelled(&last));
    fake.hold = false;
    while (staged)
        stage_progress(stage);
    cr_assert_eq(ended, DEVICE_COPIES);
    cr_assert_eq(fake.copies, DEVICE_COPIES);
    expect(AT, LENGTH, true);
    expect(AT + APART, (RANGES - 1) * APART, false);
    tear_down();
}
