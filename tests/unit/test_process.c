/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library as a guest in a process: signals that are not its own, threads that are cancelled, forks. Every
 * public call is in one table, which is compared with the header, so that a new one cannot be forgotten.
 */
#include "api_pair.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { CHILD_S = 20, SHORT_MS = 20 };

/* ---- every public call ----------------------------------------------------------------------- */

/* What the calls work on: a connected pair, and one object of each kind. */
struct world {
    struct pair pair;
    uccl_engine *engine; /* of the others: a third one, that nobody is connected to */
    uccl_listener *listener;
    struct uccl_handle handle, half_way; /* of the listener; the second has a connect under way */
    uccl_mr *mr;
    uccl_request *request, *other; /* a receive that stays pending; what the calls post */
    uint8_t buffer[64], registered[64];
};

static void world_open(struct world *w, const char *lend)
{
    uccl_conn *conn;
    pair_open(&w->pair, lend);
    w->engine = open_engine(lend, "LINGER_MS", "100", NULL);
    IS(uccl_listen(w->engine, 0, 0, &w->handle, &w->listener), 0);
    w->half_way = w->handle;
    IS(uccl_connect(w->pair.engine[0], &w->half_way, 0, &conn), UCCL_EAGAIN);
    IS(uccl_reg_mr(w->engine, w->registered, sizeof w->registered, UCCL_MEM_HOST, &w->mr), 0);
    w->request = post_recv(w->pair.conn[0], w->buffer, sizeof w->buffer);
}

#define CALL(name) static int call_##name(struct world *w)
#define CALL_ALONE(name) static int call_##name(struct world *w __attribute__((unused)))

CALL_ALONE(strerror) { return uccl_strerror(0) ? 0 : -1; }
CALL_ALONE(version) { return uccl_version() ? 0 : -1; }
CALL_ALONE(build_info) { return uccl_build_info() ? 0 : -1; }
CALL_ALONE(distance_name) { return uccl_distance_name(0) ? 0 : -1; }

CALL_ALONE(set_log)
{
    uccl_set_log(log_nothing, NULL);
    return 0;
}

CALL_ALONE(config_create)
{
    uccl_config *config;
    int result = uccl_config_create(&config);
    uccl_config_destroy(config);
    return result;
}

CALL_ALONE(config_set)
{
    uccl_config *config;
    uccl_config_create(&config);
    int result = uccl_config_set(config, "CC", "bbr") == UCCL_EINVAL ? 0 : -1; /* which is logged */
    uccl_config_destroy(config);
    return result;
}

CALL_ALONE(param_info)
{
    struct uccl_param_info info;
    return uccl_param_info(0, &info);
}

CALL_ALONE(param_value)
{
    char value[64], source[64];
    return uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source);
}

CALL_ALONE(counter_info)
{
    const char *name, *doc;
    return uccl_counter_info(0, &name, &doc);
}

CALL_ALONE(mem_status)
{
    char text[256];
    return uccl_mem_status(UCCL_MEM_HOST, text, sizeof text);
}

static void port_is_there(void *user, const struct uccl_verbs_port *port)
{
    (void)user;
    (void)port;
}

CALL_ALONE(verbs_ports)
{
    char status[256];
    uccl_verbs_ports(NULL, port_is_there, NULL, status, sizeof status);
    return 0;
}

static void interface_is_there(void *user, const struct uccl_interface *interface)
{
    (void)interface;
    ++*(int *)user;
}

CALL_ALONE(interfaces)
{
    int told = 0, count = uccl_interfaces(NULL, interface_is_there, &told);
    return count > 0 && count == told ? 0 : UCCL_ENODEV;
}

CALL_ALONE(handle_from_address)
{
    struct uccl_handle handle;
    return uccl_handle_from_address("127.0.0.1", 1, &handle);
}

CALL_ALONE(open)
{
    uccl_engine *engine = open_engine("no", NULL);
    return uccl_close(engine);
}

CALL(device_count) { return uccl_device_count(w->engine); }

CALL(device_get)
{
    struct uccl_device device;
    return uccl_device_get(w->engine, 0, &device);
}

CALL(gpu_count) { return uccl_gpu_count(w->engine); }

CALL(gpu_get)
{
    struct uccl_gpu gpu;
    return uccl_gpu_get(w->engine, 0, &gpu);
}

CALL(gpu_distance) { return uccl_gpu_distance(w->engine, 0, 0); }

CALL(listen)
{
    uccl_listener *listener;
    struct uccl_handle handle;
    int result = uccl_listen(w->engine, 0, 0, &handle, &listener);
    return result ? result : uccl_listener_close(listener);
}

CALL(listener_port) { return uccl_listener_port(w->listener) ? 1 : UCCL_EFORKED; /* it cannot say more */ }

CALL(connect)
{
    uccl_conn *conn;
    struct uccl_handle handle = w->handle;
    return uccl_connect(w->pair.engine[0], &handle, SHORT_MS, &conn);
}

CALL(accept)
{
    uccl_conn *conn;
    return uccl_accept(w->pair.listener, SHORT_MS, &conn);
}

CALL(connect_cancel)
{
    uccl_connect_cancel(&w->half_way);
    return 0;
}

CALL(conn_status) { return uccl_conn_status(w->pair.conn[0]); }

CALL(conn_peer)
{
    char text[96];
    return uccl_conn_peer(w->pair.conn[0], text, sizeof text);
}

CALL(conn_peer_id)
{
    uint8_t id[16];
    return uccl_conn_peer_id(w->pair.conn[0], id);
}

CALL(reg_mr)
{
    uccl_mr *mr;
    int result = uccl_reg_mr(w->engine, w->buffer, sizeof w->buffer, UCCL_MEM_AUTO, &mr);
    return result ? result : uccl_dereg_mr(mr);
}

CALL(reg_mr_dmabuf)
{
    uccl_mr *mr;
    int result = uccl_reg_mr_dmabuf(w->engine, w->buffer, sizeof w->buffer, UCCL_MEM_HOST, STDERR_FILENO, 0, &mr);
    return result ? result : uccl_dereg_mr(mr);
}

CALL(mr_get_info)
{
    struct uccl_mr_info info;
    return uccl_mr_get_info(w->mr, &info);
}

CALL(dereg_mr) { return uccl_dereg_mr(w->mr); }
CALL(send_async) { return uccl_send_async(w->pair.conn[1], "hello", 5, NULL, &w->other); }
CALL(recv_async) { return uccl_recv_async(w->pair.conn[1], w->buffer, 8, NULL, &w->other); }

CALL(recv_with_async)
{
    static _Alignas(128) uint8_t watched[8];
    return uccl_recv_with_async(w->pair.conn[1], watched, sizeof watched, NULL, UCCL_RECV_WATCHED, &w->other);
}

CALL(flush) { return uccl_flush(w->pair.conn[0], w->buffer, 8, NULL, &w->other); }

CALL(test)
{
    int done;
    return uccl_test(w->request, &done, NULL);
}

CALL(wait) { return uccl_wait(w->request, SHORT_MS, NULL); }
CALL(cancel) { return uccl_cancel(w->request); }
CALL(event_fd) { return uccl_event_fd(w->engine); }
CALL(event_arm) { return uccl_event_arm(w->engine); }

CALL(counter)
{
    uint64_t value;
    return uccl_counter(w->engine, 0, &value);
}

CALL(counter_by_name)
{
    uint64_t value;
    return uccl_counter_by_name(w->engine, "rounds", &value);
}

CALL(conn_close) { return uccl_conn_close(w->pair.conn[0]); }
CALL(conn_close_async) { return uccl_conn_close_async(w->pair.conn[1], &w->other); }
CALL(conn_abort) { return uccl_conn_abort(w->pair.conn[1]); }
CALL(listener_close) { return uccl_listener_close(w->listener); }
CALL(close) { return uccl_close(w->engine); }

/* In an order in which they can all be made. */
static const struct call {
    const char *name;
    int (*run)(struct world *w);
    bool bound; /* to an engine: fails in a child of fork() */
} calls[] = {
#define ALONE(name) {"uccl_" #name, call_##name, false}
#define BOUND(name) {"uccl_" #name, call_##name, true}
    ALONE(set_log), ALONE(strerror), ALONE(version), ALONE(build_info), ALONE(distance_name),
    ALONE(config_create), {"uccl_config_destroy", call_config_create, false}, ALONE(config_set), ALONE(param_info),
    ALONE(param_value), ALONE(counter_info), ALONE(mem_status), ALONE(verbs_ports), ALONE(interfaces),
    ALONE(handle_from_address),
    BOUND(device_count), BOUND(device_get), BOUND(gpu_count), BOUND(gpu_get), BOUND(gpu_distance), BOUND(listen),
    BOUND(listener_port), BOUND(connect), BOUND(accept), BOUND(conn_status), BOUND(conn_peer), BOUND(conn_peer_id),
    BOUND(reg_mr), BOUND(reg_mr_dmabuf),
    BOUND(mr_get_info), BOUND(dereg_mr), BOUND(flush), BOUND(test), BOUND(wait), BOUND(send_async),
    BOUND(recv_async), BOUND(recv_with_async), BOUND(cancel), BOUND(event_fd), BOUND(event_arm), BOUND(counter),
    BOUND(counter_by_name),
    BOUND(conn_close), BOUND(conn_close_async), BOUND(conn_abort), BOUND(listener_close), ALONE(connect_cancel), ALONE(close), ALONE(open),
#undef ALONE
#undef BOUND
};

enum { CALLS = sizeof calls / sizeof calls[0] };

static bool is_listed(const char *name)
{
    for (unsigned i = 0; i < CALLS; i++) {
        if (strcmp(calls[i].name, name) == 0)
            return true;
    }
    return false;
}

/* Reads the header without its comments. */
static size_t read_header(char *out, size_t size)
{
    FILE *file = fopen(UCCL_HEADER, "r");
    size_t length = 0;
    bool comment = false;
    int before = 0, c;
    cr_assert(file, "%s", UCCL_HEADER);
    while ((c = fgetc(file)) != EOF && length < size - 1) {
        if (!comment && before == '/' && c == '*') {
            comment = true;
            length--;
        } else if (!comment) {
            out[length++] = (char)c;
        } else if (before == '*' && c == '/') {
            comment = false;
            c = 0;
        }
        before = c;
    }
    fclose(file);
    out[length] = '\0';
    return length;
}

Test(process, table_has_every_call, .timeout = TIMEOUT_S)
{
    static char header[65536];
    unsigned found = 0;
    cr_assert_gt(read_header(header, sizeof header), 1000);
    for (char *at = header; (at = strstr(at, "uccl_")); at++) {
        char name[64];
        size_t length = 0;
        while (islower((unsigned char)at[length]) || isdigit((unsigned char)at[length]) || at[length] == '_')
            length++;
        if (at[length] != '(' || (at > header && (isalnum((unsigned char)at[-1]) || at[-1] == '_')))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        cr_assert(is_listed(name), "%s() is not in the table", name);
        found++;
    }
    cr_assert_eq(found, CALLS);
}

/* ---- signals --------------------------------------------------------------------------------- */

enum { THREADS_MAX = 16 };

static unsigned list_threads(int *out)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *task;
    unsigned count = 0;
    while ((task = readdir(dir)) && count < THREADS_MAX) {
        if (isdigit((unsigned char)task->d_name[0]))
            out[count++] = atoi(task->d_name);
    }
    closedir(dir);
    return count;
}

static bool blocks(int thread, int signal)
{
    char path[64], line[256];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
    FILE *file = fopen(path, "r");
    cr_assert(file);
    while (fgets(line, sizeof line, file))
        sscanf(line, "SigBlk: %llx", &blocked);
    fclose(file);
    return blocked >> (signal - 1) & 1;
}

BOTH(process, signals_are_the_applications)
{
    static const int taken[] = {SIGTERM, SIGHUP, SIGINT, SIGUSR1, SIGALRM, SIGCHLD, SIGPIPE, SIGPROF};
    int old[THREADS_MAX], all[THREADS_MAX];
    unsigned old_count = list_threads(old), engine_threads = 0;
    sigset_t set, before, after;
    sigemptyset(&set);
    before = after = set;
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    uccl_engine *engine = open_engine(lend, "NUM_ENGINES", "2", NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert(memcmp(&before, &after, sizeof before) == 0, "the caller's mask has changed");
    unsigned count = list_threads(all);
    for (unsigned i = 0; i < count; i++) {
        bool is_old = false;
        for (unsigned j = 0; j < old_count; j++)
            is_old = is_old || old[j] == all[i];
        if (is_old)
            continue;
        engine_threads++;
        /* the C library starts threads with all signals blocked */
        for (uint64_t end_ms = now_ms() + SOON_MS; blocks(all[i], SIGSEGV);)
            cr_assert(now_ms() < end_ms, "a fault must find the application's handler");
        for (size_t j = 0; j < sizeof taken / sizeof *taken; j++)
            cr_assert(blocks(all[i], taken[j]), "signal %d is not blocked", taken[j]);
    }
    cr_assert_eq(engine_threads, 2);
    IS(uccl_close(engine), 0);
}

/* ---- cancellation ---------------------------------------------------------------------------- */

static const char *volatile last_call;
static volatile bool survived;

static void *call_all_cancelled(void *argument)
{
    struct world *w = argument;
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state); /* from here on it would act in any place that lets it */
    for (unsigned i = 0; i < CALLS; i++) {
        last_call = calls[i].name;
        calls[i].run(w);
    }
    survived = true;
    pthread_testcancel();
    return NULL;
}

/* A thread that is to be cancelled is not inside a call that waits less than a fifth of a second, but is afterwards. */
BOTH(process, no_call_is_a_place_to_be_cancelled)
{
    struct world w;
    pthread_t thread;
    void *result;
    uccl_set_log(log_nothing, NULL);
    world_open(&w, lend);
    cr_assert_eq(pthread_create(&thread, NULL, call_all_cancelled, &w), 0);
    pthread_join(thread, &result);
    cr_assert(survived, "cancelled inside %s()", last_call);
    cr_assert(result == PTHREAD_CANCELED, "cancellation was left off");
    pair_close(&w.pair);
}

static void *wait_for(void *request)
{
    uccl_wait(request, -1, NULL);
    survived = true;
    return NULL;
}

static void *accept_for(void *listener)
{
    uccl_conn *conn;
    uccl_accept(listener, -1, &conn);
    survived = true;
    return NULL;
}

static void cancelled_in(void *(*call)(void *), void *argument, unsigned threads)
{
    pthread_t thread[2];
    for (unsigned i = 0; i < threads; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, call, argument), 0);
    sleep_us(50000);
    for (unsigned i = 0; i < threads; i++) {
        void *result;
        pthread_cancel(thread[i]);
        pthread_join(thread[i], &result);
        cr_assert(result == PTHREAD_CANCELED);
    }
    cr_assert(!survived);
}

/* Cancelled while it waits without limit, with or without the engine: the request is still there. */
BOTH(process, cancelled_waiter_gives_all_back)
{
    struct pair pair;
    uint8_t byte;
    pair_open(&pair, lend);
    uccl_request *recv = post_recv(pair.conn[1], &byte, 1);
    cancelled_in(wait_for, recv, 1);
    end_of(post_send(pair.conn[0], "x", 1), 0);
    cr_assert_eq(end_of(recv, 0), 1);
    cr_assert_eq(byte, 'x');
    exchange(pair.conn[0], pair.conn[1], 100000, 1);
    exchange(pair.conn[1], pair.conn[0], 100, 2);
    pair_close(&pair);
}

/* One waits for connections, and another one behind it. */
BOTH(process, cancelled_accept_leaves_the_listener)
{
    struct world w;
    uccl_conn *conn[2];
    world_open(&w, lend);
    uccl_connect_cancel(&w.half_way);
    cancelled_in(accept_for, w.listener, 2);
    connect_now(w.pair.engine[0], &w.handle, w.listener, conn);
    exchange(conn[0], conn[1], 100, 1);
    pair_close(&w.pair);
    IS(uccl_close(w.engine), 0);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* Ends the child; the parent says why. */
#define CHILD_IS(expression, expected)                                                            \
    do {                                                                                          \
        int is_ = (expression), expected_ = (expected);                                           \
        if (is_ != expected_) {                                                                   \
            fprintf(stderr, "child: %s is %d (%s), not %d\n", #expression, is_, uccl_strerror(is_), expected_); \
            _exit(1);                                                                             \
        }                                                                                         \
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
 * fork() while the other threads sleep. AddressSanitizer (gcc 12) gives nothing back in the child of what other threads had locked in
 * its allocator. Threads that are just starting lock it before a line of ours runs: then the child's own threads never start.
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

BOTH(process, child_fails_and_touches_nothing)
{
    fork_one_that_makes_every_call(lend);
}

/* Descriptors that the child has inherited are closed with the engine: a port is free once the parent leaves it. */
static unsigned open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

BOTH(process, child_closes_what_it_inherited)
{
    struct world w;
    unsigned before = open_files();
    world_open(&w, lend);
    pid_t child = fork_in_peace();
    if (child == 0) {
        alarm(CHILD_S);
        uccl_connect_cancel(&w.half_way);
        CHILD_IS(uccl_close(w.engine), 0);
        CHILD_IS(uccl_close(w.pair.engine[0]), 0);
        CHILD_IS(uccl_close(w.pair.engine[1]), 0);
        CHILD_IS((int)open_files(), (int)before);
        _exit(0);
    }
    child_ends_well(child);
    parent_goes_on(&w);
}

/* Of a child's child, the parent's and the grandparent's engines are none of its own. */
BOTH(process, child_and_its_child_have_engines_of_their_own)
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
BOTH(process, child_without_handlers_is_noticed)
{
    struct world w;
    world_open(&w, lend);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        int done;
        bool same = uccl_conn_status(w.pair.conn[0]) == UCCL_EFORKED &&
                    uccl_send_async(w.pair.conn[0], "x", 1, NULL, &w.other) == UCCL_EFORKED &&
                    uccl_test(w.request, &done, NULL) == UCCL_EFORKED &&
                    uccl_wait(w.request, -1, NULL) == UCCL_EFORKED;
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

BOTH(process, child_is_noticed_on_old_kernels)
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

Test(process, child_of_a_process_that_logs, .timeout = TIMEOUT_S)
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

/* The same of a thread that is warned of an unknown name, in whatever moment. */
static _Atomic bool warns;

static void *be_warned(void *argument)
{
    char value[64], source[64];
    (void)argument;
    for (; warns;)
        uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source);
    return NULL;
}

Test(process, child_of_a_process_that_is_warned, .timeout = TIMEOUT_S)
{
#ifdef __SANITIZE_ADDRESS__
    enum { FORKS = 0, NAMES = 60 }; /* whose allocator is locked, too */
#else
    enum { FORKS = 200, NAMES = 60 };
#endif
    pthread_t threads[2];
    char name[32], value[64], source[64];
    for (unsigned i = 0; i < NAMES; i++) { /* each is looked up in the list of those told */
        snprintf(name, sizeof name, "UCCL_NO_SUCH_NAME_%u", i);
        setenv(name, "1", 1);
    }
    uccl_set_log(log_nothing, NULL);
    uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source);
    warns = true;
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, be_warned, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_S);
            CHILD_IS(uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source), 0);
            _exit(0);
        }
        child_ends_well(child);
    }
    warns = false;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}
