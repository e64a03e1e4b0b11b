/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p2p_bench: latency and throughput between two processes over a sweep of message sizes.
 *
 * Two connections: one for data, one for control. The client decides. Per phase it sends PHASE on
 * the control connection, the server posts its receives and answers READY, data flows, and the
 * server reports RESULT: its CPU time, retransmissions, and what it found wrong. Per size:
 *
 *   check       one window of messages, contents verified (unless --verify=false)
 *   warm-up     as throughput, not reported
 *   ping-pong   one message at a time: half round trips measured
 *   throughput  `window` sends outstanding; one post and one completion per message
 *
 * A phase that is limited by time ends without a count agreed before: the sender goes on with empty
 * messages, `window` of them, which is what the receiver has posted when it sees the first.
 */
#include "output.h"
#include "p2p_local.h"
#include "p2p_report.h"
#include "p2p_side.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SIZES_MAX = 64,
    WINDOW_MIN = 4, /* of an automatic window */
    WINDOW_AUTO = 256,
};

struct options {
    struct tool_ends ends;
    unsigned size_count;
    uint64_t sizes[SIZES_MAX];
    uint32_t window;  /* 0: by message size */
    uint32_t buffers; /* that its messages take in turn; 0: one each */
    uint64_t warmup;  /* 0: a tenth of the time */
    struct report_setup report;
    bool json;
    bool csv;
    const char *plot;
    struct device_choice sender;   /* client */
    struct device_choice receiver; /* server */
    bool device_given;
    bool local_gpu_given;
    struct device_choice local_gpu; /* of this side */
    int report_fd;                  /* server of --local: tell the port here; -1: none */
    uint32_t given;                 /* bit per key from KEY_LOCAL on */
};

/* ---- command line ---- */

enum {
    KEY_LOCAL = 1000,
    KEY_SIZES,
    KEY_WINDOW,
    KEY_BUFFERS,
    KEY_ITERATIONS,
    KEY_WARMUP,
    KEY_SECONDS,
    KEY_BI,
    KEY_OP,
    KEY_PIECES,
    KEY_DEVICE,
    KEY_SENDER_DEVICE,
    KEY_RECEIVER_DEVICE,
    KEY_LOCAL_GPU,
    KEY_PINNED,
    KEY_VERIFY,
    KEY_JSON,
    KEY_CSV,
    KEY_PLOT,
    KEY_REPORT_FD
};

static const struct argp_option option_rows[] = {
    {"local", KEY_LOCAL, "BOOL", OPTION_ARG_OPTIONAL,
     "Start both sides on this machine as two processes, on a free port unless --oobport names one; --backend and "
     "--dev apply to both",
     TOOL_GROUP_SIDE},
    {0, 0, 0, 0, "What to measure (client):", 2},
    {"sizes", KEY_SIZES, "LIST", 0,
     "Message sizes in bytes, with K, M or G for powers of 1024 "
     "(default 256,1K,4K,16K,64K,256K,1M,10M,100M)",
     2},
    {"seconds", KEY_SECONDS, "S", 0, "Time of the throughput phase of each size (default 1)", 2},
    {"iterations", KEY_ITERATIONS, "N", 0, "Messages of the throughput phase instead of a time; 0: by time (default 0)",
     2},
    {"iters", 0, NULL, OPTION_ALIAS, NULL, 0},
    {"warmup", KEY_WARMUP, "N", 0, "Messages before the clock starts; 0: a tenth of --seconds (default 0)", 2},
    {"window", KEY_WINDOW, "N", 0, "Messages outstanding; 0: about 8 MiB of them, 4 to 256 (default 0)", 2},
    {"buffers", KEY_BUFFERS, "N", 0,
     "Buffers on each side that the outstanding messages take in turn; 1: all use the same, which stays in the cache. "
     "0: one each, as far as 128 MiB hold them (default 0)",
     2},
    {"bi", KEY_BI, "BOOL", OPTION_ARG_OPTIONAL, "Both directions at once (default false: client to server)", 2},
    {"op", KEY_OP, "OP", 0,
     "send: sends and receives; write, read: the client writes to the server's memory or reads it (default send)", 2},
    {"pieces", KEY_PIECES, "N", 0,
     "Pieces of each message that is written or read, which lie apart at both sides; at most one per byte (default 1)",
     2},
    {"verify", KEY_VERIFY, "BOOL", OPTION_ARG_OPTIONAL,
     "true: verify contents of every message, which costs speed; false: of none (default: of the "
     "first window of each size)",
     2},
    {0, 0, 0, 0, "Memory of messages (client):", 3},
    {"device", KEY_DEVICE, "WHERE", 0, "cpu, cuda:N or hip:N, on both sides (default cpu)", 3},
    {"sender-device", KEY_SENDER_DEVICE, "WHERE", 0, "The same for the client, which sends", 3},
    {"receiver-device", KEY_RECEIVER_DEVICE, "WHERE", 0, "The same for the server", 3},
    {"local-gpu-idx", KEY_LOCAL_GPU, "N", 0,
     "GPU N on both sides, of the runtime that has GPUs, unless a flag above names the memory; a server's own N counts "
     "there. Host memory where the client has no GPU",
     3},
    {"pinned", KEY_PINNED, "BOOL", OPTION_ARG_OPTIONAL,
     "Page-lock host memory on both sides, by the GPU driver (default false)", 3},
    {0, 0, 0, 0, "Report (client):", 4},
    {"json", KEY_JSON, "BOOL", OPTION_ARG_OPTIONAL, "JSON and nothing else on stdout (default false)", 4},
    {"csv", KEY_CSV, "BOOL", OPTION_ARG_OPTIONAL, "CSV and nothing else on stdout (default false)", 4},
    {"plot", KEY_PLOT, "FILE.svg", 0, "Draw throughput and latency over size, with gnuplot (default none)", 4},
    {"report-fd", KEY_REPORT_FD, "FD", OPTION_HIDDEN, "", TOOL_GROUP_CONNECTING},
    {0},
};

static void parse_sizes(struct argp_state *state, struct options *o, const char *text)
{
    char copy[1024], *rest = copy, *item;
    if (strlen(text) >= sizeof(copy)) {
        argp_error(state, "--sizes: at most %zu characters", sizeof(copy) - 1);
        return;
    }
    snprintf(copy, sizeof(copy), "%s", text);
    o->size_count = 0;
    while ((item = strsep(&rest, ","))) {
        if (o->size_count == SIZES_MAX) {
            argp_error(state, "--sizes=%s: at most %d sizes", text, SIZES_MAX);
            return;
        }
        if (!*item)
            argp_error(state, "--sizes=%s: entry %zu is empty", text, (size_t)o->size_count + 1);
        o->sizes[o->size_count++] = tool_parse_size(state, "sizes", item, 1, TOOL_SIZE_MAX);
    }
}

static enum stream_op parse_op(struct argp_state *state, const char *text)
{
    for (enum stream_op op = STREAM_SEND; op <= STREAM_READ; op++)
        if (strcmp(text, report_op_names[op]) == 0)
            return op;
    argp_error(state, "--op=%s: allowed are send, write and read", text);
    return STREAM_SEND;
}

static void check_options(struct argp_state *state, const struct options *o)
{
    if (o->ends.server + o->report.local + (o->ends.server_at.host != NULL) != 1)
        argp_error(state, "give one of --server, --serverip=HOST and --local");
    if (o->report.pieces != 1 && o->report.op == STREAM_SEND)
        argp_error(state, "--pieces: only with --op=write or --op=read");
    if (o->json && o->csv)
        argp_error(state, "--json and --csv exclude each other");
}

static void note_given(struct options *o, int key)
{
    if (key >= KEY_LOCAL && key <= KEY_REPORT_FD)
        o->given |= UINT32_C(1) << (key - KEY_LOCAL);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    note_given(o, key);
    switch (key) {
    case KEY_LOCAL:
        o->report.local = tool_parse_bool(state, "local", text);
        return 0;
    case KEY_SIZES:
        parse_sizes(state, o, text);
        return 0;
    case KEY_WINDOW:
    case KEY_BUFFERS:
        *(key == KEY_WINDOW ? &o->window : &o->buffers) =
            (uint32_t)tool_parse_number(state, key == KEY_WINDOW ? "window" : "buffers", text, 0, WINDOW_MAX);
        return 0;
    case KEY_ITERATIONS:
    case KEY_WARMUP:
        *(key == KEY_WARMUP ? &o->warmup : &o->report.iterations) =
            tool_parse_number(state, key == KEY_WARMUP ? "warmup" : "iterations", text, 0, 1000000000000);
        return 0;
    case KEY_SECONDS:
        o->report.seconds = tool_parse_real(state, "seconds", text, 0.001, 86400);
        return 0;
    case KEY_BI:
        o->report.bi = tool_parse_bool(state, "bi", text);
        return 0;
    case KEY_OP:
        o->report.op = parse_op(state, text);
        return 0;
    case KEY_PIECES:
        o->report.pieces = (uint32_t)tool_parse_number(state, "pieces", text, 1, STREAM_PIECES_MAX);
        return 0;
    case KEY_DEVICE:
        device_parse(state, "device", text, false, &o->sender);
        device_parse(state, "device", text, false, &o->receiver);
        o->device_given = true;
        return 0;
    case KEY_SENDER_DEVICE:
        device_parse(state, "sender-device", text, false, &o->sender);
        o->device_given = true;
        return 0;
    case KEY_RECEIVER_DEVICE:
        device_parse(state, "receiver-device", text, false, &o->receiver);
        o->device_given = true;
        return 0;
    case KEY_LOCAL_GPU:
        tool_parse_number(state, "local-gpu-idx", text, 0, 1023);
        device_parse(state, "local-gpu-idx", text, true, &o->local_gpu);
        o->local_gpu_given = true;
        return 0;
    case KEY_PINNED:
        o->sender.pinned = o->receiver.pinned = tool_parse_bool(state, "pinned", text);
        return 0;
    case KEY_VERIFY:
        o->report.verify = tool_parse_bool(state, "verify", text) ? VERIFY_ALL : VERIFY_NONE;
        return 0;
    case KEY_JSON:
    case KEY_CSV:
        *(key == KEY_JSON ? &o->json : &o->csv) = tool_parse_bool(state, key == KEY_JSON ? "json" : "csv", text);
        return 0;
    case KEY_PLOT:
        o->plot = text;
        return 0;
    case KEY_REPORT_FD:
        o->report_fd = (int)tool_parse_number(state, "report-fd", text, 0, 1 << 20);
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->ends;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "%s: not an option (write booleans as --x or --x=true)", text);
        return 0;
    case ARGP_KEY_END:
        check_options(state, o);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* A server's flags that count at the client alone. */
static void note_client_flags(const struct options *o)
{
    const char *before = "[Server] the client decides, without effect here: ";
    for (size_t i = 0; i < sizeof(option_rows) / sizeof(option_rows[0]); i++) {
        const struct argp_option *row = &option_rows[i];
        bool of_client = row->key >= KEY_SIZES && row->key <= KEY_PLOT && row->key != KEY_LOCAL_GPU;
        if (!of_client || !(o->given >> (row->key - KEY_LOCAL) & 1))
            continue;
        printf("%s--%s", before, row->name);
        before = ", ";
    }
    if (before[0] == ',')
        printf("\n");
}

/* ---- one phase, either side ---- */

static uint32_t fitting_window(uint64_t slot, uint32_t window, uint64_t memory)
{
    uint64_t fit = memory / slot;
    return fit >= window ? window : fit == 0 ? 1 : (uint32_t)fit;
}

/* Both sides begin together: the client says with what. */
static void begin_phase(struct side *side, const struct phase *phase)
{
    struct tool_message ready;
    uint64_t fields[PHASE_FIELDS];
    if (side->server) {
        tool_tell(side->conns[CONTROL], TOOL_READY, NULL, 0, "starting a phase");
        return;
    }
    memcpy(fields, phase, sizeof(fields));
    tool_tell(side->conns[CONTROL], TOOL_PHASE, fields, PHASE_FIELDS, "starting a phase");
    tool_expect(side->conns[CONTROL], TOOL_READY, "starting a phase", &ready);
}

static struct stream make_stream(struct side *side, const struct phase *phase, bool sends)
{
    struct stream s = {
        .conn = side->conns[DATA],
        .channel = sends == side->server, /* 1: the server sends */
        .sends = sends,
        .check = phase->check,
        .window = (uint32_t)phase->window,
        .group = 1,
        .buffer_count = p2p_buffers(side, phase, stream_stride(phase->size)),
        .stride = stream_stride(phase->size),
        .region = sends ? &side->send_memory : &side->receive_memory,
        .buffers = sends ? side->send_memory.base : side->receive_memory.base,
        .size = phase->size,
        .may_stop = !sends,
        .requests = sends ? side->send_requests : side->receive_requests,
    };
    stream_restart(&s, phase->number << TOOL_PHASE_SHIFT, 0);
    return s;
}

/* Ends a sending stream when its count or time is reached, and then lets the receiver know. */
static void limit_sender(struct stream *s, const struct phase *phase, uint64_t start_ns, uint64_t *elapsed_ns)
{
    if (s->stop_from != STREAM_NONE)
        return;
    stream_end_in_time(s, start_ns, phase->limit_ns);
    if (s->ended != s->total)
        return;
    *elapsed_ns = tool_now_ns() - start_ns;
    s->stop_from = s->total;
    s->total += phase->window;
}

static void run_stream_phase(struct side *side, const struct phase *phase, struct stream *streams, struct outcome *out)
{
    bool sends = !side->server || phase->bi;
    unsigned count = phase->bi ? 2 : 1, next = 0;
    struct stream *sender = sends ? &streams[0] : NULL;
    struct stream *receiver = sends ? (phase->bi ? &streams[1] : NULL) : &streams[0];
    uint64_t start_ns = tool_now_ns();
    while ((sender && sender->ended != sender->total) || (receiver && receiver->ended != receiver->total)) {
        stream_turn(streams, count, &next);
        if (sender)
            limit_sender(sender, phase, start_ns, &out->elapsed_ns);
        /* posted by now: one window beyond the first empty message, and as many of them come */
        if (receiver && receiver->stopped_at != STREAM_NONE)
            receiver->total = receiver->stopped_at + phase->window;
    }
    if (!sender)
        out->elapsed_ns = tool_now_ns() - start_ns;
    else
        out->messages = sender->stop_from;
}

static void run_ping_phase(struct side *side, const struct phase *phase, struct stream *streams, struct outcome *out)
{
    struct stream *sender = &streams[0], *receiver = &streams[1];
    uint64_t start_ns = tool_now_ns(), count = 0;
    if (side->server) {
        for (;;) {
            stream_finish(receiver, 0);
            if (receiver->stopped_at != STREAM_NONE)
                break;
            stream_advance(receiver, 1);
            stream_advance(sender, 1);
            stream_finish(sender, 1);
        }
        stream_finish(sender, 0);
        return;
    }
    /* the first few warm up */
    for (int warmup = phase->size <= 65536 ? 50 : 2; count < phase->count; warmup--) {
        stream_advance(receiver, 1);
        uint64_t post_ns = tool_now_ns();
        stream_advance(sender, 1);
        stream_finish(receiver, 0);
        uint64_t now_ns = tool_now_ns();
        stream_finish(sender, 0);
        if (warmup <= 0)
            side->samples[count++] = tool_sample((now_ns - post_ns) / 2);
        if (count >= PING_MIN && now_ns - start_ns >= phase->limit_ns)
            break;
    }
    sender->stop_from = sender->total;
    stream_advance(sender, 1);
    stream_finish(sender, 0);
    out->messages = count;
}

/* Runs a phase that both sides know, up to the end of its data. */
static struct outcome run_phase(struct side *side, const struct phase *phase)
{
    bool ping = phase->kind == PHASE_PING, sends = !side->server || phase->bi || ping;
    struct stream streams[2];
    unsigned count = 0;
    struct outcome out = {0};
    if (phase->op != STREAM_SEND)
        return p2p_onesided_phase(side, phase, begin_phase);
    if (sends) {
        streams[count] = make_stream(side, phase, true);
        streams[count++].total = ping ? 0 : phase->count != 0 ? phase->count : STREAM_NONE;
    }
    if (side->server || phase->bi || ping) {
        struct stream *receiver = &streams[count++];
        *receiver = make_stream(side, phase, false);
        receiver->total = ping ? side->server : STREAM_NONE;
        stream_post(receiver);
    }
    begin_phase(side, phase);
    uint64_t retransmits = tool_retransmits(side->engine), cpu_ns = tool_cpu_ns();
    if (ping)
        run_ping_phase(side, phase, streams, &out);
    else
        run_stream_phase(side, phase, streams, &out);
    out.cpu_ns = tool_cpu_ns() - cpu_ns;
    out.retransmits = tool_retransmits(side->engine) - retransmits;
    p2p_add_streams(&out, streams, count);
    return out;
}

/* ---- server ---- */

static bool phase_allowed(const struct side *side, const struct phase *p)
{
    if (p->size < 1 || p->size > TOOL_SIZE_MAX || p->op != side->op || p->pieces < 1 || p->pieces > STREAM_PIECES_MAX ||
        p->pieces > p->size)
        return false;
    uint64_t slot = onesided_slot(p->size, (uint32_t)p->pieces);
    return (p->kind == PHASE_STREAM || p->kind == PHASE_PING) && p->window >= 1 && p->window <= WINDOW_MAX &&
           p->check <= 1 && p->bi <= 1 && slot <= side->memory && (!p->check || slot * p->window <= side->memory);
}

static uint64_t take_memory(const struct tool_message *hello, void *context)
{
    struct side *side = context;
    char fault[256];
    side->memory = hello->field[1];
    side->op = (enum stream_op)hello->field[3];
    if (side->memory > TOOL_MEMORY_MAX || hello->field[3] > STREAM_READ ||
        !device_unpack(hello->field[2], &side->device))
        return TOOL_BAD_SETTING;
    if (side->device.kind != DEVICE_CPU && side->own_gpu)
        side->device = *side->own_gpu;
    if (device_open(&side->device, fault))
        return 0;
    fprintf(stderr, "[Server] error: memory of the server: %s\n", fault);
    return TOOL_NO_DEVICE;
}

/* After both ends have agreed to it. */
static void make_memory(struct side *side)
{
    region_make(&side->send_memory, side->engine, &side->device, side->memory);
    region_make(&side->receive_memory, side->engine, &side->device, side->memory);
}

static void start_server(const struct options *o, struct side *side)
{
    uccl_listener *listener = tool_listen(side->engine, o->ends.server_at.port);
    uint16_t port = uccl_listener_port(listener);
    uint64_t nonce;
    if (o->report_fd >= 0 && write(o->report_fd, &port, sizeof(port)) != sizeof(port))
        tool_fail("cannot tell the port to the process that started this one");
    if (o->report_fd >= 0)
        close(o->report_fd);
    side->conns[DATA] = tool_accept_client(listener, take_memory, side, &nonce);
    make_memory(side);
    tool_tell(side->conns[DATA], TOOL_WELCOME, NULL, 0, "accepting the client");
    tool_accept_joins(listener, nonce, side->conns, CONNS);
    if (side->op != STREAM_SEND)
        p2p_onesided_open(side);
    uccl_listener_close(listener);
}

static void print_server_line(const struct phase *phase, const struct outcome *out)
{
    char size[16];
    double received = tool_gbps(out->received, out->elapsed_ns);
    printf("[Server] %8s : received %6.2f Gbps | %6.2f GB/s |", tool_size_text(phase->size, size), received,
           received / 8);
    if (phase->bi) {
        double sent = tool_gbps(out->bytes, out->elapsed_ns);
        printf(" sent %6.2f Gbps | %6.2f GB/s |", sent, sent / 8);
    }
    printf(" retransmissions %" PRIu64 " | CPU %.3f s/GiB\n", out->retransmits,
           tool_per_gib(out->cpu_ns, out->bytes + out->received));
}

/* Serves phases until the client has had enough; returns the exit status. */
static int serve(struct side *side)
{
    uint64_t wrong = 0;
    bool after_ping = false;
    for (;;) {
        struct tool_mail mail;
        struct tool_message message = {0};
        struct phase phase;
        uint64_t fields[OUTCOME_FIELDS];
        tool_mail_post(side->conns[CONTROL], &mail);
        int rc = tool_mail_wait(&mail, -1, &message);
        if (rc < 0)
            tool_fail_uccl(rc, "waiting for the client's next phase");
        if (rc == 0 && message.kind == TOOL_END) {
            rc = tool_message_send(side->conns[CONTROL], TOOL_END, &wrong, 1);
            /* closed: the client has seen it and left before we knew */
            if (rc != 0 && rc != UCCL_ECLOSED)
                tool_fail_uccl(rc, "saying goodbye to the client");
            if (message.field[0] > wrong) /* the client's count has ours in it */
                wrong = message.field[0];
            break;
        }
        memcpy(&phase, message.field, sizeof(phase));
        if (rc != 0 || message.kind != TOOL_PHASE || !phase_allowed(side, &phase))
            tool_fail("the client asks for something this server does not know");
        struct outcome out = run_phase(side, &phase);
        memcpy(fields, &out, sizeof(fields));
        wrong += out.wrong;
        tool_tell(side->conns[CONTROL], TOOL_RESULT, fields, OUTCOME_FIELDS, "reporting a phase to the client");
        /* the measured phase of a size is the one after ping-pong */
        if (after_ping)
            print_server_line(&phase, &out);
        after_ping = phase.kind == PHASE_PING;
    }
    if (wrong == 0)
        printf("[Server] done\n");
    else
        fprintf(stderr, "[Server] FAILED: %" PRIu64 " messages with wrong data on both sides\n", wrong);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- client ---- */

static uint32_t window_of(const struct options *o, uint64_t size)
{
    if (o->window != 0)
        return o->window;
    uint64_t window = 8 * MIB / size;
    return window > WINDOW_AUTO ? WINDOW_AUTO : window < WINDOW_MIN ? WINDOW_MIN : (uint32_t)window;
}

/* A message has at least a byte per piece. */
static uint32_t pieces_of(const struct options *o, uint64_t size)
{
    return size < o->report.pieces ? (uint32_t)size : o->report.pieces;
}

static void start_client(const struct options *o, struct side *side)
{
    char fault[256];
    side->device = o->sender;
    if (!device_open(&side->device, fault))
        tool_fail("memory of the client: %s", fault);
    for (unsigned i = 0; i < o->size_count; i++) {
        uint64_t slot = onesided_slot(o->sizes[i], pieces_of(o, o->sizes[i]));
        uint64_t need = slot * fitting_window(slot, window_of(o, o->sizes[i]), TOOL_SHARED_BUFFERS);
        side->memory = need > side->memory ? need : side->memory;
    }
    make_memory(side);
    uint64_t settings[] = {side->memory, device_pack(&o->receiver), o->report.op};
    side->op = o->report.op;
    tool_connect_all(side->engine, &o->ends.server_at, settings, 3, side->conns, CONNS);
    if (side->op != STREAM_SEND)
        p2p_onesided_open(side);
}

/* The bar on a terminal; an empty `what` wipes it. */
static void show_progress(const struct options *o, unsigned done, const char *what)
{
    char size[16];
    if (!isatty(STDERR_FILENO))
        return;
    if (what[0] == '\0') {
        fprintf(stderr, "\r\033[K");
        return;
    }
    fprintf(stderr, "\r\033[K[");
    for (unsigned i = 0; i < o->size_count; i++)
        fputc(i < done ? '#' : i == done ? '>' : '.', stderr);
    fprintf(stderr, "] %s: %s", tool_size_text(o->sizes[done], size), what);
}

/* A phase here and at the server. `wrong` grows by the messages with wrong contents. */
struct both {
    struct outcome client;
    struct outcome server;
};

static struct both command_phase(struct side *side, struct phase phase, uint64_t *wrong)
{
    struct tool_message message;
    struct both both;
    phase.number = ++side->phases;
    both.client = run_phase(side, &phase);
    tool_expect(side->conns[CONTROL], TOOL_RESULT, "waiting for the server's result", &message);
    memcpy(&both.server, message.field, sizeof(both.server));
    if (both.server.wrong != 0)
        tool_print_mismatch("seen by the server", &both.server.first_wrong);
    *wrong += both.client.wrong + both.server.wrong;
    return both;
}

static void fill_latency(struct side *side, const struct outcome *ping, struct result *row)
{
    row->latency_samples = ping->messages;
    tool_sort(side->samples, row->latency_samples);
    row->latency_us[0] = tool_percentile(side->samples, row->latency_samples, 50) / 1000.0;
    row->latency_us[1] = tool_percentile(side->samples, row->latency_samples, 99) / 1000.0;
}

static void fill_throughput(const struct both *both, enum stream_op op, struct result *row)
{
    const struct outcome *client = &both->client, *server = &both->server;
    uint64_t bytes = client->bytes + server->bytes;
    row->messages = client->messages + server->messages;
    row->elapsed_ns = client->elapsed_ns;
    row->gbps_sent = tool_gbps(client->bytes, client->elapsed_ns);
    row->gbps_received = tool_gbps(server->bytes, server->elapsed_ns);
    row->gbps = row->gbps_sent + row->gbps_received;
    if (op == STREAM_READ) { /* what the client has read went the other way */
        double sent = row->gbps_received;
        row->gbps_received = row->gbps_sent;
        row->gbps_sent = sent;
    }
    row->messages_per_s = row->gbps * 1e9 / 8 / (double)row->size;
    row->retransmits = client->retransmits + server->retransmits;
    row->cpu_client = tool_per_gib(client->cpu_ns, bytes);
    row->cpu_server = tool_per_gib(server->cpu_ns, bytes);
}

/* Measures one size. Returns the number of messages with wrong contents. */
static uint64_t measure(struct side *side, const struct options *o, unsigned index, struct result *row)
{
    uint64_t size = o->sizes[index], limit_ns = (uint64_t)(o->report.seconds * 1e9), wrong = 0;
    uint32_t pieces = pieces_of(o, size), window = window_of(o, size);
    uint32_t fit = fitting_window(onesided_slot(size, pieces), window, side->memory);
    bool all = o->report.verify == VERIFY_ALL;
    struct phase phase = {
        .size = size, .bi = o->report.bi, .op = o->report.op, .pieces = pieces, .buffers = o->buffers};
    struct both both;
    *row = (struct result){.size = size, .window = all ? fit : window, .pieces = pieces};
    if (o->report.verify != VERIFY_NONE) {
        show_progress(o, index, "verifying");
        phase.kind = PHASE_STREAM;
        phase.window = phase.count = fit;
        phase.check = true;
        command_phase(side, phase, &wrong);
    }
    phase.check = all;

    show_progress(o, index, "warming up");
    phase.kind = PHASE_STREAM;
    phase.window = row->window;
    phase.count = o->warmup != 0 ? o->warmup : o->report.iterations;
    phase.limit_ns = o->warmup != 0 ? 0 : limit_ns / 10;
    command_phase(side, phase, &wrong);

    show_progress(o, index, "latency");
    phase.kind = PHASE_PING;
    phase.window = all && fit < 2 ? 1 : 2;
    phase.count = o->report.iterations != 0 && o->report.iterations < PING_MAX ? o->report.iterations : PING_MAX;
    phase.limit_ns = limit_ns / 4;
    both = command_phase(side, phase, &wrong);
    fill_latency(side, &both.client, row);

    show_progress(o, index, "throughput");
    phase.kind = PHASE_STREAM;
    phase.window = row->window;
    phase.count = o->report.iterations;
    phase.limit_ns = o->report.iterations != 0 ? 0 : limit_ns;
    both = command_phase(side, phase, &wrong);
    fill_throughput(&both, o->report.op, row);
    row->verified = o->report.verify != VERIFY_NONE && wrong == 0;
    show_progress(o, index, "");
    return wrong;
}

/* ---- sweep ---- */

/* Runs the sweep; returns the exit status. */
static int sweep(struct side *side, const struct options *o)
{
    struct result rows[SIZES_MAX];
    struct tool_mail mail;
    struct tool_message end;
    uint64_t wrong = 0, own;
    unsigned count = 0;
    if (!o->json && !o->csv)
        report_devices(&o->report);
    while (count < o->size_count && wrong == 0) {
        wrong = measure(side, o, count, &rows[count]);
        if (!o->json && !o->csv)
            report_row(&o->report, &rows[count]);
        output_check();
        count++;
    }
    own = wrong;
    tool_mail_post(side->conns[CONTROL], &mail);
    tool_tell(side->conns[CONTROL], TOOL_END, &own, 1, "saying goodbye to the server");
    tool_expect_mail(&mail, TOOL_END, -1, "saying goodbye to the server", &end);
    if (o->json)
        report_json(&o->report, rows, count);
    if (o->csv)
        report_csv(rows, count);
    fflush(stdout);
    if (wrong != 0) {
        fprintf(stderr, "[Client] FAILED: %" PRIu64 " messages with wrong data on both sides\n", wrong);
        return EXIT_FAILURE;
    }
    if (o->plot)
        report_plot(&o->report, o->plot, rows, count);
    return EXIT_SUCCESS;
}

/* What --local-gpu-idx means, where no other flag says where messages lie. */
static void choose_gpu(struct options *o, struct side *side)
{
    struct device_choice first = o->local_gpu;
    char fault[256], none[256];
    if (!o->local_gpu_given || o->device_given)
        return;
    if (o->ends.server) {
        side->own_gpu = &o->local_gpu;
        return;
    }
    first.index = 0;
    if (device_open(&o->local_gpu, fault)) {
        o->sender = o->receiver = o->local_gpu;
        return;
    }
    if (device_open(&first, none))
        tool_fail("--local-gpu-idx=%d: %s", o->local_gpu.index, fault);
    fprintf(stderr, "[Client] --local-gpu-idx=%d: %s: messages lie in host memory\n", o->local_gpu.index, fault);
}

static void finish(struct side *side)
{
    if (side->op != STREAM_SEND)
        p2p_onesided_close(side);
    uccl_conn_close(side->conns[DATA]);
    uccl_conn_close(side->conns[CONTROL]);
    region_free(&side->send_memory);
    region_free(&side->receive_memory);
    uccl_close(side->engine);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_rows,
        .parser = parse_option,
        .children = tool_ends_options,
        .doc = "Measures latency and throughput between two processes over a sweep of message sizes.\v"
               "Booleans are written --x or --x=true|false|1|0, other values --x=v or --x v. Exit "
               "status: 0 on success; 1 if the peer dies, refuses or data is wrong; 64 for wrong usage. "
               "UCCL_* variables set the engine's parameters: see uccl_info --params.\n"
               "  p2p_bench --local\n"
               "  p2p_bench --server\n"
               "  p2p_bench --serverip=10.0.0.1 --sizes=256,64K,1M --plot=out.svg",
    };
    static struct side side;
    struct options options = {
        .ends = TOOL_ENDS,
        .report.seconds = 1,
        .report.verify = VERIFY_FIRST,
        .report.pieces = 1,
        .report_fd = -1,
        .size_count = 9,
        .sizes = {256, 1024, 4096, 16384, 65536, 262144, MIB, 10 * MIB, 100 * MIB},
    };
    output_begin("p2p_bench");
    setvbuf(stdout, NULL, _IOLBF, 0);
    argp_program_version_hook = tool_print_version;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    tool_role = options.ends.server ? "Server" : "Client";
    tool_self = TOOL_P2P_BENCH;
    if (options.ends.server)
        note_client_flags(&options);
    else if (options.plot)
        report_check_plot(options.plot);
    tool_choose_nic(&options.ends.nic);
    tool_choose_threads(options.ends.num_cpus);
    if (options.report.local) {
        struct tool_address *at = &options.ends.server_at;
        at->port = local_start(options.ends.port_given ? at->port : 0, options.ends.log_info);
        at->host = local_host();
    }
    choose_gpu(&options, &side);
    device_text(&options.sender, options.report.sender_device);
    device_text(&options.receiver, options.report.receiver_device);
    side.server = options.ends.server;
    side.engine = tool_open(options.ends.log_info);
    int status;
    if (side.server) {
        start_server(&options, &side);
        status = serve(&side);
    } else {
        start_client(&options, &side);
        status = sweep(&side, &options);
    }
    finish(&side);
    if (options.report.local && local_end() != EXIT_SUCCESS)
        status = EXIT_FAILURE;
    return status;
}
