/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu/ has of the engine thread that it works for: staging and flushes know this and not the thread. */
#ifndef UCCL_GPU_CONTEXT_H
#define UCCL_GPU_CONTEXT_H

#include "core/core.h"
#include "nic/nic.h"
#include "request/request.h"

struct gpu_context {
    const struct params *params;
    struct counters *counters;
    struct core *core;
    struct nic_queue *queue;
    int numa_node;            /* of the NIC; -1: unknown */
    bool places;              /* the NIC places payload */
    _Atomic uint32_t *staged; /* requests with staged memory that have not ended: whoever ends one takes it off */
    void (*ended)(void *owner, struct uccl_request *request); /* it is over for good */
    void *owner;
};

#endif
