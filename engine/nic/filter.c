/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/filter.h"

#include <stdio.h>
#include <string.h>

bool filter_name_matches(const char *item, bool exact, const char *name)
{
    return exact ? strcmp(item, name) == 0 : strncmp(item, name, strlen(item)) == 0;
}

bool filter_admits(const char *filter, filter_match_fn matches, const void *context)
{
    bool list_excludes = false, list_exact = false;
    bool wanted = false, any_wanted = false;

    for (; *filter == '^' || *filter == '='; filter++)
        *(*filter == '^' ? &list_excludes : &list_exact) = true;
    while (*filter != '\0') {
        char item[FILTER_ITEM_MAX];
        bool excludes = list_excludes, exact = list_exact, match;
        size_t length;

        for (; *filter == '^' || *filter == '=' || *filter == ' '; filter++) {
            excludes |= *filter == '^';
            exact |= *filter == '=';
        }
        length = strcspn(filter, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, filter);
        item[strcspn(item, " ")] = '\0';
        filter += length + (filter[length] == ',');
        if (item[0] == '\0')
            continue;
        match = length < sizeof item && matches(item, exact, context);
        if (excludes && match)
            return false;
        any_wanted |= !excludes;
        wanted |= !excludes && match;
    }
    return wanted || !any_wanted;
}
