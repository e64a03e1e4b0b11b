/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer bytes in, our bytes out; nothing here knows a flow. docs/wire.md has the field offsets. The parser checks every
 * length that a peer wrote before it uses the length, and reads no byte twice.
 */
#include "core/wire.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

/* Offsets in the packet header. */
enum {
    AT_VERSION = 0,
    AT_FLAGS = 1,
    AT_HEADER_LENGTH = 2,
    AT_CRC = 4,
    AT_TOKEN = 8,
    AT_SEQ = 16,
    AT_PATH_SEQ = 20,
    AT_PATH = 24,
    AT_INDEX = 26,
    AT_COUNT = 27,
    AT_TIME = 28,
    AT_PAYLOAD_CRC = 32,
};

/* Flags of frames. */
enum {
    EAGER_GRANTED = 1,
    CTS_ENTRY = 1,
    CTS_WATCHED = 2,
    ABORT_OF_SEND = 1,
    FIN_SENDS = 1,
    FIN_RECEIVES = 2,
    ACK_PATH_CE = 1,
    ACK_PATH_ON_PATH = 2,
    ACK_PATH_BY_SEQUENCE = 4,
    PROBE_FLAG_ECHO = 1,
};
enum { ACK_FIXED_BYTES = 20, ACK_WORD_BYTES = 8, ACK_PARTIAL_BYTES = 12, ACK_PATH_BYTES = 16 };

static inline void put16(uint8_t *at, uint16_t v)
{
    v = htole16(v);
    memcpy(at, &v, 2);
}
static inline void put32(uint8_t *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, 4);
}
static inline void put64(uint8_t *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, 8);
}
static inline uint16_t get16(const uint8_t *at)
{
    uint16_t v;
    memcpy(&v, at, 2);
    return le16toh(v);
}
static inline uint32_t get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, 4);
    return le32toh(v);
}
static inline uint64_t get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, 8);
    return le64toh(v);
}

/* The header region's CRC32C: over the bytes behind the CRC field, started with the word before that field. */
static uint32_t header_crc(const uint8_t *bytes, size_t length, crc32c_fn crc32c)
{
    return crc32c(get32(bytes), bytes + AT_TOKEN, length - AT_TOKEN);
}

/* ---- in -------------------------------------------------------------------------------------- */

uint64_t wire_token(const uint8_t *bytes, size_t length)
{
    if (length < WIRE_HEADER_BYTES || bytes[AT_VERSION] != WIRE_VERSION)
        return 0;
    return get64(bytes + AT_TOKEN);
}

bool wire_is_bulk(const uint8_t *bytes, size_t length)
{
    return length >= WIRE_BULK_HEADER_BYTES && get16(bytes + AT_HEADER_LENGTH) == WIRE_BULK_HEADER_BYTES &&
           bytes[WIRE_HEADER_BYTES] == FRAME_DATA;
}

bool wire_has_payload_crc(const uint8_t *bytes)
{
    return bytes[AT_FLAGS] & WIRE_PAYLOAD_CRC;
}

bool wire_follows(const uint8_t *first, unsigned ahead, const uint8_t *header, uint32_t payload_bytes)
{
    const uint8_t *frame = header + WIRE_HEADER_BYTES, *first_frame = first + WIRE_HEADER_BYTES;
    return wire_is_bulk(header, WIRE_BULK_HEADER_BYTES) && get64(header + AT_TOKEN) == get64(first + AT_TOKEN) &&
           get32(header + AT_SEQ) == get32(first + AT_SEQ) && header[AT_INDEX] == first[AT_INDEX] + ahead &&
           get16(frame + 2) == payload_bytes && get64(frame + 4) == get64(first_frame + 4) && /* conn, msg */
           get64(frame + 12) == get64(first_frame + 12) + (uint64_t)ahead * get16(first_frame + 2);
}

bool wire_payload_crc_is_right(const struct wire_packet *packet, crc32c_fn crc32c)
{
    size_t length = (size_t)(packet->payload_end - packet->payload);
    return crc32c(0, packet->payload, length) == packet->payload_crc;
}

/* Takes `length` bytes of the payload region; NULL: fewer are left. */
static const uint8_t *take_payload(struct wire_packet *packet, uint32_t length)
{
    if ((size_t)(packet->payload_end - packet->payload) < length)
        return NULL;
    const uint8_t *payload = packet->payload;
    packet->payload += length;
    return payload;
}

static bool get_data(struct wire_packet *packet, const uint8_t *at, struct wire_data *data)
{
    size_t left = (size_t)(packet->payload_end - packet->payload);
    data->stripes = at[1];
    data->length = get16(at + 2);
    /* A frame that is alone has the whole payload, which over TCP may be longer than its field tells. */
    if (left > UINT16_MAX && left <= UINT32_MAX && at == packet->frames && at + WIRE_DATA_BYTES == packet->frames_end &&
        data->length == (uint16_t)left)
        data->length = (uint32_t)left;
    data->conn = get32(at + 4);
    data->msg = get32(at + 8);
    data->offset = get64(at + 12);
    data->total = get64(at + 20);
    data->payload = take_payload(packet, data->length);
    return data->stripes <= CORE_STRIPES_MAX && data->payload && data->offset <= data->total &&
           data->length <= data->total - data->offset;
}

static bool get_eager(struct wire_packet *packet, const uint8_t *at, struct wire_eager *eager)
{
    eager->granted = at[1] & EAGER_GRANTED;
    eager->length = get16(at + 2);
    eager->conn = get32(at + 4);
    eager->msg = get32(at + 8);
    eager->total = get32(at + 12);
    eager->offset = get32(at + 16);
    eager->ring = get32(at + 20);
    eager->payload = take_payload(packet, eager->length);
    return eager->payload && eager->offset <= eager->total && eager->length <= eager->total - eager->offset;
}

/* The bytes of an ACK frame with these counts, or 0 when a count is over its bound. */
static unsigned ack_bytes(unsigned words, unsigned partials, unsigned paths)
{
    if (words > WIRE_ACK_WORDS_MAX || partials > WIRE_ACK_PARTIALS_MAX || paths > WIRE_ACK_PATHS_MAX)
        return 0;
    return ACK_FIXED_BYTES + words * ACK_WORD_BYTES + partials * ACK_PARTIAL_BYTES + paths * ACK_PATH_BYTES;
}

static void get_ack(const uint8_t *at, struct wire_ack *ack)
{
    ack->word_count = at[1];
    ack->partial_count = at[2];
    ack->path_count = at[3];
    ack->number = get32(at + 4);
    ack->cumulative = get32(at + 8);
    ack->window_kb = get32(at + 12);
    ack->next = get32(at + 16);
    at += ACK_FIXED_BYTES;
    for (unsigned i = 0; i < ack->word_count; i++, at += ACK_WORD_BYTES)
        ack->words[i] = get64(at);
    for (unsigned i = 0; i < ack->partial_count; i++, at += ACK_PARTIAL_BYTES)
        ack->partials[i] = (struct wire_ack_partial){get32(at), get64(at + 4)};
    for (unsigned i = 0; i < ack->path_count; i++, at += ACK_PATH_BYTES) {
        uint16_t flags = get16(at + 2);
        ack->paths[i] = (struct wire_ack_path){
            .path = get16(at),
            .ce = flags & ACK_PATH_CE,
            .on_path = flags & ACK_PATH_ON_PATH,
            .by_sequence = (flags & ACK_PATH_ON_PATH) && (flags & ACK_PATH_BY_SEQUENCE),
            .path_seq = get32(at + 4),
            .time_stamp = get32(at + 8),
            .ack_delay = get32(at + 12),
        };
    }
}

/* A clear-to-send, and the entry behind it, if any; 0: malformed. */
static unsigned get_cts(const uint8_t *at, size_t left, struct wire_cts *cts)
{
    if (at[2] > CORE_STRIPES_MAX)
        return 0;
    *cts = (struct wire_cts){.conn = get32(at + 4),
                             .msg = get32(at + 8),
                             .length = get64(at + 12),
                             .stripes = at[2],
                             .range_units = at[3],
                             .watched = at[1] & CTS_WATCHED};
    if (!(at[1] & CTS_ENTRY))
        return WIRE_CTS_BYTES;
    at += WIRE_CTS_BYTES;
    if (left < WIRE_CTS_BYTES + WIRE_CTS_ENTRY_BYTES)
        return 0;
    unsigned pairs = at[10], bytes = WIRE_CTS_BYTES + WIRE_CTS_ENTRY_BYTES;
    cts->address = get64(at);
    cts->slot = get16(at + 8);
    cts->placeable = (uint8_t)pairs;
    if (cts->slot >= WIRE_SLOTS_MAX || pairs == 0 || pairs >> CORE_PAIRS_MAX || at[11] != 0)
        return 0;
    at += WIRE_CTS_ENTRY_BYTES;
    for (; pairs; pairs &= pairs - 1, at += 4, bytes += 4) {
        if (left < bytes + 4)
            return 0;
        cts->keys[__builtin_ctz(pairs)] = get32(at);
    }
    return bytes;
}

static bool get_qp(const uint8_t *at, struct wire_qp *qp)
{
    *qp = (struct wire_qp){at[1], get16(at + 2), get32(at + 4), get32(at + 8), get32(at + 12)};
    return qp->what >= QP_OFFER && qp->what <= QP_DRAINED && qp->generation;
}

static bool get_probe(struct wire_packet *packet, const uint8_t *at, struct wire_probe *probe)
{
    *probe = (struct wire_probe){at[1] & PROBE_FLAG_ECHO, get16(at + 2), get64(at + 4)};
    return !(probe->echo && probe->length) && take_payload(packet, probe->length);
}

static bool get_fragment(struct wire_packet *packet, const uint8_t *at, struct wire_fragment *fragment)
{
    fragment->length = get16(at + 2);
    fragment->number = get32(at + 4);
    fragment->offset = get16(at + 8);
    fragment->total = get16(at + 10);
    fragment->payload = take_payload(packet, fragment->length);
    uint32_t end = fragment->offset + fragment->length;
    return fragment->payload && fragment->length && end <= fragment->total && fragment->total <= CORE_TRAIN_BYTES_MAX &&
           fragment->offset % WIRE_FRAGMENT_UNIT == 0 &&
           (end == fragment->total || fragment->length % WIRE_FRAGMENT_UNIT == 0);
}

/* By kind of frame: least size, and bits that its second byte may have. */
static const struct {
    uint8_t bytes, flags;
} shapes[FRAME_KINDS] = {
    [FRAME_DATA] = {WIRE_DATA_BYTES, 0xff},
    [FRAME_EAGER] = {WIRE_EAGER_BYTES, EAGER_GRANTED},
    [FRAME_CTS] = {WIRE_CTS_BYTES, CTS_ENTRY | CTS_WATCHED},
    [FRAME_RTS] = {WIRE_RTS_BYTES, 0},
    [FRAME_CREDIT] = {WIRE_CREDIT_BYTES, 0},
    [FRAME_ABORT] = {WIRE_ABORT_BYTES, ABORT_OF_SEND},
    [FRAME_FIN] = {WIRE_FIN_BYTES, FIN_SENDS | FIN_RECEIVES},
    [FRAME_ACK] = {ACK_FIXED_BYTES, 0xff},
    [FRAME_DEMAND] = {WIRE_DEMAND_BYTES, 0},
    [FRAME_GRANT] = {WIRE_GRANT_BYTES, 0},
    [FRAME_QP] = {WIRE_QP_BYTES, 0xff},
    [FRAME_GONE] = {WIRE_GONE_BYTES, 0},
    [FRAME_PROBE] = {WIRE_PROBE_BYTES, PROBE_FLAG_ECHO},
    [FRAME_FLOW] = {WIRE_FLOW_BYTES, 0xff},
    [FRAME_FRAGMENT] = {WIRE_FRAGMENT_BYTES, 0},
};

bool wire_take_frame(struct wire_packet *packet)
{
    struct wire_frame *frame = &packet->current;
    const uint8_t *at = packet->frame;
    size_t left = (size_t)(packet->frames_end - at);
    if (left < 4 || at[0] >= FRAME_KINDS)
        return false;
    unsigned bytes = shapes[at[0]].bytes;
    if (bytes == 0 || left < bytes || at[1] & ~shapes[at[0]].flags)
        return false;

    bool good = true;
    frame->kind = at[0];
    switch (frame->kind) {
    case FRAME_DATA:
        good = get_data(packet, at, &frame->data);
        break;
    case FRAME_EAGER:
        good = get_eager(packet, at, &frame->eager);
        break;
    case FRAME_CTS:
        bytes = get_cts(at, left, &frame->cts);
        good = bytes != 0;
        break;
    case FRAME_RTS:
        frame->rts = (struct wire_rts){get32(at + 4), get32(at + 8), get64(at + 12)};
        break;
    case FRAME_CREDIT:
        frame->credit = (struct wire_credit){get32(at + 4), get32(at + 8), get32(at + 12), get64(at + 16)};
        break;
    case FRAME_ABORT:
        good = get16(at + 2) != 0;
        frame->abort =
            (struct wire_abort){get32(at + 4), get32(at + 8), -(int32_t)get16(at + 2), at[1] & ABORT_OF_SEND};
        break;
    case FRAME_FIN:
        frame->fin = (struct wire_fin){get32(at + 4), at[1] & FIN_SENDS, at[1] & FIN_RECEIVES};
        break;
    case FRAME_ACK:
        bytes = ack_bytes(at[1], at[2], at[3]);
        good = bytes && left >= bytes;
        if (good)
            get_ack(at, &frame->ack);
        break;
    case FRAME_QP:
        good = get_qp(at, &frame->qp);
        break;
    case FRAME_DEMAND:
        frame->demand.target = get32(at + 4);
        break;
    case FRAME_GRANT:
        frame->grant = (struct wire_grant){get32(at + 4), get32(at + 8)};
        break;
    case FRAME_GONE:
        frame->gone.id = get32(at + 4);
        break;
    case FRAME_PROBE:
        good = get_probe(packet, at, &frame->probe);
        break;
    case FRAME_FLOW:
        frame->flow.what = at[1];
        good = at[1] == FLOW_CLOSED;
        break;
    case FRAME_FRAGMENT:
        good = get_fragment(packet, at, &frame->fragment);
        break;
    default:
        good = false;
    }
    if (good)
        packet->frame = at + bytes;
    return good;
}

bool wire_open(const uint8_t *bytes, size_t length, crc32c_fn crc32c, struct wire_packet *packet)
{
    if (length < WIRE_HEADER_BYTES || bytes[AT_VERSION] != WIRE_VERSION)
        return false;
    uint8_t flags = bytes[AT_FLAGS];
    uint16_t header_length = get16(bytes + AT_HEADER_LENGTH);
    if (flags & ~(WIRE_SEQUENCED | WIRE_PAYLOAD_CRC | WIRE_RETRANSMISSION | WIRE_ON_PATH))
        return false;
    if (header_length < WIRE_HEADER_BYTES || header_length > length)
        return false;
    if (header_crc(bytes, header_length, crc32c) != get32(bytes + AT_CRC))
        return false;

    packet->token = get64(bytes + AT_TOKEN);
    packet->seq = get32(bytes + AT_SEQ);
    packet->path_seq = get32(bytes + AT_PATH_SEQ);
    packet->path = get16(bytes + AT_PATH);
    packet->index = bytes[AT_INDEX];
    packet->count = bytes[AT_COUNT];
    packet->time_stamp = get32(bytes + AT_TIME);
    packet->payload_crc = get32(bytes + AT_PAYLOAD_CRC);
    packet->flags = flags;
    packet->single = false;
    packet->frames = packet->frame = bytes + WIRE_HEADER_BYTES;
    packet->frames_end = packet->payloads = packet->payload = bytes + header_length;
    packet->payload_end = bytes + length;
    return packet->count && packet->count <= CORE_TRAIN_MAX && packet->index < packet->count;
}

bool wire_parse(const uint8_t *bytes, size_t length, crc32c_fn crc32c, struct wire_packet *packet)
{
    if (!wire_open(bytes, length, crc32c, packet))
        return false;
    unsigned frames = 0;
    for (; !wire_at_end(packet); frames++) {
        if (frames == CORE_FRAMES_MAX || !wire_take_frame(packet))
            return false;
    }
    wire_rewind(packet, frames);
    return true;
}

void wire_move_payload(struct wire_packet *packet, const uint8_t *payload)
{
    packet->payload_end = payload + (packet->payload_end - packet->payload);
    packet->payloads = packet->payload = payload;
}

const struct wire_frame *wire_next_frame(struct wire_packet *packet)
{
    if (wire_at_end(packet))
        return NULL;
    if (packet->single)
        packet->frame = packet->frames_end;
    else if (!wire_take_frame(packet))
        return NULL;
    return &packet->current;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* The first 4 bytes of every frame. */
static void put_start(uint8_t *at, enum wire_frame_kind kind, unsigned flags, unsigned low)
{
    at[0] = (uint8_t)kind;
    at[1] = (uint8_t)flags;
    put16(at + 2, (uint16_t)low);
}

unsigned wire_put_data(uint8_t *at, const struct wire_data *data)
{
    put_start(at, FRAME_DATA, data->stripes, data->length);
    put32(at + 4, data->conn);
    put32(at + 8, data->msg);
    put64(at + 12, data->offset);
    put64(at + 20, data->total);
    return WIRE_DATA_BYTES;
}

unsigned wire_put_eager(uint8_t *at, const struct wire_eager *eager)
{
    put_start(at, FRAME_EAGER, eager->granted ? EAGER_GRANTED : 0, eager->length);
    put32(at + 4, eager->conn);
    put32(at + 8, eager->msg);
    put32(at + 12, eager->total);
    put32(at + 16, eager->offset);
    put32(at + 20, eager->ring);
    return WIRE_EAGER_BYTES;
}

unsigned wire_put_cts(uint8_t *at, const struct wire_cts *cts)
{
    put_start(at, FRAME_CTS, (cts->placeable ? CTS_ENTRY : 0) | (cts->watched ? CTS_WATCHED : 0),
              (uint16_t)(cts->stripes | cts->range_units << 8));
    put32(at + 4, cts->conn);
    put32(at + 8, cts->msg);
    put64(at + 12, cts->length);
    if (!cts->placeable)
        return WIRE_CTS_BYTES;
    assert(cts->slot < WIRE_SLOTS_MAX && cts->placeable >> CORE_PAIRS_MAX == 0);
    const uint8_t *begin = at;
    at += WIRE_CTS_BYTES;
    put64(at, cts->address);
    put16(at + 8, cts->slot);
    put16(at + 10, cts->placeable);
    at += WIRE_CTS_ENTRY_BYTES;
    for (unsigned pairs = cts->placeable; pairs; pairs &= pairs - 1, at += 4)
        put32(at, cts->keys[__builtin_ctz(pairs)]);
    return (unsigned)(at - begin);
}

unsigned wire_put_rts(uint8_t *at, const struct wire_rts *rts)
{
    put_start(at, FRAME_RTS, 0, 0);
    put32(at + 4, rts->conn);
    put32(at + 8, rts->msg);
    put64(at + 12, rts->total);
    return WIRE_RTS_BYTES;
}

unsigned wire_put_credit(uint8_t *at, const struct wire_credit *credit)
{
    put_start(at, FRAME_CREDIT, 0, 0);
    put32(at + 4, credit->conn);
    put32(at + 8, credit->delivered);
    put32(at + 12, credit->eager_total);
    put64(at + 16, credit->beyond);
    return WIRE_CREDIT_BYTES;
}

unsigned wire_put_abort(uint8_t *at, const struct wire_abort *end)
{
    assert(end->status < 0 && end->status > -65536);
    put_start(at, FRAME_ABORT, end->of_send ? ABORT_OF_SEND : 0, (unsigned)-end->status);
    put32(at + 4, end->conn);
    put32(at + 8, end->msg);
    return WIRE_ABORT_BYTES;
}

unsigned wire_put_fin(uint8_t *at, const struct wire_fin *fin)
{
    put_start(at, FRAME_FIN, (fin->sends_over ? FIN_SENDS : 0) | (fin->receives_over ? FIN_RECEIVES : 0), 0);
    put32(at + 4, fin->conn);
    return WIRE_FIN_BYTES;
}

unsigned wire_put_flow(uint8_t *at, const struct wire_flow *flow)
{
    put_start(at, FRAME_FLOW, flow->what, 0);
    return WIRE_FLOW_BYTES;
}

unsigned wire_put_qp(uint8_t *at, const struct wire_qp *qp)
{
    put_start(at, FRAME_QP, qp->what, qp->path);
    put32(at + 4, qp->generation);
    put32(at + 8, qp->number);
    put32(at + 12, qp->psn);
    return WIRE_QP_BYTES;
}

unsigned wire_put_gone(uint8_t *at, const struct wire_gone *gone)
{
    put_start(at, FRAME_GONE, 0, 0);
    put32(at + 4, gone->id);
    return WIRE_GONE_BYTES;
}

unsigned wire_put_probe(uint8_t *at, const struct wire_probe *probe)
{
    put_start(at, FRAME_PROBE, probe->echo ? PROBE_FLAG_ECHO : 0, probe->length);
    put64(at + 4, probe->nonce);
    return WIRE_PROBE_BYTES;
}

unsigned wire_put_fragment(uint8_t *at, const struct wire_fragment *fragment)
{
    put_start(at, FRAME_FRAGMENT, 0, fragment->length);
    put32(at + 4, fragment->number);
    put16(at + 8, (uint16_t)fragment->offset);
    put16(at + 10, (uint16_t)fragment->total);
    return WIRE_FRAGMENT_BYTES;
}

unsigned wire_put_demand(uint8_t *at, const struct wire_demand *demand)
{
    put_start(at, FRAME_DEMAND, 0, 0);
    put32(at + 4, demand->target);
    return WIRE_DEMAND_BYTES;
}

unsigned wire_put_grant(uint8_t *at, const struct wire_grant *grant)
{
    put_start(at, FRAME_GRANT, 0, 0);
    put32(at + 4, grant->granted);
    put32(at + 8, grant->heard);
    return WIRE_GRANT_BYTES;
}

unsigned wire_ack_bytes(const struct wire_ack *ack)
{
    return ack_bytes(ack->word_count, ack->partial_count, ack->path_count);
}

unsigned wire_put_ack(uint8_t *at, const struct wire_ack *ack)
{
    uint8_t *begin = at;
    at[0] = FRAME_ACK;
    at[1] = ack->word_count;
    at[2] = ack->partial_count;
    at[3] = ack->path_count;
    put32(at + 4, ack->number);
    put32(at + 8, ack->cumulative);
    put32(at + 12, ack->window_kb);
    put32(at + 16, ack->next);
    at += ACK_FIXED_BYTES;
    for (unsigned i = 0; i < ack->word_count; i++, at += ACK_WORD_BYTES)
        put64(at, ack->words[i]);
    for (unsigned i = 0; i < ack->partial_count; i++, at += ACK_PARTIAL_BYTES) {
        put32(at, ack->partials[i].seq);
        put64(at + 4, ack->partials[i].mask);
    }
    for (unsigned i = 0; i < ack->path_count; i++, at += ACK_PATH_BYTES) {
        const struct wire_ack_path *path = &ack->paths[i];
        put16(at, path->path);
        put16(at + 2, (uint16_t)((path->ce ? ACK_PATH_CE : 0) | (path->on_path ? ACK_PATH_ON_PATH : 0) |
                                 (path->by_sequence ? ACK_PATH_BY_SEQUENCE : 0)));
        put32(at + 4, path->path_seq);
        put32(at + 8, path->time_stamp);
        put32(at + 12, path->ack_delay);
    }
    return (unsigned)(at - begin);
}

void wire_set_header_length(uint8_t *datagram, uint16_t length)
{
    put16(datagram + AT_HEADER_LENGTH, length);
}

/* Everything of the packet header but its length and CRC. */
static void put_header(const struct tx_desc *desc, unsigned index, uint32_t payload_crc, uint8_t *out)
{
    out[AT_VERSION] = WIRE_VERSION;
    out[AT_FLAGS] = (uint8_t)((desc->sequenced ? WIRE_SEQUENCED : 0) | (desc->payload_crc ? WIRE_PAYLOAD_CRC : 0) |
                              (desc->retransmission ? WIRE_RETRANSMISSION : 0) | (desc->on_path ? WIRE_ON_PATH : 0));
    put64(out + AT_TOKEN, desc->token);
    put32(out + AT_SEQ, (uint32_t)desc->seq);
    put32(out + AT_PATH_SEQ, desc->path_seq);
    put16(out + AT_PATH, desc->path);
    out[AT_INDEX] = (uint8_t)index;
    out[AT_COUNT] = desc->count;
    put32(out + AT_TIME, desc->time_stamp);
    put32(out + AT_PAYLOAD_CRC, payload_crc);
}

void wire_bulk_header(const struct tx_desc *desc, unsigned index, uint32_t payload_crc, crc32c_fn crc32c,
                      uint8_t out[WIRE_BULK_HEADER_BYTES])
{
    assert(desc->kind == TX_BULK && index < desc->count);
    uint8_t *frame = out + WIRE_HEADER_BYTES;
    uint32_t length = index + 1u == desc->count ? desc->bulk_last : desc->bulk_stride;

    put_header(desc, index, payload_crc, out);
    put16(out + AT_HEADER_LENGTH, WIRE_BULK_HEADER_BYTES);
    put_start(frame, FRAME_DATA, desc->stripes, length);
    put32(frame + 4, desc->conn_id);
    put32(frame + 8, desc->msg_number);
    put64(frame + 12, desc->bulk_offset + (uint64_t)index * desc->bulk_stride);
    put64(frame + 20, desc->msg_total);
    put32(out + AT_CRC, header_crc(out, WIRE_BULK_HEADER_BYTES, crc32c));
}

void wire_seal(const struct tx_desc *desc, unsigned index, uint8_t *datagram, uint32_t length, crc32c_fn crc32c)
{
    uint16_t header_length = get16(datagram + AT_HEADER_LENGTH);
    assert(desc->kind == TX_FRAMES && header_length >= WIRE_HEADER_BYTES && header_length <= length);
    uint32_t payload_crc = desc->payload_crc ? crc32c(0, datagram + header_length, length - header_length) : 0;

    put_header(desc, index, payload_crc, datagram);
    put32(datagram + AT_CRC, header_crc(datagram, header_length, crc32c));
}
