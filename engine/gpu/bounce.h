/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounce slots: a direct send (core_msg.placeable, block_bytes 0) is read by the NIC itself, but some of its chunks
 * go as datagrams all the same: retransmissions, and those that find no data QP. The engine thread fetches each such
 * chunk to a slot, the NIC sends it from there, and the slot is free again.
 *
 * Invariant: no byte of a message is in two slots, since a slot is looked up by the first byte that is sent.
 *
 * Thread: the engine's owner; bounce_issue() by the engine thread itself.
 */
#ifndef UCCL_BOUNCE_H
#define UCCL_BOUNCE_H

#include "gpu/copier.h"

enum {
    BOUNCE_BYTES = 64 * 1024, /* a chunk, and the smallest block */
    BOUNCE_SLOTS_MAX = 8,
};

/* Of an engine thread. */
struct bounce {
    struct copier *copier;
    struct stage_span slots[BOUNCE_SLOTS_MAX]; /* `request` NULL: free; all in one block of the pool */
    unsigned count;
};

/* Makes slots out of `bytes` bytes of pinned memory. */
void bounce_init(struct bounce *bounce, struct copier *copier, uint8_t *memory, uint32_t bytes);

/*
 * A chunk of a direct send is about to go as datagrams. True: it is there for bounce_at(), until the next
 * bounce_sent(). False: not yet; try again.
 */
bool bounce_ready(struct bounce *bounce, struct uccl_request *request, uint64_t offset_bytes, uint32_t length);
/* Where it is: it is being sent from there. */
const void *bounce_at(struct bounce *bounce, const struct uccl_request *request, uint64_t offset_bytes);
/* The NIC refers no longer to what was sent. */
void bounce_sent(struct bounce *bounce);
/* The core has done with a request. */
void bounce_forget(struct bounce *bounce, const struct uccl_request *request);

/* Some slot waits for its copy to be issued. */
bool bounce_busy(const struct bounce *bounce);
/* Issues the copies that slots wait for. True: there was some. */
bool bounce_issue(struct bounce *bounce);
/* The copy to a slot has ended; `result` is negative if it failed. */
void bounce_fetched(struct bounce *bounce, struct stage_span *slot, int result);

#endif
