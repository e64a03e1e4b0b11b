/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out the datagrams of a descriptor for the backend that sends them. Thread: the queue's owner.
 */
#ifndef UCCL_DATAGRAM_H
#define UCCL_DATAGRAM_H

#include "nic/nic.h"

static inline uint32_t datagram_length(const struct tx_desc *desc, unsigned index)
{
    return index + 1 == desc->count ? desc->last_bytes : desc->datagram_bytes;
}

/* Copies the payload into the datagrams of a TX_FRAMES descriptor that `mask` names. */
void datagram_gather(const struct nic_queue_setup *setup, const struct tx_desc *desc, uint64_t mask);

/*
 * Writes the header of a datagram of a TX_BULK descriptor to `out`, and its payload behind that. `payload`: that of the
 * chunk's datagram 0, or NULL: gather it. Without `copies` payload that the CPU can read stays where it lies. Returns
 * where the datagram's payload is.
 */
const uint8_t *datagram_bulk(const struct nic_queue_setup *setup, const struct tx_desc *desc, unsigned index,
                             const uint8_t *payload, bool copies, uint8_t *out);

#endif
