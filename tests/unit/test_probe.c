/* SPDX-License-Identifier: Apache-2.0 */
/* A peer proves its address before it gets more than it sends, and opens firewalls on the way. */
#include "packets.h"

TestSuite(probe, .timeout = 60);

static void open_unproven(void)
{
    duo_defaults();
    duo_setup[0].rails[0].nonce = 1111;
    duo_setup[1].rails[0].nonce = 2222;
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
    cr_assert_eq(duo_flow[0]->rails->probe.nonce, 0);
    cr_assert_eq(duo_flow[1]->rails->probe.nonce, 0);
    duo_run(MS);
    duo_assert_arrived(send, recv, 100);
    duo_assert_rest();
}

/* The peer told a false address: it may say what it likes over ours, what goes to that address are a few small probes.
 */
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
            packet_header +=
                wire_put_cts(packet + packet_header, &(struct wire_cts){.conn = HOME_ID, .length = 1 << 20});
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
    cr_assert_neq(duo_flow[1]->rails->probe.nonce, 0);
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
    duo_assert_arrived(send, recv, 100);
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
    duo_assert_arrived(send, recv, 100);
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
        duo_setup[0].rails[0].nonce = 1111;
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
        duo_assert_arrived(send, recv, 100);
    }
}

static void open_greeter(void)
{
    duo_defaults();
    duo_params.port_entropy = 4;
    duo_setup[0].rails[0].nonce = 1111;
    duo_setup[1].rails[0].nonce = 2222;
    duo_setup[1].rails[0].greets = true;
    duo_open_as(false);
}

/* A firewall in front of a server refuses the client's probes until the server has said something: it does, three
 * times, and no more. */
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
    cr_assert(probe_proven(&duo_flow[0]->rails->probe) && probe_proven(&duo_flow[1]->rails->probe));
    uint64_t packets = duo_count(&duo_counters[0].rx_datagrams);
    duo_run(2000 * MS);
    cr_assert_eq(duo_count(&duo_counters[0].rx_datagrams), packets);
}

/* Both ends are behind firewalls, which know the first pair of ports alone: two rounds are enough. */
Test(probe, firewalls_at_both_ends, .init = open_greeter)
{
    bool left[2] = {false, false};
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    for (uint64_t until_ns = duo_now + 20 * MS;
         !probe_proven(&duo_flow[0]->rails->probe) || !probe_proven(&duo_flow[1]->rails->probe);) {
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
        if (!probe_proven(&duo_flow[0]->rails->probe) || !probe_proven(&duo_flow[1]->rails->probe))
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

/* Its connection fails before the peer has answered. The peer only receives, so no frame of it asks for the FIN. */
Test(probe, a_kept_fin_leaves_with_the_proof, .init = open_unproven)
{
    struct duo_request *recv = duo_recv(0, 100);
    core_conn_fail(duo_core[1], duo_conn[1][0], UCCL_EPEERDEAD, duo_now);
    duo_run(duo_params.dead_peer_ms * MS / 8);
    cr_assert(!recv->ended && duo_count(&duo_counters[0].rx_datagrams) == 0, "nobody has asked anybody");
    core_conn_announce(duo_core[0], duo_conn[0][1], duo_now);
    duo_run(10 * MS);
    duo_assert_ended(recv, UCCL_ECLOSED, 0);
    cr_assert_eq(duo_dead[0], 0);
    duo_assert_rest();
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
