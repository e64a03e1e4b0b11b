/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows between two steps, each with nothing else around that would cover for what is lost in it: no timer, no other
 * traffic, no second waiter. Meant for a build with random delays at marked points (engine/base/race_point.h).
 *
 *   calls    threads post to an engine that has no reason of its own ever to wake up, and wait: posting against going
 *            to sleep, lending and giving back against the registration of waiters
 *
 *   arming   the only event of an engine comes while its descriptor is being armed
 *
 *   cancels  a receive is cancelled while another thread collects it, and posts the next in its memory: that one stays
 *
 *   numbers  threads that enter the library at once, in a process that has just been forked, see the same number
 */
#include "engines.h"

#include "../../api/objects.h"
#include "base/process.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum {
    CALLERS = 3,
    CALLS = SANITIZED ? 4000 : 20000,
    ARMINGS = SANITIZED ? 400 : 1500,
    CANCELS = SANITIZED ? 1500 : 5000,
    PROCESSES = SANITIZED ? 60 : 100,
    ENTERING = 4,
    LOST_MS = 10000, /* what takes so long has been forgotten */
};

static void start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    CHECK(pthread_create(thread, NULL, run, argument) == 0, "pthread_create");
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct caller {
    pthread_t thread;
    uccl_engine *engine;
    uint64_t random;
    _Atomic unsigned calls;
};

static void count_call(struct engine_thread *thread, void *argument)
{
    unsigned *count = argument;
    (void)thread;
    (*count)++; /* TSan says whether the caller sees it in order */
}

static void *call_it(void *argument)
{
    struct caller *caller = argument;
    unsigned count = 0;
    for (unsigned i = 0; i < CALLS; i++) {
        thread_run(&caller->engine->threads[0], count_call, &count);
        CHECK(count == i + 1, "a call ran %u times", count - i);
        atomic_store_explicit(&caller->calls, count, memory_order_relaxed);
        if (random_next(&caller->random) % 4 == 0)
            sleep_us(random_next(&caller->random) % 200);
    }
    return NULL;
}

static void calls(uint64_t seed, const char *lend, unsigned count)
{
    struct caller callers[CALLERS];
    uccl_engine *engine = engine_open(lend, "0");
    uint64_t start_ns = now_ns(), moved_ns = start_ns;
    for (unsigned i = 0; i < count; i++) {
        callers[i] = (struct caller){.engine = engine, .random = seed + i};
        start(&callers[i].thread, call_it, &callers[i]);
    }
    for (unsigned all = 0, before = 0; all < count * CALLS; before = all) {
        sleep_us(2000);
        all = 0;
        for (unsigned i = 0; i < count; i++)
            all += atomic_load_explicit(&callers[i].calls, memory_order_relaxed);
        moved_ns = all != before ? now_ns() : moved_ns;
        CHECK(now_ns() < moved_ns + LOST_MS * UINT64_C(1000000), "a call waits for ever, after %u", all);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(callers[i].thread, NULL);
    OK(uccl_close(engine));
    end_case("calls, UCCL_LEND=%s: %u of %u threads, %.1f s", lend, count * CALLS, count,
             (double)(now_ns() - start_ns) / 1e9);
}

/* ---- a connection of two engines ------------------------------------------------------------- */

struct pair {
    uccl_engine *engine[2];
    uccl_listener *listener;
    uccl_conn *conn[2];
};

static struct pair pair_open(const char *lend)
{
    struct pair pair = {.engine = {engine_open(lend, "0"), engine_open(lend, "0")}};
    struct uccl_handle handle;
    OK(uccl_listen(pair.engine[1], 0, 0, &handle, &pair.listener));
    engines_connect(pair.engine[0], &handle, pair.listener, pair.conn);
    return pair;
}

static void pair_close(struct pair *pair)
{
    for (unsigned i = 0; i < 2; i++)
        OK(uccl_close(pair->engine[i]));
}

static uccl_request *receive(uccl_conn *conn, char *byte)
{
    uccl_request *request;
    int error;
    while ((error = uccl_recv_async(conn, byte, 1, NULL, &request)) == UCCL_EAGAIN)
        sleep_us(20);
    OK(error);
    return request;
}

/* ---- arming ---------------------------------------------------------------------------------- */

struct sender {
    pthread_t thread;
    uccl_conn *conn;
    uint64_t random;
    unsigned count;
    _Atomic unsigned wanted; /* messages that the receiver waits for */
    _Atomic int over;
};

/* One message after the other, as soon as it is wanted or a little later. */
static void *send_what_is_wanted(void *argument)
{
    struct sender *sender = argument;
    uccl_request *request;
    for (unsigned i = 0; i < sender->count; i++) {
        while (atomic_load(&sender->wanted) <= i && !atomic_load(&sender->over))
            sched_yield();
        sleep_us(random_next(&sender->random) % 120);
        OK(uccl_send_async(sender->conn, "x", 1, NULL, &request));
        int status = uccl_wait(request, 2 * LOST_MS, NULL);
        CHECK(status == UCCL_OK || status == UCCL_ECANCELED, "%s", uccl_strerror(status));
    }
    return NULL;
}

/*
 * Arms until the first of two messages is here, so that its event often comes in the midst of arming. It may be cleared
 * then, but the second message must bring one.
 */
static void await_events(struct pair *pair, uccl_request *first, uccl_request *second, unsigned number)
{
    struct pollfd fd = {.fd = uccl_event_fd(pair->engine[1]), .events = POLLIN};
    int done = 0;
    while (!done) {
        OK(uccl_event_arm(pair->engine[1]));
        OK(uccl_test(first, &done, NULL));
    }
    for (;;) {
        OK(uccl_test(second, &done, NULL));
        if (done)
            return;
        CHECK(poll(&fd, 1, LOST_MS) == 1, "message %u: its event was lost", number);
        OK(uccl_event_arm(pair->engine[1]));
    }
}

static void arming(uint64_t seed, const char *lend)
{
    struct pair pair = pair_open(lend);
    struct sender sender = {.conn = pair.conn[0], .random = seed, .count = 2 * ARMINGS};
    uint64_t start_ns = now_ns();
    start(&sender.thread, send_what_is_wanted, &sender);
    for (unsigned i = 0; i < ARMINGS; i++) {
        char bytes[2];
        uccl_request *first = receive(pair.conn[1], &bytes[0]);
        uccl_request *second = receive(pair.conn[1], &bytes[1]);
        atomic_store(&sender.wanted, 2 * i + 2);
        await_events(&pair, first, second, 2 * i + 1);
    }
    pthread_join(sender.thread, NULL);
    pair_close(&pair);
    end_case("arming, UCCL_LEND=%s: %u events, %.1f s", lend, ARMINGS, (double)(now_ns() - start_ns) / 1e9);
}

/* ---- cancels --------------------------------------------------------------------------------- */

static struct {
    _Atomic(uccl_request *) offered; /* to be cancelled */
    _Atomic int over;
    _Atomic unsigned turns; /* odd: the canceller has a handle, or may take one */
    unsigned late;
} cancels_of;

static void *cancel_what_is_offered(void *argument)
{
    (void)argument;
    while (!atomic_load(&cancels_of.over)) {
        atomic_fetch_add(&cancels_of.turns, 1);
        uccl_request *request = atomic_exchange(&cancels_of.offered, NULL);
        int error = request ? uccl_cancel(request) : UCCL_OK;
        atomic_fetch_add(&cancels_of.turns, 1);
        if (!request)
            sched_yield();
        CHECK(error == UCCL_OK || error == UCCL_EAGAIN || error == UCCL_EINVAL, "%s", uccl_strerror(error));
        cancels_of.late += error == UCCL_EINVAL;
    }
    return NULL;
}

/*
 * A handle tells 64 lives of its memory apart, so the canceller must not fall back by so many: waits for its turn to
 * pass if it has lasted for too many rounds.
 */
static void let_canceller_follow(unsigned round, unsigned *turn, unsigned *since)
{
    unsigned now = atomic_load(&cancels_of.turns);
    if (now % 2 == 0 || now != *turn) {
        *turn = now;
        *since = round;
    }
    while (round - *since > 8 && atomic_load(&cancels_of.turns) == *turn)
        sched_yield();
}

/* Receives in turn: one that another thread may cancel, and the next, in the same memory, that nobody does. */
static void cancels(uint64_t seed, const char *lend)
{
    struct pair pair = pair_open(lend);
    struct sender sender = {.conn = pair.conn[0], .random = seed, .count = 2 * CANCELS};
    pthread_t canceller;
    unsigned cancelled = 0, turn = 0, since = 0;
    uint64_t start_ns = now_ns();
    cancels_of.late = 0;
    atomic_store(&cancels_of.offered, NULL); /* of an engine that is closed: the last canceller may have been late */
    atomic_store(&cancels_of.over, 0);
    start(&canceller, cancel_what_is_offered, NULL);
    start(&sender.thread, send_what_is_wanted, &sender);
    for (unsigned i = 0; i < CANCELS; i++) {
        char byte[2];
        let_canceller_follow(i, &turn, &since);
        uccl_request *request = receive(pair.conn[1], &byte[0]);
        atomic_store(&sender.wanted, 2 * i + 1);
        sleep_us(random_next(&seed) % 150);
        atomic_store(&cancels_of.offered, request);
        int status = uccl_wait(request, LOST_MS, NULL);
        CHECK(status == UCCL_OK || status == UCCL_ECANCELED, "%s", uccl_strerror(status));
        cancelled += status != UCCL_OK;
        request = receive(pair.conn[1], &byte[1]);
        sleep_us(random_next(&seed) % 50);
        atomic_store(&sender.wanted, 2 * i + 2);
        status = uccl_wait(request, LOST_MS, NULL);
        CHECK(status == UCCL_OK, "receive %u, which nobody cancelled: %s", i, uccl_strerror(status));
    }
    atomic_store(&cancels_of.over, 1);
    pthread_join(canceller, NULL);
    pthread_join(sender.thread, NULL);
    pair_close(&pair);
    end_case("cancels, UCCL_LEND=%s: %u of %u in time, %u too late, %.1f s", lend, cancelled, CANCELS, cancels_of.late,
             (double)(now_ns() - start_ns) / 1e9);
}

/* ---- numbers of processes -------------------------------------------------------------------- */

static pthread_barrier_t together;

static void *enter(void *number)
{
    pthread_barrier_wait(&together);
    *(uint32_t *)number = process_enter();
    return NULL;
}

static void enter_at_once(uint32_t parent)
{
    pthread_t threads[ENTERING];
    uint32_t numbers[ENTERING];
    CHECK(process_forked(parent), "a child does not see that it is one");
    CHECK(pthread_barrier_init(&together, NULL, ENTERING) == 0, "pthread_barrier_init");
    for (unsigned i = 0; i < ENTERING; i++)
        start(&threads[i], enter, &numbers[i]);
    for (unsigned i = 0; i < ENTERING; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < ENTERING; i++)
        CHECK(numbers[i] == *process_number && numbers[i] != parent && numbers[i],
              "number %u in process %u, child of %u", numbers[i], *process_number, parent);
}

static void numbers(uint64_t seed)
{
    delay_one_in(seed, 1); /* each window comes once in a process */
    uint32_t mine = process_enter();
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            enter_at_once(mine);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0, "wait status 0x%x", (unsigned)status);
    }
    CHECK(process_enter() == mine, "the number changed");
    end_case("numbers: %u processes", PROCESSES);
}

enum { CASES = 8 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    uint64_t seed = seed_of(argc, argv);
    numbers(seed); /* first: no other thread is there */
    delay_one_in(seed, 4);
    calls(seed, "yes", 1);
    calls(seed, "yes", CALLERS);
    calls(seed, "no", CALLERS);
    delay_one_in(seed, 2); /* two windows must meet in what follows */
    arming(seed, "yes");
    arming(seed, "no");
    cancels(seed, "yes");
    cancels(seed, "no");
    return 0;
}
