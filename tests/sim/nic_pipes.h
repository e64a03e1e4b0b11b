/* SPDX-License-Identifier: Apache-2.0 */
/* What nic_pipes.c (queues) and nic_pipe_links.c (the pipes between them) share. Nothing of it is for others. */
#ifndef SIM_NIC_PIPES_H
#define SIM_NIC_PIPES_H

#include "nic_queue.h"

enum {
    PREFIX_BYTES = 4, /* of a record (tcp/record.h) */
    HEAD_BYTES = PREFIX_BYTES + WIRE_BULK_HEADER_BYTES,
    PATHS_OF_PIPES = 8,
    SPENT_MAX = 8,
};

struct record {
    struct record *next;
    uint64_t at; /* of its prefix, in the bytes of its direction */
    uint32_t length, read;
    uint8_t *to; /* into the receive's buffer; NULL: not there */
    bool begun;  /* reading has, so that `to` is known */
    bool gone;   /* the buffer is, since then */
    uint8_t bytes[];
};

/* One direction of a pipe. */
struct way {
    struct record *head, **tail;
    uint64_t sent, arrived, taken; /* bytes */
    uint64_t last_ns;              /* when the newest arrive */
    bool ended;                    /* nothing follows */
};

struct half;
struct link {
    struct link *next;    /* of all */
    struct half *ends[2]; /* 0: who has dialled; NULL: it has let go */
    bool broken;
    struct way ways[2]; /* by the end that sends */
};

/* An end of a path. */
struct half {
    struct pipe_peer *peer;
    struct link *link;
    uint8_t end;
    bool up, refused, fresh;   /* fresh: there may be something to read */
    bool broken_due, room_due; /* for event() */
    unsigned failures;
};

struct pipe_peer {
    struct pipe_peer *next;   /* of all */
    struct pipe_queue *queue; /* NULL: removed */
    unsigned own, node;       /* nodes */
    uint32_t destination;
    uint16_t paths;
    bool introduced;
    struct nic_flow flow;
    struct liar *liar; /* of a hostile node */
    struct half halves[PATHS_OF_PIPES];
};

struct pipe_queue {
    struct nic_queue base;
    struct sim_nic *nic;
    struct nic_queue_setup setup;
    bool in_use, sleeping, woken;
    uint32_t turn, destinations;
    struct record *spent[SPENT_MAX];
    unsigned spent_count;
    uint8_t *zeros; /* payload that nobody may look at */
};

extern struct sim_pipes {
    struct pipe_peer *peers;
    struct link *links;
    struct rng rng;
} sim_pipes;

static inline bool sim_pipe_chance(uint32_t ppm)
{
    return ppm && rng_below(&sim_pipes.rng, 1000000) < ppm;
}

/* Up to so long. */
static inline uint64_t sim_pipe_within(uint64_t ns)
{
    return ns ? rng_below(&sim_pipes.rng, (uint32_t)ns) : 0;
}

/* ---- nic_pipe_links.c ---- */
/* The path is made, by the side that dials; `what`: its peer. */
void sim_pipe_dial(void *what, uint64_t path);
/* All that is under way is lost; both ends learn it, each in its time. */
void sim_pipe_break(struct link *link);
/* The end has learned that its pipe is no more. */
void sim_pipe_let_go(struct half *half);
/* Closes an end: what it has sent arrives. */
void sim_pipe_hang_up(struct half *half);
/* Something has happened at the end: whoever sleeps in its queue has something to do. */
void sim_pipe_wake(struct half *half);
/* Puts a record into the pipe, from end `from`. */
void sim_pipe_carry(struct link *link, unsigned from, const uint8_t *bytes, uint32_t length);
void *sim_pipe_make(size_t bytes);
/* Forgets what a queue has handed out. */
void sim_pipe_forget_spent(struct pipe_queue *queue);
/* The peer is removed from its queue. */
void sim_pipe_remove_peer(struct pipe_peer *peer);

#endif
