/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams whose messages are moved by one side: by writes, reads or notifications (struct stream, `op`). The other side
 * has the target: a stream with `sends` false, which posts nothing. Where contents are checked the sides tell each
 * other by notifications: the one that operates, by the tail of each operation, that a message has been moved; the
 * other, that it has looked at it and the buffer is free for another. One thread; what goes wrong ends the process.
 */
#ifndef UCCL_ONESIDED_H
#define UCCL_ONESIDED_H

#include "stream.h"

/* ---- memory that the other side uses ---- */

/* Exports a region, and tells the peer. `doing` as for tool_tell(). */
void onesided_export(uccl_conn *conn, const struct region *region, uccl_export **out, const char *doing);
/* Takes what the peer has told of that, by a message that was posted before, for use on `count` connections. */
void onesided_import(struct tool_mail *mail, uccl_conn **conns, uint32_t count, uccl_remote **out, const char *doing);
/* No peer uses it any more. */
void onesided_revoke(uccl_export *exported);

/* ---- streams ---- */

/* Of a stream whose `op` is not STREAM_SEND. */
extern const struct stream_ops onesided_ops;
/* Bytes of a buffer for a message in pieces, between which there are gaps. */
uint64_t onesided_slot(uint64_t size, uint32_t pieces);
/* Makes a target's buffers ready for its first messages, where contents are checked. */
void onesided_offer(struct stream *s);
/* Ends what a target still has under way, once its messages have been moved. */
void onesided_settle(struct stream *s);
/* Verifies a message that has been written to a target whose notifications nobody takes, and makes room for another. */
void onesided_verify(struct stream *s, uint64_t index);
/*
 * One step of `count` streams of one engine: posts, reaps, acts on notifications, and waits a little when nothing
 * moved. `next` is the step's own, at first 0.
 */
void onesided_turn(uccl_engine *engine, struct stream *streams, unsigned count, unsigned *next);

#endif
