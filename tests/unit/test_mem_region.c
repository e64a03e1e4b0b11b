/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory an address is, and registrations that share regions (mem/mem.c, mem/region.c). */
#include "mem/region.h"

#include <criterion/criterion.h>

#include "../fake/fake_device.h"

enum { LENGTH = 100000 };

static struct mem_cache cache;
static uint8_t *device;

static void set_up(void)
{
    mem_set_test_kind(&fake_ops);
    mem_cache_init(&cache, 2);
    device = fake_alloc(LENGTH, 5);
}

static void tear_down(void)
{
    mem_cache_free(&cache);
}

TestSuite(mem_region, .init = set_up, .fini = tear_down, .timeout = 30);

static struct mem_region *get(const void *address, size_t length)
{
    struct mem_region *region = NULL;
    int error = mem_cache_get(&cache, UCCL_MEM_AUTO, address, length, &region);
    cr_assert_eq(error, UCCL_OK);
    return region;
}

Test(mem_region, identity)
{
    struct mem_identity is;
    uint8_t host[10] = {0};
    cr_assert_eq(mem_identify(UCCL_MEM_AUTO, device + 99, 10, &is), UCCL_OK);
    cr_assert_eq(is.ops, &fake_ops);
    cr_assert_eq(is.device, 5);
    cr_assert_eq(is.base, (uintptr_t)device);
    cr_assert_eq(is.base_length, (size_t)LENGTH);
    cr_assert_str_eq(is.pci, "fa4e:05:00.0");
    cr_assert_eq(mem_identify(UCCL_MEM_AUTO, host, sizeof host, &is), UCCL_OK);
    cr_assert_eq(is.ops, &mem_host_ops);
    cr_assert_eq(is.device, -1);
}

Test(mem_region, beyond_its_allocation)
{
    struct mem_identity is;
    cr_assert_eq(mem_identify(UCCL_MEM_AUTO, device + 1, LENGTH - 1, &is), UCCL_OK);
    cr_assert_eq(mem_identify(UCCL_MEM_AUTO, device + 1, LENGTH, &is), UCCL_EINVAL);
    cr_assert_eq(mem_identify(UCCL_MEM_AUTO, device, SIZE_MAX, &is), UCCL_EINVAL);
}

Test(mem_region, kinds_without_a_library)
{
    struct mem_identity is;
    uint8_t host[10] = {0};
    /* neither library is in this process, and asking does not load it */
    cr_assert_eq(mem_identify(UCCL_MEM_CUDA, host, 1, &is), UCCL_ENOTSUP);
    cr_assert_eq(mem_identify(UCCL_MEM_HIP, host, 1, &is), UCCL_ENOTSUP);
    cr_assert_eq(mem_identify((enum uccl_mem)55, host, 1, &is), UCCL_ENOTSUP);
}

Test(mem_region, one_for_an_allocation)
{
    struct mem_region *a = get(device, 100), *b = get(device + 5000, 3), *c = get(device, LENGTH);
    cr_assert(a == b && b == c);
    cr_assert_eq(a->references, 3);
    cr_assert_eq(a->begin, (uintptr_t)device);
    cr_assert_eq(a->length, (size_t)LENGTH);
    uint8_t *other = fake_alloc(LENGTH, 5);
    cr_assert_neq(get(other, 1), a);
}

Test(mem_region, kept_for_the_next_registration)
{
    struct mem_region *a = get(device, 100);
    mem_cache_put(&cache, a);
    cr_assert_eq(cache.idle, 1);
    cr_assert_eq(get(device + 1, 100), a);
    cr_assert_eq(cache.idle, 0);
    mem_cache_put(&cache, a);
}

/* The same address, another buffer: neither an idle region nor one still in use is taken for it. */
Test(mem_region, address_used_again)
{
    struct mem_region *a = get(device, 100);
    uint64_t id = a->is.buffer_id;
    mem_cache_put(&cache, a);
    fake_replace(device);
    struct mem_region *b = get(device, 100);
    cr_assert_neq(b->is.buffer_id, id);
    cr_assert_eq(cache.idle, 0, "what stood there before is kept");
    fake_replace(device);
    struct mem_region *c = get(device, 100);
    cr_assert_neq(c, b);
    cr_assert_neq(c->is.buffer_id, b->is.buffer_id);
    cr_assert_eq(b->references, 1);
    mem_cache_put(&cache, b);
    mem_cache_put(&cache, c);
    cr_assert_eq(get(device, 1), c);
}

Test(mem_region, the_oldest_goes)
{
    uint8_t *more[3] = {fake_alloc(10, 0), fake_alloc(10, 0), fake_alloc(10, 0)};
    struct mem_region *regions[3];
    for (unsigned i = 0; i < 3; i++)
        regions[i] = get(more[i], 10);
    for (unsigned i = 0; i < 3; i++)
        mem_cache_put(&cache, regions[(i + 1) % 3]); /* 1, 2, 0 */
    cr_assert_eq(cache.idle, 2);
    cr_assert_eq(get(more[2], 1), regions[2]);
    cr_assert_eq(get(more[0], 1), regions[0]);
    cr_assert_eq(cache.idle, 0);
}

Test(mem_region, host_memory_is_never_kept)
{
    uint8_t host[64] = {0};
    struct mem_region *a = get(host, 64), *b = get(host, 64), *c = get(host, 32), *d = get(host + 1, 10);
    cr_assert_eq(a, b);
    cr_assert(a != c && a != d && c != d);
    mem_cache_put(&cache, b);
    cr_assert_eq(a->references, 1);
    mem_cache_put(&cache, a);
    mem_cache_put(&cache, c);
    mem_cache_put(&cache, d);
    cr_assert_eq(cache.idle, 0);
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++)
        cr_assert_null(cache.buckets[i]);
}

struct turn {
    unsigned seed;
};

static void *registrations(void *argument)
{
    struct turn *turn = argument;
    for (unsigned i = 0; i < 20000; i++) {
        unsigned at = (i * 7919 + turn->seed) % 1000;
        struct mem_region *region = get(device + at, 10);
        cr_assert_eq(region->begin, (uintptr_t)device);
        mem_cache_put(&cache, region);
    }
    return NULL;
}

Test(mem_region, threads)
{
    pthread_t threads[4];
    struct turn turns[4];
    for (unsigned i = 0; i < 4; i++) {
        turns[i].seed = i;
        pthread_create(&threads[i], NULL, registrations, &turns[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(cache.idle, 1);
}

/* The host's table is complete as well: it can be staged. */
Test(mem_region, host_copies)
{
    struct mem_identity is;
    struct mem_stage *stage;
    uint8_t memory[10] = "012345678", pinned[10] = "";
    void *cookie = NULL;
    cr_assert_eq(mem_identify(UCCL_MEM_HOST, memory, sizeof memory, &is), UCCL_OK);
    cr_assert_eq(is.ops->stage_open(&is, 1, 2, &stage), UCCL_OK);
    cr_assert_eq(is.ops->pin(stage, pinned, sizeof pinned), UCCL_OK);
    cr_assert_eq(is.ops->poll(stage, &cookie), 0);
    cr_assert_eq(is.ops->copy(stage, MEM_FROM_DEVICE, (uintptr_t)memory, pinned, 5, &memory), UCCL_OK);
    cr_assert_eq(is.ops->copy(stage, MEM_TO_DEVICE, (uintptr_t)memory + 5, pinned, 5, &pinned), UCCL_OK);
    cr_assert_eq(is.ops->copy(stage, MEM_TO_DEVICE, (uintptr_t)memory, pinned, 1, &pinned), UCCL_EAGAIN);
    cr_assert_eq(is.ops->poll(stage, &cookie), 1);
    cr_assert_eq(cookie, &memory);
    cr_assert_eq(is.ops->poll(stage, &cookie), 1);
    cr_assert_eq(cookie, &pinned);
    cr_assert_eq(memcmp(memory, "0123401234", 10), 0);
    is.ops->unpin(stage, pinned);
    is.ops->stage_close(stage);
}

Test(mem_region, status_of_each_kind)
{
    static const enum uccl_mem kinds[] = {UCCL_MEM_HOST, UCCL_MEM_CUDA, UCCL_MEM_HIP};
    for (unsigned i = 0; i < 3; i++) {
        char text[MEM_STATUS_TEXT] = "";
        int status = uccl_mem_status(kinds[i], text, sizeof text);
        cr_assert(status == UCCL_OK || (i > 0 && status == UCCL_ENOTSUP), "kind %d: %d", (int)kinds[i], status);
        cr_assert(text[0] && strlen(text) < sizeof text);
        status = uccl_mem_status(kinds[i], text, 5); /* cut short, and no further */
        cr_assert(strlen(text) < 5);
        text[0] = 'x';
        cr_assert_eq(uccl_mem_status(kinds[i], text, 0), UCCL_EINVAL);
        cr_assert_eq(text[0], 'x');
        cr_assert_eq(uccl_mem_status(kinds[i], NULL, 10), UCCL_EINVAL);
    }
}
