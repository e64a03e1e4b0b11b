/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a round trip takes and how much that varies, for retransmission timeouts, RACK and congestion control. RFC
 * 6298 section 2, with two differences. The peer reports its ack delay; the sample leaves it out, and the timeout has
 * it as a term of its own, so that a peer that batches acks does not look like a slow network. And the timeout's floor
 * is a parameter. Samples are never ambiguous (acks name the transmission), so Karn's rule is not needed. Owned by the
 * flow's thread.
 */
#include "core/rtt.h"
#include "core/units.h"

#include <assert.h>
#include <stdbool.h>

/* Bounds samples, so that a lying peer cannot overflow the arithmetic: 18 minutes. */
#define SAMPLE_MAX_NS (UINT64_C(1) << 40)
/* A route that became longer is believed after this time at the latest. */
#define MIN_WINDOW_NS (10 * NS_PER_S)
enum { ACK_DELAY_DECAY = 16, SLOW_DECAY = 64 };

void rtt_init(struct rtt *rtt)
{
    *rtt = (struct rtt){.min_ns = UINT64_MAX};
}

void rtt_sample(struct rtt *rtt, uint64_t rtt_ns, uint64_t hold_ns, uint64_t now_ns)
{
    if (rtt_ns > SAMPLE_MAX_NS)
        rtt_ns = SAMPLE_MAX_NS;
    if (rtt_ns == 0)
        rtt_ns = 1; /* srtt 0 means that there is none */
    if (hold_ns > SAMPLE_MAX_NS)
        hold_ns = SAMPLE_MAX_NS;

    rtt->latest_ns = rtt_ns;
    if (rtt->srtt_ns == 0 || (rtt->renews && rtt_ns < rtt->srtt_ns)) {
        rtt->srtt_ns = rtt_ns;
        rtt->rttvar_ns = rtt_ns / 2;
    } else {
        uint64_t error = rtt->srtt_ns > rtt_ns ? rtt->srtt_ns - rtt_ns : rtt_ns - rtt->srtt_ns;
        rtt->rttvar_ns = (3 * rtt->rttvar_ns + error) / 4;
        rtt->srtt_ns = (7 * rtt->srtt_ns + rtt_ns) / 8;
        if (rtt->srtt_ns == 0)
            rtt->srtt_ns = 1;
    }

    rtt->renews = false;

    if (rtt_ns >= rtt->slow_ns)
        rtt->slow_ns = rtt_ns;
    else
        rtt->slow_ns -= (rtt->slow_ns - rtt_ns + SLOW_DECAY - 1) / SLOW_DECAY;

    bool expired = now_ns > rtt->min_at_ns && now_ns - rtt->min_at_ns > MIN_WINDOW_NS;
    if (rtt_ns <= rtt->min_ns || expired) {
        rtt->min_ns = rtt_ns;
        rtt->min_at_ns = now_ns;
    }

    if (hold_ns >= rtt->peer_ack_delay_ns)
        rtt->peer_ack_delay_ns = hold_ns;
    else
        rtt->peer_ack_delay_ns -= (rtt->peer_ack_delay_ns - hold_ns + ACK_DELAY_DECAY - 1) / ACK_DELAY_DECAY;
}

uint64_t rtt_rto(const struct rtt *rtt, unsigned backoff, uint64_t min_ns, uint64_t max_ns)
{
    assert(min_ns > 0 && min_ns <= max_ns);
    /* The floor comes before the doubling (RFC 6298 2.4 and 5.5), or backing off would not begin at
     * the first timeout. */
    uint64_t rto_ns = rtt->srtt_ns + 4 * rtt->rttvar_ns + rtt->peer_ack_delay_ns;
    if (rto_ns < min_ns)
        rto_ns = min_ns;
    for (; backoff > 0 && rto_ns < max_ns; backoff--)
        rto_ns *= 2;
    return rto_ns < max_ns ? rto_ns : max_ns;
}
