/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include "base/config.h"
#include "base/log.h"
#include "mem/mem.h"
#include "base/race_point.h"

#include <string.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { NUMBER_BYTES = 4096 }; /* the kernel makes whole pages of it */

static volatile uint32_t number_without_page;
static volatile uint32_t *number = &number_without_page;
const volatile uint32_t *process_number = &number_without_page;
static int unwatched; /* 0, or why nothing tells us of forks; not logged at once, since the log asks for this too */
static uint32_t last_number; /* given to this process or to one that it descends from */

/* Of the threads only the one that forked is here, and nobody will give back what the others held. */
static void in_child(void)
{
    *number = 0;
    log_after_fork();
    config_after_fork();
    mem_after_fork();
}

static void prepare(void)
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

void process_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
}

uint32_t process_enter(void)
{
    process_prepare();
    if (unwatched)
        LOG_WARNING("children of fork() must leave this process's engines alone: pthread_atfork: %s",
                    strerror(unwatched));
    uint32_t mine = __atomic_load_n(number, __ATOMIC_ACQUIRE);
    if (mine)
        return mine;
    RACE_POINT();
    /* counted first: a child that is made in between must not get the same one */
    uint32_t next = __atomic_add_fetch(&last_number, 1, __ATOMIC_SEQ_CST);
    RACE_POINT();
    if (__atomic_compare_exchange_n(number, &mine, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return next;
    return mine; /* another thread was faster */
}
