/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU flushes: requests that complete once the device sees all that the NIC has written to it
 * (nic_data_qp_ops.flush_device), or the NICs, if several may have. Neither the core nor the peer takes part. A flush
 * completes within microseconds, or fails with the NIC. It counts as staged, so closing waits for it.
 *
 * The request's message is none, and has its state: `placeable` the NICs that are still to be asked (bits),
 * `range_units` all of them, `work_live` how many have been asked and have not answered, `status` what became of the
 * others.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_FLUSH_H
#define UCCL_FLUSH_H

#include "gpu/context.h"

#include <stdbool.h>

/* Of an engine thread. */
struct flushes {
    struct uccl_request *waiting, *waiting_tail; /* those that wait for room in the NIC, linked by staged.next */
    uint32_t reading;                            /* how many the NIC has */
};

/* Of memory whose registrations are request->nic_mr: by each NIC of these that reaches it. Application threads. */
void flush_init(struct uccl_request *request, const struct request_pairs *pairs);
/* COMMAND_FLUSH. */
void flush_submit(struct flushes *flushes, struct uccl_request *request);
/* Begins flushes that wait, and completes those that are done. True: there was some. */
bool flush_progress(struct flushes *flushes, const struct gpu_context *context);
static inline bool flush_busy(const struct flushes *flushes)
{
    return flushes->waiting || flushes->reading;
}

#endif
