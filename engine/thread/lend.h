/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol by which an engine sleeps, is woken, and is lent to waiting application threads.
 *
 * At any moment one thread owns the engine (its core, its NIC queue and the consuming end of its ring),
 * told by `owner`:
 *
 *     THREAD_RUNS      the engine thread runs rounds
 *     THREAD_SLEEPS    it is blocked in the NIC's wait; whoever posts wakes it there
 *     OWNER_NONE       nobody: an application thread has just left. The engine thread sleeps on a futex
 *                      until its lease ends; any application thread may take the engine
 *     BORROWED         an application thread runs rounds
 *     BORROWER_SLEEPS  it is blocked in the NIC's wait; whoever posts wakes it there
 *
 * Application threads take the engine by compare-and-exchange from OWNER_NONE or THREAD_SLEEPS, and from
 * THREAD_RUNS by asking (`lend_requests`). The engine thread takes it back from OWNER_NONE when no application
 * thread has borrowed it during a lease; leases grow while they do.
 *
 * In the NIC's wait is one thread at a time. Who takes the engine from THREAD_SLEEPS wakes the engine
 * thread there, and does not sleep there itself before that has left (`in_nic`): two sleepers would
 * take each other's wake-ups.
 *
 * Lost wake-ups: a poster pushes, then reads `owner`; a sleeper stores its SLEEPS state, then looks at
 * the ring once more. Both orders are sequentially consistent, so one of them sees the other. What is
 * posted while OWNER_NONE is seen by the next borrower or at the end of the lease.
 */
#ifndef UCCL_LEND_H
#define UCCL_LEND_H

#include "base/clock.h"
#include "thread/state.h"

/* The engine thread: runs rounds, sleeps and lends the engine until it is to stop. */
void lend_serve(struct engine_thread *thread);

/* Runs `run(thread, argument)` as the owner and returns when it has run. Any thread but the owner. */
void thread_run(struct engine_thread *thread, void (*run)(struct engine_thread *, void *), void *argument);

/* One bounded round on the caller's thread, if the engine is to be had at once. */
void thread_try_round(struct engine_thread *thread);

/* Waits until `*word` is no longer `value` (changed by the owner, release) or `deadline_ns` (clock.h) has come. May
 * drive the engine. False: the deadline came. */
bool thread_wait(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                 uint64_t deadline_ns);

/* The caller will not drive the engine for a while: its thread is to run. */
void thread_reclaim(struct engine_thread *thread);

#endif
