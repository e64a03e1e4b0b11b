/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path of the verbs device of fake_verbs.h, and its state: what is posted, what becomes of it, completions
 * with and without stamps. A send waits until fake_run() lets it happen.
 */
#ifndef UCCL_TEST_FAKE_QUEUES_H
#define UCCL_TEST_FAKE_QUEUES_H

#include "fake_keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

enum { FAKE_QPS = 64, FAKE_RING = 8192, FAKE_EVENTS = 16, FAKE_DEVICES = 4, FAKE_NETS = 2 };

struct fake_cq {
    union {
        struct ibv_cq cq;
        struct ibv_cq_ex stamped;
    };
    bool is_stamped;
    _Atomic bool armed; /* the next completion is an event of its channel */
    uint32_t unacked;   /* of its events that were taken */
    uint32_t size, head, tail;
    struct ibv_wc ring[FAKE_RING];
    uint64_t stamps[FAKE_RING];
};

struct fake_receives {
    uint32_t size, head, tail;
    struct {
        uint64_t wr_id;
        uint8_t *address;
        uint32_t length;
    } ring[FAKE_RING];
};

struct fake_srq {
    struct ibv_srq srq;
    struct fake_receives receives;
};

struct fake_handle {
    struct ibv_ah ah;
    struct ibv_ah_attr route;
};

struct fake_qp {
    struct ibv_qp qp;
    struct fake_receives receives; /* without a shared queue */
    uint32_t sends_max, sends_head, sends_tail;
    uint32_t peer;                          /* connected: number of the other one */
    int access;                             /* what the other one may do */
    struct ibv_qp_attr to_receive, to_send; /* connected: what it was told for that */
    bool silent;                            /* completes nothing, not even when it is flushed */
    struct ibv_send_wr sends[FAKE_RING];
    struct ibv_sge pieces[FAKE_RING];
};

static struct {
    struct verbs_context verbs[FAKE_DEVICES];
    struct ibv_device devices[FAKE_DEVICES], *list[FAKE_DEVICES + 1];
    unsigned device_count;      /* 0: one */
    bool down[FAKE_DEVICES];    /* their ports are, beside what `port` says */
    bool removed[FAKE_DEVICES]; /* they register nothing any more */
    struct ibv_device_attr limits;
    struct ibv_port_attr port;
    int gids_empty; /* entries at the beginning of their GID tables */
    bool no_uc, no_rc;
    uint64_t clock_mask, clock_khz; /* 0: completions bear no stamps */
    uint64_t clock_offset;          /* of its clock, which else shows the host's nanoseconds as ticks of clock_khz */
    int64_t clock_ppm;              /* how much faster it runs than it says */
    bool no_cq_ex, no_clock;        /* which the driver may lack all the same */
    uint32_t stamped_cqs;           /* made so far */
    uint8_t sl;                     /* InfiniBand: the service level that the network carries */
    bool moves_nothing;             /* writes change no memory */
    unsigned moves_from, moves_to;  /* the devices of the call to move() */
    /* instead of memcpy() between addresses that go with these keys; NULL: that */
    void (*move)(uint64_t to, uint32_t to_key, uint64_t from, uint32_t from_key, size_t length);
    /* what becomes of a send that works else, and whether it is lost on the way; or NULL */
    enum ibv_wc_status (*fate)(const struct fake_qp *qp, const struct ibv_send_wr *wr, bool *lost);
    int open_errno, register_errno, send_errno, notify_errno, handle_errno; /* what the next calls fail with */
    int stop_errno;                                                         /* and moving a queue pair to error */
    unsigned handle_device; /* 1 + the device for which handle_errno is; 0: for all */
    unsigned handles_refused;
    struct fake_qp *qps[FAKE_QPS];
    uint32_t qps_made, qps_alive, handles_alive, mrs_alive, cqs_alive;
    uint32_t most_sends;       /* in progress on one queue pair at any time */
    enum ibv_wc_status status; /* of the next send that completes; then success again */
    struct ibv_async_event events[FAKE_EVENTS];
    unsigned event_devices[FAKE_EVENTS]; /* whose they are */
    uint32_t event_count, events_unacked;
    struct fake_cq *told[FAKE_EVENTS]; /* completion queues with an event that was not taken; under told_lock */
    uint32_t told_count;
    int access;     /* what the last memory was registered for */
    uint8_t tos;    /* of IPv4 headers that are told to receivers; 0: none is */
    bool read_only; /* memory cannot be registered to be written */
} fake;

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;

static struct fake_qp *fake_qp_of(uint32_t number)
{
    for (unsigned i = 0; i < FAKE_QPS; i++)
        if (fake.qps[i] && fake.qps[i]->qp.qp_num == number)
            return fake.qps[i];
    return NULL;
}

static unsigned fake_device_of(const struct ibv_context *context)
{
    return (unsigned)(context->device - fake.devices);
}

enum { FAKE_KEY_DEVICE = 16, FAKE_KEYS = FAKE_KEY_DEVICE * FAKE_DEVICES };

/* Keys name their device. Those of other memory than fake_reg_mr()'s do not. */
static void fake_check_key(const struct fake_qp *qp, uint32_t key)
{
    FAKE_REQUIRE(key >= FAKE_KEYS || key / FAKE_KEY_DEVICE == fake_device_of(qp->qp.context));
}

/* The GID of a device stands for this address, if there are several. */
static void fake_own_gid(unsigned device, uint8_t gid[16])
{
    uint8_t own[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = (uint8_t)(device % FAKE_NETS)};
    own[15] = (uint8_t)(1 + device / FAKE_NETS);
    memcpy(gid, own, sizeof own);
}

/* Whether packets with that address get from one queue pair to another. */
static bool fake_reaches(const struct fake_qp *from, const struct fake_qp *to, const struct ibv_ah_attr *route)
{
    unsigned a = fake_device_of(from->qp.context), b = to ? fake_device_of(to->qp.context) : a;
    uint8_t gid[16];
    fake_own_gid(b, gid);
    if (fake.down[a] || fake.down[b] ||
        (fake.device_count > 1 &&
         (a % FAKE_NETS != b % FAKE_NETS || memcmp(route->grh.dgid.raw, gid, sizeof gid) != 0)))
        return false;
    if (fake.port.link_layer == IBV_LINK_LAYER_ETHERNET)
        return route->is_global && route->grh.sgid_index == fake.gids_empty && route->port_num == 1;
    return !route->is_global && route->port_num == 1 && route->dlid == fake.port.lid && route->sl == fake.sl;
}

/* What its clock shows. */
static uint64_t fake_ticks(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double ns = (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
    double ticks = ns * (double)fake.clock_khz / 1e6 * (1 + (double)fake.clock_ppm / 1e6);
    return ((uint64_t)ticks + fake.clock_offset) & fake.clock_mask;
}

static void fake_complete(struct ibv_cq *ibv, const struct ibv_wc *wc)
{
    struct fake_cq *cq = (struct fake_cq *)ibv;
    FAKE_REQUIRE(cq->tail - cq->head < cq->size); /* or the completion queue overflows */
    if (cq->is_stamped)
        cq->stamps[cq->tail % FAKE_RING] = fake_ticks();
    cq->ring[cq->tail++ % FAKE_RING] = *wc;
    if (cq->armed && cq->cq.channel) {
        cq->armed = false;
        pthread_mutex_lock(&told_lock);
        FAKE_REQUIRE(fake.told_count < FAKE_EVENTS);
        fake.told[fake.told_count++] = cq;
        pthread_mutex_unlock(&told_lock);
        FAKE_REQUIRE(eventfd_write(cq->cq.channel->fd, 1) == 0);
    }
}

/* ---- the device's table ---------------------------------------------------------------------- */

static int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)ibv;
    for (; wr; wr = wr->next) {
        *bad = wr;
        if (fake.send_errno)
            return fake.send_errno;
        FAKE_REQUIRE(qp->sends_tail - qp->sends_head < qp->sends_max); /* or the send queue overflows */
        uint32_t at = qp->sends_tail++ % FAKE_RING;
        qp->sends[at] = *wr;
        if (wr->num_sge)
            qp->pieces[at] = wr->sg_list[0];
        if (qp->sends_tail - qp->sends_head > fake.most_sends)
            fake.most_sends = qp->sends_tail - qp->sends_head;
        if (wr->send_flags & IBV_SEND_INLINE) { /* taken now: the caller may reuse its memory */
            uint8_t *copy = malloc(wr->sg_list[0].length);
            memcpy(copy, (void *)(uintptr_t)wr->sg_list[0].addr, wr->sg_list[0].length);
            qp->pieces[at].addr = (uintptr_t)copy;
        }
    }
    return 0;
}

static int fake_post(struct fake_receives *receives, struct ibv_recv_wr *wr)
{
    for (; wr; wr = wr->next) {
        FAKE_REQUIRE(receives->tail - receives->head < receives->size);
        uint32_t at = receives->tail++ % FAKE_RING;
        receives->ring[at].wr_id = wr->wr_id;
        receives->ring[at].address = (uint8_t *)(uintptr_t)wr->sg_list[0].addr;
        receives->ring[at].length = wr->sg_list[0].length;
    }
    return 0;
}

static int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)bad;
    return fake_post(&((struct fake_qp *)ibv)->receives, wr);
}

static int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)bad;
    return fake_post(&((struct fake_srq *)srq)->receives, wr);
}

static int fake_poll_cq(struct ibv_cq *ibv, int max, struct ibv_wc *out)
{
    struct fake_cq *cq = (struct fake_cq *)ibv;
    int count = 0;
    FAKE_REQUIRE(!cq->is_stamped); /* it is read the other way */
    while (count < max && cq->head != cq->tail)
        out[count++] = cq->ring[cq->head++ % FAKE_RING];
    return count;
}

/* ---- completion queues with stamps ----------------------------------------------------------- */

/* The completion that is being read; of a failed one that may be read which has a meaning. */
static const struct ibv_wc *fake_current(struct ibv_cq_ex *ibv, bool also_failed)
{
    struct fake_cq *cq = (struct fake_cq *)ibv;
    const struct ibv_wc *wc = &cq->ring[cq->head % FAKE_RING];
    FAKE_REQUIRE(cq->head != cq->tail && (also_failed || wc->status == IBV_WC_SUCCESS));
    return wc;
}

static int fake_show(struct fake_cq *cq)
{
    if (cq->head == cq->tail)
        return ENOENT;
    cq->stamped.wr_id = cq->ring[cq->head % FAKE_RING].wr_id;
    cq->stamped.status = cq->ring[cq->head % FAKE_RING].status;
    return 0;
}

static int fake_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    FAKE_REQUIRE(attr->comp_mask == 0);
    return fake_show((struct fake_cq *)cq);
}

static int fake_next_poll(struct ibv_cq_ex *cq)
{
    ((struct fake_cq *)cq)->head++;
    int end = fake_show((struct fake_cq *)cq);
    if (end)
        ((struct fake_cq *)cq)->head--; /* until end_poll() */
    return end;
}

static void fake_end_poll(struct ibv_cq_ex *cq)
{
    ((struct fake_cq *)cq)->head++;
}

static enum ibv_wc_opcode fake_read_opcode(struct ibv_cq_ex *cq)
{
    return fake_current(cq, false)->opcode;
}

static uint32_t fake_read_vendor_err(struct ibv_cq_ex *cq)
{
    return fake_current(cq, true)->vendor_err;
}

static uint32_t fake_read_byte_len(struct ibv_cq_ex *cq)
{
    return fake_current(cq, false)->byte_len;
}

static __be32 fake_read_imm_data(struct ibv_cq_ex *cq)
{
    return fake_current(cq, false)->imm_data;
}

static uint32_t fake_read_qp_num(struct ibv_cq_ex *cq)
{
    return fake_current(cq, true)->qp_num;
}

static unsigned fake_read_wc_flags(struct ibv_cq_ex *cq)
{
    return fake_current(cq, false)->wc_flags;
}

static uint64_t fake_read_completion_ts(struct ibv_cq_ex *ibv)
{
    struct fake_cq *cq = (struct fake_cq *)ibv;
    return cq->stamps[cq->head % FAKE_RING];
}

static struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    enum { ALL = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM };
    FAKE_REQUIRE(attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP && attr->comp_mask == 0);
    FAKE_REQUIRE(attr->cqe == 2 || (attr->wc_flags & ALL) == ALL); /* but for a trial */
    FAKE_REQUIRE(attr->cqe <= (uint32_t)fake.limits.max_cqe);
    if (fake.no_cq_ex) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct fake_cq *cq = calloc(1, sizeof *cq);
    cq->stamped = (struct ibv_cq_ex){.context = context,
                                     .channel = attr->channel,
                                     .start_poll = fake_start_poll,
                                     .next_poll = fake_next_poll,
                                     .end_poll = fake_end_poll,
                                     .read_opcode = fake_read_opcode,
                                     .read_vendor_err = fake_read_vendor_err,
                                     .read_byte_len = fake_read_byte_len,
                                     .read_imm_data = fake_read_imm_data,
                                     .read_qp_num = fake_read_qp_num,
                                     .read_wc_flags = fake_read_wc_flags,
                                     .read_completion_ts = fake_read_completion_ts};
    cq->is_stamped = true;
    cq->size = attr->cqe;
    fake.cqs_alive++;
    fake.stamped_cqs += attr->cqe != 2;
    return &cq->stamped;
}

static int fake_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                                struct ibv_device_attr_ex *attr, size_t size)
{
    (void)context;
    FAKE_REQUIRE(input->comp_mask == 0 && size == sizeof *attr);
    *attr = (struct ibv_device_attr_ex){
        .orig_attr = fake.limits, .completion_timestamp_mask = fake.clock_mask, .hca_core_clock = fake.clock_khz};
    return 0;
}

static int fake_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    (void)context;
    FAKE_REQUIRE(values->comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
    if (fake.no_clock)
        return EOPNOTSUPP;
    values->raw_clock = (struct timespec){.tv_nsec = (long)fake_ticks()};
    return 0;
}

static int fake_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    if (fake.notify_errno == 0)
        ((struct fake_cq *)cq)->armed = true;
    return fake.notify_errno;
}

/* ---- what happens to sends ------------------------------------------------------------------- */

static void fake_move(uint64_t to, uint32_t to_key, uint64_t from, uint32_t from_key, size_t length)
{
    if (fake.move)
        fake.move(to, to_key, from, from_key, length);
    else
        memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, length);
}

/* The other side's receive of a send. False: it takes none, and on UD and UC nobody hears of it. */
static bool fake_arrive(struct fake_qp *to, const struct ibv_send_wr *wr, const struct ibv_sge *piece)
{
    struct fake_receives *receives = to->qp.srq ? &((struct fake_srq *)to->qp.srq)->receives : &to->receives;
    uint32_t grh = to->qp.qp_type == IBV_QPT_UD ? VERBS_GRH_BYTES : 0, length = wr->num_sge ? piece->length : 0;
    bool write = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (to->qp.state != IBV_QPS_RTS || receives->head == receives->tail)
        return false;
    uint32_t at = receives->head++ % FAKE_RING;
    uint8_t *target = write ? (uint8_t *)(uintptr_t)wr->wr.rdma.remote_addr : receives->ring[at].address + grh;
    FAKE_REQUIRE(write || length + grh <= receives->ring[at].length);
    fake.moves_to = fake_device_of(to->qp.context);
    if (write)
        fake_check_key(to, wr->wr.rdma.rkey);
    if (length && !(write && fake.moves_nothing))
        fake_move((uintptr_t)target, write ? wr->wr.rdma.rkey : 0, piece->addr, piece->lkey, length);
    struct ibv_wc wc = {.wr_id = receives->ring[at].wr_id,
                        .qp_num = to->qp.qp_num,
                        .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                        .byte_len = length + grh,
                        .imm_data = wr->imm_data};
    if (grh && fake.tos) { /* it stands at the end of the room, and what is before it is not said */
        memset(receives->ring[at].address, 0xff, 20);
        memset(receives->ring[at].address + 20, 0, 20);
        receives->ring[at].address[21] = fake.tos;
        wc.wc_flags |= IBV_WC_GRH;
    }
    fake_complete(to->qp.recv_cq, &wc);
    return true;
}

/* Lets the oldest send happen. False: there is none. */
static bool fake_step(struct fake_qp *qp)
{
    bool works = qp->qp.state == IBV_QPS_RTS;
    if (qp->sends_head == qp->sends_tail || (qp->silent && !works))
        return false;
    uint32_t at = qp->sends_head++ % FAKE_RING;
    struct ibv_send_wr *wr = &qp->sends[at];
    struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->qp.qp_num};
    bool ud = qp->qp.qp_type == IBV_QPT_UD;
    fake.moves_from = fake.moves_to = fake_device_of(qp->qp.context);
    if (wr->num_sge && !(wr->send_flags & IBV_SEND_INLINE))
        fake_check_key(qp, qp->pieces[at].lkey);
    struct fake_qp *to = fake_qp_of(ud ? wr->wr.ud.remote_qpn : qp->peer);
    bool lost =
        works && !fake_reaches(qp, to, ud ? &((struct fake_handle *)wr->wr.ud.ah)->route : &qp->to_receive.ah_attr);
    wc.status = works ? fake.status : IBV_WC_WR_FLUSH_ERR;
    if (works) {
        fake.status = IBV_WC_SUCCESS;
        if (fake.fate && wc.status == IBV_WC_SUCCESS)
            wc.status = fake.fate(qp, wr, &lost);
        if (wc.status == IBV_WC_SUCCESS && to && !lost)
            wc.status = fake_key_fate(&qp->qp, to->qp.context, wr, wr->num_sge ? qp->pieces[at].length : 0, &lost);
        if (lost && qp->qp.qp_type == IBV_QPT_RC && wc.status == IBV_WC_SUCCESS)
            wc.status = IBV_WC_RETRY_EXC_ERR; /* it has tried for long */
    }
    if (wc.status == IBV_WC_SUCCESS && wr->opcode == IBV_WR_RDMA_READ)
        fake_move(qp->pieces[at].addr, qp->pieces[at].lkey, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey,
                  qp->pieces[at].length);
    else if (wc.status == IBV_WC_SUCCESS && !lost && !(to && fake_arrive(to, wr, &qp->pieces[at])) &&
             qp->qp.qp_type == IBV_QPT_RC)
        wc.status = IBV_WC_RETRY_EXC_ERR;
    if (wc.status != IBV_WC_SUCCESS)
        qp->qp.state = IBV_QPS_ERR;
    if (wr->send_flags & IBV_SEND_INLINE)
        free((void *)(uintptr_t)qp->pieces[at].addr);
    if (wc.status != IBV_WC_SUCCESS || wr->send_flags & IBV_SEND_SIGNALED)
        fake_complete(qp->qp.send_cq, &wc);
    return true;
}

/* Lets all that was posted happen. */
static void fake_run(void)
{
    for (unsigned i = 0; i < FAKE_QPS; i++)
        while (fake.qps[i] && fake_step(fake.qps[i]))
            ;
}

#endif
