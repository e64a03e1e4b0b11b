/* SPDX-License-Identifier: Apache-2.0 */
/* An engine thread: starting and stopping it. The headers included here post to it and wait for it. */
#ifndef UCCL_THREAD_H
#define UCCL_THREAD_H

#include "thread/lend.h"
#include "thread/loop.h"
#include "thread/post.h"
#include "thread/state.h"

struct thread_setup {
    const struct params *params;
    uint32_t process;
    struct nic *nic;
    unsigned index;
    bool lend;
    int numa_node;      /* of the NIC; -1: unknown */
    uint64_t link_mbps; /* this thread's share of the NIC's rate */
    uint64_t seed;
    int event_fd;
    _Atomic uint32_t *event_armed;
    thread_event_fn on_event;
    void *context;
};

/*
 * Starts a thread that takes no signal of the process; as pthread_create(). An application that blocks a signal in its
 * own threads and reads it from a signalfd relies on all other threads blocking it, too. Faults stay open: the kernel
 * delivers them to the thread that causes them, and the application may handle faults in its own memory.
 */
int thread_create_deaf(pthread_t *out, void *(*run)(void *), void *argument);
/* Starts the thread; `thread` is zeroed memory. After a failure there is nothing to undo. */
int thread_start(struct engine_thread *thread, const struct thread_setup *setup);
/*
 * Opens a queue beside the thread's own, by the backend that `nic->beside` names. The engine's owner calls it, once.
 * 0, or an error (logged).
 */
int thread_open_beside(struct engine_thread *thread);
/* Stops the thread and joins it. Only threads that are being stopped, too, may still use the engine. */
void thread_stop(struct engine_thread *thread);
/* After all threads of the engine have been stopped. */
void thread_free(struct engine_thread *thread);

#endif
