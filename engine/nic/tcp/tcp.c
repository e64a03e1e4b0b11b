/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP backend: devices, queues and peers. It has the same devices as UDP, so the UDP backend lists them.
 *
 * Thread: a queue belongs to its owner (nic.h); wake() alone may come from anywhere.
 */
#include "nic/tcp/tcp.h"

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/unmap.h"
#include "nic/udp/udp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* TCP bounds what a peer may send by itself: so much that acks never hold a peer back. */
static const uint64_t RX_BYTES = UINT64_C(1) << 40;

/* ---- the backend ----------------------------------------------------------------------------- */

static const struct nic_end_ops tcp_end_ops = {.list = udp_ends_list,
                                               .holder = udp_ends_holder,
                                               .device = udp_ends_device,
                                               .up = udp_ends_up,
                                               .event = tcp_links_event};

static int tcp_open(const struct params *params, struct nic **out)
{
    int status = udp_device_ops.open(params, out);
    if (status != 0)
        return status;
    (*out)->ops = &tcp_device_ops;
    if ((*out)->ends)
        (*out)->ends = &tcp_end_ops;
    (*out)->caps = (struct nic_caps){
        .reliable = true, .in_order = true, .lendable = true, .room_wakes = true, .close_in_child = true};
    return 0;
}

static void tcp_close(struct nic *nic)
{
    udp_device_ops.close(nic);
}

static int tcp_device_count(const struct nic *nic)
{
    return udp_device_ops.device_count(nic);
}

static int tcp_device(const struct nic *nic, int index, struct uccl_device *out, union nic_address *address)
{
    int status = udp_device_ops.device(nic, index, out, address);
    if (status != 0)
        return status;
    snprintf(out->backend, sizeof out->backend, "tcp");
    snprintf(out->description, sizeof out->description, "TCP connections%s",
             udp_nic_of(nic)->devs[index].class == NETDEV_NO_CARRIER ? ", no carrier" : "");
    return 0;
}

static int tcp_addresses(const struct nic *nic, union nic_address *out, int max)
{
    return udp_device_ops.addresses(nic, out, max);
}

/* Logs that memory ran out and returns UCCL_ENOMEM. */
static int no_memory(const struct tcp_queue *queue)
{
    LOG(TCP_LOG_ERROR(queue), "no memory for TCP queue %u with %u peers", queue->setup.index, queue->destination_count);
    return UCCL_ENOMEM;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* `inherited`: the connections are another process's. */
static void free_peer(struct tcp_queue *queue, struct tcp_peer *peer, bool inherited)
{
    struct tcp_peer **link = &queue->peers;
    while (*link != peer)
        link = &(*link)->next;
    *link = peer->next;
    queue->by_destination[peer->destination & ~NIC_BESIDE] = NULL;
    for (unsigned i = 0; i < peer->path_count; i++) {
        struct tcp_conn *conn = &peer->conns[i];
        if (inherited) {
            close_fd(conn->fd);
            tcp_forget_in(conn);
            tcp_forget_out(queue, conn);
        } else {
            tcp_hang_up(queue, conn);
        }
    }
    free(peer);
}

static void tcp_queue_close(struct nic_queue *base)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    while (queue->peers) /* in a child of fork() there may be some, whose connections are the parent's */
        free_peer(queue, queue->peers, true);
    tcp_free_spent(queue);
    for (unsigned i = 0; i < TCP_STRANGERS_MAX; i++)
        close_fd(queue->strangers[i].fd);
    close_fd(queue->listen_fd);
    close_fd(queue->epoll_fd);
    close_fd(queue->wake_fd);
    close_fd(queue->spare_fd);
    link_watch_close(&queue->links);
    if (queue->zeros)
        unmap(queue->zeros, RECORD_BULK_MAX);
    free(queue->by_destination);
    free(queue->slots);
    free(queue->discard);
    free(queue->gathered);
    free(queue);
}

/* Beside another queue: whatever that one needs for a peer comes first, such as a socket that asks for a route. */
static int leave_one(const struct tcp_queue *queue)
{
    char text[FAULT_TEXT];
    int fd = fcntl(queue->epoll_fd, F_DUPFD_CLOEXEC, 0), error = errno;
    close_fd(fd);
    if (fd >= 0)
        return 0;
    LOG_WARNING("no TCP connections beside UDP, as these would take the last descriptor: %s", fault_text(error, text));
    return fault_error(error);
}

static int open_descriptors(struct tcp_queue *queue)
{
    char text[FAULT_TEXT];
    queue->epoll_fd = descriptor_keep(epoll_create1(EPOLL_CLOEXEC));
    queue->wake_fd = queue->epoll_fd < 0 ? -1 : descriptor_keep(eventfd(0, EFD_CLOEXEC));
    if (queue->wake_fd < 0) {
        int error = errno;
        LOG(TCP_LOG_ERROR(queue), "cannot make an epoll or an eventfd: %s", fault_text(error, text));
        return fault_error(error);
    }
    tcp_keep_spare(queue);
    int error = tcp_listen(queue);
    if (error == 0)
        tcp_links_open(queue);
    if (error == 0 && queue->setup.beside)
        error = leave_one(queue);
    return error;
}

static int tcp_queue_open(struct nic *nic, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct tcp_queue *queue = calloc(1, sizeof *queue);
    if (!queue) {
        LOG(setup->beside ? UCCL_LOG_WARN : UCCL_LOG_ERROR, "no memory for a TCP queue");
        return UCCL_ENOMEM;
    }
    queue->base = (struct nic_queue){
        .nic = nic, .ops = &tcp_queue_ops, .datagram = &tcp_datagram_ops, .channel = &tcp_channel_ops};
    queue->setup = *setup;
    queue->epoll_fd = queue->listen_fd = queue->wake_fd = queue->spare_fd = queue->links.netlink_fd = -1;
    queue->act_ns = UINT64_MAX;
    for (unsigned i = 0; i < TCP_STRANGERS_MAX; i++)
        queue->strangers[i].fd = -1;
    queue->slots = malloc((size_t)TCP_SLOTS * TCP_SLOT_BYTES);
    queue->discard = malloc(TCP_DISCARD_BYTES);
    queue->zeros = mmap(NULL, RECORD_BULK_MAX, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (queue->zeros == MAP_FAILED)
        queue->zeros = NULL;
    int status = queue->slots && queue->discard && queue->zeros ? open_descriptors(queue) : no_memory(queue);
    if (status != 0) {
        tcp_queue_close(&queue->base);
        return status;
    }
    LOG_DBG("TCP queue %u: port %u", setup->index, queue->port);
    *out = &queue->base;
    return 0;
}

/* {NIC_ADDRESS_TCP, port in network byte order, paths - 1} */
enum { ADDRESS_BYTES = 4 };

static uint16_t own_paths(const struct tcp_queue *queue)
{
    uint64_t count = queue->setup.params->port_entropy;
    return count ? (uint16_t)count : 1;
}

static void tcp_queue_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    const struct tcp_queue *queue = tcp_queue_of(base);
    *out = (struct nic_queue_address){
        .length = ADDRESS_BYTES,
        .bytes = {NIC_ADDRESS_TCP, (uint8_t)(queue->port >> 8), (uint8_t)queue->port, (uint8_t)(own_paths(queue) - 1)}};
}

static uint64_t tcp_rx_bytes(const struct nic_queue *queue)
{
    (void)queue;
    return RX_BYTES;
}

static int tcp_watch(struct nic_queue *base, uint64_t *timeout_ns)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    queue->awake_reads = 0;
    if (queue->sole && !tcp_watch_again(queue, queue->sole))
        tcp_break_of(queue, queue->sole, errno); /* nothing would end the sleep */
    if (queue->live)                             /* after the sleep it is looked at */
        queue->since_look = LOOK_AFTER_SLEEP;
    else
        queue->since_look += LOOK_UNUSED / LOOK_UNUSED_SLEEPS;
    uint64_t left_ns = UINT64_MAX, now_ns = queue->act_ns != UINT64_MAX ? clock_now_ns() : 0;
    if (queue->ready.head || queue->events.head)
        left_ns = 0;
    else if (queue->act_ns != UINT64_MAX)
        left_ns = queue->act_ns > now_ns ? queue->act_ns - now_ns : 0;
    if (queue->act_ns <= now_ns)
        queue->since_look = LOOK_UNUSED;
    if (left_ns < *timeout_ns)
        *timeout_ns = left_ns;
    return queue->epoll_fd;
}

static void tcp_wait(struct nic_queue *base, int watched_fd, uint64_t timeout_ns)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    struct pollfd fds[2] = {{.fd = watched_fd, .events = POLLIN}, {.fd = queue->wake_fd, .events = POLLIN}};
    uint64_t wakes;
    if (timeout_ns == 0)
        return;
    COUNT(queue->setup.counters, wait_syscalls, 1);
    if (nic_sleep(fds, 2, timeout_ns) <= 0)
        return;
    if (fds[1].revents & POLLIN) {
        COUNT(queue->setup.counters, wait_syscalls, 1);
        if (read(queue->wake_fd, &wakes, sizeof wakes) < 0) /* the owner alone reads, so it cannot block */
            LOG_ERR("cannot read the wake eventfd: %s", strerror(errno));
    }
}

/* On any thread; pairs with the read of the eventfd in tcp_wait(). */
static void tcp_wake(struct nic_queue *queue)
{
    nic_wake_eventfd(tcp_queue_of(queue)->wake_fd);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static int tcp_route(struct nic_queue *queue, const struct nic_host *host, uint32_t *datagram_bytes)
{
    (void)queue, (void)host; /* the handshake came over TCP, too */
    *datagram_bytes = RECORD_BULK_MAX;
    return 0;
}

/* A free number for a peer. UINT32_MAX: no memory. */
static uint32_t take_destination(struct tcp_queue *queue)
{
    for (uint32_t i = 0; i < queue->destination_count; i++)
        if (!queue->by_destination[i])
            return i;
    uint32_t count = queue->destination_count ? 2 * queue->destination_count : 8;
    struct tcp_peer **more = realloc(queue->by_destination, count * sizeof *more);
    if (!more)
        return UINT32_MAX;
    memset(more + queue->destination_count, 0, (count - queue->destination_count) * sizeof *more);
    queue->by_destination = more;
    uint32_t first = queue->destination_count;
    queue->destination_count = count;
    return first;
}

static int tcp_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *address,
                        uint32_t *destination, uint32_t *datagram_bytes)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    if (address->bytes[0] != NIC_ADDRESS_TCP) {
        LOG_ERR("the peer does not use TCP (its address is of kind %u): set the same UCCL_BACKEND on both sides",
                address->bytes[0]);
        return UCCL_EPROTO;
    }
    if (address->length != ADDRESS_BYTES || (address->bytes[1] == 0 && address->bytes[2] == 0)) {
        LOG_WARNING("the peer's TCP address is malformed: %u bytes", address->length);
        return UCCL_EPROTO;
    }
    if (host->address.any.sa_family != AF_INET && host->address.any.sa_family != AF_INET6) {
        LOG_ERR("peer address of family %d cannot be reached over TCP", host->address.any.sa_family);
        return UCCL_EADDR;
    }
    uint16_t theirs = (uint16_t)(address->bytes[3] + 1), count = own_paths(queue) < theirs ? own_paths(queue) : theirs;
    struct tcp_peer *peer = calloc(1, sizeof *peer + count * sizeof peer->conns[0]);
    uint32_t number = peer ? take_destination(queue) : UINT32_MAX;
    if (number == UINT32_MAX) {
        free(peer);
        return no_memory(queue);
    }
    *destination = peer->destination = number | (queue->setup.beside ? NIC_BESIDE : 0);
    peer->address = host->address;
    peer->path_count = count;
    peer->traffic_class = host->traffic_class;
    peer->local = host->local;
    peer->nic = host->nic;
    *nic_address_port(&peer->local) = 0;
    memcpy(nic_address_port(&peer->address), address->bytes + 1, sizeof(in_port_t));
    for (uint16_t i = 0; i < count; i++)
        peer->conns[i] =
            (struct tcp_conn){.peer = peer, .fd = -1, .path = i, .batch_bytes = TCP_BATCH_MAX, .act_ns = UINT64_MAX};
    peer->next = queue->peers;
    queue->peers = peer;
    queue->by_destination[number] = peer;
    *datagram_bytes = RECORD_BULK_MAX;
    return 0;
}

static void tcp_peer_remove(struct nic_queue *base, uint32_t destination)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    free_peer(queue, tcp_peer_of(queue, destination), false);
}

static void tcp_introduce(struct nic_queue *base, uint32_t destination, const struct nic_flow *flow)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    struct tcp_peer *peer = tcp_peer_of(queue, destination);
    peer->flow = flow->flow;
    peer->rail = flow->rail;
    peer->rails = flow->rails;
    peer->patience_ms = flow->patience_ms;
    peer->beside = flow->beside;
    peer->dials = flow->dials;
    peer->rx_token = flow->rx_token;
    peer->tx_token = flow->tx_token;
    for (unsigned i = 0; peer->dials && i < peer->path_count; i++) {
        if (peer->conns[i].state == TCP_DOWN)
            tcp_dial(queue, &peer->conns[i], clock_now_ns());
    }
}

static bool tcp_event(struct nic_queue *base, struct nic_channel_event *out)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    struct tcp_conn *conn = QUEUE_HOLDER(queue->events.head, struct tcp_conn, event);
    if (!conn)
        return false;
    *out = (struct nic_channel_event){.flow = conn->peer->flow,
                                      .rail = conn->peer->rail,
                                      .destination = conn->peer->destination,
                                      .path = conn->path,
                                      .broken = conn->broken_due,
                                      .lossy = !conn->broken_due && conn->lossy_due};
    if (!conn->broken_due && !conn->lossy_due)
        conn->room_due = false;
    if (!conn->broken_due)
        conn->lossy_due = false;
    conn->broken_due = false;
    if (!conn->room_due && !conn->lossy_due)
        queue_remove(&queue->events, &conn->event);
    return true;
}

static bool tcp_swallowed(const struct nic_queue *queue, uint32_t destination)
{
    const struct tcp_peer *peer = tcp_peer_of(tcp_queue_of(queue), destination);
    return tcp_is_up(peer) || peer->swallowed; /* where one is up, the kernel does not know yet */
}

/* What a route takes does not change. */
static bool tcp_follow(struct nic_queue *queue, uint32_t *destination, uint32_t *datagram_bytes)
{
    (void)queue, (void)destination, (void)datagram_bytes;
    return false;
}

const struct nic_device_ops tcp_device_ops = {
    .kind = NIC_ADDRESS_TCP,
    .open = tcp_open,
    .close = tcp_close,
    .device_count = tcp_device_count,
    .device = tcp_device,
    .addresses = tcp_addresses,
    .queue_open = tcp_queue_open,
};

const struct nic_queue_ops tcp_queue_ops = {
    .close = tcp_queue_close,
    .address = tcp_queue_address,
    .rx_bytes = tcp_rx_bytes,
    .arm = nic_arm_nothing, /* tcp_watch() does */
    .wait = tcp_wait,
    .wake = tcp_wake,
};

const struct nic_datagram_ops tcp_datagram_ops = {
    .route = tcp_route,
    .peer_add = tcp_peer_add,
    .peer_remove = tcp_peer_remove,
    .send = tcp_send,
    .flush = tcp_flush,
    .poll = tcp_poll,
    .release = tcp_release,
    .follow = tcp_follow,
};

const struct nic_channel_ops tcp_channel_ops = {
    .introduce = tcp_introduce,
    .event = tcp_event,
    .watch = tcp_watch,
    .swallowed = tcp_swallowed,
};
