/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake between two sides that mean well: what arrives, its bytes, which listener answers, who rejects. */
#include "boot_pair.h"

TestSuite(bootstrap, .init = boot_set_up, .timeout = 60);

/* ---- what should work ------------------------------------------------------------------------ */

static void happy(int family, uint16_t client_flows, uint16_t server_flows)
{
    union nic_address address = loopback(family);
    struct side client;
    struct side server;
    make_pair(&address, &client, &server);
    client.offer = make_offer(client_flows, 1);
    server.offer = make_offer(server_flows, 2);
    client.offer.home = server.offer.home = 0;
    run_both(&client, &server);

    cr_assert_eq(bootstrap_status(client.boot), 0, "%s", logged.text);
    cr_assert_eq(bootstrap_status(server.boot), 0, "%s", logged.text);
    cr_assert_arr_eq(bootstrap_peer_id(client.boot), SERVER_ID, 16);
    cr_assert_arr_eq(bootstrap_peer_id(server.boot), CLIENT_ID, 16);
    expect_offer(bootstrap_peer_offer(client.boot), &server.offer);
    expect_offer(bootstrap_peer_offer(server.boot), &client.offer);
    cr_assert_eq(bootstrap_events(client.boot), 0);
    cr_assert_eq(bootstrap_events(server.boot), 0);
    cr_assert_eq(logged.lines, 0);

    union nic_address seen;
    union nic_address own;
    socklen_t length = sizeof own;
    bootstrap_peer_address(client.boot, &seen);
    cr_assert_arr_eq(&seen, &address, nic_address_length(&address));
    bootstrap_peer_address(server.boot, &seen);
    cr_assert_eq(getsockname(bootstrap_fd(client.boot), &own.any, &length), 0);
    cr_assert_arr_eq(&seen, &own, length);
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

Test(bootstrap, offers_arrive_ipv4)
{
    happy(AF_INET, 1, 1);
    happy(AF_INET, 3, 64);
    happy(AF_INET, 64, 64);
}

Test(bootstrap, offers_arrive_ipv6)
{
    if (!have_ipv6())
        cr_skip_test("no ::1 on this machine");
    happy(AF_INET6, 1, 1);
    happy(AF_INET6, 64, 2);
}

/* The states, one step at a time: nothing is skipped, and bootstrap_offer() itself sends nothing. */
Test(bootstrap, passes_the_documented_states)
{
    union nic_address address = loopback(AF_INET);
    struct side client;
    struct side server;
    make_pair(&address, &client, &server);
    cr_assert_eq(bootstrap_events(client.boot), POLLOUT);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_HELLO);
    cr_assert_eq(bootstrap_events(server.boot), POLLIN);
    wait_for(client.boot, POLLOUT);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_HELLO);
    cr_assert_eq(bootstrap_events(client.boot), POLLIN);
    wait_for(server.boot, POLLIN);
    cr_assert_not(bootstrap_greeted(server.boot));
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_NEED_PROOFS);
    cr_assert(bootstrap_greeted(server.boot));
    cr_assert_eq(bootstrap_events(server.boot), POLLOUT, "its HELLO waits");
    cr_assert_arr_eq(bootstrap_peer_id(server.boot), CLIENT_ID, 16);
    bootstrap_prove(server.boot, NULL, 0);
    cr_assert_eq(bootstrap_events(server.boot), POLLIN | POLLOUT);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_OFFERING);
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    cr_assert_eq(bootstrap_events(client.boot), 0);
    bootstrap_offer(client.boot, &client.offer, NULL);
    cr_assert_eq(bootstrap_events(client.boot), POLLIN | POLLOUT);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_OFFERING);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_OFFERING);
    wait_for(server.boot, POLLIN);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_HAVE_OFFER);
    cr_assert_eq(bootstrap_events(server.boot), 0);
    bootstrap_offer(server.boot, &server.offer, NULL);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_FINISHING);
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_HAVE_OFFER);
    bootstrap_accept_offer(client.boot);
    cr_assert_eq(bootstrap_events(client.boot), POLLOUT);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_DONE);
    bootstrap_free(client.boot); /* READY arrives although its sender is gone */
    wait_for(server.boot, POLLIN);
    cr_assert_eq(bootstrap_step(server.boot, now_ns()), BOOT_DONE);
    bootstrap_free(server.boot);
}

Test(bootstrap, sockets_are_nonblocking_and_private)
{
    union nic_address address = loopback(AF_INET);
    struct side sides[2];
    make_pair(&address, &sides[0], &sides[1]);
    for (int i = 0; i < 2; i++) {
        int fd = bootstrap_fd(sides[i].boot);
        int nodelay = 0;
        socklen_t length = sizeof nodelay;
        cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
        cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &length), 0);
        cr_assert(nodelay);
        bootstrap_free(sides[i].boot);
        cr_assert_eq(fcntl(fd, F_GETFL), -1, "free() closes");
    }
}

/* An IPv4 client of a listener for both families has an IPv4 address, not a mapped one. */
Test(bootstrap, mapped_addresses_become_ipv4)
{
    if (!have_ipv6())
        cr_skip_test("no ::1 on this machine");
    union nic_address any = loopback(AF_INET6);
    any.v6.sin6_addr = in6addr_any;
    int listener = listen_at(&any, 8);
    union nic_address address = loopback(AF_INET);
    address.v4.sin_port = any.v6.sin6_port;
    struct bootstrap *client;
    struct bootstrap *server;
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &client), 0);
    cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(PLENTY_MS), &server), 0);
    union nic_address peer;
    bootstrap_peer_address(server, &peer);
    cr_assert_eq(peer.any.sa_family, AF_INET);
    cr_assert_eq(peer.v4.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    bootstrap_free(client);
    bootstrap_free(server);
    close(listener);
}

/* Everything comes one byte at a time, each in its own segment. */
static void slow_peer(bool server)
{
    int raw;
    struct side side = face_raw(server, PLENTY_MS, &raw);
    cr_assert_eq(setsockopt(raw, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    int sender = server ? FROM_CLIENT : FROM_SERVER;
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = greeting(bytes, sender);
    length += offer(bytes + length, sender, &theirs);
    if (server)
        length += ready(bytes + length, sender);
    enum boot_state state = step(&side);
    for (size_t i = 0; i < length; i++) {
        cr_assert(!ended(&side, state), "ended with %d before byte %zu", state, i);
        send_all(raw, bytes + i, 1);
        /* the client may first have to learn that it is connected */
        state = step(&side);
    }
    state = run_one(&side);
    cr_assert_eq(state, BOOT_DONE, "%s", logged.text);
    expect_offer(bootstrap_peer_offer(side.boot), &theirs);
    bootstrap_free(side.boot);
    close(raw);
}

Test(bootstrap, byte_by_byte)
{
    slow_peer(true);
    slow_peer(false);
}

/* What follows the handshake in the stream stays there. */
Test(bootstrap, reads_nothing_beyond_the_handshake)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = introduction(bytes, FROM_CLIENT, &theirs);
    length += ready(bytes + length, FROM_CLIENT);
    memcpy(bytes + length, "next", 4);
    send_all(raw, bytes, length + 4);
    cr_assert_eq(run_one(&server), BOOT_DONE, "%s", logged.text);
    char rest[8];
    cr_assert_eq(recv(bootstrap_fd(server.boot), rest, sizeof rest, 0), 4);
    cr_assert_arr_eq(rest, "next", 4);
    bootstrap_free(server.boot);
    close(raw);
}

/* ---- what comes over the wire ---------------------------------------------------------------- */

/* Both directions, as docs/bootstrap.md has them. */
Test(bootstrap, says_what_the_format_says)
{
    uint8_t got[3 * BOOT_MESSAGE_MAX];
    uint8_t want[3 * BOOT_MESSAGE_MAX];
    for (int server = 0; server < 2; server++) {
        int raw;
        struct side side = face_raw(server, PLENTY_MS, &raw);
        int peer = server ? FROM_CLIENT : FROM_SERVER;
        int own = server ? FROM_SERVER : FROM_CLIENT;
        struct boot_offer theirs = make_offer(2, 8);
        size_t length = greeting(got, peer);
        length += offer(got + length, peer, &theirs);
        if (server)
            length += ready(got + length, peer);
        send_all(raw, got, length);
        cr_assert_eq(run_one(&side), BOOT_DONE, "%s", logged.text);
        bootstrap_free(side.boot);
        size_t have = read_up_to(raw, got, sizeof got);
        length = own_hello(want, own, got);
        if (server)
            length += proofs(want + length, NULL, 0);
        length += offer(want + length, own, &side.offer);
        if (!server)
            length += ready(want + length, own);
        cr_assert_eq(have, length);
        cr_assert_arr_eq(got, want, length);
        close(raw);
    }
}

/* ---- which listener it is -------------------------------------------------------------------- */

/* The nonce that the client wants, with a server that shows LISTENER. */
static void meet(uint64_t wanted, char *fault, struct side *client, struct side *server)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 8);
    *client = (struct side){.offer = make_offer(3, 1)};
    *server = (struct side){.offer = make_offer(3, 2), .server = true};
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, wanted, in_ms(PLENTY_MS), fault, &client->boot), 0);
    cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(PLENTY_MS), &server->boot), 0);
    close(listener);
    run_both(client, server);
}

Test(bootstrap, the_listener_that_is_meant)
{
    struct side client, server;
    for (unsigned i = 0; i < 2; i++) {
        meet(i ? LISTENER : 0, NULL, &client, &server);
        cr_assert_eq(bootstrap_status(client.boot), 0);
        cr_assert_eq(bootstrap_status(server.boot), 0);
        bootstrap_free(client.boot);
        bootstrap_free(server.boot);
    }
    cr_assert_eq(logged.lines, 0, "%s", logged.text);
}

/* The client does not go on; the server has done nothing wrong, and says so without a warning. */
Test(bootstrap, another_listener)
{
    for (unsigned kept = 0; kept < 2; kept++) {
        struct side client, server;
        char fault[BOOT_FAULT_TEXT] = "";
        memset(&logged, 0, sizeof logged);
        meet(LISTENER ^ UINT64_C(1) << 63, kept ? fault : NULL, &client, &server);
        cr_assert_eq(bootstrap_status(client.boot), UCCL_EREFUSED);
        cr_assert_eq(bootstrap_status(server.boot), UCCL_EREFUSED);
        cr_assert_not(bootstrap_greeted(client.boot));
        cr_assert_eq(logged.lines, kept ? 1 : 2, "%s", logged.text);
        cr_assert_eq(logged.level, UCCL_LOG_INFO, "%s", logged.text);
        cr_assert(!kept || strstr(fault, "127.0.0.1:"), "%s", fault);
        cr_assert(!kept || strstr(fault, "another listener"), "%s", fault);
        bootstrap_free(client.boot);
        bootstrap_free(server.boot);
    }
}

/* ---- rejecting ------------------------------------------------------------------------------- */

Test(bootstrap, reject_carries_the_error)
{
    static const int ERRORS[] = {UCCL_ENOMEM, UCCL_EREFUSED, UCCL_EIO, UCCL_ENOTSUP, UCCL_EAGAIN};
    for (size_t i = 0; i < sizeof ERRORS / sizeof ERRORS[0]; i++) {
        /* "call again" is no final answer: it must not reach the caller of uccl_connect() */
        int expected = ERRORS[i] == UCCL_EAGAIN ? UCCL_EREFUSED : ERRORS[i];
        for (int server = 0; server < 2; server++) {
            union nic_address address = loopback(AF_INET);
            struct side sides[2];
            make_pair(&address, &sides[0], &sides[1]);
            memset(&logged, 0, sizeof logged);
            sides[server].reject = ERRORS[i];
            run_both(&sides[0], &sides[1]);
            cr_assert_eq(bootstrap_status(sides[server].boot), ERRORS[i]);
            cr_assert_eq(bootstrap_status(sides[!server].boot), expected);
            /* who rejects has its own words for it; the other side says what it was told */
            expect_log(ERRORS[i] == UCCL_EAGAIN ? UCCL_LOG_INFO : UCCL_LOG_WARN, "rejected", "reject");
            bootstrap_free(sides[0].boot);
            bootstrap_free(sides[1].boot);
        }
    }
}

Test(bootstrap, reject_codes_are_checked)
{
    for (unsigned code = 0; code < 65536; code += code < 20 ? 1 : 999) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX];
        size_t length = greeting(bytes, FROM_SERVER);
        length += rejection(bytes + length, FROM_SERVER, code);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&client), BOOT_FAILED);
        int expected = -(int)code;
        if (code == 0 || code > 14)
            expected = UCCL_EPROTO;
        else if (code == 1)
            expected = UCCL_EREFUSED;
        cr_assert_eq(bootstrap_status(client.boot), expected, "code %u", code);
        bootstrap_free(client.boot);
        close(raw);
    }
}

/* The peer says why and closes while we still send: what it said wins over our broken pipe. */
Test(bootstrap, reject_wins_over_a_failed_send)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    send_all(raw, bytes, greeting(bytes, FROM_SERVER));
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    send_all(raw, bytes, rejection(bytes, FROM_SERVER, 13));
    close(raw); /* with our HELLO unread: a reset follows the REJECT */
    bootstrap_offer(client.boot, &client.offer, NULL);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ENODEV, "%s", logged.text);
    bootstrap_free(client.boot);
}

/* A client that finds its READY refused learns why, not only that the pipe is broken. */
Test(bootstrap, reject_instead_of_ready)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = introduction(bytes, FROM_SERVER, &theirs);
    length += rejection(bytes + length, FROM_SERVER, 9);
    send_all(raw, bytes, length);
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    bootstrap_offer(client.boot, &client.offer, NULL);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_HAVE_OFFER);
    shutdown(raw, SHUT_WR); /* a reset after the end of the stream makes our send EPIPE */
    reset(raw);
    wait_for(client.boot, 0);
    bootstrap_accept_offer(client.boot);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ECLOSED, "%s", logged.text);
    bootstrap_free(client.boot);
}

/* Its OFFER is here, but it has closed: READY would be a connection with nobody. */
Test(bootstrap, a_server_that_left_is_sent_no_ready)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = greeting(bytes, FROM_SERVER);
    send_all(raw, bytes, length + offer(bytes + length, FROM_SERVER, &theirs));
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    bootstrap_offer(client.boot, &client.offer, NULL);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_HAVE_OFFER);
    shutdown(raw, SHUT_WR);
    wait_for(client.boot, POLLIN);
    bootstrap_accept_offer(client.boot);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ECLOSED, "%s", logged.text);
    bootstrap_free(client.boot);
    close(raw);
}

/* In every state, also twice; the first reason stays. */
Test(bootstrap, reject_in_any_state)
{
    union nic_address address = loopback(AF_INET);
    struct side client;
    struct side server;
    make_pair(&address, &client, &server);
    bootstrap_reject(client.boot, UCCL_ECANCELED); /* CONNECTING: nothing to be said to anybody */
    bootstrap_reject(client.boot, UCCL_EIO);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ECANCELED);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_FAILED);
    bootstrap_reject(server.boot, UCCL_ENOMEM); /* HELLO */
    cr_assert_eq(bootstrap_step(server.boot, UINT64_MAX), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(server.boot), UCCL_ENOMEM);
    cr_assert_eq(logged.lines, 0);
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

/* A peer that made a bad offer hears that it did. */
Test(bootstrap, bad_offer_is_answered)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    theirs.chunk_window = 100;
    uint8_t bytes[2 * BOOT_MESSAGE_MAX] = {0};
    size_t length = introduction(bytes, FROM_CLIENT, &theirs);
    send_all(raw, bytes, length + 100); /* bytes left unread must not turn our close into a reset */
    cr_assert_eq(run_one(&server), BOOT_FAILED);
    expect_log(UCCL_LOG_WARN, "chunk window", "bad offer");
    bootstrap_free(server.boot);
    uint8_t want[BOOT_MESSAGE_MAX];
    length = HELLO_BYTES + 8 + 10;
    cr_assert_eq(read_up_to(raw, bytes, length), length);
    length = own_hello(want, FROM_SERVER, bytes);
    length += proofs(want + length, NULL, 0);
    length += rejection(want + length, FROM_SERVER, 11);
    cr_assert_arr_eq(bytes, want, length);
    cr_assert_eq(recv(raw, bytes, sizeof bytes, 0), 0, "%s", strerror(errno));
    close(raw);
}
