/* SPDX-License-Identifier: Apache-2.0 */
#include "lies.h"

#include "core/crc32c.h"

#include <string.h>

/* Offsets in the packet header (docs/wire.md). */
enum {
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
enum { FRAMES_MAX = 6, PAYLOAD_MAX = 600 };

static uint32_t below(struct liar *liar, uint32_t bound)
{
    return rng_below(&liar->rng, bound);
}

/* A number that should be `right`. */
static uint64_t number(struct liar *liar, uint64_t right)
{
    unsigned shift = below(liar, 64);
    switch (below(liar, 12)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return UINT64_C(1) << shift;
    case 3:
        return right + (UINT64_C(1) << shift);
    case 4:
        return right - (UINT64_C(1) << shift);
    case 5:
        return rng_next(&liar->rng);
    case 6:
    case 7:
    case 8:
        return right;
    default:
        return right + below(liar, 9) - 4;
    }
}

static uint32_t number32(struct liar *liar, uint64_t right)
{
    return (uint32_t)number(liar, right);
}

static unsigned header_length_of(const uint8_t *datagram)
{
    return datagram[AT_HEADER_LENGTH] | (unsigned)datagram[AT_HEADER_LENGTH + 1] << 8;
}

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* Makes the checksums right. */
static void seal(uint8_t *datagram, size_t length)
{
    unsigned header_length = header_length_of(datagram);
    if (header_length < WIRE_HEADER_BYTES || header_length > length)
        return;
    if (datagram[AT_FLAGS] & WIRE_PAYLOAD_CRC)
        put(datagram + AT_PAYLOAD_CRC, crc32c_portable(0, datagram + header_length, length - header_length), 4);
    uint32_t seed = (uint32_t)get(datagram, 4);
    put(datagram + AT_CRC, crc32c_portable(seed, datagram + AT_TOKEN, header_length - AT_TOKEN), 4);
}

/* ---- hearing --------------------------------------------------------------------------------- */

void liar_init(struct liar *liar, uint64_t seed)
{
    *liar = (struct liar){.rng = {seed}};
}

static struct liar_conn *conn_of(struct liar *liar, uint32_t id)
{
    for (unsigned i = 0; i < liar->conn_count; i++) {
        if (liar->conns[i].id == id)
            return &liar->conns[i];
    }
    unsigned at = liar->conn_count < LIAR_CONNS ? liar->conn_count++ : below(liar, LIAR_CONNS);
    liar->conns[at] = (struct liar_conn){.id = id};
    return &liar->conns[at];
}

/* What it has not is 0. */
static void hear_ack(struct liar *liar, const struct wire_ack *heard)
{
    struct wire_ack *ack = &liar->ack;
    *ack = (struct wire_ack){
        .number = heard->number, .cumulative = heard->cumulative, .window_kb = heard->window_kb, .next = heard->next};
    memcpy(ack->words, heard->words, heard->word_count * sizeof heard->words[0]);
    memcpy(ack->partials, heard->partials, heard->partial_count * sizeof heard->partials[0]);
    memcpy(ack->paths, heard->paths, heard->path_count * sizeof heard->paths[0]);
}

/* ---- one-sided operations, as docs/wire.md has them ---- */

enum {
    ANNEX_OF_CONTROL = 1,
    ANNEX_OF_WRITES = 2,
    ANNEX_OF_NOTES = 4,
    ENTRIES_AT = 16,
    ENTRY_BYTES = 32,
    DONE_BYTES = 12,
    REF_BYTES = 16
};
enum { KIND_DONE = 3 };

static unsigned annex_of(uint32_t conn)
{
    return conn >> CORE_ANNEX_SHIFT & ((1u << CORE_ANNEX_BITS) - 1);
}

/* A message, or its beginning, that a frame has as a whole. */
static bool is_annex_message(const struct wire_frame *frame, unsigned annex)
{
    return frame->kind == FRAME_EAGER && annex_of(frame->eager.conn) == annex && frame->eager.offset == 0 &&
           frame->eager.length >= ENTRIES_AT && (annex == ANNEX_OF_NOTES || frame->eager.length == frame->eager.total);
}

static void hear_control(struct liar *liar, const struct wire_eager *eager)
{
    const uint8_t *bytes = eager->payload;
    if (bytes[0] != KIND_DONE && eager->length >= ENTRIES_AT + ENTRY_BYTES)
        memcpy(liar->refs[liar->ref_count++ % LIAR_REFS], bytes + ENTRIES_AT, REF_BYTES);
    if (eager->length > LIAR_CONTROL_BYTES)
        return;
    memcpy(liar->control, bytes, eager->length);
    liar->control_length = eager->length;
    liar->control_conn = eager->conn;
}

/* A field of a piece, of a tail, or of an operation that is done. */
static void twist_entry(struct liar *liar, uint8_t *bytes, size_t length)
{
    static const uint8_t at[] = {0, 4, 8, 16, 24}, widths[] = {4, 4, 8, 8, 8};
    bool done = bytes[0] == KIND_DONE;
    size_t entry = done ? DONE_BYTES : ENTRY_BYTES, count = (length - ENTRIES_AT) / entry;
    if (count == 0)
        return;
    uint32_t named = (uint32_t)get(bytes + 2, 2);
    uint8_t *from = bytes + ENTRIES_AT + entry * below(liar, (uint32_t)(count < named + 1 ? count : named + 1));
    unsigned field = below(liar, done ? 2 : 5);
    if (!done && liar->ref_count && below(liar, 3) == 0) /* of another export, or one that was revoked */
        memcpy(from, liar->refs[below(liar, liar->ref_count < LIAR_REFS ? liar->ref_count : LIAR_REFS)], REF_BYTES);
    else if (!done && below(liar, 6) == 0) /* in front of the memory, if a sum overflows */
        put(from + 16, -(uint64_t)below(liar, (uint32_t)get(from + 24, 4) | 1), 8);
    else if (done)
        put(from + 8 * field, number(liar, get(from + 8 * field, field ? 4 : 8)), field ? 4 : 8);
    else
        put(from + at[field], number(liar, get(from + at[field], widths[field])), widths[field]);
}

static void twist_control(struct liar *liar, uint8_t *bytes, size_t length)
{
    switch (below(liar, 6)) {
    case 0:
        bytes[0] = (uint8_t)(below(liar, 8) ? 1 + below(liar, 3) : number(liar, bytes[0]));
        break;
    case 1:
        bytes[1] ^= (uint8_t)(1u << below(liar, 8));
        break;
    case 2:
        put(bytes + 2, number(liar, get(bytes + 2, 2)), 2);
        break;
    case 3:
        put(bytes + 8, number(liar, get(bytes + 8, 8)), 8);
        break;
    default:
        twist_entry(liar, bytes, length);
    }
}

/* Twists the last message of an annex of the datagram. False: it has none. */
static bool twist_annex(struct liar *liar, uint8_t *datagram, size_t length)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    size_t at = 0, bytes = 0;
    bool is_note = false;
    if (!wire_parse(datagram, length, crc32c_portable, &packet))
        return false;
    while ((frame = wire_next_frame(&packet))) {
        bool control = is_annex_message(frame, ANNEX_OF_CONTROL), note = is_annex_message(frame, ANNEX_OF_NOTES);
        if (!control && !note)
            continue;
        at = (size_t)(frame->eager.payload - datagram);
        bytes = frame->eager.length;
        is_note = note;
    }
    if (bytes == 0 || below(liar, 2))
        return false;
    uint8_t *field = datagram + at + (is_note ? 8 * below(liar, 2) : 0);
    if (is_note) /* whether it waits, and for which operation */
        put(field, number(liar, get(field, 8)), 8);
    for (unsigned i = is_note ? 0 : 1 + below(liar, 3); i > 0; i--)
        twist_control(liar, field, bytes);
    return true;
}

static void hear_frame(struct liar *liar, const struct wire_frame *frame)
{
    struct liar_conn *conn;
    switch (frame->kind) {
    case FRAME_DATA:
        conn = conn_of(liar, frame->data.conn);
        conn->sent = frame->data.msg;
        conn->total = frame->data.total;
        break;
    case FRAME_EAGER:
        conn = conn_of(liar, frame->eager.conn);
        conn->sent = frame->eager.msg;
        conn->total = frame->eager.total;
        conn->ring = frame->eager.ring;
        if (is_annex_message(frame, ANNEX_OF_CONTROL))
            hear_control(liar, &frame->eager);
        break;
    case FRAME_RTS:
        conn = conn_of(liar, frame->rts.conn);
        conn->sent = frame->rts.msg;
        conn->total = frame->rts.total;
        break;
    case FRAME_CTS:
        conn_of(liar, frame->cts.conn)->received = frame->cts.msg;
        liar->slot = frame->cts.slot;
        if (frame->cts.placeable)
            memcpy(liar->keys, frame->cts.keys, sizeof liar->keys);
        break;
    case FRAME_CREDIT:
        conn_of(liar, frame->credit.conn)->eager_total = frame->credit.eager_total;
        break;
    case FRAME_ACK:
        hear_ack(liar, &frame->ack);
        break;
    case FRAME_DEMAND:
        liar->target = frame->demand.target;
        break;
    case FRAME_GRANT:
        liar->granted = frame->grant.granted;
        break;
    case FRAME_QP:
        liar->generation = frame->qp.generation;
        break;
    default:
        break;
    }
}

void liar_hear(struct liar *liar, const uint8_t *datagram, size_t length)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    if (!wire_parse(datagram, length, crc32c_portable, &packet))
        return;
    memcpy(liar->header, datagram, WIRE_HEADER_BYTES);
    if ((packet.flags & WIRE_SEQUENCED) && (!liar->heard || (int32_t)(packet.seq - liar->seq) > 0))
        liar->seq = packet.seq;
    liar->heard = true;
    while ((frame = wire_next_frame(&packet)))
        hear_frame(liar, frame);
}

/* ---- a field ---------------------------------------------------------------------------------- */

static void twist_header(struct liar *liar, uint8_t *datagram)
{
    static const struct {
        uint8_t at, bytes;
    } fields[] = {{AT_SEQ, 4}, {AT_SEQ, 4}, {AT_PATH_SEQ, 4}, {AT_PATH, 2}, {AT_INDEX, 1}, {AT_COUNT, 1}, {AT_TIME, 4}};
    unsigned which = below(liar, sizeof fields / sizeof fields[0] + 1);
    if (which == sizeof fields / sizeof fields[0]) {
        static const uint8_t flags[] = {WIRE_SEQUENCED, WIRE_PAYLOAD_CRC, WIRE_RETRANSMISSION, WIRE_ON_PATH};
        datagram[AT_FLAGS] ^= flags[below(liar, sizeof flags)];
        return;
    }
    uint8_t *at = datagram + fields[which].at;
    put(at, number(liar, get(at, fields[which].bytes)), fields[which].bytes);
}

/* A frame of a well-formed packet, chosen evenly; returns its length. */
static size_t choose_frame(struct liar *liar, const uint8_t *datagram, size_t length, size_t *from)
{
    struct wire_packet packet;
    size_t bytes = 0;
    unsigned seen = 0;
    if (!wire_open(datagram, length, crc32c_portable, &packet))
        return 0;
    while (!wire_at_end(&packet)) {
        const uint8_t *at = packet.frame;
        if (!wire_take_frame(&packet))
            return bytes;
        if (below(liar, ++seen) == 0) {
            *from = (size_t)(at - datagram);
            bytes = (size_t)(packet.frame - at);
        }
    }
    return bytes;
}

/* Fields are aligned to their size, or to four bytes. */
static void twist_frame(struct liar *liar, uint8_t *datagram, size_t length)
{
    size_t from, bytes = choose_frame(liar, datagram, length, &from);
    if (bytes == 0)
        return;
    uint32_t word = below(liar, (uint32_t)(bytes / 4));
    uint8_t *at = datagram + from + 4 * (size_t)word;
    if (word == 0) { /* kind, flags, a length */
        uint32_t byte = below(liar, 4);
        unsigned width = byte == 2 ? 2 : 1;
        put(at + byte, number(liar, get(at + byte, width)), width);
    } else if (word + 2 <= bytes / 4 && below(liar, 3) == 0) {
        put(at, number(liar, get(at, 8)), 8);
    } else {
        put(at, number(liar, get(at, 4)), 4);
    }
}

/* A frame is gone, or there twice. */
static size_t twist_frames(struct liar *liar, uint8_t *datagram, size_t length)
{
    size_t from, bytes = choose_frame(liar, datagram, length, &from);
    unsigned header_length = header_length_of(datagram);
    if (bytes == 0)
        return length;
    if (below(liar, 2) && length + bytes <= LIE_BYTES_MAX) {
        memmove(datagram + from + bytes, datagram + from, length - from);
        put(datagram + AT_HEADER_LENGTH, header_length + bytes, 2);
        return length + bytes;
    }
    memmove(datagram + from, datagram + from + bytes, length - from - bytes);
    put(datagram + AT_HEADER_LENGTH, header_length - bytes, 2);
    return length - bytes;
}

size_t liar_twist(struct liar *liar, const uint8_t *datagram, size_t length, uint8_t *out)
{
    memcpy(out, datagram, length);
    unsigned header_length = header_length_of(datagram);
    if (liar->control_length && twist_annex(liar, out, length)) {
        seal(out, length);
        return length;
    }
    switch (below(liar, 8)) {
    case 0:
    case 1:
        twist_header(liar, out);
        break;
    case 2:
        length = twist_frames(liar, out, length);
        break;
    case 3: /* payload cut short, or another one */
        if (below(liar, 2))
            length = header_length + below(liar, (uint32_t)(length - header_length) + 1);
        else if (length > header_length)
            out[header_length + below(liar, (uint32_t)(length - header_length))] ^= 0xff;
        break;
    default:
        twist_frame(liar, out, length);
    }
    if (below(liar, 4) == 0)
        out[AT_FLAGS] ^= WIRE_RETRANSMISSION;
    seal(out, length);
    return length;
}

/* ---- habits ---------------------------------------------------------------------------------- */

static void spoil_frame(struct liar *liar, enum liar_habit habit, uint8_t *at, size_t bytes)
{
    enum wire_frame_kind kind = at[0];
    if (habit == LIAR_NO_WINDOW && kind == FRAME_ACK)
        put(at + 12, 0, 4);
    if (habit == LIAR_NO_PROGRESS && kind == FRAME_ACK) {
        if (!liar->stuck)
            liar->stuck_at = (uint32_t)get(at + 8, 4);
        liar->stuck = true;
        put(at + 8, liar->stuck_at, 4);
        memset(at + 20, 0, bytes - 20);
    }
    if (habit == LIAR_OLD_NEWS && kind == FRAME_ACK) { /* ages ago, and held for long */
        for (size_t path = 20 + 8u * at[1] + 12u * at[2]; path < bytes; path += 16)
            put(at + path + 12, UINT32_MAX / 2, 4);
    }
    if (habit == LIAR_NO_CREDIT && kind == FRAME_CREDIT) {
        put(at + 8, 0, 4);
        put(at + 16, 0, 8);
    }
    if (habit == LIAR_ALL_WELCOME && kind == FRAME_CREDIT)
        put(at + 12, get(at + 12, 4) + (UINT32_C(1) << 30), 4);
    if (habit == LIAR_ALL_WELCOME && kind == FRAME_CTS) {
        put(at + 2, CORE_STRIPES_MAX, 2);
        put(at + 12, UINT64_C(1) << 62, 8);
    }
    if (habit == LIAR_GREEDY && kind == FRAME_DEMAND)
        put(at + 4, get(at + 4, 4) + INT32_MAX, 4);
    if (habit == LIAR_GREEDY && kind == FRAME_GRANT)
        put(at + 4, 0, 4);
}

size_t liar_spoil(struct liar *liar, enum liar_habit habit, const uint8_t *datagram, size_t length, uint8_t *out)
{
    struct wire_packet packet;
    memcpy(out, datagram, length);
    if (habit == LIAR_HONEST || !wire_open(out, length, crc32c_portable, &packet))
        return length;
    while (!wire_at_end(&packet)) {
        size_t from = (size_t)(packet.frame - out);
        if (!wire_take_frame(&packet))
            break;
        spoil_frame(liar, habit, out + from, (size_t)(packet.frame - out) - from);
    }
    seal(out, length);
    return length;
}

/* ---- of nothing ------------------------------------------------------------------------------ */

static uint32_t some_conn(struct liar *liar, struct liar_conn **conn)
{
    static struct liar_conn none;
    const struct liar *of = liar->other && below(liar, 3) == 0 ? liar->other : liar;
    none = of->conn_count ? of->conns[below(liar, of->conn_count)] : (struct liar_conn){0};
    *conn = of == liar && liar->conn_count ? conn_of(liar, none.id) : &none;
    return below(liar, 16) ? (*conn)->id : number32(liar, (*conn)->id);
}

/* The annex for the bytes of writes, which leave right behind their announcement, or without one. */
static uint32_t annex_of_writes(struct liar *liar, struct liar_conn **conn)
{
    uint32_t id = liar->control_conn + ((uint32_t)(ANNEX_OF_WRITES - ANNEX_OF_CONTROL) << CORE_ANNEX_SHIFT);
    *conn = conn_of(liar, id);
    return id;
}

static unsigned invent_data(struct liar *liar, uint8_t *at, size_t *payload)
{
    struct liar_conn *conn;
    uint8_t *frame = at;
    bool ahead = liar->control_length && below(liar, 4) == 0;
    uint32_t id = ahead ? annex_of_writes(liar, &conn) : some_conn(liar, &conn), length = below(liar, PAYLOAD_MAX);
    uint64_t total = number(liar, conn->total), offset = below(liar, 2) ? number(liar, 0) : total - length;
    if (total < length)
        total = length;
    memset(frame, 0, WIRE_DATA_BYTES);
    frame[0] = FRAME_DATA;
    frame[1] = (uint8_t)(below(liar, 2) ? 0 : number(liar, 2));
    put(frame + 2, length, 2);
    put(frame + 4, id, 4);
    put(frame + 8, number32(liar, conn->sent), 4);
    put(frame + 12, offset, 8);
    put(frame + 20, total, 8);
    *payload += length;
    return WIRE_DATA_BYTES;
}

static unsigned invent_eager(struct liar *liar, uint8_t *at, size_t *payload)
{
    struct liar_conn *conn;
    struct wire_eager eager = {.granted = below(liar, 2)};
    eager.conn = some_conn(liar, &conn);
    eager.msg = number32(liar, conn->sent);
    eager.length = below(liar, 2) ? below(liar, 32) : below(liar, PAYLOAD_MAX);
    eager.total = below(liar, 2) ? eager.length : number32(liar, conn->total);
    eager.offset = below(liar, 2) ? 0 : number32(liar, eager.total - eager.length);
    eager.ring = number32(liar, conn->ring);
    *payload += eager.length;
    return wire_put_eager(at, &eager);
}

static unsigned invent_cts(struct liar *liar, uint8_t *at)
{
    struct liar_conn *conn;
    struct wire_cts cts = {.conn = some_conn(liar, &conn)};
    cts.msg = number32(liar, conn->received);
    cts.length = number(liar, conn->total);
    cts.stripes = (uint8_t)(below(liar, 2) ? 0 : below(liar, 65));
    cts.placeable = below(liar, 4) == 0 ? (uint8_t)(1 + below(liar, 15)) : 0;
    cts.address = number(liar, 4096);
    for (unsigned i = 0; i < CORE_PAIRS_MAX; i++) /* of this pair, or of another one */
        cts.keys[i] = number32(liar, liar->keys[below(liar, 2) ? i : below(liar, CORE_PAIRS_MAX)]);
    cts.slot = (uint16_t)(number32(liar, liar->slot) % WIRE_SLOTS_MAX);
    return wire_put_cts(at, &cts);
}

static unsigned invent_ack(struct liar *liar, uint8_t *at)
{
    struct wire_ack ack = liar->ack;
    ack.number = number32(liar, ack.number + 1);
    ack.cumulative = number32(liar, ack.cumulative);
    ack.window_kb = number32(liar, ack.window_kb);
    ack.next = number32(liar, ack.next);
    ack.word_count = (uint8_t)below(liar, 3);
    ack.partial_count = (uint8_t)below(liar, 3);
    ack.path_count = (uint8_t)below(liar, 3);
    for (unsigned i = 0; i < 2; i++) {
        ack.words[i] = rng_next(&liar->rng) & rng_next(&liar->rng);
        ack.partials[i].seq = number32(liar, ack.cumulative);
        ack.partials[i].mask = rng_next(&liar->rng);
        ack.paths[i].path = (uint16_t)number32(liar, below(liar, 4));
        ack.paths[i].on_path = below(liar, 3) == 0;
        ack.paths[i].by_sequence = ack.paths[i].on_path && below(liar, 2);
        ack.paths[i].path_seq = number32(liar, ack.paths[i].path_seq);
        ack.paths[i].time_stamp = number32(liar, ack.paths[i].time_stamp);
        ack.paths[i].ack_delay = number32(liar, ack.paths[i].ack_delay);
    }
    return wire_put_ack(at, &ack);
}

/* Of the flow. */
static unsigned invent_of_flow(struct liar *liar, uint8_t *at)
{
    struct liar_conn *conn;
    switch (below(liar, 6)) {
    case 0:
        return wire_put_demand(at, &(struct wire_demand){number32(liar, liar->target)});
    case 1: {
        struct wire_grant grant = {.granted = number32(liar, liar->granted)};
        grant.heard = number32(liar, liar->granted);
        return wire_put_grant(at, &grant);
    }
    case 2: {
        struct wire_qp path = {.what = (uint8_t)(QP_OFFER + below(liar, 3)),
                               .generation = number32(liar, liar->generation)};
        path.path = (uint16_t)number32(liar, below(liar, 4));
        path.number = number32(liar, 1);
        path.psn = number32(liar, 0);
        path.generation += path.generation == 0;
        return wire_put_qp(at, &path);
    }
    case 3:
        return wire_put_gone(at, &(struct wire_gone){some_conn(liar, &conn)});
    case 4: {
        struct wire_probe probe = {.echo = below(liar, 2)};
        probe.nonce = number(liar, 0);
        return wire_put_probe(at, &probe);
    }
    default:
        if (below(liar, 64)) /* the other ends all that it could lie about */
            return wire_put_probe(at, &(struct wire_probe){.nonce = number(liar, 1)});
        return wire_put_flow(at, &(struct wire_flow){FLOW_CLOSED});
    }
}

/* The last lie of a flow: a farewell, and behind it what a flow that is over must not hear. */
static size_t invent_farewell(struct liar *liar, uint8_t out[LIE_BYTES_MAX])
{
    size_t length = WIRE_HEADER_BYTES;
    length += wire_put_flow(out + length, &(struct wire_flow){FLOW_CLOSED});
    length += wire_put_demand(out + length, &(struct wire_demand){liar->target + (1u << 30)});
    length += invent_ack(liar, out + length);
    out[AT_FLAGS] = 0;
    out[AT_COUNT] = 1;
    out[AT_INDEX] = 0;
    put(out + AT_HEADER_LENGTH, length, 2);
    put(out + AT_PATH_SEQ, get(out + AT_PATH_SEQ, 4) + 1, 4);
    seal(out, length);
    return length;
}

static unsigned invent_frame(struct liar *liar, uint8_t *at, size_t *payload)
{
    struct liar_conn *conn;
    switch (below(liar, 10)) {
    case 0:
        return invent_data(liar, at, payload);
    case 1:
    case 2:
        return invent_eager(liar, at, payload);
    case 3:
        return invent_cts(liar, at);
    case 4: {
        struct wire_rts rts = {.conn = some_conn(liar, &conn)};
        rts.msg = number32(liar, conn->sent);
        rts.total = number(liar, conn->total);
        return wire_put_rts(at, &rts);
    }
    case 5: {
        struct wire_credit credit = {.conn = some_conn(liar, &conn)};
        credit.delivered = number32(liar, conn->received);
        credit.eager_total = number32(liar, conn->eager_total);
        credit.beyond = rng_next(&liar->rng) & rng_next(&liar->rng);
        return wire_put_credit(at, &credit);
    }
    case 6: {
        struct wire_abort end = {.conn = some_conn(liar, &conn), .of_send = below(liar, 2)};
        end.msg = number32(liar, end.of_send ? conn->sent : conn->received);
        end.status = -1 - (int32_t)(below(liar, 4) ? below(liar, 20) : below(liar, 65535));
        return wire_put_abort(at, &end);
    }
    case 7:
        if (below(liar, 8) == 0) { /* else it is over too soon */
            struct wire_fin fin = {.conn = some_conn(liar, &conn), .sends_over = below(liar, 2)};
            fin.receives_over = below(liar, 2);
            return wire_put_fin(at, &fin);
        }
        return wire_put_demand(at, &(struct wire_demand){number32(liar, 0)});
    case 8:
        return invent_ack(liar, at);
    default:
        return invent_of_flow(liar, at);
    }
}

/* The lie goes as an image in one fragment, or as a part of one that may be put together with others. */
static size_t wrap(struct liar *liar, size_t length, uint8_t *out)
{
    enum { HEADER = WIRE_HEADER_BYTES + WIRE_FRAGMENT_BYTES };
    uint32_t unit = WIRE_FRAGMENT_UNIT, total = (uint32_t)length, offset = 0;
    if (below(liar, 2)) {
        offset = below(liar, 4) * unit;
        length = length > unit ? length / unit * unit : length;
        total = offset + (uint32_t)length + (length % unit ? 0 : below(liar, 3) * unit);
    }
    memmove(out + HEADER, out, length);
    memcpy(out, liar->header, WIRE_HEADER_BYTES);
    wire_put_fragment(out + WIRE_HEADER_BYTES,
                      &(struct wire_fragment){
                          .number = below(liar, 4), .offset = offset, .length = (uint32_t)length, .total = total});
    out[AT_FLAGS] = 0;
    out[AT_COUNT] = 1;
    out[AT_INDEX] = 0;
    put(out + AT_HEADER_LENGTH, HEADER, 2);
    seal(out, HEADER + length);
    return HEADER + length;
}

/* A message of an annex that its engine has not sent, in the place of its next one; returns the length. */
static size_t invent_control(struct liar *liar, uint8_t *out, size_t *payload)
{
    const struct liar_conn *conn = conn_of(liar, liar->control_conn);
    struct wire_eager eager = {.conn = liar->control_conn, .length = liar->control_length};
    eager.msg = below(liar, 8) ? conn->sent + 1 : number32(liar, conn->sent);
    eager.total = eager.length;
    eager.ring = conn->ring + ((uint32_t)conn->total + 63) / 64 * 64;
    if (below(liar, 8) == 0)
        eager.ring = number32(liar, eager.ring);
    *payload = eager.length;
    return WIRE_HEADER_BYTES + wire_put_eager(out + WIRE_HEADER_BYTES, &eager);
}

size_t liar_invent(struct liar *liar, size_t bytes_max, uint8_t out[LIE_BYTES_MAX])
{
    if (!liar->heard)
        return 0;
    size_t header_length = WIRE_HEADER_BYTES, payload = 0;
    memcpy(out, liar->header, WIRE_HEADER_BYTES);
    if (below(liar, 4096) == 0) /* seldom: the other ends all that it could lie about */
        return invent_farewell(liar, out);
    bool control = liar->control_length && bytes_max >= 1000 && below(liar, 8) == 0;
    if (control)
        header_length = invent_control(liar, out, &payload);
    unsigned single = control || below(liar, 2);
    for (unsigned i = control ? 0 : single ? 1 : 1 + below(liar, FRAMES_MAX); i > 0; i--) {
        if (header_length + payload + WIRE_ACK_BYTES_MAX + PAYLOAD_MAX >
            (bytes_max < LIE_BYTES_MAX ? bytes_max : LIE_BYTES_MAX))
            break;
        header_length += invent_frame(liar, out + header_length, &payload);
    }
    for (size_t i = 0; i < payload; i++)
        out[header_length + i] = control ? liar->control[i] : (uint8_t)liar->rng.state + (uint8_t)i;
    for (unsigned i = control ? below(liar, 4) : 0; i > 0; i--)
        twist_control(liar, out + header_length, payload);
    out[AT_FLAGS] = (uint8_t)((below(liar, 4) ? WIRE_SEQUENCED : 0) | (below(liar, 4) ? 0 : WIRE_RETRANSMISSION) |
                              (below(liar, 8) ? 0 : WIRE_PAYLOAD_CRC));
    put(out + AT_HEADER_LENGTH, header_length, 2);
    put(out + AT_SEQ, number(liar, liar->seq + 1), 4);
    put(out + AT_PATH_SEQ, number(liar, get(out + AT_PATH_SEQ, 4) + 1), 4);
    uint32_t count = below(liar, 4) ? 1 : 1 + below(liar, CORE_TRAIN_MAX);
    out[AT_COUNT] = (uint8_t)count;
    out[AT_INDEX] = (uint8_t)below(liar, count);
    size_t length = header_length + payload;
    seal(out, length);
    bool wraps =
        length + WIRE_HEADER_BYTES + WIRE_FRAGMENT_BYTES <= (bytes_max < LIE_BYTES_MAX ? bytes_max : LIE_BYTES_MAX);
    return wraps && below(liar, 8) == 0 ? wrap(liar, length, out) : length;
}

/* ---- writes ---------------------------------------------------------------------------------- */

void liar_hear_write(struct liar *liar, const struct liar_write *write)
{
    uint32_t seq = (uint32_t)wire_immediate_seq(write->immediate, liar->seq);
    liar->writes[liar->write_count++ % LIAR_WRITES] = *write;
    if ((int32_t)(seq - liar->seq) > 0)
        liar->seq = seq;
}

static const struct liar_write *earlier_write(struct liar *liar)
{
    unsigned count = liar->write_count < LIAR_WRITES ? liar->write_count : LIAR_WRITES;
    return &liar->writes[below(liar, count)];
}

bool liar_knows_key(const struct liar *liar, uint32_t key)
{
    for (unsigned i = 0; i < LIAR_WRITES && i < liar->write_count; i++) {
        if (liar->writes[i].key == key)
            return true;
    }
    return false;
}

void liar_twist_write(struct liar *liar, struct liar_write *write)
{
    const struct liar_write *other = liar->write_count ? earlier_write(liar) : write;
    uint32_t slot = wire_immediate_slot(write->immediate), length = write->length;
    switch (below(liar, 10)) {
    case 0: /* where somebody else, or nobody, has memory */
        write->key = number32(liar, write->key);
        break;
    case 1:
        write->address = number(liar, write->address);
        break;
    case 2: /* beyond the grant, by a little: at its end, in front of it */
        write->address += below(liar, 2) ? below(liar, 2 * length + 1) : -(uint64_t)below(liar, 2 * length + 1);
        break;
    case 3: /* into an earlier grant, under the name of this one */
        write->key = other->key;
        write->address = other->address;
        break;
    case 4: /* of this key, at the address of another */
        write->address = other->address;
        break;
    case 5: /* another grant, of now or of earlier, or none */
        slot =
            below(liar, 2) ? wire_immediate_slot(other->immediate) : number32(liar, below(liar, 64)) % WIRE_SLOTS_MAX;
        write->immediate = wire_immediate(slot, write->immediate);
        break;
    case 6: /* another chunk */
        write->immediate = wire_immediate(slot, number(liar, write->immediate));
        break;
    case 7:
        write->immediate = number32(liar, write->immediate);
        break;
    case 8:
        write->length = below(liar, 4) ? below(liar, length + 1) : length + below(liar, LIE_BYTES_MAX);
        break;
    default:
        write->read = true;
    }
}

bool liar_invent_write(struct liar *liar, struct liar_write *out)
{
    if (!liar->write_count)
        return false;
    *out = *earlier_write(liar);
    if (below(liar, 2)) /* of the next chunks, so that it counts for something */
        out->immediate = wire_immediate(wire_immediate_slot(out->immediate), liar->seq + below(liar, 8));
    for (unsigned i = below(liar, 4); i > 0; i--) /* else: again as it was */
        liar_twist_write(liar, out);
    if (out->length > LIE_BYTES_MAX)
        out->length = LIE_BYTES_MAX;
    return true;
}
