/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line on stderr that ends no process and stops no thread. One that a pipe or a terminal does not take soon is lost:
 * perhaps nobody reads it. The engine's own lines: engine/base/log.c.
 */
#ifndef UCCL_P2P_LINE_H
#define UCCL_P2P_LINE_H

#include "base/unsignalled.h"

#include <cstring>
#include <poll.h>

inline void write_line(const char *line)
{
    constexpr int PATIENCE_MS = 20;
    struct pollfd fd = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&fd, 1, PATIENCE_MS) != 0)
        write_unsignalled(line, strlen(line));
}

#endif
