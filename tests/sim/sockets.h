/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of simulated processes: TCP between them, which loses nothing but may cut, delay, refuse,
 * reset and fall silent, and event descriptors. What the handshake of connections needs.
 */
#ifndef SIM_SOCKETS_H
#define SIM_SOCKETS_H

#include "machine.h"

struct sockets_options {
    uint64_t delay_ns;   /* one way */
    uint32_t silent_ppm; /* a connection that never gets an answer */
};

/* From this IPv4 address on (host order) nobody ever answers, no router either. */
static const uint32_t SOCKETS_SILENT = 0xc6120000; /* 198.18.0.0 */

/* `find` gives the living process of an IPv4 address (host order), or NULL. */
void sockets_begin(const struct sockets_options *options, struct process *(*find)(uint32_t address),
                   uint32_t (*address_of)(const struct process *process));
void sockets_end(void);
/* A process is gone: its peers are told. */
void sockets_kill(struct process *process);
/* Descriptors that it has open. */
unsigned sockets_open(const struct process *process);

#endif
