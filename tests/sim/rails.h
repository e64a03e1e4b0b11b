/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of ends with several NICs: cuts of rails, what may go over which, and scenarios. */
#ifndef SIM_RAILS_H
#define SIM_RAILS_H

#include "world.h"

/* Schedules what devices report. */
void rails_create(struct world *world);
/* A device reports that it is gone, or back: cut `index` begins or ends. */
void rails_event(struct world *world, struct end *end, unsigned index);
/* The net between two ends for a rail. */
const struct net *rails_net(const struct options *options, unsigned side, unsigned rail);
uint32_t rails_datagram(const struct options *options, unsigned rail);
/* Whether a cut swallows what this side sends over the rail now. */
bool rails_swallow(const struct world *world, unsigned side, unsigned rail);
/* The first time from then on at which no cut swallows what is sent over the rail; UINT64_MAX: there is none. */
uint64_t rails_whole_at(const struct world *world, unsigned rail, uint64_t at_ns);
void rails_judge(struct world *world, const struct pair *pair, unsigned side, const struct tx_desc *desc);
void rails_judge_run(const struct world *world);

/* ---- scenarios ---- */
void rails_calm(struct options *options, struct rng *rng);
void rails_shares(struct options *options, struct rng *rng);
void rails_cuts(struct options *options, struct rng *rng);
void rails_crosswise(struct options *options, struct rng *rng);
void rails_oneway(struct options *options, struct rng *rng);
void rails_tangle(struct options *options, struct rng *rng);
void rails_tangle_stops(struct options *options, struct rng *rng);
void rails_flaps(struct options *options, struct rng *rng);
void rails_cold(struct options *options, struct rng *rng);
void rails_late(struct options *options, struct rng *rng);
void rails_sizes(struct options *options, struct rng *rng);
void rails_placing(struct options *options, struct rng *rng);
void rails_dead(struct options *options, struct rng *rng);
void rails_storm(struct options *options, struct rng *rng);

#endif
