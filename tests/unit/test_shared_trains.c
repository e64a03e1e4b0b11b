/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Granted messages that would fill no chunk share trains of frames with other messages and control frames
 * (engine/core/transmit.c, transmit_frames.c), where the NIC sends a train about as cheaply as a datagram.
 */
#include "duo.h"

enum { PART = 12000, WHOLE = CORE_TRAIN_BYTES_MAX, COUNT = 8 };

/* Both ends open, with datagrams of this size. */
static void open_with(uint32_t datagram_bytes)
{
    duo_whole_trains = true;
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = datagram_bytes;
    duo_open_as(false);
}

static void open_plain(uint32_t datagram_bytes)
{
    duo_defaults();
    open_with(datagram_bytes);
}

/* Receives are posted, and the sender knows. */
static void post_recvs(struct duo_request **recvs, unsigned count, uint64_t size)
{
    for (unsigned i = 0; i < count; i++)
        recvs[i] = duo_recv(1, size);
    duo_run(MS);
}

static void post_sends(struct duo_request **sends, unsigned count, uint64_t size)
{
    for (unsigned i = 0; i < count; i++)
        sends[i] = duo_send(0, size);
}

static void assert_all(struct duo_request **sends, struct duo_request **recvs, unsigned count, uint64_t size)
{
    for (unsigned i = 0; i < count; i++)
        duo_assert_arrived(sends[i], recvs[i], size);
    duo_assert_rest();
}

/* Frames of one kind in a datagram that `side` has sent. */
static unsigned frames_in(unsigned side, unsigned index, enum wire_frame_kind kind)
{
    const struct duo_datagram *datagram = &duo_queue[side][index];
    struct wire_packet packet;
    const struct wire_frame *frame;
    unsigned count = 0;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    while ((frame = wire_next_frame(&packet)))
        count += frame->kind == kind;
    return count;
}

static bool is_bulk(unsigned index)
{
    return wire_is_bulk(duo_queue[0][index].bytes, duo_queue[0][index].length);
}

/* Five of 12,000 bytes fit a datagram of 65,472, and the sixth is cut. */
Test(shared_trains, several_messages_share_one)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    open_plain(WHOLE);
    post_recvs(recvs, COUNT, PART);
    post_sends(sends, COUNT, PART);
    cr_assert_eq(duo_transmit(0), 2);
    cr_assert_eq(duo_queue[0][0].length, WHOLE);
    cr_assert_eq(frames_in(0, 0, FRAME_DATA), 6);
    cr_assert_eq(frames_in(0, 1, FRAME_DATA), 3);
    duo_run(MS);
    assert_all(sends, recvs, COUNT, PART);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
}

/* Trains are full, but for the last: of each datagram at most 256 bytes stay empty. */
Test(shared_trains, datagrams_of_every_size)
{
    enum { SIZES = 5, FRAGMENT = 256 };
    static const uint32_t datagrams[SIZES] = {CORE_DATAGRAM_MIN, 1232, 1472, 8972, 40000};
    for (unsigned i = 0; i < SIZES; i++) {
        for (uint64_t size = 8193; size <= 65536; size += 19111) {
            struct duo_request *recvs[COUNT], *sends[COUNT];
            open_plain(datagrams[i]);
            post_recvs(recvs, COUNT, size);
            post_sends(sends, COUNT, size);
            uint64_t begin = duo_flow[0]->sent.next_seq;
            duo_transmit(0);
            uint64_t trains = duo_flow[0]->sent.next_seq - begin, payload = duo_flow[0]->main->flying_payload;
            uint32_t count = WHOLE / datagrams[i] < CORE_TRAIN_MAX ? WHOLE / datagrams[i] : CORE_TRAIN_MAX;
            uint32_t room = datagrams[i] - WIRE_HEADER_BYTES - 2 * WIRE_DATA_BYTES - FRAGMENT;
            cr_assert_geq(payload, (trains - 1) * count * room, "%lu bytes in %lu trains of %u datagrams of %u bytes",
                          (unsigned long)payload, (unsigned long)trains, count, datagrams[i]);
            duo_run(100 * MS);
            assert_all(sends, recvs, COUNT, size);
        }
    }
}

/*
 * The next datagram of a train may be another message's. Then this message's next bytes may have arrived already, with
 * a later datagram: a receiver that copies before it has looked must not write there.
 */
Test(shared_trains, no_place_where_later_datagrams_may_have_been_received)
{
    enum { STRIDE = 5000, SIZE = 60000, TRAIN = WHOLE / STRIDE };
    struct duo_request *recvs[2], *sends[2];
    struct core_msg *msg;
    uint64_t offset;
    open_plain(STRIDE);
    post_recvs(recvs, 2, SIZE);
    post_sends(sends, 2, SIZE);
    cr_assert_eq(duo_transmit(0), 2 * TRAIN - 1);
    const struct duo_datagram *queue = duo_queue[0];
    cr_assert(is_bulk(0) && is_bulk(1));
    cr_assert_eq(core_copy_target(duo_core[1], queue[0].bytes, 2 * STRIDE, STRIDE, &msg, &offset), 2);
    duo_deliver_one(0, 3);
    cr_assert_eq(core_copy_target(duo_core[1], queue[0].bytes, 2 * STRIDE, STRIDE, &msg, &offset), 1, "of this train");
    duo_deliver_one(0, 0);
    duo_deliver_one(0, TRAIN);
    cr_assert_eq(core_copy_target(duo_core[1], queue[4].bytes, 2 * STRIDE, STRIDE, &msg, &offset), 1, "of the next");
    duo_run(MS);
    assert_all(sends, recvs, 2, SIZE);
}

/* Nothing to share with: the message is sent from where it lies, and may be received in place. */
Test(shared_trains, a_message_alone_is_a_chunk)
{
    struct duo_request *recv, *send;
    open_plain(WHOLE);
    post_recvs(&recv, 1, PART);
    post_sends(&send, 1, PART);
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert(is_bulk(0));
    cr_assert_eq(send->msg.chunks_live, 1, "a train has a copy");
    duo_run(MS);
    duo_assert_arrived(send, recv, PART);
}

/* One byte more than a train's buffer, or a NIC that pays for each datagram: every message has chunks of its own. */
Test(shared_trains, others_have_chunks_of_their_own)
{
    for (unsigned apart = 0; apart < 2; apart++) {
        struct duo_request *recvs[2], *sends[2];
        uint64_t size = apart ? PART : FRAMES_BIG_BYTES + 1;
        open_plain(WHOLE);
        duo_flow[0]->shares_trains = !apart;
        post_recvs(recvs, 2, size);
        post_sends(sends, 2, size);
        unsigned count = duo_transmit(0);
        cr_assert_eq(count, apart ? 2 : 4);
        for (unsigned i = 0; i < count; i++)
            cr_assert(is_bulk(i));
        duo_run(MS);
        assert_all(sends, recvs, 2, size);
    }
}

/* A message alone spares the datagram of an ack and of a clear-to-send, which would leave anyway. */
Test(shared_trains, control_frames_ride_along)
{
    struct duo_request *recvs[2], *sends[2];
    open_plain(WHOLE);
    post_recvs(recvs, 2, PART);
    sends[0] = duo_send(0, PART);
    duo_pass(0);
    struct duo_request *back = duo_recv(1, 100); /* and its clear-to-send */
    duo_assert_ended(recvs[0], UCCL_OK, PART);
    struct duo_request *answer = duo_recv(0, PART);
    duo_talk();
    struct duo_request *reply = duo_send(1, PART);
    sends[1] = duo_send(0, PART);
    struct duo_request *next = duo_recv(0, PART);
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(frames_in(0, 0, FRAME_CTS), 1);
    cr_assert_eq(frames_in(0, 0, FRAME_DATA), 1);
    duo_deliver(0);
    cr_assert(duo_flow[1]->ack.pending);
    cr_assert_eq(duo_transmit(1), 1);
    cr_assert_eq(frames_in(1, 0, FRAME_ACK), 1);
    cr_assert_eq(frames_in(1, 0, FRAME_DATA), 1);
    duo_run(MS);
    duo_assert_arrived(reply, answer, PART);
    duo_assert_arrived(sends[1], recvs[1], PART);
    cr_assert(!next->ended && !back->ended);
}

/* Small and granted messages in turn, so that neither waits for all of the other kind. */
Test(shared_trains, small_messages_come_in_turn)
{
    struct duo_request *recvs[2 * COUNT], *sends[2 * COUNT];
    open_plain(WHOLE);
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_recv(1, PART);
    for (unsigned i = COUNT; i < 2 * COUNT; i++)
        recvs[i] = duo_recv(1, 100);
    duo_run(MS);
    for (unsigned i = 0; i < 2 * COUNT; i++)
        sends[i] = duo_send(0, i < COUNT ? PART : 100);
    cr_assert_eq(duo_transmit(0), 2);
    unsigned eager = frames_in(0, 0, FRAME_EAGER), data = frames_in(0, 0, FRAME_DATA);
    cr_assert(data == 6 && eager >= 5 && eager <= 6, "%u granted, %u small", data, eager);
    duo_run(MS);
    for (unsigned i = 0; i < 2 * COUNT; i++)
        duo_assert_arrived(sends[i], recvs[i], i < COUNT ? PART : 100);
}

/* Connections take turns within a train, too. */
Test(shared_trains, connections_come_in_turn)
{
    enum { MANY = 14 };
    struct duo_request *recvs[MANY + 1], *sends[MANY + 1];
    open_plain(1472);
    for (unsigned i = 0; i <= MANY; i++)
        recvs[i] = duo_post(1, i == MANY, CORE_RECV, 30000);
    duo_run(MS);
    for (unsigned i = 0; i <= MANY; i++)
        sends[i] = duo_post(0, i == MANY, CORE_SEND, 30000);
    duo_flow[0]->main->cc.cwnd_bytes = 200000;
    duo_transmit(0);
    cr_assert_eq(sends[MANY]->msg.offset_bytes, 30000);
    cr_assert_eq(sends[MANY - 1]->msg.offset_bytes, 0);
    duo_run(100 * MS);
    for (unsigned i = 0; i <= MANY; i++)
        duo_assert_arrived(sends[i], recvs[i], 30000);
    duo_assert_rest();
}

/* The congestion window bounds what a train takes, as it bounds a chunk. */
Test(shared_trains, the_window_bounds_them)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    open_plain(WHOLE);
    post_recvs(recvs, COUNT, PART);
    post_sends(sends, COUNT, PART);
    duo_flow[0]->main->cc.cwnd_bytes = 3 * PART + PART / 2;
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(frames_in(0, 0, FRAME_DATA), 3);
    cr_assert_eq(duo_flow[0]->main->flying_payload, 3 * PART);
    duo_deliver(0);
    duo_run(100 * MS);
    assert_all(sends, recvs, COUNT, PART);
}

/* A window below the first message: a flow with nothing in flight may send one chunk, and that is what it sends. */
Test(shared_trains, a_tiny_window_lets_a_chunk_pass)
{
    struct duo_request *recvs[2], *sends[2];
    open_plain(WHOLE);
    post_recvs(recvs, 2, PART);
    post_sends(sends, 2, PART);
    duo_flow[0]->main->cc.cwnd_bytes = 1000;
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(sends[0]->msg.chunks_live, 1);
    duo_run(100 * MS);
    assert_all(sends, recvs, 2, PART);
}

/* The window has no room for a granted message whose turn it is, but for a small one: that goes. */
Test(shared_trains, what_does_not_fit_holds_back_no_small_message)
{
    struct duo_request *recvs[3], *sends[3];
    open_plain(WHOLE);
    for (unsigned i = 0; i < 3; i++)
        recvs[i] = duo_recv(1, i == 2 ? 100 : PART);
    duo_run(MS);
    for (unsigned i = 0; i < 3; i++)
        sends[i] = duo_send(0, i == 2 ? 100 : PART);
    duo_flow[0]->main->cc.cwnd_bytes = 1000;
    duo_conn[0][0]->bulk_turn = false;
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(frames_in(0, 0, FRAME_EAGER), 1);
    cr_assert_eq(frames_in(0, 0, FRAME_DATA), 0);
    duo_run(100 * MS);
    for (unsigned i = 0; i < 3; i++)
        duo_assert_arrived(sends[i], recvs[i], i == 2 ? 100 : PART);
    duo_assert_rest();
}

/* A connection with messages that share trains, and one with larger ones: each has half. */
Test(shared_trains, large_messages_keep_their_turn)
{
    enum { MANY = 12, LARGE = 4 * FRAMES_BIG_BYTES };
    struct duo_request *sends[2][MANY];
    open_plain(WHOLE);
    for (unsigned i = 0; i < MANY; i++) {
        duo_post(1, 0, CORE_RECV, LARGE);
        duo_post(1, 1, CORE_RECV, 30000);
    }
    duo_run(MS);
    for (unsigned i = 0; i < MANY; i++) {
        sends[0][i] = duo_post(0, 0, CORE_SEND, LARGE);
        sends[1][i] = duo_post(0, 1, CORE_SEND, 30000);
    }
    uint64_t bytes[2] = {0};
    for (unsigned chunks = 0; chunks < 8; chunks++) {
        struct tx_desc desc;
        duo_flow[0]->main->cc.cwnd_bytes = duo_flow[0]->main->flying_payload + FRAMES_BIG_BYTES;
        flow_wake(duo_flow[0]);
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        duo_build(0, &desc);
        cr_assert_not(core_tx(duo_core[0], &desc, duo_now));
    }
    for (unsigned i = 0; i < MANY; i++) {
        bytes[0] += sends[0][i]->msg.offset_bytes;
        bytes[1] += sends[1][i]->msg.offset_bytes;
    }
    cr_assert(2 * bytes[0] > bytes[1] && 2 * bytes[1] > bytes[0], "%lu and %lu bytes", (unsigned long)bytes[0],
              (unsigned long)bytes[1]);
}

/* All buffers of trains are in flight: messages leave as chunks, which need none. */
Test(shared_trains, without_buffers_messages_are_chunks)
{
    enum { MANY = 16 };
    struct duo_request *recvs[MANY], *sends[MANY];
    duo_defaults();
    duo_params.tx_buffers = 4;
    open_with(WHOLE);
    duo_flow[0]->main->cc.cwnd_bytes = 1 << 20;
    post_recvs(recvs, MANY, 30000);
    post_sends(sends, MANY, 30000);
    duo_flow[0]->main->cc.cwnd_bytes = 1 << 20;
    unsigned count = duo_transmit(0), bulk = 0, shared = 0;
    for (unsigned i = 0; i < count; i++)
        *(frames_in(0, i, FRAME_DATA) == 1 ? &bulk : &shared) += 1;
    cr_assert_eq(shared, 2, "a flow may take half");
    cr_assert_gt(bulk, 8);
    cr_assert_eq(duo_core[0]->big.count, 2);
    duo_run(100 * MS);
    assert_all(sends, recvs, MANY, 30000);
}

/* Lost datagrams of a train come again from its copy, whatever the application has done to the buffer since. */
Test(shared_trains, losses_come_from_the_copy)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    open_plain(1472);
    duo_flow[0]->main->cc.cwnd_bytes = 1 << 20;
    post_recvs(recvs, COUNT, PART);
    post_sends(sends, COUNT, PART);
    unsigned count = duo_transmit(0);
    cr_assert_gt(count, 60);
    for (unsigned i = 0; i < count; i++) {
        if (i % 3)
            duo_deliver_one(0, i);
    }
    duo_drop(0);
    for (unsigned i = 0; i < COUNT; i++)
        cr_assert_eq(sends[i]->msg.chunks_live, 0);
    core_cancel(duo_core[0], &sends[3]->msg, duo_now);
    duo_events(0);
    duo_assert_ended(sends[3], UCCL_ECANCELED, 0);
    memset(sends[3]->buffer, 0x11, PART);
    duo_run(1000 * MS);
    cr_assert(recvs[3]->ended && recvs[3]->status == UCCL_ECANCELED);
    for (unsigned i = 0; i < PART; i++)
        cr_assert(recvs[3]->buffer[i] == 0xee || recvs[3]->buffer[i] == duo_byte(3, i));
    for (unsigned i = 0; i < COUNT; i++) {
        if (i != 3)
            duo_assert_arrived(sends[i], recvs[i], PART);
    }
    duo_assert_rest();
    cr_assert_gt(duo_count(&duo_counters[0].retransmits), 0);
}

/* A receive is withdrawn while a part of its message is on the way; those in the same train arrive. */
Test(shared_trains, a_cancelled_receive_does_not_harm_others)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    open_plain(WHOLE);
    post_recvs(recvs, COUNT, PART);
    post_sends(sends, COUNT, PART);
    cr_assert_eq(duo_transmit(0), 2);
    core_cancel(duo_core[1], &recvs[2]->msg, duo_now);
    core_cancel(duo_core[1], &recvs[5]->msg, duo_now); /* the one that is cut */
    duo_events(1);
    duo_run(100 * MS);
    for (unsigned i = 0; i < COUNT; i++) {
        if (i == 2 || i == 5) {
            duo_assert_ended(recvs[i], UCCL_ECANCELED, 0);
            cr_assert(sends[i]->ended && sends[i]->status == UCCL_ECANCELED);
            for (unsigned k = 0; k < PART; k++)
                cr_assert_eq(recvs[i]->buffer[k], 0xee);
        } else {
            duo_assert_arrived(sends[i], recvs[i], PART);
        }
    }
    duo_assert_rest();
}

/* Fragments of watched receives end at multiples of 128 bytes; the receiver refuses others. */
Test(shared_trains, watched_receives_get_whole_units)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    open_plain(1472);
    for (unsigned i = 0; i < COUNT; i++)
        recvs[i] = duo_post_msg(1, 0, (struct core_msg){.kind = CORE_RECV, .size_bytes = PART, .watched = i % 2});
    duo_run(MS);
    post_sends(sends, COUNT, PART);
    duo_run(100 * MS);
    assert_all(sends, recvs, COUNT, PART);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
}

/* Staged messages: a block at a time, whose bytes are released as soon as the train has its copy. */
Test(shared_trains, staged_messages_release_at_once)
{
    enum { BLOCK = 16 * 1024, SIZE = 2 * BLOCK + 5000 };
    struct duo_request *recvs[3], *sends[3];
    open_plain(WHOLE);
    post_recvs(recvs, 3, SIZE);
    duo_block_bytes = BLOCK;
    post_sends(sends, 3, SIZE);
    duo_transmit(0);
    for (uint64_t to = BLOCK; to < SIZE + BLOCK; to += BLOCK) {
        uint64_t bytes = to < SIZE ? to : SIZE;
        for (unsigned i = 0; i < 3; i++)
            core_available(duo_core[0], &sends[i]->msg, bytes, duo_now);
        duo_transmit(0);
        for (unsigned i = 0; i < 2; i++) { /* the last may be alone, and a chunk */
            cr_assert_eq(sends[i]->released, bytes);
            cr_assert_eq(sends[i]->msg.chunks_live, 0);
        }
    }
    duo_run(100 * MS);
    assert_all(sends, recvs, 3, SIZE);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(sends[i]->released, SIZE);
}

/* Connections carry a record of its own as cheaply: there a granted message travels as bulk. */
Test(shared_trains, none_over_connections)
{
    struct duo_request *recvs[COUNT], *sends[COUNT];
    duo_defaults();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].reliable = true;
    open_with(WHOLE);
    cr_assert_not(duo_flow[0]->shares_trains);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned path = 0; path < duo_params.port_entropy; path++)
            core_path_room(duo_core[side], duo_flow[side], 0, (uint16_t)path, duo_now);
    post_recvs(recvs, COUNT, PART);
    post_sends(sends, COUNT, PART);
    unsigned count = duo_transmit(0);
    for (unsigned i = 0; i < count; i++)
        cr_assert(is_bulk(i));
    duo_run(100 * MS);
    assert_all(sends, recvs, COUNT, PART);
}
