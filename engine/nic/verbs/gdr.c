/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUDirect RDMA: device memory that the NIC reaches, and reads that flush what the NIC has written to it.
 *
 * The CPU may see the completion of a write that is still on its way to the device. On PCIe a read does not overtake
 * writes: once a read by the same NIC from the same device has completed, the device sees all earlier writes. Each
 * queue has one RC queue pair for such reads. The first read makes it and connects it to itself. When it fails, all its
 * reads fail, and the next read makes it anew.
 *
 * Peers may write registered memory, but not read it. So one byte of each registration is registered again for these
 * reads, under a key that no peer learns.
 *
 * Threads: verbs_reg_device() may come from any; the rest belongs to the queue's owner.
 */
#include "nic/verbs/data_qp.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READS = 64, SINK_BYTES = 64, READ_RETRIES = 7 };

struct verbs_reads {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct verbs_pool sink; /* where reads put their byte */
    bool broken;            /* reads under way have failed */
    uint32_t posted, done;  /* modulo 2^32 */
    void *cookies[READS];   /* of those under way, by number */
};

/* ---- registration ---------------------------------------------------------------------------- */

static struct ibv_mr *reg_device_memory(const struct verbs_nic *nic, const struct nic_device_memory *memory, int access)
{
    const struct verbs_lib *lib = nic->lib;
    void *address = (void *)memory->address;
    if (memory->dmabuf_fd >= 0)
        return lib->reg_dmabuf_mr(nic->pd, memory->offset_bytes, memory->length, memory->address, memory->dmabuf_fd,
                                  access);
    if (access & IBV_ACCESS_RELAXED_ORDERING)
        return lib->reg_mr_iova2
                   ? lib->reg_mr_iova2(nic->pd, address, memory->length, memory->address, (unsigned)access)
                   : NULL;
    return lib->reg_mr(nic->pd, address, memory->length, access);
}

int verbs_reg_device(struct nic *base, unsigned index, const struct nic_device_memory *memory, struct nic_mr *out,
                     char why[NIC_WHY_TEXT])
{
    const struct verbs_nic *nic = &verbs_backend_of(base)->nics[index];
    enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
    bool dmabuf = memory->dmabuf_fd >= 0;
    struct nic_device_memory first = *memory;
    struct ibv_mr *mr = NULL, *flush_mr = NULL;
    first.length = 1;
    const char *lacks = NULL;
    if (!nic->port->able.rc)
        lacks = "the device makes no RC queue pairs, which flushing needs";
    else if (dmabuf && !nic->lib->reg_dmabuf_mr)
        lacks = "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 or later is needed)";
    if (lacks) {
        snprintf(why, NIC_WHY_TEXT, "%s", lacks);
        return UCCL_ENOTSUP;
    }
    if (nic->params->ib_relaxed_ordering)
        mr = reg_device_memory(nic, memory, ACCESS | IBV_ACCESS_RELAXED_ORDERING);
    if (!mr)
        mr = reg_device_memory(nic, memory, ACCESS);
    if (mr)
        flush_mr = reg_device_memory(nic, &first, IBV_ACCESS_REMOTE_READ);
    if (!flush_mr) {
        int error = errno;
        if (mr)
            nic->lib->dereg_mr(mr);
        snprintf(why, NIC_WHY_TEXT,
                 dmabuf ? "the device takes no dma-buf: %.50s"
                        : "no driver resolves the address (peer memory module): %.40s",
                 strerror(error));
        return UCCL_ENOTSUP;
    }
    *out = (struct nic_mr){.local_key = mr->lkey,
                           .remote_key = mr->rkey,
                           .handle = mr,
                           .flush_key = flush_mr->rkey,
                           .flush_handle = flush_mr,
                           .flush_address = memory->address,
                           .nic = (uint8_t)index};
    return 0;
}

/* ---- reads ----------------------------------------------------------------------------------- */

static void close_flush_qp(struct verbs_queue *queue)
{
    struct verbs_reads *reads = queue->reads;
    if (reads->qp)
        queue->lib->destroy_qp(reads->qp);
    if (reads->cq)
        queue->lib->destroy_cq(reads->cq);
    reads->qp = NULL;
    reads->cq = NULL;
}

void verbs_reads_close(struct verbs_queue *queue)
{
    if (!queue->reads)
        return;
    close_flush_qp(queue);
    verbs_pool_close(queue->nic, &queue->reads->sink);
    free(queue->reads);
    queue->reads = NULL;
}

/* To itself. 0 or an errno. */
static int connect_flush_qp(struct verbs_queue *queue, struct ibv_qp *qp)
{
    const struct verbs_nic *nic = queue->nic;
    unsigned shift = (unsigned)__builtin_ctz(atomic_load(&queue->port_bytes));
    struct verbs_address self = {.ethernet = nic->port->ethernet, .lid = atomic_load(&nic->lid), .qpn = qp->qp_num};
    memcpy(self.gid, nic->gid.gid, sizeof self.gid);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = nic->port->number,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ};
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = (enum ibv_mtu)(shift - VERBS_MTU_SHIFT_MIN + IBV_MTU_256),
                                  .dest_qp_num = qp->qp_num,
                                  .max_dest_rd_atomic = 1,
                                  .min_rnr_timer = 1,
                                  .ah_attr = verbs_route_to(nic, &self, 0, 0)};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = (uint8_t)nic->params->ib_timeout,
                               .retry_cnt = READ_RETRIES,
                               .rnr_retry = READ_RETRIES,
                               .max_rd_atomic = 1};
    int error = nic->lib->modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (!error)
        error = nic->lib->modify_qp(qp, &receive,
                                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (!error)
        error = nic->lib->modify_qp(qp, &send,
                                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    return error;
}

/* True: the queue pair is there and has not failed. */
static bool open_flush_qp(struct verbs_queue *queue)
{
    struct verbs_reads *reads = queue->reads;
    struct verbs_nic *nic = queue->nic;
    if (reads->qp || reads->broken) /* what could be made of a broken one stays until its reads have failed */
        return !reads->broken;
    if (!reads->sink.mr && verbs_pool_open(nic, &reads->sink, SINK_BYTES, "register memory to flush with"))
        return false;
    /* no events: reads take microseconds, and are polled */
    reads->cq = nic->lib->create_cq(nic->context, READS, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = reads->cq,
                                    .recv_cq = reads->cq,
                                    .cap = {.max_send_wr = READS, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    if (reads->cq)
        reads->qp = nic->lib->create_qp(nic->pd, &attr);
    int error = reads->qp ? connect_flush_qp(queue, reads->qp) : errno;
    if (error)
        verbs_fault(nic, "make a queue pair to flush with", error);
    return error == 0;
}

bool verbs_flush_device(struct nic_queue *base, const struct nic_mr *mr, void *cookie)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    if (!queue->reads && !(queue->reads = calloc(1, sizeof *queue->reads)))
        return false;
    struct verbs_reads *reads = queue->reads;
    if (reads->posted - reads->done == READS)
        return false;
    bool works = !verbs_is_gone(queue->nic) && open_flush_qp(queue);
    struct ibv_sge sge = {.length = 1};
    struct ibv_send_wr request = {.wr_id = reads->posted,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .wr.rdma = {.remote_addr = mr->flush_address, .rkey = mr->flush_key}},
                       *bad;
    reads->cookies[reads->posted++ % READS] = cookie;
    if (works) {
        sge.addr = (uintptr_t)reads->sink.memory;
        sge.lkey = reads->sink.mr->lkey;
        works = ibv_post_send(reads->qp, &request, &bad) == 0;
    }
    reads->broken |= !works;
    return true;
}

/* Takes one completion: `*well` becomes the number behind the newest read that completed well. */
static void reap_flush(struct verbs_queue *queue, uint32_t *well)
{
    struct verbs_reads *reads = queue->reads;
    struct ibv_wc completion;
    while (!reads->broken && ibv_poll_cq(reads->cq, 1, &completion) > 0) {
        if (completion.status == IBV_WC_SUCCESS) {
            *well = (uint32_t)completion.wr_id + 1;
            return;
        }
        LOG_ERR("verbs device %s: a read to flush received data failed: %s (vendor code 0x%x)",
                queue->nic->port->device, queue->lib->wc_status_str(completion.status), completion.vendor_err);
        reads->broken = true;
    }
}

unsigned verbs_poll_flushed(struct nic_queue *base, struct nic_flushed *out, unsigned max)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_reads *reads = queue->reads;
    unsigned count = 0;
    if (!reads)
        return 0;
    reads->broken |= reads->done != reads->posted && verbs_is_gone(queue->nic); /* no completion comes any more */
    while (reads->done != reads->posted && count < max) {
        uint32_t well = reads->done;
        reap_flush(queue, &well);
        if (well == reads->done && !reads->broken)
            break;
        /* in order; on a broken queue pair all have failed */
        out[count++] = (struct nic_flushed){reads->cookies[reads->done % READS], well == reads->done};
        reads->done++;
    }
    if (reads->broken && reads->done == reads->posted) {
        close_flush_qp(queue);
        reads->broken = false;
    }
    return count;
}
