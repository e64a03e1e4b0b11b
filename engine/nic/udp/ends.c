/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs in one UDP engine. The sockets are those of any queue: bound to no address, they receive by every NIC. A
 * destination names the NIC that its datagrams leave by, and each send says so to the kernel (IP_PKTINFO,
 * IPV6_PKTINFO). So a NIC that fails or vanishes takes no socket along, and there are no more descriptors to wait for.
 *
 * The kernel tells by rtnetlink that some link has changed. Whatever it says, we then ask each NIC for its state: that
 * is what counts, also when messages were lost.
 *
 * Thread: the queue's owner, but for the calls on a `nic`: any.
 */
#include "nic/udp/udp.h"

#include "base/log.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ROUNDS_TO_LOOK = 1024 }; /* a thread that never sleeps reads the news this often */

/* ---- the device ------------------------------------------------------------------------------ */

static const struct netdev *dev_of(const struct nic *base, unsigned end)
{
    const struct udp_nic *nic = udp_nic_of(base);

    return &nic->devs[nic->ends[end]];
}

static unsigned ends_list(const struct nic *base, struct nic_end out[NIC_ENDS_MAX])
{
    enum { SPEED_MAX_MBPS = 3200000 };
    const struct udp_nic *nic = udp_nic_of(base);

    for (unsigned i = 0; i < nic->end_count; i++) {
        const struct netdev *dev = dev_of(base, i);

        memset(&out[i], 0, sizeof out[i]);
        out[i].address = dev->address;
        out[i].prefix_bits = dev->prefix_bits;
        out[i].speed_mbps = dev->speed_mbps <= SPEED_MAX_MBPS ? (uint32_t)dev->speed_mbps : 0;
        out[i].mtu = dev->mtu;
    }
    return nic->end_count;
}

static int ends_holder(const struct nic *base, const union nic_address *address)
{
    unsigned interface = netdev_of_address(address);

    for (unsigned i = 0; i < udp_nic_of(base)->end_count && interface != 0; i++)
        if (dev_of(base, i)->index == interface)
            return (int)i;
    return -1;
}

static int ends_device(const struct nic *nic, unsigned end)
{
    return (int)udp_nic_of(nic)->ends[end];
}

static bool ends_up(const struct nic *nic, unsigned end)
{
    return !(atomic_load_explicit(&udp_nic_of(nic)->told_down, memory_order_relaxed) >> end & 1);
}

/* ---- a queue's view of them ------------------------------------------------------------------ */

int udp_ends_open(struct udp_queue *queue)
{
    struct udp_nic *nic = udp_nic_of(queue->base.nic);
    struct udp_ends *ends = &queue->ends;
    struct sockaddr_nl link = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    int one = 1, main = queue->sockets[UDP_MAIN_SOCKET];

    if (nic->end_count == 0)
        return 0;
    ends->count = nic->end_count;
    ends->up = (UINT32_C(1) << ends->count) - 1;
    for (unsigned i = 0; i < ends->count; i++)
        ends->interface[i] = dev_of(&nic->base, i)->index;
    /* so that what is received counts for its NIC */
    if (setsockopt(main, queue->v6 ? IPPROTO_IPV6 : IPPROTO_IP, queue->v6 ? IPV6_RECVPKTINFO : IP_PKTINFO, &one,
                   sizeof one) != 0)
        LOG_DBG("no interface beside received datagrams: %s", strerror(errno));
    ends->news_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (ends->news_fd >= 0 && bind(ends->news_fd, (struct sockaddr *)&link, sizeof link) != 0) {
        close(ends->news_fd);
        ends->news_fd = -1;
    }
    if (ends->news_fd < 0)
        LOG_INFORM("the kernel does not tell when a network interface goes down (netlink: %s): silence will",
                   strerror(errno));
    return 0;
}

void udp_ends_close(struct udp_queue *queue)
{
    if (queue->ends.news_fd >= 0)
        close(queue->ends.news_fd);
}

void udp_ends_doubt(struct udp_queue *queue)
{
    queue->ends.look = true;
}

void udp_ends_read_control(const struct udp_queue *queue, const struct cmsghdr *cmsg, struct nic_rx *rx)
{
    struct in6_pktinfo v6;
    struct in_pktinfo v4;
    uint32_t interface = 0;

    if (cmsg->cmsg_level == IPPROTO_IPV6 && cmsg->cmsg_type == IPV6_PKTINFO) {
        memcpy(&v6, CMSG_DATA(cmsg), sizeof v6);
        interface = v6.ipi6_ifindex;
    } else if (cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_PKTINFO) {
        memcpy(&v4, CMSG_DATA(cmsg), sizeof v4);
        interface = (uint32_t)v4.ipi_ifindex;
    }
    for (uint32_t i = 0; i < queue->ends.count && interface != 0; i++)
        if (queue->ends.interface[i] == interface)
            rx->nic = (uint8_t)(i + 1);
}

void udp_ends_count(struct udp_queue *queue, const struct nic_rx *rx, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (rx[i].nic == 0)
            continue;
        struct nic_end_counters *end = &queue->base.ends[rx[i].nic - 1];

        COUNT(end, rx_datagrams, (rx[i].length + rx[i].stride - 1) / rx[i].stride);
        COUNT(end, rx_bytes, rx[i].length);
    }
}

/* ---- what becomes of them -------------------------------------------------------------------- */

static void drain_news(struct udp_ends *ends)
{
    uint8_t bytes[4096];

    while (ends->news_fd >= 0 && (recv(ends->news_fd, bytes, sizeof bytes, 0) > 0 || errno == ENOBUFS))
        ends->look = true;
}

/* The number that the interface has now; 0: it is not usable. */
static uint32_t usable_interface(int socket, const char *name)
{
    struct ifreq request = {0};

    memcpy(request.ifr_name, name, sizeof request.ifr_name);
    if (ioctl(socket, SIOCGIFFLAGS, &request) != 0 || !(request.ifr_flags & IFF_UP) ||
        !(request.ifr_flags & IFF_RUNNING))
        return 0;
    return if_nametoindex(name);
}

/* An interface that was removed and made again has another number. */
static void renumber(struct udp_queue *queue, uint32_t end, uint32_t interface)
{
    queue->ends.interface[end] = interface;
    for (uint32_t i = 0; i < queue->peer_count; i++) {
        struct udp_peer *peer = &queue->peers[i];

        if (!peer->used || peer->nic != end + 1)
            continue;
        peer->interface = interface;
        if (peer->local.any.sa_family != AF_UNSPEC)
            udp_set_source(peer, true);
    }
}

static void tell(struct udp_queue *queue, uint32_t end, bool up)
{
    struct udp_nic *nic = udp_nic_of(queue->base.nic);
    const char *name = dev_of(&nic->base, end)->name;
    uint32_t bit = UINT32_C(1) << end;
    uint32_t before = up ? atomic_fetch_and(&nic->told_down, ~bit) : atomic_fetch_or(&nic->told_down, bit);

    if (!up && !(before & bit))
        LOG_WARNING("network interface %s is down or gone: what it carried goes over the others", name);
    else if (up && (before & bit))
        LOG_WARNING("network interface %s is up again", name);
}

static void look_at_all(struct udp_queue *queue)
{
    struct udp_ends *ends = &queue->ends;

    ends->look = false;
    for (uint32_t i = 0; i < ends->count; i++) {
        uint32_t bit = UINT32_C(1) << i;
        uint32_t interface = usable_interface(queue->sockets[UDP_MAIN_SOCKET], dev_of(queue->base.nic, i)->name);
        bool up = interface != 0;

        if (up && interface != ends->interface[i])
            renumber(queue, i, interface);
        if (up == ((ends->up & bit) != 0))
            continue;
        ends->up ^= bit;
        ends->changed |= bit;
        ends->cursor = 0;
        tell(queue, i, up);
    }
}

static bool ends_event(struct nic_queue *base, struct nic_end_event *out)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_ends *ends = &queue->ends;

    if (++ends->rounds >= ROUNDS_TO_LOOK || ends->look) {
        ends->rounds = 0;
        drain_news(ends);
        if (ends->look)
            look_at_all(queue);
    }
    while (ends->changed != 0 && ends->cursor < queue->peer_count) {
        const struct udp_peer *peer = &queue->peers[ends->cursor++];
        uint32_t bit = peer->nic != 0 ? UINT32_C(1) << (peer->nic - 1) : 0;

        if (!peer->used || !(ends->changed & bit))
            continue;
        *out = (struct nic_end_event){.destination = ends->cursor - 1, .up = (ends->up & bit) != 0};
        return true;
    }
    ends->changed = 0;
    return false;
}

const struct nic_end_ops udp_end_ops = {
    .list = ends_list, .holder = ends_holder, .device = ends_device, .up = ends_up, .event = ends_event};

void udp_choose_ends(struct udp_nic *nic)
{
    nic->end_count = netdev_choose(nic->devs, nic->dev_count, (unsigned)nic->params.max_nics, nic->ends);
    if (nic->end_count < 2)
        nic->end_count = 0;
    else
        nic->base.ends = &udp_end_ops;
}
