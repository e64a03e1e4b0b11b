/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's NIC backend: queues of engine threads on the fabric. */
#ifndef SIM_NIC_SIM_H
#define SIM_NIC_SIM_H

#include "fabric.h"

enum { NICS_MAX = 4, NIC_CUTS_MAX = 8 };

/* A NIC of a node is gone, and its device says so. */
struct nic_cut {
    uint16_t node;
    uint8_t nic;
    uint64_t begin_ns, end_ns;
};

/* Options of a node's NIC. */
struct nic_sim_options {
    uint32_t address; /* IPv4, host order */
    uint32_t datagram_bytes;
    uint64_t rx_bytes;   /* receive buffer of a queue */
    uint32_t refuse_ppm; /* of descriptors, for lack of room */
    uint32_t full_ns;    /* how long the lack lasts, until it wakes sleepers; 0: it wakes nobody */
    unsigned nics;       /* so many, with these options each (nic_ends.c); 0: one. Alike on all nodes */
    struct nic_cut cuts[NIC_CUTS_MAX];
    unsigned cut_count;
    bool guarded;                     /* by a firewall (firewall.h) */
    bool gro;                         /* equal datagrams are received as one */
    bool in_place;                    /* payload is received in place */
    bool queue_pairs;                 /* it has data QPs (nic_place.c); alike on all nodes */
    uint32_t unreachable_permille;    /* registrations of device memory that it refuses */
    uint32_t open_fail_ppm, fail_ppm; /* opens and connects that fail; work requests that fail their data QP */
    uint32_t work_ns, drain_ns;       /* longest time that a work request waits, that a drain takes */
    bool refusal_fails;               /* a refused write fails the data QP, as on RC; else it is dropped, as on UC */
    uint32_t lies_permille;           /* of its sends: spoilt, or with a lie beside them; 0: it is honest */
    uint8_t habit;                    /* enum liar_habit */
    uint32_t lie_gap_ns;              /* between unprompted lies, at first; 0: none */
};

/* Connections of engines with BACKEND_TCP or BACKEND_AUTO (nic_pipes.c), alike on all nodes. */
struct sim_pipe_options {
    uint64_t bytes; /* that a direction holds */
    uint32_t mbps;
    uint32_t break_ppm, stall_ppm; /* descriptors, records */
    uint64_t delay_ns, stall_ns;   /* stall, late: longest */
    uint64_t late_ns;              /* until an end learns of a break */
    bool soon;                     /* those beside datagrams are made as if large messages had gone for long */
    uint64_t seed;
};
extern struct sim_pipe_options sim_pipe_options;
void nic_pipes_begin(const struct sim_pipe_options *options);

struct nic_sim_counts {
    uint64_t sent, polled; /* datagrams */
    uint64_t on_path;   /* datagrams and writes polled of data QPs; the core drops those of old generations uncounted */
    uint64_t heard[4];  /* bits: nodes, modulo 256, whose datagrams it has polled */
    uint64_t discarded; /* received, but not polled before the queue was closed */
    uint64_t refused;   /* writes and reads that its registrations do not allow */
};

void nic_sim_begin(unsigned nodes);
void nic_sim_end(void);
void nic_sim_set(unsigned node, const struct nic_sim_options *options);
/* Changes the datagram size of a node's routes. */
void nic_sim_change_datagram(unsigned node, uint32_t datagram_bytes);
const struct nic_sim_counts *nic_sim_counts(unsigned node); /* since the node last started */
/* What it has sent, and sent again, since then. */
const struct repeats *nic_sim_repeats(unsigned node);
/* Whether `node` has polled a datagram of `from` since then. */
bool nic_sim_heard(unsigned node, unsigned from);
/* It is hostile. */
bool nic_sim_lies(unsigned node);
/* The process on it was killed. */
void nic_sim_kill(unsigned node);
/* For the fabric. */
bool nic_sim_deliver(struct packet *packet, enum drop *why);

#endif
