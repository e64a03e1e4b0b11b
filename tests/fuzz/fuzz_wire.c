/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of datagrams: the input as it is, and again with version, header length and
 * checksum made good, so that the frames are reached. Frames that are accepted must lie within the
 * datagram, keep the promises of wire.h, and say the same once written and read again.
 */
#include "core/crc32c.h"
#include "core/wire.h"
#include "require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { AT_HEADER_LENGTH = 2, AT_CRC = 4, AT_TOKEN = 8 };

static void make_good(uint8_t *datagram, size_t length)
{
    uint16_t header_length;
    uint32_t seed, crc;
    datagram[0] = WIRE_VERSION;
    memcpy(&header_length, datagram + AT_HEADER_LENGTH, 2);
    if (header_length > length || header_length < WIRE_HEADER_BYTES) {
        header_length = (uint16_t)(length < UINT16_MAX ? length : UINT16_MAX);
        memcpy(datagram + AT_HEADER_LENGTH, &header_length, 2);
    }
    memcpy(&seed, datagram, 4);
    crc = crc32c_portable(seed, datagram + AT_TOKEN, header_length - AT_TOKEN);
    memcpy(datagram + AT_CRC, &crc, 4);
}

/* Writes a frame again; 0 where there is no writer for it. */
static unsigned put_frame(uint8_t *at, const struct wire_frame *frame)
{
    switch (frame->kind) {
    case FRAME_EAGER:
        return wire_put_eager(at, &frame->eager);
    case FRAME_CTS:
        return wire_put_cts(at, &frame->cts);
    case FRAME_RTS:
        return wire_put_rts(at, &frame->rts);
    case FRAME_CREDIT:
        return wire_put_credit(at, &frame->credit);
    case FRAME_ABORT:
        return wire_put_abort(at, &frame->abort);
    case FRAME_FIN:
        return wire_put_fin(at, &frame->fin);
    case FRAME_FLOW:
        return wire_put_flow(at, &frame->flow);
    case FRAME_ACK:
        return wire_put_ack(at, &frame->ack);
    case FRAME_DEMAND:
        return wire_put_demand(at, &frame->demand);
    case FRAME_QP:
        return wire_put_qp(at, &frame->qp);
    case FRAME_GRANT:
        return wire_put_grant(at, &frame->grant);
    case FRAME_GONE:
        return wire_put_gone(at, &frame->gone);
    case FRAME_PROBE:
        return frame->probe.length ? 0 : wire_put_probe(at, &frame->probe);
    case FRAME_FRAGMENT:
        return wire_put_fragment(at, &frame->fragment);
    default:
        return 0;
    }
}

static void check_payload(const uint8_t *payload, uint32_t length, const uint8_t *begin, size_t size)
{
    require(payload >= begin && length <= size && (size_t)(payload - begin) <= size - length);
    for (uint32_t i = 0; i < length; i++)
        *(volatile const uint8_t *)(payload + i);
}

static void check_frame(const struct wire_frame *frame, const uint8_t *begin, size_t size)
{
    if (frame->kind == FRAME_DATA) {
        const struct wire_data *data = &frame->data;
        check_payload(data->payload, data->length, begin, size);
        require(data->offset <= data->total && data->length <= data->total - data->offset);
    } else if (frame->kind == FRAME_EAGER) {
        const struct wire_eager *eager = &frame->eager;
        check_payload(eager->payload, eager->length, begin, size);
        require(eager->offset <= eager->total && eager->length <= eager->total - eager->offset);
    } else if (frame->kind == FRAME_FRAGMENT) {
        const struct wire_fragment *fragment = &frame->fragment;
        check_payload(fragment->payload, fragment->length, begin, size);
        require(fragment->offset <= fragment->total && fragment->length <= fragment->total - fragment->offset);
    } else if (frame->kind == FRAME_ABORT) {
        require(frame->abort.status < 0);
    } else if (frame->kind == FRAME_ACK) {
        require(wire_ack_bytes(&frame->ack) && wire_ack_bytes(&frame->ack) <= WIRE_ACK_BYTES_MAX);
    }

    uint8_t first[WIRE_ACK_BYTES_MAX], second[WIRE_ACK_BYTES_MAX];
    unsigned bytes = put_frame(first, frame);
    if (bytes == 0)
        return;
    const uint8_t *payload = begin;
    uint32_t payload_bytes = 0;
    if (frame->kind == FRAME_EAGER)
        payload = frame->eager.payload, payload_bytes = frame->eager.length;
    else if (frame->kind == FRAME_FRAGMENT)
        payload = frame->fragment.payload, payload_bytes = frame->fragment.length;
    struct wire_packet packet = {
        .frame = first, .frames_end = first + bytes, .payload = payload, .payload_end = payload + payload_bytes};
    const struct wire_frame *again = wire_next_frame(&packet);
    require(again && again->kind == frame->kind);
    require(put_frame(second, again) == bytes && memcmp(first, second, bytes) == 0);
    require(!wire_next_frame(&packet) && packet.frame == packet.frames_end);
}

static void parse(const uint8_t *datagram, size_t length)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    wire_token(datagram, length);
    if (!wire_parse(datagram, length, crc32c_portable, &packet))
        return;
    require(packet.count >= 1 && packet.count <= CORE_TRAIN_MAX && packet.index < packet.count);
    wire_payload_intact(&packet, crc32c_portable);
    unsigned frames = 0;
    while ((frame = wire_next_frame(&packet))) {
        require(++frames <= CORE_FRAMES_MAX);
        check_frame(frame, datagram, length);
    }
    require(packet.frame == packet.frames_end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *datagram = calloc(1, size ? size : 1); /* exact: reading beyond it is seen */
    if (!datagram)
        return 0;
    if (size)
        memcpy(datagram, data, size);
    parse(datagram, size);
    if (size >= WIRE_HEADER_BYTES) {
        make_good(datagram, size);
        parse(datagram, size);
    }
    free(datagram);
    return 0;
}
