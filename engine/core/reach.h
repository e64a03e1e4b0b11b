/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a flow's paths get through. Each leaves from a port of its own for the one port that the peer reads, so a stateful firewall
 * on the peer's side knows the first pair of ports alone: answers leave for our first port. Two things see to the others:
 *
 * - Opening. Once the peer's address is proven, something small leaves our first port for each further port of the peer's, which the
 *   handshake told. Nobody reads it there; a firewall on our side takes what comes from that port for an answer from then on. Again
 *   a little later, since it may be lost, and every OPEN_PERIOD_NS while the peer talks, but only for ports from which nothing has
 *   come in that time: firewalls forget after 30 s, and remember for as long whatever passes them.
 * - Trying. A path that nothing comes back from is closed (path.h). A probe asks over it now and then, one at a time: no chunk is lost
 *   and congestion control does not hear of it. Its echo opens the path.
 *
 * Nothing goes to a port that is not the proven address's; a round has at most one datagram a port.
 */
#ifndef UCCL_REACH_H
#define UCCL_REACH_H

#include <stdbool.h>
#include <stdint.h>

struct flow;

struct reach {
    uint64_t open_at_ns;  /* when the next round of opening begins; UINT64_MAX: one is under way, or none will */
    uint64_t opened_ns;   /* when the last one began */
    uint64_t try_at_ns;   /* no path is tried before */
    uint64_t nonce;       /* of the probe over `tried`; 0: none */
    uint16_t peer_ports;
    uint16_t port;        /* of the round under way, the next one */
    uint16_t tried;       /* the path that was tried last */
    uint8_t rounds;       /* so far; saturates */
    uint8_t backoff;      /* of tries without an echo */
};

/* A datagram to send. */
struct reach_probe {
    uint64_t nonce;
    uint16_t path;        /* or, if it opens, the peer's port */
    bool opens;
};

void reach_init(struct flow *flow, uint16_t peer_ports);
/* The peer's address is proven: its ports are opened. */
void reach_begin(struct flow *flow);
/* An echo that is not the proof. */
void reach_on_echo(struct flow *flow, uint64_t nonce);
/* The first thing that is to be done; `expects`: something of the peer is awaited, else no path is tried. */
uint64_t reach_deadline(const struct flow *flow, bool expects);
void reach_expire(struct flow *flow, bool expects, uint64_t now_ns);
/* What is due. False: nothing after all. */
bool reach_next(struct flow *flow, struct reach_probe *probe, uint64_t now_ns);

#endif
