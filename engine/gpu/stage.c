/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/stage.h"

#include "base/clock.h"
#include "base/log.h"
#include "gpu/stage_pool.h"
#include "mem/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    COPIES_MAX = 256,         /* in flight per device */
    CLOSE_NS = 1000000000,    /* how long a close waits for copies */
    RX_BUFFER_BLOCKS = 2,     /* that what was received in one buffer may begin at once, as a rule */
    FETCH_AHEAD_BLOCKS = 2,   /* of a send, fetched and not sent: one goes out, one is on its way */
    FETCHES_PER_ROUND = 4,    /* each takes microseconds, in which nothing is sent */
    PIECE_BYTES = 64 * 1024,  /* a chunk, and the smallest block */
    PIECES_MAX = 8,
    PIECES_AHEAD = 3,         /* behind the one that is to be sent, of those that nobody needs */
    PIECE_KEPT_NS = 5000000,  /* how long one that came waits for its chunk: that may have been acked meanwhile */
};

/* A device that this thread copies to and from. */
struct stage_device {
    struct stage_device *next;
    const struct mem_ops *ops;
    int device;
    void *context;
    struct mem_stage *copies; /* NULL: could not be opened (`error`) */
    bool pinned;              /* it was the first of its kind: the pool is pinned through it */
    int error;
};

/* Received bytes that found no block. */
struct spill {
    struct spill *next;
    struct uccl_request *request;
    uint64_t offset_bytes;
    size_t length;
    uint8_t bytes[];
};

struct stage {
    const struct gpu_context *context;
    struct stage_pool pool;
    struct stage_device *devices;
    struct uccl_request *wanting_head, *wanting_tail; /* sends with blocks to fetch */
    struct stage_span *filling_head, *filling_tail;   /* oldest first */
    struct stage_span *upload_head, *upload_tail;     /* to be issued */
    struct spill *spill_head, *spill_tail;
    struct stage_span pieces[PIECES_MAX];             /* `request` NULL: free; all in one block of the pool */
    unsigned piece_count;
    uint64_t held_bytes[CORE_FLOWS_MAX]; /* of the blocks, by sends of each flow of the thread */
    uint32_t receives;        /* staged receives that have not ended */
    uint32_t in_flight;       /* copies */
};

struct stage *stage_open(const struct gpu_context *context)
{
    struct stage *stage = calloc(1, sizeof *stage);
    if (stage)
        stage->context = context;
    return stage;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void unwant(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    if (!staged->wanting)
        return;
    staged->wanting = false;
    *(staged->prev ? &staged->prev->staged.next : &stage->wanting_head) = staged->next;
    *(staged->next ? &staged->next->staged.prev : &stage->wanting_tail) = staged->prev;
}

static void want(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    staged->wanting = true;
    staged->next = NULL;
    staged->prev = stage->wanting_tail;
    *(staged->prev ? &staged->prev->staged.next : &stage->wanting_head) = request;
    stage->wanting_tail = request;
}

/* The request cannot go on. It ends when the core has let go of it. */
static void fail(struct stage *stage, struct uccl_request *request, int32_t error)
{
    struct staged *staged = &request->staged;
    struct core *core = stage->context->core;
    if (staged->error)
        return;
    staged->error = error;
    unwant(stage, request);
    if (staged->over)
        return;
    if (request->parent)
        core_end_part(core, &request->msg, clock_now_ns());
    else
        core_cancel(core, &request->msg, clock_now_ns());
}

/* What is known of the end goes into the message. */
static void settle(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    if (staged->error) {
        request->msg.status = staged->error;
        request->msg.moved_bytes = 0;
    }
    stage->receives -= request->msg.kind == CORE_RECV;
    atomic_fetch_sub_explicit(stage->context->staged, 1, memory_order_seq_cst);
}

static void one_less_pending(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    assert(staged->pending);
    staged->pending--;
    if (staged->over && staged->pending == 0) {
        settle(stage, request);
        stage->context->ended(stage->context->owner, request);
    }
}

/* ---- spans of requests ----------------------------------------------------------------------- */

static void link_span(struct uccl_request *request, struct stage_span *span, struct stage_span *after)
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

static void unlink_span(struct stage *stage, struct stage_span *span)
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

static struct stage_span *find_span(const struct uccl_request *request, uint64_t offset_bytes)
{
    struct stage_span *span = request->staged.spans;
    while (span && offset_bytes - span->offset_bytes >= span->length) /* below it: wraps to large */
        span = span->next;
    return span;
}

/*
 * The piece that has some of these bytes, or will; NULL: none. No two pieces of a message have the same byte, as what is
 * sent is found by its first one.
 */
static struct stage_span *find_piece(struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes,
                                     uint32_t length)
{
    for (unsigned i = 0; i < stage->piece_count; i++) {
        struct stage_span *piece = &stage->pieces[i];
        if (piece->request == request && piece->offset_bytes < offset_bytes + length &&
            offset_bytes < piece->offset_bytes + piece->length)
            return piece;
    }
    return NULL;
}

const void *stage_at(struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes)
{
    bool direct = request->msg.block_bytes == 0;
    struct stage_span *span = direct ? find_piece(stage, request, offset_bytes, 1)
                                     : find_span(request, offset_bytes);
    assert(span && (direct ? span->state >= SPAN_PIECE_READY : span->state == SPAN_READY));
    if (direct)
        span->state = SPAN_PIECE_SENT;
    return span->memory + (offset_bytes - span->offset_bytes);
}

/* The block of a receive that a byte lies in. Blocks end at multiples of their size, and where the request's own bytes do. */
static void block_around(const struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes,
                         uint64_t *begin, uint64_t *end)
{
    const uint64_t ends[] = {request->staged.from_bytes, request->staged.to_bytes, request->msg.size_bytes};
    *begin = offset_bytes - offset_bytes % stage->pool.block_bytes;
    *end = *begin + stage->pool.block_bytes;
    for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (ends[i] <= offset_bytes && ends[i] > *begin)
            *begin = ends[i];
        else if (ends[i] > offset_bytes && ends[i] < *end)
            *end = ends[i];
    }
}

/* ---- requests begin and end ------------------------------------------------------------------ */

/* The pool, with one block more for pieces, where the NIC places. */
static bool make_pool(struct stage *stage)
{
    const struct params *params = stage->context->params;
    uint32_t block_bytes = (uint32_t)params->gpu_block_kb * 1024;
    if (!stage_pool_make(&stage->pool, block_bytes, (uint32_t)params->gpu_blocks + stage->context->places,
                         stage->context->numa_node))
        return false;
    if (!stage->context->places)
        return true;
    const struct stage_span *block = stage_span_take(&stage->pool, STAGE_SENDS, block_bytes, NULL);
    stage->piece_count = block_bytes / PIECE_BYTES < PIECES_MAX ? block_bytes / PIECE_BYTES : PIECES_MAX;
    for (unsigned i = 0; i < stage->piece_count; i++)
        stage->pieces[i].memory = block->memory + (size_t)i * PIECE_BYTES;
    return true;
}

void stage_begin(struct stage *stage, struct uccl_request *request, uint32_t flow)
{
    const struct params *params = stage->context->params;
    request->staged = (struct staged){.memory = request->staged.memory, .flow = flow};
    request->msg.block_bytes = 0;
    if (request->msg.kind == CORE_SEND) {
        request->msg.block_bytes = (uint32_t)params->gpu_block_kb * 1024;
    } else {
        stage->receives++;
        request_range(request, &request->staged.from_bytes, &request->staged.to_bytes);
    }
    if (!stage->pool.memory && !make_pool(stage)) {
        LOG_ERR("no memory for %llu staging blocks of %llu KiB (UCCL_GPU_BLOCKS, UCCL_GPU_BLOCK_KB)",
                (unsigned long long)params->gpu_blocks, (unsigned long long)params->gpu_block_kb);
        request->staged.error = UCCL_ENOMEM;
    }
}

void stage_began(struct stage *stage, struct uccl_request *request)
{
    int32_t error = request->staged.error;
    request->staged.error = UCCL_OK;
    if (error)
        fail(stage, request, error);
}

void stage_want(struct stage *stage, struct uccl_request *request)
{
    request->staged.fetched_bytes = request->msg.offset_bytes;
    if (!request->staged.error)
        want(stage, request);
}

static void upload(struct stage *stage, struct stage_span *span)
{
    unlink_span(stage, span);
    span->state = SPAN_UPLOADING;
    span->request->staged.pending++;
    if (stage->upload_tail)
        stage->upload_tail->next = span;
    else
        stage->upload_head = span;
    stage->upload_tail = span;
}

bool stage_over(struct stage *stage, struct uccl_request *request)
{
    struct staged *staged = &request->staged;
    const struct core_msg *msg = &request->msg;
    bool received = msg->kind == CORE_RECV && msg->status == UCCL_OK && msg->moved_bytes && !staged->error;
    struct stage_span *span = staged->spans, *next;
    unwant(stage, request);
    staged->over = true;
    for (unsigned i = 0; i < stage->piece_count; i++)
        if (stage->pieces[i].request == request && stage->pieces[i].state != SPAN_PIECE_FETCHING)
            stage->pieces[i].request = NULL;
    for (; span; span = next) {
        next = span->next;
        if (span->state == SPAN_FETCHING)
            continue; /* until the copy has ended */
        if (received && span->range_count) {
            upload(stage, span);
            continue;
        }
        unlink_span(stage, span);
        stage_span_put(&stage->pool, span);
    }
    if (staged->pending)
        return false;
    settle(stage, request);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The span that a byte of a receive goes to: there is one, or is made. NULL: the pool has none. */
static struct stage_span *filling_span(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes)
{
    struct stage_span *span = find_span(request, offset_bytes);
    if (span || !stage->pool.memory)
        return span;
    uint64_t begin, end;
    block_around(stage, request, offset_bytes, &begin, &end);
    span = stage_span_take(&stage->pool, STAGE_RECEIVES, (uint32_t)(end - begin), NULL);
    if (!span)
        return NULL;
    span->state = SPAN_FILLING;
    span->offset_bytes = begin;
    link_span(request, span, NULL);
    span->older = stage->filling_tail;
    *(span->older ? &span->older->newer : &stage->filling_head) = span;
    stage->filling_tail = span;
    return span;
}

/* As much of it as goes into one span. Returns how much; 0: there is no room. */
static size_t write_some(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes,
                           const uint8_t *from, size_t length)
{
    struct stage_span *span = filling_span(stage, request, offset_bytes);
    if (!span)
        return 0;
    uint32_t at = (uint32_t)(offset_bytes - span->offset_bytes);
    uint32_t bytes = length < span->length - at ? (uint32_t)length : span->length - at;
    if (!stage_span_add(span, at, at + bytes)) {
        upload(stage, span); /* in many pieces already: let them go up, and begin anew */
        return write_some(stage, request, offset_bytes, from, length);
    }
    if (span->memory + at != from) /* else the NIC has put it there */
        memcpy(span->memory + at, from, bytes);
    if (stage_span_full(span) || request->staged.over)
        upload(stage, span);
    return bytes;
}

static void spill(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, const uint8_t *from,
                  size_t length)
{
    struct spill *kept = malloc(sizeof *kept + length);
    if (!kept) {
        LOG_ERR("no memory to keep %zu received bytes for a GPU", length);
        fail(stage, request, UCCL_ENOMEM);
        return;
    }
    COUNT(stage->context->counters, gpu_spills, 1);
    *kept = (struct spill){.request = request, .offset_bytes = offset_bytes, .length = length};
    memcpy(kept->bytes, from, length);
    if (stage->spill_tail)
        stage->spill_tail->next = kept;
    else
        stage->spill_head = kept;
    stage->spill_tail = kept;
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

/* True: some of what waits on the heap has found its place. */
static bool place_spills(struct stage *stage)
{
    bool some = false;
    struct spill *kept;
    while ((kept = stage->spill_head)) {
        struct uccl_request *request = kept->request;
        bool drop = request->staged.error || (request->staged.over && request->msg.status != UCCL_OK);
        size_t done = drop ? kept->length
                           : write_some(stage, request, kept->offset_bytes, kept->bytes, kept->length);
        if (done == 0)
            return some;
        some = true;
        kept->offset_bytes += done;
        kept->length -= done;
        if (kept->length) {
            memmove(kept->bytes, kept->bytes + done, kept->length);
            continue;
        }
        stage->spill_head = kept->next;
        if (!stage->spill_head)
            stage->spill_tail = NULL;
        free(kept);
        one_less_pending(stage, request);
    }
    return some;
}

unsigned stage_rx_room(struct stage *stage, unsigned most)
{
    if (stage->receives == 0 || !stage->pool.memory)
        return most;
    unsigned room = stage_pool_room(&stage->pool, STAGE_RECEIVES) / RX_BUFFER_BLOCKS;
    if (stage->spill_head)
        room = 0;
    if (room)
        return room < most ? room : most;
    COUNT(stage->context->counters, gpu_starved, 1);
    /* the oldest half of what waits for more bytes goes up as it is, unless that is under way */
    if (stage->in_flight == 0 && !stage->upload_head) {
        unsigned waiting = 0;
        for (struct stage_span *span = stage->filling_head; span; span = span->newer)
            waiting++;
        for (unsigned i = 0; i < (waiting + 1) / 2; i++)
            upload(stage, stage->filling_head);
    }
    return 0;
}

/* ---- copies (the engine thread alone) -------------------------------------------------------- */

static struct stage_device *open_device(struct stage *stage, const struct mem_identity *memory)
{
    struct stage_device *device = calloc(1, sizeof *device);
    bool pinned = false;
    if (!device)
        return NULL;
    *device = (struct stage_device){
        .next = stage->devices, .ops = memory->ops, .device = memory->device, .context = memory->context};
    for (const struct stage_device *other = stage->devices; other; other = other->next)
        pinned |= other->ops == memory->ops && other->pinned;
    device->error = memory->ops->stage_open(memory, (unsigned)stage->context->params->gpu_streams, COPIES_MAX,
                                            &device->copies);
    if (!device->error && !pinned) {
        device->error = memory->ops->pin(device->copies, stage->pool.memory, stage->pool.memory_bytes);
        device->pinned = device->error == UCCL_OK;
        if (device->error)
            memory->ops->stage_close(device->copies);
    }
    stage->devices = device;
    return device;
}

/* The device of a request; NULL: it has failed. */
static struct stage_device *device_of(struct stage *stage, struct uccl_request *request)
{
    const struct mem_identity *memory = request->staged.memory;
    struct stage_device *device = request->staged.device;
    for (device = device ? device : stage->devices; device; device = device->next) {
        if (device->ops == memory->ops && device->device == memory->device && device->context == memory->context)
            break;
    }
    if (!device)
        device = open_device(stage, memory);
    request->staged.device = device;
    if (!device || device->error) {
        fail(stage, request, device ? device->error : UCCL_ENOMEM);
        return NULL;
    }
    return device;
}

/* What has come in order may be sent. */
static void tell_available(struct stage *stage, struct uccl_request *request)
{
    uint64_t to = request->msg.available_bytes;
    for (const struct stage_span *span = request->staged.spans; span && span->state == SPAN_READY;
         span = span->next)
        to = span->offset_bytes + span->length;
    if (to > request->msg.available_bytes)
        core_available(stage->context->core, &request->msg, to, clock_now_ns());
}

static void fetch_ended(struct stage *stage, struct stage_span *span, int result)
{
    struct uccl_request *request = span->request;
    if (result < 0)
        fail(stage, request, UCCL_EIO);
    if (request->staged.over || result < 0) {
        unlink_span(stage, span);
        stage_span_put(&stage->pool, span);
    } else {
        span->state = SPAN_READY;
        tell_available(stage, request);
    }
    one_less_pending(stage, request);
}

static void piece_ended(struct stage *stage, struct stage_span *piece, int result)
{
    struct uccl_request *request = piece->request;
    piece->state = SPAN_PIECE_READY;
    piece->ready_ns = clock_now_ns();
    if (result < 0)
        fail(stage, request, UCCL_EIO);
    if (result < 0 || request->staged.over)
        piece->request = NULL;
    one_less_pending(stage, request);
}

static void upload_ended(struct stage *stage, struct stage_span *span)
{
    struct uccl_request *request = span->request;
    if (span->copies || span->ranges_sent < span->range_count)
        return;
    stage_span_put(&stage->pool, span);
    one_less_pending(stage, request);
}

static bool take_ended(struct stage *stage)
{
    bool some = false;
    for (struct stage_device *device = stage->devices; device; device = device->next) {
        void *cookie;
        int result;
        while (!device->error && (result = device->ops->poll(device->copies, &cookie)) != 0) {
            struct stage_span *span = cookie;
            some = true;
            stage->in_flight--;
            span->copies--;
            if (span->state == SPAN_FETCHING) {
                fetch_ended(stage, span, result);
                continue;
            }
            if (span->state == SPAN_PIECE_FETCHING) {
                piece_ended(stage, span, result);
                continue;
            }
            if (result < 0)
                fail(stage, span->request, UCCL_EIO);
            upload_ended(stage, span);
        }
    }
    return some;
}

/* Issues the copies of one span. False: the device takes no more now. */
static bool upload_span(struct stage *stage, struct stage_span *span)
{
    struct uccl_request *request = span->request;
    struct stage_device *device = device_of(stage, request);
    for (; span->ranges_sent < span->range_count; span->ranges_sent++) {
        uint32_t from = span->ranges[span->ranges_sent].from, to = span->ranges[span->ranges_sent].to;
        uintptr_t at = (uintptr_t)request->buffer + span->offset_bytes + from;
        int error = device ? device->ops->copy(device->copies, MEM_TO_DEVICE, at, span->memory + from,
                                               to - from, span)
                           : UCCL_EIO;
        if (error == UCCL_EAGAIN)
            return false;
        if (error) {
            fail(stage, request, error);
            span->ranges_sent = span->range_count;
            break;
        }
        COUNT(stage->context->counters, gpu_uploads, 1);
        stage->in_flight++;
        span->copies++;
    }
    return true;
}

static bool issue_uploads(struct stage *stage)
{
    bool some = false;
    struct stage_span *span;
    while ((span = stage->upload_head) && upload_span(stage, span)) {
        stage->upload_head = span->next;
        if (!stage->upload_head)
            stage->upload_tail = NULL;
        span->next = NULL;
        some = true;
        upload_ended(stage, span); /* where none could be issued */
    }
    return some;
}

/* Issues the copy of the next block of a send, and counts it. False: no more blocks, or copies, now. */
static bool fetch_block(struct stage *stage, struct uccl_request *request, unsigned *issued)
{
    struct staged *staged = &request->staged;
    struct stage_device *device = device_of(stage, request);
    if (!device)
        return true;
    uint64_t offset = staged->fetched_bytes, left = request->msg.end_bytes - offset;
    uint32_t block = stage->pool.block_bytes - (uint32_t)(offset % stage->pool.block_bytes);
    uint32_t length = left < block ? (uint32_t)left : block;
    uint64_t *held_bytes = &stage->held_bytes[staged->flow];
    struct stage_span *span = stage_span_take(&stage->pool, STAGE_SENDS, length, held_bytes), *last = staged->spans;
    if (!span)
        return stage_pool_room(&stage->pool, STAGE_SENDS) > 0; /* else its flow has its share: the others go on */
    *issued += 1;
    int error = device->ops->copy(device->copies, MEM_FROM_DEVICE, (uintptr_t)request->buffer + offset,
                                  span->memory, length, span);
    if (error) {
        stage_span_put(&stage->pool, span);
        if (error == UCCL_EAGAIN)
            return false;
        fail(stage, request, error);
        return true;
    }
    COUNT(stage->context->counters, gpu_fetches, 1);
    while (last && last->next)
        last = last->next;
    span->state = SPAN_FETCHING;
    span->offset_bytes = offset;
    link_span(request, span, last);
    span->copies = 1;
    stage->in_flight++;
    staged->pending++;
    staged->fetched_bytes += length;
    unwant(stage, request);
    if (staged->fetched_bytes < request->msg.end_bytes)
        want(stage, request); /* behind the others */
    return true;
}

/* It has fetched as much ahead as does good, or its share of the blocks: a slow peer does not keep them all. */
static bool has_enough(const struct stage *stage, const struct uccl_request *request)
{
    uint64_t ahead_bytes = request->staged.fetched_bytes - request->msg.offset_bytes;
    return ahead_bytes >= (uint64_t)FETCH_AHEAD_BLOCKS * stage->pool.block_bytes ||
           request->staged.span_count >= stage->pool.block_count / 4;
}

/* Messages in turn. True: one was issued, at least. */
static bool issue_fetches(struct stage *stage)
{
    unsigned issued = 0;
    struct uccl_request *request = stage->wanting_head, *next;
    for (; request && issued < FETCHES_PER_ROUND; request = next) {
        next = request->staged.next;
        if (has_enough(stage, request))
            continue;
        unsigned before = issued;
        if (!fetch_block(stage, request, &issued))
            break;
        if (!next && issued > before)
            next = stage->wanting_head; /* another turn; it ends when all have enough */
    }
    return issued > 0;
}

/* ---- pieces of direct sends ------------------------------------------------------------------ */

static struct stage_span *free_piece(struct stage *stage)
{
    for (unsigned i = 0; i < stage->piece_count; i++)
        if (!stage->pieces[i].request)
            return &stage->pieces[i];
    return NULL;
}

/* A free one, or one that nobody came for. NULL: none. */
static struct stage_span *take_piece(struct stage *stage)
{
    struct stage_span *unused = free_piece(stage);
    uint64_t now_ns = 0;
    if (unused)
        return unused;
    for (unsigned i = 0; i < stage->piece_count; i++) {
        struct stage_span *piece = &stage->pieces[i];
        if (piece->state != SPAN_PIECE_READY)
            continue;
        now_ns = now_ns ? now_ns : clock_now_ns();
        if (now_ns - piece->ready_ns > PIECE_KEPT_NS)
            return piece;
    }
    return NULL;
}

/* The engine thread fetches it. */
static void want_piece(struct stage_span *piece, struct uccl_request *request, uint64_t offset_bytes, uint32_t length)
{
    piece->request = request;
    piece->offset_bytes = offset_bytes;
    piece->length = length;
    piece->state = SPAN_PIECE_WANTED;
}

/* Those behind the newest chunk: where that finds no queue pair the next ones will not, either. */
static void fetch_ahead(struct stage *stage, struct uccl_request *request, uint64_t end_bytes, uint32_t length)
{
    const struct core_msg *msg = &request->msg;
    struct stage_span *piece;
    if (end_bytes != msg->offset_bytes)
        return;
    for (unsigned i = 0; i < PIECES_AHEAD && end_bytes < msg->end_bytes; i++, end_bytes += length) {
        uint64_t left = msg->end_bytes - end_bytes;
        uint32_t some = left < length ? (uint32_t)left : length;
        if (!find_piece(stage, request, end_bytes, some) && (piece = free_piece(stage)))
            want_piece(piece, request, end_bytes, some);
    }
}

bool stage_piece(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, uint32_t length)
{
    struct stage_span *piece;
    assert(length <= PIECE_BYTES);
    while ((piece = find_piece(stage, request, offset_bytes, length))) {
        if (piece->offset_bytes == offset_bytes && piece->length == length) {
            if (piece->state < SPAN_PIECE_READY)
                return false;
            fetch_ahead(stage, request, offset_bytes + length, length);
            return true;
        }
        if (piece->state == SPAN_PIECE_FETCHING || piece->state == SPAN_PIECE_SENT)
            return false; /* it goes soon */
        piece->request = NULL; /* chunks are cut in another way now */
    }
    piece = take_piece(stage);
    if (!piece || request->staged.error)
        return false;
    want_piece(piece, request, offset_bytes, length);
    fetch_ahead(stage, request, offset_bytes + length, length);
    return false;
}

void stage_pieces_sent(struct stage *stage)
{
    for (unsigned i = 0; i < stage->piece_count; i++)
        if (stage->pieces[i].request && stage->pieces[i].state == SPAN_PIECE_SENT)
            stage->pieces[i].request = NULL;
}

static bool pieces_wanted(const struct stage *stage)
{
    for (unsigned i = 0; i < stage->piece_count; i++)
        if (stage->pieces[i].request && stage->pieces[i].state == SPAN_PIECE_WANTED)
            return true;
    return false;
}

static bool fetch_piece(struct stage *stage, struct stage_span *piece)
{
    struct uccl_request *request = piece->request;
    struct stage_device *device = device_of(stage, request);
    int error = device ? device->ops->copy(device->copies, MEM_FROM_DEVICE,
                                           (uintptr_t)request->buffer + piece->offset_bytes, piece->memory,
                                           piece->length, piece)
                       : UCCL_EIO;
    if (error == UCCL_EAGAIN)
        return false;
    if (error) {
        piece->request = NULL;
        if (device)
            fail(stage, request, error);
        return true;
    }
    COUNT(stage->context->counters, gpu_fetches, 1);
    piece->state = SPAN_PIECE_FETCHING;
    piece->copies = 1;
    stage->in_flight++;
    request->staged.pending++;
    return true;
}

static bool issue_pieces(struct stage *stage)
{
    bool some = false;
    for (unsigned i = 0; i < stage->piece_count; i++)
        if (stage->pieces[i].request && stage->pieces[i].state == SPAN_PIECE_WANTED)
            some |= fetch_piece(stage, &stage->pieces[i]);
    return some;
}

bool stage_progress(struct stage *stage)
{
    bool some = take_ended(stage);
    some |= place_spills(stage);
    some |= issue_uploads(stage);
    some |= issue_pieces(stage);
    some |= issue_fetches(stage);
    return some;
}

bool stage_busy(const struct stage *stage)
{
    return stage->in_flight || stage->upload_head || stage->spill_head || pieces_wanted(stage);
}

/* ---- what the core lets go of ---------------------------------------------------------------- */

void stage_release(struct stage *stage, const struct core_release *release)
{
    struct uccl_request *request = request_of(release->msg);
    struct stage_span *span = find_span(request, release->offset_bytes);
    assert(span && release->length <= span->left_bytes);
    span->left_bytes -= (uint32_t)release->length;
    if (span->left_bytes)
        return;
    unlink_span(stage, span);
    stage_span_put(&stage->pool, span);
}

/* ---- the end --------------------------------------------------------------------------------- */

void stage_close(struct stage *stage)
{
    uint64_t until_ns = clock_now_ns() + CLOSE_NS;
    while (stage_busy(stage) && clock_now_ns() < until_ns) {
        if (!stage_progress(stage)) {
            struct timespec moment = {0, 20000};
            nanosleep(&moment, NULL);
        }
    }
    if (stage->in_flight)
        LOG_ERR("a GPU does not complete its copies: its streams and %zu bytes of host memory stay allocated",
                stage->pool.memory_bytes);
    while (stage->devices && !stage->in_flight) {
        struct stage_device *device = stage->devices;
        stage->devices = device->next;
        if (!device->error && device->pinned)
            device->ops->unpin(device->copies, stage->pool.memory);
        if (!device->error)
            device->ops->stage_close(device->copies);
        free(device);
    }
}

void stage_free(struct stage *stage)
{
    while (stage->spill_head) {
        struct spill *kept = stage->spill_head;
        stage->spill_head = kept->next;
        free(kept);
    }
    if (stage->in_flight) /* the device may still write there */
        return;
    stage_pool_free(&stage->pool);
    free(stage);
}
