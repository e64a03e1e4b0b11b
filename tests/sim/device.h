/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a simulated GPU, as a kind of memory (mem/mem.h). Its payload is that of payload.c, which lets copies touch
 * it and nobody else. Copies take virtual time, in order on their stream, and move their bytes when they end.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "mem/mem.h"

struct device_options {
    uint32_t latency_ns; /* of a copy, at most */
    uint32_t mbps;
};

extern struct device_options device_options;
extern const struct mem_ops sim_device_ops;

#endif
