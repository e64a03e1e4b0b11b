/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small messages and control frames of all connections share datagrams, and datagrams share a train. So do granted
 * messages that would fill no chunk, where a train costs about one send. A train stands in a buffer of the pool until
 * it is acked, since the messages may be gone before.
 */
#include "core/transmit.h"

#include <string.h>

enum { FRAGMENT_MIN_BYTES = 256 }; /* a datagram with less room for payload stays short */

/* Fills the datagram up to the common size and begins another. False: the train is full. */
static bool train_next_datagram(struct core *core, struct train *train)
{
    if (train->count == train->count_max)
        return false;
    train_end_datagram(core, train);
    uint32_t used = train->header + train->payload;
    memset(train_at(train) + used, 0, train->datagram_bytes - used);
    train_begin_datagram(train);
    return true;
}

/* What finds no room goes with the next train, though the ack that it would have gone with leaves now. */
static void put_ctrl(struct flow *flow, struct train *train)
{
    struct conn *conn;
    flow->ctrl_urgent = flow->ctrl.head != NULL;
    while ((conn = QUEUE_HOLDER(flow->ctrl.head, struct conn, ctrl))) {
        uint32_t room = train_room(train), frames_left = CORE_FRAMES_MAX - train->frames;
        if (room > frames_left * WIRE_FIN_BYTES)
            room = frames_left * WIRE_FIN_BYTES;
        unsigned bytes = conn_put_ctrl(conn, train_at(train) + train->header, room, flow->sent.next_seq);
        train->header += bytes;
        train->frames += bytes / WIRE_FIN_BYTES; /* at most */
        train->sequenced |= bytes > 0;
        if (conn_has_ctrl(conn) || conn->credit_due) {
            if (!train_next_datagram(flow->core, train))
                return;
            continue;
        }
        queue_remove(&flow->ctrl, &conn->ctrl);
    }
    flow->ctrl_urgent = false;
}

/*
 * Finds room for the next bytes of a message of which `left` are left, in this datagram or the next. Returns room for
 * its frame and payload; 0: the train, or the window, is full.
 */
static inline uint32_t fragment_room(struct core *core, struct train *train, uint32_t frame_bytes, uint64_t left)
{
    if (train->pieces == CORE_GATHER_MAX || train->payload_total > train->payload_budget)
        return 0;
    uint32_t room = train_room(train);
    uint32_t need = left < FRAGMENT_MIN_BYTES ? (uint32_t)left : FRAGMENT_MIN_BYTES;
    if (room < frame_bytes + need || train->frames >= CORE_FRAMES_MAX) {
        if (!train_next_datagram(core, train))
            return 0;
        room = train_room(train);
    }
    return room;
}

static inline void add_fragment(struct core *core, struct train *train, struct core_msg *msg, uint64_t offset,
                                uint32_t length)
{
    train->frames++;
    train->sequenced = true;
    if (length)
        core->pieces[train->pieces++] = (struct tx_piece){msg, offset, length, train->payload};
    train->payload += length;
    train->payload_total += length;
}

/* Adds bytes of an eager message. False: the train, or the window, is full. */
static bool put_eager(struct flow *flow, struct conn *conn, struct core_msg *msg, struct train *train)
{
    uint64_t offset = msg->offset_bytes;
    uint32_t room = fragment_room(flow->core, train, WIRE_EAGER_BYTES, msg->size_bytes - offset);
    if (!room)
        return false;
    struct wire_eager eager;
    conn_take_eager(conn, msg, room - WIRE_EAGER_BYTES, &eager);
    train->header += wire_put_eager(train_at(train) + train->header, &eager);
    add_fragment(flow->core, train, msg, offset, eager.length);
    conn->deficit_bytes -= (int64_t)eager.length + WIRE_EAGER_BYTES;
    return true;
}

/* Adds bytes of a granted message. False: the train is full. */
static bool put_shared(struct flow *flow, struct conn *conn, struct core_msg *msg, struct train *train)
{
    uint32_t room = fragment_room(flow->core, train, WIRE_DATA_BYTES, conn_bulk_left(msg));
    if (!room)
        return false;
    struct wire_data data;
    conn_take_shared(conn, msg, room - WIRE_DATA_BYTES, &data);
    train->header += wire_put_data(train_at(train) + train->header, &data);
    add_fragment(flow->core, train, msg, data.offset, data.length);
    if (msg->flags & MSG_AHEAD && !train->follows) {
        int path = conn_leader_path(msg, flow->rails); /* trains are shared where there is one rail */
        train->follows = path >= 0;
        train->path = (uint16_t)path;
    }
    conn->deficit_bytes -= (int64_t)data.length + WIRE_DATA_BYTES;
    return true;
}

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Payload bytes that the windows take. */
static uint64_t payload_budget(const struct rail *rail)
{
    const struct flow *flow = rail->flow;
    uint64_t cwnd = above(rail->cc.cwnd_bytes, rail->flying_payload);
    uint64_t window = above(flow->peer_window_bytes, flow->sent.flying_charge);
    uint64_t credit = credit_left(flow);
    if (window > credit)
        window = credit;
    return cwnd < window ? cwnd : window;
}

/* The granted message that may join a train, or NULL: the window must take all of it, as it must take a chunk. */
static struct core_msg *shared_ready(const struct conn *conn, uint64_t budget)
{
    struct core_msg *msg = tx_shareable(conn);
    return msg && conn_bulk_left(msg) <= budget ? msg : NULL;
}

/* Small messages of a connection, and granted ones, in turn. False: the train, or the window, is full. */
static bool put_messages(struct flow *flow, struct conn *conn, struct train *train)
{
    while (conn->deficit_bytes > -QUANTUM_BYTES) {
        struct core_msg *eager = conn_eager_ready(conn), *shared = NULL;
        if (train->shared && conn->bulk.head)
            shared = shared_ready(conn, above(train->payload_budget, train->payload_total));
        if (!eager && !shared)
            break;
        bool bulk_turn = shared && (!eager || conn->bulk_turn);
        conn->bulk_turn = !bulk_turn;
        if (!(bulk_turn ? put_shared(flow, conn, shared, train) : put_eager(flow, conn, eager, train)))
            return false;
    }
    return true;
}

/*
 * Messages of all connections, until the train or the window is full. A connection whose messages do not fit keeps its
 * turn, and what others put into the train counts against theirs.
 */
static void put_all_messages(struct flow *flow, struct train *train)
{
    for (struct queue_link *link = flow->active.head, *next; link; link = next) {
        struct conn *conn = QUEUE_HOLDER(link, struct conn, active);
        next = link->next;
        if (!put_messages(flow, conn, train))
            return;
        if (!conn_eager_ready(conn) && !conn_bulk_ready(conn))
            queue_remove(&flow->active, link);
    }
}

/* Returns what leaves with it: enum tx_due. */
static unsigned put_ack(struct flow *flow, struct train *train, uint64_t now_ns)
{
    struct wire_ack ack;
    unsigned due =
        TX_DUE_ACK | (flow->ack.repeats ? TX_DUE_ACK_AGAIN : 0) | (flow->credit_tx.due ? (unsigned)TX_DUE_DEMAND : 0);
    credit_resume(flow);
    ack_fill(flow, &ack, now_ns);
    train->header += wire_put_ack(train_at(train) + train->header, &ack);
    train->header += credit_put(flow, train_at(train) + train->header);
    train->frames++;
    return due;
}

/* The path that an ack should avoid, or -1: a repeated ack takes another path than the last one. */
static int ack_avoids(const struct flow *flow)
{
    return flow->ack.repeats ? flow->ack.path : -1;
}

/* The path, counted within the rail, for an ack that travels alone; -1: none has room. */
static int ack_port(struct rail *rail)
{
    return rail_ack_path(rail, rail_avoids(rail, ack_avoids(rail->flow)));
}

static void ack_leaves(struct flow *flow, uint16_t path)
{
    flow->ack.path_before = flow->ack.path;
    flow->ack.path = path;
    flow->ack.repeats = false;
}

/* An ack that travels alone. */
static void describe_ack(struct rail *rail, uint8_t *buffer, uint32_t bytes, uint16_t port, unsigned due,
                         struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    ack_leaves(flow, rail_global(rail, port));
    tx_describe_unnumbered(rail, buffer, bytes, port, due, desc, now_ns);
}

bool tx_send_ack(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    struct core *core = flow->core;
    int port = ack_port(rail);
    if (port < 0)
        return false;
    struct train train = tx_scratch_train(core);
    unsigned due = put_ack(flow, &train, now_ns);
    train_end_datagram(core, &train);
    describe_ack(rail, train.buffer, train.header, (uint16_t)port, due, desc, now_ns);
    if (flow->ctrl.head) /* a CREDIT found no room: it goes as soon as there is some */
        flow->ctrl_urgent = true;
    return true;
}

/* A buffer for the messages that wait and fit the budget: a small one where that is enough. */
static uint8_t *frames_buffer(struct flow *flow, bool want_eager, uint64_t budget, uint8_t *of)
{
    uint64_t waiting = 0;
    for (const struct queue_link *link = flow->active.head; want_eager && link; link = link->next) {
        struct conn *conn = QUEUE_HOLDER(link, struct conn, active);
        struct core_msg *msg = conn_eager_ready(conn);
        waiting += msg ? msg->size_bytes - msg->offset_bytes + WIRE_EAGER_BYTES : 0;
        if (msg && msg->next)
            waiting += FRAMES_SMALL_BYTES / 2;
        if (waiting > FRAMES_SMALL_BYTES / 2 || shared_ready(conn, budget))
            return flow_take_buffer(flow, true, of);
    }
    return flow_take_buffer(flow, false, of);
}

/* Of each datagram in a buffer of `room`. A record over a connection may have to go as a datagram later. */
static uint32_t frames_bytes(const struct rail *rail, uint32_t room)
{
    uint32_t most = room < CORE_TRAIN_BYTES_MAX ? room : CORE_TRAIN_BYTES_MAX;
    return rail->datagram_bytes < most ? rail->datagram_bytes : most;
}

/*
 * Begins a train in a buffer of the pools; `reserve`: the bytes by which it may exceed the peer's window. False: there
 * is no buffer.
 */
static bool begin_train(struct rail *rail, bool eager, uint32_t reserve, struct train *train, uint8_t *of)
{
    struct flow *flow = rail->flow;
    uint64_t budget = eager ? payload_budget(rail) : 0;
    uint8_t *buffer = frames_buffer(flow, eager, budget, of);
    if (!buffer)
        return false;
    uint32_t room = *of == BUFFER_BIG ? FRAMES_BIG_BYTES : FRAMES_SMALL_BYTES;
    *train = (struct train){
        .buffer = buffer,
        .datagram_bytes = frames_bytes(rail, room),
        .payload_budget = budget,
        .shared = *of == BUFFER_BIG,
    };
    train->count_max = (room < CORE_TRAIN_BYTES_MAX ? room : CORE_TRAIN_BYTES_MAX) / train->datagram_bytes;
    if (train->count_max > CORE_TRAIN_MAX)
        train->count_max = CORE_TRAIN_MAX;
    uint64_t window = flow->peer_window_bytes + reserve, used = flow->sent.flying_charge;
    train->count_max = tx_datagrams_within(train->datagram_bytes, window > used ? window - used : 0, train->count_max);
    train_begin_datagram(train);
    return true;
}

/* Makes a chunk of a train that is complete, and describes it; `acks`: it may have an ack in it. */
static void launch_train(struct rail *rail, const struct train *train, uint8_t of, bool acks, unsigned due,
                         struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    uint64_t seq;
    flow_expect_peer(flow, now_ns);
    struct chunk plan = {.kind = CHUNK_FRAMES,
                         .frames = {train->buffer, of},
                         .count = (uint8_t)train->count,
                         .datagram_bytes = train->datagram_bytes,
                         .last_bytes = train->header + train->payload,
                         .follows = train->follows,
                         .path = train->path,
                         .rail = rail->index,
                         .payload_bytes = train->payload_total};
    plan.charged_bytes = tx_charge((train->count - 1) * train->datagram_bytes + plan.last_bytes, train->count);
    struct chunk *chunk = tx_new_chunk(flow, &plan, &seq);
    tx_launch(rail, chunk, seq, wire_full_mask(train->count), acks ? ack_avoids(flow) : -1, desc, now_ns);
    if (acks)
        ack_leaves(flow, chunk->path);
    desc->due = (uint16_t)due;
    desc->kind = TX_FRAMES;
    desc->buffer = train->buffer;
    desc->pieces = flow->core->pieces;
    desc->piece_count = train->pieces;
}

bool tx_send_frames(struct rail *rail, bool ctrl, struct tx_desc *desc, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    struct core *core = flow->core;
    bool eager = tx_window_takes(rail, 1, FRAMES_SMALL_BYTES, 0) && !tx_is_paced_out(rail, now_ns);
    uint32_t reserve = ctrl ? CONTROL_RESERVE_BYTES : 0;
    if (!tx_has_record(flow, flow->qps.drained_due > 0) || !rail_has_room(rail, false))
        return false;
    if (!eager && !(ctrl && tx_window_takes(rail, 0, FRAMES_SMALL_BYTES, reserve)))
        return false;
    struct train train;
    uint8_t of;
    if (!begin_train(rail, eager, reserve, &train, &of))
        return false;
    /* GONE fails parts of messages: an ack of the arrived ones stands in front of it */
    bool acks = flow->ack.pending || flow->qps.frames_due || flow->gone.count;
    unsigned due = acks ? put_ack(flow, &train, now_ns) : 0;
    if (flow->qps.frames_due) {
        unsigned bytes = data_qps_put_frames(flow, train_at(&train) + train.header, train_room(&train));
        train.header += bytes;
        train.frames += bytes / WIRE_QP_BYTES;
        train.sequenced = true;
    }
    if (flow->gone.count) {
        unsigned frames;
        unsigned bytes =
            gone_put(flow, train_at(&train) + train.header, train_room(&train), flow->sent.next_seq, &frames);
        train.header += bytes;
        train.frames += frames;
        train.sequenced |= bytes > 0;
    }
    put_ctrl(flow, &train);
    if (eager)
        put_all_messages(flow, &train);
    train_end_datagram(core, &train);
    if (!train.sequenced) { /* the due frames had become stale: at most an ack is left */
        uint8_t *copy = tx_scratch(core);
        memcpy(copy, train.buffer, train.header);
        flow_put_buffer(flow, train.buffer, of);
        if (train.frames)
            describe_ack(rail, copy, train.header, (uint16_t)ack_port(rail), due, desc, now_ns);
        return train.frames > 0;
    }
    launch_train(rail, &train, of, acks, due, desc, now_ns);
    return true;
}
