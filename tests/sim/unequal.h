/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that the two ends of a relation need not have alike. Unless a scenario wants it otherwise, each end draws
 * its own in half of the seeds: what a core takes from its own parameters, where it must ask the peer's, is seen.
 */
#ifndef SIM_UNEQUAL_H
#define SIM_UNEQUAL_H

#include "core/rng.h"
#include "defs/params.h"

#include <stdbool.h>

/* Is this one of the seeds? Called last, when the scenario has drawn all of its own. */
bool unequal_seed(struct rng *rng);

/* What an end decides for itself. */
void unequal_params(struct params *params, struct rng *rng);

/* What the handshake makes equal: the smaller one counts. */
void unequal_windows(struct params *params, struct rng *rng);

/* A full datagram, or a socket buffer, of somewhat less. */
uint32_t unequal_datagram(uint32_t bytes, struct rng *rng);
uint64_t unequal_buffer(uint64_t bytes, struct rng *rng);

#endif
