/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls and allocations that fail on demand: the n-th call of one function fails, once or from then on, for one
 * of the engines in this process. The linker puts __wrap_NAME() in place of NAME() (tests/meson.build); who calls is
 * told by `acting`, which a new thread inherits. And what the engines hold: blocks, mappings, threads, descriptors.
 *
 * One program includes this once. Any thread may be inside a call while a failure is armed or taken back.
 */
#ifndef UCCL_TEST_FAILING_H
#define UCCL_TEST_FAILING_H

#include "../entries.h"
#include "wrapped_syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

/* Functions, by the linker's names; then what is part of one, or an event: see below. */
#define CALLS(ROW)                                                                                                     \
    ROW(socket)                                                                                                        \
    ROW(setsockopt)                                                                                                    \
    ROW(getsockopt)                                                                                                    \
    ROW(connect)                                                                                                       \
    ROW(accept4)                                                                                                       \
    ROW(getpeername)                                                                                                   \
    ROW(fcntl64)                                                                                                       \
    ROW(send)                                                                                                          \
    ROW(recv)                                                                                                          \
    ROW(poll)                                                                                                          \
    ROW(getrandom)                                                                                                     \
    ROW(mmap64)                                                                                                        \
    ROW(malloc)                                                                                                        \
    ROW(calloc)                                                                                                        \
    ROW(listen)                                                                                                        \
    ROW(bind)                                                                                                          \
    ROW(getsockname)                                                                                                   \
    ROW(realloc)                                                                                                       \
    ROW(aligned_alloc)                                                                                                 \
    ROW(pthread_create)                                                                                                \
    ROW(eventfd)                                                                                                       \
    ROW(getifaddrs)                                                                                                    \
    ROW(ioctl)                                                                                                         \
    ROW(open64)                                                                                                        \
    ROW(fopen64)                                                                                                       \
    ROW(sendmmsg)                                                                                                      \
    ROW(sendmsg)                                                                                                       \
    ROW(recvmmsg)                                                                                                      \
    ROW(recvmsg)                                                                                                       \
    ROW(ppoll)                                                                                                         \
    ROW(read)                                                                                                          \
    ROW(write)                                                                                                         \
    ROW(io_uring_queue_init_params)                                                                                    \
    ROW(io_uring_register_buf_ring)                                                                                    \
    ROW(io_uring_submit_and_get_events)                                                                                \
    ROW(io_uring_submit_and_wait_timeout)                                                                              \
    ROW(futex_wait)                                                                                                    \
    ROW(ring_enable)                                                                                                   \
    ROW(ring_receive)

enum call {
#define ROW(name) CALL_##name,
    CALLS(ROW)
#undef ROW
        CALL_COUNT
};
static const char *const call_names[] = {
#define ROW(name) #name,
    CALLS(ROW)
#undef ROW
};

enum side { NOBODY, CLIENT, SERVER, TESTER };
static _Thread_local enum side acting;

static struct {
    _Atomic bool armed;
    enum call call;
    enum side side;
    int error;
    bool for_good;           /* all calls from the n-th on */
    _Atomic int left;        /* calls until the first that fails */
    _Atomic unsigned failed; /* calls that have */
} plan;

/* For all sides: of the calls that a signal may interrupt, every other one is, in no order. */
static _Atomic bool interrupting;
/* For all sides: at most one byte over a TCP connection in a call. */
static _Atomic bool dribbling;

static _Atomic int64_t held_blocks, held_mapped, held_threads;

static inline void arm_failure(enum side side, enum call call, int error, unsigned n, bool for_good)
{
    atomic_store(&plan.armed, false);
    plan.side = side;
    plan.call = call;
    plan.error = error;
    plan.for_good = for_good;
    atomic_store(&plan.left, (int)n);
    atomic_store(&plan.failed, 0);
    atomic_store(&plan.armed, true);
}

/* True: the failure has happened. */
static inline bool disarm_failure(void)
{
    atomic_store(&plan.armed, false);
    return atomic_load(&plan.failed) > 0;
}

static inline bool interrupted(void)
{
    static _Thread_local uint32_t random;
    if (!atomic_load(&interrupting) || acting == NOBODY)
        return false;
    random = random * 1664525 + 1013904223; /* Numerical Recipes, chapter 7 */
    if (random >> 31 == 0)
        return false;
    errno = EINTR;
    return true;
}

static inline bool fails(enum call call)
{
    if (!atomic_load(&plan.armed) || plan.call != call || plan.side != acting)
        return false;
    int left = atomic_fetch_sub(&plan.left, 1);
    if (left > 1 || (left < 1 && !plan.for_good))
        return false;
    atomic_fetch_add(&plan.failed, 1);
    errno = plan.error;
    return true;
}

#define WRAP(result, name, failure, parameters, arguments)                                                             \
    result __real_##name parameters;                                                                                   \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters                                                                                    \
    {                                                                                                                  \
        return fails(CALL_##name) ? (failure) : __real_##name arguments;                                               \
    }

/* The same for what a signal may interrupt. */
#define WRAP_SLOW(name, parameters, arguments, result)                                                                 \
    result __real_##name parameters;                                                                                   \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters                                                                                    \
    {                                                                                                                  \
        return fails(CALL_##name) || interrupted() ? -1 : __real_##name arguments;                                     \
    }

WRAP(int, socket, -1, (int family, int type, int protocol), (family, type, protocol))
WRAP(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t length),
     (fd, level, name, value, length))
WRAP(int, getsockopt, -1, (int fd, int level, int name, void *value, socklen_t *length),
     (fd, level, name, value, length))
WRAP(int, bind, -1, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
WRAP(int, listen, -1, (int fd, int backlog), (fd, backlog))
WRAP(int, getsockname, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(int, getpeername, -1, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
WRAP(ssize_t, getrandom, -1, (void *out, size_t length, unsigned flags), (out, length, flags))
WRAP(int, eventfd, -1, (unsigned count, int flags), (count, flags))
WRAP(int, getifaddrs, -1, (struct ifaddrs * *out), (out))
WRAP(FILE *, fopen64, NULL, (const char *path, const char *mode), (path, mode))
WRAP(ssize_t, write, -1, (int fd, const void *bytes, size_t length), (fd, bytes, length))
WRAP(ssize_t, read, -1, (int fd, void *bytes, size_t length), (fd, bytes, length))
WRAP_SLOW(accept4, (int fd, struct sockaddr *address, socklen_t *length, int flags), (fd, address, length, flags), int)
WRAP_SLOW(poll, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms), int)
WRAP_SLOW(ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *limit, const sigset_t *mask),
          (fds, count, limit, mask), int)
WRAP_SLOW(sendmmsg, (int fd, struct mmsghdr *batch, unsigned count, int flags), (fd, batch, count, flags), int)
WRAP_SLOW(recvmmsg, (int fd, struct mmsghdr *batch, unsigned count, int flags, struct timespec *limit),
          (fd, batch, count, flags, limit), int)
WRAP(ssize_t, sendmsg, -1, (int fd, const struct msghdr *message, int flags), (fd, message, flags))

/* Who receives no more for good does so in neither way. */
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    if (fails(CALL_recvmsg) || (plan.for_good && fails(CALL_recvmmsg)) || interrupted())
        return -1;
    return __real_recvmsg(fd, message, flags);
}

/* An interrupted connect goes on by itself. */
int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    if (fails(CALL_connect))
        return -1;
    int result = __real_connect(fd, address, length);
    return result != 0 && errno == EINPROGRESS && interrupted() ? -1 : result;
}

ssize_t __real_send(int fd, const void *bytes, size_t length, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t length, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t length, int flags)
{
    if (fails(CALL_send) || interrupted())
        return -1;
    return __real_send(fd, bytes, atomic_load(&dribbling) && length > 1 ? 1 : length, flags);
}

ssize_t __real_recv(int fd, void *bytes, size_t length, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t length, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t length, int flags)
{
    if (fails(CALL_recv) || interrupted())
        return -1;
    return __real_recv(fd, bytes, atomic_load(&dribbling) && length > 1 ? 1 : length, flags);
}

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    int argument = va_arg(arguments, int);
    va_end(arguments);
    return fails(CALL_fcntl64) ? -1 : __real_fcntl64(fd, command, argument);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fails(CALL_ioctl) ? -1 : __real_ioctl(fd, request, argument);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails(CALL_open64) ? -1 : __real_open64(path, flags, mode);
}

/* Of system calls by number: a futex's wait, and the enabling of a ring. */
static bool on_syscall(long number, const long argument[6])
{
    bool waits = number == SYS_futex && (argument[1] & FUTEX_CMD_MASK) == FUTEX_WAIT;
    if (waits && (fails(CALL_futex_wait) || interrupted()))
        return true;
#ifdef HAVE_LIBURING
    if (number == SYS_io_uring_register && argument[1] == IORING_REGISTER_ENABLE_RINGS && fails(CALL_ring_enable))
        return true;
#endif
    return false;
}

/* ---- memory and threads ---------------------------------------------------------------------- */

#define WRAP_ALLOCATION(name, parameters, arguments)                                                                   \
    void *__real_##name parameters;                                                                                    \
    void *__wrap_##name parameters;                                                                                    \
    void *__wrap_##name parameters                                                                                     \
    {                                                                                                                  \
        void *memory = fails(CALL_##name) ? NULL : __real_##name arguments;                                            \
        atomic_fetch_add(&held_blocks, memory != NULL);                                                                \
        return memory;                                                                                                 \
    }

WRAP_ALLOCATION(malloc, (size_t bytes), (bytes))
WRAP_ALLOCATION(calloc, (size_t count, size_t bytes), (count, bytes))
WRAP_ALLOCATION(aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    if (fails(CALL_realloc))
        return NULL;
    bool fresh = !old;
    void *memory = __real_realloc(old, bytes);
    atomic_fetch_add(&held_blocks, fresh && memory);
    return memory;
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    atomic_fetch_sub(&held_blocks, memory != NULL);
    __real_free(memory);
}

void *__real_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *memory = fails(CALL_mmap64) ? MAP_FAILED : __real_mmap64(address, bytes, protection, flags, fd, offset);
    if (memory != MAP_FAILED)
        atomic_fetch_add(&held_mapped, (int64_t)bytes);
    return memory;
}

int __real_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes)
{
    atomic_fetch_sub(&held_mapped, (int64_t)bytes);
    return __real_munmap(memory, bytes);
}

struct started {
    void *(*run)(void *);
    void *argument;
    enum side side;
};

static void *run_started(void *argument)
{
    struct started *started = argument, copy = *started;
    __real_free(started);
    acting = copy.side;
    return copy.run(copy.argument);
}

int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (fails(CALL_pthread_create))
        return plan.error;
    struct started *started = __real_malloc(sizeof *started);
    *started = (struct started){run, argument, acting};
    int error = __real_pthread_create(out, attributes, run_started, started);
    atomic_fetch_add(&held_threads, error == 0);
    if (error)
        __real_free(started);
    return error;
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    int error = __real_pthread_join(thread, result);
    atomic_fetch_sub(&held_threads, error == 0);
    return error;
}

/* ---- io_uring -------------------------------------------------------------------------------- */

#ifdef HAVE_LIBURING
WRAP(int, io_uring_queue_init_params, -plan.error,
     (unsigned entries, struct io_uring *ring, struct io_uring_params *params), (entries, ring, params))
WRAP(int, io_uring_register_buf_ring, -plan.error,
     (struct io_uring * ring, struct io_uring_buf_reg *reg, unsigned flags), (ring, reg, flags))

/* The kernel ends the multishot receive (tag 1 in udp/uring.c) by itself, as it may at any time. */
static void end_receive(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = fails(CALL_ring_receive) ? io_uring_get_sqe(ring) : NULL;
    if (!sqe)
        return;
    io_uring_prep_cancel64(sqe, 1, 0);
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
}

int __real_io_uring_submit_and_get_events(struct io_uring *ring);
int __wrap_io_uring_submit_and_get_events(struct io_uring *ring);
int __wrap_io_uring_submit_and_get_events(struct io_uring *ring)
{
    if (fails(CALL_io_uring_submit_and_get_events))
        return -plan.error;
    if (interrupted())
        return -EINTR;
    end_receive(ring);
    return __real_io_uring_submit_and_get_events(ring);
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned count,
                                            struct __kernel_timespec *limit, sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned count,
                                            struct __kernel_timespec *limit, sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned count,
                                            struct __kernel_timespec *limit, sigset_t *mask)
{
    if (fails(CALL_io_uring_submit_and_wait_timeout))
        return -plan.error;
    if (interrupted())
        return -EINTR;
    end_receive(ring);
    return __real_io_uring_submit_and_wait_timeout(ring, cqe, count, limit, mask);
}
#endif

/* ---- what is held ---------------------------------------------------------------------------- */

struct held {
    int64_t blocks, mapped, threads;
    int files;
};

static inline struct held held_now(void)
{
    return (struct held){atomic_load(&held_blocks), atomic_load(&held_mapped), atomic_load(&held_threads),
                         (int)entries_of("/proc/self/fd")};
}

#endif
