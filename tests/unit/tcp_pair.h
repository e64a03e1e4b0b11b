/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the TCP backend share: two queues in one thread with one flow between them, of which queue 0 dials,
 * and receiving with every byte compared.
 */
#ifndef UCCL_TEST_TCP_PAIR_H
#define UCCL_TEST_TCP_PAIR_H

#include "core/crc32c.h"
#include "core/wire.h"
#include "nic/tcp/tcp.h"
#include "socket_pair.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 4 << 20, DEADLINE_MS = 20000, PATHS = 4 };
static const uint64_t tokens[2] = {UINT64_C(0x1122334455667001),
                                   UINT64_C(0xa1b2c3d4e5f60002)}; /* that side i expects */

struct side {
    struct counters counters;
    struct tcp_queue *queue;
    uint32_t destination;
    bool room[PATHS];
    unsigned broken[PATHS];
    /* what has been received */
    uint8_t *to;      /* memory of the message, to which bulk payload belongs; NULL: there is none */
    unsigned targets; /* times that it was named */
    unsigned in_place, elsewhere, discarded, plain;
    uint64_t bulk_bytes;
    struct pair *pair;
    unsigned index;
};

struct pair {
    struct params params;
    struct nic *nic;
    struct side sides[2];
    struct test_msg msg;
};

/* The payload of a bulk datagram belongs to its offset in the side's memory. */
static inline void *test_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    struct side *side = owner;
    struct wire_packet packet;
    const struct wire_frame *frame;
    cr_assert(length == stride && wire_is_bulk(header, length));
    side->targets++;
    *count = 0;
    if (!side->to || !wire_parse(header, length, crc32c_portable, &packet) || !(frame = wire_next_frame(&packet)))
        return NULL;
    *count = 1;
    return side->to + frame->data.offset;
}

static inline void open_side(struct pair *pair, unsigned index)
{
    struct side *side = &pair->sides[index];
    struct nic_queue *queue = NULL;
    side->pair = pair;
    side->index = index;
    cr_assert_eq(tcp_device_ops.queue_open(pair->nic,
                                           &(struct nic_queue_setup){.params = &pair->params,
                                                                     .counters = &side->counters,
                                                                     .crc32c = crc32c_portable,
                                                                     .gather = test_gather,
                                                                     .payload = test_payload,
                                                                     .kept_target = test_target,
                                                                     .owner = side,
                                                                     .index = index},
                                           &queue),
                 0);
    side->queue = tcp_queue_of(queue);
}

static inline void take_events(struct side *side)
{
    struct nic_channel_event event;
    while (tcp_channel_ops.event(&side->queue->base, &event)) {
        cr_assert_eq(event.destination, side->destination);
        cr_assert_eq((void *)event.flow, (void *)side);
        cr_assert_lt(event.path, PATHS);
        side->room[event.path] = !event.broken;
        side->broken[event.path] += event.broken;
    }
}

/* A bulk datagram: its payload is the message's at its offset, wherever it lies. */
static inline void check_bulk(struct side *side, const struct wire_frame *frame, bool in_place)
{
    const struct wire_data *data = &frame->data;
    bool zeros = data->payload == side->queue->zeros;
    side->bulk_bytes += data->length;
    side->discarded += zeros;
    if (zeros)
        return;
    cr_assert_eq(memcmp(data->payload, side->pair->msg.bytes + data->offset, data->length), 0);
    bool there = side->to && data->payload == side->to + data->offset;
    cr_assert(!there || in_place);
    side->in_place += there;
    side->elsewhere += !there;
}

/* One round of a side: events, and what has come. Returns the number of records. */
static inline unsigned pump(struct side *side)
{
    struct nic_rx rx[8];
    memset(rx, 0xa5, sizeof rx); /* poll() writes every field */
    unsigned count = tcp_datagram_ops.poll(&side->queue->base, rx, 8);
    for (unsigned i = 0; i < count; i++) {
        struct wire_packet packet;
        const struct wire_frame *frame;
        cr_assert(rx[i].stride == rx[i].length && !rx[i].ce && !rx[i].flow && !rx[i].placed);
        cr_assert(wire_open(rx[i].data, rx[i].length, crc32c_portable, &packet));
        if (rx[i].in_place)
            wire_move_payload(&packet, nic_rx_payload(&rx[i], 0));
        while (!wire_at_end(&packet)) {
            cr_assert(wire_take_frame(&packet));
            frame = &packet.current;
            if (frame->kind == FRAME_DATA) {
                check_bulk(side, frame, rx[i].in_place);
                continue;
            }
            cr_assert_eq(frame->kind, FRAME_EAGER);
            cr_assert_eq(memcmp(frame->eager.payload, side->pair->msg.bytes + frame->eager.msg, frame->eager.length),
                         0);
            side->plain++;
        }
        tcp_datagram_ops.release(&side->queue->base, &rx[i]);
    }
    take_events(side);
    return count;
}

static inline void sleep_in(struct nic_queue *queue, uint64_t timeout_ns)
{
    int fd = nic_watch(queue, &timeout_ns);
    queue->ops->wait(queue, fd, timeout_ns);
}

/* Pumps both sides until the condition holds. */
#define PUMP_UNTIL(pair, condition)                                                                                    \
    do {                                                                                                               \
        uint64_t until_ns = now_ns() + (uint64_t)DEADLINE_MS * 1000000;                                                \
        while (!(condition) && now_ns() < until_ns)                                                                    \
            if (pump(&(pair)->sides[0]) + pump(&(pair)->sides[1]) == 0)                                                \
                sleep_in(&(pair)->sides[0].queue->base, 100000);                                                       \
        cr_assert(condition);                                                                                          \
    } while (0)

static inline bool all_room(const struct side *side)
{
    bool all = true;
    for (unsigned i = 0; i < side->pair->params.port_entropy; i++)
        all = all && side->room[i];
    return all;
}

static inline void add_peer(struct side *side, struct side *other, const char *address)
{
    struct nic_host host = {.address = address_of(address)};
    struct nic_queue_address queue_address;
    uint32_t bytes = 0;
    tcp_queue_ops.address(&other->queue->base, &queue_address);
    cr_assert_eq(tcp_datagram_ops.peer_add(&side->queue->base, &host, &queue_address, &side->destination, &bytes), 0);
    cr_assert_eq(bytes, RECORD_BULK_MAX);
    tcp_channel_ops.introduce(&side->queue->base, side->destination,
                              &(struct nic_flow){.flow = (struct flow *)side,
                                                 .rx_token = tokens[side->index],
                                                 .tx_token = tokens[!side->index],
                                                 .dials = side->index == 0,
                                                 .patience_ms = side->pair->params.dead_peer_ms});
}

static const char *congestion_control = ""; /* of the next pair */
static uint64_t packet_bytes;               /* UCCL_MTU of it */

static inline struct pair *open_pair(uint64_t buffer_kb, const char *address)
{
    struct pair *pair = calloc(1, sizeof *pair);
    pair->params =
        (struct params){.port_entropy = PATHS, .dead_peer_ms = 10000, .connect_ms = 10000, .tcp_buffer_kb = buffer_kb};
    pair->params.mtu = packet_bytes;
    snprintf(pair->params.tcp_cc, sizeof pair->params.tcp_cc, "%s", congestion_control);
    cr_assert_eq(tcp_device_ops.open(&pair->params, &pair->nic), 0);
    open_side(pair, 0);
    open_side(pair, 1);
    add_peer(&pair->sides[1], &pair->sides[0], address);
    add_peer(&pair->sides[0], &pair->sides[1], address);
    pair->msg = make_message(MESSAGE_BYTES);
    PUMP_UNTIL(pair, all_room(&pair->sides[0]) && all_room(&pair->sides[1]));
    return pair;
}

static inline void close_pair(struct pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        tcp_datagram_ops.peer_remove(&pair->sides[i].queue->base, pair->sides[i].destination);
        tcp_queue_ops.close(&pair->sides[i].queue->base);
        free(pair->sides[i].to);
    }
    tcp_device_ops.close(pair->nic);
    free(pair->msg.bytes);
    free(pair);
}

/* A bulk datagram with `bytes` of the message from `offset` on, by `path`. */
static inline struct tx_desc bulk(const struct side *side, uint64_t offset, uint32_t bytes, uint16_t path)
{
    return (struct tx_desc){
        .kind = TX_BULK,
        .count = 1,
        .sequenced = true,
        .path = path,
        .port = path,
        .destination = side->destination,
        .mask = 1,
        .datagram_bytes = bytes + WIRE_BULK_HEADER_BYTES,
        .last_bytes = bytes + WIRE_BULK_HEADER_BYTES,
        .token = tokens[!side->index],
        .seq = 77,
        .bulk_msg = &side->pair->msg.core,
        .bulk_offset = offset,
        .bulk_stride = bytes,
        .bulk_last = bytes,
        .conn_id = 3,
        .msg_number = 9,
        .msg_total = MESSAGE_BYTES,
    };
}

static inline bool send_desc(struct side *side, const struct tx_desc *desc)
{
    return tcp_datagram_ops.send(&side->queue->base, desc);
}

/* The same, with the flush that an engine thread makes after all that it sends. */
static inline bool send_now(struct side *side, const struct tx_desc *desc)
{
    bool sent = send_desc(side, desc);
    tcp_datagram_ops.flush(&side->queue->base);
    return sent;
}

/* A small message: `bytes` of the message from `offset` on, in `buffer`, which outlives the flush. */
static inline bool send_small(struct side *side, uint32_t offset, uint32_t bytes, uint16_t path, uint8_t *buffer)
{
    struct tx_piece piece = {.msg = &side->pair->msg.core,
                             .offset_bytes = offset,
                             .length = bytes,
                             .at = WIRE_HEADER_BYTES + WIRE_EAGER_BYTES};
    wire_put_eager(buffer + WIRE_HEADER_BYTES,
                   &(struct wire_eager){.conn = 3, .msg = offset, .total = bytes, .length = bytes});
    wire_set_header_length(buffer, WIRE_HEADER_BYTES + WIRE_EAGER_BYTES);
    return send_desc(side, &(struct tx_desc){.kind = TX_FRAMES,
                                             .count = 1,
                                             .sequenced = true,
                                             .path = path,
                                             .port = path,
                                             .destination = side->destination,
                                             .mask = 1,
                                             .datagram_bytes = WIRE_HEADER_BYTES + WIRE_EAGER_BYTES + bytes,
                                             .last_bytes = WIRE_HEADER_BYTES + WIRE_EAGER_BYTES + bytes,
                                             .token = tokens[!side->index],
                                             .buffer = buffer,
                                             .pieces = &piece,
                                             .piece_count = 1});
}

/* Sends the whole message in records of `bytes`, by all paths but 0, while both sides are pumped. */
static inline void send_message(struct side *side, uint32_t bytes)
{
    unsigned path = 0;
    for (uint64_t offset = 0; offset < MESSAGE_BYTES; offset += bytes) {
        uint32_t length = MESSAGE_BYTES - offset < bytes ? (uint32_t)(MESSAGE_BYTES - offset) : bytes;
        path = path % (PATHS - 1) + 1;
        struct tx_desc desc = bulk(side, offset, length, (uint16_t)path);
        bool sent = send_desc(side, &desc);
        while (!sent) {
            side->room[path] = false;
            PUMP_UNTIL(side->pair, side->room[path]);
            sent = send_desc(side, &desc);
        }
        tcp_datagram_ops.flush(&side->queue->base);
    }
}

#endif
