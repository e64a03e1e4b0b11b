/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C against the vectors of RFC 3720 B.4 and against one bit at a time. */
#include "core/crc32c.h"
#include "core/rng.h"

#include <criterion/criterion.h>

static uint32_t bitwise(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

Test(crc32c, rfc3720_vectors)
{
    uint8_t data[48] = {0};
    cr_assert_eq(crc32c_portable(0, data, 32), 0x8a9136aa);
    memset(data, 0xff, 32);
    cr_assert_eq(crc32c_portable(0, data, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    cr_assert_eq(crc32c_portable(0, data, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)(31 - i);
    cr_assert_eq(crc32c_portable(0, data, 32), 0x113fdb5c);
    /* an iSCSI read command */
    static const uint8_t command[48] = {
        [0] = 0x01, [1] = 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
    cr_assert_eq(crc32c_portable(0, command, 48), 0xd9963a56);
    cr_assert_eq(crc32c_portable(0, "123456789", 9), 0xe3069283);
    cr_assert_eq(crc32c_portable(0, NULL, 0), 0);
}

Test(crc32c, every_table_entry)
{
    /* One byte that is not zero at each place of a step meets each entry of each table. */
    for (size_t place = 0; place < 8; place++) {
        for (unsigned value = 0; value < 256; value++) {
            uint8_t data[8] = {0};
            data[place] = (uint8_t)value;
            cr_assert_eq(crc32c_portable(~0u, data, 8), bitwise(~0u, data, 8), "place %zu value %u", place, value);
        }
    }
}

Test(crc32c, all_lengths_and_alignments)
{
    struct rng rng = {1};
    uint8_t data[300 + 16];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)rng_next(&rng);
    for (size_t start = 0; start < 16; start++)
        for (size_t length = 0; length <= 300; length++)
            cr_assert_eq(crc32c_portable(0, data + start, length), bitwise(0, data + start, length),
                         "start %zu length %zu", start, length);
}

Test(crc32c, chaining)
{
    struct rng rng = {2};
    uint8_t data[200];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)rng_next(&rng);
    uint32_t whole = crc32c_portable(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++) {
        uint32_t crc = crc32c_portable(0, data, cut);
        cr_assert_eq(crc32c_portable(crc, data + cut, sizeof data - cut), whole, "cut at %zu", cut);
    }
}

Test(crc32c, one_bit_changes_it)
{
    uint8_t data[64];
    memset(data, 0x5a, sizeof data);
    uint32_t right = crc32c_portable(0, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert_neq(crc32c_portable(0, data, sizeof data), right);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
