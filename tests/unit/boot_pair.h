/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake against itself and against everything else that may sit at the other end of a TCP
 * socket. Messages of raw peers are built here byte by byte, as docs/bootstrap.md has them, and not
 * with the code under test: an accidental change of the format fails.
 *
 * One thread plays both sides; it steps a bootstrap only when poll() says so, and counts the steps,
 * so that a state that would spin is seen.
 */
#ifndef TEST_BOOT_PAIR_H
#define TEST_BOOT_PAIR_H

#include "base/log.h"
#include "base/siphash.h"
#include "boot/bootstrap.h"
#include "logged.h"
#include "nic/pair.h"

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
    QUEUES_AT = 8 + 10,      /* in an offer: behind the connection section of type, length, six bytes */
    QUEUES_FIXED_BYTES = 18, /* with type and length */
    FLOW_COUNT_AT = QUEUES_AT + 16,
    FLOW_FIXED_BYTES = 21, /* its address comes behind */
    PLENTY_MS = 20000,     /* a deadline that only a hang meets */
    STEPS_MAX = 64,        /* more steps than any handshake needs when poll() says when */
};

static const uint8_t CLIENT_ID[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t SERVER_ID[16] = {0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7,
                                      0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};

static const uint8_t NONCE[16] = {0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57,
                                  0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f};
static const uint64_t LISTENER = UINT64_C(0x8070605040302010);
static const uint64_t FEATURES = WIRE_FEATURES | UINT64_C(1) << 63; /* one that is not ours */

static inline void boot_set_up(void)
{
    log_set_level(UCCL_LOG_INFO);
    uccl_set_log(take_log, NULL);
    signal(SIGPIPE, SIG_DFL); /* a library must not rely on its user to ignore it */
}

static inline void expect_log(enum uccl_log_level level, const char *part, const char *what)
{
    cr_assert_eq(logged.lines, 1, "%s: %u lines, last: %s", what, logged.lines, logged.text);
    cr_assert_eq(logged.level, level, "%s: level %d: %s", what, logged.level, logged.text);
    cr_assert_not_null(strstr(logged.text, part), "%s: '%s' is not in: %s", what, part, logged.text);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t in_ms(unsigned ms)
{
    return now_ns() + ms * 1000000ull;
}

static inline union nic_address loopback(int family)
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

static inline bool have_ipv6(void)
{
    union nic_address address = loopback(AF_INET6);
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool have = fd >= 0 && bind(fd, &address.any, sizeof address.v6) == 0;
    close(fd);
    return have;
}

static inline int listen_at(union nic_address *address, int backlog)
{
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, &address->any, nic_address_length(address)), 0, "bind: %s", strerror(errno));
    cr_assert_eq(listen(fd, backlog), 0);
    socklen_t length = sizeof *address;
    cr_assert_eq(getsockname(fd, &address->any, &length), 0);
    return fd;
}

static inline int accept_soon(int listener)
{
    struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
    cr_assert_eq(poll(&poll_fd, 1, 5000), 1);
    int fd = accept(listener, NULL, NULL);
    cr_assert_geq(fd, 0);
    return fd;
}

static inline void send_all(int fd, const void *bytes, size_t length)
{
    cr_assert_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length, "send: %s", strerror(errno));
}

static inline void reset(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(fd);
}

/* Takes what comes until the other side closes, or `length` bytes are here. */
static inline size_t read_up_to(int fd, uint8_t *out, size_t length)
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

static inline uint8_t *le(uint8_t *at, uint64_t value, int bytes)
{
    while (bytes-- > 0) {
        *at++ = (uint8_t)value;
        value >>= 8;
    }
    return at;
}

static inline size_t message(uint8_t *out, int kind, int sender, const uint8_t *body, size_t length)
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
static inline size_t hello(uint8_t *out, int sender, unsigned version, size_t trailing)
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
static inline size_t own_hello(uint8_t *out, int sender, const uint8_t *got)
{
    static const uint8_t zeros[16];
    size_t length = hello(out, sender, BOOT_VERSION, 0);
    cr_assert_arr_neq(got + 26, zeros, 16);
    memcpy(out + 26, got + 26, 16);
    le(out + 42, WIRE_FEATURES_ALL, 8);
    return length;
}

static inline size_t proofs(uint8_t *out, const uint64_t *values, unsigned count)
{
    uint8_t body[BOOT_MESSAGE_MAX];
    uint8_t *at = body;
    for (unsigned i = 0; i < count; i++)
        at = le(at, values[i], 8);
    return message(out, 5, FROM_SERVER, body, (size_t)(at - body));
}

/* All that the other side says before its offer. */
static inline size_t greeting(uint8_t *out, int sender)
{
    size_t length = hello(out, sender, BOOT_VERSION, 0);
    return sender == FROM_SERVER ? length + proofs(out + length, NULL, 0) : length;
}

static inline uint8_t *section(uint8_t *at, unsigned type, size_t length)
{
    return le(le(at, type, 2), length, 2);
}

static inline uint8_t *connection_section(uint8_t *at, const struct boot_offer *value)
{
    return le(le(section(at, 1, 6), value->conn_id, 4), value->home, 2);
}

static inline uint8_t *queues_section(uint8_t *at, const struct boot_offer *value)
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

static inline uint8_t *known_section(uint8_t *at, uint64_t proof)
{
    return le(section(at, 3, 8), proof, 8);
}

static inline uint8_t *nics_section(uint8_t *at, const struct boot_offer *value)
{
    uint8_t *head = at;
    at = le(le(at + 4, value->nic_count, 1), 0, 1);
    for (unsigned i = 0; i < value->nic_count && i < NIC_ENDS_MAX; i++) {
        const struct nic_end *nic = &value->nics[i];
        bool v6 = nic->address.any.sa_family == AF_INET6;
        at = le(le(at, v6 ? 16 : 4, 1), nic->prefix_bits, 1);
        at = le(le(at, nic->speed_mbps, 4), nic->mtu, 4);
        if (v6)
            memcpy(at, &nic->address.v6.sin6_addr, 16);
        else
            memcpy(at, &nic->address.v4.sin_addr, 4);
        at += v6 ? 16 : 4;
    }
    section(head, 0x8004, (size_t)(at - head) - 4);
    return at;
}

/* As many bytes as the struct can hold, whatever length it claims. */
static inline uint8_t *private_section(uint8_t *at, const struct boot_offer *value)
{
    at = section(at, 0x8005, value->private_bytes);
    memcpy(at, value->private_data, value->private_bytes % (BOOT_PRIVATE_MAX + 1));
    return at + value->private_bytes;
}

/* Likewise. */
static inline uint8_t *beside_section(uint8_t *at, const struct boot_offer *value)
{
    uint8_t *head = at;
    at += 4;
    for (unsigned i = 0; i < value->flow_count && i < BOOT_FLOWS_MAX; i++) {
        const struct nic_queue_address *address = &value->flows[i].beside;
        at = le(at, address->length, 1);
        memcpy(at, address->bytes, address->length % (NIC_QUEUE_ADDRESS_MAX + 1));
        at += address->length % (NIC_QUEUE_ADDRESS_MAX + 1);
    }
    section(head, 0x8007, (size_t)(at - head) - 4);
    return at;
}

static inline size_t offer(uint8_t *out, int sender, const struct boot_offer *value)
{
    uint8_t body[BOOT_MESSAGE_MAX];
    uint8_t *at = connection_section(body, value);
    at = value->known ? known_section(at, value->proof) : queues_section(at, value);
    if (value->nic_count)
        at = nics_section(at, value);
    if (value->private_bytes)
        at = private_section(at, value);
    if (value->flows[0].beside.length)
        at = beside_section(at, value);
    return message(out, 2, sender, body, (size_t)(at - body));
}

/* All that a side says before READY. */
static inline size_t introduction(uint8_t *out, int sender, const struct boot_offer *value)
{
    size_t length = greeting(out, sender);
    return length + offer(out + length, sender, value);
}

static inline size_t ready(uint8_t *out, int sender)
{
    return message(out, 3, sender, NULL, 0);
}

static inline size_t rejection(uint8_t *out, int sender, unsigned code)
{
    uint8_t body[2];
    le(body, code, 2);
    return message(out, 4, sender, body, sizeof body);
}

/* An offer of `flows` flows in which no two fields are equal. */
static inline struct boot_offer make_offer(uint16_t flows, uint64_t salt)
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

static inline void expect_offer(const struct boot_offer *got, const struct boot_offer *want)
{
    cr_assert_eq(got->conn_id, want->conn_id);
    cr_assert_eq(got->home, want->home);
    cr_assert_eq(got->known, want->known);
    cr_assert_eq(got->flow_count, want->flow_count);
    cr_assert_eq(got->chunk_window, want->chunk_window);
    cr_assert_eq(got->msg_window, want->msg_window);
    cr_assert_eq(got->eager_window_kb, want->eager_window_kb);
    cr_assert_eq(got->nic_count, want->nic_count);
    for (unsigned i = 0; i < want->nic_count; i++) {
        cr_assert(nic_same_host(&got->nics[i].address, &want->nics[i].address));
        cr_assert_eq(got->nics[i].prefix_bits, want->nics[i].prefix_bits);
        cr_assert_eq(got->nics[i].speed_mbps, want->nics[i].speed_mbps);
        cr_assert_eq(got->nics[i].mtu, want->nics[i].mtu);
    }
    cr_assert_eq(got->private_bytes, want->private_bytes);
    cr_assert_arr_eq(got->private_data, want->private_data, want->private_bytes);
    for (unsigned i = 0; i < want->flow_count; i++) {
        cr_assert_eq(got->flows[i].token, want->flows[i].token);
        cr_assert_eq(got->flows[i].address.length, want->flows[i].address.length);
        cr_assert_arr_eq(got->flows[i].address.bytes, want->flows[i].address.bytes, want->flows[i].address.length);
        cr_assert_eq(got->flows[i].beside.length, want->flows[i].beside.length);
        cr_assert_arr_eq(got->flows[i].beside.bytes, want->flows[i].beside.bytes, want->flows[i].beside.length);
        cr_assert_eq(got->flows[i].datagram_bytes, want->flows[i].datagram_bytes);
        cr_assert_eq(got->flows[i].rx_bytes, want->flows[i].rx_bytes);
    }
}

/* ---- stepping -------------------------------------------------------------------------------- */

/* Loopback delivers at once, but not always before the next line runs. 0: an error or hang-up. */
static inline void wait_for(const struct bootstrap *boot, short events)
{
    struct pollfd poll_fd = {.fd = bootstrap_fd(boot), .events = events};
    cr_assert_eq(poll(&poll_fd, 1, 5000), 1);
}

/* One side of a handshake: a bootstrap and what its user would do. */
struct side {
    struct bootstrap *boot;
    struct boot_offer offer; /* ours */
    bool server;
    int reject;                  /* not 0: answer the peer's offer with this */
    const struct boot_key *keys; /* server: of the peers that it knows; client: of the peer that it claims if it can */
    unsigned key_count;
    unsigned steps;
};

static inline bool ended(const struct side *side, enum boot_state state)
{
    (void)side;
    return state == BOOT_DONE || state == BOOT_FAILED;
}

/* The key of this side that the other has proved to have, or NULL. */
static inline const struct boot_key *proved(const struct side *side)
{
    for (unsigned i = 0; i < side->key_count; i++) {
        if (bootstrap_proves(side->boot, &side->keys[i]))
            return &side->keys[i];
    }
    return NULL;
}

static inline void make_own_offer(struct side *side)
{
    const struct boot_key *key = proved(side);
    struct boot_offer known = {.conn_id = side->offer.conn_id, .home = side->offer.home, .known = true};
    bootstrap_offer(side->boot, key ? &known : &side->offer, key);
}

static inline void answer_offer(struct side *side)
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
static inline enum boot_state step(struct side *side)
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
static inline enum boot_state run_one(struct side *side)
{
    enum boot_state state = step(side);
    while (!ended(side, state)) {
        cr_assert_leq(side->steps, STEPS_MAX, "spins in state %d", state);
        struct pollfd poll_fd = {.fd = bootstrap_fd(side->boot), .events = bootstrap_events(side->boot)};
        uint64_t now = now_ns();
        uint64_t deadline = bootstrap_deadline(side->boot);
        /* rounded up: waking early would only mean one more step */
        poll(&poll_fd, 1, deadline > now ? (int)((deadline - now) / 1000000 + 1) : 0);
        state = step(side);
    }
    return state;
}

static inline void run_both(struct side *client, struct side *server)
{
    struct side *sides[2] = {client, server};
    enum boot_state states[2];
    states[0] = step(client);
    states[1] = step(server);
    while (!ended(client, states[0]) || !ended(server, states[1])) {
        cr_assert_leq(client->steps + server->steps, STEPS_MAX, "spins in states %d, %d", states[0], states[1]);
        struct pollfd poll_fds[2];
        for (int i = 0; i < 2; i++)
            poll_fds[i] = (struct pollfd){.fd = ended(sides[i], states[i]) ? -1 : bootstrap_fd(sides[i]->boot),
                                          .events = bootstrap_events(sides[i]->boot)};
        cr_assert_gt(poll(poll_fds, 2, 5000), 0, "hangs in states %d, %d", states[0], states[1]);
        for (int i = 0; i < 2; i++)
            if (poll_fds[i].revents != 0)
                states[i] = step(sides[i]);
    }
}

/* A client and a server connected through `address`. */
static inline void make_pair(union nic_address *address, struct side *client, struct side *server)
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
static inline struct side face_raw(bool server, unsigned limit_ms, int *raw)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 8);
    struct side side = {.offer = make_offer(2, 5), .server = server};
    if (server) {
        *raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(*raw, &address.any, nic_address_length(&address)), 0);
        cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(limit_ms), &side.boot), 0);
    } else {
        cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(limit_ms), NULL, &side.boot), 0);
        *raw = accept_soon(listener);
    }
    close(listener);
    return side;
}

#endif
