/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections in place of a network of datagrams (options.pipe_bytes): each path of a pair is a pipe that keeps order
 * and loses nothing, of bounded capacity, unless it breaks. Then all that is under way in both directions is lost, also
 * what has arrived unread, and each side learns of it at a time of its own; later it is there again. Pipes stall, and
 * keep no order among each other. What is sent by a rail that is cut breaks its pipe, which comes back after the cut.
 */
#ifndef SIM_PIPES_H
#define SIM_PIPES_H

#include "world.h"

/* Whether the paths of a rail are pipes: all are, or those of the later half of the rails. */
static inline bool pipes_are(const struct options *options, unsigned rail)
{
    return options->pipe_bytes && (!options->pipes_beside || rail >= options->rails / 2);
}

/* A pair begins. Its pipes come up, unless side 0 is to want them first (options.pipes_wanted). */
void pipes_begin(struct world *world, struct pair *pair);
/* All pipes of a pair that are down come up, a moment later. */
void pipes_create(struct world *world, struct pair *pair);
/* Whether the pipe takes a record of this side now. */
bool pipes_take(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port);
void pipes_carry(struct world *world, struct pair *pair, unsigned side, unsigned rail, unsigned port,
                 const uint8_t *bytes, size_t length);
void pipes_event(struct world *world, void *what);
void pipes_free_event(void *what);

/* Scenarios. */
void pipes_alone(struct options *options, struct rng *rng);
void pipes_beside(struct options *options, struct rng *rng);
void pipes_beside_nics(struct options *options, struct rng *rng);
void pipes_tangle(struct options *options, struct rng *rng);
void pipes_wanted(struct options *options, struct rng *rng);
void pipes_again(struct options *options, struct rng *rng);
void pipes_rails(struct options *options, struct rng *rng);

#endif
