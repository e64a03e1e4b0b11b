/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/control.h"

#include "base/le.h"
#include "uccl/engine.h"

static struct export_ref get_ref(const uint8_t *at)
{
    return (struct export_ref){(uint32_t)le_get(at, 4), (uint32_t)le_get(at + 4, 4), le_get(at + 8, 8)};
}

static uint8_t *put_ref(uint8_t *at, const struct export_ref *ref)
{
    return le_put(le_put(le_put(at, ref->index, 4), ref->generation, 4), ref->nonce, 8);
}

/* Flags that may stand in a message of the kind. */
static bool flags_fit(const struct control *control)
{
    unsigned flags = control->flags, tails = flags & (CONTROL_SET | CONTROL_ADD | CONTROL_NOTE);
    if (control->kind == CONTROL_DONE)
        return flags == 0;
    if (control->kind == CONTROL_READ)
        return flags == 0;
    return flags < 128 && (tails & (tails - 1)) == 0 && (!tails || flags & CONTROL_LAST) &&
           (!(flags & CONTROL_CANCELLED) || (flags & CONTROL_LAST && !tails));
}

/* The pieces, and the payload behind them. */
static bool get_pieces(struct control *control, const uint8_t *at, size_t left)
{
    size_t bytes = (size_t)control->count * CONTROL_PIECE_BYTES;
    if (control->count > CONTROL_PIECES_MAX || left < bytes)
        return false;
    control->entries = at;
    for (unsigned i = 0; i < control->count; i++) {
        uint64_t length = control_piece(control, i).length;
        if (length > UINT64_MAX / 2 - control->total)
            return false;
        control->total += length;
    }
    control->payload = at + bytes;
    return left - bytes == (control->flags & CONTROL_INLINE ? control->total : 0);
}

bool control_parse(const uint8_t *bytes, size_t length, struct control *control)
{
    if (length < CONTROL_HEADER_BYTES || length > CONTROL_BYTES_MAX)
        return false;
    *control = (struct control){
        .kind = bytes[0], .flags = bytes[1], .count = (uint16_t)le_get(bytes + 2, 2), .id = le_get(bytes + 8, 8)};
    const uint8_t *at = bytes + CONTROL_HEADER_BYTES;
    size_t left = length - CONTROL_HEADER_BYTES;
    if (control->kind < CONTROL_WRITE || control->kind > CONTROL_DONE || !flags_fit(control))
        return false;
    if (control->kind == CONTROL_DONE) {
        control->entries = at;
        return left == (size_t)control->count * CONTROL_DONE_BYTES;
    }
    if (control->flags & (CONTROL_SET | CONTROL_ADD)) {
        if (left < CONTROL_TAIL_BYTES)
            return false;
        control->tail = (struct control_tail){get_ref(at), le_get(at + 16, 8), le_get(at + 24, 8)};
        at += CONTROL_TAIL_BYTES;
        left -= CONTROL_TAIL_BYTES;
    }
    return get_pieces(control, at, left);
}

struct control_piece control_piece(const struct control *control, unsigned index)
{
    const uint8_t *at = control->entries + (size_t)index * CONTROL_PIECE_BYTES;
    return (struct control_piece){get_ref(at), le_get(at + 16, 8), le_get(at + 24, 8)};
}

uint64_t control_done(const struct control *control, unsigned index, int32_t *status)
{
    const uint8_t *at = control->entries + (size_t)index * CONTROL_DONE_BYTES;
    /* only codes of ours, whatever the peer sends */
    static const int32_t codes[] = {UCCL_OK, UCCL_ECANCELED, UCCL_EIO, UCCL_EPEERNOMEM};
    uint32_t code = (uint32_t)le_get(at + 8, 4);
    *status = UCCL_EACCESS;
    for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (code == (uint32_t)-codes[i])
            *status = codes[i];
    }
    return le_get(at, 8);
}

uint8_t *control_put_header(uint8_t *at, const struct control *control)
{
    *at++ = control->kind;
    *at++ = control->flags;
    at = le_put(le_put(le_put(at, control->count, 2), 0, 4), control->id, 8);
    if (control->flags & (CONTROL_SET | CONTROL_ADD))
        at = le_put(le_put(put_ref(at, &control->tail.ref), control->tail.offset, 8), control->tail.value, 8);
    return at;
}

uint8_t *control_put_piece(uint8_t *at, const struct control_piece *piece)
{
    return le_put(le_put(put_ref(at, &piece->ref), piece->offset, 8), piece->length, 8);
}

uint8_t *control_put_done(uint8_t *at, uint64_t id, int32_t status)
{
    return le_put(le_put(at, id, 8), (uint32_t)-status, 4);
}

bool note_parse(const uint8_t *bytes, size_t length, bool *waits, uint64_t *id)
{
    if (length < NOTE_HEADER_BYTES || length > NOTE_HEADER_BYTES + UCCL_NOTIFY_MAX || bytes[0] > 1)
        return false;
    *waits = bytes[0];
    *id = le_get(bytes + 8, 8);
    return true;
}

uint8_t *note_put_header(uint8_t *at, bool waits, uint64_t id)
{
    return le_put(le_put(at, waits, 8), id, 8);
}
