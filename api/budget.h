/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what an engine has in use, for tests: once a test has freed all that it made, the counts are as before. Not a
 * part of the public API.
 */
#ifndef UCCL_BUDGET_H
#define UCCL_BUDGET_H

#include <stdint.h>

struct uccl_engine;

struct budget {
    uint64_t peers, unmet_peers; /* unmet: no handshake has succeeded yet */
    uint64_t flow_slots;         /* of all engine threads */
    uint64_t flows;              /* open in the cores */
    uint64_t conns;              /* open, or not over yet */
    uint64_t abandoned_conns;    /* of them: nobody waits until they are over */
    uint64_t kept_conns;         /* closed, but a hung device keeps their requests */
    uint64_t conn_ids;
    uint64_t connecting;            /* connects under way that never block */
    uint64_t listeners, handshakes; /* handshakes under way at listeners */
    uint64_t registrations;
    uint64_t regions, idle_regions; /* of the registration cache; idle: without a registration */
    uint64_t requests;              /* outside the pool */
    uint64_t buffers;               /* of cores: chunks in flight, frames */
    uint64_t staged;                /* requests with staged memory */
};

/* First frees connections that are over, as other calls do. Any thread but an owner of an engine thread. */
void engine_budget(struct uccl_engine *engine, struct budget *out);

#endif
