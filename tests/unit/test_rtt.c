/* SPDX-License-Identifier: Apache-2.0 */
/* The round-trip estimator against figures worked out by hand from RFC 6298. */
#include "core/rng.h"
#include "core/rtt.h"

#include <criterion/criterion.h>

#define SECOND_NS UINT64_C(1000000000)

static struct rtt rtt;

static void near(uint64_t value, uint64_t expected, uint64_t slack)
{
    cr_assert(value + slack >= expected && value <= expected + slack, "%lu is not near %lu", value, expected);
}

Test(rtt, first_and_second_sample)
{
    rtt_init(&rtt);
    cr_assert_eq(rtt.srtt_ns, 0);
    cr_assert_eq(rtt.min_ns, UINT64_MAX);
    rtt_sample(&rtt, 80000, 0, SECOND_NS);
    cr_assert_eq(rtt.srtt_ns, 80000);
    cr_assert_eq(rtt.rttvar_ns, 40000);
    cr_assert_eq(rtt.latest_ns, 80000);
    rtt_sample(&rtt, 160000, 0, SECOND_NS + 1);
    cr_assert_eq(rtt.rttvar_ns, 50000); /* 3/4 40000 + 1/4 80000, with srtt as it was */
    cr_assert_eq(rtt.srtt_ns, 90000);
    cr_assert_eq(rtt.latest_ns, 160000);
    cr_assert_eq(rtt.min_ns, 80000);
    rtt_sample(&rtt, 10000, 0, SECOND_NS + 2);
    cr_assert_eq(rtt.rttvar_ns, 57500);
    cr_assert_eq(rtt.srtt_ns, 80000);
    cr_assert_eq(rtt.min_ns, 10000);
}

Test(rtt, converges_to_a_constant)
{
    rtt_init(&rtt);
    rtt_sample(&rtt, 1000000, 0, 1);
    for (uint64_t i = 0; i < 200; i++)
        rtt_sample(&rtt, 20000, 0, i);
    near(rtt.srtt_ns, 20000, 10);
    near(rtt.rttvar_ns, 0, 20);
}

Test(rtt, minimum_forgets_after_ten_seconds)
{
    rtt_init(&rtt);
    rtt_sample(&rtt, 10000, 0, 1 * SECOND_NS);
    rtt_sample(&rtt, 50000, 0, 2 * SECOND_NS);
    cr_assert_eq(rtt.min_ns, 10000);
    rtt_sample(&rtt, 50000, 0, 11 * SECOND_NS);
    cr_assert_eq(rtt.min_ns, 10000);
    rtt_sample(&rtt, 50000, 0, 11 * SECOND_NS + 1);
    cr_assert_eq(rtt.min_ns, 50000);
    cr_assert_eq(rtt.min_at_ns, 11 * SECOND_NS + 1);
    /* an equal sample renews it */
    rtt_sample(&rtt, 50000, 0, 15 * SECOND_NS);
    rtt_sample(&rtt, 60000, 0, 24 * SECOND_NS);
    cr_assert_eq(rtt.min_ns, 50000);
}

Test(rtt, hold_time_is_a_decaying_maximum)
{
    rtt_init(&rtt);
    rtt_sample(&rtt, 10000, 800000, 1);
    cr_assert_eq(rtt.peer_ack_delay_ns, 800000);
    rtt_sample(&rtt, 10000, 0, 2);
    cr_assert_lt(rtt.peer_ack_delay_ns, 800000);
    cr_assert_gt(rtt.peer_ack_delay_ns, 700000, "one ack sent at once must not make it forget");
    rtt_sample(&rtt, 10000, 900000, 3);
    cr_assert_eq(rtt.peer_ack_delay_ns, 900000);
    for (uint64_t i = 0; i < 300; i++)
        rtt_sample(&rtt, 10000, 50000, i);
    cr_assert_eq(rtt.peer_ack_delay_ns, 50000);
}

Test(rtt, slow_is_a_decaying_maximum)
{
    rtt_init(&rtt);
    rtt_sample(&rtt, 1000, 0, 0);
    rtt_sample(&rtt, 9000, 0, 0);
    cr_assert_eq(rtt.slow_ns, 9000);
    rtt_sample(&rtt, 1000, 0, 0);
    cr_assert_eq(rtt.slow_ns, 9000 - 125);
    for (int i = 0; i < 2000; i++)
        rtt_sample(&rtt, 1000, 0, 0);
    cr_assert_eq(rtt.slow_ns, 1000);
}

Test(rtt, timeout_terms)
{
    rtt_init(&rtt);
    rtt_sample(&rtt, 80000, 5000, 1);
    cr_assert_eq(rtt_rto(&rtt, 0, 1, SECOND_NS), 80000 + 4 * 40000 + 5000);
    cr_assert_eq(rtt_rto(&rtt, 3, 1, SECOND_NS), 8 * 245000);
}

Test(rtt, timeout_bounds)
{
    rtt_init(&rtt);
    cr_assert_eq(rtt_rto(&rtt, 0, 4000, 100000), 4000);
    cr_assert_eq(rtt_rto(&rtt, 1, 4000, 100000), 8000, "without a sample too, backing off doubles");
    rtt_sample(&rtt, 100, 0, 1);
    cr_assert_eq(rtt_rto(&rtt, 0, 4000, 100000), 4000);
    cr_assert_eq(rtt_rto(&rtt, 1, 4000, 100000), 8000, "the floor must not swallow the first doubling");
    cr_assert_eq(rtt_rto(&rtt, 4, 4000, 100000), 64000);
    cr_assert_eq(rtt_rto(&rtt, 5, 4000, 100000), 100000);
    cr_assert_eq(rtt_rto(&rtt, UINT32_MAX, 4000, 100000), 100000);
}

Test(rtt, nonsense_of_a_peer)
{
    rtt_init(&rtt);
    for (int i = 0; i < 100; i++)
        rtt_sample(&rtt, UINT64_MAX, UINT64_MAX, UINT64_MAX);
    cr_assert_leq(rtt.srtt_ns, UINT64_C(1) << 40);
    cr_assert_eq(rtt_rto(&rtt, 64, 4000, SECOND_NS), SECOND_NS);
    rtt_init(&rtt);
    for (int i = 0; i < 100; i++) {
        rtt_sample(&rtt, 0, 0, 0);
        cr_assert_gt(rtt.srtt_ns, 0, "0 means no sample");
    }
    struct rng rng = {7};
    rtt_init(&rtt);
    for (int i = 0; i < 10000; i++) {
        rtt_sample(&rtt, rng_next(&rng) >> rng_below(&rng, 64), rng_next(&rng) >> rng_below(&rng, 64), rng_next(&rng));
        cr_assert(rtt.srtt_ns > 0 && rtt.srtt_ns <= UINT64_C(1) << 40);
        cr_assert_leq(rtt.min_ns, UINT64_C(1) << 40);
        uint64_t rto_ns = rtt_rto(&rtt, rng_below(&rng, 70), 1000, SECOND_NS);
        cr_assert(rto_ns >= 1000 && rto_ns <= SECOND_NS);
    }
}
