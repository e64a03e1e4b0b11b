/* SPDX-License-Identifier: Apache-2.0 */
#include "core/place.h"
#include "core/conn_slots.h"

#include <assert.h>

enum { RELIABLE_ACK_DELAY_NS = NS_PER_MS }; /* the sender has its completions: our acks only move its window */

static uint32_t slots_of(const struct params *params, const struct flow_setup *setup)
{
    return setup->places ? (uint32_t)params->grants : 0;
}

size_t place_size(const struct params *params, const struct flow_setup *setup)
{
    size_t slots = slots_of(params, setup);
    return round64(slots * sizeof(struct core_msg *)) + round64(slots * sizeof(uint16_t));
}

void place_init(struct flow *flow, uint8_t *memory, const struct flow_setup *setup)
{
    struct place *place = &flow->place;
    uint32_t slots = flow->qps.count ? slots_of(flow->core->params, setup) : 0;
    assert(slots <= WIRE_SLOTS_MAX);
    place->grants = (struct core_msg **)memory;
    place->free = (uint16_t *)(memory + round64(slots * sizeof(struct core_msg *)));
    place->slot_count = slots;
    for (uint32_t i = slots; i-- > 0;)
        place->free[place->free_count++] = (uint16_t)i;
}

/* ---- grants ---------------------------------------------------------------------------------- */

bool place_grant(struct flow *flow, struct core_msg *msg)
{
    struct place *place = &flow->place;
    if (!msg->placeable || msg->watched || place->free_count == 0)
        return false;
    uint16_t slot = place->free[--place->free_count];
    assert(!place->grants[slot] && !msg->grant_slot);
    place->grants[slot] = msg;
    msg->grant_slot = slot + 1u;
    data_qps_want(flow);
    return true;
}

static void revoke(struct flow *flow, struct core_msg *msg)
{
    struct place *place = &flow->place;
    uint16_t slot = (uint16_t)(msg->grant_slot - 1);
    assert(msg->grant_slot && place->grants[slot] == msg);
    place->grants[slot] = NULL;
    place->free[place->free_count++] = slot;
    msg->grant_slot = 0;
}

void place_end_whole(struct flow *flow, struct core_msg *msg, uint64_t moved_bytes)
{
    revoke(flow, msg);
    message_complete(flow, msg, UCCL_OK, moved_bytes);
}

/* ---- the proof that a buffer is free ----------------------------------------------------------- */

void place_end_early(struct flow *flow, struct core_msg *msg, int32_t status, enum deferral deferral)
{
    assert(!msg->deferral && deferral >= DEFER_REVOKE_DUE);
    msg->status = status;
    msg->deferral = (uint8_t)deferral;
    msg->deferred_until = flow->rx_seq;
    msg->conn->deferred++;
    if (!flow->place.deferred.head)
        flow->place.deferred_ns = flow->core->now_ns;
    msg_append(&flow->place.deferred, msg);
    if (!flow->dead)
        flow_arm(flow, place_deadline(flow));
}

static void report_deferred(struct flow *flow, struct core_msg *msg)
{
    if (flow->place.deferred.head == msg)
        flow->place.deferred_ns = flow->core->now_ns;
    msg_remove(&flow->place.deferred, msg);
    revoke(flow, msg);
    conn_report_deferred(msg);
}

/* Whether the message is `number` of the connection (UINT64_MAX: any), and the peer may not know of its end. */
static bool awaits_revoke(const struct core_msg *msg, const struct conn *conn, uint64_t number)
{
    return msg->conn == conn && (number == UINT64_MAX || msg->number == number) &&
           (msg->deferral == DEFER_REVOKE_DUE || msg->deferral == DEFER_REVOKE_SENT);
}

void place_revoke_sent(struct conn *conn, uint64_t number, uint64_t seq)
{
    for (struct core_msg *msg = conn->flow->place.deferred.head; msg; msg = msg->next) {
        if (!awaits_revoke(msg, conn, number) || msg->deferral == DEFER_REVOKE_SENT)
            continue;
        msg->deferral = DEFER_REVOKE_SENT;
        msg->deferred_until = seq;
    }
}

void place_peer_ended(struct conn *conn, uint64_t number)
{
    for (struct core_msg *msg = conn->flow->place.deferred.head; msg; msg = msg->next) {
        if (!awaits_revoke(msg, conn, number))
            continue;
        msg->deferral = DEFER_ARRIVAL;
        msg->deferred_until = conn->flow->rx_seq;
    }
}

void place_on_arrival(struct flow *flow)
{
    for (struct core_msg *msg = flow->place.deferred.head, *next; msg; msg = next) {
        next = msg->next;
        if (msg->deferral == DEFER_ARRIVAL && msg->deferred_until <= flow->sack.cumulative)
            report_deferred(flow, msg);
    }
}

/* Lets data QPs open again, once no message waits for a drain and the peer knows which grants are revoked. */
static void allow_qps(struct flow *flow)
{
    if (!flow->qps.barred_until || flow->gone.barring || flow->sent.cumulative < flow->qps.barred_until)
        return;
    for (const struct core_msg *msg = flow->place.deferred.head; msg; msg = msg->next) {
        if (msg->deferral == DEFER_DRAIN)
            return;
    }
    flow->qps.barred_until = 0;
    data_qps_expire(flow, flow->core->now_ns);
    flow_arm(flow, data_qps_deadline(flow));
}

/* The FIN of a connection that has failed here is kept (gone.h), and leaves when it can. */
static void note_kept_fin(struct core_msg *msg)
{
    if (msg->deferral == DEFER_REVOKE_DUE && gone_fin_left(msg->conn, &msg->deferred_until))
        msg->deferral = DEFER_REVOKE_SENT;
}

void place_on_ack(struct flow *flow, uint32_t next)
{
    const struct sent *sent = &flow->sent;
    bool known = false;
    for (struct core_msg *msg = flow->place.deferred.head; msg; msg = msg->next) {
        note_kept_fin(msg);
        if (msg->deferral != DEFER_REVOKE_SENT || !sent_is_acked(sent, msg->deferred_until))
            continue;
        msg->deferral = DEFER_ARRIVAL;
        msg->deferred_until = wire_expand(next, flow->sack.cumulative);
        known = true;
    }
    if (known)
        place_on_arrival(flow);
    allow_qps(flow);
}

void place_on_drained(struct flow *flow)
{
    if (!data_qps_quiet(flow))
        return;
    for (struct core_msg *msg = flow->place.deferred.head, *next_msg; msg; msg = next_msg) {
        next_msg = msg->next;
        if (msg->deferral == DEFER_DRAIN)
            report_deferred(flow, msg);
    }
    allow_qps(flow);
}

static void await_drain(struct flow *flow, struct core_msg *msg)
{
    note_kept_fin(msg);
    uint64_t until = 1;
    if (msg->deferral == DEFER_REVOKE_SENT)
        until = msg->deferred_until + 1;
    else if (msg->deferral == DEFER_REVOKE_DUE && !gone_bars_data_qps(msg->conn))
        until = UINT64_MAX; /* nothing will tell the peer */
    if (until > flow->qps.barred_until)
        flow->qps.barred_until = until;
    msg->deferral = DEFER_DRAIN;
}

void place_give_up(struct conn *conn)
{
    struct flow *flow = conn->flow;
    bool some = false;
    for (struct core_msg *msg = flow->place.deferred.head; msg; msg = msg->next) {
        if (msg->conn != conn)
            continue;
        await_drain(flow, msg);
        some = true;
    }
    if (some || conn->deferred)
        data_qps_drain_all(flow);
    place_on_drained(flow);
}

void place_drain_all(struct flow *flow)
{
    for (struct core_msg *msg = flow->place.deferred.head; msg; msg = msg->next)
        await_drain(flow, msg);
    data_qps_drain_all(flow);
    place_on_drained(flow);
}

uint64_t place_deadline(const struct flow *flow)
{
    const struct core_msg *first = flow->place.deferred.head;
    if (!first || first->deferral == DEFER_DRAIN)
        return UINT64_MAX;
    return flow->place.deferred_ns + flow->core->params->dead_peer_ms * NS_PER_MS;
}

void place_expire(struct flow *flow, uint64_t now_ns)
{
    if (place_deadline(flow) <= now_ns)
        place_drain_all(flow);
}

/* ---- writes received ------------------------------------------------------------------------- */

/* The message of the grant takes note of the write. False: the write breaks the protocol. */
static bool take_write(struct flow *flow, uint32_t slot, uint32_t length)
{
    struct core_msg *msg = slot < flow->place.slot_count ? flow->place.grants[slot] : NULL;
    if (!msg)
        return false;
    return msg->deferral ? length <= msg->size_bytes : conn_on_placed(msg->conn, msg, length);
}

void place_rx(struct flow *flow, uint16_t qp, uint32_t immediate, uint32_t length, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct sack *sack = &flow->sack;
    uint64_t seq = wire_immediate_seq(immediate, sack->cumulative), at_ns = now_ns - core->waited_ns;
    flow_heard(flow, now_ns);
    switch (sack_check_write(sack, seq)) {
    case SACK_DUPLICATE:
        COUNT(core->counters, rx_duplicates, 1);
        sack_note_write(sack, qp, seq, at_ns);
        ack_owe(flow, 0, true);
        return;
    case SACK_BEYOND_WINDOW:
        COUNT(core->counters, rx_out_of_window, 1);
        return;
    case SACK_MALFORMED:
        COUNT(core->counters, rx_malformed, 1);
        return;
    case SACK_NEW:
        break;
    }
    if (!take_write(flow, wire_immediate_slot(immediate), length)) {
        COUNT(core->counters, rx_refused, 1);
        return;
    }
    COUNT(core->counters, rx_placed, 1);
    sack_note_write(sack, qp, seq, at_ns);
    bool gap = sack_has_gap(sack);
    sack_mark_write(sack, seq);
    flow->ack.chunks++;
    if (core->places_reliably)
        ack_owe(flow, RELIABLE_ACK_DELAY_NS, flow->ack.chunks >= sack->window / 4);
    else
        ack_owe(flow, core->params->ack_delay_us * NS_PER_US,
                gap || sack_has_gap(sack) || flow->ack.chunks >= core->params->ack_every);
    place_on_arrival(flow);
}
