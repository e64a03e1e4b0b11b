/* SPDX-License-Identifier: Apache-2.0 */
/* What the stress programs share. They are plain mains, since Criterion dies under TSan. */
#ifndef UCCL_STRESS_H
#define UCCL_STRESS_H

#include "base/race_point.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Ends the whole program, from any thread. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void sleep_us(uint64_t us)
{
    struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

/* splitmix64 (Steele, Lea, Flood 2014): small, seeded, the same everywhere. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Output is TAP: the plan first, a line when each case has ended. tests/expected.py reads CASES from the source, so
 * that a program which ends early is seen. */
static inline void begin_cases(int count)
{
    printf("1..%d\n", count);
    fflush(stdout);
}

/* What stands behind "ok - ". */
__attribute__((format(printf, 1, 2))) static inline void end_case(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("ok - ", stdout);
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    va_end(arguments);
}

/* Delays at marked points, where the build has them (race_point.h): at one visit in `one_in`. */
static inline void delay_one_in(uint64_t seed, uint32_t one_in)
{
#ifdef UCCL_RACE_POINTS
    race_points_begin(seed | 1, one_in);
#else
    (void)seed;
    (void)one_in;
#endif
}

/* The seed, of delays at marked points too: argv[1], else from the clock; printed, so that a failure can be replayed as
 * far as threads let it. */
static inline uint64_t seed_of(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : now_ns();
    delay_one_in(seed, 4);
    printf("# seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

#endif
