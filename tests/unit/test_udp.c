/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP backend over real sockets on loopback. Each case runs over IPv4 and IPv6 with both I/O
 * drivers; where io_uring is forbidden its cases are skipped.
 */
#include "udp_pair.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A case for IPv4 and IPv6 with each driver. */
#define BOTH(name)                                                                                                     \
    static void name(unsigned io, const char *address);                                                                \
    Test(udp_mmsg, name, .timeout = 30)                                                                                \
    {                                                                                                                  \
        name(UDP_IO_MMSG, "127.0.0.1");                                                                                \
        name(UDP_IO_MMSG, "::1");                                                                                      \
    }                                                                                                                  \
    Test(udp_uring, name, .timeout = 30)                                                                               \
    {                                                                                                                  \
        name(UDP_IO_URING, "127.0.0.1");                                                                               \
        name(UDP_IO_URING, "::1");                                                                                     \
    }                                                                                                                  \
    static void name(unsigned io, const char *address)

BOTH(full_trains)
{
    struct pair *pair = open_pair(io, address);

    for (unsigned count = 1; count <= 44; count++) { /* a whole train is one buffer at the receiver, by GRO */
        struct tx_desc desc = bulk(pair, count, SMALL, count % 2 ? SMALL : 700);

        send_and_receive(pair, &desc, check_bulk, 1);
    }
    for (unsigned rounds = 0; rounds < 200; rounds++) { /* more than there are buffers */
        struct tx_desc desc = bulk(pair, 44, SMALL, WIRE_BULK_HEADER_BYTES + 1);

        desc.path = desc.port = (uint16_t)rounds;
        desc.payload_crc = rounds % 3 == 0;
        pair->msg.hidden = rounds % 2;
        send_and_receive(pair, &desc, check_bulk, 1);
    }
    cr_assert_gt(crc_calls, 0);
    close_pair(pair);
}

BOTH(sparse_masks)
{
    static const uint64_t masks[] = {1,
                                     2,
                                     0x8000000000000000,
                                     0x5555555555555555,
                                     0xaaaaaaaaaaaaaaaa,
                                     0xf0f0f0f0f0f0f0f1,
                                     0x7fffffffffffffff,
                                     0xfffffffffffffffe,
                                     UINT64_MAX};
    struct pair *pair = open_pair(io, address);

    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        struct tx_desc desc = bulk(pair, 64, 1000, 500);

        desc.mask = masks[i];
        send_and_receive(pair, &desc, check_bulk, 64);
        desc = bulk(pair, 7, 1000, 1000);
        desc.mask = masks[i]; /* bits beyond the count mean nothing */
        if ((desc.mask & 0x7f) == 0)
            continue;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
        receive(pair, &desc, check_bulk, desc.mask & 0x7f);
    }
    close_pair(pair);
}

BOTH(large_datagrams)
{
    struct pair *pair = open_pair(io, address);

    cr_assert_eq(pair->datagram_bytes, CORE_TRAIN_BYTES_MAX);
    for (unsigned i = 0; i < 100; i++) {
        struct tx_desc desc = bulk(pair, 1, CORE_TRAIN_BYTES_MAX, CORE_TRAIN_BYTES_MAX);

        pair->msg.hidden = i % 4 == 3;
        desc.payload_crc = i % 3 == 0;
        send_and_receive(pair, &desc, check_bulk, 1);
        desc = bulk(pair, 7, 8972, 5000); /* jumbo trains, headers and payload apart */
        desc.payload_crc = i % 3 == 0;
        send_and_receive(pair, &desc, check_bulk, 1);
        desc.mask = 0x6d;
        send_and_receive(pair, &desc, check_bulk, 7);
    }
    close_pair(pair);
}

static uint64_t check_frames(const struct tx_desc *desc, const struct pair *pair, const uint8_t *bytes, uint32_t length)
{
    struct wire_packet packet;
    const struct wire_frame *frame;

    cr_assert(wire_parse(bytes, length, crc32c_portable, &packet));
    cr_assert(wire_payload_intact(&packet, crc32c_portable));
    cr_assert_eq(length, length_of(desc, packet.index));
    while ((frame = wire_next_frame(&packet))) {
        cr_assert_eq(frame->kind, FRAME_EAGER);
        cr_assert_eq(memcmp(frame->eager.payload, pair->msg.bytes + frame->eager.msg, frame->eager.length), 0);
    }
    return UINT64_C(1) << packet.index;
}

/* A chunk of two datagrams of eager frames, whose `msg` is the offset of their bytes in the message: check_frames(). */
static struct tx_desc make_frames(struct pair *pair, uint8_t *buffer, struct tx_piece pieces[4])
{
    static const uint32_t offsets[4] = {0, 5000, 77, 100000}, lengths[4] = {100, 1, 600, 513};
    struct tx_desc desc = {
        .kind = TX_FRAMES,
        .count = 2,
        .sequenced = true,
        .path = 1,
        .port = 1,
        .destination = pair->destination,
        .mask = 3,
        .datagram_bytes = 1300, /* the second frame of the first datagram is made to fill it */
        .last_bytes = WIRE_HEADER_BYTES + 2 * WIRE_EAGER_BYTES + 600 + 513,
        .token = TOKEN,
        .buffer = buffer,
        .pieces = pieces,
        .piece_count = 4,
    };

    for (unsigned d = 0; d < 2; d++) {
        uint8_t *datagram = buffer + d * desc.datagram_bytes, *at = datagram + WIRE_HEADER_BYTES;
        uint32_t payload_at = d * desc.datagram_bytes + WIRE_HEADER_BYTES + 2 * WIRE_EAGER_BYTES;

        for (unsigned k = 2 * d; k < 2 * d + 2; k++) {
            uint32_t length = lengths[k];

            if (d == 0 && k == 1)
                length = desc.datagram_bytes - WIRE_HEADER_BYTES - 2 * WIRE_EAGER_BYTES - lengths[0];
            at += wire_put_eager(at,
                                 &(struct wire_eager){.conn = 3, .msg = offsets[k], .total = length, .length = length});
            pieces[k] = (struct tx_piece){
                .msg = &pair->msg.core, .offset_bytes = offsets[k], .length = length, .at = payload_at};
            payload_at += length;
        }
        wire_set_header_length(datagram, (uint16_t)(at - datagram));
    }
    return desc;
}

BOTH(frames_with_pieces)
{
    struct pair *pair = open_pair(io, address);
    uint8_t buffer[4096];
    struct tx_piece pieces[4];

    for (unsigned i = 0; i < 8; i++) {
        struct tx_desc desc;

        memset(buffer, 0, sizeof buffer);
        desc = make_frames(pair, buffer, pieces);
        pair->msg.hidden = i & 1;
        desc.payload_crc = i & 2;
        send_and_receive(pair, &desc, check_frames, 2);
        desc.mask = i & 4 ? 1 : 2;
        pieces[i & 4 ? 2 : 0].msg = NULL; /* its datagram was acked: not to be touched any more */
        pieces[i & 4 ? 3 : 1].msg = NULL;
        send_and_receive(pair, &desc, check_frames, 1);
    }
    close_pair(pair);
}

BOTH(empty_mask_sends_nothing)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 44, SMALL, SMALL);
    struct nic_rx rx;

    desc.mask = 0;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(pair->counters[0].tx_datagrams, 0);
    cr_assert_eq(pair->counters[0].tx_syscalls, 0);
    sleep_in(&pair->queues[1]->base, 2000000);
    cr_assert_eq(udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1), 0);
    close_pair(pair);
}

BOTH(small_sends_are_staged)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 16, 600, 600);

    for (unsigned i = 0; i < 15; i++) { /* the sixteenth would push all of them out */
        desc.mask = UINT64_C(1) << i;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    cr_assert_eq(pair->counters[0].tx_syscalls, 0);
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(pair->counters[0].tx_syscalls, 1);
    receive(pair, &desc, check_bulk, 0x7fff);
    for (unsigned i = 0; i < 16; i++) {
        desc.mask = UINT64_C(1) << i;
        desc.path = desc.port = (uint16_t)i; /* four sockets: a call for each */
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    cr_assert_eq(pair->counters[0].tx_syscalls, 5);
    receive(pair, &desc, check_bulk, 0xffff);
    close_pair(pair);
}

/* Without segmentation offload, or cut for a larger path MTU: every datagram is a send of its own.
 */
BOTH(one_by_one)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 44, SMALL, 100);
    struct udp_peer *peer = &pair->queues[0]->peers[pair->destination];

    peer->gso = false;
    send_and_receive(pair, &desc, check_bulk, 44);
    peer->gso = true;
    peer->datagram_bytes = 1000;
    send_and_receive(pair, &desc, check_bulk, 44);
    close_pair(pair);
}

BOTH(mtu_parameter_and_news)
{
    struct pair *pair = open_pair(io, address);
    uint32_t destination, bytes, headers = strchr(address, ':') ? 48 : 28;

    cr_assert_not(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    udp_check_mtu(pair->queues[0], pair->destination);
    cr_assert_not(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes), "nothing has changed");
    pair->params.mtu = 1500;
    udp_check_mtu(pair->queues[0], pair->destination);
    udp_check_mtu(pair->queues[0], pair->destination);
    cr_assert(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    cr_assert_eq(destination, pair->destination);
    cr_assert_eq(bytes, 1500 - headers);
    cr_assert_not(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    close_pair(pair);
}

/* A probe for its size is not cut by the kernel: it gets through as it is, or is lost; what the route takes is looked
 * at. */
BOTH(probe_is_not_cut)
{
    static uint8_t buffer[8192];
    struct pair *pair = open_pair(io, address);
    uint32_t destination, bytes, headers = strchr(address, ':') ? 48 : 28;
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .whole = true,
                           .destination = pair->destination,
                           .mask = 1,
                           .datagram_bytes = 4000,
                           .last_bytes = 4000,
                           .token = TOKEN,
                           .buffer = buffer};
    const _Atomic uint64_t *sent = &pair->counters[0].tx_datagrams;

    wire_set_header_length(buffer, WIRE_HEADER_BYTES);
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(atomic_load(sent), 1);
    pair->params.mtu = 1500;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc), "it is no back-pressure");
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(atomic_load(sent), 1);
    cr_assert(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    cr_assert_eq(bytes, 1500 - headers);
    desc.datagram_bytes = desc.last_bytes = bytes;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(atomic_load(sent), 2);
    close_pair(pair);
}

BOTH(many_peers)
{
    struct pair *pair = open_pair(io, address);
    uint32_t first = pair->destination, destinations[100];

    for (unsigned i = 0; i < 100; i++) {
        add_peer(pair, address);
        destinations[i] = pair->destination;
        cr_assert_neq(pair->destination, first);
    }
    for (unsigned i = 0; i < 100; i += 2)
        udp_datagram_ops.peer_remove(&pair->queues[0]->base, destinations[i]);
    add_peer(pair, address);
    cr_assert_leq(pair->destination, 100, "a number is used again");
    for (unsigned i = 1; i < 100; i += 2) {
        struct tx_desc desc = bulk(pair, 2, 600, 600);

        desc.destination = destinations[i];
        send_and_receive(pair, &desc, check_bulk, 1);
    }
    close_pair(pair);
}

/* ---- sleeping -------------------------------------------------------------------------------- */

BOTH(timeout_is_honoured)
{
    struct pair *pair = open_pair(io, address);
    static const uint64_t timeouts_ns[] = {0, 20000, 1000000, 20000000};

    for (size_t i = 0; i < sizeof timeouts_ns / sizeof timeouts_ns[0]; i++) {
        uint64_t start = now_ns(), took;

        sleep_in(&pair->queues[1]->base, timeouts_ns[i]);
        took = now_ns() - start;
        cr_assert_geq(took, timeouts_ns[i]);
        cr_assert_lt(took, timeouts_ns[i] + 500000000);
    }
    cr_assert_gt(pair->counters[1].wait_syscalls, 0);
    close_pair(pair);
}

static void *wake_later(void *argument)
{
    struct udp_queue *queue = argument;

    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    udp_queue_ops.wake(&queue->base);
    return NULL;
}

BOTH(wake_ends_wait)
{
    struct pair *pair = open_pair(io, address);
    pthread_t thread;
    uint64_t start;

    for (int i = 0; i < 3; i++) {
        cr_assert_eq(pthread_create(&thread, NULL, wake_later, pair->queues[1]), 0);
        start = now_ns();
        sleep_in(&pair->queues[1]->base, i == 0 ? UINT64_MAX : 10000000000);
        cr_assert_lt(now_ns() - start, 5000000000);
        pthread_join(thread, NULL);
    }
    udp_queue_ops.wake(&pair->queues[1]->base); /* before the wait counts too, and ends only one */
    udp_queue_ops.wake(&pair->queues[1]->base);
    start = now_ns();
    sleep_in(&pair->queues[1]->base, 10000000000);
    cr_assert_lt(now_ns() - start, 5000000000);
    start = now_ns();
    sleep_in(&pair->queues[1]->base, 20000000);
    cr_assert_geq(now_ns() - start, 20000000);
    close_pair(pair);
}

BOTH(data_ends_wait)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 1, 600, 600);

    for (int i = 0; i < 3; i++) {
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        udp_datagram_ops.flush(&pair->queues[0]->base);
        sleep_in(&pair->queues[1]->base, UINT64_MAX);
        cr_assert_eq(receive(pair, &desc, check_bulk, 1), 1);
    }
    close_pair(pair);
}

/* ---- congestion marks, overflow, strangers --------------------------------------------------- */

BOTH(ecn_marks_are_seen)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 4, 600, 600);
    struct nic_rx rx;
    int marked = 3; /* as a switch would leave it */

    desc.path = desc.port = 0;
    setsockopt(pair->queues[0]->sockets[0], IPPROTO_IP, IP_TOS, &marked, sizeof marked);
    setsockopt(pair->queues[0]->sockets[0], IPPROTO_IPV6, IPV6_TCLASS, &marked, sizeof marked);
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    udp_datagram_ops.flush(&pair->queues[0]->base);
    for (int tries = 0; udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1) == 0; tries++) {
        cr_assert_lt(tries, 100);
        sleep_in(&pair->queues[1]->base, 10000000);
    }
    cr_assert(rx.ce);
    cr_assert_eq(rx.stride, 600);
    udp_datagram_ops.release(&pair->queues[1]->base, &rx);
    close_pair(pair);
}

/* Floods the receiver, which looks only afterwards: drops are counted, and what comes then is
 * whole. */
BOTH(overflow_is_counted)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 44, SMALL, SMALL);
    struct nic_rx rx[64];
    unsigned count, buffers = 0;

    cr_assert_eq(udp_datagram_ops.poll(&pair->queues[1]->base, rx, 1), 0); /* receiving has begun, io_uring's too */
    for (unsigned i = 0; i < 1000; i++) {
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        udp_datagram_ops.flush(&pair->queues[0]->base);
    }
    for (int idle = 0; idle < 3;) {
        count = udp_datagram_ops.poll(&pair->queues[1]->base, rx, 64);
        idle = count == 0 ? idle + 1 : 0;
        for (unsigned i = 0; i < count; i++) {
            for (uint32_t at = 0; at < rx[i].length; at += rx[i].stride)
                check_bulk(&desc, pair, rx[i].data + at, SMALL);
            udp_datagram_ops.release(&pair->queues[1]->base, &rx[i]);
        }
        buffers += count;
    }
    cr_assert_gt(buffers, 10);
    cr_assert_lt(buffers, 1000);
    send_and_receive(pair, &desc, check_bulk, 1); /* tells the count */
    uint64_t drops = pair->counters[1].rx_kernel_drops;
    cr_assert_gt(drops, 0);
    for (unsigned i = 0; i < 3; i++)
        send_and_receive(pair, &desc, check_bulk, 1);
    cr_assert_eq(pair->counters[1].rx_kernel_drops, drops, "each is counted once");
    close_pair(pair);
}

BOTH(garbage_and_dead_ports_do_no_harm)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 3, SMALL, SMALL);
    union nic_address to = pair->queues[0]->peers[pair->destination].address;
    struct nic_rx rx;

    for (int i = 0; i < 100; i++) { /* many more than there are buffers */
        cr_assert_eq(sendto(pair->queues[0]->sockets[1], "", 0, 0, &to.any, sizeof to.v6), 0);
        cr_assert_eq(udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1), 0);
    }
    send_and_receive(pair, &desc, check_bulk, 1);
    cr_assert_eq(sendto(pair->queues[0]->sockets[1], "x", 1, 0, &to.any, sizeof to.v6), 1);
    for (int tries = 0; udp_datagram_ops.poll(&pair->queues[1]->base, &rx, 1) == 0; tries++) {
        cr_assert_lt(tries, 100);
        sleep_in(&pair->queues[1]->base, 10000000);
    }
    cr_assert_eq(rx.length, 1);
    udp_datagram_ops.release(&pair->queues[1]->base, &rx);

    /* a port where nobody listens answers with ICMP errors */
    pair->queues[0]->peers[pair->destination].address.v6.sin6_port = htons(1);
    for (int i = 0; i < 10; i++) {
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
        cr_assert_eq(udp_datagram_ops.poll(&pair->queues[0]->base, &rx, 1), 0);
    }
    pair->queues[0]->peers[pair->destination].address = to;
    send_and_receive(pair, &desc, check_bulk, 1);
    close_pair(pair);
}

/* What opens a firewall leaves the main port for one of the peer's other ports, each of which the address tells. */
BOTH(ports_are_told_and_opened)
{
    static uint8_t buffer[WIRE_HEADER_BYTES + WIRE_PROBE_BYTES];
    struct pair *pair = open_pair(io, address);
    struct udp_queue *from = pair->queues[0], *to = pair->queues[1];
    struct nic_queue_address told;
    udp_queue_ops.address(&to->base, &told);
    cr_assert_eq(nic_queue_ports(&told), to->socket_count);
    cr_assert_geq(to->socket_count, 2);
    for (uint16_t path = 0; path < to->socket_count; path++) {
        union nic_address own = {0}, sender = {0};
        socklen_t length = sizeof own;
        cr_assert_eq(getsockname(to->sockets[path], &own.any, &length), 0);
        cr_assert_eq(memcmp(told.bytes + 1 + 2 * path, &own.v4.sin_port, 2), 0,
                     "the port stands at one place in both families");
        if (path == 0)
            continue;
        wire_put_probe(buffer + WIRE_HEADER_BYTES, &(struct wire_probe){.nonce = 0});
        wire_set_header_length(buffer, sizeof buffer);
        struct tx_desc desc = {.kind = TX_FRAMES,
                               .count = 1,
                               .opens = true,
                               .path = path,
                               .port = path,
                               .destination = pair->destination,
                               .mask = 1,
                               .datagram_bytes = sizeof buffer,
                               .last_bytes = sizeof buffer,
                               .token = TOKEN,
                               .buffer = buffer};
        cr_assert(udp_datagram_ops.send(&from->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&from->base), 0);
        uint8_t got[sizeof buffer + 1];
        struct timeval limit = {.tv_sec = 2};
        setsockopt(to->sockets[path], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        length = sizeof sender;
        cr_assert_eq(recvfrom(to->sockets[path], got, sizeof got, 0, &sender.any, &length), sizeof buffer);
        cr_assert_eq(memcmp(got, buffer, sizeof buffer), 0);
        cr_assert_eq(ntohs(sender.v4.sin_port), from->ports[0]);
    }
    struct nic_rx rx;
    cr_assert_eq(udp_datagram_ops.poll(&to->base, &rx, 1), 0, "nothing for the main port");
    close_pair(pair);
}

BOTH(addresses_that_make_no_sense)
{
    static const struct nic_queue_address wrong[] = {{3, {NIC_ADDRESS_UDP, 0, 0}},
                                                     {1, {NIC_ADDRESS_UDP}},
                                                     {5, {NIC_ADDRESS_UDP, 5, 5, 0, 0}},
                                                     {2, {NIC_ADDRESS_UDP, 5}},
                                                     {4, {NIC_ADDRESS_UDP, 5, 5, 5}},
                                                     {3, {NIC_ADDRESS_VERBS, 5, 5}},
                                                     {2 * NIC_PORTS_TOLD_MAX + 3, {NIC_ADDRESS_UDP, 5, 5}}};
    struct pair *pair = open_pair(io, address);
    struct nic_host host = {.address = address_of(address)};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t destination, bytes;
        cr_assert_eq(udp_datagram_ops.peer_add(&pair->queues[0]->base, &host, &wrong[i], &destination, &bytes),
                     UCCL_EPROTO, "%zu", i);
    }
    close_pair(pair);
}

BOTH(places_of_peers_are_used_again)
{
    enum { COUNT = 20 };
    struct pair *pair = open_pair(io, address);
    struct nic_host host = {.address = address_of(address)};
    struct nic_queue_address of_queue;
    uint32_t destinations[COUNT], bytes;

    udp_queue_ops.address(&pair->queues[1]->base, &of_queue);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            cr_assert_eq(udp_datagram_ops.peer_add(&pair->queues[0]->base, &host, &of_queue, &destinations[i], &bytes),
                         0);
        cr_assert_eq(pair->queues[0]->peer_count, 1 + COUNT);
        for (unsigned i = 0; i < COUNT; i++)
            udp_datagram_ops.peer_remove(&pair->queues[0]->base, destinations[i]);
    }
    close_pair(pair);
}

/* Every so many descriptors, for as long as there are some. */
BOTH(the_mtu_is_asked_again)
{
    struct pair *pair = open_pair(io, address);
    struct tx_desc desc = bulk(pair, 1, SMALL, SMALL);
    struct udp_peer *peer = &pair->queues[0]->peers[pair->destination];

    for (unsigned round = 0; round < 3; round++) {
        peer->descs_to_check = 1;
        send_and_receive(pair, &desc, check_bulk, 1);
        cr_assert_eq(peer->descs_to_check, UDP_MTU_CHECK_SENDS);
    }
    close_pair(pair);
}

/* Of each socket: routers may mark what leaves it. */
BOTH(marks_are_asked_for)
{
    struct pair *pair = open_pair(io, address);

    for (uint32_t i = 0; i < pair->queues[0]->socket_count; i++) {
        int v4 = 0, v6 = 0;
        socklen_t length = sizeof v4;

        cr_assert_eq(getsockopt(pair->queues[0]->sockets[i], IPPROTO_IP, IP_TOS, &v4, &length), 0);
        cr_assert_eq(v4 & 3, 2, "ECT(0)");
        length = sizeof v6;
        if (pair->queues[0]->v6) {
            cr_assert_eq(getsockopt(pair->queues[0]->sockets[i], IPPROTO_IPV6, IPV6_TCLASS, &v6, &length), 0);
            cr_assert_eq(v6 & 3, 2, "ECT(0)");
        }
    }
    close_pair(pair);
}

Test(udp, an_ipv4_address_stays_the_same)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.1.2.3");
    struct udp_peer *peer = &pair->queues[0]->peers[pair->destination];
    struct in_addr expected = address_of("127.1.2.3").v4.sin_addr;

    if (pair->queues[0]->v6)
        cr_assert_eq(memcmp(&peer->address.v6.sin6_addr.s6_addr[12], &expected, 4), 0);
    else
        cr_assert_eq(peer->address.v4.sin_addr.s_addr, expected.s_addr);
    close_pair(pair);
}

/* News of a route are told once, however often it changed, and not of a peer that is gone. */
BOTH(news_of_routes_are_told_once)
{
    struct pair *pair = open_pair(io, address);
    struct nic_host host = {.address = address_of(address)};
    struct nic_queue_address of_queue;
    struct udp_queue *queue = pair->queues[0];
    uint32_t other, destination, bytes, told;

    udp_queue_ops.address(&pair->queues[1]->base, &of_queue);
    cr_assert_eq(udp_datagram_ops.peer_add(&queue->base, &host, &of_queue, &other, &bytes), 0);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 2; i++) {
            queue->peers[other].datagram_bytes = queue->peers[pair->destination].datagram_bytes = 600;
            udp_check_mtu(queue, round == 0 ? other : pair->destination);
            udp_check_mtu(queue, other);
        }
        for (told = 0; udp_datagram_ops.follow(&queue->base, &destination, &bytes); told++) {
            cr_assert(bytes > 600 && bytes == queue->peers[destination].datagram_bytes);
            cr_assert_lt(told, 2);
        }
        cr_assert_eq(told, round == 0 ? 1 : 2);
    }
    queue->peers[other].datagram_bytes = 600;
    udp_check_mtu(queue, other);
    udp_datagram_ops.peer_remove(&queue->base, other);
    cr_assert_not(udp_datagram_ops.follow(&queue->base, &destination, &bytes));
    close_pair(pair);
}

/* What peers are told of the receive buffer is what the kernel has granted. */
BOTH(receive_buffers_are_told_as_granted)
{
    struct pair *pair = open_pair(io, address);
    int granted = 0;
    socklen_t length = sizeof granted;

    cr_assert_eq(getsockopt(pair->queues[0]->sockets[0], SOL_SOCKET, SO_RCVBUF, &granted, &length), 0);
    cr_assert_eq(udp_queue_ops.rx_bytes(&pair->queues[0]->base), (uint64_t)granted);
    close_pair(pair);
}

/* ---- several NICs ------------------------------------------------------------------------------ */

/* What leaves by a NIC counts for it, datagram by datagram, also where the kernel cuts them apart. */
Test(udp_mmsg, sent_datagrams_count_for_their_nic)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct udp_queue *queue = pair->queues[0];
    struct tx_desc desc = bulk(pair, 20, SMALL, 500);

    queue->ends.links.count = 3;
    queue->peers[pair->destination].nic = 2;
    send_and_receive(pair, &desc, check_bulk, 20);
    cr_assert_eq(queue->base.ends[1].tx_datagrams, 20);
    cr_assert_eq(queue->base.ends[1].tx_bytes, 19 * SMALL + 500);
    for (unsigned i = 0; i < 3; i += 2)
        cr_assert(queue->base.ends[i].tx_datagrams == 0 && queue->base.ends[i].tx_bytes == 0);
    queue->ends.links.count = 0;
    close_pair(pair);
}

/* What the kernel tells of a NIC ends a sleep, and has the NICs looked at; each time. */
static void news_end_a_sleep(unsigned io)
{
    struct pair *pair = open_pair(io, "127.0.0.1");
    struct udp_queue *queue = pair->queues[0];
    struct nic_rx rx[8];
    uint64_t one = 1;

    queue->ends.links.netlink_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (unsigned i = 0; i < 3; i++) {
        queue->ends.links.look = false;
        udp_datagram_ops.poll(&queue->base, rx, 8);
        cr_assert_eq(write(queue->ends.links.netlink_fd, &one, sizeof one), (ssize_t)sizeof one);
        for (uint64_t until = now_ns() + DEADLINE_NS; !queue->ends.links.look && now_ns() < until;)
            sleep_in(&queue->base, DEADLINE_NS);
        cr_assert(queue->ends.links.look);
        cr_assert_eq(read(queue->ends.links.netlink_fd, &one, sizeof one), (ssize_t)sizeof one);
    }
    close_pair(pair);
}

Test(udp_mmsg, news_end_a_sleep_of_it)
{
    news_end_a_sleep(UDP_IO_MMSG);
}

#ifdef HAVE_LIBURING
Test(udp_uring, news_end_a_sleep_of_it)
{
    news_end_a_sleep(UDP_IO_URING);
}
#endif
