/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_left.h"

#include "base/cgroup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct memory {
    uint64_t swap; /* free, of the machine */
    uint64_t left; /* in the group with the least; UINT64_MAX: none has a limit */
};

/* Bytes of files that a group keeps in memory only as long as nobody needs it. */
static uint64_t cached(const char *folder)
{
    /* version 1 has its own under the first names, and those of groups below as well under the others */
    static const char *const names[] = {"total_inactive_file", "total_active_file", "inactive_file", "active_file"};
    uint64_t found[4] = {0}, value;
    char path[4200], line[128], name[64];
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        for (unsigned i = 0; i < 4; i++)
            if (sscanf(line, "%63s %" SCNu64, name, &value) == 2 && strcmp(name, names[i]) == 0)
                found[i] = value;
    }
    if (file)
        fclose(file);
    return found[0] + found[1] ? found[0] + found[1] : found[2] + found[3];
}

/* How much the group may take more. A group has the files of its version alone. */
static void look(void *context, const char *folder)
{
    struct memory *memory = context;
    long long limit = cgroup_number(folder, "memory.max", NULL), used, swap, swapped;
    uint64_t left, swap_left = memory->swap;
    if (limit >= 0) {
        used = cgroup_number(folder, "memory.current", NULL);
        swap = cgroup_number(folder, "memory.swap.max", NULL);
        swapped = cgroup_number(folder, "memory.swap.current", NULL);
        if (swap >= 0 && swapped >= 0 && swap_left > (uint64_t)(swap > swapped ? swap - swapped : 0))
            swap_left = (uint64_t)(swap > swapped ? swap - swapped : 0);
    } else {
        limit = cgroup_number(folder, "memory.limit_in_bytes", NULL);
        used = cgroup_number(folder, "memory.usage_in_bytes", NULL);
    }
    if (limit < 0 || used < 0)
        return;
    left = (uint64_t)(limit > used ? limit - used : 0) + cached(folder) + swap_left;
    if (left < memory->left)
        memory->left = left;
}

uint64_t memory_left(const char **whose)
{
    struct memory memory = {0, UINT64_MAX};
    uint64_t left = UINT64_MAX, kib;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            left = kib * 1024;
        else if (sscanf(line, "SwapFree: %" SCNu64, &kib) == 1)
            memory.swap = kib * 1024;
    }
    if (file)
        fclose(file);
    if (left != UINT64_MAX)
        left += memory.swap;
    cgroup_each("/proc/self", "memory", look, &memory);
    *whose = memory.left < left ? "the control group" : "the machine";
    return memory.left < left ? memory.left : left;
}
