/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIC backends behind tables of operations, one per kind of work:
 *
 *     nic_device_ops    what there is: opening, addresses                       every backend
 *     nic_queue_ops     an engine thread's part of the NIC, and its sleep       every backend
 *     nic_datagram_ops  peers, sending and receiving datagrams                  every backend so far
 *     nic_end_ops       several NICs in one engine                              where the backend finds several
 *     nic_channel_ops   paths that are connections                              only backends that connect them
 *     nic_way_ops       asking the network nearby for peers                      where peer_add() would wait for it
 *     nic_memory_ops    registration of memory that the NIC reaches by itself   only NICs that place payload
 *     nic_data_qp_ops   queue pairs over which the NIC places payload           only NICs that place payload
 *
 * A backend embeds `struct nic` first in its own device and `struct nic_queue` first in its own queue. A table that a
 * backend does not have is NULL; no entry of a table is. The engine branches on tables and capabilities, never on a
 * backend's name. What datagrams and writes mean is the core's business.
 *
 * Threads: uccl_open() makes a `nic` and uccl_close() frees it. A `nic_queue` belongs to one engine thread. Whoever
 * owns that engine uses it, one at a time: the engine thread, or an application thread that borrowed the engine. Only
 * wake() may come from any thread at any time.
 */
#ifndef UCCL_NIC_H
#define UCCL_NIC_H

#include "core/core.h"
#include "core/wire.h"
#include "defs/counters.h"
#include "defs/params.h"
#include "uccl/engine.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>

struct nic;
struct nic_queue;

/* ECN, the two low bits of a traffic class (RFC 3168): congestion was met; the transport understands such marks. */
enum { NIC_ECN_CE = 3, NIC_ECN_ECT0 = 2 };

enum { NIC_TX_BATCH = 8 }; /* descriptors that a round sends between two flushes, at most */

struct nic_caps {
    bool reliable;       /* retransmits what is lost by itself */
    bool in_order;       /* per path */
    bool whole_trains;   /* a train costs about one send, however many datagrams it has */
    bool lendable;       /* queues may be driven by changing threads */
    bool room_wakes;     /* wait() ends when there is room for a send that was refused */
    bool close_in_child; /* close() in a child of fork() touches nothing of the parent's */
    bool routed;         /* one NIC: the kernel's routes decide which; else it is BACKEND_DEVICE */
};

/* A socket address of either family. */
union nic_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
};

static inline socklen_t nic_address_length(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}
/* In network byte order. */
static inline in_port_t *nic_address_port(union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? &address->v6.sin6_port : &address->v4.sin_port;
}
/* Bytes of the headers of IP and UDP in a packet to this address. */
static inline uint32_t nic_udp_headers(const union nic_address *address)
{
    bool v6 = address->any.sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr);
    return v6 ? 40 + 8 : 20 + 8;
}

/* A peer's host, and the address of ours by which it knows us. Ports mean nothing. */
struct nic_host {
    union nic_address address;
    union nic_address local; /* datagrams to the host leave from it; family 0: from whatever the route has */
    unsigned nic;            /* and through NIC `nic` - 1 of nic_end_ops.list(); 0: through whatever the route has */
    unsigned peer_nic;       /* to this one of the NICs in the peer's queue address, if it names several */
    uint8_t traffic_class;   /* of packets to the host, with ECN's bits, which do not count; 0: the parameters' */
};

/* One of several NICs that an engine uses, as peers see it. */
enum { NIC_ENDS_MAX = 16 };
struct nic_end {
    union nic_address address; /* port 0 */
    uint8_t prefix_bits;       /* of its subnet */
    uint32_t speed_mbps;       /* 0: unknown */
    uint32_t mtu;              /* bytes of an IP packet */
};

/*
 * A queue's address beside its host's: bytes that the backend over there writes and the one here reads. The handshake
 * carries them. The first byte names the backend.
 */
enum { NIC_QUEUE_ADDRESS_MAX = 128, NIC_WHY_TEXT = 96 };
enum nic_address_of { NIC_ADDRESS_UDP = 1, NIC_ADDRESS_VERBS = 2, NIC_ADDRESS_TCP = 3 };
enum { NIC_PORTS_TOLD_MAX = 16 }; /* UDP ports in an address, two bytes each; firewalls drop what further paths carry */
struct nic_queue_address {
    uint8_t length; /* 1..NIC_QUEUE_ADDRESS_MAX */
    uint8_t bytes[NIC_QUEUE_ADDRESS_MAX];
};

/* Destinations of a queue that stands beside another (nic_queue.beside) have this bit. */
#define NIC_BESIDE (UINT32_C(1) << 31)

/* How many ports an address names: the first paths send from these (flow_setup). */
uint16_t nic_queue_ports(const struct nic_queue_address *address);

/* For people: "UDP port 4791". */
enum { NIC_QUEUE_TEXT = 32 };
const char *nic_queue_address_text(const struct nic_queue_address *address, char out[NIC_QUEUE_TEXT]);

/* One received buffer: datagrams of `stride` bytes back to back (GRO); the last may be shorter. */
struct nic_rx {
    const uint8_t *data;
    uint32_t length;
    uint32_t stride;   /* == length for a single datagram */
    bool ce;           /* ECN congestion experienced */
    uint8_t nic;       /* by which it came: as in nic_host; 0: unknown, or the only one */
    unsigned in_place; /* the payload of the first `in_place` datagrams lies at `payload`, back to back, and not behind
                          their headers (nic_target_fn) */
    const uint8_t *payload;
    uint32_t slot;  /* the backend's, for release() */
    uint64_t at_ns; /* when the NIC had it, by CLOCK_MONOTONIC; 0: not known */
    /* of what came on a data QP */
    bool placed; /* the NIC has placed `length` bytes; no `data` */
    uint16_t path;
    uint32_t generation;
    uint32_t immediate; /* of the write */
    struct flow *flow;  /* NULL: a datagram, not from a data QP */
};

/* The payload of datagram `index`, or NULL: it follows its header. */
static inline const uint8_t *nic_rx_payload(const struct nic_rx *rx, unsigned index)
{
    return index < rx->in_place ? rx->payload + (size_t)index * (rx->stride - WIRE_BULK_HEADER_BYTES) : NULL;
}

/*
 * Memory that a NIC reaches by itself. A registration has one of these for each NIC of the engine, at the index that
 * the NIC has in nic_end_ops.list(): keys are those of one device.
 */
enum { NIC_PLACERS_MAX = 4 }; /* NICs of one engine that place payload */
struct nic_mr {
    uint32_t local_key;  /* for our work requests */
    uint32_t remote_key; /* for work requests of peers, which may write but not read */
    void *handle;        /* the backend's; NULL: not registered */
    /* of device memory: flush_device() reads this address by a key that no peer learns */
    uint32_t flush_key;
    void *flush_handle;
    uintptr_t flush_address;
    uint8_t nic; /* its index */
};

/*
 * Memory of a device to register: by its address, which the device's driver must be able to resolve, or as a dma-buf in
 * which the memory begins at `offset_bytes`.
 */
struct nic_device_memory {
    uintptr_t address;
    size_t length;
    int dmabuf_fd; /* -1: by address */
    uint64_t offset_bytes;
};

/* A flush that has completed. */
struct nic_flushed {
    void *cookie;
    bool failed; /* logged */
};

/* Names a path's data QP of one generation (core.h). */
struct nic_qp_id {
    struct flow *flow;
    uint32_t destination;
    uint32_t generation;
    uint16_t path;
};

struct nic_qp_event {
    struct nic_qp_id id;
    bool drained; /* what core_qp_drained() promises holds; else the data QP has failed (logged) */
};

/* A descriptor whose work requests have completed. */
struct nic_done {
    uint64_t cookie;
    uint64_t at_ns; /* as in nic_rx */
};

/* Copies payload [offset, offset+length) of a message to plain memory, whatever kind of memory holds it. */
typedef void (*nic_gather_fn)(void *to, const struct core_msg *msg, uint64_t offset, size_t length);
/* The address by which NIC `nic` (its index) reads the payload of a placeable message, and its key. */
typedef uint64_t (*nic_local_fn)(const struct core_msg *msg, uint64_t offset, unsigned nic, uint32_t *key);
/* The address of payload that the CPU can read in place, or NULL: then gather. */
typedef const void *(*nic_payload_fn)(const struct core_msg *msg, uint64_t offset);
/* Where nic_payload_fn says NULL: the address of this byte, and how many lie there behind each other; or NULL too. */
typedef const void *(*nic_piece_fn)(const struct core_msg *msg, uint64_t offset, size_t *length);

/*
 * Memory of the receive into which the payload of the first `*count` bulk datagrams of a train may be received
 * (core_copy_target()), or NULL: receive them like others.
 */
typedef void *(*nic_target_fn)(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count);

struct nic_queue_setup {
    const struct params *params;
    struct counters *counters;
    crc32c_fn crc32c;
    nic_gather_fn gather;
    nic_payload_fn payload;
    nic_piece_fn piece; /* or NULL */
    nic_local_fn local;
    nic_target_fn target;      /* or NULL */
    nic_target_fn kept_target; /* the same for payload that takes several reads: memory that nobody else gets as long as
                                  its message wants it; or NULL */
    void *owner;               /* for target */
    bool lent;                 /* must be drivable by changing threads */
    struct nic_queue *beside;  /* the main queue of its engine thread, beside which it stands; NULL: it is that one */
    unsigned index;            /* engine thread on this NIC */
};

/* A device, as uccl_open() opens one. */
struct nic_device_ops {
    enum nic_address_of kind; /* of its queues' addresses */
    /* Opens the backend. 0, or UCCL_ENODEV (logged: why there is no device), UCCL_EIO, UCCL_ENOMEM. */
    int (*open)(const struct params *params, struct nic **out);
    void (*close)(struct nic *nic);

    /* Devices as shown to the application, and the address that device `index` listens on (port 0). */
    int (*device_count)(const struct nic *nic);
    int (*device)(const struct nic *nic, int index, struct uccl_device *out, union nic_address *address);
    /* As netdev_addresses(): those by which peers may reach a listener on all devices. */
    int (*addresses)(const struct nic *nic, union nic_address *out, int max);
    /*
     * One queue per engine thread, and beside it one of the backend `nic->beside`, whose queues may be opened with any
     * `nic`.
     */
    int (*queue_open)(struct nic *nic, const struct nic_queue_setup *setup, struct nic_queue **out);
};

/* Registration of memory with one of the engine's NICs, `index` (0 where there is one). Any thread. */
struct nic_memory_ops {
    /* Registers host memory. 0, UCCL_ENOTSUP: this memory cannot be; UCCL_ENOMEM, UCCL_EIO (logged). */
    int (*reg_mr)(struct nic *nic, unsigned index, void *address, size_t length, struct nic_mr *out);
    /* The same for device memory; its address names it in either case. UCCL_ENOTSUP: `why` says why. */
    int (*reg_device)(struct nic *nic, unsigned index, const struct nic_device_memory *memory, struct nic_mr *out,
                      char why[NIC_WHY_TEXT]);
    /* What was never registered is left alone. */
    void (*dereg_mr)(struct nic *nic, struct nic_mr *mr);
};

/* A NIC of ours and one of a peer that reach each other, by their indices. */
struct nic_pair {
    uint8_t ours, theirs;
};

/*
 * Where queue addresses name the NICs: which of ours reaches which of a peer's, as both ends find it; `client`: our end
 * is the client's. The first pair is that of flow 0, and so on, counted round. Returns how many, at most `max`; 0: the
 * address is malformed. Any thread.
 */
typedef unsigned (*nic_pairs_fn)(const struct nic *nic, const struct nic_queue_address *theirs, bool client,
                                 struct nic_pair *out, unsigned max);

/* What the network nearby says about the ways to a peer. peer_add() would wait for that: ask before. Any thread. */
struct nic_way_ops {
    /*
     * Which of pairs() lead nowhere: bits in `*closed`. Each may take seconds; `*stop` ends it after the present one.
     * UCCL_EADDR: all of them, UCCL_ENOMEM (logged). peer_add() finds whatever else is wrong with the address.
     */
    int (*ask)(struct nic *nic, const struct nic_queue_address *theirs, bool client, const _Atomic bool *stop,
               uint32_t *closed);
    /* Whether two queues of a peer, as it says, have the same ports: then one answer holds for both. */
    bool (*same)(const struct nic_queue_address *a, const struct nic_queue_address *b);
};

/* The base of every backend's device. */
struct nic {
    const struct nic_device_ops *ops;
    const struct nic_end_ops *ends;      /* NULL: the engine uses one NIC */
    nic_pairs_fn pairs;                  /* NULL: queue addresses name no NICs; boot/rails.h pairs them */
    const struct nic_way_ops *ways;      /* NULL: peer_add() waits for nothing */
    const struct nic_memory_ops *memory; /* NULL: this NIC places nothing, so it registers nothing */
    const struct nic_device_ops *beside; /* reaches peers whom datagrams do not reach; has channels. NULL: none does */
    struct nic_caps caps;
    _Atomic int failure; /* nic_failure(); any thread that finds it out stores it */
};

/* A queue: an engine thread's part of the NIC. */
struct nic_queue_ops {
    void (*close)(struct nic_queue *queue);
    /* Where peers send to, and the bytes of receive buffer that are there for them. */
    void (*address)(const struct nic_queue *queue, struct nic_queue_address *out);
    uint64_t (*rx_bytes)(const struct nic_queue *queue);
    /*
     * Comes before each wait(), by the owner: all that the sleep needs of what the owner writes. Shortens the timeout,
     * to 0 if something has been received already.
     */
    void (*arm)(struct nic_queue *queue, uint64_t *timeout_ns);
    /*
     * Sleeps until something is received, `beside_fd` (nic_watch(); -1: none) is readable, wake() was called (also
     * shortly before), or `timeout_ns` has passed (UINT64_MAX: no limit). May return early. Meanwhile another thread
     * may have taken the queue over: this touches nothing that the queue's owner writes, but atomics.
     */
    void (*wait)(struct nic_queue *queue, int beside_fd, uint64_t timeout_ns);
    void (*wake)(struct nic_queue *queue);
};

/* A NIC has become unusable for the destinations that it leads to, or usable again. */
struct nic_end_event {
    uint32_t destination;
    bool up;
};

/*
 * Several NICs in one engine. Each serves all queues. Peers reach a queue at the same queue address on every NIC, but
 * for `pairs` of struct nic.
 */
struct nic_end_ops {
    /* The NICs: at least 2. Any thread. */
    unsigned (*list)(const struct nic *nic, struct nic_end out[NIC_ENDS_MAX]);
    /* Which of them has an address; -1: none. Any thread. */
    int (*holder)(const struct nic *nic, const union nic_address *address);
    /* The device, as device() counts, that a NIC is. */
    int (*device)(const struct nic *nic, unsigned end);
    /* Whether a NIC was usable when some queue last looked. Any thread. */
    bool (*up)(const struct nic *nic, unsigned end);
    /* What has become of the NICs: once a round, until it says false. */
    bool (*event)(struct nic_queue *queue, struct nic_end_event *out);
};

/* What went over one of several NICs of a queue. The queue's owner counts, anyone reads. */
struct nic_end_counters {
    _Atomic uint64_t tx_datagrams, tx_bytes, rx_datagrams, rx_bytes;
    _Atomic uint64_t losses, returns; /* of rails over it: the core's events */
};

struct nic_datagram_ops {
    /* Bytes of a full datagram that the route to a host allows. UCCL_EADDR: no route; UCCL_ENOMEM. */
    int (*route)(struct nic_queue *queue, const struct nic_host *host, uint32_t *datagram_bytes);
    /*
     * Prepares to send to a queue of a peer: returns in `destination` a number for tx_desc and in
     * `datagram_bytes` what the route allows now. UCCL_EPROTO (logged): the address is another backend's, or
     * malformed; UCCL_EADDR, UCCL_ENOMEM, UCCL_EIO.
     */
    int (*peer_add)(struct nic_queue *queue, const struct nic_host *host, const struct nic_queue_address *address,
                    uint32_t *destination, uint32_t *datagram_bytes);
    void (*peer_remove)(struct nic_queue *queue, uint32_t destination);

    /*
     * Sends what `desc` says, or holds it back until flush(): NIC_TX_BATCH descriptors at most. False: there is no
     * room now; the caller tells the core (core_tx_failed) and sends no more in this round. Copies the frames of a
     * TX_FRAMES chunk in any case. Refers to no payload after flush(), but for descriptors with `on_path`
     * (nic_data_qp_ops).
     */
    bool (*send)(struct nic_queue *queue, const struct tx_desc *desc);
    /* Pushes out what send() held back. Returns how many of those descriptors could not be sent; they count as lost
     * on the way. */
    unsigned (*flush)(struct nic_queue *queue);

    /* Takes up to `max` received buffers without blocking; returns how many, and writes every field of each.
     * release() each in turn. */
    unsigned (*poll)(struct nic_queue *queue, struct nic_rx *out, unsigned max);
    void (*release)(struct nic_queue *queue, const struct nic_rx *rx);

    /*
     * Follows what the device and the network report: once a round, until it says false. What has become of the device
     * shows in nic_failure() and in nic_data_qp_ops.event(). True: the path MTU of a destination has changed; its new
     * datagram size.
     */
    bool (*follow)(struct nic_queue *queue, uint32_t *destination, uint32_t *datagram_bytes);
};

/* A flow whose paths are connections. The tokens let its two ends prove to each other which flow a connection is of. */
struct nic_flow {
    struct flow *flow;
    uint8_t rail, rails;         /* whose paths they are, of how many */
    uint64_t rx_token, tx_token; /* flow_setup */
    bool dials;                  /* this side connects the paths */
    uint64_t patience_ms;        /* a path breaks if data goes unacknowledged for so long */
    bool beside;                 /* datagrams carry all where no path is up: paths are connected more and more rarely,
                                    and a lossy network is reported (nic_channel_event.lossy) */
};

/* What has become of a path. */
struct nic_channel_event {
    struct flow *flow;
    uint8_t rail;
    uint32_t destination;
    uint16_t path;
    bool broken; /* what was under way on it is lost: core_path_broken() */
    bool lossy;  /* the network loses more of what it carries than connections bear well: core_path_lossy(). Neither:
                    it has room: core_path_room() */
};

/*
 * Paths that are connections: reliable and in order, each by itself. A path carries nothing before its first event.
 * One that refuses a descriptor (nic_datagram_ops.send) tells by an event when it takes more.
 */
struct nic_channel_ops {
    /* After peer_add(): the flow whose paths lead to that destination. Connects them, and again when they break. */
    void (*introduce)(struct nic_queue *queue, uint32_t destination, const struct nic_flow *flow);
    /* Once a round, until it says false. */
    bool (*event)(struct nic_queue *queue, struct nic_channel_event *out);
    /*
     * Before wait(), by the queue's owner: the descriptor that is readable while this queue has something to do.
     * Shortens the timeout to the time when it has in any case.
     */
    int (*watch)(struct nic_queue *queue, uint64_t *timeout_ns);
    /* When paths are lost: whether nothing gets through to the destination; false: the peer has ended them. */
    bool (*swallowed)(const struct nic_queue *queue, uint32_t destination);
};

/*
 * Data QPs. What a descriptor with `on_path` refers to stays in use until poll_done() has returned its cookie, or a
 * later one of the same data QP, or until the data QP has been drained.
 */
struct nic_data_qp_ops {
    /* Whether both sides can place in each other's memory: both decide alike. */
    bool (*places)(const struct nic_queue *queue, const struct nic_queue_address *theirs);
    /* Makes a data QP and tells its number and first packet sequence number. 0, an error (logged), or UCCL_EAGAIN:
     * too many were made of late. */
    int (*open)(struct nic_queue *queue, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn);
    /* Connects it to the peer's. 0 or an error (logged). */
    int (*connect)(struct nic_queue *queue, const struct nic_qp_id *id, uint32_t number, uint32_t psn);
    /* Stops all traffic on it, in both directions; event() says when that is so. */
    void (*drain)(struct nic_queue *queue, const struct nic_qp_id *id);
    /* After that: destroys it once no packet to it can be under way any more. */
    void (*destroy)(struct nic_queue *queue, const struct nic_qp_id *id);
    bool (*event)(struct nic_queue *queue, struct nic_qp_event *out);
    /* The newest descriptor that has completed well, of each data QP that has one: all earlier ones have, too. */
    unsigned (*poll_done)(struct nic_queue *queue, struct nic_done *done, unsigned max);
    /*
     * Flushes registered device memory: reads its first byte, behind all that this NIC has written to that device.
     * Once the read has completed (poll_flushed(), in order), the device sees those bytes. False: as many as can be
     * are under way.
     */
    bool (*flush_device)(struct nic_queue *queue, const struct nic_mr *mr, void *cookie);
    unsigned (*poll_flushed)(struct nic_queue *queue, struct nic_flushed *out, unsigned max);
};

/* The base of every backend's queue. */
struct nic_queue {
    struct nic *nic;
    const struct nic_queue_ops *ops;
    const struct nic_datagram_ops *datagram;
    const struct nic_channel_ops *channel; /* NULL: paths need no connection */
    const struct nic_data_qp_ops *data_qp; /* NULL: this NIC places nothing */
    struct nic_queue *beside;              /* a queue with channels, whose work ends this one's wait(); NULL: none */
    struct nic_end_counters ends[NIC_ENDS_MAX];
};

/* How many NICs memory is registered with. */
unsigned nic_placers(const struct nic *nic);

/* The queue that a destination belongs to: this one, or the one beside it. */
static inline struct nic_queue *nic_queue_to(struct nic_queue *queue, uint32_t destination)
{
    return destination & NIC_BESIDE ? queue->beside : queue;
}

/* What comes before wait(), as long as the queue has no other owner. Returns the descriptor for it. */
static inline int nic_watch(struct nic_queue *queue, uint64_t *timeout_ns)
{
    struct nic_queue *channels = queue->channel ? queue : queue->beside;
    queue->ops->arm(queue, timeout_ns);
    return channels ? channels->channel->watch(channels, timeout_ns) : -1;
}

/* Whether a queue of a peer is to be reached by the backend beside. */
bool nic_goes_beside(const struct nic *nic, const struct nic_queue_address *theirs);

/* nic_end_ops.list(); 0: the engine uses one NIC. */
unsigned nic_ends(const struct nic *nic, struct nic_end out[NIC_ENDS_MAX]);

/*
 * 0, or the error (logged) for which a queue neither sends nor receives any more, for good: the device was removed.
 */
int nic_failure(const struct nic_queue *queue);

/* arm() of a queue that has nothing to do then. */
void nic_arm_nothing(struct nic_queue *queue, uint64_t *timeout_ns);

/* Wakes a queue whose wait() reads this eventfd. Counts nothing: counters are the owner's. */
void nic_wake_eventfd(int fd);
/*
 * For wait(): ppoll(). Where RLIMIT_NOFILE has become less than `count` since the engine was opened, which ppoll() does
 * not take, it sleeps for a millisecond at most and says that nothing is ready: the owner looks by itself.
 */
int nic_sleep(struct pollfd *fds, unsigned count, uint64_t timeout_ns);

extern const struct nic_device_ops udp_device_ops, tcp_device_ops;
#ifdef HAVE_VERBS
extern const struct nic_device_ops verbs_device_ops;
#endif

#endif
