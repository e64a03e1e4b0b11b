/* SPDX-License-Identifier: Apache-2.0 */
/* p2p_bench --local: the server as a process of its own on this machine. Failures end the program. */
#ifndef P2P_LOCAL_H
#define P2P_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

/* Starts it on `port` (0: a free one), before any engine is open here; returns the port it got. */
uint16_t local_start(uint16_t port, bool log_info);
/* Where it is reached: 127.0.0.1, or ::1 where there is only IPv6. */
const char *local_host(void);
/* Waits for it to end by itself, as it does after the client's goodbye; returns an exit status. */
int local_end(void);

#endif
