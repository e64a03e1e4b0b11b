/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flushes: requests that complete once a device sees what the NIC has written to it (nic_data_qp_ops.flush_device).
 * They have nothing to do with the core or with the peer, and complete within microseconds, or fail with the NIC. They
 * count as staged, so that closing waits for them.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_FLUSH_H
#define UCCL_FLUSH_H

#include "gpu/context.h"

#include <stdbool.h>

/* Of an engine thread. */
struct flushes {
    struct uccl_request *waiting, *waiting_tail; /* for room in the NIC; by staged.next */
    uint32_t reading;                            /* that the NIC has */
};

/* COMMAND_FLUSH. */
void flush_submit(struct flushes *flushes, struct uccl_request *request);
/* Begins what waits and ends what is done. True: there was some. */
bool flush_progress(struct flushes *flushes, const struct gpu_context *context);
static inline bool flush_busy(const struct flushes *flushes)
{
    return flushes->waiting || flushes->reading;
}

#endif
