/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/payload.h"

#include "core/wire.h"
#include "gpu/stage.h"
#include "thread/state.h"
#include "thread/watched.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory in several places ------------------------------------------------------------------ */

struct payload_pieces *payload_pieces_new(unsigned count)
{
    struct payload_pieces *pieces = malloc(sizeof *pieces + count * sizeof pieces->piece[0]);
    if (pieces)
        pieces->count = count;
    return pieces;
}

/* The piece that has this byte. */
static const struct payload_piece *piece_at(const struct payload_pieces *pieces, uint64_t offset)
{
    unsigned first = 0, behind = pieces->count; /* it is one of these */
    while (behind - first > 1) {
        unsigned middle = first + (behind - first) / 2;
        if (pieces->piece[middle - 1].end <= offset)
            first = middle;
        else
            behind = middle;
    }
    return &pieces->piece[first];
}

/* Where the byte is, and how many lie behind each other from there on. */
static uint8_t *place_of(const struct payload_pieces *pieces, uint64_t offset, uint64_t *left)
{
    const struct payload_piece *piece = piece_at(pieces, offset);
    uint64_t begin = piece == pieces->piece ? 0 : piece[-1].end;
    *left = piece->end - offset;
    return piece->at + (offset - begin);
}

/* Copies between plain memory and the pieces: one of `to` and `from` is NULL. */
static void copy_pieces(const struct payload_pieces *pieces, uint64_t offset, uint8_t *to, const uint8_t *from,
                        size_t length)
{
    while (length) {
        uint64_t left;
        uint8_t *at = place_of(pieces, offset, &left);
        size_t bytes = left < length ? (size_t)left : length;
        if (from != at) /* else the NIC has received it there */
            memcpy(to ? to : at, to ? at : from, bytes);
        offset += bytes;
        length -= bytes;
        if (to)
            to += bytes;
        else
            from += bytes;
    }
}

/* ---- all --------------------------------------------------------------------------------------- */

const void *payload_at(const struct core_msg *msg, uint64_t offset)
{
    const struct uccl_request *request = request_of(msg);
    if (request->pieces)
        return NULL;
    return request->staged.memory ? stage_at(request->thread->stage, request, offset) : request->buffer + offset;
}

const void *payload_piece_at(const struct core_msg *msg, uint64_t offset, size_t *length)
{
    const struct uccl_request *request = request_of(msg);
    uint64_t left;
    if (!request->pieces)
        return NULL;
    const void *at = place_of(request->pieces, offset, &left);
    *length = (size_t)left;
    return at;
}

void payload_name_keys(struct uccl_request *request, const struct request_pairs *pairs)
{
    struct core_msg *msg = &request->msg;
    for (unsigned i = 0; i < pairs->count; i++) {
        const struct nic_mr *mr = &request->nic_mr[pairs->nics[i]];
        msg->placeable |= (uint8_t)((mr->handle != NULL) << i);
        msg->grant_keys[i] = mr->remote_key;
    }
}

uint64_t payload_local(const struct core_msg *msg, uint64_t offset, unsigned nic, uint32_t *key)
{
    const struct uccl_request *request = request_of(msg);
    *key = request->nic_mr[nic].local_key;
    return (uintptr_t)request->buffer + offset;
}

void payload_gather(void *to, const struct core_msg *msg, uint64_t offset, size_t length)
{
    const struct uccl_request *request = request_of(msg);
    if (request->pieces)
        copy_pieces(request->pieces, offset, to, NULL, length);
    else
        memcpy(to, payload_at(msg, offset), length);
}

/* Payload of a receive has arrived. */
static void put(const struct core_msg *msg, uint64_t offset, const void *from, size_t length)
{
    struct uccl_request *request = request_of(msg);
    if (request->staged.memory)
        stage_write(request->thread->stage, request, offset, from, length);
    else if (msg->watched)
        watched_copy(request->buffer + offset, from, length);
    else if (request->pieces)
        copy_pieces(request->pieces, offset, NULL, from, length);
    else if (request->buffer + offset != from) /* else the NIC has received it there */
        memcpy(request->buffer + offset, from, length);
}

void payload_copies(struct core *core)
{
    struct core_copy copy;
    while (core_next_copy(core, &copy)) {
        if (copy.msg)
            put(copy.msg, copy.offset_bytes, copy.from, copy.length);
        else
            memcpy(copy.to, copy.from, copy.length);
    }
}

static void *target_of(struct engine_thread *thread, const uint8_t *header, size_t length, size_t stride,
                       unsigned *count, bool is_kept)
{
    struct core_msg *msg;
    uint64_t offset;
    *count = core_copy_target(thread->core, header, length, stride, &msg, &offset);
    if (*count == 0)
        return NULL;
    struct uccl_request *request = request_of(msg);
    /* Those behind the datagram that was looked at may be others. What then stands there would stay if the write
     * fails, and so would damaged bytes. */
    if (request->exported && !request->staged.memory && (length > stride || wire_has_payload_crc(header)))
        return NULL;
    if (request->pieces) {
        uint64_t left;
        uint8_t *at = place_of(request->pieces, offset, &left);
        return wire_bulk_payload(length, stride, *count) <= left ? at : NULL;
    }
    if (!request->staged.memory)
        return request->buffer + offset;
    if (is_kept) /* a block goes up when others are short of blocks */
        return NULL;
    return stage_target(thread->stage, request, offset, wire_bulk_payload(length, stride, *count));
}

void *payload_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    return target_of(owner, header, length, stride, count, false);
}

void *payload_kept_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    return target_of(owner, header, length, stride, count, true);
}
