/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams put together from fragments: in any order, more than once, unfinished, and full of lies. */
#include "duo.h"

TestSuite(image, .timeout = 20);

enum { PAYLOAD = 4000, IMAGE = WIRE_HEADER_BYTES + WIRE_EAGER_BYTES + PAYLOAD };
enum { HEADER = WIRE_HEADER_BYTES + WIRE_FRAGMENT_BYTES };

static uint8_t image[65536];
static struct flow *flows[8]; /* of side 1; the first is duo_flow[1] */
static uint64_t tokens[8];

static void open_large(void)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].datagram_bytes = 8972;
    duo_open_as(false);
    flows[0] = duo_flow[1];
    tokens[0] = duo_setup[1].rx_token;
    for (unsigned i = 1; i < 8; i++) {
        struct flow_setup setup = duo_setup[1];
        setup.rx_token = tokens[i] = core_make_token(5000 + i, 10 + i);
        setup.rails[0].destination = 10 + i;
        flows[i] = core_flow_open(duo_core[1], duo_zeroed(core_flow_size(&duo_params, &setup)), &setup, duo_now);
    }
}

/* A datagram of a flow with an eager message of connection 0, as it would have arrived. */
static void make_image(unsigned flow, uint64_t seq, uint32_t number)
{
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .sequenced = true,
                           .retransmission = true,
                           .seq = seq,
                           .path_seq = (uint32_t)seq + 1,
                           .token = tokens[flow],
                           .time_stamp = wire_time(duo_now)};
    struct wire_eager eager = {
        .conn = 1, .msg = number, .total = PAYLOAD, .length = PAYLOAD, .ring = number * ((PAYLOAD + 63) / 64 * 64)};
    unsigned header = WIRE_HEADER_BYTES + wire_put_eager(image + WIRE_HEADER_BYTES, &eager);
    for (unsigned i = 0; i < PAYLOAD; i++)
        image[header + i] = duo_byte(number, i);
    wire_set_header_length(image, (uint16_t)header);
    wire_seal(&desc, 0, image, IMAGE, crc32c_portable);
}

/* Side 1 receives bytes of the image, as a fragment that may say anything. */
static bool receive(unsigned flow, const struct wire_fragment *fragment, bool sequenced)
{
    static uint8_t packet[HEADER + 8192];
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .sequenced = sequenced,
                           .token = tokens[flow],
                           .path_seq = 1,
                           .time_stamp = wire_time(duo_now)};
    wire_put_fragment(packet + WIRE_HEADER_BYTES, fragment);
    memcpy(packet + HEADER, image + fragment->offset, fragment->length);
    wire_set_header_length(packet, HEADER);
    wire_seal(&desc, 0, packet, HEADER + fragment->length, crc32c_portable);
    bool good = core_rx(duo_core[1], packet, HEADER + fragment->length, false, duo_now);
    memset(packet, 0xaa, sizeof packet); /* nothing refers to it */
    duo_copies(1);
    duo_events(1);
    return good;
}

static bool piece(unsigned flow, uint32_t number, uint32_t offset, uint32_t length)
{
    return receive(flow, &(struct wire_fragment){number, offset, length, IMAGE, NULL}, false);
}

static uint64_t malformed(void)
{
    return duo_count(&duo_counters[1].rx_malformed);
}

static uint64_t images(void)
{
    return duo_count(&duo_counters[1].rx_images);
}

/* Cut anywhere, in any order, some of it twice: it arrives once, as if it had come whole. */
Test(image, any_order, .init = open_large)
{
    struct rng dice = {3};
    for (uint32_t number = 0; number < 12; number++) {
        uint32_t at[64], lengths[64], count = 0;
        struct duo_request *recv = duo_recv(1, PAYLOAD);
        make_image(0, number, number);
        for (uint32_t offset = 0; offset < IMAGE; offset += lengths[count++]) {
            uint32_t length = WIRE_FRAGMENT_UNIT * (1 + rng_below(&dice, 9));
            at[count] = offset;
            lengths[count] = length < IMAGE - offset ? length : IMAGE - offset;
        }
        for (uint32_t left = count; left > 0; left--) {
            uint32_t i = rng_below(&dice, left);
            cr_assert_eq(images(), number, "not before it is whole");
            cr_assert(piece(0, number, at[i], lengths[i]));
            if (left > 1 && rng_below(&dice, 2))
                cr_assert(piece(0, number, at[i], lengths[i]));
            at[i] = at[left - 1];
            lengths[i] = lengths[left - 1];
        }
        cr_assert_eq(images(), number + 1);
        duo_assert_ended(recv, UCCL_OK, PAYLOAD);
        cr_assert_eq(duo_flow[1]->sack.cumulative, number + 1, "it is acked");
        cr_assert(duo_flow[1]->ack.now, "at once: it is a retransmission");
    }
    cr_assert_eq(malformed(), 0);
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), 0);
    cr_assert_eq(duo_count(&duo_counters[1].msgs_received), 12);
}

static void whole(unsigned flow, uint32_t number)
{
    piece(flow, number, 0, 2048);
    piece(flow, number, 2048, IMAGE - 2048);
}

/* The same datagram twice, in pieces or whole: a duplicate, as ever. */
Test(image, duplicates, .init = open_large)
{
    struct duo_request *recv = duo_recv(1, PAYLOAD);
    make_image(0, 0, 0);
    whole(0, 1);
    whole(0, 2);
    core_rx(duo_core[1], image, IMAGE, false, duo_now);
    duo_copies(1);
    duo_assert_ended(recv, UCCL_OK, PAYLOAD);
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), 2);
    cr_assert_eq(images(), 2);
    cr_assert_eq(duo_flow[1]->sack.cumulative, 1);
}

/* Fragments that contradict themselves or the ones before them. */
Test(image, lies_in_fragments, .init = open_large)
{
    static const struct wire_fragment shapes[] = {
        {1, 0, 0, IMAGE, NULL},                                                        /* of nothing */
        {1, 100, 128, IMAGE, NULL},                                                    /* between units */
        {1, 0, 200, IMAGE, NULL},                                                      /* ends between units */
        {1, 3968, 256, IMAGE, NULL},                                                   /* beyond the end */
        {1, 0, 128, 127, NULL},      {1, 65408, 128, CORE_TRAIN_BYTES_MAX + 64, NULL}, /* larger than any datagram */
    };
    uint64_t before = 0;
    make_image(0, 0, 0);
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        cr_assert_not(receive(0, &shapes[i], false), "shape %u", i);
        cr_assert_eq(malformed(), ++before);
    }
    cr_assert(piece(0, 7, 0, 2048));
    receive(0, &(struct wire_fragment){7, 2048, 128, IMAGE + 128, NULL}, false); /* another total */
    cr_assert_eq(malformed(), ++before);
    cr_assert(
        receive(0, &(struct wire_fragment){8, 0, 128, IMAGE, NULL}, true)); /* with a number: acked, and nothing else */
    cr_assert_eq(malformed(), ++before);
    cr_assert_eq(images(), 0);
    cr_assert(piece(0, 7, 2048, IMAGE - 2048), "what was begun goes on");
    cr_assert_eq(images(), 1);
}

/* A fragment is alone in its packet, whatever comes before or behind it. */
Test(image, alone_in_its_packet, .init = open_large)
{
    uint8_t packet[512] = {0};
    struct tx_desc desc = {.kind = TX_FRAMES, .count = 1, .token = tokens[0]};
    struct wire_fragment fragment = {.length = 16, .total = 16};
    for (unsigned first = 0; first < 3; first++) {
        uint8_t *at = packet + WIRE_HEADER_BYTES;
        if (first == 1)
            at += wire_put_probe(at, &(struct wire_probe){.nonce = 1});
        at += wire_put_fragment(at, &fragment);
        if (first == 0)
            at += wire_put_probe(at, &(struct wire_probe){.nonce = 1});
        if (first == 2)
            at += wire_put_fragment(at, &fragment);
        wire_set_header_length(packet, (uint16_t)(at - packet));
        wire_seal(&desc, 0, packet, (uint32_t)(at - packet) + 64, crc32c_portable);
        cr_assert_not(core_rx(duo_core[1], packet, (size_t)(at - packet) + 64, false, duo_now));
        cr_assert_eq(malformed(), first + 1);
        cr_assert_eq(duo_flow[1]->rails->probe.due, 0, "nothing of it acts");
    }
}

/* What the fragments make is no datagram that may come so: nothing acts. */
Test(image, lies_in_images, .init = open_large)
{
    static const uint8_t versions[] = {0, 255};
    struct tx_desc desc = {.kind = TX_FRAMES, .count = 1, .token = tokens[0], .path_seq = 1};
    uint64_t before = 0;
    duo_recv(1, PAYLOAD);
    make_image(1, 0, 0); /* of another flow */
    whole(0, 1);
    cr_assert_eq(malformed(), ++before);
    make_image(0, 0, 0);
    image[40] ^= 1; /* a wrong checksum */
    whole(0, 2);
    cr_assert_eq(malformed(), ++before);
    make_image(0, 0, 0);
    wire_seal(&desc, 0, image, IMAGE, crc32c_portable); /* without a number: such are never repeated */
    whole(0, 3);
    cr_assert_eq(malformed(), ++before);
    make_image(0, 0, 0);
    image[0] = versions[0];
    whole(0, 4);
    cr_assert_eq(malformed(), ++before);
    make_image(0, 0, 0);
    desc = (struct tx_desc){.kind = TX_FRAMES, .count = 1, .token = tokens[0], .sequenced = true, .on_path = true};
    wire_seal(&desc, 0, image, IMAGE, crc32c_portable); /* of a queue pair */
    whole(0, 5);
    cr_assert_eq(malformed(), ++before);
    receive(0, &(struct wire_fragment){6, 0, 16, 16, NULL}, false); /* shorter than a header */
    cr_assert_eq(malformed(), ++before);
    cr_assert_eq(images(), 0);
    cr_assert_eq(duo_flow[1]->sack.cumulative, 0);
    /* a fragment inside: it has a number, and so no business there */
    desc = (struct tx_desc){.kind = TX_FRAMES, .count = 1, .token = tokens[0], .sequenced = true, .path_seq = 1};
    wire_put_fragment(image + WIRE_HEADER_BYTES, &(struct wire_fragment){.length = 64, .total = 64});
    wire_set_header_length(image, HEADER);
    wire_seal(&desc, 0, image, HEADER + 64, crc32c_portable);
    receive(0, &(struct wire_fragment){7, 0, HEADER + 64, HEADER + 64, NULL}, false);
    cr_assert_eq(malformed(), ++before);
    cr_assert_eq(duo_count(&duo_counters[1].msgs_received), 0);
}

static unsigned held_by(uint64_t token)
{
    unsigned count = 0;
    for (unsigned i = 0; i < IMAGES_MAX; i++)
        count += duo_core[1]->images.all[i].token == token;
    return count;
}

/* A peer that finishes nothing has its share, and no more. */
Test(image, share_of_a_flow, .init = open_large)
{
    make_image(0, 0, 0);
    for (uint32_t number = 0; number < 100; number++) {
        cr_assert(piece(1, number, 0, 128));
        duo_now += US;
        cr_assert_leq(held_by(tokens[1]), IMAGES_OF_FLOW_MAX);
    }
    cr_assert_eq(held_by(tokens[1]), IMAGES_OF_FLOW_MAX);
    whole(0, 1);
    cr_assert_eq(images(), 1);
}

/* Nor do many of them keep others out: the oldest goes first. */
Test(image, all_buffers_taken, .init = open_large)
{
    make_image(0, 0, 0);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned flow = 1; flow < 8; flow++) {
            cr_assert(piece(flow, round, 0, 128));
            duo_now += US;
        }
        make_image(0, round, round);
        duo_recv(1, PAYLOAD);
        piece(0, round, 0, 2048);
        cr_assert_eq(held_by(tokens[0]), 1);
        cr_assert(piece(1, 1000 + round, 0, 128));
        piece(0, round, 2048, IMAGE - 2048);
        cr_assert_eq(images(), round + 1);
    }
}

/* Half of an image, and its other half after a long time, make no whole. */
Test(image, too_late, .init = open_large)
{
    make_image(0, 0, 0);
    piece(0, 1, 0, 2048);
    duo_now += 2 * IMAGE_LIFETIME_NS;
    piece(0, 1, 2048, IMAGE - 2048);
    cr_assert_eq(images(), 0);
    piece(0, 1, 0, 2048);
    cr_assert_eq(images(), 1);
}

/* The engines of older features: fragments are illegal. */
Test(image, without_the_feature, .init = open_large)
{
    duo_flow[1]->features &= ~(UINT64_C(1) << FRAME_FRAGMENT);
    make_image(0, 0, 0);
    whole(0, 1);
    cr_assert_eq(images(), 0);
    cr_assert_eq(malformed(), 2);
}
