/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data QPs: connected queue pairs (UC, RC) that write payload to granted memory, one per peer and path. The core
 * decides when they are made, connected, drained and destroyed (core.h).
 *
 *     MADE -> UP -> DRAINING -> DRAINED -> TIME_WAIT, destroyed after a packet's lifetime
 *
 * Draining moves the queue pair to error, which stops sending and receiving. Then it waits for the device's event that
 * the last receive has completed, or a bounded time where devices raise none; for a last send (the marker) to complete;
 * and until the completion queue was empty once.
 *
 * Sends are numbered as they are built. The last one of each batch is signalled, and its completion frees all earlier
 * ones. So no data QP waits for a completion that does not come.
 *
 * Thread: the queue's owner, but for the two atomics, which events of the device set.
 */
#ifndef UCCL_VERBS_DATA_QP_H
#define UCCL_VERBS_DATA_QP_H

#include "nic/verbs/verbs.h"

enum {
    VERBS_SHARED_RECEIVES = 2048, /* slots of the shared receive queue */
    VERBS_RETRANSMISSIONS = 256,  /* datagrams that all data QPs of a queue retransmit at a time */
    VERBS_CQ_QPS = 64,            /* data QPs whose sends share a completion queue */
    VERBS_BUCKETS = 256,          /* of the table from number to data QP */
    VERBS_DRAIN_MS = 20,          /* until received data counts as complete, where the device raises no event */
    VERBS_DRAIN_MAX_MS = 1000,    /* until a data QP whose sends do not complete is destroyed at once */
    VERBS_TIME_WAIT_MAX = 8,      /* data QPs of a path in TIME_WAIT; with more, none is made */
};

#define VERBS_NOBODY UINT32_MAX /* no number of a destination */

enum verbs_data_qp_state { VERBS_MADE, VERBS_UP, VERBS_DRAINING, VERBS_DRAINED, VERBS_TIME_WAIT };

struct verbs_data_qp_cq {
    struct verbs_data_qp_cq *next;
    struct verbs_cq cq;
    uint32_t qps, qps_max;
};

/* The purpose of a work request. */
struct verbs_work {
    uint64_t cookie;
    int16_t slot; /* of a retransmission; -1: none */
    bool last;    /* of its descriptor */
};

struct verbs_data_qp {
    struct verbs_queue *queue;
    struct ibv_qp *ibv; /* NULL: destroyed early */
    struct verbs_data_qp_cq *cq;
    struct nic_qp_id is;                /* flow NULL: the core has let go of it */
    uint8_t state;                      /* enum verbs_data_qp_state */
    bool failed;                        /* event() has reported that, or will */
    bool failure_pending, done_pending; /* for event(), for poll_done() */
    _Atomic uint32_t last_receive;      /* the device has reported it */
    _Atomic uint32_t broken;            /* the device has reported that it has failed */
    uint16_t index, epoch;              /* in `all`; tells it from earlier ones with that index */
    uint32_t port_epoch;                /* nic->port_epoch when it was made: a change means that it has failed */
    uint32_t depth;                     /* work requests; a power of two */
    uint32_t psn;                       /* of our first packet */
    uint32_t built, posted, done;
    uint32_t retransmissions;        /* slots that it holds */
    uint32_t done_seen;              /* `done` when it last was seen to change */
    uint64_t progress_ms;            /* when that was */
    uint32_t marker;                 /* DRAINING: number of the last send */
    bool marked, marker_done;        /* it was posted; it has completed */
    struct nic_done newest_done;     /* for poll_done() */
    uint64_t since_ms;               /* when this state began */
    bool receives_drained;           /* DRAINING: all receives are in the completion queue */
    bool goes_on;                    /* DRAINING: it could not be moved to error */
    bool hangs;                      /* DRAINING: it is to be destroyed once what it has received is taken */
    uint64_t polled;                 /* queue->polled once all of them have been taken */
    int first_batched, last_batched; /* in the batch; -1: none */
    struct verbs_data_qp *same_bucket;
    struct verbs_work *works; /* by number modulo depth */
};

struct verbs_data_qp_batch {
    uint32_t count;
    struct verbs_data_qp *qps[VERBS_BATCH]; /* that have work requests in it */
    uint32_t qp_count;
    struct ibv_send_wr requests[VERBS_BATCH];
    struct ibv_sge sges[VERBS_BATCH];
};

struct verbs_data_qps {
    struct ibv_srq *srq;
    struct verbs_slots shared; /* its receive slots */
    struct verbs_data_qp_cq *cqs;
    struct verbs_data_qp **all; /* by index; NULL: free */
    uint32_t count, capacity;
    uint32_t active;                  /* not in TIME_WAIT */
    uint32_t requests;                /* work requests in progress, of all */
    uint32_t draining, events, dones; /* how many are in that state, have something for event(), for poll_done() */
    uint32_t events_seen;             /* nic->qp_events at the last look */
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
/* The peer is removed: its data QPs enter TIME_WAIT. */
void verbs_data_qps_forget(struct verbs_queue *queue, uint32_t destination);

/* The wr_id of a work request. */
uint64_t verbs_data_qp_work_id(const struct verbs_data_qp *qp, uint32_t number);
/* Its queue pair is gone or drained: all its work requests have completed. */
void verbs_data_qp_finish_all(struct verbs_data_qp *qp);
/* Drops its work requests in the batch. */
void verbs_data_qp_drop_batch(struct verbs_data_qp *qp);

bool verbs_data_qp_send(struct verbs_queue *queue, const struct tx_desc *desc);
void verbs_data_qps_flush(struct verbs_queue *queue);
unsigned verbs_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max);
/* Arms the completion queues. True: completions or events wait already. */
bool verbs_data_qps_arm(struct verbs_queue *queue);
/* Now and then: destroys data QPs after TIME_WAIT, and fails those that hang. */
void verbs_data_qps_sweep(struct verbs_queue *queue, uint64_t now_ms);

/* The data QP of that number; NULL: it was destroyed. */
struct verbs_data_qp *verbs_data_qp_of(struct verbs_queue *queue, uint32_t number);
/* Takes a failed completion: the data QP has failed. */
void verbs_data_qp_fail(struct verbs_data_qp *qp, const struct ibv_wc *wc);

#endif
