/* SPDX-License-Identifier: Apache-2.0 */
/* Path choice: what each policy's choices look like in number, and what feedback does to them. */
#include "core/path.h"
#include "defs/params.h"

#include <criterion/criterion.h>

static struct path paths[PATHS_MAX];
static struct path_set set;
static struct rng rng;
static unsigned chosen[PATHS_MAX];

static const unsigned policies[] = {PATH_RECYCLE, PATH_POW2, PATH_RR};

static void setup(unsigned policy, uint16_t count)
{
    rng = (struct rng){42};
    memset(paths, 0xff, sizeof paths);
    path_set_init(&set, paths, count, policy, &rng);
}

static void choose_many(unsigned times, int avoid)
{
    memset(chosen, 0, sizeof chosen);
    for (unsigned i = 0; i < times; i++) {
        uint16_t path = path_choose(&set, avoid);
        cr_assert_lt(path, set.count);
        chosen[path]++;
    }
}

/* As a flow does: a chunk is chosen, in flight for `window` choices, then reported. */
static void run(unsigned times, unsigned window, enum path_feedback (*network)(uint16_t path, uint64_t *rtt_ns))
{
    static uint16_t flight[1024];
    unsigned head = 0, count = 0;
    memset(chosen, 0, sizeof chosen);
    for (unsigned i = 0; i < times; i++) {
        uint16_t path = path_choose(&set, -1);
        chosen[path]++;
        paths[path].in_flight++;
        flight[(head + count++) % 1024] = path;
        if (count == window) {
            uint64_t rtt_ns = 100000;
            uint16_t done = flight[head];
            head = (head + 1) % 1024;
            count--;
            paths[done].in_flight--;
            enum path_feedback feedback = network(done, &rtt_ns);
            path_report(&set, done, feedback, feedback == PATH_LOST ? 0 : rtt_ns);
        }
    }
    while (count > 0) {
        paths[flight[head]].in_flight--;
        head = (head + 1) % 1024;
        count--;
    }
}

static enum path_feedback all_good(uint16_t path, uint64_t *rtt_ns)
{
    (void)path;
    (void)rtt_ns;
    return PATH_GOOD;
}

static enum path_feedback third_lost(uint16_t path, uint64_t *rtt_ns)
{
    (void)rtt_ns;
    return path == 3 ? PATH_LOST : PATH_GOOD;
}

static enum path_feedback third_marked(uint16_t path, uint64_t *rtt_ns)
{
    (void)rtt_ns;
    return path == 3 ? PATH_CONGESTED : PATH_GOOD;
}

static enum path_feedback third_slow(uint16_t path, uint64_t *rtt_ns)
{
    if (path == 3)
        *rtt_ns = 500000;
    return PATH_GOOD;
}

Test(path, init_resets_the_paths)
{
    setup(PATH_RECYCLE, PATHS_MAX);
    for (unsigned i = 0; i < PATHS_MAX; i++) {
        cr_assert_eq(paths[i].next_seq, 1);
        cr_assert_eq(paths[i].in_flight, 0);
        cr_assert_eq(paths[i].penalty, 0);
    }
}

Test(path, one_path_is_always_it)
{
    for (unsigned i = 0; i < 3; i++) {
        setup(policies[i], 1);
        for (int n = 0; n < 300; n++) {
            cr_assert_eq(path_choose(&set, n % 2 ? 0 : -1), 0);
            path_report(&set, 0, n % 3 ? PATH_LOST : PATH_GOOD, 100000);
        }
    }
}

Test(path, avoided_path_is_never_chosen)
{
    for (unsigned i = 0; i < 3; i++) {
        for (uint16_t count = 2; count <= 5; count++) {
            setup(policies[i], count);
            for (int n = 0; n < 1000; n++) {
                int avoid = n % count;
                uint16_t path = path_choose(&set, avoid);
                cr_assert(path != avoid && path < count, "policy %u", policies[i]);
                path_report(&set, path, n % 5 == 0 ? PATH_LOST : PATH_GOOD, 100000);
                path_report(&set, (uint16_t)avoid, PATH_GOOD, 100000);
            }
        }
    }
}

Test(path, avoiding_holds_when_all_are_penalised)
{
    for (unsigned i = 0; i < 3; i++) {
        setup(policies[i], 4);
        for (uint16_t path = 0; path < 4; path++)
            for (int n = 0; n < 100; n++)
                path_report(&set, path, PATH_LOST, 0);
        choose_many(100, 2);
        cr_assert_eq(chosen[2], 0);
        cr_assert(chosen[0] > 0 && chosen[1] > 0 && chosen[3] > 0);
    }
}

Test(path, round_robin_ignores_feedback)
{
    setup(PATH_RR, 7);
    for (unsigned n = 0; n < 700; n++) {
        cr_assert_eq(path_choose(&set, -1), n % 7);
        path_report(&set, 3, PATH_LOST, 0);
    }
}

Test(path, every_policy_spreads_over_good_paths)
{
    for (unsigned i = 0; i < 3; i++) {
        setup(policies[i], 16);
        run(16000, 64, all_good);
        for (unsigned path = 0; path < 16; path++)
            cr_assert(chosen[path] > 500 && chosen[path] < 1500, "policy %u path %u: %u", policies[i], path,
                      chosen[path]);
    }
}

Test(path, recycle_is_first_in_first_out)
{
    setup(PATH_RECYCLE, 8);
    path_report(&set, 5, PATH_GOOD, 0);
    path_report(&set, 2, PATH_GOOD, 0);
    path_report(&set, 5, PATH_GOOD, 0);
    cr_assert_eq(path_choose(&set, -1), 5);
    cr_assert_eq(path_choose(&set, -1), 2);
    cr_assert_eq(path_choose(&set, -1), 5);
    cr_assert_eq(path_choose(&set, -1), 0, "then round robin");
    cr_assert_eq(path_choose(&set, -1), 1);
}

Test(path, only_quick_paths_come_back_before_their_turn)
{
    setup(PATH_RECYCLE, 8);
    for (unsigned i = 0; i < 100; i++)
        path_report(&set, 0, PATH_GOOD, 100000);
    unsigned recycled = set.recycled_count;
    path_report(&set, 1, PATH_GOOD, 120000);
    cr_assert_eq(set.recycled_count, recycled + 1);
    path_report(&set, 2, PATH_GOOD, 140000);
    cr_assert_eq(set.recycled_count, recycled + 1, "slower than the others");
    cr_assert_eq(paths[2].penalty, 0, "but not so slow that its turn is passed over");
    path_report(&set, 3, PATH_GOOD, 0);
    cr_assert_eq(set.recycled_count, recycled + 2, "nothing is known against it");
}

Test(path, recycle_drops_entries_of_a_path_that_went_bad)
{
    setup(PATH_RECYCLE, 8);
    path_report(&set, 5, PATH_GOOD, 0);
    path_report(&set, 6, PATH_GOOD, 0);
    path_report(&set, 5, PATH_LOST, 0);
    cr_assert_eq(path_choose(&set, -1), 6);
    cr_assert_eq(path_choose(&set, -1), 0);
}

Test(path, recycle_ring_overwrites_the_oldest)
{
    setup(PATH_RECYCLE, 2);
    path_report(&set, 0, PATH_GOOD, 0);
    for (int n = 0; n < PATHS_MAX; n++)
        path_report(&set, 1, PATH_GOOD, 0);
    cr_assert_eq(set.recycled_count, PATHS_MAX);
    cr_assert_eq(path_choose(&set, -1), 1);
}

Test(path, penalty_passes_over_and_wears_off)
{
    setup(PATH_RECYCLE, 4);
    path_report(&set, 1, PATH_CONGESTED, 0);
    path_report(&set, 3, PATH_LOST, 0);
    choose_many(4, -1);
    cr_assert(chosen[1] == 0 && chosen[3] == 0);
    choose_many(400, -1);
    cr_assert_gt(chosen[1], chosen[3], "a loss weighs more than a mark");
    cr_assert_gt(chosen[3], 50);
}

Test(path, good_feedback_forgives)
{
    setup(PATH_RECYCLE, 4);
    path_report(&set, 1, PATH_LOST, 0);
    uint8_t penalty = paths[1].penalty;
    path_report(&set, 1, PATH_GOOD, 0);
    cr_assert_lt(paths[1].penalty, penalty);
    for (int n = 0; n < 8; n++)
        path_report(&set, 1, PATH_GOOD, 0);
    cr_assert_eq(paths[1].penalty, 0);
    cr_assert_eq(path_choose(&set, -1), 1);
}

Test(path, penalty_saturates)
{
    setup(PATH_POW2, 4);
    for (int n = 0; n < 1000; n++)
        path_report(&set, 1, PATH_LOST, 0);
    cr_assert_eq(paths[1].penalty, UINT8_MAX);
}

Test(path, bad_paths_get_little)
{
    static const struct {
        const char *name;
        enum path_feedback (*network)(uint16_t path, uint64_t *rtt_ns);
        unsigned most[2]; /* recycle, pow2, which a light penalty only tilts */
    } bad[] = {
        {"lost", third_lost, {400, 400}}, {"marked", third_marked, {400, 800}}, {"slow", third_slow, {400, 400}}};
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned n = 0; n < sizeof bad / sizeof bad[0]; n++) {
            setup(policies[i], 8);
            run(2000, 32, bad[n].network);
            run(8000, 32, bad[n].network);
            cr_assert_lt(chosen[3], bad[n].most[i], "policy %u, %s: %u of 8000, 1000 is fair", policies[i], bad[n].name,
                         chosen[3]);
            for (unsigned path = 0; path < 8; path++)
                if (path != 3)
                    cr_assert_gt(chosen[path], 500, "policy %u, %s: good path %u", policies[i], bad[n].name, path);
        }
    }
}

/* While good feedback never ends, a path that was lost and has healed is still found again. */
Test(path, healed_path_comes_back)
{
    for (unsigned i = 0; i < 2; i++) {
        setup(policies[i], 4);
        run(2000, 32, third_lost);
        run(40000, 32, all_good);
        run(4000, 32, all_good);
        cr_assert_gt(chosen[3], 200, "policy %u: %u of 4000", policies[i], chosen[3]);
    }
}

Test(path, pow2_takes_the_less_loaded)
{
    setup(PATH_POW2, 2);
    for (uint16_t path = 0; path < 2; path++)
        path_report(&set, path, PATH_GOOD, 100000);
    paths[0].in_flight = 10;
    choose_many(100, -1);
    cr_assert_eq(chosen[1], 100);
    paths[0].in_flight = 0;
    for (int n = 0; n < 50; n++)
        path_report(&set, 0, PATH_CONGESTED, 20000);
    paths[0].penalty = 0;
    choose_many(100, -1);
    cr_assert_eq(chosen[0], 100, "the shorter delay");
}

/* One path stood in a long queue, or its packets waited for a link to come back: it is taken again. */
Test(path, pow2_forgets_a_delay)
{
    for (unsigned window = 1; window <= 32; window *= 32) {
        setup(PATH_POW2, 4);
        run(400, window, all_good);
        for (unsigned i = 0; i < 40; i++)
            path_report(&set, 3, PATH_CONGESTED, 100000000);
        run(8000, window, all_good);
        run(4000, window, all_good);
        cr_assert_gt(chosen[3], 200, "%u under way: %u of 4000", window, chosen[3]);
    }
}

Test(path, pow2_is_uniform_without_information)
{
    setup(PATH_POW2, 5);
    choose_many(50000, -1);
    for (unsigned path = 0; path < 5; path++)
        cr_assert(chosen[path] > 9500 && chosen[path] < 10500, "path %u: %u", path, chosen[path]);
    choose_many(50000, 2);
    cr_assert_eq(chosen[2], 0);
}

/* Both of the two are ones that may be taken: where one path is avoided another that lost something is not drawn alone.
 */
Test(path, pow2_compares_what_is_not_avoided)
{
    for (int avoid = 0; avoid < 4; avoid++) {
        setup(PATH_POW2, 4);
        uint16_t bad = (uint16_t)((avoid + 1) % 4);
        paths[bad].penalty = UINT8_MAX;
        choose_many(100, avoid);
        cr_assert(chosen[avoid] == 0 && chosen[bad] == 0, "avoiding %d: %u, %u", avoid, chosen[avoid], chosen[bad]);
        setup(PATH_POW2, 2);
        choose_many(10, avoid % 2);
        cr_assert_eq(chosen[!(avoid % 2)], 10);
        setup(PATH_POW2, 1);
        choose_many(10, 0);
        cr_assert_eq(chosen[0], 10);
    }
}

Test(path, delay_is_smoothed_and_saturates)
{
    setup(PATH_POW2, 2);
    path_report(&set, 0, PATH_GOOD, 80000);
    cr_assert_eq(paths[0].delay_ns, 80000);
    path_report(&set, 0, PATH_GOOD, 160000);
    cr_assert_eq(paths[0].delay_ns, 90000);
    path_report(&set, 0, PATH_GOOD, 0);
    cr_assert_eq(paths[0].delay_ns, 90000, "no sample");
    for (int n = 0; n < 200; n++)
        path_report(&set, 0, PATH_GOOD, UINT64_MAX);
    cr_assert_gt(paths[0].delay_ns, 4000000000u);
}

/* One seed, one trace. */
Test(path, choices_repeat_with_the_seed)
{
    static uint16_t trace[2000];
    for (unsigned i = 0; i < 3; i++) {
        for (int pass = 0; pass < 2; pass++) {
            setup(policies[i], 9);
            struct rng events = {5};
            for (int n = 0; n < 2000; n++) {
                uint16_t path = path_choose(&set, (int)rng_below(&events, 10) - 1);
                if (pass == 0)
                    trace[n] = path;
                cr_assert_eq(trace[n], path);
                path_report(&set, (uint16_t)rng_below(&events, 9), (enum path_feedback)rng_below(&events, 3),
                            rng_below(&events, 1000000));
            }
        }
    }
}

/* ---- closed paths ---------------------------------------------------------------------------- */

static void setup_closing(unsigned policy, uint16_t count)
{
    setup(policy, count);
    set.closes = true;
}

static enum path_feedback second_alone(uint16_t path, uint64_t *rtt_ns)
{
    (void)rtt_ns;
    return path == 2 ? PATH_GOOD : PATH_LOST;
}

Test(path, one_that_never_worked_closes_with_its_first_loss)
{
    for (unsigned i = 0; i < 3; i++) {
        setup_closing(policies[i], 4);
        path_report(&set, 1, PATH_LOST, 0);
        cr_assert_eq(set.closed, 0, "none has worked");
        path_report(&set, 2, PATH_GOOD, 0);
        cr_assert_eq(set.good, 1);
        path_report(&set, 1, PATH_LOST, 0);
        path_report(&set, 1, PATH_LOST, 0);
        cr_assert_eq(set.closed, 1);
        choose_many(1000, -1);
        cr_assert_eq(chosen[1], 0);
        cr_assert(chosen[0] && chosen[2] && chosen[3]);
        path_works(&set, 1);
        cr_assert_eq(set.closed, 0);
        cr_assert_eq(set.good, 2);
        choose_many(1000, -1);
        cr_assert_neq(chosen[1], 0, "policy %u", policies[i]);
    }
}

/* A window of chunks meets paths of which one works: what it costs is a chunk for each of the others. */
Test(path, the_others_lose_a_chunk_each)
{
    for (unsigned i = 0; i < 3; i++) {
        setup_closing(policies[i], 16);
        path_report(&set, 2, PATH_GOOD, 100000);
        run(5000, 100, second_alone);
        for (unsigned path = 0; path < 16; path++)
            cr_assert(path == 2 ? chosen[path] >= 4985 : chosen[path] <= 1, "policy %u, path %u: %u", policies[i], path,
                      chosen[path]);
        cr_assert_eq(set.good, 1);
    }
}

Test(path, one_that_has_worked_closes_when_others_go_on_without_it)
{
    for (unsigned i = 0; i < 3; i++) {
        setup_closing(policies[i], 3);
        for (uint16_t path = 0; path < 3; path++)
            path_report(&set, path, PATH_GOOD, 0);
        for (unsigned n = 0; n < 100; n++) /* an outage of all of them tells nothing of one */
            path_report(&set, (uint16_t)(n % 3), PATH_LOST, 0);
        cr_assert_eq(set.closed, 0);
        path_report(&set, 1, PATH_GOOD, 0);
        for (unsigned n = 0; n < 7; n++) {
            path_report(&set, 1, PATH_LOST, 0);
            path_report(&set, 2, PATH_CONGESTED, 0);
        }
        cr_assert_eq(set.closed, 0);
        path_report(&set, 2, PATH_GOOD, 0);
        path_report(&set, 1, PATH_LOST, 0);
        cr_assert(set.paths[1].closed);
        cr_assert_eq(set.good, 2);
        choose_many(100, 0);
        cr_assert_eq(chosen[2], 100, "policy %u", policies[i]);
        path_report(&set, 1, PATH_GOOD, 0); /* late, but it came */
        cr_assert_eq(set.closed, 0);
        cr_assert_eq(set.good, 3);
    }
}

Test(path, the_last_one_that_works_stays)
{
    setup_closing(PATH_RR, 2);
    path_report(&set, 0, PATH_GOOD, 0);
    path_report(&set, 1, PATH_LOST, 0);
    for (unsigned n = 0; n < 100; n++)
        path_report(&set, 0, PATH_LOST, 0);
    cr_assert_eq(set.closed, 1);
    cr_assert_eq(set.good, 1);
    cr_assert_eq(path_choose(&set, -1), 0);
    cr_assert_eq(path_choose(&set, 0), 0, "even if it is to be avoided");
    cr_assert_eq(path_next_closed(&set, 2), 1);
    path_works(&set, 1);
    cr_assert_eq(path_next_closed(&set, 0), -1);
}

Test(path, what_had_better_arrive)
{
    for (unsigned i = 0; i < 3; i++) {
        setup_closing(policies[i], 16);
        for (int n = 0; n < 200; n++) { /* nothing has worked: the first one, every other time */
            uint16_t avoid = (uint16_t)(n % 16), path = path_choose_safe(&set, avoid, true);
            cr_assert(avoid ? path == 0 : path != 0, "policy %u: %u for %u", policies[i], path, avoid);
        }
        path_report(&set, 5, PATH_GOOD, 0);
        for (int n = 0; n < 200; n++)
            cr_assert_eq(path_choose_safe(&set, n % 16, false), 5, "policy %u", policies[i]);
        path_report(&set, 9, PATH_GOOD, 0);
        for (int n = 0; n < 200; n++) {
            uint16_t path = path_choose_safe(&set, n % 2 ? 5 : -1, false);
            cr_assert(path == 9 || (path == 5 && n % 2 == 0), "policy %u", policies[i]);
        }
        unsigned others = 0; /* it seems not to work any more */
        for (int n = 0; n < 200; n++) {
            uint16_t path = path_choose_safe(&set, n % 2 ? 5 : 0, true);
            cr_assert(n % 2 ? path == 0 : path != 0);
            others |= 1u << path;
        }
        cr_assert_eq(others, 0xffff);
    }
}

/* Who only receives has few paths that have worked. Its acks use all, until one seems to swallow what it carries. */
Test(path, acks_spread_until_something_is_lost)
{
    for (unsigned i = 0; i < 3; i++) {
        setup_closing(policies[i], 16);
        path_report(&set, 5, PATH_GOOD, 0);
        unsigned used = 0;
        for (int n = 0; n < 400; n++)
            used |= 1u << path_choose_for_ack(&set, -1);
        cr_assert_eq(__builtin_popcount(used), 16, "policy %u: %x", policies[i], used);
        path_report(&set, 9, PATH_LOST, 0);
        cr_assert_eq(set.suspects, 1);
        for (int n = 0; n < 100; n++)
            cr_assert_eq(path_choose_for_ack(&set, -1), 5, "policy %u", policies[i]);
        path_works(&set, 9);
        cr_assert_eq(set.suspects, 0);
        for (int n = 0; n < 400; n++)
            used |= 1u << path_choose_for_ack(&set, -1);
        cr_assert_eq(__builtin_popcount(used), 16);
    }
}

/* Nothing has worked yet, so that no path closes: the loss counts all the same. */
Test(path, a_loss_before_anything_has_worked_makes_a_suspect)
{
    setup_closing(PATH_RECYCLE, 4);
    for (unsigned n = 0; n < 300; n++)
        path_report(&set, 1, PATH_LOST, 0);
    cr_assert(set.closed == 0 && set.suspects == 1);
    path_report(&set, 0, PATH_GOOD, 0);
    for (int n = 0; n < 100; n++)
        cr_assert_eq(path_choose_for_ack(&set, -1), 0);
    path_report(&set, 1, PATH_LOST, 0);
    cr_assert(set.closed == 1 && set.suspects == 1);
    for (unsigned n = 0; n < 20; n++) { /* one that has worked is a suspect once it is closed */
        path_report(&set, 2, PATH_GOOD, 0);
        path_report(&set, 0, PATH_LOST, 0);
    }
    cr_assert(set.paths[0].closed && set.closed == 2 && set.suspects == 2);
    path_works(&set, 0);
    path_works(&set, 1);
    cr_assert(set.closed == 0 && set.suspects == 0);
}
