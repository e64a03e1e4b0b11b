/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine thread does, beside datagrams, where its NIC places payload: the core's wishes about queue
 * pairs go to the NIC, and what the NIC says of them, of finished work and of placed writes goes to the core.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_PATHS_H
#define UCCL_PATHS_H

#include "thread/thread.h"

/* Something came on the queue pair of a path. */
void paths_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns);
/* Work that has finished, queue pairs that are fenced or have failed. True: there was some. */
bool paths_finish(struct engine_thread *thread);
/* Opens, connects, fences and closes what the core asks for. True: there was something. */
bool paths_act(struct engine_thread *thread);

#endif
