/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/data_qps.h"

#include "base/clock.h"

enum { DONE_BATCH = 32 };

void data_qps_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns)
{
    if (rx->placed)
        core_rx_immediate(thread->core, rx->flow, rx->path, rx->generation, rx->immediate, rx->length, now_ns);
    else
        core_rx_on_path(thread->core, rx->flow, rx->path, rx->generation, rx->data, rx->length, now_ns);
}

bool data_qps_finish(struct engine_thread *thread)
{
    struct nic_done done[DONE_BATCH];
    uint64_t now_ns = 0;
    struct nic_qp_event event;
    unsigned count = thread->nic->poll_tx(thread->queue, done, DONE_BATCH);
    if (count)
        now_ns = clock_now_ns();
    for (unsigned i = 0; i < count; i++) {
        core_waited(thread->core, waited_ns(done[i].at_ns, now_ns));
        core_tx_done(thread->core, done[i].cookie, now_ns);
    }
    bool some = count > 0;
    while (thread->nic->qp_event(thread->queue, &event)) {
        const struct nic_qp *path = &event.path;
        some = true;
        now_ns = clock_now_ns();
        if (event.drained)
            core_qp_drained(thread->core, path->flow, path->path, path->generation, now_ns);
        else
            core_qp_failed(thread->core, path->flow, path->path, path->generation, now_ns);
    }
    return some;
}

static void act(struct engine_thread *thread, const struct core_qp_action *action)
{
    const struct nic_ops *nic = thread->nic;
    struct core *core = thread->core;
    const struct nic_qp path = {.flow = action->flow,
                                  .destination = action->destination,
                                  .generation = action->generation,
                                  .path = action->path};
    uint32_t number, psn;
    uint64_t now_ns = clock_now_ns();
    switch (action->kind) {
    case QP_OPEN:
        if (nic->qp_open(thread->queue, &path, &number, &psn) == UCCL_OK)
            core_qp_opened(core, path.flow, path.path, path.generation, number, psn, now_ns);
        else
            core_qp_failed(core, path.flow, path.path, path.generation, now_ns);
        break;
    case QP_CONNECT:
        if (nic->qp_connect(thread->queue, &path, action->number, action->psn) == UCCL_OK)
            core_qp_connected(core, path.flow, path.path, path.generation, now_ns);
        else
            core_qp_failed(core, path.flow, path.path, path.generation, now_ns);
        break;
    case QP_DRAIN:
        nic->qp_drain(thread->queue, &path);
        break;
    case QP_CLOSE:
        nic->qp_close(thread->queue, &path);
        break;
    }
}

bool data_qps_act(struct engine_thread *thread)
{
    struct core_qp_action action;
    bool some = false;
    while (core_next_path(thread->core, &action)) {
        act(thread, &action);
        some = true;
    }
    return some;
}
