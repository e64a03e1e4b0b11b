/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of an engine in this process, played byte by byte (boot_wire.h, wire.h): both sides of a handshake, and the
 * datagrams that go with it. While such a peer waits, it steps the engine's side.
 */
#ifndef UCCL_TEST_PLAYED_H
#define UCCL_TEST_PLAYED_H

#include "api_pair.h"

#include "../../api/objects.h"
#include "boot/boot_wire.h"
#include "core/crc32c.h"
#include "core/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

/* What runs while a played peer waits: the engine's side of its handshakes. */
struct engine_side {
    uccl_listener *listener; /* NULL: none */
    uccl_conn *accepted[8];
    unsigned accepted_count;
    uccl_engine *client; /* NULL: none */
    struct uccl_handle *handle;
    uccl_conn *connected;
    int result; /* of the connect */
};

static inline void run_once(struct engine_side *side)
{
    if (side->listener && side->accepted_count < 8 &&
        uccl_accept(side->listener, 0, &side->accepted[side->accepted_count]) == 0)
        side->accepted_count++;
    if (side->client && side->result == UCCL_EAGAIN)
        side->result = uccl_connect(side->client, side->handle, 0, &side->connected);
}

/* A played peer's end of a handshake. */
struct played {
    int fd;
    bool server;
    struct boot_transcript transcript;
    struct boot_proofs proofs; /* of the server, whichever it is */
    struct boot_offer theirs;
};

/* Reads a message of `kind`; false: the other side rejects or has closed. */
static inline bool take_message(struct played *played, struct engine_side *side, enum boot_kind kind, uint8_t *bytes,
                                size_t *length)
{
    size_t have = 0, want = BOOT_HEADER_BYTES;
    uint64_t end_ms = now_ms() + SOON_MS;
    while (have < want) {
        run_once(side);
        ssize_t got = recv(played->fd, bytes + have, want - have, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        have += got > 0 ? (size_t)got : 0;
        if (have == BOOT_HEADER_BYTES)
            want = boot_take_header(bytes).length;
        cr_assert(now_ms() < end_ms, "no message of kind %d", kind);
    }
    *length = have;
    return boot_take_header(bytes).kind == kind;
}

static inline void say(const struct played *played, const uint8_t *bytes, size_t length)
{
    cr_assert_eq(send(played->fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

static inline enum boot_sender own_side(const struct played *played)
{
    return played->server ? BOOT_FROM_SERVER : BOOT_FROM_CLIENT;
}

/* What played peers tell beside the features of frames. */
static uint64_t played_features;

static inline void say_hello(struct played *played, const uint8_t id[16])
{
    uint8_t bytes[BOOT_SMALL_MAX];
    struct boot_hello *hello = played->server ? &played->transcript.server : &played->transcript.client;
    *hello = (struct boot_hello){.version = BOOT_VERSION, .nonce = {1}, .features = WIRE_FEATURES | played_features};
    memcpy(hello->engine_id, id, 16);
    say(played, bytes, boot_put_hello(bytes, own_side(played), hello));
}

static inline void take_hello(struct played *played, struct engine_side *side)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    cr_assert(take_message(played, side, BOOT_HELLO_MSG, bytes, &length));
    cr_assert_null(
        boot_decode_hello(bytes, length, played->server ? &played->transcript.client : &played->transcript.server));
}

static inline void say_offer(const struct played *played, const struct boot_offer *offer)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    say(played, bytes, boot_put_offer(bytes, own_side(played), offer));
}

static inline bool take_offer(struct played *played, struct engine_side *side)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    if (!take_message(played, side, BOOT_OFFER_MSG, bytes, &length))
        return false;
    cr_assert_null(boot_decode_offer(bytes, length, &played->theirs));
    return true;
}

static inline void say_ready(const struct played *played)
{
    uint8_t bytes[BOOT_SMALL_MAX];
    say(played, bytes, boot_put_ready(bytes, own_side(played)));
}

/* What a peer with `flows` engine threads says; nothing listens at its UDP ports. */
static inline struct boot_offer some_offer(uint16_t flows, uint64_t token)
{
    struct boot_offer offer = {
        .conn_id = 7, .flow_count = flows, .chunk_window = 1024, .msg_window = 1024, .eager_window_kb = 256};
    for (unsigned i = 0; i < flows; i++)
        offer.flows[i] = (struct boot_flow){
            .token = token + i, .address = {3, {1, 0, 9}}, .datagram_bytes = 1472, .rx_bytes = 1 << 20};
    return offer;
}

static inline struct sockaddr_in loopback(uint16_t port, unsigned host)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK + host - 1)};
}

/* A TCP connection from 127.0.0.`host` to a listener of 127.0.0.1. */
static inline int knock(uccl_listener *listener, unsigned host)
{
    struct sockaddr_in from = loopback(0, host), to = loopback(uccl_listener_port(listener), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    /* the port is chosen by connect(), which may take one that connections to other listeners have */
    cr_assert_eq(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one), 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0, "%s", strerror(errno));
    return fd;
}

/* As a client with this engine id, up to the server's proofs. */
static inline struct played play_client(struct engine_side *side, const uint8_t id[16])
{
    struct played played = {.fd = knock(side->listener, 1)};
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    say_hello(&played, id);
    take_hello(&played, side);
    cr_assert(take_message(&played, side, BOOT_PROOFS_MSG, bytes, &length));
    cr_assert_null(boot_decode_proofs(bytes, length, &played.proofs));
    return played;
}

/* A listening socket, and a handle to it. */
static inline int play_listener(struct uccl_handle *handle)
{
    struct sockaddr_in address = loopback(0, 1);
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 8) == 0);
    getsockname(fd, (struct sockaddr *)&address, &length);
    IS(uccl_handle_from_address("127.0.0.1", ntohs(address.sin_port), handle), 0);
    return fd;
}

/* As a server with this engine id, up to the client's offer. */
static inline struct played play_server(int listener, struct engine_side *side, const uint8_t id[16],
                                        const struct boot_proofs *proofs)
{
    struct played played = {.server = true};
    uint8_t bytes[BOOT_SMALL_MAX];
    struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
    while (poll(&poll_fd, 1, 0) == 0)
        run_once(side);
    played.fd = accept(listener, NULL, NULL);
    take_hello(&played, side);
    say_hello(&played, id);
    say(&played, bytes, boot_put_proofs(bytes, proofs));
    cr_assert(take_offer(&played, side));
    return played;
}

/* A datagram to whoever has told this flow, whose frames stand in it behind room for the header. */
static inline void say_datagram(const struct boot_flow *flow, bool sequenced, uint8_t *datagram, unsigned header_length,
                                unsigned length)
{
    struct tx_desc desc = {
        .kind = TX_FRAMES, .count = 1, .sequenced = sequenced, .path_seq = sequenced, .token = flow->token};
    struct sockaddr_in to = loopback((uint16_t)(flow->address.bytes[1] << 8 | flow->address.bytes[2]), 1);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    wire_set_header_length(datagram, header_length);
    wire_seal(&desc, 0, datagram, length, crc32c_portable);
    cr_assert_eq(sendto(fd, datagram, length, 0, (struct sockaddr *)&to, sizeof to), (ssize_t)length);
    close(fd);
}

/* A UDP socket for the flow that the offer is about. */
static inline int play_queue(struct boot_offer *offer)
{
    struct sockaddr_in address = loopback(0, 1);
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    getsockname(fd, (struct sockaddr *)&address, &length);
    memcpy(offer->flows[0].address.bytes + 1, &address.sin_port, 2);
    return fd;
}

/* The number that the next probe wants to have echoed. */
static inline uint64_t take_probe(int udp, struct engine_side *side)
{
    uint8_t datagram[2048];
    struct wire_packet packet;
    const struct wire_frame *frame;
    uint64_t end_ms = now_ms() + SOON_MS;
    for (;;) {
        ssize_t got = recv(udp, datagram, sizeof datagram, MSG_DONTWAIT);
        if (got > 0 && wire_parse(datagram, (size_t)got, crc32c_portable, &packet)) {
            frame = wire_next_frame(&packet);
            cr_assert(frame && frame->kind == FRAME_PROBE && !frame->probe.echo, "nothing else goes there yet");
            return frame->probe.nonce;
        }
        run_once(side);
        cr_assert(now_ms() < end_ms, "no probe");
    }
}

static inline void say_echo(const struct boot_flow *flow, uint64_t nonce)
{
    uint8_t datagram[WIRE_HEADER_BYTES + WIRE_PROBE_BYTES];
    wire_put_probe(datagram + WIRE_HEADER_BYTES, &(struct wire_probe){.echo = true, .nonce = nonce});
    say_datagram(flow, false, datagram, sizeof datagram, sizeof datagram);
}

static inline unsigned peers_of(const uccl_engine *engine)
{
    unsigned count = 0;
    for (const struct peer *peer = engine->peers.peers; peer; peer = peer->next)
        count++;
    return count;
}

#endif
