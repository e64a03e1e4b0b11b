/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver with io_uring: one multishot receive fills buffers that the ring provides. So a busy engine polls without
 * a system call, and one wait covers the socket, wake() and the timeout. It sends by udp_transmit(): a send through the
 * ring would run the same code in the same call.
 *
 * Threads: SINGLE_ISSUER and DEFER_TASKRUN make the ring cheap and bind it to one thread. queue_open() makes a disabled
 * ring; the first poll() or wait() enables it, and binds it to its caller for good. So engines with a ring are not
 * lent.
 *
 * Invariant: each buffer is with the kernel or with the caller of poll(). At most one receive, one read of the eventfd,
 * and one poll each of a full socket, of the netlink socket and of the queue beside are armed. The receive stops by
 * itself when the caller has all buffers; it is armed again once some have come back.
 *
 * Needs Linux 6.1 (DEFER_TASKRUN). Thread: see above; close() from any.
 */
#include "nic/udp/udp.h"

#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/unmap.h"
#include "core/units.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /*
     * A power of two. The kernel fills buffers in turn, not the warmest first, so all of them pass through the cache:
     * with 2 MiB of L2, 8 received about a tenth more per core than 32. poll() returns at most this many at once.
     */
    URING_BUFFERS = 8,
    URING_GROUP = 0,
    URING_ENTRIES = 8,                     /* at most a receive, a read and three polls are submitted at once */
    URING_COMPLETIONS = 4 * URING_BUFFERS, /* each buffer, the end of a receive, a wake, three polls: never overflows */
    /* the kernel's header, control messages, payload; buffers start on cache lines */
    URING_BUFFER_BYTES = (sizeof(struct io_uring_recvmsg_out) + UDP_RX_CONTROL + UDP_RX_BYTES + 63) / 64 * 64,
};

/* The operation that a completion belongs to: its user_data. */
enum uring_tag { TAG_RECEIVE = 1, TAG_WAKE = 2, TAG_ROOM = 3, TAG_NETLINK = 4, TAG_BESIDE = 5 };

struct uring_io {
    struct io_uring ring;
    bool ring_made;
    bool enabled;
    bool receive_armed;
    bool wake_armed;
    bool room_armed;                    /* a poll of a full socket */
    bool netlink_armed;                 /* a poll of the netlink socket */
    bool beside_armed;                  /* a poll of the queue beside */
    bool complained;                    /* a failure has been logged */
    uint32_t with_caller;               /* buffers not yet released */
    uint64_t wake_count;                /* target of the eventfd's read */
    struct msghdr shape;                /* of a receive: room for control messages, no address */
    struct io_uring_buf_ring *provided; /* a page-aligned ring of URING_BUFFERS entries */
    uint8_t *buffers;                   /* URING_BUFFERS of URING_BUFFER_BYTES */
};

enum {
    PROVIDED_BYTES = 4096, /* a page for the ring of buffers */
    MAP_BYTES = PROVIDED_BYTES + URING_BUFFERS * URING_BUFFER_BYTES,
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Says why there is no ring and what to change. */
static void uring_explain(int error, char *reason, size_t size)
{
    char setting[16] = "?", text[FAULT_TEXT];
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");

    if (file) {
        if (fscanf(file, "%15s", setting) != 1)
            snprintf(setting, sizeof setting, "?");
        fclose(file);
    }
    if (error == EPERM || error == EACCES)
        snprintf(reason, size,
                 "io_uring is forbidden (%s): set sysctl kernel.io_uring_disabled=0 (now %s), or allow "
                 "io_uring_setup in the container's seccomp profile",
                 strerror(error), setting);
    else if (error == ENOSYS)
        snprintf(reason, size, "the kernel has no io_uring, or a seccomp filter hides it (%s)", strerror(error));
    else if (error == EINVAL)
        snprintf(reason, size, "the kernel's io_uring is too old (%s): Linux 6.1 or later is needed", strerror(error));
    else
        snprintf(reason, size, "io_uring cannot be set up: %s%s", fault_text(error, text),
                 error == ENOMEM ? "; raise the locked memory limit (ulimit -l)" : "");
}

static void give_buffer(struct uring_io *io, unsigned slot, int position)
{
    io_uring_buf_ring_add(io->provided, io->buffers + (size_t)slot * URING_BUFFER_BYTES, URING_BUFFER_BYTES,
                          (unsigned short)slot, io_uring_buf_ring_mask(URING_BUFFERS), position);
}

/* Sets up the ring, disabled, with its buffers. 0 or a negative errno. */
static int make_ring(struct uring_io *io)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                 IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE,
        .cq_entries = URING_COMPLETIONS,
    };
    struct io_uring_buf_reg registration = {.ring_entries = URING_BUFFERS, .bgid = URING_GROUP};
    int status = io_uring_queue_init_params(URING_ENTRIES, &io->ring, &params);

    if (status < 0)
        return status;
    io->ring_made = true;
    io->ring.ring_fd = io->ring.enter_ring_fd = descriptor_keep(io->ring.ring_fd);
    if (io->ring.ring_fd < 0)
        return -errno;
    registration.ring_addr = (uint64_t)(uintptr_t)io->provided;
    status = io_uring_register_buf_ring(&io->ring, &registration, 0);
    if (status < 0)
        return status;
    io_uring_buf_ring_init(io->provided);
    for (unsigned slot = 0; slot < URING_BUFFERS; slot++)
        give_buffer(io, slot, (int)slot);
    io_uring_buf_ring_advance(io->provided, URING_BUFFERS);
    return 0;
}

static void uring_close(struct udp_queue *queue)
{
    struct uring_io *io = queue->io;

    if (io->ring_made)
        io_uring_queue_exit(&io->ring);
    /* armed operations stop later, in the background: they may write to unmapped pages, not to a heap */
    if (io->provided)
        unmap(io->provided, MAP_BYTES);
    free(io);
    queue->io = NULL;
}

static int uring_open(struct udp_queue *queue, char *reason, size_t reason_size)
{
    struct uring_io *io = calloc(1, sizeof *io);
    uint8_t *map;
    int status;

    if (!io)
        return udp_no_memory(queue);
    queue->io = io;
    io->shape.msg_controllen = UDP_RX_CONTROL;
    map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        uring_close(queue);
        return udp_no_memory(queue);
    }
    io->provided = (struct io_uring_buf_ring *)map;
    io->buffers = map + PROVIDED_BYTES;
    status = make_ring(io);
    if (status < 0) {
        uring_explain(-status, reason, reason_size);
        uring_close(queue);
        if (status != -EMFILE && status != -ENFILE)
            return UCCL_ENOTSUP;
        LOG_ERR("%s", reason);
        return UCCL_ENOMEM;
    }
    return 0;
}

/* ---- arming ---------------------------------------------------------------------------------- */

/* Prepares what is not armed; the next entry into the kernel submits it. True: something is new. */
static bool arm_ring(struct udp_queue *queue)
{
    struct uring_io *io = queue->io;
    struct io_uring_sqe *sqe;
    bool fresh = false;

    if (!io->enabled) {
        /* by hand: liburing 2.3 declares io_uring_enable_rings() but does not export it */
        if (syscall(__NR_io_uring_register, io->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0) {
            if (!io->complained)
                LOG_ERR("cannot enable the io_uring of UDP port %u: %s; it is tried again", queue->ports[0],
                        strerror(errno));
            io->complained = true;
            return false; /* a ring that stays disabled is deaf: the next look enables it */
        }
        io->enabled = true;
    }
    if (!io->receive_armed && io->with_caller < URING_BUFFERS && (sqe = io_uring_get_sqe(&io->ring))) {
        io_uring_prep_recvmsg_multishot(sqe, queue->sockets[0], &io->shape, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = URING_GROUP;
        sqe->user_data = TAG_RECEIVE;
        io->receive_armed = fresh = true;
    }
    if (!io->wake_armed && (sqe = io_uring_get_sqe(&io->ring))) {
        io_uring_prep_read(sqe, queue->wake_fd, &io->wake_count, sizeof io->wake_count, 0);
        sqe->user_data = TAG_WAKE;
        io->wake_armed = fresh = true;
    }
    return fresh;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Entering the ring fails for good only by our own mistake: another thread drives it. */
static void check_entry(struct udp_queue *queue, int status)
{
    struct uring_io *io = queue->io;

    if (status >= 0 || status == -ETIME || status == -EINTR || status == -EAGAIN || status == -EBUSY || io->complained)
        return;
    io->complained = true;
    LOG_ERR("io_uring of UDP port %u: %s%s", queue->ports[0], strerror(-status),
            status == -EEXIST ? " (driven by a second thread)" : "");
}

/* The kernel has work for this ring that runs only when its thread enters. */
static bool kernel_waits(const struct uring_io *io)
{
    return __atomic_load_n(io->ring.sq.kflags, __ATOMIC_RELAXED) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

/* Describes the newest buffer that the kernel filled. False: no peer of ours sends that. */
static bool read_buffer(struct udp_queue *queue, unsigned slot, int result, struct nic_rx *rx)
{
    struct uring_io *io = queue->io;
    struct io_uring_recvmsg_out *out =
        io_uring_recvmsg_validate(io->buffers + (size_t)slot * URING_BUFFER_BYTES, result, &io->shape);
    struct msghdr header = {0};

    if (!out || out->payloadlen == 0 || (out->flags & MSG_TRUNC))
        return false;
    *rx = (struct nic_rx){.data = io_uring_recvmsg_payload(out, &io->shape),
                          .length = io_uring_recvmsg_payload_length(out, result, &io->shape),
                          .slot = slot};
    header.msg_control = io_uring_recvmsg_name(out); /* no name: control messages begin there */
    header.msg_controllen = out->controllen;
    udp_read_control(queue, &header, rx);
    return true;
}

static void take_back(struct uring_io *io, unsigned slot)
{
    assert(slot < URING_BUFFERS && io->with_caller > 0);
    io->with_caller--;
    give_buffer(io, slot, 0);
    io_uring_buf_ring_advance(io->provided, 1);
}

static void uring_release(struct udp_queue *queue, const struct nic_rx *rx)
{
    take_back(queue->io, rx->slot);
}

/* One completion. True: `rx` holds a received buffer. */
static bool uring_complete(struct udp_queue *queue, const struct io_uring_cqe *cqe, struct nic_rx *rx)
{
    struct uring_io *io = queue->io;

    if (cqe->user_data == TAG_WAKE) {
        io->wake_armed = false;
        return false;
    }
    if (cqe->user_data == TAG_ROOM) {
        io->room_armed = false;
        udp_full_seen(queue);
        return false;
    }
    if (cqe->user_data == TAG_NETLINK) {
        io->netlink_armed = false;
        link_watch_doubt(&queue->ends.links);
        return false;
    }
    if (cqe->user_data == TAG_BESIDE) {
        io->beside_armed = false;
        return false;
    }
    if (!(cqe->flags & IORING_CQE_F_MORE))
        io->receive_armed = false;
    if (cqe->res < 0) {
        /* out of buffers is how it ends when the caller holds all; ICMP errors of sends may come up
         * too */
        if (cqe->res != -ENOBUFS && cqe->res != -ECONNREFUSED && !io->complained) {
            io->complained = true;
            LOG_WARNING("receive on UDP port %u: %s; further failures are not logged", queue->ports[0],
                        strerror(-cqe->res));
        }
        return false;
    }
    if (!(cqe->flags & IORING_CQE_F_BUFFER))
        return false;
    io->with_caller++;
    unsigned slot = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    if (read_buffer(queue, slot, cqe->res, rx))
        return true;
    take_back(io, slot);
    return false;
}

/* Enters the kernel only to arm something, or when the kernel has work: polling an idle socket costs two loads. */
static unsigned uring_poll(struct udp_queue *queue, struct nic_rx *out, unsigned max)
{
    struct uring_io *io = queue->io;
    bool enter = !io->enabled || (!io->receive_armed && io->with_caller < URING_BUFFERS) ||
                 io_uring_sq_ready(&io->ring) > 0; /* the last entry was refused */
    struct io_uring_cqe *cqe;
    unsigned count = 0, seen = 0, head;

    if (enter)
        arm_ring(queue);
    if (enter || (io_uring_cq_ready(&io->ring) < max && kernel_waits(io))) {
        COUNT(queue->setup.counters, rx_syscalls, 1);
        check_entry(queue, io_uring_submit_and_get_events(&io->ring));
    }
    io_uring_for_each_cqe(&io->ring, head, cqe)
    {
        if (count == max)
            break;
        count += uring_complete(queue, cqe, &out[count]);
        seen++;
    }
    io_uring_cq_advance(&io->ring, seen);
    return count;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

/*
 * A poll of a full socket completes once and ends the sleep. A poll of a socket that is full no more has completed, or
 * is about to, so one at a time is enough.
 */
static void arm_room(struct udp_queue *queue)
{
    struct uring_io *io = queue->io;
    struct io_uring_sqe *sqe;

    if (queue->room_fd < 0 || io->room_armed || !(sqe = io_uring_get_sqe(&io->ring)))
        return;
    io_uring_prep_poll_add(sqe, queue->room_fd, POLLOUT);
    sqe->user_data = TAG_ROOM;
    io->room_armed = true;
}

/* A poll that completes once `fd` is readable; it ends the sleep. */
static void arm_readable(struct uring_io *io, int fd, enum uring_tag tag, bool *armed)
{
    struct io_uring_sqe *sqe;

    if (fd < 0 || *armed || !(sqe = io_uring_get_sqe(&io->ring)))
        return;
    io_uring_prep_poll_add(sqe, fd, POLLIN);
    sqe->user_data = tag;
    *armed = true;
}

static void uring_wait(struct udp_queue *queue, int beside_fd, uint64_t timeout_ns)
{
    struct uring_io *io = queue->io;
    struct __kernel_timespec limit = {.tv_sec = (long long)(timeout_ns / NS_PER_S),
                                      .tv_nsec = (long long)(timeout_ns % NS_PER_S)};
    struct io_uring_cqe *cqe = NULL;

    arm_ring(queue);
    arm_room(queue);
    arm_readable(io, queue->ends.links.netlink_fd, TAG_NETLINK, &io->netlink_armed);
    arm_readable(io, beside_fd, TAG_BESIDE, &io->beside_armed);
    COUNT(queue->setup.counters, wait_syscalls, 1);
    check_entry(queue,
                io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, timeout_ns == UINT64_MAX ? NULL : &limit, NULL));
    /* consume wakes and polls of full sockets; leave receives to poll() */
    while (io_uring_cq_ready(&io->ring) > 0 && io_uring_peek_cqe(&io->ring, &cqe) == 0 &&
           cqe->user_data != TAG_RECEIVE) {
        uring_complete(queue, cqe, NULL);
        io_uring_cqe_seen(&io->ring, cqe);
    }
}

const struct udp_driver_ops udp_uring_driver = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .transmit = udp_transmit,
    .poll = uring_poll,
    .release = uring_release,
    .wait = uring_wait,
};
