/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See tool.h. Streams are the heart: a ring of requests whose oldest is waited for first, so that
 * one post and one completion per message is all that a message costs the tool.
 */
#include "tool.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
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
#define POISON 0xdbdbdbdbdbdbdbdbull

/* ---- ending in failure ---- */

const char *tool_error_text(int error)
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

/* Wipes a progress bar, where there may be one. */
static void start_error_line(void)
{
    fflush(stdout);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static void say_error(const char *format, va_list arguments, const char *tail)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, arguments);
    start_error_line();
    fprintf(stderr, "[%s] error: %s%s%s\n", tool_role, text, tail != NULL ? ": " : "",
            tail != NULL ? tail : "");
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
    say_error(format, arguments, tool_error_text(error));
    va_end(arguments);
    exit(EXIT_FAILURE);
}

/* ---- command line ---- */

bool tool_parse_bool(struct argp_state *state, const char *flag, const char *text)
{
    if (text == NULL || strcmp(text, "true") == 0 || strcmp(text, "1") == 0)
        return true;
    if (strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
        argp_error(state, "--%s=%s: allowed are true, false, 1 and 0", flag, text);
    return false;
}

uint64_t tool_parse_number(struct argp_state *state, const char *flag, const char *text,
                           uint64_t min, uint64_t max)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min || value > max)
        argp_error(state, "--%s=%s: allowed are whole numbers from %" PRIu64 " to %" PRIu64, flag,
                   text, min, max);
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

uint64_t tool_parse_size(struct argp_state *state, const char *flag, const char *text, uint64_t min,
                         uint64_t max)
{
    char *end = NULL;
    char low[24], high[24];
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool good = text[0] >= '0' && text[0] <= '9' && errno == 0;
    unsigned shift = 0;
    if (good && *end != '\0') {
        const char *suffix = strchr("KkMmGg", *end);
        good = suffix != NULL && end[1] == '\0';
        if (good)
            shift = (unsigned)(suffix - "KkMmGg") / 2 * 10 + 10;
    }
    if (!good || value > UINT64_MAX >> shift || value << shift < min || value << shift > max)
        argp_error(state, "--%s=%s: allowed are %s to %s bytes, with K, M or G for powers of 1024",
                   flag, text, size_limit(min, low), size_limit(max, high));
    return value << shift;
}

double tool_parse_real(struct argp_state *state, const char *flag, const char *text, double min,
                       double max)
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
    double exact =
        percent / 100 * (double)count - 1e-6;     /* 99.9% of 1000 is 999, whatever rounding says */
    size_t below = exact > 0 ? (size_t)exact : 0; /* ceil(exact) - 1 */
    return sorted[below < count ? below : count - 1];
}

uint32_t tool_sample(uint64_t elapsed_ns)
{
    return elapsed_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)elapsed_ns;
}

static void sleep_ns(uint64_t ns)
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
    if (rc == 0 && info && getenv("UCCL_LOG_LEVEL") == NULL)
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
    if (rc == UCCL_EADDR)
        tool_fail_uccl(rc, "cannot listen on TCP port %u (in use? choose another with --oobport)",
                       port);
    if (rc != 0)
        tool_fail_uccl(rc, "cannot listen on TCP port %u", port);
    printf("[Server] waiting for a client on TCP port %u\n", uccl_listener_port(listener));
    return listener;
}

/* ---- messages between the two ends ---- */

int tool_message_send(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count)
{
    uint64_t words[16] = {htole64(MAGIC),
                          htole64((uint64_t)tool_self << 48 | (uint64_t)TOOL_VERSION << 32 | kind)};
    uccl_request *request = NULL;
    int rc;
    for (unsigned i = 0; i < count; i++)
        words[2 + i] = htole64(fields[i]);
    uint64_t deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS;
    while ((rc = uccl_send_async(conn, words, sizeof(words), NULL, &request)) == UCCL_EAGAIN &&
           tool_now_ns() < deadline_ns)
        sleep_ns(50000);
    return rc != 0 ? rc : uccl_wait(request, -1, NULL);
}

void tool_mail_post(uccl_conn *conn, struct tool_mail *mail)
{
    int rc;
    uint64_t deadline_ns = tool_now_ns() + TOOL_ANSWER_MS * NS_PER_MS;
    while ((rc = uccl_recv_async(conn, mail->bytes, sizeof(mail->bytes), NULL, &mail->request)) ==
               UCCL_EAGAIN &&
           tool_now_ns() < deadline_ns)
        sleep_ns(50000);
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
    if (bytes != sizeof(words) || le64toh(words[0]) != MAGIC ||
        le64toh(words[1]) >> 48 != tool_self)
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
    default:
        return "no reason given";
    }
}

void tool_expect(uccl_conn *conn, uint32_t kind, int timeout_ms, const char *doing,
                 struct tool_message *out)
{
    struct tool_mail mail;
    tool_mail_post(conn, &mail);
    tool_expect_mail(&mail, kind, timeout_ms, doing, out);
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
        tool_fail("while %s: the peer sent message kind %" PRIu32 " instead of %" PRIu32, doing,
                  out->kind, kind);
}

void tool_tell(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count,
               const char *doing)
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
static uint64_t judge_hello(int rc, const struct tool_message *hello, tool_settings_fn allowed,
                            void *context)
{
    if (rc > 0)
        return (uint64_t)rc;
    if (hello->kind == TOOL_JOIN)
        return TOOL_BUSY;
    if (hello->kind != TOOL_HELLO)
        return TOOL_OTHER_TOOL;
    return allowed(hello, context) ? 0 : TOOL_BAD_SETTING;
}

uccl_conn *tool_accept_client(uccl_listener *listener, tool_settings_fn allowed, void *context,
                              uint64_t *nonce)
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
static uint32_t join_index(const struct tool_message *join, uint64_t nonce, uccl_conn **conns,
                           uint32_t count)
{
    uint64_t index = join->field[1];
    if (join->kind != TOOL_JOIN || join->field[0] != nonce || index >= count)
        return 0;
    return conns[index] == NULL ? (uint32_t)index : 0;
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

/* Refusals while the server is not there yet are told once, by us, when the time is up. */
static void log_nothing(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static uccl_conn *connect_one(uccl_engine *engine, const struct tool_address *address)
{
    struct uccl_handle handle;
    uint64_t deadline_ns = tool_now_ns() + address->timeout_s * NS_PER_S;
    int rc = uccl_handle_from_address(address->host, address->port, &handle);
    if (rc != 0)
        tool_fail_uccl(rc, "--serverip=%s", address->host);
    for (;;) {
        struct uccl_handle attempt = handle;
        uccl_conn *conn = NULL;
        uint64_t now_ns = tool_now_ns();
        uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / NS_PER_MS : 0;
        rc = uccl_connect(engine, &attempt, left_ms != 0 ? (int)left_ms : 1, &conn);
        uccl_set_log(rc == UCCL_EREFUSED ? log_nothing : NULL, NULL);
        if (rc == 0)
            return conn;
        if (rc != UCCL_EREFUSED || tool_now_ns() >= deadline_ns)
            break;
        sleep_ns(100 * NS_PER_MS);
    }
    tool_fail_uccl(rc, "cannot connect to %s port %u within %u s (is the server running there?)",
                   address->host, address->port, address->timeout_s);
}

void tool_connect_all(uccl_engine *engine, const struct tool_address *address,
                      const uint64_t *settings, unsigned setting_count, uccl_conn **conns,
                      uint32_t count)
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
    tool_expect_mail(&mail, TOOL_WELCOME, TOOL_ANSWER_MS,
                     "waiting for the server's answer (busy with another client?)", &welcome);
    for (uint32_t i = 1; i < count; i++) {
        uint64_t join[] = {hello[0], i};
        conns[i] = connect_one(engine, address);
        tool_tell(conns[i], TOOL_JOIN, join, 2, "joining a connection");
    }
}

/* ---- contents ---- */

/* Steps by an odd constant: words of one message never repeat; bases of messages are far apart. */
#define WORD_STEP 0x9e3779b97f4a7c15ull

/* Mixes all bits of `x` into all others (a bijection: multiplications by odd numbers, xor-shifts).
 */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0xd6e8feb86659fd93ull;
    x = (x ^ x >> 29) * 0xa0761d6478bd642full;
    return x ^ x >> 32;
}

static uint64_t content_base(uint64_t channel, uint64_t number)
{
    return mix(mix(channel + 1) + number);
}

/* Word `index` of a message. The shift keeps a wrong base from cancelling against a wrong index. */
static inline uint64_t content_word(uint64_t base, uint64_t index)
{
    uint64_t x = base + index * WORD_STEP;
    return x ^ x >> 27;
}

void tool_fill(void *buffer, uint64_t size, uint64_t channel, uint64_t number)
{
    unsigned char *at = buffer;
    uint64_t base = content_base(channel, number), words = size / 8;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word = htole64(content_word(base, i));
        memcpy(at + i * 8, &word, 8);
    }
    uint64_t last = htole64(content_word(base, words));
    memcpy(at + words * 8, &last, size % 8);
}

void tool_poison(void *buffer, uint64_t size)
{
    memset(buffer, (int)(POISON & 0xff), size);
}

bool tool_verify(const void *buffer, uint64_t size, uint64_t channel, uint64_t number,
                 struct tool_mismatch *out)
{
    enum { BLOCK = 512 }; /* words compared without a branch in between */
    const unsigned char *at = buffer;
    uint64_t base = content_base(channel, number), words = size / 8, word;
    for (uint64_t start = 0; start < words; start += BLOCK) {
        uint64_t end = words - start < BLOCK ? words : start + BLOCK, differs = 0;
        for (uint64_t i = start; i < end; i++) {
            memcpy(&word, at + i * 8, 8);
            differs |= le64toh(word) ^ content_word(base, i);
        }
        for (uint64_t i = start; differs != 0 && i < end; i++) {
            memcpy(&word, at + i * 8, 8);
            if (le64toh(word) != content_word(base, i)) {
                *out = (struct tool_mismatch){channel, number, i * 8, content_word(base, i),
                                              le64toh(word)};
                return false;
            }
        }
    }
    uint64_t last = htole64(content_word(base, words)), expected = 0, got = 0;
    memcpy(&expected, &last, size % 8);
    memcpy(&got, at + words * 8, size % 8);
    if (expected == got)
        return true;
    *out = (struct tool_mismatch){channel, number, words * 8, le64toh(expected), le64toh(got)};
    return false;
}

void tool_print_mismatch(const char *who, const struct tool_mismatch *m)
{
    char phase[40] = "";
    if (m->number >> TOOL_PHASE_SHIFT != 0)
        snprintf(phase, sizeof(phase), "phase %" PRIu64 ", ", m->number >> TOOL_PHASE_SHIFT);
    start_error_line();
    fprintf(stderr,
            "[%s] error: wrong data: connection %" PRIu64 ", %smessage %" PRIu64
            " sent by the %s, offset %" PRIu64 ": expected 0x%016" PRIx64 ", got 0x%016" PRIx64
            "%s\n",
            who, m->channel / 2, phase, m->number & ((UINT64_C(1) << TOOL_PHASE_SHIFT) - 1),
            m->channel % 2 != 0 ? "server" : "client", m->offset, m->expected, m->got,
            m->got == POISON ? " (never written)" : "");
}

void *tool_allocate(uint64_t bytes)
{
    if (bytes == 0)
        bytes = 1;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        tool_fail("cannot allocate %" PRIu64
                  " MiB of message buffers: %s (use smaller or fewer messages)",
                  bytes / MIB, strerror(errno));
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint: where it is refused, small pages do */
    tool_poison(memory, bytes);
    return memory;
}

/* ---- streams ---- */

uint64_t stream_stride(uint64_t size)
{
    return size == 0 ? 64 : (size + 63) / 64 * 64;
}

uint32_t stream_buffers(uint64_t size, uint32_t window, bool check, uint64_t memory)
{
    uint64_t fit = memory / stream_stride(size);
    return check || fit >= window ? window : fit == 0 ? 1 : (uint32_t)fit;
}

void stream_restart(struct stream *s, uint64_t first_number, uint64_t total)
{
    s->first_number = first_number;
    s->total = total;
    s->posted = s->ended = s->bytes = 0;
    s->stop_from = s->stopped_at = STREAM_NONE;
    s->post_slot = s->reap_slot = 0;
    s->starved_since_ns = 0;
}

/* Number of message `index` of a stream, for people: without the phase. */
static uint64_t shown_number(const struct stream *s, uint64_t index)
{
    return (s->first_number + index) & ((UINT64_C(1) << TOOL_PHASE_SHIFT) - 1);
}

static const char *stream_verb(const struct stream *s)
{
    return s->sends ? "sending" : "receiving";
}

/* Out of requests although none of ours is outstanding: right for a moment, wrong for long. */
static void stream_starved(struct stream *s)
{
    uint64_t now_ns = tool_now_ns();
    if (s->starved_since_ns == 0)
        s->starved_since_ns = now_ns;
    if (now_ns - s->starved_since_ns > TOOL_ANSWER_MS * NS_PER_MS)
        tool_fail_uccl(UCCL_EAGAIN, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2,
                       stream_verb(s), shown_number(s, s->posted));
}

/* May the next message be posted? Groups are posted whole, as soon as a whole group has ended. */
static bool stream_has_room(const struct stream *s)
{
    if (s->posted >= s->total)
        return false;
    if (s->group == 1)
        return s->posted - s->ended < s->window;
    return s->posted / s->group - s->ended / s->group < s->window / s->group;
}

unsigned stream_post(struct stream *s)
{
    unsigned count = 0;
    while (stream_has_room(s)) {
        unsigned char *buffer = s->buffers + (s->post_slot % s->buffer_count) * s->stride;
        uint64_t size = s->posted >= s->stop_from ? 0 : s->size;
        uccl_request **request = &s->requests[s->post_slot];
        int rc;
        if (s->check && s->sends)
            tool_fill(buffer, size, s->channel, s->first_number + s->posted);
        else if (s->check)
            tool_poison(buffer, size);
        if (s->sends)
            rc = uccl_send_async(s->conn, buffer, size, NULL, request);
        else
            rc = uccl_recv_async(s->conn, buffer, size, NULL, request);
        if (rc == UCCL_EAGAIN) {
            if (s->posted == s->ended)
                stream_starved(s);
            break;
        }
        if (rc != 0)
            tool_fail_uccl(rc, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2,
                           stream_verb(s), shown_number(s, s->posted));
        s->starved_since_ns = 0;
        s->posted++;
        count++;
        s->post_slot = s->post_slot + 1 == s->window ? 0 : s->post_slot + 1;
    }
    return count;
}

/* A message has arrived in `buffer`. */
static void stream_received(struct stream *s, unsigned char *buffer, size_t bytes)
{
    uint64_t number = s->first_number + s->ended;
    struct tool_mismatch mismatch;
    if (bytes == 0 && s->may_stop) {
        if (s->stopped_at == STREAM_NONE)
            s->stopped_at = s->ended;
        return;
    }
    if (bytes != s->size || s->stopped_at != STREAM_NONE)
        tool_fail("connection %" PRIu64 ", message %" PRIu64 ": expected %" PRIu64
                  " bytes, got %zu",
                  s->channel / 2, shown_number(s, s->ended), s->size, bytes);
    if (s->flush) {
        uccl_request *request = NULL;
        int rc = uccl_flush(s->conn, buffer, bytes, NULL, &request);
        if (rc == 0 && request != NULL)
            rc = uccl_wait(request, -1, NULL);
        if (rc != 0)
            tool_fail_uccl(rc, "connection %" PRIu64 ", flushing message %" PRIu64, s->channel / 2,
                           shown_number(s, s->ended));
    }
    if (s->check && !tool_verify(buffer, s->size, s->channel, number, &mismatch)) {
        if (s->wrong++ == 0)
            s->first_wrong = mismatch;
        if (s->wrong <= 5)
            tool_print_mismatch(tool_role, &mismatch);
    }
}

bool stream_reap(struct stream *s, int timeout_ms)
{
    size_t bytes = 0;
    int rc, done = 0;
    if (s->ended == s->posted)
        return false;
    if (timeout_ms == 0) {
        rc = uccl_test(s->requests[s->reap_slot], &done, &bytes);
        if (rc == 0 && !done)
            return false;
    } else {
        rc = uccl_wait(s->requests[s->reap_slot], timeout_ms, &bytes);
        if (rc == UCCL_ETIMEDOUT)
            return false;
    }
    if (rc != 0)
        tool_fail_uccl(rc, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2,
                       stream_verb(s), shown_number(s, s->ended));
    if (!s->sends)
        stream_received(s, s->buffers + (s->reap_slot % s->buffer_count) * s->stride, bytes);
    s->ended++;
    s->bytes += bytes;
    s->reap_slot = s->reap_slot + 1 == s->window ? 0 : s->reap_slot + 1;
    return true;
}

/*
 * A single stream waits for its oldest message. Several are looked at in turn; when none moved, the
 * wait is for the oldest of one, another one each time, and short.
 */
void stream_turn(struct stream *streams, unsigned count, unsigned *next)
{
    bool moved = false;
    for (unsigned i = 0; i < count; i++) {
        moved |= stream_post(&streams[i]) != 0;
        while (count > 1 && stream_reap(&streams[i], 0))
            moved = true;
    }
    if (moved && count > 1)
        return;
    for (unsigned i = 0; i < count; i++) {
        struct stream *s = &streams[(*next)++ % count];
        if (s->ended != s->posted) {
            stream_reap(s, count == 1 ? 200 : 1);
            return;
        }
    }
    if (!moved)
        sleep_ns(50000);
}

void stream_advance(struct stream *s, uint64_t count)
{
    s->total += count;
    for (;;) {
        stream_post(s);
        if (s->posted == s->total)
            return;
        if (!stream_reap(s, 200) && s->posted == s->ended)
            sleep_ns(50000);
    }
}

void stream_finish(struct stream *s, uint64_t left)
{
    while (s->total - s->ended > left) {
        stream_post(s);
        stream_reap(s, 200);
    }
}
