/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/region.h"

#include <assert.h>
#include <stdlib.h>

void mem_cache_init(struct mem_cache *cache, uint32_t idle_max)
{
    *cache = (struct mem_cache){.idle_max = idle_max};
    pthread_mutex_init(&cache->lock, NULL);
}

void mem_cache_free(struct mem_cache *cache)
{
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++) {
        struct mem_region *region;
        while ((region = cache->buckets[i])) {
            cache->buckets[i] = region->next;
            free(region);
        }
    }
    pthread_mutex_destroy(&cache->lock);
}

static struct mem_region **bucket_of(struct mem_cache *cache, uintptr_t begin)
{
    return &cache->buckets[(begin >> 12 ^ begin >> 20) % MEM_CACHE_BUCKETS];
}

static void region_drop(struct mem_cache *cache, struct mem_region **link)
{
    struct mem_region *region = *link;
    assert(region->references == 0);
    *link = region->next;
    cache->idle--;
    free(region);
}

static bool region_same(const struct mem_region *region, const struct mem_identity *is, size_t length)
{
    return region->is.ops == is->ops && region->is.device == is->device && region->is.buffer_id == is->buffer_id &&
           region->length == length;
}

/* The region of this memory. Drops idle regions of earlier memory at the same address. */
static struct mem_region *region_find(struct mem_cache *cache, const struct mem_identity *is, uintptr_t begin,
                                      size_t length)
{
    struct mem_region **link = bucket_of(cache, begin), *found = NULL;
    while (*link) {
        struct mem_region *region = *link;
        if (region->begin == begin && region_same(region, is, length))
            found = region;
        else if (region->begin == begin && region->references == 0) {
            region_drop(cache, link);
            continue;
        }
        link = &region->next;
    }
    return found;
}

static void drop_oldest(struct mem_cache *cache)
{
    struct mem_region **oldest = NULL;
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++) {
        for (struct mem_region **link = &cache->buckets[i]; *link; link = &(*link)->next) {
            if ((*link)->references == 0 && (!oldest || (*link)->idle_since < (*oldest)->idle_since))
                oldest = link;
        }
    }
    region_drop(cache, oldest);
}

int mem_cache_get(struct mem_cache *cache, enum uccl_mem kind, const void *address, size_t length,
                  struct mem_region **out)
{
    struct mem_identity is;
    int error = mem_identify(kind, address, length, &is);
    if (error)
        return error;
    uintptr_t begin = is.base ? is.base : (uintptr_t)address;
    size_t covered = is.base ? is.base_length : length;
    pthread_mutex_lock(&cache->lock);
    struct mem_region *region = region_find(cache, &is, begin, covered);
    if (region && region->references == 0)
        cache->idle--;
    if (!region && (region = calloc(1, sizeof *region))) {
        struct mem_region **bucket = bucket_of(cache, begin);
        *region = (struct mem_region){.next = *bucket, .is = is, .begin = begin, .length = covered};
        *bucket = region;
    }
    if (region)
        region->references++;
    pthread_mutex_unlock(&cache->lock);
    if (!region)
        return UCCL_ENOMEM;
    *out = region;
    return UCCL_OK;
}

void mem_cache_put(struct mem_cache *cache, struct mem_region *region)
{
    pthread_mutex_lock(&cache->lock);
    assert(region->references);
    if (--region->references == 0) {
        region->idle_since = cache->clock++;
        cache->idle++;
        if (region->is.buffer_id == 0) {
            struct mem_region **link = bucket_of(cache, region->begin);
            while (*link != region)
                link = &(*link)->next;
            region_drop(cache, link);
        } else if (cache->idle > cache->idle_max) {
            drop_oldest(cache);
        }
    }
    pthread_mutex_unlock(&cache->lock);
}
