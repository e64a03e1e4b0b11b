/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error texts, version, build options and counter names: constants from rows declared once (UCCL_ERROR_ROWS,
 * counters.def). And what the process may use of the machine. Any thread.
 */
#include "base/cores.h"
#include "base/fault.h"
#include "base/process.h"
#include "export.h"
#include "uccl/engine.h"

#ifndef UCCL_BUILD_INFO
#define UCCL_BUILD_INFO "unknown"
#endif

#define TEXT_OF(token) #token
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

struct counter_row {
    const char *name;
    const char *doc;
};

static const struct counter_row counter_rows[] = {
#define COUNTER(field, doc) {#field, doc},
#include "defs/counters.def"
#undef COUNTER
};

enum { COUNTER_ROWS = sizeof counter_rows / sizeof counter_rows[0] };

UCCL_API const char *uccl_strerror(int error)
{
    const char *text = fault_error_text(error);
    return text ? text : "unknown error";
}

UCCL_API const char *uccl_version(void)
{
    return VERSION_TEXT(UCCL_VERSION_MAJOR, UCCL_VERSION_MINOR, UCCL_VERSION_PATCH);
}

UCCL_API const char *uccl_build_info(void)
{
    return UCCL_BUILD_INFO;
}

UCCL_API unsigned uccl_cores(void)
{
    CANCEL_LATER;
    return cores_usable();
}

UCCL_API int uccl_counter_info(unsigned index, const char **name, const char **doc)
{
    if (index >= COUNTER_ROWS || !name || !doc)
        return UCCL_EINVAL;
    *name = counter_rows[index].name;
    *doc = counter_rows[index].doc;
    return UCCL_OK;
}
