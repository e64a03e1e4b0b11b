/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: one region per allocation of a device, or per range of host memory. All registrations in it
 * share the region, and the last of them ends it. Regions of device memory stay in the cache for some time after.
 *
 * Memory may be freed, and another allocation may come back at the same address. So each registration asks the
 * runtime anew whose memory it is. A region is used again only if the buffer id is the same, since an id is never
 * given twice. Memory without an id (host memory) is never kept.
 *
 * Thread: any; the cache has a lock of its own, which the data path does not take.
 */
#ifndef UCCL_REGION_H
#define UCCL_REGION_H

#include "mem/mem.h"

#include <pthread.h>

struct direct_range;

struct mem_region {
    struct mem_region *next; /* of the same bucket */
    struct mem_identity is;
    uintptr_t begin; /* where it begins */
    size_t length;
    uint32_t references;         /* registrations */
    struct direct_range *ranges; /* of device memory, as the NIC knows them; gpu/direct.c owns them */
    uint64_t idle_since;         /* a count, not a time: when the last one ended */
};

enum { MEM_CACHE_BUCKETS = 256 };

struct mem_cache {
    pthread_mutex_t lock;
    struct mem_region *buckets[MEM_CACHE_BUCKETS];
    uint32_t idle; /* regions without references */
    uint32_t idle_max;
    uint64_t clock; /* counts regions that became idle */
};

void mem_cache_init(struct mem_cache *cache, uint32_t idle_max);
void mem_cache_free(struct mem_cache *cache);

/* The region of [address, address + length), one more reference. Errors as mem_identify(); UCCL_ENOMEM. */
int mem_cache_get(struct mem_cache *cache, enum uccl_mem kind, const void *address, size_t length,
                  struct mem_region **out);
void mem_cache_put(struct mem_cache *cache, struct mem_region *region);

#endif
