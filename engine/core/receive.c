/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a flow does with a packet that has arrived. A peer may write anything into a packet, and sends it again until
 * it is acked. So one table judges the whole packet before any of its frames acts. A good packet is acked whatever its
 * frames come to. So no frame acts twice, and none acts where it is not allowed.
 *
 * Four verdicts:
 * - Good: frames act in their order. A frame that contradicts the state of its connection is ignored and counted.
 * - Illegal: no honest peer sends this. Nothing acts. The packet is acked: else it would hold up later ones for ever.
 * - Damaged: its lengths contradict each other, perhaps because its tail was cut off. It counts as lost.
 * - Early: it has overtaken the frame that makes it legal. Nothing acts, and no ack is sent, so that it comes again.
 */
#include "core/flow.h"
#include "core/state.h"

/* ---- the table ------------------------------------------------------------------------------- */

enum {
    /* Its addressee: the flow, or an end of a connection of that kind */
    FLOW = 1,
    HOME = 2,
    PART = 4,
    /* How it travels */
    NUMBERED = 8,    /* with a sequence number */
    UNNUMBERED = 16, /* without: duplicates go undetected, and do no harm */
    /* States of the connection in which it acts; in others it is stale */
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
    [FRAME_ABORT] = HOME | NUMBERED | OPEN | CLOSING | FAILED,
    [FRAME_FIN] = HOME | NUMBERED | OPEN | CLOSING | FAILED,
    [FRAME_ACK] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_DEMAND] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_GRANT] = FLOW | NUMBERED | UNNUMBERED,
    [FRAME_QP] = FLOW | NUMBERED,
    [FRAME_GONE] = FLOW | NUMBERED,
    [FRAME_PROBE] = FLOW | UNNUMBERED,
    [FRAME_FLOW] = FLOW | UNNUMBERED,
    [FRAME_FRAGMENT] = FLOW | UNNUMBERED,
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
    while (conn && conn->local_id != id)
        conn = conn->next_index;
    return conn && conn->flow == flow && conn->state != CONN_OVER ? conn : NULL;
}

/* The connection of the current frame. Most packets name one connection only. */
struct subject {
    struct conn *conn; /* NULL: unknown */
    uint32_t id;
    bool known;         /* `id` was looked up */
    uint64_t delivered; /* conn->delivered once the CREDIT frames before have acted */
};

static void look_up(struct subject *subject, struct flow *flow, uint32_t id)
{
    subject->conn = flow_find_conn(flow, id);
    subject->id = id;
    subject->known = true;
    subject->delivered = subject->conn ? subject->conn->delivered : 0;
}

static inline void turn_to(struct subject *subject, struct flow *flow, uint32_t id)
{
    if (!subject->known || subject->id != id)
        look_up(subject, flow, id);
}

/* ---- judging --------------------------------------------------------------------------------- */

enum verdict { GOOD, ILLEGAL, DAMAGED, EARLY };

/*
 * Whether the frame has overtaken another one: the CREDIT without which its number is beyond the window, the leader of
 * its message (ahead.c), or the owner's command that submits its part.
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
    case FRAME_ABORT:
        return !frame->abort.of_send &&
               wire_expand(frame->abort.msg, conn->delivered) >= subject->delivered + conn->window;
    default:
        return conn->for_parts ? !conn_knows_part(conn, frame->data.msg) : conn_awaits_recv(conn, frame->data.msg);
    }
}

static inline enum verdict judge_frame(struct flow *flow, const struct wire_frame *frame, uint8_t travels,
                                       struct subject *subject)
{
    uint8_t rule = rules[frame->kind];
    if (!(rule & travels) || !(flow->features >> frame->kind & 1))
        return ILLEGAL;
    if (rule & FLOW)
        return GOOD;
    turn_to(subject, flow, frame->conn);
    const struct conn *conn = subject->conn;
    if (!conn)
        return GOOD;
    if (!(rule & (conn->for_parts ? PART : HOME)))
        return ILLEGAL;
    return conn->overtakes >> frame->kind & 1 && acts_in(rule, conn) && is_early(subject, frame) ? EARLY : GOOD;
}

/* Judges the frames behind the first one, which is good or early. */
static enum verdict judge_others(struct flow *flow, struct wire_packet *packet, uint8_t travels,
                                 struct subject *subject, enum verdict verdict)
{
    unsigned gone = packet->current.kind == FRAME_GONE, strangers = subject->known && !subject->conn;
    bool alone = packet->current.kind == FRAME_FRAGMENT;
    for (unsigned frames = 1; !wire_at_end(packet); frames++) {
        if (frames == CORE_FRAMES_MAX || !wire_take_frame(packet))
            return DAMAGED;
        enum verdict next = judge_frame(flow, &packet->current, travels, subject);
        alone |= packet->current.kind == FRAME_FRAGMENT;
        if (alone || (packet->current.kind == FRAME_GONE && ++gone > GONE_PER_PACKET_MAX))
            next = ILLEGAL;
        if (next == ILLEGAL)
            return ILLEGAL;
        if (next == EARLY)
            verdict = EARLY; /* unless a later frame is worse */
        strangers += packet->current.kind <= FRAME_FIN && !subject->conn;
    }
    wire_rewind(packet, 0);
    subject->known = false;
    return strangers > gone_room(flow) ? EARLY : verdict; /* each needs an answer */
}

/* Judges the packet, then rewinds it. If it has a single frame, `subject` is the connection of that frame. */
static inline enum verdict judge(struct flow *flow, struct wire_packet *packet, uint8_t travels,
                                 struct subject *subject)
{
    subject->known = false;
    if (wire_at_end(packet))
        return GOOD;
    if (!wire_take_frame(packet))
        return DAMAGED;
    enum verdict verdict = judge_frame(flow, &packet->current, travels, subject);
    if (!wire_at_end(packet))
        return verdict == ILLEGAL ? ILLEGAL : judge_others(flow, packet, travels, subject, verdict);
    packet->single = true;
    return subject->known && !subject->conn && gone_room(flow) == 0 ? EARLY : verdict;
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
    case FRAME_ABORT:
        return conn_on_abort(conn, &frame->abort);
    case FRAME_FIN:
        return conn_on_fin(conn, &frame->fin);
    default:
        return false;
    }
}

/* The peer does not know a connection to which we have written. */
static void on_gone(struct flow *flow, const struct wire_gone *gone)
{
    struct conn *conn = gone_find(flow, gone->id);
    if (conn)
        conn_fail(conn, UCCL_ECLOSED, DEFER_ARRIVAL);
    else
        COUNT(flow->core->counters, rx_stale_frames, 1);
}

/* The datagram that a fragment completes acts as if it had arrived. */
static bool on_fragment(struct flow *flow, const struct wire_fragment *fragment, uint64_t now_ns)
{
    struct wire_packet whole;
    enum image_step step = image_add(flow, fragment, now_ns, &whole);
    if (step == IMAGE_WHOLE)
        flow_rx(flow, &whole, -1, false, now_ns);
    return step != IMAGE_REFUSED;
}

/* False: the frame contradicts the state of the flow. */
static bool on_flow_frame(struct flow *flow, const struct wire_frame *frame, bool fresh, uint64_t now_ns)
{
    switch (frame->kind) {
    case FRAME_ACK:
        return ack_on_frame(flow, &frame->ack, fresh, now_ns);
    case FRAME_DEMAND:
        credit_on_demand(flow, &frame->demand, now_ns);
        return true;
    case FRAME_GRANT:
        credit_on_grant(flow, &frame->grant, now_ns);
        return true;
    case FRAME_QP:
        data_qps_on_frame(flow, &frame->qp);
        return true;
    case FRAME_GONE:
        on_gone(flow, &frame->gone);
        return true;
    case FRAME_PROBE:
        probe_on_frame(flow->rx_rail, &frame->probe, now_ns);
        return true;
    case FRAME_FLOW:
        flow_give_up(flow, false);
        return true;
    case FRAME_FRAGMENT:
        return on_fragment(flow, &frame->fragment, now_ns);
    default:
        return false;
    }
}

/* The connection of the frame is unknown, or takes no such frames any more. */
static void on_stale(struct flow *flow, const struct subject *subject)
{
    COUNT(flow->core->counters, rx_stale_frames, 1);
    if (!subject->conn)
        gone_answer(flow, subject->id);
}

/* Acts on one frame of a packet that has been judged good. */
static inline void act_on(struct flow *flow, const struct wire_frame *frame, bool fresh, struct subject *subject,
                          uint64_t now_ns)
{
    uint8_t rule = rules[frame->kind];
    bool agrees;
    if (rule & FLOW) {
        agrees = on_flow_frame(flow, frame, fresh, now_ns);
    } else {
        turn_to(subject, flow, frame->conn);
        struct conn *conn = subject->conn;
        if (!conn || !acts_in(rule, conn)) {
            on_stale(flow, subject);
            return;
        }
        conn->heard = true;
        agrees = on_conn_frame(conn, frame);
    }
    if (!agrees)
        COUNT(flow->core->counters, rx_malformed, 1);
}

static void act_on_all(struct flow *flow, struct wire_packet *packet, bool fresh, struct subject *subject,
                       uint64_t now_ns)
{
    const struct wire_frame *frame;
    /* no frame behind a farewell acts: a dead flow has no timer */
    while (!flow->dead && (frame = wire_next_frame(packet)))
        act_on(flow, frame, fresh, subject, now_ns);
}

static inline void act(struct flow *flow, struct wire_packet *packet, struct subject *subject, uint64_t now_ns)
{
    bool fresh = !(packet->flags & WIRE_RETRANSMISSION);
    if (packet->single)
        act_on(flow, &packet->current, fresh, subject, now_ns);
    else
        act_on_all(flow, packet, fresh, subject, now_ns);
}

/* ---- packets --------------------------------------------------------------------------------- */

/* Notes the packet's path, for our acks. */
static inline void note_path(struct flow *flow, const struct wire_packet *packet, int qp, bool ce, uint64_t now_ns)
{
    uint64_t at_ns = now_ns - flow->core->waited_ns;
    if (qp < 0)
        sack_note_path(&flow->sack, packet, ce, at_ns);
    else
        sack_note_data_qp(&flow->sack, (uint16_t)qp, packet, ce, at_ns);
}

static bool on_unnumbered(struct flow *flow, struct wire_packet *packet, uint64_t now_ns)
{
    struct subject subject;
    if (judge(flow, packet, UNNUMBERED, &subject) != GOOD) {
        COUNT(flow->core->counters, rx_malformed, 1);
        return false;
    }
    flow->rx_rail = flow_rail_of(flow, packet->path);
    if (!flow->rx_rail || (flow->rx_rail->reliable && flow->rx_rail->cut)) /* the peer numbers its paths otherwise */
        flow->rx_rail = flow->rails;
    act(flow, packet, &subject, now_ns);
    return true;
}

/* The packet is a duplicate, or not acceptable. */
static bool on_not_new(struct flow *flow, const struct wire_packet *packet, enum sack_verdict verdict, int qp, bool ce,
                       uint64_t now_ns)
{
    struct counters *counters = flow->core->counters;
    if (verdict == SACK_BEYOND_WINDOW) {
        COUNT(counters, rx_out_of_window, 1);
        return false;
    }
    if (verdict == SACK_MALFORMED) {
        COUNT(counters, rx_malformed, 1);
        return false;
    }
    COUNT(counters, rx_duplicates, 1);
    note_path(flow, packet, qp, ce, now_ns);
    flow->ack.repeats |= packet->flags & WIRE_RETRANSMISSION;
    ack_owe_delayed(flow, true);
    return true;
}

/* The packet was judged and does not act. False: it is not acked either. */
static bool on_not_good(struct flow *flow, enum verdict verdict)
{
    if (verdict == EARLY)
        COUNT(flow->core->counters, rx_refused, 1);
    else
        COUNT(flow->core->counters, rx_malformed, 1);
    return verdict == ILLEGAL;
}

bool flow_rx(struct flow *flow, struct wire_packet *packet, int qp, bool ce, uint64_t now_ns)
{
    struct subject subject;
    uint64_t seq;
    flow_heard(flow, now_ns);
    if (ce)
        COUNT(flow->core->counters, rx_ce_marks, 1);
    if (!(packet->flags & WIRE_SEQUENCED))
        return on_unnumbered(flow, packet, now_ns);
    enum sack_verdict arrival = sack_check(&flow->sack, packet, &seq);
    if (arrival != SACK_NEW)
        return on_not_new(flow, packet, arrival, qp, ce, now_ns);
    flow->rx_seq = seq;
    enum verdict verdict = judge(flow, packet, NUMBERED, &subject);
    if (verdict == GOOD)
        act(flow, packet, &subject, now_ns);
    else if (!on_not_good(flow, verdict)) {
        if (flow->reliable) { /* a connection brings it no second time by itself: the ack tells that it was refused */
            note_path(flow, packet, qp, ce, now_ns);
            ack_owe_delayed(flow, true);
        }
        return false;
    }
    note_path(flow, packet, qp, ce, now_ns);
    /* closing a gap matters as much as opening one (RFC 5681 4.2); an incomplete chunk is no gap */
    bool gap = flow->sack.end > flow->sack.cumulative + (seq == flow->sack.cumulative);
    if (sack_mark(&flow->sack, seq, packet->index, packet->count))
        flow->ack.chunks++;
    gap = (gap || sack_has_gap(&flow->sack)) && packet->index + 1u == packet->count && !flow->reliable;
    ack_owe_delayed(flow,
                    gap || packet->flags & WIRE_RETRANSMISSION || flow->ack.chunks >= flow->core->params->ack_every);
    if (flow->place.deferred.head)
        place_on_arrival(flow);
    return true;
}
