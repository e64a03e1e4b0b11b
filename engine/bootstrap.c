/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes that have never met agree on a connection over one TCP socket. The other end may be
 * anything: our peer, a newer release of it, a port scanner, a process that dies half way or never
 * says a word. Whatever it does, the handshake ends, in time, with one precise error and one line in
 * the log.
 *
 * Invariants:
 *   - rx never holds more than the message that is being read: the bytes behind it stay in the socket.
 *   - tx holds everything that this side says in a whole handshake, so queueing cannot fail.
 *   - A state that waits for the peer is left by a message, an error or the deadline, by nothing else.
 *
 * Threads: one at a time per object. The format, byte by byte: docs/bootstrap.md.
 */
#include "bootstrap.h"

#include "fault.h"
#include "log.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum message_kind { KIND_NONE, KIND_HELLO, KIND_OFFER, KIND_READY, KIND_REJECT };

/* Who sent a message: an echo service, or a socket that got connected to itself, is found out by it. */
enum message_sender { FROM_CLIENT = 1, FROM_SERVER = 2 };

enum {
    MAGIC_BYTES = 4,
    HEADER_BYTES = 8,
    HELLO_BYTES = HEADER_BYTES + 18,
    OFFER_FIXED_BYTES = HEADER_BYTES + 20,
    FLOW_FIXED_BYTES = 21,
    FLOW_BYTES_MAX = FLOW_FIXED_BYTES + NIC_QUEUE_ADDRESS_MAX,
    OFFER_BYTES_MAX = OFFER_FIXED_BYTES + BOOT_FLOWS_MAX * FLOW_BYTES_MAX,
    READY_BYTES = HEADER_BYTES,
    REJECT_BYTES = HEADER_BYTES + 2,
    TX_BYTES_MAX = HELLO_BYTES + OFFER_BYTES_MAX + READY_BYTES + REJECT_BYTES,
    DATAGRAM_BYTES_MAX = 65535,
    ADDRESS_TEXT_BYTES = INET6_ADDRSTRLEN + IF_NAMESIZE + 16,
    WHAT_TEXT_BYTES = 256,
};
_Static_assert((int)OFFER_BYTES_MAX <= (int)BOOT_MESSAGE_MAX, "the largest offer fits a message");

/* The first byte begins no text protocol. */
static const uint8_t MAGIC[MAGIC_BYTES] = {0xB7, 'U', 'C', 'B'};

/* What a peer may offer is what a user may set: the ranges of params.def. */
enum {
#define PARAM_U64(field, name, default_, min, max, unit, doc)                                     \
    MIN_##field = (min), MAX_##field = (max),
#define PARAM_BOOL(field, name, default_, doc)
#define PARAM_ENUM(field, name, default_, choices, doc)
#define PARAM_STR(field, name, default_, doc)
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
};

struct bootstrap {
    int fd;
    bool server;              /* we accepted; else we connected */
    bool magic_seen;          /* the peer is no stranger */
    bool hello_seen;          /* the peer speaks our version: peer_id holds */
    bool peer_left;           /* end of stream, reset or REJECT: telling it anything is pointless */
    enum boot_state state;
    int status;               /* why BOOT_FAILED */
    int connect_errno;        /* connect() failed at once; reported by the first step */
    uint64_t deadline_ns;
    union nic_address peer;
    uint8_t engine_id[16];
    uint8_t peer_id[16];
    uint16_t own_flow_count;  /* of the offer that we made */
    struct boot_offer peer_offer; /* flow_count 0: not here yet */
    size_t tx_begin;          /* first byte not yet sent */
    size_t tx_end;
    size_t rx_have;           /* bytes of the message under way */
    uint8_t tx[TX_BYTES_MAX];
    uint8_t rx[BOOT_MESSAGE_MAX];
};

/* What each state waits for: the message (KIND_NONE: none) and, for the log, what has not happened. */
static const struct awaited {
    enum message_kind kind;
    const char *text;
} AWAITED[] = {
    [BOOT_CONNECTING] = {KIND_NONE, "no answer to the TCP connect"},
    [BOOT_HELLO] = {KIND_HELLO, "no HELLO came"},
    [BOOT_NEED_OFFER] = {KIND_NONE, "this side made no offer"},
    [BOOT_OFFERING] = {KIND_OFFER, "no OFFER came"},
    [BOOT_HAVE_OFFER] = {KIND_NONE, "this side did not answer the offer"},
    [BOOT_FINISHING] = {KIND_READY, "no READY came"},
    [BOOT_DONE] = {KIND_NONE, ""},
    [BOOT_FAILED] = {KIND_NONE, ""},
};

static const struct awaited *awaited(const struct bootstrap *boot)
{
    static const struct awaited leaving = {KIND_NONE, "READY could not be sent"};
    bool client_ends = !boot->server && boot->state == BOOT_FINISHING;
    return client_ends ? &leaving : &AWAITED[boot->state];
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Writes the low `bytes` bytes of `value` at `*at`, little-endian, and moves on. */
static void put(uint8_t **at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

/* Reads `bytes` bytes at `*at`, little-endian, and moves on. The caller knows that they are there. */
static uint64_t take(const uint8_t **at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)*(*at)++ << (8 * i);
    return value;
}

struct header {
    uint8_t kind;     /* enum message_kind */
    uint8_t sender;   /* enum message_sender */
    size_t length;    /* of the whole message */
};

static void put_header(uint8_t **at, const struct header *header)
{
    assert(header->length >= HEADER_BYTES && header->length <= BOOT_MESSAGE_MAX);
    memcpy(*at, MAGIC, MAGIC_BYTES);
    *at += MAGIC_BYTES;
    put(at, header->kind, 1);
    put(at, header->sender, 1);
    put(at, header->length - HEADER_BYTES, 2);
}

/* From HEADER_BYTES bytes whose magic has been checked. */
static struct header take_header(const uint8_t **at)
{
    struct header header;
    *at += MAGIC_BYTES;
    header.kind = (uint8_t)take(at, 1);
    header.sender = (uint8_t)take(at, 1);
    header.length = HEADER_BYTES + (size_t)take(at, 2);
    return header;
}

/* A whole message of `kind` whose length says what `length` is: moves `*at` to its body. */
static bool open_message(const uint8_t **at, size_t length, enum message_kind kind)
{
    if (length < HEADER_BYTES || length > BOOT_MESSAGE_MAX || memcmp(*at, MAGIC, MAGIC_BYTES) != 0)
        return false;
    struct header header = take_header(at);
    return header.kind == kind && header.length == length &&
           (header.sender == FROM_CLIENT || header.sender == FROM_SERVER);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool power_of_two_within(uint32_t value, uint32_t min, uint32_t max)
{
    return value >= min && value <= max && (value & (value - 1)) == 0;
}

/* NULL, or what is wrong with an offer. */
static const char *offer_fault(const struct boot_offer *offer)
{
    if (offer->flow_count < 1 || offer->flow_count > BOOT_FLOWS_MAX)
        return "number of flows out of range";
    if (offer->home >= offer->flow_count)
        return "home is none of its flows";
    if (!power_of_two_within(offer->chunk_window, MIN_chunk_window, MAX_chunk_window))
        return "chunk window out of range or no power of two";
    if (!power_of_two_within(offer->msg_window, MIN_msg_window, MAX_msg_window))
        return "message window out of range or no power of two";
    if (offer->eager_window_kb < MIN_eager_window_kb || offer->eager_window_kb > MAX_eager_window_kb)
        return "eager window out of range";
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        if (flow->token == 0)
            return "a flow without token";
        if (flow->address.length == 0 || flow->address.length > NIC_QUEUE_ADDRESS_MAX)
            return "length of a flow's address out of range";
        if (flow->datagram_bytes < CORE_DATAGRAM_MIN || flow->datagram_bytes > DATAGRAM_BYTES_MAX)
            return "datagram size out of range";
        if (flow->rx_bytes == 0)
            return "a flow without receive buffer";
    }
    return NULL;
}

int bootstrap_decode_hello(const uint8_t *bytes, size_t length, struct boot_hello *out)
{
    const uint8_t *at = bytes;
    if (!open_message(&at, length, KIND_HELLO) || length < HELLO_BYTES)
        return UCCL_EPROTO;
    uint16_t version = (uint16_t)take(&at, 2);
    /* A release yet to come may say more; from our own and older ones that would be garbage. */
    if (length > HELLO_BYTES && version <= BOOT_VERSION)
        return UCCL_EPROTO;
    out->version = version;
    memcpy(out->engine_id, at, sizeof out->engine_id);
    return 0;
}

/* Reads a flow at `*at` and moves on. False: `end` comes first, or the address is too long. */
static bool take_flow(const uint8_t **at, const uint8_t *end, struct boot_flow *flow)
{
    if (end - *at < FLOW_FIXED_BYTES)
        return false;
    flow->token = take(at, 8);
    flow->rx_bytes = take(at, 8);
    flow->datagram_bytes = (uint32_t)take(at, 4);
    flow->address.length = (uint8_t)take(at, 1);
    if (flow->address.length > NIC_QUEUE_ADDRESS_MAX || end - *at < flow->address.length)
        return false;
    memcpy(flow->address.bytes, *at, flow->address.length);
    *at += flow->address.length;
    return true;
}

/* NULL, or what is wrong with the bytes; `out` is written only when they are right. */
static const char *decode_offer(const uint8_t *bytes, size_t length, struct boot_offer *out)
{
    const uint8_t *at = bytes;
    if (!open_message(&at, length, KIND_OFFER) || length < OFFER_FIXED_BYTES)
        return "malformed";

    struct boot_offer offer = {0};
    offer.conn_id = (uint32_t)take(&at, 4);
    offer.home = (uint16_t)take(&at, 2);
    offer.flow_count = (uint16_t)take(&at, 2);
    offer.chunk_window = (uint32_t)take(&at, 4);
    offer.msg_window = (uint32_t)take(&at, 4);
    offer.eager_window_kb = (uint32_t)take(&at, 4);
    /* Checked before the loop below, which trusts it; offer_fault() checks it with the rest. */
    if (offer.flow_count > BOOT_FLOWS_MAX)
        return "number of flows out of range";
    for (unsigned i = 0; i < offer.flow_count; i++) {
        if (!take_flow(&at, bytes + length, &offer.flows[i]))
            return "length and flows disagree";
    }
    if (at != bytes + length)
        return "length and flows disagree";
    const char *fault = offer_fault(&offer);
    if (fault == NULL)
        *out = offer;
    return fault;
}

int bootstrap_decode_offer(const uint8_t *bytes, size_t length, struct boot_offer *out)
{
    return decode_offer(bytes, length, out) == NULL ? 0 : UCCL_EPROTO;
}

/* The text of an error code, NULL for what is none. */
static const char *error_text(int error)
{
    switch (error) {
#define ERROR_TEXT(name, value, text)                                                             \
    case name:                                                                                    \
        return text;
        UCCL_ERROR_ROWS(ERROR_TEXT)
#undef ERROR_TEXT
    default:
        return NULL;
    }
}

/*
 * The error that a REJECT stands for. Success is no reason, and UCCL_EAGAIN means "call again" to who
 * gets it from uccl_connect(): a peer must not be able to keep a caller going round for ever.
 */
static int reject_error(unsigned code)
{
    int error = -(int)code;
    if (error == UCCL_OK || error_text(error) == NULL)
        return UCCL_EPROTO;
    return error == UCCL_EAGAIN ? UCCL_EREFUSED : error;
}

/* Room for a message of `length` bytes at the end of tx, its header written. */
static uint8_t *queue_message(struct bootstrap *boot, enum message_kind kind, size_t length)
{
    assert(boot->tx_end + length <= sizeof boot->tx);
    const struct header header = {(uint8_t)kind, boot->server ? FROM_SERVER : FROM_CLIENT, length};
    uint8_t *at = boot->tx + boot->tx_end;
    boot->tx_end += length;
    put_header(&at, &header);
    return at;
}

static void queue_hello(struct bootstrap *boot)
{
    uint8_t *at = queue_message(boot, KIND_HELLO, HELLO_BYTES);
    put(&at, BOOT_VERSION, 2);
    memcpy(at, boot->engine_id, sizeof boot->engine_id);
}

static void queue_offer(struct bootstrap *boot, const struct boot_offer *offer)
{
    size_t length = OFFER_FIXED_BYTES;
    for (unsigned i = 0; i < offer->flow_count; i++)
        length += FLOW_FIXED_BYTES + (size_t)offer->flows[i].address.length;
    uint8_t *at = queue_message(boot, KIND_OFFER, length);
    put(&at, offer->conn_id, 4);
    put(&at, offer->home, 2);
    put(&at, offer->flow_count, 2);
    put(&at, offer->chunk_window, 4);
    put(&at, offer->msg_window, 4);
    put(&at, offer->eager_window_kb, 4);
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        put(&at, flow->token, 8);
        put(&at, flow->rx_bytes, 8);
        put(&at, flow->datagram_bytes, 4);
        put(&at, flow->address.length, 1);
        memcpy(at, flow->address.bytes, flow->address.length);
        at += flow->address.length;
    }
    assert(at == boot->tx + boot->tx_end);
}

/* ---- failing --------------------------------------------------------------------------------- */

static void address_text(const union nic_address *address, char *out, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "";
    char name[IF_NAMESIZE];
    if (address->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
        snprintf(out, size, "%s:%u", host, ntohs(address->v4.sin_port));
    } else if (address->any.sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = &address->v6;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        if (v6->sin6_scope_id == 0)
            snprintf(out, size, "[%s]:%u", host, ntohs(v6->sin6_port));
        else if (if_indextoname(v6->sin6_scope_id, name) != NULL)
            snprintf(out, size, "[%s%%%s]:%u", host, name, ntohs(v6->sin6_port));
        else
            snprintf(out, size, "[%s%%%u]:%u", host, v6->sin6_scope_id, ntohs(v6->sin6_port));
    } else {
        snprintf(out, size, "an unknown address (family %d)", address->any.sa_family);
    }
}

/* Sends what is queued as far as the socket takes it. 0, or the errno that ended it. */
static int flush(struct bootstrap *boot)
{
    while (boot->tx_begin < boot->tx_end) {
        ssize_t sent = send(boot->fd, boot->tx + boot->tx_begin, boot->tx_end - boot->tx_begin,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            boot->tx_begin += (size_t)sent;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

/*
 * The last words before the socket is closed, best effort. What lies unread in the socket would turn
 * the close into a reset, which may overtake them: it is taken out first.
 */
static void flush_last(struct bootstrap *boot)
{
    (void)flush(boot);
    (void)recv(boot->fd, boot->rx, sizeof boot->rx, MSG_DONTWAIT);
}

static void say_reject(struct bootstrap *boot, int error)
{
    uint8_t *at = queue_message(boot, KIND_REJECT, REJECT_BYTES);
    put(&at, (uint64_t)-(int64_t)error, 2);
    flush_last(boot);
}

/*
 * Ends the handshake: logs what happened, and lets a peer that understands us know. Strangers knock
 * on every open port; they are no reason to warn.
 */
__attribute__((format(printf, 3, 4)))
static void fail(struct bootstrap *boot, int error, const char *format, ...)
{
    assert(boot->state != BOOT_DONE && boot->state != BOOT_FAILED && error < 0);
    char peer[ADDRESS_TEXT_BYTES];
    char what[WHAT_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    address_text(&boot->peer, peer, sizeof peer);
    if (boot->server && !boot->magic_seen)
        LOG_INFORM("dropped a stranger at the listener, %s: %s", peer, what);
    else
        LOG_WARNING("handshake with %s failed: %s", peer, what);

    boot->status = error;
    if (boot->hello_seen && !boot->peer_left)
        say_reject(boot, error);
    boot->state = BOOT_FAILED;
}

static int errno_error(int system_error)
{
    switch (system_error) {
    case ECONNREFUSED:
        return UCCL_EREFUSED;
    case ETIMEDOUT:
        return UCCL_ETIMEDOUT;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ENONET:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EINVAL:   /* IPv6 link-local without a scope */
    case ENODEV:   /* a scope that is no interface */
    case ENXIO:
    case EACCES:   /* broadcast, prohibit route */
    case EPERM:    /* a firewall of this host */
        return UCCL_EADDR;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
        return UCCL_EPROTO;
    default:
        return fault_error(system_error);
    }
}

/* A system call on the socket ended with `system_error`. */
static void fail_errno(struct bootstrap *boot, const char *doing, int system_error)
{
    char text[128];
    int error = errno_error(system_error);
    const char *hint = "";
    if (error == UCCL_EPROTO) {
        boot->peer_left = true;
        /* A listener that closes resets the connections still in its queue: nobody is there. */
        if (!boot->server && !boot->hello_seen)
            error = UCCL_EREFUSED;
    } else if (error == UCCL_EREFUSED) {
        hint = "; nobody listens on that port";
    } else if (error == UCCL_EADDR && boot->peer.any.sa_family == AF_INET6 &&
               IN6_IS_ADDR_LINKLOCAL(&boot->peer.v6.sin6_addr) && boot->peer.v6.sin6_scope_id == 0) {
        hint = "; a link-local address needs its interface (address%interface)";
    }
    fail(boot, error, "%s: %s%s", doing, strerror_r(system_error, text, sizeof text), hint);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Is what has come of a message so far what it should be? Fails at the first byte that is not. */
static bool check_header(struct bootstrap *boot)
{
    const uint8_t *at = boot->rx;
    size_t magic = boot->rx_have < MAGIC_BYTES ? boot->rx_have : MAGIC_BYTES;
    if (memcmp(at, MAGIC, magic) != 0) {
        char hex[3 * MAGIC_BYTES + 1] = "";
        for (size_t i = 0; i < magic; i++)
            snprintf(hex + 3 * i, sizeof hex - 3 * i, " %02x", at[i]);
        fail(boot, UCCL_EPROTO, "it speaks another protocol, its message begins with%s", hex);
        return false;
    }
    if (boot->rx_have < HEADER_BYTES)
        return true;

    boot->magic_seen = true;
    struct header header = take_header(&at);
    enum message_kind expected = awaited(boot)->kind;
    if (header.sender != (boot->server ? FROM_CLIENT : FROM_SERVER))
        fail(boot, UCCL_EPROTO, "a message came from the wrong side (sender %u); is this our echo?",
             header.sender);
    else if (header.kind != KIND_REJECT && header.kind != expected)
        fail(boot, UCCL_EPROTO, "a message of kind %u came instead of kind %d", header.kind, expected);
    else if (header.length > BOOT_MESSAGE_MAX)
        fail(boot, UCCL_EPROTO, "a message of %zu bytes, more than the %d allowed", header.length,
             BOOT_MESSAGE_MAX);
    return boot->state != BOOT_FAILED;
}

/* Reads on in the current message. True once all of it is in rx. */
static bool receive(struct bootstrap *boot)
{
    for (;;) {
        size_t length = HEADER_BYTES;
        if (boot->rx_have >= HEADER_BYTES) {
            const uint8_t *at = boot->rx;
            length = take_header(&at).length;
            if (boot->rx_have == length)
                return true;
        }
        assert(boot->rx_have < length && length <= sizeof boot->rx);
        ssize_t got = recv(boot->fd, boot->rx + boot->rx_have, length - boot->rx_have, MSG_DONTWAIT);
        if (got > 0) {
            bool header_known = boot->rx_have >= HEADER_BYTES;
            boot->rx_have += (size_t)got;
            if (!header_known && !check_header(boot))
                return false;
        } else if (got == 0) {
            boot->peer_left = true;
            fail(boot, UCCL_EPROTO, "the peer closed the connection early (%s)", awaited(boot)->text);
            return false;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno != EINTR) {
            fail_errno(boot, "receive", errno);
            return false;
        }
    }
}

static void handle_reject(struct bootstrap *boot)
{
    const uint8_t *at = boot->rx;
    boot->peer_left = true;
    if (!open_message(&at, boot->rx_have, KIND_REJECT) || boot->rx_have != REJECT_BYTES) {
        fail(boot, UCCL_EPROTO, "malformed REJECT");
        return;
    }
    unsigned code = (unsigned)take(&at, 2);
    int error = reject_error(code);
    fail(boot, error, "the peer rejected it with code %u: %s", code, error_text(error));
}

static void handle_hello(struct bootstrap *boot)
{
    struct boot_hello hello;
    if (bootstrap_decode_hello(boot->rx, boot->rx_have, &hello) != 0) {
        fail(boot, UCCL_EPROTO, "malformed HELLO of %zu bytes", boot->rx_have);
        return;
    }
    if (boot->server)
        queue_hello(boot);
    if (hello.version != BOOT_VERSION) {
        /* Our HELLO tells the client our version: it can then say the same as we do. */
        flush_last(boot);
        fail(boot, UCCL_EPROTO, "the peer speaks version %u of the handshake, this library version %d",
             hello.version, BOOT_VERSION);
        return;
    }
    memcpy(boot->peer_id, hello.engine_id, sizeof boot->peer_id);
    boot->hello_seen = true;
    boot->state = boot->server ? BOOT_OFFERING : BOOT_NEED_OFFER;
}

static void handle_offer(struct bootstrap *boot)
{
    const char *fault = decode_offer(boot->rx, boot->rx_have, &boot->peer_offer);
    /* Both sides use the smaller number of flows, so home must exist on both. */
    if (fault == NULL && !boot->server && boot->peer_offer.home >= boot->own_flow_count)
        fault = "home is none of our flows";
    if (fault != NULL)
        fail(boot, UCCL_EPROTO, "bad OFFER: %s", fault);
    else
        boot->state = BOOT_HAVE_OFFER;
}

/* A whole message is in rx; its kind is one that check_header() let pass. */
static void handle_message(struct bootstrap *boot)
{
    const uint8_t *at = boot->rx;
    struct header header = take_header(&at);
    if (header.kind == KIND_REJECT)
        handle_reject(boot);
    else if (header.kind == KIND_HELLO)
        handle_hello(boot);
    else if (header.kind == KIND_OFFER)
        handle_offer(boot);
    else if (header.length != READY_BYTES)
        fail(boot, UCCL_EPROTO, "malformed READY of %zu bytes", header.length);
    else
        boot->state = BOOT_DONE;
    boot->rx_have = 0;
}

/* ---- stepping -------------------------------------------------------------------------------- */

/* Has the TCP connect ended? */
static void step_connect(struct bootstrap *boot)
{
    int system_error = boot->connect_errno;
    if (system_error == 0) {
        struct pollfd poll_fd = {.fd = boot->fd, .events = POLLOUT};
        if (poll(&poll_fd, 1, 0) <= 0)
            return;
        socklen_t length = sizeof system_error;
        if (getsockopt(boot->fd, SOL_SOCKET, SO_ERROR, &system_error, &length) != 0)
            system_error = errno;
    }
    if (system_error != 0) {
        fail_errno(boot, "connect", system_error);
        return;
    }
    boot->state = BOOT_HELLO;
    queue_hello(boot);
}

/*
 * Sends, then takes one message where one is awaited. A send that fails may mean that the peer
 * rejected us and closed: its REJECT, which says why, is then still in the socket.
 */
static void step_exchange(struct bootstrap *boot)
{
    int send_errno = flush(boot);
    bool awaits = awaited(boot)->kind != KIND_NONE;
    if (awaits || send_errno != 0) {
        if (receive(boot))
            handle_message(boot);
        else if (send_errno != 0 && boot->state != BOOT_FAILED)
            fail_errno(boot, "send", send_errno);
    } else if (boot->tx_begin == boot->tx_end) {
        boot->state = BOOT_DONE; /* the client's READY is on its way */
    }
}

enum boot_state bootstrap_step(struct bootstrap *boot, uint64_t now_ns)
{
    enum boot_state before;
    do { /* states only move forward: a handful of rounds at most */
        before = boot->state;
        if (boot->state == BOOT_CONNECTING)
            step_connect(boot);
        else if (boot->state == BOOT_HELLO || boot->state == BOOT_OFFERING ||
                 boot->state == BOOT_FINISHING)
            step_exchange(boot);
    } while (boot->state != before);

    /* Checked last: what arrived in time counts, also when we come late to look. */
    if (boot->state != BOOT_DONE && boot->state != BOOT_FAILED && now_ns >= boot->deadline_ns)
        fail(boot, UCCL_ETIMEDOUT, "time is up: %s (limit: UCCL_CONNECT_MS)", awaited(boot)->text);
    return boot->state;
}

void bootstrap_offer(struct bootstrap *boot, const struct boot_offer *offer)
{
    assert(boot->state == (boot->server ? BOOT_HAVE_OFFER : BOOT_NEED_OFFER));
    assert(offer_fault(offer) == NULL);
    assert(!boot->server || offer->home < boot->peer_offer.flow_count);
    queue_offer(boot, offer);
    boot->own_flow_count = offer->flow_count;
    boot->state = boot->server ? BOOT_FINISHING : BOOT_OFFERING;
}

void bootstrap_accept_offer(struct bootstrap *boot)
{
    assert(!boot->server && boot->state == BOOT_HAVE_OFFER);
    (void)queue_message(boot, KIND_READY, READY_BYTES);
    boot->state = BOOT_FINISHING;
}

void bootstrap_reject(struct bootstrap *boot, int error)
{
    assert(boot->state != BOOT_DONE && error < 0 && error_text(error) != NULL);
    if (boot->state == BOOT_FAILED)
        return;
    if (boot->state != BOOT_CONNECTING && !boot->peer_left)
        say_reject(boot, error);
    boot->status = error;
    boot->state = BOOT_FAILED; /* not logged: the caller knows what it did not like */
}

/* ---- making ---------------------------------------------------------------------------------- */

static struct bootstrap *make(int fd, bool server, const uint8_t engine_id[16], uint64_t deadline_ns)
{
    struct bootstrap *boot = calloc(1, sizeof *boot);
    if (boot == NULL)
        return NULL;
    boot->fd = fd;
    boot->server = server;
    boot->state = server ? BOOT_HELLO : BOOT_CONNECTING;
    boot->deadline_ns = deadline_ns;
    memcpy(boot->engine_id, engine_id, sizeof boot->engine_id);
    /* A hint: without it the handshake is slower, not wrong. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return boot;
}

int bootstrap_connect(const union nic_address *address, const uint8_t engine_id[16],
                      uint64_t deadline_ns, struct bootstrap **out)
{
    bool v6 = address->any.sa_family == AF_INET6;
    in_port_t port = v6 ? address->v6.sin6_port : address->v4.sin_port;
    char text[ADDRESS_TEXT_BYTES];
    char why[FAULT_TEXT];
    address_text(address, text, sizeof text);
    if ((!v6 && address->any.sa_family != AF_INET) || port == 0) {
        LOG_WARNING("cannot connect to %s: no IPv4 or IPv6 address with a port", text);
        return UCCL_EADDR;
    }

    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        int error = errno_error(errno);
        LOG_WARNING("cannot connect to %s: socket: %s", text, fault_text(errno, why));
        return error;
    }
    struct bootstrap *boot = make(fd, false, engine_id, deadline_ns);
    if (boot == NULL) {
        LOG_WARNING("cannot connect to %s: out of memory", text);
        close(fd);
        return UCCL_ENOMEM;
    }
    boot->peer = *address;
    socklen_t length = v6 ? sizeof address->v6 : sizeof address->v4;
    if (connect(fd, &address->any, length) != 0 && errno != EINPROGRESS && errno != EINTR) {
        int error = errno_error(errno);
        /* Over loopback a refusal is known at once; step() reports it as it does later ones. */
        if (error == UCCL_EREFUSED || error == UCCL_ETIMEDOUT || error == UCCL_EPROTO) {
            boot->connect_errno = errno;
        } else {
            fail_errno(boot, "connect", errno);
            bootstrap_free(boot);
            return error;
        }
    }
    *out = boot;
    return 0;
}

/* An IPv4 peer shows as ::ffff:a.b.c.d at a listener for both families; its IPv4 form serves all uses. */
static void unmap_address(union nic_address *address)
{
    if (address->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr))
        return;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = address->v6.sin6_port};
    memcpy(&v4.sin_addr, &address->v6.sin6_addr.s6_addr[12], sizeof v4.sin_addr);
    memset(address, 0, sizeof *address);
    address->v4 = v4;
}

int bootstrap_serve(int fd, const uint8_t engine_id[16], uint64_t deadline_ns, struct bootstrap **out)
{
    char why[128];
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        LOG_WARNING("cannot serve a connection: fcntl: %s", strerror_r(errno, why, sizeof why));
        close(fd);
        return UCCL_EIO;
    }
    struct bootstrap *boot = make(fd, true, engine_id, deadline_ns);
    if (boot == NULL) {
        LOG_WARNING("cannot serve a connection: out of memory");
        close(fd);
        return UCCL_ENOMEM;
    }
    /* Fails when the peer has reset the connection already; the first step finds that out. */
    socklen_t length = sizeof boot->peer;
    if (getpeername(fd, &boot->peer.any, &length) == 0)
        unmap_address(&boot->peer);
    *out = boot;
    return 0;
}

void bootstrap_free(struct bootstrap *boot)
{
    if (boot == NULL)
        return;
    close(boot->fd);
    free(boot);
}

/* ---- asking ---------------------------------------------------------------------------------- */

int bootstrap_status(const struct bootstrap *boot)
{
    return boot->status;
}

const uint8_t *bootstrap_peer_id(const struct bootstrap *boot)
{
    assert(boot->hello_seen);
    return boot->peer_id;
}

const struct boot_offer *bootstrap_peer_offer(const struct bootstrap *boot)
{
    assert(boot->peer_offer.flow_count != 0);
    return &boot->peer_offer;
}

void bootstrap_peer_address(const struct bootstrap *boot, union nic_address *out)
{
    *out = boot->peer;
}

int bootstrap_fd(const struct bootstrap *boot)
{
    return boot->fd;
}

short bootstrap_events(const struct bootstrap *boot)
{
    if (boot->state == BOOT_CONNECTING)
        return POLLOUT;
    if (boot->state == BOOT_DONE || boot->state == BOOT_FAILED)
        return 0;
    short events = awaited(boot)->kind != KIND_NONE ? POLLIN : 0;
    return boot->tx_begin < boot->tx_end ? (short)(events | POLLOUT) : events;
}

uint64_t bootstrap_deadline(const struct bootstrap *boot)
{
    return boot->deadline_ns;
}
