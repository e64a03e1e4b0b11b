/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NCCL_ENDS_H
#define TESTS_NCCL_ENDS_H

#include "../entries.h"
#include "host.h"

/* Scenarios of ends that are not orderly (ends.c) */
void rank_kill(const struct options *options, unsigned rank);
void rank_abort(const struct options *options, unsigned rank);
void rank_halves(const struct options *options, unsigned rank);

/* Whether the folder soon has `most` entries (entries.h) at the most */
bool settles(const char *folder, unsigned most);

#endif
