/* SPDX-License-Identifier: Apache-2.0 */
/* A process with as many mappings as vm.max_map_count allows: munmap() fails, and the memory goes back all the same. */
#include "api_pair.h"

#include <errno.h>
#include <sys/mman.h>

enum { FAILED_MAX = 256, PAGE = 4096 };

static struct {
    _Atomic bool fails;
    _Atomic unsigned count;
    struct {
        uint8_t *memory;
        size_t bytes;
    } of[FAILED_MAX];
} failed;

int __real_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes)
{
    if (!failed.fails)
        return __real_munmap(memory, bytes);
    unsigned i = failed.count++;
    cr_assert_lt(i, FAILED_MAX);
    failed.of[i].memory = memory;
    failed.of[i].bytes = bytes;
    errno = ENOMEM;
    return -1;
}

static size_t resident_pages(const void *memory, size_t bytes)
{
    static unsigned char pages[1 << 20];
    size_t count = (bytes + PAGE - 1) / PAGE, resident = 0;
    cr_assert_leq(count, sizeof pages);
    cr_assert_eq(mincore((void *)(uintptr_t)memory, bytes, pages), 0);
    for (size_t i = 0; i < count; i++)
        resident += pages[i] & 1;
    return resident;
}

Test(unmap, what_cannot_be_unmapped_holds_no_memory, .timeout = 60)
{
    static const char *const backends[] = {"udp", "tcp"};
    for (unsigned i = 0; i < 2; i++) {
        struct pair pair;
        uint8_t bytes[20000] = {1};
        for (unsigned k = 0; k < 2; k++)
            pair.engine[k] = open_engine("no", "BACKEND", backends[i], "NUM_ENGINES", "2", "LINGER_MS", "300", NULL);
        pair_connect(&pair);
        uccl_request *send = post_send(pair.conn[0], bytes, sizeof bytes);
        end_of(post_recv(pair.conn[1], bytes, sizeof bytes), 0);
        end_of(send, 0);
        failed.fails = true;
        pair_close(&pair);
        failed.fails = false;
    }
    cr_assert_gt(failed.count, 12, "%u", failed.count); /* cores, flows and ends of connections */
    for (unsigned i = 0; i < failed.count; i++) {
        cr_expect_eq(resident_pages(failed.of[i].memory, failed.of[i].bytes), 0, "mapping %u of %zu bytes", i,
                     failed.of[i].bytes);
        cr_assert_eq(__real_munmap(failed.of[i].memory, failed.of[i].bytes), 0);
    }
}
