/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data QPs: an engine thread whose NIC places payload passes the core's actions on queue pairs to the NIC, and passes
 * their events, finished work and placed writes to the core.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_DATA_QPS_H
#define UCCL_DATA_QPS_H

#include "thread/state.h"

/* A write or a datagram came on a data QP. */
void data_qps_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns);
/* Passes on finished work, and data QPs that are drained or have failed. True: there was some. */
bool data_qps_finish(struct engine_thread *thread);
/* Opens, connects, drains and closes data QPs, as the core asks. True: there was some. */
bool data_qps_act(struct engine_thread *thread);

#endif
