/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine thread does, beside datagrams, where its NIC places payload: the core's wishes about queue
 * pairs go to the NIC, and what the NIC says of them, of finished work and of placed writes goes to the core.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_DATA_QPS_H
#define UCCL_DATA_QPS_H

#include "thread/state.h"

/* Something came on the queue pair of a path. */
void data_qps_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns);
/* Work that has finished, queue pairs that are drained or have failed. True: there was some. */
bool data_qps_finish(struct engine_thread *thread);
/* Opens, connects, drains and closes what the core asks for. True: there was something. */
bool data_qps_act(struct engine_thread *thread);

#endif
