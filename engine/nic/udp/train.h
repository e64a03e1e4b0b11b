/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving the payload of bulk datagrams where it belongs, for backends that can look at what waits before
 * they receive it. The header of a train's first datagram tells where its payload goes; the others are taken
 * to be the next ones of the same chunk. train_foresee() asks, train_spread() says what to receive where,
 * train_settle() looks at the headers that came.
 *
 * What comes may be something else: GRO joins whatever follows each other with equal lengths. So bytes are
 * only ever put where bytes are missing, of messages that have not ended (core_place()), and where nothing
 * else has been put that the core has not heard of yet: foreign bytes there are as good as none.
 *
 * Thread: the queue's owner.
 */
#ifndef UCCL_TRAIN_H
#define UCCL_TRAIN_H

#include "nic/nic.h"

#include <sys/uio.h>

enum { TRAIN_IOVECS_MAX = 2 * CORE_TRAIN_MAX + 1 };

/*
 * Asks where the payload of `train` goes: fills in its `in_place`, which is 0 if nowhere in particular, and
 * `payload`. Length and stride are known, the first header region is at `header`. `earlier`: the `count`
 * buffers that the same poll() has received before.
 */
void train_foresee(const struct nic_queue_setup *setup, const uint8_t *header, struct nic_rx *train,
                   const struct nic_rx *earlier, unsigned count);

/* Vectors to receive it with; what does not go in place goes to where it would be in `buffer`. Returns how many. */
unsigned train_spread(const struct nic_rx *train, uint8_t *buffer, uint32_t buffer_bytes,
                      struct iovec iovecs[TRAIN_IOVECS_MAX]);

/*
 * It has come: takes those datagrams out of `in_place` that are not what was foreseen, and all behind them. Their
 * payload goes back behind their headers.
 */
void train_settle(struct nic_rx *train, const struct iovec *iovecs);

#endif
