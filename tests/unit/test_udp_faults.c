/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP backend where the system says no: full sockets, failing sends, a path MTU that shrinks,
 * and io_uring forbidden. Seccomp filters play the errors, each in its test's own process.
 */
#include "udp_pair.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- sends that fail ------------------------------------------------------------------------- */

/* From now on a system call fails in this process with `error`, as under a container's seccomp
 * filter. */
static void forbid(int call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};

    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0, "%s",
                 strerror(errno));
}

/* A full socket is back-pressure: a big descriptor is refused whole, staged ones are lost at
 * flush(). */
Test(udp_faults, full_socket)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc big = bulk(pair, msg, 44, SMALL, SMALL),
                   small = bulk(pair, msg, 1, SMALL, SMALL);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EAGAIN);
    cr_assert_not(nic_udp_ops.send(pair->queues[0], &big));
    cr_assert_eq(pair->counters[0].tx_blocked, 1);
    cr_assert_eq(nic_udp_ops.flush(pair->queues[0]), 0);
    for (unsigned i = 0; i < 3; i++) {
        small.path = (uint16_t)i;
        cr_assert(nic_udp_ops.send(pair->queues[0], &small));
    }
    big.mask = 0x555; /* many sends of one descriptor */
    cr_assert(nic_udp_ops.send(pair->queues[0], &big));
    big.mask = UINT64_MAX;
    for (unsigned i = 0; i < 10; i++)
        cr_assert_not(nic_udp_ops.send(pair->queues[0], &big));
    cr_assert_eq(nic_udp_ops.flush(pair->queues[0]), 4);
    cr_assert_eq(nic_udp_ops.flush(pair->queues[0]), 0);
    cr_assert_eq(pair->counters[0].tx_datagrams, 0);
    cr_assert_eq(log_text[0], '\0', "back-pressure is not logged: %s", log_text);
    free_message(msg);
    close_pair(pair);
}

/* A route without segmentation offload is found out by its error; the train goes out all the same.
 */
Test(udp_faults, segmentation_fails)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc desc = bulk(pair, msg, 44, SMALL, 99);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EIO);
    send_and_receive(pair, &desc, msg, check_bulk, 44);
    cr_assert_not(pair->queues[0]->peers[pair->destination].gso);
    cr_assert(strstr(log_text, "127.0.0.1") != NULL, "%s", log_text);
    free_message(msg);
    close_pair(pair);
}

/* Any other error loses datagrams, is logged once, and blocks nothing. */
Test(udp_faults, forbidden_by_the_firewall)
{
    struct pair *pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    struct test_msg *msg = make_message();
    struct tx_desc desc = bulk(pair, msg, 7, 8972, 8972);

    uccl_set_log(keep_log, NULL);
    forbid(__NR_sendmmsg, EPERM);
    for (unsigned i = 0; i < 3; i++) {
        desc.mask = 0x5b; /* three runs count as one descriptor */
        cr_assert(nic_udp_ops.send(pair->queues[0], &desc));
        cr_assert_eq(nic_udp_ops.flush(pair->queues[0]), 1);
    }
    cr_assert_not_null(strstr(log_text, strerror(EPERM)), "%s", log_text);
    cr_assert_eq(strchr(log_text, '\n')[1], '\0', "more than one line: %s", log_text);
    free_message(msg);
    close_pair(pair);
}

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

/* The path MTU shrinks under a chunk that has been cut: it arrives, in fragments, and the news
 * comes up. */
Test(udp_faults, path_mtu_shrinks)
{
    struct pair *pair;
    struct test_msg *msg = make_message();
    struct tx_desc desc;
    uint32_t destination, bytes;

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        cr_skip_test("network namespaces are not allowed here");
    set_loopback_mtu(1500);
    pair = open_pair(UDP_IO_MMSG, "127.0.0.1");
    cr_assert_eq(pair->datagram_bytes, 1472);
    desc = bulk(pair, msg, 44, 1472, 1000);
    send_and_receive(pair, &desc, msg, check_bulk, 1);
    set_loopback_mtu(1300);
    send_and_receive(pair, &desc, msg, check_bulk, 44);
    cr_assert(nic_udp_ops.mtu_event(pair->queues[0], &destination, &bytes));
    cr_assert_eq(destination, pair->destination);
    cr_assert_eq(bytes, 1272);
    send_and_receive(pair, &desc, msg, check_bulk, 44);
    cr_assert_not(nic_udp_ops.mtu_event(pair->queues[0], &destination, &bytes));
    desc = bulk(pair, msg, 44, 1272, 1272); /* segmentation still works for what fits */
    send_and_receive(pair, &desc, msg, check_bulk, 1);
    set_loopback_mtu(9000);
    for (unsigned i = 0; i < UDP_MTU_CHECK_SENDS && pair->queues[0]->peer_news == UDP_NO_PEER;
         i++) {
        struct tx_desc small = bulk(pair, msg, 1, 600, 600);

        cr_assert(nic_udp_ops.send(pair->queues[0], &small));
    }
    cr_assert(nic_udp_ops.mtu_event(pair->queues[0], &destination, &bytes),
              "growth is seen after a while");
    cr_assert_eq(bytes, 8972);
    free_message(msg);
    close_pair(pair);
}

/* ---- choosing the driver --------------------------------------------------------------------- */

Test(udp_faults, lent_queues_take_no_ring)
{
    struct pair pair = {0};

    uccl_set_log(keep_log, NULL);
    init_params(&pair.params, UDP_IO_AUTO);
    cr_assert_eq(nic_udp_ops.open(&pair.params, &pair.nic), 0);
    cr_assert(nic_udp_ops.caps(pair.nic)->lendable);
    cr_assert_eq(open_queue(&pair, 0, true), 0);
    cr_assert_eq(pair.queues[0]->driver, &udp_mmsg_driver);
    pair.params.udp_io = UDP_IO_URING;
    cr_assert_eq(open_queue(&pair, 1, true), UCCL_EINVAL);
    cr_assert(strstr(log_text, "UCCL_UDP_IO") != NULL, "%s", log_text);
    nic_udp_ops.queue_close(pair.queues[0]);
    nic_udp_ops.close(pair.nic);
}

static void check_forbidden(int error, const char *reason)
{
    struct pair pair = {0};

    forbid(__NR_io_uring_setup, error);
    uccl_set_log(keep_log, NULL);
    init_params(&pair.params, UDP_IO_AUTO);
    cr_assert_eq(nic_udp_ops.open(&pair.params, &pair.nic), 0);
    cr_assert_eq(open_queue(&pair, 0, false), 0);
    cr_assert_eq(pair.queues[0]->driver, &udp_mmsg_driver);
    nic_udp_ops.queue_close(pair.queues[0]);
    cr_assert(log_text[0] == '\0', "auto says nothing at this level, but said: %s", log_text);
    pair.params.udp_io = UDP_IO_URING;
    cr_assert_eq(open_queue(&pair, 0, false), UCCL_ENOTSUP);
#ifdef HAVE_LIBURING
    cr_assert(strstr(log_text, reason) != NULL, "%s", log_text);
#else
    cr_assert(strstr(log_text, "liburing") != NULL, "%s (%s)", log_text, reason);
#endif
    nic_udp_ops.close(pair.nic);
}

Test(udp_faults, uring_forbidden_by_seccomp)
{
    check_forbidden(EPERM, "seccomp");
}

Test(udp_faults, uring_hidden_by_seccomp)
{
    check_forbidden(ENOSYS, "no io_uring");
}

#ifdef HAVE_LIBURING
Test(udp_faults, auto_takes_a_ring)
{
    struct pair *pair = open_pair(UDP_IO_URING, "127.0.0.1"); /* skips where there is none */
    struct nic_queue *ring = pair->queues[0];

    pair->params.udp_io = UDP_IO_AUTO;
    cr_assert_eq(open_queue(pair, 0, false), 0);
    cr_assert_eq(pair->queues[0]->driver, &udp_uring_driver);
    nic_udp_ops.queue_close(pair->queues[0]);
    pair->queues[0] = ring;
    close_pair(pair);
}
#endif

Test(udp_faults, no_interface_matches)
{
    struct params params = {
        .socket_ifname = "=nosuchinterface", .port_entropy = 1, .socket_buffer_kb = 64};
    struct nic *nic = NULL;

    uccl_set_log(keep_log, NULL);
    cr_assert_eq(nic_udp_ops.open(&params, &nic), UCCL_ENODEV);
    cr_assert_null(nic);
    cr_assert(strstr(log_text, "nosuchinterface") != NULL, "%s", log_text);
}

Test(udp_faults, devices)
{
    struct params params = {.socket_ifname = "=lo", .port_entropy = 1, .socket_buffer_kb = 64};
    struct uccl_device device;
    union nic_address address;
    struct nic *nic;

    cr_assert_eq(nic_udp_ops.open(&params, &nic), 0);
    cr_assert_eq(nic_udp_ops.device_count(nic), 1);
    cr_assert_eq(nic_udp_ops.device(nic, 0, &device, &address), 0);
    cr_assert_eq(nic_udp_ops.device(nic, 1, &device, &address), UCCL_ENODEV);
    cr_assert_eq(nic_udp_ops.device(nic, -1, &device, &address), UCCL_ENODEV);
    cr_assert_str_eq(device.name, "lo");
    cr_assert_str_eq(device.backend, "udp");
    cr_assert_str_eq(device.address, "127.0.0.1");
    cr_assert(device.is_loopback);
    nic_udp_ops.close(nic);
}
