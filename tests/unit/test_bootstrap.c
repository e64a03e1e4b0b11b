/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake against itself and against everything else that may sit at the other end of a TCP
 * socket. Messages of raw peers are built here byte by byte, as docs/bootstrap.md has them, and not
 * with the code under test: an accidental change of the format fails.
 *
 * One thread plays both sides; it steps a bootstrap only when poll() says so, and counts the steps,
 * so that a state that would spin is seen.
 */
#include "boot/bootstrap.h"
#include "base/log.h"
#include "logged.h"
#include "base/siphash.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    FROM_CLIENT = 1,
    FROM_SERVER = 2,
    HELLO_BYTES = 58,
    QUEUES_AT = 8 + 10,    /* in an offer: behind the connection section of type, length, six bytes */
    QUEUES_FIXED_BYTES = 18, /* with type and length */
    FLOW_COUNT_AT = QUEUES_AT + 16,
    FLOW_FIXED_BYTES = 21, /* its address comes behind */
    PLENTY_MS = 20000, /* a deadline that only a hang meets */
    STEPS_MAX = 64,    /* more steps than any handshake needs when poll() says when */
};

static const uint8_t CLIENT_ID[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t SERVER_ID[16] = {0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7,
                                      0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};

static const uint8_t NONCE[16] = {0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57,
                                  0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f};
static const uint64_t LISTENER = UINT64_C(0x8070605040302010);
static const uint64_t FEATURES = WIRE_FEATURES | UINT64_C(1) << 63; /* one that is not ours */

static void set_up(void)
{
    log_set_level(UCCL_LOG_INFO);
    uccl_set_log(take_log, NULL);
    signal(SIGPIPE, SIG_DFL); /* a library must not rely on its user to ignore it */
}

TestSuite(bootstrap, .init = set_up, .timeout = 60);

static void expect_log(enum uccl_log_level level, const char *part, const char *what)
{
    cr_assert_eq(logged.lines, 1, "%s: %u lines, last: %s", what, logged.lines, logged.text);
    cr_assert_eq(logged.level, level, "%s: level %d: %s", what, logged.level, logged.text);
    cr_assert_not_null(strstr(logged.text, part), "%s: '%s' is not in: %s", what, part, logged.text);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t in_ms(unsigned ms)
{
    return now_ns() + ms * 1000000ull;
}

static socklen_t address_length(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

static union nic_address loopback(int family)
{
    union nic_address address;
    memset(&address, 0, sizeof address);
    address.any.sa_family = (sa_family_t)family;
    if (family == AF_INET)
        address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        address.v6.sin6_addr = in6addr_loopback;
    return address;
}

static int listen_at(union nic_address *address, int backlog)
{
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, &address->any, address_length(address)), 0, "bind: %s", strerror(errno));
    cr_assert_eq(listen(fd, backlog), 0);
    socklen_t length = sizeof *address;
    cr_assert_eq(getsockname(fd, &address->any, &length), 0);
    return fd;
}

static int accept_soon(int listener)
{
    struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
    cr_assert_eq(poll(&poll_fd, 1, 5000), 1);
    int fd = accept(listener, NULL, NULL);
    cr_assert_geq(fd, 0);
    return fd;
}

static void send_all(int fd, const void *bytes, size_t length)
{
    cr_assert_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length, "send: %s", strerror(errno));
}

static void reset(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(fd);
}

/* Takes what comes until the other side closes, or `length` bytes are here. */
static size_t read_up_to(int fd, uint8_t *out, size_t length)
{
    size_t have = 0;
    while (have < length) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 5000) != 1)
            break;
        ssize_t got = recv(fd, out + have, length - have, 0);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    return have;
}

/* ---- messages, by the book ------------------------------------------------------------------- */

static uint8_t *le(uint8_t *at, uint64_t value, int bytes)
{
    while (bytes-- > 0) {
        *at++ = (uint8_t)value;
        value >>= 8;
    }
    return at;
}

static size_t message(uint8_t *out, int kind, int sender, const uint8_t *body, size_t length)
{
    uint8_t *at = out;
    *at++ = 0xB7;
    *at++ = 'U';
    *at++ = 'C';
    *at++ = 'B';
    *at++ = (uint8_t)kind;
    *at++ = (uint8_t)sender;
    at = le(at, length, 2);
    if (length > 0)
        memcpy(at, body, length);
    return 8 + length;
}

/* A HELLO of the version; of those that this library does not speak, as much as every version has. */
static size_t hello(uint8_t *out, int sender, unsigned version, size_t trailing)
{
    uint8_t body[50 + 64] = {0};
    uint8_t *at = le(body, version, 2);
    memcpy(at, sender == FROM_CLIENT ? CLIENT_ID : SERVER_ID, 16);
    if (version != BOOT_VERSION)
        return message(out, 1, sender, body, 18 + trailing);
    memcpy(at + 16, NONCE, sizeof NONCE);
    le(le(at + 32, FEATURES, 8), sender == FROM_SERVER ? LISTENER : 0, 8);
    return message(out, 1, sender, body, 50 + trailing);
}

/* The HELLO that our side has sent, as `got` has it: its nonce is drawn, so that is taken over. */
static size_t own_hello(uint8_t *out, int sender, const uint8_t *got)
{
    static const uint8_t zeros[16];
    size_t length = hello(out, sender, BOOT_VERSION, 0);
    cr_assert_arr_neq(got + 26, zeros, 16);
    memcpy(out + 26, got + 26, 16);
    le(out + 42, WIRE_FEATURES, 8);
    return length;
}

static size_t proofs(uint8_t *out, const uint64_t *values, unsigned count)
{
    uint8_t body[BOOT_MESSAGE_MAX];
    uint8_t *at = body;
    for (unsigned i = 0; i < count; i++)
        at = le(at, values[i], 8);
    return message(out, 5, FROM_SERVER, body, (size_t)(at - body));
}

/* All that the other side says before its offer. */
static size_t greeting(uint8_t *out, int sender)
{
    size_t length = hello(out, sender, BOOT_VERSION, 0);
    return sender == FROM_SERVER ? length + proofs(out + length, NULL, 0) : length;
}

static uint8_t *section(uint8_t *at, unsigned type, size_t length)
{
    return le(le(at, type, 2), length, 2);
}

static uint8_t *connection_section(uint8_t *at, const struct boot_offer *value)
{
    return le(le(section(at, 1, 6), value->conn_id, 4), value->home, 2);
}

static uint8_t *queues_section(uint8_t *at, const struct boot_offer *value)
{
    uint8_t *head = at;
    at += 4;
    at = le(at, value->chunk_window, 4);
    at = le(at, value->msg_window, 4);
    at = le(at, value->eager_window_kb, 4);
    at = le(at, value->flow_count, 2);
    for (unsigned i = 0; i < value->flow_count && i < BOOT_FLOWS_MAX; i++) {
        at = le(at, value->flows[i].token, 8);
        at = le(at, value->flows[i].rx_bytes, 8);
        at = le(at, value->flows[i].datagram_bytes, 4);
        at = le(at, value->flows[i].address.length, 1);
        memcpy(at, value->flows[i].address.bytes, value->flows[i].address.length % (NIC_QUEUE_ADDRESS_MAX + 1));
        at += value->flows[i].address.length % (NIC_QUEUE_ADDRESS_MAX + 1);
    }
    section(head, 2, (size_t)(at - head) - 4);
    return at;
}

static uint8_t *known_section(uint8_t *at, uint64_t proof)
{
    return le(section(at, 3, 8), proof, 8);
}

static size_t offer(uint8_t *out, int sender, const struct boot_offer *value)
{
    uint8_t body[BOOT_MESSAGE_MAX];
    uint8_t *at = connection_section(body, value);
    at = value->known ? known_section(at, value->proof) : queues_section(at, value);
    return message(out, 2, sender, body, (size_t)(at - body));
}

static size_t ready(uint8_t *out, int sender)
{
    return message(out, 3, sender, NULL, 0);
}

static size_t rejection(uint8_t *out, int sender, unsigned code)
{
    uint8_t body[2];
    le(body, code, 2);
    return message(out, 4, sender, body, sizeof body);
}

/* An offer of `flows` flows in which no two fields are equal. */
static struct boot_offer make_offer(uint16_t flows, uint64_t salt)
{
    struct boot_offer out;
    memset(&out, 0, sizeof out);
    out.conn_id = (uint32_t)(0xfedcba98u + salt);
    out.home = (uint16_t)(flows - 1);
    out.flow_count = flows;
    out.chunk_window = salt % 2 ? 64 : 16384;
    out.msg_window = salt % 2 ? 65536 : 16;
    out.eager_window_kb = (uint32_t)(128 + salt);
    for (unsigned i = 0; i < flows; i++) {
        struct boot_flow *flow = &out.flows[i];
        *flow = (struct boot_flow){
            .token = 0x8070605040302010u + i + salt * 1000,
            .address.length = (uint8_t)(1 + (i + salt) % NIC_QUEUE_ADDRESS_MAX),
            .datagram_bytes = (uint32_t)(512 + i * 1000 + salt),
            .rx_bytes = 0x0123456789abcdefu - i - salt,
        };
        for (unsigned byte = 0; byte < flow->address.length; byte++)
            flow->address.bytes[byte] = (uint8_t)(17 * i + byte + salt);
    }
    return out;
}

static void expect_offer(const struct boot_offer *got, const struct boot_offer *want)
{
    cr_assert_eq(got->conn_id, want->conn_id);
    cr_assert_eq(got->home, want->home);
    cr_assert_eq(got->known, want->known);
    cr_assert_eq(got->flow_count, want->flow_count);
    cr_assert_eq(got->chunk_window, want->chunk_window);
    cr_assert_eq(got->msg_window, want->msg_window);
    cr_assert_eq(got->eager_window_kb, want->eager_window_kb);
    for (unsigned i = 0; i < want->flow_count; i++) {
        cr_assert_eq(got->flows[i].token, want->flows[i].token);
        cr_assert_eq(got->flows[i].address.length, want->flows[i].address.length);
        cr_assert_arr_eq(got->flows[i].address.bytes, want->flows[i].address.bytes,
                         want->flows[i].address.length);
        cr_assert_eq(got->flows[i].datagram_bytes, want->flows[i].datagram_bytes);
        cr_assert_eq(got->flows[i].rx_bytes, want->flows[i].rx_bytes);
    }
}

/* ---- stepping -------------------------------------------------------------------------------- */

/* Loopback delivers at once, but not always before the next line runs. 0: an error or hang-up. */
static void wait_for(const struct bootstrap *boot, short events)
{
    struct pollfd poll_fd = {.fd = bootstrap_fd(boot), .events = events};
    cr_assert_eq(poll(&poll_fd, 1, 5000), 1);
}

/* One side of a handshake: a bootstrap and what its user would do. */
struct side {
    struct bootstrap *boot;
    struct boot_offer offer; /* ours */
    bool server;
    int reject;              /* not 0: answer the peer's offer with this */
    const struct boot_key *keys; /* server: of the peers that it knows; client: of the peer that it claims if it can */
    unsigned key_count;
    unsigned steps;
};

static bool ended(const struct side *side, enum boot_state state)
{
    (void)side;
    return state == BOOT_DONE || state == BOOT_FAILED;
}

/* The key of this side that the other has proved to have, or NULL. */
static const struct boot_key *proved(const struct side *side)
{
    for (unsigned i = 0; i < side->key_count; i++) {
        if (bootstrap_proves(side->boot, &side->keys[i]))
            return &side->keys[i];
    }
    return NULL;
}

static void make_own_offer(struct side *side)
{
    const struct boot_key *key = proved(side);
    struct boot_offer known = {.conn_id = side->offer.conn_id, .home = side->offer.home, .known = true};
    bootstrap_offer(side->boot, key ? &known : &side->offer, key);
}

static void answer_offer(struct side *side)
{
    bool claims = side->server && bootstrap_peer_offer(side->boot)->known;
    if (side->reject != 0)
        bootstrap_reject(side->boot, side->reject);
    else if (claims && !proved(side))
        bootstrap_reject(side->boot, UCCL_EAGAIN);
    else if (side->server)
        make_own_offer(side);
    else
        bootstrap_accept_offer(side->boot);
}

/* Steps once and does what the state asks of the user. */
static enum boot_state step(struct side *side)
{
    side->steps++;
    enum boot_state state = bootstrap_step(side->boot, now_ns());
    if (state == BOOT_NEED_PROOFS) {
        bootstrap_prove(side->boot, side->keys, side->key_count);
        state = bootstrap_step(side->boot, now_ns());
    }
    if (state == BOOT_NEED_OFFER) {
        make_own_offer(side);
        state = bootstrap_step(side->boot, now_ns());
    }
    if (state == BOOT_HAVE_OFFER) {
        answer_offer(side);
        state = bootstrap_step(side->boot, now_ns());
    }
    return state;
}

/* Steps `side` whenever poll() says so, until it ends; a raw peer has said all it has to say. */
static enum boot_state run_one(struct side *side)
{
    enum boot_state state = step(side);
    while (!ended(side, state)) {
        cr_assert_leq(side->steps, STEPS_MAX, "spins in state %d", state);
        struct pollfd poll_fd = {.fd = bootstrap_fd(side->boot),
                                 .events = bootstrap_events(side->boot)};
        uint64_t now = now_ns();
        uint64_t deadline = bootstrap_deadline(side->boot);
        /* rounded up: waking early would only mean one more step */
        poll(&poll_fd, 1, deadline > now ? (int)((deadline - now) / 1000000 + 1) : 0);
        state = step(side);
    }
    return state;
}

static void run_both(struct side *client, struct side *server)
{
    struct side *sides[2] = {client, server};
    enum boot_state states[2];
    states[0] = step(client);
    states[1] = step(server);
    while (!ended(client, states[0]) || !ended(server, states[1])) {
        cr_assert_leq(client->steps + server->steps, STEPS_MAX, "spins in states %d, %d", states[0],
                      states[1]);
        struct pollfd poll_fds[2];
        for (int i = 0; i < 2; i++)
            poll_fds[i] = (struct pollfd){
                .fd = ended(sides[i], states[i]) ? -1 : bootstrap_fd(sides[i]->boot),
                .events = bootstrap_events(sides[i]->boot)};
        cr_assert_gt(poll(poll_fds, 2, 5000), 0, "hangs in states %d, %d", states[0], states[1]);
        for (int i = 0; i < 2; i++)
            if (poll_fds[i].revents != 0)
                states[i] = step(sides[i]);
    }
}

/* A client and a server connected through `address`. */
static void make_pair(union nic_address *address, struct side *client, struct side *server)
{
    int listener = listen_at(address, 8);
    *client = (struct side){.offer = make_offer(3, 1)};
    *server = (struct side){.offer = make_offer(3, 2), .server = true};
    cr_assert_eq(bootstrap_connect(address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &client->boot), 0);
    cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(PLENTY_MS), &server->boot), 0);
    close(listener);
}

/*
 * A side that faces a raw socket, in `raw`. The raw peer of a client has accepted, that of a server
 * has connected.
 */
static struct side face_raw(bool server, unsigned limit_ms, int *raw)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 8);
    struct side side = {.offer = make_offer(2, 5), .server = server};
    if (server) {
        *raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(*raw, &address.any, address_length(&address)), 0);
        cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(limit_ms), &side.boot), 0);
    } else {
        cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(limit_ms), NULL, &side.boot), 0);
        *raw = accept_soon(listener);
    }
    close(listener);
    return side;
}

/* ---- what should work ------------------------------------------------------------------------ */

static bool have_ipv6(void)
{
    union nic_address address = loopback(AF_INET6);
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool have = fd >= 0 && bind(fd, &address.any, sizeof address.v6) == 0;
    close(fd);
    return have;
}

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
    cr_assert_arr_eq(&seen, &address, address_length(&address));
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
    size_t length = greeting(bytes, FROM_CLIENT);
    length += offer(bytes + length, FROM_CLIENT, &theirs);
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

/* ---- peers that misbehave -------------------------------------------------------------------- */

enum stage { AT_ONCE, AFTER_HELLO, AFTER_OFFER }; /* AFTER_OFFER: a server awaits READY */
enum then { STAYS, CLOSES, RESETS };
enum { CLIENT = 1, SERVER = 2, BOTH = 3 };

#define TEXT(text) text, sizeof text - 1

static const struct misdeed {
    const char *name;
    int sides;           /* which side of ours it is done to */
    enum stage stage;
    const char *bytes;   /* what it says then */
    size_t length;
    enum then then;
    int client_status;
    int server_status;
    const char *log;     /* part of the line */
    bool stranger;       /* a server logs it at info */
} MISDEEDS[] = {
    {"zeros", BOTH, AT_ONCE, TEXT("\0\0\0\0\0\0\0\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "00 00 00 00", true},
    {"one wrong byte", BOTH, AT_ONCE, TEXT("x"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "another protocol", true},
    {"almost the magic", BOTH, AT_ONCE, TEXT("\xB7UCX"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "b7 55 43 58", true},
    {"HTTP", BOTH, AT_ONCE, TEXT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), STAYS, UCCL_EPROTO, UCCL_EPROTO,
     "47 45 54 20", true},
    {"HTTP and close", BOTH, AT_ONCE, TEXT("GET / HTTP/1.0\r\n\r\n"), CLOSES, UCCL_EPROTO, UCCL_EPROTO,
     "47 45 54 20", true},
    {"close at once", BOTH, AT_ONCE, TEXT(""), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "early", true},
    {"close within the header", BOTH, AT_ONCE, TEXT("\xB7UCB\1"), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "early", true},
    {"close within HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\x12\0\1\0"), CLOSES, 0, UCCL_EPROTO, "early", false},
    {"close within HELLO", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\2\x12\0\1\0"), CLOSES, UCCL_EPROTO, 0, "early", false},
    {"close before the offer", BOTH, AFTER_HELLO, TEXT(""), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "OFFER", false},
    {"close within the offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\x80\0abc"), CLOSES, 0, UCCL_EPROTO,
     "early", false},
    {"close within the offer", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\2\2\x80\0abc"), CLOSES, UCCL_EPROTO, 0,
     "early", false},
    {"close before READY", SERVER, AFTER_OFFER, TEXT(""), CLOSES, 0, UCCL_EPROTO, "READY", false},
    {"close within READY", SERVER, AFTER_OFFER, TEXT("\xB7UCB\3"), CLOSES, 0, UCCL_EPROTO, "READY", false},
    {"reset at once", BOTH, AT_ONCE, TEXT(""), RESETS, UCCL_EREFUSED, UCCL_EPROTO, "reset", true},
    {"reset after HELLO", BOTH, AFTER_HELLO, TEXT(""), RESETS, UCCL_EPROTO, UCCL_EPROTO, "", false},
    {"reset before READY", SERVER, AFTER_OFFER, TEXT(""), RESETS, 0, UCCL_EPROTO, "", false},
    {"oversized HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\xf9\x0f"), STAYS, 0, UCCL_EPROTO, "4097 bytes", false},
    {"oversized HELLO", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\2\xff\xff"), STAYS, UCCL_EPROTO, 0, "65543 bytes", false},
    {"oversized offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\xff\xff"), STAYS, 0, UCCL_EPROTO, "65543", false},
    {"oversized offer", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\2\2\xff\xff"), STAYS, UCCL_EPROTO, 0, "65543", false},
    {"short HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\2\0\1\0"), STAYS, 0, UCCL_EPROTO, "malformed HELLO", false},
    {"an offer first", SERVER, AT_ONCE, TEXT("\xB7UCB\2\1\x80\0"), STAYS, 0, UCCL_EPROTO, "kind 2", false},
    {"HELLO twice", SERVER, AFTER_HELLO, TEXT("\xB7UCB\1\1\x12\0"), STAYS, 0, UCCL_EPROTO, "kind 1", false},
    {"READY with a body", SERVER, AFTER_OFFER, TEXT("\xB7UCB\3\1\1\0x"), STAYS, 0, UCCL_EPROTO,
     "malformed READY", false},
    {"garbage for READY", SERVER, AFTER_OFFER, TEXT("READY\n\n\n"), STAYS, 0, UCCL_EPROTO, "52 45 41 44", false},
    {"proofs of a client", SERVER, AFTER_HELLO, TEXT("\xB7UCB\5\1\0\0"), STAYS, 0, UCCL_EPROTO, "kind 5", false},
    {"proofs twice", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\5\2\0\0"), STAYS, UCCL_EPROTO, 0, "kind 5", false},
    {"unknown kind", BOTH, AFTER_HELLO, TEXT("\xB7UCB\6\1\0\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "", false},
    {"unknown sender", BOTH, AT_ONCE, TEXT("\xB7UCB\1\3\x12\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "wrong side",
     false},
    {"our echo", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\1\x12\0"), STAYS, UCCL_EPROTO, 0, "echo", false},
    {"empty offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\0\0"), STAYS, 0, UCCL_EPROTO, "bad OFFER", false},
    {"empty reject", SERVER, AFTER_HELLO, TEXT("\xB7UCB\4\1\0\0"), STAYS, 0, UCCL_EPROTO, "malformed REJECT", false},
    {"long reject", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\4\2\3\0\3\0x"), STAYS, UCCL_EPROTO, 0, "malformed REJECT",
     false},
    {"reject at once", CLIENT, AT_ONCE, TEXT("\xB7UCB\4\2\2\0\3\0"), CLOSES, UCCL_ENOMEM, 0, "out of memory", false},
    {"reject for READY", SERVER, AFTER_OFFER, TEXT("\xB7UCB\4\1\2\0\x0d\0"), CLOSES, 0, UCCL_ENODEV, "rejected",
     false},
};

static void misbehave(const struct misdeed *deed, bool server)
{
    int raw;
    struct side side = face_raw(server, PLENTY_MS, &raw);
    int sender = server ? FROM_CLIENT : FROM_SERVER;
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = 0;
    if (deed->stage != AT_ONCE)
        length += greeting(bytes, sender);
    if (deed->stage == AFTER_OFFER)
        length += offer(bytes + length, sender, &theirs);
    memset(&logged, 0, sizeof logged);
    send_all(raw, bytes, length);
    if (deed->then == RESETS) /* else the reset may overtake what we would read */
        for (int i = 0; i < 3; i++)
            step(&side);
    send_all(raw, deed->bytes, deed->length);
    if (deed->then == CLOSES)
        shutdown(raw, SHUT_WR);
    if (deed->then == RESETS)
        reset(raw);
    cr_assert_eq(run_one(&side), BOOT_FAILED, "%s", deed->name);
    cr_assert_eq(bootstrap_status(side.boot), server ? deed->server_status : deed->client_status,
                 "%s (server %d): %d: %s", deed->name, server, bootstrap_status(side.boot), logged.text);
    cr_assert_eq(bootstrap_step(side.boot, now_ns()), BOOT_FAILED, "failed for good");
    bool info = server && deed->stranger;
    expect_log(info ? UCCL_LOG_INFO : UCCL_LOG_WARN, deed->log, deed->name);
    /* a server whose peer was reset before it was looked at cannot know the address */
    cr_assert_not_null(strstr(logged.text, "127.0.0.1:"), "%s: %s", deed->name, logged.text);
    bootstrap_free(side.boot);
    if (deed->then != RESETS)
        close(raw);
}

Test(bootstrap, misbehaving_peers)
{
    for (size_t i = 0; i < sizeof MISDEEDS / sizeof MISDEEDS[0]; i++) {
        if (MISDEEDS[i].sides & CLIENT)
            misbehave(&MISDEEDS[i], false);
        if (MISDEEDS[i].sides & SERVER)
            misbehave(&MISDEEDS[i], true);
    }
}

/* A peer that was reset between the TCP handshake and accept() has no address any more. */
Test(bootstrap, reset_before_serve)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 8);
    int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(raw, &address.any, address_length(&address)), 0);
    reset(raw);
    struct side server = {.server = true};
    cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(PLENTY_MS), &server.boot), 0);
    cr_assert_eq(run_one(&server), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(server.boot), UCCL_EPROTO);
    expect_log(UCCL_LOG_INFO, "reset", "reset before serve");
    bootstrap_free(server.boot);
    close(listener);
}

/* Versions: told apart from garbage, both named, and the peer learns ours. */
Test(bootstrap, wrong_version)
{
    static const struct {
        unsigned version;
        size_t trailing;
        const char *log;
    } CASES[] = {
        {BOOT_VERSION + 1, 0, "version 4 of the handshake, this library version 3"},
        {BOOT_VERSION + 1, 40, "version 4 of the handshake, this library version 3"},
        {0xffff, 64, "version 65535 of the handshake, this library version 3"},
        {BOOT_VERSION - 1, 0, "version 2 of the handshake, this library version 3"},
        {BOOT_VERSION - 1, 1, "malformed HELLO"},
        {BOOT_VERSION, 1, "malformed HELLO"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        for (int server = 0; server < 2; server++) {
            int raw;
            struct side side = face_raw(server, PLENTY_MS, &raw);
            uint8_t bytes[BOOT_MESSAGE_MAX];
            size_t length = hello(bytes, server ? FROM_CLIENT : FROM_SERVER, CASES[i].version,
                                  CASES[i].trailing);
            memset(&logged, 0, sizeof logged);
            send_all(raw, bytes, length);
            cr_assert_eq(run_one(&side), BOOT_FAILED);
            cr_assert_eq(bootstrap_status(side.boot), UCCL_EPROTO);
            expect_log(UCCL_LOG_WARN, CASES[i].log, "version");
            bootstrap_free(side.boot);
            bool mismatch = strstr(CASES[i].log, "version") != NULL;
            if (!server || mismatch) {
                uint8_t want[HELLO_BYTES];
                cr_assert_eq(read_up_to(raw, bytes, sizeof bytes), HELLO_BYTES);
                own_hello(want, server ? FROM_SERVER : FROM_CLIENT, bytes);
                cr_assert_arr_eq(bytes, want, HELLO_BYTES);
            }
            close(raw);
        }
    }
}

/* A server must not name a flow that the client does not have: we would index with it. */
Test(bootstrap, home_must_exist_here)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    client.offer = make_offer(2, 1);
    struct boot_offer theirs = make_offer(4, 2);
    theirs.home = 2;
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = greeting(bytes, FROM_SERVER);
    length += offer(bytes + length, FROM_SERVER, &theirs);
    send_all(raw, bytes, length);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO);
    expect_log(UCCL_LOG_WARN, "home", "home");
    bootstrap_free(client.boot);
    close(raw);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void silent_peer(bool server, enum stage stage, const char *log)
{
    int raw;
    enum { LIMIT_MS = 150 };
    uint64_t start = now_ns();
    struct side side = face_raw(server, LIMIT_MS, &raw);
    int sender = server ? FROM_CLIENT : FROM_SERVER;
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = 0;
    if (stage != AT_ONCE)
        length += greeting(bytes, sender);
    if (stage == AFTER_OFFER)
        length += offer(bytes + length, sender, &theirs);
    memset(&logged, 0, sizeof logged);
    send_all(raw, bytes, length);
    cr_assert_eq(run_one(&side), BOOT_FAILED);
    uint64_t took_ms = (now_ns() - start) / 1000000;
    cr_assert_eq(bootstrap_status(side.boot), UCCL_ETIMEDOUT);
    cr_assert_leq(side.steps, 8, "%u steps in %d ms of silence", side.steps, LIMIT_MS);
    cr_assert_geq(took_ms, LIMIT_MS);
    cr_assert_leq(took_ms, LIMIT_MS + 1000, "%d ms became %llu", LIMIT_MS, (unsigned long long)took_ms);
    expect_log(server && stage == AT_ONCE ? UCCL_LOG_INFO : UCCL_LOG_WARN, log, "silence");
    bootstrap_free(side.boot);
    close(raw);
}

Test(bootstrap, silent_peers_time_out)
{
    silent_peer(true, AT_ONCE, "no HELLO");
    silent_peer(false, AT_ONCE, "no HELLO");
    silent_peer(true, AFTER_HELLO, "no OFFER");
    silent_peer(false, AFTER_HELLO, "no OFFER");
    silent_peer(true, AFTER_OFFER, "no READY");
}

/* A peer that always says a little more does not get more time. */
Test(bootstrap, dripping_peer_times_out)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    uint64_t deadline = bootstrap_deadline(server.boot);
    uint8_t bytes[HELLO_BYTES];
    hello(bytes, FROM_CLIENT, BOOT_VERSION, 0);
    for (int i = 0; i < HELLO_BYTES - 1; i++) {
        send_all(raw, bytes + i, 1);
        cr_assert_eq(bootstrap_step(server.boot, deadline - 1), BOOT_HELLO);
    }
    cr_assert_eq(bootstrap_step(server.boot, deadline), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(server.boot), UCCL_ETIMEDOUT);
    expect_log(UCCL_LOG_WARN, "UCCL_CONNECT_MS", "drip");
    bootstrap_free(server.boot);
    close(raw);
}

/* What has arrived before the deadline counts even if we look after it. */
Test(bootstrap, late_look_is_not_a_timeout)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = greeting(bytes, FROM_CLIENT);
    length += offer(bytes + length, FROM_CLIENT, &theirs);
    send_all(raw, bytes, length);
    wait_for(server.boot, POLLIN);
    step(&server);
    length = ready(bytes, FROM_CLIENT);
    send_all(raw, bytes, length);
    wait_for(server.boot, POLLIN);
    cr_assert_eq(bootstrap_step(server.boot, UINT64_MAX), BOOT_DONE, "%s", logged.text);
    bootstrap_free(server.boot);
    close(raw);
}

/* Our own side may be what is slow; the peer is told. */
Test(bootstrap, own_slowness_times_out)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    send_all(raw, bytes, greeting(bytes, FROM_SERVER));
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    cr_assert_eq(bootstrap_step(client.boot, UINT64_MAX), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ETIMEDOUT);
    expect_log(UCCL_LOG_WARN, "this side", "slow");
    bootstrap_free(client.boot);
    uint8_t want[2 * BOOT_MESSAGE_MAX];
    size_t have = read_up_to(raw, bytes, sizeof bytes);
    size_t length = own_hello(want, FROM_CLIENT, bytes);
    length += rejection(want + length, FROM_CLIENT, 4);
    cr_assert_eq(have, length);
    cr_assert_arr_eq(bytes, want, length);
    close(raw);
}

/* A listener whose queue is full answers no connect: the client waits, without spinning, in CONNECTING. */
Test(bootstrap, unanswered_connect_times_out)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 0);
    int fillers[4];
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fillers[i], &address.any, address_length(&address));
    }
    struct side client = {0};
    uint64_t start = now_ns();
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(200), NULL, &client.boot), 0);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ETIMEDOUT);
    cr_assert_leq(client.steps, 4);
    cr_assert_leq((now_ns() - start) / 1000000, 1200);
    expect_log(UCCL_LOG_WARN, "TCP connect", "full queue");
    bootstrap_free(client.boot);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(listener);
}

/* ---- nobody there ---------------------------------------------------------------------------- */

static void refused(int family, const char *name)
{
    union nic_address address = loopback(family);
    /* bound but not listening: nobody else can take the port meanwhile */
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, &address.any, address_length(&address)), 0);
    socklen_t length = sizeof address;
    cr_assert_eq(getsockname(fd, &address.any, &length), 0);
    memset(&logged, 0, sizeof logged);
    struct side client = {0};
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &client.boot), 0);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EREFUSED);
    expect_log(UCCL_LOG_WARN, name, "refused");
    bootstrap_free(client.boot);
    close(fd);
}

Test(bootstrap, connection_refused)
{
    refused(AF_INET, "127.0.0.1:");
    if (have_ipv6())
        refused(AF_INET6, "[::1]:");
}

/* None of these sends a packet. */
Test(bootstrap, unusable_addresses)
{
    struct {
        const char *name;
        union nic_address address;
    } cases[7];
    memset(cases, 0, sizeof cases);
    size_t count = 0;
    cases[count].name = "no family";
    count++;
    cases[count].name = "another family";
    cases[count].address = loopback(AF_INET);
    cases[count++].address.any.sa_family = AF_UNIX;
    cases[count].name = "no port";
    cases[count++].address = loopback(AF_INET);
    cases[count].name = "multicast";
    cases[count].address = loopback(AF_INET);
    cases[count].address.v4.sin_port = htons(9);
    cases[count++].address.v4.sin_addr.s_addr = htonl(0xe0000001u);
    cases[count].name = "broadcast";
    cases[count].address = loopback(AF_INET);
    cases[count].address.v4.sin_port = htons(9);
    cases[count++].address.v4.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    if (have_ipv6()) {
        for (uint32_t scope = 0; scope < 2; scope++) {
            cases[count].name = scope == 0 ? "link-local without interface" : "no such interface";
            cases[count].address = loopback(AF_INET6);
            cases[count].address.v6.sin6_port = htons(9);
            cases[count].address.v6.sin6_scope_id = scope == 0 ? 0 : 0x7ffffff0;
            cases[count].address.v6.sin6_addr.s6_addr[0] = 0xfe;
            cases[count++].address.v6.sin6_addr.s6_addr[1] = 0x80;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct bootstrap *boot = NULL;
        memset(&logged, 0, sizeof logged);
        int status = bootstrap_connect(&cases[i].address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot);
        cr_assert_eq(status, UCCL_EADDR, "%s: %d: %s", cases[i].name, status, logged.text);
        cr_assert_null(boot, "%s", cases[i].name);
        expect_log(UCCL_LOG_WARN, "", cases[i].name);
    }
}

/* IPv6 scopes: named in the log, and kept on the way to connect(). */
Test(bootstrap, scope_is_named)
{
    if (!have_ipv6())
        cr_skip_test("no ::1 on this machine");
    union nic_address address = loopback(AF_INET6);
    address.v6.sin6_addr.s6_addr[0] = 0xfe;
    address.v6.sin6_addr.s6_addr[1] = 0x80;
    address.v6.sin6_port = htons(9);
    address.v6.sin6_scope_id = 0x7ffffff0;
    struct bootstrap *boot = NULL;
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot), UCCL_EADDR);
    expect_log(UCCL_LOG_WARN, "[fe80::1%2147483632]:9", "scope");
}

Test(bootstrap, out_of_descriptors)
{
    union nic_address address = loopback(AF_INET);
    address.v4.sin_port = htons(9);
    struct rlimit before;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct bootstrap *boot = NULL;
    int status = bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(status, UCCL_ENOMEM);
    expect_log(UCCL_LOG_WARN, "127.0.0.1:9", "descriptors");
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
        cr_assert(!kept || strstr(fault, "127.0.0.1:") != NULL, "%s", fault);
        cr_assert(!kept || strstr(fault, "another listener") != NULL, "%s", fault);
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
    size_t length = greeting(bytes, FROM_SERVER);
    length += offer(bytes + length, FROM_SERVER, &theirs);
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
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO, "%s", logged.text);
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
    size_t length = greeting(bytes, FROM_CLIENT);
    length += offer(bytes + length, FROM_CLIENT, &theirs);
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

/* ---- decoders -------------------------------------------------------------------------------- */

enum message_kind { HELLO, OFFER, PROOFS };

/* Decodes from memory that ends where the bytes end, so that ASan sees a read beyond. NULL, or what is wrong. */
static const char *decode(enum message_kind kind, const uint8_t *bytes, size_t length)
{
    static union {
        struct boot_hello hello;
        struct boot_offer offer;
        struct boot_proofs proofs;
        uint8_t bytes[sizeof(struct boot_offer)];
    } out;
    uint8_t *exact = malloc(length == 0 ? 1 : length);
    cr_assert_not_null(exact);
    memcpy(exact, bytes, length);
    memset(&out, 0x5a, sizeof out);
    const char *fault = kind == HELLO   ? boot_decode_hello(exact, length, &out.hello)
                        : kind == OFFER ? boot_decode_offer(exact, length, &out.offer)
                                        : boot_decode_proofs(exact, length, &out.proofs);
    for (size_t i = 0; fault && i < sizeof out; i++)
        cr_assert_eq(out.bytes[i], 0x5a, "a refused message writes nothing");
    free(exact);
    return fault;
}

/* What is wrong with an offer says so. */
static void expect_fault(const uint8_t *bytes, size_t length, const char *part)
{
    const char *fault = decode(OFFER, bytes, length);
    cr_assert_not_null(fault, "taken, though: %s", part);
    cr_assert_not_null(strstr(fault, part), "'%s' is not in: %s", part, fault);
}

Test(bootstrap, every_truncation_is_refused)
{
    struct boot_offer value = make_offer(64, 3), known = {.known = true, .proof = 1};
    uint64_t values[2] = {1, 2};
    uint8_t bytes[BOOT_MESSAGE_MAX + 1] = {0};
    for (int i = 0; i < 4; i++) {
        enum message_kind kind = i == 0 ? HELLO : i == 1 ? PROOFS : OFFER;
        size_t length = i == 0   ? hello(bytes, FROM_CLIENT, BOOT_VERSION, 0)
                        : i == 1 ? proofs(bytes, values, 2)
                                 : offer(bytes, FROM_CLIENT, i == 2 ? &value : &known);
        cr_assert_null(decode(kind, bytes, length));
        for (enum message_kind other = HELLO; other <= PROOFS; other++)
            cr_assert(other == kind || decode(other, bytes, length), "the other kind");
        cr_assert_not_null(decode(kind, bytes, length + 1), "a byte too many");
        for (size_t cut = 0; cut < length; cut++) {
            cr_assert_not_null(decode(kind, bytes, cut), "%zu of %zu bytes", cut, length);
            if (cut < 8)
                continue;
            uint8_t honest[BOOT_MESSAGE_MAX]; /* the header admits that it is short */
            memcpy(honest, bytes, cut);
            le(honest + 6, cut - 8, 2);
            bool fewer_proofs = kind == PROOFS && cut % 8 == 0;
            cr_assert_eq(decode(kind, honest, cut) == NULL, fewer_proofs, "%zu of %zu bytes, admitted", cut, length);
        }
    }
}

/* One bit wrong anywhere in header, version or counts: refused, or a change that cannot be noticed. */
Test(bootstrap, header_bits_matter)
{
    struct boot_offer value = make_offer(2, 3);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length = offer(bytes, FROM_CLIENT, &value);
    for (unsigned bit = 0; bit < 8 * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        cr_assert_not_null(decode(OFFER, bytes, length), "bit %u", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    bytes[5] = FROM_SERVER;
    cr_assert_null(decode(OFFER, bytes, length));
}

Test(bootstrap, newer_hello_may_be_longer)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    struct boot_hello out;
    size_t length = hello(bytes, FROM_SERVER, BOOT_VERSION + 1, 33);
    cr_assert_null(boot_decode_hello(bytes, length, &out));
    cr_assert_eq(out.version, BOOT_VERSION + 1);
    cr_assert_arr_eq(out.engine_id, SERVER_ID, 16);
    length = hello(bytes, FROM_SERVER, BOOT_VERSION, 33);
    cr_assert_not_null(decode(HELLO, bytes, length));
    length = hello(bytes, FROM_SERVER, BOOT_VERSION, 0);
    cr_assert_null(boot_decode_hello(bytes, length, &out));
    cr_assert_arr_eq(out.nonce, NONCE, 16);
    cr_assert_eq(out.features, FEATURES);
}

#define BAD(field, value_)                                                                        \
    do {                                                                                          \
        struct boot_offer bad = make_offer(3, 4);                                                 \
        uint8_t wire[BOOT_MESSAGE_MAX];                                                           \
        bad.field = (value_);                                                                     \
        cr_assert_not_null(decode(OFFER, wire, offer(wire, FROM_CLIENT, &bad)),                    \
                           #field " = " #value_ " is taken");                                     \
    } while (0)
#define GOOD(field, value_)                                                                       \
    do {                                                                                          \
        struct boot_offer good = make_offer(3, 4);                                                \
        struct boot_offer got;                                                                    \
        uint8_t wire[BOOT_MESSAGE_MAX];                                                           \
        good.field = (value_);                                                                    \
        cr_assert_null(boot_decode_offer(wire, offer(wire, FROM_CLIENT, &good), &got),            \
                       #field " = " #value_ " is refused");                                       \
        expect_offer(&got, &good);                                                                \
    } while (0)

Test(bootstrap, offer_fields_are_checked)
{
    GOOD(conn_id, 0);
    GOOD(conn_id, UINT32_MAX);
    GOOD(home, 0);
    GOOD(home, 2);
    BAD(home, 3);
    BAD(home, 65535);
    BAD(flow_count, 0);
    BAD(flow_count, 65);
    BAD(flow_count, 65535);
    GOOD(chunk_window, 64);
    GOOD(chunk_window, 16384);
    BAD(chunk_window, 0);
    BAD(chunk_window, 32);
    BAD(chunk_window, 32768);
    BAD(chunk_window, 96);
    BAD(chunk_window, UINT32_MAX);
    GOOD(msg_window, 16);
    GOOD(msg_window, 65536);
    BAD(msg_window, 0);
    BAD(msg_window, 8);
    BAD(msg_window, 131072);
    BAD(msg_window, 1000);
    BAD(msg_window, 0x80000000u);
    GOOD(eager_window_kb, 128);
    GOOD(eager_window_kb, 129);
    GOOD(eager_window_kb, 65536);
    BAD(eager_window_kb, 0);
    BAD(eager_window_kb, 127);
    BAD(eager_window_kb, 65537);
    BAD(eager_window_kb, UINT32_MAX);
    for (unsigned i = 0; i < 3; i++) {
        GOOD(flows[i].token, 1);
        GOOD(flows[i].token, UINT64_MAX);
        BAD(flows[i].token, 0);
        GOOD(flows[i].address.length, 1);
        GOOD(flows[i].address.length, NIC_QUEUE_ADDRESS_MAX);
        BAD(flows[i].address.length, 0);
        BAD(flows[i].address.length, NIC_QUEUE_ADDRESS_MAX + 1);
        BAD(flows[i].address.length, UINT8_MAX);
        GOOD(flows[i].datagram_bytes, CORE_DATAGRAM_MIN);
        GOOD(flows[i].datagram_bytes, 65535);
        BAD(flows[i].datagram_bytes, 0);
        BAD(flows[i].datagram_bytes, CORE_DATAGRAM_MIN - 1);
        BAD(flows[i].datagram_bytes, 65536);
        BAD(flows[i].datagram_bytes, UINT32_MAX);
        GOOD(flows[i].rx_bytes, 1);
        GOOD(flows[i].rx_bytes, UINT64_MAX);
        BAD(flows[i].rx_bytes, 0);
    }
}

/* A message of kind OFFER whose count and length disagree, in both directions. */
Test(bootstrap, count_and_length_must_agree)
{
    struct boot_offer value = make_offer(5, 3);
    value.home = 0;
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length = offer(bytes, FROM_CLIENT, &value);
    size_t expected = QUEUES_AT + QUEUES_FIXED_BYTES;
    for (unsigned i = 0; i < 5; i++)
        expected += FLOW_FIXED_BYTES + (size_t)value.flows[i].address.length;
    cr_assert_eq(length, expected);
    for (unsigned count = 0; count <= 70; count++) {
        le(bytes + FLOW_COUNT_AT, count, 2);
        cr_assert_eq(decode(OFFER, bytes, length) == NULL, count == 5, "count %u", count);
    }
}

/* ---- sections -------------------------------------------------------------------------------- */

Test(bootstrap, sections_are_checked)
{
    struct boot_offer value = make_offer(2, 3), got;
    uint8_t body[BOOT_MESSAGE_MAX], wire[BOOT_MESSAGE_MAX + 8];
    uint8_t *at = connection_section(body, &value);

    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, 0), "no connection");
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(at - body)), "no flows");
    uint8_t *end = known_section(queues_section(at, &value), 1);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "both");
    end = queues_section(queues_section(at, &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "twice");
    end = connection_section(queues_section(body, &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "order");
    end = queues_section(body, &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "no connection");

    /* types to come, with and without leave to skip them: 4 and the last one; type 0 is none */
    static const unsigned TYPES[] = {4, 0x7fff};
    for (unsigned i = 0; i < 2; i++) {
        at = queues_section(connection_section(body, &value), &value);
        end = section(at, 0x8000 | TYPES[i], 5) + 5;
        cr_assert_null(boot_decode_offer(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), &got));
        expect_offer(&got, &value);
        section(at, TYPES[i], 5);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "does not know");
        section(at, 0x8000 | TYPES[i], 6);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "longer");
        section(at, 0x8000 | TYPES[i], 5);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body) + 3), "cut short");
    }
    end = queues_section(connection_section(section(body, 0x8000, 0), &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "order");

    /* the flag does not make a known type another one */
    end = queues_section(connection_section(body, &value), &value);
    le(body, 0x8001, 2);
    cr_assert_null(boot_decode_offer(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), &got));
    expect_offer(&got, &value);
}

/* 16 KiB are enough for what is to come, and not a byte more is taken. */
Test(bootstrap, largest_offer)
{
    struct boot_offer value = make_offer(64, 3);
    for (unsigned more = 0; more < 2; more++) {
        int raw;
        struct side server = face_raw(true, PLENTY_MS, &raw);
        static uint8_t body[BOOT_MESSAGE_MAX], bytes[2 * BOOT_MESSAGE_MAX];
        uint8_t *at = queues_section(connection_section(body, &value), &value);
        size_t left = BOOT_MESSAGE_MAX - 8 + more - (size_t)(at - body) - 4;
        section(at, 0x8005, left);
        size_t length = greeting(bytes, FROM_CLIENT);
        length += message(bytes + length, 2, FROM_CLIENT, body, BOOT_MESSAGE_MAX - 8 + more);
        length += ready(bytes + length, FROM_CLIENT);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&server), more ? BOOT_FAILED : BOOT_DONE, "%s", logged.text);
        if (more)
            expect_log(UCCL_LOG_WARN, "16385 bytes, more than the 16384", "too large");
        else
            expect_offer(bootstrap_peer_offer(server.boot), &value);
        bootstrap_free(server.boot);
        close(raw);
    }
}

/* A kind of frame that every connection needs is not understood: refused, with the bit. */
Test(bootstrap, features_are_needed)
{
    for (int server = 0; server < 2; server++) {
        int raw;
        struct side side = face_raw(server, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX];
        size_t length = greeting(bytes, server ? FROM_CLIENT : FROM_SERVER);
        le(bytes + 42, WIRE_FEATURES & ~(UINT64_C(1) << FRAME_EAGER), 8);
        memset(&logged, 0, sizeof logged);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&side), BOOT_FAILED);
        cr_assert_eq(bootstrap_status(side.boot), UCCL_EPROTO);
        expect_log(UCCL_LOG_WARN, "lacks features 0x4", "features");
        bootstrap_free(side.boot);
        close(raw);
    }
}

/* What a later version can do besides is no matter, and nothing that both can do. */
Test(bootstrap, features_are_those_of_both)
{
    for (int server = 0; server < 2; server++) {
        int raw;
        struct side side = face_raw(server, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX];
        size_t length = greeting(bytes, server ? FROM_CLIENT : FROM_SERVER);
        le(bytes + 42, WIRE_FEATURES | UINT64_C(1) << 63, 8);
        send_all(raw, bytes, length);
        for (uint64_t end_ns = in_ms(PLENTY_MS); !bootstrap_greeted(side.boot);) {
            cr_assert_lt(in_ms(0), end_ns);
            bootstrap_step(side.boot, in_ms(0));
        }
        cr_assert_eq(bootstrap_features(side.boot), WIRE_FEATURES);
        bootstrap_free(side.boot);
        close(raw);
    }
}

/* ---- known peers ----------------------------------------------------------------------------- */

static const struct boot_key KEYS[3] = {{11, 12}, {21, 22}, {31, 32}};

/*
 * The proof of docs/bootstrap.md, from the bytes of both HELLOs as they were sent and of the connection section as it
 * is (NULL: none).
 */
static uint64_t proof_of(const struct boot_key *key, unsigned prover, const uint8_t *client_hello,
                         const uint8_t *server_hello, const uint8_t *connection)
{
    uint8_t bytes[1 + 50 + 50 + 6];
    bytes[0] = (uint8_t)prover;
    memcpy(bytes + 1, client_hello + 8, 50);
    memcpy(bytes + 51, server_hello + 8, 50);
    if (connection)
        memcpy(bytes + 101, connection, 6);
    return siphash(key->to_client, key->to_server, bytes, connection ? 107 : 101);
}

/* Is a token of KEYS in there, or the other way round: do these bytes tell anybody one? */
static bool tells_a_token(const uint8_t *bytes, size_t length)
{
    for (size_t at = 0; at + 8 <= length; at++) {
        uint64_t value = 0;
        for (unsigned i = 0; i < 8; i++)
            value |= (uint64_t)bytes[at + i] << 8 * i;
        for (unsigned i = 0; i < 3; i++) {
            if (value == KEYS[i].to_client || value == KEYS[i].to_server)
                return true;
        }
    }
    return false;
}

/* Both know the same flows: no flow and no token is offered. */
Test(bootstrap, known_peers_share_their_flows)
{
    union nic_address address = loopback(AF_INET);
    struct side client, server;
    make_pair(&address, &client, &server);
    client.keys = &KEYS[1];
    client.key_count = 1;
    server.keys = KEYS;
    server.key_count = 3;
    run_both(&client, &server);
    cr_assert_eq(bootstrap_status(client.boot), 0, "%s", logged.text);
    cr_assert_eq(bootstrap_status(server.boot), 0, "%s", logged.text);
    for (int i = 0; i < 2; i++) {
        const struct boot_offer *got = bootstrap_peer_offer(i ? server.boot : client.boot);
        cr_assert(got->known && got->flow_count == 0);
        cr_assert_eq(got->conn_id, i ? client.offer.conn_id : server.offer.conn_id);
        cr_assert_eq(got->home, i ? client.offer.home : server.offer.home);
        cr_assert_eq(bootstrap_features(i ? server.boot : client.boot), WIRE_FEATURES);
    }
    cr_assert_eq(logged.lines, 0);
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

/* Keys that only one side has, half of one, or one the other way round: separate peers, with new flows. */
Test(bootstrap, strangers_do_not_share)
{
    static const struct boot_key OTHERS[] = {{11, 13}, {12, 11}, {13, 12}, {22, 22}};
    for (unsigned i = 0; i < 4; i++) {
        union nic_address address = loopback(AF_INET);
        struct side client, server;
        make_pair(&address, &client, &server);
        client.keys = &OTHERS[i];
        client.key_count = 1;
        server.keys = KEYS;
        server.key_count = 3;
        run_both(&client, &server);
        cr_assert_eq(bootstrap_status(client.boot), 0, "%s", logged.text);
        expect_offer(bootstrap_peer_offer(client.boot), &server.offer);
        expect_offer(bootstrap_peer_offer(server.boot), &client.offer);
        bootstrap_free(client.boot);
        bootstrap_free(server.boot);
    }
}

/* What a client says to a server that has proved itself, byte by byte; and each answer that it must not believe. */
Test(bootstrap, client_claims_only_to_a_server_that_proves)
{
    enum { HONEST, WRONG_PROOF, ITS_OWN_PROOF_BACK, NEW_FLOWS, ANSWERS };
    for (unsigned answer = 0; answer < ANSWERS; answer++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        uint8_t theirs[HELLO_BYTES], ours[HELLO_BYTES], bytes[BOOT_MESSAGE_MAX], want[BOOT_MESSAGE_MAX];
        client.keys = &KEYS[2];
        client.key_count = 1;
        memset(&logged, 0, sizeof logged);
        cr_assert_neq(step(&client), BOOT_FAILED);
        cr_assert_eq(read_up_to(raw, ours, HELLO_BYTES), HELLO_BYTES);
        send_all(raw, theirs, hello(theirs, FROM_SERVER, BOOT_VERSION, 0));
        uint64_t values[2] = {99, proof_of(&KEYS[2], 1, ours, theirs, NULL)};
        send_all(raw, bytes, proofs(bytes, values, 2));
        wait_for(client.boot, POLLIN);
        while (step(&client) != BOOT_OFFERING)
            wait_for(client.boot, POLLIN);
        struct boot_offer known = {.conn_id = client.offer.conn_id, .home = client.offer.home, .known = true};
        connection_section(bytes, &known);
        known.proof = proof_of(&KEYS[2], 2, ours, theirs, bytes + 4);
        size_t length = offer(want, FROM_CLIENT, &known);
        cr_assert_eq(read_up_to(raw, bytes, length), length);
        cr_assert_arr_eq(bytes, want, length);
        cr_assert_not(tells_a_token(bytes, length));

        struct boot_offer reply = {.conn_id = 77, .home = 1, .known = true, .proof = known.proof};
        if (answer == NEW_FLOWS) {
            reply = make_offer(2, 8);
        } else if (answer != ITS_OWN_PROOF_BACK) {
            connection_section(bytes, &reply);
            reply.proof = proof_of(&KEYS[2], 3, ours, theirs, bytes + 4) + (answer == WRONG_PROOF);
        }
        send_all(raw, bytes, offer(bytes, FROM_SERVER, &reply));
        enum boot_state state = run_one(&client);
        cr_assert_eq(state, answer == HONEST ? BOOT_DONE : BOOT_FAILED, "answer %u: %s", answer, logged.text);
        cr_assert_eq(bootstrap_status(client.boot), answer == HONEST ? 0 : UCCL_EPROTO);
        bootstrap_free(client.boot);
        close(raw);
    }
}

/* A server proves its keys to whoever shows the id; it believes a claim that covers every byte, and no other. */
Test(bootstrap, server_believes_only_proofs)
{
    enum { HONEST, OTHER_CONNECTION, SERVERS_PROOF_BACK, OTHER_KEY, CLAIMS };
    for (unsigned claim = 0; claim < CLAIMS; claim++) {
        int raw;
        struct side server = face_raw(true, PLENTY_MS, &raw);
        uint8_t theirs[HELLO_BYTES], ours[HELLO_BYTES], bytes[BOOT_MESSAGE_MAX], want[BOOT_MESSAGE_MAX];
        server.keys = KEYS;
        server.key_count = 2;
        memset(&logged, 0, sizeof logged);
        send_all(raw, theirs, hello(theirs, FROM_CLIENT, BOOT_VERSION, 0));
        wait_for(server.boot, POLLIN);
        while (step(&server) != BOOT_OFFERING)
            wait_for(server.boot, POLLIN);
        cr_assert_eq(read_up_to(raw, ours, HELLO_BYTES), HELLO_BYTES);
        uint64_t values[2];
        for (unsigned i = 0; i < 2; i++)
            values[i] = proof_of(&KEYS[i], 1, theirs, ours, NULL);
        size_t length = proofs(want, values, 2);
        cr_assert_eq(read_up_to(raw, bytes, length), length);
        cr_assert_arr_eq(bytes, want, length);
        cr_assert_not(tells_a_token(bytes, length));

        struct boot_offer known = {.conn_id = 5, .home = 1, .known = true};
        connection_section(bytes, &known);
        known.proof = proof_of(&KEYS[claim == OTHER_KEY ? 2 : 1], 2, theirs, ours, bytes + 4);
        if (claim == SERVERS_PROOF_BACK)
            known.proof = values[1];
        known.conn_id += claim == OTHER_CONNECTION;
        send_all(raw, bytes, offer(bytes, FROM_CLIENT, &known));
        if (claim == HONEST) {
            send_all(raw, bytes, ready(bytes, FROM_CLIENT));
            cr_assert_eq(run_one(&server), BOOT_DONE, "%s", logged.text);
            struct boot_offer reply = {.conn_id = server.offer.conn_id, .home = server.offer.home, .known = true};
            connection_section(bytes, &reply);
            reply.proof = proof_of(&KEYS[1], 3, theirs, ours, bytes + 4);
            length = offer(want, FROM_SERVER, &reply);
        } else {
            cr_assert_eq(run_one(&server), BOOT_FAILED);
            cr_assert_eq(bootstrap_status(server.boot), UCCL_EAGAIN);
            length = rejection(want, FROM_SERVER, 1);
        }
        bootstrap_free(server.boot);
        cr_assert_eq(read_up_to(raw, bytes, sizeof bytes), length, "claim %u", claim);
        cr_assert_arr_eq(bytes, want, length);
        close(raw);
    }
}

/* No two handshakes have one nonce: what was said in one proves nothing in the next. */
Test(bootstrap, nonces_differ)
{
    uint8_t seen[2][HELLO_BYTES];
    for (int i = 0; i < 2; i++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        step(&client);
        cr_assert_eq(read_up_to(raw, seen[i], HELLO_BYTES), HELLO_BYTES);
        bootstrap_free(client.boot);
        close(raw);
    }
    cr_assert_arr_neq(seen[0] + 26, seen[1] + 26, 16);
}

/* The server has lost the peer that the client claims: the client hears it as "again", once; not without a claim. */
Test(bootstrap, lost_claim_is_told)
{
    union nic_address address = loopback(AF_INET);
    struct side client, server;
    make_pair(&address, &client, &server);
    client.keys = server.keys = KEYS;
    client.key_count = server.key_count = 1;
    server.reject = UCCL_EAGAIN;
    run_both(&client, &server);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EAGAIN);
    expect_log(UCCL_LOG_INFO, "begins again", "lost claim");
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

Test(bootstrap, malformed_proofs)
{
    static const size_t BODIES[] = {7, 12, 33 * 8};
    for (unsigned i = 0; i < 4; i++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX], body[34 * 8] = {0};
        size_t length = hello(bytes, FROM_SERVER, BOOT_VERSION, 0);
        struct boot_offer theirs = make_offer(2, 8);
        length += i < 3 ? message(bytes + length, 5, FROM_SERVER, body, BODIES[i])
                        : offer(bytes + length, FROM_SERVER, &theirs);
        memset(&logged, 0, sizeof logged);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&client), BOOT_FAILED);
        cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO);
        expect_log(UCCL_LOG_WARN, i < 3 ? "bad PROOFS" : "kind 2 came instead of kind 5", "proofs");
        bootstrap_free(client.boot);
        close(raw);
    }
}
