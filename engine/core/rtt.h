/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time estimator: RFC 6298 smoothing; min_rtt over a sliding time window for RACK (RFC 8985). */
#ifndef UCCL_RTT_H
#define UCCL_RTT_H

#include <stdbool.h>
#include <stdint.h>

struct rtt {
    uint64_t srtt_ns; /* 0: no sample yet */
    uint64_t rttvar_ns;
    uint64_t latest_ns;
    uint64_t min_ns;            /* over the window; UINT64_MAX: no sample yet */
    uint64_t min_at_ns;         /* when min_ns was seen */
    uint64_t slow_ns;           /* longest of the recent samples, over all paths */
    uint64_t peer_ack_delay_ns; /* longest of the peer's recent ack delays */
    bool renews;                /* srtt is old: a shorter sample takes its place */
};

void rtt_init(struct rtt *rtt);
/* `rtt_ns` leaves out the peer's ack delay, which comes beside it. */
void rtt_sample(struct rtt *rtt, uint64_t rtt_ns, uint64_t hold_ns, uint64_t now_ns);
/* srtt + 4 rttvar + peer ack delay, at least min_ns, doubled `backoff` times, at most max_ns.
 * Without a sample: min_ns, doubled. 0 < min_ns <= max_ns. */
uint64_t rtt_rto(const struct rtt *rtt, unsigned backoff, uint64_t min_ns, uint64_t max_ns);

#endif
