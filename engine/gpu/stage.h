/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pipeline of an engine thread: payload in memory that neither the CPU nor the NIC can touch travels
 * through pinned host memory (stage_pool.h).
 *
 *   send     When the core asks for a message (core/staged.c), the thread fetches its blocks from the device one by
 *            one, messages in turn. It sends a block while the next one is on its way. A block is free when no chunk
 *            needs it.
 *   receive  The thread collects payload in the block that it belongs to. One copy takes the block up to the device
 *            when it is full or the message has ended.
 *   direct   A send that the NIC reads by itself uses bounce slots for chunks that go as datagrams (bounce.h).
 *   end      A request ends when the core has finished with it and no copy touches its memory.
 *
 * Bounded: where blocks for received data are short, the thread leaves datagrams in the socket (stage_rx_room())
 * until copies have ended, and blocks that are not full go up as they are. Payload that finds no block even so, from
 * one datagram or the eager ring, is kept on the heap (a spill). The thread receives nothing more until that is gone.
 * For a device that stands still it does not wait: the others' messages go on, and what comes for this one is kept on
 * the heap. Beyond a bound the thread waits for it once more, and in the end its receives fail.
 *
 * Threads: the engine's owner. But stage_progress(), which makes all GPU calls, and stage_close() are for the engine
 * thread itself, never for a borrower. A borrower gives the engine back while messages are staged (`staged` in
 * thread/state.h).
 */
#ifndef UCCL_STAGE_H
#define UCCL_STAGE_H

#include "gpu/context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_release;
struct stage;

/* NULL: out of memory. Allocates no blocks before they are needed; `context` stays. */
struct stage *stage_open(const struct gpu_context *context);
/*
 * Waits for copies in flight, a second at most. If some do not end, streams and memory are left to the device for good.
 * The engine thread, as its last act.
 */
void stage_close(struct stage *stage);
void stage_free(struct stage *stage);

/* A request with staged memory is about to be submitted to the core; `flow`: the slot of its flow. */
void stage_begin(struct stage *stage, struct uccl_request *request, uint32_t flow);
/* The core has it: fails it if it cannot go on. */
void stage_began(struct stage *stage, struct uccl_request *request);
/* CORE_EVENT_WANTED: its blocks are to be fetched. */
void stage_fetch(struct stage *stage, struct uccl_request *request);
void stage_release(struct stage *stage, const struct core_release *release);
/* CORE_EVENT_MSG. True: it may end now; else gpu_context.ended() is called later. */
bool stage_over(struct stage *stage, struct uccl_request *request);

/*
 * A chunk of a direct send is about to go as datagrams. True: it is there for stage_at(), until the next
 * stage_bounces_sent(). False: not yet; try again.
 */
bool stage_bounce(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, uint32_t length);
/* The NIC refers no longer to what was sent. */
void stage_bounces_sent(struct stage *stage);

/* Where payload is that may be sent. It is contiguous to the end of its block. */
const void *stage_at(struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes);
/* Payload of a receive has arrived. */
void stage_write(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, const void *from,
                 size_t length);
/* Where the NIC may receive payload ahead of stage_write(), which is then told that address; NULL: nowhere. */
void *stage_target(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, size_t length);

/* How many received buffers there is room for, at most `most`. */
unsigned stage_rx_room(struct stage *stage, unsigned most);

/* Issues copies and polls those in flight. True: there was some. */
bool stage_progress(struct stage *stage);
/* Copies are in flight or to be issued: poll again soon. */
bool stage_busy(const struct stage *stage);

#endif
