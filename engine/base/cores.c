/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cores.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "base/pin.h"

#include <limits.h>
#include <unistd.h>

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The quota of one group. A group has the files of its version alone. */
static unsigned quota_of(const char *folder)
{
    long long period_us = 0, quota_us = cgroup_number(folder, "cpu.max", &period_us);
    if (quota_us < 0) {
        quota_us = cgroup_number(folder, "cpu.cfs_quota_us", NULL);
        period_us = cgroup_number(folder, "cpu.cfs_period_us", NULL);
    }
    if (quota_us <= 0 || period_us <= 0)
        return UINT_MAX;
    long long cores = (quota_us - 1) / period_us + 1;
    return cores < UINT_MAX ? (unsigned)cores : UINT_MAX;
}

static void take_least(void *context, const char *folder)
{
    unsigned *quota = context;
    *quota = least(*quota, quota_of(folder));
}

unsigned cores_of_quota(const char *proc)
{
    unsigned quota = UINT_MAX;
    cgroup_each(proc, "cpu", take_least, &quota);
    return quota;
}

static unsigned cores_of_affinity(void)
{
    struct pin_set set; /* a cpu_set_t is too small for machines that may have more than 1024, and the call fails */
    if (sched_getaffinity(0, sizeof set, set.parts) == 0)
        return (unsigned)CPU_COUNT_S(sizeof set, set.parts);
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
