/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the network loses of what a connection carries, by the kernel's own count of segments that it sent again.
 * Beside datagrams a connection that loses much is no good way for large messages: the kernel halves its window for
 * each loss, and waits for a fifth of a second where it loses the last segments.
 *
 * A connection that has grown until some queue overflowed loses a burst, and then nothing for long. So a single look
 * says little: the network loses too much if two looks in a row find that, a while apart. Heavy loss shows in few
 * segments, so that little is sent over such a network; light loss needs more of them.
 *
 * Segments that the peer had got already were not lost: it says so by duplicate SACKs (RFC 2883). Those of a peer that
 * is stopped are such, since its kernel delays acknowledgements while nobody reads.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "base/log.h"
#include "core/units.h"
#include "nic/tcp/tcp.h"

#include <linux/tcp.h>
#include <string.h>

#define BURST_NS (20 * NS_PER_MS) /* longer than one burst of losses */

enum { SEGMENTS_MIN = 500 }; /* fewer say little */

/* One segment of so many is too much, of at least so many bytes. */
static const struct rule {
    uint64_t bytes;
    uint32_t of;
} HEAVY = {1 << 20, 200}, LIGHT = {4 << 20, 500};

/* Segments of the connection that were lost. Of those that are under way for another time nobody knows yet. */
static uint32_t lost_segments(const struct tcp_info *info)
{
    uint32_t again = info->tcpi_total_retrans, needless = info->tcpi_dsack_dups + info->tcpi_retrans;
    return again > needless ? again - needless : 0;
}

/* Whether this look found too much, and so did one a while before, and all between them. */
static bool is_much(struct tcp_look *look, const struct rule *rule, const struct tcp_info *info, uint64_t now_ns)
{
    uint32_t lost = lost_segments(info);
    look->sent = info->tcpi_data_segs_out - look->segments;
    look->lost = lost > look->all_lost ? lost - look->all_lost : 0; /* an earlier one may have been none */
    if (look->sent < SEGMENTS_MIN || (uint64_t)look->sent * info->tcpi_snd_mss < rule->bytes)
        return false;
    look->segments = info->tcpi_data_segs_out;
    look->all_lost = lost;
    if ((uint64_t)look->lost * rule->of < look->sent)
        look->much_ns = 0;
    else if (look->much_ns == 0)
        look->much_ns = now_ns;
    return look->much_ns && now_ns - look->much_ns >= BURST_NS;
}

const struct tcp_look *tcp_loses(struct tcp_loss *loss, const struct tcp_info *info, uint64_t now_ns)
{
    bool heavy = is_much(&loss->heavy, &HEAVY, info, now_ns), light = is_much(&loss->light, &LIGHT, info, now_ns);
    return heavy ? &loss->heavy : light ? &loss->light : NULL;
}

void tcp_look_for_loss(struct tcp_queue *queue, struct tcp_conn *conn, size_t bytes)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    char text[NETDEV_ADDRESS_TEXT];
    conn->unlooked_bytes += bytes;
    if (!conn->peer->beside || conn->unlooked_bytes < HEAVY.bytes)
        return;
    conn->unlooked_bytes = 0;
    memset(&info, 0, sizeof info); /* older kernels tell less */
    if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    const struct tcp_look *look = tcp_loses(&conn->loss, &info, clock_now_ns());
    if (!look)
        return;
    LOG_INFORM("TCP loses %u of %u segments to %s: large messages go as datagrams for a while", look->lost, look->sent,
               netdev_address_text(&conn->peer->address, text));
    conn->lossy_due = true;
    tcp_report(queue, conn);
}
