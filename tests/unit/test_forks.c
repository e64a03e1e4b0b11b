/* SPDX-License-Identifier: Apache-2.0 */
/* The library as a guest in a process that forks: what a child may do, and that its parent goes on. */
#include "every_call.h"

#include "../../api/budget.h"

#include "base/warned.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { CHILD_S = 20 };

/* Ends the child; the parent says why. */
#define CHILD_IS(expression, expected)                                                                                 \
    do {                                                                                                               \
        int is_ = (expression), expected_ = (expected);                                                                \
        if (is_ != expected_) {                                                                                        \
            fprintf(stderr, "child: %s is %d (%s), not %d\n", #expression, is_, uccl_strerror(is_), expected_);        \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void child_ends_well(pid_t child)
{
    int status;
    cr_assert(child > 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: %s %d", WIFSIGNALED(status) ? "signal" : "exit",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Some thread but this one is not asleep. */
static bool some_other_runs(void)
{
    int threads[THREADS_MAX], self = (int)syscall(SYS_gettid);
    unsigned count = list_threads(threads);
    for (unsigned i = 0; i < count; i++) {
        char path[64], line[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", threads[i]);
        FILE *file = fopen(path, "r");
        const char *name_end = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        if (file)
            fclose(file);
        if (threads[i] != self && name_end && name_end[2] != 'S')
            return true;
    }
    return false;
}

/*
 * fork() while the other threads sleep. AddressSanitizer (gcc 12) gives nothing back in the child of what other threads
 * had locked in its allocator. Threads that are just starting lock it before a line of ours runs: then the child's own
 * threads never start.
 */
static pid_t fork_in_peace(void)
{
    uint64_t end_ms = now_ms() + SOON_MS;
    while (some_other_runs()) {
        cr_assert(now_ms() < end_ms, "the other threads do not rest");
        sleep_us(1000);
    }
    return fork();
}

/* All that the parent had works as before. */
static void parent_goes_on(struct world *w)
{
    uccl_conn *conn[2];
    IS(uccl_conn_status(w->pair.conn[0]), 0);
    IS(uccl_conn_status(w->pair.conn[1]), 0);
    exchange(w->pair.conn[0], w->pair.conn[1], 200000, 3);
    IS(uccl_wait(w->request, 1, NULL), UCCL_ETIMEDOUT);
    end_of(post_send(w->pair.conn[1], "here", 4), 0);
    cr_assert_eq(end_of(w->request, 0), 4);
    cr_assert(memcmp(w->buffer, "here", 4) == 0);
    exchange(w->pair.conn[1], w->pair.conn[0], 100, 4);
    connect_now(w->pair.engine[0], &w->handle, w->listener, conn); /* the half-way one is before it in line */
    IS(uccl_dereg_mr(w->mr), 0);
    uccl_connect_cancel(&w->half_way);
    IS(uccl_close(w->engine), 0);
    pair_close(&w->pair);
}

static void child_makes_every_call(struct world *w)
{
    alarm(CHILD_S);
    for (unsigned i = 0; i < CALLS; i++) {
        int result = calls[i].run(w);
        if (calls[i].bound ? result != UCCL_EFORKED : result < 0) {
            fprintf(stderr, "child: %s() is %d (%s)\n", calls[i].name, result, uccl_strerror(result));
            _exit(1);
        }
    }
    CHILD_IS(uccl_close(w->pair.engine[0]), 0);
    CHILD_IS(uccl_close(w->pair.engine[1]), 0);
}

static void fork_one_that_makes_every_call(const char *lend)
{
    struct world w;
    uccl_set_log(log_nothing, NULL);
    world_open(&w, lend);
    pid_t child = fork_in_peace();
    if (child == 0) {
        child_makes_every_call(&w);
        _exit(0);
    }
    child_ends_well(child);
    parent_goes_on(&w);
}

BOTH(forks, child_fails_and_touches_nothing)
{
    fork_one_that_makes_every_call(lend);
}

/* A child that closes all that it has inherited: `files` are open then, and a port is free once the parent leaves it.
 */
static void fork_one_that_closes(struct world *w, unsigned files)
{
    pid_t child = fork_in_peace();
    if (child == 0) {
        alarm(CHILD_S);
        uccl_connect_cancel(&w->half_way);
        CHILD_IS(uccl_close(w->engine), 0);
        CHILD_IS(uccl_close(w->pair.engine[0]), 0);
        CHILD_IS(uccl_close(w->pair.engine[1]), 0);
        CHILD_IS((int)entries_of("/proc/self/fd"), (int)files);
        _exit(0);
    }
    child_ends_well(child);
}

BOTH(forks, child_closes_what_it_inherited)
{
    struct world w;
    unsigned before = entries_of("/proc/self/fd");
    world_open(&w, lend);
    fork_one_that_closes(&w, before);
    parent_goes_on(&w);
}

/* Nor does it break connections that stand beside datagrams, which are the parent's. */
BOTH(forks, child_breaks_no_connection)
{
    enum { LARGE = 1 << 20 };
    struct world w;
    unsigned before = entries_of("/proc/self/fd");
    world_open(&w, lend);
    uint64_t end_ms = now_ms() + SOON_MS;
    for (unsigned i = 0; counter_of(w.pair.engine[0], "tcp_bulk_bytes") == 0; i++) {
        exchange(w.pair.conn[0], w.pair.conn[1], LARGE, i);
        cr_assert(now_ms() < end_ms);
    }
    uint64_t broken = counter_of(w.pair.engine[0], "tcp_broken") + counter_of(w.pair.engine[1], "tcp_broken");
    fork_one_that_closes(&w, before);
    uint64_t bytes = counter_of(w.pair.engine[0], "tcp_bulk_bytes");
    exchange(w.pair.conn[0], w.pair.conn[1], LARGE, 1);
    cr_assert_gt(counter_of(w.pair.engine[0], "tcp_bulk_bytes"), bytes);
    cr_assert_eq(counter_of(w.pair.engine[0], "tcp_broken") + counter_of(w.pair.engine[1], "tcp_broken"), broken);
    parent_goes_on(&w);
}

/* Nor a handshake. */
BOTH(forks, child_breaks_no_handshake)
{
    struct world w;
    uccl_conn *conn[2];
    unsigned before = entries_of("/proc/self/fd");
    world_open(&w, lend);
    fork_one_that_closes(&w, before);
    connect_now(w.pair.engine[0], &w.half_way, w.listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    IS(uccl_close(w.engine), 0);
    pair_close(&w.pair);
}

/* What the parent gives up ends, though a child that lives on has copies of its sockets. */
BOTH(forks, child_keeps_nothing_open)
{
    struct world w;
    struct budget budget = {0};
    uccl_listener *again;
    uccl_conn *conn;
    int pipe_fd[2];
    char byte;
    uccl_set_log(log_nothing, NULL);
    world_open(&w, lend);
    for (uint64_t end_ms = now_ms() + SOON_MS; budget.handshakes == 0; engine_budget(w.engine, &budget)) {
        struct uccl_handle half_way = w.half_way;
        IS(uccl_connect(w.pair.engine[0], &half_way, 0, &conn), UCCL_EAGAIN);
        IS(uccl_accept(w.listener, 0, &conn), UCCL_EAGAIN);
        cr_assert_lt(now_ms(), end_ms);
    }
    cr_assert_eq(pipe(pipe_fd), 0);
    pid_t child = fork_in_peace();
    if (child == 0) {
        close(pipe_fd[1]);
        _exit(read(pipe_fd[0], &byte, 1) == 0 ? 0 : 1);
    }
    uint64_t end_ms = now_ms() + SOON_MS / 4;
    uccl_connect_cancel(&w.half_way);
    do {
        IS(uccl_accept(w.listener, 10, &conn), UCCL_ETIMEDOUT);
        engine_budget(w.engine, &budget);
        cr_assert_lt(now_ms(), end_ms, "the server still waits for who has cancelled");
    } while (budget.handshakes);
    uint16_t port = uccl_listener_port(w.listener);
    IS(uccl_listener_close(w.listener), 0);
    IS(uccl_connect(w.pair.engine[0], &w.handle, SOON_MS, &conn), UCCL_EREFUSED);
    IS(uccl_listen(w.engine, 0, port, &w.handle, &again), 0);
    close(pipe_fd[1]);
    close(pipe_fd[0]);
    child_ends_well(child);
    IS(uccl_close(w.engine), 0);
    pair_close(&w.pair);
}

/* Of a child's child, the parent's and the grandparent's engines are none of its own. */
BOTH(forks, child_and_its_child_have_engines_of_their_own)
{
    struct world w;
    uccl_set_log(log_nothing, NULL);
    world_open(&w, lend);
    pid_t child = fork_in_peace();
    if (child == 0) {
        struct pair own;
        alarm(CHILD_S);
        pair_open(&own, lend);
        CHILD_IS(uccl_conn_status(w.pair.conn[0]), UCCL_EFORKED);
        exchange(own.conn[0], own.conn[1], 300000, 5);
        pid_t grandchild = fork_in_peace();
        if (grandchild == 0) {
            struct pair third;
            alarm(CHILD_S);
            pair_open(&third, lend);
            CHILD_IS(uccl_conn_status(w.pair.conn[0]), UCCL_EFORKED);
            CHILD_IS(uccl_conn_status(own.conn[0]), UCCL_EFORKED);
            exchange(third.conn[0], third.conn[1], 300000, 6);
            pair_close(&own);
            pair_close(&third);
            _exit(0);
        }
        child_ends_well(grandchild);
        exchange(own.conn[1], own.conn[0], 300000, 7);
        pair_close(&own);
        _exit(0);
    }
    child_ends_well(child);
    parent_goes_on(&w);
}

/* Made by the system call, a child runs none of the C library's handlers. It may not allocate either. */
BOTH(forks, child_without_handlers_is_noticed)
{
    struct world w;
    world_open(&w, lend);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        int done;
        bool same = uccl_conn_status(w.pair.conn[0]) == UCCL_EFORKED &&
                    uccl_send_async(w.pair.conn[0], "x", 1, NULL, &w.other) == UCCL_EFORKED &&
                    uccl_test(w.request, &done, NULL) == UCCL_EFORKED && uccl_wait(w.request, -1, NULL) == UCCL_EFORKED;
        _exit(same ? 0 : 1);
    }
    child_ends_well(child);
    parent_goes_on(&w);
}

/* madvise(MADV_WIPEONFORK) fails from here on, as on kernels before 4.14. */
static void refuse_to_wipe(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_WIPEONFORK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(madvise(page, 4096, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    munmap(page, 4096);
}

BOTH(forks, child_is_noticed_on_old_kernels)
{
    refuse_to_wipe();
    fork_one_that_makes_every_call(lend);
}

/* A child that was forked while one thread was inside the log's callback, and another waited to replace it, can. */
static _Atomic int inside, leave;

static void stay_inside(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    inside = 1;
    while (!leave)
        sleep_us(1000);
}

static void *log_something(void *argument)
{
    (void)argument;
    uccl_config_set(NULL, "CC", "swift"); /* logs */
    return NULL;
}

static void *replace_log(void *argument)
{
    uccl_set_log(log_nothing, argument);
    return NULL;
}

Test(forks, child_of_a_process_that_logs, .timeout = TIMEOUT_S)
{
    pthread_t thread, setter;
    uccl_set_log(stay_inside, NULL);
    cr_assert_eq(pthread_create(&thread, NULL, log_something, NULL), 0);
    while (!inside)
        sleep_us(1000);
    cr_assert_eq(pthread_create(&setter, NULL, replace_log, NULL), 0);
    sleep_us(20000); /* until it waits for the other, who is inside */
    pid_t child = fork_in_peace();
    if (child == 0) {
        alarm(CHILD_S);
        uccl_set_log(log_nothing, NULL);
        CHILD_IS(uccl_config_set(NULL, "CC", "swift"), UCCL_EINVAL);
        _exit(0);
    }
    child_ends_well(child);
    leave = 1;
    pthread_join(thread, NULL);
    pthread_join(setter, NULL);
}

/* A thread that stays where it unlocks a mutex next, with the mutex locked. */
static _Thread_local bool stays_locked;
static _Atomic bool locked, unlock;

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (stays_locked) {
        locked = true;
        while (!unlock)
            sleep_us(1000);
    }
    return __real_pthread_mutex_unlock(mutex);
}

static void *be_warned(void *argument)
{
    stays_locked = true;
    warned_first(argument);
    return NULL;
}

/* The same of a thread that looks whether it has been warned of something. */
Test(forks, child_of_a_process_that_is_warned, .timeout = TIMEOUT_S)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, be_warned, "one key"), 0);
    while (!locked)
        sleep_us(1000);
    pid_t child = fork_in_peace();
    if (child == 0) {
        alarm(CHILD_S);
        CHILD_IS(warned_first("one key"), false);
        CHILD_IS(warned_first("another key"), true);
        _exit(0);
    }
    child_ends_well(child);
    unlock = true;
    pthread_join(thread, NULL);
}
