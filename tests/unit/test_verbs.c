/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs backend on a device of plain memory (fake_verbs.h): queues that must not overflow, completions
 * that fail, queue pairs that are fenced, events of the device. What a real one does is tested in tests/vm.
 */
#include <criterion/criterion.h>
#define FAKE_REQUIRE(condition) cr_assert(condition)

#include "fake_verbs.h"

#include "core/crc32c.h"
#include "core/wire.h"
#include "log.h"

#include <time.h>
#include <unistd.h>

enum { SMALL_BYTES = 100 };

static struct params params;
static struct counters counters;
static struct nic *nic;
static struct nic_queue *queues[2];
static uint32_t to_second, to_first; /* destinations */
static char said[8192];

static void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user, (void)level;
    strncat(said, text, sizeof said - strlen(said) - 1);
}

/* Payload and its registered memory: `bulk_msg` points at one of these. */
struct message {
    struct core_msg core;
    uint8_t bytes[65536];
};

static const void *payload(const struct core_msg *msg, uint64_t offset)
{
    return ((const struct message *)msg)->bytes + offset;
}

static uint64_t local(const struct core_msg *msg, uint64_t offset, uint32_t *key)
{
    *key = 1;
    return (uintptr_t)payload(msg, offset);
}

static struct nic_queue *open_queue(unsigned index)
{
    struct nic_queue *queue;
    struct nic_queue_setup setup = {.params = &params,
                                    .counters = &counters,
                                    .crc32c = crc32c_portable,
                                    .payload = payload,
                                    .local = local,
                                    .index = index};
    cr_assert_eq(nic_verbs_ops.queue_open(nic, &setup, &queue), 0);
    return queue;
}

static uint32_t add_peer(struct nic_queue *from, const struct nic_queue *to)
{
    union nic_address host = {.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    uint32_t destination, datagram_bytes;
    nic_verbs_ops.queue_address(to, &address);
    cr_assert_eq(nic_verbs_ops.peer_add(from, &host, &address, &destination, &datagram_bytes), 0);
    cr_assert_eq(datagram_bytes, 4096);
    return destination;
}

static void set_up(void)
{
    params = (struct params){.backend = BACKEND_VERBS,
                             .port_entropy = 2,
                             .ib_gid_index = VERBS_GID_AUTO,
                             .in_order = true,
                             .path_depth = 64,
                             .packet_lifetime_ms = 30};
    said[0] = 0;
    uccl_set_log(keep_log, NULL);
    log_set_level(UCCL_LOG_DEBUG);
    fake_reset();
}

static void open_pair(void)
{
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0, "%s", said);
    for (unsigned i = 0; i < 2; i++)
        queues[i] = open_queue(i);
    to_second = add_peer(queues[0], queues[1]);
    to_first = add_peer(queues[1], queues[0]);
}

static void set_up_pair(void)
{
    set_up();
    open_pair();
}

/* Nothing may be left. */
static void close_pair(void)
{
    for (unsigned i = 0; i < 2; i++)
        nic_verbs_ops.queue_close(queues[i]);
    nic_verbs_ops.close(nic);
    cr_assert_eq(fake.qps_alive, 0);
    cr_assert_eq(fake.handles_alive, 0);
    cr_assert_eq(fake.mrs_alive, 0);
    uccl_set_log(NULL, NULL);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

/* One datagram of control frames. */
static bool send_small(uint32_t length, uint16_t path)
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
    return nic_verbs_ops.send(queues[0], &desc);
}

/* Takes what queue 1 has received; returns how many. */
static unsigned take_all(uint32_t length)
{
    struct nic_rx rx[8];
    unsigned count, all = 0;
    while ((count = nic_verbs_ops.poll(queues[1], rx, 8)) > 0) {
        for (unsigned i = 0; i < count; i++) {
            cr_assert_eq(rx[i].length, length);
            cr_assert_eq(rx[i].data[length - 1], 0x5a);
            cr_assert_null(rx[i].flow);
            nic_verbs_ops.release(queues[1], &rx[i]);
        }
        all += count;
    }
    return all;
}

Test(verbs_ud, datagrams_of_all_lengths_arrive, .init = set_up_pair, .fini = close_pair)
{
    for (uint32_t length = WIRE_HEADER_BYTES + 1; length <= 4096; length += 31) {
        cr_assert(send_small(length, (uint16_t)(length % 7)));
        nic_verbs_ops.flush(queues[0]);
        fake_run();
        cr_assert_eq(take_all(length), 1);
    }
}

Test(verbs_ud, trains_are_built_from_payload, .init = set_up_pair, .fini = close_pair)
{
    static struct message message;
    struct tx_desc desc = {.kind = TX_BULK,
                           .count = 3,
                           .mask = 5, /* the middle one has arrived before */
                           .destination = to_second,
                           .datagram_bytes = 4096,
                           .last_bytes = WIRE_BULK_HEADER_BYTES + 10,
                           .token = 1,
                           .bulk_msg = &message.core,
                           .bulk_offset = 7,
                           .bulk_stride = 4096 - WIRE_BULK_HEADER_BYTES,
                           .bulk_last = 10};
    struct nic_rx rx[4];
    for (unsigned i = 0; i < sizeof message.bytes; i++)
        message.bytes[i] = (uint8_t)(i * 7 + i / 256);
    cr_assert(nic_verbs_ops.send(queues[0], &desc));
    nic_verbs_ops.flush(queues[0]);
    memset(message.bytes + 7, 0xee, 4); /* the payload is not referenced any more */
    fake_run();
    cr_assert_eq(nic_verbs_ops.poll(queues[1], rx, 4), 2);
    cr_assert_eq(rx[0].length, 4096);
    cr_assert_eq(rx[0].data[WIRE_BULK_HEADER_BYTES], (uint8_t)(7 * 7));
    cr_assert_eq(rx[1].length, WIRE_BULK_HEADER_BYTES + 10);
    cr_assert_arr_eq(rx[1].data + WIRE_BULK_HEADER_BYTES, message.bytes + 7 + 2 * desc.bulk_stride, 10);
    for (unsigned i = 0; i < 2; i++)
        nic_verbs_ops.release(queues[1], &rx[i]);
}

/* The device completes nothing for long: send() says no, and never posts beyond the queue. */
Test(verbs_ud, full_queue_is_said_not_hit, .init = set_up, .fini = close_pair)
{
    params.port_entropy = 1;
    fake.limits.max_qp_wr = 200;
    open_pair();
    for (unsigned round = 0; round < 5; round++) {
        unsigned sent = 0, received = 0;
        while (sent < 1000 && send_small(SMALL_BYTES, 0))
            sent++;
        cr_assert_geq(sent, 96); /* what is left asks for a completion in time */
        cr_assert_leq(fake.most_sends, 200);
        nic_verbs_ops.flush(queues[0]);
        fake_run();
        while (take_all(SMALL_BYTES))
            received++;
        cr_assert(send_small(SMALL_BYTES, 0));
        nic_verbs_ops.flush(queues[0]);
        fake_run();
        take_all(SMALL_BYTES);
    }
}

Test(verbs_ud, failed_send_sets_the_queue_pair_up_again, .init = set_up_pair, .fini = close_pair)
{
    fake.status = IBV_WC_LOC_QP_OP_ERR;
    for (unsigned i = 0; i < 10; i++)
        cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    verbs_reap_sends(queues[0]);
    cr_assert_not_null(strstr(said, "local QP operation error"));
    struct nic_rx rx;
    cr_assert_eq(nic_verbs_ops.poll(queues[0], &rx, 1), 0); /* here it is set up */
    cr_assert_eq(queues[0]->qp->state, IBV_QPS_RTS);
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(take_all(SMALL_BYTES), 1);
    for (unsigned i = 0; i < 2000; i++) { /* and all of it is as before: nothing runs out */
        cr_assert(send_small(SMALL_BYTES, 0));
        nic_verbs_ops.flush(queues[0]);
        fake_run();
        cr_assert_eq(take_all(SMALL_BYTES), 1);
    }
}

/* Completions of an earlier life, taken late, free nothing of this one. */
Test(verbs_ud, late_completions_mean_nothing, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    for (unsigned i = 0; i < 200; i++)
        cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    fake.send_errno = EINVAL;
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake.send_errno = 0;
    cr_assert_eq(nic_verbs_ops.poll(queues[0], &rx, 1), 0);
    unsigned sent = 0;
    while (sent < 1000 && send_small(SMALL_BYTES, 0))
        sent++;
    cr_assert_eq(sent, VERBS_UD_SENDS);
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert(send_small(SMALL_BYTES, 0));
}

Test(verbs_ud, refused_post_sets_it_up_again, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    fake.send_errno = EINVAL;
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake.send_errno = 0;
    cr_assert_eq(nic_verbs_ops.poll(queues[0], &rx, 1), 0);
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(take_all(SMALL_BYTES), 1);
}

Test(verbs_ud, handles_of_a_removed_peer_outlive_its_sends, .init = set_up_pair, .fini = close_pair)
{
    uint32_t before = fake.handles_alive;
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.peer_remove(queues[0], to_second);
    cr_assert_eq(fake.handles_alive, before);
    for (unsigned i = 0; i < 4; i++)
        add_peer(queues[0], queues[1]);
    cr_assert_eq(fake.handles_alive, before + 8);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static struct message source, target;

static struct nic_path path_id(unsigned end, uint16_t path, uint32_t generation)
{
    return (struct nic_path){.flow = (struct flow *)(uintptr_t)(0x1000 + end),
                             .destination = end ? to_first : to_second,
                             .path = path,
                             .generation = generation};
}

static void connect_path(uint16_t path, uint32_t generation)
{
    uint32_t number[2], psn[2];
    for (unsigned i = 0; i < 2; i++) {
        struct nic_path id = path_id(i, path, generation);
        cr_assert_eq(nic_verbs_ops.path_open(queues[i], &id, &number[i], &psn[i]), 0, "%s", said);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct nic_path id = path_id(i, path, generation);
        cr_assert_eq(nic_verbs_ops.path_connect(queues[i], &id, number[1 - i], psn[1 - i]), 0);
    }
}

static void set_up_paths(void)
{
    set_up_pair();
    connect_path(0, 1);
    for (unsigned i = 0; i < sizeof source.bytes; i++)
        source.bytes[i] = (uint8_t)(i * 13 + i / 255);
}

static bool send_write(uint16_t path, uint32_t generation, uint32_t offset, uint32_t length, uint64_t cookie)
{
    struct tx_desc desc = {.kind = TX_PLACE,
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
    return nic_verbs_ops.send(queues[0], &desc);
}

/* A repair of `count` datagrams on the path. */
static bool send_repair(uint8_t count, uint64_t cookie)
{
    struct tx_desc desc = {.kind = TX_BULK,
                           .on_path = true,
                           .generation = 1,
                           .destination = to_second,
                           .count = count,
                           .mask = wire_full_mask(count),
                           .datagram_bytes = 1000,
                           .last_bytes = 1000,
                           .token = 1,
                           .bulk_msg = &source.core,
                           .bulk_stride = 1000 - WIRE_BULK_HEADER_BYTES,
                           .bulk_last = 1000 - WIRE_BULK_HEADER_BYTES,
                           .cookie = cookie};
    return nic_verbs_ops.send(queues[0], &desc);
}

/* The newest finished cookie; 0: none. */
static uint64_t finished(void)
{
    uint64_t cookies[4];
    unsigned count = nic_verbs_ops.poll_tx(queues[0], cookies, 4);
    cr_assert_leq(count, 1);
    return count ? cookies[0] : 0;
}

static unsigned take_writes(void)
{
    struct nic_rx rx;
    unsigned count = 0;
    while (nic_verbs_ops.poll(queues[1], &rx, 1)) {
        cr_assert(rx.placed);
        cr_assert_eq(rx.flow, path_id(1, 0, 1).flow);
        nic_verbs_ops.release(queues[1], &rx);
        count++;
    }
    return count;
}

Test(verbs_path, writes_are_placed_and_told, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    cr_assert(send_write(0, 1, 100, 5000, 77));
    nic_verbs_ops.flush(queues[0]);
    cr_assert_eq(finished(), 0);
    fake_run();
    cr_assert_eq(finished(), 77);
    cr_assert_eq(finished(), 0);
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
    cr_assert(rx.placed);
    cr_assert_eq(rx.immediate, 77u ^ 0x12345678);
    cr_assert_eq(rx.length, 5000);
    cr_assert_eq(rx.path, 0);
    cr_assert_eq(rx.generation, 1);
    cr_assert_eq(rx.flow, path_id(1, 0, 1).flow);
    cr_assert_arr_eq(target.bytes + 100, source.bytes + 100, 5000);
    nic_verbs_ops.release(queues[1], &rx);
    cr_assert(send_write(0, 1, 0, 0, 78)); /* a message without bytes has a write too */
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
    cr_assert_eq(rx.length, 0);
    nic_verbs_ops.release(queues[1], &rx);
}

/* What finishes while the queue is about to sleep keeps it awake until it has been told, and no longer. */
Test(verbs_path, finished_work_is_told_before_a_sleep, .init = set_up_paths, .fini = close_pair)
{
    cr_assert(!verbs_paths_arm(queues[0]));
    cr_assert(send_write(0, 1, 0, 10, 5));
    nic_verbs_ops.flush(queues[0]);
    cr_assert(!verbs_paths_arm(queues[0]));
    fake_run();
    cr_assert(verbs_paths_arm(queues[0]));
    cr_assert(verbs_paths_arm(queues[0]));
    cr_assert_eq(finished(), 5);
    cr_assert(!verbs_paths_arm(queues[0]));
    cr_assert(send_write(0, 1, 0, 10, 6)); /* and what nobody will ask for, since its flow is closed */
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert(verbs_paths_arm(queues[0]));
    nic_verbs_ops.peer_remove(queues[0], to_second);
    verbs_paths_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert(!verbs_paths_arm(queues[0]));
}

Test(verbs_path, repairs_keep_the_order_of_the_queue_pair, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    cr_assert(send_write(0, 1, 0, 10, 1));
    cr_assert(send_repair(2, 2));
    cr_assert(send_write(0, 1, 20, 10, 3));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(finished(), 3);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
        cr_assert_eq(rx.placed, i == 0 || i == 3);
        if (!rx.placed)
            cr_assert_arr_eq(rx.data + WIRE_BULK_HEADER_BYTES, source.bytes + (i - 1) * 936, 936);
        nic_verbs_ops.release(queues[1], &rx);
    }
}

/* One path and nothing completes: the queue is never asked for more than it holds. */
Test(verbs_path, full_queue_is_said_not_hit, .init = set_up_paths, .fini = close_pair)
{
    for (unsigned round = 0; round < 4; round++) {
        uint64_t cookie = 1000 * round;
        while (send_write(0, 1, 0, 1024, cookie + 1))
            cr_assert_lt(++cookie, 1000 * round + 65);
        cr_assert_eq(cookie, 1000 * round + 64);
        cr_assert(!send_repair(1, 5000));
        nic_verbs_ops.flush(queues[0]);
        cr_assert_leq(fake.most_sends, 65);
        fake_run();
        cr_assert_eq(finished(), cookie);
        cr_assert_eq(take_writes(), 64);
    }
    unsigned repairs = 0; /* and the pool of repairs, over many paths */
    connect_path(1, 1);
    while (send_repair(16, 9))
        repairs++;
    cr_assert_eq(repairs, 4);
}

static bool next_event(unsigned end, struct nic_path_event *event)
{
    return nic_verbs_ops.path_event(queues[end], event);
}

static void await_fenced(unsigned end, uint16_t path)
{
    struct nic_path_event event;
    uint64_t begin_ms = verbs_now_ms();
    while (!next_event(end, &event))
        cr_assert_lt(verbs_now_ms() - begin_ms, 5000);
    cr_assert(event.fenced);
    cr_assert_eq(event.path.path, path);
}

Test(verbs_path, failed_send_is_told_in_words_and_fenced, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    struct nic_path id = path_id(0, 0, 1);
    cr_assert(send_write(0, 1, 0, 10, 1));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(finished(), 1);
    fake.status = IBV_WC_RETRY_EXC_ERR;
    for (uint64_t cookie = 2; cookie < 6; cookie++)
        cr_assert(send_write(0, 1, 0, 10, cookie));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(finished(), 0); /* what failed is not done */
    cr_assert(next_event(0, &event));
    cr_assert(!event.fenced);
    cr_assert_eq(event.path.generation, 1);
    cr_assert_not_null(strstr(said, "transport retry counter exceeded"));
    cr_assert(!next_event(0, &event)); /* once */
    cr_assert(!send_write(0, 1, 0, 10, 6));
    nic_verbs_ops.path_fence(queues[0], &id);
    fake_run();
    await_fenced(0, 0);
    nic_verbs_ops.path_close(queues[0], &id);
    uint32_t number, psn, alive = fake.qps_alive;
    id.generation = 2;
    cr_assert_eq(nic_verbs_ops.path_open(queues[0], &id, &number, &psn), 0);
    cr_assert_eq(fake.qps_alive, alive + 1); /* the old one rests */
    verbs_paths_sweep(queues[0], verbs_now_ms());
    cr_assert_eq(fake.qps_alive, alive + 1);
    verbs_paths_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert_eq(fake.qps_alive, alive);
}

/* What had been received is handed out before the fence is said to stand; nothing is placed after. */
Test(verbs_path, fence_comes_after_all_that_was_received, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    struct nic_rx rx;
    struct nic_path id = path_id(1, 0, 1);
    for (uint64_t cookie = 1; cookie <= 40; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    nic_verbs_ops.path_fence(queues[1], &id);
    fake_run();
    struct verbs_path *path = verbs_path_of(queues[1], fake_qp_of(queues[1]->peers[to_first].paths[0]->qp->qp_num)->qp.qp_num);
    atomic_store(&path->last_receive, 1);
    for (unsigned taken = 0; taken < 40; taken++) {
        cr_assert(!next_event(1, &event), "fenced after %u of 40", taken);
        cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
        nic_verbs_ops.release(queues[1], &rx);
    }
    cr_assert(next_event(1, &event));
    cr_assert(event.fenced);
    memset(target.bytes, 0, 16);
    cr_assert(send_write(0, 1, 0, 16, 41));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(target.bytes[1], 0);
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 0);
    nic_verbs_ops.path_close(queues[1], &id);
}

Test(verbs_path, fence_waits_for_receives_when_the_device_is_silent, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    struct nic_path id = path_id(0, 0, 1);
    uint64_t begin_ms = verbs_now_ms();
    nic_verbs_ops.path_fence(queues[0], &id);
    fake_run();
    cr_assert_eq(finished(), 0);
    while (!next_event(0, &event))
        ;
    cr_assert_geq(verbs_now_ms() - begin_ms, VERBS_DRAIN_MS - 1);
    cr_assert(event.fenced);
}

/* Sends that never end: the queue pair is destroyed, which ends them, before the fence stands. */
Test(verbs_path, device_that_does_not_flush_is_made_to, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path id = path_id(0, 0, 1);
    uint32_t alive = fake.qps_alive;
    fake_qp_of(queues[0]->peers[to_second].paths[0]->qp->qp_num)->silent = true;
    cr_assert(send_repair(3, 1));
    nic_verbs_ops.flush(queues[0]);
    uint32_t free_before = queues[0]->paths->free_repair_count;
    nic_verbs_ops.path_fence(queues[0], &id);
    await_fenced(0, 0);
    cr_assert_eq(fake.qps_alive, alive - 1);
    cr_assert_eq(queues[0]->paths->free_repair_count, free_before + 3);
    nic_verbs_ops.path_close(queues[0], &id);
    verbs_paths_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    fake_run();
    cr_assert_eq(finished(), 0);
}

/* Neither done nor failed, for longer than all attempts of a queue pair may take. */
Test(verbs_path, work_that_does_not_end_is_a_failure, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    uint64_t begin_ms = verbs_now_ms(), limit_ms = 500 + 2 * 67 * 8;
    params.ib_timeout = 14;
    params.ib_retry_cnt = 7;
    verbs_paths_sweep(queues[0], begin_ms);
    cr_assert(send_write(0, 1, 0, 10, 1)); /* long after the last one: counts from here */
    nic_verbs_ops.flush(queues[0]);
    verbs_paths_sweep(queues[0], begin_ms + 10 * limit_ms);
    verbs_paths_sweep(queues[0], begin_ms + 11 * limit_ms - 10);
    cr_assert(!next_event(0, &event));
    verbs_paths_sweep(queues[0], begin_ms + 11 * limit_ms + 10);
    cr_assert(next_event(0, &event));
    cr_assert(!event.fenced);
    verbs_paths_sweep(queues[0], begin_ms + 20 * limit_ms); /* is told once */
    cr_assert(!next_event(0, &event));
}

Test(verbs_path, closed_flow_hears_nothing_more, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    struct nic_path_event event;
    for (uint64_t cookie = 1; cookie <= 10; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
    nic_verbs_ops.release(queues[1], &rx);
    nic_verbs_ops.peer_remove(queues[1], to_first);
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 0);
    cr_assert(!next_event(1, &event));
    cr_assert(send_repair(3, 11));
    nic_verbs_ops.flush(queues[0]);
    nic_verbs_ops.peer_remove(queues[0], to_second);
    cr_assert_lt(queues[0]->paths->free_repair_count, VERBS_REPAIRS); /* the device may read them still */
    verbs_paths_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert_eq(queues[0]->paths->free_repair_count, VERBS_REPAIRS);
    fake_run();
    cr_assert_eq(finished(), 0);
}

/* ---- the device ------------------------------------------------------------------------------ */

/* The device tells the queue, which looks at once. */
static void happens(struct ibv_async_event event)
{
    uint32_t destination, bytes;
    FAKE_REQUIRE(fake.event_count < FAKE_EVENTS);
    fake.events[fake.event_count++] = event;
    queues[0]->until_look = queues[0]->looked_ms = 0;
    while (nic_verbs_ops.mtu_event(queues[0], &destination, &bytes))
        ;
}

static void port_event(enum ibv_event_type type, int port)
{
    happens((struct ibv_async_event){.event_type = type, .element.port_num = port});
}

Test(verbs_device, queue_pair_that_the_device_gives_up, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    struct ibv_qp *qp = queues[0]->peers[to_second].paths[0]->qp;
    happens((struct ibv_async_event){.event_type = IBV_EVENT_QP_FATAL, .element.qp = qp});
    cr_assert(next_event(0, &event));
    cr_assert(!event.fenced);
    cr_assert_not_null(strstr(said, "local work queue catastrophic error"));
}

Test(verbs_device, that_is_removed, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    struct nic_path id = path_id(0, 1, 1);
    uint32_t number, psn;
    cr_assert_eq(nic_verbs_ops.failure(queues[0]), 0);
    happens((struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL});
    cr_assert(next_event(0, &event));
    cr_assert(!event.fenced);
    cr_assert_not_null(strstr(said, "was removed"));
    cr_assert_not_null(strstr(said, "local catastrophic error"));
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(nic_verbs_ops.failure(queues[i]), UCCL_EIO);
    said[0] = 0;
    cr_assert_eq(nic_verbs_ops.path_open(queues[0], &id, &number, &psn), UCCL_EIO);
    union nic_address host = {.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    nic_verbs_ops.queue_address(queues[1], &address);
    cr_assert_eq(nic_verbs_ops.peer_add(queues[0], &host, &address, &number, &psn), UCCL_EIO);
    cr_assert_str_empty(said);
    id = path_id(0, 0, 1); /* what can be read and written is let go of, though nothing completes any more */
    fake_qp_of(queues[0]->peers[to_second].paths[0]->qp->qp_num)->silent = true;
    nic_verbs_ops.path_fence(queues[0], &id);
    await_fenced(0, 0);
}

/* Found in review: a thread without work did not sleep then, since the completion queue could not be armed. */
Test(verbs_device, that_is_removed_lets_threads_sleep, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    happens((struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL});
    fake.notify_errno = EIO;
    queues[0]->broken = true;
    uint64_t begin_ms = verbs_now_ms();
    nic_verbs_ops.wait(queues[0], 30 * 1000000);
    cr_assert_geq(verbs_now_ms() - begin_ms, 29);
    cr_assert_eq(nic_verbs_ops.poll(queues[0], &rx, 1), 0);
    cr_assert_eq(fake_qp_of(queues[0]->qp->qp_num)->qp.state, IBV_QPS_RTS, "and nobody sets the queue pair up again");
    nic_verbs_ops.wake(queues[0]);
    begin_ms = verbs_now_ms();
    nic_verbs_ops.wait(queues[0], UINT64_MAX);
    cr_assert_lt(verbs_now_ms() - begin_ms, 10000);
}

Test(verbs_device, port_that_changes_its_mtu, .init = set_up_pair, .fini = close_pair)
{
    uint32_t destination, bytes;
    fake.port.active_mtu = IBV_MTU_1024;
    queues[0]->until_look = 0;
    cr_assert(nic_verbs_ops.mtu_event(queues[0], &destination, &bytes));
    cr_assert_eq(destination, to_second);
    cr_assert_eq(bytes, 1024);
    cr_assert(!nic_verbs_ops.mtu_event(queues[0], &destination, &bytes));
}

/* Path 0 of generation 1 has failed at both ends: it is fenced and closed there. */
static void expect_failed(void)
{
    struct nic_path_event event;
    for (unsigned i = 0; i < 2; i++) {
        struct nic_path id = path_id(i, 0, 1);
        cr_assert(next_event(i, &event), "end %u", i);
        cr_assert(!event.fenced);
        cr_assert(!next_event(i, &event)); /* once */
        nic_verbs_ops.path_fence(queues[i], &id);
        fake_run();
        await_fenced(i, 0);
        nic_verbs_ops.path_close(queues[i], &id);
    }
}

/* And its next generation carries writes. */
static void expect_works_anew(void)
{
    struct nic_path_event event;
    connect_path(0, 2);
    cr_assert(send_write(0, 2, 0, 100, 7));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(finished(), 7);
    cr_assert_eq(take_writes(), 1);
    cr_assert(!next_event(0, &event) && !next_event(1, &event));
}

Test(verbs_device, port_that_goes_down_fails_its_paths_until_it_is_active, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path id = path_id(0, 0, 2);
    uint32_t number, psn;
    fake.port.state = IBV_PORT_DOWN;
    port_event(IBV_EVENT_PORT_ERR, 1);
    cr_assert_not_null(strstr(said, "port 1 is down"));
    expect_failed();
    said[0] = 0;
    cr_assert_eq(nic_verbs_ops.path_open(queues[0], &id, &number, &psn), UCCL_EIO);
    cr_assert_str_empty(said);
    fake.port.state = IBV_PORT_ACTIVE;
    port_event(IBV_EVENT_PORT_ACTIVE, 1);
    cr_assert_not_null(strstr(said, "port 1 is active again"));
    expect_works_anew();
}

Test(verbs_device, port_that_tells_of_it_only_when_asked, .init = set_up_paths, .fini = close_pair)
{
    fake.port.state = IBV_PORT_DOWN;
    port_event(IBV_EVENT_SM_CHANGE, 1); /* any: it is asked */
    expect_failed();
    fake.port.state = IBV_PORT_ACTIVE;
    port_event(IBV_EVENT_SM_CHANGE, 1);
    expect_works_anew();
}

/* Down and up before anybody looked. */
Test(verbs_device, port_that_was_down_for_a_moment, .init = set_up_paths, .fini = close_pair)
{
    fake.events[fake.event_count++] =
        (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ERR, .element.port_num = 1};
    port_event(IBV_EVENT_PORT_ACTIVE, 1);
    expect_failed();
    expect_works_anew();
}

Test(verbs_device, port_of_others_may_do_what_it_will, .init = set_up_paths, .fini = close_pair)
{
    struct nic_path_event event;
    port_event(IBV_EVENT_PORT_ERR, 2);
    cr_assert(!next_event(0, &event) && !next_event(1, &event));
    cr_assert_null(strstr(said, "is down"));
    cr_assert(send_write(0, 1, 0, 10, 1));
}

/* ---- InfiniBand ------------------------------------------------------------------------------ */

static void set_up_infiniband(void)
{
    set_up();
    fake.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
    fake.port.lid = 0x1234;
    fake.sl = 3;
    params.ib_sl = 3;
    open_pair();
}

/* Packets go by LID and service level, without a global routing header (fake_reaches()), on every kind of queue pair. */
Test(verbs_infiniband, datagrams_and_writes_go_by_lid, .init = set_up_infiniband, .fini = close_pair)
{
    struct nic_rx rx;
    for (uint16_t path = 0; path < 3; path++) /* all the same: no flow label tells them apart */
        cr_assert(send_small(SMALL_BYTES, path));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(take_all(SMALL_BYTES), 3);
    cr_assert_eq(fake.handles_alive, 2, "one way to each peer");
    memset(source.bytes, 7, sizeof source.bytes);
    connect_path(0, 1);
    cr_assert(send_write(0, 1, 10, 1000, 5));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(finished(), 5);
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
    cr_assert(rx.placed && rx.length == 1000 && target.bytes[10] == 7 && target.bytes[1009] == 7);
    nic_verbs_ops.release(queues[1], &rx);
}

/* Where a header stands on RoCE there is rubbish: it is no congestion mark. */
Test(verbs_infiniband, no_header_has_no_mark, .init = set_up_infiniband, .fini = close_pair)
{
    struct nic_rx rx;
    memset(queues[1]->receives.pool.memory, 0xff, queues[1]->receives.pool.bytes);
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(nic_verbs_ops.poll(queues[1], &rx, 1), 1);
    cr_assert(!rx.ce);
    nic_verbs_ops.release(queues[1], &rx);
}

/* Another LID, or service level, than the peer's leads nowhere: the ones above were not just any. */
Test(verbs_infiniband, wrong_addresses_lead_nowhere, .init = set_up_infiniband, .fini = close_pair)
{
    fake.port.lid = 0x1235;
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(take_all(SMALL_BYTES), 0);
    fake.port.lid = 0x1234;
    fake.sl = 0;
    cr_assert(send_small(SMALL_BYTES, 0));
    nic_verbs_ops.flush(queues[0]);
    fake_run();
    cr_assert_eq(take_all(SMALL_BYTES), 0);
}

Test(verbs_infiniband, device_says_so, .init = set_up_infiniband, .fini = close_pair)
{
    struct uccl_device device;
    union nic_address address;
    cr_assert_eq(nic_verbs_ops.device(nic, 0, &device, &address), 0);
    cr_assert_not_null(strstr(device.description, "UC queue pairs on InfiniBand port 1"), "%s", device.description);
    cr_assert(address.any.sa_family == AF_INET || address.any.sa_family == AF_INET6);
}

Test(verbs_device, takes_what_the_device_can_do, .init = set_up)
{
    static const struct {
        bool no_uc, no_rc, rcmode;
        int srq;
        enum verbs_mode mode;
        const char *why;
    } cases[] = {
        {false, false, false, 4096, VERBS_UC, "data over UC"},
        {true, false, false, 4096, VERBS_RC, "the device makes no UC queue pairs"},
        {true, true, false, 4096, VERBS_UD, "neither UC nor RC"},
        {false, false, true, 4096, VERBS_RC, "UCCL_RCMODE=1"},
        {false, false, false, 0, VERBS_UD, "no shared receive queues"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        said[0] = 0;
        fake.no_uc = cases[i].no_uc;
        fake.no_rc = cases[i].no_rc;
        fake.limits.max_srq_wr = cases[i].srq;
        params.rcmode = cases[i].rcmode;
        cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
        cr_assert_eq(nic->mode, cases[i].mode);
        cr_assert_eq(nic_verbs_ops.caps(nic)->reliable, cases[i].mode == VERBS_RC);
        cr_assert_not_null(strstr(said, cases[i].why), "%s", said);
        nic_verbs_ops.close(nic);
    }
}

Test(verbs_device, queues_too_small_are_refused, .init = set_up)
{
    struct nic_queue_setup setup = {.params = &params, .counters = &counters};
    struct nic_queue *queue;
    fake.limits.max_qp_wr = 100;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    cr_assert_eq(nic_verbs_ops.queue_open(nic, &setup, &queue), UCCL_ENOTSUP);
    cr_assert_not_null(strstr(said, "128 are needed"), "%s", said);
    nic_verbs_ops.close(nic);
}

Test(verbs_device, memory_that_cannot_be_locked_is_said, .init = set_up_pair, .fini = close_pair)
{
    struct nic_mr mr = {0};
    fake.register_errno = ENOMEM;
    cr_assert_eq(nic_verbs_ops.reg_mr(nic, target.bytes, 100, &mr), UCCL_ENOMEM);
    cr_assert_not_null(strstr(said, "register memory"));
    cr_assert_null(mr.handle);
    fake.register_errno = EOPNOTSUPP;
    cr_assert_eq(nic_verbs_ops.reg_mr(nic, target.bytes, 100, &mr), UCCL_ENOTSUP);
    fake.register_errno = 0;
    cr_assert_eq(nic_verbs_ops.reg_mr(nic, target.bytes, 100, &mr), 0);
    nic_verbs_ops.dereg_mr(nic, &mr);
    nic_verbs_ops.dereg_mr(nic, &mr); /* of what never was registered: nothing */
}

Test(verbs_device, peers_of_another_kind_are_refused, .init = set_up_pair, .fini = close_pair)
{
    union nic_address host = {.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    struct verbs_address ours = {.mtu_shift = 12, .mode = VERBS_RC, .lid = 5, .qpn = 7};
    uint32_t destination, bytes;
    verbs_address_encode(&ours, &address);
    cr_assert_eq(nic_verbs_ops.peer_add(queues[0], &host, &address, &destination, &bytes), UCCL_EPROTO);
    cr_assert_not_null(strstr(said, "InfiniBand"));
    cr_assert(!nic_verbs_ops.places(queues[0], &address));
    nic_verbs_ops.queue_address(queues[1], &address);
    cr_assert(nic_verbs_ops.places(queues[0], &address));
}
