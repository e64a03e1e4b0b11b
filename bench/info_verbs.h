/* SPDX-License-Identifier: Apache-2.0 */
/* What uccl_info shows of verbs ports. */
#ifndef INFO_VERBS_H
#define INFO_VERBS_H

#include <jansson.h>
#include <stdbool.h>

/* To stdout. False: a setting is not allowed, as the log says. */
bool verbs_print(void);
/* Adds "verbs": {"status", "ports"}. */
bool verbs_add_json(json_t *root);

#endif
