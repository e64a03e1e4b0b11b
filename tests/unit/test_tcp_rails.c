/* SPDX-License-Identifier: Apache-2.0 */
/* Connections through several NICs: which addresses they have, and of which rail an accepted one is. */
#include "tcp_pair.h"

#include <net/if.h>

enum { RAILS = 2 };

static int index_of_loopback(const struct nic *nic)
{
    struct uccl_device device;
    union nic_address address;
    for (int i = 0; i < nic->ops->device_count(nic); i++) {
        cr_assert_eq(nic->ops->device(nic, i, &device, &address), 0);
        if (device.is_loopback)
            return i;
    }
    return -1;
}

static int all_are_loopback(const struct nic *nic, unsigned end)
{
    (void)end;
    return index_of_loopback(nic);
}

static const struct nic_end_ops fake_ends = {.device = all_are_loopback};

/* The rails: the dialling side's addresses, and the other's. */
static const char *const addresses[RAILS][2] = {{"127.0.0.1", "127.0.0.1"}, {"127.0.0.2", "127.0.0.3"}};

/* Adds a rail at a side, whose index there is `as`. Returns its destination. */
static uint32_t add_rail(struct side *side, struct side *other, unsigned rail, unsigned as)
{
    struct nic_host host = {.address = address_of(addresses[rail][!side->index]),
                            .local = address_of(addresses[rail][side->index]),
                            .nic = rail + 1};
    struct nic_queue_address queue_address;
    uint32_t destination, bytes = 0;
    tcp_queue_ops.address(&other->queue->base, &queue_address);
    host.local.v4.sin_port = htons(9); /* of the handshake, and no connection's */
    cr_assert_eq(tcp_datagram_ops.peer_add(&side->queue->base, &host, &queue_address, &destination, &bytes), 0);
    tcp_channel_ops.introduce(&side->queue->base, destination,
                              &(struct nic_flow){.flow = (struct flow *)side,
                                                 .rail = (uint8_t)as,
                                                 .rails = RAILS,
                                                 .rx_token = tokens[side->index] + 16,
                                                 .tx_token = tokens[!side->index] + 16,
                                                 .dials = side->index == 0,
                                                 .patience_ms = side->pair->params.dead_peer_ms});
    return destination;
}

/* Rounds without events, until the paths of the peer are up. */
static bool are_up(struct side *side, uint32_t destination)
{
    struct nic_channel_event event;
    struct nic_rx rx[8];
    cr_assert_eq(tcp_datagram_ops.poll(&side->queue->base, rx, 8), 0);
    while (tcp_channel_ops.event(&side->queue->base, &event))
        ;
    for (uint16_t path = 0; path < PATHS; path++)
        if (tcp_conn_of(side->queue, destination, path)->state != TCP_UP)
            return false;
    return true;
}

static void assert_name(int fd, bool own, const char *text)
{
    union nic_address address, expected = address_of(text);
    socklen_t length = sizeof address;
    int failed = own ? getsockname(fd, &address.any, &length) : getpeername(fd, &address.any, &length);
    cr_assert_eq(failed, 0);
    address = netdev_unmapped(&address);
    cr_assert_eq(address.v4.sin_addr.s_addr, expected.v4.sin_addr.s_addr, "not %s", text);
}

/* The sides number their rails differently. */
Test(tcp_rails, each_connection_has_the_addresses_of_its_rail, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    uint32_t destinations[2][RAILS];
    pair->nic->ends = &fake_ends;
    for (unsigned i = 0; i < RAILS; i++)
        destinations[1][i] = add_rail(&pair->sides[1], &pair->sides[0], i, RAILS - 1 - i);
    for (unsigned i = 0; i < RAILS; i++)
        destinations[0][i] = add_rail(&pair->sides[0], &pair->sides[1], i, i);
    for (unsigned rail = 0; rail < RAILS; rail++) {
        uint64_t until_ns = now_ns() + UINT64_C(10000000000);
        for (unsigned up = 0; up < 2;) {
            up = are_up(&pair->sides[0], destinations[0][rail]);
            up += are_up(&pair->sides[1], destinations[1][rail]);
            cr_assert_lt(now_ns(), until_ns, "rail %u", rail);
        }
        for (unsigned side = 0; side < 2; side++)
            for (uint16_t path = 0; path < PATHS; path++) {
                int fd = tcp_conn_of(pair->sides[side].queue, destinations[side][rail], path)->fd;
                char name[IF_NAMESIZE] = "";
                socklen_t length = sizeof name;
                assert_name(fd, true, addresses[rail][side]);
                assert_name(fd, false, addresses[rail][!side]);
                cr_assert_eq(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length), 0);
                cr_assert_str_eq(name, "lo");
            }
    }
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < RAILS; i++)
            tcp_datagram_ops.peer_remove(&pair->sides[side].queue->base, destinations[side][i]);
    close_pair(pair);
}

/* A connection with other addresses than any rail is a stranger's, and the rail goes without. */
Test(tcp_rails, other_addresses_are_of_no_rail, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    pair->nic->ends = &fake_ends;
    uint32_t theirs = add_rail(to, from, 0, 0), ours = add_rail(from, to, 1, 0);
    uint64_t until_ns = now_ns() + UINT64_C(10000000000);
    while (to->counters.rx_strangers < PATHS) {
        cr_assert_lt(now_ns(), until_ns);
        are_up(from, ours);
        cr_assert_not(are_up(to, theirs));
    }
    tcp_datagram_ops.peer_remove(&from->queue->base, ours);
    tcp_datagram_ops.peer_remove(&to->queue->base, theirs);
    close_pair(pair);
}
