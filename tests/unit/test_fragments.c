/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where messages are cut, for receives that are watched and for others, and what a watched receive takes of a peer that
 * cuts elsewhere.
 */
#include "placing_duo.h"

TestSuite(fragments, .timeout = 60);

enum { UNIT = CORE_WATCHED_BYTES, EAGER_LIMIT = 8192, BIG = 300001 };

/* Payload bytes of UDP over IPv4 and IPv6, and of verbs, at usual MTUs. */
static const uint32_t datagrams[] = {512, 1024, 1232, 1372, 1432, 1452, 1472, 2048, 4096, 8896, 8952, 8972, 65472};
enum { DATAGRAMS = sizeof datagrams / sizeof datagrams[0] };

/* What was opened before is over. */
static void close_duo(void)
{
    duo_drop(0);
    duo_drop(1);
    while (duo_request_count > 0)
        free(duo_requests[--duo_request_count].buffer);
    while (duo_kept_count > 0)
        free(duo_kept[--duo_kept_count]);
    memset(duo_counters, 0, sizeof duo_counters);
}

static void open_with(uint32_t datagram_bytes)
{
    close_duo();
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = datagram_bytes;
    duo_open_as(false);
}

static struct duo_request *recv_watched(uint64_t size, bool watched)
{
    return duo_post_msg(1, 0, (struct core_msg){.kind = CORE_RECV, .size_bytes = size, .watched = watched});
}

/* What a datagram of `side` is made of. */
static struct wire_frame frame_of(unsigned side, unsigned i, enum wire_frame_kind kind)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    cr_assert(wire_parse(duo_queue[side][i].bytes, duo_queue[side][i].length, crc32c_portable, &packet));
    while ((frame = wire_next_frame(&packet)) && frame->kind != kind)
        ;
    return frame ? *frame : (struct wire_frame){0};
}

/* The largest fragment in a datagram of side 0; `units`: each is a whole number of units, or ends its message. */
static uint32_t look_at(const struct duo_datagram *datagram, bool units)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    uint32_t largest = 0;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    while ((frame = wire_next_frame(&packet))) {
        bool data = frame->kind == FRAME_DATA;
        uint64_t from = data ? frame->data.offset : frame->eager.offset;
        uint64_t total = data ? frame->data.total : frame->eager.total;
        uint32_t length = data ? frame->data.length : frame->eager.length;
        if (!data && frame->kind != FRAME_EAGER)
            continue;
        bool whole = from % UNIT == 0 && (length % UNIT == 0 || from + length == total);
        cr_assert(whole || !units, "bytes %lu to %lu of %lu", (unsigned long)from, (unsigned long)(from + length),
                  (unsigned long)total);
        largest = length > largest ? length : largest;
    }
    return largest;
}

/* Both talk until all is said; returns the largest fragment that side 0 sends. */
static uint32_t talk_and_look(bool units)
{
    uint32_t largest = 0;
    while (duo_transmit(0) + duo_transmit(1)) {
        for (unsigned i = 0; i < duo_queued[0]; i++) {
            uint32_t length = look_at(&duo_queue[0][i], units);
            largest = length > largest ? length : largest;
        }
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
    return largest;
}

Test(fragments, of_watched_receives_are_whole_units)
{
    static const uint64_t sizes[] = {1,     127, 128, 1400, 1409, 2816, 2824, 5000, EAGER_LIMIT, EAGER_LIMIT + 1,
                                     65536, BIG};
    for (unsigned d = 0; d < DATAGRAMS; d++) {
        open_with(datagrams[d]);
        for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct duo_request *recv = recv_watched(sizes[s] + s % 2 * 1000, true);
            duo_talk(); /* the clear-to-send */
            struct duo_request *send = duo_send(0, sizes[s]);
            talk_and_look(true);
            duo_run(10 * MS); /* acks that wait */
            duo_assert_arrived(send, recv, sizes[s]);
        }
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    }
}

/* Those of other receives fill their datagrams. */
Test(fragments, of_others_carry_what_fits)
{
    for (unsigned d = 0; d < DATAGRAMS; d++) {
        uint32_t room = datagrams[d] - WIRE_BULK_HEADER_BYTES;
        for (unsigned watched = 0; watched < 2; watched++) {
            open_with(datagrams[d]);
            struct duo_request *recv = recv_watched(BIG, watched), *send = duo_send(0, BIG);
            uint32_t least = datagrams[d] == 65472 ? 60000
                             : watched             ? room - UNIT + 1
                                                   : room; /* a few large ones are evened */
            uint32_t largest = talk_and_look(watched);
            cr_assert(largest <= room && largest >= least);
            duo_run(10 * MS);
            duo_assert_arrived(send, recv, BIG);
        }
    }
}

/* Nothing is known of the receives of small messages; several of them share a datagram. */
Test(fragments, eager_ones_are_whole_units)
{
    enum { COUNT = 12 };
    for (unsigned d = 0; d < DATAGRAMS; d++) {
        struct duo_request *send[COUNT], *recv[COUNT];
        open_with(datagrams[d]);
        for (unsigned i = 0; i < COUNT; i++) {
            bool early = i % 3;
            uint64_t size = 100 + i * 677;
            if (early)
                recv[i] = recv_watched(size, true);
            send[i] = duo_send(0, size);
            if (!early) { /* it waits in the ring, which wraps after some of them */
                talk_and_look(true);
                recv[i] = recv_watched(size, i % 2);
            }
        }
        for (unsigned round = 0; round < 20; round++) {
            for (unsigned i = 0; i < COUNT && round; i++) {
                recv[i] = recv_watched(send[i]->msg.size_bytes, true);
                send[i] = duo_send(0, send[i]->msg.size_bytes);
            }
            talk_and_look(true);
            duo_run(10 * MS);
            for (unsigned i = 0; i < COUNT; i++) {
                duo_assert_ended(recv[i], UCCL_OK, recv[i]->msg.size_bytes);
                duo_assert_ended(send[i], UCCL_OK, send[i]->msg.size_bytes);
            }
        }
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    }
}

Test(fragments, lost_ones_are_cut_as_they_were)
{
    for (unsigned d = 0; d < DATAGRAMS; d++) {
        open_with(datagrams[d]);
        struct duo_request *recv = recv_watched(BIG, true), *send = duo_send(0, BIG);
        while (duo_count(&duo_counters[0].tx_chunks) < 2) {
            duo_pass(1);
            duo_transmit(0);
            for (unsigned i = 0; i < duo_queued[0]; i++) /* every second is lost, the last one too */
                if ((duo_queued[0] - i) % 2 == 0)
                    duo_deliver_one(0, i);
            duo_drop(0);
            duo_tick(0, UINT64_MAX - 1);
        }
        core_set_datagram(duo_core[0], 0, datagrams[(d + 5) % DATAGRAMS]); /* chunks to come are cut anew */
        for (unsigned ticks = 0; ticks < 1000 && !(recv->ended && send->ended); ticks++) {
            talk_and_look(true);
            duo_tick(core_deadline(duo_core[1]) < core_deadline(duo_core[0]), UINT64_MAX - 1);
        }
        duo_assert_arrived(send, recv, BIG);
        /* or as fragments of an image, where they became too large */
        cr_assert_gt(duo_count(&duo_counters[0].retransmits) + duo_count(&duo_counters[0].tx_images), 0);
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    }
}

/* ---- clear-to-send --------------------------------------------------------------------------- */

Test(fragments, clear_to_send_says_so)
{
    for (unsigned watched = 0; watched < 2; watched++) {
        close_duo();
        placing_open(2);
        recv_watched(BIG, watched);
        duo_transmit(1);
        struct wire_frame cts = {0};
        for (unsigned i = 0; i < duo_queued[1] && !cts.kind; i++)
            cts = frame_of(1, i, FRAME_CTS);
        cr_assert_eq(cts.kind, FRAME_CTS);
        cr_assert_eq(cts.cts.watched, watched);
        cr_assert_eq(!cts.cts.placeable, watched, "what is watched the NIC does not write");
    }
}

/* ---- a peer that cuts elsewhere -------------------------------------------------------------- */

static uint8_t packet[4096];

/* Side 1 receives a datagram that side 0 might send, had it been written so. */
static void receive(uint64_t seq, const struct wire_eager *eager, uint64_t offset, uint32_t length, uint64_t total)
{
    uint32_t bytes = WIRE_BULK_HEADER_BYTES + length;
    struct tx_desc desc = {.kind = eager ? TX_FRAMES : TX_BULK,
                           .count = 1,
                           .path_seq = (uint32_t)seq + 1,
                           .seq = seq,
                           .sequenced = true,
                           .token = duo_setup[1].rx_token,
                           .time_stamp = wire_time(duo_now),
                           .conn_id = duo_conn[1][0]->local_id,
                           .msg_number = 0,
                           .msg_total = total,
                           .bulk_offset = offset,
                           .bulk_stride = length,
                           .bulk_last = length};
    memset(packet, 0x77, sizeof packet);
    if (eager) {
        unsigned header = WIRE_HEADER_BYTES + wire_put_eager(packet + WIRE_HEADER_BYTES, eager);
        bytes = header + eager->length;
        wire_set_header_length(packet, (uint16_t)header);
        wire_seal(&desc, 0, packet, bytes, crc32c_portable);
    } else {
        wire_bulk_header(&desc, 0, 0, crc32c_portable, packet);
    }
    cr_assert(core_rx(duo_core[1], packet, bytes, false, duo_now), "it is acked in any case");
    duo_copies(1);
    duo_events(1);
}

static bool untouched(const struct duo_request *request)
{
    for (uint64_t i = 0; i < request->msg.size_bytes; i++)
        if (request->buffer[i] != 0xee)
            return false;
    return true;
}

static const struct {
    uint32_t offset, length, total;
    bool whole;
} cuts[] = {{0, 100, 9000, false},  {64, 64, 9000, false},    {8, 128, 9000, false},   {128, 127, 9000, false},
            {0, 1400, 9000, false}, {8960, 39, 9000, false},  {8961, 39, 9000, false}, {1, 1, 9000, false},
            {0, 128, 9000, true},   {1280, 1280, 9000, true}, {8960, 40, 9000, true},  {8832, 168, 9000, true}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

Test(fragments, watched_receives_refuse_others)
{
    for (unsigned i = 0; i < 4 * CUTS; i++) {
        bool watched = i % 2, eager = i / 2 % 2, whole = cuts[i / 4].whole;
        struct wire_eager frame = {
            .offset = cuts[i / 4].offset, .length = cuts[i / 4].length, .total = cuts[i / 4].total};
        close_duo();
        duo_defaults();
        duo_params.eager_kb = eager ? 16 : 8;
        duo_open_as(false);
        frame.conn = duo_conn[1][0]->local_id;
        struct duo_request *recv = recv_watched(9000, watched);
        memset(recv->buffer, 0xee, 9000);
        duo_lose(1);
        receive(0, eager ? &frame : NULL, frame.offset, frame.length, frame.total);
        bool taken = whole || !watched;
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), !taken, "cut %u", i);
        cr_assert_eq(untouched(recv), !taken);
        cr_assert_not(recv->ended);
        for (uint32_t at = 0; taken && at < 9000; at++)
            cr_assert_eq(recv->buffer[at], at - frame.offset < frame.length ? 0x77 : 0xee);
    }
}

/* A part of an eager message has arrived before its receive: it is copied from the ring, whole, however it was cut. */
Test(fragments, from_the_ring_it_is_all_the_same)
{
    struct wire_eager frame = {.length = 1000, .total = 1500};
    duo_open();
    frame.conn = duo_conn[1][0]->local_id;
    receive(0, &frame, 0, 0, 0);
    struct duo_request *recv = recv_watched(1500, true);
    frame.offset = 1024;
    frame.length = 476;
    receive(1, &frame, 0, 0, 0);
    cr_assert_not(recv->ended);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
}

/* A place in the ring that no sender takes: it would be copied in words of other places. */
Test(fragments, places_in_the_ring_are_whole)
{
    for (unsigned at = 0; at < 130; at++) {
        struct wire_eager frame = {.length = 128, .total = 128, .ring = at};
        close_duo();
        duo_open();
        frame.conn = duo_conn[1][0]->local_id;
        receive(0, &frame, 0, 0, 0);
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), at % 64 != 0);
        cr_assert_eq(duo_count(&duo_counters[1].eager_unexpected), at % 64 == 0);
    }
}

/* A place that ends where the ring begins: the sum of the two is no more than the ring, modulo 2^64. */
Test(fragments, places_in_front_of_the_ring_are_none)
{
    for (unsigned bytes = 64; bytes <= 1024; bytes *= 2) {
        struct wire_eager frame = {.length = bytes, .total = bytes, .ring = -bytes};
        close_duo();
        duo_open();
        frame.conn = duo_conn[1][0]->local_id;
        receive(0, &frame, 0, 0, 0);
        cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 1);
        cr_assert_eq(duo_count(&duo_counters[1].eager_unexpected), 0);
    }
}

/* ---- in place -------------------------------------------------------------------------------- */

/* What may turn out to be something else does not stand in a watched receive for a moment. */
Test(fragments, watched_receives_foresee_nothing)
{
    for (unsigned watched = 0; watched < 2; watched++) {
        close_duo();
        duo_open();
        struct duo_request *recv = recv_watched(BIG, watched);
        duo_talk();
        duo_send(0, BIG);
        cr_assert_gt(duo_transmit(0), 2);
        struct core_msg *msg = NULL;
        uint64_t offset;
        unsigned data = 0;
        while (!frame_of(0, data, FRAME_DATA).kind)
            data++;
        const struct duo_datagram *first = &duo_queue[0][data];
        unsigned count = core_copy_target(duo_core[1], first->bytes, first->length, first->length, &msg, &offset);
        cr_assert_eq(count, !watched);
        cr_assert(watched || msg == &recv->msg);
    }
}
