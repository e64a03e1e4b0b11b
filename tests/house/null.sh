#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A pointer in a condition stands by itself.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 3

null() { python3 "$HOUSE/null.py" "$@"; }

# each line of CASES, as it is and as it should be; then what may stay
CASES='    if (pointer == NULL)|    if (!pointer)
    bool missing = table->rows[i].name == NULL;|    bool missing = !table->rows[i].name;
    cr_assert(find(one, (two)) != NULL, "NULL == NULL");|    cr_assert(find(one, (two)), "NULL == NULL");
    while (a < b && *at != NULL && (c = *at) != NULL)|    while (a < b && *at && (c = *at))
    return (row ? row->text : row) != NULL ? a * b : 0;|    return (row ? row->text : row) ? a * b : 0;
    for (; at != NULL; at = at->next)|    for (; at; at = at->next)
    return a && (struct s *)b == NULL;|    return a && !(struct s *)b;'
STAYS='    return find(one) != NULL;
    cr_assert_eq(strstr(text, "x") != NULL, i == 0);
    count += at->next != NULL; /* not if (p == NULL) */
    (void)(a == NULLS);'

seed() {
    fresh_copy
    { sed 's/|.*//' <<<"${CASES//||/OR}"; echo "$STAYS"; } >"$COPY/engine/base/null.c"
    { sed 's/.*|//' <<<"${CASES//||/OR}"; echo "$STAYS"; } >"$WORK/better"
}

seen() {
    null "$COPY" | grep '^engine/base/null\.c:' | tee "$WORK/seen"
    [ "$(cut -d: -f 2 "$WORK/seen" | sort -nu | tr '\n' ' ')" = "1 2 3 4 5 6 7 " ]
}

mended() {
    null --fix "$COPY"
    diff "$COPY/engine/base/null.c" "$WORK/better" && null "$COPY"
}

check "no pointer is compared with NULL in a condition" null "$SOURCE"
seed
check "each that is compared is found" seen
check "--fix leaves what it should be" mended
finish
