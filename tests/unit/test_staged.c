/* SPDX-License-Identifier: Apache-2.0 */
/* Sends whose payload becomes available block by block (core/staged.c). */
#include "duo.h"

enum { BLOCK = 64 * 1024 };

static struct duo_request *staged_send(uint64_t size)
{
    duo_block_bytes = BLOCK;
    struct duo_request *request = duo_send(0, size);
    duo_block_bytes = 0;
    return request;
}

/* The next block of it is there. */
static void fetch(struct duo_request *request)
{
    uint64_t to = (request->msg.available_bytes / BLOCK + 1) * BLOCK;
    cr_assert(request->wanted);
    core_available(duo_core[0], &request->msg, to < request->msg.end_bytes ? to : request->msg.end_bytes, duo_now);
}

Test(staged, bulk_goes_block_by_block)
{
    enum { SIZE = 5 * BLOCK + 777 };
    duo_open();
    struct duo_request *send = staged_send(SIZE), *host = duo_send(0, 30000);
    duo_run(20 * MS);
    cr_assert_not(send->wanted, "wanted before the peer has a receive for it");
    struct duo_request *recv = duo_recv(1, SIZE), *host_recv = duo_recv(1, 30000);
    duo_run(20 * MS);
    cr_assert(send->wanted);
    cr_assert_eq(send->msg.offset_bytes, 0);
    duo_assert_ended(host_recv, UCCL_OK, 30000); /* it does not wait for the staged one */
    duo_assert_ended(host, UCCL_OK, 30000);
    for (unsigned block = 0; block < 6; block++) {
        fetch(send);
        duo_run(20 * MS);
        cr_assert_eq(send->msg.offset_bytes, block < 5 ? (block + 1) * BLOCK : SIZE);
        cr_assert_eq(send->released, send->msg.offset_bytes);
    }
    duo_assert_arrived(send, recv, SIZE);
    duo_assert_rest();
}

Test(staged, bytes_are_released_when_acked)
{
    enum { SIZE = 2 * BLOCK };
    duo_open();
    struct duo_request *recv = duo_recv(1, SIZE), *send = staged_send(SIZE);
    duo_talk();
    fetch(send);
    duo_run_deaf(0, 5 * MS);
    cr_assert_eq(send->msg.offset_bytes, BLOCK);
    cr_assert_eq(send->released, 0, "it must be sent again, and is not there any more");
    fetch(send);
    duo_run(100 * MS);
    duo_assert_arrived(send, recv, SIZE);
    cr_assert_eq(send->released, SIZE);
    cr_assert(duo_count(&duo_counters[0].retransmits));
}

Test(staged, eager_waits_for_all_its_bytes)
{
    duo_open();
    struct duo_request *send = staged_send(5000), *behind = duo_send(0, 100);
    duo_run(20 * MS);
    cr_assert(send->wanted); /* no receive is needed */
    struct duo_request *recv = duo_recv(1, 5000), *second = duo_recv(1, 100);
    duo_run(20 * MS);
    cr_assert_not(recv->ended);
    fetch(send);
    duo_run(20 * MS);
    duo_assert_ended(recv, UCCL_OK, 5000);
    duo_assert_ended(second, UCCL_OK, 100);
    duo_assert_ended(send, UCCL_OK, 5000);
    duo_assert_ended(behind, UCCL_OK, 100);
    cr_assert_eq(send->released, 5000);
    duo_assert_rest();
}

/* What the peer's ring has no place for is not wanted, since it could not go; credit changes that. */
Test(staged, eager_is_wanted_when_it_has_a_place)
{
    enum { COUNT = 16, SIZE = 10000, FIT = 128 * 1024 / 10048 };
    struct duo_request *sends[COUNT];
    duo_defaults();
    duo_params.eager_kb = 16;
    duo_open_as(false);
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = i % 2 ? staged_send(SIZE) : duo_send(0, SIZE);
    duo_run(20 * MS);
    for (unsigned i = 1; i < COUNT; i += 2)
        cr_assert_eq(sends[i]->wanted, i < FIT, "message %u", i);
    for (unsigned i = 1; i < FIT; i += 2)
        fetch(sends[i]);
    duo_run(20 * MS);
    for (unsigned i = 1; i < FIT; i += 2)
        cr_assert_eq(sends[i]->released, SIZE, "its block would be held until the peer posts a receive");
    for (unsigned i = 0; i < COUNT; i++) {
        struct duo_request *recv = duo_recv(1, SIZE);
        if (i >= FIT && i % 2)
            for (unsigned j = 0; j < 100 && !sends[i]->wanted; j++)
                duo_run(1 * MS);
        if (i >= FIT && i % 2)
            fetch(sends[i]);
        duo_run(20 * MS);
        duo_assert_ended(recv, UCCL_OK, SIZE);
    }
    duo_assert_rest();
}

/* A place in the peer's ring that was taken ahead and not used is not lost. */
Test(staged, cancelled_eager_gives_its_place_back)
{
    enum { SIZE = 8000 };
    duo_open();
    for (unsigned round = 0; round < 50; round++) {
        struct duo_request *a = staged_send(SIZE), *b = staged_send(SIZE), *c = staged_send(SIZE);
        duo_transmit(0);
        cr_assert(a->wanted && b->wanted && c->wanted);
        core_cancel(duo_core[0], &b->msg, duo_now);
        core_cancel(duo_core[0], &a->msg, duo_now);
        duo_events(0);
        cr_assert_eq(b->status, UCCL_ECANCELED);
        fetch(c);
        duo_run(5 * MS);
        for (unsigned i = 0; i < 3; i++) {
            struct duo_request *recv = duo_recv(1, SIZE);
            duo_run(5 * MS);
            duo_assert_ended(recv, i < 2 ? UCCL_ECANCELED : UCCL_OK, i < 2 ? 0 : SIZE);
        }
        duo_assert_ended(c, UCCL_OK, SIZE);
    }
    cr_assert_eq(duo_conn[0][0]->ring_used, 50 * 8000);
    duo_assert_rest();
}

/* What waits behind a message that is not there yet goes on when that is cancelled. */
Test(staged, cancelled_head_lets_others_go)
{
    duo_open();
    struct duo_request *head = staged_send(1000), *behind = duo_send(0, 100);
    struct duo_request *recv = duo_recv(1, 1000), *second = duo_recv(1, 100);
    duo_run(20 * MS);
    cr_assert_not(second->ended);
    core_cancel(duo_core[0], &head->msg, duo_now);
    duo_run(20 * MS);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    duo_assert_ended(second, UCCL_OK, 100);
    duo_assert_ended(behind, UCCL_OK, 100);
    duo_assert_rest();
}

/* And so does what had found no place in the peer's ring. */
Test(staged, cancelled_place_goes_to_the_next)
{
    enum { SIZE = 8000, FIT = 128 * 1024 / SIZE };
    struct duo_request *sends[FIT + 1];
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = 32;
    duo_open_as(false);
    for (unsigned i = 0; i <= FIT; i++)
        sends[i] = staged_send(SIZE);
    duo_run(MS);
    cr_assert_not(sends[FIT]->wanted);
    core_cancel(duo_core[0], &sends[3]->msg, duo_now);
    duo_events(0);
    cr_assert(sends[FIT]->wanted);
}

Test(staged, cancelled_while_it_waits_for_bytes)
{
    duo_open();
    struct duo_request *recv = duo_recv(1, 3 * BLOCK), *send = staged_send(3 * BLOCK);
    duo_talk();
    fetch(send);
    duo_run(20 * MS);
    core_cancel(duo_core[0], &send->msg, duo_now);
    duo_run(20 * MS);
    cr_assert_eq(send->status, UCCL_ECANCELED);
    cr_assert_eq(recv->status, UCCL_ECANCELED);
    core_available(duo_core[0], &send->msg, 2 * BLOCK, duo_now); /* a copy that ended late */
    duo_run(20 * MS);
    duo_assert_rest();
}

Test(staged, peer_dies_while_it_waits_for_bytes)
{
    duo_open();
    duo_recv(1, 3 * BLOCK);
    struct duo_request *send = staged_send(3 * BLOCK), *eager = staged_send(100);
    duo_talk();
    fetch(send);
    duo_run_deaf(0, 3000 * MS);
    cr_assert_eq(send->status, UCCL_EPEERDEAD);
    cr_assert_eq(eager->status, UCCL_EPEERDEAD);
    cr_assert_eq(duo_conn[0][0]->eager_unwanted, 0);
}

Test(staged, closing_waits_for_what_is_to_be_fetched)
{
    duo_open();
    struct duo_request *recv = duo_recv(1, 2 * BLOCK), *send = staged_send(2 * BLOCK);
    duo_talk();
    core_conn_close(duo_core[0], duo_conn[0][0], 500 * MS, duo_now);
    duo_run(20 * MS);
    cr_assert_not(send->ended);
    fetch(send);
    duo_run(20 * MS);
    fetch(send);
    duo_run(20 * MS);
    duo_assert_arrived(send, recv, 2 * BLOCK);
}
