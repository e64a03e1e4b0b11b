/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies on the streams of one device, for CUDA and HIP. Copies of a stream end in their order, and an event tells
 * the end of each. The two runtimes differ in the names of their functions, which are in a table, and in how they
 * make a device current: enter() and leave().
 *
 * Thread: the engine thread that the `mem_stage` belongs to.
 */
#ifndef UCCL_COPIES_H
#define UCCL_COPIES_H

#include "mem/mem.h"

/* A runtime, once its library is loaded. Its functions return 0 or an error of their own. */
struct mem_calls {
    const char *name; /* "CUDA" */
    int not_ready;    /* event_query() returns it for a copy in flight */
    unsigned pin_flags, stream_flags, event_flags;
    const char *(*error_text)(int error);
    int (*enter)(struct mem_stage *stage); /* makes the device current in this thread; UCCL_OK, UCCL_EIO (logged) */
    void (*leave)(void);                   /* restores the device that was current before */
    int (*pin)(void *memory, size_t length, unsigned flags);
    int (*unpin)(void *memory);
    int (*from_device)(void *to, uintptr_t from, size_t length, void *stream);
    int (*to_device)(uintptr_t to, const void *from, size_t length, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
};

/* A copy, and the event that tells its end. Its stream is chosen when it is taken. */
struct mem_copy {
    struct mem_copy *next;
    void *event; /* stays with the slot */
    void *cookie;
    unsigned stream;
    bool unmarked; /* its event is still to be recorded */
};

struct mem_stage {
    struct mem_calls calls;
    int device;
    void *context;           /* of the runtime, if it has contexts */
    bool retained;           /* the runtime keeps it for us */
    bool failed;             /* its first failure has been logged */
    unsigned slots, streams; /* streams in each direction */
    struct mem_copy *copies; /* `slots` of them */
    struct mem_copy *free;
    struct mem_copy_list {
        struct mem_copy *head, *tail;
        uint64_t ask_ns; /* when to ask again, at the earliest */
    } * in_flight;       /* per stream, 2 * streams: first those from the device */
    void **handles;      /* the runtime's streams, likewise */
    unsigned turn[2];
};

/* A stage without streams, which mem_copies_open() makes; NULL: out of memory. */
struct mem_stage *mem_copies_make(const struct mem_calls *calls, int device, unsigned streams, unsigned slots);
/* 0, UCCL_EIO (logged). */
int mem_copies_open(struct mem_stage *stage);
/* Logs the first failure of a device. */
int mem_copies_failed(struct mem_stage *stage, const char *what, int error);

/* As in mem.h; close() also takes a stage that was not opened. */
void mem_copies_close(struct mem_stage *stage);
int mem_copies_pin(struct mem_stage *stage, void *memory, size_t length);
void mem_copies_unpin(struct mem_stage *stage, void *memory);
int mem_copies_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address, void *host_address,
                    size_t length, void *cookie);
int mem_copies_poll(struct mem_stage *stage, void **cookie);

#endif
