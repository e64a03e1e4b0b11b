/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a flow sends next. Order: control frames and acks that are due, retransmissions, then the connections by
 * deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). Chunks in flight stay under the congestion window
 * (payload) and the peer's receive buffer (kernel bytes); an empty flow may always send one chunk.
 */
#include "core/transmit.h"

static bool send_data(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct rail *rail = flow->main;
    struct conn *conn;
    while ((conn = flow_first_active(flow))) {
        bool eager = conn_eager_ready(conn) != NULL, bulk = conn_bulk_ready(conn) != NULL;
        if (!eager && !bulk) {
            flow_rotate_active(flow, false);
            continue;
        }
        if (conn->deficit_bytes <= 0 && conn->active.next) {
            flow_rotate_active(flow, true);
            continue;
        }
        if (conn->deficit_bytes <= 0) /* alone: it owes later connections nothing */
            conn->deficit_bytes = QUANTUM_BYTES;
        if (tx_is_paced_out(rail, now_ns))
            return false;
        bool bulk_turn = bulk && (!eager || conn->bulk_turn);
        conn->bulk_turn = !bulk_turn;
        return bulk_turn ? tx_send_bulk(rail, conn, desc, now_ns) : tx_send_frames(rail, false, desc, now_ns);
    }
    return false;
}

static bool has_something(const struct flow *flow)
{
    return flow->ack.now || flow->qps.frames_due || flow->gone.count || flow->ctrl.head || flow->active.head;
}

/* Some rails are not proven: those are asked, while something waits. */
static void await_proof(struct flow *flow)
{
    bool waits = has_something(flow);
    EACH_RAIL(flow, rail)
    {
        if (!probe_proven(&rail->probe))
            probe_wait(rail, waits);
    }
}

bool flow_tx(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    if (flow->dead)
        return flow->farewell_due && tx_send_farewell(flow, desc, now_ns);
    if (flow->proven < flow->rail_count)
        await_proof(flow);
    struct rail *asking = flow_due_probe(flow);
    if (asking && tx_send_probes(asking, desc, now_ns))
        return true;
    if (!flow_proven(flow))
        return false;
    credit_update(flow, now_ns);
    bool ctrl = flow->qps.frames_due || flow->gone.count || (flow->ctrl.head && (flow->ctrl_urgent || flow->ack.now));
    if (ctrl && tx_send_frames(flow->main, true, desc, now_ns))
        return true;
    if (flow->ack.now)
        return tx_send_ack(flow, desc, now_ns);
    if (flow->image.left && image_next(flow, tx_scratch(flow->core), desc))
        return true;
    struct chunk *lost = sent_first_lost(&flow->sent) ? tx_first_retransmission(flow) : NULL;
    if (lost)
        return tx_send_retransmission(flow, lost, desc, now_ns);
    return send_data(flow, desc, now_ns);
}
