/* SPDX-License-Identifier: Apache-2.0 */
/* Wishes for connections: private data, the engine thread, parts. */
#include "logged.h"
#include "played.h"

#include <sys/mman.h>

TestSuite(options, .timeout = TIMEOUT_S);

static const struct uccl_conn_options NONE = {.size = sizeof NONE};

/* Connects and accepts with options of both ends. */
static void meet(uccl_engine *client, const struct uccl_conn_options *wishes, uccl_engine *server,
                 const struct uccl_conn_options *of_listener, uccl_conn *conn[2])
{
    uccl_listener *listener;
    struct uccl_handle handle;
    int connected, accepted = UCCL_EAGAIN;
    IS(uccl_listen_with(server, 0, 0, of_listener, &handle, &listener), 0);
    conn[1] = NULL;
    while ((connected = uccl_connect_with(client, &handle, 0, wishes, &conn[0])) == UCCL_EAGAIN || !conn[1]) {
        if (!conn[1])
            accepted = uccl_accept(listener, 0, &conn[1]);
        cr_assert(accepted == 0 || accepted == UCCL_EAGAIN);
        if (connected != UCCL_EAGAIN)
            break;
    }
    IS(connected, 0);
    if (!conn[1])
        IS(uccl_accept(listener, SOON_MS, &conn[1]), 0);
    IS(uccl_listener_close(listener), 0);
}

/* Of every length that is allowed, in first and later handshakes, each way its own. */
BOTH(options, private_data_reaches_the_other_end)
{
    uccl_engine *engine[2] = {open_engine(lend, NULL), open_engine(lend, NULL)};
    uint8_t sent[2][UCCL_PRIVATE_MAX], got[UCCL_PRIVATE_MAX + 1];
    for (unsigned i = 0; i < sizeof sent; i++)
        sent[i / UCCL_PRIVATE_MAX][i % UCCL_PRIVATE_MAX] = (uint8_t)(i * 7 + 1);
    static const size_t LENGTHS[] = {1, 255, UCCL_PRIVATE_MAX, 0};
    for (unsigned i = 0; i < 4; i++) {
        struct uccl_conn_options with[2] = {NONE, NONE};
        uccl_conn *conn[2];
        for (unsigned side = 0; side < 2; side++) {
            with[side].private_data = sent[side];
            with[side].private_bytes = LENGTHS[(i + side) % 4];
        }
        meet(engine[0], &with[0], engine[1], &with[1], conn);
        for (unsigned side = 0; side < 2; side++) {
            size_t length = LENGTHS[(i + 1 - side) % 4];
            memset(got, 0x5a, sizeof got);
            IS(uccl_conn_private(conn[side], got, sizeof got), (int)length);
            cr_assert_eq(memcmp(got, sent[1 - side], length), 0);
            cr_assert_eq(got[length], 0x5a, "no byte more than it gave");
            IS(uccl_conn_private(conn[side], NULL, 0), (int)length);
            memset(got, 0x5a, sizeof got);
            IS(uccl_conn_private(conn[side], got, 1), (int)length);
            cr_assert_eq(got[1], 0x5a, "no byte more than there is room for");
            IS(uccl_conn_private(conn[side], NULL, 1), UCCL_EINVAL);
            IS(uccl_conn_close(conn[side]), 0);
        }
    }
    IS(uccl_close(engine[0]), 0);
    IS(uccl_close(engine[1]), 0);
}

static uint64_t sent_by(uccl_engine *engine, unsigned thread)
{
    const char *name, *doc;
    uint64_t value;
    unsigned i = 0;
    while (uccl_counter_info(i, &name, &doc) == 0 && strcmp(name, "tx_bytes") != 0)
        i++;
    IS(uccl_thread_counter(engine, thread, i, &value), 0);
    return value;
}

/* Bytes that each engine thread sends while a message of `length` crosses, either way. */
static void move(uccl_engine *engine[2], uccl_conn *conn[2], size_t length, unsigned threads, uint64_t sent[])
{
    uint8_t *from = malloc(length), *to = malloc(length);
    for (size_t i = 0; i < length; i++)
        from[i] = (uint8_t)(i * 31 + i / 251);
    for (unsigned thread = 0; thread < threads; thread++)
        sent[thread] = -sent_by(engine[0], thread) - sent_by(engine[1], thread);
    for (unsigned way = 0; way < 2; way++) {
        uccl_request *receive = post_recv(conn[1 - way], to, length), *send;
        size_t bytes;
        memset(to, 0, length);
        IS(uccl_send_async(conn[way], from, length, NULL, &send), 0);
        IS(uccl_wait(receive, SOON_MS, &bytes), 0);
        cr_assert_eq(bytes, length);
        IS(uccl_wait(send, SOON_MS, NULL), 0);
        cr_assert_eq(memcmp(from, to, length), 0);
    }
    for (unsigned thread = 0; thread < threads; thread++)
        sent[thread] += sent_by(engine[0], thread) + sent_by(engine[1], thread);
    free(from);
    free(to);
}

enum { THREADS = 3, LARGE = 3 << 20 };

/* The engine threads on which most bytes of two large messages travel, one each way. */
static unsigned used(uccl_engine *engine[2], const struct uccl_conn_options *client,
                     const struct uccl_conn_options *server)
{
    uccl_conn *conn[2];
    uint64_t sent[THREADS];
    unsigned set = 0;
    meet(engine[0], client, engine[1], server, conn);
    move(engine, conn, LARGE, THREADS, sent);
    for (unsigned thread = 0; thread < THREADS; thread++)
        set |= (unsigned)(sent[thread] > LARGE / 8) << thread;
    IS(uccl_conn_close(conn[0]), 0);
    IS(uccl_conn_close(conn[1]), 0);
    return set;
}

/* With parts the sender's threads take ranges as they drain, so one of them may be the faster: some message has parts.
 */
static void expect_parts(uccl_engine *engine[2], const struct uccl_conn_options *client,
                         const struct uccl_conn_options *server)
{
    enum { TRIES = 200 };
    unsigned set = 0;
    for (unsigned i = 0; i < TRIES && (set & (set - 1)) == 0; i++)
        set = used(engine, client, server);
    cr_assert((set & (set - 1)) != 0, "only threads %u", set);
}

BOTH(options, thread_and_parts_are_as_wished)
{
    uccl_engine *engine[2] = {open_engine(lend, "NUM_ENGINES", "3", NULL), open_engine(lend, "NUM_ENGINES", "3", NULL)};
    struct uccl_conn_options off = NONE, on = NONE;
    on.parts = UCCL_PARTS_ON;
    expect_parts(engine, NULL, &NONE);
    expect_parts(engine, &on, NULL);
    off.parts = UCCL_PARTS_OFF;
    for (unsigned thread = 1; thread <= THREADS; thread++) {
        off.thread = thread;
        cr_assert_eq(used(engine, &off, NULL), 1u << (thread - 1), "client, thread %u", thread);
        cr_assert_eq(used(engine, NULL, &off), 1u << (thread - 1), "listener, thread %u", thread);
    }
    off.thread = 0;
    for (unsigned end = 0; end < 2; end++) {
        unsigned set = used(engine, end ? NULL : &off, end ? &off : NULL);
        cr_assert(set == 1 || set == 2 || set == 4, "parts off at one end: threads %u", set);
    }
    off.thread = 2;
    struct uccl_conn_options other = off;
    other.thread = 3;
    cr_assert_eq(used(engine, &off, &other), 4, "the listener's wish counts");
    struct uccl_conn_options from = NONE;
    from.thread = 1;
    from.parts_from_bytes = LARGE;
    expect_parts(engine, &from, &from);
    from.parts_from_bytes = LARGE + 1;
    cr_assert_eq(used(engine, &from, NULL), 1, "the client neither asks for parts nor makes any");
    cr_assert_eq(used(engine, NULL, &from), 1, "nor does the server");
    IS(uccl_close(engine[0]), 0);
    IS(uccl_close(engine[1]), 0);
}

/* More threads are wished for than the other end has. */
BOTH(options, numbers_of_threads_count_round)
{
    uccl_engine *engine[2] = {open_engine(lend, "NUM_ENGINES", "3", NULL), open_engine(lend, "NUM_ENGINES", "2", NULL)};
    struct uccl_conn_options third = NONE;
    third.thread = 3;
    for (unsigned i = 0; i < 2; i++) { /* a first handshake and a later one */
        uccl_conn *conn[2];
        uint64_t sent[2];
        meet(engine[0], &third, engine[1], NULL, conn);
        move(engine, conn, 1000, 2, sent);
        IS(uccl_conn_close(conn[0]), 0);
        IS(uccl_conn_close(conn[1]), 0);
    }
    IS(uccl_close(engine[0]), 0);
    IS(uccl_close(engine[1]), 0);
}

static void refused(uccl_engine *engine, struct uccl_handle *handle, const struct uccl_conn_options *bad,
                    const char *part)
{
    uccl_conn *conn;
    uccl_listener *listener;
    struct uccl_handle other;
    logged.lines = 0;
    IS(uccl_connect_with(engine, handle, 0, bad, &conn), UCCL_EINVAL);
    cr_assert_eq(logged.lines, 1);
    cr_assert(strstr(logged.text, part), "'%s' is not in: %s", part, logged.text);
    IS(uccl_listen_with(engine, 0, 0, bad, &other, &listener), UCCL_EINVAL);
    cr_assert_eq(logged.lines, 2);
    static const struct uccl_handle zero;
    cr_assert_eq(memcmp(handle->state, zero.state, sizeof zero.state), 0, "the handle is unchanged");
}

Test(options, bad_ones_are_refused)
{
    uccl_engine *engine = open_engine("no", "NUM_ENGINES", "2", NULL);
    struct uccl_handle handle;
    uccl_set_log(take_log, NULL);
    IS(uccl_handle_from_address("127.0.0.1", 9, &handle), 0);
    struct {
        struct uccl_conn_options options;
        uint64_t later;
    } newer = {.options = NONE};
    struct uccl_conn_options bad = NONE;
    bad.size = 0;
    refused(engine, &handle, &bad, "size");
    bad.size = sizeof bad.size;
    refused(engine, &handle, &bad, "size");
    newer.options.size = sizeof newer;
    newer.later = UINT64_C(1) << 63;
    refused(engine, &handle, &newer.options, "size");
    uint8_t *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IS(mprotect(pages + 4096, 4096, PROT_NONE), 0); /* nothing but zeros, then nothing at all */
    ((struct uccl_conn_options *)pages)->size = SIZE_MAX;
    refused(engine, &handle, (struct uccl_conn_options *)pages, "size");
    munmap(pages, 8192);
    bad = NONE;
    bad.thread = 3;
    refused(engine, &handle, &bad, "thread");
    bad = NONE;
    bad.parts = (enum uccl_parts)3;
    refused(engine, &handle, &bad, "parts");
    bad = NONE;
    bad.traffic_class = 256;
    refused(engine, &handle, &bad, "traffic_class");
    bad = NONE;
    bad.private_data = &bad;
    bad.private_bytes = UCCL_PRIVATE_MAX + 1;
    refused(engine, &handle, &bad, "UCCL_PRIVATE_MAX");
    bad.private_data = NULL;
    bad.private_bytes = 1;
    refused(engine, &handle, &bad, "private_data");

    bad = NONE;
    bad.device = "no0";
    refused(engine, &handle, &bad, "device no0");
    static const char *const nowhere[] = {"", "cuda:99", "node:", "node:0x", "node:1 ", "eth0", "NODE:0"};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        bad = NONE;
        bad.near = nowhere[i];
        refused(engine, &handle, &bad, "near");
    }

    uccl_conn *conn[2];
    struct uccl_conn_options older = NONE; /* of a version that had but `thread` */
    older.size = offsetof(struct uccl_conn_options, thread) + sizeof older.thread;
    older.thread = 2;
    older.parts = (enum uccl_parts)99;
    newer.later = 0;
    meet(engine, &older, engine, &newer.options, conn);
    IS(uccl_conn_abort(conn[0]), 0);
    IS(uccl_conn_abort(conn[1]), 0);
    IS(uccl_close(engine), 0);
    uccl_set_log(NULL, NULL);
}

/* Connections of one class share their flows; those of another class, at either end, have their own. */
BOTH(options, traffic_classes_have_their_own_flows)
{
    static const struct {
        unsigned of_client, of_listener, peers;
    } steps[] = {{0, 0, 1},   {0, 0, 1}, {40, 0, 2}, {40, 0, 2}, {0, 40, 3},
                 {40, 40, 4}, {0, 0, 4}, {0, 40, 4}, {40, 40, 4}};
    enum { STEPS = sizeof steps / sizeof *steps };
    uccl_engine *engine[2] = {open_engine(lend, NULL), open_engine(lend, NULL)};
    uccl_conn *conn[STEPS][2];
    for (unsigned i = 0; i < STEPS; i++) {
        struct uccl_conn_options with[2] = {NONE, NONE};
        with[0].traffic_class = steps[i].of_client;
        with[1].traffic_class = steps[i].of_listener;
        meet(engine[0], &with[0], engine[1], &with[1], conn[i]);
        cr_assert_eq(peers_of(engine[0]), steps[i].peers, "step %u: %u peers", i, peers_of(engine[0]));
        cr_assert_eq(peers_of(engine[1]), steps[i].peers);
        for (unsigned side = 0; side < 2; side++)
            cr_assert_eq(conn[i][side]->peer->host.traffic_class, side ? steps[i].of_listener : steps[i].of_client);
    }
    for (unsigned i = 0; i < STEPS; i++) {
        IS(uccl_conn_abort(conn[i][0]), 0);
        IS(uccl_conn_abort(conn[i][1]), 0);
    }
    IS(uccl_close(engine[0]), 0);
    IS(uccl_close(engine[1]), 0);
}

/* An engine with one NIC takes any of its devices, and any node: there is no choice. */
Test(options, places_of_an_engine_with_one_nic)
{
    uccl_engine *engine = open_engine("no", "MAX_NICS", "1", NULL);
    struct uccl_device device;
    struct uccl_conn_options there = NONE;
    uccl_conn *conn[2];
    IS(uccl_device_get(engine, 0, &device), 0);
    there.device = device.name;
    there.near = "node:7";
    meet(engine, &there, engine, &there, conn);
    IS(uccl_conn_abort(conn[0]), 0);
    IS(uccl_conn_abort(conn[1]), 0);

    struct {
        struct uccl_device_stats stats;
        uint64_t beyond;
    } got = {.stats.size = sizeof got.stats, .beyond = 5};
    IS(uccl_device_stats(engine, 0, &got.stats), 0);
    cr_assert(got.stats.size == sizeof got.stats && !got.stats.in_use && got.stats.up && got.stats.tx_bytes == 0);
    got.stats.tx_bytes = 7;
    got.stats.size = offsetof(struct uccl_device_stats, tx_bytes);
    IS(uccl_device_stats(engine, 0, &got.stats), 0);
    cr_assert_eq(got.stats.tx_bytes, 7, "no field beyond the caller's size is written");
    got.stats.size = sizeof got;
    IS(uccl_device_stats(engine, 0, &got.stats), UCCL_EINVAL);
    got.stats.size = sizeof got.stats.size;
    IS(uccl_device_stats(engine, 0, &got.stats), UCCL_EINVAL);
    got.stats.size = sizeof got.stats;
    IS(uccl_device_stats(engine, -1, &got.stats), UCCL_ENODEV);
    IS(uccl_device_stats(engine, uccl_device_count(engine), &got.stats), UCCL_ENODEV);
    IS(uccl_device_stats(engine, 0, NULL), UCCL_EINVAL);
    IS(uccl_device_stats(NULL, 0, &got.stats), UCCL_EINVAL);
    cr_assert_eq(got.beyond, 5);
    IS(uccl_close(engine), 0);
}

Test(options, counters_of_a_thread)
{
    uccl_engine *engine = open_engine("no", "NUM_ENGINES", "2", NULL);
    uint64_t sum, one;
    const char *name, *doc;
    unsigned count = 0;
    while (uccl_counter_info(count, &name, &doc) == 0)
        count++;
    IS(uccl_thread_counter(engine, 1, count - 1, &one), 0);
    IS(uccl_thread_counter(engine, 2, 0, &one), UCCL_ENODEV);
    IS(uccl_thread_counter(engine, 0, count, &one), UCCL_EINVAL);
    IS(uccl_thread_counter(engine, 0, 0, NULL), UCCL_EINVAL);
    IS(uccl_thread_counter(NULL, 0, 0, &one), UCCL_EINVAL);
    IS(uccl_counter(engine, count, &sum), UCCL_EINVAL);
    IS(uccl_counter(engine, 0, NULL), UCCL_EINVAL);
    IS(uccl_close(engine), 0);
}
