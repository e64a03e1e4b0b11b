/* SPDX-License-Identifier: Apache-2.0 */
/* Several rails of connections: what each carries, and how the others stand in for one whose connections break. */
#include "core/transmit.h"
#include "duo.h"

enum { RAILS = 2, PATHS = 2, RECORD = 60000, CHUNK = RECORD - WIRE_BULK_HEADER_BYTES };

TestSuite(channel_rails, .timeout = 60);

static void open_rails(void)
{
    duo_defaults();
    duo_params.port_entropy = PATHS;
    duo_params.nic_dead_ms = 50;
    duo_set_rails(RAILS);
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < RAILS; i++) {
            duo_setup[side].rails[i].reliable = true;
            duo_setup[side].rails[i].datagram_bytes = RECORD;
        }
        duo_setup[side].tx_window_bytes = duo_setup[side].rx_window_bytes = UINT64_C(1) << 40;
    }
    duo_open_as(false);
    duo_talk();
    for (unsigned i = 0; i < RAILS; i++)
        duo_connect_rail(i);
    duo_run(MS);
}

static unsigned rail_of(const struct duo_datagram *datagram)
{
    struct wire_packet packet;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    return packet.path / PATHS;
}

/* Records with a part of a large message that wait at side 0, by rail. */
static void look(unsigned bulk[RAILS])
{
    memset(bulk, 0, RAILS * sizeof *bulk);
    for (unsigned i = 0; i < duo_queued[0]; i++)
        bulk[rail_of(&duo_queue[0][i])] += wire_is_bulk(duo_queue[0][i].bytes, duo_queue[0][i].length);
}

/* All connections of the rail break, with what is under way on them. */
static void cut(unsigned rail)
{
    for (unsigned side = 0; side < 2; side++) {
        unsigned kept = 0;
        for (unsigned i = 0; i < duo_queued[side]; i++) {
            if (rail_of(&duo_queue[side][i]) == rail)
                free(duo_queue[side][i].bytes);
            else
                duo_queue[side][kept++] = duo_queue[side][i];
        }
        duo_queued[side] = kept;
    }
    for (unsigned side = 0; side < 2; side++)
        for (uint16_t path = 0; path < PATHS; path++)
            core_path_broken(duo_core[side], duo_flow[side], rail, path, duo_now);
}

/* Of a message that fits into what the kernel takes, either rail carries its part. */
Test(channel_rails, each_rail_carries_its_part, .init = open_rails)
{
    enum { CHUNKS = 20 };
    unsigned bulk[RAILS];
    for (unsigned message = 0; message < 3; message++) {
        struct duo_request *recv = duo_recv_ready(CHUNKS * CHUNK), *send = duo_send(0, CHUNKS * CHUNK);
        duo_transmit(0);
        look(bulk);
        cr_assert_eq(bulk[0] + bulk[1], CHUNKS);
        cr_assert(bulk[0] >= CHUNKS / 4 && bulk[1] >= CHUNKS / 4, "%u and %u", bulk[0], bulk[1]);
        duo_run(MS);
        duo_assert_arrived(send, recv, CHUNKS * CHUNK);
    }
    cr_assert_eq(duo_count(&duo_counters[0].rail_moves), 0);
    duo_assert_rest();
}

/* What was under way on the connections of one NIC goes over those of the other, at once; and the first one returns. */
Test(channel_rails, another_rail_stands_in, .init = open_rails)
{
    enum { CHUNKS = 12 };
    unsigned bulk[RAILS];
    for (unsigned rail = 0; rail < RAILS; rail++) {
        struct duo_request *recv = duo_recv_ready(CHUNKS * CHUNK), *send = duo_send(0, CHUNKS * CHUNK);
        struct duo_request *small = duo_post(0, 1, CORE_SEND, 100), *small_recv = duo_post(1, 1, CORE_RECV, 100);
        duo_transmit(0);
        cut(rail);
        duo_transmit(0);
        look(bulk);
        cr_assert_eq(bulk[rail], 0);
        cr_assert_eq(bulk[!rail], CHUNKS, "%u", bulk[!rail]);
        uint64_t begun_ns = duo_now;
        duo_run(MS);
        duo_assert_arrived(send, recv, CHUNKS * CHUNK);
        duo_assert_arrived(small, small_recv, 100);
        cr_assert_leq(duo_now - begun_ns, 2 * MS);
        for (unsigned side = 0; side < 2; side++) {
            cr_assert_eq(duo_count(&duo_counters[side].rails_lost), rail + 1);
            cr_assert_eq(duo_count(&duo_counters[side].rails_returned), rail);
        }
        duo_connect_rail(rail);
        recv = duo_recv_ready(CHUNK);
        send = duo_send(0, CHUNK);
        duo_run(100 * MS);
        duo_assert_arrived(send, recv, CHUNK);
        for (unsigned i = 0; i < 40 && duo_count(&duo_counters[0].rails_returned) <= rail; i++) {
            recv = duo_recv_ready(CHUNK); /* it is asked while something waits */
            send = duo_send(0, CHUNK);
            duo_run(10 * MS);
            duo_run(10 * MS);
            duo_assert_arrived(send, recv, CHUNK);
        }
        cr_assert_eq(duo_count(&duo_counters[0].rails_returned), rail + 1);
    }
    cr_assert_gt(duo_count(&duo_counters[0].rail_moves), 0);
}

/* The last answer that would bring a rail back comes when its connections have broken again. */
Test(channel_rails, an_answer_from_before_the_break_brings_nothing_back, .init = open_rails)
{
    struct rail *rail = &duo_flow[0]->rails[0];
    struct duo_request *recv = duo_recv_ready(100), *send = duo_send(0, 100);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
    cut(0);
    duo_connect_rail(0);
    for (unsigned i = 0; !(rail->answers == 2 && rail->try_count); i++) {
        cr_assert_lt(i, 1000);
        duo_send(0, 1);
        duo_recv(1, 1);
        duo_transmit(0);
        if (rail->answers == 2 && rail->try_count)
            break;
        duo_deliver(0);
        duo_pass(1);
        duo_now += MS;
        for (unsigned side = 0; side < 2; side++)
            core_expire(duo_core[side], duo_now);
    }
    duo_deliver(0);
    duo_transmit(1);
    for (uint16_t path = 0; path < PATHS; path++)
        core_path_broken(duo_core[0], duo_flow[0], 0, path, duo_now);
    duo_deliver(1);
    cr_assert_eq(rail->state, RAIL_DOWN);
    cr_assert_eq(duo_count(&duo_counters[0].rails_returned), 0);
}

/* One connection of many is no reason to leave a NIC. */
Test(channel_rails, a_rail_is_lost_with_its_last_connection, .init = open_rails)
{
    struct duo_request *recv = duo_recv_ready(100), *send = duo_send(0, 100);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
    core_path_broken(duo_core[0], duo_flow[0], 1, 0, duo_now);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
    core_path_broken(duo_core[0], duo_flow[0], 1, 1, duo_now);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
}

/* What rail 1 carries of a message stands still for so long, and arrives then. */
static void stall(uint64_t ns)
{
    enum { CHUNKS = 20 };
    static struct duo_datagram held[CHUNKS];
    unsigned count = 0, kept = 0;
    struct duo_request *recv = duo_recv_ready(CHUNKS * CHUNK), *send = duo_send(0, CHUNKS * CHUNK);
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        if (rail_of(&duo_queue[0][i]) == 1)
            held[count++] = duo_queue[0][i];
        else
            duo_queue[0][kept++] = duo_queue[0][i];
    }
    duo_queued[0] = kept;
    cr_assert_gt(count, 0);
    duo_run(ns);
    for (unsigned i = 0; i < count; i++)
        duo_queue[0][duo_queued[0]++] = held[i];
    duo_run(MS);
    duo_assert_arrived(send, recv, CHUNKS * CHUNK);
}

/* A cut that is too short to break connections leaves a long round trip behind. One chunk shows that it is over. */
Test(channel_rails, a_stall_is_forgotten, .init = open_rails)
{
    enum { CHUNKS = 4 };
    stall(100 * MS);
    unsigned bulk[RAILS], carried = 0;
    for (unsigned i = 0; i < 300; i++) {
        duo_recv_ready(CHUNKS * CHUNK);
        struct duo_request *send = duo_send(0, CHUNKS * CHUNK);
        duo_transmit(0);
        look(bulk);
        carried += i >= 250 ? bulk[1] : 0;
        duo_run(12 * MS);
        cr_assert(send->ended);
    }
    cr_assert_gt(carried, 50, "%u of 200 chunks, with a round trip of %lu us", carried,
                 (unsigned long)(duo_flow[0]->rails[1].rtt.srtt_ns / 1000));
}
