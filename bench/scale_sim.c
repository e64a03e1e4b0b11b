/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale_sim: the real core at 16 to thousands of nodes, in one process and in virtual time, on a
 * modelled fat tree (scale_model.h). It says how long messages take, how that compares with the
 * ideal, and what was repeated. One seed, one result, on every machine.
 *
 * Parameters have the defaults of the library but for those that the library sets for sockets and
 * shared cores; here the delay of a NIC is all there is (fabric_rows).
 */
#include <argp.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "output.h"
#include "scale_run.h"
#include "tool.h"

enum traffic { PERMUTATION, INCAST, ALL_TO_ALL };
static const char *const traffic_names[] = {"permutation", "incast", "alltoall"};

struct options {
    uccl_config *config;
    const char *matrix;
    enum traffic traffic;
    uint32_t nodes, senders; /* senders 0: all others */
    uint64_t bytes, seed, limit_us;
    uint32_t oversubscription, degraded, dead;
    bool failures_dead; /* the matrix's failures: dead instead of degraded */
    bool json;
};

/* What sockets need and a fabric does not. */
static const struct {
    const char *name, *value;
} fabric_rows[] = {
    {"SWIFT_TARGET_US", "50"}, {"RTO_MIN_US", "500"},   {"PORT_ENTROPY", "32"},
    {"CHUNK_SIZE_KB", "4"},    {"CHUNK_WINDOW", "256"},
};

/* ---- command line ---------------------------------------------------------------------------- */

enum {
    KEY_MATRIX = 256,
    KEY_TRAFFIC,
    KEY_NODES,
    KEY_SENDERS,
    KEY_SIZE,
    KEY_CC,
    KEY_PATHS,
    KEY_POLICY,
    KEY_CHUNK,
    KEY_SET,
    KEY_OVERSUBSCRIPTION,
    KEY_DEGRADED,
    KEY_DEAD,
    KEY_FAILURES,
    KEY_SEED,
    KEY_LIMIT,
    KEY_JSON,
};

static const struct argp_option option_rows[] = {
    {NULL, 0, NULL, 0, "Traffic", 1},
    {"matrix", KEY_MATRIX, "FILE", 0, "Connection matrix in htsim's text format", 1},
    {"traffic", KEY_TRAFFIC, "KIND", 0, "Without --matrix: permutation (default), incast or alltoall", 1},
    {"nodes", KEY_NODES, "N", 0, "Nodes (16)", 1},
    {"senders", KEY_SENDERS, "N", 0, "Senders of an incast (all nodes but one)", 1},
    {"size", KEY_SIZE, "BYTES", 0, "Size of each message (2000000)", 1},
    {NULL, 0, NULL, 0, "Network", 2},
    {"oversubscription", KEY_OVERSUBSCRIPTION, "R", 0, "Aggregation switches have 1/R of their uplinks", 2},
    {"degraded", KEY_DEGRADED, "N", 0, "Racks with one uplink at a quarter of its rate", 2},
    {"dead", KEY_DEAD, "N", 0, "Racks with one uplink that drops everything", 2},
    {"failures", KEY_FAILURES, "HOW", 0, "What a matrix's failures mean: degraded (default) or dead", 2},
    {NULL, 0, NULL, 0, "Transport", 3},
    {"cc", KEY_CC, "NAME", 0, "Congestion control (UCCL_CC)", 3},
    {"paths", KEY_PATHS, "N", 0, "Paths per peer (UCCL_PORT_ENTROPY)", 3},
    {"policy", KEY_POLICY, "NAME", 0, "Choice of paths (UCCL_PATH_POLICY)", 3},
    {"chunk", KEY_CHUNK, "KIB", 0, "Size of chunks (UCCL_CHUNK_SIZE_KB)", 3},
    {"set", KEY_SET, "NAME=VALUE", 0, "Any parameter, without UCCL_; may be repeated", 3},
    {NULL, 0, NULL, 0, "Run", 4},
    {"seed", KEY_SEED, "S", 0, "Random seed (1)", 4},
    {"limit", KEY_LIMIT, "US", 0, "Virtual time limit (1000000)", 4},
    {"json", KEY_JSON, NULL, 0, "Write one JSON object", 4},
    {0},
};

static void set_param(struct argp_state *state, const char *name, const char *value)
{
    const struct options *options = state->input;
    if (uccl_config_set(options->config, name, value) != UCCL_OK) /* which has said more */
        argp_error(state, "%s=%s: not a parameter, or not a value that it takes", name, value);
}

static void set_pair(struct argp_state *state, char *text)
{
    char *equals = strchr(text, '=');
    if (!equals)
        argp_error(state, "--set=%s: write NAME=VALUE", text);
    *equals = '\0';
    set_param(state, text, equals + 1);
}

static uint32_t number(struct argp_state *state, const char *flag, const char *text, uint32_t min, uint32_t max)
{
    return (uint32_t)tool_parse_number(state, flag, text, min, max);
}

static void parse_traffic(struct argp_state *state, struct options *options, const char *text)
{
    for (unsigned i = 0; i < sizeof traffic_names / sizeof traffic_names[0]; i++) {
        if (strcmp(text, traffic_names[i]) == 0) {
            options->traffic = (enum traffic)i;
            return;
        }
    }
    argp_error(state, "--traffic=%s: allowed are permutation, incast and alltoall", text);
}

static error_t parse_network(int key, char *text, struct argp_state *state, struct options *options)
{
    switch (key) {
    case KEY_OVERSUBSCRIPTION:
        options->oversubscription = number(state, "oversubscription", text, 1, 64);
        return 0;
    case KEY_DEGRADED:
        options->degraded = number(state, "degraded", text, 0, MATRIX_NODES_MAX);
        return 0;
    case KEY_DEAD:
        options->dead = number(state, "dead", text, 0, MATRIX_NODES_MAX);
        return 0;
    case KEY_FAILURES:
        options->failures_dead = strcmp(text, "dead") == 0;
        if (!options->failures_dead && strcmp(text, "degraded") != 0)
            argp_error(state, "--failures=%s: allowed are degraded and dead", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_transport(int key, char *text, struct argp_state *state)
{
    switch (key) {
    case KEY_CC:
        set_param(state, "CC", text);
        return 0;
    case KEY_PATHS:
        set_param(state, "PORT_ENTROPY", text);
        return 0;
    case KEY_POLICY:
        set_param(state, "PATH_POLICY", text);
        return 0;
    case KEY_CHUNK:
        set_param(state, "CHUNK_SIZE_KB", text);
        return 0;
    case KEY_SET:
        set_pair(state, text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case KEY_MATRIX:
        options->matrix = text;
        return 0;
    case KEY_TRAFFIC:
        parse_traffic(state, options, text);
        return 0;
    case KEY_NODES:
        options->nodes = number(state, "nodes", text, 2, MATRIX_NODES_MAX);
        return 0;
    case KEY_SENDERS:
        options->senders = number(state, "senders", text, 1, MATRIX_NODES_MAX);
        return 0;
    case KEY_SIZE:
        options->bytes = tool_parse_size(state, "size", text, 1, 16 * GIB);
        return 0;
    case KEY_SEED:
        options->seed = tool_parse_number(state, "seed", text, 0, UINT64_MAX);
        return 0;
    case KEY_LIMIT:
        options->limit_us = tool_parse_number(state, "limit", text, 1, UINT64_C(1) << 36);
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", text);
        return 0;
    case ARGP_KEY_END:
        if (options->senders >= options->nodes)
            argp_error(state, "--senders=%" PRIu32 ": there are %" PRIu32 " nodes", options->senders, options->nodes);
        return 0;
    default:
        if (parse_network(key, text, state, options) == 0)
            return 0;
        return parse_transport(key, text, state);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

struct report {
    uint64_t min_ps, mean_ps, p99_ps, max_ps; /* of the messages that are done */
    uint64_t ideal_ps;                        /* 0: not known */
};

static int by_value(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

/* Sorts the completions. */
static struct report summarize(struct run_result *result, uint32_t count)
{
    struct report report = {0};
    uint64_t sum_ps = 0;
    uint32_t done = result->done;
    if (done == 0)
        return report;
    qsort(result->completion_ps, count, sizeof *result->completion_ps, by_value);
    for (uint32_t i = 0; i < done; i++)
        sum_ps += result->completion_ps[i];
    report.min_ps = result->completion_ps[0];
    report.mean_ps = sum_ps / done;
    report.p99_ps = result->completion_ps[(uint64_t)(done - 1) * 99 / 100];
    report.max_ps = result->completion_ps[done - 1];
    return report;
}

static double us(uint64_t ps)
{
    return (double)ps / 1e6;
}

/* Of the whole, to the ideal. */
static double ratio_of(const struct run_result *result, const struct report *report)
{
    return us(result->makespan_ps) / us(report->ideal_ps);
}

static uint64_t count_of(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* The parameters that results are compared by, as text. */
struct setting {
    char cc[16], policy[16], paths[16], chunk_kb[16];
};

static struct setting setting_of(const uccl_config *config)
{
    struct setting setting;
    const struct {
        const char *name;
        char *text;
    } rows[] = {{"UCCL_CC", setting.cc},
                {"UCCL_PATH_POLICY", setting.policy},
                {"UCCL_PORT_ENTROPY", setting.paths},
                {"UCCL_CHUNK_SIZE_KB", setting.chunk_kb}};
    struct uccl_param_info info;
    char source[4096];
    for (unsigned index = 0; uccl_param_info(index, &info) == UCCL_OK; index++) {
        for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            if (strcmp(info.name, rows[i].name) == 0)
                uccl_param_value(config, index, rows[i].text, sizeof setting.cc, source, sizeof source);
        }
    }
    return setting;
}

static void print_text(const struct setting *setting, const struct net *net, const struct matrix *matrix,
                       struct run_result *result, const struct report *report)
{
    struct counters *counters = &result->counters;
    printf("%" PRIu32 " nodes on a fat tree of %" PRIu32 "-port switches, %" PRIu32 " messages\n", matrix->nodes,
           net->k, matrix->message_count);
    printf("%s, %s paths %s, chunks of %s KiB\n", setting->cc, setting->paths, setting->policy, setting->chunk_kb);
    if (result->done < matrix->message_count)
        printf("not done: %" PRIu32 " messages\n", matrix->message_count - result->done);
    printf("completion us: min %.1f, mean %.1f, p99 %.1f, max %.1f\n", us(report->min_ps), us(report->mean_ps),
           us(report->p99_ps), us(report->max_ps));
    printf("all %.1f us", us(result->makespan_ps));
    if (report->ideal_ps)
        printf(", ideal %.1f us, ratio %.3f", us(report->ideal_ps), ratio_of(result, report));
    printf("\nretransmissions %" PRIu64 " of %" PRIu64 " packets, %" PRIu64 " chunks given up, %" PRIu64
           " timeouts, %" PRIu64 " probes, %" PRIu64 " acks\n",
           count_of(&counters->retransmits), net->sent, count_of(&counters->lost_chunks),
           count_of(&counters->rto_fired), count_of(&counters->tlp_fired), count_of(&counters->tx_acks));
    printf("network: %" PRIu64 " dropped by full queues, %" PRIu64 " by dead links, %" PRIu64
           " marked, longest queue %" PRIu64 " KiB\n",
           net->dropped_full, net->dropped_dead, net->marked, net->queue_max_bytes / 1024);
}

static void print_json(const struct setting *setting, const struct net *net, const struct matrix *matrix,
                       struct run_result *result, const struct report *report)
{
    struct counters *counters = &result->counters;
    const struct {
        const char *name;
        json_t *value;
    } rows[] = {
        {"nodes", json_integer(matrix->nodes)},
        {"switch_ports", json_integer(net->k)},
        {"messages", json_integer(matrix->message_count)},
        {"done", json_integer(result->done)},
        {"cc", json_string(setting->cc)},
        {"policy", json_string(setting->policy)},
        {"paths", json_integer(atoi(setting->paths))},
        {"chunk_kb", json_integer(atoi(setting->chunk_kb))},
        {"min_us", json_real(us(report->min_ps))},
        {"mean_us", json_real(us(report->mean_ps))},
        {"p99_us", json_real(us(report->p99_ps))},
        {"max_us", json_real(us(report->max_ps))},
        {"all_us", json_real(us(result->makespan_ps))},
        {"ideal_us", report->ideal_ps ? json_real(us(report->ideal_ps)) : json_null()},
        {"ratio", report->ideal_ps ? json_real(ratio_of(result, report)) : json_null()},
        {"retransmissions", json_integer((json_int_t)count_of(&counters->retransmits))},
        {"timeouts", json_integer((json_int_t)count_of(&counters->rto_fired))},
        {"probes", json_integer((json_int_t)count_of(&counters->tlp_fired))},
        {"packets", json_integer((json_int_t)net->sent)},
        {"dropped_full", json_integer((json_int_t)net->dropped_full)},
        {"dropped_dead", json_integer((json_int_t)net->dropped_dead)},
        {"marked", json_integer((json_int_t)net->marked)},
        {"queue_max_bytes", json_integer((json_int_t)net->queue_max_bytes)},
    };
    json_t *root = json_object();
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (json_object_set_new(root, rows[i].name, rows[i].value) != 0)
            tool_fail("no memory for the result");
    }
    if (json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0)
        tool_fail("the result cannot be written");
    printf("\n");
    json_decref(root);
}

/* ---- from begin to end ----------------------------------------------------------------------- */

static void make_matrix(const struct options *options, struct matrix *matrix)
{
    struct rng rng = {options->seed};
    if (options->matrix) {
        matrix_read(matrix, options->matrix);
        return;
    }
    switch (options->traffic) {
    case PERMUTATION:
        matrix_permutation(matrix, options->nodes, options->bytes, &rng);
        break;
    case INCAST:
        matrix_incast(matrix, options->nodes, options->senders ? options->senders : options->nodes - 1, options->bytes);
        break;
    case ALL_TO_ALL:
        matrix_all_to_all(matrix, options->nodes, options->bytes);
        break;
    }
}

static void fail_links(const struct options *options, const struct matrix *matrix, struct net *net)
{
    for (uint32_t i = 0; i < matrix->failure_count; i++) {
        const struct failure *failure = &matrix->failures[i];
        if (!net_set_link(net, failure, options->failures_dead ? 0 : 1))
            tool_fail("%s: failure %" PRIu32 ": a tree of %" PRIu32 "-port switches has no link %" PRIu32
                      " at switch %" PRIu32 " of this type",
                      options->matrix, i + 1, net->k, failure->link, failure->switch_id);
    }
    net_fail_links(net, options->degraded, 1);
    net_fail_links(net, options->dead, 0);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        option_rows, parse_option, NULL, "Run the engine's core at scale on a modelled fat tree, in virtual time.",
        NULL,        NULL,         NULL};
    struct options options = {.nodes = 16, .bytes = 2000000, .seed = 1, .limit_us = 1000000, .oversubscription = 1};
    struct params params;
    struct matrix matrix;
    struct net net;
    struct run_result result;
    output_begin("scale_sim");
    tool_role = "scale_sim";
    argp_program_version_hook = tool_print_version;
    if (uccl_config_create(&options.config) != UCCL_OK)
        tool_fail("no memory for a configuration");
    for (unsigned i = 0; i < sizeof fabric_rows / sizeof fabric_rows[0]; i++) {
        if (uccl_config_set(options.config, fabric_rows[i].name, fabric_rows[i].value) != UCCL_OK)
            tool_fail("%s=%s", fabric_rows[i].name, fabric_rows[i].value);
    }
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (config_resolve(options.config, &params) != UCCL_OK)
        tool_fail("a parameter has a value that is not allowed");

    make_matrix(&options, &matrix);
    net_create(&net, matrix.nodes, options.oversubscription, options.seed);
    fail_links(&options, &matrix, &net);
    uint64_t ideal_ps = net_ideal_ps(&net, &matrix);
    run_matrix(&net, &matrix, &params, options.limit_us * 1000000, &result);
    struct report report = summarize(&result, matrix.message_count);
    report.ideal_ps = ideal_ps;
    struct setting setting = setting_of(options.config);
    if (options.json)
        print_json(&setting, &net, &matrix, &result, &report);
    else
        print_text(&setting, &net, &matrix, &result, &report);
    bool all = result.done == matrix.message_count;
    run_result_free(&result);
    net_destroy(&net);
    matrix_free(&matrix);
    uccl_config_destroy(options.config);
    return all ? EXIT_SUCCESS : EXIT_FAILURE;
}
