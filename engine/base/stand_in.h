/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand-ins: environment variables of other libraries, and older names of ours, that count where nobody gives the
 * parameter itself. They are meant for other libraries, so a value that makes no sense here is no reason to fail: one
 * warning. Any thread.
 */
#ifndef UCCL_STAND_IN_H
#define UCCL_STAND_IN_H

#include "base/param.h"

/*
 * The value, as we write it, that a stand-in gives a parameter, and the stand-in's name. NULL: none is set to
 * something that makes sense. Lives as long as the environment is not changed.
 */
const char *stand_in_find(enum param_index index, const char **name);

bool stand_in_is(const char *name);

#endif
