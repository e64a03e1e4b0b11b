/* SPDX-License-Identifier: Apache-2.0 */
/* Two queues of the verbs backend on a device of plain memory (fake_verbs.h), and paths between them. */
#ifndef UCCL_TEST_VERBS_PAIR_H
#define UCCL_TEST_VERBS_PAIR_H

#include "fini.h"

#include <criterion/criterion.h>
#define FAKE_REQUIRE(condition) FINI_ASSERT(condition) /* the device is closed after the test */

#include "fake_verbs.h"
#include "sleep_in.h"

#include "base/log.h"
#include "core/crc32c.h"
#include "core/wire.h"

#include <time.h>
#include <unistd.h>

enum { SMALL_BYTES = 100 };

static struct params params;
static struct counters counters;
static struct nic *nic;
static struct verbs_queue *queues[2];
static uint32_t to_second, to_first; /* destinations */
static char said[8192];

static inline void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user, (void)level;
    strncat(said, text, sizeof said - strlen(said) - 1);
}

/* Payload and its registered memory: `bulk_msg` points at one of these. */
struct message {
    struct core_msg core;
    uint8_t bytes[65536];
};

static inline const void *payload(const struct core_msg *msg, uint64_t offset)
{
    return ((const struct message *)msg)->bytes + offset;
}

static inline uint64_t local(const struct core_msg *msg, uint64_t offset, unsigned nic_index, uint32_t *key)
{
    (void)nic_index;
    *key = 1;
    return (uintptr_t)payload(msg, offset);
}

static inline struct verbs_queue *open_queue(unsigned index)
{
    struct nic_queue *queue;
    struct nic_queue_setup setup = {.params = &params,
                                    .counters = &counters,
                                    .crc32c = crc32c_portable,
                                    .payload = payload,
                                    .local = local,
                                    .index = index};
    cr_assert_eq(verbs_device_ops.queue_open(nic, &setup, &queue), 0);
    return verbs_queue_of(queue);
}

static inline uint32_t add_peer(struct verbs_queue *from, const struct verbs_queue *to)
{
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    uint32_t destination, datagram_bytes;
    verbs_queue_ops.address(&to->base, &address);
    cr_assert_eq(verbs_datagram_ops.peer_add(&from->base, &host, &address, &destination, &datagram_bytes), 0);
    cr_assert_eq(datagram_bytes, 4096);
    return destination;
}

static inline void set_up(void)
{
    params = (struct params){.backend = BACKEND_VERBS,
                             .port_entropy = 2,
                             .ib_gid_index = VERBS_GID_AUTO,
                             .in_order = true,
                             .qp_depth = 64,
                             .packet_lifetime_ms = 30};
    said[0] = 0;
    uccl_set_log(keep_log, NULL);
    log_set_level(UCCL_LOG_DEBUG);
    fake_reset();
}

static inline void open_pair(void)
{
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0, "%s", said);
    for (unsigned i = 0; i < 2; i++)
        queues[i] = open_queue(i);
    to_second = add_peer(queues[0], queues[1]);
    to_first = add_peer(queues[1], queues[0]);
}

static inline void set_up_pair(void)
{
    set_up();
    open_pair();
}

/* Nothing may be left. */
static inline void close_pair(void)
{
    for (unsigned i = 0; i < 2; i++)
        verbs_queue_ops.close(&queues[i]->base);
    verbs_device_ops.close(nic);
    FINI_ASSERT(fake.qps_alive == 0);
    FINI_ASSERT(fake.handles_alive == 0);
    FINI_ASSERT(fake.mrs_alive == 0);
    FINI_ASSERT(fake.cqs_alive == 0);
    uccl_set_log(NULL, NULL);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

/* One datagram of control frames. */
static inline bool send_small(uint32_t length, uint16_t path)
{
    static uint8_t buffer[4096];
    memset(buffer, 0x5a, sizeof buffer);
    wire_set_header_length(buffer, WIRE_HEADER_BYTES);
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .mask = 1,
                           .path = path,
                           .destination = to_second,
                           .datagram_bytes = length,
                           .last_bytes = length,
                           .token = 1,
                           .buffer = buffer};
    return verbs_datagram_ops.send(&queues[0]->base, &desc);
}

/* Takes what queue 1 has received; returns how many. */
static inline unsigned take_all(uint32_t length)
{
    struct nic_rx rx[8];
    unsigned count, all = 0;
    while ((count = verbs_datagram_ops.poll(&queues[1]->base, rx, 8)) > 0) {
        for (unsigned i = 0; i < count; i++) {
            cr_assert_eq(rx[i].length, length);
            cr_assert_eq(rx[i].data[length - 1], 0x5a);
            cr_assert_null(rx[i].flow);
            verbs_datagram_ops.release(&queues[1]->base, &rx[i]);
        }
        all += count;
    }
    return all;
}

/* ---- paths ----------------------------------------------------------------------------------- */

static struct message source, target;

/* What was sent gets there. */
static inline void deliver(void)
{
    verbs_datagram_ops.flush(&queues[0]->base);
    fake_run();
}

static inline void send_and_take(void)
{
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 1);
}

static inline struct nic_qp_id path_id(unsigned end, uint16_t path, uint32_t generation)
{
    return (struct nic_qp_id){.flow = (struct flow *)(uintptr_t)(0x1000 + end),
                              .destination = end ? to_first : to_second,
                              .path = path,
                              .generation = generation};
}

static inline void connect_path(uint16_t path, uint32_t generation)
{
    uint32_t number[2], psn[2];
    for (unsigned i = 0; i < 2; i++) {
        struct nic_qp_id id = path_id(i, path, generation);
        cr_assert_eq(verbs_data_qp_ops.open(&queues[i]->base, &id, &number[i], &psn[i]), 0, "%s", said);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct nic_qp_id id = path_id(i, path, generation);
        cr_assert_eq(verbs_data_qp_ops.connect(&queues[i]->base, &id, number[1 - i], psn[1 - i]), 0);
    }
}

static inline void set_up_paths(void)
{
    set_up_pair();
    connect_path(0, 1);
    for (unsigned i = 0; i < sizeof source.bytes; i++)
        source.bytes[i] = (uint8_t)(i * 13 + i / 255);
}

static inline bool send_write(uint16_t path, uint32_t generation, uint32_t offset, uint32_t length, uint64_t cookie)
{
    struct tx_desc desc = {.kind = TX_PLACE,
                           .count = 1,
                           .on_path = true,
                           .path = path,
                           .generation = generation,
                           .destination = to_second,
                           .bulk_msg = &source.core,
                           .bulk_offset = offset,
                           .place_bytes = length,
                           .remote_address = (uintptr_t)target.bytes + offset,
                           .immediate = (uint32_t)cookie ^ 0x12345678,
                           .cookie = cookie};
    return verbs_datagram_ops.send(&queues[0]->base, &desc);
}

/* A retransmission of `count` datagrams on a path. */
static inline bool send_retransmission_to(uint32_t destination, uint16_t path, uint8_t count, uint64_t cookie)
{
    struct tx_desc desc = {.kind = TX_BULK,
                           .on_path = true,
                           .path = path,
                           .generation = 1,
                           .destination = destination,
                           .count = count,
                           .mask = wire_full_mask(count),
                           .datagram_bytes = 1000,
                           .last_bytes = 1000,
                           .token = 1,
                           .bulk_msg = &source.core,
                           .bulk_stride = 1000 - WIRE_BULK_HEADER_BYTES,
                           .bulk_last = 1000 - WIRE_BULK_HEADER_BYTES,
                           .cookie = cookie};
    return verbs_datagram_ops.send(&queues[0]->base, &desc);
}

static inline bool send_retransmission(uint8_t count, uint64_t cookie)
{
    return send_retransmission_to(to_second, 0, count, cookie);
}

/* The newest finished cookie; 0: none. */
static inline uint64_t finished(void)
{
    struct nic_done done[4];
    unsigned count = verbs_data_qp_ops.poll_done(&queues[0]->base, done, 4);
    cr_assert_leq(count, 1);
    return count ? done[0].cookie : 0;
}

static inline unsigned take_writes(void)
{
    struct nic_rx rx;
    unsigned count = 0;
    while (verbs_datagram_ops.poll(&queues[1]->base, &rx, 1)) {
        cr_assert(rx.placed);
        cr_assert_eq(rx.flow, path_id(1, 0, 1).flow);
        verbs_datagram_ops.release(&queues[1]->base, &rx);
        count++;
    }
    return count;
}

static inline bool next_event(unsigned end, struct nic_qp_event *event)
{
    return verbs_data_qp_ops.event(&queues[end]->base, event);
}

static inline void await_drained(unsigned end)
{
    struct nic_qp_event event;
    uint64_t begin_ms = verbs_now_ms();
    while (!next_event(end, &event))
        cr_assert_lt(verbs_now_ms() - begin_ms, 5000);
    cr_assert(event.drained);
    cr_assert_eq(event.id.path, 0);
}

#endif
