/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes that have never met agree on a connection over one TCP socket. The other end may be
 * anything: our peer, a newer release of it, a port scanner, a process that dies half way or never
 * says a word. Whatever it does, the handshake ends in time, with one precise error and one line in
 * the log.
 *
 * Invariant: only a message, an error or the deadline ends a state that waits for the peer. boot_io.h has the socket,
 * the bytes to be sent and the message being read.
 *
 * Threads: one at a time per object. The format, byte by byte: docs/bootstrap.md.
 */
#include "boot/bootstrap.h"

#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "boot/boot_io.h"
#include "nic/netdev.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { WHAT_TEXT_BYTES = 320 };

/* The message that a state waits for (BOOT_NONE: none) and, for the log, what has not happened. */
struct awaited {
    enum boot_kind kind;
    const char *text;
};

struct bootstrap {
    struct boot_io io;
    bool server;     /* we accepted; else we connected */
    bool magic_seen; /* the peer is no stranger */
    bool hello_seen; /* the peer sent a HELLO of our version */
    bool peer_left;  /* end of stream, reset or REJECT: the peer reads nothing more */
    bool again;      /* the peer rejected only to begin again, or elsewhere */
    bool claimed;    /* client: our offer says that the flows are known */
    enum boot_state state;
    int status;        /* why BOOT_FAILED */
    int connect_errno; /* connect() failed at once, or who was accepted has left; the first step reports it */
    uint64_t listener; /* client: nonce that the server must show; 0: any */
    char *fault;       /* receives the line about a failure; NULL: the log does */
    uint64_t deadline_ns;
    struct awaited trying; /* client, in TRYING: only a REJECT may come */
    union nic_address peer;
    struct boot_transcript transcript; /* ours at once, the peer's with its HELLO */
    struct boot_proofs proofs;         /* client: the server's */
    struct boot_key key;               /* client: of the flows that it claims */
    uint16_t own_flow_count;           /* client: of our offer; 0: it claims known flows */
    struct boot_offer *peer_offer;     /* NULL: not here yet */
};

static const struct awaited AWAITED[] = {
    [BOOT_CONNECTING] = {BOOT_NONE, "no answer to the TCP connect"},
    [BOOT_HELLO] = {BOOT_HELLO_MSG, "no HELLO came"},
    [BOOT_NEED_PROOFS] = {BOOT_NONE, "this side gave no proofs"},
    [BOOT_PROVING] = {BOOT_PROOFS_MSG, "no PROOFS came"},
    [BOOT_NEED_OFFER] = {BOOT_NONE, "this side made no offer"},
    [BOOT_OFFERING] = {BOOT_OFFER_MSG, "no OFFER came"},
    [BOOT_HAVE_OFFER] = {BOOT_NONE, "this side did not answer the offer"},
    [BOOT_FINISHING] = {BOOT_READY_MSG, "no READY came"},
    [BOOT_DONE] = {BOOT_NONE, ""},
    [BOOT_FAILED] = {BOOT_NONE, ""},
};

static const struct awaited *awaited(const struct bootstrap *boot)
{
    static const struct awaited leaving = {BOOT_NONE, "READY could not be sent"};
    bool client_ends = !boot->server && boot->state == BOOT_FINISHING;
    if (boot->state == BOOT_TRYING)
        return &boot->trying;
    return client_ends ? &leaving : &AWAITED[boot->state];
}

/* ---- messages -------------------------------------------------------------------------------- */

/*
 * The error that a REJECT stands for. Success is no reason, nor are errors of one process, or of one-sided operations.
 * UCCL_EAGAIN from uccl_connect() means "call again": a peer must not make the caller repeat that for ever.
 */
static int reject_error(const struct bootstrap *boot, unsigned code)
{
    int error = -(int)code;
    if (error == UCCL_OK || error <= UCCL_EFORKED || !fault_error_text(error))
        return UCCL_EPROTO;
    bool lost = boot->claimed && boot->state == BOOT_OFFERING; /* the peer that we claim: see bootstrap_status() */
    return error == UCCL_EAGAIN && !lost ? UCCL_EREFUSED : error;
}

static enum boot_sender own_side(const struct bootstrap *boot)
{
    return boot->server ? BOOT_FROM_SERVER : BOOT_FROM_CLIENT;
}

static struct boot_hello *own_hello(struct bootstrap *boot)
{
    return boot->server ? &boot->transcript.server : &boot->transcript.client;
}

static struct boot_hello *peer_hello(struct bootstrap *boot)
{
    return boot->server ? &boot->transcript.client : &boot->transcript.server;
}

static void queue_hello(struct bootstrap *boot)
{
    boot->io.tx_end += boot_put_hello(boot_io_reserve(&boot->io, BOOT_HELLO_BYTES), own_side(boot), own_hello(boot));
}

/* False: there is no memory. */
static bool queue_offer(struct bootstrap *boot, const struct boot_offer *offer)
{
    size_t length = boot_offer_bytes(offer);
    if (!boot_io_grow(&boot->io, length))
        return false;
    boot->io.tx_end += boot_put_offer(boot_io_reserve(&boot->io, length), own_side(boot), offer);
    return true;
}

/* ---- failing --------------------------------------------------------------------------------- */

static void say_reject(struct bootstrap *boot, int error)
{
    /* Take back a READY of which no byte has left: the server would take the connection for established. */
    if (!boot->server && boot->state == BOOT_FINISHING && boot_io_waiting(&boot->io) >= BOOT_READY_BYTES)
        boot->io.tx_end -= BOOT_READY_BYTES;
    boot->io.tx_end += boot_put_reject(boot_io_reserve(&boot->io, BOOT_REJECT_BYTES), own_side(boot), (uint16_t)-error);
    boot_io_flush_last(&boot->io);
}

/* Logs a line, or keeps it for the caller. */
__attribute__((format(printf, 2, 3))) static void tell_fault(char *fault, const char *format, ...)
{
    char text[BOOT_FAULT_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault ? fault : text, BOOT_FAULT_TEXT, format, arguments);
    va_end(arguments);
    if (!fault)
        LOG_WARNING("%s", text);
}

/*
 * Ends the handshake: logs why, and sends REJECT to a peer that understands us. Strangers knock on every open port;
 * they are no reason to warn.
 */
__attribute__((format(printf, 3, 4))) static void boot_fail(struct bootstrap *boot, int error, const char *format, ...)
{
    assert(boot->state != BOOT_DONE && boot->state != BOOT_FAILED && error < 0);
    char peer[NETDEV_ADDRESS_TEXT];
    char what[WHAT_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    netdev_address_text(&boot->peer, peer);
    if (boot->again)
        LOG_INFORM("handshake with %s begins again, or elsewhere: %s", peer, what);
    else if (boot->server && !boot->magic_seen)
        LOG_INFORM("dropped a stranger at the listener, %s: %s", peer, what);
    else
        tell_fault(boot->fault, "handshake with %s failed: %s", peer, what);

    boot->status = error;
    if (boot->hello_seen && !boot->peer_left)
        say_reject(boot, error);
    boot->state = BOOT_FAILED;
}

/* The error of a stream that ends too soon: whoever has sent a HELLO of ours speaks our protocol. */
static int left_error(const struct bootstrap *boot)
{
    return boot->hello_seen ? UCCL_ECLOSED : UCCL_EPROTO;
}

/* A system call on the socket ended with `system_error`. */
static void boot_fail_errno(struct bootstrap *boot, const char *doing, int system_error)
{
    char text[128];
    int error = boot_io_error(system_error);
    const char *hint = "";
    if (error == UCCL_EPROTO) {
        boot->peer_left = true;
        error = left_error(boot);
        /* A listener that closes resets the connections still in its queue: that is a refusal. */
        if (!boot->server && !boot->hello_seen)
            error = UCCL_EREFUSED;
    } else if (error == UCCL_EREFUSED) {
        hint = "; nobody listens on that port";
    } else if (error == UCCL_EADDR && boot->peer.any.sa_family == AF_INET6 &&
               IN6_IS_ADDR_LINKLOCAL(&boot->peer.v6.sin6_addr) && boot->peer.v6.sin6_scope_id == 0) {
        hint = "; a link-local address needs its interface (address%interface)";
    }
    boot_fail(boot, error, "%s: %s%s", doing, strerror_r(system_error, text, sizeof text), hint);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The header of the current message is here: fails if that message may not come now, else makes room for it. */
static bool check_header(struct bootstrap *boot)
{
    boot->magic_seen = true;
    struct boot_header header = boot_take_header(boot->io.rx);
    enum boot_kind expected = awaited(boot)->kind;
    size_t most = header.kind == BOOT_OFFER_MSG ? BOOT_MESSAGE_MAX : BOOT_SMALL_MAX;
    if (header.sender != (boot->server ? BOOT_FROM_CLIENT : BOOT_FROM_SERVER)) {
        boot_fail(boot, UCCL_EPROTO, "a message came from the wrong side (sender %u); is this our echo?",
                  header.sender);
    } else if (header.kind != BOOT_REJECT_MSG && (header.kind != expected || expected == BOOT_NONE)) {
        boot_fail(boot, UCCL_EPROTO, "a message of kind %u came instead of kind %d", header.kind, expected);
    } else if (header.length > most) {
        boot_fail(boot, UCCL_EPROTO, "a message of %zu bytes, more than the %zu allowed", header.length, most);
    } else if (!boot_io_expect(&boot->io, header.length)) {
        boot_fail(boot, UCCL_ENOMEM, "out of memory for a message of %zu bytes", header.length);
    }
    return boot->state != BOOT_FAILED;
}

/* Checks the bytes of a message that are here, and fails at the first wrong one. */
static bool check_begin(struct bootstrap *boot)
{
    if (!boot_is_magic(boot->io.rx, boot->io.rx_have)) {
        char hex[3 * 4 + 1] = "";
        for (size_t i = 0; i < boot->io.rx_have && i < 4; i++)
            snprintf(hex + 3 * i, sizeof hex - 3 * i, " %02x", boot->io.rx[i]);
        boot_fail(boot, UCCL_EPROTO, "it speaks another protocol, its message begins with%s", hex);
        return false;
    }
    return boot->io.rx_have < BOOT_HEADER_BYTES || check_header(boot);
}

/* Reads on in the current message. True once all of it is in rx. */
static bool boot_receive(struct bootstrap *boot)
{
    for (;;) {
        size_t length = BOOT_HEADER_BYTES;
        if (boot->io.rx_have >= BOOT_HEADER_BYTES) {
            length = boot_take_header(boot->io.rx).length;
            if (boot->io.rx_have == length)
                return true;
        }
        bool header_known = boot->io.rx_have >= BOOT_HEADER_BYTES;
        ssize_t got = boot_io_read(&boot->io, length);
        if (got > 0) {
            if (!header_known && !check_begin(boot))
                return false;
        } else if (got == 0) {
            boot->peer_left = true;
            boot_fail(boot, left_error(boot), "the peer closed the connection early (%s)", awaited(boot)->text);
            return false;
        } else if (got == -EAGAIN) {
            return false;
        } else {
            boot_fail_errno(boot, "receive", (int)-got);
            return false;
        }
    }
}

static void handle_reject(struct bootstrap *boot)
{
    uint16_t code;
    boot->peer_left = true;
    if (boot_decode_reject(boot->io.rx, boot->io.rx_have, &code)) {
        boot_fail(boot, UCCL_EPROTO, "malformed REJECT");
        return;
    }
    int error = reject_error(boot, code);
    boot->again = code == -UCCL_EAGAIN;
    const char *why = fault_error_text(error);
    if (!boot->server && code == -UCCL_EREFUSED)
        why = "its listener was closed";
    else if (error == UCCL_EPROTO)
        why = "its log says why (another UCCL_BACKEND or version?)";
    boot_fail(boot, error, "the peer rejected it with code %u: %s", code, why);
}

static void handle_hello(struct bootstrap *boot)
{
    struct boot_hello hello;
    if (boot_decode_hello(boot->io.rx, boot->io.rx_have, &hello)) {
        boot_fail(boot, UCCL_EPROTO, "malformed HELLO of %zu bytes", boot->io.rx_have);
        return;
    }
    if (boot->server)
        queue_hello(boot);
    if (hello.version != BOOT_VERSION) {
        /* Our HELLO carries our version: the client can log the same reason as we do. */
        boot_io_flush_last(&boot->io);
        boot_fail(boot, UCCL_EPROTO, "the peer speaks version %u of the handshake, this library version %d",
                  hello.version, BOOT_VERSION);
        return;
    }
    if ((hello.features & WIRE_FEATURES) != WIRE_FEATURES) { /* needs all of these; later ones may be optional */
        boot_io_flush_last(&boot->io);
        boot_fail(boot, UCCL_EPROTO, "the peer lacks features %#llx",
                  (unsigned long long)(WIRE_FEATURES & ~hello.features));
        return;
    }
    if (boot->listener && hello.listener != boot->listener) {
        say_reject(boot, UCCL_EAGAIN); /* the other listener did nothing wrong */
        boot_fail(boot, UCCL_EREFUSED,
                  "another listener answers there: on another host with that address, or on the "
                  "port of one that is gone");
        return;
    }
    *peer_hello(boot) = hello;
    boot->hello_seen = true;
    boot->state = boot->server ? BOOT_NEED_PROOFS : BOOT_PROVING;
}

static void handle_proofs(struct bootstrap *boot)
{
    const char *fault = boot_decode_proofs(boot->io.rx, boot->io.rx_have, &boot->proofs);
    if (fault)
        boot_fail(boot, UCCL_EPROTO, "bad PROOFS: %s", fault);
    else
        boot->state = BOOT_NEED_OFFER;
}

/* NULL, or the fault of a server's offer as an answer to ours. */
static const char *answer_fault(const struct bootstrap *boot, const struct boot_offer *offer)
{
    if (offer->known != boot->claimed)
        return "it knows flows that we offered as new, or the other way round";
    if (boot->claimed && boot_proof(&boot->key, BOOT_SERVER_OFFERS, &boot->transcript, offer) != offer->proof)
        return "its proof to know our flows is wrong";
    /* Both sides use the smaller number of flows, so home must exist on both. */
    if (!boot->claimed && offer->home >= boot->own_flow_count)
        return "home is none of our flows";
    return NULL;
}

static void handle_offer(struct bootstrap *boot)
{
    struct boot_offer *offer = malloc(sizeof *offer);
    if (!offer) {
        boot_fail(boot, UCCL_ENOMEM, "out of memory for an OFFER");
        return;
    }
    const char *fault = boot_decode_offer(boot->io.rx, boot->io.rx_have, offer);
    if (!fault && !boot->server)
        fault = answer_fault(boot, offer);
    if (fault) {
        free(offer);
        boot_fail(boot, UCCL_EPROTO, "bad OFFER: %s", fault);
        return;
    }
    boot->peer_offer = offer;
    boot->state = BOOT_HAVE_OFFER;
}

/* A whole message is in rx; check_header() has allowed its kind. */
static void handle_message(struct bootstrap *boot)
{
    struct boot_header header = boot_take_header(boot->io.rx);
    if (header.kind == BOOT_REJECT_MSG)
        handle_reject(boot);
    else if (header.kind == BOOT_HELLO_MSG)
        handle_hello(boot);
    else if (header.kind == BOOT_PROOFS_MSG)
        handle_proofs(boot);
    else if (header.kind == BOOT_OFFER_MSG)
        handle_offer(boot);
    else if (header.length != BOOT_READY_BYTES)
        boot_fail(boot, UCCL_EPROTO, "malformed READY of %zu bytes", header.length);
    else
        boot->state = BOOT_DONE;
    boot_io_drop(&boot->io);
}

/* ---- stepping -------------------------------------------------------------------------------- */

/* Looks whether the TCP connect has ended. */
static void step_connect(struct bootstrap *boot)
{
    int system_error = boot->connect_errno;
    if (system_error == 0 && !boot_io_connected(&boot->io, &system_error))
        return;
    if (system_error != 0) {
        boot_fail_errno(boot, "connect", system_error);
        return;
    }
    boot->state = BOOT_HELLO;
    queue_hello(boot);
}

/*
 * Sends, then takes one message where one is awaited. When sending fails, the peer may have rejected us and closed:
 * its REJECT, which says why, is then still in the socket.
 */
static void step_exchange(struct bootstrap *boot)
{
    /* Read before READY leaves: a server that rejects us late, or has left, will not have the connection. */
    bool unsaid = !boot->server && boot->state == BOOT_FINISHING && boot_io_waiting(&boot->io) == BOOT_READY_BYTES;
    if (unsaid && boot_receive(boot))
        handle_message(boot);
    if (boot->state == BOOT_FAILED)
        return;
    int send_errno = boot_io_flush(&boot->io);
    bool awaits = awaited(boot)->kind != BOOT_NONE;
    if (awaits || send_errno != 0) {
        if (boot_receive(boot))
            handle_message(boot);
        else if (send_errno != 0 && boot->state != BOOT_FAILED)
            boot_fail_errno(boot, "send", send_errno);
    } else if (boot_io_waiting(&boot->io) == 0) {
        boot->state = BOOT_DONE; /* the client's READY is on its way */
    }
}

enum boot_state bootstrap_step(struct bootstrap *boot, uint64_t now_ns)
{
    enum boot_state before;
    do { /* states only move forward: a few rounds at most */
        before = boot->state;
        if (boot->state == BOOT_CONNECTING)
            step_connect(boot);
        else if (boot->state == BOOT_HELLO || boot->state == BOOT_PROVING || boot->state == BOOT_OFFERING ||
                 boot->state == BOOT_TRYING || boot->state == BOOT_FINISHING)
            step_exchange(boot);
    } while (boot->state != before);

    /* Checked last: a message that arrived in time counts, even if we read it late. */
    if (boot->state != BOOT_DONE && boot->state != BOOT_FAILED && now_ns >= boot->deadline_ns)
        boot_fail(boot, UCCL_ETIMEDOUT, "time is up: %s (limit: UCCL_CONNECT_MS%s%s)", awaited(boot)->text,
                  boot->server || boot->hello_seen ? "" : ", or UCCL_ACCEPT_WAIT_MS where that is set",
                  boot->server ? "" : ", unless the call had a time limit");
    return boot->state;
}

void bootstrap_prove(struct bootstrap *boot, const struct boot_key *keys, unsigned count)
{
    assert(boot->server && boot->state == BOOT_NEED_PROOFS && count <= BOOT_PROOFS_MAX);
    struct boot_proofs proofs = {.count = count};
    for (unsigned i = 0; i < count; i++)
        proofs.at[i] = boot_proof(&keys[i], BOOT_SERVER_PROVES, &boot->transcript, NULL);
    boot->io.tx_end += boot_put_proofs(boot_io_reserve(&boot->io, BOOT_PROOFS_BYTES_MAX), &proofs);
    boot->state = BOOT_OFFERING;
}

bool bootstrap_proves(const struct bootstrap *boot, const struct boot_key *key)
{
    if (boot->server) {
        assert(boot->state == BOOT_HAVE_OFFER);
        return boot->peer_offer->known &&
               boot_proof(key, BOOT_CLIENT_CLAIMS, &boot->transcript, boot->peer_offer) == boot->peer_offer->proof;
    }
    uint64_t proof = boot_proof(key, BOOT_SERVER_PROVES, &boot->transcript, NULL);
    for (unsigned i = 0; i < boot->proofs.count; i++) {
        if (boot->proofs.at[i] == proof)
            return true;
    }
    return false;
}

void bootstrap_offer(struct bootstrap *boot, const struct boot_offer *offer, const struct boot_key *key)
{
    assert(boot->state == (boot->server ? BOOT_HAVE_OFFER : BOOT_NEED_OFFER));
    assert(offer->known == !!key && (!boot->server || offer->known == boot->peer_offer->known));
    assert(!boot->server || offer->known || offer->home < boot->peer_offer->flow_count);
    struct boot_offer ours = *offer;
    if (key)
        ours.proof = boot_proof(key, boot->server ? BOOT_SERVER_OFFERS : BOOT_CLIENT_CLAIMS, &boot->transcript, &ours);
    assert(!boot_offer_fault(&ours));
    if (!boot->server) {
        boot->claimed = ours.known;
        boot->own_flow_count = ours.flow_count;
        boot->key = key ? *key : (struct boot_key){0};
    }
    if (queue_offer(boot, &ours))
        boot->state = boot->server ? BOOT_FINISHING : BOOT_OFFERING;
    else
        boot_fail(boot, UCCL_ENOMEM, "out of memory for our OFFER");
}

void bootstrap_try(struct bootstrap *boot, const char *missing)
{
    assert(!boot->server && boot->state == BOOT_HAVE_OFFER);
    boot->trying = (struct awaited){BOOT_REJECT_MSG, missing};
    boot->state = BOOT_TRYING;
}

bool bootstrap_trying(const struct bootstrap *boot)
{
    return boot->state == BOOT_TRYING;
}

void bootstrap_accept_offer(struct bootstrap *boot)
{
    assert(!boot->server && (boot->state == BOOT_HAVE_OFFER || boot->state == BOOT_TRYING));
    boot->io.tx_end += boot_put_ready(boot_io_reserve(&boot->io, BOOT_READY_BYTES), own_side(boot));
    boot->state = BOOT_FINISHING;
}

void bootstrap_reject(struct bootstrap *boot, int error)
{
    assert(boot->state != BOOT_DONE && error < 0 && fault_error_text(error));
    if (boot->state == BOOT_FAILED)
        return;
    if (boot->state != BOOT_CONNECTING && !boot->peer_left)
        say_reject(boot, error);
    boot->status = error;
    boot->state = BOOT_FAILED; /* not logged: the caller knows why */
}

/* ---- making ---------------------------------------------------------------------------------- */

/* 0, UCCL_EIO or UCCL_ENOMEM (logged). Closes the descriptor on failure. */
static int boot_make(int fd, bool server, const uint8_t engine_id[16], uint64_t deadline_ns, char *fault,
                     struct bootstrap **out)
{
    struct bootstrap *boot = calloc(1, sizeof *boot);
    if (!boot) {
        tell_fault(fault, "cannot begin a handshake: out of memory");
        close(fd);
        return UCCL_ENOMEM;
    }
    boot->fault = fault;
    boot_io_init(&boot->io, fd);
    boot->server = server;
    boot->state = server ? BOOT_HELLO : BOOT_CONNECTING;
    boot->deadline_ns = deadline_ns;
    struct boot_hello *hello = own_hello(boot);
    hello->version = BOOT_VERSION;
    hello->features = WIRE_FEATURES_ALL;
    memcpy(hello->engine_id, engine_id, sizeof hello->engine_id);
    if (getrandom(hello->nonce, sizeof hello->nonce, 0) != sizeof hello->nonce) {
        char why[128];
        tell_fault(fault, "cannot begin a handshake: getrandom: %s", strerror_r(errno, why, sizeof why));
        bootstrap_free(boot);
        return UCCL_EIO;
    }
    /* Without this option the handshake is slower, not wrong. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *out = boot;
    return UCCL_OK;
}

int bootstrap_connect(const union nic_address *address, const uint8_t engine_id[16], uint64_t listener,
                      uint64_t deadline_ns, char *fault, struct bootstrap **out)
{
    bool v6 = address->any.sa_family == AF_INET6;
    in_port_t port = v6 ? address->v6.sin6_port : address->v4.sin_port;
    char text[NETDEV_ADDRESS_TEXT];
    char why[FAULT_TEXT];
    netdev_address_text(address, text);
    if ((!v6 && address->any.sa_family != AF_INET) || port == 0) {
        tell_fault(fault, "cannot connect to %s: no IPv4 or IPv6 address with a port", text);
        return UCCL_EADDR;
    }

    int fd = descriptor_keep(socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0) {
        int error = boot_io_error(errno);
        tell_fault(fault, "cannot connect to %s: socket: %s", text, fault_text(errno, why));
        return error;
    }
    struct bootstrap *boot;
    int failed = boot_make(fd, false, engine_id, deadline_ns, fault, &boot);
    if (failed)
        return failed;
    boot->peer = *address;
    boot->listener = listener;
    if (connect(fd, &address->any, nic_address_length(address)) != 0 && errno != EINPROGRESS && errno != EINTR) {
        int error = boot_io_error(errno);
        /* connect() refuses at once over loopback; bootstrap_step() reports that like later refusals. */
        if (error == UCCL_EREFUSED || error == UCCL_ETIMEDOUT || error == UCCL_EPROTO) {
            boot->connect_errno = errno;
        } else {
            boot_fail_errno(boot, "connect", errno);
            bootstrap_free(boot);
            return error;
        }
    }
    *out = boot;
    return 0;
}

int bootstrap_serve(int fd, const uint8_t engine_id[16], uint64_t listener, uint64_t deadline_ns,
                    struct bootstrap **out)
{
    char why[128];
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        LOG_WARNING("cannot serve a connection: fcntl: %s", strerror_r(errno, why, sizeof why));
        close(fd);
        return UCCL_EIO;
    }
    struct bootstrap *boot;
    int failed = boot_make(fd, true, engine_id, deadline_ns, NULL, &boot);
    if (failed)
        return failed;
    own_hello(boot)->listener = listener;
    socklen_t length = sizeof boot->peer;
    if (getpeername(fd, &boot->peer.any, &length) == 0) {
        boot->peer = netdev_unmapped(&boot->peer); /* ::ffff:a.b.c.d is an IPv4 peer at a listener for both families */
    } else { /* the peer has reset the connection: what it has said before can still be read, but nobody is there */
        boot->connect_errno = ECONNRESET;
        boot->state = BOOT_CONNECTING;
    }
    *out = boot;
    return 0;
}

void bootstrap_add_features(struct bootstrap *boot, uint64_t features)
{
    own_hello(boot)->features |= features;
}

void bootstrap_free(struct bootstrap *boot)
{
    if (!boot)
        return;
    boot_io_free(&boot->io);
    free(boot->peer_offer);
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
    return boot->server ? boot->transcript.client.engine_id : boot->transcript.server.engine_id;
}

uint64_t bootstrap_features(const struct bootstrap *boot)
{
    assert(boot->hello_seen);
    return boot->transcript.client.features & boot->transcript.server.features;
}

bool bootstrap_greeted(const struct bootstrap *boot)
{
    return boot->hello_seen;
}

const struct boot_offer *bootstrap_peer_offer(const struct bootstrap *boot)
{
    assert(boot->peer_offer);
    return boot->peer_offer;
}

void bootstrap_peer_address(const struct bootstrap *boot, union nic_address *out)
{
    *out = boot->peer;
}

uint64_t bootstrap_source(const struct bootstrap *boot)
{
    uint64_t source = 0;
    if (boot->peer.any.sa_family == AF_INET6)
        memcpy(&source, &boot->peer.v6.sin6_addr, sizeof source);
    else if (boot->peer.any.sa_family == AF_INET)
        source = boot->peer.v4.sin_addr.s_addr;
    return source;
}

void bootstrap_host(const struct bootstrap *boot, struct nic_host *out)
{
    socklen_t length = sizeof out->local;
    *out = (struct nic_host){.address = boot->peer};
    if (getsockname(boot->io.fd, &out->local.any, &length) != 0)
        out->local.any.sa_family = AF_UNSPEC; /* then the route decides */
    out->local = netdev_unmapped(&out->local);
}

int bootstrap_fd(const struct bootstrap *boot)
{
    return boot->io.fd;
}

short bootstrap_events(const struct bootstrap *boot)
{
    if (boot->state == BOOT_CONNECTING)
        return POLLOUT;
    if (boot->state == BOOT_DONE || boot->state == BOOT_FAILED)
        return 0;
    short events = awaited(boot)->kind != BOOT_NONE ? POLLIN : 0;
    return boot_io_waiting(&boot->io) ? (short)(events | POLLOUT) : events;
}

bool bootstrap_has_offer(const struct bootstrap *boot)
{
    return boot->state == BOOT_HAVE_OFFER;
}

uint64_t bootstrap_deadline(const struct bootstrap *boot)
{
    return boot->deadline_ns;
}

void bootstrap_set_deadline(struct bootstrap *boot, uint64_t deadline_ns)
{
    boot->deadline_ns = deadline_ns;
}
