/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies into the buffers of watched receives (UCCL_RECV_WATCHED), whose readers do not wait for the request to end.
 * Of what is copied each aligned 8 bytes appear at once, and the last 8 of each aligned 128 after the others of these.
 * What is no whole aligned word, at either end, appears as the smallest aligned words that it is made of.
 */
#ifndef UCCL_WATCHED_H
#define UCCL_WATCHED_H

#include <stddef.h>

/* Any alignment, any length; no overlap. Any thread. */
void watched_copy(void *to, const void *from, size_t length);

#endif
