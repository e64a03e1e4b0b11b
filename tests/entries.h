/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has, as /proc tells: descriptors (/proc/self/fd) and threads (/proc/self/task). */
#ifndef TEST_ENTRIES_H
#define TEST_ENTRIES_H

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>

/* Entries of a directory, with "." and ".."; 0: it cannot be read. */
static inline unsigned entries_of(const char *path)
{
    unsigned count = 0;
    DIR *directory = opendir(path);
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

enum { THREADS_MAX = 16 };

/* The ids of all threads, at most THREADS_MAX. */
static inline unsigned list_threads(int *out)
{
    DIR *directory = opendir("/proc/self/task");
    struct dirent *task;
    unsigned count = 0;
    while (directory && count < THREADS_MAX && (task = readdir(directory))) {
        if (isdigit((unsigned char)task->d_name[0]))
            out[count++] = atoi(task->d_name);
    }
    if (directory)
        closedir(directory);
    return count;
}

#endif
