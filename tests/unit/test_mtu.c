/* SPDX-License-Identifier: Apache-2.0 */
/* How large datagrams may be: the search for it, black holes that open under way, and what was too large by then. */
#include "duo.h"

TestSuite(mtu, .timeout = 20);

enum { BASE = CORE_DATAGRAM_BASE, JUMBO = 8972, LARGE = 1000000 };

static uint32_t hole[2];   /* larger datagrams of this side vanish; 0: none do */
static bool silent;        /* all vanish */
static bool some;          /* of the large ones, at random, a tenth vanishes */
static unsigned padded[2]; /* datagrams above the base that were sent */
static uint32_t largest[2];
static struct rng dice = {11};

static bool passes(unsigned side, size_t length)
{
    if (silent || (hole[side] && length > hole[side]))
        return false;
    return !some || length <= BASE || rng_below(&dice, 10);
}

/* False: they have nothing more to say. */
static bool talk_for(unsigned rounds)
{
    for (; rounds > 0; rounds--) {
        if (duo_transmit(0) + duo_transmit(1) == 0)
            return false;
        duo_now += 10 * US;
        for (unsigned side = 0; side < 2; side++) {
            for (unsigned i = 0; i < duo_queued[side]; i++) {
                size_t length = duo_queue[side][i].length;
                padded[side] += length > BASE;
                largest[side] = length > largest[side] ? (uint32_t)length : largest[side];
                if (passes(side, length))
                    duo_deliver_one(side, i);
            }
            duo_drop(side);
        }
    }
    return true;
}

static void talk(void)
{
    cr_assert_not(talk_for(10000), "they never stop");
}

static void open_as(uint32_t bytes, uint32_t base)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].datagram_bytes = bytes;
        duo_setup[side].rails[0].base_bytes = base;
    }
    duo_open_as(false);
}

static void open_searching(void)
{
    open_as(JUMBO, BASE);
}

static void open_trusting(void)
{
    open_as(JUMBO, 0);
}

static uint64_t holes_of(unsigned side)
{
    return duo_count(&duo_counters[side].mtu_holes);
}

/* One padded probe each way, and nothing waits for its echo. */
Test(mtu, begins_at_the_base, .init = open_searching)
{
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, BASE);
    cr_assert_geq(duo_transmit(0), 2, "the message leaves with it");
    talk();
    duo_assert_ended(recv, UCCL_OK, 100);
    duo_run_with(MS, talk);
    duo_assert_ended(send, UCCL_OK, 100);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(padded[side], 1);
        cr_assert_eq(largest[side], JUMBO);
        cr_assert_eq(duo_flow[side]->rails->datagram_bytes, JUMBO);
        cr_assert_eq(duo_holes[side], 0);
    }
    duo_assert_rest();
}

/* The echo of a padded probe is small, and one for one. */
Test(mtu, echoes_are_small, .init = open_searching)
{
    duo_transmit(0);
    cr_assert_eq(duo_queued[0], 1);
    duo_deliver_one(0, 0);
    duo_deliver_one(0, 0);
    duo_drop(0);
    duo_flow[1]->rails->probe.due &= (uint8_t)~PROBE_SIZE; /* its own probe is not what this is about */
    cr_assert_eq(duo_transmit(1), 1);
    cr_assert_leq(duo_queue[1][0].length, WIRE_HEADER_BYTES + 2 * WIRE_PROBE_BYTES);
}

/* The largest size that the search may find under a hole. */
static uint32_t under(uint32_t bytes, uint32_t limit)
{
    uint32_t found = BASE;
    for (uint32_t size = WIRE_BULK_HEADER_BYTES; size <= bytes; size += MTU_STEP_BYTES)
        found = size > found ? size : found;
    return bytes >= limit ? limit : found;
}

Test(mtu, search_finds_what_passes)
{
    static const uint32_t limits[] = {1472, 4096, JUMBO, CORE_TRAIN_BYTES_MAX};
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned k = 0; k < 5; k++) {
            uint32_t bytes = BASE + (uint32_t)((uint64_t)(limits[i] - BASE) * k / 4);
            memset(duo_holes, 0, sizeof duo_holes);
            padded[0] = 0;
            open_as(limits[i], BASE);
            hole[0] = bytes;
            struct duo_request *send = duo_send(0, LARGE), *recv = duo_recv(1, LARGE);
            duo_run_with(5 * MS, talk);
            duo_assert_ended(recv, UCCL_OK, LARGE); /* whatever comes of the search */
            duo_run_with(2000 * MS, talk);
            duo_assert_ended(send, UCCL_OK, LARGE);
            uint32_t found = under(bytes, limits[i]);
            cr_assert_eq(duo_flow[0]->rails->datagram_bytes, found, "%u and not %u below %u of %u",
                         duo_flow[0]->rails->datagram_bytes, found, bytes, limits[i]);
            cr_assert_eq(duo_flow[1]->rails->datagram_bytes, limits[i], "the other direction has no hole");
            cr_assert_eq(duo_holes[0], found < limits[i]);
            cr_assert_eq(duo_passing[0], found < limits[i] ? found : duo_passing[0]);
            cr_assert_eq(duo_holes[1], 0);
            duo_assert_rest();
        }
    }
}

/* Where nothing passes at all, nothing is found out, and the search ends. */
Test(mtu, silence_says_nothing, .init = open_searching)
{
    silent = true;
    duo_run_with(30000 * MS, talk);
    cr_assert_eq(duo_holes[0], 0);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, BASE);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX, "an idle flow has no timer");
    cr_assert_eq(padded[0], MTU_SILENT_TRIES);
    duo_assert_rest();
}

/* An outage during the search: it begins anew when that is over, and not after a pause that each failure doubles. */
static void expect_size_after(uint64_t outage_ns, bool used)
{
    silent = true;
    duo_params.dead_peer_ms = 3600000;
    struct duo_request *recv = used ? duo_recv(0, 100) : NULL;
    duo_run_with(outage_ns, talk);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, BASE);
    silent = false;
    recv = recv ? recv : duo_recv(0, 100);
    struct duo_request *send = duo_send(1, 100);
    duo_run_with(2000 * MS, talk);
    duo_assert_arrived(send, recv, 100);
    for (unsigned side = 0; side < 2; side++)
        cr_assert_eq(duo_flow[side]->rails->datagram_bytes, JUMBO);
}

Test(mtu, search_goes_on_after_an_outage, .init = open_searching)
{
    expect_size_after(6000 * MS, false);
    duo_assert_rest();
}

Test(mtu, search_goes_on_after_a_long_outage_of_a_flow_in_use, .init = open_searching)
{
    expect_size_after(200000 * MS, true);
}

/* A hole heals: an idle flow does not look, one in use does, more and more rarely. */
Test(mtu, search_begins_again, .init = open_searching)
{
    hole[0] = 2000;
    duo_run_with(5000 * MS, talk);
    uint32_t found = duo_flow[0]->rails->datagram_bytes;
    cr_assert_eq(found, under(2000, JUMBO));
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
    unsigned before = padded[0];
    duo_run_with(60000 * MS, talk);
    cr_assert_eq(padded[0], before, "nobody uses it");
    duo_recv(0, 100); /* the peer is awaited */
    duo_run_with(2000 * MS, talk);
    cr_assert_gt(padded[0], before);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, found);
    before = padded[0];
    duo_run_with(15000 * MS, talk);
    cr_assert_eq(padded[0], before, "the pause has doubled");
    hole[0] = 0;
    duo_run_with(10000 * MS, talk);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, JUMBO);
    cr_assert_eq(duo_holes[0], 1, "it is told once");
}

/* Large datagrams begin to vanish: what is under way arrives in pieces, soon, and once. */
Test(mtu, black_hole, .init = open_trusting)
{
    struct duo_request *sends[4], *recvs[4];
    for (unsigned i = 0; i < 4; i++) {
        sends[i] = duo_send(0, LARGE);
        recvs[i] = duo_recv(1, LARGE);
    }
    talk_for(3);
    cr_assert_not(sends[0]->ended);
    hole[0] = 1400;
    duo_run_with(1000 * MS, talk);
    for (unsigned i = 0; i < 4; i++)
        duo_assert_arrived(sends[i], recvs[i], LARGE);
    cr_assert_eq(holes_of(0), 1);
    cr_assert_eq(holes_of(1), 0);
    cr_assert_gt(duo_count(&duo_counters[1].rx_images), 0);
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), 0);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    duo_run_with(1000 * MS, talk);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, 1344);
    cr_assert_eq(duo_holes[0], 1);
    duo_assert_rest();
}

/* Chunks whose last datagram is small get that across, again and again: no sign that the others do. */
Test(mtu, black_hole_with_small_ends, .init = open_trusting)
{
    enum { BYTES = JUMBO + 600, MESSAGES = 15 };
    struct duo_request *sends[MESSAGES], *recvs[MESSAGES];
    hole[0] = 1400;
    for (unsigned i = 0; i < MESSAGES; i++) {
        sends[i] = duo_send(0, BYTES);
        recvs[i] = duo_recv(1, BYTES);
        duo_run_with(10 * MS, talk);
    }
    cr_assert_eq(holes_of(0), 1);
    duo_run_with(1000 * MS, talk);
    for (unsigned i = 0; i < MESSAGES; i++)
        duo_assert_arrived(sends[i], recvs[i], BYTES);
    duo_assert_rest();
}

/* Small messages go on through a hole that has just opened. */
Test(mtu, small_ones_pass, .init = open_trusting)
{
    struct duo_request *big = duo_recv(1, LARGE), *ping = NULL;
    duo_send(0, LARGE);
    talk_for(3);
    hole[0] = 1400;
    for (unsigned i = 0; i < 20; i++) {
        ping = duo_post(1, 1, CORE_RECV, 8);
        duo_post(0, 1, CORE_SEND, 8);
        uint64_t since_ns = duo_now;
        while (!ping->ended && duo_now - since_ns < 200 * MS)
            duo_run_with(5 * MS, talk);
        cr_assert(ping->ended, "ping %u waits", i);
    }
    duo_run_with(500 * MS, talk);
    cr_assert(big->ended);
    duo_assert_rest();
}

/* When all is lost, or some of what is large, there is no hole. */
Test(mtu, losses_are_no_hole, .init = open_trusting)
{
    for (unsigned i = 0; i < 10; i++) {
        struct duo_request *recv = duo_recv(1, LARGE);
        duo_send(0, LARGE);
        talk_for(3);
        silent = true;
        duo_run_with(200 * MS, talk);
        silent = false;
        some = i % 2;
        duo_run_with(3000 * MS, talk);
        cr_assert(recv->ended);
    }
    cr_assert_eq(holes_of(0), 0);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, JUMBO);
}

/* The route becomes narrower, or wider; the peer's own limit stays. */
/* A round of losses; afterwards an ack of something small, which was sent before it or in it. */
static void lose_round(bool in_it)
{
    struct flow *flow = duo_flow[0];
    struct sent_acked acked = {.chunks = 1, .small_ns = duo_now};
    duo_now += MS;
    duo_core[0]->now_ns = flow->rails->large_lost_ns = duo_now;
    mtu_on_losses(flow->rails, true, duo_now);
    if (in_it)
        acked.small_ns = duo_now;
    mtu_on_ack(flow->rails, &acked);
}

/* Acks of small datagrams come late, while all vanishes: they do not show that the path lives. */
Test(mtu, late_acks_of_small_ones, .init = open_trusting)
{
    for (unsigned i = 0; i < 10; i++)
        lose_round(false);
    for (unsigned i = 0; i < MTU_TRIES; i++)
        lose_round(true);
    cr_assert_eq(holes_of(0), 0);
    lose_round(true);
    cr_assert_eq(holes_of(0), 1);
}

Test(mtu, route_changes)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].datagram_bytes = 4000;
        duo_setup[side].rails[0].peer_datagram_bytes = 4000;
        duo_setup[side].rails[0].base_bytes = BASE;
    }
    duo_open_as(false);
    duo_run_with(MS, talk);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, 4000);
    struct duo_request *send = duo_send(0, LARGE), *recv = duo_recv(1, LARGE);
    talk_for(3);
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, 700);
    hole[0] = 700;
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, 700);
    duo_run_with(500 * MS, talk);
    duo_assert_arrived(send, recv, LARGE);
    hole[0] = 0;
    largest[0] = 0;
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, JUMBO);
    duo_run_with(MS, talk);
    cr_assert_eq(largest[0], 4000, "the peer takes no more");
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, 4000);
    cr_assert_eq(duo_holes[0], 0);
    duo_assert_rest();
}

/* The NIC takes a fragment, or a probe, only now and then: none is left out. */
Test(mtu, nic_refuses, .init = open_trusting)
{
    struct duo_request *send = duo_send(0, LARGE), *recv = duo_recv(1, LARGE);
    talk_for(3);
    hole[0] = 1400;
    for (unsigned i = 0; i < 20000 && !send->ended; i++) {
        duo_refuse = rng_below(&dice, 2);
        duo_transmit(0);
        duo_refuse = false;
        struct tx_desc desc;
        for (unsigned n = rng_below(&dice, 8); n > 0 && core_tx(duo_core[0], &desc, duo_now); n--)
            duo_build(0, &desc);
        duo_now += 10 * US;
        for (unsigned k = 0; k < duo_queued[0]; k++)
            if (passes(0, duo_queue[0][k].length))
                duo_deliver_one(0, k);
        duo_drop(0);
        duo_pass(1);
        duo_tick(0, duo_now + 20 * MS);
        duo_tick(1, duo_now);
        duo_events(0);
    }
    duo_assert_arrived(send, recv, LARGE);
    cr_assert_eq(holes_of(0), 1);
    cr_assert_eq(duo_count(&duo_counters[0].tx_images), duo_count(&duo_counters[1].rx_images));
}

/* A cancelled send is not read by the fragments of its chunks. */
Test(mtu, cancelled_under_way, .init = open_trusting)
{
    struct duo_request *send = duo_send(0, LARGE), *recv = duo_recv(1, LARGE);
    struct tx_desc desc;
    talk_for(3);
    hole[0] = 1400;
    while (duo_flow[0]->image.left == 0) {
        cr_assert(!send->ended);
        cr_assert(duo_tick(0, duo_now + 1000 * MS) || duo_tick(1, duo_now + 1000 * MS));
        duo_pass(1);
        if (core_tx(duo_core[0], &desc, duo_now) && !desc.fragment) {
            duo_build(0, &desc);
            for (unsigned i = 0; i < duo_queued[0]; i++)
                if (passes(0, duo_queue[0][i].length))
                    duo_deliver_one(0, i);
            duo_drop(0);
        }
    }
    core_cancel(duo_core[0], &send->msg, duo_now);
    duo_events(0);
    cr_assert(send->ended, "its payload is not needed any more");
    duo_lose(0);
    duo_run_with(500 * MS, talk);
    cr_assert(send->ended && recv->ended);
    cr_assert_eq(duo_flow[0]->image.left, 0);
    duo_assert_rest();
}
