/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator's program. Seeds are played by worker processes, one per processor, so that an assert, a
 * sanitizer or an endless loop costs one seed and still names it. Without a scenario, each seed plays the next
 * one of the list.
 *
 *   sim [--scenario NAME] [--seed S] [--seeds N] [--trace]   plays N seeds from S on
 *   sim --corpus FILE [--seconds T]                          seeds with known hashes, then new ones for T s
 *   sim --campaign --hours H                                 new seeds for long
 *   sim --seconds T [--failures F] [--each]                  new seeds for T s, however many of F fail; each
 *                                                            scenario once at least
 *   sim --write-corpus FILE                                  notes the hashes of the corpus's seeds
 *   sim --list                                               names of scenarios
 */
#include "scenarios.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SCENARIOS_MAX = 256,
    CORPUS_MAX = 512,
    JOBS_MAX = 1024,
    FAILURES_DEFAULT = 10,  /* then nothing new begins */
    REAL_SECONDS_MAX = 300, /* of one seed */
    SEEDS_DEFAULT = 400,
    REPEAT_EVERY = 8,    /* seeds: one of them is played twice */
    CORPUS_SEEDS = 1,    /* per scenario, when a corpus is written */
    REPORT_SECONDS = 60, /* of a campaign */
    LAST_PERCENT = 10,   /* of the time that is given: no seed begins in it, so that most of them end */
    LAST_SECONDS_MAX = 5,
    TIME_MAX = 1000000,      /* seconds or hours that a user asks for */
    LOOK_EVERY_NS = 2000000, /* for workers that have ended */
};

struct sums {
    _Atomic uint64_t seeds, messages, bytes, datagrams, sim_ns, faults;
};

struct job {
    pid_t pid;
    _Atomic uint64_t unit; /* that it plays */
};

struct corpus_entry {
    unsigned scenario;
    uint64_t seed, hash;
};

/* What workers and their parent share. */
struct shared {
    _Atomic uint64_t next;
    _Atomic bool stop;
    struct job jobs[JOBS_MAX];
    struct sums sums[SCENARIOS_MAX];
    _Atomic uint64_t hashes[CORPUS_MAX];
};

static const struct scenario *scenarios[SCENARIOS_MAX];
static unsigned scenario_count;
static struct corpus_entry corpus[CORPUS_MAX];
static unsigned corpus_count;
static struct shared *shared;

/* What is asked for. */
static struct {
    int only; /* scenario, or -1 */
    uint64_t seed, seeds;
    bool trace, from_corpus, check_hashes;
    double begin_until, until; /* s, monotonic: no seed begins, or goes on, after it; 0: after so many seeds */
    uint64_t least;            /* seeds that are played however long they take: one of each scenario */
    unsigned jobs, failures_max;
} plan;

static volatile sig_atomic_t told_to_stop;

static void collect_scenarios(void)
{
    const struct scenario *some;
    unsigned (*const lists[])(const struct scenario **) = {core_scenarios, engine_scenarios};
    for (unsigned i = 0; i < 2; i++) {
        unsigned count = lists[i](&some);
        assert(scenario_count + count <= SCENARIOS_MAX);
        for (unsigned k = 0; k < count; k++)
            scenarios[scenario_count++] = &some[k];
    }
}

static int find_scenario(const char *name)
{
    for (unsigned i = 0; i < scenario_count; i++) {
        if (strcmp(scenarios[i]->name, name) == 0)
            return (int)i;
    }
    return -1;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- workers --------------------------------------------------------------------------------- */

static void unit_of(uint64_t unit, unsigned *scenario, uint64_t *seed)
{
    if (plan.from_corpus) {
        *scenario = corpus[unit].scenario;
        *seed = corpus[unit].seed;
    } else {
        *seed = plan.seed + unit;
        *scenario = plan.only >= 0 ? (unsigned)plan.only : (unsigned)(*seed % scenario_count);
    }
}

static uint64_t play(unsigned index, uint64_t seed)
{
    struct run_result result = {0};
    struct sums *sums = &shared->sums[index];
    alarm(REAL_SECONDS_MAX);
    scenarios[index]->run(scenarios[index], seed, plan.trace, &result);
    alarm(0);
    sums->messages += result.messages;
    sums->bytes += result.bytes;
    sums->datagrams += result.datagrams;
    sums->sim_ns += result.sim_ns;
    sums->faults += result.faults;
    return result.hash;
}

static void play_unit(uint64_t unit)
{
    unsigned index;
    uint64_t seed;
    unit_of(unit, &index, &seed);
    uint64_t hash = play(index, seed);
    if (plan.from_corpus)
        shared->hashes[unit] = hash;
    if (plan.trace)
        printf("# trace hash %016llx\n", (unsigned long long)hash);
    bool again = !plan.from_corpus && !plan.trace && (seed % REPEAT_EVERY == 0 || plan.seeds == 1);
    uint64_t second = again ? play(index, seed) : hash;
    if (second != hash) {
        printf("# it does not repeat itself: trace hash %016llx, then %016llx\n", (unsigned long long)hash,
               (unsigned long long)second);
        exit(1);
    }
    if (plan.from_corpus && plan.check_hashes && hash != corpus[unit].hash) {
        printf("# trace hash %016llx instead of %016llx (if this change is meant: sim --write-corpus)\n",
               (unsigned long long)hash, (unsigned long long)corpus[unit].hash);
        exit(1);
    }
    shared->sums[index].seeds++;
}

static void work(struct job *job)
{
    for (;;) {
        uint64_t unit = atomic_fetch_add(&shared->next, 1);
        if (shared->stop || unit >= plan.seeds ||
            (plan.until > 0 && unit >= plan.least && seconds_now() >= plan.begin_until))
            break;
        job->unit = unit;
        play_unit(unit);
    }
    fflush(stdout);
    _exit(0);
}

static bool start_job(struct job *job)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        /* its parent ends it, and tells what had not ended */
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(job);
    }
    job->pid = pid;
    return pid > 0;
}

static void tell_failure(const struct job *job, int status)
{
    unsigned index;
    uint64_t seed;
    unit_of(job->unit, &index, &seed);
    if (WIFSIGNALED(status))
        printf("# killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    printf("not ok: scenario %s, seed %llu; replay: tests/run.sh sim --scenario %s --seed %llu --seeds 1 --trace\n",
           scenarios[index]->name, (unsigned long long)seed, scenarios[index]->name, (unsigned long long)seed);
    fflush(stdout);
}

/* Waits for a worker. When the time is up, or somebody says so, those that still play are killed: an unfinished seed
 * has neither passed nor failed. */
static pid_t wait_for_worker(int *status, bool *cut)
{
    for (;;) {
        pid_t pid = waitpid(-1, status, WNOHANG);
        if (pid != 0)
            return pid;
        bool over = plan.until > 0 && shared->next >= plan.least + plan.jobs && seconds_now() >= plan.until;
        if (!*cut && (told_to_stop || over)) {
            *cut = true;
            shared->stop = true;
            for (unsigned i = 0; i < plan.jobs; i++) {
                if (shared->jobs[i].pid > 0)
                    kill(shared->jobs[i].pid, SIGKILL);
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_NS}, NULL);
    }
}

/* Plays what the plan says; returns how many seeds failed. */
static unsigned play_all(void)
{
    unsigned failures = 0, running = 0, unfinished = 0;
    bool cut = false;
    shared->next = 0;
    for (unsigned i = 0; i < plan.jobs; i++)
        running += start_job(&shared->jobs[i]);
    while (running) {
        int status = 0;
        pid_t pid = wait_for_worker(&status, &cut);
        if (pid < 0)
            break;
        for (unsigned i = 0; i < plan.jobs; i++) {
            struct job *job = &shared->jobs[i];
            if (job->pid != pid)
                continue;
            running--;
            job->pid = 0;
            if (status == 0)
                continue;
            if (cut && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
                unfinished++;
                continue;
            }
            tell_failure(job, status);
            if (++failures >= plan.failures_max)
                shared->stop = true;
            else
                running += start_job(job);
        }
    }
    if (unfinished)
        printf("# %u seeds had not ended when the time was up\n", unfinished);
    return failures;
}

/* ---- corpus ---------------------------------------------------------------------------------- */

static bool read_corpus(const char *path)
{
    char line[256], name[64];
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "sim: %s: %s\n", path, strerror(errno));
        return false;
    }
    while (fgets(line, sizeof line, file) && corpus_count < CORPUS_MAX) {
        unsigned long long seed, hash;
        if (line[0] == '#' || line[0] == '\n')
            continue;
        int scenario = sscanf(line, "%63s %llu %llx", name, &seed, &hash) == 3 ? find_scenario(name) : -1;
        if (scenario < 0) {
            fprintf(stderr, "sim: %s: not a scenario, a seed and a hash: %s", path, line);
            fclose(file);
            return false;
        }
        corpus[corpus_count++] = (struct corpus_entry){(unsigned)scenario, seed, hash};
    }
    fclose(file);
    return true;
}

/* The seeds that stand there, and at least so many of every scenario. */
static bool write_corpus(const char *path)
{
    if (access(path, R_OK) == 0 && !read_corpus(path))
        return false;
    for (unsigned i = 0; i < scenario_count; i++) {
        unsigned count = 0;
        for (unsigned k = 0; k < corpus_count; k++)
            count += corpus[k].scenario == i;
        for (; count < CORPUS_SEEDS && corpus_count < CORPUS_MAX; count++)
            corpus[corpus_count++] = (struct corpus_entry){i, 1 + count, 0};
    }
    plan.from_corpus = true;
    plan.check_hashes = false;
    plan.seeds = corpus_count;
    if (play_all() || told_to_stop)
        return false;
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "sim: %s: %s\n", path, strerror(errno));
        return false;
    }
    fprintf(file, "# Scenario, seed, trace hash. The same in every build; changes with the code: sim --write-corpus\n");
    for (unsigned i = 0; i < corpus_count; i++)
        fprintf(file, "%s %llu %016llx\n", scenarios[corpus[i].scenario]->name, (unsigned long long)corpus[i].seed,
                (unsigned long long)shared->hashes[i]);
    return fclose(file) == 0;
}

/* How many scenarios have no seed in the corpus: nothing is known of their histories. */
static unsigned tell_missing(void)
{
    unsigned missing = 0;
    for (unsigned i = 0; i < scenario_count; i++) {
        bool found = false;
        for (unsigned k = 0; k < corpus_count && !found; k++)
            found = corpus[k].scenario == i;
        missing += !found;
        if (!found)
            printf("not ok: no seed of %s in the corpus (sim --write-corpus adds one)\n", scenarios[i]->name);
    }
    return missing;
}

/* ---- telling --------------------------------------------------------------------------------- */

static uint64_t print_sums(const char *name, const struct sums *sums)
{
    printf("%-22s %7llu seeds %9llu messages %8llu MiB %10llu datagrams %9llu faults %9.1f simulated s\n", name,
           (unsigned long long)sums->seeds, (unsigned long long)sums->messages, (unsigned long long)sums->bytes >> 20,
           (unsigned long long)sums->datagrams, (unsigned long long)sums->faults, (double)sums->sim_ns / 1e9);
    return sums->seeds;
}

static uint64_t tell_all(bool each)
{
    struct sums all = {0};
    for (unsigned i = 0; i < scenario_count; i++) {
        const struct sums *sums = &shared->sums[i];
        if (each && sums->seeds)
            print_sums(scenarios[i]->name, sums);
        all.seeds += sums->seeds;
        all.messages += sums->messages;
        all.bytes += sums->bytes;
        all.datagrams += sums->datagrams;
        all.sim_ns += sums->sim_ns;
        all.faults += sums->faults;
    }
    return print_sums("all", &all);
}

/* Fresh seeds are far from those that people type. */
static uint64_t fresh_seed(void)
{
    return (uint64_t)time(NULL) << 20;
}

/* In a process of its own, so that a campaign says now and then how far it is. */
static pid_t start_reporter(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
    }
    while (pid == 0) {
        sleep(REPORT_SECONDS);
        if (getppid() == 1)
            _exit(0);
        tell_all(false);
        fflush(stdout);
    }
    return pid;
}

static int usage(void)
{
    fprintf(stderr, "usage: sim [--scenario NAME] [--seed S] [--seeds N] [--jobs J] [--trace] [--list]\n"
                    "           [--corpus FILE] [--seconds T] [--failures F] [--each] [--campaign] [--hours H]\n"
                    "           [--write-corpus FILE]\n");
    return 2;
}

struct arguments {
    const char *read_from, *write_to;
    double seconds;
    bool campaign, each, counted, seeded, list;
};

/* Whether `value` is a number of this type, up to its end; a line says if not. */
static bool whole_number(const char *name, const char *value, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(value, &end, 0);
    if (*value >= '0' && *value <= '9' && !*end && !errno && *out <= most)
        return true;
    fprintf(stderr, "sim: %s %s: allowed are whole numbers from 0 to %llu\n", name, value, (unsigned long long)most);
    return false;
}

static bool real_number(const char *name, const char *value, double *out)
{
    char *end;
    *out = strtod(value, &end);
    if (end != value && !*end && *out >= 0 && *out <= TIME_MAX)
        return true;
    fprintf(stderr, "sim: %s %s: allowed are numbers from 0 to %d\n", name, value, TIME_MAX);
    return false;
}

/* Takes an option with its value. False: there is no such option, or its value is none. */
static bool take_option(struct arguments *arguments, const char *name, const char *value)
{
    uint64_t number;
    if (!strcmp(name, "--seeds")) {
        arguments->counted = true;
        return whole_number(name, value, UINT64_MAX, &plan.seeds);
    } else if (!strcmp(name, "--seed")) {
        arguments->seeded = true;
        return whole_number(name, value, UINT64_MAX, &plan.seed);
    } else if (!strcmp(name, "--jobs")) {
        if (!whole_number(name, value, UINT32_MAX, &number))
            return false;
        plan.jobs = (unsigned)number;
    } else if (!strcmp(name, "--failures")) {
        if (!whole_number(name, value, UINT32_MAX, &number))
            return false;
        plan.failures_max = (unsigned)number;
    } else if (!strcmp(name, "--hours")) {
        if (!real_number(name, value, &arguments->seconds))
            return false;
        arguments->seconds *= 3600;
    } else if (!strcmp(name, "--seconds")) {
        return real_number(name, value, &arguments->seconds);
    } else if (!strcmp(name, "--corpus")) {
        arguments->read_from = value;
    } else if (!strcmp(name, "--write-corpus")) {
        arguments->write_to = value;
    } else if (!strcmp(name, "--scenario")) {
        plan.only = find_scenario(value);
        if (plan.only < 0)
            fprintf(stderr, "sim: no scenario %s; --list names them\n", value);
        return plan.only >= 0;
    } else {
        return false;
    }
    return true;
}

static bool take_arguments(struct arguments *arguments, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list"))
            arguments->list = true;
        else if (!strcmp(argv[i], "--trace"))
            plan.trace = true;
        else if (!strcmp(argv[i], "--campaign"))
            arguments->campaign = true;
        else if (!strcmp(argv[i], "--each"))
            arguments->each = true;
        else if (i + 1 == argc || !take_option(arguments, argv[i], argv[i + 1]))
            return false;
        else
            i++;
    }
    if (plan.jobs > JOBS_MAX)
        plan.jobs = JOBS_MAX;
    if (plan.jobs == 0 || plan.trace || (arguments->counted && plan.seeds == 1))
        plan.jobs = 1;
    return true;
}

/* Returns how many seeds failed. */
static unsigned play_new(const struct arguments *arguments)
{
    if (arguments->campaign || arguments->seconds > 0) {
        double seconds = arguments->seconds > 0 ? arguments->seconds : 3600, last = seconds * LAST_PERCENT / 100;
        plan.until = seconds_now() + seconds;
        plan.begin_until = plan.until - (last < LAST_SECONDS_MAX ? last : LAST_SECONDS_MAX);
        if (!arguments->counted)
            plan.seeds = UINT64_MAX;
        if (arguments->each)
            plan.least = scenario_count;
        if (!arguments->seeded)
            plan.seed = fresh_seed();
    } else if (arguments->read_from && !arguments->counted) {
        return 0;
    }
    printf("seeds from %llu on\n", (unsigned long long)plan.seed);
    pid_t reporter = arguments->campaign ? start_reporter() : -1;
    unsigned failed = play_all();
    if (reporter > 0) {
        kill(reporter, SIGTERM);
        waitpid(reporter, NULL, 0);
    }
    return failed;
}

static void stop_when_told(int number)
{
    (void)number;
    told_to_stop = 1;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {0};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    collect_scenarios();
    plan.only = -1;
    plan.seed = 1;
    plan.seeds = SEEDS_DEFAULT;
    plan.check_hashes = true;
    plan.failures_max = FAILURES_DEFAULT;
    plan.jobs = processors < 1 ? 1 : (unsigned)processors;
    if (!take_arguments(&arguments, argc, argv))
        return usage();
    for (unsigned i = 0; arguments.list && i < scenario_count; i++)
        printf("%s\n", scenarios[i]->name);
    if (arguments.list)
        return 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    struct sigaction action = {.sa_handler = stop_when_told}; /* interrupts what waits */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (arguments.write_to)
        return !write_corpus(arguments.write_to);
    unsigned failed = 0;
    if (arguments.read_from) {
        uint64_t seeds = plan.seeds;
        if (!read_corpus(arguments.read_from))
            return 2;
        plan.from_corpus = true;
        plan.seeds = corpus_count;
        failed = play_all() + tell_missing();
        printf("%u seeds of the corpus\n", corpus_count);
        plan.from_corpus = false;
        plan.seeds = seeds;
    }
    failed += play_new(&arguments);
    uint64_t passed = tell_all(true);
    printf("%llu passed, %u failed\n", (unsigned long long)passed, failed);
    return failed != 0;
}
