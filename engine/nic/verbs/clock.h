/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of a NIC, which stamps completions, and what our own clock says at the same time.
 *
 * Both are read together now and then; a line through these readings tells when, by our clock, a stamp was made.
 * Its slope is what was measured lately, so that clocks that drift apart by some ppm stay together within a
 * microsecond; a slope that no quartz has means that a clock was set, and the nominal one is taken. Far
 * from the last reading nothing is claimed.
 *
 * Raw stamps alone are used: those in "wall clock" nanoseconds are of the NIC's PTP clock, which need not follow
 * the host's and cannot be read beside it through verbs.
 *
 * Thread: the queue's owner.
 */
#ifndef UCCL_VERBS_CLOCK_H
#define UCCL_VERBS_CLOCK_H

#include "nic/verbs/lib.h"

#include <stdbool.h>

/* What a device says of its clock. */
struct verbs_clock_kind {
    uint64_t mask; /* bits of a stamp, which wraps; 0: completions bear none that could be used */
    uint64_t khz;
};

struct verbs_clock {
    struct ibv_context *context;
    struct verbs_clock_kind is; /* mask 0: not used, or not any more */
    double ns_per_tick;
    unsigned measured;       /* readings that it rests on; up to a few */
    uint64_t ticks, host_ns; /* the last reading */
};

/* Whether completions of the device bear stamps and its clock can be read: both are tried. */
struct verbs_clock_kind verbs_clock_find(const struct verbs_lib *lib, struct ibv_context *context);

void verbs_clock_open(struct verbs_clock *clock, struct ibv_context *context, struct verbs_clock_kind kind);
/* Reads both clocks; every tenth of a second while stamps are to be converted. */
void verbs_clock_sync(struct verbs_clock *clock);
/* The two clocks showed this at the same time. */
void verbs_clock_note(struct verbs_clock *clock, uint64_t ticks, uint64_t host_ns);
/* When, by CLOCK_MONOTONIC, the stamp was made; 0: not known. */
uint64_t verbs_clock_host_ns(const struct verbs_clock *clock, uint64_t ticks);

#endif
