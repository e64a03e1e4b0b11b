/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages over several engine threads, through the public API: whole, whatever happens to
 * their parts, and really spread.
 */
#include "api_pair.h"

#include "../../api/objects.h"
#include "core/flow.h"
#include "core/state.h"

#include <sched.h>

enum { ENGINES = 3, STRIPED = 1000003, SMALL = 100, UNSTRIPED = 40000 };

static void open_striping(struct pair *pair, const char *lend, const char *max_requests)
{
    for (int i = 0; i < 2; i++)
        pair->engine[i] = open_engine(lend, "NUM_ENGINES", "3", "STRIPE_MIN_KB", "64", "LINGER_MS", "300",
                                      "MAX_REQUESTS", max_requests, NULL);
    IS(uccl_listen(pair->engine[1], 0, 0, &pair->handle, &pair->listener), 0);
    connect_now(pair->engine[0], &pair->handle, pair->listener, pair->conn);
}

static uint64_t sent_by(const struct uccl_engine *engine, unsigned thread)
{
    return atomic_load(&engine->threads[thread].counters->tx_bytes);
}

/* How much depends on the machine; over some messages each thread has had the time for a range. */
BOTH(stripe, every_thread_carries_a_part)
{
    struct pair pair;
    uint64_t before[ENGINES], end_ms = now_ms() + SOON_MS;
    open_striping(&pair, lend, "4096");
    cr_assert_eq(pair.engine[0]->thread_count, ENGINES);
    for (unsigned i = 0; i < ENGINES; i++)
        before[i] = sent_by(pair.engine[0], i);
    for (unsigned i = 0; i < ENGINES;) {
        if (sent_by(pair.engine[0], i) - before[i] >= 2 * UNSTRIPED) {
            i++;
            continue;
        }
        cr_assert(now_ms() < end_ms, "engine thread %u has sent too little", i);
        exchange(pair.conn[0], pair.conn[1], 3 * STRIPED, i);
    }
    pair_close(&pair);
}

/* Sends a message; how many parts it had beside that of the home thread. */
static unsigned parts_of_a_send(struct pair *pair, size_t size)
{
    uint8_t *buffer = malloc(size), *sent = malloc(size);
    fill(sent, size, size);
    uccl_request *recv = post_recv(pair->conn[1], buffer, size);
    exchange(pair->conn[1], pair->conn[0], SMALL, 1); /* the clear-to-send has come */
    uccl_request *send = post_send(pair->conn[0], sent, size);
    const struct uccl_request *request = request_find(send);
    cr_assert_eq(end_of(recv, 0), size);
    cr_assert_eq(end_of(send, 0), size);
    check(buffer, size, size);
    free(buffer);
    free(sent);
    return request->parts_made;
}

/* Every thread is woken at once for a message that is alone. */
BOTH(stripe, a_lone_message_wakes_all_threads)
{
    struct pair pair;
    uint64_t end_ms = now_ms() + SOON_MS;
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < 2; i++)
        while (parts_of_a_send(&pair, i ? 5 * STRIPED : 5 * 65536) != ENGINES - 1) /* as many as came before, and one */
            cr_assert(now_ms() < end_ms);
    pair_close(&pair);
}

static const struct nic_datagram_ops *real;

/* What comes meanwhile has come since the round took its commands. */
static unsigned poll_late(struct nic_queue *queue, struct nic_rx *rx, unsigned max)
{
    sleep_us(2000);
    return real->poll(queue, rx, max);
}

/* A part is posted before its bytes may leave: a thread that finds both finds the part first. */
BOTH(stripe, a_part_comes_before_its_bytes)
{
    static struct nic_datagram_ops late;
    struct pair pair;
    uint64_t refused;
    open_striping(&pair, lend, "4096");
    exchange(pair.conn[0], pair.conn[1], SMALL, 1);
    real = pair.engine[1]->threads[0].queue->datagram;
    late = *real;
    late.poll = poll_late;
    for (unsigned i = 1; i < ENGINES; i++)
        pair.engine[1]->threads[i].queue->datagram = &late;
    for (unsigned i = 0; i < 20; i++)
        exchange(pair.conn[0], pair.conn[1], 2 * 65536, i);
    IS(uccl_counter_by_name(pair.engine[1], "rx_refused", &refused), 0);
    cr_assert_eq(refused, 0);
    pair_close(&pair);
}

/* Sends `count` messages of so many ranges at once; how many of them the home flow left to the others. */
static unsigned left_by_home(struct pair *pair, unsigned count, unsigned ranges)
{
    enum { MOST = 12, MOST_RANGES = 4 };
    static uint8_t sent[MOST_RANGES * 65536], received[MOST][MOST_RANGES * 65536];
    size_t size = (size_t)ranges * 65536;
    uccl_request *recvs[MOST], *sends[MOST];
    const struct uccl_request *requests[MOST];
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        recvs[i] = post_recv(pair->conn[1], received[i], size);
    exchange(pair->conn[1], pair->conn[0], SMALL, 1); /* the clears-to-send have come */
    fill(sent, size, 5);
    for (unsigned i = 0; i < count; i++) {
        sends[i] = post_send(pair->conn[0], sent, size);
        requests[i] = request_find(sends[i]);
    }
    for (unsigned i = 0; i < count; i++) {
        cr_assert_eq(end_of(recvs[i], 0), size);
        cr_assert_eq(end_of(sends[i], 0), size);
        check(received[i], size, 5);
    }
    for (unsigned i = 0; i < count; i++) {
        bool none = requests[i]->msg.stripes > 1 && requests[i]->msg.end_bytes == 0; /* no range */
        cr_assert(!none || requests[i]->msg.number % ENGINES >= ranges, "message %u",
                  (unsigned)requests[i]->msg.number);
        left += none;
    }
    return left;
}

/* Of a stream of messages of two ranges, the home flow has its share and no more. Alone each goes over both flows. */
BOTH(stripe, a_busy_home_leaves_messages_to_others)
{
    struct pair pair;
    uint64_t end_ms = now_ms() + SOON_MS;
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < 9; i++)
        cr_assert_eq(left_by_home(&pair, 1, 2), 0);
    for (unsigned i = 0; i < 9; i++)
        cr_assert_eq(left_by_home(&pair, 4, 1), 0, "no stream");
    while (left_by_home(&pair, 12, 2) < 2)
        cr_assert(now_ms() < end_ms, "the home flow had a range of every message");
    while (left_by_home(&pair, 12, 1) < 3)
        cr_assert(now_ms() < end_ms, "the home flow carried every message of one range");
    cr_assert_eq(left_by_home(&pair, 12, 4), 0, "more ranges than flows");
    pair_close(&pair);
}

BOTH(stripe, all_sizes_arrive_whole)
{
    static const size_t sizes[] = {
        65536, 65537, 131072, 131073, 196607, 196608, 196609, 262145, 500000, 1000 * 1000, 5 * 1000 * 1000 + 7};
    struct pair pair;
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        exchange(pair.conn[0], pair.conn[1], sizes[i], i);
        exchange(pair.conn[1], pair.conn[0], sizes[i], i + 100);
    }
    pair_close(&pair);
}

BOTH(stripe, many_at_once_keep_their_order)
{
    enum { COUNT = 24 };
    struct pair pair;
    uint8_t *sent[COUNT], *received[COUNT];
    uccl_request *sends[COUNT], *recvs[COUNT];
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < COUNT; i++) {
        size_t size = i % 3 ? STRIPED / (i + 1) : SMALL;
        sent[i] = malloc(size);
        received[i] = malloc(STRIPED);
        fill(sent[i], size, i);
        recvs[i] = post_recv(pair.conn[1], received[i], STRIPED);
        sends[i] = post_send(pair.conn[0], sent[i], size);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        size_t size = i % 3 ? STRIPED / (i + 1) : SMALL;
        cr_assert_eq(end_of(recvs[i], 0), size);
        cr_assert_eq(end_of(sends[i], 0), size);
        check(received[i], size, i);
        free(sent[i]);
        free(received[i]);
    }
    pair_close(&pair);
}

/* A large buffer has its parts out before anybody knows that little, or nothing large, will come. */
BOTH(stripe, short_messages_in_large_buffers)
{
    static const size_t sizes[] = {0, SMALL, UNSTRIPED, 65537};
    struct pair pair;
    uint8_t *buffer = malloc(STRIPED), *sent = malloc(STRIPED);
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i / 2];
        bool unexpected = i % 2;
        uccl_request *recv = NULL, *send;
        fill(sent, size, i);
        if (!unexpected)
            recv = post_recv(pair.conn[1], buffer, STRIPED);
        send = post_send(pair.conn[0], sent, size);
        if (unexpected) {
            sleep_us(2000);
            recv = post_recv(pair.conn[1], buffer, STRIPED);
        }
        cr_assert_eq(end_of(recv, 0), size);
        cr_assert_eq(end_of(send, 0), size);
        check(buffer, size, i);
    }
    pair_close(&pair);
    free(buffer);
    free(sent);
}

/* The parts that a receive is posted with, `bytes` long, once its thread has seen it; the send that it gets is posted.
 */
static unsigned parts_of_a_receive(struct pair *pair, size_t bytes)
{
    uint8_t *buffer = malloc(STRIPED), *sent = malloc(bytes);
    uccl_request *recv = post_recv(pair->conn[1], buffer, STRIPED);
    exchange(pair->conn[1], pair->conn[0], SMALL, 1); /* posted later on the same connection */
    unsigned parts = request_find(recv)->msg.stripes;
    fill(sent, bytes, 2);
    uccl_request *send = post_send(pair->conn[0], sent, bytes);
    cr_assert_eq(end_of(recv, 0), bytes);
    cr_assert_eq(end_of(send, 0), bytes);
    check(buffer, bytes, 2);
    free(buffer);
    free(sent);
    return parts;
}

/* A receive takes as many threads as the last messages would have kept busy, however large its buffer is. */
BOTH(stripe, parts_go_by_the_messages_that_came)
{
    enum { TWO_UNITS = 3 * UNSTRIPED };
    struct pair pair;
    open_striping(&pair, lend, "4096");
    for (unsigned i = 0; i < STRIPE_NOTED; i++)
        cr_assert_eq(parts_of_a_receive(&pair, 1024), ENGINES, "receive %u", i);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_leq(parts_of_a_receive(&pair, 1024), 1, "receive %u", i);
    cr_assert_leq(parts_of_a_receive(&pair, TWO_UNITS), 1, "posted before it was known");
    for (unsigned i = 0; i < STRIPE_NOTED; i++)
        cr_assert_eq(parts_of_a_receive(&pair, 1024), 2, "receive %u", i);
    cr_assert_leq(parts_of_a_receive(&pair, STRIPED), 1);
    cr_assert_eq(parts_of_a_receive(&pair, STRIPED), ENGINES);
    pair_close(&pair);
}

/* Nor does it take more threads than messages have needed lately, and one. */
BOTH(stripe, parts_go_by_the_flows_that_carried_something)
{
    struct pair pair;
    open_striping(&pair, lend, "4096");
    struct stripe_set *stripes = &pair.conn[1]->stripes;
    cr_assert_eq(stripes->expects[CLASS_MESSAGES].flows, ENGINES, "until something is known");
    stripes->expects[CLASS_MESSAGES].flows = 1; /* as after eight messages that one flow carried */
    stripes->expects[CLASS_MESSAGES].flows_noted = stripes->expects[CLASS_MESSAGES].most_flows = 0;
    cr_assert_eq(parts_of_a_receive(&pair, STRIPED), 2);
    pair_close(&pair);
}

Test(stripe, flows_that_carried_something_are_counted)
{
    struct stripe_expects expects = {.flows = 4};
    for (unsigned i = 0; i < 3 * STRIPE_NOTED; i++)
        stripe_note_flows(&expects, 0); /* short ones went whole: they say nothing */
    for (unsigned i = 0; i < STRIPE_NOTED; i++) {
        cr_assert_eq(expects.flows, 4);
        stripe_note_flows(&expects, i == 3 ? 3 : 2);
    }
    cr_assert_eq(expects.flows, 3, "the most of them");
    stripe_note_flows(&expects, 5);
    cr_assert_eq(expects.flows, 5, "at once");
    for (unsigned i = 0; i < STRIPE_NOTED; i++)
        stripe_note_flows(&expects, 1);
    cr_assert_eq(expects.flows, 1);
}

/* The last part to end may end the request on another engine thread than the one that its waiter drives. */
/* A receive fails with the copies of a part, but not with a part that had no memory and was not needed. */
Test(stripe, a_part_without_bytes_may_fail)
{
    static struct engine_thread thread;
    static struct stripe_set stripes = {.count = 2, .holds = 4, .staged = 2};
    static const struct mem_identity memory;
    static _Atomic uint32_t armed;
    struct request_pool pool;
    IS(request_pool_init(&pool, 4), 0);
    thread.event_armed = &armed;
    stripes.at[0].thread = &thread;
    for (unsigned carries = 0; carries < 2; carries++) {
        struct uccl_request *whole = request_take(&pool), *part = request_take(&pool);
        whole->msg = (struct core_msg){.kind = CORE_RECV, .status = UCCL_OK, .moved_bytes = 100};
        whole->staged.memory = &memory;
        whole->stripes = &stripes;
        whole->parts = part;
        atomic_store(&whole->unfinished, 1);
        part->parent = whole;
        part->next_part = NULL;
        part->carries = carries;
        part->staged.error = UCCL_ENOMEM;
        atomic_store(&part->state, REQUEST_ENDED);
        stripe_ended(&thread, whole);
        cr_assert_eq(atomic_load(&whole->state), REQUEST_ENDED);
        IS(whole->msg.status, carries ? UCCL_ENOMEM : UCCL_OK);
        cr_assert_eq(whole->msg.moved_bytes, carries ? 0 : 100);
    }
    request_pool_free(&pool);
}

Test(stripe, a_sleeping_borrower_hears_of_the_last_part, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uint8_t *buffer = malloc(STRIPED), sent[SMALL];
    setenv("UCCL_SPIN_US", "0", 1);
    open_striping(&pair, "yes", "4096");
    for (unsigned i = 0; i < 300; i++) {
        if (i % STRIPE_NOTED == 0)
            exchange(pair.conn[0], pair.conn[1], STRIPED, i); /* so that parts are made */
        uint64_t start_ms = now_ms();
        fill(sent, SMALL, i);
        uccl_request *recv = post_recv(pair.conn[1], buffer, STRIPED);
        uccl_request *send = post_send(pair.conn[0], sent, SMALL);
        cr_assert_eq(end_of(recv, 0), SMALL);
        cr_assert_eq(end_of(send, 0), SMALL);
        check(buffer, SMALL, i);
        cr_assert_lt(now_ms() - start_ms, SOON_MS / 2, "message %u was only seen when its wait ended", i);
    }
    pair_close(&pair);
    free(buffer);
}

BOTH(stripe, too_large_for_its_receive)
{
    struct pair pair;
    uint8_t *buffer = malloc(STRIPED), *sent = malloc(2 * STRIPED);
    open_striping(&pair, lend, "4096");
    memset(buffer, 0x77, STRIPED);
    uccl_request *recv = post_recv(pair.conn[1], buffer, STRIPED - 1);
    uccl_request *send = post_send(pair.conn[0], sent, 2 * STRIPED);
    end_of(recv, UCCL_ETRUNCATED);
    end_of(send, UCCL_ETRUNCATED);
    cr_assert_eq(buffer[STRIPED - 1], 0x77);
    exchange(pair.conn[0], pair.conn[1], STRIPED, 5);
    pair_close(&pair);
    free(buffer);
    free(sent);
}

BOTH(stripe, cancelled_and_used_again)
{
    struct pair pair;
    uint8_t *buffer = malloc(STRIPED), *sent = malloc(STRIPED);
    open_striping(&pair, lend, "4096");
    for (unsigned round = 0; round < 20; round++) {
        fill(sent, STRIPED, round);
        uccl_request *recv = post_recv(pair.conn[1], buffer, STRIPED), *send = NULL;
        if (round % 2)
            send = post_send(pair.conn[0], sent, STRIPED);
        IS(uccl_cancel(round % 4 == 3 ? send : recv), 0);
        if (!send)
            send = post_send(pair.conn[0], sent, STRIPED);
        size_t bytes;
        int received = uccl_wait(recv, SOON_MS, &bytes), done = uccl_wait(send, SOON_MS, &bytes);
        cr_assert(received == UCCL_ECANCELED || received == 0);
        cr_assert(done == UCCL_ECANCELED || done == 0);
        if (received == 0)
            check(buffer, STRIPED, round);
        memset(buffer, 0x11, STRIPED); /* it is ours: nobody may write there any more */
        exchange(pair.conn[0], pair.conn[1], STRIPED, round + 50);
        for (size_t i = 0; i < STRIPED; i++)
            cr_assert_eq(buffer[i], 0x11, "written after its request had ended, byte %zu", i);
    }
    pair_close(&pair);
    free(buffer);
    free(sent);
}

BOTH(stripe, closed_with_parts_outstanding)
{
    struct pair pair;
    uint8_t *buffer = malloc(STRIPED), *sent = malloc(STRIPED);
    open_striping(&pair, lend, "4096");
    uccl_request *recv = post_recv(pair.conn[1], buffer, STRIPED);
    uccl_request *waits = post_recv(pair.conn[0], sent, STRIPED);
    IS(uccl_conn_close(pair.conn[1]), 0);
    end_of(recv, UCCL_ECANCELED);
    end_of(waits, UCCL_ECLOSED);
    pair_close(&pair);
    free(buffer);
    free(sent);
}

static void give_up_flow(struct engine_thread *thread, void *argument)
{
    (void)thread;
    flow_give_up(((struct conn *)argument)->flow, false);
}

/* How the peer learns: by a FIN over the home flow, or a farewell over the one that is dead. */
static bool tells_the_end(int status)
{
    return status == UCCL_ECLOSED || status == UCCL_EPEERDEAD;
}

/* A flow that has a part of a message is dead, the home flow is not: the connection is over, at both ends. */
BOTH(stripe, a_dead_flow_of_a_part_ends_the_connection)
{
    struct pair pair;
    open_striping(&pair, lend, "4096");
    uint8_t *large = malloc(STRIPED), small[SMALL];
    uccl_request *recv = post_recv(pair.conn[1], large, STRIPED);
    uccl_request *other = post_recv(pair.conn[0], small, SMALL);
    const struct stripe_set *stripes = &pair.conn[1]->stripes;
    thread_run(stripes->at[1].thread, give_up_flow, stripes->at[1].conns[CLASS_MESSAGES]);
    end_of(recv, UCCL_EPEERDEAD);
    cr_assert(tells_the_end(uccl_wait(other, SOON_MS, NULL)));
    while (uccl_conn_status(pair.conn[0]) == UCCL_OK || uccl_conn_status(pair.conn[1]) == UCCL_OK)
        sched_yield(); /* it is told after the requests */
    cr_assert(tells_the_end(uccl_conn_status(pair.conn[0])));
    IS(uccl_conn_status(pair.conn[1]), UCCL_EPEERDEAD);
    pair_close(&pair);
    free(large);
}

/* So is one whose messages have no parts there: they could wait for ever for others, which nobody may post. */
BOTH(stripe, a_dead_flow_without_parts_ends_it_too)
{
    struct pair pair;
    uint8_t small[2][SMALL];
    open_striping(&pair, lend, "4096");
    uccl_request *recv = post_recv(pair.conn[1], small[1], SMALL), *other = post_recv(pair.conn[0], small[0], SMALL);
    const struct stripe_set *stripes = &pair.conn[1]->stripes;
    thread_run(stripes->at[1].thread, give_up_flow, stripes->at[1].conns[CLASS_MESSAGES]);
    end_of(recv, UCCL_EPEERDEAD);
    cr_assert(tells_the_end(uccl_wait(other, SOON_MS, NULL)));
    pair_close(&pair);
}

/* Without requests for parts, messages are sent and received whole; the application has all of its own. */
BOTH(stripe, requests_run_out)
{
    enum { COUNT = 17 };
    struct pair pair;
    uint8_t *sent = malloc(STRIPED), *received[COUNT];
    uccl_request *recvs[COUNT], *sends[COUNT];
    open_striping(&pair, lend, "18");
    fill(sent, STRIPED, 9);
    for (unsigned i = 0; i < COUNT; i++) {
        received[i] = malloc(STRIPED);
        recvs[i] = post_recv(pair.conn[1], received[i], STRIPED);
    }
    exchange(pair.conn[1], pair.conn[0], SMALL, 1); /* the last of its requests */
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = post_send(pair.conn[0], sent, STRIPED);
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(end_of(recvs[i], 0), STRIPED);
        cr_assert_eq(end_of(sends[i], 0), STRIPED);
        check(received[i], STRIPED, 9);
        free(received[i]);
    }
    pair_close(&pair);
    free(sent);
}

/* ---- close with a full ring ------------------------------------------------------------------- */

enum { BUSY_MS = 1300, HOME_BUSY_MS = 200, CALLS = 5000 };

static struct {
    struct engine_thread *home, *other;
    struct thread_call calls[CALLS], home_call;
    _Atomic bool busy;
} full_ring;

static void home_is_busy(struct engine_thread *thread, void *unused)
{
    (void)thread, (void)unused;
    sleep_us(HOME_BUSY_MS * 1000);
}

/* Then its ring has room again, but the home thread, which has a word for it, does not look for that yet. */
static void other_is_busy(struct engine_thread *thread, void *unused)
{
    (void)thread, (void)unused;
    full_ring.busy = true;
    sleep_us(BUSY_MS * 1000);
    full_ring.home_call.run = home_is_busy;
    cr_assert(thread_post(full_ring.home, COMMAND_CALL, &full_ring.home_call));
    sleep_us(HOME_BUSY_MS / 2 * 1000);
}

static void do_nothing(struct engine_thread *thread, void *unused)
{
    (void)thread, (void)unused;
}

static void *keep_busy(void *unused)
{
    thread_run(full_ring.other, other_is_busy, NULL);
    return unused;
}

/* What waits for a thread's full ring, for longer than a close waits for copies, has ended after it all the same. */
Test(stripe, close_waits_for_a_full_ring, .timeout = TIMEOUT_S)
{
    struct pair pair;
    pthread_t blocker;
    int done = 0;
    uint8_t *buffer = malloc(STRIPED);
    open_striping(&pair, "no", "4096");
    uccl_request *recv = post_recv(pair.conn[1], buffer, STRIPED);
    sleep_us(20000);
    full_ring.home = pair.conn[1]->thread;
    full_ring.other = pair.conn[1]->stripes.at[2].thread;
    pthread_create(&blocker, NULL, keep_busy, NULL);
    while (!full_ring.busy)
        sleep_us(100);
    unsigned posted = 0;
    do {
        cr_assert_lt(posted, CALLS);
        full_ring.calls[posted].run = do_nothing;
    } while (thread_post(full_ring.other, COMMAND_CALL, &full_ring.calls[posted++]));
    IS(uccl_conn_close(pair.conn[1]), 0);
    IS(uccl_test(recv, &done, NULL), UCCL_ECANCELED);
    cr_assert(done);
    pthread_join(blocker, NULL);
    pair_close(&pair);
    free(buffer);
}
