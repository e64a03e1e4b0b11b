/* SPDX-License-Identifier: Apache-2.0 */
/* Timeouts for poll(2), against a clock that the test sets. */
#include "base/clock.h"

#include <criterion/criterion.h>
#include <time.h>

static uint64_t now_ns = 12345678901234;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    cr_assert_eq(clock, CLOCK_MONOTONIC);
    *out = (struct timespec){(time_t)(now_ns / NS_PER_S), (long)(now_ns % NS_PER_S)};
    return 0;
}

/* Never less than what is left: a poll() that ends before its time is asked again at once, without rest. */
Test(clock, poll_sleeps_until_the_deadline)
{
    static const struct {
        uint64_t left_ns;
        int ms;
    } rows[] = {{1, 1},
                {NS_PER_MS - 1, 1},
                {NS_PER_MS, 1},
                {NS_PER_MS + 1, 2},
                {7 * NS_PER_MS, 7},
                {3600 * NS_PER_S, 3600000},
                {3600 * NS_PER_S + 1, 3600000},
                {UINT64_MAX / 2, 3600000}};
    cr_assert_eq(clock_now_ns(), now_ns);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_eq(clock_poll_ms(now_ns + rows[i].left_ns), rows[i].ms, "row %u", i);
    cr_assert_eq(clock_poll_ms(now_ns), 0);
    cr_assert_eq(clock_poll_ms(now_ns - 1), 0, "it has passed");
    cr_assert_eq(clock_poll_ms(0), 0);
    cr_assert_eq(clock_poll_ms(UINT64_MAX), -1, "there is none");
}
