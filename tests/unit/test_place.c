/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that the NIC places: how messages travel, how they end, and that no request ends while a NIC could
 * still touch its buffer (engine/core/place.h).
 */
#include "placing_duo.h"

enum { SIZE = 100000 }; /* two chunks */

/* Opened and warm, with a message whose writes are under way. */
static void begin(unsigned paths, struct duo_request **send, struct duo_request **receive)
{
    placing_open_warm(paths);
    placing_start(send, receive, SIZE, SIZE);
}

Test(place, writes_carry_a_granted_message)
{
    struct duo_request *send, *receive;
    begin(2, &send, &receive);
    cr_assert_eq(placing_packet_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct tx_desc *desc = &placing_packets[i].desc;
        cr_assert_eq(desc->kind, TX_PLACE);
        cr_assert_eq(desc->remote_key, receive->msg.grant_keys[0]);
        cr_assert_eq(desc->generation, 1);
        placing_arrive(i);
    }
    duo_assert_ended(receive, UCCL_OK, SIZE);
    duo_run(5 * MS);
    cr_assert_not(send->ended, "the NIC has not finished with its payload");
    placing_finish(0);
    cr_assert_not(send->ended);
    placing_finish(1);
    duo_assert_ended(send, UCCL_OK, SIZE);
    duo_assert_rest();
}

/* A staged send whose payload the NIC reads itself is not asked for. */
Test(place, a_staged_send_goes_directly)
{
    struct duo_request *send, *receive;
    placing_open_warm(2);
    duo_block_bytes = 65536;
    placing_start(&send, &receive, SIZE, SIZE);
    cr_assert_not(send->wanted);
    cr_assert_eq(send->msg.block_bytes, 0, "what still goes as datagrams is fetched chunk by chunk");
    cr_assert_eq(placing_packet_count, 2);
    cr_assert_eq(placing_packets[0].desc.kind, TX_PLACE);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, SIZE);
    duo_assert_rest();
}

static void fetched(struct duo_request *send, const struct duo_request *receive)
{
    cr_assert(send->wanted);
    cr_assert_eq(send->msg.block_bytes, 65536);
    core_available(duo_core[0], &send->msg, SIZE, duo_now);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, SIZE);
    cr_assert_eq(placing_packet_count, 0);
    duo_assert_rest();
}

Test(place, a_staged_send_that_the_nic_cannot_read_is_fetched)
{
    placing_open_warm(2);
    duo_block_bytes = 65536;
    struct duo_request *receive = duo_recv(1, SIZE);
    duo_talk();
    duo_registered = false;
    struct duo_request *send = duo_send(0, SIZE);
    duo_talk();
    fetched(send, receive);
}

Test(place, a_staged_send_without_queue_pairs_is_fetched)
{
    struct duo_request *send, *receive;
    placing_open(2);
    placing_open_fails = true;
    duo_block_bytes = 65536;
    placing_start(&send, &receive, SIZE, SIZE);
    fetched(send, receive);
}

Test(place, one_completion_stands_for_all_before_it)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    placing_arrive(0);
    placing_arrive(1);
    duo_run(5 * MS);
    placing_finish(1);
    duo_assert_ended(send, UCCL_OK, SIZE);
    placing_finish(0); /* said already */
}

Test(place, a_shorter_send_tells_its_length)
{
    struct duo_request *send, *receive;
    placing_open_warm(2);
    placing_start(&send, &receive, SIZE, 3 * SIZE);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, SIZE);
    cr_assert_eq(receive->buffer[SIZE], 0xee);
}

Test(place, the_length_may_come_after_the_bytes)
{
    placing_open_warm(2);
    struct duo_request *receive = duo_recv(1, 3 * SIZE);
    duo_talk();
    struct duo_request *send = duo_send(0, SIZE);
    duo_transmit(0); /* RTS and writes: those are faster */
    cr_assert_eq(placing_packet_count, 2);
    placing_arrive(0);
    placing_arrive(1);
    cr_assert_not(receive->ended);
    duo_deliver(0);
    duo_assert_ended(receive, UCCL_OK, SIZE);
    placing_finish(0);
    placing_finish(1);
    placing_run(5 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
}

Test(place, memory_out_of_reach_travels_as_datagrams)
{
    for (unsigned side = 0; side < 2; side++) {
        placing_open_warm(2);
        duo_registered = side == 0;
        struct duo_request *receive = duo_recv(1, SIZE);
        duo_talk();
        duo_registered = side == 1;
        struct duo_request *send = duo_send(0, SIZE);
        duo_run(20 * MS);
        cr_assert_eq(placing_packet_count, 0);
        duo_assert_arrived(send, receive, SIZE);
    }
}

Test(place, more_receives_than_grants_travel_as_datagrams)
{
    struct duo_request *receives[15], *sends[15];
    placing_setup(1);
    duo_params.grants = 4;
    duo_open_as(false);
    for (unsigned i = 0; i < 15; i++)
        receives[i] = duo_recv(1, SIZE);
    duo_talk();
    for (unsigned i = 0; i < 15; i++)
        sends[i] = duo_send(0, SIZE);
    placing_run(100 * MS);
    for (unsigned i = 0; i < 15; i++)
        duo_assert_arrived(sends[i], receives[i], SIZE);
    cr_assert_eq(duo_flow[1]->place.free_count, 4);
}

Test(place, nothing_is_placed_where_either_end_does_not)
{
    placing_setup(2);
    duo_setup[1].places = false;
    duo_open_as(false);
    struct duo_request *receives[2] = {duo_recv(0, SIZE), duo_recv(1, SIZE)};
    duo_talk();
    struct duo_request *sends[2] = {duo_send(1, SIZE), duo_send(0, SIZE)};
    duo_run(20 * MS);
    for (unsigned i = 0; i < 2; i++)
        duo_assert_arrived(sends[i], receives[i], SIZE);
    cr_assert_eq(placing_packet_count, 0);
}

Test(place, paths_that_reorder_do_not_place)
{
    placing_setup(2);
    duo_params.in_order = false;
    duo_open_as(false);
    cr_assert_eq(duo_flow[0]->qps.count, 0);
    duo_reliable = true; /* those retransmit what is lost themselves, whatever the network's order */
    placing_open(2);
    cr_assert_eq(duo_flow[0]->qps.count, 2);
}

/* ---- retransmissions ----------------------------------------------------------------------------------- */

Test(place, a_lost_write_is_retransmitted_over_its_queue_pair)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    placing_lose(0);
    placing_arrive(1); /* in order: so the first is lost */
    duo_talk();
    cr_assert_eq(placing_packet_count, 3);
    const struct tx_desc *write = &placing_packets[0].desc, *retransmission = &placing_packets[2].desc;
    cr_assert_eq(retransmission->kind, TX_BULK);
    cr_assert(retransmission->on_path && retransmission->retransmission);
    cr_assert_eq(retransmission->path, write->path);
    cr_assert_eq(retransmission->seq, write->seq);
    cr_assert_eq(retransmission->bulk_offset, write->bulk_offset);
    cr_assert_not(receive->ended);
    placing_arrive(2);
    duo_assert_ended(receive, UCCL_OK, SIZE);
    duo_run(5 * MS);
    placing_finish(1);
    cr_assert_not(send->ended, "the retransmission is still read");
    placing_finish(2);
    duo_assert_ended(send, UCCL_OK, SIZE);
}

/* A message over one queue pair on which every `lose_every`th write is lost, 0: none, all retransmissions arriving.
 * Returns the largest write. */
static uint32_t carry(unsigned lose_every)
{
    struct duo_request *send, *receive;
    uint32_t largest = 0;
    placing_packet_count = 0;
    placing_start(&send, &receive, SIZE, SIZE);
    for (unsigned i = 0; !send->ended && i < PLACING_PACKETS; i++) {
        for (unsigned rounds = 0; i == placing_packet_count && !send->ended && rounds < 100; rounds++)
            duo_run(MS);
        if (i == placing_packet_count)
            break;
        const struct tx_desc *desc = &placing_packets[i].desc;
        if (desc->kind == TX_PLACE && desc->place_bytes > largest)
            largest = desc->place_bytes;
        if (desc->kind == TX_PLACE && lose_every && i % lose_every == 0)
            placing_lose(i);
        else
            placing_arrive(i);
        placing_finish(i);
        duo_talk();
    }
    duo_assert_arrived(send, receive, SIZE);
    return largest;
}

Test(place, where_packets_get_lost_a_write_is_one_of_them)
{
    placing_open_warm(1);
    uint32_t datagram_bytes = duo_flow[0]->rails->datagram_bytes;
    cr_assert_gt(carry(0), datagram_bytes);
    for (unsigned i = 0; i < 3; i++)
        carry(2);
    cr_assert_eq(carry(0), datagram_bytes, "too much was lost: %u bytes", carry(0));
    unsigned clean = 0;
    while (carry(0) == datagram_bytes && clean < 1000)
        clean++;
    cr_assert(clean > 5 && clean < 100, "it grows when losses are long ago: after %u messages", clean);
    duo_params.packet_loss_ppm = 1000000;
    for (unsigned i = 0; i < 3; i++)
        carry(2);
    cr_assert_gt(carry(0), datagram_bytes, "never");
}

Test(place, retransmissions_follow_the_size_that_the_path_takes_now)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    placing_lose(0);
    placing_arrive(1);
    core_set_datagram(duo_core[0], 0, 1200);
    duo_talk();
    cr_assert_eq(placing_packet_count, 3);
    cr_assert_eq(placing_packets[2].desc.datagram_bytes, 1200);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, SIZE);
}

/* A peer that lies about parts of a write before the path takes larger datagrams: all of it is repeated, in fewer. */
Test(place, a_lie_about_parts_of_a_write_leaves_its_retransmission_whole)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    struct flow *flow = duo_flow[0];
    struct wire_ack lie = {.number = flow->ack.peer_number,
                           .cumulative = (uint32_t)flow->sent.cumulative,
                           .window_kb = 1024,
                           .next = (uint32_t)flow->sack.cumulative,
                           .partial_count = 1,
                           .partials = {{(uint32_t)placing_packets[0].desc.seq, 0xffff}}};
    cr_assert_gt(sent_chunk(&flow->sent, placing_packets[0].desc.seq)->count, 16);
    cr_assert(ack_on_frame(flow, &lie, true, duo_now));
    placing_lose(0);
    placing_arrive(1);
    core_set_datagram(duo_core[0], 0, 8000);
    duo_talk();
    cr_assert_eq(placing_packet_count, 3);
    const struct tx_desc *retransmission = &placing_packets[2].desc;
    cr_assert_eq(retransmission->count,
                 (SIZE / 2 + 8000 - WIRE_BULK_HEADER_BYTES - 1) / (8000 - WIRE_BULK_HEADER_BYTES));
    cr_assert_eq(retransmission->mask, wire_full_mask(retransmission->count), "only %lx of it is repeated",
                 (unsigned long)retransmission->mask);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, SIZE);
}

Test(place, a_write_that_the_nic_refuses_goes_as_datagrams)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    receive = duo_recv(1, SIZE);
    duo_talk();
    send = duo_send(0, SIZE);
    duo_refuse = true;
    duo_transmit(0);
    duo_refuse = false;
    placing_run(20 * MS);
    duo_assert_arrived(send, receive, SIZE);
    cr_assert_eq(duo_flow[0]->qps.qps[0].requests, 0);
}

enum { LARGE = 1 << 20 }; /* sixteen chunks */
static unsigned rows, row_writes[64], row_path[64];

static void note_row(unsigned side, const struct tx_desc *desc)
{
    if (desc->kind == TX_PLACE) {
        row_path[rows] = desc->path;
        row_writes[rows++] = desc->count;
    }
    placing_take(side, desc);
}

static void assert_whole(struct duo_request *send, struct duo_request *receive)
{
    placing_run(20 * MS);
    duo_assert_arrived(send, receive, LARGE);
    duo_assert_rest();
}

Test(place, a_large_message_goes_in_rows_that_all_data_qps_share)
{
    struct duo_request *send, *receive;
    placing_open_warm(4);
    duo_on_path = note_row;
    placing_start(&send, &receive, LARGE, LARGE);
    cr_assert_eq(rows, 4);
    for (unsigned i = 0; i < rows; i++)
        cr_assert_eq(row_writes[i], 4);
    cr_assert_eq(placing_packet_count, 16);
    for (unsigned i = 1; i < 16; i++)
        cr_assert_eq(placing_packets[i].desc.bulk_offset, i * 65536u);
    assert_whole(send, receive);
}

Test(place, a_row_ends_at_the_window_and_with_the_message)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    duo_on_path = note_row;
    duo_flow[0]->rails->cc.cwnd_bytes = 5 * 65536 + 1;
    placing_start(&send, &receive, LARGE, LARGE);
    cr_assert(rows == 1 && row_writes[0] == 5, "%u rows, the first of %u", rows, row_writes[0]);
    duo_flow[0]->rails->cc.cwnd_bytes = 100 * 65536;
    assert_whole(send, receive);
    cr_assert(rows == 3 && row_writes[1] == 8 && row_writes[2] == 3);
}

Test(place, while_another_connection_waits_writes_go_one_by_one)
{
    struct duo_request *sends[2], *receives[2];
    placing_open_warm(2);
    duo_on_path = note_row;
    for (unsigned i = 0; i < 2; i++)
        receives[i] = duo_post(1, i, CORE_RECV, LARGE);
    duo_talk();
    for (unsigned i = 0; i < 2; i++)
        sends[i] = duo_post(0, i, CORE_SEND, LARGE);
    duo_talk();
    cr_assert_gt(rows, 8);
    for (unsigned i = 0; i < rows; i++)
        cr_assert_eq(row_writes[i], 1);
    for (unsigned i = 0; i < 2; i++)
        assert_whole(sends[i], receives[i]);
}

Test(place, all_of_a_row_that_the_nic_refuses_goes_as_datagrams)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    duo_on_path = note_row;
    receive = duo_recv(1, LARGE);
    duo_talk();
    send = duo_send(0, LARGE);
    duo_refuse = true;
    duo_transmit(0);
    duo_refuse = false;
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 0);
    cr_assert_eq(duo_flow[0]->sent.lost_payload, 8 * 65536);
    cr_assert_eq(duo_flow[0]->qps.qps[0].requests, 0);
    assert_whole(send, receive);
    cr_assert(rows == 1 && row_writes[0] == 8, "the rest is written");
}

/* ---- early ends ---------------------------------------------------------------------------------- */

Test(place, a_cancelled_receive_is_held_until_writes_under_way_are_in)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_cancel(duo_core[1], &receive->msg, duo_now);
    duo_run(5 * MS);
    cr_assert_not(receive->ended, "two writes are under way to it");
    placing_arrive(0);
    duo_run(100 * US);
    cr_assert_not(receive->ended);
    placing_arrive(1);
    placing_talk(); /* retransmissions that were sent meanwhile */
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
    placing_run(5 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    cr_assert_eq(duo_flow[1]->place.free_count, duo_params.grants);
}

Test(place, a_cancelled_send_ends_when_nothing_reads_it_and_its_receive_when_nothing_comes)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_cancel(duo_core[0], &send->msg, duo_now);
    duo_run(200 * US);
    cr_assert_not(send->ended);
    cr_assert_not(receive->ended);
    placing_finish(1);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    placing_lose(0); /* bare headers stand for them */
    placing_lose(1);
    placing_run(50 * MS);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
}

Test(place, a_receive_that_was_not_granted_yet_ends_at_once)
{
    placing_open(1);
    struct duo_request *receive = duo_recv(1, SIZE);
    core_cancel(duo_core[1], &receive->msg, duo_now);
    duo_events(1);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
}

Test(place, closing_waits_for_writes_under_way)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_conn_close(duo_core[1], duo_conn[1][0], 1000 * MS, duo_now);
    duo_run(2 * MS);
    cr_assert(!receive->ended && duo_ended[1] == 0);
    placing_run(20 * MS);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
    duo_assert_ended(send, UCCL_ECLOSED, 0);
}

/* The peer lives and talks, but never acks the ABORT. */
Test(place, a_cancelled_receive_does_not_wait_for_a_peer_that_holds_it)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_cancel(duo_core[1], &receive->msg, duo_now);
    for (uint64_t until_ns = duo_now + (duo_params.dead_peer_ms - 2) * MS; duo_now < until_ns;) {
        flow_heard(duo_flow[1], duo_now);
        duo_run_deaf(1, MS);
        cr_assert(!receive->ended && placing_drain_count[1] == 0);
    }
    flow_heard(duo_flow[1], duo_now);
    duo_run_deaf(1, 3 * MS);
    cr_assert_eq(placing_drain_count[1], 1);
    cr_assert_not(receive->ended);
    placing_drained(1);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
    cr_assert_eq(duo_dead[1], 0);
}

/* The peer does not know the connection, and says so before it has heard that a receive was cancelled. */
Test(place, a_cancelled_receive_does_not_wait_for_a_peer_that_has_gone)
{
    placing_open_warm(1);
    core_conn_close(duo_core[0], duo_conn[0][1], 0, duo_now); /* never heard of: it ends without a word */
    struct duo_request *receive = duo_post(1, 1, CORE_RECV, SIZE);
    cr_assert_gt(duo_transmit(1), 0);
    cr_assert_gt(receive->msg.grant_slot, 0);
    duo_deliver(1);
    core_cancel(duo_core[1], &receive->msg, duo_now);
    duo_events(1);
    cr_assert_not(receive->ended);
    cr_assert_gt(duo_transmit(0), 0); /* GONE */
    duo_deliver(0);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
    cr_assert(duo_failed[1] == 1 && duo_failed_status[1] == UCCL_ECLOSED);
    cr_assert_eq(duo_flow[1]->place.free_count, duo_params.grants);
    placing_run(5 * MS);
    duo_assert_rest();
}

/* The queue pair of side 1 is being drained, for which its receive and its close wait. */
static void ended_by_a_drain(const struct duo_request *receive, int32_t status)
{
    placing_act(1);
    cr_assert_eq(placing_drain_count[1], 1);
    cr_assert(!receive->ended && duo_ended[1] == 0);
    placing_drained(1);
    duo_assert_ended(receive, status, 0);
    cr_assert_eq(duo_ended[1], 1);
}

Test(place, past_the_linger_a_close_drains)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_conn_close(duo_core[1], duo_conn[1][0], 10 * MS, duo_now);
    duo_run_deaf(1, 5 * MS);
    cr_assert_eq(placing_drain_count[1], 0);
    duo_run_deaf(1, 10 * MS);
    ended_by_a_drain(receive, UCCL_ECANCELED);
}

Test(place, the_peers_goodbye_ends_receives_once_its_writes_are_in)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_conn_close(duo_core[0], duo_conn[0][0], 0, duo_now);
    duo_run(MS);
    cr_assert(!receive->ended && duo_failed[1] == 0);
    placing_run(50 * MS);
    duo_assert_ended(receive, UCCL_ECLOSED, 0);
    cr_assert_eq(duo_failed[1], 1);
    cr_assert(send->ended);
}

/* The peer has ended the connection, lives, and what would prove that it writes no more never comes. */
static struct duo_request *start_unproven(void)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_conn_close(duo_core[0], duo_conn[0][0], 0, duo_now);
    duo_run(MS);
    cr_assert(!receive->ended && duo_failed[1] == 0);
    return receive;
}

Test(place, past_the_linger_a_close_of_what_has_failed_drains)
{
    struct duo_request *receive = start_unproven();
    core_conn_close(duo_core[1], duo_conn[1][0], 10 * MS, duo_now);
    duo_run_deaf(1, 9 * MS);
    cr_assert_eq(placing_drain_count[1], 0);
    duo_run_deaf(1, 2 * MS);
    ended_by_a_drain(receive, UCCL_ECLOSED);
}

Test(place, an_abort_cuts_the_close_of_what_has_failed_short)
{
    struct duo_request *receive = start_unproven();
    core_conn_close(duo_core[1], duo_conn[1][0], 1000 * MS, duo_now);
    duo_run_deaf(1, MS);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now);
    duo_run_deaf(1, MS);
    ended_by_a_drain(receive, UCCL_ECLOSED);
}

/* What has been proven in time is not drained afterwards. */
Test(place, a_close_of_what_has_failed_ends_with_the_proof)
{
    struct duo_request *receive = start_unproven();
    core_conn_close(duo_core[1], duo_conn[1][0], 50 * MS, duo_now);
    placing_run(MS);
    duo_assert_ended(receive, UCCL_ECLOSED, 0);
    cr_assert_eq(duo_ended[1], 1);
    placing_run(100 * MS);
    cr_assert_eq(placing_drain_count[1], 0);
}

Test(place, a_dead_peers_queue_pairs_are_drained_before_requests_end)
{
    struct duo_request *send, *receive;
    begin(2, &send, &receive);
    duo_run_deaf(1, 3000 * MS); /* nobody answers */
    placing_act(1);
    cr_assert_eq(duo_dead[1], 1);
    cr_assert_eq(placing_drain_count[1], 2);
    cr_assert_not(receive->ended, "its queue pairs still receive");
    placing_drained(1);
    cr_assert_not(receive->ended, "one of them does");
    cr_assert_eq(duo_failed[1], DUO_CONNS - 1);
    placing_drained(1);
    duo_assert_ended(receive, UCCL_EPEERDEAD, 0);
    cr_assert_eq(duo_failed[1], DUO_CONNS);
}

/* The receive waits for writes under way, its data QP waits to open again: none opens for a dead peer. */
Test(place, a_dead_flow_opens_no_data_qp)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    core_cancel(duo_core[1], &receive->msg, duo_now);
    duo_run(MS);
    cr_assert_eq(receive->msg.deferral, DEFER_ARRIVAL);
    placing_open_fails = true; /* the next generation */
    core_qp_failed(duo_core[1], duo_flow[1], 0, 1, duo_now);
    placing_act(1);
    placing_drained(1);
    data_qps_on_frame(duo_flow[1], &(struct wire_qp){QP_DRAINED, 0, 1, placing_number(0, 0, 1), 77});
    duo_transmit(1); /* DRAINED */
    duo_drop(1);
    cr_assert_eq(duo_flow[1]->qps.qps->state, DATA_QP_CLOSED);
    core_fail(duo_core[1], UCCL_EIO, duo_now);
    duo_events(1);
    duo_assert_ended(receive, UCCL_ECANCELED, 0);
    cr_assert_not(timer_armed(&duo_flow[1]->timer));
}

Test(place, sends_to_a_dead_peer_end_when_nothing_reads_them)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    duo_run_deaf(0, 3000 * MS);
    placing_act(0);
    cr_assert_eq(duo_dead[0], 1);
    cr_assert_not(send->ended);
    placing_drained(0);
    duo_assert_ended(send, UCCL_EPEERDEAD, 0);
}

/* ---- reliable NICs ------------------------------------------------------------------------------- */

Test(place, a_reliable_nics_completion_is_the_ack)
{
    struct duo_request *send, *receive;
    duo_reliable = true;
    begin(2, &send, &receive);
    uint64_t flying = duo_flow[0]->rails->flying_payload;
    cr_assert_eq(flying, SIZE);
    placing_arrive(0);
    placing_finish(0);
    cr_assert_lt(duo_flow[0]->rails->flying_payload, flying);
    for (unsigned i = 0; i < 50; i++) /* no timer repeats what the NIC repeats */
        duo_tick(0, duo_now + 100 * MS);
    cr_assert_eq(placing_packet_count, 2);
    placing_arrive(1);
    placing_finish(1);
    placing_run(20 * MS);
    duo_assert_arrived(send, receive, SIZE);
    duo_assert_rest();
}

/* ---- a peer's nonsense ---------------------------------------------------------------------------- */

Test(place, writes_that_break_the_protocol_are_refused)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    struct tx_desc desc = placing_packets[0].desc;
    struct core *core = duo_core[1];
    struct flow *flow = duo_flow[1];
    uint32_t slot = wire_immediate_slot(desc.immediate), seq = (uint32_t)desc.seq;
    const struct counters *counters = &duo_counters[1];
    uint64_t cumulative = flow->sack.cumulative;
    core_rx_immediate(core, flow, 0, 1, wire_immediate(slot + 5, seq), desc.place_bytes, duo_now);
    core_rx_immediate(core, flow, 0, 1, wire_immediate(WIRE_SLOTS_MAX - 1, seq), desc.place_bytes, duo_now);
    core_rx_immediate(core, flow, 0, 1, desc.immediate, SIZE + 1, duo_now);
    core_rx_immediate(core, flow, 0, 1, desc.immediate, 0, duo_now);
    core_rx_immediate(core, flow, 0, 1, desc.immediate, UINT32_MAX, duo_now);
    cr_assert_eq(duo_count(&counters->rx_refused), 5);
    core_rx_immediate(core, flow, 0, 1, wire_immediate(slot, seq + 64), desc.place_bytes, duo_now);
    cr_assert_eq(duo_count(&counters->rx_out_of_window), 1);
    core_rx_immediate(core, flow, 1, 1, desc.immediate, desc.place_bytes, duo_now);
    core_rx_immediate(core, flow, 9999, 1, desc.immediate, desc.place_bytes, duo_now);
    core_rx_immediate(core, flow, 0, 2, desc.immediate, desc.place_bytes, duo_now);
    core_rx_immediate(core, flow, 0, 0, desc.immediate, desc.place_bytes, duo_now);
    cr_assert_eq(duo_count(&counters->rx_strangers), 4);
    cr_assert_eq(flow->sack.cumulative, cumulative);
    placing_run(20 * MS);
    duo_assert_arrived(send, receive, SIZE);
}

Test(place, a_write_that_came_before_changes_nothing)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    struct tx_desc desc = placing_packets[0].desc;
    placing_arrive(0);
    uint64_t before = duo_count(&duo_counters[1].rx_duplicates);
    core_rx_immediate(duo_core[1], duo_flow[1], 0, 1, desc.immediate, desc.place_bytes, duo_now);
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), before + 1);
    cr_assert_not(receive->ended);
}

Test(place, datagrams_over_a_queue_pair_must_name_it)
{
    struct duo_request *send, *receive;
    begin(2, &send, &receive);
    placing_lose(0);
    placing_lose(1);
    duo_run(20 * MS);
    cr_assert_gt(placing_packet_count, 2);
    const struct placing_packet *retransmission = &placing_packets[2];
    const struct duo_datagram *datagram = &retransmission->datagrams[0];
    uint64_t before = duo_count(&duo_counters[1].rx_malformed);
    cr_assert_not(core_rx_on_qp(duo_core[1], duo_flow[1], !retransmission->desc.path, 1, datagram->bytes,
                                datagram->length, duo_now));
    cr_assert_not(core_rx(duo_core[1], datagram->bytes, datagram->length, false, duo_now));
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), before + 2);
    cr_assert_not(core_rx_on_qp(duo_core[1], duo_flow[1], retransmission->desc.path, 7, datagram->bytes,
                                datagram->length, duo_now));
    cr_assert(core_rx_on_qp(duo_core[1], duo_flow[1], retransmission->desc.path, 1, datagram->bytes, datagram->length,
                            duo_now));
    duo_copies(1);
}

Test(place, completions_of_long_ago_are_nobodys)
{
    struct duo_request *send, *receive;
    begin(1, &send, &receive);
    uint64_t cookie = placing_packets[1].desc.cookie;
    core_tx_done(duo_core[0], cookie + 1, duo_now);
    core_tx_done(duo_core[0], cookie + 4000, duo_now);
    core_tx_done(duo_core[0], cookie ^ UINT64_C(1) << COOKIE_EPOCH_SHIFT, duo_now);
    core_tx_done(duo_core[0], cookie ^ UINT64_C(1) << COOKIE_PATH_SHIFT, duo_now);
    core_tx_done(duo_core[0], cookie ^ UINT64_C(4) << COOKIE_SLOT_SHIFT, duo_now);
    cr_assert_eq(send->msg.work_live, 2);
    placing_finish(1);
    cr_assert_eq(send->msg.work_live, 0);
}
