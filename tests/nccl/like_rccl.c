/* SPDX-License-Identifier: Apache-2.0 */
/* A library with RCCL's name and a logger, whose version can be set. */
#include "nccl_net.h"

#define SHOWN __attribute__((visibility("default")))

SHOWN int rccl_last_level = -1, rccl_version;
SHOWN enum nccl_result ncclGetVersion(int *version);
SHOWN void rccl_logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

enum nccl_result ncclGetVersion(int *version)
{
    *version = rccl_version;
    return NCCL_SUCCESS;
}

void rccl_logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    rccl_last_level = level;
}
