/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a tool may touch. The kernel grants more than there is, and kills a process that touches it, without
 * a word: so the tools look before.
 */
#ifndef UCCL_MEMORY_LEFT_H
#define UCCL_MEMORY_LEFT_H

#include <stdint.h>

/*
 * Bytes that the machine can give without killing a process, and the limits of its control groups as well; UINT64_MAX:
 * nobody says. `whose` names which of both has the least: "the machine", or "the control group".
 */
uint64_t memory_left(const char **whose);

#endif
