/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP handshake that makes a connection: a state machine over one non-blocking socket, stepped
 * by whoever waits for it. Bounded in bytes and time; versioned; fuzzable (bootstrap_decode_*).
 *
 *   client                                   server
 *   HELLO  {magic, version, engine id}  ->
 *                                       <-   HELLO   {magic, version, engine id}
 *   OFFER  {its flows, its connection}  ->
 *                                       <-   OFFER   {its flows, its connection}, or REJECT {why}
 *   READY                               ->
 *
 * The server has flow and connection in place before its OFFER leaves, the client before READY:
 * the first data packet never meets a peer that does not know the flow.
 *
 * Threads: one at a time per object. Nothing here blocks; bootstrap_fd() and bootstrap_events() say
 * what to poll for.
 */
#ifndef UCCL_BOOTSTRAP_H
#define UCCL_BOOTSTRAP_H

#include "nic/nic.h"
#include "uccl/engine.h"

enum {
    BOOT_VERSION = 2,
    BOOT_FLOWS_MAX = 64,
    BOOT_MESSAGE_MAX = 4096, /* bytes of any handshake message; longer is UCCL_EPROTO */
};

/* What one side tells the other of one engine thread. */
struct boot_flow {
    uint64_t token;          /* what we expect in packets to us */
    struct nic_queue_address address; /* of the thread's queue; the NIC's to read */
    uint32_t datagram_bytes; /* full datagram that our route to the peer allows */
    uint64_t rx_bytes;       /* the share of our receive buffer that this peer may fill */
};

struct boot_offer {
    uint32_t conn_id;        /* what the peer shall write into frames for this connection */
    uint16_t home;           /* index of the flow that serves it; client's choice, the server echoes it */
    uint16_t flow_count;     /* 1..BOOT_FLOWS_MAX; both sides use the smaller count */
    uint32_t chunk_window;   /* our parameters; both sides use the smaller */
    uint32_t msg_window;
    uint32_t eager_window_kb;
    struct boot_flow flows[BOOT_FLOWS_MAX];
};

enum boot_state {
    BOOT_CONNECTING,   /* client: TCP connect under way */
    BOOT_HELLO,        /* exchanging HELLO */
    BOOT_NEED_OFFER,   /* peer's engine id known: give ours with bootstrap_offer() */
    BOOT_OFFERING,     /* client: ours leaves, the server's is awaited; server: the client's is awaited */
    BOOT_HAVE_OFFER,   /* the peer's offer is here: put flow and connection in place, then
                          bootstrap_accept_offer() (client) or bootstrap_offer() (server) */
    BOOT_FINISHING,    /* client: READY leaves; server: READY awaited */
    BOOT_DONE,
    BOOT_FAILED,       /* bootstrap_status() says why */
};
/*
 * Client: CONNECTING -> HELLO -> NEED_OFFER -> OFFERING -> HAVE_OFFER -> FINISHING -> DONE.
 * Server: HELLO -> OFFERING (awaits the client's) -> HAVE_OFFER -> FINISHING -> DONE.
 */

struct bootstrap;

/*
 * Starts the client side towards `address` (of a listener). Deadline in CLOCK_MONOTONIC nanoseconds.
 * UCCL_EADDR, UCCL_EIO, UCCL_ENOMEM at once; refusals come from step().
 */
int bootstrap_connect(const union nic_address *address, const uint8_t engine_id[16],
                      uint64_t deadline_ns, struct bootstrap **out);
/* Starts the server side on an accepted socket, which it owns from now on (also on failure). */
int bootstrap_serve(int fd, const uint8_t engine_id[16], uint64_t deadline_ns, struct bootstrap **out);

/*
 * Goes as far as it can without blocking and returns the state. Call again when fd is ready or time
 * has passed. Failures are logged once, with the peer's address.
 */
enum boot_state bootstrap_step(struct bootstrap *boot, uint64_t now_ns);

/* See the states above. Bounds are checked here (asserts: they are ours). */
void bootstrap_offer(struct bootstrap *boot, const struct boot_offer *offer);
void bootstrap_accept_offer(struct bootstrap *boot);
/* Server or client gives up on the peer: it learns `error` (sent best effort), the state is BOOT_FAILED. */
void bootstrap_reject(struct bootstrap *boot, int error);

int bootstrap_status(const struct bootstrap *boot);           /* 0, or why it FAILED */
const uint8_t *bootstrap_peer_id(const struct bootstrap *boot); /* 16 bytes, from NEED_OFFER/OFFERING on */
const struct boot_offer *bootstrap_peer_offer(const struct bootstrap *boot); /* from HAVE_OFFER on */
void bootstrap_peer_address(const struct bootstrap *boot, union nic_address *out);
int bootstrap_fd(const struct bootstrap *boot);
short bootstrap_events(const struct bootstrap *boot);         /* POLLIN, POLLOUT */
uint64_t bootstrap_deadline(const struct bootstrap *boot);
void bootstrap_free(struct bootstrap *boot);                  /* closes the socket */

/* Decoders of peer bytes, for the fuzzer: 0 or UCCL_EPROTO. */
struct boot_hello {
    uint16_t version;
    uint8_t engine_id[16];
};
int bootstrap_decode_hello(const uint8_t *bytes, size_t length, struct boot_hello *out);
int bootstrap_decode_offer(const uint8_t *bytes, size_t length, struct boot_offer *out);

#endif
