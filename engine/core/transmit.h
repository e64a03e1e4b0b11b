/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of sending (transmit*.c, retransmit.c, launch.c) share. */
#ifndef UCCL_TRANSMIT_H
#define UCCL_TRANSMIT_H

#include "core/state.h"

/*
 * tx_desc.due: what a descriptor has taken off the flow, beside its chunks. It is due again if the NIC refuses the
 * descriptor. Whatever the flow sends because a field of it says so has a bit here; the lower ones are PROBE_*.
 */
enum tx_due {
    TX_DUE_PROBES = 127,
    TX_DUE_ACK = 128,
    TX_DUE_ACK_AGAIN = 256, /* over another path than the last (ack.repeats) */
    TX_DUE_DEMAND = 512,
    TX_DUE_FRAGMENT = 1024,
    TX_DUE_TAIL_PROBE = 2048,
    TX_DUE_FAREWELL = 4096,
    TX_DUE_ROUND = 8192, /* of retransmissions over a data QP, which this one begins */
};

/* launch.c */

/* What a chunk takes of the peer's socket buffer. */
static inline uint32_t tx_charge(uint32_t bytes, unsigned datagrams)
{
    return bytes + datagrams * CORE_KERNEL_BYTES;
}
/* How many datagrams, at most `most`, fit `window_bytes` of the peer's socket buffer; at least one. */
uint32_t tx_datagrams_within(uint32_t datagram_bytes, uint64_t window_bytes, uint32_t most);
/* Whether the peer's socket buffer takes another chunk; it always takes one. */
static inline bool tx_peer_takes(const struct flow *flow, uint64_t charge, uint64_t reserve)
{
    return flow->sent.flying_charge == 0 || flow->sent.flying_charge + charge <= flow->peer_window_bytes + reserve;
}
/* Whether the windows take another chunk or retransmission over the rail; a new chunk also needs tx_has_record(). */
static inline bool tx_window_takes(struct rail *rail, uint64_t payload, uint64_t charge, uint64_t reserve)
{
    struct flow *flow = rail->flow;
    if (!credit_takes(flow, payload))
        return false;
    /* some control is always in flight over the main one of several rails: bulk would go other ways for ever */
    bool idle = rail->flying_payload == 0 && flow->rail_count > 1 && !rail->reliable && payload <= rail->cc.chunk_bytes;
    if (rail->flying_chunks == 0 || idle)
        return flow->rail_count == 1 || tx_peer_takes(flow, charge, reserve);
    if (rail->flying_payload + payload > rail->cc.cwnd_bytes + reserve) {
        rail->window_limited = true;
        return false;
    }
    /* where the peer's buffer is the limit, a window that grows would only be late to shrink */
    return flow->sent.flying_charge + charge <= flow->peer_window_bytes + reserve;
}
/* Whether the chunk window takes another chunk; the last few are for DRAINED frames (`drained`), which unlock it. */
static inline bool tx_has_record(const struct flow *flow, bool drained)
{
    const struct sent *sent = &flow->sent;
    uint32_t reserve = drained ? 0 : flow->qps.reserve;
    return sent->next_seq - sent->cumulative < sent->window - reserve;
}
/* cwnd below one chunk: data waits for its gap. */
bool tx_is_paced_out(struct rail *rail, uint64_t now_ns);
/* A chunk is about to be made. */
static inline void tx_expect_ack(struct flow *flow)
{
    if (flow->sent.next_seq == flow->sent.cumulative)
        flow->asked_ns = flow->core->now_ns;
}
/* Makes a chunk after `plan`. */
static inline struct chunk *tx_new_chunk(struct flow *flow, const struct chunk *plan, uint64_t *seq)
{
    tx_expect_ack(flow);
    return sent_new(&flow->sent, plan, seq);
}
/* Chunks after `plan` are about to be written: fills in what they have in common. */
void tx_begin_writes(struct rail *rail, struct chunk *plan, uint64_t now_ns);
/* Puts a chunk of datagrams on a path (a placed one on its data QP), and fills in the descriptor's common fields. */
void tx_launch(struct rail *rail, struct chunk *chunk, uint64_t seq, uint64_t mask, int avoid, struct tx_desc *desc,
               uint64_t now_ns);
/*
 * A packet without a sequence number, which is not repeated once the NIC has taken it, over a port of
 * the rail; `due`: enum tx_due.
 */
void tx_describe_unnumbered(struct rail *rail, uint8_t *buffer, uint32_t bytes, uint16_t port, unsigned due,
                            struct tx_desc *desc, uint64_t now_ns);

/*
 * The bulk message that may go now if it may share a train of frames with others: one that would fill no chunk. A range
 * of a striped message may not: its chunks end it. With several rails none does, since trains go over the preferred
 * one, nor over connections, where a record of its own costs less. One that starts ahead has its leader in an earlier
 * train.
 */
static inline struct core_msg *tx_shareable(const struct conn *conn)
{
    struct core_msg *msg = conn_bulk_ready(conn);
    const struct flow *flow = conn->flow;
    if (!flow->shares_trains || !msg || msg->size_bytes > FRAMES_BIG_BYTES || msg->stripes > 1)
        return NULL;
    return msg->flags & MSG_AHEAD && msg->ring_at == flow->sent.next_seq ? NULL : msg;
}

/* ---- trains of frames -------------------------------------------------------------------------- */

/* A train of frames being laid out. */
struct train {
    uint8_t *buffer;
    uint32_t datagram_bytes; /* room in each */
    uint32_t count_max;
    uint32_t count;               /* datagrams begun */
    uint32_t header, payload;     /* bytes of each region in the current one */
    uint32_t frames;              /* in the current one */
    uint32_t pieces, first_piece; /* of the train; of the current datagram */
    uint32_t payload_total;
    uint64_t payload_budget; /* of the congestion window */
    uint16_t path;
    bool follows;   /* it goes over `path`, where a leader of its messages is under way */
    bool sequenced; /* carries more than acks */
    bool shared;    /* takes granted messages, too */
};

static inline void train_begin_datagram(struct train *train)
{
    train->count++;
    train->header = WIRE_HEADER_BYTES;
    train->payload = 0;
    train->frames = 0;
    train->first_piece = train->pieces;
}

static inline uint8_t *train_at(const struct train *train)
{
    return train->buffer + (train->count - 1) * train->datagram_bytes;
}

static inline uint32_t train_room(const struct train *train)
{
    return train->datagram_bytes - train->header - train->payload;
}

/* Completes the header region: payload begins behind it. */
static inline void train_end_datagram(struct core *core, struct train *train)
{
    uint8_t *at = train_at(train);
    uint32_t payload_at = (uint32_t)(at - train->buffer) + train->header;
    wire_set_header_length(at, (uint16_t)train->header);
    for (uint32_t i = train->first_piece; i < train->pieces; i++)
        core->pieces[i].at += payload_at;
}

/* A buffer that is valid until the NIC's next flush of its sends, for acks and bare headers. */
static inline uint8_t *tx_scratch(struct core *core)
{
    core->scratch_next = (core->scratch_next + 1) % SCRATCH_COUNT;
    return core->scratch + (size_t)core->scratch_next * SCRATCH_BYTES;
}

/* Begins a datagram that is not repeated. */
static inline struct train tx_scratch_train(struct core *core)
{
    struct train train = {.buffer = tx_scratch(core), .datagram_bytes = SCRATCH_BYTES, .count_max = 1};
    train_begin_datagram(&train);
    return train;
}

/* transmit_bulk.c */

/* Cuts the chunk into datagrams with `stride` bytes of payload. False: too many datagrams. */
bool tx_lay_out(struct chunk *chunk, uint32_t stride);
/* A chunk is about to go again over another rail, perhaps of the other kind. */
void tx_change_kind(struct chunk *chunk, const struct rail *rail);
void tx_describe_bulk(const struct chunk *chunk, struct tx_desc *desc);
/*
 * What ranges of a striped message are multiples of: payload of a full chunk, or a share of the message that is a
 * record over a connection; in whole CORE_WATCHED_BYTES.
 */
uint32_t tx_chunk_bytes(const struct flow *flow, const struct core_msg *msg);
/* The next chunk, or chunks, of the connection's first large message. False: not now. */
bool tx_send_bulk(struct rail *rail, struct conn *conn, struct tx_desc *desc, uint64_t now_ns);

/* transmit_frames.c */

bool tx_send_ack(struct rail *rail, struct tx_desc *desc, uint64_t now_ns);
/* Control frames with what small messages fit. False: window, chunk records or buffers are exhausted. */
bool tx_send_frames(struct rail *rail, bool ctrl, struct tx_desc *desc, uint64_t now_ns);

/* transmit_probe.c */

bool tx_send_probes(struct rail *rail, struct tx_desc *desc, uint64_t now_ns);
/* The last word on a flow that is dead here. */
bool tx_send_farewell(struct flow *flow, struct tx_desc *desc, uint64_t now_ns);

/* rail_choice.c */

/*
 * The rail of connections that takes the next chunk of this large message; NULL: rails of datagrams do, or there is one
 * rail alone. What starts ahead of its clear-to-send keeps to the rail of its leader.
 */
static inline struct rail *tx_bulk_rail(const struct flow *flow, const struct core_msg *msg)
{
    struct rail *bulk = flow->bulk;
    unsigned shares = msg->stripes > 1 ? 8u * msg->stripes : 1; /* several threads make UDP the faster one for longer */
    bool large = msg->size_bytes >= shares * flow->bulk_min_bytes && !(msg->flags & MSG_AHEAD);
    if (!bulk || !large)
        return NULL;
    if (flow->rail_count > 2)
        return flow_best_beside(flow);
    return rail_is_lossy(bulk) ? NULL : bulk;
}
/* Sends a small message or control frames (`ctrl`), by the main rail unless its window is full. False: not now. */
bool tx_send_small_by_some(struct flow *flow, bool ctrl, struct tx_desc *desc, uint64_t now_ns);
static inline bool tx_send_small(struct flow *flow, bool ctrl, struct tx_desc *desc, uint64_t now_ns)
{
    return flow->rail_count == 1 ? tx_send_frames(flow->rails, ctrl, desc, now_ns)
                                 : tx_send_small_by_some(flow, ctrl, desc, now_ns);
}
/* Sends a chunk of the connection's first large message, by the rail that is likely to deliver it first. */
bool tx_send_large_by_some(struct flow *flow, struct conn *conn, struct tx_desc *desc, uint64_t now_ns);
static inline bool tx_send_large(struct flow *flow, struct conn *conn, struct tx_desc *desc, uint64_t now_ns)
{
    return flow->rail_count == 1 ? tx_send_bulk(flow->rails, conn, desc, now_ns)
                                 : tx_send_large_by_some(flow, conn, desc, now_ns);
}
/* The rail for an ack that travels alone: another one if the last ack seems lost. */
struct rail *tx_other_rail_for_ack(struct flow *flow);
static inline struct rail *tx_rail_for_ack(struct flow *flow)
{
    return flow->rail_count > 1 && flow->ack.repeats ? tx_other_rail_for_ack(flow) : flow->main;
}
/* The rail for a lost chunk; NULL: none carries anything. */
struct rail *tx_rail_again(struct flow *flow, const struct chunk *chunk);

/* retransmit.c */

/*
 * The lost chunk to retransmit first, or NULL. A placed chunk goes over its data QP alone, in order behind the write,
 * so that the write cannot arrive later. Its data QP may be busy, or may have to be drained.
 */
struct chunk *tx_first_retransmission(struct flow *flow);
bool tx_send_retransmission(struct flow *flow, struct chunk *chunk, struct tx_desc *desc, uint64_t now_ns);

#endif
