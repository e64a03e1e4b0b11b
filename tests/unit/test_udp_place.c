/* SPDX-License-Identifier: Apache-2.0 */
/* Large datagrams, also in trains, are received with their payload where it belongs; all others are not. */
#include "udp_pair.h"

enum { LARGE = 40000 + WIRE_BULK_HEADER_BYTES, TRAIN = 1472, ROUNDS = 3 };

/* The kernel may drop a datagram between the look at it and its receipt, for its checksum. */
static bool drops_next;

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    static uint8_t dropped[UDP_RX_BYTES];
    if (drops_next && !(flags & MSG_PEEK)) {
        drops_next = false;
        cr_assert_gt(recv(fd, dropped, sizeof dropped, MSG_DONTWAIT), 0);
    }
    return __real_recvmsg(fd, message, flags);
}

/* Sends a chunk and takes the one buffer that it comes in. */
static struct nic_rx pass(struct pair *pair, const struct tx_desc *desc)
{
    struct nic_rx rx;
    uint64_t until = now_ns() + DEADLINE_NS;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    while (udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1) == 0) {
        cr_assert_lt(now_ns(), until, "nothing came");
        sleep_in(&pair->queues[1]->base, 10000000);
    }
    return rx;
}

Test(udp_place, large_datagrams_go_where_they_belong, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 1, LARGE, LARGE);
    uint8_t *target = malloc(LARGE);
    struct nic_rx rx = pass(pair, &desc); /* the first one teaches it */
    cr_assert_eq(rx.in_place, 0);
    udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct wire_packet packet;
        memset(target, 0xee, LARGE);
        place_to = target;
        place_count = 1;
        places = 0;
        rx = pass(pair, &desc);
        cr_assert_eq(places, 1);
        cr_assert_eq(rx.in_place, 1);
        cr_assert_eq(rx.payload, target);
        cr_assert_eq(rx.length, LARGE);
        cr_assert_eq(rx.stride, LARGE);
        cr_assert(wire_parse(rx.data, rx.length, crc32c_portable, &packet));
        cr_assert_eq(memcmp(target, pair->msg.bytes + desc.bulk_offset, desc.bulk_last), 0);
        cr_assert_eq(target[desc.bulk_last], 0xee, "written beyond the payload");
        udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    }
    free(target);
    close_pair(pair);
}

Test(udp_place, without_a_place_they_come_as_any_other, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 1, LARGE, LARGE);
    place_to = NULL;
    for (unsigned round = 0; round < ROUNDS; round++) {
        places = 0;
        send_and_receive(pair, &desc, check_bulk, 1);
        cr_assert_eq(places > 0, round > 0);
    }
    close_pair(pair);
}

/* `count` datagrams of `bytes` each come as one, and as any other. */
static void assert_not_placed(struct pair *pair, unsigned count, uint32_t bytes)
{
    struct tx_desc train = bulk(pair, count, bytes, bytes);
    places = 0;
    for (unsigned round = 0; round < ROUNDS; round++)
        send_and_receive(pair, &train, check_bulk, 1);
    cr_assert_eq(places, 0);
}

Test(udp_place, trains_of_short_datagrams_are_not_placed, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc large = bulk(pair, 1, LARGE, LARGE);
    uint8_t target[1];
    place_to = NULL;
    send_and_receive(pair, &large, check_bulk, 1);
    place_to = target;
    place_count = 64;
    assert_not_placed(pair, 40, TRAIN);
    close_pair(pair);
}

Test(udp_place, trains_go_where_they_belong, .timeout = 30)
{
    enum { JUMBO = 8972, COUNT = 7, LAST = 3000, STEP = JUMBO - WIRE_BULK_HEADER_BYTES };
    enum { PAYLOAD = (COUNT - 1) * STEP + LAST - WIRE_BULK_HEADER_BYTES };
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, COUNT, JUMBO, LAST);
    uint8_t *target = malloc(PAYLOAD + 1);
    place_to = NULL;
    send_and_receive(pair, &desc, check_bulk, 1);                /* teaches it */
    for (place_count = 0; place_count <= COUNT; place_count++) { /* so many are awaited */
        memset(target, 0xee, PAYLOAD + 1);
        place_to = target;
        places = 0;
        struct nic_rx rx = pass(pair, &desc);
        cr_assert_eq(places, 1);
        cr_assert_eq(rx.length, (COUNT - 1) * JUMBO + LAST);
        cr_assert_eq(rx.stride, JUMBO);
        cr_assert_eq(rx.in_place, place_count);
        for (unsigned i = 0; i < COUNT; i++) {
            struct wire_packet packet;
            uint32_t length = length_of(&desc, i);
            const uint8_t *datagram = rx.data + i * JUMBO, *payload = nic_rx_payload(&rx, i);
            cr_assert(wire_parse(datagram, length, crc32c_portable, &packet));
            cr_assert_eq(packet.index, i);
            cr_assert_eq(payload, i < place_count ? target + i * STEP : NULL);
            cr_assert_eq(memcmp(payload ? payload : datagram + WIRE_BULK_HEADER_BYTES,
                                pair->msg.bytes + desc.bulk_offset + i * STEP, length - WIRE_BULK_HEADER_BYTES),
                         0);
        }
        cr_assert_eq(target[place_count == COUNT ? PAYLOAD : place_count * STEP], 0xee, "more was written");
        udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    }
    free(target);
    close_pair(pair);
}

/* Small datagrams between, which are looked at and received as any other; when they are alone, by many at once again.
 */
Test(udp_place, looks_end_when_nothing_large_comes, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc large = bulk(pair, 1, LARGE, LARGE), small = bulk(pair, 1, TRAIN, TRAIN);
    place_to = NULL;
    send_and_receive(pair, &large, check_bulk, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t before = atomic_load(&pair->counters[1].rx_syscalls);
        send_and_receive(pair, &small, check_bulk, 1);
        uint64_t calls = atomic_load(&pair->counters[1].rx_syscalls) - before;
        if (round > 0)
            cr_assert_leq(calls, 2, "%lu calls", (unsigned long)calls);
    }
    close_pair(pair);
}

/* Another of the same length then stands where the one that was seen belongs: it is not taken for that. */
Test(udp_place, what_was_seen_may_not_come, .timeout = 30)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 1, LARGE, LARGE), other = desc;
    uint8_t *target = malloc(LARGE);
    struct nic_rx rx = pass(pair, &desc);
    udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    other.seq++;
    other.msg_number++;
    other.bulk_offset += 5000;
    place_to = target;
    place_count = 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &other));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
        drops_next = true;
        for (uint64_t until = now_ns() + DEADLINE_NS; drops_next;) {
            cr_assert_lt(now_ns(), until);
            cr_assert_eq(udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1), 0,
                         "it stands at the place of the other");
            if (drops_next)
                sleep_in(&pair->queues[1]->base, 10000000);
        }
        rx = pass(pair, &desc); /* it comes again */
        cr_assert_eq(rx.in_place, 1);
        cr_assert_eq(memcmp(target, pair->msg.bytes + desc.bulk_offset, desc.bulk_last), 0);
        udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    }
    free(target);
    close_pair(pair);
}
