/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C for machines without an instruction for it, eight bytes a step ("slicing-by-8", Kounavis and
 * Berry, ISCC 2005). Polynomial 0x1EDC6F41, here bit-reversed: 0x82f63b78 (RFC 3720 section 12.1).
 *
 * The tables are constant data that the preprocessor writes out. tables[k][b] is what byte b becomes
 * when k more bytes follow it. A CRC is linear, so the entry of b is the exclusive or of the entries
 * of its bits, and those of the 64 bits of a step are the polynomial stepped 0 to 63 times: the
 * constants below, from the highest bit of the last byte on. tests/unit/test_crc32c.c compares every
 * entry with a bitwise computation.
 */
#include "core/crc32c.h"

/* All 2^n exclusive ors of v with the n constants, counted with the first as the highest bit. */
#define BITS1(v, a) (v), (v) ^ (a)
#define BITS2(v, b, a) BITS1(v, a), BITS1((v) ^ (b), a)
#define BITS3(v, c, b, a) BITS2(v, b, a), BITS2((v) ^ (c), b, a)
#define BITS4(v, d, c, b, a) BITS3(v, c, b, a), BITS3((v) ^ (d), c, b, a)
#define BITS5(v, e, d, c, b, a) BITS4(v, d, c, b, a), BITS4((v) ^ (e), d, c, b, a)
#define BITS6(v, f, e, d, c, b, a) BITS5(v, e, d, c, b, a), BITS5((v) ^ (f), e, d, c, b, a)
#define BITS7(v, g, f, e, d, c, b, a) BITS6(v, f, e, d, c, b, a), BITS6((v) ^ (g), f, e, d, c, b, a)
#define BYTES(h, g, f, e, d, c, b, a) BITS7(UINT32_C(0), g, f, e, d, c, b, a), BITS7(UINT32_C(h), g, f, e, d, c, b, a)

static const uint32_t tables[8][256] = {
    {BYTES(0x82f63b78, 0x417b1dbc, 0x20bd8ede, 0x105ec76f, 0x8ad958cf, 0xc79a971f, 0xe13b70f7, 0xf26b8303)},
    {BYTES(0xfbc3faf9, 0xff17c604, 0x7f8be302, 0x3fc5f181, 0x9d14c3b8, 0x4e8a61dc, 0x274530ee, 0x13a29877)},
    {BYTES(0x8b277743, 0xc76580d9, 0xe144fb14, 0x70a27d8a, 0x38513ec5, 0x9edea41a, 0x4f6f520d, 0xa541927e)},
    {BYTES(0x52a0c93f, 0xaba65fe7, 0xd725148b, 0xe964b13d, 0xf64463e6, 0x7b2231f3, 0xbf672381, 0xdd45aab8)},
    {BYTES(0x6ea2d55c, 0x37516aae, 0x1ba8b557, 0x8f2261d3, 0xc5670b91, 0xe045beb0, 0x7022df58, 0x38116fac)},
    {BYTES(0x1c08b7d6, 0x0e045beb, 0x85f4168d, 0xc00c303e, 0x6006181f, 0xb2f53777, 0xdb8ca0c3, 0xef306b19)},
    {BYTES(0xf56e0ef4, 0x7ab7077a, 0x3d5b83bd, 0x9c5bfaa6, 0x4e2dfd53, 0xa5e0c5d1, 0xd0065990, 0x68032cc8)},
    {BYTES(0x34019664, 0x1a00cb32, 0x0d006599, 0x847609b4, 0x423b04da, 0x211d826d, 0x9278fa4e, 0x493c7d27)},
};

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length)
{
    const uint8_t *byte = data;
    crc = ~crc;
    for (; length >= 8; length -= 8, byte += 8) {
        /* Byte by byte for any alignment and byte order; compilers make one load of it. */
        crc ^= (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
        crc = tables[7][crc & 0xff] ^ tables[6][crc >> 8 & 0xff] ^ tables[5][crc >> 16 & 0xff] ^ tables[4][crc >> 24] ^
              tables[3][byte[4]] ^ tables[2][byte[5]] ^ tables[1][byte[6]] ^ tables[0][byte[7]];
    }
    for (; length > 0; length--, byte++)
        crc = crc >> 8 ^ tables[0][(crc ^ *byte) & 0xff];
    return ~crc;
}
