/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run-to-completion loop, in which clock, NIC and core meet: the owner of an engine runs rounds of it.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_LOOP_H
#define UCCL_LOOP_H

#include "thread/state.h"

/* One round. True: there was something to do. */
bool loop_round(struct engine_thread *thread);

/*
 * Sends what the core has. True: another round is worthwhile at once. False also if the NIC takes no more and will
 * say when it does: the thread should sleep until then.
 */
bool loop_transmit(struct engine_thread *thread);

/* A request, or a part, is over for good (gpu_context.ended). */
void loop_request_ended(void *owner, struct uccl_request *request);

/* Sends the acks that are owed to peers now, before a flow is closed. */
void thread_send_acks(struct engine_thread *thread);

#endif
