/* SPDX-License-Identifier: Apache-2.0 */
/* Striped messages in the core: ranges that the owner gives to flows, and bytes that it adds up. */
#include "duo.h"

enum { SIZE = 500000, STRIPES = 2, UNITS = 3 };

static struct duo_request *send, *recv;

static struct duo_request *post(unsigned side, unsigned kind, unsigned stripes)
{
    return duo_post_msg(side, 0,
                        (struct core_msg){.kind = (uint8_t)kind,
                                          .size_bytes = SIZE,
                                          .stripes = (uint8_t)stripes,
                                          .range_units = kind == CORE_RECV ? UNITS : 0});
}

/* A send is posted that finds a clear-to-send for several stripes. */
static void setup(void)
{
    duo_open();
    recv = post(1, CORE_RECV, STRIPES);
    duo_pass(1);
    send = post(0, CORE_SEND, 0);
}

/* It asks, and gets this range, or is to go whole. */
static void give(uint64_t from, uint64_t to)
{
    duo_events(0);
    cr_assert(send->asks > 1000 && send->asks <= 65536 && send->asks % CORE_WATCHED_BYTES == 0);
    cr_assert(send->msg.stripes == STRIPES && send->msg.range_units == UNITS, "as the receiver says");
    send->asks = 0;
    core_send_range(duo_core[0], &send->msg, from, to);
}

static void go_whole(void)
{
    duo_events(0);
    cr_assert(send->asks);
    send->asks = 0;
    core_unsplit(duo_core[0], &send->msg);
}

/* The bytes [from, to) have come over another flow. */
static void came_elsewhere(uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        recv->buffer[i] = duo_byte(0, i);
}

static void assert_arrived_whole(void)
{
    duo_run(50 * MS);
    duo_assert_arrived(send, recv, SIZE);
    duo_assert_rest();
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
    go_whole();
    assert_arrived_whole();
    cr_assert_eq(recv->arrived, 0);
}

/* A range goes, and no further. What has arrived is told, and does not make the message whole. */
Test(split, a_range_is_all_that_goes, .init = setup)
{
    enum { FROM = 100096, TO = 300000 };
    assert_silent();
    give(FROM, TO);
    duo_run(50 * MS);
    cr_assert(recv->arrived == TO - FROM && recv->total == SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        cr_assert_eq(recv->buffer[i], i >= FROM && i < TO ? duo_byte(0, i) : 0xee, "byte %u", i);
    give(SIZE, SIZE); /* it would like more */
    duo_run(50 * MS);
    cr_assert(!send->asks && send->msg.state == MSG_SENT && recv->msg.state == MSG_WAITING);

    core_msg_whole(duo_core[1], &recv->msg, SIZE - 1, duo_now); /* others say another length */
    cr_assert(recv->msg.state == MSG_WAITING);
    came_elsewhere(0, FROM);
    came_elsewhere(TO, SIZE);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    assert_arrived_whole();
}

/*
 * A range ends with a short datagram. A full one, copied to its offset by foresight, would reach into the range of
 * another flow, which may have arrived.
 */
Test(split, no_place_that_reaches_into_the_next_range, .init = setup)
{
    enum { TO = 10000 };
    give(0, TO);
    duo_transmit(0);
    unsigned count = duo_queued[0];
    const struct duo_datagram *first = &duo_queue[0][0], *last = &duo_queue[0][count - 1];
    cr_assert(count > 2 && last->length < first->length);
    struct core_msg *msg;
    uint64_t offset;
    cr_assert_eq(core_copy_target(duo_core[1], first->bytes, count * first->length, first->length, &msg, &offset),
                 count - 1);
    cr_assert(msg == &recv->msg && offset == 0);
    cr_assert_eq(core_copy_target(duo_core[1], last->bytes, last->length, last->length, &msg, &offset), 1,
                 "it says its own length");
    cr_assert_eq(offset, (count - 1) * (first->length - WIRE_BULK_HEADER_BYTES));
}

/* The home flow may be so slow that the others carry everything. */
Test(split, nothing_goes_over_the_home_flow, .init = setup)
{
    give(SIZE, SIZE);
    came_elsewhere(0, SIZE);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    assert_arrived_whole();
}

/* A peer may say that all is there before all has gone: a lie, which is not believed. */
Test(split, delivered_before_it_was_sent, .init = setup)
{
    duo_events(0);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    duo_run(50 * MS);
    cr_assert(recv->ended && !send->ended);
    cr_assert_eq(duo_counters[0].rx_malformed, 1);
}

/* The peer has all bytes, and says so, before the owner has answered that no range is left. */
Test(split, delivered_before_the_owner_has_answered, .init = setup)
{
    enum { TO = 10000 };
    give(0, TO);
    duo_transmit(0);
    cr_assert(send->asks, "for its next range");
    duo_deliver(0);
    duo_events(1);
    came_elsewhere(TO, SIZE);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    core_flush_acks(duo_core[1]);
    duo_pass(1);
    cr_assert_eq(duo_counters[0].rx_malformed, 0);
    assert_arrived_whole();
}

/* The peer says so, which is a lie, while chunks are not acked, and the owner gives the message its next range. */
Test(split, delivered_before_it_gets_its_next_range, .init = setup)
{
    enum { TO = 10000 };
    give(0, TO);
    duo_transmit(0);
    cr_assert(send->asks, "for its next range");
    duo_drop(0);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    core_flush_acks(duo_core[1]);
    duo_pass(1);
    cr_assert(!send->ended && duo_conn[0][0]->settling.head == &send->msg);
    core_send_range(duo_core[0], &send->msg, TO, SIZE);
    send->asks = 0;
    cr_assert_null(duo_conn[0][0]->bulk.head, "it is on two lists");
    duo_run(50 * MS);
    cr_assert_not(send->asks);
    duo_assert_ended(send, UCCL_OK, SIZE);
    duo_assert_rest();
}

Test(split, it_ends_before, .init = setup)
{
    core_cancel(duo_core[0], &send->msg, duo_now);
    assert_silent();
    duo_run(50 * MS);
    cr_assert_not(send->asks, "no range for what is over");
    duo_assert_ended(send, UCCL_ECANCELED, 0);
    duo_assert_ended(recv, UCCL_ECANCELED, 0);
    duo_assert_rest();
}

/* Bytes have come that were not told yet when it ends. */
Test(split, it_ends_with_bytes_to_tell, .init = setup)
{
    struct core_event event;
    give(0, SIZE);
    struct tx_desc desc;
    cr_assert(core_tx(duo_core[0], &desc, duo_now) && desc.kind == TX_BULK);
    duo_build(0, &desc);
    core_rx(duo_core[1], duo_queue[0][0].bytes, duo_queue[0][0].length, false, duo_now);
    duo_copies(1);
    core_cancel(duo_core[1], &recv->msg, duo_now);
    cr_assert(core_next_event(duo_core[1], &event) && event.kind == CORE_EVENT_MSG && event.status == UCCL_ECANCELED);
    cr_assert_not(core_next_event(duo_core[1], &event));
    duo_drop(0);
}

Test(split, the_connection_fails_before, .init = setup)
{
    core_fail(duo_core[0], UCCL_EIO, duo_now);
    assert_silent();
    duo_events(0);
    cr_assert_not(send->asks);
    duo_assert_ended(send, UCCL_EIO, 0);
}

/* A staged one is asked for once it is known what of it, for each range anew. */
Test(split, a_staged_send_is_wanted_with_each_range)
{
    duo_block_bytes = 65536;
    setup();
    assert_silent();
    for (uint64_t from = 0, to; from < SIZE; from = to) {
        to = from + 196608 < SIZE ? from + 196608 : SIZE;
        cr_assert_not(send->wanted);
        give(from, to);
        duo_events(0);
        cr_assert(send->wanted && send->msg.end_bytes == to && send->msg.offset_bytes == from);
        send->wanted = false;
        core_available(duo_core[0], &send->msg, to, duo_now);
        duo_run(50 * MS);
        cr_assert_eq(recv->arrived, to);
    }
    give(SIZE, SIZE);
    core_msg_whole(duo_core[1], &recv->msg, SIZE, duo_now);
    assert_arrived_whole();
    cr_assert_eq(send->released, SIZE);
}

/* Each message has its parts on different ends, and over the messages each end behind home gets its share, also of the
 * first, second.. ones. */
Test(split, parts_take_turns_over_the_ends)
{
    for (unsigned ends = 2; ends <= 12; ends++) {
        unsigned given[12][12] = {{0}};
        for (uint64_t number = UINT64_MAX - ends + 2; number != 0; number++) {
            bool taken[12] = {false};
            for (unsigned i = 1; i < ends; i++) {
                unsigned end = core_stripe_end(number, ends, i);
                cr_assert(end > 0 && end < ends && !taken[end]);
                taken[end] = true;
                given[i][end]++;
            }
        }
        for (unsigned i = 1; i < ends; i++) {
            for (unsigned end = 1; end < ends; end++)
                cr_assert_eq(given[i][end], 1, "ends %u, part %u: end %u has %u", ends, i, end, given[i][end]);
        }
    }
}
