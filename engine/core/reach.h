/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a flow's paths get through. Each path leaves from a port of its own for the one port that the peer reads.
 * So a stateful firewall on the peer's side knows the first pair of ports alone, since answers leave for our first
 * port. The flow does two things about the others:
 *
 * - Opening. Once the peer's address is proven, a small datagram leaves our first port for each further port of the
 *   peer. Nobody reads it there, but a firewall on our side then takes packets from that port for answers. The flow
 *   repeats it a little later, since it may be lost, and every OPEN_PERIOD_NS while the peer talks, but only for ports
 *   from which nothing has come in that time. Firewalls forget after 30 s without a packet.
 * - Trying. A path over which nothing is acked is closed (path.h). Now and then a probe asks over one closed path: no
 *   chunk is lost, and congestion control does not hear of it. Its echo opens the path.
 *
 * All datagrams go to the proven address; a round has at most one datagram per port.
 */
#ifndef UCCL_REACH_H
#define UCCL_REACH_H

#include <stdbool.h>
#include <stdint.h>

struct rail;

struct reach {
    uint64_t open_at_ns; /* when the next round of opening begins; UINT64_MAX: one is under way, or none will */
    uint64_t opened_ns;  /* when the last one began */
    uint64_t try_at_ns;  /* no path is tried before */
    uint64_t nonce;      /* of the probe over `tried`; 0: none */
    uint16_t peer_ports;
    uint16_t port;   /* the next one in the round under way */
    uint16_t tried;  /* the path that was tried last */
    uint8_t rounds;  /* so far; saturates */
    uint8_t backoff; /* of tries without an echo */
};

/* A datagram to send. */
struct reach_probe {
    uint64_t nonce;
    uint16_t path; /* or, if it opens, the peer's port */
    bool opens;
};

void reach_init(struct rail *rail, uint16_t peer_ports);
/* The peer's address is proven: its ports are opened. */
void reach_begin(struct rail *rail);
/* An echo has come that is not the proof of the address. */
void reach_on_echo(struct rail *rail, uint64_t nonce);
/* When the next datagram is due; `expects`: the flow waits for the peer, else no path is tried. */
uint64_t reach_deadline(const struct rail *rail, bool expects);
void reach_expire(struct rail *rail, bool expects, uint64_t now_ns);
/* The next datagram that is due. False: none after all. */
bool reach_next(struct rail *rail, struct reach_probe *probe, uint64_t now_ns);
/* The NIC has refused it; PROBE_OPEN or PROBE_TRY is due again. */
void reach_undo(struct rail *rail, uint16_t path, bool opens);

#endif
