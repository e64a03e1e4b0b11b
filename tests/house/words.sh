#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Things have the names that this field gives them.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 4

words() { python3 "$HOUSE/lines.py" "$1" words; }

in_code() {
    echo 'int verbs_LANES_open(void); /* for planes and kickers */' >"$COPY/engine/base/lane.h"
    finds '^engine/base/lane\.h:1: LANES: the field says data queue pair' words "$COPY" &&
        [ "$(grep -c lane.h "$WORK/found")" = 1 ]
}

in_text() {
    echo 'ROW(x, "chunks that were repaired")' >>"$COPY/engine/defs/counters.def"
    finds '^engine/defs/counters\.def:[0-9]+: repaired: the field says retransmission' words "$COPY"
}

in_pages() {
    echo 'It is kicked.' >"$COPY/docs/new.md"
    finds '^docs/new\.md:1: kicked: the field says reclaim' words "$COPY"
}

check "no word of words.txt is used" words "$SOURCE"
fresh_copy
check "one in a name is found" in_code
fresh_copy
check "one in a text is found" in_text
fresh_copy
check "one on a page is found" in_pages
finish
