/* SPDX-License-Identifier: Apache-2.0 */
/* Paths through firewalls: the peer's ports are opened, and closed paths are asked now and then. */
#include "duo.h"

TestSuite(reach, .timeout = 60);

enum { PORTS = 4 };

static unsigned opened[2][PATHS_MAX]; /* ports, by who opened them */
static unsigned tried[PATHS_MAX];     /* paths of side 0, by a probe with a nonce */
static uint32_t dead_paths;           /* of side 0: they swallow everything */
static bool tries_are_lost;
static uint64_t swallowed; /* sequenced datagrams that they did */

static void open_ports(void)
{
    duo_defaults();
    duo_params.port_entropy = PORTS;
    duo_params.path_policy = PATH_POW2;
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].peer_ports = PORTS;
        duo_setup[side].rails[0].nonce = 1111 * (side + 1);
    }
    duo_open_as(false);
    memset(opened, 0, sizeof opened);
    memset(tried, 0, sizeof tried);
    dead_paths = 0;
    tries_are_lost = false;
    swallowed = 0;
}

static bool is_try(const struct tx_desc *desc)
{
    uint8_t *datagram = desc->buffer;
    struct wire_packet parsed;
    wire_seal(desc, 0, datagram, desc->last_bytes, crc32c_portable);
    cr_assert(wire_parse(datagram, desc->last_bytes, crc32c_portable, &parsed));
    const struct wire_frame *frame = wire_next_frame(&parsed);
    return frame && frame->kind == FRAME_PROBE && !frame->probe.echo && frame->probe.nonce;
}

static unsigned say(unsigned side)
{
    struct tx_desc desc;
    unsigned said = 0;
    for (; core_tx(duo_core[side], &desc, duo_now); said++) {
        bool proven = probe_proven(&duo_flow[side]->rails->probe);
        if (!desc.sequenced && desc.opens) {
            cr_assert(proven, "nothing goes to an address that has not answered");
            cr_assert_leq(desc.last_bytes, WIRE_HEADER_BYTES + WIRE_PROBE_BYTES);
            opened[side][desc.path]++;
            continue;
        }
        bool tries = side == 0 && !desc.sequenced && proven && is_try(&desc);
        tried[desc.path] += tries;
        if (tries && tries_are_lost)
            continue;
        unsigned before = duo_queued[side];
        duo_build(side, &desc);
        if (side == 1 || !(dead_paths >> desc.path & 1))
            continue;
        swallowed += desc.sequenced;
        while (duo_queued[side] > before)
            free(duo_queue[side][--duo_queued[side]].bytes);
    }
    duo_events(side);
    return said;
}

static void talk(void)
{
    while (say(0) + say(1)) {
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
}

/* So many messages of 100 bytes, one after the other, with such a pause after each. */
static void messages(unsigned count, uint64_t pause_ns)
{
    while (count-- > 0) {
        struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
        duo_run_with(pause_ns, talk);
        duo_assert_arrived(send, recv, 100);
    }
}

static void assert_opened(unsigned side, unsigned first, unsigned second, unsigned third)
{
    cr_assert_eq(opened[side][0], 0, "the handshake told that one");
    cr_assert(opened[side][1] == first && opened[side][2] == second && opened[side][3] == third, "side %u: %u, %u, %u",
              side, opened[side][1], opened[side][2], opened[side][3]);
    cr_assert_eq(opened[side][PORTS], 0);
}

Test(reach, each_side_opens_the_ports_of_the_other_once, .init = open_ports)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    duo_run_with(100 * MS, talk);
    assert_opened(0, 1, 1, 1);
    assert_opened(1, 1, 1, 1);
}

Test(reach, nobody_is_opened_for_who_is_not_proven, .init = open_ports)
{
    core_conn_announce(duo_core[0], duo_conn[0][0], duo_now);
    for (uint64_t until_ns = duo_now + 900 * MS; duo_tick(0, until_ns);)
        say(0);
    assert_opened(0, 0, 0, 0);
}

/* What the peer's paths have carried lately is open: side 1 opens no port by which messages come. Side 0 hears only one
 * path. */
Test(reach, what_is_used_is_not_opened_again, .init = open_ports)
{
    messages(32, 5 * MS);
    assert_opened(1, 1, 1, 1);
    messages(1000, 100 * MS);
    assert_opened(1, 1, 1, 1);
}

/* A path that is not used is opened again, early and then every 15 seconds, as long as the peer says something. */
Test(reach, what_is_not_used_is_opened_again, .init = open_ports)
{
    dead_paths = 1u << 2;
    messages(24, 10 * MS);
    cr_assert_eq(opened[1][2], 1);
    messages(54, 100 * MS); /* after 250, 1000 and 4000 ms */
    cr_assert_eq(opened[1][2], 4);
    messages(300, 100 * MS);
    cr_assert_eq(opened[1][2], 6, "%u", opened[1][2]);
    duo_run_with(20000 * MS, talk);
    unsigned once_more = opened[1][2];
    duo_run_with(200000 * MS, talk);
    cr_assert_eq(opened[1][2], once_more, "nothing for who is silent");
    cr_assert_eq(core_deadline(duo_core[0]), UINT64_MAX);
    cr_assert_eq(core_deadline(duo_core[1]), UINT64_MAX);
}

/* What a closed path costs: a chunk, then a probe now and then, while something of the peer is awaited. */
Test(reach, closed_paths_are_tried, .init = open_ports)
{
    dead_paths = 1u << 1 | 1u << 3;
    messages(16, 50 * MS);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 2);
    cr_assert_eq(swallowed, 2);
    memset(tried, 0, sizeof tried);
    duo_run_with(1000 * MS, talk);
    cr_assert(tried[1] == 0 && tried[3] == 0, "nothing is awaited");
    struct duo_request *send = duo_send(0, 100 << 10); /* more than goes unasked */
    duo_run_with(10000 * MS, talk);
    cr_assert(!send->ended);
    cr_assert(tried[1] >= 4 && tried[3] >= 4 && tried[1] + tried[3] <= 22, "%u, %u", tried[1], tried[3]);
    cr_assert(tried[0] == 0 && tried[2] == 0);
    dead_paths = 1u << 3;
    duo_run_with(3000 * MS, talk);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 1, "it has healed");
    cr_assert(duo_flow[0]->rails->paths.paths[1].worked);
    dead_paths = 0;
    duo_run_with(3000 * MS, talk);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 0);
    cr_assert_eq(swallowed, 2);
    memset(tried, 0, sizeof tried);
    duo_recv(1, 100 << 10);
    duo_run_with(3000 * MS, talk);
    duo_assert_ended(send, UCCL_OK, 100 << 10);
    for (unsigned path = 0; path < PORTS; path++)
        cr_assert_eq(tried[path], 0);
}

/* An echo that nobody asked for, or of an older probe, tells nothing. */
Test(reach, other_echoes_open_nothing, .init = open_ports)
{
    dead_paths = 1u << 1;
    messages(16, 50 * MS);
    duo_send(0, 100 << 10);
    duo_run_with(100 * MS, talk);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 1);
    uint64_t nonce = duo_flow[0]->rails->reach.nonce;
    cr_assert_neq(nonce, 0);
    reach_on_echo(duo_flow[0]->rails, 0);
    reach_on_echo(duo_flow[0]->rails, nonce + 2);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 1);
    reach_on_echo(duo_flow[0]->rails, nonce);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 0);
    path_report(&duo_flow[0]->rails->paths, 1, PATH_LOST, 0);
    for (unsigned i = 0; i < 8; i++) {
        path_report(&duo_flow[0]->rails->paths, 0, PATH_GOOD, 0);
        path_report(&duo_flow[0]->rails->paths, 1, PATH_LOST, 0);
    }
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 1);
    reach_on_echo(duo_flow[0]->rails, nonce);
    cr_assert_eq(duo_flow[0]->rails->paths.closed, 1, "it came twice");
}

/* The only path that works dies after all: retransmissions go on to those that never did, even if no probe tells of
 * them. */
Test(reach, retransmissions_leave_the_last_path, .init = open_ports)
{
    dead_paths = 0xf & ~1u;
    messages(16, 50 * MS);
    cr_assert_eq(duo_flow[0]->rails->paths.good, 1);
    dead_paths = 1;
    tries_are_lost = true;
    struct duo_request *send = duo_send(0, 100), *recv = duo_recv(1, 100);
    duo_run_with(950 * MS, talk);
    duo_assert_arrived(send, recv, 100);
}
