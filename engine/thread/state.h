/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine thread: what its files share. Each of them tells who may touch what: loop.h the owner's part, post.h and
 * lend.h the atomics.
 */
#ifndef UCCL_THREAD_STATE_H
#define UCCL_THREAD_STATE_H

#include "base/clock.h"
#include "base/ring.h"
#include "core/core.h"
#include "gpu/context.h"
#include "gpu/flush.h"
#include "nic/nic.h"
#include "request/request.h"
#include "thread/spin.h"

#include <pthread.h>

enum thread_owner { THREAD_RUNS, THREAD_SLEEPS, OWNER_NONE, BORROWED, BORROWER_SLEEPS };

enum in_nic { NIC_EMPTY, NIC_SLEPT_IN, NIC_AWAITED }; /* AWAITED: slept in, and a borrower waits for its end */

/* The upper half beside a command about a request has the request's generation. */
enum thread_command {
    COMMAND_SUBMIT,
    COMMAND_CANCEL,
    COMMAND_CALL,
    COMMAND_PART,     /* a part of a striped message, from its home thread */
    COMMAND_END_PART, /* ends that part early */
    COMMAND_LOOK,     /* to the home thread: a receive is whole */
    COMMAND_FLUSH,
    COMMAND_CLOSE,   /* closes an end of a connection; the upper half has the linger time in ms */
    COMMAND_OP,      /* a one-sided operation */
    COMMAND_NOTES,   /* notifications of a connection were taken */
    COMMAND_SERVICE, /* to the home thread: a message of the engine's own has ended, and so have its parts */
    COMMAND_FAIL,    /* to the home thread: another end of a connection has failed; the upper half has the status */
};
enum { COMMAND_MASK = 15 };

/* A call that the owner makes for another thread, between rounds. */
struct thread_call {
    void (*run)(struct engine_thread *thread, void *argument);
    void *argument;
    _Atomic uint32_t done;
};

/* Takes events of connections and flows. Called by the engine's owner. */
typedef void (*thread_event_fn)(void *context, const struct core_event *event);

struct engine_thread {
    struct core *core;
    struct nic_queue *queue;
    const struct params *params;
    struct counters *counters;
    uint32_t process; /* the process that opened the engine (process.h); calls read this cache line anyway */
    struct ring ring;
    struct stage *stage;
    thread_event_fn on_event;
    void *context;
    unsigned index;
    bool lend;
    bool places;     /* the NIC places payload */
    bool room_wakes; /* after a refused send, a sleep in the NIC ends when it takes more */
    int numa_node;
    int pin_claim; /* keeps other processes from its core (pin.h) */
    pthread_t pthread;
    bool started;

    _Alignas(64) _Atomic uint32_t owner; /* enum thread_owner; a futex */
    _Atomic uint32_t lend_requests;      /* application threads that ask for the engine */
    _Atomic uint32_t borrows;            /* counts how often the engine was borrowed, for the lease */
    _Atomic uint32_t reclaim;            /* the engine thread is to take the engine back at once */
    _Atomic uint32_t stop;
    _Atomic uint32_t in_nic; /* enum in_nic: the engine thread is in the NIC's wait; a futex */
    _Atomic uint32_t parked; /* the engine thread sleeps without a lease: give_back() wakes it */
    _Atomic uint32_t staged; /* posted requests with staged memory that have not ended, counted before their
                                command is pushed. Until it is 0 nobody may borrow the engine, which makes
                                GPU calls */

    _Alignas(64) _Atomic uint32_t completions; /* a futex: changes when waiters should look again */
    _Atomic uint32_t waiters;                  /* threads that sleep on it */
    _Atomic uint32_t callers;                  /* threads in uccl_wait(): uccl_close() waits until they have left */
    _Atomic uint32_t dismisses;                /* they are to leave, though their requests are pending */

    int event_fd; /* of the engine; written to when armed */
    _Atomic uint32_t *event_armed;

    /* only the owner touches what follows */
    struct gpu_context gpu; /* what gpu/ knows of this thread */
    struct flushes flushes;
    struct notice *notices; /* to threads whose rings were full (stripe.c) */
    struct onesided *ones;  /* one-sided operations of the connections whose home it is */
    struct onesided *ones_due;
    struct one_request *ones_free;
    bool ended_some;         /* requests have ended since waiters were told */
    unsigned rx_burst;       /* buffers received since the NIC had none */
    bool rx_lone;            /* the burst before was of one */
    unsigned timers_put_off; /* rounds since the NIC was last drained */
    struct spin spin;
    unsigned polls_alone; /* polls without work to come before the owner yields its core again (lend.c) */
    uint64_t now_ns;      /* the time of a moment ago; 0: look at the clock (thread_now_ns()) */
};

/*
 * The time for what the owner does now. A look at the clock costs as much as a tenth of a round, so it serves until
 * something has taken long, which sets `now_ns` to 0: a system call, or many bytes.
 */
static inline uint64_t thread_now_ns(struct engine_thread *thread)
{
    if (thread->now_ns == 0)
        thread->now_ns = clock_now_ns();
    return thread->now_ns;
}

/* For core_waited(): how long ago the NIC had something, since `at_ns`; 0: unknown. */
static inline uint64_t waited_ns(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns && at_ns < now_ns ? now_ns - at_ns : 0;
}

#endif
