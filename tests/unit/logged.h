/* SPDX-License-Identifier: Apache-2.0 */
/* What the library logs, for a test to look at: uccl_set_log(take_log, NULL). */
#ifndef TEST_LOGGED_H
#define TEST_LOGGED_H

#include "uccl/engine.h"

#include <stdio.h>

static struct {
    unsigned lines;
    enum uccl_log_level level; /* of the last one */
    char text[1024];
} logged;

static inline void take_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    logged.lines++;
    logged.level = level;
    snprintf(logged.text, sizeof logged.text, "%s", text);
}

#endif
