/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/copies.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

enum { ASK_NS = 1000 }; /* between two questions about a copy */

int mem_copies_failed(struct mem_stage *stage, const char *what, int error)
{
    if (!stage->failed)
        LOG_ERR("%s device %d: %s: %s (%d)", stage->calls.name, stage->device, what, stage->calls.error_text(error),
                error);
    stage->failed = true;
    return UCCL_EIO;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void copy_put(struct mem_stage *stage, struct mem_copy *copy)
{
    copy->next = stage->free;
    stage->free = copy;
}

static void release_memory(struct mem_stage *stage)
{
    free(stage->copies);
    free(stage->in_flight);
    free(stage->handles);
    free(stage);
}

struct mem_stage *mem_copies_make(const struct mem_calls *calls, int device, unsigned streams, unsigned slots)
{
    struct mem_stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return NULL;
    *stage = (struct mem_stage){
        .calls = *calls,
        .device = device,
        .slots = slots,
        .streams = streams,
        .copies = calloc(slots, sizeof *stage->copies),
        .in_flight = calloc(2 * streams, sizeof *stage->in_flight),
        .handles = calloc(2 * streams, sizeof *stage->handles),
    };
    if (!stage->copies || !stage->in_flight || !stage->handles) {
        release_memory(stage);
        return NULL;
    }
    for (unsigned i = slots; i-- > 0;)
        copy_put(stage, &stage->copies[i]);
    return stage;
}

int mem_copies_open(struct mem_stage *stage)
{
    const struct mem_calls *calls = &stage->calls;
    int error = 0;
    if (calls->enter(stage))
        return UCCL_EIO;
    for (unsigned i = 0; !error && i < 2 * stage->streams; i++)
        error = calls->stream_create(&stage->handles[i], calls->stream_flags);
    for (unsigned i = 0; !error && i < stage->slots; i++)
        error = calls->event_create(&stage->copies[i].event, calls->event_flags);
    calls->leave();
    return error ? mem_copies_failed(stage, "cannot make streams and events", error) : UCCL_OK;
}

void mem_copies_close(struct mem_stage *stage)
{
    const struct mem_calls *calls = &stage->calls;
    /* without streams there is nothing to destroy, and perhaps no context to enter */
    if (stage->handles[0] && calls->enter(stage) == UCCL_OK) {
        for (unsigned i = 0; i < stage->slots && stage->copies[i].event; i++)
            calls->event_destroy(stage->copies[i].event);
        for (unsigned i = 0; i < 2 * stage->streams && stage->handles[i]; i++)
            calls->stream_destroy(stage->handles[i]);
        calls->leave();
    }
    release_memory(stage);
}

/* ---- host memory ----------------------------------------------------------------------------- */

int mem_copies_pin(struct mem_stage *stage, void *memory, size_t length)
{
    const struct mem_calls *calls = &stage->calls;
    if (calls->enter(stage))
        return UCCL_EIO;
    int error = calls->pin(memory, length, calls->pin_flags);
    calls->leave();
    if (error == 0)
        return UCCL_OK;
    LOG_ERR("%s device %d: cannot pin %zu bytes of host memory: %s (%d)", calls->name, stage->device, length,
            calls->error_text(error), error);
    return UCCL_ENOMEM;
}

void mem_copies_unpin(struct mem_stage *stage, void *memory)
{
    if (stage->calls.enter(stage))
        return;
    stage->calls.unpin(memory);
    stage->calls.leave();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A slot for a copy; the streams of a direction take turns. NULL: all slots are in flight. */
static struct mem_copy *copy_take(struct mem_stage *stage, enum mem_direction direction)
{
    struct mem_copy *copy = stage->free;
    if (!copy)
        return NULL;
    stage->free = copy->next;
    copy->stream = direction * stage->streams + stage->turn[direction]++ % stage->streams;
    return copy;
}

static void copy_start(struct mem_stage *stage, struct mem_copy *copy, void *cookie)
{
    struct mem_copy_list *list = &stage->in_flight[copy->stream];
    copy->cookie = cookie;
    copy->next = NULL;
    *(list->tail ? &list->tail->next : &list->head) = copy;
    list->tail = copy;
}

int mem_copies_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address, void *host_address,
                    size_t length, void *cookie)
{
    const struct mem_calls *calls = &stage->calls;
    struct mem_copy *copy = copy_take(stage, direction);
    if (!copy)
        return UCCL_EAGAIN;
    void *stream = stage->handles[copy->stream];
    int error = calls->enter(stage);
    if (!error) {
        int failed = direction == MEM_FROM_DEVICE ? calls->from_device(host_address, device_address, length, stream)
                                                  : calls->to_device(device_address, host_address, length, stream);
        copy->unmarked = !failed && calls->event_record(copy->event, stream);
        calls->leave();
        if (failed)
            error = mem_copies_failed(stage, "cannot queue a copy", failed);
    }
    if (error)
        copy_put(stage, copy);
    else
        copy_start(stage, copy, cookie);
    return error;
}

/*
 * The copy of this stream to ask the runtime about. NULL: there is none, or we asked a moment ago. A question takes
 * most of a microsecond, and other threads wait for the runtime's locks meanwhile.
 */
static struct mem_copy *copy_to_ask(struct mem_copy_list *list)
{
    if (!list->head)
        return NULL;
    uint64_t now_ns = clock_now_ns();
    if (now_ns < list->ask_ns)
        return NULL;
    list->ask_ns = now_ns + ASK_NS;
    return list->head;
}

/*
 * Marks the end of a copy whose event could not be recorded when it was queued. Such a copy runs all the same, and its
 * memory is in use until we know that it has ended. If recording fails twice, the copy will not run either.
 */
static int copy_mark(struct mem_stage *stage, struct mem_copy *copy)
{
    const struct mem_calls *calls = &stage->calls;
    int error = calls->enter(stage);
    if (error)
        return error;
    error = calls->event_record(copy->event, stage->handles[copy->stream]);
    calls->leave();
    copy->unmarked = false;
    return error ? error : calls->not_ready;
}

/* The head of this list has ended. */
static void *copy_end(struct mem_stage *stage, struct mem_copy_list *list)
{
    struct mem_copy *copy = list->head;
    list->head = copy->next;
    if (!list->head)
        list->tail = NULL;
    list->ask_ns = 0; /* the next one may have ended as well */
    copy_put(stage, copy);
    return copy->cookie;
}

int mem_copies_poll(struct mem_stage *stage, void **cookie)
{
    for (unsigned i = 0; i < 2 * stage->streams; i++) {
        struct mem_copy_list *list = &stage->in_flight[i];
        struct mem_copy *copy = copy_to_ask(list);
        int error = stage->calls.not_ready;
        if (copy)
            error = copy->unmarked ? copy_mark(stage, copy) : stage->calls.event_query(copy->event);
        if (error == stage->calls.not_ready)
            continue;
        *cookie = copy_end(stage, list);
        return error ? mem_copies_failed(stage, "a copy failed", error) : 1;
    }
    return 0;
}
