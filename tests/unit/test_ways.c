/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that name ports which nobody has: each takes the network nearby a second or more to find out. Whoever runs
 * handshakes goes on with others meanwhile.
 */
#include "gdr_pair.h"

#include "../../api/handle.h"
#include "../../api/ways.h"
#include "base/clock.h"
#include "logged.h"

enum { DEAD = 77, HOSTILE = 6, SHARE = 4 }; /* SHARE: of one host, in ways.c */

static struct {
    _Atomic bool answer;
    _Atomic unsigned asked;
} dead;

static struct bootstrap *hostile[HOSTILE];

/* Of GID 10.0.0.77 nobody hears anything until the test says so. */
static struct ibv_ah *slow_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct timespec moment = {0, 1000000};
    if (attr->grh.dgid.raw[15] != DEAD)
        return rdma_create_ah(pd, attr);
    dead.asked++;
    while (!dead.answer)
        nanosleep(&moment, NULL);
    errno = ETIMEDOUT;
    return NULL;
}

static void open_engines(const char *from, const char *to)
{
    gdr_set_up();
    rdma_lib.create_ah = slow_create_ah;
    fake_nic.device_count = 4;
    mem_set_test_kind(&fake_ops);
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "BACKEND", "verbs", "IB_HCA", i ? to : from, "NUM_ENGINES", "2", "LINGER_MS",
                                     "300", "CONNECT_MS", "60000", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
}

static void set_up(void)
{
    open_engines("fake0", "fake2");
}

TestSuite(ways, .init = set_up, .timeout = 60);

/* A client whose flows are those of a real engine, but for the GIDs. */
static void hostile_begin(unsigned i)
{
    static const uint8_t id[16] = {1, 2, 3};
    struct handle_target target;
    cr_assert(handle_get(&pair.handle, &target));
    IS(bootstrap_connect(&target.addresses[0], id, target.listener, clock_now_ns() + 60 * NS_PER_S, NULL, &hostile[i]),
       0);
    bootstrap_add_features(hostile[i], BOOT_TAKES(NIC_ADDRESS_VERBS));
}

static void hostile_offer(unsigned i, unsigned flow_that_is_dead, unsigned flows)
{
    struct boot_offer offer = {
        .flow_count = (uint16_t)flows, .chunk_window = 256, .msg_window = 64, .eager_window_kb = 1024, .conn_id = 1};
    for (unsigned f = 0; f < flows; f++) {
        struct nic_queue *queue = pair.engine[0]->threads[f].queue;
        offer.flows[f] = (struct boot_flow){.token = f + 1, .datagram_bytes = 4096, .rx_bytes = 1 << 20};
        queue->ops->address(queue, &offer.flows[f].address);
        if (f >= flow_that_is_dead)
            offer.flows[f].address.bytes[31] = DEAD;
    }
    bootstrap_offer(hostile[i], &offer, NULL);
}

/* Both sides go on until the client's handshake is where it is to be, or has failed. */
static void step_to(unsigned i, enum boot_state state)
{
    uccl_conn *conn = NULL;
    uint64_t end_ms = now_ms() + SOON_MS;
    enum boot_state is;
    while ((is = bootstrap_step(hostile[i], clock_now_ns())) != state && is != BOOT_FAILED) {
        cr_assert_eq(uccl_accept(pair.listener, 0, &conn), UCCL_EAGAIN);
        cr_assert(now_ms() < end_ms, "state %d", (int)is);
    }
    cr_assert_eq(is, state, "%d: %d", (int)is, bootstrap_status(hostile[i]));
}

static void await_asked(unsigned count)
{
    uccl_conn *conn = NULL;
    uint64_t end_ms = now_ms() + SOON_MS;
    while (dead.asked < count) {
        for (unsigned i = 0; i < HOSTILE; i++)
            if (hostile[i])
                bootstrap_step(hostile[i], clock_now_ns());
        cr_assert_eq(uccl_accept(pair.listener, 0, &conn), UCCL_EAGAIN);
        cr_assert(now_ms() < end_ms, "%u asked", dead.asked);
    }
}

static void close_all(void)
{
    for (unsigned i = 0; i < HOSTILE; i++)
        bootstrap_free(hostile[i]);
    for (int i = 0; i < 2; i++)
        IS(uccl_close(pair.engine[i]), 0);
    rdma_end();
}

Test(ways, who_names_dead_ports_delays_nobody)
{
    hostile_begin(0);
    step_to(0, BOOT_NEED_OFFER);
    hostile_offer(0, 0, 2);
    await_asked(1);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    cr_assert_eq(dead.asked, 1);
    dead.answer = true;
    step_to(0, BOOT_FAILED);
    cr_assert_eq(bootstrap_status(hostile[0]), UCCL_EADDR);
    cr_assert_eq(dead.asked, 1, "once for both flows");
    close_all();
}

/* A host has a share of the threads that ask. Whose handshake is over asks nothing more. */
Test(ways, a_host_asks_a_few_things_at_a_time)
{
    uccl_conn *conn = NULL;
    for (unsigned i = 0; i < HOSTILE; i++) {
        hostile_begin(i);
        step_to(i, BOOT_NEED_OFFER);
        hostile_offer(i, 0, 1);
    }
    await_asked(SHARE);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(uccl_accept(pair.listener, 5, &conn), UCCL_ETIMEDOUT);
    cr_assert_eq(dead.asked, SHARE);
    dead.answer = true;
    await_asked(HOSTILE);
    for (unsigned i = 0; i < HOSTILE; i++)
        step_to(i, BOOT_FAILED);
    cr_assert_null(pair.engine[1]->way_queries);
    close_all();
}

/* The listener is closed while a thread asks: the engine's end waits for that one answer. */
Test(ways, close_while_one_asks)
{
    hostile_begin(0);
    step_to(0, BOOT_NEED_OFFER);
    hostile_offer(0, 0, 1);
    await_asked(1);
    IS(uccl_listener_close(pair.listener), 0);
    cr_assert_not_null(pair.engine[1]->way_queries);
    dead.answer = true;
    close_all();
}

/* One port of a peer is dead: engine threads know it, and use the other one. */
Test(ways_of_several, only_one_port_works, .timeout = 60)
{
    open_engines("fake0,fake1", "fake2,fake3");
    fake_nic.handle_device = 1 + 2;
    fake_nic.handle_errno = ETIMEDOUT;
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    cr_assert_eq(fake_nic.handles_refused, 1, "%u", fake_nic.handles_refused);
    fake_nic.handle_errno = 0;
    close_all();
}

/* Else 64 flows could name 64 hosts. */
Test(ways, queues_with_different_ports_are_refused)
{
    hostile_begin(0);
    step_to(0, BOOT_NEED_OFFER);
    hostile_offer(0, 1, 2);
    step_to(0, BOOT_FAILED);
    cr_assert_eq(bootstrap_status(hostile[0]), UCCL_EPROTO);
    cr_assert_eq(dead.asked, 0);
    close_all();
}
