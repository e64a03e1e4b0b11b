/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include "core/units.h"
#include "request/request.h"
#include "seam.h"

#include "../../api/budget.h"
#include "../../api/objects.h"

#include <stdio.h>

enum { STREAMS_MAX = 8, OUTSTANDING = 12, DIAL_MS = 3000, HELLO_BYTES = 1 };

/* Plain memory; other scenarios judge what is in it. */
enum { MEMORY_BYTES = 16 << 20 };
static uint8_t memory[MEMORY_BYTES];

/* One direction of a connection, as the application has it. */
struct stream_plan {
    struct node *from, *to;
    uccl_conn *sends, *receives; /* its ends, once there */
    uint64_t bytes;              /* of a message */
    uint64_t arrived_bytes;      /* within the window */
    uint64_t first_ns, last_ns;  /* when its first and last message there arrived */
    bool stopped;                /* its receiver is */
};

/* What all nodes know: the script is one, though its lines are on several nodes. */
enum { LIVES = 80 }; /* of a client that meets a server */

static struct service {
    unsigned streams, ready; /* nodes that have connected */
    bool begun;
    struct stream_plan stream[STREAMS_MAX];
    uint64_t from_ns, until_ns; /* the window */
    uint64_t rate_mbps;         /* 0: not known */
    uint64_t least_mbps;        /* of all streams */
    unsigned outstanding;       /* messages of a stream */
    bool inward;                /* all streams to node 0; else from it */
    bool one_peer;              /* all streams are connections of one flow */
    bool stops;                 /* the last stream's receiver stops */
    uint64_t ping_ns;           /* longest round trip */
    uint32_t pause_ns;          /* longest, between two lives */
    uint64_t ended_ns[LIVES];

    /* service_wait() */
    unsigned posted[STREAMS_MAX], heard[STREAMS_MAX];
    uint64_t sent_ns[STREAMS_MAX];
    bool quick[STREAMS_MAX]; /* the sender waits at once, or its engine is not lent */
    uint64_t slowest_ns, latest_ns;

    /* service_accept() */
    unsigned accepted, expected;
    uint64_t dialed_ns[STREAMS_MAX];
    bool met[STREAMS_MAX];
} service;

/* ---- what scripts are made of ---------------------------------------------------------------- */

static void most(const char *what, uint64_t took_ns, uint64_t most_ns)
{
    if (took_ns > most_ns)
        machine_fail("%s took %.3f us, of %.3f us", what, (double)took_ns / 1e3, (double)most_ns / 1e3);
}

/* A call that waited for a time which passed: not earlier, and not much later. */
static void timed(const char *what, uint64_t begun_ns, int timeout_ms)
{
    enum { LATE_NS = 5 * NS_PER_MS }; /* poll() counts milliseconds; an engine is asked for in pieces of one */
    uint64_t took_ns = machine.now_ns - begun_ns, wanted_ns = (uint64_t)timeout_ms * NS_PER_MS;
    if (took_ns < wanted_ns)
        machine_fail("%s of %d ms gave up after %.3f ms", what, timeout_ms, (double)took_ns / 1e6);
    most(what, took_ns - wanted_ns, LATE_NS);
    if (took_ns - wanted_ns > service.latest_ns)
        service.latest_ns = took_ns - wanted_ns;
}

static void await(const bool *condition)
{
    while (!*condition)
        machine_sleep(10 * NS_PER_US);
}

struct helper {
    struct node *node;
    unsigned index;
    void (*run)(struct node *node, unsigned index);
};

static void helper_main(void *argument)
{
    struct helper helper = *(struct helper *)argument;
    sim_free(argument);
    helper.run(helper.node, helper.index);
    helper.node->helpers--;
}

void node_spawn(struct node *node, void (*run)(struct node *, unsigned), unsigned index)
{
    struct helper *helper = sim_malloc(sizeof *helper);
    *helper = (struct helper){node, index, run};
    node->helpers++;
    machine_spawn(node->process, helper_main, helper);
}

static void join(const struct node *node)
{
    while (node->helpers)
        machine_sleep(10 * NS_PER_US);
}

static uccl_conn *dial(const struct node *node, const struct node *server)
{
    uccl_conn *conn;
    await(&server->known);
    struct uccl_handle handle = server->handle;
    int error = uccl_connect(node->engine, &handle, DIAL_MS, &conn);
    if (error)
        machine_fail("node %u cannot connect to node %u: %d", node->index, server->index, error);
    return conn;
}

static uccl_conn *answer(const struct node *node)
{
    uccl_conn *conn;
    int error = uccl_accept(node->listener, DIAL_MS, &conn);
    if (error)
        machine_fail("node %u accepts nobody: %d", node->index, error);
    return conn;
}

/* NULL: there is no room now. */
static uccl_request *try_post(uccl_conn *conn, int kind, void *buffer, uint64_t bytes)
{
    uccl_request *request;
    int error = kind == SEND ? uccl_send_async(conn, buffer, bytes, NULL, &request)
                             : uccl_recv_async(conn, buffer, bytes, NULL, &request);
    if (error && error != UCCL_EAGAIN)
        machine_fail("posting returned %d", error);
    return error ? NULL : request;
}

static uccl_request *post(uccl_conn *conn, int kind, void *buffer, uint64_t bytes)
{
    uccl_request *request;
    while (!(request = try_post(conn, kind, buffer, bytes)))
        machine_sleep(NS_PER_US);
    return request;
}

static uint64_t finish(uccl_request *request)
{
    size_t bytes;
    int status = uccl_wait(request, -1, &bytes);
    if (status)
        machine_fail("a request ended with %d", status);
    return bytes;
}

static void take_back(uccl_request *request)
{
    size_t bytes;
    while (uccl_cancel(request) == UCCL_EAGAIN)
        machine_sleep(NS_PER_US);
    int status = uccl_wait(request, -1, &bytes);
    if (status != UCCL_ECANCELED && status != UCCL_ECLOSED) /* the other end may have closed */
        machine_fail("a request that was cancelled ended with %d", status);
}

/* The client says which of its connections it is. */
static void say_index(uccl_conn *conn, unsigned index)
{
    uint8_t hello = (uint8_t)index;
    finish(post(conn, SEND, &hello, HELLO_BYTES));
}

static unsigned hear_index(uccl_conn *conn)
{
    uint8_t hello = 0xff;
    finish(post(conn, RECV, &hello, HELLO_BYTES));
    if (hello >= STREAMS_MAX)
        machine_fail("a connection of nobody");
    return hello;
}

static void end_conn(uccl_conn *conn)
{
    int error = uccl_conn_close(conn);
    if (error)
        machine_fail("a close returned %d", error);
}

static void tell(const char *what, uint64_t value, uint64_t bound)
{
    machine_note(what, value, bound, 0);
    if (machine.trace.print)
        printf("# %s: %llu of %llu\n", what, (unsigned long long)value, (unsigned long long)bound);
}

static void set_calm(struct cluster_options *options, struct rng *rng, void (*script)(struct node *))
{
    service = (struct service){0};
    options->script = script;
    options->script_ns = UINT64_C(20000) * NS_PER_MS;
    options->mixed = false;
    options->preempt_every = 0;
    options->sessions = 0;
    options->params.num_engines = 1;
    options->params.lend = rng_below(rng, 2) ? LEND_YES : LEND_NO;
    options->params.spin_us = rng_below(rng, 2) * 5;
}

/* ---- waits ----------------------------------------------------------------------------------- */

/*
 * Two threads of node 0 wait, each for a connection of its own. First for what does not come, until their times are up.
 * Then for small messages that come at any time, in any order. Who waits learns of its message as soon as it is there,
 * whether it drives the engine, sleeps in it, or sleeps because the other does, and also when the other has just left.
 * A third thread there posts what it does not wait for.
 */
enum {
    WAITERS = 2,
    BACK = WAITERS,
    WAIT_STREAMS,
    TIMEOUTS = 6,
    WAKES = 40,
    WAKE_NS = 150 * NS_PER_US,
    LEASES_NS = 4100 * NS_PER_US
};

/* Waits in pieces, and leaves in between what others then have to drive. */
static void wait_at_times(uccl_request *request)
{
    int status;
    while ((status = uccl_wait(request, 1 + (int)cluster_random(2), NULL)) == UCCL_ETIMEDOUT)
        machine_sleep(cluster_random(2 * NS_PER_MS));
    if (status)
        machine_fail("a request ended with %d", status);
}

static void wait_waiter(struct node *node, unsigned index)
{
    uccl_conn *conn = service.stream[index].receives;
    uint8_t byte;
    uccl_request *request = post(conn, RECV, &byte, 1);
    for (unsigned i = 0; i < TIMEOUTS && index < WAITERS; i++) {
        int timeout_ms = 1 + (int)cluster_random(40);
        uint64_t begun_ns = machine.now_ns;
        int status = uccl_wait(request, timeout_ms, NULL);
        if (status != UCCL_ETIMEDOUT)
            machine_fail("a wait for nothing ended with %d", status);
        timed("a wait", begun_ns, timeout_ms);
        if (cluster_random(3) == 0)
            machine_sleep(cluster_random(3 * NS_PER_MS));
    }
    for (unsigned i = 0; i < WAKES; i++) {
        if (i)
            request = post(conn, RECV, &byte, 1);
        service.posted[index]++;
        bool at_times = cluster_random(3) == 0;
        if (at_times)
            wait_at_times(request);
        else
            finish(request);
        uint64_t took_ns = machine.now_ns - service.sent_ns[index];
        if (at_times)
            took_ns = 0;
        most("a message", took_ns, WAKE_NS + (service.quick[index] ? 0 : LEASES_NS));
        if (service.quick[index] && took_ns > service.slowest_ns)
            service.slowest_ns = took_ns;
        service.heard[index]++;
        machine_sleep(cluster_random(2) * cluster_random(4 * NS_PER_MS));
    }
    (void)node;
}

static void wait_sender(struct node *node, unsigned index)
{
    uccl_conn *conn = service.stream[index].sends;
    uint8_t byte = 0;
    for (unsigned i = 1; i <= WAKES; i++) {
        while (service.posted[index] < i)
            machine_sleep(100 * NS_PER_US);
        bool at_once = index < WAITERS && cluster_random(2);
        machine_sleep(cluster_random((cluster_random(2) ? 10 : 3) * NS_PER_MS));
        /* on a lent engine that nobody has, a message lies until a lease is over in which nobody had it */
        service.quick[index] = at_once || node->params.lend == LEND_NO;
        service.sent_ns[index] = machine.now_ns;
        uccl_request *request = post(conn, SEND, &byte, 1);
        while (!at_once && service.heard[index] < i)
            machine_sleep(100 * NS_PER_US);
        finish(request);
    }
}

static void wait_script(struct node *node)
{
    bool server = node->index == 0;
    for (unsigned i = 0; i < WAIT_STREAMS; i++) {
        uccl_conn *conn = server ? answer(node) : dial(node, &cluster.nodes[0]);
        if (!server)
            say_index(conn, i);
        struct stream_plan *plan = &service.stream[server ? hear_index(conn) : i];
        bool sends = server == (plan == &service.stream[BACK]);
        *(sends ? &plan->sends : &plan->receives) = conn;
        *(sends ? &plan->from : &plan->to) = node;
    }
    for (unsigned i = 0; i < WAIT_STREAMS; i++) {
        node_spawn(node, server == (i == BACK) ? wait_sender : wait_waiter, i);
    }
    join(node);
    if (server) {
        tell("slowest wake-up", service.slowest_ns, WAKE_NS);
        tell("latest time-out", service.latest_ns, 0);
    }
    for (unsigned i = 0; i < WAIT_STREAMS; i++)
        end_conn(server == (i == BACK) ? service.stream[i].sends : service.stream[i].receives);
}

void service_wait(struct cluster_options *options, struct rng *rng)
{
    set_calm(options, rng, wait_script);
    options->nodes = 2;
}

/* ---- accepts --------------------------------------------------------------------------------- */

/* Several threads accept at once: each connection has one, and whose time is up has waited for that long. */
enum { ACCEPTORS = 3, DIALS = 6, TURN_NS = 3 * NS_PER_MS };

static void accept_acceptor(struct node *node, unsigned index)
{
    while (service.accepted < service.expected) {
        int timeout_ms = index ? 1 + (int)cluster_random(60) : 0;
        uint64_t begun_ns = machine.now_ns;
        uccl_conn *conn;
        int error = uccl_accept(node->listener, timeout_ms, &conn);
        if (error == (timeout_ms ? UCCL_ETIMEDOUT : UCCL_EAGAIN)) {
            if (timeout_ms)
                timed("an accept", begun_ns, timeout_ms);
            else
                most("an accept that does not wait", machine.now_ns - begun_ns, 500 * NS_PER_US);
            machine_sleep(timeout_ms ? 0 : cluster_random(5 * NS_PER_MS));
            continue;
        }
        if (error)
            machine_fail("an accept returned %d", error);
        uint64_t now_ns = machine.now_ns;
        service.accepted++;
        unsigned dialed = hear_index(conn);
        if (service.met[dialed])
            machine_fail("connection %u was accepted twice", dialed);
        service.met[dialed] = true;
        if (now_ns > service.dialed_ns[dialed])
            most("an accept", now_ns - service.dialed_ns[dialed], TURN_NS);
        end_conn(conn);
    }
}

static void accept_script(struct node *node)
{
    if (node->index == 0) {
        for (unsigned i = 0; i < ACCEPTORS; i++)
            node_spawn(node, accept_acceptor, i);
        join(node);
        return;
    }
    for (unsigned i = node->index - 1; i < service.expected; i += cluster.options.nodes - 1) {
        machine_sleep(cluster_random(40 * NS_PER_MS));
        uccl_conn *conn = dial(node, &cluster.nodes[0]);
        service.dialed_ns[i] = machine.now_ns;
        say_index(conn, i);
        end_conn(conn);
    }
}

void service_accept(struct cluster_options *options, struct rng *rng)
{
    set_calm(options, rng, accept_script);
    service.expected = DIALS;
    options->nodes = 3;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Streams that always have something to send share what they have in common: a connection's flow, a thread, a link. */
static void share_sender(struct node *node, unsigned index)
{
    struct stream_plan *plan = &service.stream[index];
    uccl_request *live[OUTSTANDING];
    unsigned posted = 0, ended = 0;
    while (machine.now_ns < service.until_ns || ended < posted) {
        while (machine.now_ns < service.until_ns && posted - ended < service.outstanding)
            live[posted++ % OUTSTANDING] = post(plan->sends, SEND, memory, plan->bytes);
        finish(live[ended++ % OUTSTANDING]);
    }
    finish(post(plan->sends, SEND, memory, 0)); /* the last */
    (void)node;
}

static void share_receiver(struct node *node, unsigned index)
{
    struct stream_plan *plan = &service.stream[index];
    uccl_request *live[OUTSTANDING];
    unsigned posted = 0, ended = 0;
    for (;;) {
        while (posted - ended < OUTSTANDING)
            live[posted++ % OUTSTANDING] = post(plan->receives, RECV, memory, plan->bytes);
        uint64_t bytes = finish(live[ended++ % OUTSTANDING]);
        if (bytes == 0)
            break;
        if (machine.now_ns < service.from_ns || machine.now_ns >= service.until_ns)
            continue;
        plan->arrived_bytes += bytes;
        plan->first_ns = plan->first_ns ? plan->first_ns : machine.now_ns;
        plan->last_ns = machine.now_ns;
    }
    while (ended < posted)
        take_back(live[ended++ % OUTSTANDING]);
    (void)node;
}

static void judge_shares(void)
{
    uint64_t sum_bytes = 0, window_ns = service.until_ns - service.from_ns;
    unsigned counted = 0;
    for (unsigned i = 0; i < service.streams; i++) {
        counted += !service.stream[i].stopped;
        sum_bytes += service.stream[i].stopped ? 0 : service.stream[i].arrived_bytes;
    }
    for (unsigned i = 0; i < service.streams; i++) {
        uint64_t bytes = service.stream[i].arrived_bytes;
        tell("share, in permille", bytes * 1000 / (sum_bytes + 1), 1000 / counted);
        uint64_t slack = service.stream[i].bytes; /* only whole messages count, and a busy NIC takes few */
        if (!service.stream[i].stopped &&
            (2 * (bytes + slack) * counted < sum_bytes || bytes * counted > 2 * sum_bytes + slack * counted))
            machine_fail("stream %u of %u has %.1f%% of the bytes", i, counted,
                         100.0 * (double)bytes / (double)sum_bytes);
    }
    const struct stream_plan *first = &service.stream[0];
    uint64_t least = service.least_mbps; /* from message to message: few fit the window */
    uint64_t exact = least ? (sum_bytes - first->bytes) * 8000 / (first->last_ns - first->first_ns) : 0;
    tell("exact rate, in Mbit/s", exact, least);
    if (exact < least)
        machine_fail("payload comes at %llu Mbit/s, of at least %llu", (unsigned long long)exact,
                     (unsigned long long)least);
    uint64_t mbps = sum_bytes * 8000 / window_ns;
    tell("rate, in Mbit/s", mbps, service.rate_mbps);
    if (service.rate_mbps && (mbps * 10 < service.rate_mbps * 9 || mbps * 10 > service.rate_mbps * 11))
        machine_fail("payload comes at %llu Mbit/s, not at %llu", (unsigned long long)mbps,
                     (unsigned long long)service.rate_mbps);
}

static void stop_node(void *what, uint64_t until_ns)
{
    machine_stop(((struct node *)what)->process, until_ns);
}

/* Node 0 listens, and each other node connects, or node 1 does so several times. */
static void share_script(struct node *node)
{
    unsigned others = service.one_peer ? 1 : service.streams;
    bool server = node->index == 0;
    for (unsigned i = server ? 0 : node->index - 1; i < service.streams; i += server ? 1 : others) {
        uccl_conn *conn = server ? answer(node) : dial(node, &cluster.nodes[0]);
        if (!server)
            say_index(conn, i);
        struct stream_plan *plan = &service.stream[server ? hear_index(conn) : i];
        *(server == service.inward ? &plan->receives : &plan->sends) = conn;
        *(server == service.inward ? &plan->to : &plan->from) = node;
    }
    service.ready++;
    while (service.ready < cluster.options.nodes)
        machine_sleep(10 * NS_PER_US);
    if (server) {
        service.from_ns += machine.now_ns;
        service.until_ns += machine.now_ns;
        if (service.stops) {
            struct stream_plan *last = &service.stream[service.streams - 1];
            last->stopped = true;
            last->to->stops[0] = (struct stop){service.from_ns - NS_PER_MS, service.until_ns};
            last->to->stop_count = 1;
            machine_at(service.from_ns - NS_PER_MS, stop_node, last->to, service.until_ns);
        }
        service.begun = true;
    }
    await(&service.begun);
    for (unsigned i = 0; i < service.streams; i++) {
        if (service.stream[i].from == node)
            node_spawn(node, share_sender, i);
        if (service.stream[i].to == node)
            node_spawn(node, share_receiver, i);
    }
    join(node);
    for (unsigned i = 0; i < service.streams; i++) {
        if (service.stream[i].from == node)
            end_conn(service.stream[i].sends);
        if (service.stream[i].to == node)
            end_conn(service.stream[i].receives);
    }
    if (server)
        judge_shares();
}

static void set_shares(struct cluster_options *options, struct rng *rng, unsigned streams)
{
    set_calm(options, rng, share_script);
    service.streams = streams;
    service.outstanding = OUTSTANDING;
    service.from_ns = 4 * NS_PER_MS;
    service.until_ns = 20 * NS_PER_MS;
    options->nodes = 1 + streams;
    options->fabric.host_mbps = 5000;
    options->fabric.queue_bytes = 8 << 20; /* delay, not loss, tells of congestion: who loses is chance */
    options->nic.datagram_bytes = rng_below(rng, 2) ? 8972 : 1472;
    for (unsigned i = 0; i < streams; i++)
        service.stream[i].bytes = 65536;
}

/* Connections of one flow: the same bytes for each, however large its messages are. */
void service_connections(struct cluster_options *options, struct rng *rng)
{
    set_shares(options, rng, 2 + rng_below(rng, 3));
    service.one_peer = true;
    service.inward = rng_below(rng, 2);
    options->nodes = 2;
    for (unsigned i = 0; i < service.streams; i++)
        service.stream[i].bytes = 65536u << rng_below(rng, 4);
}

/*
 * Messages over two flows, one of which has a tenth of the other's bandwidth: 0.85 of the sum, also for messages that
 * come one by one, each of which ends when its last range has arrived.
 */
void service_ranges(struct cluster_options *options, struct rng *rng)
{
    set_shares(options, rng, 1);
    service.one_peer = true;
    service.inward = rng_below(rng, 2);
    service.from_ns = 20 * NS_PER_MS;
    service.until_ns = 220 * NS_PER_MS;
    options->nodes = 2;
    options->params.num_engines = 2;
    options->fabric.slow_mbps = options->fabric.host_mbps / 10;
    options->fabric.slow_queue = rng_below(rng, 2);
    service.outstanding = 1 + rng_below(rng, 3);
    service.stream[0].bytes = service.outstanding == 1 ? MEMORY_BYTES : (2u << 20) << rng_below(rng, 3);
    service.least_mbps = (options->fabric.host_mbps + options->fabric.slow_mbps) * 85 / 100;
}

/* Flows of one thread, to peers one of which may stop. */
void service_peers(struct cluster_options *options, struct rng *rng)
{
    set_shares(options, rng, 3 + rng_below(rng, 3));
    service.stops = rng_below(rng, 2);
    if (rng_below(rng, 2)) { /* a NIC that is full most of the time: windows are open, and turns decide */
        options->nic.refuse_ppm = 400000;
        options->nic.full_ns = 400 * NS_PER_US;
        service.until_ns = 60 * NS_PER_MS;
    }
}

/* Credit of a receiver whose link takes more than it grants. */
void service_credit(struct cluster_options *options, struct rng *rng)
{
    set_shares(options, rng, 1 + rng_below(rng, 4));
    service.inward = true;
    options->params.cc = CC_EQDS;
    options->params.link_gbps = 1u << rng_below(rng, 4);
    options->fabric.host_mbps = 40000;
    uint64_t stride = options->nic.datagram_bytes;
    service.rate_mbps = options->params.link_gbps * 990 * (stride - 64) / stride;
}

/* ---- small messages among large ones --------------------------------------------------------- */

enum { PINGS = 20 };

static void ping(struct node *node, unsigned index)
{
    uccl_conn *conn = service.stream[index].sends;
    uint8_t byte = 0, echo;
    machine_sleep(10 * NS_PER_MS); /* until windows have settled */
    for (unsigned i = 0; i < PINGS; i++) {
        machine_sleep(cluster_random(300 * NS_PER_US));
        uccl_request *back = post(conn, RECV, &echo, 1);
        uint64_t begun_ns = machine.now_ns;
        finish(post(conn, SEND, &byte, 1));
        finish(back);
        uint64_t took_ns = machine.now_ns - begun_ns;
        if (took_ns > service.slowest_ns)
            service.slowest_ns = took_ns;
    }
    finish(post(conn, SEND, &byte, 0));
    service.until_ns = machine.now_ns;
    (void)node;
}

static void pong(struct node *node, unsigned index)
{
    uccl_conn *conn = service.stream[index].receives;
    uint8_t byte;
    while (finish(post(conn, RECV, &byte, 1)))
        finish(post(conn, SEND, &byte, 1));
    (void)node;
}

static void small_script(struct node *node)
{
    bool server = node->index == 0;
    for (unsigned i = 0; i < service.streams; i++) {
        uccl_conn *conn = server ? answer(node) : dial(node, &cluster.nodes[0]);
        if (!server)
            say_index(conn, i);
        struct stream_plan *plan = &service.stream[server ? hear_index(conn) : i];
        *(server ? &plan->receives : &plan->sends) = conn;
    }
    for (unsigned i = 0; i < service.streams; i++) {
        bool pings = i == 0;
        node_spawn(node, server ? pings ? pong : share_receiver : pings ? ping : share_sender, i);
    }
    join(node);
    if (server)
        return;
    tell("slowest ping, in ns", service.slowest_ns, service.ping_ns);
    most("a ping", service.slowest_ns, service.ping_ns);
}

static void small_end(struct node *node)
{
    small_script(node);
    for (unsigned i = 0; i < service.streams; i++)
        end_conn(node->index ? service.stream[i].sends : service.stream[i].receives);
}

/* Pings beside connections that send all the time. */
void service_small(struct cluster_options *options, struct rng *rng)
{
    set_shares(options, rng, 2 + rng_below(rng, 3));
    options->script = small_end;
    options->nodes = 2;
    service.until_ns = UINT64_MAX;
    service.ping_ns = 4 * NS_PER_MS;
    for (unsigned i = 1; i < service.streams; i++)
        service.stream[i].bytes = MEMORY_BYTES;
}

/* ---- many lives ------------------------------------------------------------------------------ */

enum { CONNECTS = 100, REGISTRATIONS = 100 };

#define KEPT_NS (10200 * NS_PER_MS) /* what an ended peer is kept for, and what noticing its end may take */

static void meet(const struct node *node, bool server)
{
    uint8_t byte = 0;
    uccl_conn *conn = server ? answer(node) : dial(node, &cluster.nodes[0]);
    finish(post(conn, server ? RECV : SEND, &byte, 1));
    end_conn(conn);
}

/* Takes all of a bitmap but its first word, as if others had them, or gives them back. */
static void crowd(uint64_t *bitmap, size_t bits, bool taken)
{
    memset(bitmap + 1, taken ? 0xff : 0, bits / 8 - sizeof *bitmap);
}

static void crowd_engine(const struct node *node, bool taken)
{
    for (unsigned i = 0; i < node->engine->thread_count; i++)
        crowd(node->engine->peers.slots_used[i], CORE_FLOWS_MAX, taken);
    crowd(node->engine->conn_indices, CORE_CONNS_MAX, taken);
}

/* The client's engines that an end may know still: each was another peer. */
static uint64_t peers_met_lately(void)
{
    uint64_t peers = 1; /* that lives */
    for (unsigned i = 0; i < LIVES; i++)
        peers += service.ended_ns[i] + KEPT_NS > machine.now_ns;
    return peers;
}

/*
 * One peer after another, more than there are flow slots; then connections to one peer, more than there are ids; and
 * registrations. Of slots and ids a word is free, so that this does not take thousands.
 */
static void lives_script(struct node *node)
{
    bool server = node->index == 0;
    if (server)
        crowd_engine(node, true);
    for (unsigned i = 0; i < LIVES; i++) {
        meet(node, server);
        if (server)
            continue;
        cluster_check_budget(node, true);
        node->listener = NULL; /* goes with the engine */
        node->serving = false;
        if (uccl_close(node->engine) || uccl_open(NULL, &node->engine))
            machine_fail("life %u of node %u cannot begin", i, node->index);
        node->serving = true;
        service.ended_ns[i] = machine.now_ns;
        machine_sleep(cluster_random(service.pause_ns));
    }
    struct budget before, after;
    if (!server)
        crowd_engine(node, true);
    engine_budget(node->engine, &before);
    for (unsigned i = 0; i < CONNECTS; i++)
        meet(node, server);
    for (unsigned i = 0; i < REGISTRATIONS; i++) {
        uccl_mr *mr;
        if (uccl_reg_mr(node->engine, memory, 1 + i, UCCL_MEM_HOST, &mr) || uccl_dereg_mr(mr))
            machine_fail("registration %u failed", i);
    }
    machine_sleep(100u * NS_PER_MS);
    engine_budget(node->engine, &after);
    if (after.regions != before.regions || after.peers > before.peers + 1 || after.conn_ids != before.conn_ids)
        machine_fail("node %u has %llu regions, %llu peers, %llu connection ids", node->index,
                     (unsigned long long)after.regions, (unsigned long long)after.peers,
                     (unsigned long long)after.conn_ids);
    tell("peers kept", after.peers, peers_met_lately());
    if (after.peers > peers_met_lately())
        machine_fail("node %u keeps %llu peers", node->index, (unsigned long long)after.peers);
    crowd_engine(node, false);
}

void service_lives(struct cluster_options *options, struct rng *rng)
{
    set_calm(options, rng, lives_script);
    service.pause_ns = rng_below(rng, 2) * 1000 * NS_PER_MS;
    options->nodes = 2;
    options->script_ns = UINT64_C(300000) * NS_PER_MS;
}
