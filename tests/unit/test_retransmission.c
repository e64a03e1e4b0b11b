/* SPDX-License-Identifier: Apache-2.0 */
/* How long it takes to make up for losses on ways that swallow more than chance would. */
#include "duo.h"

enum { LARGE = 2000000 };

/*
 * A queue for a few datagrams at the way's narrowest place: the first of each train pass, its end never does. Each
 * timeout brings some datagrams across, of whichever chunk it retransmissions, so none takes longer than the one
 * before.
 */
Test(retransmission, trains_that_are_cut_off_make_progress)
{
    enum { PASS = 5 };
    duo_defaults();
    duo_params.dead_peer_ms = 100000;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, LARGE), *send;
    duo_talk();
    send = duo_send(0, LARGE);
    uint64_t begin_ns = duo_now, datagrams = LARGE / (1472 - WIRE_BULK_HEADER_BYTES) + 1;
    uint64_t limit_ns = (datagrams / PASS + 20) * 2 * duo_params.rto_min_us * US;
    while (!(recv->ended && send->ended) && duo_now < begin_ns + limit_ns) {
        duo_transmit(0);
        for (unsigned i = 0; i < duo_queued[0] && i < PASS; i++)
            duo_deliver_one(0, i);
        duo_drop(0);
        core_flush_acks(duo_core[1]);
        duo_pass(1);
        unsigned side = core_deadline(duo_core[1]) < core_deadline(duo_core[0]);
        if (!duo_tick(side, begin_ns + limit_ns))
            break;
    }
    duo_assert_arrived(send, recv, LARGE);
}

/* Datagrams with payload that wait in the queue of `side`. */
static unsigned queued_data(unsigned side)
{
    unsigned count = 0;
    for (unsigned i = 0; i < duo_queued[side]; i++) {
        struct wire_packet packet;
        cr_assert(wire_parse(duo_queue[side][i].bytes, duo_queue[side][i].length, crc32c_portable, &packet));
        count += packet.current.kind == FRAME_DATA;
    }
    return count;
}

/* A retransmission carries exactly the datagrams of its chunk that were lost, be they first, last or all of them. */
Test(retransmission, it_carries_what_was_lost)
{
    enum { DATAGRAMS = 6, BYTES = DATAGRAMS * (1472 - WIRE_BULK_HEADER_BYTES) };
    for (unsigned lost = 1; lost < 1u << DATAGRAMS; lost++) {
        duo_defaults();
        duo_open_as(false);
        struct duo_request *recv = duo_recv(1, BYTES), *send;
        duo_talk();
        send = duo_send(0, BYTES);
        cr_assert_eq(duo_transmit(0), DATAGRAMS);
        for (unsigned i = 0; i < DATAGRAMS; i++) {
            if (!(lost >> i & 1))
                duo_deliver_one(0, i);
        }
        duo_drop(0);
        core_flush_acks(duo_core[1]);
        duo_pass(1);
        unsigned again = 0;
        for (unsigned ticks = 0; !again && ticks < 100; ticks++) {
            duo_drop(0);
            cr_assert(duo_tick(0, duo_now + 1000 * MS));
            duo_transmit(0);
            again = queued_data(0);
        }
        cr_assert_eq(again, (unsigned)__builtin_popcount(lost), "%u datagrams for losses %x", again, lost);
        duo_deliver(0);
        duo_assert_ended(recv, UCCL_OK, BYTES);
        duo_talk();
        duo_assert_ended(send, UCCL_OK, BYTES);
    }
}

/* The path that the one datagram in the queue of `side` takes; it is lost there. */
static unsigned lose_ack(unsigned side)
{
    struct wire_packet packet;
    cr_assert_eq(duo_transmit(side), 1);
    cr_assert(wire_parse(duo_queue[side][0].bytes, duo_queue[side][0].length, crc32c_portable, &packet));
    cr_assert_not(packet.flags & WIRE_SEQUENCED);
    duo_drop(side);
    return packet.path;
}

/* An ack whose chunk is repeated was lost, perhaps as all are that go its way: the next one goes another. */
Test(retransmission, an_ack_is_said_again_on_another_path)
{
    enum { TIMES = 12 };
    for (unsigned policy = PATH_RECYCLE; policy <= PATH_RR; policy++) {
        duo_defaults();
        duo_params.dead_peer_ms = 1000000; /* no probes between */
        duo_params.port_entropy = 2;
        duo_params.path_policy = policy;
        duo_open_as(false);
        struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
        duo_pass(0);
        duo_assert_ended(recv, UCCL_OK, 100);
        core_flush_acks(duo_core[1]);
        duo_lose(1); /* with the credit */
        unsigned last = 2;
        for (unsigned i = 0; i < TIMES; i++) {
            while (duo_transmit(0) == 0)
                cr_assert(duo_tick(0, UINT64_MAX - 1));
            duo_deliver(0);
            unsigned path = lose_ack(1);
            cr_assert_neq(path, last, "policy %u, repeat %u", policy, i);
            last = path;
        }
        duo_run(100 * 1000 * MS);
        duo_assert_ended(send, UCCL_OK, 100);
    }
}

/* A message is sent whose first datagrams are lost. How long it takes until it is whole. */
static uint64_t retransmission_time(void)
{
    enum { BYTES = 400000, LOST = 10 };
    struct duo_request *recv = duo_recv(1, BYTES);
    duo_pass(1);
    duo_send(0, BYTES);
    duo_transmit(0);
    uint64_t begin_ns = duo_now;
    for (unsigned i = LOST; i < duo_queued[0]; i++)
        duo_deliver_one(0, i);
    duo_drop(0);
    while (!recv->ended) {
        duo_talk();
        unsigned side = core_deadline(duo_core[1]) < core_deadline(duo_core[0]);
        cr_assert(recv->ended || duo_tick(side, begin_ns + 10 * 1000 * MS));
    }
    duo_assert_ended(recv, UCCL_OK, BYTES);
    duo_run(100 * MS);
    return duo_now - 100 * MS - begin_ns;
}

/*
 * More paths have news than an ack names. Those left over are told soon: after a silence their hold would be as long as
 * that, and the sender would wait as long for acks.
 */
Test(retransmission, news_of_paths_does_not_outlast_a_silence)
{
    enum { PATHS = 32 };
    duo_defaults();
    duo_params.port_entropy = PATHS;
    duo_params.path_policy = PATH_RR;
    duo_params.dead_peer_ms = 100000;
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].tx_window_bytes = duo_setup[side].rx_window_bytes = 16 << 20;
    duo_open_as(false);
    cr_assert_gt(PATHS, 2 * WIRE_ACK_PATHS_MAX);
    struct duo_request *recv = duo_recv(1, LARGE);
    duo_send(0, LARGE);
    duo_run(100 * MS);
    duo_assert_ended(recv, UCCL_OK, LARGE);
    cr_assert_lt(retransmission_time(), MS);
    recv = duo_recv(1, LARGE);
    duo_pass(1);
    duo_send(0, LARGE);
    duo_pass(0); /* a burst, before the receiver gets to send an ack */
    cr_assert(sack_has_pending(&duo_flow[1]->sack));
    duo_run(40 * 1000 * MS);
    cr_assert_not(sack_has_pending(&duo_flow[1]->sack));
    recv = duo_recv(1, 100);
    duo_send(0, 100);
    duo_run(10 * MS);
    duo_assert_ended(recv, UCCL_OK, 100);
    cr_assert_lt(duo_flow[0]->rails->rtt.peer_ack_delay_ns, MS);
    cr_assert_lt(retransmission_time(), MS);
}
