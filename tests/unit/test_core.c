/* SPDX-License-Identifier: Apache-2.0 */
/* Flows as the owner of a core sees them: strangers, acks, loss, dead peers, keepalive, fairness. */
#include "duo.h"

enum { LARGE = 100000 };

/* ---- who is let in --------------------------------------------------------------------------- */

Test(core, tokens)
{
    for (uint32_t index = 0; index < CORE_FLOWS_MAX; index += 1365) {
        cr_assert_neq(core_make_token(0, index), 0);
        cr_assert_neq(core_make_token(UINT64_C(0xfff) << 52, index), 0);
        cr_assert_eq(core_make_token(12345, index) % CORE_FLOWS_MAX, index);
    }
}

Test(core, strangers_and_garbage_are_dropped, .init = duo_open)
{
    uint8_t datagram[WIRE_HEADER_BYTES];
    struct tx_desc desc = {.kind = TX_FRAMES, .count = 1, .sequenced = true, .token = duo_setup[0].rx_token};
    wire_set_header_length(datagram, sizeof datagram);
    wire_seal(&desc, 0, datagram, sizeof datagram, crc32c_portable);
    cr_assert(core_rx(duo_core[0], datagram, sizeof datagram, false, duo_now));
    desc.token += UINT64_C(1) << 40; /* the right slot, another incarnation */
    wire_seal(&desc, 0, datagram, sizeof datagram, crc32c_portable);
    cr_assert_not(core_rx(duo_core[0], datagram, sizeof datagram, false, duo_now));
    desc.token = 3; /* an empty slot */
    wire_seal(&desc, 0, datagram, sizeof datagram, crc32c_portable);
    cr_assert_not(core_rx(duo_core[0], datagram, sizeof datagram, false, duo_now));
    cr_assert_eq(duo_count(&duo_counters[0].rx_strangers), 2);
    cr_assert_not(core_rx(duo_core[0], datagram, 3, false, duo_now));
    cr_assert_not(core_rx(duo_core[0], datagram, 0, false, duo_now));
    cr_assert_eq(duo_count(&duo_counters[0].rx_malformed), 2);
    cr_assert_eq(duo_count(&duo_counters[0].rx_datagrams), 1);
}

/* A datagram without one has no duplicate detection: of it nothing is acted on, not even the frames before. */
Test(core, what_may_not_be_repeated_needs_a_sequence_number, .init = duo_open)
{
    uint8_t datagram[WIRE_HEADER_BYTES + WIRE_DEMAND_BYTES + WIRE_RTS_BYTES];
    struct tx_desc desc = {.kind = TX_FRAMES, .count = 1, .path_seq = 1, .token = duo_setup[0].rx_token};
    struct credit_rx before = duo_flow[0]->credit_rx;
    unsigned length = WIRE_HEADER_BYTES;
    length += wire_put_demand(datagram + length, &(struct wire_demand){.target = 77});
    length += wire_put_rts(datagram + length, &(struct wire_rts){.conn = 1, .total = 10});
    wire_set_header_length(datagram, (uint16_t)length);
    wire_seal(&desc, 0, datagram, length, crc32c_portable);
    cr_assert_not(core_rx(duo_core[0], datagram, length, false, duo_now));
    cr_assert_eq(duo_count(&duo_counters[0].rx_malformed), 1);
    cr_assert_eq(memcmp(&before, &duo_flow[0]->credit_rx, sizeof before), 0);
    length = WIRE_HEADER_BYTES + WIRE_DEMAND_BYTES; /* what may be repeated does not */
    wire_set_header_length(datagram, (uint16_t)length);
    wire_seal(&desc, 0, datagram, length, crc32c_portable);
    cr_assert(core_rx(duo_core[0], datagram, length, false, duo_now));
    cr_assert_neq(memcmp(&before, &duo_flow[0]->credit_rx, sizeof before), 0);
}

Test(core, duplicates_change_nothing, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 1000), *send = duo_send(0, 1000);
    struct duo_request *next = duo_recv(1, 1000);
    duo_transmit(0);
    for (unsigned i = 0; i < 5; i++)
        duo_deliver_one(0, 0);
    duo_deliver(0);
    cr_assert_geq(duo_count(&duo_counters[1].rx_duplicates), 5);
    duo_run(MS);
    duo_assert_arrived(send, recv, 1000);
    cr_assert_not(next->ended);
}

Test(core, a_flow_to_itself)
{
    duo_defaults();
    duo_open_as(true);
    struct duo_request *recvs[2] = {duo_recv(0, LARGE), duo_recv(1, LARGE)};
    struct duo_request *sends[2] = {duo_send(1, LARGE), duo_send(0, LARGE)};
    duo_run(50 * MS);
    duo_assert_arrived(sends[0], recvs[0], LARGE);
    duo_assert_arrived(sends[1], recvs[1], LARGE);
}

/* ---- acks ------------------------------------------------------------------------------------ */

Test(core, acks_wait_for_company, .init = duo_open)
{
    duo_send(0, 100);
    duo_pass(0);
    cr_assert_eq(duo_transmit(1), 0, "not yet");
    uint64_t due_ns = core_deadline(duo_core[1]);
    cr_assert(due_ns > duo_now && due_ns <= duo_now + 50 * US + (1 << TIMER_TICK_SHIFT));
    duo_now = due_ns;
    core_expire(duo_core[1], duo_now);
    cr_assert_eq(duo_transmit(1), 1);
    duo_deliver(1);
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 0);
}

Test(core, acks_ride_on_data, .init = duo_open)
{
    duo_send(0, 100);
    duo_pass(0);
    duo_send(1, 100);
    cr_assert_eq(duo_transmit(1), 1);
    duo_deliver(1);
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 0);
}

Test(core, acks_do_not_wait_for_ever)
{
    duo_defaults();
    duo_params.ack_every = 3;
    duo_open_as(false);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(duo_transmit(1), 0);
        duo_send(0, 100);
        duo_pass(0);
    }
    cr_assert_eq(duo_transmit(1), 1, "every third chunk");
    duo_deliver(1);
    duo_send(0, 100);
    duo_pass(0);
    core_flush_acks(duo_core[1]);
    cr_assert_eq(duo_transmit(1), 1, "before a sleep");
}

/* Its datagrams come in order: nothing is missing, so there is no hurry. Without one of them there is. */
Test(core, a_chunk_of_several_datagrams_is_no_gap)
{
    enum { BYTES = 20000, DATAGRAMS = 15 };
    for (unsigned lost = 0; lost <= DATAGRAMS / 2; lost += DATAGRAMS / 2) { /* 0: none */
        duo_open();
        struct duo_request *recv = duo_recv(1, BYTES);
        duo_talk();
        struct duo_request *send = duo_send(0, BYTES);
        cr_assert_eq(duo_transmit(0), DATAGRAMS);
        for (unsigned i = 0; i < DATAGRAMS; i++) {
            if (i == 0 || i != lost)
                duo_deliver_one(0, i);
        }
        duo_drop(0);
        cr_assert_eq(duo_flow[1]->ack.now, lost > 0);
        duo_run(20 * MS);
        duo_assert_arrived(send, recv, BYTES);
    }
}

/* Found in review: an ack in a retransmission is as old as the first copy, and so is what it says of time. */
Test(core, a_gap_that_closes_is_acked_at_once)
{
    duo_defaults();
    duo_params.ack_every = 64;
    duo_open_as(false);
    for (unsigned i = 0; i < 3; i++) {
        duo_send(0, 100);
        duo_transmit(0);
    }
    duo_deliver_one(0, 0);
    cr_assert_eq(duo_transmit(1), 0);
    duo_deliver_one(0, 2);
    cr_assert_eq(duo_transmit(1), 1, "chunk 1 is missing");
    duo_deliver(1);
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 1);
    duo_deliver_one(0, 1);
    cr_assert_eq(duo_transmit(1), 1, "it was late, not lost: the sender should know");
    duo_deliver(1);
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 0);
    duo_drop(0);
}

/* A NIC that takes little at a time keeps the window from being full whenever an ack comes. */
Test(core, the_start_goes_on_while_the_nic_is_slow, .init = duo_open)
{
    struct tx_desc desc;
    duo_recv(1, 20 * LARGE);
    duo_talk();
    duo_send(0, 20 * LARGE);
    uint64_t cwnd_bytes = duo_flow[0]->rails->cc.cwnd_bytes;
    while (duo_flow[0]->rails->flying_payload < cwnd_bytes / 2 && core_tx(duo_core[0], &desc, duo_now))
        duo_build(0, &desc);
    cr_assert_not(duo_flow[0]->rails->window_limited);
    duo_now += 10 * US;
    duo_deliver(0);
    duo_pass(1);
    cr_assert_gt(duo_flow[0]->rails->cc.cwnd_bytes, cwnd_bytes);
    cr_assert(core_tx(duo_core[0], &desc, duo_now));
    duo_build(0, &desc);
    cwnd_bytes = duo_flow[0]->rails->cc.cwnd_bytes;
    duo_now += 10 * US;
    duo_deliver(0);
    core_flush_acks(duo_core[1]);
    duo_pass(1);
    cr_assert_eq(duo_flow[0]->rails->flying_chunks, 0);
    cr_assert_eq(duo_flow[0]->rails->cc.cwnd_bytes, cwnd_bytes, "one chunk fills no window");
}

/* What the peer's buffer holds back says nothing about the network: a window beyond it would only be late to shrink. */
Test(core, the_window_follows_what_is_in_flight, .init = duo_open)
{
    enum { SIZE = 8 << 20, ROUNDS = 20 };
    uint64_t most = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct duo_request *recv = duo_recv(1, SIZE), *send = duo_send(0, SIZE);
        while (!recv->ended || !send->ended) {
            duo_transmit(0);
            most = duo_flow[0]->rails->flying_payload > most ? duo_flow[0]->rails->flying_payload : most;
            duo_transmit(1);
            duo_now += 10 * US;
            duo_deliver(0);
            duo_deliver(1);
            if (!duo_queued[0] && !duo_queued[1])
                duo_tick(1, duo_now);
        }
    }
    cr_assert_leq(most, UINT64_C(1) << 20);
    cr_assert_leq(duo_flow[0]->rails->cc.cwnd_bytes, 4 * most);
    cr_assert_geq(duo_flow[0]->rails->cc.cwnd_bytes, most);
}

Test(core, an_ack_in_a_retransmission_is_no_measurement, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, 100), *back = duo_recv(0, 100);
    duo_send(0, 100);
    duo_transmit(0);
    duo_now += 10 * US;
    duo_deliver(0);
    duo_send(1, 100);
    duo_transmit(1); /* with the ack */
    duo_drop(1);
    duo_run_deaf(1, 15 * MS);
    core_expire(duo_core[1], duo_now += 20 * MS);
    duo_pass(1);
    cr_assert(recv->ended && back->ended);
    cr_assert(duo_flow[0]->rails->rtt.srtt_ns < 5 * MS, "%lu ns", (unsigned long)duo_flow[0]->rails->rtt.srtt_ns);
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Before the first round trip is measured, the floor of the timeout tells what kind of network this is. */
Test(core, the_first_timeout_follows_the_floor)
{
    for (unsigned fast = 0; fast < 2; fast++) {
        duo_defaults();
        duo_params.rto_min_us = fast ? 500 : 10000;
        duo_open_as(false);
        duo_send(0, 100);
        uint64_t sent_ns = duo_now;
        duo_lose(0);
        while (duo_transmit(0) == 0)
            cr_assert(duo_tick(0, sent_ns + 100 * MS));
        uint64_t floor_ns = duo_params.rto_min_us * US;
        cr_assert(duo_now >= sent_ns + 2 * floor_ns && duo_now <= sent_ns + 2 * floor_ns + 10 * US);
        duo_drop(0);
    }
}

Test(core, a_lost_tail_is_probed, .init = duo_open)
{
    duo_recv(1, 100);
    duo_send(0, 100);
    duo_run(MS);
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_lose(0);
    duo_run(2 * MS); /* well below the shortest RTO */
    duo_assert_arrived(send, recv, 100);
    cr_assert_eq(duo_count(&duo_counters[0].tlp_fired), 1);
    cr_assert_eq(duo_count(&duo_counters[0].rto_fired), 0);
}

Test(core, a_needless_loss_does_not_end_the_start, .init = duo_open)
{
    duo_send(0, 100);
    duo_run(MS);
    for (unsigned i = 0; i < 3; i++) {
        duo_send(0, 100);
        duo_transmit(0);
        duo_now += US;
    }
    uint64_t cwnd_bytes = duo_flow[0]->rails->cc.cwnd_bytes;
    cr_assert(duo_flow[0]->rails->cc.startup);
    duo_deliver_one(0, 1);
    duo_deliver_one(0, 2);
    duo_pass(1);
    while (duo_count(&duo_counters[0].lost_chunks) == 0)
        cr_assert(duo_tick(0, duo_now + MS));
    cr_assert_not(duo_flow[0]->rails->cc.startup);
    cr_assert_lt(duo_flow[0]->rails->cc.cwnd_bytes, cwnd_bytes);
    duo_deliver_one(0, 0); /* it was only late */
    duo_pass(1);
    cr_assert(duo_flow[0]->rails->cc.startup);
    cr_assert_geq(duo_flow[0]->rails->cc.cwnd_bytes, cwnd_bytes);
    duo_drop(0);
}

Test(core, the_tail_is_probed_as_soon_as_the_floor_allows)
{
    for (unsigned fast = 0; fast < 2; fast++) {
        duo_defaults();
        duo_params.rto_min_us = fast ? 500 : 10000;
        duo_params.ack_delay_us = 0;
        duo_open_as(false);
        duo_send(0, 100);
        duo_run(MS); /* a round trip of 20 us is known */
        duo_send(0, 100);
        uint64_t sent_ns = duo_now;
        duo_lose(0);
        while (duo_transmit(0) == 0)
            cr_assert(duo_tick(0, sent_ns + 100 * MS));
        cr_assert_eq(duo_count(&duo_counters[0].tlp_fired), fast + 1);
        cr_assert_eq(duo_now >= sent_ns + 100 * US, !fast);
        duo_drop(0);
    }
}

Test(core, what_the_nic_refuses_goes_again_without_a_loss, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE), *small = duo_send(0, 100), *small_recv = duo_recv(1, 100);
    duo_refuse = true;
    for (unsigned i = 0; i < 10; i++)
        duo_transmit(0);
    duo_refuse = false;
    duo_run(50 * MS);
    duo_assert_arrived(send, recv, LARGE);
    duo_assert_arrived(small, small_recv, 100);
    cr_assert_eq(duo_count(&duo_counters[0].tx_blocked), 10);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 0);
    cr_assert_eq(duo_count(&duo_counters[0].rto_fired), 0);
    duo_assert_rest();
}

/* Found by the simulator: with every chunk record in use, retransmissions waited for a record too. */
Test(core, retransmissions_go_when_all_chunk_records_are_in_use)
{
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = 256;
    duo_open_as(false);
    static struct duo_request *sends[200];
    for (unsigned i = 0; i < 200; i++) {
        duo_recv(1, 10);
        sends[i] = duo_send(0, 10);
        duo_transmit(0); /* a chunk each, until there is no record left */
    }
    cr_assert_eq(duo_flow[0]->sent.next_seq, 64);
    duo_drop(0);
    duo_run(500 * MS);
    for (unsigned i = 0; i < 200; i++)
        duo_assert_ended(sends[i], UCCL_OK, 10);
    duo_assert_rest();
}

/* Found by the simulator: a retransmission held back by the pace was forgotten when no message was waiting. */
Test(core, a_paced_retransmission_goes_in_time, .init = duo_open)
{
    duo_recv(1, 100);
    duo_send(0, 100);
    duo_run(MS);
    duo_flow[0]->rails->cc.srtt_ns = MS;
    cc_set_window(&duo_flow[0]->rails->cc, 1024);
    cr_assert_gt(duo_flow[0]->rails->cc.pace_gap_ns, 5 * MS);
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_lose(0);
    duo_flow[0]->rails->pace_until_ns = duo_now + 40 * MS; /* beyond the RTO */
    duo_flow[0]->rails->loss.tail_probed = true;
    duo_run(100 * MS);
    duo_assert_arrived(send, recv, 100);
}

/* Found by the simulator: a receive for a message that is there owes credit soon, also where a timer for later is
 * armed. */
Test(core, credit_does_not_wait_for_another_timer, .init = duo_open)
{
    struct duo_request *send = duo_send(0, 100);
    duo_run(MS);
    duo_send(1, 100 << 10); /* waits for its receive, and for a sign of life */
    duo_run(MS);
    cr_assert(timer_armed(&duo_flow[1]->timer));
    cr_assert_gt(duo_flow[1]->timer.deadline_ns, duo_now + 10 * MS);
    struct duo_request *recv = duo_recv(1, 100);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
}

/* Found by the simulator: credit that found no room made acks go out at every turn of the ack timer. */
Test(core, control_frames_without_room_are_quiet)
{
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = 256;
    duo_open_as(false);
    for (unsigned i = 0; i < 100; i++) { /* one end uses up its chunk records */
        duo_send(1, 10);
        duo_transmit(1);
    }
    duo_drop(1);
    for (unsigned i = 0; i < 20; i++) { /* and has credit to give */
        duo_recv(1, 10);
        duo_send(0, 10);
    }
    duo_pass(0);
    uint64_t acks = duo_count(&duo_counters[1].tx_acks);
    duo_run_deaf(1, 100 * MS);
    cr_assert_leq(duo_count(&duo_counters[1].tx_acks), acks + 10);
    duo_run(1000 * MS);
    for (unsigned i = 100; i < duo_request_count; i++)
        duo_assert_ended(&duo_requests[i], UCCL_OK, 10);
}

Test(core, windows_bound_what_is_in_flight)
{
    duo_defaults();
    duo_setup[0].tx_window_bytes = 64 * 1024;
    duo_open_as(false);
    duo_recv(1, 1 << 20);
    duo_talk();
    duo_flow[0]->peer_window_bytes = 64 * 1024;
    duo_send(0, 1 << 20);
    duo_transmit(0);
    cr_assert_leq(duo_flow[0]->sent.flying_charge, 64 * 1024);
    cr_assert_geq(duo_flow[0]->rails->flying_chunks, 2, "or a lost one would leave nothing to notice it by");
}

Test(core, datagrams_change_their_size, .init = duo_open)
{
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE);
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, 600);
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination + 7, 700); /* somebody else */
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++)
        cr_assert_leq(duo_queue[0][i].length, 600);
    duo_drop(0);
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, 1472);
    duo_run(200 * MS);
    duo_assert_arrived(send, recv, LARGE);
}

/* ---- a peer's lies ---------------------------------------------------------------------------- */

/* An ack that acks nothing, and lies about the newest of what was sent on path 0. */
static struct wire_ack lie_about_time(uint32_t time_stamp, uint32_t hold)
{
    struct flow *flow = duo_flow[0];
    return (struct wire_ack){
        .number = flow->ack.peer_number,
        .cumulative = (uint32_t)flow->sent.cumulative,
        .next = (uint32_t)flow->sack.cumulative,
        .path_count = 1,
        .paths = {{.path_seq = flow->rails->paths.paths[0].next_seq - 1, .time_stamp = time_stamp, .ack_delay = hold}}};
}

/* Whatever the peer says of times: what is lost is retransmitted when the timeout is at its limit, at the latest. */
Test(core, lies_about_time_are_bounded)
{
    static const uint32_t lies[][2] = {{0, 0},
                                       {0, UINT32_MAX},
                                       {1, 0},
                                       {1, UINT32_MAX},
                                       {UINT32_MAX, 0},
                                       {UINT32_MAX, UINT32_MAX},
                                       {UINT32_MAX / 2, UINT32_MAX / 2}};
    duo_defaults();
    duo_params.dead_peer_ms = 20000;
    duo_params.port_entropy = 1;
    duo_open_as(false);
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct duo_request *recv = duo_recv(1, LARGE);
        duo_talk();
        struct duo_request *send = duo_send(0, LARGE);
        duo_lose(0);
        struct wire_ack lie = lie_about_time(wire_time(duo_now) + lies[i][0], lies[i][1]);
        lie.window_kb = 1024;
        cr_assert(ack_on_frame(duo_flow[0], &lie, true, duo_now));
        const struct rtt *rtt = &duo_flow[0]->rails->rtt;
        cr_assert(rtt->latest_ns >= 1 && rtt->latest_ns <= UINT64_C(1) << 36);
        cr_assert_leq(duo_flow[0]->rails->cc.pace_gap_ns, 10 * MS);
        duo_run(3 * duo_params.rto_max_us * US);
        duo_assert_arrived(send, recv, LARGE);
    }
    duo_assert_rest();
}

/* A window of nothing lets one chunk at a time go, a huge one no more than congestion control. */
Test(core, lies_about_the_window_are_bounded, .init = duo_open)
{
    static const uint32_t windows_kb[] = {0, UINT32_MAX};
    for (unsigned i = 0; i < 2; i++) {
        struct flow *flow = duo_flow[0];
        struct duo_request *recv = duo_recv(1, 1 << 20);
        duo_talk();
        struct wire_ack lie = lie_about_time(0, 0);
        lie.path_count = 0;
        lie.number = flow->ack.peer_number + 0x7fffffff; /* what follows is older */
        lie.window_kb = windows_kb[i];
        cr_assert(ack_on_frame(flow, &lie, true, duo_now));
        struct duo_request *send = duo_send(0, 1 << 20);
        duo_transmit(0);
        cr_assert_eq(flow->peer_window_bytes, windows_kb[i] * UINT64_C(1024));
        cr_assert_leq(flow->rails->flying_payload, i ? flow->rails->cc.cwnd_bytes : 65536);
        cr_assert_geq(flow->rails->flying_chunks, 1);
        duo_run(2000 * MS);
        duo_assert_arrived(send, recv, 1 << 20);
    }
}

/* ---- waiting for the owner ------------------------------------------------------------------- */

/* What `side` has sent arrives after 20 us, and waits for the other's owner then, who knows how long. */
static void deliver_late(unsigned side, uint64_t waited_ns)
{
    duo_now += 20 * US + waited_ns;
    core_waited(duo_core[!side], waited_ns);
    duo_deliver(side);
    core_waited(duo_core[!side], 0);
}

Test(core, waiting_for_the_owner_is_no_delay, .init = duo_open)
{
    enum { UNIT_NS = 1 << WIRE_TIME_SHIFT };
    const struct rtt *rtt = &duo_flow[0]->rails->rtt;
    struct duo_request *recv = duo_recv(1, 10), *send = duo_send(0, 10);
    duo_transmit(0);
    deliver_late(0, 500 * US);
    core_flush_acks(duo_core[1]);
    cr_assert_eq(duo_transmit(1), 1);
    deliver_late(1, 300 * US);
    duo_assert_arrived(send, recv, 10);
    cr_assert(rtt->latest_ns + 2 * UNIT_NS >= 40 * US && rtt->latest_ns <= 40 * US + 2 * UNIT_NS, "%lu ns",
              (unsigned long)rtt->latest_ns);
    cr_assert(rtt->peer_ack_delay_ns + UNIT_NS >= 500 * US && rtt->peer_ack_delay_ns <= 500 * US + UNIT_NS);
}

/* The ack of an earlier chunk may wait behind it: the lost are counted by when an ack came. */
Test(core, acks_that_waited_lose_nothing, .init = duo_open)
{
    struct duo_request *recvs[3], *sends[3];
    for (unsigned i = 0; i < 3; i++)
        recvs[i] = duo_recv(1, 10);
    sends[0] = duo_send(0, 10);
    duo_transmit(0);
    deliver_late(0, 0);
    core_flush_acks(duo_core[1]);
    duo_transmit(1);
    deliver_late(1, 0); /* a round trip is known */
    for (unsigned i = 1; i < 3; i++) {
        sends[i] = duo_send(0, 10);
        cr_assert_eq(duo_transmit(0), i);
        duo_now += US;
    }
    struct duo_datagram first = duo_queue[0][0];
    duo_queue[0][0] = duo_queue[0][1];
    duo_queued[0] = 1;
    deliver_late(0, 0); /* the second one overtakes */
    core_flush_acks(duo_core[1]);
    duo_transmit(1);
    duo_queue[0][0] = first;
    duo_queued[0] = 1;
    deliver_late(0, 0);
    core_flush_acks(duo_core[1]);
    cr_assert_eq(duo_transmit(1), 2);
    duo_now += 5 * MS;
    core_waited(duo_core[0], 5 * MS);
    duo_deliver_one(1, 0);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 0);
    core_waited(duo_core[0], 5 * MS);
    duo_deliver_one(1, 1);
    duo_drop(1);
    core_waited(duo_core[0], 0);
    core_expire(duo_core[0], duo_now);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 0);
    for (unsigned i = 0; i < 3; i++)
        duo_assert_arrived(sends[i], recvs[i], 10);
}

/* ---- silence --------------------------------------------------------------------------------- */

Test(core, a_dead_peer_ends_every_request, .init = duo_open)
{
    struct duo_request *requests[] = {duo_send(0, 10), duo_send(0, LARGE), duo_recv(0, 10),
                                      duo_post(0, 1, CORE_RECV, LARGE), duo_post(0, 2, CORE_SEND, 0)};
    duo_run_deaf(0, 990 * MS);
    for (unsigned i = 0; i < 5; i++)
        cr_assert_not(requests[i]->ended);
    duo_run_deaf(0, 60 * MS); /* from the first retransmission on */
    for (unsigned i = 0; i < 5; i++)
        duo_assert_ended(requests[i], UCCL_EPEERDEAD, 0);
    cr_assert(duo_dead[0] == 1 && duo_failed[0] == DUO_CONNS && duo_failed_status[0] == UCCL_EPEERDEAD);
    cr_assert_eq(duo_count(&duo_counters[0].peers_dead), 1);
    struct duo_request *late = duo_send(0, 10);
    duo_events(0);
    duo_assert_ended(late, UCCL_EPEERDEAD, 0);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX, "a dead flow needs no time");
    for (unsigned i = 0; i < DUO_CONNS; i++)
        core_conn_close(duo_core[0], duo_conn[0][i], 1000 * MS, duo_now);
    duo_events(0);
    cr_assert_eq(duo_ended[0], DUO_CONNS);
    core_flow_close(duo_core[0], duo_flow[0]);
    cr_assert_eq(duo_core[0]->small.count, duo_params.tx_small_buffers);
    cr_assert_eq(duo_transmit(0), 0);
}

/* The device was removed: that is no silence of the peer. */
Test(core, a_nic_that_is_gone_ends_every_request, .init = duo_open)
{
    struct duo_request *requests[] = {duo_send(0, 10), duo_recv(0, 10), duo_post(0, 1, CORE_SEND, LARGE)};
    core_fail(duo_core[0], UCCL_EIO, duo_now);
    core_fail(duo_core[0], UCCL_EIO, duo_now); /* as often as you like */
    duo_events(0);
    for (unsigned i = 0; i < 3; i++)
        duo_assert_ended(requests[i], UCCL_EIO, 0);
    cr_assert(duo_dead[0] == 1 && duo_failed[0] == DUO_CONNS && duo_failed_status[0] == UCCL_EIO);
    cr_assert_eq(duo_count(&duo_counters[0].peers_dead), 0);
    struct duo_request *late = duo_send(0, 10);
    duo_events(0);
    duo_assert_ended(late, UCCL_EIO, 0);
    cr_assert_eq(duo_transmit(0), 0);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
}

Test(core, a_peer_that_only_waits_is_alive, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10);
    duo_run(20000 * MS); /* twenty times the dead time */
    cr_assert(!recv->ended && duo_dead[0] == 0);
    cr_assert_leq(duo_count(&duo_counters[0].tx_datagrams) + duo_flow[0]->sent.next_seq, 200, "few pings");
    struct duo_request *send = duo_send(1, 10);
    duo_run(MS);
    duo_assert_arrived(send, recv, 10);
}

Test(core, only_a_receive_is_pending_and_the_peer_dies, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10);
    duo_run_deaf(0, 1240 * MS); /* asked first after a quarter of the dead time, which then begins */
    cr_assert_not(recv->ended);
    duo_run_deaf(0, 20 * MS);
    duo_assert_ended(recv, UCCL_EPEERDEAD, 0);
}

/* Found in review: the silence of an idle flow counted against the first thing said after it. */
Test(core, an_idle_flow_is_not_dead, .init = duo_open)
{
    duo_run(5000 * MS);
    cr_assert_eq(duo_flow[0]->sent.next_seq, 0, "it says nothing either");
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    core_conn_close(duo_core[0], duo_conn[0][0], 1000 * MS, duo_now);
    duo_run(10 * MS);
    cr_assert(duo_ended[0] == 1 && duo_failed[1] == 1);
    cr_assert(duo_dead[0] == 0 && duo_dead[1] == 0);
    duo_now += 5000 * MS;
    struct duo_request *recv = duo_post(1, 1, CORE_RECV, 10), *send = duo_post(0, 1, CORE_SEND, 10);
    duo_run(10 * MS);
    duo_assert_arrived(send, recv, 10);
}

/* ---- fairness -------------------------------------------------------------------------------- */

/* Found in review: a connection that was alone for long owed later ones all it had sent. */
Test(core, having_been_alone_is_no_debt)
{
    duo_defaults();
    duo_params.cwnd_max_kb = 256;
    duo_open_as(false);
    for (unsigned i = 0; i < 8; i++) {
        duo_recv(1, 2 << 20);
        duo_send(0, 2 << 20);
        duo_run(200 * MS);
    }
    struct duo_request *old, *young;
    duo_recv(1, 4 << 20);
    duo_post(1, 1, CORE_RECV, 4 << 20);
    duo_talk();
    old = duo_send(0, 4 << 20);
    duo_transmit(0);
    young = duo_post(0, 1, CORE_SEND, 4 << 20);
    while (young->msg.offset_bytes < 3 << 20) {
        duo_transmit(0);
        duo_now += 10 * US;
        duo_deliver(0);
        duo_pass(1);
        duo_tick(1, duo_now);
    }
    cr_assert_gt(old->msg.offset_bytes, 2 << 20, "%lu bytes of the one that was alone before",
                 (unsigned long)old->msg.offset_bytes);
}

Test(core, small_messages_pass_large_ones, .init = duo_open)
{
    struct duo_request *large_recv = duo_recv(1, 4 << 20);
    duo_talk();
    struct duo_request *large = duo_send(0, 4 << 20);
    duo_transmit(0);
    struct duo_request *recv = duo_post(1, 1, CORE_RECV, 64), *send = duo_post(0, 1, CORE_SEND, 64);
    for (unsigned round = 0; round < 3; round++) {
        duo_now += 10 * US;
        duo_deliver(0);
        core_flush_acks(duo_core[1]);
        duo_pass(1);
        duo_transmit(0);
    }
    duo_assert_ended(recv, UCCL_OK, 64);
    cr_assert(!large->ended && !large_recv->ended);
    duo_run(500 * MS);
    duo_assert_ended(send, UCCL_OK, 64);
    duo_assert_arrived(large, large_recv, 4 << 20);
}
