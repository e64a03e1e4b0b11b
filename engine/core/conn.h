/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of a connection: it numbers messages, matches send k to receive k, decides how each travels, and keeps grants
 * and eager credit. The flow sends and receives for it.
 *
 * One rule completes sends: the receiver names the delivered messages (CREDIT), and a delivered send completes once no
 * chunk refers to its payload.
 */
#ifndef UCCL_CONN_H
#define UCCL_CONN_H

#include "core/message.h"
#include "core/timer.h"
#include "core/wire.h"

struct flow;
struct rail;

enum msg_state {
    MSG_BACKLOG, /* numbered, waits for the message window */
    MSG_WAITING, /* send: needs a clear-to-send; receive: posted */
    MSG_EAGER,   /* send: on the eager queue */
    MSG_BULK,    /* send: on the bulk queue */
    MSG_PARKED,  /* send: started, and waits for its next bytes (staged.c) or for its next range (MSG_ASKS) */
    MSG_SENT,    /* send: every byte is in some chunk; waits for delivery and acks */
    MSG_ENDED,
};

enum msg_flag {
    MSG_CANCELLED = 1,  /* cancelled: it completes when it leaves the backlog */
    MSG_DELIVERED = 2,  /* the receiver has all of it; chunks may still be unacked */
    MSG_GRANTED = 4,    /* eager message whose clear-to-send came: needs no credit */
    MSG_CHARGED = 8,    /* eager message that has its slot in the peer's ring */
    MSG_WANTED = 16,    /* staged message that the shell fetches */
    MSG_TOTAL_DUE = 32, /* placed, and shorter than its grant: an RTS with the total is due */
    MSG_ASKS = 64,      /* striped: core_send_range() is to give it its next range */
    MSG_AHEAD = 128,    /* started without a clear-to-send, of which it may need one to go on (ahead.c) */
};

/* What the completion of a message that has ended waits for (place.h). */
enum deferral { DEFER_NONE, DEFER_WORK, DEFER_REVOKE_DUE, DEFER_REVOKE_SENT, DEFER_ARRIVAL, DEFER_DRAIN };

/* A message number of the send window. */
struct send_slot {
    struct core_msg *msg;
    uint64_t granted_bytes; /* capacity of the receive, from its clear-to-send */
    bool granted;
    uint8_t stripes; /* flows that the clear-to-send allows */
    uint8_t range_units;
    bool watched;      /* the clear-to-send says that the receive is watched */
    uint8_t placeable; /* the clear-to-send says where our NICs may write; of which pairs (bits): */
    uint16_t slot;
    uint32_t keys[CORE_PAIRS_MAX]; /* by pair */
    uint64_t address;
    int32_t abort_status; /* status in the ABORT of this message, once one exists */
};

enum recv_flag {
    RECV_KNOWN = 1,      /* total_bytes is known: RTS, or a first byte, came */
    RECV_IN_RING = 2,    /* collected in the eager ring */
    RECV_DATA = 4,       /* bytes have arrived */
    RECV_DONE = 8,       /* delivered, or aborted on both sides */
    RECV_CLEARED = 16,   /* its clear-to-send went out */
    RECV_WITHDRAWN = 32, /* aborted here; waits for the sender to agree */
};

/* A message number of the receive window. */
struct recv_slot {
    struct core_msg *msg;
    uint64_t total_bytes;
    uint64_t arrived_bytes;
    uint64_t ring_at;     /* where it begins in the eager ring (absolute) */
    int32_t abort_status; /* status in our ABORT (RECV_WITHDRAWN), or in the sender's */
    uint8_t flags;        /* enum recv_flag */
    uint8_t stripes;      /* flows that share it, once DATA came; then `arrived_bytes` are those of the home flow */
    bool charged;         /* takes ring space, which is freed when the window passes the slot */
};

/* Frames that are due about single messages: a bit per slot of the window. */
enum due { DUE_CTS, DUE_RTS, DUE_ABORT_RECV, DUE_ABORT_SEND, DUE_KINDS };

enum conn_state {
    CONN_OPEN,
    CONN_CLOSING, /* closed here: sends go on, then FIN */
    CONN_FAILED,  /* the peer closed it or died: every message is complete; waits to be closed here */
    CONN_OVER,    /* its last event is queued */
};

struct conn {
    struct flow *flow;
    void *owner;
    struct conn *next_all, *prev_all; /* every connection of the flow */
    struct conn *next_remote;         /* of its bucket (gone.h), */
    struct conn **remote_link;        /* and what points to this one there */
    struct conn *next_index;          /* of the same index: its annexes */
    struct queue_link ctrl, active;   /* on the queues of the flow */
    struct queue_link closer;         /* on its closers, while CLOSING */
    struct queue_link event;          /* and on conn_events of the core */
    bool event_waits;                 /* behind messages whose completion is deferred */
    uint32_t deferred;                /* messages that are complete but not reported (place.h) */
    uint32_t local_id, remote_id;
    uint32_t window;      /* messages, a power of two */
    uint64_t eager_bytes; /* largest message that goes at once */
    bool for_parts;       /* it carries parts of messages whose home is on another flow (part.c) */
    uint8_t overtakes;    /* kinds of frames that may overtake what makes them legal (is_early()): bits */
    uint8_t state;        /* enum conn_state */
    bool heard;           /* a frame for it has come */
    bool announced;       /* core_conn_announce() was called */
    bool uncounted;       /* its messages are no messages of the application: parts, and those of an annex */
    bool calls;           /* an annex: the first message without a receive is an event */
    int32_t status;       /* of CONN_FAILED */

    /* send side */
    struct send_slot *send_slots;
    struct msg_list send_backlog;
    struct msg_list eager; /* in order of their numbers */
    struct msg_list bulk;
    struct msg_list settling; /* delivered, but chunks still refer to their payload */
    uint64_t send_next;       /* number of the next send posted */
    uint64_t send_admitted;   /* sends before it have left the backlog */
    uint64_t delivered;       /* the peer has all messages before this number */
    uint64_t ring_used;       /* eager bytes charged so far */
    uint64_t ring_limit;      /* bound of ring_used: eager credit */
    uint32_t sends_pending;   /* not complete */
    bool blocked;             /* the head of `eager` waits for credit */
    uint32_t eager_unwanted;  /* staged messages on `eager` without MSG_WANTED */
    int64_t deficit_bytes;    /* of deficit round robin */
    bool bulk_turn;           /* small and large messages take turns */
    struct conn *follower;    /* whose messages ours announce; NULL: none */
    struct conn *leader;      /* or the other way round */
    uint32_t ahead_bytes;     /* follower: that a message may send without a clear-to-send */
    uint64_t ahead_next;      /* follower: sends before this number have started, or wait for a clear-to-send */
    uint64_t eager_put;       /* leader: eager sends before this number are in chunks */

    /* receive side */
    struct recv_slot *recv_slots;
    struct msg_list recv_backlog;
    uint64_t recv_next;
    uint64_t recv_admitted;
    uint64_t recv_base;  /* all messages before this number are done */
    uint64_t ring_freed; /* eager ring space before this offset is free again */
    uint8_t *ring;
    uint32_t ring_bytes;
    uint32_t completions; /* since the last CREDIT frame */

    /* control */
    uint64_t *due[DUE_KINDS]; /* bitmaps */
    uint32_t due_count[DUE_KINDS];
    bool credit_due; /* a CREDIT goes soon */
    bool fin_due, fin_sends_sent;
    bool graced; /* the linger is over, and the FIN has a moment more */
    bool peer_sends_over, peer_receives_over;
    uint64_t fin_seq;   /* chunk that carried the last FIN; UINT64_MAX: none */
    uint64_t abort_seq; /* chunk that carried the last ABORT; UINT64_MAX: none */
    struct timer linger;
    uint64_t silent_since_ns; /* other flows have not heard the peer since (core_conn_silent_since()) */
};

size_t conn_size(const struct flow_setup *setup);
struct conn *conn_init(void *memory, struct flow *flow, const struct flow_setup *setup, uint32_t local_id,
                       uint32_t remote_id, void *owner);

/* part.c: a connection that carries parts of striped messages. */
void conn_submit_part(struct conn *conn, struct core_msg *msg, uint64_t now_ns);
void conn_end_part(struct conn *conn, struct core_msg *msg, int32_t status);
bool conn_on_part_data(struct conn *conn, const struct wire_data *data);
struct core_msg *conn_part_target(const struct conn *conn, const struct wire_data *data);
/* Whether the connection has the receive part of this message by now. */
bool conn_knows_part(const struct conn *conn, uint32_t truncated);
void conn_part_sent(struct conn *conn, struct core_msg *msg);
void conn_fail_parts(struct conn *conn, int32_t status);
/* Bytes of a striped receive have arrived on this flow: the owner adds them up. */
void conn_arrived(struct conn *conn, struct core_msg *msg, const struct wire_data *data);
/* The home connection: the receive is whole, says the owner. */
void conn_whole(struct conn *conn, struct core_msg *msg, uint64_t total);
/* A striped send has nothing left of its range: the owner gives it the next one. */
void conn_ask_range(struct conn *conn, struct core_msg *msg);
void conn_send_range(struct conn *conn, struct core_msg *msg, uint64_t from, uint64_t to);

void conn_submit(struct conn *conn, struct core_msg *msg, uint64_t now_ns);
void conn_cancel(struct conn *conn, struct core_msg *msg);
void conn_close(struct conn *conn, uint64_t linger_ns, uint64_t now_ns);
/* Sends a frame at once: a peer that does not know the connection answers GONE. */
void conn_announce(struct conn *conn);
/* Queues the last event of a closing connection once nothing is left to send or wait for. */
void conn_try_finish(struct conn *conn);
void conn_linger_over(struct conn *conn);
/* The flow sends the FIN of this connection, which is over: the peer learns of its end. */
void conn_keep_fin(struct conn *conn);
/* The same by a connection that has failed and is still there, where the flow keeps too many. */
void conn_owe_fin(struct conn *conn);
/* Reports a complete message whose completion was deferred. */
void conn_report_deferred(struct core_msg *msg);
/*
 * Completes every message with `status`; the connection takes no more. `proof`: what granted receives wait for.
 * DEFER_ARRIVAL: the peer has ended the connection; DEFER_REVOKE_DUE: it knows of nothing, and a FIN is kept for it; on
 * a dead flow DEFER_DRAIN.
 */
void conn_fail(struct conn *conn, int32_t status, enum deferral proof);

/* Frames from the peer. False: the frame breaks the protocol, and has changed nothing. */
bool conn_on_data(struct conn *conn, const struct wire_data *data);
bool conn_on_eager(struct conn *conn, const struct wire_eager *eager);
bool conn_on_cts(struct conn *conn, const struct wire_cts *cts);
bool conn_on_rts(struct conn *conn, const struct wire_rts *rts);
bool conn_on_credit(struct conn *conn, const struct wire_credit *credit);
bool conn_on_abort(struct conn *conn, const struct wire_abort *end);
bool conn_on_fin(struct conn *conn, const struct wire_fin *fin);
/* The first send that is not delivered once this CREDIT has acted; `so_far`: before. */
uint64_t conn_credited(const struct conn *conn, const struct wire_credit *credit, uint64_t so_far);

/* The message to whose buffer this DATA would be copied, or NULL; changes nothing. */
struct core_msg *conn_data_target(const struct conn *conn, const struct wire_data *data);

/* The NIC has written `length` bytes of a granted message. False: more than the message has. */
bool conn_on_placed(struct conn *conn, struct core_msg *msg, uint32_t length);
/* The grant of this message if our NIC of one of these pairs (bits) may write to it, else NULL. */
const struct send_slot *conn_grant(const struct conn *conn, const struct core_msg *msg, unsigned pairs);

/* The last chunk that refers to this payload is acked: completes the message if it waited for that. */
void conn_chunk_gone(struct conn *conn, struct core_msg *msg);

/*
 * Writes control frames into [at, at + room) as long as they fit; `seq` is the chunk that carries these. Returns the
 * bytes written.
 */
unsigned conn_put_ctrl(struct conn *conn, uint8_t *at, unsigned room, uint64_t seq);
static inline bool conn_has_ctrl(const struct conn *conn)
{
    return conn->due_count[DUE_CTS] || conn->due_count[DUE_RTS] || conn->due_count[DUE_ABORT_RECV] ||
           conn->due_count[DUE_ABORT_SEND] || conn->fin_due;
}

/* ahead.c: a send starts without a clear-to-send once its leader is on its way. */
void conn_await_leader(struct conn *conn, struct core_msg *msg);
/* Whether the peer will read leaders as they come: it posts receives for them once the first has come. */
static inline bool conn_may_follow(const struct conn *conn)
{
    return conn->leader && conn->leader->delivered > 0;
}
/* A message of the leader is in a chunk now. */
void conn_lead(struct conn *leader, uint64_t number);
/* The clear-to-send of a message that has started without it. */
void conn_on_late_cts(struct conn *conn, struct core_msg *msg, const struct send_slot *slot);
/* The path of the rail over which the message's leader is under way, or -1: then any path will do. */
int conn_leader_path(const struct core_msg *msg, const struct rail *rail);
/* Whether its receive will be posted, but is not yet. */
bool conn_awaits_recv(const struct conn *conn, uint32_t truncated);

/* staged.c: the shell fetches this message. */
void conn_want(struct conn *conn, struct core_msg *msg);
/* The message has started, and waits for bytes. */
void conn_park(struct conn *conn, struct core_msg *msg);
void conn_available(struct conn *conn, struct core_msg *msg, uint64_t bytes);

/* The eager message that may go now, or NULL. */
struct core_msg *conn_eager_ready(struct conn *conn);
/* Takes the next bytes of it, at most `room`; fills `eager` except its payload. */
void conn_take_eager(struct conn *conn, struct core_msg *msg, uint32_t room, struct wire_eager *eager);
/* The bulk message that may go now, or NULL; conn_take_bulk() moves past `bytes` of it. */
static inline struct core_msg *conn_bulk_ready(const struct conn *conn)
{
    return conn->bulk.head;
}
/* Bytes that its next chunk may be cut from: all that are left, or the rest of a staged message's block. */
static inline uint64_t conn_bulk_left(const struct core_msg *msg)
{
    uint64_t left = msg->end_bytes - msg->offset_bytes;
    uint64_t block = msg->block_bytes ? msg->block_bytes - msg->offset_bytes % msg->block_bytes : left;
    return left < block ? left : block;
}
void conn_take_bulk(struct conn *conn, struct core_msg *msg, uint64_t bytes);
/* Takes the next bytes of it for a train of frames, at most `room`; fills `data` except its payload. */
void conn_take_shared(struct conn *conn, struct core_msg *msg, uint32_t room, struct wire_data *data);

#endif
