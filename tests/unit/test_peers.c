/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may come to the TCP port, and to whom a client may come: engines in this process against peers played here
 * byte by byte (played.h), which know engine ids and what was told to them, and nothing else. Handles that come from
 * elsewhere. The table of handshakes, and what failed ones leave behind.
 */
#include "played.h"

#include <netinet/tcp.h>
#include <sys/resource.h>

__attribute__((constructor)) static void set_up(void)
{
    uccl_set_log(log_nothing, NULL);
}

/* The engines' clock, from `slow_since_ns` on (0: not at all) a hundredth as fast: a loaded machine looks quick then.
 */
static _Atomic uint64_t slow_since_ns;

uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void)
{
    uint64_t now_ns = __real_clock_now_ns(), since_ns = slow_since_ns;
    return since_ns ? since_ns + (now_ns - since_ns) / 100 : now_ns;
}

/* A token that this engine expects from any peer. */
static bool expects_token(const uccl_engine *engine, uint64_t token)
{
    for (const struct peer *peer = engine->peers.peers; peer; peer = peer->next) {
        for (unsigned i = 0; i < peer->flow_count; i++) {
            if (peer->flows[i].setup.rx_token == token)
                return true;
        }
    }
    return false;
}

/* ---- whose tokens are told to whom ----------------------------------------------------------- */

/* Message `number` of connection `conn`. */
static void forge(const struct boot_flow *flow, uint32_t conn, uint32_t number)
{
    static const char text[] = "forged";
    uint8_t datagram[WIRE_HEADER_BYTES + WIRE_EAGER_BYTES + sizeof text];
    struct wire_eager eager = {.conn = conn, .msg = number, .total = sizeof text, .length = sizeof text};
    wire_put_eager(datagram + WIRE_HEADER_BYTES, &eager);
    memcpy(datagram + WIRE_HEADER_BYTES + WIRE_EAGER_BYTES, text, sizeof text);
    say_datagram(flow, true, datagram, WIRE_HEADER_BYTES + WIRE_EAGER_BYTES, sizeof datagram);
}

/* A server that shows the id of a peer that the client has a connection with; then it forges a message on that. */
BOTH(peers, a_server_with_anothers_id)
{
    struct pair pair;
    struct uccl_handle handle;
    pair_open(&pair, lend);
    const uccl_engine *client = pair.engine[0];
    uint64_t told = client->peers.peers->flows[0].setup.rx_token;
    uint64_t theirs = client->peers.peers->flows[0].setup.tx_token;
    for (unsigned how = 0; how < 2; how++) {
        int listener = play_listener(&handle);
        struct engine_side side = {.client = pair.engine[0], .handle = &handle, .result = UCCL_EAGAIN};
        struct boot_proofs proofs = {.count = how ? BOOT_PROOFS_MAX : 0};
        for (unsigned i = 0; i < proofs.count; i++)
            proofs.at[i] = i;
        struct played server = play_server(listener, &side, pair.engine[1]->id, &proofs);
        cr_assert(!server.theirs.known, "claimed without a proof");
        for (unsigned i = 0; i < server.theirs.flow_count; i++)
            cr_assert(server.theirs.flows[i].token != told && server.theirs.flows[i].token != theirs);
        cr_assert_eq(peers_of(client), 2 + how, "a peer of its own");
        struct boot_offer ours = some_offer(1, 99);
        int udp = play_queue(&ours);
        say_offer(&server, &ours);
        say_echo(&server.theirs.flows[0], take_probe(udp, &side));
        while (side.result == UCCL_EAGAIN)
            run_once(&side);
        IS(side.result, 0);
        close(udp);
        char buffer[64] = "";
        size_t bytes;
        uccl_request *receive = post_recv(pair.conn[0], buffer, sizeof buffer);
        forge(&server.theirs.flows[0], pair.conn[0]->id, how);
        IS(uccl_wait(receive, 50, &bytes), UCCL_ETIMEDOUT);
        end_of(post_send(pair.conn[1], "honest", 7), 0);
        cr_assert_eq(end_of(receive, 0), 7);
        cr_assert_str_eq(buffer, "honest");
        exchange(pair.conn[0], pair.conn[1], 100000, how);
        IS(uccl_conn_status(pair.conn[0]), 0);
        close(server.fd);
        close(listener);
        IS(uccl_conn_close(side.connected), 0);
        cr_assert_not(client->peers.peers->dead, "the living flows");
    }
    pair_close(&pair);
}

/* A client that shows the id of a peer that the server has a connection with. */
BOTH(peers, a_client_with_anothers_id)
{
    struct pair pair;
    pair_open(&pair, lend);
    struct engine_side side = {.listener = pair.listener};
    const struct peer *peer = pair.engine[1]->peers.peers;
    uint64_t told[2] = {peer->flows[0].setup.rx_token, peer->flows[0].setup.tx_token};
    struct played client = play_client(&side, pair.engine[0]->id);
    cr_assert_eq(client.proofs.count, 1);
    struct boot_offer ours = some_offer(1, 99);
    say_offer(&client, &ours);
    cr_assert(take_offer(&client, &side));
    cr_assert_not(client.theirs.known);
    for (unsigned i = 0; i < client.theirs.flow_count; i++)
        cr_assert(client.theirs.flows[i].token != told[0] && client.theirs.flows[i].token != told[1]);
    cr_assert_eq(peers_of(pair.engine[1]), 2);
    say_ready(&client);
    close(client.fd);

    /* the same with the server's own proof, sent back as a claim */
    struct played again = play_client(&side, pair.engine[0]->id);
    struct boot_offer claim = {.conn_id = 7, .known = true, .proof = again.proofs.at[0]};
    say_offer(&again, &claim);
    cr_assert_not(take_offer(&again, &side));
    close(again.fd);
    cr_assert_not(peer->dead);
    exchange(pair.conn[0], pair.conn[1], 100000, 1);
    exchange(pair.conn[1], pair.conn[0], 100, 2);
    pair_close(&pair);
}

/* Tokens that the same client tells again, or that another peer has told, are those of one more peer. */
Test(peers, tokens_of_others_change_nothing, .timeout = TIMEOUT_S)
{
    struct pair pair;
    pair_open(&pair, "yes");
    struct engine_side side = {.listener = pair.listener};
    const struct peer *peer = pair.engine[1]->peers.peers;
    struct boot_offer ours = some_offer(1, peer->flows[0].setup.tx_token);
    uint64_t seen[3];
    for (unsigned i = 0; i < 3; i++) {
        struct played client = play_client(&side, pair.engine[0]->id);
        say_offer(&client, &ours);
        cr_assert(take_offer(&client, &side));
        cr_assert_not(client.theirs.known);
        seen[i] = client.theirs.flows[0].token;
        cr_assert(expects_token(pair.engine[1], seen[i]));
        for (unsigned k = 0; k < i; k++)
            cr_assert_neq(seen[i], seen[k], "a token told twice");
        say_ready(&client);
        close(client.fd);
    }
    exchange(pair.conn[0], pair.conn[1], 100000, 1);
    pair_close(&pair);
}

/* Two peers that know each other share one set of flows, whatever comes after the first handshake. */
BOTH(peers, connections_share_flows)
{
    struct pair pair;
    uccl_conn *more[2];
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 3; i++) {
        connect_now(pair.engine[0], &pair.handle, pair.listener, more);
        exchange(more[0], more[1], 1000, i);
    }
    cr_assert_eq(peers_of(pair.engine[0]), 1);
    cr_assert_eq(peers_of(pair.engine[1]), 1);
    cr_assert_eq(pair.engine[0]->peers.unmet + pair.engine[1]->peers.unmet, 0);
    pair_close(&pair);
}

/* Two engines that connect to each other, twice: each thread of both has one of the four connections. */
BOTH(peers, connections_both_ways_are_spread)
{
    enum { THREADS = 4 };
    uccl_engine *engine[2];
    uccl_listener *listener[2];
    struct uccl_handle handle[2];
    unsigned used[2] = {0, 0};
    for (unsigned i = 0; i < 2; i++) {
        engine[i] = open_engine(lend, "NUM_ENGINES", "4", NULL);
        IS(uccl_listen(engine[i], 0, 0, &handle[i], &listener[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        uccl_conn *conn[2];
        connect_now(engine[i % 2], &handle[1 - i % 2], listener[1 - i % 2], conn);
        used[i % 2] |= 1u << (conn[0]->thread - engine[i % 2]->threads);
        used[1 - i % 2] |= 1u << (conn[1]->thread - engine[1 - i % 2]->threads);
    }
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(used[i], (1u << THREADS) - 1, "engine %u uses the threads %#x", i, used[i]);
        IS(uccl_close(engine[i]), 0);
    }
}

/* Many connects at once, before any has met the engine: they wait for the first (100 ms), and share its flows. */
BOTH(peers, simultaneous_first_contacts_share_flows)
{
    enum { CONNECTS = 12 };
    slow_since_ns = __real_clock_now_ns();
    uccl_engine *client = open_engine(lend, NULL), *server = open_engine(lend, NULL);
    struct uccl_handle handle[CONNECTS];
    uccl_listener *listener[2];
    uccl_conn *conn[CONNECTS] = {0}, *accepted[CONNECTS] = {0};
    unsigned connected = 0, taken = 0;
    for (unsigned i = 0; i < 2; i++) /* two listeners of one engine */
        IS(uccl_listen(server, 0, 0, &handle[i], &listener[i]), 0);
    for (unsigned i = 2; i < CONNECTS; i++)
        handle[i] = handle[i % 2];
    uint64_t end_ms = now_ms() + SOON_MS;
    while (connected < CONNECTS || taken < CONNECTS) {
        for (unsigned i = 0; i < CONNECTS; i++) {
            int result = conn[i] ? UCCL_EAGAIN : uccl_connect(client, &handle[i], 0, &conn[i]);
            cr_assert(result == 0 || result == UCCL_EAGAIN, "connect %u: %d", i, result);
            connected += result == 0;
        }
        for (unsigned i = 0; i < 2 && taken < CONNECTS; i++)
            taken += uccl_accept(listener[i], 0, &accepted[taken]) == 0;
        cr_assert(now_ms() < end_ms);
    }
    cr_assert_eq(peers_of(client), 1, "%u peers", peers_of(client));
    cr_assert_eq(peers_of(server), 1);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* A first contact that hangs holds up another one with the same engine for a moment only. */
Test(peers, a_first_contact_that_hangs, .timeout = TIMEOUT_S)
{
    uccl_engine *client = open_engine("yes", NULL), *server = open_engine("yes", NULL);
    struct uccl_handle handle, first;
    uccl_listener *listener;
    uccl_conn *conn[2];
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    int played = play_listener(&first);
    struct engine_side side = {.client = client, .handle = &first, .result = UCCL_EAGAIN};
    struct boot_proofs none = {0};
    struct played hangs = play_server(played, &side, server->id, &none);
    connect_now(client, &handle, listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    uccl_connect_cancel(&first);
    cr_assert_eq(peers_of(client), 1, "the peer that was never met is gone");
    close(hangs.fd);
    close(played);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* The server has forgotten the client's flows, or they have died there: the client gets new ones, in one connect. */
BOTH(peers, forgotten_on_one_side)
{
    struct pair pair;
    uccl_conn *more[2];
    pair_open(&pair, lend);
    for (unsigned side = 0; side < 2; side++) {
        for (struct peer *peer = pair.engine[side]->peers.peers; peer; peer = peer->next)
            peer->dead = true;
        connect_now(pair.engine[0], &pair.handle, pair.listener, more);
        exchange(more[0], more[1], 1000, side);
        exchange(pair.conn[1], pair.conn[0], 1000, side + 2); /* the old one is not touched */
        cr_assert_eq(peers_of(pair.engine[0]), 2 + side);
    }
    pair_close(&pair);
}

/* The flows that a server has proved to know die before it answers: the client begins anew, without a claim. */
Test(peers, claim_that_comes_too_late, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_conn *more[2] = {0};
    pair_open(&pair, "yes");
    int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
    uint64_t end_ms = now_ms() + SOON_MS;
    bool killed = false;
    while (connected == UCCL_EAGAIN || accepted == UCCL_EAGAIN) {
        if (connected == UCCL_EAGAIN)
            connected = uccl_connect(pair.engine[0], &pair.handle, 0, &more[0]);
        const struct connecting *under_way = pair.engine[0]->connecting;
        bool claims = under_way && pair.engine[0]->peers.peers->references > 1;
        if (claims && !killed) {
            pair.engine[1]->peers.peers->dead = true;
            killed = true;
        }
        if (accepted == UCCL_EAGAIN)
            accepted = uccl_accept(pair.listener, 0, &more[1]);
        cr_assert(now_ms() < end_ms, "connect %d, accept %d", connected, accepted);
    }
    cr_assert(killed);
    IS(connected, 0);
    IS(accepted, 0);
    exchange(more[0], more[1], 1000, 1);
    cr_assert_eq(peers_of(pair.engine[0]), 2);
    pair_close(&pair);
}

/* ---- sizes that a peer tells ----------------------------------------------------------------- */

/*
 * Handshakes with one engine id, of fewer and of more flows, with windows small and large: each is a peer of its own,
 * and each end of a connection has the memory that its flow's setup asks for.
 */
Test(peers, ends_are_mapped_as_they_are_laid_out, .timeout = TIMEOUT_S)
{
    static const uint32_t WINDOWS[] = {16, 65536, 16};
    static uint8_t buffer[1 << 20];
    uccl_engine *server = open_engine("no", "NUM_ENGINES", "3", NULL);
    struct uccl_handle handle;
    struct engine_side side = {0};
    uint8_t id[16] = {42};
    IS(uccl_listen(server, 0, 0, &handle, &side.listener), 0);
    for (unsigned i = 0; i < 3; i++) {
        struct played client = play_client(&side, id);
        struct boot_offer ours = some_offer((uint16_t)(i + 1), 100 * i + 1);
        ours.msg_window = WINDOWS[i];
        ours.home = (uint16_t)i;
        say_offer(&client, &ours);
        cr_assert(take_offer(&client, &side));
        say_ready(&client);
        uint64_t end_ms = now_ms() + SOON_MS;
        while (side.accepted_count == i && now_ms() < end_ms)
            run_once(&side);
        cr_assert_eq(side.accepted_count, i + 1);
        close(client.fd);
        const uccl_conn *conn = side.accepted[i];
        cr_assert_eq(conn->stripes.count, i + 1);
        for (unsigned end = 0; end < conn->stripes.count; end++) {
            const struct flow_setup *setup = &conn->peer->flows[(ours.home + end) % (i + 1)].setup;
            size_t bytes = end ? core_part_conn_size(setup) : core_conn_size(setup);
            cr_assert_eq(conn->ends[end].memory_bytes, bytes, "connection %u, end %u", i, end);
            cr_assert_eq(setup->msg_window,
                         WINDOWS[i] < server->params.msg_window ? WINDOWS[i] : server->params.msg_window);
        }
    }
    cr_assert_eq(peers_of(server), 3);
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned k = 0; k < 40; k++)
            post_recv(side.accepted[i], buffer, sizeof buffer);
    }
    IS(uccl_close(server), 0);
}

/* ---- handles --------------------------------------------------------------------------------- */

Test(peers, state_bytes_from_elsewhere, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = open_engine("yes", NULL), *other = open_engine("yes", NULL);
    struct uccl_handle handle, foreign;
    uccl_conn *conn = NULL;
    int listener = play_listener(&handle);
    for (unsigned i = 0; i < 256; i++) {
        foreign = handle;
        if (i < 128)
            foreign.state[i / 8] = (uint8_t)(1u << i % 8);
        else
            memset(foreign.state, (int)i, sizeof foreign.state);
        struct uccl_handle before = foreign;
        IS(uccl_connect(engine, &foreign, 100, &conn), UCCL_EINVAL);
        uccl_connect_cancel(&foreign);
        cr_assert(memcmp(&before, &foreign, sizeof before) == 0, "%u: not ours to write", i);
    }

    /* a connect is under way: only its own handle names it, of its own engine */
    IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);
    for (unsigned bit = 0; bit < 8 * sizeof foreign; bit++) {
        foreign = handle;
        ((uint8_t *)&foreign)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        IS(uccl_connect(engine, &foreign, 0, &conn), UCCL_EINVAL);
        uccl_connect_cancel(&foreign);
    }
    foreign = handle;
    IS(uccl_connect(other, &foreign, 0, &conn), UCCL_EINVAL);
    IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);

    /* nor does a copy once it is over, or the engine is */
    foreign = handle;
    uccl_connect_cancel(&handle);
    IS(uccl_connect(engine, &foreign, 0, &conn), UCCL_EINVAL);
    uccl_connect_cancel(&foreign);
    IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);
    IS(uccl_connect(engine, &foreign, 0, &conn), UCCL_EINVAL);
    IS(uccl_close(engine), 0);
    IS(uccl_connect(other, &handle, 0, &conn), UCCL_EINVAL);
    uccl_connect_cancel(&handle);
    IS(uccl_close(other), 0);
    close(listener);
}

/* No pointer is in the state bytes: those of two connects of one slot have only small numbers and random ones. */
Test(peers, state_bytes_tell_nothing, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = open_engine("yes", NULL);
    struct uccl_handle handle;
    uccl_conn *conn;
    uint64_t words[2][2];
    int listener = play_listener(&handle);
    for (int i = 0; i < 2; i++) {
        IS(uccl_connect(engine, &handle, 0, &conn), UCCL_EAGAIN);
        memcpy(words[i], handle.state, sizeof words[i]);
        uccl_connect_cancel(&handle);
    }
    cr_assert_neq(words[0][1], words[1][1]);
    cr_assert(((uint32_t)words[0][0]) <= 4096 && ((uint32_t)words[0][0]) == ((uint32_t)words[1][0]));
    cr_assert_eq(words[0][0] >> 32 < words[1][0] >> 32, 1, "the slot's uses are counted");
    IS(uccl_close(engine), 0);
    close(listener);
}

/* ---- who crowds the port --------------------------------------------------------------------- */

static void allow_files(rlim_t count)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < count ? limit.rlim_max : count;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* A crowd of `count` clients from 127.0.0.`host` that say no more than `bytes`; then an honest one must get through. */
static void crowd(unsigned count, unsigned host, const uint8_t *bytes, size_t length)
{
    enum { MOST = 1000 };
    static int fds[MOST];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    allow_files(4 * MOST);
    uccl_engine *client = open_engine("yes", "CONNECT_MS", "9000", NULL);
    uccl_engine *server = open_engine("yes", "CONNECT_MS", "60000", NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    cr_assert_leq(count, MOST);
    for (unsigned i = 0; i < count; i++) {
        fds[i] = knock(listener, host);
        cr_assert_eq(send(fds[i], bytes, length, MSG_NOSIGNAL), (ssize_t)length);
        if (i % 64 == 63)
            IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
    }
    connect_now(client, &handle, listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

Test(peers, silent_crowd, .timeout = TIMEOUT_S)
{
    crowd(900, 1, NULL, 0);
}

Test(peers, crowd_that_says_a_byte, .timeout = TIMEOUT_S)
{
    crowd(900, 1, (const uint8_t *)"\xB7", 1);
}

static size_t a_hello(uint8_t bytes[BOOT_SMALL_MAX])
{
    const struct boot_hello hello = {
        .version = BOOT_VERSION, .engine_id = {3}, .nonce = {1}, .features = WIRE_FEATURES};
    return boot_put_hello(bytes, BOOT_FROM_CLIENT, &hello);
}

/* From the same host as the honest one, and from another, which has its share then. */
Test(peers, crowd_that_says_hello, .timeout = TIMEOUT_S)
{
    uint8_t bytes[BOOT_SMALL_MAX];
    size_t length = a_hello(bytes);
    crowd(400, 1, bytes, length);
    crowd(900, 2, bytes, length);
}

/*
 * More than the table holds come at once and are honest: none is refused. One thread takes all of their steps, so on a
 * busy machine each would have to wait for longer than a full table allows.
 */
Test(peers, honest_crowd, .timeout = TIMEOUT_S)
{
    enum { CROWD = 300 };
    static struct uccl_handle handles[CROWD];
    static uccl_conn *conn[CROWD];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *accepted;
    unsigned connected = 0, taken = 0;
    allow_files(4 * CROWD);
    slow_since_ns = __real_clock_now_ns();
    uccl_engine *client = open_engine("yes", "CONNECT_MS", "25000", "MSG_WINDOW", "16", NULL);
    uccl_engine *server = open_engine("yes", "CONNECT_MS", "25000", "MSG_WINDOW", "16", NULL);
    IS(uccl_listen(server, 0, 0, &handle, &listener), 0);
    for (unsigned i = 0; i < CROWD; i++)
        handles[i] = handle;
    uint64_t end_ms = now_ms() + 2 * SOON_MS;
    while ((connected < CROWD || taken < CROWD) && now_ms() < end_ms) {
        for (unsigned i = 0; i < CROWD; i++) {
            int result = conn[i] ? UCCL_EAGAIN : uccl_connect(client, &handles[i], 0, &conn[i]);
            cr_assert(result == 0 || result == UCCL_EAGAIN, "connect %u: %d", i, result);
            connected += result == 0;
        }
        while (uccl_accept(listener, 0, &accepted) == 0)
            taken++;
    }
    cr_assert_eq(connected, CROWD);
    cr_assert_eq(taken, CROWD);
    slow_since_ns = 0;
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* Handshakes that end before READY leave no flow slot, no peer, no connection behind: more of them than may be under
 * way. */
Test(peers, unfinished_handshakes_leave_nothing, .timeout = TIMEOUT_S)
{
    enum { TIMES = CORE_FLOWS_MAX / 4 + 100 };
    uccl_engine *client = open_engine("yes", NULL), *server = open_engine("yes", NULL);
    struct uccl_handle handle;
    struct engine_side side = {0};
    uccl_conn *conn[2];
    uint8_t id[16] = {42};
    IS(uccl_listen(server, 0, 0, &handle, &side.listener), 0);
    struct boot_offer ours = some_offer(1, 1);
    ours.chunk_window = 64;
    ours.msg_window = 16;
    for (unsigned i = 0; i < TIMES; i++) {
        struct played client_played = play_client(&side, id);
        say_offer(&client_played, &ours);
        cr_assert(take_offer(&client_played, &side), "handshake %u", i);
        close(client_played.fd);
    }
    connect_now(client, &handle, side.listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    sleep_us(2100000); /* so long it would tell such a client that it has failed */
    IS(uccl_conn_close(conn[0]), 0);
    IS(uccl_conn_close(conn[1]), 0);
    cr_assert_eq(peers_of(server), 1, "%u peers are left", peers_of(server));
    cr_assert_eq(server->peers.unmet, 0);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}

/* A client whose handshake has failed here may have come to its end: for a while the flows stay, so that it is told. */
Test(peers, a_failed_handshake_is_told_for_a_while, .timeout = TIMEOUT_S)
{
    uccl_engine *server = open_engine("yes", NULL);
    struct uccl_handle handle;
    struct engine_side side = {0};
    uint8_t id[16] = {42};
    IS(uccl_listen(server, 0, 0, &handle, &side.listener), 0);
    struct boot_offer ours = some_offer(1, 1);
    struct played played = play_client(&side, id);
    say_offer(&played, &ours);
    cr_assert(take_offer(&played, &side));
    close(played.fd);
    uint64_t end_ms = now_ms() + SOON_MS;
    uccl_conn *none;
    while (server->peers.peers && server->peers.peers->references && now_ms() < end_ms)
        IS(uccl_accept(side.listener, 0, &none), UCCL_EAGAIN);
    cr_assert_eq(peers_of(server), 1);
    cr_assert_eq(server->peers.peers->references, 0);
    IS(uccl_close(server), 0);
}

/* Peers that came, connected and left are no reason to refuse one more, however many they were in ten seconds. */
Test(peers, idle_peers_make_room, .timeout = TIMEOUT_S)
{
    struct peer_table *table;
    struct peer *peer;
    uccl_engine *engine = open_engine("yes", NULL);
    struct nic_host host = {.address.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    uint8_t id[16] = {0};
    const struct peer_of clients = {.engine_id = id, .is_server = true}, servers = {.engine_id = id};
    table = &engine->peers;
    pthread_mutex_lock(&engine->lock);
    for (unsigned i = 0; i < CORE_FLOWS_MAX + 10; i++) {
        memcpy(id, &i, sizeof i);
        IS(peer_new(table, &clients, PEER_MAIN, &host, &peer), 0);
        peer_met(table, peer);
        peer_put(table, peer);
    }
    cr_assert_eq(peers_of(engine), CORE_FLOWS_MAX);
    cr_assert_eq(memcmp(table->peers->engine_id, (uint8_t[16]){10}, 16), 0, "the idlest has gone");

    /* those whose handshakes are under way are not put out; but they are bounded before the slots are */
    unsigned unmet = 0;
    int error;
    while ((error = peer_new(table, &clients, PEER_MAIN, &host, &peer)) == 0)
        unmet++;
    IS(error, UCCL_ENOMEM);
    cr_assert_eq(unmet, CORE_FLOWS_MAX / 4);
    IS(peer_new(table, &servers, PEER_MAIN, &host, &peer), 0); /* our own connects are not strangers' doing */
    pthread_mutex_unlock(&engine->lock);
    IS(uccl_close(engine), 0);
}
