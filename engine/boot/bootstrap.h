/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP handshake that makes a connection: a state machine over one non-blocking socket, stepped
 * by whoever waits for the connection. It is bounded in bytes and time. boot_wire.h has the bytes of its messages.
 *
 *   client                                        server
 *   HELLO   {version, engine id, nonce, features} ->
 *                                                 <-   HELLO   {the same, and the listener's nonce}
 *                                                 <-   PROOFS  {that the server knows flows of the client's}
 *   OFFER   {its connection; its flows, or a proof
 *            that it knows the same ones}         ->
 *                                                 <-   OFFER   {its connection; its flows, or its proof},
 *                                                      or REJECT {why}
 *   READY                                         ->
 *
 * The server opens flow and connection before it sends its OFFER, the client before READY: the first data packet never
 * meets a peer that does not know the flow. The client sends READY once datagrams have crossed both ways: where a
 * firewall passes TCP alone, the handshake fails on both sides.
 *
 * An engine id proves nothing: each listener shows its own to everybody. Two engines share flows only after each has
 * proved that it knows their tokens. Tokens are sent once, in the first handshake. Whoever cannot prove them becomes a
 * new peer with fresh tokens.
 *
 * Threads: one at a time per object. Nothing here blocks; bootstrap_fd() and bootstrap_events() say
 * what to poll for.
 */
#ifndef UCCL_BOOTSTRAP_H
#define UCCL_BOOTSTRAP_H

#include "boot/boot_wire.h"

enum boot_state {
    BOOT_CONNECTING,  /* client: TCP connect under way; server: the client has reset it */
    BOOT_HELLO,       /* exchanging HELLO */
    BOOT_NEED_PROOFS, /* server: knows the client's engine id, needs bootstrap_prove() */
    BOOT_PROVING,     /* client: awaits the server's PROOFS */
    BOOT_NEED_OFFER,  /* client: knows the server's engine id and proofs, needs bootstrap_offer() */
    BOOT_OFFERING,    /* client: sends its OFFER, awaits the server's; server: awaits the client's */
    BOOT_HAVE_OFFER,  /* has the peer's offer: open flow and connection, then
                         bootstrap_accept_offer() (client) or bootstrap_offer() (server) */
    BOOT_TRYING,      /* client: flow and connection are open, datagrams have not crossed yet:
                         bootstrap_accept_offer() once they have */
    BOOT_FINISHING,   /* client: sends READY; server: awaits READY */
    BOOT_DONE,
    BOOT_FAILED, /* bootstrap_status() says why */
};
/*
 * Client: CONNECTING -> HELLO -> PROVING -> NEED_OFFER -> OFFERING -> HAVE_OFFER -> (TRYING ->) FINISHING -> DONE.
 * Server: HELLO -> NEED_PROOFS -> OFFERING (awaits the client's) -> HAVE_OFFER -> FINISHING -> DONE.
 */

struct bootstrap;

enum { BOOT_FAULT_TEXT = 448 };

/*
 * Starts the client side towards `address`. Several hosts may have one address, and several listeners one port in turn:
 * `listener` is the nonce of the listener that is meant, 0: any. The HELLO of another one ends the handshake with
 * UCCL_EREFUSED. Deadline in CLOCK_MONOTONIC nanoseconds.
 * UCCL_EADDR, UCCL_EIO, UCCL_ENOMEM at once; bootstrap_step() reports refusals. `fault` (BOOT_FAULT_TEXT bytes that
 * outlive the object) receives the line about a failure, so that the caller can log it later. NULL: it is logged.
 */
int bootstrap_connect(const union nic_address *address, const uint8_t engine_id[16], uint64_t listener,
                      uint64_t deadline_ns, char *fault, struct bootstrap **out);
/* Starts the server side on a socket that `listener` accepted. Owns the socket from now on, also on failure. */
int bootstrap_serve(int fd, const uint8_t engine_id[16], uint64_t listener, uint64_t deadline_ns,
                    struct bootstrap **out);

/* Before the first step: adds features to those that our HELLO tells. */
void bootstrap_add_features(struct bootstrap *boot, uint64_t features);

/*
 * Goes as far as possible without blocking and returns the state. Call again when the descriptor is ready or time
 * has passed. Logs a failure once, with the peer's address.
 */
enum boot_state bootstrap_step(struct bootstrap *boot, uint64_t now_ns);

/* The states above say when each call is due. Asserts check our own arguments. */
/* Server: proves that it has `count` keys, at most BOOT_PROOFS_MAX, of peers with the client's engine id. */
void bootstrap_prove(struct bootstrap *boot, const struct boot_key *keys, unsigned count);
/*
 * Whether the other side has proved that it has this key. Client, from NEED_OFFER on: by the server's PROOFS. Server,
 * in HAVE_OFFER: by the client's offer.
 */
bool bootstrap_proves(const struct bootstrap *boot, const struct boot_key *key);
/*
 * Sends our offer. `key`: of the flows where the offer says `known`, else NULL; this call fills the offer's `proof`. A
 * server's offer says `known` exactly where the client's does. Without memory the state becomes BOOT_FAILED.
 */
void bootstrap_offer(struct bootstrap *boot, const struct boot_offer *offer, const struct boot_key *key);
/* HAVE_OFFER becomes TRYING. `missing` outlives the handshake: the log line if no datagram comes. */
void bootstrap_try(struct bootstrap *boot, const char *missing);
bool bootstrap_trying(const struct bootstrap *boot);
/* In HAVE_OFFER or TRYING. */
void bootstrap_accept_offer(struct bootstrap *boot);
/*
 * Gives up on the peer: sends it `error`, best effort; the state becomes BOOT_FAILED. UCCL_EAGAIN from a client means
 * that it begins again, or elsewhere: the peer does not warn.
 */
void bootstrap_reject(struct bootstrap *boot, int error);

/*
 * 0, or why the state is BOOT_FAILED. UCCL_EAGAIN, at a client only: the server has forgotten the peer that the client
 * claims; start a new handshake without a claim.
 */
int bootstrap_status(const struct bootstrap *boot);
const uint8_t *bootstrap_peer_id(const struct bootstrap *boot); /* 16 bytes, from NEED_OFFER/NEED_PROOFS on */
const struct boot_offer *bootstrap_peer_offer(const struct bootstrap *boot); /* from HAVE_OFFER on */
/* The features that both sides have (WIRE_FEATURES); from NEED_OFFER/NEED_PROOFS on. */
uint64_t bootstrap_features(const struct bootstrap *boot);
/* Whether the peer has sent a whole HELLO of our version. */
bool bootstrap_greeted(const struct bootstrap *boot);
/* Whether the state is HAVE_OFFER. */
bool bootstrap_has_offer(const struct bootstrap *boot);
void bootstrap_peer_address(const struct bootstrap *boot, union nic_address *out);
/* The peer's host in a number: its IPv4 address, or the first half of its IPv6 address. */
uint64_t bootstrap_source(const struct bootstrap *boot);
/* The peer's host, and our address on this TCP connection, from which datagrams leave. From HELLO on. */
void bootstrap_host(const struct bootstrap *boot, struct nic_host *out);
int bootstrap_fd(const struct bootstrap *boot);
short bootstrap_events(const struct bootstrap *boot); /* POLLIN, POLLOUT */
uint64_t bootstrap_deadline(const struct bootstrap *boot);
void bootstrap_set_deadline(struct bootstrap *boot, uint64_t deadline_ns);
void bootstrap_free(struct bootstrap *boot); /* closes the socket */

#endif
