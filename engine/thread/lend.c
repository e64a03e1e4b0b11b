/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/lend.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/process.h"
#include "base/race_point.h"
#include "gpu/stage.h"
#include "thread/loop.h"
#include "thread/onesided.h"
#include "thread/post.h"

#include <limits.h>
#include <sched.h>

enum {
    LEASE_MIN_NS = 50 * NS_PER_US,
    LEASE_MAX_NS = 2000 * NS_PER_US,
    ASK_NS = 1000 * NS_PER_US, /* how long a borrower waits for an answer before it asks again */
    YIELD_ALONE_NS = 1000,     /* a yield that takes less has found nobody who waits for this core */
    YIELD_POLLS = 8,           /* polls, then, until the next yield, */
    YIELD_LOOKS = 64,          /* or looks at a word, each of which takes a tenth of a poll */
    NAP_NS = 50 * NS_PER_US,   /* the longest sleep while the owner must poll: for copies, flushes, memory, and room in
                             the full ring of another thread */
};

/* Application threads may run the engine, unless it has GPU calls to make (stage.h). */
static inline bool may_lend(struct engine_thread *thread)
{
    return thread->lend && atomic_load(&thread->staged) == 0;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

static inline void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/*
 * Between polls that found no work. Whoever is awaited may need this very core, and would have it only after the spin,
 * so the core is yielded. That takes as long as a poll does, so while nobody else wants the core one of `every` polls
 * yields it. `*alone`: polls to come before the next one that does.
 */
static inline void relax(const struct engine_thread *thread, unsigned *alone, unsigned every)
{
    if (*alone > 0) {
        --*alone;
        if (!thread->lend) /* where cores are few, a pause only delays the next poll */
            pause_briefly();
        return;
    }
    uint64_t before_ns = clock_now_ns();
    sched_yield();
    if (clock_now_ns() - before_ns < YIELD_ALONE_NS)
        *alone = every - 1;
}

static inline void found_work(struct engine_thread *thread, uint64_t spin_ns)
{
    if (thread->spin.idle_ns)
        spin_ends(&thread->spin, spin_ns, thread_now_ns(thread));
}

/*
 * The owner sleeps in the NIC, in state `sleeping`, unless it finds work or `*word != value`. Afterwards its state is
 * `running` again. False: a borrower took the engine meanwhile (from THREAD_SLEEPS only).
 */
static bool sleep_in_nic(struct engine_thread *thread, uint32_t running, uint32_t sleeping,
                         const _Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
    if (thread->ones_due)
        onesided_flush(thread, true);
    core_flush_acks(thread->core);
    loop_transmit(thread);
    uint64_t now_ns = clock_now_ns(), wake_ns = core_deadline(thread->core);
    if (thread->notices || thread->ones_due || stage_busy(thread->stage) || flush_busy(&thread->flushes))
        deadline_ns = now_ns + NAP_NS < deadline_ns ? now_ns + NAP_NS : deadline_ns;
    if (wake_ns > deadline_ns)
        wake_ns = deadline_ns;
    uint64_t timeout_ns = wake_ns == UINT64_MAX ? UINT64_MAX : wake_ns > now_ns ? wake_ns - now_ns : 0;
    int beside_fd = nic_watch(thread->queue, &timeout_ns);
    if (sleeping == THREAD_SLEEPS)
        atomic_store(&thread->in_nic, NIC_SLEPT_IN); /* before a borrower can take the engine */
    RACE_POINT();
    /* sequentially consistent: pairs with the look at `owner` after a push (thread_post) */
    atomic_store(&thread->owner, sleeping);
    RACE_POINT();
    if (!ring_busy(&thread->ring) && atomic_load(&thread->lend_requests) == 0 && atomic_load(&thread->stop) == 0 &&
        (!word || atomic_load(word) == value) && timeout_ns > 0) {
        COUNT(thread->counters, engine_sleeps, 1);
        RACE_POINT();
        thread->queue->ops->wait(thread->queue, beside_fd, timeout_ns);
    }
    RACE_POINT();
    if (sleeping == THREAD_SLEEPS && atomic_exchange(&thread->in_nic, NIC_EMPTY) == NIC_AWAITED)
        futex_wake(&thread->in_nic, INT_MAX);
    uint32_t expected = sleeping;
    RACE_POINT();
    return atomic_compare_exchange_strong(&thread->owner, &expected, running);
}

/* ---- the engine thread ----------------------------------------------------------------------- */

/*
 * A borrower that sleeps through whole leases serves timers and the NIC itself, so the engine thread may sleep until
 * that borrower gives the engine back. True: `parked` is set. It was set before we saw that the borrower sleeps, so
 * give_back() sees `parked`, or lend_out() sees another owner.
 */
static bool may_park(struct engine_thread *thread)
{
    RACE_POINT();
    atomic_store(&thread->parked, 1);
    if (atomic_load(&thread->owner) == BORROWER_SLEEPS)
        return true;
    atomic_store(&thread->parked, 0);
    return false;
}

/* The engine has been given away: sleeps until no application thread has had it for a lease. */
static void lend_out(struct engine_thread *thread)
{
    uint64_t lease_ns = LEASE_MIN_NS;
    bool slept_through = false; /* the last lease, by one borrower */
    for (;;) {
        uint32_t borrows = atomic_load(&thread->borrows);
        uint32_t owner = atomic_load(&thread->owner);
        bool park = slept_through && owner == BORROWER_SLEEPS && may_park(thread);
        RACE_POINT();
        if (!atomic_load(&thread->stop))
            futex_wait(&thread->owner, owner, park ? UINT64_MAX : lease_ns);
        if (park)
            atomic_store(&thread->parked, 0);
        slept_through = owner == BORROWER_SLEEPS && atomic_load(&thread->borrows) == borrows;
        bool used =
            owner != OWNER_NONE || atomic_load(&thread->borrows) != borrows || atomic_load(&thread->lend_requests);
        if (used)
            lease_ns = lease_ns * 2 < LEASE_MAX_NS ? lease_ns * 2 : LEASE_MAX_NS;
        uint32_t expected = OWNER_NONE;
        RACE_POINT();
        if ((!used || atomic_load(&thread->stop) || atomic_load(&thread->reclaim) || atomic_load(&thread->staged)) &&
            atomic_compare_exchange_strong(&thread->owner, &expected, THREAD_RUNS)) {
            atomic_store(&thread->reclaim, 0);
            spin_begin(&thread->spin); /* a borrower's last look is none of ours, and the lease no lost core */
            return;
        }
    }
}

void lend_serve(struct engine_thread *thread)
{
    uint64_t spin_ns = thread->params->spin_us * NS_PER_US;
    spin_begin(&thread->spin);
    while (!atomic_load_explicit(&thread->stop, memory_order_acquire)) {
        if (atomic_load_explicit(&thread->lend_requests, memory_order_relaxed) && may_lend(thread)) {
            RACE_POINT();
            atomic_store(&thread->owner, OWNER_NONE);
            RACE_POINT();
            futex_wake(&thread->owner, INT_MAX);
            lend_out(thread); /* at least one round before the next lease: requests to lend may never cease */
        }
        if (loop_round(thread)) {
            found_work(thread, spin_ns);
            continue;
        }
        if (spin_goes_on(&thread->spin, spin_ns, thread_now_ns(thread)))
            relax(thread, &thread->polls_alone, YIELD_POLLS);
        else if (!sleep_in_nic(thread, THREAD_RUNS, THREAD_SLEEPS, NULL, 0, UINT64_MAX))
            lend_out(thread);
    }
}

/* ---- the application's side ------------------------------------------------------------------ */

/* Takes the engine if that needs no waiting. */
static bool try_borrow(struct engine_thread *thread)
{
    uint32_t owner = atomic_load(&thread->owner);
    if ((owner != OWNER_NONE && owner != THREAD_SLEEPS) || !may_lend(thread))
        return false;
    RACE_POINT();
    if (!atomic_compare_exchange_strong(&thread->owner, &owner, BORROWED))
        return false;
    RACE_POINT();
    atomic_fetch_add(&thread->borrows, 1);
    RACE_POINT();
    if (owner == THREAD_SLEEPS)
        thread->queue->ops->wake(thread->queue); /* out of the NIC and into its lease */
    return true;
}

static void give_back(struct engine_thread *thread)
{
    RACE_POINT();
    atomic_store(&thread->owner, OWNER_NONE);
    RACE_POINT();
    /* commands posted while we slept or left must not wait for the end of the lease */
    if (ring_busy(&thread->ring) && try_borrow(thread)) {
        loop_round(thread);
        atomic_store(&thread->owner, OWNER_NONE);
        if (ring_busy(&thread->ring)) /* others keep posting: the engine thread serves them */
            thread_reclaim(thread);
    }
    RACE_POINT();
    if (atomic_load(&thread->parked) || atomic_load(&thread->staged)) /* pairs with may_park() */
        futex_wake(&thread->owner, INT_MAX);
    RACE_POINT();
    if (atomic_load(&thread->waiters)) { /* one of them drives on */
        atomic_fetch_add(&thread->completions, 1);
        futex_wake(&thread->completions, 1);
    }
}

void thread_try_round(struct engine_thread *thread)
{
    CANCEL_LATER; /* a cancelled thread would keep the engine */
    if (!try_borrow(thread))
        return;
    COUNT(thread->counters, lends, 1);
    loop_round(thread);
    give_back(thread);
}

/* A borrower waits until the engine thread, which it woke, has left the NIC. */
static void await_empty_nic(struct engine_thread *thread)
{
    uint32_t seen = NIC_SLEPT_IN;
    RACE_POINT();
    if (atomic_compare_exchange_strong(&thread->in_nic, &seen, NIC_AWAITED) || seen == NIC_AWAITED)
        futex_wait(&thread->in_nic, NIC_AWAITED, ASK_NS);
}

/* The caller has the engine, and runs rounds until the word changes or time is up. */
static void drive(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
    uint64_t spin_ns = thread->params->spin_us * NS_PER_US;
    spin_begin(&thread->spin);
    COUNT(thread->counters, lends, 1);
    while (atomic_load_explicit(word, memory_order_acquire) == value && may_lend(thread)) {
        if (loop_round(thread)) {
            found_work(thread, spin_ns);
            if (deadline_ns != UINT64_MAX && thread_now_ns(thread) >= deadline_ns)
                return; /* others may keep the engine busy without end */
            continue;
        }
        uint64_t now_ns = thread_now_ns(thread);
        if (now_ns >= deadline_ns)
            return;
        if (spin_goes_on(&thread->spin, spin_ns, now_ns))
            relax(thread, &thread->polls_alone, YIELD_POLLS);
        else if (atomic_load(&thread->in_nic))
            await_empty_nic(thread);
        else
            sleep_in_nic(thread, BORROWED, BORROWER_SLEEPS, word, value, deadline_ns);
    }
}

/* Sleeps until some request has ended, or the engine can be borrowed. */
static void wait_for_completion(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                                uint64_t timeout_ns)
{
    RACE_POINT();
    atomic_fetch_add(&thread->waiters, 1);
    RACE_POINT();
    uint32_t seen = atomic_load(&thread->completions);
    RACE_POINT();
    /* give_back() looks at `waiters` after it has stored `owner`, so one of us sees the other */
    bool available = may_lend(thread) && atomic_load(&thread->owner) <= OWNER_NONE;
    RACE_POINT();
    if (atomic_load(word) == value && !available)
        futex_wait(&thread->completions, seen, timeout_ns);
    atomic_fetch_sub(&thread->waiters, 1);
}

/* Asks the running engine thread for the engine. True: the caller has it. */
static bool ask_to_lend(struct engine_thread *thread)
{
    atomic_fetch_add(&thread->lend_requests, 1);
    RACE_POINT();
    futex_wait(&thread->owner, THREAD_RUNS, ASK_NS);
    bool got = try_borrow(thread); /* before the request is withdrawn, or the lease would end */
    atomic_fetch_sub(&thread->lend_requests, 1);
    return got;
}

bool thread_wait_from(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value, uint64_t since_ns,
                      uint64_t deadline_ns)
{
    uint64_t spin_until_ns = thread->lend ? 0 : since_ns + thread->params->spin_us * NS_PER_US;
    unsigned looks_alone = YIELD_LOOKS - 1;
    for (bool first = true;; first = false) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return true;
        uint64_t now_ns = first ? since_ns : clock_now_ns();
        if (now_ns >= deadline_ns)
            return false;
        if (may_lend(thread) &&
            (try_borrow(thread) || (atomic_load(&thread->owner) == THREAD_RUNS && ask_to_lend(thread)))) {
            drive(thread, word, value, deadline_ns);
            give_back(thread);
        } else if (may_lend(thread) && atomic_load(&thread->owner) <= OWNER_NONE) {
            continue; /* the owner has just changed */
        } else if (now_ns < spin_until_ns && !spin_rests(&thread->spin, now_ns)) {
            relax(thread, &looks_alone, YIELD_LOOKS);
        } else {
            wait_for_completion(thread, word, value, deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns - now_ns);
        }
    }
}

void thread_run(struct engine_thread *thread, void (*run)(struct engine_thread *, void *), void *argument)
{
    struct thread_call call = {.run = run, .argument = argument};
    while (!thread_post(thread, COMMAND_CALL, &call)) {
        thread_try_round(thread);
        struct timespec moment = {0, 10000};
        nanosleep(&moment, NULL);
    }
    thread_wait(thread, &call.done, 0, UINT64_MAX);
}

void thread_reclaim(struct engine_thread *thread)
{
    atomic_store(&thread->reclaim, 1);
    RACE_POINT();
    if (atomic_load(&thread->owner) == OWNER_NONE)
        futex_wake(&thread->owner, INT_MAX);
}
