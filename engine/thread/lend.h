/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol by which an engine sleeps, is woken, and is lent to waiting application threads.
 *
 * One thread at a time owns the engine: its core, its NIC queue and the consuming end of its ring. `owner` says who:
 *
 *     THREAD_RUNS      the engine thread runs rounds
 *     THREAD_SLEEPS    the engine thread sleeps in the NIC; whoever posts wakes it there
 *     OWNER_NONE       nobody: an application thread has just left. The engine thread sleeps on a futex until its
 *                      lease ends; any application thread may take the engine
 *     BORROWED         an application thread runs rounds
 *     BORROWER_SLEEPS  that application thread sleeps in the NIC; whoever posts wakes it there
 *
 * An application thread takes the engine by compare-and-exchange from OWNER_NONE or THREAD_SLEEPS. From THREAD_RUNS
 * it asks (`lend_requests`). The engine thread takes the engine back from OWNER_NONE when nobody has borrowed it
 * during a lease. Leases grow while application threads borrow.
 *
 * One thread at a time sleeps in the NIC, since two sleepers would take each other's wake-ups. So a borrower that
 * takes the engine from THREAD_SLEEPS wakes the engine thread, and waits until it has left the NIC (`in_nic`) before
 * it sleeps there itself.
 *
 * Lost wake-ups: a poster pushes, then reads `owner`; a sleeper stores its SLEEPS state, then looks at the ring once
 * more. Both orders are sequentially consistent, so one of them sees the other. The next borrower sees what is posted
 * under OWNER_NONE, or the engine thread does at the end of its lease.
 */
#ifndef UCCL_LEND_H
#define UCCL_LEND_H

#include "base/clock.h"
#include "thread/state.h"

/* The engine thread runs rounds, sleeps and lends the engine, until it is to stop. */
void lend_serve(struct engine_thread *thread);

/* Runs `run(thread, argument)` as the owner and returns when it has run. Any thread but the owner. */
void thread_run(struct engine_thread *thread, void (*run)(struct engine_thread *, void *), void *argument);

/* Runs one bounded round on the caller's thread, if the engine can be borrowed at once. */
void thread_try_round(struct engine_thread *thread);

/* The same as thread_wait(), for a caller that knows the time. */
bool thread_wait_from(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value, uint64_t since_ns,
                      uint64_t deadline_ns);

/*
 * Waits until the owner has changed `*word` from `value` (release), or until `deadline_ns` (clock.h): false. The caller
 * may drive the engine meanwhile.
 */
static inline bool thread_wait(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                               uint64_t deadline_ns)
{
    return thread_wait_from(thread, word, value, clock_now_ns(), deadline_ns);
}

/* The engine thread takes the engine back at once: the caller will not drive it for a while. */
void thread_reclaim(struct engine_thread *thread);

#endif
