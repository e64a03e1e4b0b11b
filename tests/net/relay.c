/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bad network in user space: joins the TUN devices tun0 of two namespaces (netns.sh tun) and
 * plays loss, duplication, corruption, delay, reordering and a rate limit on every IP packet. A TUN
 * device has no segmentation offload, so each packet is one datagram. About 1 Gbit/s.
 *
 * Loss, duplication and corruption hit UDP alone: TCP carries the bootstrap and would only make
 * tests slow. Corruption flips one bit of the UDP payload and clears the checksum (IPv4), so that
 * the packet gets past the kernel and the receiver's own checks must see it.
 *
 * With --firewall the second namespace is behind a stateful firewall: a UDP or TCP packet gets there only if one has
 * left from there with the same addresses and ports the other way round. With --firewalls the first one is too, where
 * servers run: TCP may come in there, and UDP only as an answer. With --nat the second namespace has another address
 * outside, which is put into what leaves from there, and replaced in what comes: outside nobody sees its own.
 *
 * Of the engine's datagrams it counts those that each namespace sent again: with a number that was there before.
 *
 * With --hole UDP packets above a size vanish (--hole-tcp: so do those of TCP), in both directions or on their way to
 * one namespace (--hole-to); at SIGUSR1 the hole opens if it is closed (--hole-later: as it is at first), and closes if
 * it is open.
 *
 * Prints "ready" once both devices are open, and one line of counts at SIGTERM or SIGINT. One
 * thread. The random numbers are seeded (--seed) but packet order is up to the kernel, so a seed
 * repeats the distribution, not the run.
 */
#include "../sim/repeats.h"
#include "core/crc32c.h"
#include "core/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKET_MAX = 65536, READS_PER_ROUND = 64, QUEUE_MAX = 65536 };
enum { FLOW_BYTES = 37, FLOWS_MAX = 4096 };
enum { NAT_INSIDE = 2, NAT_OUTSIDE = 77 };      /* last byte of the addresses */
enum { QUEUE_DELAY_MAX_NS = 50 * 1000 * 1000 }; /* a rate-limited link drops beyond this */

struct options {
    const char *ns[2];
    double loss, duplicate, corrupt, reorder; /* probabilities, 0..1 */
    uint64_t delay_ns, jitter_ns;
    double rate_mbit; /* 0: no limit */
    uint64_t seed;
    bool firewall[2]; /* in front of namespace ... */
    bool nat;
    size_t hole_bytes; /* of an IP packet; 0: no hole */
    int hole_to;       /* index of the device; -1: both */
    bool hole_tcp;     /* TCP's vanish, too */
};

/* protocol, addresses, ports; of IPv4 addresses the first four bytes are used */
struct flow {
    unsigned char bytes[FLOW_BYTES];
};

/* a packet that waits for its time */
struct held {
    uint64_t due_ns;
    uint64_t order; /* equal times leave in order of arrival */
    int to;         /* index of the device */
    size_t length;
    unsigned char *bytes;
};

struct relay {
    struct options opt;
    int tun[2];
    uint64_t free_ns[2]; /* when the rate-limited link towards each device is free again */
    struct held *heap;   /* binary heap, earliest first */
    size_t count;
    uint64_t order;
    uint64_t random;
    struct flow flows[FLOWS_MAX]; /* answers to what has left from behind a firewall */
    size_t flow_count;
    uint64_t refused;
    struct repeats repeats[2]; /* of what each namespace has sent */
    uint64_t packets, vanished, lost, duplicated, corrupted, delayed, overflow, write_errors;
};

static volatile sig_atomic_t stop, hole_is_closed;

static void on_signal(int number)
{
    stop = 1;
}

static void on_turn(int number)
{
    hole_is_closed = !hole_is_closed;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* xorshift64: uniform in [0, 1) */
static double draw(struct relay *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return (double)(r->random >> 11) / 9007199254740992.0;
}

static void enter_namespace(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        fail(path);
    close(fd);
}

static int open_tun(const char *namespace)
{
    enter_namespace(namespace);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "tun0");
    if (ioctl(fd, TUNSETIFF, &request) != 0)
        fail("TUNSETIFF tun0");
    return fd;
}

static bool earlier(const struct held *a, const struct held *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void hold(struct relay *r, struct held item)
{
    size_t i = r->count++;
    for (; i > 0 && earlier(&item, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = item;
}

static struct held release(struct relay *r)
{
    struct held first = r->heap[0], last = r->heap[--r->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= r->count)
            break;
        if (child + 1 < r->count && earlier(&r->heap[child + 1], &r->heap[child]))
            child++;
        if (!earlier(&r->heap[child], &last))
            break;
        r->heap[i] = r->heap[child];
        i = child;
    }
    r->heap[i] = last;
    return first;
}

static void deliver(struct relay *r, int to, const unsigned char *bytes, size_t length)
{
    if (write(r->tun[to], bytes, length) != (ssize_t)length)
        r->write_errors++;
}

/* offset of the UDP header, 0 when the packet is something else */
static size_t udp_offset(const unsigned char *p, size_t length)
{
    if (length >= 28 && p[0] >> 4 == 4 && p[9] == 17)
        return (size_t)(p[0] & 15) * 4;
    if (length >= 48 && p[0] >> 4 == 6 && p[6] == 17)
        return 40;
    return 0;
}

static void flip_bit(struct relay *r, unsigned char *p, size_t length, size_t udp)
{
    if (p[0] >> 4 != 4 || length <= udp + 8)
        return;
    size_t bit = (size_t)(draw(r) * (double)((length - udp - 8) * 8));
    p[udp + 8 + bit / 8] ^= (unsigned char)(1 << bit % 8);
    p[udp + 6] = p[udp + 7] = 0; /* no checksum */
    r->corrupted++;
}

/* When a packet that arrives now leaves; 0: the rate-limited queue is full. */
static uint64_t departure(struct relay *r, int to, size_t length, uint64_t now)
{
    uint64_t due = now;
    if (r->opt.rate_mbit > 0) {
        uint64_t cost = (uint64_t)((double)length * 8e3 / r->opt.rate_mbit);
        uint64_t start = r->free_ns[to] > now ? r->free_ns[to] : now;
        if (start - now > QUEUE_DELAY_MAX_NS)
            return 0;
        r->free_ns[to] = due = start + cost;
    }
    due += r->opt.delay_ns;
    if (r->opt.jitter_ns && draw(r) < r->opt.reorder) {
        due += (uint64_t)(draw(r) * (double)r->opt.jitter_ns);
        r->delayed++;
    }
    return due;
}

/* False: it belongs to no flow that a firewall keeps account of. `answer`: the other way round. */
static bool flow_of(const unsigned char *p, size_t length, bool answer, struct flow *flow)
{
    size_t v6 = p[0] >> 4 == 6, bytes = v6 ? 16 : 4, at = v6 ? 8 : 12, ports = v6 ? 40 : (size_t)(p[0] & 15) * 4;
    unsigned char protocol = p[v6 ? 6 : 9];

    if (length < ports + 4 || (protocol != 6 && protocol != 17))
        return false;
    *flow = (struct flow){{protocol}};
    memcpy(flow->bytes + (answer ? 17 : 1), p + at, bytes);
    memcpy(flow->bytes + (answer ? 1 : 17), p + at + bytes, bytes);
    memcpy(flow->bytes + (answer ? 35 : 33), p + ports, 2);
    memcpy(flow->bytes + (answer ? 33 : 35), p + ports + 2, 2);
    return true;
}

static bool is_known(const struct relay *r, const struct flow *flow)
{
    for (size_t i = 0; i < r->flow_count; i++)
        if (memcmp(&r->flows[i], flow, sizeof *flow) == 0)
            return true;
    return false;
}

/* What leaves through a firewall opens it for answers. To each side come other flows, so that one table does for both.
 */
static bool passes(struct relay *r, int to, const unsigned char *packet, size_t length)
{
    struct flow flow, answer;
    bool known = flow_of(packet, length, false, &flow), tcp = flow.bytes[0] == IPPROTO_TCP;

    if (!known)
        return true;
    flow_of(packet, length, true, &answer);
    if (r->opt.firewall[!to] && !is_known(r, &answer) && r->flow_count < FLOWS_MAX)
        r->flows[r->flow_count++] = answer;
    return !r->opt.firewall[to] || is_known(r, &flow) || (to == 0 && tcp);
}

/* Adds to a checksum of RFC 1071 what `bytes` new ones in place of old ones change. */
static void fix_checksum(unsigned char *sum, const unsigned char *old, const unsigned char *new, size_t bytes)
{
    uint32_t value = (uint16_t) ~(sum[0] << 8 | sum[1]);

    for (size_t i = 0; i < bytes; i += 2)
        value += (uint16_t) ~(old[i] << 8 | old[i + 1]) + (uint32_t)(new[i] << 8 | new[i + 1]);
    while (value >> 16)
        value = (value & 0xffff) + (value >> 16);
    value = ~value;
    sum[0] = (unsigned char)(value >> 8);
    sum[1] = (unsigned char)value;
}

/* Puts the outer address in place of the inner one, or the other way round: .2 is .77 outside, of both families. */
static void translate(int to, unsigned char *p, size_t length)
{
    size_t v6 = p[0] >> 4 == 6, bytes = v6 ? 16 : 4, head = v6 ? 40 : (size_t)(p[0] & 15) * 4;
    size_t at = (v6 ? 8 : 12) + (to == 0 ? 0 : bytes), last = at + bytes - 1;
    unsigned char protocol = p[v6 ? 6 : 9], old[16], from = to == 0 ? NAT_INSIDE : NAT_OUTSIDE;

    if (length < head + 20 - (protocol == IPPROTO_UDP ? 12 : 0) || p[last] != from)
        return;
    memcpy(old, p + at, bytes);
    p[last] = to == 0 ? NAT_OUTSIDE : NAT_INSIDE;
    if (!v6)
        fix_checksum(p + 10, old, p + at, bytes);
    if (protocol == IPPROTO_TCP)
        fix_checksum(p + head + 16, old, p + at, bytes);
    if (protocol == IPPROTO_UDP && (p[head + 6] || p[head + 7]))
        fix_checksum(p + head + 6, old, p + at, bytes);
}

static void note_repeat(struct repeats *repeats, const unsigned char *datagram, size_t length)
{
    struct wire_packet packet;

    if (wire_open(datagram, length, crc32c_portable, &packet) && packet.flags & WIRE_SEQUENCED)
        repeats_note_datagram(repeats, packet.token, packet.seq, packet.index);
}

static void forward(struct relay *r, int to, unsigned char *packet, size_t length, uint64_t now)
{
    size_t udp = udp_offset(packet, length);
    int copies = 1;

    r->packets++;
    if (r->opt.nat && to == 0)
        translate(to, packet, length);
    if (!passes(r, to, packet, length)) {
        r->refused++;
        return;
    }
    if ((udp || r->opt.hole_tcp) && r->opt.hole_bytes && length > r->opt.hole_bytes && !hole_is_closed &&
        r->opt.hole_to != !to) {
        r->vanished++;
        return;
    }
    if (r->opt.nat && to == 1)
        translate(to, packet, length);
    if (udp) {
        if (length > udp + 8)
            note_repeat(&r->repeats[!to], packet + udp + 8, length - udp - 8);
        if (draw(r) < r->opt.loss) {
            r->lost++;
            return;
        }
        if (draw(r) < r->opt.duplicate) {
            r->duplicated++;
            copies = 2;
        }
        if (draw(r) < r->opt.corrupt)
            flip_bit(r, packet, length, udp);
    }
    for (; copies > 0; copies--) {
        uint64_t due = departure(r, to, length, now);
        if (due == 0 || r->count == QUEUE_MAX) {
            r->overflow++;
        } else if (due <= now) {
            deliver(r, to, packet, length);
        } else {
            unsigned char *bytes = malloc(length);
            if (!bytes)
                fail("malloc");
            memcpy(bytes, packet, length);
            hold(r, (struct held){due, r->order++, to, length, bytes});
        }
    }
}

static void run(struct relay *r)
{
    static unsigned char packet[PACKET_MAX];

    while (!stop) {
        uint64_t now = now_ns();
        bool busy = false;
        for (int from = 0; from < 2; from++) {
            for (int i = 0; i < READS_PER_ROUND; i++) {
                ssize_t length = read(r->tun[from], packet, sizeof packet);
                if (length <= 0)
                    break;
                forward(r, !from, packet, (size_t)length, now);
                busy = true;
            }
        }
        for (now = now_ns(); r->count && r->heap[0].due_ns <= now; busy = true) {
            struct held item = release(r);
            deliver(r, item.to, item.bytes, item.length);
            free(item.bytes);
        }
        if (!busy) {
            uint64_t wait = r->count ? r->heap[0].due_ns - now : 100000000;
            struct timespec limit = {(time_t)(wait / 1000000000), (long)(wait % 1000000000)};
            struct pollfd fds[2] = {{r->tun[0], POLLIN, 0}, {r->tun[1], POLLIN, 0}};
            ppoll(fds, 2, &limit, NULL);
        }
    }
}

static double number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value < 0) {
        fprintf(stderr, "relay: not a number: %s\n", text);
        exit(2);
    }
    return value;
}

static _Noreturn void usage(void)
{
    fputs("usage: relay [options] NAMESPACE NAMESPACE\n"
          "  --loss PERCENT       UDP packets dropped\n"
          "  --dup PERCENT        UDP packets sent twice\n"
          "  --corrupt PERCENT    UDP packets with one flipped bit (IPv4)\n"
          "  --delay-us N         constant delay\n"
          "  --jitter-us N        further random delay, 0 to N ...\n"
          "  --reorder PERCENT    ... of so many packets (default 100)\n"
          "  --rate-mbit N        bandwidth in each direction\n"
          "  --hole BYTES         larger UDP packets vanish (SIGUSR1: no more, or again)\n"
          "  --hole-to 0|1        ... on their way to that namespace alone\n"
          "  --hole-tcp           ... and those of TCP\n"
          "  --hole-later         ... only after a SIGUSR1\n"
          "  --firewall           in front of the second namespace: answers alone pass\n"
          "  --firewalls          in front of the first one too, where TCP passes\n"
          "  --nat                the second one's address (.2) is .77 outside\n"
          "  --seed N\n",
          stderr);
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"loss", 1, 0, 'l'},      {"dup", 1, 0, 'd'},        {"corrupt", 1, 0, 'c'},   {"delay-us", 1, 0, 't'},
        {"jitter-us", 1, 0, 'j'}, {"reorder", 1, 0, 'o'},    {"rate-mbit", 1, 0, 'r'}, {"seed", 1, 0, 's'},
        {"firewall", 0, 0, 'f'},  {"firewalls", 0, 0, 'F'},  {"nat", 0, 0, 'n'},       {"hole", 1, 0, 'h'},
        {"hole-to", 1, 0, 'H'},   {"hole-later", 0, 0, 'L'}, {"hole-tcp", 0, 0, 'T'},  {0}};
    struct options opt = {.reorder = 1, .seed = 1, .hole_to = -1};

    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'l':
            opt.loss = number(optarg) / 100;
            break;
        case 'd':
            opt.duplicate = number(optarg) / 100;
            break;
        case 'c':
            opt.corrupt = number(optarg) / 100;
            break;
        case 't':
            opt.delay_ns = (uint64_t)(number(optarg) * 1e3);
            break;
        case 'j':
            opt.jitter_ns = (uint64_t)(number(optarg) * 1e3);
            break;
        case 'o':
            opt.reorder = number(optarg) / 100;
            break;
        case 'r':
            opt.rate_mbit = number(optarg);
            break;
        case 'F':
            opt.firewall[0] = true; /* fall through */
        case 'f':
            opt.firewall[1] = true;
            break;
        case 'n':
            opt.nat = true;
            break;
        case 'h':
            opt.hole_bytes = (size_t)number(optarg);
            break;
        case 'H':
            opt.hole_to = (int)number(optarg);
            break;
        case 'T':
            opt.hole_tcp = true;
            break;
        case 'L':
            hole_is_closed = 1;
            break;
        case 's':
            opt.seed = (uint64_t)number(optarg);
            break;
        default:
            usage();
        }
    }
    if (optind != argc - 2)
        usage();
    opt.ns[0] = argv[optind];
    opt.ns[1] = argv[optind + 1];
    return opt;
}

int main(int argc, char **argv)
{
    static struct relay r;
    struct sigaction action = {.sa_handler = on_signal};

    r.opt = parse(argc, argv);
    r.random = r.opt.seed * 0x9e3779b97f4a7c15u | 1;
    r.heap = malloc(QUEUE_MAX * sizeof *r.heap);
    if (!r.heap)
        fail("malloc");
    for (int i = 0; i < 2; i++)
        r.tun[i] = open_tun(r.opt.ns[i]);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    action.sa_handler = on_turn;
    sigaction(SIGUSR1, &action, NULL);
    puts("ready");
    fflush(stdout);
    run(&r);
    printf("packets %llu lost %llu duplicated %llu corrupted %llu delayed %llu overflow %llu "
           "write_errors %llu refused %llu first_repeats %llu second_repeats %llu vanished %llu\n",
           (unsigned long long)r.packets, (unsigned long long)r.lost, (unsigned long long)r.duplicated,
           (unsigned long long)r.corrupted, (unsigned long long)r.delayed, (unsigned long long)r.overflow,
           (unsigned long long)r.write_errors, (unsigned long long)r.refused, (unsigned long long)r.repeats[0].count,
           (unsigned long long)r.repeats[1].count, (unsigned long long)r.vanished);
    return 0;
}
