/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a packet does that has arrived on a flow. A peer may write anything into it, and a packet that is not acked comes
 * again. So the whole packet is judged by one table before any of its frames acts; once it has been
 * judged good, it is acked whatever its frames come to. No frame of it acts twice, and none acts where it has no business.
 *
 * Four verdicts:
 * - Good: frames act in their order. One that contradicts what its connection knows is ignored and counted.
 * - Illegal: no honest peer sends this. Nothing acts. It is acked all the same: it would hold up what follows for ever.
 * - Damaged: its lengths contradict each other, perhaps since its tail was cut off. It is lost.
 * - Early: it has overtaken what makes it legal. Nothing acts, and it is not acked, so that it comes again.
 */
#include "core/flow.h"
#include "core/state.h"

/* ---- the table ------------------------------------------------------------------------------- */

enum {
    /* What it speaks to: the flow, or an end of a connection of that kind */
    FLOW = 1,
    HOME = 2,
    PART = 4,
    /* How it travels */
    NUMBERED = 8,    /* with a sequence number */
    UNNUMBERED = 16, /* without: nothing detects a duplicate, so it may be repeated */
    /* States of the connection in which it acts; it is stale in others */
    OPEN = 32,
    CLOSING = 64,
    FAILED = 128,
};
static const uint8_t rules[FRAME_KINDS] = {
    [FRAME_DATA] = HOME | PART | NUMBERED | OPEN | CLOSING,
    [FRAME_EAGER] = HOME | NUMBERED | OPEN | CLOSING,
    [FRAME_CTS] = HOME | NUMBERED | OPEN | CLOSING,
    [FRAME_RTS] = HOME | NUMBERED | OPEN | CLOSING,
    [FRAME_CREDIT] = HOME | NUMBERED | OPEN | CLOSING,
    [FRAME_END] = HOME | NUMBERED | OPEN | CLOSING | FAILED,
    [FRAME_FIN] = HOME | NUMBERED | OPEN | CLOSING | FAILED,
    [FRAME_PING] = FLOW | NUMBERED,
    [FRAME_ACK] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_DEMAND] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_GRANT] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_PATH] = FLOW | NUMBERED,
    [FRAME_GONE] = FLOW | NUMBERED,
    [FRAME_PROBE] = FLOW | UNNUMBERED,
};

static bool acts_in(uint8_t rule, const struct conn *conn)
{
    static const uint8_t states[] = {
        [CONN_OPEN] = OPEN, [CONN_CLOSING] = CLOSING, [CONN_FAILED] = FAILED, [CONN_OVER] = 0};
    return rule & states[conn->state];
}

struct conn *flow_find_conn(struct flow *flow, uint32_t id)
{
    struct conn *conn = flow->core->conns[id & (CORE_CONNS_MAX - 1)];
    return conn && conn->local_id == id && conn->flow == flow && conn->state != CONN_OVER ? conn : NULL;
}

/* The connection that frames speak of, one after the other: most of a packet are about one. */
struct subject {
    uint32_t id;
    bool known;          /* it was looked up */
    struct conn *conn;   /* NULL: there is none */
    uint64_t delivered;  /* of its sends, once the CREDIT frames before have acted */
};

static void turn_to(struct subject *subject, struct flow *flow, uint32_t id)
{
    if (subject->known && subject->id == id)
        return;
    struct conn *conn = flow_find_conn(flow, id);
    *subject = (struct subject){id, true, conn, conn ? conn->delivered : 0};
}

/* ---- judging --------------------------------------------------------------------------------- */

enum verdict { GOOD, ILLEGAL, DAMAGED, EARLY };

/*
 * Whether the frame has overtaken another one: CREDIT, without which its number is beyond the window, or the command that
 * makes its part known here.
 */
static bool is_early(struct subject *subject, const struct wire_frame *frame)
{
    const struct conn *conn = subject->conn;
    switch (frame->kind) {
    case FRAME_CREDIT:
        subject->delivered = conn_credited(conn, &frame->credit, subject->delivered);
        return false;
    case FRAME_CTS:
        return wire_expand(frame->cts.msg, conn->delivered) >= subject->delivered + conn->window;
    case FRAME_END:
        return !frame->end.of_send &&
               wire_expand(frame->end.msg, conn->delivered) >= subject->delivered + conn->window;
    case FRAME_DATA:
        return conn->stripe && !conn_knows_part(conn, frame->data.msg);
    default:
        return false;
    }
}

/* Reads every frame, and leaves the packet at the first one again. */
static enum verdict judge(struct flow *flow, struct wire_packet *packet)
{
    enum verdict verdict = GOOD;
    uint8_t travels = packet->flags & WIRE_SEQUENCED ? NUMBERED : UNNUMBERED;
    unsigned frames = 0, strangers = 0, gone = 0;
    struct subject subject = {0};
    for (; !wire_at_end(packet); frames++) {
        const struct wire_frame *frame = &packet->current;
        if (frames == CORE_FRAMES_MAX || !wire_take_frame(packet))
            return DAMAGED;
        uint8_t rule = rules[frame->kind];
        if (!(rule & travels) || !(flow->features >> frame->kind & 1))
            return ILLEGAL;
        if (rule & FLOW) {
            if (frame->kind == FRAME_GONE && ++gone > GONE_PER_PACKET_MAX)
                return ILLEGAL;
            continue;
        }
        turn_to(&subject, flow, frame->conn);
        if (!subject.conn)
            strangers++;
        else if (!(rule & (subject.conn->stripe ? PART : HOME)))
            return ILLEGAL;
        else if (acts_in(rule, subject.conn) && is_early(&subject, frame))
            verdict = EARLY; /* unless what follows is worse */
    }
    wire_rewind(packet, frames);
    if (strangers > gone_room(flow)) /* each is to be answered */
        verdict = EARLY;
    return verdict;
}

/* ---- acting ---------------------------------------------------------------------------------- */

static bool on_conn_frame(struct conn *conn, const struct wire_frame *frame)
{
    switch (frame->kind) {
    case FRAME_DATA:
        return conn_on_data(conn, &frame->data);
    case FRAME_EAGER:
        return conn_on_eager(conn, &frame->eager);
    case FRAME_CTS:
        return conn_on_cts(conn, &frame->cts);
    case FRAME_RTS:
        return conn_on_rts(conn, &frame->rts);
    case FRAME_CREDIT:
        return conn_on_credit(conn, &frame->credit);
    case FRAME_END:
        return conn_on_end(conn, &frame->end);
    case FRAME_FIN:
        return conn_on_fin(conn, &frame->fin);
    default:
        return false;
    }
}

/* False: it contradicts what the flow knows. */
static bool on_flow_frame(struct flow *flow, const struct wire_frame *frame, bool fresh, uint64_t now_ns)
{
    switch (frame->kind) {
    case FRAME_ACK:
        return flow_on_ack(flow, &frame->ack, fresh, now_ns);
    case FRAME_DEMAND:
        credit_on_demand(flow, &frame->demand, now_ns);
        return true;
    case FRAME_GRANT:
        credit_on_grant(flow, &frame->grant, now_ns);
        return true;
    case FRAME_PATH:
        lanes_on_frame(flow, &frame->path);
        return true;
    case FRAME_GONE:
        gone_on_frame(flow, &frame->gone);
        return true;
    case FRAME_PROBE:
        probe_on_frame(flow, &frame->probe);
        return true;
    default: /* PING: its ack is the answer */
        return true;
    }
}

/* Acts on every frame of a packet that has been judged good. */
static void act(struct flow *flow, struct wire_packet *packet, uint64_t now_ns)
{
    struct counters *counters = flow->core->counters;
    const struct wire_frame *frame;
    struct subject subject = {0};
    bool fresh = !(packet->flags & WIRE_REPAIR);
    while ((frame = wire_next_frame(packet))) {
        uint8_t rule = rules[frame->kind];
        if (rule & FLOW) {
            if (!on_flow_frame(flow, frame, fresh, now_ns))
                COUNT(counters, rx_malformed, 1);
            continue;
        }
        turn_to(&subject, flow, frame->conn);
        struct conn *conn = subject.conn;
        if (!conn || !acts_in(rule, conn)) {
            COUNT(counters, rx_stale_frames, 1);
            if (!conn)
                gone_answer(flow, frame->conn);
            continue;
        }
        conn->heard = true;
        if (!on_conn_frame(conn, frame))
            COUNT(counters, rx_malformed, 1);
    }
}

/* ---- packets --------------------------------------------------------------------------------- */

/* What an ack will say of the path that it came over. */
static void note_path(struct flow *flow, const struct wire_packet *packet, int lane, bool ce, uint64_t now_ns)
{
    uint64_t at_ns = now_ns - flow->core->waited_ns;
    if (lane < 0)
        sack_note_path(&flow->sack, packet, ce, at_ns);
    else
        sack_note_lane(&flow->sack, (uint16_t)lane, packet, ce, at_ns);
}

bool flow_rx(struct flow *flow, struct wire_packet *packet, int lane, bool ce, uint64_t now_ns)
{
    struct counters *counters = flow->core->counters;
    flow_heard(flow, now_ns);
    if (ce)
        COUNT(counters, rx_ce_marks, 1);
    if (!(packet->flags & WIRE_SEQUENCED)) {
        if (judge(flow, packet) != GOOD) {
            COUNT(counters, rx_malformed, 1);
            return false;
        }
        act(flow, packet, now_ns);
        return true;
    }

    uint64_t seq;
    switch (sack_check(&flow->sack, packet, &seq)) {
    case SACK_DUPLICATE:
        COUNT(counters, rx_duplicates, 1);
        note_path(flow, packet, lane, ce, now_ns);
        flow_owe_delayed_ack(flow, true);
        return true;
    case SACK_BEYOND_WINDOW:
        COUNT(counters, rx_out_of_window, 1);
        return false;
    case SACK_MALFORMED:
        COUNT(counters, rx_malformed, 1);
        return false;
    case SACK_NEW:
        break;
    }
    flow->rx_seq = seq;
    switch (judge(flow, packet)) {
    case GOOD:
        act(flow, packet, now_ns);
        break;
    case ILLEGAL:
        COUNT(counters, rx_malformed, 1);
        break;
    case DAMAGED:
        COUNT(counters, rx_malformed, 1);
        return false;
    case EARLY:
        COUNT(counters, rx_refused, 1);
        return false;
    }
    note_path(flow, packet, lane, ce, now_ns);
    /* one that is closed matters as much (RFC 5681 4.2); a chunk that is not whole yet is none */
    bool gap = flow->sack.end > flow->sack.cumulative + (seq == flow->sack.cumulative);
    if (sack_mark(&flow->sack, seq, packet->index, packet->count))
        flow->ack_chunks++;
    gap = (gap || sack_has_gap(&flow->sack)) && packet->index + 1u == packet->count;
    flow_owe_delayed_ack(flow, gap || packet->flags & WIRE_REPAIR ||
                                   flow->ack_chunks >= flow->core->params->ack_every);
    place_on_arrival(flow);
    return true;
}
