/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line on stderr that ends no process and stops no thread. A pipe without a reader raises SIGPIPE, and a file at its
 * limit (RLIMIT_FSIZE) SIGXFSZ, in the thread that writes. Both are blocked meanwhile and taken back; one that was
 * pending before stays so. A line that a pipe or a terminal does not take soon is lost: perhaps nobody reads it. The
 * engine's own lines: engine/base/log.c.
 */
#ifndef UCCL_P2P_LINE_H
#define UCCL_P2P_LINE_H

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

inline void write_line(const char *line)
{
    constexpr int PATIENCE_MS = 20;
    static const struct timespec at_once = {0, 0};
    struct pollfd fd = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&fd, 1, PATIENCE_MS) == 0)
        return;
    sigset_t raised, before, pending;
    sigemptyset(&raised);
    sigaddset(&raised, SIGPIPE);
    sigaddset(&raised, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &raised, &before);
    sigpending(&pending);
    int error = write(STDERR_FILENO, line, strlen(line)) < 0 ? errno : 0;
    int signal = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (signal && !sigismember(&pending, signal)) {
        sigemptyset(&raised);
        sigaddset(&raised, signal);
        while (sigtimedwait(&raised, nullptr, &at_once) < 0 && errno == EINTR)
            ;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

#endif
