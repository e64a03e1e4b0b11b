/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What paths send: chunks as writes with immediate, straight from the application's memory, and retransmissions as
 * datagrams from a pool. Work requests are staged, chained per path, and posted with one doorbell each.
 */
#include "nic/verbs/data_qp.h"

#include "core/wire.h"
#include "base/log.h"
#include "nic/datagram.h"

#include <arpa/inet.h>
#include <assert.h>
#include <string.h>

enum { COMPLETIONS = 32, NO_SLOT = -1, INDEX_SHIFT = 48, LIFE_SHIFT = 32 };

uint64_t verbs_data_qp_work_id(const struct verbs_data_qp *path, uint32_t number)
{
    return (uint64_t)path->index << INDEX_SHIFT | (uint64_t)path->life << LIFE_SHIFT | number;
}

static struct verbs_work *work_of(struct verbs_data_qp *path, uint32_t number)
{
    return &path->works[number & (path->depth - 1)];
}

/* ---- staging and posting --------------------------------------------------------------------- */

static void post_path(struct verbs_data_qp *path)
{
    struct verbs_data_qp_stage *stage = &path->queue->paths->stage;
    struct ibv_send_wr *first = &stage->requests[path->first_staged], *bad;
    struct ibv_send_wr *last = &stage->requests[path->last_staged];
    last->next = NULL;
    last->send_flags |= IBV_SEND_SIGNALED;
    path->first_staged = -1;
    path->posted = path->built;
    /* room was counted: it is refused only where the queue pair has failed */
    if (ibv_post_send(path->qp, first, &bad) != 0) {
        struct ibv_wc none = {.status = IBV_WC_GENERAL_ERR};
        verbs_data_qp_fail(path, &none);
    }
}

void verbs_data_qps_flush(struct verbs_queue *queue)
{
    struct verbs_data_qp_stage *stage = queue->paths ? &queue->paths->stage : NULL;
    if (!stage || stage->count == 0)
        return;
    for (uint32_t i = 0; i < stage->path_count; i++)
        if (stage->paths[i]->first_staged >= 0)
            post_path(stage->paths[i]);
    stage->count = stage->path_count = 0;
}

void verbs_data_qp_unstage(struct verbs_data_qp *path)
{
    path->first_staged = -1;
}

/* A work request, staged; the caller fills in what it does. */
static inline struct ibv_send_wr *stage_request(struct verbs_data_qp *path, const struct tx_desc *desc, bool last, int slot,
                                         struct ibv_sge piece)
{
    struct verbs_queue *queue = path->queue;
    struct verbs_data_qp_stage *stage = &queue->paths->stage;
    if (stage->count == VERBS_STAGE)
        verbs_data_qps_flush(queue);
    int at = (int)stage->count++;
    if (path->first_staged < 0) {
        path->first_staged = at;
        stage->paths[stage->path_count++] = path;
    } else {
        stage->requests[path->last_staged].next = &stage->requests[at];
    }
    path->last_staged = at;
    if (path->built == path->done)
        path->done_seen = path->done - 1; /* from now on it is waited for */
    queue->paths->requests++;
    *work_of(path, path->built) =
        (struct verbs_work){.cookie = desc->cookie, .slot = (int16_t)slot, .last = last};
    stage->pieces[at] = piece;
    struct ibv_send_wr *request = &stage->requests[at]; /* what the caller leaves out, nobody reads */
    request->wr_id = verbs_data_qp_work_id(path, path->built);
    request->sg_list = &stage->pieces[at];
    request->num_sge = piece.length > 0;
    request->send_flags = 0;
    path->built++;
    return request;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void send_writes(struct verbs_data_qp *path, const struct tx_desc *desc)
{
    struct ibv_sge piece = {.length = desc->place_bytes};
    piece.addr = path->queue->setup.local(desc->bulk_msg, desc->bulk_offset, &piece.lkey);
    for (unsigned i = 0; i < desc->count; i++, piece.addr += desc->place_bytes) {
        struct ibv_send_wr *request = stage_request(path, desc, i + 1u == desc->count, NO_SLOT, piece);
        request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request->imm_data = htonl(wire_immediate_after(desc->immediate, i));
        request->wr.rdma.remote_addr = desc->remote_address + (uint64_t)i * desc->place_bytes;
        request->wr.rdma.rkey = desc->remote_key;
    }
}

/*
 * Whether the pool gives so many slots to this path's peer: it may hold as many as stay free at most. So one whose
 * queue pairs do not finish leaves some to the others, each of which finds half of what is left.
 */
static bool pool_gives(const struct verbs_data_qp *path, uint32_t count)
{
    const struct verbs_queue *queue = path->queue;
    struct verbs_data_qp **of_peer = queue->peers[path->is.destination].paths;
    uint32_t free = queue->paths->free_retransmission_count, held = 0;
    for (unsigned i = 0; i < queue->setup.params->port_entropy; i++)
        held += of_peer[i] ? of_peer[i]->retransmissions : 0;
    return count <= free && held + count <= free - count;
}

/* A retransmission: datagrams on the way that the original took. */
static void send_datagrams(struct verbs_data_qp *path, const struct tx_desc *desc, uint64_t mask)
{
    struct verbs_queue *queue = path->queue;
    struct verbs_data_qps *paths = queue->paths;
    const uint8_t *payload =
        desc->kind == TX_BULK ? queue->setup.payload(desc->bulk_msg, desc->bulk_offset) : NULL;
    for (unsigned i = 0; i < desc->count; i++) {
        if (!(mask >> i & 1))
            continue;
        int16_t slot = paths->free_retransmissions[--paths->free_retransmission_count];
        path->retransmissions++;
        uint8_t *at = paths->retransmissions.memory + (size_t)slot * queue->nic->datagram_bytes;
        uint32_t length = datagram_length(desc, i);
        assert(length <= queue->nic->datagram_bytes);
        if (desc->kind == TX_BULK) {
            datagram_bulk(&queue->setup, desc, i, payload, true, at);
        } else {
            memcpy(at, desc->buffer + (size_t)i * desc->datagram_bytes, length);
            wire_seal(desc, i, at, length, queue->setup.crc32c);
        }
        struct ibv_sge piece = {
            .addr = (uintptr_t)at, .length = length, .lkey = paths->retransmissions.mr->lkey};
        stage_request(path, desc, mask >> i == 1, slot, piece)->opcode = IBV_WR_SEND;
    }
}

bool verbs_data_qp_send(struct verbs_queue *queue, const struct tx_desc *desc)
{
    struct verbs_data_qp *path = queue->peers[desc->destination].paths[desc->path];
    bool write = desc->kind == TX_PLACE;
    uint64_t mask = write ? 0 : desc->mask & wire_full_mask(desc->count);
    uint32_t count = write ? desc->count : (uint32_t)__builtin_popcountll(mask);
    if (desc->kind == TX_FRAMES)
        datagram_gather(&queue->setup, desc, mask);
    if (!path || path->is.generation != desc->generation || path->state != VERBS_UP || path->failed ||
        path->depth - (path->built - path->done) < count)
        return false;
    if (write)
        send_writes(path, desc);
    else if (!pool_gives(path, count))
        return false;
    else
        send_datagrams(path, desc, mask);
    return true;
}

/* ---- completions ----------------------------------------------------------------------------- */

/* All work requests before number `until` are over; `well`: done by `at_ns`. */
static void finish(struct verbs_data_qp *path, uint32_t until, bool well, uint64_t at_ns)
{
    struct verbs_data_qps *paths = path->queue->paths;
    if (until - path->done > path->built - path->done)
        return;
    paths->requests -= until - path->done;
    for (; path->done != until; path->done++) {
        const struct verbs_work *work = work_of(path, path->done);
        if (work->slot != NO_SLOT) {
            paths->free_retransmissions[paths->free_retransmission_count++] = work->slot;
            path->retransmissions--;
        }
        if (work->last && well && !path->failed) {
            path->newest_done = (struct nic_done){work->cookie, at_ns};
            paths->dones += !path->has_done;
            path->has_done = true;
        }
    }
}

void verbs_data_qp_finish_all(struct verbs_data_qp *path)
{
    finish(path, path->built, false, 0);
}

static void take_completion(struct verbs_queue *queue, const struct ibv_wc *wc, uint64_t at_ns)
{
    uint32_t index = (uint32_t)(wc->wr_id >> INDEX_SHIFT), number = (uint32_t)wc->wr_id;
    struct verbs_data_qp *path = index < queue->paths->count ? queue->paths->all[index] : NULL;
    if (!path || path->life != (uint16_t)(wc->wr_id >> LIFE_SHIFT))
        return; /* of a queue pair that is gone */
    bool well = wc->status == IBV_WC_SUCCESS;
    if (!well)
        verbs_data_qp_fail(path, wc);
    if (path->marked && number == path->marker) {
        path->marker_done = true;
        finish(path, number, false, 0);
        return;
    }
    /* of those before a failed one nothing is known */
    finish(path, number + 1, well, at_ns);
}

static void reap(struct verbs_queue *queue)
{
    struct ibv_wc completions[COMPLETIONS];
    uint64_t at_ns[COMPLETIONS];
    for (struct verbs_data_qp_cq *cq = queue->paths->cqs; cq; cq = cq->next) {
        unsigned count;
        do {
            count = cq->paths ? verbs_cq_poll(queue, &cq->cq, completions, at_ns, COMPLETIONS) : 0;
            for (unsigned i = 0; i < count; i++)
                take_completion(queue, &completions[i], at_ns[i]);
        } while (count == COMPLETIONS);
    }
}

unsigned verbs_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_data_qps *paths = queue->paths;
    unsigned count = 0;
    if (!paths || paths->requests + paths->draining + paths->dones == 0)
        return 0;
    reap(queue);
    for (uint32_t i = 0; paths->dones && i < paths->count && count < max; i++) {
        struct verbs_data_qp *path = paths->all[i];
        if (!path || !path->has_done)
            continue;
        path->has_done = false;
        paths->dones--;
        if (path->is.flow)
            done[count++] = path->newest_done;
    }
    return count;
}

bool verbs_data_qps_arm(struct verbs_queue *queue)
{
    struct verbs_data_qps *paths = queue->paths;
    if (!paths || paths->active == 0)
        return false;
    for (struct verbs_data_qp_cq *cq = paths->cqs; cq; cq = cq->next)
        if (cq->paths)
            (void)ibv_req_notify_cq(cq->cq.cq, 0); /* fails with the device alone */
    reap(queue);
    return paths->dones + paths->events > 0;
}
