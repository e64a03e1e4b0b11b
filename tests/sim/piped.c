/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of whole engines whose paths are connections, alone or beside datagrams. */
#include "core/units.h"
#include "service.h"

enum { PREEMPT_NS_MAX = 500000 };

void use_pipes(struct cluster_options *options, struct rng *rng)
{
    options->params.backend = rng_below(rng, 2) ? BACKEND_AUTO : BACKEND_TCP;
    options->params.port_entropy = 1 + rng_below(rng, 4);
    options->params.tcp_bulk_kb = 4u << rng_below(rng, 6);
    struct sim_pipe_options *pipes = &options->pipes;
    pipes->bytes = 1000u << rng_below(rng, 11);
    pipes->mbps = 1000u << rng_below(rng, 6);
    pipes->break_ppm = rng_below(rng, 2) * 30000;
    pipes->stall_ppm = rng_below(rng, 2) * 30000;
    pipes->delay_ns = 1u << (10 + rng_below(rng, 8));
    pipes->stall_ns = 2 * NS_PER_MS;
    pipes->late_ns = 1u << (10 + rng_below(rng, 15));
    pipes->soon = true;
    /* a round has twice the system calls, in each of which the core may go to others: more of them is not too slow */
    if (options->preempt_ns > PREEMPT_NS_MAX)
        options->preempt_ns = PREEMPT_NS_MAX;
}

void onesided_pipes(struct cluster_options *options, struct rng *rng)
{
    onesided_scenario(options, rng);
    use_pipes(options, rng);
}

void onesided_pipes_crash(struct cluster_options *options, struct rng *rng)
{
    onesided_crash(options, rng);
    use_pipes(options, rng);
}

void onesided_pipes_stops(struct cluster_options *options, struct rng *rng)
{
    onesided_stops(options, rng);
    use_pipes(options, rng);
}

void onesided_hostile_pipes(struct cluster_options *options, struct rng *rng)
{
    onesided_hostile(options, rng);
    use_pipes(options, rng);
}
