/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/paths.h"

enum { DONE_BATCH = 32 };

void paths_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns)
{
    if (rx->placed)
        core_rx_immediate(thread->core, rx->flow, rx->path, rx->generation, rx->immediate, rx->length, now_ns);
    else
        core_rx_on_path(thread->core, rx->flow, rx->path, rx->generation, rx->data, rx->length, now_ns);
}

bool paths_finish(struct engine_thread *thread)
{
    struct nic_done done[DONE_BATCH];
    uint64_t now_ns = 0;
    struct nic_path_event event;
    unsigned count = thread->nic->poll_tx(thread->queue, done, DONE_BATCH);
    if (count)
        now_ns = clock_now_ns();
    for (unsigned i = 0; i < count; i++) {
        core_waited(thread->core, waited_ns(done[i].at_ns, now_ns));
        core_tx_done(thread->core, done[i].cookie, now_ns);
    }
    bool some = count > 0;
    while (thread->nic->path_event(thread->queue, &event)) {
        const struct nic_path *path = &event.path;
        some = true;
        now_ns = clock_now_ns();
        if (event.fenced)
            core_path_fenced(thread->core, path->flow, path->path, path->generation, now_ns);
        else
            core_path_failed(thread->core, path->flow, path->path, path->generation, now_ns);
    }
    return some;
}

static void act(struct engine_thread *thread, const struct core_path_action *action)
{
    const struct nic_ops *nic = thread->nic;
    struct core *core = thread->core;
    const struct nic_path path = {.flow = action->flow,
                                  .destination = action->destination,
                                  .generation = action->generation,
                                  .path = action->path};
    uint32_t number, psn;
    uint64_t now_ns = clock_now_ns();
    switch (action->kind) {
    case PATH_OPEN:
        if (nic->path_open(thread->queue, &path, &number, &psn) == UCCL_OK)
            core_path_opened(core, path.flow, path.path, path.generation, number, psn, now_ns);
        else
            core_path_failed(core, path.flow, path.path, path.generation, now_ns);
        break;
    case PATH_CONNECT:
        if (nic->path_connect(thread->queue, &path, action->number, action->psn) == UCCL_OK)
            core_path_connected(core, path.flow, path.path, path.generation, now_ns);
        else
            core_path_failed(core, path.flow, path.path, path.generation, now_ns);
        break;
    case PATH_FENCE:
        nic->path_fence(thread->queue, &path);
        break;
    case PATH_CLOSE:
        nic->path_close(thread->queue, &path);
        break;
    }
}

bool paths_act(struct engine_thread *thread)
{
    struct core_path_action action;
    bool some = false;
    while (core_next_path(thread->core, &action)) {
        act(thread, &action);
        some = true;
    }
    return some;
}
