/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process-wide log. Whoever sees a failure first logs it, once, with all that a person needs to act.
 * Any thread. Formats into a stack buffer of 1 KiB, without lock or allocation.
 *
 * Strangers and peers cause errors and warnings as often as they like, and must not fill a disk by that. So each place
 * in the code has a budget of lines; the next line that has room tells how many were left out.
 */
#ifndef UCCL_LOG_H
#define UCCL_LOG_H

#include "uccl/engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sends lines to `fn`, NULL: to stderr. No thread is inside the old callback afterwards (see uccl_set_log()). */
void log_set_callback(uccl_log_fn fn, void *user);
void log_set_level(enum uccl_log_level level);
enum uccl_log_level log_level(void);

/* Errors and warnings of one place: so many at once, then one per interval. */
enum { LOG_BURST_LINES = 1000 };
#define LOG_INTERVAL_NS UINT64_C(1000000000)

struct log_budget {
    _Atomic uint64_t spent_ns; /* when all lines so far would have come, one per interval; guards nothing else */
    atomic_uint left_out;      /* lines, not told yet */
};

/* Whether the budget has room for one more line, which is then taken off; else the line counts as left out. */
bool log_may(struct log_budget *budget, enum uccl_log_level level);
/* `budget` NULL: none. */
void log_write(struct log_budget *budget, enum uccl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG(level, ...)                                                                                                \
    do {                                                                                                               \
        static struct log_budget budget_;                                                                              \
        if ((level) <= log_level() && log_may(&budget_, level))                                                        \
            log_write(&budget_, level, __VA_ARGS__);                                                                   \
    } while (0)
#define LOG_ERR(...) LOG(UCCL_LOG_ERROR, __VA_ARGS__)
#define LOG_WARNING(...) LOG(UCCL_LOG_WARN, __VA_ARGS__)
#define LOG_INFORM(...) LOG(UCCL_LOG_INFO, __VA_ARGS__)
#define LOG_DBG(...) LOG(UCCL_LOG_DEBUG, __VA_ARGS__)

#endif
