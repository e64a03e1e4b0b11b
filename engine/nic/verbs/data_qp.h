/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connected queue pairs (UC, RC) over which payload is written to where the peer has granted it: one per
 * peer and path, made, connected, fenced and closed as the core says (core.h).
 *
 *     MADE -> UP -> FENCING -> FENCED -> RESTING, destroyed after a packet's lifetime
 *
 * Fencing moves the queue pair to error, behind which nothing more is received or sent, and waits for what
 * had been received: for the device's word that the last receive is over where it gives that, else for a
 * bounded time; and for the completion of a last send, behind which none is under way. Then the completion
 * queue must have been emptied once.
 *
 * Sends are numbered as they are built. The last one of each batch asks for a completion, which frees all
 * before it; so a path never waits for one that does not come.
 *
 * Thread: the queue's owner, but for the two atomics, which events of the device set.
 */
#ifndef UCCL_VERBS_PATH_H
#define UCCL_VERBS_PATH_H

#include "nic/verbs/verbs.h"

enum {
    VERBS_SHARED_RECEIVES = 2048, /* slots of the shared receive queue */
    VERBS_REPAIRS = 256,          /* datagrams at a time in sends on paths, of a queue */
    VERBS_CQ_PATHS = 64,          /* that share a completion queue for their sends */
    VERBS_BUCKETS = 256,          /* of the table from queue pair number to path */
    VERBS_DRAIN_MS = 20,          /* until what had been received is there, where the device does not tell */
    VERBS_DRAIN_MAX_MS = 1000,    /* until a queue pair whose sends do not end is destroyed at once */
    VERBS_RESTING_MAX = 8,        /* queue pairs that a path may have at rest: no other is made meanwhile */
};

enum verbs_path_state { VERBS_MADE, VERBS_UP, VERBS_FENCING, VERBS_FENCED, VERBS_RESTING };

struct verbs_path_cq {
    struct verbs_path_cq *next;
    struct verbs_cq cq;
    uint32_t paths, paths_max;
};

/* What a work request is for. */
struct verbs_work {
    uint64_t cookie;
    int16_t slot;       /* of the repair that it carries; -1: none */
    bool last;          /* of its descriptor */
};

struct verbs_path {
    struct nic_queue *queue;
    struct ibv_qp *qp;        /* NULL: destroyed early */
    struct verbs_path_cq *cq;
    struct nic_path is;       /* flow NULL: it is closed, nobody wants to hear of it */
    uint8_t state;            /* enum verbs_path_state */
    bool failed;              /* told, or about to be told */
    bool tell_failed, has_done; /* waits for path_event(), for poll_tx() */
    _Atomic uint32_t last_receive; /* the device says that the last one is over */
    _Atomic uint32_t broken;       /* or that the queue pair has failed */
    uint16_t index, life;     /* in queue->paths; which path there it is */
    uint32_t turns;           /* nic->turns when it was made: it has failed when that changes */
    uint32_t depth;           /* work requests; a power of two */
    uint32_t psn;             /* of our first packet */
    uint32_t built, posted, done;
    uint32_t repairs;         /* slots that it holds */
    uint32_t done_seen;       /* `done` at the last look for stalls, which was new then */
    uint64_t progress_ms;     /* when that was */
    uint32_t marker;          /* FENCING: number of the last send */
    bool marked, marker_done; /* it was posted; it has completed */
    struct nic_done newest_done; /* for poll_tx() */
    uint64_t since_ms;        /* when this state began */
    bool drained;             /* FENCING: all that it has received is in the completion queue */
    uint64_t polled;          /* queue->polled when all of that has been taken */
    int first_staged, last_staged; /* in the queue's stage; -1: none */
    struct verbs_path *same_bucket;
    struct verbs_work *works; /* by number modulo depth */
};

struct verbs_path_stage {
    uint32_t count;
    struct verbs_path *paths[VERBS_STAGE]; /* that have something staged */
    uint32_t path_count;
    struct ibv_send_wr requests[VERBS_STAGE];
    struct ibv_sge pieces[VERBS_STAGE];
};

struct verbs_paths {
    struct ibv_srq *srq;
    struct verbs_slots shared;         /* what it receives into */
    struct verbs_path_cq *cqs;
    struct verbs_path **all;           /* by index; NULL: free */
    uint32_t count, capacity;
    uint32_t active;                   /* that are not only resting */
    uint32_t requests;                 /* work requests in progress, of all */
    uint32_t fencing, events, dones;   /* paths in that state; with something for path_event(), poll_tx() */
    uint32_t news_seen;                /* of nic->path_news */
    uint16_t life;
    struct verbs_path *buckets[VERBS_BUCKETS];
    struct verbs_pool repairs;
    int16_t free_repairs[VERBS_REPAIRS];
    uint32_t free_repair_count;
    struct verbs_path_stage stage;
};

/* Shared receive queue and pool of repairs; nothing in UD mode. */
int verbs_paths_open(struct nic_queue *queue);
void verbs_paths_close(struct nic_queue *queue);

int verbs_path_open(struct nic_queue *queue, const struct nic_path *id, uint32_t *number, uint32_t *psn);
int verbs_path_connect(struct nic_queue *queue, const struct nic_path *id, uint32_t number, uint32_t psn);
void verbs_path_fence(struct nic_queue *queue, const struct nic_path *id);
void verbs_path_close(struct nic_queue *queue, const struct nic_path *id);
bool verbs_path_event(struct nic_queue *queue, struct nic_path_event *out);
/* The flow of a peer is closed: so are its paths. */
void verbs_paths_forget(struct nic_queue *queue, uint32_t destination);

/* The wr_id of a work request. */
uint64_t verbs_path_work_id(const struct verbs_path *path, uint32_t number);
/* The device reads nothing for it any more. */
void verbs_path_finish_all(struct verbs_path *path);
/* What is staged for it is not posted any more. */
void verbs_path_unstage(struct verbs_path *path);

bool verbs_path_send(struct nic_queue *queue, const struct tx_desc *desc);
void verbs_paths_flush(struct nic_queue *queue);
unsigned verbs_poll_tx(struct nic_queue *queue, struct nic_done *done, unsigned max);
/* Arms the completion queues. True: something is there already. */
bool verbs_paths_arm(struct nic_queue *queue);
/* Now and then: destroys those that have rested, and gives up those whose work does not end. */
void verbs_paths_sweep(struct nic_queue *queue, uint64_t now_ms);

/* A receive completed on a queue pair of this number; NULL: it is none of ours any more. */
struct verbs_path *verbs_path_of(struct nic_queue *queue, uint32_t number);
/* One of its completions says that it has failed. */
void verbs_path_fail(struct verbs_path *path, const struct ibv_wc *wc);

#endif
