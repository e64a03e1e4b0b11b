/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole engines under many application threads. Each thread has data QPs: a data QP is one end of a
 * connection and what it alone posts there, in order, so both ends agree on what message k is (its
 * size and contents follow from data QP and k). Threads post some, then see them end by a mix of
 * waiting, testing, polling the event descriptor, cancelling and sleeping.
 *
 * A second kind of thread shares one connection with others: the order of its posts is not known to
 * it, so a message says in its first bytes which it is, and every one must arrive exactly once.
 *
 * Variants: lent engines or engine threads of their own, spinning or not, two engines or one that is
 * connected to itself.
 */
#include "engines.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    DATA_QPS = 2,       /* connections with a thread at each end */
    SHARED_SENDERS = 2, /* each with a receiver, all on one more connection */
    THREADS = 2 * DATA_QPS + 2 * SHARED_SENDERS,
    BATCH_MAX = 24, /* posted before a thread looks for ends */
    LARGE = 200000,
    SHARED_BYTES = 600,
    SHARED_MESSAGES_MAX = 1 << 16,
    TIMEOUT_MS = 20000,
};

struct run {
    uccl_engine *engine[2]; /* may be one and the same */
    uint64_t seed;
    unsigned rounds;
    _Atomic uint8_t seen[SHARED_MESSAGES_MAX];
    _Atomic unsigned shared_sent, shared_received, cancelled;
    unsigned shared_messages;
};

struct worker {
    struct run *run;
    uccl_conn *conn;
    uccl_engine *engine;
    unsigned qp, side;
    uint64_t random;
    uint64_t number[2]; /* next message sent and received */
    pthread_t thread;
};

struct operation {
    uccl_request *request;
    uint8_t *buffer;
    uint64_t number;
    size_t size;
    int is_receive;
    int cancelled;
};

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * 1000003 + b * 10007 + c;
    return random_next(&state);
}

/* Message `number` that `side` of a data QP sends. */
static size_t size_of(const struct worker *worker, unsigned side, uint64_t number)
{
    uint64_t r = mix(worker->run->seed, worker->qp * 2 + side, number);
    switch (r % 8) {
    case 0:
        return 0;
    case 1:
        return 8000 + r / 8 % 400;
    case 2:
        return r / 8 % LARGE;
    default:
        return r / 8 % 500;
    }
}

static uint8_t byte_of(const struct worker *worker, unsigned side, uint64_t number, size_t offset)
{
    return (uint8_t)((worker->qp * 2 + side) * 89 + number * 131 + offset * 7 + (offset >> 8) * 3);
}

static int post(struct worker *worker, struct operation *operation)
{
    return operation->is_receive
               ? uccl_recv_async(worker->conn, operation->buffer, operation->size, NULL, &operation->request)
               : uccl_send_async(worker->conn, operation->buffer, operation->size, NULL, &operation->request);
}

static void begin(struct worker *worker, struct operation *operation, int is_receive)
{
    int result;
    unsigned sender = is_receive ? !worker->side : worker->side;
    *operation = (struct operation){.is_receive = is_receive, .number = worker->number[is_receive]++};
    operation->size = size_of(worker, sender, operation->number);
    operation->buffer = malloc(operation->size + 1);
    CHECK(operation->buffer, "out of memory");
    memset(operation->buffer, 0, operation->size + 1);
    for (size_t i = 0; !is_receive && i < operation->size; i++)
        operation->buffer[i] = byte_of(worker, sender, operation->number, i);
    while ((result = post(worker, operation)) == UCCL_EAGAIN)
        sleep_us(50);
    OK(result);
}

/* 1: it has ended. */
static int test(struct operation *operation, int *status, size_t *bytes)
{
    int done = 0;
    *status = uccl_test(operation->request, &done, bytes);
    return done;
}

static void by_testing(struct worker *worker, struct operation *operation, int *status, size_t *bytes)
{
    uint64_t end_ns = now_ns() + TIMEOUT_MS * UINT64_C(1000000);
    unsigned pause = random_next(&worker->random) % 3;
    while (!test(operation, status, bytes)) {
        CHECK(now_ns() < end_ns, "data QP %u, message %u: tested in vain", worker->qp, (unsigned)operation->number);
        if (pause == 1)
            sched_yield();
        else if (pause == 2)
            sleep_us(300);
    }
}

static void by_polling(struct worker *worker, struct operation *operation, int *status, size_t *bytes)
{
    uint64_t end_ns = now_ns() + TIMEOUT_MS * UINT64_C(1000000);
    struct pollfd fd = {.fd = uccl_event_fd(worker->engine), .events = POLLIN};
    for (;;) {
        OK(uccl_event_arm(worker->engine));
        if (test(operation, status, bytes))
            return;
        /* another thread may arm, and so clear, the descriptor that we poll: not for long, then */
        poll(&fd, 1, 20);
        CHECK(now_ns() < end_ns, "data QP %u, message %u: polled in vain", worker->qp, (unsigned)operation->number);
    }
}

static void by_waiting(struct worker *worker, struct operation *operation, int *status, size_t *bytes)
{
    if (random_next(&worker->random) % 2) {
        while ((*status = uccl_wait(operation->request, (int)(random_next(&worker->random) % 3), bytes)) ==
               UCCL_ETIMEDOUT)
            if (random_next(&worker->random) % 4 == 0)
                break;
        if (*status != UCCL_ETIMEDOUT)
            return;
    }
    *status = uccl_wait(operation->request, TIMEOUT_MS, bytes);
    CHECK(*status != UCCL_ETIMEDOUT, "data QP %u, message %u: waited in vain", worker->qp, (unsigned)operation->number);
}

static void finish(struct worker *worker, struct operation *operation)
{
    size_t bytes = 0;
    int status;
    switch (random_next(&worker->random) % 4) {
    case 0:
        by_testing(worker, operation, &status, &bytes);
        break;
    case 1:
        by_polling(worker, operation, &status, &bytes);
        break;
    default:
        by_waiting(worker, operation, &status, &bytes);
    }
    /* the other side may have cancelled the one that it matches */
    CHECK(status == 0 || status == UCCL_ECANCELED, "data QP %u: %s", worker->qp, uccl_strerror(status));
    if (status == UCCL_ECANCELED)
        atomic_fetch_add(&worker->run->cancelled, 1);
    if (status == 0) {
        CHECK(bytes == operation->size, "data QP %u, message %u: %zu bytes, not %zu", worker->qp,
              (unsigned)operation->number, bytes, operation->size);
        for (size_t i = 0; i < bytes && operation->is_receive; i++)
            CHECK(operation->buffer[i] == byte_of(worker, !worker->side, operation->number, i),
                  "data QP %u, message %u is wrong at byte %zu of %zu", worker->qp, (unsigned)operation->number, i,
                  bytes);
    }
    CHECK(operation->is_receive == 0 || operation->buffer[operation->size] == 0, "written beyond the buffer");
    free(operation->buffer);
}

static void *data_qp_thread(void *argument)
{
    struct worker *worker = argument;
    struct operation operations[2 * BATCH_MAX];
    for (unsigned round = 0; round < worker->run->rounds; round++) {
        /* both ends must post as many sends as the other does receives */
        unsigned batch = 1 + (unsigned)(mix(worker->run->seed, worker->qp, round) % BATCH_MAX);
        int sends_first = random_next(&worker->random) % 2;
        for (unsigned i = 0; i < batch; i++) {
            begin(worker, &operations[2 * i], !sends_first);
            begin(worker, &operations[2 * i + 1], sends_first);
            if (random_next(&worker->random) % 64 == 0)
                sleep_us(random_next(&worker->random) % 3000);
        }
        for (unsigned i = 0; i < 2 * batch; i++) {
            struct operation *operation = &operations[(i * 7 + round) % (2 * batch)];
            if (random_next(&worker->random) % 20 || operation->cancelled || !operation->buffer)
                continue;
            operation->cancelled = 1;
            int result = uccl_cancel(operation->request);
            CHECK(result == 0 || result == UCCL_EAGAIN, "cancel: %s", uccl_strerror(result));
        }
        for (unsigned i = 0; i < 2 * batch; i++)
            finish(worker, &operations[i]);
        if (random_next(&worker->random) % 8 == 0)
            sleep_us(random_next(&worker->random) % 5000);
    }
    return NULL;
}

/* ---- the shared connection ------------------------------------------------------------------- */

static void *shared_sender(void *argument)
{
    struct worker *worker = argument;
    struct run *run = worker->run;
    enum { DEPTH = 8 };
    struct operation operations[DEPTH] = {{0}};
    unsigned slot = 0, index;
    static const size_t header = sizeof(unsigned);
    while ((index = atomic_fetch_add(&run->shared_sent, 1)) < run->shared_messages) {
        struct operation *operation = &operations[slot++ % DEPTH];
        if (operation->request)
            OK(uccl_wait(operation->request, TIMEOUT_MS, NULL));
        operation->size = header + mix(run->seed, 999, index) % (SHARED_BYTES - header);
        operation->buffer = realloc(operation->buffer, SHARED_BYTES);
        memcpy(operation->buffer, &index, header);
        memset(operation->buffer + header, (int)(index * 31), operation->size - header);
        int result;
        while ((result = post(worker, operation)) == UCCL_EAGAIN)
            sleep_us(50);
        OK(result);
        if (random_next(&worker->random) % 256 == 0)
            sleep_us(random_next(&worker->random) % 4000);
    }
    for (unsigned i = 0; i < DEPTH; i++) {
        if (operations[i].request)
            OK(uccl_wait(operations[i].request, TIMEOUT_MS, NULL));
        free(operations[i].buffer);
    }
    return NULL;
}

static void *shared_receiver(void *argument)
{
    struct worker *worker = argument;
    struct run *run = worker->run;
    uint8_t buffer[SHARED_BYTES];
    struct operation operation = {.buffer = buffer, .size = sizeof buffer, .is_receive = 1};
    while (atomic_fetch_add(&run->shared_received, 1) < run->shared_messages) {
        size_t bytes = 0;
        int result, status;
        unsigned index;
        while ((result = post(worker, &operation)) == UCCL_EAGAIN)
            sleep_us(50);
        OK(result);
        if (random_next(&worker->random) % 2)
            by_testing(worker, &operation, &status, &bytes);
        else
            by_waiting(worker, &operation, &status, &bytes);
        OK(status);
        memcpy(&index, buffer, sizeof index);
        CHECK(index < run->shared_messages, "no such message: %u", index);
        CHECK(atomic_fetch_add(&run->seen[index], 1) == 0, "message %u came twice", index);
        CHECK(bytes == sizeof index + mix(run->seed, 999, index) % (SHARED_BYTES - sizeof index),
              "message %u has %zu bytes", index, bytes);
        for (size_t i = sizeof index; i < bytes; i++)
            CHECK(buffer[i] == (uint8_t)(index * 31), "message %u is wrong at %zu", index, i);
    }
    return NULL;
}

/* ---- a variant ------------------------------------------------------------------------------- */

static void start(struct worker *worker, struct run *run, uccl_conn *conn, unsigned qp, unsigned side,
                  void *(*main)(void *))
{
    *worker = (struct worker){.run = run, .conn = conn, .engine = run->engine[side], .qp = qp, .side = side};
    worker->random = mix(run->seed, qp, side + 77);
    CHECK(pthread_create(&worker->thread, NULL, main, worker) == 0, "pthread_create");
}

static void variant(uint64_t seed, const char *lend, const char *spin_us, int self)
{
    static struct run run;
    static struct worker workers[THREADS];
    uccl_conn *conn[DATA_QPS + 1][2];
    struct uccl_handle handle;
    uccl_listener *listener;
    unsigned count = 0;
    uint64_t start_ns = now_ns();

    memset(&run, 0, sizeof run);
    run.seed = seed;
    run.rounds = SANITIZED ? 20 : 60;
    run.shared_messages = SANITIZED ? 1500 : 10000;
    run.engine[0] = engine_open(lend, spin_us);
    run.engine[1] = self ? run.engine[0] : engine_open(lend, spin_us);
    OK(uccl_listen(run.engine[1], 0, 0, &handle, &listener));
    for (unsigned i = 0; i <= DATA_QPS; i++)
        engines_connect(run.engine[0], &handle, listener, conn[i]);
    for (unsigned qp = 0; qp < DATA_QPS; qp++)
        for (unsigned side = 0; side < 2; side++)
            start(&workers[count++], &run, conn[qp][side], qp, side, data_qp_thread);
    for (unsigned i = 0; i < SHARED_SENDERS; i++) {
        start(&workers[count++], &run, conn[DATA_QPS][0], DATA_QPS, 0, shared_sender);
        start(&workers[count++], &run, conn[DATA_QPS][1], DATA_QPS, 1, shared_receiver);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < run.shared_messages; i++)
        CHECK(run.seen[i] == 1, "message %u is missing", i);
    for (unsigned i = 0; i < DATA_QPS; i += 2) {
        OK(uccl_conn_close(conn[i][0]));
        OK(uccl_conn_close(conn[i][1]));
    }
    OK(uccl_close(run.engine[0]));
    if (!self)
        OK(uccl_close(run.engine[1]));
    end_case("UCCL_LEND=%s UCCL_SPIN_US=%s %s: %u requests cancelled, %.1f s", lend, spin_us,
             self ? "one engine" : "two engines", run.cancelled, (double)(now_ns() - start_ns) / 1e9);
}

enum { CASES = 8 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    uint64_t seed = seed_of(argc, argv);
    for (int self = 0; self < 2; self++) {
        variant(seed, "yes", "0", self);
        variant(seed + 1, "yes", "50", self);
        variant(seed + 2, "no", "0", self);
        variant(seed + 3, "no", "50", self);
    }
    return 0;
}
