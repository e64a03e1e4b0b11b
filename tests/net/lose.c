/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loses, and repeats, datagrams that a process sends with sendmmsg(): the mmsg driver of the UDP backend. Needs no
 * namespace and no rights. Linked into a program, or preloaded: LOSE and TWICE are shares of datagrams, 0 to 1;
 * LOSE_SEED begins the random numbers of each thread.
 *
 * A train of which nothing is lost or repeated goes out as it is, so that the receiver joins datagrams as ever.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LOSE_UDP_SEGMENT 103 /* UDP_SEGMENT, which older headers lack */
enum { TRAIN_BYTES = 1 << 17 };

typedef int (*sendmmsg_fn)(int, struct mmsghdr *, unsigned, int);

static sendmmsg_fn real_sendmmsg;
static uint32_t lose_below, twice_below; /* of 2^32 */
static uint64_t first_seed;
static atomic_uint threads;
static __thread uint64_t random_state;

static double share(const char *name)
{
    const char *text = getenv(name);
    double value = text ? atof(text) : 0;
    return value < 0 ? 0 : value > 1 ? 1 : value;
}

__attribute__((constructor)) static void begin(void)
{
    const char *seed = getenv("LOSE_SEED");
    /* the cast that ISO C lacks */
    *(void **)&real_sendmmsg = dlsym(RTLD_NEXT, "sendmmsg");
    lose_below = (uint32_t)(share("LOSE") * UINT32_MAX);
    twice_below = (uint32_t)(share("TWICE") * UINT32_MAX);
    first_seed = seed ? strtoull(seed, NULL, 0) : 1;
}

/* splitmix64 */
static uint32_t next_random(void)
{
    if (random_state == 0)
        random_state = first_seed + ((uint64_t)atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) << 32) + 1;
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

/* How often a datagram goes out */
static unsigned copies(void)
{
    return next_random() < lose_below ? 0 : next_random() < twice_below ? 2 : 1;
}

static size_t bytes_of(const struct msghdr *message)
{
    size_t sum = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        sum += message->msg_iov[i].iov_len;
    return sum;
}

static size_t segment_of(struct msghdr *message, size_t bytes)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        uint16_t segment;
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == LOSE_UDP_SEGMENT) {
            memcpy(&segment, CMSG_DATA(c), sizeof(segment));
            return segment;
        }
    }
    return bytes;
}

/* Control messages of a train that a datagram of it has too: its source address */
static size_t control_of_one(struct msghdr *message, char *out, size_t room)
{
    size_t used = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        size_t space = CMSG_ALIGN(c->cmsg_len);
        if ((c->cmsg_level == IPPROTO_UDP && c->cmsg_type == LOSE_UDP_SEGMENT) || used + space > room)
            continue;
        memcpy(out + used, c, c->cmsg_len);
        used += space;
    }
    return used;
}

/* Sends datagrams of a train one by one. An error is one more way to lose them. */
static void send_apart(int fd, struct msghdr *message, size_t bytes, size_t segment, const uint8_t *times)
{
    static __thread char train[TRAIN_BYTES];
    _Alignas(struct cmsghdr) char control[256] = {0};
    size_t at = 0, controls = control_of_one(message, control, sizeof(control));
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        memcpy(train + at, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        at += message->msg_iov[i].iov_len;
    }
    for (size_t k = 0; k * segment < bytes; k++) {
        size_t length = bytes - k * segment < segment ? bytes - k * segment : segment;
        struct iovec part = {train + k * segment, length};
        struct mmsghdr one = {.msg_hdr = {.msg_name = message->msg_name,
                                          .msg_namelen = message->msg_namelen,
                                          .msg_iov = &part,
                                          .msg_iovlen = 1,
                                          .msg_control = controls ? control : NULL,
                                          .msg_controllen = controls}};
        for (unsigned n = 0; n < times[k]; n++)
            real_sendmmsg(fd, &one, 1, MSG_DONTWAIT);
    }
}

/* Sends one message, or parts of it. False: the kernel has not taken it, errno says why. */
static bool send_message(int fd, struct mmsghdr *entry, int flags)
{
    uint8_t times[TRAIN_BYTES / 64];
    size_t bytes = bytes_of(&entry->msg_hdr), segment = segment_of(&entry->msg_hdr, bytes);
    bool whole = true;
    if (bytes == 0 || bytes > TRAIN_BYTES || bytes / segment >= sizeof(times))
        return real_sendmmsg(fd, entry, 1, flags) == 1;
    for (size_t k = 0; k * segment < bytes; k++) {
        times[k] = (uint8_t)copies();
        whole = whole && times[k] == 1;
    }
    if (whole)
        return real_sendmmsg(fd, entry, 1, flags) == 1;
    send_apart(fd, &entry->msg_hdr, bytes, segment, times);
    entry->msg_len = (unsigned)bytes;
    return true;
}

__attribute__((visibility("default"))) int sendmmsg(int fd, struct mmsghdr *entries, unsigned count, int flags)
{
    unsigned sent = 0;
    if (!real_sendmmsg) { /* before the constructor */
        errno = ENOSYS;
        return -1;
    }
    if (lose_below == 0 && twice_below == 0)
        return real_sendmmsg(fd, entries, count, flags);
    while (sent < count && send_message(fd, &entries[sent], flags))
        sent++;
    return sent > 0 || count == 0 ? (int)sent : -1;
}
