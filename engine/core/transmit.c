/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a flow sends next. Order: control frames and acks that are due, retransmissions, then the connections by
 * deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). Chunks in flight stay under the congestion window
 * (payload) and the peer's receive buffer (kernel bytes); an empty flow may always send one chunk.
 *
 * Small messages and control frames of all connections share datagrams, and datagrams share a train. A
 * train of them is laid out in a buffer of the pool and stays there until it is acked, since the
 * messages may be gone before.
 *
 * Granted bulk goes over a data QP as a write, where one is up; else, and when it is retransmitted after a drain, as
 * datagrams.
 */
#include "core/state.h"

#include <assert.h>
#include <string.h>

enum {
    QUANTUM_BYTES = 64 * 1024,  /* of deficit round robin */
    FRAGMENT_MIN_BYTES = 256,   /* rather than less of a message, a datagram stays short */
    WRITE_UNIT_BYTES = 4096,    /* what writes are cut at */
};

/* What a chunk takes of the peer's socket buffer. */
static uint32_t charge_of(uint32_t bytes, unsigned datagrams)
{
    return bytes + datagrams * KERNEL_OVERHEAD_BYTES;
}

/* How many datagrams, of `most`, such a part of the peer's socket buffer takes; at least one. */
static uint32_t datagrams_within(uint32_t datagram_bytes, uint64_t window_bytes, uint32_t most)
{
    uint64_t fit = window_bytes / (datagram_bytes + KERNEL_OVERHEAD_BYTES);
    if (fit < most)
        most = (uint32_t)fit;
    return most ? most : 1;
}

/* Whether the windows take another chunk, or a retransmission: a new one needs a record as well. */
static bool window_takes(struct flow *flow, uint64_t payload, uint64_t charge, uint64_t reserve)
{
    const struct sent *sent = &flow->sent;
    if (!credit_takes(flow, payload))
        return false;
    if (sent->flying_chunks == 0)
        return true;
    if (sent->flying_payload + payload <= flow->cc.cwnd_bytes + reserve &&
        sent->flying_charge + charge <= flow->peer_window_bytes + reserve)
        return true;
    flow->window_limited = true;
    return false;
}

/* Whether the chunk window takes another one; the last few are for `drained`: DRAINED, which unlocks it. */
static bool has_record(const struct flow *flow, bool drained)
{
    const struct sent *sent = &flow->sent;
    uint32_t reserve = drained ? 0 : flow->qps.reserve;
    return sent->next_seq - sent->cumulative < sent->window - reserve;
}

/* cwnd below one chunk: data waits for its gap. */
static bool paced_out(struct flow *flow, uint64_t now_ns)
{
    if (flow->cc.pace_gap_ns == 0 || flow->pace_until_ns <= now_ns)
        return false;
    flow->window_limited = true;
    return true;
}

/* Puts the chunk on a path. */
static void fly(struct flow *flow, struct chunk *chunk, uint16_t path, uint64_t now_ns)
{
    if (flow->sent.flying_chunks == 0 && flow->last_ack_ns < now_ns)
        flow->last_ack_ns = now_ns;
    sent_fly(&flow->sent, chunk, path, now_ns);
    credit_use(flow, chunk->payload_bytes);
    if (flow->cc.pace_gap_ns)
        flow->pace_until_ns =
            now_ns + flow->cc.pace_gap_ns * chunk->payload_bytes / flow->cc.chunk_bytes;
}

/* Paths that have worked seem to do so no longer. */
static bool at_a_loss(const struct flow *flow)
{
    enum { TIMEOUTS = 2 };
    return flow->rto_backoff >= TIMEOUTS;
}

/* Puts a chunk of datagrams on a path, a placed one on its data QP, and fills in what every descriptor of such has. */
static void launch(struct flow *flow, struct chunk *chunk, uint64_t seq, uint64_t mask, int avoid,
                   struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    bool retransmission = chunk->transmissions > 0;
    uint16_t path = chunk->path;
    if (!chunk->placed)
        path = retransmission ? path_choose_safe(&flow->paths, avoid, at_a_loss(flow)) : path_choose(&flow->paths, avoid);
    fly(flow, chunk, path, now_ns);
    desc->flow = flow;
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
    else if (!chunk->in_pieces) /* fragments are counted as they go (image.c) */
        COUNT(core->counters, retransmits, (unsigned)__builtin_popcountll(mask));
}

/* ---- bulk ------------------------------------------------------------------------------------ */

/* Payload of every datagram of a chunk but the last. */
static uint32_t stride_of(const struct flow *flow, const struct core_msg *msg)
{
    uint32_t room = flow->datagram_bytes - WIRE_BULK_HEADER_BYTES;
    return msg->watched ? room - room % CORE_WATCHED_BYTES : room;
}

static void describe_bulk(const struct chunk *chunk, struct tx_desc *desc)
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
 * Payload of the next chunk of a message with so much left: as much as fits, but even, so that the last
 * chunk is not a crumb that costs a system call, and so that sender and receiver overlap from the start.
 */
static uint32_t even_bytes(uint64_t left, uint32_t most, uint32_t unit)
{
    if (left <= most)
        return (uint32_t)left;
    uint64_t chunks = (left + most - 1) / most;
    uint32_t even = (uint32_t)(((left + chunks - 1) / chunks + unit - 1) / unit * unit);
    return even < most ? even : most;
}

static uint32_t bulk_bytes(const struct flow *flow, uint64_t left, uint32_t stride)
{
    uint32_t chunk_bytes = (uint32_t)flow->core->params->chunk_size_kb * 1024;
    uint32_t count_max = CORE_TRAIN_BYTES_MAX / (stride + WIRE_BULK_HEADER_BYTES);
    if (count_max > chunk_bytes / stride)
        count_max = chunk_bytes / stride;
    if (count_max > CORE_TRAIN_MAX)
        count_max = CORE_TRAIN_MAX;
    /* a chunk that overflows the peer's buffer loses its end each time: two must fit */
    count_max = datagrams_within(flow->datagram_bytes, flow->peer_window_bytes / 2, count_max);
    uint32_t most = count_max * stride < chunk_bytes ? count_max * stride : chunk_bytes;
    return even_bytes(left, most, count_max > 1 ? stride : CORE_WATCHED_BYTES);
}

/* Cuts the chunk into datagrams with so much payload. False: they are too many. */
static bool lay_out(struct chunk *chunk, uint32_t stride)
{
    uint32_t bytes = chunk->payload_bytes;
    uint32_t count = (bytes + stride - 1) / stride;
    if (count > CORE_TRAIN_MAX)
        return false;
    chunk->count = (uint8_t)count;
    chunk->charged_bytes = charge_of(bytes, count);
    chunk->datagram_bytes = (count > 1 ? stride : bytes) + WIRE_BULK_HEADER_BYTES;
    chunk->last_bytes = bytes - (count - 1) * stride + WIRE_BULK_HEADER_BYTES;
    return true;
}

/* What every chunk of this size is that is cut from the message. */
static struct chunk plan_bulk(struct core_msg *msg, uint32_t bytes, uint32_t stride)
{
    struct chunk plan = {.kind = CHUNK_BULK, .bulk.msg = msg, .payload_bytes = bytes};
    bool fits = lay_out(&plan, stride);
    assert(fits);
    (void)fits;
    return plan;
}

/* A chunk begins its life. */
static struct chunk *new_chunk(struct flow *flow, const struct chunk *plan, uint64_t *seq)
{
    if (flow->sent.next_seq == flow->sent.cumulative)
        flow->asked_ns = flow->core->now_ns;
    return sent_new(&flow->sent, plan, seq);
}

/* The next chunk of the message. */
static struct chunk *cut_chunk(struct flow *flow, struct core_msg *msg, struct chunk *plan, uint64_t *seq)
{
    struct conn *conn = msg->conn;
    plan->bulk.offset = msg->offset_bytes;
    msg->chunks_live++;
    conn_take_bulk(conn, msg, plan->payload_bytes);
    conn->deficit_bytes -= (int64_t)plan->payload_bytes;
    return new_chunk(flow, plan, seq);
}

/*
 * How many writes of this size a data QP may carry in a row: where nothing else waits, a few, but so that all
 * data QPs have their share of the message.
 */
static uint64_t writes_in_a_row(const struct flow *flow, const struct core_msg *msg, uint32_t bytes)
{
    enum { ROW_MAX = 8 };
    if (flow->ready.next || msg->conn->active.next || msg->conn->eager.head)
        return 1;
    uint64_t share = msg->size_bytes / bytes / flow->qps.usable, left = (msg->end_bytes - msg->offset_bytes) / bytes;
    uint64_t row = share < left ? share : left;
    return row < ROW_MAX ? row : ROW_MAX;
}

/* A row of chunks as writes, each of what its datagrams would carry, should it be lost. */
static bool send_placed(struct flow *flow, struct conn *conn, struct core_msg *msg, const struct send_slot *grant,
                        struct tx_desc *desc, uint64_t now_ns)
{
    uint32_t stride = stride_of(flow, msg);
    uint32_t most = (uint32_t)flow->core->params->chunk_size_kb * 1024;
    if (most > CORE_TRAIN_MAX * stride)
        most = CORE_TRAIN_MAX * stride;
    if (most > flow->datagram_bytes && data_qps_lossy(flow))
        most = flow->datagram_bytes;
    uint64_t left = msg->end_bytes - msg->offset_bytes, seq;
    uint32_t bytes = even_bytes(left, most, WRITE_UNIT_BYTES);
    if (!has_record(flow, false) || !window_takes(flow, bytes, charge_of(0, 1), 0))
        return false;
    int qp = data_qp_choose(flow);
    if (qp < 0)
        return false; /* until the NIC has finished something */

    uint64_t row = writes_in_a_row(flow, msg, bytes);
    struct chunk plan = plan_bulk(msg, bytes, stride);
    plan.charged_bytes = charge_of(0, 1); /* it takes a receive request of the peer, and no buffer */
    plan.placed = plan.written = true;
    plan.path = (uint16_t)qp;
    desc->kind = TX_PLACE;
    desc->count = 0;
    desc->flow = flow;
    desc->sequenced = desc->on_path = true;
    desc->retransmission = desc->fragment = desc->whole = false;
    desc->mask = 1;
    desc->path = (uint16_t)qp;
    desc->destination = flow->destination;
    desc->seq = flow->sent.next_seq;
    desc->bulk_msg = msg;
    desc->bulk_offset = msg->offset_bytes;
    desc->place_bytes = bytes;
    desc->remote_address = grant->address + msg->offset_bytes;
    desc->remote_key = grant->key;
    desc->immediate = wire_immediate(grant->slot, desc->seq);
    do
        fly(flow, cut_chunk(flow, msg, &plan, &seq), plan.path, now_ns);
    while (++desc->count < row && data_qp_takes(&flow->qps, plan.path, desc->count + 1u) && has_record(flow, false) &&
           window_takes(flow, bytes, plan.charged_bytes, 0));
    data_qps_wrote(flow, desc->count * ((bytes + flow->datagram_bytes - 1) / flow->datagram_bytes));
    data_qp_begin_work(flow, plan.path, msg, desc->count, desc);
    COUNT(flow->core->counters, tx_chunks, desc->count);
    COUNT(flow->core->counters, tx_placed, desc->count);
    return true;
}

static bool send_bulk(struct flow *flow, struct conn *conn, struct tx_desc *desc, uint64_t now_ns)
{
    struct core_msg *msg = conn_bulk_ready(conn);
    const struct send_slot *grant = data_qps_usable(&flow->qps) ? conn_grant(conn, msg) : NULL;
    if (grant)
        return send_placed(flow, conn, msg, grant, desc, now_ns);
    uint32_t stride = stride_of(flow, msg);
    uint32_t bytes = bulk_bytes(flow, conn_bulk_left(msg), stride);
    uint32_t count = (bytes + stride - 1) / stride;
    if (!has_record(flow, false) || !window_takes(flow, bytes, charge_of(bytes, count), 0))
        return false;

    uint64_t seq;
    struct chunk plan = plan_bulk(msg, bytes, stride);
    struct chunk *chunk = cut_chunk(flow, msg, &plan, &seq);
    launch(flow, chunk, seq, wire_full_mask(count), -1, desc, now_ns);
    describe_bulk(chunk, desc);
    return true;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* A train of frames being laid out. */
struct train {
    uint8_t *buffer;
    uint32_t datagram_bytes;   /* room in each */
    uint32_t count_max;
    uint32_t count;            /* datagrams begun */
    uint32_t header, payload;  /* bytes of each region in the current one */
    uint32_t frames;           /* in the current one */
    uint32_t pieces, first_piece; /* of the train; of the current datagram */
    uint32_t payload_total;
    uint64_t payload_budget;   /* of the congestion window */
    bool sequenced;            /* carries more than acks */
};

static void begin_datagram(struct train *train)
{
    train->count++;
    train->header = WIRE_HEADER_BYTES;
    train->payload = 0;
    train->frames = 0;
    train->first_piece = train->pieces;
}

static uint8_t *train_at(const struct train *train)
{
    return train->buffer + (train->count - 1) * train->datagram_bytes;
}

static uint32_t train_room(const struct train *train)
{
    return train->datagram_bytes - train->header - train->payload;
}

/* The header region is complete: payload begins behind it. */
static void end_datagram(struct core *core, struct train *train)
{
    uint8_t *at = train_at(train);
    uint32_t payload_at = (uint32_t)(at - train->buffer) + train->header;
    wire_set_header_length(at, (uint16_t)train->header);
    for (uint32_t i = train->first_piece; i < train->pieces; i++)
        core->pieces[i].at += payload_at;
}

/* Another datagram follows: this one is filled up to the common size. False: there is no other. */
static bool next_datagram(struct core *core, struct train *train)
{
    if (train->count == train->count_max)
        return false;
    end_datagram(core, train);
    uint32_t used = train->header + train->payload;
    memset(train_at(train) + used, 0, train->datagram_bytes - used);
    begin_datagram(train);
    return true;
}

static void put_ctrl(struct flow *flow, struct train *train)
{
    struct conn *conn;
    while ((conn = QUEUE_HOLDER(flow->ctrl.head, struct conn, ctrl))) {
        uint32_t room = train_room(train), frames_left = CORE_FRAMES_MAX - train->frames;
        if (room > frames_left * WIRE_FIN_BYTES)
            room = frames_left * WIRE_FIN_BYTES;
        unsigned bytes =
            conn_put_ctrl(conn, train_at(train) + train->header, room, flow->sent.next_seq);
        train->header += bytes;
        train->frames += bytes / WIRE_FIN_BYTES; /* at most */
        train->sequenced |= bytes > 0;
        if (conn_has_ctrl(conn) || conn->credit_due) {
            if (!next_datagram(flow->core, train))
                return;
            continue;
        }
        queue_remove(&flow->ctrl, &conn->ctrl);
    }
    flow->ctrl_urgent = false;
}

/* Adds one piece of an eager message. False: the train, or the window, is full. */
static bool put_eager(struct flow *flow, struct conn *conn, struct core_msg *msg, struct train *train)
{
    struct core *core = flow->core;
    uint64_t left = msg->size_bytes - msg->offset_bytes;
    if (train->pieces == CORE_GATHER_MAX || train->payload_total > train->payload_budget)
        return false;
    uint32_t room = train_room(train);
    uint32_t need = left < FRAGMENT_MIN_BYTES ? (uint32_t)left : FRAGMENT_MIN_BYTES;
    if (room < WIRE_EAGER_BYTES + need || train->frames >= CORE_FRAMES_MAX) {
        if (!next_datagram(core, train))
            return false;
        room = train_room(train);
    }
    struct wire_eager eager;
    uint64_t offset = msg->offset_bytes;
    conn_take_eager(conn, msg, room - WIRE_EAGER_BYTES, &eager);
    train->header += wire_put_eager(train_at(train) + train->header, &eager);
    train->frames++;
    train->sequenced = true;
    if (eager.length)
        core->pieces[train->pieces++] = (struct tx_piece){msg, offset, eager.length, train->payload};
    train->payload += eager.length;
    train->payload_total += eager.length;
    conn->deficit_bytes -= (int64_t)eager.length + WIRE_EAGER_BYTES;
    return true;
}

static struct conn *first_active(const struct flow *flow)
{
    return QUEUE_HOLDER(flow->active.head, struct conn, active);
}

static void rotate_active(struct flow *flow, bool keep)
{
    struct conn *conn = first_active(flow);
    queue_remove(&flow->active, &conn->active);
    if (keep) {
        int64_t deficit = conn->deficit_bytes + QUANTUM_BYTES;
        flow_add_active(conn);
        conn->deficit_bytes = deficit > QUANTUM_BYTES ? QUANTUM_BYTES : deficit;
    }
}

/* Eager messages of all connections in turn, until the train or the window is full. */
static void put_eagers(struct flow *flow, struct train *train)
{
    struct queue_link **last = flow->active.end;
    for (bool end = !flow->active.head; !end;) {
        struct conn *conn = first_active(flow);
        struct core_msg *msg;
        while ((msg = conn_eager_ready(conn)) && conn->deficit_bytes > -QUANTUM_BYTES) {
            if (!put_eager(flow, conn, msg, train))
                return;
        }
        end = &conn->active.next == last;
        rotate_active(flow, conn_eager_ready(conn) || conn_bulk_ready(conn));
    }
}

/* A buffer that holds nothing beyond the next flush of the NIC: acks and bare headers. */
static uint8_t *scratch(struct core *core)
{
    core->scratch_next = (core->scratch_next + 1) % SCRATCH_COUNT;
    return core->scratch + (size_t)core->scratch_next * SCRATCH_BYTES;
}

static void put_ack(struct flow *flow, struct train *train, uint64_t now_ns)
{
    struct wire_ack ack;
    flow_fill_ack(flow, &ack, now_ns);
    train->header += wire_put_ack(train_at(train) + train->header, &ack);
    train->header += credit_put(flow, train_at(train) + train->header);
    train->frames++;
}

/* The path that an ack is kept off: one that is said again goes another way than it went before. */
static int ack_avoids(const struct flow *flow)
{
    return flow->ack_repeats ? flow->ack_path : -1;
}

static void ack_leaves(struct flow *flow, uint16_t path)
{
    flow->ack_path = path;
    flow->ack_repeats = false;
}

/* One datagram that is not repeated, begun. */
static struct train scratch_train(struct core *core)
{
    struct train train = {.buffer = scratch(core), .datagram_bytes = SCRATCH_BYTES, .count_max = 1};
    begin_datagram(&train);
    return train;
}

/* A packet without a sequence number, which is not repeated. */
static void describe_unnumbered(struct flow *flow, uint8_t *buffer, uint32_t bytes, uint16_t path,
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
        .path_seq = flow->ack_number, /* unique among packets without sequence number */
        .time_stamp = wire_time(now_ns),
        .buffer = buffer,
        .flow = flow,
    };
}

/* An ack that travels alone. */
static void describe_ack(struct flow *flow, uint8_t *buffer, uint32_t bytes, struct tx_desc *desc, uint64_t now_ns)
{
    uint16_t path = path_choose_safe(&flow->paths, ack_avoids(flow), false);
    ack_leaves(flow, path);
    describe_unnumbered(flow, buffer, bytes, path, desc, now_ns);
}

static bool send_ack(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct train train = scratch_train(core);
    put_ack(flow, &train, now_ns);
    end_datagram(core, &train);
    describe_ack(flow, train.buffer, train.header, desc, now_ns);
    if (flow->ctrl.head) /* credit found no room: it goes as soon as there is some */
        flow->ctrl_urgent = true;
    return true;
}

/* Probe and echo, which are as little acked as an ack, and go even where nothing else may. */
static bool send_probe(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct train train = scratch_train(core);
    uint16_t path = 0;
    if (!probe_opens(&flow->probe))
        path = path_choose_safe(&flow->paths, probe_avoids(&flow->probe), false);
    probe_leaves(&flow->probe, path);
    uint8_t due = flow->probe.due;
    train.header += probe_put(flow, train_at(&train) + train.header, now_ns);
    end_datagram(core, &train);
    describe_unnumbered(flow, train.buffer, train.header, path, desc, now_ns);
    desc->probes = due & (uint8_t)~flow->probe.due;
    return true;
}

/* A padded probe. False: not now. */
static bool send_size_probe(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    uint8_t *buffer;
    uint32_t bytes = mtu_probe(flow, &buffer, now_ns);
    if (bytes == 0)
        return false;
    wire_put_probe(buffer + WIRE_HEADER_BYTES,
                   &(struct wire_probe){.nonce = flow->mtu.nonce,
                                        .length = (uint16_t)(bytes - WIRE_HEADER_BYTES - WIRE_PROBE_BYTES)});
    wire_set_header_length(buffer, WIRE_HEADER_BYTES + WIRE_PROBE_BYTES);
    uint16_t path = mtu_opens(&flow->mtu) ? 0 : path_choose_safe(&flow->paths, -1, false);
    describe_unnumbered(flow, buffer, bytes, path, desc, now_ns);
    desc->whole = true;
    return true;
}

/* A datagram for firewalls, or over a path that is tried. False: there is none after all. */
static bool send_reach(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct reach_probe probe;
    if (!reach_next(flow, &probe, now_ns))
        return false;
    struct train train = scratch_train(core);
    train.header += wire_put_probe(train_at(&train) + train.header, &(struct wire_probe){.nonce = probe.nonce});
    end_datagram(core, &train);
    describe_unnumbered(flow, train.buffer, train.header, probe.path, desc, now_ns);
    desc->opens = probe.opens;
    return true;
}

static bool send_probes(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    if (flow->probe.due & PROBE_SIZE && send_size_probe(flow, desc, now_ns))
        return true;
    if (flow->probe.due & (PROBE_ASK | PROBE_ECHO | PROBE_ECHO_SIZE))
        return send_probe(flow, desc, now_ns);
    return send_reach(flow, desc, now_ns);
}

/* The last word on a flow that is dead here. */
static bool send_farewell(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct train train = scratch_train(core);
    train.header += wire_put_flow(train_at(&train) + train.header, &(struct wire_flow){FLOW_CLOSED});
    end_datagram(core, &train);
    describe_unnumbered(flow, train.buffer, train.header, path_choose_safe(&flow->paths, -1, false), desc, now_ns);
    flow->farewell_due = false;
    return true;
}

/* The buffer for what waits now: a small one where that will do. */
static uint8_t *frames_buffer(struct flow *flow, bool want_eager, uint8_t *of)
{
    uint64_t waiting = 0;
    for (const struct queue_link *link = flow->active.head; want_eager && link; link = link->next) {
        struct core_msg *msg = conn_eager_ready(QUEUE_HOLDER(link, struct conn, active));
        waiting += msg ? msg->size_bytes - msg->offset_bytes + WIRE_EAGER_BYTES : 0;
        if (msg && msg->next)
            waiting += FRAMES_SMALL_BYTES / 2;
        if (waiting > FRAMES_SMALL_BYTES / 2)
            break;
    }
    return flow_take_buffer(flow, waiting > FRAMES_SMALL_BYTES / 2, of);
}

/* Control frames with what small messages fit. False: window, chunk records or buffers are exhausted. */
static bool send_frames(struct flow *flow, bool ctrl, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    bool eager = window_takes(flow, 1, FRAMES_SMALL_BYTES, 0) && !paced_out(flow, now_ns);
    uint32_t reserve = ctrl ? CONTROL_RESERVE_BYTES : 0;
    if (!has_record(flow, flow->qps.drained_due > 0))
        return false;
    if (!eager && !(ctrl && window_takes(flow, 0, FRAMES_SMALL_BYTES, reserve)))
        return false;
    uint8_t of, *buffer = frames_buffer(flow, eager, &of);
    if (!buffer)
        return false;
    uint32_t room = of == BUFFER_BIG ? FRAMES_BIG_BYTES : FRAMES_SMALL_BYTES;
    struct train train = {
        .buffer = buffer,
        .datagram_bytes = flow->datagram_bytes < room ? flow->datagram_bytes : room,
        .payload_budget = eager && flow->cc.cwnd_bytes > flow->sent.flying_payload
                              ? flow->cc.cwnd_bytes - flow->sent.flying_payload
                              : 0,
    };
    if (train.payload_budget > credit_left(flow))
        train.payload_budget = credit_left(flow);
    train.count_max = (room < CORE_TRAIN_BYTES_MAX ? room : CORE_TRAIN_BYTES_MAX) / train.datagram_bytes;
    if (train.count_max > CORE_TRAIN_MAX)
        train.count_max = CORE_TRAIN_MAX;
    uint64_t window = flow->peer_window_bytes + reserve, used = flow->sent.flying_charge;
    train.count_max = datagrams_within(train.datagram_bytes, window > used ? window - used : 0,
                                       train.count_max);
    begin_datagram(&train);
    /* GONE fails parts of messages: what has arrived of them is acked in front of it */
    bool acks = flow->ack_pending || flow->qps.frames_due || flow->gone.count;
    if (acks)
        put_ack(flow, &train, now_ns);
    if (flow->qps.frames_due) {
        unsigned bytes = data_qps_put_frames(flow, train_at(&train) + train.header, train_room(&train));
        train.header += bytes;
        train.frames += bytes / WIRE_QP_BYTES;
        train.sequenced = true;
    }
    if (flow->gone.count) {
        unsigned frames;
        unsigned bytes = gone_put(flow, train_at(&train) + train.header, train_room(&train), flow->sent.next_seq, &frames);
        train.header += bytes;
        train.frames += frames;
        train.sequenced |= bytes > 0;
    }
    put_ctrl(flow, &train);
    if (eager)
        put_eagers(flow, &train);
    end_datagram(core, &train);
    if (!train.sequenced) { /* what was due had become stale: at most an ack is left */
        uint8_t *copy = scratch(core);
        memcpy(copy, buffer, train.header);
        flow_put_buffer(flow, buffer, of);
        if (train.frames)
            describe_ack(flow, copy, train.header, desc, now_ns);
        return train.frames > 0;
    }

    uint64_t seq;
    flow_expect_peer(flow, now_ns);
    struct chunk plan = {.kind = CHUNK_FRAMES,
                         .frames = {buffer, of},
                         .count = (uint8_t)train.count,
                         .datagram_bytes = train.datagram_bytes,
                         .last_bytes = train.header + train.payload,
                         .payload_bytes = train.payload_total};
    plan.charged_bytes = charge_of((train.count - 1) * train.datagram_bytes + plan.last_bytes, train.count);
    struct chunk *chunk = new_chunk(flow, &plan, &seq);
    launch(flow, chunk, seq, wire_full_mask(train.count), acks ? ack_avoids(flow) : -1, desc, now_ns);
    if (acks)
        ack_leaves(flow, chunk->path);
    desc->kind = TX_FRAMES;
    desc->buffer = buffer;
    desc->pieces = core->pieces;
    desc->piece_count = train.pieces;
    return true;
}

/* ---- retransmissions --------------------------------------------------------------------------------- */

static uint64_t retransmission_mask(const struct chunk *chunk)
{
    uint64_t mask = wire_full_mask(chunk->count) & ~chunk->acked_mask;
    assert(mask); /* whatever the peer acked (sent_ack()) */
    return mask;
}

/*
 * The lost chunk to retransmit first, or NULL. One that was placed is retransmitted over its data QP alone: in order
 * behind the write, so that this cannot come after it. Its data QP may be busy, or may have to be drained.
 */
static struct chunk *first_retransmission(struct flow *flow)
{
    struct sent *sent = &flow->sent;
    for (struct chunk *chunk = sent_first_lost(sent), *next; chunk; chunk = next) {
        next = sent_next_lost(chunk);
        if (chunk->written) /* its datagrams were never sent: the size may have changed since */
            lay_out(chunk, flow->datagram_bytes - WIRE_BULK_HEADER_BYTES); /* no receive that is watched is written to */
        if (!chunk->placed)
            return chunk;
        if (!data_qp_takes(&flow->qps, chunk->path, (uint32_t)__builtin_popcountll(retransmission_mask(chunk))))
            continue;
        if (data_qp_may_retransmission(flow, chunk->path))
            return chunk;
        next = sent_first_lost(sent); /* its data QP is being drained: others of the list may be gone too */
    }
    return NULL;
}

static bool send_retransmission(struct flow *flow, struct chunk *chunk, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    bool probe = flow->probe_due, in_pieces = image_needed(flow, chunk);
    if (in_pieces)
        chunk->charged_bytes = image_charge(flow, chunk);
    if (!probe && (!window_takes(flow, chunk->payload_bytes, chunk->charged_bytes, 0) ||
                   paced_out(flow, now_ns)))
        return false;
    flow->probe_due = false;
    uint64_t seq = sent_seq(&flow->sent, chunk);
    uint64_t mask = retransmission_mask(chunk);
    chunk->in_pieces = in_pieces;
    launch(flow, chunk, seq, mask, chunk->path, desc, now_ns);
    desc->piece_count = 0;
    switch ((enum chunk_kind)chunk->kind) {
    case CHUNK_BULK:
        describe_bulk(chunk, desc);
        break;
    case CHUNK_FRAMES:
        desc->kind = TX_FRAMES;
        desc->buffer = chunk->frames.buffer;
        break;
    case CHUNK_VOID:
        desc->kind = TX_FRAMES;
        desc->buffer = scratch(core);
        desc->datagram_bytes = desc->last_bytes = WIRE_HEADER_BYTES;
        for (unsigned i = 0; i < chunk->count; i++)
            wire_set_header_length(desc->buffer + i * WIRE_HEADER_BYTES, WIRE_HEADER_BYTES);
        break;
    }
    if (chunk->placed) {
        data_qp_retransmissions(flow, chunk->path);
        data_qp_begin_work(flow, chunk->path, chunk->kind == CHUNK_BULK ? chunk->bulk.msg : NULL,
                        (uint32_t)__builtin_popcountll(mask), desc);
    }
    if (!in_pieces)
        return true;
    image_begin(flow, desc);
    return image_next(flow, scratch(core), desc);
}

/* ---- what next ------------------------------------------------------------------------------- */

static bool send_data(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct conn *conn;
    while ((conn = first_active(flow))) {
        bool eager = conn_eager_ready(conn) != NULL, bulk = conn_bulk_ready(conn) != NULL;
        if (!eager && !bulk) {
            rotate_active(flow, false);
            continue;
        }
        if (conn->deficit_bytes <= 0 && conn->active.next) {
            rotate_active(flow, true);
            continue;
        }
        if (conn->deficit_bytes <= 0) /* alone: no debt that it would owe to later ones */
            conn->deficit_bytes = QUANTUM_BYTES;
        if (paced_out(flow, now_ns))
            return false;
        bool bulk_turn = bulk && (!eager || conn->bulk_turn);
        conn->bulk_turn = !bulk_turn;
        return bulk_turn ? send_bulk(flow, conn, desc, now_ns)
                         : send_frames(flow, false, desc, now_ns);
    }
    return false;
}

static bool has_something(const struct flow *flow)
{
    return flow->ack_now || flow->qps.frames_due || flow->gone.count || flow->ctrl.head ||
           flow->active.head;
}

bool flow_tx(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    if (flow->dead)
        return flow->farewell_due && send_farewell(flow, desc, now_ns);
    if (!probe_proven(&flow->probe))
        probe_wait(flow, has_something(flow));
    if (flow->probe.due && send_probes(flow, desc, now_ns))
        return true;
    if (!probe_proven(&flow->probe))
        return false;
    credit_update(flow, now_ns);
    bool ctrl = flow->qps.frames_due || flow->gone.count || (flow->ctrl.head && (flow->ctrl_urgent || flow->ack_now));
    if (ctrl && send_frames(flow, true, desc, now_ns))
        return true;
    if (flow->ack_now)
        return send_ack(flow, desc, now_ns);
    if (flow->image.left && image_next(flow, scratch(flow->core), desc))
        return true;
    struct chunk *lost = first_retransmission(flow);
    if (lost)
        return send_retransmission(flow, lost, desc, now_ns);
    return send_data(flow, desc, now_ns);
}
