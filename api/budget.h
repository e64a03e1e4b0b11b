/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine has in use, counted for tests: after everything that a test has made is gone, the counts are what
 * they were. Not a part of the public API.
 */
#ifndef UCCL_BUDGET_H
#define UCCL_BUDGET_H

#include <stdint.h>

struct uccl_engine;

struct budget {
    uint64_t peers, unmet_peers; /* known; and of them those whose handshake has not ended */
    uint64_t flow_slots;         /* of all engine threads */
    uint64_t flows;              /* open in the cores */
    uint64_t conns;              /* that the application has, or that have not ended yet */
    uint64_t abandoned_conns;    /* of them: nobody waits for their end */
    uint64_t kept_conns;         /* closed, but a device does not let go of their requests */
    uint64_t conn_ids;
    uint64_t connecting;         /* connects under way that never block */
    uint64_t listeners, handshakes; /* under way at these */
    uint64_t registrations;
    uint64_t regions, idle_regions; /* of the registration cache; idle: of which nothing is registered */
    uint64_t requests;           /* not in the pool */
    uint64_t buffers;            /* of cores: chunks in flight, frames */
    uint64_t staged;             /* requests that have staged memory */
};

/* Frees first what has ended meanwhile, as any call would. Any thread but an owner of an engine thread. */
void engine_budget(struct uccl_engine *engine, struct budget *out);

#endif
