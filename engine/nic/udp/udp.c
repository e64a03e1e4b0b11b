/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP backend: devices, the sockets of a queue, peers and their path MTU. udp/send.c assembles chunks into sends;
 * the system calls are in the drivers (udp.h).
 *
 * Thread: a queue belongs to its owner (nic.h); wake() alone may come from anywhere.
 */
#include "nic/udp/udp.h"

#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "core/wire.h"

#include <assert.h>
#include <errno.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    SOCKET_BUFFER_UNKNOWN = 212992, /* Linux's default, where the system does not tell */
    MUTE_RX_BYTES = 1,              /* receive buffer of sockets that only send; the kernel raises it to its minimum */
};

/* ---- the backend ----------------------------------------------------------------------------- */

static int udp_open(const struct params *params, struct nic **out)
{
    struct udp_nic *nic = calloc(1, sizeof *nic);

    if (!nic) {
        LOG_ERR("no memory for the UDP backend");
        return UCCL_ENOMEM;
    }
    nic->params = *params;
    nic->dev_count = netdev_list(params->socket_ifname, &nic->devs);
    if (nic->dev_count <= 0) {
        int status = nic->dev_count < 0 ? nic->dev_count : UCCL_ENODEV;

        if (status == UCCL_ENODEV && !*params->socket_ifname)
            LOG_ERR("no network interface is up and has an address");
        else if (status == UCCL_ENODEV)
            LOG_ERR("no network interface that is up and has an address matches "
                    "UCCL_SOCKET_IFNAME=\"%s\"",
                    params->socket_ifname);
        free(nic->devs);
        free(nic);
        return status;
    }
    nic->base = (struct nic){
        .ops = &udp_device_ops,
        .caps = {.whole_trains = true,
                 .lendable = params->udp_io != UDP_IO_URING,
                 .room_wakes = true,
                 .routed = true,
                 .close_in_child = true}, /* descriptors and memory */
    };
    udp_choose_ends(nic);
    *out = &nic->base;
    return 0;
}

static void udp_close(struct nic *base)
{
    struct udp_nic *nic = udp_nic_of(base);

    free(nic->devs);
    free(nic);
}

static int udp_device_count(const struct nic *nic)
{
    return udp_nic_of(nic)->dev_count;
}

static int udp_device(const struct nic *base, int index, struct uccl_device *out, union nic_address *address)
{
    static const char *const io[] = {[UDP_IO_AUTO] = "auto", [UDP_IO_URING] = "uring", [UDP_IO_MMSG] = "mmsg"};
    const struct udp_nic *nic = udp_nic_of(base);
    char text[NETDEV_ADDRESS_TEXT];
    const struct netdev *dev;

    if (index < 0 || index >= nic->dev_count)
        return UCCL_ENODEV;
    dev = &nic->devs[index];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", dev->name);
    snprintf(out->backend, sizeof out->backend, "udp");
    netdev_address_text(&dev->address, text);
    snprintf(out->address, sizeof out->address, "%.63s", text);
    snprintf(out->description, sizeof out->description, "UDP sockets with GSO and GRO, io %s, %u paths per peer%s",
             io[nic->params.udp_io], (unsigned)nic->params.port_entropy,
             dev->class == NETDEV_NO_CARRIER ? ", no carrier" : "");
    out->speed_mbps = dev->speed_mbps;
    out->mtu = dev->mtu;
    out->numa_node = dev->numa_node;
    out->is_loopback = dev->class == NETDEV_LOOPBACK;
    *address = dev->address;
    return 0;
}

static int udp_addresses(const struct nic *nic, union nic_address *out, int max)
{
    return netdev_addresses(udp_nic_of(nic)->params.socket_ifname, out, max);
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* Sets an option that a socket can do without: a kernel that lacks it costs speed or a signal. */
static void set_option(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value) != 0)
        LOG_DBG("UDP socket option %d:%d not set: %s", level, name, strerror(errno));
}

/* Asks for `bytes` of socket buffer. Returns the kernel's measure, which is twice what it grants. */
static uint64_t set_buffer(int fd, int force, int plain, uint64_t bytes)
{
    int value = (int)bytes, granted = 0;
    socklen_t length = sizeof granted;

    if (setsockopt(fd, SOL_SOCKET, force, &value, sizeof value) != 0)
        set_option(fd, SOL_SOCKET, plain, value);
    if (getsockopt(fd, SOL_SOCKET, plain, &granted, &length) != 0 || granted <= 0)
        return SOCKET_BUFFER_UNKNOWN;
    return (uint64_t)granted;
}

static void set_buffers(struct udp_queue *queue, int fd, bool main)
{
    uint64_t want = queue->setup.params->socket_buffer_kb * 1024;
    uint64_t sends, receives;

    if (want > INT32_MAX / 2)
        want = INT32_MAX / 2; /* the kernel doubles it in an int */
    sends = set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, want);
    receives = set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, main ? want : MUTE_RX_BYTES);
    if (!main)
        return;
    queue->rx_bytes = receives;
    if (receives < 2 * want || sends < 2 * want)
        LOG_INFORM("UDP socket buffers: asked for %llu KiB, granted %llu to receive and %llu to "
                   "send; raise "
                   "sysctl net.core.rmem_max and net.core.wmem_max, or lower UCCL_SOCKET_BUFFER_KB",
                   (unsigned long long)want / 1024, (unsigned long long)receives / 2048,
                   (unsigned long long)sends / 2048);
}

static int bind_any(int fd, bool v6, uint16_t *port)
{
    union nic_address any = {0};
    socklen_t length = v6 ? sizeof any.v6 : sizeof any.v4;

    any.any.sa_family = v6 ? AF_INET6 : AF_INET; /* all zeroes: the wildcard address, a free port */
    if (bind(fd, &any.any, length) != 0 || getsockname(fd, &any.any, &length) != 0)
        return -1;
    *port = ntohs(*nic_address_port(&any));
    return 0;
}

/* A bound socket of the family, or -1 with errno. */
static int open_socket(struct udp_queue *queue, bool v6, bool main)
{
    int fd = descriptor_keep(socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int zero = 0, saved, field = udp_class_field((unsigned)queue->setup.params->traffic_class);
    uint16_t port = 0;

    if (fd < 0)
        return -1;
    if ((v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) != 0) || bind_any(fd, v6, &port) != 0) {
        saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    set_buffers(queue, fd, main);
    /* an IPv6 socket has the IPv4 options too: they rule datagrams to and from mapped
     * addresses */
    set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    set_option(fd, IPPROTO_IP, IP_TOS, field);
    if (v6) {
        set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_WANT);
        set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, field);
    }
    if (queue->socket_count < NIC_PORTS_TOLD_MAX)
        queue->ports[queue->socket_count] = port;
    if (!main)
        return fd;
    set_option(fd, IPPROTO_UDP, UDP_GRO, 1);
    set_option(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
    set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
    if (v6)
        set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    return fd;
}

static int open_sockets(struct udp_queue *queue)
{
    uint32_t count = (uint32_t)queue->setup.params->port_entropy;
    int value;
    socklen_t length = sizeof value;

    if (count == 0)
        count = 1;
    queue->sockets = calloc(count, sizeof *queue->sockets);
    if (!queue->sockets)
        return udp_no_memory(queue);
    for (; queue->socket_count < count; queue->socket_count++) {
        bool main = queue->socket_count == UDP_MAIN_SOCKET;
        int fd;

        if (main)
            queue->v6 = true;
        fd = open_socket(queue, queue->v6, main);
        if (fd < 0 && main && fault_error(errno) != UCCL_ENOMEM) { /* IPv6 may be switched off */
            queue->v6 = false;
            fd = open_socket(queue, false, main);
        }
        if (fd < 0) {
            char text[FAULT_TEXT];
            int error = errno;

            LOG_ERR("cannot open UDP socket %u of UCCL_PORT_ENTROPY=%u: %s", queue->socket_count + 1, count,
                    fault_text(error, text));
            return fault_error(error);
        }
        queue->sockets[queue->socket_count] = fd;
    }
    queue->gso = getsockopt(queue->sockets[UDP_MAIN_SOCKET], IPPROTO_UDP, UDP_SEGMENT, &value, &length) == 0;
    if (!queue->gso)
        LOG_INFORM("this kernel has no UDP segmentation offload: every datagram is a send of its own");
    return 0;
}

int udp_no_memory(const struct udp_queue *queue)
{
    LOG_ERR("no memory for UDP queue %u with %u peers", queue->setup.index, queue->peer_count);
    return UCCL_ENOMEM;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void udp_queue_close(struct nic_queue *base)
{
    struct udp_queue *queue = udp_queue_of(base);

    if (queue->io)
        queue->driver->close(queue);
    for (uint32_t i = 0; i < queue->socket_count; i++)
        close(queue->sockets[i]);
    if (queue->wake_fd >= 0)
        close(queue->wake_fd);
    link_watch_close(&queue->ends.links);
    free(queue->sockets);
    free(queue->peers);
    free(queue->batch.buffer);
    free(queue);
}

/* Chooses the driver by UCCL_UDP_IO and opens it. */
static int open_driver(struct udp_queue *queue)
{
    char reason[256] = "libuccl-engine was built without liburing";
    int status = UCCL_ENOTSUP;

    if (queue->setup.params->udp_io != UDP_IO_URING) {
        queue->driver = &udp_mmsg_driver;
        return queue->driver->open(queue, reason, sizeof reason);
    }
    if (queue->setup.lent) {
        LOG_ERR("UCCL_UDP_IO=uring does not go with lent engines: a ring belongs to one thread; set "
                "UCCL_LEND=no or UCCL_UDP_IO=auto");
        return UCCL_EINVAL;
    }
#ifdef HAVE_LIBURING
    queue->driver = &udp_uring_driver;
    status = queue->driver->open(queue, reason, sizeof reason);
#endif
    if (status == UCCL_ENOTSUP)
        LOG_ERR("UCCL_UDP_IO=uring is not possible: %s", reason);
    return status;
}

static int udp_queue_open(struct nic *nic, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct udp_queue *queue = calloc(1, sizeof *queue);
    int status;

    if (!queue) {
        LOG_ERR("no memory for a UDP queue");
        return UCCL_ENOMEM;
    }
    queue->base = (struct nic_queue){.nic = nic, .ops = &udp_queue_ops, .datagram = &udp_datagram_ops};
    queue->setup = *setup;
    queue->peer_free = queue->mtu_pending = UDP_NO_PEER;
    queue->full_socket = UDP_NONE_FULL;
    queue->room_fd = -1;
    queue->ends.links.netlink_fd = -1;
    queue->batch.last_lost = UINT32_MAX;
    queue->batch.buffer = aligned_alloc(64, UDP_BATCH_BYTES);
    queue->wake_fd = descriptor_keep(eventfd(0, EFD_CLOEXEC));
    if (queue->wake_fd < 0) {
        char text[FAULT_TEXT];

        status = fault_error(errno);
        LOG_ERR("cannot make an eventfd: %s", fault_text(errno, text));
    } else if (!queue->batch.buffer) {
        status = udp_no_memory(queue);
    } else {
        status = open_sockets(queue);
    }
    if (status == 0) {
        udp_ends_open(queue);
        status = open_driver(queue);
    }
    if (status != 0) {
        udp_queue_close(&queue->base);
        return status;
    }
    LOG_DBG("UDP queue %u: port %u, %u sockets, %s, %s", setup->index, queue->ports[UDP_MAIN_SOCKET],
            queue->socket_count, queue->v6 ? "dual-stack" : "IPv4 only", queue->driver->name);
    *out = &queue->base;
    return 0;
}

/* {NIC_ADDRESS_UDP, ports in network byte order, the main one first} */
static void udp_queue_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    const struct udp_queue *queue = udp_queue_of(base);

    out->length = 1;
    out->bytes[0] = NIC_ADDRESS_UDP;
    for (uint32_t i = 0; i < queue->socket_count && i < NIC_PORTS_TOLD_MAX; i++) {
        out->bytes[out->length++] = (uint8_t)(queue->ports[i] >> 8);
        out->bytes[out->length++] = (uint8_t)queue->ports[i];
    }
}

static uint64_t udp_queue_rx_bytes(const struct nic_queue *queue)
{
    return udp_queue_of(queue)->rx_bytes;
}

/* ---- peers ----------------------------------------------------------------------------------- */

/*
 * Asks for the route to the peer: sets its source, and returns its datagram size. 0: none (errno), unless there will be
 * one of `mtu_to_come` (0: no).
 */
static uint32_t ask_route(const struct udp_queue *queue, struct udp_peer *peer, uint32_t mtu_to_come)
{
    const union nic_address *address = &peer->address;
    uint32_t headers = nic_udp_headers(address);
    bool by_itself;
    uint32_t mtu = netdev_route_mtu(address, &peer->local, peer->interface, &by_itself);

    if (mtu == 0)
        mtu = mtu_to_come;
    if (mtu == 0)
        return 0;
    udp_set_source(peer, (!by_itself || peer->interface != 0) && peer->local.any.sa_family != AF_UNSPEC);
    if (queue->setup.params->mtu != 0 && mtu > queue->setup.params->mtu)
        mtu = (uint32_t)queue->setup.params->mtu;
    if (mtu < headers + CORE_DATAGRAM_MIN)
        return CORE_DATAGRAM_MIN; /* the kernel fragments */
    return mtu - headers < CORE_TRAIN_BYTES_MAX ? mtu - headers : CORE_TRAIN_BYTES_MAX;
}

/* The address as the sockets' family has it. False: the family cannot reach it. */
static bool to_socket_family(const struct udp_queue *queue, const union nic_address *in, union nic_address *out)
{
    memset(out, 0, sizeof *out);
    if (in->any.sa_family == AF_INET && queue->v6) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = in->v4.sin_port;
        out->v6.sin6_addr.s6_addr[10] = out->v6.sin6_addr.s6_addr[11] = 0xff;
        memcpy(&out->v6.sin6_addr.s6_addr[12], &in->v4.sin_addr, sizeof in->v4.sin_addr);
        return true;
    }
    if (in->any.sa_family == AF_INET6 && !queue->v6) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = in->v6.sin6_port;
        memcpy(&out->v4.sin_addr, &in->v6.sin6_addr.s6_addr[12], sizeof out->v4.sin_addr);
        return IN6_IS_ADDR_V4MAPPED(&in->v6.sin6_addr);
    }
    *out = *in;
    return in->any.sa_family == AF_INET || in->any.sa_family == AF_INET6;
}

/* A free entry of the table of peers, which grows with them; UDP_NO_PEER: out of memory. */
static int32_t udp_take_peer(struct udp_queue *queue)
{
    int32_t index = queue->peer_free;

    if (index != UDP_NO_PEER) {
        queue->peer_free = queue->peers[index].next;
        return index;
    }
    if (queue->peer_count == queue->peer_capacity) {
        uint32_t capacity = queue->peer_capacity == 0 ? 16 : 2 * queue->peer_capacity;
        struct udp_peer *peers;

        if (capacity > INT32_MAX)
            return UDP_NO_PEER;
        peers = realloc(queue->peers, capacity * sizeof *peers);
        if (!peers)
            return UDP_NO_PEER;
        queue->peers = peers;
        queue->peer_capacity = capacity;
    }
    return (int32_t)queue->peer_count++;
}

/* The addresses as our sockets take them, and what the route allows. */
static int find_route(struct udp_queue *queue, const struct nic_host *host, struct udp_peer *peer)
{
    uint32_t mtu_to_come = 0;
    char text[NETDEV_ADDRESS_TEXT];

    if (!to_socket_family(queue, &host->address, &peer->address)) {
        LOG_ERR("peer address of family %d cannot be reached: %s", host->address.any.sa_family,
                queue->v6 ? "neither IPv4 nor IPv6" : "this machine has no IPv6");
        return UCCL_EADDR;
    }
    if (!to_socket_family(queue, &host->local, &peer->local))
        peer->local.any.sa_family = AF_UNSPEC;
    peer->traffic_class = host->traffic_class;
    if (host->nic != 0) {
        const struct udp_nic *nic = udp_nic_of(queue->base.nic);

        if (udp_ends_begin_down(queue, host->nic))
            mtu_to_come = nic->devs[nic->ends[host->nic - 1]].mtu;
        peer->nic = host->nic;
        peer->interface = queue->ends.links.interface[host->nic - 1];
    }
    peer->datagram_bytes = ask_route(queue, peer, mtu_to_come);
    if (peer->datagram_bytes == 0) {
        char why[FAULT_TEXT];
        int error = errno;

        LOG(host->nic != 0 ? UCCL_LOG_INFO : UCCL_LOG_ERROR, "no route to peer %s: %s",
            netdev_address_text(&host->address, text), fault_text(error, why));
        return fault_error(error) == UCCL_ENOMEM ? UCCL_ENOMEM : UCCL_EADDR;
    }
    return 0;
}

static int udp_route(struct nic_queue *queue, const struct nic_host *host, uint32_t *datagram_bytes)
{
    struct udp_peer peer = {0};
    int status = find_route(udp_queue_of(queue), host, &peer);

    if (status == 0)
        *datagram_bytes = peer.datagram_bytes;
    return status;
}

/* False: they make no sense; nothing can be sent to port 0. */
static bool take_ports(struct udp_peer *peer, const struct nic_queue_address *address)
{
    uint32_t bytes = address->length - 1u;

    if (bytes == 0 || bytes % 2 != 0 || bytes > sizeof peer->ports)
        return false;
    memcpy(peer->ports, address->bytes + 1, bytes);
    for (uint32_t i = 0; i < bytes / 2; i++)
        if (peer->ports[i] == 0)
            return false;
    return true;
}

static int udp_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *address,
                        uint32_t *destination, uint32_t *datagram_bytes)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_peer peer = {.used = true, .gso = queue->gso, .descs_to_check = UDP_MTU_CHECK_SENDS};
    int32_t index;
    int status;

    if (address->bytes[0] != NIC_ADDRESS_UDP) {
        LOG_ERR("the peer does not use UDP (its address is of kind %u): set the same UCCL_BACKEND on both "
                "sides",
                address->bytes[0]);
        return UCCL_EPROTO;
    }
    if (!take_ports(&peer, address)) {
        LOG_WARNING("the peer's UDP address is malformed: %u bytes, port %u", address->length, ntohs(peer.ports[0]));
        return UCCL_EPROTO;
    }
    status = find_route(queue, host, &peer);
    if (status != 0)
        return status;
    *nic_address_port(&peer.address) = peer.ports[0];
    index = udp_take_peer(queue);
    if (index == UDP_NO_PEER)
        return udp_no_memory(queue);
    queue->peers[index] = peer;
    *destination = (uint32_t)index;
    *datagram_bytes = peer.datagram_bytes;
    return 0;
}

/* Takes a peer off the list of those whose MTU has changed. */
static void forget_mtu(struct udp_queue *queue, int32_t index)
{
    int32_t *link = &queue->mtu_pending;

    while (*link != index)
        link = &queue->peers[*link].next;
    *link = queue->peers[index].next;
    queue->peers[index].mtu_pending = false;
}

static void udp_peer_remove(struct nic_queue *base, uint32_t destination)
{
    struct udp_queue *queue = udp_queue_of(base);
    struct udp_peer *peer = &queue->peers[destination];

    assert(destination < queue->peer_count && peer->used);
    if (peer->mtu_pending)
        forget_mtu(queue, (int32_t)destination);
    peer->used = false; /* sends still staged for it have their own copy of the address */
    peer->next = queue->peer_free;
    queue->peer_free = (int32_t)destination;
}

void udp_check_mtu(struct udp_queue *queue, uint32_t destination)
{
    struct udp_peer *peer = &queue->peers[destination];
    uint32_t bytes;

    if (!peer->used)
        return;
    peer->descs_to_check = UDP_MTU_CHECK_SENDS;
    bytes = ask_route(queue, peer, 0);
    if (bytes == 0 || bytes == peer->datagram_bytes)
        return;
    peer->datagram_bytes = bytes;
    if (!peer->mtu_pending) {
        peer->mtu_pending = true;
        peer->next = queue->mtu_pending;
        queue->mtu_pending = (int32_t)destination;
    }
}

static bool udp_follow(struct nic_queue *base, uint32_t *destination, uint32_t *datagram_bytes)
{
    struct udp_queue *queue = udp_queue_of(base);
    int32_t index = queue->mtu_pending;

    if (index == UDP_NO_PEER)
        return false;
    forget_mtu(queue, index);
    *destination = (uint32_t)index;
    *datagram_bytes = queue->peers[index].datagram_bytes;
    return true;
}

/* ---- receiving and sleeping ------------------------------------------------------------------ */

void udp_read_control(struct udp_queue *queue, struct msghdr *header, struct nic_rx *rx)
{
    rx->stride = rx->length;
    rx->ce = false;
    rx->nic = 0;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
        const unsigned char *data = CMSG_DATA(cmsg);
        int value = 0;

        memcpy(&value, data, cmsg->cmsg_len - CMSG_LEN(0) < sizeof value ? 1 : sizeof value);
        if (cmsg->cmsg_level == IPPROTO_UDP && cmsg->cmsg_type == UDP_GRO) {
            if (value > 0 && (uint32_t)value < rx->length)
                rx->stride = (uint32_t)value;
        } else if ((cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_TOS) ||
                   (cmsg->cmsg_level == IPPROTO_IPV6 && cmsg->cmsg_type == IPV6_TCLASS)) {
            rx->ce = (*data & NIC_ECN_CE) == NIC_ECN_CE;
        } else if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SO_RXQ_OVFL) {
            uint32_t drops = (uint32_t)value;

            COUNT(queue->setup.counters, rx_kernel_drops, drops - queue->drops_seen);
            queue->drops_seen = drops;
        } else {
            udp_ends_read_control(queue, cmsg, rx);
        }
    }
}

static unsigned udp_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct udp_queue *queue = udp_queue_of(base);

    unsigned count = queue->driver->poll(queue, out, max);

    if (queue->ends.links.count != 0)
        udp_ends_count(queue, out, count);
    return count;
}

static void udp_release(struct nic_queue *base, const struct nic_rx *rx)
{
    struct udp_queue *queue = udp_queue_of(base);

    queue->driver->release(queue, rx);
}

static void udp_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    struct udp_queue *queue = udp_queue_of(base);

    queue->driver->wait(queue, beside_fd, timeout_ns);
}

/* On any thread; pairs with the read of the eventfd in the drivers' wait(). */
static void udp_wake(struct nic_queue *queue)
{
    nic_wake_eventfd(udp_queue_of(queue)->wake_fd);
}

const struct nic_device_ops udp_device_ops = {
    .kind = NIC_ADDRESS_UDP,
    .open = udp_open,
    .close = udp_close,
    .device_count = udp_device_count,
    .device = udp_device,
    .addresses = udp_addresses,
    .queue_open = udp_queue_open,
};

const struct nic_queue_ops udp_queue_ops = {
    .close = udp_queue_close,
    .address = udp_queue_address,
    .rx_bytes = udp_queue_rx_bytes,
    .arm = udp_arm,
    .wait = udp_wait,
    .wake = udp_wake,
};

const struct nic_datagram_ops udp_datagram_ops = {
    .route = udp_route,
    .peer_add = udp_peer_add,
    .peer_remove = udp_peer_remove,
    .send = udp_send,
    .flush = udp_flush,
    .poll = udp_poll,
    .release = udp_release,
    .follow = udp_follow,
};
