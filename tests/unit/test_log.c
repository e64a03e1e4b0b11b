/* SPDX-License-Identifier: Apache-2.0 */
/* The log: levels, the callback, stderr's one line, and callbacks that change under writers. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

/* What the callback saw last. */
struct seen {
    int calls;
    enum uccl_log_level level;
    char text[2048];
};

static void remember(void *user, enum uccl_log_level level, const char *text)
{
    struct seen *seen = user;
    seen->calls++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

Test(log, callback_gets_level_and_text)
{
    struct seen seen = {0};
    uccl_set_log(remember, &seen);
    LOG_ERR("%s: %d", "eth0", 7);
    cr_assert_eq(seen.calls, 1);
    cr_assert_eq(seen.level, UCCL_LOG_ERROR);
    cr_assert_str_eq(seen.text, "eth0: 7");
}

Test(log, level_is_warn_until_set)
{
    cr_assert_eq(log_level(), UCCL_LOG_WARN);
}

Test(log, each_level_lets_through_itself_and_worse)
{
    struct seen seen = {0};
    uccl_set_log(remember, &seen);
    for (int level = UCCL_LOG_NONE; level <= UCCL_LOG_DEBUG; level++) {
        seen.calls = 0;
        log_set_level((enum uccl_log_level)level);
        cr_assert_eq(log_level(), (enum uccl_log_level)level);
        LOG_ERR("e");
        LOG_WARNING("w");
        LOG_INFORM("i");
        LOG_DBG("d");
        cr_assert_eq(seen.calls, level, "level %d", level);
    }
}

/* Arguments of a message that is not written are not evaluated: debug lines cost nothing. */
Test(log, silent_messages_do_not_evaluate)
{
    int evaluated = 0;
    LOG_DBG("%d", ++evaluated);
    cr_assert_eq(evaluated, 0);
}

Test(log, long_text_is_cut_and_says_so)
{
    struct seen seen = {0};
    char text[1500];
    uccl_set_log(remember, &seen);
    memset(text, 'x', sizeof text);
    text[1023] = '\0';
    LOG_ERR("%s", text);
    cr_assert_str_eq(seen.text, text, "1023 bytes fit");
    text[1023] = 'x';
    text[1024] = '\0';
    LOG_ERR("%s", text);
    cr_assert_eq(strlen(seen.text), 1023);
    cr_assert_str_eq(seen.text + 1019, "x...");
}

Test(log, foreign_text_starts_no_line)
{
    struct seen seen = {0};
    uccl_set_log(remember, &seen);
    LOG_ERR("peer said \"%s\"", "a\nuccl: error: b\r\033[1mc\x7f");
    cr_assert_str_eq(seen.text, "peer said \"a uccl: error: b  [1mc \"");
}

Test(log, errno_survives)
{
    uccl_set_log(NULL, NULL);
    close(STDERR_FILENO); /* the write fails and would set EBADF */
    errno = ENETUNREACH;
    LOG_ERR("x");
    cr_assert_eq(errno, ENETUNREACH);
}

/* Sends stderr into a pipe, runs one message, and reads what came in one read. */
static void capture(enum uccl_log_level level, char *out, size_t size)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    int kept = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    LOG(level, "text %d", 1);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    ssize_t n = read(ends[0], out, size - 1);
    close(ends[0]);
    cr_assert_geq(n, 0);
    out[n] = '\0';
}

Test(log, stderr_line_names_the_level)
{
    char line[256];
    log_set_level(UCCL_LOG_DEBUG);
    capture(UCCL_LOG_ERROR, line, sizeof line);
    cr_assert_str_eq(line, "uccl: error: text 1\n");
    capture(UCCL_LOG_WARN, line, sizeof line);
    cr_assert_str_eq(line, "uccl: warning: text 1\n");
    capture(UCCL_LOG_INFO, line, sizeof line);
    cr_assert_str_eq(line, "uccl: info: text 1\n");
    capture(UCCL_LOG_DEBUG, line, sizeof line);
    cr_assert_str_eq(line, "uccl: debug: text 1\n");
}

/* stderr takes no line and raises `number`: a line is lost, and not the process. One who has blocked the signal finds
 * his own alone. */
static void check_no_signal(int number)
{
    sigset_t set, pending;
    signal(number, SIG_DFL);
    LOG_ERR("nobody reads it");
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    LOG_ERR("nor this");
    sigpending(&pending);
    cr_assert_not(sigismember(&pending, number));
    raise(number);
    LOG_ERR("nor this");
    sigpending(&pending);
    cr_assert(sigismember(&pending, number), "that was not ours");
}

Test(log, a_broken_stderr_raises_no_signal)
{
    int pipes[2], keep = dup(STDERR_FILENO);
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_eq(dup2(pipes[1], STDERR_FILENO), STDERR_FILENO);
    close(pipes[0]);
    check_no_signal(SIGPIPE);
    dup2(keep, STDERR_FILENO);
    close(keep);
}

Test(log, a_file_at_its_limit_raises_no_signal)
{
    int file = open("/tmp", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600), keep = dup(STDERR_FILENO);
    struct rlimit limit;
    cr_assert_geq(file, 0);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 0;
    cr_assert_eq(dup2(file, STDERR_FILENO), STDERR_FILENO);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_no_signal(SIGXFSZ);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    dup2(keep, STDERR_FILENO);
    close(keep);
}

/* Nobody reads the pipe, and it is full: lines are lost, and no thread stops. Once somebody reads, that is said. */
Test(log, a_full_stderr_stops_no_thread, .timeout = 10)
{
    char bytes[65536];
    int pipes[2], keep = dup(STDERR_FILENO);
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_eq(dup2(pipes[1], STDERR_FILENO), STDERR_FILENO);
    cr_assert_eq(fcntl(pipes[1], F_SETPIPE_SZ, sizeof bytes), sizeof bytes);
    for (int i = 0; i < 2000; i++) /* 80 KB */
        log_write(NULL, UCCL_LOG_ERROR, "line %4d of two thousand lines", i);
    cr_assert_gt(read(pipes[0], bytes, sizeof bytes), 50000);
    LOG_ERR("the next one");
    ssize_t length = read(pipes[0], bytes, sizeof bytes - 1);
    dup2(keep, STDERR_FILENO);
    close(keep);
    cr_assert_gt(length, 0);
    bytes[length] = '\0';
    cr_assert(strstr(bytes, "uccl: warning: stderr took no more: "), "%s", bytes);
    cr_assert(strstr(bytes, " lines are lost\nuccl: error: the next one\n"), "%s", bytes);
}

Test(log, null_callback_goes_back_to_stderr)
{
    struct seen seen = {0};
    char line[256];
    uccl_set_log(remember, &seen);
    capture(UCCL_LOG_ERROR, line, sizeof line);
    cr_assert_str_eq(line, "");
    uccl_set_log(NULL, &seen);
    capture(UCCL_LOG_ERROR, line, sizeof line);
    cr_assert_str_eq(line, "uccl: error: text 1\n");
    cr_assert_eq(seen.calls, 1);
}

/* ---- a callback that was replaced is left ---- */

struct busy {
    atomic_int inside, left;
};

static void take_long(void *user, enum uccl_log_level level, const char *text)
{
    struct busy *busy = user;
    struct timespec moment = {0, 100000000};
    (void)level;
    (void)text;
    atomic_store(&busy->inside, 1);
    nanosleep(&moment, NULL);
    atomic_store(&busy->left, 1);
}

static void *write_once(void *argument)
{
    (void)argument;
    LOG_ERR("x");
    return NULL;
}

Test(log, nobody_is_inside_a_replaced_callback, .timeout = 10)
{
    struct busy busy = {0};
    struct seen seen = {0};
    pthread_t thread;
    uccl_set_log(take_long, &busy);
    cr_assert_eq(pthread_create(&thread, NULL, write_once, NULL), 0);
    while (!atomic_load(&busy.inside))
        sched_yield();
    uccl_set_log(remember, &seen);
    cr_assert_eq(atomic_load(&busy.left), 1, "its data may be in use still");
    LOG_ERR("x");
    cr_assert_eq(seen.calls, 1);
    pthread_join(thread, NULL);
}

/* Two that replace each other from inside: neither waits for the other. */
static pthread_barrier_t both_inside;

static void replace_together(void *user, enum uccl_log_level level, const char *text)
{
    (void)level;
    (void)text;
    pthread_barrier_wait(&both_inside);
    uccl_set_log(remember, user);
    pthread_barrier_wait(&both_inside);
}

Test(log, two_callbacks_may_set_the_log, .timeout = 10)
{
    struct seen seen = {0};
    pthread_t threads[2];
    pthread_barrier_init(&both_inside, NULL, 2);
    uccl_set_log(replace_together, &seen);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, write_once, NULL), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    LOG_ERR("x");
    cr_assert_eq(seen.calls, 1);
}

/* What a callback causes to be logged goes to stderr, not to itself again. */
static void log_again(void *user, enum uccl_log_level level, const char *text)
{
    remember(user, level, text);
    LOG_ERR("text %d", 2);
}

Test(log, callback_may_log, .timeout = 10)
{
    struct seen seen = {0};
    char line[256];
    uccl_set_log(log_again, &seen);
    capture(UCCL_LOG_ERROR, line, sizeof line);
    cr_assert_eq(seen.calls, 1);
    cr_assert_str_eq(seen.text, "text 1");
    cr_assert_str_eq(line, "uccl: error: text 2\n");
}

/* A callback may change the log itself: no lock is held while it runs. */
static void replace_self(void *user, enum uccl_log_level level, const char *text)
{
    (void)level;
    (void)text;
    uccl_set_log(remember, user);
}

Test(log, callback_may_set_the_log, .timeout = 10)
{
    struct seen seen = {0};
    uccl_set_log(replace_self, &seen);
    LOG_ERR("first");
    cr_assert_eq(seen.calls, 0);
    LOG_ERR("second");
    cr_assert_eq(seen.calls, 1);
}

/* ---- lines that come too often ---- */

static void complain(unsigned number)
{
    LOG_WARNING("stranger %u", number);
}

/* Whoever reaches the listener's port may cause as many lines as it likes. */
Test(log, one_place_writes_few_lines_at_once, .timeout = 30)
{
    struct seen seen = {0};
    uccl_set_log(remember, &seen);
    for (unsigned i = 1; i <= 10000; i++)
        complain(i);
    cr_assert_geq(seen.calls, LOG_BURST_LINES);
    cr_assert_lt(seen.calls, LOG_BURST_LINES + 20, "and one a second");
    LOG_WARNING("another place is not concerned");
    cr_assert_str_eq(seen.text, "another place is not concerned");
    int before = seen.calls;
    while (seen.calls == before) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        complain(0);
    }
    cr_assert_not_null(strstr(seen.text, "stranger 0 ("), "%s", seen.text);
    cr_assert_not_null(strstr(seen.text, " were left out)"), "%s", seen.text);
}

Test(log, what_was_left_out_is_counted)
{
    struct seen seen = {0};
    struct log_budget budget = {0};
    uccl_set_log(remember, &seen);
    for (unsigned i = 0; i < LOG_BURST_LINES; i++)
        cr_assert(log_may(&budget, UCCL_LOG_ERROR));
    for (unsigned i = 0; i < 3; i++)
        cr_assert_not(log_may(&budget, UCCL_LOG_ERROR));
    cr_assert(log_may(&budget, UCCL_LOG_INFO), "who asked for these wants them");
    log_write(&budget, UCCL_LOG_ERROR, "%s", "x");
    cr_assert_str_eq(seen.text, "x (3 such lines before it were left out)");
    log_write(&budget, UCCL_LOG_ERROR, "%s", "y");
    cr_assert_str_eq(seen.text, "y");
    char text[3000];
    memset(text, 'z', sizeof text);
    text[sizeof text - 1] = 0;
    atomic_store(&budget.left_out, UINT32_MAX);
    log_write(&budget, UCCL_LOG_ERROR, "%s", text);
    cr_assert_not_null(strstr(seen.text, "z (4294967295 such lines before it were left out)"), "%s", seen.text);
    cr_assert_eq(strlen(seen.text), 1023);
}

/* ---- a function never meets the user of another one ---- */

enum { SETTERS = 2, WRITERS = 2, WRITES = 50000 };

static int user_a, user_b;
static atomic_int mixed, calls, writers_left = WRITERS;

static void expect_a(void *user, enum uccl_log_level level, const char *text)
{
    (void)level;
    (void)text;
    atomic_fetch_add(&calls, 1);
    if (user != &user_a)
        atomic_fetch_add(&mixed, 1);
}

static void expect_b(void *user, enum uccl_log_level level, const char *text)
{
    (void)level;
    (void)text;
    atomic_fetch_add(&calls, 1);
    if (user != &user_b)
        atomic_fetch_add(&mixed, 1);
}

static void *set_often(void *argument)
{
    (void)argument;
    while (atomic_load(&writers_left) > 0) {
        uccl_set_log(expect_b, &user_b);
        uccl_set_log(expect_a, &user_a);
    }
    return NULL;
}

static void *write_often(void *argument)
{
    (void)argument;
    for (int i = 0; i < WRITES; i++)
        log_write(NULL, UCCL_LOG_ERROR, "x");
    atomic_fetch_sub(&writers_left, 1);
    return NULL;
}

Test(log, function_and_user_stay_together, .timeout = 60)
{
    pthread_t threads[SETTERS + WRITERS];
    uccl_set_log(expect_a, &user_a);
    for (int i = 0; i < SETTERS + WRITERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, i < SETTERS ? set_often : write_often, NULL), 0);
    for (int i = 0; i < SETTERS + WRITERS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&calls), WRITERS * WRITES);
    cr_assert_eq(atomic_load(&mixed), 0);
}
