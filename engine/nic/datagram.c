/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/datagram.h"

#include "core/wire.h"

#include <string.h>

void datagram_gather(const struct nic_queue_setup *setup, const struct tx_desc *desc, uint64_t mask)
{
    for (uint32_t i = 0; i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        const void *payload;

        if (!(mask >> (piece->at / desc->datagram_bytes) & 1))
            continue; /* acked: the message may have completed */
        payload = setup->payload(piece->msg, piece->offset_bytes);
        if (payload)
            memcpy(desc->buffer + piece->at, payload, piece->length);
        else
            setup->gather(desc->buffer + piece->at, piece->msg, piece->offset_bytes, piece->length);
    }
}

const uint8_t *datagram_bulk(const struct nic_queue_setup *setup, const struct tx_desc *desc, unsigned index,
                             const uint8_t *payload, bool copies, uint8_t *out)
{
    uint32_t length = datagram_length(desc, index) - WIRE_BULK_HEADER_BYTES;
    uint64_t at = (uint64_t)index * desc->bulk_stride;
    uint8_t *copy = out + WIRE_BULK_HEADER_BYTES;
    const uint8_t *body = payload && !copies ? payload + at : copy;
    if (!payload)
        setup->gather(copy, desc->bulk_msg, desc->bulk_offset + at, length);
    else if (copies)
        memcpy(copy, payload + at, length);
    wire_bulk_header(desc, index, desc->payload_crc ? setup->crc32c(0, body, length) : 0, setup->crc32c, out);
    return body;
}
