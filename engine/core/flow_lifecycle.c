/* SPDX-License-Identifier: Apache-2.0 */
/* A flow's set-up, its failure, and the farewell to a peer that has been given up. */
#include "core/flow.h"
#include "core/state.h"

size_t flow_size(const struct params *params, const struct flow_setup *setup)
{
    size_t rails = setup->rail_count, paths = rails * rail_path_count(params, setup);
    return round64(sizeof(struct flow) + rails * sizeof(struct rail)) +
           round64(setup->chunk_window * sizeof(struct chunk)) +
           round64(setup->chunk_window * sizeof(struct sack_chunk)) + round64(paths * sizeof(struct path)) +
           round64(data_qps_count(params, setup) * sizeof(struct sack_path)) + FRAMES_SMALL_BYTES +
           data_qps_size(params, setup) + place_size(params, setup);
}

struct flow *flow_init(void *memory, struct core *core, const struct flow_setup *setup, uint64_t now_ns)
{
    const struct params *params = core->params;
    uint16_t rails = (uint16_t)setup->rail_count, paths = rail_path_count(params, setup);
    struct flow *flow = memory;
    uint8_t *at = memory;
    at += round64(sizeof *flow + rails * sizeof *flow->rails);
    struct chunk *chunks = (struct chunk *)at;
    at += round64(setup->chunk_window * sizeof *chunks);
    struct sack_chunk *sack_chunks = (struct sack_chunk *)at;
    at += round64(setup->chunk_window * sizeof *sack_chunks);
    struct path *path_states = (struct path *)at;
    at += round64((size_t)rails * paths * sizeof *path_states);
    struct sack_path *sack_data_qps = (struct sack_path *)at;
    at += round64(data_qps_count(params, setup) * sizeof *sack_data_qps);
    flow->own_buffer = at;
    at += FRAMES_SMALL_BYTES;

    flow->core = core;
    flow->owner = setup->owner;
    flow->rx_token = setup->rx_token;
    flow->tx_token = setup->tx_token;
    flow->peer_window_bytes = setup->tx_window_bytes;
    flow->rx_window_bytes = setup->rx_window_bytes;
    flow->last_rx_ns = now_ns;
    flow->slot = token_slot(setup->rx_token);
    flow->rail_most = rails;
    flow->rail_count = rails;
    while (flow->rail_count > 1 && setup->rails[flow->rail_count - 1].joins)
        flow->rail_count--;
    for (unsigned i = 0; i < rails; i++)
        rail_init(flow, i, setup, (uint16_t)(i * paths), path_states + i * paths, now_ns);
    flow->reliable = flow->rails->reliable;
    data_qps_init(flow, at, setup);
    place_init(flow, at + data_qps_size(params, setup), setup);
    flow->shares_trains = core->whole_trains && flow->rail_count == 1 && !flow->reliable;
    sent_init(&flow->sent, chunks, setup->chunk_window, flow->rails, path_states, ack_on_chunk, flow);
    flow->sent.pair_bits = flow->qps.pair_bits;
    flow->sent.data_qps_reliable = core->places_reliably;
    sack_init(&flow->sack, sack_chunks, setup->chunk_window, sack_data_qps, flow->qps.count);
    credit_init(flow);
    flow->features = setup->features;
    flow->bulk_min_bytes = params->tcp_bulk_kb * 1024;
    flow->gone.key = (uint32_t)rng_next(&core->rng);
    for (unsigned i = 0; i < rails; i++)
        rail_begin(&flow->rails[i], &setup->rails[i]);
    EACH_RAIL(flow, rail)
    rail_enter(rail);
    flow_choose_main(flow);
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
        conn_fail(conn, status, DEFER_DRAIN);
    }
    place_drain_all(flow);
    EACH_RAIL(flow, rail)
    mtu_forget(rail);
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
    if (!flow_proven(flow))
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
