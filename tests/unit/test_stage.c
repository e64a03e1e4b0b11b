/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from and to device memory through the public API, over UDP (stage_pair.h). */
#include "../await_callers.h"
#include "stage_pair.h"

#include "../../api/objects.h"
#include "../param_defaults.h"
#include "gpu/stage.h"

#include <pthread.h>

BOTH(stage, all_sizes_mmsg)
{
    stage_open_pair(lend, "128", "8", "mmsg", "1");
    all_sizes();
    cr_assert(counter(0, "gpu_fetches") && counter(1, "gpu_uploads"));
    cr_assert_eq(counter(0, "gpu_uploads") + counter(1, "gpu_fetches"), 0);
    stage_close_pair();
}

Test(stage, all_sizes_uring, .timeout = TIMEOUT_S)
{
    stage_open_pair("no", "64", "32", "auto", "1");
    all_sizes();
    stage_close_pair();
}

Test(stage, all_sizes_striped, .timeout = TIMEOUT_S)
{
    stage_open_pair("no", "256", "8", "mmsg", "3");
    all_sizes();
    stage_close_pair();
}

/* One copy per block, not one per datagram. */
Test(stage, copies_are_per_block, .timeout = TIMEOUT_S)
{
    const bool device[2] = {true, true};
    const size_t offset[2] = {0, 0};
    stage_open_pair("no", "256", "32", "mmsg", "1");
    one_message(device, 2 * 1024 * 1024, offset, 0, 1);
    cr_assert_eq(counter(0, "gpu_fetches"), 8);
    cr_assert_leq(counter(1, "gpu_uploads"), 10); /* 8, but for what a loss cuts in two */
    stage_close_pair();
}

BOTH(stage, crowd_with_few_blocks)
{
    stage_open_pair(lend, "64", "8", "mmsg", "1");
    crowd(100, 700000);
    stage_close_pair();
}

/* A record takes several reads, between which the block that it belongs to may go up and serve another message. */
BOTH(stage, crowd_with_few_blocks_over_tcp)
{
    setenv("UCCL_BACKEND", "tcp", 1);
    setenv("UCCL_TCP_BUFFER_KB", "16", 1);
    stage_open_pair(lend, "64", "8", "auto", "1");
    crowd(100, 700000);
    stage_close_pair();
}

Test(stage, crowd_striped, .timeout = TIMEOUT_S)
{
    stage_open_pair("no", "64", "8", "auto", "2");
    crowd(60, 2000000);
    stage_close_pair();
}

/* Slow copies, so that the blocks are all under way when more arrives: nothing is lost or kept beyond them. */
Test(stage, starved, .timeout = TIMEOUT_S)
{
    fake.polls_max = 2000;
    stage_open_pair("no", "64", "8", "mmsg", "1");
    crowd(40, 700000);
    cr_assert(counter(0, "gpu_starved") + counter(1, "gpu_starved"));
    stage_close_pair();
}

/* Small messages that were received before their receives come at once out of the eager ring. */
Test(stage, unexpected_messages, .timeout = TIMEOUT_S)
{
    enum { COUNT = 30, LENGTH = 8000 };
    stage_open_pair("no", "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], true, COUNT * LENGTH);
    struct side to = side_make(pair.engine[1], true, COUNT * LENGTH);
    uccl_request *send[COUNT], *recv[COUNT];
    fill(shadow, COUNT * LENGTH, 9);
    side_write(&from, 0, shadow, COUNT * LENGTH);
    for (unsigned i = 0; i < COUNT; i++)
        IS(uccl_send_async(pair.conn[0], from.memory + i * LENGTH, LENGTH, from.mr, &send[i]), 0);
    for (uint64_t end_ms = now_ms() + SOON_MS; counter(1, "eager_unexpected") < COUNT && now_ms() < end_ms;)
        sleep_us(1000);
    for (unsigned i = 0; i < COUNT; i++)
        IS(uccl_recv_async(pair.conn[1], to.memory + i * LENGTH, LENGTH, to.mr, &recv[i]), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(end_of(recv[i], 0), LENGTH);
        cr_assert_eq(end_of(send[i], 0), LENGTH);
    }
    side_read(&to, 0, shadow, COUNT * LENGTH);
    check(shadow, COUNT * LENGTH, 9);
    sides_free(&from, &to);
    stage_close_pair();
}

static void *borrow(void *argument)
{
    fake_forbid_this_thread();
    end_of(argument, 0);
    return NULL;
}

/* A thread that drives the engine while another posts a staged message gives it back before any GPU call. */
Test(stage, borrower_gives_the_engine_back, .timeout = TIMEOUT_S)
{
    enum { COUNT = 100, LENGTH = 20000 };
    pthread_t borrower;
    uint8_t byte = 0;
    stage_open_pair("yes", "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], false, LENGTH);
    uccl_request *awaited = post_recv(pair.conn[0], &byte, 1), *send, *recv;
    uint64_t lends = counter(0, "lends");
    unsigned lent = 0;
    pthread_create(&borrower, NULL, borrow, awaited);
    for (unsigned i = 0; i < COUNT; i++) {
        for (uint64_t end_ms = now_ms() + 100; counter(0, "lends") == lends && now_ms() < end_ms;)
            sleep_us(100); /* until it has the engine again */
        lent += counter(0, "lends") > lends;
        lends = counter(0, "lends");
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
        cr_assert_eq(end_of(recv, 0), LENGTH);
        cr_assert_eq(end_of(send, 0), LENGTH);
    }
    cr_assert_gt(lent, 10, "a staged message that is over does not keep the engine from being lent");
    uccl_request *last = post_send(pair.conn[1], &byte, 1);
    pthread_join(borrower, NULL);
    end_of(last, 0);
    sides_free(&from, &to);
    stage_close_pair();
}

/* ---- early ends ------------------------------------------------------------------------------ */

static bool has_ended(uccl_request *request, int *status)
{
    int done = 0;
    *status = uccl_test(request, &done, NULL);
    return done;
}

/* A cancelled request does not end while a copy touches its memory. */
BOTH(stage, cancelled_send_waits_for_its_copies)
{
    int status;
    stage_open_pair(lend, "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], true, 1000000), to = side_make(pair.engine[1], true, 1000000);
    uccl_request *send, *recv;
    fake.hold = true;
    IS(uccl_recv_async(pair.conn[1], to.memory, 1000000, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, 1000000, from.mr, &send), 0);
    for (uint64_t end_ms = now_ms() + SOON_MS; counter(0, "gpu_fetches") == 0 && now_ms() < end_ms;)
        sleep_us(1000);
    IS(uccl_cancel(send), 0);
    cr_assert_eq(end_of(recv, UCCL_ECANCELED), 0); /* the peer has heard of it */
    sleep_us(20000);
    cr_assert_not(has_ended(send, &status));
    IS(uccl_dereg_mr(from.mr), UCCL_EAGAIN);
    fake.hold = false;
    end_of(send, UCCL_ECANCELED);
    sides_free(&from, &to);
    stage_close_pair();
}

BOTH(stage, cancelled_receive_waits_for_its_copies)
{
    int status;
    stage_open_pair(lend, "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], false, 1000000), to = side_make(pair.engine[1], true, 1000000);
    uccl_request *send, *recv;
    fake.hold = true;
    IS(uccl_recv_async(pair.conn[1], to.memory, 1000000, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, 1000000, from.mr, &send), 0);
    for (uint64_t end_ms = now_ms() + SOON_MS; counter(1, "gpu_uploads") == 0 && now_ms() < end_ms;)
        sleep_us(1000);
    IS(uccl_cancel(recv), 0);
    sleep_us(20000);
    cr_assert_not(has_ended(recv, &status));
    fake.hold = false;
    end_of(recv, UCCL_ECANCELED);
    end_of(send, UCCL_ECANCELED);
    sides_free(&from, &to);
    stage_close_pair();
}

/* A receive that has every byte on this side ends only when the device has them. */
Test(stage, received_is_not_uploaded, .timeout = TIMEOUT_S)
{
    int status;
    stage_open_pair("no", "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], false, 5000), to = side_make(pair.engine[1], true, 5000);
    uccl_request *send, *recv;
    fake.hold = true;
    IS(uccl_recv_async(pair.conn[1], to.memory, 5000, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, 5000, from.mr, &send), 0);
    end_of(send, 0);
    sleep_us(20000);
    cr_assert_not(has_ended(recv, &status));
    fake.hold = false;
    cr_assert_eq(end_of(recv, 0), 5000);
    sides_free(&from, &to);
    stage_close_pair();
}

Test(stage, truncated, .timeout = TIMEOUT_S)
{
    const bool device[2] = {true, true};
    const size_t offset[2] = {0, 0};
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, 900000), to = side_make(pair.engine[1], true, 900000);
    for (unsigned i = 0; i < 4; i++) {
        uccl_request *send, *recv;
        size_t length = i % 2 ? 900000 : 3000;
        IS(uccl_recv_async(pair.conn[1], to.memory, length - 1, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, length, from.mr, &send), 0);
        end_of(send, UCCL_ETRUNCATED);
        end_of(recv, UCCL_ETRUNCATED);
    }
    one_message(device, 800000, offset, 0, 3);
    sides_free(&from, &to);
    stage_close_pair();
}

/* Closing with messages under way, on either side: all requests end, whatever state their copies are in. */
static void close_under_way(int closer, const char *threads)
{
    enum { COUNT = 20, LENGTH = 600000 };
    stage_open_pair("no", "64", "8", "mmsg", threads);
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *requests[2 * COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &requests[2 * i]), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &requests[2 * i + 1]), 0);
    }
    sleep_us(3000);
    IS(uccl_conn_close(pair.conn[closer]), 0);
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        int done = 0, status = UCCL_OK;
        for (uint64_t end_ms = now_ms() + SOON_MS; !done && now_ms() < end_ms; sleep_us(100))
            status = uccl_test(requests[i], &done, NULL);
        cr_assert(done, "request %u is pending", i);
        cr_assert(status == UCCL_OK || status == UCCL_ECANCELED || status == UCCL_ECLOSED, "status %d", status);
    }
    sides_free(&from, &to);
    stage_close_pair();
}

Test(stage, sender_closes, .timeout = TIMEOUT_S)
{
    close_under_way(0, "1");
}

Test(stage, receiver_closes_striped, .timeout = TIMEOUT_S)
{
    close_under_way(1, "2");
}

/* An engine is closed while copies are on their way. */
Test(stage, engine_closes, .timeout = TIMEOUT_S)
{
    enum { COUNT = 20, LENGTH = 600000 };
    fake.polls_max = 1000;
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    for (unsigned i = 0; i < COUNT; i++) {
        uccl_request *send, *recv;
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    }
    sleep_us(2000);
    stage_close_pair();
    fake_free(from.memory); /* nobody copies there any more */
    fake_free(to.memory);
}

/* A device that never ends its copies does not keep an engine from being closed. */
Test(stage, hung_device, .timeout = 20, .exit_code = 7)
{
    enum { COUNT = 20, LENGTH = 600000, LEFT_ALL_WELL = 7 };
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *request;
    uint8_t byte = 0;
    fake.hold = true;
    uccl_set_log(log_nothing, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &request), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &request), 0);
    }
    uccl_request *recv = post_recv(pair.conn[0], &byte, 1), *send = post_send(pair.conn[1], &byte, 1);
    end_of(recv, 0); /* others do not notice */
    end_of(send, 0);
    uint64_t start_ms = now_ms();
    IS(uccl_conn_close(pair.conn[0]), 0);
    cr_assert_lt(now_ms() - start_ms, 2500);
    pair_close(&pair);
    cr_assert_lt(now_ms() - start_ms, 10000);
    for (unsigned i = 0; i < sizeof fake.pins / sizeof fake.pins[0]; i++)
        if (fake.pins[i].memory)
            memset(fake.pins[i].memory, 1, fake.pins[i].length); /* as the device may still do */
    _exit(LEFT_ALL_WELL);                                        /* what is left to the device is a leak on purpose */
}

/* A command that stops a thread until the test lets it go. */
struct stop {
    struct thread_call call;
    _Atomic bool holds, there;
};

static void stand(struct engine_thread *thread, void *argument)
{
    struct stop *stop = argument;
    (void)thread;
    for (stop->there = true; stop->holds;)
        sleep_us(100);
}

static void stop_at(struct stop *stop, struct engine_thread *thread)
{
    stop->holds = true;
    stop->call = (struct thread_call){.run = stand, .argument = stop};
    cr_assert(thread_post(thread, COMMAND_CALL, &stop->call));
}

static void await_stop(const struct stop *stop)
{
    while (!stop->there)
        sleep_us(100);
}

static struct stop open_stop;
static struct thread_call nothing = {.run = stand, .argument = &open_stop};

static _Atomic int waited; /* 1: nothing yet */

static void *wait_without_end(void *request)
{
    waited = uccl_wait(request, -1, NULL);
    return NULL;
}

/* Nor do threads that wait for such copies stay inside the engine. */
Test(stage, hung_device_lets_callers_go, .timeout = 20, .exit_code = 7)
{
    enum { LENGTH = 600000, LEFT_ALL_WELL = 7 };
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], false, LENGTH);
    uccl_request *send, *recv;
    pthread_t thread;
    waited = 1;
    fake.hold = true;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    pthread_create(&thread, NULL, wait_without_end, send);
    await_callers(pair.engine[0], 1);
    while (counter(0, "gpu_fetches") == 0)
        sleep_us(1000);
    IS(uccl_close(pair.engine[0]), 0);
    for (uint64_t end_ms = now_ms() + 2000; waited == 1;) {
        cr_assert_lt(now_ms(), end_ms, "it waits in an engine that is gone");
        sleep_us(1000);
    }
    IS(waited, UCCL_ECANCELED);
    pthread_join(thread, NULL);
    _exit(LEFT_ALL_WELL);
}

/* A connection of whose requests a device lets go after it was closed is freed then. */
Test(stage, a_device_outlasts_a_connection, .timeout = TIMEOUT_S)
{
    enum { LENGTH = 600000 };
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *recv, *send;
    uint64_t end_ms = now_ms() + SOON_MS;
    int status;
    fake.hold = true;
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    while (counter(0, "gpu_fetches") == 0)
        cr_assert(now_ms() < end_ms);
    IS(uccl_conn_close(pair.conn[0]), 0);
    cr_assert_not(has_ended(send, &status));
    cr_assert_not_null(pair.engine[0]->kept);
    fake.hold = false;
    end_of(send, UCCL_ECANCELED);
    end_of(recv, UCCL_ECLOSED);
    sides_free(&from, &to);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    cr_assert_null(pair.engine[0]->kept);
    stage_close_pair();
}

static void *close_conn(void *conn)
{
    IS(uccl_conn_close(conn), 0);
    return NULL;
}

/*
 * A part is on its way to a thread whose ring is full when its connection is closed. Copies hang, so the request
 * outlasts the connection: the part must not.
 */
Test(stage, a_part_does_not_outlast_its_connection, .timeout = TIMEOUT_S)
{
    enum { LENGTH = 600000 };
    struct stop stops[3] = {0};
    setenv("UCCL_RING_ENTRIES", "16", 1);
    setenv("UCCL_STRIPE_MIN_KB", "64", 1);
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], false, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    struct stripe_set *stripes = &pair.conn[1]->stripes;
    struct engine_thread *home = stripes->at[0].thread, *other = stripes->at[1].thread;
    uccl_request *recv, *send;
    pthread_t closer;
    fake.hold = true;
    stop_at(&stops[0], other);
    await_stop(&stops[0]);
    stop_at(&stops[1], other);
    while (thread_post(other, COMMAND_CALL, &nothing))
        ;
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    while (counter(1, "gpu_uploads") == 0)
        sleep_us(1000);
    pthread_create(&closer, NULL, close_conn, pair.conn[1]);
    while (!stripes->at[1].to_close.waiting) /* its home end is closed */
        sleep_us(1000);
    stops[0].holds = false;
    await_stop(&stops[1]);
    while (stripes->at[1].to_close.waiting) /* there was room for that */
        sleep_us(1000);
    stop_at(&stops[2], home);
    await_stop(&stops[2]);
    stops[1].holds = false;
    pthread_join(closer, NULL);
    stops[2].holds = false;
    sleep_us(50000);
    fake.hold = false;
    end_of(recv, UCCL_ECANCELED);
    end_of(send, UCCL_ECLOSED);
    sides_free(&from, &to);
    stage_close_pair();
}

/* Nor with one-sided operations, of either side. */
static void hung_operations(bool write, bool device_here, int closer)
{
    enum { LENGTH = 600000, LEFT_ALL_WELL = 7 };
    stage_open_pair("no", "64", "8", "mmsg", "2");
    uccl_set_log(log_nothing, NULL);
    struct side local = side_make(pair.engine[0], device_here, LENGTH);
    struct side remote = side_make(pair.engine[1], !device_here, LENGTH);
    uccl_export *exported;
    uccl_remote *imported = import_all(&remote, LENGTH, &exported);
    fake.hold = true;
    operate(write, &local, LENGTH, imported);
    sleep_us(300000);
    uint64_t start_ms = now_ms();
    IS(uccl_conn_close(pair.conn[closer]), 0);
    cr_assert_lt(now_ms() - start_ms, 2500);
    IS(uccl_remote_free(imported), 0);
    pair_close(&pair);
    cr_assert_lt(now_ms() - start_ms, 10000);
    _exit(LEFT_ALL_WELL);
}

Test(stage, hung_write, .timeout = 20, .exit_code = 7)
{
    hung_operations(true, true, 0);
}

Test(stage, hung_read, .timeout = 20, .exit_code = 7)
{
    hung_operations(false, true, 0);
}

Test(stage, hung_write_at_the_target, .timeout = 20, .exit_code = 7)
{
    hung_operations(true, false, 1);
}

Test(stage, hung_read_at_the_target, .timeout = 20, .exit_code = 7)
{
    hung_operations(false, false, 1);
}

/* Operations of a connection of which a device lets go after it was closed. */
Test(stage, a_device_outlasts_operations, .timeout = TIMEOUT_S)
{
    enum { LENGTH = 600000, SMALL = 5000 };
    for (unsigned way = 0; way < 4; way++) {
        stage_open_pair("no", "64", "8", "mmsg", "2");
        unsigned closer = way / 2;
        struct side local = side_make(pair.engine[0], closer == 0, LENGTH);
        struct side remote = side_make(pair.engine[1], closer == 1, LENGTH);
        uccl_export *exported;
        uccl_request *requests[4];
        uccl_remote *imported = import_all(&remote, LENGTH, &exported);
        fake.hold = true;
        for (unsigned i = 0; i < 4; i++) /* large and small */
            requests[i] = operate(way % 2, &local, i % 2 ? SMALL : LENGTH, imported);
        sleep_us(300000);
        IS(uccl_conn_close(pair.conn[closer]), 0);
        cr_assert_not_null(pair.engine[closer]->kept);
        fake.hold = false;
        for (unsigned i = 0; i < 4; i++)
            cr_assert_neq(uccl_wait(requests[i], SOON_MS, NULL), UCCL_ETIMEDOUT);
        for (uint64_t end_ms = now_ms() + SOON_MS; pair.engine[closer]->kept; sleep_us(1000)) {
            cr_assert_lt(now_ms(), end_ms);
            free_abandoned(pair.engine[closer]);
        }
        IS(uccl_remote_free(imported), 0);
        IS(uccl_revoke(exported, SOON_MS), 0);
        side_free(&local);
        side_free(&remote);
        stage_close_pair();
    }
}

static void *release(void *after_us)
{
    sleep_us(*(unsigned *)after_us);
    fake.hold = false;
    return NULL;
}

/*
 * Operations end while the engine is being closed, when their registrations are no more: the device lets go after a few
 * looks of the close, the last of which takes `stall_us`. A look counts a tenth of a second at most, and a close waits
 * for a second of them.
 */
static void end_with_their_engine(unsigned stall_us)
{
    enum { LENGTH = 600000 };
    for (unsigned write = 0; write < 2; write++) {
        stage_open_pair("no", "64", "8", "mmsg", "1");
        struct side local = side_make(pair.engine[0], true, LENGTH), remote = side_make(pair.engine[1], false, LENGTH);
        uccl_export *exported;
        uccl_remote *imported = import_all(&remote, LENGTH, &exported);
        fake.hold = true;
        operate(write, &local, LENGTH, imported);
        for (uint64_t end_ms = now_ms() + SOON_MS; counter(0, write ? "gpu_fetches" : "gpu_uploads") == 0;)
            cr_assert_lt(now_ms(), end_ms);
        IS(uccl_conn_close(pair.conn[0]), 0);
        IS(uccl_remote_free(imported), 0);
        fake.ending_polls = 5;
        fake.stall_us = stall_us;
        fake.ending = &pair.engine[0]->threads[0].stop;
        stage_close_pair();
        cr_assert_not(fake.hold);
        fake_free(local.memory);
        free(remote.memory);
    }
}

Test(stage, operations_end_with_their_engine, .timeout = TIMEOUT_S)
{
    end_with_their_engine(0);
}

/* The thread that would see it is not run for as long as a close waits. */
Test(stage, operations_end_though_nobody_looks, .timeout = TIMEOUT_S)
{
    end_with_their_engine(1500000);
}

/*
 * Parts of a striped message end, on the last thread to be stopped, when its home thread has given up its own copies
 * and is gone.
 */
Test(stage, parts_end_when_their_home_is_gone, .timeout = TIMEOUT_S, .exit_code = 7)
{
    enum { LENGTH = 600000, LEFT_ALL_WELL = 7 };
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *request;
    uint64_t end_ms = now_ms() + SOON_MS;
    unsigned after_us = 1500000;
    pthread_t releases;
    fake.hold = true;
    uccl_set_log(log_nothing, NULL);
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &request), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &request), 0);
    while (counter(0, "gpu_fetches") < 4) /* two by each thread */
        cr_assert(now_ms() < end_ms);
    IS(uccl_conn_close(pair.conn[0]), 0);
    cr_assert_eq(pthread_create(&releases, NULL, release, &after_us), 0);
    pair_close(&pair);
    _exit(LEFT_ALL_WELL);
}

/* ---- failures of the device ------------------------------------------------------------------ */

static void failing(size_t length, int status_of_send, int status_of_recv, const bool device[2])
{
    stage_open_pair("no", "64", "8", "mmsg", "2");
    struct side from = side_make(pair.engine[0], device[0], length), to = side_make(pair.engine[1], device[1], length);
    uccl_request *send, *recv;
    IS(uccl_recv_async(pair.conn[1], to.memory, length, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, length, from.mr, &send), 0);
    cr_assert_eq(end_of(send, status_of_send), status_of_send ? 0 : length);
    end_of(recv, status_of_recv);
    sides_free(&from, &to);
    /* other messages do not notice */
    const bool host[2] = {false, false};
    const size_t offset[2] = {0, 0};
    one_message(host, 700000, offset, 0, 4);
    stage_close_pair();
}

Test(stage, fetch_fails, .timeout = TIMEOUT_S)
{
    fake.fail_after = 3;
    failing(1500000, UCCL_EIO, UCCL_ECANCELED, (const bool[2]){true, false});
}

Test(stage, fetch_of_small_one_fails, .timeout = TIMEOUT_S)
{
    fake.fail_after = 0;
    failing(100, UCCL_EIO, UCCL_ECANCELED, (const bool[2]){true, false});
}

Test(stage, upload_fails, .timeout = TIMEOUT_S)
{
    fake.fail_after = 3;
    failing(1500000, UCCL_ECANCELED, UCCL_EIO, (const bool[2]){false, true});
}

Test(stage, upload_of_small_one_fails, .timeout = TIMEOUT_S)
{
    fake.fail_after = 0;
    failing(100, UCCL_OK, UCCL_EIO, (const bool[2]){false, true}); /* it was here in whole */
}

static bool over;

static void note_over(void *owner, struct uccl_request *request)
{
    cr_assert_eq(owner, request);
    over = true;
}

/*
 * The end of the connection that has a part fails after the message has ended well: what it has received belongs to the
 * message. Of a whole message that fails nothing goes up.
 */
Test(stage, bytes_of_a_part_outlive_its_end, .timeout = TIMEOUT_S)
{
    enum { FROM = 100, LENGTH = 1000, SIZE = 100000 };
    for (unsigned is_part = 0; is_part < 2; is_part++) {
        struct params params = param_defaults();
        static struct counters counters;
        static struct uccl_request request, whole;
        _Atomic uint32_t staged = 1;
        struct mem_identity identity;
        struct gpu_context context = {.params = &params,
                                      .counters = &counters,
                                      .numa_node = -1,
                                      .staged = &staged,
                                      .ended = note_over,
                                      .owner = &request};
        struct stage *stage = stage_open(&context);
        uint8_t *memory = fake_alloc(SIZE, 0), found[LENGTH + 1] = {0};
        IS(fake_identify(memory, &identity), UCCL_OK);
        fill(shadow, LENGTH, 3);
        request = (struct uccl_request){.msg = {.kind = CORE_RECV, .size_bytes = SIZE}, .buffer = memory};
        request.staged.memory = &identity;
        request.parent = is_part ? &whole : NULL;
        stage_begin(stage, &request, 0);
        stage_began(stage, &request);
        stage_write(stage, &request, FROM, shadow, LENGTH);
        request.msg.status = UCCL_EPEERDEAD;
        request.msg.moved_bytes = LENGTH;
        over = stage_over(stage, &request);
        cr_assert_eq(over, !is_part, "copies are to be waited for");
        while (!over)
            stage_progress(stage);
        cr_assert_eq(staged, 0);
        fake_read(found, memory + FROM, LENGTH + 1);
        if (is_part)
            check(found, LENGTH, 3);
        for (unsigned i = is_part ? LENGTH : 0; i <= LENGTH; i++)
            cr_assert_eq(found[i], 0);
        stage_close(stage);
        stage_free(stage);
        fake_free(memory);
    }
}

/* Every byte has come, and then a copy fails of what another thread than the home thread has received. */
Test(stage, a_late_failure_of_a_part_is_told, .timeout = TIMEOUT_S)
{
    enum { LENGTH = 600000 };
    stage_open_pair("no", "64", "64", "mmsg", "2");
    uccl_set_log(log_nothing, NULL);
    for (unsigned i = 0; i < 4; i++) {
        struct side from = side_make(pair.engine[0], false, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
        uccl_request *send, *recv;
        fake.hold = true;
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
        cr_assert_eq(end_of(send, 0), LENGTH);
        fake.fail_from = (uintptr_t)to.memory + LENGTH / 2 + CORE_STRIPE_UNIT; /* in the second of two ranges */
        fake.hold = false;
        cr_assert_eq(end_of(recv, UCCL_EIO), 0);
        fake.fail_from = 0;
        sides_free(&from, &to);
    }
    const bool device[2] = {true, true};
    one_message(device, LENGTH, (const size_t[2]){0, 0}, 0, 1);
    stage_close_pair();
}

/* Copies that the device does not take at all, of either direction. */
Test(stage, fetches_are_refused, .timeout = TIMEOUT_S)
{
    fake.refuse_after[MEM_FROM_DEVICE] = 1;
    failing(1500000, UCCL_EIO, UCCL_ECANCELED, (const bool[2]){true, false});
}

Test(stage, fetches_of_small_ones_are_refused, .timeout = TIMEOUT_S)
{
    fake.refuse_after[MEM_FROM_DEVICE] = 0;
    failing(100, UCCL_EIO, UCCL_ECANCELED, (const bool[2]){true, false});
}

Test(stage, uploads_are_refused, .timeout = TIMEOUT_S)
{
    fake.refuse_after[MEM_TO_DEVICE] = 1;
    failing(1500000, UCCL_ECANCELED, UCCL_EIO, (const bool[2]){false, true});
}

Test(stage, uploads_of_small_ones_are_refused, .timeout = TIMEOUT_S)
{
    fake.refuse_after[MEM_TO_DEVICE] = 0;
    failing(100, UCCL_OK, UCCL_EIO, (const bool[2]){false, true}); /* it was here in whole */
}

Test(stage, no_streams, .timeout = TIMEOUT_S)
{
    fake.open_error = UCCL_ENOMEM;
    failing(1500000, UCCL_ENOMEM, UCCL_ECANCELED, (const bool[2]){true, false});
}

Test(stage, no_pinned_memory, .timeout = TIMEOUT_S)
{
    fake.pin_error = UCCL_ENOMEM;
    failing(1500000, UCCL_ENOMEM, UCCL_ECANCELED, (const bool[2]){true, false});
}

/* More failures than there are blocks: each gives back what it had. */
Test(stage, failures_leave_no_blocks, .timeout = TIMEOUT_S)
{
    enum { ROUNDS = 24, LENGTH = 700000 };
    stage_open_pair("no", "64", "8", "mmsg", "1");
    uccl_set_log(log_nothing, NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        const bool device[2] = {true, true}, sends = round % 2;
        const size_t offset[2] = {0, 0};
        struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
        uccl_request *send, *recv;
        fake.refuse_after[sends ? MEM_FROM_DEVICE : MEM_TO_DEVICE] = 1 + (int)round % 4;
        IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
        IS(uccl_wait(recv, SOON_MS, NULL), sends ? UCCL_ECANCELED : UCCL_EIO);
        IS(uccl_wait(send, SOON_MS, NULL), sends ? UCCL_EIO : UCCL_ECANCELED);
        fake.refuse_after[MEM_FROM_DEVICE] = fake.refuse_after[MEM_TO_DEVICE] = -1;
        sides_free(&from, &to);
        one_message(device, LENGTH, offset, 0, round);
    }
    stage_close_pair();
}
