/* SPDX-License-Identifier: Apache-2.0 */
/* What nic_sim.c (datagrams) and nic_place.c (data QPs, memory) share. */
#ifndef SIM_NIC_QUEUE_H
#define SIM_NIC_QUEUE_H

#include "nic/nic.h"
#include "nic_sim.h"
#include "repeats.h"

enum {
    NIC_QUEUES_MAX = 64,
    NIC_HELD_MAX = 8,        /* received buffers that are not released yet */
    NIC_READS_MAX = 64,      /* under way */
    NIC_TRIES_MAX = 1000,    /* of a full queue, without sleep: more than a spin lasts, less than a full_ns */
    NIC_PLACE_PORT = 0xffff, /* of packets between data QPs; datagrams go to a queue by its index */
};

struct peer_to {
    uint16_t node, port;
    uint8_t nic; /* from this one of ours to that of the same number there */
    uint32_t datagram_bytes;
    bool used, news;
    struct liar *liar; /* of a hostile node */
};

struct held {
    struct packet *packet;
    uint8_t *joined; /* or several in one */
    uint8_t *spread; /* or what of them is not in place */
};

struct nic_flushing_read {
    void *cookie;
    uint64_t posted_ns, done_ns;
};

struct sim_queue {
    struct nic_queue base;
    struct sim_nic *nic;
    struct nic_queue_setup setup;
    struct packet *inbox, **inbox_tail;
    uint64_t inbox_bytes; /* as a kernel charges them */
    struct held held[NIC_HELD_MAX];
    bool in_use; /* a call is under way: one at a time */
    bool sleeping, woken;
    uint64_t full_until_ns; /* it takes no descriptor before */
    unsigned tries;         /* sends meanwhile, since somebody last slept in it or something came */
    struct peer_to *peers;
    uint32_t peer_count;
    struct nic_flushing_read reads[NIC_READS_MAX]; /* oldest first */
    unsigned read_count;
    uint32_t gone_seen, gone_told; /* sim_nic.gone as the engine is being told it; for peers before this one */
    bool gone_news;
};

struct sim_nic {
    struct nic base;
    struct process *process;
    struct nic_sim_options options;
    struct nic_sim_counts counts;
    struct repeats repeats;
    struct sim_queue *queues[NIC_QUEUES_MAX];
    struct rng lies; /* whether to lie, and what */
    uint32_t gone;   /* bits: NICs */
};

static inline struct sim_nic *sim_nic_of(const struct nic *nic)
{
    return (struct sim_nic *)(uintptr_t)nic;
}

static inline struct sim_queue *sim_queue_of(const struct nic_queue *queue)
{
    return (struct sim_queue *)(uintptr_t)queue;
}

/* ---- nic_sim.c ---- */
/* Lays out one datagram of a descriptor; valid until the next call. */
const uint8_t *nic_sim_lay_out(const struct nic_queue_setup *setup, const struct tx_desc *desc, unsigned i,
                               uint32_t *length);
/* Puts an arriving packet into the inbox. False: there is no room. */
bool nic_sim_receive(struct sim_queue *queue, struct packet *packet, enum drop *why);
/* After the engine thread has stopped and closed all its flows: its core must have all buffers back. */
struct engine_thread;
void nic_sim_check_core(const struct engine_thread *thread, unsigned node);
/* The node with this address, host order. */
unsigned nic_sim_node(uint32_t address);
/* nic_device_ops */
void nic_sim_close(struct nic *nic);
int nic_sim_device_count(const struct nic *nic);
int nic_sim_device(const struct nic *nic, int index, struct uccl_device *out, union nic_address *address);
int nic_sim_addresses(const struct nic *nic, union nic_address *out, int max);

/* ---- nic_pipes.c ---- */
/* The process on the node was killed: what it has sent arrives. */
void nic_pipes_kill(unsigned node);
void nic_pipes_end(void);

/* ---- nic_ends.c ---- */
enum { NIC_SUBNET_SHIFT = 16, NIC_IP_UDP_BYTES = 28 };
extern const struct nic_end_ops nic_ends_ops;
unsigned nic_ends_pairs(const struct nic *base, const struct nic_queue_address *theirs, bool client,
                        struct nic_pair *out, unsigned max);
/* Of one of the node's NICs, host order. */
uint32_t nic_ends_address(const struct sim_nic *nic, unsigned end);
/* When which of them are gone. */
void nic_ends_plan(struct sim_nic *nic, unsigned node);

/* ---- nic_place.c ---- */
extern const struct nic_memory_ops nic_place_memory_ops;
extern const struct nic_data_qp_ops nic_place_data_qp_ops;
/* A descriptor with `on_path`. */
bool nic_place_send(struct sim_queue *queue, const struct tx_desc *desc);
/* A hostile node writes unasked, over each of its queue pairs. */
void nic_place_lie(struct sim_queue *queue);
/* A packet to NIC_PLACE_PORT, as nic_sim_deliver(). */
bool nic_place_deliver(struct packet *packet, enum drop *why);
/* Fills in `rx` for poll(). False: its flow is gone. */
bool nic_place_receive(const struct packet *packet, struct nic_rx *rx);
/* One of the NICs is gone: its data QPs fail. */
void nic_place_cut(struct sim_queue *queue, unsigned nic);
/* The peer is removed: ends its data QPs at once. */
void nic_place_forget(struct sim_queue *queue, uint32_t destination);
/* The process has closed the queue, or was killed: ends all its data QPs. */
void nic_place_kill(struct sim_queue *queue);
/* Checks that the process has no registration left; drops those that it has. */
void nic_place_check_memory(const struct process *process);
void nic_place_drop_memory(const struct process *process);
void nic_place_end(void);

#endif
