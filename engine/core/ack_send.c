/* SPDX-License-Identifier: Apache-2.0 */
/* Acks that this end owes: when they go, and what they say. */
#include "core/state.h"

enum { NS_PER_US = 1000 };

void flow_owe_ack(struct flow *flow, uint64_t delay_ns, bool now)
{
    uint64_t at_ns = flow->core->now_ns + delay_ns;
    if (!flow->ack_pending || at_ns < flow->ack_at_ns)
        flow->ack_at_ns = at_ns;
    flow->ack_pending = true;
    if (now && !flow->ack_now) {
        flow->ack_now = true;
        flow_wake(flow);
    }
}

void flow_owe_delayed_ack(struct flow *flow, bool now)
{
    flow_owe_ack(flow, flow->core->params->ack_delay_us * NS_PER_US, now);
}

void flow_credit_due(struct conn *conn, bool now)
{
    conn->credit_due = true;
    queue_append(&conn->flow->ctrl, &conn->ctrl);
    flow_owe_delayed_ack(conn->flow, now);
}

void flow_fill_ack(struct flow *flow, struct wire_ack *ack, uint64_t now_ns)
{
    credit_resume(flow);
    sack_fill(&flow->sack, ack, now_ns);
    ack->number = flow->ack_number++;
    ack->window_kb = (uint32_t)(flow_rx_share(flow) / 1024);
    ack->next = (uint32_t)flow->sent.next_seq;
    flow->ack_pending = false;
    flow->ack_now = false;
    flow->ack_chunks = 0;
    COUNT(flow->core->counters, tx_acks, 1);
    /* What found no room does not wait for the next packet, which may come after minutes: its hold would look like the
     * time that this end keeps acks back, for which the peer's timers wait. */
    if (sack_has_news(&flow->sack))
        flow_owe_delayed_ack(flow, false);
}
