/* SPDX-License-Identifier: Apache-2.0 */
/* Two rails, of which the first has queue pairs that place: what becomes of these when it is lost, and comes back. */
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

static void pass_message(void)
{
    struct duo_request *receive = duo_recv(1, 100000);
    placing_talk();
    struct duo_request *send = duo_send(0, 100000);
    placing_run(50 * MS);
    duo_assert_ended(send, UCCL_OK, 100000);
    duo_assert_ended(receive, UCCL_OK, 100000);
    placing_packet_count = 0;
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

/* At once, at both ends; none is made on a rail that is lost. */
Test(place_rails, queue_pairs_go_with_their_rail, .init = open_rails)
{
    uint64_t before = placed();
    cr_assert_gt(before, 0);
    core_rail_down(duo_core[0], duo_flow[0], 0, duo_now);
    cr_assert_not(data_qps_usable(&duo_flow[0]->qps));
    placing_talk();
    drain_all();
    for (unsigned side = 0; side < 2; side++)
        cr_assert(data_qps_quiet(duo_flow[side]), "side %u", side);
    unsigned opened = placing_opened[0];
    pass_message();
    placing_run(500 * MS);
    pass_message();
    cr_assert_eq(placed(), before, "as datagrams over the other rail");
    cr_assert_eq(placing_opened[0], opened, "nothing is opened on a lost rail");

    core_rail_up(duo_core[0], duo_flow[0], 0, duo_now);
    for (unsigned i = 0; i < 20 && placed() == before; i++)
        pass_message();
    cr_assert_gt(placed(), before, "written again");
}

/* The other rail's loss is none of theirs. */
Test(place_rails, queue_pairs_stay_when_another_rail_is_lost, .init = open_rails)
{
    core_rail_down(duo_core[0], duo_flow[0], 1, duo_now);
    placing_talk();
    cr_assert_eq(placing_drain_count[0] + placing_drain_count[1], 0);
    uint64_t before = placed();
    pass_message();
    cr_assert_gt(placed(), before);
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
    cr_assert_eq(placed(), before);
    placing_run(100 * MS);
    duo_assert_ended(receive, UCCL_OK, 100000);
    duo_assert_ended(send, UCCL_OK, 100000);
}

/* A write that is under way when its rail is lost goes again only when the peer has drained: it may still land. */
Test(place_rails, nothing_lands_late, .init = open_rails)
{
    struct duo_request *receive = duo_recv(1, 60000);
    placing_talk();
    struct duo_request *send = duo_send(0, 60000);
    duo_talk();
    cr_assert_gt(placing_packet_count, 0, "written, and under way");
    core_rail_down(duo_core[0], duo_flow[0], 0, duo_now);
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
    duo_assert_ended(receive, UCCL_OK, 60000);
    duo_assert_ended(send, UCCL_OK, 60000);
}
