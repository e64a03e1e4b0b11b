/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720 B.4), portable. Start with 0; chain by passing the last result. */
#ifndef UCCL_CRC32C_H
#define UCCL_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length);

#endif
