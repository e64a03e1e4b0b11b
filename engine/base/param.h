/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of parameters, a row of params.def each; parsing and formatting their values. Any thread; no state.
 */
#ifndef UCCL_PARAM_H
#define UCCL_PARAM_H

#include "defs/params.h"

#include <stddef.h>

#define PARAM_PREFIX "UCCL_"

enum {
    PARAM_PREFIX_LENGTH = sizeof PARAM_PREFIX - 1,
    PARAM_NAME_SHOWN = 64,  /* messages cut longer unknown names */
    PARAM_VALUE_SHOWN = 80, /* and longer values */
};

/* INDEX_mtu is the row of the field mtu. */
enum param_index {
#define PARAM_U64(field, ...) INDEX_##field,
#define PARAM_BOOL(field, ...) INDEX_##field,
#define PARAM_ENUM(field, ...) INDEX_##field,
#define PARAM_STR(field, ...) INDEX_##field,
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
    PARAM_COUNT
};

enum param_kind { KIND_U64, KIND_BOOL, KIND_ENUM, KIND_STR };

struct param_row {
    const char *name; /* with the prefix */
    enum param_kind kind;
    size_t offset;        /* of the field in struct params */
    const char *default_; /* as a person writes it */
    uint64_t min, max;    /* KIND_U64 */
    const char *range;    /* allowed values, for people; the choices of KIND_ENUM */
    const char *unit;
    const char *doc;
};

extern const struct param_row param_rows[PARAM_COUNT];

/* Values of parameters as text, from the setter or a file. */
struct settings {
    char text[PARAM_COUNT][PARAM_STR_MAX + 1];
    unsigned line[PARAM_COUNT]; /* 0: not set; else the line of the file, 1 for the setter's */
};

/* Parses `text` into the field of the row. False: not allowed, and the field is unchanged. */
bool param_parse(enum param_index index, const char *text, struct params *out);

/* Formats the field of the row, in one spelling; cut at `size`. */
void param_format(enum param_index index, const struct params *params, char *out, size_t size);

/* The field of a KIND_U64 row. */
uint64_t *param_u64(struct params *params, enum param_index index);

#endif
