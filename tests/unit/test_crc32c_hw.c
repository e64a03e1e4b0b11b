/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's CRC32C against known values, the portable one, and itself in pieces. */
#include "core/crc32c.h"
#include "thread/crc32c_hw.h"

#include <criterion/criterion.h>
#include <string.h>

enum { BYTES = 20000 };

static uint8_t bytes[BYTES];

static void fill(void)
{
    uint32_t state = 12345;

    for (size_t i = 0; i < BYTES; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(state >> 24);
    }
}

TestSuite(crc32c_hw, .init = fill);

Test(crc32c_hw, known_values)
{
    uint8_t block[32];
    crc32c_fn crc32c = crc32c_best();

    cr_assert_eq(crc32c(0, "", 0), 0);
    cr_assert_eq(crc32c(0, "123456789", 9), 0xe3069283);
    memset(block, 0, sizeof block); /* RFC 3720 B.4 */
    cr_assert_eq(crc32c(0, block, sizeof block), 0x8a9136aa);
    memset(block, 0xff, sizeof block);
    cr_assert_eq(crc32c(0, block, sizeof block), 0x62a8ab43);
}

Test(crc32c_hw, equals_portable_at_every_length_and_alignment)
{
    crc32c_fn crc32c = crc32c_best();

    for (size_t length = 0; length < 4000; length++)
        cr_assert_eq(crc32c(0, bytes + length % 16, length), crc32c_portable(0, bytes + length % 16, length),
                     "length %zu", length);
    for (size_t length = 4000; length <= BYTES; length += 97)
        cr_assert_eq(crc32c(0x89abcdef, bytes + BYTES - length, length),
                     crc32c_portable(0x89abcdef, bytes + BYTES - length, length), "length %zu", length);
}

Test(crc32c_hw, chains)
{
    crc32c_fn crc32c = crc32c_best();
    uint32_t whole = crc32c(0, bytes, BYTES);

    for (size_t cut = 0; cut <= BYTES; cut += 311)
        cr_assert_eq(crc32c(crc32c(0, bytes, cut), bytes + cut, BYTES - cut), whole, "cut at %zu", cut);
}
