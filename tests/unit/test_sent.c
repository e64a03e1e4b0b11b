/* SPDX-License-Identifier: Apache-2.0 */
/* Send side of the chunk sequence space: lists, what acks free, and when a chunk counts as lost. */
#include "core/sent.h"

#include <criterion/criterion.h>
#include <string.h>

enum { WINDOW = 64, PATHS = 4, MS = 1000000 };

static struct sent sent;
static struct chunk chunks[WINDOW];
static struct path paths[PATHS];
static struct rail rail;
static struct rng rng = {1};
static uint64_t freed[1024];
static unsigned freed_count;

static void on_acked(void *context, struct chunk *chunk)
{
    cr_assert_eq(context, freed);
    freed[freed_count++] = (uint64_t)(chunk - chunks);
}

static void setup_at(uint64_t seq)
{
    memset(chunks, 0, sizeof chunks);
    rail = (struct rail){.reorder_threshold = 3, .reorder_window_quarters = 2};
    rtt_init(&rail.rtt);
    path_set_init(&rail.paths, paths, PATHS, 2, &rng);
    sent_init(&sent, chunks, WINDOW, &rail, paths, on_acked, freed);
    sent.next_seq = sent.cumulative = seq;
    freed_count = 0;
}

static void setup(void)
{
    setup_at(0);
}

static struct chunk *send(uint16_t path, uint64_t now_ns)
{
    uint64_t seq;
    struct chunk plan = {.count = 4, .payload_bytes = 1000, .charged_bytes = 1700};
    struct chunk *chunk = sent_new(&sent, &plan, &seq);
    cr_assert_eq(sent_seq(&sent, chunk), seq);
    sent_fly(&sent, &rail, chunk, path, now_ns);
    return chunk;
}

static bool apply(const struct wire_ack *wire)
{
    rail.acked = (struct sent_acked){0};
    return sent_ack(&sent, wire);
}

static struct sent_acked ack(uint64_t cumulative, uint64_t bits)
{
    struct wire_ack wire = {.cumulative = (uint32_t)cumulative, .word_count = 1, .words = {bits}};
    cr_assert(apply(&wire));
    return rail.acked;
}

static void cr_consistent(void)
{
    unsigned flying = 0, lost = 0, listed = 0;
    uint32_t in_flight[PATHS] = {0};
    for (unsigned i = 0; i < WINDOW; i++) {
        flying += chunks[i].state == CHUNK_FLYING;
        lost += chunks[i].state == CHUNK_LOST;
        if (chunks[i].state == CHUNK_FLYING)
            in_flight[chunks[i].path]++;
    }
    cr_assert_eq(flying, rail.flying_chunks);
    cr_assert_eq(rail.flying_payload, flying * 1000u);
    cr_assert_eq(sent.flying_charge, flying * 1700u);
    cr_assert_eq(sent.lost_payload, lost * 1000u);
    uint64_t last_ns = 0;
    for (const struct queue_link *link = rail.by_time.head; link; link = link->next, listed++) {
        const struct chunk *chunk = QUEUE_HOLDER(link, struct chunk, by_time);
        cr_assert_geq(chunk->sent_ns, last_ns);
        last_ns = chunk->sent_ns;
    }
    cr_assert_eq(listed, flying);
    for (const struct queue_link *link = sent.lost.head; link; link = link->next)
        lost--;
    cr_assert_eq(lost, 0);
    for (unsigned p = 0; p < PATHS; p++) {
        unsigned count = 0;
        for (const struct queue_link *link = paths[p].flying.head; link; link = link->next, count++)
            cr_assert_eq(QUEUE_HOLDER(link, struct chunk, by_path)->path, p);
        cr_assert_eq(count, in_flight[p]);
        cr_assert_eq(paths[p].in_flight, count);
    }
}

Test(sent, window, .init = setup)
{
    for (unsigned i = 0; i < WINDOW; i++) {
        cr_assert(sent_has_room(&sent));
        send(0, i);
    }
    cr_assert_not(sent_has_room(&sent));
    ack(0, 1); /* chunk 1 alone: its record is free, its place in the window is not */
    cr_assert_not(sent_has_room(&sent));
    ack(2, 0);
    cr_assert(sent_has_room(&sent));
    cr_assert_eq(freed_count, 2);
    cr_consistent();
}

Test(sent, acks, .init = setup)
{
    for (unsigned i = 0; i < 10; i++)
        send(i % PATHS, i);
    struct sent_acked acked = ack(2, 0x15); /* 0, 1; then 3, 5, 7 */
    cr_assert(acked.chunks == 5 && acked.payload_bytes == 5000 && !acked.spurious);
    cr_assert_eq(rail.flying_chunks, 5);
    cr_consistent();
    acked = ack(2, 0x15);
    cr_assert(acked.chunks == 0 && acked.payload_bytes == 0, "once");
    acked = ack(1, 0);
    cr_assert_eq(acked.chunks, 0, "an older ack");
    acked = ack(10, 0);
    cr_assert_eq(acked.chunks, 5);
    cr_assert(sent.cumulative == 10 && rail.flying_chunks == 0 && !rail_oldest(&rail) && !rail_newest(&rail));
    cr_consistent();
}

Test(sent, acks_of_what_was_never_sent, .init = setup)
{
    send(0, 1);
    struct wire_ack wire = {.cumulative = 2};
    cr_assert_not(apply(&wire));
    wire.cumulative = 0x7fffffff;
    cr_assert_not(apply(&wire));
    wire = (struct wire_ack){
        .word_count = 1, .words = {UINT64_MAX}, .partial_count = 2, .partials = {{100, 1}, {0xffffffff, 1}}};
    cr_assert(apply(&wire));
    cr_assert_eq(rail.acked.chunks, 0);
    cr_assert_eq(rail.flying_chunks, 1);
    ack(0xfffffff0, UINT64_MAX); /* from before the beginning */
    cr_assert_eq(freed_count, 0);
    cr_consistent();
}

Test(sent, wraps)
{
    uint64_t start = UINT64_C(0x1ffffffff) - 10;
    setup_at(start);
    for (unsigned i = 0; i < 40; i++)
        send(0, i);
    ack(start + 30, 2);
    cr_assert_eq(sent.cumulative, start + 30);
    cr_assert_eq(freed_count, 31);
    cr_assert_eq(sent_chunk(&sent, start + 32)->state, CHUNK_FREE);
    cr_assert_eq(sent_seq(&sent, rail_oldest(&rail)), start + 30);
    cr_consistent();
}

Test(sent, partial_masks, .init = setup)
{
    struct chunk *chunk = send(0, 1);
    struct wire_ack wire = {.partial_count = 1, .partials = {{0, 0x5}}};
    cr_assert(apply(&wire));
    cr_assert(chunk->acked_mask == 0x5 && rail.acked.parts);
    cr_assert(apply(&wire));
    cr_assert_not(rail.acked.parts, "no news");
    wire.partials[0].mask = 0x2;
    cr_assert(apply(&wire));
    cr_assert_eq(chunk->acked_mask, 0x7, "what has arrived stays so");
    cr_assert(rail.acked.parts);
    wire.partials[0].mask = UINT64_C(1) << 63;
    cr_assert(apply(&wire));
    cr_assert(chunk->acked_mask == 0x7 && !rail.acked.parts, "there is no such datagram");
    wire.partials[0].mask = UINT64_MAX;
    cr_assert(apply(&wire));
    cr_assert_not(rail.acked.parts);
    cr_assert_eq(chunk->acked_mask, 0x7, "a whole chunk is no partial one: nothing would be left to repeat");
    wire.partials[0].mask = 0xfffffffffffffff0;
    cr_assert(apply(&wire));
    cr_assert_eq(chunk->acked_mask, 0x7, "it has four datagrams");
    cr_assert_eq(rail.acked.chunks, 0);
}

/* Two lies in one ack, neither of which is whole by itself. */
Test(sent, partial_masks_add_up_to_no_whole, .init = setup)
{
    struct chunk *chunk = send(0, 1);
    struct wire_ack wire = {.partial_count = 3, .partials = {{0, 0x3}, {0, 0xc}, {0, UINT64_MAX & ~0xfu}}};
    cr_assert(apply(&wire));
    cr_assert_eq(chunk->acked_mask, 0x3);
    cr_consistent();
}

/* No datagram of a write was sent; how many its retransmission has is decided when it is made. */
Test(sent, a_write_does_not_arrive_in_part, .init = setup)
{
    struct chunk *chunk = send(0, 1);
    struct wire_ack wire = {.partial_count = 1, .partials = {{0, 0x1}}};
    chunk->written = true;
    cr_assert(apply(&wire));
    cr_assert_eq(chunk->acked_mask, 0);
    chunk->written = false;
    cr_assert(apply(&wire));
    cr_assert_eq(chunk->acked_mask, 1);
}

Test(sent, loss_by_path, .init = setup)
{
    for (unsigned i = 0; i < 5; i++)
        send(0, i); /* path sequences 1 to 5 */
    send(1, 9);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 0, 3), 0);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 0, 4), 1);
    cr_assert_eq(sent_seq(&sent, sent_first_lost(&sent)), 0);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 1, 3), 0);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 0, 5), 1);
    cr_consistent();
    /* sent again it is the newest of its path, and the oldest loss comes first */
    sent_fly(&sent, &rail, sent_first_lost(&sent), 0, 20);
    cr_assert_eq(sent_seq(&sent, rail_newest(&rail)), 0);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 0, 7), 2, "3 and 4, not the retransmission");
    cr_assert_eq(sent_seq(&sent, sent_first_lost(&sent)), 1);
    cr_consistent();
}

Test(sent, path_sequences_wrap, .init = setup)
{
    paths[2].next_seq = 0xfffffffe;
    for (unsigned i = 0; i < 4; i++)
        send(2, i); /* ..fe, ..ff, 0, 1 */
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 2, 0), 0);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 2, 1), 1);
    cr_assert_eq(sent_lose_by_path(&sent, &rail, 2, 2), 1);
}

Test(sent, loss_by_time, .init = setup)
{
    uint64_t next_ns;
    send(0, 1 * MS);
    send(1, 2 * MS);
    send(2, 6 * MS);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 50 * MS, &next_ns), 0);
    cr_assert_eq(next_ns, UINT64_MAX, "no round trip is known yet");
    rtt_sample(&rail.rtt, 4 * MS, 0, 5 * MS);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 50 * MS, &next_ns), 0, "nothing later was acked");
    ack(0, 1); /* chunk 1 */
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 5 * MS, &next_ns), 0);
    cr_assert_eq(next_ns, (1 + 4 + 2) * MS, "a round trip and half of the shortest");
    cr_assert_eq(sent_lose_by_time(&sent, &rail, next_ns, &next_ns), 1);
    cr_assert_eq(sent_seq(&sent, sent_first_lost(&sent)), 0);
    cr_assert_eq(next_ns, UINT64_MAX, "chunk 2 is later than all that was acked");
    cr_consistent();
}

Test(sent, peer_hold_time_is_not_loss, .init = setup)
{
    uint64_t next_ns;
    rtt_sample(&rail.rtt, 4 * MS, 3 * MS, 0);
    send(0, 1 * MS);
    send(1, 2 * MS);
    ack(0, 1);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 8 * MS, &next_ns), 0);
    cr_assert_eq(next_ns, (1 + 4 + 3 + 2) * MS);
}

Test(sent, slow_paths_are_not_loss, .init = setup)
{
    uint64_t next_ns;
    rtt_sample(&rail.rtt, 8 * MS, 0, 0); /* some other path */
    rtt_sample(&rail.rtt, 4 * MS, 0, 0);
    send(0, 1 * MS);
    send(1, 2 * MS);
    ack(0, 1);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 9 * MS, &next_ns), 0);
    cr_assert_gt(next_ns, 9 * MS);
    cr_assert_leq(next_ns, (1 + 8 + 2) * MS);
    for (unsigned i = 0; i < 40; i++)
        rtt_sample(&rail.rtt, 4 * MS, 0, 0);
    rtt_sample(&rail.rtt, 80 * MS, 0, 0); /* broken rather than slow */
    rtt_sample(&rail.rtt, 4 * MS, 0, 0);
    cr_assert_lt(rail.rtt.srtt_ns, 15 * MS);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 2 * MS, &next_ns), 0);
    cr_assert_eq(next_ns, 1 * MS + 2 * rail.rtt.srtt_ns + 2 * MS);
}

/* A whole burst is lost. The ack of the one chunk that is repeated shows that for all of it. */
Test(sent, an_acked_retransmission_tells_of_the_rest, .init = setup)
{
    uint64_t next_ns;
    rtt_sample(&rail.rtt, 4 * MS, 0, 0);
    send(0, 1 * MS);
    send(1, 2 * MS);
    struct chunk *chunk = send(2, 3 * MS);
    sent_lose(&sent, chunk);
    sent_fly(&sent, &rail, chunk, 3, 20 * MS);
    rail.too_soon_ns = 19 * MS; /* it can be the first copy that arrived after all */
    ack(0, 2);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 30 * MS, &next_ns), 0);

    chunk = send(2, 30 * MS);
    sent_lose(&sent, chunk);
    sent_fly(&sent, &rail, chunk, 3, 40 * MS);
    rail.too_soon_ns = 41 * MS;
    ack(0, 6);
    cr_assert_eq(sent_lose_by_time(&sent, &rail, 44 * MS, &next_ns), 2);
    cr_consistent();
}

/* Where sizes are watched, an ack tells when the small datagrams left that have arrived. A retransmission is not taken
 * for it. */
Test(sent, small_ones_tell_when_they_left, .init = setup)
{
    rail.base_bytes = 1232;
    rail.watches = true;
    struct chunk *first = send(0, 10 * MS);
    send(1, 20 * MS);
    struct chunk *large = send(0, 30 * MS);
    large->datagram_bytes = large->last_bytes = 1472;
    sent_lose(&sent, first);
    sent_fly(&sent, &rail, first, 1, 40 * MS);
    rail.too_soon_ns = 39 * MS;
    struct sent_acked acked = ack(2, 0);
    cr_assert_eq(acked.small_ns, 20 * MS, "the retransmission of the first is too young");
    cr_assert_not(acked.large);
    acked = ack(3, 0);
    cr_assert_eq(acked.small_ns, 0);
    cr_assert(acked.large);
    struct chunk *again = send(0, 50 * MS);
    sent_lose(&sent, again);
    sent_fly(&sent, &rail, again, 1, 60 * MS);
    rail.too_soon_ns = 60 * MS;
    cr_assert_eq(ack(4, 0).small_ns, 60 * MS);
}

/* The short last datagram of a chunk shows that small ones pass, and nothing of the others. */
Test(sent, a_small_end_is_no_large_one, .init = setup)
{
    struct wire_ack wire = {.partial_count = 1};
    rail.base_bytes = 1232;
    rail.watches = true;
    for (unsigned i = 0; i < 3; i++) {
        struct chunk *chunk = send(0, (10 + i) * MS);
        chunk->datagram_bytes = 8972;
        chunk->last_bytes = i == 1 ? 1233 : 1232;
        wire.partials[0].seq = i;
        wire.partials[0].mask = i == 2 ? 0xc : 0x8;
        cr_assert(apply(&wire));
        cr_assert_eq(rail.acked.large, i > 0, "chunk %u", i);
        cr_assert_eq(rail.acked.small_ns, i > 0 ? 0 : 10 * MS, "chunk %u", i);
    }
}

/* What the NIC did not take is sent for the first time when it takes it. */
Test(sent, that_did_not_leave, .init = setup)
{
    struct chunk *chunk = send(0, 1);
    send(0, 2);
    sent_unsend(&sent, chunk);
    cr_consistent();
    cr_assert_eq(chunk->transmissions, 0);
    cr_assert_eq(sent_first_lost(&sent), chunk);
    sent_fly(&sent, &rail, chunk, 1, 3);
    cr_assert_eq(chunk->transmissions, 1);
    sent_lose(&sent, chunk);
    sent_fly(&sent, &rail, chunk, 1, 4);
    sent_unsend(&sent, chunk);
    cr_assert_eq(chunk->transmissions, 1, "the first did leave");
    cr_assert(ack(1, 0).spurious, "and has arrived");
    cr_consistent();
}

Test(sent, spurious_loss, .init = setup)
{
    struct chunk *chunk = send(0, 1);
    send(0, 2);
    sent_lose(&sent, chunk);
    cr_assert(ack(1, 0).spurious, "given up, yet it had arrived");
    chunk = send(0, 3);
    sent_lose(&sent, chunk);
    sent_fly(&sent, &rail, chunk, 1, 4);
    cr_assert_not(ack(3, 0).spurious, "the retransmission may be what arrived");
    chunk = send(0, 5);
    chunk->acked_mask = 1;
    sent_lose(&sent, chunk);
    cr_assert(ack(4, 0).spurious, "a part had been acked, and nothing sent again");
    chunk = send(0, 6);
    sent_lose(&sent, chunk);
    sent_fly(&sent, &rail, chunk, 1, 7);
    chunk->acked_mask = 1;
    sent_lose(&sent, chunk);
    cr_assert_not(ack(5, 0).spurious, "the rest may have come with the retransmission");
    cr_consistent();
}

/* Random histories keep the lists in order. */
Test(sent, model, .init = setup)
{
    for (unsigned step = 0; step < 20000; step++) {
        unsigned what = rng_below(&rng, 10);
        if (what < 4 && sent_has_room(&sent)) {
            send((uint16_t)rng_below(&rng, PATHS), step);
        } else if (what < 6 && sent_first_lost(&sent)) {
            uint16_t path = (uint16_t)rng_below(&rng, PATHS);
            sent_fly(&sent, &rail, sent_first_lost(&sent), path, step);
        } else if (what == 6) {
            uint16_t path = (uint16_t)rng_below(&rng, PATHS);
            sent_lose_by_path(&sent, &rail, path, paths[path].next_seq - 1 - rng_below(&rng, 8));
        } else if (what == 7 && rail_newest(&rail)) {
            sent_lose(&sent, rail_newest(&rail));
        } else if (what == 8) {
            uint64_t span = sent.next_seq - sent.cumulative;
            freed_count = 0;
            ack(sent.cumulative + (span ? rng_below(&rng, (uint32_t)span) : 0), rng_next(&rng) & rng_next(&rng));
        }
        cr_consistent();
    }
}
