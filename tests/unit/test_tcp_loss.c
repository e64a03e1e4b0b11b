/* SPDX-License-Identifier: Apache-2.0 */
/* How much the network loses, by what the kernel tells of a connection. */
#include "nic/tcp/tcp.h"

#include <criterion/criterion.h>
#include <linux/tcp.h>

enum { SEGMENT = 8948, MS = 1000000 };

static uint64_t looked_ns = 1; /* of the looks */

/* What the kernel tells after so many segments: how many of them again, which the peer had already, and which are
 * under way. 30 ms after the look before. */
static const struct tcp_look *look(struct tcp_loss *loss, uint32_t segments, uint32_t again, uint32_t needless,
                                   uint32_t under_way)
{
    struct tcp_info info = {.tcpi_data_segs_out = segments,
                            .tcpi_total_retrans = again,
                            .tcpi_dsack_dups = needless,
                            .tcpi_retrans = under_way,
                            .tcpi_snd_mss = SEGMENT};
    looked_ns += 30 * MS;
    return tcp_loses(loss, &info, looked_ns);
}

/* The same of a connection whose last look found too much. */
static bool loses(struct tcp_loss *loss, uint32_t segments, uint32_t again, uint32_t needless, uint32_t under_way)
{
    return look(loss, segments, again, needless, under_way) != NULL;
}

static struct tcp_loss lossy(void)
{
    return (struct tcp_loss){.heavy.much_ns = looked_ns, .light.much_ns = looked_ns};
}

Test(tcp_loss, one_of_500_is_too_much)
{
    struct tcp_loss loss = lossy();
    cr_assert_not(loses(&loss, 1000, 1, 0, 0));
    cr_assert_not(loses(&loss, 2000, 3, 0, 0));
    cr_assert(loss.light.sent == 1000 && loss.light.lost == 2);
    cr_assert_eq(look(&loss, 2500, 4, 0, 0), &loss.light);
    cr_assert_not(loses(&loss, 3500, 4, 0, 0));
}

/* Heavy loss shows before the connection has sent much. */
Test(tcp_loss, one_of_200_shows_soon)
{
    enum { SMALL_SEGMENT = 1448 };
    struct tcp_loss loss = {0};
    struct tcp_info info = {.tcpi_snd_mss = SMALL_SEGMENT};
    for (uint32_t i = 1; i <= 3; i++) {
        info.tcpi_data_segs_out = 800 * i;
        info.tcpi_total_retrans = 4 * i;
        const struct tcp_look *found = tcp_loses(&loss, &info, 9 * MS * i); /* nothing within 20 ms */
        cr_assert_null(found);
    }
    info.tcpi_data_segs_out = 3000;
    info.tcpi_total_retrans = 15;
    cr_assert_not(tcp_loses(&loss, &info, 28 * MS), "600 segments are too few bytes");
    info.tcpi_data_segs_out = 3200;
    info.tcpi_total_retrans = 16;
    cr_assert_eq(tcp_loses(&loss, &info, 29 * MS), &loss.heavy);
    info.tcpi_data_segs_out = 4000;
    info.tcpi_total_retrans = 19;
    cr_assert_not(tcp_loses(&loss, &info, 60 * MS), "one of 267, and too few to judge that");
}

/* Queues overflow now and then where nobody tells a connection how much there is room for. */
Test(tcp_loss, a_single_burst_is_borne)
{
    struct tcp_loss loss = {0};
    for (uint32_t i = 0; i < 20; i++) {
        cr_assert_not(loses(&loss, 6000 * i + 3000, 15 * (i + 1), 0, 0));
        cr_assert_not(loses(&loss, 6000 * i + 6000, 15 * (i + 1), 0, 0));
    }
}

/* So is one that several looks see. */
Test(tcp_loss, a_burst_is_short)
{
    struct tcp_loss loss = {0};
    struct tcp_info info = {.tcpi_snd_mss = SEGMENT};
    for (uint32_t i = 1; i < 10; i++) {
        info.tcpi_data_segs_out = 1000 * i;
        info.tcpi_total_retrans = 100 * i;
        cr_assert_not(tcp_loses(&loss, &info, 2 * MS * i));
    }
    cr_assert(!tcp_loses(&loss, &info, 22 * MS) && loss.heavy.sent == 0, "nothing new");
    info.tcpi_data_segs_out += 500;
    info.tcpi_total_retrans += 50;
    cr_assert_eq(tcp_loses(&loss, &info, 22 * MS), &loss.heavy);
}

/* Few segments say little, and wait for more. */
Test(tcp_loss, few_are_counted_with_the_next)
{
    struct tcp_loss loss = lossy();
    cr_assert_not(loses(&loss, 499, 400, 0, 0));
    cr_assert(loses(&loss, 500, 400, 0, 0));
    cr_assert(loss.heavy.sent == 500 && loss.heavy.lost == 400);
}

/* A peer that is stopped gets segments twice, and says so. */
Test(tcp_loss, what_the_peer_had_already_was_not_lost)
{
    struct tcp_loss loss = lossy();
    cr_assert_not(loses(&loss, 562, 4, 4, 0));
    cr_assert_not(loses(&loss, 1200, 8, 5, 3), "three are under way: nobody knows yet");
    cr_assert_eq(loss.light.lost, 0);
    cr_assert_not(loses(&loss, 1800, 8, 8, 0));
    cr_assert_eq(loss.light.much_ns, 0);
    loses(&loss, 2400, 12, 8, 0);
    cr_assert_neq(loss.light.much_ns, 0);
}

/* Where the peer says so late, nothing is lost between the looks, and no number is below zero. */
Test(tcp_loss, what_is_told_late_counts_once)
{
    struct tcp_loss loss = lossy();
    cr_assert(loses(&loss, 1000, 2, 0, 0));
    cr_assert_not(loses(&loss, 2000, 2, 2, 0));
    cr_assert_eq(loss.light.lost, 0);
    cr_assert_not(loses(&loss, 3000, 2, 5, 0));
    loses(&loss, 4000, 9, 5, 0);
    cr_assert_neq(loss.light.much_ns, 0);
    cr_assert_eq(loss.light.lost, 4);
}

/* A connection that came up at `since_ns` breaks at `now_ns` with so many bytes acknowledged. */
static bool is_hole(struct tcp_hole *hole, uint64_t since_ns, uint64_t now_ns, uint64_t acked, uint32_t segment_bytes)
{
    struct tcp_info info = {.tcpi_total_retrans = 4, .tcpi_bytes_acked = acked, .tcpi_snd_mss = segment_bytes};
    return tcp_is_hole(hole, &info, since_ns, now_ns);
}

/* Two connections in a row that get no segment through, one made after the other broke. A cut has broken both before.
 */
Test(tcp_loss, holes_are_told_from_cuts)
{
    struct tcp_hole hole = {0};
    cr_assert_not(is_hole(&hole, 100, 1000, 33, 8948));
    cr_assert_not(is_hole(&hole, 100, 1000, 33, 8948), "another path");
    cr_assert_not(is_hole(&hole, 500, 1200, 33, 8948));
    cr_assert_eq(hole.packet_bytes, 0);
    cr_assert(is_hole(&hole, 1300, 3000, 33, 8948));
    cr_assert_eq(hole.packet_bytes, 1500);
    hole = (struct tcp_hole){0};
    cr_assert_not(is_hole(&hole, 100, 1000, 33, 8948));
    cr_assert_not(is_hole(&hole, 1100, 2000, 8948, 8948), "a segment got through");
    cr_assert_not(is_hole(&hole, 2100, 3000, 33, 8948));
    cr_assert_eq(hole.packet_bytes, 0);
}

/* Nothing was sent again: it was not for want of answers that the connection broke. */
Test(tcp_loss, idle_connections_are_no_holes)
{
    struct tcp_hole hole = {0};
    struct tcp_info info = {.tcpi_bytes_acked = 33, .tcpi_snd_mss = 8948};
    cr_assert_not(tcp_is_hole(&hole, &info, 100, 1000));
    cr_assert_not(tcp_is_hole(&hole, &info, 1100, 2000));
    cr_assert_eq(hole.barren_ns, 0);
}

/* What most networks take first, then what all do, and no less. */
Test(tcp_loss, segments_shrink)
{
    static const struct {
        uint32_t segment_bytes, packet_bytes;
    } rows[] = {{8948, 1500}, {1448, 1280}, {1428, 1280}, {1248, 1280}, {1208, 1280}, {536, 0}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tcp_hole hole = {.barren_ns = 1};
        cr_assert(is_hole(&hole, 10, 1000, 33, rows[i].segment_bytes));
        cr_assert_eq(hole.packet_bytes, rows[i].packet_bytes, "%u", rows[i].segment_bytes);
    }
}
