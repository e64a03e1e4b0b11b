/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 with 64 bits of output: a keyed hash of short inputs that reveals nothing of its key and cannot be forged
 * without it. In the handshake it proves that both sides know the tokens of a flow.
 * Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012, https://eprint.iacr.org/2012/351.
 * Written here, since a few such values per handshake are no reason to link a library of cryptography.
 */
#ifndef UCCL_SIPHASH_H
#define UCCL_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* `key0` is the first eight bytes of the paper's key, little-endian, `key1` the others. */
uint64_t siphash(uint64_t key0, uint64_t key1, const uint8_t *bytes, size_t length);

#endif
