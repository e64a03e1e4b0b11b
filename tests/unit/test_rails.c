/* SPDX-License-Identifier: Apache-2.0 */
/* Flows with several rails: two NICs of an end, of which some do not get through. */
#include "duo.h"

TestSuite(rails, .timeout = 60);

enum { RAILS = 2, PATHS = 4 };

static bool dead[2][RAILS];          /* by sender: the rail swallows everything */
static unsigned sequenced[2][RAILS]; /* descriptors of chunks that left */
static unsigned others[2][RAILS];

static void open_rails(void)
{
    duo_defaults();
    duo_params.port_entropy = PATHS;
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < RAILS; i++)
            duo_setup[side].rails[i] = (struct rail_setup){
                .destination = 2 * i + side, .datagram_bytes = 1472, .nonce = 1111 * (2 * i + side + 1)};
        duo_setup[side].rail_count = RAILS;
    }
    duo_open_as(false);
    memset(dead, 0, sizeof dead);
    memset(sequenced, 0, sizeof sequenced);
    memset(others, 0, sizeof others);
}

static void say(unsigned side)
{
    struct tx_desc desc;
    while (core_tx(duo_core[side], &desc, duo_now)) {
        const struct rail *rail = &duo_flow[side]->rails[desc.rail];
        cr_assert_lt(desc.rail, RAILS);
        cr_assert_eq(desc.destination, 2u * desc.rail + side);
        cr_assert_eq(desc.path, PATHS * desc.rail + desc.port);
        cr_assert_lt(desc.port, PATHS);
        cr_assert(!desc.sequenced || probe_proven(&rail->probe), "a chunk for an address that has not answered");
        (desc.sequenced ? sequenced : others)[side][desc.rail]++;
        if (!dead[side][desc.rail])
            duo_build(side, &desc);
    }
    duo_events(side);
}

static void talk(void)
{
    for (unsigned round = 0; round < 10000; round++) {
        say(0);
        say(1);
        if (duo_queued[0] + duo_queued[1] == 0)
            return;
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
    cr_assert_fail("they never stop");
}

static void pass_message(uint64_t size)
{
    struct duo_request *recv = duo_recv(1, size), *send = duo_send(0, size);
    duo_run_with(900 * MS, talk);
    duo_assert_ended(recv, UCCL_OK, size);
    duo_assert_ended(send, UCCL_OK, size);
}

Test(rails, each_address_is_proven, .init = open_rails)
{
    pass_message(100 << 10);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(duo_proven[side], 1, "once for the flow");
        cr_assert_eq(duo_flow[side]->proven, RAILS);
    }
    cr_assert_gt(sequenced[0][0], 0);
}

/* The first rail does not get through: nothing but probes go there, and messages arrive over the other. */
Test(rails, one_that_answers_is_enough, .init = open_rails)
{
    dead[0][0] = dead[1][0] = true;
    pass_message(100 << 10);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(duo_proven[side], 1);
        cr_assert_eq(duo_flow[side]->proven, 1);
        cr_assert_eq(sequenced[side][0], 0);
        cr_assert_gt(sequenced[side][1], 0);
        cr_assert_gt(others[side][0], 0, "it is asked");
        cr_assert_leq(others[side][0], 12, "but not all the time: %u", others[side][0]);
        cr_assert_eq(duo_flow[side]->rails[0].rtt.srtt_ns, 0, "it has no round trip");
        cr_assert_gt(duo_flow[side]->rails[1].rtt.srtt_ns, 0);
    }
    cr_assert_eq(duo_count(&duo_counters[0].peers_dead), 0);
}

/* Each rail has paths of its own, at most 256 in all. */
Test(rails, share_the_numbers_of_paths)
{
    struct params params = param_defaults();
    for (unsigned rails = 1; rails <= CORE_RAILS_MAX; rails++) {
        struct flow_setup setup = {.rail_count = rails};
        params.port_entropy = 256;
        cr_assert_eq(rail_path_count(&params, &setup), 256 / rails);
        params.port_entropy = 5;
        cr_assert_eq(rail_path_count(&params, &setup), 5);
    }
}
