/* SPDX-License-Identifier: Apache-2.0 */
#include "core/data_qp.h"
#include "core/state.h"

#include <assert.h>

enum { NS_PER_MS = 1000000, PAUSES_MAX = 7 /* doublings */ };

/* ---- set-up ---------------------------------------------------------------------------------- */

static bool places(const struct core *core, const struct flow_setup *setup)
{
    /* a queue pair that reorders or duplicates may place a copy after the repair of it was accepted */
    bool in_order = core->places_in_order && core->params->in_order;
    return setup->places && (core->places_reliably || in_order);
}

/* Each lane's FENCED finds a chunk record, however full the window is: that bounds the lanes too. */
static uint32_t reserve_of(const struct flow_setup *setup)
{
    return setup->chunk_window / 8;
}

static uint16_t count_of(const struct params *params, const struct flow_setup *setup)
{
    uint32_t most = reserve_of(setup);
    return (uint16_t)(params->port_entropy < most ? params->port_entropy : most);
}

static uint32_t depth_of(const struct params *params)
{
    uint32_t depth = 1;
    while (depth * 2 <= params->path_depth)
        depth *= 2;
    return depth;
}

size_t lanes_size(const struct params *params, const struct flow_setup *setup)
{
    size_t count = setup->places ? count_of(params, setup) : 0;
    return round64(count * sizeof(struct lane)) + round64(count * sizeof(struct path)) +
           count * round64(depth_of(params) * sizeof(struct lane_work));
}

void lanes_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup)
{
    struct core *core = flow->core;
    struct lanes *lanes = &flow->lanes;
    if (!places(core, setup))
        return;
    assert(setup->chunk_window <= CORE_PLACE_WINDOW_MAX);
    lanes->count = count_of(core->params, setup);
    lanes->depth = depth_of(core->params);
    lanes->reserve = reserve_of(setup);
    lanes->lanes = (struct lane *)memory;
    memory += round64(lanes->count * sizeof(struct lane));
    path_set_init(&lanes->set, (struct path *)memory, lanes->count, (unsigned)core->params->path_policy,
                  &core->rng);
    memory += round64(lanes->count * sizeof(struct path));
    for (unsigned i = 0; i < lanes->count; i++) {
        lanes->lanes[i] = (struct lane){.generation = 1, .work = (struct lane_work *)memory};
        memory += round64(lanes->depth * sizeof(struct lane_work));
    }
}

/* Whether the peer's queue pair may be written to. */
static bool sends(const struct lane *lane)
{
    return lane->state == LANE_UP && lane->peer.ready;
}

/* Ours or the peer's side of it has got ready: perhaps both are now. */
static void count_usable(struct flow *flow, const struct lane *lane)
{
    if (!sends(lane))
        return;
    flow->lanes.usable++;
    COUNT(flow->core->counters, paths_up, 1);
}

/* ---- what the owner and the peer are to be told ------------------------------------------------ */

static void ask(struct flow *flow, struct lane *lane, enum core_path_kind kind)
{
    lane->actions |= (uint8_t)(1u << kind);
    queue_append(&flow->core->paths, &flow->acting);
}

static void tell(struct flow *flow, struct lane *lane, enum wire_path_what what)
{
    flow->lanes.frames_due += lane->frames == 0;
    flow->lanes.fenced_due += what == PATH_FENCED && !(lane->frames >> PATH_FENCED & 1);
    lane->frames |= (uint8_t)(1u << what);
    flow_wake(flow);
}

static void tell_no_more(struct flow *flow, struct lane *lane)
{
    flow->lanes.frames_due -= lane->frames != 0;
    flow->lanes.fenced_due -= lane->frames >> PATH_FENCED & 1;
    lane->frames = 0;
}

bool lanes_next_action(struct flow *flow, struct core_path_action *action)
{
    static const uint8_t order[] = {PATH_CLOSE, PATH_OPEN, PATH_CONNECT, PATH_FENCE};
    for (uint16_t i = 0; i < flow->lanes.count; i++) {
        struct lane *lane = &flow->lanes.lanes[i];
        for (unsigned k = 0; lane->actions && k < sizeof order; k++) {
            if (!(lane->actions >> order[k] & 1))
                continue;
            lane->actions &= (uint8_t)~(1u << order[k]);
            *action = (struct core_path_action){
                .kind = (enum core_path_kind)order[k],
                .flow = flow,
                .owner = flow->owner,
                .destination = flow->destination,
                .path = i,
                .generation = order[k] == PATH_CLOSE ? lane->close_generation : lane->generation,
                .number = lane->peer.number,
                .psn = lane->peer.psn,
            };
            return true;
        }
    }
    return false;
}

/* ---- work requests --------------------------------------------------------------------------- */

static uint32_t life_of(const struct flow *flow, const struct lane *lane)
{
    return (lane->generation ^ (uint32_t)(flow->rx_token >> 52)) & 0xfff;
}

void lane_begin_work(struct flow *flow, uint16_t index, struct core_msg *msg, uint32_t requests,
                     struct tx_desc *desc)
{
    struct lanes *lanes = &flow->lanes;
    struct lane *lane = &lanes->lanes[index];
    assert(sends(lane) && lane_takes(lanes, index, requests));
    lane->work[lane->work_next & (lanes->depth - 1)] =
        (struct lane_work){.msg = msg, .seq = desc->seq, .requests = requests, .write = desc->kind == TX_PLACE};
    lane->requests += requests;
    if (msg)
        msg->work_live++;
    desc->generation = lane->generation;
    desc->cookie = (uint64_t)flow->slot << COOKIE_SLOT_SHIFT | (uint64_t)index << COOKIE_PATH_SHIFT |
                   (uint64_t)life_of(flow, lane) << COOKIE_LIFE_SHIFT | lane->work_next;
    lane->work_next++;
}

/* A message is no longer read by one of its work requests; it may have waited for that. */
static void finish_work(struct flow *flow, struct core_msg *msg)
{
    if (!msg)
        return;
    assert(msg->work_live);
    if (--msg->work_live == 0 && msg->hold == HOLD_WORK)
        flow_give_back(flow, msg);
}

/* The lane whose work in progress has this cookie, or NULL: the queue pair is gone, and its work finished. */
static struct lane *find_work(struct flow *flow, uint64_t cookie)
{
    uint32_t index = cookie >> COOKIE_PATH_SHIFT & 0xff;
    struct lane *lane = index < flow->lanes.count ? &flow->lanes.lanes[index] : NULL;
    if (!lane || (cookie >> COOKIE_LIFE_SHIFT & 0xfff) != life_of(flow, lane) ||
        (uint32_t)cookie - lane->work_done >= lane->work_next - lane->work_done)
        return NULL;
    return lane;
}

void lane_undo_work(struct flow *flow, uint64_t cookie)
{
    struct lane *lane = find_work(flow, cookie);
    if (!lane)
        return;
    struct lane_work *work = &lane->work[--lane->work_next & (flow->lanes.depth - 1)];
    assert(lane->work_next == (uint32_t)cookie);
    lane->requests -= work->requests;
    finish_work(flow, work->msg);
}

/* The oldest descriptor of the queue pair is finished. */
static struct lane_work finish_oldest(struct flow *flow, struct lane *lane)
{
    struct lane_work work = lane->work[lane->work_done++ & (flow->lanes.depth - 1)];
    lane->requests -= work.requests;
    finish_work(flow, work.msg);
    return work;
}

void lane_work_done(struct flow *flow, uint64_t cookie)
{
    struct lane *lane = find_work(flow, cookie);
    if (!lane)
        return;
    while (lane->work_done != (uint32_t)cookie + 1) {
        struct lane_work work = finish_oldest(flow, lane);
        if (work.write && flow->core->places_reliably && !flow->dead)
            flow_on_placed(flow, work.seq, work.requests, (uint16_t)(lane - flow->lanes.lanes));
    }
    flow_wake(flow);
}

/* ---- opening --------------------------------------------------------------------------------- */

void lanes_expire(struct flow *flow, uint64_t now_ns)
{
    struct lanes *lanes = &flow->lanes;
    if (!lanes->wanted || lanes->barred_until || flow->dead)
        return;
    for (unsigned i = 0; i < lanes->count; i++) {
        struct lane *lane = &lanes->lanes[i];
        if (lane->state == LANE_CLOSED && lane->open_at_ns <= now_ns) {
            lane->state = LANE_OPENING;
            ask(flow, lane, PATH_OPEN);
        }
    }
}

uint64_t lanes_deadline(const struct flow *flow)
{
    const struct lanes *lanes = &flow->lanes;
    uint64_t at_ns = UINT64_MAX;
    if (!lanes->wanted || lanes->barred_until || lanes->usable == lanes->count)
        return at_ns;
    for (unsigned i = 0; i < lanes->count; i++) {
        const struct lane *lane = &lanes->lanes[i];
        if (lane->state == LANE_CLOSED && lane->open_at_ns < at_ns)
            at_ns = lane->open_at_ns;
    }
    return at_ns;
}

void lanes_want(struct flow *flow)
{
    if (flow->lanes.wanted)
        return;
    flow->lanes.wanted = true;
    lanes_expire(flow, flow->core->now_ns);
}

/* It is opened again, after a pause that grows while nothing comes over it. */
static void pause(struct flow *flow, struct lane *lane)
{
    uint64_t pause_ns = flow->core->params->path_retry_ms * NS_PER_MS << lane->pauses;
    if (lane->pauses < PAUSES_MAX)
        lane->pauses++;
    lane->state = LANE_CLOSED;
    lane->open_at_ns = flow->core->now_ns + pause_ns;
}

static void connect(struct flow *flow, struct lane *lane)
{
    lane->state = LANE_CONNECTING;
    ask(flow, lane, PATH_CONNECT);
}

/* ---- fencing --------------------------------------------------------------------------------- */

/* What the ack that came with the peer's FENCED has not named never arrived, and never will. */
static void release_chunks(struct flow *flow, uint16_t index)
{
    unsigned lost = sent_release_lane(&flow->sent, index);
    lanes_lost(flow, lost > 0); /* one may have taken all others with it */
    COUNT(flow->core->counters, lost_chunks, lost);
    flow_wake(flow);
}

/* The lane is fenced on both sides and both have said so: on to the next generation. */
static void try_next(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    if (lane->state != LANE_FENCED || !lane->peer.fenced || lane->frames)
        return;
    if (lane->has_queue_pair) {
        lane->close_generation = lane->generation;
        ask(flow, lane, PATH_CLOSE);
    }
    lane->has_queue_pair = false;
    lane->generation++;
    lane->peer = lane->next;
    lane->next = (struct lane_peer){0};
    lane->rounds = 0;
    pause(flow, lane);
    if (lane->peer.fenced) { /* it has given that one up already */
        lane->state = LANE_FENCED;
        tell(flow, lane, PATH_FENCED);
    }
    flow_update_timer(flow);
}

/* Nothing arrives over the queue pair any more, and nothing is read for it. */
static void drained(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    lane->state = LANE_FENCED;
    while (lane->work_done != lane->work_next)
        finish_oldest(flow, lane);
    if (!flow->dead)
        tell(flow, lane, PATH_FENCED);
    place_on_fenced(flow);
}

static void fence(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    if (lane->state == LANE_CLOSED || lane->state == LANE_FENCING || lane->state == LANE_FENCED)
        return;
    flow->lanes.usable -= sends(lane);
    COUNT(flow->core->counters, paths_fenced, 1);
    sent_hold_lane(&flow->sent, index);
    path_report(&flow->lanes.set, index, PATH_LOST, 0);
    tell_no_more(flow, lane);
    bool made = !(lane->actions >> PATH_OPEN & 1);
    lane->actions &= (uint8_t)(1u << PATH_CLOSE);
    lane->state = LANE_FENCING;
    if (made)
        ask(flow, lane, PATH_FENCE);
    else
        drained(flow, index);
}

void lanes_fence_all(struct flow *flow)
{
    for (uint16_t i = 0; i < flow->lanes.count; i++)
        fence(flow, i);
}

bool lanes_quiet(const struct flow *flow)
{
    for (unsigned i = 0; i < flow->lanes.count; i++) {
        uint8_t state = flow->lanes.lanes[i].state;
        if (state != LANE_CLOSED && state != LANE_FENCED)
            return false;
    }
    return true;
}

/* ---- use ------------------------------------------------------------------------------------- */

int lane_choose(struct flow *flow)
{
    struct lanes *lanes = &flow->lanes;
    uint16_t first = path_choose(&lanes->set, -1);
    for (uint16_t i = 0; i < lanes->count; i++) {
        uint16_t index = (uint16_t)((first + i) % lanes->count);
        if (sends(&lanes->lanes[index]) && lane_takes(lanes, index, 1))
            return index;
    }
    return -1;
}

/*
 * A round begins with the first repair after something was heard over the lane, and again with one that
 * comes when that must have been answered. A queue pair that has swallowed a few rounds while the peer was
 * heard otherwise is broken: one side or the network has lost its state. When nothing is heard at all, which may
 * be since the window is full of what it has swallowed, it is given up later.
 */
static bool in_round(const struct flow *flow, const struct lane *lane)
{
    return lane->rounds && flow->core->now_ns < lane->round_ns + flow_probe_ns(flow);
}

bool lane_may_repair(struct flow *flow, uint16_t index)
{
    enum { PATIENCE = 3 };
    const struct lane *lane = &flow->lanes.lanes[index];
    uint64_t limit = flow->core->params->path_repairs;
    if (in_round(flow, lane) || lane->rounds < (flow->last_rx_ns > lane->round_ns ? limit : PATIENCE * limit))
        return true;
    fence(flow, index);
    return false;
}

void lane_repairs(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    if (in_round(flow, lane))
        return;
    if (lane->rounds++)
        flow->probe.due |= PROBE_ASK; /* is it the lane, or the peer? */
    lane->round_ns = flow->core->now_ns;
}

void lanes_wrote(struct flow *flow, uint32_t packets)
{
    enum { OF_LATE = 4096 };
    struct lanes *lanes = &flow->lanes;
    if (lanes->packets >= OF_LATE) {
        lanes->packets /= 2;
        lanes->losses /= 2;
    }
    lanes->packets += packets;
}

void lanes_lost(struct flow *flow, unsigned chunks)
{
    if (!flow->core->places_reliably)
        flow->lanes.losses += chunks;
}

bool lanes_lossy(const struct flow *flow)
{
    enum { FEW = 2, MILLION = 1000000 };
    const struct lanes *lanes = &flow->lanes;
    uint64_t most_ppm = flow->core->params->packet_loss_ppm;
    return lanes->losses >= FEW && most_ppm < MILLION &&
           (uint64_t)lanes->losses * MILLION > most_ppm * lanes->packets;
}

void lane_heard(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    lane->rounds = 0;
    lane->pauses = 0;
}

/* ---- answers of the owner -------------------------------------------------------------------- */

/* The lane, if it is in this generation still. */
static struct lane *find(struct flow *flow, uint16_t index, uint32_t generation)
{
    if (index >= flow->lanes.count || flow->lanes.lanes[index].generation != generation)
        return NULL;
    return &flow->lanes.lanes[index];
}

void lane_opened(struct flow *flow, uint16_t index, uint32_t generation, uint32_t number, uint32_t psn)
{
    struct lane *lane = find(flow, index, generation);
    if (!lane || (lane->state != LANE_OPENING && lane->state != LANE_FENCING))
        return;
    lane->has_queue_pair = true;
    if (lane->state == LANE_FENCING)
        return;
    lane->number = number;
    lane->psn = psn;
    lane->state = LANE_OFFERED;
    tell(flow, lane, PATH_OFFER);
    if (lane->peer.offered)
        connect(flow, lane);
}

void lane_connected(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct lane *lane = find(flow, index, generation);
    if (!lane || lane->state != LANE_CONNECTING)
        return;
    lane->state = LANE_UP;
    count_usable(flow, lane);
    tell(flow, lane, PATH_READY);
}

void lane_fenced(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct lane *lane = find(flow, index, generation);
    if (!lane || lane->state != LANE_FENCING)
        return;
    drained(flow, index);
    try_next(flow, index);
}

void lane_failed(struct flow *flow, uint16_t index, uint32_t generation)
{
    struct lane *lane = find(flow, index, generation);
    if (!lane)
        return;
    if (lane->state == LANE_OPENING) {
        pause(flow, lane);
        flow_update_timer(flow);
    } else {
        fence(flow, index);
    }
}

/* ---- frames ---------------------------------------------------------------------------------- */

static void on_fenced(struct flow *flow, uint16_t index)
{
    struct lane *lane = &flow->lanes.lanes[index];
    if (lane->peer.fenced)
        return;
    lane->peer.fenced = true;
    if (lane->state == LANE_CLOSED) { /* nothing to fence: let it go on */
        lane->state = LANE_FENCED;
        tell(flow, lane, PATH_FENCED);
    }
    fence(flow, index);
    release_chunks(flow, index);
    try_next(flow, index);
}

void lanes_on_frame(struct flow *flow, const struct wire_path *frame)
{
    struct lane *lane = frame->path < flow->lanes.count ? &flow->lanes.lanes[frame->path] : NULL;
    if (!lane || (frame->generation != lane->generation && frame->generation != lane->generation + 1)) {
        COUNT(flow->core->counters, rx_stale_frames, 1);
        return;
    }
    bool ahead = frame->generation != lane->generation;
    struct lane_peer *peer = ahead ? &lane->next : &lane->peer;
    switch ((enum wire_path_what)frame->what) {
    case PATH_OFFER:
        if (peer->offered)
            return;
        peer->offered = true;
        peer->number = frame->number;
        peer->psn = frame->psn;
        lanes_want(flow);
        if (!ahead && lane->state == LANE_OFFERED)
            connect(flow, lane);
        break;
    case PATH_READY:
        if (peer->ready)
            return;
        peer->ready = true;
        if (!ahead)
            count_usable(flow, lane);
        flow_wake(flow);
        break;
    case PATH_FENCED:
        if (ahead)
            peer->fenced = true;
        else
            on_fenced(flow, frame->path);
        break;
    }
}

unsigned lanes_put_frames(struct flow *flow, uint8_t *at, uint32_t room)
{
    uint8_t *begin = at, *end = at + room;
    for (uint16_t i = 0; i < flow->lanes.count && flow->lanes.frames_due; i++) {
        struct lane *lane = &flow->lanes.lanes[i];
        for (unsigned what = PATH_OFFER; lane->frames && what <= PATH_FENCED; what++) {
            if (!(lane->frames >> what & 1))
                continue;
            if (end - at < WIRE_PATH_BYTES)
                return (unsigned)(at - begin);
            bool offer = what == PATH_OFFER;
            at += wire_put_path(at, &(struct wire_path){(uint8_t)what, i, lane->generation,
                                                        offer ? lane->number : 0, offer ? lane->psn : 0});
            flow->lanes.fenced_due -= what == PATH_FENCED;
            lane->frames &= (uint8_t)~(1u << what);
            flow->lanes.frames_due -= lane->frames == 0;
        }
        try_next(flow, i);
    }
    return (unsigned)(at - begin);
}
