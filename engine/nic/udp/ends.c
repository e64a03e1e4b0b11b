/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs in one UDP engine. The sockets are those of any queue: bound to no address, they receive by every NIC. A
 * destination names the NIC that its datagrams leave by, and each send says so to the kernel (IP_PKTINFO,
 * IPV6_PKTINFO). So a NIC that fails or vanishes takes no socket along, and there are no more descriptors to wait for.
 *
 * Thread: the queue's owner, but for the calls on a `nic`: any.
 */
#include "nic/udp/udp.h"

#include "base/log.h"
#include "base/warned.h"
#include "nic/pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the device ------------------------------------------------------------------------------ */

static const struct netdev *dev_of(const struct nic *base, unsigned end)
{
    const struct udp_nic *nic = udp_nic_of(base);

    return &nic->devs[nic->ends[end]];
}

unsigned udp_ends_list(const struct nic *base, struct nic_end out[NIC_ENDS_MAX])
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

int udp_ends_holder(const struct nic *base, const union nic_address *address)
{
    unsigned interface = netdev_of_address(address);

    for (unsigned i = 0; i < udp_nic_of(base)->end_count && interface != 0; i++)
        if (dev_of(base, i)->index == interface)
            return (int)i;
    return -1;
}

int udp_ends_device(const struct nic *nic, unsigned end)
{
    return (int)udp_nic_of(nic)->ends[end];
}

bool udp_ends_up(const struct nic *nic, unsigned end)
{
    return !(atomic_load_explicit(&udp_nic_of(nic)->told_down, memory_order_relaxed) >> end & 1);
}

/* ---- a queue's view of them ------------------------------------------------------------------ */

void udp_ends_open(struct udp_queue *queue)
{
    struct udp_nic *nic = udp_nic_of(queue->base.nic);
    int one = 1, main = queue->sockets[UDP_MAIN_SOCKET];

    link_watch_open(&queue->ends.links, nic->devs, nic->ends, nic->end_count, &nic->told_down, main);
    /* so that what is received counts for its NIC */
    if (nic->end_count != 0 && setsockopt(main, queue->v6 ? IPPROTO_IPV6 : IPPROTO_IP,
                                          queue->v6 ? IPV6_RECVPKTINFO : IP_PKTINFO, &one, sizeof one) != 0)
        LOG_DBG("no interface beside received datagrams: %s", strerror(errno));
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
    for (uint32_t i = 0; i < queue->ends.links.count && interface != 0; i++)
        if (queue->ends.links.interface[i] == interface)
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

/* An interface that was removed and made again has another number. */
static void renumber(struct udp_queue *queue, uint32_t changed)
{
    for (uint32_t i = 0; i < queue->peer_count; i++) {
        struct udp_peer *peer = &queue->peers[i];

        if (!peer->used || peer->nic == 0 || !(changed >> (peer->nic - 1) & 1))
            continue;
        peer->interface = queue->ends.links.interface[peer->nic - 1];
        if (peer->local.any.sa_family != AF_UNSPEC)
            udp_set_source(peer, true);
    }
}

/* What has become of these ends (bits) is to be reported to all peers that they lead to. */
static void report(struct udp_ends *ends, uint32_t changed)
{
    ends->changed |= changed;
    ends->cursor = changed != 0 ? 0 : ends->cursor;
}

static void look(struct udp_queue *queue)
{
    struct link_changes changes;

    if (!link_watch_look(&queue->ends.links, &changes))
        return;
    renumber(queue, changes.number);
    report(&queue->ends, changes.state);
}

bool udp_ends_begin_down(struct udp_queue *queue, unsigned nic)
{
    link_watch_doubt(&queue->ends.links);
    look(queue);
    if (!link_watch_is_down(&queue->ends.links, nic))
        return false;
    report(&queue->ends, UINT32_C(1) << (nic - 1));
    return true;
}

static bool udp_ends_event(struct nic_queue *base, struct nic_end_event *out)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_ends *ends = &queue->ends;

    look(queue);
    while (ends->changed != 0 && ends->cursor < queue->peer_count) {
        const struct udp_peer *peer = &queue->peers[ends->cursor++];
        uint32_t bit = peer->nic != 0 ? UINT32_C(1) << (peer->nic - 1) : 0;

        if (!peer->used || !(ends->changed & bit))
            continue;
        *out =
            (struct nic_end_event){.destination = ends->cursor - 1, .up = !link_watch_is_down(&ends->links, peer->nic)};
        return true;
    }
    ends->changed = 0;
    return false;
}

static const struct nic_end_ops udp_end_ops = {.list = udp_ends_list,
                                               .holder = udp_ends_holder,
                                               .device = udp_ends_device,
                                               .up = udp_ends_up,
                                               .event = udp_ends_event};

/* What is meant for end `i` may come by end `j`. */
static bool receives_for(const struct nic_end *ends, const struct udp_nic *nic, unsigned i, unsigned j)
{
    return i != j && ends[i].address.any.sa_family == AF_INET && nic_end_covers(&ends[j], &ends[i].address) &&
           netdev_mixes_addresses(dev_of(&nic->base, j)->name);
}

static void find_shared(struct udp_nic *nic)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = udp_ends_list(&nic->base, ends);

    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < count; j++) {
            if (!receives_for(ends, nic, i, j))
                continue;
            nic->shared |= UINT32_C(1) << i;
            if (warned_first("interfaces of one subnet"))
                LOG_WARNING("network interface %s answers for the address of %s: set net.ipv4.conf.all.arp_ignore=1 "
                            "and arp_announce=2",
                            dev_of(&nic->base, j)->name, dev_of(&nic->base, i)->name);
        }
}

/* Those without carrier are nothing that the log would have to tell of as lost. */
static void find_late(struct udp_nic *nic)
{
    uint32_t late = 0;

    for (unsigned i = 0; i < nic->end_count; i++) {
        if (dev_of(&nic->base, i)->class != NETDEV_NO_CARRIER)
            continue;
        late |= UINT32_C(1) << i;
        LOG_INFORM("network interface %s has no carrier: it is used once it has one", dev_of(&nic->base, i)->name);
    }
    atomic_store_explicit(&nic->told_down, late, memory_order_relaxed); /* there are no queues yet */
}

void udp_choose_ends(struct udp_nic *nic)
{
    nic->end_count = netdev_choose(nic->devs, nic->dev_count, (unsigned)nic->params.max_nics, nic->ends);
    if (nic->end_count < 2)
        nic->end_count = 0;
    else
        nic->base.ends = &udp_end_ops;
    find_late(nic);
    find_shared(nic);
}
