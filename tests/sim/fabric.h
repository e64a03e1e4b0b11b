/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between simulated nodes: hosts at leaf switches, leaves joined by spines. Each port has a
 * rate, a queue that drops its tail and marks (ECN) above a threshold, and a delay; the path of a
 * datagram (its source port) chooses the spine. Beside that, faults: loss, alone and in bursts,
 * reordering, duplication, damaged bits, cut tails, and outages of paths, directions or hosts that come and go, and
 * hit all datagrams or the large ones alone.
 *
 * Everything that enters is accounted for: sent + duplicated = delivered + dropped, for each reason.
 */
#ifndef SIM_FABRIC_H
#define SIM_FABRIC_H

#include "machine.h"

enum { FABRIC_ANY = 0xffff, OUTAGES_MAX = 16 };

struct outage {
    uint16_t from, to; /* nodes, or FABRIC_ANY */
    uint16_t path;     /* or FABRIC_ANY */
    uint64_t begin_ns, end_ns;
    uint32_t passing_bytes; /* datagrams that are no larger pass all the same; 0: none do */
    uint8_t nic;            /* of packets of NIC `nic` - 1 of both nodes; 0: of any */
    uint8_t queue;          /* of packets to queue `queue` - 1 of a node; 0: to any */
};

struct fabric_options {
    unsigned hosts_per_leaf, spines; /* spines 0: one switch for all */
    unsigned nics;                   /* of each host, with links of their own to switches of their own; 0: one */
    uint64_t host_mbps, spine_mbps;
    uint64_t slow_mbps; /* of links of their own, for what goes to queue `slow_queue` of each node; 0: there are none */
    unsigned slow_queue;
    uint64_t queue_bytes, ecn_bytes; /* of a port */
    uint64_t delay_ns, jitter_ns;    /* of a link */
    uint64_t reorder_ns, burst_ns;   /* longest */
    uint32_t loss_ppm, burst_ppm, reorder_ppm, duplicate_ppm, corrupt_ppm, truncate_ppm;
    struct outage outages[OUTAGES_MAX];
    unsigned outage_count;
};

struct packet {
    struct packet *next; /* in the receiver's buffer */
    uint16_t from, to;   /* nodes */
    uint16_t port;       /* of the receiver */
    uint16_t path;
    uint8_t nic; /* of both nodes */
    uint8_t hop;
    bool ce;
    bool damaged; /* bits or tail */
    uint32_t length;
    uint8_t bytes[];
};

enum drop { DROP_LOSS, DROP_BURST, DROP_OUTAGE, DROP_QUEUE, DROP_SOCKET, DROP_NOBODY, DROP_REFUSED, DROP_KINDS };

struct fabric_counts {
    uint64_t sent, duplicated, delivered, dropped[DROP_KINDS];
    uint64_t damaged, marked, reordered, in_flight;
};

extern struct fabric_counts fabric_counts;

/* `deliver` takes a packet that reached its node's receive buffer and owns it; false: it was dropped
 * there (full: DROP_SOCKET; nobody listens: DROP_NOBODY; memory that is not the sender's to touch: DROP_REFUSED; told
 * in `why`) and is the fabric's to free. */
void fabric_begin(const struct fabric_options *options, unsigned nodes, uint64_t seed,
                  bool (*deliver)(struct packet *packet, enum drop *why));
void fabric_end(void);
/* Copies the datagram. `safe_bytes`: so many of its first bytes have a checksum over them. */
struct fabric_way {
    unsigned from, to, nic;
    uint16_t port, path;
};
void fabric_send(const struct fabric_way *way, const uint8_t *bytes, uint32_t length, uint32_t safe_bytes);
/* Nothing is under way: what went in came out or was dropped. */
void fabric_check(void);
extern const char *const fabric_drop_names[DROP_KINDS];

#endif
