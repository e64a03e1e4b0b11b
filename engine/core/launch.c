/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the windows take a chunk, and putting it on a path. */
#include "core/transmit.h"

uint32_t tx_datagrams_within(uint32_t datagram_bytes, uint64_t window_bytes, uint32_t most)
{
    uint64_t fit = window_bytes / (datagram_bytes + CORE_KERNEL_BYTES);
    if (fit < most)
        most = (uint32_t)fit;
    return most ? most : 1;
}

bool tx_is_paced_out(struct flow *flow, uint64_t now_ns)
{
    if (flow->cc.pace_gap_ns == 0 || flow->pace_until_ns <= now_ns)
        return false;
    flow->window_limited = true;
    return true;
}

void tx_fly(struct flow *flow, struct chunk *chunk, uint16_t path, uint64_t now_ns)
{
    if (flow->sent.flying_chunks == 0 && flow->last_ack_ns < now_ns)
        flow->last_ack_ns = now_ns;
    sent_fly(&flow->sent, chunk, path, now_ns);
    credit_use(flow, chunk->payload_bytes);
    if (flow->cc.pace_gap_ns)
        flow->pace_until_ns = now_ns + flow->cc.pace_gap_ns * chunk->payload_bytes / flow->cc.chunk_bytes;
}

/* Paths that have worked seem to have stopped. */
static bool at_a_loss(const struct flow *flow)
{
    enum { TIMEOUTS = 2 };
    return flow->loss.rto_backoff >= TIMEOUTS;
}

void tx_launch(struct flow *flow, struct chunk *chunk, uint64_t seq, uint64_t mask, int avoid, struct tx_desc *desc,
               uint64_t now_ns)
{
    struct core *core = flow->core;
    bool retransmission = chunk->transmissions > 0;
    uint16_t path = chunk->path;
    if (!chunk->placed)
        path =
            retransmission ? path_choose_safe(&flow->paths, avoid, at_a_loss(flow)) : path_choose(&flow->paths, avoid);
    tx_fly(flow, chunk, path, now_ns);
    desc->flow = flow;
    desc->due = 0;
    desc->sequenced = true;
    desc->retransmission = retransmission;
    desc->written = chunk->written;
    chunk->written = false;
    desc->count = chunk->count;
    desc->mask = mask;
    desc->path = chunk->path;
    desc->path_seq = chunk->path_seq;
    desc->destination = flow->destination;
    desc->token = flow->tx_token;
    desc->seq = seq;
    desc->time_stamp = wire_time(now_ns);
    desc->datagram_bytes = chunk->datagram_bytes;
    desc->last_bytes = chunk->last_bytes;
    desc->payload_crc = core->params->payload_crc;
    desc->on_path = chunk->placed;
    desc->fragment = desc->whole = false;
    if (!retransmission)
        COUNT(core->counters, tx_chunks, 1);
    else if (!chunk->in_pieces) /* image.c counts fragments as they go */
        COUNT(core->counters, retransmits, (unsigned)__builtin_popcountll(mask));
}

void tx_describe_unnumbered(struct flow *flow, uint8_t *buffer, uint32_t bytes, uint16_t path, unsigned due,
                            struct tx_desc *desc, uint64_t now_ns)
{
    *desc = (struct tx_desc){
        .kind = TX_FRAMES,
        .count = 1,
        .path = path,
        .destination = flow->destination,
        .mask = 1,
        .datagram_bytes = bytes,
        .last_bytes = bytes,
        .token = flow->tx_token,
        .path_seq = flow->ack.number, /* unique among packets without sequence number */
        .time_stamp = wire_time(now_ns),
        .buffer = buffer,
        .flow = flow,
        .due = (uint16_t)due,
    };
}
