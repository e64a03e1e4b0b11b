/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the network nearby for the ways to the queues of an OFFER (nic_way_ops). An answer takes seconds where nobody
 * has an address, and a stranger may name addresses that nobody has. So a thread of its own asks, while whoever runs
 * the handshake goes on with others. One host gets a few such threads at a time. One whose handshake is over ends with
 * its present question.
 *
 * Application threads, and the threads that ask. Not under the engine's lock.
 */
#ifndef UCCL_WAYS_H
#define UCCL_WAYS_H

#include "boot/bootstrap.h"
#include "uccl/engine.h"

struct way_query;

/*
 * Which ways to the queues of the peer's offer are closed, for peer_take_offer(). `client`: our end of the handshake.
 * UCCL_EAGAIN: it is being asked; call again when ways_fd() is readable, or later if that is -1. UCCL_EADDR: all are
 * closed; UCCL_EPROTO: an engine's queues have the same ports, and these have not; UCCL_ENOMEM. Logged.
 */
int ways_ask(struct uccl_engine *engine, const struct bootstrap *boot, bool client, struct way_query **query,
             uint32_t *closed);
int ways_fd(const struct way_query *query);
/* The answer is not needed any more; NULL: nothing. */
void ways_leave(struct uccl_engine *engine, struct way_query *query);
/* Waits until no thread asks any more: as long as one answer takes. All queries have been left. */
void ways_end(struct uccl_engine *engine);
/* In a child of fork(), which has no such thread. Under the lock. */
void ways_forget(struct uccl_engine *engine);

#endif
