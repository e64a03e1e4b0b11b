/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relation between this engine thread and one of a peer process: chunk sequence space, acks, loss,
 * timers, congestion control, paths, and the connections that share them. receive.c holds what packets do, ack.c what
 * acks do, flow.c what time does; transmit.c what goes out next.
 */
#ifndef UCCL_FLOW_H
#define UCCL_FLOW_H

#include "core/cc.h"
#include "core/conn.h"
#include "core/credit.h"
#include "core/gone.h"
#include "core/image.h"
#include "core/data_qp.h"
#include "core/mtu.h"
#include "core/path.h"
#include "core/place.h"
#include "core/probe.h"
#include "core/reach.h"
#include "core/rtt.h"
#include "core/sack.h"
#include "core/sent.h"
#include "core/silence.h"
#include "core/timer.h"

enum {
    FRAMES_SMALL_BYTES = 2048,      /* a buffer of the pool for few frames */
    FRAMES_BIG_BYTES = 64 * 1024,   /* and for a train of them */
    KERNEL_OVERHEAD_BYTES = 768,    /* what a datagram takes of a socket buffer beside its bytes */
    QUANTUM_BYTES = 64 * 1024,      /* of deficit round robin among connections */
    CONTROL_RESERVE_BYTES = 65536,  /* control frames may exceed the windows by this much */
};

/* Where a chunk of frames stands until it is acked. */
enum frames_buffer {
    BUFFER_SMALL, /* of the core's pool of small ones */
    BUFFER_BIG,   /* of the pool of big ones */
    BUFFER_OWN,   /* the flow's own small one, which no other flow can keep from it */
};

struct flow {
    struct core *core;
    void *owner;
    struct queue_link ready, event, acting; /* on the core's queues: ready, flow_events, paths */
    bool dead;
    bool farewell_due;            /* dead: the peer is told that we have given it up */
    int32_t status;               /* dead: what its messages end with */
    uint64_t rx_token, tx_token;
    uint64_t features;            /* of both ends: WIRE_FEATURES */
    uint32_t destination;
    uint32_t datagram_bytes;      /* of full ones: what is known to get through */
    uint32_t slot;                /* in core->flows */

    struct sent sent;
    struct sack sack;
    struct rtt rtt;
    struct cc cc;
    struct path_set paths;
    struct credit_tx credit_tx;
    struct credit_rx credit_rx;
    struct data_qps qps;           /* queue pairs that place payload; none: nothing is placed */
    struct place place;
    struct probe probe;
    struct reach reach;
    struct mtu mtu;
    struct image_out image;
    struct gone gone;

    /* buffers of frames */
    uint32_t held[2];             /* of the core's pools: BUFFER_SMALL, BUFFER_BIG */
    uint8_t *own_buffer;
    bool own_used;

    uint64_t peer_window_bytes;   /* what the peer's receive buffer takes */
    uint64_t rx_window_bytes;     /* ours, whole; acks advertise this flow's share of it */
    uint64_t packets_heard;
    uint32_t heard_epoch;         /* last period in which a packet came (core->share_epoch) */

    /* connections */
    struct queue ctrl;            /* with control frames */
    struct queue active;          /* with messages to send, round robin */
    struct conn *all_head;
    bool ctrl_urgent;             /* some control frame does not wait for the ack timer */
    uint32_t msgs_pending;        /* submitted and not ended, all connections */
    uint32_t closing;             /* connections that wait for their FIN to be acked */

    /* acks we owe */
    bool ack_pending;             /* something arrived since the last ack */
    bool ack_now;
    uint32_t ack_chunks;          /* chunks completed since the last ack */
    uint32_t ack_number;          /* of the next ack */
    uint32_t peer_ack_number;     /* newest one seen from the peer */
    bool ack_seen;
    uint64_t ack_at_ns;           /* when a pending ack goes out by itself */
    uint16_t ack_path;            /* that the last ack took */
    bool ack_repeats;             /* the peer retransmits what has arrived: perhaps that path swallows acks */

    /* timers */
    struct timer timer;           /* at or before the earliest deadline below */
    uint64_t last_rx_ns;          /* any packet of the peer, or when one began to be expected */
    struct silence silence;       /* since then */
    uint64_t heard_ns;            /* any packet of the peer */
    uint64_t rx_seq;              /* of the chunk that is being read */
    uint64_t last_ack_ns;         /* ack that moved something, or first transmission after idle */
    uint64_t asked_ns;            /* since when there are chunks that the peer has not acked */
    uint64_t rack_at_ns;          /* UINT64_MAX: none */
    uint64_t pace_until_ns;       /* cwnd below a chunk: no data before */
    uint8_t rto_backoff;
    bool probed;                  /* tail-loss probe sent since the last progress */
    bool probe_due;               /* it is about to go, whatever the window */
    uint64_t undo_cwnd_bytes;     /* the window before the last losses, should they prove needless; 0: none */
    uint64_t undo_since_ns;       /* when they were found */
    bool undo_startup;            /* whether it was growing as at the start then */
    bool window_limited;          /* the window held a chunk back since the last ack */
};

size_t flow_size(const struct params *params, const struct flow_setup *setup);
struct flow *flow_init(void *memory, struct core *core, const struct flow_setup *setup,
                       uint64_t now_ns);

/* Something to send has come up. */
void flow_wake(struct flow *flow);
void flow_add_ctrl(struct conn *conn);
void flow_add_active(struct conn *conn);
/* The connection whose turn it is, or NULL; and the next one's turn begins, behind which it is `keep`t. */
static inline struct conn *flow_first_active(const struct flow *flow)
{
    return QUEUE_HOLDER(flow->active.head, struct conn, active);
}
void flow_rotate_active(struct flow *flow, bool keep);
/* A message or chunk is about to be added: if it is the first, silence counts from here. */
void flow_expect_peer(struct flow *flow, uint64_t now_ns);
/* A message was submitted. */
void flow_msg_started(struct flow *flow, uint64_t now_ns);
/* A message has ended; `msg` goes to the application, once the NIC no longer reads its payload. */
void flow_msg_ended(struct flow *flow, struct core_msg *msg, int32_t status, uint64_t moved_bytes);
/* One that was held since it ended goes there now. */
void flow_give_back(struct flow *flow, struct core_msg *msg);
void flow_conn_event(struct conn *conn);
/* Whether the peer has something to answer. */
bool flow_expects_peer(const struct flow *flow);
/* The retransmission timeout, without its doublings. */
uint64_t flow_rto_ns(const struct flow *flow);
/* How long an answer that is still to come takes at most, as far as is known. */
uint64_t flow_probe_ns(const struct flow *flow);
/* The peer has been silent for so long, though there was something to ack. */
bool flow_unanswered(const struct flow *flow, uint64_t ns);
/* An ack is owed: at once, or after the usual delay. */
void flow_owe_delayed_ack(struct flow *flow, bool now);
/* Something of the peer has come. */
void flow_heard(struct flow *flow, uint64_t now_ns);
/* An ack is owed: at once, or within `delay_ns`. */
void flow_owe_ack(struct flow *flow, uint64_t delay_ns, bool now);
/* A reliable NIC says that a row of writes is placed, of so many chunks from this one on. */
void flow_on_placed(struct flow *flow, uint64_t seq, uint32_t count, uint16_t qp);
/* Credit is due soon: rides on the next packet, or goes with the ack timer. */
void flow_credit_due(struct conn *conn, bool now);
/* Retransmissions of this message's chunks no longer carry its payload; it may be given back. */
void flow_void_chunks(struct flow *flow, struct core_msg *msg);

/* ack.c: an ack has come; not `fresh`: in a retransmission. False: it acks what was never sent. */
bool flow_on_ack(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns);
/* So many have been declared lost for another reason than congestion: as if none had been. */
void flow_forgive_losses(struct flow *flow, unsigned lost);
/* So many chunks have been declared lost. */
void flow_count_losses(struct flow *flow, unsigned lost, uint64_t now_ns);
/* Congestion control is about to react to losses that may prove to be none. */
void flow_remember_window(struct flow *flow, uint64_t now_ns);
/*
 * A buffer for frames, a big one if that is wished for and to be had; `of`: enum frames_buffer. NULL: the flow has its
 * share.
 */
uint8_t *flow_take_buffer(struct flow *flow, bool big, uint8_t *of);
void flow_put_buffer(struct flow *flow, uint8_t *buffer, uint8_t of);

/* receive.c: the connection that a frame of this flow names, or NULL. */
struct conn *flow_find_conn(struct flow *flow, uint32_t id);
/* A packet has come; `data QP`: the one that it came over, or -1. False: it is not acked. */
bool flow_rx(struct flow *flow, struct wire_packet *packet, int qp, bool ce, uint64_t now_ns);
void flow_expire(struct flow *flow, uint64_t now_ns);
void flow_update_timer(struct flow *flow);
void flow_fail(struct flow *flow, int32_t status);
/* The peer is dead, or says that we are to it; `tell` it. */
void flow_give_up(struct flow *flow, bool tell);
/* A packet of a peer that has been given up: it is told. */
void flow_on_late(struct flow *flow, const struct wire_packet *packet);
/* Fills an ack and marks what it tells as told. */
void flow_fill_ack(struct flow *flow, struct wire_ack *ack, uint64_t now_ns);

/* share.c: what this flow may have in flight to us, so that all together fit into the receive buffer. */
uint64_t flow_rx_share(const struct flow *flow);
/* The retransmission timeout after so many doublings. */
uint64_t flow_backed_off_rto_ns(const struct flow *flow, unsigned backoff);
/* loss.c: a loss has proved needless, or the losses have proved real: chunks sent since are acked. */
void flow_settle_window(struct flow *flow, bool spurious);
/* When the loss timers next act: the tail-loss probe first, once, then the RTO; and what they do. */
uint64_t flow_loss_deadline(const struct flow *flow);
void flow_probe_tail(struct flow *flow);
void flow_retransmission_timeout(struct flow *flow, uint64_t now_ns);

/* transmit.c: the next thing that this flow sends. False: nothing now. */
bool flow_tx(struct flow *flow, struct tx_desc *desc, uint64_t now_ns);

#endif
