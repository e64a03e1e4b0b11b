/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acks received: they free chunks, bring round-trip times, show losses by the order on a path, and feed congestion
 * control. On a reliable NIC a completion is the ack of a placed chunk.
 */
#include "core/ack.h"
#include "core/state.h"

#include <assert.h>

void ack_on_chunk(void *context, struct chunk *chunk)
{
    struct flow *flow = context;
    if (chunk->kind == CHUNK_FRAMES) {
        flow_put_buffer(flow, chunk->frames.buffer, chunk->frames.of);
    } else if (chunk->kind == CHUNK_BULK) {
        struct core_msg *msg = chunk->bulk.msg;
        assert(msg->chunks_live);
        core_release_push(flow->core, msg, chunk->bulk.offset, chunk->payload_bytes);
        if (--msg->chunks_live == 0)
            conn_chunk_gone(msg->conn, msg);
    }
}

/* A round trip without the waits: at the peer until its ack left, and here until we looked. */
static uint64_t round_trip(const struct flow *flow, uint64_t passed_ns, uint64_t hold_ns)
{
    uint64_t waits_ns = hold_ns + flow->core->waited_ns;
    return passed_ns > waits_ns ? passed_ns - waits_ns : 1;
}

static inline void take_sample(struct rail *rail, uint64_t rtt_ns, uint64_t hold_ns, uint64_t now_ns)
{
    struct rail_report *report = &rail->report;
    rtt_sample(&rail->rtt, rtt_ns, hold_ns, now_ns);
    if (report->rtt_ns == 0 || rtt_ns < report->rtt_ns)
        report->rtt_ns = rtt_ns;
}

/*
 * Reads what the ack says of single paths: round-trip time, marks, and losses by the per-path rule. Not `fresh`: the
 * ack came in a retransmission, so its ack delays are stale.
 */
static void on_ack_paths(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns)
{
    for (unsigned i = 0; i < ack->path_count; i++) {
        const struct wire_ack_path *entry = &ack->paths[i];
        struct rail *rail = entry->on_path ? NULL : flow_rail_of(flow, entry->path);
        if (!rail)
            continue;
        struct rail_report *report = &rail->report;
        uint16_t local = rail_local(rail, entry->path);
        struct path *path = &rail->paths.paths[local];
        if ((int32_t)(entry->path_seq - path->acked_seq) <= 0 || (int32_t)(entry->path_seq - path->next_seq) >= 0)
            continue; /* named before, or never sent */
        path->acked_seq = entry->path_seq;
        uint64_t hold_ns = (uint64_t)entry->ack_delay << WIRE_TIME_SHIFT;
        uint64_t echoed_ns = (uint64_t)(uint32_t)(wire_time(now_ns) - entry->time_stamp) << WIRE_TIME_SHIFT;
        uint64_t rtt_ns = fresh ? round_trip(flow, echoed_ns, hold_ns) : 0;
        if (fresh)
            take_sample(rail, rtt_ns, hold_ns, now_ns);
        if (fresh && flow->rail_count > 1)
            rail_heard(rail, now_ns - echoed_ns, now_ns);
        report->ce |= entry->ce;
        path_report(&rail->paths, local, entry->ce ? PATH_CONGESTED : PATH_GOOD, rtt_ns);
        report->lost += sent_lose_by_path(&flow->sent, rail, local, entry->path_seq);
    }
}

/* What an ack says of a data QP. */
struct qp_report {
    uint16_t qp;
    uint32_t path_seq; /* newest transmission that has arrived; 0: not known any more */
    uint64_t rtt_ns;   /* 0: no sample */
    uint64_t hold_ns;
    bool ce;
};

/*
 * A write carries neither path sequence nor time: the record of its chunk has both, until this ack frees it. So this
 * runs before the chunks are freed, and on_ack_data_qps() after.
 */
static unsigned read_qp_reports(const struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns,
                                struct qp_report *reports)
{
    const struct sent *sent = &flow->sent;
    unsigned count = 0;
    for (unsigned i = 0; i < ack->path_count; i++) {
        const struct wire_ack_path *entry = &ack->paths[i];
        if (!entry->on_path || entry->path >= flow->qps.count || !flow->qps.qps[entry->path].rail)
            continue;
        struct qp_report *item = &reports[count++];
        uint64_t sent_ns = 0;
        *item = (struct qp_report){
            .qp = entry->path, .hold_ns = (uint64_t)entry->ack_delay << WIRE_TIME_SHIFT, .ce = entry->ce};
        if (entry->by_sequence) {
            uint64_t seq = wire_expand(entry->path_seq, sent->cumulative);
            const struct chunk *chunk = sent_chunk(sent, seq);
            if (seq < sent->cumulative || seq >= sent->next_seq || chunk->state == CHUNK_FREE || !chunk->placed ||
                chunk->path != entry->path || chunk->transmissions != 1)
                continue;
            item->path_seq = chunk->path_seq;
            sent_ns = now_ns - chunk->sent_ns;
        } else {
            item->path_seq = entry->path_seq;
            sent_ns = (uint64_t)(uint32_t)(wire_time(now_ns) - entry->time_stamp) << WIRE_TIME_SHIFT;
        }
        if (fresh)
            item->rtt_ns = round_trip(flow, sent_ns, item->hold_ns);
    }
    return count;
}

/* As on_ack_paths(), for data QPs. */
static void on_ack_data_qps(struct flow *flow, const struct qp_report *reports, unsigned count, uint64_t now_ns)
{
    unsigned lost = 0;
    for (; count-- > 0; reports++) {
        struct rail *rail = flow->qps.qps[reports->qp].rail;
        uint16_t local = data_qp_local(&flow->qps, reports->qp);
        struct path *path = &rail->qps.paths[local];
        if (reports->path_seq == 0)
            data_qp_heard(flow, reports->qp);
        if (reports->path_seq == 0 || (int32_t)(reports->path_seq - path->acked_seq) <= 0 ||
            (int32_t)(reports->path_seq - path->next_seq) >= 0)
            continue;
        path->acked_seq = reports->path_seq;
        data_qp_heard(flow, reports->qp);
        if (reports->rtt_ns)
            take_sample(rail, reports->rtt_ns, reports->hold_ns, now_ns);
        rail->report.ce |= reports->ce;
        path_report(&rail->qps, local, reports->ce ? PATH_CONGESTED : PATH_GOOD, reports->rtt_ns);
        if (flow->core->places_reliably)
            continue;
        unsigned late = sent_lose_by_data_qp(&flow->sent, rail, local, reports->path_seq);
        rail->report.lost += late;
        lost += late;
    }
    data_qps_lost(flow, lost);
}

/* The ack is about to be applied. */
static void begin_report(struct rail *rail, uint64_t came_ns)
{
    rail->acked = (struct sent_acked){0};
    rail->report = (struct rail_report){.was_flying = rail->flying_chunks > 0, .flight_bytes = rail->flying_payload};
    rail->too_soon_ns = rail->rtt.srtt_ns && came_ns > rail->rtt.min_ns ? came_ns - rail->rtt.min_ns : 0;
}

/* Congestion control, timers and losses hear what the ack brought for the rail. */
static void settle_report(struct rail *rail, uint64_t came_ns, uint64_t now_ns)
{
    struct rail_report *report = &rail->report;
    const struct sent_acked *acked = &rail->acked;
    if (acked->spurious && rail->reorder_window_quarters < 16)
        rail->reorder_window_quarters++;
    loss_settle(rail, acked->spurious);
    if (rail->watches)
        mtu_on_ack(rail, acked);
    if (acked->chunks || acked->parts) {
        /* a part is progress too: a queue smaller than a chunk costs further timeouts, not longer ones */
        rail->last_ack_ns = now_ns;
        rail->loss.rto_backoff = 0;
    }
    if (acked->chunks) {
        rail->loss.tail_probed = false;
        rail->loss.tail_probe_due = false;
        report->lost += sent_lose_by_time(&rail->flow->sent, rail, came_ns, &rail->loss.rack_at_ns);
    }
    if (report->was_flying && (acked->chunks || report->rtt_ns)) {
        struct cc_ack cc_ack = {
            .now_ns = now_ns,
            .rtt_ns = report->rtt_ns,
            .srtt_ns = rail->rtt.srtt_ns,
            .min_rtt_ns = rail->rtt.min_ns,
            .acked_bytes = acked->payload_bytes,
            .ce = report->ce,
            /* a slow NIC is no reason to stop growing at the start */
            .cwnd_limited =
                rail->window_limited || (rail->cc.startup && report->flight_bytes >= rail->cc.cwnd_bytes / 2),
        };
        rail->window_limited = false;
        rail->cc.ops->on_ack(&rail->cc, &cc_ack);
    }
    loss_count(rail, report->lost, now_ns);
}

/* Chunks have been acked: a connection that closes may have waited for these. */
static void finish_closing(struct flow *flow)
{
    for (struct queue_link *link = flow->closers.head, *next; link; link = next) {
        next = link->next;
        conn_try_finish(QUEUE_HOLDER(link, struct conn, closer));
    }
}

bool ack_on_frame(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns)
{
    uint64_t came_ns = now_ns - flow->core->waited_ns; /* losses are judged by this time: later acks may wait behind */
    COUNT(flow->core->counters, rx_acks, 1);
    struct qp_report qp_reports[WIRE_ACK_PATHS_MAX];
    unsigned qp_count = read_qp_reports(flow, ack, fresh, now_ns, qp_reports);
    EACH_RAIL(flow, rail)
    begin_report(rail, came_ns);
    if (!sent_ack(&flow->sent, ack))
        return false;
    if (!flow->ack.peer_seen || (int32_t)(ack->number - flow->ack.peer_number) > 0) {
        flow->ack.peer_seen = true;
        flow->ack.peer_number = ack->number;
        flow->peer_window_bytes = (uint64_t)ack->window_kb * 1024;
    }
    on_ack_paths(flow, ack, fresh, now_ns);
    on_ack_data_qps(flow, qp_reports, qp_count, now_ns);
    EACH_RAIL(flow, rail)
    settle_report(rail, came_ns, now_ns);
    finish_closing(flow);
    place_on_ack(flow, ack->next);
    flow_wake(flow);
    return true;
}

void ack_on_placed(struct flow *flow, uint64_t seq, uint32_t count, uint16_t qp)
{
    struct core *core = flow->core;
    struct rail *rail = flow->qps.qps[qp].rail;
    uint64_t sent_ns = 0;
    rail->acked = (struct sent_acked){0};
    for (uint64_t end = seq + count; seq < end; seq++) {
        struct chunk *chunk = sent_chunk(&flow->sent, seq);
        if (seq < flow->sent.cumulative || chunk->state == CHUNK_FREE || !chunk->placed || chunk->path != qp)
            continue;
        sent_ns = chunk->sent_ns;
        sent_ack_one(&flow->sent, chunk);
    }
    if (rail->acked.chunks == 0)
        return;
    uint64_t rtt_ns = round_trip(flow, core->now_ns - sent_ns, 0);
    data_qp_heard(flow, qp);
    rtt_sample(&rail->rtt, rtt_ns, 0, core->now_ns);
    path_report(&rail->qps, data_qp_local(&flow->qps, qp), PATH_GOOD, rtt_ns);
    rail->last_ack_ns = core->now_ns;
    rail->cc.ops->on_ack(&rail->cc, &(struct cc_ack){
                                        .now_ns = core->now_ns,
                                        .rtt_ns = rtt_ns,
                                        .srtt_ns = rail->rtt.srtt_ns,
                                        .min_rtt_ns = rail->rtt.min_ns,
                                        .acked_bytes = rail->acked.payload_bytes,
                                        .cwnd_limited = rail->window_limited,
                                    });
    rail->window_limited = false;
}
