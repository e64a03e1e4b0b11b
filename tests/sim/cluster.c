/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include "../../api/budget.h"
#include "../lies.h"
#include "base/config.h"
#include "repeats.h"
#include "request/request.h"
#include "seam.h"
#include "unequal.h"

#include "../../api/objects.h"

#include <assert.h>
#include <stdio.h>

enum {
    SETTLE_NS = 100000000,
    WATCH_NS = 7000000,  /* well above the longest lease */
    WATCH_PREEMPTED = 8, /* times that a round is interrupted, at most */
    WATCH_PREEMPTS = 64, /* who is preempted more often may be slower than that */
};

struct cluster cluster;

/* ---- what engines ask for -------------------------------------------------------------------- */

int config_resolve(const uccl_config *config, struct params *out)
{
    (void)config;
    *out = ((struct node *)machine_process()->owner)->params;
    out->backend = cluster.options.params.backend; /* nic_sim.c and nic_pipes.c stand in for them */
    return UCCL_OK;
}

void config_format(const struct params *params, size_t offset, char *out, size_t size)
{
    snprintf(out, size, "%u", *(const unsigned *)(const void *)((const char *)params + offset));
}

static uint32_t address_of(const struct process *process)
{
    return ADDRESS_FIRST + process->index;
}

static struct process *find_process(uint32_t address)
{
    uint32_t index = address - ADDRESS_FIRST;
    if (index >= cluster.options.nodes || !cluster.nodes[index].up)
        return NULL;
    return cluster.nodes[index].process;
}

/* ---- sessions -------------------------------------------------------------------------------- */

bool cluster_hostile_node(unsigned node)
{
    return node + 1 == cluster.options.hostile;
}

bool cluster_hostile_relation(const struct relation *relation)
{
    return cluster_hostile_node(relation->client) || cluster_hostile_node(relation->server);
}

bool cluster_hostile(const struct session *session)
{
    return cluster_hostile_relation(session->relation);
}

struct session *cluster_session(struct relation *relation)
{
    const struct cluster_options *options = &cluster.options;
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        abort();
    session->index = cluster.session_count++;
    session->relation = relation;
    session->next = cluster.sessions;
    cluster.sessions = session;
    relation->last = session;
    for (unsigned i = 0; i < 2; i++) {
        struct side *side = &session->sides[i];
        side->session = session;
        side->index = i;
        side->close_ns = UINT64_MAX;
        for (unsigned kind = 0; kind < KINDS; kind++) {
            side->streams[kind].side = side;
            side->streams[kind].kind = kind;
            side->streams[kind].live_tail = &side->streams[kind].live;
        }
    }
    if (options->close_early && cluster_random(3)) {
        struct side *first = &session->sides[cluster_random(2)];
        first->close_ns = cluster_random(1u << (14 + cluster_random(12)));
        if (cluster_random(4) == 0)
            session->sides[!first->index].close_ns = cluster_random(1u << 22);
    }
    for (unsigned i = 0; i < 2 && cluster_hostile_relation(relation); i++)
        session->sides[i].close_ns = cluster_random(1u << (16 + cluster_random(10)));
    traffic_plan(session);
    return session;
}

/* A worker that waits for a liar has no time for others: with a hostile node, worker 0 serves what it is in. */
static unsigned worker_of(const struct session *session, const struct node *node, unsigned kind)
{
    if (!cluster.options.hostile)
        return (session->index + kind) % node->workers;
    return cluster_hostile(session) ? 0 : 1 + (session->index + kind) % (node->workers - 1);
}

void cluster_attach(struct side *side, struct node *node, uccl_conn *conn)
{
    side->node = node;
    side->conn = conn;
    side->state = SIDE_OPEN;
    side->next = node->sides;
    node->sides = side;
    if (side->close_ns != UINT64_MAX)
        side->close_ns += machine.now_ns;
    for (unsigned kind = 0; kind < KINDS; kind++)
        side->streams[kind].worker = worker_of(side->session, node, kind);
    cluster.sides_alive++;
    machine_note("open", side->session->index * 2 + side->index, node->index, node->life);
    traffic_wake(node);
}

/* ---- the end of it all ----------------------------------------------------------------------- */

static void check_finish(void)
{
    if (cluster.finishing || cluster.sides_alive || cluster.opening || cluster.restarts_due || cluster.crashes_left)
        return;
    cluster.finishing = true;
    machine_note("finish", 0, 0, 0);
    for (unsigned i = 0; i < cluster.options.nodes; i++) {
        struct node *node = &cluster.nodes[i];
        if (!node->up)
            continue;
        traffic_wake(node);
        machine_wake(node->process, &cluster, UINT32_MAX);
    }
}

void cluster_opening(struct node *node)
{
    node->opening++;
    cluster.opening++;
}

void cluster_opened(struct node *node)
{
    node->opening--;
    cluster.opening--;
    check_finish();
}

/* Neighbours of a hostile node have nothing from it, not even delay. */
static void honest_over(const struct session *session)
{
    if (cluster.options.honest_ns && machine.now_ns > cluster.options.honest_ns)
        machine_fail("session %u, between honest nodes, is over at %.3f ms", session->index,
                     (double)machine.now_ns / 1e6);
}

void cluster_side_over(struct side *side)
{
    struct relation *relation = side->session->relation;
    side->state = SIDE_OVER;
    struct side **link = &side->node->sides;
    while (*link != side)
        link = &(*link)->next;
    *link = side->next;
    cluster.sides_alive--;
    if (cluster.options.hostile && !cluster_hostile(side->session))
        honest_over(side->session);
    bool again = (cluster.options.crashes || cluster.options.stops) && side->index == 0 && side->failed &&
                 !relation->done && side->session == relation->last && cluster.nodes[relation->client].up;
    if (again)
        connecting_start(relation, cluster_random(50000000));
    check_finish();
}

/* ---- a node ---------------------------------------------------------------------------------- */

static uint64_t counter(const struct node *node, const char *name)
{
    uint64_t value;
    if (uccl_counter_by_name(node->engine, name, &value))
        machine_fail("no counter %s", name);
    return value;
}

/* The engine may be about to send, or to count what it has received: what differs is looked at again. */
enum { LOOKS = 4 };
#define LOOK_AGAIN_NS UINT64_C(10000000)

static void check_equal(const struct node *node, const char *name, const uint64_t *seen)
{
    for (unsigned looks = 1;; looks++) {
        uint64_t counted = counter(node, name);
        if (counted == *seen)
            return;
        if (looks == LOOKS)
            machine_fail("node %u: %s is %llu, and in truth it is %llu", node->index, name, (unsigned long long)counted,
                         (unsigned long long)*seen);
        machine_sleep(LOOK_AGAIN_NS);
    }
}

/* What has been received is of a flow, of a stranger, or malformed. */
static void check_received(const struct node *node, const struct nic_sim_counts *counts)
{
    for (unsigned looks = 1;; looks++) {
        uint64_t known = counter(node, "rx_datagrams") + counter(node, "rx_strangers");
        uint64_t malformed = counter(node, "rx_malformed");
        if (known <= counts->polled + counts->on_path && counts->polled <= known + malformed)
            return;
        if (looks == LOOKS)
            machine_fail("node %u took %llu datagrams, and counts %llu of flows and strangers", node->index,
                         (unsigned long long)counts->polled, (unsigned long long)known);
        machine_sleep(LOOK_AGAIN_NS);
    }
}

/* No engine refuses a frame of an honest peer that came as it was sent, however late its own threads are. */
static void check_understood(const struct node *node)
{
    const struct cluster_options *options = &cluster.options;
    uint64_t malformed = counter(node, "rx_malformed");
    if (malformed && !options->hostile && !options->fabric.corrupt_ppm && !options->fabric.truncate_ppm)
        machine_fail("node %u refuses %llu frames of honest peers", node->index, (unsigned long long)malformed);
}

/* What the engine counted against what application and network saw. */
static void check_counters(const struct node *node)
{
    const struct nic_sim_counts *counts = nic_sim_counts(node->index);
    const struct repeats *sent = nic_sim_repeats(node->index);
    check_equal(node, "msgs_sent", &node->sends);
    check_equal(node, "msgs_received", &node->receives);
    check_equal(node, "bytes_sent", &node->bytes_sent);
    check_equal(node, "bytes_received", &node->bytes_received);
    check_equal(node, "tx_datagrams", &counts->sent);
    if (cluster.options.params.backend != BACKEND_AUTO) /* a record may go again as several datagrams */
        check_equal(node, "retransmits", &sent->count);
    check_equal(node, "tx_chunks", &sent->chunks);
    check_equal(node, "tx_placed", &sent->written);
    check_received(node, counts);
    check_understood(node);
}

/* Every request is back in the pool. */
static void check_pool(const struct node *node)
{
    const struct request_pool *pool = &node->engine->requests;
    for (uint32_t i = 0; i < pool->slab_count; i++) {
        for (uint32_t k = 0; k < SLAB_REQUESTS && i * SLAB_REQUESTS + k < pool->request_max; k++) {
            if (pool->slabs[i][k].state != REQUEST_FREE)
                machine_fail("node %u: request %u was not returned", node->index, i * SLAB_REQUESTS + k);
        }
    }
}

/*
 * Whom it has met once shares the flows of all connections, in each direction of connecting. A server that has not met
 * its client, which gave the handshake up, also keeps the flows for two seconds. Later connections do not join them:
 * the client never had their tokens, or has forgotten them.
 */
static void check_peers(const struct node *node)
{
    for (const struct peer *peer = node->engine->peers.peers; peer; peer = peer->next) {
        for (const struct peer *other = peer->next; other; other = other->next) {
            bool both_met = peer->met && other->met && peer->is_server == other->is_server;
            if (both_met && memcmp(peer->engine_id, other->engine_id, 16) == 0)
                machine_fail("node %u has met one engine twice", node->index);
        }
    }
}

static void check_count(const struct node *node, const char *what, uint64_t count, uint64_t expected)
{
    if (count != expected)
        machine_fail("node %u has %llu %s, not %llu", node->index, (unsigned long long)count, what,
                     (unsigned long long)expected);
}

/* One that has closed acks nothing any more. */
static bool all_serve(void)
{
    for (unsigned i = 0; i < cluster.options.nodes; i++) {
        if (!cluster.nodes[i].serving)
            return false;
    }
    return true;
}

void cluster_check_budget(const struct node *node, bool all)
{
    struct budget budget;
    engine_budget(node->engine, &budget);
    check_count(node, "connections", budget.conns, budget.abandoned_conns);
    check_count(node, "connects under way", budget.connecting, 0);
    check_count(node, "registrations", budget.registrations, 0);
    check_count(node, "regions", budget.regions, budget.idle_regions);
    check_count(node, "requests with staged memory", budget.staged, 0);
    if (budget.conn_ids > budget.conns + budget.kept_conns + budget.handshakes)
        machine_fail("node %u has %llu connection ids for %llu connections", node->index,
                     (unsigned long long)budget.conn_ids, (unsigned long long)budget.conns);
    check_count(node, "flow slots", budget.flow_slots, budget.peers * node->engine->thread_count);
    if (!all)
        return;
    check_count(node, "connections that nobody waits for", budget.abandoned_conns, 0);
    check_count(node, "connections that a device keeps", budget.kept_conns, 0);
    check_count(node, "connection ids", budget.conn_ids, 0);
    check_count(node, "handshakes", budget.handshakes, 0);
    check_count(node, "peers whose handshake has not ended", budget.unmet_peers, 0);
    check_count(node, "requests", budget.requests, 0);
    /* a NIC may refuse the last ack of an engine that closes, and a cut rail swallow it or a search for its MTU */
    if (all_serve() && !cluster.options.nic.refuse_ppm && !cluster.options.nic.nics)
        check_count(node, "buffers in use", budget.buffers, 0);
}

static void end_node(struct node *node)
{
    machine_sleep(SETTLE_NS + cluster_random(SETTLE_NS));
    while (node->helpers)
        machine_sleep(1000000);
    if (!cluster.options.script)
        check_counters(node);
    check_pool(node);
    const struct cluster_options *options = &cluster.options;
    cluster_check_budget(node, options->script && !options->crashes && !options->stops && !options->hostile);
    if (cluster.options.meets_once)
        check_peers(node);
    if (cluster_random(2) && node->listener)
        uccl_listener_close(node->listener);
    node->serving = false;
    int error = uccl_close(node->engine);
    if (error)
        machine_fail("uccl_close() returned %d", error);
    if (node->process->allocation_count)
        machine_fail("node %u: %llu pieces of memory were not freed", node->index,
                     (unsigned long long)node->process->allocation_count);
    if (sockets_open(node->process))
        machine_fail("node %u: %u descriptors were not closed", node->index, sockets_open(node->process));
    machine_note("down", node->index, node->life, 0);
    node->up = false;
    node->ended = true;
}

/* Whoever accepts, connects, sends and receives. */
static void start_traffic(struct node *node)
{
    node->helpers = 1 + node->workers;
    machine_spawn(node->process, connecting_accept, node);
    for (unsigned i = 0; i < node->workers; i++) {
        struct worker *worker = sim_malloc(sizeof *worker);
        *worker = (struct worker){node, i};
        machine_spawn(node->process, traffic_worker, worker);
    }
    for (unsigned i = 0; i < cluster.relation_count; i++) {
        struct relation *relation = &cluster.relations[i];
        if (relation->client == node->index && !relation->done)
            connecting_start(relation, cluster_random(2000000));
    }
}

static void node_main(void *argument)
{
    struct node *node = argument;
    if (uccl_open(NULL, &node->engine))
        machine_fail("node %u cannot open an engine", node->index);
    if (uccl_listen(node->engine, -1, LISTEN_PORT, &node->handle, &node->listener))
        machine_fail("node %u cannot listen", node->index);
    node->known = node->serving = true;
    machine_note("up", node->index, node->life, node->params.num_engines);
    if (cluster.options.script)
        cluster.options.script(node);
    else
        start_traffic(node);
    if (node->life)
        cluster.restarts_due--;
    node->started = true;
    cluster_opened(node); /* since start_node() */
    while (!cluster.finishing)
        machine_park(&cluster, UINT64_MAX);
    end_node(node);
}

/* Nodes differ, and so do the lives of a node. */
static struct params node_params(struct rng *rng)
{
    struct params params = cluster.options.params;
    if (!cluster.options.mixed)
        return params;
    params.num_engines = 1 + cluster_random((unsigned)params.num_engines);
    params.lend = cluster_random(2) ? LEND_YES : LEND_NO;
    params.spin_us = cluster_random(3) ? cluster_random(10) : 0;
    if (cluster.options.unequal) {
        unequal_params(&params, rng);
        unequal_windows(&params, rng);
    }
    return params;
}

static void start_node(struct node *node)
{
    const struct cluster_options *options = &cluster.options;
    struct process *process = calloc(1, sizeof *process);
    if (!process)
        abort();
    *process = (struct process){.index = node->index,
                                .owner = node,
                                .clock_offset_ns = rng_next(&cluster.rng) >> 16,
                                .preempt_every = options->preempt_every,
                                .preempt_ns = options->preempt_ns};
    if (options->drift_ppm)
        process->clock_drift_ppm = (int32_t)cluster_random(2 * options->drift_ppm) - (int32_t)options->drift_ppm;
    process->next = cluster.processes;
    cluster.processes = process;
    node->process = process;
    struct rng rng = {cluster.seed ^ (UINT64_C(1) << 40) * (node->index + 1) ^ (UINT64_C(1) << 32) * node->life};
    node->params = node_params(&rng);
    memset(node->heads, 0xff, sizeof node->heads);
    node->workers = 1 + cluster_random(options->workers) + (options->hostile != 0);
    node->sends = node->receives = node->bytes_sent = node->bytes_received = 0;
    node->up = true;
    struct nic_sim_options nic = options->nic;
    if (options->mixed && options->unequal) {
        nic.datagram_bytes = unequal_datagram(nic.datagram_bytes, &rng);
        nic.rx_bytes = (uint32_t)unequal_buffer(nic.rx_bytes, &rng);
        nic.gro = rng_below(&rng, 2);
        nic.in_place = rng_below(&rng, 2) && nic.in_place; /* where bytes are damaged it must not */
    }
    nic.address = address_of(process);
    nic.guarded = node->index < 64 && options->guarded >> node->index & 1;
    nic.lies_permille = cluster_hostile_node(node->index) ? options->lies_permille : 0;
    nic.lie_gap_ns = cluster_hostile_node(node->index) ? options->lie_gap_ns : 0;
    nic.habit = cluster_hostile_node(node->index) ? options->habit : LIAR_HONEST;
    nic_sim_set(node->index, &nic);
    cluster_opening(node);
    machine_spawn(process, node_main, node);
}

/* ---- crashes --------------------------------------------------------------------------------- */

static void restart(void *what, uint64_t extra)
{
    struct node *node = what;
    (void)extra;
    node->life++;
    start_node(node);
}

static void kill_sides(struct node *node)
{
    for (struct session *session = cluster.sessions; session; session = session->next) {
        for (unsigned i = 0; i < 2; i++) {
            struct side *side = &session->sides[i];
            unsigned index = i ? session->relation->server : session->relation->client;
            if (index == node->index && side->state == SIDE_OVER)
                side->muted = true;
            if (index != node->index || side->state == SIDE_OVER || side->killed)
                continue;
            if (side->state != SIDE_ABSENT) {
                traffic_kill(side);
                side->state = SIDE_OVER;
                cluster.sides_alive--;
            }
            side->killed = true;
            side->killed_ns = machine.now_ns;
        }
    }
    node->sides = NULL;
}

static void crash(void *what, uint64_t extra)
{
    const struct cluster_options *options = &cluster.options;
    struct node *node = &cluster.nodes[cluster_random(options->nodes)];
    (void)what;
    (void)extra;
    if (--cluster.crashes_left)
        machine_at(machine.now_ns + cluster_random((uint32_t)options->crash_ns), crash, NULL, 0);
    if (!node->up || cluster.finishing) {
        check_finish();
        return;
    }
    machine_note("crash", node->index, node->life, 0);
    cluster.crashes++;
    if (!node->started) /* while it was being restarted */
        cluster.restarts_due -= node->life != 0;
    sockets_kill(node->process);
    nic_sim_kill(node->index);
    payload_kill(node->process);
    machine_kill(node->process); /* last: its memory goes */
    kill_sides(node);
    cluster.opening -= node->opening;
    node->opening = node->helpers = 0;
    node->up = node->serving = node->started = false;
    cluster.restarts_due++;
    machine_at(machine.now_ns + cluster_random((uint32_t)options->down_ns), restart, node, 0);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void add_relation(unsigned client, unsigned server)
{
    for (unsigned i = 0; i < cluster.options.sessions; i++)
        cluster.relations[cluster.relation_count++] = (struct relation){.client = client, .server = server};
}

/* Either may be the client. */
static void add_either(unsigned a, unsigned b)
{
    if (cluster_random(2))
        add_relation(a, b);
    else
        add_relation(b, a);
}

static void make_relations(void)
{
    const struct cluster_options *options = &cluster.options;
    unsigned nodes = options->nodes;
    size_t pairs = options->pattern == PATTERN_ALL ? (size_t)nodes * nodes : nodes;
    cluster.relations = calloc(pairs * options->sessions, sizeof *cluster.relations);
    if (!cluster.relations)
        abort();
    for (unsigned i = 0; i < nodes; i++) {
        if (options->pattern == PATTERN_SELF)
            add_relation(i, i);
        else if (options->pattern == PATTERN_STAR && i)
            add_either(0, i);
        for (unsigned k = i + 1; options->pattern == PATTERN_ALL && k < nodes; k++)
            add_either(i, k);
        if (options->pattern == PATTERN_CHAIN && i + 1 < nodes)
            add_relation(i, i + 1);
    }
}

static void change_datagrams(void *what, uint64_t extra)
{
    (void)what;
    (void)extra;
    for (unsigned i = 0; i < cluster.options.nodes; i++)
        nic_sim_change_datagram(i, cluster.options.datagram_later_bytes);
}

static uint64_t watch_ns(void)
{
    const struct cluster_options *options = &cluster.options;
    return WATCH_NS + (options->preempt_every ? WATCH_PREEMPTED * (uint64_t)options->preempt_ns : 0);
}

/* What is posted is taken soon: no command lies in a ring for the whole time between two looks. */
static void watch(void *what, uint64_t extra)
{
    (void)what;
    (void)extra;
    for (unsigned i = 0; i < cluster.options.nodes; i++) {
        struct node *node = &cluster.nodes[i];
        if (node_stopped_ns(node, machine.now_ns - watch_ns(), machine.now_ns)) {
            memset(node->heads, 0xff, sizeof node->heads);
            continue;
        }
        for (unsigned k = 0; node->serving && k < node->engine->thread_count; k++) {
            const struct ring *ring = &node->engine->threads[k].ring;
            if (ring_busy(ring) && ring->head == node->heads[k])
                machine_fail("engine thread %u of node %u does not look into its ring", k, i);
            node->heads[k] = ring_busy(ring) ? ring->head : UINT64_MAX;
        }
        for (struct side *side = node->sides; side; side = side->next)
            traffic_watch(side);
    }
    if (!cluster.finishing)
        machine_at(machine.now_ns + watch_ns(), watch, NULL, 0);
}

/* How long it may take, from what is asked for and what goes wrong. */
static uint64_t limit_ns(void)
{
    const struct cluster_options *options = &cluster.options;
    const struct fabric_options *fabric = &options->fabric;
    const struct params *params = &options->params;
    uint64_t per_node = (uint64_t)cluster.relation_count * 2 / options->nodes + 1;
    if (options->pattern == PATTERN_STAR)
        per_node = cluster.relation_count + 1;
    uint64_t messages = per_node * options->messages;
    uint64_t bytes = messages * (options->size_min > 4000 ? options->size_max : options->size_max / 4 + 4000);
    uint64_t rate = fabric->host_mbps < fabric->spine_mbps || !fabric->spines ? fabric->host_mbps : fabric->spine_mbps;
    uint64_t limit = UINT64_C(3000000000) + bytes * 8000 / rate * 10 + options->script_ns;
    limit += messages * (options->post_gap_ns + options->recv_gap_ns + options->preempt_ns + 200000);
    limit += messages * (fabric->loss_ppm + fabric->truncate_ppm + fabric->corrupt_ppm + fabric->burst_ppm * 10) /
             1000000 * params->rto_min_us * 1000 * 10;
    for (unsigned i = 0; i < fabric->outage_count; i++) {
        if (fabric->outages[i].end_ns != UINT64_MAX)
            limit += 3 * (fabric->outages[i].end_ns - fabric->outages[i].begin_ns);
    }
    limit += (options->crashes + options->expect_dead + 1) * (options->crash_ns + options->down_ns) * 2;
    limit += (options->crashes + options->expect_dead + 1) * (params->dead_peer_ms + params->linger_ms) * 4000000;
    limit += 2 * options->stops *
             (options->stop_ns + 2 * options->stop_gap_ns + (params->dead_peer_ms + params->linger_ms) * 1000000);
    if (options->hostile)
        limit += DEAD_ATTEMPTS * (2 * HELLO_MS + params->connect_ms) * UINT64_C(1000000);
    return limit;
}

static void report(void)
{
    printf("# %u nodes, %u relations, %u sessions, %u sides alive, %u opening, %u crashes left, %u restarts due%s\n",
           cluster.options.nodes, cluster.relation_count, cluster.session_count, cluster.sides_alive, cluster.opening,
           cluster.crashes_left, cluster.restarts_due, cluster.finishing ? ", finishing" : "");
    for (const struct session *session = cluster.sessions; session; session = session->next) {
        for (unsigned i = 0; i < 2; i++) {
            static const char *const states[] = {"absent", "open", "closing", "closed", "over"};
            const struct side *side = &session->sides[i];
            if (side->state == SIDE_OVER && !side->killed)
                continue;
            printf(
                "# session %u side %u (node %u): %s%s%s, sends %u of %u with %u live, receives %u of %u with %u live\n",
                session->index, i, i ? session->relation->server : session->relation->client, states[side->state],
                side->failed ? ", failed" : "", side->killed ? ", killed" : "", side->streams[SEND].posted,
                session->count[i], side->streams[SEND].live_count, side->streams[RECV].posted, session->count[!i],
                side->streams[RECV].live_count);
        }
    }
    const struct fabric_counts *counts = &fabric_counts;
    printf("# datagrams: %llu sent, %llu duplicated, %llu delivered, %llu damaged, %llu marked, %llu reordered, %llu "
           "in flight;"
           " dropped:",
           (unsigned long long)counts->sent, (unsigned long long)counts->duplicated,
           (unsigned long long)counts->delivered, (unsigned long long)counts->damaged,
           (unsigned long long)counts->marked, (unsigned long long)counts->reordered,
           (unsigned long long)counts->in_flight);
    for (unsigned i = 0; i < DROP_KINDS; i++)
        printf(" %s %llu", fabric_drop_names[i], (unsigned long long)counts->dropped[i]);
    printf("\n");
}

static void begin(const struct cluster_options *options, uint64_t seed, bool print_trace)
{
    connects_forget();
    machine_begin(seed, print_trace);
    machine.on_fail = report;
    cluster = (struct cluster){.options = *options, .seed = seed, .rng = {seed ^ UINT64_C(0x5deece66d)}};
    cluster.nodes = calloc(options->nodes, sizeof *cluster.nodes);
    if (!cluster.nodes)
        abort();
    payload_begin();
    device_options = options->device;
    mem_set_test_kind(&sim_device_ops);
    struct fabric_options fabric = options->fabric;
    fabric.nics = options->nic.nics;
    fabric_begin(&fabric, options->nodes, rng_next(&machine.rng), nic_sim_deliver);
    nic_sim_begin(options->nodes);
    struct sim_pipe_options pipes = options->pipes;
    pipes.seed = seed ^ UINT64_C(0x7c65b0a1);
    nic_pipes_begin(&pipes);
    sockets_begin(&options->sockets, find_process, address_of);
    make_relations();
    machine.limit_ns = limit_ns();
    for (unsigned i = 0; i < options->nodes; i++) {
        cluster.nodes[i].index = i;
        start_node(&cluster.nodes[i]);
    }
    node_stops_plan(seed);
    cluster.crashes_left = options->crashes;
    if (options->crashes)
        machine_at(cluster_random((uint32_t)options->crash_ns), crash, NULL, 0);
    if (options->preempt_every == 0 || options->preempt_every > WATCH_PREEMPTS)
        machine_at(watch_ns(), watch, NULL, 0);
    if (options->change_datagram_ns)
        machine_at(options->change_datagram_ns, change_datagrams, NULL, 0);
}

static void end(void)
{
    while (cluster.sessions) {
        struct session *session = cluster.sessions;
        cluster.sessions = session->next;
        traffic_free(session);
        free(session);
    }
    while (cluster.processes) {
        struct process *process = cluster.processes;
        cluster.processes = process->next;
        free(process);
    }
    free(cluster.nodes);
    free(cluster.relations);
    payload_end();
    fabric_end();
    nic_sim_end();
    sockets_end();
    machine_end();
}

static bool all_ended(void)
{
    for (unsigned i = 0; i < cluster.options.nodes; i++) {
        if (!cluster.nodes[i].ended)
            return false;
    }
    return true;
}

static void check_relations(void)
{
    const struct cluster_options *options = &cluster.options;
    for (unsigned i = 0; i < cluster.relation_count; i++) {
        const struct relation *relation = &cluster.relations[i];
        if (!relation->done && !options->close_early && !options->expect_dead && !cluster_hostile_relation(relation))
            machine_fail("node %u never finished with node %u", relation->client, relation->server);
    }
}

static uint64_t faults(void)
{
    const struct fabric_counts *counts = &fabric_counts;
    uint64_t sum = counts->duplicated + counts->damaged + counts->reordered + cluster.crashes;
    for (unsigned i = 0; i < DROP_KINDS; i++)
        sum += counts->dropped[i];
    return sum;
}

void cluster_run(const struct cluster_options *options, uint64_t seed, bool print_trace, struct cluster_result *result)
{
    begin(options, seed, print_trace);
    while (!all_ended() || fabric_counts.in_flight) {
        if (!machine_step())
            machine_fail("nothing will ever happen, and not all is over");
    }
    fabric_check();
    for (const struct session *session = cluster.sessions; session; session = session->next)
        traffic_check(session);
    check_relations();
    *result = (struct cluster_result){.hash = machine.trace.hash,
                                      .sim_ns = machine.now_ns,
                                      .messages = cluster.messages,
                                      .bytes = cluster.bytes,
                                      .datagrams = fabric_counts.sent,
                                      .faults = faults(),
                                      .switches = machine.switches};
    end();
}
