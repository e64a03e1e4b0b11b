/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC of the simulated world that places payload itself: connected queue pairs that carry writes with
 * immediate and sends, in order, and that lose, stall, break for good or fail. What it writes it writes when
 * it arrives, wherever the grant said, whatever the application has done meanwhile: a write to a buffer that
 * the application has got back, or outside of it, ends the run, and so does reading a send that has ended.
 */
#ifndef SIM_PLACING_H
#define SIM_PLACING_H

#include "world.h"

void placing_create(struct world *world);
void placing_destroy(struct world *world);

/* The application's buffer is reachable until it is forgotten: by all NICs or some, under keys that the message has. */
void placing_register(struct world *world, struct core_msg *msg, uint8_t *memory, uint64_t bytes);
void placing_forget(struct world *world, const struct core_msg *msg);

/* Takes a descriptor that goes over a queue pair. */
void placing_send(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc);
/* Passes to the core what its queue pairs have received or finished. */
void placing_poll(struct world *world, struct end *end);
/* Does what the core wants done to queue pairs. True: there was something. */
bool placing_act(struct world *world, struct end *end);
/* EVENT_NIC; and one that will not happen any more. */
void placing_event(struct world *world, struct event *event);
void placing_free_event(void *what);
/* At the end of a run with `placed` in its options something must have been placed. */
void placing_check(struct world *world);
/* What its queue pairs and oldest chunk are at, when a run fails. */
void placing_report(const struct flow *flow);

/* placing_scenarios.c */
void placing_clean(struct options *options, struct rng *rng);
void placing_loss(struct options *options, struct rng *rng);
void placing_silent(struct options *options, struct rng *rng);
void placing_late(struct options *options, struct rng *rng);
void placing_cancel(struct options *options, struct rng *rng);
void placing_close(struct options *options, struct rng *rng);
void placing_fail(struct options *options, struct rng *rng);
void placing_drain(struct options *options, struct rng *rng);
void placing_oneway(struct options *options, struct rng *rng);
void placing_reorder(struct options *options, struct rng *rng);
void placing_reliable(struct options *options, struct rng *rng);
void placing_dead_peer(struct options *options, struct rng *rng);
void placing_orphan(struct options *options, struct rng *rng);
void placing_tiny(struct options *options, struct rng *rng);
void placing_storm(struct options *options, struct rng *rng);

#endif
