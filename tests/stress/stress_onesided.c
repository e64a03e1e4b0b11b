/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations of many threads between two engines, in both directions over one connection, while others revoke
 * memory under them, and make and close connections of their own. Each worker has a part of the peer's memory to itself
 * and knows its contents; what was revoked belongs to the revoker, who writes to it (run under ThreadSanitizer, that is
 * a race with any engine thread which still copies).
 */
#include "engines.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { WORKERS = 3, PART = 150000, WORDS = 16, CHURN = 300000, PIECES = 30, WAIT_MS = 20000 };
enum { RIGHTS = UCCL_ACCESS_READ | UCCL_ACCESS_WRITE };

struct part {
    _Alignas(8) uint8_t bytes[PART];
};

/* What each engine exports, and what is known of it. */
struct side {
    uccl_engine *engine;
    uccl_conn *conn; /* to the other one */
    struct part parts[WORKERS];
    _Alignas(8) uint64_t words[WORDS]; /* 0: the sum; others: of a worker each */
    uccl_mr *mr;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_remote *remote;             /* of the other one */
    _Atomic uint32_t taken[WORKERS]; /* notifications of the other side's workers */
    _Atomic uint64_t added;
    /* revoked now and then */
    pthread_mutex_t lock; /* of churn_ref */
    uint8_t churn[CHURN], churn_ref[UCCL_REF_BYTES];
    uccl_mr *churn_mr;
    uccl_export *churn_export;
    unsigned revoked;
};

static struct side sides[2];
static _Atomic bool stop;

struct note {
    uint32_t worker, number;
    uint64_t key; /* of the contents of the worker's part; 0: no matter */
    uint32_t length;
};

struct worker {
    pthread_t thread;
    struct side *here, *there;
    unsigned index, rounds;
    uint64_t random;
    uint32_t notes;
    uint64_t word;
    uint8_t local[PART], shadow[PART];
    unsigned refused, ended; /* by EACCES, by a close */
};

static uint32_t below(struct worker *worker, uint32_t bound)
{
    return (uint32_t)(random_next(&worker->random) % bound);
}

static uint8_t content(uint64_t key, size_t offset)
{
    return (uint8_t)((key + offset / 8) * UINT64_C(0x9e3779b97f4a7c15) >> (8 + offset % 8 * 7));
}

/* Posts, however full rings and pools are. */
#define POST(call)                                                                                                     \
    do {                                                                                                               \
        int post_;                                                                                                     \
        while ((post_ = (call)) == UCCL_EAGAIN)                                                                        \
            sleep_us(50);                                                                                              \
        CHECK(post_ == 0, "%s: %s", #call, uccl_strerror(post_));                                                      \
    } while (0)

/* ---- the peer's memory, of which each worker has a part -------------------------------------------- */

static size_t part_at(const struct worker *worker)
{
    return worker->index * sizeof(struct part);
}

static size_t word_at(unsigned index)
{
    return offsetof(struct side, words) - offsetof(struct side, parts) + index * sizeof(uint64_t);
}

/* All of the first `length` bytes, in pieces. */
static size_t cut(struct worker *worker, uint8_t *local, size_t length, struct uccl_piece pieces[PIECES])
{
    size_t count = 0, at = 0, most = 1 + below(worker, (uint32_t)length + 1);
    while (at < length) {
        size_t bytes = 1 + below(worker, (uint32_t)most);
        if (bytes > length - at || count == PIECES - 1)
            bytes = length - at;
        pieces[count++] = (struct uccl_piece){
            .local = local + at, .length = bytes, .remote = worker->here->remote, .offset = part_at(worker) + at};
        at += bytes;
    }
    return count;
}

static void read_back(struct worker *worker)
{
    struct uccl_piece pieces[PIECES];
    uccl_request *request;
    memset(worker->local, 0xdb, PART);
    size_t count = cut(worker, worker->local, PART, pieces);
    POST(uccl_read_async(worker->here->conn, pieces, count, NULL, &request));
    OK(uccl_wait(request, WAIT_MS, NULL));
    CHECK(memcmp(worker->local, worker->shadow, PART) == 0, "a read brought other bytes");
}

static void await_taken(const struct worker *worker)
{
    for (uint64_t end_ns = now_ns() + UINT64_C(20000000000);
         atomic_load(&worker->there->taken[worker->index]) < worker->notes;) {
        CHECK(now_ns() < end_ns, "notification %u was not taken", worker->notes);
        sleep_us(20);
    }
}

static void write_some(struct worker *worker)
{
    struct uccl_piece pieces[PIECES];
    uccl_request *request;
    uint64_t key = random_next(&worker->random) | 1;
    size_t length = below(worker, 3) ? below(worker, 9000) : below(worker, PART);
    struct note note = {worker->index, worker->notes, key, (uint32_t)length};
    struct uccl_tail tail = {.remote = worker->here->remote};
    for (size_t i = 0; i < length; i++)
        worker->shadow[i] = worker->local[i] = content(key, i);
    size_t count = cut(worker, worker->local, length, pieces);
    switch (below(worker, 4)) {
    case 0:
        tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .bytes = &note, .length = sizeof note};
        worker->notes++;
        break;
    case 1:
        tail.kind = UCCL_TAIL_SET;
        tail.offset = word_at(1 + worker->index);
        tail.value = ++worker->word;
        break;
    case 2:
        tail.kind = UCCL_TAIL_ADD;
        tail.offset = word_at(0);
        tail.value = 1 + below(worker, 1000);
        atomic_fetch_add(&worker->there->added, tail.value);
        break;
    default:
        break;
    }
    POST(uccl_write_async(worker->here->conn, pieces, count, tail.kind ? &tail : NULL, &request));
    OK(uccl_wait(request, WAIT_MS, NULL));
    await_taken(worker); /* who takes it looks at the part */
}

static void notify(struct worker *worker)
{
    uccl_request *request;
    struct note note = {worker->index, worker->notes++, 0, 0};
    POST(uccl_notify_async(worker->here->conn, &note, sizeof note, &request));
    OK(uccl_wait(request, WAIT_MS, NULL));
}

static void order(struct worker *worker)
{
    uccl_request *request;
    POST(uccl_fence(worker->here->conn));
    POST(uccl_quiet_async(worker->here->conn, &request));
    OK(uccl_wait(request, WAIT_MS, NULL));
}

/* Memory that is revoked at some time, or was. */
static void use_churn(struct worker *worker)
{
    enum { MANY = 4, EACH = CHURN / WORKERS / MANY };
    uccl_request *requests[MANY];
    uccl_remote *remote;
    uint8_t ref[UCCL_REF_BYTES];
    pthread_mutex_lock(&worker->there->lock);
    memcpy(ref, worker->there->churn_ref, sizeof ref);
    pthread_mutex_unlock(&worker->there->lock);
    OK(uccl_import(worker->here->conn, ref, &remote));
    for (unsigned i = 0; i < MANY; i++) {
        size_t length = i % 2 ? below(worker, 3000) : EACH; /* each has its own memory, at both ends */
        struct uccl_piece piece = {.local = worker->local + i * EACH,
                                   .length = length,
                                   .remote = remote,
                                   .offset = (worker->index * MANY + i) * EACH};
        bool reads = below(worker, 3) == 0;
        POST((reads ? uccl_read_async : uccl_write_async)(worker->here->conn, &piece, 1, NULL, &requests[i]));
    }
    if (below(worker, 3) == 0)
        uccl_cancel(requests[MANY - 1]);
    OK(uccl_remote_free(remote));
    for (unsigned i = 0; i < MANY; i++) {
        int status = uccl_wait(requests[i], WAIT_MS, NULL);
        CHECK(status == 0 || status == UCCL_EACCESS || (status == UCCL_ECANCELED && i == MANY - 1), "%s",
              uccl_strerror(status));
        worker->refused += status == UCCL_EACCESS;
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    for (unsigned i = 0; i < worker->rounds; i++) {
        switch (below(worker, 8)) {
        case 0:
            notify(worker);
            break;
        case 1:
            order(worker);
            break;
        case 2:
        case 3:
            use_churn(worker);
            break;
        case 4:
            read_back(worker);
            break;
        default:
            write_some(worker);
        }
    }
    read_back(worker);
    return NULL;
}

/* ---- others ------------------------------------------------------------------------------------ */

/* Takes the notifications of an engine, in the order of each worker. */
static void *take_notes(void *argument)
{
    struct side *side = argument;
    bool last = false; /* what came before the end is taken */
    for (;;) {
        struct note note;
        size_t length;
        uccl_conn *from;
        int error = uccl_notify_next(side->engine, &note, sizeof note, &length, &from);
        if (error == UCCL_EAGAIN && last)
            return NULL;
        last = atomic_load(&stop);
        if (error == UCCL_EAGAIN) {
            sleep_us(20);
            continue;
        }
        OK(error);
        if (from != side->conn) /* of a connection that is about to be closed */
            continue;
        CHECK(length == sizeof note && note.worker < WORKERS, "%zu bytes of worker %u", length, note.worker);
        CHECK(atomic_load(&side->taken[note.worker]) == note.number, "notification %u of worker %u", note.number,
              note.worker);
        const uint8_t *bytes = side->parts[note.worker].bytes;
        for (size_t i = 0; note.key && i < note.length; i++)
            CHECK(bytes[i] == content(note.key, i), "byte %zu of %u is not there", i, note.length);
        atomic_fetch_add(&side->taken[note.worker], 1);
    }
}

static void export_churn(struct side *side)
{
    uint8_t ref[UCCL_REF_BYTES];
    OK(uccl_export_mr(side->churn_mr, side->churn, CHURN, RIGHTS, ref, &side->churn_export));
    pthread_mutex_lock(&side->lock);
    memcpy(side->churn_ref, ref, sizeof ref);
    pthread_mutex_unlock(&side->lock);
}

static void *revoke_often(void *argument)
{
    struct side *side = argument;
    uint64_t random = (uintptr_t)side;
    while (!atomic_load(&stop)) {
        int error;
        sleep_us(random_next(&random) % 3000);
        while ((error = uccl_revoke(side->churn_export, (int)(random_next(&random) % 3))) == UCCL_ETIMEDOUT)
            ;
        OK(error);
        memset(side->churn, (int)++side->revoked, CHURN); /* it is this thread's now */
        sleep_us(random_next(&random) % 300);
        for (size_t i = 0; i < CHURN; i++)
            CHECK(side->churn[i] == (uint8_t)side->revoked, "byte %zu has changed after the revocation", i);
        export_churn(side);
    }
    return NULL;
}

/* Connections that end under operations, from either side. */
static void *come_and_go(void *argument)
{
    enum { MANY = 6, EACH = PART / MANY };
    struct worker *worker = argument;
    struct uccl_handle handle;
    uccl_listener *listener;
    OK(uccl_listen(sides[1].engine, 0, 0, &handle, &listener));
    for (unsigned round = 0; round < worker->rounds / 4; round++) {
        uccl_conn *conn[2];
        uccl_request *requests[MANY];
        uccl_remote *remote;
        engines_connect(sides[0].engine, &handle, listener, conn);
        OK(uccl_import(conn[0], sides[1].ref, &remote));
        for (unsigned i = 0; i < MANY; i++) {
            bool reads = i == 2 || i == 4;
            struct uccl_piece piece = {.local = worker->local + i * EACH,
                                       .length = i < 3 ? EACH : 1000,
                                       .remote = remote,
                                       .offset = part_at(worker) + i * EACH};
            struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = "", .length = 0};
            POST((reads ? uccl_read_async : uccl_write_async)(conn[0], &piece, 1, i == 1 ? &tail : NULL, &requests[i]));
        }
        sleep_us(below(worker, 500));
        unsigned first = below(worker, 2);
        OK(below(worker, 2) ? uccl_conn_close(conn[first]) : uccl_conn_abort(conn[first]));
        OK(uccl_conn_close(conn[!first]));
        for (unsigned i = 0; i < MANY; i++) {
            int status = uccl_wait(requests[i], WAIT_MS, NULL);
            CHECK(status == 0 || status == UCCL_ECANCELED || status == UCCL_ECLOSED, "%s", uccl_strerror(status));
            worker->ended += status != 0;
        }
        OK(uccl_remote_free(remote));
    }
    OK(uccl_listener_close(listener));
    return NULL;
}

/* ---- a run ------------------------------------------------------------------------------------- */

/* parts, words and what is between them */
static size_t exported_bytes(void)
{
    return word_at(WORDS);
}

static void open_sides(const char *lend, const char *engines)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_export *exported;
    memset(sides, 0, sizeof sides);
    atomic_store(&stop, false);
    for (unsigned i = 0; i < 2; i++) /* mmsg: ThreadSanitizer sees these calls, and so what comes before what */
        sides[i].engine = engine_open_with("LEND", lend, "NUM_ENGINES", engines, "UDP_IO", "mmsg", "LINGER_MS", "2000",
                                           "STRIPE_MIN_KB", "64", "RING_ENTRIES", "32", "MAX_REQUESTS", "128", NULL);
    OK(uccl_listen(sides[1].engine, 0, 0, &handle, &listener));
    engines_connect(sides[0].engine, &handle, listener, conn);
    for (unsigned i = 0; i < 2; i++) {
        struct side *side = &sides[i];
        side->conn = conn[i];
        pthread_mutex_init(&side->lock, NULL);
        OK(uccl_reg_mr(side->engine, side->parts, exported_bytes(), UCCL_MEM_HOST, &side->mr));
        OK(uccl_reg_mr(side->engine, side->churn, CHURN, UCCL_MEM_HOST, &side->churn_mr));
        OK(uccl_export_mr(side->mr, side->parts, exported_bytes(), RIGHTS, side->ref, &exported));
        export_churn(side);
    }
    for (unsigned i = 0; i < 2; i++)
        OK(uccl_import(conn[i], sides[!i].ref, &sides[i].remote));
}

static void close_sides(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct side *side = &sides[i];
        int error;
        OK(uccl_remote_free(side->remote));
        OK(uccl_revoke(side->churn_export, WAIT_MS));
        OK(uccl_dereg_mr(side->churn_mr));
        while ((error = uccl_dereg_mr(side->mr)) == UCCL_EAGAIN)
            sleep_us(100);
        OK(error);
        CHECK(side->words[0] == atomic_load(&side->added), "%lu was added, not %lu", side->words[0],
              atomic_load(&side->added));
    }
    for (unsigned i = 0; i < 2; i++)
        OK(uccl_close(sides[i].engine));
}

static void variant(uint64_t seed, const char *lend, const char *engines)
{
    static struct worker workers[2][WORKERS];
    pthread_t takers[2], revokers[2];
    unsigned refused = 0;
    uint64_t start_ns = now_ns();
    open_sides(lend, engines);
    for (unsigned s = 0; s < 2; s++) {
        CHECK(pthread_create(&takers[s], NULL, take_notes, &sides[s]) == 0, "pthread_create");
        CHECK(pthread_create(&revokers[s], NULL, revoke_often, &sides[s]) == 0, "pthread_create");
        for (unsigned i = 0; i < WORKERS; i++) {
            struct worker *worker = &workers[s][i];
            bool goes = s == 0 && i == WORKERS - 1;
            memset(worker, 0, sizeof *worker);
            worker->here = &sides[s];
            worker->there = &sides[!s];
            worker->index = i;
            worker->random = seed + 10 * s + i;
            worker->rounds = SANITIZED ? 60 : 300;
            CHECK(pthread_create(&worker->thread, NULL, goes ? come_and_go : worker_main, worker) == 0,
                  "pthread_create");
        }
    }
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned i = 0; i < WORKERS; i++) {
            pthread_join(workers[s][i].thread, NULL);
            refused += workers[s][i].refused;
        }
    }
    atomic_store(&stop, true);
    for (unsigned s = 0; s < 2; s++) {
        pthread_join(takers[s], NULL);
        pthread_join(revokers[s], NULL);
    }
    unsigned revoked = sides[0].revoked + sides[1].revoked;
    close_sides();
    end_case("UCCL_LEND=%s UCCL_NUM_ENGINES=%s: %u revocations, %u operations refused, %u ended by a close, %.1f s",
             lend, engines, revoked, refused, workers[0][WORKERS - 1].ended, (double)(now_ns() - start_ns) / 1e9);
}

enum { CASES = 3 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    uint64_t seed = seed_of(argc, argv);
    variant(seed, "yes", "1");
    variant(seed + 100, "yes", "3");
    variant(seed + 200, "no", "3");
    return 0;
}
