/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's logger, for what the plugin and the engine have to say. RCCL has changed the numbers of the levels: since
 * 2.27.7 ERROR stands before VERSION, and all that follow are one higher. Only the library itself can tell, so it is
 * asked for its name and version. Any thread.
 */
#include "plugin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1024, RCCL_NEW_LEVELS = 22707 };

static _Atomic(nccl_logger_fn) logger_now;
static atomic_int levels_up; /* 1: RCCL's new numbers */

/* Whether the logger is that of an RCCL with the new numbers. */
static int has_new_levels(nccl_logger_fn logger)
{
    Dl_info info;
    void *address;
    int version = 0;

    memcpy(&address, &logger, sizeof address);
    if (!dladdr(address, &info) || !info.dli_fname || !strstr(info.dli_fname, "librccl"))
        return 0;
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return 0;
    void *symbol = dlsym(library, "ncclGetVersion");
    if (symbol) {
        enum nccl_result (*get_version)(int *version);
        memcpy(&get_version, &symbol, sizeof get_version);
        if (get_version(&version) != NCCL_SUCCESS)
            version = 0;
    }
    dlclose(library);
    return version >= RCCL_NEW_LEVELS;
}

void log_line(enum log_kind kind, const char *format, ...)
{
    static const int levels[] = {
        [LOG_KIND_WARN] = NCCL_LOG_WARN, [LOG_KIND_INFO] = NCCL_LOG_INFO, [LOG_KIND_TRACE] = NCCL_LOG_TRACE};
    nccl_logger_fn logger = atomic_load(&logger_now);
    char line[LINE_MAX_BYTES];
    va_list arguments;

    if (!logger)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    logger(levels[kind] + atomic_load(&levels_up), NCCL_SUBSYS_INIT | NCCL_SUBSYS_NET, "net_uccl", 0, "NET/uccl : %s",
           line);
}

static void take_engine_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    log_line(level <= UCCL_LOG_WARN   ? LOG_KIND_WARN
             : level == UCCL_LOG_INFO ? LOG_KIND_INFO
                                      : LOG_KIND_TRACE,
             "%s", text);
}

void log_start(nccl_logger_fn logger)
{
    if (logger)
        atomic_store(&levels_up, has_new_levels(logger));
    atomic_store(&logger_now, logger);
    uccl_set_log(take_engine_log, NULL);
}

enum nccl_result result_of(int error)
{
    switch (error) {
    case UCCL_OK:
        return NCCL_SUCCESS;
    case UCCL_EPEERDEAD:
    case UCCL_ECLOSED:
    case UCCL_EREFUSED:
    case UCCL_EPROTO:
    case UCCL_ETIMEDOUT:
        return NCCL_REMOTE_ERROR;
    case UCCL_EINVAL:
        return NCCL_INVALID_ARGUMENT;
    case UCCL_ETRUNCATED: /* the ranks do not agree on a size */
    case UCCL_EFORKED:
        return NCCL_INVALID_USAGE;
    default:
        return NCCL_SYSTEM_ERROR;
    }
}
