/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the receive buffer is shared among the flows of a core. The flows heard in this period or the last have equal
 * shares. All shares halve after a period in which the kernel dropped something, and double after one without.
 */
#ifndef UCCL_SHARE_H
#define UCCL_SHARE_H

#include <stdint.h>

struct core;
struct flow;

/* One per core. */
struct share {
    uint64_t begun_ns;            /* begin of the current period */
    uint32_t period;              /* its number */
    uint32_t heard, heard_before; /* flows heard in this period, and in the last one */
    uint32_t divisor;             /* of every share */
    uint64_t drops_seen;          /* the kernel's drops before this period */
};

void share_init(struct core *core, uint64_t now_ns);
/* A packet of this flow has come. */
void share_note(struct flow *flow);
/* What this flow may have in flight to us, in kernel bytes, so that all flows together fit into the receive buffer. */
uint64_t share_of(const struct flow *flow);

#endif
