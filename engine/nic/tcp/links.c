/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs that go down and come back, as a TCP queue sees them. TCP itself would go on for seconds, so the
 * connections of a NIC that is down break at once: the core sends what was under way over another rail. They are
 * dialled again as soon as it is up. The peer may learn of the break only then: its packets meet no connection, or a
 * newer one.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "nic/tcp/tcp.h"
#include "nic/udp/udp.h"

void tcp_links_open(struct tcp_queue *queue)
{
    struct udp_nic *nic = udp_nic_of(queue->base.nic); /* TCP's device is UDP's */
    link_watch_open(&queue->links, nic->devs, nic->ends, nic->end_count, &nic->told_down, queue->listen_fd);
    if (queue->links.netlink_fd >= 0 && !tcp_watch_links(queue))
        link_watch_close(&queue->links);
}

static void break_all(struct tcp_queue *queue, struct tcp_peer *peer, const char *why)
{
    for (unsigned i = 0; i < peer->path_count; i++)
        if (peer->conns[i].state != TCP_DOWN)
            tcp_break(queue, &peer->conns[i], why);
    peer->swallowed = true;
}

static void dial_all(struct tcp_queue *queue, struct tcp_peer *peer)
{
    uint64_t now_ns = clock_now_ns();
    for (unsigned i = 0; peer->dials && i < peer->path_count; i++) {
        if (peer->conns[i].state != TCP_DOWN)
            continue;
        peer->conns[i].failures = 0;
        peer->conns[i].act_ns = now_ns;
        tcp_act_at(queue, now_ns);
    }
}

bool tcp_links_event(struct nic_queue *base, struct nic_end_event *out)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    struct link_changes changes;
    (void)out; /* connections that break tell it (nic_channel_event) */
    if (!link_watch_look(&queue->links, &changes))
        return false;
    for (struct tcp_peer *peer = queue->peers; peer; peer = peer->next) {
        uint32_t bit = peer->nic ? UINT32_C(1) << (peer->nic - 1) : 0;
        if (link_watch_is_down(&queue->links, peer->nic))
            break_all(queue, peer, "its network interface is down");
        else if (changes.number & bit) /* they are bound to one that is gone */
            break_all(queue, peer, "its network interface has been made anew");
        if ((changes.state | changes.number) & bit && !link_watch_is_down(&queue->links, peer->nic))
            dial_all(queue, peer);
    }
    return false;
}
