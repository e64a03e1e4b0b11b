/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rail.h"
#include "core/state.h"

uint16_t rail_path_count(const struct params *params, const struct flow_setup *setup)
{
    uint64_t most = PATHS_MAX / setup->rail_count;
    return (uint16_t)(params->port_entropy < most ? params->port_entropy : most);
}

void rail_init(struct flow *flow, unsigned index, const struct flow_setup *setup, uint16_t first_path,
               struct path *paths, uint64_t now_ns)
{
    const struct params *params = flow->core->params;
    const struct rail_setup *is = &setup->rails[index];
    struct rail *rail = &flow->rails[index];
    rail->flow = flow;
    rail->next = index + 1u < flow->rail_count ? rail + 1 : NULL;
    rail->index = (uint8_t)index;
    rail->pair = setup->pairs ? is->pair : (uint8_t)index;
    rail->destination = is->destination;
    rail->first_path = first_path;
    rail->last_ack_ns = now_ns;
    loss_init(rail);
    path_set_init(&rail->paths, paths, rail_path_count(params, setup), (unsigned)params->path_policy, &flow->core->rng);
    rail->reliable = is->reliable;
    rail->joins = rail->cut = rail->reported_down = is->joins;
    rail->state = is->joins ? RAIL_DOWN : RAIL_UP;
    rail->payload_crc = params->payload_crc && !rail->reliable;
    rail->paths.closes = !rail->reliable;
    rail->reorder_threshold = flow->core->paths_in_order ? 1 : (uint32_t)params->reorder_threshold;
    if (rail->reliable) /* what a connection has brought is acked, or the peer has refused it */
        rail->reorder_threshold = 0;
    rail->reorder_window_quarters = rail->paths.count > 1 ? 2 : 1;
    rtt_init(&rail->rtt);
    rail_init_cc(rail);
}

void rail_begin(struct rail *rail, const struct rail_setup *setup)
{
    probe_init(rail, setup->nonce, setup->greets);
    reach_init(rail, setup->peer_ports);
    mtu_init(rail, setup);
}
