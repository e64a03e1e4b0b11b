/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings that a process gives once, however often their reason recurs. Any thread. */
#ifndef UCCL_WARNED_H
#define UCCL_WARNED_H

#include <stdbool.h>

/* True at the first call for `key` in this process, while the list has room. */
bool warned_first(const char *key);

#endif
