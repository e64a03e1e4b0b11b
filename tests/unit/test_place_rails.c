/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails that each have queue pairs which place: how messages are shared among them, and what becomes of them when their
 * rail is lost, and comes back.
 */
#include "placing_duo.h"

enum { PATHS = 2, RAILS = 2 };

static void open_rails(void)
{
    placing_setup(PATHS);
    duo_set_rails(RAILS);
    duo_open_as(false);
    placing_warm_up();
    cr_assert_eq(duo_flow[0]->proven, RAILS);
}

static uint64_t placed(void)
{
    return duo_count(&duo_counters[0].tx_placed);
}

static void drain_all(void)
{
    for (unsigned rounds = 0; rounds < 4; rounds++) {
        for (unsigned side = 0; side < 2; side++)
            while (placing_drain_count[side] > 0)
                placing_drained(side);
        placing_talk();
    }
}

/* Writes over a rail since placing_packet_count was 0. */
static unsigned writes_over(unsigned rail)
{
    unsigned count = 0;
    for (unsigned i = 0; i < placing_packet_count; i++)
        count += placing_packets[i].desc.kind == TX_PLACE && placing_packets[i].desc.rail == rail;
    return count;
}

static struct duo_request *pass(uint64_t bytes)
{
    struct duo_request *receive = duo_recv(1, bytes);
    placing_packet_count = 0;
    placing_talk();
    struct duo_request *send = duo_send(0, bytes);
    placing_run(50 * MS);
    duo_assert_arrived(send, receive, bytes);
    return receive;
}

/* Each with keys and queue pairs of its own. */
Test(place_rails, a_message_is_written_over_all_rails, .init = open_rails)
{
    cr_assert_eq(duo_flow[0]->qps.count, RAILS * PATHS);
    pass(1000000);
    for (unsigned rail = 0; rail < RAILS; rail++) {
        cr_assert_gt(writes_over(rail), 3, "rail %u", rail);
        for (unsigned i = 0; i < placing_packet_count; i++) {
            const struct tx_desc *desc = &placing_packets[i].desc;
            if (desc->on_path)
                cr_assert_eq(desc->destination, duo_flow[0]->rails[desc->path % RAILS].destination);
        }
    }
}

/* At once, at both ends; none is made on a rail that is lost. */
Test(place_rails, queue_pairs_go_with_their_rail, .init = open_rails)
{
    duo_recv(0, 1); /* rails are asked while something waits */
    for (unsigned lost = 0; lost < RAILS; lost++) {
        const struct rail *rail = &duo_flow[0]->rails[lost];
        duo_device(lost, false);
        cr_assert_eq(rail->qps_usable, 0);
        cr_assert_eq(duo_flow[0]->qps.usable, PATHS, "the other one's stay");
        placing_talk();
        cr_assert_eq(placing_drain_count[0], PATHS);
        for (unsigned i = 0; i < PATHS; i++)
            cr_assert_eq(placing_drains[0][i].path % RAILS, lost);
        drain_all();
        cr_assert_eq(duo_flow[1]->rails[lost].qps_usable, 0, "the peer drains them, too");
        cr_assert_eq(duo_flow[1]->qps.usable, PATHS);
        unsigned opened = placing_opened[0];
        for (unsigned i = 0; i < 2; i++) {
            pass(300000);
            cr_assert_eq(writes_over(lost), 0);
            cr_assert_gt(writes_over(!lost), 0, "the other one writes on");
            placing_run(500 * MS);
        }
        cr_assert_eq(placing_opened[0], opened, "nothing is opened on a lost rail");

        duo_device(lost, true);
        placing_run(500 * MS);
        cr_assert_eq(rail->qps_usable, PATHS);
        pass(1000000);
        cr_assert_gt(writes_over(lost), 0, "written again");
    }
}

/* A NIC writes only what both its ends reach. */
Test(place_rails, memory_that_some_nics_reach, .init = open_rails)
{
    static const struct {
        uint8_t from, to;
        bool writes[RAILS];
    } cases[] = {{3, 2, {false, true}}, {1, 3, {true, false}}, {2, 2, {false, true}}, {1, 2, {false, false}}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        duo_nics[0] = cases[i].from;
        duo_nics[1] = cases[i].to;
        pass(500000);
        for (unsigned rail = 0; rail < RAILS; rail++)
            cr_assert_eq(writes_over(rail) > 0, cases[i].writes[rail], "case %u, rail %u", i, rail);
    }
}

/* A pair that one end has found out of reach carries nothing; the queue pairs of the others have the same numbers. */
Test(place_rails, a_pair_that_one_end_lacks)
{
    placing_setup(PATHS);
    duo_set_rails(RAILS);
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].pairs = RAILS;
        for (unsigned i = 0; i < RAILS; i++)
            duo_setup[side].rails[i].pair = (uint8_t)i;
    }
    duo_setup[1].rails[0] = duo_setup[1].rails[1];
    duo_setup[1].rail_count = 1;
    duo_open_as(false);
    struct duo_request *receive = duo_recv(1, 100000);
    placing_talk();
    struct duo_request *send = duo_send(0, 100000);
    placing_run(50 * MS);
    duo_assert_arrived(send, receive, 100000);
    cr_assert_eq(duo_flow[1]->qps.usable, PATHS);
    cr_assert_eq(duo_flow[0]->qps.usable, PATHS);
    pass(1000000);
    cr_assert_eq(writes_over(0), 0);
    cr_assert_gt(writes_over(1), 3);
    for (unsigned i = 0; i < 2; i++) { /* and nobody waits for it to be drained */
        core_conn_close(duo_core[i], duo_conn[i][0], 100 * MS, duo_now);
        placing_run(50 * MS);
    }
}

/* A rail in doubt takes nothing new while another works: no writes either. */
Test(place_rails, nothing_is_written_over_a_rail_in_doubt, .init = open_rails)
{
    uint64_t before = placed();
    struct duo_request *receive = duo_recv(1, 100000);
    placing_talk();
    rail_suspect(&duo_flow[0]->rails[0]);
    struct duo_request *send = duo_send(0, 100000);
    duo_talk();
    cr_assert_gt(placed(), before);
    cr_assert_eq(writes_over(0), 0);
    placing_run(100 * MS);
    duo_assert_arrived(send, receive, 100000);
}

/* A write that is under way when its rail is lost goes again only when the peer has drained: it may still land. */
Test(place_rails, nothing_lands_late, .init = open_rails)
{
    struct duo_request *receive = duo_recv(1, 60000);
    placing_talk();
    struct duo_request *send = duo_send(0, 60000);
    duo_talk();
    cr_assert_gt(placing_packet_count, 0, "written, and under way");
    duo_device(0, false);
    while (placing_drain_count[0] > 0) /* ours */
        placing_drained(0);
    duo_run_with(200 * MS, duo_talk);
    cr_assert_not(receive->ended, "the peer's queue pairs are not drained yet");
    for (unsigned i = 0; i < placing_packet_count; i++)
        if (!placing_packets[i].gone)
            placing_lose(i);
    placing_packet_count = 0;
    drain_all();
    placing_run(100 * MS);
    duo_assert_arrived(send, receive, 60000);
}
