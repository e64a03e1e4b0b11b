/* SPDX-License-Identifier: Apache-2.0 */
/* Writes whose bytes leave behind their WRITE, between whole engines. */
#include "onesided_pair.h"

enum { BYTES = 1 << 20 };

/* The target reads a WRITE before the bytes behind it, though they arrive together. */
BOTH(onesided_ahead, bytes_find_their_receive)
{
    enum { WRITES = 200 };
    static const size_t sizes[] = {8193, 16384, 65536, 200000, BYTES};
    struct one one;
    uccl_request *requests[8];
    one_open(&one, lend, BYTES, ALL);
    for (unsigned i = 0; i < WRITES; i++) {
        size_t size = sizes[i % 5];
        unsigned count = 1 + i % 8;
        memset(one.local, (int)i + 1, BYTES);
        for (unsigned j = 0; j < count; j++)
            requests[j] = post_write(&one, 0, size, BYTES - size);
        for (unsigned j = 0; j < count; j++)
            IS(uccl_wait(requests[j], SOON_MS, NULL), 0);
        cr_assert_eq(memcmp(one.memory + BYTES - size, one.local, size), 0);
    }
    cr_assert_eq(counter_of(one.pair.engine[1], "rx_malformed"), 0);
    cr_assert_leq(counter_of(one.pair.engine[1], "rx_refused"), WRITES / 10, "%lu",
                  (unsigned long)counter_of(one.pair.engine[1], "rx_refused"));
    one_close(&one);
}

/* What is refused has begun to come. */
BOTH(onesided_ahead, refused_bytes_change_nothing)
{
    struct one one;
    one_open(&one, lend, BYTES, UCCL_ACCESS_READ);
    for (unsigned i = 0; i < 20; i++) {
        IS(uccl_wait(post_write(&one, 0, 20000 + i * 40000, 0), SOON_MS, NULL), UCCL_EACCESS);
        IS(uccl_wait(post_read(&one, 0, 100, 0), SOON_MS, NULL), 0);
    }
    for (size_t i = 0; i < BYTES; i++)
        cr_assert_eq(one.memory[i], 0);
    cr_assert_eq(counter_of(one.pair.engine[1], "rx_malformed"), 0);
    cr_assert_eq(counter_of(one.pair.engine[1], "accesses_refused"), 20);
    one_close(&one);
}
