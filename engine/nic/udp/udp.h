/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What udp.c (sockets, peers), send.c (assembling what to send) and the two I/O drivers (udp/mmsg.c,
 * udp/uring.c: system calls and receive buffers) share.
 *
 * A queue has one main socket that receives, and sends path 0; further sockets only send, so that
 * each path has a source port, and with it an ECMP route, of its own. Peers answer to the main
 * port; what they send to the ports of others is for firewalls (reach.h), and nobody reads it. All sockets are blocking ones, used with MSG_DONTWAIT: io_uring does not wait on
 * non-blocking ones.
 *
 * Thread: everything belongs to the queue's owner, but for `wake_fd`.
 */
#ifndef UCCL_UDP_H
#define UCCL_UDP_H

#include "nic/netdev.h"
#include "nic/nic.h"

enum {
    UDP_MAIN_SOCKET = 0,
    UDP_RX_BYTES = 65536,  /* of a receive buffer: the largest that GRO makes, or a datagram */
    UDP_RX_CONTROL = 128,  /* control messages of one receive: GRO size, ECN, drops */
    UDP_BATCH_SENDS = 16,  /* staged sends that are pushed out without waiting for flush() */
    UDP_BATCH_BIG = 16384, /* bytes of a descriptor that is not held back */
    UDP_BATCH_MAX = UDP_BATCH_SENDS + CORE_TRAIN_MAX,
    UDP_BATCH_BYTES = 65536, /* assembled datagrams: one whole train, small enough for L2 */
    UDP_IOVEC_MAX = 256,
    UDP_IN_PLACE_MIN = 4096, /* datagrams from here on are sent from the payload where it lies */
    UDP_MTU_CHECK_SENDS = 16384, /* descriptors to a peer between two looks at its path MTU */
    UDP_NO_PEER = -1,
    UDP_NONE_FULL = -1,
    UDP_FULL_NAP_NS = 1000 * 1000, /* until a look at a full socket that the kernel calls writable */
};

/*
 * Datagrams to a peer leave from the address that its handshake came to or left from: a firewall in between may know
 * no other. This is the control message for sendmsg(), IP_PKTINFO or IPV6_PKTINFO. It costs 0.3 us a send, so there is
 * none where the kernel chooses that address by itself.
 */
struct udp_source {
    uint32_t length; /* bytes in use; 0: there is none */
    _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

/* One peer's address. */
struct udp_peer {
    union nic_address address; /* of the sockets' family */
    union nic_address local;   /* likewise, of ours, to ask for routes from; family 0: any */
    struct udp_source source;  /* to send from */
    uint32_t datagram_bytes;   /* what the route allows, as last reported or about to be */
    uint16_t ports[NIC_PORTS_TOLD_MAX]; /* that it sends from, in network byte order; 0: not told */
    uint32_t descs_to_check;   /* countdown to the next look at the path MTU */
    int32_t next;              /* in the free list or in the list of MTU news */
    bool used;
    bool mtu_pending; /* follow() is to report it */
    bool gso;        /* segmentation offload works towards it */
    bool complained; /* a failure has been logged */
};

/* One sendmsg() to come: one datagram, or a run of equal ones (the last may be shorter) under GSO.
 */
struct udp_send {
    union nic_address to;
    struct udp_source source;
    uint32_t destination;
    uint32_t desc; /* running number of the descriptor that it is part of */
    uint32_t bytes;
    uint32_t segment; /* bytes of every datagram but the last */
    uint16_t datagrams;
    uint16_t socket;
    uint16_t iovec, iovec_count;
    bool gone;    /* handed to the kernel, or given up: lost on the way */
    bool blocked; /* its socket could take no more */
};

/* What send() has staged. Buffer and vectors start afresh whenever no send is left. */
struct udp_batch {
    uint32_t count; /* of `sends` */
    uint32_t iovec_count;
    uint32_t bytes_used; /* of `buffer` */
    uint32_t descs_lost; /* since the last flush() */
    uint32_t last_lost;  /* running number of the last of them */
    uint32_t desc;       /* running number of the newest descriptor */
    uint8_t *buffer;     /* UDP_STAGE_BYTES */
    struct udp_send sends[UDP_BATCH_MAX];
    struct iovec iovecs[UDP_IOVEC_MAX];
};

struct udp_driver_ops;

struct udp_queue {
    struct nic_queue base;
    struct nic_queue_setup setup;
    const struct udp_driver_ops *driver;
    void *io;     /* the driver's own state */
    int *sockets; /* [0]: the main one */
    uint32_t socket_count;
    bool v6;  /* dual-stack sockets: IPv4 peers as v4-mapped addresses */
    bool gso; /* the kernel knows UDP_SEGMENT */
    uint16_t ports[NIC_PORTS_TOLD_MAX]; /* of the first sockets */
    uint64_t rx_bytes;
    uint32_t drops_seen; /* the kernel's drop count of the main socket when last told */
    int wake_fd;         /* eventfd: written by wake() on any thread, read by the owner */
    struct udp_peer *peers;
    uint32_t peer_count, peer_capacity;
    int32_t peer_free; /* head of the free list, or UDP_NO_PEER */
    int32_t mtu_pending; /* head of the list of MTU news, or UDP_NO_PEER */
    int32_t full_socket;    /* the one that took no more when last asked, or UDP_NONE_FULL */
    bool full_again;        /* none has taken anything since one was last full */
    uint64_t full_until_ns; /* CLOCK_MONOTONIC; 0: until it is writable */
    struct udp_batch batch;
};

/* The system calls behind a queue. Errors as in nic.h. */
struct udp_driver_ops {
    const char *name;
    /* Makes `queue->io`. UCCL_ENOTSUP: this machine does not allow it; `reason` then says why and
     * what to change. UCCL_ENOMEM (logged). */
    int (*open)(struct udp_queue *queue, char *reason, size_t reason_size);
    void (*close)(struct udp_queue *queue);
    /* Hands staged sends to the kernel; what is left staged met a full socket. True: none left. */
    bool (*transmit)(struct udp_queue *queue);
    unsigned (*poll)(struct udp_queue *queue, struct nic_rx *out, unsigned max);
    void (*release)(struct udp_queue *queue, const struct nic_rx *rx);
    void (*wait)(struct udp_queue *queue, uint64_t timeout_ns);
};

static inline struct udp_queue *udp_queue_of(const struct nic_queue *queue)
{
    return (struct udp_queue *)(uintptr_t)queue;
}

static inline void udp_set_port(union nic_address *address, uint16_t port)
{
    if (address->any.sa_family == AF_INET6)
        address->v6.sin6_port = port;
    else
        address->v4.sin_port = port;
}

/* udp/send.c */
bool udp_send(struct nic_queue *base, const struct tx_desc *desc);
unsigned udp_flush(struct nic_queue *base);

/* The tables of a queue. */
extern const struct nic_queue_ops udp_queue_ops;
extern const struct nic_datagram_ops udp_datagram_ops;

extern const struct udp_driver_ops udp_mmsg_driver;
#ifdef HAVE_LIBURING
extern const struct udp_driver_ops udp_uring_driver;
#endif

/* sendmmsg() over what is staged: the transmit() of both drivers. */
bool udp_transmit(struct udp_queue *queue);

/* Whether a socket is full still, by a look at it: then nothing is sent. */
bool udp_is_full(struct udp_queue *queue);
/*
 * For a driver's wait(), which ends once when there may be room: the socket to poll for it, or -1; what is left of
 * its timeout where polling would not wait; and to be told when the poll has ended.
 */
int udp_full_fd(const struct udp_queue *queue);
uint64_t udp_full_nap(struct udp_queue *queue, uint64_t timeout_ns);
void udp_full_over(struct udp_queue *queue);

/* Fills stride, ce from the control messages of a received buffer whose data and length are set,
 * and counts drops. */
void udp_read_control(struct udp_queue *queue, struct msghdr *header, struct nic_rx *rx);

/* Logs that memory ran out and returns UCCL_ENOMEM. */
int udp_no_memory(const struct udp_queue *queue);

/* Asks for the path MTU of a peer again; the news is kept for follow(). */
void udp_check_mtu(struct udp_queue *queue, uint32_t destination);

#endif
