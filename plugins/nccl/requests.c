/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends, receives and flushes. A request is a slot of its communicator, of which there are as many as NCCL has
 * outstanding at most. No slot, or no room in the engine: no request, and NCCL calls again.
 *
 * Watched receives. Under the protocols LL and LL128, GPUs read a receive buffer before its request has ended. Since
 * v9 NCCL says which receives may be such; before, and where it is told not to, all may. Then those are watched whose
 * buffer can be: the buffers of LL and LL128 are aligned, while those of an application may lie anywhere. Where NCCL
 * has nothing but the protocol Simple, these are not watched, since that costs a copy. NCCL_PROTO=Simple alone does not
 * say so: it is about collectives. Send and receive use LL wherever their connections have buffers for it.
 */
#include "plugin.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WATCHED_ALIGNMENT = 128 };

static atomic_bool simple_only; /* written by init */
static atomic_bool never_early;

/* A number as NCCL reads it. */
static bool is_set_to(const char *name, long value)
{
    const char *text = getenv(name);
    char *end;
    return text && strtol(text, &end, 0) == value && end != text;
}

/* Whether connections of send and receive have buffers for LL. */
static bool has_ll_beside_collectives(void)
{
    return is_set_to("NCCL_ALLOC_P2P_NET_LL_BUFFERS", 1) || is_set_to("NCCL_NET_SHARED_BUFFERS", 0);
}

void requests_configure(bool afresh)
{
    const char *protocols = getenv("NCCL_PROTO");
    bool simple = protocols && strcasecmp(protocols, "Simple") == 0 && !has_ll_beside_collectives();
    bool untold = is_set_to("NCCL_NET_OPTIONAL_RECV_COMPLETION", 0);
    atomic_store(&simple_only, simple && (afresh || atomic_load(&simple_only)));
    atomic_store(&never_early, untold || (!afresh && atomic_load(&never_early)));
}

bool requests_simple_only(void)
{
    return atomic_load_explicit(&simple_only, memory_order_relaxed);
}

enum watch requests_watch(const void *request)
{
    if ((uintptr_t)request == NCCL_NET_EARLY)
        return WATCH_YES;
    return atomic_load_explicit(&never_early, memory_order_relaxed) ? WATCH_MAYBE : WATCH_NOT;
}

/* ---- slots ------------------------------------------------------------------------------------ */

/* Under the communicator's lock. NULL: all are in use. */
static struct request *take(struct comm *comm)
{
    if (comm->busy == UINT32_MAX)
        return NULL;
    unsigned i = (unsigned)__builtin_ctz(~comm->busy);
    comm->busy |= UINT32_C(1) << i;
    comm->requests[i].ended = false;
    return &comm->requests[i];
}

static void put(struct request *request)
{
    request->comm->busy &= ~(UINT32_C(1) << (request - request->comm->requests));
}

/* What has been posted, with its result. Under the lock. */
static enum nccl_result posted(struct request *request, int error, const char *what, void **out)
{
    if (!error) {
        *out = request;
        return NCCL_SUCCESS;
    }
    put(request);
    return error == UCCL_EAGAIN ? NCCL_SUCCESS : comm_fail(request->comm, error, what);
}

/* Under the lock. False: no request is to be made, with this result. */
static bool may_post(struct comm *comm, struct request **request, enum nccl_result *result)
{
    *result = comm->failed;
    *request = comm->failed ? NULL : take(comm);
    return *request != NULL;
}

/* ---- posting ---------------------------------------------------------------------------------- */

enum nccl_result request_send(struct comm *comm, void *data, size_t size, uccl_mr *mr, void **out)
{
    struct request *request;
    enum nccl_result result;
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    if (may_post(comm, &request, &result))
        result = posted(request, uccl_send_async(comm->uccl, data, size, mr, &request->uccl), "send", out);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* The flags of a receive. False: it would have to be watched, and cannot be. */
static bool receive_flags(const void *data, size_t size, enum watch watch, unsigned *flags)
{
    bool aligned = (uintptr_t)data % WATCHED_ALIGNMENT == 0;
    bool wanted = size > 0 && (watch == WATCH_YES || (watch == WATCH_MAYBE && !requests_simple_only()));
    *flags = wanted && aligned ? UCCL_RECV_WATCHED : 0;
    if (!wanted || aligned || watch == WATCH_MAYBE)
        return true;
    WARN("a receive buffer of LL or LL128 at %p is not aligned to %d bytes: GPUs might read data that is not there yet "
         "(NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE must be multiples of %d)",
         data, WATCHED_ALIGNMENT, 8 * WATCHED_ALIGNMENT);
    return false;
}

enum nccl_result request_receive(struct comm *comm, int n, void **data, const size_t *sizes, void **mrs,
                                 enum watch watch, void **out)
{
    struct request *request;
    enum nccl_result result;
    unsigned flags;
    *out = NULL;
    if (n != 1) /* as maxRecvs says */
        return NCCL_INVALID_ARGUMENT;
    if (!receive_flags(data[0], sizes[0], watch, &flags))
        return NCCL_INVALID_USAGE;
    pthread_mutex_lock(&comm->lock);
    if (may_post(comm, &request, &result))
        result = posted(request, uccl_recv_with_async(comm->uccl, data[0], sizes[0], mrs[0], flags, &request->uccl),
                        "receive", out);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

enum nccl_result request_flush(struct comm *comm, int n, void **data, const int *sizes, void **mrs, void **out)
{
    struct request *request;
    enum nccl_result result;
    *out = NULL;
    if (n != 1)
        return NCCL_INVALID_ARGUMENT;
    pthread_mutex_lock(&comm->lock);
    if (may_post(comm, &request, &result)) {
        size_t size = sizes[0] > 0 ? (size_t)sizes[0] : 0;
        int error = uccl_flush(comm->uccl, data[0], size, mrs[0], &request->uccl);
        bool nothing = error == UCCL_OK && !request->uccl;
        if (nothing)
            put(request);
        else
            result = posted(request, error, "flush", out);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* ---- testing ---------------------------------------------------------------------------------- */

enum nccl_result request_test(struct request *request, int *done, int *sizes)
{
    struct comm *comm = request->comm;
    enum nccl_result result = NCCL_SUCCESS;
    size_t bytes = 0;
    int error = UCCL_OK;
    *done = 0;
    pthread_mutex_lock(&comm->lock);
    if (request->ended) {
        *done = 1;
        result = comm->failed;
    } else {
        error = uccl_test(request->uccl, done, &bytes);
    }
    if (error) {
        *done = 1;
        result = comm_fail(comm, error, "request");
    } else if (*done && sizes) {
        sizes[0] = bytes > INT_MAX ? INT_MAX : (int)bytes;
    }
    if (*done)
        put(request);
    pthread_mutex_unlock(&comm->lock);
    return result;
}
