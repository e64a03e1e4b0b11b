/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passing time does to a flow: acks owed, loss (sent.h), tail-loss probe and retransmission timeout
 * (RFC 8985 7, RFC 6298 5), keepalive and the dead-peer verdict. One timer per flow, armed at or before the earliest deadline and re-armed lazily.
 */
#include "core/flow.h"
#include "core/state.h"

#include <assert.h>
#include <string.h>

enum { NS_PER_US = 1000, NS_PER_MS = 1000000 };
enum { RX_SHARE_MIN_BYTES = 64 * 1024 };
enum { PROBE_SHARE = 100 }; /* of the timeout's floor: as soon as the tail is probed at most */

size_t flow_size(const struct params *params, const struct flow_setup *setup)
{
    return round64(sizeof(struct flow)) + round64(setup->chunk_window * sizeof(struct chunk)) +
           round64(setup->chunk_window * sizeof(struct sack_chunk)) +
           round64(params->port_entropy * sizeof(struct path)) +
           round64(params->port_entropy * sizeof(struct sack_path)) + FRAMES_SMALL_BYTES + data_qps_size(params, setup) +
           place_size(params, setup);
}

struct flow *flow_init(void *memory, struct core *core, const struct flow_setup *setup, uint64_t now_ns)
{
    const struct params *params = core->params;
    uint16_t paths = (uint16_t)params->port_entropy;
    struct flow *flow = memory;
    uint8_t *at = memory;
    at += round64(sizeof *flow);
    struct chunk *chunks = (struct chunk *)at;
    at += round64(setup->chunk_window * sizeof *chunks);
    struct sack_chunk *sack_chunks = (struct sack_chunk *)at;
    at += round64(setup->chunk_window * sizeof *sack_chunks);
    struct path *path_states = (struct path *)at;
    at += round64(paths * sizeof *path_states);
    struct sack_path *sack_data_qps = (struct sack_path *)at;
    at += round64(paths * sizeof *sack_data_qps);
    flow->own_buffer = at;
    at += FRAMES_SMALL_BYTES;

    flow->core = core;
    flow->owner = setup->owner;
    flow->rx_token = setup->rx_token;
    flow->tx_token = setup->tx_token;
    flow->destination = setup->destination;
    flow->peer_window_bytes = setup->tx_window_bytes;
    flow->rx_window_bytes = setup->rx_window_bytes;
    flow->last_rx_ns = now_ns;
    flow->last_ack_ns = now_ns;
    flow->rack_at_ns = UINT64_MAX;
    flow->slot = (uint32_t)setup->rx_token & (CORE_FLOWS_MAX - 1);
    data_qps_init(flow, at, setup);
    place_init(flow, at + data_qps_size(params, setup), setup);
    path_set_init(&flow->paths, path_states, paths, (unsigned)params->path_policy, &core->rng);
    flow->paths.closes = true;
    sent_init(&flow->sent, chunks, setup->chunk_window, &flow->paths,
              flow->qps.count ? &flow->qps.set : NULL,
              core->paths_in_order ? 1 : (uint32_t)params->reorder_threshold);
    flow->sent.data_qps_reliable = core->places_reliably;
    sack_init(&flow->sack, sack_chunks, setup->chunk_window, sack_data_qps, flow->qps.count);
    rtt_init(&flow->rtt);
    uint32_t chunk_bytes = (uint32_t)params->chunk_size_kb * 1024;
    cc_init(&flow->cc, params, chunk_bytes);
    credit_init(flow);
    probe_init(flow, setup->nonce, setup->greets);
    reach_init(flow, setup->peer_ports);
    mtu_init(flow, setup);
    flow->features = setup->features;
    flow->gone.key = (uint32_t)rng_next(&core->rng);
    if (probe_proven(&flow->probe))
        mtu_search(flow);
    return flow;
}

/* ---- buffers of frames ----------------------------------------------------------------------- */

/*
 * Whoever is refused has chunks under way, in its own buffer at least, and goes on when one of them is acked: so nobody
 * waits for what others hold.
 */
uint8_t *flow_take_buffer(struct flow *flow, bool big, uint8_t *of)
{
    struct core *core = flow->core;
    uint8_t *buffer = big ? pool_take(&core->big, &flow->held[BUFFER_BIG]) : NULL;
    *of = BUFFER_BIG;
    if (!buffer) {
        buffer = pool_take(&core->small, &flow->held[BUFFER_SMALL]);
        *of = BUFFER_SMALL;
    }
    if (!buffer && !flow->own_used) {
        flow->own_used = true;
        buffer = flow->own_buffer;
        *of = BUFFER_OWN;
    }
    return buffer;
}

void flow_put_buffer(struct flow *flow, uint8_t *buffer, uint8_t of)
{
    if (of == BUFFER_OWN)
        flow->own_used = false;
    else
        pool_put(of == BUFFER_SMALL ? &flow->core->small : &flow->core->big, &flow->held[of], buffer);
}

/* ---- lists ----------------------------------------------------------------------------------- */

void flow_wake(struct flow *flow)
{
    if (!flow->dead)
        queue_append(&flow->core->ready, &flow->ready);
}

void flow_add_ctrl(struct conn *conn)
{
    queue_append(&conn->flow->ctrl, &conn->ctrl);
    conn->flow->ctrl_urgent = true;
    flow_wake(conn->flow);
}

void flow_add_active(struct conn *conn)
{
    if (queue_append(&conn->flow->active, &conn->active))
        conn->deficit_bytes = 0;
    flow_wake(conn->flow);
}

void flow_owe_ack(struct flow *flow, uint64_t delay_ns, bool now)
{
    uint64_t at_ns = flow->core->now_ns + delay_ns;
    if (!flow->ack_pending || at_ns < flow->ack_at_ns)
        flow->ack_at_ns = at_ns;
    flow->ack_pending = true;
    if (now && !flow->ack_now) {
        flow->ack_now = true;
        flow_wake(flow);
    }
}

void flow_owe_delayed_ack(struct flow *flow, bool now)
{
    flow_owe_ack(flow, flow->core->params->ack_delay_us * NS_PER_US, now);
}

void flow_credit_due(struct conn *conn, bool now)
{
    conn->credit_due = true;
    queue_append(&conn->flow->ctrl, &conn->ctrl);
    flow_owe_delayed_ack(conn->flow, now);
}

bool flow_expects_peer(const struct flow *flow)
{
    return flow->msgs_pending || flow->sent.next_seq > flow->sent.cumulative || flow->probe.asking;
}

void flow_expect_peer(struct flow *flow, uint64_t now_ns)
{
    if (!flow_expects_peer(flow) && flow->last_rx_ns < now_ns)
        flow->last_rx_ns = now_ns;
}

bool flow_unanswered(const struct flow *flow, uint64_t ns)
{
    uint64_t since_ns = flow->heard_ns > flow->asked_ns ? flow->heard_ns : flow->asked_ns;
    bool repeated = flow->silence.since_ns > flow->last_rx_ns; /* else it may have been us who did not run */
    return repeated && flow->sent.next_seq > flow->sent.cumulative && flow->core->now_ns >= since_ns + ns;
}

void flow_msg_started(struct flow *flow, uint64_t now_ns)
{
    flow_expect_peer(flow, now_ns);
    flow->msgs_pending++;
}

void flow_msg_ended(struct flow *flow, struct core_msg *msg, int32_t status, uint64_t moved_bytes)
{
    msg->status = status;
    msg->moved_bytes = moved_bytes;
    if (msg->work_live) {
        msg->hold = HOLD_WORK;
        msg->conn->held++;
    } else {
        flow_give_back(flow, msg);
    }
}

void flow_give_back(struct flow *flow, struct core_msg *msg)
{
    struct counters *counters = flow->core->counters;
    struct conn *conn = msg->conn;
    assert(flow->msgs_pending && !msg->work_live && !msg->grant_slot);
    flow->msgs_pending--;
    msg_append(&flow->core->ended, msg);
    if (msg->status == UCCL_OK && !conn->stripe) { /* parts are counted as the whole */
        if (msg->kind == CORE_SEND) {
            COUNT(counters, msgs_sent, 1);
            COUNT(counters, bytes_sent, msg->moved_bytes);
        } else {
            COUNT(counters, msgs_received, 1);
            COUNT(counters, bytes_received, msg->moved_bytes);
        }
    }
    if (msg->hold) {
        msg->hold = HOLD_NONE;
        if (--conn->held == 0)
            conn_none_held(conn);
    }
}

void flow_conn_event(struct conn *conn)
{
    conn->event_waits = conn->held > 0; /* no event of a connection comes before those of its messages */
    if (!conn->event_waits)
        queue_append(&conn->flow->core->conn_events, &conn->event);
}

/* ---- acks owed ------------------------------------------------------------------------------- */

/* Begins a new period of the shares when it is time. */
static void turn_share_epoch(struct core *core)
{
    enum { EPOCH_NS = 50 * NS_PER_MS, DIVISOR_MAX = 64 };
    if (core->now_ns - core->share_epoch_ns < EPOCH_NS)
        return;
    uint64_t drops = atomic_load_explicit(&core->counters->rx_kernel_drops, memory_order_relaxed);
    if (drops != core->kernel_drops_seen && core->share_divisor < DIVISOR_MAX)
        core->share_divisor *= 2;
    else if (drops == core->kernel_drops_seen && core->share_divisor > 1)
        core->share_divisor /= 2;
    core->kernel_drops_seen = drops;
    core->share_epoch_ns = core->now_ns;
    core->share_epoch++;
    core->flows_heard_before = core->flows_heard;
    core->flows_heard = 0;
}

void flow_heard(struct flow *flow, uint64_t now_ns)
{
    struct core *core = flow->core;
    flow->last_rx_ns = flow->heard_ns = now_ns;
    flow->packets_heard++;
    turn_share_epoch(core);
    if (flow->heard_epoch != core->share_epoch) {
        flow->heard_epoch = core->share_epoch;
        core->flows_heard++;
    }
}

/* What this flow may have in flight to us, so that all together fit into the receive buffer. */
static uint64_t rx_share(const struct flow *flow)
{
    const struct core *core = flow->core;
    uint64_t heard = core->flows_heard > core->flows_heard_before ? core->flows_heard
                                                                 : core->flows_heard_before;
    uint64_t share = flow->rx_window_bytes / ((heard ? heard : 1) * core->share_divisor);
    return share > RX_SHARE_MIN_BYTES ? share : RX_SHARE_MIN_BYTES;
}

void flow_fill_ack(struct flow *flow, struct wire_ack *ack, uint64_t now_ns)
{
    credit_resume(flow);
    sack_fill(&flow->sack, ack, now_ns);
    ack->number = flow->ack_number++;
    ack->window_kb = (uint32_t)(rx_share(flow) / 1024);
    ack->next = (uint32_t)flow->sent.next_seq;
    flow->ack_pending = false;
    flow->ack_now = false;
    flow->ack_chunks = 0;
    COUNT(flow->core->counters, tx_acks, 1);
    /* What found no room does not wait for the next packet, which may come after minutes: its hold would look like the
     * time that this end keeps acks back, for which the peer's timers wait. */
    if (sack_has_news(&flow->sack))
        flow_owe_delayed_ack(flow, false);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t backed_off_rto_ns(const struct flow *flow, unsigned backoff)
{
    const struct params *params = flow->core->params;
    uint64_t min_ns = params->rto_min_us * NS_PER_US, max_ns = params->rto_max_us * NS_PER_US;
    if (flow->rtt.srtt_ns == 0) /* whoever set the floor knew of no shorter round trips */
        min_ns = 2 * min_ns < max_ns ? 2 * min_ns : max_ns;
    return rtt_rto(&flow->rtt, backoff, min_ns, max_ns);
}

static uint64_t rto_ns(const struct flow *flow)
{
    return backed_off_rto_ns(flow, flow->rto_backoff);
}

uint64_t flow_rto_ns(const struct flow *flow)
{
    return backed_off_rto_ns(flow, 0);
}

uint64_t flow_probe_ns(const struct flow *flow)
{
    uint64_t ns = 2 * flow->rtt.srtt_ns + flow->rtt.peer_hold_ns;
    uint64_t least_ns = flow->core->params->rto_min_us * NS_PER_US / PROBE_SHARE;
    return ns < least_ns ? least_ns : ns;
}

/* When the loss timers next act: the tail-loss probe first, once, then the RTO. */
static uint64_t loss_deadline(const struct flow *flow)
{
    const struct chunk *oldest = sent_oldest(&flow->sent), *newest = sent_newest(&flow->sent);
    if (!oldest)
        return UINT64_MAX;
    uint64_t from_ns = oldest->sent_ns > flow->last_ack_ns ? oldest->sent_ns : flow->last_ack_ns;
    uint64_t rto_at = from_ns + rto_ns(flow);
    uint64_t probe_at = newest->sent_ns + flow_probe_ns(flow);
    if (!flow->probed && flow->rto_backoff == 0 && flow->rtt.srtt_ns && probe_at < rto_at)
        return probe_at;
    return rto_at;
}

/* Messages or retransmissions, which the pace holds back. */
static bool has_data(const struct flow *flow)
{
    return flow->active.head || sent_first_lost(&flow->sent);
}

static uint64_t earliest(const struct flow *flow)
{
    uint64_t at = loss_deadline(flow), data_qps_at = data_qps_deadline(flow);
    if (data_qps_at < at)
        at = data_qps_at;
    if (flow->rack_at_ns < at)
        at = flow->rack_at_ns;
    if (flow->ack_pending && !flow->ack_now && flow->ack_at_ns < at)
        at = flow->ack_at_ns;
    if (flow->pace_until_ns > flow->core->now_ns && has_data(flow) && flow->pace_until_ns < at)
        at = flow->pace_until_ns;
    if (flow->credit_tx.ask_at_ns < at)
        at = flow->credit_tx.ask_at_ns;
    if (flow->probe.ask_at_ns < at)
        at = flow->probe.ask_at_ns;
    if (flow->mtu.at_ns < at)
        at = flow->mtu.at_ns;
    uint64_t reach_at = reach_deadline(flow, flow_expects_peer(flow));
    if (reach_at < at)
        at = reach_at;
    if (flow_expects_peer(flow)) {
        uint64_t silence_at = silence_deadline(flow, flow->probe.due);
        if (silence_at < at)
            at = silence_at;
    }
    return at;
}

void flow_update_timer(struct flow *flow)
{
    if (flow->dead)
        return;
    assert(!flow->probe.due || queue_has(&flow->ready)); /* no deadline stands for what is due */
    uint64_t at = earliest(flow);
    if (at != UINT64_MAX && (!timer_armed(&flow->timer) || at < flow->timer.deadline_ns))
        timer_arm(&flow->core->wheel, &flow->timer, at);
}

static void probe_tail(struct flow *flow)
{
    flow->probed = true;
    flow->probe_due = true;
    COUNT(flow->core->counters, tlp_fired, 1);
    struct chunk *newest = sent_newest(&flow->sent);
    path_unanswered(newest->placed ? &flow->qps.set : &flow->paths, newest->path);
    sent_lose(&flow->sent, newest);
    mtu_on_losses(flow, true, flow->core->now_ns);
    flow_wake(flow);
}

static void retransmission_timeout(struct flow *flow, uint64_t now_ns)
{
    struct sent *sent = &flow->sent;
    unsigned lost = 0;
    struct chunk *chunk;
    COUNT(flow->core->counters, rto_fired, 1);
    while ((chunk = sent_oldest(sent))) {
        path_report(chunk->placed ? &flow->qps.set : &flow->paths, chunk->path, PATH_LOST, 0);
        sent_lose(sent, chunk);
        lost++;
    }
    COUNT(flow->core->counters, lost_chunks, lost);
    if (flow->rto_backoff < 16)
        flow->rto_backoff++;
    flow->last_ack_ns = now_ns;
    flow->rack_at_ns = UINT64_MAX;
    flow_remember_window(flow, now_ns);
    flow->cc.ops->on_rto(&flow->cc, now_ns);
    credit_on_loss(flow);
    mtu_on_losses(flow, true, now_ns);
    flow_wake(flow);
}

void flow_expire(struct flow *flow, uint64_t now_ns)
{
    if (flow->dead)
        return;
    silence_overrun(flow, flow->timer.deadline_ns, now_ns);
    if (flow->ack_pending && flow->ack_at_ns <= now_ns)
        flow_owe_delayed_ack(flow, true);
    if (flow->credit_tx.ask_at_ns <= now_ns)
        credit_ask_again(flow, now_ns);
    probe_expire(flow, now_ns);
    if (flow->mtu.at_ns <= now_ns || flow->mtu.raise_ns <= now_ns)
        mtu_expire(flow, now_ns);
    reach_expire(flow, flow_expects_peer(flow), now_ns);
    if (flow->rack_at_ns <= now_ns)
        flow_count_losses(flow,
                     sent_lose_by_time(&flow->sent, &flow->rtt, now_ns, &flow->rack_at_ns),
                     now_ns);
    if (flow_expects_peer(flow)) {
        if (silence_is_death(flow, now_ns)) {
            flow_give_up(flow, true);
            return;
        }
        if (silence_next_ask(flow) <= now_ns) {
            flow->probe.due |= PROBE_ASK;
            flow_wake(flow);
        }
    }
    if (loss_deadline(flow) <= now_ns) {
        silence_ask(flow, now_ns);
        if (!flow->probed && flow->rto_backoff == 0 && flow->rtt.srtt_ns)
            probe_tail(flow);
        else
            retransmission_timeout(flow, now_ns);
    }
    if (has_data(flow) && flow->pace_until_ns <= now_ns)
        flow_wake(flow);
    data_qps_expire(flow, now_ns);
}

void flow_fail(struct flow *flow, int32_t status)
{
    struct core *core = flow->core;
    struct sent *sent = &flow->sent;
    if (flow->dead)
        return;
    flow->dead = true;
    flow->status = status;
    timer_disarm(&core->wheel, &flow->timer);
    credit_forget(flow);
    for (struct conn *conn = flow->all_head, *next; conn; conn = next) {
        next = conn->next_all;
        conn_fail(conn, status);
    }
    place_flow_dead(flow);
    mtu_forget(flow);
    for (uint64_t seq = sent->cumulative; seq < sent->next_seq; seq++) {
        struct chunk *chunk = sent_chunk(sent, seq);
        if (chunk->state != CHUNK_FREE && chunk->kind == CHUNK_FRAMES)
            flow_put_buffer(flow, chunk->frames.buffer, chunk->frames.of);
        chunk->state = CHUNK_FREE;
    }
    queue_append(&core->flow_events, &flow->event);
}

/* Nothing but probes goes to an address that is not proven (probe.h), so nobody there is told. */
static void bid_farewell(struct flow *flow)
{
    if (!probe_proven(&flow->probe))
        return;
    flow->farewell_due = true;
    queue_append(&flow->core->ready, &flow->ready);
}

void flow_give_up(struct flow *flow, bool tell)
{
    COUNT(flow->core->counters, peers_dead, 1);
    flow_fail(flow, UCCL_EPEERDEAD);
    if (tell)
        bid_farewell(flow);
}

void flow_on_late(struct flow *flow, const struct wire_packet *packet)
{
    bool asks = packet->flags & WIRE_SEQUENCED || packet->current.kind == FRAME_PROBE ||
                packet->current.kind == FRAME_FRAGMENT;
    if (flow->status == UCCL_EPEERDEAD && asks)
        bid_farewell(flow);
}
