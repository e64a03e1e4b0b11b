/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of the scheduler for a thread (engine/base/slice.h), and what is left alone. Each test is a process. */
#include "base/slice.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 700000, LONG_NS = 50000000, NICE = 3 };

/* struct sched_attr, whose header goes with sched.h on some systems and against it on others. */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static long forbidden;   /* number of a call that a sandbox refuses */
static unsigned changes; /* asked for */
static struct attr asked;

static bool on_syscall(long number, const long argument[6]);
#include "wrapped_syscall.h"

static bool on_syscall(long number, const long argument[6])
{
    if (number == SYS_sched_setattr) {
        changes++;
        asked = *(const struct attr *)argument[1];
    }
    errno = EPERM;
    return number == forbidden;
}

static struct attr now_is(void)
{
    struct attr attr = {0};
    cr_assert_eq(__real_syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0), 0);
    return attr;
}

/* Whether this kernel takes slices: since Linux 6.12. */
static bool takes_slices(void)
{
    struct attr attr = now_is();
    attr.runtime = LONG_NS;
    cr_assert_eq(__real_syscall(SYS_sched_setattr, 0, &attr, 0), 0);
    return now_is().runtime == LONG_NS;
}

static void expect_shortened(int policy)
{
    struct attr attr = now_is();
    cr_expect_eq(changes, 1);
    cr_expect_eq(asked.runtime, SLICE_NS);
    cr_expect_eq(attr.policy, (unsigned)policy);
}

Test(slice, is_shortened)
{
    bool taken = takes_slices();
    slice_shorten();
    expect_shortened(SCHED_OTHER);
    if (taken)
        cr_expect_eq(now_is().runtime, SLICE_NS);
}

Test(slice, of_batch_work_too)
{
    cr_assert_eq(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}), 0);
    slice_shorten();
    expect_shortened(SCHED_BATCH);
}

Test(slice, leaves_niceness_and_flags)
{
    cr_assert_eq(setpriority(PRIO_PROCESS, 0, NICE), 0);
    cr_assert_eq(sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &(struct sched_param){0}), 0);
    slice_shorten();
    expect_shortened(SCHED_OTHER);
    cr_expect_eq(getpriority(PRIO_PROCESS, 0), NICE);
    cr_expect_eq(sched_getscheduler(0), SCHED_OTHER | SCHED_RESET_ON_FORK);
}

Test(slice, leaves_other_policies)
{
    cr_assert_eq(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}), 0);
    slice_shorten();
    cr_expect_eq(changes, 0);
}

Test(slice, is_not_asked_for_blindly)
{
    forbidden = SYS_sched_getattr;
    slice_shorten();
    cr_expect_eq(changes, 0);
}

Test(slice, may_be_forbidden)
{
    forbidden = SYS_sched_setattr;
    slice_shorten();
    cr_expect_eq(changes, 1);
}
