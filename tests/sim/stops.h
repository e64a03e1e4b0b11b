/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends that stop and continue (SIGSTOP, a debugger, a paused machine), and clocks that drift. What comes meanwhile lies
 * in the socket, and the clock goes on. The verdict: whoever ran while its peer did not, for UCCL_DEAD_PEER_MS, and
 * waited, gives that peer up; nobody else does, and both learn it.
 */
#ifndef SIM_STOPS_H
#define SIM_STOPS_H

#include "world.h"

/* Plans all stops and clocks, from a generator of their own. */
void stops_create(struct world *world);
void stops_begin(struct world *world, struct end *end);
void stops_end(struct world *world, struct end *end);
/* A side of a pair has given its peer up, or has heard that the peer did. */
void stops_judge_death(struct world *world, const struct pair *pair, unsigned side);

/* What they add to another scenario. */
void stops_below(struct options *options, struct rng *rng);
void stops_above(struct options *options, struct rng *rng);
void stops_together(struct options *options, struct rng *rng);
void stops_probes(struct options *options, struct rng *rng);

#endif
