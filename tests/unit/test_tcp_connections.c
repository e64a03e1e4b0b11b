/* SPDX-License-Identifier: Apache-2.0 */
/* TCP connections of the backend in need: no room, no descriptors, a peer that refuses, half a record. */
#include "base/log.h"
#include "logged.h"
#include "tcp_pair.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

static int option_of(struct side *side, uint16_t path, int name)
{
    int value = -1;
    socklen_t length = sizeof value;
    const struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, path);
    cr_assert_eq(getsockopt(conn->fd, IPPROTO_TCP, name, &value, &length), 0);
    return value;
}

/* Who dials and who is dialled: both notice a dead peer by themselves, and both send small records at once. */
Test(tcp_connections, both_ends_have_the_same_options, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    for (unsigned i = 0; i < 2 * PATHS; i++) {
        struct side *side = &pair->sides[i % 2];
        uint16_t path = (uint16_t)(i / 2);
        cr_expect_eq(option_of(side, path, TCP_USER_TIMEOUT), (int)pair->params.dead_peer_ms, "%u", i);
        cr_expect_eq(option_of(side, path, TCP_NODELAY), 1, "%u", i);
        cr_expect((option_of(side, path, TCP_NOTSENT_LOWAT) == 65536) == (path == 0), "%u", i);
    }
    close_pair(pair);
}

/* Both directions of each connection of both sides have segments that fit such packets. */
static void expect_segments(struct pair *pair, int most)
{
    for (unsigned i = 0; i < 2 * PATHS; i++) {
        int bytes = option_of(&pair->sides[i % 2], (uint16_t)(i / 2), TCP_MAXSEG);
        cr_expect(bytes <= most && bytes > most - 100, "%u: %d of %d", i, bytes, most);
    }
}

/* UCCL_MTU bounds them, over IPv4 and IPv6. */
Test(tcp_connections, segments_fit_the_mtu, .timeout = 60)
{
    packet_bytes = 1500;
    struct pair *pair = open_pair(0, "127.0.0.1");
    expect_segments(pair, 1460);
    close_pair(pair);
    pair = open_pair(0, "::1");
    expect_segments(pair, 1440);
    close_pair(pair);
}

/* Where large segments vanish, later connections have smaller ones, and those of UCCL_MTU if they are smaller still. */
Test(tcp_connections, segments_fit_behind_a_hole, .timeout = 60)
{
    for (packet_bytes = 0; packet_bytes <= 9000; packet_bytes += 1400) {
        struct pair *pair = open_pair(0, "127.0.0.1");
        struct side *side = &pair->sides[0];
        struct tcp_peer *peer = tcp_peer_of(side->queue, side->destination);
        peer->hole.packet_bytes = 1500;
        for (unsigned i = 0; i < PATHS; i++)
            tcp_break(side->queue, &peer->conns[i], "the test");
        take_events(side);
        PUMP_UNTIL(pair, all_room(side) && all_room(&pair->sides[1]) && pair->sides[1].counters.tcp_broken == PATHS);
        expect_segments(pair, packet_bytes == 1400 ? 1360 : 1460);
        close_pair(pair);
    }
}

/* UCCL_TCP_CC. */
Test(tcp_connections, both_ends_have_the_congestion_control_that_is_asked_for, .timeout = 60)
{
    congestion_control = "reno"; /* each kernel has it, and allows it */
    struct pair *pair = open_pair(0, "127.0.0.1");
    for (unsigned i = 0; i < 2 * PATHS; i++) {
        struct side *side = &pair->sides[i % 2];
        char name[16] = "";
        socklen_t length = sizeof name;
        const struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, (uint16_t)(i / 2));
        cr_assert_eq(getsockopt(conn->fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
        cr_expect_str_eq(name, "reno", "%u", i);
    }
    close_pair(pair);
}

/* What the kernel does not have is told once, not for each connection that is made, and made again. */
Test(tcp_connections, a_congestion_control_that_is_missing_is_told_once, .timeout = 60)
{
    congestion_control = "nosuch";
    uccl_set_log(take_log, NULL);
    struct pair *pair = open_pair(0, "127.0.0.1");
    for (uint16_t path = 0; path < PATHS; path++)
        tcp_break(pair->sides[0].queue, tcp_conn_of(pair->sides[0].queue, pair->sides[0].destination, path),
                  "the test");
    take_events(&pair->sides[0]);
    PUMP_UNTIL(pair, all_room(&pair->sides[0]) && all_room(&pair->sides[1]));
    cr_expect_eq(logged.lines, 1, "%u", logged.lines);
    cr_expect(strstr(logged.text, "UCCL_TCP_CC=\"nosuch\" has no effect"), "%s", logged.text);
    close_pair(pair);
}

/* As many paths as the side that has fewer. */
Test(tcp_connections, paths_are_those_of_both, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    for (unsigned paths = 1; paths < 256; paths = 2 * paths + 1) {
        struct nic_host host = {.address = address_of("127.0.0.1")};
        struct nic_queue_address address;
        uint32_t destination, bytes;
        unsigned count = 0;
        tcp_queue_ops.address(&pair->sides[0].queue->base, &address);
        address.bytes[3] = (uint8_t)(paths - 1);
        cr_assert_eq(tcp_datagram_ops.peer_add(&side->queue->base, &host, &address, &destination, &bytes), 0);
        while (tcp_conn_of(side->queue, destination, (uint16_t)count))
            count++;
        cr_assert_eq(count, paths < PATHS ? paths : PATHS);
        tcp_datagram_ops.peer_remove(&side->queue->base, destination);
    }
    close_pair(pair);
}

/* A path that takes nothing more says when it does again, and counts what it has taken. */
Test(tcp_connections, room_is_told_once_there_is_some, .timeout = 60)
{
    struct pair *pair = open_pair(4, "127.0.0.1"); /* KiB, which the kernel raises to its least */
    struct side *side = &pair->sides[0];
    uint64_t taken = side->counters.tx_datagrams, others = side->counters.tx_bytes;
    for (unsigned round = 0; round < 3; round++) {
        struct tx_desc desc = bulk(side, 0, 65536, 1);
        unsigned i = 0;
        for (; i < 10000 && send_desc(side, &desc); i++)
            taken++;
        cr_assert_lt(i, 10000);
        cr_assert_eq(side->counters.tx_datagrams, taken);
        side->room[1] = false;
        PUMP_UNTIL(pair, side->room[1]);
        cr_assert_eq(side->counters.tx_bytes - others, taken * (65536 + RECORD_HEAD_BYTES), "whatever took them");
    }
    close_pair(pair);
}

/* What a full socket takes nothing of has not been sent. */
Test(tcp_connections, what_is_refused_is_not_counted, .timeout = 60)
{
    struct pair *pair = open_pair(4, "127.0.0.1");
    struct side *side = &pair->sides[0];
    struct tx_desc desc = bulk(side, 0, 65536, 1);
    struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, 1);
    conn->batch_bytes = TCP_BATCH_MIN;
    static const uint8_t some[65536]; /* no record: the peer does not look any more */
    for (unsigned full = 0; full < 3; usleep(1000))
        full = send(conn->fd, some, sizeof some, MSG_DONTWAIT) > 0 ? 0 : full + 1;
    uint64_t datagrams = side->counters.tx_datagrams, bytes = side->counters.tx_bytes;
    cr_assert_not(send_desc(side, &desc));
    cr_assert_eq(side->counters.tx_datagrams, datagrams);
    cr_assert_eq(side->counters.tx_bytes, bytes);
    close_pair(pair);
}

/* Records of one connection share a system call, up to a batch; another connection's do not wait behind them. */
Test(tcp_connections, records_leave_in_batches, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    to->to = malloc(MESSAGE_BYTES);
    struct tx_desc desc = bulk(from, 0, 65536, 1), other = bulk(from, 65536, 65536, 2);
    uint64_t calls = from->counters.tx_syscalls;
    for (unsigned i = 0; i < 4; i++)
        cr_assert(send_desc(from, &desc));
    cr_assert_eq(from->counters.tx_syscalls, calls, "they wait for more");
    cr_assert(send_desc(from, &other));
    cr_assert_eq(from->counters.tx_syscalls, calls + 1);
    tcp_datagram_ops.flush(&from->queue->base);
    cr_assert_eq(from->counters.tx_syscalls, calls + 2);
    PUMP_UNTIL(pair, to->bulk_bytes == 5 * 65536);
    cr_assert_eq(memcmp(to->to, pair->msg.bytes, 2 * 65536), 0);
    close_pair(pair);
}

/* Where the kernel does not take all, each record leaves by itself: little is copied. */
Test(tcp_connections, batches_shrink, .timeout = 60)
{
    struct pair *pair = open_pair(4, "127.0.0.1");
    struct side *from = &pair->sides[0];
    struct tx_desc desc = bulk(from, 0, 65536, 1);
    const struct tcp_conn *conn = tcp_conn_of(from->queue, from->destination, 1);
    cr_assert_eq(conn->batch_bytes, TCP_BATCH_MAX);
    while (send_now(from, &desc))
        ;
    cr_assert_eq(conn->batch_bytes, TCP_BATCH_MIN);
    close_pair(pair);
}

/* With each batch that the kernel takes whole, more leaves together. */
Test(tcp_connections, batches_grow, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tx_desc desc = bulk(from, 0, 16384, 1);
    struct tcp_conn *conn = tcp_conn_of(from->queue, from->destination, 1);
    to->to = malloc(MESSAGE_BYTES);
    conn->batch_bytes = TCP_BATCH_MIN;
    for (uint32_t batch = TCP_BATCH_MIN; batch < TCP_BATCH_MAX; batch = conn->batch_bytes) {
        uint64_t calls = from->counters.tx_syscalls, bytes = from->counters.tx_bytes, records = 0;
        for (; from->counters.tx_syscalls == calls; records++)
            cr_assert(send_desc(from, &desc));
        cr_assert_eq(from->counters.tx_bytes - bytes, records * (16384 + RECORD_HEAD_BYTES));
        cr_assert(from->counters.tx_bytes - bytes >= batch && from->counters.tx_bytes - bytes < batch + 16384 + 100);
        cr_assert_eq(conn->batch_bytes, batch < TCP_BATCH_MAX / 2 ? 2 * batch : TCP_BATCH_MAX);
        to->bulk_bytes = 0;
        PUMP_UNTIL(pair, to->bulk_bytes == records * 16384);
    }
    close_pair(pair);
}

/* The end of a stream may come together with its last bytes. */
Test(tcp_connections, an_end_behind_bytes_is_heard, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    uint8_t prefix[RECORD_PREFIX_BYTES];
    record_put_prefix(prefix, 1000);
    for (uint16_t path = 0; path < PATHS; path++) {
        int fd = tcp_conn_of(from->queue, from->destination, path)->fd;
        cr_assert_eq(send(fd, prefix, sizeof prefix, 0), (ssize_t)sizeof prefix);
        cr_assert_eq(shutdown(fd, SHUT_WR), 0);
        for (uint64_t until_ns = now_ns() + UINT64_C(2000000000); !to->broken[path] && now_ns() < until_ns;)
            pump(to);
        cr_assert_eq(to->broken[path], 1);
    }
    close_pair(pair);
}

/* What the peer has sent before its end is read, also where the end shows first in a write: a stop lies in between. */
Test(tcp_connections, a_write_that_fails_leaves_what_has_come, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *stopped = &pair->sides[0], *ended = &pair->sides[1];
    static uint8_t buffer[3][1000];
    int fd = tcp_conn_of(stopped->queue, stopped->destination, 1)->fd;
    cr_assert(send_small(ended, 0, 100, 1, buffer[0]));
    tcp_datagram_ops.flush(&ended->queue->base);
    cr_assert_eq(shutdown(tcp_conn_of(ended->queue, ended->destination, 1)->fd, SHUT_RDWR), 0);
    for (unsigned i = 1; i <= 2; i++) { /* the first one brings a reset */
        struct pollfd hung_up = {.fd = fd};
        cr_assert(send_small(stopped, 0, 100, 1, buffer[i]));
        tcp_datagram_ops.flush(&stopped->queue->base);
        cr_assert_eq(i == 2 || poll(&hung_up, 1, DEADLINE_MS) == 1, 1);
    }
    cr_assert_eq(stopped->plain, 0);
    cr_assert_not(send_small(stopped, 0, 100, 1, buffer[1]), "it takes nothing more");
    for (unsigned i = 0; i < 10; i++)
        pump(stopped);
    cr_assert_eq(stopped->plain, 1);
    cr_assert_eq(stopped->broken[1], 1);
    PUMP_UNTIL(pair, all_room(stopped));
    close_pair(pair);
}

/* Whoever has failed very often is tried every second or so, not never and not without a pause. */
Test(tcp_connections, pauses_end, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, 0);
    for (unsigned failures = 7; failures < 200; failures++) {
        conn->failures = failures;
        uint64_t at_ns = now_ns();
        tcp_break(side->queue, conn, "the test");
        cr_assert(conn->act_ns >= at_ns + UINT64_C(1000000000) && conn->act_ns < now_ns() + UINT64_C(2000000000), "%u",
                  failures);
    }
    close_pair(pair);
}

/*
 * Where datagrams carry all meanwhile, a firewall that drops TCP is asked once a minute at last. What comes over one
 * connection brings all of them back at once.
 */
Test(tcp_connections, beside_datagrams_pauses_grow_to_a_minute, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tcp_conn *conns = tcp_peer_of(from->queue, from->destination)->conns;
    uint8_t buffer[4096];
    uint64_t pause_ns = 0;
    conns->peer->beside = true;
    for (unsigned i = 1; i < PATHS; i++)
        tcp_break(from->queue, &conns[i], "the test");
    for (unsigned failures = 1; failures < 200; failures++) {
        uint64_t at_ns = now_ns(), before_ns = pause_ns;
        conns[0].failures = failures;
        tcp_break(from->queue, &conns[0], "the test");
        pause_ns = conns[0].act_ns - at_ns;
        cr_assert_eq(conns->peer->despaired, failures + 1 >= 8, "%u before", failures);
        cr_assert_geq(pause_ns + UINT64_C(10000000), before_ns, "%u", failures);
        cr_assert_lt(pause_ns, UINT64_C(61000000000), "%u", failures);
        cr_assert(failures > 7 || pause_ns < UINT64_C(2000000000));
    }
    cr_assert_geq(pause_ns, UINT64_C(60000000000));
    cr_assert(conns->peer->despaired);
    for (unsigned i = 1; i < PATHS; i++) {
        conns[i].failures = 50;
        tcp_break(from->queue, &conns[i], "the test");
    }
    PUMP_UNTIL(pair, !to->room[0] && !to->room[1] && !to->room[2] && !to->room[3]);
    tcp_dial(from->queue, &conns[2], now_ns()); /* its minute is over */
    PUMP_UNTIL(pair, to->room[2] && from->room[2]);
    cr_assert_eq(conns[1].state, TCP_DOWN);
    cr_assert(send_small(to, 0, 100, 2, buffer));
    tcp_datagram_ops.flush(&to->queue->base);
    PUMP_UNTIL(pair, all_room(from) && all_room(to));
    cr_assert_not(conns->peer->despaired);
    close_pair(pair);
}

/* The log says who makes a connection again: the end that has dialled it. */
Test(tcp_connections, who_tries_again_is_told, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    uccl_set_log(take_log, NULL);
    log_set_level(UCCL_LOG_INFO);
    for (unsigned i = 0; i < 2; i++) {
        struct side *side = &pair->sides[i];
        tcp_break(side->queue, tcp_conn_of(side->queue, side->destination, 1), "the test");
        cr_expect(strstr(logged.text, i ? "the peer tries again" : "the engine tries again"), "%s", logged.text);
        take_events(side);
    }
    PUMP_UNTIL(pair, all_room(&pair->sides[0]) && all_room(&pair->sides[1]));
    close_pair(pair);
}

/* Where descriptors are short, some connections may be made and others not: TCP carries large messages all the same. */
Test(tcp_connections, one_that_fails_is_no_despair, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct tcp_queue *queue = pair->sides[0].queue;
    struct tcp_peer *peer = tcp_peer_of(queue, pair->sides[0].destination);
    peer->beside = true;
    for (unsigned i = 1; i < PATHS; i++) { /* those before it have failed, too, and path 0 is up */
        for (unsigned failures = 0; failures < 20; failures++)
            tcp_break(queue, &peer->conns[i], "Too many open files");
        cr_assert_not(peer->despaired);
    }
    tcp_break(queue, &peer->conns[0], "the test");
    cr_assert_not(peer->despaired, "it is dialled at once");
    tcp_break(queue, &peer->conns[1], "Too many open files");
    cr_assert(peer->despaired);
    peer->beside = false;
    tcp_succeed(queue, &peer->conns[0]);
    PUMP_UNTIL(pair, all_room(&pair->sides[0]) && all_room(&pair->sides[1]));
    close_pair(pair);
}

/* Those that wait for their minute are dialled at once where datagrams stop, and the others are left alone. */
Test(tcp_connections, who_is_introduced_again_is_dialled_at_once, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tcp_peer *peer = tcp_peer_of(from->queue, from->destination);
    int fd = peer->conns[0].fd;
    peer->beside = true;
    for (unsigned i = 1; i < PATHS; i++) {
        peer->conns[i].failures = 50;
        tcp_break(from->queue, &peer->conns[i], "the test");
    }
    PUMP_UNTIL(pair, !to->room[1] && !to->room[2] && !to->room[3]);
    tcp_channel_ops.introduce(&from->queue->base, from->destination,
                              &(struct nic_flow){.flow = peer->flow,
                                                 .rx_token = peer->rx_token,
                                                 .tx_token = peer->tx_token,
                                                 .dials = true,
                                                 .beside = true,
                                                 .patience_ms = peer->patience_ms});
    PUMP_UNTIL(pair, all_room(from) && all_room(to));
    cr_assert_eq(peer->conns[0].fd, fd);
    close_pair(pair);
}

/* One that has stood for a while was no refusal, though nothing has come over it. */
Test(tcp_connections, what_has_stood_is_made_again_at_once, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    for (uint16_t path = 0; path < 2; path++) {
        struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, path);
        uint64_t at_ns = now_ns();
        conn->failures = 5;
        conn->since_ns = at_ns - (path ? UINT64_C(2000000000) : 0);
        tcp_break(side->queue, conn, "the test");
        cr_assert_eq(conn->act_ns < at_ns + UINT64_C(200000000), path == 1);
    }
    close_pair(pair);
}

/* Where the network swallows what one connection carries, it does so with the others; if another rail stands in. */
Test(tcp_connections, what_is_swallowed_takes_the_others_along, .timeout = 60)
{
    static const struct {
        int error;
        unsigned rails;
        bool beside, all;
    } rows[] = {{ETIMEDOUT, 2, false, true},
                {EHOSTUNREACH, 1, true, true},
                {ENETDOWN, 3, false, true},
                {ECONNRESET, 2, false, false},
                {ETIMEDOUT, 1, false, false}};
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tcp_peer *peer = tcp_peer_of(side->queue, side->destination);
        peer->rails = (uint8_t)rows[i].rails;
        peer->beside = rows[i].beside;
        tcp_break_of(side->queue, &peer->conns[1], rows[i].error);
        for (unsigned path = 0; path < PATHS; path++)
            cr_assert_eq(peer->conns[path].state == TCP_UP, path != 1 && !rows[i].all, "row %u, path %u", i, path);
        cr_assert(tcp_channel_ops.swallowed(&side->queue->base, side->destination));
        for (unsigned path = 0; path < PATHS && rows[i].error == ECONNRESET; path++) {
            if (peer->conns[path].state == TCP_UP)
                tcp_break_of(side->queue, &peer->conns[path], ECONNRESET);
        }
        cr_assert_eq(tcp_channel_ops.swallowed(&side->queue->base, side->destination), rows[i].error != ECONNRESET);
        take_events(side);
        PUMP_UNTIL(pair, all_room(side) && all_room(&pair->sides[1]));
    }
    close_pair(pair);
}

/* Who does not answer is dialled again after a while: the next attempt may find another way. */
Test(tcp_connections, who_does_not_answer_is_dialled_again, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int mute = socket(AF_INET, SOCK_STREAM, 0), crowd[4];
    cr_assert_eq(bind(mute, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(mute, 0), 0);
    cr_assert_eq(getsockname(mute, (struct sockaddr *)&address, &length), 0);
    for (unsigned i = 0; i < 4; i++) { /* its queue is full: the kernel answers nobody */
        crowd[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(crowd[i], (struct sockaddr *)&address, sizeof address);
    }
    in_port_t port = conn->peer->address.v4.sin_port;
    conn->peer->address.v4.sin_port = address.sin_port;
    tcp_break(side->queue, conn, "the test");
    for (unsigned i = 0; i < 3; i++) {
        tcp_dial(side->queue, conn, now_ns());
        cr_assert_eq(conn->state, TCP_DIALLING);
        uint64_t until_ns = conn->act_ns;
        cr_assert(until_ns > now_ns() && until_ns < now_ns() + UINT64_C(10000000000));
        tcp_act(side->queue, until_ns - 1);
        cr_assert_eq(conn->state, TCP_DIALLING);
        tcp_act(side->queue, until_ns);
        cr_assert_eq(conn->state, TCP_DOWN);
        cr_assert_lt(conn->act_ns, now_ns() + UINT64_C(3000000000));
    }
    conn->peer->address.v4.sin_port = port;
    PUMP_UNTIL(pair, conn->state == TCP_UP);
    for (unsigned i = 0; i < 4; i++)
        close(crowd[i]);
    close(mute);
    close_pair(pair);
}

/* A queue beside another dials when it is time, though without connections it is hardly looked at otherwise. */
Test(tcp_connections, a_queue_beside_dials_in_time, .timeout = 60)
{
    enum { LOOKS = 20 };
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    struct tcp_conn *conn = tcp_conn_of(side->queue, side->destination, 0);
    side->queue->setup.beside = &side->queue->base;
    in_port_t port = conn->peer->address.v4.sin_port;
    conn->peer->address.v4.sin_port = htons(1); /* nobody listens there */
    for (uint16_t path = 0; path < PATHS; path++)
        tcp_break(side->queue, tcp_conn_of(side->queue, side->destination, path), "the test");
    uint64_t end_ns = now_ns() + UINT64_C(10000000000);
    unsigned rounds = 0;
    for (; conn->failures < 6 && now_ns() < end_ns; rounds++) {
        sleep_in(&side->queue->base, 1000000000);
        pump(side);
    }
    cr_assert_eq(conn->failures, 6);
    cr_assert_lt(rounds, LOOKS * 6, "%u", rounds);
    conn->peer->address.v4.sin_port = port;
    PUMP_UNTIL(pair, conn->state == TCP_UP);
    close_pair(pair);
}

/* Whoever connects to such a queue ends its sleeps at once until he is accepted: that is soon. */
Test(tcp_connections, a_queue_beside_sleeps_again_soon, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(side->queue->port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    for (unsigned i = 0; i < 2; i++)
        tcp_datagram_ops.peer_remove(&pair->sides[i].queue->base, pair->sides[i].destination);
    side->queue->setup.beside = &side->queue->base;
    side->queue->since_look = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    unsigned sleeps = 0;
    for (; side->queue->stranger_count == 0 && sleeps < 20000; sleeps++) {
        sleep_in(&side->queue->base, 1000000000);
        pump(side);
    }
    cr_assert_leq(sleeps, LOOK_UNUSED_SLEEPS, "%u", sleeps);
    for (unsigned i = 0; i < 2; i++)
        add_peer(&pair->sides[!i], &pair->sides[i], "127.0.0.1"); /* for close_pair() */
    close(fd);
    close_pair(pair);
}

static const void *in_pieces(const struct core_msg *msg, uint64_t offset)
{
    (void)msg, (void)offset;
    return NULL;
}

static _Atomic bool no_records; /* there is no memory for one */
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return no_records && bytes == RECORD_BULK_MAX ? NULL : __real_malloc(bytes);
}

/* A record that cannot be gathered for want of memory goes when there is some. */
Test(tcp_connections, a_shortage_of_memory_passes, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    struct tx_desc desc = bulk(side, 0, 65536, 1);
    side->queue->setup.payload = in_pieces;
    no_records = true;
    cr_assert_not(send_desc(side, &desc));
    side->room[1] = false;
    no_records = false;
    PUMP_UNTIL(pair, side->room[1]);
    cr_assert(send_desc(side, &desc));
    PUMP_UNTIL(pair, pair->sides[1].bulk_bytes == 65536);
    close_pair(pair);
}

/* Peers that come and go have the places of those before. */
Test(tcp_connections, places_of_peers_are_used_again, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *to = &pair->sides[1];
    uint32_t places = to->queue->destination_count;
    for (unsigned i = 0; i < 100; i++) {
        tcp_datagram_ops.peer_remove(&to->queue->base, to->destination);
        add_peer(to, &pair->sides[0], "127.0.0.1");
    }
    cr_assert_eq(to->queue->destination_count, places);
    close_pair(pair);
}

/* Records that wait for flush() leave before those of another connection. */
Test(tcp_connections, each_record_leaves_by_its_own, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[0];
    uint8_t buffers[2][4096];
    uint64_t before = side->counters.tx_syscalls;
    cr_assert(send_small(side, 0, 100, 0, buffers[0]));
    cr_assert_eq(side->counters.tx_syscalls, before);
    cr_assert(send_small(side, 0, 100, 1, buffers[1]));
    cr_assert_eq(side->counters.tx_syscalls, before + 1);
    PUMP_UNTIL(pair, pair->sides[1].plain == 1);
    tcp_datagram_ops.flush(&side->queue->base);
    PUMP_UNTIL(pair, pair->sides[1].plain == 2);
    close_pair(pair);
}

/* What has come of a record does not stand before the records of the path's next connection. */
Test(tcp_connections, half_a_record_goes_with_its_connection, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tcp_conn *conn = tcp_conn_of(from->queue, from->destination, 0),
                    *theirs = tcp_conn_of(to->queue, to->destination, 0);
    uint8_t prefix[RECORD_PREFIX_BYTES], buffer[4096];
    record_put_prefix(prefix, 1000);
    for (unsigned i = 1; i <= 4; i++) {
        cr_assert_eq(send(conn->fd, prefix, sizeof prefix, 0), (ssize_t)sizeof prefix);
        PUMP_UNTIL(pair, theirs->stash_bytes == sizeof prefix);
        from->room[0] = to->room[0] = false;
        tcp_break(i % 2 ? from->queue : to->queue, i % 2 ? conn : theirs, "the test");
        PUMP_UNTIL(pair, from->broken[0] == i && to->broken[0] == i && from->room[0] && to->room[0]);
        cr_assert(send_small(from, 0, 200, 0, buffer));
        tcp_datagram_ops.flush(&from->queue->base);
        PUMP_UNTIL(pair, to->plain == i);
    }
    close_pair(pair);
}

/* A peer that accepts and closes at once is dialled less and less often. */
Test(tcp_connections, who_is_refused_takes_his_time, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    tcp_datagram_ops.peer_remove(&to->queue->base, to->destination);
    uint64_t until_ns = now_ns() + UINT64_C(500000000), before = from->counters.tcp_connected;
    while (now_ns() < until_ns) {
        pump(from);
        tcp_datagram_ops.poll(&to->queue->base, (struct nic_rx[8]){0}, 8);
    }
    /* at once, then after 20, 40, 80 ms and so on, on each path */
    cr_assert_gt(from->counters.tcp_connected, before);
    cr_assert_leq(from->counters.tcp_connected - before, 10 * PATHS);
    add_peer(to, from, "127.0.0.1"); /* for close_pair() */
    close_pair(pair);
}

/* So is one that speaks first, but no records: the peer's port may be another server's by now. */
Test(tcp_connections, who_is_greeted_by_another_server_takes_his_time, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0];
    struct tcp_peer *peer = tcp_peer_of(from->queue, from->destination);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int other = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    cr_assert_eq(bind(other, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(other, 64), 0);
    cr_assert_eq(getsockname(other, (struct sockaddr *)&address, &length), 0);
    in_port_t port = peer->address.v4.sin_port;
    peer->address.v4.sin_port = address.sin_port;
    for (unsigned i = 0; i < PATHS; i++)
        tcp_break(from->queue, &peer->conns[i], "the test");
    uint64_t end_ns = now_ns() + UINT64_C(500000000), before = from->counters.tcp_connected;
    while (now_ns() < end_ns) {
        static const char text[] = "220 mail.example ESMTP\r\n";
        pump(from);
        int fd = accept(other, NULL, NULL);
        if (fd >= 0)
            cr_assert_eq(send(fd, text, sizeof text, MSG_NOSIGNAL), (ssize_t)sizeof text);
        if (fd >= 0)
            close(fd);
    }
    cr_expect_gt(from->counters.tcp_connected, before);
    cr_expect_leq(from->counters.tcp_connected - before, 10 * PATHS, "%llu",
                  (unsigned long long)(from->counters.tcp_connected - before));
    close(other);
    peer->address.v4.sin_port = port;
    PUMP_UNTIL(pair, all_room(from) && all_room(&pair->sides[1]));
    close_pair(pair);
}

/* Descriptors of the process up to the highest in use, all taken. */
static struct rlimit take_descriptors(int fd)
{
    struct rlimit before, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)fd, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    return before;
}

/* Without descriptors nobody is accepted; once there are some again, those who wait are. */
Test(tcp_connections, a_shortage_of_descriptors_passes, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(side->queue->port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), free_fd = dup(fd), spare_fd = side->queue->spare_fd;
    cr_assert(fd >= 0 && free_fd >= 0 && spare_fd >= 0);
    close(free_fd);
    struct rlimit before = take_descriptors(free_fd);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    side->queue->spare_fd = -1; /* another thread had it meanwhile */
    PUMP_UNTIL(pair, side->queue->deaf);
    cr_assert_eq(side->queue->stranger_count, 0);
    close(spare_fd);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_leq(side->queue->listen_ns, now_ns() + UINT64_C(1000000000));
    PUMP_UNTIL(pair, side->queue->stranger_count == 1);
    cr_assert_not(side->queue->deaf);
    cr_assert_geq(side->queue->spare_fd, 0, "it has one again");
    close(fd);
    close_pair(pair);
}

/* Without descriptors connections do not wait in the kernel, which would take records that nobody reads. */
Test(tcp_connections, nobody_waits_for_descriptors, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(side->queue->port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fds[3] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)}, free_fd = dup(fds[0]);
    close(free_fd);
    struct rlimit before = take_descriptors(free_fd);
    for (unsigned i = 0; i < 2; i++) {
        uint8_t byte;
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
        PUMP_UNTIL(pair, recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0);
        cr_assert_not(side->queue->deaf);
        cr_assert_geq(side->queue->spare_fd, 0);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    fds[2] = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fds[2], (struct sockaddr *)&address, sizeof address), 0);
    PUMP_UNTIL(pair, side->queue->stranger_count == 1);
    for (unsigned i = 0; i < 3; i++)
        close(fds[i]);
    close_pair(pair);
}
