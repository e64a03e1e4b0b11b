/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening, connecting, accepting, closing. Nothing blocks: NCCL calls again while there is no communicator yet, for
 * minutes where ranks start apart, and gives up without a word.
 *
 * A connect under way is known by its handle, of which NCCL shows the same copy at each call, and which the engine
 * marks (struct uccl_handle). A copy is kept for the case that NCCL does not call again. The marks are trusted by
 * nobody: a handle comes from the peer.
 *
 * Closing. A communicator all of whose requests have ended says goodbye; the answer is awaited in the background, so
 * any number of them close in the time of one. One with requests left, or that has failed, is aborted.
 */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(struct uccl_handle) == NCCL_NET_HANDLE_BYTES, "a handle fills NCCL's");

struct listen_comm {
    struct owned owned;
    struct engine *engine;
    uccl_listener *uccl;
};

/*
 * Aborted requests end at once, but where a GPU does not end its copies. All those of a communicator together are
 * waited for; once in vain, those of others on the same engine are not waited for as long. NCCL closes one after
 * another.
 */
enum { ABORT_MS = 5000, ABORT_HUNG_MS = 200 };

enum { CLOSE_TRIES = 5000 };

/* A connect under way. */
struct connecting {
    struct owned owned;
    struct connecting *next; /* in `all_connecting`, under plugin_lock */
    struct engine *engine;
    struct uccl_handle handle;
};
static struct connecting *all_connecting;

/* Of the other side's faults the engine has said all. */
static enum nccl_result no_connection(int device, int error)
{
    enum nccl_result result = result_of(error);
    if (result != NCCL_REMOTE_ERROR)
        WARN("no connection over %s: %s", devices_get(device)->name, uccl_strerror(error));
    return result;
}

/* ---- listening -------------------------------------------------------------------------------- */

static void free_listen(struct listen_comm *listen_comm)
{
    struct engine *engine = listen_comm->engine;
    uccl_listener_close(listen_comm->uccl);
    free(listen_comm);
    engine_put(engine);
}

static void end_listen(struct owned *owned)
{
    free_listen((struct listen_comm *)owned);
}

enum nccl_result comm_listen(struct context *context, int device, void *handle, struct listen_comm **out)
{
    struct uccl_handle made;
    struct engine *engine;
    enum nccl_result result = engine_get(device, context->traffic_class, &engine);
    if (result)
        return result;
    struct listen_comm *listen_comm = calloc(1, sizeof *listen_comm);
    int error = listen_comm ? uccl_listen(engine->uccl, 0, 0, &made, &listen_comm->uccl) : UCCL_ENOMEM;
    if (error) {
        WARN("cannot listen on %s: %s", devices_get(device)->name, uccl_strerror(error));
        free(listen_comm);
        engine_put(engine);
        return result_of(error);
    }
    listen_comm->engine = engine;
    pthread_mutex_lock(&plugin_lock);
    owned_add(&listen_comm->owned, context, end_listen);
    pthread_mutex_unlock(&plugin_lock);
    memcpy(handle, &made, sizeof made);
    *out = listen_comm;
    return NCCL_SUCCESS;
}

enum nccl_result comm_close_listen(struct listen_comm *listen_comm)
{
    if (!listen_comm)
        return NCCL_SUCCESS;
    pthread_mutex_lock(&plugin_lock);
    owned_remove(&listen_comm->owned);
    pthread_mutex_unlock(&plugin_lock);
    free_listen(listen_comm);
    return NCCL_SUCCESS;
}

/* ---- connecting, accepting -------------------------------------------------------------------- */

static void end_comm(struct owned *owned);

/* Takes over the connection and the engine's user. */
static enum nccl_result make_comm(struct context *context, struct engine *engine, uccl_conn *conn, struct comm **out)
{
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        no_connection(engine->device, UCCL_ENOMEM);
        uccl_conn_abort(conn);
        engine_put(engine);
        return NCCL_SYSTEM_ERROR;
    }
    uint8_t peer_id[16] = {0};
    uccl_conn_peer_id(conn, peer_id);
    comm->engine = engine;
    comm->uccl = conn;
    pthread_mutex_init(&comm->lock, NULL);
    for (unsigned i = 0; i < NCCL_NET_REQUESTS_MAX; i++)
        comm->requests[i].comm = comm;
    pthread_mutex_lock(&plugin_lock);
    owned_add(&comm->owned, context, end_comm);
    engine_met(engine, peer_id);
    pthread_mutex_unlock(&plugin_lock);
    *out = comm;
    return NCCL_SUCCESS;
}

static bool is_marked(const struct uccl_handle *handle)
{
    static const uint8_t none[sizeof handle->state];
    return memcmp(handle->state, none, sizeof none) != 0;
}

/* Under the lock. */
static struct connecting *find_connecting(const struct uccl_handle *handle)
{
    struct connecting *connecting = all_connecting;
    while (connecting && memcmp(&connecting->handle, handle, sizeof *handle) != 0)
        connecting = connecting->next;
    return connecting;
}

/* Under the lock. */
static void unlink_connecting(struct connecting *connecting)
{
    struct connecting **link = &all_connecting;
    while (*link != connecting)
        link = &(*link)->next;
    *link = connecting->next;
}

static void end_connecting(struct owned *owned)
{
    struct connecting *connecting = (struct connecting *)owned;
    struct engine *engine = connecting->engine;
    pthread_mutex_lock(&plugin_lock);
    unlink_connecting(connecting);
    pthread_mutex_unlock(&plugin_lock);
    uccl_connect_cancel(&connecting->handle);
    free(connecting);
    engine_put(engine);
}

/* The connect that the handle names, or a new one. */
static enum nccl_result connecting_of(struct context *context, int device, int traffic_class,
                                      const struct uccl_handle *handle, struct connecting **out)
{
    struct engine *engine;
    if (is_marked(handle)) {
        pthread_mutex_lock(&plugin_lock);
        *out = find_connecting(handle);
        pthread_mutex_unlock(&plugin_lock);
        if (*out)
            return NCCL_SUCCESS;
        WARN("cannot connect: the handle is of a connect that is not under way");
        return NCCL_INVALID_ARGUMENT;
    }
    enum nccl_result result = engine_get(device, traffic_class, &engine);
    if (result)
        return result;
    struct connecting *connecting = calloc(1, sizeof *connecting);
    if (!connecting) {
        no_connection(device, UCCL_ENOMEM);
        engine_put(engine);
        return NCCL_SYSTEM_ERROR;
    }
    connecting->engine = engine;
    pthread_mutex_lock(&plugin_lock);
    owned_add(&connecting->owned, context, end_connecting);
    connecting->next = all_connecting;
    all_connecting = connecting;
    pthread_mutex_unlock(&plugin_lock);
    *out = connecting;
    return NCCL_SUCCESS;
}

enum nccl_result comm_connect(struct context *context, int device, int traffic_class, void *handle, struct comm **out)
{
    struct connecting *connecting;
    struct uccl_handle known;
    uccl_conn *conn;
    memcpy(&known, handle, sizeof known);
    *out = NULL; /* NCCL closes what it finds there after an error */
    enum nccl_result result = connecting_of(context, device, traffic_class, &known, &connecting);
    if (result)
        return result;
    struct engine *engine = connecting->engine;
    int error = uccl_connect(engine->uccl, &known, 0, &conn);
    memcpy(handle, &known, sizeof known);
    pthread_mutex_lock(&plugin_lock);
    if (error == UCCL_EAGAIN) {
        connecting->handle = known;
    } else {
        unlink_connecting(connecting);
        owned_remove(&connecting->owned);
    }
    pthread_mutex_unlock(&plugin_lock);
    if (error == UCCL_EAGAIN)
        return NCCL_SUCCESS;
    free(connecting);
    if (error == UCCL_OK)
        return make_comm(context, engine, conn, out);
    result = no_connection(engine->device, error);
    engine_put(engine);
    return result;
}

enum nccl_result comm_accept(struct listen_comm *listen_comm, struct comm **out)
{
    struct engine *engine = listen_comm->engine;
    uccl_conn *conn;
    *out = NULL;
    int error = uccl_accept(listen_comm->uccl, 0, &conn);
    if (error == UCCL_EAGAIN)
        return NCCL_SUCCESS;
    if (error)
        return no_connection(engine->device, error);
    pthread_mutex_lock(&plugin_lock);
    engine->users++;
    pthread_mutex_unlock(&plugin_lock);
    return make_comm(listen_comm->owned.owner, engine, conn, out);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- failing ---------------------------------------------------------------------------------- */

enum nccl_result comm_fail(struct comm *comm, int error, const char *what)
{
    char peer[96] = "an unknown address";
    uint8_t id[16] = {0};
    if (comm->failed)
        return comm->failed;
    comm->failed = result_of(error);
    uccl_conn_peer(comm->uccl, peer, sizeof peer);
    uccl_conn_peer_id(comm->uccl, id);
    pthread_mutex_lock(&plugin_lock);
    bool told = comm->failed == NCCL_REMOTE_ERROR && engine_told(comm->engine, id);
    pthread_mutex_unlock(&plugin_lock);
    log_line(told ? LOG_KIND_INFO : LOG_KIND_WARN, "%s, over %s: a %s has failed: %s", peer,
             devices_get(comm->engine->device)->name, what, uccl_strerror(error));
    return comm->failed;
}

/* Waits until these have ended, or in vain. */
static void await_ends(struct engine *engine, uccl_request *const *requests, unsigned count)
{
    int64_t until_ms = now_ms() + (atomic_load(&engine->hung) ? ABORT_HUNG_MS : ABORT_MS);
    for (unsigned i = 0; i < count; i++) {
        int64_t left_ms = until_ms - now_ms();
        uccl_wait(requests[i], left_ms > 0 ? (int)left_ms : 0, NULL);
    }
    if (count && now_ms() >= until_ms)
        atomic_store(&engine->hung, true);
}

void comm_abort(struct comm *comm)
{
    uccl_request *pending[NCCL_NET_REQUESTS_MAX];
    unsigned count = 0;
    pthread_mutex_lock(&comm->lock);
    if (comm->uccl) {
        uccl_conn_abort(comm->uccl);
        comm->uccl = NULL;
        if (!comm->failed)
            comm->failed = NCCL_SYSTEM_ERROR;
        for (unsigned i = 0; i < NCCL_NET_REQUESTS_MAX; i++) {
            struct request *request = &comm->requests[i];
            if (!(comm->busy >> i & 1))
                continue;
            pending[count++] = request->uccl;
            request->ended = true;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    await_ends(comm->engine, pending, count);
}

/* ---- closing ---------------------------------------------------------------------------------- */

static void free_comm(struct comm *comm)
{
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

void comms_sweep(struct engine *engine)
{
    for (struct comm **link = &engine->closing, *comm; (comm = *link);) {
        int done = 0;
        uccl_test(comm->close, &done, NULL);
        if (!done) {
            link = &comm->next;
            continue;
        }
        *link = comm->next;
        free_comm(comm);
    }
}

/* Says goodbye in the background. False: it is to be aborted. */
static bool close_well(struct comm *comm)
{
    int error = UCCL_EAGAIN;
    if (!comm->uccl || comm->failed || comm->busy)
        return false;
    /* the ring into the engine thread may be full, for moments, or other communicators have all requests, for long */
    for (unsigned tries = 0; tries < CLOSE_TRIES && error == UCCL_EAGAIN; tries++) {
        struct timespec moment = {0, 10000};
        if (tries)
            nanosleep(&moment, NULL);
        error = uccl_conn_close_async(comm->uccl, &comm->close);
    }
    return error == UCCL_OK;
}

/* Off the list of what is owned. */
static void finish_comm(struct comm *comm)
{
    struct engine *engine = comm->engine;
    pthread_mutex_lock(&comm->lock);
    bool well = close_well(comm);
    pthread_mutex_unlock(&comm->lock);
    if (!well)
        comm_abort(comm);
    pthread_mutex_lock(&plugin_lock);
    if (well) {
        comm->next = engine->closing;
        engine->closing = comm;
    }
    comms_sweep(engine);
    pthread_mutex_unlock(&plugin_lock);
    if (!well)
        free_comm(comm);
    engine_put(engine);
}

static void end_comm(struct owned *owned)
{
    struct comm *comm = (struct comm *)owned;
    comm_abort(comm);
    finish_comm(comm);
}

enum nccl_result comm_close(struct comm *comm)
{
    if (!comm) /* NCCL takes a communicator that failed to connect for one */
        return NCCL_SUCCESS;
    pthread_mutex_lock(&plugin_lock);
    owned_remove(&comm->owned);
    pthread_mutex_unlock(&plugin_lock);
    finish_comm(comm);
    return NCCL_SUCCESS;
}
