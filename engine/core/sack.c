/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of arrival masks over the receive window. Invariant: a slot's state belongs to the one sequence number in
 * [cumulative, cumulative + window) that maps to it. Slots are cleared as the cumulative edge passes them.
 */
#include "core/sack.h"

#include <assert.h>
#include <string.h>

void sack_init(struct sack *sack, struct sack_chunk *chunks, uint32_t window, struct sack_path *qps,
               uint32_t data_qp_count)
{
    assert(window && (window & (window - 1)) == 0);
    memset(sack, 0, sizeof *sack);
    sack->chunks = chunks;
    sack->window = window;
    sack->qps = qps;
    for (uint32_t i = 0; i < PATHS_MAX; i++)
        sack->paths[i].index = (uint16_t)i;
    for (uint32_t i = 0; i < data_qp_count; i++)
        qps[i] = (struct sack_path){.index = (uint16_t)i, .is_data_qp = true};
}

static bool is_whole(const struct sack_chunk *chunk)
{
    return chunk->count && chunk->mask == wire_full_mask(chunk->count);
}

enum sack_verdict sack_check(const struct sack *sack, const struct wire_packet *packet, uint64_t *seq)
{
    uint64_t full = wire_expand(packet->seq, sack->cumulative);
    *seq = full;
    if (full < sack->cumulative || full > UINT64_MAX / 2)
        return SACK_DUPLICATE;
    if (full - sack->cumulative >= sack->window)
        return SACK_BEYOND_WINDOW;
    const struct sack_chunk *chunk = sack_slot(sack, full);
    if (is_whole(chunk))
        return SACK_DUPLICATE; /* whole, perhaps by a write: then its retransmissions may have another count */
    if (chunk->count && chunk->count != packet->count)
        return SACK_MALFORMED;
    return chunk->mask >> packet->index & 1 ? SACK_DUPLICATE : SACK_NEW;
}

bool sack_mark(struct sack *sack, uint64_t seq, unsigned index, unsigned count)
{
    struct sack_chunk *chunk = sack_slot(sack, seq);
    assert(seq >= sack->cumulative && index < count && !(chunk->mask >> index & 1));

    chunk->count = (uint8_t)count;
    chunk->mask |= UINT64_C(1) << index;
    if (seq >= sack->end)
        sack->end = seq + 1;
    sack->newest = seq;
    bool whole = chunk->mask == wire_full_mask(count);
    while (sack->cumulative < sack->end) {
        chunk = sack_slot(sack, sack->cumulative);
        if (!is_whole(chunk))
            break;
        *chunk = (struct sack_chunk){0};
        sack->cumulative++;
    }
    return whole;
}

void sack_note_path(struct sack *sack, const struct wire_packet *packet, bool ce, uint64_t now_ns)
{
    if (packet->path >= PATHS_MAX)
        return;
    struct sack_path *path = &sack->paths[packet->path];
    path->ce |= ce;
    if (path->path_seq && (int32_t)(packet->path_seq - path->path_seq) <= 0)
        return; /* not newer: a later datagram of the same train, or a reordered one */
    path->path_seq = packet->path_seq;
    path->time_stamp = packet->time_stamp;
    path->at_ns = now_ns;
    queue_append(&sack->pending, &path->pending);
}

void sack_repeat_paths(struct sack *sack)
{
    for (unsigned i = 0; i < PATHS_MAX; i++)
        if (sack->paths[i].path_seq)
            queue_append(&sack->pending, &sack->paths[i].pending);
}

void sack_note_data_qp(struct sack *sack, uint16_t index, const struct wire_packet *packet, bool ce, uint64_t now_ns)
{
    struct sack_path *qp = &sack->qps[index];
    qp->at_ns = now_ns;
    qp->path_seq = packet->path_seq;
    qp->time_stamp = packet->time_stamp;
    qp->ce |= ce;
    qp->by_sequence = false;
    queue_append(&sack->pending, &qp->pending);
}

/* Names a chunk that has arrived in part. False: there is no room. */
static bool add_partial(const struct sack *sack, struct wire_ack *ack, uint64_t seq)
{
    const struct sack_chunk *chunk = sack_slot(sack, seq);
    if (!chunk->count || is_whole(chunk))
        return true;
    if (ack->partial_count == WIRE_ACK_PARTIALS_MAX)
        return false;
    ack->partials[ack->partial_count++] = (struct wire_ack_partial){(uint32_t)seq, chunk->mask};
    return true;
}

/*
 * More chunks are incomplete than an ack can name. The one with the newest datagram comes first (RFC 2018 section 4),
 * and the others take turns. So the sender hears of every datagram, however many chunks are incomplete.
 */
static void name_in_turn(struct sack *sack, struct wire_ack *ack, uint64_t end)
{
    uint64_t newest = sack->newest >= sack->cumulative && sack->newest < end ? sack->newest : end;
    uint64_t seq = sack->turn >= sack->cumulative && sack->turn < end ? sack->turn : sack->cumulative;
    ack->partial_count = 0;
    if (newest < end)
        add_partial(sack, ack, newest);
    while (seq == newest || add_partial(sack, ack, seq))
        seq = seq + 1 < end ? seq + 1 : sack->cumulative;
    sack->turn = seq;
}

/* Bits for whole chunks beyond the cumulative edge, and those that have arrived in part. */
static void fill_chunks(struct sack *sack, struct wire_ack *ack)
{
    uint64_t beyond = sack->end > sack->cumulative + 1 ? sack->end - sack->cumulative - 1 : 0;
    if (beyond > WIRE_ACK_WORDS_MAX * 64)
        beyond = WIRE_ACK_WORDS_MAX * 64;
    ack->word_count = (uint8_t)((beyond + 63) / 64);
    ack->partial_count = 0;
    memset(ack->words, 0, ack->word_count * sizeof ack->words[0]);
    uint64_t end = sack->end < sack->cumulative + 1 + beyond ? sack->end : sack->cumulative + 1 + beyond;
    bool all = true;
    for (uint64_t seq = sack->cumulative; seq < end; seq++) {
        const struct sack_chunk *chunk = sack_slot(sack, seq);
        if (!chunk->count)
            continue;
        if (is_whole(chunk)) {
            uint64_t bit = seq - sack->cumulative - 1;
            ack->words[bit / 64] |= UINT64_C(1) << bit % 64;
        } else {
            all &= add_partial(sack, ack, seq);
        }
    }
    if (!all)
        name_in_turn(sack, ack, end);
}

void sack_fill(struct sack *sack, struct wire_ack *ack, uint64_t now_ns)
{
    ack->cumulative = (uint32_t)sack->cumulative;
    fill_chunks(sack, ack);
    ack->path_count = 0;
    struct sack_path *path;
    while (ack->path_count < WIRE_ACK_PATHS_MAX &&
           (path = QUEUE_HOLDER(sack->pending.head, struct sack_path, pending))) {
        ack->paths[ack->path_count++] = (struct wire_ack_path){
            .path = path->index,
            .ce = path->ce,
            .on_path = path->is_data_qp,
            .by_sequence = path->by_sequence,
            .path_seq = path->path_seq,
            .time_stamp = path->time_stamp,
            .ack_delay = wire_time(now_ns - path->at_ns),
        };
        queue_remove(&sack->pending, &path->pending);
        sack->named[ack->path_count - 1] = path;
        sack->ce_named = sack->ce_named << 1 | path->ce;
        path->ce = false;
    }
    sack->named_count = ack->path_count;
}

void sack_undo(struct sack *sack)
{
    for (; sack->named_count; sack->named_count--, sack->ce_named >>= 1) {
        struct sack_path *path = sack->named[sack->named_count - 1];
        path->ce |= sack->ce_named & 1;
        queue_append(&sack->pending, &path->pending);
    }
}
