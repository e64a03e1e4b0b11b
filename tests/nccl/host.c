/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_host SCENARIO [NAME=VALUE...]: drives the plugin as NCCL does; see host.h. Ends with 0 when every rank has
 * done what the scenario asks for. The engine's parameters are in the environment, and LOSE and TWICE
 * (tests/net/lose.c).
 */
#include "host.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct board *board;

double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void nap_us(unsigned us)
{
    struct timespec nap = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&nap, NULL);
}

void barrier(unsigned number, unsigned count)
{
    double start = now_s();
    CHECK(number < BARRIERS_MAX, "barrier %u", number);
    atomic_fetch_add(&board->arrived[number], 1);
    while (atomic_load(&board->arrived[number]) < count) {
        CHECK(now_s() - start < PATIENCE_S, "the others do not come to barrier %u", number);
        nap_us(200);
    }
}

/* ---- the log of the plugin ------------------------------------------------------------------- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_lines[LINES_MAX][256];
static unsigned log_count; /* warnings */

void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (getenv("HOST_VERBOSE") && level <= NCCL_LOG_INFO)
        fprintf(stderr, "%d: level %d: %s\n", (int)getpid(), level, text);
    if (level != NCCL_LOG_WARN)
        return;
    pthread_mutex_lock(&log_lock);
    if (log_count < LINES_MAX)
        snprintf(log_lines[log_count], sizeof(log_lines[0]), "%.255s", text);
    log_count++;
    pthread_mutex_unlock(&log_lock);
}

unsigned warnings(void)
{
    pthread_mutex_lock(&log_lock);
    unsigned count = log_count;
    pthread_mutex_unlock(&log_lock);
    return count;
}

const char *warning(unsigned index)
{
    return index < LINES_MAX ? log_lines[index] : "";
}

/* ---- arguments ------------------------------------------------------------------------------- */

static const char *const kinds[] = {"all-reduce", "chunks", "ll", "ll128"};

static unsigned number(const char *text, const char *name, unsigned least, unsigned most)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    CHECK(*text && !*end && value >= least && value <= most, "%s=%s is not a number from %u to %u", name, text, least,
          most);
    return (unsigned)value;
}

static void parse_sizes(struct options *o, char *text)
{
    o->size_count = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        CHECK(o->size_count < SIZES_MAX, "more than %d sizes", SIZES_MAX);
        o->sizes[o->size_count++] = number(part, "sizes", 0, 64 << 20);
    }
    CHECK(o->size_count > 0 && largest_size(o) > 0, "no size");
}

static void parse_kind(struct options *o, const char *text)
{
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        if (strcmp(text, kinds[k]) == 0) {
            o->kind = (enum kind)k;
            return;
        }
    }
    fail("no such kind of messages: %s", text);
}

static void parse(struct options *o, char *argument)
{
    char *value = strchr(argument, '=');
    CHECK(value, "not NAME=VALUE: %s", argument);
    *value++ = '\0';
    if (strcmp(argument, "plugin") == 0)
        o->plugin = value;
    else if (strcmp(argument, "version") == 0)
        o->version = number(value, argument, NET_OLDEST, NET_NEWEST);
    else if (strcmp(argument, "ranks") == 0)
        o->ranks = number(value, argument, 2, RANKS_MAX);
    else if (strcmp(argument, "channels") == 0)
        o->channels = number(value, argument, 1, CHANNELS_MAX);
    else if (strcmp(argument, "messages") == 0)
        o->messages = number(value, argument, 1, 1u << 30);
    else if (strcmp(argument, "comms") == 0)
        o->comms = number(value, argument, 1, COMMS_MAX);
    else if (strcmp(argument, "skew_ms") == 0)
        o->skew_ms = number(value, argument, 0, 60000);
    else if (strcmp(argument, "limit_ms") == 0)
        o->limit_ms = number(value, argument, 1, 600000);
    else if (strcmp(argument, "spread") == 0)
        o->spread = number(value, argument, 0, 1);
    else if (strcmp(argument, "registers") == 0)
        o->registers = number(value, argument, 0, 1);
    else if (strcmp(argument, "kind") == 0)
        parse_kind(o, value);
    else if (strcmp(argument, "sizes") == 0)
        parse_sizes(o, value);
    else
        fail("no such option: %s", argument);
}

static const struct scenario *find_scenario(const char *name)
{
    for (const struct scenario *s = scenarios; s->name; s++) {
        if (strcmp(s->name, name) == 0)
            return s;
    }
    fprintf(stderr, "usage: nccl_host SCENARIO [plugin=FILE] [version=8..12] [ranks=N] [channels=N] [messages=N]\n"
                    "         [kind=all-reduce|chunks|ll|ll128] [sizes=BYTES,...] [comms=N] [skew_ms=N] [limit_ms=N] "
                    "[registers=0|1] [spread=0|1]\n");
    for (const struct scenario *s = scenarios; s->name; s++)
        fprintf(stderr, "  %-10s %s\n", s->name, s->what);
    exit(64);
}

/* ---- processes ------------------------------------------------------------------------------- */

static pid_t start_rank(const struct scenario *scenario, const struct options *options, unsigned rank)
{
    char name[64];
    pid_t process;
    fflush(NULL);
    process = fork();
    CHECK(process >= 0, "fork: %s", strerror(errno));
    if (process > 0)
        return process;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    atomic_store(&board->process[rank], getpid());
    snprintf(name, sizeof(name), "%s, version %u, rank %u", scenario->name, options->version, rank);
    fail_as(name);
    scenario->rank(options, rank);
    fflush(NULL);
    /* exit(), not _exit(): destructors of the plugin run, and a sanitizer looks for leaks */
    exit(0);
}

static bool ended_well(const struct scenario *scenario, const struct options *options, unsigned rank, int status)
{
    bool killed = scenario->kills_last && rank + 1 == options->ranks;
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    if (!killed && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    fprintf(stderr, "FAILED rank %u of %s: %s %d\n", rank, scenario->name, WIFSIGNALED(status) ? "signal" : "status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

static int run_ranks(const struct scenario *scenario, const struct options *options)
{
    unsigned left = options->ranks;
    bool good = true;
    for (unsigned rank = 0; rank < options->ranks; rank++)
        atomic_store(&board->process[rank], start_rank(scenario, options, rank));
    while (left > 0) {
        int status;
        pid_t process = wait(&status);
        if (process < 0 && errno == EINTR)
            continue;
        CHECK(process >= 0, "wait: %s", strerror(errno));
        for (unsigned rank = 0; rank < options->ranks; rank++) {
            if (atomic_load(&board->process[rank]) != process)
                continue;
            atomic_store(&board->process[rank], 0);
            left--;
            if (!ended_well(scenario, options, rank, status)) {
                good = false;
                for (unsigned other = 0; other < options->ranks; other++) { /* they would wait for it */
                    pid_t victim = atomic_load(&board->process[other]);
                    if (victim > 0)
                        kill(victim, SIGKILL);
                }
            }
        }
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct options options = {.plugin = getenv("NCCL_PLUGIN_FILE"),
                              .version = NET_NEWEST,
                              .ranks = 2,
                              .channels = 2,
                              .messages = 20,
                              .sizes = {128 << 10},
                              .size_count = 1,
                              .limit_ms = 5000,
                              .comms = 1};
    const struct scenario *scenario = find_scenario(argc > 1 ? argv[1] : "");
    for (int i = 2; i < argc; i++)
        parse(&options, argv[i]);
    CHECK(options.plugin, "plugin=FILE, or NCCL_PLUGIN_FILE in the environment");
    setvbuf(stdout, NULL, _IOLBF, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* who runs it may be killed, having lost patience */
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED, "no memory");
    return run_ranks(scenario, &options);
}
