/* SPDX-License-Identifier: Apache-2.0 */
/* A NIC in the hand of a test of an engine thread: it has what the test says, and sleeps until the test wakes it. */
#ifndef UCCL_TEST_THREAD_NIC_H
#define UCCL_TEST_THREAD_NIC_H

#include "thread/thread.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#define MS UINT64_C(1000000)
#define HOUR (3600 * 1000 * MS)

struct fake_queue {
    struct nic_queue base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned pending; /* wakes that no sleep has used up */
    _Atomic unsigned wakes, sleepers, sleepers_most, sleeps, unacked_sleeps;
    bool held; /* a sleep does not end, though it was woken */
    _Atomic uint64_t timeout_ns, timeout_most_ns;
};

static struct fake_queue queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static _Atomic unsigned rx_ready; /* datagrams of one byte that each poll finds */
static unsigned poll_room;        /* of the last poll */
static _Atomic unsigned polls, flushes, flushes_seen, expires, expires_at_end, cancels, last_flushes;
static void (*_Atomic at_round_end)(void);
static void (*_Atomic before_sleep)(void);
static _Atomic uint64_t deadline_at_ns = UINT64_MAX;

static void fake_queue_close(struct nic_queue *closed)
{
    cr_assert_eq(closed, &queue.base);
}

enum { ROUNDS_PUT_OFF = 65, FULL_ROUNDS = 10 * ROUNDS_PUT_OFF };

static unsigned fake_poll(struct nic_queue *from, struct nic_rx *out, unsigned max)
{
    static const uint8_t garbage[1];
    unsigned count = rx_ready < max ? rx_ready : max;
    (void)from;
    poll_room = max;
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct nic_rx){.data = garbage, .length = 1, .stride = 1};
    flushes_seen = flushes;
    if (rx_ready && ++polls == FULL_ROUNDS + 1)
        expires_at_end = expires;
    return count;
}

static void fake_release(struct nic_queue *to, const struct nic_rx *rx)
{
    (void)to, (void)rx;
}

static bool fake_send(struct nic_queue *over, const struct tx_desc *desc)
{
    (void)over, (void)desc;
    return true;
}

static unsigned fake_flush(struct nic_queue *over)
{
    (void)over;
    return 0;
}

static _Atomic uint32_t mtu_news;

/* The last question of a round. */
static bool fake_follow(struct nic_queue *of, uint32_t *destination, uint32_t *datagram_bytes)
{
    void (*hook)(void) = at_round_end;
    (void)of;
    if (hook)
        hook();
    *destination = 3;
    *datagram_bytes = atomic_exchange(&mtu_news, 0);
    return *datagram_bytes != 0;
}

/* A sleep for more than an hour is noted; whoever slept on purpose is woken by the test. */
static void fake_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    (void)beside_fd;
    struct fake_queue *in = (struct fake_queue *)base;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t some_ns = timeout_ns < HOUR ? timeout_ns : HOUR;
    until.tv_sec += (time_t)((some_ns + (uint64_t)until.tv_nsec) / (1000 * MS));
    until.tv_nsec = (long)((some_ns + (uint64_t)until.tv_nsec) % (1000 * MS));
    pthread_mutex_lock(&in->lock);
    in->timeout_ns = timeout_ns;
    if (timeout_ns > in->timeout_most_ns)
        in->timeout_most_ns = timeout_ns;
    in->unacked_sleeps += flushes == flushes_seen;
    in->sleeps++;
    if (++in->sleepers > in->sleepers_most)
        in->sleepers_most = in->sleepers;
    int error = 0;
    while (in->held || (!in->pending && error != ETIMEDOUT))
        error = in->held ? pthread_cond_wait(&in->changed, &in->lock)
                         : pthread_cond_timedwait(&in->changed, &in->lock, &until);
    in->pending = 0;
    in->sleepers--;
    pthread_mutex_unlock(&in->lock);
}

static void fake_wake(struct nic_queue *base)
{
    struct fake_queue *of = (struct fake_queue *)base;
    pthread_mutex_lock(&of->lock);
    of->wakes++;
    of->pending++;
    pthread_cond_broadcast(&of->changed);
    pthread_mutex_unlock(&of->lock);
}

static void hold(bool held)
{
    pthread_mutex_lock(&queue.lock);
    queue.held = held;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
}

static bool fake_qp_event(struct nic_queue *of, struct nic_qp_event *out)
{
    (void)of, (void)out;
    return false;
}

static unsigned fake_poll_done(struct nic_queue *of, struct nic_done *done, unsigned max)
{
    (void)of, (void)done, (void)max;
    return 0;
}

/* Flushes: one at a time, which ends when the test says so. */
static void *reading;
static _Atomic unsigned reads_begun, reads_let_go;
static unsigned reads_over;
static _Atomic bool reads_fail;

static bool fake_flush_device(struct nic_queue *over, const struct nic_mr *mr, void *cookie)
{
    (void)over, (void)mr;
    if (reading)
        return false;
    reading = cookie;
    reads_begun++;
    return true;
}

static unsigned fake_poll_flushed(struct nic_queue *over, struct nic_flushed *out, unsigned max)
{
    (void)over, (void)max;
    cr_assert(reading, "nothing is under way");
    if (reads_let_go == reads_over)
        return 0;
    reads_over++;
    out[0] = (struct nic_flushed){reading, reads_fail};
    reading = NULL;
    return 1;
}

static const struct nic_queue_ops fake_queue_ops = {
    .close = fake_queue_close,
    .arm = nic_arm_nothing,
    .wait = fake_wait,
    .wake = fake_wake,
};

static const struct nic_datagram_ops fake_datagram_ops = {
    .send = fake_send,
    .flush = fake_flush,
    .poll = fake_poll,
    .release = fake_release,
    .follow = fake_follow,
};

static const struct nic_data_qp_ops fake_data_qp_ops = {
    .event = fake_qp_event,
    .poll_done = fake_poll_done,
    .flush_device = fake_flush_device,
    .poll_flushed = fake_poll_flushed,
};

static int fake_queue_open(struct nic *of, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    (void)setup;
    queue.base = (struct nic_queue){
        .nic = of, .ops = &fake_queue_ops, .datagram = &fake_datagram_ops, .data_qp = &fake_data_qp_ops};
    *out = &queue.base;
    return UCCL_OK;
}

static const struct nic_device_ops fake_device_ops = {.queue_open = fake_queue_open};
static struct nic nic = {.ops = &fake_device_ops, .caps = {.lendable = true, .room_wakes = true}};

#endif
