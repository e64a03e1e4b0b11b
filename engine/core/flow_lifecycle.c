/* SPDX-License-Identifier: Apache-2.0 */
/* A flow's set-up, its failure, and the farewell to a peer that has been given up. */
#include "core/flow.h"
#include "core/state.h"

size_t flow_size(const struct params *params, const struct flow_setup *setup)
{
    return round64(sizeof(struct flow)) + round64(setup->chunk_window * sizeof(struct chunk)) +
           round64(setup->chunk_window * sizeof(struct sack_chunk)) +
           round64(params->port_entropy * sizeof(struct path)) +
           round64(params->port_entropy * sizeof(struct sack_path)) + FRAMES_SMALL_BYTES +
           data_qps_size(params, setup) + place_size(params, setup);
}

struct flow *flow_init(void *memory, struct core *core, const struct flow_setup *setup, uint64_t now_ns)
{
    const struct params *params = core->params;
    uint16_t paths = (uint16_t)params->port_entropy;
    struct flow *flow = memory;
    uint8_t *at = memory;
    at += round64(sizeof *flow);
    struct chunk *chunks = (struct chunk *)at;
    at += round64(setup->chunk_window * sizeof *chunks);
    struct sack_chunk *sack_chunks = (struct sack_chunk *)at;
    at += round64(setup->chunk_window * sizeof *sack_chunks);
    struct path *path_states = (struct path *)at;
    at += round64(paths * sizeof *path_states);
    struct sack_path *sack_data_qps = (struct sack_path *)at;
    at += round64(paths * sizeof *sack_data_qps);
    flow->own_buffer = at;
    at += FRAMES_SMALL_BYTES;

    flow->core = core;
    flow->owner = setup->owner;
    flow->rx_token = setup->rx_token;
    flow->tx_token = setup->tx_token;
    flow->destination = setup->destination;
    flow->peer_window_bytes = setup->tx_window_bytes;
    flow->rx_window_bytes = setup->rx_window_bytes;
    flow->last_rx_ns = now_ns;
    flow->last_ack_ns = now_ns;
    loss_init(flow);
    flow->slot = token_slot(setup->rx_token);
    data_qps_init(flow, at, setup);
    place_init(flow, at + data_qps_size(params, setup), setup);
    path_set_init(&flow->paths, path_states, paths, (unsigned)params->path_policy, &core->rng);
    flow->paths.closes = true;
    sent_init(&flow->sent, chunks, setup->chunk_window, &flow->paths, flow->qps.count ? &flow->qps.set : NULL,
              core->paths_in_order ? 1 : (uint32_t)params->reorder_threshold);
    flow->sent.data_qps_reliable = core->places_reliably;
    sack_init(&flow->sack, sack_chunks, setup->chunk_window, sack_data_qps, flow->qps.count);
    rtt_init(&flow->rtt);
    uint32_t chunk_bytes = (uint32_t)params->chunk_size_kb * 1024;
    cc_init(&flow->cc, params, chunk_bytes);
    credit_init(flow);
    probe_init(flow, setup->nonce, setup->greets);
    reach_init(flow, setup->peer_ports);
    mtu_init(flow, setup);
    flow->features = setup->features;
    flow->gone.key = (uint32_t)rng_next(&core->rng);
    if (probe_proven(&flow->probe))
        mtu_search(flow);
    return flow;
}

void flow_fail(struct flow *flow, int32_t status)
{
    struct core *core = flow->core;
    struct sent *sent = &flow->sent;
    if (flow->dead)
        return;
    flow->dead = true;
    flow->status = status;
    timer_disarm(&core->wheel, &flow->timer);
    credit_forget(flow);
    for (struct conn *conn = flow->all_head, *next; conn; conn = next) {
        next = conn->next_all;
        conn_fail(conn, status);
    }
    place_flow_dead(flow);
    mtu_forget(flow);
    for (uint64_t seq = sent->cumulative; seq < sent->next_seq; seq++) {
        struct chunk *chunk = sent_chunk(sent, seq);
        if (chunk->state != CHUNK_FREE && chunk->kind == CHUNK_FRAMES)
            flow_put_buffer(flow, chunk->frames.buffer, chunk->frames.of);
        chunk->state = CHUNK_FREE;
    }
    queue_append(&core->flow_events, &flow->event);
}

void flow_bid_farewell(struct flow *flow)
{
    if (!probe_proven(&flow->probe))
        return;
    flow->farewell_due = true;
    queue_append(&flow->core->ready, &flow->ready);
}

void flow_give_up(struct flow *flow, bool farewell)
{
    COUNT(flow->core->counters, peers_dead, 1);
    flow_fail(flow, UCCL_EPEERDEAD);
    if (farewell)
        flow_bid_farewell(flow);
}

void flow_on_late(struct flow *flow, const struct wire_packet *packet)
{
    bool asks =
        packet->flags & WIRE_SEQUENCED || packet->current.kind == FRAME_PROBE || packet->current.kind == FRAME_FRAGMENT;
    if (flow->status == UCCL_EPEERDEAD && asks)
        flow_bid_farewell(flow);
}
