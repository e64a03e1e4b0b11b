/* SPDX-License-Identifier: Apache-2.0 */
/* Of a NIC queue that tests make up: sleeps end when another thread wakes it, or in time. */
#ifndef UCCL_TEST_WOKEN_QUEUE_H
#define UCCL_TEST_WOKEN_QUEUE_H

#include "base/clock.h"
#include "nic/nic.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int wake_fd; /* open() of the test makes it */

static void woken_close(struct nic_queue *of)
{
    (void)of;
    close(wake_fd);
}

static void woken_wait(struct nic_queue *of, int beside_fd, uint64_t timeout_ns)
{
    uint64_t wakes;
    struct pollfd fd = {.fd = wake_fd, .events = POLLIN};
    (void)of, (void)beside_fd;
    if (poll(&fd, 1, timeout_ns < NS_PER_S ? (int)(timeout_ns / NS_PER_MS) + 1 : 1000) == 1)
        cr_assert_eq(read(wake_fd, &wakes, sizeof wakes), (ssize_t)sizeof wakes);
}

static void woken_wake(struct nic_queue *of)
{
    uint64_t one = 1;
    (void)of;
    cr_assert_eq(write(wake_fd, &one, sizeof one), (ssize_t)sizeof one);
}

static bool woken_follow(struct nic_queue *of, uint32_t *destination, uint32_t *datagram_bytes)
{
    (void)of, (void)destination, (void)datagram_bytes;
    return false;
}

static const struct nic_queue_ops woken_ops = {
    .close = woken_close, .arm = nic_arm_nothing, .wait = woken_wait, .wake = woken_wake};

#endif
