/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine says, once and with the right figures, of the ways to a peer: holes of the MTU, NICs that are lost. */
#include "base/log.h"
#include "boot/peer.h"
#include "logged.h"
#include "thread/state.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>

enum { THREADS = 2, NICS = 3 };

static struct peer peer;
static struct engine_thread threads[THREADS];
static struct nic_queue queues[THREADS];

static int device_of_end(const struct nic *nic, unsigned end)
{
    (void)nic;
    return (int)end + 10;
}

static int name_device(const struct nic *nic, int index, struct uccl_device *out, union nic_address *address)
{
    (void)nic, (void)address;
    snprintf(out->name, sizeof out->name, "nic%d", index);
    return UCCL_OK;
}

static const struct nic_end_ops end_ops = {.device = device_of_end};
static const struct nic_device_ops device_ops = {.device = name_device};
static struct nic nic = {.ops = &device_ops, .ends = &end_ops};

static void set_up(void)
{
    for (unsigned i = 0; i < THREADS; i++) {
        queues[i].nic = &nic;
        threads[i].queue = &queues[i];
        peer.flows[i].thread = &threads[i];
        peer.flows[i].peer = &peer;
        peer.flows[i].setup.rail_count = NICS + 1;
        for (unsigned rail = 0; rail < NICS + 1; rail++) /* rail 0 is the kernel's route; NIC 2 has two rails */
            peer.flows[i].nics[rail] = (uint8_t)(rail < NICS ? rail : 2);
    }
    peer.host.address.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201)};
    uccl_set_log(take_log, NULL);
}

TestSuite(peer_told, .init = set_up);

static void expect_hole(const char *address, unsigned headers)
{
    char expected[512];
    peer.hole_warned = false;
    logged.lines = 0;
    peer_flow_has_hole(&peer.flows[0], 1400, 8900);
    snprintf(
        expected, sizeof expected,
        "peer %s: packets of %u bytes vanish on the way to it, though the route takes %u; those of %u get through, "
        "and larger ones are not sent for now. Set UCCL_MTU=%u, or",
        address, 8900 + headers, 8900 + headers, 1400 + headers, 1400 + headers);
    cr_assert_eq(strncmp(logged.text, expected, strlen(expected)), 0, "%s", logged.text);
    cr_assert_eq(logged.level, UCCL_LOG_WARN);
    peer_flow_has_hole(&peer.flows[1], 1200, 8900);
    cr_assert_eq(logged.lines, 1, "once for a peer");
}

/* Packets, as whoever sets an MTU counts: with the headers of IPv4 or IPv6 and UDP. */
Test(peer_told, holes)
{
    expect_hole("192.0.2.1", 28);
    memset(&peer.host.address, 0, sizeof peer.host.address);
    peer.host.address.v6.sin6_family = AF_INET6;
    cr_assert_eq(inet_pton(AF_INET6, "::ffff:192.0.2.7", &peer.host.address.v6.sin6_addr), 1);
    expect_hole("192.0.2.7", 28);
    cr_assert_eq(inet_pton(AF_INET6, "2001:db8::1", &peer.host.address.v6.sin6_addr), 1);
    expect_hole("2001:db8::1", 48);
}

static void expect_line(const char *text)
{
    cr_assert_eq(logged.lines, text ? 1 : 0, "%s", logged.text);
    if (text)
        cr_assert_str_eq(logged.text, text);
    logged.lines = 0;
}

/* A NIC is told as lost when the first of its rails is, and as back when the first one is; each loss is counted. */
Test(peer_told, lost_nics)
{
    static const char lost[] = "peer 192.0.2.1: nothing gets through by network interface nic11; what it carried goes "
                               "over the others";
    static const char back[] = "peer 192.0.2.1: network interface nic11 works again";
    for (unsigned round = 1; round < 4; round++) {
        peer_flow_lost_rail(&peer.flows[0], 2, true);
        expect_line(lost);
        peer_flow_lost_rail(&peer.flows[0], 3, true);
        peer_flow_lost_rail(&peer.flows[1], 2, true);
        expect_line(NULL);
        peer_flow_lost_rail(&peer.flows[1], 2, false);
        expect_line(back);
        peer_flow_lost_rail(&peer.flows[0], 2, false);
        peer_flow_lost_rail(&peer.flows[0], 3, false);
        expect_line(NULL);
        cr_assert_eq(queues[0].ends[1].losses, 2 * round);
        cr_assert_eq(queues[0].ends[1].returns, 2 * round);
        cr_assert_eq(queues[1].ends[1].losses, round);
        cr_assert_eq(queues[1].ends[1].returns, round);
    }
    peer_flow_lost_rail(&peer.flows[0], 1, true);
    cr_assert(queues[0].ends[0].losses == 1 && queues[0].ends[0].returns == 0);
    expect_line(
        "peer 192.0.2.1: nothing gets through by network interface nic10; what it carried goes over the others");
    peer_flow_lost_rail(&peer.flows[1], 0, true); /* that of no NIC in particular */
    expect_line("peer 192.0.2.1: nothing gets through by network interface the kernel's route; what it carried goes "
                "over the others");
    cr_assert(queues[1].ends[0].losses == 0 && queues[0].ends[2].losses == 0);
}

/* ---- connections beside datagrams -------------------------------------------------------------- */

static bool swallows;
static bool is_swallowed(const struct nic_queue *queue, uint32_t destination)
{
    cr_assert(destination & NIC_BESIDE);
    (void)queue;
    return swallows;
}

static const struct nic_channel_ops channel_ops = {.swallowed = is_swallowed};
static struct nic_queue beside_queue = {.channel = &channel_ops};

/* The rails behind `count` of datagrams join these. */
static void put_beside(unsigned count, unsigned all)
{
    queues[0].beside = &beside_queue;
    struct flow_setup *setup = &peer.flows[0].setup;
    setup->rail_count = all;
    for (unsigned rail = count; rail < all; rail++) {
        setup->rails[rail].joins = true;
        setup->rails[rail].destination = NIC_BESIDE | rail;
    }
}

Test(peer_told, datagrams_and_connections_are_told_apart)
{
    put_beside(2, 4); /* rails 1 and 3 have NICs 1 and 2 */
    swallows = true;
    peer_flow_lost_rail(&peer.flows[0], 3, true);
    expect_line("peer 192.0.2.1: no TCP gets through by network interface nic11; what it carried goes over the "
                "others");
    peer_flow_lost_rail(&peer.flows[0], 1, true);
    expect_line("peer 192.0.2.1: no datagram gets through by network interface nic10; what it carried goes over "
                "the others");
    peer_flow_lost_rail(&peer.flows[0], 3, false);
    expect_line("peer 192.0.2.1: TCP gets through by network interface nic11 again");
    peer_flow_lost_rail(&peer.flows[0], 1, false);
    expect_line("peer 192.0.2.1: datagrams get through by network interface nic10 again");
    cr_assert(queues[0].ends[0].losses == 1 && queues[0].ends[1].losses == 1 && queues[0].ends[1].returns == 1);
    swallows = false; /* the peer has ended them */
    peer_flow_lost_rail(&peer.flows[0], 3, true);
    peer_flow_lost_rail(&peer.flows[0], 3, false); /* and made them again */
    expect_line(NULL);
    cr_assert(queues[0].ends[1].losses == 1 && queues[0].ends[1].returns == 1);
}

/* Both kinds of one NIC are told each. */
Test(peer_told, both_kinds_of_a_nic)
{
    put_beside(2, 4);
    peer.flows[0].nics[2] = 1; /* as rail 1 */
    swallows = true;
    for (unsigned rail = 1; rail < 3; rail++) {
        logged.lines = 0;
        peer_flow_lost_rail(&peer.flows[0], rail, true);
        cr_assert_eq(logged.lines, 1);
    }
}

Test(peer_told, one_of_each)
{
    put_beside(1, 2);
    log_set_level(UCCL_LOG_INFO);
    peer_flow_lost_rail(&peer.flows[0], 1, true); /* whoever has ended them */
    expect_line("peer 192.0.2.1: its TCP connections are broken; UDP carries all");
    peer_flow_lost_rail(&peer.flows[0], 1, false);
    expect_line("peer 192.0.2.1: TCP carries large messages again");
    peer_flow_lost_rail(&peer.flows[0], 0, true);
    expect_line("peer 192.0.2.1: datagrams do not get through any more; TCP carries all");
    peer_flow_lost_rail(&peer.flows[0], 0, false);
    expect_line("peer 192.0.2.1: datagrams get through again");
}

/* Nobody is told that one kind carries all where the other one is lost as well. */
Test(peer_told, one_of_each_and_both_are_lost)
{
    put_beside(1, 2);
    log_set_level(UCCL_LOG_INFO);
    for (unsigned round = 0; round < 2; round++) {
        peer_flow_lost_rail(&peer.flows[0], 0, true);
        expect_line("peer 192.0.2.1: datagrams do not get through any more; TCP carries all");
        peer_flow_lost_rail(&peer.flows[0], 1, true);
        expect_line("peer 192.0.2.1: its TCP connections are broken, too; nothing gets through for now");
        peer_flow_lost_rail(&peer.flows[0], 1, false);
        expect_line("peer 192.0.2.1: its TCP connections are there again; TCP carries all");
        peer_flow_lost_rail(&peer.flows[0], 0, false);
        expect_line("peer 192.0.2.1: datagrams get through again");
    }
    peer_flow_lost_rail(&peer.flows[0], 1, true);
    expect_line("peer 192.0.2.1: its TCP connections are broken; UDP carries all");
    peer_flow_lost_rail(&peer.flows[0], 0, true);
    expect_line("peer 192.0.2.1: datagrams do not get through, either; nothing does for now");
    peer_flow_lost_rail(&peer.flows[0], 0, false);
    expect_line("peer 192.0.2.1: datagrams get through again");
}
