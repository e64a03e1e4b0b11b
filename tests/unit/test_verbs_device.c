/* SPDX-License-Identifier: Apache-2.0 */
/* The device of the verbs backend: what it can do, what it reports, InfiniBand, time stamps. */
#include "base/clock.h"
#include "verbs_pair.h"

#include <stdio.h>

/* ---- the device ------------------------------------------------------------------------------ */

/* The device tells the queue, which looks at once. */
static void happens(struct ibv_async_event event)
{
    uint32_t destination, bytes;
    FAKE_REQUIRE(fake.event_count < FAKE_EVENTS);
    fake.events[fake.event_count++] = event;
    queues[0]->until_look = queues[0]->looked_ms = 0;
    while (verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes))
        ;
}

static void port_event(enum ibv_event_type type, int port)
{
    happens((struct ibv_async_event){.event_type = type, .element.port_num = port});
}

Test(verbs_device, queue_pair_that_the_device_gives_up, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct ibv_qp *qp = queues[0]->peers[to_second].qps[0]->ibv;
    happens((struct ibv_async_event){.event_type = IBV_EVENT_QP_FATAL, .element.qp = qp});
    cr_assert(next_event(0, &event));
    cr_assert(!event.drained);
    cr_assert_not_null(strstr(said, "local work queue catastrophic error"));
}

Test(verbs_device, that_is_removed, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_qp_id id = path_id(0, 1, 1);
    uint32_t number, psn;
    cr_assert_eq(nic_failure(&queues[0]->base), 0);
    happens((struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL});
    cr_assert(next_event(0, &event));
    cr_assert(!event.drained);
    cr_assert_not_null(strstr(said, "was removed"));
    cr_assert_not_null(strstr(said, "local catastrophic error"));
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(nic_failure(&queues[i]->base), UCCL_EIO);
    said[0] = 0;
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), UCCL_EIO);
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    verbs_queue_ops.address(&queues[1]->base, &address);
    cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &number, &psn), UCCL_EIO);
    cr_assert_str_empty(said);
    id = path_id(0, 0, 1); /* what can be read and written is let go of, though nothing completes any more */
    fake_qp_of(queues[0]->peers[to_second].qps[0]->ibv->qp_num)->silent = true;
    verbs_data_qp_ops.drain(&queues[0]->base, &id);
    await_drained(0);
}

/* Nothing completes in it any more: the engine would seem to work, and every peer to be dead. */
Test(verbs_device, completion_queue_that_fails, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    happens((struct ibv_async_event){.event_type = IBV_EVENT_CQ_ERR, .element.cq = queues[0]->receive_cq.cq});
    cr_assert_eq(nic_failure(&queues[0]->base), UCCL_EIO);
    cr_assert(next_event(0, &event));
    cr_assert_not_null(strstr(said, "fake0"), "%s", said);
}

/* Found in review: a thread without work did not sleep then, since the completion queue could not be armed. */
Test(verbs_device, that_is_removed_lets_threads_sleep, .init = set_up_pair, .fini = close_pair)
{
    struct nic_rx rx;
    happens((struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL});
    fake.notify_errno = EIO;
    queues[0]->broken = true;
    uint64_t begin_ms = verbs_now_ms();
    sleep_in(&queues[0]->base, 30 * 1000000);
    cr_assert_geq(verbs_now_ms() - begin_ms, 29);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[0]->base, &rx, 1), 0);
    cr_assert_eq(fake_qp_of(queues[0]->ud->qp_num)->qp.state, IBV_QPS_RTS, "and nobody sets the queue pair up again");
    verbs_queue_ops.wake(&queues[0]->base);
    begin_ms = verbs_now_ms();
    sleep_in(&queues[0]->base, UINT64_MAX);
    cr_assert_lt(verbs_now_ms() - begin_ms, 10000);
}

Test(verbs_device, port_that_changes_its_mtu, .init = set_up_pair, .fini = close_pair)
{
    uint32_t destination, bytes, others[2], seen = 0;
    for (unsigned i = 0; i < 2; i++)
        others[i] = add_peer(queues[0], queues[1]);
    for (unsigned round = 0; round < 2; round++) {
        fake.port.active_mtu = round ? IBV_MTU_4096 : IBV_MTU_1024;
        queues[0]->until_look = 0;
        queues[0]->looked_ms = 0;
        for (unsigned i = 0; i < 3; i++) {
            cr_assert(verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes));
            cr_assert_eq(bytes, round ? 4096 : 1024);
            seen += destination == to_second || destination == others[0] || destination == others[1];
        }
        cr_assert(!verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes));
        /* whoever comes now */
        struct nic_host host = {.address.v4.sin_family = AF_INET};
        struct nic_queue_address address;
        verbs_queue_ops.address(&queues[1]->base, &address);
        cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &destination, &bytes), 0);
        cr_assert_eq(bytes, round ? 4096 : 1024);
        verbs_datagram_ops.peer_remove(&queues[0]->base, destination);
    }
    cr_assert_eq(seen, 6);
}

/* Only one end has noticed yet: queue pairs of two path MTUs would refuse each other's writes. */
Test(verbs_device, path_mtu_is_the_same_at_both_ends, .init = set_up_pair, .fini = close_pair)
{
    uint32_t destination, bytes;
    fake.port.active_mtu = IBV_MTU_1024;
    queues[0]->until_look = 0;
    queues[0]->looked_ms = 0;
    while (verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes))
        cr_assert_eq(bytes, 1024);
    connect_path(0, 1);
    enum ibv_mtu mtu[2];
    for (unsigned i = 0; i < 2; i++) {
        uint32_t peer = i ? to_first : to_second;
        mtu[i] = fake_qp_of(verbs_peer_at(queues[i], peer)->qps[0]->ibv->qp_num)->to_receive.path_mtu;
    }
    cr_assert_eq(mtu[0], mtu[1], "%d, %d", mtu[0], mtu[1]);
}

/* Receive slots are made for the MTU that the port has at first. */
Test(verbs_device, port_whose_mtu_grows, .init = set_up)
{
    uint32_t destination, bytes;
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_queue_address address;
    fake.port.active_mtu = IBV_MTU_1024;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    for (unsigned i = 0; i < 2; i++)
        queues[i] = open_queue(i);
    verbs_queue_ops.address(&queues[1]->base, &address);
    address.bytes[3] = 12; /* the other one takes 4096 */
    cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &destination, &bytes), 0);
    cr_assert_eq(bytes, 1024);
    fake.port.active_mtu = IBV_MTU_4096;
    queues[0]->until_look = 0;
    cr_assert(!verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes));
    close_pair();
}

/* Path 0 of generation 1 has failed at both ends: it is drained and closed there. */
static void expect_failed(void)
{
    struct nic_qp_event event;
    for (unsigned i = 0; i < 2; i++) {
        struct nic_qp_id id = path_id(i, 0, 1);
        cr_assert(next_event(i, &event), "end %u", i);
        cr_assert(!event.drained);
        cr_assert(!next_event(i, &event)); /* once */
        verbs_data_qp_ops.drain(&queues[i]->base, &id);
        fake_run();
        await_drained(i);
        verbs_data_qp_ops.destroy(&queues[i]->base, &id);
    }
}

/* And its next generation carries writes. */
static void expect_works_anew(void)
{
    struct nic_qp_event event;
    connect_path(0, 2);
    cr_assert(send_write(0, 2, 0, 100, 7));
    deliver();
    cr_assert_eq(finished(), 7);
    cr_assert_eq(take_writes(), 1);
    cr_assert(!next_event(0, &event) && !next_event(1, &event));
}

Test(verbs_device, port_that_goes_down_fails_its_paths_until_it_is_active, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_id id = path_id(0, 0, 2);
    uint32_t number, psn;
    fake.port.state = IBV_PORT_DOWN;
    port_event(IBV_EVENT_PORT_ERR, 1);
    cr_assert_not_null(strstr(said, "port 1 is down"));
    expect_failed();
    said[0] = 0;
    cr_assert_eq(verbs_data_qp_ops.open(&queues[0]->base, &id, &number, &psn), UCCL_EIO);
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
    fake.events[fake.event_count++] = (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ERR, .element.port_num = 1};
    port_event(IBV_EVENT_PORT_ACTIVE, 1);
    expect_failed();
    expect_works_anew();
}

Test(verbs_device, port_of_others_may_do_what_it_will, .init = set_up_paths, .fini = close_pair)
{
    struct nic_qp_event event;
    port_event(IBV_EVENT_PORT_ERR, 2);
    cr_assert(!next_event(0, &event) && !next_event(1, &event));
    cr_assert_null(strstr(said, "is down"));
    cr_assert(send_write(0, 1, 0, 10, 1));
}

/* Two flushes for which no queue pair can be made: nothing of it is left. */
Test(verbs_device, that_makes_no_queue_pair_to_flush_with, .init = set_up_paths, .fini = close_pair)
{
    struct nic_mr mr = {.flush_key = 1, .flush_address = (uintptr_t)target.bytes};
    struct nic_flushed flushed[3];
    unsigned cookies[3];
    uint32_t before = fake.cqs_alive;
    fake.no_rc = true;
    for (unsigned i = 0; i < 2; i++)
        cr_assert(verbs_data_qp_ops.flush_device(&queues[0]->base, &mr, &cookies[i]));
    fake.no_rc = false;
    cr_assert(verbs_data_qp_ops.flush_device(&queues[0]->base, &mr, &cookies[2]));
    cr_assert_eq(verbs_data_qp_ops.poll_flushed(&queues[0]->base, flushed, 3), 3);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(flushed[i].failed && flushed[i].cookie == &cookies[i]);
    cr_assert_eq(fake.cqs_alive, before);
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

/* Packets go by LID and service level, without a global routing header (fake_reaches()), on every kind of queue pair.
 */
Test(verbs_infiniband, datagrams_and_writes_go_by_lid, .init = set_up_infiniband, .fini = close_pair)
{
    struct nic_rx rx;
    for (uint16_t path = 0; path < 3; path++) /* all the same: no flow label tells them apart */
        cr_assert(send_small(SMALL_BYTES, path));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 3);
    cr_assert_eq(fake.handles_alive, 2, "one way to each peer");
    memset(source.bytes, 7, sizeof source.bytes);
    connect_path(0, 1);
    cr_assert(send_write(0, 1, 10, 1000, 5));
    deliver();
    cr_assert_eq(finished(), 5);
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert(rx.placed && rx.length == 1000 && target.bytes[10] == 7 && target.bytes[1009] == 7);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
}

/* A class that a connection asks for chooses the service level; else the parameter does. */
Test(verbs_infiniband, traffic_class_is_a_service_level, .init = set_up_infiniband, .fini = close_pair)
{
    struct verbs_address to = {.lid = 7, .qpn = 5};
    cr_assert_eq(verbs_route_to(queues[0]->nic, &to, 0, 0).sl, 3);
    cr_assert_eq(verbs_route_to(queues[0]->nic, &to, 0, 0x7f).sl, 3);
    cr_assert_eq(verbs_route_to(queues[0]->nic, &to, 0, 0xa0).sl, 5);
    cr_assert_eq(verbs_route_to(queues[0]->nic, &to, 0, 1).sl, 0);
}

/* Where a header stands on RoCE there is rubbish: it is no congestion mark. */
Test(verbs_infiniband, no_header_has_no_mark, .init = set_up_infiniband, .fini = close_pair)
{
    struct nic_rx rx;
    memset(queues[1]->receives.pool.memory, 0xff, queues[1]->receives.pool.bytes);
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert(!rx.ce);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
}

/* A subnet manager may give a port another one. Whoever comes then is told that. */
Test(verbs_infiniband, new_peers_are_told_the_new_lid, .init = set_up_infiniband, .fini = close_pair)
{
    fake.port.lid = 0x4321;
    port_event(IBV_EVENT_LID_CHANGE, 1);
    cr_assert_not_null(strstr(said, "LID is 17185 now"), "%s", said);
    to_second = add_peer(queues[0], queues[1]);
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 1);
}

/* Another LID, or service level, than the peer's leads nowhere: the ones above were not just any. */
Test(verbs_infiniband, wrong_addresses_lead_nowhere, .init = set_up_infiniband, .fini = close_pair)
{
    fake.port.lid = 0x1235;
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 0);
    fake.port.lid = 0x1234;
    fake.sl = 0;
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 0);
}

Test(verbs_infiniband, device_says_so, .init = set_up_infiniband, .fini = close_pair)
{
    struct uccl_device device;
    union nic_address address;
    cr_assert_eq(verbs_device_ops.device(nic, 0, &device, &address), 0);
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
        cr_assert_eq(verbs_nic_of(nic)->mode, cases[i].mode);
        cr_assert_eq(nic->caps.reliable, cases[i].mode == VERBS_RC);
        cr_assert_eq(!nic->memory, cases[i].mode == VERBS_UD);
        cr_assert_not_null(strstr(said, cases[i].why), "%s", said);
        verbs_device_ops.close(nic);
    }
}

/* Whatever the device's queues hold, it is asked for no more. */
Test(verbs_device, queues_of_devices_with_low_limits, .init = set_up)
{
    static const int most[] = {600, 1023, 1024, 2048, 3000, FAKE_RING};
    for (unsigned mode = 0; mode < 2; mode++) {
        for (unsigned i = 0; i < sizeof most / sizeof most[0]; i++) {
            fake.limits.max_cqe = most[i];
            params.udmode = mode;
            open_pair();
            cr_assert_leq(queues[0]->receives.count + verbs_shared_receives(queues[0]->nic), (uint32_t)most[i]);
            send_and_take();
            close_pair();
            uccl_set_log(keep_log, NULL);
        }
    }
}

/* Data QPs times the speed of one; InfiniBand Architecture Specification, PortInfo. */
Test(verbs_device, speed, .init = set_up)
{
    static const struct {
        uint8_t width, speed;
        uint64_t mbps;
    } cases[] = {
        {1, 1, 2500},    {2, 1, 10000},    {2, 2, 20000},     {2, 4, 40000},   {2, 8, 40000},    {2, 16, 56000},
        {2, 32, 100000}, {2, 64, 200000},  {2, 128, 400000},  {4, 64, 400000}, {4, 128, 800000}, {8, 4, 120000},
        {8, 32, 300000}, {16, 64, 100000}, {16, 128, 200000}, {1, 32, 25000},  {1, 128, 100000}, {0, 32, 0},
        {2, 0, 0},       {3, 32, 0},       {2, 3, 0},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct uccl_device device;
        union nic_address address;
        fake.port.active_width = cases[i].width;
        fake.port.active_speed = cases[i].speed;
        cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
        cr_assert_eq(verbs_device_ops.device(nic, 0, &device, &address), 0);
        cr_expect_eq(device.speed_mbps, cases[i].mbps, "width %u, speed %u: %llu", cases[i].width, cases[i].speed,
                     (unsigned long long)device.speed_mbps);
        cr_expect_eq(device.mtu, 4096);
        cr_expect_eq(device.numa_node, -1, "nobody knows it");
        verbs_device_ops.close(nic);
    }
}

/* A name that matches nothing is told, also where others match. */
Test(verbs_device, names_that_match_nothing_are_told, .init = set_up)
{
    static const char text[] = "UCCL_IB_HCA: no port of a verbs device matches ";
    char expected[200];
    snprintf(params.ib_hca, sizeof params.ib_hca, "fake0:1,mlx5_9,=none:2");
    log_set_level(UCCL_LOG_WARN);
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    snprintf(expected, sizeof expected, "%s\"mlx5_9\"%s\"none:2\"", text, text);
    cr_assert_str_eq(said, expected);
    verbs_device_ops.close(nic);

    said[0] = 0;
    snprintf(params.ib_hca, sizeof params.ib_hca, "^mlx5_9");
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    cr_assert_str_empty(said);
    verbs_device_ops.close(nic);

    snprintf(params.ib_hca, sizeof params.ib_hca, "mlx5_9");
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), UCCL_ENODEV);
    cr_assert_not_null(strstr(said, "\"mlx5_9\""), "%s", said);
}

/* Short of descriptors, and not of a device: no reason to go without it. */
Test(verbs_device, out_of_descriptors, .init = set_up)
{
    fake.open_errno = EMFILE;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), UCCL_ENOMEM);
    cr_assert_not_null(strstr(said, "ulimit -n"), "%s", said);
    fake.open_errno = EACCES;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), UCCL_ENODEV);
}

Test(verbs_device, queues_too_small_are_refused, .init = set_up)
{
    struct nic_queue_setup setup = {.params = &params, .counters = &counters};
    struct nic_queue *queue;
    fake.limits.max_qp_wr = 100;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    cr_assert_eq(verbs_device_ops.queue_open(nic, &setup, &queue), UCCL_ENOTSUP);
    cr_assert_not_null(strstr(said, "128 are needed"), "%s", said);
    verbs_device_ops.close(nic);
}

Test(verbs_device, memory_that_cannot_be_locked_is_said, .init = set_up_pair, .fini = close_pair)
{
    struct nic_mr mr = {0};
    fake.register_errno = ENOMEM;
    cr_assert_eq(verbs_memory_ops.reg_mr(nic, 0, target.bytes, 100, &mr), UCCL_ENOMEM);
    cr_assert_not_null(strstr(said, "register memory"));
    cr_assert_null(mr.handle);
    fake.register_errno = EOPNOTSUPP;
    cr_assert_eq(verbs_memory_ops.reg_mr(nic, 0, target.bytes, 100, &mr), UCCL_ENOTSUP);
    fake.register_errno = 0;
    cr_assert_eq(verbs_memory_ops.reg_mr(nic, 0, target.bytes, 100, &mr), 0);
    verbs_memory_ops.dereg_mr(nic, &mr);
    verbs_memory_ops.dereg_mr(nic, &mr); /* of what never was registered: nothing */
}

static int ask(const struct nic_queue_address *address)
{
    static const _Atomic bool never;
    uint32_t closed;
    int error = nic->ways->ask(nic, address, true, &never, &closed);
    cr_assert_eq(closed, error != 0);
    return error;
}

/* Whether a peer's GID can be reached is found out, and said, before a queue is asked to; nothing stays of it. */
Test(verbs_device, way_to_a_peer, .init = set_up_pair, .fini = close_pair)
{
    struct nic_queue_address address, other;
    uint32_t handles = fake.handles_alive;
    verbs_queue_ops.address(&queues[1]->base, &address);
    cr_assert_eq(ask(&address), 0);
    cr_assert_eq(fake.handles_alive, handles);
    fake.handle_errno = ETIMEDOUT;
    said[0] = 0;
    cr_assert_eq(ask(&address), UCCL_EADDR);
    cr_assert_not_null(strstr(said, "127.0.0.1"), "%s", said);
    cr_assert_not_null(strstr(said, "timed out"), "%s", said);
    other = address;
    other.bytes[1] = 0; /* InfiniBand: peer_add() says so */
    other.bytes[4] = 1;
    said[0] = 0;
    cr_assert_eq(ask(&other), 0);
    other.length--; /* malformed: likewise */
    cr_assert_eq(ask(&other), 0);
    cr_assert_str_empty(said);
    fake.handle_errno = 0;
}

Test(verbs_device, peers_of_another_kind_are_refused, .init = set_up_pair, .fini = close_pair)
{
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_queue_address address = {0};
    struct verbs_address ours = {.mtu_shift = 12, .mode = VERBS_RC, .lid = 5, .qpn = 7};
    uint32_t destination, bytes;
    verbs_address_append(&ours, &address);
    cr_assert_eq(verbs_datagram_ops.peer_add(&queues[0]->base, &host, &address, &destination, &bytes), UCCL_EPROTO);
    cr_assert_not_null(strstr(said, "InfiniBand"));
    cr_assert(!verbs_data_qp_ops.places(&queues[0]->base, &address));
    verbs_queue_ops.address(&queues[1]->base, &address);
    cr_assert(verbs_data_qp_ops.places(&queues[0]->base, &address));
}

/* ---- time stamps ----------------------------------------------------------------------------- */

/* A clock of 48 bits at 156.25 MHz, fast by 30 ppm, that is about to wrap. */
static void set_up_stamped(void)
{
    set_up();
    fake.clock_mask = (UINT64_C(1) << 48) - 1;
    fake.clock_khz = 156250;
    fake.clock_offset = -fake_ticks() - 2 * 156250; /* in 2 ms */
    fake.clock_ppm = 30;
}

/* The line through readings of a clock that is fast by `ppm`, every tenth of a second from `from` ticks on. */
static struct verbs_clock line(uint64_t mask, uint64_t khz, uint64_t from, double ppm, unsigned readings)
{
    struct verbs_clock clock = {.is = {mask, khz}};
    double ticks_per_ns = (double)khz / 1e6 * (1 + ppm / 1e6);
    for (unsigned i = 0; i < readings; i++)
        verbs_clock_note(&clock, from + (uint64_t)(i * 1e8 * ticks_per_ns), 5000000000 + i * UINT64_C(100000000));
    return clock;
}

static void expect_at(const struct verbs_clock *clock, uint64_t ticks, uint64_t ns, uint64_t within_ns)
{
    uint64_t got = verbs_clock_host_ns(clock, ticks & clock->is.mask);
    cr_assert(got + within_ns >= ns && got <= ns + within_ns, "%llu, not %llu", (unsigned long long)got,
              (unsigned long long)ns);
}

Test(verbs_clock, one_reading_and_the_nominal_rate)
{
    struct verbs_clock clock = line(UINT64_MAX / 2, 156250, 1000000, 0, 1);
    expect_at(&clock, 1000000, 5000000000, 0);
    expect_at(&clock, 1000000 + 156250, 5001000000, 1);
    expect_at(&clock, 1000000 - 156250, 4999000000, 1);
}

Test(verbs_clock, skew_is_measured)
{
    for (int ppm = -400; ppm <= 400; ppm += 100) {
        struct verbs_clock clock = line(UINT64_MAX, 1000000, 77, ppm, 12);
        uint64_t last_ns = 5000000000 + 11 * UINT64_C(100000000);
        /* a tenth of a second on, at the clock's own rate; by the nominal one it would be 40 us off */
        uint64_t ticks = 77 + (uint64_t)(12 * 1e8 * (1 + ppm / 1e6));
        expect_at(&clock, ticks, last_ns + 100000000, 20);
    }
}

Test(verbs_clock, wraps)
{
    const uint64_t masks[] = {UINT32_MAX, (UINT64_C(1) << 48) - 1, UINT64_MAX / 2, UINT64_MAX};
    for (unsigned i = 0; i < 4; i++) {
        /* from 250 ms before the end on: two readings before it, three after it */
        uint64_t from = masks[i] - 250000 * UINT64_C(1000) + 1;
        struct verbs_clock clock = line(masks[i], 1000000, from, 0, 5);
        expect_at(&clock, from + 450000000, 5450000000, 2);
        expect_at(&clock, from + 200000000, 5200000000, 2); /* a stamp from before the end */
    }
}

Test(verbs_clock, far_from_a_reading_nothing_is_claimed)
{
    struct verbs_clock clock = line(UINT64_MAX, 1000000, 5000000000, 0, 2), none = {0};
    cr_assert_neq(verbs_clock_host_ns(&clock, 5900000000), 0);
    cr_assert_eq(verbs_clock_host_ns(&clock, 6200000000), 0);
    cr_assert_eq(verbs_clock_host_ns(&clock, 3900000000), 0);
    cr_assert_eq(verbs_clock_host_ns(&none, 5), 0);
}

/* A clock that was set, or has wrapped many times between two readings, is begun again with. */
Test(verbs_clock, that_was_set)
{
    struct verbs_clock clock = line(UINT64_MAX, 1000000, 0, 50, 10);
    verbs_clock_note(&clock, 123456789, 6000000000);
    expect_at(&clock, 123456789, 6000000000, 0);
    expect_at(&clock, 123456789 + 100000000, 6100000000, 1);
    verbs_clock_note(&clock, 123456789 + 100005000, 6100000000); /* 50 ppm again, at once */
    expect_at(&clock, 123456789 + 200010000, 6200000000, 5);
    verbs_clock_note(&clock, 123456789 + 300000, 6100200000); /* too soon after: no reading */
    cr_assert_eq(clock.host_ns, 6100000000);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The stamp is of when it happened, not of when somebody looked. */
static void expect_between(uint64_t at_ns, uint64_t before_ns, uint64_t after_ns)
{
    enum { READING_ERROR_NS = 200 * 1000 };
    cr_assert(at_ns + READING_ERROR_NS >= before_ns && at_ns <= after_ns + READING_ERROR_NS,
              "%lld ns after the beginning", (long long)(at_ns - before_ns));
}

static void sleep_3_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

Test(verbs_stamps, tell_when_things_came, .init = set_up_stamped, .fini = close_pair)
{
    struct nic_rx rx;
    open_pair();
    connect_path(0, 1);
    cr_assert(verbs_nic_of(nic)->port->clock.mask);
    cr_assert_eq(fake.stamped_cqs, 2, "what is received; not what UC has sent, which tells nothing");
    for (unsigned i = 0; i < 3; i++) { /* the clock wraps meanwhile, or has */
        cr_assert(send_small(SMALL_BYTES, 0));
        cr_assert(send_write(0, 1, 0, 100, 1 + i));
        verbs_datagram_ops.flush(&queues[0]->base);
        uint64_t before_ns = now_ns();
        fake_run();
        uint64_t after_ns = now_ns();
        sleep_3_ms();
        for (unsigned k = 0; k < 2; k++) {
            cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
            expect_between(rx.at_ns, before_ns, after_ns);
            verbs_datagram_ops.release(&queues[1]->base, &rx);
        }
        cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 0);
        cr_assert_eq(finished(), 1 + i);
    }
}

Test(verbs_stamps, reliable_writes_tell_when_they_were_placed, .init = set_up_stamped, .fini = close_pair)
{
    struct nic_done done;
    params.rcmode = true;
    open_pair();
    connect_path(0, 1);
    cr_assert_eq(fake.stamped_cqs, 4);
    cr_assert(send_write(0, 1, 0, 100, 9));
    verbs_datagram_ops.flush(&queues[0]->base);
    uint64_t before_ns = now_ns();
    fake_run();
    uint64_t after_ns = now_ns();
    sleep_3_ms();
    cr_assert_eq(verbs_data_qp_ops.poll_done(&queues[0]->base, &done, 1), 1);
    cr_assert_eq(done.cookie, 9);
    expect_between(done.at_ns, before_ns, after_ns);
    cr_assert_eq(take_writes(), 1);
}

/* Found both ways alike: what the completion says, and that it has failed. */
Test(verbs_stamps, completions_are_read_whole, .init = set_up_stamped, .fini = close_pair)
{
    struct nic_qp_event event;
    struct nic_rx rx;
    params.rcmode = true;
    open_pair();
    connect_path(0, 1);
    cr_assert(send_write(0, 1, 100, 5000, 77));
    deliver();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert(rx.placed && rx.length == 5000 && rx.immediate == (77 ^ 0x12345678) && rx.path == 0);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
    cr_assert_eq(finished(), 77);
    fake.status = IBV_WC_RETRY_EXC_ERR;
    cr_assert(send_write(0, 1, 0, 10, 78));
    deliver();
    cr_assert_eq(finished(), 0);
    cr_assert(next_event(0, &event) && !event.drained);
    cr_assert_not_null(strstr(said, "transport retry counter exceeded"));
    for (unsigned i = 0; i < 100; i++) /* more than are read at a time */
        cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(take_all(SMALL_BYTES), 100);
}

/* A small datagram goes over, and nobody knows when it came. */
static void receive_unstamped(void)
{
    struct nic_rx rx;
    cr_assert(send_small(SMALL_BYTES, 0));
    deliver();
    cr_assert_eq(verbs_datagram_ops.poll(&queues[1]->base, &rx, 1), 1);
    cr_assert(rx.at_ns == 0 && rx.length == SMALL_BYTES);
    verbs_datagram_ops.release(&queues[1]->base, &rx);
}

/* What the driver lacks is found before it is relied on. */
Test(verbs_stamps, are_done_without, .init = set_up)
{
    static const struct {
        uint64_t mask, khz;
        bool no_cq_ex, no_clock;
    } cases[] = {{0, 0, false, false},
                 {UINT64_MAX, 0, false, false},
                 {0, 156250, false, false},
                 {UINT64_MAX, 156250, true, false},
                 {UINT64_MAX, 156250, false, true}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake.clock_mask = cases[i].mask;
        fake.clock_khz = cases[i].khz;
        fake.no_cq_ex = cases[i].no_cq_ex;
        fake.no_clock = cases[i].no_clock;
        open_pair();
        cr_assert(!verbs_nic_of(nic)->port->clock.mask, "case %u", i);
        receive_unstamped();
        cr_assert_eq(fake.stamped_cqs, 0);
        close_pair();
        uccl_set_log(keep_log, NULL);
    }
}

/* It could be read when the engine was opened. */
Test(verbs_stamps, clock_that_is_not_to_be_read_any_more, .init = set_up_stamped, .fini = close_pair)
{
    open_pair();
    fake.no_clock = true;
    verbs_clock_sync(&queues[1]->clock);
    receive_unstamped();
}

/* Kept up to date by the way. */
Test(verbs_stamps, clocks_are_read_again, .init = set_up_stamped, .fini = close_pair)
{
    open_pair();
    uint64_t first_ns = queues[0]->clock.host_ns, begin_ns = now_ns();
    while (queues[0]->clock.host_ns == first_ns) {
        uint32_t destination, bytes;
        cr_assert(!verbs_datagram_ops.follow(&queues[0]->base, &destination, &bytes));
        cr_assert_lt(now_ns() - begin_ns, 20 * UINT64_C(1000000000));
    }
    cr_assert_eq(queues[0]->clock.measured, 1);
}

Test(verbs_stamps, device_says_so, .init = set_up_stamped, .fini = close_pair)
{
    struct uccl_device device;
    union nic_address address;
    open_pair();
    cr_assert_eq(verbs_device_ops.device(nic, 0, &device, &address), 0);
    cr_assert_not_null(strstr(device.description, "timed by the NIC"), "%s", device.description);
}
