/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the public API share: two engines in one process that are connected through the
 * public calls alone, on loopback; contents that depend on message number and offset; and tests that
 * run once with lent engines and once with engine threads of their own.
 */
#ifndef UCCL_TEST_API_PAIR_H
#define UCCL_TEST_API_PAIR_H

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../entries.h"
#include "uccl/engine.h"

enum { TIMEOUT_S = 60, SOON_MS = 10000 };

/* For uccl_set_log(), where messages are expected and nobody looks at them. */
static inline void log_nothing(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

/* What the kernel counts for this process, before a test and after it. */
static unsigned house_descriptors, house_threads;

static inline unsigned house_mappings(void)
{
    unsigned count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = getc(maps)) != EOF;)
        count += c == '\n';
    if (maps)
        fclose(maps);
    return count;
}

static inline void house_note(void)
{
    house_descriptors = entries_of("/proc/self/fd");
    house_threads = entries_of("/proc/self/task");
}

/* A thread that has been joined may be listed for a moment. */
static inline void house_check(void)
{
    struct timespec moment = {0, 1000000};
    for (int tries = 0; tries < 2000 && entries_of("/proc/self/task") > house_threads; tries++)
        nanosleep(&moment, NULL);
    cr_assert_eq(entries_of("/proc/self/task"), house_threads, "%u threads, not %u", entries_of("/proc/self/task"),
                 house_threads);
    cr_assert_eq(entries_of("/proc/self/fd"), house_descriptors, "%u descriptors, not %u", entries_of("/proc/self/fd"),
                 house_descriptors);
}

/*
 * A test that runs in both modes; its body gets the value of UCCL_LEND. It leaves as many threads and descriptors as it
 * has found.
 */
#define BOTH(suite, name)                                                                                              \
    static void suite##_##name(const char *lend);                                                                      \
    Test(suite, name##_lent, .timeout = TIMEOUT_S)                                                                     \
    {                                                                                                                  \
        house_note();                                                                                                  \
        suite##_##name("yes");                                                                                         \
        house_check();                                                                                                 \
    }                                                                                                                  \
    Test(suite, name##_threads, .timeout = TIMEOUT_S)                                                                  \
    {                                                                                                                  \
        house_note();                                                                                                  \
        suite##_##name("no");                                                                                          \
        house_check();                                                                                                 \
    }                                                                                                                  \
    static void suite##_##name(const char *lend)

#define IS(expression, expected)                                                                                       \
    do {                                                                                                               \
        int is_ = (expression), expected_ = (expected);                                                                \
        cr_assert(is_ == expected_, "%s is %d (%s), not %d", #expression, is_, uccl_strerror(is_), expected_);         \
    } while (0)

struct pair {
    uccl_engine *engine[2];
    uccl_listener *listener; /* of engine 1 */
    struct uccl_handle handle;
    uccl_conn *conn[2];
};

static inline uint64_t counter_of(const uccl_engine *engine, const char *name)
{
    uint64_t value = 0;
    IS(uccl_counter_by_name(engine, name, &value), 0);
    return value;
}

static inline uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline void sleep_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static inline uint8_t content(unsigned number, size_t offset)
{
    return (uint8_t)(number * 131 + offset * 7 + (offset >> 8) * 13 + (offset >> 16) * 31);
}

static inline void fill(uint8_t *buffer, size_t length, unsigned number)
{
    for (size_t i = 0; i < length; i++)
        buffer[i] = content(number, i);
}

static inline void check(const uint8_t *buffer, size_t length, unsigned number)
{
    for (size_t i = 0; i < length; i++)
        cr_assert(buffer[i] == content(number, i), "message %u is wrong at byte %zu", number, i);
}

/* Settings: pairs of name and value, NULL at the end. */
static inline uccl_engine *open_engine(const char *lend, ...)
{
    uccl_config *config;
    uccl_engine *engine = NULL;
    const char *name;
    va_list settings;
    IS(uccl_config_create(&config), 0);
    IS(uccl_config_set(config, "LEND", lend), 0);
    IS(uccl_config_set(config, "SOCKET_IFNAME", "lo"), 0);
    va_start(settings, lend);
    while ((name = va_arg(settings, const char *)))
        IS(uccl_config_set(config, name, va_arg(settings, const char *)), 0);
    va_end(settings);
    IS(uccl_open(config, &engine), 0);
    uccl_config_destroy(config);
    return engine;
}

/* Connects without ever blocking; the handle is as uccl_listen() wrote it, and still is afterwards. */
static inline void connect_now(uccl_engine *engine, struct uccl_handle *handle, uccl_listener *listener,
                               uccl_conn *conn[2])
{
    int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
    uint64_t end_ms = now_ms() + SOON_MS;
    conn[0] = conn[1] = NULL;
    while (connected == UCCL_EAGAIN || accepted == UCCL_EAGAIN) {
        if (connected == UCCL_EAGAIN)
            connected = uccl_connect(engine, handle, 0, &conn[0]);
        if (accepted == UCCL_EAGAIN)
            accepted = uccl_accept(listener, 0, &conn[1]);
        cr_assert(now_ms() < end_ms, "connect %d, accept %d", connected, accepted);
    }
    IS(connected, 0);
    IS(accepted, 0);
}

static inline void pair_connect(struct pair *pair)
{
    IS(uccl_listen(pair->engine[1], 0, 0, &pair->handle, &pair->listener), 0);
    connect_now(pair->engine[0], &pair->handle, pair->listener, pair->conn);
}

static inline void pair_open(struct pair *pair, const char *lend)
{
    for (int i = 0; i < 2; i++)
        pair->engine[i] = open_engine(lend, "LINGER_MS", "300", NULL);
    pair_connect(pair);
}

static inline void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        IS(uccl_close(pair->engine[i]), 0);
}

static inline uccl_request *post_send(uccl_conn *conn, const void *buffer, size_t length)
{
    uccl_request *request = NULL;
    IS(uccl_send_async(conn, buffer, length, NULL, &request), 0);
    return request;
}

static inline uccl_request *post_recv(uccl_conn *conn, void *buffer, size_t length)
{
    uccl_request *request = NULL;
    IS(uccl_recv_async(conn, buffer, length, NULL, &request), 0);
    return request;
}

/* Waits for the end of a request, which must come soon, with this status. */
static inline size_t end_of(uccl_request *request, int status)
{
    size_t bytes = 0xdead;
    IS(uccl_wait(request, SOON_MS, &bytes), status);
    return bytes;
}

/* One message over a connection, in one direction, received into a buffer of just its size. */
static inline void exchange(uccl_conn *from, uccl_conn *to, size_t length, unsigned number)
{
    uint8_t *sent = malloc(length + 1), *received = malloc(length + 1);
    fill(sent, length, number);
    memset(received, 0, length + 1);
    uccl_request *recv = post_recv(to, received, length);
    uccl_request *send = post_send(from, sent, length);
    cr_assert(end_of(recv, 0) == length);
    cr_assert(end_of(send, 0) == length);
    check(received, length, number);
    cr_assert(received[length] == 0);
    free(sent);
    free(received);
}

#endif
