/* SPDX-License-Identifier: Apache-2.0 */
/* How much the network loses, by what the kernel tells of a connection. */
#include "nic/tcp/tcp.h"

#include <criterion/criterion.h>
#include <linux/tcp.h>

/* What the kernel tells after so many segments: how many of them again, which the peer had already, and which are
 * under way. */
static bool loses(struct tcp_loss *loss, uint32_t segments, uint32_t again, uint32_t needless, uint32_t under_way)
{
    struct tcp_info info = {.tcpi_data_segs_out = segments,
                            .tcpi_total_retrans = again,
                            .tcpi_dsack_dups = needless,
                            .tcpi_retrans = under_way};
    return tcp_loses(loss, &info);
}

Test(tcp_loss, one_of_500_is_too_much)
{
    struct tcp_loss loss = {.much = true};
    cr_assert_not(loses(&loss, 1000, 1, 0, 0));
    cr_assert_not(loses(&loss, 2000, 3, 0, 0));
    cr_assert(loss.sent == 1000 && loss.lost == 2);
    cr_assert(loses(&loss, 2500, 4, 0, 0));
    cr_assert_not(loses(&loss, 3500, 4, 0, 0));
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

/* Few segments say little, and wait for more. */
Test(tcp_loss, few_are_counted_with_the_next)
{
    struct tcp_loss loss = {.much = true};
    cr_assert_not(loses(&loss, 499, 400, 0, 0));
    cr_assert(loses(&loss, 500, 400, 0, 0));
    cr_assert(loss.sent == 500 && loss.lost == 400);
}

/* A peer that is stopped gets segments twice, and says so. */
Test(tcp_loss, what_the_peer_had_already_was_not_lost)
{
    struct tcp_loss loss = {.much = true};
    cr_assert_not(loses(&loss, 562, 4, 4, 0));
    cr_assert_not(loses(&loss, 1200, 8, 5, 3), "three are under way: nobody knows yet");
    cr_assert_eq(loss.lost, 0);
    cr_assert_not(loses(&loss, 1800, 8, 8, 0));
    cr_assert_not(loss.much);
    loses(&loss, 2400, 12, 8, 0);
    cr_assert(loss.much);
}

/* Where the peer says so late, nothing is lost between the looks, and no number is below zero. */
Test(tcp_loss, what_is_told_late_counts_once)
{
    struct tcp_loss loss = {.much = true};
    cr_assert(loses(&loss, 1000, 2, 0, 0));
    cr_assert_not(loses(&loss, 2000, 2, 2, 0));
    cr_assert_eq(loss.lost, 0);
    cr_assert_not(loses(&loss, 3000, 2, 5, 0));
    loses(&loss, 4000, 9, 5, 0);
    cr_assert(loss.much);
    cr_assert_eq(loss.lost, 4);
}
