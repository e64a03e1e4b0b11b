/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_test: does the transport work between these two hosts, and how fast is it? One process
 * is the server, the other the client. The client's settings govern: they travel in the first
 * message of the first connection, so the server needs no flags.
 *
 * Order of the messages on connection 0, in both directions where a side sends:
 *   HELLO, WELCOME | JOIN on every further connection | per phase: READY, data | RESULT
 * A phase (warm-up, then the measured one) starts when both sides have their receives posted. With
 * write and read, a READY before the first one tells what the target has exported. In the end both sides know both
 * results, so both exit with 0 or both do not.
 */
#include "onesided.h"
#include "output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the client decides; the numbers are those of the HELLO message's fields. */
enum setting { PERFTYPE, WARMUP, NFLOW, NMSG, NREQ, MSIZE, ITERATIONS, FLUSH, BI, SETTINGS };

enum perftype { TYPE_BASIC, TYPE_LAT, TYPE_TPT, TYPE_BI, TYPE_WRITE, TYPE_READ, TYPE_NOTIFY };

static const char *const type_names[] = {"basic", "lat", "tpt", "bi", "write", "read", "notify"};

static const struct {
    const char *name;
    uint64_t min;
    uint64_t max;
} setting_rows[SETTINGS] = {
    [PERFTYPE] = {"perftype", TYPE_BASIC, TYPE_NOTIFY}, /* bi is tpt with --bi */
    [WARMUP] = {"warmup", 0, 1000000000},
    [NFLOW] = {"nflow", 1, 4096},
    [NMSG] = {"nmsg", 1, 4096},
    [NREQ] = {"nreq", 1, 4096},
    [MSIZE] = {"msize", 0, TOOL_SIZE_MAX},
    [ITERATIONS] = {"iterations", 1, 1000000000000},
    [FLUSH] = {"flush", 0, 1},
    [BI] = {"bi", 0, 1},
};

/* Of --warmup=true where the default is none. */
#define WARMUP_USUAL 100
/* A lat run keeps one sample per iteration. */
#define LAT_ITERATIONS_MAX UINT64_C(100000000)
/* Checked messages need a buffer each; without --nreq, so few requests that they fit in this. */
#define BASIC_MEMORY (256 * MIB)

static const uint64_t type_defaults[][SETTINGS] = {
    [TYPE_BASIC] = {TYPE_BASIC, 0, 1, 1, 8, MIB, 1000, 0, 0},   [TYPE_LAT] = {TYPE_LAT, 1000, 1, 1, 1, 8, 10000, 0, 0},
    [TYPE_TPT] = {TYPE_TPT, 100, 1, 1, 8, MIB, 5000, 0, 0},     [TYPE_BI] = {TYPE_TPT, 100, 1, 1, 8, MIB, 5000, 0, 1},
    [TYPE_WRITE] = {TYPE_WRITE, 0, 1, 1, 8, MIB, 1000, 0, 0},   [TYPE_READ] = {TYPE_READ, 0, 1, 1, 8, MIB, 1000, 0, 0},
    [TYPE_NOTIFY] = {TYPE_NOTIFY, 0, 1, 1, 8, 256, 1000, 0, 0},
};

/* Types whose contents are verified, each message in a buffer of its own. */
static bool type_checks(uint64_t type)
{
    return type == TYPE_BASIC || type >= TYPE_WRITE;
}

static enum stream_op type_op(uint64_t type)
{
    return type == TYPE_WRITE    ? STREAM_WRITE
           : type == TYPE_READ   ? STREAM_READ
           : type == TYPE_NOTIFY ? STREAM_NOTIFY
                                 : STREAM_SEND;
}

/* Messages that one operation of a stream moves: those of a write or read are its pieces. */
static uint64_t messages_per_operation(const uint64_t *v)
{
    return v[PERFTYPE] == TYPE_WRITE || v[PERFTYPE] == TYPE_READ ? v[NMSG] : 1;
}

static uint64_t operation_slot(const uint64_t *v)
{
    uint64_t pieces = messages_per_operation(v);
    return onesided_slot(v[MSIZE] * pieces, (uint32_t)pieces);
}

struct options {
    struct tool_ends ends;
    struct device_choice device;
    uint64_t value[SETTINGS];
    bool given[SETTINGS];
    bool warmup_wanted; /* --warmup=true: as many as is usual */
};

/* One run, on either side. */
struct run {
    uccl_engine *engine;
    bool server;
    uint64_t value[SETTINGS];
    uccl_conn **conns;      /* nflow */
    struct stream *streams; /* per connection: what it sends, what it receives, where it does */
    unsigned stream_count;
    struct region region;  /* message buffers of all of them */
    uccl_export *exported; /* what the peer writes to or reads from; NULL: nothing */
    uccl_remote **remotes; /* the same of the peer, per connection; NULL: none */
    bool sends;            /* this side sends data (in lat: always) */
    bool receives;
    uint32_t *samples; /* lat: nanoseconds of a half round trip, NULL where none are taken */
    uint64_t elapsed_ns;
    uint64_t cpu_ns;
    uint64_t retransmits;
};

/* ---- command line ---- */

enum { KEY_GPU = 1000, KEY_SETTING };

static const struct argp_option option_rows[] = {
    {0, 0, 0, 0, "What to run:", 2},
    {"perftype", KEY_SETTING + PERFTYPE, "TYPE", 0,
     "basic: send and verify contents; write, read, notify: the same by one-sided operations; lat: half round trips; "
     "tpt: throughput; bi: tpt with --bi (default basic)",
     2},
    {"msize", KEY_SETTING + MSIZE, "BYTES", 0,
     "Size of a message, with K, M or G for powers of 1024 (default lat 8, notify 256, others 1M)", 2},
    {"iterations", KEY_SETTING + ITERATIONS, "N", 0,
     "Iterations: each is one request on every connection; with lat, one round trip on one connection, in turn "
     "(default basic, write, read and notify 1000, lat 10000, tpt and bi 5000)",
     2},
    {"warmup", KEY_SETTING + WARMUP, "N", 0,
     "Iterations before the clock starts (default lat 1000, tpt and bi 100, others 0); true: the default, but 100 "
     "where that is 0; false: none",
     2},
    {"nflow", KEY_SETTING + NFLOW, "N", 0, "Connections (default 1)", 2},
    {"nmsg", KEY_SETTING + NMSG, "N", 0,
     "Messages per request, posted together; with write and read, the pieces of one vector (default 1)", 2},
    {"nreq", KEY_SETTING + NREQ, "N", 0,
     "Outstanding requests per connection; always 1 with lat (default 8; basic, write and read: fewer where 8 would "
     "take over 256 MiB)",
     2},
    {"bi", KEY_SETTING + BI, "BOOL", OPTION_ARG_OPTIONAL, "Both directions at once (default false: client to server)",
     2},
    {"flush", KEY_SETTING + FLUSH, "BOOL", OPTION_ARG_OPTIONAL,
     "Call uccl_flush() on every received message, or one that was read (default false)", 2},
    {"gpu", KEY_GPU, "N", 0,
     "Message buffers in the memory of GPU N: cuda:N, hip:N, or N of the runtime that has GPUs; cpu: in "
     "host memory (default cpu)",
     TOOL_GROUP_OWN},
    {0},
};

static uint64_t parse_perftype(struct argp_state *state, const char *text)
{
    for (unsigned i = 0; i < sizeof(type_names) / sizeof(type_names[0]); i++)
        if (strcmp(text, type_names[i]) == 0)
            return i;
    argp_error(state, "--perftype=%s: allowed are basic, lat, tpt, bi, write, read and notify", text);
    return TYPE_BASIC;
}

static uint64_t parse_setting(struct argp_state *state, enum setting setting, const char *text)
{
    const char *name = setting_rows[setting].name;
    switch (setting) {
    case PERFTYPE:
        return parse_perftype(state, text);
    case FLUSH:
    case BI:
        return tool_parse_bool(state, name, text);
    case MSIZE:
        return tool_parse_size(state, name, text, setting_rows[MSIZE].min, setting_rows[MSIZE].max);
    default:
        return tool_parse_number(state, name, text, setting_rows[setting].min, setting_rows[setting].max);
    }
}

/* NULL, or what is wrong with settings that are each in their range. */
static const char *settings_fault(const uint64_t *v)
{
    if (v[NMSG] * v[NREQ] * v[NFLOW] > TOOL_OUTSTANDING)
        return "--nflow x --nmsg x --nreq: at most 16384";
    if (v[PERFTYPE] == TYPE_LAT && v[ITERATIONS] > LAT_ITERATIONS_MAX)
        return "--iterations: at most 100000000 with --perftype=lat, which keeps a sample of each";
    if (v[PERFTYPE] == TYPE_BI)
        return "--perftype: bi is tpt with --bi";
    if (v[PERFTYPE] == TYPE_NOTIFY && v[MSIZE] > UCCL_NOTIFY_MAX)
        return "--msize: at most 64K with --perftype=notify";
    /* the slot of an operation is below 2^34 x 2^12 bytes and its gaps */
    if (type_checks(v[PERFTYPE]) &&
        v[NMSG] / messages_per_operation(v) * v[NREQ] * v[NFLOW] > TOOL_MEMORY_MAX / operation_slot(v))
        return "--nflow x --nmsg x --nreq x --msize: at most 64G where contents are verified, which needs a buffer for "
               "each message";
    return NULL;
}

/* Fills in what was not given. */
static void settings_complete(struct options *o)
{
    uint64_t *v = o->value;
    const uint64_t *defaults = type_defaults[o->given[PERFTYPE] ? v[PERFTYPE] : TYPE_BASIC];
    if (v[PERFTYPE] == TYPE_BI) {
        o->given[BI] = true;
        v[BI] = 1;
    }
    for (unsigned i = 0; i < SETTINGS; i++)
        if (!o->given[i] || i == PERFTYPE)
            v[i] = defaults[i];
    if (o->warmup_wanted)
        v[WARMUP] = defaults[WARMUP] != 0 ? defaults[WARMUP] : WARMUP_USUAL;
    if (v[PERFTYPE] == TYPE_LAT)
        v[NREQ] = 1;
    uint64_t per_request = v[NFLOW] * (v[NMSG] / messages_per_operation(v)) * operation_slot(v);
    if (!o->given[NREQ] && type_checks(v[PERFTYPE]) && v[NREQ] > BASIC_MEMORY / per_request)
        v[NREQ] = BASIC_MEMORY / per_request != 0 ? BASIC_MEMORY / per_request : 1;
    while (!o->given[NREQ] && v[NREQ] > 1 && v[NFLOW] * v[NMSG] * v[NREQ] > TOOL_OUTSTANDING)
        v[NREQ]--;
}

/* True and false; 0 and 1 are numbers here. */
static bool parse_warmup_word(struct options *o, const char *text)
{
    o->warmup_wanted = strcmp(text, "true") == 0;
    if (!o->warmup_wanted && strcmp(text, "false") != 0)
        return false;
    o->value[WARMUP] = 0;
    o->given[WARMUP] = true;
    return true;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    if (key >= KEY_SETTING && key < KEY_SETTING + SETTINGS) {
        enum setting setting = (enum setting)(key - KEY_SETTING);
        if (setting == WARMUP && parse_warmup_word(o, text))
            return 0;
        o->value[setting] = parse_setting(state, setting, text);
        o->given[setting] = true;
        return 0;
    }
    switch (key) {
    case KEY_GPU:
        device_parse(state, "gpu", text, true, &o->device);
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->ends;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "%s: not an option (write booleans as --x or --x=true)", text);
        return 0;
    case ARGP_KEY_END:
        if (o->ends.server == (o->ends.server_at.host != NULL))
            argp_error(state, "give either --server or --serverip=HOST");
        settings_complete(o);
        if (settings_fault(o->value))
            argp_error(state, "%s", settings_fault(o->value));
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- starting a run ---- */

/* Takes the settings from a client's HELLO; 0, or why they are not allowed. */
static uint64_t take_settings(const struct tool_message *hello, void *context)
{
    struct run *run = context;
    for (unsigned i = 0; i < SETTINGS; i++) {
        run->value[i] = hello->field[1 + i];
        if (run->value[i] < setting_rows[i].min || run->value[i] > setting_rows[i].max)
            return TOOL_BAD_SETTING;
    }
    return !settings_fault(run->value) ? 0 : TOOL_BAD_SETTING;
}

static void note_other_settings(const struct options *o, const uint64_t *client)
{
    for (unsigned i = 0; i < SETTINGS; i++)
        if (o->given[i] && o->value[i] != client[i])
            printf("[Server] the client's --%s governs: %" PRIu64 " (here: %" PRIu64 ")\n", setting_rows[i].name,
                   client[i], o->value[i]);
}

static uccl_conn **allocate_conns(uint64_t count)
{
    uccl_conn **conns = calloc(count, sizeof(*conns));
    if (!conns)
        tool_fail("out of memory for %" PRIu64 " connections", count);
    return conns;
}

static void start_server(const struct options *o, struct run *run)
{
    uccl_listener *listener = tool_listen(run->engine, o->ends.server_at.port);
    uint64_t nonce;
    uccl_conn *first = tool_accept_client(listener, take_settings, run, &nonce);
    note_other_settings(o, run->value);
    run->conns = allocate_conns(run->value[NFLOW]);
    run->conns[0] = first;
    tool_tell(first, TOOL_WELCOME, NULL, 0, "accepting the client");
    tool_accept_joins(listener, nonce, run->conns, (uint32_t)run->value[NFLOW]);
    uccl_listener_close(listener);
}

static void start_client(const struct options *o, struct run *run)
{
    memcpy(run->value, o->value, sizeof(run->value));
    run->conns = allocate_conns(run->value[NFLOW]);
    tool_connect_all(run->engine, &o->ends.server_at, run->value, SETTINGS, run->conns, (uint32_t)run->value[NFLOW]);
}

static void print_plan(const struct run *run, const struct device_choice *device)
{
    const uint64_t *v = run->value;
    char size[16], where[32];
    printf("[%s] %s%s: %" PRIu64 " iterations (%" PRIu64 " before), %" PRIu64 " connections, %" PRIu64
           " requests of %" PRIu64 " messages of %s outstanding%s%s\n",
           tool_role, type_names[v[PERFTYPE]], v[BI] ? ", both directions" : "", v[ITERATIONS], v[WARMUP], v[NFLOW],
           v[NREQ], v[NMSG], tool_size_text(v[MSIZE], size), device->kind == DEVICE_CPU ? "" : " on ",
           device->kind == DEVICE_CPU ? "" : device_text(device, where));
}

/* Tells the peer where it may write or read, and learns the same of it. */
static void exchange_exports(struct run *run)
{
    static const char doing[] = "telling the peer of message buffers";
    uint32_t nflow = (uint32_t)run->value[NFLOW];
    struct tool_mail mail;
    if (run->sends)
        tool_mail_post(run->conns[0], &mail);
    if (run->receives)
        onesided_export(run->conns[0], &run->region, &run->exported, doing);
    if (!run->sends)
        return;
    run->remotes = calloc(nflow, sizeof(*run->remotes));
    if (!run->remotes)
        tool_fail("out of memory for %u connections", nflow);
    onesided_import(&mail, run->conns, nflow, run->remotes, doing);
    for (unsigned i = 0; i < run->stream_count; i++) {
        struct stream *s = &run->streams[i];
        /* the peer's streams stand in the same order: with --bi what is sent is before what is received */
        uint64_t peers = run->value[BI] ? i + 1 : i;
        s->remote = run->remotes[i / (run->sends + run->receives)];
        s->remote_at = peers * s->stride * s->buffer_count;
    }
}

static void make_streams(struct run *run, const struct device_choice *device)
{
    const uint64_t *v = run->value;
    bool lat = v[PERFTYPE] == TYPE_LAT, check = type_checks(v[PERFTYPE]);
    uint64_t per_operation = messages_per_operation(v), group = v[NMSG] / per_operation;
    run->sends = lat || v[BI] || !run->server;
    run->receives = lat || v[BI] || run->server;
    run->stream_count = (unsigned)v[NFLOW] * (run->sends + run->receives);
    run->streams = calloc(run->stream_count, sizeof(*run->streams));
    /* lat: the receives of the next iteration are posted before those of this one have ended */
    uint32_t window = (uint32_t)(group * (lat ? 2 : v[NREQ]));
    uint64_t stride = operation_slot(v);
    uint32_t buffers = stream_buffers(stride, window, check, TOOL_SHARED_BUFFERS / run->stream_count);
    region_make(&run->region, run->engine, device, stride * buffers * run->stream_count);
    for (unsigned i = 0; i < run->stream_count && run->streams; i++) {
        unsigned flow = i / (run->sends + run->receives);
        bool sends = run->sends && (!run->receives || i % 2 == 0);
        run->streams[i] = (struct stream){
            .conn = run->conns[flow],
            .channel = flow * 2 + (sends == run->server),
            .sends = sends,
            .op = type_op(v[PERFTYPE]),
            .ops = type_op(v[PERFTYPE]) != STREAM_SEND ? &onesided_ops : NULL,
            .pieces = (uint32_t)per_operation,
            .check = check,
            .flush = v[FLUSH],
            .window = window,
            .group = lat ? 1 : (uint32_t)group,
            .buffer_count = buffers,
            .stride = stride,
            .region = &run->region,
            .buffers = run->region.base + i * stride * buffers,
            .size = v[MSIZE] * per_operation,
            .requests = calloc(window, sizeof(uccl_request *)),
        };
        if (!run->streams[i].requests)
            run->streams = NULL;
    }
    if (!run->streams)
        tool_fail("out of memory for requests");
    if (v[PERFTYPE] == TYPE_WRITE || v[PERFTYPE] == TYPE_READ)
        exchange_exports(run);
}

/* ---- running ---- */

/* Returns when both sides have posted the receives that the phase starts with. */
static void meet(struct run *run)
{
    struct tool_mail mail;
    struct tool_message ready;
    tool_mail_post(run->conns[0], &mail);
    for (unsigned i = 0; i < run->stream_count; i++)
        if (!run->streams[i].sends && run->streams[i].op == STREAM_SEND)
            stream_post(&run->streams[i]);
        else if (!run->streams[i].sends)
            onesided_offer(&run->streams[i]);
    tool_tell(run->conns[0], TOOL_READY, NULL, 0, "starting together with the peer");
    tool_expect_mail(&mail, TOOL_READY, -1, "starting together with the peer", &ready);
}

static void count_bytes(const struct run *run, uint64_t *sent, uint64_t *received, uint64_t *messages)
{
    *sent = *received = *messages = 0;
    for (unsigned i = 0; i < run->stream_count; i++) {
        *(run->streams[i].sends ? sent : received) += run->streams[i].bytes;
        *messages += run->streams[i].ended * messages_per_operation(run->value);
    }
}

static void print_rate(const struct run *run, const char *direction, uint64_t bytes, uint64_t elapsed_ns)
{
    double gbps = tool_gbps(bytes, elapsed_ns);
    if (run->value[BI])
        printf(" %s", direction);
    printf(" %6.2f Gbps | %6.2f GB/s |", gbps, gbps / 8);
}

/* The line of a second. */
static void print_second(const struct run *run, unsigned second, uint64_t elapsed_ns, uint64_t last[3],
                         uint64_t retransmits)
{
    uint64_t now[3];
    count_bytes(run, &now[0], &now[1], &now[2]);
    printf("[%s] %4u s :", tool_role, second);
    if (run->sends)
        print_rate(run, "sent", now[0] - last[0], elapsed_ns);
    if (run->receives)
        print_rate(run, "received", now[1] - last[1], elapsed_ns);
    printf(" %9.0f messages/s | retransmissions %" PRIu64 "\n",
           (double)(now[2] - last[2]) * NS_PER_S / (double)elapsed_ns, retransmits);
    output_check();
    memcpy(last, now, sizeof(now));
}

static bool streams_running(const struct run *run)
{
    for (unsigned i = 0; i < run->stream_count; i++)
        if (run->streams[i].ended != run->streams[i].total)
            return true;
    return false;
}

/* All but lat: `iterations` requests on every stream, `nreq` of them outstanding. */
static void run_streams(struct run *run, uint64_t iterations, bool measured)
{
    for (unsigned i = 0; i < run->stream_count; i++) {
        struct stream *s = &run->streams[i];
        stream_restart(s, s->first_number + s->ended, iterations * s->group);
    }
    meet(run);
    bool lines = measured && run->value[PERFTYPE] == TYPE_TPT;
    unsigned next = 0, second = 0;
    uint64_t last[3] = {0}, retransmits = tool_retransmits(run->engine), cpu_ns = tool_cpu_ns();
    uint64_t start_ns = tool_now_ns(), line_ns = start_ns;
    while (streams_running(run)) {
        if (run->streams[0].op == STREAM_SEND)
            stream_turn(run->streams, run->stream_count, &next);
        else
            onesided_turn(run->engine, run->streams, run->stream_count, &next);
        uint64_t now_ns = lines ? tool_now_ns() : 0;
        if (lines && now_ns - line_ns >= NS_PER_S) {
            print_second(run, ++second, now_ns - line_ns, last, tool_retransmits(run->engine) - retransmits);
            line_ns = now_ns;
        }
    }
    run->elapsed_ns = tool_now_ns() - start_ns;
    run->cpu_ns = tool_cpu_ns() - cpu_ns;
    run->retransmits = tool_retransmits(run->engine) - retransmits;
    for (unsigned i = 0; i < run->stream_count; i++)
        if (!run->streams[i].sends && run->streams[i].op != STREAM_SEND)
            onesided_settle(&run->streams[i]);
}

/* The side that asks: nmsg messages out, nmsg back. */
static uint64_t ask(struct stream *send, struct stream *receive, uint64_t nmsg)
{
    stream_advance(receive, nmsg);
    uint64_t start_ns = tool_now_ns();
    stream_advance(send, nmsg);
    stream_finish(receive, 0);
    uint64_t elapsed_ns = tool_now_ns() - start_ns;
    stream_finish(send, 0);
    return elapsed_ns;
}

/* The side that answers; its receives for this iteration are posted, those for the next follow. */
static void answer(struct stream *send, struct stream *receive, uint64_t nmsg, bool more)
{
    stream_finish(receive, 0);
    if (more)
        stream_advance(receive, nmsg);
    stream_advance(send, nmsg);
    stream_finish(send, nmsg); /* of this iteration's they end with the next question's arrival */
}

/* Both sides ask and answer: in each direction the question of an iteration, then the answer. */
static uint64_t ask_and_answer(struct stream *send, struct stream *receive, uint64_t nmsg)
{
    stream_advance(receive, 2 * nmsg);
    uint64_t start_ns = tool_now_ns();
    stream_advance(send, nmsg);
    stream_finish(receive, nmsg);
    stream_advance(send, nmsg);
    stream_finish(receive, 0);
    uint64_t elapsed_ns = tool_now_ns() - start_ns;
    stream_finish(send, 0);
    return elapsed_ns;
}

/* lat: one round trip at a time, the connections in turn. */
static void run_round_trips(struct run *run, uint64_t iterations, bool measured)
{
    uint64_t nflow = run->value[NFLOW], nmsg = run->value[NMSG];
    bool bi = run->value[BI], answers = run->server && !bi;
    for (unsigned i = 0; i < run->stream_count; i++)
        stream_restart(&run->streams[i], 0, answers && i % 2 == 1 && i / 2 < iterations ? nmsg : 0);
    meet(run);
    uint64_t retransmits = tool_retransmits(run->engine), cpu_ns = tool_cpu_ns();
    uint64_t start_ns = tool_now_ns();
    for (uint64_t i = 0; i < iterations; i++) {
        struct stream *send = &run->streams[i % nflow * 2], *receive = send + 1;
        uint64_t elapsed_ns = 0;
        if (answers)
            answer(send, receive, nmsg, i + nflow < iterations);
        else
            elapsed_ns = bi ? ask_and_answer(send, receive, nmsg) : ask(send, receive, nmsg);
        if (measured && run->samples)
            run->samples[i] = tool_sample(elapsed_ns / 2);
    }
    for (unsigned i = 0; i < run->stream_count; i++)
        stream_finish(&run->streams[i], 0);
    run->elapsed_ns = tool_now_ns() - start_ns;
    run->cpu_ns = tool_cpu_ns() - cpu_ns;
    run->retransmits = tool_retransmits(run->engine) - retransmits;
}

static void run_phase(struct run *run, uint64_t iterations, bool measured)
{
    if (run->value[PERFTYPE] == TYPE_LAT)
        run_round_trips(run, iterations, measured);
    else
        run_streams(run, iterations, measured);
}

/* ---- the result ---- */

/* Fields of the RESULT message. */
enum result { WRONG, CHANNEL, NUMBER, OFFSET, EXPECTED, GOT, CPU_NS, RETRANSMITS, RESULTS };

static void own_result(const struct run *run, uint64_t *result)
{
    memset(result, 0, RESULTS * sizeof(*result));
    result[CPU_NS] = run->cpu_ns;
    result[RETRANSMITS] = run->retransmits;
    for (unsigned i = 0; i < run->stream_count; i++) {
        const struct stream *s = &run->streams[i];
        if (s->wrong != 0 && result[WRONG] == 0) {
            result[CHANNEL] = s->first_wrong.channel;
            result[NUMBER] = s->first_wrong.number;
            result[OFFSET] = s->first_wrong.offset;
            result[EXPECTED] = s->first_wrong.expected;
            result[GOT] = s->first_wrong.got;
        }
        result[WRONG] += s->wrong;
    }
}

/*
 * The client speaks first. The server's answer tells it that its own has arrived; of the server's,
 * the client may close before the server knows it arrived, which is no failure any more.
 */
static void exchange_results(const struct run *run, const uint64_t *own, struct tool_message *other)
{
    static const char doing[] = "exchanging results";
    if (!run->server) {
        struct tool_mail mail;
        tool_mail_post(run->conns[0], &mail);
        tool_tell(run->conns[0], TOOL_RESULT, own, RESULTS, doing);
        tool_expect_mail(&mail, TOOL_RESULT, -1, doing, other);
        return;
    }
    tool_expect(run->conns[0], TOOL_RESULT, doing, other);
    int rc = tool_message_send(run->conns[0], TOOL_RESULT, own, RESULTS);
    if (rc != 0 && rc != UCCL_ECLOSED)
        tool_fail_uccl(rc, "while %s", doing);
}

static void print_latency(struct run *run)
{
    static const struct {
        const char *name;
        double percent;
    } rows[] = {{"min", 0}, {"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}};
    size_t count = run->value[ITERATIONS];
    char size[16];
    if (!run->samples)
        return;
    tool_sort(run->samples, count);
    printf("[%s] half round trip of %" PRIu64 " x %s, %zu samples, in us:", tool_role, run->value[NMSG],
           tool_size_text(run->value[MSIZE], size), count);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        printf(" %s %.2f", rows[i].name, tool_percentile(run->samples, count, rows[i].percent) / 1000.0);
    printf("\n");
}

static void print_summary(const struct run *run, const uint64_t *own, const uint64_t *other)
{
    uint64_t sent, received, messages;
    count_bytes(run, &sent, &received, &messages);
    uint64_t bytes = sent + received;
    printf("[%s] total  :", tool_role);
    if (run->sends)
        print_rate(run, "sent", sent, run->elapsed_ns);
    if (run->receives)
        print_rate(run, "received", received, run->elapsed_ns);
    printf(" %9.0f messages/s | %" PRIu64 " messages, %.2f GiB in %.3f s\n",
           (double)messages * NS_PER_S / (double)run->elapsed_ns, messages, (double)bytes / GIB,
           (double)run->elapsed_ns / NS_PER_S);
    printf("[%s] retransmissions: %" PRIu64 " here, %" PRIu64 " at the peer | CPU: %.3f s/GiB here, "
           "%.3f s/GiB at the peer\n",
           tool_role, own[RETRANSMITS], other[RETRANSMITS], tool_per_gib(own[CPU_NS], bytes),
           tool_per_gib(other[CPU_NS], bytes));
    tool_print_nics(run->engine);
}

/* Returns the exit status. */
static int conclude(struct run *run)
{
    uint64_t own[RESULTS];
    struct tool_message other;
    own_result(run, own);
    exchange_results(run, own, &other);
    const uint64_t *field = other.field;
    if (run->value[PERFTYPE] == TYPE_LAT)
        print_latency(run);
    else
        print_summary(run, own, field);
    if (field[WRONG] != 0) {
        struct tool_mismatch first = {field[CHANNEL], field[NUMBER], field[OFFSET], field[EXPECTED], field[GOT]};
        tool_print_mismatch(run->server ? "seen by the client" : "seen by the server", &first);
    }
    if (own[WRONG] + field[WRONG] != 0) {
        fflush(stdout);
        fprintf(stderr, "[%s] FAILED: %" PRIu64 " messages with wrong data here, %" PRIu64 " at the peer\n", tool_role,
                own[WRONG], field[WRONG]);
        return EXIT_FAILURE;
    }
    printf("[%s] done%s\n", tool_role,
           type_checks(run->value[PERFTYPE]) ? ": every byte of every message verified" : "");
    return EXIT_SUCCESS;
}

static void finish(struct run *run)
{
    for (uint64_t i = 0; i < run->value[NFLOW]; i++)
        uccl_conn_close(run->conns[i]);
    for (uint64_t i = 0; run->remotes && i < run->value[NFLOW]; i++)
        uccl_remote_free(run->remotes[i]);
    onesided_revoke(run->exported);
    region_free(&run->region);
    uccl_close(run->engine);
    for (unsigned i = 0; i < run->stream_count; i++) {
        free(run->streams[i].requests);
        free(run->streams[i].list);
        free(run->streams[i].moved);
    }
    free(run->streams);
    free(run->remotes);
    free(run->conns);
    free(run->samples);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_rows,
        .parser = parse_option,
        .children = tool_ends_options,
        .doc = "Sends messages between two processes through libuccl-engine and tells whether and how "
               "fast they arrive.\v"
               "Booleans are written --x or --x=true|false|1|0, other values --x=v or --x v. Exit "
               "status: 0 on success; 1 if the peer dies, refuses or data is wrong; 64 for wrong usage. "
               "UCCL_* variables set the engine's parameters: see uccl_info --params.\n"
               "  transport_test --server=true\n"
               "  transport_test --serverip=10.0.0.1 --perftype=tpt --nflow=4",
    };
    struct options options = {.ends = TOOL_ENDS};
    struct run run = {0};
    char fault[256];
    output_begin("transport_test");
    setvbuf(stdout, NULL, _IOLBF, 0);
    argp_program_version_hook = tool_print_version;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    tool_role = options.ends.server ? "Server" : "Client";
    tool_self = TOOL_TRANSPORT_TEST;
    run.server = options.ends.server;
    if (!device_open(&options.device, fault))
        tool_fail("--gpu: %s", fault);
    tool_choose_nic(&options.ends.nic);
    tool_choose_threads(options.ends.num_cpus);
    run.engine = tool_open(options.ends.log_info);
    if (run.server)
        start_server(&options, &run);
    else
        start_client(&options, &run);
    print_plan(&run, &options.device);
    make_streams(&run, &options.device);
    if (run.value[PERFTYPE] == TYPE_LAT && (!run.server || run.value[BI])) {
        run.samples = calloc(run.value[ITERATIONS], sizeof(*run.samples));
        if (!run.samples)
            tool_fail("out of memory for %" PRIu64 " samples", run.value[ITERATIONS]);
    }
    if (run.value[WARMUP] != 0)
        run_phase(&run, run.value[WARMUP], false);
    run_phase(&run, run.value[ITERATIONS], true);
    int status = conclude(&run);
    finish(&run);
    return status;
}
