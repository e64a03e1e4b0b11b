/* SPDX-License-Identifier: Apache-2.0 */
/* Posting, testing, waiting for and cancelling requests. */
#include "objects.h"

#include "base/log.h"
#include "base/race_point.h"
#include "thread/payload.h"

bool mr_covers(const struct uccl_engine *engine, const struct uccl_mr *mr, const void *buffer, size_t length)
{
    uintptr_t from = (uintptr_t)buffer, begin = (uintptr_t)mr->address;
    if (mr->engine != engine || mr->closed)
        return false;
    if (length == 0) /* no byte, no bounds */
        return true;
    return from >= begin && length <= mr->length && from - begin <= mr->length - length;
}

/* Before the command: see `staged` in thread/state.h. */
static void count_staged(struct uccl_conn *conn)
{
    atomic_fetch_add(&conn->thread->staged, 1);
    atomic_fetch_add(&conn->stripes.holds, 1);
    atomic_fetch_add(&conn->stripes.staged, 1);
}

static void uncount_staged(struct uccl_conn *conn)
{
    atomic_fetch_sub(&conn->thread->staged, 1);
    atomic_fetch_sub(&conn->stripes.staged, 1);
    stripe_let_go(&conn->stripes);
}

static int request_post(struct uccl_conn *conn, struct uccl_request *request, enum thread_command command,
                        uccl_request **out)
{
    if (request->mr_users)
        atomic_fetch_add_explicit(request->mr_users, 1, memory_order_relaxed);
    if (request->staged.memory)
        count_staged(conn);
    uccl_request *handle = request_handle(request); /* taken now: once posted, the request may be over */
    atomic_store_explicit(&request->state, REQUEST_PENDING, memory_order_release); /* see still_pending() */
    RACE_POINT();
    if (!thread_post(conn->thread, command, request)) {
        if (request->mr_users)
            atomic_fetch_sub_explicit(request->mr_users, 1, memory_order_relaxed);
        if (request->staged.memory)
            uncount_staged(conn);
        request_put(request);
        thread_try_round(conn->thread);
        return UCCL_EAGAIN;
    }
    *out = handle;
    return UCCL_OK;
}

static int post_message(struct uccl_conn *conn, enum core_msg_kind kind, void *buffer, size_t length,
                        struct uccl_mr *mr, bool watched, uccl_request **out)
{
    if (!conn || !out || (!buffer && length) || (mr && !mr_covers(conn->engine, mr, buffer, length)))
        return UCCL_EINVAL;
    if (process_forked(conn->thread->process))
        return UCCL_EFORKED;
    int32_t status = atomic_load_explicit(&conn->status, memory_order_acquire);
    if (status)
        return status;
    struct uccl_request *request = request_take_for(conn, buffer, mr);
    if (!request)
        return UCCL_EAGAIN;
    request->msg.conn = conn->stripes.at[0].conns[CLASS_MESSAGES];
    request->msg.kind = (uint8_t)kind;
    request->msg.size_bytes = length;
    request->msg.stripes = request->msg.range_units = 0;
    request->msg.block_bytes = 0;
    request->staged.memory = mr && length && !mr->region->is.ops->cpu_readable ? &mr->region->is : NULL;
    request->msg.ahead = false;
    request->msg.watched = watched;
    request->msg.grant_address = (uintptr_t)buffer;
    payload_reach(request, mr && length ? mr->nic : NULL, &conn->pairs);
    return request_post(conn, request, COMMAND_SUBMIT, out);
}

int request_post_flush(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr, uccl_request **out)
{
    struct uccl_request *request = request_take_for(conn, buffer, mr);
    if (!request)
        return UCCL_EAGAIN;
    atomic_store_explicit(&request->flushes, true, memory_order_relaxed);
    request->msg.moved_bytes = 0;
    request->nic_mr = mr->nic;
    flush_init(request, &conn->pairs);
    request->staged.memory = &mr->region->is;
    return request_post(conn, request, COMMAND_FLUSH, out);
}

UCCL_API int uccl_send_async(uccl_conn *conn, const void *buffer, size_t length, uccl_mr *mr, uccl_request **out)
{
    return post_message(conn, CORE_SEND, (void *)(uintptr_t)buffer, length, mr, false, out);
}

UCCL_API int uccl_recv_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out)
{
    return post_message(conn, CORE_RECV, buffer, length, mr, false, out);
}

/* Whether this buffer allows what a watched receive promises. */
static int may_watch(const void *buffer, size_t length, const struct uccl_mr *mr)
{
    if (length == 0)
        return UCCL_OK;
    if ((uintptr_t)buffer % CORE_WATCHED_BYTES) {
        LOG_ERR("the buffer of a watched receive, at %p, is not aligned to %d bytes", buffer, CORE_WATCHED_BYTES);
        return UCCL_EINVAL;
    }
    if (mr && !mr->region->is.ops->cpu_readable)
        return UCCL_ENOTSUP;
    return UCCL_OK;
}

UCCL_API int uccl_recv_with_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, unsigned flags,
                                  uccl_request **out)
{
    bool watched = flags & UCCL_RECV_WATCHED;
    if (!conn || !out || flags & ~(unsigned)UCCL_RECV_WATCHED || (mr && !mr_covers(conn->engine, mr, buffer, length)))
        return UCCL_EINVAL;
    int error = watched ? may_watch(buffer, length, mr) : UCCL_OK;
    return error ? error : post_message(conn, CORE_RECV, buffer, length, mr, watched && length, out);
}

static bool has_ended(const struct uccl_request *request)
{
    /* pairs with the release in loop_request_ended(): results and received bytes */
    return atomic_load_explicit(&request->state, memory_order_acquire) == REQUEST_ENDED;
}

/* Returns the result of a completed request and frees it. */
static int request_collect(struct uccl_request *request, size_t *bytes)
{
    int status = request->msg.status;
    if (bytes)
        *bytes = request->msg.moved_bytes;
    if (request->mr_users)
        atomic_fetch_sub_explicit(request->mr_users, 1, memory_order_release);
    if (request->closes)
        conn_closed(request);
    RACE_POINT();
    request_put(request);
    return status;
}

UCCL_API int uccl_test(uccl_request *handle, int *done, size_t *bytes)
{
    struct uccl_request *request = request_find(handle);
    if (!request || !done)
        return UCCL_EINVAL;
    if (process_forked(request->thread->process))
        return UCCL_EFORKED;
    if (!has_ended(request)) {
        thread_try_round(request->thread);
        if (!has_ended(request)) {
            *done = 0;
            return UCCL_OK;
        }
    }
    *done = 1;
    return request_collect(request, bytes);
}

static void leave_thread(void *thread)
{
    atomic_fetch_sub(&((struct engine_thread *)thread)->callers, 1); /* pairs with the load in let_callers_go() */
}

static int wait_and_collect(struct uccl_request *request, int timeout_ms, size_t *bytes)
{
    struct engine_thread *thread = request->thread;
    uint64_t now_ns = clock_now_ns();
    uint64_t deadline_ns = clock_deadline_ns(now_ns, timeout_ms);
    int status = UCCL_ETIMEDOUT;
    CANCEL_LATER; /* while this thread may drive a lent engine */
    atomic_fetch_add(&thread->callers, 1);
    for (;;) {
        uint64_t look_ns = cancel_look_ns(now_ns, deadline_ns);
        bool dismissed =
            atomic_load(&thread->dismisses); /* before the look: all but hung requests have ended by then */
        if (thread_wait_from(thread, &request->state, REQUEST_PENDING, now_ns, look_ns)) {
            status = request_collect(request, bytes);
            break;
        }
        now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            break;
        if (dismissed) {
            status = UCCL_ECANCELED;
            break;
        }
        pthread_cleanup_push(leave_thread, thread);
        CANCEL_HERE; /* the request stays pending */
        pthread_cleanup_pop(0);
    }
    leave_thread(thread); /* the last access to the thread */
    return status;
}

UCCL_API int uccl_wait(uccl_request *handle, int timeout_ms, size_t *bytes)
{
    struct uccl_request *request = request_find(handle);
    if (!request)
        return UCCL_EINVAL;
    if (process_forked(request->thread->process))
        return UCCL_EFORKED;
    return has_ended(request) ? request_collect(request, bytes) : wait_and_collect(request, timeout_ms, bytes);
}

UCCL_API int uccl_cancel(uccl_request *handle)
{
    uint32_t generation;
    struct uccl_request *request = request_find_epoch(handle, &generation);
    if (!request)
        return UCCL_EINVAL;
    struct engine_thread *thread = request->thread;
    if (process_forked(thread->process))
        return UCCL_EFORKED;
    if (has_ended(request) || request->flushes || request->closes) /* these complete by themselves */
        return UCCL_OK;
    RACE_POINT();
    /* Names the epoch that was found: another thread may have collected the request since, and posted it anew. */
    return thread_push(thread, request, COMMAND_CANCEL | (uint64_t)generation << 32) ? UCCL_OK : UCCL_EAGAIN;
}
