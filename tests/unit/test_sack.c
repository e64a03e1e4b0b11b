/* SPDX-License-Identifier: Apache-2.0 */
/* Receive side of the chunk sequence space: what counts as new, and what acks say. */
#include "core/rng.h"
#include "core/sack.h"

#include <criterion/criterion.h>
#include <string.h>

enum { WINDOW = 128 };

static struct sack sack;
static struct sack_chunk chunks[16384];
static struct wire_ack ack;

static void setup(uint64_t cumulative, uint32_t window)
{
    sack_init(&sack, chunks, window, NULL, 0);
    memset(chunks, 0, sizeof chunks);
    sack.cumulative = sack.end = cumulative;
}

static struct wire_packet packet(uint64_t seq, unsigned index, unsigned count)
{
    return (struct wire_packet){.seq = (uint32_t)seq, .index = (uint8_t)index, .count = (uint8_t)count};
}

static enum sack_verdict check(uint64_t seq, unsigned index, unsigned count)
{
    uint64_t full;
    struct wire_packet p = packet(seq, index, count);
    enum sack_verdict verdict = sack_check(&sack, &p, &full);
    if (verdict == SACK_NEW)
        cr_assert_eq(full, seq);
    return verdict;
}

static bool arrive(uint64_t seq, unsigned index, unsigned count)
{
    cr_assert_eq(check(seq, index, count), SACK_NEW);
    return sack_mark(&sack, seq, index, count);
}

static bool acked(uint64_t seq)
{
    uint64_t cumulative = wire_expand(ack.cumulative, seq);
    if (seq < cumulative)
        return true;
    uint64_t bit = seq - cumulative - 1;
    return seq > cumulative && bit / 64 < ack.word_count && ack.words[bit / 64] >> bit % 64 & 1;
}

Test(sack, in_order)
{
    setup(0, WINDOW);
    for (uint64_t seq = 0; seq < 1000; seq++) {
        cr_assert(arrive(seq, 0, 1));
        cr_assert_eq(sack.cumulative, seq + 1);
        cr_assert_not(sack_has_gap(&sack));
        cr_assert_eq(check(seq, 0, 1), SACK_DUPLICATE);
    }
    sack_fill(&sack, &ack, 0);
    cr_assert(ack.cumulative == 1000 && ack.word_count == 0 && ack.partial_count == 0 && ack.path_count == 0);
}

Test(sack, masks_of_trains)
{
    setup(0, WINDOW);
    for (unsigned index = 64; index-- > 1;)
        cr_assert_not(arrive(0, index, 64));
    cr_assert_eq(check(0, 5, 64), SACK_DUPLICATE);
    cr_assert_eq(check(0, 0, 63), SACK_MALFORMED, "another count than before");
    cr_assert(sack_has_gap(&sack));
    sack_fill(&sack, &ack, 0);
    cr_assert_eq(ack.cumulative, 0);
    cr_assert_eq(ack.partial_count, 1);
    cr_assert(ack.partials[0].seq == 0 && ack.partials[0].mask == ~UINT64_C(1));
    cr_assert(arrive(0, 0, 64));
    cr_assert_eq(sack.cumulative, 1);
    cr_assert_eq(check(0, 0, 64), SACK_DUPLICATE);
}

Test(sack, window_edges)
{
    setup(10, WINDOW);
    cr_assert_eq(check(9, 0, 1), SACK_DUPLICATE);
    cr_assert_eq(check(10 + WINDOW - 1, 0, 1), SACK_NEW);
    cr_assert_eq(check(10 + WINDOW, 0, 1), SACK_BEYOND_WINDOW);
    cr_assert_eq(check(10 + (UINT64_C(1) << 31) - 1, 0, 1), SACK_BEYOND_WINDOW);
    setup(0, WINDOW);
    cr_assert_eq(check(UINT64_MAX, 0, 1), SACK_DUPLICATE, "before the beginning");
}

Test(sack, wraps)
{
    uint64_t start = UINT64_C(0xffffffff) - 20;
    setup(start, WINDOW);
    for (uint64_t seq = start + 1; seq < start + 60; seq++)
        cr_assert(arrive(seq, 0, 1));
    sack_fill(&sack, &ack, 0);
    cr_assert_eq(ack.cumulative, (uint32_t)start);
    for (uint64_t seq = start + 1; seq < start + 60; seq++)
        cr_assert(acked(seq));
    cr_assert_not(acked(start));
    cr_assert_not(acked(start + 60));
    cr_assert(arrive(start, 0, 1));
    cr_assert_eq(sack.cumulative, start + 60);
}

/* Any order, against a table. */
Test(sack, model)
{
    enum { CHUNKS = 4000, DATAGRAMS = 5 };
    static uint8_t masks[CHUNKS];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rng rng = {seed};
        setup(0, WINDOW);
        memset(masks, 0, sizeof masks);
        uint64_t edge = 0;
        while (edge < CHUNKS) {
            uint64_t seq = edge + rng_below(&rng, WINDOW);
            unsigned index = rng_below(&rng, DATAGRAMS);
            if (seq >= CHUNKS)
                seq = edge;
            bool had = masks[seq] >> index & 1;
            cr_assert_eq(check(seq, index, DATAGRAMS), had ? SACK_DUPLICATE : SACK_NEW);
            if (!had)
                cr_assert_eq(arrive(seq, index, DATAGRAMS),
                             (masks[seq] |= (uint8_t)(1 << index)) == (1 << DATAGRAMS) - 1);
            while (edge < CHUNKS && masks[edge] == (1 << DATAGRAMS) - 1)
                edge++;
            cr_assert_eq(sack.cumulative, edge);
            if (rng_below(&rng, 50))
                continue;
            sack_fill(&sack, &ack, 0);
            for (seq = edge; seq < edge + WINDOW && seq < CHUNKS; seq++)
                cr_assert_eq(acked(seq), masks[seq] == (1 << DATAGRAMS) - 1);
            for (unsigned i = 0; i < ack.partial_count; i++)
                cr_assert_eq(ack.partials[i].mask, masks[ack.partials[i].seq]);
        }
    }
}

Test(sack, an_ack_is_bounded_in_a_large_window)
{
    setup(0, 16384);
    for (uint64_t seq = 1; seq < 16384; seq += 2)
        arrive(seq, 0, 1);
    sack_fill(&sack, &ack, 0);
    cr_assert_eq(ack.word_count, WIRE_ACK_WORDS_MAX);
    for (unsigned i = 0; i < WIRE_ACK_WORDS_MAX; i++)
        cr_assert_eq(ack.words[i], UINT64_C(0x5555555555555555));
    setup(0, 16384);
    for (uint64_t seq = 0; seq < 16384; seq++)
        arrive(seq, 0, 2);
    sack_fill(&sack, &ack, 0);
    cr_assert(ack.partial_count == WIRE_ACK_PARTIALS_MAX && ack.partials[0].seq == 0);
}

/* More chunks have arrived in part than an ack can name: the newest is in each, the others have their turn. */
Test(sack, every_part_is_told)
{
    enum { PARTS = 40, NEWEST = 25 };
    setup(0, WINDOW);
    for (uint64_t seq = 0; seq < PARTS; seq++)
        if (seq != NEWEST)
            arrive(seq, 0, seq % 5 == 4 ? 1 : 2); /* some are whole */
    arrive(NEWEST, 1, 2);
    unsigned told[PARTS] = {0}, parts = 0;
    for (unsigned i = 0; i < 5; i++) {
        sack_fill(&sack, &ack, 0);
        cr_assert(ack.partial_count == WIRE_ACK_PARTIALS_MAX && ack.partials[0].seq == NEWEST);
        for (unsigned k = 0; k < ack.partial_count; k++) {
            cr_assert_eq(ack.partials[k].mask, ack.partials[k].seq == NEWEST ? 2 : 1);
            told[ack.partials[k].seq]++;
        }
        for (uint64_t seq = 0; seq < PARTS; seq++)
            cr_assert_eq(acked(seq), seq % 5 == 4);
    }
    for (unsigned seq = 0; seq < PARTS; seq++)
        if (seq != NEWEST && seq % 5 != 4) {
            cr_assert(told[seq] == 1 || told[seq] == 2, "chunk %u: %u times", seq, told[seq]);
            parts += told[seq];
        }
    cr_assert_eq(parts, 5 * (WIRE_ACK_PARTIALS_MAX - 1));
}

/* Those that fit are all named, wherever the turn was; it does not stay behind the edge or beyond the end. */
Test(sack, few_parts_are_all_told)
{
    setup(0, WINDOW);
    for (uint64_t seq = 0; seq < 20; seq++)
        arrive(seq, 0, 2);
    sack_fill(&sack, &ack, 0);
    sack_fill(&sack, &ack, 0);
    for (uint64_t seq = 0; seq < 16; seq++)
        arrive(seq, 1, 2);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t seen = 0;
        sack_fill(&sack, &ack, 0);
        cr_assert_eq(ack.partial_count, 4);
        for (unsigned k = 0; k < ack.partial_count; k++)
            seen |= UINT64_C(1) << ack.partials[k].seq;
        cr_assert_eq(seen, UINT64_C(0xf0000));
    }
}

static void note(uint16_t path, uint32_t path_seq, uint32_t time_stamp, bool ce, uint64_t now_ns)
{
    struct wire_packet p = {.path = path, .path_seq = path_seq, .time_stamp = time_stamp, .count = 1};
    sack_note_path(&sack, &p, ce, now_ns);
}

Test(sack, path_echoes)
{
    setup(0, WINDOW);
    note(3, 10, 111, false, 1000);
    note(3, 9, 110, true, 1100);   /* overtaken: only its mark counts */
    note(3, 10, 111, false, 1200); /* a later datagram of the same train */
    note(5, 0xffffffff, 7, false, 2000);
    note(5, 1, 8, false, 2160);      /* newer, past the wrap */
    note(PATHS_MAX, 1, 1, false, 0); /* no such path */
    sack_fill(&sack, &ack, 2320);
    cr_assert_eq(ack.path_count, 2);
    cr_assert(ack.paths[0].path == 3 && ack.paths[0].path_seq == 10 && ack.paths[0].time_stamp == 111);
    cr_assert_eq(ack.paths[0].ack_delay, wire_time(1320));
    cr_assert(ack.paths[0].ce);
    cr_assert(ack.paths[1].path == 5 && ack.paths[1].path_seq == 1 && ack.paths[1].time_stamp == 8);
    cr_assert_eq(ack.paths[1].ack_delay, 10);
    cr_assert_not(ack.paths[1].ce);
    sack_fill(&sack, &ack, 3000);
    cr_assert_eq(ack.path_count, 0, "told before");
}

Test(sack, more_paths_than_an_ack_names_take_turns)
{
    enum { PATHS = 3 * WIRE_ACK_PATHS_MAX };
    bool told[PATHS] = {false};
    setup(0, WINDOW);
    for (uint16_t path = 0; path < PATHS; path++)
        note(path, 1, 0, false, 0);
    for (unsigned acks = 0; acks < 3; acks++) {
        sack_fill(&sack, &ack, 0);
        cr_assert_eq(ack.path_count, WIRE_ACK_PATHS_MAX);
        for (unsigned i = 0; i < ack.path_count; i++) {
            cr_assert_not(told[ack.paths[i].path]);
            told[ack.paths[i].path] = true;
        }
        note(0, acks + 2, 0, false, 0); /* one that is always busy must not shut out the others */
        told[0] = false;
    }
}

/* ---- what NICs place ---- */

Test(sack, a_write_is_a_whole_chunk_however_its_retransmissions_are_cut)
{
    setup(10, WINDOW);
    cr_assert_eq(sack_check_write(&sack, 12), SACK_NEW);
    sack_mark(&sack, 12, 0, 1);
    cr_assert_eq(sack_check_write(&sack, 12), SACK_DUPLICATE);
    for (unsigned index = 0; index < 40; index++)
        cr_assert_eq(check(12, index, 40), SACK_DUPLICATE);
    cr_assert_eq(sack_check_write(&sack, 9), SACK_DUPLICATE);
    cr_assert_eq(sack_check_write(&sack, UINT64_MAX), SACK_DUPLICATE);
    cr_assert_eq(sack_check_write(&sack, 10 + WINDOW), SACK_BEYOND_WINDOW);
    arrive(11, 0, 2); /* a part of a retransmission */
    cr_assert_eq(sack_check_write(&sack, 11), SACK_MALFORMED);
    arrive(11, 1, 2);
    cr_assert_eq(sack_check_write(&sack, 11), SACK_DUPLICATE);
    arrive(10, 0, 1);
    cr_assert_eq(sack.cumulative, 13);
}

Test(sack, data_qps_are_named_beside_paths)
{
    static struct sack_path qps[4];
    sack_init(&sack, chunks, WINDOW, qps, 4);
    note(2, 7, 70, false, 1000);
    sack_note_write(&sack, 2, 99, 1000);
    struct wire_packet p = {.path = 3, .path_seq = 5, .time_stamp = 50, .count = 1};
    sack_note_data_qp(&sack, 3, &p, true, 1000);
    sack_note_write(&sack, 0, UINT64_C(0x100000005), 1000);
    sack_fill(&sack, &ack, 1160);
    cr_assert_eq(ack.path_count, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct wire_ack_path *path = &ack.paths[i];
        cr_assert_eq(path->ack_delay, 10);
        if (!path->on_path)
            cr_assert(path->path == 2 && path->path_seq == 7 && path->time_stamp == 70 && !path->by_sequence);
        else if (path->path == 3)
            cr_assert(path->path_seq == 5 && path->time_stamp == 50 && !path->by_sequence && path->ce);
        else
            cr_assert(path->by_sequence && path->time_stamp == 0 && path->path_seq == (path->path == 2 ? 99 : 5));
    }
    sack_fill(&sack, &ack, 2000);
    cr_assert_eq(ack.path_count, 0);
    sack_note_write(&sack, 2, 98, 3000); /* in order: what came last is the newest */
    sack_fill(&sack, &ack, 3000);
    cr_assert(ack.path_count == 1 && ack.paths[0].path_seq == 98);
}
