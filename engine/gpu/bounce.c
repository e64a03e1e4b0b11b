/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/bounce.h"

#include "base/clock.h"
#include "core/pool.h"

#include <assert.h>

enum {
    SLOTS_AHEAD = 3,        /* fetched behind the chunk to be sent, to slots that are free */
    SLOT_KEPT_NS = 5000000, /* how long a slot waits for its chunk, which may have been acked meanwhile */
};

void bounce_init(struct bounce *bounce, struct copier *copier, uint8_t *memory, uint32_t bytes)
{
    bounce->copier = copier;
    bounce->count = bytes / BOUNCE_BYTES < BOUNCE_SLOTS_MAX ? bytes / BOUNCE_BYTES : BOUNCE_SLOTS_MAX;
    for (unsigned i = 0; i < bounce->count; i++)
        bounce->slots[i].memory = memory + (size_t)i * BOUNCE_BYTES;
}

/* The slot that has some of these bytes, or will; NULL: none. */
static struct stage_span *slot_find(struct bounce *bounce, const struct uccl_request *request, uint64_t offset_bytes,
                                    uint32_t length)
{
    for (unsigned i = 0; i < bounce->count; i++) {
        struct stage_span *slot = &bounce->slots[i];
        if (slot->request == request && slot->offset_bytes < offset_bytes + length &&
            offset_bytes < slot->offset_bytes + slot->length)
            return slot;
    }
    return NULL;
}

const void *bounce_at(struct bounce *bounce, const struct uccl_request *request, uint64_t offset_bytes)
{
    struct stage_span *slot = slot_find(bounce, request, offset_bytes, 1);
    assert(slot && slot->state >= SLOT_READY);
    slot->state = SLOT_SENT;
    return slot->memory + (offset_bytes - slot->offset_bytes);
}

/*
 * Slots that a device is yet to copy to leave others some, should it stand still (core/pool.h): it gets one more while
 * it has fewer of them than are free, or none.
 */
static bool device_may_take(const struct bounce *bounce, const struct uccl_request *request)
{
    unsigned waiting = 0, unused = 0;
    for (unsigned i = 0; i < bounce->count; i++) {
        const struct stage_span *slot = &bounce->slots[i];
        if (!slot->request)
            unused++;
        else if (slot->state < SLOT_READY && slot->request->staged.device == request->staged.device)
            waiting++;
    }
    return waiting == 0 || pool_allows(waiting, unused);
}

static struct stage_span *slot_free(struct bounce *bounce)
{
    for (unsigned i = 0; i < bounce->count; i++)
        if (!bounce->slots[i].request)
            return &bounce->slots[i];
    return NULL;
}

/* A free one, or one that has waited too long for its chunk. NULL: none. */
static struct stage_span *slot_take(struct bounce *bounce)
{
    struct stage_span *unused = slot_free(bounce);
    uint64_t now_ns = 0;
    if (unused)
        return unused;
    for (unsigned i = 0; i < bounce->count; i++) {
        struct stage_span *slot = &bounce->slots[i];
        if (slot->state != SLOT_READY)
            continue;
        now_ns = now_ns ? now_ns : clock_now_ns();
        if (now_ns - slot->ready_ns > SLOT_KEPT_NS)
            return slot;
    }
    return NULL;
}

/* The engine thread fetches it. */
static void slot_reserve(struct stage_span *slot, struct uccl_request *request, uint64_t offset_bytes, uint32_t length)
{
    slot->request = request;
    slot->offset_bytes = offset_bytes;
    slot->length = length;
    slot->state = SLOT_RESERVED;
}

/* Reserves slots for the chunks behind the newest one: if that finds no data QP, the next ones will not, either. */
static void fetch_ahead(struct bounce *bounce, struct uccl_request *request, uint64_t end_bytes, uint32_t length)
{
    const struct core_msg *msg = &request->msg;
    struct stage_span *slot;
    if (end_bytes != msg->offset_bytes)
        return;
    for (unsigned i = 0; i < SLOTS_AHEAD && end_bytes < msg->end_bytes; i++, end_bytes += length) {
        uint64_t left = msg->end_bytes - end_bytes;
        uint32_t some = left < length ? (uint32_t)left : length;
        if (!slot_find(bounce, request, end_bytes, some) && device_may_take(bounce, request) &&
            (slot = slot_free(bounce)))
            slot_reserve(slot, request, end_bytes, some);
    }
}

bool bounce_ready(struct bounce *bounce, struct uccl_request *request, uint64_t offset_bytes, uint32_t length)
{
    struct stage_span *slot;
    assert(length <= BOUNCE_BYTES);
    while ((slot = slot_find(bounce, request, offset_bytes, length))) {
        if (slot->offset_bytes == offset_bytes && slot->length == length) {
            if (slot->state < SLOT_READY)
                return false;
            fetch_ahead(bounce, request, offset_bytes + length, length);
            return true;
        }
        if (slot->state == SLOT_FETCHING || slot->state == SLOT_SENT)
            return false;     /* it is free soon */
        slot->request = NULL; /* chunks are cut in another way now */
    }
    slot = device_may_take(bounce, request) ? slot_take(bounce) : NULL;
    if (!slot || request->staged.error)
        return false;
    slot_reserve(slot, request, offset_bytes, length);
    fetch_ahead(bounce, request, offset_bytes + length, length);
    return false;
}

void bounce_sent(struct bounce *bounce)
{
    for (unsigned i = 0; i < bounce->count; i++)
        if (bounce->slots[i].request && bounce->slots[i].state == SLOT_SENT)
            bounce->slots[i].request = NULL;
}

void bounce_forget(struct bounce *bounce, const struct uccl_request *request)
{
    for (unsigned i = 0; i < bounce->count; i++)
        if (bounce->slots[i].request == request && bounce->slots[i].state != SLOT_FETCHING)
            bounce->slots[i].request = NULL;
}

bool bounce_busy(const struct bounce *bounce)
{
    for (unsigned i = 0; i < bounce->count; i++)
        if (bounce->slots[i].request && bounce->slots[i].state == SLOT_RESERVED)
            return true;
    return false;
}

static bool slot_fetch(struct bounce *bounce, struct stage_span *slot)
{
    struct uccl_request *request = slot->request;
    int error = copier_issue(bounce->copier, slot, MEM_FROM_DEVICE, slot->offset_bytes, slot->memory, slot->length);
    if (error == UCCL_EAGAIN)
        return false;
    if (error) {
        slot->request = NULL;
        return true;
    }
    slot->state = SLOT_FETCHING;
    request->staged.pending++;
    return true;
}

bool bounce_issue(struct bounce *bounce)
{
    bool some = false;
    for (unsigned i = 0; i < bounce->count; i++)
        if (bounce->slots[i].request && bounce->slots[i].state == SLOT_RESERVED)
            some |= slot_fetch(bounce, &bounce->slots[i]);
    return some;
}

void bounce_fetched(struct bounce *bounce, struct stage_span *slot, int result)
{
    struct uccl_request *request = slot->request;
    slot->state = SLOT_READY;
    slot->ready_ns = clock_now_ns();
    if (result < 0)
        copier_fail(bounce->copier, request, UCCL_EIO);
    if (result < 0 || request->staged.over)
        slot->request = NULL;
    copier_done(bounce->copier, request);
}
