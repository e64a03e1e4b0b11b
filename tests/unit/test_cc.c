/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control, rule by rule and against a simulated bottleneck: flows that always have chunks
 * to send share one first-in-first-out link of a fixed rate, each chunk's ack returns a fixed delay
 * after it left the link, and a chunk that finds the queue too long is lost.
 */
#include "core/cc.h"
#include "core/rng.h"
#include "core/rtt.h"

#include <criterion/criterion.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum { CHUNK = 65536, FLOWS_MAX = 64, ACKS_MAX = 1 << 14 };

static struct params params_for(unsigned cc)
{
    return (struct params){.cc = cc, .swift_target_us = 300, .cwnd_max_kb = 65536};
}

static struct cc make(unsigned algorithm)
{
    struct params params = params_for(algorithm);
    struct cc cc;
    cc_init(&cc, &params, CHUNK);
    return cc;
}

static struct cc_ack ack_at(uint64_t now_ns, uint64_t rtt_ns)
{
    return (struct cc_ack){.now_ns = now_ns,
                           .rtt_ns = rtt_ns,
                           .srtt_ns = rtt_ns,
                           .min_rtt_ns = 50 * US,
                           .acked_bytes = CHUNK,
                           .cwnd_limited = true};
}

/* Where start-up is over and a round trip of 100 us is known. */
static struct cc make_settled(unsigned algorithm, uint64_t cwnd_bytes)
{
    struct cc cc = make(algorithm);
    struct cc_ack ack = ack_at(1 * MS, 100 * US);
    ack.acked_bytes = 0;
    cc.ops->on_ack(&cc, &ack);
    cc.startup = false;
    cc_set_window(&cc, cwnd_bytes);
    cc.timely.rate = algorithm == CC_TIMELY ? (cc.cwnd_bytes << 26) / cc.srtt_ns : 0;
    return cc;
}

/* ---- the bottleneck ---- */

struct sent {
    uint64_t at_ns, ack_ns;
    unsigned flow;
    bool lost;
};

static struct link {
    uint64_t now_ns, free_ns, base_rtt_ns, queue_max_ns, chunk_ns;
    struct sent acks[ACKS_MAX]; /* ring in order of return */
    unsigned head, count;
    struct flow {
        struct cc cc;
        struct rtt rtt;
        uint64_t in_flight, in_flight_max, next_ns, acked_bytes;
        bool limited;
    } flows[FLOWS_MAX];
    unsigned flow_count;
    struct rng rng;
    /* measured */
    uint64_t delay_sum_ns, delay_max_ns, delays, lost;
} sim;

static void sim_init(unsigned algorithm, unsigned flows, uint64_t bytes_per_us, uint64_t base_rtt_ns)
{
    memset(&sim, 0, sizeof sim);
    sim.now_ns = sim.free_ns = 1 * MS;
    sim.base_rtt_ns = base_rtt_ns;
    sim.queue_max_ns = 100 * MS;
    sim.chunk_ns = CHUNK * US / bytes_per_us;
    sim.flow_count = flows;
    for (unsigned i = 0; i < flows; i++) {
        sim.flows[i].cc = make(algorithm);
        sim.flows[i].in_flight_max = UINT64_MAX;
        rtt_init(&sim.flows[i].rtt);
    }
}

static bool flow_may_send(struct flow *flow)
{
    const struct cc *cc = &flow->cc;
    if (flow->in_flight + CHUNK > flow->in_flight_max)
        return flow->limited = false;
    flow->limited = true;
    if (cc->cwnd_bytes < CHUNK)
        return flow->in_flight == 0 && sim.now_ns >= flow->next_ns;
    return flow->in_flight + CHUNK <= cc->cwnd_bytes;
}

static void sim_send(unsigned flow_number)
{
    struct flow *flow = &sim.flows[flow_number];
    while (flow_may_send(flow)) {
        cr_assert_lt(sim.count, ACKS_MAX);
        struct sent *sent = &sim.acks[(sim.head + sim.count++) % ACKS_MAX];
        uint64_t start_ns = sim.free_ns > sim.now_ns ? sim.free_ns : sim.now_ns;
        sent->at_ns = sim.now_ns;
        sent->flow = flow_number;
        sent->lost = start_ns - sim.now_ns > sim.queue_max_ns;
        if (!sent->lost)
            sim.free_ns = start_ns + sim.chunk_ns;
        sent->ack_ns = (sent->lost ? start_ns : sim.free_ns) + sim.base_rtt_ns;
        flow->in_flight += CHUNK;
        /* Threads do not keep time exactly; without it paced flows lock onto each other's rhythm. */
        uint64_t gap_ns = flow->cc.pace_gap_ns;
        flow->next_ns = sim.now_ns + gap_ns * 3 / 4 + rng_below(&sim.rng, (uint32_t)(gap_ns / 2 + 1));
    }
}

static void sim_ack(void)
{
    struct sent sent = sim.acks[sim.head];
    struct flow *flow = &sim.flows[sent.flow];
    sim.head = (sim.head + 1) % ACKS_MAX;
    sim.count--;
    flow->in_flight -= CHUNK;
    if (sent.lost) {
        sim.lost++;
        flow->cc.ops->on_loss(&flow->cc, sim.now_ns, flow->rtt.srtt_ns);
        return;
    }
    uint64_t rtt_ns = sim.now_ns - sent.at_ns;
    rtt_sample(&flow->rtt, rtt_ns, 0, sim.now_ns);
    flow->acked_bytes += CHUNK;
    sim.delay_sum_ns += rtt_ns;
    sim.delays++;
    if (rtt_ns > sim.delay_max_ns)
        sim.delay_max_ns = rtt_ns;
    struct cc_ack ack = {.now_ns = sim.now_ns,
                         .rtt_ns = rtt_ns,
                         .srtt_ns = flow->rtt.srtt_ns,
                         .min_rtt_ns = flow->rtt.min_ns,
                         .acked_bytes = CHUNK,
                         .cwnd_limited = flow->limited};
    flow->cc.ops->on_ack(&flow->cc, &ack);
    cr_assert(flow->cc.cwnd_bytes >= CHUNK / 64 && flow->cc.cwnd_bytes <= flow->cc.cwnd_max_bytes);
    cr_assert_eq(flow->cc.pace_gap_ns == 0, flow->cc.cwnd_bytes >= CHUNK);
}

/* Runs for a time and measures only that. */
static void sim_run(uint64_t duration_ns)
{
    uint64_t end_ns = sim.now_ns + duration_ns;
    sim.delay_sum_ns = sim.delay_max_ns = sim.delays = sim.lost = 0;
    for (unsigned i = 0; i < sim.flow_count; i++)
        sim.flows[i].acked_bytes = 0;
    while (sim.now_ns < end_ns) {
        uint64_t next_ns = end_ns;
        for (unsigned i = 0; i < sim.flow_count; i++) {
            struct flow *flow = &sim.flows[i];
            sim_send(i);
            if (flow->in_flight == 0 && flow->next_ns > sim.now_ns && flow->next_ns < next_ns)
                next_ns = flow->next_ns;
        }
        if (sim.count > 0 && sim.acks[sim.head].ack_ns <= next_ns) {
            sim.now_ns = sim.acks[sim.head].ack_ns;
            sim_ack();
        } else {
            sim.now_ns = next_ns;
        }
    }
}

/* Nothing to send for a time. */
static void sim_idle(uint64_t duration_ns)
{
    for (unsigned i = 0; i < sim.flow_count; i++)
        sim.flows[i].in_flight_max = 0;
    sim_run(duration_ns);
    for (unsigned i = 0; i < sim.flow_count; i++)
        sim.flows[i].in_flight_max = UINT64_MAX;
}

static uint64_t sim_mean_delay_ns(void)
{
    return sim.delays ? sim.delay_sum_ns / sim.delays : 0;
}

/* Share of the link in use over the last run, in percent. */
static uint64_t sim_utilisation(uint64_t duration_ns)
{
    return 100 * sim.delays * sim.chunk_ns / duration_ns;
}

static void between(uint64_t value, uint64_t low, uint64_t high, const char *what)
{
    cr_assert(value >= low && value <= high, "%s: %lu is not within %lu and %lu", what, value, low, high);
}

/* For so long the link is used to so many percent at least. */
static void check_use(uint64_t duration_ns, unsigned percent)
{
    sim_run(duration_ns);
    between(sim_utilisation(duration_ns), percent, 101, "utilisation");
}

static void check_shares(unsigned factor)
{
    uint64_t fair_bytes = sim.delays * CHUNK / sim.flow_count;
    for (unsigned i = 0; i < sim.flow_count; i++)
        between(sim.flows[i].acked_bytes, fair_bytes / factor, fair_bytes * factor, "share");
}

/* ---- both algorithms ---- */

static const unsigned both[] = {CC_SWIFT, CC_TIMELY};

Test(cc, choice_by_parameter)
{
    cr_assert_eq(make(CC_SWIFT).ops, &cc_swift);
    cr_assert_eq(make(CC_TIMELY).ops, &cc_timely);
    cr_assert_str_eq(cc_swift.name, "swift");
    cr_assert_str_eq(cc_timely.name, "timely");
}

Test(cc, initial_window)
{
    cr_assert_eq(make(CC_SWIFT).cwnd_bytes, 16 * CHUNK);
    cr_assert_eq(make(CC_SWIFT).pace_gap_ns, 0);
    struct params params = params_for(CC_SWIFT);
    params.cwnd_max_kb = 128;
    struct cc cc;
    cc_init(&cc, &params, CHUNK);
    cr_assert_eq(cc.cwnd_bytes, 128 * 1024);
    cc_init(&cc, &params, 1024);
    cr_assert_eq(cc.cwnd_bytes, 128 * 1024);
    params = params_for(CC_SWIFT);
    cc_init(&cc, &params, 4096);
    cr_assert_eq(cc.cwnd_bytes, 256 * 1024, "small chunks are no reason for a slow start");
}

Test(cc, window_bounds_and_pace)
{
    struct cc cc = make_settled(CC_SWIFT, 1);
    cr_assert_eq(cc.cwnd_bytes, CHUNK / 64);
    cr_assert_eq(cc.pace_gap_ns, 64 * 100 * US);
    cc_set_window(&cc, CHUNK / 4);
    cr_assert_eq(cc.pace_gap_ns, 4 * 100 * US);
    cc_set_window(&cc, CHUNK);
    cr_assert_eq(cc.pace_gap_ns, 0);
    cc_set_window(&cc, UINT64_MAX);
    cr_assert_eq(cc.cwnd_bytes, cc.cwnd_max_bytes);
    cc.srtt_ns = UINT64_MAX;
    cc_set_window(&cc, CHUNK / 64);
    between(cc.pace_gap_ns, 1, 1000 * MS, "a stopped peer must not stop us for long");
}

Test(cc, loss_halves_once_per_round_trip)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cc cc = make_settled(both[i], 32 * CHUNK);
        cc.ops->on_loss(&cc, 2 * MS, 100 * US);
        between(cc.cwnd_bytes, 16 * CHUNK - 100, 16 * CHUNK, "first loss");
        for (uint64_t later_ns = 0; later_ns < 100 * US; later_ns += 10 * US)
            cc.ops->on_loss(&cc, 2 * MS + later_ns, 100 * US);
        between(cc.cwnd_bytes, 16 * CHUNK - 100, 16 * CHUNK, "the rest of the burst");
        cc.ops->on_loss(&cc, 2 * MS + 100 * US, 100 * US);
        between(cc.cwnd_bytes, 8 * CHUNK - 100, 8 * CHUNK, "a round trip later");
    }
}

Test(cc, loss_before_any_round_trip_is_known)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cc cc = make(both[i]);
        for (int burst = 0; burst < 10; burst++)
            cc.ops->on_loss(&cc, 5 * MS, 0);
        cr_assert_eq(cc.cwnd_bytes, 8 * CHUNK);
    }
}

Test(cc, repeated_timeouts_leave_one_chunk)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cc cc = make_settled(both[i], 512 * CHUNK);
        cc.ops->on_rto(&cc, 10 * MS);
        between(cc.cwnd_bytes, 256 * CHUNK - 100, 256 * CHUNK, "first timeout");
        cc.ops->on_rto(&cc, 20 * MS);
        between(cc.cwnd_bytes, 128 * CHUNK - 100, 128 * CHUNK, "second timeout");
        cc.ops->on_rto(&cc, 40 * MS);
        between(cc.cwnd_bytes, CHUNK - 100, CHUNK, "third timeout");

        cc = make_settled(both[i], 512 * CHUNK);
        for (uint64_t timeout = 1; timeout <= 3; timeout++) {
            cc.ops->on_rto(&cc, timeout * 10 * MS);
            struct cc_ack ack = ack_at(timeout * 10 * MS + MS, 100 * US);
            ack.cwnd_limited = false;
            cc.ops->on_ack(&cc, &ack);
        }
        between(cc.cwnd_bytes, 64 * CHUNK - 1000, 64 * CHUNK, "with acks in between they are not in a row");
    }
}

Test(cc, window_that_does_not_limit_does_not_grow)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cc cc = make(both[i]);
        for (uint64_t now_ns = 1 * MS; now_ns < 20 * MS; now_ns += 50 * US) {
            struct cc_ack ack = ack_at(now_ns, 50 * US);
            ack.cwnd_limited = false;
            cc.ops->on_ack(&cc, &ack);
            between(cc.cwnd_bytes, 16 * CHUNK - 100, 16 * CHUNK, "window");
        }
    }
}

/* 12.5 GB/s over 60 us is a window of 750 KB; a target's worth of queue 3.75 MB. */
Test(cc, reaches_line_rate_in_a_few_round_trips)
{
    for (unsigned i = 0; i < 2; i++) {
        sim_init(both[i], 1, 100000, 60 * US); /* 100 GB/s: 6 MB window from 1 MB */
        sim_run(60 * US * 10);
        check_use(1 * MS, 95);
    }
}

Test(cc, uncongested_path_grows_to_the_maximum_and_stays)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cc cc = make(both[i]);
        struct cc_ack ack = ack_at(1 * MS, 50 * US);
        for (int n = 0; n < 20000; n++) {
            ack.now_ns += 1 * US;
            cc.ops->on_ack(&cc, &ack);
        }
        between(cc.cwnd_bytes, cc.cwnd_max_bytes - 1000, cc.cwnd_max_bytes, "window");
    }
}

Test(cc, recovers_after_timeouts)
{
    for (unsigned i = 0; i < 2; i++) {
        sim_init(both[i], 1, 12500, 60 * US);
        sim_run(20 * MS);
        for (int timeout = 1; timeout <= 3; timeout++) {
            sim_idle(4 * MS);
            sim.flows[0].cc.ops->on_rto(&sim.flows[0].cc, sim.now_ns);
        }
        cr_assert_leq(sim.flows[0].cc.cwnd_bytes, CHUNK);
        sim_run(3 * MS);
        check_use(5 * MS, 95);
    }
}

Test(cc, recovers_from_the_floor)
{
    for (unsigned i = 0; i < 2; i++) {
        sim_init(both[i], 1, 12500, 60 * US);
        sim_run(5 * MS);
        struct cc *cc = &sim.flows[0].cc;
        for (int loss = 0; loss < 40; loss++) {
            sim_idle(1 * MS);
            cc->ops->on_loss(cc, sim.now_ns, sim.flows[0].rtt.srtt_ns);
        }
        cr_assert_eq(cc->cwnd_bytes, CHUNK / 64);
        cr_assert_gt(cc->pace_gap_ns, 0);
        sim_run(100 * MS);
        check_use(5 * MS, 90);
    }
}

/* A queue of 1 ms that drops: the window must stop at what fits and keep the link busy. */
Test(cc, short_queue)
{
    for (unsigned i = 0; i < 2; i++) {
        sim_init(both[i], 4, 12500, 60 * US);
        sim.queue_max_ns = 100 * US;
        sim_run(50 * MS);
        check_use(50 * MS, 80);
        between(sim.lost, 0, sim.delays / 10, "lost chunks");
    }
}

/* ---- Swift ---- */

Test(swift, holds_the_target)
{
    sim_init(CC_SWIFT, 1, 12500, 60 * US);
    sim_run(20 * MS);
    check_use(100 * MS, 98);
    between(sim_mean_delay_ns(), 250 * US, 330 * US, "mean delay");
    between(sim.delay_max_ns, 300 * US, 400 * US, "longest delay");
    /* 300 us at 12.5 GB/s */
    between(sim.flows[0].cc.cwnd_bytes, 3000 * 1000, 4200 * 1000, "window");
}

/* A flow that begins while a queue stands must neither starve the others nor starve. */
Test(swift, latecomer)
{
    sim_init(CC_SWIFT, 8, 12500, 60 * US);
    sim.flows[0].in_flight_max = 0;
    sim_run(20 * MS);
    sim.flows[0].in_flight_max = UINT64_MAX;
    sim_run(100 * MS);
    check_use(100 * MS, 98);
    between(sim_mean_delay_ns(), 250 * US, 370 * US, "mean delay");
    check_shares(2);
}

/* More flows than the target has room for chunks: windows go below a chunk, and the queue is bounded. */
Test(swift, incast_paces_below_a_chunk)
{
    sim_init(CC_SWIFT, 64, 1250, 60 * US); /* 10 Gbps; 64 chunks are 3.4 ms of queue */
    sim_run(200 * MS);
    check_use(200 * MS, 90);
    between(sim_mean_delay_ns(), 250 * US, 900 * US, "mean delay");
    unsigned paced = 0;
    for (unsigned i = 0; i < 64; i++)
        paced += sim.flows[i].cc.pace_gap_ns > 0;
    cr_assert_gt(paced, 32);
    check_shares(4);
}

Test(swift, decreases_once_per_round_trip)
{
    struct cc cc = make_settled(CC_SWIFT, 100 * CHUNK);
    struct cc_ack ack = ack_at(2 * MS, 600 * US);
    ack.srtt_ns = 400 * US;
    cc.ops->on_ack(&cc, &ack);
    uint64_t once_bytes = cc.cwnd_bytes; /* 1 - 0.8 * 300 / 600 */
    between(once_bytes, 60 * CHUNK, 61 * CHUNK, "window");
    for (; ack.now_ns < 2 * MS + 600 * US; ack.now_ns += 20 * US)
        cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, once_bytes);
    ack.now_ns = 2 * MS + 600 * US;
    cc.ops->on_ack(&cc, &ack);
    cr_assert_lt(cc.cwnd_bytes, once_bytes);
}

Test(swift, decrease_is_at_most_half)
{
    struct cc cc = make_settled(CC_SWIFT, 100 * CHUNK);
    struct cc_ack ack = ack_at(2 * MS, UINT64_MAX);
    ack.srtt_ns = 100 * US;
    cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, 50 * CHUNK);
}

Test(swift, additive_increase_is_a_chunk_per_round_trip)
{
    struct cc cc = make_settled(CC_SWIFT, 20 * CHUNK);
    struct cc_ack ack = ack_at(2 * MS, 100 * US);
    for (int n = 0; n < 20; n++)
        cc.ops->on_ack(&cc, &ack);
    between(cc.cwnd_bytes, 20 * CHUNK + CHUNK * 9 / 10, 21 * CHUNK, "window");
    /* crumbs add up too */
    cc = make_settled(CC_SWIFT, 1000 * CHUNK);
    ack.acked_bytes = 100;
    for (int n = 0; n < 1000 * CHUNK / 100; n++)
        cc.ops->on_ack(&cc, &ack);
    between(cc.cwnd_bytes, 1000 * CHUNK + CHUNK * 9 / 10, 1001 * CHUNK, "window");
}

Test(swift, below_a_chunk_the_window_at_most_doubles)
{
    struct cc cc = make_settled(CC_SWIFT, CHUNK / 64);
    struct cc_ack ack = ack_at(2 * MS, 100 * US);
    for (int doubled = 1; doubled <= 6; doubled++) {
        cc.ops->on_ack(&cc, &ack);
        cr_assert_eq(cc.cwnd_bytes, (uint64_t)(CHUNK / 64) << doubled);
    }
    cr_assert_eq(cc.pace_gap_ns, 0);
    cc = make_settled(CC_SWIFT, CHUNK / 64);
    ack.acked_bytes = 10 * CHUNK;
    cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, CHUNK / 32, "an ack of many, too");
}

Test(swift, startup_ends_at_the_first_delay_above_the_target)
{
    struct cc cc = make(CC_SWIFT);
    struct cc_ack ack = ack_at(2 * MS, 100 * US);
    cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, 17 * CHUNK, "grows by what is acked");
    ack = ack_at(3 * MS, 290 * US);
    cc.ops->on_ack(&cc, &ack);
    between(cc.cwnd_bytes, 17 * CHUNK + 1, 17 * CHUNK + CHUNK / 4, "fades out near the target");
    ack = ack_at(4 * MS, 400 * US);
    cc.ops->on_ack(&cc, &ack);
    uint64_t cut_bytes = cc.cwnd_bytes;
    cr_assert_lt(cut_bytes, 17 * CHUNK);
    ack = ack_at(5 * MS, 100 * US);
    cc.ops->on_ack(&cc, &ack);
    between(cc.cwnd_bytes, cut_bytes + 1, cut_bytes + CHUNK / 8, "additive from now on");
}

Test(swift, small_windows_have_a_longer_target)
{
    struct cc_ack ack = ack_at(2 * MS, 500 * US);
    struct cc big = make_settled(CC_SWIFT, 64 * CHUNK), small = make_settled(CC_SWIFT, CHUNK / 16);
    big.ops->on_ack(&big, &ack);
    small.ops->on_ack(&small, &ack);
    cr_assert_lt(big.cwnd_bytes, 64 * CHUNK);
    cr_assert_gt(small.cwnd_bytes, CHUNK / 16);
    small = make_settled(CC_SWIFT, CHUNK / 64);
    ack.rtt_ns = 601 * US;
    small.ops->on_ack(&small, &ack);
    cr_assert_eq(small.cwnd_bytes, CHUNK / 64, "the scaling has a bound: the base target");
}

Test(swift, idle_flow_on_slow_threads_keeps_a_chunk)
{
    struct cc cc = make_settled(CC_SWIFT, 4 * CHUNK);
    struct cc_ack ack = ack_at(2 * MS, 5 * MS);
    ack.cwnd_limited = false;
    for (int n = 0; n < 100; n++, ack.now_ns += 10 * MS)
        cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, CHUNK);
    ack.cwnd_limited = true;
    for (int n = 0; n < 100; n++, ack.now_ns += 10 * MS)
        cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, CHUNK / 4);
}

/* ---- Timely ---- */

Test(timely, holds_a_delay_between_its_thresholds)
{
    sim_init(CC_TIMELY, 1, 12500, 60 * US);
    sim_run(50 * MS);
    check_use(100 * MS, 95);
    between(sim_mean_delay_ns(), 150 * US, 600 * US, "mean delay");
    between(sim.delay_max_ns, 150 * US, 700 * US, "longest delay");
}

Test(timely, flows_share)
{
    sim_init(CC_TIMELY, 8, 12500, 60 * US);
    sim_run(200 * MS);
    check_use(200 * MS, 95);
    between(sim_mean_delay_ns(), 150 * US, 900 * US, "mean delay");
    check_shares(3);
}

Test(timely, updates_once_per_round_trip)
{
    struct cc cc = make_settled(CC_TIMELY, 100 * CHUNK);
    struct cc_ack ack = ack_at(3 * MS, 100 * US);
    cc.ops->on_ack(&cc, &ack);
    uint64_t once_bytes = cc.cwnd_bytes;
    between(once_bytes, 101 * CHUNK - 1000, 101 * CHUNK, "a chunk per round trip");
    for (; ack.now_ns < 3 * MS + 100 * US; ack.now_ns += 10 * US)
        cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.cwnd_bytes, once_bytes);
    cc.ops->on_ack(&cc, &ack);
    cr_assert_gt(cc.cwnd_bytes, once_bytes);
}

Test(timely, hyperactive_increase_after_five_good_round_trips)
{
    struct cc cc = make_settled(CC_TIMELY, 100 * CHUNK);
    struct cc_ack ack = ack_at(3 * MS, 100 * US);
    uint64_t before_bytes = 0, step_bytes = 0;
    for (int n = 0; n < 6; n++, ack.now_ns += 100 * US) {
        before_bytes = cc.cwnd_bytes;
        cc.ops->on_ack(&cc, &ack);
        step_bytes = cc.cwnd_bytes - before_bytes;
        if (n < 4)
            between(step_bytes, CHUNK - 1000, CHUNK, "step");
    }
    between(step_bytes, 5 * CHUNK - 1000, 5 * CHUNK, "hyperactive step");
    ack.rtt_ns = 200 * US; /* between the thresholds: from the beginning */
    cc.ops->on_ack(&cc, &ack);
    cr_assert_eq(cc.timely.increases, 0);
}

Test(timely, above_thigh_decreases_in_proportion)
{
    struct cc cc = make_settled(CC_TIMELY, 100 * CHUNK);
    struct cc_ack ack = ack_at(3 * MS, 1200 * US);
    ack.srtt_ns = 100 * US; /* so that the window shows the rate alone */
    cc.ops->on_ack(&cc, &ack);
    /* 1 - 0.5 * (1 - 600/1200) */
    between(cc.cwnd_bytes, 75 * CHUNK - 1000, 75 * CHUNK + 1000, "window");
    cc = make_settled(CC_TIMELY, 100 * CHUNK);
    ack.rtt_ns = UINT64_MAX;
    cc.ops->on_ack(&cc, &ack);
    between(cc.cwnd_bytes, 50 * CHUNK - 1000, 51 * CHUNK, "at most half");
}

Test(timely, rising_delay_weighs_more_than_falling)
{
    struct cc rising = make_settled(CC_TIMELY, 32 * CHUNK), falling = rising;
    rising.timely.rtt_diff_ns = 100 * 1000;
    falling.timely.rtt_diff_ns = -100 * 1000;
    rising.timely.prev_rtt_ns = falling.timely.prev_rtt_ns = 300 * US;
    struct cc_ack ack = ack_at(3 * MS, 300 * US);
    ack.srtt_ns = 100 * US;
    ack.acked_bytes = 32 * CHUNK;
    rising.ops->on_ack(&rising, &ack);
    falling.ops->on_ack(&falling, &ack);
    cr_assert_lt(rising.cwnd_bytes, 30 * CHUNK);
    cr_assert_gt(falling.cwnd_bytes, 32 * CHUNK);
}
