/* SPDX-License-Identifier: Apache-2.0 */
/* Which warnings this process has given already: some are worth one line, however often their reason recurs. Any thread. */
#ifndef UCCL_WARNED_H
#define UCCL_WARNED_H

#include <stdbool.h>

/* True the first time in this process that it is asked about `key`, while the list has room. */
bool warned_first(const char *key);

#endif
