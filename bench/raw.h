/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that show the ceiling of sockets share (raw_udp.c, raw_tcp.c): options, clocks, memory, figures. */
#ifndef UCCL_BENCH_RAW_H
#define UCCL_BENCH_RAW_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct raw_options {
    const char *host;
    const char *port;
    bool listen, latency, block;
    uint64_t message_bytes, messages_window;
    double seconds;
};

#define RAW_OPTION_NAMES                                                                                               \
    {"listen", 1, 0, 'l'}, {"connect", 1, 0, 'c'}, {"host", 1, 0, 'c'}, {"port", 1, 0, 'p'}, {"size", 1, 0, 's'},      \
        {"window", 1, 0, 'w'}, {"latency", 0, 0, 't'}, {"block", 0, 0, 'B'},                                           \
    {                                                                                                                  \
        "seconds", 1, 0, 'S'                                                                                           \
    }

/* Takes one of these options. False: `letter` is another. */
static inline bool raw_take_option(struct raw_options *o, int letter, char *value)
{
    switch (letter) {
    case 'l':
        o->listen = true;
        o->port = value;
        return true;
    case 'c':
        o->host = value;
        return true;
    case 'p':
        o->port = value;
        return true;
    case 's':
        o->message_bytes = strtoull(value, NULL, 10);
        return true;
    case 'w':
        o->messages_window = strtoull(value, NULL, 10);
        return true;
    case 't':
        return o->latency = true;
    case 'B':
        return o->block = true;
    case 'S':
        o->seconds = strtod(value, NULL);
        return true;
    default:
        return false;
    }
}

static inline bool raw_options_fit(const struct raw_options *o)
{
    return (o->listen || o->host) && o->message_bytes != 0 && o->messages_window != 0 && o->seconds > 0;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", RAW_NAME, what, errno ? strerror(errno) : "failed");
    exit(1);
}

static inline uint64_t raw_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void)
{
    return raw_clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t cpu_ns(void)
{
    return raw_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static inline unsigned char *memory(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
        fail("memory for the messages");
    return p;
}

/* `cpu` and `calls`: of both sides. */
static inline void raw_print_bandwidth(uint64_t message_bytes, uint64_t messages, double bytes, uint64_t elapsed,
                                       uint64_t cpu, uint64_t calls)
{
    double gib = bytes / (1 << 30);
    printf("size_bytes=%llu gbytes_per_s=%.3f msgs_per_s=%.0f cpu_s_per_gib=%.3f calls_per_mib=%.2f\n",
           (unsigned long long)message_bytes, bytes / (double)elapsed, (double)messages * 1e9 / (double)elapsed,
           (double)cpu / 1e9 / gib, (double)calls / gib / 1024);
}

static inline int raw_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Round trips, in ns. */
static inline void raw_print_latency(uint64_t *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, raw_compare);
    printf("size_bytes=8 lat_us_p50=%.3f lat_us_p99=%.3f\n", (double)samples[count / 2] / 2e3,
           (double)samples[count * 99 / 100] / 2e3);
}

#endif
