/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data_qp.h"
#include "core/state.h"

#include <assert.h>

enum { PAUSES_MAX = 7 /* doublings */ };

/* ---- set-up ---------------------------------------------------------------------------------- */

static bool places_payload(const struct core *core, const struct flow_setup *setup)
{
    /* a queue pair that reorders or duplicates may place an old copy after its retransmission was accepted */
    bool in_order = core->places_in_order && core->params->in_order;
    return setup->places && (core->places_reliably || in_order);
}

/* The DRAINED of each data QP must find a chunk record, however full the window: that bounds their number too. */
static uint32_t reserve_of(const struct flow_setup *setup)
{
    return setup->chunk_window / 8;
}

static unsigned pair_bits(const struct flow_setup *setup)
{
    unsigned pairs = setup->pairs ? setup->pairs : setup->rail_count, bits = 0;
    assert(pairs <= CORE_PAIRS_MAX);
    while (1u << bits < pairs)
        bits++;
    return bits;
}

/* Data QPs of each rail. */
static uint16_t qps_per_rail(const struct params *params, const struct flow_setup *setup)
{
    uint32_t most = reserve_of(setup) >> pair_bits(setup);
    return (uint16_t)(params->port_entropy < most ? params->port_entropy : most);
}

uint16_t data_qps_count(const struct params *params, const struct flow_setup *setup)
{
    return setup->places ? (uint16_t)(qps_per_rail(params, setup) << pair_bits(setup)) : 0;
}

static uint32_t depth_of(const struct params *params)
{
    uint32_t depth = 1;
    while (depth * 2 <= params->qp_depth)
        depth *= 2;
    return depth;
}

size_t data_qps_size(const struct params *params, const struct flow_setup *setup)
{
    size_t count = data_qps_count(params, setup);
    return round64(count * sizeof(struct data_qp)) + round64(count * sizeof(struct path)) +
           count * round64(depth_of(params) * sizeof(struct data_qp_work));
}

void data_qps_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup)
{
    struct core *core = flow->core;
    struct data_qps *qps = &flow->qps;
    if (!places_payload(core, setup))
        return;
    assert(setup->chunk_window <= CORE_PLACE_WINDOW_MAX);
    qps->count = data_qps_count(core->params, setup);
    qps->pair_bits = (uint8_t)pair_bits(setup);
    qps->depth = depth_of(core->params);
    qps->reserve = reserve_of(setup);
    qps->qps = (struct data_qp *)memory;
    memory += round64(qps->count * sizeof(struct data_qp));
    struct path *paths = (struct path *)memory;
    memory += round64(qps->count * sizeof(struct path));
    for (unsigned i = 0; i < qps->count; i++) {
        qps->qps[i] = (struct data_qp){.generation = 1, .work = (struct data_qp_work *)memory};
        memory += round64(qps->depth * sizeof(struct data_qp_work));
    }
    uint16_t each = qps_per_rail(core->params, setup);
    EACH_RAIL(flow, rail)
    {
        path_set_init(&rail->qps, paths, each, (unsigned)core->params->path_policy, &core->rng);
        paths += each;
        for (unsigned i = 0; i < each; i++) {
            struct data_qp *qp = &qps->qps[i << qps->pair_bits | rail->pair];
            assert(!qp->rail);
            qp->rail = rail;
        }
    }
}

/* Whether the peer's queue pair may be written to. */
static bool may_write(const struct data_qp *qp)
{
    return qp->state == DATA_QP_UP && qp->peer.ready;
}

/* One side of the data QP has become ready: counts it if both are. */
static void count_usable(struct flow *flow, const struct data_qp *qp)
{
    if (!may_write(qp))
        return;
    flow->qps.usable++;
    qp->rail->qps_usable++;
    COUNT(flow->core->counters, qps_up, 1);
}

unsigned data_qps_pairs(const struct flow *flow)
{
    unsigned pairs = 0;
    for (unsigned i = 0; i < flow->rail_count; i++)
        pairs |= (unsigned)(flow->rails[i].qps_usable > 0) << flow->rails[i].pair;
    return pairs;
}

/* ---- actions and frames due -------------------------------------------------------------------- */

static void request_action(struct flow *flow, struct data_qp *qp, enum core_qp_kind kind)
{
    qp->actions |= (uint8_t)(1u << kind);
    queue_append(&flow->core->acting, &flow->acting);
}

static void owe_frame(struct flow *flow, struct data_qp *qp, enum wire_qp_what what)
{
    flow->qps.frames_due += qp->frames == 0;
    flow->qps.drained_due += what == QP_DRAINED && !(qp->frames >> QP_DRAINED & 1);
    qp->frames |= (uint8_t)(1u << what);
    flow_wake(flow);
}

static void drop_frames(struct flow *flow, struct data_qp *qp)
{
    flow->qps.frames_due -= qp->frames != 0;
    flow->qps.drained_due -= qp->frames >> QP_DRAINED & 1;
    qp->frames = 0;
}

bool data_qps_next_action(struct flow *flow, struct core_qp_action *action)
{
    static const uint8_t order[] = {QP_CLOSE, QP_OPEN, QP_CONNECT, QP_DRAIN};
    for (uint16_t i = 0; i < flow->qps.count; i++) {
        struct data_qp *qp = &flow->qps.qps[i];
        for (unsigned k = 0; qp->actions && k < sizeof order; k++) {
            if (!(qp->actions >> order[k] & 1))
                continue;
            qp->actions &= (uint8_t) ~(1u << order[k]);
            *action = (struct core_qp_action){
                .kind = (enum core_qp_kind)order[k],
                .flow = flow,
                .owner = flow->owner,
                .destination = qp->rail->destination,
                .path = i,
                .generation = order[k] == QP_CLOSE ? qp->close_generation : qp->generation,
                .number = qp->peer.number,
                .psn = qp->peer.psn,
            };
            return true;
        }
    }
    return false;
}

/* ---- work requests --------------------------------------------------------------------------- */

static uint32_t epoch_of(const struct flow *flow, const struct data_qp *qp)
{
    return (qp->generation ^ (uint32_t)(flow->rx_token >> 52)) & 0xfff;
}

void data_qp_begin_work(struct flow *flow, uint16_t index, struct core_msg *msg, uint32_t requests,
                        struct tx_desc *desc)
{
    struct data_qps *qps = &flow->qps;
    struct data_qp *qp = &qps->qps[index];
    assert(may_write(qp) && data_qp_takes(qps, index, requests));
    qp->work[qp->work_next & (qps->depth - 1)] =
        (struct data_qp_work){.msg = msg, .seq = desc->seq, .requests = requests, .write = desc->kind == TX_PLACE};
    qp->requests += requests;
    if (msg)
        msg->work_live++;
    desc->generation = qp->generation;
    desc->cookie = (uint64_t)flow->slot << COOKIE_SLOT_SHIFT | (uint64_t)index << COOKIE_PATH_SHIFT |
                   (uint64_t)epoch_of(flow, qp) << COOKIE_EPOCH_SHIFT | qp->work_next;
    qp->work_next++;
}

/* A work request no longer reads the message, which may have waited for that to complete. */
static void finish_work(struct flow *flow, struct core_msg *msg)
{
    if (!msg)
        return;
    assert(msg->work_live);
    if (--msg->work_live == 0 && msg->deferral == DEFER_WORK)
        conn_report_deferred(msg);
}

struct data_qp *data_qp_of_work(struct flow *flow, uint64_t cookie)
{
    uint32_t index = cookie >> COOKIE_PATH_SHIFT & 0xff;
    struct data_qp *qp = index < flow->qps.count ? &flow->qps.qps[index] : NULL;
    if (!qp || (cookie >> COOKIE_EPOCH_SHIFT & 0xfff) != epoch_of(flow, qp) ||
        (uint32_t)cookie - qp->work_done >= qp->work_next - qp->work_done)
        return NULL;
    return qp;
}

void data_qp_undo_work(struct flow *flow, uint64_t cookie)
{
    struct data_qp *qp = data_qp_of_work(flow, cookie);
    if (!qp)
        return;
    struct data_qp_work *work = &qp->work[--qp->work_next & (flow->qps.depth - 1)];
    assert(qp->work_next == (uint32_t)cookie);
    qp->requests -= work->requests;
    finish_work(flow, work->msg);
}

struct data_qp_work data_qp_finish_oldest(struct flow *flow, struct data_qp *qp)
{
    struct data_qp_work work = qp->work[qp->work_done++ & (flow->qps.depth - 1)];
    qp->requests -= work.requests;
    finish_work(flow, work.msg);
    return work;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool may_open_some(const struct flow *flow)
{
    return flow->qps.wanted && !flow->qps.barred_until;
}

/* Whether the data QP waits to be opened. One of several rails must work: else what is written would be swallowed. */
static bool waits(const struct flow *flow, const struct data_qp *qp)
{
    return qp->state == DATA_QP_CLOSED && qp->rail && (flow->rail_count == 1 || rail_usable(qp->rail));
}

void data_qps_expire(struct flow *flow, uint64_t now_ns)
{
    struct data_qps *qps = &flow->qps;
    if (flow->dead || !may_open_some(flow))
        return;
    for (unsigned i = 0; i < qps->count; i++) {
        struct data_qp *qp = &qps->qps[i];
        if (waits(flow, qp) && qp->open_at_ns <= now_ns) {
            qp->state = DATA_QP_OPENING;
            request_action(flow, qp, QP_OPEN);
        }
    }
}

uint64_t data_qps_deadline(const struct flow *flow)
{
    const struct data_qps *qps = &flow->qps;
    uint64_t at_ns = UINT64_MAX;
    if (data_qps_all_usable(qps) || flow->dead || !may_open_some(flow))
        return at_ns;
    for (unsigned i = 0; i < qps->count; i++) {
        const struct data_qp *qp = &qps->qps[i];
        if (waits(flow, qp) && qp->open_at_ns < at_ns)
            at_ns = qp->open_at_ns;
    }
    return at_ns;
}

void data_qps_want(struct flow *flow)
{
    if (flow->qps.wanted)
        return;
    flow->qps.wanted = true;
    data_qps_expire(flow, flow->core->now_ns);
}

/* The data QP opens again after a pause, which grows while nothing arrives over it. */
static void reopen_later(struct flow *flow, struct data_qp *qp)
{
    uint64_t pause_ns = flow->core->params->qp_retry_ms * NS_PER_MS << qp->pauses;
    if (qp->pauses < PAUSES_MAX)
        qp->pauses++;
    qp->state = DATA_QP_CLOSED;
    qp->open_at_ns = flow->core->now_ns + pause_ns;
}

static void begin_connect(struct flow *flow, struct data_qp *qp)
{
    qp->state = DATA_QP_CONNECTING;
    request_action(flow, qp, QP_CONNECT);
}

/* ---- draining --------------------------------------------------------------------------------- */

/* Chunks that the ack in front of the peer's DRAINED has not named never arrived, and never will. */
static void release_chunks(struct flow *flow, uint16_t index)
{
    unsigned lost = sent_release_data_qp(&flow->sent, index);
    data_qps_lost(flow, lost > 0); /* counts once: one loss may have caused all others */
    COUNT(flow->core->counters, lost_chunks, lost);
    flow_wake(flow);
}

/* Once both sides are drained and both DRAINED frames have left, the next generation begins. */
static void try_next(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    if (qp->state != DATA_QP_DRAINED || !qp->peer.drained || qp->frames)
        return;
    if (qp->has_queue_pair) {
        qp->close_generation = qp->generation;
        request_action(flow, qp, QP_CLOSE);
    }
    qp->has_queue_pair = false;
    qp->generation++;
    qp->peer = qp->next;
    qp->next = (struct data_qp_peer){0};
    qp->rounds = 0;
    reopen_later(flow, qp);
    if (qp->peer.drained) { /* the peer has given that generation up already */
        qp->state = DATA_QP_DRAINED;
        owe_frame(flow, qp, QP_DRAINED);
    }
    flow_arm(flow, data_qps_deadline(flow));
}

/* Nothing arrives over the queue pair any more, and nothing is read for it. */
static void finish_drain(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    qp->state = DATA_QP_DRAINED;
    while (qp->work_done != qp->work_next)
        data_qp_finish_oldest(flow, qp);
    if (!flow->dead)
        owe_frame(flow, qp, QP_DRAINED);
    place_on_drained(flow);
}

static void drain_qp(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    if (qp->state == DATA_QP_CLOSED || qp->state == DATA_QP_DRAINING || qp->state == DATA_QP_DRAINED)
        return;
    flow->qps.usable -= may_write(qp);
    qp->rail->qps_usable -= may_write(qp);
    COUNT(flow->core->counters, qps_failed, 1);
    sent_hold_data_qp(&flow->sent, index);
    path_report(&qp->rail->qps, data_qp_local(&flow->qps, index), PATH_LOST, 0);
    drop_frames(flow, qp);
    bool made = !(qp->actions >> QP_OPEN & 1);
    qp->actions &= (uint8_t)(1u << QP_CLOSE);
    qp->state = DATA_QP_DRAINING;
    if (made)
        request_action(flow, qp, QP_DRAIN);
    else
        finish_drain(flow, index);
}

void data_qps_drain_all(struct flow *flow)
{
    for (uint16_t i = 0; i < flow->qps.count; i++)
        drain_qp(flow, i);
}

void data_qps_drain_rail(struct rail *rail)
{
    struct flow *flow = rail->flow;
    for (uint16_t i = 0; i < flow->qps.count; i++) {
        if (flow->qps.qps[i].rail == rail)
            drain_qp(flow, i);
    }
}

bool data_qps_quiet(const struct flow *flow)
{
    for (unsigned i = 0; i < flow->qps.count; i++) {
        uint8_t state = flow->qps.qps[i].state;
        if (state != DATA_QP_CLOSED && state != DATA_QP_DRAINED)
            return false;
    }
    return true;
}

/* ---- use ------------------------------------------------------------------------------------- */

int data_qp_choose(struct rail *rail)
{
    struct data_qps *qps = &rail->flow->qps;
    uint16_t first = path_choose(&rail->qps, -1), count = rail->qps.count;
    for (uint16_t i = 0; i < count; i++) {
        uint16_t index = (uint16_t)((unsigned)(first + i) % count << qps->pair_bits | rail->pair);
        if (may_write(&qps->qps[index]) && data_qp_takes(qps, index, 1))
            return index;
    }
    return -1;
}

/*
 * A round begins with the first retransmission after the peer received something over the data QP, and again with one
 * that leaves when an answer is overdue. A data QP that has swallowed a few rounds while the peer was heard otherwise
 * is broken: one side or the network has lost its state. When the flow hears nothing at all, perhaps because swallowed
 * chunks fill its window, it gives the data QP up later.
 */
static bool in_round(const struct flow *flow, const struct data_qp *qp)
{
    return qp->rounds && flow->core->now_ns < qp->round_ns + rail_probe_ns(qp->rail);
}

bool data_qp_may_retransmit(struct flow *flow, uint16_t index)
{
    enum { PATIENCE = 3 };
    const struct data_qp *qp = &flow->qps.qps[index];
    uint64_t limit = flow->core->params->qp_retransmit_rounds;
    if (in_round(flow, qp) || qp->rounds < (flow->last_rx_ns > qp->round_ns ? limit : PATIENCE * limit))
        return true;
    drain_qp(flow, index);
    return false;
}

bool data_qp_retransmits(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    if (in_round(flow, qp))
        return false;
    if (qp->rounds++)
        qp->rail->probe.due |= PROBE_ASK; /* is the data QP silent, or the peer? */
    qp->round_before_ns = qp->round_ns;
    qp->round_ns = flow->core->now_ns;
    return true;
}

void data_qp_unretransmit(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    qp->rounds -= qp->rounds > 0;
    qp->round_ns = qp->round_before_ns;
}

void data_qps_wrote(struct flow *flow, uint32_t packets)
{
    enum { OF_LATE = 4096 };
    struct data_qps *qps = &flow->qps;
    if (qps->packets >= OF_LATE) {
        qps->packets /= 2;
        qps->losses /= 2;
    }
    qps->packets += packets;
}

void data_qps_lost(struct flow *flow, unsigned chunks)
{
    if (!flow->core->places_reliably)
        flow->qps.losses += chunks;
}

bool data_qps_lossy(const struct flow *flow)
{
    enum { FEW = 2, MILLION = 1000000 };
    const struct data_qps *qps = &flow->qps;
    uint64_t most_ppm = flow->core->params->packet_loss_ppm;
    return qps->losses >= FEW && most_ppm < MILLION && (uint64_t)qps->losses * MILLION > most_ppm * qps->packets;
}

void data_qp_heard(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    qp->rounds = 0;
    qp->pauses = 0;
}

/* ---- answers of the owner -------------------------------------------------------------------- */

/* The data QP if it is still in this generation, else NULL. */
static struct data_qp *qp_of_generation(struct flow *flow, uint16_t index, uint32_t generation)
{
    if (index >= flow->qps.count || flow->qps.qps[index].generation != generation)
        return NULL;
    return &flow->qps.qps[index];
}

void data_qp_opened(struct flow *flow, uint16_t index, uint32_t generation, uint32_t number, uint32_t psn)
{
    struct data_qp *qp = qp_of_generation(flow, index, generation);
    if (!qp || (qp->state != DATA_QP_OPENING && qp->state != DATA_QP_DRAINING))
        return;
    qp->has_queue_pair = true;
    if (qp->state == DATA_QP_DRAINING)
        return;
    qp->number = number;
    qp->psn = psn;
    qp->state = DATA_QP_OFFERED;
    owe_frame(flow, qp, QP_OFFER);
    if (qp->peer.offered)
        begin_connect(flow, qp);
}

void data_qp_connected(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct data_qp *qp = qp_of_generation(flow, index, generation);
    if (!qp || qp->state != DATA_QP_CONNECTING)
        return;
    qp->state = DATA_QP_UP;
    count_usable(flow, qp);
    owe_frame(flow, qp, QP_READY);
}

void data_qp_drained(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct data_qp *qp = qp_of_generation(flow, index, generation);
    if (!qp || qp->state != DATA_QP_DRAINING)
        return;
    finish_drain(flow, index);
    try_next(flow, index);
}

void data_qp_failed(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct data_qp *qp = qp_of_generation(flow, index, generation);
    if (!qp)
        return;
    if (qp->state == DATA_QP_OPENING) {
        reopen_later(flow, qp);
        flow_arm(flow, data_qps_deadline(flow));
    } else {
        drain_qp(flow, index);
    }
}

/* ---- frames ---------------------------------------------------------------------------------- */

static void on_drained_frame(struct flow *flow, uint16_t index)
{
    struct data_qp *qp = &flow->qps.qps[index];
    if (qp->peer.drained)
        return;
    qp->peer.drained = true;
    if (qp->state == DATA_QP_CLOSED) { /* nothing to drain here: the peer may go on */
        qp->state = DATA_QP_DRAINED;
        owe_frame(flow, qp, QP_DRAINED);
    }
    drain_qp(flow, index);
    release_chunks(flow, index);
    try_next(flow, index);
}

void data_qps_on_frame(struct flow *flow, const struct wire_qp *frame)
{
    struct data_qp *qp = frame->path < flow->qps.count ? &flow->qps.qps[frame->path] : NULL;
    if (!qp || (frame->generation != qp->generation && frame->generation != qp->generation + 1)) {
        COUNT(flow->core->counters, rx_stale_frames, 1);
        return;
    }
    bool ahead = frame->generation != qp->generation;
    struct data_qp_peer *peer = ahead ? &qp->next : &qp->peer;
    switch ((enum wire_qp_what)frame->what) {
    case QP_OFFER:
        if (peer->offered)
            return;
        peer->offered = true;
        peer->number = frame->number;
        peer->psn = frame->psn;
        data_qps_want(flow);
        if (!ahead && qp->state == DATA_QP_OFFERED)
            begin_connect(flow, qp);
        break;
    case QP_READY:
        if (peer->ready)
            return;
        peer->ready = true;
        if (!ahead)
            count_usable(flow, qp);
        flow_wake(flow);
        break;
    case QP_DRAINED:
        if (ahead)
            peer->drained = true;
        else
            on_drained_frame(flow, frame->path);
        break;
    }
}

unsigned data_qps_put_frames(struct flow *flow, uint8_t *at, uint32_t room)
{
    uint8_t *begin = at, *end = at + room;
    for (uint16_t i = 0; i < flow->qps.count && flow->qps.frames_due; i++) {
        struct data_qp *qp = &flow->qps.qps[i];
        for (unsigned what = QP_OFFER; qp->frames && what <= QP_DRAINED; what++) {
            if (!(qp->frames >> what & 1))
                continue;
            if (end - at < WIRE_QP_BYTES)
                return (unsigned)(at - begin);
            bool offer = what == QP_OFFER;
            at += wire_put_qp(
                at, &(struct wire_qp){(uint8_t)what, i, qp->generation, offer ? qp->number : 0, offer ? qp->psn : 0});
            flow->qps.drained_due -= what == QP_DRAINED;
            qp->frames &= (uint8_t) ~(1u << what);
            flow->qps.frames_due -= qp->frames == 0;
        }
        try_next(flow, i);
    }
    return (unsigned)(at - begin);
}
