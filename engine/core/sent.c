/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk records in a ring over [cumulative, next_seq). Invariant: a FLYING chunk is on its rail's by_time and on its
 * path's queue, both ordered by time of transmission, and counted in flying_*. A LOST chunk is on the lost queue alone,
 * a FREE or HELD one on none. A chunk that a reliable NIC places, or that goes over a connection, is not on by_time.
 */
#include "core/sent.h"

#include <assert.h>

static struct chunk *by_time(const struct queue_link *link)
{
    return QUEUE_HOLDER(link, struct chunk, by_time);
}

static struct path *path_of(const struct sent *sent, const struct rail *rail, const struct chunk *chunk)
{
    return chunk->placed ? &rail->qps.paths[chunk->path >> sent->pair_bits] : &sent->paths[chunk->path];
}

void sent_init(struct sent *sent, struct chunk *chunks, uint32_t window, struct rail *rails, struct path *paths,
               sent_acked_fn acked, void *context)
{
    assert(window && (window & (window - 1)) == 0);
    *sent = (struct sent){
        .rails = rails,
        .paths = paths,
        .chunks = chunks,
        .window = window,
        .acked = acked,
        .context = context,
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

static inline void leave_lost(struct sent *sent, struct chunk *chunk)
{
    assert(chunk->state == CHUNK_LOST);
    queue_remove(&sent->lost, &chunk->by_time);
    sent->lost_payload -= chunk->payload_bytes;
}

/* Takes a chunk off its queues, among them those of its rail. */
static inline void land(struct sent *sent, struct rail *rail, struct chunk *chunk)
{
    if (chunk->state == CHUNK_FLYING) {
        struct path *path = path_of(sent, rail, chunk);
        queue_remove(&rail->by_time, &chunk->by_time);
        queue_remove(&path->flying, &chunk->by_path);
        path->in_flight--;
        sent->flying_charge -= chunk->charged_bytes;
        rail->flying_payload -= chunk->payload_bytes;
        rail->flying_chunks--;
    } else if (chunk->state == CHUNK_LOST) {
        leave_lost(sent, chunk);
    }
    chunk->state = CHUNK_FREE;
}

static inline void enter_flight(struct sent *sent, struct rail *rail, struct chunk *chunk, struct path *path,
                                bool reliable)
{
    if (!reliable)
        queue_append(&rail->by_time, &chunk->by_time);
    queue_append(&path->flying, &chunk->by_path);
    path->in_flight++;
    sent->flying_charge += chunk->charged_bytes;
    rail->flying_payload += chunk->payload_bytes;
    rail->flying_chunks++;
}

void sent_fly(struct sent *sent, struct rail *rail, struct chunk *chunk, uint16_t path_index, uint64_t now_ns)
{
    if (chunk->state != CHUNK_FREE)
        leave_lost(sent, chunk);
    chunk->path = path_index;
    chunk->rail = rail->index;
    struct path *path;
    bool reliable;
    if (chunk->placed) {
        path = &rail->qps.paths[path_index >> sent->pair_bits];
        reliable = sent->data_qps_reliable;
    } else {
        path = &sent->paths[path_index];
        reliable = rail->reliable;
    }
    chunk->state = CHUNK_FLYING;
    chunk->path_seq = path->next_seq++;
    chunk->sent_ns = now_ns;
    if (chunk->transmissions < UINT8_MAX)
        chunk->transmissions++;
    enter_flight(sent, rail, chunk, path, reliable);
}

void sent_write(struct sent *sent, struct rail *rail, const struct chunk *plan)
{
    assert(sent_has_room(sent));
    struct chunk *chunk = sent_chunk(sent, sent->next_seq++);
    struct path *path = &rail->qps.paths[plan->path >> sent->pair_bits];
    assert(chunk->state == CHUNK_FREE && plan->state == CHUNK_FLYING);
    *chunk = *plan;
    chunk->path_seq = path->next_seq++;
    enter_flight(sent, rail, chunk, path, sent->data_qps_reliable);
}

struct chunk *sent_first_lost(const struct sent *sent)
{
    return by_time(sent->lost.head);
}

struct chunk *sent_next_lost(const struct chunk *chunk)
{
    return by_time(chunk->by_time.next);
}

struct chunk *rail_newest(const struct rail *rail)
{
    return by_time(queue_last(&rail->by_time));
}

struct chunk *rail_oldest(const struct rail *rail)
{
    return by_time(rail->by_time.head);
}

struct chunk *rail_next(const struct chunk *chunk)
{
    return by_time(chunk->by_time.next);
}

static bool is_large(const struct rail *rail, const struct chunk *chunk)
{
    return chunk_largest(chunk) > rail->base_bytes && !chunk->placed && !chunk->written && !chunk->in_pieces;
}

static void wait_lost(struct sent *sent, struct chunk *chunk)
{
    assert(chunk->state == CHUNK_FLYING || chunk->state == CHUNK_HELD);
    land(sent, sent_rail(sent, chunk), chunk);
    chunk->state = CHUNK_LOST;
    queue_append(&sent->lost, &chunk->by_time);
    sent->lost_payload += chunk->payload_bytes;
}

void sent_lose(struct sent *sent, struct chunk *chunk)
{
    struct rail *rail = sent_rail(sent, chunk);
    if (is_large(rail, chunk) && chunk->sent_ns > rail->large_lost_ns)
        rail->large_lost_ns = chunk->sent_ns;
    wait_lost(sent, chunk);
}

unsigned sent_lose_large(struct sent *sent, struct rail *rail)
{
    unsigned lost = 0;
    for (struct chunk *chunk = rail_oldest(rail), *next; chunk; chunk = next) {
        next = by_time(chunk->by_time.next);
        if (!is_large(rail, chunk))
            continue;
        wait_lost(sent, chunk);
        lost++;
    }
    return lost;
}

unsigned sent_lose_path(struct sent *sent, const struct path *path)
{
    unsigned lost = 0;
    for (struct chunk *chunk; (chunk = QUEUE_HOLDER(path->flying.head, struct chunk, by_path)); lost++)
        sent_lose(sent, chunk);
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
        land(sent, sent_rail(sent, chunk), chunk);
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
        chunk->path = sent_rail(sent, chunk)->first_path; /* of datagrams now */
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
static bool is_surely_last(const struct rail *rail, const struct chunk *chunk)
{
    return chunk->transmissions == 1 || (rail->too_soon_ns && chunk->sent_ns <= rail->too_soon_ns);
}

static void note_small(struct rail *rail, const struct chunk *chunk)
{
    if (is_surely_last(rail, chunk) && chunk->sent_ns > rail->acked.small_ns)
        rail->acked.small_ns = chunk->sent_ns;
}

static void note_size(struct rail *rail, const struct chunk *chunk)
{
    bool large = is_large(rail, chunk);
    rail->acked.large |= large;
    if (!large && !chunk->placed)
        note_small(rail, chunk);
}

/* Declared lost, yet acked: before its retransmission left, or too soon after that (as Eifel, RFC 3522). */
static bool is_spurious(const struct rail *rail, const struct chunk *chunk)
{
    return (chunk->state == CHUNK_LOST && (chunk->acked_mask == 0 || chunk->transmissions == 1)) ||
           (chunk->transmissions > 1 && rail->too_soon_ns && chunk->sent_ns > rail->too_soon_ns);
}

void sent_ack_one(struct sent *sent, struct chunk *chunk)
{
    if (chunk->state == CHUNK_FREE)
        return;
    struct rail *rail = sent_rail(sent, chunk);
    struct sent_acked *result = &rail->acked;
    bool doubtful = chunk->transmissions > 1 || chunk->state == CHUNK_LOST; /* most chunks are neither */
    if (doubtful && is_spurious(rail, chunk))
        result->spurious = true;
    if ((!doubtful || is_surely_last(rail, chunk)) && chunk->sent_ns > rail->newest_acked_ns)
        rail->newest_acked_ns = chunk->sent_ns;
    result->payload_bytes += chunk->payload_bytes;
    result->chunks++;
    if (rail->watches)
        note_size(rail, chunk);
    land(sent, rail, chunk);
    sent->acked(sent->context, chunk);
}

/* Some datagrams of a chunk have arrived, but not all. The last one may be small where the others are large. */
static void note_parts(struct rail *rail, const struct chunk *chunk, uint64_t fresh_mask)
{
    bool whole_ones = fresh_mask & ~(UINT64_C(1) << (chunk->count - 1)), large = is_large(rail, chunk);
    rail->acked.parts = true;
    rail->acked.large |= large && (whole_ones || chunk->last_bytes > rail->base_bytes);
    if (!large || (!whole_ones && chunk->last_bytes <= rail->base_bytes))
        note_small(rail, chunk);
}

bool sent_ack(struct sent *sent, const struct wire_ack *ack)
{
    uint64_t cumulative = wire_expand(ack->cumulative, sent->cumulative);
    if (cumulative > sent->next_seq && cumulative - sent->next_seq <= UINT32_MAX)
        return false;
    if (cumulative > sent->next_seq)
        cumulative = 0; /* older than the first chunk */

    while (sent->cumulative < cumulative)
        sent_ack_one(sent, sent_chunk(sent, sent->cumulative++));

    for (unsigned word = 0; word < ack->word_count; word++) {
        for (uint64_t bits = ack->words[word]; bits; bits &= bits - 1) {
            uint64_t seq = cumulative + 1 + word * 64 + (unsigned)__builtin_ctzll(bits);
            if (seq >= sent->cumulative && seq < sent->next_seq)
                sent_ack_one(sent, sent_chunk(sent, seq));
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
            note_parts(sent_rail(sent, chunk), chunk, mask & ~chunk->acked_mask);
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

unsigned sent_lose_by_path(struct sent *sent, struct rail *rail, uint16_t path, uint32_t path_seq)
{
    return lose_before(sent, &rail->paths, path, path_seq, rail->reorder_threshold);
}

unsigned sent_lose_by_data_qp(struct sent *sent, struct rail *rail, uint16_t local, uint32_t path_seq)
{
    return lose_before(sent, &rail->qps, local, path_seq, 1);
}

unsigned sent_lose_by_time(struct sent *sent, struct rail *rail, uint64_t now_ns, uint64_t *next_ns)
{
    const struct rtt *rtt = &rail->rtt;
    unsigned lost = 0;
    struct chunk *chunk;
    *next_ns = UINT64_MAX;
    if (rtt->srtt_ns == 0)
        return 0;
    uint64_t window_ns = rtt->min_ns / 4 * rail->reorder_window_quarters;
    if (window_ns > rtt->srtt_ns)
        window_ns = rtt->srtt_ns;
    /* Chunks on faster paths overtake one on a slow path, so it gets the time that slow paths take. But no more
     * than twice the usual: a chunk in the queue of a broken link is better retransmitted over another. */
    uint64_t round_trip_ns = rtt->slow_ns < 2 * rtt->srtt_ns ? rtt->slow_ns : 2 * rtt->srtt_ns;
    if (round_trip_ns < rtt->latest_ns)
        round_trip_ns = rtt->latest_ns;
    round_trip_ns += rtt->peer_ack_delay_ns;

    while ((chunk = rail_oldest(rail)) && chunk->sent_ns < rail->newest_acked_ns) {
        uint64_t due_ns = chunk->sent_ns + round_trip_ns + window_ns;
        if (due_ns > now_ns) {
            *next_ns = due_ns;
            break;
        }
        path_report(sent_set(sent, chunk), sent_path(sent, chunk), PATH_LOST, 0);
        sent_lose(sent, chunk);
        lost++;
    }
    return lost;
}
