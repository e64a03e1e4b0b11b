/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/stage.h"

#include "base/clock.h"
#include "base/log.h"
#include "gpu/bounce.h"
#include "gpu/copier.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CLOSE_NS = NS_PER_S,         /* how long a close waits for copies */
    LOOK_MAX_NS = CLOSE_NS / 10, /* what a look at them counts at most */
    RX_BUFFER_BLOCKS = 2,        /* that one received buffer can begin; reserved before polling */
    FETCH_AHEAD_BLOCKS = 2,      /* of a send, fetched and not sent: one goes out, one is on its way */
    FETCHES_PER_ROUND = 4,       /* issuing one takes microseconds, in which the thread sends nothing */
};

/* Received payload that found no block. */
struct spill {
    struct spill *next;
    struct uccl_request *request;
    uint64_t offset_bytes;
    size_t length;
    uint8_t bytes[];
};

struct stage {
    struct copier copier;
    struct bounce bounce;
    struct stage_span *filling_head, *filling_tail; /* oldest first */
    struct stage_held sent[CORE_FLOWS_MAX];         /* in blocks, by the sends of each flow of the thread */
};

struct stage *stage_open(const struct gpu_context *context)
{
    struct stage *stage = calloc(1, sizeof *stage);
    if (stage)
        stage->copier.context = context;
    return stage;
}

/* ---- spans of requests ----------------------------------------------------------------------- */

static void span_link(struct uccl_request *request, struct stage_span *span, struct stage_span *after)
{
    struct staged *staged = &request->staged;
    span->request = request;
    span->prev = after;
    span->next = after ? after->next : staged->spans;
    if (span->next)
        span->next->prev = span;
    *(after ? &after->next : &staged->spans) = span;
    staged->span_count++;
}

static void span_unlink(struct stage *stage, struct stage_span *span)
{
    struct staged *staged = &span->request->staged;
    *(span->prev ? &span->prev->next : &staged->spans) = span->next;
    if (span->next)
        span->next->prev = span->prev;
    span->next = span->prev = NULL;
    staged->span_count--;
    if (span->state != SPAN_FILLING)
        return;
    *(span->older ? &span->older->newer : &stage->filling_head) = span->newer;
    *(span->newer ? &span->newer->older : &stage->filling_tail) = span->older;
}

static struct stage_span *span_find(const struct uccl_request *request, uint64_t offset_bytes)
{
    struct stage_span *span = request->staged.spans;
    while (span && offset_bytes - span->offset_bytes >= span->length) /* below the span: wraps */
        span = span->next;
    return span;
}

const void *stage_at(struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes)
{
    if (request->msg.block_bytes == 0)
        return bounce_at(&stage->bounce, request, offset_bytes);
    const struct stage_span *span = span_find(request, offset_bytes);
    assert(span && span->state == SPAN_READY);
    return span->memory + (offset_bytes - span->offset_bytes);
}

/* The block of a receive around a byte. Blocks end at multiples of their size, and where ranges may begin. */
static void block_around(const struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes,
                         uint64_t *begin, uint64_t *end)
{
    uint32_t block_bytes = stage->copier.pool.block_bytes, range_bytes = request->staged.range_bytes;
    *begin = offset_bytes - offset_bytes % block_bytes;
    *end = *begin + block_bytes;
    if (*end > request->msg.size_bytes)
        *end = request->msg.size_bytes;
    if (!range_bytes)
        return;
    uint64_t range = offset_bytes - offset_bytes % range_bytes;
    if (*begin < range)
        *begin = range;
    if (*end > range + range_bytes)
        *end = range + range_bytes;
}

/* ---- requests begin and end ------------------------------------------------------------------ */

/* Makes the pool, with one block more for bounce slots if the NIC places payload. */
static bool make_pool(struct stage *stage)
{
    const struct params *params = stage->copier.context->params;
    uint32_t block_bytes = (uint32_t)params->gpu_block_kb * 1024;
    if (!stage_pool_make(&stage->copier.pool, block_bytes, (uint32_t)params->gpu_blocks + stage->copier.context->places,
                         stage->copier.context->numa_node))
        return false;
    if (!stage->copier.context->places)
        return true;
    const struct stage_span *block = stage_span_take(&stage->copier.pool, STAGE_SENDS, block_bytes, NULL);
    bounce_init(&stage->bounce, &stage->copier, block->memory, block_bytes);
    return true;
}

void stage_begin(struct stage *stage, struct uccl_request *request, uint32_t flow)
{
    const struct params *params = stage->copier.context->params;
    request->staged = (struct staged){.memory = request->staged.memory, .flow = flow};
    request->msg.block_bytes = 0;
    if (request->msg.kind == CORE_SEND) {
        request->msg.block_bytes = (uint32_t)params->gpu_block_kb * 1024;
    } else {
        request->staged.range_bytes = request->msg.range_units * (uint32_t)CORE_STRIPE_UNIT;
    }
    if (!stage->copier.pool.memory && !make_pool(stage)) {
        LOG_ERR("no memory for %llu staging blocks of %llu KiB (UCCL_GPU_BLOCKS, UCCL_GPU_BLOCK_KB)",
                (unsigned long long)params->gpu_blocks, (unsigned long long)params->gpu_block_kb);
        request->staged.error = UCCL_ENOMEM;
    }
    if (copier_find(&stage->copier, request))
        request->staged.error = UCCL_ENOMEM;
    if (request->msg.kind == CORE_RECV) {
        stage->copier.receives++;
        if (request->staged.device)
            request->staged.device->receives++;
    }
}

void stage_began(struct stage *stage, struct uccl_request *request)
{
    int32_t error = request->staged.error;
    request->staged.error = UCCL_OK;
    if (error)
        copier_fail(&stage->copier, request, error);
}

void stage_fetch(struct stage *stage, struct uccl_request *request)
{
    request->staged.fetched_bytes = request->msg.offset_bytes;
    if (!request->staged.error)
        copier_queue(&stage->copier, request);
}

static void span_queue_upload(struct stage *stage, struct stage_span *span)
{
    struct stage_device *device = span->request->staged.device;
    span_unlink(stage, span);
    span->state = SPAN_UPLOADING;
    span->request->staged.pending++;
    if (device->upload_tail)
        device->upload_tail->next = span;
    else
        device->upload_head = span;
    device->upload_tail = span;
}

/*
 * Whether what has arrived of a receive that is over is to reach its memory. Of a part always: the whole message may
 * have ended well though the part's end of the connection failed after that.
 */
static bool is_received(const struct uccl_request *request)
{
    const struct core_msg *msg = &request->msg;
    return msg->kind == CORE_RECV && msg->moved_bytes && !request->staged.error &&
           (msg->status == UCCL_OK || request->parent);
}

/* Received bytes of a request that ends without them: of what no copy has begun nothing is left. */
static void drop_spills_of(struct uccl_request *request)
{
    struct stage_device *device = request->staged.device;
    struct spill **link = &device->spill_head, *kept, *last = NULL;
    while ((kept = *link)) {
        if (kept->request != request) {
            last = kept;
            link = &kept->next;
            continue;
        }
        *link = kept->next;
        device->spilled_bytes -= kept->length;
        request->staged.pending--;
        free(kept);
    }
    device->spill_tail = last;
}

static void drop_uploads_of(struct stage *stage, struct uccl_request *request)
{
    struct stage_device *device = request->staged.device;
    struct stage_span **link = &device->upload_head, *span, *last = NULL;
    while ((span = *link)) {
        if (span->request != request) {
            last = span;
            link = &span->next;
            continue;
        }
        *link = span->next;
        span->next = NULL;
        span->ranges_sent = span->range_count;
        if (span->copies) /* upload_ended() puts it back */
            continue;
        stage_span_put(&stage->copier.pool, span);
        request->staged.pending--;
    }
    device->upload_tail = last;
}

bool stage_over(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    bool received = is_received(request);
    struct stage_span *span = staged->spans, *next;
    copier_unqueue(&stage->copier, request);
    staged->over = true;
    bounce_forget(&stage->bounce, request);
    if (!received && staged->pending && request->msg.kind == CORE_RECV) {
        drop_spills_of(request);
        drop_uploads_of(stage, request);
    }
    for (; span; span = next) {
        next = span->next;
        if (span->state == SPAN_FETCHING)
            continue; /* fetch_ended() puts it back */
        if (received && span->range_count) {
            span_queue_upload(stage, span);
            continue;
        }
        span_unlink(stage, span);
        stage_span_put(&stage->copier.pool, span);
    }
    if (staged->pending)
        return false;
    copier_settle(&stage->copier, request);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The span that a byte of a receive belongs to, made if need be. NULL: the pool has none for its device. */
static struct stage_span *filling_span(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes)
{
    struct stage_span *span = span_find(request, offset_bytes);
    if (span || !stage->copier.pool.memory)
        return span;
    uint64_t begin, end;
    block_around(stage, request, offset_bytes, &begin, &end);
    span = stage_span_take(&stage->copier.pool, STAGE_RECEIVES, (uint32_t)(end - begin),
                           &request->staged.device->received);
    if (!span)
        return NULL;
    span->state = SPAN_FILLING;
    span->offset_bytes = begin;
    span_link(request, span, NULL);
    span->older = stage->filling_tail;
    *(span->older ? &span->older->newer : &stage->filling_head) = span;
    stage->filling_tail = span;
    return span;
}

/* Writes as much as goes into one span; returns how much. 0: there is no room. */
static size_t write_some(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, const uint8_t *from,
                         size_t length)
{
    struct stage_span *span = filling_span(stage, request, offset_bytes);
    if (!span)
        return 0;
    uint32_t at = (uint32_t)(offset_bytes - span->offset_bytes);
    uint32_t bytes = length < span->length - at ? (uint32_t)length : span->length - at;
    if (!stage_span_add(span, at, at + bytes)) {
        span_queue_upload(stage, span); /* it has too many ranges: they go up, and another span begins */
        return write_some(stage, request, offset_bytes, from, length);
    }
    if (span->memory + at != from) /* else the NIC has received it there */
        memcpy(span->memory + at, from, bytes);
    if (stage_span_full(span) || request->staged.over)
        span_queue_upload(stage, span);
    return bytes;
}

/* Whether the heap has enough for a device that stands still. */
static bool has_spilled_all(const struct stage *stage, const struct stage_device *device)
{
    return device->spilled_bytes > stage->copier.pool.memory_bytes;
}

/* How long the thread then waits for it. Its peers would take us for dead after twice as long. */
static bool is_awaited(const struct stage *stage, const struct stage_device *device)
{
    return device->still_ns < stage->copier.context->params->dead_peer_ms * NS_PER_MS / 2;
}

/* Whether receives into its memory fail from now on. */
static bool gives_up(struct stage *stage, struct stage_device *device)
{
    if (!has_spilled_all(stage, device) || is_awaited(stage, device))
        return false;
    if (!device->told)
        LOG_ERR("%s device %d does not complete its copies: receives into its memory fail", device->ops->name,
                device->device);
    device->told = true;
    return true;
}

static void spill(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, const uint8_t *from,
                  size_t length)
{
    struct stage_device *device = request->staged.device;
    if (gives_up(stage, device)) {
        copier_fail(&stage->copier, request, UCCL_EIO);
        return;
    }
    struct spill *kept = malloc(sizeof *kept + length);
    if (!kept) {
        LOG_ERR("no memory to keep %zu received bytes for a GPU", length);
        copier_fail(&stage->copier, request, UCCL_ENOMEM);
        return;
    }
    COUNT(stage->copier.context->counters, gpu_spills, 1);
    *kept = (struct spill){.request = request, .offset_bytes = offset_bytes, .length = length};
    memcpy(kept->bytes, from, length);
    if (device->spill_tail)
        device->spill_tail->next = kept;
    else
        device->spill_head = kept;
    device->spill_tail = kept;
    device->spilled_bytes += length;
    request->staged.pending++;
}

void stage_write(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, const void *from,
                 size_t length)
{
    const uint8_t *bytes = from;
    if (request->staged.error)
        return;
    while (length) {
        size_t done = write_some(stage, request, offset_bytes, bytes, length);
        if (done == 0) {
            spill(stage, request, offset_bytes, bytes, length);
            return;
        }
        offset_bytes += done;
        bytes += done;
        length -= done;
    }
}

void *stage_target(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, size_t length)
{
    if (request->staged.error)
        return NULL;
    struct stage_span *span = filling_span(stage, request, offset_bytes);
    if (!span || offset_bytes - span->offset_bytes + length > span->length)
        return NULL;
    return span->memory + (offset_bytes - span->offset_bytes);
}

/* True: some spilled bytes have found a block. */
static bool empty_spills_of(struct stage *stage, struct stage_device *device)
{
    bool some = false;
    struct spill *kept;
    while ((kept = device->spill_head)) {
        struct uccl_request *request = kept->request;
        bool drop = request->staged.error || (request->staged.over && !is_received(request));
        size_t done = drop ? kept->length : write_some(stage, request, kept->offset_bytes, kept->bytes, kept->length);
        if (done == 0)
            return some;
        some = true;
        kept->offset_bytes += done;
        kept->length -= done;
        device->spilled_bytes -= done;
        if (kept->length) {
            memmove(kept->bytes, kept->bytes + done, kept->length);
            continue;
        }
        device->spill_head = kept->next;
        if (!device->spill_head)
            device->spill_tail = NULL;
        free(kept);
        copier_done(&stage->copier, request);
    }
    return some;
}

static bool empty_spills(struct stage *stage)
{
    bool some = false;
    for (struct stage_device *device = stage->copier.devices; device; device = device->next)
        some |= empty_spills_of(stage, device);
    return some;
}

/* Received buffers that there is room for if all of them are for the device. */
static unsigned device_room(const struct stage *stage, const struct stage_device *device)
{
    if (device->receives == 0)
        return UINT_MAX;
    if (device->still_ns)
        return has_spilled_all(stage, device) && is_awaited(stage, device) ? 0 : UINT_MAX;
    return device->spill_head
               ? 0
               : stage_pool_share(&stage->copier.pool, STAGE_RECEIVES, &device->received) / RX_BUFFER_BLOCKS;
}

/* Of its blocks that fill up the older half goes up as it is. */
static void upload_filling(struct stage *stage, const struct stage_device *device)
{
    unsigned waiting = 0;
    for (struct stage_span *span = stage->filling_head; span; span = span->newer)
        waiting += span->request->staged.device == device;
    unsigned left = (waiting + 1) / 2;
    for (struct stage_span *span = stage->filling_head, *newer; left; span = newer) {
        newer = span->newer;
        if (span->request->staged.device != device)
            continue;
        span_queue_upload(stage, span);
        left--;
    }
}

unsigned stage_rx_room(struct stage *stage, unsigned most)
{
    if (stage->copier.receives == 0 || !stage->copier.pool.memory)
        return most;
    unsigned room = most;
    bool comes = false; /* when copies that are under way have ended */
    for (struct stage_device *device = stage->copier.devices; device; device = device->next) {
        unsigned of_device = device_room(stage, device);
        room = of_device < room ? of_device : room;
        if (of_device > 0)
            continue;
        if (device->in_flight == 0 && !device->upload_head)
            upload_filling(stage, device);
        comes |= device->in_flight || device->upload_head;
    }
    if (room)
        return room;
    COUNT(stage->copier.context->counters, gpu_starved, 1);
    return comes ? 0 : 1;
}

/* ---- copies (the engine thread alone) -------------------------------------------------------- */

/* Payload that has been fetched in order may be sent. */
static void tell_available(struct stage *stage, struct uccl_request *request)
{
    uint64_t to = request->msg.available_bytes;
    for (const struct stage_span *span = request->staged.spans; span && span->state == SPAN_READY; span = span->next)
        to = span->offset_bytes + span->length;
    if (to > request->msg.available_bytes)
        core_available(stage->copier.context->core, &request->msg, to, clock_now_ns());
}

static void fetch_ended(struct stage *stage, struct stage_span *span, int result)
{
    struct uccl_request *request = span->request;
    if (result < 0)
        copier_fail(&stage->copier, request, UCCL_EIO);
    if (request->staged.over || result < 0) {
        span_unlink(stage, span);
        stage_span_put(&stage->copier.pool, span);
    } else {
        span->state = SPAN_READY;
        tell_available(stage, request);
    }
    copier_done(&stage->copier, request);
}

static void upload_ended(struct stage *stage, struct stage_span *span)
{
    struct uccl_request *request = span->request;
    if (span->copies || span->ranges_sent < span->range_count)
        return;
    stage_span_put(&stage->copier.pool, span);
    copier_done(&stage->copier, request);
}

static bool take_ended(struct stage *stage)
{
    struct stage_device *from = stage->copier.devices;
    struct stage_span *span;
    bool some = false;
    int result;
    while ((span = copier_poll(&stage->copier, &from, &result))) {
        some = true;
        if (span->state == SPAN_FETCHING) {
            fetch_ended(stage, span, result);
        } else if (span->state == SLOT_FETCHING) {
            bounce_fetched(&stage->bounce, span, result);
        } else {
            if (result < 0)
                copier_fail(&stage->copier, span->request, UCCL_EIO);
            upload_ended(stage, span);
        }
    }
    return some;
}

/* Issues the copies of one span. False: the device takes no more now. */
static bool span_upload(struct stage *stage, struct stage_span *span)
{
    for (; span->ranges_sent < span->range_count; span->ranges_sent++) {
        uint32_t from = span->ranges[span->ranges_sent].from, to = span->ranges[span->ranges_sent].to;
        int error = copier_issue(&stage->copier, span, MEM_TO_DEVICE, span->offset_bytes + from, span->memory + from,
                                 to - from);
        if (error == UCCL_EAGAIN)
            return false;
        if (error) {
            span->ranges_sent = span->range_count;
            break;
        }
    }
    return true;
}

static bool issue_uploads_of(struct stage *stage, struct stage_device *device)
{
    bool some = false;
    struct stage_span *span;
    while ((span = device->upload_head) && span_upload(stage, span)) {
        device->upload_head = span->next;
        if (!device->upload_head)
            device->upload_tail = NULL;
        span->next = NULL;
        some = true;
        upload_ended(stage, span); /* if no copy could be issued */
    }
    return some;
}

static bool issue_uploads(struct stage *stage)
{
    bool some = false;
    for (struct stage_device *device = stage->copier.devices; device; device = device->next)
        some |= issue_uploads_of(stage, device);
    return some;
}

/* A device fetches into a third of the blocks at most: while it hangs, others can go on, over the same flow too. */
static bool fetches_its_share(const struct stage *stage, const struct stage_device *device)
{
    return device->fetching >= (stage_pool_room(&stage->copier.pool, STAGE_SENDS) + 1) / 2;
}

/* Issues the copy of the next block of a send, and counts it. False: no more blocks now. */
static bool span_fetch(struct stage *stage, struct uccl_request *request, unsigned *issued)
{
    struct staged *staged = &request->staged;
    const struct stage_device *device = copier_device(&stage->copier, request);
    if (!device || fetches_its_share(stage, device))
        return true;
    uint64_t offset = staged->fetched_bytes, left = request->msg.end_bytes - offset;
    uint32_t block = stage->copier.pool.block_bytes - (uint32_t)(offset % stage->copier.pool.block_bytes);
    uint32_t length = left < block ? (uint32_t)left : block;
    struct stage_span *span = stage_span_take(&stage->copier.pool, STAGE_SENDS, length, &stage->sent[staged->flow]);
    struct stage_span *last = staged->spans;
    if (!span)
        return stage_pool_room(&stage->copier.pool, STAGE_SENDS) > 0; /* true: its flow has its share, others go on */
    *issued += 1;
    span->request = request;
    int error = copier_issue(&stage->copier, span, MEM_FROM_DEVICE, offset, span->memory, length);
    if (error) { /* or its device takes no more now */
        stage_span_put(&stage->copier.pool, span);
        return true;
    }
    while (last && last->next)
        last = last->next;
    span->state = SPAN_FETCHING;
    span->offset_bytes = offset;
    span_link(request, span, last);
    staged->pending++;
    staged->fetched_bytes += length;
    copier_unqueue(&stage->copier, request);
    if (staged->fetched_bytes < request->msg.end_bytes)
        copier_queue(&stage->copier, request); /* behind the others */
    return true;
}

/* It has fetched far enough ahead, or has its share of the blocks: a slow peer must not keep them all. */
static bool has_enough(const struct stage *stage, const struct uccl_request *request)
{
    uint64_t ahead_bytes = request->staged.fetched_bytes - request->msg.offset_bytes;
    return ahead_bytes >= (uint64_t)FETCH_AHEAD_BLOCKS * stage->copier.pool.block_bytes ||
           request->staged.span_count >= stage->copier.pool.block_count / 4;
}

/* Fetches blocks, messages in turn. True: at least one copy was issued. */
static bool issue_fetches(struct stage *stage)
{
    unsigned issued = 0;
    struct uccl_request *request = stage->copier.fetch_head, *next;
    for (; request && issued < FETCHES_PER_ROUND; request = next) {
        next = request->staged.next;
        if (has_enough(stage, request))
            continue;
        unsigned before = issued;
        if (!span_fetch(stage, request, &issued))
            break;
        if (!next && issued > before)
            next = stage->copier.fetch_head; /* another turn, until all have enough */
    }
    return issued > 0;
}

/* ---- bounce slots ---------------------------------------------------------------------------- */

bool stage_bounce(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, uint32_t length)
{
    return bounce_ready(&stage->bounce, request, offset_bytes, length);
}

void stage_bounces_sent(struct stage *stage)
{
    bounce_sent(&stage->bounce);
}

/* ---- progress -------------------------------------------------------------------------------- */

bool stage_progress(struct stage *stage)
{
    bool some = take_ended(stage);
    copier_watch(&stage->copier);
    some |= empty_spills(stage);
    some |= issue_uploads(stage);
    some |= bounce_issue(&stage->bounce);
    some |= issue_fetches(stage);
    return some;
}

bool stage_busy(const struct stage *stage)
{
    bool busy = stage->copier.in_flight || bounce_busy(&stage->bounce);
    for (const struct stage_device *device = stage->copier.devices; device && !busy; device = device->next)
        busy = device->upload_head || device->spill_head;
    return busy;
}

/* ---- chunks that are acked ------------------------------------------------------------------- */

void stage_release(struct stage *stage, const struct core_release *release)
{
    struct uccl_request *request = request_of(release->msg);
    struct stage_span *span = span_find(request, release->offset_bytes);
    assert(span && release->length <= span->left_bytes);
    span->left_bytes -= (uint32_t)release->length;
    if (span->left_bytes)
        return;
    span_unlink(stage, span);
    stage_span_put(&stage->copier.pool, span);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void drop_spills(struct stage *stage)
{
    for (struct stage_device *device = stage->copier.devices; device; device = device->next) {
        for (struct spill *kept; (kept = device->spill_head);) {
            device->spill_head = kept->next;
            free(kept);
        }
    }
}

void stage_close(struct stage *stage)
{
    uint64_t waited_ns = 0, seen_ns = clock_now_ns();
    while (stage_busy(stage) && waited_ns < CLOSE_NS) {
        if (!stage_progress(stage)) {
            struct timespec moment = {0, 20000};
            nanosleep(&moment, NULL);
        }
        uint64_t now_ns = clock_now_ns(), took_ns = now_ns - seen_ns;
        waited_ns += took_ns < LOOK_MAX_NS ? took_ns : LOOK_MAX_NS; /* longer: it is this thread that stood still */
        seen_ns = now_ns;
    }
    if (stage->copier.in_flight)
        LOG_ERR("a GPU does not complete its copies: its streams and %zu bytes of host memory stay allocated",
                stage->copier.pool.memory_bytes);
    drop_spills(stage);
    copier_close(&stage->copier);
}

void stage_free(struct stage *stage)
{
    drop_spills(stage);
    if (stage->copier.in_flight) /* the device may still write there */
        return;
    stage_pool_free(&stage->copier.pool);
    free(stage);
}
