/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between NCCL (or RCCL) and a tuner, versions 3 and 4, in declarations of our own. NCCL looks for the
 * newest version that it knows, back to 2; it looks in the network plugin's library where it finds no other tuner.
 *
 * A tuner changes what NCCL expects a collective to take before NCCL chooses. Calls come from any thread, those for one
 * communicator from one at a time.
 */
#ifndef NCCL_TUNER_H
#define NCCL_TUNER_H

#include "nccl_net.h"

enum nccl_collective {
    NCCL_BROADCAST = 0,
    NCCL_REDUCE = 1,
    NCCL_ALL_GATHER = 2,
    NCCL_REDUCE_SCATTER = 3,
    NCCL_ALL_REDUCE = 4
};

/* The columns of a table of times. */
enum nccl_protocol { NCCL_PROTOCOL_LL = 0, NCCL_PROTOCOL_LL128 = 1, NCCL_PROTOCOL_SIMPLE = 2 };

/*
 * `bytes`: the larger of what a rank sends and receives, all ranks' parts together. `times`: in us, an array of
 * `algorithms` rows of `protocols` columns, whatever its type says; below 0: NCCL will not choose that one. `*channels`
 * stays as it is unless the tuner limits them. An error fails the collective.
 */
struct nccl_tuner_v3 {
    const char *name;
    enum nccl_result (*init)(size_t ranks, size_t nodes, nccl_logger_fn logger, void **context);
    enum nccl_result (*getCollInfo)(void *context, int collective, size_t bytes, int operations, float **times,
                                    int algorithms, int protocols, int *channels);
    enum nccl_result (*destroy)(void *context);
};

/* v4: `registered`: the application's buffers are. */
struct nccl_tuner_v4 {
    const char *name;
    enum nccl_result (*init)(size_t ranks, size_t nodes, nccl_logger_fn logger, void **context);
    enum nccl_result (*getCollInfo)(void *context, int collective, size_t bytes, int operations, float **times,
                                    int algorithms, int protocols, int registered, int *channels);
    enum nccl_result (*destroy)(void *context);
};

#endif
