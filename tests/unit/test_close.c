/* SPDX-License-Identifier: Apache-2.0 */
/* Closes that are requests, and aborts (api/close.c), over whole engines. */
#include "../await_callers.h"
#include "api_pair.h"

#include "../../api/objects.h"
#include "core/conn.h"
#include "core/flow.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 300000 };

static void open_with(struct pair *pair, const char *lend, const char *engines, const char *requests)
{
    for (int i = 0; i < 2; i++)
        pair->engine[i] = open_engine(lend, "LINGER_MS", "20000", "NUM_ENGINES", engines, "STRIPE_MIN_KB", "64",
                                      "MAX_REQUESTS", requests, NULL);
    IS(uccl_listen(pair->engine[1], 0, 0, &pair->handle, &pair->listener), 0);
    connect_now(pair->engine[0], &pair->handle, pair->listener, pair->conn);
}

static uccl_request *close_async(uccl_conn *conn)
{
    uccl_request *request = NULL;
    IS(uccl_conn_close_async(conn, &request), 0);
    cr_assert_not_null(request);
    return request;
}

static void test_until_done(uccl_request *request)
{
    int done = 0;
    size_t bytes = 7;
    uint64_t end_ms = now_ms() + SOON_MS;
    while (!done) {
        IS(uccl_test(request, &done, &bytes), 0);
        cr_assert_lt(now_ms(), end_ms);
    }
    cr_assert_eq(bytes, 0);
}

Test(close, arguments)
{
    uccl_request *request = NULL;
    IS(uccl_conn_close_async(NULL, &request), UCCL_EINVAL);
    IS(uccl_conn_abort(NULL), UCCL_EINVAL);
    cr_assert_null(request);
}

/* A close stays what has ended the connection, though its peer may die beside it. */
Test(close, a_close_stays_what_has_ended_it)
{
    struct pair pair;
    open_with(&pair, "no", "1", "64");
    for (int i = 0; i < 2; i++) {
        struct core_event event = {.kind = CORE_EVENT_CONN_FAILED, .owner = &pair.conn[i]->ends[0]};
        uccl_request *close = i ? close_async(pair.conn[i]) : NULL;
        static const int32_t told[] = {UCCL_EIO, UCCL_EPROTO};
        for (int k = 0; k < 2; k++) {
            event.status = told[k];
            connection_on_event(NULL, &event);
            IS(uccl_conn_status(pair.conn[i]), i ? UCCL_ECLOSED : told[k]);
        }
        test_until_done(close ? close : close_async(pair.conn[i]));
    }
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    pair_close(&pair);
}

BOTH(close, a_close_is_a_request)
{
    struct pair pair;
    char byte[4];
    uccl_request *request = NULL, *recv[2];
    open_with(&pair, lend, "1", "64");
    IS(uccl_conn_close_async(pair.conn[0], NULL), UCCL_EINVAL);
    exchange(pair.conn[0], pair.conn[1], 100, 1);
    for (int i = 0; i < 2; i++)
        recv[i] = post_recv(pair.conn[i], &byte[i], 1);
    uccl_request *close = close_async(pair.conn[0]);
    IS(uccl_conn_status(pair.conn[0]), UCCL_ECLOSED);
    IS(uccl_send_async(pair.conn[0], &byte[2], 1, NULL, &request), UCCL_ECLOSED);
    IS(uccl_conn_close_async(pair.conn[0], &request), UCCL_EINVAL);
    IS(uccl_conn_close(pair.conn[0]), UCCL_EINVAL);
    IS(uccl_cancel(close), 0); /* without effect */
    cr_assert_eq(end_of(close, 0), 0);
    end_of(recv[0], UCCL_ECANCELED);
    end_of(recv[1], UCCL_ECLOSED);
    test_until_done(close_async(pair.conn[1]));
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    exchange(pair.conn[1], pair.conn[0], 100, 2);
    pair_close(&pair);
}

/* What was accepted for sending arrives, over all engine threads, before the request ends. */
BOTH(close, a_close_delivers)
{
    struct pair pair;
    static uint8_t out[LARGE], in[LARGE];
    open_with(&pair, lend, "3", "64");
    fill(out, LARGE, 1);
    uccl_request *send = post_send(pair.conn[0], out, LARGE), *close = close_async(pair.conn[0]);
    IS(uccl_wait(close, 20, NULL), UCCL_ETIMEDOUT);
    uccl_request *recv = post_recv(pair.conn[1], in, LARGE);
    end_of(close, 0);
    cr_assert_eq(end_of(send, 0), LARGE);
    cr_assert_eq(end_of(recv, 0), LARGE);
    check(in, LARGE, 1);
    IS(uccl_conn_close(pair.conn[1]), 0);
    pair_close(&pair);
}

/* Many at once, each end in another way; then ids, memory and flows serve again. */
BOTH(close, many_at_once)
{
    enum { CONNS = 12 };
    struct pair pair;
    uccl_conn *conns[CONNS][2];
    uccl_request *closes[CONNS];
    open_with(&pair, lend, "2", "64");
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < CONNS; i++) {
            connect_now(pair.engine[0], &pair.handle, pair.listener, conns[i]);
            exchange(conns[i][0], conns[i][1], 1000, i);
        }
        for (unsigned i = 0; i < CONNS; i++)
            closes[i] = close_async(conns[i][i % 2]);
        for (unsigned i = 0; i < CONNS; i++)
            IS(i % 3 ? uccl_conn_close(conns[i][!(i % 2)]) : uccl_conn_abort(conns[i][!(i % 2)]), 0);
        for (unsigned i = CONNS; i-- > 0;)
            end_of(closes[i], 0);
    }
    exchange(pair.conn[0], pair.conn[1], LARGE, 1);
    pair_close(&pair);
}

/* No request is left for it: nothing has happened. The blocking close needs none. */
BOTH(close, out_of_requests)
{
    enum { REQUESTS = 16 };
    struct pair pair;
    char byte;
    uccl_request *recv[REQUESTS], *close = NULL;
    open_with(&pair, lend, "1", "16");
    uccl_conn *other[2];
    connect_now(pair.engine[0], &pair.handle, pair.listener, other);
    for (unsigned i = 0; i < REQUESTS; i++)
        recv[i] = post_recv(pair.conn[0], &byte, 1);
    IS(uccl_conn_close_async(pair.conn[0], &close), UCCL_EAGAIN);
    cr_assert_null(close);
    IS(uccl_conn_status(pair.conn[0]), 0);
    IS(uccl_conn_close(other[0]), 0);
    end_of(post_send(pair.conn[1], "x", 1), 0);
    cr_assert(end_of(recv[0], 0) == 1 && byte == 'x');
    close = close_async(pair.conn[0]);
    for (unsigned i = 1; i < REQUESTS; i++)
        end_of(recv[i], UCCL_ECANCELED);
    end_of(close, 0);
    pair_close(&pair);
}

/* Sends that nobody takes would linger for 20 s. */
BOTH(close, an_abort_does_not_linger)
{
    struct pair pair;
    static uint8_t buffer[4][LARGE];
    open_with(&pair, lend, "3", "64");
    exchange(pair.conn[0], pair.conn[1], LARGE, 1);
    uccl_request *recv = post_recv(pair.conn[0], buffer[0], LARGE);
    uccl_request *send = post_send(pair.conn[0], buffer[1], LARGE), *eager = post_send(pair.conn[0], buffer[2], 100);
    uccl_request *peer_send = post_send(pair.conn[1], buffer[3], 0);
    end_of(recv, 0);
    end_of(peer_send, 0);
    recv = post_recv(pair.conn[0], buffer[0], LARGE);
    IS(uccl_conn_abort(pair.conn[0]), 0);
    end_of(recv, UCCL_ECANCELED);
    end_of(send, UCCL_ECANCELED);
    end_of(eager, UCCL_ECANCELED);
    uint64_t end_ms = now_ms() + SOON_MS;
    while (uccl_conn_status(pair.conn[1]) == 0 && now_ms() < end_ms)
        sleep_us(1000);
    IS(uccl_conn_status(pair.conn[1]), UCCL_ECLOSED);
    IS(uccl_conn_abort(pair.conn[1]), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    exchange(pair.conn[0], pair.conn[1], LARGE, 2);
    pair_close(&pair);
}

struct waiter {
    uccl_request *request;
    int status;
};

static void *wait_in_thread(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = uccl_wait(waiter->request, SOON_MS, NULL);
    return NULL;
}

BOTH(close, an_abort_ends_what_others_wait_for)
{
    struct pair pair;
    char byte;
    pthread_t thread;
    open_with(&pair, lend, "2", "64");
    for (unsigned i = 0; i < 10; i++) {
        uccl_conn *conn[2];
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
        struct waiter waiter = {.request = post_recv(conn[0], &byte, 1)};
        uccl_request *other = post_recv(conn[1], &byte, 1);
        pthread_create(&thread, NULL, wait_in_thread, &waiter);
        if (i % 2)
            sleep_us(1000);
        IS(uccl_conn_abort(conn[0]), 0);
        pthread_join(thread, NULL);
        IS(waiter.status, UCCL_ECANCELED);
        end_of(other, UCCL_ECLOSED);
        IS(uccl_conn_abort(conn[1]), 0);
    }
    pair_close(&pair);
}

/* The wait for the close and the abort are different threads' then. */
BOTH(close, an_abort_cuts_a_close_short)
{
    struct pair pair;
    static uint8_t buffer[LARGE];
    pthread_t thread;
    open_with(&pair, lend, "2", "64");
    uccl_request *send = post_send(pair.conn[0], buffer, LARGE); /* nobody takes it */
    struct waiter waiter = {.request = close_async(pair.conn[0])};
    IS(uccl_wait(waiter.request, 20, NULL), UCCL_ETIMEDOUT);
    pthread_create(&thread, NULL, wait_in_thread, &waiter);
    sleep_us(5000);
    IS(uccl_conn_abort(pair.conn[0]), 0);
    pthread_join(thread, NULL);
    IS(waiter.status, 0);
    end_of(send, UCCL_ECANCELED);
    pair_close(&pair);
}

/* The engine is closed with closes and aborts under way. */
BOTH(close, the_engine_ends_meanwhile)
{
    struct pair pair;
    static uint8_t buffer[LARGE];
    for (unsigned i = 0; i < 4; i++) {
        open_with(&pair, lend, i % 2 ? "1" : "3", "64");
        uccl_conn *other[2];
        connect_now(pair.engine[0], &pair.handle, pair.listener, other);
        post_recv(pair.conn[0], buffer, LARGE);
        post_recv(other[0], buffer, LARGE);
        close_async(pair.conn[0]);
        IS(uccl_conn_abort(other[0]), 0);
        if (i / 2)
            IS(uccl_conn_abort(pair.conn[0]), 0);
        IS(uccl_close(pair.engine[0]), 0);
        IS(uccl_close(pair.engine[1]), 0);
    }
}

/* Threads wait for closes while the engine is closed: one of the two frees each connection. */
BOTH(close, the_engine_ends_while_others_wait_for_closes)
{
    enum { CONNS = 12 };
    struct pair pair;
    static uint8_t buffer[LARGE];
    pthread_t threads[CONNS];
    struct waiter waiters[CONNS];
    pair_open(&pair, lend);
    for (unsigned i = 0; i < CONNS; i++) {
        uccl_conn *conn[2];
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
        post_send(conn[0], buffer, LARGE); /* nobody takes it: the close lingers */
        waiters[i].request = close_async(conn[0]);
        pthread_create(&threads[i], NULL, wait_in_thread, &waiters[i]);
    }
    await_callers(pair.engine[0], CONNS);
    IS(uccl_close(pair.engine[0]), 0);
    for (unsigned i = 0; i < CONNS; i++) {
        pthread_join(threads[i], NULL);
        IS(waiters[i].status, 0);
    }
    IS(uccl_close(pair.engine[1]), 0);
}

/* What one close has found out of a peer's silence, the next one need not wait for, for as long as it is news. */
Test(close, silence_is_told_on, .timeout = TIMEOUT_S)
{
    enum { LINGER_MS = 20000 };
    struct pair pair;
    uccl_conn *conn[3][2];
    const uint64_t linger_ns = LINGER_MS * UINT64_C(1000000), now_ns = clock_now_ns();
    const uint64_t silent_ns[3] = {0, now_ns - linger_ns - 1, now_ns};
    const uint64_t expected_ns[3] = {0, 0, now_ns - linger_ns / 2};
    open_with(&pair, "no", "1", "64");
    for (unsigned i = 0; i < 3; i++)
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn[i]);
    for (unsigned i = 0; i < 3; i++) {
        conn[i][0]->peer->silent_ns = silent_ns[i];
        uccl_request *close = close_async(conn[i][0]);
        cr_assert_eq(conn[i][0]->stripes.silent_since_ns, expected_ns[i], "%u", i);
        IS(uccl_conn_abort(conn[i][1]), 0);
        end_of(close, 0);
        conn[i][0] = NULL;
    }
    pair_close(&pair);
}

static _Atomic bool stalls, stalled;

static void stall(struct engine_thread *thread, void *argument)
{
    (void)thread, (void)argument;
    for (stalled = true; stalls;)
        sleep_us(1000);
}

/* All connections of an engine that is closed wait for a peer that does not answer at the same time. */
Test(close, all_linger_at_once, .timeout = TIMEOUT_S)
{
    enum { CONNS = 12, LINGER_MS = 1000, MOST_MS = CONNS * LINGER_MS / 2 };
    struct pair pair;
    uccl_conn *conn[CONNS][2];
    char byte = 0;
    struct thread_call call = {.run = stall};
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "LINGER_MS", "1000", "NUM_ENGINES", "1", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    for (unsigned i = 0; i < CONNS; i++)
        connect_now(pair.engine[0], &pair.handle, pair.listener, conn[i]);
    stalls = true;
    cr_assert(thread_post(conn[0][1]->thread, COMMAND_CALL, &call));
    while (!stalled)
        sleep_us(1000);
    for (unsigned i = 0; i < CONNS; i++)
        post_send(conn[i][0], &byte, 1);
    uint64_t since_ms = now_ms();
    IS(uccl_close(pair.engine[0]), 0);
    uint64_t took_ms = now_ms() - since_ms;
    stalls = false;
    cr_assert_lt(took_ms, MOST_MS, "%d connections take %d ms", CONNS, (int)took_ms);
    IS(uccl_close(pair.engine[1]), 0);
}

/* uccl_close() waits for threads in uccl_wait(): whoever has returned from it, in any way, is none. */
BOTH(close, a_wait_that_is_over_holds_nobody_up)
{
    struct pair pair;
    uint8_t to[8], from[8] = {1};
    uccl_request *receive, *send;
    pair_open(&pair, lend);
    IS(uccl_recv_async(pair.conn[1], to, sizeof to, NULL, &receive), 0);
    IS(uccl_wait(receive, 1, NULL), UCCL_ETIMEDOUT);
    cr_assert_eq(atomic_load(&pair.conn[1]->thread->callers), 0);
    IS(uccl_send_async(pair.conn[0], from, sizeof from, NULL, &send), 0);
    IS(uccl_wait(receive, SOON_MS, NULL), 0);
    IS(uccl_wait(send, SOON_MS, NULL), 0);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(atomic_load(&pair.conn[i]->thread->callers), 0);
    pair_close(&pair);
}

/* What an abort costs does not depend on how many connections are open: it looks at none of them. */
BOTH(close, an_abort_looks_at_no_open_connection)
{
    struct pair pair;
    uccl_conn *conn[2];
    long page = sysconf(_SC_PAGESIZE);
    pair_open(&pair, lend);
    connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
    struct uccl_conn *last = pair.conn[0];
    void *shut = mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shut, MAP_FAILED);
    cr_assert(pair.engine[0]->conns == conn[0] && conn[0]->next == last && !last->next);
    last->next = shut; /* who goes through the list crashes */
    IS(uccl_conn_abort(conn[0]), 0);
    for (uint64_t end_ms = now_ms() + SOON_MS; pair.engine[0]->conns != last && now_ms() < end_ms; sleep_us(1000))
        free_abandoned(pair.engine[0]);
    last->next = NULL;
    cr_assert_eq(pair.engine[0]->conns, last, "the abort is over");
    IS(uccl_conn_abort(conn[1]), 0);
    munmap(shut, (size_t)page);
    pair_close(&pair);
}

/* Nor does it cost more while others of the same peer are open: acks look at those that close, and at no other. */
BOTH(close, acks_look_at_no_open_connection)
{
    struct pair pair;
    uccl_conn *conn[2];
    pair_open(&pair, lend);
    connect_now(pair.engine[0], &pair.handle, pair.listener, conn);
    exchange(conn[0], conn[1], 1000, 1);
    struct conn *newest = pair.conn[0]->stripes.at[0].conns[CLASS_MESSAGES]->flow->all_head, *next = newest->next_all;
    void *shut = mmap(NULL, sizeof *newest, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shut, MAP_FAILED);
    newest->next_all = shut; /* who goes through the list crashes */
    IS(uccl_conn_close(pair.conn[0]), 0);
    newest->next_all = next;
    munmap(shut, sizeof *newest);
    pair_close(&pair);
}

/* ---- what an engine remembers of the closed --------------------------------------------------------- */

static bool remembers(const uccl_engine *engine, const void *object)
{
    bool found = false;
    for (unsigned i = 0; i < CLOSED_KEPT; i++)
        found |= engine->closed.at[i] == object;
    return found;
}

/* Exports are remembered beside connections, listeners and registrations, not in their place. */
Test(close, exports_push_nothing_out, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_mr *mr;
    uccl_export *exported = NULL;
    uint8_t ref[UCCL_REF_BYTES], byte;
    pair_open(&pair, "no");
    IS(uccl_conn_close(pair.conn[1]), 0);
    IS(uccl_reg_mr(pair.engine[1], &byte, 1, UCCL_MEM_HOST, &mr), 0);
    for (unsigned i = 0; i < CLOSED_KEPT; i++) {
        IS(uccl_export_mr(mr, &byte, 1, UCCL_ACCESS_READ, ref, &exported), 0);
        IS(uccl_revoke(exported, SOON_MS), 0);
    }
    cr_assert(remembers(pair.engine[1], pair.conn[1]));
    IS(uccl_conn_status(pair.conn[1]), UCCL_ECLOSED);
    IS(uccl_dereg_mr(mr), 0);
    for (unsigned i = 0; i < CLOSED_KEPT; i++) { /* these push the registration out, but not its export */
        IS(uccl_reg_mr(pair.engine[1], &byte, 1, UCCL_MEM_HOST, &mr), 0);
        IS(uccl_dereg_mr(mr), 0);
    }
    IS(uccl_revoke(exported, 0), UCCL_EINVAL);
    pair_close(&pair);
}

/* Nor do clients whose handshakes do not end well: nobody has the handles of their connections. */
Test(close, failed_handshakes_push_nothing_out, .timeout = TIMEOUT_S)
{
    struct pair pair;
    unsigned handed_out = 1;
    uccl_set_log(log_nothing, NULL);
    pair_open(&pair, "no");
    uccl_engine *server = pair.engine[1];
    IS(uccl_conn_close(pair.conn[1]), 0);
    for (unsigned round = 0; round < 300; round++) {
        struct uccl_handle handle = pair.handle;
        uccl_conn *conn = NULL, *accepted = NULL;
        for (unsigned step = 0; step < round % 10 && !conn && !accepted; step++) {
            uccl_connect(pair.engine[0], &handle, 0, &conn);
            sleep_us(100);
            uccl_accept(pair.listener, 0, &accepted);
        }
        uccl_connect_cancel(&handle);
        if (conn)
            IS(uccl_conn_abort(conn), 0);
        if (!accepted)
            uccl_accept(pair.listener, conn ? 1000 : 0, &accepted);
        handed_out += accepted != NULL;
        if (accepted)
            IS(uccl_conn_abort(accepted), 0);
    }
    cr_assert_gt(server->conn_cursor, handed_out);
    cr_assert_leq(server->closed.next, handed_out, "%u of %u", server->closed.next, handed_out);
    pair_close(&pair);
}
