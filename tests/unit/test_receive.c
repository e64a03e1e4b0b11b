/* SPDX-License-Identifier: Apache-2.0 */
/* What packets may do, whoever wrote them: the table of frames, answers for unknown connections. */
#include "packets.h"

TestSuite(receive, .timeout = 60);
TestSuite(gone, .timeout = 60);
TestSuite(answers, .timeout = 60);

/* ---- the table ---- */

static bool is_of_conn(enum wire_frame_kind kind)
{
    return kind <= FRAME_FIN;
}

/* Each kind, for each end that it may name, with and without a sequence number: what may not be does nothing and is
 * acked. */
Test(receive, each_kind_at_each_end, .init = open_with_part)
{
    static const uint32_t ids[] = {HOME_ID, PART_ID, UNKNOWN_ID};
    uint64_t seq = 0;
    for (unsigned kind = 1; kind < FRAME_KINDS; kind++) {
        if (!(WIRE_FEATURES >> kind & 1))
            continue;
        for (unsigned i = 0; i < 3; i++) {
            bool part = ids[i] == PART_ID, unknown = ids[i] == UNKNOWN_ID;
            uint64_t before = malformed();
            begin();
            add(kind, ids[i]);
            bool repeatable = kind == FRAME_ACK || kind == FRAME_DEMAND || kind == FRAME_GRANT || kind == FRAME_PROBE ||
                              kind == FRAME_FRAGMENT;
            if (kind != FRAME_FLOW) { /* which ends the flow */
                cr_assert_eq(receive(UINT64_MAX), repeatable, "kind %u without a number", kind);
                cr_assert_eq(malformed() - before, !repeatable);
            }
            before = malformed();
            bool early = kind == FRAME_DATA && part; /* its part may be on the way */
            bool illegal = kind == FRAME_PROBE || kind == FRAME_FLOW || kind == FRAME_FRAGMENT ||
                           (is_of_conn(kind) && part && kind != FRAME_DATA);
            bool contradicts = kind == FRAME_DATA && !part && !unknown; /* nothing was granted */
            cr_assert_eq(receive(seq), !early, "kind %u for id %u", kind, ids[i]);
            seq += !early;
            cr_assert_eq(duo_flow[1]->sack.cumulative, seq, "whatever it is, it is acked");
            cr_assert_eq(malformed() - before, illegal || contradicts, "kind %u for id %u", kind, ids[i]);
            cr_assert_eq(part_end->state, CONN_OPEN);
        }
    }
    cr_assert_eq(duo_count(&duo_counters[1].rx_refused), 1);
}

/* What the other side has not said that it understands is illegal. */
Test(receive, kinds_without_their_feature, .init = open_with_part)
{
    uint64_t seq = 0;
    for (unsigned kind = 1; kind < FRAME_KINDS; kind++) {
        if (!(WIRE_FEATURES >> kind & 1) || kind == FRAME_PROBE || kind == FRAME_FLOW || kind == FRAME_FRAGMENT)
            continue;
        duo_flow[1]->features = WIRE_FEATURES & ~(UINT64_C(1) << kind);
        uint64_t before = malformed();
        begin();
        add(kind, HOME_ID);
        cr_assert(receive(seq++));
        cr_assert_eq(malformed() - before, 1, "kind %u", kind);
    }
    cr_assert_eq(duo_count(&duo_counters[1].msgs_received), 0);
}

/* A connection that has failed takes the words about ends, and nothing else. */
Test(receive, frames_to_a_failed_connection, .init = open_with_part)
{
    begin();
    packet_header += wire_put_fin(packet + packet_header, &(struct wire_fin){HOME_ID, true, true});
    cr_assert(receive(0));
    cr_assert_eq(duo_failed[1], 1);
    uint64_t seq = 1;
    for (unsigned kind = FRAME_DATA; kind <= FRAME_FIN; kind++) {
        uint64_t before = stale();
        begin();
        add(kind, HOME_ID);
        cr_assert(receive(seq++));
        bool acts = kind == FRAME_ABORT || kind == FRAME_FIN;
        cr_assert_eq(stale() - before, !acts, "kind %u", kind);
    }
    cr_assert_eq(malformed(), 0);
    cr_assert_eq(duo_flow[1]->gone.count, 0, "it is known");
}

/* One illegal frame, and no frame of the packet acts, whether before or behind it. */
Test(receive, a_packet_acts_whole_or_not_at_all, .init = open_with_part)
{
    struct duo_request *recv = duo_recv(1, 10);
    for (unsigned first = 0; first < 2; first++) {
        begin();
        if (first)
            add(FRAME_RTS, PART_ID);
        add(FRAME_EAGER, HOME_ID);
        if (!first)
            add(FRAME_RTS, PART_ID);
        cr_assert(receive(first));
        cr_assert_not(recv->ended);
    }
    cr_assert_eq(malformed(), 2);
    cr_assert_eq(duo_flow[1]->sack.cumulative, 2);
    begin();
    add(FRAME_EAGER, HOME_ID);
    cr_assert(receive(2));
    cr_assert(recv->ended && recv->status == UCCL_OK && recv->moved == 10);
}

/* A frame that contradicts the others is skipped: were the packet dropped, those would act again when it comes again.
 */
Test(receive, a_contradiction_does_not_repeat_the_rest, .init = open_with_part)
{
    struct duo_request *recv = duo_recv(1, 20);
    begin();
    packet_header +=
        wire_put_eager(packet + packet_header, &(struct wire_eager){.conn = HOME_ID, .total = 20, .length = 10});
    packet_payload = 10;
    add(FRAME_DATA, HOME_ID); /* of a message that is eager */
    cr_assert(receive(0));
    cr_assert_eq(malformed(), 1);
    cr_assert(receive(0), "the peer's copy of it");
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), 1);
    cr_assert_not(recv->ended, "ten bytes of twenty");
    begin();
    packet_header += wire_put_eager(packet + packet_header,
                                    &(struct wire_eager){.conn = HOME_ID, .total = 20, .offset = 10, .length = 10});
    packet_payload = 10;
    cr_assert(receive(1));
    cr_assert(recv->ended && recv->moved == 20);
}

/* DATA that says that its message is larger than the buffer, which was granted as it is: nothing is written anywhere.
 */
Test(receive, data_is_never_larger_than_its_buffer, .init = open_with_part)
{
    enum { BYTES = 20000 };
    struct duo_request *recv = duo_recv(1, BYTES);
    duo_transmit(1); /* the clear-to-send */
    duo_drop(1);
    for (uint32_t more = 2; more-- > 0;) {
        uint32_t total = BYTES + more;
        begin();
        add(FRAME_DATA, HOME_ID);
        memcpy(packet + WIRE_HEADER_BYTES + 20, &total, sizeof total);
        cr_assert(receive(1 - more));
        cr_assert_eq(malformed(), 1);
        cr_assert_not(recv->ended);
        const struct recv_slot *slot = &duo_conn[1][0]->recv_slots[0];
        cr_assert_eq(slot->arrived_bytes, more ? 0u : 8u);
    }
}

/*
 * A farewell ends the flow, and what stands behind it in the packet comes too late. A demand that acted put the dead
 * flow on the list of those that are granted credit, where it stayed after its memory was gone.
 */
Test(receive, nothing_acts_behind_a_farewell, .init = open_with_part)
{
    begin();
    add(FRAME_DEMAND, 0);
    cr_assert(receive(UINT64_MAX));
    cr_assert_neq(pacer_deadline(duo_core[1]), UINT64_MAX, "a living flow waits for its grant");
    begin();
    add(FRAME_FLOW, 0);
    add(FRAME_DEMAND, 0);
    add(FRAME_ACK, 0);
    add(FRAME_FLOW, 0);
    cr_assert(receive(UINT64_MAX));
    cr_assert(duo_flow[1]->dead);
    cr_assert_eq(duo_flow[1]->status, UCCL_EPEERDEAD);
    cr_assert_eq(duo_count(&duo_counters[1].peers_dead), 1);
    cr_assert_eq(duo_count(&duo_counters[1].rx_acks), 0);
    cr_assert_eq(pacer_deadline(duo_core[1]), UINT64_MAX);
    cr_assert_eq(core_deadline(duo_core[1]), UINT64_MAX, "nothing is left to be done for it");
}

/* A clear-to-send beyond the window is early: the CREDIT that makes it legal was in a packet that is late, or is in its
 * own. */
Test(receive, what_overtook_its_credit_comes_again, .init = open_with_part)
{
    struct wire_cts cts = {.conn = HOME_ID, .msg = 16, .length = 10};
    struct duo_request *send = duo_send(1, 10);
    duo_transmit(1);
    begin();
    packet_header += wire_put_cts(packet + packet_header, &cts);
    cr_assert_not(receive(0));
    cr_assert_eq(duo_count(&duo_counters[1].rx_refused), 1);
    cr_assert_eq(duo_flow[1]->sack.cumulative, 0);
    begin();
    packet_header += wire_put_credit(packet + packet_header, &(struct wire_credit){.conn = HOME_ID, .delivered = 1});
    packet_header += wire_put_cts(packet + packet_header, &cts);
    cr_assert(receive(0));
    cr_assert_eq(duo_flow[1]->sack.cumulative, 1);
    cr_assert_eq(malformed(), 0);
    cr_assert(duo_conn[1][0]->send_slots[0].granted, "16 modulo the window");
    cr_assert(send->ended && send->status == UCCL_OK, "delivered, says the credit");
}

/* Two frames killed an engine: on an end that carries parts an RTS, and an eager message said to be granted. */
Test(receive, ends_that_carry_parts_take_parts_alone, .init = open_with_part)
{
    begin();
    packet_header += wire_put_rts(packet + packet_header, &(struct wire_rts){.conn = PART_ID, .total = 1000});
    cr_assert(receive(0));
    begin();
    packet_header += wire_put_eager(packet + packet_header,
                                    &(struct wire_eager){.conn = PART_ID, .total = 10, .length = 10, .granted = true});
    packet_payload = 10;
    cr_assert(receive(1));
    cr_assert_eq(malformed(), 2);
    core_conn_close(duo_core[1], part_end, 0, duo_now);
    duo_events(1);
    cr_assert_eq(duo_ended[1], 1);
}

/* ---- unknown connections ---- */

Test(gone, what_is_unknown_is_answered, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 100), *send = duo_send(0, 100);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now); /* never heard of: it ends without a word */
    duo_events(1);
    cr_assert_eq(duo_ended[1], 1);
    cr_assert_eq(duo_transmit(1), 0);
    duo_run(10 * MS);
    cr_assert(recv->ended && recv->status == UCCL_ECLOSED);
    cr_assert(send->ended && send->status == UCCL_ECLOSED);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    duo_assert_rest();
}

/* Whoever connects says so at once; else a side that only receives would wait for ever. */
Test(gone, an_announcement_is_enough, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 100);
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now);
    duo_events(1);
    duo_run(10 * MS);
    cr_assert(recv->ended && recv->status == UCCL_ECLOSED);
    duo_assert_rest();
}

Test(gone, a_heard_connection_says_goodbye, .init = duo_open)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    duo_run(10 * MS);
    core_conn_close(duo_core[1], duo_conn[1][0], 100 * MS, duo_now);
    duo_run(10 * MS);
    cr_assert(duo_ended[1] == 1 && duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
}

/* Side 1 receives a message and aborts, and its CREDIT and FIN are lost. Side 0 sends one more, which is stale. */
static void abort_and_lose_fin(struct duo_request *sends[2])
{
    struct duo_request *recv = duo_recv(1, 100);
    sends[0] = duo_send(0, 100);
    duo_pass(0);
    duo_assert_ended(recv, UCCL_OK, 100);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now);
    duo_lose(1);
    cr_assert(duo_tick(1, duo_now) && duo_ended[1] == 1);
    sends[1] = duo_send(0, 100);
    duo_pass(0);
    cr_assert_eq(stale(), 1);
}

/* An abort does not wait until its FIN is acked: the send that it has received succeeds even so. */
Test(gone, it_does_not_overtake_a_fin, .init = open_with_part)
{
    struct duo_request *sends[2];
    abort_and_lose_fin(sends);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    duo_pass(1);
    cr_assert(!sends[0]->ended && !sends[1]->ended);
    duo_run(500 * MS);
    duo_assert_ended(sends[0], UCCL_OK, 100);
    duo_assert_ended(sends[1], UCCL_ECLOSED, 0);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    duo_assert_rest();
}

/* Meanwhile other ids are answered, even one that shares its place. Its own is answered once the FIN is acked. */
Test(gone, a_fin_on_its_way_stands_for_its_own_id, .init = open_with_part)
{
    struct duo_request *sends[2];
    static const uint32_t others[] = {UNKNOWN_ID, HOME_ID + GONE_FINS};
    abort_and_lose_fin(sends);
    uint64_t seq = duo_flow[1]->sack.cumulative;
    for (unsigned i = 0; i < 2; i++) {
        begin();
        add(FRAME_FIN, HOME_ID);
        add(FRAME_FIN, others[i]);
        cr_assert(receive(seq + i));
        cr_assert_eq(duo_flow[1]->gone.count, i + 1);
        cr_assert_eq(duo_flow[1]->gone.ids[i], others[i]);
    }
    begin();
    packet_header += wire_put_ack(
        packet + packet_header,
        &(struct wire_ack){.number = 1, .window_kb = 1024, .cumulative = (uint32_t)duo_flow[1]->sent.next_seq});
    add(FRAME_FIN, HOME_ID);
    cr_assert(receive(seq + 2));
    cr_assert_eq(duo_flow[1]->gone.count, 3);
    cr_assert_eq(duo_flow[1]->gone.ids[2], HOME_ID);
}

/* GONE fails parts of messages. An ACK in front of it ends those that have arrived, though earlier acks were lost. */
Test(gone, an_ack_goes_before_it, .init = open_with_part)
{
    begin();
    add(FRAME_FIN, UNKNOWN_ID);
    cr_assert(receive(0));
    duo_flow[1]->ack.pending = duo_flow[1]->ack.now = false; /* an ack has gone alone, as it does without a buffer */
    cr_assert_eq(duo_transmit(1), 1);
    struct wire_packet parsed;
    cr_assert(wire_parse(duo_queue[1][0].bytes, duo_queue[1][0].length, crc32c_portable, &parsed));
    const struct wire_frame *frame = wire_next_frame(&parsed);
    cr_assert(frame && frame->kind == FRAME_ACK && frame->ack.cumulative == 1);
    frame = wire_next_frame(&parsed);
    cr_assert(frame && frame->kind == FRAME_GONE && frame->gone.id == UNKNOWN_ID);
}

/*
 * Side 1 receives messages and aborts, and nothing leaves until the connection is over, as in an outage that began
 * before. The FIN that was to go leaves later, behind the CREDIT: side 0, which writes nothing more, learns what was
 * delivered and that it is over.
 */
static void abort_unheard(struct duo_request *sends[2], struct duo_request **recv)
{
    struct duo_request *recvs[2] = {duo_recv(1, 100), duo_recv(1, 100)};
    *recv = duo_recv(0, 100);
    for (unsigned i = 0; i < 2; i++)
        sends[i] = duo_send(0, 100);
    duo_pass(0);
    duo_assert_ended(recvs[0], UCCL_OK, 100);
    duo_assert_ended(recvs[1], UCCL_OK, 100);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now);
    while (duo_ended[1] == 0)
        cr_assert(duo_tick(1, duo_now + 300 * MS));
}

Test(gone, a_fin_that_could_not_leave_goes_later, .init = open_with_part)
{
    struct duo_request *sends[2], *recv;
    abort_unheard(sends, &recv);
    cr_assert_eq(duo_flow[1]->gone.count, 1);
    cr_assert_eq(duo_transmit(1), 1);
    struct wire_packet parsed;
    cr_assert(wire_parse(duo_queue[1][0].bytes, duo_queue[1][0].length, crc32c_portable, &parsed));
    const struct wire_frame *frame = wire_next_frame(&parsed);
    cr_assert(frame && frame->kind == FRAME_ACK);
    frame = wire_next_frame(&parsed);
    cr_assert(frame && frame->kind == FRAME_CREDIT && frame->credit.delivered == 2);
    frame = wire_next_frame(&parsed);
    cr_assert(frame && frame->kind == FRAME_FIN && frame->fin.sends_over && frame->fin.receives_over);
    cr_assert_null(wire_next_frame(&parsed));
    duo_deliver(1);
    duo_assert_ended(sends[0], UCCL_OK, 100);
    duo_assert_ended(sends[1], UCCL_OK, 100);
    duo_assert_ended(recv, UCCL_ECLOSED, 0);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    duo_run(500 * MS);
    duo_assert_rest();
}

/* It is told once, also where frames for the connection come meanwhile, and is not overtaken by GONE. */
Test(gone, a_fin_that_was_kept_is_told_once, .init = open_with_part)
{
    struct duo_request *sends[2], *recv;
    abort_unheard(sends, &recv);
    struct duo_request *late = duo_send(0, 100);
    duo_pass(0);
    cr_assert_eq(stale(), 1);
    duo_lose(1);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    struct duo_request *later = duo_send(0, 100);
    duo_pass(0);
    cr_assert_eq(stale(), 2);
    cr_assert_eq(duo_flow[1]->gone.count, 0, "its FIN is on its way");
    duo_run(500 * MS);
    duo_assert_ended(sends[0], UCCL_OK, 100);
    duo_assert_ended(sends[1], UCCL_OK, 100);
    duo_assert_ended(late, UCCL_ECLOSED, 0);
    duo_assert_ended(later, UCCL_ECLOSED, 0);
    duo_assert_rest();
}

/* One of several flows is dead, which only side 1 knows: its connection fails, and side 0 hears that it is over and
 * what was delivered. */
Test(gone, a_peer_dead_elsewhere_is_told, .init = open_with_part)
{
    struct duo_request *delivered_recv = duo_recv(1, 100), *delivered = duo_send(0, 100);
    duo_pass(0);
    duo_assert_ended(delivered_recv, UCCL_OK, 100);
    struct duo_request *recv[2] = {duo_recv(0, 50000), duo_recv(1, 50000)};
    struct duo_request *send = duo_send(1, 100);
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_EPEERDEAD, duo_now);
    duo_events(1);
    duo_assert_ended(recv[1], UCCL_EPEERDEAD, 0);
    duo_assert_ended(send, UCCL_EPEERDEAD, 0);
    cr_assert(duo_failed[1] == 1 && duo_failed_status[1] == UCCL_EPEERDEAD);
    duo_run(500 * MS);
    duo_assert_ended(delivered, UCCL_OK, 100);
    duo_assert_ended(recv[0], UCCL_ECLOSED, 0);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_EPEERDEAD, duo_now);
    duo_events(1);
    cr_assert(duo_failed[1] == 1, "once");
    duo_assert_rest();
}

/* So many fail at once that the flow keeps no more FINs: each tells it by itself, also one that is closed before. */
static void one_of_many_is_told(bool closed)
{
    struct duo_request *recv = duo_recv(0, 50000), *own = duo_recv(1, 100);
    duo_run(10 * MS); /* side 0 has no more to say */
    struct duo_request *send = duo_send(1, 100);
    for (uint32_t i = 0; i < GONE_IDS; i++)
        gone_answer(duo_flow[1], 0x10000 + i);
    cr_assert_eq(gone_room(duo_flow[1]), 0);
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_EPEERDEAD, duo_now);
    if (closed)
        core_conn_close(duo_core[1], duo_conn[1][0], 400 * MS, duo_now);
    duo_events(1);
    duo_run(300 * MS);
    duo_assert_ended(recv, UCCL_ECLOSED, 0);
    duo_assert_ended(own, UCCL_EPEERDEAD, 0);
    duo_assert_ended(send, UCCL_EPEERDEAD, 0);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    cr_assert(duo_failed[1] == !closed && duo_called[1] == 0);
    cr_assert_eq(duo_ended[1], closed, "before its time is up");
    duo_assert_rest();
}

Test(gone, each_of_many_is_told, .init = open_with_part)
{
    one_of_many_is_told(false);
}

Test(gone, each_of_many_is_told_though_it_is_closed, .init = open_with_part)
{
    one_of_many_is_told(true);
}

Test(gone, it_is_not_answered, .init = open_with_part)
{
    begin();
    for (unsigned i = 0; i < GONE_PER_PACKET_MAX; i++)
        add(FRAME_GONE, 0);
    cr_assert(receive(0));
    cr_assert_eq(stale(), GONE_PER_PACKET_MAX);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    begin();
    for (unsigned i = 0; i <= GONE_PER_PACKET_MAX; i++)
        add(FRAME_GONE, 0);
    cr_assert(receive(1));
    cr_assert_eq(malformed(), 1, "too many");
}

/* Each frame of the largest packet is answered, in packets that the peer takes; a packet that finds no room comes
 * again. */
Test(gone, many_at_once, .init = open_with_part)
{
    for (unsigned seq = 0; seq < 2; seq++) {
        begin();
        for (unsigned i = 0; i < CORE_FRAMES_MAX; i++)
            packet_header += wire_put_fin(packet + packet_header, &(struct wire_fin){UNKNOWN_ID + i, true, true});
        cr_assert_eq(receive(0), true, "the second time as a duplicate");
    }
    cr_assert_eq(duo_flow[1]->gone.count, CORE_FRAMES_MAX);
    begin();
    add(FRAME_FIN, UNKNOWN_ID);
    cr_assert_not(receive(1));
    duo_transmit(1);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    unsigned told = 0;
    for (unsigned i = 0; i < duo_queued[1]; i++) {
        struct wire_packet parsed;
        const struct wire_frame *frame;
        unsigned here = 0;
        cr_assert(wire_parse(duo_queue[1][i].bytes, duo_queue[1][i].length, crc32c_portable, &parsed));
        while ((frame = wire_next_frame(&parsed))) {
            if (frame->kind != FRAME_GONE)
                continue;
            cr_assert_eq(frame->gone.id, UNKNOWN_ID + told++);
            here++;
        }
        cr_assert_leq(here, GONE_PER_PACKET_MAX);
    }
    cr_assert_eq(told, CORE_FRAMES_MAX);
    cr_assert(receive(1));
}

/* ---- how much one packet may bring ---- */

/*
 * A second of simulated time after packets of one kind each: at most two datagrams come for each of them, and few
 * timers fire, each of which costs a round.
 */
static void assert_few_answers(enum wire_frame_kind kind, bool numbered, unsigned packets)
{
    unsigned datagrams = 0, timers = 0;
    for (unsigned i = 0; i < packets; i++) {
        begin();
        if (kind == FRAME_DEMAND)
            packet_header += wire_put_demand(packet + packet_header, &(struct wire_demand){(i + 1) * 0x7fffff00u});
        else
            add(kind, i % 2 ? HOME_ID : UNKNOWN_ID + i);
        receive(numbered ? i : UINT64_MAX);
        datagrams += duo_transmit(1);
        duo_drop(1);
        for (uint64_t until_ns = duo_now + 50 * MS; duo_tick(1, until_ns); timers++) {
            datagrams += duo_transmit(1);
            duo_drop(1);
            cr_assert_leq(datagrams, 2 * (i + 1) + 2, "kind %d: %u datagrams for %u", (int)kind, datagrams, i + 1);
        }
        duo_now += 10 * MS;
    }
    cr_assert_leq(datagrams, 2 * packets, "kind %d: %u datagrams for %u", (int)kind, datagrams, packets);
    cr_assert_leq(timers, 3 * packets, "kind %d: %u timers for %u", (int)kind, timers, packets);
}

static unsigned all_answers(uint64_t until_ns)
{
    unsigned datagrams = duo_transmit(1);
    for (duo_drop(1); duo_tick(1, until_ns); duo_drop(1))
        datagrams += duo_transmit(1);
    return datagrams;
}

/* Of kinds that need no answer a receiver cannot tell that its own acks of GONE are lost: those are repeated by the
 * clock. */
static void open_for_answers(void)
{
    duo_defaults();
    duo_params.rto_min_us = 400000;
    duo_params.rto_max_us = 1000000;
    duo_params.dead_peer_ms = 60000;
    duo_open_as(false);
}

#define ANSWERS(name, kind, numbered)                                                                                  \
    Test(answers, name, .init = open_for_answers)                                                                      \
    {                                                                                                                  \
        assert_few_answers(kind, numbered, 21);                                                                        \
    }

static void demand_all(unsigned i)
{
    begin();
    packet_header += wire_put_demand(packet + packet_header, &(struct wire_demand){(i + 1) * 0x7fffff00u});
    receive(UINT64_MAX);
}

/* Each is acked at once, and grants come afterwards. */
Test(answers, demands_in_a_row, .init = open_for_answers)
{
    enum { DEMANDS = 100 };
    unsigned datagrams = 0;
    for (unsigned i = 0; i < DEMANDS; i++) {
        demand_all(i);
        datagrams += duo_transmit(1);
        duo_drop(1);
    }
    datagrams += all_answers(duo_now + 1000 * MS);
    cr_assert_leq(datagrams, 2 * DEMANDS);
}

/* Packets that came long ago earn little. */
Test(answers, a_demand_after_a_long_life, .init = open_for_answers)
{
    for (unsigned i = 0; i < 600; i++) {
        begin();
        receive(i);
        duo_lose(1);
    }
    duo_drop(1);
    all_answers(duo_now + 1000 * MS);
    demand_all(0);
    cr_assert_leq(all_answers(duo_now + 1000 * MS), 18);
}

ANSWERS(demand, FRAME_DEMAND, false)
ANSWERS(numbered_demand, FRAME_DEMAND, true)
ANSWERS(grant, FRAME_GRANT, false)
ANSWERS(ack, FRAME_ACK, false)
ANSWERS(probe, FRAME_PROBE, false)
ANSWERS(flow, FRAME_FLOW, false)
ANSWERS(data, FRAME_DATA, true)
ANSWERS(eager, FRAME_EAGER, true)
ANSWERS(cts, FRAME_CTS, true)
ANSWERS(rts, FRAME_RTS, true)
ANSWERS(credit, FRAME_CREDIT, true)
ANSWERS(end, FRAME_ABORT, true)
ANSWERS(fin, FRAME_FIN, true)
ANSWERS(path, FRAME_QP, true)
ANSWERS(gone, FRAME_GONE, true)
