/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/flush.h"

enum { READ_BATCH = 16 };

void flush_init(struct uccl_request *request, const struct request_pairs *pairs)
{
    struct core_msg *msg = &request->msg;
    msg->placeable = 0;
    msg->work_live = 0;
    msg->status = UCCL_OK;
    for (unsigned i = 0; i < pairs->count; i++)
        if (request->nic_mr[pairs->nics[i]].handle)
            msg->placeable |= (uint8_t)(1u << pairs->nics[i]);
    msg->range_units = msg->placeable;
}

void flush_submit(struct flushes *flushes, struct uccl_request *request)
{
    request->staged.next = NULL;
    if (flushes->waiting)
        flushes->waiting_tail->staged.next = request;
    else
        flushes->waiting = request;
    flushes->waiting_tail = request;
}

/* Asks the NICs. False: one of them takes no more now. */
static bool flush_ask(struct flushes *flushes, const struct gpu_context *context, struct uccl_request *request)
{
    struct core_msg *msg = &request->msg;
    for (; msg->placeable; msg->placeable &= (uint8_t)(msg->placeable - 1)) {
        const struct nic_mr *mr = &request->nic_mr[__builtin_ctz(msg->placeable)];
        if (!context->queue->data_qp->flush_device(context->queue, mr, request))
            return false;
        flushes->reading++;
        msg->work_live++;
    }
    return true;
}

/* Whether a NIC that was asked has failed. What it wrote before is long there, and others have taken over. */
static bool flush_by_lost(const struct gpu_context *context, const struct uccl_request *request)
{
    const struct nic *nic = context->queue->nic;
    for (unsigned nics = request->msg.range_units; nic->ends && nics; nics &= nics - 1)
        if (!nic->ends->up(nic, (unsigned)__builtin_ctz(nics)))
            return true;
    return false;
}

static void flush_answered(const struct gpu_context *context, struct uccl_request *request, bool failed)
{
    struct core_msg *msg = &request->msg;
    if (failed && !flush_by_lost(context, request))
        msg->status = UCCL_EIO;
    if (--msg->work_live || msg->placeable)
        return;
    atomic_fetch_sub(context->staged, 1);
    context->ended(context->owner, request);
}

bool flush_progress(struct flushes *flushes, const struct gpu_context *context)
{
    struct uccl_request *request;
    struct nic_flushed reads[READ_BATCH];
    bool some = false;
    while ((request = flushes->waiting) && flush_ask(flushes, context, request)) {
        flushes->waiting = request->staged.next;
        some = true;
    }
    unsigned count = flushes->reading ? context->queue->data_qp->poll_flushed(context->queue, reads, READ_BATCH) : 0;
    for (unsigned i = 0; i < count; i++) {
        flushes->reading--;
        flush_answered(context, reads[i].cookie, reads[i].failed);
    }
    return some || count > 0;
}
