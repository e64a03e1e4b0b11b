/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and the pool that they come from. The pool is a lock-free stack (Treiber 1986) of indices with a tag
 * against ABA. It lies over slabs, which are allocated when first needed and kept as long as the pool. Once warm, it
 * takes no lock and allocates nothing, and the request freed last, whose memory is in the cache, is used next.
 *
 * A collected request is soon used again: its next epoch begins. An application that tests the old handle would find
 * another's request, or free one twice. So a handle is the request's address with the low bits of its generation,
 * which counts epochs. That finds most such mistakes.
 */
#ifndef UCCL_REQUEST_H
#define UCCL_REQUEST_H

#include "core/core.h"

#include <pthread.h>
#include <stdatomic.h>

struct engine_thread;
struct mem_identity;
struct op;
struct payload_pieces;
struct nic_mr;
struct stage_device;
struct stage_span;
struct stripe_set;

/* The low bits of a request's address are zero. In the application's handle they tell the epoch. */
enum { REQUEST_ALIGNMENT = 64 };

/* A command to another engine thread, which may have to wait for room in that thread's ring. */
struct notice {
    struct notice *next;
    struct engine_thread *to;
    void *object;
    uint64_t what;
    bool waiting;              /* it is in the list of the thread that sends it */
    struct uccl_request *then; /* once it is sent, a part of this request is finished */
};

/* What a request has of the staging pipeline, which alone writes it (gpu/stage.h). */
struct staged {
    const struct mem_identity *memory; /* of its buffer; NULL: not staged, and the rest has no meaning */
    struct stage_device *device;       /* NULL: not looked up yet */
    uint32_t flow;                     /* the slot of the flow that carries it */
    struct stage_span *spans;          /* send: in order; receive: spans that fill up */
    struct uccl_request *next, *prev;  /* in the list of sends with blocks to fetch, or of flushes */
    uint64_t fetched_bytes;            /* send: copies are issued up to here */
    uint32_t range_bytes;              /* receive: its blocks end at multiples of this too; 0: at those of their own */
    uint32_t span_count;               /* in `spans` */
    uint32_t pending;                  /* spans and spills that copies are issued for, or will be */
    int32_t error;                     /* why the request cannot go on */
    bool queued;                       /* on that list of sends */
    bool over;                         /* the core has finished with the request */
};

enum request_state { REQUEST_FREE, REQUEST_PENDING, REQUEST_ENDED };

struct uccl_request {
    _Alignas(REQUEST_ALIGNMENT) struct core_msg msg; /* first: request_of() */
    uint8_t *buffer;
    struct staged staged;                   /* if the CPU cannot touch the buffer */
    _Atomic uint32_t *mr_users;             /* requests of the registration that it uses, itself counted; or NULL */
    const struct nic_mr *nic_mr;            /* for NICs that reach the buffer themselves, by their indices */
    _Atomic(struct engine_thread *) thread; /* that it was posted to; atomic, like `flushes` and `closes`, since a late
                                     cancel may read them while the next epoch begins */
    const struct payload_pieces *pieces;    /* its memory, if that is in several places (onesided.h); NULL: `buffer` */
    bool exported;                          /* a receive into exported memory: no other byte may ever stand there */
    struct op *op;                          /* a one-sided operation; NULL: none, or it has ended */
    /* called instead of completing it: the engine's own message; NULL: the application's */
    void (*service)(struct engine_thread *thread, struct uccl_request *request);
    struct stripe_set *stripes;  /* the flows that may share it (stripe.h); NULL: it is a part */
    _Atomic bool flushes;        /* it is no message but a GPU flush (flush.h) */
    _Atomic bool closes;         /* or a close of the connection that `stripes` belongs to */
    struct uccl_request *parent; /* of a part */
    struct uccl_request *parts;  /* of a striped message: list by next_part; its home thread's */
    struct uccl_request *next_part;
    uint8_t class; /* enum stripe_class: which connections carry it and its parts */
    uint8_t part;  /* which part of its message it is: 1 and up */
    bool carries;  /* a striped receive or part: bytes have come over its flow */
    bool let_go;   /* a send whose parts end with it: stripe_end_early(); its home thread's */
    /* A striped message as a whole; its flows' threads share these (stripe.c). */
    _Atomic uint64_t spread_bytes;  /* send: those before are given to flows; receive: so many have arrived */
    _Atomic uint64_t total_bytes;   /* receive: length of the message, once bytes have arrived */
    _Atomic uint32_t flows;         /* send: that carry it for now; receive: that bytes came over */
    uint8_t parts_made;             /* send */
    uint64_t range_bytes;           /* send: length of each range; 0: as it fits */
    _Atomic uint32_t unfinished;    /* itself and its parts */
    _Atomic int32_t part_status;    /* first error of a part */
    _Atomic bool home_over;         /* its thread has ended all but the parts: another may complete it at any time */
    struct notice to_home, to_part; /* of a part; to_home also of a message with `service`, once its parts are over */
    struct request_pool *pool;
    _Atomic uint32_t state;      /* enum request_state. The engine's owner stores ENDED with release; test and wait
                                    load it with acquire. PENDING is stored with release too: a thread that sees it
                                    sees the generation of that epoch or of a later one */
    _Atomic uint32_t next;       /* index + 1 of the next free one */
    _Atomic uint32_t generation; /* counts epochs, so that a late cancel or a stale handle is recognized */
    uint32_t index;
};

enum { SLAB_REQUESTS = 256 };

/* The pairs of NICs over which a connection's payload may be placed (core/core.h): which NIC of ours each has. */
struct request_pairs {
    uint8_t count;
    uint8_t nics[CORE_PAIRS_MAX];
};

struct request_pool {
    _Atomic uint64_t top; /* tag in the high half, index + 1 in the low half; 0: empty */
    struct uccl_request **slabs;
    _Atomic uint32_t slab_count;
    uint32_t slab_max;
    uint32_t request_max;
    pthread_mutex_t grow; /* taken only to add a slab */
};

static inline struct uccl_request *request_of(const struct core_msg *msg)
{
    return (struct uccl_request *)(uintptr_t)msg;
}

/* The application's handle of a request that has been taken. */
static inline struct uccl_request *request_handle(struct uccl_request *request)
{
    uint32_t epoch = atomic_load_explicit(&request->generation, memory_order_relaxed) % REQUEST_ALIGNMENT;
    return (struct uccl_request *)((uintptr_t)request + epoch);
}

/*
 * The request of a handle, and the generation of its epoch. NULL: the handle is nobody's, or its request was collected.
 * A handle that is many epochs old may be taken for a new one. Another thread may collect the request at any time, so a
 * command for this epoch alone must carry the generation.
 */
static inline struct uccl_request *request_find_epoch(struct uccl_request *handle, uint32_t *generation)
{
    uint32_t epoch = (uintptr_t)handle % REQUEST_ALIGNMENT;
    struct uccl_request *request = (struct uccl_request *)((uintptr_t)handle - epoch);
    if (!request)
        return NULL;
    *generation = atomic_load_explicit(&request->generation, memory_order_relaxed);
    if (*generation % REQUEST_ALIGNMENT != epoch ||
        atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_FREE)
        return NULL;
    return request;
}

static inline struct uccl_request *request_find(struct uccl_request *handle)
{
    uint32_t generation;
    return request_find_epoch(handle, &generation);
}

int request_pool_init(struct request_pool *pool, uint64_t max_requests);
void request_pool_free(struct request_pool *pool);
/* NULL: the limit is reached, or memory is short. Any thread. */
struct uccl_request *request_take(struct request_pool *pool);
void request_put(struct uccl_request *request);

#endif
