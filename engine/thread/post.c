/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/post.h"

#include "base/futex.h"
#include "base/process.h"
#include "base/race_point.h"

#include <limits.h>

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
    /* sequentially consistent, like the claim in ring_push(): pairs with sleep_in_nic(), which stores a SLEEPS state
     * and then looks at the ring */
    uint32_t owner = atomic_load(&thread->owner);
    if (owner == THREAD_SLEEPS || owner == BORROWER_SLEEPS) {
        CANCEL_LATER;
        RACE_POINT();
        thread->queue->ops->wake(thread->queue);
    } else if (owner == OWNER_NONE && atomic_load(&thread->staged)) /* no borrower may come */
        futex_wake(&thread->owner, INT_MAX);
    return true;
}

bool thread_sleeps(const struct engine_thread *thread)
{
    uint32_t owner = atomic_load_explicit(&thread->owner, memory_order_relaxed);
    return owner == THREAD_SLEEPS || owner == BORROWER_SLEEPS;
}

bool thread_post(struct engine_thread *thread, enum thread_command command, void *object)
{
    return thread_push(thread, object, command == COMMAND_CANCEL ? thread_command_for(command, object) : command);
}

void thread_tell_waiters(struct engine_thread *thread)
{
    /* A waiter counts itself, then looks at its request; we have stored the states, then look at the count. Both
     * change the count in one step, so the later one sees the earlier. */
    RACE_POINT();
    if (atomic_fetch_add(&thread->waiters, 0)) {
        RACE_POINT();
        atomic_fetch_add(&thread->completions, 1);
        RACE_POINT();
        futex_wake(&thread->completions, INT_MAX);
    }
    if (atomic_exchange(thread->event_armed, 0)) { /* the same with uccl_event_arm() */
        RACE_POINT();
        CANCEL_LATER; /* a post that fails may come here (request_post()) */
        uint64_t one = 1;
        ssize_t written = write(thread->event_fd, &one, sizeof one);
        (void)written; /* a full counter is readable as well */
    }
    /* Another engine thread may have ended a request whose waiter sleeps in this NIC as the borrower. The state was
     * stored sequentially consistent (stripe.c); pairs with sleep_in_nic(). */
    if (atomic_load(&thread->owner) == BORROWER_SLEEPS) {
        CANCEL_LATER;
        thread->queue->ops->wake(thread->queue);
    }
}
