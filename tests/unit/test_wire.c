/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format: what is written is read; what was damaged is not. */
#include "core/crc32c.h"
#include "core/wire.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { DATAGRAM = 1472 };

static const uint8_t payload_bytes[] = "a few bytes that stand for a message";
static uint8_t datagram[DATAGRAM];
static uint32_t header_bytes, total_bytes;
static struct tx_desc desc;

static const struct wire_eager eager = {
    .conn = 0x10002, .msg = 7, .total = 100, .offset = 3, .ring = 0xfffffff0, .length = 36, .granted = true};
static const struct wire_cts cts = {.conn = 5, .msg = 0xffffffff, .length = UINT64_C(0x123456789abc)};
static const struct wire_rts rts = {.conn = 6, .msg = 1, .total = UINT64_MAX};
static const struct wire_credit credit = {
    .conn = 7, .delivered = 9, .eager_total = 0x80000001, .beyond = UINT64_C(0x8000000000000001)};
static const struct wire_abort end_send = {.conn = 8, .msg = 2, .status = UCCL_ETRUNCATED, .of_send = true};
static const struct wire_demand demand = {.target = 0xfedcba98};
static const struct wire_grant grant = {.granted = 0x80000002, .heard = 0xfedcba97};
static const struct wire_cts grant_cts = {.conn = 4,
                                          .msg = 3,
                                          .length = 77,
                                          .placeable = 13,
                                          .address = UINT64_C(0xfedcba9876543210),
                                          .keys = {0x89abcdef, 0, 0x12345678, 0xffffffff},
                                          .slot = 16383};
static const struct wire_qp offer = {
    .what = QP_OFFER, .path = 259, .generation = 0x01020304, .number = 0xabcdef, .psn = 0x123456};
static const struct wire_fin fin = {.conn = 9, .sends_over = true, .receives_over = false};

static struct wire_ack big_ack(void)
{
    struct wire_ack ack = {.number = 77,
                           .cumulative = 0xfffffffe,
                           .window_kb = 4096,
                           .next = 0x80000003,
                           .word_count = WIRE_ACK_WORDS_MAX,
                           .partial_count = WIRE_ACK_PARTIALS_MAX,
                           .path_count = WIRE_ACK_PATHS_MAX};
    for (unsigned i = 0; i < WIRE_ACK_WORDS_MAX; i++)
        ack.words[i] = UINT64_C(0x0123456789abcdef) << i;
    for (unsigned i = 0; i < WIRE_ACK_PARTIALS_MAX; i++)
        ack.partials[i] = (struct wire_ack_partial){i + 3, ~(uint64_t)i};
    for (unsigned i = 0; i < WIRE_ACK_PATHS_MAX; i++)
        ack.paths[i] = (struct wire_ack_path){.path = (uint16_t)(i * 17),
                                              .ce = i & 1,
                                              .on_path = i & 2,
                                              .by_sequence = (i & 6) == 6,
                                              .path_seq = i + 1,
                                              .time_stamp = i + 2,
                                              .ack_delay = i + 3};
    return ack;
}

/* A datagram with one frame of every kind that has a writer. */
static void build(void)
{
    struct wire_ack ack = big_ack();
    desc = (struct tx_desc){.kind = TX_FRAMES,
                            .count = 3,
                            .sequenced = true,
                            .retransmission = true,
                            .path = 300,
                            .token = UINT64_C(0x1122334455667788),
                            .seq = UINT64_C(0x1fffffff0),
                            .path_seq = 0xdeadbeef,
                            .time_stamp = 0xcafe,
                            .payload_crc = true};
    uint32_t at = WIRE_HEADER_BYTES;
    at += wire_put_ack(datagram + at, &ack);
    at += wire_put_demand(datagram + at, &demand);
    at += wire_put_grant(datagram + at, &grant);
    at += wire_put_flow(datagram + at, &(struct wire_flow){FLOW_CLOSED});
    at += wire_put_qp(datagram + at, &offer);
    at += wire_put_cts(datagram + at, &grant_cts);
    at += wire_put_credit(datagram + at, &credit);
    at += wire_put_cts(datagram + at, &cts);
    at += wire_put_rts(datagram + at, &rts);
    at += wire_put_abort(datagram + at, &end_send);
    at += wire_put_fin(datagram + at, &fin);
    at += wire_put_eager(datagram + at, &eager);
    header_bytes = at;
    wire_set_header_length(datagram, (uint16_t)header_bytes);
    memcpy(datagram + at, payload_bytes, eager.length);
    total_bytes = header_bytes + eager.length;
    wire_seal(&desc, 2, datagram, total_bytes, crc32c_portable);
}

static bool parses(const uint8_t *bytes, size_t length, struct wire_packet *packet)
{
    return wire_parse(bytes, length, crc32c_portable, packet);
}

Test(wire, sizes_are_as_declared)
{
    uint8_t at[WIRE_ACK_BYTES_MAX];
    struct wire_ack ack = big_ack();
    cr_assert_eq(wire_put_eager(at, &eager), WIRE_EAGER_BYTES);
    cr_assert_eq(wire_put_cts(at, &cts), WIRE_CTS_BYTES);
    cr_assert_eq(wire_put_cts(at, &grant_cts), WIRE_CTS_BYTES + WIRE_CTS_ENTRY_BYTES + 3 * 4);
    cr_assert_eq(wire_put_qp(at, &offer), WIRE_QP_BYTES);
    cr_assert_eq(wire_put_rts(at, &rts), WIRE_RTS_BYTES);
    cr_assert_eq(wire_put_credit(at, &credit), WIRE_CREDIT_BYTES);
    cr_assert_eq(wire_put_abort(at, &end_send), WIRE_ABORT_BYTES);
    cr_assert_eq(wire_put_fin(at, &fin), WIRE_FIN_BYTES);
    cr_assert_eq(wire_put_flow(at, &(struct wire_flow){FLOW_CLOSED}), WIRE_FLOW_BYTES);
    cr_assert_eq(wire_put_demand(at, &demand), WIRE_DEMAND_BYTES);
    cr_assert_eq(wire_put_grant(at, &grant), WIRE_GRANT_BYTES);
    cr_assert_eq(wire_put_gone(at, &(struct wire_gone){1}), WIRE_GONE_BYTES);
    cr_assert_eq(wire_put_probe(at, &(struct wire_probe){.nonce = 1}), WIRE_PROBE_BYTES);
    cr_assert_eq(wire_put_fragment(at, &(struct wire_fragment){0x04030201, 0x0600, 0x0780, 0x0fa0, NULL}),
                 WIRE_FRAGMENT_BYTES);
    cr_assert_arr_eq(at, "\x16\0\x80\x07\x01\x02\x03\x04\x00\x06\xa0\x0f", WIRE_FRAGMENT_BYTES);
    cr_assert_eq(wire_put_ack(at, &ack), WIRE_ACK_BYTES_MAX);
    cr_assert_eq(wire_ack_bytes(&ack), WIRE_ACK_BYTES_MAX);
}

Test(wire, packet_header_round_trip)
{
    struct wire_packet packet;
    build();
    cr_assert_eq(wire_token(datagram, total_bytes), desc.token);
    cr_assert(parses(datagram, total_bytes, &packet));
    cr_assert_eq(packet.token, desc.token);
    cr_assert_eq(packet.seq, 0xfffffff0);
    cr_assert_eq(packet.path_seq, desc.path_seq);
    cr_assert_eq(packet.time_stamp, desc.time_stamp);
    cr_assert_eq(packet.path, desc.path);
    cr_assert_eq(packet.index, 2);
    cr_assert_eq(packet.count, 3);
    cr_assert_eq(packet.flags, WIRE_SEQUENCED | WIRE_PAYLOAD_CRC | WIRE_RETRANSMISSION);
    cr_assert(wire_payload_intact(&packet, crc32c_portable));
}

static struct wire_frame next_of(struct wire_packet *packet, enum wire_frame_kind kind)
{
    const struct wire_frame *frame = wire_next_frame(packet);
    cr_assert(frame);
    cr_assert_eq(frame->kind, kind);
    return *frame;
}

Test(wire, frames_round_trip)
{
    struct wire_packet packet;
    struct wire_frame frame;
    struct wire_ack ack = big_ack();
    build();
    cr_assert(parses(datagram, total_bytes, &packet));

    frame = next_of(&packet, FRAME_ACK);
    cr_assert(frame.ack.number == 77 && frame.ack.cumulative == 0xfffffffe && frame.ack.window_kb == 4096 &&
              frame.ack.next == 0x80000003);
    cr_assert_arr_eq(frame.ack.words, ack.words, sizeof ack.words);
    for (unsigned i = 0; i < WIRE_ACK_PARTIALS_MAX; i++)
        cr_assert(frame.ack.partials[i].seq == i + 3 && frame.ack.partials[i].mask == ~(uint64_t)i);
    for (unsigned i = 0; i < WIRE_ACK_PATHS_MAX; i++) {
        struct wire_ack_path path = frame.ack.paths[i];
        cr_assert(path.path == i * 17 && path.ce == (i & 1) && path.path_seq == i + 1 && path.time_stamp == i + 2 &&
                  path.ack_delay == i + 3);
        cr_assert(path.on_path == !!(i & 2) && path.by_sequence == ((i & 6) == 6));
    }
    frame = next_of(&packet, FRAME_DEMAND);
    cr_assert_eq(frame.demand.target, demand.target);
    frame = next_of(&packet, FRAME_GRANT);
    cr_assert(frame.grant.granted == grant.granted && frame.grant.heard == grant.heard);
    next_of(&packet, FRAME_FLOW);
    frame = next_of(&packet, FRAME_QP);
    cr_assert(frame.qp.what == QP_OFFER && frame.qp.path == 259 && frame.qp.generation == 0x01020304 &&
              frame.qp.number == 0xabcdef && frame.qp.psn == 0x123456);
    frame = next_of(&packet, FRAME_CTS);
    cr_assert(frame.cts.conn == 4 && frame.cts.msg == 3 && frame.cts.length == 77 && frame.cts.placeable == 13 &&
              frame.cts.address == grant_cts.address && frame.cts.slot == 16383);
    cr_assert_arr_eq(frame.cts.keys, grant_cts.keys, sizeof grant_cts.keys);
    frame = next_of(&packet, FRAME_CREDIT);
    cr_assert(frame.credit.conn == 7 && frame.credit.delivered == 9 && frame.credit.eager_total == 0x80000001 &&
              frame.credit.beyond == credit.beyond);
    frame = next_of(&packet, FRAME_CTS);
    cr_assert(frame.cts.conn == 5 && frame.cts.msg == 0xffffffff && frame.cts.length == cts.length &&
              !frame.cts.placeable);
    frame = next_of(&packet, FRAME_RTS);
    cr_assert(frame.rts.conn == 6 && frame.rts.msg == 1 && frame.rts.total == UINT64_MAX);
    frame = next_of(&packet, FRAME_ABORT);
    cr_assert(frame.abort.conn == 8 && frame.abort.msg == 2 && frame.abort.status == UCCL_ETRUNCATED &&
              frame.abort.of_send);
    frame = next_of(&packet, FRAME_FIN);
    cr_assert(frame.fin.conn == 9 && frame.fin.sends_over && !frame.fin.receives_over);
    frame = next_of(&packet, FRAME_EAGER);
    cr_assert(frame.eager.conn == eager.conn && frame.eager.msg == 7 && frame.eager.total == 100 &&
              frame.eager.offset == 3 && frame.eager.ring == eager.ring && frame.eager.granted);
    cr_assert_eq(frame.eager.length, eager.length);
    cr_assert_arr_eq(frame.eager.payload, payload_bytes, eager.length);
    cr_assert_not(wire_next_frame(&packet));
}

/* A chunk beyond 4 GiB of its message. */
static struct tx_desc bulk_of(uint16_t count)
{
    return (struct tx_desc){.kind = TX_BULK,
                            .count = count,
                            .sequenced = true,
                            .token = 99,
                            .seq = 5,
                            .bulk_stride = 100,
                            .bulk_last = 7,
                            .bulk_offset = UINT64_C(1) << 33,
                            .conn_id = 4,
                            .msg_number = 6,
                            .msg_total = (UINT64_C(1) << 33) + 1000};
}

Test(wire, bulk_round_trip)
{
    struct tx_desc bulk = bulk_of(3);
    for (unsigned index = 0; index < 3; index++) {
        uint32_t length = index == 2 ? 7 : 100;
        struct wire_packet packet;
        wire_bulk_header(&bulk, index, 0, crc32c_portable, datagram);
        cr_assert(parses(datagram, WIRE_BULK_HEADER_BYTES + length, &packet));
        cr_assert(packet.index == index && packet.count == 3 && packet.flags == WIRE_SEQUENCED);
        struct wire_frame frame = next_of(&packet, FRAME_DATA);
        cr_assert(frame.data.conn == 4 && frame.data.msg == 6 && frame.data.total == bulk.msg_total);
        cr_assert_eq(frame.data.offset, bulk.bulk_offset + index * 100);
        cr_assert_eq(frame.data.length, length);
        cr_assert_eq(frame.data.payload, datagram + WIRE_BULK_HEADER_BYTES);
        cr_assert_not(parses(datagram, WIRE_BULK_HEADER_BYTES + length - 1, &packet));
    }
}

Test(wire, the_next_of_a_chunk_follows)
{
    struct tx_desc bulk = bulk_of(9);
    uint8_t first[WIRE_BULK_HEADER_BYTES], header[WIRE_BULK_HEADER_BYTES];
    wire_bulk_header(&bulk, 2, 0, crc32c_portable, first);
    for (unsigned index = 0; index < 9; index++) {
        wire_bulk_header(&bulk, index, 0, crc32c_portable, header);
        for (unsigned ahead = 0; ahead < 9; ahead++) {
            cr_assert_eq(wire_follows(first, ahead, header, 100), ahead + 2 == index && index < 8);
            cr_assert_eq(wire_follows(first, ahead, header, 7), ahead + 2 == index && index == 8);
        }
    }
}

Test(wire, every_truncation_is_rejected)
{
    struct wire_packet packet;
    build();
    for (uint32_t length = 0; length < total_bytes; length++) {
        uint8_t *exact = malloc(length ? length : 1); /* a sanitizer sees what is read beyond it */
        memcpy(exact, datagram, length);
        wire_token(exact, length);
        cr_assert_not(parses(exact, length, &packet), "%u of %u bytes were accepted", length, total_bytes);
        free(exact);
    }
}

Test(wire, every_bit_flip_of_the_header_is_rejected)
{
    struct wire_packet packet;
    build();
    for (uint32_t bit = 0; bit < header_bytes * 8; bit++) {
        datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_not(parses(datagram, total_bytes, &packet), "flipped bit %u was accepted", bit);
        datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

Test(wire, every_bit_flip_of_the_payload_is_noticed_with_its_checksum)
{
    struct wire_packet packet;
    build();
    for (uint32_t bit = header_bytes * 8; bit < total_bytes * 8; bit++) {
        datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert(parses(datagram, total_bytes, &packet));
        cr_assert_not(wire_payload_intact(&packet, crc32c_portable));
        datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* Seals a datagram of one frame whose bytes were tampered with. */
static bool accepts_frame(uint32_t bytes)
{
    struct wire_packet packet;
    desc = (struct tx_desc){.kind = TX_FRAMES, .count = 1, .sequenced = true, .token = 1};
    wire_set_header_length(datagram, (uint16_t)(WIRE_HEADER_BYTES + bytes));
    wire_seal(&desc, 0, datagram, WIRE_HEADER_BYTES + bytes, crc32c_portable);
    return parses(datagram, WIRE_HEADER_BYTES + bytes, &packet);
}

Test(wire, bounds_of_frames)
{
    uint8_t *frame = datagram + WIRE_HEADER_BYTES;
    const struct wire_flow closed = {FLOW_CLOSED};
    uint32_t bytes = wire_put_flow(frame, &closed);
    cr_assert(accepts_frame(bytes));
    cr_assert(accepts_frame(0));
    frame[1] = 1; /* neither closed nor anything else that there is */
    cr_assert_not(accepts_frame(bytes));
    for (unsigned kind = 0; kind < 256; kind++) { /* unknown, reserved, or too short */
        wire_put_flow(frame, &closed);
        frame[0] = (uint8_t)kind;
        cr_assert_eq(accepts_frame(bytes), kind == FRAME_FLOW, "kind %u", kind);
    }
    struct wire_ack ack = {0};
    for (unsigned field = 1; field < 4; field++) { /* counts beyond their bounds */
        bytes = wire_put_ack(frame, &ack);
        memset(frame + bytes, 0, 600);
        frame[field] = 17;
        cr_assert_not(accepts_frame(600));
    }
    struct wire_eager beyond = {.total = 10, .offset = 11};
    bytes = wire_put_eager(frame, &beyond);
    cr_assert_not(accepts_frame(bytes), "offset beyond the total");
    beyond = (struct wire_eager){.total = 10, .offset = 10, .length = 0};
    bytes = wire_put_eager(frame, &beyond);
    cr_assert(accepts_frame(bytes));
    beyond.length = 1; /* more than there is */
    bytes = wire_put_eager(frame, &beyond);
    cr_assert_not(accepts_frame(bytes));
    bytes = wire_put_abort(frame, &end_send);
    frame[2] = frame[3] = 0; /* ended with success: not early */
    cr_assert_not(accepts_frame(bytes));
    bytes = wire_put_cts(frame, &grant_cts);
    cr_assert(accepts_frame(bytes));
    for (unsigned less = 1; less < bytes - WIRE_CTS_BYTES; less++)
        cr_assert_not(accepts_frame(bytes - less), "half an entry");
    frame[WIRE_CTS_BYTES + 9] = 0x40; /* slot 2^14 and more */
    cr_assert_not(accepts_frame(bytes));
    for (unsigned pairs = 0; pairs < 256; pairs++) { /* with a key for each, of up to four */
        bytes = wire_put_cts(frame, &grant_cts);
        frame[WIRE_CTS_BYTES + 10] = (uint8_t)pairs;
        bytes = WIRE_CTS_BYTES + WIRE_CTS_ENTRY_BYTES + 4 * (unsigned)__builtin_popcount(pairs);
        cr_assert_eq(accepts_frame(bytes), pairs > 0 && pairs < 16);
    }
    bytes = wire_put_cts(frame, &grant_cts);
    frame[WIRE_CTS_BYTES + 11] = 1;
    cr_assert_not(accepts_frame(bytes));
    bytes = wire_put_cts(frame, &grant_cts);
    frame[1] = 2; /* entries */
    memset(frame + bytes, 0, WIRE_CTS_ENTRY_BYTES);
    cr_assert_not(accepts_frame(bytes + WIRE_CTS_ENTRY_BYTES));
    for (unsigned what = 0; what < 256; what++) {
        bytes = wire_put_qp(frame, &offer);
        frame[1] = (uint8_t)what;
        cr_assert_eq(accepts_frame(bytes), what >= QP_OFFER && what <= QP_DRAINED);
    }
    bytes = wire_put_qp(frame, &(struct wire_qp){.what = QP_READY, .path = 1});
    cr_assert_not(accepts_frame(bytes), "generation 0");
}

Test(wire, bounds_of_frame_count)
{
    static uint8_t large[WIRE_HEADER_BYTES + (CORE_FRAMES_MAX + 1) * WIRE_FLOW_BYTES];
    struct wire_packet packet;
    for (unsigned i = 0; i <= CORE_FRAMES_MAX; i++)
        wire_put_flow(large + WIRE_HEADER_BYTES + i * WIRE_FLOW_BYTES, &(struct wire_flow){FLOW_CLOSED});
    desc = (struct tx_desc){.kind = TX_FRAMES, .count = 1, .token = 1};
    wire_set_header_length(large, (uint16_t)(sizeof large - WIRE_FLOW_BYTES));
    wire_seal(&desc, 0, large, sizeof large, crc32c_portable);
    cr_assert(parses(large, sizeof large, &packet));
    wire_set_header_length(large, (uint16_t)sizeof large);
    wire_seal(&desc, 0, large, sizeof large, crc32c_portable);
    cr_assert_not(parses(large, sizeof large, &packet));
}

Test(wire, bounds_of_the_packet_header)
{
    struct wire_packet packet;
    desc = (struct tx_desc){.kind = TX_FRAMES, .count = 64, .token = 1};
    wire_set_header_length(datagram, WIRE_HEADER_BYTES);
    wire_seal(&desc, 63, datagram, WIRE_HEADER_BYTES, crc32c_portable);
    cr_assert(parses(datagram, WIRE_HEADER_BYTES, &packet));
    for (unsigned count = 0; count < 256; count += 5) { /* none, too many, or fewer than the index says */
        desc.count = (uint8_t)count;
        wire_seal(&desc, 63, datagram, WIRE_HEADER_BYTES, crc32c_portable);
        cr_assert_not(parses(datagram, WIRE_HEADER_BYTES, &packet), "count %u", count);
    }
    cr_assert_eq(wire_token(datagram, WIRE_HEADER_BYTES - 1), 0);
    datagram[0]++;
    cr_assert_eq(wire_token(datagram, WIRE_HEADER_BYTES), 0, "another version");
}

Test(wire, numbers_expand_to_the_nearest)
{
    const uint64_t expected[] = {0,
                                 1,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 UINT64_C(0x100000000),
                                 UINT64_C(0x1ffffffff),
                                 UINT64_C(0x123456789abcdef0)};
    for (unsigned i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        for (int64_t away = -0x7fffffff; away <= 0x7fffffff; away += 0x1ffffff) {
            uint64_t number = expected[i] + (uint64_t)away;
            cr_assert_eq(wire_expand((uint32_t)number, expected[i]), number);
        }
    }
}

Test(wire, immediates_name_slot_and_sequence)
{
    static const uint64_t near[] = {0, 1, 1000, (1 << 18) - 1, 1 << 18, UINT64_C(0xffffffff), UINT64_C(1) << 40};
    for (unsigned i = 0; i < sizeof near / sizeof near[0]; i++) {
        for (int64_t distance = -1024; distance <= 1024; distance += 64) {
            if (distance < 0 && near[i] < (uint64_t)-distance)
                continue;
            uint64_t seq = near[i] + (uint64_t)distance;
            uint32_t immediate = wire_immediate(WIRE_SLOTS_MAX - 1 - i, seq);
            cr_assert_eq(wire_immediate_slot(immediate), WIRE_SLOTS_MAX - 1 - i);
            cr_assert_eq(wire_immediate_seq(immediate, near[i]), seq);
            cr_assert_eq(wire_immediate_after(immediate, 3), wire_immediate(WIRE_SLOTS_MAX - 1 - i, seq + 3));
        }
    }
    cr_assert_gt(wire_immediate_seq(wire_immediate(0, UINT64_MAX), 0), UINT64_MAX / 2, "before the beginning");
}

Test(wire, a_datagram_says_that_it_goes_over_a_queue_pair)
{
    struct wire_packet packet;
    struct tx_desc bulk = {
        .kind = TX_BULK, .count = 1, .sequenced = true, .token = 99, .bulk_last = 1, .msg_total = 1, .on_path = true};
    uint8_t bytes[WIRE_BULK_HEADER_BYTES + 1] = {0};
    wire_bulk_header(&bulk, 0, 0, crc32c_portable, bytes);
    cr_assert(parses(bytes, sizeof bytes, &packet));
    cr_assert_eq(packet.flags, WIRE_SEQUENCED | WIRE_ON_PATH);
}
