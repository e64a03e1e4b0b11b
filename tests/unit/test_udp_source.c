/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address that datagrams leave from: the one that the peer knows, on all paths, alone and in trains; where that is
 * not ours any more, the one that the kernel chooses. And their traffic class. The peer is a plain socket, which sees
 * where they come from, and what their headers say.
 */
#include "udp_pair.h"

#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct in6_request { /* of SIOCSIFADDR */
    struct in6_addr address;
    uint32_t prefix_length;
    int index;
};

/* Of the host that add_plain_peer() adds, of the sockets, and what the header is to say. */
static uint8_t class_wished;
static uint64_t class_default;
static int field_expected = 2;

/* Loopback of a namespace of its own, with one more IPv6 address, fd00::9. */
static void set_up_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct in6_request extra = {.address = address_of("fd00::9").v6.sin6_addr, .prefix_length = 128, .index = 1};
    union nic_address own;
    int fd;

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        cr_skip_test("network namespaces are not allowed here");
    fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    cr_assert_eq(ioctl(fd, SIOCSIFADDR, &extra), 0);
    own = address_of("fd00::9");
    for (uint64_t until = now_ns() + DEADLINE_NS; bind(fd, &own.any, sizeof own.v6) != 0;) /* tentative at first */
        cr_assert_lt(now_ns(), until);
    close(fd);
}

/* A peer at `address` that knows us by `local`; returns its socket. */
static int add_plain_peer(struct pair *pair, const char *address, const char *local)
{
    struct nic_host host = {.address = address_of(address), .traffic_class = class_wished};
    struct nic_queue_address of_queue = {3, {NIC_ADDRESS_UDP}};
    union nic_address bound = host.address;
    socklen_t length = bound.any.sa_family == AF_INET6 ? sizeof bound.v6 : sizeof bound.v4;
    int fd = socket(bound.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (local)
        host.local = address_of(local);
    cr_assert_eq(bound.any.sa_family == AF_INET6 ? setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &(int){1}, sizeof(int))
                                                 : setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &(int){1}, sizeof(int)),
                 0);
    (void)setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &(int){1}, sizeof(int)); /* of mapped addresses */
    cr_assert(fd >= 0 && bind(fd, &bound.any, length) == 0 && getsockname(fd, &bound.any, &length) == 0);
    memcpy(of_queue.bytes + 1, &bound.v4.sin_port, 2); /* in the same place in both families */
    cr_assert_eq(
        udp_datagram_ops.peer_add(&pair->queues[0]->base, &host, &of_queue, &pair->destination, &pair->datagram_bytes),
        0);
    return fd;
}

/* What the header of a received datagram says of its class. */
static int field_of(struct msghdr *header)
{
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg))
        if ((cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_TOS) ||
            (cmsg->cmsg_level == IPPROTO_IPV6 && cmsg->cmsg_type == IPV6_TCLASS))
            return *CMSG_DATA(cmsg);
    return -1;
}

/* Sends a descriptor of `count` datagrams on a path; all of them come from `local`, with the class. */
static void send_from(struct pair *pair, int fd, unsigned count, unsigned path, const char *local)
{
    struct tx_desc desc = bulk(pair, count, SMALL, 700);

    desc.path = desc.port = (uint16_t)path;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0, "lost: %s", log_text);
    for (unsigned i = 0; i < count; i++) {
        union nic_address from;
        char text[NETDEV_ADDRESS_TEXT];
        uint8_t bytes[SMALL], control[64];
        struct iovec into = {bytes, sizeof bytes};
        struct msghdr header = {.msg_name = &from,
                                .msg_namelen = sizeof from,
                                .msg_iov = &into,
                                .msg_iovlen = 1,
                                .msg_control = control,
                                .msg_controllen = sizeof control};
        ssize_t got = recvmsg(fd, &header, 0);

        cr_assert_eq(got, (ssize_t)length_of(&desc, i));
        cr_assert_eq(field_of(&header), field_expected, "class %d, not %d", field_of(&header), field_expected);
        if (from.any.sa_family == AF_INET6)
            from.v6.sin6_port = 0;
        else
            from.v4.sin_port = 0;
        cr_assert_str_eq(netdev_address_text(&from, text), local, "path %u, datagram %u: %s", path, i, text);
    }
}

static void send_all_ways(unsigned io, const char *address, const char *local, const char *seen)
{
    struct pair *pair;
    int fd;

    pair = open_pair_of_class(io, "127.0.0.1", class_default);
    fd = add_plain_peer(pair, address, local);
    uccl_set_log(keep_log, NULL);
    for (unsigned path = 0; path < 4; path++) {
        send_from(pair, fd, 1, path, seen);
        send_from(pair, fd, 7, path, seen);
    }
    close(fd);
    close_pair(pair);
}

static void known_address(unsigned io)
{
    set_up_loopback();
    send_all_ways(io, "127.0.0.1", "127.0.0.5", "127.0.0.5");
    send_all_ways(io, "127.0.0.7", "127.0.0.1", "127.0.0.1");
    send_all_ways(io, "::1", "fd00::9", "fd00::9");
    send_all_ways(io, "fd00::9", "::1", "::1");
    send_all_ways(io, "::ffff:127.0.0.1", "::ffff:127.0.0.5", "127.0.0.5");
    send_all_ways(io, "127.0.0.1", NULL, "127.0.0.1");
    cr_assert_str_empty(log_text);
}

Test(udp_source, known_address_mmsg)
{
    known_address(UDP_IO_MMSG);
}

Test(udp_source, known_address_uring)
{
    known_address(UDP_IO_URING);
}

/* Where IPv6 is off. */
Test(udp_source, known_address_of_ipv4_sockets)
{
    FILE *off;

    set_up_loopback();
    off = fopen("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w");
    if (!off)
        cr_skip_test("/proc cannot be written");
    cr_assert(fputs("1\n", off) >= 0 && fclose(off) == 0);
    send_all_ways(UDP_IO_MMSG, "127.0.0.1", "127.0.0.5", "127.0.0.5");
}

/* That of the sockets; another one, with and without an address to leave from; DSCP 0 in spite of the sockets'. */
static void traffic_class(unsigned io)
{
    static const struct {
        uint8_t wished, of_sockets, field;
    } cases[] = {{0, 0, 2}, {0, 0x88, 0x8a}, {0x28, 0, 0x2a}, {255, 0x88, 0xfe}, {1, 0x88, 2}, {0, 3, 2}};

    set_up_loopback();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        class_wished = cases[i].wished;
        class_default = cases[i].of_sockets;
        field_expected = cases[i].field;
        send_all_ways(io, "127.0.0.1", NULL, "127.0.0.1");
        send_all_ways(io, "127.0.0.1", "127.0.0.5", "127.0.0.5");
        send_all_ways(io, "::1", "::1", "::1");
        send_all_ways(io, "::1", "fd00::9", "fd00::9");
        send_all_ways(io, "::ffff:127.0.0.1", "::ffff:127.0.0.5", "127.0.0.5");
        send_all_ways(io, "127.0.0.1", "192.0.2.1", "127.0.0.1"); /* which is none of ours */
    }
}

Test(udp_source, traffic_class_mmsg)
{
    traffic_class(UDP_IO_MMSG);
}

Test(udp_source, traffic_class_uring)
{
    traffic_class(UDP_IO_URING);
}

/* An address that is none of ours any more: nothing is lost, and the log says it once. */
static void lost_address(const char *address, const char *local, const char *seen)
{
    log_text[0] = '\0';
    send_all_ways(UDP_IO_MMSG, address, local, seen);
    cr_assert(strstr(log_text, "leave from any address of this machine"), "%s", log_text);
    cr_assert_eq(strchr(log_text, '\n'), log_text + strlen(log_text) - 1, "said once: %s", log_text);
}

Test(udp_source, lost_address)
{
    set_up_loopback();
    lost_address("127.0.0.1", "192.0.2.1", "127.0.0.1");
    lost_address("::1", "fd00::77", "::1");
}

/* What a send says to the kernel: the address, and the NIC by which it leaves, or else the scope of the address. */
Test(udp_source, the_kernel_is_told_the_nic)
{
    struct udp_peer peer = {.address = address_of("192.0.2.2"), .local = address_of("192.0.2.1"), .interface = 7};
    struct in_pktinfo v4;
    struct in6_pktinfo v6;
    const struct cmsghdr *cmsg = (const struct cmsghdr *)(const void *)peer.source.bytes;

    udp_set_source(&peer, true);
    memcpy(&v4, CMSG_DATA(cmsg), sizeof v4);
    cr_assert(cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_PKTINFO);
    cr_assert(v4.ipi_ifindex == 7 && v4.ipi_spec_dst.s_addr == peer.local.v4.sin_addr.s_addr);
    for (unsigned scope = 0; scope < 2; scope++) {
        for (peer.interface = 0; peer.interface < 10; peer.interface += 9) {
            peer.address = address_of("fe80::2");
            peer.local = address_of("fe80::1");
            peer.local.v6.sin6_scope_id = 5 * scope;
            udp_set_source(&peer, true);
            memcpy(&v6, CMSG_DATA(cmsg), sizeof v6);
            cr_assert(cmsg->cmsg_level == IPPROTO_IPV6 && cmsg->cmsg_type == IPV6_PKTINFO);
            cr_assert_eq(v6.ipi6_ifindex, peer.interface != 0 ? peer.interface : 5 * scope);
            cr_assert_eq(memcmp(&v6.ipi6_addr, &peer.local.v6.sin6_addr, sizeof v6.ipi6_addr), 0);
        }
    }
    udp_set_source(&peer, false);
    cr_assert_eq(peer.source.length, 0);
}
