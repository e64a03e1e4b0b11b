/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies into the buffers of watched receives (UCCL_RECV_WATCHED), whose readers do not wait for the request to
 * complete. Each aligned 8 bytes appear at once, and the last 8 of each aligned 128 appear after the others. At
 * either end of the copy, fewer than 8 bytes appear as aligned words of 4, 2 or 1 bytes.
 */
#ifndef UCCL_WATCHED_H
#define UCCL_WATCHED_H

#include <stddef.h>

/* Any alignment, any length; no overlap. Any thread. */
void watched_copy(void *to, const void *from, size_t length);

#endif
