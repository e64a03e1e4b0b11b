/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine thread: what its files share. Each of them tells who may touch what: loop.h the owner's part, post.h and
 * lend.h the atomics.
 */
#ifndef UCCL_THREAD_STATE_H
#define UCCL_THREAD_STATE_H

#include "base/ring.h"
#include "core/core.h"
#include "gpu/context.h"
#include "gpu/flush.h"
#include "nic/nic.h"
#include "request/request.h"

#include <pthread.h>

enum thread_owner { THREAD_RUNS, THREAD_SLEEPS, OWNER_NONE, BORROWED, BORROWER_SLEEPS };

enum in_nic { NIC_EMPTY, NIC_SLEPT_IN, NIC_AWAITED }; /* AWAITED: and a borrower waits for it to leave */

/* A cancel has the request's generation in the upper half beside it. */
enum thread_command {
    COMMAND_SUBMIT,
    COMMAND_CANCEL,
    COMMAND_CALL,
    COMMAND_PART,         /* a part of a striped message, from its home thread */
    COMMAND_END_PART,     /* and its early end */
    COMMAND_PART_ARRIVED, /* to the home thread */
    COMMAND_FLUSH,
    COMMAND_CLOSE,        /* of a connection's end; the linger time in ms in the upper half beside it */
};
enum { COMMAND_MASK = 7 };

/* What the owner does on behalf of another thread, between rounds. */
struct thread_call {
    void (*run)(struct engine_thread *thread, void *argument);
    void *argument;
    _Atomic uint32_t done;
};

/* Connection and flow events go to whoever opened them. Called by the engine's owner. */
typedef void (*thread_event_fn)(void *context, const struct core_event *event);

struct engine_thread {
    struct core *core;
    struct nic_queue *queue;
    const struct params *params;
    struct counters *counters;
    uint32_t process;       /* that opened the engine (process.h); among what calls look at anyway */
    struct ring ring;
    struct stage *stage;
    thread_event_fn on_event;
    void *context;
    unsigned index;
    bool lend;
    bool places;            /* the NIC places payload */
    bool room_wakes;        /* a sleep in it ends when it takes more, after a refusal */
    int numa_node;
    int pin_claim;          /* keeps other processes from its core (pin.h) */
    pthread_t pthread;
    bool started;

    _Alignas(64) _Atomic uint32_t owner; /* enum thread_owner; a futex */
    _Atomic uint32_t lend_requests;      /* application threads that ask for the engine */
    _Atomic uint32_t borrows;            /* counts them, for the lease */
    _Atomic uint32_t reclaim;            /* the engine thread is to take the engine back at once */
    _Atomic uint32_t stop;
    _Atomic uint32_t in_nic;             /* enum in_nic: the engine thread is in the NIC's wait; a futex */
    _Atomic uint32_t parked;             /* it sleeps without a lease: give_back() wakes it */
    _Atomic uint32_t staged;             /* requests with staged memory that are posted and have not ended;
                                            counted before the command is pushed. While there are some,
                                            nobody may borrow the engine: it makes GPU calls */

    _Alignas(64) _Atomic uint32_t completions; /* a futex: changes when requests have ended or a waiter
                                                  should look again */
    _Atomic uint32_t waiters;                  /* threads that sleep on it */
    _Atomic uint32_t callers;                  /* threads in uccl_wait(), which uccl_close() lets go first */

    int event_fd;                        /* of the engine; written when armed */
    _Atomic uint32_t *event_armed;

    /* the owner's own */
    struct gpu_context gpu;              /* what staging and flushes have of it */
    struct flushes flushes;
    struct notice *notices;              /* to threads whose rings were full (stripe.c) */
    bool ended_some;                     /* requests ended since waiters were told */
    unsigned timers_put_off;             /* rounds in which receive was not drained */
};

/* For core_waited(): how long something waited for us that the NIC had at `at_ns` (0: not known). */
static inline uint64_t waited_ns(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns && at_ns < now_ns ? now_ns - at_ns : 0;
}

#endif
