/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window beside receiver-driven credit (credit.c). Credit paces the receiver's link, where incast meets; what
 * the receiver does not see is congestion inside the network, on uplinks that are oversubscribed or worn. Against
 * that stands Swift's window, with a floor: what a burst of new flows loses says nothing about the
 * network, and a window far below a round trip's worth would keep credit from being used.
 * Owned by the flow's thread.
 */
#include "core/cc.h"

/* An eighth of what is sent unasked: eight flows that share a link have a round trip's worth together. */
enum { EQDS_FLOOR_SHIFT = 3 };

static void keep_floor(struct cc *cc)
{
    uint64_t floor_bytes = cc->speculate_bytes >> EQDS_FLOOR_SHIFT;
    if (floor_bytes < cc->chunk_bytes)
        floor_bytes = cc->chunk_bytes;
    if (cc->cwnd_bytes < floor_bytes)
        cc_set_window(cc, floor_bytes);
}

static void eqds_init(struct cc *cc)
{
    cc_swift.init(cc);
}

static void eqds_on_ack(struct cc *cc, const struct cc_ack *ack)
{
    cc_swift.on_ack(cc, ack);
    keep_floor(cc);
}

static void eqds_on_loss(struct cc *cc, uint64_t now_ns, uint64_t srtt_ns)
{
    cc_swift.on_loss(cc, now_ns, srtt_ns);
    keep_floor(cc);
}

static void eqds_on_rto(struct cc *cc, uint64_t now_ns)
{
    cc_swift.on_rto(cc, now_ns);
    keep_floor(cc);
}

const struct cc_ops cc_eqds = {
    .name = "eqds",
    .credited = true,
    .init = eqds_init,
    .on_ack = eqds_on_ack,
    .on_loss = eqds_on_loss,
    .on_rto = eqds_on_rto,
};
