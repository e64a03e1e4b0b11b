/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processors that an engine counts on: CPU quotas of made-up trees of control groups, and an engine that is opened
 * with such a quota on a machine of 64.
 */
#include "../../api/objects.h"
#include "base/cores.h"
#include "fini.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64]; /* holds the files of /proc/self, and the mounts as mount/... */

static void make_root(void)
{
    strcpy(root, "/tmp/uccl-test-cores-XXXXXX");
    cr_assert(mkdtemp(root));
}

static void remove_root(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    FINI_ASSERT(system(command) == 0);
}

static void put(const char *name, const char *content)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    cr_assert(file, "%s", path);
    cr_assert_geq(fputs(content, file), 0);
    fclose(file);
}

/* Adds a mount to mountinfo: the group `shown` at root/`at`. */
static void mounted(const char *shown, const char *at, const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, "%s/mountinfo", root);
    FILE *file = fopen(path, "a");
    cr_assert(file);
    fprintf(file, "31 23 0:28 %s %s/%s rw,nosuid shared:9 master:1 - %s\n", shown, root, at, kind);
    fclose(file);
}

static void expect(unsigned cores)
{
    cr_assert_eq(cores_of_quota(root), cores, "%u, not %u", cores_of_quota(root), cores);
}

TestSuite(cores, .init = make_root, .fini = remove_root);

Test(cores, nothing_to_read)
{
    expect(UINT_MAX);
    put("cgroup", "0::/\n");
    expect(UINT_MAX);
    mounted("/", "mount", "cgroup2 cgroup2 rw");
    expect(UINT_MAX);
    put("cgroup", "");
    put("mount/cpu.max", "100000 100000\n");
    expect(UINT_MAX);
    cr_assert_eq(cores_of_quota("/nonexistent"), UINT_MAX);
}

Test(cores, version_2)
{
    static const struct {
        const char *text;
        unsigned cores;
    } rows[] = {
        {"max 100000\n", UINT_MAX}, {"200000 100000\n", 2},
        {"150000 100000\n", 2},     {"50000 100000\n", 1},
        {"1000 1000000\n", 1},      {"200001 100000\n", 3},
        {"6400000 100000\n", 64},   {"", UINT_MAX},
        {"\n", UINT_MAX},           {"nonsense\n", UINT_MAX},
        {"100000\n", UINT_MAX},     {"100000 0\n", UINT_MAX},
        {"0 100000\n", UINT_MAX},   {"-1 100000\n", UINT_MAX},
        {"100000 -1\n", UINT_MAX},  {"9223372036854775807 1", UINT_MAX},
    };
    put("cgroup", "0::/\n");
    put("mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n");
    mounted("/", "mount", "cgroup2 cgroup2 rw");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("mount/cpu.max", rows[i].text);
        cr_assert_eq(cores_of_quota(root), rows[i].cores, "%s", rows[i].text);
    }
}

Test(cores, the_least_of_nested_groups)
{
    put("cgroup", "0::/a/b/c\n");
    mounted("/", "mount", "cgroup2 cgroup2 rw");
    put("mount/a/cpu.max", "400000 100000\n");
    put("mount/a/b/cpu.max", "300000 100000\n");
    put("mount/a/b/c/cpu.max", "max 100000\n");
    put("mount/a/b/c/d/cpu.max", "100000 100000\n"); /* below: another's */
    put("mount/a/other/cpu.max", "100000 100000\n"); /* beside it */
    put("cpu.max", "100000 100000\n");               /* above the mount: no group */
    expect(3);
    put("mount/a/cpu.max", "200000 100000\n");
    expect(2);
    put("mount/cpu.max", "100000 100000\n");
    expect(1);
}

Test(cores, version_1)
{
    put("cgroup", "9:memory:/a\n8:cpuset:/z\n4:cpu,cpuacct:/a/b\n1:name=systemd:/z\n0::/z\n");
    mounted("/", "cpuset", "cgroup cgroup rw,cpuset");
    mounted("/", "cpu", "cgroup cgroup rw,cpu,cpuacct");
    mounted("/", "unified", "cgroup2 cgroup2 rw");
    put("cpuset/a/b/cpu.cfs_quota_us", "100000\n"); /* of no such hierarchy */
    put("cpuset/a/b/cpu.cfs_period_us", "100000\n");
    put("cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put("cpu/a/b/cpu.cfs_period_us", "100000\n");
    expect(UINT_MAX);
    put("cpu/a/cpu.cfs_quota_us", "350000\n");
    put("cpu/a/cpu.cfs_period_us", "50000\n");
    expect(7);
    put("cpu/a/b/cpu.cfs_quota_us", "220000\n");
    expect(3);
    put("unified/z/cpu.max", "200000 100000\n");
    expect(2);
}

/* A container without a namespace of groups: the mount shows only its own group. */
Test(cores, a_mount_of_the_group_alone)
{
    put("cgroup", "5:cpu:/docker/77/inner\n");
    mounted("/docker/7", "other", "cgroup cgroup rw,cpu");
    mounted("/docker/77", "mount", "cgroup cgroup rw,cpu");
    put("other/cpu.cfs_quota_us", "100000\n");
    put("other/cpu.cfs_period_us", "100000\n");
    put("other7/inner/cpu.cfs_quota_us", "100000\n"); /* what joining the names would give */
    put("other7/inner/cpu.cfs_period_us", "100000\n");
    expect(UINT_MAX);
    put("mount/cpu.cfs_quota_us", "500000\n");
    put("mount/cpu.cfs_period_us", "100000\n");
    expect(5);
    put("mount/inner/cpu.cfs_quota_us", "400000\n");
    put("mount/inner/cpu.cfs_period_us", "100000\n");
    expect(4);
    put("cgroup", "5:cpu:/docker/77\n");
    expect(5);
}

Test(cores, a_group_outside_the_namespace)
{
    put("cgroup", "0::/../x\n");
    mounted("/", "mount", "cgroup2 cgroup2 rw");
    put("mount/cpu.max", "100000 100000\n");
    put("x/cpu.max", "100000 100000\n");
    expect(UINT_MAX);
}

Test(cores, names_with_spaces_and_colons)
{
    put("cgroup", "0::/a b:c\n");
    mounted("/", "the\\040mount\\134", "cgroup2 cgroup2 rw");
    put("the mount\\/a b:c/cpu.max", "300000 100000\n");
    expect(3);
}

/* ---- an engine -------------------------------------------------------------------------------- */

static bool made_up;          /* the machine has 64 processors, and /proc/self is `root` */
static unsigned numbers = 64; /* how many processors it may have: smaller sets are refused */

int __real_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set)
{
    if (!made_up)
        return __real_sched_getaffinity(thread, size, set);
    if (8 * size < numbers) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(size, set);
    for (unsigned cpu = 0; cpu < 64; cpu++)
        CPU_SET_S(cpu, size, set);
    return 0;
}

/* by its name with 64-bit offsets, which Meson asks for */
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode)
{
    static const char self[] = "/proc/self/";
    char other[256];
    if (!made_up || strncmp(path, self, strlen(self)) != 0)
        return __real_fopen64(path, mode);
    snprintf(other, sizeof other, "%s/%s", root, path + strlen(self));
    return __real_fopen64(other, mode);
}

static void opens(const char *quota, unsigned threads, bool lends)
{
    uccl_engine *engine;
    put("mount/cpu.max", quota);
    made_up = true;
    cr_assert_eq(uccl_open(NULL, &engine), UCCL_OK);
    made_up = false;
    cr_assert(engine->thread_count == threads && engine->threads[0].lend == lends, "%s: %u threads, %s", quota,
              engine->thread_count, engine->threads[0].lend ? "lent" : "not lent");
    uccl_close(engine);
}

Test(cores, an_engine_counts_on_its_quota)
{
    setenv("UCCL_BACKEND", "udp", 1);
    setenv("UCCL_SOCKET_IFNAME", "lo", 1);
    unsetenv("UCCL_NUM_ENGINES");
    unsetenv("UCCL_LEND");
    put("cgroup", "0::/\n");
    mounted("/", "mount", "cgroup2 cgroup2 rw");
    opens("max 100000\n", 4, false);
    opens("200000 100000\n", 1, true);
    opens("400000 100000\n", 1, true);
    opens("420000 100000\n", 1, false);
    opens("800000 100000\n", 2, false);
    setenv("UCCL_NUM_ENGINES", "3", 1); /* what the user says counts more */
    setenv("UCCL_LEND", "no", 1);
    opens("200000 100000\n", 3, false);
}

Test(cores, a_machine_that_may_have_2048_processors)
{
    numbers = 2048;
    made_up = true;
    cr_assert_eq(uccl_cores(), 64);
}
