/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C by the instructions that machines have for it. The instruction takes 8 bytes a cycle but
 * its result comes after three, so long buffers are cut into three streams that run side by side and
 * are joined at the end.
 *
 * Joining. With a(x), b(x) the checksums of two neighbouring streams of n bytes, the checksum of both
 * is a(x) * x^(8n) + b(x) mod P. A carry-less product of a with the constant x^(8n-33) mod P, fed
 * as 8 bytes to the CRC instruction, gives just that: in reflected bit order the product comes out
 * multiplied by x, and the instruction multiplies by x^32 and reduces. The constants depend on the
 * stream length alone.
 *
 * Thread: any; no state.
 */
#include "thread/crc32c_hw.h"

#include "core/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { LONG_STREAM = 1024, SHORT_STREAM = 128 };

/* x^(8n-33) mod P, reflected, n the bytes that follow: one stream behind the second, two behind the
 * first. */
#define LONG_BY_ONE 0x170076fau
#define LONG_BY_TWO 0xa51b6135u
#define SHORT_BY_ONE 0x0d3b6092u
#define SHORT_BY_TWO 0xb9e02b86u

#define CRC_TARGET __attribute__((target("sse4.2,pclmul")))

static inline uint64_t load64(const uint8_t *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

/* The checksum of a stream moved past the bytes that `constant` stands for. */
CRC_TARGET static inline uint64_t advance(uint64_t crc, uint32_t constant)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128(constant), 0);

    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three streams of `stream` bytes each from `at`. */
CRC_TARGET static inline uint64_t three_streams(uint64_t crc, const uint8_t *at, size_t stream, uint32_t by_one,
                                                uint32_t by_two)
{
    uint64_t second = 0, third = 0;

    for (const uint8_t *end = at + stream; at < end; at += 8) {
        crc = _mm_crc32_u64(crc, load64(at));
        second = _mm_crc32_u64(second, load64(at + stream));
        third = _mm_crc32_u64(third, load64(at + 2 * stream));
    }
    return advance(crc, by_two) ^ advance(second, by_one) ^ third;
}

CRC_TARGET static uint32_t crc32c_sse42(uint32_t start, const void *data, size_t length)
{
    const uint8_t *at = data;
    uint64_t crc = ~start;

    for (; length >= 3 * LONG_STREAM; length -= 3 * LONG_STREAM, at += 3 * LONG_STREAM)
        crc = three_streams(crc, at, LONG_STREAM, LONG_BY_ONE, LONG_BY_TWO);
    for (; length >= 3 * SHORT_STREAM; length -= 3 * SHORT_STREAM, at += 3 * SHORT_STREAM)
        crc = three_streams(crc, at, SHORT_STREAM, SHORT_BY_ONE, SHORT_BY_TWO);
    for (; length >= 8; length -= 8, at += 8)
        crc = _mm_crc32_u64(crc, load64(at));
    for (; length > 0; length--)
        crc = _mm_crc32_u8((uint32_t)crc, *at++);
    return ~(uint32_t)crc;
}

crc32c_fn crc32c_best(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") ? crc32c_sse42 : crc32c_portable;
}

#elif defined(__aarch64__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <asm/hwcap.h>
#include <sys/auxv.h>

#ifdef __clang__
#define CRC_TARGET __attribute__((target("crc")))
#define CRC_BYTE __builtin_arm_crc32cb
#define CRC_WORD __builtin_arm_crc32cd
#else
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_BYTE __builtin_aarch64_crc32cb
#define CRC_WORD __builtin_aarch64_crc32cx
#endif

CRC_TARGET static uint32_t crc32c_armv8(uint32_t start, const void *data, size_t length)
{
    const uint8_t *at = data;
    uint32_t crc = ~start;

    for (; length >= 8; length -= 8, at += 8) {
        uint64_t word;

        memcpy(&word, at, sizeof word);
        crc = CRC_WORD(crc, word);
    }
    for (; length > 0; length--)
        crc = CRC_BYTE(crc, *at++);
    return ~crc;
}

crc32c_fn crc32c_best(void)
{
    return getauxval(AT_HWCAP) & HWCAP_CRC32 ? crc32c_armv8 : crc32c_portable;
}

#else

crc32c_fn crc32c_best(void)
{
    return crc32c_portable;
}

#endif
