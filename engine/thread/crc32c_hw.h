/* SPDX-License-Identifier: Apache-2.0 */
/* The fastest CRC32C of the machine that runs: SSE4.2 or ARMv8 CRC instructions, else the core's table. */
#ifndef UCCL_CRC32C_HW_H
#define UCCL_CRC32C_HW_H

#include "core/core.h"

crc32c_fn crc32c_best(void);

#endif
