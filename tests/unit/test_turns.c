/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round of an engine thread does first, and what its owner and those who wait do between looks that found
 * nothing: on a NIC that has nothing, with sched_yield() as long as the test says.
 */
#include "../param_defaults.h"
#include "base/clock.h"
#include "thread/thread.h"
#include "woken_queue.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TIMEOUT_S = 10 };

static struct engine_thread thread;
static struct params params;
static _Atomic uint32_t armed;

/* What came first in the round of a command. */
static _Atomic enum { NOTHING, COMMAND_TAKEN, SENT_FIRST, LOOKED_FIRST } order;

/* ---- a NIC that has nothing ------------------------------------------------------------------ */

static struct nic_queue queue;

static unsigned idle_poll(struct nic_queue *from, struct nic_rx *out, unsigned max)
{
    (void)from, (void)out, (void)max;
    if (order == COMMAND_TAKEN)
        order = LOOKED_FIRST;
    return 0;
}

static const struct nic_datagram_ops idle_datagram_ops = {.poll = idle_poll, .follow = woken_follow};

static int idle_open(struct nic *of, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    (void)setup;
    wake_fd = eventfd(0, 0);
    queue = (struct nic_queue){.nic = of, .ops = &woken_ops, .datagram = &idle_datagram_ops};
    *out = &queue;
    return UCCL_OK;
}

static const struct nic_device_ops idle_device_ops = {.queue_open = idle_open};
static struct nic nic = {.ops = &idle_device_ops, .caps = {.lendable = true, .room_wakes = true}};

/* ---- what the thread asks of others ---------------------------------------------------------- */

bool __real_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);
bool __wrap_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);
bool __wrap_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns)
{
    if (order == COMMAND_TAKEN)
        order = SENT_FIRST;
    return __real_core_tx(core, desc, now_ns);
}

static _Atomic unsigned yields;
static _Thread_local unsigned own_yields;
static _Atomic uint64_t yield_ns; /* how long others run then */

int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    uint64_t until_ns = clock_now_ns() + yield_ns;
    while (clock_now_ns() < until_ns)
        ;
    yields++;
    own_yields++;
    return 0;
}

static void ignore_event(void *context, const struct core_event *event)
{
    (void)context, (void)event;
}

static void start(bool lend, uint64_t spin_us)
{
    memset(&thread, 0, sizeof thread);
    params = param_defaults();
    params.spin_us = spin_us;
    params.pin = false;
    cr_assert_eq(thread_start(&thread, &(struct thread_setup){.params = &params,
                                                              .nic = &nic,
                                                              .lend = lend,
                                                              .numa_node = -1,
                                                              .event_fd = -1,
                                                              .event_armed = &armed,
                                                              .on_event = ignore_event}),
                 UCCL_OK);
}

static void note_command(struct engine_thread *of, void *argument)
{
    (void)of, (void)argument;
    order = COMMAND_TAKEN;
}

/* One that has lost its core would not spin for a while. */
static void spin_anew(struct engine_thread *of, void *argument)
{
    (void)argument;
    of->spin = (struct spin){0};
}

/* How many rounds without work there are for each time that the owner of the engine yields its core. */
static unsigned rounds_per_yield(bool lend, uint64_t others_ns)
{
    const _Atomic uint32_t word = 0;
    yield_ns = others_ns;
    start(lend, 1000000);
    unsigned counted = 0;
    uint64_t rounds = 0;
    for (unsigned tries = 0; counted < 100 && tries < 100; tries++) { /* the owner may get no core meanwhile */
        thread_run(&thread, spin_anew, NULL);
        unsigned yields_before = yields;
        uint64_t before = thread.counters->rounds;
        if (lend)
            cr_assert(!thread_wait(&thread, &word, 0, clock_now_ns() + 20 * NS_PER_MS));
        else
            nanosleep(&(struct timespec){.tv_nsec = 20 * NS_PER_MS}, NULL);
        rounds = thread.counters->rounds - before;
        counted = yields - yields_before;
    }
    thread_stop(&thread);
    thread_free(&thread);
    cr_assert_geq(counted, 100);
    return (unsigned)((rounds + counted / 2) / counted);
}

Test(turns, a_core_that_others_want_is_yielded_between_polls, .timeout = TIMEOUT_S)
{
    cr_assert_eq(rounds_per_yield(true, 5000), 1);
}

Test(turns, a_core_that_nobody_wants_is_seldom_yielded, .timeout = TIMEOUT_S)
{
    cr_assert_geq(rounds_per_yield(true, 0), 3);
}

/* With more engine threads than cores, the awaited one would run only after the spin of another. */
Test(turns, a_thread_that_lends_nothing_yields_likewise, .timeout = TIMEOUT_S)
{
    cr_assert_eq(rounds_per_yield(false, 5000), 1);
    cr_assert_geq(rounds_per_yield(false, 0), 3);
}

Test(turns, who_waits_for_a_thread_that_lends_nothing_yields_likewise, .timeout = TIMEOUT_S)
{
    const _Atomic uint32_t word = 0;
    for (unsigned others = 0; others < 2; others++) {
        yield_ns = others ? 20000 : 0;
        start(false, 1000000);
        unsigned counted = 0;
        uint64_t took_ns = 0;
        for (unsigned tries = 0; counted < 100 && tries < 100; tries++) {
            unsigned before = own_yields;
            uint64_t since_ns = clock_now_ns();
            thread_run(&thread, spin_anew, NULL);
            cr_assert(!thread_wait(&thread, &word, 0, since_ns + 20 * NS_PER_MS));
            counted = own_yields - before;
            took_ns = clock_now_ns() - since_ns;
        }
        thread_stop(&thread);
        thread_free(&thread);
        cr_assert(counted >= 100 && counted < took_ns / 500, "%u: %u yields in %lu ns", others, counted,
                  (unsigned long)took_ns);
    }
}

Test(turns, sends_what_was_posted_before_it_looks_for_more, .timeout = TIMEOUT_S)
{
    start(false, 0);
    thread_run(&thread, note_command, NULL);
    thread_stop(&thread);
    thread_free(&thread);
    cr_assert_eq((int)order, SENT_FIRST);
}
