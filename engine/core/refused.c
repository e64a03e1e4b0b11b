/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that the NIC has refused. Nothing of it is lost: its chunks wait to be sent again, and all else that was
 * due when the descriptor was made (tx_desc.due) is due again.
 */
#include "core/transmit.h"

/* Counters count only what has left. */
static void undo_counts(struct counters *counters, const struct tx_desc *desc)
{
    uint64_t chunks = desc->kind == TX_PLACE ? desc->count : 1;
    if (!desc->sequenced) {
        if (desc->due & TX_DUE_ACK)
            COUNT(counters, tx_acks, -(uint64_t)1);
    } else if (desc->retransmission) {
        COUNT(counters, retransmits, -(uint64_t)__builtin_popcountll(desc->mask));
    } else {
        COUNT(counters, tx_chunks, -chunks);
    }
    if (desc->kind == TX_PLACE)
        COUNT(counters, tx_placed, -chunks);
}

static void undo_chunks(struct flow *flow, const struct tx_desc *desc, uint64_t now_ns)
{
    uint64_t end = desc->seq + (desc->kind == TX_PLACE ? desc->count : 1);
    if (desc->on_path)
        data_qp_undo_work(flow, desc->cookie);
    for (uint64_t seq = desc->seq; seq < end; seq++) {
        struct chunk *chunk = sent_chunk(&flow->sent, seq);
        if (seq < flow->sent.cumulative || chunk->state != CHUNK_FLYING)
            continue;
        sent_unsend(&flow->sent, chunk);
        credit_unuse(flow, chunk->payload_bytes);
        flow->rails[desc->rail].pace_until_ns = now_ns; /* its gap was over */
        if (desc->kind == TX_PLACE)
            chunk->placed = false; /* no NIC placed it: it may go over any path */
        else
            chunk->written = desc->written; /* its datagrams are cut anew */
    }
}

static void due_again(struct flow *flow, const struct tx_desc *desc)
{
    struct rail *rail = &flow->rails[desc->sequenced ? desc->rail : desc->due_rail];
    bool copy = desc->rail != desc->due_rail && flow_proven(flow); /* of echoes that other rails have: no NIC waits */
    probe_undo(rail, copy ? 0 : desc->due & TX_DUE_PROBES);
    if (desc->due & PROBE_SIZE)
        mtu_undo(rail);
    if (desc->due & (PROBE_OPEN | PROBE_TRY))
        reach_undo(rail, desc->opens ? desc->path : desc->port, desc->opens);
    if (desc->due & TX_DUE_ACK)
        ack_undo(flow, desc->due & TX_DUE_ACK_AGAIN);
    if (desc->due & TX_DUE_DEMAND)
        flow->credit_tx.due = true;
    if (desc->due & TX_DUE_TAIL_PROBE)
        rail->loss.tail_probe_due = true;
    if (desc->due & TX_DUE_ROUND)
        data_qp_unretransmit(flow, desc->path);
}

/* Refuses a fragment, and if it would have been the first, the chunk. Retransmissions in fragments are not counted. */
static void undo_fragment(struct flow *flow, uint64_t now_ns)
{
    const struct tx_desc *whole = image_undo(flow);
    if (!whole)
        return;
    COUNT(flow->core->counters, tx_chunks, -(uint64_t)!whole->retransmission);
    undo_chunks(flow, whole, now_ns);
    due_again(flow, whole);
}

void flow_tx_refused(struct flow *flow, const struct tx_desc *desc, uint64_t now_ns)
{
    undo_counts(flow->core->counters, desc);
    channel_refused(&flow->rails[desc->rail], desc->port);
    if (flow->dead) {
        if (desc->due & TX_DUE_FAREWELL)
            flow_bid_farewell(flow);
        return;
    }
    silence_ask(flow, now_ns);
    if (desc->sequenced)
        undo_chunks(flow, desc, now_ns);
    due_again(flow, desc);
    if (desc->due & TX_DUE_FRAGMENT)
        undo_fragment(flow, now_ns);
    flow_wake(flow);
}
