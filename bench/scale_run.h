/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of scale_sim: a real core each, driven as an engine thread drives it, with messages to
 * move. */
#ifndef SCALE_RUN_H
#define SCALE_RUN_H

#include "core/core.h"
#include "scale_net.h"

struct run_result {
    uint64_t *completion_ps;  /* per message: from its start until the receiver has it; UINT64_MAX:
                                 not done */
    uint32_t done;            /* messages */
    uint64_t makespan_ps;     /* from the first start to the last end */
    struct counters counters; /* of all nodes together */
};

/* Moves all messages of the matrix, or runs into the limit. Uses up the triggers of `matrix`. */
void run_matrix(struct net *net, struct matrix *matrix, const struct params *params, uint64_t limit_ps,
                struct run_result *result);
void run_result_free(struct run_result *result);

#endif
