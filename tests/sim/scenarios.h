/* SPDX-License-Identifier: Apache-2.0 */
/* Named scenarios of both worlds: two real cores (sim.c), whole engines (engines.c). */
#ifndef SIM_SCENARIOS_H
#define SIM_SCENARIOS_H

#include <stdbool.h>
#include <stdint.h>

/* What one run of one seed was. */
struct run_result {
    uint64_t hash, sim_ns, messages, bytes, datagrams, faults;
};

struct scenario {
    const char *name;
    /* Plays one seed. Returns only if all was well. */
    void (*run)(const struct scenario *scenario, uint64_t seed, bool print_trace, struct run_result *result);
    void (*set)(void); /* of the type that `run` knows */
};

unsigned core_scenarios(const struct scenario **out);
unsigned engine_scenarios(const struct scenario **out);

#endif
