/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the verbs backend share.
 *
 *   verbs.c         the ports in use, tables of operations, sleeping, asynchronous events
 *   verbs/several.c an engine thread's queues on several ports, as one
 *   verbs/queue.c   completion queues, receiving
 *   verbs/clock.c   what time stamps of completions mean
 *   verbs/ud.c      peers, and sending datagrams on the UD queue pair
 *   verbs/data_qp.c data QPs; verbs/data_qp_send.c what they send
 *   verbs/gdr.c     device memory, and reads that flush what the NIC has written to it
 *   verbs/device.c  what devices there are; verbs/select.c which one, which GID
 *   verbs/address.c addresses of queues as the handshake carries them
 *
 * An engine thread has one UD queue pair. All peers send to it: control, acks, small messages, retransmissions, and in
 * UD mode everything. Its memory is a pool of receive slots (40 bytes of global routing header, and a datagram) and a
 * pool of send slots.
 *
 * Queues never overflow: a work request counts from its posting until it, or a later one of the same queue, has
 * completed. Completion queues have room for all that their queue pairs can complete at once.
 *
 * Thread: everything belongs to the queue's owner, but for `wake_fd` and the atomics, which events of the port change.
 */
#ifndef UCCL_VERBS_H
#define UCCL_VERBS_H

#include "nic/netdev.h"
#include "nic/nic.h"
#include "nic/verbs/address.h"
#include "nic/verbs/device.h"
#include "nic/verbs/lib.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    VERBS_GRH_BYTES = 40,     /* before each datagram that a UD queue pair receives */
    VERBS_UD_RECEIVES = 2048, /* receive slots; fewer where the device has a lower limit */
    VERBS_UD_SENDS = 512,     /* send slots, likewise */
    VERBS_UD_SENDS_MIN = 2 * CORE_TRAIN_MAX,
    VERBS_RECEIVES_MIN = 64,
    VERBS_BATCH = 64,        /* work requests per doorbell, at most */
    VERBS_REPOST = 32,       /* receive slots that are posted again together */
    VERBS_READY = 32,        /* received datagrams taken from the completion queue at a time */
    VERBS_UD_PATHS_MAX = 16, /* flow labels per peer */
    VERBS_LOOK_AROUND = 64,  /* rounds between two looks at the clock */
};

/* A completion queue, which is read another way if it stamps completions. */
struct verbs_cq {
    struct ibv_cq *cq;
    struct ibv_cq_ex *stamped; /* the same; NULL: it does not stamp completions */
};

/* Registered plain memory. */
struct verbs_pool {
    uint8_t *memory;
    size_t bytes;
    struct ibv_mr *mr;
};

struct verbs_backend;

/* A port in use. */
struct verbs_nic {
    struct verbs_backend *backend;
    const struct params *params;
    const struct verbs_lib *lib;
    struct verbs_port *port;
    unsigned index; /* among those in use */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct verbs_gid gid;         /* of the port; empty on InfiniBand without one */
    bool ipv4;                    /* the GID stands for an IPv4 address, and so do GIDs of peers */
    uint8_t mode;                 /* enum verbs_mode */
    uint8_t prefix_bits;          /* of the GID: those that begin so are in its subnet */
    uint32_t datagram_bytes;      /* the port's MTU when the backend was opened: receive slots hold no more */
    _Atomic bool gone;            /* the device was removed */
    _Atomic uint16_t lid;         /* InfiniBand: the port's, as some queue has seen it last; guards nothing else */
    _Atomic uint32_t port_events; /* counts events of the port; queues compare */
    _Atomic uint32_t qp_events;   /* counts events by which data QPs may have failed */
    _Atomic uint32_t port_epoch;  /* counts how often the port went down or up: odd while it is down */
};

/* Of an engine. */
struct verbs_backend {
    struct nic base; /* its `failure`: all devices were removed */
    struct params params;
    const struct verbs_lib *lib;
    struct verbs_port *ports; /* admitted ones */
    int port_count;
    struct verbs_nic nics[NIC_PLACERS_MAX];
    unsigned nic_count;
    union nic_address host; /* where listeners are reached */
};

/* Numbers of destinations: the index of our port, and that of the peer's queue among the queue's peers. */
enum { VERBS_NIC_SHIFT = 24, VERBS_PEERS_MAX = 1 << VERBS_NIC_SHIFT };

/* One queue of a peer. */
struct verbs_peer {
    struct ibv_ah *handles[VERBS_UD_PATHS_MAX]; /* by path: they differ in the flow label */
    uint32_t datagram_bytes;                    /* what both ports take, as last reported */
    uint32_t path_mtu;                          /* of data QPs: what both ports took when the ends met */
    struct verbs_address address;
    unsigned nic, nics;         /* which of the peer's ports it is, and how many there are */
    uint8_t traffic_class;      /* as in nic_host */
    struct verbs_data_qp **qps; /* by path; NULL in UD mode */
    unsigned qp_count;          /* room in it: numbers of paths count through all pairs of ports */
    uint32_t retired_at;        /* number of sends posted when it was removed; they may use the handles */
    int32_t next;               /* in the free list, or that of retired ones */
    bool used;
    bool number_refused; /* the log says that it offered an impossible queue pair number */
};
enum { VERBS_NO_PEER = -1 };

/* The send side of the UD queue pair. Numbers of work requests are modulo 2^32. */
struct verbs_ud_sends {
    struct verbs_pool pool;
    uint32_t slot_bytes;
    uint32_t depth;        /* slots, and work requests: a power of two */
    uint32_t built;        /* number of the next work request to build */
    uint32_t posted, done; /* all earlier ones have been posted; have completed */
    uint32_t asked;        /* the last signalled one */
    uint32_t inline_bytes; /* how much fits into a work request */
    uint32_t batched;      /* = built - posted: the chain below */
    struct ibv_send_wr requests[VERBS_BATCH];
    struct ibv_sge sges[VERBS_BATCH];
};

/* Slots to receive into, of the UD queue pair or of the shared receive queue. */
struct verbs_slots {
    struct verbs_pool pool;
    uint32_t slot_bytes;
    uint32_t count;
    struct ibv_recv_wr *requests; /* by slot, built once */
    struct ibv_sge *sges;
    struct ibv_recv_wr *first, *last; /* chain to post again */
    uint32_t chained;
};
enum { VERBS_SHARED_SLOT = 1 << 30 }; /* in numbers of slots: of the shared receive queue */

struct verbs_data_qps;
struct verbs_reads;

struct verbs_queue {
    struct nic_queue base;
    struct verbs_nic *nic;
    const struct verbs_lib *lib;
    struct nic_queue_setup setup;
    struct ibv_comp_channel *channel;
    struct verbs_cq send_cq, receive_cq;
    struct verbs_clock clock;
    int wake_fd;       /* eventfd: written by wake() on any thread */
    struct ibv_qp *ud; /* the UD queue pair */
    uint32_t qkey;
    _Atomic uint32_t port_bytes; /* largest datagram that our port takes now; handshakes on other threads read it */
    bool broken;                 /* the UD queue pair has failed: poll() sets it up again */
    struct verbs_ud_sends sends;
    uint32_t epoch; /* counts set-ups of the UD queue pair: completions of earlier epochs are dropped */
    struct verbs_slots receives;
    struct nic_rx ready[VERBS_READY]; /* completions that poll() has not returned yet */
    uint32_t ready_next, ready_count;
    uint64_t polled;                 /* counts completions of receives */
    struct verbs_data_qps *data_qps; /* NULL in UD mode */
    struct verbs_reads *reads;       /* NULL before the first */
    struct verbs_peer *peers;
    uint32_t peer_count, peer_capacity;
    int32_t peer_free, peer_retired;
    uint32_t port_events_seen;   /* nic->port_events at the last look */
    uint32_t mtu_peer;           /* next peer whose MTU may have changed; UINT32_MAX: none */
    _Atomic uint32_t until_look; /* rounds until the next look at the clock, and then for events; wait() sets it to 0 */
    uint64_t looked_ms;
};

static inline struct verbs_backend *verbs_backend_of(const struct nic *nic)
{
    return (struct verbs_backend *)(uintptr_t)nic;
}

/* The first port in use: often the only one. */
static inline struct verbs_nic *verbs_nic_of(const struct nic *nic)
{
    return verbs_backend_of(nic)->nics;
}

static inline struct verbs_queue *verbs_queue_of(const struct nic_queue *queue)
{
    return (struct verbs_queue *)(uintptr_t)queue;
}

static inline struct verbs_peer *verbs_peer_at(const struct verbs_queue *queue, uint32_t destination)
{
    return &queue->peers[destination & (VERBS_PEERS_MAX - 1)];
}

/* The tables; those of memory and data QPs are absent in UD mode. */
extern const struct nic_memory_ops verbs_memory_ops;
extern const struct nic_queue_ops verbs_queue_ops;
extern const struct nic_datagram_ops verbs_datagram_ops;
extern const struct nic_data_qp_ops verbs_data_qp_ops;

/* verbs.c: opens the backend with a library given, for tests. */
int verbs_open_with(const struct verbs_lib *lib, const struct params *params, struct nic **out);

/* The device was removed. */
static inline bool verbs_is_gone(const struct verbs_nic *nic)
{
    return atomic_load_explicit(&nic->gone, memory_order_relaxed);
}

/* Slots of a queue's shared receive queue; 0 in UD mode. */
uint32_t verbs_shared_receives(const struct verbs_nic *nic);

uint64_t verbs_now_ms(void);
/* The device was removed: all its work fails. Logs `why`, once. */
void verbs_lost(struct verbs_nic *nic, const char *why);
/* The route to a peer, by its address and our port; `traffic_class`: as in nic_host. */
struct ibv_ah_attr verbs_route_to(const struct verbs_nic *nic, const struct verbs_address *address, unsigned path,
                                  unsigned traffic_class);

/* verbs/queue.c */
int verbs_pool_open(struct verbs_nic *nic, struct verbs_pool *pool, size_t bytes, const char *what);
void verbs_pool_close(struct verbs_nic *nic, struct verbs_pool *pool);
/* `stamped`: with time stamps, if the device has them. */
int verbs_cq_open(struct verbs_queue *queue, struct verbs_cq *cq, uint32_t entries, bool stamped);
void verbs_cq_close(struct verbs_queue *queue, struct verbs_cq *cq);
/*
 * Takes up to `max` completions, and their times by CLOCK_MONOTONIC (0: unknown). Of a failed one only wr_id, qp_num,
 * status and vendor_err are valid.
 */
unsigned verbs_cq_poll(const struct verbs_queue *queue, const struct verbs_cq *cq, struct ibv_wc *out, uint64_t *at_ns,
                       unsigned max);
/* Makes the queue pair with its pools, ready to send and receive. */
int verbs_ud_open(struct verbs_queue *queue);
void verbs_ud_close(struct verbs_queue *queue);
/* Sets a failed queue pair up again; posted work is lost. */
void verbs_ud_recover(struct verbs_queue *queue);
/* Fills `ready`. False: the completion queue is empty. */
bool verbs_receive(struct verbs_queue *queue);
/* Memory for `count` slots. */
int verbs_slots_open(struct verbs_nic *nic, struct verbs_slots *slots, uint32_t count, uint32_t slot_bytes);
void verbs_slots_close(struct verbs_nic *nic, struct verbs_slots *slots);
/* Posts all slots. */
void verbs_slots_post(struct verbs_queue *queue, struct verbs_slots *slots);
/* The largest power of two that exceeds neither. */
uint32_t verbs_at_most(uint32_t wanted, int limit);
unsigned verbs_poll(struct nic_queue *base, struct nic_rx *out, unsigned max);
void verbs_release(struct nic_queue *base, const struct nic_rx *rx);
void verbs_drop_ready(struct verbs_queue *queue, const struct flow *flow);

/* verbs/ud.c */
extern const struct nic_way_ops verbs_way_ops;
int verbs_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *address,
                   uint32_t *destination, uint32_t *datagram_bytes);
void verbs_peer_remove(struct nic_queue *base, uint32_t destination);
void verbs_peers_free(struct verbs_queue *queue);
bool verbs_send(struct nic_queue *base, const struct tx_desc *desc);
unsigned verbs_flush(struct nic_queue *base);
/* Takes completions of sends. */
void verbs_reap_sends(struct verbs_queue *queue);

/* verbs.c, for several.c */
int verbs_queue_open(struct verbs_nic *nic, const struct nic_queue_setup *setup, struct verbs_queue **out);
/* The queues of one engine thread sleep; wake() of any ends it. */
void verbs_arm_all(struct verbs_queue *const *queues, unsigned count, uint64_t *timeout_ns);
void verbs_wait_all(struct verbs_queue *const *queues, unsigned count, uint64_t timeout_ns);
/* The address of a queue alone. */
void verbs_address_of(const struct verbs_queue *queue, struct verbs_address *out);
/* The IP address that a GID stands for. */
union nic_address verbs_ip_of(const uint8_t gid[16]);

/* verbs/several.c: the queues of an engine thread on all ports in use. */
int verbs_several_open(struct verbs_backend *backend, const struct nic_queue_setup *setup, struct nic_queue **out);
extern const struct nic_end_ops verbs_end_ops;
unsigned verbs_pairs(const struct nic *nic, const struct nic_queue_address *theirs, bool client, struct nic_pair *out,
                     unsigned max);

/* verbs/gdr.c */
int verbs_reg_device(struct nic *base, unsigned index, const struct nic_device_memory *memory, struct nic_mr *out,
                     char why[NIC_WHY_TEXT]);
bool verbs_flush_device(struct nic_queue *base, const struct nic_mr *mr, void *cookie);
unsigned verbs_poll_flushed(struct nic_queue *base, struct nic_flushed *out, unsigned max);
void verbs_reads_close(struct verbs_queue *queue);

/* Logs what failed, and if something ran out what to do. Returns UCCL_ENOMEM or UCCL_EIO. */
int verbs_fault(const struct verbs_nic *nic, const char *doing, int system_error);

#endif
