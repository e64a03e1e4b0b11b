/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_udp: the ceiling that a transport over UDP sockets can reach on a machine. Two processes move
 * messages with as little work as is honest: a 64-byte header in every datagram, GSO trains out,
 * GRO in, a copy from the receive pool to the destination, and a window held by small acks so that
 * the socket buffer never overflows. No retransmission: a lost datagram ends the run with an error.
 *
 *   raw_udp --listen PORT                        serves one client and ends
 *   raw_udp --connect HOST --port PORT [...]     measures; prints one line of name=value
 *
 * The latency mode plays ping-pong with 8 bytes, spinning or blocking. Each process has one thread.
 * The two ends are the same binary: the header is in host byte order.
 */
#define RAW_NAME "raw_udp"
#include "raw.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum {
    TRAIN_BYTES = 65000, /* largest train: an IP packet holds 65535 bytes with its headers */
    TRAIN_DATAGRAMS = 64,
    BATCH = 16, /* most trains that one recvmmsg() takes */
    POOL_BYTES = 65536,
    SPIN_NS = 50000, /* polling before sleeping, as the library does by default */
    LOST_NS = 2000000000,
};

enum kind { HELLO, DATA, ACK, BYE, PING };

/* in front of every datagram; 64 bytes, as many as the library's own */
struct header {
    uint32_t kind;
    uint32_t length;    /* DATA: payload bytes */
    uint64_t message;   /* DATA: number of the message */
    uint64_t offset;    /* DATA: in the message */
    uint64_t bytes;     /* ACK: payload received in all; HELLO: message size */
    uint64_t window;    /* HELLO: messages; */
    uint64_t cpu_ns;    /* BYE: of the server */
    uint64_t calls;     /* BYE: system calls of the server */
    uint32_t ack_every; /* HELLO: bytes */
    uint16_t block;     /* HELLO: sleep at once instead of spinning */
    uint16_t batch;     /* HELLO: trains received at once; few of them stay in the cache */
};
_Static_assert(sizeof(struct header) == 64, "header of 64 bytes");

struct options {
    struct raw_options raw;
    bool assemble;
    uint64_t datagram_bytes, window_bytes, buffer_kb, batch;
};

struct train {
    unsigned char bytes[POOL_BYTES];
    char control[64];
};

struct end {
    int socket;
    struct options opt;
    uint64_t calls;
    uint64_t sent, acked; /* payload bytes */
};

static struct train pool[BATCH];

static void open_socket(struct end *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *address;
    int on = 1, buffer = (int)(e->opt.buffer_kb * 1024);
    const char *host = e->opt.raw.listen && !e->opt.raw.host ? "::" : e->opt.raw.host;

    if (getaddrinfo(host, e->opt.raw.port, &hints, &address) != 0)
        fail("address");
    e->socket = socket(address->ai_family, SOCK_DGRAM, 0);
    if (e->socket < 0)
        fail("socket");
    setsockopt(e->socket, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(e->socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(e->socket, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    if (e->opt.raw.listen ? bind(e->socket, address->ai_addr, address->ai_addrlen)
                          : connect(e->socket, address->ai_addr, address->ai_addrlen))
        fail(e->opt.raw.listen ? "bind" : "connect");
    freeaddrinfo(address);
}

static void send_header(struct end *e, const struct header *h)
{
    e->calls++;
    if (send(e->socket, h, sizeof *h, 0) < 0 && errno != ECONNREFUSED)
        fail("send");
}

/* Waits at most `limit_ns` for something to read: spins first, unless told to block. */
static bool readable(struct end *e, bool block, uint64_t limit_ns)
{
    struct pollfd fd = {e->socket, POLLIN, 0};
    struct timespec limit = {(time_t)(limit_ns / 1000000000), (long)(limit_ns % 1000000000)};
    char byte;

    for (uint64_t start = now_ns(); !block && now_ns() - start < SPIN_NS;) {
        e->calls++;
        if (recv(e->socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0)
            return true;
    }
    e->calls++;
    return ppoll(&fd, 1, &limit, NULL) > 0;
}

/* ---- the receiving side ---- */

/* datagram size of a GRO train; its whole length when it was not one */
static size_t segment_size(struct msghdr *m, size_t length)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(c), sizeof size);
            return size > 0 ? (size_t)size : length;
        }
    }
    return length;
}

static int receive_batch(struct end *e, struct mmsghdr *messages, unsigned batch)
{
    static struct iovec parts[BATCH];
    for (unsigned i = 0; i < batch; i++) {
        parts[i] = (struct iovec){pool[i].bytes, POOL_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i],
                                              .msg_iovlen = 1,
                                              .msg_control = pool[i].control,
                                              .msg_controllen = sizeof pool[i].control};
    }
    e->calls++;
    return recvmmsg(e->socket, messages, batch, MSG_DONTWAIT, NULL);
}

/* Serves one client until its BYE. */
static void serve(struct end *e)
{
    static struct mmsghdr messages[BATCH];
    struct header config = {0}, reply = {0};
    struct sockaddr_storage peer;
    socklen_t peer_size = sizeof peer;
    unsigned char *destination = NULL;
    uint64_t received = 0, reported = 0, start_cpu = 0, quiet_since = now_ns();

    if (recvfrom(e->socket, &config, sizeof config, 0, (void *)&peer, &peer_size) < 0 ||
        connect(e->socket, (void *)&peer, peer_size) != 0)
        fail("first datagram");
    if (config.kind != HELLO || config.batch < 1 || config.batch > BATCH || config.window == 0) {
        errno = EPROTO;
        fail("first datagram");
    }
    destination = memory(config.bytes * config.window);
    reply.kind = HELLO;
    send_header(e, &reply);
    start_cpu = cpu_ns();
    e->calls = 0;

    for (bool block = config.block;;) {
        int count = receive_batch(e, messages, config.batch);
        if (count <= 0) {
            /* reading is the test for more; the first misses are spun away */
            if (block || now_ns() - quiet_since > SPIN_NS) {
                if (!readable(e, true, LOST_NS * 5ull)) {
                    errno = ETIMEDOUT;
                    fail("client");
                }
                quiet_since = now_ns();
            }
            continue;
        }
        quiet_since = now_ns();
        for (int i = 0; i < count; i++) {
            size_t length = messages[i].msg_len;
            size_t step = segment_size(&messages[i].msg_hdr, length);
            for (size_t at = 0; at + sizeof(struct header) <= length; at += step) {
                struct header h;
                memcpy(&h, pool[i].bytes + at, sizeof h);
                if (h.kind == DATA) {
                    memcpy(destination + h.message % config.window * config.bytes + h.offset,
                           pool[i].bytes + at + sizeof h, h.length);
                    received += h.length;
                } else if (h.kind == PING) {
                    send_header(e, &h);
                } else if (h.kind == HELLO) {
                    send_header(e, &reply);
                } else if (h.kind == BYE) {
                    reply.kind = BYE;
                    reply.cpu_ns = cpu_ns() - start_cpu;
                    reply.calls = e->calls;
                    for (int k = 0; k < 3; k++)
                        send_header(e, &reply);
                    return;
                }
            }
        }
        if (received - reported >= config.ack_every) {
            struct header ack = {.kind = ACK, .bytes = received};
            send_header(e, &ack);
            reported = received;
        }
    }
}

/* ---- the sending side ---- */

static void take_acks(struct end *e)
{
    struct header h;
    for (;;) {
        e->calls++;
        if (recv(e->socket, &h, sizeof h, MSG_DONTWAIT) < (ssize_t)sizeof h)
            return;
        if (h.kind == ACK && h.bytes > e->acked)
            e->acked = h.bytes;
    }
}

/* Repeats a question until the answer comes. */
static struct header ask(struct end *e, struct header question)
{
    struct header answer;
    for (int i = 0; i < 100; i++) {
        send_header(e, &question);
        while (readable(e, true, 100000000)) {
            if (recv(e->socket, &answer, sizeof answer, MSG_DONTWAIT) == sizeof answer && answer.kind == question.kind)
                return answer;
        }
    }
    errno = ETIMEDOUT;
    fail("server");
}

static void wait_for_room(struct end *e, uint64_t need)
{
    uint64_t start = now_ns();
    take_acks(e);
    while (e->sent + need - e->acked > e->opt.window_bytes) {
        readable(e, false, 100000000);
        take_acks(e);
        if (now_ns() - start > LOST_NS) {
            errno = 0;
            fprintf(stderr, "raw_udp: %llu bytes were lost; take a smaller --window-kb\n",
                    (unsigned long long)(e->sent - e->acked));
            exit(1);
        }
    }
}

/*
 * Sends one train: datagrams of one size, the last one of a message may be shorter. Returns with
 * `*message` and `*offset` moved on.
 */
static void send_train(struct end *e, const unsigned char *source, uint64_t *message, uint64_t *offset)
{
    static struct header headers[TRAIN_DATAGRAMS];
    static struct iovec parts[2 * TRAIN_DATAGRAMS];
    static unsigned char assembled[POOL_BYTES];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control;
    const struct options *o = &e->opt;
    uint64_t room = o->datagram_bytes - sizeof(struct header);
    uint64_t payload = o->raw.message_bytes < room ? o->raw.message_bytes : room;
    uint16_t size = (uint16_t)(payload + sizeof(struct header));
    uint64_t total = 0, data = 0;
    size_t count = 0;

    while (count < TRAIN_DATAGRAMS && total + size <= TRAIN_BYTES) {
        uint64_t left = o->raw.message_bytes - *offset;
        uint64_t length = left < payload ? left : payload;
        const unsigned char *from = source + *message % o->raw.messages_window * o->raw.message_bytes + *offset;
        headers[count] =
            (struct header){.kind = DATA, .length = (uint32_t)length, .message = *message, .offset = *offset};
        if (o->assemble) {
            memcpy(assembled + total, &headers[count], sizeof(struct header));
            memcpy(assembled + total + sizeof(struct header), from, length);
        } else {
            parts[2 * count] = (struct iovec){&headers[count], sizeof(struct header)};
            parts[2 * count + 1] = (struct iovec){(void *)from, length};
        }
        total += length + sizeof(struct header);
        data += length;
        count++;
        *offset += length;
        if (*offset == o->raw.message_bytes) {
            *offset = 0;
            ++*message;
        }
        if (length < payload) /* a shorter one ends a train */
            break;
    }
    if (o->assemble)
        parts[0] = (struct iovec){assembled, total};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = o->assemble ? 1 : 2 * count};
    if (count > 1) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof size);
        memcpy(CMSG_DATA(c), &size, sizeof size);
    }
    wait_for_room(e, data);
    e->calls++;
    if (sendmsg(e->socket, &m, 0) < 0)
        fail("sendmsg");
    e->sent += data;
}

static void measure_bandwidth(struct end *e)
{
    const struct options *o = &e->opt;
    unsigned char *source = memory(o->raw.message_bytes * o->raw.messages_window);
    struct header hello = {.kind = HELLO,
                           .bytes = o->raw.message_bytes,
                           .window = o->raw.messages_window,
                           .batch = (uint16_t)o->batch,
                           .ack_every = (uint32_t)(o->window_bytes / 8)};
    uint64_t message = 0, offset = 0;

    ask(e, hello);
    e->calls = 0;
    uint64_t start = now_ns(), end = start + (uint64_t)(o->raw.seconds * 1e9), start_cpu = cpu_ns();
    while (now_ns() < end || offset != 0)
        send_train(e, source, &message, &offset);
    uint64_t elapsed = now_ns() - start, cpu = cpu_ns() - start_cpu;
    struct header bye = ask(e, (struct header){.kind = BYE});
    raw_print_bandwidth(o->raw.message_bytes, message, (double)e->sent, elapsed, cpu + bye.cpu_ns,
                        e->calls + bye.calls);
}

static void measure_latency(struct end *e)
{
    enum { SAMPLES = 1 << 20 };
    static uint64_t samples[SAMPLES];
    struct header ping = {.kind = PING}, pong;
    char packet[sizeof ping + 8] = {0};
    size_t count = 0;

    memcpy(packet, &ping, sizeof ping);
    ask(e, (struct header){
               .kind = HELLO, .bytes = 8, .window = 1, .batch = 1, .block = e->opt.raw.block, .ack_every = 1u << 31});
    uint64_t end = now_ns() + (uint64_t)(e->opt.raw.seconds * 1e9);
    for (uint64_t t = now_ns(); t < end && count < SAMPLES; count++) {
        send(e->socket, packet, sizeof packet, 0);
        while (recv(e->socket, &pong, sizeof pong, e->opt.raw.block ? 0 : MSG_DONTWAIT) < 0)
            if (errno != EAGAIN)
                fail("recv");
        uint64_t after = now_ns();
        samples[count] = after - t;
        t = after;
    }
    ask(e, (struct header){.kind = BYE});
    raw_print_latency(samples, count);
}

/* ---- command line ---- */

static _Noreturn void usage(void)
{
    fputs("usage: raw_udp --listen PORT [--host ADDRESS] [--buffer-kb N]\n"
          "       raw_udp --connect HOST --port PORT [options]\n"
          "  --size BYTES        message size (1 MiB)\n"
          "  --window MESSAGES   buffers on both sides (16)\n"
          "  --datagram BYTES    datagram size with its 64-byte header (1472)\n"
          "  --window-kb N       bytes under way (1024)\n"
          "  --buffer-kb N       socket buffers (4096)\n"
          "  --batch N           trains received by one call, 1 to 16 (4)\n"
          "  --assemble          copy each train into one buffer before sending\n"
          "  --latency           ping-pong of 8 bytes\n"
          "  --block             sleep instead of spinning, with --latency\n"
          "  --seconds S         (1)\n",
          stderr);
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    static const struct option names[] = {RAW_OPTION_NAMES,
                                          {"datagram", 1, 0, 'd'},
                                          {"window-kb", 1, 0, 'k'},
                                          {"buffer-kb", 1, 0, 'b'},
                                          {"batch", 1, 0, 'n'},
                                          {"assemble", 0, 0, 'a'},
                                          {0}};
    struct options o = {
        .raw = {.port = "30050", .message_bytes = 1 << 20, .messages_window = 16, .seconds = 1},
        .datagram_bytes = 1472,
        .window_bytes = 1 << 20,
        .buffer_kb = 4096,
        .batch = 4,
    };

    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'd':
            o.datagram_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'k':
            o.window_bytes = strtoull(optarg, NULL, 10) * 1024;
            break;
        case 'b':
            o.buffer_kb = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            o.batch = strtoull(optarg, NULL, 10);
            break;
        case 'a':
            o.assemble = true;
            break;
        default:
            if (!raw_take_option(&o.raw, c, optarg))
                usage();
        }
    }
    if (optind != argc || !raw_options_fit(&o.raw) || o.datagram_bytes <= sizeof(struct header) ||
        o.datagram_bytes > TRAIN_BYTES || o.window_bytes < 128 * 1024 || o.batch < 1 || o.batch > BATCH)
        usage();
    return o;
}

int main(int argc, char **argv)
{
    static struct end e;

    e.opt = parse(argc, argv);
    open_socket(&e);
    if (e.opt.raw.listen) {
        puts("listening");
        fflush(stdout);
        serve(&e);
    } else if (e.opt.raw.latency) {
        measure_latency(&e);
    } else {
        measure_bandwidth(&e);
    }
    return 0;
}
