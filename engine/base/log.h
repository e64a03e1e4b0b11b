/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process-wide log. Whoever sees a failure first logs it, once, with all that a person needs to act.
 * Any thread. Formats into a stack buffer of 1 KiB, without lock or allocation.
 */
#ifndef UCCL_LOG_H
#define UCCL_LOG_H

#include "uccl/engine.h"

/* Sends lines to `fn`, NULL: to stderr. No thread is inside the old callback afterwards (see uccl_set_log()). */
void log_set_callback(uccl_log_fn fn, void *user);
void log_set_level(enum uccl_log_level level);
enum uccl_log_level log_level(void);
void log_write(enum uccl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define LOG(level, ...)                                                                                                \
    do {                                                                                                               \
        if ((level) <= log_level())                                                                                    \
            log_write(level, __VA_ARGS__);                                                                             \
    } while (0)
#define LOG_ERR(...) LOG(UCCL_LOG_ERROR, __VA_ARGS__)
#define LOG_WARNING(...) LOG(UCCL_LOG_WARN, __VA_ARGS__)
#define LOG_INFORM(...) LOG(UCCL_LOG_INFO, __VA_ARGS__)
#define LOG_DBG(...) LOG(UCCL_LOG_DEBUG, __VA_ARGS__)

#endif
