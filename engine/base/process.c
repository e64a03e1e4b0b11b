/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include "base/race_point.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum {
    NUMBER_BYTES = 4096, /* a page */
    CHILD_CALLS_MAX = 8, /* modules with process-wide locks */
};

static volatile uint32_t number_without_page;
static volatile uint32_t *number = &number_without_page;
const volatile uint32_t *process_number = &number_without_page;
static int unwatched;        /* errno of pthread_atfork(), where the kernel does not wipe the page either; else 0 */
static uint32_t last_number; /* the last one given to this process or an ancestor */

static void (*_Atomic child_calls[CHILD_CALLS_MAX])(void);
static atomic_uint child_call_count;

/* Only the thread that forked exists here. */
static void in_child(void)
{
    *number = 0;
    for (unsigned i = 0; i < CHILD_CALLS_MAX; i++) {
        void (*call)(void) = atomic_load(&child_calls[i]);
        if (call)
            call();
    }
}

static void process_watch(void)
{
    int failed = pthread_atfork(NULL, NULL, in_child);
    void *page = mmap(NULL, NUMBER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, NUMBER_BYTES, MADV_WIPEONFORK) == 0) {
        process_number = number = page;
        return;
    }
    unwatched = failed;
    if (page != MAP_FAILED)
        munmap(page, NUMBER_BYTES);
}

static void process_watch_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, process_watch);
}

void process_in_child(void (*fn)(void))
{
    process_watch_once();
    unsigned i = atomic_fetch_add(&child_call_count, 1);
    assert(i < CHILD_CALLS_MAX);
    atomic_store(&child_calls[i], fn);
}

int process_unwatched(void)
{
    return unwatched;
}

uint32_t process_enter(void)
{
    process_watch_once();
    uint32_t mine = __atomic_load_n(number, __ATOMIC_ACQUIRE);
    if (mine)
        return mine;
    RACE_POINT();
    /* incremented first: a child that is forked in between must not get the same number */
    uint32_t next = __atomic_add_fetch(&last_number, 1, __ATOMIC_SEQ_CST);
    RACE_POINT();
    if (__atomic_compare_exchange_n(number, &mine, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return next;
    return mine; /* another thread was faster */
}
