/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4 against the values that its authors publish (vectors.h of their reference, key 00 01 .. 0f). */
#include "base/siphash.h"

#include <criterion/criterion.h>

static const uint64_t KEY0 = UINT64_C(0x0706050403020100), KEY1 = UINT64_C(0x0f0e0d0c0b0a0908);

Test(siphash, published_values)
{
    static const struct {
        size_t length; /* of 00 01 02 .. */
        uint64_t value;
    } CASES[] = {
        {0, UINT64_C(0x726fdb47dd0e0e31)},  {1, UINT64_C(0x74f839c593dc67fd)},
        {7, UINT64_C(0xab0200f58b01d137)},  {8, UINT64_C(0x93f5f5799a932462)},
        {9, UINT64_C(0x9e0082df0ba9e4b0)},  {15, UINT64_C(0xa129ca6149be45e5)}, /* appendix A of the paper */
        {16, UINT64_C(0x3f2acc7f57c29bdb)}, {63, UINT64_C(0x958a324ceb064572)},
    };
    uint8_t bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        uint64_t got = siphash(KEY0, KEY1, bytes, CASES[i].length);
        cr_assert_eq(got, CASES[i].value, "%zu bytes: %016llx", CASES[i].length, (unsigned long long)got);
    }
}

/* Both halves of the key and each byte matter; so does a length that differs by zeros alone. */
Test(siphash, everything_matters)
{
    uint8_t bytes[90] = {0};
    uint64_t plain = siphash(1, 2, bytes, 89);
    cr_assert_neq(siphash(2, 1, bytes, 89), plain);
    cr_assert_neq(siphash(1, 3, bytes, 89), plain);
    cr_assert_neq(siphash(1, 2, bytes, 90), plain);
    for (size_t i = 0; i < 89; i++) {
        bytes[i] = 1;
        cr_assert_neq(siphash(1, 2, bytes, 89), plain, "byte %zu", i);
        bytes[i] = 0;
    }
}
