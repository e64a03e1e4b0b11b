/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UCCL_BACKEND=auto: a peer whom datagrams do not reach is met over TCP, by queues that stand beside the main ones of
 * the engine threads. Engines that use both at a time, and servers that are played here.
 */
#include "played.h"

static char last_warning[512];
static unsigned warnings;

static void log_keep(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    if (level != UCCL_LOG_WARN)
        return;
    snprintf(last_warning, sizeof last_warning, "%s", text);
    warnings++;
}

static const uint64_t BOTH_KINDS = BOOT_TAKES(NIC_ADDRESS_UDP) | BOOT_TAKES(NIC_ADDRESS_TCP);
static const uint8_t ID[16] = {7};

/* ---- both at a time -------------------------------------------------------------------------- */

/* Messages of many sizes between three engines, of which one reaches one peer by datagrams, the other by TCP. */
static void play_both(const char *lend, const char *io)
{
    static const size_t SIZES[] = {0, 1, 8192, 65536, 300000, 1 << 20};
    struct uccl_handle handles[2];
    uccl_listener *listeners[2];
    uccl_conn *near[2], *far[2];
    uccl_engine *hub = open_engine(lend, "UDP_IO", io, "SPIN_US", "0", NULL);
    uccl_engine *peers[2] = {open_engine(lend, "UDP_IO", io, "SPIN_US", "0", NULL),
                             open_engine(lend, "BACKEND", "tcp", "SPIN_US", "0", NULL)};
    IS(uccl_listen(hub, 0, 0, &handles[0], &listeners[0]), 0);
    IS(uccl_listen(peers[1], 0, 0, &handles[1], &listeners[1]), 0);
    connect_now(peers[0], &handles[0], listeners[0], near);
    cr_assert_eq(counter_of(hub, "tcp_connected"), 0, "nobody needs TCP yet");
    connect_now(hub, &handles[1], listeners[1], far);
    for (unsigned i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        exchange(near[0], near[1], SIZES[i], i);
        exchange(far[0], far[1], SIZES[i], i + 10);
        exchange(near[1], near[0], SIZES[i], i + 20);
        exchange(far[1], far[0], SIZES[i], i + 30);
    }
    cr_assert_gt(counter_of(hub, "tcp_connected"), 0);
    IS(uccl_conn_close(far[0]), 0); /* its queue stays, unused */
    exchange(near[0], near[1], 100000, 1);
    for (unsigned i = 0; i < 2; i++)
        IS(uccl_close(peers[i]), 0);
    IS(uccl_close(hub), 0);
}

BOTH(beside, an_engine_talks_over_udp_and_tcp)
{
    play_both(lend, "mmsg");
}

Test(beside, and_with_io_uring, .timeout = TIMEOUT_S)
{
    house_note();
    play_both("no", "auto");
    house_check();
}

/* Whoever connects: the side that knows both kinds takes that of the other side. */
BOTH(beside, a_client_over_tcp_meets_a_server_that_has_both)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2], *again[2];
    uccl_engine *server = open_engine(lend, NULL), *client = open_engine(lend, "BACKEND", "tcp", NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    connect_now(client, &handle, listener, conn);
    connect_now(client, &handle, listener, again);
    exchange(conn[0], conn[1], 100000, 1);
    exchange(again[1], again[0], 100000, 2);
    cr_assert_eq(peers_of(server), 1, "both connections share the flows");
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* ---- large messages over TCP, all else over UDP ---------------------------------------------- */

enum { LARGE = 1 << 20, MANY = 40 };

/* Many large messages each way between engines of these backends; whether TCP carries some. */
static void play_large(const char *lend, const char *io, const char *backend, bool expected)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_engine *engines[2] = {open_engine(lend, "BACKEND", backend, "UDP_IO", io, "NUM_ENGINES", "2", NULL),
                               open_engine(lend, "UDP_IO", io, "NUM_ENGINES", "2", "SPIN_US", "0", NULL)};
    IS(uccl_listen(engines[0], 0, 0, &handle, &listener), 0);
    connect_now(engines[1], &handle, listener, conn);
    exchange(conn[1], conn[0], 100, 99);
    cr_assert_eq(counter_of(engines[0], "tcp_connected"), 0, "small messages are worth no connection");
    for (unsigned i = 0; i < MANY; i++) {
        exchange(conn[0], conn[1], LARGE + i, i);
        exchange(conn[1], conn[0], LARGE + i, i + 100);
        exchange(conn[1], conn[0], 5000, i + 200);
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t bytes = counter_of(engines[i], "tcp_bulk_bytes");
        cr_assert_eq(bytes > 0, expected, "engine %u: %lu bytes", i, (unsigned long)bytes);
        cr_assert_eq(counter_of(engines[i], "tcp_connected") > 0, expected);
        cr_assert_lt(bytes, (uint64_t)MANY * LARGE);
    }
    for (unsigned i = 0; i < 2; i++)
        IS(uccl_conn_close(conn[i]), 0);
    IS(uccl_close(engines[0]), 0);
    IS(uccl_close(engines[1]), 0);
}

BOTH(beside, large_messages_go_over_tcp)
{
    play_large(lend, "mmsg", "auto", true);
}

Test(beside, large_messages_go_over_tcp_beside_io_uring, .timeout = TIMEOUT_S)
{
    house_note();
    play_large("no", "auto", "auto", true);
    house_check();
}

BOTH(beside, who_wants_udp_gets_all_over_udp)
{
    play_large(lend, "mmsg", "udp", false);
}

/* ---- no datagram comes back ------------------------------------------------------------------ */

/* A server whose datagrams get lost, up to its offer. */
static struct played play_deaf(int listener, struct engine_side *side, int *udp)
{
    struct boot_proofs none = {0};
    struct boot_offer ours = some_offer(1, 99);
    struct played server = play_server(listener, side, ID, &none);
    *udp = play_queue(&ours);
    say_offer(&server, &ours);
    return server;
}

/* The client rejects, to begin again. */
static void take_again(struct played *server, struct engine_side *side)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    uint16_t code;
    cr_assert_not(take_message(server, side, BOOT_READY_MSG, bytes, &length));
    cr_assert_null(boot_decode_reject(bytes, length, &code));
    cr_assert_eq(code, -UCCL_EAGAIN);
    close(server->fd);
}

static struct engine_side begin(const char *lend, const char *backend, const char *connect_ms, const char *dead_peer_ms,
                                struct uccl_handle *handle)
{
    warnings = 0;
    uccl_engine *client =
        open_engine(lend, "BACKEND", backend, "CONNECT_MS", connect_ms, "DEAD_PEER_MS", dead_peer_ms, NULL);
    uccl_set_log(log_keep, NULL);
    return (struct engine_side){.client = client, .handle = handle, .result = UCCL_EAGAIN};
}

/* Within its time the client offers flows over TCP; a single line of the log says so. */
static void begins_again(const char *lend, const char *connect_ms, const char *dead_peer_ms)
{
    int udp;
    struct uccl_handle handle;
    int listener = play_listener(&handle);
    struct engine_side side = begin(lend, "auto", connect_ms, dead_peer_ms, &handle);
    played_features = BOTH_KINDS;
    struct played server = play_deaf(listener, &side, &udp);
    cr_assert_eq(server.theirs.flows[0].address.bytes[0], NIC_ADDRESS_UDP);
    take_again(&server, &side);
    struct boot_proofs none = {0};
    server = play_server(listener, &side, ID, &none);
    cr_assert_eq(server.theirs.flows[0].address.bytes[0], NIC_ADDRESS_TCP);
    cr_assert_eq(server.theirs.nic_count, 0);
    cr_assert(strstr(last_warning, "no data came back") && strstr(last_warning, "over TCP"), "%s", last_warning);
    cr_assert_eq(warnings, 1);
    close(server.fd);
    while (side.result == UCCL_EAGAIN)
        run_once(&side);
    IS(side.result, UCCL_ECLOSED);
    uint64_t end_ms = now_ms() + SOON_MS;
    while (peers_of(side.client) && now_ms() < end_ms) {
        sleep_us(1000);
        free_abandoned(side.client);
    }
    cr_assert_eq(peers_of(side.client), 0, "nothing of it is left");
    close(udp);
    close(listener);
    IS(uccl_close(side.client), 0);
}

BOTH(beside, a_connect_begins_again_over_tcp)
{
    begins_again(lend, "8000", "20000");
}

BOTH(beside, a_short_connect_leaves_half_of_its_time)
{
    begins_again(lend, "1500", "10000");
}

BOTH(beside, a_flow_that_dies_early_begins_again_over_tcp)
{
    begins_again(lend, "8000", "50");
}

/* The flows of the first try are not claimed in the second, though the server knows them and both ends live. */
BOTH(beside, the_flows_of_the_first_try_are_not_used)
{
    int udp;
    struct uccl_handle handle;
    int listener = play_listener(&handle);
    struct engine_side side = begin(lend, "auto", "4000", "10000", &handle);
    played_features = BOTH_KINDS;
    struct played server = play_deaf(listener, &side, &udp);
    take_again(&server, &side);
    struct boot_key key = {.to_client = server.theirs.flows[0].token, .to_server = 99};
    struct pollfd waits = {.fd = listener, .events = POLLIN};
    while (poll(&waits, 1, 0) == 0)
        run_once(&side);
    struct played again = {.server = true, .fd = accept(listener, NULL, NULL)};
    uint8_t bytes[BOOT_SMALL_MAX];
    take_hello(&again, &side);
    say_hello(&again, ID);
    struct boot_proofs proofs = {.count = 1, .at = {boot_proof(&key, BOOT_SERVER_PROVES, &again.transcript, NULL)}};
    say(&again, bytes, boot_put_proofs(bytes, &proofs));
    cr_assert(take_offer(&again, &side));
    cr_assert_not(again.theirs.known);
    close(again.fd);
    close(udp);
    close(listener);
    while (side.result == UCCL_EAGAIN)
        run_once(&side);
    IS(uccl_close(side.client), 0);
}

/* Where one side does not take TCP, the connect waits for its datagrams to the end. */
static void waits_to_the_end(const char *lend, const char *backend, uint64_t features)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    uint16_t code;
    int udp;
    struct uccl_handle handle;
    int listener = play_listener(&handle);
    struct engine_side side = begin(lend, backend, "1000", "4000", &handle);
    played_features = features;
    struct played server = play_deaf(listener, &side, &udp);
    cr_assert_not(take_message(&server, &side, BOOT_READY_MSG, bytes, &length));
    cr_assert_null(boot_decode_reject(bytes, length, &code));
    cr_assert_eq(code, -UCCL_ETIMEDOUT);
    IS(side.result, UCCL_ETIMEDOUT);
    close(server.fd);
    close(udp);
    close(listener);
    IS(uccl_close(side.client), 0);
}

BOTH(beside, a_server_without_tcp_is_not_asked_for_it)
{
    waits_to_the_end(lend, "auto", BOOT_TAKES(NIC_ADDRESS_UDP));
}

BOTH(beside, an_older_server_is_not_asked_for_it)
{
    waits_to_the_end(lend, "auto", 0);
}

BOTH(beside, who_wants_udp_gets_no_tcp)
{
    waits_to_the_end(lend, "udp", BOTH_KINDS);
}

/* ---- hosts whom datagrams do not reach ------------------------------------------------------- */

static union nic_address here(void)
{
    struct sockaddr_in address = loopback(0, 1);
    union nic_address out = {.any.sa_family = AF_INET};
    out.v4 = address;
    return out;
}

/* Of such a host every peer is met over TCP at once, until one of them has sent datagrams. */
BOTH(beside, a_host_that_is_remembered_is_met_over_tcp_at_once)
{
    union nic_address address = here();
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_engine *hub = open_engine(lend, NULL), *peers[3];
    beside_hosts_add(&hub->peers.beside_hosts, &address, clock_now_ns());
    for (unsigned i = 0; i < 3; i++) {
        uccl_engine *client, *server;
        peers[i] = open_engine(lend, NULL);
        client = i == 1 ? peers[i] : hub; /* the second one connects by itself, by UDP */
        server = i == 1 ? hub : peers[i];
        IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
        uint64_t begun_ms = now_ms();
        connect_now(client, &handle, listener, conn);
        cr_assert_lt(now_ms() - begun_ms, 900);
        exchange(conn[0], conn[1], 5000, i);
        cr_assert_eq(counter_of(peers[i], "tcp_connected") > 0, i == 0, "peer %u", i);
    }
    for (unsigned i = 0; i < 3; i++)
        IS(uccl_close(peers[i]), 0);
    IS(uccl_close(hub), 0);
}

/* The host has changed, or another one has its address: the next connect asks anew. */
BOTH(beside, a_host_that_fails_over_tcp_is_not_remembered)
{
    union nic_address address = here();
    struct uccl_handle handle;
    int listener = play_listener(&handle);
    struct engine_side side = begin(lend, "auto", "4000", "10000", &handle);
    struct boot_proofs none = {0};
    played_features = BOTH_KINDS;
    beside_hosts_add(&side.client->peers.beside_hosts, &address, clock_now_ns());
    for (unsigned i = 0; i < 2; i++) {
        struct played server = play_server(listener, &side, ID, &none);
        cr_assert_eq(server.theirs.flows[0].address.bytes[0], i ? NIC_ADDRESS_UDP : NIC_ADDRESS_TCP);
        close(server.fd);
        while (side.result == UCCL_EAGAIN)
            run_once(&side);
        IS(side.result, UCCL_ECLOSED);
        side.result = UCCL_EAGAIN;
    }
    close(listener);
    IS(uccl_close(side.client), 0);
}

/* A client of flows over TCP is refused by a server that wants UDP. */
BOTH(beside, a_server_that_wants_udp_refuses_tcp)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn = NULL, *accepted = NULL;
    uccl_engine *server = open_engine(lend, "BACKEND", "udp", NULL);
    uccl_engine *client = open_engine(lend, "BACKEND", "tcp", NULL);
    int result = UCCL_EAGAIN;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    while (result == UCCL_EAGAIN) {
        result = uccl_connect(client, &handle, 0, &conn);
        IS(uccl_accept(listener, 0, &accepted), UCCL_EAGAIN);
    }
    IS(result, UCCL_EPROTO);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Flows of two kinds in one offer: no peer of ours writes that. */
BOTH(beside, an_offer_of_two_kinds_is_refused)
{
    struct uccl_handle handle;
    struct engine_side side = {.listener = NULL};
    uccl_engine *server = open_engine(lend, "NUM_ENGINES", "2", NULL);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    uint16_t code;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_listen(server, 0, 0, &handle, &side.listener), 0);
    for (unsigned first = 0; first < 2; first++) {
        struct played client = play_client(&side, ID);
        struct boot_offer offer = some_offer(2, 5);
        offer.flows[first].address = (struct nic_queue_address){4, {NIC_ADDRESS_TCP, 0, 9, 0}};
        say_offer(&client, &offer);
        cr_assert_not(take_message(&client, &side, BOOT_OFFER_MSG, bytes, &length));
        cr_assert_null(boot_decode_reject(bytes, length, &code));
        cr_assert_eq(code, -UCCL_EPROTO);
        close(client.fd);
    }
    IS(uccl_close(server), 0);
}
