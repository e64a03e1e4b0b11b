/* SPDX-License-Identifier: Apache-2.0 */
/* Several NICs: rails of connections beside rails of datagrams. Rails 0 and 1 are of datagrams, 2 and 3 of connections.
 */
#include "core/transmit.h"
#include "duo.h"

enum { NICS = 2, RAILS = 2 * NICS, PATHS = 4, RECORD = 60000, LARGE = 20 * (RECORD - WIRE_BULK_HEADER_BYTES) };

TestSuite(channel_beside_rails, .timeout = 60);

static void open_apart(void)
{
    duo_defaults();
    duo_params.port_entropy = PATHS;
    duo_params.tcp_bulk_kb = 64;
    duo_params.nic_dead_ms = 50;
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < RAILS; i++)
            duo_setup[side].rails[i] = i < NICS
                                           ? (struct rail_setup){.destination = 2 * i + side, .datagram_bytes = 1472}
                                           : (struct rail_setup){.destination = 2 * i + side,
                                                                 .datagram_bytes = RECORD,
                                                                 .peer_datagram_bytes = RECORD,
                                                                 .reliable = true,
                                                                 .joins = true};
        duo_setup[side].rail_count = RAILS;
    }
    duo_open_as(false);
}

/* One event is told at a time: none is lost behind another. */
Test(channel_beside_rails, connections_are_wanted_while_a_rail_is_lost)
{
    open_apart();
    duo_talk();
    duo_device(1, false);
    flow_count_bulk(duo_flow[0], 16 << 20);
    duo_events(0);
    cr_assert(duo_lost[0] == 1 && duo_wanted[0] == 1, "%u, %u", duo_lost[0], duo_wanted[0]);
}

static void open_joined(void)
{
    open_apart();
    for (unsigned rail = NICS; rail < RAILS; rail++)
        duo_connect_rail(rail);
}

static unsigned rail_of(unsigned side, const struct duo_datagram *datagram)
{
    struct wire_packet packet;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    return flow_rail_of(duo_flow[side], packet.path)->index;
}

/* Drops what waits at a side over these rails (bits). */
static void lose(unsigned side, unsigned rails)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < duo_queued[side]; i++) {
        if (rails >> rail_of(side, &duo_queue[side][i]) & 1)
            free(duo_queue[side][i].bytes);
        else
            duo_queue[side][kept++] = duo_queue[side][i];
    }
    duo_queued[side] = kept;
}

static void cut(unsigned rail)
{
    for (unsigned side = 0; side < 2; side++) {
        lose(side, 1u << rail);
        for (uint16_t path = 0; path < PATHS; path++)
            core_path_broken(duo_core[side], duo_flow[side], rail, path, duo_now);
    }
}

struct pair {
    struct duo_request *send, *recv;
};

static struct pair begin(void)
{
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_run(MS);
    struct pair pair = {duo_send(0, LARGE), recv};
    duo_transmit(0);
    return pair;
}

static void finish(struct pair pair, uint64_t ns)
{
    duo_run(ns);
    duo_assert_arrived(pair.send, pair.recv, LARGE);
}

/* The rails (bits) over which parts of a large message wait at side 0. */
static unsigned rails_in_use(void)
{
    unsigned rails = 0;
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        if (wire_is_bulk(duo_queue[0][i].bytes, duo_queue[0][i].length))
            rails |= 1u << rail_of(0, &duo_queue[0][i]);
    }
    return rails;
}

enum { DATAGRAMS = 3, FIRST = 4, SECOND = 8 };

/* A rail whose round trip is not known yet, or is short, may take a whole message. */
static void expect_rails(unsigned rails)
{
    unsigned used = 0;
    for (unsigned i = 0; i < 4; i++) {
        struct pair pair = begin();
        used |= rails_in_use();
        finish(pair, 20 * MS);
    }
    cr_assert(rails == DATAGRAMS ? used && !(used & ~rails) : used == rails, "rails %#x, not %#x", used, rails);
}

Test(channel_beside_rails, large_messages_are_spread_over_all_of_them, .init = open_joined)
{
    struct pair pair = begin();
    unsigned count[RAILS] = {0};
    for (unsigned i = 0; i < duo_queued[0]; i++)
        count[rail_of(0, &duo_queue[0][i])]++;
    cr_assert_eq(count[0] + count[1], 0);
    cr_assert(count[2] == 10 && count[3] == 10, "%u and %u", count[2], count[3]);
    cr_assert_eq(duo_flow[0]->sent.flying_charge, 0);
    finish(pair, MS);
}

/* They join one by one, in any order; none was lost, and none is back. */
Test(channel_beside_rails, each_joins_with_its_first_connection)
{
    for (unsigned first = NICS; first < RAILS; first++) {
        open_apart();
        expect_rails(DATAGRAMS);
        duo_connect_rail(first);
        expect_rails(1u << first);
        duo_connect_rail(NICS + RAILS - 1 - first);
        expect_rails(FIRST | SECOND);
        for (unsigned side = 0; side < 2; side++) {
            cr_assert_eq(duo_count(&duo_counters[side].rails_lost), 0);
            cr_assert_eq(duo_count(&duo_counters[side].rails_returned), 0);
            cr_assert_eq(duo_lost[side] + duo_back[side], 0);
        }
    }
}

/* One whose connections never come up stands in for none. */
Test(channel_beside_rails, one_that_never_joins_takes_nothing, .init = open_apart)
{
    duo_connect_rail(3);
    expect_rails(SECOND);
    cut(3);
    expect_rails(DATAGRAMS);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
}

/* One that breaks before it has joined is as if it had not been there. */
Test(channel_beside_rails, one_may_break_before_it_joins)
{
    open_apart();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].nonce = duo_setup[side].rails[1].nonce = 77 + side;
    duo_open_as(false);
    duo_connect_rail(2);
    duo_connect_rail(3);
    cut(2);
    expect_rails(SECOND);
    duo_connect_rail(2);
    expect_rails(FIRST | SECOND);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
}

Test(channel_beside_rails, each_stands_in_for_the_other_and_datagrams_for_both, .init = open_joined)
{
    struct pair pair = begin();
    cut(2);
    finish(pair, 5 * MS);
    cr_assert_gt(duo_count(&duo_counters[0].rail_moves), 0);
    expect_rails(SECOND);
    pair = begin();
    cut(3);
    finish(pair, 300 * MS);
    expect_rails(DATAGRAMS);
    for (unsigned rail = NICS; rail < RAILS; rail++)
        duo_connect_rail(rail);
    for (unsigned side = 0; side < 2; side++)
        duo_post(side, 1, CORE_RECV, 10); /* something is expected */
    duo_run(300 * MS);
    expect_rails(FIRST | SECOND);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 2);
    cr_assert_eq(duo_count(&duo_counters[0].rails_returned), 2);
}

Test(channel_beside_rails, each_is_judged_by_its_own_losses, .init = open_joined)
{
    core_path_lossy(duo_core[0], duo_flow[0], 2, duo_now);
    expect_rails(SECOND);
    core_path_lossy(duo_core[0], duo_flow[0], 3, duo_now);
    expect_rails(DATAGRAMS);
    cr_assert_eq(duo_count(&duo_counters[0].tcp_lossy), 2);
    duo_params.dead_peer_ms = 1000000;
    duo_now += 10000 * MS;
    expect_rails(FIRST | SECOND);
}

static void fill(unsigned rail)
{
    for (uint16_t path = 0; path < PATHS; path++)
        duo_flow[0]->rails[rail].paths.paths[path].channel = CHANNEL_FULL;
}

/* Full connections of one rail: the other one takes all. Those of both hold large messages back. */
Test(channel_beside_rails, one_with_room_is_taken, .init = open_joined)
{
    fill(2);
    expect_rails(SECOND);
    fill(3);
    struct pair pair = begin();
    cr_assert_eq(rails_in_use(), 0);
    duo_connect_rail(2);
    finish(pair, MS);
}

/* What goes by a NIC vanishes, of which the kernel says nothing yet. The rail is asked, and the other one takes over.
 */
enum { NEVER = 1000 };
static int fills_after = NEVER; /* so many chunks have gone again: the connections of the first rail are full */

static bool arrives_without_first(uint64_t ns)
{
    struct pair pair = begin();
    uint64_t before = duo_count(&duo_counters[0].tlp_fired);
    for (uint64_t until_ns = duo_now + ns; duo_now < until_ns && !pair.send->ended; duo_now += MS / 4) {
        for (unsigned side = 0; side < 2; side++) {
            core_expire(duo_core[side], duo_now);
            if ((int)(duo_count(&duo_counters[0].tlp_fired) - before) >= fills_after)
                fill(2);
            duo_transmit(side);
            lose(side, FIRST);
        }
        for (unsigned side = 0; side < 2; side++)
            duo_deliver(side);
    }
    return pair.send->ended;
}

static void expect_notice(void)
{
    expect_rails(FIRST | SECOND);
    cr_assert(arrives_without_first(200 * MS));
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
    cr_assert_eq(duo_flow[0]->rails[2].state, RAIL_DOWN);
    cr_assert(duo_flow[0]->bulk == &duo_flow[0]->rails[3]);
}

Test(channel_beside_rails, one_that_stalls_is_noticed, .init = open_joined)
{
    expect_notice();
}

/* The same where no probe can leave, as its connections are full of what nobody reads. */
Test(channel_beside_rails, one_that_is_full_is_noticed, .init = open_joined)
{
    fills_after = 0;
    expect_notice();
}

/* They are full when a chunk is to go again, or a probe is to leave. */
Test(channel_beside_rails, one_that_becomes_full_is_noticed, .init = open_joined)
{
    fills_after = 1;
    expect_notice();
}

/* So is one by which nothing is in flight, but for which lost chunks wait. */
Test(channel_beside_rails, one_that_is_waited_for_is_noticed, .init = open_joined)
{
    struct rail *rail = &duo_flow[0]->rails[2];
    expect_rails(FIRST | SECOND);
    fill(3);
    struct pair pair = begin();
    lose(0, FIRST);
    for (unsigned i = 0; i < PATHS; i++)
        sent_lose_path(&duo_flow[0]->sent, &rail->paths.paths[i]);
    fill(2);
    duo_connect_rail(3);
    fills_after = 0;
    for (unsigned i = 0; i < 20 && !pair.send->ended; i++) {
        cr_assert(arrives_without_first(200 * MS));
        duo_run(10 * MS);
    }
    duo_assert_arrived(pair.send, pair.recv, LARGE);
}

/* Chunks of one rail have moved to another one, which was idle: that has time to deliver them. */
Test(channel_beside_rails, what_moves_has_its_time, .init = open_joined)
{
    expect_rails(FIRST | SECOND);
    duo_run(500 * MS);
    fill(3);
    struct pair pair = begin();
    for (unsigned i = 0; i < NICS; i++)
        cc_set_window(&duo_flow[0]->rails[i].cc, 0);
    lose(0, FIRST);
    duo_connect_rail(3);
    cut(2);
    duo_transmit(0);
    cr_assert_gt(duo_flow[0]->rails[3].flying_chunks, 0);
    uint64_t before = duo_count(&duo_counters[0].tlp_fired);
    core_expire(duo_core[0], duo_now += MS);
    cr_assert_eq(duo_count(&duo_counters[0].tlp_fired), before);
    cr_assert_not(duo_flow[0]->rails[3].asked);
    finish(pair, 100 * MS);
}

/* A peer that is stopped is no reason to ask: nothing is heard over another rail either. */
Test(channel_beside_rails, a_peer_that_stops_stalls_no_rail, .init = open_joined)
{
    expect_rails(FIRST | SECOND);
    struct pair pair = begin();
    for (uint64_t until_ns = duo_now + 300 * MS; duo_tick(0, until_ns);)
        duo_transmit(0);
    cr_assert_not(duo_flow[0]->rails[2].asked || duo_flow[0]->rails[3].asked);
    cr_assert_not_null(duo_flow[0]->bulk);
    finish(pair, 100 * MS);
}

/* A lost chunk is cut for a rail of datagrams that does not take it, and then goes over connections after all. */
Test(channel_beside_rails, what_datagrams_do_not_take_is_not_charged, .init = open_joined)
{
    struct pair pair = begin();
    struct rail *rail = &duo_flow[0]->rails[3];
    lose(0, SECOND);
    rail_suspect(rail);
    for (unsigned i = 0; i < NICS; i++)
        cc_set_window(&duo_flow[0]->rails[i].cc, 2000);
    cut(2);
    duo_transmit(0);
    cr_assert_eq(rails_in_use() & ~DATAGRAMS, 0);
    uint64_t charge = duo_flow[0]->sent.flying_charge;
    duo_transmit(0);
    rail_heard(rail, duo_now, duo_now);
    duo_transmit(0);
    cr_assert(rails_in_use() & SECOND);
    cr_assert_eq(duo_flow[0]->sent.flying_charge, charge);
    finish(pair, 300 * MS);
}
