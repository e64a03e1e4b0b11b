# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For the scripts of this folder: each check of the house is made of the tree, and of copies of it with a fault that
# the check must find. A script sources this, makes checks, and ends with `finish`.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../integration/lib.sh"

HOUSE=$SOURCE/tests/house
COPY=$WORK/copy

# fresh_copy: the sources and pages as they are, in COPY
fresh_copy() {
    rm -rf "$COPY"
    mkdir "$COPY"
    (cd "$SOURCE" && tar -cf - --exclude=corpus .clang-format ./*.md include engine api plugins bench docs tests) |
        tar -xf - -C "$COPY"
}

# finds PATTERN COMMAND...: a check that fails on a copy, with a line like this
finds() {
    local pattern=$1
    shift
    if "$@" >"$WORK/found" 2>&1; then
        echo "nothing was found, expected: $pattern"
        return 1
    fi
    cat "$WORK/found"
    grep -qE "$pattern" "$WORK/found"
}
