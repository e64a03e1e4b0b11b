/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical timing wheel (Varghese and Lauck, SOSP 1987, scheme 7): arm and disarm in constant
 * time for any number of flows. A timer never fires early, and late by at most one tick (2^12 ns)
 * plus what the caller's own calls are late.
 */
#ifndef UCCL_TIMER_H
#define UCCL_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    struct timer *next, **link; /* link NULL: not armed */
    uint64_t deadline_ns;
    bool of_conn;        /* the owner's mark, so that it can tell its timers apart */
    uint8_t level, slot; /* where it hangs, to keep the occupancy bits */
};

enum { TIMER_TICK_SHIFT = 12, TIMER_LEVELS = 6, TIMER_SLOTS = 64 };

struct timer_wheel {
    struct timer *slots[TIMER_LEVELS][TIMER_SLOTS];
    uint64_t occupied[TIMER_LEVELS]; /* bit per slot that has a timer */
    uint64_t now_tick;               /* how far the slots are worked off */
    uint64_t now_ns;                 /* the latest time that the wheel was given */
};

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_ns);
/* Arms, or moves an armed timer. A deadline not after the wheel's latest time fires at the next timer_expired(). */
void timer_arm(struct timer_wheel *wheel, struct timer *timer, uint64_t deadline_ns);
/* Does nothing when the timer is not armed (a zeroed one is not). */
void timer_disarm(struct timer_wheel *wheel, struct timer *timer);
static inline bool timer_armed(const struct timer *timer)
{
    return timer->link != 0;
}
/* Takes one timer whose deadline is at or before now_ns off the wheel; NULL: none. Two timers of one
 * tick come in either order. */
struct timer *timer_expired(struct timer_wheel *wheel, uint64_t now_ns);
/* When to call timer_expired() again: not later than the earliest deadline plus a tick, in vain at most
 * once per level (beyond 2^48 ns: once per 2^48 ns); UINT64_MAX: no timer armed. */
uint64_t timer_next(const struct timer_wheel *wheel);

#endif
