/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between device memory of requests and the pinned host memory of an engine thread, and what becomes of a
 * request that they succeed or fail for. The staging pipeline (stage.c) and bounce slots (bounce.c) both issue them.
 *
 * Thread: the engine's owner; but copier_device(), copier_issue(), copier_poll() and copier_close(), which call the
 * GPU, by the engine thread itself.
 */
#ifndef UCCL_COPIER_H
#define UCCL_COPIER_H

#include "gpu/context.h"
#include "gpu/stage_pool.h"
#include "mem/mem.h"

/* A device that this thread copies to and from. */
struct stage_device {
    struct stage_device *next;
    const struct mem_ops *ops;
    int device;
    void *context;
    struct mem_stage *copies; /* NULL: not opened yet, or it could not be (`error`) */
    uint64_t tried_ns;        /* when it could not be */
    bool pinned;              /* it was the first of its kind: the pool is pinned through it */
    int error;
    uint32_t fetching;          /* blocks of sends that it copies to */
    uint32_t receives;          /* that have not ended */
    struct stage_held received; /* blocks of receives: they fill up, or it copies from them */
    uint32_t in_flight;         /* copies */
    bool moved;                 /* a copy has ended, or is the first one, since copier_watch() looked */
    uint64_t moved_ns;
    uint64_t still_ns; /* how long no copy has ended, though some are in flight; 0: not for long */
    struct stage_span *upload_head, *upload_tail; /* stage.c: spans whose copies are to be issued */
    struct spill *spill_head, *spill_tail;        /* and bytes that wait for a block */
    uint64_t spilled_bytes;
    bool told; /* the log says that bytes for it are dropped */
};

/* Of an engine thread. */
struct copier {
    const struct gpu_context *context;
    struct stage_pool pool;
    struct stage_device *devices;
    struct uccl_request *fetch_head, *fetch_tail; /* sends with blocks to fetch */
    uint32_t receives;                            /* staged receives that have not ended */
    uint32_t in_flight;                           /* copies */
};

/* The sends that blocks are fetched for, in turn. */
void copier_queue(struct copier *copier, struct uccl_request *request);
void copier_unqueue(struct copier *copier, struct uccl_request *request);

/* The request cannot go on: it ends once the core has let go of it. The first error counts. */
void copier_fail(struct copier *copier, struct uccl_request *request, int32_t error);
/* Nothing touches its memory any more, and the core has done with it: writes the outcome into the message. */
void copier_settle(struct copier *copier, struct uccl_request *request);
/* One span or spill less (staged.pending); the last one ends a request that the core has done with. */
void copier_done(struct copier *copier, struct uccl_request *request);

/* Notes the device that the request's memory is on. UCCL_ENOMEM. */
int copier_find(struct copier *copier, struct uccl_request *request);
/* That device, open; NULL: it could not be opened, and the request has failed. */
struct stage_device *copier_device(struct copier *copier, struct uccl_request *request);
/*
 * Issues a copy between `length` bytes at `host`, in the span, and those at `offset_bytes` of the request.
 * UCCL_EAGAIN: the device takes no more now; another error: the request has failed.
 */
int copier_issue(struct copier *copier, struct stage_span *span, enum mem_direction direction, uint64_t offset_bytes,
                 void *host, uint32_t length);
/*
 * The span of a copy that has ended, and how: `*result` is negative if it failed. NULL: no further one has. `*from`:
 * the devices not asked yet, at first `copier->devices`.
 */
struct stage_span *copier_poll(struct copier *copier, struct stage_device **from, int *result);

/* After the ends of copies were taken: notes which devices stand still. */
void copier_watch(struct copier *copier);

/* Closes the devices, unless copies are in flight. */
void copier_close(struct copier *copier);

#endif
