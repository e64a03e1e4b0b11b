/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has, as /proc tells: descriptors (/proc/self/fd) and threads (/proc/self/task). */
#ifndef TEST_ENTRIES_H
#define TEST_ENTRIES_H

#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* How many threads have a name of this pattern (glob(7)). A thread of the engine's names itself once it runs. */
static inline unsigned threads_called(const char *pattern)
{
    int ids[THREADS_MAX];
    unsigned all = list_threads(ids), count = 0;
    for (unsigned i = 0; i < all; i++) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", ids[i]);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file)) {
            name[strcspn(name, "\n")] = '\0';
            count += fnmatch(pattern, name, 0) == 0;
        }
        if (file)
            fclose(file);
    }
    return count;
}

#endif
