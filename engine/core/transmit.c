/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is sent next. Flows take turns. Order within a flow: control frames and acks that are due, retransmissions, then
 * the connections by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). Chunks in flight stay under the
 * congestion window (payload) and the peer's receive buffer (kernel bytes); an empty flow may always send one chunk.
 */
#include "core/transmit.h"

/* What the connection may send next: not what has to wait for room on a connection of a reliable rail. */
struct sendable {
    bool eager, bulk;
};

static bool flow_has_room(struct flow *flow, bool bulk)
{
    EACH_RAIL(flow, rail)
    {
        if (rail_has_room(rail, bulk))
            return true;
    }
    return false;
}

/* Whether the connection's first granted message goes in a train of frames: it must be small, and not alone. */
static bool shares(const struct flow *flow, const struct conn *conn)
{
    const struct core_msg *msg = tx_shareable(conn);
    return msg && (msg->next || conn->eager.head || conn->active.next || flow->ctrl.head || flow->ack.pending);
}

static bool send_data(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    const struct conn *blocked = NULL; /* the first of those that wait for room */
    bool put_off = false;              /* one that does not waits for its turn */
    struct conn *conn;
    while ((conn = flow_first_active(flow))) {
        struct sendable has = {conn_eager_ready(conn) != NULL, conn_bulk_ready(conn) != NULL};
        if (!has.eager && !has.bulk) {
            flow_rotate_active(flow, false);
            continue;
        }
        if (flow->reliable) {
            const struct rail *bulk = has.bulk ? tx_bulk_rail(flow, conn_bulk_ready(conn)) : NULL;
            has.eager = has.eager && flow_has_room(flow, false);
            has.bulk = has.bulk && (bulk ? rail_has_room(bulk, true) : flow_has_room(flow, true));
            if (!has.eager && !has.bulk) {
                if (conn == blocked ? !put_off : !conn->active.next)
                    return false;
                if (!blocked || conn == blocked)
                    put_off = false;
                if (!blocked)
                    blocked = conn;
                flow_rotate_active(flow, true);
                continue;
            }
        }
        if (conn->deficit_bytes <= 0 && conn->active.next) {
            put_off = true;
            flow_rotate_active(flow, true);
            continue;
        }
        if (conn->deficit_bytes <= 0) /* alone: it owes later connections nothing */
            conn->deficit_bytes = QUANTUM_BYTES;
        if (flow->rail_count == 1 && tx_is_paced_out(flow->rails, now_ns))
            return false;
        bool bulk_turn = has.bulk && (!has.eager || conn->bulk_turn);
        conn->bulk_turn = !bulk_turn;
        if (!bulk_turn)
            return tx_send_small(flow, false, desc, now_ns);
        return (shares(flow, conn) && tx_send_small(flow, false, desc, now_ns)) ||
               tx_send_large(flow, conn, desc, now_ns);
    }
    return false;
}

static bool has_something(const struct flow *flow)
{
    return flow->ack.now || flow->qps.frames_due || flow->gone.count || flow->ctrl.head || flow->active.head;
}

/* As long as no rail is proven all are asked, while something waits. Once one is, rail_state.c asks the others. */
static bool send_probes(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct rail *asking;
    if (!flow_proven(flow)) {
        bool waits = has_something(flow);
        EACH_RAIL(flow, rail)
        probe_wait(rail, waits);
    }
    while ((asking = flow_due_probe(flow))) {
        if (tx_send_probes(asking, desc, now_ns))
            return true;
    }
    return false;
}

/* The next thing that this flow sends. False: nothing now. */
static bool flow_tx(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    if (flow->dead)
        return flow->farewell_due && rail_has_room(flow->main, false) && tx_send_farewell(flow, desc, now_ns);
    if (!flow->carries || flow_due_probe(flow)) {
        if (send_probes(flow, desc, now_ns))
            return true;
        if (!flow->carries)
            return false;
    }
    credit_update(flow, now_ns);
    bool ctrl = flow->qps.frames_due || flow->gone.count || (flow->ctrl.head && (flow->ctrl_urgent || flow->ack.now));
    if (ctrl && tx_send_small(flow, true, desc, now_ns))
        return true;
    if (flow->ack.now && tx_send_ack(tx_rail_for_ack(flow), desc, now_ns))
        return true;
    if (flow->image.left && image_next(flow, tx_scratch(flow->core), desc))
        return true;
    struct chunk *lost = sent_first_lost(&flow->sent) ? tx_first_retransmission(flow) : NULL;
    if (lost)
        return tx_send_retransmission(flow, lost, desc, now_ns);
    return send_data(flow, desc, now_ns);
}

bool core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow;
    core->now_ns = now_ns;
    while ((flow = QUEUE_HOLDER(core->ready.head, struct flow, ready))) {
        bool sent = flow_tx(flow, desc, now_ns);
        if (sent && !flow->ready.next)
            return true;
        queue_remove(&core->ready, &flow->ready);
        if (sent) {
            queue_append(&core->ready, &flow->ready); /* the others' turn */
            return true;
        }
        flow_update_timer(flow);
    }
    return false;
}
