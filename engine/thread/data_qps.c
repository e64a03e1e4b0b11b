/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/data_qps.h"

#include "base/clock.h"

enum { DONE_BATCH = 32 };

void data_qps_receive(struct engine_thread *thread, const struct nic_rx *rx, uint64_t now_ns)
{
    if (rx->placed)
        core_rx_immediate(thread->core, rx->flow, rx->path, rx->generation, rx->immediate, rx->length, now_ns);
    else
        core_rx_on_qp(thread->core, rx->flow, rx->path, rx->generation, rx->data, rx->length, now_ns);
}

bool data_qps_finish(struct engine_thread *thread)
{
    struct nic_done done[DONE_BATCH];
    uint64_t now_ns = 0;
    struct nic_qp_event event;
    unsigned count = thread->queue->data_qp->poll_done(thread->queue, done, DONE_BATCH);
    if (count)
        now_ns = clock_now_ns();
    for (unsigned i = 0; i < count; i++) {
        core_waited(thread->core, waited_ns(done[i].at_ns, now_ns));
        core_tx_done(thread->core, done[i].cookie, now_ns);
    }
    bool some = count > 0;
    while (thread->queue->data_qp->event(thread->queue, &event)) {
        const struct nic_qp_id *id = &event.id;
        some = true;
        now_ns = clock_now_ns();
        if (event.drained)
            core_qp_drained(thread->core, id->flow, id->path, id->generation, now_ns);
        else
            core_qp_failed(thread->core, id->flow, id->path, id->generation, now_ns);
    }
    return some;
}

static void act_on(struct engine_thread *thread, const struct core_qp_action *action)
{
    struct nic_queue *queue = thread->queue;
    struct core *core = thread->core;
    const struct nic_qp_id id = {.flow = action->flow,
                                 .destination = action->destination,
                                 .generation = action->generation,
                                 .path = action->path};
    uint32_t number, psn;
    uint64_t now_ns = clock_now_ns();
    switch (action->kind) {
    case QP_OPEN:
        if (queue->data_qp->open(queue, &id, &number, &psn) == UCCL_OK)
            core_qp_opened(core, id.flow, id.path, id.generation, number, psn, now_ns);
        else
            core_qp_failed(core, id.flow, id.path, id.generation, now_ns);
        break;
    case QP_CONNECT:
        if (queue->data_qp->connect(queue, &id, action->number, action->psn) == UCCL_OK)
            core_qp_connected(core, id.flow, id.path, id.generation, now_ns);
        else
            core_qp_failed(core, id.flow, id.path, id.generation, now_ns);
        break;
    case QP_DRAIN:
        queue->data_qp->drain(queue, &id);
        break;
    case QP_CLOSE:
        queue->data_qp->destroy(queue, &id);
        break;
    }
}

bool data_qps_act(struct engine_thread *thread)
{
    struct core_qp_action action;
    bool some = false;
    while (core_next_qp_action(thread->core, &action)) {
        act_on(thread, &action);
        some = true;
    }
    return some;
}
