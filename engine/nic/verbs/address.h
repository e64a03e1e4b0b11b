/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of a verbs queue as the handshake carries it. An engine thread with queues on several ports has one
 * record for each of them, one behind the other. The decoder takes a peer's bytes: it is fuzzed
 * (tests/fuzz/fuzz_bootstrap.c) and needs no libibverbs. Layout: docs/bootstrap.md.
 */
#ifndef UCCL_VERBS_ADDRESS_H
#define UCCL_VERBS_ADDRESS_H

#include "nic/nic.h"
#include "nic/verbs/select.h"

enum { VERBS_ADDRESS_BYTES = 32 /* of a record */, VERBS_QPN_BITS = 24 };
_Static_assert(NIC_PLACERS_MAX *VERBS_ADDRESS_BYTES <= NIC_QUEUE_ADDRESS_MAX, "a record for each port");

struct verbs_address {
    bool ethernet;       /* reached by GID (RoCE); else by LID (InfiniBand) */
    uint8_t mode;        /* enum verbs_mode */
    uint8_t mtu_shift;   /* log2 of the path MTU that its port takes */
    uint16_t lid;        /* 0 on Ethernet */
    uint8_t prefix_bits; /* of the GID: its subnet */
    uint32_t qpn, qkey;  /* of the UD queue pair */
    uint8_t gid[16];
};

/* Appends a record. */
void verbs_address_append(const struct verbs_address *address, struct nic_queue_address *out);
/* How many records there are; 0: the length is none. */
unsigned verbs_address_count(const struct nic_queue_address *bytes);
/* Whether an application's queue pair can have that number: 0 and 1 are those of management, the last of multicast. */
static inline bool verbs_qpn_is_valid(uint32_t qpn)
{
    return qpn > 1 && qpn < (1u << VERBS_QPN_BITS) - 1;
}
/* Reads a record. NULL, or what is wrong; `*out` is then unchanged. */
const char *verbs_address_decode(const struct nic_queue_address *bytes, unsigned index, struct verbs_address *out);

#endif
