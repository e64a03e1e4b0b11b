/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembles the chunks of a UDP queue into sends.
 *
 * Consecutive datagrams of a chunk leave in one sendmsg(), and the kernel cuts them apart (UDP_SEGMENT). Small
 * datagrams are assembled, header and payload back to back, in one buffer that stays in the L2 cache. Large ones are
 * sent from the payload where it lies, since a copy costs more than another vector entry. A chunk that was cut for a
 * larger path MTU than the route has now leaves datagram by datagram, and the kernel fragments them (path MTU
 * discovery "want").
 *
 * Thread: the queue's owner.
 */
#include "nic/udp/udp.h"

#include "core/wire.h"
#include "nic/datagram.h"

#include <assert.h>
#include <string.h>

/* Appends bytes to the newest send. Bytes that follow the last ones in memory extend their entry. */
static void append_bytes(struct udp_batch *batch, struct udp_send *send, const void *bytes, size_t length)
{
    send->bytes += (uint32_t)length;
    if (send->iovec_count > 0) {
        struct iovec *last = &batch->iovecs[batch->iovec_count - 1];

        if ((const uint8_t *)last->iov_base + last->iov_len == bytes) {
            last->iov_len += length;
            return;
        }
    }
    assert(batch->iovec_count < UDP_IOVEC_MAX);
    batch->iovecs[batch->iovec_count++] = (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    send->iovec_count++;
}

static uint8_t *take_bytes(struct udp_batch *batch, uint32_t length)
{
    uint8_t *bytes = batch->buffer + batch->bytes_used;

    assert(batch->bytes_used + length <= UDP_BATCH_BYTES);
    batch->bytes_used += length;
    return bytes;
}

/* The pieces of memory that have the payload of a datagram. 0: they are many, or it has to be gathered. */
static unsigned find_pieces(const struct udp_queue *queue, const struct tx_desc *desc, unsigned index, uint32_t length,
                            struct iovec pieces[UDP_PIECES_MAX])
{
    uint64_t at = desc->bulk_offset + (uint64_t)index * desc->bulk_stride, end = at + length;
    unsigned count = 0, most = length / UDP_PIECE_MIN < UDP_PIECES_MAX ? length / UDP_PIECE_MIN : UDP_PIECES_MAX;

    if (!queue->setup.piece)
        return 0;
    for (size_t bytes; at < end; at += bytes) {
        const void *piece = queue->setup.piece(desc->bulk_msg, at, &bytes);

        if (!piece || count == most)
            return 0;
        if (bytes > end - at)
            bytes = end - at;
        pieces[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)piece, .iov_len = bytes};
    }
    return count;
}

/* Appends a datagram whose payload is sent from several places. False: it has to be gathered. */
static bool append_pieces(struct udp_queue *queue, struct udp_send *send, const struct tx_desc *desc, unsigned index,
                          uint32_t length)
{
    struct iovec pieces[UDP_PIECES_MAX];
    unsigned count = find_pieces(queue, desc, index, length, pieces), behind = desc->count - 1u - index;
    uint32_t crc = 0;

    if (count == 0 || queue->batch.iovec_count + 1 + count + 2 * behind > UDP_IOVEC_MAX)
        return false;
    for (unsigned i = 0; desc->payload_crc && i < count; i++)
        crc = queue->setup.crc32c(crc, pieces[i].iov_base, pieces[i].iov_len);
    uint8_t *header = take_bytes(&queue->batch, WIRE_BULK_HEADER_BYTES);
    wire_bulk_header(desc, index, crc, queue->setup.crc32c, header);
    append_bytes(&queue->batch, send, header, WIRE_BULK_HEADER_BYTES);
    for (unsigned i = 0; i < count; i++)
        append_bytes(&queue->batch, send, pieces[i].iov_base, pieces[i].iov_len);
    return true;
}

/* Appends one datagram of a TX_BULK descriptor. `payload`: that of the chunk's datagram 0, or NULL: gather it. */
static void append_bulk(struct udp_queue *queue, struct udp_send *send, const struct tx_desc *desc, unsigned index,
                        const uint8_t *payload)
{
    uint32_t length = datagram_length(desc, index) - WIRE_BULK_HEADER_BYTES;
    if (!payload && desc->datagram_bytes >= UDP_IN_PLACE_MIN && append_pieces(queue, send, desc, index, length))
        return;
    bool copies = !payload || desc->datagram_bytes < UDP_IN_PLACE_MIN;
    uint8_t *header = take_bytes(&queue->batch, WIRE_BULK_HEADER_BYTES + (copies ? length : 0));
    const uint8_t *body = datagram_bulk(&queue->setup, desc, index, payload, copies, header);

    append_bytes(&queue->batch, send, header, WIRE_BULK_HEADER_BYTES);
    append_bytes(&queue->batch, send, body, length);
}

static struct udp_send *new_send(struct udp_queue *queue, const struct tx_desc *desc)
{
    struct udp_batch *batch = &queue->batch;
    struct udp_send *send = &batch->sends[batch->count];

    assert(batch->count < UDP_BATCH_MAX);
    batch->count++;
    *send = (struct udp_send){
        .to = queue->peers[desc->destination].address,
        .source = queue->peers[desc->destination].source,
        .destination = desc->destination,
        .desc = batch->desc,
        .segment = desc->datagram_bytes,
        .socket = (uint16_t)(desc->port % queue->socket_count),
        .iovec = (uint16_t)batch->iovec_count,
    };
    if (!desc->sequenced && desc->opens) {
        *nic_address_port(&send->to) = queue->peers[desc->destination].ports[desc->path % NIC_PORTS_TOLD_MAX];
        send->socket = UDP_MAIN_SOCKET;
    }
    return send;
}

/* Appends the datagrams of `mask`: one send per run of consecutive ones, or without GSO one per datagram. */
static void append_datagrams(struct udp_queue *queue, const struct tx_desc *desc, uint64_t mask, bool gso,
                             const uint8_t *payload)
{
    struct udp_send *send = NULL;

    for (unsigned i = 0; i < desc->count; i++) {
        if (!(mask >> i & 1)) {
            send = NULL;
            continue;
        }
        if (!send || !gso)
            send = new_send(queue, desc);
        send->datagrams++;
        if (desc->kind == TX_BULK) {
            append_bulk(queue, send, desc, i, payload);
        } else {
            uint8_t *datagram = desc->buffer + (size_t)i * desc->datagram_bytes;

            wire_seal(desc, i, datagram, datagram_length(desc, i), queue->setup.crc32c);
            append_bytes(&queue->batch, send, datagram, datagram_length(desc, i));
        }
    }
}

/* Whether `datagrams` more, of `bytes` in all, fit however they are split. */
static bool batch_has_room(const struct udp_batch *batch, uint32_t datagrams, uint32_t bytes)
{
    return batch->count + datagrams <= UDP_BATCH_MAX && batch->iovec_count + 2 * datagrams <= UDP_IOVEC_MAX &&
           batch->bytes_used + bytes <= UDP_BATCH_BYTES;
}

/* Takes the newest descriptor back if the kernel took nothing of it. True: taken back. */
static bool take_newest_back(struct udp_batch *batch, uint32_t sends)
{
    uint32_t left = 0;

    while (left < batch->count && batch->sends[batch->count - 1 - left].desc == batch->desc)
        left++;
    if (left < sends)
        return false;
    batch->count -= sends;
    batch->iovec_count = batch->sends[batch->count].iovec;
    if (batch->count == 0)
        batch->bytes_used = 0;
    return true;
}

bool udp_send(struct nic_queue *base, const struct tx_desc *desc)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_batch *batch = &queue->batch;
    struct udp_peer *peer = &queue->peers[desc->destination];
    uint64_t mask = desc->mask & (UINT64_MAX >> (CORE_TRAIN_MAX - desc->count));
    uint32_t datagrams = (uint32_t)__builtin_popcountll(mask);
    uint32_t bytes = datagrams * desc->datagram_bytes, before;
    const uint8_t *payload = NULL;

    assert(desc->destination < queue->peer_count && peer->used);
    assert(desc->count >= 1 && desc->count <= CORE_TRAIN_MAX);
    assert((uint64_t)(desc->count - 1u) * desc->datagram_bytes + desc->last_bytes <= CORE_TRAIN_BYTES_MAX);
    if (mask == 0)
        return true;
    if (mask >> (desc->count - 1) & 1)
        bytes -= desc->datagram_bytes - desc->last_bytes;
    if (--peer->descs_to_check == 0 || desc->whole)
        udp_check_mtu(queue, desc->destination);
    if (desc->whole && desc->last_bytes > peer->datagram_bytes)
        return true; /* lost: the kernel would cut it */
    if (desc->kind == TX_FRAMES)
        datagram_gather(&queue->setup, desc, mask); /* also when there is no room: a retransmission has no pieces */
    if (udp_is_full(queue))
        return false;
    if (!batch_has_room(batch, datagrams, bytes)) {
        queue->driver->transmit(queue);
        if (!batch_has_room(batch, datagrams, bytes))
            return false;
    }
    batch->desc++;
    before = batch->count;
    if (desc->kind == TX_BULK)
        payload = queue->setup.payload(desc->bulk_msg, desc->bulk_offset);
    append_datagrams(queue, desc, mask, peer->gso && desc->datagram_bytes <= peer->datagram_bytes, payload);
    if (batch->count < UDP_BATCH_SENDS && bytes <= UDP_BATCH_BIG)
        return true;
    before = batch->count - before;
    return queue->driver->transmit(queue) || !take_newest_back(batch, before);
}

unsigned udp_flush(struct nic_queue *base)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_batch *batch = &queue->batch;
    unsigned lost;

    if (batch->count > 0 && !queue->driver->transmit(queue)) {
        for (uint32_t i = 0; i < batch->count; i++)
            if (batch->sends[i].desc != batch->last_lost) {
                batch->last_lost = batch->sends[i].desc;
                batch->descs_lost++;
            }
        batch->count = batch->iovec_count = batch->bytes_used = 0;
    }
    lost = batch->descs_lost;
    batch->descs_lost = 0;
    return lost;
}
