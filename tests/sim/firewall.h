/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stateful firewalls in front of simulated ends: a datagram reaches a guarded end only over a pair of ports that
 * something has left there by, or come by, within FIREWALL_NS. Path p of an end leaves from a port of its own for the
 * one port that the other end reads, its port 0.
 */
#ifndef SIM_FIREWALL_H
#define SIM_FIREWALL_H

#include <stdbool.h>
#include <stdint.h>

#define FIREWALL_NS UINT64_C(30000000000) /* as Linux does: nf_conntrack_udp_timeout */

void firewalls_forget(void);
/*
 * A datagram leaves `from` for `to`: over a path, or, if it `opens`, from port 0 for the port `path`. False: it is
 * refused there, where something is `guarded`.
 */
bool firewall_passes(uint32_t from, uint32_t to, uint16_t path, bool opens, bool guarded, uint64_t now_ns);

#endif
