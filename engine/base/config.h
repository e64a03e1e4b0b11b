/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where parameter values come from: setter, environment, configuration file, default, in this order.
 * The public calls uccl_config_* and uccl_param_* are implemented in config.c too.
 */
#ifndef UCCL_CONFIG_H
#define UCCL_CONFIG_H

#include "defs/params.h"
#include "uccl/engine.h"

/*
 * Fills `out` for an engine opened with `config` (may be NULL). UCCL_EINVAL: some value is not allowed
 * (logged with name, value, source and range). Unknown UCCL_ names in the environment or the file warn,
 * once per process and name. Cross-parameter rules (a power of two, min <= max) are checked here too.
 */
int config_resolve(const uccl_config *config, struct params *out);

/*
 * The value of the field at `offset` (offsetof(struct params, field)) as text, in one spelling however it was
 * written; cut at `size`.
 */
void config_format(const struct params *params, size_t offset, char *out, size_t size);

#endif
