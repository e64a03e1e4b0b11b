/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the NIC refuses: whatever they carry is due again, at once, and nothing counts as sent or lost. */
#include "duo.h"

TestSuite(refused, .timeout = 20);

enum { PORTS = 4, JUMBO = 8972 };

static struct tx_desc desc;

/* What the next descriptor of side 0 carries, as frames of its first datagram; the descriptor is left in `desc`. */
static struct wire_frame carried[8];
static unsigned carried_count;

static bool next_desc(void)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    carried_count = 0;
    if (!core_tx(duo_core[0], &desc, duo_now))
        return false;
    cr_assert_eq(desc.kind, TX_FRAMES);
    cr_assert_eq(desc.piece_count, 0, "tests of payload are elsewhere");
    uint32_t length = desc.count == 1 ? desc.last_bytes : desc.datagram_bytes;
    wire_seal(&desc, 0, desc.buffer, length, crc32c_portable);
    cr_assert(wire_parse(desc.buffer, length, crc32c_portable, &packet));
    while ((frame = wire_next_frame(&packet)))
        carried[carried_count++] = *frame;
    return true;
}

static const struct wire_frame *carried_frame(enum wire_frame_kind kind)
{
    for (unsigned i = 0; i < carried_count; i++)
        if (carried[i].kind == kind)
            return &carried[i];
    return NULL;
}

static void refuse(void)
{
    core_tx_failed(duo_core[0], &desc, duo_now);
}

/* The flow dies; its farewell is refused three times, and leaves once. */
Test(refused, farewell, .init = duo_open)
{
    duo_recv(0, 10);
    while (duo_dead[0] == 0) {
        duo_lose(0);
        if (duo_tick(0, duo_now + 2000 * MS) && duo_flow[0]->dead)
            break;
    }
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(next_desc(), "refusal %u", i);
        cr_assert(carried_frame(FRAME_FLOW));
        if (i < 3)
            refuse();
    }
    cr_assert_not(next_desc());
}

static void open_ports(void)
{
    duo_defaults();
    duo_params.port_entropy = PORTS;
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].peer_ports = PORTS;
    duo_open_as(false);
}

/* Each port of a round leaves once, in order, and the next round comes when it would have. */
Test(refused, opening, .init = open_ports)
{
    uint64_t begun_ns = duo_now;
    for (unsigned port = 1; port < PORTS; port++) {
        for (unsigned i = 0; i < 3; i++) {
            cr_assert(next_desc());
            cr_assert(desc.opens);
            cr_assert_eq(desc.path, port, "%u instead of %u", desc.path, port);
            if (i < 2)
                refuse();
        }
    }
    cr_assert_not(next_desc(), "no ack was owed");
    cr_assert_eq(duo_flow[0]->rails->reach.rounds, 1);
    cr_assert_eq(duo_flow[0]->rails->reach.open_at_ns, begun_ns + 250 * MS);
}

/* A closed path is tried again, the same one, and no wait is lengthened. */
Test(refused, trying, .init = open_ports)
{
    struct flow *flow = duo_flow[0];
    duo_run(MS);
    for (unsigned path = 1; path < 3; path++) {
        for (unsigned i = 0; i < 9; i++) {
            path_report(&flow->rails->paths, 0, PATH_GOOD, 0);
            path_report(&flow->rails->paths, (uint16_t)path, PATH_LOST, 0);
        }
    }
    cr_assert_eq(flow->rails->paths.closed, 2);
    for (unsigned path = 1; path < 3; path++) {
        flow->rails->probe.due |= PROBE_TRY;
        flow_wake(flow);
        uint8_t backoff = flow->rails->reach.backoff;
        uint64_t nonce = 0;
        for (unsigned i = 0; i < 4; i++) {
            cr_assert(next_desc());
            cr_assert_eq(desc.path, path, "%u instead of %u", desc.path, path);
            cr_assert(carried_frame(FRAME_PROBE));
            nonce = carried_frame(FRAME_PROBE)->probe.nonce;
            cr_assert_neq(nonce, 0);
            if (i < 3)
                refuse();
        }
        cr_assert_eq(flow->rails->reach.backoff, backoff + 1);
        cr_assert_eq(flow->rails->reach.nonce, nonce);
    }
    cr_assert_not(next_desc());
}

/* No size fails for want of room in the NIC: the padded probe leaves at last, under the same nonce. */
Test(refused, padded_probe)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].datagram_bytes = JUMBO;
        duo_setup[side].rails[0].base_bytes = CORE_DATAGRAM_BASE;
    }
    duo_open_as(false);
    for (unsigned i = 0; i < 100; i++) {
        cr_assert(next_desc());
        cr_assert(desc.whole);
        cr_assert_eq(desc.last_bytes, JUMBO);
        cr_assert_eq(carried_frame(FRAME_PROBE)->probe.nonce, duo_flow[0]->rails->mtu.nonce);
        refuse();
        flow_update_timer(duo_flow[0]);
        duo_now += 2000 * MS; /* longer than any timeout */
        core_expire(duo_core[0], duo_now);
    }
    cr_assert(duo_flow[0]->rails->mtu.tries == 0 && duo_flow[0]->rails->mtu.silent == 0);
    duo_run(MS);
    cr_assert_eq(duo_flow[0]->rails->datagram_bytes, JUMBO);
    cr_assert_eq(duo_dead[0], 0);
}

/* A probe that could not leave does not lengthen the wait for the next one. */
Test(refused, ask)
{
    duo_defaults();
    duo_setup[0].rails[0].nonce = 1234;
    duo_open_as(false);
    duo_send(0, 100);
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(next_desc());
        cr_assert_eq(carried_frame(FRAME_PROBE)->probe.nonce, 1234);
        if (i < 19)
            refuse();
    }
    cr_assert_eq(duo_flow[0]->rails->probe.ask_at_ns, duo_now + 4 * MS);
    cr_assert_not(next_desc());
}

/* A packet of side 1 has come over this path. */
static void hear(uint16_t path, uint32_t path_seq, bool ce)
{
    sack_note_path(&duo_flow[0]->sack, &(struct wire_packet){.path = path, .path_seq = path_seq, .time_stamp = 77}, ce,
                   duo_now);
    ack_owe(duo_flow[0], 0, true);
}

static void assert_names(uint32_t on_3)
{
    const struct wire_frame *frame = carried_frame(FRAME_ACK);
    cr_assert(frame);
    const struct wire_ack *ack = &frame->ack;
    cr_assert_eq(ack->path_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct wire_ack_path *path = &ack->paths[i];
        cr_assert(path->path == 3 || path->path == 5);
        cr_assert_eq(path->path_seq, path->path == 3 ? on_3 : 20);
        cr_assert_eq(path->ce, path->path == 5);
        cr_assert_eq(path->time_stamp, 77);
    }
}

/* A refused ack is due at once, with all that it said of paths and marks, and is counted once. */
Test(refused, ack, .init = duo_open)
{
    hear(3, 10, false);
    hear(5, 20, true);
    duo_flow[0]->ack.path = 9;
    duo_flow[0]->ack.repeats = true;
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(next_desc());
        assert_names(10);
        refuse();
        cr_assert_eq(duo_flow[0]->ack.path, 9, "which may swallow acks");
        cr_assert(duo_flow[0]->ack.repeats);
    }
    hear(3, 11, false);
    cr_assert(next_desc());
    assert_names(11);
    cr_assert_not(next_desc());
    cr_assert_eq(duo_count(&duo_counters[0].tx_acks), 1);
}

/* An ack in a refused train does not wait for the train, which may have to wait for the window. */
Test(refused, ack_in_a_train, .init = duo_open)
{
    duo_recv(0, 100 << 10);
    hear(3, 10, false);
    hear(5, 20, true);
    cr_assert(next_desc());
    cr_assert(desc.sequenced && carried_frame(FRAME_CTS));
    assert_names(10);
    refuse();
    cr_assert(next_desc());
    cr_assert_not(desc.sequenced);
    assert_names(10);
    cr_assert(next_desc());
    cr_assert(desc.sequenced && carried_frame(FRAME_CTS));
    cr_assert_not(next_desc());
}

/* So is the demand beside it: the sender does not wait until its patience is over. */
Test(refused, demand)
{
    duo_defaults();
    duo_params.cc = CC_EQDS;
    duo_open_as(false);
    duo_flow[0]->credit_tx.advertised_bytes = 5000;
    duo_flow[0]->credit_tx.due = true;
    ack_owe(duo_flow[0], 0, true);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(next_desc());
        cr_assert(carried_frame(FRAME_DEMAND));
        cr_assert_eq(carried_frame(FRAME_DEMAND)->demand.target, 5000);
        if (i < 2)
            refuse();
    }
    cr_assert_not(next_desc());
}

/* A tail-loss probe waits for no window, and still does not after the NIC has refused it. */
Test(refused, tail_probe, .init = duo_open)
{
    struct flow *flow = duo_flow[0];
    for (unsigned i = 0; i < 3; i++) {
        struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
        duo_run(MS);
        duo_assert_arrived(send, recv, 100);
    }
    for (unsigned i = 0; i < 8; i++) {
        duo_send(0, 4000);
        cr_assert_geq(duo_transmit(0), 1);
        duo_drop(0);
    }
    flow->rails->cc.cwnd_bytes = 1;
    while (!flow->rails->loss.tail_probe_due)
        cr_assert(duo_tick(0, duo_now + 100 * MS));
    cr_assert(next_desc() && carried_frame(FRAME_PROBE)); /* to the silent peer */
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        cr_assert(desc.sequenced && desc.retransmission);
        if (i < 2)
            refuse();
        cr_assert_eq(flow->rails->loss.tail_probe_due, i < 2);
    }
    cr_assert_not(core_tx(duo_core[0], &desc, duo_now));
}

/* What had become too large leaves in fragments, each of which is refused twice: none is left out. */
Test(refused, fragments)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].datagram_bytes = JUMBO;
    duo_open_as(false);
    struct duo_request *recv = duo_recv(1, 6000);
    duo_send(0, 6000); /* eager */
    cr_assert_eq(duo_transmit(0), 1);
    duo_drop(0);
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, 1400);
    sent_lose(&duo_flow[0]->sent, sent_chunk(&duo_flow[0]->sent, 0));
    flow_wake(duo_flow[0]);
    unsigned fragments = 0, refusals = 0;
    while (core_tx(duo_core[0], &desc, duo_now)) {
        if (desc.fragment && refusals++ % 3 < 2) {
            refuse();
            continue;
        }
        fragments += desc.fragment;
        duo_build(0, &desc);
    }
    cr_assert(fragments >= 5 && refusals == 3 * fragments, "%u, %u", fragments, refusals);
    duo_deliver(0);
    duo_assert_ended(recv, UCCL_OK, 6000);
    cr_assert_eq(duo_count(&duo_counters[0].tx_images), 1);
}

/* A chunk that has never left, and has become too large: while its first fragment is refused, it counts for nothing. */
Test(refused, first_fragment)
{
    duo_defaults();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].datagram_bytes = JUMBO;
    duo_open_as(false);
    duo_recv(1, 6000);
    duo_send(0, 6000); /* eager */
    cr_assert(core_tx(duo_core[0], &desc, duo_now));
    refuse();
    core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, 1400);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert(core_tx(duo_core[0], &desc, duo_now));
        cr_assert(desc.fragment);
        cr_assert_eq(duo_count(&duo_counters[0].tx_chunks), 1);
        refuse();
        cr_assert_eq(duo_count(&duo_counters[0].tx_chunks), 0);
        cr_assert_eq(sent_chunk(&duo_flow[0]->sent, 0)->transmissions, 0);
    }
    duo_run(MS);
    cr_assert_eq(duo_count(&duo_counters[0].tx_chunks), 1);
    cr_assert_eq(duo_count(&duo_counters[0].retransmits), 0);
    cr_assert_eq(duo_count(&duo_counters[1].msgs_received), 1);
}

/* A chunk that went as a write alone: its datagrams are cut to the route when one of them leaves, not before. */
Test(refused, datagrams_of_a_write, .init = duo_open)
{
    duo_recv(1, 100 << 10);
    duo_send(0, 100 << 10);
    duo_pass(1);
    duo_lose(0);
    struct sent *sent = &duo_flow[0]->sent;
    struct chunk *chunk = sent_chunk(sent, sent->cumulative);
    cr_assert_eq(chunk->kind, CHUNK_BULK);
    chunk->payload_bytes = 5000;
    chunk->written = true;
    sent_lose(sent, chunk);
    flow_wake(duo_flow[0]);
    static const uint32_t routes[] = {1400, 1300, 1200};
    for (unsigned i = 0; i < 3; i++) {
        core_set_datagram(duo_core[0], duo_setup[0].rails[0].destination, routes[i]);
        do
            cr_assert(core_tx(duo_core[0], &desc, duo_now));
        while (!desc.sequenced);
        cr_assert(desc.kind == TX_BULK && desc.retransmission);
        cr_assert_eq(desc.datagram_bytes, routes[i]);
        if (i < 2)
            refuse();
    }
}
