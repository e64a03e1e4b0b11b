/* SPDX-License-Identifier: Apache-2.0 */
#include "duo.h"

#include "core/credit.h"

enum { KB = 1024, SPECULATE = 64 * KB, LARGE = 1000 * KB };

static void open_eqds(uint64_t link_mbps)
{
    duo_defaults();
    duo_params.cc = CC_EQDS;
    duo_params.speculate_kb = SPECULATE / KB;
    duo_params.chunk_size_kb = 8;
    duo_open_as(false);
    for (unsigned side = 0; side < 2; side++)
        core_set_link(duo_core[side], link_mbps);
}

static void open_fast(void)
{
    open_eqds(100000);
}

static void both_end(const struct duo_request *send, const struct duo_request *recv, uint64_t bytes)
{
    cr_assert(send->ended && send->status == UCCL_OK);
    duo_assert_ended(recv, UCCL_OK, bytes);
}

/* Posts both ends of a message; its clear-to-send has arrived. */
static void post(uint64_t bytes, struct duo_request **send, struct duo_request **recv)
{
    *recv = duo_recv(1, bytes);
    duo_talk();
    *send = duo_send(0, bytes);
}

Test(credit, a_large_message_arrives, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
    cr_assert_eq(duo_flow[0]->credit_tx.used_bytes, LARGE);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
    duo_assert_rest();
}

/* A sender may have larger chunks than the receiver; each of its packets earns one grant. */
Test(credit, a_packet_earns_what_the_largest_chunk_carries, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_talk();
    struct credit_rx *rx = &duo_flow[1]->credit_rx;
    uint64_t granted_bytes = rx->granted_bytes;
    cr_assert_gt(rx->demand_bytes, granted_bytes + 64 * KB);
    duo_flow[1]->packets_heard = rx->grants + 1;
    duo_tick(1, duo_now + MS);
    cr_assert_eq(rx->granted_bytes, granted_bytes + 64 * KB);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
}

Test(credit, nothing_beyond_the_first_bytes_goes_unasked, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_transmit(0);
    cr_assert_leq(duo_flow[0]->rails->flying_payload, SPECULATE);
    cr_assert_gt(duo_flow[0]->rails->flying_payload, SPECULATE - 8 * KB);
    duo_drop(0);
    for (unsigned i = 0; i < 20; i++) {
        duo_tick(0, duo_now + MS);
        duo_lose(0);
        cr_assert_leq(duo_flow[0]->credit_tx.used_bytes, SPECULATE + 8 * KB, "all but a probe waits");
    }
}

Test(credit, the_receiver_paces, .init = open_fast)
{
    struct duo_request *send, *recv;
    core_set_link(duo_core[1], 1000);
    post(LARGE, &send, &recv);
    uint64_t begin_ns = duo_now, least_ns = (LARGE - SPECULATE) * UINT64_C(8) * 100 / 99;
    while (!recv->ended && duo_now < begin_ns + 100 * MS)
        duo_run(50 * US);
    cr_assert_gt(duo_now - begin_ns, least_ns);
    cr_assert_lt(duo_now - begin_ns, least_ns * 11 / 10, "headers, and not much more");
    duo_run(100 * MS);
    both_end(send, recv, LARGE);
}

Test(credit, lost_grants_and_demands_are_made_up_for, .init = open_fast)
{
    for (unsigned deaf = 0; deaf < 2; deaf++) {
        struct duo_request *send, *recv;
        post(LARGE, &send, &recv);
        duo_lose(deaf);
        duo_run_deaf(deaf, 3 * MS);
        duo_run(500 * MS);
        both_end(send, recv, LARGE);
    }
    duo_assert_rest();
}

/* What the NIC has no room for was not sent: no credit is gone, no pause is due, no datagram was sent again. */
Test(credit, what_the_nic_does_not_take_costs_nothing, .init = open_fast)
{
    struct duo_request *send, *recv;
    struct tx_desc desc;
    unsigned refused = 0;
    post(LARGE, &send, &recv);
    while (refused < 100 && core_tx(duo_core[0], &desc, duo_now)) {
        if (desc.kind != TX_BULK) {
            duo_build(0, &desc);
            continue;
        }
        core_tx_failed(duo_core[0], &desc, duo_now);
        refused++;
    }
    cr_assert_eq(refused, 100);
    cr_assert_eq(duo_flow[0]->credit_tx.used_bytes, 0);
    cr_assert_leq(duo_flow[0]->rails->pace_until_ns, duo_now);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
    cr_assert_eq(duo_flow[0]->credit_tx.used_bytes, LARGE);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0, "nor is it when it leaves at last");
    cr_assert_eq(duo_count(&duo_counters[0].tx_chunks), duo_flow[0]->sent.next_seq);
    duo_assert_rest();
}

/* The last grant is lost and nothing follows it: the sender has to ask. */
Test(credit, the_last_grant_is_lost, .init = open_fast)
{
    struct duo_request *send, *recv;
    core_set_link(duo_core[1], 1000);
    post(LARGE, &send, &recv);
    while (duo_flow[1]->credit_rx.granted_bytes < LARGE) {
        duo_run(20 * US);
        duo_transmit(1);
        if (duo_flow[1]->credit_rx.granted_bytes < LARGE)
            duo_deliver(1);
    }
    duo_drop(1);
    duo_run(50 * MS);
    both_end(send, recv, LARGE);
}

/* The demand of a peer that does not answer leaves more and more rarely; that of one that does, often. */
Test(credit, a_silent_peer_is_asked_rarely, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_transmit(0);
    duo_drop(0);
    uint64_t end_ns = duo_now + 800 * MS;
    unsigned asked = 0;
    duo_flow[0]->main->rtt.srtt_ns = 20 * US;
    duo_flow[0]->main->rtt.peer_ack_delay_ns = 0;
    while (duo_tick(0, end_ns)) {
        asked += duo_transmit(0);
        duo_drop(0);
    }
    cr_assert(asked >= 15 && asked <= 60, "%u times in 0.8 s", asked);
    duo_run(2000 * MS);
    both_end(send, recv, LARGE);
}

Test(credit, every_receiver_serves, .init = open_fast)
{
    struct duo_request *send, *recv;
    duo_flow[1]->rails->cc.ops = &cc_swift;
    post(LARGE, &send, &recv);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
    recv = duo_recv(0, LARGE);
    duo_talk();
    send = duo_send(1, LARGE);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
    cr_assert_eq(duo_flow[0]->credit_rx.demand_bytes, 0, "who does not wait does not ask");
}

Test(credit, idle_senders_may_begin_unasked_again, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_run(10 * MS);
    both_end(send, recv, LARGE);
    cr_assert_eq(credit_left(duo_flow[0]), SPECULATE);
    cr_assert_eq(pacer_deadline(duo_core[1]), UINT64_MAX);
    post(SPECULATE, &send, &recv);
    duo_transmit(0);
    cr_assert_eq(duo_flow[0]->rails->flying_payload, SPECULATE);
    duo_run(10 * MS);
    both_end(send, recv, SPECULATE);
}

/* Both ends of a flow to itself have one pacer: it serves them in turn. */
Test(credit, demands_are_served_in_turn)
{
    duo_defaults();
    duo_params.cc = CC_EQDS;
    duo_params.speculate_kb = SPECULATE / KB;
    duo_params.chunk_size_kb = 8;
    duo_open_as(true);
    core_set_link(duo_core[0], 1000);
    struct duo_request *recvs[2] = {duo_recv(0, LARGE), duo_recv(1, LARGE)};
    duo_talk();
    struct duo_request *sends[2] = {duo_send(1, LARGE), duo_send(0, LARGE)};
    unsigned compared = 0;
    int64_t first = 0;
    while (!recvs[0]->ended || !recvs[1]->ended) {
        duo_run(100 * US);
        uint64_t granted[2] = {duo_flow[0]->credit_rx.granted_bytes, duo_flow[1]->credit_rx.granted_bytes};
        if (granted[0] >= LARGE || granted[1] >= LARGE)
            continue;
        int64_t ahead = (int64_t)(granted[0] - granted[1]);
        if (compared++ == 0)
            first = ahead; /* one asked first */
        cr_assert_leq(llabs(ahead - first), 64 * KB);
    }
    cr_assert_gt(compared, 20);
    duo_run(50 * MS);
    both_end(sends[0], recvs[0], LARGE);
    both_end(sends[1], recvs[1], LARGE);
}

Test(credit, small_messages_wait_for_credit_too, .init = open_fast)
{
    enum { COUNT = 16 };
    struct duo_request *sends[COUNT], *recvs[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_recv(1, 8000);
    duo_talk();
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = duo_send(0, 8000);
    duo_transmit(0);
    cr_assert_leq(duo_flow[0]->credit_tx.used_bytes, SPECULATE + 1472);
    duo_run(10 * MS);
    for (unsigned i = 0; i < COUNT; i++)
        both_end(sends[i], recvs[i], 8000);
    duo_assert_rest();
}

/* As after a loss: what was unasked is given up. */
static void use_up(void)
{
    struct credit_tx *tx = &duo_flow[0]->credit_tx;
    tx->used_bytes = tx->granted_bytes;
}

/* What a sender may send unasked is its own setting: the receiver need not grant that once more. */
static void speculate_unequally(bool lost)
{
    enum { MORE = 4000 * KB };
    struct duo_request *send, *recv;
    duo_flow[0]->credit_tx.granted_bytes = MORE;
    duo_flow[1]->credit_rx.granted_bytes = 0;
    if (lost)
        use_up();
    for (unsigned i = 0; i < 6; i++) {
        post(LARGE, &send, &recv);
        duo_run(20 * MS);
        both_end(send, recv, LARGE);
    }
    cr_assert_leq(duo_flow[0]->credit_tx.granted_bytes, duo_flow[1]->credit_rx.granted_bytes);
    duo_assert_rest();
}

Test(credit, a_sender_may_speculate_more_than_its_receiver, .init = open_fast)
{
    speculate_unequally(false);
}

Test(credit, and_lose_it, .init = open_fast)
{
    speculate_unequally(true);
}

Test(credit, a_message_of_no_bytes_asks_for_its_turn, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(0, &send, &recv);
    use_up();
    duo_run(10 * MS);
    both_end(send, recv, 0);
    duo_assert_rest();
}

/* It has its clear-to-send, and stands before those that wait for room in the peer's ring. */
Test(credit, a_granted_message_asks_where_others_are_blocked, .init = open_fast)
{
    struct conn *conn = duo_conn[0][0];
    uint64_t ring_limit = conn->ring_limit;
    conn->ring_limit = conn->ring_used;
    struct duo_request *send = duo_send(0, 100);
    duo_transmit(0);
    cr_assert(conn->blocked && !send->ended);
    use_up();
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_run(10 * MS);
    both_end(send, recv, 100);
    conn->ring_limit = ring_limit;
    duo_assert_rest();
}

Test(credit, retransmissions_go_first_and_need_credit, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(LARGE, &send, &recv);
    duo_lose(0); /* the first bytes, and the demand */
    duo_run(100 * MS);
    both_end(send, recv, LARGE);
    cr_assert_geq(duo_flow[0]->credit_tx.used_bytes, LARGE + SPECULATE - 8 * KB, "retransmissions are counted");
    cr_assert_leq(duo_flow[0]->credit_tx.used_bytes, duo_flow[0]->credit_tx.granted_bytes);
}

/* Less than what may go unasked: its retransmissions wait for the receiver all the same. */
Test(credit, retransmissions_of_unasked_bytes_are_paced, .init = open_fast)
{
    struct duo_request *send, *recv;
    post(24 * KB, &send, &recv);
    duo_lose(0);
    cr_assert_eq(credit_left(duo_flow[0]), SPECULATE - 24 * KB);
    while (duo_count(&duo_counters[0].lost_chunks) == 0)
        cr_assert(duo_tick(0, duo_now + 100 * MS));
    cr_assert_eq(credit_left(duo_flow[0]), 0);
    duo_transmit(0);
    cr_assert_eq(duo_flow[0]->rails->flying_payload, 0);
    duo_run(50 * MS);
    both_end(send, recv, 24 * KB);
    cr_assert_geq(duo_flow[1]->credit_rx.demand_bytes, SPECULATE + 24 * KB);
}

/* The ack is refused for a while: no grant is earned by that, so no deadline of the pacer keeps its thread awake. */
Test(credit, a_refused_ack_earns_no_grant, .init = open_fast)
{
    struct flow *flow = duo_flow[0];
    struct tx_desc desc;
    flow->packets_heard++;
    credit_on_demand(flow, &(struct wire_demand){LARGE}, duo_now);
    duo_now += MS;
    pacer_run(duo_core[0], duo_now);
    cr_assert(flow->credit_rx.exhausted);
    cr_assert_eq(flow->credit_rx.grants, flow->packets_heard);
    uint64_t granted_bytes = flow->credit_rx.granted_bytes;
    cr_assert_lt(granted_bytes, LARGE);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        cr_assert(!desc.sequenced);
        core_tx_failed(duo_core[0], &desc, duo_now);
        cr_assert_eq(pacer_deadline(duo_core[0]), UINT64_MAX);
    }
    flow->packets_heard++;
    cr_assert(core_tx(duo_core[0], &desc, duo_now));
    cr_assert_eq(flow->credit_rx.list, CREDIT_WANTING, "now there is a grant to be had");
    duo_now += MS;
    pacer_run(duo_core[0], duo_now);
    cr_assert_gt(flow->credit_rx.granted_bytes, granted_bytes);
}

Test(credit, nonsense_of_a_peer, .init = open_fast)
{
    struct flow *flow = duo_flow[0];
    credit_on_grant(flow, &(struct wire_grant){.granted = 10, .heard = 5}, duo_now);
    cr_assert_eq(flow->credit_tx.granted_bytes, SPECULATE, "an old one");
    cr_assert_eq(flow->credit_tx.heard_bytes, 0, "of what was never told");
    credit_on_grant(flow, &(struct wire_grant){.granted = UINT32_MAX}, duo_now);
    cr_assert_eq(flow->credit_tx.granted_bytes, SPECULATE);
    credit_on_demand(flow, &(struct wire_demand){UINT32_MAX}, duo_now);
    cr_assert_eq(flow->credit_rx.demand_bytes, 0);
    flow->packets_heard += 100;
    credit_on_demand(flow, &(struct wire_demand){INT32_MAX}, duo_now);
    cr_assert_eq(flow->credit_rx.list, CREDIT_WANTING);
    uint64_t granted_bytes = flow->credit_rx.granted_bytes;
    duo_now += MS;
    pacer_run(duo_core[0], duo_now);
    cr_assert_leq(flow->credit_rx.granted_bytes - granted_bytes, 700 * KB, "no more than a short burst at once");
    credit_forget(flow);
    cr_assert_eq(pacer_deadline(duo_core[0]), UINT64_MAX);
    credit_forget(flow);
}
