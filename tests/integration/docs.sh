#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pages that are made from the code, or name what is in it, say what it says now.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 6

# docs/parameters.md is what the rows of params.def make
parameters_fresh() {
    "$BUILD/bench/uccl_info" --params-markdown >"$WORK/parameters.md" || return 1
    diff "$SOURCE/docs/parameters.md" "$WORK/parameters.md" ||
        { echo "make it anew: build/bench/uccl_info --params-markdown >docs/parameters.md"; return 1; }
}

# every UCCL_ parameter that a page speaks of exists
parameters_named_exist() {
    local name unknown=0
    for name in $(grep -ohE '\bUCCL_[A-Z][A-Z_]+[A-Z]\b' "$SOURCE"/*.md "$SOURCE"/docs/*.md | sort -u); do
        grep -q "\"${name#UCCL_}\"" "$SOURCE/engine/defs/params.def" && continue
        grep -qwr "$name" "$SOURCE"/{include,engine,api,docs/examples} && continue
        echo "$name is in the documentation and nowhere else"
        unknown=1
    done
    return $unknown
}

# the recipes of CONTRIBUTING.md name files and functions that exist; names in capitals stand for others
recipes_hold() {
    local name missing=0
    for name in $(grep -oE '`(api|bench|docs|engine|include|plugins|tests|\.ci)/[^` ]*' "$SOURCE/CONTRIBUTING.md" | tr -d '`'); do
        [[ $name =~ [A-Z]{4} ]] || compgen -G "$SOURCE/$name" >/dev/null || { echo "there is no $name" && missing=1; }
    done
    for name in $(grep -oE '`[a-z0-9_]+\(\)`' "$SOURCE/CONTRIBUTING.md" | tr -d '`()'); do
        grep -qrw "$name" "$SOURCE"/{api,engine,include,tests} || { echo "there is no $name()" && missing=1; }
    done
    [ "$missing" = 0 ]
}

# links between pages lead somewhere
links_lead() {
    local page link broken=0
    for page in "$SOURCE"/*.md "$SOURCE"/docs/*.md; do
        for link in $(grep -oE '\]\([^)#:]+' "$page" | cut -c 3-); do
            [ -e "$(dirname "$page")/$link" ] || { echo "$page: $link leads nowhere"; broken=1; }
        done
    done
    return $broken
}

# the figures of README.md and its picture are those of docs/performance.md
figures_agree() {
    local page=$SOURCE/docs/performance.md
    "$SOURCE/bench/headlines.py" --table "$page" >"$WORK/table" && [ -s "$WORK/table" ] || return 1
    diff <(grep -Fxf "$WORK/table" "$SOURCE/README.md") "$WORK/table" ||
        { echo "README.md shows other rows than: bench/headlines.py --table docs/performance.md" && return 1; }
    "$SOURCE/bench/headlines.py" --summary "$page" >"$WORK/summary" && [ -s "$WORK/summary" ] || return 1
    diff <(grep -Fxf "$WORK/summary" "$page") "$WORK/summary" ||
        { echo "$page shows other rows than: bench/headlines.py --summary docs/performance.md" && return 1; }
    diff <("$SOURCE/bench/headlines.py" --picture "$page") "$SOURCE/docs/performance.svg" >"$WORK/picture.diff" ||
        { echo "make it anew: bench/headlines.py --picture docs/performance.md >docs/performance.svg" && return 1; }
}

# who installs by README.md has what quickstart.sh has, RDMA included
packages_agree() {
    local by_hand quick
    by_hand=$(sed -n 's/^    apt-get install //p' "$SOURCE/README.md" | tr ' ' '\n' | sort)
    quick=$(sed -n '/^PACKAGES=(/,/)/p' "$SOURCE/bench/quickstart.sh" | sed 's/^PACKAGES=(//; s/)$//' | tr -s ' ' '\n' |
        grep . | sort)
    diff <(echo "$by_hand") <(echo "$quick") && grep -qx libibverbs-dev <<<"$quick"
}

check "docs/parameters.md is what the code says" parameters_fresh
check "parameters that pages name exist" parameters_named_exist
check "what CONTRIBUTING.md names exists" recipes_hold
check "README.md shows the figures of docs/performance.md" figures_agree
check "links between pages lead somewhere" links_lead
check "README.md and bench/quickstart.sh install the same" packages_agree
finish
