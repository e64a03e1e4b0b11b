/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile engine beside honest ones, as processes.
 *
 *   hostile victim PORT FILE        accepts connections and sends back what comes, until there is such a file
 *   hostile honest PORT SECONDS     sends to the victim and compares what comes back
 *   hostile liar PORT SECONDS SEED  connects again and again, and lies in all that it sends
 *
 * The liar is a whole engine of this library, whose sendmmsg() is replaced (by the linker): its packets are twisted,
 * and others are made up between them (tests/lies.h). Exit status 0 when all went as it should; of the liar, when it
 * has lied.
 */
#include "../lies.h"
#include "uccl/engine.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BYTES_MAX = 400000,
    CONNS_MAX = 64, /* of the victim, at the same time */
    LIARS_MAX = 64, /* flows */
    POSTED_MAX = 8,
    HONEST_MS_MAX = 5000, /* of a round trip; most take one */
    HONEST_ROUNDS_MIN = 20,
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void *memory(size_t bytes)
{
    void *made = malloc(bytes);
    if (!made) {
        perror("hostile");
        exit(2);
    }
    return made;
}

/* ---- lies ------------------------------------------------------------------------------------ */

int __real_sendmmsg(int fd, struct mmsghdr *batch, unsigned count, int flags);
int __wrap_sendmmsg(int fd, struct mmsghdr *batch, unsigned count, int flags);

static struct {
    bool lies;
    pthread_mutex_t lock;
    struct rng rng;
    enum liar_habit habit;
    struct liar liars[LIARS_MAX];
    uint64_t tokens[LIARS_MAX];
    unsigned count;
    unsigned long told;
} lying = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct liar *liar_of(const uint8_t *datagram, size_t length)
{
    uint64_t token = wire_token(datagram, length);
    for (unsigned i = 0; i < lying.count && i < LIARS_MAX; i++) {
        if (lying.tokens[i] == token)
            return &lying.liars[i];
    }
    unsigned at = lying.count++ % LIARS_MAX;
    lying.tokens[at] = token;
    liar_init(&lying.liars[at], rng_next(&lying.rng));
    return &lying.liars[at];
}

static void send_one(int fd, const struct msghdr *to, uint8_t *bytes, size_t length)
{
    struct iovec all = {bytes, length};
    struct msghdr header = {.msg_name = to->msg_name, .msg_namelen = to->msg_namelen, .msg_iov = &all, .msg_iovlen = 1};
    (void)sendmsg(fd, &header, MSG_DONTWAIT); /* what does not fit is lost */
}

static void invent(int fd, const struct msghdr *to, struct liar *liar)
{
    static uint8_t made[LIE_BYTES_MAX];
    size_t length = liar_invent(liar, LIE_BYTES_MAX, made);
    if (length)
        send_one(fd, to, made, length);
    lying.told += length != 0;
}

static void send_with_lies(int fd, const struct msghdr *to, const uint8_t *bytes, size_t length)
{
    static uint8_t spoilt[1 << 16], twisted[(1 << 16) + LIE_BYTES_MAX];
    struct liar *liar = liar_of(bytes, length);
    liar_hear(liar, bytes, length);
    liar_spoil(liar, lying.habit, bytes, length, spoilt);
    unsigned what = rng_below(&lying.rng, 16);
    if (what < 3) {
        size_t other = liar_twist(liar, spoilt, length, twisted);
        send_one(fd, to, twisted, other);
        lying.told++;
    }
    if (what != 0)
        send_one(fd, to, spoilt, length);
    for (unsigned i = rng_below(&lying.rng, 8); what > 13 && i > 0; i--)
        invent(fd, to, liar);
}

/* The size of the datagrams that the kernel is to cut it into. */
static size_t segment_of(struct msghdr *header, size_t length)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control; control = CMSG_NXTHDR(header, control)) {
        uint16_t segment;
        if (control->cmsg_level != SOL_UDP || control->cmsg_type != UDP_SEGMENT)
            continue;
        memcpy(&segment, CMSG_DATA(control), sizeof segment);
        return segment ? segment : length;
    }
    return length;
}

int __wrap_sendmmsg(int fd, struct mmsghdr *batch, unsigned count, int flags)
{
    static uint8_t flat[1 << 17];
    if (!lying.lies)
        return __real_sendmmsg(fd, batch, count, flags);
    pthread_mutex_lock(&lying.lock);
    for (unsigned i = 0; i < count; i++) {
        struct msghdr *header = &batch[i].msg_hdr;
        size_t length = 0;
        for (size_t k = 0; k < header->msg_iovlen && length + header->msg_iov[k].iov_len <= sizeof flat; k++) {
            memcpy(flat + length, header->msg_iov[k].iov_base, header->msg_iov[k].iov_len);
            length += header->msg_iov[k].iov_len;
        }
        size_t segment = segment_of(header, length);
        for (size_t at = 0; at < length; at += segment)
            send_with_lies(fd, header, flat + at, length - at < segment ? length - at : segment);
        batch[i].msg_len = (unsigned)length;
    }
    pthread_mutex_unlock(&lying.lock);
    return (int)count;
}

/* ---- the victim ------------------------------------------------------------------------------ */

struct served {
    uccl_conn *conn;
    pthread_t thread;
    const char *until; /* there is such a file */
    _Atomic bool over;
    bool used;
};

/* Waits whatever happens to the connection; a request that does not end is cancelled, and ends then. */
static int wait_for(uccl_request *request, const char *until, size_t *bytes)
{
    int status;
    while ((status = uccl_wait(request, 100, bytes)) == UCCL_ETIMEDOUT) {
        if (access(until, F_OK) == 0)
            uccl_cancel(request);
    }
    return status;
}

static void *echo_main(void *argument)
{
    struct served *served = argument;
    unsigned char *buffer = memory(BYTES_MAX);
    uccl_request *request;
    size_t bytes;
    int error = 0;
    while (!error && access(served->until, F_OK) != 0) {
        while ((error = uccl_recv_async(served->conn, buffer, BYTES_MAX, NULL, &request)) == UCCL_EAGAIN)
            pause_ms(1);
        if (!error)
            error = wait_for(request, served->until, &bytes);
        if (error)
            continue;
        while ((error = uccl_send_async(served->conn, buffer, bytes, NULL, &request)) == UCCL_EAGAIN)
            pause_ms(1);
        if (!error)
            error = wait_for(request, served->until, &bytes);
    }
    uccl_conn_close(served->conn);
    free(buffer);
    served->over = true;
    return NULL;
}

static struct served *room_for_one(struct served *all, bool wait)
{
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        if (all[i].used && (all[i].over || wait)) {
            pthread_join(all[i].thread, NULL);
            all[i].used = false;
            all[i].over = false;
        }
    }
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        if (!all[i].used)
            return &all[i];
    }
    return NULL;
}

static int victim(uccl_engine *engine, unsigned port, const char *until)
{
    static struct served all[CONNS_MAX];
    struct uccl_handle handle;
    uccl_listener *listener;
    unsigned accepted = 0;
    if (uccl_listen(engine, -1, (uint16_t)port, &handle, &listener))
        return 2;
    while (access(until, F_OK) != 0) {
        uccl_conn *conn;
        struct served *served = room_for_one(all, false);
        if (!served) {
            pause_ms(10);
            continue;
        }
        int error = uccl_accept(listener, 100, &conn);
        if (error)
            continue;
        accepted++;
        *served = (struct served){.conn = conn, .until = until, .used = true};
        if (pthread_create(&served->thread, NULL, echo_main, served))
            return 2;
    }
    room_for_one(all, true);
    uccl_listener_close(listener);
    printf("%u connections\n", accepted);
    return 0;
}

/* ---- an honest peer -------------------------------------------------------------------------- */

static int one_round(uccl_conn *conn, struct rng *rng, unsigned char *out, unsigned char *in, double *took)
{
    size_t length = rng_below(rng, 2) ? rng_below(rng, 20000) : rng_below(rng, BYTES_MAX), bytes = 0;
    uccl_request *receive, *send;
    double begun = seconds_now();
    for (size_t i = 0; i < length; i += 8)
        memcpy(out + i, &(uint64_t){rng_next(rng)}, 8);
    memset(in, 0, length);
    if (uccl_recv_async(conn, in, BYTES_MAX, NULL, &receive) || uccl_send_async(conn, out, length, NULL, &send))
        return fprintf(stderr, "an honest request is not taken\n");
    int sent = uccl_wait(send, HONEST_MS_MAX, NULL), received = uccl_wait(receive, HONEST_MS_MAX, &bytes);
    *took = seconds_now() - begun;
    if (sent || received || bytes != length || memcmp(in, out, length) != 0)
        return fprintf(stderr, "sent %zu bytes: %s; received %zu: %s%s\n", length, uccl_strerror(sent), bytes,
                       uccl_strerror(received), bytes == length ? ", other ones" : "");
    return 0;
}

static int honest(uccl_engine *engine, unsigned port, double seconds)
{
    double until = seconds_now() + seconds, slowest = 0, took = 0;
    unsigned char *out = memory(BYTES_MAX + 8), *in = memory(BYTES_MAX + 8);
    struct rng rng = {seconds_now() > 0};
    struct uccl_handle handle;
    uccl_conn *conn;
    unsigned rounds = 0;
    int error = uccl_handle_from_address("127.0.0.1", (uint16_t)port, &handle);
    if (!error)
        error = uccl_connect(engine, &handle, HONEST_MS_MAX, &conn);
    if (error) {
        fprintf(stderr, "an honest connect: %s\n", uccl_strerror(error));
        exit(1);
    }
    while (!error && seconds_now() < until) {
        error = one_round(conn, &rng, out, in, &took);
        slowest = took > slowest ? took : slowest;
        rounds++;
    }
    uccl_conn_close(conn);
    free(out);
    free(in);
    printf("%u round trips, the slowest in %.1f ms\n", rounds, slowest * 1000);
    return error || rounds < HONEST_ROUNDS_MIN;
}

/* ---- the liar -------------------------------------------------------------------------------- */

static void pretend(uccl_conn *conn, struct rng *rng, unsigned char *buffers)
{
    uccl_request *posted[POSTED_MAX];
    unsigned count = 0;
    for (unsigned i = 1 + rng_below(rng, POSTED_MAX); i > 0; i--) {
        unsigned char *buffer = buffers + (size_t)count * BYTES_MAX;
        size_t length = rng_below(rng, 3) ? rng_below(rng, 9000) : rng_below(rng, BYTES_MAX);
        int error = rng_below(rng, 2) ? uccl_send_async(conn, buffer, length, NULL, &posted[count])
                                      : uccl_recv_async(conn, buffer, length, NULL, &posted[count]);
        count += error == 0;
    }
    for (unsigned i = 0; i < count; i++) {
        if (uccl_wait(posted[i], (int)rng_below(rng, 6), NULL) != UCCL_ETIMEDOUT)
            posted[i] = NULL;
    }
    uccl_conn_close(conn);
    for (unsigned i = 0; i < count; i++) {
        if (posted[i])
            uccl_wait(posted[i], -1, NULL);
    }
}

static int liar(uccl_engine *engine, unsigned port, double seconds, uint64_t seed)
{
    double until = seconds_now() + seconds;
    unsigned char *buffers = calloc(POSTED_MAX, BYTES_MAX);
    struct rng rng = {seed};
    struct uccl_handle handle;
    unsigned connected = 0;
    if (!buffers || uccl_handle_from_address("127.0.0.1", (uint16_t)port, &handle))
        return 2;
    while (seconds_now() < until) {
        uccl_conn *conn;
        struct uccl_handle to = handle;
        lying.habit = rng_below(&rng, 2) ? rng_below(&rng, LIAR_HABITS) : LIAR_HONEST;
        if (uccl_connect(engine, &to, 200, &conn))
            continue;
        connected++;
        pretend(conn, &rng, buffers);
    }
    free(buffers);
    printf("%u connections, %lu lies\n", connected, lying.told);
    return connected == 0 || lying.told == 0;
}

int main(int argc, char **argv)
{
    uccl_engine *engine;
    int status = 2;
    bool lies = argc == 5 && strcmp(argv[1], "liar") == 0;
    if (argc < 4) {
        fprintf(stderr, "usage: hostile victim PORT FILE | honest PORT SECONDS | liar PORT SECONDS SEED\n");
        return 2;
    }
    if (lies) {
        setenv("UCCL_UDP_IO", "mmsg", 1);
        setenv("UCCL_LINGER_MS", "5", 1);
        lying.rng.state = strtoull(argv[4], NULL, 0);
        lying.lies = true;
    }
    if (uccl_open(NULL, &engine))
        return 2;
    unsigned port = (unsigned)atoi(argv[2]);
    if (lies)
        status = liar(engine, port, atof(argv[3]), strtoull(argv[4], NULL, 0));
    else if (strcmp(argv[1], "victim") == 0)
        status = victim(engine, port, argv[3]);
    else if (strcmp(argv[1], "honest") == 0)
        status = honest(engine, port, atof(argv[3]));
    uccl_close(engine);
    return status;
}
