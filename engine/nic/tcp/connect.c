/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: dialling, greeting, and what epoll reports. The side that dials greets at once and expects no
 * answer. A greeting that proves nothing is closed, which the other side sees as a broken connection. Strangers are
 * bounded in number, bytes and time.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/warned.h"
#include "nic/pair.h"
#include "nic/tcp/tcp.h"
#include "nic/udp/udp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    LOOK_EVENTS = 64,
    ACCEPTS_MAX = 16, /* in one look */
    DEAF_NS = 100 * 1000 * 1000,
    SMALL_LOWAT_BYTES = 65536, /* unsent bytes of small messages in the kernel: what is due later overtakes the rest */
};
static const uint64_t DIAL_NS = UINT64_C(3000) * 1000000; /* until one more attempt is better than to wait */

/* What epoll gives back: a connection's address, or one of these with the number of a stranger above. */
enum { EVENT_LISTEN = 1, EVENT_STRANGER = 2, EVENT_LINKS = 3, EVENT_KIND = 7, EVENT_SHIFT = 3 };

static void set_option(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value) != 0)
        LOG_DBG("TCP socket option %d:%d not set: %s", level, name, strerror(errno));
}

/* The kernel ignores the two low bits, which are its own ECN's. */
static void set_class(int fd, unsigned traffic_class)
{
    if (traffic_class == 0)
        return;
    set_option(fd, IPPROTO_IP, IP_TOS, (int)traffic_class);
    set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, (int)traffic_class);
}

static void set_options(const struct tcp_conn *conn, int fd)
{
    set_class(fd, conn->peer->traffic_class);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)conn->peer->patience_ms);
    if (conn->path == 0)
        set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, SMALL_LOWAT_BYTES);
}

/* Each connection meets it. */
static void warn_of_cc(const char *name, int error)
{
    char key[64];
    snprintf(key, sizeof key, "UCCL_TCP_CC=%.48s", name);
    if (warned_first(key))
        LOG_WARNING("UCCL_TCP_CC=\"%s\" has no effect: %s; sysctl net.ipv4.tcp_allowed_congestion_control lists what "
                    "this process may use",
                    name, strerror(error));
}

/* Segments fit packets of so many bytes, in both directions; 0, or more than the option takes: as the route allows. */
static void limit_packets(int fd, int family, uint64_t bytes)
{
    enum { IPV4_TCP_BYTES = 40, IPV6_TCP_BYTES = 60, SEGMENT_MIN = 536, SEGMENT_MAX = 32767 };
    uint64_t headers = family == AF_INET6 ? IPV6_TCP_BYTES : IPV4_TCP_BYTES;
    if (bytes && bytes <= SEGMENT_MAX)
        set_option(fd, IPPROTO_TCP, TCP_MAXSEG, bytes > headers + SEGMENT_MIN ? (int)(bytes - headers) : SEGMENT_MIN);
}

/* What is agreed on as the connection is made is set before; accepted sockets inherit it. */
static void set_early_options(struct tcp_queue *queue, int fd, int family)
{
    const struct params *params = queue->setup.params;
    set_class(fd, (unsigned)params->traffic_class);
    limit_packets(fd, family, params->mtu);
    if (params->tcp_buffer_kb) {
        set_option(fd, SOL_SOCKET, SO_SNDBUF, (int)(params->tcp_buffer_kb * 1024));
        set_option(fd, SOL_SOCKET, SO_RCVBUF, (int)(params->tcp_buffer_kb * 1024));
    }
    if (*params->tcp_cc &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, params->tcp_cc, (socklen_t)strlen(params->tcp_cc)) != 0)
        warn_of_cc(params->tcp_cc, errno);
}

static bool watch(struct tcp_queue *queue, int how, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(queue->epoll_fd, how, fd, &event) == 0;
}

bool tcp_watch_links(struct tcp_queue *queue)
{
    return watch(queue, EPOLL_CTL_ADD, queue->links.netlink_fd, EPOLLIN, EVENT_LINKS);
}

/* ---- one of several NICs ---------------------------------------------------------------------- */

/*
 * What leaves by the connection goes through the peer's NIC, though others of ours may be in that subnet. What comes
 * by another one is refused then. So where packets may do so, the routes decide by our address alone.
 */
static void keep_to_nic(const struct tcp_queue *queue, const struct tcp_peer *peer, int fd)
{
    const struct nic *nic = queue->base.nic;
    struct uccl_device device;
    union nic_address address;
    if (udp_nic_of(nic)->shared >> (peer->nic - 1) & 1)
        return;
    if (nic->ops->device(nic, nic->ends->device(nic, peer->nic - 1), &device, &address) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device.name, (socklen_t)strlen(device.name)) != 0)
        LOG_DBG("a TCP connection is not bound to %s: %s", device.name, strerror(errno));
}

/* The connection to come has our address and the NIC of the peer's rail. */
static bool leave_by_nic(const struct tcp_queue *queue, const struct tcp_peer *peer, int fd)
{
    if (peer->nic == 0)
        return true;
    keep_to_nic(queue, peer, fd);
    set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    return bind(fd, &peer->local.any, nic_address_length(&peer->local)) == 0;
}

/* Whether an accepted connection is of this rail, by its addresses. */
static bool is_of_rail(const struct tcp_peer *peer, int fd)
{
    union nic_address local, remote;
    socklen_t local_length = sizeof local, remote_length = sizeof remote;
    if (getsockname(fd, &local.any, &local_length) != 0 || getpeername(fd, &remote.any, &remote_length) != 0)
        return false;
    local = netdev_unmapped(&local);
    remote = netdev_unmapped(&remote);
    return nic_same_host(&local, &peer->local) && nic_same_host(&remote, &peer->address);
}

/* ---- dialling -------------------------------------------------------------------------------- */

/* The connection carries records now. */
static void come_up(struct tcp_queue *queue, struct tcp_conn *conn)
{
    queue->live += conn->state == TCP_DOWN;
    conn->state = TCP_UP;
    conn->act_ns = UINT64_MAX;
    conn->readable = conn->room_due = true;
    conn->since_ns = clock_now_ns();
    COUNT(queue->setup.counters, tcp_connected, 1);
    queue_append(&queue->ready, &conn->ready);
    tcp_report(queue, conn);
}

/* The dialled connection is there: greets. */
static void greet(struct tcp_queue *queue, struct tcp_conn *conn)
{
    uint8_t bytes[GREETING_BYTES];
    struct greeting greeting = {.path = conn->path, .generation = conn->generation, .token = conn->peer->tx_token};
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
        tcp_break(queue, conn, strerror(error ? error : errno));
        return;
    }
    greeting_put(bytes, &greeting, conn->peer->rx_token);
    if (send(conn->fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof bytes) {
        tcp_break(queue, conn, strerror(errno));
        return;
    }
    come_up(queue, conn);
}

void tcp_dial(struct tcp_queue *queue, struct tcp_conn *conn, uint64_t now_ns)
{
    const union nic_address *address = &conn->peer->address;
    const struct params *params = queue->setup.params;
    uint32_t narrow_bytes = conn->peer->hole.packet_bytes;
    conn->act_ns = UINT64_MAX;
    if (tcp_waits_for_link(queue, conn->peer))
        return;
    conn->generation++;
    conn->state = TCP_DIALLING;
    queue->live++;
    conn->act_ns = now_ns + DIAL_NS;
    tcp_act_at(queue, conn->act_ns);
    conn->fd = descriptor_keep(socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (conn->fd < 0) {
        tcp_break(queue, conn, strerror(errno));
        return;
    }
    set_early_options(queue, conn->fd, address->any.sa_family);
    if (narrow_bytes && (params->mtu == 0 || narrow_bytes < params->mtu))
        limit_packets(conn->fd, address->any.sa_family, narrow_bytes);
    set_options(conn, conn->fd);
    bool bound = leave_by_nic(queue, conn->peer, conn->fd);
    bool connected = bound && connect(conn->fd, &address->any, nic_address_length(address)) == 0;
    if (!bound || (!connected && errno != EINPROGRESS) || !tcp_watch_conn(queue, EPOLL_CTL_ADD, conn))
        tcp_break(queue, conn, strerror(errno));
    else if (connected)
        greet(queue, conn);
}

/* ---- strangers ------------------------------------------------------------------------------- */

static void drop_stranger(struct tcp_queue *queue, struct tcp_stranger *stranger)
{
    if (stranger->fd < 0)
        return;
    COUNT(queue->setup.counters, rx_strangers, 1);
    tcp_close_watched(queue, stranger->fd);
    stranger->fd = -1;
    queue->stranger_count--;
}

/* A free place among them: that of the one which has waited longest, if there is no other. */
static struct tcp_stranger *place_for_stranger(struct tcp_queue *queue)
{
    struct tcp_stranger *oldest = &queue->strangers[0];
    for (unsigned i = 0; i < TCP_STRANGERS_MAX; i++) {
        struct tcp_stranger *stranger = &queue->strangers[i];
        if (stranger->fd < 0)
            return stranger;
        if (stranger->since_ns < oldest->since_ns)
            oldest = stranger;
    }
    drop_stranger(queue, oldest);
    return oldest;
}

static void complain_of_strangers(struct tcp_queue *queue, int error)
{
    char text[FAULT_TEXT];
    if (!queue->short_of_fds)
        LOG_WARNING("cannot accept TCP connections of peers: %s", fault_text(error, text));
    queue->short_of_fds = true;
}

static void stop_listening(struct tcp_queue *queue, int error)
{
    complain_of_strangers(queue, error);
    queue->deaf = true;
    queue->listen_ns = clock_now_ns() + DEAF_NS;
    tcp_act_at(queue, queue->listen_ns);
    watch(queue, EPOLL_CTL_MOD, queue->listen_fd, 0, EVENT_LISTEN);
}

void tcp_keep_spare(struct tcp_queue *queue)
{
    queue->spare_fd = descriptor_keep(fcntl(queue->epoll_fd, F_DUPFD_CLOEXEC, 0));
}

/*
 * Without a descriptor for it a connection stays in the kernel, which takes what the peer writes until its time is up.
 * So one is kept to accept such connections and to close them at once. False: another thread has got it, too.
 */
static bool turn_away(struct tcp_queue *queue)
{
    int fd = -1;
    if (queue->spare_fd < 0)
        return false;
    close(queue->spare_fd);
    for (unsigned i = 0; i < ACCEPTS_MAX && (fd = accept4(queue->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; i++)
        close(fd);
    bool none_left = fd >= 0 || errno == EAGAIN;
    tcp_keep_spare(queue);
    return none_left;
}

static void accept_strangers(struct tcp_queue *queue)
{
    for (unsigned i = 0; i < ACCEPTS_MAX; i++) {
        int fd = descriptor_keep(accept4(queue->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)), error = errno;
        if (fd < 0 && (error == EMFILE || error == ENFILE)) {
            complain_of_strangers(queue, error);
            if (turn_away(queue))
                return;
        }
        if (fd < 0) {
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
                stop_listening(queue, error);
            return;
        }
        struct tcp_stranger *stranger = place_for_stranger(queue);
        uint64_t number = (uint64_t)(stranger - queue->strangers);
        *stranger = (struct tcp_stranger){.fd = fd, .since_ns = clock_now_ns()};
        queue->stranger_count++;
        tcp_act_at(queue, stranger->since_ns + queue->setup.params->connect_ms * 1000000);
        if (!watch(queue, EPOLL_CTL_ADD, fd, EPOLLIN, number << EVENT_SHIFT | EVENT_STRANGER))
            drop_stranger(queue, stranger);
    }
}

/* The rail of a flow that a connection is of: the only one, or that with its addresses. NULL: none. */
static struct tcp_peer *peer_of_greeting(const struct tcp_queue *queue, uint64_t token, int fd)
{
    struct tcp_peer *peer = queue->peers;
    while (peer &&
           (!peer->flow || peer->dials || peer->rx_token != token || (peer->rails > 1 && !is_of_rail(peer, fd))))
        peer = peer->next;
    return peer;
}

/* The path that a greeting means and proves, or NULL. */
static struct tcp_conn *conn_of_greeting(const struct tcp_queue *queue, const struct tcp_stranger *stranger,
                                         struct greeting *greeting)
{
    if (!greeting_take(stranger->bytes, greeting))
        return NULL;
    struct tcp_peer *peer = peer_of_greeting(queue, greeting->token, stranger->fd);
    if (!peer || !greeting_proves(stranger->bytes, peer->rx_token, peer->tx_token) ||
        greeting->path >= peer->path_count)
        return NULL;
    struct tcp_conn *conn = &peer->conns[greeting->path];
    return greeting->generation > conn->generation ? conn : NULL;
}

/* Bytes of a greeting. */
static void hear_stranger(struct tcp_queue *queue, struct tcp_stranger *stranger)
{
    struct greeting greeting;
    ssize_t got = recv(stranger->fd, stranger->bytes + stranger->got, GREETING_BYTES - stranger->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        stranger->got += (uint32_t)got;
    if (got > 0 && stranger->got < GREETING_BYTES)
        return;
    struct tcp_conn *conn = got > 0 ? conn_of_greeting(queue, stranger, &greeting) : NULL;
    if (!conn) {
        drop_stranger(queue, stranger);
        return;
    }
    if (conn->state == TCP_UP)
        tcp_break(queue, conn, "the peer has dialled again");
    conn->fd = stranger->fd;
    conn->generation = greeting.generation;
    stranger->fd = -1;
    queue->stranger_count--;
    set_options(conn, conn->fd);
    if (conn->peer->nic)
        keep_to_nic(queue, conn->peer, conn->fd);
    if (tcp_watch_conn(queue, EPOLL_CTL_MOD, conn))
        come_up(queue, conn);
    else
        tcp_break(queue, conn, strerror(errno));
}

int tcp_listen(struct tcp_queue *queue)
{
    enum { BACKLOG = 1024 };
    char text[FAULT_TEXT];
    int zero = 0;
    union nic_address any = {.any.sa_family = AF_INET6};
    socklen_t length = sizeof any.v6;
    queue->listen_fd = descriptor_keep(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (queue->listen_fd >= 0 && setsockopt(queue->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) == 0)
        set_early_options(queue, queue->listen_fd, AF_INET6);
    if (queue->listen_fd < 0 || bind(queue->listen_fd, &any.any, length) != 0) { /* IPv6 may be switched off */
        if (queue->listen_fd >= 0)
            close(queue->listen_fd);
        any.any.sa_family = AF_INET;
        length = sizeof any.v4;
        queue->listen_fd = descriptor_keep(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (queue->listen_fd >= 0)
            set_early_options(queue, queue->listen_fd, AF_INET);
        if (queue->listen_fd >= 0 && bind(queue->listen_fd, &any.any, length) != 0) {
            LOG(TCP_LOG_ERROR(queue), "cannot bind a TCP socket for peers: %s", fault_text(errno, text));
            return fault_error(errno);
        }
    }
    if (queue->listen_fd < 0 || listen(queue->listen_fd, BACKLOG) != 0 ||
        getsockname(queue->listen_fd, &any.any, &length) != 0 ||
        !watch(queue, EPOLL_CTL_ADD, queue->listen_fd, EPOLLIN, EVENT_LISTEN)) {
        int error = errno;
        LOG(TCP_LOG_ERROR(queue), "cannot listen for TCP connections of peers: %s", fault_text(error, text));
        return fault_error(error);
    }
    queue->port = ntohs(*nic_address_port(&any));
    for (unsigned i = 0; i < TCP_STRANGERS_MAX; i++)
        queue->strangers[i].fd = -1;
    return 0;
}

/* ---- events and time ------------------------------------------------------------------------- */

static void on_ready(struct tcp_queue *queue, struct tcp_conn *conn, uint32_t events)
{
    if (conn->state == TCP_DIALLING && events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
        greet(queue, conn);
        return;
    }
    if (conn->state != TCP_UP)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        conn->readable = true;
        conn->hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        queue_append(&queue->ready, &conn->ready);
    }
    if (events & EPOLLOUT && conn->full)
        tcp_write_on(queue, conn);
}

void tcp_look(struct tcp_queue *queue)
{
    struct epoll_event events[LOOK_EVENTS];
    queue->since_look = 0;
    if (queue->act_ns != UINT64_MAX) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= queue->act_ns)
            tcp_act(queue, now_ns);
    }
    int count = epoll_wait(queue->epoll_fd, events, LOOK_EVENTS, 0);
    COUNT(queue->setup.counters, rx_syscalls, 1);
    queue->calm_looks = count > 0 ? 0 : queue->calm_looks + 1;
    for (int i = 0; i < count; i++) {
        uint64_t data = events[i].data.u64;
        if (data == EVENT_LISTEN)
            accept_strangers(queue);
        else if (data == EVENT_LINKS)
            link_watch_doubt(&queue->links);
        else if ((data & EVENT_KIND) == EVENT_STRANGER) {
            if (queue->strangers[data >> EVENT_SHIFT].fd >= 0)
                hear_stranger(queue, &queue->strangers[data >> EVENT_SHIFT]);
        } else {
            on_ready(queue, (struct tcp_conn *)(uintptr_t)data, events[i].events);
        }
    }
}

static void act_on(struct tcp_queue *queue, struct tcp_conn *conn, uint64_t now_ns)
{
    if (conn->act_ns > now_ns)
        return;
    conn->act_ns = UINT64_MAX;
    if (conn->state == TCP_DOWN)
        tcp_dial(queue, conn, now_ns);
    else if (conn->state == TCP_DIALLING)
        tcp_break(queue, conn, "no answer");
    else
        tcp_write_on(queue, conn);
}

void tcp_act(struct tcp_queue *queue, uint64_t now_ns)
{
    uint64_t stranger_ns = queue->setup.params->connect_ms * 1000000;
    queue->act_ns = UINT64_MAX;
    for (struct tcp_peer *peer = queue->peers; peer; peer = peer->next)
        for (unsigned i = 0; i < peer->path_count; i++) {
            act_on(queue, &peer->conns[i], now_ns);
            tcp_act_at(queue, peer->conns[i].act_ns);
        }
    for (unsigned i = 0; queue->stranger_count && i < TCP_STRANGERS_MAX; i++) {
        struct tcp_stranger *stranger = &queue->strangers[i];
        if (stranger->fd >= 0 && now_ns - stranger->since_ns >= stranger_ns)
            drop_stranger(queue, stranger);
        if (stranger->fd >= 0)
            tcp_act_at(queue, stranger->since_ns + stranger_ns);
    }
    if (queue->deaf && now_ns >= queue->listen_ns) {
        queue->deaf = false;
        watch(queue, EPOLL_CTL_MOD, queue->listen_fd, EPOLLIN, EVENT_LISTEN);
        if (queue->spare_fd < 0)
            tcp_keep_spare(queue);
    } else if (queue->deaf) {
        tcp_act_at(queue, queue->listen_ns);
    }
}
