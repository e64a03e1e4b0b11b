/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many processors this process can keep busy. The problem: a container that may use 2 processors' time on a host of
 * 64 mostly has the affinity to all of them. More threads than the quota pays for stop each other: once the time of a
 * period is used up, the kernel runs none of them until the next one.
 *
 * So the CPU quotas count as well: that of the process's control group, and those of all groups above it that can be
 * seen (cpu.max in version 2, cpu.cfs_quota_us in version 1).
 */
#ifndef UCCL_CORES_H
#define UCCL_CORES_H

/* Processors of the affinity, but not more than the quota; 1 or more. Reads files: once per engine, in uccl_open(). */
unsigned cores_usable(void);

/*
 * The least quota, in processors, rounded up; UINT_MAX: there is none, or nobody can tell. `proc` is "/proc/self", or a
 * test's directory with files `cgroup` and `mountinfo`.
 */
unsigned cores_of_quota(const char *proc);

#endif
