/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls about parameters (base/config.c). Any thread, as long as nobody changes the uccl_config meanwhile. */
#include "base/config.h"
#include "base/log.h"
#include "base/process.h"
#include "export.h"

#include <stdlib.h>

UCCL_API int uccl_config_create(uccl_config **out)
{
    if (!out)
        return UCCL_EINVAL;
    uccl_config *config = calloc(1, sizeof *config);
    if (!config)
        return UCCL_ENOMEM;
    *out = config;
    return UCCL_OK;
}

UCCL_API void uccl_config_destroy(uccl_config *config)
{
    free(config);
}

UCCL_API int uccl_config_set(uccl_config *config, const char *name, const char *value)
{
    if (!config || !name || !value) {
        LOG_ERR("uccl_config_set: %s is NULL", !config ? "config" : !name ? "name" : "value");
        return UCCL_EINVAL;
    }
    return config_set(config, name, value);
}

UCCL_API int uccl_param_info(unsigned index, struct uccl_param_info *out)
{
    if (index >= PARAM_COUNT || !out)
        return UCCL_EINVAL;
    const struct param_row *row = &param_rows[index];
    *out = (struct uccl_param_info){row->name, row->default_, row->range, row->unit, row->doc};
    return UCCL_OK;
}

UCCL_API int uccl_param_value(const uccl_config *config, unsigned index, char *value, size_t value_size, char *source,
                              size_t source_size)
{
    if (index >= PARAM_COUNT || (!value && value_size > 0) || (!source && source_size > 0))
        return UCCL_EINVAL;
    CANCEL_LATER;
    return config_value(config, (enum param_index)index, value, value_size, source, source_size);
}
