/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/thread.h"

#include "thread/crc32c_hw.h"
#include "base/log.h"
#include "thread/data_qps.h"
#include "base/pin.h"
#include "base/process.h"
#include "base/race_point.h"
#include "thread/payload.h"
#include "thread/stripe.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    RX_BATCH = 8,         /* received buffers per round */
    COMMAND_BATCH = 256,  /* commands per round */
    TX_BATCH = 8,         /* descriptors per round */
    TIMERS_PUT_OFF = 64,  /* rounds for which an undrained socket holds timers back */
    LEASE_MIN_NS = 50 * 1000,
    LEASE_MAX_NS = 2000 * 1000,
    ASK_NS = 1000 * 1000, /* how long a borrower waits for an answer before it asks again */
    FLUSH_BATCHES = 8,    /* of TX_BATCH descriptors, at most, in thread_flush() */
    NAP_NS = 50 * 1000,   /* longest sleep over what nobody wakes it for: copies of staged memory, flushes,
                             and commands that found another thread's ring full */
};

/* ---- futex ----------------------------------------------------------------------------------- */

/* Sleeps while *word == value, at most for `timeout_ns`. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value,
            timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/*
 * Between polls without work. Where cores are few, the peer that is awaited, or the application, may be kept
 * from running by this very thread: it gets its turn.
 */
static inline void relax(const struct engine_thread *thread)
{
    if (thread->lend) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether application threads may run the engine: not while GPU calls are to be made (stage.h). */
static inline bool may_lend(struct engine_thread *thread)
{
    return thread->lend && atomic_load(&thread->staged) == 0;
}

/* ---- a round --------------------------------------------------------------------------------- */

static void do_copies(struct engine_thread *thread)
{
    struct core_copy copy;
    while (core_next_copy(thread->core, &copy)) {
        if (copy.msg)
            payload_write(copy.msg, copy.offset_bytes, copy.from, copy.length);
        else
            memcpy(copy.to, copy.from, copy.length);
    }
}

static void do_releases(struct engine_thread *thread)
{
    struct core_release release;
    while (core_next_release(thread->core, &release))
        stage_release(thread->stage, &release);
}

/* True: something was received. `*drained`: nothing more waits. */
static bool receive(struct engine_thread *thread, bool *drained)
{
    struct nic_rx received[RX_BATCH];
    unsigned room = stage_rx_room(thread->stage, RX_BATCH);
    unsigned count = room ? thread->nic->poll(thread->queue, received, room) : 0;
    for (unsigned i = 0; i < count; i++) {
        const struct nic_rx *rx = &received[i];
        uint64_t now_ns = clock_now_ns();
        core_waited(thread->core, waited_ns(rx->at_ns, now_ns));
        bool on_path = thread->places && rx->flow;
        if (on_path) {
            data_qps_receive(thread, rx, now_ns);
            do_copies(thread);
            do_releases(thread);
        }
        for (uint32_t at = on_path ? rx->length : 0, index = 0; at < rx->length; at += rx->stride, index++) {
            uint32_t length = rx->length - at < rx->stride ? rx->length - at : rx->stride;
            core_rx_placed(thread->core, rx->data + at, length, nic_rx_payload(rx, index), rx->ce, now_ns);
            do_copies(thread);
            do_releases(thread);
        }
        thread->nic->release(thread->queue, rx);
    }
    *drained = count < room;
    return count > 0;
}

/* Whether a command finds its request in the life that it was meant for. */
static bool still_pending(const struct ring_entry *entry)
{
    const struct uccl_request *request = entry->object;
    /* The state first: if it is that of a later life, which is not even submitted here, the generation tells. Pairs with
     * the release of PENDING by who begins a life. */
    bool pending = atomic_load_explicit(&request->state, memory_order_acquire) == REQUEST_PENDING;
    RACE_POINT();
    uint32_t generation = atomic_load_explicit(&request->generation, memory_order_relaxed);
    return generation == (uint32_t)(entry->what >> 32) && pending;
}

/*
 * And nobody else ends it, so that it does not begin a new life while we are at it. Looked at first: a mark
 * of a later life shows in the generation.
 */
static bool still_ours(const struct ring_entry *entry)
{
    const struct uccl_request *request = entry->object;
    return !atomic_load_explicit(&request->home_over, memory_order_acquire) && still_pending(entry);
}

static bool take_commands(struct engine_thread *thread)
{
    struct ring_entry entry;
    unsigned taken = 0;
    uint64_t now_ns = 0;
    while (taken < COMMAND_BATCH && ring_pop(&thread->ring, &entry)) {
        if (taken++ == 0)
            now_ns = clock_now_ns();
        switch ((enum thread_command)(entry.what & COMMAND_MASK)) {
        case COMMAND_SUBMIT: {
            struct uccl_request *request = entry.object;
            stripe_submit(thread, request, now_ns);
            do_copies(thread);
            break;
        }
        case COMMAND_CANCEL: {
            struct uccl_request *request = entry.object;
            RACE_POINT();
            if (still_ours(&entry))
                stripe_cancel(thread, request, now_ns);
            break;
        }
        case COMMAND_FLUSH:
            flush_submit(thread, entry.object);
            break;
        case COMMAND_CLOSE:
            stripe_close(thread, entry.object, (entry.what >> 32) * 1000000, now_ns);
            break;
        case COMMAND_PART: {
            struct uccl_request *part = entry.object;
            stripe_submit_part(thread, part, now_ns);
            break;
        }
        case COMMAND_END_PART: {
            struct uccl_request *part = entry.object;
            if (still_pending(&entry))
                core_end_part(thread->core, &part->msg, now_ns);
            break;
        }
        case COMMAND_PART_ARRIVED: {
            struct uccl_request *request = entry.object;
            if (still_ours(&entry))
                core_part_arrived(thread->core, &request->msg, now_ns);
            break;
        }
        case COMMAND_CALL: {
            struct thread_call *call = entry.object;
            call->run(thread, call->argument);
            /* pairs with the acquire in thread_wait; the caller's frame may vanish right after */
            atomic_store_explicit(&call->done, 1, memory_order_release);
            thread->ended_some = true;
            break;
        }
        }
    }
    return taken > 0;
}

void thread_request_ended(struct engine_thread *thread, struct uccl_request *request)
{
    thread->ended_some = true;
    if (request->parent || request->parts)
        stripe_ended(thread, request);
    else if (request->staged.memory)
        stripe_request_over(request);
    else {
        RACE_POINT();
        /* pairs with the acquire in test and wait */
        atomic_store_explicit(&request->state, REQUEST_ENDED, memory_order_release);
    }
}

static bool take_events(struct engine_thread *thread)
{
    struct core_event event;
    bool some = false;
    while (core_next_event(thread->core, &event)) {
        some = true;
        thread->ended_some = true;
        struct uccl_request *request = event.msg ? request_of(event.msg) : NULL;
        if (event.kind == CORE_EVENT_MSG)
            stripe_note_length(request);
        if (event.kind == CORE_EVENT_SPLIT)
            stripe_split(thread, request);
        else if (event.kind == CORE_EVENT_WANTED)
            stage_want(thread->stage, request);
        else if (event.kind != CORE_EVENT_MSG)
            thread->on_event(thread->context, &event);
        else if (!request->staged.memory || stage_over(thread->stage, request))
            thread_request_ended(thread, request);
    }
    return some;
}

void thread_tell_waiters(struct engine_thread *thread)
{
    /* A waiter counts itself, then looks at its state; here the states have been stored, then the
     * count is looked at. Both change the count in one step, so the later one sees the earlier. */
    RACE_POINT();
    if (atomic_fetch_add(&thread->waiters, 0)) {
        RACE_POINT();
        atomic_fetch_add(&thread->completions, 1);
        RACE_POINT();
        futex_wake(&thread->completions, INT_MAX);
    }
    if (atomic_exchange(thread->event_armed, 0)) { /* likewise with uccl_event_arm() */
        RACE_POINT();
        uint64_t one = 1;
        ssize_t written = write(thread->event_fd, &one, sizeof one);
        (void)written; /* a full counter is readable as well */
    }
    /* a request that another engine thread ended: its waiter may sleep in this NIC as the borrower. The
     * state was stored sequentially consistent (stripe.c); pairs with sleep_in_nic() */
    if (atomic_load(&thread->owner) == BORROWER_SLEEPS)
        thread->nic->wake(thread->queue);
}

/* Wakes those who sleep for a completion, and the event descriptor where armed. */
static void tell_waiters(struct engine_thread *thread)
{
    if (thread->ended_some)
        thread_tell_waiters(thread);
    thread->ended_some = false;
}

/* Whether the payload of datagrams is in host memory: of a send that the NIC reads by itself it is fetched. */
static bool payload_there(struct engine_thread *thread, const struct tx_desc *desc)
{
    struct tx_piece piece = {0};
    if (desc->kind == TX_BULK)
        piece = (struct tx_piece){.msg = desc->bulk_msg, .offset_bytes = desc->bulk_offset,
                                  .length = (desc->count - 1u) * desc->bulk_stride + desc->bulk_last};
    else if (desc->kind == TX_FRAMES && desc->fragment && desc->piece_count)
        piece = desc->pieces[0];
    struct uccl_request *request = piece.msg ? request_of(piece.msg) : NULL;
    if (!request || !request->staged.memory || piece.msg->block_bytes)
        return true;
    return stage_piece(thread->stage, request, piece.offset_bytes, piece.length);
}

/*
 * True: worth another round at once. Not where the NIC takes no more and tells when it does: this may take long, and
 * the thread should sleep over it.
 */
static bool transmit(struct engine_thread *thread)
{
    struct tx_desc desc;
    unsigned sent = 0;
    bool refused = false, there = true;
    while (sent < TX_BATCH && there && !refused && core_tx(thread->core, &desc, clock_now_ns())) {
        there = payload_there(thread, &desc);
        refused = there && !thread->nic->send(thread->queue, &desc);
        if (!there || refused)
            core_tx_failed(thread->core, &desc, clock_now_ns());
        do_releases(thread);
        sent++;
    }
    if (sent) {
        thread->nic->flush(thread->queue);
        stage_pieces_sent(thread->stage);
    }
    return sent > (refused && thread->room_wakes);
}

void thread_flush(struct engine_thread *thread)
{
    core_flush_acks(thread->core);
    for (unsigned i = 0; i < FLUSH_BATCHES && transmit(thread); i++)
        ;
}

/* What the NIC says of the network, and of itself. */
static void follow_nic(struct engine_thread *thread)
{
    uint32_t destination, datagram_bytes;
    int error = thread->nic->failure(thread->queue);
    if (error)
        core_fail(thread->core, error, clock_now_ns());
    while (thread->nic->mtu_event(thread->queue, &destination, &datagram_bytes))
        core_set_datagram(thread->core, destination, datagram_bytes);
}

/* One run-to-completion round of the owner. True: there was something to do. */
static bool run_round(struct engine_thread *thread)
{
    bool drained;
    if (thread->notices)
        stripe_retry(thread);
    /* commands first: the part of a message is known before its bytes, which it allows, arrive */
    bool busy = take_commands(thread);
    busy |= receive(thread, &drained);
    if (thread->places)
        busy |= data_qps_finish(thread);
    if (flush_busy(&thread->flushes))
        busy |= flush_progress(thread);
    /* a thread that was kept from the CPU must see the acks that wait before it judges them late */
    if (drained || ++thread->timers_put_off > TIMERS_PUT_OFF) {
        thread->timers_put_off = 0;
        core_expire(thread->core, clock_now_ns());
    }
    busy |= take_events(thread);
    if (atomic_load_explicit(&thread->staged, memory_order_relaxed) &&
        atomic_load_explicit(&thread->owner, memory_order_relaxed) == THREAD_RUNS) /* no borrower */
        busy |= stage_progress(thread->stage);
    tell_waiters(thread);
    busy |= transmit(thread);
    if (thread->places)
        busy |= data_qps_act(thread);
    busy |= take_events(thread);
    tell_waiters(thread);
    follow_nic(thread);
    COUNT(thread->counters, rounds, 1);
    return busy;
}

/*
 * Sleeps in the NIC as the owner, in state `sleeping`, unless work turns up or `*word != value`. The owner's
 * state is `running` again afterwards; false: somebody took the engine meanwhile (only THREAD_SLEEPS).
 */
static bool sleep_in_nic(struct engine_thread *thread, uint32_t running, uint32_t sleeping,
                         const _Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
    core_flush_acks(thread->core);
    transmit(thread);
    uint64_t now_ns = clock_now_ns(), wake_ns = core_deadline(thread->core);
    if (thread->notices || stage_busy(thread->stage) || flush_busy(&thread->flushes))
        deadline_ns = now_ns + NAP_NS < deadline_ns ? now_ns + NAP_NS : deadline_ns;
    if (wake_ns > deadline_ns)
        wake_ns = deadline_ns;
    if (sleeping == THREAD_SLEEPS)
        atomic_store(&thread->in_nic, NIC_SLEPT_IN); /* before anybody can take the engine */
    RACE_POINT();
    /* sequentially consistent: pairs with the look at `owner` after a push (thread_post) */
    atomic_store(&thread->owner, sleeping);
    RACE_POINT();
    if (!ring_busy(&thread->ring) && atomic_load(&thread->wanted) == 0 &&
        atomic_load(&thread->stop) == 0 && (!word || atomic_load(word) == value) && wake_ns > now_ns) {
        COUNT(thread->counters, engine_sleeps, 1);
        RACE_POINT();
        thread->nic->wait(thread->queue, wake_ns == UINT64_MAX ? UINT64_MAX : wake_ns - now_ns);
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
 * A borrower that sleeps through whole leases has timers and receiving covered: the engine thread need
 * not look again before the engine is given back. True: `resting` is set, and was so before the owner
 * was seen to be a sleeper, so give_back() sees one or lend_out() the other.
 */
static bool may_rest(struct engine_thread *thread)
{
    RACE_POINT();
    atomic_store(&thread->resting, 1);
    if (atomic_load(&thread->owner) == BORROWER_SLEEPS)
        return true;
    atomic_store(&thread->resting, 0);
    return false;
}

/* Gives the engine away and sleeps until no application thread has had it for a lease. */
static void lend_out(struct engine_thread *thread)
{
    uint64_t lease_ns = LEASE_MIN_NS;
    bool slept_through = false; /* the last lease, by one borrower */
    for (;;) {
        uint32_t borrows = atomic_load(&thread->borrows);
        uint32_t owner = atomic_load(&thread->owner);
        bool rest = slept_through && owner == BORROWER_SLEEPS && may_rest(thread);
        RACE_POINT();
        if (!atomic_load(&thread->stop))
            futex_wait(&thread->owner, owner, rest ? UINT64_MAX : lease_ns);
        if (rest)
            atomic_store(&thread->resting, 0);
        slept_through = owner == BORROWER_SLEEPS && atomic_load(&thread->borrows) == borrows;
        bool used = owner != FREE || atomic_load(&thread->borrows) != borrows ||
                    atomic_load(&thread->wanted);
        if (used)
            lease_ns = lease_ns * 2 < LEASE_MAX_NS ? lease_ns * 2 : LEASE_MAX_NS;
        uint32_t expected = FREE;
        RACE_POINT();
        if ((!used || atomic_load(&thread->stop) || atomic_load(&thread->reclaimed) ||
             atomic_load(&thread->staged)) &&
            atomic_compare_exchange_strong(&thread->owner, &expected, THREAD_RUNS)) {
            atomic_store(&thread->reclaimed, 0);
            return;
        }
    }
}

static void *thread_main(void *argument)
{
    struct engine_thread *thread = argument;
    uint64_t spin_ns = thread->params->spin_us * 1000, idle_since_ns = 0;
    if (thread->params->pin || thread->params->cpus[0])
        thread->pin_claim = pin_thread(thread->params->cpus, thread->numa_node, thread->index);
    while (!atomic_load_explicit(&thread->stop, memory_order_acquire)) {
        if (atomic_load_explicit(&thread->wanted, memory_order_relaxed) && may_lend(thread)) {
            RACE_POINT();
            atomic_store(&thread->owner, FREE);
            RACE_POINT();
            futex_wake(&thread->owner, INT_MAX);
            lend_out(thread);
            idle_since_ns = 0; /* and a round at least, however quickly who asks comes and goes */
        }
        if (run_round(thread)) {
            idle_since_ns = 0;
            continue;
        }
        uint64_t now_ns = clock_now_ns();
        if (idle_since_ns == 0)
            idle_since_ns = now_ns;
        if (now_ns - idle_since_ns < spin_ns) {
            relax(thread);
            continue;
        }
        if (!sleep_in_nic(thread, THREAD_RUNS, THREAD_SLEEPS, NULL, 0, UINT64_MAX))
            lend_out(thread);
    }
    /* what is acked now need not wait for its timeout at the peer */
    core_flush_acks(thread->core);
    transmit(thread);
    stage_close(thread->stage);
    return NULL;
}

/* ---- the application's side ------------------------------------------------------------------ */

uint64_t thread_command_for(enum thread_command command, const struct uccl_request *request)
{
    uint64_t generation = atomic_load_explicit(&request->generation, memory_order_relaxed);
    return (uint64_t)command | generation << 32;
}

bool thread_push(struct engine_thread *thread, void *object, uint64_t what)
{
    if (!ring_push(&thread->ring, (struct ring_entry){object, what}))
        return false;
    RACE_POINT();
    /* sequentially consistent, like the claim in ring_push before it: pairs with the store of a SLEEPS
     * state and the look at the ring after it in sleep_in_nic */
    uint32_t owner = atomic_load(&thread->owner);
    if (owner == THREAD_SLEEPS || owner == BORROWER_SLEEPS) {
        CANCEL_LATER;
        RACE_POINT();
        thread->nic->wake(thread->queue);
    } else if (owner == FREE && atomic_load(&thread->staged)) /* borrowers will not do */
        futex_wake(&thread->owner, INT_MAX);
    return true;
}

bool thread_post(struct engine_thread *thread, enum thread_command command, void *object)
{
    return thread_push(thread, object,
                       command == COMMAND_CANCEL ? thread_command_for(command, object) : command);
}

/* Takes the engine without waiting. */
static bool try_borrow(struct engine_thread *thread)
{
    uint32_t owner = atomic_load(&thread->owner);
    if ((owner != FREE && owner != THREAD_SLEEPS) || !may_lend(thread))
        return false;
    RACE_POINT();
    if (!atomic_compare_exchange_strong(&thread->owner, &owner, BORROWED))
        return false;
    RACE_POINT();
    atomic_fetch_add(&thread->borrows, 1);
    RACE_POINT();
    if (owner == THREAD_SLEEPS)
        thread->nic->wake(thread->queue); /* out of the NIC and into its lease */
    return true;
}

static void give_back(struct engine_thread *thread)
{
    RACE_POINT();
    atomic_store(&thread->owner, FREE);
    RACE_POINT();
    /* what was posted to us while we slept or left must not lie until the lease ends */
    if (ring_busy(&thread->ring) && try_borrow(thread)) {
        run_round(thread);
        atomic_store(&thread->owner, FREE);
        if (ring_busy(&thread->ring)) /* others post for ever: not ours to serve */
            thread_reclaim(thread);
    }
    RACE_POINT();
    if (atomic_load(&thread->resting) || atomic_load(&thread->staged)) /* pairs with may_rest() */
        futex_wake(&thread->owner, INT_MAX);
    RACE_POINT();
    if (atomic_load(&thread->waiters)) { /* one of them drives on */
        atomic_fetch_add(&thread->completions, 1);
        futex_wake(&thread->completions, 1);
    }
}

void thread_try_round(struct engine_thread *thread)
{
    CANCEL_LATER; /* with a borrowed engine */
    if (!try_borrow(thread))
        return;
    COUNT(thread->counters, lends, 1);
    run_round(thread);
    give_back(thread);
}

/* A borrower has nothing to do, but the engine thread, which it woke, has not left the NIC yet. */
static void await_empty_nic(struct engine_thread *thread)
{
    uint32_t seen = NIC_SLEPT_IN;
    RACE_POINT();
    if (atomic_compare_exchange_strong(&thread->in_nic, &seen, NIC_AWAITED) || seen == NIC_AWAITED)
        futex_wait(&thread->in_nic, NIC_AWAITED, ASK_NS);
}

/* The caller has the engine: drives it until the word changes or time is up. */
static void drive(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                  uint64_t deadline_ns)
{
    uint64_t spin_ns = thread->params->spin_us * 1000, idle_since_ns = 0;
    COUNT(thread->counters, lends, 1);
    while (atomic_load_explicit(word, memory_order_acquire) == value && may_lend(thread)) {
        if (run_round(thread)) {
            idle_since_ns = 0;
            if (deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns)
                return; /* others may keep the engine busy for ever */
            continue;
        }
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return;
        if (idle_since_ns == 0)
            idle_since_ns = now_ns;
        if (now_ns - idle_since_ns < spin_ns)
            relax(thread);
        else if (atomic_load(&thread->in_nic))
            await_empty_nic(thread);
        else
            sleep_in_nic(thread, BORROWED, BORROWER_SLEEPS, word, value, deadline_ns);
    }
}

/* Sleeps until some request has ended, or the engine may be had. */
static void wait_for_completion(struct engine_thread *thread, const _Atomic uint32_t *word,
                                uint32_t value, uint64_t timeout_ns)
{
    RACE_POINT();
    atomic_fetch_add(&thread->waiters, 1);
    RACE_POINT();
    uint32_t seen = atomic_load(&thread->completions);
    RACE_POINT();
    /* who gives the engine back looks at `waiters` afterwards, so one of both sees the other */
    bool to_be_had = may_lend(thread) && atomic_load(&thread->owner) <= FREE;
    RACE_POINT();
    if (atomic_load(word) == value && !to_be_had)
        futex_wait(&thread->completions, seen, timeout_ns);
    atomic_fetch_sub(&thread->waiters, 1);
}

/* Asks the engine thread, which runs, for the engine. True: the caller has it. */
static bool ask(struct engine_thread *thread)
{
    atomic_fetch_add(&thread->wanted, 1);
    RACE_POINT();
    futex_wait(&thread->owner, THREAD_RUNS, ASK_NS);
    bool got = try_borrow(thread); /* before the wish is withdrawn, or its lease would end */
    atomic_fetch_sub(&thread->wanted, 1);
    return got;
}

bool thread_wait(struct engine_thread *thread, const _Atomic uint32_t *word, uint32_t value,
                 uint64_t deadline_ns)
{
    uint64_t spin_ns = thread->params->spin_us * 1000;
    uint64_t spin_until_ns = thread->lend ? 0 : clock_now_ns() + spin_ns;
    for (;;) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return true;
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return false;
        if (may_lend(thread) &&
            (try_borrow(thread) || (atomic_load(&thread->owner) == THREAD_RUNS && ask(thread)))) {
            drive(thread, word, value, deadline_ns);
            give_back(thread);
        } else if (may_lend(thread) && atomic_load(&thread->owner) <= FREE) {
            continue; /* it has just changed hands */
        } else if (now_ns < spin_until_ns) {
            relax(thread);
        } else {
            wait_for_completion(thread, word, value,
                                deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns - now_ns);
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
    atomic_store(&thread->reclaimed, 1);
    RACE_POINT();
    if (atomic_load(&thread->owner) == FREE)
        futex_wake(&thread->owner, INT_MAX);
}

/* ---- start, stop ----------------------------------------------------------------------------- */

void thread_free(struct engine_thread *thread)
{
    if (thread->queue)
        thread->nic->queue_close(thread->queue);
    ring_free(&thread->ring);
    if (thread->stage)
        stage_free(thread->stage);
    if (thread->core)
        munmap(thread->core, core_size(thread->params));
    free(thread->counters);
    pin_release(thread->pin_claim);
}

static int thread_build(struct engine_thread *thread, const struct thread_setup *setup)
{
    thread->counters = aligned_alloc(64, (sizeof(struct counters) + 63) & ~(size_t)63);
    if (!thread->counters)
        return UCCL_ENOMEM;
    memset(thread->counters, 0, sizeof *thread->counters);
    thread->stage = stage_open(thread);
    if (!thread->stage)
        return UCCL_ENOMEM;
    int error = ring_init(&thread->ring, thread->params->ring_entries);
    if (error)
        return error;
    void *memory = mmap(NULL, core_size(thread->params), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        LOG_ERR("no memory for engine thread %u: %zu bytes (UCCL_TX_BUFFERS, UCCL_TX_SMALL_BUFFERS; ulimit -v)", setup->index,
                core_size(thread->params));
        return UCCL_ENOMEM;
    }
    const struct nic_caps *caps = setup->nic->caps(setup->device);
    thread->places = caps->places_payload;
    thread->room_wakes = caps->room_wakes;
    thread->core = core_init(memory,
                             &(struct core_setup){.params = setup->params,
                                                  .counters = thread->counters,
                                                  .crc32c = crc32c_best(),
                                                  .seed = setup->seed,
                                                  .paths_in_order = caps->in_order,
                                                  .places_reliably = caps->reliable,
                                                  .places_in_order = caps->in_order},
                             clock_now_ns());
    if (setup->link_mbps)
        core_set_link(thread->core, setup->link_mbps);
    return setup->nic->queue_open(setup->device,
                                  &(struct nic_queue_setup){.params = setup->params,
                                                            .counters = thread->counters,
                                                            .crc32c = crc32c_best(),
                                                            .gather = payload_gather,
                                                            .payload = payload_at,
                                                            .local = payload_local,
                                                            .place = payload_target,
                                                            .owner = thread,
                                                            .lent = setup->lend,
                                                            .index = setup->index},
                                  &thread->queue);
}

/*
 * Starts a thread that takes no signal of the process. An application that blocks a signal in its own
 * threads, to read it from a signalfd, relies on that no other thread is open for it. Faults stay open: they
 * hit the thread that causes them, and the application may have a handler for its own memory.
 */
static int create_deaf(pthread_t *out, void *(*run)(void *), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* a new thread inherits it */
    int failed = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

int thread_start(struct engine_thread *thread, const struct thread_setup *setup)
{
    thread->params = setup->params;
    thread->process = setup->process;
    thread->nic = setup->nic;
    thread->index = setup->index;
    thread->lend = setup->lend;
    thread->numa_node = setup->numa_node;
    thread->pin_claim = -1;
    thread->event_fd = setup->event_fd;
    thread->event_armed = setup->event_armed;
    thread->on_event = setup->on_event;
    thread->context = setup->context;
    int error = thread_build(thread, setup);
    if (!error) {
        int failed = create_deaf(&thread->pthread, thread_main, thread);
        thread->started = failed == 0;
        if (failed) {
            LOG_ERR("cannot start engine thread %u: %s%s", setup->index, strerror(failed),
                    failed == EAGAIN ? " (limits: ulimit -u, ulimit -v, the processes of a container)" : "");
            error = UCCL_ENOMEM;
        }
    }
    if (error)
        thread_free(thread);
    return error;
}

void thread_stop(struct engine_thread *thread)
{
    if (!thread->started)
        return;
    atomic_store(&thread->stop, 1);
    futex_wake(&thread->owner, INT_MAX);
    thread->nic->wake(thread->queue);
    pthread_join(thread->pthread, NULL);
    thread->started = false;
}
