/* SPDX-License-Identifier: Apache-2.0 */
/* See tool.h. */
#include "tool.h"

#include "memory_left.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

const char *tool_role = "Client";
enum tool_id tool_self;

#define MAGIC 0x4c4f4f544c434355ull /* "UCCLTOOL" */

/* ---- ending in failure ---- */

/* "peer stopped answering (UCCL_EPEERDEAD)"; valid until the next call. */
static const char *error_text(int error)
{
    static const struct {
        int value;
        const char *name;
    } names[] = {
#define ERROR_NAME(name, value, text) {value, #name},
        UCCL_ERROR_ROWS(ERROR_NAME)
#undef ERROR_NAME
    };
    static char text[160];
    const char *name = "unknown";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].value == error)
            name = names[i].name;
    snprintf(text, sizeof(text), "%s (%s)", uccl_strerror(error), name);
    return text;
}

void tool_start_error_line(void)
{
    fflush(stdout);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static void say_error(const char *format, va_list arguments, const char *tail)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, arguments);
    tool_start_error_line();
    fprintf(stderr, "[%s] error: %s%s%s\n", tool_role, text, tail ? ": " : "", tail ? tail : "");
}

void tool_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_error(format, arguments, NULL);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

void tool_fail_uccl(int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_error(format, arguments, error_text(error));
    va_end(arguments);
    exit(EXIT_FAILURE);
}

/* ---- command line ---- */

bool tool_parse_bool(struct argp_state *state, const char *flag, const char *text)
{
    if (!text || strcmp(text, "true") == 0 || strcmp(text, "1") == 0)
        return true;
    if (strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
        argp_error(state, "--%s=%s: allowed are true, false, 1 and 0", flag, text);
    return false;
}

uint64_t tool_parse_number(struct argp_state *state, const char *flag, const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min || value > max)
        argp_error(state, "--%s=%s: allowed are whole numbers from %" PRIu64 " to %" PRIu64, flag, text, min, max);
    return value;
}

/* Bytes in the largest unit that divides them, for error messages: "16G". */
static const char *size_limit(uint64_t bytes, char out[24])
{
    static const char suffix[] = "\0KMG";
    unsigned unit = 0;
    while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 24, "%" PRIu64 "%.1s", bytes, &suffix[unit]);
    return out;
}

uint64_t tool_parse_size(struct argp_state *state, const char *flag, const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    char low[24], high[24];
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool good = text[0] >= '0' && text[0] <= '9' && errno == 0;
    unsigned shift = 0;
    if (good && *end != '\0') {
        const char *suffix = strchr("KkMmGg", *end);
        good = suffix && end[1] == '\0';
        if (good)
            shift = (unsigned)(suffix - "KkMmGg") / 2 * 10 + 10;
    }
    if (!good || value > UINT64_MAX >> shift || value << shift < min || value << shift > max)
        argp_error(state, "--%s=%s: allowed are %s to %s bytes, with K, M or G for powers of 1024", flag, text,
                   size_limit(min, low), size_limit(max, high));
    return value << shift;
}

double tool_parse_real(struct argp_state *state, const char *flag, const char *text, double min, double max)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= min && value <= max))
        argp_error(state, "--%s=%s: allowed are %g to %g", flag, text, min, max);
    return value;
}

const char *tool_size_text(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit < 3) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 16, "%.1f %s", value, units[unit]);
    return out;
}

void tool_print_version(FILE *stream, struct argp_state *state)
{
    fprintf(stream, "%s (libuccl-engine %s, %s)\n", state->name, uccl_version(), uccl_build_info());
}

static bool is_verbs_device(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)strcspn(name, ":/"), name);
    return access(path, F_OK) == 0;
}

void tool_choose_nic(const struct tool_nic *nic)
{
    const char *backend = nic->backend ? nic->backend : getenv("UCCL_BACKEND");
    char exact[256];
    if (nic->dev) {
        snprintf(exact, sizeof exact, "=%s", nic->dev);
        if (!backend || strcmp(backend, "auto") == 0)
            backend = is_verbs_device(nic->dev) ? "verbs" : "udp";
        setenv(strcmp(backend, "verbs") == 0 ? "UCCL_IB_HCA" : "UCCL_SOCKET_IFNAME", exact, 1);
    }
    if (backend)
        setenv("UCCL_BACKEND", backend, 1);
}

void tool_choose_threads(const char *number)
{
    if (number)
        setenv("UCCL_NUM_ENGINES", number, 1);
}

enum {
    KEY_SERVER = 500,
    KEY_SERVERIP,
    KEY_ROLE,
    KEY_NUM_CPUS,
    KEY_OOBPORT,
    KEY_TIMEOUT,
    KEY_BACKEND,
    KEY_DEV,
    KEY_LOG
};

static const struct argp_option ends_rows[] = {
    {0, 0, 0, 0, "Which side (one of these):", TOOL_GROUP_SIDE},
    {"server", KEY_SERVER, "BOOL", OPTION_ARG_OPTIONAL, "Serve one client, then end; the client's settings apply",
     TOOL_GROUP_SIDE},
    {"serverip", KEY_SERVERIP, "HOST", 0, "Connect to the server on HOST (name, IPv4 or IPv6)", TOOL_GROUP_SIDE},
    {"remote-ip", 0, NULL, OPTION_ALIAS, NULL, 0},
    {"role", KEY_ROLE, "ROLE", 0,
     "server: like --server, and ignores --remote-ip; client: connects to --remote-ip=HOST", TOOL_GROUP_SIDE},
    {0, 0, 0, 0, "Of this side alone:", TOOL_GROUP_OWN},
    {"backend", KEY_BACKEND, "NAME", 0,
     "auto, verbs, udp or tcp (default auto: verbs where a device has an active port, else UDP, or TCP where UDP does "
     "not pass)",
     TOOL_GROUP_OWN},
    {"dev", KEY_DEV, "NAME", 0,
     "Verbs device (mlx5_0, mlx5_0:1) or network interface, which means UDP alone unless --backend=tcp (default: the "
     "best one)",
     TOOL_GROUP_OWN},
    {"num-cpus", KEY_NUM_CPUS, "N", 0, "Engine threads, 1 to 64 (default: by the number of cores)", TOOL_GROUP_OWN},
    {0, 0, 0, 0, "Connecting:", TOOL_GROUP_CONNECTING},
    {"oobport", KEY_OOBPORT, "PORT", 0,
     "TCP port of the server (default 30042); with 0 the server takes a free port and prints it",
     TOOL_GROUP_CONNECTING},
    {"connect-timeout", KEY_TIMEOUT, "SECONDS", 0, "How long the client tries to reach the server (default 10)",
     TOOL_GROUP_CONNECTING},
    {"logtostderr", KEY_LOG, "BOOL", OPTION_ARG_OPTIONAL,
     "Show the library's log from level info; warnings always show (default false)", TOOL_GROUP_CONNECTING},
    {0},
};

/* What --role means for the other flags. */
static void settle_role(struct tool_ends *ends, struct argp_state *state)
{
    if (ends->role_server) {
        ends->server = true;
        ends->server_at.host = NULL; /* scripts name a host on both sides */
    } else if (ends->role_client && (ends->server || !ends->server_at.host)) {
        argp_error(state, ends->server ? "--role=client and --server exclude each other"
                                       : "--role=client: give the server's host with --remote-ip=HOST");
    }
}

static error_t parse_end(int key, char *text, struct argp_state *state)
{
    struct tool_ends *ends = state->input;
    switch (key) {
    case KEY_SERVER:
        ends->server = tool_parse_bool(state, "server", text);
        return 0;
    case KEY_SERVERIP:
        ends->server_at.host = text;
        return 0;
    case KEY_ROLE:
        ends->role_client = strcmp(text, "client") == 0;
        ends->role_server = strcmp(text, "server") == 0;
        if (!ends->role_client && !ends->role_server)
            argp_error(state, "--role=%s: allowed are server and client", text);
        return 0;
    case KEY_NUM_CPUS:
        tool_parse_number(state, "num-cpus", text, 1, 64);
        ends->num_cpus = text;
        return 0;
    case KEY_OOBPORT:
        ends->server_at.port = (uint16_t)tool_parse_number(state, "oobport", text, 0, 65535);
        ends->port_given = true;
        return 0;
    case KEY_TIMEOUT:
        ends->server_at.timeout_s = (unsigned)tool_parse_number(state, "connect-timeout", text, 0, 86400);
        return 0;
    case KEY_BACKEND:
        ends->nic.backend = text;
        if (strcmp(text, "auto") != 0 && strcmp(text, "verbs") != 0 && strcmp(text, "udp") != 0 &&
            strcmp(text, "tcp") != 0)
            argp_error(state, "--backend=%s: allowed are auto, verbs, udp and tcp", text);
        return 0;
    case KEY_DEV:
        ends->nic.dev = text;
        return 0;
    case KEY_LOG:
        ends->log_info = tool_parse_bool(state, "logtostderr", text);
        return 0;
    case ARGP_KEY_END:
        settle_role(ends, state);
        if (ends->server_at.host && ends->server_at.port == 0)
            argp_error(state, "--oobport=0: allowed are 1 to 65535 for a client");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp ends_argp = {.options = ends_rows, .parser = parse_end};
const struct argp_child tool_ends_options[] = {{&ends_argp, 0, NULL, 0}, {0}};

/* ---- measuring ---- */

uint64_t tool_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t tool_cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

uint64_t tool_retransmits(const uccl_engine *engine)
{
    uint64_t value = 0;
    int rc = uccl_counter_by_name(engine, "retransmits", &value);
    if (rc != 0)
        tool_fail_uccl(rc, "reading the counter retransmits");
    return value;
}

void tool_print_nics(const uccl_engine *engine)
{
    struct uccl_device device;
    uint64_t moved = 0;
    bool several = false;
    for (int i = 0; uccl_device_get(engine, i, &device) == UCCL_OK; i++) {
        struct uccl_device_stats stats = {.size = sizeof(stats)};
        if (uccl_device_stats(engine, i, &stats) != UCCL_OK || !stats.in_use)
            continue;
        several = true;
        printf("[%s] %s: %.3f GiB sent, %.3f received", tool_role, device.name, (double)stats.tx_bytes / (1 << 30),
               (double)stats.rx_bytes / (1 << 30));
        if (stats.losses != 0)
            printf(", lost %" PRIu64 " times, back %" PRIu64 " times", stats.losses, stats.returns);
        printf("%s\n", stats.up ? "" : ", down");
    }
    if (several && uccl_counter_by_name(engine, "rail_moves", &moved) == UCCL_OK)
        printf("[%s] chunks moved to another NIC: %" PRIu64 "\n", tool_role, moved);
}

double tool_gbps(uint64_t bytes, uint64_t elapsed_ns)
{
    return elapsed_ns != 0 ? (double)bytes * 8 / (double)elapsed_ns : 0;
}

double tool_per_gib(uint64_t cpu_ns, uint64_t bytes)
{
    return bytes != 0 ? (double)cpu_ns / NS_PER_S / ((double)bytes / GIB) : 0;
}

static int compare_samples(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

void tool_sort(uint32_t *samples, size_t count)
{
    qsort(samples, count, sizeof(*samples), compare_samples);
}

uint32_t tool_percentile(const uint32_t *sorted, size_t count, double percent)
{
    if (count == 0)
        return 0;
    double exact = percent / 100 * (double)count - 1e-6; /* 99.9% of 1000 is 999, whatever rounding says */
    size_t below = exact > 0 ? (size_t)exact : 0;        /* ceil(exact) - 1 */
    return sorted[below < count ? below : count - 1];
}

uint32_t tool_sample(uint64_t elapsed_ns)
{
    static bool told;
    if (elapsed_ns <= UINT32_MAX)
        return (uint32_t)elapsed_ns;
    if (!told) {
        tool_start_error_line();
        fprintf(stderr, "[%s] warning: a half round trip took %.2f s; it, and others like it, count as 4.29 s\n",
                tool_role, (double)elapsed_ns / NS_PER_S);
    }
    told = true;
    return UINT32_MAX;
}

void tool_sleep_ns(uint64_t ns)
{
    struct timespec pause = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    nanosleep(&pause, NULL);
}

/* ---- opening and connecting ---- */

uccl_engine *tool_open(bool info)
{
    uccl_config *config = NULL;
    uccl_engine *engine = NULL;
    int rc = uccl_config_create(&config);
    if (rc == 0 && info && !getenv("UCCL_LOG_LEVEL"))
        rc = uccl_config_set(config, "UCCL_LOG_LEVEL", "info");
    if (rc == 0)
        rc = uccl_open(config, &engine);
    if (rc != 0)
        tool_fail_uccl(rc, "opening the engine");
    uccl_config_destroy(config);
    return engine;
}

uccl_listener *tool_listen(uccl_engine *engine, uint16_t port)
{
    struct uccl_handle handle;
    uccl_listener *listener = NULL;
    int rc = uccl_listen(engine, -1, port, &handle, &listener);
    if (rc != 0)
        tool_fail_uccl(rc, "cannot listen on TCP port %u%s", port,
                       rc == UCCL_EADDR ? " (in use? choose another with --oobport)" : "");
    printf("[Server] waiting for a client on TCP port %u\n", uccl_listener_port(listener));
    return listener;
}

void *tool_allocate(uint64_t bytes)
{
    void *memory = MAP_FAILED;
    const char *whose;
    uint64_t left = memory_left(&whose);
    char why[64];
    if (bytes == 0)
        bytes = 1;
    if (bytes > left)
        snprintf(why, sizeof(why), "%s has %" PRIu64 " MiB left", whose, left / MIB);
    else if ((memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED)
        snprintf(why, sizeof(why), "%s", strerror(errno));
    if (memory == MAP_FAILED)
        tool_fail("cannot allocate %" PRIu64 " MiB of message buffers: %s (use smaller or fewer messages)", bytes / MIB,
                  why);
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint: where it is refused, small pages do */
    memset(memory, 0xdb, bytes);
    return memory;
}

/* ---- messages between the two ends ---- */

/* Messages that wait for the peer may have taken all requests, and it waits for this one. */
static void fail_without_request(int rc)
{
    if (rc == UCCL_EAGAIN)
        tool_fail("no request is left for a message to the peer: use fewer messages, or a larger UCCL_MAX_REQUESTS");
}

int tool_message_send(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count)
{
    uint64_t words[16] = {htole64(MAGIC), htole64((uint64_t)tool_self << 48 | (uint64_t)TOOL_VERSION << 32 | kind)};
    uccl_request *request = NULL;
    int rc;
    for (unsigned i = 0; i < count; i++)
        words[2 + i] = htole64(fields[i]);
    uint64_t deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS;
    while ((rc = uccl_send_async(conn, words, sizeof(words), NULL, &request)) == UCCL_EAGAIN &&
           tool_now_ns() < deadline_ns)
        tool_sleep_ns(50000);
    fail_without_request(rc);
    return rc != 0 ? rc : uccl_wait(request, -1, NULL);
}

void tool_mail_post(uccl_conn *conn, struct tool_mail *mail)
{
    int rc;
    uint64_t deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS;
    while ((rc = uccl_recv_async(conn, mail->bytes, sizeof(mail->bytes), NULL, &mail->request)) == UCCL_EAGAIN &&
           tool_now_ns() < deadline_ns)
        tool_sleep_ns(50000);
    fail_without_request(rc);
    if (rc != 0)
        tool_fail_uccl(rc, "expecting a message of the peer");
}

int tool_mail_wait(struct tool_mail *mail, int timeout_ms, struct tool_message *out)
{
    uint64_t words[16];
    size_t bytes = 0;
    int rc = uccl_wait(mail->request, timeout_ms, &bytes);
    if (rc == UCCL_ETRUNCATED)
        return TOOL_OTHER_TOOL;
    if (rc != 0)
        return rc;
    mail->request = NULL;
    memcpy(words, mail->bytes, sizeof(words));
    if (bytes != sizeof(words) || le64toh(words[0]) != MAGIC || le64toh(words[1]) >> 48 != tool_self)
        return TOOL_OTHER_TOOL;
    if ((le64toh(words[1]) >> 32 & 0xffff) != TOOL_VERSION)
        return TOOL_OTHER_VERSION;
    out->kind = (uint32_t)le64toh(words[1]);
    for (unsigned i = 0; i < TOOL_FIELDS; i++)
        out->field[i] = le64toh(words[2 + i]);
    return 0;
}

static const char *refusal_text(uint64_t refusal)
{
    switch (refusal) {
    case TOOL_OTHER_TOOL:
        return "not the same tool";
    case TOOL_OTHER_VERSION:
        return "another version of the tool";
    case TOOL_BAD_SETTING:
        return "a setting is out of the range that the server allows";
    case TOOL_BUSY:
        return "the server has another client";
    case TOOL_NO_DEVICE:
        return "the server has no such GPU (its own messages say more)";
    default:
        return "no reason given";
    }
}

void tool_expect(uccl_conn *conn, uint32_t kind, const char *doing, struct tool_message *out)
{
    struct tool_mail mail;
    tool_mail_post(conn, &mail);
    tool_expect_mail(&mail, kind, -1, doing, out);
}

void tool_expect_mail(struct tool_mail *mail, uint32_t kind, int timeout_ms, const char *doing,
                      struct tool_message *out)
{
    int rc = tool_mail_wait(mail, timeout_ms, out);
    if (rc > 0)
        tool_fail("while %s: the peer cannot be understood: %s", doing, refusal_text((uint64_t)rc));
    if (rc < 0)
        tool_fail_uccl(rc, "while %s", doing);
    if (out->kind == TOOL_REFUSE)
        tool_fail("the server refuses: %s", refusal_text(out->field[0]));
    if (out->kind != kind)
        tool_fail("while %s: the peer sent message kind %" PRIu32 " instead of %" PRIu32, doing, out->kind, kind);
}

void tool_tell(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count, const char *doing)
{
    int rc = tool_message_send(conn, kind, fields, count);
    if (rc != 0)
        tool_fail_uccl(rc, "while %s", doing);
}

/* ---- the connections of a client ---- */

/*
 * What a first message deserves: 0 or a refusal. A message that is none of ours is answered in our
 * own format: the peer sees the magic number and can say what it has met.
 */
static uint64_t judge_hello(int rc, const struct tool_message *hello, tool_settings_fn allowed, void *context)
{
    if (rc > 0)
        return (uint64_t)rc;
    if (hello->kind == TOOL_JOIN)
        return TOOL_BUSY;
    if (hello->kind != TOOL_HELLO)
        return TOOL_OTHER_TOOL;
    return allowed(hello, context);
}

uccl_conn *tool_accept_client(uccl_listener *listener, tool_settings_fn allowed, void *context, uint64_t *nonce)
{
    struct tool_mail mail;
    struct tool_message hello = {0};
    uccl_conn *conn = NULL;
    char peer[128] = "?";
    int rc = uccl_accept(listener, -1, &conn);
    if (rc != 0)
        tool_fail_uccl(rc, "waiting for a client");
    uccl_conn_peer(conn, peer, sizeof(peer));
    tool_mail_post(conn, &mail);
    rc = tool_mail_wait(&mail, TOOL_ANSWER_MS, &hello);
    if (rc < 0)
        tool_fail_uccl(rc, "waiting for the settings of the client %s", peer);
    uint64_t refusal = judge_hello(rc, &hello, allowed, context);
    if (refusal != 0) {
        tool_message_send(conn, TOOL_REFUSE, &refusal, 1);
        uccl_conn_close(conn);
        tool_fail("refused the client %s: %s", peer, refusal_text(refusal));
    }
    printf("[Server] client %s\n", peer);
    *nonce = hello.field[0];
    return conn;
}

/* The number of the connection that a JOIN is for; 0: it is none of this client's. */
static uint32_t join_index(const struct tool_message *join, uint64_t nonce, uccl_conn **conns, uint32_t count)
{
    uint64_t index = join->field[1];
    if (join->kind != TOOL_JOIN || join->field[0] != nonce || index >= count)
        return 0;
    return !conns[index] ? (uint32_t)index : 0;
}

void tool_accept_joins(uccl_listener *listener, uint64_t nonce, uccl_conn **conns, uint32_t count)
{
    uint32_t missing = count - 1;
    uint64_t deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS, busy = TOOL_BUSY;
    while (missing != 0) {
        struct tool_mail mail;
        struct tool_message join = {0};
        uccl_conn *conn = NULL;
        int rc = uccl_conn_status(conns[0]);
        if (rc != 0)
            tool_fail_uccl(rc, "the client has gone before all its connections came");
        rc = uccl_accept(listener, 200, &conn);
        if (rc == UCCL_ETIMEDOUT && tool_now_ns() < deadline_ns)
            continue;
        if (rc != 0)
            tool_fail_uccl(rc, "waiting for %u more connections of the client", missing);
        tool_mail_post(conn, &mail);
        rc = tool_mail_wait(&mail, 2000, &join);
        uint32_t index = rc == 0 ? join_index(&join, nonce, conns, count) : 0;
        if (index != 0) {
            conns[index] = conn;
            missing--;
            deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS;
            continue;
        }
        if (rc == 0)
            tool_message_send(conn, TOOL_REFUSE, &busy, 1);
        uccl_conn_close(conn);
        if (rc == UCCL_ETIMEDOUT)
            uccl_wait(mail.request, -1, NULL); /* its buffer is ours again */
    }
}

/* What the library logs in an attempt to connect. */
static struct {
    pthread_mutex_t lock;
    char lines[4096];
    size_t length;
} said = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A line that does not fit is left out. */
static void keep_line(void *user, enum uccl_log_level level, const char *text)
{
    static const char *const names[] = {"none", "error", "warning", "info", "debug"};
    (void)user;
    pthread_mutex_lock(&said.lock);
    size_t left = sizeof(said.lines) - said.length;
    int length = snprintf(said.lines + said.length, left, "uccl: %s: %s\n", names[level], text);
    if (length > 0 && (size_t)length < left)
        said.length += (size_t)length;
    pthread_mutex_unlock(&said.lock);
}

/* While the server is not there yet, the library would tell each refusal: what it says counts if it is the end. */
static void await_server(bool refused)
{
    uccl_set_log(refused ? keep_line : NULL, NULL);
    pthread_mutex_lock(&said.lock);
    if (!refused)
        fwrite(said.lines, 1, said.length, stderr);
    said.length = 0;
    pthread_mutex_unlock(&said.lock);
}

static uccl_conn *connect_one(uccl_engine *engine, const struct tool_address *address)
{
    struct uccl_handle handle;
    uint64_t deadline_ns = tool_now_ns() + address->timeout_s * NS_PER_S;
    int rc = uccl_handle_from_address(address->host, address->port, &handle);
    if (rc != 0)
        tool_fail_uccl(rc, "--serverip=%s", address->host);
    for (bool told = false;; told = true) {
        struct uccl_handle attempt = handle;
        uccl_conn *conn = NULL;
        uint64_t now_ns = tool_now_ns();
        uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / NS_PER_MS : 0;
        rc = uccl_connect(engine, &attempt, left_ms != 0 ? (int)left_ms : 1, &conn);
        await_server(rc == UCCL_EREFUSED);
        if (rc == 0)
            return conn;
        if (rc != UCCL_EREFUSED || tool_now_ns() >= deadline_ns)
            break;
        if (!told)
            fprintf(stderr, "[Client] tries for up to %u s\n", address->timeout_s);
        tool_sleep_ns(100 * NS_PER_MS);
    }
    if (rc != UCCL_EREFUSED && rc != UCCL_ETIMEDOUT)
        tool_fail_uccl(rc, "cannot connect to %s port %u", address->host, address->port);
    tool_fail_uccl(rc, "cannot connect to %s port %u within %u s (is the server running there?)", address->host,
                   address->port, address->timeout_s);
}

void tool_connect_all(uccl_engine *engine, const struct tool_address *address, const uint64_t *settings,
                      unsigned setting_count, uccl_conn **conns, uint32_t count)
{
    uint64_t hello[TOOL_FIELDS];
    struct tool_message welcome;
    struct tool_mail mail;
    if (getrandom(&hello[0], sizeof(hello[0]), 0) != sizeof(hello[0]))
        hello[0] = tool_now_ns();
    memcpy(&hello[1], settings, setting_count * sizeof(*settings));
    conns[0] = connect_one(engine, address);
    tool_mail_post(conns[0], &mail);
    tool_tell(conns[0], TOOL_HELLO, hello, 1 + setting_count, "sending the settings to the server");
    tool_expect_mail(&mail, TOOL_WELCOME, TOOL_ANSWER_MS, "waiting for the server's answer (busy with another client?)",
                     &welcome);
    for (uint32_t i = 1; i < count; i++) {
        uint64_t join[] = {hello[0], i};
        conns[i] = connect_one(engine, address);
        tool_tell(conns[i], TOOL_JOIN, join, 2, "joining a connection");
    }
}
