/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that stop and continue: when, and what that excuses. */
#include "cluster.h"

static uint64_t up_to(struct rng *rng, uint64_t most_ns)
{
    return most_ns ? rng_next(rng) % most_ns : 0;
}

static void stop_now(void *what, uint64_t until_ns)
{
    struct node *node = what;
    if (!node->up)
        return;
    machine_note("stop", node->index, node->life, until_ns - machine.now_ns);
    machine_stop(node->process, until_ns);
}

void node_stops_plan(uint64_t seed)
{
    const struct cluster_options *options = &cluster.options;
    struct rng rng = {seed ^ UINT64_C(0x73746f7073)}; /* of their own: scenarios without stops stay as they are */
    for (unsigned i = 0; i < options->nodes; i++) {
        struct node *node = &cluster.nodes[i];
        uint64_t at_ns = up_to(&rng, options->stop_gap_ns);
        for (unsigned k = 0; k < options->stops; k++) {
            struct stop *stop = &node->stops[k];
            stop->begin_ns = at_ns;
            stop->end_ns = at_ns + up_to(&rng, options->stop_ns);
            at_ns = stop->end_ns + options->stop_gap_ns + up_to(&rng, options->stop_gap_ns);
            machine_at(stop->begin_ns, stop_now, node, stop->end_ns);
        }
        node->stop_count = options->stops;
    }
}

uint64_t node_stopped_ns(const struct node *node, uint64_t from_ns, uint64_t until_ns)
{
    uint64_t sum_ns = 0;
    for (unsigned i = 0; i < node->stop_count; i++) {
        const struct stop *stop = &node->stops[i];
        uint64_t begin_ns = stop->begin_ns > from_ns ? stop->begin_ns : from_ns;
        uint64_t end_ns = stop->end_ns < until_ns ? stop->end_ns : until_ns;
        sum_ns += end_ns > begin_ns ? end_ns - begin_ns : 0;
    }
    return sum_ns;
}

static uint64_t ran_ns(const struct node *node, uint64_t from_ns, uint64_t until_ns)
{
    return until_ns > from_ns ? until_ns - from_ns - node_stopped_ns(node, from_ns, until_ns) : 0;
}

/*
 * `own` ran meanwhile for long enough to give `other` up. What was lost before a stop is not known here: three quarters
 * are enough. Stops of `other` between which `own` did not run are one silence: what is sent to a stopped node waits in
 * its socket, and may find no room there.
 */
static bool outlasted(const struct node *own, const struct node *other)
{
    uint64_t silent_ns = 0;
    for (unsigned i = 0; i < other->stop_count && other->stops[i].begin_ns < machine.now_ns; i++) {
        const struct stop *stop = &other->stops[i];
        uint64_t end_ns = stop->end_ns < machine.now_ns ? stop->end_ns : machine.now_ns;
        if (i == 0 || ran_ns(own, other->stops[i - 1].end_ns, stop->begin_ns))
            silent_ns = 0;
        silent_ns += ran_ns(own, stop->begin_ns, end_ns);
        if (silent_ns >= cluster.options.params.dead_peer_ms * UINT64_C(750000))
            return true;
    }
    return false;
}

bool node_stops_excuse(const struct session *session)
{
    const struct node *client = &cluster.nodes[session->relation->client],
                      *server = &cluster.nodes[session->relation->server];
    return outlasted(client, server) || outlasted(server, client);
}
