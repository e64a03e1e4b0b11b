/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/filter.h"

#include <stdio.h>
#include <string.h>

bool filter_name_matches(const char *item, bool exact, const char *name)
{
    return exact ? strcmp(item, name) == 0 : strncmp(item, name, strlen(item)) == 0;
}

struct filter_items filter_items(const char *filter)
{
    struct filter_items items = {.rest = filter};

    for (; *items.rest == '^' || *items.rest == '='; items.rest++)
        *(*items.rest == '^' ? &items.excludes : &items.exact) = true;
    return items;
}

bool filter_next(struct filter_items *items, struct filter_item *out)
{
    while (*items->rest != '\0') {
        size_t length;

        *out = (struct filter_item){.excludes = items->excludes, .exact = items->exact};
        for (; *items->rest == '^' || *items->rest == '=' || *items->rest == ' '; items->rest++) {
            out->excludes |= *items->rest == '^';
            out->exact |= *items->rest == '=';
        }
        length = strcspn(items->rest, ",");
        out->too_long = length >= sizeof out->name;
        snprintf(out->name, sizeof out->name, "%.*s", (int)length, items->rest);
        out->name[strcspn(out->name, " ")] = '\0';
        items->rest += length + (items->rest[length] == ',');
        if (out->name[0] != '\0')
            return true;
    }
    return false;
}

bool filter_item_matches(const struct filter_item *item, filter_match_fn matches, const void *context)
{
    char name[FILTER_ITEM_MAX]; /* which `matches` may cut */

    memcpy(name, item->name, sizeof name);
    return !item->too_long && matches(name, item->exact, context);
}

bool filter_admits(const char *filter, filter_match_fn matches, const void *context)
{
    struct filter_items items = filter_items(filter);
    struct filter_item item;
    bool wanted = false, any_wanted = false;

    while (filter_next(&items, &item)) {
        bool match = filter_item_matches(&item, matches, context);

        if (item.excludes && match)
            return false;
        any_wanted |= !item.excludes;
        wanted |= !item.excludes && match;
    }
    return wanted || !any_wanted;
}
