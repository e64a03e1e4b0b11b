/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/data_qp.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    PSN_MASK = 0xffffff,
    RNR_TIMER = 1,      /* 10 us: how soon a peer without a receive posted is tried again */
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
    struct verbs_data_qps *paths = calloc(1, sizeof *paths);
    if (!paths)
        return verbs_fault(nic, "make a queue", ENOMEM);
    queue->paths = paths;
    for (int16_t i = 0; i < VERBS_RETRANSMISSIONS; i++)
        paths->free_retransmissions[paths->free_retransmission_count++] = i;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = receives, .max_sge = 1}};
    paths->srq = nic->lib->create_srq(nic->pd, &attr);
    if (!paths->srq)
        return verbs_fault(nic, "make a shared receive queue", errno);
    int error = verbs_slots_open(nic, &paths->shared, receives, nic->datagram_bytes);
    if (!error)
        error = verbs_pool_open(nic, &paths->retransmissions, (size_t)VERBS_RETRANSMISSIONS * nic->datagram_bytes,
                                "register send buffers");
    if (!error)
        verbs_slots_post(queue, &paths->shared);
    return error;
}

static void unlink_path(struct verbs_queue *queue, struct verbs_data_qp *path)
{
    struct verbs_data_qp **link = &queue->paths->buckets[path->qp->qp_num % VERBS_BUCKETS];
    while (*link != path)
        link = &(*link)->same_bucket;
    *link = path->same_bucket;
}

/* From here on nothing is sent or received on it. */
static void destroy_queue_pair(struct verbs_data_qp *path)
{
    if (!path->qp)
        return;
    unlink_path(path->queue, path);
    path->queue->lib->destroy_qp(path->qp);
    path->qp = NULL;
    path->cq->paths--;
}

static void free_path(struct verbs_data_qp *path)
{
    destroy_queue_pair(path);
    verbs_data_qp_finish_all(path);
    path->queue->paths->dones -= path->has_done;
    path->queue->paths->all[path->index] = NULL;
    free(path->works);
    free(path);
}

void verbs_data_qps_close(struct verbs_queue *queue)
{
    struct verbs_data_qps *paths = queue->paths;
    if (!paths)
        return;
    for (uint32_t i = 0; i < paths->count; i++)
        if (paths->all[i])
            free_path(paths->all[i]);
    while (paths->cqs) {
        struct verbs_data_qp_cq *cq = paths->cqs;
        paths->cqs = cq->next;
        verbs_cq_close(queue, &cq->cq);
        free(cq);
    }
    if (paths->srq)
        queue->lib->destroy_srq(paths->srq);
    verbs_slots_close(queue->nic, &paths->shared);
    verbs_pool_close(queue->nic, &paths->retransmissions);
    free(paths->all);
    free(paths);
    queue->paths = NULL;
}

/* ---- finding --------------------------------------------------------------------------------- */

struct verbs_data_qp *verbs_data_qp_of(struct verbs_queue *queue, uint32_t number)
{
    struct verbs_data_qp *path = queue->paths->buckets[number % VERBS_BUCKETS];
    while (path && path->qp->qp_num != number)
        path = path->same_bucket;
    return path;
}

static struct verbs_data_qp *find(struct verbs_queue *queue, const struct nic_qp_id *id)
{
    struct verbs_data_qp *path = queue->peers[id->destination].paths[id->path];
    return path && path->is.generation == id->generation ? path : NULL;
}

/* ---- making and connecting ------------------------------------------------------------------- */

/* As many as the core keeps in progress, and as the device takes beside the last one of a drain. */
static uint32_t depth_of(const struct verbs_queue *queue)
{
    return verbs_at_most((uint32_t)queue->setup.params->qp_depth, queue->nic->port->limits.max_qp_wr - 1);
}

/* A completion queue with room for one more path; NULL: logged. */
static struct verbs_data_qp_cq *take_cq(struct verbs_queue *queue)
{
    struct verbs_data_qp_cq *cq = queue->paths->cqs;
    uint32_t each = depth_of(queue) + 1, most = (uint32_t)queue->nic->port->limits.max_cqe / each;
    while (cq && cq->paths == cq->paths_max)
        cq = cq->next;
    if (cq)
        return cq;
    cq = calloc(1, sizeof *cq);
    if (!cq)
        return NULL;
    cq->paths_max = most < VERBS_CQ_PATHS ? most : VERBS_CQ_PATHS;
    /* when a write was placed is of interest, not when it had left */
    if (verbs_cq_open(queue, &cq->cq, cq->paths_max * each, queue->nic->mode == VERBS_RC)) {
        free(cq);
        return NULL;
    }
    cq->next = queue->paths->cqs;
    queue->paths->cqs = cq;
    return cq;
}

/* A free place in the table of paths, which grows with them; -1: out of memory. */
static int take_index(struct verbs_data_qps *paths)
{
    for (uint32_t i = 0; i < paths->count; i++)
        if (!paths->all[i])
            return (int)i;
    if (paths->count == UINT16_MAX)
        return -1;
    if (paths->count == paths->capacity) {
        uint32_t capacity = paths->capacity ? 2 * paths->capacity : 16;
        struct verbs_data_qp **all = realloc(paths->all, capacity * sizeof(struct verbs_data_qp *));
        if (!all)
            return -1;
        paths->all = all;
        paths->capacity = capacity;
    }
    paths->all[paths->count] = NULL;
    return (int)paths->count++;
}

static int make_queue_pair(struct verbs_data_qp *path)
{
    struct verbs_queue *queue = path->queue;
    const struct verbs_nic *nic = queue->nic;
    struct ibv_qp_init_attr attr = {
        .send_cq = path->cq->cq.cq,
        .recv_cq = queue->receive_cq.cq,
        .srq = queue->paths->srq,
        .cap = {.max_send_wr = path->depth + 1, .max_send_sge = 1},
        .qp_type = nic->mode == VERBS_RC ? IBV_QPT_RC : IBV_QPT_UC,
        .qp_context = path,
    };
    path->qp = nic->lib->create_qp(nic->pd, &attr);
    if (!path->qp)
        return verbs_fault(nic, "make a queue pair for a path", errno);
    path->cq->paths++;
    struct verbs_data_qp **bucket = &queue->paths->buckets[path->qp->qp_num % VERBS_BUCKETS];
    path->same_bucket = *bucket;
    *bucket = path;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = nic->port->number,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int error = nic->lib->modify_qp(
        path->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return error ? verbs_fault(nic, "set a queue pair for a path up", error) : 0;
}

static struct verbs_data_qp *new_path(struct verbs_queue *queue, const struct nic_qp_id *id)
{
    struct verbs_data_qps *paths = queue->paths;
    int index = take_index(paths);
    struct verbs_data_qp *path = index < 0 ? NULL : calloc(1, sizeof *path);
    struct verbs_data_qp_cq *cq = path ? take_cq(queue) : NULL;
    if (!cq) {
        free(path);
        return NULL;
    }
    *path = (struct verbs_data_qp){.queue = queue,
                                .cq = cq,
                                .is = *id,
                                .index = (uint16_t)index,
                                .life = ++paths->life,
                                .turns = atomic_load(&queue->nic->turns),
                                .depth = depth_of(queue),
                                .first_staged = -1};
    path->works = calloc(path->depth, sizeof *path->works);
    paths->all[index] = path;
    return path;
}

/* A peer that gives its queue pairs up again and again has ours made at the pace at which they come to an end. */
static bool many_rest(const struct verbs_queue *queue, const struct nic_qp_id *id)
{
    const struct verbs_data_qps *paths = queue->paths;
    unsigned resting = 0;
    for (uint32_t i = 0; i < paths->count; i++) {
        const struct verbs_data_qp *path = paths->all[i];
        resting += path && path->state == VERBS_TIME_WAIT && path->is.destination == id->destination &&
                   path->is.path == id->path;
    }
    return resting >= VERBS_TIME_WAIT_MAX;
}

int verbs_data_qp_open(struct nic_queue *base, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    if (verbs_is_gone(queue->nic) || atomic_load(&queue->nic->turns) & 1)
        return UCCL_EIO; /* has been said; the core tries again */
    if (many_rest(queue, id))
        return UCCL_EAGAIN;
    struct verbs_data_qp *path = new_path(queue, id);
    if (!path || !path->works) {
        if (path)
            free_path(path);
        return verbs_fault(queue->nic, "make a path", ENOMEM);
    }
    int error = make_queue_pair(path);
    if (error) {
        free_path(path);
        return error;
    }
    assert(!queue->peers[id->destination].paths[id->path]);
    queue->peers[id->destination].paths[id->path] = path;
    queue->paths->active++;
    if (getrandom(psn, sizeof *psn, 0) != sizeof *psn)
        *psn = path->life * 0x9e3779b1u;
    *psn &= PSN_MASK;
    path->psn = *psn;
    *number = path->qp->qp_num;
    return 0;
}

/* The peer offers a queue pair that is nobody's: said once. It may do so again and again. */
static int refuse_number(struct verbs_queue *queue, struct verbs_peer *peer, uint32_t number)
{
    char text[VERBS_GID_TEXT];
    if (!peer->told_number)
        LOG_WARNING("verbs device %s: the peer with GID %s, LID %u, offers queue pair 0x%x, which cannot be one; "
                    "what is sent to it goes as datagrams", queue->nic->port->device,
                    verbs_gid_text(peer->address.gid, text), peer->address.lid, number);
    peer->told_number = true;
    return UCCL_EPROTO;
}

int verbs_data_qp_connect(struct nic_queue *base, const struct nic_qp_id *id, uint32_t number, uint32_t psn)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_nic *nic = queue->nic;
    const struct params *params = queue->setup.params;
    struct verbs_peer *peer = &queue->peers[id->destination];
    const struct verbs_address *address = &peer->address;
    struct verbs_data_qp *path = find(queue, id);
    bool reliable = nic->mode == VERBS_RC;
    if (!path || path->state != VERBS_MADE)
        return UCCL_EINVAL;
    if (!verbs_qpn_is_valid(number))
        return refuse_number(queue, peer, number);
    unsigned shift = verbs_choose_mtu((unsigned)__builtin_ctz(queue->port_bytes), address->mtu_shift, 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = (enum ibv_mtu)(shift - VERBS_MTU_SHIFT_MIN + IBV_MTU_256),
                               .dest_qp_num = number,
                               .rq_psn = psn & PSN_MASK,
                               .min_rnr_timer = RNR_TIMER,
                               .ah_attr = verbs_route_to(nic, address, id->path)};
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = nic->lib->modify_qp(path->qp, &attr, mask);
    if (!error) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .sq_psn = path->psn,
                                    .timeout = (uint8_t)params->ib_timeout,
                                    .retry_cnt = (uint8_t)params->ib_retry_cnt,
                                    .rnr_retry = RNR_RETRY_EVER};
        mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if (reliable)
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        error = nic->lib->modify_qp(path->qp, &attr, mask);
    }
    if (error)
        return verbs_fault(nic, "connect the queue pair of a path", error);
    path->state = VERBS_UP;
    return 0;
}

/* ---- failing --------------------------------------------------------------------------------- */

static void tell_failed(struct verbs_data_qp *path)
{
    path->failed = true;
    path->tell_failed = true;
    path->queue->paths->events++;
}

void verbs_data_qp_fail(struct verbs_data_qp *path, const struct ibv_wc *wc)
{
    const struct verbs_nic *nic = path->queue->nic;
    if (path->failed || path->state > VERBS_UP)
        return;
    LOG_WARNING("verbs device %s port %u: path %u, queue pair 0x%x, has failed: %s (vendor code 0x%x); it is made "
                "anew", nic->port->device, nic->port->number, path->is.path, path->qp->qp_num,
                nic->lib->wc_status_str(wc->status), wc->vendor_err);
    tell_failed(path);
}

/* ---- draining and closing --------------------------------------------------------------------- */

/* A last send, which completes when all before it have. */
static void post_marker(struct verbs_data_qp *path)
{
    struct ibv_send_wr marker = {.wr_id = verbs_data_qp_work_id(path, path->built),
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    path->marker = path->built;
    path->marked = ibv_post_send(path->qp, &marker, &bad) == 0;
}

static void to_error(struct verbs_data_qp *path)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    verbs_data_qp_unstage(path);
    path->queue->lib->modify_qp(path->qp, &attr, IBV_QP_STATE);
    path->since_ms = verbs_now_ms();
}

void verbs_data_qp_drain(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qp *path = find(queue, id);
    assert(path && path->state <= VERBS_UP);
    if (path->tell_failed) {
        path->tell_failed = false;
        queue->paths->events--;
    }
    to_error(path);
    if (path->state == VERBS_UP)
        post_marker(path);
    path->state = VERBS_DRAINING;
    queue->paths->draining++;
}

/*
 * Whether nothing more comes: no send is under way, and what had been received is in the completion queue.
 * A device that does not get there is made to.
 */
static bool receives_are_drained(struct verbs_data_qp *path)
{
    uint64_t waited_ms = verbs_now_ms() - path->since_ms;
    bool sends_over = path->done == path->built || path->marker_done;
    bool receives_over = atomic_load(&path->last_receive) || waited_ms >= VERBS_DRAIN_MS;
    if (sends_over && receives_over)
        return true;
    if (waited_ms < VERBS_DRAIN_MAX_MS)
        return false;
    destroy_queue_pair(path);
    return true;
}

static bool is_drained(struct verbs_data_qp *path)
{
    struct verbs_queue *queue = path->queue;
    if (!path->receives_drained && !receives_are_drained(path))
        return false;
    if (!path->receives_drained) {
        path->receives_drained = true;
        verbs_data_qp_finish_all(path);
        path->polled = queue->polled + queue->receives.count + queue->paths->shared.count + VERBS_READY;
    }
    /* the completion queue is empty, or as many have been taken as it held then at most */
    return !verbs_receive(queue) || (int64_t)(queue->polled - path->polled) >= 0;
}

/* What its device says of it, its port or itself. */
static bool is_broken(const struct verbs_data_qp *path)
{
    struct verbs_nic *nic = path->queue->nic;
    return atomic_load(&path->broken) || atomic_load(&nic->turns) != path->turns || verbs_is_gone(nic);
}

bool verbs_data_qp_event(struct nic_queue *base, struct nic_qp_event *out)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qps *paths = queue->paths;
    uint32_t news = atomic_load(&queue->nic->path_news);
    if (!paths || (paths->draining + paths->events == 0 && news == paths->news_seen))
        return false;
    for (uint32_t i = 0; i < paths->count; i++) {
        struct verbs_data_qp *path = paths->all[i];
        if (!path || !path->is.flow)
            continue;
        if (path->state <= VERBS_UP && !path->failed && is_broken(path))
            tell_failed(path);
        bool drained = path->state == VERBS_DRAINING && is_drained(path);
        if (!drained && !path->tell_failed)
            continue;
        if (drained) {
            path->state = VERBS_DRAINED;
            paths->draining--;
        } else {
            path->tell_failed = false;
            paths->events--;
        }
        *out = (struct nic_qp_event){.id = path->is, .drained = drained};
        return true;
    }
    paths->news_seen = news;
    return false;
}

static void rest(struct verbs_data_qp *path)
{
    path->is.flow = NULL;
    path->state = VERBS_TIME_WAIT;
    path->since_ms = verbs_now_ms();
    path->queue->paths->active--;
}

void verbs_data_qp_destroy(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qp *path = find(queue, id);
    assert(path && path->state == VERBS_DRAINED);
    queue->peers[id->destination].paths[id->path] = NULL;
    rest(path);
}

void verbs_data_qps_forget(struct verbs_queue *queue, uint32_t destination)
{
    struct verbs_data_qp **of_peer = queue->peers[destination].paths;
    for (unsigned i = 0; of_peer && i < queue->setup.params->port_entropy; i++) {
        struct verbs_data_qp *path = of_peer[i];
        if (!path)
            continue;
        if (path->state <= VERBS_UP)
            to_error(path);
        queue->paths->draining -= path->state == VERBS_DRAINING;
        queue->paths->events -= path->tell_failed;
        path->tell_failed = false;
        verbs_drop_ready(queue, path->is.flow);
        rest(path);
    }
}

/*
 * Some devices neither finish work nor let it fail, as when a link was down for a while. Twice the time that
 * an RC queue pair is allowed for all of its attempts is enough.
 */
static void check_stall(struct verbs_data_qp *path, uint64_t now_ms)
{
    enum { NS_PER_TICK = 4096, SLACK_MS = 500 };
    const struct params *params = path->queue->setup.params;
    uint64_t attempt_ms = ((uint64_t)NS_PER_TICK << params->ib_timeout) / 1000000;
    if (path->done == path->built || path->done != path->done_seen) {
        path->done_seen = path->done;
        path->progress_ms = now_ms;
    } else if (!path->failed && now_ms - path->progress_ms > 2 * attempt_ms * (params->ib_retry_cnt + 1) + SLACK_MS) {
        LOG_WARNING("verbs device %s port %u: path %u, queue pair 0x%x, neither finishes its work nor fails; it is "
                    "made anew", path->queue->nic->port->device, path->queue->nic->port->number, path->is.path,
                    path->qp->qp_num);
        tell_failed(path);
    }
}

void verbs_data_qps_sweep(struct verbs_queue *queue, uint64_t now_ms)
{
    struct verbs_data_qps *paths = queue->paths;
    for (uint32_t i = 0; i < paths->count; i++) {
        struct verbs_data_qp *path = paths->all[i];
        if (path && path->state == VERBS_UP)
            check_stall(path, now_ms);
        if (path && path->state == VERBS_TIME_WAIT &&
            now_ms - path->since_ms >= queue->setup.params->packet_lifetime_ms)
            free_path(path);
    }
}
