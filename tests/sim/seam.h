/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulator puts in place of the world below the engine. The build includes this before every
 * other line of the engine's own sources (engine threads, rings, requests, stripes, peers, handshake, API),
 * which are compiled for the simulator once more, unchanged: each thread becomes a fiber of machine.c, each
 * wait a place where another fiber may run, and each atomic operation a place where the seed may
 * preempt. Fibers take turns on one thread, so plain accesses to atomic objects are atomic here.
 */
#ifndef SIM_SEAM_H
#define SIM_SEAM_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- machine.c: time, threads, memory ---- */
void sim_step(void); /* a place where a thread may be preempted */
int sim_clock_gettime(clockid_t clock, struct timespec *out);
int sim_nanosleep(const struct timespec *duration, struct timespec *rest);
int sim_sched_yield(void);
long sim_syscall(long call, ...); /* futex(2) alone */
int sim_thread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int sim_thread_join(pthread_t thread, void **result);
int sim_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int sim_mutex_destroy(pthread_mutex_t *mutex);
int sim_mutex_lock(pthread_mutex_t *mutex);
int sim_mutex_trylock(pthread_mutex_t *mutex);
int sim_mutex_unlock(pthread_mutex_t *mutex);
void *sim_malloc(size_t bytes);
void *sim_calloc(size_t count, size_t bytes);
void *sim_aligned_alloc(size_t alignment, size_t bytes);
void sim_free(void *memory);
void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int sim_munmap(void *memory, size_t bytes);
ssize_t sim_getrandom(void *out, size_t bytes, unsigned flags);

/* ---- payload.c: memory of applications, which is not there ---- */
void *sim_memcpy(void *to, const void *from, size_t length);
void sim_watched_copy(void *to, const void *from, size_t length);

/* ---- payload.c: of what stands in application buffers, too ---- */
uint32_t (*sim_crc32c_best(void))(uint32_t start, const void *data, size_t length);

/* ---- sockets.c: descriptors ---- */
int sim_socket(int family, int type, int protocol);
int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int sim_bind(int fd, const struct sockaddr *address, socklen_t length);
int sim_listen(int fd, int backlog);
int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int sim_connect(int fd, const struct sockaddr *address, socklen_t length);
ssize_t sim_send(int fd, const void *bytes, size_t length, int flags);
ssize_t sim_recv(int fd, void *bytes, size_t length, int flags);
int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int sim_fcntl(int fd, int command, ...);
int sim_eventfd(unsigned value, int flags);
ssize_t sim_read(int fd, void *out, size_t length);
ssize_t sim_write(int fd, const void *bytes, size_t length);
int sim_shutdown(int fd, int how);
int sim_close(int fd);

#ifdef SIM_SEAM
#define clock_gettime sim_clock_gettime
#define nanosleep sim_nanosleep
#define sched_yield sim_sched_yield
#define syscall sim_syscall
#define pthread_create sim_thread_create
#define pthread_join sim_thread_join
#define pthread_mutex_init sim_mutex_init
#define pthread_mutex_destroy sim_mutex_destroy
#define pthread_mutex_lock sim_mutex_lock
#define pthread_mutex_trylock sim_mutex_trylock
#define pthread_mutex_unlock sim_mutex_unlock
#define malloc sim_malloc
#define calloc sim_calloc
#define aligned_alloc sim_aligned_alloc
#define free sim_free
#define mmap sim_mmap
#define munmap sim_munmap
#define getrandom sim_getrandom
#define memcpy sim_memcpy
#define watched_copy sim_watched_copy
#define crc32c_best sim_crc32c_best
#define socket sim_socket
#define setsockopt sim_setsockopt
#define getsockopt sim_getsockopt
#define bind sim_bind
#define listen sim_listen
#define getsockname sim_getsockname
#define getpeername sim_getpeername
#define accept4 sim_accept4
#define connect sim_connect
#define send sim_send
#define recv sim_recv
#define poll sim_poll
#define fcntl sim_fcntl
#define eventfd sim_eventfd
#define read sim_read
#define write sim_write
#define shutdown sim_shutdown
#define close sim_close

#undef atomic_init
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_weak_explicit
#define atomic_init(object, value) ((void)(*(object) = (value)))
#define atomic_load(object) (sim_step(), *(object))
#define atomic_load_explicit(object, order) atomic_load(object)
#define atomic_store(object, value) ((void)(sim_step(), *(object) = (value)))
#define atomic_store_explicit(object, value, order) atomic_store(object, value)
#define SIM_CHANGE(object, change)                                                                                     \
    __extension__({                                                                                                    \
        sim_step();                                                                                                    \
        __auto_type sim_object = (object);                                                                             \
        __typeof__(+*sim_object) sim_old = *sim_object;                                                                \
        *sim_object = (change);                                                                                        \
        sim_old;                                                                                                       \
    })
#define atomic_exchange(object, value) SIM_CHANGE(object, value)
#define atomic_fetch_add(object, value) SIM_CHANGE(object, sim_old + (value))
#define atomic_fetch_add_explicit(object, value, order) atomic_fetch_add(object, value)
#define atomic_fetch_sub(object, value) SIM_CHANGE(object, sim_old - (value))
#define atomic_fetch_sub_explicit(object, value, order) atomic_fetch_sub(object, value)
#define atomic_compare_exchange_strong(object, expected, desired)                                                      \
    __extension__({                                                                                                    \
        sim_step();                                                                                                    \
        __auto_type sim_object = (object);                                                                             \
        __auto_type sim_expected = (expected);                                                                         \
        __typeof__(+*sim_object) sim_old = *sim_object;                                                                \
        bool sim_same = sim_old == *sim_expected;                                                                      \
        if (sim_same)                                                                                                  \
            *sim_object = (desired);                                                                                   \
        else                                                                                                           \
            *sim_expected = sim_old;                                                                                   \
        sim_same;                                                                                                      \
    })
#define atomic_compare_exchange_weak(object, expected, desired)                                                        \
    atomic_compare_exchange_strong(object, expected, desired)
#define atomic_compare_exchange_weak_explicit(object, expected, desired, success, failure)                             \
    atomic_compare_exchange_strong(object, expected, desired)
#endif

#endif
