/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include "uccl/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

int fault_error(int system_error)
{
    switch (system_error) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return UCCL_ENOMEM;
    default:
        return UCCL_EIO;
    }
}

const char *fault_text(int system_error, char out[FAULT_TEXT])
{
    char text[64];
    const char *why = strerror_r(system_error, text, sizeof text);
    struct rlimit files = {0};

    if (system_error == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
        snprintf(out, FAULT_TEXT, "%s (limit of open files: ulimit -n, %llu now)", why,
                 (unsigned long long)files.rlim_cur);
    else if (system_error == ENFILE)
        snprintf(out, FAULT_TEXT, "%s (sysctl fs.file-max; ulimit -n limits one process)", why);
    else
        snprintf(out, FAULT_TEXT, "%s", why);
    return out;
}

const char *fault_error_text(int error)
{
    switch (error) {
#define ERROR_TEXT(name, value, text)                                                                                  \
    case value:                                                                                                        \
        return text;
        UCCL_ERROR_ROWS(ERROR_TEXT)
#undef ERROR_TEXT
    default:
        return NULL;
    }
}
