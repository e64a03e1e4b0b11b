/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs of two hosts talk to each other. NICs in one subnet pair up, the first with the first; where one side has
 * fewer, its NICs take turns. NICs whose subnet the other side does not have pair up in the same way, since routers may
 * lead from one to the other. Whether they do shows when datagrams come back. Pure.
 */
#ifndef UCCL_PAIR_H
#define UCCL_PAIR_H

#include "nic/nic.h"

/* Both sides find the same pairs if each passes its own NICs first. Returns how many, at most `max`. */
unsigned nic_pairs(const struct nic_end *ours, unsigned our_count, const struct nic_end *theirs, unsigned their_count,
                   struct nic_pair *out, unsigned max);

/* NULL, or what is wrong with a NIC that a stranger names. */
const char *nic_end_fault(const struct nic_end *end);

/* Whether `address` is in the subnet of `end`. */
bool nic_end_covers(const struct nic_end *end, const union nic_address *address);

bool nic_same_host(const union nic_address *a, const union nic_address *b);

#endif
