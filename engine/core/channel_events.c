/* SPDX-License-Identifier: Apache-2.0 */
/* What the owner reports of the connections that are paths of reliable rails (channel.c). */
#include "core/state.h"

/* Whether the peer can be reached at all. */
static bool is_up(struct flow *flow)
{
    EACH_RAIL(flow, rail)
    {
        if (!rail->reliable)
            return true;
        for (unsigned i = 0; i < rail->paths.count; i++)
            if (rail->paths.paths[i].channel != CHANNEL_DOWN)
                return true;
    }
    return false;
}

/* Acks that were under way may be lost: the next one says all again. */
static void ack_again(struct flow *flow)
{
    sack_repeat_paths(&flow->sack);
    ack_owe_delayed(flow, true);
}

void core_path_broken(struct core *core, struct flow *flow, unsigned rail_index, uint16_t port, uint64_t now_ns)
{
    struct rail *rail = &flow->rails[rail_index];
    core->now_ns = now_ns;
    if (flow->dead || !rail->reliable || port >= rail->paths.count)
        return;
    struct path *path = &rail->paths.paths[port];
    path->channel = CHANNEL_DOWN;
    if (!flow->cut_ns && !is_up(flow))
        flow->cut_ns = now_ns;
    struct chunk *chunk;
    if (path->in_flight > 0)
        rail->cc.ops->on_rto(&rail->cc, now_ns);
    while ((chunk = QUEUE_HOLDER(path->flying.head, struct chunk, by_path))) {
        sent_lose(&flow->sent, chunk);
        COUNT(core->counters, lost_chunks, 1);
    }
    ack_again(flow);
    flow_wake(flow);
    flow_update_timer(flow);
}

void core_path_room(struct core *core, struct flow *flow, unsigned rail_index, uint16_t port, uint64_t now_ns)
{
    struct rail *rail = &flow->rails[rail_index];
    core->now_ns = now_ns;
    if (flow->dead || !rail->reliable || port >= rail->paths.count)
        return;
    rail->paths.paths[port].channel = CHANNEL_ROOM;
    flow->cut_ns = 0;
    flow_wake(flow);
}
