/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/copier.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>

enum { COPIES_MAX = 256 }; /* in flight per device */

/* A device that this thread copies to and from. */
struct stage_device {
    struct stage_device *next;
    const struct mem_ops *ops;
    int device;
    void *context;
    struct mem_stage *copies; /* NULL: could not be opened (`error`) */
    bool pinned;              /* it was the first of its kind: the pool is pinned through it */
    int error;
    uint32_t fetching; /* blocks of sends that it copies to */
};

/* ---- requests -------------------------------------------------------------------------------- */

void copier_unqueue(struct copier *copier, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    if (!staged->queued)
        return;
    staged->queued = false;
    *(staged->prev ? &staged->prev->staged.next : &copier->fetch_head) = staged->next;
    *(staged->next ? &staged->next->staged.prev : &copier->fetch_tail) = staged->prev;
}

void copier_queue(struct copier *copier, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    staged->queued = true;
    staged->next = NULL;
    staged->prev = copier->fetch_tail;
    *(staged->prev ? &staged->prev->staged.next : &copier->fetch_head) = request;
    copier->fetch_tail = request;
}

void copier_fail(struct copier *copier, struct uccl_request *request, int32_t error)
{
    struct staged *staged = &request->staged;
    struct core *core = copier->context->core;
    if (staged->error)
        return;
    staged->error = error;
    copier_unqueue(copier, request);
    if (staged->over)
        return;
    if (request->parent)
        core_end_part(core, &request->msg, clock_now_ns());
    else
        core_cancel(core, &request->msg, clock_now_ns());
}

void copier_settle(struct copier *copier, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    if (staged->error) {
        request->msg.status = staged->error;
        request->msg.moved_bytes = 0;
    }
    copier->receives -= request->msg.kind == CORE_RECV;
    atomic_fetch_sub_explicit(copier->context->staged, 1, memory_order_seq_cst);
}

void copier_done(struct copier *copier, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    assert(staged->pending);
    staged->pending--;
    if (staged->over && staged->pending == 0) {
        copier_settle(copier, request);
        copier->context->ended(copier->context->owner, request);
    }
}

/* ---- devices --------------------------------------------------------------------------------- */

static struct stage_device *open_device(struct copier *copier, const struct mem_identity *memory)
{
    struct stage_device *device = calloc(1, sizeof *device);
    bool pinned = false;
    if (!device)
        return NULL;
    *device = (struct stage_device){
        .next = copier->devices, .ops = memory->ops, .device = memory->device, .context = memory->context};
    for (const struct stage_device *other = copier->devices; other; other = other->next)
        pinned |= other->ops == memory->ops && other->pinned;
    device->error =
        memory->ops->stage_open(memory, (unsigned)copier->context->params->gpu_streams, COPIES_MAX, &device->copies);
    if (!device->error && !pinned) {
        device->error = memory->ops->pin(device->copies, copier->pool.memory, copier->pool.memory_bytes);
        device->pinned = device->error == UCCL_OK;
        if (device->error)
            memory->ops->stage_close(device->copies);
    }
    copier->devices = device;
    return device;
}

struct stage_device *copier_device(struct copier *copier, struct uccl_request *request)
{
    const struct mem_identity *memory = request->staged.memory;
    struct stage_device *device = request->staged.device;
    for (device = device ? device : copier->devices; device; device = device->next) {
        if (device->ops == memory->ops && device->device == memory->device && device->context == memory->context)
            break;
    }
    if (!device)
        device = open_device(copier, memory);
    request->staged.device = device;
    if (!device || device->error) {
        copier_fail(copier, request, device ? device->error : UCCL_ENOMEM);
        return NULL;
    }
    return device;
}

uint32_t copier_fetching(const struct stage_device *device)
{
    return device->fetching;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Else it is of a receive, or a bounce slot. */
static bool is_sent_block(const struct stage_span *span)
{
    return span->held_bytes != NULL;
}

int copier_issue(struct copier *copier, struct stage_span *span, enum mem_direction direction, uint64_t offset_bytes,
                 void *host, uint32_t length)
{
    struct uccl_request *request = span->request;
    struct stage_device *device = copier_device(copier, request);
    if (!device)
        return UCCL_EIO;
    int error =
        device->ops->copy(device->copies, direction, (uintptr_t)request->buffer + offset_bytes, host, length, span);
    if (error && error != UCCL_EAGAIN)
        copier_fail(copier, request, error);
    if (error)
        return error;
    if (direction == MEM_TO_DEVICE)
        COUNT(copier->context->counters, gpu_uploads, 1);
    else
        COUNT(copier->context->counters, gpu_fetches, 1);
    copier->in_flight++;
    span->copies++;
    device->fetching += is_sent_block(span);
    return UCCL_OK;
}

struct stage_span *copier_poll(struct copier *copier, struct stage_device **from, int *result)
{
    for (; *from; *from = (*from)->next) {
        struct stage_device *device = *from;
        void *cookie;
        *result = device->error ? 0 : device->ops->poll(device->copies, &cookie);
        if (*result == 0)
            continue;
        struct stage_span *span = cookie;
        copier->in_flight--;
        span->copies--;
        device->fetching -= is_sent_block(span);
        return span;
    }
    return NULL;
}

void copier_close(struct copier *copier)
{
    while (copier->devices && !copier->in_flight) {
        struct stage_device *device = copier->devices;
        copier->devices = device->next;
        if (!device->error && device->pinned)
            device->ops->unpin(device->copies, copier->pool.memory);
        if (!device->error)
            device->ops->stage_close(device->copies);
        free(device);
    }
}
