/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tcp.c (devices, queues, peers), connect.c and conn.c (connections, their beginning and end), in.c (reading),
 * out.c (writing), loss.c and hole.c (what the network loses) and links.c (NICs that go down) share.
 *
 * Each path of a flow is a TCP connection. Path 0 carries small messages and control, the others bulk, so that nothing
 * small waits behind bulk. The side that has dialled the handshake dials the paths, to the port of the other side's
 * queue, and dials again when a connection breaks. What was under way on it is lost; the core sends that again over
 * another path (core_path_broken()).
 *
 * Readiness comes from one edge-triggered epoll per queue: a connection is `readable` until a read finds it empty, and
 * `full` from a short write until the kernel says that there is room. One that alone brings messages is taken from
 * epoll meanwhile (in.c). Reading needs no room for writing and no memory that may be missing for long, so two sides
 * that both write always drain each other. Payload is referred to only within send() and flush(): what the socket did
 * not take of a record is copied (`tail`).
 *
 * Thread: everything belongs to the queue's owner, but for `wake_fd`.
 */
#ifndef UCCL_TCP_H
#define UCCL_TCP_H

#include "core/queue.h"
#include "nic/link_watch.h"
#include "nic/nic.h"
#include "nic/tcp/record.h"

enum {
    TCP_SLOTS = 8, /* as many reads as there are buffers to give out in one poll() */
    TCP_SLOT_BYTES = 2 * (RECORD_PREFIX_BYTES + RECORD_PLAIN_MAX),
    TCP_DISCARD_BYTES = 65536,
    TCP_STRANGERS_MAX = 64, /* connections that have not greeted yet */
    TCP_HELD_MAX = 64,      /* records that wait for flush() */
    TCP_IOVEC_MAX = 2 * TCP_HELD_MAX + 2,
    /* records leave together, without flush(), from so many bytes on: */
    TCP_BATCH_MAX = 1000000,
    TCP_BATCH_MIN = 16384, /* where the kernel did not take all that it was given */
    /* polls without a look, as far as in.c counts */
    LOOK_AFTER_SLEEP = 1024,
    LOOK_UNUSED = 16384,     /* before the next one, while there are no connections, */
    LOOK_UNUSED_SLEEPS = 64, /* or so many sleeps: a stranger who waits ends each of them at once */
};

enum tcp_conn_state {
    TCP_DOWN, /* waits until it may be dialled again, or for the peer to dial */
    TCP_DIALLING,
    TCP_UP,
};

/* Where the payload of a bulk record goes that is being read. */
enum tcp_body {
    BODY_NONE,    /* no such record is under way */
    BODY_TARGET,  /* to the memory that kept_target names; asked for again before each read */
    BODY_BUFFER,  /* to a buffer of its own, as it has no such memory */
    BODY_DISCARD, /* nowhere: the memory has been withdrawn meanwhile, with its message */
};

/* What the kernel has told of a connection's segments: some for a look at heavy loss, more for one at little. */
struct tcp_loss {
    struct tcp_look {
        uint32_t segments, all_lost; /* sent, and lost, up to the last look that had enough of them */
        uint32_t sent, lost;         /* between the one before and the newest look */
        uint64_t much_ns;            /* since when each look found too much; 0: the last one did not */
    } heavy, light;
};

/* Whether large segments vanish on the way to a peer. */
struct tcp_hole {
    uint64_t barren_ns;    /* when a connection broke last of which no whole segment was acked; 0: one was since */
    uint32_t packet_bytes; /* of later connections, at most; 0: as the route takes */
    bool told;             /* by the log */
};

struct tcp_peer;

/* One path of a peer. */
struct tcp_conn {
    struct tcp_peer *peer;
    struct queue_link ready; /* on queue->ready: has something to read */
    struct queue_link event; /* on queue->events */
    int fd;                  /* -1: none */
    uint16_t path;
    uint8_t state;                        /* enum tcp_conn_state */
    bool readable;                        /* the kernel may have bytes */
    bool hung_up;                         /* or the end of the stream, which comes with no further edge */
    bool full;                            /* the kernel takes no more */
    int write_error;                      /* or never will: the peer has closed it; 0: it will */
    bool unwatched;                       /* epoll does not have it: each poll reads it (in.c) */
    bool broken_due, lossy_due, room_due; /* what event() is to report, in this order */
    bool refused;                         /* the core was told that there is no room, so room_due will be */
    uint32_t generation;                  /* of the greeting */
    uint32_t failures;                    /* to dial, in a row */
    uint64_t since_ns;                    /* when it came up */
    uint32_t turn;                        /* the last poll() in which it had one */
    uint64_t act_ns;                      /* DOWN: dial then; DIALLING: give up then; UP: write on; UINT64_MAX: never */
    /* reading: bytes that have been read and not been handed out */
    uint8_t *stash;
    uint32_t stash_bytes, stash_capacity;
    uint8_t heads[2][RECORD_HEAD_BYTES]; /* of the bulk record under way, and room for the next */
    uint8_t head;                        /* which of them */
    uint8_t body;                        /* enum tcp_body */
    uint8_t *body_to;                    /* TARGET, BUFFER */
    uint32_t body_bytes, body_done;
    /* writing: what is left of records whose beginning the kernel has taken */
    uint8_t *tail;
    uint32_t tail_bytes, tail_done;
    uint32_t batch_bytes; /* TCP_BATCH_MIN to TCP_BATCH_MAX: doubles with each batch that the kernel takes whole */
    /* loss.c */
    uint64_t unlooked_bytes; /* written since the kernel was asked */
    struct tcp_loss loss;
};

struct tcp_peer {
    struct tcp_peer *next; /* of queue->peers */
    uint32_t destination;
    bool dials;
    bool complained; /* a failure has been logged, */
    bool despaired;  /* and that nobody answers */
    bool swallowed;  /* why connections broke last: nothing got through */
    struct tcp_hole hole;
    struct flow *flow;    /* NULL: not introduced yet */
    uint8_t rail, rails;  /* of the flow, and how many it has */
    uint64_t patience_ms; /* and the rest of nic_flow */
    bool beside;
    union nic_address address; /* with the port of its queue */
    union nic_address local;   /* ours that its connections have, */
    unsigned nic;              /* and the NIC that they go through, as in nic_host; 0: the routes decide both */
    uint64_t rx_token, tx_token;
    uint16_t path_count;
    uint8_t traffic_class; /* as in nic_host */
    struct tcp_conn conns[];
};

/* A connection that has not greeted yet. */
struct tcp_stranger {
    int fd; /* -1: none */
    uint32_t got;
    uint64_t since_ns;
    uint8_t bytes[GREETING_BYTES];
};

struct tcp_queue {
    struct nic_queue base;
    struct nic_queue_setup setup;
    int epoll_fd, listen_fd, wake_fd;
    uint16_t port;
    bool deaf;          /* out of descriptors or memory: accepts nobody until listen_ns */
    bool short_of_fds;  /* the log says that connections could not be accepted */
    int spare_fd;       /* to accept connections that are turned away; -1: none */
    uint64_t listen_ns; /* when it accepts again */
    uint64_t act_ns;    /* when tcp_act() has something to do; UINT64_MAX: never */
    struct link_watch links;
    struct queue ready, events;
    uint32_t turn;         /* number of poll() */
    unsigned since_look;   /* polls since the last look at epoll */
    unsigned calm_looks;   /* in a row that found nothing */
    struct tcp_conn *sole; /* the last one that has brought something; NULL: it is gone */
    unsigned sole_reads;   /* in which it did, since another one has */
    unsigned awake_reads;  /* the same, since the last sleep */
    unsigned live;         /* connections that are up or being dialled */
    struct tcp_peer *peers;
    struct tcp_peer **by_destination;
    uint32_t destination_count;
    struct tcp_stranger strangers[TCP_STRANGERS_MAX];
    unsigned stranger_count;
    /* reading */
    uint8_t *slots; /* TCP_SLOTS of TCP_SLOT_BYTES */
    unsigned slots_used;
    uint8_t *spent[TCP_SLOTS]; /* buffers of records that the last poll() has handed out */
    unsigned spent_count;
    uint8_t *discard; /* TCP_DISCARD_BYTES */
    uint8_t *zeros;   /* RECORD_BULK_MAX, read-only: the payload of records that nobody wants any more */
    /* writing */
    uint8_t *gathered;        /* one bulk record whose payload the CPU cannot read in place; made when needed */
    struct tcp_conn *held_by; /* whose records wait for flush() */
    unsigned held_records, iovec_count;
    uint32_t held_bytes;
    uint8_t heads[TCP_HELD_MAX][RECORD_HEAD_BYTES];
    struct iovec iovecs[TCP_IOVEC_MAX];
};

static inline struct tcp_queue *tcp_queue_of(const struct nic_queue *queue)
{
    return (struct tcp_queue *)(uintptr_t)queue;
}

static inline struct tcp_peer *tcp_peer_of(const struct tcp_queue *queue, uint32_t destination)
{
    return queue->by_destination[destination & ~NIC_BESIDE];
}

static inline struct tcp_conn *tcp_conn_of(const struct tcp_queue *queue, uint32_t destination, uint16_t path)
{
    struct tcp_peer *peer = tcp_peer_of(queue, destination);
    return path < peer->path_count ? &peer->conns[path] : NULL;
}

/* Whether some connection to the peer is there. */
static inline bool tcp_is_up(const struct tcp_peer *peer)
{
    for (unsigned i = 0; i < peer->path_count; i++)
        if (peer->conns[i].state == TCP_UP)
            return true;
    return false;
}

/* What goes over the NIC of a peer's rail is counted here, at the main queue; NULL: the routes choose. */
static inline struct nic_end_counters *tcp_end_of(struct tcp_queue *queue, const struct tcp_peer *peer)
{
    struct nic_queue *main = queue->setup.beside ? queue->setup.beside : &queue->base;
    return peer->nic ? &main->ends[peer->nic - 1] : NULL;
}

/* Whether the peer's NIC is down, and the kernel will tell when it is up. Till then no connection can be made. */
static inline bool tcp_waits_for_link(const struct tcp_queue *queue, const struct tcp_peer *peer)
{
    return link_watch_is_down(&queue->links, peer->nic) && queue->links.netlink_fd >= 0;
}

/* No record waits for flush() any more: those that did leave now, or never. */
static inline void tcp_forget_held(struct tcp_queue *queue)
{
    queue->held_by = NULL;
    queue->held_records = queue->iovec_count = queue->held_bytes = 0;
}

/* The tables of a queue. */
extern const struct nic_queue_ops tcp_queue_ops;
extern const struct nic_datagram_ops tcp_datagram_ops;
extern const struct nic_channel_ops tcp_channel_ops;

/* How bad it is that a queue finds no memory or descriptors: without one beside them, datagrams carry all. */
#define TCP_LOG_ERROR(queue) ((queue)->setup.beside ? UCCL_LOG_WARN : UCCL_LOG_ERROR)

/* ---- conn.c ---------------------------------------------------------------------------------- */

/* tcp_act() has something to do then. */
void tcp_act_at(struct tcp_queue *queue, uint64_t at_ns);
/* event() has something to report of it. */
void tcp_report(struct tcp_queue *queue, struct tcp_conn *conn);
/* Forgets what has been read of a record, and what is left to write. */
void tcp_forget_in(struct tcp_conn *conn);
void tcp_forget_out(struct tcp_queue *queue, struct tcp_conn *conn);
/* A record has come over a connection that was hard to make. */
void tcp_succeed(struct tcp_queue *queue, struct tcp_conn *conn);
/* The connection is of no use any more: `why` is for the log. What was under way on it is lost. */
void tcp_break(struct tcp_queue *queue, struct tcp_conn *conn, const char *why);
/* The same, where the kernel says why (errno). */
void tcp_break_of(struct tcp_queue *queue, struct tcp_conn *conn, int error);
/* Closes it for good, with the peer's last bytes read, so that ours arrive. */
void tcp_hang_up(struct tcp_queue *queue, struct tcp_conn *conn);
/* Lets epoll watch a connection: `how` of epoll_ctl(). False: errno. */
bool tcp_watch_conn(struct tcp_queue *queue, int how, struct tcp_conn *conn);
/* Takes a connection that is up from epoll, and gives it back. False: that is not possible now (errno). */
void tcp_unwatch(struct tcp_queue *queue, struct tcp_conn *conn);
bool tcp_watch_again(struct tcp_queue *queue, struct tcp_conn *conn);
/* Closes a descriptor that epoll watches. */
void tcp_close_watched(struct tcp_queue *queue, int fd);

/* ---- connect.c ------------------------------------------------------------------------------- */

/* Opens the socket that peers dial. 0, or an error (logged). */
int tcp_listen(struct tcp_queue *queue);
/* Takes a descriptor that is kept for accepting connections where there is no other; the queue does without one. */
void tcp_keep_spare(struct tcp_queue *queue);
/* Lets epoll report what the kernel tells of links. False: it cannot. */
bool tcp_watch_links(struct tcp_queue *queue);
/* Takes what epoll reports: new connections, greetings, readiness. */
void tcp_look(struct tcp_queue *queue);
/* What is due at `now_ns`: dialling, giving up. */
void tcp_act(struct tcp_queue *queue, uint64_t now_ns);
/* Begins with a connection that is down, unless its NIC is: tcp_links_event() goes on. */
void tcp_dial(struct tcp_queue *queue, struct tcp_conn *conn, uint64_t now_ns);

/* ---- in.c ------------------------------------------------------------------------------------ */

unsigned tcp_poll(struct nic_queue *base, struct nic_rx *out, unsigned max);
void tcp_release(struct nic_queue *base, const struct nic_rx *rx);
/* Frees the buffers that the last poll() has handed out. */
void tcp_free_spent(struct tcp_queue *queue);

/* ---- out.c ----------------------------------------------------------------------------------- */

bool tcp_send(struct nic_queue *base, const struct tx_desc *desc);
unsigned tcp_flush(struct nic_queue *base);
/* The kernel says that there is room. */
void tcp_write_on(struct tcp_queue *queue, struct tcp_conn *conn);

/* ---- links.c --------------------------------------------------------------------------------- */

void tcp_links_open(struct tcp_queue *queue);
/* nic_end_ops.event */
bool tcp_links_event(struct nic_queue *base, struct nic_end_event *out);

/* ---- hole.c ---------------------------------------------------------------------------------- */

struct tcp_info;
/*
 * A connection is about to break since nothing was acknowledged for long (ETIMEDOUT). True: large messages go elsewhere
 * for a while, since large segments vanish, and the next connection will not have smaller ones.
 */
bool tcp_meets_hole(struct tcp_conn *conn);
/* The judgement, of a connection that came up at `since_ns`. True: large segments vanish. Sets `packet_bytes`. */
bool tcp_is_hole(struct tcp_hole *hole, const struct tcp_info *info, uint64_t since_ns, uint64_t now_ns);

/* ---- loss.c ---------------------------------------------------------------------------------- */

/* The kernel has taken so many bytes: looks now and then how many segments it had to send again. */
void tcp_look_for_loss(struct tcp_queue *queue, struct tcp_conn *conn, size_t bytes);
/* The look that finds, as one before it did, that the network loses too much, by TCP_INFO; NULL: none does. */
const struct tcp_look *tcp_loses(struct tcp_loss *loss, const struct tcp_info *info, uint64_t now_ns);

#endif
