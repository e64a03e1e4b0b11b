/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/spin.h"

#include "core/units.h"

#define SLICE_NS (500 * NS_PER_US) /* between two looks: another thread had the core */
#define REST_MIN_NS (5 * NS_PER_MS)
#define REST_MAX_NS (2 * NS_PER_S)
#define LONGER_MAX_NS (200 * NS_PER_US)

/* Whether the core was lost since the last look. */
static void judge(struct spin *spin, uint64_t now_ns)
{
    if (spin->seen_ns == 0 || now_ns - spin->seen_ns < SLICE_NS)
        return;
    bool soon = now_ns - atomic_load_explicit(&spin->from_ns, memory_order_relaxed) < spin->rest_ns;
    spin->rest_ns = soon ? 2 * spin->rest_ns : REST_MIN_NS;
    if (spin->rest_ns > REST_MAX_NS)
        spin->rest_ns = REST_MAX_NS;
    atomic_store_explicit(&spin->from_ns, now_ns + spin->rest_ns, memory_order_relaxed);
}

static uint64_t most_ns(const struct spin *spin, uint64_t usual_ns)
{
    return spin->longer_ns < usual_ns ? usual_ns : spin->longer_ns;
}

bool spin_goes_on(struct spin *spin, uint64_t usual_ns, uint64_t now_ns)
{
    judge(spin, now_ns);
    if (spin->idle_ns == 0)
        spin->idle_ns = now_ns;
    bool goes_on = now_ns - spin->idle_ns < most_ns(spin, usual_ns) && !spin_rests(spin, now_ns);
    spin->seen_ns = goes_on ? now_ns : 0;
    return goes_on;
}

void spin_ends(struct spin *spin, uint64_t usual_ns, uint64_t now_ns)
{
    judge(spin, now_ns);
    if (spin->seen_ns == 0) { /* whoever looked for work slept meanwhile */
        bool soon = now_ns - spin->idle_ns < LONGER_MAX_NS;
        uint64_t longer_ns = soon ? 2 * most_ns(spin, usual_ns) : most_ns(spin, usual_ns) / 2;
        spin->longer_ns = longer_ns < LONGER_MAX_NS ? longer_ns : LONGER_MAX_NS;
    }
    spin_begin(spin);
}
