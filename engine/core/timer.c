/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timer hangs in the level of the highest 6-bit group in which its tick differs from the wheel's:
 * level 0 has one slot per tick, level n one per 64^n ticks. Everything in a lower level is due
 * before anything in a higher one, so the next event is the first occupied slot after the wheel's
 * own index in the lowest level that has one: six bit scans, whatever the distance. Only occupied
 * slots are visited, and each visit brings a slot's timers at least one level down, so a jump of
 * time costs at most TIMER_LEVELS moves per timer. Owned by one thread; holds no clock.
 *
 * Invariants: a slot's bit in occupied[] is set exactly when its list is not empty. Above level 0
 * the slot of the wheel's own index is empty. Level 0's own slot holds what is due now. The top
 * level wraps around; a deadline beyond its 63 slots hangs in the last and is sorted again there.
 */
#include "core/timer.h"

#include <assert.h>
#include <stddef.h>

enum {
    SLOT_BITS = 6,
    SLOT_MASK = TIMER_SLOTS - 1,
    TOP = TIMER_LEVELS - 1,
    TOP_SHIFT = TOP * SLOT_BITS,
};

static unsigned slot_index(uint64_t tick, unsigned level)
{
    return (unsigned)(tick >> (level * SLOT_BITS)) & SLOT_MASK;
}

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_ns)
{
    *wheel = (struct timer_wheel){.now_ns = now_ns, .now_tick = now_ns >> TIMER_TICK_SHIFT};
}

/* Hangs an unarmed timer where its deadline belongs as seen from the wheel's tick. */
static void timer_insert(struct timer_wheel *wheel, struct timer *timer)
{
    /* Rounded up, so that the tick begins at or after the deadline: never early. */
    uint64_t tick = timer->deadline_ns >> TIMER_TICK_SHIFT;
    tick += (timer->deadline_ns & ((1u << TIMER_TICK_SHIFT) - 1)) != 0;
    if (timer->deadline_ns <= wheel->now_ns || tick < wheel->now_tick)
        tick = wheel->now_tick;

    uint64_t differs = tick ^ wheel->now_tick;
    unsigned level = 0;
    if (differs >> TOP_SHIFT) {
        uint64_t last = (wheel->now_tick >> TOP_SHIFT) + SLOT_MASK;
        if (tick >> TOP_SHIFT > last)
            tick = last << TOP_SHIFT;
        level = TOP;
    } else if (differs) {
        level = (unsigned)(63 - __builtin_clzll(differs)) / SLOT_BITS;
    }

    unsigned slot = slot_index(tick, level);
    assert(level == 0 || slot != slot_index(wheel->now_tick, level));
    struct timer **head = &wheel->slots[level][slot];
    timer->level = (uint8_t)level;
    timer->slot = (uint8_t)slot;
    timer->next = *head;
    timer->link = head;
    if (timer->next)
        timer->next->link = &timer->next;
    *head = timer;
    wheel->occupied[level] |= UINT64_C(1) << slot;
}

void timer_disarm(struct timer_wheel *wheel, struct timer *timer)
{
    if (!timer_armed(timer))
        return;
    assert(*timer->link == timer);
    *timer->link = timer->next;
    if (timer->next)
        timer->next->link = timer->link;
    timer->next = NULL;
    timer->link = NULL;
    if (!wheel->slots[timer->level][timer->slot])
        wheel->occupied[timer->level] &= ~(UINT64_C(1) << timer->slot);
}

void timer_arm(struct timer_wheel *wheel, struct timer *timer, uint64_t deadline_ns)
{
    timer_disarm(wheel, timer);
    timer->deadline_ns = deadline_ns;
    timer_insert(wheel, timer);
}

/* First tick of the next occupied slot after the wheel's own, and its level; UINT64_MAX: none. */
static uint64_t next_slot(const struct timer_wheel *wheel, unsigned *level_out)
{
    for (unsigned level = 0; level < TOP; level++) {
        unsigned own = slot_index(wheel->now_tick, level);
        /* Two shifts: one by own + 1 is undefined when that is 64. */
        uint64_t later = wheel->occupied[level] >> own >> 1;
        if (later) {
            unsigned distance = (unsigned)__builtin_ctzll(later) + 1;
            *level_out = level;
            return ((wheel->now_tick >> (level * SLOT_BITS)) + distance) << (level * SLOT_BITS);
        }
    }
    uint64_t later = wheel->occupied[TOP];
    if (!later)
        return UINT64_MAX;
    unsigned first = (slot_index(wheel->now_tick, TOP) + 1) & SLOT_MASK;
    if (first)
        later = later >> first | later << (TIMER_SLOTS - first);
    *level_out = TOP;
    return ((wheel->now_tick >> TOP_SHIFT) + (unsigned)__builtin_ctzll(later) + 1) << TOP_SHIFT;
}

/* The wheel has just entered this slot: its timers move down, to level 0 where they are due. */
static void sort_down(struct timer_wheel *wheel, unsigned level)
{
    unsigned slot = slot_index(wheel->now_tick, level);
    struct timer *timer = wheel->slots[level][slot];
    wheel->slots[level][slot] = NULL;
    wheel->occupied[level] &= ~(UINT64_C(1) << slot);
    while (timer) {
        struct timer *next = timer->next;
        timer_insert(wheel, timer);
        timer = next;
    }
}

struct timer *timer_expired(struct timer_wheel *wheel, uint64_t now_ns)
{
    uint64_t target_tick = now_ns >> TIMER_TICK_SHIFT;
    if (now_ns > wheel->now_ns)
        wheel->now_ns = now_ns;
    for (;;) {
        struct timer *due = wheel->slots[0][wheel->now_tick & SLOT_MASK];
        if (due) {
            timer_disarm(wheel, due);
            return due;
        }
        if (target_tick <= wheel->now_tick)
            return NULL;
        unsigned level = 0;
        uint64_t tick = next_slot(wheel, &level);
        if (tick > target_tick) {
            /* No occupied slot begins in between, so every timer stays where it belongs. */
            wheel->now_tick = target_tick;
            return NULL;
        }
        wheel->now_tick = tick;
        if (level > 0)
            sort_down(wheel, level);
    }
}

uint64_t timer_next(const struct timer_wheel *wheel)
{
    if (wheel->slots[0][wheel->now_tick & SLOT_MASK])
        return wheel->now_tick << TIMER_TICK_SHIFT;
    unsigned level = 0;
    uint64_t tick = next_slot(wheel, &level);
    /* Deadlines of the last tick of time would wrap to zero. */
    return tick >= UINT64_MAX >> TIMER_TICK_SHIFT ? UINT64_MAX : tick << TIMER_TICK_SHIFT;
}
