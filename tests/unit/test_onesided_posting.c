/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided calls that are refused, or whose operation fails: what they leave, and what is counted. */
#include "onesided_pair.h"

#include "../../api/objects.h"
#include "fill_ring.h"

enum { BYTES = 1 << 16 };

/* Without room in the ring of commands nothing is taken: the memory can be deregistered. */
BOTH(onesided_posting, without_room_the_memory_is_free)
{
    struct one one;
    setenv("UCCL_RING_ENTRIES", "16", 1);
    one_open(&one, lend, BYTES, ALL);
    struct engine_thread *thread = one.pair.conn[0]->thread;
    struct uccl_piece piece = piece_of(&one, 0, 100, 0);
    uccl_request *request = NULL;
    fill_ring(thread);
    IS(uccl_write_async(one.pair.conn[0], &piece, 1, NULL, &request), UCCL_EAGAIN);
    IS(uccl_read_async(one.pair.conn[0], &piece, 1, NULL, &request), UCCL_EAGAIN);
    cr_assert_null(request);
    empty_ring(thread);
    cr_assert_eq(atomic_load(&one.mr[0]->users), 0);
    IS(uccl_dereg_mr(one.mr[0]), 0);
    one_close(&one);
}

/* What is refused at the peer is no write and no read that was done. */
BOTH(onesided_posting, what_fails_has_no_bytes_and_is_not_counted)
{
    struct one one;
    size_t bytes = 77;
    one_open(&one, lend, BYTES, UCCL_ACCESS_READ);
    IS(uccl_wait(post_write(&one, 0, 100, 0), SOON_MS, &bytes), UCCL_EACCESS);
    cr_assert_eq(bytes, 0);
    bytes = 77;
    IS(uccl_wait(post_read(&one, 0, 100, BYTES - 1), SOON_MS, &bytes), UCCL_EACCESS);
    cr_assert_eq(bytes, 0);
    cr_assert_eq(counter_of(one.pair.engine[0], "writes") + counter_of(one.pair.engine[0], "reads"), 0);
    IS(uccl_wait(post_read(&one, 0, 100, 0), SOON_MS, &bytes), 0);
    cr_assert(bytes == 100 && counter_of(one.pair.engine[0], "reads") == 1);
    cr_assert_geq(counter_of(one.pair.engine[1], "accesses_refused"), 2);
    one_close(&one);
}

/* Memory whose registration has ended is not exported. */
BOTH(onesided_posting, what_is_deregistered_is_not_exported)
{
    struct one one;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *exported = NULL;
    one_open(&one, lend, BYTES, ALL);
    IS(uccl_dereg_mr(one.mr[0]), 0);
    IS(uccl_export_mr(one.mr[0], one.local, 100, ALL, ref, &exported), UCCL_EINVAL);
    cr_assert_null(exported);
    one_close(&one);
}

/* A write that is cancelled in the middle is told as such, unless all of it is there. */
BOTH(onesided_posting, a_cancelled_write_is_whole_or_cancelled)
{
    enum { PIECES = 16384, PIECE = 2048, TRIES = 12 }; /* more than are sent at once */
    struct one one;
    struct uccl_piece *pieces = calloc(PIECES, sizeof *pieces);
    unsigned cancelled = 0;
    one_open(&one, lend, (size_t)PIECES * PIECE, ALL);
    for (size_t i = 0; i < PIECES; i++)
        pieces[i] = piece_of(&one, i * PIECE, PIECE, i * PIECE);
    for (unsigned try = 0; try < TRIES; try++) {
        memset(one.local, (int)try + 1, one.bytes);
        uccl_request *request = post_pieces(&one, true, pieces, PIECES, NULL);
        sleep_us(300 * try);
        IS(uccl_cancel(request), 0);
        int status = uccl_wait(request, SOON_MS, NULL);
        cr_assert(status == UCCL_OK || status == UCCL_ECANCELED, "%s", uccl_strerror(status));
        cancelled += status == UCCL_ECANCELED;
        cr_assert(status != UCCL_OK || memcmp(one.local, one.memory, one.bytes) == 0, "good, and not there");
    }
    cr_assert_gt(cancelled, 0);
    free(pieces);
    one_close(&one);
}

/* ---- a fence and a peer that answers no more ------------------------------------------------------- */

static _Atomic bool stalls, stalled;

static void stall(struct engine_thread *thread, void *argument)
{
    struct timespec moment = {0, 1000000};
    (void)thread, (void)argument;
    for (stalled = true; stalls;)
        nanosleep(&moment, NULL);
}

/*
 * No call blocks, what waits behind the fence can be cancelled at once, and all the rest ends when the peer is given
 * up, also where its kernel goes on to acknowledge bytes (TCP).
 */
Test(onesided_posting, a_fence_ends_with_its_peer, .timeout = 60)
{
    static const char *const backends[] = {"udp", "tcp"};
    for (unsigned i = 0; i < 2; i++) {
        struct one one;
        struct thread_call call = {.run = stall};
        uccl_request *behind, *quiet;
        for (int k = 0; k < 2; k++)
            one.pair.engine[k] = open_engine("no", "BACKEND", backends[i], "NUM_ENGINES", "1", "DEAD_PEER_MS", "500",
                                             "LINGER_MS", "300", NULL);
        pair_connect(&one.pair);
        one_begin(&one, BYTES, ALL);
        end_of(post_write(&one, 0, BYTES, 0), 0);
        stalls = true;
        stalled = false;
        cr_assert(thread_post(one.pair.conn[1]->thread, COMMAND_CALL, &call));
        while (!stalled)
            sched_yield();
        uccl_request *ahead = post_write(&one, 0, BYTES, 0);
        IS(uccl_fence(one.pair.conn[0]), 0);
        behind = post_write(&one, 0, BYTES, 0);
        IS(uccl_quiet_async(one.pair.conn[0], &quiet), 0);
        IS(uccl_wait(ahead, 1, NULL), UCCL_ETIMEDOUT);
        IS(uccl_cancel(behind), 0);
        end_of(behind, UCCL_ECANCELED);
        end_of(ahead, UCCL_EPEERDEAD);
        end_of(quiet, UCCL_EPEERDEAD);
        IS(uccl_fence(one.pair.conn[0]), UCCL_EPEERDEAD);
        stalls = false;
        one_close(&one);
    }
}
