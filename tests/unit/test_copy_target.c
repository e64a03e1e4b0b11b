/* SPDX-License-Identifier: Apache-2.0 */
/* The payload of a datagram may be received where it belongs: the core says where that is, for what is awaited alone.
 */
#include "duo.h"

enum { LARGE = 100000 };

static bool place_alone(unsigned side, const uint8_t *datagram, size_t length, struct core_msg **msg, uint64_t *offset)
{
    unsigned count = core_copy_target(duo_core[side], datagram, length, length, msg, offset);
    cr_assert_leq(count, 1);
    return count;
}

/* A NIC that looks at headers may put payload in place: once, and only where it is awaited. */
Test(copy_target, a_place_is_told_for_what_is_awaited)
{
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = 20000;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE);
    unsigned placed = 0;
    while (duo_transmit(0)) {
        for (unsigned i = 0; i < duo_queued[0]; i++) {
            const struct duo_datagram *datagram = &duo_queue[0][i];
            struct core_msg *msg;
            uint64_t offset;
            if (!place_alone(1, datagram->bytes, datagram->length, &msg, &offset)) {
                duo_deliver_one(0, i);
                continue;
            }
            size_t length = datagram->length - WIRE_BULK_HEADER_BYTES;
            cr_assert_eq(msg, &recv->msg);
            cr_assert_leq(offset + length, LARGE);
            memcpy(recv->buffer + offset, datagram->bytes + WIRE_BULK_HEADER_BYTES, length);
            uint8_t header[WIRE_BULK_HEADER_BYTES];
            memcpy(header, datagram->bytes, sizeof header);
            cr_assert(core_rx_copied(duo_core[1], header, datagram->length, recv->buffer + offset, false, duo_now));
            duo_copies(1);
            duo_events(1);
            placed++;
            cr_assert_not(place_alone(1, datagram->bytes, datagram->length, &msg, &offset), "a duplicate has no place");
        }
        duo_drop(0);
        duo_talk();
    }
    duo_run(50 * MS);
    cr_assert_gt(placed, 0);
    duo_assert_arrived(send, recv, LARGE);
    duo_assert_rest();
}

/* Of a train that GRO has joined it gets a place for those that can be the next ones of the chunk, up to the first that
 * has arrived. */
Test(copy_target, a_place_is_told_for_a_train)
{
    enum { STRIDE = 5000, STEP = STRIDE - WIRE_BULK_HEADER_BYTES };
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = STRIDE;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    struct duo_request *send = duo_send(0, LARGE);
    duo_transmit(0);
    struct wire_packet packet;
    cr_assert(wire_parse(duo_queue[0][0].bytes, duo_queue[0][0].length, crc32c_portable, &packet));
    unsigned count = packet.count;
    cr_assert(packet.index == 0 && count > 5);
    size_t last = duo_queue[0][count - 1].length, length = (count - 1) * STRIDE + last;
    struct core_msg *msg;
    uint64_t offset;
    for (unsigned first = 0; first + 1 < count; first++) {
        const uint8_t *header = duo_queue[0][first].bytes;
        size_t left = length - first * STRIDE;
        cr_assert_eq(core_copy_target(duo_core[1], header, left, STRIDE, &msg, &offset), count - first);
        cr_assert(msg == &recv->msg && offset == first * STEP);
        cr_assert_eq(core_copy_target(duo_core[1], header, 2 * STRIDE, STRIDE, &msg, &offset), 2);
        cr_assert_eq(core_copy_target(duo_core[1], header, STRIDE + 64, STRIDE, &msg, &offset), 2);
        cr_assert_eq(core_copy_target(duo_core[1], header, STRIDE + 63, STRIDE, &msg, &offset), 1, "no header fits");
        cr_assert_eq(core_copy_target(duo_core[1], header, left + 2 * STRIDE, STRIDE, &msg, &offset), count - first,
                     "what is beyond is another chunk's");
        cr_assert_eq(core_copy_target(duo_core[1], header, left, STRIDE - 1, &msg, &offset), 0);
    }
    duo_deliver_one(0, 3);
    for (unsigned first = 0; first + 1 < count; first++)
        cr_assert_eq(
            core_copy_target(duo_core[1], duo_queue[0][first].bytes, length - first * STRIDE, STRIDE, &msg, &offset),
            first > 3 ? count - first : 3 - first);
    /* the last chunk: however long the train, no more than the buffer */
    unsigned end = duo_queued[0];
    const struct duo_datagram *datagram = &duo_queue[0][end - 2];
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    cr_assert(packet.index + 2u == packet.count && datagram->length == STRIDE && datagram[1].length < STRIDE);
    cr_assert_eq(core_copy_target(duo_core[1], datagram->bytes, STRIDE + datagram[1].length, STRIDE, &msg, &offset), 2);
    cr_assert_eq(core_copy_target(duo_core[1], datagram->bytes, STRIDE + datagram[1].length + 1, STRIDE, &msg, &offset),
                 0);
    duo_run(50 * MS);
    duo_assert_arrived(send, recv, LARGE);
}

/*
 * Chunks that end with their block, in the middle of the message: the last datagram of each is short. Where it is lost,
 * GRO joins the others to longer ones of the same flow, whose bytes would reach into the next chunk, which has arrived.
 */
Test(copy_target, no_place_that_reaches_into_the_next_chunk)
{
    enum { STRIDE = 5000, STEP = STRIDE - WIRE_BULK_HEADER_BYTES, BLOCK = 2 * STEP + 1000 };
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = STRIDE;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, 3 * BLOCK);
    duo_talk();
    duo_block_bytes = BLOCK;
    struct duo_request *send = duo_send(0, 3 * BLOCK);
    duo_transmit(0);
    core_available(duo_core[0], &send->msg, 3 * BLOCK, duo_now);
    duo_transmit(0);
    cr_assert_eq(duo_queued[0], 9);
    const uint8_t *header = duo_queue[0][0].bytes;
    struct core_msg *msg;
    uint64_t offset;
    cr_assert_eq(core_copy_target(duo_core[1], header, 3 * STRIDE, STRIDE, &msg, &offset), 3,
                 "nothing is there to be hurt");
    duo_deliver_one(0, 0);
    header = duo_queue[0][1].bytes;
    cr_assert_eq(core_copy_target(duo_core[1], header, 2 * STRIDE, STRIDE, &msg, &offset), 2);
    duo_deliver_one(0, 3); /* of the next chunk */
    cr_assert_eq(core_copy_target(duo_core[1], header, 2 * STRIDE, STRIDE, &msg, &offset), 1);
    cr_assert_eq(core_copy_target(duo_core[1], header, STRIDE + duo_queue[0][2].length, STRIDE, &msg, &offset), 1);
    header = duo_queue[0][2].bytes; /* it says its own length */
    cr_assert_eq(duo_queue[0][2].length, 1000 + WIRE_BULK_HEADER_BYTES);
    cr_assert_eq(core_copy_target(duo_core[1], header, duo_queue[0][2].length, duo_queue[0][2].length, &msg, &offset),
                 1);
    cr_assert_eq(offset, 2 * STEP);
    duo_run(50 * MS);
    duo_assert_arrived(send, recv, 3 * BLOCK);
}

/* A part of a striped message: nothing of a train that would reach beyond the length that its sender says. */
Test(copy_target, no_place_beyond_the_message_of_a_part)
{
    enum { STRIDE = 5000, STEP = STRIDE - WIRE_BULK_HEADER_BYTES, FLOWS = 2 };
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = STRIDE;
    duo_open_as(false);
    struct duo_request part = {.msg = {.kind = CORE_RECV, .size_bytes = LARGE, .stripes = FLOWS}};
    struct conn *conn = core_part_conn_open(duo_core[1], duo_zeroed(core_part_conn_size(&duo_setup[1])), duo_flow[1],
                                            &duo_setup[1], 100, 101, &part, duo_now);
    core_submit_part(duo_core[1], conn, &part.msg, duo_now);
    struct tx_desc desc = {.kind = TX_BULK,
                           .count = 10,
                           .sequenced = true,
                           .token = duo_setup[0].tx_token,
                           .datagram_bytes = STRIDE,
                           .last_bytes = STRIDE,
                           .bulk_stride = STEP,
                           .bulk_last = STEP,
                           .conn_id = 100,
                           .msg_total = LARGE,
                           .stripes = FLOWS};
    for (unsigned fit = 1; fit <= 5; fit++) {
        uint8_t header[STRIDE] = {0};
        struct core_msg *msg;
        uint64_t offset;
        desc.bulk_offset = LARGE - fit * STEP;
        wire_bulk_header(&desc, 0, 0, crc32c_portable, header);
        cr_assert_eq(core_copy_target(duo_core[1], header, fit * STRIDE, STRIDE, &msg, &offset), fit);
        cr_assert(msg == &part.msg && offset == LARGE - fit * STEP);
        cr_assert_eq(
            core_copy_target(duo_core[1], header, fit * STRIDE + WIRE_BULK_HEADER_BYTES + 1, STRIDE, &msg, &offset), 0,
            "a byte too far");
        cr_assert_eq(core_copy_target(duo_core[1], header, (fit + 1) * STRIDE, STRIDE, &msg, &offset), 0);
    }
}

Test(copy_target, no_place_for_what_is_not_awaited)
{
    duo_defaults();
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = 20000;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_talk();
    duo_send(0, LARGE);
    duo_transmit(0);
    struct duo_datagram *datagram = &duo_queue[0][0];
    struct core_msg *msg;
    uint64_t offset;
    cr_assert(place_alone(1, datagram->bytes, datagram->length, &msg, &offset));
    cr_assert_not(place_alone(1, datagram->bytes, datagram->length - 1, &msg, &offset));
    cr_assert_not(place_alone(1, datagram->bytes, 40, &msg, &offset));
    cr_assert_not(place_alone(0, datagram->bytes, datagram->length, &msg, &offset));
    datagram->bytes[50] ^= 1; /* in the header region */
    cr_assert_not(place_alone(1, datagram->bytes, datagram->length, &msg, &offset));
    datagram->bytes[50] ^= 1;
    core_cancel(duo_core[1], &recv->msg, duo_now);
    duo_events(1);
    cr_assert(recv->ended);
    cr_assert_not(place_alone(1, datagram->bytes, datagram->length, &msg, &offset),
                  "the request has ended: its buffer is the application's");
    duo_drop(0);
}
