/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control groups that limit this process: its own and all above it, of cgroup version 1 and 2 (cgroups(7)). Limits
 * of groups above count as well, and a container sees its groups at places of its own: /proc/self/cgroup names the
 * group, /proc/self/mountinfo the folders where groups are.
 */
#ifndef UCCL_CGROUP_H
#define UCCL_CGROUP_H

/*
 * Calls `look` with the folder of each group that may limit what `controller` ("cpu", "memory") controls. `proc` is
 * "/proc/self", or a test's directory with files `cgroup` and `mountinfo`. No groups, or none to see: no call.
 */
void cgroup_each(const char *proc, const char *controller, void (*look)(void *context, const char *folder),
                 void *context);

/* The number at the beginning of a group's file, and the one behind it; -1: there is none ("max"), or no file. */
long long cgroup_number(const char *folder, const char *name, long long *second);

#endif
