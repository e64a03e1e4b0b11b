/* SPDX-License-Identifier: Apache-2.0 */
/*
 * syscall() of the library under test, which passes through here (-Wl,--wrap=syscall). One program includes this once,
 * behind its on_syscall().
 */
#ifndef UCCL_TEST_WRAPPED_SYSCALL_H
#define UCCL_TEST_WRAPPED_SYSCALL_H

#include <stdarg.h>
#include <stdbool.h>

/* Before the call. True: it fails, with the errno that stands there now. */
static bool on_syscall(long number, const long argument[6]);

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
/* Most calls have fewer arguments than six. What is read then is anything, also what AddressSanitizer guards. */
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...)
{
    long argument[6];
    va_list arguments;
    va_start(arguments, number);
    for (unsigned i = 0; i < 6; i++)
        argument[i] = va_arg(arguments, long);
    va_end(arguments);
    if (on_syscall(number, argument))
        return -1;
    return __real_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

#endif
