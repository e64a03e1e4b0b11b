/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue pairs over which the NIC places payload. A data QP is one of a rail's, with a generation. This file makes,
 * offers, connects, watches and drains data QPs; place.h says which chunks they carry.
 *
 * The number of a data QP is its number within the rail, then the pair of NICs in the lowest bits: as many as the
 * number of pairs needs. So both ends mean the same one, whatever rails and however many data QPs the other one has.
 *
 *     CLOSED -> OPENING -> OFFERED -> CONNECTING -> UP         a fault, silence, the peer's DRAINED:
 *        ^                                           any ----> DRAINING -> DRAINED
 *        +----- next generation, after a pause, once the peer is drained too ---+
 *
 * Both ends run the same machine. OFFER names the sender's queue pair. READY says that it is connected, so the peer may
 * write to it. DRAINED says that it is in error and drained; an ack stands in front. Frames overtake each other, so an
 * end keeps what the peer says of the next generation until that begins.
 *
 * No stale placement (docs/architecture.md): a chunk that was placed over a generation goes nowhere else until the peer
 * has drained that generation. A chunk that waits for this is CHUNK_HELD.
 */
#ifndef UCCL_DATA_QP_H
#define UCCL_DATA_QP_H

#include "core/path.h"
#include "core/wire.h"

struct flow;
struct rail;
struct chunk;

enum data_qp_state {
    DATA_QP_CLOSED,     /* no queue pair here */
    DATA_QP_OPENING,    /* QP_OPEN is requested */
    DATA_QP_OFFERED,    /* ours exists; waits for the peer's OFFER */
    DATA_QP_CONNECTING, /* QP_CONNECT is requested */
    DATA_QP_UP,         /* receives; sends once the peer is ready */
    DATA_QP_DRAINING,   /* QP_DRAIN is requested */
    DATA_QP_DRAINED,    /* nothing arrives any more; waits for the peer's DRAINED */
};

/* What the peer has said of a generation. */
struct data_qp_peer {
    bool offered, ready, drained;
    uint32_t number, psn;
};

/* A descriptor that the NIC has not finished. */
struct data_qp_work {
    struct core_msg *msg; /* its payload is read; NULL: none is */
    uint64_t seq;         /* of its first chunk */
    uint32_t requests;    /* its work requests; TX_PLACE: one write each */
    bool write;           /* TX_PLACE */
};

struct data_qp {
    uint8_t state;                  /* enum data_qp_state */
    uint8_t actions;                /* bit per enum core_qp_kind that waits for core_next_qp_action() */
    uint8_t frames;                 /* bit per enum wire_qp_what that is due */
    uint8_t pauses;                 /* doublings of the pause before it opens again */
    bool has_queue_pair;            /* a queue pair exists, for QP_CLOSE */
    uint32_t generation;            /* from 1 */
    uint32_t close_generation;      /* of the queue pair that QP_CLOSE is about */
    uint32_t number, psn;           /* ours */
    struct data_qp_peer peer, next; /* of this generation, and of the one after it */
    uint64_t open_at_ns;            /* DATA_QP_CLOSED: not before */
    struct rail *rail;              /* over which it goes; NULL: none here has that pair of NICs */
    uint64_t round_ns;              /* when the current round of retransmissions began, */
    uint64_t round_before_ns;       /* and the one before */
    uint32_t rounds;                /* of retransmissions since the peer received anything over this data QP */
    struct data_qp_work *work;      /* ring over [work_done, work_next) of `depth` */
    uint32_t work_next, work_done;
    uint32_t requests; /* work requests in progress */
};

struct data_qps {
    struct data_qp *qps; /* `count` of them; 0: the flow does not place */
    uint16_t count;
    uint8_t pair_bits;        /* of their numbers */
    uint16_t usable;          /* data QPs that may be written to */
    uint32_t depth;           /* work requests per data QP; a power of two */
    uint32_t frames_due;      /* data QPs with a frame due */
    uint32_t drained_due;     /* data QPs with DRAINED due, which ignores the window */
    bool wanted;              /* some message could have used a data QP */
    uint32_t reserve;         /* chunk sequence numbers that only DRAINED may take */
    uint64_t barred_until;    /* no data QP opens before the peer has all chunks before this number */
    uint32_t packets, losses; /* packets written of late, and losses among these; both halve at times, to age */
};

/* How many numbers of data QPs there are; some may be of pairs without a rail. */
uint16_t data_qps_count(const struct params *params, const struct flow_setup *setup);
size_t data_qps_size(const struct params *params, const struct flow_setup *setup);
/* `memory` as large as that; a flow that does not place has no data QPs. The rails are there already. */
void data_qps_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup);

/* Some message could be placed: data QPs open from now on. */
void data_qps_want(struct flow *flow);
/* Whether anything may be placed now. */
static inline bool data_qps_usable(const struct data_qps *qps)
{
    return qps->usable > 0;
}
/* None is to be opened. */
static inline bool data_qps_all_usable(const struct data_qps *qps)
{
    return qps->usable == qps->count;
}
/* The number of a data QP within its rail. */
static inline uint16_t data_qp_local(const struct data_qps *qps, uint16_t index)
{
    return (uint16_t)(index >> qps->pair_bits);
}
/* Over which pairs of NICs something may be placed now (bits). */
unsigned data_qps_pairs(const struct flow *flow);

/* The data QP for a chunk to be placed over the rail, or -1: none has a free work request. */
int data_qp_choose(struct rail *rail);
static inline bool data_qp_takes(const struct data_qps *qps, uint16_t qp, uint32_t requests)
{
    return qps->qps[qp].requests + requests <= qps->depth;
}
/* A descriptor of `requests` work requests is about to go over the data QP: fills in generation and cookie. */
void data_qp_begin_work(struct flow *flow, uint16_t qp, struct core_msg *msg, uint32_t requests, struct tx_desc *desc);
/* The NIC did not take the last descriptor, which had this cookie. */
void data_qp_undo_work(struct flow *flow, uint64_t cookie);
/* Before a retransmission over it. False: it has been silent for too long, and is being drained. */
bool data_qp_may_retransmit(struct flow *flow, uint16_t qp);
/* A retransmission goes over it now. True: it begins a round. */
bool data_qp_retransmits(struct flow *flow, uint16_t qp);
/* The NIC did not take the retransmission that began a round. */
void data_qp_unretransmit(struct flow *flow, uint16_t qp);
/* Chunks of `packets` packets in all are written. */
void data_qps_wrote(struct flow *flow, uint32_t packets);
/* Chunks that were written have been lost, as the order on their data QPs shows. */
void data_qps_lost(struct flow *flow, unsigned chunks);
/* Loss is so frequent that a chunk should be a single packet. */
bool data_qps_lossy(const struct flow *flow);
/* The peer has received something over it. */
void data_qp_heard(struct flow *flow, uint16_t qp);

/* Every queue pair is drained: the flow is dead, or memory must be proven free. */
void data_qps_drain_all(struct flow *flow);
/* Those of a rail that is down. */
void data_qps_drain_rail(struct rail *rail);
/* No queue pair can place anything. */
bool data_qps_quiet(const struct flow *flow);

/* Opens the data QPs whose pause is over; when to call it again. */
void data_qps_expire(struct flow *flow, uint64_t now_ns);
uint64_t data_qps_deadline(const struct flow *flow);

/* A FRAME_QP came. The ack in front of it has been dealt with. */
void data_qps_on_frame(struct flow *flow, const struct wire_qp *frame);
/* Writes the FRAME_QPs that are due and fit; an ack stands in the same datagram. Returns the bytes. */
unsigned data_qps_put_frames(struct flow *flow, uint8_t *at, uint32_t room);

/* core.h, per flow. */
bool data_qps_next_action(struct flow *flow, struct core_qp_action *action);
void data_qp_opened(struct flow *flow, uint16_t qp, uint32_t generation, uint32_t number, uint32_t psn);
void data_qp_connected(struct flow *flow, uint16_t qp, uint32_t generation);
void data_qp_drained(struct flow *flow, uint16_t qp, uint32_t generation);
void data_qp_failed(struct flow *flow, uint16_t qp, uint32_t generation);
/* Whether this generation of a data QP still receives. */
static inline bool data_qp_receives(const struct data_qps *qps, uint16_t index, uint32_t generation)
{
    if (index >= qps->count)
        return false;
    const struct data_qp *qp = &qps->qps[index];
    return qp->generation == generation && qp->has_queue_pair && qp->state != DATA_QP_DRAINED;
}
/* The data QP whose work in progress has this cookie, or NULL: the queue pair is gone, and its work finished. */
struct data_qp *data_qp_of_work(struct flow *flow, uint64_t cookie);
/* The work requests of the oldest descriptor in progress are done. */
struct data_qp_work data_qp_finish_oldest(struct flow *flow, struct data_qp *qp);

enum { COOKIE_SLOT_SHIFT = 52, COOKIE_PATH_SHIFT = 44, COOKIE_EPOCH_SHIFT = 32 };

#endif
