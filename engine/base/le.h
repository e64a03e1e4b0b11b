/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian integers of 1 to 8 bytes, at any address. The caller has checked that they fit. */
#ifndef UCCL_LE_H
#define UCCL_LE_H

#include <stdint.h>

/* Writes the low `bytes` bytes of the value; returns the address behind them. */
static inline uint8_t *le_put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

static inline uint64_t le_get(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

#endif
