/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acks received: they free chunks, bring round-trip times, show losses by the order on a path, and feed congestion
 * control. On a reliable NIC a completion is the ack of a placed chunk.
 */
#include "core/ack.h"
#include "core/state.h"

#include <assert.h>

/* The chunk's record is about to be freed: frees what the record refers to. */
static void on_chunk_acked(void *context, struct chunk *chunk)
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

/*
 * Reads what the ack says of single paths: round-trip time, marks, and losses by the per-path rule. Not `fresh`: the
 * ack came in a retransmission, so its ack delays are stale.
 */
static unsigned on_ack_paths(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns,
                             struct cc_ack *cc_ack)
{
    unsigned lost = 0;
    for (unsigned i = 0; i < ack->path_count; i++) {
        const struct wire_ack_path *entry = &ack->paths[i];
        if (entry->path >= flow->paths.count || entry->on_path)
            continue;
        struct path *path = &flow->paths.paths[entry->path];
        if ((int32_t)(entry->path_seq - path->acked_seq) <= 0 || (int32_t)(entry->path_seq - path->next_seq) >= 0)
            continue; /* named before, or never sent */
        path->acked_seq = entry->path_seq;
        uint64_t hold_ns = (uint64_t)entry->ack_delay << WIRE_TIME_SHIFT;
        uint64_t echoed_ns = (uint64_t)(uint32_t)(wire_time(now_ns) - entry->time_stamp) << WIRE_TIME_SHIFT;
        uint64_t rtt_ns = fresh ? round_trip(flow, echoed_ns, hold_ns) : 0;
        if (fresh) {
            rtt_sample(&flow->rtt, rtt_ns, hold_ns, now_ns);
            if (cc_ack->rtt_ns == 0 || rtt_ns < cc_ack->rtt_ns)
                cc_ack->rtt_ns = rtt_ns;
        }
        cc_ack->ce |= entry->ce;
        path_report(&flow->paths, entry->path, entry->ce ? PATH_CONGESTED : PATH_GOOD, rtt_ns);
        lost += sent_lose_by_path(&flow->sent, entry->path, entry->path_seq);
    }
    return lost;
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
        if (!entry->on_path || entry->path >= flow->qps.count)
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
static unsigned on_ack_data_qps(struct flow *flow, const struct qp_report *reports, unsigned count, uint64_t now_ns,
                                struct cc_ack *cc_ack)
{
    unsigned lost = 0;
    for (; count-- > 0; reports++) {
        struct path *path = &flow->qps.set.paths[reports->qp];
        if (reports->path_seq == 0)
            data_qp_heard(flow, reports->qp);
        if (reports->path_seq == 0 || (int32_t)(reports->path_seq - path->acked_seq) <= 0 ||
            (int32_t)(reports->path_seq - path->next_seq) >= 0)
            continue;
        path->acked_seq = reports->path_seq;
        data_qp_heard(flow, reports->qp);
        if (reports->rtt_ns) {
            rtt_sample(&flow->rtt, reports->rtt_ns, reports->hold_ns, now_ns);
            if (cc_ack->rtt_ns == 0 || reports->rtt_ns < cc_ack->rtt_ns)
                cc_ack->rtt_ns = reports->rtt_ns;
        }
        cc_ack->ce |= reports->ce;
        path_report(&flow->qps.set, reports->qp, reports->ce ? PATH_CONGESTED : PATH_GOOD, reports->rtt_ns);
        if (!flow->core->places_reliably)
            lost += sent_lose_by_data_qp(&flow->sent, reports->qp, reports->path_seq);
    }
    data_qps_lost(flow, lost);
    return lost;
}

bool ack_on_frame(struct flow *flow, const struct wire_ack *ack, bool fresh, uint64_t now_ns)
{
    struct sent_acked acked;
    uint64_t came_ns = now_ns - flow->core->waited_ns; /* losses are judged by this time: later acks may wait behind */
    bool was_flying = flow->sent.flying_chunks > 0;
    uint64_t flight_bytes = flow->sent.flying_payload;
    COUNT(flow->core->counters, rx_acks, 1);
    struct qp_report reports[WIRE_ACK_PATHS_MAX];
    unsigned report_count = read_qp_reports(flow, ack, fresh, now_ns, reports);
    flow->sent.too_soon_ns = flow->rtt.srtt_ns && came_ns > flow->rtt.min_ns ? came_ns - flow->rtt.min_ns : 0;
    if (!sent_ack(&flow->sent, ack, on_chunk_acked, flow, &acked))
        return false;
    if (!flow->ack.peer_seen || (int32_t)(ack->number - flow->ack.peer_number) > 0) {
        flow->ack.peer_seen = true;
        flow->ack.peer_number = ack->number;
        flow->peer_window_bytes = (uint64_t)ack->window_kb * 1024;
    }
    struct cc_ack cc_ack = {.now_ns = now_ns, .acked_bytes = acked.payload_bytes};
    unsigned lost = on_ack_paths(flow, ack, fresh, now_ns, &cc_ack);
    lost += on_ack_data_qps(flow, reports, report_count, now_ns, &cc_ack);
    if (acked.spurious && flow->sent.reorder_window_quarters < 16)
        flow->sent.reorder_window_quarters++;
    loss_settle(flow, acked.spurious);
    if (flow->sent.watches)
        mtu_on_ack(flow, &acked);
    if (acked.chunks || acked.parts) {
        /* a part is progress too: a queue smaller than a chunk costs further timeouts, not longer ones */
        flow->last_ack_ns = now_ns;
        flow->loss.rto_backoff = 0;
    }
    if (acked.chunks) {
        flow->loss.tail_probed = false;
        flow->loss.tail_probe_due = false;
        lost += sent_lose_by_time(&flow->sent, &flow->rtt, came_ns, &flow->loss.rack_at_ns);
        if (flow->closing) {
            for (struct conn *conn = flow->all_head, *next; conn; conn = next) {
                next = conn->next_all;
                conn_try_finish(conn);
            }
        }
    }
    if (was_flying && (acked.chunks || cc_ack.rtt_ns)) {
        cc_ack.srtt_ns = flow->rtt.srtt_ns;
        cc_ack.min_rtt_ns = flow->rtt.min_ns;
        /* a slow NIC is no reason to stop growing at the start */
        cc_ack.cwnd_limited = flow->window_limited || (flow->cc.startup && flight_bytes >= flow->cc.cwnd_bytes / 2);
        flow->window_limited = false;
        flow->cc.ops->on_ack(&flow->cc, &cc_ack);
    }
    loss_count(flow, lost, now_ns);
    place_on_ack(flow, ack->next);
    flow_wake(flow);
    return true;
}

void ack_on_placed(struct flow *flow, uint64_t seq, uint32_t count, uint16_t qp)
{
    struct core *core = flow->core;
    struct sent_acked acked = {0};
    uint64_t sent_ns = 0;
    for (uint64_t end = seq + count; seq < end; seq++) {
        struct chunk *chunk = sent_chunk(&flow->sent, seq);
        if (seq < flow->sent.cumulative || chunk->state == CHUNK_FREE || !chunk->placed || chunk->path != qp)
            continue;
        sent_ns = chunk->sent_ns;
        sent_ack_one(&flow->sent, chunk, on_chunk_acked, flow, &acked);
    }
    if (acked.chunks == 0)
        return;
    uint64_t rtt_ns = round_trip(flow, core->now_ns - sent_ns, 0);
    data_qp_heard(flow, qp);
    rtt_sample(&flow->rtt, rtt_ns, 0, core->now_ns);
    path_report(&flow->qps.set, qp, PATH_GOOD, rtt_ns);
    flow->last_ack_ns = core->now_ns;
    flow->cc.ops->on_ack(&flow->cc, &(struct cc_ack){
                                        .now_ns = core->now_ns,
                                        .rtt_ns = rtt_ns,
                                        .srtt_ns = flow->rtt.srtt_ns,
                                        .min_rtt_ns = flow->rtt.min_ns,
                                        .acked_bytes = acked.payload_bytes,
                                        .cwnd_limited = flow->window_limited,
                                    });
    flow->window_limited = false;
}
