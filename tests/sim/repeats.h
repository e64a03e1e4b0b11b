/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks and datagrams a node has sent before: its engine's counters are compared with this. */
#ifndef SIM_REPEATS_H
#define SIM_REPEATS_H

#include "core/core.h"

struct repeats {
    uint64_t *keys; /* hashes of what was sent, 0: free; a power of two of them */
    size_t room, used;
    uint64_t count;           /* datagrams that were sent before */
    uint64_t chunks, written; /* sent at all; and of these those that the NIC wrote */
};

/* A descriptor that was sent. One without number is none of these, but for a fragment of a datagram with one. */
void repeats_note(struct repeats *repeats, const struct tx_desc *desc);
/* A datagram by itself, of those that are sent as such. */
void repeats_note_datagram(struct repeats *repeats, uint64_t token, uint64_t seq, unsigned index);
void repeats_forget(struct repeats *repeats);

#endif
