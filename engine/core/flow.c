/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every part of a flow calls: the queues of the core that the flow is on, buffers of frames, what it expects of
 * the peer, its rails, its timer. Nothing here calls back.
 */
#include "core/flow.h"
#include "core/state.h"

#include <assert.h>

/* ---- buffers of frames ----------------------------------------------------------------------- */

/*
 * A flow that is refused has chunks under way, at least one in its own buffer, and goes on when one of them is acked.
 * So no flow waits for the buffers of others.
 */
uint8_t *flow_take_buffer(struct flow *flow, bool big, uint8_t *of)
{
    struct core *core = flow->core;
    uint8_t *buffer = big ? pool_take(&core->big, &flow->held[BUFFER_BIG]) : NULL;
    *of = BUFFER_BIG;
    if (!buffer) {
        buffer = pool_take(&core->small, &flow->held[BUFFER_SMALL]);
        *of = BUFFER_SMALL;
    }
    if (!buffer && !flow->own_used) {
        flow->own_used = true;
        buffer = flow->own_buffer;
        *of = BUFFER_OWN;
    }
    return buffer;
}

void flow_put_buffer(struct flow *flow, uint8_t *buffer, uint8_t of)
{
    if (of == BUFFER_OWN)
        flow->own_used = false;
    else
        pool_put(of == BUFFER_SMALL ? &flow->core->small : &flow->core->big, &flow->held[of], buffer);
}

/* ---- lists ----------------------------------------------------------------------------------- */

void flow_wake(struct flow *flow)
{
    if (!flow->dead)
        queue_append(&flow->core->ready, &flow->ready);
}

void flow_add_ctrl(struct conn *conn)
{
    queue_append(&conn->flow->ctrl, &conn->ctrl);
    conn->flow->ctrl_urgent = true;
    flow_wake(conn->flow);
}

void flow_add_active(struct conn *conn)
{
    if (queue_append(&conn->flow->active, &conn->active))
        conn->deficit_bytes = 0;
    flow_wake(conn->flow);
}

void flow_rotate_active(struct flow *flow, bool keep)
{
    struct conn *conn = flow_first_active(flow);
    queue_remove(&flow->active, &conn->active);
    if (keep) {
        int64_t deficit = conn->deficit_bytes + QUANTUM_BYTES;
        flow_add_active(conn);
        conn->deficit_bytes = deficit > QUANTUM_BYTES ? QUANTUM_BYTES : deficit;
    }
}

/* ---- the peer -------------------------------------------------------------------------------- */

void flow_heard(struct flow *flow, uint64_t now_ns)
{
    flow->last_rx_ns = flow->heard_ns = now_ns;
    flow->packets_heard++;
    share_note(flow);
}

bool flow_expects_peer(const struct flow *flow)
{
    return flow->msgs_pending || flow->sent.next_seq > flow->sent.cumulative ||
           (flow->rails->probe.asking && !flow_proven(flow));
}

void flow_expect_peer(struct flow *flow, uint64_t now_ns)
{
    if (!flow_expects_peer(flow) && flow->last_rx_ns < now_ns)
        flow->last_rx_ns = now_ns;
}

bool flow_unanswered(const struct flow *flow, uint64_t ns)
{
    if (flow->cut_ns)
        return flow->core->now_ns >= flow->cut_ns + ns;
    uint64_t since_ns = flow->heard_ns > flow->asked_ns ? flow->heard_ns : flow->asked_ns;
    bool repeated = silence_is_unanswered(flow); /* else perhaps our own process did not run */
    return repeated && flow->sent.next_seq > flow->sent.cumulative && flow->core->now_ns >= since_ns + ns;
}

/* ---- rails that join ------------------------------------------------------------------------- */

/* It has rails of connections beside those of datagrams, and no connection is up. */
static bool lacks_connections(const struct flow *flow)
{
    const struct rail *rail = &flow->rails[flow->rail_most - 1];
    for (; !flow->rails->reliable && rail->reliable; rail--) {
        if (channel_up(&rail->paths))
            return false;
    }
    return rail < &flow->rails[flow->rail_most - 1];
}

void flow_want_rails(struct flow *flow, enum rails_wanted why)
{
    bool again = why == WANTED_IN_SILENCE && flow->rails_wanted == WANTED_TOLD;
    if ((flow->rails_wanted != WANTED_NOT && !again) || !lacks_connections(flow))
        return;
    flow->rails_wanted = (uint8_t)why;
    queue_append(&flow->core->flow_events, &flow->event);
}

void flow_count_bulk(struct flow *flow, uint64_t bytes)
{
    enum { BULK_BYTES = 16 << 20 }; /* are worth connections beside datagrams */
    flow->bulk_bytes += bytes;
    if (flow->bulk_bytes >= BULK_BYTES)
        flow_want_rails(flow, WANTED_FOR_BULK);
}

/* ---- rails ------------------------------------------------------------------------------------ */

struct rail *flow_find_rail(struct flow *flow, uint16_t path)
{
    EACH_RAIL(flow, rail)
    {
        if (rail_has_path(rail, path))
            return rail;
    }
    return NULL;
}

void flow_ask(struct flow *flow)
{
    bool unanswered = silence_is_unanswered(flow); /* then every rail is asked */
    if (unanswered)
        flow_want_rails(flow, WANTED_IN_SILENCE);
    EACH_RAIL(flow, rail)
    {
        if (rail != flow->main && !(unanswered && rail_carries(rail)))
            continue;
        if (rail_has_room(rail, false))
            rail->probe.due |= PROBE_ASK;
        else /* a peer whose connections are broken would not answer */
            silence_ask(flow, flow->core->now_ns);
    }
    flow_wake(flow);
}

struct rail *flow_find_probe(struct flow *flow)
{
    EACH_RAIL(flow, rail)
    {
        if (rail->probe.due && rail_has_room(rail, false))
            return rail;
    }
    return NULL;
}

struct rail *flow_best_beside(const struct flow *flow)
{
    struct rail *best = NULL;
    for (struct rail *rail = flow->bulk; rail; rail = rail->next) {
        if (!rail->reliable || !rail_usable(rail) || rail_is_lossy(rail))
            continue;
        bool room = rail_has_room(rail, true), best_room = best && rail_has_room(best, true);
        if (!best || room > best_room || (room == best_room && rail_cost(rail) < rail_cost(best)))
            best = rail;
    }
    return best;
}

/* ---- time ------------------------------------------------------------------------------------- */

void flow_arm(struct flow *flow, uint64_t at_ns)
{
    if (at_ns != UINT64_MAX && (!timer_armed(&flow->timer) || at_ns < flow->timer.deadline_ns))
        timer_arm(&flow->core->wheel, &flow->timer, at_ns);
}
