/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand-ins: environment variables of other libraries, and older names of ours, that give a parameter a value where no
 * other source does. They serve other libraries, so a wrong value is worth a warning, not an error. Any thread.
 */
#ifndef UCCL_STAND_IN_H
#define UCCL_STAND_IN_H

#include "base/param.h"

/*
 * Finds the value, in our words, that a stand-in gives the parameter, and the stand-in's name. NULL: none gives a valid
 * one. The value lives until somebody changes the environment.
 */
const char *stand_in_find(enum param_index index, const char **name);

bool stand_in_is(const char *name);

#endif
