/* SPDX-License-Identifier: Apache-2.0 */
/* An engine thread whose ring of commands is full. */
#ifndef TEST_FILL_RING_H
#define TEST_FILL_RING_H

static _Atomic bool blocks, blocked;
static struct thread_call blocker, fillers[64];

static inline void block(struct engine_thread *thread, void *argument)
{
    (void)thread, (void)argument;
    for (blocked = true; blocks;)
        sleep_us(100);
}

static inline void do_nothing(struct engine_thread *thread, void *argument)
{
    (void)thread, (void)argument;
}

/* The thread is kept busy, and its ring is filled. */
static inline void fill_ring(struct engine_thread *thread)
{
    unsigned count = 0;
    blocks = true;
    blocker = (struct thread_call){.run = block};
    cr_assert(thread_post(thread, COMMAND_CALL, &blocker));
    while (!blocked)
        sleep_us(100);
    for (; count < 64; count++) {
        fillers[count] = (struct thread_call){.run = do_nothing};
        if (!thread_post(thread, COMMAND_CALL, &fillers[count]))
            break;
    }
    cr_assert(count > 0 && count < 64, "%u commands", count);
}

static inline void empty_ring(struct engine_thread *thread)
{
    blocks = blocked = false;
    thread_run(thread, do_nothing, NULL);
}

#endif
