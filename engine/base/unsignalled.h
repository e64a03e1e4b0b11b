/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing without the signals that a pipe without a reader (SIGPIPE) and a file at its limit (RLIMIT_FSIZE, SIGXFSZ)
 * raise in the thread that writes: they would end the process for a line of ours. Both are blocked meanwhile and taken
 * back; one that was pending before stays so. Any thread; C and C++.
 */
#ifndef UCCL_UNSIGNALLED_H
#define UCCL_UNSIGNALLED_H

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* One write() to stderr, whose failure can be reported nowhere. Blocks as that does. */
static inline void write_unsignalled(const char *line, size_t length)
{
    static const struct timespec at_once = {0, 0};
    sigset_t raised, before, pending;
    sigemptyset(&raised);
    sigaddset(&raised, SIGPIPE);
    sigaddset(&raised, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &raised, &before);
    sigpending(&pending);
    int error = write(STDERR_FILENO, line, length) < 0 ? errno : 0;
    int signal = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (signal && !sigismember(&pending, signal)) {
        sigemptyset(&raised);
        sigaddset(&raised, signal);
        while (sigtimedwait(&raised, NULL, &at_once) < 0 && errno == EINTR)
            ;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

#endif
