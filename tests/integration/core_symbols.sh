#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The core makes no system call and takes no memory: its archive needs nothing outside
# tests/core-symbols.allow. What the libraries export is looked at too.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 4

# foreign ARCHIVE: what it needs from outside itself and the list
foreign() {
    comm -23 \
        <(nm -u "$1" 2>/dev/null | awk '$1 == "U" { print $2 }' | sort -u) \
        <({
            nm --defined-only "$1" 2>/dev/null | awk 'NF == 3 { print $3 }'
            sed 's/#.*//' "$SOURCE/tests/core-symbols.allow" | tr -d ' '
        } | sort -u)
}

allowed_only() {
    local symbols
    [ -s "$1" ] || { echo "no $1" && return 1; }
    symbols=$(foreign "$1")
    [ -z "$symbols" ] || { echo "not allowed:" "$symbols" && return 1; }
}

sees_an_extra_symbol() {
    printf 'char *getenv(const char *);\nint f(void) { return getenv("x") != 0; }\n' >"$WORK/extra.c"
    cc -c "$WORK/extra.c" -o "$WORK/extra.o" && ar rc "$WORK/libextra.a" "$WORK/extra.o" || return 1
    [ "$(foreign "$WORK/libextra.a")" = getenv ]
}

exports_only_uccl() {
    local names
    names=$(nm -D --defined-only "$BUILD/libuccl-engine.so" | awk 'NF == 3 && $2 != "A" { print $3 }' |
        sed 's/@.*//')
    [ -n "$names" ] || return 1
    echo "$names" | grep -v '^uccl_' && return 1
    return 0
}

declared_is_exported() {
    local name missing=0
    for name in $(grep -oE '\buccl_[a-z_]+\(' "$SOURCE/include/uccl/engine.h" | tr -d '(' | sort -u); do
        nm -D --defined-only "$BUILD/libuccl-engine.so" | grep -qE " $name(@|$)" ||
            { echo "declared and not exported: $name" && missing=1; }
    done
    return "$missing"
}

check "the core needs nothing but what is allowed" allowed_only "$BUILD/libuccl-core.a"
check "this test sees an extra symbol" sees_an_extra_symbol
check "the shared library exports uccl_ names alone" exports_only_uccl
check "every declared function is exported" declared_is_exported
finish
