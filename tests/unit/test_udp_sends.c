/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sendmmsg() that fails as the test says, socket by socket and call by call: what has left is not sent again, what has
 * not is, once, and each byte where it belongs.
 */
#include "udp_pair.h"

#include <errno.h>
#include <sys/socket.h>

enum { PATHS = 4, TIMEOUT_S = 30 };

static struct pair *pair;
static bool full[PATHS];   /* sockets of queue 0 that take nothing */
static int fail_with;      /* errno of the next calls */
static unsigned fails;     /* so many of them */
static int refuse_sources; /* errno for what names its source */
static unsigned refused, segmented, messages_sent;

int __real_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags);
int __wrap_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags);
int __wrap_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    int error = fails ? fail_with : 0;
    fails -= fails > 0;
    for (unsigned i = 0; i < PATHS && !error; i++)
        error = fd == pair->queues[0]->sockets[i] && full[i] ? EAGAIN : 0;
    if (!error && messages[0].msg_hdr.msg_controllen && refuse_sources)
        error = refuse_sources;
    for (unsigned i = 0; i < count && !error; i++) {
        segmented += messages[i].msg_hdr.msg_controllen > 0;
        messages_sent++;
    }
    if (!error)
        return __real_sendmmsg(fd, messages, count, flags);
    refused++;
    errno = error;
    return -1;
}

static void set_up(void)
{
    uccl_set_log(keep_log, NULL);
    pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
}

static void tear_down(void)
{
    close_pair(pair);
}

TestSuite(udp_sends, .init = set_up, .fini = tear_down, .timeout = TIMEOUT_S);

static struct tx_desc numbered(unsigned number, uint16_t path)
{
    struct tx_desc desc = bulk(pair, 1, SMALL, SMALL);
    desc.path = desc.port = path;
    desc.seq = 100 + number;
    desc.bulk_offset = number * 3000;
    desc.msg_number = number;
    return desc;
}

/* What comes at queue 1: a bit for each message, each intact, and none twice. */
static uint64_t receive_numbers(uint64_t want)
{
    uint64_t seen = 0, until = now_ns() + DEADLINE_NS;
    struct nic_rx rx[8];
    while ((seen != want && now_ns() < until) || want == 0) {
        unsigned count = udp_datagram_ops.poll(&pair->queues[1]->base, rx, 8);
        if (count == 0 && want == 0)
            break;
        if (count == 0)
            sleep_in(&pair->queues[1]->base, 10000000);
        for (unsigned i = 0; i < count; i++) {
            for (uint32_t at = 0; at < rx[i].length; at += rx[i].stride) {
                struct wire_packet packet;
                const struct wire_frame *frame;
                uint32_t left = rx[i].length - at, length = left < rx[i].stride ? left : rx[i].stride;
                cr_assert(wire_parse(rx[i].data + at, length, crc32c_portable, &packet));
                cr_assert((frame = wire_next_frame(&packet)) && frame->kind == FRAME_DATA);
                cr_assert_eq(frame->data.offset, frame->data.msg * 3000);
                cr_assert_eq(memcmp(frame->data.payload, pair->msg.bytes + frame->data.offset, frame->data.length), 0);
                cr_assert_not(seen >> frame->data.msg & 1, "message %u came twice", frame->data.msg);
                seen |= UINT64_C(1) << frame->data.msg;
            }
            udp_datagram_ops.release(&pair->queues[1]->base, &rx[i]);
        }
    }
    return seen;
}

/* Some sockets are full, in the middle of what is staged; they have room when the next descriptor is to be sent. */
Test(udp_sends, sockets_that_are_full_keep_theirs)
{
    enum { STAGED = 12 };
    uint64_t left = 0;
    full[1] = full[2] = true;
    for (unsigned i = 0; i < STAGED; i++) {
        struct tx_desc desc = numbered(i, (uint16_t)(i % PATHS));
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        left |= i % PATHS == 1 || i % PATHS == 2 ? 0 : UINT64_C(1) << i;
    }
    cr_assert_not(udp_transmit(pair->queues[0]));
    cr_assert_eq(receive_numbers(left), left);
    cr_assert_eq(pair->counters[0].tx_datagrams, STAGED / 2);
    full[1] = full[2] = false;
    udp_full_over(pair->queues[0]);
    cr_assert(udp_transmit(pair->queues[0]));
    uint64_t rest = ((UINT64_C(1) << STAGED) - 1) & ~left;
    cr_assert_eq(receive_numbers(rest), rest);
    cr_assert_eq(receive_numbers(0), 0);
    cr_assert_eq(pair->counters[0].tx_datagrams, STAGED);
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
}

/* An error of an earlier send may be reported by the next one, which has not been tried then. */
Test(udp_sends, errors_of_earlier_sends_lose_nothing)
{
    static const int errors[] = {ECONNREFUSED, EHOSTUNREACH, EINTR};
    for (unsigned i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct tx_desc desc = numbered(i, 0);
        fail_with = errors[i];
        fails = 1;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0, "%s", strerror(errors[i]));
        cr_assert_eq(receive_numbers(UINT64_C(1) << i), UINT64_C(1) << i);
    }
    cr_assert_eq(refused, 3);
    cr_assert_str_empty(log_text);
}

/* One that fails twice has not left: the core learns that it is lost. What is staged beside it leaves. */
Test(udp_sends, what_cannot_leave_is_told)
{
    static const int errors[] = {EHOSTUNREACH, ENETDOWN, EPERM};
    for (unsigned i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct tx_desc lost = numbered(2 * i, 0), next = numbered(2 * i + 1, 0);
        fail_with = errors[i];
        fails = 2;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &lost));
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &next));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 1, "%s", strerror(errors[i]));
        cr_assert_eq(receive_numbers(UINT64_C(2) << 2 * i), UINT64_C(2) << 2 * i);
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0, "once");
    }
    cr_assert_eq(pair->counters[0].tx_datagrams, 3);
    cr_assert_not_null(strstr(log_text, "counted as lost"));
}

/* A source that the system refuses is not tried again. */
Test(udp_sends, a_refused_source_is_given_up)
{
    struct nic_host host = {.address = address_of("127.0.0.1"), .local = address_of("127.0.0.2")};
    struct nic_queue_address of_queue;
    uint32_t destination, bytes;
    udp_queue_ops.address(&pair->queues[1]->base, &of_queue);
    cr_assert_eq(udp_datagram_ops.peer_add(&pair->queues[0]->base, &host, &of_queue, &destination, &bytes), 0);
    cr_assert_gt(pair->queues[0]->peers[destination].source.length, 0);
    refuse_sources = EINVAL;
    for (unsigned i = 0; i < 5; i++) {
        struct tx_desc desc = numbered(i, 0);
        desc.destination = destination;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
        cr_assert_eq(receive_numbers(UINT64_C(1) << i), UINT64_C(1) << i);
        cr_assert_eq(refused, 2, "tried %u times", refused); /* the first one may have been another's error */
    }
    udp_datagram_ops.peer_remove(&pair->queues[0]->base, destination);
}

/* One that is taken back since its socket is full leaves those before it as they are, and room for those after it. */
Test(udp_sends, what_is_taken_back_leaves_no_trace)
{
    enum { BEFORE = 3, ALL = 6 };
    struct tx_desc big = bulk(pair, 44, SMALL, SMALL);
    big.path = big.port = 3;
    full[0] = full[1] = full[2] = full[3] = true;
    for (unsigned i = 0; i < BEFORE; i++) {
        struct tx_desc desc = numbered(i, (uint16_t)i);
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &big));
    full[0] = full[1] = full[2] = full[3] = false;
    udp_full_over(pair->queues[0]);
    for (unsigned i = BEFORE; i < ALL; i++) {
        struct tx_desc desc = numbered(i, (uint16_t)i);
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(receive_numbers((1u << ALL) - 1), (1u << ALL) - 1);
    cr_assert_eq(receive_numbers(0), 0);
}

/* A chunk that was cut for a larger MTU than the route has now is for the kernel to fragment, datagram by datagram. */
Test(udp_sends, a_chunk_too_large_for_the_route_is_not_segmented)
{
    struct tx_desc desc = bulk(pair, 3, SMALL, SMALL);
    send_and_receive(pair, &desc, check_bulk, 1);
    cr_assert(segmented == 1 && messages_sent == 1);
    pair->queues[0]->peers[pair->destination].datagram_bytes = SMALL - 1;
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    receive(pair, &desc, check_bulk, 7);
    cr_assert_eq(segmented, 1);
    cr_assert_eq(messages_sent, 4);
}
