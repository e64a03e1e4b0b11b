/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relation between this engine thread and one of a peer process: chunk sequence space, acks, timers, the rails over
 * which chunks go (rail.h), and the connections that share them. receive.c acts on packets, ack.c on acks,
 * flow_timer.c on time; transmit.c chooses what goes out next.
 */
#ifndef UCCL_FLOW_H
#define UCCL_FLOW_H

#include "core/ack.h"
#include "core/conn.h"
#include "core/credit.h"
#include "core/data_qp.h"
#include "core/gone.h"
#include "core/image.h"
#include "core/message.h"
#include "core/place.h"
#include "core/rail.h"
#include "core/sack.h"
#include "core/sent.h"
#include "core/share.h"
#include "core/silence.h"
#include "core/timer.h"

enum {
    FRAMES_SMALL_BYTES = 2048,     /* a buffer of the pool for few frames */
    FRAMES_BIG_BYTES = 64 * 1024,  /* and for a train of them */
    QUANTUM_BYTES = 64 * 1024,     /* of deficit round robin among connections */
    CONTROL_RESERVE_BYTES = 65536, /* control frames may exceed the windows by this much */
};

/* Where a chunk of frames stands until it is acked. */
enum frames_buffer {
    BUFFER_SMALL, /* of the core's pool of small buffers */
    BUFFER_BIG,   /* of the pool of big buffers */
    BUFFER_OWN,   /* the flow's own small buffer, which no other flow can take */
};

enum rails_wanted { WANTED_NOT, WANTED_FOR_BULK, WANTED_IN_SILENCE, WANTED_TOLD };

struct flow {
    struct core *core;
    void *owner;
    struct queue_link ready, event, acting; /* on the core's queues: ready, flow_events, paths */
    bool dead;
    bool farewell_due;     /* dead: a FLOW frame says that we have given the peer up */
    bool proof_report_due; /* CORE_EVENT_FLOW_PROVEN waits */
    int32_t status;        /* dead: with which its messages complete */
    uint64_t rx_token, tx_token;
    uint64_t features; /* of both ends: WIRE_FEATURES */
    uint32_t slot;     /* in core->flows */
    uint16_t rail_count;
    uint16_t proven;    /* rails whose address is */
    uint16_t rail_most; /* with those that join (rail_join()) */
    struct rail *main;  /* for acks, control frames and small messages */
    struct rail *bulk;  /* the first usable one of connections beside a main rail of datagrams; NULL: none */
    bool carries;       /* it does: something else than probes may be sent */
    bool reliable;      /* some rails are, of those in use */
    bool shares_trains; /* granted messages share trains of frames with others (tx_shareable()) */
    uint64_t cut_ns;    /* reliable: since when no connection is up, once one was; 0: one is */

    struct sent sent;
    struct sack sack;
    struct credit_tx credit_tx;
    struct credit_rx credit_rx;
    struct data_qps qps; /* none: nothing is placed */
    struct place place;
    struct image_out image;
    struct gone gone;

    /* buffers of frames */
    uint32_t held[2]; /* of the core's pools: BUFFER_SMALL, BUFFER_BIG */
    uint8_t *own_buffer;
    bool own_used;

    uint64_t peer_window_bytes; /* our share of the peer's receive buffer, as its acks advertise it */
    uint64_t rx_window_bytes;   /* size of ours; acks advertise this flow's share of it */
    uint64_t packets_heard;
    uint32_t heard_period; /* of shares: the last one in which a packet came */

    /* connections */
    struct queue ctrl;   /* with control frames */
    struct queue active; /* with messages to send, round robin */
    struct conn *all_head;
    bool ctrl_urgent;      /* some control frame does not wait for the ack timer */
    uint32_t msgs_pending; /* submitted and not reported, all connections */
    struct queue closers;  /* connections that wait for their FIN to be acked: they may be few of many */

    struct ack ack;

    /* timers */
    struct timer timer;     /* at or before the earliest deadline below */
    uint64_t last_rx_ns;    /* last packet of the peer, or when the flow began to expect one */
    struct silence silence; /* since then */
    uint64_t heard_ns;      /* last packet of the peer */
    uint64_t rx_seq;        /* of the chunk that is being read */
    struct rail *rx_rail;   /* over which our answer to the probe goes that is being read */
    uint64_t asked_ns;      /* since when the peer has chunks to ack */

    uint64_t bulk_min_bytes; /* UCCL_TCP_BULK_KB */
    uint64_t bulk_bytes;     /* of large messages while no rail has joined */
    uint8_t rails_wanted;    /* enum rails_wanted: those that join */

    struct rail rails[]; /* `rail_most` of them */
};

#define EACH_RAIL(of, each) for (struct rail *each = (of)->rails; each; each = each->next)

/* Anything but probes may be sent, over some rail. */
static inline bool flow_proven(const struct flow *flow)
{
    return flow->proven > 0;
}

size_t flow_size(const struct params *params, const struct flow_setup *setup);
struct flow *flow_init(void *memory, struct core *core, const struct flow_setup *setup, uint64_t now_ns);

/* ---- flow.c ---------------------------------------------------------------------------------- */

/* Something to send has come up. */
void flow_wake(struct flow *flow);
void flow_add_ctrl(struct conn *conn);
void flow_add_active(struct conn *conn);
/* The connection whose turn it is, or NULL. */
static inline struct conn *flow_first_active(const struct flow *flow)
{
    return QUEUE_HOLDER(flow->active.head, struct conn, active);
}
/* The next connection's turn begins. The one before goes behind all others (`keep`), or off the queue. */
void flow_rotate_active(struct flow *flow, bool keep);

/*
 * A buffer for frames: a big one if the caller wants one and one is free, else a small one; `of`: enum frames_buffer.
 * NULL: the flow has its share.
 */
uint8_t *flow_take_buffer(struct flow *flow, bool big, uint8_t *of);
void flow_put_buffer(struct flow *flow, uint8_t *buffer, uint8_t of);

/* A packet of the peer has come. */
void flow_heard(struct flow *flow, uint64_t now_ns);
/* Whether the peer has something to answer. */
bool flow_expects_peer(const struct flow *flow);
/* A message or chunk is about to be added: if it is the first, silence counts from here. */
void flow_expect_peer(struct flow *flow, uint64_t now_ns);
/* The peer has been silent for so long, though there was something to ack. */
bool flow_unanswered(const struct flow *flow, uint64_t ns);

/* Bytes of a message have been sent or received, for CORE_EVENT_RAILS_WANTED. */
void flow_count_bulk(struct flow *flow, uint64_t bytes);
/* Rails of connections are to be connected, unless one is: reported once for large messages, and again in silence. */
void flow_want_rails(struct flow *flow, enum rails_wanted why);
static inline void flow_note_bulk(struct flow *flow, const struct core_msg *msg, uint64_t bytes)
{
    if (flow->rail_count < flow->rail_most && msg->size_bytes >= flow->bulk_min_bytes)
        flow_count_bulk(flow, bytes);
}

/* The rail of which this is a path, or NULL. */
struct rail *flow_find_rail(struct flow *flow, uint16_t path);
static inline struct rail *flow_rail_of(struct flow *flow, uint16_t path)
{
    return path < flow->rails->paths.count ? flow->rails : flow_find_rail(flow, path);
}
/* Whether it is of connections, beside a main rail of datagrams, and some such rail is usable. */
static inline bool rail_is_beside(const struct rail *rail)
{
    return rail->reliable && rail->flow->bulk;
}
/* A rail's state has changed: chooses the main one. */
void flow_choose_main(struct flow *flow);
/* Of several rails of connections beside those of datagrams the one for the next chunk; NULL: all of them lose much. */
struct rail *flow_best_beside(const struct flow *flow);
/* An ask is due, of a peer that is silent. */
void flow_ask(struct flow *flow);
/* A rail with a probe to send, and room for it, or NULL. */
struct rail *flow_find_probe(struct flow *flow);
static inline struct rail *flow_due_probe(struct flow *flow)
{
    if (flow->rails->probe.due && rail_has_room(flow->rails, false))
        return flow->rails;
    return flow->rail_count > 1 ? flow_find_probe(flow) : NULL;
}

/* The flow's timer fires at this time at the latest. */
void flow_arm(struct flow *flow, uint64_t at_ns);

/* ---- flow_timer.c ---------------------------------------------------------------------------- */

/* Arms the timer for the earliest deadline. */
void flow_update_timer(struct flow *flow);
/* The timer fires: acts on every deadline that has passed. */
void flow_expire(struct flow *flow, uint64_t now_ns);

/* ---- flow_lifecycle.c ------------------------------------------------------------------------ */

void flow_fail(struct flow *flow, int32_t status);
/* The peer is dead: the flow fails, and says so in a farewell. Without one: the peer has given us up. */
void flow_give_up(struct flow *flow, bool farewell);
/* A farewell is due. None goes to an address that is not proven (probe.h): only probes do. */
void flow_bid_farewell(struct flow *flow);
/* A packet of a peer that has been given up: a farewell is due again. */
void flow_on_late(struct flow *flow, const struct wire_packet *packet);

/* ---- receive.c ------------------------------------------------------------------------------- */

/* The connection that a frame of this flow names, or NULL. */
struct conn *flow_find_conn(struct flow *flow, uint32_t id);
/* A packet has come; `qp`: the data QP that it came over, or -1. False: it is not acked. */
bool flow_rx(struct flow *flow, struct wire_packet *packet, int qp, bool ce, uint64_t now_ns);

/* ---- refused.c ------------------------------------------------------------------------------- */

/* The NIC has refused the flow's newest descriptor: what it carries is due again. */
void flow_tx_refused(struct flow *flow, const struct tx_desc *desc, uint64_t now_ns);

#endif
