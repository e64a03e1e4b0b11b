/* SPDX-License-Identifier: Apache-2.0 */
#include "base/param.h"

#include "base/pin.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STR_RANGE(max) STR_RANGE_(max)
#define STR_RANGE_(max) "text of at most " #max " bytes"
#define STR_MAX 255 /* PARAM_STR_MAX: the preprocessor makes no text of an enum constant */
_Static_assert(STR_MAX == PARAM_STR_MAX, "people read another range than the one in force");

const struct param_row param_rows[PARAM_COUNT] = {
#define PARAM_U64(field, name, default_, min, max, unit, doc)                                                          \
    {PARAM_PREFIX name, KIND_U64, offsetof(struct params, field), #default_, min, max, #min ".." #max, unit, doc},
#define PARAM_BOOL(field, name, default_, doc)                                                                         \
    {PARAM_PREFIX name, KIND_BOOL, offsetof(struct params, field), #default_, 0, 1, "0|1|false|true|no|yes", "", doc},
#define PARAM_ENUM(field, name, default_, choices, doc)                                                                \
    {PARAM_PREFIX name, KIND_ENUM, offsetof(struct params, field), default_, 0, 0, choices, "", doc},
#define PARAM_STR(field, name, default_, doc)                                                                          \
    {PARAM_PREFIX name, KIND_STR, offsetof(struct params, field), default_, 0, 0, STR_RANGE(STR_MAX), "", doc},
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
};

uint64_t *param_u64(struct params *params, enum param_index index)
{
    assert(param_rows[index].kind == KIND_U64);
    return (uint64_t *)(void *)((char *)params + param_rows[index].offset);
}

/* Strictly decimal: strtoull() alone would accept blanks, a sign and trailing characters. */
static bool parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    if (!*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno || value < min || value > max)
        return false;
    *out = value;
    return true;
}

/* Finds the index of `text` in "a|b|c". */
static bool parse_choice(const char *text, const char *choices, unsigned *out)
{
    size_t length = strlen(text);
    for (unsigned index = 0;; index++) {
        size_t n = strcspn(choices, "|");
        if (n == length && memcmp(choices, text, n) == 0) {
            *out = index;
            return true;
        }
        if (!choices[n])
            return false;
        choices += n + 1;
    }
}

bool param_parse(enum param_index index, const char *text, struct params *out)
{
    const struct param_row *row = &param_rows[index];
    void *field = (char *)out + row->offset;
    unsigned choice = 0;
    if (strlen(text) > PARAM_STR_MAX) /* of any kind: settings have no room for "000...01" either */
        return false;
    switch (row->kind) {
    case KIND_U64:
        return parse_u64(text, row->min, row->max, param_u64(out, index));
    case KIND_BOOL:
        if (!parse_choice(text, row->range, &choice))
            return false;
        *(bool *)field = choice % 2; /* the range alternates no and yes */
        return true;
    case KIND_ENUM:
        return parse_choice(text, row->range, field);
    case KIND_STR: {
        struct pin_set ignored;
        if (index == INDEX_cpus && *text && !pin_parse(text, &ignored))
            return false;
        strcpy(field, text);
        return true;
    }
    }
    return false;
}

void param_format(enum param_index index, const struct params *params, char *out, size_t size)
{
    const struct param_row *row = &param_rows[index];
    const void *field = (const char *)params + row->offset;
    const char *choice = row->range;
    switch (row->kind) {
    case KIND_U64:
        snprintf(out, size, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case KIND_BOOL:
        snprintf(out, size, "%d", *(const bool *)field);
        break;
    case KIND_ENUM:
        for (unsigned i = *(const unsigned *)field; i > 0; i--)
            choice = strchr(choice, '|') + 1;
        snprintf(out, size, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    case KIND_STR:
        snprintf(out, size, "%s", (const char *)field);
        break;
    }
}
