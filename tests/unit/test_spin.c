/* SPDX-License-Identifier: Apache-2.0 */
/* When whoever finds no work looks again at once, and when it sleeps: also on a core that others want. */
#include "thread/spin.h"

#include "core/units.h"

#include <criterion/criterion.h>

enum { MOST_NS = 50000, LOOK_NS = 1000 };
static const uint64_t LOST_NS = NS_PER_MS, START_NS = 1000 * NS_PER_S;

/* Looks in vain until it is to sleep: for so long. */
static uint64_t spins_for(struct spin *spin, uint64_t *now_ns)
{
    uint64_t since_ns = *now_ns;
    spin_begin(spin);
    while (spin_goes_on(spin, MOST_NS, *now_ns))
        *now_ns += LOOK_NS;
    return *now_ns - since_ns;
}

/* Looks, and has lost the core before the next look, which finds work or not. */
static void lose(struct spin *spin, uint64_t *now_ns, bool work)
{
    spin_begin(spin);
    cr_assert(spin_goes_on(spin, MOST_NS, *now_ns));
    *now_ns += LOST_NS;
    if (work)
        spin_ends(spin, MOST_NS, *now_ns);
    else
        cr_assert_not(spin_goes_on(spin, MOST_NS, *now_ns));
}

/* How long it does not spin from now on. */
static uint64_t rests_for(struct spin *spin, uint64_t *now_ns)
{
    uint64_t since_ns = *now_ns;
    for (; spins_for(spin, now_ns) == 0; *now_ns += 100 * NS_PER_US)
        ;
    return *now_ns - since_ns;
}

Test(spin, lasts_as_long_as_the_parameter_says)
{
    struct spin spin = {0};
    uint64_t now_ns = START_NS;
    for (unsigned i = 0; i < 10; i++)
        cr_assert_eq(spins_for(&spin, &now_ns), MOST_NS);
    spin_begin(&spin);
    cr_assert_not(spin_goes_on(&spin, 0, now_ns));
}

Test(spin, work_begins_it_anew)
{
    struct spin spin = {0};
    uint64_t now_ns = START_NS;
    spin_begin(&spin);
    for (unsigned i = 0; i < 1000; i++, now_ns += LOOK_NS) {
        cr_assert(spin_goes_on(&spin, MOST_NS, now_ns));
        if (i % 40 == 39)
            spin_ends(&spin, MOST_NS, now_ns);
    }
    cr_assert_eq(spins_for(&spin, &now_ns), MOST_NS); /* and is no longer for it */
}

/* Work comes so long after the work before. */
static void looks_until(struct spin *spin, uint64_t *now_ns, uint64_t usual_ns, uint64_t gap_ns)
{
    uint64_t work_ns = *now_ns + gap_ns;
    spin_begin(spin);
    while (*now_ns < work_ns && spin_goes_on(spin, usual_ns, *now_ns))
        *now_ns += LOOK_NS;
    *now_ns = work_ns;
    spin_ends(spin, usual_ns, work_ns);
}

Test(spin, grows_where_work_comes_soon_after_it_and_shrinks_where_not)
{
    struct spin spin = {0};
    uint64_t now_ns = START_NS;
    looks_until(&spin, &now_ns, MOST_NS, 199 * NS_PER_US);
    cr_assert_eq(spins_for(&spin, &now_ns), 100 * NS_PER_US);
    for (unsigned i = 0; i < 3; i++)
        looks_until(&spin, &now_ns, MOST_NS, 199 * NS_PER_US);
    cr_assert_eq(spins_for(&spin, &now_ns), 200 * NS_PER_US);
    for (uint64_t ns = 100 * NS_PER_US; ns >= MOST_NS; ns /= 2) {
        looks_until(&spin, &now_ns, MOST_NS, 201 * NS_PER_US);
        cr_assert_eq(spins_for(&spin, &now_ns), ns);
    }
    looks_until(&spin, &now_ns, MOST_NS, NS_PER_S);
    cr_assert_eq(spins_for(&spin, &now_ns), MOST_NS);
}

/* A time that the user has set is never cut, and none stays none. */
Test(spin, longer_times_and_none_stay)
{
    const uint64_t usual_ns[] = {0, 300 * NS_PER_US};
    for (unsigned i = 0; i < 2; i++) {
        struct spin spin = {0};
        uint64_t now_ns = START_NS;
        for (unsigned soon = 0; soon < 8; soon++)
            looks_until(&spin, &now_ns, usual_ns[i], soon % 4 ? NS_PER_MS : usual_ns[i] + LOOK_NS);
        spin_begin(&spin);
        uint64_t since_ns = now_ns;
        while (spin_goes_on(&spin, usual_ns[i], now_ns))
            now_ns += LOOK_NS;
        cr_assert_eq(now_ns - since_ns, usual_ns[i]);
    }
}

Test(spin, a_lost_core_ends_it_for_longer_each_time)
{
    for (unsigned work = 0; work < 2; work++) {
        struct spin spin = {0};
        uint64_t now_ns = START_NS, rest_ns = 5 * NS_PER_MS;
        for (unsigned i = 0; i < 12; i++) {
            lose(&spin, &now_ns, work);
            uint64_t rested_ns = rests_for(&spin, &now_ns);
            cr_assert(rested_ns >= rest_ns && rested_ns < rest_ns + NS_PER_MS, "%u: %lu", i, (unsigned long)rested_ns);
            rest_ns = 2 * rest_ns < 2 * NS_PER_S ? 2 * rest_ns : 2 * NS_PER_S;
        }
        now_ns += 3 * NS_PER_S; /* nobody wants the core any more */
        cr_assert_eq(spins_for(&spin, &now_ns), MOST_NS);
        lose(&spin, &now_ns, work);
        cr_assert_lt(rests_for(&spin, &now_ns), 6 * NS_PER_MS);
    }
}

/* Whoever slept, or worked, has not lost its core. */
Test(spin, other_gaps_are_no_loss)
{
    struct spin spin = {0};
    uint64_t now_ns = START_NS;
    cr_assert_eq(spins_for(&spin, &now_ns), MOST_NS);
    now_ns += NS_PER_S;
    cr_assert_not(spin_goes_on(&spin, MOST_NS, now_ns));
    now_ns += NS_PER_S;
    spin_ends(&spin, MOST_NS, now_ns);
    cr_assert(spin_goes_on(&spin, MOST_NS, now_ns));
    spin_ends(&spin, MOST_NS, now_ns);
    now_ns += NS_PER_S;
    cr_assert(spin_goes_on(&spin, MOST_NS, now_ns));
}
