/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered pools, completion queues, and the UD queue pair with its receives.
 *
 * A received datagram lies in its slot behind the 40 bytes of the global routing header, of which only the congestion
 * mark is read. Slots go back in batches. A queue pair in error is reset and set up again; the epoch in the numbers of
 * work requests tells earlier ones.
 */
#include "nic/verbs/data_qp.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/unmap.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>

enum { IPV4_AT = 20, QKEY_BITS = 31 }; /* keys with the highest bit are privileged */

int verbs_fault(const struct verbs_nic *nic, const char *doing, int system_error)
{
    struct rlimit locked = {0};
    char text[FAULT_TEXT];
    const char *why = fault_text(system_error, text);
    if (system_error != ENOMEM && system_error != EAGAIN && system_error != EPERM) {
        LOG_ERR("verbs device %s port %u: cannot %s: %s", nic->port->device, nic->port->number, doing, why);
        return fault_error(system_error);
    }
    getrlimit(RLIMIT_MEMLOCK, &locked);
    if (locked.rlim_cur == RLIM_INFINITY)
        LOG_ERR("verbs device %s port %u: cannot %s: %s; the device has %d queue pairs, %d completion queues "
                "and %d memory regions for all processes",
                nic->port->device, nic->port->number, doing, why, nic->port->limits.max_qp, nic->port->limits.max_cq,
                nic->port->limits.max_mr);
    else
        LOG_ERR("verbs device %s port %u: cannot %s: %s; at most %llu KiB of memory may be locked: raise it "
                "(ulimit -l, memlock in limits.conf, --ulimit memlock=-1 for a container)",
                nic->port->device, nic->port->number, doing, why, (unsigned long long)locked.rlim_cur / 1024);
    return UCCL_ENOMEM;
}

/* ---- memory, completion queues --------------------------------------------------------------- */

int verbs_pool_open(struct verbs_nic *nic, struct verbs_pool *pool, size_t bytes, const char *what)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return verbs_fault(nic, what, errno);
    struct ibv_mr *mr = nic->lib->reg_mr(nic->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!mr) {
        int error = errno;
        unmap(memory, bytes);
        return verbs_fault(nic, what, error);
    }
    *pool = (struct verbs_pool){memory, bytes, mr};
    return 0;
}

void verbs_pool_close(struct verbs_nic *nic, struct verbs_pool *pool)
{
    if (!pool->mr)
        return;
    nic->lib->dereg_mr(pool->mr);
    unmap(pool->memory, pool->bytes);
    pool->mr = NULL;
}

int verbs_cq_open(struct verbs_queue *queue, struct verbs_cq *cq, uint32_t entries, bool stamped)
{
    struct verbs_nic *nic = queue->nic;
    struct ibv_cq_init_attr_ex attr = {.cqe = entries,
                                       .channel = queue->channel,
                                       .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                                                   IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    if (stamped && queue->clock.is.mask)
        cq->stamped = ibv_create_cq_ex(nic->context, &attr);
    cq->cq = cq->stamped ? ibv_cq_ex_to_cq(cq->stamped)
                         : queue->lib->create_cq(nic->context, (int)entries, NULL, queue->channel, 0);
    return cq->cq ? 0 : verbs_fault(nic, "make a completion queue", errno);
}

void verbs_cq_close(struct verbs_queue *queue, struct verbs_cq *cq)
{
    if (cq->cq)
        queue->lib->destroy_cq(cq->cq);
}

/* Reads the completion that the queue is at. */
static void read_stamped(struct ibv_cq_ex *cq, struct ibv_wc *wc)
{
    *wc = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status, .qp_num = ibv_wc_read_qp_num(cq)};
    if (wc->status != IBV_WC_SUCCESS) {
        wc->vendor_err = ibv_wc_read_vendor_err(cq);
        return;
    }
    wc->opcode = ibv_wc_read_opcode(cq);
    wc->byte_len = ibv_wc_read_byte_len(cq);
    wc->wc_flags = ibv_wc_read_wc_flags(cq);
    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
        wc->imm_data = ibv_wc_read_imm_data(cq);
}

unsigned verbs_cq_poll(const struct verbs_queue *queue, const struct verbs_cq *cq, struct ibv_wc *out, uint64_t *at_ns,
                       unsigned max)
{
    struct ibv_poll_cq_attr attr = {0};
    unsigned count = 0;
    if (!cq->stamped) {
        int got = ibv_poll_cq(cq->cq, (int)max, out);
        for (; (int)count < got; count++)
            at_ns[count] = 0;
        return count;
    }
    if (ibv_start_poll(cq->stamped, &attr) != 0)
        return 0;
    do {
        read_stamped(cq->stamped, &out[count]);
        at_ns[count] = verbs_clock_host_ns(&queue->clock, ibv_wc_read_completion_ts(cq->stamped));
    } while (++count < max && ibv_next_poll(cq->stamped) == 0);
    ibv_end_poll(cq->stamped);
    return count;
}

uint32_t verbs_at_most(uint32_t wanted, int limit)
{
    uint32_t size = 1;
    while (size * 2 <= wanted && size * 2 <= (uint32_t)limit)
        size *= 2;
    return size;
}

/* ---- slots ----------------------------------------------------------------------------------- */

int verbs_slots_open(struct verbs_nic *nic, struct verbs_slots *slots, uint32_t count, uint32_t slot_bytes)
{
    slots->count = count;
    slots->slot_bytes = (slot_bytes + 63) & ~63u;
    slots->requests = calloc(count, sizeof *slots->requests);
    slots->sges = calloc(count, sizeof *slots->sges);
    if (!slots->requests || !slots->sges)
        return verbs_fault(nic, "make a queue", ENOMEM);
    return verbs_pool_open(nic, &slots->pool, (size_t)count * slots->slot_bytes, "register receive buffers");
}

void verbs_slots_close(struct verbs_nic *nic, struct verbs_slots *slots)
{
    verbs_pool_close(nic, &slots->pool);
    free(slots->requests);
    free(slots->sges);
    slots->requests = NULL;
    slots->sges = NULL;
}

/* Posts the chain with one call. */
static void post_chain(struct verbs_queue *queue, struct verbs_slots *slots)
{
    struct ibv_recv_wr *bad;
    slots->last->next = NULL;
    slots->chained = 0;
    /* there is room for all slots: only a failed queue pair or device refuses */
    if (slots != &queue->receives)
        (void)ibv_post_srq_recv(queue->data_qps->srq, slots->first, &bad);
    else if (ibv_post_recv(queue->ud, slots->first, &bad) != 0)
        queue->broken = true;
}

static void return_slot(struct verbs_queue *queue, struct verbs_slots *slots, uint32_t slot)
{
    struct ibv_recv_wr *request = &slots->requests[slot];
    if (slots->chained++)
        slots->last->next = request;
    else
        slots->first = request;
    slots->last = request;
    if (slots->chained == VERBS_REPOST)
        post_chain(queue, slots);
}

void verbs_slots_post(struct verbs_queue *queue, struct verbs_slots *slots)
{
    bool shared = slots != &queue->receives;
    slots->chained = 0;
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        slots->sges[slot] = (struct ibv_sge){.addr = (uintptr_t)slots->pool.memory + (uint64_t)slot * slots->slot_bytes,
                                             .length = slots->slot_bytes,
                                             .lkey = slots->pool.mr->lkey};
        slots->requests[slot] =
            (struct ibv_recv_wr){.wr_id = shared ? slot | VERBS_SHARED_SLOT : (uint64_t)queue->epoch << 32 | slot,
                                 .sg_list = &slots->sges[slot],
                                 .num_sge = 1};
        return_slot(queue, slots, slot);
    }
    if (slots->chained)
        post_chain(queue, slots);
}

/* ---- the UD queue pair ----------------------------------------------------------------------- */

static int modify_ud_qp(struct verbs_queue *queue, enum ibv_qp_state state, int mask)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = queue->nic->port->number, .qkey = queue->qkey};
    return queue->lib->modify_qp(queue->ud, &attr, IBV_QP_STATE | mask);
}

/* From RESET to ready for both directions. 0 or an errno. */
static int bring_ud_qp_up(struct verbs_queue *queue)
{
    int error = modify_ud_qp(queue, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    if (!error)
        error = modify_ud_qp(queue, IBV_QPS_RTR, 0);
    return error ? error : modify_ud_qp(queue, IBV_QPS_RTS, IBV_QP_SQ_PSN);
}

static int create_ud_qp(struct verbs_queue *queue)
{
    enum { INLINE_WANTED = 256 };
    struct ibv_qp_init_attr attr = {.send_cq = queue->send_cq.cq,
                                    .recv_cq = queue->receive_cq.cq,
                                    .cap = {.max_send_wr = queue->sends.depth,
                                            .max_recv_wr = queue->receives.count,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_inline_data = INLINE_WANTED},
                                    .qp_type = IBV_QPT_UD,
                                    .qp_context = queue};
    queue->ud = queue->lib->create_qp(queue->nic->pd, &attr);
    if (!queue->ud) { /* some devices refuse instead of granting less */
        attr.cap.max_inline_data = 0;
        queue->ud = queue->lib->create_qp(queue->nic->pd, &attr);
    }
    if (!queue->ud)
        return verbs_fault(queue->nic, "make a UD queue pair", errno);
    queue->sends.inline_bytes = attr.cap.max_inline_data;
    int error = bring_ud_qp_up(queue);
    return error ? verbs_fault(queue->nic, "bring a UD queue pair up", error) : 0;
}

int verbs_ud_open(struct verbs_queue *queue)
{
    struct verbs_nic *nic = queue->nic;
    const struct ibv_device_attr *limits = &nic->port->limits;
    struct verbs_ud_sends *sends = &queue->sends;
    int completions = nic->mode == VERBS_UD ? limits->max_cqe : limits->max_cqe / 2; /* shared receives have the rest */
    int most = limits->max_qp_wr < completions ? limits->max_qp_wr : completions;
    uint32_t receives = verbs_at_most(VERBS_UD_RECEIVES, most);
    sends->depth = verbs_at_most(VERBS_UD_SENDS, most);
    if (sends->depth < VERBS_UD_SENDS_MIN || receives < VERBS_RECEIVES_MIN) {
        LOG_ERR("verbs device %s has queues of %d work requests; %d are needed", nic->port->device, most,
                VERBS_UD_SENDS_MIN);
        return UCCL_ENOTSUP;
    }
    sends->slot_bytes = nic->datagram_bytes;
    if (getrandom(&queue->qkey, sizeof queue->qkey, 0) != sizeof queue->qkey)
        queue->qkey = (uint32_t)(uintptr_t)queue;
    queue->qkey &= (1u << QKEY_BITS) - 1;
    int error = verbs_slots_open(nic, &queue->receives, receives, VERBS_GRH_BYTES + nic->datagram_bytes);
    if (!error)
        error = verbs_pool_open(nic, &sends->pool, (size_t)sends->depth * sends->slot_bytes, "register send buffers");
    if (!error)
        error = verbs_cq_open(queue, &queue->send_cq, sends->depth, false);
    if (!error)
        error = verbs_cq_open(queue, &queue->receive_cq, receives + verbs_shared_receives(nic), true);
    if (!error)
        error = create_ud_qp(queue);
    if (!error)
        verbs_slots_post(queue, &queue->receives);
    return error;
}

void verbs_ud_close(struct verbs_queue *queue)
{
    if (queue->ud)
        queue->lib->destroy_qp(queue->ud);
    verbs_cq_close(queue, &queue->send_cq);
    verbs_cq_close(queue, &queue->receive_cq);
    verbs_pool_close(queue->nic, &queue->sends.pool);
    verbs_slots_close(queue->nic, &queue->receives);
}

/*
 * Begins a new epoch: completions of earlier ones are dropped, and sends under way are lost. Only poll() calls this,
 * when the engine holds no slot.
 */
void verbs_ud_recover(struct verbs_queue *queue)
{
    struct verbs_ud_sends *sends = &queue->sends;
    uint32_t kept = 0;
    queue->broken = false;
    queue->epoch++;
    for (uint32_t i = queue->ready_next; i < queue->ready_count; i++)
        if (queue->ready[i].slot & VERBS_SHARED_SLOT)
            queue->ready[kept++] = queue->ready[i];
    queue->ready_next = 0;
    queue->ready_count = kept;
    sends->done = sends->posted = sends->asked = sends->built;
    sends->batched = 0;
    int error = modify_ud_qp(queue, IBV_QPS_RESET, 0);
    verbs_reap_sends(queue); /* not every driver has thrown completions away, and their queue has room for one epoch */
    if (!error)
        error = bring_ud_qp_up(queue);
    if (!error)
        verbs_slots_post(queue, &queue->receives);
    else
        verbs_lost(queue->nic, strerror(error));
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Whether a router has marked the datagram in this slot: by the global routing header in front of it, or by the IPv4
 * header in the last 20 bytes of that. */
static bool has_mark(const struct verbs_nic *nic, const uint8_t *slot)
{
    uint8_t traffic_class = nic->ipv4 ? slot[IPV4_AT + 1] : (uint8_t)(slot[0] << 4 | slot[1] >> 4);
    return (traffic_class & NIC_ECN_CE) == NIC_ECN_CE;
}

static void take_datagram(struct verbs_queue *queue, const struct ibv_wc *wc, uint64_t at_ns)
{
    uint32_t slot = (uint32_t)wc->wr_id;
    if (wc->wr_id >> 32 != queue->epoch)
        return;
    if (wc->status != IBV_WC_SUCCESS) {
        if (!queue->broken && wc->status != IBV_WC_WR_FLUSH_ERR)
            LOG_WARNING("verbs device %s: a receive failed: %s (vendor code 0x%x); the queue pair is set up "
                        "again",
                        queue->nic->port->device, queue->lib->wc_status_str(wc->status), wc->vendor_err);
        queue->broken = true;
        return;
    }
    uint8_t *memory = queue->receives.pool.memory + (size_t)slot * queue->receives.slot_bytes;
    uint32_t length = wc->byte_len > VERBS_GRH_BYTES ? wc->byte_len - VERBS_GRH_BYTES : 0;
    queue->ready[queue->ready_count++] =
        (struct nic_rx){.data = memory + VERBS_GRH_BYTES,
                        .length = length,
                        .stride = length,
                        .ce = wc->wc_flags & IBV_WC_GRH && has_mark(queue->nic, memory),
                        .slot = slot,
                        .at_ns = at_ns};
}

/* A receive on a data QP: a placed write, or a retransmitted datagram. */
static void take_from_data_qp(struct verbs_queue *queue, const struct ibv_wc *wc, uint64_t at_ns)
{
    struct verbs_slots *shared = &queue->data_qps->shared;
    struct verbs_data_qp *qp = verbs_data_qp_of(queue, wc->qp_num);
    uint32_t slot = (uint32_t)wc->wr_id & (VERBS_SHARED_SLOT - 1);
    bool good = wc->status == IBV_WC_SUCCESS;
    if (qp && !good)
        verbs_data_qp_fail(qp, wc);
    if (!qp || !qp->is.flow || !good) {
        return_slot(queue, shared, slot);
        return;
    }
    bool placed = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    queue->ready[queue->ready_count++] =
        (struct nic_rx){.data = placed ? NULL : shared->pool.memory + (size_t)slot * shared->slot_bytes,
                        .length = wc->byte_len,
                        .stride = wc->byte_len,
                        .slot = slot | VERBS_SHARED_SLOT,
                        .at_ns = at_ns,
                        .placed = placed,
                        .immediate = placed ? ntohl(wc->imm_data) : 0,
                        .flow = qp->is.flow,
                        .path = qp->is.path,
                        .generation = qp->is.generation};
}

bool verbs_receive(struct verbs_queue *queue)
{
    struct ibv_wc completions[VERBS_READY];
    uint64_t at_ns[VERBS_READY];
    if (queue->ready_next < queue->ready_count)
        return true;
    queue->ready_next = queue->ready_count = 0;
    unsigned count;
    do {
        count = verbs_cq_poll(queue, &queue->receive_cq, completions, at_ns, VERBS_READY);
        for (unsigned i = 0; i < count; i++) {
            if (completions[i].wr_id & VERBS_SHARED_SLOT)
                take_from_data_qp(queue, &completions[i], at_ns[i]);
            else
                take_datagram(queue, &completions[i], at_ns[i]);
        }
        queue->polled += count;
    } while (count && queue->ready_count == 0);
    return queue->ready_count > 0;
}

unsigned verbs_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    unsigned count = 0;
    if (queue->broken && !verbs_is_gone(queue->nic))
        verbs_ud_recover(queue);
    while (count < max && verbs_receive(queue))
        out[count++] = queue->ready[queue->ready_next++];
    return count;
}

void verbs_release(struct nic_queue *base, const struct nic_rx *rx)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    if (rx->slot & VERBS_SHARED_SLOT)
        return_slot(queue, &queue->data_qps->shared, rx->slot & (VERBS_SHARED_SLOT - 1));
    else
        return_slot(queue, &queue->receives, rx->slot);
}

/* Drops what a closed flow received and poll() has not returned. */
void verbs_drop_ready(struct verbs_queue *queue, const struct flow *flow)
{
    uint32_t kept = queue->ready_next;
    for (uint32_t i = queue->ready_next; i < queue->ready_count; i++) {
        if (queue->ready[i].flow == flow)
            verbs_release(&queue->base, &queue->ready[i]);
        else
            queue->ready[kept++] = queue->ready[i];
    }
    queue->ready_count = kept;
}
