/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cores.h"

#include "base/log.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The groups of the process in the two kinds of hierarchies; NULL: none. From malloc(). */
struct groups {
    char *unified; /* version 2 */
    char *cpu;     /* version 1, the hierarchy that has the controller cpu */
};

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Whether a list "cpu,cpuacct" has "cpu". */
static bool lists_cpu(const char *list)
{
    for (; list; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, "cpu", 3) == 0 && (list[3] == ',' || list[3] == '\0'))
            return true;
    }
    return false;
}

static FILE *open_in(const char *directory, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return NULL;
    FILE *file = fopen(path, "re");
    free(path);
    return file;
}

/* The number at the beginning of a file, and the one behind it; -1: there is none ("max"), or no file. */
static long long read_number(const char *directory, const char *name, long long *second)
{
    long long first = -1;
    FILE *file = open_in(directory, name);
    if (!file)
        return -1;
    if (fscanf(file, "%lld %lld", &first, second ? second : &(long long){0}) < 1)
        first = -1;
    fclose(file);
    return first;
}

/* The quota of one group. A group has the files of its version alone. */
static unsigned quota_of(const char *directory)
{
    long long period_us = 0, quota_us = read_number(directory, "cpu.max", &period_us);
    if (quota_us < 0) {
        quota_us = read_number(directory, "cpu.cfs_quota_us", NULL);
        period_us = read_number(directory, "cpu.cfs_period_us", NULL);
    }
    if (quota_us <= 0 || period_us <= 0)
        return UINT_MAX;
    long long cores = (quota_us - 1) / period_us + 1;
    return cores < UINT_MAX ? (unsigned)cores : UINT_MAX;
}

/* The least quota of a group and those above it, up to the root of a mount, which shows the group `root`. */
static unsigned least_quota(const char *mount, const char *root, const char *group)
{
    char *directory;
    unsigned quota = UINT_MAX;
    size_t above = strcmp(root, "/") == 0 ? 0 : strlen(root), top = strlen(mount);
    /* a group that lies outside the mount, or outside the process's namespace ("/../"), cannot be seen */
    if (strncmp(group, root, above) != 0 || (group[above] != '/' && group[above] != '\0') ||
        strncmp(group, "/..", 3) == 0 || asprintf(&directory, "%s%s", mount, group + above) < 0)
        return quota;
    for (;;) {
        quota = least(quota, quota_of(directory));
        char *last = strrchr(directory, '/');
        if (!last || (size_t)(last - directory) < top)
            break;
        *last = '\0';
    }
    free(directory);
    return quota;
}

static void read_groups(const char *proc, struct groups *out)
{
    char *line = NULL;
    size_t size = 0;
    FILE *file = open_in(proc, "cgroup");
    *out = (struct groups){0};
    while (file && getline(&line, &size, file) > 0) { /* "4:cpu,cpuacct:/group", "0::/group" */
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!out->unified && strcmp(line, "0:") == 0)
            out->unified = strdup(group);
        else if (!out->cpu && lists_cpu(list + 1))
            out->cpu = strdup(group);
    }
    free(line);
    if (file)
        fclose(file);
}

/* Spaces and the like stand as \040 in mountinfo. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text; to++) {
        unsigned value;
        if (sscanf(text, "\\%3o", &value) == 1) {
            *to = (char)value;
            text += 4;
        } else {
            *to = *text++;
        }
    }
    *to = '\0';
}

/* Fields of a line of mountinfo: "31 23 0:28 ROOT MOUNT rw shared:1 - TYPE cgroup OPTIONS"; some may be absent (NULL).
 */
struct mounted {
    char *root, *at;
    const char *type, *options;
};

static void split(char *line, struct mounted *out)
{
    enum { ROOT = 3, AT = 4, TYPE = 1, OPTIONS = 3 };
    char *rest = NULL;
    unsigned index = 0, behind = 0; /* the field; the field behind "-" */
    *out = (struct mounted){0};
    for (char *field = strtok_r(line, " \n", &rest); field; field = strtok_r(NULL, " \n", &rest), index++) {
        behind += behind || (index > AT && strcmp(field, "-") == 0);
        if (index == ROOT)
            out->root = field;
        else if (index == AT)
            out->at = field;
        else if (behind == TYPE + 1)
            out->type = field;
        else if (behind == OPTIONS + 1)
            out->options = field;
    }
}

static unsigned quota_at(char *line, const struct groups *groups)
{
    struct mounted mounted;
    split(line, &mounted);
    if (!mounted.options)
        return UINT_MAX;
    unescape(mounted.root);
    unescape(mounted.at);
    if (groups->unified && strcmp(mounted.type, "cgroup2") == 0)
        return least_quota(mounted.at, mounted.root, groups->unified);
    if (groups->cpu && strcmp(mounted.type, "cgroup") == 0 && lists_cpu(mounted.options))
        return least_quota(mounted.at, mounted.root, groups->cpu);
    return UINT_MAX;
}

unsigned cores_of_quota(const char *proc)
{
    struct groups groups;
    unsigned quota = UINT_MAX;
    char *line = NULL;
    size_t size = 0;
    read_groups(proc, &groups);
    FILE *file = open_in(proc, "mountinfo");
    while (file && getline(&line, &size, file) > 0)
        quota = least(quota, quota_at(line, &groups));
    free(line);
    if (file)
        fclose(file);
    free(groups.unified);
    free(groups.cpu);
    return quota;
}

static unsigned cores_of_affinity(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

unsigned cores_usable(void)
{
    unsigned cores = cores_of_affinity(), quota = cores_of_quota("/proc/self");
    if (quota < cores)
        LOG_INFORM("of %u processors the CPU quota leaves the time of %u", cores, quota);
    return least(cores, quota);
}
