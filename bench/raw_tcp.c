/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_tcp: the ceiling that a transport over TCP sockets can reach on a machine. Two processes move messages over one
 * connection with as little work as is honest: both sides use as many buffers in turn as p2p_bench, a header of 64
 * bytes goes with each part of at most 256 KiB, up to 16 parts with a system call (with one each it moves a third
 * less), and the receiver reads the payload to where it belongs. iperf3 instead sends and receives one warm buffer.
 *
 *   raw_tcp --listen PORT                        serves one client and ends
 *   raw_tcp --connect HOST --port PORT [...]     measures; prints one line of name=value
 *
 * The latency mode plays ping-pong with 8 bytes, spinning or blocking. Each process has one thread.
 * The two ends are the same binary: the header is in host byte order.
 */
#define RAW_NAME "raw_tcp"
#include "raw.h"

#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PART_BYTES = 262144, CALL_PARTS = 16 };

enum kind { HELLO, DATA, BYE, PING };

/* in front of every part */
struct header {
    uint32_t kind;
    uint32_t length;  /* DATA: payload bytes; PING: none, the 8 bytes are in `bytes` */
    uint64_t message; /* DATA: number of the message */
    uint64_t offset;  /* DATA: in the message */
    uint64_t bytes;   /* HELLO: message size */
    uint64_t window;  /* HELLO: messages */
    uint64_t cpu_ns;  /* BYE: of the server */
    uint64_t calls;   /* BYE: system calls of the server */
    uint64_t block;   /* HELLO: sleep at once instead of spinning */
};
_Static_assert(sizeof(struct header) == 64, "header of 64 bytes");

static uint64_t calls;

static int open_socket(const struct raw_options *o)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *address;
    int on = 1;
    const char *host = o->listen && !o->host ? "::" : o->host;
    if (getaddrinfo(host, o->port, &hints, &address) != 0)
        fail("address");
    int fd = socket(address->ai_family, SOCK_STREAM, 0);
    if (fd < 0)
        fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (o->listen ? bind(fd, address->ai_addr, address->ai_addrlen) || listen(fd, 1)
                  : connect(fd, address->ai_addr, address->ai_addrlen))
        fail(o->listen ? "bind" : "connect");
    freeaddrinfo(address);
    if (o->listen) {
        puts("listening");
        fflush(stdout);
        int accepted = accept(fd, NULL, NULL);
        if (accepted < 0)
            fail("accept");
        close(fd);
        fd = accepted;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Takes the first `bytes` off `*pieces`; returns how many pieces are left. */
static size_t advance(struct iovec **pieces, size_t count, size_t bytes)
{
    for (; count > 0 && bytes >= (*pieces)->iov_len; ++*pieces, count--)
        bytes -= (*pieces)->iov_len;
    if (count > 0) {
        (*pieces)->iov_base = (char *)(*pieces)->iov_base + bytes;
        (*pieces)->iov_len -= bytes;
    }
    return count;
}

/* Writes all of `count` pieces, in as few calls as the kernel allows. */
static void write_all(int fd, struct iovec *pieces, size_t count)
{
    while (count > 0) {
        struct msghdr m = {.msg_iov = pieces, .msg_iovlen = count};
        calls++;
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (sent < 0)
            fail("sendmsg");
        count = advance(&pieces, count, (size_t)sent);
    }
}

static void write_header(int fd, const struct header *header)
{
    struct iovec piece = {(void *)(uintptr_t)header, sizeof *header};
    write_all(fd, &piece, 1);
}

/* Reads the rest of a part, and the header behind it. */
static void read_all(int fd, void *payload, size_t length, struct header *next)
{
    struct iovec parts[2] = {{payload, length}, {next, sizeof *next}}, *pieces = parts;
    for (size_t count = 2; count > 0;) {
        struct msghdr m = {.msg_iov = pieces, .msg_iovlen = count};
        calls++;
        ssize_t got = recvmsg(fd, &m, 0);
        if (got == 0)
            errno = ECONNRESET;
        if (got <= 0)
            fail("recvmsg");
        count = advance(&pieces, count, (size_t)got);
    }
}

/* Reads a header, spinning unless told to block. */
static void await(int fd, struct header *header, bool block)
{
    size_t have = 0;
    while (have < sizeof *header) {
        calls++;
        ssize_t got = recv(fd, (char *)header + have, sizeof *header - have, block ? 0 : MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            fail("recv");
        have += got > 0 ? (size_t)got : 0;
    }
}

static void serve(int fd)
{
    struct header hello, header;
    read_all(fd, NULL, 0, &hello);
    unsigned char *destination = memory(hello.bytes * hello.window);
    uint64_t start_cpu = cpu_ns();
    read_all(fd, NULL, 0, &header);
    while (header.kind == DATA || header.kind == PING) {
        if (header.kind == PING) {
            write_header(fd, &header);
            await(fd, &header, hello.block);
            continue;
        }
        read_all(fd, destination + header.message % hello.window * hello.bytes + header.offset, header.length, &header);
    }
    header.cpu_ns = cpu_ns() - start_cpu;
    header.calls = calls;
    write_header(fd, &header);
}

/* Writes the next parts of a message in one call; returns the offset behind them. */
static uint64_t write_parts(int fd, uint64_t message, const unsigned char *from, uint64_t offset, uint64_t bytes)
{
    struct header headers[CALL_PARTS];
    struct iovec pieces[2 * CALL_PARTS];
    size_t parts = 0;
    for (; parts < CALL_PARTS && offset < bytes; parts++) {
        uint64_t length = bytes - offset < PART_BYTES ? bytes - offset : PART_BYTES;
        headers[parts] =
            (struct header){.kind = DATA, .length = (uint32_t)length, .message = message, .offset = offset};
        pieces[2 * parts] = (struct iovec){&headers[parts], sizeof headers[parts]};
        pieces[2 * parts + 1] = (struct iovec){(void *)(uintptr_t)(from + offset), length};
        offset += length;
    }
    write_all(fd, pieces, 2 * parts);
    return offset;
}

static void measure_bandwidth(int fd, const struct raw_options *o)
{
    unsigned char *source = memory(o->message_bytes * o->messages_window);
    struct header hello = {.kind = HELLO, .bytes = o->message_bytes, .window = o->messages_window};
    struct header bye = {.kind = BYE};
    uint64_t message = 0;
    write_header(fd, &hello);
    calls = 0;
    uint64_t start = now_ns(), end = start + (uint64_t)(o->seconds * 1e9);
    uint64_t start_cpu = cpu_ns();
    for (; now_ns() < end; message++) {
        const unsigned char *from = source + message % o->messages_window * o->message_bytes;
        for (uint64_t offset = 0; offset < o->message_bytes;)
            offset = write_parts(fd, message, from, offset, o->message_bytes);
    }
    write_header(fd, &bye);
    read_all(fd, NULL, 0, &bye); /* all has arrived */
    uint64_t elapsed = now_ns() - start, cpu = cpu_ns() - start_cpu;
    raw_print_bandwidth(o->message_bytes, message, (double)message * (double)o->message_bytes, elapsed,
                        cpu + bye.cpu_ns, calls + bye.calls);
}

static void measure_latency(int fd, const struct raw_options *o)
{
    enum { SAMPLES = 1 << 20 };
    static uint64_t samples[SAMPLES];
    struct header ping = {.kind = PING}, pong;
    struct header hello = {.kind = HELLO, .bytes = 8, .window = 1, .block = o->block}, bye = {.kind = BYE};
    size_t count = 0;
    write_header(fd, &hello);
    uint64_t end = now_ns() + (uint64_t)(o->seconds * 1e9);
    for (uint64_t t = now_ns(); t < end && count < SAMPLES; count++) {
        write_header(fd, &ping);
        await(fd, &pong, o->block);
        uint64_t after = now_ns();
        samples[count] = after - t;
        t = after;
    }
    write_header(fd, &bye);
    read_all(fd, NULL, 0, &bye);
    raw_print_latency(samples, count);
}

static _Noreturn void usage(void)
{
    fputs("usage: raw_tcp --listen PORT [--host ADDRESS]\n"
          "       raw_tcp --connect HOST --port PORT [options]\n"
          "  --size BYTES        message size (1 MiB)\n"
          "  --window MESSAGES   buffers on both sides (16)\n"
          "  --latency           ping-pong of 8 bytes\n"
          "  --block             sleep instead of spinning, with --latency\n"
          "  --seconds S         (1)\n",
          stderr);
    exit(2);
}

static struct raw_options parse(int argc, char **argv)
{
    static const struct option names[] = {RAW_OPTION_NAMES, {0}};
    struct raw_options o = {.port = "30051", .message_bytes = 1 << 20, .messages_window = 16, .seconds = 1};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;)
        if (!raw_take_option(&o, c, optarg))
            usage();
    if (optind != argc || !raw_options_fit(&o))
        usage();
    return o;
}

int main(int argc, char **argv)
{
    struct raw_options options = parse(argc, argv);
    int fd = open_socket(&options);
    if (options.listen)
        serve(fd);
    else if (options.latency)
        measure_latency(fd, &options);
    else
        measure_bandwidth(fd, &options);
    return 0;
}
