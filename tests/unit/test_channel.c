/* SPDX-License-Identifier: Apache-2.0 */
/* Rails whose paths are connections: which path carries what, and what happens when one breaks or is full. */
#include "core/transmit.h"
#include "duo.h"

enum { PATHS = 4, RECORD = 60000 };

TestSuite(channel, .timeout = 60);

static void open_down(void)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].reliable = true;
        duo_setup[side].rails[0].datagram_bytes = RECORD;
        duo_setup[side].tx_window_bytes = duo_setup[side].rx_window_bytes = UINT64_C(1) << 40;
    }
    duo_params.port_entropy = PATHS;
    duo_open_as(false);
}

static void give_room(unsigned side)
{
    for (uint16_t path = 0; path < PATHS; path++)
        core_path_room(duo_core[side], duo_flow[side], 0, path, duo_now);
}

static void open_up(void)
{
    open_down();
    give_room(0);
    give_room(1);
}

/* What waits at a side, by path. */
struct waiting {
    unsigned records[PATHS], bulk[PATHS], all;
};

static uint16_t path_of(const struct duo_datagram *datagram)
{
    struct wire_packet packet;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    cr_assert_lt(packet.path, PATHS);
    return packet.path;
}

static struct waiting look(unsigned side)
{
    struct waiting out = {0};
    for (unsigned i = 0; i < duo_queued[side]; i++) {
        const struct duo_datagram *datagram = &duo_queue[side][i];
        uint16_t path = path_of(datagram);
        out.records[path]++;
        out.bulk[path] += wire_is_bulk(datagram->bytes, datagram->length);
        out.all++;
    }
    return out;
}

/* The connection breaks with all that is under way on it. */
static void cut(uint16_t path)
{
    for (unsigned side = 0; side < 2; side++) {
        unsigned kept = 0;
        for (unsigned i = 0; i < duo_queued[side]; i++) {
            if (path_of(&duo_queue[side][i]) == path)
                free(duo_queue[side][i].bytes);
            else
                duo_queue[side][kept++] = duo_queue[side][i];
        }
        duo_queued[side] = kept;
    }
    for (unsigned side = 0; side < 2; side++)
        core_path_broken(duo_core[side], duo_flow[side], 0, path, duo_now);
}

static void mend(uint16_t path)
{
    for (unsigned side = 0; side < 2; side++)
        core_path_room(duo_core[side], duo_flow[side], 0, path, duo_now);
}

Test(channel, nothing_leaves_before_a_path_is_up, .init = open_down)
{
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    cr_assert_eq(duo_transmit(0), 0);
    core_path_room(duo_core[0], duo_flow[0], 0, 3, duo_now);
    cr_assert_eq(duo_transmit(0), 1, "path 0 is not there yet: another carries what is its");
    cr_assert_eq(look(0).records[3], 1);
    duo_deliver(0);
    give_room(1);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
}

Test(channel, small_and_control_have_a_path_of_their_own, .init = open_up)
{
    enum { SIZE = 20 * (RECORD - WIRE_BULK_HEADER_BYTES) };
    struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
    struct duo_request *small = duo_post(0, 1, CORE_SEND, 50), *small_recv = duo_post(1, 1, CORE_RECV, 50);
    duo_transmit(0);
    struct waiting waiting = look(0);
    cr_assert_eq(waiting.bulk[0], 0);
    cr_assert_eq(waiting.records[0], 1);
    cr_assert_eq(waiting.bulk[1] + waiting.bulk[2] + waiting.bulk[3], 20);
    duo_run(MS);
    duo_assert_arrived(send, recv, SIZE);
    duo_assert_arrived(small, small_recv, 50);
    duo_assert_rest();
}

Test(channel, paths_take_bulk_in_turns, .init = open_up)
{
    enum { TURN = 64, SIZE = (TURN + 30) * (RECORD - WIRE_BULK_HEADER_BYTES) };
    struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
    duo_transmit(0);
    struct waiting turn = look(0);
    cr_assert(turn.all == TURN && turn.bulk[1] == TURN, "the window is as long as a turn");
    duo_deliver(0);
    duo_pass(1);
    duo_transmit(0);
    turn = look(0);
    cr_assert_eq(turn.bulk[2], 30);
    duo_run(MS);
    duo_assert_arrived(send, recv, SIZE);
}

Test(channel, a_full_path_loses_its_turn, .init = open_up)
{
    enum { SIZE = 200 * (RECORD - WIRE_BULK_HEADER_BYTES) };
    struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
    struct tx_desc desc;
    cr_assert(core_tx(duo_core[0], &desc, duo_now));
    cr_assert_eq(desc.port, 1);
    core_tx_failed(duo_core[0], &desc, duo_now);
    for (unsigned records = 0; records < 10; records++) {
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        cr_assert_eq(desc.port, 2, "record %u", records);
        if (records == 0) /* the one that was refused, and no more, waits for this */
            core_path_room(duo_core[0], duo_flow[0], 0, 1, duo_now);
    }
    cut(2); /* nobody has written what was made */
    mend(2);
    duo_run(MS);
    duo_assert_arrived(send, recv, SIZE);
}

/* No timer sends anything again, however long the peer takes; a probe asks. */
Test(channel, time_loses_nothing, .init = open_up)
{
    enum { SIZE = 10 * RECORD };
    struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
    unsigned records = duo_transmit(0);
    uint64_t until_ns = duo_now + 900 * MS;
    while (duo_tick(0, until_ns))
        duo_transmit(0);
    for (unsigned i = records; i < duo_queued[0]; i++) {
        struct wire_packet packet;
        cr_assert(wire_parse(duo_queue[0][i].bytes, duo_queue[0][i].length, crc32c_portable, &packet));
        cr_assert_not(packet.flags & WIRE_SEQUENCED);
    }
    cr_assert_gt(duo_queued[0], records, "the peer is asked whether it lives");
    cr_assert_eq(duo_count(&duo_counters[0].retransmits) + duo_count(&duo_counters[0].lost_chunks), 0);
    duo_deliver(0);
    duo_run(MS);
    duo_assert_arrived(send, recv, SIZE);
    cr_assert_eq(duo_count(&duo_counters[0].rto_fired) + duo_count(&duo_counters[0].tlp_fired), 0);
}

/* What a broken connection has swallowed goes again at once, over others. */
Test(channel, a_broken_connection_costs_no_time, .init = open_up)
{
    enum { SIZE = 12 * (RECORD - WIRE_BULK_HEADER_BYTES) };
    for (uint16_t path = 0; path < PATHS; path++) {
        struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE), *small = duo_send(0, 10);
        struct duo_request *small_recv = duo_recv(1, 10);
        duo_transmit(0);
        struct waiting before = look(0);
        cr_assert_gt(before.records[path], 0);
        cut(path);
        duo_transmit(0);
        struct waiting after = look(0);
        cr_assert_eq(after.records[path], 0);
        cr_assert_geq(after.all, before.all, "an ack may go, too");
        uint64_t begun_ns = duo_now;
        duo_run(MS);
        duo_assert_arrived(send, recv, SIZE);
        duo_assert_arrived(small, small_recv, 10);
        cr_assert_leq(duo_now - begun_ns, 2 * MS);
        mend(path);
        duo_talk();
    }
    duo_assert_rest();
    cr_assert_eq(duo_count(&duo_counters[0].rto_fired), 0);
}

/* Acks are not repeated by themselves; a broken connection may have swallowed some. */
Test(channel, acks_that_were_lost_are_said_again, .init = open_up)
{
    for (unsigned late = 0; late < 2; late++) { /* path 0 is back at once, or the others must do */
        struct duo_request *recv = duo_recv_ready(9 * RECORD), *send = duo_send(0, 9 * RECORD);
        unsigned records = duo_transmit(0);
        uint64_t acked = duo_flow[0]->sent.cumulative;
        for (unsigned i = 0; i < 4; i++) /* UCCL_ACK_EVERY */
            duo_deliver_one(0, i);
        cr_assert_eq(duo_transmit(1), 1);
        cr_assert_eq(look(1).records[0], 1);
        cut(0);
        cr_assert_eq(duo_queued[1], 0);
        if (!late)
            mend(0);
        cr_assert_eq(duo_transmit(1), 1);
        duo_deliver(1);
        cr_assert_geq(duo_flow[0]->sent.cumulative, acked + 4);
        for (unsigned i = 4; i < records; i++)
            duo_deliver_one(0, i);
        duo_drop(0);
        duo_run(MS);
        duo_assert_arrived(send, recv, 9 * RECORD);
        mend(0);
    }
    duo_assert_rest();
}

/* A record that has overtaken another one is refused; the ack names its packet, and not its chunk. */
Test(channel, what_is_refused_is_named, .init = open_up)
{
    unsigned part_ended;
    struct wire_packet packet;
    const struct wire_frame *frame;
    uint8_t data[WIRE_BULK_HEADER_BYTES + 8] = {0};
    core_part_conn_open(duo_core[1], duo_zeroed(core_part_conn_size(&duo_setup[1])), duo_flow[1], &duo_setup[1], 100,
                        101, &part_ended, duo_now);
    struct tx_desc desc = {.kind = TX_BULK,
                           .count = 1,
                           .sequenced = true,
                           .path = 2,
                           .path_seq = 5,
                           .token = duo_setup[0].tx_token,
                           .bulk_last = 8,
                           .conn_id = 100,
                           .msg_total = 8,
                           .stripes = 2};
    wire_bulk_header(&desc, 0, 0, crc32c_portable, data);
    cr_assert_not(core_rx(duo_core[1], data, sizeof data, false, duo_now), "the part is not known yet");
    cr_assert_eq(duo_count(&duo_counters[1].rx_refused), 1);
    cr_assert_eq(duo_transmit(1), 1);
    cr_assert(wire_parse(duo_queue[1][0].bytes, duo_queue[1][0].length, crc32c_portable, &packet));
    frame = wire_next_frame(&packet);
    cr_assert_eq(frame->kind, FRAME_ACK);
    cr_assert_eq(frame->ack.cumulative, 0);
    cr_assert_eq(frame->ack.path_count, 1);
    cr_assert(frame->ack.paths[0].path == 2 && frame->ack.paths[0].path_seq == 5);
    duo_drop(1);
}

/* And goes again. */
Test(channel, what_is_refused_goes_again, .init = open_up)
{
    struct duo_request *recv = duo_recv_ready(3 * RECORD), *send = duo_send(0, 3 * RECORD);
    unsigned records = duo_transmit(0);
    struct wire_packet packet;
    cr_assert(wire_parse(duo_queue[0][0].bytes, duo_queue[0][0].length, crc32c_portable, &packet));
    struct wire_ack ack = {.number = 1000,
                           .cumulative = packet.seq,
                           .window_kb = 1 << 20,
                           .path_count = 1,
                           .paths[0] = {.path = packet.path, .path_seq = packet.path_seq}};
    duo_now += 100 * US;
    ack.paths[0].time_stamp = packet.time_stamp;
    uint8_t bytes[CORE_DATAGRAM_MIN];
    unsigned length = WIRE_HEADER_BYTES + wire_put_ack(bytes + WIRE_HEADER_BYTES, &ack);
    wire_set_header_length(bytes, (uint16_t)length);
    struct tx_desc desc = {
        .kind = TX_FRAMES, .count = 1, .token = duo_setup[1].tx_token, .datagram_bytes = length, .last_bytes = length};
    wire_seal(&desc, 0, bytes, length, crc32c_portable);
    core_rx(duo_core[0], bytes, length, false, duo_now);
    cr_assert_eq(duo_transmit(0), records + 1, "at once");
    duo_deliver(0);
    duo_run(MS);
    duo_assert_arrived(send, recv, 3 * RECORD);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 1);
}

/* The NIC takes no more on one path: others go on, and it goes on once there is room. */
Test(channel, a_full_path_holds_up_no_other, .init = open_up)
{
    enum { SIZE = 30 * RECORD };
    struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
    struct tx_desc desc;
    for (unsigned path = 1; path < PATHS; path++) { /* each in turn */
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        cr_assert(desc.kind == TX_BULK && desc.port != 0);
        core_tx_failed(duo_core[0], &desc, duo_now);
    }
    cr_assert_not(core_tx(duo_core[0], &desc, duo_now), "all that carry bulk are full");
    struct duo_request *small = duo_post(0, 2, CORE_SEND, 50), *small_recv = duo_post(1, 2, CORE_RECV, 50);
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(look(0).records[0], 1);
    duo_run(MS);
    duo_assert_arrived(small, small_recv, 50);
    core_path_room(duo_core[0], duo_flow[0], 0, 2, duo_now);
    duo_transmit(0);
    cr_assert_eq(look(0).bulk[2], look(0).all);
    cr_assert_gt(look(0).all, 0);
    duo_run(MS);
    duo_assert_arrived(send, recv, SIZE);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 0);
}

/* Ranges of a striped message are records that leave every flow something to do. */
Test(channel, ranges_are_shares_of_a_message)
{
    static const struct {
        uint64_t size;
        uint32_t bytes;
    } cases[] = {{128 << 10, 64 << 10}, {256 << 10, 64 << 10}, {1 << 20, 64 << 10}, {2 << 20, 128 << 10}};
    duo_defaults();
    duo_setup[0].rails[0].reliable = duo_setup[1].rails[0].reliable = true;
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = CORE_RECORD_BYTES_MAX;
    duo_open_as(false);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct core_msg msg = {.size_bytes = cases[i].size};
        cr_assert_eq(tx_chunk_bytes(duo_flow[0], &msg), cases[i].bytes);
    }
    struct core_msg msg = {.size_bytes = UINT64_C(1) << 32};
    cr_assert_eq(tx_chunk_bytes(duo_flow[0], &msg), 256 << 10);
}

/*
 * Connections that break faster than a window drains: the first break costs nothing, from the second on one record is
 * under way, and that gets through. Acks give all of it back.
 */
Test(channel, breaks_without_an_ack_leave_one_record_under_way, .init = open_up)
{
    enum { CHUNKS = 40, SIZE = CHUNKS * (RECORD - WIRE_BULK_HEADER_BYTES) };
    static const unsigned expected[] = {CHUNKS, CHUNKS, 1, 1, 1};
    cut(2);
    cut(3);
    for (unsigned message = 0; message < 2; message++) {
        struct duo_request *recv = duo_recv_ready(SIZE), *send = duo_send(0, SIZE);
        for (unsigned round = 0; round < sizeof expected / sizeof *expected; round++) {
            duo_transmit(0);
            cr_assert_eq(look(0).bulk[1], expected[round], "message %u, round %u: %u", message, round, look(0).bulk[1]);
            cut(1);
            mend(1);
        }
        duo_run(MS);
        duo_assert_arrived(send, recv, SIZE);
    }
}

/* Nothing can be asked of a peer whose connections are all broken: that counts as asked. */
Test(channel, a_peer_without_connections_is_dead_in_time, .init = open_up)
{
    struct duo_request *recv = duo_recv_ready(5 * RECORD), *send = duo_send(0, 5 * RECORD);
    (void)recv;
    duo_transmit(0);
    for (uint16_t path = 0; path < PATHS; path++)
        cut(path);
    uint64_t begun_ns = duo_now, until_ns = duo_now + 3000 * MS;
    for (unsigned ticks = 0; !send->ended && duo_tick(0, until_ns); ticks++) {
        cr_assert_eq(duo_transmit(0), 0);
        cr_assert_lt(ticks, 200, "a timer that fires over and over");
    }
    cr_assert_eq(send->status, UCCL_EPEERDEAD);
    cr_assert(duo_now - begun_ns >= 1000 * MS && duo_now - begun_ns <= 1400 * MS);
    core_path_room(duo_core[0], duo_flow[0], 0, 1, duo_now); /* too late for all but this: */
    cr_assert_eq(duo_transmit(0), 1, "the farewell");
    core_path_broken(duo_core[0], duo_flow[0], 0, 1, duo_now);
    core_path_room(duo_core[0], duo_flow[0], 0, 1, duo_now);
    cr_assert_eq(duo_transmit(0), 1, "it is said once");
}

/* Who waits for a message alone knows as soon as its connections are broken that no probe can be answered. */
static void is_dead_in_time(struct duo_request *recv)
{
    uint64_t begun_ns = duo_now;
    while (!recv->ended && duo_tick(0, begun_ns + 3000 * MS))
        cr_assert_eq(duo_transmit(0), 0);
    cr_assert_eq(recv->status, UCCL_EPEERDEAD);
    uint64_t took_ns = duo_now - begun_ns;
    cr_assert(took_ns >= 1000 * MS && took_ns <= 1010 * MS, "%lu us", (unsigned long)(took_ns / US));
}

Test(channel, a_receiver_whose_connections_break_asks_at_once, .init = open_up)
{
    struct duo_request *recv = duo_recv(0, 100);
    duo_run(50 * MS);
    for (uint16_t path = 0; path < PATHS; path++)
        cut(path);
    is_dead_in_time(recv);
}

Test(channel, a_receive_posted_without_connections_asks_at_once, .init = open_up)
{
    for (uint16_t path = 0; path < PATHS; path++)
        cut(path);
    duo_run(50 * MS);
    is_dead_in_time(duo_recv(0, 100));
}

/* The NIC takes nothing of what side 0 sends. Returns how often it was tried. */
static unsigned refuse_all(void)
{
    struct tx_desc desc;
    unsigned tries = 0;
    for (; tries < 100 && core_tx(duo_core[0], &desc, duo_now); tries++)
        core_tx_failed(duo_core[0], &desc, duo_now);
    return tries;
}

/* The farewell to a dead peer waits for a connection. Nobody tries to send it over and over meanwhile. */
Test(channel, a_farewell_waits_for_room, .init = open_up)
{
    struct duo_request *recv = duo_recv(0, 100);
    duo_talk(); /* from now on sockets are full, or closed, which the core has not been told */
    while (!recv->ended && duo_tick(0, duo_now + 3000 * MS)) {
        cr_assert_leq(refuse_all(), 1);
        if (!recv->ended)
            give_room(0);
    }
    cr_assert_eq(recv->status, UCCL_EPEERDEAD);
    cr_assert_eq(refuse_all(), 0);
    core_path_room(duo_core[0], duo_flow[0], 0, 0, duo_now);
    cr_assert_eq(duo_transmit(0), 1);
    duo_deliver(0);
    cr_assert(duo_flow[1]->dead);
}

/* A close does not wait for such a peer longer than it lingers. */
Test(channel, a_close_does_not_wait_for_a_peer_without_connections, .init = open_up)
{
    struct duo_request *recv = duo_recv_ready(100), *send = duo_send(0, 100);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
    for (uint16_t path = 0; path < PATHS; path++)
        cut(path);
    duo_now += duo_params.linger_ms * MS;
    core_conn_close(duo_core[0], duo_conn[0][0], duo_params.linger_ms * MS, duo_now);
    uint64_t begun_ns = duo_now;
    while (!duo_ended[0] && duo_tick(0, duo_now + 5000 * MS))
        duo_transmit(0);
    cr_assert_eq(duo_ended[0], 1);
    cr_assert_leq(duo_now - begun_ns, 5 * MS);
}
