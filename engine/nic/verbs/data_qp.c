/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/data_qp.h"

#include "base/log.h"
#include "core/units.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    PSN_MASK = 0xffffff,
    RNR_TIMER = 1,      /* 10 us until a peer without a posted receive is tried again */
    RNR_RETRY_EVER = 7, /* the core, not the device, decides that a peer is dead */
};

/* ---- the queue's part ------------------------------------------------------------------------ */

uint32_t verbs_shared_receives(const struct verbs_nic *nic)
{
    int most = nic->port->limits.max_srq_wr < nic->port->limits.max_cqe / 2 ? nic->port->limits.max_srq_wr
                                                                            : nic->port->limits.max_cqe / 2;
    return nic->mode == VERBS_UD ? 0 : verbs_at_most(VERBS_SHARED_RECEIVES, most);
}

int verbs_data_qps_open(struct verbs_queue *queue)
{
    struct verbs_nic *nic = queue->nic;
    uint32_t receives = verbs_shared_receives(nic);
    if (receives == 0)
        return 0;
    struct verbs_data_qps *qps = calloc(1, sizeof *qps);
    if (!qps)
        return verbs_fault(nic, "make a queue", ENOMEM);
    queue->data_qps = qps;
    for (int16_t i = 0; i < VERBS_RETRANSMISSIONS; i++)
        qps->free_retransmissions[qps->free_retransmission_count++] = i;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = receives, .max_sge = 1}};
    qps->srq = nic->lib->create_srq(nic->pd, &attr);
    if (!qps->srq)
        return verbs_fault(nic, "make a shared receive queue", errno);
    int error = verbs_slots_open(nic, &qps->shared, receives, nic->datagram_bytes);
    if (!error)
        error = verbs_pool_open(nic, &qps->retransmissions, (size_t)VERBS_RETRANSMISSIONS * nic->datagram_bytes,
                                "register send buffers");
    if (!error)
        verbs_slots_post(queue, &qps->shared);
    return error;
}

static void unlink_data_qp(struct verbs_queue *queue, struct verbs_data_qp *qp)
{
    struct verbs_data_qp **link = &queue->data_qps->buckets[qp->ibv->qp_num % VERBS_BUCKETS];
    while (*link != qp)
        link = &(*link)->same_bucket;
    *link = qp->same_bucket;
}

/* Destroys its queue pair: nothing is sent or received on it afterwards. */
static void destroy_queue_pair(struct verbs_data_qp *qp)
{
    if (!qp->ibv)
        return;
    unlink_data_qp(qp->queue, qp);
    qp->queue->lib->destroy_qp(qp->ibv);
    qp->ibv = NULL;
    qp->cq->qps--;
}

static void free_data_qp(struct verbs_data_qp *qp)
{
    destroy_queue_pair(qp);
    verbs_data_qp_finish_all(qp);
    qp->queue->data_qps->dones -= qp->done_pending;
    qp->queue->data_qps->all[qp->index] = NULL;
    free(qp->works);
    free(qp);
}

void verbs_data_qps_close(struct verbs_queue *queue)
{
    struct verbs_data_qps *qps = queue->data_qps;
    if (!qps)
        return;
    for (uint32_t i = 0; i < qps->count; i++)
        if (qps->all[i])
            free_data_qp(qps->all[i]);
    while (qps->cqs) {
        struct verbs_data_qp_cq *cq = qps->cqs;
        qps->cqs = cq->next;
        verbs_cq_close(queue, &cq->cq);
        free(cq);
    }
    if (qps->srq)
        queue->lib->destroy_srq(qps->srq);
    verbs_slots_close(queue->nic, &qps->shared);
    verbs_pool_close(queue->nic, &qps->retransmissions);
    free(qps->all);
    free(qps);
    queue->data_qps = NULL;
}

/* ---- finding --------------------------------------------------------------------------------- */

struct verbs_data_qp *verbs_data_qp_of(struct verbs_queue *queue, uint32_t number)
{
    struct verbs_data_qp *qp = queue->data_qps->buckets[number % VERBS_BUCKETS];
    while (qp && qp->ibv->qp_num != number)
        qp = qp->same_bucket;
    return qp;
}

static struct verbs_data_qp *find_data_qp(struct verbs_queue *queue, const struct nic_qp_id *id)
{
    struct verbs_data_qp *qp = verbs_peer_at(queue, id->destination)->qps[id->path];
    return qp && qp->is.generation == id->generation ? qp : NULL;
}

/* ---- making and connecting ------------------------------------------------------------------- */

/* Work requests: UCCL_QP_DEPTH, or fewer where the device takes no more beside the marker. */
static uint32_t depth_of(const struct verbs_queue *queue)
{
    return verbs_at_most((uint32_t)queue->setup.params->qp_depth, queue->nic->port->limits.max_qp_wr - 1);
}

/* A completion queue with room for one more data QP; NULL: logged. */
static struct verbs_data_qp_cq *take_cq(struct verbs_queue *queue)
{
    struct verbs_data_qp_cq *cq = queue->data_qps->cqs;
    uint32_t each = depth_of(queue) + 1, most = (uint32_t)queue->nic->port->limits.max_cqe / each;
    while (cq && cq->qps == cq->qps_max)
        cq = cq->next;
    if (cq)
        return cq;
    cq = calloc(1, sizeof *cq);
    if (!cq)
        return NULL;
    cq->qps_max = most < VERBS_CQ_QPS ? most : VERBS_CQ_QPS;
    /* stamps tell when RC has placed a write; when UC has sent one is of no use */
    if (verbs_cq_open(queue, &cq->cq, cq->qps_max * each, queue->nic->mode == VERBS_RC)) {
        free(cq);
        return NULL;
    }
    cq->next = queue->data_qps->cqs;
    queue->data_qps->cqs = cq;
    return cq;
}

/* A free index in the table of data QPs, which grows; -1: out of memory. */
static int take_index(struct verbs_data_qps *qps)
{
    for (uint32_t i = 0; i < qps->count; i++)
        if (!qps->all[i])
            return (int)i;
    if (qps->count == UINT16_MAX)
        return -1;
    if (qps->count == qps->capacity) {
        uint32_t capacity = qps->capacity ? 2 * qps->capacity : 16;
        struct verbs_data_qp **all = realloc(qps->all, capacity * sizeof(struct verbs_data_qp *));
        if (!all)
            return -1;
        qps->all = all;
        qps->capacity = capacity;
    }
    qps->all[qps->count] = NULL;
    return (int)qps->count++;
}

static int create_data_qp(struct verbs_data_qp *qp)
{
    struct verbs_queue *queue = qp->queue;
    const struct verbs_nic *nic = queue->nic;
    struct ibv_qp_init_attr attr = {
        .send_cq = qp->cq->cq.cq,
        .recv_cq = queue->receive_cq.cq,
        .srq = queue->data_qps->srq,
        .cap = {.max_send_wr = qp->depth + 1, .max_send_sge = 1},
        .qp_type = nic->mode == VERBS_RC ? IBV_QPT_RC : IBV_QPT_UC,
        .qp_context = qp,
    };
    qp->ibv = nic->lib->create_qp(nic->pd, &attr);
    if (!qp->ibv)
        return verbs_fault(nic, "make a queue pair for a path", errno);
    qp->cq->qps++;
    struct verbs_data_qp **bucket = &queue->data_qps->buckets[qp->ibv->qp_num % VERBS_BUCKETS];
    qp->same_bucket = *bucket;
    *bucket = qp;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = nic->port->number,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int error =
        nic->lib->modify_qp(qp->ibv, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return error ? verbs_fault(nic, "set a queue pair for a path up", error) : 0;
}

static struct verbs_data_qp *new_data_qp(struct verbs_queue *queue, const struct nic_qp_id *id)
{
    struct verbs_data_qps *qps = queue->data_qps;
    int index = take_index(qps);
    struct verbs_data_qp *qp = index < 0 ? NULL : calloc(1, sizeof *qp);
    struct verbs_data_qp_cq *cq = qp ? take_cq(queue) : NULL;
    if (!cq) {
        free(qp);
        return NULL;
    }
    *qp = (struct verbs_data_qp){.queue = queue,
                                 .cq = cq,
                                 .is = *id,
                                 .index = (uint16_t)index,
                                 .epoch = ++qps->epoch,
                                 .port_epoch = atomic_load(&queue->nic->port_epoch),
                                 .depth = depth_of(queue),
                                 .first_batched = -1};
    qp->works = calloc(qp->depth, sizeof *qp->works);
    qps->all[index] = qp;
    return qp;
}

/* Limits the pace of a peer that gives up its queue pairs again and again, so that ours are made anew. */
static bool many_in_time_wait(const struct verbs_queue *queue, const struct nic_qp_id *id)
{
    const struct verbs_data_qps *qps = queue->data_qps;
    unsigned in_time_wait = 0;
    for (uint32_t i = 0; i < qps->count; i++) {
        const struct verbs_data_qp *qp = qps->all[i];
        in_time_wait +=
            qp && qp->state == VERBS_TIME_WAIT && qp->is.destination == id->destination && qp->is.path == id->path;
    }
    return in_time_wait >= VERBS_TIME_WAIT_MAX;
}

int verbs_data_qp_open(struct nic_queue *base, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    if (verbs_is_gone(queue->nic) || atomic_load(&queue->nic->port_epoch) & 1)
        return UCCL_EIO; /* logged before; the core tries again */
    if (many_in_time_wait(queue, id))
        return UCCL_EAGAIN;
    struct verbs_data_qp *qp = new_data_qp(queue, id);
    if (!qp || !qp->works) {
        if (qp)
            free_data_qp(qp);
        return verbs_fault(queue->nic, "make a path", ENOMEM);
    }
    int error = create_data_qp(qp);
    if (error) {
        free_data_qp(qp);
        return error;
    }
    assert(!verbs_peer_at(queue, id->destination)->qps[id->path]);
    verbs_peer_at(queue, id->destination)->qps[id->path] = qp;
    queue->data_qps->active++;
    if (getrandom(psn, sizeof *psn, 0) != sizeof *psn)
        *psn = qp->epoch * 0x9e3779b1u;
    *psn &= PSN_MASK;
    qp->psn = *psn;
    *number = qp->ibv->qp_num | queue->nic->index << VERBS_QPN_BITS;
    return 0;
}

/* The peer offers an impossible number, perhaps again and again: logs that once. */
static int refuse_number(struct verbs_queue *queue, struct verbs_peer *peer, uint32_t number)
{
    char text[VERBS_GID_TEXT];
    if (!peer->number_refused)
        LOG_WARNING("verbs device %s: the peer with GID %s, LID %u, offers queue pair 0x%x, which cannot be one; "
                    "what is sent to it goes as datagrams",
                    queue->nic->port->device, verbs_gid_text(peer->address.gid, text), peer->address.lid, number);
    peer->number_refused = true;
    return UCCL_EPROTO;
}

int verbs_data_qp_connect(struct nic_queue *base, const struct nic_qp_id *id, uint32_t number, uint32_t psn)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_nic *nic = queue->nic;
    const struct params *params = queue->setup.params;
    struct verbs_peer *peer = verbs_peer_at(queue, id->destination);
    const struct verbs_address *address = &peer->address;
    struct verbs_data_qp *qp = find_data_qp(queue, id);
    bool reliable = nic->mode == VERBS_RC;
    if (!qp || qp->state != VERBS_MADE)
        return UCCL_EINVAL;
    uint32_t port = number >> VERBS_QPN_BITS, own = number & ((1u << VERBS_QPN_BITS) - 1);
    if (port >= peer->nics || !verbs_qpn_is_valid(own))
        return refuse_number(queue, peer, number);
    if (port != peer->nic)
        return UCCL_EADDR; /* of another pair: a peer that numbers its ports otherwise. The core tries again */
    /* one end refuses packets that the other one cuts by another path MTU: changes since they met do not count */
    unsigned shift = (unsigned)__builtin_ctz(peer->path_mtu);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = (enum ibv_mtu)(shift - VERBS_MTU_SHIFT_MIN + IBV_MTU_256),
                               .dest_qp_num = own,
                               .rq_psn = psn & PSN_MASK,
                               .min_rnr_timer = RNR_TIMER,
                               .ah_attr = verbs_route_to(nic, address, id->path, peer->traffic_class)};
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = nic->lib->modify_qp(qp->ibv, &attr, mask);
    if (!error) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .sq_psn = qp->psn,
                                    .timeout = (uint8_t)params->ib_timeout,
                                    .retry_cnt = (uint8_t)params->ib_retry_cnt,
                                    .rnr_retry = RNR_RETRY_EVER};
        mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if (reliable)
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        error = nic->lib->modify_qp(qp->ibv, &attr, mask);
    }
    if (error)
        return verbs_fault(nic, "connect the queue pair of a path", error);
    qp->state = VERBS_UP;
    return 0;
}

/* ---- failing --------------------------------------------------------------------------------- */

static void note_failed(struct verbs_data_qp *qp)
{
    qp->failed = true;
    qp->failure_pending = true;
    qp->queue->data_qps->events++;
}

void verbs_data_qp_fail(struct verbs_data_qp *qp, const struct ibv_wc *wc)
{
    const struct verbs_nic *nic = qp->queue->nic;
    if (qp->failed || qp->state > VERBS_UP)
        return;
    LOG_WARNING("verbs device %s port %u: path %u, queue pair 0x%x, has failed: %s (vendor code 0x%x); it is made "
                "anew",
                nic->port->device, nic->port->number, qp->is.path, qp->ibv->qp_num, nic->lib->wc_status_str(wc->status),
                wc->vendor_err);
    note_failed(qp);
}

/* ---- draining and closing --------------------------------------------------------------------- */

/* Posts a last send, which completes after all earlier ones. */
static void post_marker(struct verbs_data_qp *qp)
{
    struct ibv_send_wr marker = {.wr_id = verbs_data_qp_work_id(qp, qp->built),
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    qp->marker = qp->built;
    qp->marked = ibv_post_send(qp->ibv, &marker, &bad) == 0;
}

/* False: it goes on sending and receiving until it is destroyed. */
static bool to_error(struct verbs_data_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    verbs_data_qp_drop_batch(qp);
    qp->since_ms = verbs_now_ms();
    return qp->queue->lib->modify_qp(qp->ibv, &attr, IBV_QP_STATE) == 0;
}

void verbs_data_qp_drain(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qp *qp = find_data_qp(queue, id);
    assert(qp && qp->state <= VERBS_UP);
    if (qp->failure_pending) {
        qp->failure_pending = false;
        queue->data_qps->events--;
    }
    qp->goes_on = !to_error(qp);
    if (qp->state == VERBS_UP && !qp->goes_on)
        post_marker(qp);
    qp->state = VERBS_DRAINING;
    queue->data_qps->draining++;
}

/* What is in the completion queue by now is to be taken. */
static void begin_taking(struct verbs_data_qp *qp)
{
    const struct verbs_queue *queue = qp->queue;
    qp->polled = queue->polled + queue->receives.count + queue->data_qps->shared.count + VERBS_READY;
}

/* The completion queue is empty, or all that it can have held then has been taken. */
static bool has_taken_all(const struct verbs_data_qp *qp)
{
    return !verbs_receive(qp->queue) || (int64_t)(qp->queue->polled - qp->polled) >= 0;
}

/*
 * Whether no send is under way, and all receives are in the completion queue. A queue pair that hangs, or does not
 * stop, is destroyed, which has the same effect. What it has received is taken before: its completions may go with it,
 * and RC has acked these writes, so that nobody repeats them.
 */
static bool receives_are_drained(struct verbs_data_qp *qp)
{
    uint64_t waited_ms = verbs_now_ms() - qp->since_ms;
    bool sends_over = qp->done == qp->built || qp->marker_done;
    bool receives_over = atomic_load(&qp->last_receive) || waited_ms >= VERBS_DRAIN_MS;
    if (sends_over && receives_over && !qp->goes_on)
        return true;
    if (waited_ms < VERBS_DRAIN_MAX_MS && !qp->goes_on)
        return false;
    if (!qp->hangs)
        begin_taking(qp);
    qp->hangs = true;
    if (!has_taken_all(qp))
        return false;
    destroy_queue_pair(qp);
    return true;
}

static bool is_drained(struct verbs_data_qp *qp)
{
    if (!qp->receives_drained && !receives_are_drained(qp))
        return false;
    if (!qp->receives_drained) {
        qp->receives_drained = true;
        verbs_data_qp_finish_all(qp);
        begin_taking(qp);
    }
    return has_taken_all(qp);
}

/* Whether the device has reported that it, its port or the device has failed. */
static bool is_broken(const struct verbs_data_qp *qp)
{
    struct verbs_nic *nic = qp->queue->nic;
    return atomic_load(&qp->broken) || atomic_load(&nic->port_epoch) != qp->port_epoch || verbs_is_gone(nic);
}

bool verbs_data_qp_event(struct nic_queue *base, struct nic_qp_event *out)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qps *qps = queue->data_qps;
    uint32_t events = atomic_load(&queue->nic->qp_events);
    if (!qps || (qps->draining + qps->events == 0 && events == qps->events_seen))
        return false;
    for (uint32_t i = 0; i < qps->count; i++) {
        struct verbs_data_qp *qp = qps->all[i];
        if (!qp || !qp->is.flow)
            continue;
        if (qp->state <= VERBS_UP && !qp->failed && is_broken(qp))
            note_failed(qp);
        bool drained = qp->state == VERBS_DRAINING && is_drained(qp);
        if (!drained && !qp->failure_pending)
            continue;
        if (drained) {
            qp->state = VERBS_DRAINED;
            qps->draining--;
        } else {
            qp->failure_pending = false;
            qps->events--;
        }
        *out = (struct nic_qp_event){.id = qp->is, .drained = drained};
        return true;
    }
    qps->events_seen = events;
    return false;
}

static void enter_time_wait(struct verbs_data_qp *qp)
{
    qp->is.flow = NULL;
    qp->state = VERBS_TIME_WAIT;
    qp->since_ms = verbs_now_ms();
    qp->queue->data_qps->active--;
}

void verbs_data_qp_destroy(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qp *qp = find_data_qp(queue, id);
    assert(qp && qp->state == VERBS_DRAINED);
    verbs_peer_at(queue, id->destination)->qps[id->path] = NULL;
    enter_time_wait(qp);
}

/* Its data QPs in TIME_WAIT do not count against whoever gets the number of the destination next. */
static void disown_data_qps(struct verbs_data_qps *qps, uint32_t destination)
{
    for (uint32_t i = 0; i < qps->count; i++)
        if (qps->all[i] && qps->all[i]->is.destination == destination)
            qps->all[i]->is.destination = VERBS_NOBODY;
}

void verbs_data_qps_forget(struct verbs_queue *queue, uint32_t destination)
{
    struct verbs_data_qp **of_peer = verbs_peer_at(queue, destination)->qps;
    for (unsigned i = 0; of_peer && i < verbs_peer_at(queue, destination)->qp_count; i++) {
        struct verbs_data_qp *qp = of_peer[i];
        if (!qp)
            continue;
        if (qp->goes_on || (qp->state <= VERBS_UP && !to_error(qp)))
            destroy_queue_pair(qp);
        queue->data_qps->draining -= qp->state == VERBS_DRAINING;
        queue->data_qps->events -= qp->failure_pending;
        qp->failure_pending = false;
        verbs_drop_ready(queue, qp->is.flow);
        enter_time_wait(qp);
    }
    if (queue->data_qps)
        disown_data_qps(queue->data_qps, destination);
}

/*
 * Some devices neither complete work nor fail it, as after a link was down for a while. So a data QP fails after twice
 * the time that RC has for all its attempts.
 */
static void check_stall(struct verbs_data_qp *qp, uint64_t now_ms)
{
    enum { NS_PER_TICK = 4096, SLACK_MS = 500 };
    const struct params *params = qp->queue->setup.params;
    uint64_t attempt_ms = ((uint64_t)NS_PER_TICK << params->ib_timeout) / NS_PER_MS;
    if (qp->done == qp->built || qp->done != qp->done_seen) {
        qp->done_seen = qp->done;
        qp->progress_ms = now_ms;
    } else if (!qp->failed && now_ms - qp->progress_ms > 2 * attempt_ms * (params->ib_retry_cnt + 1) + SLACK_MS) {
        LOG_WARNING("verbs device %s port %u: path %u, queue pair 0x%x, neither finishes its work nor fails; it is "
                    "made anew",
                    qp->queue->nic->port->device, qp->queue->nic->port->number, qp->is.path, qp->ibv->qp_num);
        note_failed(qp);
    }
}

void verbs_data_qps_sweep(struct verbs_queue *queue, uint64_t now_ms)
{
    struct verbs_data_qps *qps = queue->data_qps;
    for (uint32_t i = 0; i < qps->count; i++) {
        struct verbs_data_qp *qp = qps->all[i];
        if (qp && qp->state == VERBS_UP)
            check_stall(qp, now_ms);
        if (qp && qp->state == VERBS_TIME_WAIT && now_ms - qp->since_ms >= queue->setup.params->packet_lifetime_ms)
            free_data_qp(qp);
    }
}
