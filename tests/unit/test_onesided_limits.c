/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations at their limits: tables of exports that are full, long vectors, references that are invented. */
#include "onesided_pair.h"

#include "../../api/objects.h"
#include "base/le.h"
#include "core/crc32c.h"

#include <sys/mman.h>

enum { STEP = 64 };

static uint64_t refused(const struct one *one)
{
    uint64_t count;
    IS(uccl_counter_by_name(one->pair.engine[1], "accesses_refused", &count), 0);
    return count;
}

static int write_word(const struct one *one, const uint8_t ref[UCCL_REF_BYTES], uint64_t value)
{
    uccl_remote *remote;
    uccl_request *request;
    IS(uccl_import(one->pair.conn[0], ref, &remote), 0);
    struct uccl_piece piece = {.local = &value, .length = sizeof value, .remote = remote};
    IS(uccl_write_async(one->pair.conn[0], &piece, 1, NULL, &request), 0);
    IS(uccl_remote_free(remote), 0);
    return uccl_wait(request, SOON_MS, NULL);
}

/* As many exports as there may be, each for its own bytes; revoked in another order, and made again. */
Test(onesided_limits, all_exports, .timeout = TIMEOUT_S)
{
    struct one one;
    one_open(&one, "no", (size_t)EXPORTS_MAX * STEP, ALL);
    uint8_t(*refs)[UCCL_REF_BYTES] = calloc(EXPORTS_MAX, sizeof *refs), again[UCCL_REF_BYTES];
    uccl_export **exports = calloc(EXPORTS_MAX, sizeof(void *)), *more;
    unsigned count = EXPORTS_MAX - 1; /* and the one of one_open() */
    for (unsigned i = 0; i < count; i++)
        IS(uccl_export_mr(one.mr[1], one.memory + (size_t)i * STEP, 8, ALL, refs[i], &exports[i]), 0);
    uccl_set_log(log_nothing, NULL);
    IS(uccl_export_mr(one.mr[1], one.memory, 8, ALL, again, &more), UCCL_ENOMEM);
    for (unsigned i = 0; i < count; i += 997)
        IS(write_word(&one, refs[i], i + UINT64_C(1)), 0);
    for (unsigned i = 0; i < count; i++)
        cr_assert_eq(*(uint64_t *)(void *)(one.memory + (size_t)i * STEP), i % 997 ? 0 : i + 1);
    for (unsigned i = 0; i < 10000; i++) { /* 7919 is prime */
        unsigned k = i * 7919 % count;
        IS(uccl_revoke(exports[k], SOON_MS), 0);
        exports[k] = NULL;
        if (i % 1000 == 0)
            IS(write_word(&one, refs[k], 7), UCCL_EACCESS);
    }
    IS(uccl_export_mr(one.mr[1], one.memory, 8, ALL, again, &more), 0);
    IS(write_word(&one, again, 99), 0);
    for (unsigned i = 0; i < 10000; i += 1000) /* an earlier life of the same entry, or of a free one */
        IS(write_word(&one, refs[i * 7919 % count], 7), UCCL_EACCESS);
    cr_assert_eq(refused(&one), 20);
    free(refs);
    free(exports);
    one_close(&one);
}

static uint64_t chunks_sent(const struct one *one)
{
    uint64_t count;
    IS(uccl_counter_by_name(one->pair.engine[0], "tx_chunks", &count), 0);
    return count;
}

/* They end at once. If each left a message, a loop of them would fill the memory while the peer is stopped. */
Test(onesided_limits, reads_of_nothing_leave_nothing, .timeout = TIMEOUT_S)
{
    struct one one;
    one_open(&one, "no", 4096, ALL);
    struct uccl_piece pieces[3] = {piece_of(&one, 0, 0, 0), piece_of(&one, 0, 0, 8), piece_of(&one, 0, 0, 16)};
    end_of(post_read(&one, 0, 8, 0), 0);
    uint64_t before = chunks_sent(&one);
    for (unsigned i = 0; i < 1000; i++)
        end_of(post_pieces(&one, false, pieces, 3, NULL), 0);
    end_of(post_read(&one, 0, 8, 0), 0); /* what was due before has left */
    cr_assert_lt(chunks_sent(&one), before + 10);
    one_close(&one);
}

static void nap(struct engine_thread *thread, void *argument)
{
    (void)thread, (void)argument;
    sleep_us(500000);
}

/* A vector of small pieces is many messages, which have the bytes inside: they do not leave, nor are made, all at once.
 */
Test(onesided_limits, small_pieces_wait_for_their_turn, .timeout = TIMEOUT_S)
{
    enum { PART = 256, PARTS = 4 * CONTROLS_OUT_MAX, COUNT = PART * PARTS };
    struct one one;
    struct thread_call call = {.run = nap};
    one_open(&one, "no", COUNT, ALL);
    struct uccl_piece *pieces = calloc(COUNT, sizeof *pieces);
    fill(one.local, COUNT, 1);
    for (size_t i = 0; i < COUNT; i++)
        pieces[i] = piece_of(&one, i, 1, i);
    end_of(post_write(&one, 0, 8, 0), 0);
    const volatile uint32_t *live = &one.pair.conn[0]->stripes.onesided->live;
    uint32_t before = *live;
    cr_assert(thread_post(one.pair.conn[1]->thread, COMMAND_CALL, &call));
    uccl_request *request = post_pieces(&one, true, pieces, COUNT, NULL);
    sleep_us(300000);
    cr_assert(*live > before + CONTROLS_OUT_MAX / 2 && *live <= before + CONTROLS_OUT_MAX, "%u", *live - before);
    cr_assert_eq(end_of(request, 0), COUNT);
    check(one.memory, COUNT, 1);
    free(pieces);
    one_close(&one);
}

/* The end of a registration, or of an export, costs the same however many there are: it looks at no other. */
Test(onesided_limits, an_end_looks_at_no_other, .timeout = TIMEOUT_S)
{
    enum { COUNT = 4, OLDEST = 0, ENDED = COUNT - 2, NEWEST = COUNT - 1 };
    uccl_mr *mr[COUNT];
    uccl_export *exported[COUNT];
    uint8_t ref[UCCL_REF_BYTES], bytes[COUNT];
    uccl_engine *engine = open_engine("no", NULL);
    void *shut = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shut, MAP_FAILED);
    for (int i = 0; i < COUNT; i++) {
        IS(uccl_reg_mr(engine, &bytes[i], 1, UCCL_MEM_HOST, &mr[i]), 0);
        IS(uccl_export_mr(mr[i], &bytes[i], 1, ALL, ref, &exported[i]), 0);
    }
    mr[OLDEST]->of_engine.next = shut; /* who goes through the queues crashes */
    exported[OLDEST]->of_engine.next = shut;
    IS(uccl_dereg_mr(mr[ENDED]), 0); /* and its export */
    mr[OLDEST]->of_engine.next = &mr[OLDEST + 1]->of_engine;
    exported[OLDEST]->of_engine.next = &exported[OLDEST + 1]->of_engine;
    cr_assert_eq(mr[OLDEST + 1]->of_engine.next, &mr[NEWEST]->of_engine);
    cr_assert_eq(exported[OLDEST + 1]->of_engine.next, &exported[NEWEST]->of_engine);
    IS(uccl_revoke(exported[ENDED], 0), UCCL_EINVAL);
    munmap(shut, 4096);
    IS(uccl_close(engine), 0);
}

/* Who knows an engine may name exports that it was not given: index, generation and nonce by guess. */
Test(onesided_limits, guessed_references, .timeout = TIMEOUT_S)
{
    static const struct {
        unsigned at, bytes;
    } fields[] = {{4, 4}, {8, 4}, {12, 8}};
    struct one one;
    one_open(&one, "no", 4096, ALL);
    unsigned tries = 0;
    for (unsigned field = 0; field < 3; field++) {
        for (unsigned shift = 0; shift < 8 * fields[field].bytes; shift++, tries++) {
            uint8_t ref[UCCL_REF_BYTES];
            memcpy(ref, one.ref, sizeof ref);
            uint64_t right = le_get(ref + fields[field].at, fields[field].bytes);
            le_put(ref + fields[field].at, right ^ UINT64_C(1) << shift, fields[field].bytes);
            le_put(ref + UCCL_REF_BYTES - 4, crc32c_portable(0, ref, UCCL_REF_BYTES - 4), 4);
            IS(write_word(&one, ref, 7), UCCL_EACCESS);
        }
    }
    cr_assert_eq(refused(&one), tries);
    /* what a reference says of length and rights is told to its user alone */
    uint8_t ref[UCCL_REF_BYTES];
    memcpy(ref, one.ref, sizeof ref);
    le_put(ref + 28, UINT64_MAX, 8);
    le_put(ref + UCCL_REF_BYTES - 4, crc32c_portable(0, ref, UCCL_REF_BYTES - 4), 4);
    uccl_remote *remote;
    IS(uccl_import(one.pair.conn[0], ref, &remote), 0);
    struct uccl_piece piece = {.local = one.local, .length = 4097 - 8, .remote = remote, .offset = 8};
    uccl_request *request;
    one.local = realloc(one.local, 8192);
    piece.local = one.local;
    IS(uccl_write_async(one.pair.conn[0], &piece, 1, NULL, &request), 0);
    end_of(request, UCCL_EACCESS);
    IS(uccl_remote_free(remote), 0);
    for (unsigned i = 0; i < 4096; i++)
        cr_assert_eq(one.memory[i], 0);
    one_close(&one);
}

/* One operation of more pieces than fit into any window. */
BOTH(onesided_limits, long_vectors)
{
    enum { COUNT = 10000 };
    struct one one;
    uint8_t got[8];
    one_open(&one, lend, (size_t)COUNT * STEP * 2, ALL);
    struct uccl_piece *pieces = calloc(COUNT, sizeof *pieces);
    for (unsigned write = 2; write-- > 0;) {
        uint8_t *from = write ? one.local : one.memory, *to = write ? one.memory : one.local;
        for (unsigned i = 0; i < COUNT; i++) {
            size_t length = i % 100 == 7 ? STEP : i % STEP;
            pieces[i] = piece_of(&one, (size_t)i * STEP * 2, length, (uint64_t)(COUNT - 1 - i) * STEP * 2);
            fill(write ? pieces[i].local : one.memory + pieces[i].offset, length, i + write);
        }
        (void)from;
        for (unsigned i = 0; i < COUNT; i++)
            memset(write ? to + pieces[i].offset : pieces[i].local, 0xee, (size_t)2 * STEP);
        struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = "whole", .length = 5};
        uccl_request *request = post_pieces(&one, write, pieces, COUNT, &tail);
        cr_assert_eq(next_note(&one, got, sizeof got), 5);
        for (unsigned i = 0; i < COUNT; i++) {
            const uint8_t *at = write ? to + pieces[i].offset : pieces[i].local;
            check(at, pieces[i].length, i + write);
            cr_assert_eq(at[pieces[i].length], 0xee);
        }
        end_of(request, 0);
    }
    free(pieces);
    one_close(&one);
}
