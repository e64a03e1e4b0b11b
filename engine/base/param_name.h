/* SPDX-License-Identifier: Apache-2.0 */
/* Names of parameters as people write them: right, without the prefix, or misspelt. Any thread. */
#ifndef UCCL_PARAM_NAME_H
#define UCCL_PARAM_NAME_H

#include <stdbool.h>

/* The index of the row of "UCCL_CC" or, where `bare` is allowed, "CC"; -1: none. */
int param_find(const char *name, bool bare);

/* The parameter that was probably meant (few letters differ, or the end is missing), or NULL. */
const char *param_close_name(const char *name);

/* Warns, once, that `name` is no parameter, and which one was probably meant. `origin`: where it stands. */
void param_warn_unknown(const char *name, const char *origin);

#endif
