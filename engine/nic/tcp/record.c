/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/tcp/record.h"

#include "base/le.h"
#include "base/siphash.h"

#include <string.h>

enum { PREFIX_MARK = 0xc7, LENGTH_BITS = 24, PROOF_AT = 24 };
_Static_assert(RECORD_BULK_MAX < 1 << LENGTH_BITS, "a length fits its bits");

static const uint8_t magic[4] = {'U', 'C', 'T', 'P'};

void record_put_prefix(uint8_t out[RECORD_PREFIX_BYTES], uint32_t length)
{
    le_put(out, length | (uint32_t)PREFIX_MARK << LENGTH_BITS, RECORD_PREFIX_BYTES);
}

enum record_shape record_look(const uint8_t *bytes, size_t count, uint32_t *length)
{
    *length = 0;
    if (count < RECORD_PREFIX_BYTES)
        return RECORD_SHORT;
    uint32_t prefix = (uint32_t)le_get(bytes, RECORD_PREFIX_BYTES), wants = prefix & ((1u << LENGTH_BITS) - 1);
    if (prefix >> LENGTH_BITS != PREFIX_MARK || wants < WIRE_HEADER_BYTES || wants > RECORD_BULK_MAX)
        return RECORD_BAD;
    *length = wants;
    if (wants < WIRE_BULK_HEADER_BYTES)
        return RECORD_PLAIN;
    if (count < RECORD_HEAD_BYTES)
        return RECORD_SHORT;
    if (wire_is_bulk(bytes + RECORD_PREFIX_BYTES, wants))
        return RECORD_BULK;
    return wants <= RECORD_PLAIN_MAX ? RECORD_PLAIN : RECORD_BAD;
}

static uint64_t proof_of(const uint8_t bytes[GREETING_BYTES], uint64_t token, uint64_t answer_token)
{
    return siphash(token, answer_token, bytes, PROOF_AT);
}

void greeting_put(uint8_t out[GREETING_BYTES], const struct greeting *greeting, uint64_t answer_token)
{
    memset(out, 0, GREETING_BYTES);
    memcpy(out, magic, sizeof magic);
    le_put(out + 4, GREETING_VERSION, 2);
    le_put(out + 6, greeting->path, 2);
    le_put(out + 8, greeting->generation, 4);
    le_put(out + 16, greeting->token, 8);
    le_put(out + PROOF_AT, proof_of(out, greeting->token, answer_token), 8);
}

bool greeting_take(const uint8_t bytes[GREETING_BYTES], struct greeting *out)
{
    if (memcmp(bytes, magic, sizeof magic) != 0 || le_get(bytes + 4, 2) != GREETING_VERSION ||
        le_get(bytes + 8, 4) == 0 || le_get(bytes + 12, 4) != 0)
        return false;
    *out = (struct greeting){.path = (uint16_t)le_get(bytes + 6, 2),
                             .generation = (uint32_t)le_get(bytes + 8, 4),
                             .token = le_get(bytes + 16, 8)};
    return true;
}

bool greeting_proves(const uint8_t bytes[GREETING_BYTES], uint64_t token, uint64_t answer_token)
{
    return le_get(bytes + PROOF_AT, 8) == proof_of(bytes, token, answer_token);
}
