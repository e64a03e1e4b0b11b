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

bool tx_is_paced_out(struct rail *rail, uint64_t now_ns)
{
    if (rail->cc.pace_gap_ns == 0 || rail->pace_until_ns <= now_ns)
        return false;
    rail->window_limited = true;
    return true;
}

/* A chunk is about to fly: timeouts count from here, and the next one waits for its gap. */
static inline void begin_flight(struct rail *rail, const struct chunk *chunk, uint64_t now_ns)
{
    bool idle = rail->flying_chunks == 0 && rail->last_ack_ns < now_ns;
    if (idle && (chunk->transmissions == 0 || chunk->rail != rail->index))
        rail->last_ack_ns = now_ns;
    if (rail->cc.pace_gap_ns)
        rail->pace_until_ns = now_ns + rail->cc.pace_gap_ns * chunk->payload_bytes / rail->cc.chunk_bytes;
}

/* Puts the chunk on a path. */
static void fly(struct rail *rail, struct chunk *chunk, uint16_t path, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    begin_flight(rail, chunk, now_ns);
    sent_fly(&flow->sent, rail, chunk, path, now_ns);
    credit_use(flow, chunk->payload_bytes);
}

void tx_begin_writes(struct rail *rail, struct chunk *plan, uint64_t now_ns)
{
    tx_expect_ack(rail->flow);
    begin_flight(rail, plan, now_ns);
    plan->rail = rail->index;
    plan->state = CHUNK_FLYING;
    plan->sent_ns = now_ns;
    plan->transmissions = 1;
}

/* Paths that have worked seem to have stopped. */
static bool at_a_loss(const struct rail *rail)
{
    enum { TIMEOUTS = 2 };
    return rail->loss.rto_backoff >= TIMEOUTS;
}

/* The path for the chunk's next transmission. */
static uint16_t choose_path(struct rail *rail, const struct chunk *chunk, int avoid)
{
    struct path_set *paths = &rail->paths;
    if (chunk->placed)
        return chunk->path;
    if (rail->reliable)
        return rail_global(rail, (uint16_t)channel_choose(paths, chunk->kind == CHUNK_BULK));
    int barred = rail_avoids(rail, avoid);
    if (chunk->transmissions > 0)
        return rail_global(rail, path_choose_safe(paths, barred, at_a_loss(rail)));
    return chunk->follows && chunk->rail == rail->index ? chunk->path : rail_global(rail, path_choose(paths, barred));
}

void tx_launch(struct rail *rail, struct chunk *chunk, uint64_t seq, uint64_t mask, int avoid, struct tx_desc *desc,
               uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    struct core *core = flow->core;
    bool retransmission = chunk->transmissions > 0;
    fly(rail, chunk, choose_path(rail, chunk, avoid), now_ns);
    desc->flow = flow;
    desc->due = 0;
    desc->sequenced = true;
    desc->retransmission = retransmission;
    desc->written = chunk->written;
    chunk->written = false;
    desc->count = chunk->count;
    desc->mask = mask;
    desc->path = chunk->path;
    desc->port = rail_local(rail, chunk->path);
    desc->rail = rail->index;
    desc->path_seq = chunk->path_seq;
    desc->destination = rail->destination;
    desc->token = flow->tx_token;
    desc->seq = seq;
    desc->time_stamp = wire_time(now_ns);
    desc->datagram_bytes = chunk->datagram_bytes;
    desc->last_bytes = chunk->last_bytes;
    desc->payload_crc = rail->payload_crc;
    desc->on_path = chunk->placed;
    desc->fragment = desc->whole = false;
    if (!retransmission)
        COUNT(core->counters, tx_chunks, 1);
    else if (!chunk->in_pieces) /* image.c counts fragments as they go */
        COUNT(core->counters, retransmits, (unsigned)__builtin_popcountll(mask));
}

void tx_describe_unnumbered(struct rail *rail, uint8_t *buffer, uint32_t bytes, uint16_t port, unsigned due,
                            struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    *desc = (struct tx_desc){
        .kind = TX_FRAMES,
        .count = 1,
        .path = rail_global(rail, port),
        .port = port,
        .rail = rail->index,
        .due_rail = rail->index,
        .destination = rail->destination,
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
