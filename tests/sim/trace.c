/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <stdio.h>

void trace_init(struct trace *trace, bool print)
{
    *trace = (struct trace){.print = print, .hash = UINT64_C(0xcbf29ce484222325)};
}

static void print(const struct trace_event *event)
{
    printf("%12.6f %-10s %llu %llu %lld\n", (double)event->at_ns / 1e6, event->what, (unsigned long long)event->a,
           (unsigned long long)event->b, (long long)event->c);
}

void trace_note(struct trace *trace, uint64_t at_ns, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t words[] = {at_ns, (uint64_t)what[0] << 8 | (uint64_t)what[1], a, b, c};
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        trace->hash = (trace->hash ^ words[i]) * UINT64_C(0x100000001b3);
    struct trace_event *event = &trace->recent[trace->count++ % TRACE_RECENT];
    *event = (struct trace_event){what, at_ns, a, b, c};
    if (trace->print)
        print(event);
}

void trace_print_recent(const struct trace *trace)
{
    if (trace->print)
        return;
    uint64_t first = trace->count > TRACE_RECENT ? trace->count - TRACE_RECENT : 0;
    printf("# the last events (ms, what, who, which, how):\n");
    for (uint64_t i = first; i < trace->count; i++)
        print(&trace->recent[i % TRACE_RECENT]);
}
