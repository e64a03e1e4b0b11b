/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library as a guest in a process: signals that are not its own, and threads that are cancelled. Every public call
 * is in one table, which is compared with the header, so that a new one cannot be forgotten.
 */
#include "every_call.h"

#include "../../api/objects.h"
#include "thread/post.h"

#include <ctype.h>
#include <pthread.h>
#include <signal.h>

/* ---- every public call ----------------------------------------------------------------------- */

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

/* ---- names ----------------------------------------------------------------------------------- */

Test(process, threads_have_names, .timeout = TIMEOUT_S)
{
    uccl_engine *engine = open_engine("no", "NUM_ENGINES", "2", NULL);
    for (uint64_t end_ms = now_ms() + SOON_MS; !threads_called("uccl-engine-0") || !threads_called("uccl-engine-1");)
        cr_assert(now_ms() < end_ms, "top -H does not tell whose threads these are");
    cr_assert(!threads_called("uccl-engine-2"));
    IS(uccl_close(engine), 0);
}

/* ---- cancellation ---------------------------------------------------------------------------- */

static const char *volatile last_call;
static volatile bool survived;

/*
 * From here on a cancellation would act in any place that lets it. A function of its own, as is whatever has variables
 * on the stack: AddressSanitizer (gcc 12) takes those of a cancelled thread's last frames for living ones.
 */
static void cancel_oneself(void)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
}

static void *call_all_cancelled(void *argument)
{
    struct world *w = argument;
    cancel_oneself();
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

/* The call that collects the request of a close ends the flows of a dead peer, for which it may drive the engine. */
struct collected {
    uccl_request *request;
    bool waits; /* by uccl_wait() */
};

static void collect(const struct collected *collected)
{
    int done = 0;
    int result =
        collected->waits ? uccl_wait(collected->request, SOON_MS, NULL) : uccl_test(collected->request, &done, NULL);
    survived = result == 0 && (collected->waits || done);
}

static void *collect_cancelled(void *argument)
{
    cancel_oneself();
    collect(argument);
    pthread_testcancel();
    return NULL;
}

static void close_cancelled(const char *lend, bool waits)
{
    struct pair pair;
    struct collected collected = {.waits = waits};
    pthread_t thread;
    pair_open(&pair, lend);
    uccl_conn *conn = pair.conn[0];
    pthread_mutex_lock(&pair.engine[0]->lock);
    peer_give_up(conn->peer);
    pthread_mutex_unlock(&pair.engine[0]->lock);
    IS(uccl_conn_close_async(conn, &collected.request), 0);
    for (uint64_t end_ms = now_ms() + SOON_MS; !conn->stripes.over; sleep_us(1000))
        cr_assert_lt(now_ms(), end_ms);
    survived = false;
    cr_assert_eq(pthread_create(&thread, NULL, collect_cancelled, &collected), 0);
    pthread_join(thread, NULL);
    cr_assert(survived, "cancelled inside the call");
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn); /* the engine and its lock are free */
    pair_close(&pair);
}

BOTH(process, to_collect_a_close_is_no_place_to_be_cancelled)
{
    close_cancelled(lend, false);
    close_cancelled(lend, true);
}

/* A post with staged memory that finds the ring full lets its connection go, which tells whoever waits. */
static void *tell_cancelled(void *thread)
{
    cancel_oneself();
    thread_tell_waiters(thread);
    survived = true;
    pthread_testcancel();
    return NULL;
}

BOTH(process, to_tell_waiters_is_no_place_to_be_cancelled)
{
    struct pair pair;
    pthread_t thread;
    pair_open(&pair, lend);
    struct engine_thread *own = pair.engine[0]->threads;
    atomic_exchange(&pair.engine[0]->event_armed, 1);
    cr_assert_eq(pthread_create(&thread, NULL, tell_cancelled, own), 0);
    pthread_join(thread, NULL);
    cr_assert(survived);
    pair_close(&pair);
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
