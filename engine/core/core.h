/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol engine, sans-IO. One `struct core` per engine thread holds the flows and connections of that thread.
 * The core makes no system call, reads no clock, takes no lock, allocates nothing and never touches payload. The owner
 * thread feeds the core and pulls from it, in rounds:
 *
 *     core_rx() for each datagram        then core_next_copy() and core_next_release() until empty
 *     core_submit() for each post        then core_next_copy() until empty
 *     core_expire(now)
 *     core_next_qp_action() until it returns false (NICs that place payload)
 *     core_tx() until it returns false   and core_next_release() until empty once a descriptor is sent
 *     core_next_event() until it returns false
 *
 * Contract on copies: whoever calls core_rx() or core_submit() performs the copies that the call produced before the
 * next core_rx(), core_tx() or core_next_event(). An ack or a completion may rely on these copies.
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
    CORE_TRAIN_MAX = 64,          /* datagrams per chunk: bits of the mask */
    CORE_TRAIN_BYTES_MAX = 65472, /* bytes per chunk on the wire: one UDP GSO send, IPv4 or IPv6. Retransmission of a
                                     placed chunk may take more (up to CORE_TRAIN_MAX datagrams) */
    CORE_RECORD_BYTES_MAX = 262144 + 64, /* bytes of a datagram over a reliable rail, which is a chunk there */
    CORE_KERNEL_BYTES = 768,             /* what the kernel charges a socket buffer per datagram, beside its bytes */
    CORE_DATAGRAM_MIN = 512,             /* smallest datagram size that the wire format works with */
    CORE_DATAGRAM_BASE = 1232,           /* passes every network: IP packets of 1,280 bytes (RFC 8200 5) */
    CORE_STRIPES_MAX = 64,               /* flows that may share one message */
    CORE_PAIRS_MAX = 4,                  /* pairs of NICs of a flow that places (rail_setup) */
    CORE_WATCHED_BYTES = 128, /* alignment of watched buffers, and of every write into them except at the end */
    CORE_FRAMES_MAX = 512,    /* frames in one datagram */
    CORE_GATHER_MAX = 512,    /* payload pieces in one chunk of small messages */
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
    struct core_msg *next; /* the list that it is on: queue, or complete */
    struct core_msg *prev; /* for removal from the middle of a queue */
    struct conn *conn;
    uint64_t moved_bytes;     /* when complete: bytes moved */
    uint64_t ring_at;         /* eager send: where it begins in the peer's ring; send ahead: see ahead.c */
    uint64_t offset_bytes;    /* send: first byte not yet put into a chunk; receive part: bytes that came here */
    uint64_t end_bytes;       /* send: one past the last byte of its range; striped receive: length of the message */
    uint64_t available_bytes; /* staged send: bytes before it may be sent; striped receive: arrived, to be reported */
    struct queue_link spread, wanted; /* for CORE_EVENT_RANGE and CORE_EVENT_ARRIVED, for CORE_EVENT_WANTED */
    uint64_t deferred_until;          /* completion is deferred: the chunk that it waits for (place.h) */
    uint32_t chunks_live;             /* send: chunks that refer to this payload */
    uint32_t work_live;               /* send: work requests of the NIC that read it */
    int32_t status;                   /* when complete: 0 or a negative uccl_error */
    uint16_t grant_slot;              /* receive: its slot in immediates, plus 1; 0: not granted */
    uint8_t state;                    /* enum msg_state, conn.h */
    uint8_t flags;                    /* enum msg_flag, conn.h */
    uint8_t deferral;                 /* enum deferral, conn.h */
    /* the caller's: set before core_submit() */
    uint8_t kind;         /* enum core_msg_kind */
    uint8_t stripes;      /* receive and part, later also send: flows that may share the message; 0: one */
    uint8_t range_units;  /* receive, later also send: ranges begin at multiples of so many CORE_STRIPE_UNIT; 0: any */
    uint8_t placeable;    /* the NICs that reach the buffer, to read a send or write a receive: bits by pair */
    bool ahead;           /* of an annex that follows another one: a send may start before its clear-to-send, bytes of
                             a receive may come before it has one. Neither is staged or placed (ahead.c) */
    bool watched;         /* receive: somebody reads its buffer while it is pending. So whole units of
                             CORE_WATCHED_BYTES are written to it, in order, except at its end, and never by the NIC.
                             Send: the clear-to-send says that the receive is watched */
    uint32_t block_bytes; /* send: staged, its payload comes in blocks of this size; 0: the payload is there */
    uint32_t grant_keys[CORE_PAIRS_MAX]; /* receive: the keys with which the peer's NICs write, by pair */
    uint64_t grant_address;              /* receive: of the buffer, as the peer's NIC names it */
    uint64_t size_bytes;                 /* send: length of the message; receive: capacity of the buffer */
    uint64_t number; /* k of its direction: send k matches receive k; the caller's of a part, else the core's */
};

/* ---- set-up ---------------------------------------------------------------------------------- */

typedef uint32_t (*crc32c_fn)(uint32_t crc, const void *data, size_t length);

struct core_setup {
    const struct params *params; /* outlives the core */
    struct counters *counters;   /* outlives the core */
    crc32c_fn crc32c;            /* the fastest one that the machine has */
    uint64_t seed;               /* of all randomness */
    bool paths_in_order;         /* capability: a path never reorders */
    bool whole_trains;           /* capability: a train costs about one send, however many datagrams it has */
    bool places_reliably;        /* capability: data QPs retransmit what is lost themselves (RC) */
    bool places_in_order;        /* capability: a data QP neither reorders nor duplicates */
};

/* Bytes for a core, and its initialisation in `memory` (64-byte aligned, zeroed, outlives it). */
size_t core_size(const struct params *params);
struct core *core_init(void *memory, const struct core_setup *setup, uint64_t now_ns);

/* Sets the rate that this core grants to all peers together (credit.h); 100 Gbps unless set. */
void core_set_link(struct core *core, uint64_t mbps);

enum { CORE_RAILS_MAX = 16 };

/*
 * One way to the peer: a NIC here and a NIC there that reach each other (rail.h). Each has UCCL_PORT_ENTROPY paths, or
 * fewer, so that all rails together have 256 at most. The two ends need not have the same rails, nor number them alike.
 */
struct rail_setup {
    uint32_t destination;    /* the NIC's number for the peer's address, copied into tx_desc; unique among the rails */
    uint32_t datagram_bytes; /* UDP payload of a full datagram, as far as both ends know: path MTU less IP and UDP */
    uint32_t peer_datagram_bytes; /* the largest datagram that the peer takes; 0: any */
    uint32_t base_bytes;          /* larger datagrams are used only after a probe (mtu.h); 0: all are used at once */
    uint64_t nonce;               /* unguessable. The peer's address must echo it before anything but probes goes there;
                                     0: no proof is needed. Differs between rails */
    bool greets;                  /* with a nonce: sends a few probes even while nothing waits, unless the peer's come
                                     first. A firewall on our side then lets the peer's packets in as answers */
    bool reliable;       /* its paths are connections that lose nothing unless they break: core_path_broken() */
    bool joins;          /* of the last ones of several rails, which are reliable: in use once a path of it is up */
    uint8_t pair;        /* of flow_setup.pairs: the NICs of its ends, of which no other rail has both */
    uint16_t peer_ports; /* number of the peer's ports: its path i leaves from port i. The rail opens firewalls on
                            our side for them (reach.h). 0 or 1: there is nothing to open */
};

struct flow_setup {
    uint64_t rx_token;                       /* in every packet from the peer; core_make_token() made it */
    uint64_t tx_token;                       /* in every packet to the peer */
    struct rail_setup rails[CORE_RAILS_MAX]; /* the preferred one first */
    uint32_t rail_count;                     /* 1 to CORE_RAILS_MAX */
    uint32_t chunk_window;                   /* chunks: the smaller of both ends' UCCL_CHUNK_WINDOW */
    uint32_t msg_window;                     /* messages: the smaller of both ends' UCCL_MSG_WINDOW */
    uint64_t tx_window_bytes;                /* size of the peer's receive buffer, in kernel bytes */
    uint64_t rx_window_bytes;                /* size of ours, of which acks advertise this peer's share */
    uint32_t eager_window_kb;                /* the smaller of both ends' UCCL_EAGER_WINDOW_KB */
    uint64_t features;                       /* of both ends (WIRE_FEATURES, wire.h) */
    void *owner;                             /* handed back in events and QP actions */
    bool places;   /* both ends have NICs that place payload; then chunk_window is at most CORE_PLACE_WINDOW_MAX, and
                      messages have no stripes */
    uint8_t pairs; /* pairs of such NICs, which both ends number alike. An end may lack the rail of a pair: then nothing
                      is placed over that. 0: rail i has pair i */
};

/*
 * A token for the flow that the next core_flow_open() with it will make: unique, unguessable, never
 * zero. `index` < CORE_FLOWS_MAX selects the flow's slot; the caller hands out free ones.
 */
enum { CORE_FLOWS_MAX = 4096 };
uint64_t core_make_token(uint64_t random, uint32_t index);

size_t core_flow_size(const struct params *params, const struct flow_setup *setup);
struct flow *core_flow_open(struct core *core, void *memory, const struct flow_setup *setup, uint64_t now_ns);

/*
 * Forgets a flow at once, without a word to the peer. All connections of the flow must have ended
 * (CORE_EVENT_CONN_ENDED seen). The flow's memory is the caller's again. The caller closes the data QPs that the flow
 * still has, and passes none of their later reports on.
 */
void core_flow_close(struct core *core, struct flow *flow);

/*
 * The machine reports another path MTU to a destination. Full datagrams of new chunks have this size, if it gets
 * through and the peer takes it.
 */
void core_set_datagram(struct core *core, uint32_t destination, uint32_t datagram_bytes);

size_t core_conn_size(const struct flow_setup *setup);

/*
 * Opens one end of a connection. `local_id` is what the peer writes into frames for it, `remote_id` what we write. An
 * id has, from the lowest bit: an index below CORE_CONNS_MAX, the number of an annex (0: the connection itself), and a
 * generation.
 */
enum { CORE_CONNS_MAX = 1 << 16, CORE_ANNEX_SHIFT = 16, CORE_ANNEX_BITS = 3, CORE_CONN_INDEX_BITS = 19 };
struct conn *core_conn_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                            uint32_t local_id, uint32_t remote_id, void *owner, uint64_t now_ns);

/*
 * An annex is a connection of its own beside another one, which the shell uses for itself: its id is that of the other
 * one with the annex's number (below 1 << CORE_ANNEX_BITS) at CORE_ANNEX_SHIFT. It has windows of its own, and sends
 * messages of up to `eager_bytes` at once. Both ends pass the same values. It is closed like any other, after the
 * connection was opened, and before or after that is closed.
 */
struct annex_setup {
    uint32_t msg_window;      /* a power of two; at most that of the flow counts */
    uint32_t eager_bytes;     /* at most half of eager_window_kb */
    uint32_t eager_window_kb; /* at most that of the flow counts; 0: no message goes at once */
    uint32_t ahead_bytes;     /* of a message that may be sent before its clear-to-send: core_annex_follow() */
};
size_t core_annex_size(const struct flow_setup *setup, const struct annex_setup *annex);
struct conn *core_annex_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                             const struct annex_setup *annex, uint32_t local_id, uint32_t remote_id, void *owner,
                             uint64_t now_ns);
/*
 * Messages of `leader` announce those of `conn`: the peer posts receives on `conn` when it has read them. A send on
 * `conn` with `ahead` starts as soon as all that was submitted to `leader` before it is on its way, without a
 * clear-to-send. Both annexes are of the same flow and connection, and close together.
 */
void core_annex_follow(struct conn *conn, struct conn *leader);

/*
 * Striping. Several flows between the same two engines may carry one message, each with a connection of the same ids
 * on its own core. The home connection numbers, matches, grants and completes the message; the others carry parts. The
 * sender's owner gives ranges of the message to the flows, the next one when a flow has sent its own, so that a slow
 * or busy flow carries less. Each byte goes over one flow. The receiver takes any range on any flow, and its owner adds
 * up what has arrived.
 */
enum { CORE_STRIPE_UNIT = 64 * 1024 }; /* bytes: about the smallest range that is worth another flow */

/*
 * Which of the `ends` of a connection has part i > 0 of message `number`. The ends behind the home end take turns, so
 * that messages of few parts keep all flows busy.
 */
static inline unsigned core_stripe_end(uint64_t number, unsigned ends, unsigned i)
{
    return (unsigned)((number % (ends - 1) + i - 1) % (ends - 1)) + 1;
}

/* Opens an end of a connection that carries parts of striped messages and nothing else. */
struct conn *core_part_conn_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                                 uint32_t local_id, uint32_t remote_id, void *owner, uint64_t now_ns);
size_t core_part_conn_size(const struct flow_setup *setup);

/*
 * A part of a message on such a connection. The caller's fields are as in the whole message, but placeable is false. A
 * send part completes when there is nothing left to give to it and its bytes have been acked, a receive part by
 * core_end_part(); both with the connection.
 */
void core_submit_part(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns);
/* Ends a part: a send early, a receive with UCCL_OK. A receive part has moved the bytes that came here, however it
 * ends. */
void core_end_part(struct core *core, struct core_msg *msg, uint64_t now_ns);
/*
 * The answer to CORE_EVENT_RANGE, at once: the send is to carry the bytes [from, to) of the message next. No other
 * flow does. Nothing (from == to): no more of it.
 */
void core_send_range(struct core *core, struct core_msg *msg, uint64_t from, uint64_t to);
/* Or, to the first such event of a message: it is sent whole, over this flow alone. */
void core_unsplit(struct core *core, struct core_msg *msg);
/* On the home core: all bytes of this receive, a message of `total`, have arrived over its flows. */
void core_msg_whole(struct core *core, struct core_msg *msg, uint64_t total, uint64_t now_ns);

/* ---- in -------------------------------------------------------------------------------------- */

/*
 * Queues a message whose caller's fields are set, all but `number`; those that do not apply to it are 0. Always
 * accepted: what does not fit the windows queues. On a connection that has ended the message completes with its error.
 */
void core_submit(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns);

/*
 * Staged sends. After CORE_EVENT_WANTED the core wants the bytes [offset_bytes, end_bytes) of the message, in order.
 * This call says that all bytes before `bytes` are there: a multiple of block_bytes, or end_bytes. `bytes` rises with
 * each call, and the message has not been handed back yet.
 */
void core_available(struct core *core, struct core_msg *msg, uint64_t bytes, uint64_t now_ns);

/* Names the connection to the peer at once: a peer that does not know it answers GONE. For the side that connects. */
void core_conn_announce(struct core *core, struct conn *conn, uint64_t now_ns);

/* The connection fails with `status` and sends a FIN: as when another of its flows has died (UCCL_EPEERDEAD). */
void core_conn_fail(struct core *core, struct conn *conn, int32_t status, uint64_t now_ns);

/* Whether a connection has failed, though its event may not have been taken yet. */
bool core_conn_has_failed(const struct conn *conn);

/* Tries to complete a submitted message early; its event comes in any case. */
void core_cancel(struct core *core, struct core_msg *msg, uint64_t now_ns);

/*
 * Closes a connection. Pending receives complete with UCCL_ECANCELED now. Sends go on until they are delivered or
 * `linger_ns` has passed, then complete likewise. The close does not wait for a peer that has been silent for about
 * UCCL_LINGER_MS although it has something to ack. Closing again can only shorten the linger. CORE_EVENT_CONN_ENDED
 * comes last; until then the connection's memory is the core's.
 */
void core_conn_close(struct core *core, struct conn *conn, uint64_t linger_ns, uint64_t now_ns);

/*
 * Before a close: other flows have heard nothing of the peer since `since_ns`. If this flow has not either, the close
 * does not wait.
 */
void core_conn_silent_since(struct core *core, struct conn *conn, uint64_t since_ns);

/*
 * Whatever core_rx..() and core_tx_done() are given from here on reached the NIC `waited_ns` before their now_ns, and
 * waited for the owner since. That time counts neither as the network's nor as the peer's. 0 until the first call, for
 * NICs without time stamps.
 */
void core_waited(struct core *core, uint64_t waited_ns);

/*
 * One datagram as received; `ce`: it carried an ECN congestion mark. Only the copies that the call produces point into
 * the datagram. False: dropped (counted).
 */
bool core_rx(struct core *core, const uint8_t *datagram, size_t length, bool ce, uint64_t now_ns);

/*
 * Where the payload of bulk datagrams belongs, for NICs that can look before they copy. The datagrams have `length`
 * bytes in all and `stride` bytes each (the last may be shorter); `header` is the header region of the first. Changes
 * nothing. Returns for how many of them, if they are consecutive in a chunk, the payload belongs back to back into the
 * buffer of `*msg` from `*offset_bytes` on, where no byte has arrived before; 0: none. So a wrong guess overwrites no
 * byte that counts. The caller passes those that wire_follows() the first to core_rx_copied(), which checks each again.
 */
unsigned core_copy_target(struct core *core, const uint8_t *header, size_t length, size_t stride, struct core_msg **msg,
                          uint64_t *offset_bytes);
/* core_rx() of a datagram whose payload, `length` less the header, stands at `payload`; NULL: behind the header. */
bool core_rx_copied(struct core *core, const uint8_t *header, size_t length, const uint8_t *payload, bool ce,
                    uint64_t now_ns);

/* Runs the timers that are due at `now_ns`. Receive all that waits first. */
void core_expire(struct core *core, uint64_t now_ns);

/*
 * The device of the rail that leads to this destination, of whichever flow, is gone, or is back: the rail is not used
 * any more, or is asked whether it works. Without this call the core notices it by itself (UCCL_NIC_DEAD_MS). Nothing
 * changes for a flow with one rail. Safe to repeat.
 */
void core_destination_changed(struct core *core, uint32_t destination, bool up, uint64_t now_ns);

/*
 * Reliable rails. `port`: the path, counted from the rail's first one. A path carries nothing before core_path_room(),
 * and nothing after core_tx_failed() or core_path_broken() until it is called again. Broken: what was under way on it
 * in both directions may be lost, and is sent again over another path.
 */
void core_path_broken(struct core *core, struct flow *flow, unsigned rail, uint16_t port, uint64_t now_ns);
void core_path_room(struct core *core, struct flow *flow, unsigned rail, uint16_t port, uint64_t now_ns);

/*
 * The network loses more of what the rail carries than connections bear well. Beside datagrams, these carry large
 * messages for a while: ten seconds, and twice as long each time if it is no better then.
 */
void core_path_lossy(struct core *core, struct flow *flow, unsigned rail, uint64_t now_ns);

/* The NIC has failed: all messages of all flows complete with `status`. Safe to repeat. */
void core_fail(struct core *core, int32_t status, uint64_t now_ns);

/*
 * The NIC could not take this descriptor, the newest one; its pieces were copied all the same. What it carries goes out
 * again soon, and no loss is counted.
 */
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
 * Bytes of a staged send that no descriptor will name again. Once the message is complete, none names any byte of it.
 * False: nothing to release.
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
    uint32_t at; /* offset into the chunk's buffer (TX_FRAMES) */
};

enum tx_kind {
    TX_BULK,   /* a train of equal datagrams cut from one message: wire_bulk_header() makes each header */
    TX_FRAMES, /* datagrams that stand ready in `buffer` once the pieces are copied into it */
    TX_PLACE,  /* `count` writes with immediate, of place_bytes each: a WR batch, one chunk a write, on one data QP */
};

/*
 * One chunk, or a retransmission of one, or an ack, to send on one path; TX_PLACE: one chunk or more. Valid until the
 * next core call. What the NIC does:
 *   TX_FRAMES  copies `pieces` into `buffer`, then calls wire_seal() on each datagram that goes out
 *   TX_BULK    builds datagram i from wire_bulk_header() and the payload of `bulk_msg` at bulk_offset + i * bulk_stride
 *   TX_PLACE   writes place_bytes from bulk_offset + i * place_bytes to remote_address + i * place_bytes, with
 *              wire_immediate_after(immediate, i)
 */
struct tx_desc {
    uint8_t kind;   /* enum tx_kind */
    uint8_t count;  /* datagrams of the whole chunk; TX_PLACE: chunks, one write each */
    bool sequenced; /* false: an ack, a probe, a fragment or a farewell, which is never repeated */
    bool opens;     /* not sequenced: leaves by port 0 for port `path` of the peer, which discards it */
    bool retransmission;
    bool fragment;           /* of a datagram that has become too large; has at most one piece */
    bool whole;              /* a probe for its size: where it does not fit, it is dropped rather than fragmented */
    uint16_t path;           /* as in the header */
    uint16_t port;           /* the same, counted from the rail's first one: by which port it leaves */
    uint8_t rail;            /* by which it goes: index in flow_setup */
    uint32_t destination;    /* of the rail */
    uint64_t mask;           /* which of its datagrams to send: bit i */
    uint32_t datagram_bytes; /* size of every datagram but the last of the chunk */
    uint32_t last_bytes;     /* size of the last one */
    /* the fields of every header */
    uint64_t token;
    uint64_t seq; /* of the first chunk */
    uint32_t path_seq;
    uint32_t time_stamp; /* wire_time(now) */
    bool payload_crc;
    /* TX_BULK */
    struct core_msg *bulk_msg;
    uint64_t bulk_offset; /* of datagram 0 */
    uint32_t bulk_stride; /* payload bytes of every datagram but the last */
    uint32_t bulk_last;   /* of the last */
    uint32_t conn_id;
    uint32_t msg_number;
    uint64_t msg_total;
    uint8_t stripes;
    /* TX_FRAMES */
    uint8_t *buffer; /* datagram i begins at i * datagram_bytes */
    const struct tx_piece *pieces;
    uint32_t piece_count;
    /* bookkeeping of core_tx_failed() */
    struct flow *flow;
    uint8_t due_rail; /* of probes and echoes that are `due` */
    uint16_t due;     /* beside its chunks: enum tx_due (transmit.h) */
    bool written;     /* its chunk went as a write before, never as datagrams */
    /* placing: TX_PLACE always; TX_BULK and TX_FRAMES that retransmit a write */
    bool on_path;            /* goes over the data QP of `path`; else a datagram as any other */
    uint32_t generation;     /* of that data QP */
    uint64_t cookie;         /* on_path: for core_tx_done() */
    uint64_t remote_address; /* TX_PLACE */
    uint32_t remote_key;
    uint32_t immediate;
    uint32_t place_bytes;
};

/* The next thing to send, control first. False: nothing now (see core_deadline()). */
bool core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);

enum core_event_kind {
    CORE_EVENT_MSG,         /* `msg` is complete: status and moved_bytes are final */
    CORE_EVENT_RANGE,       /* the striped send or part `msg` has put all of its range into chunks, or has none yet:
                               core_send_range(). `msg->stripes` flows may share it; `bytes`: of a full chunk here */
    CORE_EVENT_ARRIVED,     /* `bytes` of the striped receive or part `msg`, a message of `total` bytes, have arrived
                               here since the last such event */
    CORE_EVENT_WANTED,      /* the staged send `msg` is to be fetched: see core_available() */
    CORE_EVENT_CONN_ENDED,  /* `owner` of a connection: its last event; its memory is the caller's. `status`
                               UCCL_ETIMEDOUT, UCCL_EPEERDEAD: the peer was silent */
    CORE_EVENT_CONN_FAILED, /* `owner` of a connection: the peer closed it or died (`status`). The connection takes no
                               more messages and is still to be closed */
    CORE_EVENT_CONN_CALLED, /* `owner` of an annex, at most once: a message waits for which no receive was posted. Not
                               told of an annex that has failed meanwhile */
    CORE_EVENT_FLOW_PROVEN, /* `owner` of a flow with nonces: the peer's address has echoed one for the first time, so
                               datagrams get across in both directions */
    CORE_EVENT_FLOW_HOLE, /* `owner` of a flow, at most once for each rail: datagrams above passing_bytes vanish, though
                             the route takes route_bytes */
    CORE_EVENT_RAIL_LOST, /* `owner` of a flow: `rail` is not used any more, since nothing gets through or its device
                             is gone. Chunks in flight there go over others */
    CORE_EVENT_RAIL_BACK, /* `owner` of a flow: `rail` is used again */
    CORE_EVENT_RAILS_WANTED, /* `owner` of a flow with rails that join, none of which is connected: they are worth it.
                                `status` UCCL_OK, once: for large messages; UCCL_ETIMEDOUT, perhaps again and again: the
                                peer does not answer over the others */
    CORE_EVENT_FLOW_DEAD,    /* `owner` of a flow: the peer stopped answering, or core_fail() was called; open no more
                                connections */
};

struct core_event {
    enum core_event_kind kind;
    int32_t status;
    struct core_msg *msg;
    void *owner;
    uint8_t rail;                        /* CORE_EVENT_FLOW_HOLE, _RAIL_LOST, _RAIL_BACK: index in flow_setup */
    uint64_t bytes, total;               /* CORE_EVENT_RANGE, CORE_EVENT_ARRIVED */
    uint32_t passing_bytes, route_bytes; /* CORE_EVENT_FLOW_HOLE */
};
bool core_next_event(struct core *core, struct core_event *event);
/*
 * A receive of an annex that others follow has a message, or NULL: the event of a message, which may be taken early,
 * between two core_rx() and after the copies. What the message announces may come next.
 */
struct core_msg *core_next_leader(struct core *core);

/* ---- NICs that place payload -------------------------------------------------------------------
 *
 * A flow with `places` sends datagrams like every flow. Beside them it has data QPs, up to UCCL_PORT_ENTROPY for each
 * rail: connected queue pairs, over which the NIC writes the payload of granted messages to the receiver's buffer
 * (TX_PLACE). `path` is the number of one (data_qp.h). The core decides when to make, connect and drain a data QP; the
 * owner does it and answers:
 *
 *     QP_OPEN      make a queue pair        core_qp_opened() with its number, or core_qp_failed()
 *     QP_CONNECT   connect it to the peer's core_qp_connected(), or core_qp_failed()
 *     QP_DRAIN     move it to error, drain  core_qp_drained()
 *     QP_CLOSE     destroy it               nothing: after a packet's lifetime in error
 *
 * Each data QP has a generation; the core ignores answers for another generation than the current. Answers may come at
 * once or later, in any state. The owner answers QP_DRAIN even when the queue pair never got connected. What
 * core_qp_drained() promises:
 *   - nothing that the peer sends to this queue pair changes memory any more, and all that had arrived has
 *     been passed to core_rx_immediate() and core_rx_on_qp();
 *   - the NIC no longer reads payload for it: all its work requests count as finished.
 * The owner passes on what a queue pair receives in the order of its completions.
 *
 * A lost write is retransmitted as datagrams, in sends on the same data QP (on_path). The NIC keeps these in order, so
 * that no message is whole while a copy of one of its parts may still be placed. Where that does not help, both ends
 * drain the data QP (data_qp.h). No request completes while the NIC may still read or write its buffer.
 */
enum { CORE_PLACE_WINDOW_MAX = 1024 };

enum core_qp_kind { QP_OPEN, QP_CONNECT, QP_DRAIN, QP_CLOSE };

struct core_qp_action {
    enum core_qp_kind kind;
    struct flow *flow;
    void *owner; /* of the flow */
    uint32_t destination;
    uint16_t path;
    uint32_t generation;
    uint32_t number, psn; /* QP_CONNECT: the peer's queue pair and its first packet sequence number */
};

/* The next thing to do to a data QP; also of flows that are dead. */
bool core_next_qp_action(struct core *core, struct core_qp_action *action);

void core_qp_opened(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint32_t number,
                    uint32_t psn, uint64_t now_ns);
void core_qp_connected(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns);
void core_qp_drained(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns);
/* Making or connecting the queue pair failed, or the NIC reports it broken (a failed completion, a link down). */
void core_qp_failed(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns);

/* The NIC has placed a write of `length` bytes that carried `immediate`. */
void core_rx_immediate(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint32_t immediate,
                       uint32_t length, uint64_t now_ns);
/* core_rx() of a datagram that came as a send on a data QP. */
bool core_rx_on_qp(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, const uint8_t *datagram,
                   size_t length, uint64_t now_ns);

/*
 * The work requests of the descriptor with this cookie, and of all earlier ones on the same queue pair, have succeeded:
 * the NIC reads their payload no more (with places_reliably: the payload is placed). After a failed one the owner calls
 * core_qp_failed() instead.
 */
void core_tx_done(struct core *core, uint64_t cookie, uint64_t now_ns);

/* When core_expire() or core_tx() next has something to do; UINT64_MAX: not before the next input. */
uint64_t core_deadline(const struct core *core);

/* Acks that wait to ride on other packets go out with the next core_tx(). To be called before a sleep. */
void core_flush_acks(struct core *core);

#endif
