/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded multi-producer single-consumer ring of commands into an engine thread (the bounded queue of
 * Vyukov, 2010). Each slot carries a sequence number that says whose turn it is. A producer that is
 * preempted between claiming and filling its slot delays the consumer at that slot, but no other producer.
 *
 * Producers: any thread. Consumer: whoever owns the engine, one at a time; ownership passes with an
 * atomic exchange (thread/lend.h), which orders the consumer's own fields.
 */
#ifndef UCCL_RING_H
#define UCCL_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ring_entry {
    void *object;
    uint64_t what;
};

struct ring_slot {
    _Atomic uint64_t turn; /* == position: free for the producer; == position + 1: filled */
    struct ring_entry entry;
};

struct ring {
    struct ring_slot *slots;
    uint64_t mask;
    _Alignas(64) _Atomic uint64_t tail; /* next position to claim */
    _Alignas(64) _Atomic uint64_t head; /* next position to take; only the consumer writes it */
};

/* `entries` is a power of two. UCCL_ENOMEM. */
int ring_init(struct ring *ring, uint64_t entries);
void ring_free(struct ring *ring);

/* False: full. Never waits. */
bool ring_push(struct ring *ring, struct ring_entry entry);
/* False: empty, or the next producer is still filling its slot. */
bool ring_pop(struct ring *ring, struct ring_entry *entry);
/* What ring_pop() would take; it stays. The consumer alone. */
bool ring_peek(const struct ring *ring, struct ring_entry *entry);
/* Whether a producer has claimed a slot that the consumer has not taken yet. Any thread. */
bool ring_busy(const struct ring *ring);

#endif
