/* SPDX-License-Identifier: Apache-2.0 */
/* The default of every parameter, for tests that drive cores; of choices the first one. */
#ifndef TESTS_PARAM_DEFAULTS_H
#define TESTS_PARAM_DEFAULTS_H

#include "defs/params.h"

static inline struct params param_defaults(void)
{
    return (struct params){
#define PARAM_U64(field, name, default_, min, max, unit, doc) .field = default_,
#define PARAM_BOOL(field, name, default_, doc) .field = default_,
#define PARAM_ENUM(field, name, default_, choices, doc) .field = 0,
#define PARAM_STR(field, name, default_, doc) .field = default_,
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
    };
}

#endif
