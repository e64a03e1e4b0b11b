/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine thread: the run-to-completion loop in which clock, NIC and core meet, and the protocol by
 * which it sleeps, is woken, and is lent to waiting application threads.
 *
 * At any moment one thread owns the engine (its core, its NIC queue and the consuming end of its ring),
 * told by `owner`:
 *
 *     THREAD_RUNS      the engine thread runs rounds
 *     THREAD_SLEEPS    it is blocked in the NIC's wait; whoever posts wakes it there
 *     FREE             nobody: an application thread has just left. The engine thread sleeps on a futex
 *                      until its lease ends; any application thread may take the engine
 *     BORROWED         an application thread runs rounds
 *     BORROWER_SLEEPS  it is blocked in the NIC's wait; whoever posts wakes it there
 *
 * Application threads take the engine by compare-and-exchange from FREE or THREAD_SLEEPS, and from
 * THREAD_RUNS by asking (`wanted`). The engine thread takes it back from FREE when no application
 * thread has borrowed it during a lease; leases grow while they do.
 *
 * In the NIC's wait is one thread at a time. Who takes the engine from THREAD_SLEEPS wakes the engine
 * thread there, and does not sleep there itself before that has left (`in_nic`): two sleepers would
 * take each other's wake-ups.
 *
 * Lost wake-ups: a poster pushes, then reads `owner`; a sleeper stores its SLEEPS state, then looks at
 * the ring once more. Both orders are sequentially consistent, so one of them sees the other. What is
 * posted while FREE is seen by the next borrower or at the end of the lease.
 */
#ifndef UCCL_THREAD_H
#define UCCL_THREAD_H

#include "base/clock.h"
#include "core/core.h"
#include "gpu/flush.h"
#include "gpu/stage.h"
#include "nic/nic.h"
#include "request/request.h"
#include "base/ring.h"

#include <pthread.h>

enum thread_owner { THREAD_RUNS, THREAD_SLEEPS, FREE, BORROWED, BORROWER_SLEEPS };

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
    const struct nic_ops *nic;
    const struct params *params;
    struct counters *counters;
    uint32_t process;       /* that opened the engine (process.h); among what calls look at anyway */
    struct ring ring;
    struct stage *stage;
    thread_event_fn on_event;
    void *context;
    unsigned index;
    bool lend;
    bool places;            /* the NIC places payload (paths.h) */
    bool room_wakes;        /* a sleep in it ends when it takes more, after a refusal */
    int numa_node;
    int pin_claim;          /* keeps other processes from its core (pin.h) */
    pthread_t pthread;
    bool started;

    _Alignas(64) _Atomic uint32_t owner; /* enum thread_owner; a futex */
    _Atomic uint32_t wanted;             /* application threads that ask for the engine */
    _Atomic uint32_t borrows;            /* counts them, for the lease */
    _Atomic uint32_t reclaimed;             /* the engine thread is to take the engine back at once */
    _Atomic uint32_t stop;
    _Atomic uint32_t in_nic;             /* enum in_nic: the engine thread is in the NIC's wait; a futex */
    _Atomic uint32_t resting;            /* it sleeps without a lease: give_back() wakes it */
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
    struct flushes flushes;
    struct notice *notices;              /* to threads whose rings were full (stripe.c) */
    bool ended_some;                     /* requests ended since waiters were told */
    unsigned timers_put_off;             /* rounds in which receive was not drained */
};

struct thread_setup {
    const struct params *params;
    uint32_t process;
    const struct nic_ops *nic;
    struct nic *device;
    unsigned index;
    bool lend;
    int numa_node;         /* of the NIC; -1: unknown */
    uint64_t link_mbps;    /* this thread's share of the NIC's rate */
    uint64_t seed;
    int event_fd;
    _Atomic uint32_t *event_armed;
    thread_event_fn on_event;
    void *context;
};

/* `thread` is zeroed memory. Starts the thread. On failure nothing is left to undo. */
int thread_start(struct engine_thread *thread, const struct thread_setup *setup);
/* Stops and joins; nobody may use the engine any more, but other threads that are being stopped. */
void thread_stop(struct engine_thread *thread);
/* All threads of the engine have been stopped. */
void thread_free(struct engine_thread *thread);

/* Posts a command; false: the ring is full. Any thread. */
bool thread_post(struct engine_thread *thread, enum thread_command command, void *object);

/* The same with what thread_command_for() has made earlier. */
bool thread_push(struct engine_thread *thread, void *object, uint64_t what);
/* A command about a request, in that life of it which it has now. */
uint64_t thread_command_for(enum thread_command command, const struct uccl_request *request);

/* A request, or a part, is over for good. The owner. */
void thread_request_ended(struct engine_thread *thread, struct uccl_request *request);

/* Requests of this thread have ended, or some were ended by another: wakes who waits. Any thread. */
void thread_tell_waiters(struct engine_thread *thread);

/* Runs `run(thread, argument)` as the owner and returns when it has run. Any thread but the owner. */
void thread_run(struct engine_thread *thread, void (*run)(struct engine_thread *, void *), void *argument);

/* The owner only: sends what is owed to peers now, before a flow is closed. */
void thread_flush(struct engine_thread *thread);

/* One bounded round on the caller's thread, if the engine is to be had at once. */
void thread_try_round(struct engine_thread *thread);

/* Waits until `*word` is no longer `value` (changed by the owner, release) or `deadline_ns` has come. May
 * drive the engine. False: the deadline came. */
bool thread_wait(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                 uint64_t deadline_ns);

/* The caller will not drive the engine for a while: its thread is to run. */
void thread_reclaim(struct engine_thread *thread);

/* For core_waited(): how long something waited for us that the NIC had at `at_ns` (0: not known). */
static inline uint64_t waited_ns(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns && at_ns < now_ns ? now_ns - at_ns : 0;
}

#endif
