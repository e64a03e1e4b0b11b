/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library is a guest in a process, which may fork and may cancel its threads.
 *
 * Fork. A child inherits engines without their threads, and shares sockets with the parent. It must touch neither. So
 * each engine keeps the number of the process that opened it, and public calls compare that number with the number of
 * the calling process. The latter lives in a page that the kernel wipes in each child (MADV_WIPEONFORK, Linux 4.14),
 * however the child is made; for older kernels a pthread_atfork() handler clears it too. A child that opens an engine
 * gets a number above all that it inherited.
 *
 * Cancellation. A thread cancelled inside a call would keep for ever what it holds: a lent engine, a lock, a
 * descriptor. So calls defer cancellation until they return. uccl_wait() and uccl_accept() may wait without limit: they
 * look for a cancellation from time to time, when they hold nothing.
 */
#ifndef UCCL_PROCESS_H
#define UCCL_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The number of this process; 0: none yet. Only a fork changes it, so plain loads suffice. */
extern const volatile uint32_t *process_number;

/* Watches for forks. Returns the number of this process, a new one if it has none. Any thread. */
uint32_t process_enter(void);

/* 0, or the errno that says why children of this process are not recognized. After process_enter(). */
int process_unwatched(void);

/*
 * Watches for forks; each child calls `fn` before fork() returns. A module initializes its locks there: the threads
 * that held them do not exist in the child. Any thread; each function once.
 */
void process_in_child(void (*fn)(void));

/* Whether this process has only inherited what process `number` opened. */
static inline bool process_forked(uint32_t number)
{
    return *process_number != number;
}

/* Defers cancellation of the thread to the end of the block. */
#define CANCEL_LATER __attribute__((cleanup(cancel_restore), unused)) int cancel_state_ = cancel_put_off()

static inline int cancel_put_off(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancel_restore(const int *before)
{
    int ignored;
    pthread_setcancelstate(*before, &ignored);
}

/* The interval between two looks for a cancellation, in a wait without limit. */
#define CANCEL_LOOK_NS UINT64_C(200000000)

/* After CANCEL_LATER in the same block: ends the thread if it has been cancelled and its caller allows that. */
#define CANCEL_HERE cancel_look(cancel_state_)

static inline void cancel_look(int before)
{
    int ignored;
    pthread_setcancelstate(before, &ignored);
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
}

/* When a wait next looks for a cancellation, or ends. */
static inline uint64_t cancel_look_ns(uint64_t now_ns, uint64_t deadline_ns)
{
    return deadline_ns > now_ns + CANCEL_LOOK_NS ? now_ns + CANCEL_LOOK_NS : deadline_ns; /* may have passed */
}

#endif
