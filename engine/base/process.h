/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that the library is a guest in: it may fork, and its threads may be cancelled.
 *
 * Fork. A child inherits engines whose threads it does not have, and sockets that it shares with the parent.
 * It must touch neither. So each engine keeps the number of the process that opened it, and public calls
 * compare that number with the one of the process they run in. That one stands in a page which the kernel
 * empties in a child (MADV_WIPEONFORK, Linux 4.14), however the child was made; a handler of pthread_atfork()
 * empties it too, for kernels that cannot. A child that opens an engine gets a number of its own, above all
 * that it inherited.
 *
 * Cancellation. A thread that is cancelled inside a call would take with it what it holds: an engine that it
 * has borrowed, a lock, a descriptor. So calls put cancellation off until they return. The two that may wait without
 * limit, uccl_wait() and uccl_accept(), look from time to time whether they are to end, and hold nothing then.
 */
#ifndef UCCL_PROCESS_H
#define UCCL_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The number of this process; 0: none yet. It does not change between forks, so plain loads will do. */
extern const volatile uint32_t *process_number;

/* Watches for forks from here on. Returns this process's number, a new one if it has none. Any thread. */
uint32_t process_enter(void);

/* 0, or the errno that says why children of this process are not recognized. After process_enter(). */
int process_unwatched(void);

/*
 * Watches for forks; each child of fork() calls `fn` first. A module makes its locks anew there: nobody gives back
 * what other threads held. Any thread; each function once.
 */
void process_in_child(void (*fn)(void));

/* Whether what process `number` has opened is only inherited here. */
static inline bool process_forked(uint32_t number)
{
    return *process_number != number;
}

/* From here to the end of the block the thread is not cancelled; then as before. */
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

/* A wait without limit is cut into pieces so long, between which CANCEL_HERE looks. */
#define CANCEL_LOOK_NS UINT64_C(200000000)

/* After CANCEL_LATER in the same block: ends the thread if it is to be cancelled, and its caller lets it. */
#define CANCEL_HERE cancel_look(cancel_state_)

static inline void cancel_look(int before)
{
    int ignored;
    pthread_setcancelstate(before, &ignored);
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
}

/* The end of the next piece of a wait. */
static inline uint64_t cancel_look_ns(uint64_t now_ns, uint64_t deadline_ns)
{
    return deadline_ns - now_ns > CANCEL_LOOK_NS ? now_ns + CANCEL_LOOK_NS : deadline_ns;
}

#endif
