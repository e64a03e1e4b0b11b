/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the network loses of what a connection carries, by the kernel's own count of segments that it sent again.
 * Beside datagrams a connection that loses much is no good way for large messages: the kernel halves its window for
 * each loss, and waits for a fifth of a second where it loses the last segments.
 *
 * A connection that has grown until some queue overflowed loses a burst, and then nothing for long. So a single look
 * says little: the network loses too much if two looks in a row find that.
 *
 * Segments that the peer had got already were not lost: it says so by duplicate SACKs (RFC 2883). Those of a peer that
 * is stopped are such, since its kernel delays acknowledgements while nobody reads.
 *
 * Thread: the queue's owner.
 */
#include "base/log.h"
#include "nic/tcp/tcp.h"

#include <linux/tcp.h>
#include <string.h>

enum {
    LOOK_BYTES = 4 << 20, /* between two looks */
    SEGMENTS_MIN = 500,   /* fewer say little */
    LOSS_SHARE = 500,     /* one of so many is too much */
};

/* Segments of the connection that were lost. Of those that are under way for another time nobody knows yet. */
static uint32_t lost_segments(const struct tcp_info *info)
{
    uint32_t again = info->tcpi_total_retrans, needless = info->tcpi_dsack_dups + info->tcpi_retrans;
    return again > needless ? again - needless : 0;
}

bool tcp_loses(struct tcp_loss *loss, const struct tcp_info *info)
{
    uint32_t lost = lost_segments(info);
    loss->sent = info->tcpi_data_segs_out - loss->segments;
    loss->lost = lost > loss->all_lost ? lost - loss->all_lost : 0; /* an earlier one may have been none */
    if (loss->sent < SEGMENTS_MIN)
        return false;
    loss->segments = info->tcpi_data_segs_out;
    loss->all_lost = lost;
    bool before = loss->much;
    loss->much = (uint64_t)loss->lost * LOSS_SHARE >= loss->sent;
    return loss->much && before;
}

void tcp_look_for_loss(struct tcp_queue *queue, struct tcp_conn *conn, size_t bytes)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    char text[NETDEV_ADDRESS_TEXT];
    conn->unlooked_bytes += bytes;
    if (!conn->peer->beside || conn->unlooked_bytes < LOOK_BYTES)
        return;
    conn->unlooked_bytes = 0;
    memset(&info, 0, sizeof info); /* older kernels tell less */
    if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || !tcp_loses(&conn->loss, &info))
        return;
    LOG_INFORM("TCP loses %u of %u segments to %s: large messages go as datagrams for a while", conn->loss.lost,
               conn->loss.sent, netdev_address_text(&conn->peer->address, text));
    conn->lossy_due = true;
    tcp_report(queue, conn);
}
