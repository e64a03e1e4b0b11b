/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/clock.h"

#include "base/clock.h"

enum {
    TRIES = 5,                       /* of which the quickest reading counts */
    READING_NS_MAX = 20 * NS_PER_US, /* one that took longer tells too little */
    APART_NS_MIN = 50 * NS_PER_MS,   /* readings nearer than that make no slope */
    MEASURED_MAX = 8,                /* that the slope is averaged over */
    SKEW_SHARE = 1000,               /* the slope is within 1/1000 of the nominal one, or a clock was set */
    REACH_NS = NS_PER_S,             /* how far from a reading stamps are converted */
};

/* The NIC's clock. False: it cannot be read. */
static bool read_ticks(struct ibv_context *context, uint64_t *ticks)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    if (ibv_query_rt_values_ex(context, &values) != 0 || !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
        return false;
    *ticks = (uint64_t)values.raw_clock.tv_nsec; /* all of it stands there */
    return true;
}

struct verbs_clock_kind verbs_clock_find(const struct verbs_lib *lib, struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 2, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct verbs_clock_kind none = {0}, kind;
    uint64_t ticks;
    if (!verbs_query_clock(context, &kind.mask, &kind.khz) || !read_ticks(context, &ticks))
        return none;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    if (!cq)
        return none;
    lib->destroy_cq(ibv_cq_ex_to_cq(cq));
    return kind;
}

static double nominal(const struct verbs_clock *clock)
{
    return 1e6 / (double)clock->is.khz;
}

void verbs_clock_open(struct verbs_clock *clock, struct ibv_context *context, struct verbs_clock_kind kind)
{
    *clock = (struct verbs_clock){.context = context, .is = kind};
    verbs_clock_sync(clock);
}

void verbs_clock_note(struct verbs_clock *clock, uint64_t ticks, uint64_t host_ns)
{
    bool first = clock->host_ns == 0;
    if (!first && host_ns - clock->host_ns < APART_NS_MIN)
        return;
    uint64_t passed = (ticks - clock->ticks) & clock->is.mask;
    double slope = first || passed == 0 ? 0 : (double)(host_ns - clock->host_ns) / (double)passed;
    double off = slope / nominal(clock) - 1;
    if (off * SKEW_SHARE > 1 || off * SKEW_SHARE < -1) {
        clock->measured = 0;
        clock->ns_per_tick = nominal(clock);
    } else {
        clock->measured += clock->measured < MEASURED_MAX;
        clock->ns_per_tick += (slope - clock->ns_per_tick) / clock->measured;
    }
    clock->ticks = ticks & clock->is.mask;
    clock->host_ns = host_ns;
}

void verbs_clock_sync(struct verbs_clock *clock)
{
    uint64_t best_ns = READING_NS_MAX, ticks = 0, host_ns = 0;
    for (unsigned i = 0; clock->is.mask && i < TRIES; i++) {
        uint64_t before_ns = clock_now_ns(), read;
        if (!read_ticks(clock->context, &read)) {
            clock->is.mask = 0;
            return;
        }
        uint64_t took_ns = clock_now_ns() - before_ns;
        if (took_ns >= best_ns)
            continue;
        best_ns = took_ns;
        ticks = read;
        host_ns = before_ns + took_ns / 2;
    }
    if (host_ns)
        verbs_clock_note(clock, ticks, host_ns);
}

uint64_t verbs_clock_host_ns(const struct verbs_clock *clock, uint64_t ticks)
{
    uint64_t mask = clock->is.mask, after = (ticks - clock->ticks) & mask;
    if (clock->host_ns == 0 || mask == 0)
        return 0;
    /* half of the range is behind the last reading */
    double ns =
        after <= mask / 2 ? (double)after * clock->ns_per_tick : -(double)(mask - after + 1) * clock->ns_per_tick;
    if (ns > REACH_NS || ns < -(double)REACH_NS)
        return 0;
    return clock->host_ns + (uint64_t)(int64_t)ns;
}
