/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunk is sent again, over which path, and in what form. */
#include "core/transmit.h"

#include <assert.h>

static uint64_t retransmission_mask(const struct chunk *chunk)
{
    uint64_t mask = wire_full_mask(chunk->count) & ~chunk->acked_mask;
    assert(mask); /* sent_ack() sees to that, whatever the peer acks */
    return mask;
}

/* Whether a connection that the chunk would go over has room. */
static bool has_way(struct flow *flow, const struct chunk *chunk)
{
    const struct rail *rail = flow->reliable ? tx_rail_again(flow, chunk) : sent_rail(&flow->sent, chunk);
    return rail && rail_has_room(rail, chunk->kind == CHUNK_BULK);
}

/* Of several rails: the probe that is due, which other rails' chunks that wait for a window do not hold up; or NULL. */
static struct chunk *due_probe(struct flow *flow)
{
    bool due = false;
    EACH_RAIL(flow, rail)
    due |= rail->loss.tail_probe_due;
    if (!due || flow->rail_count == 1)
        return NULL;
    for (struct chunk *chunk = sent_first_lost(&flow->sent); chunk; chunk = sent_next_lost(chunk)) {
        if (!chunk->placed && !chunk->written && sent_rail(&flow->sent, chunk)->loss.tail_probe_due &&
            has_way(flow, chunk))
            return chunk;
    }
    return NULL;
}

struct chunk *tx_first_retransmission(struct flow *flow)
{
    struct sent *sent = &flow->sent;
    struct chunk *probe = due_probe(flow);
    if (probe)
        return probe;
    for (struct chunk *chunk = sent_first_lost(sent), *next; chunk; chunk = next) {
        next = sent_next_lost(chunk);
        if (chunk->written) /* never sent as datagrams: their size may have changed since */
            tx_lay_out(chunk, sent_rail(sent, chunk)->datagram_bytes -
                                  WIRE_BULK_HEADER_BYTES); /* watched receives have no writes */
        if (!chunk->placed && has_way(flow, chunk))
            return chunk;
        if (!chunk->placed)
            continue;
        if (!data_qp_takes(&flow->qps, chunk->path, (uint32_t)__builtin_popcountll(retransmission_mask(chunk))))
            continue;
        if (data_qp_may_retransmit(flow, chunk->path))
            return chunk;
        next = sent_first_lost(sent); /* its data QP is being drained, which takes chunks off the list */
    }
    return NULL;
}

bool tx_send_retransmission(struct flow *flow, struct chunk *chunk, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct rail *from = sent_rail(&flow->sent, chunk), *rail = tx_rail_again(flow, chunk);
    if (!rail)
        return false;
    if (rail->reliable || from->reliable) /* it may have been cut for another rail, which did not take it */
        tx_change_kind(chunk, rail);
    bool probe = from->loss.tail_probe_due, in_pieces = image_needed(rail, chunk);
    if (in_pieces)
        chunk->charged_bytes = image_charge(rail, chunk);
    if (!probe &&
        (!tx_window_takes(rail, chunk->payload_bytes, chunk->charged_bytes, 0) || tx_is_paced_out(rail, now_ns)))
        return false;
    from->loss.tail_probe_due = false;
    COUNT(core->counters, rail_moves, rail != from && chunk->transmissions > 0);
    uint64_t seq = sent_seq(&flow->sent, chunk);
    uint64_t mask = retransmission_mask(chunk);
    chunk->in_pieces = in_pieces;
    tx_launch(rail, chunk, seq, mask, chunk->path, desc, now_ns);
    desc->piece_count = 0;
    desc->due = probe ? TX_DUE_TAIL_PROBE : 0;
    switch ((enum chunk_kind)chunk->kind) {
    case CHUNK_BULK:
        tx_describe_bulk(chunk, desc);
        break;
    case CHUNK_FRAMES:
        desc->kind = TX_FRAMES;
        desc->buffer = chunk->frames.buffer;
        break;
    case CHUNK_ABANDONED:
        desc->kind = TX_FRAMES;
        desc->buffer = tx_scratch(core);
        desc->datagram_bytes = desc->last_bytes = WIRE_HEADER_BYTES;
        for (unsigned i = 0; i < chunk->count; i++)
            wire_set_header_length(desc->buffer + i * WIRE_HEADER_BYTES, WIRE_HEADER_BYTES);
        break;
    }
    if (chunk->placed) {
        if (data_qp_retransmits(flow, chunk->path))
            desc->due |= TX_DUE_ROUND;
        data_qp_begin_work(flow, chunk->path, chunk->kind == CHUNK_BULK ? chunk->bulk.msg : NULL,
                           (uint32_t)__builtin_popcountll(mask), desc);
    }
    if (!in_pieces)
        return true;
    image_begin(flow, desc);
    return image_next(flow, tx_scratch(core), desc);
}
