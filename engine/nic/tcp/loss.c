/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the network loses of what a connection carries, by the kernel's own count of segments that it sent again.
 * Beside datagrams a connection that loses much is no good way for large messages: the kernel halves its window for
 * each loss, and waits for a fifth of a second where it loses the last segments.
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

void tcp_look_for_loss(struct tcp_queue *queue, struct tcp_conn *conn, size_t bytes)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    conn->unlooked_bytes += bytes;
    if (!conn->peer->tells_loss || conn->unlooked_bytes < LOOK_BYTES)
        return;
    conn->unlooked_bytes = 0;
    memset(&info, 0, sizeof info); /* older kernels tell less */
    if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    uint32_t sent = info.tcpi_data_segs_out - conn->segments, again = info.tcpi_total_retrans - conn->retransmits;
    if (sent < SEGMENTS_MIN)
        return;
    conn->segments = info.tcpi_data_segs_out;
    conn->retransmits = info.tcpi_total_retrans;
    if ((uint64_t)again * LOSS_SHARE < sent)
        return;
    char text[NETDEV_ADDRESS_TEXT];
    LOG_INFORM("TCP loses %u of %u segments to %s: large messages go as datagrams for a while", again, sent,
               netdev_address_text(&conn->peer->address, text));
    conn->lossy_due = true;
    tcp_report(queue, conn);
}
