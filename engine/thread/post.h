/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands to an engine thread, which wake it if it sleeps, and wake-ups for the threads that wait for its requests.
 *
 * Thread: any.
 */
#ifndef UCCL_POST_H
#define UCCL_POST_H

#include "thread/state.h"

/* Posts a command; false: the ring is full. */
bool thread_post(struct engine_thread *thread, enum thread_command command, void *object);

/* The same; `what` comes from thread_command_for(). */
bool thread_push(struct engine_thread *thread, void *object, uint64_t what);
/* A command about a request in its present epoch. */
uint64_t thread_command_for(enum thread_command command, const struct uccl_request *request);

/* Whether a command would have to wake the thread; that may change at any time. */
bool thread_sleeps(const struct engine_thread *thread);

/* Wakes the threads that wait for requests of this thread: some have ended. */
void thread_tell_waiters(struct engine_thread *thread);

#endif
