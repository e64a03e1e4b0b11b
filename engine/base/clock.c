/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

int clock_poll_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_now_ns();
    if (deadline_ns == UINT64_MAX)
        return -1;
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;
    return ms > 3600000 ? 3600000 : (int)ms;
}
