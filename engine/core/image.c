/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image.h"
#include "core/transmit.h"

#include <assert.h>
#include <string.h>

enum { FRAGMENT_HEADER_BYTES = WIRE_HEADER_BYTES + WIRE_FRAGMENT_BYTES };

/* ---- sending --------------------------------------------------------------------------------- */

/* Of a record over a connection, cut into more datagrams than a train takes. */
static bool too_long(const struct rail *rail, const struct chunk *chunk)
{
    return rail->flow->reliable && !rail->reliable &&
           (chunk->count - 1u) * chunk->datagram_bytes + chunk->last_bytes > CORE_TRAIN_BYTES_MAX;
}

bool image_needed(const struct rail *rail, const struct chunk *chunk)
{
    return (chunk_largest(chunk) > rail->datagram_bytes || too_long(rail, chunk)) && !chunk->placed &&
           chunk->kind != CHUNK_ABANDONED && rail->flow->features >> FRAME_FRAGMENT & 1;
}

/* Image bytes per fragment except the last: as many as surely get through. */
static uint32_t fragment_bytes(const struct rail *rail)
{
    uint32_t bytes = rail->datagram_bytes < rail->mtu.base_bytes ? rail->datagram_bytes : rail->mtu.base_bytes;
    return (bytes - FRAGMENT_HEADER_BYTES) / WIRE_FRAGMENT_UNIT * WIRE_FRAGMENT_UNIT;
}

uint32_t image_charge(const struct rail *rail, const struct chunk *chunk)
{
    uint32_t bytes = (chunk->count - 1u) * chunk->datagram_bytes + chunk->last_bytes;
    uint32_t fragments = bytes / fragment_bytes(rail) + chunk->count;
    return bytes + fragments * (FRAGMENT_HEADER_BYTES + CORE_KERNEL_BYTES);
}

void image_begin(struct flow *flow, const struct tx_desc *desc)
{
    struct image_out *out = &flow->image;
    out->desc = *desc;
    out->desc.payload_crc = false; /* each fragment has its own */
    out->left = desc->mask;
    out->offset = 0;
    out->number += CORE_TRAIN_MAX;
}

/* Whether the chunk still needs the fragments that were begun: it was neither acked nor lost again nor abandoned. */
static bool is_current(const struct flow *flow)
{
    const struct tx_desc *desc = &flow->image.desc;
    const struct chunk *chunk = sent_chunk(&flow->sent, desc->seq);
    return desc->seq >= flow->sent.cumulative && chunk->state == CHUNK_FLYING && chunk->path_seq == desc->path_seq &&
           chunk->path == desc->path && !chunk->placed && chunk->kind != CHUNK_ABANDONED;
}

/* Lays out bytes [offset, offset + length) of the image of a bulk datagram; the first fragment has its header. */
static void lay_out_bulk(struct core *core, const struct tx_desc *image, unsigned index, uint32_t offset,
                         uint32_t length, struct tx_desc *desc)
{
    uint32_t header = offset ? 0 : WIRE_BULK_HEADER_BYTES;
    assert(length >= header);
    if (header)
        wire_bulk_header(image, index, 0, core->crc32c, desc->buffer + FRAGMENT_HEADER_BYTES);
    core->pieces[0] = (struct tx_piece){
        .msg = image->bulk_msg,
        .offset_bytes =
            image->bulk_offset + (uint64_t)index * image->bulk_stride + offset + header - WIRE_BULK_HEADER_BYTES,
        .length = length - header,
        .at = FRAGMENT_HEADER_BYTES + header,
    };
    desc->pieces = core->pieces;
    desc->piece_count = length > header;
}

bool image_next(struct flow *flow, uint8_t *buffer, struct tx_desc *desc)
{
    struct image_out *out = &flow->image;
    struct core *core = flow->core;
    if (!is_current(flow))
        out->left = 0;
    if (out->left == 0)
        return false;
    const struct tx_desc *image = &out->desc;
    unsigned index = (unsigned)__builtin_ctzll(out->left);
    uint32_t total = index + 1u == image->count ? image->last_bytes : image->datagram_bytes;
    const struct rail *rail = &flow->rails[image->rail];
    uint32_t length = total - out->offset;
    if (length > fragment_bytes(rail))
        length = fragment_bytes(rail);
    *desc = (struct tx_desc){
        .kind = TX_FRAMES,
        .count = 1,
        .fragment = true,
        .due = TX_DUE_FRAGMENT,
        .path = image->path,
        .port = image->port,
        .rail = image->rail,
        .destination = rail->destination,
        .mask = 1,
        .datagram_bytes = FRAGMENT_HEADER_BYTES + length,
        .last_bytes = FRAGMENT_HEADER_BYTES + length,
        .token = image->token,
        .path_seq = flow->ack.number, /* as of all packets without a sequence number */
        .time_stamp = image->time_stamp,
        .payload_crc = core->params->payload_crc,
        .buffer = buffer,
        .flow = flow,
    };
    wire_put_fragment(buffer + WIRE_HEADER_BYTES,
                      &(struct wire_fragment){
                          .number = out->number + index, .offset = out->offset, .length = length, .total = total});
    wire_set_header_length(buffer, FRAGMENT_HEADER_BYTES);
    if (image->kind == TX_BULK) {
        lay_out_bulk(core, image, index, out->offset, length, desc);
    } else {
        uint8_t *datagram = image->buffer + (size_t)index * image->datagram_bytes;
        wire_seal(image, index, datagram, total, core->crc32c);
        memcpy(buffer + FRAGMENT_HEADER_BYTES, datagram + out->offset, length);
    }
    out->left_before = out->left;
    out->offset_before = out->offset;
    out->offset += length;
    if (out->offset == total) {
        COUNT(core->counters, tx_images, 1);
        out->left &= out->left - 1;
        out->offset = 0;
    }
    return true;
}

const struct tx_desc *image_undo(struct flow *flow)
{
    struct image_out *out = &flow->image;
    if (out->offset == 0)
        COUNT(flow->core->counters, tx_images, -(uint64_t)1);
    out->left = out->left_before;
    out->offset = out->offset_before;
    if (out->left != out->desc.mask || out->offset > 0)
        return NULL;
    out->left = 0;
    return &out->desc;
}

/* ---- receiving ------------------------------------------------------------------------------- */

void images_init(struct images *images, uint8_t *memory)
{
    for (unsigned i = 0; i < IMAGES_MAX; i++)
        images->all[i].bytes = memory + (size_t)i * IMAGE_BYTES;
}

static bool is_free(const struct image *image, uint64_t now_ns)
{
    return image->token == 0 || now_ns - image->begun_ns > IMAGE_LIFETIME_NS;
}

static void begin_image(struct image *image, uint64_t token, const struct wire_fragment *fragment, uint64_t now_ns)
{
    *image = (struct image){
        .token = token,
        .begun_ns = now_ns,
        .number = fragment->number,
        .total = fragment->total,
        .units_left = (fragment->total + WIRE_FRAGMENT_UNIT - 1) / WIRE_FRAGMENT_UNIT,
        .bytes = image->bytes,
    };
}

/*
 * The image of the fragment; NULL: the fragment contradicts it. A new image takes a free buffer, or else that of the
 * oldest image: of all, or of the flow's own if the flow has its share.
 */
static struct image *image_of(struct images *images, uint64_t token, const struct wire_fragment *fragment,
                              uint64_t now_ns)
{
    struct image *oldest = NULL, *own = NULL;
    unsigned owned = 0;
    for (struct image *image = images->all; image < images->all + IMAGES_MAX; image++) {
        bool is_own = image->token == token && !is_free(image, now_ns);
        if (is_own && image->number == fragment->number)
            return image->total == fragment->total ? image : NULL;
        owned += is_own;
        if (is_own && (!own || image->begun_ns < own->begun_ns))
            own = image;
        if (!oldest || (!is_free(oldest, now_ns) && (is_free(image, now_ns) || image->begun_ns < oldest->begun_ns)))
            oldest = image;
    }
    struct image *taken = owned < IMAGES_OF_FLOW_MAX ? oldest : own;
    begin_image(taken, token, fragment, now_ns);
    return taken;
}

static void mark_units(struct image *image, const struct wire_fragment *fragment)
{
    uint32_t end = (fragment->offset + fragment->length + WIRE_FRAGMENT_UNIT - 1) / WIRE_FRAGMENT_UNIT;
    for (uint32_t unit = fragment->offset / WIRE_FRAGMENT_UNIT; unit < end; unit++) {
        uint64_t bit = UINT64_C(1) << unit % 64;
        image->units_left -= !(image->units[unit / 64] & bit);
        image->units[unit / 64] |= bit;
    }
}

/* The image is whole: checks the datagram. */
static enum image_step open_image(struct flow *flow, const struct image *image, struct wire_packet *whole)
{
    struct core *core = flow->core;
    if (wire_token(image->bytes, image->total) != flow->rx_token ||
        !wire_open(image->bytes, image->total, core->crc32c, whole) ||
        (whole->flags & (WIRE_SEQUENCED | WIRE_ON_PATH)) != WIRE_SEQUENCED)
        return IMAGE_REFUSED;
    COUNT(core->counters, rx_images, 1);
    if (wire_payload_intact(whole, core->crc32c))
        return IMAGE_WHOLE;
    COUNT(core->counters, rx_payload_crc, 1);
    return IMAGE_PARTIAL;
}

enum image_step image_add(struct flow *flow, const struct wire_fragment *fragment, uint64_t now_ns,
                          struct wire_packet *whole)
{
    struct image *image = image_of(&flow->core->images, flow->rx_token, fragment, now_ns);
    if (!image)
        return IMAGE_REFUSED;
    memcpy(image->bytes + fragment->offset, fragment->payload, fragment->length);
    mark_units(image, fragment);
    if (image->units_left)
        return IMAGE_PARTIAL;
    image->token = 0;
    return open_image(flow, image, whole);
}
