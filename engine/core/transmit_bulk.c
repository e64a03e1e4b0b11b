/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of granted messages. They go as writes over a data QP, where one is up; else, and when retransmitted after a
 * drain, as datagrams.
 */
#include "core/transmit.h"

#include <assert.h>

enum { WRITE_UNIT_BYTES = 4096 }; /* what writes are cut at */

/* Payload of every datagram of a chunk but the last. */
static uint32_t stride_of(const struct rail *rail, const struct core_msg *msg)
{
    uint32_t room = rail->datagram_bytes - WIRE_BULK_HEADER_BYTES;
    return msg->watched ? room - room % CORE_WATCHED_BYTES : room;
}

void tx_describe_bulk(const struct chunk *chunk, struct tx_desc *desc)
{
    struct core_msg *msg = chunk->bulk.msg;
    desc->kind = TX_BULK;
    desc->bulk_msg = msg;
    desc->bulk_offset = chunk->bulk.offset;
    desc->bulk_stride = chunk->datagram_bytes - WIRE_BULK_HEADER_BYTES;
    desc->bulk_last = chunk->last_bytes - WIRE_BULK_HEADER_BYTES;
    desc->conn_id = msg->conn->remote_id;
    desc->msg_number = (uint32_t)msg->number;
    desc->msg_total = msg->size_bytes;
    desc->stripes = msg->stripes;
}

/*
 * Payload of the next chunk of a message with `left` bytes: as much as fits, but evenly. A tiny last chunk would cost a
 * system call, and even chunks let sender and receiver overlap from the start.
 */
static uint32_t even_bytes(uint64_t left, uint32_t most, uint32_t unit)
{
    if (left <= most)
        return (uint32_t)left;
    uint64_t chunks = (left + most - 1) / most;
    uint32_t even = (uint32_t)(((left + chunks - 1) / chunks + unit - 1) / unit * unit);
    return even < most ? even : most;
}

/* Payload of a full chunk. */
static uint32_t bulk_bytes_max(const struct rail *rail, uint32_t stride, uint32_t *unit)
{
    const struct flow *flow = rail->flow;
    uint32_t chunk_bytes = (uint32_t)flow->core->params->chunk_size_kb * 1024;
    if (rail->reliable) { /* one record */
        *unit = CORE_WATCHED_BYTES;
        return stride;
    }
    uint32_t count_max = CORE_TRAIN_BYTES_MAX / (stride + WIRE_BULK_HEADER_BYTES);
    if (count_max > chunk_bytes / stride)
        count_max = chunk_bytes / stride;
    if (count_max > CORE_TRAIN_MAX)
        count_max = CORE_TRAIN_MAX;
    /* two chunks must fit the peer's buffer: one that overflows it would lose its end each time */
    count_max = tx_datagrams_within(rail->datagram_bytes, flow->peer_window_bytes / 2, count_max);
    *unit = count_max > 1 ? stride : CORE_WATCHED_BYTES;
    return count_max * stride < chunk_bytes ? count_max * stride : chunk_bytes;
}

static uint32_t bulk_bytes(const struct rail *rail, uint64_t left, uint32_t stride)
{
    uint32_t unit, most = bulk_bytes_max(rail, stride, &unit);
    return even_bytes(left, most, unit);
}

uint32_t tx_chunk_bytes(const struct flow *flow, const struct core_msg *msg)
{
    enum { SHARES = 16 }; /* of a message that flows share: a record that is as large as one of these keeps all busy */
    const struct rail *bulk = tx_bulk_rail(flow, msg), *rail = bulk ? bulk : flow->main;
    uint32_t unit, most = bulk_bytes_max(rail, stride_of(rail, msg), &unit);
    if (rail->reliable && most > msg->size_bytes / SHARES)
        most = (uint32_t)(msg->size_bytes / SHARES);
    if (rail->reliable && most < CORE_STRIPE_UNIT)
        most = CORE_STRIPE_UNIT;
    return most < CORE_WATCHED_BYTES ? CORE_WATCHED_BYTES : most - most % CORE_WATCHED_BYTES;
}

bool tx_lay_out(struct chunk *chunk, uint32_t stride)
{
    uint32_t bytes = chunk->payload_bytes;
    uint32_t count = (bytes + stride - 1) / stride;
    if (count > CORE_TRAIN_MAX)
        return false;
    chunk->count = (uint8_t)count;
    chunk->charged_bytes = tx_charge(bytes, count);
    chunk->datagram_bytes = (count > 1 ? stride : bytes) + WIRE_BULK_HEADER_BYTES;
    chunk->last_bytes = bytes - (count - 1) * stride + WIRE_BULK_HEADER_BYTES;
    return true;
}

/*
 * A record over a connection may be far larger than a datagram. It arrived whole or not at all, so it may be cut anew,
 * though perhaps into datagrams that go in fragments.
 */
void tx_change_kind(struct chunk *chunk, const struct rail *rail)
{
    if (!rail->reliable && chunk->kind == CHUNK_BULK && chunk->count == 1) {
        uint32_t stride = stride_of(rail, chunk->bulk.msg),
                 least = (chunk->payload_bytes + CORE_TRAIN_MAX - 1) / CORE_TRAIN_MAX;
        least = (least + CORE_WATCHED_BYTES - 1) / CORE_WATCHED_BYTES * CORE_WATCHED_BYTES;
        bool fits = tx_lay_out(chunk, stride > least ? stride : least);
        assert(fits);
        (void)fits;
    }
    chunk->charged_bytes = rail->reliable ? 0 : tx_charge(chunk->payload_bytes, chunk->count);
}

/* The record of every chunk of this size that is cut from the message. */
static inline void plan_bulk(struct chunk *plan, struct core_msg *msg, uint32_t bytes, uint32_t stride)
{
    *plan = (struct chunk){.kind = CHUNK_BULK, .bulk.msg = msg, .payload_bytes = bytes};
    bool fits = tx_lay_out(plan, stride);
    assert(fits);
    (void)fits;
}

/* The next `count` chunks of the message have been made, of `bytes` in all. */
static void take_chunks(struct core_msg *msg, uint32_t count, uint64_t bytes)
{
    struct conn *conn = msg->conn;
    msg->chunks_live += count;
    conn_take_bulk(conn, msg, bytes);
    conn->deficit_bytes -= (int64_t)bytes;
}

/*
 * How many writes of this size go to a data QP as one WR batch: one while other messages wait, else a few, so that all
 * data QPs get their share of the message.
 */
static uint64_t writes_per_batch(const struct flow *flow, const struct core_msg *msg, uint32_t bytes)
{
    enum { BATCH_MAX = 8 };
    if (flow->ready.next || msg->conn->active.next || msg->conn->eager.head)
        return 1;
    uint64_t share = msg->size_bytes / bytes / flow->qps.usable, left = (msg->end_bytes - msg->offset_bytes) / bytes;
    uint64_t batch = share < left ? share : left;
    return batch < BATCH_MAX ? batch : BATCH_MAX;
}

/* A WR batch: one write per chunk, none larger than its datagrams could carry should it be lost. */
static bool send_placed(struct rail *rail, struct conn *conn, struct core_msg *msg, const struct send_slot *grant,
                        struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    uint32_t stride = stride_of(rail, msg);
    uint32_t most = (uint32_t)flow->core->params->chunk_size_kb * 1024;
    if (most > CORE_TRAIN_MAX * stride)
        most = CORE_TRAIN_MAX * stride;
    if (most > rail->datagram_bytes && data_qps_lossy(flow))
        most = rail->datagram_bytes;
    uint64_t left = msg->end_bytes - msg->offset_bytes;
    uint32_t bytes = even_bytes(left, most, WRITE_UNIT_BYTES);
    if (!tx_has_record(flow, false) || !tx_window_takes(rail, bytes, tx_charge(0, 1), 0))
        return false;
    int qp = data_qp_choose(rail);
    if (qp < 0)
        return false; /* until the NIC finishes a work request */

    uint64_t batch = writes_per_batch(flow, msg, bytes);
    struct chunk plan;
    plan_bulk(&plan, msg, bytes, stride);
    plan.charged_bytes = tx_charge(0, 1); /* a write takes a receive request of the peer, and no buffer */
    plan.placed = plan.written = true;
    plan.path = (uint16_t)qp;
    plan.bulk.offset = msg->offset_bytes;
    desc->kind = TX_PLACE;
    desc->count = 0;
    desc->flow = flow;
    desc->due = 0;
    desc->sequenced = desc->on_path = true;
    desc->retransmission = desc->fragment = desc->whole = false;
    desc->mask = 1;
    desc->path = desc->port = (uint16_t)qp;
    desc->rail = rail->index;
    desc->destination = rail->destination;
    desc->seq = flow->sent.next_seq;
    desc->bulk_msg = msg;
    desc->bulk_offset = msg->offset_bytes;
    desc->place_bytes = bytes;
    desc->remote_address = grant->address + msg->offset_bytes;
    desc->remote_key = grant->keys[rail->pair];
    desc->immediate = wire_immediate(grant->slot, desc->seq);
    rail_give_bulk(rail, now_ns);
    tx_begin_writes(rail, &plan, now_ns);
    do {
        sent_write(&flow->sent, rail, &plan);
        credit_use(flow, bytes);
        plan.bulk.offset += bytes;
    } while (++desc->count < batch && data_qp_takes(&flow->qps, plan.path, desc->count + 1u) &&
             tx_has_record(flow, false) && tx_window_takes(rail, bytes, plan.charged_bytes, 0));
    take_chunks(msg, desc->count, (uint64_t)desc->count * bytes);
    data_qps_wrote(flow, desc->count * ((bytes + rail->datagram_bytes - 1) / rail->datagram_bytes));
    data_qp_begin_work(flow, plan.path, msg, desc->count, desc);
    COUNT(flow->core->counters, tx_chunks, desc->count);
    COUNT(flow->core->counters, tx_placed, desc->count);
    return true;
}

bool tx_send_bulk(struct rail *rail, struct conn *conn, struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    struct core_msg *msg = conn_bulk_ready(conn);
    const struct send_slot *grant = rail->qps_usable ? conn_grant(conn, msg, 1u << rail->pair) : NULL;
    if (grant)
        return send_placed(rail, conn, msg, grant, desc, now_ns);
    uint32_t stride = stride_of(rail, msg);
    uint32_t bytes = bulk_bytes(rail, conn_bulk_left(msg), stride);
    uint32_t count = (bytes + stride - 1) / stride;
    uint32_t charge = rail_is_beside(rail) ? 0 : tx_charge(bytes, count); /* the kernel bounds what connections hold */
    if (!tx_has_record(flow, false) || !tx_window_takes(rail, bytes, charge, 0))
        return false;

    uint64_t seq;
    struct chunk plan;
    plan_bulk(&plan, msg, bytes, stride);
    plan.charged_bytes = charge;
    if (rail_is_beside(rail))
        COUNT(flow->core->counters, tcp_bulk_bytes, bytes);
    else
        flow_note_bulk(flow, msg, bytes);
    if (msg->flags & MSG_AHEAD) {
        int path = conn_leader_path(msg, rail);
        plan.follows = path >= 0;
        plan.path = (uint16_t)path;
        plan.rail = rail->index;
    }
    plan.bulk.offset = msg->offset_bytes;
    rail_give_bulk(rail, now_ns);
    mtu_gives_large(rail);
    take_chunks(msg, 1, bytes);
    struct chunk *chunk = tx_new_chunk(flow, &plan, &seq);
    tx_launch(rail, chunk, seq, wire_full_mask(count), -1, desc, now_ns);
    tx_describe_bulk(chunk, desc);
    return true;
}
