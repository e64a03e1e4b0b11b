/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters: from text that a person wrote to one checked struct. The problem: a value has several
 * sources. A person who writes a wrong one needs to read which value, from which source, and which values
 * are right; a misspelt name must not be ignored in silence.
 *
 * Setter and file each fill a `struct settings`; find_value() alone decides which source wins. Values stay text until
 * then, and only the winner is parsed, also a default.
 *
 * Threads: any, as long as nobody changes the uccl_config or the environment meanwhile. Each call reads
 * environment and file anew. The only state of the process is the list of warnings already given (warned.c).
 */
#include "base/config.h"

#include "base/config_file.h"
#include "base/log.h"
#include "base/param_name.h"
#include "base/stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ORIGIN_MAX = PATH_MAX + 16 };

/* Rules between parameters. */
static const enum param_index powers_of_two[] = {
    INDEX_chunk_window,
    INDEX_msg_window,
    INDEX_ring_entries,
};

static const struct {
    enum param_index small;
    uint64_t factor; /* small * factor <= large */
    enum param_index large;
} at_most[] = {
    {INDEX_rto_min_us, 1, INDEX_rto_max_us},
    /* Two eager messages always fit: today the ranges alone ensure that. */
    {INDEX_eager_kb, 2, INDEX_eager_window_kb},
};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* ---- sources --------------------------------------------------------------------------------- */

struct sources {
    const struct uccl_config *config; /* NULL: no setter */
    struct config_file file;
};

/* A value and its origin; the strings live as long as the sources and the environment do. */
struct found {
    const char *text;
    const char *source;   /* as uccl_param_value() names it */
    const char *stand_in; /* the environment variable of another name that gave it, or NULL */
    unsigned line;        /* 0: not from a file */
};

/* "environment", "environment, NCCL_IB_HCA" or "/etc/uccl.conf:12", for messages. */
static const char *origin_text(const struct found *found, char out[ORIGIN_MAX])
{
    if (found->line)
        snprintf(out, ORIGIN_MAX, "%s:%u", found->source, found->line);
    else if (found->stand_in)
        snprintf(out, ORIGIN_MAX, "%s, %s", found->source, found->stand_in);
    else
        snprintf(out, ORIGIN_MAX, "%s", found->source);
    return out;
}

static void find_value(const struct sources *sources, enum param_index index, struct found *out)
{
    const char *text = NULL, *stand_in = NULL;
    if (sources->config && sources->config->set.line[index])
        *out = (struct found){sources->config->set.text[index], "setter", NULL, 0};
    else if ((text = getenv(param_rows[index].name)))
        *out = (struct found){text, "environment", NULL, 0};
    else if (sources->file.settings.line[index])
        *out = (struct found){sources->file.settings.text[index], sources->file.name, NULL,
                              sources->file.settings.line[index]};
    else if ((text = stand_in_find(index, &stand_in)))
        *out = (struct found){text, "environment", stand_in, 0};
    else
        *out = (struct found){param_rows[index].default_, "default", NULL, 0};
}

static int refuse_value(enum param_index index, const struct found *found, const char *allowed)
{
    char origin[ORIGIN_MAX];
    const char *unit = param_rows[index].unit;
    if (index == INDEX_cpus)
        allowed = "numbers and ranges of them, such as 2-5,8, in ";
    LOG_ERR("parameter %s: value \"%.*s\" (%s) is not allowed; allowed: %s%s%s%s", param_rows[index].name,
            PARAM_VALUE_SHOWN, found->text, origin_text(found, origin), allowed, param_rows[index].range,
            *unit ? " " : "", unit);
    return UCCL_EINVAL;
}

static int resolve_value(const struct sources *sources, enum param_index index, struct params *params,
                         struct found *found)
{
    find_value(sources, index, found);
    return param_parse(index, found->text, params) ? UCCL_OK : refuse_value(index, found, "");
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void check_environment(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        char name[PARAM_NAME_SHOWN + 1];
        if (strncmp(*entry, PARAM_PREFIX, PARAM_PREFIX_LENGTH) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (param_find(name, false) < 0 && !stand_in_is(name) && strcmp(name, CONFIG_FILE_VARIABLE) != 0)
            param_warn_unknown(name, "environment");
    }
}

static int load_sources(struct sources *sources, const struct uccl_config *config)
{
    memset(sources, 0, sizeof *sources);
    sources->config = config;
    check_environment();
    return config_file_load(&sources->file);
}

static int check_powers_of_two(const struct sources *sources, struct params *params)
{
    for (size_t i = 0; i < LENGTH(powers_of_two); i++) {
        uint64_t value = *param_u64(params, powers_of_two[i]);
        if (value == 0 || (value & (value - 1)) != 0) {
            struct found found;
            find_value(sources, powers_of_two[i], &found);
            return refuse_value(powers_of_two[i], &found, "a power of two in ");
        }
    }
    return UCCL_OK;
}

static int check_at_most(const struct sources *sources, struct params *params)
{
    for (size_t i = 0; i < LENGTH(at_most); i++) {
        enum param_index small = at_most[i].small, large = at_most[i].large;
        if (*param_u64(params, small) <= *param_u64(params, large) / at_most[i].factor)
            continue;
        struct found a, b;
        char a_origin[ORIGIN_MAX], b_origin[ORIGIN_MAX];
        char divided[16] = "";
        find_value(sources, small, &a);
        find_value(sources, large, &b);
        if (at_most[i].factor > 1)
            snprintf(divided, sizeof divided, " / %u", (unsigned)at_most[i].factor);
        LOG_ERR("parameters %s=%s (%s) and %s=%s (%s) do not go together; allowed: %s <= %s%s", param_rows[small].name,
                a.text, origin_text(&a, a_origin), param_rows[large].name, b.text, origin_text(&b, b_origin),
                param_rows[small].name, param_rows[large].name, divided);
        return UCCL_EINVAL;
    }
    return UCCL_OK;
}

int config_resolve(const uccl_config *config, struct params *out)
{
    struct sources sources;
    struct params params = {0};
    int result = load_sources(&sources, config);
    for (int i = 0; i < PARAM_COUNT && result == UCCL_OK; i++) {
        struct found found;
        result = resolve_value(&sources, (enum param_index)i, &params, &found);
    }
    if (result == UCCL_OK)
        result = check_powers_of_two(&sources, &params);
    if (result == UCCL_OK)
        result = check_at_most(&sources, &params);
    if (result == UCCL_OK)
        *out = params;
    return result;
}

int config_set(struct uccl_config *config, const char *name, const char *value)
{
    int index = param_find(name, true);
    if (index < 0) {
        char shown[PARAM_NAME_SHOWN + 1];
        snprintf(shown, sizeof shown, "%s", name);
        const char *meant = param_close_name(shown);
        LOG_ERR("%s (setter) is not a parameter%s%s%s; uccl_info --params shows all", shown, meant ? "; " : "",
                meant ? meant : "", meant ? " was probably meant" : "");
        return UCCL_EINVAL;
    }
    struct params scratch;
    struct found found = {value, "setter", NULL, 0};
    if (!param_parse((enum param_index)index, value, &scratch))
        return refuse_value((enum param_index)index, &found, "");
    strcpy(config->set.text[index], value);
    config->set.line[index] = 1;
    return UCCL_OK;
}

int config_value(const struct uccl_config *config, enum param_index index, char *value, size_t value_size, char *source,
                 size_t source_size)
{
    struct sources sources;
    struct found found;
    struct params params = {0};
    int result = load_sources(&sources, config);
    if (result == UCCL_OK)
        result = resolve_value(&sources, index, &params, &found);
    if (result == UCCL_OK) {
        param_format(index, &params, value, value_size);
        snprintf(source, source_size, "%s%s%s", found.source, found.stand_in ? ", " : "",
                 found.stand_in ? found.stand_in : "");
    }
    return result;
}

void config_format(const struct params *params, size_t offset, char *out, size_t size)
{
    unsigned index = 0;
    while (param_rows[index].offset != offset)
        index++;
    param_format((enum param_index)index, params, out, size);
}
