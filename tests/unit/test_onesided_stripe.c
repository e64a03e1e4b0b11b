/* SPDX-License-Identifier: Apache-2.0 */
/* Large writes and reads over several engine threads: really spread, and whole whatever happens to their parts. */
#include "onesided_pair.h"

#include "../../api/objects.h"
#include "core/flow.h"
#include "core/state.h"
#include "thread/post.h"

enum { ENGINES = 3, LARGE = 3000003, LEAST = 80000 };

static void open_with(struct one *one, const char *lend, const char *setting, const char *value, size_t bytes)
{
    for (int i = 0; i < 2; i++)
        one->pair.engine[i] =
            open_engine(lend, "NUM_ENGINES", "3", "STRIPE_MIN_KB", "64", "LINGER_MS", "300", setting, value, NULL);
    pair_connect(&one->pair);
    one_begin(one, bytes, ALL);
}

static uint64_t sent_by(const struct uccl_engine *engine, unsigned thread)
{
    return atomic_load(&engine->threads[thread].counters->tx_bytes);
}

/* How much depends on the machine; over some operations each thread has had the time for a range. */
static void spread(const char *lend, bool write)
{
    struct one one;
    uint64_t before[ENGINES], end_ms = now_ms() + SOON_MS;
    open_with(&one, lend, "MAX_REQUESTS", "4096", LARGE);
    uccl_engine *sender = one.pair.engine[!write];
    for (unsigned i = 0; i < ENGINES; i++)
        before[i] = sent_by(sender, i);
    for (unsigned i = 0, k = 0; i < ENGINES; k++) {
        if (sent_by(sender, i) - before[i] >= LEAST) {
            i++;
            continue;
        }
        cr_assert(now_ms() < end_ms, "engine thread %u has sent too little", i);
        fill(write ? one.local : one.memory, LARGE, k);
        cr_assert_eq(end_of(write ? post_write(&one, 0, LARGE, 0) : post_read(&one, 0, LARGE, 0), 0), LARGE);
        check(write ? one.memory : one.local, LARGE, k);
    }
    one_close(&one);
}

BOTH(onesided_stripe, every_thread_carries_a_part_of_a_write)
{
    spread(lend, true);
}

BOTH(onesided_stripe, every_thread_carries_a_part_of_a_read)
{
    spread(lend, false);
}

/* A target knows the length of a write: the first one of this length has parts, whatever came before. */
BOTH(onesided_stripe, small_ones_before_say_nothing)
{
    struct one one;
    uint64_t end_ms = now_ms() + SOON_MS, before = 0, after = 0;
    open_with(&one, lend, "MAX_REQUESTS", "4096", LARGE);
    while (after - before < LEAST) {
        cr_assert(now_ms() < end_ms, "one thread has carried all");
        for (unsigned i = 0; i < 2 * STRIPE_NOTED; i++)
            end_of(post_write(&one, 0, 20000, 0), 0);
        before = sent_by(one.pair.engine[0], 1) + sent_by(one.pair.engine[0], 2);
        end_of(post_write(&one, 0, LARGE, 0), 0);
        after = sent_by(one.pair.engine[0], 1) + sent_by(one.pair.engine[0], 2);
    }
    one_close(&one);
}

/* Without requests for parts, they travel whole. */
BOTH(onesided_stripe, requests_run_out)
{
    enum { COUNT = 12 };
    struct one one;
    uccl_request *requests[COUNT];
    open_with(&one, lend, "MAX_REQUESTS", "16", LARGE);
    fill(one.local, LARGE, 1);
    for (unsigned i = 0; i < COUNT; i++)
        requests[i] = post_write(&one, 0, LARGE, 0);
    for (unsigned i = 0; i < COUNT; i++)
        end_of(requests[i], 0);
    check(one.memory, LARGE, 1);
    one_close(&one);
}

/* Threads that find each other's rings full tell each other later. */
BOTH(onesided_stripe, rings_are_full)
{
    enum { COUNT = 60, BYTES = 300000 };
    struct one one;
    uccl_request *requests[COUNT] = {0};
    open_with(&one, lend, "RING_ENTRIES", "16", COUNT * BYTES);
    uint64_t end_ms = now_ms() + SOON_MS;
    for (unsigned i = 0; i < COUNT; i++)
        fill(one.local + i * BYTES, BYTES, i);
    for (unsigned i = 0; i < COUNT;) {
        struct uccl_piece piece = piece_of(&one, i * BYTES, BYTES, i * BYTES);
        int error = uccl_write_async(one.pair.conn[0], &piece, 1, NULL, &requests[i]);
        i += error == 0;
        cr_assert(error == 0 || error == UCCL_EAGAIN, "%d", error);
        cr_assert(now_ms() < end_ms);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        end_of(requests[i], 0);
        check(one.memory + i * BYTES, BYTES, i);
    }
    one_close(&one);
}

static void give_up_flow(struct engine_thread *thread, void *argument)
{
    (void)thread;
    flow_give_up(((struct conn *)argument)->flow, false);
}

/* A flow that has a part of an operation is dead, the home flow is not: the operation ends, and its memory is free. */
BOTH(onesided_stripe, a_dead_flow_of_a_part_ends_the_operation)
{
    struct one one;
    for (unsigned round = 0; round < 6; round++) {
        unsigned side = round % 2;
        open_with(&one, lend, "MAX_REQUESTS", "4096", 8 * LARGE);
        uccl_request *requests[8];
        for (unsigned i = 0; i < 8; i++)
            requests[i] = i % 2 ? post_read(&one, i * LARGE, LARGE, i * LARGE) : post_write(&one, i * LARGE, LARGE, 0);
        const struct stripe_set *stripes = &one.pair.conn[side]->stripes;
        thread_run(stripes->at[1].thread, give_up_flow, stripes->at[1].conns[CLASS_WRITES]);
        for (unsigned i = 0; i < 8; i++) {
            int status = uccl_wait(requests[i], SOON_MS, NULL);
            cr_assert(status == 0 || status == UCCL_EPEERDEAD || status == UCCL_ECLOSED || status == UCCL_ECANCELED,
                      "%d (%s)", status, uccl_strerror(status));
        }
        IS(uccl_revoke(one.exported, SOON_MS), 0);
        IS(uccl_dereg_mr(one.mr[0]), 0);
        one_close(&one);
    }
}

static void nap(struct engine_thread *thread, void *argument)
{
    (void)thread;
    sleep_us(*(unsigned *)argument);
}

/*
 * A thread of the target is kept from the processor for a while. The others carry all, so the initiator has its reads
 * and begins more; but at the target no operation is over that has a part on that thread.
 */
static void target_naps(const char *lend, bool write)
{
    enum { WINDOW = 200, COUNT = 1500, BYTES = 300000, PIECES = 200 };
    struct one one;
    unsigned nap_us = 1000000;
    struct thread_call call = {.run = nap, .argument = &nap_us};
    static struct uccl_piece pieces[COUNT * PIECES / 2]; /* of one write: 256 a message */
    uccl_request *requests[WINDOW];
    open_with(&one, lend, "MAX_REQUESTS", "4096", BYTES);
    end_of(post_read(&one, 0, BYTES, 0), 0);
    cr_assert(thread_post(one.pair.conn[1]->stripes.at[1].thread, COMMAND_CALL, &call));
    if (write) {
        size_t count = sizeof pieces / sizeof pieces[0];
        for (size_t i = 0; i < count; i++)
            pieces[i] = piece_of(&one, i % PIECES * 1500, 1500, i % PIECES * 1500);
        end_of(post_pieces(&one, true, pieces, count, NULL), 0);
    }
    for (unsigned i = 0; !write && i < COUNT + WINDOW; i++) {
        if (i >= WINDOW)
            cr_assert_eq(end_of(requests[i % WINDOW], 0), BYTES);
        if (i < COUNT)
            requests[i % WINDOW] = post_read(&one, 0, BYTES, 0);
    }
    one_close(&one);
}

BOTH(onesided_stripe, reads_while_a_thread_of_the_target_naps)
{
    target_naps(lend, false);
}

BOTH(onesided_stripe, a_write_while_a_thread_of_the_target_naps)
{
    target_naps(lend, true);
}

/* Either end closes while messages wait at the target for room. */
BOTH(onesided_stripe, closed_while_a_thread_of_the_target_naps)
{
    enum { COUNT = 1500, BYTES = 300000 };
    for (unsigned side = 0; side < 2; side++) {
        struct one one;
        unsigned nap_us = 500000, ended = 0;
        struct thread_call call = {.run = nap, .argument = &nap_us};
        uccl_request **requests = calloc(COUNT, sizeof(void *));
        open_with(&one, lend, "MAX_REQUESTS", "4096", BYTES);
        end_of(post_read(&one, 0, BYTES, 0), 0);
        cr_assert(thread_post(one.pair.conn[1]->stripes.at[1].thread, COMMAND_CALL, &call));
        for (unsigned i = 0; i < COUNT; i++)
            requests[i] = post_read(&one, 0, BYTES, 0);
        for (; ended < 600 && !atomic_load(&call.done) && uccl_wait(requests[ended], 20, NULL) == 0; ended++)
            ;
        IS(uccl_conn_close(one.pair.conn[side]), 0);
        for (; ended < COUNT; ended++) {
            int status = uccl_wait(requests[ended], SOON_MS, NULL);
            cr_assert(status == 0 || status == UCCL_ECANCELED || status == UCCL_ECLOSED, "%d", status);
        }
        free(requests);
        one_close(&one);
    }
}

/* A close of the target lets reads under way finish: the parts of annexes stay open until all of its ends are over. */
BOTH(onesided_stripe, a_close_lets_reads_finish)
{
    struct one one;
    for (unsigned round = 0; round < 5; round++) {
        int done = 0;
        open_with(&one, lend, "LINGER_MS", "5000", 4 * LARGE);
        memset(one.memory, round, one.bytes);
        uccl_request *request = post_read(&one, 0, 4 * LARGE, 0);
        while (one.local[LARGE / 2] == 0xee) /* until it is under way */
            IS(uccl_test(request, &done, NULL), 0);
        IS(uccl_conn_close(one.pair.conn[1]), 0);
        if (!done)
            end_of(request, 0);
        for (size_t at = 0; at < one.bytes; at++)
            cr_assert_eq(one.local[at], round);
        one_close(&one);
    }
}

/* Datagrams are sent from the pieces where they lie; their checksums are those of the whole. */
BOTH(onesided_stripe, vectors_with_checksums)
{
    enum { COUNT = 700, STEP = 4200 };
    struct one one;
    static struct uccl_piece pieces[COUNT];
    open_with(&one, lend, "PAYLOAD_CRC", "yes", COUNT * STEP);
    for (unsigned round = 0; round < 4; round++) {
        size_t most = round ? 4096 >> 2 * (round - 1) : STEP; /* from few to many pieces in a datagram */
        memset(one.memory, 0, one.bytes);
        for (unsigned i = 0; i < COUNT; i++) {
            size_t length = most - i % 3;
            pieces[i] = piece_of(&one, (size_t)i * STEP, length, (uint64_t)(COUNT - 1 - i) * STEP);
            fill(one.local + (size_t)i * STEP, length, i);
        }
        end_of(post_pieces(&one, true, pieces, COUNT, NULL), 0);
        for (unsigned i = 0; i < COUNT; i++)
            check(one.memory + pieces[i].offset, pieces[i].length, i);
    }
    for (unsigned i = 0; i < ENGINES; i++)
        cr_assert_eq(one.pair.engine[1]->threads[i].counters->rx_payload_crc, 0);
    one_close(&one);
}

/* So many pieces do not fit into a message of CONTROL beside their bytes. */
BOTH(onesided_stripe, many_small_pieces)
{
    enum { COUNT = 1000, STEP = 64 };
    struct one one;
    static struct uccl_piece pieces[COUNT];
    open_with(&one, lend, "MAX_REQUESTS", "4096", COUNT * STEP);
    for (size_t length = 1; length <= STEP / 2; length++) {
        memset(one.memory, 0, one.bytes);
        for (unsigned i = 0; i < COUNT; i++) {
            pieces[i] = piece_of(&one, (size_t)i * STEP, length, (uint64_t)i * STEP);
            fill(one.local + (size_t)i * STEP, length, i);
        }
        end_of(post_pieces(&one, true, pieces, COUNT, NULL), 0);
        for (unsigned i = 0; i < COUNT; i++)
            check(one.memory + pieces[i].offset, length, i);
    }
    one_close(&one);
}

/* One write with a signal each way; the second one answers the first. */
static void to_and_fro(struct one *one, uccl_remote *remotes[2], uint64_t round, uccl_request *requests[2])
{
    uint8_t *memory[2] = {one->local, one->memory};
    for (unsigned i = 0; i < 2; i++) {
        struct uccl_tail tail = {.kind = UCCL_TAIL_SET, .remote = remotes[i], .value = round};
        IS(uccl_write_async(one->pair.conn[i], NULL, 0, &tail, &requests[i]), 0);
        while (__atomic_load_n((uint64_t *)(void *)memory[!i], __ATOMIC_ACQUIRE) != round) {
            uccl_notify_next(one->pair.engine[i], NULL, 0, NULL, NULL); /* runs the lent engines */
            uccl_notify_next(one->pair.engine[!i], NULL, 0, NULL, NULL);
        }
    }
}

/*
 * Writes with a signal go to and fro, each in a datagram with the DONE of the one before. Where others have the
 * processors for longer than acks may wait there are more datagrams: a few rounds without that are enough.
 */
Test(onesided_stripe, done_travels_with_the_answer, .timeout = TIMEOUT_S)
{
    enum { GROUP = 20 };
    struct one one;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *exported;
    uccl_remote *remotes[2];
    for (int i = 0; i < 2; i++) /* no time passes: a DONE waits until it is taken along, or before a sleep */
        one.pair.engine[i] =
            open_engine("yes", "NUM_ENGINES", "1", "ACK_DELAY_US", "10000", "SPIN_US", "1000000", NULL);
    pair_connect(&one.pair);
    one_begin(&one, 4096, ALL);
    IS(uccl_export_mr(one.mr[0], one.local, one.bytes, ALL, ref, &exported), 0);
    IS(uccl_import(one.pair.conn[1], ref, &remotes[1]), 0);
    remotes[0] = one.remote;
    uint64_t round = 0, datagrams, end_ms = now_ms() + SOON_MS;
    do {
        uccl_request *requests[GROUP + 1][2];
        to_and_fro(&one, remotes, ++round, requests[GROUP]);
        uint64_t before = counter_of(one.pair.engine[0], "tx_datagrams");
        for (unsigned i = 0; i < GROUP; i++)
            to_and_fro(&one, remotes, ++round, requests[i]);
        datagrams = counter_of(one.pair.engine[0], "tx_datagrams") - before;
        for (unsigned i = 0; i < 2 * (GROUP + 1); i++)
            end_of(requests[i / 2][i % 2], 0);
        cr_assert_geq(datagrams, GROUP);
        cr_assert(now_ms() < end_ms, "%u datagrams", (unsigned)datagrams);
    } while (datagrams > GROUP * 3 / 2);
    IS(uccl_remote_free(remotes[1]), 0);
    one_close(&one);
}
