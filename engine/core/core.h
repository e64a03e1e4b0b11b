/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol engine, sans-IO: one `struct core` per engine thread holds the flows and
 * connections of that thread. It makes no system call, reads no clock, takes no lock, allocates
 * nothing and never touches payload. The owner thread feeds it and pulls from it, in rounds:
 *
 *     core_rx() for each datagram        then core_next_copy() and core_next_release() until empty
 *     core_submit() for each post        then core_next_copy() until empty
 *     core_expire(now)
 *     core_next_path() until it returns false (NICs that place payload)
 *     core_tx() until it returns false   and core_next_release() until empty once a descriptor is sent
 *     core_next_event() until it returns false
 *
 * Contract on copies: whoever calls core_rx() or core_submit() performs the copies they produced
 * before the next core_rx(), core_tx() or core_next_event(): an ack or a completion may rely on them.
 */
#ifndef UCCL_CORE_H
#define UCCL_CORE_H

#include "core/queue.h"
#include "defs/counters.h"
#include "defs/params.h"
#include "uccl/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core;
struct flow;
struct conn;

enum {
    CORE_TRAIN_MAX = 64,           /* datagrams per chunk: bits of the mask */
    CORE_TRAIN_BYTES_MAX = 65472,  /* bytes per chunk on the wire: one UDP GSO send, IPv4 or IPv6; a chunk that
                                      was placed may be retransmitted by more (of CORE_TRAIN_MAX datagrams) */
    CORE_KERNEL_BYTES = 768,       /* what a datagram takes of a socket buffer beside its bytes */
    CORE_DATAGRAM_MIN = 512,       /* smallest datagram size that the wire format works with */
    CORE_DATAGRAM_BASE = 1232,     /* gets through every network: IP packets of 1,280 bytes (RFC 8200 5) */
    CORE_STRIPES_MAX = 64,         /* flows that may share one message */
    CORE_WATCHED_BYTES = 128,      /* alignment of watched buffers, and of all that is written into them but the end */
    CORE_FRAMES_MAX = 512,         /* frames in one datagram */
    CORE_GATHER_MAX = 512,         /* payload pieces in one chunk of small messages */
    CORE_COPIES_MAX = 4 * CORE_FRAMES_MAX, /* that one core_rx() or core_submit() may produce */
};

/* ---- messages -------------------------------------------------------------------------------- */

enum core_msg_kind { CORE_SEND, CORE_RECV };

/*
 * One send or receive. It lives inside the caller's request; the core owns it from core_submit() until
 * core_next_event() hands it back.
 */
struct core_msg {
    /* the core's: core_submit() clears these */
    struct core_msg *next;  /* the list that it is on: queue, or complete */
    struct core_msg *prev;  /* for removal from the middle of a queue */
    struct conn *conn;
    uint64_t moved_bytes;   /* when complete: bytes moved */
    uint64_t ring_at;       /* eager send: where it begins in the peer's ring */
    uint64_t offset_bytes;  /* send: first byte not yet put into a chunk */
    uint64_t end_bytes;     /* send: one past the last byte that this connection sends */
    uint64_t available_bytes; /* staged send: bytes before it may be sent */
    struct queue_link split, wanted; /* for CORE_EVENT_SPLIT, CORE_EVENT_WANTED */
    uint64_t deferred_until;    /* ended, but not given back yet: see place.h */
    uint32_t chunks_live;   /* send: chunks that refer to this payload */
    uint32_t work_live;     /* send: work requests of the NIC that read it */
    int32_t status;         /* when complete: 0 or a negative uccl_error */
    uint16_t grant_slot;    /* receive: what immediates call it, from 1; 0: not granted */
    uint8_t state;          /* enum msg_state, conn.c */
    uint8_t flags;          /* enum msg_flag, conn.c */
    uint8_t deferral;       /* enum deferral, place.h */
    /* the caller's: set before core_submit() */
    uint8_t kind;           /* enum core_msg_kind */
    uint8_t stripes;        /* receive: flows that may share it; of a part, and later of a send: parts that it is cut into; 0: one */
    bool placeable;         /* the NIC reaches the buffer, to read a send or write a receive */
    bool watched;           /* receive: its buffer is read while it is pending, so that whole units of CORE_WATCHED_BYTES are
                               written to it, but for its end, in order, and never by the NIC. Send: so is the receive, as
                               its clear-to-send says */
    uint32_t block_bytes;   /* send of one byte or more: staged, its payload comes in blocks of this size; 0: it is there */
    uint32_t grant_key;     /* receive: what the peer's NIC writes with */
    uint64_t grant_address; /* receive: of the buffer, as the peer's NIC names it */
    uint64_t size_bytes;    /* send: length of the message; receive: capacity of the buffer */
    uint64_t number;        /* k of its direction: send k matches receive k; the caller's of a part, else the core's */
};

/* ---- set-up ---------------------------------------------------------------------------------- */

typedef uint32_t (*crc32c_fn)(uint32_t crc, const void *data, size_t length);

struct core_setup {
    const struct params *params;  /* outlives the core */
    struct counters *counters;    /* outlives the core */
    crc32c_fn crc32c;             /* the fastest one that the machine has */
    uint64_t seed;                /* of all randomness */
    bool paths_in_order;          /* capability: a path never reorders */
    bool places_reliably;         /* capability: queue pairs that place retransmit what is lost themselves (RC) */
    bool places_in_order;         /* capability: such a queue pair neither reorders nor duplicates */
};

/* Bytes for a core, and its initialisation in `memory` (64-byte aligned, zeroed, outlives it). */
size_t core_size(const struct params *params);
struct core *core_init(void *memory, const struct core_setup *setup, uint64_t now_ns);

/* The rate at which peers may send to this core, which it grants to those that ask (credit.h); 100 Gbps unless set. */
void core_set_link(struct core *core, uint64_t mbps);

struct flow_setup {
    uint64_t rx_token;       /* in every packet from the peer; core_new_token() made it */
    uint64_t tx_token;       /* in every packet to the peer */
    uint32_t destination;    /* the NIC's number for the peer's address, copied into tx_desc */
    uint32_t datagram_bytes; /* UDP payload bytes of a full datagram, as far as both ends know: path MTU less IP and UDP */
    uint32_t peer_datagram_bytes; /* what the peer takes, should the route become larger; 0: anything */
    uint32_t base_bytes;     /* larger datagrams have to be probed for first (mtu.h); 0: they do not */
    uint32_t chunk_window;   /* chunks: the smaller of both ends' UCCL_CHUNK_WINDOW */
    uint32_t msg_window;     /* messages: the smaller of both ends' UCCL_MSG_WINDOW */
    uint64_t tx_window_bytes;/* what the peer's receive buffer takes, in kernel bytes */
    uint64_t rx_window_bytes;/* what ours takes from this peer, to advertise */
    uint32_t eager_window_kb;/* the smaller of both ends' UCCL_EAGER_WINDOW_KB */
    uint64_t features;       /* of both ends (WIRE_FEATURES, wire.h) */
    uint64_t nonce;          /* unguessable: that the peer's address has to echo before it is sent anything else;
                                0: it needs no proof */
    void *owner;             /* handed back in events and path actions */
    bool greets;             /* with a nonce: asks for its echo a few times though nothing waits, unless the peer does: a
                              * firewall on our side lets in what answers */
    uint16_t peer_ports;     /* path i of the peer leaves from the port i of so many: firewalls on our side are told of them
                                (reach.h). 0 or 1: there is nothing to tell */
    bool places;             /* both ends have a NIC that places payload; chunk_window is at most
                                CORE_PLACE_WINDOW_MAX then, and messages have no stripes */
};

/*
 * A token for the flow that the next core_flow_open() with it will make: unique, unguessable, never
 * zero. `index` < CORE_FLOWS_MAX selects the flow's slot; the caller hands out free ones.
 */
enum { CORE_FLOWS_MAX = 4096 };
uint64_t core_make_token(uint64_t random, uint32_t index);

size_t core_flow_size(const struct params *params, const struct flow_setup *setup);
struct flow *core_flow_open(struct core *core, void *memory, const struct flow_setup *setup,
                            uint64_t now_ns);

/*
 * Forgets a flow: at once and without a word to the peer. All its connections must have ended
 * (CORE_EVENT_CONN_ENDED seen). Its memory is the caller's again. The caller closes the queue pairs that the
 * flow still has; what they report later is not passed on.
 */
void core_flow_close(struct core *core, struct flow *flow);

/*
 * The path MTU to a destination has changed, as far as the machine knows: full datagrams of chunks yet to be made have this
 * size, if it gets through and the peer takes it.
 */
void core_set_datagram(struct core *core, uint32_t destination, uint32_t datagram_bytes);

size_t core_conn_size(const struct params *params, const struct flow_setup *setup);

/*
 * Opens one end of a connection. `local_id` is what the peer writes into frames for it (an index
 * below CORE_CONNS_MAX plus a generation above it), `remote_id` what we write.
 */
enum { CORE_CONN_INDEX_BITS = 16, CORE_CONNS_MAX = 1 << CORE_CONN_INDEX_BITS };
struct conn *core_conn_open(struct core *core, void *memory, struct flow *flow,
                            const struct flow_setup *setup, uint32_t local_id, uint32_t remote_id,
                            void *owner, uint64_t now_ns);

/*
 * Striping. A message may be carried by several flows between the same two engines, each with a
 * connection of the same ids on its own core: the home connection numbers, matches, grants and
 * ends it; the others carry parts. Part i of n of a message of `total` bytes:
 */
enum { CORE_STRIPE_UNIT = 64 * 1024 }; /* bytes: parts are multiples, but the last one */
static inline void core_stripe(uint64_t total, unsigned n, unsigned i, uint64_t *from, uint64_t *to)
{
    uint64_t round = (uint64_t)n * CORE_STRIPE_UNIT, size = (total / round + (total % round != 0)) * CORE_STRIPE_UNIT;
    *from = i * size < total ? i * size : total;
    *to = *from + size < total ? *from + size : total;
}

/*
 * Which end of a connection with `ends` of them carries part i > 0 of message `number`, cut into n: those behind the home end
 * take turns, so that messages of few parts keep all flows busy. And which part end e > 0 carries: if below n, a part.
 */
static inline unsigned core_stripe_end(uint64_t number, unsigned n, unsigned ends, unsigned i)
{
    return (unsigned)((number % (ends - 1) * (n - 1) + i - 1) % (ends - 1)) + 1;
}
static inline unsigned core_stripe_part(uint64_t number, unsigned n, unsigned ends, unsigned e)
{
    return (unsigned)((e - 1 + (ends - 1) - number % (ends - 1) * (n - 1) % (ends - 1)) % (ends - 1)) + 1;
}

/* Opens end `stripe` > 0 of a connection with `ends` ends, which carries parts of striped messages and nothing else. */
struct conn *core_part_conn_open(struct core *core, void *memory, struct flow *flow,
                                 const struct flow_setup *setup, uint32_t local_id, uint32_t remote_id,
                                 unsigned stripe, unsigned ends, void *owner, uint64_t now_ns);
size_t core_part_conn_size(const struct params *params, const struct flow_setup *setup);

/*
 * A part of a message on such a connection. The caller's fields are as in the whole message, but placeable is false. The part
 * completes when its bytes have been acked or have arrived, by core_end_part(), or with the connection.
 */
void core_submit_part(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns);
/* Ends a part early; a receive then has UCCL_OK and 0 bytes. */
void core_end_part(struct core *core, struct core_msg *msg, uint64_t now_ns);
/* On the home core: a part of this receive has arrived. */
void core_part_arrived(struct core *core, struct core_msg *msg, uint64_t now_ns);
/* On the home core, at once after CORE_EVENT_SPLIT: no parts could be made, it is sent whole. */
void core_unsplit(struct core *core, struct core_msg *msg);

/* ---- in -------------------------------------------------------------------------------------- */

/*
 * Queues a message whose caller's fields are set, all but `number`; those that do not apply to it are 0. Always accepted: what
 * does not fit the windows queues. On a connection that has ended the message completes with its error.
 */
void core_submit(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns);

/*
 * Staged sends. After CORE_EVENT_WANTED the bytes [offset_bytes, end_bytes) of the message are wanted, in
 * order; this says that those before `bytes` are there: a multiple of block_bytes, or end_bytes. It
 * always rises, and the message has not been handed back yet.
 */
void core_available(struct core *core, struct core_msg *msg, uint64_t bytes, uint64_t now_ns);

/* Tells the peer of the connection at once, so that it answers if it does not know it. For whoever connects. */
void core_conn_announce(struct core *core, struct conn *conn, uint64_t now_ns);

/* Another flow of the connection has died: it fails with UCCL_EPEERDEAD, and the peer is told. */
void core_conn_peer_dead(struct core *core, struct conn *conn, uint64_t now_ns);

/* Tries to end a submitted message early; its event comes in any case. */
void core_cancel(struct core *core, struct core_msg *msg, uint64_t now_ns);

/*
 * Closes a connection: pending receives end with UCCL_ECANCELED now; sends go on until they are
 * delivered or `linger_ns` has passed, then end likewise. A peer that has been silent for about UCCL_LINGER_MS already, in spite
 * of something to ack, is not waited for. Closing again can only shorten the linger. CORE_EVENT_CONN_ENDED comes last; until
 * then the connection's memory is the core's.
 */
void core_conn_close(struct core *core, struct conn *conn, uint64_t linger_ns, uint64_t now_ns);

/* Before a close: the peer has been silent since then on other flows. If this one has not heard it either, nobody waits. */
void core_conn_silent_since(struct core *core, struct conn *conn, uint64_t since_ns);

/*
 * What is passed to the core from here on, by core_rx..() and core_tx_done(), came so long before its now_ns: it
 * waited for the owner after the NIC had it, which neither the network nor the peer is to be charged with. 0 until
 * this is called, for NICs that do not tell.
 */
void core_waited(struct core *core, uint64_t waited_ns);

/* One datagram as received; `ce`: it carried an ECN congestion mark. Keeps no pointer into it but
 * in the copies produced. False: dropped (counted). */
bool core_rx(struct core *core, const uint8_t *datagram, size_t length, bool ce, uint64_t now_ns);

/*
 * Where the payload of bulk datagrams belongs, for NICs that can look before they copy: `length` bytes of datagrams
 * of `stride` bytes each (the last may be shorter), the first of which has its header region at `header`. Changes nothing.
 * Returns how many of them, should they be consecutive ones of a chunk, have their payload back to back in the buffer
 * of `*msg` from `*offset_bytes` on, without any byte that has arrived before; 0: none. So whatever they are, nothing
 * is lost when it is put there at once; those that wire_follows() the first may be passed to core_rx_placed().
 */
unsigned core_place(struct core *core, const uint8_t *header, size_t length, size_t stride, struct core_msg **msg,
                    uint64_t *offset_bytes);
/* core_rx() of a datagram whose payload, `length` less the header, stands at `payload`, if that is not NULL. */
bool core_rx_placed(struct core *core, const uint8_t *header, size_t length, const uint8_t *payload,
                    bool ce, uint64_t now_ns);

/* Time has come to `now_ns`: runs the timers that are due. Drain receive first. */
void core_expire(struct core *core, uint64_t now_ns);

/* The NIC does nothing any more: all messages of all flows end with `status`. Safe to repeat. */
void core_fail(struct core *core, int32_t status, uint64_t now_ns);

/* The NIC could not take this descriptor, whose pieces were copied all the same: its chunk goes out
 * again soon, without a loss counted. */
struct tx_desc;
void core_tx_failed(struct core *core, const struct tx_desc *desc, uint64_t now_ns);

/* ---- out ------------------------------------------------------------------------------------- */

/* Bytes to copy: to a message's buffer or to plain host memory of the core. */
struct core_copy {
    const uint8_t *from;   /* host memory, valid until the copy is due (see the contract above) */
    struct core_msg *msg;  /* destination buffer, or NULL: `to` */
    uint64_t offset_bytes; /* into the message's buffer */
    uint8_t *to;
    size_t length;
};
bool core_next_copy(struct core *core, struct core_copy *copy);

/*
 * Bytes of a staged send that no descriptor will ask for again; when the message ends, that goes for all of
 * it. False: none.
 */
struct core_release {
    struct core_msg *msg;
    uint64_t offset_bytes;
    uint64_t length;
};
bool core_next_release(struct core *core, struct core_release *release);

/* A piece of payload to gather into a datagram. */
struct tx_piece {
    struct core_msg *msg;
    uint64_t offset_bytes; /* into the message's buffer */
    uint32_t length;
    uint32_t at;           /* offset into the chunk's buffer (TX_FRAMES) */
};

enum tx_kind {
    TX_BULK,   /* a train of equal datagrams cut from one message: wire_bulk_header() makes each header */
    TX_FRAMES, /* datagrams that stand ready in `buffer` once the pieces are copied into it */
    TX_PLACE,  /* `count` writes with immediate, of place_bytes each: a row of chunks on one queue pair */
};

/*
 * One chunk, or a retransmission of one, or an ack, to send on one path; TX_PLACE: one chunk or more. Valid until the next core call.
 * The sender of it: for TX_FRAMES copies `pieces` into `buffer`, then calls wire_seal() on each
 * datagram that goes out; for TX_BULK builds each datagram from wire_bulk_header() and the payload at
 * `bulk_msg`, `bulk_offset + i * bulk_stride`. Write i of TX_PLACE goes from `bulk_offset + i * place_bytes` to
 * `remote_address + i * place_bytes` with wire_immediate_after(immediate, i).
 */
struct tx_desc {
    uint8_t kind;            /* enum tx_kind */
    uint8_t count;           /* datagrams of the whole chunk; TX_PLACE: chunks, one write each */
    bool sequenced;          /* false: an ack, a probe or a fragment, which is never repeated */
    bool opens;              /* not sequenced: leaves by path 0 for the peer's port number `path`, where nobody reads it */
    bool retransmission;
    bool fragment;           /* of a datagram that is too large by now; at most one piece */
    bool whole;              /* a probe for its size: where it does not fit the route it is lost, and not cut */
    uint16_t path;
    uint32_t destination;
    uint64_t mask;           /* which of its datagrams to send: bit i */
    uint32_t datagram_bytes; /* size of every datagram but the last of the chunk */
    uint32_t last_bytes;     /* size of the last one */
    /* the fields of every header */
    uint64_t token;
    uint64_t seq;            /* of the first chunk */
    uint32_t path_seq;
    uint32_t time_stamp;     /* wire_time(now) */
    bool payload_crc;
    /* TX_BULK */
    struct core_msg *bulk_msg;
    uint64_t bulk_offset;    /* of datagram 0 */
    uint32_t bulk_stride;    /* payload bytes of every datagram but the last */
    uint32_t bulk_last;      /* of the last */
    uint32_t conn_id;
    uint32_t msg_number;
    uint64_t msg_total;
    uint8_t stripes;
    /* TX_FRAMES */
    uint8_t *buffer;         /* datagram i begins at i * datagram_bytes */
    const struct tx_piece *pieces;
    uint32_t piece_count;
    /* bookkeeping of core_tx_failed() */
    struct flow *flow;
    uint8_t probes;          /* probes and echoes that it carries: enum probe_due (probe.h) */
    bool written;            /* its chunk had only been written before: no datagram of it has been sent */
    /* placing: TX_PLACE always, TX_BULK and TX_FRAMES when they retransmission what was to be placed */
    bool on_path;            /* goes over the queue pair of `path`; else a datagram as any other */
    uint32_t generation;     /* of that queue pair */
    uint64_t cookie;         /* on_path: for core_tx_done() */
    uint64_t remote_address; /* TX_PLACE */
    uint32_t remote_key;
    uint32_t immediate;
    uint32_t place_bytes;
};

/* The next thing to send, control first. False: nothing now (see core_deadline()). */
bool core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);

enum core_event_kind {
    CORE_EVENT_MSG,        /* `msg` has ended: status and moved_bytes are final */
    CORE_EVENT_SPLIT,      /* the send `msg` is cut into `msg->stripes` parts: submit all but part 0 */
    CORE_EVENT_WANTED,     /* the staged send `msg` is to be fetched: see core_available() */
    CORE_EVENT_CONN_ENDED, /* `owner` of a connection: its last event; its memory is the caller's. `status`
                              UCCL_ETIMEDOUT, UCCL_EPEERDEAD: the peer was silent */
    CORE_EVENT_CONN_FAILED,/* `owner` of a connection: the peer closed it or died (`status`); it takes
                              no more messages and is still to be closed */
    CORE_EVENT_FLOW_PROVEN,/* `owner` of a flow with a nonce: the peer's address has echoed it, so datagrams get
                              across in both directions */
    CORE_EVENT_FLOW_HOLE,  /* `owner` of a flow, once in its life: datagrams above passing_bytes vanish on their way, though the
                              route takes route_bytes */
    CORE_EVENT_FLOW_DEAD,  /* `owner` of a flow: the peer stopped answering, or core_fail(); open no
                              more connections */
};

struct core_event {
    enum core_event_kind kind;
    int32_t status;
    struct core_msg *msg;
    void *owner;
    uint32_t passing_bytes, route_bytes; /* CORE_EVENT_FLOW_HOLE */
};
bool core_next_event(struct core *core, struct core_event *event);

/* ---- NICs that place payload -------------------------------------------------------------------
 *
 * A flow with `places` has two sides. Its datagrams are what every flow has. Beside them, path p (below
 * UCCL_PORT_ENTROPY) may have a connected queue pair, over which the NIC writes the payload of granted
 * messages to where the receiver has said (TX_PLACE). The core decides when queue pairs are made,
 * connected and given up; the owner does it, path by path:
 *
 *     QP_OPEN      make a queue pair        core_qp_opened() with its number, or core_qp_failed()
 *     QP_CONNECT   connect it to the peer's core_qp_connected(), or core_qp_failed()
 *     QP_DRAIN     move it to error, drain  core_qp_drained()
 *     QP_CLOSE     destroy it               nothing: after a packet's lifetime in error
 *
 * Each queue pair of a path has a generation; answers for another one than the current are ignored. Answers
 * may come at once or later, in any state; QP_DRAIN is answered even when the queue pair never got
 * connected. What core_qp_drained() promises:
 *   - nothing that the peer sends to this queue pair changes memory any more, and all that had arrived has
 *     been passed to core_rx_immediate() and core_rx_on_path();
 *   - the NIC no longer reads payload for it: all its work requests count as finished.
 * What a queue pair receives is passed on in the order of its completions.
 *
 * Loss of a write is retransmitted by datagrams in sends on the same queue pair (on_path), which the NIC keeps in
 * order, so that a message is never whole while a copy of a part of it may still be placed. Where that does
 * not help, both ends drain the path (data_qp.h). No request that the NIC may still read or write ends.
 */
enum { CORE_PLACE_WINDOW_MAX = 1024 };

enum core_qp_kind { QP_OPEN, QP_CONNECT, QP_DRAIN, QP_CLOSE };

struct core_qp_action {
    enum core_qp_kind kind;
    struct flow *flow;
    void *owner;           /* of the flow */
    uint32_t destination;
    uint16_t path;
    uint32_t generation;
    uint32_t number, psn;  /* QP_CONNECT: the peer's queue pair and its first packet sequence number */
};

/* The next thing to do to a queue pair; also of flows that are dead. */
bool core_next_path(struct core *core, struct core_qp_action *action);

void core_qp_opened(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                      uint32_t number, uint32_t psn, uint64_t now_ns);
void core_qp_connected(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                         uint64_t now_ns);
void core_qp_drained(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                      uint64_t now_ns);
/* Making or connecting it failed, or the NIC says that it works no more (a failed completion, a link down). */
void core_qp_failed(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                      uint64_t now_ns);

/* The NIC has placed a write of `length` bytes that carried `immediate`. */
void core_rx_immediate(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                       uint32_t immediate, uint32_t length, uint64_t now_ns);
/* core_rx() of a datagram that came as a send on a path's queue pair. */
bool core_rx_on_path(struct core *core, struct flow *flow, uint16_t path, uint32_t generation,
                     const uint8_t *datagram, size_t length, uint64_t now_ns);

/*
 * The work requests of the descriptor with this cookie, and of all earlier ones on the same queue pair, have
 * finished well: the NIC reads their payload no more (with places_reliably: it is placed). One that failed
 * is a core_qp_failed().
 */
void core_tx_done(struct core *core, uint64_t cookie, uint64_t now_ns);

/* When core_expire() or core_tx() next has something to do; UINT64_MAX: never without input. */
uint64_t core_deadline(const struct core *core);

/* Acks that wait to ride on something go out with the next core_tx(): for before a sleep. */
void core_flush_acks(struct core *core);

#endif
