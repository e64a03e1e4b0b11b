/* SPDX-License-Identifier: Apache-2.0 */
#include "base/param_name.h"

#include "base/log.h"
#include "base/param.h"
#include "base/warned.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

int param_find(const char *name, bool bare)
{
    for (int i = 0; i < PARAM_COUNT; i++)
        if (strcmp(name, param_rows[i].name) == 0 ||
            (bare && strcmp(name, param_rows[i].name + PARAM_PREFIX_LENGTH) == 0))
            return i;
    return -1;
}

/*
 * The number of letters to insert, remove or replace to turn one name into the other, ignoring case
 * (R. A. Wagner and M. J. Fischer, The String-to-String Correction Problem, JACM 1974). `row[j]` is
 * the distance between the letters of `a` so far and the first j letters of `b`.
 */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[PARAM_NAME_SHOWN + 1];
    size_t length = strlen(b);
    assert(length <= PARAM_NAME_SHOWN);
    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (; *a; a++) {
        unsigned diagonal = row[0]++;
        for (size_t j = 1; j <= length; j++) {
            bool same = toupper((unsigned char)*a) == toupper((unsigned char)b[j - 1]);
            unsigned best = diagonal + !same;
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[length];
}

const char *param_close_name(const char *name)
{
    const char *best = NULL;
    unsigned best_distance = UINT_MAX;
    if (strncasecmp(name, PARAM_PREFIX, PARAM_PREFIX_LENGTH) == 0)
        name += PARAM_PREFIX_LENGTH;
    size_t length = strlen(name);
    for (int i = 0; i < PARAM_COUNT; i++) {
        const char *known = param_rows[i].name + PARAM_PREFIX_LENGTH;
        size_t known_length = strlen(known);
        size_t shorter = length < known_length ? length : known_length;
        unsigned distance = edit_distance(name, known);
        unsigned allowed = known_length < 6 ? 1 : known_length < 9 ? 2 : 3;
        if (shorter >= 3 && strncasecmp(name, known, shorter) == 0)
            distance = 1;
        if (distance <= allowed && distance < best_distance) {
            best = param_rows[i].name;
            best_distance = distance;
        }
    }
    return best;
}

void param_warn_unknown(const char *name, const char *origin)
{
    char shown[PARAM_NAME_SHOWN + 1];
    snprintf(shown, sizeof shown, "%s", name);
    const char *meant = param_close_name(shown);
    if (!warned_first(shown))
        return;
    LOG_WARNING("%s (%s) is not a parameter and has no effect%s%s%s", shown, origin, meant ? "; " : "",
                meant ? meant : "", meant ? " was probably meant" : "");
}
