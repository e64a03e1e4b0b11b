/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce slots (gpu/bounce.h) without a GPU: the copies are played. */
#include "gpu/bounce.h"
#include "request/request.h"

#include <criterion/criterion.h>

enum { CHUNK = 4096, SLOTS = 4 };

static struct copier copier;
static struct bounce bounce;
static uint8_t memory[SLOTS * BOUNCE_BYTES];
static struct uccl_request requests[SLOTS + 1];

static void open_bounce(void)
{
    bounce_init(&bounce, &copier, memory, sizeof memory);
    cr_assert_eq(bounce.count, SLOTS);
    for (unsigned i = 0; i <= SLOTS; i++) { /* each of one chunk: nothing is fetched ahead */
        requests[i].msg.size_bytes = requests[i].msg.end_bytes = CHUNK;
        requests[i].staged.pending = 1; /* something else, so that it does not end here */
    }
}

/* The slot of a request whose chunk was asked for. */
static struct stage_span *slot_of(const struct uccl_request *request)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (bounce.slots[i].request == request)
            return &bounce.slots[i];
    return NULL;
}

/* Its copy has been issued, and has ended. */
static void fetch(struct uccl_request *request)
{
    struct stage_span *slot = slot_of(request);
    cr_assert(slot && slot->state == SLOT_RESERVED);
    slot->state = SLOT_FETCHING;
    request->staged.pending++;
    bounce_fetched(&bounce, slot, 0);
}

static unsigned taken(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        count += bounce.slots[i].request != NULL;
    return count;
}

Test(bounce, a_chunk_is_sent_from_its_slot, .init = open_bounce)
{
    cr_assert_not(bounce_ready(&bounce, &requests[0], 0, CHUNK));
    fetch(&requests[0]);
    cr_assert(bounce_ready(&bounce, &requests[0], 0, CHUNK));
    cr_assert_eq(bounce_at(&bounce, &requests[0], 100), slot_of(&requests[0])->memory + 100);
    bounce_sent(&bounce);
    cr_assert_eq(taken(), 0);
}

Test(bounce, a_slot_does_not_outlive_its_request, .init = open_bounce)
{
    bounce_ready(&bounce, &requests[0], 0, CHUNK);
    bounce_ready(&bounce, &requests[1], 0, CHUNK);
    slot_of(&requests[0])->state = SLOT_FETCHING;
    requests[0].staged.pending++;
    requests[0].staged.over = true; /* while it is fetched */
    bounce_forget(&bounce, &requests[0]);
    bounce_forget(&bounce, &requests[1]);
    cr_assert_eq(taken(), 1, "the copy writes to it yet");
    bounce_fetched(&bounce, slot_of(&requests[0]), 0);
    cr_assert_eq(taken(), 0);
}

Test(bounce, a_slot_waits_for_its_chunk_for_some_time, .init = open_bounce)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        bounce_ready(&bounce, &requests[i], 0, CHUNK);
        fetch(&requests[i]);
    }
    cr_assert_eq(taken(), SLOTS);
    slot_of(&requests[2])->ready_ns = 1; /* its chunk was acked meanwhile */
    cr_assert_not(bounce_ready(&bounce, &requests[SLOTS], 0, CHUNK));
    cr_assert_not_null(slot_of(&requests[SLOTS]));
    cr_assert_null(slot_of(&requests[2]));
    fetch(&requests[SLOTS]);
    cr_assert(bounce_ready(&bounce, &requests[SLOTS], 0, CHUNK));
}

/* A device that copies nothing keeps some slots, not all. */
Test(bounce, a_device_leaves_others_some, .init = open_bounce)
{
    struct stage_device still = {0}, going = {0};
    for (unsigned i = 0; i <= SLOTS; i++)
        requests[i].staged.device = i < SLOTS ? &still : &going;
    for (unsigned i = 0; i < SLOTS; i++)
        bounce_ready(&bounce, &requests[i], 0, CHUNK);
    cr_assert_eq(taken(), SLOTS / 2);
    bounce_ready(&bounce, &requests[SLOTS], 0, CHUNK);
    fetch(&requests[SLOTS]);
    cr_assert(bounce_ready(&bounce, &requests[SLOTS], 0, CHUNK));
}

/* Nor by what is fetched ahead. */
Test(bounce, fetching_ahead_leaves_others_some, .init = open_bounce)
{
    struct stage_device still = {0};
    requests[0].staged.device = &still;
    requests[0].msg.size_bytes = requests[0].msg.end_bytes = SLOTS * CHUNK;
    requests[0].msg.offset_bytes = CHUNK;
    bounce_ready(&bounce, &requests[0], 0, CHUNK);
    cr_assert_eq(taken(), SLOTS / 2);
}
