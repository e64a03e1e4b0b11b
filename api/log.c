/* SPDX-License-Identifier: Apache-2.0 */
/* The public call of the log (base/log.c). Any thread. */
#include "base/log.h"
#include "base/process.h"
#include "export.h"

UCCL_API void uccl_set_log(uccl_log_fn fn, void *user)
{
    CANCEL_LATER;
    log_set_callback(fn, user);
}
