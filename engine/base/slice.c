/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slice.h"

#include "core/units.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 700 * NS_PER_US };

void slice_shorten(void)
{
    struct sched_attr attr = {0};
    /* niceness and flags stay; the C library has these two calls since 2.41 only */
    if (syscall(SYS_sched_getattr, 0, &attr, (unsigned)SCHED_ATTR_SIZE_VER0, 0u) != 0 ||
        (attr.sched_policy != SCHED_NORMAL && attr.sched_policy != SCHED_BATCH))
        return;
    attr.sched_runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0u);
}
