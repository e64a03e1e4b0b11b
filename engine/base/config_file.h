/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters from a file: NAME=VALUE in each line, and comments. Any thread. */
#ifndef UCCL_CONFIG_FILE_H
#define UCCL_CONFIG_FILE_H

#include "base/param.h"

#include <limits.h>

#define CONFIG_FILE_VARIABLE "UCCL_CONF_FILE"

struct config_file {
    struct settings settings;
    char name[PATH_MAX]; /* "" where there is no file */
};

/*
 * Reads the file that the environment names, else ~/.uccl.conf, else /etc/uccl.conf, into `file`, which is zero.
 * UCCL_EINVAL: a wrong line, or a named file that cannot be read; UCCL_ENOMEM: no descriptor or memory. Logged.
 */
int config_file_load(struct config_file *file);

#endif
