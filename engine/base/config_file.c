/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config_file.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/param_name.h"
#include "base/warned.h"
#include "uccl/engine.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONF_FILE_SYSTEM "/etc/uccl.conf"
#define CONF_FILE_USER ".uccl.conf"

enum {
    CONF_LINE_MAX = 1023, /* bytes of a line of a file */
    ORIGIN_MAX = PATH_MAX + 16,
};

/* Removes the blanks around `text`, in place. */
static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

/* Cuts the comment: it starts at a '#' that follows a blank or begins the line; "a#b" is a value. */
static void cut_comment(char *line)
{
    for (char *c = line; *c; c++)
        if (*c == '#' && (c == line || isspace((unsigned char)c[-1]))) {
            *c = '\0';
            return;
        }
}

static int read_line(struct config_file *file, char *line, unsigned number)
{
    cut_comment(line);
    char *name = trim(line);
    if (!*name)
        return UCCL_OK;
    char *value = strchr(name, '=');
    if (!value || value == name) {
        LOG_ERR("%s:%u: expected NAME=VALUE, found \"%.*s\"", file->name, number, PARAM_VALUE_SHOWN, name);
        return UCCL_EINVAL;
    }
    *value++ = '\0';
    name = trim(name);
    value = trim(value);

    int index = param_find(name, true);
    if (index < 0) {
        char origin[ORIGIN_MAX];
        snprintf(origin, sizeof origin, "%s:%u", file->name, number);
        param_warn_unknown(name, origin);
        return UCCL_OK;
    }
    if (strlen(value) > PARAM_STR_MAX) {
        LOG_ERR("%s:%u: the value of %s is longer than %d bytes", file->name, number, param_rows[index].name,
                PARAM_STR_MAX);
        return UCCL_EINVAL;
    }
    strcpy(file->settings.text[index], value);
    file->settings.line[index] = number; /* the last of several lines counts */
    return UCCL_OK;
}

/* 0; a positive errno: the file cannot be read; UCCL_EINVAL (logged): a line is wrong. */
static int read_file(struct config_file *file, const char *path)
{
    char line[CONF_LINE_MAX + 2]; /* with newline and NUL */
    int result = UCCL_OK;
    if ((size_t)snprintf(file->name, sizeof file->name, "%s", path) >= sizeof file->name)
        return ENAMETOOLONG;
    FILE *stream = fopen(path, "re");
    if (!stream)
        return errno;
    for (unsigned number = 1; result == UCCL_OK && fgets(line, sizeof line, stream); number++) {
        /* A line without newline before the end of the file is too long, or has a NUL byte. */
        if (!strchr(line, '\n') && !feof(stream)) {
            LOG_ERR("%s:%u: not a text line of at most %d bytes", path, number, CONF_LINE_MAX);
            result = UCCL_EINVAL;
        } else {
            result = read_line(file, line, number);
        }
    }
    if (result == UCCL_OK && ferror(stream))
        result = errno ? errno : EIO;
    fclose(stream);
    return result;
}

/* Whether the process lacks descriptors or memory: the file may exist, and its settings must not vanish. */
static bool ran_out(int result)
{
    return result > 0 && fault_error(result) == UCCL_ENOMEM;
}

static int no_descriptor(const char *path, int system_error)
{
    char text[FAULT_TEXT];
    LOG_ERR("configuration file \"%s\" cannot be read: %s", path, fault_text(system_error, text));
    return UCCL_ENOMEM;
}

/* Reads a file that nobody named: a missing one is normal, an unreadable one is worth one warning. */
static int read_default_file(struct config_file *file, const char *path)
{
    int result = read_file(file, path);
    if (ran_out(result))
        return no_descriptor(path, result);
    if (result > 0 && result != ENOENT && result != ENOTDIR && warned_first(path))
        LOG_WARNING("configuration file %s cannot be read and has no effect: %s", path, strerror(result));
    return result;
}

int config_file_load(struct config_file *file)
{
    const char *named = getenv(CONFIG_FILE_VARIABLE);
    if (named) {
        int result = read_file(file, named);
        if (ran_out(result))
            return no_descriptor(named, result);
        if (result > 0)
            LOG_ERR("configuration file \"%s\" (environment, " CONFIG_FILE_VARIABLE ") cannot be read: %s", named,
                    strerror(result));
        return result ? UCCL_EINVAL : UCCL_OK;
    }

    const char *home = getenv("HOME");
    char path[PATH_MAX];
    int result = ENOENT;
    if (home && *home && (size_t)snprintf(path, sizeof path, "%s/" CONF_FILE_USER, home) < sizeof path)
        result = read_default_file(file, path);
    if (result > 0) {
        memset(&file->settings, 0, sizeof file->settings);
        result = read_default_file(file, CONF_FILE_SYSTEM);
    }
    if (result > 0) {
        memset(&file->settings, 0, sizeof file->settings);
        file->name[0] = '\0';
        result = UCCL_OK;
    }
    return result;
}
