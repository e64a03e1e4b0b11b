/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connected queue pairs (UC, RC) over which payload is written to where the peer has granted it: one per
 * peer and path, made, connected, drained and closed as the core says (core.h).
 *
 *     MADE -> UP -> DRAINING -> DRAINED -> RESTING, destroyed after a packet's lifetime
 *
 * Draining moves the queue pair to error, behind which nothing more is received or sent, and waits for what
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
    VERBS_RETRANSMISSIONS = 256,          /* datagrams at a time in sends on paths, of a queue */
    VERBS_CQ_QPS = 64,          /* that share a completion queue for their sends */
    VERBS_BUCKETS = 256,          /* of the table from queue pair number to path */
    VERBS_DRAIN_MS = 20,          /* until what had been received is there, where the device does not tell */
    VERBS_DRAIN_MAX_MS = 1000,    /* until a queue pair whose sends do not end is destroyed at once */
    VERBS_TIME_WAIT_MAX = 8,        /* queue pairs that a path may have at rest: no other is made meanwhile */
};

enum verbs_data_qp_state { VERBS_MADE, VERBS_UP, VERBS_DRAINING, VERBS_DRAINED, VERBS_TIME_WAIT };

struct verbs_data_qp_cq {
    struct verbs_data_qp_cq *next;
    struct verbs_cq cq;
    uint32_t qps, qps_max;
};

/* What a work request is for. */
struct verbs_work {
    uint64_t cookie;
    int16_t slot;       /* of the retransmission that it carries; -1: none */
    bool last;          /* of its descriptor */
};

struct verbs_data_qp {
    struct verbs_queue *queue;
    struct ibv_qp *ibv;       /* NULL: destroyed early */
    struct verbs_data_qp_cq *cq;
    struct nic_qp_id is;      /* flow NULL: it is closed, nobody wants to hear of it */
    uint8_t state;            /* enum verbs_data_qp_state */
    bool failed;              /* told, or about to be told */
    bool failure_pending, done_pending; /* for event(), for poll_done() */
    _Atomic uint32_t last_receive; /* the device says that the last one is over */
    _Atomic uint32_t broken;       /* or that the queue pair has failed */
    uint16_t index, epoch;     /* in queue->paths; which path there it is */
    uint32_t port_epoch;           /* nic->turns when it was made: it has failed when that changes */
    uint32_t depth;           /* work requests; a power of two */
    uint32_t psn;             /* of our first packet */
    uint32_t built, posted, done;
    uint32_t retransmissions;         /* slots that it holds */
    uint32_t done_seen;       /* `done` at the last look for stalls, which was new then */
    uint64_t progress_ms;     /* when that was */
    uint32_t marker;          /* DRAINING: number of the last send */
    bool marked, marker_done; /* it was posted; it has completed */
    struct nic_done newest_done; /* for poll_done() */
    uint64_t since_ms;        /* when this state began */
    bool receives_drained;             /* DRAINING: all that it has received is in the completion queue */
    uint64_t polled;          /* queue->polled when all of that has been taken */
    int first_batched, last_batched; /* in the queue's stage; -1: none */
    struct verbs_data_qp *same_bucket;
    struct verbs_work *works; /* by number modulo depth */
};

struct verbs_data_qp_batch {
    uint32_t count;
    struct verbs_data_qp *qps[VERBS_BATCH]; /* that have something staged */
    uint32_t qp_count;
    struct ibv_send_wr requests[VERBS_BATCH];
    struct ibv_sge sges[VERBS_BATCH];
};

struct verbs_data_qps {
    struct ibv_srq *srq;
    struct verbs_slots shared;         /* what it receives into */
    struct verbs_data_qp_cq *cqs;
    struct verbs_data_qp **all;           /* by index; NULL: free */
    uint32_t count, capacity;
    uint32_t active;                   /* that are not only resting */
    uint32_t requests;                 /* work requests in progress, of all */
    uint32_t draining, events, dones;   /* paths in that state; with something for event(), poll_done() */
    uint32_t events_seen;                /* of nic->path_news */
    uint16_t epoch;
    struct verbs_data_qp *buckets[VERBS_BUCKETS];
    struct verbs_pool retransmissions;
    int16_t free_retransmissions[VERBS_RETRANSMISSIONS];
    uint32_t free_retransmission_count;
    struct verbs_data_qp_batch batch;
};

/* Shared receive queue and pool of retransmissions; nothing in UD mode. */
int verbs_data_qps_open(struct verbs_queue *queue);
void verbs_data_qps_close(struct verbs_queue *queue);

int verbs_data_qp_open(struct nic_queue *base, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn);
int verbs_data_qp_connect(struct nic_queue *base, const struct nic_qp_id *id, uint32_t number, uint32_t psn);
void verbs_data_qp_drain(struct nic_queue *base, const struct nic_qp_id *id);
void verbs_data_qp_destroy(struct nic_queue *base, const struct nic_qp_id *id);
bool verbs_data_qp_event(struct nic_queue *base, struct nic_qp_event *out);
/* The flow of a peer is closed: so are its paths. */
void verbs_data_qps_forget(struct verbs_queue *queue, uint32_t destination);

/* The wr_id of a work request. */
uint64_t verbs_data_qp_work_id(const struct verbs_data_qp *qp, uint32_t number);
/* The device reads nothing for it any more. */
void verbs_data_qp_finish_all(struct verbs_data_qp *qp);
/* What is staged for it is not posted any more. */
void verbs_data_qp_drop_batch(struct verbs_data_qp *qp);

bool verbs_data_qp_send(struct verbs_queue *queue, const struct tx_desc *desc);
void verbs_data_qps_flush(struct verbs_queue *queue);
unsigned verbs_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max);
/* Arms the completion queues. True: something is there already. */
bool verbs_data_qps_arm(struct verbs_queue *queue);
/* Now and then: destroys those that have rested, and gives up those whose work does not end. */
void verbs_data_qps_sweep(struct verbs_queue *queue, uint64_t now_ms);

/* A receive completed on a queue pair of this number; NULL: it is none of ours any more. */
struct verbs_data_qp *verbs_data_qp_of(struct verbs_queue *queue, uint32_t number);
/* One of its completions says that it has failed. */
void verbs_data_qp_fail(struct verbs_data_qp *qp, const struct ibv_wc *wc);

#endif
