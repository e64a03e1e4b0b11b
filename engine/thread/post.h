/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an engine thread is reached from outside: commands into its ring, with a wake-up if it sleeps; and how those are
 * reached who wait for what it does.
 *
 * Thread: any.
 */
#ifndef UCCL_POST_H
#define UCCL_POST_H

#include "thread/state.h"

/* Posts a command; false: the ring is full. */
bool thread_post(struct engine_thread *thread, enum thread_command command, void *object);

/* The same with what thread_command_for() has made earlier. */
bool thread_push(struct engine_thread *thread, void *object, uint64_t what);
/* A command about a request, in its present epoch. */
uint64_t thread_command_for(enum thread_command command, const struct uccl_request *request);

/* Requests of this thread have ended, or some were ended by another: wakes who waits. */
void thread_tell_waiters(struct engine_thread *thread);

#endif
