/* SPDX-License-Identifier: Apache-2.0 */
#include "unequal.h"

enum { DATAGRAM_MIN = 512, BUFFER_MIN = 64 << 10 };

bool unequal_seed(struct rng *rng)
{
    return rng_below(rng, 2);
}

/* True in half of the cases: the other half keeps what the scenario has set. */
static bool another(struct rng *rng)
{
    return rng_below(rng, 2);
}

void unequal_params(struct params *params, struct rng *rng)
{
    if (another(rng))
        params->chunk_size_kb = UINT64_C(1) << rng_below(rng, 7);
    if (another(rng))
        params->eager_kb = rng_below(rng, 65);
    if (another(rng))
        params->port_entropy = 1 + rng_below(rng, 16);
    if (another(rng))
        params->path_policy = (int)rng_below(rng, 3);
    if (another(rng))
        params->cc = (int)rng_below(rng, 3);
    if (another(rng))
        params->speculate_kb = UINT64_C(1) << rng_below(rng, 17);
    if (another(rng))
        params->ack_every = 1 + rng_below(rng, 64);
    if (another(rng))
        params->ack_delay_us = rng_below(rng, 500);
    if (another(rng))
        params->tx_buffers = UINT64_C(4) << rng_below(rng, 4);
    if (another(rng))
        params->tx_small_buffers = UINT64_C(64) << rng_below(rng, 4);
    if (another(rng))
        params->payload_crc = !params->payload_crc;
    if (another(rng))
        params->grants = UINT64_C(16) << rng_below(rng, 6);
    if (another(rng))
        params->qp_depth = UINT64_C(64) << rng_below(rng, 3);
}

void unequal_windows(struct params *params, struct rng *rng)
{
    if (another(rng))
        params->chunk_window = UINT64_C(64) << rng_below(rng, 6);
    if (another(rng))
        params->msg_window = UINT64_C(16) << rng_below(rng, 7);
    if (another(rng))
        params->eager_window_kb = UINT64_C(128) << rng_below(rng, 3);
    if (another(rng))
        params->stripe_min_kb = UINT64_C(64) << rng_below(rng, 4);
    if (another(rng))
        params->ring_entries = UINT64_C(16) << rng_below(rng, 8);
}

uint32_t unequal_datagram(uint32_t bytes, struct rng *rng)
{
    uint32_t less = rng_below(rng, bytes / 2);
    return another(rng) && bytes - less >= DATAGRAM_MIN ? bytes - less : bytes;
}

uint64_t unequal_buffer(uint64_t bytes, struct rng *rng)
{
    uint64_t less = bytes >> rng_below(rng, 5);
    return another(rng) && less >= BUFFER_MIN ? less : bytes;
}
