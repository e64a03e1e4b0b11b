/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ending connections. A close is a command to the home engine thread, which passes it on to the other threads
 * (stripe.h): any number of connections close in the time of one. The last thread that uses a connection marks it over.
 * Then exactly one caller frees it: uccl_conn_close() or uccl_close(), which wait for the mark; whoever collects the
 * request of uccl_conn_close_async(), before uccl_close(); or, where nobody waits (`abandoned`), the next call that
 * makes or ends a connection.
 */
#include "objects.h"

#include "base/race_point.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

static const uint64_t COPIES_NS = NS_PER_S; /* how long a close waits for copies to and from devices */

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_over(struct uccl_conn *conn)
{
    return atomic_load(&conn->stripes.over); /* pairs with the store in stripe_let_go() */
}

/* Frees kept connections whose requests no device keeps any more. Under the lock. */
static void free_kept(struct uccl_engine *engine)
{
    for (struct uccl_conn **link = &engine->kept, *conn; (conn = *link);) {
        if (!is_over(conn)) {
            link = &conn->next;
            continue;
        }
        *link = conn->next;
        onesided_free(conn->stripes.onesided);
        conn->stripes.onesided = NULL;
        if (conn->handed_out)
            keep_closed(&engine->closed, conn);
        else
            free(conn); /* nobody can have its handle: strangers push nothing out */
    }
}

/* All its ends are closed. Under the lock. */
static void conn_free(struct uccl_conn *conn)
{
    struct uccl_engine *engine = conn->engine;
    *(conn->prev ? &conn->prev->next : &engine->conns) = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    engine->abandoned -= conn->abandoned;
    queue_remove(&engine->abandoned_conns, &conn->of_abandoned);
    conn_unmap_ends(conn);
    put_conn_id(engine, conn->id);
    peer_put(&engine->peers, conn->peer);
    conn->peer = NULL;         /* it may be gone: see the calls that look */
    conn->next = engine->kept; /* requests on a hung device still count here */
    engine->kept = conn;
    free_kept(engine);
}

static void free_with_lock(struct uccl_conn *conn)
{
    struct uccl_engine *engine = conn->engine;
    pthread_mutex_lock(&engine->lock);
    conn_free(conn);
    pthread_mutex_unlock(&engine->lock);
}

void free_abandoned(struct uccl_engine *engine)
{
    enum { LOOKS_MAX = 512 }; /* a call that ends one of very many connections frees no more */
    pthread_mutex_lock(&engine->lock);
    unsigned looks = engine->abandoned < LOOKS_MAX ? engine->abandoned : LOOKS_MAX;
    for (; looks; looks--) {
        struct uccl_conn *conn = QUEUE_HOLDER(engine->abandoned_conns.head, struct uccl_conn, of_abandoned);
        queue_remove(&engine->abandoned_conns, &conn->of_abandoned);
        if (is_over(conn))
            conn_free(conn);
        else
            queue_append(&engine->abandoned_conns, &conn->of_abandoned); /* it has its turn again */
    }
    free_kept(engine);
    pthread_mutex_unlock(&engine->lock);
}

void conn_closed(struct uccl_request *request)
{
    struct uccl_engine *engine = request->thread->context; /* that of the connection, which may be gone */
    CANCEL_LATER; /* a dead peer's flows end with its last connection: this thread may drive a lent engine */
    pthread_mutex_lock(&engine->lock);
    if (!engine->ending)
        conn_free((struct uccl_conn *)((char *)request->stripes - offsetof(struct uccl_conn, stripes)));
    pthread_mutex_unlock(&engine->lock);
}

/* ---- asking for the end ----------------------------------------------------------------------- */

/* Since when the peer leaves a flow of ours unanswered, as a recent close found; 0: no close found that. */
static uint64_t silent_since(const struct uccl_conn *conn)
{
    uint64_t silent_ns = atomic_load_explicit(&conn->peer->silent_ns, memory_order_relaxed);
    uint64_t linger_ns = conn->engine->params.linger_ms * NS_PER_MS;
    if (silent_ns == 0 || clock_now_ns() > silent_ns + linger_ns)
        return 0;
    return silent_ns - linger_ns / 2; /* the peer may have answered on other flows a little later */
}

/* From now on nobody learns of its notifications: `from` would name what the application must not use any more. */
static void drop_notes(struct uccl_conn *conn)
{
    struct onesided *one = conn->stripes.onesided;
    if (one)
        notes_drop(&conn->engine->notes, one, &one->waiting);
}

static bool push_close(struct uccl_conn *conn, uint64_t linger_ms)
{
    atomic_store_explicit(&conn->stripes.silent_since_ns, silent_since(conn), memory_order_relaxed);
    return thread_push(conn->thread, &conn->stripes, (uint64_t)COMMAND_CLOSE | linger_ms << 32);
}

/* Waits at most for room in a full ring. Once posted, the connection may be gone at any time. */
static void post_close(struct uccl_conn *conn, uint64_t linger_ms)
{
    struct engine_thread *thread = conn->thread;
    atomic_store_explicit(&conn->status, UCCL_ECLOSED, memory_order_release);
    if (!stripe_hold(&conn->stripes))
        return;
    RACE_POINT();
    while (!push_close(conn, linger_ms)) {
        struct timespec moment = {0, 10000};
        thread_try_round(thread);
        nanosleep(&moment, NULL);
    }
}

void conn_abandon(struct uccl_conn *conn)
{
    drop_notes(conn);
    pthread_mutex_lock(&conn->engine->lock);
    conn->abandoned = true;
    conn->engine->abandoned++;
    queue_append(&conn->engine->abandoned_conns, &conn->of_abandoned);
    pthread_mutex_unlock(&conn->engine->lock);
    post_close(conn, 0);
}

UCCL_API int uccl_conn_abort(uccl_conn *conn)
{
    if (!conn)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    struct uccl_engine *engine = conn->engine;
    if (atomic_exchange(&conn->closing, true)) { /* whoever collects the request of that close frees it */
        post_close(conn, 0);
        return UCCL_OK;
    }
    conn_abandon(conn);
    free_abandoned(engine);
    return UCCL_OK;
}

UCCL_API int uccl_conn_close_async(uccl_conn *conn, uccl_request **out)
{
    if (!conn || !out)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (atomic_exchange(&conn->closing, true))
        return UCCL_EINVAL;
    CANCEL_LATER;
    struct stripe_set *stripes = &conn->stripes;
    struct uccl_request *request = request_take_for(conn, NULL, NULL);
    if (request) {
        atomic_store_explicit(&request->closes, true, memory_order_relaxed);
        request->staged.memory = NULL;
        request->msg.status = UCCL_OK;
        request->msg.moved_bytes = 0;
        atomic_store_explicit(&request->state, REQUEST_PENDING, memory_order_release); /* see still_pending() */
        stripes->closing = request;
        RACE_POINT();
        uccl_request *handle = request_handle(request); /* taken now: once posted, the request may be over */
        bool held = stripe_hold(stripes);               /* the ends are open: the connection is not over */
        assert(held);
        (void)held;
        if (push_close(conn, conn->engine->params.linger_ms)) {
            atomic_store_explicit(&conn->status, UCCL_ECLOSED, memory_order_release);
            drop_notes(conn); /* it stays until somebody has collected the request */
            *out = handle;
            return UCCL_OK;
        }
        stripes->closing = NULL;
        stripe_let_go(stripes);
        request_put(request);
    }
    atomic_store(&conn->closing, false);
    thread_try_round(conn->thread);
    return UCCL_EAGAIN;
}

/* ---- waiting for the end ---------------------------------------------------------------------- */

/*
 * Waits until the connection is over. The core ends it within the linger time and a grace, whatever the peer does, and
 * running engine threads do the rest. Copies to and from a device may take longer: the wait for them ends at
 * `*until_ns`, which this call sets if it is 0. False: some copies are still pending.
 */
static bool await_over(struct uccl_conn *conn, uint64_t *until_ns)
{
    struct stripe_set *stripes = &conn->stripes;
    while (!is_over(conn)) {
        uint32_t holds = atomic_load(&stripes->holds), staged = atomic_load(&stripes->staged);
        if (holds == 0) {
            thread_wait(conn->thread, &stripes->over, 0, UINT64_MAX);
        } else if (holds > staged) {
            thread_wait(conn->thread, &stripes->holds, holds, UINT64_MAX);
        } else {
            *until_ns = *until_ns ? *until_ns : clock_now_ns() + COPIES_NS;
            if (!thread_wait(conn->thread, &stripes->holds, holds, *until_ns))
                return false;
        }
    }
    return true;
}

UCCL_API int uccl_conn_close(uccl_conn *conn)
{
    uint64_t until_ns = 0;
    if (!conn)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (atomic_exchange(&conn->closing, true))
        return UCCL_EINVAL;
    CANCEL_LATER;
    drop_notes(conn);
    post_close(conn, conn->engine->params.linger_ms);
    RACE_POINT();
    await_over(conn, &until_ns);
    free_with_lock(conn);
    return UCCL_OK;
}

void connections_end(struct uccl_engine *engine)
{
    uint64_t until_ns = 0;
    pthread_mutex_lock(&engine->lock);
    engine->ending = true; /* threads that are leaving uccl_wait() free no connection any more */
    pthread_mutex_unlock(&engine->lock);
    for (struct uccl_conn *conn = engine->conns; conn; conn = conn->next)
        post_close(conn, engine->params.linger_ms); /* all linger at the same time */
    while (engine->conns) {
        struct uccl_conn *conn = engine->conns;
        await_over(conn, &until_ns);
        free_with_lock(conn);
    }
}

void connections_forget(struct uccl_engine *engine)
{
    while (engine->conns) {
        struct uccl_conn *conn = engine->conns;
        engine->conns = conn->next;
        onesided_free(conn->stripes.onesided);
        conn_unmap_ends(conn);
        free(conn);
    }
}
