/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine thread on a NIC in the test's hand, which sleeps until the test wakes it, and with the futex calls
 * counted. So every wake-up that is missing is a test that does not go on, and every sleep that is too long is seen in
 * the time that was asked for, not in the time that passes.
 */
#include "../param_defaults.h"
#include "thread_nic.h"
#include "wrapped_syscall.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_S = 10, BATCH = 8 };

static struct engine_thread thread;
static struct params params;
static _Atomic uint32_t armed;

/* ---- what the thread asks of others: counted, and passed on --------------------------------- */

static unsigned rounds_expired;
static _Atomic unsigned nic_told, owner_told; /* wakes of those who sleep on `in_nic`, on `owner` */
static _Atomic uint64_t lease_ns;             /* the engine thread's last sleep on `owner` */
static _Atomic unsigned slices;               /* asked for by the engine thread */
static _Atomic bool freeze, frozen;           /* which is to go on for as long as the test says */

static bool on_syscall(long number, const long argument[6])
{
    if (number == SYS_futex && argument[1] == FUTEX_WAKE_PRIVATE) {
        nic_told += (void *)argument[0] == (void *)&thread.in_nic;
        owner_told += (void *)argument[0] == (void *)&thread.owner;
    } else if (number == SYS_futex && (void *)argument[0] == (void *)&thread.owner &&
               pthread_equal(thread.pthread, pthread_self())) {
        const struct timespec *timeout = (const struct timespec *)argument[3];
        lease_ns = timeout ? (uint64_t)timeout->tv_sec * 1000 * MS + (uint64_t)timeout->tv_nsec : UINT64_MAX;
        for (frozen = freeze; freeze;)
            nanosleep(&(struct timespec){0, 100000}, NULL);
        frozen = false;
    }
    slices += number == SYS_sched_setattr && pthread_equal(thread.pthread, pthread_self());
    return false;
}

void __real_core_expire(struct core *core, uint64_t now_ns);
void __wrap_core_expire(struct core *core, uint64_t now_ns);
void __wrap_core_expire(struct core *core, uint64_t now_ns)
{
    expires += rx_ready > 0;
    rounds_expired++;
    __real_core_expire(core, now_ns);
}

void __real_core_flush_acks(struct core *core);
void __wrap_core_flush_acks(struct core *core);
void __wrap_core_flush_acks(struct core *core)
{
    flushes++;
    last_flushes += thread.stop;
    __real_core_flush_acks(core);
}

uint64_t __wrap_core_deadline(struct core *core);
uint64_t __wrap_core_deadline(struct core *core)
{
    void (*hook)(void) = before_sleep;
    (void)core;
    if (hook)
        hook();
    return deadline_at_ns;
}

void __wrap_core_cancel(struct core *core, struct core_msg *msg, uint64_t now_ns);
void __wrap_core_cancel(struct core *core, struct core_msg *msg, uint64_t now_ns)
{
    (void)core, (void)msg, (void)now_ns;
    cancels++;
}

static _Atomic uint32_t datagram_told, destination_told;
void __wrap_core_set_datagram(struct core *core, uint32_t destination, uint32_t datagram_bytes);
void __wrap_core_set_datagram(struct core *core, uint32_t destination, uint32_t datagram_bytes)
{
    (void)core;
    destination_told = destination;
    datagram_told = datagram_bytes;
}

static _Atomic int failure_told;
void __wrap_core_fail(struct core *core, int32_t status, uint64_t now_ns);
void __wrap_core_fail(struct core *core, int32_t status, uint64_t now_ns)
{
    (void)core, (void)now_ns;
    failure_told = status;
}

/* ---- what the tests share -------------------------------------------------------------------- */

/* Waits until it holds: that is soon, or never. */
#define SOON(condition)                                                                                                \
    do {                                                                                                               \
        uint64_t until_ns_ = clock_now_ns() + 5000 * MS;                                                               \
        while (!(condition)) {                                                                                         \
            cr_assert(clock_now_ns() < until_ns_, "%s: never", #condition);                                            \
            nanosleep(&(struct timespec){0, 100000}, NULL);                                                            \
        }                                                                                                              \
    } while (0)

static void ignore_event(void *context, const struct core_event *event)
{
    (void)context, (void)event;
}

static void start(bool lend)
{
    params = param_defaults();
    params.spin_us = 0;
    params.pin = false;
    cr_assert_eq(thread_start(&thread, &(struct thread_setup){.params = &params,
                                                              .nic = &nic,
                                                              .lend = lend,
                                                              .numa_node = -1,
                                                              .event_fd = eventfd(0, EFD_NONBLOCK),
                                                              .event_armed = &armed,
                                                              .on_event = ignore_event}),
                 UCCL_OK);
}

static bool sleeps_as(enum thread_owner owner)
{
    return thread.owner == owner && queue.sleepers == 1;
}

/* With an engine that is wanted all the time. */
static void start_wanted(void)
{
    start(true);
    thread.lend_requests = 1;
    fake_wake(&queue.base);
    SOON(thread.owner == OWNER_NONE);
}

/* With an engine thread that leaves the engine to application threads, until stop(). */
static void start_frozen(void)
{
    freeze = true;
    start_wanted();
    SOON(frozen);
    thread.lend_requests = 0;
}

static void stop(void)
{
    thread.lend_requests = 0;
    freeze = false;
    thread_stop(&thread);
    thread_free(&thread);
}

/* A thread that waits for a word. */
struct waiter {
    pthread_t pthread;
    _Atomic uint32_t word;
    uint64_t deadline_ns;
    bool changed;
};

static void *wait_for_word(void *argument)
{
    struct waiter *waiter = argument;
    waiter->changed = thread_wait(&thread, &waiter->word, 0, waiter->deadline_ns);
    return NULL;
}

static void begin(struct waiter *waiter)
{
    waiter->deadline_ns = UINT64_MAX;
    cr_assert_eq(pthread_create(&waiter->pthread, NULL, wait_for_word, waiter), 0);
}

static void join(struct waiter *waiter)
{
    pthread_join(waiter->pthread, NULL);
    cr_assert(waiter->changed);
}

static void do_nothing(struct engine_thread *on, void *argument)
{
    (void)on, (void)argument;
}

/* ---- waking ---------------------------------------------------------------------------------- */

Test(thread, what_is_posted_wakes_the_thread, .timeout = TIMEOUT_S)
{
    start(false);
    for (unsigned i = 0; i < 3; i++) {
        SOON(sleeps_as(THREAD_SLEEPS));
        thread_run(&thread, do_nothing, NULL);
    }
    cr_assert_eq(queue.unacked_sleeps, 0, "it went to sleep with acks that it owed");
    stop();
}

Test(thread, what_is_posted_wakes_a_borrower, .timeout = TIMEOUT_S)
{
    struct waiter waiter = {0};
    struct thread_call call = {.run = do_nothing};
    start_frozen();
    begin(&waiter);
    SOON(sleeps_as(BORROWER_SLEEPS));
    cr_assert(thread_post(&thread, COMMAND_CALL, &call));
    SOON(call.done);
    SOON(sleeps_as(BORROWER_SLEEPS));
    waiter.word = 1; /* as another engine thread ends its request */
    thread_tell_waiters(&thread);
    join(&waiter);
    stop();
}

/* No application thread may serve a device: what is posted for one does not wait for the end of a lease. */
Test(thread, what_is_posted_for_a_device_ends_the_lease, .timeout = TIMEOUT_S)
{
    struct thread_call calls[2] = {{.run = do_nothing}, {.run = do_nothing}};
    start_frozen();
    unsigned before = owner_told;
    cr_assert(thread_post(&thread, COMMAND_CALL, &calls[0]));
    cr_assert_eq(owner_told, before, "whoever waits serves it");
    atomic_fetch_add(&thread.staged, 1);
    cr_assert(thread_post(&thread, COMMAND_CALL, &calls[1]));
    cr_assert_eq(owner_told, before + 1);
    freeze = false;
    SOON(calls[0].done && calls[1].done);
    atomic_fetch_sub(&thread.staged, 1);
    stop();
}

static void begin_copy(void)
{
    if (thread.owner == BORROWED && !thread.staged)
        thread.staged = 1;
}

/* Nor does what has begun in the round of a borrower. */
Test(thread, a_borrower_with_copies_to_make_wakes_the_thread, .timeout = TIMEOUT_S)
{
    start_frozen();
    unsigned before = owner_told;
    thread_try_round(&thread);
    cr_assert_eq(thread.owner, OWNER_NONE);
    cr_assert_eq(owner_told, before);
    at_round_end = begin_copy;
    thread_try_round(&thread);
    cr_assert_eq(thread.owner, OWNER_NONE);
    cr_assert_eq(owner_told, before + 1);
    thread.staged = 0;
    stop();
}

static struct thread_call late_call = {.run = do_nothing};

/* As who saw the thread run still. */
static void push_late(void)
{
    before_sleep = (void (*)(void))0;
    cr_assert(ring_push(&thread.ring, (struct ring_entry){&late_call, COMMAND_CALL}));
}

Test(thread, looks_at_its_ring_once_more, .timeout = TIMEOUT_S)
{
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    before_sleep = push_late;
    fake_wake(&queue.base);
    SOON(late_call.done);
    stop();
}

static _Atomic uint32_t late_word;

static void end_late(void)
{
    if (thread.owner == BORROWED)
        late_word = 1;
}

Test(thread, a_borrower_looks_at_its_word_once_more, .timeout = TIMEOUT_S)
{
    start_frozen();
    unsigned sleeps = queue.sleeps;
    at_round_end = end_late;
    before_sleep = end_late;
    cr_assert(thread_wait(&thread, &late_word, 0, clock_now_ns() + 1000 * MS));
    cr_assert_eq(queue.sleeps, sleeps);
    stop();
}

static void wish_late(void)
{
    if (thread.owner == THREAD_RUNS)
        thread.lend_requests = 1;
}

Test(thread, looks_who_wants_the_engine_once_more, .timeout = TIMEOUT_S)
{
    start(true);
    SOON(sleeps_as(THREAD_SLEEPS));
    before_sleep = wish_late;
    fake_wake(&queue.base);
    SOON(thread.owner == OWNER_NONE);
    stop();
}

static void set_both(struct engine_thread *on, void *argument)
{
    struct waiter *waiters = argument;
    (void)on;
    waiters[0].word = waiters[1].word = 1;
}

Test(thread, every_waiter_is_told, .timeout = TIMEOUT_S)
{
    struct waiter waiters[2] = {0};
    params.spin_us = 0;
    start(false);
    begin(&waiters[0]);
    begin(&waiters[1]);
    SOON(thread.waiters == 2);
    thread_run(&thread, set_both, waiters);
    join(&waiters[0]);
    join(&waiters[1]);
    stop();
}

Test(thread, the_event_descriptor_is_written_where_armed, .timeout = TIMEOUT_S)
{
    uint64_t count;
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    thread_tell_waiters(&thread);
    cr_assert_eq(read(thread.event_fd, &count, sizeof count), -1);
    armed = 1;
    thread_tell_waiters(&thread);
    cr_assert_eq(read(thread.event_fd, &count, sizeof count), sizeof count);
    thread_tell_waiters(&thread);
    cr_assert_eq(read(thread.event_fd, &count, sizeof count), -1, "it was armed for one");
    close(thread.event_fd);
    stop();
}

/* ---- lending --------------------------------------------------------------------------------- */

Test(thread, the_engine_is_taken_from_a_sleeping_thread, .timeout = TIMEOUT_S)
{
    struct waiter waiter = {0};
    start(true);
    SOON(sleeps_as(THREAD_SLEEPS));
    hold(true);
    begin(&waiter);
    SOON(thread.in_nic == NIC_AWAITED);
    cr_assert_eq(queue.sleepers_most, 1, "two in the NIC");
    unsigned told = nic_told;
    hold(false);
    SOON(sleeps_as(BORROWER_SLEEPS));
    cr_assert_gt(nic_told, told, "the borrower slept its time out");
    cr_assert_eq(queue.sleepers_most, 1, "two in the NIC");
    waiter.word = 1;
    fake_wake(&queue.base);
    join(&waiter);
    stop();
}

Test(thread, the_next_waiter_drives_on, .timeout = TIMEOUT_S)
{
    struct waiter first = {0}, second = {0};
    start_frozen();
    begin(&first);
    SOON(sleeps_as(BORROWER_SLEEPS));
    begin(&second);
    SOON(thread.waiters == 1);
    first.word = 1;
    fake_wake(&queue.base);
    join(&first);
    SOON(sleeps_as(BORROWER_SLEEPS));
    second.word = 1;
    fake_wake(&queue.base);
    join(&second);
    stop();
}

static _Atomic uint32_t given_word;

static void push_and_end(void)
{
    if (thread.owner != BORROWED || given_word)
        return;
    given_word = 1;
    cr_assert(ring_push(&thread.ring, (struct ring_entry){&late_call, COMMAND_CALL}));
}

Test(thread, commands_do_not_wait_for_the_lease, .timeout = TIMEOUT_S)
{
    start_frozen();
    at_round_end = push_and_end;
    cr_assert(thread_wait(&thread, &given_word, 0, UINT64_MAX));
    cr_assert(late_call.done);
    stop();
}

Test(thread, a_thread_that_rests_hears_that_it_has_the_engine, .timeout = TIMEOUT_S)
{
    struct waiter waiter = {0};
    start(true);
    begin(&waiter);
    SOON(thread.parked && lease_ns == UINT64_MAX);
    SOON(sleeps_as(BORROWER_SLEEPS));
    thread.spin.seen_ns = 1; /* as of a borrower that spins */
    waiter.word = 1;
    fake_wake(&queue.base);
    join(&waiter);
    SOON(sleeps_as(THREAD_SLEEPS));
    cr_assert_eq(thread.spin.rest_ns, 0, "the lease is no lost core");
    stop();
}

Test(thread, leases_grow, .timeout = TIMEOUT_S)
{
    start_wanted();
    SOON(lease_ns == 2 * MS);
    unsigned told = owner_told;
    thread_reclaim(&thread);
    cr_assert_gt(owner_told, told);
    SOON(!thread.reclaim);
    stop();
}

Test(thread, stops_while_others_want_it, .timeout = TIMEOUT_S)
{
    start_wanted();
    thread_stop(&thread);
    thread_free(&thread);
}

Test(thread, is_not_lent_while_there_are_copies_to_make, .timeout = TIMEOUT_S)
{
    _Atomic uint32_t word = 0;
    start(true);
    SOON(sleeps_as(THREAD_SLEEPS));
    thread.staged = 1;
    uint32_t borrows = thread.borrows;
    thread_try_round(&thread);
    cr_assert_not(thread_wait(&thread, &word, 0, clock_now_ns() + 5 * MS));
    cr_assert_eq(thread.borrows, borrows);
    thread.staged = 0;
    thread_try_round(&thread);
    cr_assert_eq(thread.borrows, borrows + 1);
    stop();
}

/* ---- time ------------------------------------------------------------------------------------ */

Test(thread, a_timed_wait_sleeps_no_longer, .timeout = TIMEOUT_S)
{
    _Atomic uint32_t word = 0;
    start_frozen();
    deadline_at_ns = clock_now_ns() + HOUR; /* the core's next timer */
    queue.timeout_most_ns = 0;
    cr_assert_not(thread_wait(&thread, &word, 0, clock_now_ns() + 20 * MS));
    cr_assert_leq(queue.timeout_most_ns, 20 * MS);
    cr_assert_gt(queue.timeout_most_ns, 0);
    deadline_at_ns = UINT64_MAX;
    stop();
}

Test(thread, a_timed_wait_on_a_busy_engine_ends, .timeout = TIMEOUT_S)
{
    _Atomic uint32_t word = 0;
    start_frozen();
    rx_ready = 1;
    cr_assert_not(thread_wait(&thread, &word, 0, clock_now_ns() + 20 * MS));
    stop();
}

/* Beside one that drives the engine. */
Test(thread, a_second_timed_wait_ends, .timeout = TIMEOUT_S)
{
    struct waiter first = {0};
    _Atomic uint32_t word = 0;
    start_frozen();
    begin(&first);
    SOON(sleeps_as(BORROWER_SLEEPS));
    cr_assert_not(thread_wait(&thread, &word, 0, clock_now_ns() + 20 * MS));
    first.word = 1;
    fake_wake(&queue.base);
    join(&first);
    stop();
}

/* Acks that wait in the socket are seen before timers judge them late, but not for ever. */
Test(thread, timers_are_put_off_for_a_while, .timeout = TIMEOUT_S)
{
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    rx_ready = BATCH;
    fake_wake(&queue.base);
    SOON(polls > FULL_ROUNDS + 1);
    cr_assert_eq(expires_at_end, FULL_ROUNDS / ROUNDS_PUT_OFF, "%u", expires_at_end);
    stop();
}

/* A round of a borrower, whose NIC has `ready` datagrams: it has room for `most`, and runs timers or not. */
static void expect_round(unsigned ready, unsigned most, bool timers)
{
    unsigned before = rounds_expired;
    rx_ready = ready;
    thread_try_round(&thread);
    cr_expect_eq(poll_room, most, "%u ready: asked for %u, not %u", ready, poll_room, most);
    cr_expect_eq(rounds_expired - before, timers, "%u ready", ready);
}

/* A lone datagram is handled before the NIC is asked for more, and timers wait until it has been. */
Test(thread, what_comes_alone_is_taken_alone, .timeout = TIMEOUT_S)
{
    start_frozen();
    expect_round(0, BATCH, true);
    for (unsigned i = 0; i < 3; i++) {
        expect_round(1, i ? 1 : BATCH, i == 0);
        expect_round(0, BATCH, true);
        expect_round(0, 1, true);
    }
    expect_round(2, 1, false);
    expect_round(1, BATCH, true);
    expect_round(0, BATCH, true);
    expect_round(1, BATCH, true); /* two came together before */
    expect_round(1, BATCH, true);
    expect_round(0, BATCH, true);
    expect_round(1, BATCH, true); /* and two in turn */
    stop();
}

Test(thread, how_long_something_waited)
{
    cr_assert_eq(waited_ns(10, 30), 20);
    cr_assert_eq(waited_ns(30, 30), 0);
    cr_assert_eq(waited_ns(30, 10), 0, "the NIC's clock is ahead");
    cr_assert_eq(waited_ns(0, 30), 0, "it does not say");
}

/* ---- commands -------------------------------------------------------------------------------- */

Test(thread, a_cancel_is_for_one_epoch, .timeout = TIMEOUT_S)
{
    static struct uccl_request request;
    request.state = REQUEST_PENDING;
    request.generation = 5;
    start(false);
    cr_assert(thread_push(&thread, &request, COMMAND_CANCEL | (uint64_t)4 << 32));
    cr_assert(thread_push(&thread, &request, COMMAND_CANCEL | (uint64_t)6 << 32));
    thread_run(&thread, do_nothing, NULL);
    cr_assert_eq(cancels, 0, "of another epoch");
    cr_assert(thread_post(&thread, COMMAND_CANCEL, &request));
    thread_run(&thread, do_nothing, NULL);
    cr_assert_eq(cancels, 1);
    request.home_over = true;
    cr_assert(thread_post(&thread, COMMAND_CANCEL, &request));
    request.home_over = false;
    request.state = REQUEST_PENDING;
    thread_run(&thread, do_nothing, NULL);
    request.state = REQUEST_ENDED;
    unsigned before = cancels;
    cr_assert(thread_post(&thread, COMMAND_CANCEL, &request));
    thread_run(&thread, do_nothing, NULL);
    cr_assert_eq(cancels, before, "it has ended");
    stop();
}

/* One after another, in a NIC that takes one at a time; while one is under way, nobody wakes the thread for it. */
Test(thread, flushes_end_in_order, .timeout = TIMEOUT_S)
{
    enum { COUNT_OF = 4 };
    static struct uccl_request requests[COUNT_OF];
    const struct nic_mr mr = {.handle = requests};
    const struct request_pairs pairs = {.count = 1};
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    thread.staged = COUNT_OF;
    for (unsigned i = 0; i < COUNT_OF; i++) {
        requests[i].state = REQUEST_PENDING;
        requests[i].nic_mr = &mr;
        flush_init(&requests[i], &pairs);
        cr_assert(thread_post(&thread, COMMAND_FLUSH, &requests[i]));
    }
    for (unsigned i = 0; i < COUNT_OF; i++) {
        SOON(reads_begun == i + 1);
        cr_assert_eq(requests[i].state, REQUEST_PENDING);
        unsigned sleeps = queue.sleeps;
        SOON(queue.sleeps > sleeps + 1); /* one at least begins after it */
        cr_assert_leq(queue.timeout_ns, 50000);
        reads_fail = i == 2;
        reads_let_go++;
        SOON(requests[i].state == REQUEST_ENDED);
        cr_assert_eq(requests[i].msg.status, i == 2 ? UCCL_EIO : UCCL_OK);
    }
    cr_assert_eq(thread.staged, 0);
    SOON(sleeps_as(THREAD_SLEEPS) && queue.timeout_ns == UINT64_MAX);
    stop();
}

/* ---- the NIC's word, the end ----------------------------------------------------------------- */

Test(thread, what_the_nic_says_is_passed_on, .timeout = TIMEOUT_S)
{
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    cr_assert_eq(failure_told, 0);
    mtu_news = 1400;
    fake_wake(&queue.base);
    SOON(datagram_told == 1400);
    cr_assert_eq(destination_told, 3);
    nic.failure = UCCL_EIO;
    fake_wake(&queue.base);
    SOON(failure_told == UCCL_EIO);
    stop();
}

Test(thread, asks_for_short_slices, .timeout = TIMEOUT_S)
{
    start(false);
    SOON(slices == 1);
    stop();
}

Test(thread, owed_acks_leave_at_the_end, .timeout = TIMEOUT_S)
{
    start(false);
    SOON(sleeps_as(THREAD_SLEEPS));
    thread_stop(&thread);
    cr_assert_gt(last_flushes, 0);
    thread_free(&thread);
}
