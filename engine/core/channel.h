/* SPDX-License-Identifier: Apache-2.0 */
/* Paths that are connections: which of them takes the next chunk (channel.c). */
#ifndef UCCL_CHANNEL_H
#define UCCL_CHANNEL_H

#include "core/path.h"

/* The path for bulk, or for control and small messages; -1: none has room now. */
int channel_choose(const struct path_set *set, bool bulk);

/* Whether some connection is there. */
bool channel_up(const struct path_set *set);

extern const struct cc_ops cc_none;

#endif
