/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rails of a peer (core/rail.h): which NIC of ours sends to which address of the peer. The handshake's own route is
 * always among them, since addresses that a peer names may lie behind address translation, or lead nowhere. Each side
 * plans its own rails. Application threads; no state.
 */
#ifndef UCCL_RAILS_H
#define UCCL_RAILS_H

#include "boot/boot_wire.h"

struct rail_plan {
    struct nic_host host;
    uint32_t peer_mtu; /* of the peer's NIC: bytes of an IP packet; 0: unknown */
    bool handshake;    /* the handshake's route: without it there is no flow */
    bool closed;       /* the network nearby knows no way there */
    uint8_t pair;      /* if queue addresses name the NICs: its number among the pairs, the same at both ends */
};

/*
 * Plans the rails by the NICs that the peer offers; `host` is the handshake's. One rail where either side has a single
 * NIC or none pair up. If queue addresses name the NICs, both ends find the same rails in the same order; `client`: our
 * end is the client's. Returns how many, at least 1.
 */
unsigned rails_plan(const struct nic *nic, const struct nic_host *host, const struct boot_offer *offer, bool client,
                    struct rail_plan out[CORE_RAILS_MAX]);

/* Those of one engine thread: the NIC whose turn it is comes first, since small messages prefer the first rail. */
void rails_order(struct rail_plan *rails, unsigned count, unsigned home_end);

/* Moves a rail to the front. */
void rails_prefer(struct rail_plan *rails, unsigned index);

/* Tells the log, at level info, which rails lead to a peer, if those are several. */
void rails_tell(const struct nic *nic, const struct rail_plan *rails, unsigned count);

/* Our NICs in an offer, if we use several. */
void rails_offer(const struct nic *nic, struct boot_offer *offer);

#endif
