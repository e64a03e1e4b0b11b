/* SPDX-License-Identifier: Apache-2.0 */
/* What a flow knows of a rail, after that was cut, lossy or slow for a while: it is learned anew. */
#include "rails_duo.h"

TestSuite(rails_estimates, .timeout = 60);

/* One of these at a time, for a millisecond each. */
static void pass_messages(unsigned count, uint64_t size)
{
    for (unsigned i = 0; i < count; i++)
        pass_message_within(size, 1 * MS);
}

/*
 * An outage, or a queue that is gone, has left the second rail with a small window and a long round trip, and the first
 * one alone takes what the application has outstanding. The second is tried, and is used again.
 */
Test(rails_estimates, an_old_estimate_is_not_believed_for_ever, .init = open_proven)
{
    struct rail *second = &duo_flow[0]->rails[1];
    for (unsigned i = 0; i < 50; i++)
        rtt_sample(&second->rtt, 200 * US, 0, duo_now);
    cc_set_window(&second->cc, 1);
    second->bulk_ns = duo_now;
    pass_messages(20, 256 << 10);
    cr_assert_eq(sequenced[0][1], 0, "the first one is far faster");
    pass_messages(130, 256 << 10);
    cr_assert(sequenced[0][1] > 0 && sequenced[0][1] <= 8, "it is tried %u times", sequenced[0][1]);
    pass_messages(300, 256 << 10);
    memset(sequenced, 0, sizeof sequenced);
    for (unsigned i = 0; i < 10; i++) {
        duo_flow[0]->rails[0].rtt.srtt_ns = 100 * US; /* it has queues now */
        pass_messages(1, 768 << 10);
    }
    cr_assert_gt(sequenced[0][1], 10, "it gets what the first one would take longer for");
}

/* One that stays slow: few messages wait for it, however seldom they are. */
Test(rails_estimates, a_slow_rail_is_tried_rarely, .init = open_proven)
{
    struct rail *second = &duo_flow[0]->rails[1];
    for (unsigned i = 0; i < 500; i++) {
        second->rtt.srtt_ns = 20 * MS;
        cc_set_window(&second->cc, second->cc.chunk_bytes);
        pass_messages(1, 256 << 10);
    }
    cr_assert(sequenced[0][1] >= 1 && sequenced[0][1] <= 2, "after 640 ms: %u times", sequenced[0][1]);
}

/* A stall says nothing of the time behind it: the first try comes soon, the next one after what that has shown. */
Test(rails_estimates, a_stall_does_not_put_off_the_first_try, .init = open_proven)
{
    struct rail *second = &duo_flow[0]->rails[1];
    pass_messages(1, 768 << 10);
    cr_assert_gt(sequenced[0][1], 0);
    for (unsigned i = 0; i < 50; i++)
        rtt_sample(&second->rtt, 1000 * MS, 0, duo_now);
    cc_set_window(&second->cc, second->cc.chunk_bytes);
    memset(sequenced, 0, sizeof sequenced);
    for (unsigned i = 0; i < 100 && !sequenced[0][1]; i++)
        pass_messages(1, 256 << 10);
    cr_assert_eq(sequenced[0][1], 1, "%u", sequenced[0][1]);
    second->rtt.srtt_ns = 1000 * MS; /* it has shown that it is so */
    for (unsigned i = 0; i < 300; i++) {
        cc_set_window(&second->cc, second->cc.chunk_bytes);
        pass_messages(1, 256 << 10);
        second->rtt.srtt_ns = 1000 * MS;
    }
    cr_assert_eq(sequenced[0][1], 1, "%u", sequenced[0][1]);
}

/* The same, without a look at the bytes. */
static void pass_quickly(unsigned count, uint64_t size)
{
    for (unsigned i = 0; i < count; i++) {
        struct duo_request *recv = duo_recv(1, size), *send = duo_send(0, size);
        duo_run_with(1 * MS, talk);
        cr_assert(recv->ended && send->ended);
    }
}

/* A rail has lost something in each of many round trips. None is lost any more, and it takes its share again. */
static void expect_recovery(unsigned lossy)
{
    struct rail *rail = &duo_flow[0]->rails[lossy];
    for (unsigned i = 0; i < 12; i++)
        loss_count(rail, 1, duo_now += MS);
    cr_assert_eq(rail->cc.cwnd_bytes, rail->cc.chunk_bytes / 64);
    pass_quickly(400, 256 << 10);
    cr_assert_geq(rail->cc.cwnd_bytes, rail->cc.chunk_bytes, "still %lu bytes", (unsigned long)rail->cc.cwnd_bytes);
    memset(bulk, 0, sizeof bulk);
    pass_quickly(50, 256 << 10);
    cr_assert_gt(bulk[lossy], 25, "%u of %u chunks", bulk[lossy], bulk[0] + bulk[1]);
}

Test(rails_estimates, losses_of_the_second_are_forgotten, .init = open_proven)
{
    expect_recovery(1);
}

Test(rails_estimates, losses_of_the_first_are_forgotten, .init = open_proven)
{
    expect_recovery(0);
}

/* What comes back may be another way: how long a round trip took before says nothing. */
Test(rails_estimates, one_that_was_lost_is_tried_at_once, .init = open_proven)
{
    struct rail *second = &duo_flow[0]->rails[1];
    pass_quickly(1, 900 << 10);
    cr_assert_gt(bulk[1], 0);
    memset(bulk, 0, sizeof bulk);
    for (unsigned i = 0; i < 50; i++)
        rtt_sample(&second->rtt, 1000 * MS, 0, duo_now);
    duo_device(1, false);
    pass_quickly(30, 256 << 10);
    duo_device(1, true);
    pass_quickly(100, 256 << 10);
    cr_assert_eq(duo_count(&duo_counters[0].rails_returned), 1);
    cr_assert_gt(bulk[1], 50, "%u of %u chunks", bulk[1], bulk[0] + bulk[1]);
}

/* ---- credit ------------------------------------------------------------------------------------ */

static void open_credited(void)
{
    duo_defaults();
    duo_params.cc = CC_EQDS;
    duo_params.speculate_kb = 64;
    duo_params.port_entropy = PATHS;
    duo_set_rails(RAILS);
    duo_open_as(false);
    for (unsigned side = 0; side < 2; side++)
        core_set_link(duo_core[side], 100000);
    prove();
}

/* The first rail is gone, after round trips that grew to its end: a lost grant is asked for as the others allow. */
Test(rails_estimates, a_dead_rail_does_not_say_when_to_ask_for_credit, .init = open_credited)
{
    duo_flow[0]->rails[0].rtt.srtt_ns = 400 * MS;
    rail_cut(&duo_flow[0]->rails[0]);
    struct duo_request *recv = duo_recv(1, 4 << 20);
    duo_run_with(1 * MS, talk);
    struct duo_request *send = duo_send(0, 4 << 20);
    say(0);
    duo_drop(0);
    cr_assert_lt(duo_flow[0]->credit_tx.ask_at_ns, duo_now + 10 * MS);
    duo_run_with(900 * MS, talk);
    duo_assert_arrived(send, recv, 4 << 20);
}
