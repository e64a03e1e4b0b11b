/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs of a UDP engine that go down, come back, and are made anew (nic/udp/ends.c, nic/link_watch.c). The
 * kernel's answers are made up.
 */
#include "nic/udp/udp.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

enum { ENDS = 3, PEERS = 6, NEWS_FD = 12345 };

static short flags[ENDS];
static unsigned number[ENDS]; /* of the interface */
static int news;              /* errors of recv() that come next, or 0: there is nothing */

static unsigned end_of(const char *name)
{
    return (unsigned)(name[3] - '0');
}

int __wrap_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...)
{
    va_list arguments;
    (void)fd;
    va_start(arguments, what);
    struct ifreq *request = va_arg(arguments, struct ifreq *);
    va_end(arguments);
    unsigned end = end_of(request->ifr_name);
    cr_assert(what == SIOCGIFFLAGS || what == SIOCGIFINDEX);
    if (what == SIOCGIFINDEX)
        request->ifr_ifindex = (int)number[end];
    else
        request->ifr_flags = flags[end];
    return 0;
}

ssize_t __real_recv(int fd, void *buffer, size_t size, int how);
ssize_t __wrap_recv(int fd, void *buffer, size_t size, int how);
ssize_t __wrap_recv(int fd, void *buffer, size_t size, int how)
{
    if (fd != NEWS_FD)
        return __real_recv(fd, buffer, size, how);
    errno = news ? news : EAGAIN;
    news = 0;
    return -1;
}

static struct netdev devs[ENDS];
static struct udp_nic nic;
static struct udp_queue queue;
static struct udp_peer peers[PEERS];
static int sockets[UDP_MAIN_SOCKET + 1];

/* Peer i is reached by NIC i % ENDS. */
static void open_ends(void)
{
    for (unsigned i = 0; i < ENDS; i++) {
        devs[i] = (struct netdev){.index = 10 + i, .prefix_bits = 24, .speed_mbps = 1000, .hardware = true};
        snprintf(devs[i].name, sizeof devs[i].name, "eth%u", i);
        devs[i].address.v4.sin_family = AF_INET;
        devs[i].address.v4.sin_addr.s_addr = htonl(0x0a000001 + (i << 8));
        flags[i] = IFF_UP | IFF_RUNNING;
        number[i] = devs[i].index;
    }
    nic.devs = devs;
    nic.dev_count = ENDS;
    nic.params.max_nics = ENDS;
    udp_choose_ends(&nic);
    cr_assert_eq(nic.end_count, ENDS);
    queue.base.nic = &nic.base;
    queue.setup.params = &nic.params;
    queue.peer_free = queue.mtu_pending = UDP_NO_PEER;
    queue.sockets = sockets;
    queue.peers = peers;
    queue.peer_count = PEERS;
    link_watch_open(&queue.ends.links, devs, nic.ends, ENDS, &nic.told_down, -1);
    link_watch_close(&queue.ends.links);
    queue.ends.links.netlink_fd = NEWS_FD;
    for (unsigned i = 0; i < PEERS; i++) {
        peers[i] = (struct udp_peer){.used = true, .nic = i % ENDS + 1, .interface = 10 + i % ENDS};
        peers[i].local = devs[i % ENDS].address;
    }
}

/* The next event is of this peer. */
static void expect(unsigned peer, bool up)
{
    struct nic_end_event event;
    cr_assert(nic.base.ends->event(&queue.base, &event), "none, peer %u should be %d", peer, up);
    cr_assert(event.destination == peer && event.up == up, "peer %u is %d", event.destination, event.up);
}

static void expect_none(void)
{
    struct nic_end_event event;
    cr_assert_not(nic.base.ends->event(&queue.base, &event), "peer %u is %d", event.destination, event.up);
}

Test(udp_ends, who_is_reached_by_one_that_fails_hears_of_it, .init = open_ends)
{
    peers[4].used = false;
    expect_none();
    flags[1] = IFF_UP; /* the cable is pulled */
    expect_none();     /* nobody has said so */
    link_watch_doubt(&queue.ends.links);
    expect(1, false);
    expect_none();
    cr_assert(nic.base.ends->up(&nic.base, 0) && !nic.base.ends->up(&nic.base, 1));
    flags[1] = IFF_UP | IFF_RUNNING;
    flags[0] = 0;
    news = ENOBUFS; /* there were too many messages for the kernel to keep */
    struct nic_end_event event;
    unsigned rounds = 0;
    while (!nic.base.ends->event(&queue.base, &event))
        cr_assert_lt(rounds++, 1500);
    cr_assert(event.destination == 0 && !event.up);
    expect(1, true);
    expect(3, false);
    expect_none();
    cr_assert(!nic.base.ends->up(&nic.base, 0) && nic.base.ends->up(&nic.base, 1));
}

/* One may have gone down since the engine has listed it. */
Test(udp_ends, the_first_round_looks, .init = open_ends)
{
    flags[1] = 0;
    expect(1, false);
    expect(4, false);
    expect_none();
}

/* Where the kernel tells nothing, a send that fails is how one that is down is found. */
Test(udp_ends, without_news_the_return_of_one_is_looked_for, .init = open_ends)
{
    struct nic_end_event event;
    unsigned rounds = 0;
    queue.ends.links.netlink_fd = -1;
    expect_none();
    flags[1] = 0;
    link_watch_doubt(&queue.ends.links);
    expect(1, false);
    expect(4, false);
    expect_none();
    flags[1] = IFF_UP | IFF_RUNNING;
    while (!nic.base.ends->event(&queue.base, &event))
        cr_assert_lt(rounds++, 1500);
    cr_assert(event.destination == 1 && event.up);
}

/* A change comes while those of another one are told. */
Test(udp_ends, all_hear_of_a_change_among_others, .init = open_ends)
{
    flags[2] = 0;
    link_watch_doubt(&queue.ends.links);
    expect(2, false);
    flags[0] = 0;
    link_watch_doubt(&queue.ends.links);
    expect(0, false);
    expect(2, false); /* once more does no harm */
    expect(3, false);
    expect(5, false);
    expect_none();
}

/* Adds a peer that is reached by the second NIC, over an address to which there is no route. */
static int add(uint32_t *destination, uint32_t *datagram_bytes)
{
    struct nic_queue_address address = {.length = 3, .bytes = {NIC_ADDRESS_UDP, 1, 1}};
    struct nic_host host = {.nic = 2, .local = devs[1].address};
    host.address.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = INADDR_BROADCAST};
    peers[PEERS - 1].next = UDP_NO_PEER;
    queue.peer_free = PEERS - 1;
    return udp_datagram_ops.peer_add(&queue.base, &host, &address, destination, datagram_bytes);
}

/* Routes come with the link. So a peer may be met while one of the NICs is down: that rail waits for it. */
Test(udp_ends, a_peer_is_met_while_one_is_down, .init = open_ends)
{
    uint32_t destination = 0, datagram_bytes = 0;
    expect_none();
    devs[1].mtu = 3000;
    flags[1] = IFF_UP; /* nobody has said so */
    for (unsigned times = 0; times < 2; times++) {
        cr_assert_eq(add(&destination, &datagram_bytes), 0, "%u", times);
        cr_assert(destination == PEERS - 1 && datagram_bytes == 3000 - 28);
        cr_assert(peers[destination].source.addressed);
        cr_assert_not(nic.base.ends->up(&nic.base, 1));
        expect(1, false);
        expect(4, false);
        expect(5, false);
        expect_none();
    }
    flags[1] = IFF_UP | IFF_RUNNING;
    link_watch_doubt(&queue.ends.links);
    expect(1, true);
    expect(4, true);
    expect(5, true);
    expect_none();
    cr_assert_eq(add(&destination, &datagram_bytes), UCCL_EADDR, "it is up: the address leads nowhere");
    expect_none();
}

/* One that had no carrier when the engine was opened. */
Test(udp_ends, one_comes_late)
{
    struct nic_end_event event;
    open_ends();
    for (unsigned i = 0; i < ENDS; i++)
        devs[i].named = true;
    devs[2].class = NETDEV_NO_CARRIER;
    flags[2] = IFF_UP;
    udp_choose_ends(&nic);
    cr_assert_eq(nic.end_count, ENDS);
    cr_assert(nic.base.ends->up(&nic.base, 0) && nic.base.ends->up(&nic.base, 1) && !nic.base.ends->up(&nic.base, 2));
    link_watch_open(&queue.ends.links, devs, nic.ends, ENDS, &nic.told_down, -1);
    link_watch_close(&queue.ends.links);
    queue.ends.links.netlink_fd = NEWS_FD;
    cr_assert_not(nic.base.ends->event(&queue.base, &event), "nothing has changed");
    flags[2] = IFF_UP | IFF_RUNNING;
    link_watch_doubt(&queue.ends.links);
    expect(2, true);
    expect(5, true);
    expect_none();
    cr_assert(nic.base.ends->up(&nic.base, 2));
}

/* An interface that was removed and made again has the same name and another number. */
Test(udp_ends, an_interface_made_anew_is_used_by_its_number, .init = open_ends)
{
    number[1] = 77;
    link_watch_doubt(&queue.ends.links);
    expect_none();
    for (unsigned i = 0; i < PEERS; i++) {
        cr_assert_eq(peers[i].interface, i % ENDS == 1 ? 77 : 10 + i % ENDS);
        cr_assert_eq(peers[i].source.length != 0, i % ENDS == 1);
    }
    struct nic_rx rx = {0};
    char space[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
    struct cmsghdr *control = (struct cmsghdr *)(void *)space;
    struct in_pktinfo info = {.ipi_ifindex = 77};
    *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
    memcpy(CMSG_DATA(control), &info, sizeof info);
    udp_ends_read_control(&queue, control, &rx);
    cr_assert_eq(rx.nic, 2);
}

/* Of NICs in one subnet each may receive what is meant for the other, as the kernel is set by default. */
Test(udp_ends, nics_of_one_subnet_may_receive_for_each_other, .init = open_ends)
{
    cr_assert_eq(nic.shared, 0);
    devs[1].address.v4.sin_addr.s_addr = htonl(0x0a000002);
    udp_choose_ends(&nic);
    cr_assert_eq(nic.shared, netdev_mixes_addresses("eth0") ? 3 : 0);
}

Test(udp_ends, received_datagrams_count_for_their_nic, .init = open_ends)
{
    const struct nic_rx rx[] = {{.nic = 1, .length = 3001, .stride = 1000},
                                {.nic = 0, .length = 9, .stride = 9},
                                {.nic = 3, .length = 2000, .stride = 1000},
                                {.nic = 3, .length = 1, .stride = 1}};
    udp_ends_count(&queue, rx, 4);
    cr_assert(queue.base.ends[0].rx_datagrams == 4 && queue.base.ends[0].rx_bytes == 3001);
    cr_assert_eq(queue.base.ends[1].rx_datagrams, 0);
    cr_assert(queue.base.ends[2].rx_datagrams == 3 && queue.base.ends[2].rx_bytes == 2001);
}
