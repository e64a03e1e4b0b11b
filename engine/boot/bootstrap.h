/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP handshake that makes a connection: a state machine over one non-blocking socket, stepped
 * by whoever waits for it. Bounded in bytes and time; versioned; fuzzable. The bytes are those of boot_wire.h.
 *
 *   client                                        server
 *   HELLO   {version, engine id, nonce, features} ->
 *                                                 <-   HELLO   {the same, and the listener's nonce}
 *                                                 <-   PROOFS  {that it knows flows of the client's}
 *   OFFER   {its connection; its flows, or a proof
 *            that it knows the same ones}         ->
 *                                                 <-   OFFER   {its connection; its flows, or its proof},
 *                                                      or REJECT {why}
 *   READY                                         ->
 *
 * The server has flow and connection in place before its OFFER leaves, the client before READY:
 * the first data packet never meets a peer that does not know the flow. READY leaves when the client has seen that
 * datagrams get across both ways: where a firewall passes TCP alone, the handshake fails on both sides.
 *
 * An engine id proves nothing: each listener tells its own to everybody. Two engines share what they have only where
 * each has proved that it knows the tokens which the first handshake agreed on; and tokens are told once, in that
 * first handshake. Whoever cannot prove it is a peer of its own, with fresh tokens.
 *
 * Threads: one at a time per object. Nothing here blocks; bootstrap_fd() and bootstrap_events() say
 * what to poll for.
 */
#ifndef UCCL_BOOTSTRAP_H
#define UCCL_BOOTSTRAP_H

#include "boot/boot_wire.h"

enum boot_state {
    BOOT_CONNECTING,   /* client: TCP connect under way */
    BOOT_HELLO,        /* exchanging HELLO */
    BOOT_NEED_PROOFS,  /* server: client's engine id known: bootstrap_prove() */
    BOOT_PROVING,      /* client: the server's PROOFS are awaited */
    BOOT_NEED_OFFER,   /* client: server's engine id and proofs known: give ours with bootstrap_offer() */
    BOOT_OFFERING,     /* client: ours leaves, the server's is awaited; server: the client's is awaited */
    BOOT_HAVE_OFFER,   /* the peer's offer is here: put flow and connection in place, then
                          bootstrap_accept_offer() (client) or bootstrap_offer() (server) */
    BOOT_TRYING,       /* client: flow and connection are in place, but it is not known yet whether datagrams get
                          across: bootstrap_accept_offer() when it is */
    BOOT_FINISHING,    /* client: READY leaves; server: READY awaited */
    BOOT_DONE,
    BOOT_FAILED,       /* bootstrap_status() says why */
};
/*
 * Client: CONNECTING -> HELLO -> PROVING -> NEED_OFFER -> OFFERING -> HAVE_OFFER -> (TRYING ->) FINISHING -> DONE.
 * Server: HELLO -> NEED_PROOFS -> OFFERING (awaits the client's) -> HAVE_OFFER -> FINISHING -> DONE.
 */

struct bootstrap;

enum { BOOT_FAULT_TEXT = 384 };

/*
 * Starts the client side towards `address`. One address may be several hosts', and a port several listeners', one after
 * the other: `listener` is the nonce of the one that is meant, 0: whoever answers there. Another one's HELLO ends the
 * handshake with UCCL_EREFUSED. Deadline in CLOCK_MONOTONIC nanoseconds.
 * UCCL_EADDR, UCCL_EIO, UCCL_ENOMEM at once; refusals come from step(). `fault` (BOOT_FAULT_TEXT bytes that live as
 * long as the object) gets the line about a failure, for who tries several addresses and logs it later; NULL: it is logged.
 */
int bootstrap_connect(const union nic_address *address, const uint8_t engine_id[16], uint64_t listener,
                      uint64_t deadline_ns, char *fault, struct bootstrap **out);
/* Starts the server side on a socket accepted by that listener; owns the socket from now on (also on failure). */
int bootstrap_serve(int fd, const uint8_t engine_id[16], uint64_t listener, uint64_t deadline_ns,
                    struct bootstrap **out);

/*
 * Goes as far as it can without blocking and returns the state. Call again when fd is ready or time
 * has passed. Failures are logged once, with the peer's address.
 */
enum boot_state bootstrap_step(struct bootstrap *boot, uint64_t now_ns);

/* See the states above. Bounds are checked here (asserts: they are ours). */
/* Server: proves to know `count` peers of the client's engine id, at most BOOT_PROOFS_MAX, by their keys. */
void bootstrap_prove(struct bootstrap *boot, const struct boot_key *keys, unsigned count);
/*
 * Has the other side proved that it has this key? Client, from NEED_OFFER on: the server has. Server, in HAVE_OFFER:
 * the client's offer says so.
 */
bool bootstrap_proves(const struct bootstrap *boot, const struct boot_key *key);
/*
 * `key`: of the flows, where the offer says that they are known (its `proof` is made here); else NULL. A server's offer
 * says so where the client's does. The state is BOOT_FAILED afterwards where there is no memory.
 */
void bootstrap_offer(struct bootstrap *boot, const struct boot_offer *offer, const struct boot_key *key);
/* In HAVE_OFFER, which becomes TRYING. The log says `missing`, which outlives the handshake, where no datagram comes. */
void bootstrap_try(struct bootstrap *boot, const char *missing);
bool bootstrap_trying(const struct bootstrap *boot);
/* In HAVE_OFFER or TRYING. */
void bootstrap_accept_offer(struct bootstrap *boot);
/*
 * Server or client gives up on the peer: it learns `error` (sent best effort), the state is BOOT_FAILED. UCCL_EAGAIN of
 * a client: nothing is wrong, it goes on elsewhere or begins again; the peer does not warn.
 */
void bootstrap_reject(struct bootstrap *boot, int error);

/*
 * 0, or why it FAILED. UCCL_EAGAIN at a client alone: it claimed a peer that the server has no more; to be started
 * anew, without a claim.
 */
int bootstrap_status(const struct bootstrap *boot);
const uint8_t *bootstrap_peer_id(const struct bootstrap *boot); /* 16 bytes, from NEED_OFFER/NEED_PROOFS on */
const struct boot_offer *bootstrap_peer_offer(const struct bootstrap *boot); /* from HAVE_OFFER on */
/* What both sides understand (WIRE_FEATURES); from NEED_OFFER/NEED_PROOFS on. */
uint64_t bootstrap_features(const struct bootstrap *boot);
/* The peer has said a whole HELLO of our version: it is no stranger. */
bool bootstrap_greeted(const struct bootstrap *boot);
void bootstrap_peer_address(const struct bootstrap *boot, union nic_address *out);
/* The peer's host, and by which address it knows ours: what goes there later leaves from that. From HELLO on. */
void bootstrap_host(const struct bootstrap *boot, struct nic_host *out);
int bootstrap_fd(const struct bootstrap *boot);
short bootstrap_events(const struct bootstrap *boot);         /* POLLIN, POLLOUT */
uint64_t bootstrap_deadline(const struct bootstrap *boot);
void bootstrap_set_deadline(struct bootstrap *boot, uint64_t deadline_ns);
void bootstrap_free(struct bootstrap *boot);                  /* closes the socket */

#endif
