/* SPDX-License-Identifier: Apache-2.0 */
/* Which congestion control algorithm a rail has (UCCL_CC), and its first window. */
#include "core/cc.h"
#include "core/units.h"

#include <assert.h>

enum {
    INITIAL_CHUNKS = 16,
    INITIAL_MIN_BYTES = 256 * 1024, /* a round trip of 20 us at 100 Gbps, however small the chunks */
};

static const struct cc_ops *const algorithms[] = {
    [CC_SWIFT] = &cc_swift,
    [CC_TIMELY] = &cc_timely,
    [CC_EQDS] = &cc_eqds,
};

void cc_init(struct cc *cc, const struct params *params, uint32_t chunk_bytes)
{
    assert(chunk_bytes > 0 && chunk_bytes < 1u << 17);
    assert(params->cc < sizeof algorithms / sizeof algorithms[0]);
    assert(params->cwnd_max_kb < UINT64_C(1) << 26);

    *cc = (struct cc){
        .ops = algorithms[params->cc],
        .cwnd_max_bytes = params->cwnd_max_kb * 1024,
        .chunk_bytes = chunk_bytes,
        .target_ns = params->swift_target_us * NS_PER_US,
        .speculate_bytes = params->speculate_kb * 1024,
        .startup = true,
    };
    if (cc->cwnd_max_bytes < chunk_bytes)
        cc->cwnd_max_bytes = chunk_bytes;
    uint64_t initial_bytes = (uint64_t)INITIAL_CHUNKS * chunk_bytes;
    cc_set_window(cc, initial_bytes > INITIAL_MIN_BYTES ? initial_bytes : INITIAL_MIN_BYTES);
    cc->ops->init(cc);
}
