/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/thread.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/pin.h"
#include "base/slice.h"
#include "base/unmap.h"
#include "gpu/stage.h"
#include "thread/crc32c_hw.h"
#include "thread/onesided.h"
#include "thread/payload.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

void thread_free(struct engine_thread *thread)
{
    if (thread->queue && thread->queue->beside)
        thread->queue->beside->ops->close(thread->queue->beside);
    if (thread->queue)
        thread->queue->ops->close(thread->queue);
    onesided_end_thread(thread);
    ring_free(&thread->ring);
    if (thread->stage)
        stage_free(thread->stage);
    if (thread->core)
        unmap(thread->core, core_size(thread->params));
    free(thread->counters);
    pin_release(thread->pin_claim);
}

static struct nic_queue_setup queue_setup(struct engine_thread *thread, struct nic_queue *beside)
{
    return (struct nic_queue_setup){.params = thread->params,
                                    .counters = thread->counters,
                                    .crc32c = crc32c_best(),
                                    .gather = payload_gather,
                                    .payload = payload_at,
                                    .piece = payload_piece_at,
                                    .local = payload_local,
                                    .target = payload_target,
                                    .kept_target = payload_kept_target,
                                    .owner = thread,
                                    .lent = thread->lend,
                                    .beside = beside,
                                    .index = thread->index};
}

int thread_open_beside(struct engine_thread *thread)
{
    struct nic *nic = thread->queue->nic;
    struct nic_queue_setup setup = queue_setup(thread, thread->queue);
    return nic->beside->queue_open(nic, &setup, &thread->queue->beside);
}

static int thread_build(struct engine_thread *thread, const struct thread_setup *setup)
{
    thread->counters = aligned_alloc(64, (sizeof(struct counters) + 63) & ~(size_t)63);
    if (!thread->counters)
        return UCCL_ENOMEM;
    memset(thread->counters, 0, sizeof *thread->counters);
    int error = ring_init(&thread->ring, thread->params->ring_entries);
    if (error)
        return error;
    void *memory = mmap(NULL, core_size(thread->params), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        LOG_ERR("no memory for engine thread %u: %zu bytes (UCCL_TX_BUFFERS, UCCL_TX_SMALL_BUFFERS; ulimit -v)",
                setup->index, core_size(thread->params));
        return UCCL_ENOMEM;
    }
    const struct nic_caps *caps = &setup->nic->caps;
    thread->room_wakes = caps->room_wakes;
    thread->core = core_init(memory,
                             &(struct core_setup){.params = setup->params,
                                                  .counters = thread->counters,
                                                  .crc32c = crc32c_best(),
                                                  .seed = setup->seed,
                                                  .paths_in_order = caps->in_order,
                                                  .whole_trains = caps->whole_trains,
                                                  .places_reliably = caps->reliable,
                                                  .places_in_order = caps->in_order},
                             clock_now_ns());
    if (setup->link_mbps)
        core_set_link(thread->core, setup->link_mbps);
    struct nic_queue_setup main_queue = queue_setup(thread, NULL);
    error = setup->nic->ops->queue_open(setup->nic, &main_queue, &thread->queue);
    if (error)
        return error;
    thread->places = thread->queue->data_qp;
    thread->gpu = (struct gpu_context){.params = thread->params,
                                       .counters = thread->counters,
                                       .core = thread->core,
                                       .queue = thread->queue,
                                       .numa_node = thread->numa_node,
                                       .places = thread->places,
                                       .staged = &thread->staged,
                                       .ended = loop_request_ended,
                                       .owner = thread};
    thread->stage = stage_open(&thread->gpu);
    return thread->stage ? UCCL_OK : UCCL_ENOMEM;
}

int thread_create_deaf(pthread_t *out, void *(*run)(void *), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* a new thread inherits it */
    int failed = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void *thread_main(void *argument)
{
    struct engine_thread *thread = argument;
    char name[16]; /* as long as Linux takes */
    snprintf(name, sizeof name, "uccl-engine-%u", thread->index);
    prctl(PR_SET_NAME, name);
    if (thread->params->pin || thread->params->cpus[0])
        thread->pin_claim = pin_thread(thread->params->cpus, thread->numa_node, thread->index);
    slice_shorten();
    lend_serve(thread);
    /* the last acks spare the peer its timeouts */
    core_flush_acks(thread->core);
    loop_transmit(thread);
    stage_close(thread->stage);
    return NULL;
}

int thread_start(struct engine_thread *thread, const struct thread_setup *setup)
{
    thread->params = setup->params;
    thread->process = setup->process;
    thread->index = setup->index;
    thread->lend = setup->lend;
    thread->numa_node = setup->numa_node;
    thread->pin_claim = -1;
    thread->event_fd = setup->event_fd;
    thread->event_armed = setup->event_armed;
    thread->on_event = setup->on_event;
    thread->context = setup->context;
    int error = thread_build(thread, setup);
    if (!error) {
        int failed = thread_create_deaf(&thread->pthread, thread_main, thread);
        thread->started = failed == 0;
        if (failed) {
            LOG_ERR("cannot start engine thread %u: %s%s", setup->index, strerror(failed),
                    failed == EAGAIN ? " (limits: ulimit -u, ulimit -v, the processes of a container)" : "");
            error = UCCL_ENOMEM;
        }
    }
    if (error)
        thread_free(thread);
    return error;
}

void thread_stop(struct engine_thread *thread)
{
    if (!thread->started)
        return;
    atomic_store(&thread->stop, 1);
    futex_wake(&thread->owner, INT_MAX);
    thread->queue->ops->wake(thread->queue);
    pthread_join(thread->pthread, NULL);
    thread->started = false;
}
