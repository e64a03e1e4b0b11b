/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that end at one side while the peer's NIC may still write to their receives (engine/core/place.h). */
#include "placing_duo.h"

enum { SIZE = 100000 }; /* two chunks */

/* A send and its receive, posted and granted, with both writes under way. */
static void start(struct duo_request **send, struct duo_request **receive)
{
    placing_open_warm(1);
    placing_start(send, receive, SIZE, SIZE);
}

/* The queue pair of side 1 is being drained, for which its receive waits. */
static void ended_by_a_drain(const struct duo_request *receive, int32_t status)
{
    placing_act(1);
    cr_assert_eq(placing_drain_count[1], 1);
    cr_assert_not(receive->ended);
    placing_drained(1);
    duo_assert_ended(receive, status, 0);
    cr_assert_eq(duo_ended[1], 1);
}

/* Found in review: the peer knows nothing of that yet, and goes on. Its writes landed in buffers that were given back.
 */
Test(place_ends, a_connection_that_fails_here_waits_for_writes_under_way)
{
    struct duo_request *send, *receive, *cancelled;
    start(&send, &receive);
    cancelled = duo_recv(1, SIZE);
    duo_talk();
    core_cancel(duo_core[1], &cancelled->msg, duo_now); /* its ABORT does not leave any more */
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_ENOMEM, duo_now);
    duo_events(1);
    cr_assert(!receive->ended && !cancelled->ended);
    placing_arrive(0);
    cr_assert(!receive->ended && !cancelled->ended, "the peer may still write");
    duo_run(MS);
    cr_assert_not(receive->ended, "another write is under way");
    placing_arrive(1);
    placing_talk();
    placing_run(5 * MS);
    duo_assert_ended(send, UCCL_ECLOSED, 0);
    duo_assert_ended(receive, UCCL_ENOMEM, 0);
    duo_assert_ended(cancelled, UCCL_ECANCELED, 0);
    cr_assert(duo_failed[1] == 1 && duo_failed_status[1] == UCCL_ENOMEM);
    cr_assert_eq(duo_flow[1]->place.free_count, duo_params.grants);
    cr_assert_eq(placing_drain_count[1], 0);
}

/* Or for a drain, where the peer does not answer. */
Test(place_ends, past_the_linger_a_close_of_what_has_failed_here_drains)
{
    struct duo_request *send, *receive;
    start(&send, &receive);
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_ENOMEM, duo_now);
    core_conn_close(duo_core[1], duo_conn[1][0], 10 * MS, duo_now);
    duo_run_deaf(1, 9 * MS);
    cr_assert(!receive->ended && placing_drain_count[1] == 0);
    duo_run_deaf(1, 2 * MS);
    ended_by_a_drain(receive, UCCL_ENOMEM);
}

/*
 * A close ends without its FIN, for which the window has no room. Found in review: no queue pair was made again, also
 * after the FIN had left at last.
 */
Test(place_ends, queue_pairs_come_back_once_the_peer_knows_of_a_close)
{
    struct duo_request *send, *receive;
    start(&send, &receive);
    for (unsigned i = 0; i < 64; i++) {
        duo_post(1, i % 4, CORE_SEND, 10);
        duo_lose(1);
    }
    core_conn_close(duo_core[1], duo_conn[1][0], 10 * MS, duo_now);
    duo_run_deaf(1, 500 * MS);
    ended_by_a_drain(receive, UCCL_ECANCELED);
    cr_assert_eq(duo_flow[1]->gone.barring, 1, "its FIN has not left");
    cr_assert_gt(duo_flow[1]->qps.barred_until, 0);
    for (unsigned i = 0; i < placing_packet_count; i++)
        placing_lose(i);
    placing_drain_at_once = true;
    placing_packet_count = 0;
    for (unsigned i = 0; i < 1000 && duo_flow[1]->gone.barring; i++) {
        duo_deliver(1);
        duo_pass(0);
        for (unsigned side = 0; side < 2; side++)
            duo_tick(side, duo_now + MS);
        duo_transmit(1);
    }
    cr_assert_eq(duo_flow[1]->gone.barring, 0);
    cr_assert_gt(duo_flow[1]->qps.barred_until, duo_flow[1]->sent.cumulative, "it has, and has not arrived");
    placing_run(500 * MS);
    cr_assert_eq(duo_flow[1]->qps.barred_until, 0);
    receive = duo_post(1, 1, CORE_RECV, SIZE);
    placing_run(100 * MS);
    placing_packet_count = 0;
    send = duo_post(0, 1, CORE_SEND, SIZE);
    placing_run(50 * MS);
    duo_assert_arrived(send, receive, SIZE);
    cr_assert_eq(placing_packet_count, 2, "written");
}
