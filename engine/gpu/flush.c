/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/flush.h"

enum { READ_BATCH = 16 };

void flush_submit(struct flushes *flushes, struct uccl_request *request)
{
    request->staged.next = NULL;
    if (flushes->waiting)
        flushes->waiting_tail->staged.next = request;
    else
        flushes->waiting = request;
    flushes->waiting_tail = request;
}

static void flush_end(const struct gpu_context *context, struct uccl_request *request, bool failed)
{
    request->msg.status = failed ? UCCL_EIO : UCCL_OK;
    atomic_fetch_sub(context->staged, 1);
    context->ended(context->owner, request);
}

bool flush_progress(struct flushes *flushes, const struct gpu_context *context)
{
    struct uccl_request *request;
    struct nic_flushed reads[READ_BATCH];
    bool some = false;
    const struct nic_data_qp_ops *ops = context->queue->data_qp;
    while ((request = flushes->waiting) && ops->flush_device(context->queue, request->nic_mr, request)) {
        flushes->waiting = request->staged.next;
        flushes->reading++;
        some = true;
    }
    unsigned count = flushes->reading ? ops->poll_flushed(context->queue, reads, READ_BATCH) : 0;
    for (unsigned i = 0; i < count; i++) {
        flushes->reading--;
        flush_end(context, reads[i].cookie, reads[i].failed);
    }
    return some || count > 0;
}
