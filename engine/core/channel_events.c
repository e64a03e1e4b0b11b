/* SPDX-License-Identifier: Apache-2.0 */
/* What the owner reports of the connections that are paths of reliable rails (channel.c). */
#include "core/state.h"

/* Whether the peer can be reached at all. */
static bool is_up(struct flow *flow)
{
    EACH_RAIL(flow, rail)
    {
        if (!rail->reliable || channel_up(&rail->paths))
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

/* Whether the event is about a path that there is. */
static bool is_path(const struct flow *flow, unsigned rail, uint16_t port)
{
    return rail < flow->rail_most && flow->rails[rail].reliable && port < flow->rails[rail].paths.count;
}

void core_path_broken(struct core *core, struct flow *flow, unsigned rail_index, uint16_t port, uint64_t now_ns)
{
    struct rail *rail = &flow->rails[rail_index];
    core->now_ns = now_ns;
    if (flow->dead || !is_path(flow, rail_index, port))
        return;
    struct path *path = &rail->paths.paths[port];
    path->channel = CHANNEL_DOWN;
    if (!flow->cut_ns && !is_up(flow))
        flow->cut_ns = now_ns;
    if (path->in_flight > 0)
        rail->cc.ops->on_rto(&rail->cc, now_ns);
    COUNT(core->counters, lost_chunks, sent_lose_path(&flow->sent, path));
    if (!channel_up(&rail->paths)) /* like a device that is gone */
        rail_cut(rail);
    ack_again(flow);
    flow_wake(flow);
    flow_update_timer(flow);
}

void core_path_room(struct core *core, struct flow *flow, unsigned rail_index, uint16_t port, uint64_t now_ns)
{
    struct rail *rail = &flow->rails[rail_index];
    core->now_ns = now_ns;
    if (!is_path(flow, rail_index, port))
        return;
    struct path *path = &rail->paths.paths[port];
    path->channel = CHANNEL_ROOM;
    path->turn_seq = path->next_seq;
    if (flow->dead) {
        if (flow->farewell_due) /* it waits for this */
            flow_bid_farewell(flow);
        return;
    }
    if (rail->joins)
        rail_join(flow);
    else
        rail_mend(rail);
    flow->cut_ns = 0;
    flow_wake(flow);
    flow_update_timer(flow);
}

#define LOSSY_MIN_NS (10 * NS_PER_S)
#define LOSSY_MAX_NS (600 * NS_PER_S)

void core_path_lossy(struct core *core, struct flow *flow, unsigned rail_index, uint64_t now_ns)
{
    struct rail *rail = &flow->rails[rail_index];
    core->now_ns = now_ns;
    if (flow->dead || rail->joins || now_ns < rail->lossy_until_ns)
        return;
    bool again = rail->lossy_until_ns && now_ns - rail->lossy_until_ns < LOSSY_MIN_NS;
    rail->lossy_ns = again ? 2 * rail->lossy_ns : LOSSY_MIN_NS;
    if (rail->lossy_ns > LOSSY_MAX_NS)
        rail->lossy_ns = LOSSY_MAX_NS;
    rail->lossy_until_ns = now_ns + rail->lossy_ns;
    COUNT(core->counters, tcp_lossy, rail_is_beside(rail));
    flow_choose_main(flow);
    flow_wake(flow);
}
