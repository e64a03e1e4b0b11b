/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP connection that alone brings messages is taken from epoll, and given back before anything could be missed. */
#include "tcp_pair.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static int additions_to_fail; /* to epoll; each fails with ENOSPC */

int __real_epoll_ctl(int epoll_fd, int how, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll_fd, int how, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll_fd, int how, int fd, struct epoll_event *event)
{
    if (how == EPOLL_CTL_ADD && additions_to_fail > 0) {
        additions_to_fail--;
        errno = ENOSPC;
        return -1;
    }
    return __real_epoll_ctl(epoll_fd, how, fd, event);
}

static struct tcp_conn *conn_of(struct side *side, uint16_t path)
{
    return tcp_conn_of(side->queue, side->destination, path);
}

static bool readable(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    return poll(&look, 1, 0) == 1;
}

/* A small message by `path`, which lies in the receiver's socket when this returns. */
static void send_one(struct pair *pair, unsigned from, uint16_t path)
{
    static uint8_t buffer[4096];
    struct side *to = &pair->sides[1];
    struct pollfd there = {.fd = conn_of(to, path)->fd, .events = POLLIN};
    cr_assert(send_small(&pair->sides[from], 0, 8, path, buffer));
    tcp_datagram_ops.flush(&pair->sides[from].queue->base);
    cr_assert_eq(poll(&there, 1, DEADLINE_MS), 1);
}

static void receive_one(struct pair *pair, uint16_t path)
{
    struct side *to = &pair->sides[1];
    unsigned before = to->plain;
    send_one(pair, 0, path);
    while (to->plain == before)
        pump(to);
}

/* Side 1 gets messages by path 0 alone until epoll does without that connection. */
static struct pair *open_unwatched(void)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    for (unsigned i = 0; i < 40; i++)
        receive_one(pair, 0);
    cr_assert(conn_of(&pair->sides[1], 0)->unwatched);
    return pair;
}

Test(tcp_alone, epoll_hears_nothing_of_it_and_each_poll_reads_it, .timeout = 60)
{
    struct pair *pair = open_unwatched();
    struct side *to = &pair->sides[1];
    for (unsigned i = 0; i < 20; i++) {
        unsigned before = to->plain;
        send_one(pair, 0, 0);
        cr_assert_not(readable(to->queue->epoll_fd));
        pump(to);
        cr_assert_eq(to->plain, before + 1, "also in a poll that looks at epoll");
    }
    close_pair(pair);
}

Test(tcp_alone, what_comes_ends_a_sleep, .timeout = 60)
{
    struct pair *pair = open_unwatched();
    struct side *to = &pair->sides[1];
    uint64_t timeout_ns = UINT64_MAX;
    send_one(pair, 0, 0);
    int fd = nic_watch(&to->queue->base, &timeout_ns); /* for what came before */
    cr_assert_not(conn_of(to, 0)->unwatched);
    cr_assert(readable(fd));
    unsigned before = to->plain;
    pump(to);
    cr_assert_eq(to->plain, before + 1);
    cr_assert_not(readable(fd));
    send_one(pair, 0, 0); /* and after */
    cr_assert(readable(fd));
    for (unsigned i = 0; i < 10; i++) {
        receive_one(pair, 0);
        cr_assert_not(conn_of(to, 0)->unwatched, "who sleeps often pays for no change");
        nic_watch(&to->queue->base, &timeout_ns);
        receive_one(pair, 0);
    }
    close_pair(pair);
}

Test(tcp_alone, epoll_has_it_again_once_another_one_brings_something, .timeout = 60)
{
    struct pair *pair = open_unwatched();
    struct side *to = &pair->sides[1];
    receive_one(pair, 1);
    cr_assert_not(conn_of(to, 0)->unwatched);
    for (unsigned i = 0; i < 100; i++) {
        receive_one(pair, i % 2);
        cr_assert_not(conn_of(to, 0)->unwatched || conn_of(to, 1)->unwatched);
    }
    for (unsigned i = 0; i < 40; i++)
        receive_one(pair, 1);
    cr_assert_not(conn_of(to, 1)->unwatched, "one for bulk");
    close_pair(pair);
}

/* Writes by path 0 until there is no room. */
static void fill(struct side *side)
{
    static uint8_t buffer[4096];
    while (send_small(side, 0, 1000, 0, buffer))
        tcp_datagram_ops.flush(&side->queue->base);
    cr_assert(conn_of(side, 0)->full);
    side->room[0] = false;
}

Test(tcp_alone, one_without_room_hears_when_there_is_some, .timeout = 60)
{
    for (int fails = 0; fails < 3; fails++) { /* epoll may take it later only */
        struct pair *pair = open_unwatched();
        struct side *side = &pair->sides[1];
        additions_to_fail = fails;
        fill(side);
        cr_assert_eq(conn_of(side, 0)->unwatched, fails > 0);
        while (!side->room[0]) {
            pump(&pair->sides[0]);
            pump(side);
        }
        cr_assert_eq(side->broken[0], 0);
        close_pair(pair);
    }
}

Test(tcp_alone, one_that_epoll_refuses_breaks_before_a_sleep, .timeout = 60)
{
    struct pair *pair = open_unwatched();
    struct side *to = &pair->sides[1];
    uint64_t timeout_ns = UINT64_MAX;
    additions_to_fail = 1;
    nic_watch(&to->queue->base, &timeout_ns);
    cr_assert_eq(timeout_ns, 0, "there is something to report");
    PUMP_UNTIL(pair, to->broken[0] == 1 && pair->sides[0].broken[0] == 1 && to->room[0] && pair->sides[0].room[0]);
    cr_assert_not(conn_of(to, 0)->unwatched);
    for (unsigned i = 0; i < 40; i++)
        receive_one(pair, 0);
    cr_assert(conn_of(to, 0)->unwatched);
    additions_to_fail = 1;
    receive_one(pair, 1); /* nor is it left to itself */
    cr_assert_eq(to->broken[0], 2);
    cr_assert_eq(to->broken[1], 0);
    PUMP_UNTIL(pair, to->room[0] && pair->sides[0].room[0]);
    close_pair(pair);
}

Test(tcp_alone, its_end_is_seen, .timeout = 60)
{
    struct pair *pair = open_unwatched();
    struct side *to = &pair->sides[1];
    cr_assert_eq(shutdown(conn_of(&pair->sides[0], 0)->fd, SHUT_WR), 0);
    struct pollfd there = {.fd = conn_of(to, 0)->fd, .events = POLLIN};
    cr_assert_eq(poll(&there, 1, DEADLINE_MS), 1);
    pump(to);
    cr_assert_eq(to->broken[0], 1);
    PUMP_UNTIL(pair, to->room[0] && pair->sides[0].room[0]);
    receive_one(pair, 0);
    close_pair(pair);
}
