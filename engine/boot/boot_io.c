/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/boot_io.h"

#include "base/fault.h"
#include "base/process.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

void boot_io_init(struct boot_io *io, int fd)
{
    io->fd = fd;
    io->process = *process_number;
    io->tx = io->tx_small;
    io->tx_room = sizeof io->tx_small;
    io->tx_begin = io->tx_end = 0;
    io->rx = io->rx_small;
    io->rx_have = 0;
}

/*
 * A child of fork() that lives on may have a copy of the descriptor: close() alone would keep the peer waiting. Where
 * bytes are unread, close() resets the connection, which the peer takes for a refusal, and so does this.
 */
static void end_connection(int fd)
{
    static const struct sockaddr none = {.sa_family = AF_UNSPEC};
    int unread;
    if (ioctl(fd, FIONREAD, &unread) == 0 && unread > 0)
        (void)connect(fd, &none, sizeof none);
    else
        shutdown(fd, SHUT_RDWR);
}

void boot_io_free(struct boot_io *io)
{
    if (!process_forked(io->process))
        end_connection(io->fd);
    close(io->fd);
    boot_io_drop(io);
    if (io->tx != io->tx_small)
        free(io->tx);
}

/* ---- sending --------------------------------------------------------------------------------- */

uint8_t *boot_io_reserve(struct boot_io *io, size_t length)
{
    assert(io->tx_room - io->tx_end >= length);
    return io->tx + io->tx_end;
}

size_t boot_io_waiting(const struct boot_io *io)
{
    return io->tx_end - io->tx_begin;
}

bool boot_io_grow(struct boot_io *io, size_t length)
{
    size_t waiting = boot_io_waiting(io);
    size_t room = waiting + length + BOOT_TX_AFTER_OFFER;
    assert(io->tx == io->tx_small);
    uint8_t *tx = malloc(room);
    if (!tx)
        return false;
    memcpy(tx, io->tx + io->tx_begin, waiting);
    io->tx = tx;
    io->tx_room = room;
    io->tx_begin = 0;
    io->tx_end = waiting;
    return true;
}

int boot_io_flush(struct boot_io *io)
{
    while (io->tx_begin < io->tx_end) {
        ssize_t sent = send(io->fd, io->tx + io->tx_begin, io->tx_end - io->tx_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            io->tx_begin += (size_t)sent;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

void boot_io_flush_last(struct boot_io *io)
{
    uint8_t unread[4096];
    (void)boot_io_flush(io);
    for (int i = 0; i < BOOT_MESSAGE_MAX / (int)sizeof unread; i++) {
        if (recv(io->fd, unread, sizeof unread, MSG_DONTWAIT) <= 0)
            break;
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

ssize_t boot_io_read(struct boot_io *io, size_t length)
{
    assert(io->rx_have < length && (length <= BOOT_SMALL_MAX || io->rx != io->rx_small));
    for (;;) {
        ssize_t got = recv(io->fd, io->rx + io->rx_have, length - io->rx_have, MSG_DONTWAIT);
        if (got >= 0) {
            io->rx_have += (size_t)got;
            return got;
        }
        if (errno != EINTR)
            return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
}

bool boot_io_expect(struct boot_io *io, size_t length)
{
    if (length <= BOOT_SMALL_MAX)
        return true;
    uint8_t *rx = malloc(length);
    if (!rx)
        return false;
    memcpy(rx, io->rx, BOOT_HEADER_BYTES);
    io->rx = rx;
    return true;
}

void boot_io_drop(struct boot_io *io)
{
    if (io->rx != io->rx_small)
        free(io->rx);
    io->rx = io->rx_small;
    io->rx_have = 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

bool boot_io_connected(const struct boot_io *io, int *system_error)
{
    struct pollfd poll_fd = {.fd = io->fd, .events = POLLOUT};
    if (poll(&poll_fd, 1, 0) <= 0)
        return false;
    socklen_t length = sizeof *system_error;
    if (getsockopt(io->fd, SOL_SOCKET, SO_ERROR, system_error, &length) != 0)
        *system_error = errno;
    return true;
}

int boot_io_error(int system_error)
{
    switch (system_error) {
    case ECONNREFUSED:
        return UCCL_EREFUSED;
    case ETIMEDOUT:
        return UCCL_ETIMEDOUT;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ENONET:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EINVAL: /* IPv6 link-local without a scope */
    case ENODEV: /* a scope that is no interface */
    case ENXIO:
    case EACCES: /* broadcast, prohibit route */
    case EPERM:  /* a firewall of this host */
        return UCCL_EADDR;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
        return UCCL_EPROTO;
    default:
        return fault_error(system_error);
    }
}
