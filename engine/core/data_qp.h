/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue pairs over which the NIC places payload: a lane is path p's queue pair of one flow, with a
 * generation. This file makes, offers, connects, watches and fences them; which chunks they carry is in
 * place.h.
 *
 *     CLOSED -> OPENING -> OFFERED -> CONNECTING -> UP         a fault, silence, the peer's FENCED:
 *        ^                                           any ----> FENCING -> FENCED
 *        +----- next generation, after a pause, once the peer is fenced too ---+
 *
 * Both ends run the same machine. OFFER tells the own queue pair, READY that it is connected, and so may be
 * written to, FENCED that it is in error and drained, together with an ack. Frames overtake each other, so
 * what the peer says of the next generation is kept until that begins.
 *
 * No stale placement (docs/architecture.md): a chunk that was placed over a generation goes nowhere else
 * until the peer has fenced that. While it waits it is CHUNK_HELD.
 */
#ifndef UCCL_LANE_H
#define UCCL_LANE_H

#include "core/path.h"
#include "core/wire.h"

struct flow;
struct chunk;

enum lane_state {
    LANE_CLOSED,     /* no queue pair here */
    LANE_OPENING,    /* PATH_OPEN is asked for */
    LANE_OFFERED,    /* ours is known; waits for the peer's offer */
    LANE_CONNECTING, /* PATH_CONNECT is asked for */
    LANE_UP,         /* receives; sends once the peer is ready */
    LANE_FENCING,    /* PATH_FENCE is asked for */
    LANE_FENCED,     /* nothing arrives any more; waits for the peer's FENCED */
};

/* What the peer has said of a generation. */
struct lane_peer {
    bool offered, ready, fenced;
    uint32_t number, psn;
};

/* A descriptor that the NIC has not finished. */
struct lane_work {
    struct core_msg *msg; /* whose payload it reads; NULL: none */
    uint64_t seq;         /* of its first chunk */
    uint32_t requests;    /* work requests that it takes; a write each where it is TX_PLACE */
    bool write;           /* TX_PLACE */
};

struct lane {
    uint8_t state;            /* enum lane_state */
    uint8_t actions;          /* bit per enum core_path_kind that waits for core_next_path() */
    uint8_t frames;           /* bit per enum wire_path_what to be told */
    uint8_t pauses;           /* doublings of the pause before it is opened again */
    bool has_queue_pair;      /* something to PATH_CLOSE */
    uint32_t generation;      /* from 1 */
    uint32_t close_generation; /* of the queue pair that PATH_CLOSE is about */
    uint32_t number, psn;     /* ours */
    struct lane_peer peer, next; /* of this generation, and of the one after it */
    uint64_t open_at_ns;      /* LANE_CLOSED: not before */
    uint64_t round_ns;        /* when the current round of repairs began */
    uint32_t rounds;          /* of repairs since anything was heard over this lane */
    struct lane_work *work;   /* ring over [work_done, work_next) of `depth` */
    uint32_t work_next, work_done;
    uint32_t requests;        /* work requests in progress */
};

struct lanes {
    struct path_set set;      /* path sequences, delays and penalties; chooses */
    struct lane *lanes;       /* `count` of them; 0: the flow does not place */
    uint16_t count;
    uint16_t usable;          /* that may be written to */
    uint32_t depth;           /* work requests per lane; a power of two */
    uint32_t frames_due;      /* lanes that have something to tell */
    uint32_t fenced_due;      /* lanes that have FENCED to tell: goes whatever the window */
    bool wanted;              /* some message could have used them */
    uint32_t reserve;         /* chunk sequence numbers that only FENCED may take */
    uint64_t barred_until;    /* none is opened before the peer has all chunks before this one */
    uint32_t packets, losses; /* written of late, and lost of these; halved together, so that they age */
};

size_t lanes_size(const struct params *params, const struct flow_setup *setup);
/* `memory` as large as that; a flow that does not place has no lanes. */
void lanes_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup);

/* Some message could be placed: lanes are made from now on. */
void lanes_want(struct flow *flow);
/* Whether anything may be placed now. */
static inline bool lanes_usable(const struct lanes *lanes)
{
    return lanes->usable > 0;
}

/* The lane for a chunk that is to be placed, or -1: all have their hands full. */
int lane_choose(struct flow *flow);
static inline bool lane_takes(const struct lanes *lanes, uint16_t lane, uint32_t requests)
{
    return lanes->lanes[lane].requests + requests <= lanes->depth;
}
/* A descriptor of so many work requests is about to go over it: fills in what the descriptor says of it. */
void lane_begin_work(struct flow *flow, uint16_t lane, struct core_msg *msg, uint32_t requests,
                     struct tx_desc *desc);
/* The NIC did not take the last one, which had this cookie. */
void lane_undo_work(struct flow *flow, uint64_t cookie);
/* Before a repair over it. False: it has been silent for too long; it is being fenced, its chunks held. */
bool lane_may_repair(struct flow *flow, uint16_t lane);
/* A repair goes over it now. */
void lane_repairs(struct flow *flow, uint16_t lane);
/* A chunk of so many packets is written. */
void lanes_wrote(struct flow *flow, uint32_t packets);
/* Chunks that were written have been lost, as the order on their lanes shows. */
void lanes_lost(struct flow *flow, unsigned chunks);
/* So many packets are lost that a chunk had better be one of them. */
bool lanes_lossy(const struct flow *flow);
/* The peer has received something over it. */
void lane_heard(struct flow *flow, uint16_t lane);

/* Every queue pair is fenced: the flow is dead, or memory must be proven free. */
void lanes_fence_all(struct flow *flow);
/* No queue pair can place anything. */
bool lanes_quiet(const struct flow *flow);

/* Opens what is due; when to call it again. */
void lanes_expire(struct flow *flow, uint64_t now_ns);
uint64_t lanes_deadline(const struct flow *flow);

/* A FRAME_PATH came. The ack in front of it has been dealt with. */
void lanes_on_frame(struct flow *flow, const struct wire_path *frame);
/* Writes what fits of FRAME_PATHs due; an ack stands in the same datagram. Returns the bytes. */
unsigned lanes_put_frames(struct flow *flow, uint8_t *at, uint32_t room);

/* core.h, per flow. */
bool lanes_next_action(struct flow *flow, struct core_path_action *action);
void lane_opened(struct flow *flow, uint16_t lane, uint32_t generation, uint32_t number, uint32_t psn);
void lane_connected(struct flow *flow, uint16_t lane, uint32_t generation);
void lane_fenced(struct flow *flow, uint16_t lane, uint32_t generation);
void lane_failed(struct flow *flow, uint16_t lane, uint32_t generation);
/* Whether what came over a queue pair is of a generation that is open here. */
static inline bool lane_receives(const struct lanes *lanes, uint16_t index, uint32_t generation)
{
    if (index >= lanes->count)
        return false;
    const struct lane *lane = &lanes->lanes[index];
    return lane->generation == generation && lane->has_queue_pair && lane->state != LANE_FENCED;
}
/* Finishes work requests up to the cookie's. */
void lane_work_done(struct flow *flow, uint64_t cookie);

enum { COOKIE_SLOT_SHIFT = 52, COOKIE_PATH_SHIFT = 44, COOKIE_LIFE_SHIFT = 32 };

#endif
