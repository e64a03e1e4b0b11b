/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the UDP backend share: two queues in one thread that exchange real datagrams
 * over loopback, a message whose bytes are known, and receiving with every byte compared.
 */
#ifndef UCCL_TEST_UDP_PAIR_H
#define UCCL_TEST_UDP_PAIR_H

#include "core/crc32c.h"
#include "core/wire.h"
#include "nic/udp/udp.h"
#include "sleep_in.h"
#include "socket_pair.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum {
    MESSAGE_BYTES = 256 * 1024,
    SMALL = 1472,
    TOKEN = 0x1234567,
    DEADLINE_NS = 2000000000,
};

struct pair {
    struct params params;
    struct counters counters[2];
    struct nic *nic;
    struct udp_queue *queues[2];
    uint32_t destination, datagram_bytes; /* of queue 1, as queue 0 sees it */
    struct test_msg msg;
};

static char log_text[4096]; /* what keep_log() has been given */
static int crc_calls;       /* of counting_crc() */

static inline void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    strncat(log_text, text, sizeof log_text - strlen(log_text) - 1);
    strncat(log_text, "\n", sizeof log_text - strlen(log_text) - 1);
}

static inline uint32_t counting_crc(uint32_t crc, const void *data, size_t length)
{
    crc_calls++;
    return crc32c_portable(crc, data, length);
}

static uint8_t *place_to;    /* what test_target() answers */
static unsigned place_count; /* and for how many datagrams at most */
static unsigned places;      /* how often it was asked */

static inline void *test_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    (void)owner;
    places++;
    cr_assert(wire_is_bulk(header, stride));
    *count = (unsigned)((length + stride - 1) / stride);
    if (*count > place_count)
        *count = place_count;
    return place_to;
}

static inline int open_queue(struct pair *pair, int which, bool lent)
{
    struct nic_queue_setup setup = {
        .params = &pair->params,
        .counters = &pair->counters[which],
        .crc32c = counting_crc,
        .gather = test_gather,
        .payload = test_payload,
        .target = test_target,
        .lent = lent,
        .index = (unsigned)which,
    };

    struct nic_queue *queue = NULL;
    int status = udp_device_ops.queue_open(pair->nic, &setup, &queue);

    pair->queues[which] = udp_queue_of(queue);
    return status;
}

static inline void add_peer(struct pair *pair, const char *address)
{
    struct nic_host to = {.address = address_of(address)};
    struct nic_queue_address of_queue;

    udp_queue_ops.address(&pair->queues[1]->base, &of_queue);
    cr_assert_eq(
        udp_datagram_ops.peer_add(&pair->queues[0]->base, &to, &of_queue, &pair->destination, &pair->datagram_bytes),
        0);
}

static inline void init_params(struct params *params, unsigned io)
{
    params->udp_io = io;
    params->socket_buffer_kb = 4096;
    params->port_entropy = 4;
}

static inline struct pair *open_pair_of_class(unsigned io, const char *address, uint64_t traffic_class)
{
    struct pair *pair = calloc(1, sizeof *pair);

    init_params(&pair->params, io);
    pair->params.traffic_class = traffic_class;
    cr_assert_eq(udp_device_ops.open(&pair->params, &pair->nic), 0);
    for (int i = 0; i < 2; i++) {
        int status = open_queue(pair, i, false);

        if (status == UCCL_ENOTSUP)
            cr_skip_test("io_uring is not available here");
        cr_assert_eq(status, 0);
        cr_assert_gt(udp_queue_ops.rx_bytes(&pair->queues[i]->base), 0);
    }
    add_peer(pair, address);
    pair->msg = make_message(MESSAGE_BYTES);
    return pair;
}

static inline struct pair *open_pair(unsigned io, const char *address)
{
    return open_pair_of_class(io, address, 0);
}

static inline void close_pair(struct pair *pair)
{
    udp_datagram_ops.peer_remove(&pair->queues[0]->base, pair->destination);
    udp_queue_ops.close(&pair->queues[0]->base);
    udp_queue_ops.close(&pair->queues[1]->base);
    udp_device_ops.close(pair->nic);
    free(pair->msg.bytes);
    free(pair);
}

static inline struct tx_desc bulk(struct pair *pair, unsigned count, uint32_t datagram_bytes, uint32_t last_bytes)
{
    return (struct tx_desc){
        .kind = TX_BULK,
        .count = (uint8_t)count,
        .sequenced = true,
        .path = 5,
        .port = 5,
        .destination = pair->destination,
        .mask = UINT64_MAX >> (64 - count),
        .datagram_bytes = datagram_bytes,
        .last_bytes = last_bytes,
        .token = TOKEN,
        .seq = 77,
        .bulk_msg = &pair->msg.core,
        .bulk_offset = 1000,
        .bulk_stride = datagram_bytes - WIRE_BULK_HEADER_BYTES,
        .bulk_last = last_bytes - WIRE_BULK_HEADER_BYTES,
        .conn_id = 3,
        .msg_number = 9,
        .msg_total = MESSAGE_BYTES,
    };
}

static inline uint32_t length_of(const struct tx_desc *desc, unsigned index)
{
    return index + 1 == desc->count ? desc->last_bytes : desc->datagram_bytes;
}

/* Called for every datagram received; returns the bit to set in the mask of what has come. */
typedef uint64_t (*check_fn)(const struct tx_desc *desc, const struct pair *pair, const uint8_t *bytes,
                             uint32_t length);

static inline uint64_t check_bulk(const struct tx_desc *desc, const struct pair *pair, const uint8_t *bytes,
                                  uint32_t length)
{
    struct wire_packet packet;
    const struct wire_frame *frame;

    cr_assert(wire_parse(bytes, length, crc32c_portable, &packet));
    cr_assert(wire_payload_intact(&packet, crc32c_portable));
    cr_assert_eq(!!(packet.flags & WIRE_PAYLOAD_CRC), desc->payload_crc);
    cr_assert_eq(length, length_of(desc, packet.index));
    cr_assert((frame = wire_next_frame(&packet)));
    cr_assert_eq(frame->kind, FRAME_DATA);
    cr_assert_eq(frame->data.offset, desc->bulk_offset + (uint64_t)packet.index * desc->bulk_stride);
    cr_assert_eq(frame->data.length, length - WIRE_BULK_HEADER_BYTES);
    cr_assert_eq(memcmp(frame->data.payload, pair->msg.bytes + frame->data.offset, frame->data.length), 0);
    return UINT64_C(1) << packet.index;
}

/* Receives on queue 1 until `want` has come; returns the number of buffers that it took. */
static inline unsigned receive(struct pair *pair, const struct tx_desc *desc, check_fn check, uint64_t want)
{
    uint64_t seen = 0, until = now_ns() + DEADLINE_NS;
    struct nic_rx rx[8];
    unsigned buffers = 0;

    while (seen != want && now_ns() < until) {
        memset(rx, 0xa5, sizeof rx); /* poll() writes every field */
        unsigned count = udp_datagram_ops.poll(&pair->queues[1]->base, rx, 8);

        if (count == 0)
            sleep_in(&pair->queues[1]->base, 10000000);
        for (unsigned i = 0; i < count; i++) {
            cr_assert_leq(rx[i].stride, rx[i].length);
            cr_assert_gt(rx[i].stride, 0);
            cr_assert_not(rx[i].ce);
            cr_assert_eq(rx[i].at_ns, 0, "a socket does not know when it was there");
            cr_assert(!rx[i].flow && !rx[i].placed && !rx[i].payload);
            for (uint32_t at = 0; at < rx[i].length; at += rx[i].stride) {
                uint32_t length = rx[i].length - at < rx[i].stride ? rx[i].length - at : rx[i].stride;
                uint64_t bit = check(desc, pair, rx[i].data + at, length);

                cr_assert_not(seen & bit, "a datagram came twice");
                seen |= bit;
            }
            udp_datagram_ops.release(&pair->queues[1]->base, &rx[i]);
        }
        buffers += count;
    }
    cr_assert_eq(seen, want, "wanted %llx, got %llx", (unsigned long long)want, (unsigned long long)seen);
    return buffers;
}

static inline void send_and_receive(struct pair *pair, const struct tx_desc *desc, check_fn check, unsigned buffers_max)
{
    uint64_t before = pair->counters[0].tx_datagrams, bytes_before = pair->counters[0].tx_bytes, bytes = 0;

    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_leq(receive(pair, desc, check, desc->mask), buffers_max);
    cr_assert_eq(pair->counters[0].tx_datagrams - before, (unsigned)__builtin_popcountll(desc->mask));
    for (unsigned i = 0; i < desc->count; i++)
        bytes += desc->mask >> i & 1 ? length_of(desc, i) : 0;
    cr_assert_eq(pair->counters[0].tx_bytes - bytes_before, bytes);
}

#endif
