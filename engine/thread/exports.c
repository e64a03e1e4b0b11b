/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/exports.h"

#include "base/race_point.h"

#include <stdlib.h>

static struct exported *entry_at(struct exports *exports, uint32_t index)
{
    struct exported *block = index < EXPORTS_MAX ? atomic_load(&exports->blocks[index / EXPORTS_BLOCK]) : NULL;
    return block ? &block[index % EXPORTS_BLOCK] : NULL;
}

struct exported *export_add(struct exports *exports, const struct exported *made)
{
    uint32_t index = exports->free ? exports->free - 1 : exports->count;
    if (index == EXPORTS_MAX)
        return NULL;
    if (!entry_at(exports, index)) {
        struct exported *block = calloc(EXPORTS_BLOCK, sizeof *block);
        if (!block)
            return NULL;
        atomic_store(&exports->blocks[index / EXPORTS_BLOCK], block);
    }
    struct exported *entry = entry_at(exports, index);
    if (exports->free)
        exports->free = entry->next_free;
    else
        exports->count++;
    entry->ref = (struct export_ref){index, entry->ref.generation + 1, made->ref.nonce};
    entry->base = made->base;
    entry->length = made->length;
    entry->access = made->access;
    entry->memory = made->memory;
    entry->nic_mr = made->nic_mr;
    atomic_store(&entry->state, EXPORT_LIVE); /* publishes the rest: pairs with export_enter() */
    return entry;
}

void export_revoke(struct exported *exported)
{
    atomic_store(&exported->state, EXPORT_REVOKED);
}

void export_remove(struct exports *exports, struct exported *exported)
{
    atomic_store(&exported->state, EXPORT_FREE);
    exported->next_free = exports->free;
    exports->free = exported->ref.index + 1;
}

void exports_free(struct exports *exports)
{
    for (unsigned i = 0; i < EXPORTS_MAX / EXPORTS_BLOCK; i++)
        free(atomic_load(&exports->blocks[i]));
}

static bool allows(const struct exported *entry, const struct export_ref *ref, unsigned right, uint64_t offset,
                   uint64_t length)
{
    return entry->ref.generation == ref->generation && entry->ref.nonce == ref->nonce &&
           (entry->access & right) == right && offset <= entry->length && length <= entry->length - offset;
}

struct exported *export_enter(struct exports *exports, const struct export_ref *ref, unsigned right, uint64_t offset,
                              uint64_t length)
{
    struct exported *entry = entry_at(exports, ref->index);
    if (!entry)
        return NULL;
    /* We count ourselves, then look at the state; a revocation stores the state, then looks at the count. One of us
     * sees the other. While we are counted and the entry is live, nobody changes its fields. */
    atomic_fetch_add(&entry->users, 1);
    RACE_POINT();
    if (atomic_load(&entry->state) == EXPORT_LIVE && allows(entry, ref, right, offset, length))
        return entry;
    export_leave(entry);
    return NULL;
}

void export_leave(struct exported *exported)
{
    atomic_fetch_sub(&exported->users, 1);
}
