/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of the public header: messages of every size in either order, truncation, cancelling,
 * waiting, testing, the event descriptor, registrations, exhaustion and counters.
 */
#include "api_pair.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>

/* ---- sizes, order ---------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 2, 1399, 8191, 8192, 8193, 65407, 65408, 65409, 65536, 1048576, 10485763};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* No bytes are in no place: a pointer beside the registration, or none, is as good as one in it. A byte is not. */
BOTH(api_messages, no_bytes_with_a_registration_elsewhere)
{
    struct pair pair;
    uint8_t here[64], there[64], elsewhere[2];
    uccl_mr *from, *to;
    pair_open(&pair, lend);
    IS(uccl_reg_mr(pair.engine[0], here, sizeof here, UCCL_MEM_HOST, &from), 0);
    IS(uccl_reg_mr(pair.engine[1], there, sizeof there, UCCL_MEM_HOST, &to), 0);
    struct {
        void *send, *receive;
    } rows[] = {{here, there},
                {here + sizeof here, there + sizeof there},
                {&elsewhere[0], &elsewhere[1]},
                {NULL, NULL},
                {(void *)UINTPTR_MAX, (void *)UINTPTR_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uccl_request *send = NULL, *receive = NULL, *flush = (void *)&elsewhere;
        IS(uccl_recv_async(pair.conn[1], rows[i].receive, 0, to, &receive), 0);
        IS(uccl_send_async(pair.conn[0], rows[i].send, 0, from, &send), 0);
        cr_assert_eq(end_of(receive, 0), 0);
        cr_assert_eq(end_of(send, 0), 0);
        IS(uccl_flush(pair.conn[1], rows[i].receive, 0, to, &flush), 0);
        cr_assert_null(flush);
        /* nor is one in a registration of another engine */
        IS(uccl_send_async(pair.conn[0], there, 1, to, &send), UCCL_EINVAL);
        IS(uccl_send_async(pair.conn[0], there, 0, to, &send), UCCL_EINVAL);
        IS(uccl_recv_async(pair.conn[1], here, 1, from, &receive), UCCL_EINVAL);
        IS(uccl_recv_with_async(pair.conn[1], here, 1, from, 0, &receive), UCCL_EINVAL);
        IS(uccl_flush(pair.conn[1], here, 1, from, &flush), UCCL_EINVAL);
    }
    for (size_t i = 1; i < sizeof rows / sizeof rows[0]; i++) {
        uccl_request *request = NULL;
        IS(uccl_recv_async(pair.conn[1], rows[i].receive, 1, to, &request), UCCL_EINVAL);
        IS(uccl_send_async(pair.conn[0], rows[i].send, 1, from, &request), UCCL_EINVAL);
        IS(uccl_flush(pair.conn[1], rows[i].receive, 1, to, &request), UCCL_EINVAL);
        cr_assert_null(request);
    }
    exchange(pair.conn[0], pair.conn[1], 1000, 7);
    IS(uccl_dereg_mr(from), 0);
    IS(uccl_dereg_mr(to), 0);
    pair_close(&pair);
}

BOTH(api_messages, of_every_size)
{
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < SIZES; i++) {
        exchange(pair.conn[0], pair.conn[1], sizes[i], 2 * i);
        exchange(pair.conn[1], pair.conn[0], sizes[i], 2 * i + 1);
    }
    pair_close(&pair);
}

/* Sends before receives, all at once; the receive larger than its send by a little or a lot. */
/* Watched ones count with the others, before their sends and after them. */
BOTH(api_messages, watched_of_every_size)
{
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 2 * SIZES; i++) {
        size_t length = sizes[i / 2], room = (length + 127) / 128 * 128 + 128;
        uint8_t *sent = malloc(length + 1), *received = aligned_alloc(128, room);
        uccl_request *send = NULL, *recv = NULL;
        fill(sent, length, i);
        memset(received, 0x5a, room);
        if (i % 2)
            send = post_send(pair.conn[0], sent, length);
        IS(uccl_recv_with_async(pair.conn[1], received, room - 1, NULL, i % 3 ? UCCL_RECV_WATCHED : 0, &recv), 0);
        if (!send)
            send = post_send(pair.conn[0], sent, length);
        cr_assert_eq(end_of(recv, 0), length);
        cr_assert_eq(end_of(send, 0), length);
        check(received, length, i);
        for (size_t at = length; at < room; at++)
            cr_assert_eq(received[at], 0x5a);
        free(sent);
        free(received);
    }
    pair_close(&pair);
}

static char last_log[256];

static void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    if (level == UCCL_LOG_ERROR)
        snprintf(last_log, sizeof last_log, "%s", text);
}

BOTH(api_messages, watched_is_refused)
{
    static _Alignas(128) uint8_t buffer[512];
    struct pair pair;
    uccl_request *request = NULL;
    char expected[256];
    uccl_mr *mr;
    pair_open(&pair, lend);
    uccl_conn *conn = pair.conn[1];
    uccl_set_log(keep_log, NULL);
    for (unsigned off = 1; off < 128; off++) {
        IS(uccl_recv_with_async(conn, buffer + off, 128, NULL, UCCL_RECV_WATCHED, &request), UCCL_EINVAL);
        snprintf(expected, sizeof expected, "the buffer of a watched receive, at %p, is not aligned to 128 bytes",
                 (void *)(buffer + off));
        cr_assert_str_eq(last_log, expected);
    }
    uccl_set_log(NULL, NULL);
    IS(uccl_recv_with_async(conn, buffer, 128, NULL, 2, &request), UCCL_EINVAL);
    IS(uccl_recv_with_async(conn, buffer, 128, NULL, UCCL_RECV_WATCHED | 1u << 31, &request), UCCL_EINVAL);
    IS(uccl_recv_with_async(conn, NULL, 128, NULL, UCCL_RECV_WATCHED, &request), UCCL_EINVAL);
    IS(uccl_recv_with_async(conn, buffer, 128, NULL, UCCL_RECV_WATCHED, NULL), UCCL_EINVAL);
    IS(uccl_recv_with_async(NULL, buffer, 128, NULL, UCCL_RECV_WATCHED, &request), UCCL_EINVAL);
    IS(uccl_reg_mr(pair.engine[1], buffer, 256, UCCL_MEM_AUTO, &mr), 0);
    IS(uccl_recv_with_async(conn, buffer + 128, 129, mr, UCCL_RECV_WATCHED, &request), UCCL_EINVAL);
    cr_assert_null(request);
    /* aligned, within its registration, or of no bytes */
    IS(uccl_recv_with_async(conn, buffer + 128, 128, mr, UCCL_RECV_WATCHED, &request), 0);
    IS(uccl_cancel(request), 0);
    cr_assert_eq(end_of(request, UCCL_ECANCELED), 0);
    IS(uccl_recv_with_async(conn, buffer + 1, 0, NULL, UCCL_RECV_WATCHED, &request), 0);
    IS(uccl_cancel(request), 0);
    cr_assert_eq(end_of(request, UCCL_ECANCELED), 0);
    IS(uccl_dereg_mr(mr), 0);
    pair_close(&pair);
}

BOTH(api_messages, unexpected_and_larger_receives)
{
    struct pair pair;
    uint8_t *out[SIZES], *in[SIZES];
    uccl_request *send[SIZES], *recv[SIZES];
    pair_open(&pair, lend);
    for (unsigned i = 0; i < SIZES; i++) {
        out[i] = malloc(sizes[i] + 1);
        in[i] = malloc(sizes[i] + 1000);
        memset(in[i], 0xee, sizes[i] + 1000);
        fill(out[i], sizes[i], i);
        send[i] = post_send(pair.conn[0], out[i], sizes[i]);
    }
    sleep_us(20000);
    for (unsigned i = 0; i < SIZES; i++)
        recv[i] = post_recv(pair.conn[1], in[i], sizes[i] + (i % 2 ? 1000 : 1));
    for (unsigned i = SIZES; i-- > 0;) {
        cr_assert_eq(end_of(recv[i], 0), sizes[i]);
        cr_assert_eq(end_of(send[i], 0), sizes[i]);
        check(in[i], sizes[i], i);
        for (size_t k = sizes[i]; k < sizes[i] + 1000; k++)
            cr_assert(in[i][k] == 0xee, "written beyond the message");
        free(in[i]);
        free(out[i]);
    }
    pair_close(&pair);
}

BOTH(api_messages, too_large_for_their_receive)
{
    static const struct {
        size_t sent, room;
    } cases[] = {{1, 0},       {100, 99},        {8192, 10},   {20000, 19999},
                 {20000, 100}, {1000000, 70000}, {1000000, 0}, {8193, 8192}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    static uint8_t out[1000000], in[1000000];
    struct pair pair;
    pair_open(&pair, lend);
    memset(out, 0x11, sizeof out);
    for (unsigned i = 0; i < 2 * CASES; i++) {
        size_t sent = cases[i / 2].sent, room = cases[i / 2].room;
        bool send_first = i % 2;
        uccl_request *send = NULL, *recv;
        memset(in, 0xee, sizeof in);
        if (send_first) {
            send = post_send(pair.conn[0], out, sent);
            sleep_us(5000);
        }
        recv = post_recv(pair.conn[1], in, room);
        if (!send_first) {
            sleep_us(5000);
            send = post_send(pair.conn[0], out, sent);
        }
        end_of(send, UCCL_ETRUNCATED);
        end_of(recv, UCCL_ETRUNCATED);
        for (size_t k = room; k < sizeof in; k++)
            cr_assert(in[k] == 0xee, "case %u: written beyond the buffer at %zu", i, k);
        exchange(pair.conn[0], pair.conn[1], 5000, i);
        exchange(pair.conn[1], pair.conn[0], 50000, i);
        IS(uccl_conn_status(pair.conn[0]), 0);
    }
    pair_close(&pair);
}

/* Many of one size in flight, matched by number. */
BOTH(api_messages, many_in_order)
{
    enum { COUNT = 3000, BYTES = 300 };
    static uint8_t out[COUNT][BYTES], in[COUNT][BYTES];
    static uccl_request *send[COUNT], *recv[COUNT];
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < COUNT; i++) {
        fill(out[i], BYTES, i);
        send[i] = post_send(pair.conn[1], out[i], i % BYTES);
        recv[i] = post_recv(pair.conn[0], in[i], BYTES);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(end_of(recv[i], 0), i % BYTES);
        check(in[i], i % BYTES, i);
        end_of(send[i], 0);
    }
    uint64_t sent = 0, received = 0;
    IS(uccl_counter_by_name(pair.engine[1], "msgs_sent", &sent), 0);
    IS(uccl_counter_by_name(pair.engine[0], "msgs_received", &received), 0);
    cr_assert(sent == COUNT && received == COUNT, "%d sent, %d received", (int)sent, (int)received);
    pair_close(&pair);
}

/* ---- requests that were collected ------------------------------------------------------------- */

static void is_gone(uccl_request *request)
{
    int done = 7;
    size_t bytes = 7;
    IS(uccl_test(request, &done, &bytes), UCCL_EINVAL);
    IS(uccl_wait(request, 0, &bytes), UCCL_EINVAL);
    IS(uccl_wait(request, -1, &bytes), UCCL_EINVAL);
    IS(uccl_cancel(request), UCCL_EINVAL);
    cr_assert(done == 7 && bytes == 7, "written though it failed");
}

BOTH(api_collected, is_not_collected_again)
{
    struct pair pair;
    uint8_t byte[2];
    pair_open(&pair, lend);
    uccl_request *recv = post_recv(pair.conn[1], byte, 1), *send = post_send(pair.conn[0], "x", 1);
    end_of(recv, 0);
    int done = 0;
    while (!done)
        IS(uccl_test(send, &done, NULL), 0);
    is_gone(recv);
    is_gone(send);
    uccl_request *first = post_recv(pair.conn[1], byte, 1), *second = post_recv(pair.conn[1], byte + 1, 1);
    cr_assert(first != second, "one request was handed out twice");
    is_gone(recv); /* though their memory is in use again */
    is_gone(send);
    IS(uccl_wait(first, 1, NULL), UCCL_ETIMEDOUT);
    for (unsigned i = 0; i < 2; i++)
        end_of(post_send(pair.conn[0], &"yz"[i], 1), 0);
    end_of(first, 0);
    end_of(second, 0);
    cr_assert(memcmp(byte, "yz", 2) == 0, "a late cancel has hit another request");
    pair_close(&pair);
}

/* As long as its memory is in use less than 64 times since. */
Test(api_collected, is_known_through_many_epochs, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uint8_t byte;
    pair_open(&pair, "no");
    uccl_request *old = post_recv(pair.conn[1], &byte, 1);
    end_of(post_send(pair.conn[0], "x", 1), 0);
    end_of(old, 0);
    for (unsigned i = 0; i < 62; i++) {
        is_gone(old);
        uccl_request *recv = post_recv(pair.conn[1], &byte, 1);
        is_gone(old);
        end_of(post_send(pair.conn[0], "x", 1), 0);
        end_of(recv, 0);
    }
    pair_close(&pair);
}

/* ---- cancelling ------------------------------------------------------------------------------ */

BOTH(api_cancel, a_receive)
{
    struct pair pair;
    uint8_t byte[4];
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 20; i++) {
        uccl_request *recv = post_recv(pair.conn[1], byte, sizeof byte);
        if (i % 2)
            sleep_us(1000);
        IS(uccl_cancel(recv), 0);
        end_of(recv, UCCL_ECANCELED);
        uccl_request *send = post_send(pair.conn[0], byte, 1); /* the send that it would have matched */
        end_of(send, UCCL_ECANCELED);
        exchange(pair.conn[0], pair.conn[1], 10000, i);
    }
    pair_close(&pair);
}

BOTH(api_cancel, a_send)
{
    static uint8_t out[2000000], in[2000000];
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 20; i++) {
        uccl_request *send = post_send(pair.conn[0], out, i % 4 ? sizeof out : 10);
        if (i % 2)
            sleep_us(1000);
        IS(uccl_cancel(send), 0);
        end_of(send, UCCL_ECANCELED);
        uccl_request *recv = post_recv(pair.conn[1], in, sizeof in);
        /* an eager message is there already, and the word that it was cancelled may come later */
        int received = uccl_wait(recv, SOON_MS, NULL);
        cr_assert(received == UCCL_ECANCELED || (received == 0 && i % 4 == 0), "receive %d", received);
        exchange(pair.conn[0], pair.conn[1], 10000, i);
    }
    pair_close(&pair);
}

/* In the middle of the transfer, from either side or both: ends one way or the other, and soon. */
BOTH(api_cancel, under_way)
{
    static uint8_t out[4000000], in[4000000];
    struct pair pair;
    unsigned cancelled = 0;
    pair_open(&pair, lend);
    fill(out, sizeof out, 9);
    for (unsigned i = 0; i < 30; i++) {
        uccl_request *recv = post_recv(pair.conn[1], in, sizeof in);
        uccl_request *send = post_send(pair.conn[0], out, sizeof out);
        if (uccl_wait(recv, (int)(i % 3), NULL) != UCCL_ETIMEDOUT) {
            end_of(send, 0);
            continue;
        }
        if (i % 4 != 1)
            IS(uccl_cancel(recv), 0);
        if (i % 4 != 2)
            IS(uccl_cancel(send), 0);
        int received = uccl_wait(recv, SOON_MS, NULL), sent = uccl_wait(send, SOON_MS, NULL);
        cr_assert(received == 0 || received == UCCL_ECANCELED, "receive %d", received);
        cr_assert(sent == 0 || sent == UCCL_ECANCELED, "send %d", sent);
        cr_assert(!(sent == 0 && received != 0), "sent, but not received");
        cancelled += received == UCCL_ECANCELED;
        memset(in, 0, sizeof in); /* nothing may be written any more: the next exchange checks */
        exchange(pair.conn[0], pair.conn[1], 3000, i);
        for (size_t k = 0; k < sizeof in; k += 1009)
            cr_assert(in[k] == 0, "written after the end of the request");
    }
    cr_assert(cancelled > 0);
    pair_close(&pair);
}

Test(api_cancel, one_that_has_ended, .timeout = TIMEOUT_S)
{
    struct pair pair;
    char byte = 0;
    pair_open(&pair, "no");
    uccl_request *recv = post_recv(pair.conn[1], &byte, 1), *send = post_send(pair.conn[0], "x", 1);
    for (uint64_t end_ms = now_ms() + SOON_MS; now_ms() < end_ms; sleep_us(1000))
        if (counter_of(pair.engine[0], "msgs_sent") == 1 && counter_of(pair.engine[1], "msgs_received") == 1)
            break;
    IS(uccl_cancel(recv), 0);
    IS(uccl_cancel(send), 0);
    end_of(recv, 0);
    end_of(send, 0);
    cr_assert_eq(byte, 'x');
    pair_close(&pair);
}

/* ---- waiting, testing, the event descriptor -------------------------------------------------- */

BOTH(api_wait, times_out_and_goes_on)
{
    struct pair pair;
    char byte = 0;
    size_t bytes = 77;
    pair_open(&pair, lend);
    uccl_request *recv = post_recv(pair.conn[1], &byte, 1);
    uint64_t shortest_ms = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t begin_ms = now_ms();
        IS(uccl_wait(recv, 0, &bytes), UCCL_ETIMEDOUT);
        if (now_ms() - begin_ms < shortest_ms)
            shortest_ms = now_ms() - begin_ms;
    }
    cr_assert_lt(shortest_ms, 100);
    uint64_t start_ms = now_ms();
    IS(uccl_wait(recv, 100, &bytes), UCCL_ETIMEDOUT);
    uint64_t took_ms = now_ms() - start_ms;
    cr_assert(took_ms >= 99 && took_ms < 1500, "took %d ms", (int)took_ms);
    cr_assert_eq(bytes, 77, "written though it failed");
    uccl_request *send = post_send(pair.conn[0], "y", 1);
    cr_assert_eq(end_of(recv, 0), 1);
    end_of(send, 0);
    pair_close(&pair);
}

struct stream {
    struct pair *pair;
    _Atomic int stop;
};

static void *keep_busy(void *argument)
{
    static uint8_t out[200000], in[200000];
    struct stream *stream = argument;
    while (!stream->stop) {
        uccl_request *recv = post_recv(stream->pair->conn[1], in, sizeof in);
        uccl_request *send = post_send(stream->pair->conn[0], out, sizeof out);
        end_of(recv, 0);
        end_of(send, 0);
    }
    return NULL;
}

/* A wait ends in time although the engine that it drives is never idle. */
BOTH(api_wait, times_out_while_others_are_busy)
{
    struct pair pair;
    uccl_conn *quiet[2];
    pthread_t thread;
    char byte;
    pair_open(&pair, lend);
    struct stream stream = {&pair, 0};
    connect_now(pair.engine[0], &pair.handle, pair.listener, quiet);
    uccl_request *recv = post_recv(quiet[0], &byte, 1);
    pthread_create(&thread, NULL, keep_busy, &stream);
    for (int i = 0; i < 10; i++) {
        uint64_t start_ms = now_ms();
        IS(uccl_wait(recv, 30, NULL), UCCL_ETIMEDOUT);
        cr_assert(now_ms() - start_ms < 1000, "took %d ms", (int)(now_ms() - start_ms));
    }
    stream.stop = 1;
    pthread_join(thread, NULL);
    IS(uccl_cancel(recv), 0);
    end_of(recv, UCCL_ECANCELED);
    pair_close(&pair);
}

/* What nobody waits for moves as well: posted, and then the application does something else. */
BOTH(api_wait, nobody_waits)
{
    static uint8_t out[300000], in[300000];
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t before = 0, after = 0;
        IS(uccl_counter_by_name(pair.engine[1], "msgs_received", &before), 0);
        fill(out, sizeof out, i);
        uccl_request *recv = post_recv(pair.conn[1], in, sizeof in);
        uccl_request *send = post_send(pair.conn[0], out, i % 2 ? sizeof out : 10);
        uint64_t end_ms = now_ms() + 2000;
        do {
            sleep_us(1000);
            IS(uccl_counter_by_name(pair.engine[1], "msgs_received", &after), 0);
        } while (after == before && now_ms() < end_ms);
        cr_assert(after == before + 1, "message %u lies for 2 s when nobody waits", i);
        end_of(recv, 0);
        end_of(send, 0);
        /* leave the engine in as many states as there are */
        if (i % 3 == 0) {
            recv = post_recv(pair.conn[1], in, 1);
            IS(uccl_wait(recv, (int)(i % 5), NULL), UCCL_ETIMEDOUT);
            IS(uccl_cancel(recv), 0);
            end_of(recv, UCCL_ECANCELED);
            send = post_send(pair.conn[0], out, 1);
            end_of(send, UCCL_ECANCELED);
        }
    }
    pair_close(&pair);
}

BOTH(api_wait, by_testing_alone)
{
    static uint8_t out[500000], in[500000];
    struct pair pair;
    pair_open(&pair, lend);
    for (unsigned i = 0; i < 20; i++) {
        size_t length = i % 2 ? sizeof out : 100, bytes[2] = {0};
        int done[2] = {0};
        fill(out, length, i);
        uccl_request *requests[2] = {post_send(pair.conn[0], out, length), post_recv(pair.conn[1], in, sizeof in)};
        uint64_t end_ms = now_ms() + SOON_MS;
        while (!done[0] || !done[1]) {
            for (int k = 0; k < 2; k++)
                if (!done[k])
                    IS(uccl_test(requests[k], &done[k], &bytes[k]), 0);
            cr_assert(now_ms() < end_ms);
        }
        cr_assert(bytes[0] == length && bytes[1] == length);
        check(in, length, i);
    }
    pair_close(&pair);
}

static int readable(uccl_engine *engine, int timeout_ms)
{
    struct pollfd fd = {.fd = uccl_event_fd(engine), .events = POLLIN};
    return poll(&fd, 1, timeout_ms);
}

BOTH(api_event, descriptor)
{
    static uint8_t out[400000], in[400000];
    struct pair pair;
    pair_open(&pair, lend);
    uccl_engine *engine = pair.engine[1];
    cr_assert(uccl_event_fd(engine) >= 0);
    exchange(pair.conn[0], pair.conn[1], 100, 1);
    cr_assert_eq(readable(engine, 0), 0, "readable though never armed");
    IS(uccl_event_arm(engine), 0);
    cr_assert_eq(readable(engine, 50), 0, "readable though nothing has ended");
    for (unsigned i = 0; i < 20; i++) {
        uccl_request *recv = post_recv(pair.conn[1], in, sizeof in);
        uccl_request *send = post_send(pair.conn[0], out, i % 2 ? sizeof out : 10);
        int done = 0;
        uint64_t end_ms = now_ms() + SOON_MS;
        for (;;) {
            IS(uccl_event_arm(engine), 0);
            IS(uccl_test(recv, &done, NULL), 0);
            if (done)
                break;
            cr_assert_eq(readable(engine, 5000), 1, "message %u: nothing came up", i);
            cr_assert(now_ms() < end_ms);
        }
        end_of(send, 0);
        IS(uccl_event_arm(engine), 0);
        cr_assert_eq(readable(engine, 0), 0, "arming did not clear it");
    }
    pair_close(&pair);
}

/* ---- memory, exhaustion, counters ------------------------------------------------------------ */

BOTH(api_memory, registration_in_use)
{
    struct pair pair;
    static uint8_t buffer[4096];
    uccl_mr *mr;
    uccl_request *request;
    pair_open(&pair, lend);
    IS(uccl_reg_mr(pair.engine[1], buffer + 1, sizeof buffer - 1, UCCL_MEM_AUTO, &mr), 0);
    IS(uccl_recv_async(pair.conn[1], buffer + 1, sizeof buffer, mr, &request), UCCL_EINVAL);
    IS(uccl_recv_async(pair.conn[1], buffer, 10, mr, &request), UCCL_EINVAL);
    IS(uccl_recv_async(pair.conn[1], buffer + 1, sizeof buffer - 1, mr, &request), 0);
    IS(uccl_dereg_mr(mr), UCCL_EAGAIN);
    uccl_request *send = post_send(pair.conn[0], "hello", 6);
    cr_assert_eq(end_of(request, 0), 6);
    end_of(send, 0);
    IS(uccl_flush(pair.conn[1], buffer, 6, mr, &request), UCCL_EINVAL);
    IS(uccl_flush(pair.conn[1], buffer + 1, 6, mr, &request), 0);
    cr_assert(!request);
    IS(uccl_dereg_mr(mr), 0);
    pair_close(&pair);
}

BOTH(api_limits, requests_run_out_and_come_back)
{
    enum { LIMIT = 16 };
    uccl_engine *engine = open_engine(lend, "MAX_REQUESTS", "16", "LINGER_MS", "100", NULL);
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    uccl_request *recv[LIMIT + 1], *send;
    uint8_t byte[LIMIT + 1], one = 5;
    IS(uccl_listen(engine, 0, 0, &handle, &listener), 0);
    connect_now(engine, &handle, listener, conn);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < LIMIT; i++)
            recv[i] = post_recv(conn[1], &byte[i], 1);
        recv[LIMIT] = NULL;
        IS(uccl_recv_async(conn[1], &byte[LIMIT], 1, NULL, &recv[LIMIT]), UCCL_EAGAIN);
        cr_assert(!recv[LIMIT]);
        IS(uccl_cancel(recv[0]), 0);
        end_of(recv[0], UCCL_ECANCELED);
        send = post_send(conn[0], &one, 1);
        IS(uccl_send_async(conn[0], &one, 1, NULL, &recv[LIMIT]), UCCL_EAGAIN);
        end_of(send, UCCL_ECANCELED);
        for (int i = 1; i < LIMIT; i++) {
            send = post_send(conn[0], &one, 1);
            end_of(recv[i], 0);
            end_of(send, 0);
        }
    }
    IS(uccl_close(engine), 0);
}

/* A small ring: posts that find it full are refused, not lost. */
BOTH(api_limits, ring_fills_up)
{
    enum { MESSAGES = 2000 };
    uccl_engine *a = open_engine(lend, "RING_ENTRIES", "16", NULL);
    uccl_engine *b = open_engine(lend, "RING_ENTRIES", "16", NULL);
    static uccl_request *send[MESSAGES], *recv[MESSAGES];
    static uint32_t out[MESSAGES], in[MESSAGES];
    struct uccl_handle handle;
    uccl_listener *listener;
    uccl_conn *conn[2];
    IS(uccl_listen(b, 0, 0, &handle, &listener), 0);
    connect_now(a, &handle, listener, conn);
    for (unsigned i = 0; i < MESSAGES; i++) {
        int result;
        uint64_t end_ms = now_ms() + SOON_MS;
        out[i] = i * 77;
        while ((result = uccl_send_async(conn[0], &out[i], 4, NULL, &send[i])) == UCCL_EAGAIN)
            cr_assert(now_ms() < end_ms);
        IS(result, 0);
        while ((result = uccl_recv_async(conn[1], &in[i], 4, NULL, &recv[i])) == UCCL_EAGAIN)
            cr_assert(now_ms() < end_ms);
        IS(result, 0);
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        end_of(recv[i], 0);
        end_of(send[i], 0);
        cr_assert_eq(in[i], i * 77);
    }
    IS(uccl_close(a), 0);
    IS(uccl_close(b), 0);
}

Test(api_counters, by_name_and_index, .timeout = TIMEOUT_S)
{
    struct pair pair;
    const char *name, *doc;
    uint64_t by_name, by_index, bytes = 0;
    pair_open(&pair, "no");
    for (unsigned i = 0; i < 5; i++)
        exchange(pair.conn[0], pair.conn[1], 1000, i);
    IS(uccl_counter_by_name(pair.engine[0], "bytes_sent", &bytes), 0);
    cr_assert_eq(bytes, 5000);
    unsigned count = 0;
    for (; uccl_counter_info(count, &name, &doc) == 0; count++) {
        cr_assert(name[0] && doc[0]);
        IS(uccl_counter(pair.engine[0], count, &by_index), 0);
        IS(uccl_counter_by_name(pair.engine[0], name, &by_name), 0);
        cr_assert(by_name >= by_index);
    }
    cr_assert(count > 20);
    pair_close(&pair);
}
