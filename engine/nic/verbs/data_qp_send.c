/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data QPs send chunks as writes with immediate, straight from the application's memory, and retransmissions as
 * datagrams from a pool. Work requests are collected in a batch, chained per data QP, and posted with one doorbell per
 * chain.
 */
#include "nic/verbs/data_qp.h"

#include "base/log.h"
#include "core/wire.h"
#include "nic/datagram.h"

#include <arpa/inet.h>
#include <assert.h>
#include <string.h>

enum { COMPLETIONS = 32, NO_SLOT = -1, INDEX_SHIFT = 48, EPOCH_SHIFT = 32 };

uint64_t verbs_data_qp_work_id(const struct verbs_data_qp *qp, uint32_t number)
{
    return (uint64_t)qp->index << INDEX_SHIFT | (uint64_t)qp->epoch << EPOCH_SHIFT | number;
}

static struct verbs_work *work_of(struct verbs_data_qp *qp, uint32_t number)
{
    return &qp->works[number & (qp->depth - 1)];
}

/* ---- the batch ------------------------------------------------------------------------------- */

static void post_data_qp(struct verbs_data_qp *qp)
{
    struct verbs_data_qp_batch *batch = &qp->queue->data_qps->batch;
    struct ibv_send_wr *first = &batch->requests[qp->first_batched], *bad;
    struct ibv_send_wr *last = &batch->requests[qp->last_batched];
    last->next = NULL;
    last->send_flags |= IBV_SEND_SIGNALED;
    qp->first_batched = -1;
    qp->posted = qp->built;
    /* there is room: only a failed queue pair refuses */
    if (ibv_post_send(qp->ibv, first, &bad) != 0) {
        struct ibv_wc none = {.status = IBV_WC_GENERAL_ERR};
        verbs_data_qp_fail(qp, &none);
    }
}

void verbs_data_qps_flush(struct verbs_queue *queue)
{
    struct verbs_data_qp_batch *batch = queue->data_qps ? &queue->data_qps->batch : NULL;
    if (!batch || batch->count == 0)
        return;
    for (uint32_t i = 0; i < batch->qp_count; i++)
        if (batch->qps[i]->first_batched >= 0)
            post_data_qp(batch->qps[i]);
    batch->count = batch->qp_count = 0;
}

void verbs_data_qp_drop_batch(struct verbs_data_qp *qp)
{
    qp->first_batched = -1;
}

/* Adds a work request to the batch; the caller fills in its operation. */
static inline struct ibv_send_wr *add_request(struct verbs_data_qp *qp, const struct tx_desc *desc, bool last, int slot,
                                              struct ibv_sge sge)
{
    struct verbs_queue *queue = qp->queue;
    struct verbs_data_qp_batch *batch = &queue->data_qps->batch;
    if (batch->count == VERBS_BATCH)
        verbs_data_qps_flush(queue);
    int at = (int)batch->count++;
    if (qp->first_batched < 0) {
        qp->first_batched = at;
        batch->qps[batch->qp_count++] = qp;
    } else {
        batch->requests[qp->last_batched].next = &batch->requests[at];
    }
    qp->last_batched = at;
    if (qp->built == qp->done)
        qp->done_seen = qp->done - 1; /* the wait for progress begins */
    queue->data_qps->requests++;
    *work_of(qp, qp->built) = (struct verbs_work){.cookie = desc->cookie, .slot = (int16_t)slot, .last = last};
    batch->sges[at] = sge;
    struct ibv_send_wr *request = &batch->requests[at]; /* nobody reads fields that the caller leaves out */
    request->wr_id = verbs_data_qp_work_id(qp, qp->built);
    request->sg_list = &batch->sges[at];
    request->num_sge = sge.length > 0;
    request->send_flags = 0;
    qp->built++;
    return request;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void send_writes(struct verbs_data_qp *qp, const struct tx_desc *desc)
{
    struct ibv_sge sge = {.length = desc->place_bytes};
    sge.addr = qp->queue->setup.local(desc->bulk_msg, desc->bulk_offset, qp->queue->nic->index, &sge.lkey);
    for (unsigned i = 0; i < desc->count; i++, sge.addr += desc->place_bytes) {
        struct ibv_send_wr *request = add_request(qp, desc, i + 1u == desc->count, NO_SLOT, sge);
        request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request->imm_data = htonl(wire_immediate_after(desc->immediate, i));
        request->wr.rdma.remote_addr = desc->remote_address + (uint64_t)i * desc->place_bytes;
        request->wr.rdma.rkey = desc->remote_key;
    }
}

/*
 * Whether the pool gives `count` slots to this peer: a peer holds at most as many as stay free. So a peer whose queue
 * pairs hang leaves slots to the others, and each finds half of the rest.
 */
static bool pool_gives(const struct verbs_data_qp *qp, uint32_t count)
{
    const struct verbs_queue *queue = qp->queue;
    struct verbs_data_qp **of_peer = verbs_peer_at(queue, qp->is.destination)->qps;
    uint32_t free = queue->data_qps->free_retransmission_count, held = 0;
    for (unsigned i = 0; i < verbs_peer_at(queue, qp->is.destination)->qp_count; i++)
        held += of_peer[i] ? of_peer[i]->retransmissions : 0;
    return count <= free && held + count <= free - count;
}

/* Retransmits as datagrams, on the route of the original. */
static void send_datagrams(struct verbs_data_qp *qp, const struct tx_desc *desc, uint64_t mask)
{
    struct verbs_queue *queue = qp->queue;
    struct verbs_data_qps *qps = queue->data_qps;
    const uint8_t *payload = desc->kind == TX_BULK ? queue->setup.payload(desc->bulk_msg, desc->bulk_offset) : NULL;
    for (unsigned i = 0; i < desc->count; i++) {
        if (!(mask >> i & 1))
            continue;
        int16_t slot = qps->free_retransmissions[--qps->free_retransmission_count];
        qp->retransmissions++;
        uint8_t *at = qps->retransmissions.memory + (size_t)slot * queue->nic->datagram_bytes;
        uint32_t length = datagram_length(desc, i);
        assert(length <= queue->nic->datagram_bytes);
        if (desc->kind == TX_BULK) {
            datagram_bulk(&queue->setup, desc, i, payload, true, at);
        } else {
            memcpy(at, desc->buffer + (size_t)i * desc->datagram_bytes, length);
            wire_seal(desc, i, at, length, queue->setup.crc32c);
        }
        struct ibv_sge sge = {.addr = (uintptr_t)at, .length = length, .lkey = qps->retransmissions.mr->lkey};
        add_request(qp, desc, mask >> i == 1, slot, sge)->opcode = IBV_WR_SEND;
    }
}

bool verbs_data_qp_send(struct verbs_queue *queue, const struct tx_desc *desc)
{
    struct verbs_data_qp *qp = verbs_peer_at(queue, desc->destination)->qps[desc->path];
    bool write = desc->kind == TX_PLACE;
    uint64_t mask = write ? 0 : desc->mask & wire_full_mask(desc->count);
    uint32_t count = write ? desc->count : (uint32_t)__builtin_popcountll(mask);
    if (desc->kind == TX_FRAMES)
        datagram_gather(&queue->setup, desc, mask);
    if (!qp || qp->is.generation != desc->generation || qp->state != VERBS_UP || qp->failed ||
        qp->depth - (qp->built - qp->done) < count)
        return false;
    if (write)
        send_writes(qp, desc);
    else if (!pool_gives(qp, count))
        return false;
    else
        send_datagrams(qp, desc, mask);
    return true;
}

/* ---- completions ----------------------------------------------------------------------------- */

/* All work requests before number `until` have completed; `well`: with success, by `at_ns`. */
static void finish_until(struct verbs_data_qp *qp, uint32_t until, bool well, uint64_t at_ns)
{
    struct verbs_data_qps *qps = qp->queue->data_qps;
    if (until - qp->done > qp->built - qp->done)
        return;
    qps->requests -= until - qp->done;
    for (; qp->done != until; qp->done++) {
        const struct verbs_work *work = work_of(qp, qp->done);
        if (work->slot != NO_SLOT) {
            qps->free_retransmissions[qps->free_retransmission_count++] = work->slot;
            qp->retransmissions--;
        }
        if (work->last && well && !qp->failed) {
            qp->newest_done = (struct nic_done){work->cookie, at_ns};
            qps->dones += !qp->done_pending;
            qp->done_pending = true;
        }
    }
}

void verbs_data_qp_finish_all(struct verbs_data_qp *qp)
{
    finish_until(qp, qp->built, false, 0);
}

static void take_completion(struct verbs_queue *queue, const struct ibv_wc *wc, uint64_t at_ns)
{
    uint32_t index = (uint32_t)(wc->wr_id >> INDEX_SHIFT), number = (uint32_t)wc->wr_id;
    struct verbs_data_qp *qp = index < queue->data_qps->count ? queue->data_qps->all[index] : NULL;
    if (!qp || qp->epoch != (uint16_t)(wc->wr_id >> EPOCH_SHIFT))
        return; /* of a destroyed data QP */
    bool well = wc->status == IBV_WC_SUCCESS;
    if (!well)
        verbs_data_qp_fail(qp, wc);
    if (qp->marked && number == qp->marker) {
        qp->marker_done = true;
        finish_until(qp, number, false, 0);
        return;
    }
    /* a failure tells nothing of earlier ones */
    finish_until(qp, number + 1, well, at_ns);
}

static void reap_data_qps(struct verbs_queue *queue)
{
    struct ibv_wc completions[COMPLETIONS];
    uint64_t at_ns[COMPLETIONS];
    for (struct verbs_data_qp_cq *cq = queue->data_qps->cqs; cq; cq = cq->next) {
        unsigned count;
        do {
            count = cq->qps ? verbs_cq_poll(queue, &cq->cq, completions, at_ns, COMPLETIONS) : 0;
            for (unsigned i = 0; i < count; i++)
                take_completion(queue, &completions[i], at_ns[i]);
        } while (count == COMPLETIONS);
    }
}

unsigned verbs_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qps *qps = queue->data_qps;
    unsigned count = 0;
    if (!qps || qps->requests + qps->draining + qps->dones == 0)
        return 0;
    reap_data_qps(queue);
    for (uint32_t i = 0; qps->dones && i < qps->count && count < max; i++) {
        struct verbs_data_qp *qp = qps->all[i];
        if (!qp || !qp->done_pending)
            continue;
        qp->done_pending = false;
        qps->dones--;
        if (qp->is.flow)
            done[count++] = qp->newest_done;
    }
    return count;
}

bool verbs_data_qps_arm(struct verbs_queue *queue)
{
    struct verbs_data_qps *qps = queue->data_qps;
    if (!qps || qps->active == 0)
        return false;
    for (struct verbs_data_qp_cq *cq = qps->cqs; cq; cq = cq->next)
        if (cq->qps)
            (void)ibv_req_notify_cq(cq->cq.cq, 0); /* fails only with the device */
    reap_data_qps(queue);
    return qps->dones + qps->events > 0;
}
