/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP backend over real connections on loopback. */
#include "tcp_pair.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

static const char *const addresses[] = {"127.0.0.1", "::1"};

Test(tcp, bulk_arrives_in_place, .timeout = 60)
{
    static const uint32_t sizes[] = {262144, 65536, 65535, 100000, 4096, 1000};
    for (unsigned a = 0; a < 2; a++) {
        struct pair *pair = open_pair(0, addresses[a]);
        struct side *to = &pair->sides[1];
        to->to = malloc(MESSAGE_BYTES);
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            memset(to->to, 0, MESSAGE_BYTES);
            to->bulk_bytes = to->in_place = to->elsewhere = 0;
            pair->msg.hidden = i == 1;
            send_message(&pair->sides[0], sizes[i]);
            PUMP_UNTIL(pair, to->bulk_bytes == MESSAGE_BYTES);
            cr_assert_eq(memcmp(to->to, pair->msg.bytes, MESSAGE_BYTES), 0);
            cr_assert_eq(to->in_place, (MESSAGE_BYTES + sizes[i] - 1) / sizes[i]);
            cr_assert_eq(to->elsewhere, 0);
        }
        cr_assert_eq(pair->sides[0].counters.tcp_connected, PATHS);
        cr_assert_eq(pair->sides[1].counters.tcp_connected, PATHS);
        cr_assert_eq(pair->sides[0].counters.tcp_broken + pair->sides[1].counters.tcp_broken, 0);
        close_pair(pair);
    }
}

Test(tcp, bulk_without_a_target_comes_in_a_buffer, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    send_message(&pair->sides[1], 262144); /* also from the side that was dialled */
    PUMP_UNTIL(pair, pair->sides[0].bulk_bytes == MESSAGE_BYTES);
    cr_assert_eq(pair->sides[0].elsewhere, MESSAGE_BYTES / 262144);
    close_pair(pair);
}

Test(tcp, small_messages_share_a_system_call, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    static uint8_t buffers[8][4096];
    unsigned sent = 0;
    for (unsigned round = 0; round < 500; round++) {
        uint64_t before = from->counters.tx_syscalls;
        for (unsigned i = 0; i < 8; i++, sent++)
            cr_assert(send_small(from, 1000 * i + round, 1 + (round * 7 + i * 131) % 1500, 0, buffers[i]));
        cr_assert_eq(tcp_datagram_ops.flush(&from->queue->base), 0);
        cr_assert_eq(from->counters.tx_syscalls - before, 1);
        if (round % 20 == 0)
            PUMP_UNTIL(pair, to->plain == sent);
    }
    PUMP_UNTIL(pair, to->plain == sent);
    cr_assert_lt(to->counters.rx_syscalls, 4 * sent);
    cr_assert_eq(from->counters.tx_datagrams, sent);
    close_pair(pair);
}

/* Both sides write more than all buffers take before either reads. */
Test(tcp, full_buffers_in_both_directions_drain, .timeout = 100)
{
    for (unsigned a = 0; a < 2; a++) {
        struct pair *pair = open_pair(4, addresses[a]); /* KiB, which the kernel raises to its least */
        uint8_t small[2][2][4096];
        uint64_t offset[2] = {0, 0};
        unsigned plain[2] = {0, 0};
        pair->sides[0].to = malloc(MESSAGE_BYTES);
        uint64_t give_up_ns = now_ns() + (uint64_t)DEADLINE_MS * 1000000;
        while ((offset[0] < MESSAGE_BYTES || offset[1] < MESSAGE_BYTES) && now_ns() < give_up_ns) {
            for (unsigned i = 0; i < 2; i++) {
                struct side *side = &pair->sides[i];
                struct tx_desc desc = bulk(side, offset[i], 262144, (uint16_t)(1 + offset[i] / 262144 % (PATHS - 1)));
                if (offset[i] < MESSAGE_BYTES && send_desc(side, &desc))
                    offset[i] += 262144;
                plain[i] += send_small(side, 5, 3000, 0, small[i][0]);
                tcp_datagram_ops.flush(&side->queue->base);
            }
            pump(&pair->sides[0]);
            pump(&pair->sides[1]);
        }
        PUMP_UNTIL(pair, pair->sides[0].bulk_bytes == MESSAGE_BYTES && pair->sides[1].bulk_bytes == MESSAGE_BYTES &&
                             pair->sides[0].plain == plain[1] && pair->sides[1].plain == plain[0]);
        cr_assert_eq(memcmp(pair->sides[0].to, pair->msg.bytes, MESSAGE_BYTES), 0);
        cr_assert_eq(pair->sides[1].elsewhere, MESSAGE_BYTES / 262144);
        cr_assert_gt(plain[0], 0);
        close_pair(pair);
    }
}

/* The receive ends while its payload is coming: not a byte more is written, and the connection goes on. */
Test(tcp, a_withdrawn_receive_is_left_alone, .timeout = 60)
{
    struct pair *pair = open_pair(64, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tx_desc desc = bulk(from, 0, 262144, 1), next = bulk(from, 262144, 1000, 1);
    uint8_t *memory = to->to = calloc(1, MESSAGE_BYTES), *before = malloc(MESSAGE_BYTES);
    cr_assert(send_desc(from, &desc));
    tcp_datagram_ops.flush(&from->queue->base);
    for (uint64_t until_ns = now_ns() + (uint64_t)DEADLINE_MS * 1000000; to->targets < 2 && now_ns() < until_ns;)
        pump(to);
    cr_assert_eq(to->bulk_bytes, 0);
    to->to = NULL;
    memcpy(before, memory, MESSAGE_BYTES);
    PUMP_UNTIL(pair, to->bulk_bytes == 262144);
    cr_assert_eq(to->discarded, 1);
    cr_assert_eq(memcmp(before, memory, MESSAGE_BYTES), 0);
    PUMP_UNTIL(pair, from->room[1]);
    cr_assert(send_desc(from, &next));
    tcp_datagram_ops.flush(&from->queue->base);
    PUMP_UNTIL(pair, to->bulk_bytes == 262144 + 1000);
    cr_assert_eq(to->elsewhere, 1);
    free(memory);
    free(before);
    close_pair(pair);
}

/* The application may reuse the payload as soon as send() has returned, though the peer reads nothing. */
Test(tcp, payload_is_not_referred_to_later, .timeout = 60)
{
    struct pair *pair = open_pair(4, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct tx_desc desc = bulk(from, 4096, 262144, 2);
    uint8_t *kept = malloc(MESSAGE_BYTES);
    memcpy(kept, pair->msg.bytes, MESSAGE_BYTES);
    to->to = malloc(MESSAGE_BYTES);
    cr_assert(send_desc(from, &desc));
    tcp_datagram_ops.flush(&from->queue->base);
    memset(pair->msg.bytes, 0xee, MESSAGE_BYTES);
    cr_assert_not(send_desc(from, &desc), "the beginning of a record waits");
    memcpy(pair->msg.bytes, kept, MESSAGE_BYTES); /* what check_bulk() compares with */
    PUMP_UNTIL(pair, to->bulk_bytes == 262144 && from->room[2]);
    cr_assert_eq(memcmp(to->to + 4096, kept + 4096, 262144), 0);
    free(kept);
    close_pair(pair);
}

/* A connection that breaks is reported once on each side, and made again. */
Test(tcp, broken_connections_are_made_again, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    to->to = malloc(MESSAGE_BYTES);
    for (unsigned i = 0; i < 12; i++) {
        uint16_t path = (uint16_t)(i % PATHS);
        struct side *breaks = &pair->sides[i / PATHS % 2];
        struct tx_desc desc = bulk(from, 0, 262144, path);
        unsigned before[2] = {from->broken[path], to->broken[path]};
        struct linger reset = {.l_onoff = 1};
        to->bulk_bytes = 0;
        cr_assert(send_now(from, &desc)); /* is under way, or not, when the connection ends */
        struct tcp_conn *conn = tcp_conn_of(breaks->queue, breaks->destination, path);
        if (i % 2) /* by a reset, else by the end of the stream */
            setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        tcp_break(breaks->queue, conn, "the test");
        from->room[path] = to->room[path] = false;
        PUMP_UNTIL(pair, from->broken[path] == before[0] + 1 && to->broken[path] == before[1] + 1 && from->room[path] &&
                             to->room[path]);
        to->bulk_bytes = 0;
        cr_assert(send_now(from, &desc));
        PUMP_UNTIL(pair, to->bulk_bytes == 262144);
        cr_assert_eq(memcmp(to->to, pair->msg.bytes, 262144), 0);
    }
    cr_assert_eq(from->counters.tcp_broken, 12);
    cr_assert_eq(to->counters.tcp_broken, 12);
    close_pair(pair);
}

/* A descriptor for a path that is down is refused, and the path tells when it is up. */
Test(tcp, a_path_that_is_down_refuses, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0];
    struct tx_desc desc = bulk(from, 0, 1000, 3), beyond = bulk(from, 0, 1000, PATHS);
    cr_assert_not(send_desc(from, &beyond));
    tcp_break(from->queue, tcp_conn_of(from->queue, from->destination, 3), "the test");
    cr_assert_not(send_desc(from, &desc));
    take_events(from);
    cr_assert_not(from->room[3]);
    PUMP_UNTIL(pair, from->room[3]);
    cr_assert(send_desc(from, &desc));
    tcp_datagram_ops.flush(&from->queue->base);
    PUMP_UNTIL(pair, pair->sides[1].bulk_bytes == 1000);
    close_pair(pair);
}

/* ---- strangers ------------------------------------------------------------------------------- */

static int dial(const struct side *side)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(side->queue->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Whether the other side has closed the connection. */
static bool is_closed(int fd)
{
    uint8_t byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

Test(tcp, strangers_are_refused, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    const struct greeting good = {.path = 1, .generation = 9, .token = tokens[1]};
    uint8_t bytes[12][GREETING_BYTES];
    for (unsigned i = 0; i < 12; i++)
        greeting_put(bytes[i], &good, tokens[0]);
    memset(bytes[0], 'A', GREETING_BYTES);
    bytes[1][4]++;                                                              /* another version */
    bytes[2][24] ^= 1;                                                          /* a wrong proof */
    bytes[3][6] ^= 2;                                                           /* another path than the proof's */
    greeting_put(bytes[4], &good, tokens[0] ^ 1);                               /* does not know our token of theirs */
    bytes[5][12] = 1;                                                           /* reserved bytes */
    greeting_put(bytes[6], &(struct greeting){1, 9, tokens[1] ^ 8}, tokens[0]); /* an unknown flow */
    greeting_put(bytes[7], &(struct greeting){PATHS, 9, tokens[1]}, tokens[0]); /* no such path */
    greeting_put(bytes[8], &(struct greeting){1, 1, tokens[1]}, tokens[0]);     /* a replay */
    greeting_put(bytes[9], &(struct greeting){1, 0, tokens[1]}, tokens[0]);     /* no generation */
    greeting_put(bytes[10], &(struct greeting){0, 9, tokens[0]}, tokens[1]);    /* to the side that dials */
    for (unsigned i = 0; i < 11; i++) {
        int fd = dial(i == 10 ? &pair->sides[0] : side);
        cr_assert_eq(write(fd, bytes[i], GREETING_BYTES), GREETING_BYTES);
        PUMP_UNTIL(pair, is_closed(fd));
        close(fd);
    }
    cr_assert_eq(side->counters.rx_strangers, 10);
    cr_assert_eq(side->counters.tcp_broken, 0, "the peer's own connections stay");
    int fd = dial(side); /* in single bytes, and then it is the path's newest connection */
    for (unsigned i = 0; i < GREETING_BYTES; i++) {
        cr_assert_eq(write(fd, bytes[11] + i, 1), 1);
        pump(side);
    }
    PUMP_UNTIL(pair, side->broken[1] == 1);
    close(fd);
    close_pair(pair);
}

Test(tcp, strangers_are_bounded, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    int fds[TCP_STRANGERS_MAX + 20];
    for (unsigned i = 0; i < TCP_STRANGERS_MAX + 20; i++) {
        fds[i] = dial(side);
        if (i % 2)
            cr_assert_eq(write(fds[i], "UCTP", 4), 4); /* and nothing more */
        for (unsigned round = 0; round < 5; round++)
            pump(side);
        cr_assert_leq(side->queue->stranger_count, TCP_STRANGERS_MAX);
    }
    PUMP_UNTIL(pair, is_closed(fds[0]) && is_closed(fds[19]));
    cr_assert_not(is_closed(fds[20]), "the newest ones stay");
    pair->params.connect_ms = 1;
    tcp_act_at(side->queue, 0);
    PUMP_UNTIL(pair, side->queue->stranger_count == 0);
    cr_assert_eq(side->counters.rx_strangers, TCP_STRANGERS_MAX + 20, "however they are dropped");
    for (unsigned i = 0; i < TCP_STRANGERS_MAX + 20; i++) {
        cr_assert(is_closed(fds[i]));
        close(fds[i]);
    }
    close_pair(pair);
}

/* Sends a small message by `path`. Returns the system calls of the poll that has received it, and `*polls` until then.
 */
static uint64_t receive_one(struct pair *pair, uint16_t path, unsigned *polls)
{
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    static uint8_t buffer[4096];
    struct pollfd readable = {.fd = to->queue->peers->conns[path].fd, .events = POLLIN};
    uint64_t calls = 0;
    cr_assert(send_small(from, 0, 8, path, buffer));
    tcp_datagram_ops.flush(&from->queue->base);
    cr_assert_eq(poll(&readable, 1, DEADLINE_MS), 1);
    for (unsigned before = to->plain; to->plain == before; ++*polls) {
        calls = to->counters.rx_syscalls;
        pump(to);
        calls = to->counters.rx_syscalls - calls;
    }
    return calls;
}

static uint64_t receive_many(struct pair *pair, unsigned count, uint16_t other_path)
{
    uint64_t calls = 0;
    unsigned polls = 0;
    for (unsigned i = 0; i < count; i++)
        calls += receive_one(pair, i % 2 ? 0 : other_path, &polls);
    return calls;
}

Test(tcp, who_alone_sends_is_read_without_a_look, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    receive_many(pair, 16, 0);
    cr_assert_leq(receive_many(pair, 64, 0), 64 * 3 / 2);
    receive_many(pair, 64, 1);
    cr_assert_leq(pair->sides[1].queue->sole_reads, 1, "two of them are looked for");
    close_pair(pair);
}

Test(tcp, who_else_sends_is_heard_within_a_few_polls, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *to = &pair->sides[1];
    unsigned polls = 0;
    receive_many(pair, 32, 0);
    receive_one(pair, 1, &polls);
    cr_assert_leq(polls, 4);
    receive_many(pair, 32, 0);
    int fd = dial(to);
    struct pollfd readable = {.fd = to->queue->listen_fd, .events = POLLIN};
    cr_assert_eq(poll(&readable, 1, DEADLINE_MS), 1);
    for (unsigned i = 0; i < 4; i++)
        pump(to);
    cr_assert_eq(to->queue->stranger_count, 1);
    close(fd);
    receive_many(pair, 32, 0);
    tcp_break(to->queue, &to->queue->peers->conns[0], "a test wants it");
    cr_assert_null(to->queue->sole, "it may be freed");
    pump(to);
    close_pair(pair);
}

/* Bytes that are no record end the connection, and nothing else. */
Test(tcp, bad_records_end_the_connection, .timeout = 60)
{
    static const struct {
        uint8_t bytes[8];
        uint32_t length;
    } cases[] = {
        {{'G', 'E', 'T', ' ', '/', ' ', 'H', 'T'}, 8},
        {{0, 0, 0, 0xc7}, 4},
        {{35, 0, 0, 0xc7}, 4},
        {{0xff, 0xff, 0xff, 0xc7}, 4},
        {{0x41, 0, 4, 0xc7}, 4}, /* one byte above the most */
        {{0x01, 0, 1, 0xc7}, 4}, /* 64 KiB and a byte, and the head that follows is not that of bulk */
    };
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *side = &pair->sides[1];
    for (unsigned path = 0; path < 2; path++) {
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct tcp_conn *conn = tcp_conn_of(pair->sides[0].queue, pair->sides[0].destination, (uint16_t)path);
            uint8_t junk[100] = {0};
            unsigned before = side->broken[path];
            cr_assert_eq(write(conn->fd, cases[i].bytes, cases[i].length), (ssize_t)cases[i].length);
            if (i == 5)
                cr_assert_eq(write(conn->fd, junk, sizeof junk), (ssize_t)sizeof junk);
            pair->sides[0].room[path] = side->room[path] = false;
            PUMP_UNTIL(pair, side->broken[path] == before + 1 && pair->sides[0].room[path] && side->room[path]);
        }
    }
    cr_assert_eq(side->broken[2] + side->broken[3], 0);
    close_pair(pair);
}

/* The same connections, whatever the sizes of reads. */
Test(tcp, records_may_come_byte_by_byte, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    to->to = calloc(1, MESSAGE_BYTES);
    for (uint16_t path = 0; path < 2; path++) {
        struct tcp_conn *conn = tcp_conn_of(from->queue, from->destination, path);
        for (unsigned step = 1; step < 200; step = step * 3 / 2 + 1) {
            uint8_t record[3][2000], all[6000];
            size_t bytes = 0;
            for (unsigned i = 0; i < 3; i++) {
                struct tx_desc desc = bulk(from, 1000 * i, 300 + 50 * i, path);
                uint32_t length = desc.last_bytes;
                record_put_prefix(record[i], length);
                wire_bulk_header(&desc, 0, 0, crc32c_portable, record[i] + RECORD_PREFIX_BYTES);
                memcpy(record[i] + RECORD_HEAD_BYTES, pair->msg.bytes + 1000 * i, length - WIRE_BULK_HEADER_BYTES);
                memcpy(all + bytes, record[i], RECORD_PREFIX_BYTES + length);
                bytes += RECORD_PREFIX_BYTES + length;
            }
            to->bulk_bytes = 0;
            for (size_t at = 0; at < bytes; at += step) {
                size_t length = bytes - at < step ? bytes - at : step;
                cr_assert_eq(write(conn->fd, all + at, length), (ssize_t)length);
                pump(to);
                pump(to);
            }
            PUMP_UNTIL(pair, to->bulk_bytes == 300 + 350 + 400);
        }
    }
    cr_assert_eq(to->broken[0] + to->broken[1], 0);
    close_pair(pair);
}

static void quiet(void *user, enum uccl_log_level level, const char *text)
{
    (void)user, (void)level, (void)text;
}

Test(tcp, addresses_of_strangers_are_judged, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct nic_host host = {.address = address_of("127.0.0.1")}, nowhere = {.address.any.sa_family = AF_UNIX};
    struct nic_queue_address good, bad;
    uint32_t destination, bytes;
    char text[NIC_QUEUE_TEXT];
    uccl_set_log(quiet, NULL);
    tcp_queue_ops.address(&pair->sides[1].queue->base, &good);
    snprintf(text, sizeof text, "TCP port %u", pair->sides[1].queue->port);
    char shown[NIC_QUEUE_TEXT];
    cr_assert_str_eq(nic_queue_address_text(&good, shown), text);
    bad = good;
    bad.bytes[0] = NIC_ADDRESS_UDP;
    cr_assert_eq(tcp_datagram_ops.peer_add(&pair->sides[0].queue->base, &host, &bad, &destination, &bytes),
                 UCCL_EPROTO);
    bad = good;
    bad.length--;
    cr_assert_eq(tcp_datagram_ops.peer_add(&pair->sides[0].queue->base, &host, &bad, &destination, &bytes),
                 UCCL_EPROTO);
    bad = good;
    bad.bytes[1] = bad.bytes[2] = 0;
    cr_assert_eq(tcp_datagram_ops.peer_add(&pair->sides[0].queue->base, &host, &bad, &destination, &bytes),
                 UCCL_EPROTO);
    cr_assert_eq(tcp_datagram_ops.peer_add(&pair->sides[0].queue->base, &nowhere, &good, &destination, &bytes),
                 UCCL_EADDR);
    close_pair(pair);
}

/* ---- beside a UDP queue ---------------------------------------------------------------------- */

/* Whoever sleeps in a UDP queue hears of what comes to the TCP queue beside it, each time. */
static void wakes_what_it_stands_beside(unsigned io)
{
    enum { TIMES = 4 };
    static uint8_t buffers[TIMES][256];
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    struct params params = {.udp_io = io, .socket_buffer_kb = 256, .port_entropy = 1};
    struct nic *nic;
    struct nic_queue *udp;
    struct nic_rx rx[1];
    cr_assert_eq(udp_device_ops.open(&params, &nic), 0);
    int status = nic->ops->queue_open(nic,
                                      &(struct nic_queue_setup){.params = &params,
                                                                .counters = &to->counters,
                                                                .crc32c = crc32c_portable,
                                                                .gather = test_gather,
                                                                .payload = test_payload},
                                      &udp);
    if (status == UCCL_ENOTSUP)
        cr_skip_test("io_uring is not available here");
    cr_assert_eq(status, 0);
    udp->beside = &to->queue->base;
    for (unsigned i = 0; i < TIMES; i++) {
        cr_assert_eq(udp->datagram->poll(udp, rx, 1), 0);
        cr_assert(send_small(from, i, 100, 0, buffers[i]));
        tcp_datagram_ops.flush(&from->queue->base);
        while (to->plain == i) { /* the kernel may have had other news first */
            sleep_in(udp, UINT64_MAX);
            pump(to);
        }
        while (pump(to)) /* nothing is left to read: an event has to tell what comes next */
            ;
    }
    udp->beside = NULL;
    udp->ops->close(udp);
    nic->ops->close(nic);
    close_pair(pair);
}

Test(tcp, a_sleep_in_udp_ends_for_what_stands_beside, .timeout = 20)
{
    wakes_what_it_stands_beside(UDP_IO_MMSG);
}

Test(tcp, a_sleep_in_io_uring_ends_for_what_stands_beside, .timeout = 20)
{
    wakes_what_it_stands_beside(UDP_IO_URING);
}

/* A queue that stands beside another numbers its destinations apart. */
Test(tcp, destinations_tell_what_stands_beside, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct nic_queue *beside = &pair->sides[1].queue->base, main = {.beside = beside};
    struct nic_host host = {.address.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    struct nic_queue_address address;
    uint32_t destination, bytes;
    pair->sides[1].queue->setup.beside = &pair->sides[1].queue->base;
    tcp_queue_ops.address(&pair->sides[0].queue->base, &address);
    cr_assert_eq(tcp_datagram_ops.peer_add(beside, &host, &address, &destination, &bytes), 0);
    cr_assert_eq((void *)nic_queue_to(&main, destination), (void *)beside);
    cr_assert_eq((void *)nic_queue_to(&main, destination & ~NIC_BESIDE), (void *)&main);
    tcp_datagram_ops.peer_remove(beside, destination);
    close_pair(pair);
}
