/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happened in a run, as a hash of all events (FNV-1a over words) and, for people, as lines: all of
 * them when asked for, else the last ones before a failure. Nothing here depends on addresses.
 */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_RECENT = 48 };

struct trace_event {
    const char *what; /* a literal */
    uint64_t at_ns, a, b, c;
};

struct trace {
    bool print;
    uint64_t hash, count;
    struct trace_event recent[TRACE_RECENT];
};

void trace_init(struct trace *trace, bool print);
void trace_note(struct trace *trace, uint64_t at_ns, const char *what, uint64_t a, uint64_t b, uint64_t c);
/* The last events, where they were not printed as they came. */
void trace_print_recent(const struct trace *trace);

#endif
