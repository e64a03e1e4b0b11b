/* SPDX-License-Identifier: Apache-2.0 */
/* An engine thread, as those see it who start it, post to it and wait for it. */
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
    int numa_node;         /* of the NIC; -1: unknown */
    uint64_t link_mbps;    /* this thread's share of the NIC's rate */
    uint64_t seed;
    int event_fd;
    _Atomic uint32_t *event_armed;
    thread_event_fn on_event;
    void *context;
};

/* `thread` is zeroed memory. Starts the thread. On failure nothing is left to undo. */
int thread_start(struct engine_thread *thread, const struct thread_setup *setup);
/* Stops and joins; nobody may use the engine any more, but other threads that are being stopped. */
void thread_stop(struct engine_thread *thread);
/* All threads of the engine have been stopped. */
void thread_free(struct engine_thread *thread);

#endif
