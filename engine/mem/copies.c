/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/copies.h"

#include <stdlib.h>
#include <time.h>

enum { ASK_NS = 1000 }; /* between questions about a copy */

bool mem_copies_make(struct mem_copies *copies, unsigned streams, unsigned slots)
{
    *copies = (struct mem_copies){
        .slots = slots,
        .streams = streams,
        .copies = calloc(slots, sizeof *copies->copies),
        .in_flight = calloc(2 * streams, sizeof *copies->in_flight),
        .handles = calloc(2 * streams, sizeof *copies->handles),
    };
    if (!copies->copies || !copies->in_flight || !copies->handles) {
        mem_copies_free(copies);
        return false;
    }
    for (unsigned i = slots; i-- > 0;)
        mem_copies_put(copies, &copies->copies[i]);
    return true;
}

void mem_copies_free(struct mem_copies *copies)
{
    free(copies->copies);
    free(copies->in_flight);
    free(copies->handles);
    *copies = (struct mem_copies){0};
}

struct mem_copy *mem_copies_take(struct mem_copies *copies, enum mem_direction direction)
{
    struct mem_copy *copy = copies->free;
    if (!copy)
        return NULL;
    copies->free = copy->next;
    copy->stream = direction * copies->streams + copies->turn[direction]++ % copies->streams;
    return copy;
}

void mem_copies_start(struct mem_copies *copies, struct mem_copy *copy, void *cookie)
{
    struct mem_copy_list *list = &copies->in_flight[copy->stream];
    copy->cookie = cookie;
    copy->next = NULL;
    *(list->tail ? &list->tail->next : &list->head) = copy;
    list->tail = copy;
}

void mem_copies_put(struct mem_copies *copies, struct mem_copy *copy)
{
    copy->next = copies->free;
    copies->free = copy;
}

const struct mem_copy *mem_copies_ask(struct mem_copies *copies, unsigned stream)
{
    struct mem_copy_list *list = &copies->in_flight[stream];
    struct timespec now;
    if (!list->head)
        return NULL;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    if (now_ns < list->ask_ns)
        return NULL;
    list->ask_ns = now_ns + ASK_NS;
    return list->head;
}

void *mem_copies_end(struct mem_copies *copies, unsigned stream)
{
    struct mem_copy_list *list = &copies->in_flight[stream];
    struct mem_copy *copy = list->head;
    list->head = copy->next;
    if (!list->head)
        list->tail = NULL;
    list->ask_ns = 0; /* the next one may have ended as well */
    mem_copies_put(copies, copy);
    return copy->cookie;
}
