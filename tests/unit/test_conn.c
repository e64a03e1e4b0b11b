/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: how messages travel and match, early ends on both sides, eager credit, windows, close. */
#include "duo.h"

enum { EAGER = 5000, LARGE = 100000, EAGER_MAX = 8192 };

/* ---- how messages travel --------------------------------------------------------------------- */

Test(conn, eager_into_a_posted_receive, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, EAGER), *send = duo_send(0, EAGER);
    duo_run(MS);
    duo_assert_arrived(send, recv, EAGER);
    cr_assert_eq(duo_count(&duo_counters[1].eager_unexpected), 0);
    duo_assert_rest();
}

Test(conn, eager_before_its_receive, .init = duo_open)
{
    struct duo_request *send = duo_send(0, EAGER);
    duo_run(MS);
    cr_assert_eq(duo_count(&duo_counters[1].eager_unexpected), 1);
    cr_assert_not(send->ended, "a send ends when the receive has its bytes");
    struct duo_request *recv = duo_recv(1, EAGER + 100);
    duo_run(MS);
    duo_assert_arrived(send, recv, EAGER);
    duo_assert_rest();
}

Test(conn, large_waits_for_its_receive, .init = duo_open)
{
    struct duo_request *send = duo_send(0, LARGE);
    duo_run(MS);
    cr_assert_eq(send->msg.offset_bytes, 0, "not a byte without a clear-to-send");
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_run(20 * MS);
    duo_assert_arrived(send, recv, LARGE);
    duo_assert_rest();
}

Test(conn, clear_to_send_goes_ahead, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE);
    duo_transmit(0);
    cr_assert_gt(send->msg.offset_bytes, 0, "data leaves with the first transmission");
    duo_run(20 * MS);
    duo_assert_arrived(send, recv, LARGE);
}

Test(conn, zero_bytes, .init = duo_open)
{
    struct duo_request *first = duo_recv(1, 0), *sends[3];
    for (unsigned i = 0; i < 3; i++)
        sends[i] = duo_send(0, 0);
    duo_run(MS);
    duo_assert_ended(first, UCCL_OK, 0);
    cr_assert_not(sends[1]->ended);
    struct duo_request *second = duo_recv(1, 10), *third = duo_recv(1, LARGE);
    duo_run(MS);
    duo_assert_ended(second, UCCL_OK, 0);
    duo_assert_ended(third, UCCL_OK, 0);
    for (unsigned i = 0; i < 3; i++)
        duo_assert_ended(sends[i], UCCL_OK, 0);
    duo_assert_rest();
}

Test(conn, order_of_sizes_does_not_matter, .init = duo_open)
{
    const uint64_t sizes[] = {LARGE, 1, EAGER_MAX, EAGER_MAX + 1, 0, LARGE, 3};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    struct duo_request *sends[COUNT], *recvs[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = duo_send(0, sizes[i]);
    duo_run(MS);
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_recv(1, sizes[i] + i);
    duo_run(50 * MS);
    for (unsigned i = 0; i < COUNT; i++)
        duo_assert_arrived(sends[i], recvs[i], sizes[i]);
    duo_assert_rest();
}

/* ---- truncation ------------------------------------------------------------------------------ */

static void truncate_case(uint64_t size, uint64_t capacity, bool receive_first)
{
    struct duo_request *send, *recv;
    if (receive_first) {
        recv = duo_recv(1, capacity);
        duo_run(MS);
        send = duo_send(0, size);
    } else {
        send = duo_send(0, size);
        duo_run(MS);
        recv = duo_recv(1, capacity);
    }
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_ETRUNCATED, 0);
    duo_assert_ended(recv, UCCL_ETRUNCATED, 0);
    struct duo_request *next_recv = duo_recv(1, size), *next_send = duo_send(0, size);
    duo_run(20 * MS);
    duo_assert_arrived(next_send, next_recv, size);
    duo_assert_rest();
}

Test(conn, truncation, .init = duo_open)
{
    const uint64_t cases[][2] = {{1, 0}, {EAGER, EAGER - 1}, {LARGE, LARGE - 1}, {LARGE, 100}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        truncate_case(cases[i][0], cases[i][1], true);
        truncate_case(cases[i][0], cases[i][1], false);
    }
    cr_assert_gt(duo_count(&duo_counters[1].truncated), 0);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static void cancel(unsigned side, struct duo_request *request)
{
    core_cancel(duo_core[side], &request->msg, duo_now);
    duo_events(side);
}

/* The connection still works. */
static void assert_lives(void)
{
    struct duo_request *recv = duo_recv(1, LARGE), *send = duo_send(0, LARGE);
    struct duo_request *small_recv = duo_recv(1, 10), *small_send = duo_send(0, 10);
    duo_run(50 * MS);
    duo_assert_arrived(send, recv, LARGE);
    duo_assert_arrived(small_send, small_recv, 10);
    duo_assert_rest();
    const struct conn *sender = duo_conn[0][0];
    cr_assert_eq(sender->ring_limit - sender->ring_used, sender->ring_bytes, "all eager credit is back");
}

Test(conn, cancel_a_send_that_waits, .init = duo_open)
{
    struct duo_request *send = duo_send(0, LARGE);
    duo_talk();
    cancel(0, send);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_run(MS);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    assert_lives();
}

Test(conn, cancel_a_send_halfway, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 1 << 20), *send = duo_send(0, 1 << 20);
    duo_pass(0); /* request to send */
    duo_pass(1); /* clear to send */
    duo_transmit(0);
    cr_assert(send->msg.chunks_live > 0);
    duo_deliver_one(0, 0);
    duo_drop(0);
    cancel(0, send);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    memset(send->buffer, 0x11, 1 << 20); /* it is ours again: nothing of it may arrive */
    duo_run(100 * MS);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    for (unsigned i = 0; i < 1 << 20; i++)
        cr_assert(recv->buffer[i] == 0xee || recv->buffer[i] == duo_byte(0, i));
    assert_lives();
}

Test(conn, cancel_a_send_that_is_under_way, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, EAGER), *send = duo_send(0, EAGER);
    duo_transmit(0);
    cancel(0, send);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    duo_run(MS);
    cr_assert(recv->ended && (recv->status == UCCL_OK || recv->status == UCCL_ECANCELED));
    assert_lives();
}

Test(conn, cancel_in_the_backlog, .init = duo_open)
{
    struct duo_request *sends[20], *recvs[20];
    for (unsigned i = 0; i < 20; i++)
        sends[i] = duo_send(0, 10);
    cancel(0, sends[18]);
    cr_assert_not(sends[18]->ended, "its number is its turn");
    duo_run(MS);
    for (unsigned i = 0; i < 20; i++)
        recvs[i] = duo_recv(1, 10);
    cancel(1, recvs[19]);
    duo_run(10 * MS);
    for (unsigned i = 0; i < 20; i++) {
        duo_assert_ended(sends[i], i < 18 ? UCCL_OK : UCCL_ECANCELED, i < 18 ? 10 : 0);
        duo_assert_ended(recvs[i], i < 18 ? UCCL_OK : UCCL_ECANCELED, i < 18 ? 10 : 0);
    }
    assert_lives();
}

Test(conn, cancel_a_receive, .init = duo_open)
{
    struct duo_request *early = duo_recv(1, LARGE), *small = duo_recv(1, 10);
    duo_run(MS); /* cleared to send */
    cancel(1, early);
    cancel(1, small);
    duo_assert_ended(early, UCCL_ECANCELED, 0);
    struct duo_request *send = duo_send(0, LARGE), *small_send = duo_send(0, 10);
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    duo_assert_ended(small_send, UCCL_ECANCELED, 0);
    assert_lives();
}

Test(conn, cancel_a_receive_halfway, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 1 << 20);
    duo_talk();
    struct duo_request *send = duo_send(0, 1 << 20);
    duo_transmit(0);
    duo_deliver_one(0, 0);
    cancel(1, recv);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    duo_deliver(0); /* the copies would fail on a request that has ended */
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    assert_lives();
}

Test(conn, cancel_on_both_sides_at_once, .init = duo_open)
{
    const uint64_t sizes[] = {0, EAGER, LARGE};
    for (unsigned i = 0; i < 3; i++) {
        struct duo_request *recv = duo_recv(1, sizes[i]), *send = duo_send(0, sizes[i]);
        cancel(0, send);
        cancel(1, recv);
        duo_run(MS);
        duo_assert_ended(send, UCCL_ECANCELED, 0);
        duo_assert_ended(recv, UCCL_ECANCELED, 0);
    }
    assert_lives();
}

Test(conn, cancel_too_late, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 10), *send = duo_send(0, 10);
    duo_pass(0);
    core_cancel(duo_core[1], &recv->msg, duo_now);
    duo_run(MS);
    duo_assert_arrived(send, recv, 10);
    assert_lives();
}

/* Found by the simulator: eager bytes whose receive ended before they came took ring space for good. */
/* The peer has the message and says so, but acks none of its chunks. */
Test(conn, cancel_of_what_is_delivered_and_not_acked, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE);
    duo_transmit(0);
    cr_assert(send->msg.chunks_live > 0 && send->msg.state == MSG_SENT);
    conn_on_credit(duo_conn[0][0], &(struct wire_credit){.delivered = 1});
    duo_events(0);
    cr_assert_not(send->ended, "chunks refer to its buffer");
    cancel(0, send);
    duo_assert_ended(send, UCCL_OK, LARGE);
    memset(send->buffer, 0x11, LARGE); /* it is ours again: nothing of it may leave */
    duo_drop(0);
    duo_run(MS);
    cr_assert_not(recv->ended);
    cancel(1, recv);
    duo_run(20 * MS);
    for (unsigned i = 0; i < LARGE; i++)
        cr_assert_eq(recv->buffer[i], 0xee);
}

Test(conn, cancelled_receives_give_credit_back, .init = duo_open)
{
    for (unsigned round = 0; round < 100; round++) {
        struct duo_request *recv = duo_recv(1, EAGER_MAX), *send = duo_send(0, EAGER_MAX);
        duo_transmit(0);
        cancel(1, recv);
        duo_run(MS);
        duo_assert_ended(send, UCCL_ECANCELED, 0);
    }
    assert_lives();
}

Test(conn, a_made_up_status_does_not_reach_the_application, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 10);
    struct wire_abort end = {.of_send = true, .status = -12345};
    cr_assert(conn_on_abort(duo_conn[1][0], &end));
    duo_events(1);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
}

/* ---- credit and windows ---------------------------------------------------------------------- */

Test(conn, credit_is_exhausted_and_comes_back)
{
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = 64;
    duo_open_as(false);
    enum { COUNT = 40 }; /* 320 KiB, ring 128 KiB */
    struct duo_request *sends[COUNT], *recvs[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = duo_send(0, EAGER_MAX);
    duo_run(10 * MS);
    cr_assert_eq(duo_conn[1][0]->recv_slots[15].arrived_bytes, EAGER_MAX);
    cr_assert_eq(duo_conn[1][0]->recv_slots[16].arrived_bytes, 0);
    cr_assert_eq(duo_count(&duo_counters[0].eager_blocked), 1);
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_recv(1, EAGER_MAX);
    duo_run(10 * MS);
    for (unsigned i = 0; i < COUNT; i++)
        duo_assert_arrived(sends[i], recvs[i], EAGER_MAX);
    duo_assert_rest();
}

/* More connections owe credit than one datagram has room for, and nothing more comes of the peer. */
Test(conn, credit_of_many_connections_leaves)
{
    enum { MANY = 200 };
    struct conn *conns[2][MANY];
    struct duo_request *sends[MANY], *recvs[MANY];
    duo_open();
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < MANY; i++)
            conns[side][i] =
                core_conn_open(duo_core[side], duo_zeroed(core_conn_size(&duo_setup[side])), duo_flow[side],
                               &duo_setup[side], 100 + 2 * i + side, 100 + 2 * i + !side, &duo_conn[side][0], duo_now);
    for (unsigned i = 0; i < MANY; i++) {
        duo_conn[1][0] = conns[1][i];
        recvs[i] = duo_recv(1, 10);
        duo_conn[0][0] = conns[0][i];
        sends[i] = duo_send(0, 10);
    }
    duo_run(50 * MS);
    for (unsigned i = 0; i < MANY; i++)
        duo_assert_arrived(sends[i], recvs[i], 10);
    duo_assert_rest();
}

Test(conn, a_granted_message_needs_no_credit)
{
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = 64;
    duo_open_as(false);
    struct duo_request *sends[20], *recvs[20];
    for (unsigned i = 0; i < 16; i++) {
        recvs[i] = duo_recv(1, EAGER_MAX);
        sends[i] = duo_send(0, EAGER_MAX);
    }
    duo_lose(0); /* the ring is all charged, and nothing of it arrives for now */
    for (unsigned i = 16; i < 20; i++)
        recvs[i] = duo_recv(1, LARGE); /* announces itself */
    duo_pass(1);
    for (unsigned i = 16; i < 20; i++)
        sends[i] = duo_send(0, EAGER_MAX);
    duo_pass(0);
    for (unsigned i = 16; i < 20; i++)
        duo_assert_ended(recvs[i], UCCL_OK, EAGER_MAX);
    duo_run(200 * MS);
    for (unsigned i = 0; i < 20; i++)
        duo_assert_ended(sends[i], UCCL_OK, EAGER_MAX);
    duo_assert_rest();
}

Test(conn, the_window_holds_back_both_kinds, .init = duo_open)
{
    enum { COUNT = 500 }; /* window 16 */
    static struct duo_request *sends[COUNT], *recvs[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = duo_send(0, i);
    duo_run(MS);
    cr_assert_eq(duo_conn[0][0]->send_admitted, 16);
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_recv(1, i);
    duo_run(100 * MS);
    for (unsigned i = 0; i < COUNT; i++)
        duo_assert_arrived(sends[i], recvs[i], i);
    duo_assert_rest();
}

/*
 * Found by the simulator: a frame about a number that only our CREDIT lets the peer know of stood before
 * it, or went without it; the peer refused the datagram, for ever once it filled the chunk window.
 */
Test(conn, credit_comes_first, .init = duo_open)
{
    for (unsigned i = 0; i < 16; i++) {
        duo_recv(1, 10);
        duo_send(0, 10);
    }
    duo_pass(0); /* received, and not told */
    struct duo_request *recv = duo_recv(1, LARGE), *gone = duo_recv(1, LARGE);
    uint8_t frames[100];
    struct conn *conn = duo_conn[1][0];
    cr_assert(conn->credit_due && conn->due_count[DUE_CTS]);
    for (unsigned room = 0; room < WIRE_CREDIT_BYTES; room++)
        cr_assert_eq(conn_put_ctrl(conn, frames, room, 0), 0, "room for a clear-to-send, not for credit");
    cancel(1, gone);
    core_conn_close(duo_core[1], conn, 1000 * MS, duo_now);
    duo_pass(1);
    cr_assert_eq(duo_count(&duo_counters[0].rx_refused), 0);
    cr_assert_eq(duo_failed[0], 1);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    duo_run(MS);
    duo_assert_rest();
}

/* ---- close ----------------------------------------------------------------------------------- */

static void close_conn(unsigned side, uint64_t linger_ns)
{
    core_conn_close(duo_core[side], duo_conn[side][0], linger_ns, duo_now);
    duo_events(side);
}

/* What is lost and told again is known before the FIN: it is the reason, not the close. */
Test(conn, truncation_is_told_before_a_close, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 500), *send = duo_send(0, 1000);
    duo_pass(0);
    duo_assert_ended(recv, UCCL_ETRUNCATED, 0);
    duo_lose(1);
    close_conn(1, 1000 * MS);
    duo_run(500 * MS);
    duo_assert_ended(send, UCCL_ETRUNCATED, 0);
    cr_assert_eq(duo_ended[1], 1);
    cr_assert_eq(duo_failed_status[0], UCCL_ECLOSED);
    duo_assert_rest();
}

/* A later word of this kind arrives, an earlier one is lost: the FIN waits for both. */
Test(conn, every_truncation_is_told_before_a_close, .init = duo_open)
{
    struct duo_request *sends[2];
    for (unsigned i = 0; i < 2; i++) {
        struct duo_request *recv = duo_recv(1, 500);
        sends[i] = duo_send(0, 1000);
        duo_pass(0);
        duo_assert_ended(recv, UCCL_ETRUNCATED, 0);
        duo_transmit(1);
        if (i == 0)
            duo_drop(1);
    }
    duo_deliver(1);
    duo_assert_ended(sends[1], UCCL_ETRUNCATED, 0);
    cr_assert_not(sends[0]->ended);
    duo_pass(0); /* the ack of the second */
    close_conn(1, 1000 * MS);
    duo_pass(1);
    duo_run(500 * MS);
    duo_assert_ended(sends[0], UCCL_ETRUNCATED, 0);
    cr_assert_eq(duo_ended[1], 1);
    cr_assert_eq(duo_failed_status[0], UCCL_ECLOSED);
    duo_assert_rest();
}

/* More of them than fit a datagram: the others of the train may be lost alone. */
Test(conn, truncations_in_other_datagrams_are_told_before_a_close)
{
    enum { MESSAGES = 60 };
    struct duo_request *sends[MESSAGES];
    duo_defaults();
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].msg_window = 64;
        duo_setup[side].rails[0].datagram_bytes = 512;
    }
    duo_open_as(false);
    for (unsigned i = 0; i < MESSAGES; i++) {
        duo_recv(1, 500);
        sends[i] = duo_send(0, 1000);
    }
    duo_pass(0);
    close_conn(1, 1000 * MS);
    unsigned count = duo_transmit(1);
    cr_assert_geq(count, 2);
    duo_deliver_one(1, count - 1);
    duo_drop(1);
    duo_run(500 * MS);
    for (unsigned i = 0; i < MESSAGES; i++)
        duo_assert_ended(sends[i], UCCL_ETRUNCATED, 0);
    cr_assert_eq(duo_ended[1], 1);
    duo_assert_rest();
}

/* Who has no more time says goodbye all the same. */
Test(conn, a_goodbye_goes_at_the_end_of_its_linger_time, .init = duo_open)
{
    duo_recv(1, 500);
    duo_send(0, 1000);
    duo_pass(0);
    duo_lose(1); /* the word of the truncation, and all that follows for a while */
    close_conn(1, 50 * MS);
    duo_run_deaf(1, 49 * MS);
    cr_assert_eq(duo_failed[0], 0);
    duo_now += 2 * MS;
    core_expire(duo_core[1], duo_now);
    duo_pass(1);
    cr_assert_eq(duo_failed[0], 1);
    cr_assert_eq(duo_failed_status[0], UCCL_ECLOSED);
    duo_run(500 * MS);
    duo_assert_rest();
}

Test(conn, close_of_both, .init = duo_open)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    close_conn(0, 1000 * MS);
    duo_run(MS);
    cr_assert_eq(duo_ended[0], 1);
    cr_assert(duo_failed[1] == 1 && duo_failed_status[1] == UCCL_ECLOSED);
    close_conn(1, 1000 * MS);
    cr_assert(duo_ended[1] == 1 && duo_failed[0] == 0);
    duo_assert_rest();
}

Test(conn, close_with_requests_outstanding, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, LARGE), *peer_recv[2] = {duo_recv(1, LARGE), duo_recv(1, 10)};
    struct duo_request *send = duo_send(0, LARGE), *peer_send = duo_send(1, LARGE * 2);
    close_conn(0, 1000 * MS);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    cr_assert_not(send->ended, "it is delivered first");
    duo_run(20 * MS);
    duo_assert_arrived(send, peer_recv[0], LARGE);
    duo_assert_ended(peer_recv[1], UCCL_ECLOSED, 0);
    duo_assert_ended(peer_send, UCCL_ECLOSED, 0);
    cr_assert(duo_ended[0] == 1 && duo_failed[1] == 1);
    struct duo_request *late = duo_send(1, 10);
    duo_events(1);
    duo_assert_ended(late, UCCL_ECLOSED, 0);
    close_conn(1, 0);
    cr_assert_eq(duo_ended[1], 1);
    duo_assert_rest();
}

Test(conn, close_gives_up_after_its_linger_time, .init = duo_open)
{
    struct duo_request *send = duo_send(0, LARGE); /* nobody receives it */
    duo_run(MS);
    close_conn(0, 50 * MS);
    duo_run(40 * MS);
    cr_assert(!send->ended && duo_ended[0] == 0);
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    cr_assert_eq(duo_ended[0], 1);
    cr_assert_eq(duo_failed[1], 1);
    duo_assert_rest();
}

Test(conn, close_to_a_silent_peer, .init = duo_open)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    close_conn(0, 50 * MS);
    duo_run_deaf(0, 600 * MS);
    cr_assert_eq(duo_ended[0], 1);
    cr_assert_eq(core_deadline(duo_core[0]) == UINT64_MAX, false, "the flow still repeats the goodbye");
    duo_run_deaf(0, 1000 * MS);
    cr_assert_eq(duo_dead[0], 1);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
}

/* As an abort does. It never makes it longer. */
Test(conn, closing_again_shortens_the_linger, .init = duo_open)
{
    struct duo_request *send = duo_send(0, LARGE); /* nobody receives it */
    duo_run(MS);
    close_conn(0, 5000 * MS);
    close_conn(0, 9000 * MS);
    duo_run(100 * MS);
    cr_assert(!send->ended && duo_ended[0] == 0);
    close_conn(0, 50 * MS);
    close_conn(0, 5000 * MS);
    duo_run(40 * MS);
    cr_assert(!send->ended && duo_ended[0] == 0);
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    cr_assert(duo_ended[0] == 1 && duo_failed[1] == 1);
    duo_assert_rest();
}

/* Closes one after another, each with a send that nobody takes, last as long as one. */
Test(conn, a_silent_peer_is_lingered_for_once)
{
    duo_defaults();
    duo_params.dead_peer_ms = 100000;
    duo_params.linger_ms = 1000;
    duo_open_as(false);
    for (unsigned i = 0; i < DUO_CONNS; i++)
        duo_post(0, i, CORE_SEND, 100);
    duo_run_deaf(0, 10 * MS);
    for (unsigned i = 0; i < DUO_CONNS; i++) {
        uint64_t begin_ns = duo_now;
        core_conn_close(duo_core[0], duo_conn[0][i], 1000 * MS, duo_now);
        while (duo_ended[0] == i && duo_now < begin_ns + 3000 * MS)
            duo_run_deaf(0, MS);
        cr_assert_eq(duo_ended[0], i + 1);
        uint64_t took_ms = (duo_now - begin_ns) / MS;
        cr_assert(i ? took_ms <= 10 : took_ms >= 985 && took_ms <= 1250, "close %u took %lu ms", i,
                  (unsigned long)took_ms);
    }
    duo_run(2000 * MS); /* every goodbye is under way nonetheless */
    cr_assert_eq(duo_failed[1], DUO_CONNS);
    cr_assert_eq(duo_failed_status[1], UCCL_ECLOSED);
    duo_assert_rest();
}

/* It had nothing to answer: a receive alone makes nobody talk. Once it has answered, it is waited for again. */
Test(conn, an_idle_peer_is_not_a_silent_one)
{
    duo_defaults();
    duo_params.dead_peer_ms = 100000;
    duo_params.linger_ms = 1000;
    duo_open_as(false);
    duo_recv(0, LARGE);
    duo_run(5000 * MS);
    struct duo_request *send = duo_send(0, LARGE);
    duo_run_deaf(0, 100 * MS);
    close_conn(0, 1000 * MS);
    duo_run_deaf(0, 200 * MS);
    cr_assert(!send->ended && duo_ended[0] == 0);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_run(600 * MS);
    duo_assert_arrived(send, recv, LARGE);
    cr_assert_eq(duo_ended[0], 1);
    duo_run_deaf(0, 5000 * MS);
    send = duo_post(0, 1, CORE_SEND, 100);
    core_conn_close(duo_core[0], duo_conn[0][1], 1000 * MS, duo_now);
    duo_run_deaf(0, 200 * MS);
    recv = duo_post(1, 1, CORE_RECV, 100);
    duo_run(600 * MS);
    duo_assert_arrived(send, recv, 100);
    cr_assert_eq(duo_ended[0], 2);
}

/* The end of a close says that the peer was silent, though its FIN left some time after the close had begun. */
Test(conn, a_close_tells_that_the_peer_was_silent)
{
    duo_defaults();
    duo_params.dead_peer_ms = 100000;
    duo_params.linger_ms = 1000;
    duo_open_as(false);
    duo_recv(0, 100);
    core_conn_close(duo_core[0], duo_conn[0][0], 1000 * MS, duo_now);
    duo_now += 5 * MS;
    struct core_event event = {.kind = CORE_EVENT_MSG};
    for (unsigned tick = 0; tick < 3000 && event.kind != CORE_EVENT_CONN_ENDED; tick++) {
        duo_lose(0);
        duo_now += MS;
        core_expire(duo_core[0], duo_now);
        while (event.kind != CORE_EVENT_CONN_ENDED && core_next_event(duo_core[0], &event))
            ;
    }
    cr_assert_eq(event.kind, CORE_EVENT_CONN_ENDED);
    cr_assert_eq(event.status, UCCL_ETIMEDOUT);
}

/* Other flows to the same process say so; this one knows better where it has heard it since. */
Test(conn, a_peer_that_others_call_silent)
{
    duo_defaults();
    duo_params.dead_peer_ms = 100000;
    duo_open_as(false);
    duo_talk();
    duo_send(0, LARGE);
    duo_run(10 * MS);
    core_conn_silent_since(duo_core[0], duo_conn[0][0], duo_flow[0]->heard_ns);
    close_conn(0, 500 * MS);
    duo_run_deaf(0, 400 * MS);
    cr_assert_eq(duo_ended[0], 0);
    duo_run_deaf(0, 400 * MS);
    cr_assert_eq(duo_ended[0], 1);
    duo_post(0, 1, CORE_SEND, LARGE);
    core_conn_silent_since(duo_core[0], duo_conn[0][1], duo_flow[0]->heard_ns + 1);
    core_conn_close(duo_core[0], duo_conn[0][1], 500 * MS, duo_now);
    duo_run_deaf(0, 10 * MS);
    cr_assert_eq(duo_ended[0], 2);
    duo_run(2000 * MS);
    cr_assert_eq(duo_failed[1], 2);
    duo_assert_rest();
}

Test(conn, close_from_both_sides_at_once, .init = duo_open)
{
    struct duo_request *sends[2] = {duo_send(0, LARGE), duo_send(1, 10)};
    close_conn(0, 1000 * MS);
    close_conn(1, 1000 * MS);
    duo_run(20 * MS);
    for (unsigned side = 0; side < 2; side++) {
        duo_assert_ended(sends[side], UCCL_ECLOSED, 0);
        cr_assert(duo_ended[side] == 1 && duo_failed[side] == 0);
    }
    duo_assert_rest();
}

/* Found by the simulator: a goodbye overtook the word that a send had been received. */
Test(conn, a_goodbye_says_what_was_received, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 10), *send = duo_send(0, 10);
    duo_pass(0);
    duo_assert_ended(recv, UCCL_OK, 10);
    core_flush_acks(duo_core[1]);
    duo_lose(1); /* the credit is lost */
    close_conn(1, 1000 * MS);
    duo_pass(1);
    duo_assert_ended(send, UCCL_OK, 10);
    duo_run(100 * MS);
    duo_assert_rest();
}

Test(conn, other_connections_do_not_notice, .init = duo_open)
{
    struct duo_request *recv = duo_post(1, 1, CORE_RECV, LARGE), *send = duo_post(0, 1, CORE_SEND, LARGE);
    duo_recv(1, LARGE);
    close_conn(0, 0);
    duo_run(20 * MS);
    duo_assert_arrived(send, recv, LARGE);
}

Test(conn, a_new_connection_in_the_place_of_an_old_one, .init = duo_open)
{
    close_conn(0, 1000 * MS);
    duo_run(MS);
    close_conn(1, 1000 * MS);
    for (unsigned side = 0; side < 2; side++) {
        uint32_t ids[2] = {1 << CORE_CONN_INDEX_BITS, 1 << CORE_CONN_INDEX_BITS | 1};
        duo_conn[side][0] = core_conn_open(duo_core[side], duo_zeroed(core_conn_size(&duo_setup[side])), duo_flow[side],
                                           &duo_setup[side], ids[side], ids[!side], NULL, duo_now);
    }
    struct wire_cts stale = {.conn = 0, .msg = 0, .length = LARGE}; /* for the old one */
    uint8_t datagram[100];
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .sequenced = true,
                           .token = duo_setup[0].rx_token,
                           .seq = duo_flow[0]->sack.cumulative};
    unsigned bytes = WIRE_HEADER_BYTES + wire_put_cts(datagram + WIRE_HEADER_BYTES, &stale);
    wire_set_header_length(datagram, (uint16_t)bytes);
    wire_seal(&desc, 0, datagram, bytes, crc32c_portable);
    cr_assert(core_rx(duo_core[0], datagram, bytes, false, duo_now));
    cr_assert_eq(duo_count(&duo_counters[0].rx_stale_frames), 1);
    struct duo_request *send = duo_send(0, LARGE);
    duo_transmit(0);
    cr_assert_eq(send->msg.offset_bytes, 0);
}
