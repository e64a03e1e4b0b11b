/* SPDX-License-Identifier: Apache-2.0 */
/* What the owner of a queue does to sleep in it. */
#ifndef UCCL_TEST_SLEEP_IN_H
#define UCCL_TEST_SLEEP_IN_H

#include "nic/nic.h"

static inline void sleep_in(struct nic_queue *queue, uint64_t timeout_ns)
{
    int beside_fd = nic_watch(queue, &timeout_ns);
    queue->ops->wait(queue, beside_fd, timeout_ns);
}

#endif
