/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk records in a ring over [cumulative, next_seq). Invariant: a FLYING chunk is on by_time and on its path's
 * queue, both ordered by time of transmission, and counted in flying_*. A LOST chunk is on the lost queue alone, a
 * FREE or HELD one on none. A chunk that a reliable NIC places is not on by_time.
 */
#include "core/sent.h"

#include <assert.h>

static struct chunk *by_time(const struct queue_link *link)
{
    return QUEUE_HOLDER(link, struct chunk, by_time);
}

/* The set of paths that the chunk may take, and its path. */
static struct path_set *set_of(const struct sent *sent, const struct chunk *chunk)
{
    return chunk->placed ? sent->qps : sent->paths;
}

static struct path *path_of(const struct sent *sent, const struct chunk *chunk)
{
    return &set_of(sent, chunk)->paths[chunk->path];
}

void sent_init(struct sent *sent, struct chunk *chunks, uint32_t window, struct path_set *paths, struct path_set *qps,
               uint32_t reorder_threshold)
{
    assert(window && (window & (window - 1)) == 0);
    *sent = (struct sent){
        .paths = paths,
        .qps = qps,
        .chunks = chunks,
        .window = window,
        .reorder_threshold = reorder_threshold,
        .reorder_window_quarters = paths->count > 1 ? 2 : 1,
    };
}

uint64_t sent_seq(const struct sent *sent, const struct chunk *chunk)
{
    uint32_t mask = sent->window - 1;
    return sent->cumulative + (((uint32_t)(chunk - sent->chunks) - (uint32_t)sent->cumulative) & mask);
}

struct chunk *sent_new(struct sent *sent, const struct chunk *plan, uint64_t *seq)
{
    assert(sent_has_room(sent));
    *seq = sent->next_seq++;
    struct chunk *chunk = sent_chunk(sent, *seq);
    assert(chunk->state == CHUNK_FREE && plan->state == CHUNK_FREE);
    *chunk = *plan;
    return chunk;
}

/* Takes a chunk off its queues. */
static void land(struct sent *sent, struct chunk *chunk)
{
    if (chunk->state == CHUNK_FLYING) {
        struct path *path = path_of(sent, chunk);
        queue_remove(&sent->by_time, &chunk->by_time);
        queue_remove(&path->flying, &chunk->by_path);
        path->in_flight--;
        sent->flying_charge -= chunk->charged_bytes;
        sent->flying_payload -= chunk->payload_bytes;
        sent->flying_chunks--;
    } else if (chunk->state == CHUNK_LOST) {
        queue_remove(&sent->lost, &chunk->by_time);
        sent->lost_payload -= chunk->payload_bytes;
    }
    chunk->state = CHUNK_FREE;
}

void sent_fly(struct sent *sent, struct chunk *chunk, uint16_t path_index, uint64_t now_ns)
{
    land(sent, chunk);
    chunk->path = path_index;
    struct path *path = path_of(sent, chunk);
    chunk->state = CHUNK_FLYING;
    chunk->path_seq = path->next_seq++;
    chunk->sent_ns = now_ns;
    if (chunk->transmissions < UINT8_MAX)
        chunk->transmissions++;
    if (!chunk->placed || !sent->data_qps_reliable)
        queue_append(&sent->by_time, &chunk->by_time);
    queue_append(&path->flying, &chunk->by_path);
    path->in_flight++;
    sent->flying_charge += chunk->charged_bytes;
    sent->flying_payload += chunk->payload_bytes;
    sent->flying_chunks++;
}

struct chunk *sent_first_lost(const struct sent *sent)
{
    return by_time(sent->lost.head);
}

struct chunk *sent_next_lost(const struct chunk *chunk)
{
    return by_time(chunk->by_time.next);
}

struct chunk *sent_newest(const struct sent *sent)
{
    return by_time(queue_last(&sent->by_time));
}

struct chunk *sent_oldest(const struct sent *sent)
{
    return by_time(sent->by_time.head);
}

static bool is_large(const struct sent *sent, const struct chunk *chunk)
{
    return chunk_largest(chunk) > sent->base_bytes && !chunk->placed && !chunk->written && !chunk->in_pieces;
}

static void wait_lost(struct sent *sent, struct chunk *chunk)
{
    assert(chunk->state == CHUNK_FLYING || chunk->state == CHUNK_HELD);
    land(sent, chunk);
    chunk->state = CHUNK_LOST;
    queue_append(&sent->lost, &chunk->by_time);
    sent->lost_payload += chunk->payload_bytes;
}

void sent_lose(struct sent *sent, struct chunk *chunk)
{
    if (is_large(sent, chunk) && chunk->sent_ns > sent->large_lost_ns)
        sent->large_lost_ns = chunk->sent_ns;
    wait_lost(sent, chunk);
}

unsigned sent_lose_large(struct sent *sent)
{
    unsigned lost = 0;
    for (struct chunk *chunk = sent_oldest(sent), *next; chunk; chunk = next) {
        next = by_time(chunk->by_time.next);
        if (!is_large(sent, chunk))
            continue;
        wait_lost(sent, chunk);
        lost++;
    }
    return lost;
}

void sent_unsend(struct sent *sent, struct chunk *chunk)
{
    wait_lost(sent, chunk);
    if (chunk->transmissions < UINT8_MAX)
        chunk->transmissions--;
}

void sent_hold_data_qp(struct sent *sent, uint16_t qp)
{
    for (uint64_t seq = sent->cumulative; seq < sent->next_seq; seq++) {
        struct chunk *chunk = sent_chunk(sent, seq);
        if (chunk->state == CHUNK_FREE || !chunk->placed || chunk->path != qp)
            continue;
        land(sent, chunk);
        chunk->state = CHUNK_HELD;
    }
}

unsigned sent_release_data_qp(struct sent *sent, uint16_t qp)
{
    unsigned lost = 0;
    for (uint64_t seq = sent->cumulative; seq < sent->next_seq; seq++) {
        struct chunk *chunk = sent_chunk(sent, seq);
        if (chunk->state != CHUNK_HELD || chunk->path != qp)
            continue;
        chunk->placed = false;
        chunk->path = 0; /* of datagrams now */
        sent_lose(sent, chunk);
        lost++;
    }
    return lost;
}

void sent_abandon(struct sent *sent, struct core_msg *msg)
{
    for (uint64_t seq = sent->cumulative; msg->chunks_live && seq < sent->next_seq; seq++) {
        struct chunk *chunk = sent_chunk(sent, seq);
        if (chunk->state != CHUNK_FREE && chunk->kind == CHUNK_BULK && chunk->bulk.msg == msg) {
            chunk->kind = CHUNK_ABANDONED;
            msg->chunks_live--;
        }
    }
}

/* Whether the ack is for the last transmission. If that is too young, an earlier one arrived (RFC 8985 6.2, step 2). */
static bool is_surely_last(const struct sent *sent, const struct chunk *chunk)
{
    return chunk->transmissions == 1 || (sent->too_soon_ns && chunk->sent_ns <= sent->too_soon_ns);
}

static void note_small(const struct sent *sent, const struct chunk *chunk, struct sent_acked *result)
{
    if (is_surely_last(sent, chunk) && chunk->sent_ns > result->small_ns)
        result->small_ns = chunk->sent_ns;
}

static void note_size(const struct sent *sent, const struct chunk *chunk, struct sent_acked *result)
{
    bool large = is_large(sent, chunk);
    result->large |= large;
    if (!large && !chunk->placed)
        note_small(sent, chunk, result);
}

void sent_ack_one(struct sent *sent, struct chunk *chunk, sent_acked_fn acked, void *context, struct sent_acked *result)
{
    if (chunk->state == CHUNK_FREE)
        return;
    /* declared lost, yet acked: before its retransmission left, or too soon after that (as Eifel, RFC 3522) */
    if ((chunk->state == CHUNK_LOST && (chunk->acked_mask == 0 || chunk->transmissions == 1)) ||
        (chunk->transmissions > 1 && sent->too_soon_ns && chunk->sent_ns > sent->too_soon_ns))
        result->spurious = true;
    if (is_surely_last(sent, chunk) && chunk->sent_ns > sent->newest_acked_ns)
        sent->newest_acked_ns = chunk->sent_ns;
    result->payload_bytes += chunk->payload_bytes;
    result->chunks++;
    if (sent->watches)
        note_size(sent, chunk, result);
    land(sent, chunk);
    acked(context, chunk);
}

/* Some datagrams of a chunk have arrived, but not all. The last one may be small where the others are large. */
static void note_parts(const struct sent *sent, const struct chunk *chunk, uint64_t fresh_mask,
                       struct sent_acked *result)
{
    bool whole_ones = fresh_mask & ~(UINT64_C(1) << (chunk->count - 1)), large = is_large(sent, chunk);
    result->parts = true;
    result->large |= large && (whole_ones || chunk->last_bytes > sent->base_bytes);
    if (!large || (!whole_ones && chunk->last_bytes <= sent->base_bytes))
        note_small(sent, chunk, result);
}

bool sent_ack(struct sent *sent, const struct wire_ack *ack, sent_acked_fn acked, void *context,
              struct sent_acked *result)
{
    *result = (struct sent_acked){0};
    uint64_t cumulative = wire_expand(ack->cumulative, sent->cumulative);
    if (cumulative > sent->next_seq && cumulative - sent->next_seq <= UINT32_MAX)
        return false;
    if (cumulative > sent->next_seq)
        cumulative = 0; /* older than the first chunk */

    while (sent->cumulative < cumulative)
        sent_ack_one(sent, sent_chunk(sent, sent->cumulative++), acked, context, result);

    for (unsigned word = 0; word < ack->word_count; word++) {
        for (uint64_t bits = ack->words[word]; bits; bits &= bits - 1) {
            uint64_t seq = cumulative + 1 + word * 64 + (unsigned)__builtin_ctzll(bits);
            if (seq >= sent->cumulative && seq < sent->next_seq)
                sent_ack_one(sent, sent_chunk(sent, seq), acked, context, result);
        }
    }
    for (unsigned i = 0; i < ack->partial_count; i++) {
        uint64_t seq = wire_expand(ack->partials[i].seq, sent->cumulative);
        if (seq < sent->cumulative || seq >= sent->next_seq)
            continue;
        struct chunk *chunk = sent_chunk(sent, seq);
        /* No datagram of a chunk that was only written has been sent, and their number is not fixed yet. */
        if (chunk->state == CHUNK_FREE || chunk->written)
            continue;
        uint64_t whole = wire_full_mask(chunk->count);
        uint64_t mask = (chunk->acked_mask | ack->partials[i].mask) & whole;
        if (mask == whole)
            continue; /* a lie: a whole chunk is no partial one, and nothing would be left to retransmit */
        if (mask != chunk->acked_mask)
            note_parts(sent, chunk, mask & ~chunk->acked_mask, result);
        chunk->acked_mask = mask;
    }
    return true;
}

static unsigned lose_before(struct sent *sent, struct path_set *set, uint16_t path, uint32_t path_seq,
                            uint32_t threshold)
{
    const struct queue *flying = &set->paths[path].flying;
    unsigned lost = 0;
    struct chunk *chunk;
    while ((chunk = QUEUE_HOLDER(flying->head, struct chunk, by_path)) &&
           (int32_t)(path_seq - chunk->path_seq - threshold) >= 0) {
        sent_lose(sent, chunk);
        path_report(set, path, PATH_LOST, 0);
        lost++;
    }
    return lost;
}

unsigned sent_lose_by_path(struct sent *sent, uint16_t path, uint32_t path_seq)
{
    return lose_before(sent, sent->paths, path, path_seq, sent->reorder_threshold);
}

unsigned sent_lose_by_data_qp(struct sent *sent, uint16_t qp, uint32_t path_seq)
{
    return lose_before(sent, sent->qps, qp, path_seq, 1);
}

unsigned sent_lose_by_time(struct sent *sent, const struct rtt *rtt, uint64_t now_ns, uint64_t *next_ns)
{
    unsigned lost = 0;
    struct chunk *chunk;
    *next_ns = UINT64_MAX;
    if (rtt->srtt_ns == 0)
        return 0;
    uint64_t window_ns = rtt->min_ns / 4 * sent->reorder_window_quarters;
    if (window_ns > rtt->srtt_ns)
        window_ns = rtt->srtt_ns;
    /* Chunks on faster paths overtake one on a slow path, so it gets the time that slow paths take. But no more
     * than twice the usual: a chunk in the queue of a broken link is better retransmitted over another. */
    uint64_t round_trip_ns = rtt->slow_ns < 2 * rtt->srtt_ns ? rtt->slow_ns : 2 * rtt->srtt_ns;
    if (round_trip_ns < rtt->latest_ns)
        round_trip_ns = rtt->latest_ns;
    round_trip_ns += rtt->peer_ack_delay_ns;

    while ((chunk = sent_oldest(sent)) && chunk->sent_ns < sent->newest_acked_ns) {
        uint64_t due_ns = chunk->sent_ns + round_trip_ns + window_ns;
        if (due_ns > now_ns) {
            *next_ns = due_ns;
            break;
        }
        path_report(set_of(sent, chunk), chunk->path, PATH_LOST, 0);
        sent_lose(sent, chunk);
        lost++;
    }
    return lost;
}
