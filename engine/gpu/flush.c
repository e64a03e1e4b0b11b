/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/flush.h"

#include "thread/thread.h"

enum { READ_BATCH = 16 };

void flush_submit(struct engine_thread *thread, struct uccl_request *request)
{
    struct flushes *flushes = &thread->flushes;
    request->staged.next = NULL;
    if (flushes->waiting)
        flushes->waiting_tail->staged.next = request;
    else
        flushes->waiting = request;
    flushes->waiting_tail = request;
}

static void end(struct engine_thread *thread, struct uccl_request *request, bool failed)
{
    request->msg.status = failed ? UCCL_EIO : UCCL_OK;
    atomic_fetch_sub(&thread->staged, 1);
    thread_request_ended(thread, request);
}

bool flush_progress(struct engine_thread *thread)
{
    struct flushes *flushes = &thread->flushes;
    struct uccl_request *request;
    struct nic_read reads[READ_BATCH];
    bool some = false;
    while ((request = flushes->waiting) && thread->nic->read(thread->queue, request->nic_mr, request)) {
        flushes->waiting = request->staged.next;
        flushes->reading++;
        some = true;
    }
    unsigned count = flushes->reading ? thread->nic->poll_reads(thread->queue, reads, READ_BATCH) : 0;
    for (unsigned i = 0; i < count; i++) {
        flushes->reading--;
        end(thread, reads[i].cookie, reads[i].failed);
    }
    return some || count > 0;
}
