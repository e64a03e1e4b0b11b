/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list by which a user chooses interfaces or devices, in NCCL's syntax: comma-separated items. "=" before an item
 * wants the whole name; "^" shuts out what the item matches; before the first item they hold for the whole list. An
 * empty list admits everything. The caller decides what an item matches. Pure.
 */
#ifndef UCCL_FILTER_H
#define UCCL_FILTER_H

#include <stdbool.h>

enum { FILTER_ITEM_MAX = 128 }; /* bytes; longer items match nothing */

/* Whether `item`, without its signs, matches; may write to it. */
typedef bool (*filter_match_fn)(char *item, bool exact, const void *context);

bool filter_admits(const char *filter, filter_match_fn matches, const void *context);

/* One item, and the items that are left. */
struct filter_item {
    char name[FILTER_ITEM_MAX]; /* without signs and blanks; never empty */
    bool excludes, exact;
    bool too_long; /* the name is cut */
};
struct filter_items {
    const char *rest;
    bool excludes, exact; /* of all items */
};
struct filter_items filter_items(const char *filter);
/* False: no further one. */
bool filter_next(struct filter_items *items, struct filter_item *out);
bool filter_item_matches(const struct filter_item *item, filter_match_fn matches, const void *context);

/* The usual match: by the whole name or its beginning. */
bool filter_name_matches(const char *item, bool exact, const char *name);

#endif
