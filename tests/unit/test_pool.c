/* SPDX-License-Identifier: Apache-2.0 */
/* What flows share (core/pool.h): peers that have fallen silent leave the others enough. */
#include "core/pool.h"

#include "duo.h"

enum { SILENT = 3, SILENT_MAX = 40, MANY = 1024 };

static struct flow *silent_flow[SILENT_MAX];
static struct conn *silent_conn[SILENT_MAX];
static struct duo_request silent_requests[SILENT_MAX][MANY];

/* Beside the two that talk: `count` flows of core 0 whose peers never answer. */
static void open_with_silent(unsigned count, unsigned small, unsigned big)
{
    duo_defaults();
    duo_params.tx_small_buffers = small;
    duo_params.tx_buffers = big;
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].chunk_window = duo_setup[side].msg_window = MANY;
    duo_open_as(false);
    for (unsigned i = 0; i < count; i++) {
        struct flow_setup setup = duo_setup[0];
        setup.rx_token = core_make_token(5000 + i, 100 + i);
        setup.tx_token = core_make_token(6000 + i, 100 + i);
        setup.tx_window_bytes = setup.rx_window_bytes = 64 << 20;
        setup.owner = &silent_flow[i];
        silent_flow[i] = core_flow_open(duo_core[0], duo_zeroed(core_flow_size(&duo_params, &setup)), &setup, duo_now);
        silent_conn[i] = core_conn_open(duo_core[0], duo_zeroed(core_conn_size(&setup)), silent_flow[i], &setup,
                                        100 + i, 100 + i, &silent_conn[i], duo_now);
    }
}

/* What core 0 sends to the silent ones is lost. */
static void send_to_silent(void)
{
    struct tx_desc desc;
    while (core_tx(duo_core[0], &desc, duo_now)) {
        cr_assert_neq(desc.flow, duo_flow[0]);
        duo_releases(0);
    }
}

/* A message of each silent one, each in a datagram of its own. */
static void post_to_silent(unsigned count, unsigned number, unsigned kind, uint64_t size)
{
    static uint8_t bytes[65536];
    for (unsigned i = 0; i < count; i++) {
        struct duo_request *request = &silent_requests[i][number];
        *request = (struct duo_request){.msg = {.kind = (uint8_t)kind, .size_bytes = size}, .buffer = bytes};
        core_submit(duo_core[0], silent_conn[i], &request->msg, duo_now);
        send_to_silent();
    }
}

/* Both directions of a living connection, at once, without a timer's help. */
static void assert_others_talk(void)
{
    for (unsigned i = 0; i < 20; i++) {
        struct duo_request *recvs[2] = {duo_recv(0, 100), duo_recv(1, 100)};
        struct duo_request *sends[2] = {duo_send(1, 100), duo_send(0, 100)};
        uint64_t begin_ns = duo_now;
        for (unsigned round = 0; round < 20 && !(sends[0]->ended && sends[1]->ended); round++) {
            duo_transmit(0);
            duo_transmit(1);
            duo_now += 10 * US;
            duo_deliver(0);
            duo_deliver(1);
            core_flush_acks(duo_core[0]);
            core_flush_acks(duo_core[1]);
        }
        cr_assert_lt(duo_now - begin_ns, MS);
        for (unsigned side = 0; side < 2; side++)
            duo_assert_arrived(sends[side], recvs[side], 100);
    }
}

Test(pool, a_flow_takes_less_than_it_leaves)
{
    uint8_t memory[16], *slots[16], *taken[16];
    struct pool pool = {.free = slots};
    uint32_t first = 0, second = 0;
    for (unsigned i = 0; i < 16; i++)
        pool.free[pool.count++] = &memory[i];
    cr_assert_eq(taken[0] = pool_take(&pool, &first), &memory[15], "the warm one");
    while ((taken[first] = pool_take(&pool, &first)))
        ;
    cr_assert_eq(first, 8, "alone half");
    while (pool_take(&pool, &second))
        ;
    cr_assert_eq(second, 4);
    cr_assert_eq(pool.count, 4);
    pool_put(&pool, &first, taken[0]);
    cr_assert_eq(first, 7);
    cr_assert_eq(pool_take(&pool, &first), NULL, "more than is free");
    cr_assert_eq(pool_take(&pool, &second), taken[0]);
    cr_assert_eq(second, 5);
}

Test(pool, silent_peers_leave_small_buffers)
{
    open_with_silent(SILENT, 256, 8);
    for (unsigned i = 0; i < MANY; i++)
        post_to_silent(SILENT, i, CORE_RECV, 16384);
    for (unsigned i = 0; i < SILENT; i++)
        cr_assert(silent_flow[i]->held[BUFFER_SMALL] >= 64 && silent_flow[i]->held[BUFFER_SMALL] <= 128);
    cr_assert_geq(duo_core[0]->small.count, 32);
    assert_others_talk();
}

Test(pool, silent_peers_leave_big_buffers)
{
    open_with_silent(SILENT, 64, 32);
    for (unsigned i = 0; i < 30; i++)
        post_to_silent(SILENT, i, CORE_SEND, 4000);
    for (unsigned i = 0; i < SILENT; i++)
        cr_assert(silent_flow[i]->held[BUFFER_BIG] >= 8 && silent_flow[i]->held[BUFFER_BIG] <= 16);
    cr_assert_geq(duo_core[0]->big.count, 8);
    struct duo_request *recv = duo_recv(1, 4000), *send = duo_send(0, 4000);
    duo_transmit(0);
    cr_assert_eq(duo_flow[0]->held[BUFFER_BIG], 1);
    duo_run(MS);
    duo_assert_arrived(send, recv, 4000);
}

/* So many that the threshold leaves nothing: every flow has a buffer of its own. */
Test(pool, a_flow_that_holds_none_finds_one)
{
    open_with_silent(SILENT_MAX, 16, 4);
    for (unsigned i = 0; i < 20; i++)
        post_to_silent(SILENT_MAX, i, CORE_SEND, 2000);
    cr_assert_eq(duo_core[0]->small.count, 0);
    cr_assert_eq(duo_core[0]->big.count, 0);
    for (unsigned i = 0; i < SILENT_MAX; i++)
        cr_assert(silent_flow[i]->own_used);
    assert_others_talk();
    cr_assert_not(duo_flow[0]->own_used);
}

/* All comes back when the silent ones are given up, and none twice. */
Test(pool, dead_flows_give_back_what_they_hold)
{
    open_with_silent(SILENT_MAX, 16, 4);
    for (unsigned i = 0; i < 20; i++)
        post_to_silent(SILENT_MAX, i, CORE_SEND, 2000);
    for (unsigned i = 0; i < SILENT_MAX; i++)
        core_conn_close(duo_core[0], silent_conn[i], 0, duo_now);
    for (unsigned tick = 0; tick < 100000 && duo_tick(0, duo_now + 2000 * MS); tick++)
        send_to_silent();
    for (unsigned i = 0; i < SILENT_MAX; i++) {
        cr_assert(silent_flow[i]->dead);
        cr_assert_eq(silent_flow[i]->held[BUFFER_SMALL] + silent_flow[i]->held[BUFFER_BIG], 0);
        cr_assert_not(silent_flow[i]->own_used);
        core_flow_close(duo_core[0], silent_flow[i]);
    }
    assert_others_talk();
    duo_run(MS);
    duo_assert_rest();
}
