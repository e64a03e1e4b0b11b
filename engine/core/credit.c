/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Olteanu et al., "An edge-queued datagram service for all datacenter traffic" (EQDS), NSDI 2022, sections 3 and 4;
 * the Ultra Ethernet specification has a similar RCCC. A new flow sends UCCL_SPECULATE_KB unasked, about what a path
 * holds in flight, and advertises its demand ahead. The receiver grants quanta round robin at 0.99 of the link's rate
 * to flows with unmet demand. When there is none, it grants slowly to idle flows, until each may begin its next
 * message unasked again. Retransmissions need credit like every payload, and go first.
 *
 * Where this differs from the paper, and why:
 * - Demands and grants are totals and travel beside acks, not in data packets, whose header is full. The next frame
 *   makes up for a lost one, and a sender that hears nothing advertises its demand again. So no loss is final, and
 *   none needs a record.
 * - Each packet of a flow earns it a grant, which may cost a datagram beside the packet's ack. A flow without one
 *   waits for its next packet, and saves up few. So a peer that demands and never sends gets at most two datagrams for
 *   each of its own, however much it demands.
 * - Today's networks do not trim packets: acks and probes find the losses of a burst of new flows.
 * - A window (cc_eqds.c) bounds the bytes in flight, for congestion that the receiver does not see.
 *
 * Invariants: a flow is on at most one list of the pacer; on CREDIT_WANTING exactly when granted < demand.
 * Owned by the core's thread.
 */
#include "core/state.h"

#include <assert.h>

enum {
    GRANT_MAX_BYTES = 64 * 1024, /* the largest chunk of any peer: a packet may carry one, and earns one grant */
    LINK_PERCENT = 99,           /* granted part of the link's rate, so that a queue once built drains */
    IDLE_SHARE = 8,              /* a quantum for an idle flow takes as long as 8 others */
    WALK_MAX = 64,               /* messages looked at to find the demand */
    ASK_BACKOFF_MAX = 10,        /* doublings, */
    ASK_OFTEN = 6,               /* but beyond these only up to ASK_MAX_NS */
    HEARD_PATIENCE = 8,          /* timeout multiplier once the receiver knows the demand */
    GRANTS_SAVED_MAX = 16,
};
#define DEMAND_AHEAD_BYTES (UINT64_C(8) << 20) /* beyond what is used */
#define ASK_MIN_NS (100 * NS_PER_US)
#define ASK_MAX_NS (100 * NS_PER_MS)
#define ASK_FIRST_NS (1000 * NS_PER_US) /* while no round trip is known */
#define BURST_NS (50 * NS_PER_US)       /* most time that a pacer called late makes up for */

static uint64_t speculate_bytes(const struct flow *flow)
{
    return flow->core->params->speculate_kb * 1024;
}

static bool credited(const struct flow *flow)
{
    return flow->rails->cc.ops->credited;
}

void credit_init(struct flow *flow)
{
    flow->credit_tx = (struct credit_tx){.granted_bytes = speculate_bytes(flow), .ask_at_ns = UINT64_MAX};
    flow->credit_rx = (struct credit_rx){.granted_bytes = speculate_bytes(flow), .list = CREDIT_NONE};
}

/* ---- sending --------------------------------------------------------------------------------- */

uint64_t credit_left(const struct flow *flow)
{
    const struct credit_tx *tx = &flow->credit_tx;
    if (!credited(flow))
        return UINT64_MAX;
    return tx->granted_bytes > tx->used_bytes ? tx->granted_bytes - tx->used_bytes : 0;
}

bool credit_takes(const struct flow *flow, uint64_t payload_bytes)
{
    return payload_bytes <= credit_left(flow);
}

void credit_use(struct flow *flow, uint64_t payload_bytes)
{
    if (credited(flow))
        flow->credit_tx.used_bytes += payload_bytes;
}

void credit_unuse(struct flow *flow, uint64_t payload_bytes)
{
    if (credited(flow))
        flow->credit_tx.used_bytes -= payload_bytes;
}

/*
 * A sender that loses unasked bytes is not alone. Its retransmissions go at the receiver's pace, even where the unasked
 * credit would cover them: many senders of short messages would lose them over and over.
 */
void credit_on_loss(struct flow *flow)
{
    struct credit_tx *tx = &flow->credit_tx;
    bool unasked = tx->used_bytes > tx->advertised_bytes;
    if (credited(flow) && unasked && tx->used_bytes < tx->granted_bytes)
        tx->used_bytes = tx->granted_bytes;
}

/* Whether the message waits only for its turn: without eager credit, messages that need none do. */
static bool eager_waits(const struct conn *conn, const struct core_msg *msg)
{
    return msg && (!conn->blocked || msg->flags & (MSG_CHARGED | MSG_GRANTED));
}

/* Bytes that wait to be sent, up to a bound. A message without bytes counts as one: it needs credit for its turn. */
static uint64_t waiting_bytes(const struct flow *flow)
{
    uint64_t bytes = flow->sent.lost_payload;
    unsigned steps = 0;
    for (const struct queue_link *link = flow->active.head; link; link = link->next) {
        const struct conn *conn = QUEUE_HOLDER(link, struct conn, active);
        const struct core_msg *msg = conn->eager.head;
        for (; eager_waits(conn, msg) && steps < WALK_MAX; msg = msg->next, steps++)
            bytes += msg->size_bytes ? msg->size_bytes - msg->offset_bytes : 1;
        for (msg = conn->bulk.head; msg && steps < WALK_MAX; msg = msg->next, steps++)
            bytes += (msg->block_bytes ? msg->available_bytes : msg->end_bytes) - msg->offset_bytes;
        if (steps++ >= WALK_MAX || bytes >= DEMAND_AHEAD_BYTES)
            break;
    }
    return bytes < DEMAND_AHEAD_BYTES ? bytes : DEMAND_AHEAD_BYTES;
}

/* How long to wait for a grant before advertising the demand again. */
static uint64_t patience_ns(const struct flow *flow)
{
    const struct credit_tx *tx = &flow->credit_tx;
    const struct rtt *rtt = &flow->main->rtt; /* grants come with acks */
    uint64_t ns = rtt->srtt_ns ? 2 * rtt->srtt_ns + rtt->peer_ack_delay_ns : ASK_FIRST_NS;
    if (ns < ASK_MIN_NS)
        ns = ASK_MIN_NS;
    if (tx->heard_bytes >= tx->advertised_bytes)
        ns *= HEARD_PATIENCE; /* its turn will come; only the last grant may have been lost */
    uint64_t most_ns = ns << ASK_OFTEN < ASK_MAX_NS ? ASK_MAX_NS : ns << ASK_OFTEN;
    return ns << tx->backoff < most_ns ? ns << tx->backoff : most_ns;
}

static void advertise(struct flow *flow, uint64_t now_ns)
{
    flow->credit_tx.due = true;
    flow->credit_tx.ask_at_ns = now_ns + patience_ns(flow);
    ack_owe(flow, 0, true);
}

void credit_update(struct flow *flow, uint64_t now_ns)
{
    struct credit_tx *tx = &flow->credit_tx;
    if (!credited(flow) || tx->advertised_bytes >= tx->used_bytes + DEMAND_AHEAD_BYTES / 2)
        return;
    uint64_t demand_bytes = tx->used_bytes + waiting_bytes(flow);
    if (demand_bytes <= tx->advertised_bytes || demand_bytes <= tx->granted_bytes)
        return;
    tx->advertised_bytes = demand_bytes;
    advertise(flow, now_ns);
}

void credit_ask_again(struct flow *flow, uint64_t now_ns)
{
    struct credit_tx *tx = &flow->credit_tx;
    if (tx->backoff < ASK_BACKOFF_MAX)
        tx->backoff++;
    advertise(flow, now_ns);
}

/*
 * The receiver's total begins with its own UCCL_SPECULATE_KB. Where ours is larger, what we have used beyond that is
 * taken out of our totals: else the receiver would grant it once more first, and a sender that may send nothing
 * meanwhile earns few grants.
 */
static void begin_as_receiver(struct credit_tx *tx, uint64_t granted_bytes)
{
    uint64_t beyond_bytes = tx->granted_bytes - granted_bytes;
    if (beyond_bytes > tx->used_bytes)
        beyond_bytes = tx->used_bytes;
    tx->granted_bytes -= beyond_bytes;
    tx->used_bytes -= beyond_bytes;
}

void credit_on_grant(struct flow *flow, const struct wire_grant *grant, uint64_t now_ns)
{
    struct credit_tx *tx = &flow->credit_tx;
    uint64_t granted_bytes = wire_expand(grant->granted, tx->granted_bytes);
    uint64_t heard_bytes = wire_expand(grant->heard, tx->advertised_bytes);
    if (tx->heard_bytes == 0 && granted_bytes < tx->granted_bytes)
        begin_as_receiver(tx, granted_bytes);
    bool more = granted_bytes > tx->granted_bytes && granted_bytes < UINT64_MAX / 2;
    if (heard_bytes > tx->heard_bytes && heard_bytes <= tx->advertised_bytes)
        tx->heard_bytes = heard_bytes;
    if (more) {
        tx->granted_bytes = granted_bytes;
        tx->backoff = 0;
        flow_wake(flow);
    }
    if (tx->granted_bytes >= tx->advertised_bytes)
        tx->ask_at_ns = UINT64_MAX;
    else if (more || tx->heard_bytes == tx->advertised_bytes)
        tx->ask_at_ns = now_ns + patience_ns(flow);
}

unsigned credit_put(struct flow *flow, uint8_t *at)
{
    struct credit_tx *tx = &flow->credit_tx;
    const struct credit_rx *rx = &flow->credit_rx;
    unsigned bytes = 0;
    if (tx->due)
        bytes += wire_put_demand(at, &(struct wire_demand){(uint32_t)tx->advertised_bytes});
    tx->due = false;
    if (rx->demand_bytes)
        bytes +=
            wire_put_grant(at + bytes, &(struct wire_grant){(uint32_t)rx->granted_bytes, (uint32_t)rx->demand_bytes});
    return bytes;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void append_to_list(struct pacer *pacer, struct flow *flow, enum credit_list list)
{
    flow->credit_rx.list = (uint8_t)list;
    if (list != CREDIT_NONE)
        queue_append(&pacer->lists[list], &flow->credit_rx.turn);
}

static void leave_list(struct pacer *pacer, struct flow *flow)
{
    unsigned list = flow->credit_rx.list;
    if (list == CREDIT_NONE)
        return;
    queue_remove(&pacer->lists[list], &flow->credit_rx.turn);
    flow->credit_rx.list = CREDIT_NONE;
}

void credit_forget(struct flow *flow)
{
    leave_list(&flow->core->pacer, flow);
}

/* The total up to which an idle flow is granted, for its next message. */
static uint64_t advance_bytes(const struct flow *flow)
{
    return flow->credit_rx.demand_bytes + speculate_bytes(flow);
}

/* Puts the flow at the end of the list that fits its demand. */
static void await_grant(struct flow *flow)
{
    struct pacer *pacer = &flow->core->pacer;
    const struct credit_rx *rx = &flow->credit_rx;
    assert(!flow->dead);
    leave_list(pacer, flow);
    append_to_list(pacer, flow,
                   rx->granted_bytes < rx->demand_bytes      ? CREDIT_WANTING
                   : rx->granted_bytes < advance_bytes(flow) ? CREDIT_IDLE
                                                             : CREDIT_NONE);
}

/* As await_grant(). If no flow waited, pacing begins now: time without demand does not add up to a burst. */
static void await_first_grant(struct flow *flow)
{
    struct core *core = flow->core;
    if (pacer_deadline(core) == UINT64_MAX && core->pacer.next_ns < core->now_ns)
        core->pacer.next_ns = core->now_ns;
    await_grant(flow);
}

/* Takes one of the grants that the flow's packets have earned. False: none is left. */
static bool take_grant(struct flow *flow)
{
    struct credit_rx *rx = &flow->credit_rx;
    if (flow->packets_heard > rx->grants + GRANTS_SAVED_MAX)
        rx->grants = flow->packets_heard - GRANTS_SAVED_MAX;
    rx->exhausted = rx->grants >= flow->packets_heard;
    rx->grants += !rx->exhausted;
    return !rx->exhausted;
}

void credit_resume(struct flow *flow)
{
    struct credit_rx *rx = &flow->credit_rx;
    if (!rx->exhausted || rx->grants >= flow->packets_heard)
        return;
    rx->exhausted = false;
    await_first_grant(flow);
}

void credit_on_demand(struct flow *flow, const struct wire_demand *demand, uint64_t now_ns)
{
    struct credit_rx *rx = &flow->credit_rx;
    uint64_t demand_bytes = wire_expand(demand->target, rx->demand_bytes);
    ack_owe(flow, 0, true); /* its GRANT confirms the demand */
    credit_resume(flow);
    if (demand_bytes <= rx->demand_bytes || demand_bytes > UINT64_MAX / 2)
        return;
    rx->demand_bytes = demand_bytes;
    if (demand_bytes > rx->granted_bytes && rx->list != CREDIT_WANTING)
        await_first_grant(flow);
    pacer_run(flow->core, now_ns);
}

/* The time that so much payload takes on the link, with our headers. */
static uint64_t link_ns(const struct flow *flow, uint64_t payload_bytes)
{
    uint64_t stride = flow->rails->datagram_bytes - WIRE_BULK_HEADER_BYTES;
    uint64_t wire_bytes = payload_bytes + (payload_bytes + stride - 1) / stride * WIRE_BULK_HEADER_BYTES;
    return wire_bytes * 8 * 1000 * 100 / (flow->core->pacer.link_mbps * LINK_PERCENT);
}

void pacer_run(struct core *core, uint64_t now_ns)
{
    struct pacer *pacer = &core->pacer;
    if (now_ns > BURST_NS && pacer->next_ns < now_ns - BURST_NS)
        pacer->next_ns = now_ns - BURST_NS;
    while (pacer->next_ns <= now_ns) {
        enum credit_list list = pacer->lists[CREDIT_WANTING].head ? CREDIT_WANTING : CREDIT_IDLE;
        struct flow *flow = QUEUE_HOLDER(pacer->lists[list].head, struct flow, credit_rx.turn);
        if (!flow)
            return;
        struct credit_rx *rx = &flow->credit_rx;
        leave_list(pacer, flow);
        if (!take_grant(flow))
            continue;
        uint64_t until_bytes = list == CREDIT_WANTING ? rx->demand_bytes : advance_bytes(flow);
        uint64_t bytes = until_bytes - rx->granted_bytes;
        if (bytes > GRANT_MAX_BYTES)
            bytes = GRANT_MAX_BYTES;
        rx->granted_bytes += bytes;
        pacer->next_ns += link_ns(flow, bytes) * (list == CREDIT_IDLE ? IDLE_SHARE : 1);
        ack_owe(flow, 0, true);
        await_grant(flow);
    }
}

uint64_t pacer_deadline(const struct core *core)
{
    const struct pacer *pacer = &core->pacer;
    return pacer->lists[CREDIT_WANTING].head || pacer->lists[CREDIT_IDLE].head ? pacer->next_ns : UINT64_MAX;
}
