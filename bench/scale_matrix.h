/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nodes of scale_sim send each other: read from a connection matrix in the text format of
 * the public htsim simulators, or generated.
 */
#ifndef SCALE_MATRIX_H
#define SCALE_MATRIX_H

#include "core/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MATRIX_NODES_MAX = 65536 };

struct message {
    uint32_t src, dst;
    uint32_t id; /* 0: none */
    uint64_t bytes;
    uint64_t start_ps;             /* counts where trigger is 0 */
    uint32_t trigger;              /* starts it; 0: none */
    uint32_t send_done, recv_done; /* triggers that its end pulls; 0: none */
};

enum trigger_kind { TRIGGER_UNKNOWN, TRIGGER_ONESHOT, TRIGGER_MULTISHOT, TRIGGER_BARRIER };

struct trigger {
    uint32_t id;
    enum trigger_kind kind;
    uint32_t count; /* barrier: how many pulls it takes */
    /* while running */
    uint32_t pulled;
    uint32_t next; /* multishot: search for the next message from here */
};

enum tier { TIER_TOR, TIER_AGG, TIER_CORE };

/* Link `link` of switch `switch_id`, on its way up (of a core: to pod `link`). */
struct failure {
    enum tier tier;
    uint32_t switch_id, link;
};

struct matrix {
    uint32_t nodes;
    struct message *messages;
    struct trigger *triggers;
    struct failure *failures;
    uint32_t message_count, trigger_count, failure_count;
};

/* Reads a file; what is wrong with it ends the program with a message that names the line. */
void matrix_read(struct matrix *matrix, const char *path);

/* Every node sends to one other and receives from one other. */
void matrix_permutation(struct matrix *matrix, uint32_t nodes, uint64_t bytes, struct rng *rng);
/* Nodes 1 to `senders` send to node 0. */
void matrix_incast(struct matrix *matrix, uint32_t nodes, uint32_t senders, uint64_t bytes);
/* Every node sends to every other, beginning with the one after it. */
void matrix_all_to_all(struct matrix *matrix, uint32_t nodes, uint64_t bytes);

void matrix_free(struct matrix *matrix);

#endif
