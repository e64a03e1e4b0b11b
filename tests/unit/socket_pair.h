/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of both backends over sockets share: a message whose bytes are known, addresses, the time. */
#ifndef UCCL_TEST_SOCKET_PAIR_H
#define UCCL_TEST_SOCKET_PAIR_H

#include "nic/nic.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A message whose bytes are `bytes`; `hidden`: payload() refuses, as for memory the CPU cannot read. */
struct test_msg {
    struct core_msg core;
    uint8_t *bytes;
    bool hidden;
};

static inline struct test_msg make_message(size_t size)
{
    struct test_msg msg = {.core.size_bytes = size, .bytes = malloc(size)};
    for (size_t i = 0; i < size; i++)
        msg.bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    return msg;
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline const void *test_payload(const struct core_msg *msg, uint64_t offset)
{
    const struct test_msg *test = (const struct test_msg *)msg;
    return test->hidden ? NULL : test->bytes + offset;
}

static inline void test_gather(void *to, const struct core_msg *msg, uint64_t offset, size_t length)
{
    memcpy(to, ((const struct test_msg *)msg)->bytes + offset, length);
}

static inline union nic_address address_of(const char *text)
{
    union nic_address out = {0};
    if (inet_pton(AF_INET, text, &out.v4.sin_addr) == 1) {
        out.v4.sin_family = AF_INET;
    } else {
        cr_assert_eq(inet_pton(AF_INET6, text, &out.v6.sin6_addr), 1);
        out.v6.sin6_family = AF_INET6;
    }
    return out;
}

#endif
