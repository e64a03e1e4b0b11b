/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/copier.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>

enum { COPIES_MAX = 256 }; /* in flight per device */

/* Between two tries to open a device: it may have been short of memory for a while. */
static const uint64_t REOPEN_NS = NS_PER_S;

/* Copies take microseconds, or milliseconds behind other work of the device. */
static const uint64_t STILL_NS = NS_PER_S / 10;

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
    if (request->msg.kind == CORE_RECV) {
        copier->receives--;
        if (staged->device)
            staged->device->receives--;
    }
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

int copier_find(struct copier *copier, struct uccl_request *request)
{
    const struct mem_identity *memory = request->staged.memory;
    struct stage_device *device = copier->devices;
    while (device &&
           !(device->ops == memory->ops && device->device == memory->device && device->context == memory->context))
        device = device->next;
    if (!device) {
        device = calloc(1, sizeof *device);
        if (!device)
            return UCCL_ENOMEM;
        *device = (struct stage_device){
            .next = copier->devices, .ops = memory->ops, .device = memory->device, .context = memory->context};
        copier->devices = device;
    }
    request->staged.device = device;
    return UCCL_OK;
}

static void open_device(struct copier *copier, struct stage_device *device, const struct mem_identity *memory)
{
    bool pinned = false;
    for (const struct stage_device *other = copier->devices; other; other = other->next)
        pinned |= other->ops == memory->ops && other->pinned;
    device->error =
        memory->ops->stage_open(memory, (unsigned)copier->context->params->gpu_streams, COPIES_MAX, &device->copies);
    if (!device->error && !pinned) {
        device->error = memory->ops->pin(device->copies, copier->pool.memory, copier->pool.memory_bytes);
        device->pinned = device->error == UCCL_OK;
        if (device->error) {
            memory->ops->stage_close(device->copies);
            device->copies = NULL;
        }
    }
    if (device->error)
        device->tried_ns = clock_now_ns();
}

static bool may_open(const struct stage_device *device)
{
    return !device->copies && (!device->error || clock_now_ns() - device->tried_ns >= REOPEN_NS);
}

struct stage_device *copier_device(struct copier *copier, struct uccl_request *request)
{
    struct stage_device *device = request->staged.device;
    if (may_open(device))
        open_device(copier, device, request->staged.memory);
    if (device->error) {
        copier_fail(copier, request, device->error);
        return NULL;
    }
    return device;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Else it is of a receive, or a bounce slot. */
static bool is_sent_block(const struct stage_span *span)
{
    return span->block && span->block->side == STAGE_SENDS;
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
    device->moved |= device->in_flight++ == 0;
    span->copies++;
    device->fetching += is_sent_block(span);
    return UCCL_OK;
}

struct stage_span *copier_poll(struct copier *copier, struct stage_device **from, int *result)
{
    for (; *from; *from = (*from)->next) {
        struct stage_device *device = *from;
        void *cookie;
        *result = device->in_flight ? device->ops->poll(device->copies, &cookie) : 0;
        if (*result == 0)
            continue;
        struct stage_span *span = cookie;
        copier->in_flight--;
        device->in_flight--;
        device->moved = true;
        span->copies--;
        device->fetching -= is_sent_block(span);
        return span;
    }
    return NULL;
}

void copier_watch(struct copier *copier)
{
    uint64_t now_ns = copier->in_flight ? clock_now_ns() : 0;
    for (struct stage_device *device = copier->devices; device; device = device->next) {
        if (device->moved)
            device->moved_ns = now_ns;
        device->moved = false;
        uint64_t still_ns = device->in_flight ? now_ns - device->moved_ns : 0;
        device->still_ns = still_ns > STILL_NS ? still_ns : 0;
    }
}

void copier_close(struct copier *copier)
{
    while (copier->devices && !copier->in_flight) {
        struct stage_device *device = copier->devices;
        copier->devices = device->next;
        if (device->copies && device->pinned)
            device->ops->unpin(device->copies, copier->pool.memory);
        if (device->copies)
            device->ops->stage_close(device->copies);
        free(device);
    }
}
