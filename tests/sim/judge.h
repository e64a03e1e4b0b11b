/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges what a core sends: descriptors against the rules of core.h and the windows, and a whole run against
 * bounds: what it may cost to deliver everything. An engine that only gets everything across in the end,
 * by repeating at random and waiting long, would pass every other check.
 */
#ifndef SIM_JUDGE_H
#define SIM_JUDGE_H

#include "world.h"

/* Before each core_tx() of an end, which changes what is looked at. */
void judge_before(struct world *world, const struct end *end);
void judge_desc(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc);
/* A firewall has refused a datagram of the descriptor. */
void judge_refused(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc);
/* At the end of a run. */
void judge_run(const struct world *world);

/* Scenarios with bounds. */
void bounds_needless(struct options *options, struct rng *rng);
void bounds_lone(struct options *options, struct rng *rng);
void bounds_bulk(struct options *options, struct rng *rng);
void bounds_reorder(struct options *options, struct rng *rng);
void bounds_silence(struct options *options, struct rng *rng);
void bounds_outages(struct options *options, struct rng *rng);
void bounds_dead_path(struct options *options, struct rng *rng);
void bounds_crawl(struct options *options, struct rng *rng);
void bounds_stopped(struct options *options, struct rng *rng);
void bounds_stopped_many(struct options *options, struct rng *rng);
void bounds_strays(struct options *options, struct rng *rng);
void bounds_narrow(struct options *options, struct rng *rng);
void bounds_empty(struct options *options, struct rng *rng);

#endif
