/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine shares out among its threads, and what it numbers. */
#include "api_pair.h"

#include "../../api/objects.h"
#include "core/state.h"

#include <stdio.h>

/* Two engines of `count` threads each; `listener` is of the second. */
static void open_pair(struct pair *pair, const char *count)
{
    for (int i = 0; i < 2; i++)
        pair->engine[i] = open_engine("no", "NUM_ENGINES", count, "LINK_GBPS", "0", "LINGER_MS", "300", NULL);
    IS(uccl_listen(pair->engine[1], 0, 0, &pair->handle, &pair->listener), 0);
}

static void close_both(uccl_conn *conn[2])
{
    for (int i = 0; i < 2; i++)
        IS(uccl_conn_close(conn[i]), 0);
}

Test(engine, threads_take_connections_in_turn, .timeout = TIMEOUT_S)
{
    enum { THREADS = 3, CONNS = 6 };
    struct pair pair;
    uccl_conn *conn[CONNS][2];
    unsigned homes[THREADS] = {0};
    uint64_t sum = 0, most = 0, told;
    open_pair(&pair, "3");
    for (unsigned i = 0; i < CONNS; i++) {
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn[i]);
        homes[conn[i][0]->thread->index]++;
        exchange(conn[i][0], conn[i][1], 1000, i);
    }
    for (unsigned i = 0; i < THREADS; i++)
        cr_assert_eq(homes[i], CONNS / THREADS, "thread %u has %u connections", i, homes[i]);

    /* a counter of the engine is that of all its threads */
    for (unsigned i = 0; i < THREADS; i++) {
        uint64_t of_thread = pair.engine[0]->threads[i].counters->bytes_sent;
        sum += of_thread;
        most = of_thread > most ? of_thread : most;
    }
    IS(uccl_counter_by_name(pair.engine[0], "bytes_sent", &told), 0);
    cr_assert_eq(told, sum);
    cr_assert_eq(sum, CONNS * 1000);
    cr_assert_lt(most, sum);
    for (unsigned i = 0; i < CONNS; i++)
        close_both(conn[i]);
    pair_close(&pair);
}

/* As collectives do: a connection each way, which are not to share a thread where there are several. */
Test(engine, connections_each_way_begin_apart, .timeout = TIMEOUT_S)
{
    struct pair pair;
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *there[2], *back[2];
    open_pair(&pair, "4");
    IS(uccl_listen(pair.engine[0], 0, 0, &handle, &listener), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, there);
    connect_now(pair.engine[1], &handle, listener, back);
    cr_assert_eq((there[0]->thread->index + 2) % 4, back[0]->thread->index);
    cr_assert_eq((there[1]->thread->index + 2) % 4, back[1]->thread->index);
    close_both(there);
    close_both(back);
    IS(uccl_listener_close(listener), 0);
    pair_close(&pair);
}

Test(engine, threads_share_the_link, .timeout = TIMEOUT_S)
{
    uccl_engine *one = open_engine("no", "NUM_ENGINES", "1", "LINK_GBPS", "100", NULL);
    uccl_engine *four = open_engine("no", "NUM_ENGINES", "4", "LINK_GBPS", "100", NULL);
    cr_assert_eq(one->threads[0].core->pacer.link_mbps, 100000);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(four->threads[i].core->pacer.link_mbps, 25000);
    IS(uccl_close(one), 0);
    IS(uccl_close(four), 0);
}

/* Numbers go round: those that were given back are used again, and mean other connections. */
Test(engine, numbers_of_connections_go_round, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_conn *first[2], *conn[2];
    open_pair(&pair, "1");
    for (int i = 0; i < 2; i++)
        pair.engine[i]->conn_cursor = CORE_CONNS_MAX - 1;
    connect_now(pair.engine[0], &pair.handle, pair.listener, first);
    cr_assert_eq(first[0]->id % CORE_CONNS_MAX, CORE_CONNS_MAX - 1);
    connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
    cr_assert_eq(conn[0]->id % CORE_CONNS_MAX, 0);
    uint32_t id = conn[0]->id;
    close_both(conn);
    for (int i = 0; i < 2; i++)
        pair.engine[i]->conn_cursor = CORE_CONNS_MAX - 1; /* which is in use */
    connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
    cr_assert_eq(conn[0]->id % CORE_CONNS_MAX, 0);
    cr_assert_neq(conn[0]->id, id, "frames for the one before would be taken for it");
    exchange(first[0], first[1], 5000, 1);
    exchange(conn[0], conn[1], 5000, 2);
    close_both(first);
    close_both(conn);
    pair_close(&pair);
}

/* Ends that are set up unlike each other agree: on the smaller of each window, and on what the other one takes. */
Test(engine, unlike_ends_agree, .timeout = TIMEOUT_S)
{
    struct pair pair;
    pair.engine[0] = open_engine("no", "NUM_ENGINES", "3", "SOCKET_BUFFER_KB", "128", "MTU", "1400", "MSG_WINDOW", "64",
                                 "CHUNK_WINDOW", "2048", "EAGER_WINDOW_KB", "512", "LINGER_MS", "300", NULL);
    pair.engine[1] = open_engine("no", "NUM_ENGINES", "2", "SOCKET_BUFFER_KB", "64", "MTU", "9000", "MSG_WINDOW", "256",
                                 "CHUNK_WINDOW", "128", "EAGER_WINDOW_KB", "128", "LINGER_MS", "300", NULL);
    for (unsigned way = 0; way < 2; way++) { /* either one connects */
        IS(uccl_listen(pair.engine[!way], 0, 0, &pair.handle, &pair.listener), 0);
        connect_now(pair.engine[way], &pair.handle, pair.listener, pair.conn);
        const struct peer *peer[2] = {pair.conn[0]->peer, pair.conn[1]->peer};
        cr_assert(peer[0]->flows_open == 2 && peer[1]->flows_open == 2, "%u and %u flows", peer[0]->flows_open,
                  peer[1]->flows_open);
        for (unsigned i = 0; i < 2; i++) {
            const struct flow_setup *a = &peer[0]->flows[i].setup, *b = &peer[1]->flows[i].setup;
            cr_assert_eq(a->tx_token, b->rx_token);
            cr_assert_eq(b->tx_token, a->rx_token);
            cr_assert_neq(a->rx_window_bytes, b->rx_window_bytes);
            cr_assert_eq(a->tx_window_bytes, b->rx_window_bytes);
            cr_assert_eq(b->tx_window_bytes, a->rx_window_bytes);
            cr_assert_eq(a->rails[0].datagram_bytes, 1400 - 28);
            cr_assert_eq(b->rails[0].datagram_bytes, 1400 - 28);
            cr_assert(a->msg_window == 64 && b->msg_window == 64);
            cr_assert(a->chunk_window == 128 && b->chunk_window == 128);
            cr_assert(a->eager_window_kb == 128 && b->eager_window_kb == 128);
        }
        exchange(pair.conn[0], pair.conn[1], 3000000, way);
        exchange(pair.conn[1], pair.conn[0], 3000000, way + 2);
        cr_assert_eq(pair.conn[0]->stripes.count, 2);
    }
    cr_assert_neq(pair.engine[0]->peers.peers->next, NULL,
                  "who connects is another relation than who was connected to");
    pair_close(&pair);
}

/* At a listener for both families a client of the old one shows as what it is. */
Test(engine, a_client_has_an_address_and_a_port, .timeout = TIMEOUT_S)
{
    struct pair pair;
    char text[96], expected[32];
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "LINGER_MS", "300", NULL);
    IS(uccl_listen(pair.engine[1], -1, 0, &pair.handle, &pair.listener), 0);
    IS(uccl_handle_from_address("127.0.0.1", uccl_listener_port(pair.listener), &pair.handle), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    IS(uccl_conn_peer(pair.conn[0], text, sizeof text), 0);
    snprintf(expected, sizeof expected, "127.0.0.1:%u", uccl_listener_port(pair.listener));
    cr_assert_str_eq(text, expected);
    IS(uccl_conn_peer(pair.conn[1], text, sizeof text), 0);
    cr_assert_eq(strncmp(text, "127.0.0.1:", 10), 0, "%s", text);
    cr_assert_gt(atoi(text + 10), 1023, "%s", text);
    pair_close(&pair);
}

/* A connect under way belongs to the engine that began it. */
Test(engine, a_connect_under_way_has_an_engine, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_conn *none = NULL;
    uccl_engine *other = open_engine("no", NULL);
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "LINGER_MS", "300", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    IS(uccl_connect(pair.engine[0], &pair.handle, 0, &none), UCCL_EAGAIN);
    for (int i = 0; i < 2; i++)
        IS(uccl_connect(other, &pair.handle, 0, &none), UCCL_EINVAL);
    cr_assert_null(none);
    cr_assert_null(other->connecting);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    exchange(pair.conn[0], pair.conn[1], 1000, 1);
    IS(uccl_close(other), 0);
    pair_close(&pair);
}
