/* SPDX-License-Identifier: Apache-2.0 */
/* Large single datagrams are received with their payload where it belongs; all others are not. */
#include "udp_pair.h"

enum { LARGE = 40000 + WIRE_BULK_HEADER_BYTES, TRAIN = 1472, ROUNDS = 3 };

/* Sends a chunk and takes the one buffer that it comes in. */
static struct nic_rx pass(struct pair *pair, const struct tx_desc *desc)
{
    struct nic_rx rx;
    uint64_t until = now_ns() + DEADLINE_NS;
    cr_assert(nic_udp_ops.send(pair->queues[0], desc));
    cr_assert_eq(nic_udp_ops.flush(pair->queues[0]), 0);
    while (nic_udp_ops.poll(pair->queues[1], &rx, 1) == 0) {
        cr_assert_lt(now_ns(), until, "nothing came");
        nic_udp_ops.wait(pair->queues[1], 10000000);
    }
    return rx;
}

Test(udp_place, large_datagrams_go_where_they_belong, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc desc = bulk(pair, msg, 1, LARGE, LARGE);
    uint8_t *target = malloc(LARGE);
    struct nic_rx rx = pass(pair, &desc); /* the first one teaches it */
    cr_assert_null(rx.payload);
    nic_udp_ops.release(pair->queues[1], &rx);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct wire_packet packet;
        memset(target, 0xee, LARGE);
        place_to = target;
        places = 0;
        rx = pass(pair, &desc);
        cr_assert_eq(places, 1);
        cr_assert_eq(rx.payload, target);
        cr_assert_eq(rx.length, LARGE);
        cr_assert_eq(rx.stride, LARGE);
        cr_assert(wire_parse(rx.data, rx.length, crc32c_portable, &packet));
        cr_assert_eq(memcmp(target, msg->bytes + desc.bulk_offset, desc.bulk_last), 0);
        cr_assert_eq(target[desc.bulk_last], 0xee, "written beyond the payload");
        nic_udp_ops.release(pair->queues[1], &rx);
    }
    free(target);
    free_message(msg);
    close_pair(pair);
}

Test(udp_place, without_a_place_they_come_as_any_other, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc desc = bulk(pair, msg, 1, LARGE, LARGE);
    place_to = NULL;
    for (unsigned round = 0; round < ROUNDS; round++) {
        places = 0;
        send_and_receive(pair, &desc, msg, check_bulk, 1);
        cr_assert_eq(places > 0, round > 0);
    }
    free_message(msg);
    close_pair(pair);
}

Test(udp_place, trains_are_not_placed, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc large = bulk(pair, msg, 1, LARGE, LARGE), train = bulk(pair, msg, 40, TRAIN, TRAIN);
    uint8_t target[1];
    place_to = NULL;
    send_and_receive(pair, &large, msg, check_bulk, 1);
    places = 0;
    place_to = target;
    for (unsigned round = 0; round < ROUNDS; round++)
        send_and_receive(pair, &train, msg, check_bulk, 1);
    cr_assert_eq(places, 0);
    free_message(msg);
    close_pair(pair);
}
