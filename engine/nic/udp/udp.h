/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What udp.c (sockets, peers), send.c (assembling what to send) and the two I/O drivers (udp/mmsg.c,
 * udp/uring.c: system calls and receive buffers) share.
 *
 * A queue has one main socket, which receives and sends path 0. Further sockets only send: they give each path a source
 * port of its own, and with it an ECMP route. Peers answer to the main port. Datagrams to the other ports only open
 * firewalls (reach.h); nobody reads them. All sockets are blocking and used with MSG_DONTWAIT, since io_uring does not
 * wait on non-blocking ones.
 *
 * Thread: everything belongs to the queue's owner, but for `wake_fd`.
 */
#ifndef UCCL_UDP_H
#define UCCL_UDP_H

#include "core/units.h"
#include "nic/link_watch.h"
#include "nic/nic.h"

enum {
    UDP_MAIN_SOCKET = 0,
    UDP_RX_BYTES = 65536,  /* of a receive buffer: the largest train that GRO makes */
    UDP_RX_CONTROL = 128,  /* control messages of one receive: GRO size, ECN, drops */
    UDP_BATCH_SENDS = 16,  /* sends that leave without waiting for flush() */
    UDP_BATCH_BIG = 16384, /* bytes of a descriptor that is not held back */
    UDP_BATCH_MAX = UDP_BATCH_SENDS + CORE_TRAIN_MAX,
    UDP_BATCH_BYTES = 65536, /* assembled datagrams: one whole train, small enough for L2 */
    UDP_IOVEC_MAX = 256,
    UDP_IN_PLACE_MIN = 4096,     /* datagrams of this size are sent from the payload where it lies */
    UDP_PIECE_MIN = 1024,        /* where it lies in several places: if those are this large on average */
    UDP_PIECES_MAX = 32,         /* and so few */
    UDP_MTU_CHECK_SENDS = 16384, /* descriptors to a peer between two looks at its path MTU */
    UDP_NO_PEER = -1,
    UDP_NONE_FULL = -1,
    UDP_FULL_NAP_NS = NS_PER_MS, /* between tries of a full socket that the kernel calls writable */
};

/*
 * Control messages of sendmsg(). One (IP_PKTINFO, IPV6_PKTINFO) makes datagrams leave from the handshake's address of
 * ours: a firewall in between may know no other. It costs 0.3 us per send, so it is left out where the kernel chooses
 * that address by itself. The other (IP_TOS, IPV6_TCLASS) is there if the peer's traffic class is not the sockets'.
 */
struct udp_source {
    uint32_t length; /* bytes in use; 0: there is none */
    bool addressed;  /* it tells an address */
    _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int))];
};

/* One peer's address. */
struct udp_peer {
    union nic_address address;          /* of the sockets' family */
    union nic_address local;            /* ours, likewise, from which routes are asked for; family 0: any */
    struct udp_source source;           /* to send from */
    uint32_t nic, interface;            /* as in nic_host, and the kernel's number of it; 0: the route decides */
    uint32_t datagram_bytes;            /* what the route allows, as last reported or about to be */
    uint16_t ports[NIC_PORTS_TOLD_MAX]; /* the peer sends from them; network byte order; 0: unknown */
    uint32_t descs_to_check;            /* countdown to the next look at the path MTU */
    int32_t next;                       /* in the free list, or among pending MTUs */
    uint8_t traffic_class;              /* as in nic_host */
    bool used;
    bool mtu_pending; /* follow() is to report it */
    bool gso;         /* segmentation offload works towards it */
    bool complained;  /* a failure has been logged */
};

/* One sendmsg() to come: one datagram, or a run of equal ones under GSO (the last may be shorter). */
struct udp_send {
    union nic_address to;
    struct udp_source source;
    uint32_t destination;
    uint32_t desc; /* number of its descriptor */
    uint32_t bytes;
    uint32_t segment; /* bytes of every datagram but the last */
    uint16_t datagrams;
    uint16_t socket;
    uint16_t iovec, iovec_count;
    bool gone;    /* the kernel has it, or it is lost */
    bool blocked; /* its socket could take no more */
};

/* The sends that wait for flush(). Buffer and vectors start afresh when no send is left. */
struct udp_batch {
    uint32_t count; /* of `sends` */
    uint32_t iovec_count;
    uint32_t bytes_used; /* of `buffer` */
    uint32_t descs_lost; /* since the last flush() */
    uint32_t last_lost;  /* number of the last of them */
    uint32_t desc;       /* number of the newest descriptor */
    uint8_t *buffer;     /* UDP_BATCH_BYTES */
    struct udp_send sends[UDP_BATCH_MAX];
    struct iovec iovecs[UDP_IOVEC_MAX];
};

/* What a queue knows of the engine's NICs, if those are several (ends.c). */
struct udp_ends {
    struct link_watch links;
    uint32_t changed; /* bits: whose destinations are being reported, */
    uint32_t cursor;  /* from this peer on */
};

struct udp_driver_ops;

struct udp_queue {
    struct nic_queue base;
    struct nic_queue_setup setup;
    const struct udp_driver_ops *driver;
    void *io;     /* the driver's own state */
    int *sockets; /* [0]: the main one */
    uint32_t socket_count;
    bool v6;                            /* dual-stack sockets: IPv4 peers as v4-mapped addresses */
    bool gso;                           /* the kernel knows UDP_SEGMENT */
    uint16_t ports[NIC_PORTS_TOLD_MAX]; /* of the first sockets */
    uint64_t rx_bytes;
    uint32_t drops_seen; /* the kernel's last drop count of the main socket */
    int wake_fd;         /* eventfd: written by wake() on any thread, read by the owner */
    struct udp_peer *peers;
    uint32_t peer_count, peer_capacity;
    int32_t peer_free;      /* head of the free list, or UDP_NO_PEER */
    int32_t mtu_pending;    /* head of the list of pending MTUs, or UDP_NO_PEER */
    int32_t full_socket;    /* the socket that was full at the last try, or UDP_NONE_FULL */
    bool full_again;        /* no socket has taken anything since */
    uint64_t full_until_ns; /* CLOCK_MONOTONIC; 0: until it is writable */
    int room_fd;            /* of the next sleep: the full socket to poll; -1: none */
    _Atomic bool room;      /* a sleep has seen that it is writable; tells the owner, and guards nothing else */
    struct udp_ends ends;
    struct udp_batch batch;
};

struct udp_nic {
    struct nic base;
    struct params params;
    struct netdev *devs;
    int dev_count;
    unsigned ends[NIC_ENDS_MAX]; /* the devices in use, if those are several */
    unsigned end_count;
    uint32_t shared;            /* bits: ends for which others may receive (netdev_mixes_addresses()) */
    _Atomic uint32_t told_down; /* bits: ends that are down, as the log says, by whichever queue saw it first */
};

static inline struct udp_nic *udp_nic_of(const struct nic *nic)
{
    return (struct udp_nic *)(uintptr_t)nic;
}

/* The system calls behind a queue. Errors as in nic.h. */
struct udp_driver_ops {
    const char *name;
    /* Makes `queue->io`. UCCL_ENOTSUP: this machine does not allow it; `reason` then says why and
     * what to change. UCCL_ENOMEM (logged). */
    int (*open)(struct udp_queue *queue, char *reason, size_t reason_size);
    void (*close)(struct udp_queue *queue);
    /* Hands the batch to the kernel. Sends that meet a full socket stay. True: none stays. */
    bool (*transmit)(struct udp_queue *queue);
    unsigned (*poll)(struct udp_queue *queue, struct nic_rx *out, unsigned max);
    void (*release)(struct udp_queue *queue, const struct nic_rx *rx);
    /* Ends, too, when `beside_fd` is readable; -1: none. */
    void (*wait)(struct udp_queue *queue, int beside_fd, uint64_t timeout_ns);
};

static inline struct udp_queue *udp_queue_of(const struct nic_queue *queue)
{
    return (struct udp_queue *)(uintptr_t)queue;
}

/* udp/send.c */
bool udp_send(struct nic_queue *base, const struct tx_desc *desc);
unsigned udp_flush(struct nic_queue *base);

/* udp/ends.c */
void udp_choose_ends(struct udp_nic *nic);
void udp_ends_open(struct udp_queue *queue);
/*
 * Looks at the NIC by which a peer is about to be added. True: it is down, and event() will say so of the peer. A route
 * there may come only with its link.
 */
bool udp_ends_begin_down(struct udp_queue *queue, unsigned nic);
/* Of nic_end_ops: those of the device, which TCP shares. */
unsigned udp_ends_list(const struct nic *base, struct nic_end out[NIC_ENDS_MAX]);
int udp_ends_holder(const struct nic *base, const union nic_address *address);
int udp_ends_device(const struct nic *nic, unsigned end);
bool udp_ends_up(const struct nic *nic, unsigned end);
/* A control message of a received buffer: sets rx->nic if it tells the interface. */
void udp_ends_read_control(const struct udp_queue *queue, const struct cmsghdr *cmsg, struct nic_rx *rx);
void udp_ends_count(struct udp_queue *queue, const struct nic_rx *rx, unsigned count);

/*
 * udp/source.c. The control messages for a peer: datagrams leave from its `local` (`addressed`), through its interface
 * if that is not 0, and with its traffic class.
 */
void udp_set_source(struct udp_peer *peer, bool addressed);
/* What a packet's field has for a traffic class: the class, and that the transport is capable of ECN. */
static inline int udp_class_field(unsigned traffic_class)
{
    return (int)((traffic_class & ~3u) | NIC_ECN_ECT0);
}

/* The tables of a queue. */
extern const struct nic_queue_ops udp_queue_ops;
extern const struct nic_datagram_ops udp_datagram_ops;

extern const struct udp_driver_ops udp_mmsg_driver;
#ifdef HAVE_LIBURING
extern const struct udp_driver_ops udp_uring_driver;
#endif

/* sendmmsg() over the batch: the transmit() of both drivers. */
bool udp_transmit(struct udp_queue *queue);

/* Asks the kernel whether a socket is still full: then nothing is sent. */
bool udp_is_full(struct udp_queue *queue);
/*
 * A sleep ends once when a full socket may have room. Before it: sets the socket to poll, or shortens the timeout where
 * polling would return at once. In it: the socket is writable. The owner's: no socket is full.
 */
void udp_arm(struct nic_queue *base, uint64_t *timeout_ns);
void udp_full_seen(struct udp_queue *queue);
void udp_full_over(struct udp_queue *queue);

/* Fills stride, ce from the control messages of a received buffer whose data and length are set,
 * and counts drops. */
void udp_read_control(struct udp_queue *queue, struct msghdr *header, struct nic_rx *rx);

/* Logs that memory ran out and returns UCCL_ENOMEM. */
int udp_no_memory(const struct udp_queue *queue);

/* Asks for the path MTU of a peer again; follow() reports a change. */
void udp_check_mtu(struct udp_queue *queue, uint32_t destination);

#endif
