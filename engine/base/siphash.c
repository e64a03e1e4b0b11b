/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"

enum { ROUNDS_PER_WORD = 2, ROUNDS_AT_END = 4 };

static uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

/* SipRound, figure 2.1 of the paper. */
static void mix(uint64_t v[4], unsigned rounds)
{
    while (rounds-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    mix(v, ROUNDS_PER_WORD);
    v[0] ^= word;
}

uint64_t siphash(uint64_t key0, uint64_t key1, const uint8_t *bytes, size_t length)
{
    uint64_t v[4] = {key0 ^ UINT64_C(0x736f6d6570736575), key1 ^ UINT64_C(0x646f72616e646f6d),
                     key0 ^ UINT64_C(0x6c7967656e657261), key1 ^ UINT64_C(0x7465646279746573)};
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        word |= (uint64_t)bytes[i] << (8 * (i % 8));
        if (i % 8 == 7) {
            absorb(v, word);
            word = 0;
        }
    }
    absorb(v, word | (uint64_t)length << 56); /* the bytes left over, and the length's lowest byte */
    v[2] ^= 0xff;
    mix(v, ROUNDS_AT_END);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
