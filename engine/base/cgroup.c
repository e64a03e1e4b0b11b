/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The groups of the process in the two kinds of hierarchies; NULL: none. From malloc(). */
struct groups {
    char *unified; /* version 2 */
    char *own;     /* version 1, the hierarchy that has the controller */
};

/* Whether a list "cpu,cpuacct" has `word`. */
static bool lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; list; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
            return true;
    }
    return false;
}

static FILE *open_in(const char *directory, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return NULL;
    FILE *file = fopen(path, "re");
    free(path);
    return file;
}

long long cgroup_number(const char *folder, const char *name, long long *second)
{
    long long first = -1;
    FILE *file = open_in(folder, name);
    if (!file)
        return -1;
    if (fscanf(file, "%lld %lld", &first, second ? second : &(long long){0}) < 1)
        first = -1;
    fclose(file);
    return first;
}

static void read_groups(const char *proc, const char *controller, struct groups *out)
{
    char *line = NULL;
    size_t size = 0;
    FILE *file = open_in(proc, "cgroup");
    *out = (struct groups){0};
    while (file && getline(&line, &size, file) > 0) { /* "4:cpu,cpuacct:/group", "0::/group" */
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!out->unified && strcmp(line, "0:") == 0)
            out->unified = strdup(group);
        else if (!out->own && lists(list + 1, controller))
            out->own = strdup(group);
    }
    free(line);
    if (file)
        fclose(file);
}

/* Spaces and the like stand as \040 in mountinfo. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text; to++) {
        unsigned value;
        if (sscanf(text, "\\%3o", &value) == 1) {
            *to = (char)value;
            text += 4;
        } else {
            *to = *text++;
        }
    }
    *to = '\0';
}

/* Fields of a line of mountinfo: "31 23 0:28 ROOT MOUNT rw shared:1 - TYPE cgroup OPTIONS"; some may be absent (NULL).
 */
struct mounted {
    char *root, *at;
    const char *type, *options;
};

static void split(char *line, struct mounted *out)
{
    enum { ROOT = 3, AT = 4, TYPE = 1, OPTIONS = 3 };
    char *rest = NULL;
    unsigned index = 0, behind = 0; /* the field; the field behind "-" */
    *out = (struct mounted){0};
    for (char *field = strtok_r(line, " \n", &rest); field; field = strtok_r(NULL, " \n", &rest), index++) {
        behind += behind || (index > AT && strcmp(field, "-") == 0);
        if (index == ROOT)
            out->root = field;
        else if (index == AT)
            out->at = field;
        else if (behind == TYPE + 1)
            out->type = field;
        else if (behind == OPTIONS + 1)
            out->options = field;
    }
}

/* Whom to tell of folders. */
struct looks {
    void (*look)(void *context, const char *folder);
    void *context;
};

/* The group and those above it, up to the root of a mount, which shows the group `root`. */
static void look_up(const char *mount, const char *root, const char *group, const struct looks *looks)
{
    char *folder;
    size_t above = strcmp(root, "/") == 0 ? 0 : strlen(root), top = strlen(mount);
    /* a group that lies outside the mount, or outside the process's namespace ("/../"), cannot be seen */
    if (strncmp(group, root, above) != 0 || (group[above] != '/' && group[above] != '\0') ||
        strncmp(group, "/..", 3) == 0 || asprintf(&folder, "%s%s", mount, group + above) < 0)
        return;
    for (;;) {
        looks->look(looks->context, folder);
        char *last = strrchr(folder, '/');
        if (!last || (size_t)(last - folder) < top)
            break;
        *last = '\0';
    }
    free(folder);
}

static void look_at(char *line, const char *controller, const struct groups *groups, const struct looks *looks)
{
    struct mounted mounted;
    split(line, &mounted);
    if (!mounted.options)
        return;
    unescape(mounted.root);
    unescape(mounted.at);
    if (groups->unified && strcmp(mounted.type, "cgroup2") == 0)
        look_up(mounted.at, mounted.root, groups->unified, looks);
    else if (groups->own && strcmp(mounted.type, "cgroup") == 0 && lists(mounted.options, controller))
        look_up(mounted.at, mounted.root, groups->own, looks);
}

void cgroup_each(const char *proc, const char *controller, void (*look)(void *context, const char *folder),
                 void *context)
{
    const struct looks looks = {look, context};
    struct groups groups;
    char *line = NULL;
    size_t size = 0;
    read_groups(proc, controller, &groups);
    FILE *file = open_in(proc, "mountinfo");
    while (file && getline(&line, &size, file) > 0)
        look_at(line, controller, &groups, &looks);
    free(line);
    if (file)
        fclose(file);
    free(groups.unified);
    free(groups.own);
}
