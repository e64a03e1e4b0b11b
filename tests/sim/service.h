/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of whole engines that follow a script, so that each has a bound in virtual time: how soon who waits is
 * woken, how equal shares are, how near a rate is to its setting, and what is left after many peers. Each bound is
 * above what the worst of some hundred seeds needs, and below what an engine needs that lacks the rule in question
 * (tests/mutation/mutants.txt).
 */
#ifndef SIM_SERVICE_H
#define SIM_SERVICE_H

#include "cluster.h"

/* One more thread of the application; a node waits for all of its own (node->helpers). */
void node_spawn(struct node *node, void (*run)(struct node *, unsigned), unsigned index);

/* Each sets the script and the plan of a run. */
void service_wait(struct cluster_options *options, struct rng *rng);
void service_accept(struct cluster_options *options, struct rng *rng);
void service_connections(struct cluster_options *options, struct rng *rng);
void service_peers(struct cluster_options *options, struct rng *rng);
void service_credit(struct cluster_options *options, struct rng *rng);
void service_ranges(struct cluster_options *options, struct rng *rng);
void service_small(struct cluster_options *options, struct rng *rng);
void service_lives(struct cluster_options *options, struct rng *rng);
/* onesided.c, onesided_peers.c: byte `offset` of what an operation with this key moves. */
static inline uint8_t content(uint64_t key, size_t offset)
{
    uint64_t mixed = (key + offset / 8) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint8_t)(mixed >> (8 + offset % 8 * 7));
}

/* onesided.c */
void onesided_scenario(struct cluster_options *options, struct rng *rng);
void onesided_direct(struct cluster_options *options, struct rng *rng);
void onesided_rails(struct cluster_options *options, struct rng *rng);
void onesided_direct_rails(struct cluster_options *options, struct rng *rng);
/* onesided_peers.c */
void onesided_crash(struct cluster_options *options, struct rng *rng);
void onesided_stops(struct cluster_options *options, struct rng *rng);
void onesided_hostile(struct cluster_options *options, struct rng *rng);
/* piped.c */
/* Paths are connections, alone or beside datagrams. */
void use_pipes(struct cluster_options *options, struct rng *rng);
void onesided_pipes(struct cluster_options *options, struct rng *rng);
void onesided_pipes_crash(struct cluster_options *options, struct rng *rng);
void onesided_pipes_stops(struct cluster_options *options, struct rng *rng);
void onesided_hostile_pipes(struct cluster_options *options, struct rng *rng);
/* threads.c */
void set_threads(struct cluster_options *options, struct rng *rng);
void set_half_dead(struct cluster_options *options, struct rng *rng);

#endif
