/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs backend on a device of plain memory: queues that must not overflow, completions that fail, queue pairs
 * that are drained. What a real one does is tested in tests/vm.
 */
#include "verbs_pair.h"

#include <poll.h>

/* ---- datagrams ------------------------------------------------------------------------------- */

Test(verbs_ud, datagrams_of_all_lengths_arrive, .init = set_up_pair, .fini = close_pair)
{
    for (uint32_t length = WIRE_HEADER_BYTES + 1; length <= 4096; length += 31) {
        cr_assert(send_small(length, (uint16_t)(length % 7)));
        deliver();
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
    cr_assert(verbs_datagram_ops.send(&queues[0]->base, &desc));
    verbs_datagram_ops.flush(&queues[0]->base);
    memset(message.bytes + 7, 0xee, 4); /* the payload is not referenced any more */
    fake_run();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, rx, 4), 2);
    cr_assert_eq(rx[0].length, 4096);
    cr_assert_eq(rx[0].data[WIRE_BULK_HEADER_BYTES], (uint8_t)(7 * 7));
    cr_assert_eq(rx[1].length, WIRE_BULK_HEADER_BYTES + 10);
    cr_assert_arr_eq(rx[1].data + WIRE_BULK_HEADER_BYTES, message.bytes + 7 + 2 * desc.bulk_stride, 10);
    for (unsigned i = 0; i < 2; i++)
        verbs_datagram_ops.release(&queues[1]->base, &rx[i]);
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
        deliver();
        while (take_all(SMALL_BYTES))
            received++;
        cr_assert(send_small(SMALL_BYTES, 0));
        deliver();
        take_all(SMALL_BYTES);
    }
}

Test(verbs_ud, failed_send_sets_the_queue_pair_up_again, .init = set_up_pair, .fini = close_pair)
{
    fake.status = IBV_WC_LOC_QP_OP_ERR;
    for (unsigned i = 0; i < 10; i++)
        cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    verbs_reap_sends(queues[0]);
    cr_assert_not_null(strstr(said, "local QP operation error"));
    struct nic_rx rx;
    cr_assert_eq(verbs_datagram_ops.poll(&queues[0]->base, &rx, 1), 0); /* here it is set up */
    cr_assert_eq(queues[0]->ud->state, IBV_QPS_RTS);
    send_and_take();
    for (unsigned i = 0; i < 2000; i++) { /* and all of it is as before: nothing runs out */
        send_and_take();
    }
}

/* Completions of an earlier life, taken late, free nothing of this one. */
Test(verbs_ud, late_completions_mean_nothing, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    for (unsigned i = 0; i < 200; i++)
        cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    fake.send_errno = EINVAL;
    cr_assert(send_small(SMALL_BYTES, 0));
    verbs_datagram_ops.flush(&queues[0]->base);
    fake.send_errno = 0;
    cr_assert_eq(verbs_datagram_ops.poll(&queues[0]->base, &rx, 1), 0);
    unsigned sent = 0;
    while (sent < 1000 && send_small(SMALL_BYTES, 0))
        sent++;
    cr_assert_eq(sent, VERBS_UD_SENDS);
    deliver();
    cr_assert(send_small(SMALL_BYTES, 0));
}

Test(verbs_ud, refused_post_sets_it_up_again, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    fake.send_errno = EINVAL;
    cr_assert(send_small(SMALL_BYTES, 0));
    verbs_datagram_ops.flush(&queues[0]->base);
    fake.send_errno = 0;
    cr_assert_eq(verbs_datagram_ops.poll(&queues[0]->base, &rx, 1), 0);
    send_and_take();
}

/* Its completions, of which not every driver rids the queue, leave room for those that come. */
Test(verbs_ud, set_up_again_with_a_full_completion_queue, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    fake.status = IBV_WC_LOC_QP_OP_ERR;
    for (unsigned i = 0; i < VERBS_UD_SENDS; i++)
        cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    queues[0]->broken = true; /* as a receive that failed would tell */
    cr_assert_eq(verbs_datagram_ops.poll(&queues[0]->base, &rx, 1), 0);
    for (unsigned i = 0; i < VERBS_UD_SENDS; i++)
        send_and_take();
}

Test(verbs_ud, handles_of_a_removed_peer_outlive_its_sends, .init = set_up_pair, .fini = close_pair)
{
    uint32_t before = fake.handles_alive;
    cr_assert(send_small(SMALL_BYTES, 0));
    verbs_datagram_ops.peer_remove(&queues[0]->base, to_second);
    cr_assert_eq(fake.handles_alive, before);
    for (unsigned i = 0; i < 4; i++)
        add_peer(queues[0], queues[1]);
    cr_assert_eq(fake.handles_alive, before + 8);
}

/* ---- paths ----------------------------------------------------------------------------------- */

Test(verbs_data_qp, writes_are_placed_and_told, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    cr_assert(send_write(0, 1, 100, 5000, 77));
    verbs_datagram_ops.flush(&queues[0]->base);
    cr_assert_eq(finished(), 0);
    fake_run();
    cr_assert_eq(finished(), 77);
    cr_assert_eq(finished(), 0);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert(rx.placed);
    cr_assert_eq(rx.immediate, 77u ^ 0x12345678);
    cr_assert_eq(rx.length, 5000);
    cr_assert_eq(rx.path, 0);
    cr_assert_eq(rx.generation, 1);
    cr_assert_eq(rx.flow, path_id(1, 0, 1).flow);
    cr_assert_arr_eq(target.bytes + 100, source.bytes + 100, 5000);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
    cr_assert(send_write(0, 1, 0, 0, 78)); /* a message without bytes has a write too */
    deliver();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert_eq(rx.length, 0);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
}

/* Of every packet to that peer: datagrams and data QPs of all paths. Without a wish the parameters count. */
Test(verbs_data_qp, traffic_class_is_in_every_route, .init = set_up, .fini = close_pair)
{
    static const struct {
        uint8_t wished, tc, traffic_class, field;
    } cases[] = {{0, 0, 0, 0}, {0, 106, 0, 106}, {0, 0, 40, 40}, {0, 106, 40, 106}, {0x68, 106, 40, 0x68}};
    open_pair();
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nic_host host = {.address.v4.sin_family = AF_INET, .traffic_class = cases[i].wished};
        struct nic_queue_address address;
        uint32_t bytes, number, psn;
        queues[0]->nic->backend->params.ib_tc = cases[i].tc;
        queues[0]->nic->backend->params.traffic_class = cases[i].traffic_class;
        verbs_queue_ops.address(&queues[1]->base, &address);
        verbs_datagram_ops.peer_remove(&queues[0]->base, to_second);
        cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &to_second, &bytes), 0);
        for (uint16_t path = 0; path < 2; path++) {
            struct nic_qp_id id = path_id(0, path, 1);
            struct ibv_ah *handle = verbs_peer_at(queues[0], to_second)->handles[path];
            cr_assert_eq(((struct fake_handle *)handle)->route.grh.traffic_class, cases[i].field);
            cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
            cr_assert_eq(verbs_data_qp_ops.connect(&queues[0]->base, &id, 100, psn), 0);
            cr_assert_eq(fake_qp_of(number)->to_receive.ah_attr.grh.traffic_class, cases[i].field);
        }
    }
}

/* Whatever the peer offers: queue pairs of management and of groups are not connected to, and it is said once. */
Test(verbs_data_qp, numbers_that_are_no_queue_pairs_are_refused, .init = set_up_pair, .fini = close_pair)
{
    static const uint32_t numbers[] = {0, 1, 0xffffff, 0x1000000, 0x1000064, 0xffffffff};
    uint32_t number, psn;
    struct nic_qp_id id = path_id(0, 0, 1);
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
    struct fake_qp *qp = fake_qp_of(number);
    for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        said[0] = 0;
        cr_assert_eq(verbs_data_qp_ops.connect(&queues[0]->base, &id, numbers[i], 0xffffffff), UCCL_EPROTO);
        cr_assert_eq(qp->qp.state, IBV_QPS_INIT);
        cr_assert_eq(strstr(said, "cannot be one") != NULL, i == 0);
    }
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    await_drained(0);
    verbs_data_qp_ops.destroy(&queues[0]->base, &id);
}

/* What finishes while the queue is about to sleep keeps it awake until it has been told, and no longer. */
Test(verbs_data_qp, finished_work_is_told_before_a_sleep, .init = set_up_paths, .fini = close_pair)
{
    cr_assert(!verbs_data_qps_arm(queues[0]));
    cr_assert(send_write(0, 1, 0, 10, 5));
    verbs_datagram_ops.flush(&queues[0]->base);
    cr_assert(!verbs_data_qps_arm(queues[0]));
    fake_run();
    cr_assert(verbs_data_qps_arm(queues[0]));
    cr_assert(verbs_data_qps_arm(queues[0]));
    cr_assert_eq(finished(), 5);
    cr_assert(!verbs_data_qps_arm(queues[0]));
    cr_assert(send_write(0, 1, 0, 10, 6)); /* and what nobody will ask for, since its flow is closed */
    deliver();
    cr_assert(verbs_data_qps_arm(queues[0]));
    verbs_datagram_ops.peer_remove(&queues[0]->base, to_second);
    verbs_data_qps_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert(!verbs_data_qps_arm(queues[0]));
}

Test(verbs_data_qp, retransmissions_keep_the_order_of_the_queue_pair, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    cr_assert(send_write(0, 1, 0, 10, 1));
    cr_assert(send_retransmission(2, 2));
    cr_assert(send_write(0, 1, 20, 10, 3));
    deliver();
    cr_assert_eq(finished(), 3);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
        cr_assert_eq(rx.placed, i == 0 || i == 3);
        if (!rx.placed)
            cr_assert_arr_eq(rx.data + WIRE_BULK_HEADER_BYTES, source.bytes + (i - 1) * 936, 936);
        verbs_datagram_ops.release(&queues[1]->base, &rx);
    }
}

/* One path and nothing completes: the queue is never asked for more than it holds. */
Test(verbs_data_qp, full_queue_is_said_not_hit, .init = set_up_paths, .fini = close_pair)
{
    for (unsigned round = 0; round < 4; round++) {
        uint64_t cookie = 1000 * round;
        while (send_write(0, 1, 0, 1024, cookie + 1))
            cr_assert_lt(++cookie, 1000 * round + 65);
        cr_assert_eq(cookie, 1000 * round + 64);
        cr_assert(!send_retransmission(1, 5000));
        verbs_datagram_ops.flush(&queues[0]->base);
        cr_assert_leq(fake.most_sends, 65);
        fake_run();
        cr_assert_eq(finished(), cookie);
        cr_assert_eq(take_writes(), 64);
    }
    unsigned retransmissions = 0; /* and the pool of retransmissions, over many paths */
    connect_path(1, 1);
    while (send_retransmission(16, 9))
        retransmissions++;
    cr_assert_eq(retransmissions, 4);
}

/* A peer whose queue pairs finish nothing takes no more of the pool than it leaves to the others, who share that. */
Test(verbs_data_qp, pool_of_retransmissions_is_shared_among_peers, .init = set_up, .fini = close_pair)
{
    enum { EACH = 16, PEERS = 3 };
    static const unsigned expected[PEERS] = {128, 64, 32};
    uint32_t number, psn, peer[PEERS];
    params.port_entropy = 4;
    params.qp_depth = 256;
    open_pair();
    for (unsigned i = 0; i < PEERS; i++) {
        unsigned held = 0;
        peer[i] = i ? add_peer(queues[0], queues[1]) : to_second;
        for (uint16_t path = 0; path < 4; path++) {
            struct nic_qp_id id = {
                .flow = path_id(0, 0, 1).flow, .destination = peer[i], .path = path, .generation = 1};
            cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
            cr_assert_eq(verbs_data_qp_ops.connect(&queues[0]->base, &id, 2, 0), 0); /* to nobody */
        }
        while (send_retransmission_to(peer[i], held / EACH % 4, EACH, 9))
            held += EACH;
        cr_assert_eq(held, expected[i], "peer %u: %u", i, held);
    }
    cr_assert_eq(queues[0]->data_qps->free_retransmission_count, VERBS_RETRANSMISSIONS - 128 - 64 - 32);
    verbs_datagram_ops.flush(&queues[0]->base);
    fake_run();
    struct nic_done done[16];
    cr_assert_eq(verbs_data_qp_ops.poll_done(&queues[0]->base, done, 16), 4 + 4 + 2);
    cr_assert_eq(queues[0]->data_qps->free_retransmission_count, VERBS_RETRANSMISSIONS);
    cr_assert(send_retransmission_to(peer[2], 0, CORE_TRAIN_MAX, 9));
    verbs_datagram_ops.flush(&queues[0]->base);
}

/* And not a train more than that, even if that much is still free. */
Test(verbs_data_qp, pool_of_retransmissions_is_kept_to_the_last_slot, .init = set_up, .fini = close_pair)
{
    unsigned held = 0;
    params.qp_depth = 256;
    open_pair();
    connect_path(0, 1);
    for (; held < VERBS_RETRANSMISSIONS / 2 - 8; held += 8)
        cr_assert(send_retransmission(8, 9));
    cr_assert(!send_retransmission(16, 9));
    cr_assert(send_retransmission(8, 9));
    cr_assert(!send_retransmission(1, 9));
    deliver();
}

/* A peer gives its queue pairs up again and again: ours are made no faster than they come to an end. */
Test(verbs_data_qp, generations_wait_for_those_at_rest, .init = set_up_pair, .fini = close_pair)
{
    struct nic_qp_id id;
    uint32_t number, psn;
    for (uint32_t generation = 1; generation <= VERBS_TIME_WAIT_MAX; generation++) {
        id = path_id(0, 0, generation);
        cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
        verbs_data_qp_ops.drain(&queues[0]->base, &id);
        await_drained(0);
        verbs_data_qp_ops.destroy(&queues[0]->base, &id);
        queues[0]->data_qps->all[generation - 1]->since_ms = UINT32_MAX; /* they rest for as long as the test takes */
    }
    said[0] = 0;
    id = path_id(0, 0, VERBS_TIME_WAIT_MAX + 1);
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), UCCL_EAGAIN);
    cr_assert_str_empty(said, "it is no fault of the device");
    struct nic_qp_id other = path_id(0, 1, 1);
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &other, &number, &psn), 0);
    verbs_data_qps_sweep(queues[0], UINT32_MAX + UINT64_C(1) + params.packet_lifetime_ms);
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
}

Test(verbs_data_qp, failed_send_is_told_in_words_and_drained, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_qp_id id = path_id(0, 0, 1);
    cr_assert(send_write(0, 1, 0, 10, 1));
    deliver();
    cr_assert_eq(finished(), 1);
    fake.status = IBV_WC_RETRY_EXC_ERR;
    for (uint64_t cookie = 2; cookie < 6; cookie++)
        cr_assert(send_write(0, 1, 0, 10, cookie));
    deliver();
    cr_assert_eq(finished(), 0); /* what failed is not done */
    cr_assert(next_event(0, &event));
    cr_assert(!event.drained);
    cr_assert_eq(event.id.generation, 1);
    cr_assert_not_null(strstr(said, "transport retry counter exceeded"));
    cr_assert(!next_event(0, &event)); /* once */
    cr_assert(!send_write(0, 1, 0, 10, 6));
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    fake_run();
    await_drained(0);
    verbs_data_qp_ops.destroy(&queues[0]->base, &id);
    uint32_t number, psn, alive = fake.qps_alive;
    id.generation = 2;
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0);
    cr_assert_eq(fake.qps_alive, alive + 1); /* the old one rests */
    verbs_data_qps_sweep(queues[0], verbs_now_ms());
    cr_assert_eq(fake.qps_alive, alive + 1);
    verbs_data_qps_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert_eq(fake.qps_alive, alive);
}

/* What had been received is handed out before the drain is said to stand; nothing is placed after. */
Test(verbs_data_qp, drain_comes_after_all_that_was_received, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_rx rx;
    struct nic_qp_id id = path_id(1, 0, 1);
    for (uint64_t cookie = 1; cookie <= 40; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    deliver();
    verbs_data_qp_ops.drain(&queues[1]->base, &id);
    fake_run();
    struct verbs_data_qp *qp =
        verbs_data_qp_of(queues[1], fake_qp_of(queues[1]->peers[to_first].qps[0]->ibv->qp_num)->qp.qp_num);
    atomic_store(&qp->last_receive, 1);
    for (unsigned taken = 0; taken < 40; taken++) {
        cr_assert(!next_event(1, &event), "drained after %u of 40", taken);
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
        verbs_datagram_ops.release(&queues[1]->base, &rx);
    }
    cr_assert(next_event(1, &event));
    cr_assert(event.drained);
    memset(target.bytes, 0, 16);
    cr_assert(send_write(0, 1, 0, 16, 41));
    deliver();
    cr_assert_eq(target.bytes[1], 0);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 0);
    verbs_data_qp_ops.destroy(&queues[1]->base, &id);
}

Test(verbs_data_qp, drain_waits_for_receives_when_the_device_is_silent, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_qp_id id = path_id(0, 0, 1);
    uint64_t begin_ms = verbs_now_ms();
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    fake_run();
    cr_assert_eq(finished(), 0);
    while (!next_event(0, &event))
        ;
    cr_assert_geq(verbs_now_ms() - begin_ms, VERBS_DRAIN_MS - 1);
    cr_assert(event.drained);
}

/* The next peer that gets the number of a destination is another one. */
Test(verbs_data_qp, generations_of_an_earlier_peer_do_not_count, .init = set_up_pair, .fini = close_pair)
{
    uint32_t number, psn, destination = to_second;
    params.packet_lifetime_ms = 60000;
    for (unsigned i = 0; i <= VERBS_TIME_WAIT_MAX; i++) {
        struct nic_qp_id id = path_id(0, 0, 1);
        cr_assert_eq(to_second, destination);
        cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0, "peer %u", i);
        verbs_data_qp_ops.drain(&queues[0]->base, &id);
        await_drained(0);
        verbs_data_qp_ops.destroy(&queues[0]->base, &id);
        id.path = 1; /* this one is not even drained */
        cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), 0, "peer %u", i);
        verbs_datagram_ops.peer_remove(&queues[0]->base, to_second);
        to_second = add_peer(queues[0], queues[1]);
    }
}

/* Sends that never end: the queue pair is destroyed, which ends them, before the drain stands. */
Test(verbs_data_qp, device_that_does_not_flush_is_made_to, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_id id = path_id(0, 0, 1);
    uint32_t alive = fake.qps_alive;
    fake_qp_of(queues[0]->peers[to_second].qps[0]->ibv->qp_num)->silent = true;
    cr_assert(send_retransmission(3, 1));
    verbs_datagram_ops.flush(&queues[0]->base);
    uint32_t free_before = queues[0]->data_qps->free_retransmission_count;
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    await_drained(0);
    cr_assert_eq(fake.qps_alive, alive - 1);
    cr_assert_eq(queues[0]->data_qps->free_retransmission_count, free_before + 3);
    verbs_data_qp_ops.destroy(&queues[0]->base, &id);
    verbs_data_qps_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    fake_run();
    cr_assert_eq(finished(), 0);
}

/* Neither done nor failed, for longer than all attempts of a queue pair may take. */
Test(verbs_data_qp, work_that_does_not_end_is_a_failure, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    uint64_t begin_ms = verbs_now_ms(), limit_ms = 500 + 2 * 67 * 8;
    params.ib_timeout = 14;
    params.ib_retry_cnt = 7;
    verbs_data_qps_sweep(queues[0], begin_ms);
    cr_assert(send_write(0, 1, 0, 10, 1)); /* long after the last one: counts from here */
    verbs_datagram_ops.flush(&queues[0]->base);
    verbs_data_qps_sweep(queues[0], begin_ms + 10 * limit_ms);
    verbs_data_qps_sweep(queues[0], begin_ms + 11 * limit_ms - 10);
    cr_assert(!next_event(0, &event));
    verbs_data_qps_sweep(queues[0], begin_ms + 11 * limit_ms + 10);
    cr_assert(next_event(0, &event));
    cr_assert(!event.drained);
    verbs_data_qps_sweep(queues[0], begin_ms + 20 * limit_ms); /* is told once */
    cr_assert(!next_event(0, &event));
}

Test(verbs_data_qp, closed_flow_hears_nothing_more, .init = set_up_paths, .fini = close_pair)
{
    struct nic_rx rx;
    struct nic_qp_event event;
    for (uint64_t cookie = 1; cookie <= 10; cookie++)
        cr_assert(send_write(0, 1, 0, 16, cookie));
    deliver();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
    verbs_datagram_ops.peer_remove(&queues[1]->base, to_first);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 0);
    cr_assert(!next_event(1, &event));
    cr_assert(send_retransmission(3, 11));
    verbs_datagram_ops.flush(&queues[0]->base);
    verbs_datagram_ops.peer_remove(&queues[0]->base, to_second);
    cr_assert_lt(queues[0]->data_qps->free_retransmission_count,
                 VERBS_RETRANSMISSIONS); /* the device may read them still */
    verbs_data_qps_sweep(queues[0], verbs_now_ms() + params.packet_lifetime_ms);
    cr_assert_eq(queues[0]->data_qps->free_retransmission_count, VERBS_RETRANSMISSIONS);
    fake_run();
    cr_assert_eq(finished(), 0);
}

/* ---- sleeping -------------------------------------------------------------------------------- */

static bool channel_tells(unsigned queue)
{
    struct pollfd fd = {.fd = queues[queue]->channel->fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

/* What comes while a thread sleeps wakes it, whichever completion queue it comes to. */
Test(verbs_sleep, ends_with_what_comes, .init = set_up_paths, .fini = close_pair, .timeout = 30)
{
    for (unsigned round = 0; round < 3; round++) {
        sleep_in(&queues[1]->base, 0);
        cr_assert_not(channel_tells(1));
        cr_assert(send_small(SMALL_BYTES, 0));
        deliver();
        cr_assert(channel_tells(1), "a datagram");
        sleep_in(&queues[1]->base, UINT64_MAX);
        cr_assert_eq(take_all(SMALL_BYTES), 1);
        sleep_in(&queues[1]->base, 0);
        cr_assert_not(channel_tells(1), "the event was not taken");

        sleep_in(&queues[0]->base, 0);
        cr_assert(send_write(0, 1, 0, 10, 7 + round));
        deliver();
        cr_assert(channel_tells(0), "finished work");
        sleep_in(&queues[0]->base, UINT64_MAX);
        cr_assert_eq(finished(), 7 + round);
        sleep_in(&queues[0]->base, 0);
        cr_assert_not(channel_tells(0), "the event was not taken");
        struct nic_rx rx;
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
        verbs_datagram_ops.release(&queues[1]->base, &rx);
    }
}

/* Whoever sleeps may have lost the queue to another thread, which takes what comes. */
Test(verbs_sleep, touches_nothing_of_the_owners, .init = set_up_paths, .fini = close_pair, .timeout = 30)
{
    uint64_t timeout_ns = UINT64_MAX;
    verbs_queue_ops.arm(&queues[1]->base, &timeout_ns);
    cr_assert_eq(timeout_ns, UINT64_MAX);
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    verbs_queue_ops.wait(&queues[1]->base, -1, UINT64_MAX);
    cr_assert_not(channel_tells(1), "the event was not taken");
    cr_assert_eq(queues[1]->ready_count, 0, "it received");
    verbs_queue_ops.arm(&queues[1]->base, &timeout_ns);
    cr_assert_eq(timeout_ns, 0, "something waits");
    cr_assert_eq(take_all(SMALL_BYTES), 1);
}

/* The end of a drain may tell nobody: then nobody sleeps for long. */
Test(verbs_sleep, is_short_while_a_path_is_drained, .init = set_up_paths, .fini = close_pair, .timeout = 30)
{
    struct nic_qp_id id = path_id(0, 0, 1);
    uint64_t shortest_ms = UINT64_MAX;
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    for (unsigned i = 0; i < 20 && shortest_ms >= 100; i++) { /* the host may be busy */
        uint64_t begin_ms = verbs_now_ms();
        sleep_in(&queues[0]->base, UINT64_C(20000) * 1000000);
        if (verbs_now_ms() - begin_ms < shortest_ms)
            shortest_ms = verbs_now_ms() - begin_ms;
    }
    cr_assert_lt(shortest_ms, 100);
}

/* ---- memory, peers --------------------------------------------------------------------------- */

Test(verbs_memory, is_for_peers_to_write, .init = set_up_pair, .fini = close_pair)
{
    struct nic_mr mr = {0};
    cr_assert_eq(verbs_memory_ops.reg_mr(nic, 0, target.bytes, 100, &mr), 0);
    cr_assert_eq(fake.access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    cr_assert_eq(mr.local_key, ((struct ibv_mr *)mr.handle)->lkey);
    cr_assert_eq(mr.remote_key, ((struct ibv_mr *)mr.handle)->rkey);
    verbs_memory_ops.dereg_mr(nic, &mr);
    fake.read_only = true;
    cr_assert_eq(verbs_memory_ops.reg_mr(nic, 0, target.bytes, 100, &mr), 0);
    cr_assert_eq(fake.access, 0, "it may be sent from");
    verbs_memory_ops.dereg_mr(nic, &mr);
}

/* The smaller one of both ports' MTUs is that of the datagrams between them. */
Test(verbs_peers, with_a_smaller_mtu, .init = set_up_pair, .fini = close_pair)
{
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    uint32_t destination, bytes;
    verbs_queue_ops.address(&queues[1]->base, &address);
    address.bytes[3] = 10; /* 1024 */
    cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &destination, &bytes), 0);
    cr_assert_eq(bytes, 1024);
    verbs_datagram_ops.peer_remove(&queues[0]->base, destination);
}

/* ---- what belongs to whom -------------------------------------------------------------------- */

Test(verbs_data_qp, another_generation_is_another_path, .init = set_up_paths, .fini = close_pair)
{
    cr_assert_not(send_write(0, 0, 0, 10, 1));
    cr_assert_not(send_write(0, 2, 0, 10, 1));
    cr_assert(send_write(0, 1, 0, 10, 1));
    struct verbs_data_qp *qp = queues[0]->peers[to_second].qps[0];
    verbs_datagram_ops.flush(&queues[0]->base);
    /* a completion of the queue pair that had its place before */
    struct ibv_wc late = {.wr_id = verbs_data_qp_work_id(qp, 0) ^ UINT64_C(1) << 32, .status = IBV_WC_SUCCESS};
    fake_complete(qp->cq->cq.cq, &late);
    cr_assert_eq(finished(), 0);
    fake_run();
    cr_assert_eq(finished(), 1);
}

Test(verbs_data_qp, each_write_of_a_chunk_has_its_place, .init = set_up_paths, .fini = close_pair)
{
    enum { COUNT = 3, BYTES = 1000, OFFSET = 500 };
    struct nic_rx rx;
    struct tx_desc desc = {.kind = TX_PLACE,
                           .count = COUNT,
                           .on_path = true,
                           .generation = 1,
                           .destination = to_second,
                           .bulk_msg = &source.core,
                           .bulk_offset = OFFSET,
                           .place_bytes = BYTES,
                           .remote_address = (uintptr_t)target.bytes + OFFSET,
                           .immediate = 5,
                           .cookie = 9};
    memset(target.bytes, 0, sizeof target.bytes);
    cr_assert(verbs_datagram_ops.send(&queues[0]->base, &desc));
    deliver();
    cr_assert_eq(finished(), 9);
    cr_assert_eq(memcmp(target.bytes + OFFSET, source.bytes + OFFSET, COUNT * BYTES), 0);
    cr_assert_eq(target.bytes[OFFSET + COUNT * BYTES], 0);
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
        cr_assert(rx.placed && rx.length == BYTES);
        cr_assert_eq(rx.immediate, wire_immediate_after(5, i));
        verbs_datagram_ops.release(&queues[1]->base, &rx);
    }
}

/* Each path of a peer has a way of its own through the network, of datagrams too. */
Test(verbs_ud, paths_take_ways_of_their_own, .init = set_up_pair, .fini = close_pair)
{
    const struct fake_qp *qp = fake_qp_of(queues[0]->ud->qp_num);
    for (unsigned path = 0; path < params.port_entropy; path++) {
        uint32_t at = qp->sends_tail % FAKE_RING;
        cr_assert(send_small(SMALL_BYTES, (uint16_t)path));
        verbs_datagram_ops.flush(&queues[0]->base);
        cr_assert_eq(qp->sends[at].wr.ud.ah, queues[0]->peers[to_second].handles[path]);
        fake_run();
    }
    const struct fake_handle *a = (struct fake_handle *)queues[0]->peers[to_second].handles[0],
                             *b = (struct fake_handle *)queues[0]->peers[to_second].handles[1];
    cr_assert_neq(a->route.grh.flow_label, b->route.grh.flow_label);
    cr_assert_eq(take_all(SMALL_BYTES), params.port_entropy);
}

/* Marks of routers stand in the IPv4 header. */
Test(verbs_ud, marks_are_seen, .init = set_up_pair, .fini = close_pair)
{
    static const uint8_t services[] = {2, 3, 0xb8 | 2, 0xb8 | 3, 1};
    struct nic_rx rx;
    for (unsigned i = 0; i < sizeof services; i++) {
        fake.tos = services[i];
        cr_assert(send_small(SMALL_BYTES, 0));
        deliver();
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
        cr_assert_eq(rx.ce, (services[i] & 3) == 3, "service %02x", services[i]);
        verbs_datagram_ops.release(&queues[1]->base, &rx);
    }
}

/* What came before the device was asked for a word raises no event. */
Test(verbs_sleep, does_not_begin_when_something_is_there, .init = set_up_paths, .fini = close_pair, .timeout = 30)
{
    uint64_t begin_ms = verbs_now_ms();
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    sleep_in(&queues[1]->base, UINT64_C(20000) * 1000000);
    cr_assert_eq(take_all(SMALL_BYTES), 1);
    cr_assert(send_write(0, 1, 0, 10, 7));
    deliver();
    sleep_in(&queues[0]->base, UINT64_C(20000) * 1000000);
    cr_assert_eq(finished(), 7);
    cr_assert_lt(verbs_now_ms() - begin_ms, 10000);
}

/* Receives of a queue pair's earlier life hold nothing of this one. */
Test(verbs_ud, late_receives_mean_nothing, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    struct ibv_wc late = {.wr_id = (uint64_t)(queues[1]->epoch - 1) << 32, .status = IBV_WC_SUCCESS, .byte_len = 100};
    fake_complete(queues[1]->receive_cq.cq, &late);
    late.status = IBV_WC_WR_FLUSH_ERR;
    fake_complete(queues[1]->receive_cq.cq, &late);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 0);
    cr_assert_not(queues[1]->broken);
    uint32_t epoch = queues[1]->epoch;
    verbs_ud_recover(queues[1]);
    cr_assert_neq(queues[1]->epoch, epoch);
    send_and_take();
}

/* What comes on a queue pair that is nobody's any more gives its slot back. */
Test(verbs_data_qp, slots_of_nobodys_paths_come_back, .init = set_up_paths, .fini = close_pair)
{
    enum { COUNT = 3 * VERBS_REPOST };
    struct nic_rx rx;
    struct verbs_slots *shared = &queues[1]->data_qps->shared;
    const struct fake_receives *receives = &((struct fake_srq *)queues[1]->data_qps->srq)->receives;
    uint32_t posted = receives->tail, chained = shared->chained;
    ((struct fake_srq *)queues[1]->data_qps->srq)->receives.head += COUNT; /* which the device has used */
    for (unsigned i = 0; i < COUNT; i++) {
        struct ibv_wc wc = {
            .wr_id = (i % shared->count) | VERBS_SHARED_SLOT, .qp_num = 99999, .status = IBV_WC_SUCCESS};
        fake_complete(queues[1]->receive_cq.cq, &wc);
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 0);
    }
    cr_assert_eq(receives->tail - posted + shared->chained - chained, COUNT);
}

/* Each end expects the number that the other one begins with. */
Test(verbs_data_qp, numbers_of_packets, .init = set_up_paths, .fini = close_pair)
{
    struct verbs_data_qp *a = queues[0]->peers[to_second].qps[0], *b = queues[1]->peers[to_first].qps[0];
    const struct fake_qp *qa = fake_qp_of(a->ibv->qp_num), *qb = fake_qp_of(b->ibv->qp_num);
    cr_assert_neq(a->psn, b->psn);
    cr_assert(qa->to_send.sq_psn == a->psn && qb->to_send.sq_psn == b->psn);
    cr_assert(qa->to_receive.rq_psn == b->psn && qb->to_receive.rq_psn == a->psn);
}

/* A peer without a posted receive is tried for ever, one that is silent as often and for as long as was asked. */
Test(verbs_data_qp, what_a_device_is_told_of_a_path, .init = set_up, .fini = close_pair)
{
    params.ib_timeout = 14;
    params.ib_retry_cnt = 5;
    fake.no_uc = true; /* RC */
    open_pair();
    queues[0]->peers[to_second].path_mtu = 1024;
    connect_path(0, 1);
    const struct fake_qp *qp = fake_qp_of(queues[0]->peers[to_second].qps[0]->ibv->qp_num);
    cr_assert_eq(qp->to_receive.path_mtu, IBV_MTU_1024, "%d", qp->to_receive.path_mtu);
    cr_assert_eq(qp->to_send.timeout, 14);
    cr_assert_eq(qp->to_send.retry_cnt, 5);
    cr_assert_eq(qp->to_send.rnr_retry, 7);
    qp = fake_qp_of(queues[1]->peers[to_first].qps[0]->ibv->qp_num);
    cr_assert_eq(qp->to_receive.path_mtu, IBV_MTU_4096);
}

/* The source of packets is an entry of the device's table, in which empty ones may come before it. */
Test(verbs_data_qp, source_is_an_entry_of_the_table, .init = set_up, .fini = close_pair)
{
    fake.gids_empty = 2;
    fake.port.gid_tbl_len = 4;
    open_pair();
    send_and_take();
    connect_path(0, 1);
    cr_assert(send_write(0, 1, 100, 5000, 77));
    deliver();
    cr_assert_eq(take_writes(), 1);
}
