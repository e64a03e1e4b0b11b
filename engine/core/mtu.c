/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mtu.h"
#include "core/flow.h"
#include "core/state.h"

#include <assert.h>
#include <string.h>

void mtu_init(struct flow *flow, const struct flow_setup *setup)
{
    flow->mtu = (struct mtu){
        .limit_bytes = setup->datagram_bytes,
        .peer_bytes = setup->peer_datagram_bytes ? setup->peer_datagram_bytes : CORE_TRAIN_BYTES_MAX,
        .base_bytes = setup->base_bytes ? setup->base_bytes : CORE_DATAGRAM_BASE,
        .searches = setup->base_bytes != 0,
        .bad_bytes = UINT32_MAX,
        .at_ns = UINT64_MAX,
        .raise_ns = UINT64_MAX,
    };
    flow->datagram_bytes = setup->datagram_bytes;
    if (setup->base_bytes && setup->base_bytes < setup->datagram_bytes)
        flow->datagram_bytes = setup->base_bytes;
    flow->sent.base_bytes = flow->mtu.base_bytes;
}

/* ---- searching ------------------------------------------------------------------------------- */

static void set_watches(struct flow *flow)
{
    flow->sent.watches = flow->mtu.trying_bytes || flow->mtu.rounds;
}

/* Ends the wait for a probe. */
static void put_padding(struct flow *flow)
{
    struct mtu *mtu = &flow->mtu;
    if (mtu->padding)
        pool_put(&flow->core->big, &mtu->held, mtu->padding);
    mtu->padding = NULL;
    mtu->at_ns = UINT64_MAX;
    flow->probe.due &= (uint8_t)~PROBE_SIZE;
}

static void stop_search(struct flow *flow)
{
    put_padding(flow);
    flow->mtu.trying_bytes = 0;
    set_watches(flow);
}

void mtu_forget(struct flow *flow)
{
    stop_search(flow);
}

/*
 * From here on a small datagram must show that the path lives. One that was sent earlier shows nothing, even if its ack
 * comes now: the peer repeats acks of packets from before the path died.
 */
static void await_small(struct flow *flow)
{
    flow->mtu.small_passed = false;
    flow->mtu.small_from_ns = flow->core->now_ns;
}

static void try_size(struct flow *flow, uint32_t bytes)
{
    struct mtu *mtu = &flow->mtu;
    put_padding(flow);
    mtu->trying_bytes = bytes;
    mtu->nonce = rng_next(&flow->core->rng) | 1; /* other probes have nonce 0 (probe.h) */
    mtu->tries = mtu->silent = 0;
    await_small(flow);
    set_watches(flow);
    flow->probe.due |= PROBE_SIZE;
    flow_wake(flow);
}

void mtu_search(struct flow *flow)
{
    struct mtu *mtu = &flow->mtu;
    mtu->bad_bytes = UINT32_MAX;
    mtu->raise_ns = UINT64_MAX;
    if (mtu->limit_bytes > flow->datagram_bytes)
        try_size(flow, mtu->limit_bytes);
    else
        stop_search(flow);
}

static void search_later(struct flow *flow, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    mtu->raise_ns = now_ns + (MTU_RAISE_NS << mtu->backoff);
    if (mtu->backoff < MTU_RAISE_BACKOFF)
        mtu->backoff++;
}

/* A size between those that pass and those that do not, in steps of payload; 0: none is left. */
static uint32_t middle(const struct flow *flow)
{
    uint32_t low = flow->datagram_bytes, high = flow->mtu.bad_bytes, bytes = low + (high - low) / 2;
    if (bytes > WIRE_BULK_HEADER_BYTES)
        bytes -= (bytes - WIRE_BULK_HEADER_BYTES) % MTU_STEP_BYTES;
    if (bytes <= low)
        bytes += MTU_STEP_BYTES;
    return bytes < high ? bytes : 0;
}

/* A size was found good or bad: tries the next one, or ends the search. */
static void next_size(struct flow *flow, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    uint32_t bytes = flow->datagram_bytes < mtu->limit_bytes ? middle(flow) : 0;
    if (bytes) {
        try_size(flow, bytes);
        return;
    }
    stop_search(flow);
    if (flow->datagram_bytes == mtu->limit_bytes) {
        mtu->backoff = 0;
        return;
    }
    search_later(flow, now_ns);
    if (!mtu->hole_reported) {
        mtu->hole_reported = mtu->hole_report_due = true;
        queue_append(&flow->core->flow_events, &flow->event);
    }
}

uint32_t mtu_probe(struct flow *flow, uint8_t **buffer, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    flow->probe.due &= (uint8_t)~PROBE_SIZE;
    mtu->at_ns = now_ns + (flow_rto_ns(flow, 0) << mtu->silent);
    if (!mtu->padding)
        mtu->padding = pool_take(&flow->core->big, &mtu->held);
    if (!mtu->padding)
        return 0;                               /* a buffer may be free when mtu->at_ns comes */
    memset(mtu->padding, 0, mtu->trying_bytes); /* the buffer may hold messages for other peers */
    *buffer = mtu->padding;
    return mtu->trying_bytes;
}

void mtu_undo(struct flow *flow)
{
    flow->mtu.at_ns = UINT64_MAX; /* it goes at once */
}

void mtu_on_echo(struct flow *flow, uint64_t nonce, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    if (nonce == 0 && flow->sent.watches) {
        mtu->small_passed = true;
    } else if (nonce && mtu->trying_bytes && nonce == mtu->nonce) {
        flow->datagram_bytes = mtu->trying_bytes;
        next_size(flow, now_ns);
    }
}

/* No echo came in time. */
static void give_up_probe(struct flow *flow, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    if (mtu->padding && mtu->small_passed)
        mtu->tries++;
    else
        mtu->silent++;
    if (mtu->tries == (mtu->trying_bytes == mtu->limit_bytes ? MTU_TOP_TRIES : MTU_TRIES)) {
        mtu->bad_bytes = mtu->trying_bytes;
        next_size(flow, now_ns);
    } else if (mtu->silent == MTU_SILENT_TRIES) { /* a peer that says nothing at all shows nothing about sizes */
        stop_search(flow);
        search_later(flow, now_ns);
    } else {
        await_small(flow);
        flow->probe.due |= PROBE_SIZE | PROBE_ASK; /* a small probe goes beside the padded one */
        mtu->at_ns = UINT64_MAX;
        flow_wake(flow);
    }
}

void mtu_expire(struct flow *flow, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    if (mtu->at_ns <= now_ns)
        give_up_probe(flow, now_ns);
    if (mtu->raise_ns <= now_ns && flow_expects_peer(flow)) /* an idle flow needs no timer for this */
        mtu_search(flow);
}

void mtu_set_route(struct flow *flow, uint32_t bytes)
{
    struct mtu *mtu = &flow->mtu;
    uint32_t before = mtu->limit_bytes;
    if (bytes > mtu->peer_bytes)
        bytes = mtu->peer_bytes;
    mtu->limit_bytes = bytes;
    if (!mtu->searches || bytes < flow->datagram_bytes)
        flow->datagram_bytes = bytes;
    if (bytes > before || bytes < mtu->trying_bytes || bytes == flow->datagram_bytes)
        mtu_search(flow);
}

/* ---- black holes ----------------------------------------------------------------------------- */

/* Large datagrams vanish. */
static void fall_to_base(struct flow *flow)
{
    struct mtu *mtu = &flow->mtu;
    COUNT(flow->core->counters, mtu_holes, 1);
    mtu->rounds = mtu->losses = 0;
    flow->datagram_bytes = mtu->base_bytes;
    mtu_search(flow);
}

void mtu_on_ack(struct flow *flow, const struct sent_acked *acked)
{
    struct mtu *mtu = &flow->mtu;
    mtu->small_passed |= acked->small_ns && acked->small_ns >= mtu->small_from_ns;
    if (acked->large) {
        mtu->rounds = mtu->losses = 0;
        set_watches(flow);
    }
}

/*
 * Counts a round of losses: a large datagram that was sent after the last round was counted is lost too. A small probe
 * asks the peer, to show whether small datagrams pass. It does not at the first loss that acks show: others arrived
 * then.
 */
bool mtu_on_losses(struct flow *flow, bool by_time, uint64_t now_ns)
{
    struct mtu *mtu = &flow->mtu;
    uint64_t sent_ns = flow->sent.large_lost_ns;
    flow->sent.large_lost_ns = 0;
    if (sent_ns == 0 || sent_ns < mtu->counted_ns || flow->datagram_bytes <= mtu->base_bytes)
        return false;
    mtu->counted_ns = now_ns;
    mtu->losses += mtu->rounds > 0 && mtu->small_passed;
    mtu->rounds += mtu->rounds < UINT8_MAX;
    await_small(flow);
    flow->sent.watches = true;
    if (mtu->losses == MTU_TRIES) {
        fall_to_base(flow);
        return true;
    }
    if (by_time || mtu->rounds > 1) {
        flow->probe.due |= PROBE_ASK;
        flow_wake(flow);
    }
    return false;
}
