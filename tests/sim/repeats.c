/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of what has been sent, by token, number and place in the chunk, as hashes of 64 bits: a million of them collide
 * once in tens of millions of runs. Nothing here looks at what the engine holds for a repeat.
 */
#include "repeats.h"

#include "core/state.h"

#include <stdlib.h>

enum {
    ROOM_FIRST = 1024,
    WRITTEN = 254,
    ANY = 255, /* instead of a place in the chunk: one that the NIC writes; either */
};

/* splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t key_of(uint64_t token, uint64_t seq, unsigned index)
{
    uint64_t key = mix(mix(token) + seq * 256 + index);
    return key ? key : 1;
}

/* Where it is, or where it would go. */
static uint64_t *find(const struct repeats *repeats, uint64_t key)
{
    size_t at = key & (repeats->room - 1);
    while (repeats->keys[at] && repeats->keys[at] != key)
        at = (at + 1) & (repeats->room - 1);
    return &repeats->keys[at];
}

static void grow(struct repeats *repeats)
{
    struct repeats larger = *repeats;
    larger.room = repeats->room ? 2 * repeats->room : ROOM_FIRST;
    larger.keys = calloc(larger.room, sizeof *larger.keys);
    if (!larger.keys)
        abort();
    for (size_t i = 0; i < repeats->room; i++) {
        if (repeats->keys[i])
            *find(&larger, repeats->keys[i]) = repeats->keys[i];
    }
    free(repeats->keys);
    *repeats = larger;
}

/* False: it was there. */
static bool add(struct repeats *repeats, uint64_t key)
{
    if (2 * repeats->used >= repeats->room)
        grow(repeats);
    uint64_t *at = find(repeats, key);
    if (*at)
        return false;
    *at = key;
    repeats->used++;
    return true;
}

/* The NIC writes each chunk once. If it is lost, all datagrams of it are repeats. */
static void note_written(struct repeats *repeats, uint64_t token, uint64_t seq)
{
    repeats->chunks += add(repeats, key_of(token, seq, ANY));
    if (add(repeats, key_of(token, seq, WRITTEN)))
        repeats->written++;
    else
        repeats->count++;
}

/*
 * A chunk that was refused as datagrams, and has become too large by then, is sent in fragments only. All its datagrams
 * are repeats from then on, whether their fragments have been sent or not: they are lost together.
 */
static void note_fragment(struct repeats *repeats, const struct tx_desc *image)
{
    uint64_t token = image->flow->tx_token;
    if (!add(repeats, key_of(token, image->seq, ANY)))
        return;
    repeats->chunks++;
    for (unsigned i = 0; i < image->count; i++)
        add(repeats, key_of(token, image->seq, i));
}

void repeats_note(struct repeats *repeats, const struct tx_desc *desc)
{
    if (desc->fragment)
        note_fragment(repeats, &desc->flow->image.desc);
    if (!desc->sequenced)
        return;
    uint64_t token = desc->flow->tx_token;
    if (desc->kind == TX_PLACE) {
        for (unsigned i = 0; i < desc->count; i++)
            note_written(repeats, token, desc->seq + i);
        return;
    }
    repeats->chunks += add(repeats, key_of(token, desc->seq, ANY));
    bool written = *find(repeats, key_of(token, desc->seq, WRITTEN));
    for (unsigned i = 0; i < desc->count; i++) {
        if (desc->mask >> i & 1)
            repeats->count += !add(repeats, key_of(token, desc->seq, i)) || written;
    }
}

void repeats_note_datagram(struct repeats *repeats, uint64_t token, uint64_t seq, unsigned index)
{
    repeats->count += !add(repeats, key_of(token, seq, index));
}

void repeats_forget(struct repeats *repeats)
{
    free(repeats->keys);
    *repeats = (struct repeats){0};
}
