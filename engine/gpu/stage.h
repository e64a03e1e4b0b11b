/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pipeline of an engine thread: payload in memory that neither the CPU nor the NIC can touch
 * travels through pinned host memory (stage_pool.h).
 *
 *   send     When the core wants a message (core/staged.c), its blocks are fetched from the device, one
 *            after the other, messages in turn. What has come is sent while the next one is on its way. A
 *            block is free when no chunk needs it any more.
 *   receive  What arrives is collected in the block that it belongs to, and goes up in one copy when the block
 *            is whole or the message has ended.
 *   direct   A send that the NIC reads by itself has its chunks bounced where they go as datagrams (bounce.h).
 *   end      A request ends when the core has done with it and no copy touches its memory any more.
 *
 * Bounded: where blocks for received data are short, the thread leaves datagrams in the socket
 * (stage_rx_room()) until copies have ended; blocks that wait for the rest of their bytes go up as
 * they are. What still comes beyond the blocks that are left, in one datagram or out of the eager ring, is
 * kept on the heap (a spill), and nothing more is received before that is gone.
 *
 * Threads: the engine's owner; but stage_progress(), which makes all GPU calls, and stage_close() by the
 * engine thread itself, never by an application thread that has borrowed the engine. A borrower gives the
 * engine back while messages are staged (`staged` in thread/state.h).
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
 * Waits for copies in flight, a second at most. Where they have not ended even so, streams and memory are left to
 * the device for good. The engine thread, as its last act.
 */
void stage_close(struct stage *stage);
void stage_free(struct stage *stage);

/* A request with staged memory is about to be submitted to the core; `flow`: the slot of its flow. */
void stage_begin(struct stage *stage, struct uccl_request *request, uint32_t flow);
/* It has been; ends it where it cannot go on. */
void stage_began(struct stage *stage, struct uccl_request *request);
/* CORE_EVENT_WANTED. */
void stage_want(struct stage *stage, struct uccl_request *request);
void stage_release(struct stage *stage, const struct core_release *release);
/* CORE_EVENT_MSG. True: it may be ended; else gpu_context.ended() is called later. */
bool stage_over(struct stage *stage, struct uccl_request *request);

/*
 * A chunk of a direct send is about to go as datagrams. True: it is there for stage_at(), until the next
 * stage_bounces_sent(). False: not yet; try again.
 */
bool stage_bounce(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, uint32_t length);
/* The NIC refers no longer to what was sent. */
void stage_bounces_sent(struct stage *stage);

/* Where bytes of a message stand that may be sent. They go on to the end of their block. */
const void *stage_at(struct stage *stage, const struct uccl_request *request, uint64_t offset_bytes);
/* Bytes of a receive have arrived. */
void stage_write(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes,
                   const void *from, size_t length);
/* Where they may be put beforehand, to be told by stage_write() from there; NULL: nowhere. */
void *stage_target(struct stage *stage, struct uccl_request *request, uint64_t offset_bytes, size_t length);

/* How many received buffers, of `most`, there is room for. */
unsigned stage_rx_room(struct stage *stage, unsigned most);

/* Issues copies and sees which have ended. True: something was done. */
bool stage_progress(struct stage *stage);
/* Copies are in flight or to be issued: look again soon. */
bool stage_busy(const struct stage *stage);

#endif
