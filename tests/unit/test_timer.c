/* SPDX-License-Identifier: Apache-2.0 */
/* The timing wheel against a list of deadlines that is searched from end to end. */
#include "core/rng.h"
#include "core/timer.h"

#include <criterion/criterion.h>

enum { TIMERS = 48, TICK_NS = 1 << TIMER_TICK_SHIFT };

static struct timer_wheel wheel;
static struct timer timers[TIMERS];
static uint64_t model_ns[TIMERS];           /* UINT64_MAX: not armed */
static uint64_t model_late_from_ns[TIMERS]; /* from when on not having fired is a mistake */

static void model_reset(uint64_t now_ns)
{
    timer_wheel_init(&wheel, now_ns);
    for (int i = 0; i < TIMERS; i++) {
        timers[i] = (struct timer){0};
        model_ns[i] = UINT64_MAX;
    }
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

/* All that the wheel has due at now_ns, checked against the model; returns how many. */
static int fire_all(uint64_t now_ns, uint64_t seed)
{
    struct timer *timer;
    int fired = 0;
    while ((timer = timer_expired(&wheel, now_ns))) {
        long i = timer - timers;
        cr_assert(i >= 0 && i < TIMERS);
        cr_assert(!timer_armed(timer), "seed %lu", seed);
        cr_assert_neq(model_ns[i], UINT64_MAX, "seed %lu: fired unarmed", seed);
        cr_assert_leq(model_ns[i], now_ns, "seed %lu: %lu ns early", seed, model_ns[i] - now_ns);
        model_ns[i] = UINT64_MAX;
        fired++;
    }
    for (int i = 0; i < TIMERS; i++) {
        cr_assert_eq(timer_armed(&timers[i]), model_ns[i] != UINT64_MAX, "seed %lu", seed);
        if (model_ns[i] != UINT64_MAX)
            cr_assert_lt(now_ns, model_late_from_ns[i], "seed %lu: timer %d is late", seed, i);
    }
    return fired;
}

static uint64_t model_earliest(void)
{
    uint64_t earliest_ns = UINT64_MAX;
    for (int i = 0; i < TIMERS; i++)
        if (model_ns[i] < earliest_ns)
            earliest_ns = model_ns[i];
    return earliest_ns;
}

/* timer_next() is never beyond the first deadline plus a tick. */
static void check_next(uint64_t seed)
{
    uint64_t earliest_ns = model_earliest(), next_ns = timer_next(&wheel);
    if (earliest_ns == UINT64_MAX)
        cr_assert_eq(next_ns, UINT64_MAX, "seed %lu", seed);
    else
        cr_assert_lt(next_ns, later(earliest_ns, wheel.now_ns) + TICK_NS, "seed %lu", seed);
}

/* A distance whose magnitude is uniform: every level is met equally often. */
static uint64_t random_distance(struct rng *rng, unsigned bits)
{
    return rng_next(rng) >> (64 - 1 - rng_below(rng, bits));
}

static void arm(struct rng *rng, uint64_t now_ns, unsigned bits)
{
    uint32_t i = rng_below(rng, TIMERS);
    uint64_t distance_ns = random_distance(rng, bits);
    uint64_t deadline_ns = now_ns + distance_ns;
    if (rng_below(rng, 8) == 0)
        deadline_ns = distance_ns < now_ns ? now_ns - distance_ns : 0;
    timer_arm(&wheel, &timers[i], deadline_ns);
    model_ns[i] = deadline_ns;
    model_late_from_ns[i] = deadline_ns <= now_ns ? now_ns : deadline_ns + TICK_NS;
}

static void model_check(uint64_t seed, int steps, unsigned deadline_bits, unsigned jump_bits)
{
    struct rng rng = {seed};
    uint64_t now_ns = random_distance(&rng, 60);
    model_reset(now_ns);
    for (int step = 0; step < steps; step++) {
        switch (rng_below(&rng, 4)) {
        case 0:
        case 1:
            arm(&rng, now_ns, deadline_bits);
            break;
        case 2: {
            uint32_t i = rng_below(&rng, TIMERS);
            timer_disarm(&wheel, &timers[i]);
            cr_assert(!timer_armed(&timers[i]));
            model_ns[i] = UINT64_MAX;
            break;
        }
        default:
            now_ns += random_distance(&rng, jump_bits);
            fire_all(now_ns, seed);
        }
        check_next(seed);
    }
}

Test(timer, model_small_distances)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        model_check(seed, 2000, 26, 24);
}

Test(timer, model_all_levels)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        model_check(seed, 2000, 50, 48);
}

/* Beyond the top level: deadlines are clamped and sorted again. */
Test(timer, model_far_deadlines_and_big_jumps)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        model_check(seed, 300, 56, 54);
}

/* Small steps of time under far deadlines: the wheel must not lose a timer that it passes slowly. */
Test(timer, model_small_jumps)
{
    for (uint64_t seed = 1; seed <= 50; seed++)
        model_check(seed, 4000, 36, 14);
}

/* Driven by timer_next() alone, every timer fires within a tick, and few calls are in vain. */
Test(timer, next_drives_the_wheel)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng rng = {seed};
        uint64_t now_ns = random_distance(&rng, 50);
        model_reset(now_ns);
        for (int i = 0; i < TIMERS; i++)
            arm(&rng, now_ns, 47);
        int vain = 0, armed = 0, fired = 0;
        for (int i = 0; i < TIMERS; i++)
            armed += model_ns[i] != UINT64_MAX;
        while (fired < armed) {
            uint64_t next_ns = timer_next(&wheel);
            cr_assert_neq(next_ns, UINT64_MAX, "seed %lu", seed);
            now_ns = later(now_ns, next_ns);
            int count = fire_all(now_ns, seed);
            fired += count;
            vain += count == 0;
            cr_assert_leq(vain, armed * TIMER_LEVELS, "seed %lu", seed);
        }
        cr_assert_eq(timer_next(&wheel), UINT64_MAX);
    }
}

Test(timer, a_tick_is_the_grain)
{
    for (uint64_t offset_ns = 0; offset_ns < 2 * TICK_NS; offset_ns += 97) {
        uint64_t start_ns = 1000 * (uint64_t)TICK_NS, deadline_ns = start_ns + offset_ns;
        model_reset(start_ns);
        timer_arm(&wheel, &timers[0], deadline_ns);
        if (offset_ns > 0)
            cr_assert_null(timer_expired(&wheel, deadline_ns - 1));
        cr_assert_eq(timer_expired(&wheel, deadline_ns + TICK_NS - 1), &timers[0]);
    }
}

Test(timer, deadline_not_after_the_latest_time_fires_at_once)
{
    model_reset(0);
    uint64_t now_ns = 5 * (uint64_t)TICK_NS + 100; /* within a tick */
    cr_assert_null(timer_expired(&wheel, now_ns));
    timer_arm(&wheel, &timers[0], now_ns);
    timer_arm(&wheel, &timers[1], 0);
    timer_arm(&wheel, &timers[2], now_ns + 1);
    cr_assert_leq(timer_next(&wheel), now_ns);
    struct timer *first = timer_expired(&wheel, now_ns), *second = timer_expired(&wheel, now_ns);
    cr_assert((first == &timers[0] && second == &timers[1]) || (first == &timers[1] && second == &timers[0]));
    cr_assert_null(timer_expired(&wheel, now_ns));
    cr_assert(timer_armed(&timers[2]));
}

Test(timer, moving_replaces_the_deadline)
{
    model_reset(0);
    timer_arm(&wheel, &timers[0], 100 * 1000 * 1000);
    timer_arm(&wheel, &timers[0], 1000);
    cr_assert_eq(timer_expired(&wheel, 2 * TICK_NS), &timers[0]);
    timer_arm(&wheel, &timers[0], 1000 * 1000);
    timer_arm(&wheel, &timers[0], 100 * 1000 * 1000);
    cr_assert_null(timer_expired(&wheel, 50 * 1000 * 1000));
    cr_assert_eq(timer_expired(&wheel, 101 * 1000 * 1000), &timers[0]);
    cr_assert_null(timer_expired(&wheel, UINT64_MAX / 2));
}

Test(timer, all_in_one_slot)
{
    model_reset(12345);
    for (int i = 0; i < TIMERS; i++)
        timer_arm(&wheel, &timers[i], 1000 * 1000 * 1000);
    for (int i = 0; i < TIMERS; i += 3)
        timer_disarm(&wheel, &timers[i]);
    timer_disarm(&wheel, &timers[0]); /* again: nothing happens */
    cr_assert_null(timer_expired(&wheel, 999 * 1000 * 1000));
    int fired = 0;
    for (struct timer *timer; (timer = timer_expired(&wheel, 1001 * 1000 * 1000)); fired++)
        cr_assert_neq((timer - timers) % 3, 0);
    cr_assert_eq(fired, TIMERS - TIMERS / 3);
    cr_assert_eq(timer_next(&wheel), UINT64_MAX);
}

Test(timer, end_of_time)
{
    model_reset(0);
    timer_arm(&wheel, &timers[0], UINT64_MAX);
    cr_assert_null(timer_expired(&wheel, UINT64_MAX / 2));
    cr_assert_null(timer_expired(&wheel, UINT64_MAX - TICK_NS));
    cr_assert(timer_armed(&timers[0]));
    cr_assert_gt(timer_next(&wheel), UINT64_MAX - 2 * (uint64_t)TICK_NS);
    timer_disarm(&wheel, &timers[0]);
    cr_assert_eq(timer_next(&wheel), UINT64_MAX);
}

/* Time that goes back (two clocks that disagree) must not lose or repeat anything. */
Test(timer, time_going_back)
{
    model_reset(1000 * 1000);
    timer_arm(&wheel, &timers[0], 3 * 1000 * 1000);
    cr_assert_null(timer_expired(&wheel, 2 * 1000 * 1000));
    cr_assert_null(timer_expired(&wheel, 500 * 1000));
    cr_assert_eq(timer_expired(&wheel, 3 * 1000 * 1000 + TICK_NS), &timers[0]);
}
