/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that an engine exports to its peers: a table from which engine threads read without a lock. Entries are
 * used again, under another generation and nonce, but never freed while the engine lives: a thread may look at one at
 * any time.
 *
 * Threads: export_add(), export_revoke() and export_remove() under the engine's lock, the others by any engine thread.
 */
#ifndef UCCL_EXPORTS_H
#define UCCL_EXPORTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mem_identity;
struct nic_mr;

/* What names an export on the wire. */
struct export_ref {
    uint32_t index, generation;
    uint64_t nonce; /* unguessable */
};

enum export_state { EXPORT_FREE, EXPORT_LIVE, EXPORT_REVOKED };

struct exported {
    _Atomic uint32_t state; /* enum export_state */
    _Atomic uint32_t users; /* accesses under way, and looks at `state` */
    /* constant while it is not free */
    struct export_ref ref;
    uint8_t *base;
    uint64_t length;
    unsigned access;                   /* of enum uccl_access */
    const struct mem_identity *memory; /* NULL: the CPU reaches it */
    const struct nic_mr *nic_mr;       /* NULL: the NIC does not reach it */
    uint32_t next_free;                /* index + 1 */
};

enum { EXPORTS_MAX = 65536, EXPORTS_BLOCK = 256 };

struct exports {
    struct exported *_Atomic blocks[EXPORTS_MAX / EXPORTS_BLOCK];
    uint32_t count, free; /* entries made; index + 1 of the first that is free */
};

/* Adds what `made` says but state, users and ref's index and generation. NULL: no memory, or too many exports. */
struct exported *export_add(struct exports *exports, const struct exported *made);
/* Refuses new accesses. */
void export_revoke(struct exported *exported);
/* Whether no access is under way. */
static inline bool export_is_idle(const struct exported *exported)
{
    return atomic_load(&exported->users) == 0; /* pairs with export_leave(): what the access did is done */
}
/* A revoked and idle entry may be used again. */
void export_remove(struct exports *exports, struct exported *exported);
void exports_free(struct exports *exports);

/*
 * Begins an access of `length` bytes at `offset`, which needs `right`. NULL: refused. No export_remove() comes before
 * export_leave().
 */
struct exported *export_enter(struct exports *exports, const struct export_ref *ref, unsigned right, uint64_t offset,
                              uint64_t length);
void export_leave(struct exported *exported);
/* Whether the access may still copy: no revocation has begun. */
static inline bool export_holds(const struct exported *exported)
{
    return atomic_load(&exported->state) == EXPORT_LIVE;
}

#endif
