#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pages have lines that a terminal shows whole.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 2

pages() { python3 "$HOUSE/lines.py" "$1" pages; }

long_rule() {
    printf '%0120d\n' 0 >"$COPY/docs/short.md"
    printf '| a | b |\n|---|%s|\n' "$(printf '%0120d' 0 | tr 0 -)" >"$COPY/LONG.md"
    finds '^LONG\.md:2: 126 columns, at most 120' pages "$COPY" && ! grep short "$WORK/found"
}

check "lines of pages have at most 120 columns" pages "$SOURCE"
fresh_copy
check "a longer one is found" long_rule
finish
