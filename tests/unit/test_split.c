/* SPDX-License-Identifier: Apache-2.0 */
/* What may come between the clear-to-send of a striped send and the moment when its owner makes the parts. */
#include "duo.h"

enum { SIZE = 500000, STRIPES = 2 };

static struct duo_request *send, *recv;

static void submit(struct duo_request **out, unsigned side, unsigned kind, unsigned stripes)
{
    struct duo_request *request = *out = &duo_requests[duo_request_count++];
    *request = (struct duo_request){.msg = {.kind = (uint8_t)kind, .size_bytes = SIZE, .stripes = (uint8_t)stripes}};
    request->msg.block_bytes = kind == CORE_SEND ? duo_block_bytes : 0;
    request->buffer = malloc(SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        request->buffer[i] = kind == CORE_SEND ? duo_byte(0, i) : 0xee;
    core_submit(duo_core[side], duo_conn[side][0], &request->msg, duo_now);
}

/* A send is posted that finds a clear-to-send for several stripes. */
static void setup(void)
{
    duo_open();
    submit(&recv, 1, CORE_RECV, STRIPES);
    duo_transmit(1);
    duo_deliver(1);
    submit(&send, 0, CORE_SEND, 0);
}

static void take_split(void)
{
    struct core_event event;
    cr_assert(core_next_event(duo_core[0], &event));
    cr_assert(event.kind == CORE_EVENT_SPLIT && event.msg == &send->msg && event.msg->stripes == STRIPES);
}

/* The owner flushes before it looks at events, as when a connection is closed in between. */
static void assert_silent(void)
{
    struct tx_desc desc;
    while (core_tx(duo_core[0], &desc, duo_now))
        cr_assert_neq(desc.kind, TX_BULK, "bytes have gone of which nobody knows yet who carries them");
}

Test(split, no_part_can_be_made, .init = setup)
{
    assert_silent();
    take_split();
    core_unsplit(duo_core[0], &send->msg);
    duo_run(50 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
    duo_assert_ended(recv, UCCL_OK, SIZE);
    duo_assert_rest();
}

/* Part 0 goes from then on, and no further. */
Test(split, parts_are_made, .init = setup)
{
    uint64_t from, to;
    assert_silent();
    take_split();
    duo_run(50 * MS);
    core_stripe(SIZE, STRIPES, 0, &from, &to);
    cr_assert(send->msg.state == MSG_SENT && send->msg.offset_bytes == to && to < SIZE);
    cr_assert(!send->ended && !recv->ended);
}

Test(split, it_ends_before, .init = setup)
{
    core_cancel(duo_core[0], &send->msg, duo_now);
    assert_silent();
    take_split();
    core_unsplit(duo_core[0], &send->msg);
    duo_run(50 * MS);
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    duo_assert_rest();
}

Test(split, the_connection_fails_before, .init = setup)
{
    core_fail(duo_core[0], UCCL_EIO, duo_now);
    assert_silent();
    take_split();
    core_unsplit(duo_core[0], &send->msg);
    duo_events(0);
    duo_assert_ended(send, UCCL_EIO, 0);
}

/* A staged one is asked for once it is known what of it. */
Test(split, a_staged_send_is_wanted_after_its_split)
{
    duo_block_bytes = 65536;
    setup();
    assert_silent();
    take_split();
    core_unsplit(duo_core[0], &send->msg);
    cr_assert_not(send->wanted);
    duo_events(0);
    cr_assert(send->wanted && send->msg.end_bytes == SIZE);
    core_available(duo_core[0], &send->msg, SIZE, duo_now);
    duo_run(50 * MS);
    duo_assert_ended(send, UCCL_OK, SIZE);
    duo_assert_ended(recv, UCCL_OK, SIZE);
    cr_assert_eq(send->released, SIZE);
    duo_assert_rest();
}

/* Parts and ends: one to one for each message; and over the messages each end behind home gets its share of the parts.
 */
Test(split, parts_take_turns_over_the_ends)
{
    for (unsigned ends = 2; ends <= 12; ends++) {
        for (unsigned n = 2; n <= ends; n++) {
            unsigned given[12] = {0};
            for (uint64_t number = UINT64_MAX - ends + 2; number != 0; number++) {
                bool taken[12] = {false};
                for (unsigned i = 1; i < n; i++) {
                    unsigned end = core_stripe_end(number, n, ends, i);
                    cr_assert(end > 0 && end < ends && !taken[end]);
                    cr_assert_eq(core_stripe_part(number, n, ends, end), i);
                    taken[end] = true;
                    given[end]++;
                }
                for (unsigned end = 1; end < ends; end++)
                    cr_assert_eq(core_stripe_part(number, n, ends, end) < n, taken[end]);
            }
            for (unsigned end = 1; end < ends; end++)
                cr_assert_eq(given[end], n - 1, "ends %u, n %u: end %u has %u", ends, n, end, given[end]);
        }
    }
}
