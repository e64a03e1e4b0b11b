/* SPDX-License-Identifier: Apache-2.0 */
/* Values of parameters, each from its first source: setter, environment, configuration file, stand-in, default. */
#ifndef UCCL_CONFIG_H
#define UCCL_CONFIG_H

#include "base/param.h"
#include "uccl/engine.h"

struct uccl_config {
    struct settings set;
};

/*
 * Fills `out` for an engine opened with `config` (may be NULL). UCCL_EINVAL: some value is not allowed
 * (logged with name, value, source and range), or a rule between parameters is broken (a power of two, min <= max).
 * Warns of unknown UCCL_ names in the environment or the file, once per process and name.
 */
int config_resolve(const uccl_config *config, struct params *out);

/* uccl_config_set() and uccl_param_value(); the caller has checked the arguments. */
int config_set(struct uccl_config *config, const char *name, const char *value);
int config_value(const struct uccl_config *config, enum param_index index, char *value, size_t value_size, char *source,
                 size_t source_size);

/* Formats the field at `offset` (offsetof(struct params, field)), in one spelling; cut at `size`. */
void config_format(const struct params *params, size_t offset, char *out, size_t size);

#endif
