/* SPDX-License-Identifier: Apache-2.0 */
/* What messages contain: bytes that follow from a key, so that they can be told for any offset without being kept. */
#ifndef SIM_CONTENT_H
#define SIM_CONTENT_H

#include <stdint.h>

/* Of the message that `sender` (0 or 1) sends as its `number`th over a connection or session. */
uint64_t content_key(unsigned conn, unsigned sender, uint64_t number);
/* Writes the bytes [offset, offset + length) of the message. */
void content_write(uint8_t *to, uint64_t key, uint64_t offset, uint64_t length);
/* How many of these bytes are right before the first wrong one: `length` if all are. */
uint64_t content_right(const uint8_t *bytes, uint64_t key, uint64_t offset, uint64_t length);

#endif
