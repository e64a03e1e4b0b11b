/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in flight on the streams of one device: those of a stream end in their order. What CUDA and HIP share.
 *
 * Thread: the engine thread that the `mem_stage` belongs to.
 */
#ifndef UCCL_COPIES_H
#define UCCL_COPIES_H

#include "mem/mem.h"

/* A copy, and the event that tells its end. Its stream is chosen when it is taken. */
struct mem_copy {
    struct mem_copy *next;
    void *event; /* of the runtime; stays with the slot */
    void *cookie;
    unsigned stream;
};

struct mem_copies {
    unsigned slots, streams; /* streams in each direction */
    struct mem_copy *copies; /* `slots` of them */
    struct mem_copy *free;
    struct mem_copy_list {
        struct mem_copy *head, *tail;
        uint64_t ask_ns; /* not before: it was asked about a moment ago */
    } *in_flight;            /* per stream, 2 * streams: first those from the device */
    void **handles;          /* the runtime's streams, likewise */
    unsigned turn[2];
};

/* False: out of memory. Events and handles are NULL. */
bool mem_copies_make(struct mem_copies *copies, unsigned streams, unsigned slots);
void mem_copies_free(struct mem_copies *copies);
/* A slot for a copy, on a stream of this direction: they take turns. NULL: all are in flight. */
struct mem_copy *mem_copies_take(struct mem_copies *copies, enum mem_direction direction);
/* It is in flight, or it could not be queued. */
void mem_copies_start(struct mem_copies *copies, struct mem_copy *copy, void *cookie);
void mem_copies_put(struct mem_copies *copies, struct mem_copy *copy);
/*
 * The copy to ask the runtime about, of those on this stream; NULL: none, or not so soon again. Asking costs a good
 * part of a microsecond, and other threads wait for the runtime's locks meanwhile.
 */
const struct mem_copy *mem_copies_ask(struct mem_copies *copies, unsigned stream);
/* The head of this stream has ended. */
void *mem_copies_end(struct mem_copies *copies, unsigned stream);

#endif
