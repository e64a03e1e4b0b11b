/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of the size that the route takes may vanish on the way, and no router says so. Then the kernel sends such a
 * segment again until the connection's time is up, while greetings and small records get through. So it is with the
 * next connection, too. A network that was cut shows otherwise: it answers no SYN before it works again.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "base/log.h"
#include "nic/tcp/tcp.h"

#include <linux/tcp.h>

bool tcp_is_hole(struct tcp_hole *hole, const struct tcp_info *info, uint64_t since_ns, uint64_t now_ns)
{
    enum { USUAL_BYTES = 1500, LEAST_BYTES = 1280, HEADERS_MAX = 80 }; /* of packets; headers with TCP's options */
    bool barren = info->tcpi_total_retrans && info->tcpi_bytes_acked < info->tcpi_snd_mss;
    bool again = barren && hole->barren_ns && since_ns > hole->barren_ns; /* else of the same cut, perhaps */
    hole->barren_ns = barren ? now_ns : 0;
    if (again && info->tcpi_snd_mss > USUAL_BYTES)
        hole->packet_bytes = USUAL_BYTES;
    else if (again && info->tcpi_snd_mss + HEADERS_MAX > LEAST_BYTES)
        hole->packet_bytes = LEAST_BYTES;
    return again;
}

bool tcp_meets_hole(struct tcp_conn *conn)
{
    struct tcp_peer *peer = conn->peer;
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    char text[NETDEV_ADDRESS_TEXT];
    uint32_t before = peer->hole.packet_bytes;
    if (conn->state != TCP_UP || getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
        !tcp_is_hole(&peer->hole, &info, conn->since_ns, clock_now_ns()))
        return false;
    if (!peer->hole.told)
        LOG_WARNING("peer %s: TCP segments of %u bytes vanish on the way to it. Set UCCL_MTU=1500 or less, or mend the "
                    "MTU of an interface in between",
                    netdev_address_text(&peer->address, text), info.tcpi_snd_mss);
    peer->hole.told = true;
    return !peer->dials || peer->hole.packet_bytes == before;
}
