/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives the payload of bulk datagrams straight into the receive's buffer, for backends that can peek. The header of
 * a train's first datagram tells where its payload goes; the prediction is that the others are the next datagrams of
 * the same chunk. train_foresee() predicts, train_spread() lays out the vectors, train_settle() checks the headers that
 * came.
 *
 * GRO may coalesce unrelated datagrams of equal size, so the prediction can be wrong. So payload only ever goes where
 * bytes of a pending message are missing (core_copy_target()), and where no other train of this poll() goes: wrong
 * bytes there do no harm.
 *
 * Thread: the queue's owner.
 */
#ifndef UCCL_TRAIN_H
#define UCCL_TRAIN_H

#include "nic/nic.h"

#include <sys/uio.h>

enum { TRAIN_IOVECS_MAX = 2 * CORE_TRAIN_MAX + 1 };

/*
 * Predicts where the payload of `train` goes: sets `in_place` (0: nowhere) and `payload`. The caller knows length,
 * stride, and the first header. `earlier`: the `count` buffers that the same poll() has received before.
 */
void train_foresee(const struct nic_queue_setup *setup, const uint8_t *header, struct nic_rx *train,
                   const struct nic_rx *earlier, unsigned count);

/* The vectors to receive it with; the rest goes to its usual position in `buffer`. Returns how many. */
unsigned train_spread(const struct nic_rx *train, uint8_t *buffer, uint32_t buffer_bytes,
                      struct iovec iovecs[TRAIN_IOVECS_MAX]);

/*
 * After receiving: takes the first datagram that was not predicted, and all behind it, out of `in_place`. Copies their
 * payload back behind their headers.
 */
void train_settle(struct nic_rx *train, const struct iovec *iovecs);

#endif
