/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NCCL_ENDS_H
#define TESTS_NCCL_ENDS_H

#include "host.h"

/* Scenarios of ends that are not orderly (ends.c) */
void rank_kill(const struct options *options, unsigned rank);
void rank_abort(const struct options *options, unsigned rank);
void rank_halves(const struct options *options, unsigned rank);

/* Entries of a folder, . and .. included */
unsigned entries_of(const char *folder);
/* Whether there are soon `most` at the most */
bool settles(const char *folder, unsigned most);

#endif
