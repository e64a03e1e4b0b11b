#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/troubleshooting.md has every error and warning text of the source, and no other. The comparison (texts.py) sees
# what is missing: each check of a fault seeds one into a copy.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 7

TEXTS=$(dirname "$0")/texts.py
COPY=$WORK/copy

# every line with a LOG macro is among the texts that texts.py finds
all_found() {
    local where missing=0
    python3 "$TEXTS" --list "$SOURCE" >"$WORK/texts" || return 1
    while read -r where; do
        grep -qF "$where " "$WORK/texts" || { echo "$where: texts.py does not see this text" && missing=1; }
    done < <(cd "$SOURCE" && grep -rnE '^ +(LOG_ERR|LOG_WARNING|WARN)\(' --include='*.c' engine api plugins | cut -d : -f 1,2)
    [ "$missing" = 0 ]
}

# finds PATTERN SED FILE: with the copy's FILE changed, texts.py fails and says PATTERN
finds() {
    rm -rf "$COPY"
    mkdir "$COPY"
    (cd "$SOURCE" && cp -r engine api plugins bench include docs "$COPY") || return 1
    sed -i "$2" "$COPY/$3"
    ! cmp -s "$SOURCE/$3" "$COPY/$3" || { echo "nothing was seeded" && return 1; }
    ! python3 "$TEXTS" "$COPY" >"$WORK/said.log" || { echo "texts.py finds no fault" && return 1; }
    grep -qE "$1" "$WORK/said.log"
}

check "each text of the source is on the page, and each of the page in the source" python3 "$TEXTS" "$SOURCE"
check "no text is overlooked" all_found
check "a text that the page lacks is found" \
    finds 'api/listener.c:[0-9]+: not on the page: cannot accept' '/^cannot accept on port/d' docs/troubleshooting.md
check "a text that nothing says is found" \
    finds ':[0-9]+: nothing says this: cannot accept on door' 's/^cannot accept on port/cannot accept on door/' docs/troubleshooting.md
check "a reason that the page lacks is found" \
    finds 'bench/stream.c:[0-9]+: this reason is not on the page: never written' 's/\*never written\*/that/' docs/troubleshooting.md
check "a new text is found" \
    finds 'engine/base/fault.c:[0-9]+: not on the page: the moon is N' 's/^    switch (system_error) {/    LOG_ERR("the moon is %d", 1);\n&/' engine/base/fault.c
check "a text without words is found" \
    finds 'engine/base/fault.c:[0-9]+: "%s: %s" has no words' 's/^    switch (system_error) {/    LOG_WARNING("%s: %s", "a", "b");\n&/' engine/base/fault.c
finish
