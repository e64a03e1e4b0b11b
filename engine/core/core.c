/* SPDX-License-Identifier: Apache-2.0 */
/* The core's front: set-up, dispatch to flows and connections, and the queues that the owner pulls. */
#include "core/core.h"
#include "core/state.h"
#include "core/transmit.h"

#include <assert.h>
#include <string.h>

enum { LINK_MBPS_DEFAULT = 100000 };

/* ---- set-up ---------------------------------------------------------------------------------- */

size_t core_size(const struct params *params)
{
    return round64(sizeof(struct core)) + SCRATCH_COUNT * SCRATCH_BYTES +
           round64(core_releases_max(params) * sizeof(struct core_release)) +
           round64(params->tx_small_buffers * sizeof(uint8_t *)) + round64(params->tx_buffers * sizeof(uint8_t *)) +
           (size_t)IMAGES_MAX * IMAGE_BYTES + params->tx_small_buffers * FRAMES_SMALL_BYTES +
           params->tx_buffers * FRAMES_BIG_BYTES;
}

/* Lays `count` buffers out at `*at`; the first one is on top. */
static void pool_init(struct pool *pool, uint8_t **free_list, uint8_t **at, size_t count, size_t bytes)
{
    pool->free = free_list;
    for (size_t i = count; i-- > 0;)
        pool->free[pool->count++] = *at + i * bytes;
    *at += count * bytes;
}

struct core *core_init(void *memory, const struct core_setup *setup, uint64_t now_ns)
{
    const struct params *params = setup->params;
    struct core *core = memory;
    uint8_t *at = memory;
    at += round64(sizeof *core);
    core->scratch = at;
    at += SCRATCH_COUNT * SCRATCH_BYTES;
    core->releases = (struct core_release *)at;
    at += round64(core_releases_max(params) * sizeof *core->releases);
    uint8_t **small_free = (uint8_t **)at;
    at += round64(params->tx_small_buffers * sizeof(uint8_t *));
    uint8_t **big_free = (uint8_t **)at;
    at += round64(params->tx_buffers * sizeof(uint8_t *));
    pool_init(&core->small, small_free, &at, params->tx_small_buffers, FRAMES_SMALL_BYTES);
    pool_init(&core->big, big_free, &at, params->tx_buffers, FRAMES_BIG_BYTES);
    images_init(&core->images, at);
    core->params = params;
    core->counters = setup->counters;
    core->crc32c = setup->crc32c;
    core->paths_in_order = setup->paths_in_order;
    core->whole_trains = setup->whole_trains;
    core->places_reliably = setup->places_reliably;
    core->places_in_order = setup->places_in_order;
    core->rng.state = setup->seed;
    core->pacer = (struct pacer){.next_ns = now_ns, .link_mbps = LINK_MBPS_DEFAULT};
    core->now_ns = now_ns;
    share_init(core, now_ns);
    timer_wheel_init(&core->wheel, now_ns);
    return core;
}

void core_set_link(struct core *core, uint64_t mbps)
{
    assert(mbps > 0);
    core->pacer.link_mbps = mbps;
}

uint64_t core_make_token(uint64_t random, uint32_t index)
{
    assert(index < CORE_FLOWS_MAX);
    uint64_t token = random << TOKEN_SLOT_BITS | index;
    return random << TOKEN_SLOT_BITS ? token : token | UINT64_C(1) << 63;
}

size_t core_flow_size(const struct params *params, const struct flow_setup *setup)
{
    return flow_size(params, setup);
}

struct flow *core_flow_open(struct core *core, void *memory, const struct flow_setup *setup, uint64_t now_ns)
{
    uint32_t slot = token_slot(setup->rx_token);
    assert(!core->flows[slot] && setup->rail_count > 0 && setup->rail_count <= CORE_RAILS_MAX);
    for (unsigned i = 0; i < setup->rail_count; i++)
        assert(setup->rails[i].datagram_bytes >= CORE_DATAGRAM_MIN &&
               setup->rails[i].datagram_bytes <=
                   (setup->rails[i].reliable ? CORE_RECORD_BYTES_MAX : CORE_TRAIN_BYTES_MAX));
    for (unsigned i = 1; setup->rails->reliable && i < setup->rail_count; i++) /* a record goes again over any */
        assert(setup->rails[i].datagram_bytes == setup->rails->datagram_bytes);
    core->now_ns = now_ns;
    struct flow *flow = flow_init(memory, core, setup, now_ns);
    core->flows[slot] = flow;
    if (slot >= core->flow_end)
        core->flow_end = slot + 1;
    flow_update_timer(flow); /* a greeting probe may be due */
    return flow;
}

void core_flow_close(struct core *core, struct flow *flow)
{
    assert(!flow->all_head);
    flow_fail(flow, UCCL_ECLOSED);
    assert(flow->credit_rx.list == CREDIT_NONE && !timer_armed(&flow->timer));
    core->flows[flow->slot] = NULL;
    queue_remove(&core->ready, &flow->ready);
    queue_remove(&core->flow_events, &flow->event);
    queue_remove(&core->acting, &flow->acting);
}

void core_set_datagram(struct core *core, uint32_t destination, uint32_t datagram_bytes)
{
    assert(datagram_bytes >= CORE_DATAGRAM_MIN && datagram_bytes <= CORE_TRAIN_BYTES_MAX);
    for (uint32_t i = 0; i < core->flow_end; i++) {
        struct flow *flow = core->flows[i];
        if (!flow || flow->dead)
            continue;
        EACH_RAIL(flow, rail)
        {
            if (rail->destination == destination)
                mtu_set_route(rail, datagram_bytes);
        }
    }
}

void core_destination_changed(struct core *core, uint32_t destination, bool up, uint64_t now_ns)
{
    core->now_ns = now_ns;
    for (uint32_t i = 0; i < core->flow_end; i++) {
        struct flow *flow = core->flows[i];
        for (unsigned k = 0; flow && !flow->dead && k < flow->rail_count; k++) {
            if (flow->rails[k].destination != destination)
                continue;
            if (up)
                rail_mend(&flow->rails[k]);
            else
                rail_cut(&flow->rails[k]);
            flow_update_timer(flow);
        }
    }
}

size_t core_conn_size(const struct flow_setup *setup)
{
    return conn_size(setup);
}

struct conn *core_conn_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                            uint32_t local_id, uint32_t remote_id, void *owner, uint64_t now_ns)
{
    struct conn **link = &core->conns[local_id & (CORE_CONNS_MAX - 1)];
    for (; *link; link = &(*link)->next_index) /* a connection comes before its annexes, and is found first */
        assert((*link)->local_id != local_id);
    core->now_ns = now_ns;
    struct conn *conn = conn_init(memory, flow, setup, local_id, remote_id, owner);
    *link = conn;
    conn->next_all = flow->all_head;
    if (flow->all_head)
        flow->all_head->prev_all = conn;
    flow->all_head = conn;
    gone_add_conn(conn);
    if (flow->dead)
        conn_fail(conn, flow->status, DEFER_DRAIN);
    return conn;
}

/* The flow's setup with the windows of the annex. */
static struct flow_setup annex_flow_setup(const struct flow_setup *setup, const struct annex_setup *annex)
{
    struct flow_setup own = *setup;
    if (own.msg_window > annex->msg_window)
        own.msg_window = annex->msg_window;
    if (own.eager_window_kb > annex->eager_window_kb)
        own.eager_window_kb = annex->eager_window_kb;
    return own;
}

size_t core_annex_size(const struct flow_setup *setup, const struct annex_setup *annex)
{
    struct flow_setup own = annex_flow_setup(setup, annex);
    return conn_size(&own);
}

struct conn *core_annex_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                             const struct annex_setup *annex, uint32_t local_id, uint32_t remote_id, void *owner,
                             uint64_t now_ns)
{
    struct flow_setup own = annex_flow_setup(setup, annex);
    struct conn *conn = core_conn_open(core, memory, flow, &own, local_id, remote_id, owner, now_ns);
    conn->eager_bytes = annex->eager_bytes;
    conn->calls = conn->uncounted = true;
    conn->ahead_bytes = annex->ahead_bytes;
    return conn;
}

void core_annex_follow(struct conn *conn, struct conn *leader)
{
    assert(conn->flow == leader->flow && !leader->send_next && !conn->send_next);
    if (conn->flow->qps.count || !conn->ahead_bytes) /* NICs place by clear-to-sends */
        return;
    conn->leader = leader;
    leader->follower = conn;
    conn->overtakes |= 1 << FRAME_DATA;
}

size_t core_part_conn_size(const struct flow_setup *setup)
{
    struct flow_setup small = *setup;
    small.eager_window_kb = 0;
    return conn_size(&small);
}

struct conn *core_part_conn_open(struct core *core, void *memory, struct flow *flow, const struct flow_setup *setup,
                                 uint32_t local_id, uint32_t remote_id, void *owner, uint64_t now_ns)
{
    struct flow_setup small = *setup;
    small.eager_window_kb = 0;
    struct conn *conn = core_conn_open(core, memory, flow, &small, local_id, remote_id, owner, now_ns);
    conn->for_parts = conn->uncounted = true;
    conn->overtakes = 1 << FRAME_DATA;
    return conn;
}

/* ---- in -------------------------------------------------------------------------------------- */

void core_submit(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    core->now_ns = now_ns;
    bool owed = conn->flow->ack.pending;
    conn_submit(conn, msg, now_ns);
    /* only credit is due sooner than the timer: the message may have come before its receive */
    if (conn->flow->ack.pending != owed || !timer_armed(&conn->flow->timer))
        flow_update_timer(conn->flow);
}

void core_available(struct core *core, struct core_msg *msg, uint64_t bytes, uint64_t now_ns)
{
    core->now_ns = now_ns;
    conn_available(msg->conn, msg, bytes);
}

void core_cancel(struct core *core, struct core_msg *msg, uint64_t now_ns)
{
    core->now_ns = now_ns;
    conn_cancel(msg->conn, msg);
}

void core_conn_fail(struct core *core, struct conn *conn, int32_t status, uint64_t now_ns)
{
    struct flow *flow = conn->flow;
    bool tells = conn->state == CONN_OPEN;
    core->now_ns = now_ns;
    /* all connections of a peer may fail at once; where queue pairs place, data waits for a FIN that is kept */
    bool by_itself = tells && !flow->dead && flow->qps.count == 0 && gone_room(flow) == 0;
    if (tells && !by_itself)
        conn_keep_fin(conn);
    conn_fail(conn, status, flow->dead ? DEFER_DRAIN : DEFER_REVOKE_DUE);
    if (by_itself)
        conn_owe_fin(conn);
}

bool core_conn_has_failed(const struct conn *conn)
{
    return conn->state == CONN_FAILED;
}

void core_conn_announce(struct core *core, struct conn *conn, uint64_t now_ns)
{
    core->now_ns = now_ns;
    if (conn->state == CONN_OPEN)
        conn_announce(conn);
}

void core_conn_close(struct core *core, struct conn *conn, uint64_t linger_ns, uint64_t now_ns)
{
    core->now_ns = now_ns;
    conn_close(conn, linger_ns, now_ns);
}

void core_conn_silent_since(struct core *core, struct conn *conn, uint64_t since_ns)
{
    (void)core;
    conn->silent_since_ns = since_ns;
}

void core_submit_part(struct core *core, struct conn *conn, struct core_msg *msg, uint64_t now_ns)
{
    core->now_ns = now_ns;
    conn_submit_part(conn, msg, now_ns);
    flow_update_timer(conn->flow);
}

void core_end_part(struct core *core, struct core_msg *msg, uint64_t now_ns)
{
    core->now_ns = now_ns;
    conn_end_part(msg->conn, msg, msg->kind == CORE_RECV ? UCCL_OK : UCCL_ECANCELED);
}

void core_msg_whole(struct core *core, struct core_msg *msg, uint64_t total, uint64_t now_ns)
{
    core->now_ns = now_ns;
    if (msg->state == MSG_ENDED) /* its connection may be gone: the request waited for its parts */
        return;
    conn_whole(msg->conn, msg, total);
    flow_update_timer(msg->conn->flow);
}

void core_send_range(struct core *core, struct core_msg *msg, uint64_t from, uint64_t to)
{
    (void)core;
    conn_send_range(msg->conn, msg, from, to);
}

void core_unsplit(struct core *core, struct core_msg *msg)
{
    (void)core;
    assert(msg->end_bytes == 0);
    msg->stripes = 0;
    conn_send_range(msg->conn, msg, msg->offset_bytes, msg->size_bytes);
}

/* The flow with this token, or NULL. */
static struct flow *flow_of_token(const struct core *core, uint64_t token)
{
    struct flow *flow = token ? core->flows[token_slot(token)] : NULL;
    return flow && flow->rx_token == token ? flow : NULL;
}

unsigned core_copy_target(struct core *core, const uint8_t *header, size_t length, size_t stride, struct core_msg **msg,
                          uint64_t *offset_bytes)
{
    struct flow *flow = flow_of_token(core, wire_token(header, length));
    struct wire_packet packet;
    const struct wire_frame *frame;
    uint64_t seq;
    if (!flow || flow->dead || !wire_is_bulk(header, stride) || !wire_parse(header, stride, core->crc32c, &packet))
        return 0;
    if (!(packet.flags & WIRE_SEQUENCED) || sack_check(&flow->sack, &packet, &seq) != SACK_NEW ||
        !(frame = wire_next_frame(&packet)) || frame->kind != FRAME_DATA ||
        frame->data.length != stride - WIRE_BULK_HEADER_BYTES)
        return 0;
    unsigned count = (unsigned)(length / stride + (length % stride >= WIRE_BULK_HEADER_BYTES));
    unsigned missing = sack_missing(&flow->sack, seq, packet.index, packet.count);
    /* Another message's datagram may come next in a train that several share (transmit.h), so the bytes behind this one
     * may have arrived with whatever was sent later. */
    if (frame->data.total <= FRAMES_BIG_BYTES && (missing + packet.index < packet.count || flow->sack.end > seq + 1))
        missing = 1;
    if (missing < count)
        count = missing;
    struct conn *conn = flow_find_conn(flow, frame->conn);
    /* The chunk's last datagram may be shorter than the others. A full one copied to its offset could reach into
     * the next chunk, which may have arrived (a staged send cuts its chunks at its blocks, not at datagrams). Of a
     * striped message the next chunk may have come over another flow, also of one that does not say so yet as it began
     * ahead of its clear-to-send. */
    bool shared = frame->data.stripes > 1 || (conn && conn->leader);
    if (count > 1 && packet.index + count == packet.count && (flow->sack.end > seq + 1 || shared))
        count--;
    struct wire_data data = frame->data;
    data.length = (uint32_t)wire_bulk_payload(length, stride, count);
    *msg = conn ? conn_data_target(conn, &data) : NULL;
    *offset_bytes = data.offset;
    return *msg && !(*msg)->watched ? count : 0;
}

void core_waited(struct core *core, uint64_t waited_ns)
{
    core->waited_ns = waited_ns;
}

bool core_rx(struct core *core, const uint8_t *datagram, size_t length, bool ce, uint64_t now_ns)
{
    return core_rx_copied(core, datagram, length, NULL, ce, now_ns);
}

bool core_rx_copied(struct core *core, const uint8_t *datagram, size_t length, const uint8_t *payload, bool ce,
                    uint64_t now_ns)
{
    core->now_ns = now_ns;
    core->copy_next = core->copy_count = 0;
    uint64_t token = wire_token(datagram, length);
    struct flow *flow = flow_of_token(core, token);
    struct wire_packet packet;
    if (!flow || flow->dead) {
        if (flow && wire_parse(datagram, length, core->crc32c, &packet))
            flow_on_late(flow, &packet);
        if (token)
            COUNT(core->counters, rx_strangers, 1);
        else
            COUNT(core->counters, rx_malformed, 1);
        return false;
    }
    COUNT(core->counters, rx_datagrams, 1);
    COUNT(core->counters, rx_bytes, length);
    if (!wire_open(datagram, length, core->crc32c, &packet)) {
        COUNT(core->counters, rx_malformed, 1);
        return false;
    }
    if (payload)
        wire_move_payload(&packet, payload);
    if (!wire_payload_intact(&packet, core->crc32c)) {
        COUNT(core->counters, rx_payload_crc, 1);
        return false;
    }
    if (packet.flags & WIRE_ON_PATH) { /* it names a data QP, but did not come over one */
        COUNT(core->counters, rx_malformed, 1);
        return false;
    }
    bool owed = flow->ack.pending;
    bool good = flow_rx(flow, &packet, -1, ce, now_ns);
    /* other changes wake the flow, whose timer is updated once it has nothing to send */
    if (flow->ack.pending != owed || !timer_armed(&flow->timer))
        flow_update_timer(flow);
    return good;
}

bool core_rx_on_qp(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, const uint8_t *datagram,
                   size_t length, uint64_t now_ns)
{
    core->now_ns = now_ns;
    core->copy_next = core->copy_count = 0;
    struct wire_packet packet;
    if (flow->dead || !data_qp_receives(&flow->qps, path, generation)) {
        COUNT(core->counters, rx_strangers, 1);
        return false;
    }
    COUNT(core->counters, rx_datagrams, 1);
    COUNT(core->counters, rx_bytes, length);
    if (wire_token(datagram, length) != flow->rx_token || !wire_open(datagram, length, core->crc32c, &packet) ||
        packet.path != path || (packet.flags & (WIRE_ON_PATH | WIRE_SEQUENCED)) != (WIRE_ON_PATH | WIRE_SEQUENCED)) {
        COUNT(core->counters, rx_malformed, 1);
        return false;
    }
    if (!wire_payload_intact(&packet, core->crc32c)) {
        COUNT(core->counters, rx_payload_crc, 1);
        return false;
    }
    bool good = flow_rx(flow, &packet, path, false, now_ns);
    flow_update_timer(flow);
    return good;
}

void core_rx_immediate(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint32_t immediate,
                       uint32_t length, uint64_t now_ns)
{
    core->now_ns = now_ns;
    if (flow->dead || !data_qp_receives(&flow->qps, path, generation)) {
        COUNT(core->counters, rx_strangers, 1);
        return;
    }
    bool owed = flow->ack.pending;
    COUNT(core->counters, rx_bytes, length);
    place_rx(flow, path, immediate, length, now_ns);
    if (flow->ack.pending != owed || !timer_armed(&flow->timer))
        flow_update_timer(flow);
}

void core_tx_done(struct core *core, uint64_t cookie, uint64_t now_ns)
{
    struct flow *flow = core->flows[cookie >> COOKIE_SLOT_SHIFT & (CORE_FLOWS_MAX - 1)];
    core->now_ns = now_ns;
    struct data_qp *qp = flow ? data_qp_of_work(flow, cookie) : NULL;
    if (!qp)
        return;
    while (qp->work_done != (uint32_t)cookie + 1) {
        struct data_qp_work work = data_qp_finish_oldest(flow, qp);
        if (work.write && core->places_reliably && !flow->dead)
            ack_on_placed(flow, work.seq, work.requests, (uint16_t)(qp - flow->qps.qps));
    }
    flow_wake(flow);
}

static struct conn *conn_of_linger(struct timer *timer)
{
    return (struct conn *)((char *)timer - offsetof(struct conn, linger));
}

static struct flow *flow_of_timer(struct timer *timer)
{
    return (struct flow *)((char *)timer - offsetof(struct flow, timer));
}

void core_expire(struct core *core, uint64_t now_ns)
{
    struct timer *timer;
    core->now_ns = now_ns;
    pacer_run(core, now_ns);
    while ((timer = timer_expired(&core->wheel, now_ns))) {
        if (timer->of_conn) {
            conn_linger_over(conn_of_linger(timer));
        } else {
            struct flow *flow = flow_of_timer(timer);
            flow_expire(flow, now_ns);
            flow_update_timer(flow);
        }
    }
}

void core_fail(struct core *core, int32_t status, uint64_t now_ns)
{
    core->now_ns = now_ns;
    for (uint32_t i = 0; i < core->flow_end; i++) {
        if (core->flows[i])
            flow_fail(core->flows[i], status);
    }
}

void core_tx_failed(struct core *core, const struct tx_desc *desc, uint64_t now_ns)
{
    core->now_ns = now_ns;
    COUNT(core->counters, tx_blocked, 1);
    flow_tx_refused(desc->flow, desc, now_ns);
}

/* ---- out ------------------------------------------------------------------------------------- */

bool core_next_copy(struct core *core, struct core_copy *copy)
{
    if (core->copy_next == core->copy_count) {
        core->copy_next = core->copy_count = 0;
        return false;
    }
    *copy = core->copies[core->copy_next++];
    return true;
}

bool core_next_release(struct core *core, struct core_release *release)
{
    if (core->release_next == core->release_count) {
        core->release_next = core->release_count = 0;
        return false;
    }
    *release = core->releases[core->release_next++];
    return true;
}

static void forget_conn(struct core *core, struct conn *conn)
{
    struct flow *flow = conn->flow;
    struct conn **link = &core->conns[conn->local_id & (CORE_CONNS_MAX - 1)];
    while (*link != conn)
        link = &(*link)->next_index;
    *link = conn->next_index;
    *(conn->prev_all ? &conn->prev_all->next_all : &flow->all_head) = conn->next_all;
    if (conn->next_all)
        conn->next_all->prev_all = conn->prev_all;
    gone_remove_conn(conn);
    timer_disarm(&core->wheel, &conn->linger);
    queue_remove(&flow->ctrl, &conn->ctrl);
    queue_remove(&flow->active, &conn->active);
}

static bool next_conn_event(struct core *core, struct core_event *event)
{
    struct conn *conn = QUEUE_HOLDER(core->conn_events.head, struct conn, event);
    if (!conn)
        return false;
    queue_remove(&core->conn_events, &conn->event);
    *event = (struct core_event){.kind = CORE_EVENT_CONN_FAILED, .status = conn->status, .owner = conn->owner};
    if (conn->state == CONN_OVER) {
        event->kind = CORE_EVENT_CONN_ENDED;
        forget_conn(core, conn);
    } else if (conn->state != CONN_FAILED) {
        event->kind = CORE_EVENT_CONN_CALLED;
    }
    return true;
}

/* A rail with something that its owner is to be told. */
static struct rail *rail_to_report(struct flow *flow)
{
    EACH_RAIL(flow, rail)
    {
        if (rail->mtu.hole_report_due || rail_has_report(rail))
            return rail;
    }
    return NULL;
}

static void report_rail(struct rail *rail, struct core_event *event)
{
    event->rail = rail->index;
    if (rail_has_report(rail)) {
        rail->reported_down = rail->state == RAIL_DOWN;
        event->kind = rail->reported_down ? CORE_EVENT_RAIL_LOST : CORE_EVENT_RAIL_BACK;
        return;
    }
    event->kind = CORE_EVENT_FLOW_HOLE;
    event->passing_bytes = rail->datagram_bytes;
    event->route_bytes = rail->mtu.limit_bytes;
    rail->mtu.hole_report_due = false;
}

static bool wants_rails(const struct flow *flow)
{
    return flow->rails_wanted == WANTED_FOR_BULK || flow->rails_wanted == WANTED_IN_SILENCE;
}

/* False: there is nothing to report after all, since a rail was lost and is back. */
static bool flow_event(struct flow *flow, struct core_event *event)
{
    *event = (struct core_event){.kind = CORE_EVENT_FLOW_DEAD, .status = flow->status, .owner = flow->owner};
    if (flow->dead)
        return true;
    struct rail *rail = rail_to_report(flow);
    if (flow->proof_report_due) {
        event->kind = CORE_EVENT_FLOW_PROVEN;
        flow->proof_report_due = false;
    } else if (rail) {
        report_rail(rail, event);
    } else if (wants_rails(flow)) {
        event->kind = CORE_EVENT_RAILS_WANTED;
        event->status = flow->rails_wanted == WANTED_IN_SILENCE ? UCCL_ETIMEDOUT : UCCL_OK;
        flow->rails_wanted = WANTED_TOLD;
    } else {
        return false;
    }
    if (rail_to_report(flow) || wants_rails(flow)) /* one event is told at a time */
        queue_append(&flow->core->flow_events, &flow->event);
    return true;
}

static struct core_msg *take_ended(struct core *core)
{
    struct core_msg *msg = core->ended.head;
    msg_remove(&core->ended, msg);
    if (msg == core->last_leader)
        core->last_leader = NULL;
    return msg;
}

struct core_msg *core_next_leader(struct core *core)
{
    return core->last_leader ? take_ended(core) : NULL;
}

bool core_next_event(struct core *core, struct core_event *event)
{
    struct core_msg *msg = QUEUE_HOLDER(core->ranges.head, struct core_msg, spread);
    if (msg) {
        queue_remove(&core->ranges, &msg->spread);
        *event =
            (struct core_event){.kind = CORE_EVENT_RANGE, .msg = msg, .bytes = tx_chunk_bytes(msg->conn->flow, msg)};
        return true;
    }
    msg = QUEUE_HOLDER(core->arrivals.head, struct core_msg, spread);
    if (msg) {
        queue_remove(&core->arrivals, &msg->spread);
        *event = (struct core_event){
            .kind = CORE_EVENT_ARRIVED, .msg = msg, .bytes = msg->available_bytes, .total = msg->end_bytes};
        msg->available_bytes = 0;
        return true;
    }
    msg = QUEUE_HOLDER(core->wanted.head, struct core_msg, wanted); /* before its completion, which may wait too */
    if (msg) {
        queue_remove(&core->wanted, &msg->wanted);
        *event = (struct core_event){.kind = CORE_EVENT_WANTED, .msg = msg};
        return true;
    }
    if (core->ended.head) {
        msg = take_ended(core);
        *event = (struct core_event){.kind = CORE_EVENT_MSG, .status = msg->status, .msg = msg};
        return true;
    }
    if (next_conn_event(core, event))
        return true;
    struct flow *flow;
    while ((flow = QUEUE_HOLDER(core->flow_events.head, struct flow, event))) {
        queue_remove(&core->flow_events, &flow->event);
        if (flow_event(flow, event))
            return true;
    }
    return false;
}

bool core_next_qp_action(struct core *core, struct core_qp_action *action)
{
    struct flow *flow;
    while ((flow = QUEUE_HOLDER(core->acting.head, struct flow, acting))) {
        if (data_qps_next_action(flow, action))
            return true;
        queue_remove(&core->acting, &flow->acting);
    }
    return false;
}

void core_qp_opened(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint32_t number,
                    uint32_t psn, uint64_t now_ns)
{
    core->now_ns = now_ns;
    data_qp_opened(flow, path, generation, number, psn);
}

void core_qp_connected(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns)
{
    core->now_ns = now_ns;
    data_qp_connected(flow, path, generation);
}

void core_qp_drained(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns)
{
    core->now_ns = now_ns;
    data_qp_drained(flow, path, generation);
}

void core_qp_failed(struct core *core, struct flow *flow, uint16_t path, uint32_t generation, uint64_t now_ns)
{
    core->now_ns = now_ns;
    data_qp_failed(flow, path, generation);
}

uint64_t core_deadline(const struct core *core)
{
    uint64_t timer_ns = timer_next(&core->wheel), pacer_ns = pacer_deadline(core);
    return pacer_ns < timer_ns ? pacer_ns : timer_ns;
}

void core_flush_acks(struct core *core)
{
    for (uint32_t i = 0; i < core->flow_end; i++) {
        struct flow *flow = core->flows[i];
        if (flow && flow->ack.pending && !flow->dead) {
            flow->ack.now = true;
            flow_wake(flow);
        }
    }
}
