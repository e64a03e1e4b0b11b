/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What epoll has of a connection, and the connection's end: what is forgotten with it, and when it is made again.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "base/log.h"
#include "nic/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    RETRY_MIN_NS = 10 * 1000 * 1000,
    RETRY_DOUBLINGS = 7,         /* at most */
    RETRY_DOUBLINGS_BESIDE = 13, /* where datagrams carry all meanwhile, */
    DESPAIR_FAILURES = 8,        /* in a row */
};
static const uint64_t RETRY_MAX_NS = UINT64_C(60000) * 1000000; /* and no longer than that */
static const uint64_t STOOD_NS = UINT64_C(1000) * 1000000;

void tcp_act_at(struct tcp_queue *queue, uint64_t at_ns)
{
    if (at_ns < queue->act_ns)
        queue->act_ns = at_ns;
}

void tcp_report(struct tcp_queue *queue, struct tcp_conn *conn)
{
    queue_append(&queue->events, &conn->event);
}

void tcp_forget_in(struct tcp_conn *conn)
{
    if (conn->body == BODY_BUFFER)
        free(conn->body_to);
    conn->body = BODY_NONE;
    free(conn->stash);
    conn->stash = NULL;
    conn->stash_bytes = conn->stash_capacity = 0;
}

void tcp_forget_out(struct tcp_queue *queue, struct tcp_conn *conn)
{
    free(conn->tail);
    conn->tail = NULL;
    conn->tail_bytes = conn->tail_done = 0;
    if (queue->held_by == conn)
        tcp_forget_held(queue);
}

/* Logs a failure towards a peer unless that has been done. */
static void complain_once(struct tcp_conn *conn, const char *what, const char *why)
{
    char text[NETDEV_ADDRESS_TEXT];
    if (conn->peer->complained)
        LOG_DBG("%s of path %u to %s: %s", what, conn->path, netdev_address_text(&conn->peer->address, text), why);
    else
        LOG_INFORM("%s of path %u to %s: %s; the %s tries again, which is not logged", what, conn->path,
                   netdev_address_text(&conn->peer->address, text), why, conn->peer->dials ? "engine" : "peer");
    conn->peer->complained = true;
}

/*
 * A child of fork() may have a copy of the descriptor, which would keep the connection, and what epoll knows of it,
 * beyond close().
 */
void tcp_close_watched(struct tcp_queue *queue, int fd)
{
    epoll_ctl(queue->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

bool tcp_watch_conn(struct tcp_queue *queue, int how, struct tcp_conn *conn)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = (uintptr_t)conn};
    return epoll_ctl(queue->epoll_fd, how, conn->fd, &event) == 0;
}

void tcp_unwatch(struct tcp_queue *queue, struct tcp_conn *conn)
{
    conn->unwatched = epoll_ctl(queue->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL) == 0;
    COUNT(queue->setup.counters, wait_syscalls, 1);
}

/* What has happened meanwhile comes as an edge: bytes that wait, their end, room. */
bool tcp_watch_again(struct tcp_queue *queue, struct tcp_conn *conn)
{
    if (!conn->unwatched)
        return true;
    conn->unwatched = !tcp_watch_conn(queue, EPOLL_CTL_ADD, conn);
    COUNT(queue->setup.counters, wait_syscalls, 1);
    return !conn->unwatched;
}

static void put_down(struct tcp_queue *queue, struct tcp_conn *conn)
{
    if (conn->fd >= 0)
        tcp_close_watched(queue, conn->fd);
    conn->fd = -1;
    queue->live -= conn->state != TCP_DOWN;
    conn->state = TCP_DOWN;
    conn->readable = conn->hung_up = conn->full = conn->refused = conn->room_due = conn->lossy_due = false;
    conn->unwatched = false;
    conn->write_error = 0;
    conn->loss = (struct tcp_loss){0};
    conn->batch_bytes = TCP_BATCH_MAX;
    conn->act_ns = UINT64_MAX;
    queue_remove(&queue->ready, &conn->ready);
    if (queue->sole == conn)
        queue->sole = NULL;
    tcp_forget_in(conn);
    tcp_forget_out(queue, conn);
}

/*
 * Dials again after a while, longer each time: a peer that accepts and closes at once refuses us. A connection that
 * has brought something, or stood for a while, was none of those.
 */
static void dial_later(struct tcp_queue *queue, struct tcp_conn *conn)
{
    uint32_t most = conn->peer->beside ? RETRY_DOUBLINGS_BESIDE : RETRY_DOUBLINGS;
    uint64_t wait_ns = (uint64_t)RETRY_MIN_NS << (conn->failures < most ? conn->failures : most);
    if (wait_ns > RETRY_MAX_NS)
        wait_ns = RETRY_MAX_NS;
    conn->failures++;
    conn->act_ns = clock_now_ns() + (conn->failures > 1 ? wait_ns : 0);
    tcp_act_at(queue, conn->act_ns);
}

/* Logs once that datagrams carry all for good, as far as is known. */
static void despair(struct tcp_conn *conn, const char *why)
{
    char text[NETDEV_ADDRESS_TEXT];
    if (!conn->peer->beside || conn->peer->despaired || conn->failures + 1 < DESPAIR_FAILURES || tcp_is_up(conn->peer))
        return;
    conn->peer->despaired = true;
    LOG_INFORM("no TCP connection to %s comes up (%s): large messages go as datagrams; does a firewall drop TCP? The "
               "engine tries again, more and more rarely",
               netdev_address_text(&conn->peer->address, text), why);
}

/* What was in the way of this connection is in the way of the peer's others no more. */
void tcp_succeed(struct tcp_queue *queue, struct tcp_conn *conn)
{
    struct tcp_peer *peer = conn->peer;
    uint64_t now_ns = clock_now_ns();
    conn->failures = 0;
    peer->despaired = false;
    for (unsigned i = 0; peer->dials && i < peer->path_count; i++) {
        if (peer->conns[i].state == TCP_DOWN)
            peer->conns[i].act_ns = now_ns;
    }
    tcp_act_at(queue, now_ns);
}

void tcp_break(struct tcp_queue *queue, struct tcp_conn *conn, const char *why)
{
    if (conn->peer->nic)
        link_watch_doubt(&queue->links);
    if (conn->state == TCP_UP) {
        if (clock_now_ns() - conn->since_ns > STOOD_NS)
            conn->failures = 0;
        COUNT(queue->setup.counters, tcp_broken, 1);
        complain_once(conn, "the TCP connection", why);
        conn->broken_due = true;
        conn->peer->swallowed = false;
        tcp_report(queue, conn);
    } else {
        complain_once(conn, "the dialling", why);
        despair(conn, why);
    }
    put_down(queue, conn);
    if (conn->peer->dials)
        dial_later(queue, conn);
}

/*
 * Where the network has swallowed what a connection carried, the peer's others between the same two addresses are no
 * better off. Those that carry nothing would notice later, one after the other, each with what is put there meanwhile.
 * So they break too, if another rail stands in.
 */
void tcp_break_of(struct tcp_queue *queue, struct tcp_conn *conn, int error)
{
    struct tcp_peer *peer = conn->peer;
    bool swallowed = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
    bool hole = error == ETIMEDOUT && tcp_meets_hole(conn);
    tcp_break(queue, conn, strerror(error));
    conn->lossy_due = hole && peer->beside;
    for (unsigned i = 0; swallowed && (peer->rails > 1 || peer->beside) && i < peer->path_count; i++) {
        if (peer->conns[i].state == TCP_UP)
            tcp_break(queue, &peer->conns[i], strerror(error));
    }
    peer->swallowed = swallowed;
}

void tcp_hang_up(struct tcp_queue *queue, struct tcp_conn *conn)
{
    enum { DRAIN_READS = 64 };
    /* closing with unread bytes would reset the connection, and drop what we have written */
    for (unsigned i = 0; conn->state == TCP_UP && i < DRAIN_READS; i++)
        if (recv(conn->fd, queue->discard, TCP_DISCARD_BYTES, MSG_DONTWAIT) <= 0)
            break;
    put_down(queue, conn);
    queue_remove(&queue->events, &conn->event);
}
