/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP backend where the system says no: full sockets, failing sends, a path MTU that shrinks,
 * and io_uring forbidden. Seccomp filters play the errors, each in its test's own process.
 */
#include "forbid.h"
#include "udp_pair.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static void set_loopback_mtu(int mtu)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    request.ifr_mtu = mtu;
    cr_assert_eq(ioctl(fd, SIOCSIFMTU, &request), 0);
    request.ifr_flags = IFF_UP;
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* ---- sends that fail ------------------------------------------------------------------------- */

/* A full socket is back-pressure: a big descriptor is refused whole, staged ones are lost at
 * flush(). */
Test(udp_faults, full_socket)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc big = bulk(pair, 44, SMALL, SMALL), small = bulk(pair, 1, SMALL, SMALL);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EAGAIN);
    cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &big));
    cr_assert_eq(pair->counters[0].tx_blocked, 1);
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    for (unsigned i = 0; i < 3; i++) {
        small.path = small.port = (uint16_t)i;
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &small));
    }
    big.mask = 0x555; /* many sends of one descriptor */
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &big));
    big.mask = UINT64_MAX;
    for (unsigned i = 0; i < 10; i++)
        cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &big));
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 4);
    cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 0);
    cr_assert_eq(pair->counters[0].tx_datagrams, 0);
    cr_assert_eq(log_text[0], '\0', "back-pressure is not logged: %s", log_text);
    close_pair(pair);
}

static uint64_t elapsed_since(uint64_t at_ns)
{
    return now_ns() - at_ns;
}

/* Sends until the socket is full; nothing is tried any more then. */
static void fill_socket(struct pair *pair, struct tx_desc *desc)
{
    unsigned sent = 0;

    while (udp_datagram_ops.send(&pair->queues[0]->base, desc) && sent++ < 1000)
        udp_datagram_ops.flush(&pair->queues[0]->base);
    cr_assert_lt(sent, 1000);
    cr_assert_eq(pair->counters[0].tx_blocked, 1);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, desc));
    cr_assert_eq(pair->counters[0].tx_blocked, 1);
}

/* An interface whose neighbours never answer, so that what is sent to them waits, in the sender's account. */
static void set_up_tap(void)
{
    struct ifreq request = {.ifr_name = "tap-full", .ifr_flags = IFF_TAP | IFF_NO_PI};
    struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;
    int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC), fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (tap < 0 || ioctl(tap, TUNSETIFF, &request) != 0)
        cr_skip_test("no tap devices here");
    *address = (struct sockaddr_in){.sin_family = AF_INET};
    inet_pton(AF_INET, "10.9.0.1", &address->sin_addr);
    cr_assert_eq(ioctl(fd, SIOCSIFADDR, &request), 0);
    inet_pton(AF_INET, "255.255.255.0", &address->sin_addr);
    cr_assert_eq(ioctl(fd, SIOCSIFNETMASK, &request), 0);
    request.ifr_flags = IFF_UP;
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd); /* the tap stays open, as long as the process lives */
}

/* What waits for the neighbour is dropped. */
static void take_tap_down(void)
{
    struct ifreq request = {.ifr_name = "tap-full"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* wait() lasts as long as a socket is full, and no longer. */
static void wait_for_room(unsigned io)
{
    struct pair *pair;
    struct tx_desc desc;
    int little = 4096;
    uint64_t at_ns;

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        cr_skip_test("network namespaces are not allowed here");
    set_loopback_mtu(65536);
    set_up_tap();
    pair = open_pair(io, "10.9.0.2");
    for (uint32_t i = 0; i < pair->queues[0]->socket_count; i++)
        setsockopt(pair->queues[0]->sockets[i], SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    desc = bulk(pair, 1, 1472, 1472);
    fill_socket(pair, &desc);
    for (unsigned i = 0; i < 3; i++) {
        at_ns = now_ns();
        sleep_in(&pair->queues[0]->base, 30 * MS);
        cr_assert_geq(elapsed_since(at_ns), 30 * MS, "it returned after %llu ns",
                      (unsigned long long)elapsed_since(at_ns));
        cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    take_tap_down();
    at_ns = now_ns();
    sleep_in(&pair->queues[0]->base, 20000 * MS);
    cr_assert_lt(elapsed_since(at_ns), 10000 * MS);
    at_ns = now_ns();
    sleep_in(&pair->queues[0]->base, 30 * MS);
    cr_assert_geq(elapsed_since(at_ns), 30 * MS, "room that nobody needs wakes once");
    cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    close_pair(pair);
}

Test(udp_faults, wait_for_room_mmsg)
{
    wait_for_room(UDP_IO_MMSG);
}

Test(udp_faults, wait_for_room_uring)
{
    wait_for_room(UDP_IO_URING);
}

/* Whoever sleeps may have lost the queue to another thread, which has found the socket full again: it is told. */
Test(udp_faults, a_sleep_leaves_the_full_socket_to_the_owner)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 44, SMALL, SMALL);
    uint64_t timeout_ns = 20000 * MS, at_ns = now_ns();

    forbid(__NR_sendmmsg, EAGAIN);
    cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    udp_queue_ops.arm(&pair->queues[0]->base, &timeout_ns);
    udp_queue_ops.wait(&pair->queues[0]->base, -1, timeout_ns);
    cr_assert_lt(elapsed_since(at_ns), 10000 * MS, "there is room");
    cr_assert_neq(pair->queues[0]->full_socket, UDP_NONE_FULL);
    udp_queue_ops.arm(&pair->queues[0]->base, &timeout_ns);
    cr_assert_eq(pair->queues[0]->full_socket, UDP_NONE_FULL);
    cr_assert_eq(pair->queues[0]->room_fd, -1, "it ends one sleep");
    close_pair(pair);
}

/* Where the kernel calls a full socket writable, or has no memory, polling it would not sleep. */
static void full_though_writable(unsigned io, int error)
{
    struct pair *pair = open_pair(io, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 44, SMALL, SMALL);
    uint64_t at_ns;

    forbid(__NR_sendmmsg, error);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    at_ns = now_ns();
    for (unsigned i = 0; i < 20; i++) {
        sleep_in(&pair->queues[0]->base, 20000 * MS);
        cr_assert_not(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
    }
    cr_assert_geq(elapsed_since(at_ns), 19 * MS);
    cr_assert_lt(elapsed_since(at_ns), 10000 * MS, "and it ends by itself");
    cr_assert_leq(pair->counters[0].tx_blocked, 22);
    sleep_in(&pair->queues[0]->base, 20000 * MS);
    at_ns = now_ns();
    sleep_in(&pair->queues[0]->base, 30 * MS);
    cr_assert_geq(elapsed_since(at_ns), 30 * MS, "with nothing to send it is not looked at again");
    close_pair(pair);
}

Test(udp_faults, full_though_writable_mmsg)
{
    full_though_writable(UDP_IO_MMSG, EAGAIN);
}

Test(udp_faults, no_memory_to_send_mmsg)
{
    full_though_writable(UDP_IO_MMSG, ENOBUFS);
}

Test(udp_faults, full_though_writable_uring)
{
    full_though_writable(UDP_IO_URING, EAGAIN);
}

/* A route without segmentation offload is found out by its error; the train goes out all the same.
 */
Test(udp_faults, segmentation_fails)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 44, SMALL, 99);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EIO);
    send_and_receive(pair, &desc, check_bulk, 44);
    cr_assert_not(pair->queues[0]->peers[pair->destination].gso);
    cr_assert(strstr(log_text, "127.0.0.1"), "%s", log_text);
    close_pair(pair);
}

/* Any other error loses datagrams, is logged once, and blocks nothing. */
Test(udp_faults, forbidden_by_the_firewall)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct tx_desc desc = bulk(pair, 7, 8972, 8972);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EPERM);
    for (unsigned i = 0; i < 3; i++) {
        desc.mask = 0x5b; /* three runs count as one descriptor */
        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &desc));
        cr_assert_eq(udp_datagram_ops.flush(&pair->queues[0]->base), 1);
    }
    cr_assert_not_null(strstr(log_text, strerror(EPERM)), "%s", log_text);
    cr_assert_eq(strchr(log_text, '\n')[1], '\0', "more than one line: %s", log_text);
    close_pair(pair);
}

/* The path MTU shrinks under a chunk that has been cut: it arrives, in fragments, and the news
 * comes up. */
Test(udp_faults, path_mtu_shrinks)
{
    struct pair *pair;
    struct tx_desc desc;
    uint32_t destination, bytes;

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        cr_skip_test("network namespaces are not allowed here");
    set_loopback_mtu(1500);
    pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    cr_assert_eq(pair->datagram_bytes, 1472);
    desc = bulk(pair, 44, 1472, 1000);
    send_and_receive(pair, &desc, check_bulk, 1);
    set_loopback_mtu(1300);
    send_and_receive(pair, &desc, check_bulk, 44);
    cr_assert(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    cr_assert_eq(destination, pair->destination);
    cr_assert_eq(bytes, 1272);
    send_and_receive(pair, &desc, check_bulk, 44);
    cr_assert_not(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes));
    desc = bulk(pair, 44, 1272, 1272); /* segmentation still works for what fits */
    send_and_receive(pair, &desc, check_bulk, 1);
    set_loopback_mtu(9000);
    for (unsigned i = 0; i < UDP_MTU_CHECK_SENDS && pair->queues[0]->mtu_pending == UDP_NO_PEER; i++) {
        struct tx_desc small = bulk(pair, 1, 600, 600);

        cr_assert(udp_datagram_ops.send(&pair->queues[0]->base, &small));
    }
    cr_assert(udp_datagram_ops.follow(&pair->queues[0]->base, &destination, &bytes), "growth is seen after a while");
    cr_assert_eq(bytes, 8972);
    close_pair(pair);
}

/* ---- choosing the driver --------------------------------------------------------------------- */

Test(udp_faults, lent_queues_take_no_ring)
{
    struct pair pair = {0};

    uccl_set_log(keep_log, NULL);
    init_params(&pair.params, UDP_IO_AUTO);
    cr_assert_eq(udp_device_ops.open(&pair.params, &pair.nic), 0);
    cr_assert(pair.nic->caps.lendable);
    cr_assert_eq(open_queue(&pair, 0, true), 0);
    cr_assert_eq(pair.queues[0]->driver, &udp_mmsg_driver);
    pair.params.udp_io = UDP_IO_URING;
    cr_assert_eq(open_queue(&pair, 1, true), UCCL_EINVAL);
    cr_assert(strstr(log_text, "UCCL_UDP_IO"), "%s", log_text);
    udp_queue_ops.close(&pair.queues[0]->base);
    udp_device_ops.close(pair.nic);
}

static void check_forbidden(int error, const char *reason)
{
    struct pair pair = {0};

    forbid(__NR_io_uring_setup, error);
    uccl_set_log(keep_log, NULL);
    init_params(&pair.params, UDP_IO_AUTO);
    cr_assert_eq(udp_device_ops.open(&pair.params, &pair.nic), 0);
    cr_assert_eq(open_queue(&pair, 0, false), 0);
    cr_assert_eq(pair.queues[0]->driver, &udp_mmsg_driver);
    udp_queue_ops.close(&pair.queues[0]->base);
    cr_assert(log_text[0] == '\0', "auto says nothing at this level, but said: %s", log_text);
    pair.params.udp_io = UDP_IO_URING;
    cr_assert_eq(open_queue(&pair, 0, false), UCCL_ENOTSUP);
#ifdef HAVE_LIBURING
    cr_assert(strstr(log_text, reason), "%s", log_text);
#else
    cr_assert(strstr(log_text, "liburing"), "%s (%s)", log_text, reason);
#endif
    udp_device_ops.close(pair.nic);
}

Test(udp_faults, uring_forbidden_by_seccomp)
{
    check_forbidden(EPERM, "seccomp");
}

Test(udp_faults, uring_hidden_by_seccomp)
{
    check_forbidden(ENOSYS, "no io_uring");
}

Test(udp_faults, uring_too_old)
{
    check_forbidden(EINVAL, "too old");
}

Test(udp_faults, uring_without_locked_memory)
{
    check_forbidden(ENOMEM, "ulimit -l");
}

Test(udp_faults, auto_takes_no_ring)
{
    struct pair *pair = open_pair(UDP_IO_AUTO, "127.0.0.1");

    cr_assert_eq(pair->queues[0]->driver, &udp_mmsg_driver);
    close_pair(pair);
}

Test(udp_faults, no_interface_matches)
{
    struct params params = {.socket_ifname = "=nosuchinterface", .port_entropy = 1, .socket_buffer_kb = 64};
    struct nic *nic = NULL;

    uccl_set_log(keep_log, NULL);
    cr_assert_eq(udp_device_ops.open(&params, &nic), UCCL_ENODEV);
    cr_assert_null(nic);
    cr_assert(strstr(log_text, "nosuchinterface"), "%s", log_text);
}

Test(udp_faults, devices)
{
    struct params params = {.socket_ifname = "=lo", .port_entropy = 1, .socket_buffer_kb = 64};
    struct uccl_device device;
    union nic_address address;
    struct nic *nic;

    cr_assert_eq(udp_device_ops.open(&params, &nic), 0);
    cr_assert_eq(udp_device_ops.device_count(nic), 1);
    cr_assert_eq(udp_device_ops.device(nic, 0, &device, &address), 0);
    cr_assert_eq(udp_device_ops.device(nic, 1, &device, &address), UCCL_ENODEV);
    cr_assert_eq(udp_device_ops.device(nic, -1, &device, &address), UCCL_ENODEV);
    cr_assert_str_eq(device.name, "lo");
    cr_assert_str_eq(device.backend, "udp");
    cr_assert_str_eq(device.address, "127.0.0.1");
    cr_assert(device.is_loopback);
    udp_device_ops.close(nic);
}

/* ---- socket buffers that the system does not grant ------------------------------------------- */

static int refused_option;

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (level == SOL_SOCKET && name == refused_option) {
        errno = EPERM;
        return -1;
    }
    return __real_setsockopt(fd, level, name, value, length);
}

static uint64_t limit_of(const char *path)
{
    unsigned long long value = 0;
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%llu", &value), 1);
    fclose(file);
    return value;
}

/* A little more than the limit, with no privilege for one direction: it is told which of them got less. */
static void expect_less(int option, const char *path, bool receives)
{
    uint64_t most = limit_of(path), want_kb = most / 1024 + most / 4096 + 4;
    struct pair pair = {0};
    char expected[128];

    init_params(&pair.params, UDP_IO_MMSG);
    pair.params.socket_buffer_kb = want_kb;
    cr_assert_eq(udp_device_ops.open(&pair.params, &pair.nic), 0);
    log_set_level(UCCL_LOG_INFO);
    uccl_set_log(keep_log, NULL);
    refused_option = option;
    cr_assert_eq(open_queue(&pair, 0, false), 0);
    refused_option = 0;
    snprintf(expected, sizeof expected, "asked for %llu KiB, granted %llu to receive and %llu to send;",
             (unsigned long long)want_kb, (unsigned long long)(receives ? most / 1024 : want_kb),
             (unsigned long long)(receives ? want_kb : most / 1024));
    if (geteuid() == 0)
        cr_assert(strstr(log_text, expected), "%s is not in %s", expected, log_text);
    udp_queue_ops.close(&pair.queues[0]->base);
    udp_device_ops.close(pair.nic);
}

Test(udp_faults, less_room_to_receive)
{
    expect_less(SO_RCVBUFFORCE, "/proc/sys/net/core/rmem_max", true);
}

Test(udp_faults, less_room_to_send)
{
    expect_less(SO_SNDBUFFORCE, "/proc/sys/net/core/wmem_max", false);
}
