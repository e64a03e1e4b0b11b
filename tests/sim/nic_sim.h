/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's NIC backend: queues of engine threads on the fabric. */
#ifndef SIM_NIC_SIM_H
#define SIM_NIC_SIM_H

#include "fabric.h"

/* Of a node, as its NIC is opened. */
struct nic_sim_options {
    uint32_t address;          /* IPv4, host order */
    uint32_t datagram_bytes;
    uint64_t rx_bytes;         /* receive buffer of a queue */
    uint32_t refuse_ppm;       /* of descriptors, for lack of room */
    uint32_t full_ns;          /* how long the lack lasts, which a sleeper is told the end of; 0: nobody is */
    bool guarded;              /* by a firewall (firewall.h) */
    bool gro;                  /* equal datagrams are received as one */
    bool in_place;             /* payload is put in place */
    bool queue_pairs;          /* it has some, and places payload (nic_place.c); alike on all nodes */
    uint32_t unreachable_permille; /* registrations of device memory that it refuses */
    uint32_t open_fail_ppm, fail_ppm; /* queue pairs that cannot be made or connected; work requests that fail one */
    uint32_t work_ns, drain_ns;/* longest time until a work request has its turn; that draining takes */
    bool refusal_fails;        /* a write that it refuses fails the queue pair, as RC does; else it is dropped, as by UC */
    uint32_t lies_permille;    /* of what it sends: with a lie in it, or a lie beside it; 0: it is honest */
    uint8_t habit;             /* enum liar_habit */
    uint32_t lie_gap_ns;       /* between lies that come by themselves, at first; 0: none */
};

struct nic_sim_counts {
    uint64_t sent, polled;     /* datagrams */
    uint64_t on_path;          /* datagrams and writes polled of queue pairs; the core drops those of old ones uncounted */
    uint64_t heard[4];         /* bits: nodes, modulo 256, of which it has polled some */
    uint64_t discarded;        /* received, but not polled before the queue was closed */
    uint64_t refused;          /* writes and reads over queue pairs that its memory does not allow */
};

void nic_sim_begin(unsigned nodes);
void nic_sim_end(void);
void nic_sim_set(unsigned node, const struct nic_sim_options *options);
/* The routes of a node take larger or smaller datagrams from now on. */
void nic_sim_change_datagram(unsigned node, uint32_t datagram_bytes);
const struct nic_sim_counts *nic_sim_counts(unsigned node); /* of this life of the node */
/* What that life of it has sent, and sent again. */
const struct repeats *nic_sim_repeats(unsigned node);
/* Whether that life of `node` has polled a datagram of `from`. */
bool nic_sim_heard(unsigned node, unsigned from);
/* It is hostile. */
bool nic_sim_lies(unsigned node);
/* The process on it was killed. */
void nic_sim_kill(unsigned node);
/* For the fabric. */
bool nic_sim_deliver(struct packet *packet, enum drop *why);

#endif
