/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of parameters: each has an empty HOME and no UCCL_ variables, so that the machine's own do not matter; its
 * ~/.uccl.conf exists and is empty, so that /etc/uccl.conf does not either.
 */
#ifndef TEST_CONFIGURED_H
#define TEST_CONFIGURED_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"

enum { LINES_MAX = 100 };

static struct {
    enum uccl_log_level level;
    char text[1024];
} lines[LINES_MAX];
static int line_count;

static char home[64];
static char home_file[128];
static struct params params;

static inline void remember(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    cr_assert_lt(line_count, LINES_MAX);
    lines[line_count].level = level;
    snprintf(lines[line_count++].text, sizeof lines[0].text, "%s", text);
}

static inline void write_file(const char *path, const char *content)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    cr_assert_geq(fputs(content, file), 0);
    cr_assert_eq(fclose(file), 0);
}

static inline void clear_environment(void)
{
    for (char **entry = environ; *entry;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "UCCL_", 5) == 0 || strncmp(name, "NCCL_", 5) == 0) {
            unsetenv(name);
            entry = environ; /* it has moved */
        } else {
            entry++;
        }
    }
}

static inline void config_set_up(void)
{
    clear_environment();
    snprintf(home, sizeof home, "/tmp/uccl-test-config-XXXXXX");
    cr_assert_not_null(mkdtemp(home));
    snprintf(home_file, sizeof home_file, "%s/.uccl.conf", home);
    write_file(home_file, "");
    setenv("HOME", home, 1);
    uccl_set_log(remember, NULL);
}

static inline void config_tear_down(void)
{
    unlink(home_file);
    rmdir(home_file); /* one test makes a directory of it */
    rmdir(home);
}

static inline unsigned index_of(const char *name)
{
    struct uccl_param_info info;
    for (unsigned i = 0; uccl_param_info(i, &info) == UCCL_OK; i++)
        if (strcmp(info.name, name) == 0)
            return i;
    cr_assert_fail("no parameter %s", name);
    return 0;
}

/* Value and source of a parameter, as a user sees them: "timely from setter". */
static inline const char *seen(const uccl_config *config, const char *name)
{
    static char both[1024];
    char value[300], source[300];
    int result = uccl_param_value(config, index_of(name), value, sizeof value, source, sizeof source);
    cr_assert_eq(result, UCCL_OK, "%s", name);
    snprintf(both, sizeof both, "%s from %s", value, source);
    return both;
}

static inline void expect_resolved(const uccl_config *config)
{
    cr_assert_eq(config_resolve(config, &params), UCCL_OK, "%s", line_count ? lines[line_count - 1].text : "");
}

/* Refused with exactly one line at error level, which is `text`; the output is untouched. */
static inline void expect_refused(const uccl_config *config, const char *text)
{
    struct params before;
    memset(&params, 0x5a, sizeof params);
    before = params;
    line_count = 0;
    cr_assert_eq(config_resolve(config, &params), UCCL_EINVAL, "expected: %s", text);
    cr_assert_eq(memcmp(&params, &before, sizeof params), 0);
    cr_assert_eq(line_count, 1, "%d lines instead of: %s", line_count, text);
    cr_assert_eq(lines[0].level, UCCL_LOG_ERROR);
    cr_assert_str_eq(lines[0].text, text);
}

static inline uccl_config *new_config(void)
{
    uccl_config *config = NULL;
    cr_assert_eq(uccl_config_create(&config), UCCL_OK);
    return config;
}

#endif
