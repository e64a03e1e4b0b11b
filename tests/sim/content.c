/* SPDX-License-Identifier: Apache-2.0 */
#include "content.h"

#include <string.h>

/* splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t content_key(unsigned conn, unsigned sender, uint64_t number)
{
    return mix((uint64_t)conn << 40 ^ (uint64_t)sender << 39 ^ number);
}

static uint64_t word_at(uint64_t key, uint64_t index)
{
    return (key + index) * UINT64_C(0x9e3779b97f4a7c15) ^ key;
}

/* The byte in memory order of a little-endian machine. */
static uint8_t byte_at(uint64_t key, uint64_t offset)
{
    return (uint8_t)(word_at(key, offset / 8) >> offset % 8 * 8);
}

/* Bytes of [offset, offset + length) before the first whole word. */
static uint64_t ragged(uint64_t offset, uint64_t length)
{
    uint64_t head = -offset % 8;
    return head < length ? head : length;
}

void content_write(uint8_t *to, uint64_t key, uint64_t offset, uint64_t length)
{
    uint64_t at = 0, head = ragged(offset, length);
    for (; at < head; at++)
        to[at] = byte_at(key, offset + at);
    for (; length - at >= 8; at += 8)
        memcpy(to + at, &(uint64_t){word_at(key, (offset + at) / 8)}, 8);
    for (; at < length; at++)
        to[at] = byte_at(key, offset + at);
}

uint64_t content_right(const uint8_t *bytes, uint64_t key, uint64_t offset, uint64_t length)
{
    uint64_t at = 0, head = ragged(offset, length), word;
    for (; at < head; at++)
        if (bytes[at] != byte_at(key, offset + at))
            return at;
    for (; length - at >= 8; at += 8) {
        memcpy(&word, bytes + at, 8);
        if (word != word_at(key, (offset + at) / 8))
            break; /* the loop of bytes finds which */
    }
    for (; at < length; at++)
        if (bytes[at] != byte_at(key, offset + at))
            return at;
    return length;
}
