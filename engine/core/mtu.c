/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mtu.h"
#include "core/flow.h"
#include "core/state.h"

#include <assert.h>
#include <string.h>

void mtu_init(struct rail *rail, const struct rail_setup *setup)
{
    rail->mtu = (struct mtu){
        .limit_bytes = setup->datagram_bytes,
        .peer_bytes = setup->peer_datagram_bytes ? setup->peer_datagram_bytes : CORE_TRAIN_BYTES_MAX,
        .base_bytes = setup->base_bytes ? setup->base_bytes : CORE_DATAGRAM_BASE,
        .searches = setup->base_bytes != 0,
        .bad_bytes = UINT32_MAX,
        .at_ns = UINT64_MAX,
        .raise_ns = UINT64_MAX,
    };
    rail->datagram_bytes = setup->datagram_bytes;
    if (setup->base_bytes && setup->base_bytes < setup->datagram_bytes)
        rail->datagram_bytes = setup->base_bytes;
    rail->base_bytes = rail->reliable ? UINT32_MAX : rail->mtu.base_bytes; /* no datagram there is too large */
}

/* ---- searching ------------------------------------------------------------------------------- */

static void set_watches(struct rail *rail)
{
    rail->watches = rail->mtu.trying_bytes || rail->mtu.rounds || rail->mtu.interrupted;
}

/* Ends the wait for a probe. */
static void put_padding(struct rail *rail)
{
    struct mtu *mtu = &rail->mtu;
    if (mtu->padding)
        pool_put(&rail->flow->core->big, &mtu->held, mtu->padding);
    mtu->padding = NULL;
    mtu->at_ns = UINT64_MAX;
    rail->probe.due &= (uint8_t)~PROBE_SIZE;
}

static void stop_search(struct rail *rail)
{
    put_padding(rail);
    rail->mtu.trying_bytes = 0;
    rail->mtu.interrupted = false;
    set_watches(rail);
}

void mtu_forget(struct rail *rail)
{
    stop_search(rail);
}

/*
 * From here on a small datagram must show that the path lives. One that was sent earlier shows nothing, even if its ack
 * comes now: the peer repeats acks of packets from before the path died.
 */
static void await_small(struct rail *rail)
{
    rail->mtu.small_passed = false;
    rail->mtu.small_from_ns = rail->flow->core->now_ns;
}

static void try_size(struct rail *rail, uint32_t bytes)
{
    struct mtu *mtu = &rail->mtu;
    put_padding(rail);
    mtu->trying_bytes = bytes;
    mtu->nonce = rng_next(&rail->flow->core->rng) | 1; /* other probes have the number of the rail (probe.h) */
    mtu->tries = mtu->silent = 0;
    mtu->interrupted = false;
    await_small(rail);
    set_watches(rail);
    rail->probe.due |= PROBE_SIZE;
    flow_wake(rail->flow);
}

void mtu_search(struct rail *rail)
{
    struct mtu *mtu = &rail->mtu;
    mtu->bad_bytes = UINT32_MAX;
    mtu->raise_ns = UINT64_MAX;
    if (mtu->limit_bytes > rail->datagram_bytes)
        try_size(rail, mtu->limit_bytes);
    else
        stop_search(rail);
}

static void search_later(struct rail *rail, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    mtu->raise_ns = now_ns + (MTU_RAISE_NS << mtu->backoff);
    if (mtu->backoff < MTU_RAISE_BACKOFF)
        mtu->backoff++;
}

/* A size between those that pass and those that do not, in steps of payload; 0: none is left. */
static uint32_t middle(const struct rail *rail)
{
    uint32_t low = rail->datagram_bytes, high = rail->mtu.bad_bytes, bytes = low + (high - low) / 2;
    if (bytes > WIRE_BULK_HEADER_BYTES)
        bytes -= (bytes - WIRE_BULK_HEADER_BYTES) % MTU_STEP_BYTES;
    if (bytes <= low)
        bytes += MTU_STEP_BYTES;
    return bytes < high ? bytes : 0;
}

/* A size was found good or bad: tries the next one, or ends the search. */
static void next_size(struct rail *rail, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    uint32_t bytes = rail->datagram_bytes < mtu->limit_bytes ? middle(rail) : 0;
    if (bytes) {
        try_size(rail, bytes);
        return;
    }
    stop_search(rail);
    if (rail->datagram_bytes == mtu->limit_bytes) {
        mtu->backoff = 0;
        return;
    }
    search_later(rail, now_ns);
    if (!mtu->hole_reported) {
        mtu->hole_reported = mtu->hole_report_due = true;
        queue_append(&rail->flow->core->flow_events, &rail->flow->event);
    }
}

uint32_t mtu_probe(struct rail *rail, uint8_t **buffer, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    rail->probe.due &= (uint8_t)~PROBE_SIZE;
    mtu->at_ns = now_ns + (rail_rto_ns(rail, 0) << mtu->silent);
    if (!mtu->padding)
        mtu->padding = pool_take(&rail->flow->core->big, &mtu->held);
    if (!mtu->padding)
        return 0;                               /* a buffer may be free when mtu->at_ns comes */
    memset(mtu->padding, 0, mtu->trying_bytes); /* the buffer may hold messages for other peers */
    *buffer = mtu->padding;
    return mtu->trying_bytes;
}

void mtu_undo(struct rail *rail)
{
    rail->mtu.at_ns = UINT64_MAX; /* it goes at once */
}

static void small_passes(struct rail *rail)
{
    rail->mtu.small_passed = true;
    if (rail->mtu.interrupted)
        mtu_search(rail);
}

void mtu_on_echo(struct rail *rail, uint64_t nonce, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    if (nonce == rail->index && rail->watches) {
        small_passes(rail);
    } else if (mtu->trying_bytes && nonce == mtu->nonce) {
        rail->datagram_bytes = mtu->trying_bytes;
        next_size(rail, now_ns);
    }
}

/* No echo came in time. */
static void give_up_probe(struct rail *rail, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    if (mtu->padding && mtu->small_passed)
        mtu->tries++;
    else
        mtu->silent++;
    if (mtu->tries == (mtu->trying_bytes == mtu->limit_bytes ? MTU_TOP_TRIES : MTU_TRIES)) {
        mtu->bad_bytes = mtu->trying_bytes;
        next_size(rail, now_ns);
    } else if (mtu->silent == MTU_SILENT_TRIES) { /* a peer that says nothing at all shows nothing about sizes */
        stop_search(rail);
        mtu->interrupted = true;
        await_small(rail);
        set_watches(rail);
    } else {
        await_small(rail);
        rail->probe.due |= PROBE_SIZE | PROBE_ASK; /* a small probe goes beside the padded one */
        mtu->at_ns = UINT64_MAX;
        flow_wake(rail->flow);
    }
}

void mtu_expire(struct rail *rail, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    if (mtu->at_ns <= now_ns)
        give_up_probe(rail, now_ns);
    if (mtu->raise_ns <= now_ns && flow_expects_peer(rail->flow)) /* an idle flow needs no timer for this */
        mtu_search(rail);
}

void mtu_set_route(struct rail *rail, uint32_t bytes)
{
    struct mtu *mtu = &rail->mtu;
    uint32_t before = mtu->limit_bytes;
    if (bytes > mtu->peer_bytes)
        bytes = mtu->peer_bytes;
    mtu->limit_bytes = bytes;
    if (!mtu->searches || bytes < rail->datagram_bytes)
        rail->datagram_bytes = bytes;
    if (bytes > before || bytes < mtu->trying_bytes || bytes == rail->datagram_bytes)
        mtu_search(rail);
}

/* ---- black holes ----------------------------------------------------------------------------- */

/* Large datagrams vanish. */
static void fall_to_base(struct rail *rail)
{
    struct mtu *mtu = &rail->mtu;
    COUNT(rail->flow->core->counters, mtu_holes, 1);
    mtu->rounds = mtu->losses = 0;
    rail->datagram_bytes = mtu->base_bytes;
    mtu_search(rail);
}

void mtu_on_ack(struct rail *rail, const struct sent_acked *acked)
{
    struct mtu *mtu = &rail->mtu;
    bool small = acked->small_ns && acked->small_ns >= mtu->small_from_ns;
    if (acked->large) {
        mtu->rounds = mtu->losses = 0;
        set_watches(rail);
    }
    if (small || (acked->large && mtu->interrupted))
        small_passes(rail);
}

void mtu_forgive(struct rail *rail)
{
    rail->mtu.rounds = rail->mtu.losses = 0;
    rail->mtu.counted_ns = rail->flow->core->now_ns;
    set_watches(rail);
}

/*
 * Several rails may give one of them a chunk after a long time, in which it was cut and mended. So a small datagram
 * must pass from here on.
 */
void mtu_gives_large(struct rail *rail)
{
    if (rail->mtu.rounds == 0 || rail->flying_payload > 0)
        return;
    await_small(rail);
    rail->probe.due |= PROBE_ASK;
}

/*
 * Counts a round of losses: a large datagram that was sent after the last round was counted is lost too. A small probe
 * asks the peer, to show whether small datagrams pass. It does not at the first loss that acks show: others arrived
 * then.
 */
bool mtu_on_losses(struct rail *rail, bool by_time, uint64_t now_ns)
{
    struct mtu *mtu = &rail->mtu;
    uint64_t sent_ns = rail->large_lost_ns;
    rail->large_lost_ns = 0;
    if (sent_ns == 0 || sent_ns < mtu->counted_ns || rail->datagram_bytes <= mtu->base_bytes)
        return false;
    mtu->counted_ns = now_ns;
    mtu->losses += mtu->rounds > 0 && mtu->small_passed;
    mtu->rounds += mtu->rounds < UINT8_MAX;
    await_small(rail);
    rail->watches = true;
    if (mtu->losses == MTU_TRIES) {
        fall_to_base(rail);
        return true;
    }
    if (by_time || mtu->rounds > 1) {
        rail->probe.due |= PROBE_ASK;
        flow_wake(rail->flow);
    }
    return false;
}
