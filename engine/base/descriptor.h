/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors 0 to 2 are the standard streams, even in a process that has closed them: the application prints to them,
 * this library's log lines go to 2, and whoever becomes a daemon closes all three. The kernel gives the lowest number
 * that is free, so a process without a stderr would log into a connection or an eventfd of ours. Any thread; no state.
 */
#ifndef UCCL_DESCRIPTOR_H
#define UCCL_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Takes a new descriptor, and returns it, or a copy above the standard streams in its place. -1: none (errno). */
static inline int descriptor_keep(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return kept;
}

#endif
