/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations: exports and references, posting, notifications. */
#include "objects.h"

#include "base/le.h"
#include "base/log.h"
#include "base/race_point.h"
#include "mem/mem.h"
#include "thread/crc32c_hw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- references -------------------------------------------------------------------------------- */

/* The bytes of a reference (docs/onesided.md), little endian. */
enum {
    REF_MAGIC = 0x5255, /* "UR" */
    REF_VERSION = 1,
    REF_HOST = 0x80, /* beside the rights: the CPU reaches the memory */
    AT_MAGIC = 0,
    AT_VERSION = 2,
    AT_ACCESS = 3,
    AT_INDEX = 4,
    AT_GENERATION = 8,
    AT_NONCE = 12,
    AT_BASE = 20,
    AT_LENGTH = 28,
    AT_ENGINE = 36,
    AT_CRC = UCCL_REF_BYTES - 4,
    REF_ENGINE_BYTES = 8,
};

static void write_ref(const struct uccl_engine *engine, const struct exported *entry, uint8_t ref[UCCL_REF_BYTES])
{
    memset(ref, 0, UCCL_REF_BYTES);
    le_put(ref + AT_MAGIC, REF_MAGIC, 2);
    ref[AT_VERSION] = REF_VERSION;
    ref[AT_ACCESS] = (uint8_t)(entry->access | (entry->memory ? 0 : REF_HOST));
    le_put(ref + AT_INDEX, entry->ref.index, 4);
    le_put(ref + AT_GENERATION, entry->ref.generation, 4);
    le_put(ref + AT_NONCE, entry->ref.nonce, 8);
    le_put(ref + AT_BASE, (uintptr_t)entry->base, 8);
    le_put(ref + AT_LENGTH, entry->length, 8);
    memcpy(ref + AT_ENGINE, engine->id, REF_ENGINE_BYTES);
    le_put(ref + AT_CRC, crc32c_best()(0, ref, AT_CRC), 4);
}

/* ---- exports ----------------------------------------------------------------------------------- */

/*
 * Makes the memory known to NICs that place. What peers may write to is registered for this export alone: they learn
 * the key, and could use it later, or beyond the export. Where they only read, our NIC reads for them.
 */
static int join_nics(struct uccl_export *exported, const struct uccl_mr *mr, struct exported *made)
{
    made->nic_mr = mr_of_nics(mr);
    if (!made->nic_mr || !made->length || !(made->access & UCCL_ACCESS_WRITE))
        return UCCL_OK;
    made->nic_mr = exported->nic;
    return nics_join(mr->engine, made->base, made->length, exported->nic);
}

UCCL_API int uccl_export_mr(uccl_mr *mr, void *address, size_t length, unsigned access, uint8_t ref[UCCL_REF_BYTES],
                            uccl_export **out)
{
    if (!mr || !ref || !out || !access || access & ~(unsigned)(UCCL_ACCESS_READ | UCCL_ACCESS_WRITE))
        return UCCL_EINVAL;
    struct uccl_engine *engine = mr->engine;
    if (inherited(engine))
        return UCCL_EFORKED;
    if (!mr_covers(engine, mr, address, length))
        return UCCL_EINVAL;
    CANCEL_LATER;
    bool host = mr->region->is.ops->cpu_readable;
    struct exported made = {
        .base = address, .length = length, .access = access, .memory = host ? NULL : &mr->region->is};
    if (getrandom(&made.ref.nonce, sizeof made.ref.nonce, 0) != sizeof made.ref.nonce) {
        LOG_ERR("cannot export memory: getrandom: %s", strerror(errno));
        return UCCL_EIO;
    }
    struct uccl_export *exported = calloc(1, sizeof *exported);
    if (!exported)
        return UCCL_ENOMEM;
    int error = host ? join_nics(exported, mr, &made) : UCCL_OK;
    if (error) {
        free(exported);
        return error;
    }
    pthread_mutex_lock(&engine->lock);
    exported->engine = engine;
    exported->mr = mr;
    exported->entry = export_add(&engine->exports, &made);
    if (exported->entry) {
        queue_append(&engine->all_exports, &exported->of_engine);
        queue_append(&mr->exports, &exported->of_mr);
        write_ref(engine, exported->entry, ref);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!exported->entry) {
        LOG_ERR("cannot export memory: no memory, or more than %d exports", EXPORTS_MAX);
        nics_leave(engine, exported->nic);
        free(exported);
        return UCCL_ENOMEM;
    }
    *out = exported;
    return UCCL_OK;
}

static void revoke_on_thread(struct engine_thread *thread, void *argument)
{
    onesided_revoke(thread, argument);
}

/*
 * Refuses new accesses. Until end_revocation() the entry stays that of this export, whoever else revokes it. Under the
 * lock. False: it is over.
 */
static bool begin_revocation(struct uccl_export *exported)
{
    if (exported->over)
        return false;
    exported->revokers++;
    export_revoke(exported->entry);
    return true;
}

/* Cancels the accesses under way. Not under the lock: engine threads may wait for it. */
static void cancel_accesses(struct uccl_engine *engine, struct exported *entry)
{
    RACE_POINT();
    for (unsigned i = 0; i < engine->thread_count && !export_is_idle(entry); i++)
        thread_run(&engine->threads[i], revoke_on_thread, entry);
}

/* The export is over, and nobody revokes it any more. Under the lock. */
static void remove_export(struct uccl_engine *engine, struct uccl_export *exported)
{
    queue_remove(&engine->all_exports, &exported->of_engine);
    export_remove(&engine->exports, exported->entry);
    keep_closed(&engine->closed_exports, exported);
}

/* `idle`: no access is under way, as this caller has seen. Under the lock. True: somebody has. */
static bool end_revocation(struct uccl_engine *engine, struct uccl_export *exported, bool idle)
{
    bool over = exported->over = exported->over || idle;
    if (over) {
        nics_leave(engine, exported->nic);
        queue_remove(&exported->mr->exports, &exported->of_mr); /* before the registration may go */
    }
    if (--exported->revokers == 0 && over)
        remove_export(engine, exported);
    return over;
}

/* Waits until no access is under way. Some thread may be lent: then this thread drives it. */
static bool await_idle(struct uccl_engine *engine, const struct exported *entry, uint64_t deadline_ns)
{
    enum { LOOK_NS = 1000000 };
    for (unsigned i = 0; !export_is_idle(entry); i = (i + 1) % engine->thread_count) {
        uint64_t now_ns = clock_now_ns();
        uint32_t users = atomic_load(&entry->users);
        if (now_ns >= deadline_ns)
            return false;
        if (users)
            thread_wait(&engine->threads[i], &entry->users, users,
                        deadline_ns - now_ns < LOOK_NS ? deadline_ns : now_ns + LOOK_NS);
    }
    return true;
}

UCCL_API int uccl_revoke(uccl_export *exported, int timeout_ms)
{
    if (!exported)
        return UCCL_EINVAL;
    struct uccl_engine *engine = exported->engine;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    struct exported *entry = exported->entry;
    uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + (uint64_t)timeout_ms * 1000000;
    pthread_mutex_lock(&engine->lock);
    bool begun = begin_revocation(exported);
    pthread_mutex_unlock(&engine->lock);
    if (!begun)
        return UCCL_EINVAL;
    cancel_accesses(engine, entry);
    bool idle = await_idle(engine, entry, deadline_ns);
    pthread_mutex_lock(&engine->lock);
    bool over = end_revocation(engine, exported, idle);
    pthread_mutex_unlock(&engine->lock);
    return over ? UCCL_OK : UCCL_ETIMEDOUT;
}

bool exports_of_mr_live(struct uccl_mr *mr)
{
    struct uccl_engine *engine = mr->engine;
    bool live = false;
    pthread_mutex_lock(&engine->lock);
    for (struct queue_link *link = mr->exports.head, *next; link; link = next) {
        struct uccl_export *exported = QUEUE_HOLDER(link, struct uccl_export, of_mr);
        struct exported *entry = exported->entry;
        bool holds = export_holds(entry);
        next = link->next;
        if (!begin_revocation(exported))
            continue;
        if (holds) {
            pthread_mutex_unlock(&engine->lock);
            cancel_accesses(engine, entry);
            pthread_mutex_lock(&engine->lock);
        }
        live |= !end_revocation(engine, exported, export_is_idle(entry)) && !holds;
        if (holds)
            next = mr->exports.head; /* the list may have changed */
    }
    pthread_mutex_unlock(&engine->lock);
    return live;
}

void exports_end(struct uccl_engine *engine)
{
    for (struct queue_link *link; (link = engine->all_exports.head);) {
        queue_remove(&engine->all_exports, link);
        free(QUEUE_HOLDER(link, struct uccl_export, of_engine));
    }
    exports_free(&engine->exports);
}

/* ---- imports ----------------------------------------------------------------------------------- */

UCCL_API int uccl_import(uccl_conn *conn, const uint8_t ref[UCCL_REF_BYTES], uccl_remote **out)
{
    if (!conn || !ref || !out)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (le_get(ref + AT_MAGIC, 2) != REF_MAGIC || ref[AT_VERSION] != REF_VERSION ||
        le_get(ref + AT_CRC, 4) != crc32c_best()(0, ref, AT_CRC))
        return UCCL_EINVAL;
    if (!conn->peer) /* closed */
        return UCCL_ECLOSED;
    if (!conn->stripes.onesided)
        return UCCL_ENOTSUP;
    if (memcmp(ref + AT_ENGINE, conn->peer->engine_id, REF_ENGINE_BYTES) != 0)
        return UCCL_EACCESS;
    struct uccl_remote *remote = malloc(sizeof *remote);
    if (!remote)
        return UCCL_ENOMEM;
    *remote = (struct uccl_remote){
        .process = conn->engine->process,
        .conn = conn,
        .ref = {(uint32_t)le_get(ref + AT_INDEX, 4), (uint32_t)le_get(ref + AT_GENERATION, 4),
                le_get(ref + AT_NONCE, 8)},
        .info = {.address = le_get(ref + AT_BASE, 8),
                 .length = le_get(ref + AT_LENGTH, 8),
                 .access = ref[AT_ACCESS] & (unsigned)(UCCL_ACCESS_READ | UCCL_ACCESS_WRITE),
                 .is_host = (ref[AT_ACCESS] & REF_HOST) != 0},
    };
    *out = remote;
    return UCCL_OK;
}

UCCL_API int uccl_remote_free(uccl_remote *remote)
{
    if (!remote)
        return UCCL_EINVAL;
    if (process_forked(remote->process))
        return UCCL_EFORKED;
    free(remote);
    return UCCL_OK;
}

UCCL_API int uccl_remote_get_info(const uccl_remote *remote, struct uccl_remote_info *out)
{
    if (!remote || !out)
        return UCCL_EINVAL;
    if (process_forked(remote->process))
        return UCCL_EFORKED;
    *out = remote->info;
    return UCCL_OK;
}

/* ---- posting ----------------------------------------------------------------------------------- */

/* Whether one-sided operations may be posted now. */
static int may_post(const struct uccl_conn *conn)
{
    if (process_forked(conn->thread->process))
        return UCCL_EFORKED;
    int32_t status = atomic_load_explicit(&conn->status, memory_order_acquire);
    if (status) /* first: a closed connection has no one-sided operations any more */
        return status;
    return conn->stripes.onesided ? UCCL_OK : UCCL_ENOTSUP;
}

static void count_users(const struct op *op, uint32_t by)
{
    for (size_t i = 0; i < op->count; i++) {
        if (op->pieces[i].mr_users)
            atomic_fetch_add_explicit(op->pieces[i].mr_users, by, memory_order_relaxed);
    }
}

/* Posts the operation, or frees it. `out` NULL: nobody waits for it. */
static int post(struct uccl_conn *conn, struct op *op, uccl_request **out)
{
    struct uccl_request *request = NULL;
    uccl_request *handle = NULL;
    op->of = conn->stripes.onesided;
    if (out) {
        request = request_take_for(conn, NULL, NULL);
        if (!request) {
            op_free(op);
            return UCCL_EAGAIN;
        }
        request->staged.memory = NULL;
        request->op = op;
        op->request = request;
        handle = request_handle(request); /* taken now: once posted, the request may be over */
        atomic_store_explicit(&request->state, REQUEST_PENDING, memory_order_release); /* see still_pending() */
    }
    count_users(op, 1);
    RACE_POINT();
    if (!thread_push(conn->thread, op, COMMAND_OP)) {
        count_users(op, UINT32_MAX);
        op_free(op);
        if (request) {
            request->op = NULL;
            request_put(request);
        }
        thread_try_round(conn->thread);
        return UCCL_EAGAIN;
    }
    if (out)
        *out = handle;
    return UCCL_OK;
}

static bool piece_fits(const struct uccl_conn *conn, const struct uccl_piece *piece)
{
    return piece->remote && piece->remote->conn == conn && (piece->local || !piece->length) &&
           (!piece->mr || mr_covers(conn->engine, piece->mr, piece->local, piece->length));
}

static int check_pieces(const struct uccl_conn *conn, const struct uccl_piece *pieces, size_t count)
{
    uint64_t total = 0;
    if (!pieces && count)
        return UCCL_EINVAL;
    for (size_t i = 0; i < count; i++) {
        if (!piece_fits(conn, &pieces[i]) || pieces[i].length > SIZE_MAX / 4 - total)
            return UCCL_EINVAL;
        total += pieces[i].length;
    }
    return UCCL_OK;
}

static int check_tail(const struct uccl_conn *conn, const struct uccl_tail *tail)
{
    switch (tail->kind) {
    case UCCL_TAIL_NOTIFY:
        return tail->length > UCCL_NOTIFY_MAX || (!tail->bytes && tail->length) ? UCCL_EINVAL : UCCL_OK;
    case UCCL_TAIL_SET:
    case UCCL_TAIL_ADD:
        if (!tail->remote || tail->remote->conn != conn || (tail->remote->info.address + tail->offset) % 8)
            return UCCL_EINVAL;
        return tail->kind == UCCL_TAIL_ADD && !tail->remote->info.is_host ? UCCL_ENOTSUP : UCCL_OK;
    default:
        return UCCL_EINVAL;
    }
}

static struct op_piece op_piece(const struct uccl_piece *piece)
{
    const struct uccl_mr *mr = piece->length ? piece->mr : NULL;
    bool host = !mr || mr->region->is.ops->cpu_readable;
    return (struct op_piece){.local = piece->local,
                             .length = piece->length,
                             .memory = host ? NULL : &mr->region->is,
                             .nic_mr = mr ? mr_of_nics(mr) : NULL,
                             .mr_users = piece->mr ? &piece->mr->users : NULL,
                             .remote = {.ref = piece->remote->ref, .offset = piece->offset},
                             .remote_host = piece->remote->info.is_host};
}

static void put_tail(struct op *op, const struct uccl_tail *tail)
{
    if (tail->kind == UCCL_TAIL_NOTIFY) {
        op->tail = CONTROL_NOTE;
        if (tail->length)
            memcpy(op->note + NOTE_HEADER_BYTES, tail->bytes, tail->length);
        return;
    }
    op->tail = tail->kind == UCCL_TAIL_SET ? CONTROL_SET : CONTROL_ADD;
    op->tail_host = tail->remote->info.is_host;
    op->signal = (struct control_tail){tail->remote->ref, tail->offset, tail->value};
}

static int post_pieces(struct uccl_conn *conn, enum op_kind kind, const struct uccl_piece *pieces, size_t count,
                       const struct uccl_tail *tail, uccl_request **out)
{
    if (!conn || !out)
        return UCCL_EINVAL;
    int error = may_post(conn);
    if (!error)
        error = check_pieces(conn, pieces, count);
    if (!error && tail)
        error = check_tail(conn, tail);
    if (error)
        return error;
    bool note = tail && tail->kind == UCCL_TAIL_NOTIFY;
    struct op *op = op_new(kind, count, note ? NOTE_HEADER_BYTES + tail->length : 0);
    if (!op)
        return UCCL_ENOMEM;
    for (size_t i = 0; i < count; i++)
        op->pieces[i] = op_piece(&pieces[i]);
    if (tail)
        put_tail(op, tail);
    return post(conn, op, out);
}

UCCL_API int uccl_write_async(uccl_conn *conn, const struct uccl_piece *pieces, size_t count,
                              const struct uccl_tail *tail, uccl_request **out)
{
    return post_pieces(conn, OP_WRITE, pieces, count, tail, out);
}

UCCL_API int uccl_read_async(uccl_conn *conn, const struct uccl_piece *pieces, size_t count,
                             const struct uccl_tail *tail, uccl_request **out)
{
    return post_pieces(conn, OP_READ, pieces, count, tail, out);
}

/* An operation without pieces. */
static int post_bare(struct uccl_conn *conn, enum op_kind kind, const void *bytes, size_t length, uccl_request **out)
{
    int error = may_post(conn);
    if (error)
        return error;
    struct op *op = op_new(kind, 0, kind == OP_NOTIFY ? NOTE_HEADER_BYTES + length : 0);
    if (!op)
        return UCCL_ENOMEM;
    if (length)
        memcpy(op->note + NOTE_HEADER_BYTES, bytes, length);
    return post(conn, op, out);
}

UCCL_API int uccl_fence(uccl_conn *conn)
{
    return conn ? post_bare(conn, OP_FENCE, NULL, 0, NULL) : UCCL_EINVAL;
}

UCCL_API int uccl_quiet_async(uccl_conn *conn, uccl_request **out)
{
    return conn && out ? post_bare(conn, OP_QUIET, NULL, 0, out) : UCCL_EINVAL;
}

UCCL_API int uccl_notify_async(uccl_conn *conn, const void *bytes, size_t length, uccl_request **out)
{
    if (!conn || !out || (!bytes && length) || length > UCCL_NOTIFY_MAX)
        return UCCL_EINVAL;
    return post_bare(conn, OP_NOTIFY, bytes, length, out);
}

/* ---- notifications ------------------------------------------------------------------------------- */

/* The connection's engine thread, which waits for room in the queue, is to go on. The connection is held. */
static void resume(struct onesided *one)
{
    struct engine_thread *thread = one->thread;
    while (!thread_push(thread, one, COMMAND_NOTES)) {
        struct timespec moment = {0, 10000};
        thread_try_round(thread);
        nanosleep(&moment, NULL);
    }
}

void conn_hand_out(struct uccl_conn *conn)
{
    struct onesided *one = conn->stripes.onesided;
    conn->handed_out = true;
    if (!one)
        return;
    pthread_mutex_lock(&conn->engine->notes.lock);
    bool waits = one->waiting.full && stripe_hold(one->home);
    one->waiting.early = one->waiting.full = false;
    pthread_mutex_unlock(&conn->engine->notes.lock);
    if (waits)
        resume(one);
}

/* Copies the oldest notification out. UCCL_EAGAIN: there is none. */
static int take_note(struct uccl_engine *engine, void *buffer, size_t size, size_t *length, uccl_conn **from)
{
    struct onesided *waits = NULL;
    pthread_mutex_lock(&engine->notes.lock);
    struct note *note = engine->notes.head;
    int error = !note ? UCCL_EAGAIN : note->length > size ? UCCL_ETRUNCATED : UCCL_OK;
    if (note && length)
        *length = note->length;
    if (note && from)
        *from = note->from->owner;
    if (error) {
        pthread_mutex_unlock(&engine->notes.lock);
        return error;
    }
    notes_take(&engine->notes);
    struct notes_waiting *waiting = &note->from->waiting;
    waiting->bytes -= note->length + NOTE_COST;
    if (waiting->full && waiting->bytes <= NOTES_WAITING_MAX / 2 && stripe_hold(note->from->home)) {
        waiting->full = false;
        waits = note->from;
    }
    if (note->length)
        memcpy(buffer, note->bytes, note->length);
    pthread_mutex_unlock(&engine->notes.lock);
    free(note);
    if (waits)
        resume(waits);
    return UCCL_OK;
}

UCCL_API int uccl_notify_next(uccl_engine *engine, void *buffer, size_t size, size_t *length, uccl_conn **from)
{
    if (!engine || (!buffer && size))
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    int error = take_note(engine, buffer, size, length, from);
    if (error != UCCL_EAGAIN)
        return error;
    for (unsigned i = 0; i < engine->thread_count; i++)
        thread_try_round(&engine->threads[i]);
    return take_note(engine, buffer, size, length, from);
}

UCCL_API int uccl_notify_fd(uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    return notes_fd(&engine->notes);
}
