/* SPDX-License-Identifier: Apache-2.0 */
/* What packets may do, whoever wrote them: the table of frames, answers for unknown connections, proof of the peer's address. */
#include "duo.h"

TestSuite(receive, .timeout = 60);
TestSuite(gone, .timeout = 60);
TestSuite(probe, .timeout = 60);
TestSuite(answers, .timeout = 60);

enum { PART_ID = 100, PART_REMOTE = 101, UNKNOWN_ID = 200, HOME_ID = 1 };

static struct conn *part_end; /* at side 1, beside the home ends of duo_conn[1], whose first has HOME_ID */
static unsigned part_ended;

static void open_with_part(void)
{
    duo_open();
    part_end = core_part_conn_open(duo_core[1], duo_zeroed(core_part_conn_size(&duo_params, &duo_setup[1])), duo_flow[1],
                                   &duo_setup[1], PART_ID, PART_REMOTE, 1, 2, &part_ended, duo_now);
}

/* ---- packets of a peer that may lie ---- */

static uint8_t packet[8192];
static unsigned packet_header, packet_payload;
static uint8_t payload_bytes[2048];

static void begin(void)
{
    packet_header = WIRE_HEADER_BYTES;
    packet_payload = 0;
}

/* A frame of each kind, as legal as it can be, for connection `id`. */
static void add(enum wire_frame_kind kind, uint32_t id)
{
    uint8_t *at = packet + packet_header;
    switch (kind) {
    case FRAME_DATA: { /* only wire_bulk_header() writes such */
        memset(at, 0, WIRE_DATA_BYTES);
        at[0] = FRAME_DATA;
        at[2] = 8; /* bytes */
        memcpy(at + 4, &id, 4);
        at[20] = 100; /* total */
        packet_header += WIRE_DATA_BYTES;
        packet_payload += 8;
        break;
    }
    case FRAME_EAGER:
        packet_header += wire_put_eager(at, &(struct wire_eager){.conn = id, .total = 10, .length = 10});
        packet_payload += 10;
        break;
    case FRAME_CTS:
        packet_header += wire_put_cts(at, &(struct wire_cts){.conn = id, .length = 10});
        break;
    case FRAME_RTS:
        packet_header += wire_put_rts(at, &(struct wire_rts){.conn = id, .total = 10});
        break;
    case FRAME_CREDIT:
        packet_header += wire_put_credit(at, &(struct wire_credit){.conn = id});
        break;
    case FRAME_ABORT:
        packet_header += wire_put_abort(at, &(struct wire_abort){.conn = id, .status = UCCL_ECANCELED, .of_send = true});
        break;
    case FRAME_FIN:
        packet_header += wire_put_fin(at, &(struct wire_fin){.conn = id});
        break;
    case FRAME_FLOW:
        packet_header += wire_put_flow(at, &(struct wire_flow){FLOW_CLOSED});
        break;
    case FRAME_ACK:
        packet_header += wire_put_ack(at, &(struct wire_ack){.window_kb = 1024});
        break;
    case FRAME_DEMAND:
        packet_header += wire_put_demand(at, &(struct wire_demand){.target = INT32_MAX});
        break;
    case FRAME_GRANT:
        packet_header += wire_put_grant(at, &(struct wire_grant){.granted = 1});
        break;
    case FRAME_QP:
        packet_header += wire_put_qp(at, &(struct wire_qp){.what = QP_OFFER, .generation = 1});
        break;
    case FRAME_GONE:
        packet_header += wire_put_gone(at, &(struct wire_gone){.id = UNKNOWN_ID});
        break;
    case FRAME_PROBE:
        packet_header += wire_put_probe(at, &(struct wire_probe){.nonce = 77});
        break;
    case FRAME_FRAGMENT: /* the first of two */
        packet_header += wire_put_fragment(at, &(struct wire_fragment){.length = 128, .total = 200});
        packet_payload += 128;
        break;
    default:
        cr_assert_fail("frame kind %d", (int)kind);
    }
}

/* Side 1 receives the packet; `seq` UINT64_MAX: it has no sequence number. */
static bool receive(uint64_t seq)
{
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .path_seq = (uint32_t)seq + 1,
                           .seq = seq,
                           .sequenced = seq != UINT64_MAX,
                           .token = duo_setup[1].rx_token,
                           .time_stamp = wire_time(duo_now)};
    memcpy(packet + packet_header, payload_bytes, packet_payload);
    wire_set_header_length(packet, (uint16_t)packet_header);
    wire_seal(&desc, 0, packet, packet_header + packet_payload, crc32c_portable);
    bool good = core_rx(duo_core[1], packet, packet_header + packet_payload, false, duo_now);
    duo_copies(1);
    duo_releases(1);
    duo_events(1);
    return good;
}

static uint64_t malformed(void)
{
    return duo_count(&duo_counters[1].rx_malformed);
}

static uint64_t stale(void)
{
    return duo_count(&duo_counters[1].rx_stale_frames);
}

/* ---- the table ---- */

static bool is_of_conn(enum wire_frame_kind kind)
{
    return kind <= FRAME_FIN;
}

/* Each kind, for each end that it may name, with and without a sequence number: what may not be does nothing and is acked. */
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

/* A frame that contradicts the others is skipped: were the packet dropped, those would act again when it comes again. */
Test(receive, a_contradiction_does_not_repeat_the_rest, .init = open_with_part)
{
    struct duo_request *recv = duo_recv(1, 20);
    begin();
    packet_header += wire_put_eager(packet + packet_header,
                                    &(struct wire_eager){.conn = HOME_ID, .total = 20, .length = 10});
    packet_payload = 10;
    add(FRAME_DATA, HOME_ID); /* of a message that is eager */
    cr_assert(receive(0));
    cr_assert_eq(malformed(), 1);
    cr_assert(receive(0), "the peer's copy of it");
    cr_assert_eq(duo_count(&duo_counters[1].rx_duplicates), 1);
    cr_assert_not(recv->ended, "ten bytes of twenty");
    begin();
    packet_header += wire_put_eager(
        packet + packet_header, &(struct wire_eager){.conn = HOME_ID, .total = 20, .offset = 10, .length = 10});
    packet_payload = 10;
    cr_assert(receive(1));
    cr_assert(recv->ended && recv->moved == 20);
}

/* DATA that says that its message is larger than the buffer, which was granted as it is: nothing is written anywhere. */
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
 * A farewell ends the flow, and what stands behind it in the packet comes too late. A demand that acted put the dead flow
 * on the list of those that are granted credit, where it stayed after its memory was gone.
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

/* A clear-to-send beyond the window is early: the CREDIT that makes it legal was in a packet that is late, or is in its own. */
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
    packet_header += wire_put_eager(
        packet + packet_header, &(struct wire_eager){.conn = PART_ID, .total = 10, .length = 10, .granted = true});
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
    duo_transmit(0);
    duo_deliver(0);
    duo_assert_ended(recv, UCCL_OK, 100);
    core_conn_close(duo_core[1], duo_conn[1][0], 0, duo_now);
    duo_transmit(1);
    duo_drop(1);
    cr_assert(duo_tick(1, duo_now) && duo_ended[1] == 1);
    sends[1] = duo_send(0, 100);
    duo_transmit(0);
    duo_deliver(0);
    cr_assert_eq(stale(), 1);
}

/* An abort does not wait until its FIN is acked: the send that it has received succeeds even so. */
Test(gone, it_does_not_overtake_a_fin, .init = open_with_part)
{
    struct duo_request *sends[2];
    abort_and_lose_fin(sends);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    duo_transmit(1);
    duo_deliver(1);
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
    packet_header += wire_put_ack(packet + packet_header,
                                  &(struct wire_ack){.number = 1,
                                                     .window_kb = 1024,
                                                     .cumulative = (uint32_t)duo_flow[1]->sent.next_seq});
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
 * Side 1 receives messages and aborts, and nothing leaves until the connection is over, as in an outage that began before. The
 * FIN that was to go leaves later, behind the CREDIT: side 0, which writes nothing more, learns what was delivered and that it is over.
 */
static void abort_unheard(struct duo_request *sends[2], struct duo_request **recv)
{
    struct duo_request *recvs[2] = {duo_recv(1, 100), duo_recv(1, 100)};
    *recv = duo_recv(0, 100);
    for (unsigned i = 0; i < 2; i++)
        sends[i] = duo_send(0, 100);
    duo_transmit(0);
    duo_deliver(0);
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
    duo_transmit(0);
    duo_deliver(0);
    cr_assert_eq(stale(), 1);
    duo_transmit(1);
    duo_drop(1);
    cr_assert_eq(duo_flow[1]->gone.count, 0);
    struct duo_request *later = duo_send(0, 100);
    duo_transmit(0);
    duo_deliver(0);
    cr_assert_eq(stale(), 2);
    cr_assert_eq(duo_flow[1]->gone.count, 0, "its FIN is on its way");
    duo_run(500 * MS);
    duo_assert_ended(sends[0], UCCL_OK, 100);
    duo_assert_ended(sends[1], UCCL_OK, 100);
    duo_assert_ended(late, UCCL_ECLOSED, 0);
    duo_assert_ended(later, UCCL_ECLOSED, 0);
    duo_assert_rest();
}

/* One of several flows is dead, which only side 1 knows: its connection fails, and side 0 hears that it is over and what was delivered. */
Test(gone, a_peer_dead_elsewhere_is_told, .init = open_with_part)
{
    struct duo_request *delivered_recv = duo_recv(1, 100), *delivered = duo_send(0, 100);
    duo_transmit(0);
    duo_deliver(0);
    duo_assert_ended(delivered_recv, UCCL_OK, 100);
    struct duo_request *recv[2] = {duo_recv(0, 50000), duo_recv(1, 50000)};
    struct duo_request *send = duo_send(1, 100);
    core_conn_peer_dead(duo_core[1], duo_conn[1][0], duo_now);
    duo_events(1);
    duo_assert_ended(recv[1], UCCL_EPEERDEAD, 0);
    duo_assert_ended(send, UCCL_EPEERDEAD, 0);
    cr_assert(duo_failed[1] == 1 && duo_failed_status[1] == UCCL_EPEERDEAD);
    duo_run(500 * MS);
    duo_assert_ended(delivered, UCCL_OK, 100);
    duo_assert_ended(recv[0], UCCL_ECLOSED, 0);
    cr_assert(duo_failed[0] == 1 && duo_failed_status[0] == UCCL_ECLOSED);
    core_conn_peer_dead(duo_core[1], duo_conn[1][0], duo_now);
    duo_events(1);
    cr_assert(duo_failed[1] == 1, "once");
    duo_assert_rest();
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

/* Each frame of the largest packet is answered, in packets that the peer takes; a packet that finds no room comes again. */
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

/* ---- return routability ---- */

static void open_unproven(void)
{
    duo_defaults();
    duo_setup[0].nonce = 1111;
    duo_setup[1].nonce = 2222;
    duo_open_as(false);
}

/* The probes and echoes that wait at `side`; there is nothing else. */
static unsigned only_probes(unsigned side)
{
    unsigned probes = 0;
    for (unsigned i = 0; i < duo_queued[side]; i++) {
        struct wire_packet parsed;
        const struct wire_frame *frame;
        cr_assert(wire_parse(duo_queue[side][i].bytes, duo_queue[side][i].length, crc32c_portable, &parsed));
        cr_assert_not(parsed.flags & WIRE_SEQUENCED);
        cr_assert_leq(duo_queue[side][i].length, WIRE_HEADER_BYTES + 2 * WIRE_PROBE_BYTES);
        while ((frame = wire_next_frame(&parsed))) {
            cr_assert_eq(frame->kind, FRAME_PROBE);
            probes++;
        }
    }
    return probes;
}

Test(probe, first_of_all_the_address_is_proven, .init = open_unproven)
{
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    cr_assert_eq(duo_transmit(0), 1);
    cr_assert_eq(only_probes(0), 1);
    cr_assert_eq(duo_transmit(1), 0, "nothing to say: a small receive tells nothing");
    duo_deliver(0);
    cr_assert_eq(duo_transmit(1), 1);
    cr_assert_eq(only_probes(1), 2, "an echo, and a probe of its own");
    duo_deliver(1);
    duo_talk();
    cr_assert_eq(duo_flow[0]->probe.nonce, 0);
    cr_assert_eq(duo_flow[1]->probe.nonce, 0);
    duo_run(MS);
    duo_assert_ended(recv, UCCL_OK, 100);
    duo_assert_ended(send, UCCL_OK, 100);
    duo_assert_rest();
}

/* The peer told a false address: it may say what it likes over ours, what goes to that address are a few small probes. */
Test(probe, a_false_address_gets_next_to_nothing, .init = open_unproven)
{
    enum { PACKETS = 1000 };
    struct duo_request *send = duo_send(1, 1 << 20);
    duo_recv(1, 100);
    unsigned datagrams = 0;
    for (unsigned seq = 0; seq < PACKETS; seq++) {
        begin();
        switch (seq % 4) {
        case 0:
            packet_header += wire_put_cts(packet + packet_header, &(struct wire_cts){.conn = HOME_ID, .length = 1 << 20});
            break;
        case 1:
            add(FRAME_GONE, HOME_ID);
            break;
        case 2:
            packet_header += wire_put_probe(packet + packet_header, &(struct wire_probe){.echo = true, .nonce = seq});
            break;
        case 3:
            add(FRAME_PROBE, HOME_ID);
            break;
        }
        cr_assert(receive(seq % 4 < 2 ? seq / 4 * 2 + seq % 4 : UINT64_MAX));
        datagrams += duo_transmit(1);
        only_probes(1);
        duo_drop(1);
        duo_now += 100 * US;
        duo_tick(1, duo_now);
    }
    cr_assert_not(send->ended);
    cr_assert_neq(duo_flow[1]->probe.nonce, 0);
    cr_assert_leq(datagrams, PACKETS / 4 + 10, "%u datagrams", datagrams);
}

/* What the NIC does not take goes as soon as it takes something again, the echo as well as our own probe. */
Test(probe, refused_ones_are_not_forgotten, .init = open_unproven)
{
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    cr_assert_eq(duo_transmit(0), 1);
    duo_deliver(0);
    duo_refuse = true;
    cr_assert_eq(duo_transmit(1), 0);
    duo_refuse = false;
    cr_assert_eq(duo_transmit(1), 1, "no timer had to expire");
    cr_assert_eq(only_probes(1), 2);
    duo_deliver(1);
    duo_run(MS);
    duo_assert_ended(recv, UCCL_OK, 100);
    duo_assert_ended(send, UCCL_OK, 100);
}

Test(probe, lost_ones_are_repeated, .init = open_unproven)
{
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    unsigned probes = 0;
    for (uint64_t until_ns = duo_now + 500 * MS; duo_tick(0, until_ns);) {
        probes += duo_transmit(0);
        only_probes(0);
        duo_drop(0);
    }
    cr_assert(probes >= 4 && probes <= 10, "%u probes in half a second", probes);
    duo_run(500 * MS);
    duo_assert_ended(recv, UCCL_OK, 100);
    duo_assert_ended(send, UCCL_OK, 100);
}

/* The one datagram at `side` is lost; the path that it took. */
static unsigned lose_probe(unsigned side)
{
    struct wire_packet parsed;
    cr_assert_eq(duo_queued[side], 1);
    cr_assert(wire_parse(duo_queue[side][0].bytes, duo_queue[side][0].length, crc32c_portable, &parsed));
    only_probes(side);
    duo_drop(side);
    return parsed.path;
}

/* A path may swallow everything: a probe that is repeated goes another way than the last, and so does its echo. */
Test(probe, repeats_go_another_way)
{
    for (unsigned policy = PATH_RECYCLE; policy <= PATH_RR; policy++) {
        duo_defaults();
        duo_params.port_entropy = 2;
        duo_params.path_policy = policy;
        duo_params.dead_peer_ms = 100000;
        duo_setup[0].nonce = 1111;
        duo_open_as(false);
        struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
        unsigned asked = 2, echoed = 2;
        for (unsigned i = 0; i < 10; i++) {
            while (duo_transmit(0) == 0)
                cr_assert(duo_tick(0, UINT64_MAX - 1));
            duo_deliver_one(0, 0);
            unsigned path = lose_probe(0);
            cr_assert_neq(path, asked, "policy %u, probe %u", policy, i);
            asked = path;
            cr_assert_eq(duo_transmit(1), 1);
            path = lose_probe(1);
            cr_assert_neq(path, echoed, "policy %u, echo %u", policy, i);
            echoed = path;
        }
        duo_run(2000 * MS);
        duo_assert_ended(recv, UCCL_OK, 100);
        duo_assert_ended(send, UCCL_OK, 100);
    }
}

static void open_greeter(void)
{
    duo_defaults();
    duo_params.port_entropy = 4;
    duo_setup[0].nonce = 1111;
    duo_setup[1].nonce = 2222;
    duo_setup[1].greets = true;
    duo_open_as(false);
}

/* A firewall in front of a server refuses the client's probes until the server has said something: it does, three times, and no more. */
Test(probe, a_server_greets_who_does_not_ask, .init = open_greeter)
{
    unsigned first_path = 0, greetings = 0;
    cr_assert_eq(duo_transmit(1), 0, "not at once: most clients ask by themselves");
    for (uint64_t until_ns = duo_now + 5000 * MS; duo_tick(1, until_ns);) {
        if (duo_transmit(1) == 0)
            continue;
        cr_assert_eq(only_probes(1), 1);
        greetings++;
        first_path += lose_probe(1) == 0;
    }
    cr_assert_eq(greetings, 3);
    cr_assert_eq(first_path, 2, "the ports that the handshake told, every other time");
    cr_assert_eq(core_deadline(duo_core[1]), UINT64_MAX);
}

Test(probe, who_is_asked_does_not_greet, .init = open_greeter)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    duo_run(MS);
    cr_assert(probe_proven(&duo_flow[0]->probe) && probe_proven(&duo_flow[1]->probe));
    uint64_t packets = duo_count(&duo_counters[0].rx_datagrams);
    duo_run(2000 * MS);
    cr_assert_eq(duo_count(&duo_counters[0].rx_datagrams), packets);
}

/* Both ends are behind firewalls, which know the first pair of ports alone: two rounds are enough. */
Test(probe, firewalls_at_both_ends, .init = open_greeter)
{
    bool left[2] = {false, false};
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    for (uint64_t until_ns = duo_now + 20 * MS; !probe_proven(&duo_flow[0]->probe) || !probe_proven(&duo_flow[1]->probe);) {
        for (unsigned side = 0; side < 2; side++) {
            duo_transmit(side);
            for (unsigned i = 0; i < duo_queued[side]; i++) {
                struct wire_packet parsed;
                cr_assert(wire_parse(duo_queue[side][i].bytes, duo_queue[side][i].length, crc32c_portable, &parsed));
                left[side] |= parsed.path == 0;
                if (parsed.path == 0 && left[!side])
                    duo_deliver_one(side, i);
            }
            duo_drop(side);
        }
        unsigned side = core_deadline(duo_core[1]) < core_deadline(duo_core[0]);
        if (!probe_proven(&duo_flow[0]->probe) || !probe_proven(&duo_flow[1]->probe))
            cr_assert(duo_tick(side, until_ns), "not within 20 ms");
    }
}

Test(probe, an_idle_flow_asks_nothing, .init = open_unproven)
{
    duo_run(2000 * MS);
    cr_assert_eq(duo_count(&duo_counters[1].rx_datagrams), 0);
    struct duo_request *send = duo_send(0, 100);
    duo_run_deaf(0, 1010 * MS);
    duo_assert_ended(send, UCCL_EPEERDEAD, 0);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
}

/* Something to say, and an address that never answers: the close ends, and so does the flow, which asks no more. */
Test(probe, an_address_that_never_answers, .init = open_unproven)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    duo_run_deaf(0, 10 * MS);
    core_conn_close(duo_core[0], duo_conn[0][0], 50 * MS, duo_now);
    duo_run_deaf(0, 300 * MS);
    cr_assert_eq(duo_ended[0], 1);
    core_conn_announce(duo_core[0], duo_conn[0][1], duo_now);
    while (duo_dead[0] == 0) {
        duo_transmit(0);
        only_probes(0);
        duo_drop(0);
        cr_assert(duo_tick(0, duo_now + 1010 * MS));
    }
    duo_transmit(0);
    cr_assert_eq(only_probes(0), 0, "no farewell either");
    cr_assert(duo_failed[0] == DUO_CONNS - 1 && duo_failed_status[0] == UCCL_EPEERDEAD);
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
}

/* ---- how much one packet may bring ---- */

/*
 * A second of simulated time after packets of one kind each: at most two datagrams come for each of them, and few timers
 * fire, each of which costs a round.
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

/* Of kinds that need no answer a receiver cannot tell that its own acks of GONE are lost: those are repeated by the clock. */
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
        duo_transmit(1);
        duo_drop(1);
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
