/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver with plain system calls: sendmmsg(), recvmmsg(), ppoll(). Any thread may drive it, one at a time, so it
 * serves lent engines and machines that forbid io_uring. The io_uring driver sends by udp_transmit(), too.
 *
 * Errors of a send: a full socket (EAGAIN, ENOBUFS) is back-pressure; the send stays in the batch, and send() refuses
 * more until there is room, for which wait() waits too. An error that segmentation may have caused makes the driver
 * send datagram by datagram. After any other error the datagram is lost, which is logged once per peer; the protocol
 * retransmits it.
 *
 * Thread: the queue's owner.
 */
#include "nic/udp/udp.h"

#include "base/clock.h"
#include "base/log.h"
#include "core/wire.h"
#include "nic/udp/train.h"

#include <assert.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MMSG_LARGE_BYTES = 16384 };  /* from here on peeking costs less than a copy */
enum { MMSG_SEGMENT_BYTES = 4096 }; /* below it per segment, iovec cost exceeds the copy saved */
enum { MMSG_BUFFERS = 16 };         /* of 64 KiB: 1 MiB; the last one used is used first */

/* ---- sending --------------------------------------------------------------------------------- */

/* Control messages of one send: its source address, its traffic class, and its segment size. */
struct send_control {
    _Alignas(struct cmsghdr) uint8_t bytes[sizeof((struct udp_source *)0)->bytes + CMSG_SPACE(sizeof(uint16_t))];
};

static bool is_full(int error)
{
    return error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}

/*
 * A full socket is tried again once the kernel calls it writable: a try per round would cost a system call each. Where
 * memory ran out, or a socket is full again although it was writable, the kernel calls it writable at once: then a
 * timer decides.
 */
static void note_full(struct udp_queue *queue, uint16_t socket_index, int error)
{
    bool writable = queue->full_again || error != EAGAIN;

    COUNT(queue->setup.counters, tx_blocked, 1);
    queue->full_socket = socket_index;
    queue->full_again = true;
    atomic_store_explicit(&queue->room, false, memory_order_relaxed);
    queue->full_until_ns = writable ? clock_now_ns() + UDP_FULL_NAP_NS : 0;
}

/* The socket to poll; -1: none. */
static int full_fd(const struct udp_queue *queue)
{
    return queue->full_socket == UDP_NONE_FULL || queue->full_until_ns != 0 ? -1 : queue->sockets[queue->full_socket];
}

void udp_full_over(struct udp_queue *queue)
{
    queue->full_socket = UDP_NONE_FULL;
    queue->full_until_ns = 0;
    atomic_store_explicit(&queue->room, false, memory_order_relaxed);
}

/* Takes over what a sleep has seen. */
static void take_room(struct udp_queue *queue)
{
    if (atomic_load_explicit(&queue->room, memory_order_relaxed))
        udp_full_over(queue);
}

bool udp_is_full(struct udp_queue *queue)
{
    take_room(queue);
    if (queue->full_socket == UDP_NONE_FULL)
        return false;
    if (queue->full_until_ns != 0) {
        if (clock_now_ns() < queue->full_until_ns)
            return true;
    } else {
        struct pollfd room = {.fd = full_fd(queue), .events = POLLOUT};
        COUNT(queue->setup.counters, tx_syscalls, 1);
        if (poll(&room, 1, 0) == 0)
            return true;
    }
    udp_full_over(queue);
    return false;
}

void udp_full_seen(struct udp_queue *queue)
{
    atomic_store_explicit(&queue->room, true, memory_order_relaxed);
}

void udp_arm(struct nic_queue *base, uint64_t *timeout_ns)
{
    struct udp_queue *queue = udp_queue_of(base);
    uint64_t at_ns, left_ns;

    take_room(queue);
    queue->room_fd = full_fd(queue);
    if (queue->full_until_ns == 0)
        return;
    at_ns = clock_now_ns();
    left_ns = queue->full_until_ns > at_ns ? queue->full_until_ns - at_ns : 0;
    if (left_ns > *timeout_ns)
        return;
    udp_full_over(queue); /* at the end of this sleep: it shortens no later one */
    *timeout_ns = left_ns;
}

static void prepare_send(struct udp_queue *queue, struct udp_send *send, struct msghdr *header,
                         struct send_control *control, bool segmented)
{
    uint32_t at = send->source.length;

    *header = (struct msghdr){
        .msg_name = &send->to,
        .msg_namelen = queue->v6 ? sizeof send->to.v6 : sizeof send->to.v4,
        .msg_iov = &queue->batch.iovecs[send->iovec],
        .msg_iovlen = send->iovec_count,
    };
    if (at > 0)
        memcpy(control->bytes, send->source.bytes, sizeof send->source.bytes);
    if (segmented) {
        struct cmsghdr *cmsg = (struct cmsghdr *)(void *)(control->bytes + at);
        uint16_t segment = (uint16_t)send->segment;

        memset(cmsg, 0, CMSG_SPACE(sizeof segment));
        cmsg->cmsg_level = IPPROTO_UDP;
        cmsg->cmsg_type = UDP_SEGMENT;
        cmsg->cmsg_len = CMSG_LEN(sizeof segment);
        memcpy(CMSG_DATA(cmsg), &segment, sizeof segment);
        at += CMSG_SPACE(sizeof segment);
    }
    if (at > 0) {
        header->msg_control = control->bytes;
        header->msg_controllen = at;
    }
}

static void count_sent(struct udp_queue *queue, const struct udp_send *send, uint32_t datagrams, uint32_t bytes)
{
    COUNT(queue->setup.counters, tx_datagrams, datagrams);
    COUNT(queue->setup.counters, tx_bytes, bytes);
    if (queue->ends.links.count != 0 && queue->peers[send->destination].nic != 0) {
        struct nic_end_counters *end = &queue->base.ends[queue->peers[send->destination].nic - 1];

        COUNT(end, tx_datagrams, datagrams);
        COUNT(end, tx_bytes, bytes);
    }
}

static void lose_send(struct udp_queue *queue, struct udp_send *send)
{
    struct udp_batch *batch = &queue->batch;

    send->gone = true;
    if (batch->last_lost != send->desc) {
        batch->last_lost = send->desc;
        batch->descs_lost++;
    }
}

/* Logs a failure towards a peer unless that has been done. */
static void complain_once(struct udp_queue *queue, const struct udp_send *send, int error, const char *consequence)
{
    struct udp_peer *peer = &queue->peers[send->destination];
    char text[NETDEV_ADDRESS_TEXT];

    if (peer->complained)
        return;
    peer->complained = true;
    LOG_WARNING("sending %u datagrams of %u bytes to %s: %s; %s", send->datagrams, send->segment,
                netdev_address_text(&send->to, text), strerror(error), consequence);
}

/* Makes vectors of bytes [offset, offset+length) of a send; returns how many. */
static size_t slice_iovecs(const struct iovec *from, size_t count, size_t offset, size_t length, struct iovec *to)
{
    size_t made = 0;

    for (size_t i = 0; i < count && length > 0; i++) {
        size_t part;

        if (offset >= from[i].iov_len) {
            offset -= from[i].iov_len;
            continue;
        }
        part = from[i].iov_len - offset < length ? from[i].iov_len - offset : length;
        to[made++] = (struct iovec){.iov_base = (uint8_t *)from[i].iov_base + offset, .iov_len = part};
        length -= part;
        offset = 0;
    }
    return made;
}

/* Sends the datagrams of a run one by one. Returns 0, or the first errno: what failed is lost. */
static int send_one_by_one(struct udp_queue *queue, struct udp_send *send)
{
    struct iovec parts[2 * CORE_TRAIN_MAX];
    struct send_control control;
    struct msghdr header;
    int error = 0;

    prepare_send(queue, send, &header, &control, false);
    header.msg_iov = parts;
    for (uint32_t at = 0; at < send->bytes; at += send->segment) {
        uint32_t length = send->bytes - at < send->segment ? send->bytes - at : send->segment;

        header.msg_iovlen = slice_iovecs(&queue->batch.iovecs[send->iovec], send->iovec_count, at, length, parts);
        COUNT(queue->setup.counters, tx_syscalls, 1);
        if (sendmsg(queue->sockets[send->socket], &header, MSG_DONTWAIT) >= 0)
            count_sent(queue, send, 1, length);
        else if (error == 0)
            error = errno;
    }
    return error;
}

/*
 * Tries without its source a send that failed: that address may be ours no more, or this system may not know the
 * control message. True: it has left.
 */
static bool send_without_source(struct udp_queue *queue, struct udp_send *send, int error)
{
    struct udp_peer *peer = &queue->peers[send->destination];

    if (!send->source.addressed || peer->interface != 0 || is_full(error) || error == EMSGSIZE)
        return false;
    udp_set_source(peer, false);
    send->source = peer->source;
    if (send_one_by_one(queue, send) != 0) {
        udp_set_source(peer, true);
        return false;
    }
    send->gone = true;
    peer->local.any.sa_family = AF_UNSPEC;
    complain_once(queue, send, error,
                  "from now on they leave from any address of this machine, not from the one that the peer "
                  "knows");
    return true;
}

/* Deals with a send that failed with `error`, on a socket that is not full: it leaves another way, or is lost. */
static void recover_send(struct udp_queue *queue, struct udp_send *send, int error)
{
    struct udp_peer *peer = &queue->peers[send->destination];
    bool cut_short = error == EMSGSIZE || error == EINVAL;

    if (cut_short)
        udp_check_mtu(queue, send->destination);
    if (send->datagrams > 1 && (cut_short || error == EIO || error == ENOPROTOOPT || error == EOPNOTSUPP)) {
        int again = send_one_by_one(queue, send);

        send->gone = true;
        if (again == 0 && peer->datagram_bytes >= send->segment && peer->gso) {
            /* it fits the route, so segmentation itself is what failed: some devices and tunnels
             * lack it */
            peer->gso = false;
            complain_once(queue, send, error, "no UDP segmentation offload towards it from now on");
        }
        if (again == 0)
            return;
        error = again;
    }
    if (send_without_source(queue, send, error))
        return;
    if (is_full(error))
        note_full(queue, send->socket, error);
    else if (peer->interface != 0)
        link_watch_doubt(&queue->ends.links); /* logged if the NIC has failed; else the rail shows what is wrong */
    else
        complain_once(queue, send, error, "counted as lost; further failures are not logged");
    lose_send(queue, send);
}

/* Hands the sends of one socket to the kernel, in order, until it is full. */
static void transmit_socket(struct udp_queue *queue, uint16_t socket_index)
{
    struct udp_batch *batch = &queue->batch;
    struct mmsghdr messages[UDP_BATCH_MAX];
    struct send_control controls[UDP_BATCH_MAX];
    struct udp_send *sends[UDP_BATCH_MAX];
    unsigned count = 0, done = 0;
    bool retried = false;

    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->sends[i].socket != socket_index || batch->sends[i].gone)
            continue;
        sends[count] = &batch->sends[i];
        prepare_send(queue, sends[count], &messages[count].msg_hdr, &controls[count], sends[count]->datagrams > 1);
        count++;
    }
    while (done < count) {
        int sent = sendmmsg(queue->sockets[socket_index], messages + done, count - done, MSG_DONTWAIT);

        COUNT(queue->setup.counters, tx_syscalls, 1);
        for (; sent > 0; sent--, done++) {
            count_sent(queue, sends[done], sends[done]->datagrams, sends[done]->bytes);
            sends[done]->gone = true;
            retried = queue->full_again = false;
        }
        if (sent == 0 || errno == EINTR)
            continue;
        if (is_full(errno)) {
            note_full(queue, socket_index, errno);
            break;
        }
        if (!retried) { /* an ICMP error of an earlier send may have been reported here */
            retried = true;
            continue;
        }
        retried = false;
        recover_send(queue, sends[done++], errno);
    }
    for (; done < count; done++)
        sends[done]->blocked = true;
}

bool udp_transmit(struct udp_queue *queue)
{
    struct udp_batch *batch = &queue->batch;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < batch->count; i++)
        if (!batch->sends[i].gone && !batch->sends[i].blocked)
            transmit_socket(queue, batch->sends[i].socket);
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->sends[i].gone)
            continue;
        batch->sends[i].blocked = false;
        if (kept != i)
            batch->sends[kept] = batch->sends[i];
        kept++;
    }
    batch->count = kept;
    if (kept == 0)
        batch->iovec_count = batch->bytes_used = 0;
    return kept == 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

struct mmsg_io {
    uint8_t *buffers; /* MMSG_BUFFERS of UDP_RX_BYTES */
    uint32_t free_count;
    uint8_t free[MMSG_BUFFERS]; /* stack of free buffers: the warmest on top */
    bool large;                 /* large messages came lately: look before receiving */
};

static int mmsg_open(struct udp_queue *queue, char *reason, size_t reason_size)
{
    struct mmsg_io *io = calloc(1, sizeof *io);

    (void)reason; /* nothing here can be forbidden */
    (void)reason_size;
    if (!io)
        return udp_no_memory(queue);
    io->buffers = aligned_alloc(4096, (size_t)MMSG_BUFFERS * UDP_RX_BYTES);
    if (!io->buffers) {
        free(io);
        return udp_no_memory(queue);
    }
    for (; io->free_count < MMSG_BUFFERS; io->free_count++)
        io->free[io->free_count] = (uint8_t)(MMSG_BUFFERS - 1 - io->free_count);
    queue->io = io;
    return 0;
}

static void mmsg_close(struct udp_queue *queue)
{
    struct mmsg_io *io = queue->io;

    free(io->buffers);
    free(io);
    queue->io = NULL;
}

/*
 * Peeks at the first train in the socket: copies its first header to `header`, its length and stride to `rx`. False:
 * none.
 */
static bool peek(struct udp_queue *queue, uint8_t header[WIRE_BULK_HEADER_BYTES], struct nic_rx *rx)
{
    struct iovec iovec = {header, WIRE_BULK_HEADER_BYTES};
    _Alignas(struct cmsghdr) uint8_t control[UDP_RX_CONTROL];
    struct msghdr message = {
        .msg_iov = &iovec, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(queue->sockets[0], &message, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    COUNT(queue->setup.counters, rx_syscalls, 1);
    if (length < 0)
        return false;
    *rx = (struct nic_rx){.length = (uint32_t)length};
    udp_read_control(queue, &message, rx);
    return true;
}

/* Whether peeking at it costs less than copying its payload afterwards. */
static bool is_large(const struct nic_rx *rx, const uint8_t *header)
{
    return rx->length >= MMSG_LARGE_BYTES && rx->length <= UDP_RX_BYTES && rx->stride >= MMSG_SEGMENT_BYTES &&
           wire_is_bulk(header, rx->stride);
}

/* Receives the train that peek() saw into a free buffer and the predicted memory. False: another train came. */
static bool receive_seen(struct udp_queue *queue, const uint8_t *header, struct nic_rx *rx)
{
    struct mmsg_io *io = queue->io;
    uint8_t *buffer = io->buffers + (size_t)io->free[io->free_count - 1] * UDP_RX_BYTES;
    struct iovec iovecs[TRAIN_IOVECS_MAX];
    _Alignas(struct cmsghdr) uint8_t control[UDP_RX_CONTROL];
    struct msghdr message = {.msg_iov = iovecs,
                             .msg_iovlen = train_spread(rx, buffer, UDP_RX_BYTES, iovecs),
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t length = recvmsg(queue->sockets[0], &message, MSG_DONTWAIT);
    COUNT(queue->setup.counters, rx_syscalls, 1);
    if (length <= 0 || message.msg_flags & MSG_TRUNC)
        return false;
    struct nic_rx seen = *rx;
    rx->length = (uint32_t)length;
    udp_read_control(queue, &message, rx);
    if (rx->in_place &&
        (rx->length != seen.length || rx->stride != seen.stride || memcmp(buffer, header, WIRE_BULK_HEADER_BYTES) != 0))
        return false;
    rx->data = buffer;
    rx->slot = io->free[--io->free_count];
    train_settle(rx, iovecs);
    return true;
}

/*
 * Receives trains one by one, large ones with the payload straight into the receive's buffer. Nobody else reads the
 * socket, so the train that peek() saw is the one that comes; if the kernel dropped it in between (a bad checksum), the
 * other one is dropped, and the peer retransmits it.
 */
static unsigned poll_large(struct udp_queue *queue, struct nic_rx *out, unsigned max)
{
    struct mmsg_io *io = queue->io;
    uint8_t header[WIRE_BULK_HEADER_BYTES];
    bool large = false;
    unsigned count = 0;
    for (unsigned i = 0; i < max && peek(queue, header, &out[count]); i++) {
        struct nic_rx *rx = &out[count];
        if (is_large(rx, header)) {
            train_foresee(&queue->setup, header, rx, out, count);
            large = true;
        }
        if (receive_seen(queue, header, rx))
            count++;
    }
    if (count > 0)
        io->large = large;
    return count;
}

/* As recvmmsg(). For one datagram recvmsg() costs less. */
static int receive(int fd, struct mmsghdr *messages, unsigned count)
{
    ssize_t length;

    if (count > 1)
        return recvmmsg(fd, messages, count, MSG_DONTWAIT, NULL);
    length = recvmsg(fd, &messages->msg_hdr, MSG_DONTWAIT);
    messages->msg_len = (unsigned)length;
    return length < 0 ? -1 : 1;
}

/*
 * One system call for all free buffers. A result below `max` (and below MMSG_BUFFERS) means that the socket is empty:
 * the caller need not ask again in this round.
 */
static unsigned mmsg_poll(struct udp_queue *queue, struct nic_rx *out, unsigned max)
{
    struct mmsg_io *io = queue->io;
    unsigned want = max < io->free_count ? max : io->free_count, count = 0;
    struct mmsghdr messages[MMSG_BUFFERS];
    struct iovec iovecs[MMSG_BUFFERS];
    _Alignas(struct cmsghdr) uint8_t controls[MMSG_BUFFERS][UDP_RX_CONTROL];
    uint8_t slots[MMSG_BUFFERS];
    int got = -1;

    if (want == 0)
        return 0;
    if (io->large && queue->setup.target)
        return poll_large(queue, out, want);
    for (unsigned i = 0; i < want; i++) {
        slots[i] = io->free[io->free_count - 1 - i];
        iovecs[i] = (struct iovec){
            .iov_base = io->buffers + (size_t)slots[i] * UDP_RX_BYTES,
            .iov_len = UDP_RX_BYTES,
        };
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &iovecs[i],
            .msg_iovlen = 1,
            .msg_control = controls[i],
            .msg_controllen = sizeof controls[i],
        };
    }
    for (int tries = 0; tries < 2 && got < 0; tries++) { /* the first may report an ICMP error */
        got = receive(queue->sockets[0], messages, want);
        COUNT(queue->setup.counters, rx_syscalls, 1);
        if (got < 0 && errno == EAGAIN)
            return count;
    }
    if (got > 0) {
        io->free_count -= (unsigned)got;
        io->large = false;
    }
    for (int i = 0; i < got; i++) {
        struct nic_rx *rx = &out[count];

        if (messages[i].msg_len == 0 || (messages[i].msg_hdr.msg_flags & MSG_TRUNC)) {
            io->free[io->free_count++] = slots[i]; /* no peer of ours sends that */
            continue;
        }
        *rx = (struct nic_rx){.data = iovecs[i].iov_base, .length = messages[i].msg_len, .slot = slots[i]};
        udp_read_control(queue, &messages[i].msg_hdr, rx);
        io->large |= is_large(rx, rx->data);
        count++;
    }
    return count;
}

static void mmsg_release(struct udp_queue *queue, const struct nic_rx *rx)
{
    struct mmsg_io *io = queue->io;

    assert(rx->slot < MMSG_BUFFERS && io->free_count < MMSG_BUFFERS);
    io->free[io->free_count++] = (uint8_t)rx->slot;
}

static void mmsg_wait(struct udp_queue *queue, int beside_fd, uint64_t timeout_ns)
{
    struct pollfd fds[5] = {{.fd = queue->sockets[0], .events = POLLIN},
                            {.fd = queue->wake_fd, .events = POLLIN},
                            {.fd = queue->room_fd, .events = POLLOUT}, /* ppoll() skips negative ones */
                            {.fd = queue->ends.links.netlink_fd, .events = POLLIN},
                            {.fd = beside_fd, .events = POLLIN}};
    uint64_t wakes;

    COUNT(queue->setup.counters, wait_syscalls, 1);
    if (nic_sleep(fds, 5, timeout_ns) <= 0)
        return;
    if (fds[2].revents != 0)
        udp_full_seen(queue);
    if (fds[3].revents != 0)
        link_watch_doubt(&queue->ends.links);
    if (fds[1].revents & POLLIN) {
        COUNT(queue->setup.counters, wait_syscalls, 1);
        if (read(queue->wake_fd, &wakes, sizeof wakes) < 0) /* the owner alone reads, so it cannot block */
            LOG_ERR("cannot read the wake eventfd: %s", strerror(errno));
    }
}

const struct udp_driver_ops udp_mmsg_driver = {
    .name = "sendmmsg/recvmmsg",
    .open = mmsg_open,
    .close = mmsg_close,
    .transmit = udp_transmit,
    .poll = mmsg_poll,
    .release = mmsg_release,
    .wait = mmsg_wait,
};
