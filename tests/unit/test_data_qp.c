/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue pairs of a flow (engine/core/data_qp.h): made when wanted, watched, drained by both ends, made anew; and
 * that a chunk which was placed goes nowhere else before the peer has drained its queue pair.
 */
#include "placing_duo.h"

enum { SIZE = 100000 };

static struct data_qp *qp(unsigned side, unsigned path)
{
    return &duo_flow[side]->qps.qps[path];
}

/* A send and its receive, with two writes under way. */
static void start(struct duo_request **send, struct duo_request **receive)
{
    *receive = duo_recv(1, SIZE);
    duo_talk();
    *send = duo_send(0, SIZE);
    duo_talk();
    cr_assert_eq(placing_packet_count, 2);
}

/* Hands a frame about a path to side 0, as if the peer had said it in a chunk of its own. */
static void tell(enum wire_qp_what what, uint16_t path, uint32_t generation)
{
    data_qps_on_frame(duo_flow[0],
                      &(struct wire_qp){(uint8_t)what, path, generation, placing_number(1, path, generation), 77 + 1});
    placing_act(0);
}

Test(qp, queue_pairs_are_made_when_something_could_be_placed)
{
    placing_open(2);
    duo_registered = false;
    duo_recv(1, SIZE);
    duo_talk();
    cr_assert_eq(placing_opened[0] + placing_opened[1], 0);
    duo_registered = true;
    duo_recv(1, SIZE);
    duo_talk();
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(placing_opened[side], 2);
        cr_assert_eq(placing_connected[side], 2);
        cr_assert_eq(duo_flow[side]->qps.usable, 2);
        cr_assert_eq(duo_count(&duo_counters[side].qps_up), 2);
    }
}

Test(qp, there_are_no_more_than_chunks_to_drain_them_with)
{
    placing_open(200);
    cr_assert_eq(duo_flow[0]->qps.count, 8); /* of a window of 64 */
}

Test(qp, one_that_cannot_be_made_is_tried_again_after_a_pause)
{
    placing_setup(1);
    placing_open_fails = true;
    duo_open_as(false);
    struct duo_request *receive = duo_recv(1, SIZE);
    duo_talk();
    struct duo_request *send = duo_send(0, SIZE);
    duo_run(50 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE); /* as datagrams */
    duo_assert_ended(receive, UCCL_OK, SIZE);
    cr_assert(placing_opened[0] > 2 && placing_opened[0] < 6, "5, 10, 20 ms: %u times", placing_opened[0]);
    placing_open_fails = false;
    duo_run(100 * MS);
    cr_assert_eq(duo_flow[0]->qps.usable, 1);
}

Test(qp, a_failed_one_is_drained_by_both_and_made_anew)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    start(&send, &receive);
    placing_lose(0);
    placing_lose(1);
    core_qp_failed(duo_core[0], duo_flow[0], 0, 1, duo_now);
    duo_run(20 * MS);
    cr_assert_eq(placing_drain_count[0], 1);
    cr_assert_eq(placing_drain_count[1], 0, "before it is drained nothing is said");
    cr_assert_eq(qp(0, 0)->state, DATA_QP_DRAINING);
    placing_drained(0);
    cr_assert_eq(qp(0, 0)->state, DATA_QP_DRAINED);
    cr_assert_eq(send->msg.work_live, 0, "all its work counts as finished");
    duo_run(MS);
    cr_assert_eq(placing_drain_count[1], 1);
    cr_assert_eq(sent_chunk(&duo_flow[0]->sent, duo_flow[0]->sent.cumulative)->state, CHUNK_HELD,
                 "the peer has not said that it is drained");
    cr_assert_not(receive->ended);
    placing_drained(1);
    placing_run(2 * MS);
    duo_assert_ended(receive, UCCL_OK, SIZE);
    placing_run(20 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(qp(side, 0)->generation, 2);
        cr_assert_eq(qp(side, 0)->state, DATA_QP_UP);
        cr_assert_eq(placing_closed[side], 1);
    }
    cr_assert_eq(duo_count(&duo_counters[0].qps_failed), 1);
}

Test(qp, only_what_the_peer_lacks_is_repeated)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    start(&send, &receive);
    placing_arrive(0); /* its ack never comes */
    placing_lose(1);
    duo_lose(1);
    uint64_t before = duo_count(&duo_counters[0].retransmits);
    placing_drain_at_once = true;
    core_qp_failed(duo_core[1], duo_flow[1], 0, 1, duo_now);
    duo_run(MS);
    duo_assert_ended(receive, UCCL_OK, SIZE);
    uint64_t repeated = duo_count(&duo_counters[0].retransmits) - before;
    cr_assert_leq(repeated, (SIZE / 2 + 1407) / 1408 + 12, "%lu datagrams repeated", (unsigned long)repeated);
    duo_run(20 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
}

Test(qp, drains_may_cross)
{
    placing_open_warm(1);
    placing_drain_at_once = true;
    core_qp_failed(duo_core[0], duo_flow[0], 0, 1, duo_now);
    core_qp_failed(duo_core[1], duo_flow[1], 0, 1, duo_now);
    duo_run(20 * MS);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(qp(side, 0)->generation, 2);
        cr_assert_eq(qp(side, 0)->state, DATA_QP_UP);
        cr_assert_eq(placing_closed[side], 1);
    }
}

Test(qp, a_silent_one_is_given_up_while_the_peer_lives)
{
    struct duo_request *send, *receive;
    placing_open_warm(2);
    placing_drain_at_once = true;
    start(&send, &receive);
    for (unsigned i = 0; i < 200 && !receive->ended; i++) { /* path 0 swallows everything */
        for (unsigned k = 0; k < placing_packet_count; k++) {
            if (placing_packets[k].gone)
                continue;
            if (placing_packets[k].desc.path == 0 && placing_packets[k].desc.generation == 1) {
                placing_lose(k);
            } else {
                placing_arrive(k);
                placing_finish(k);
            }
        }
        duo_run(MS);
    }
    duo_assert_ended(receive, UCCL_OK, SIZE);
    duo_run(50 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
    if (qp(0, 0)->generation == 1) /* both chunks took the other path */
        cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
    else
        cr_assert_eq(qp(1, 0)->generation, 2);
}

/* So much time passes, in which side 0 talks and nothing arrives; its NIC finishes its work. */
static void run_unheard(uint64_t ns)
{
    uint64_t until_ns = duo_now + ns;
    do {
        duo_lose(0);
        for (unsigned i = 0; i < placing_packet_count; i++) {
            if (!placing_packets[i].gone)
                placing_lose(i);
            placing_finish(i);
        }
        placing_packet_count = 0;
    } while (duo_tick(0, until_ns));
    duo_now = until_ns;
}

/* A window smaller than a chunk holds back the retransmission that begins a round; the probe of that round goes at its
 * time. */
Test(qp, a_retransmission_that_is_held_back_holds_no_probe_back)
{
    struct duo_request *send, *receive;
    placing_setup(1);
    duo_params.qp_retransmit_rounds = 100; /* the data QP is not given up */
    duo_open_as(false);
    placing_warm_up();
    start(&send, &receive);
    run_unheard(620 * MS); /* timeouts have become rare */
    cc_set_window(&duo_flow[0]->rails->cc, 2048);
    duo_send(1, 10);
    cr_assert_gt(duo_transmit(1), 0);
    duo_deliver(1); /* the peer lives, and dies */
    run_unheard(1255 * MS);
    cr_assert_eq(duo_dead[0], 1, "%u asks", duo_flow[0]->silence.asks);
    cr_assert_geq(duo_flow[0]->silence.asks, SILENCE_PARTS - 1);
}

/* Side 0 sends; its NIC takes nothing for queue pairs. Returns how much it has refused. */
static unsigned transmit_but_writes(void)
{
    struct tx_desc desc;
    unsigned refused = 0;
    while (refused == 0 && core_tx(duo_core[0], &desc, duo_now)) {
        refused += desc.on_path;
        if (desc.on_path)
            core_tx_failed(duo_core[0], &desc, duo_now);
        else
            duo_build(0, &desc);
    }
    duo_events(0);
    return refused;
}

/* Of a GPU's memory that is not fetched yet, say: what has not left cannot have been swallowed. */
Test(qp, retransmissions_that_the_nic_refuses_are_no_rounds)
{
    struct duo_request *send, *receive;
    placing_open_warm(1);
    start(&send, &receive);
    placing_lose(0);
    placing_arrive(1);
    for (unsigned i = 0; i < 2; i++)
        placing_finish(i);
    unsigned refused = 0;
    for (unsigned i = 0; i < 300; i++) {
        if (i % 50 == 0)
            duo_send(1, 10); /* the peer is heard */
        duo_pass(1);
        refused += transmit_but_writes();
        duo_deliver(0);
        duo_now += MS;
        for (unsigned side = 0; side < 2; side++)
            duo_tick(side, duo_now);
    }
    cr_assert_eq(qp(0, 0)->state, DATA_QP_UP, "given up after %u refusals", refused);
    cr_assert(refused > 100 && qp(0, 0)->rounds == 0);
    placing_run(50 * MS);
    duo_assert_arrived(send, receive, SIZE);
    cr_assert_eq(duo_count(&duo_counters[0].qps_failed), 0);
}

Test(qp, a_full_window_still_says_that_a_path_is_drained)
{
    struct duo_request *sends[16], *receives[16];
    placing_setup(1);
    duo_params.qp_retransmit_rounds = 100;
    duo_open_as(false);
    placing_warm_up();
    for (unsigned i = 0; i < 16; i++)
        receives[i] = duo_recv(1, 20 * SIZE);
    duo_talk();
    for (unsigned i = 0; i < 16; i++)
        sends[i] = duo_send(0, 20 * SIZE);
    duo_talk();
    for (unsigned i = 0; i < placing_packet_count; i++) /* the first is lost, and its window fills */
        if (!placing_packets[i].gone && i)
            placing_arrive(i);
    placing_lose(0);
    for (unsigned k = 0; k < 500; k++) {
        for (unsigned i = 1; i < placing_packet_count; i++) {
            bool first = placing_packets[i].desc.seq == placing_packets[0].desc.seq;
            if (placing_packets[i].gone)
                continue;
            if (first)
                placing_lose(i);
            else
                placing_arrive(i);
            placing_finish(i);
        }
        duo_talk();
        if (duo_flow[0]->sent.next_seq - duo_flow[0]->sent.cumulative == 64 - 8)
            break;
        if (k < 3 * 8) /* clear-to-sends of other connections take records too, whatever the congestion window */
            duo_post(0, 1 + k % 3, CORE_RECV, SIZE);
        duo_run(100 * US);
        if (placing_packet_count > PLACING_PACKETS - 64)
            break;
    }
    cr_assert_eq(duo_flow[0]->sent.next_seq - duo_flow[0]->sent.cumulative, 64 - 8);
    placing_drain_at_once = true;
    core_qp_failed(duo_core[0], duo_flow[0], 0, 1, duo_now);
    for (unsigned i = 0; i < placing_packet_count; i++)
        placing_packets[i].gone = true;
    duo_run(3 * MS);
    cr_assert_eq(qp(0, 0)->generation, 2);
    placing_packet_count = 0;
    for (unsigned k = 0; k < 200; k++) {
        placing_run(5 * MS);
        placing_packet_count = 0;
    }
    for (unsigned i = 0; i < 16; i++)
        duo_assert_arrived(sends[i], receives[i], 20 * SIZE);
}

/* ---- frames in any order --------------------------------------------------------------------------- */

Test(qp, what_is_said_of_the_next_generation_is_kept_until_it_begins)
{
    placing_open_warm(1);
    core_qp_failed(duo_core[0], duo_flow[0], 0, 1, duo_now);
    placing_act(0);
    placing_drained(0);
    tell(QP_OFFER, 0, 2); /* overtakes DRAINED */
    cr_assert_eq(qp(0, 0)->generation, 1);
    duo_transmit(0); /* says DRAINED */
    duo_drop(0);
    tell(QP_DRAINED, 0, 1);
    cr_assert_eq(qp(0, 0)->generation, 2);
    cr_assert(qp(0, 0)->peer.offered);
    duo_run_deaf(0, 6 * MS);
    placing_act(0);
    cr_assert_eq(placing_connected[0], 2, "with the offer that was kept");
}

Test(qp, one_that_the_peer_has_given_up_already_is_passed)
{
    placing_open_warm(1);
    core_qp_failed(duo_core[0], duo_flow[0], 0, 1, duo_now);
    placing_act(0);
    placing_drained(0);
    tell(QP_DRAINED, 0, 2);
    duo_lose(0);
    tell(QP_DRAINED, 0, 1);
    cr_assert_eq(qp(0, 0)->generation, 2);
    cr_assert_eq(qp(0, 0)->state, DATA_QP_DRAINED);
    duo_lose(0);
    cr_assert_eq(qp(0, 0)->generation, 3);
    cr_assert_eq(placing_opened[0], 1);
}

Test(qp, nonsense_about_paths_changes_nothing)
{
    placing_open_warm(1);
    unsigned actions = placing_opened[0] + placing_connected[0];
    for (unsigned what = QP_OFFER; what <= QP_DRAINED; what++) {
        tell((enum wire_qp_what)what, 1, 1);
        tell((enum wire_qp_what)what, 65535, 1);
        tell((enum wire_qp_what)what, 0, 3);
        tell((enum wire_qp_what)what, 0, UINT32_MAX);
    }
    for (unsigned i = 0; i < 100; i++) {
        tell(QP_OFFER, 0, 1);
        tell(QP_READY, 0, 1);
    }
    cr_assert_eq(placing_opened[0] + placing_connected[0], actions);
    cr_assert_eq(qp(0, 0)->state, DATA_QP_UP);
    cr_assert_eq(duo_flow[0]->qps.usable, 1);
    cr_assert_eq(duo_count(&duo_counters[0].rx_stale_frames), 12);
}

Test(qp, a_flood_of_drains_makes_one_queue_pair_per_pause)
{
    placing_open_warm(1);
    placing_drain_at_once = true;
    for (unsigned i = 0; i < 1000; i++) {
        tell(QP_DRAINED, 0, qp(0, 0)->generation);
        tell(QP_OFFER, 0, qp(0, 0)->generation);
        duo_lose(0);
        duo_now += 20 * US; /* 20 ms in all */
        core_expire(duo_core[0], duo_now);
        placing_act(0);
    }
    cr_assert_leq(placing_opened[0], 4);
    cr_assert_eq(placing_drain_count[0], 0);
}

Test(qp, answers_about_another_generation_are_ignored)
{
    placing_open_warm(1);
    for (unsigned generation = 0; generation < 4; generation += 1 + (generation == 0)) {
        core_qp_opened(duo_core[0], duo_flow[0], 0, generation, 1, 1, duo_now);
        core_qp_connected(duo_core[0], duo_flow[0], 0, generation, duo_now);
        core_qp_drained(duo_core[0], duo_flow[0], 0, generation, duo_now);
        core_qp_failed(duo_core[0], duo_flow[0], 0, generation, duo_now);
    }
    core_qp_failed(duo_core[0], duo_flow[0], 500, 1, duo_now);
    core_qp_drained(duo_core[0], duo_flow[0], 0, 1, duo_now); /* not asked for */
    placing_act(0);
    cr_assert_eq(qp(0, 0)->state, DATA_QP_UP);
    cr_assert_eq(placing_drain_count[0], 0);
}
