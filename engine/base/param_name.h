/* SPDX-License-Identifier: Apache-2.0 */
/* Names of parameters as people write them: in full, without the prefix, or misspelt. Any thread. */
#ifndef UCCL_PARAM_NAME_H
#define UCCL_PARAM_NAME_H

#include <stdbool.h>

/* The index of the row of "UCCL_CC" or, with `bare`, "CC"; -1: none. */
int param_find(const char *name, bool bare);

/* The parameter that was probably meant (few letters differ, or the end is missing); NULL: none. */
const char *param_close_name(const char *name);

/* Warns, once, that `name` is no parameter, and names the probable one. `origin`: its source. */
void param_warn_unknown(const char *name, const char *origin);

#endif
