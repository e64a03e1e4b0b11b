/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ring.h"

#include "base/race_point.h"

#include "uccl/engine.h"

#include <stdlib.h>

int ring_init(struct ring *ring, uint64_t entries)
{
    ring->slots = calloc(entries, sizeof *ring->slots);
    if (!ring->slots)
        return UCCL_ENOMEM;
    ring->mask = entries - 1;
    for (uint64_t i = 0; i < entries; i++)
        atomic_init(&ring->slots[i].turn, i);
    atomic_init(&ring->tail, 0);
    atomic_init(&ring->head, 0);
    return UCCL_OK;
}

void ring_free(struct ring *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

bool ring_push(struct ring *ring, struct ring_entry entry)
{
    uint64_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    for (;;) {
        struct ring_slot *slot = &ring->slots[position & ring->mask];
        /* pairs with the release in ring_pop: the slot's old entry has been read */
        uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
        if (turn == position) {
            RACE_POINT();
            /* sequentially consistent: a producer then looks whether the consumer sleeps */
            if (atomic_compare_exchange_weak(&ring->tail, &position, position + 1)) {
                RACE_POINT();
                slot->entry = entry;
                /* pairs with the acquire in ring_pop */
                atomic_store_explicit(&slot->turn, position + 1, memory_order_release);
                return true;
            }
        } else if (turn < position) {
            return false; /* the consumer is a lap behind: full */
        } else {
            position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        }
    }
}

/* The slot at the head; NULL: nothing is in it yet. */
static struct ring_slot *filled(const struct ring *ring, uint64_t head)
{
    struct ring_slot *slot = &ring->slots[head & ring->mask];
    /* pairs with the release in ring_push */
    bool is = atomic_load_explicit(&slot->turn, memory_order_acquire) == head + 1;
    RACE_POINT();
    return is ? slot : NULL;
}

bool ring_peek(const struct ring *ring, struct ring_entry *entry)
{
    const struct ring_slot *slot = filled(ring, atomic_load_explicit(&ring->head, memory_order_relaxed));
    if (slot)
        *entry = slot->entry;
    return slot != NULL;
}

bool ring_pop(struct ring *ring, struct ring_entry *entry)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    struct ring_slot *slot = filled(ring, head);
    if (!slot)
        return false;
    *entry = slot->entry;
    RACE_POINT();
    /* pairs with the acquire in ring_push */
    atomic_store_explicit(&slot->turn, head + ring->mask + 1, memory_order_release);
    RACE_POINT();
    atomic_store_explicit(&ring->head, head + 1, memory_order_relaxed);
    return true;
}

bool ring_busy(const struct ring *ring)
{
    /* sequentially consistent: see the sleep protocol in thread/lend.h */
    uint64_t tail = atomic_load(&ring->tail);
    RACE_POINT();
    return tail != atomic_load(&ring->head);
}
