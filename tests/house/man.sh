#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The man pages say what the header, the parameters, the counters and --help say, whole, and groff has nothing against
# them. They are made by docs/man/man.py; each check of a fault seeds one into a copy.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 10

PAGES=$BUILD/docs/man
MAN=$SOURCE/docs/man/man.py
HEADER=$SOURCE/include/uccl/engine.h
[ -e "$PAGES/uccl-engine.3" ] || skip_all "built without man pages (-Dman)"
command -v groff >/dev/null || skip_all "no groff (groff-base)"

# rendered FILE: what a reader sees, on one line, in a file that is made once
rendered() {
    local file
    file=$WORK/flat-$(basename "$1")
    [ -s "$file" ] || groff -man -Tutf8 -rLL=2000n -P-c -P-b -P-u -P-o "$1" | tr -s ' \n' ' ' |
        sed "s/[‐−]/-/g; s/[‘’]/'/g" >"$file"
    echo "$file"
}

# has_all PAGE: the page has each line of the standard input
has_all() {
    python3 -c '
import sys
page = open(sys.argv[1]).read()
texts = [line.strip() for line in sys.stdin if line.strip()]
missing = [text for text in texts if text not in page]
print(len(texts), "texts;", *(f"\n{sys.argv[1]} lacks: {text}" for text in missing))
sys.exit(1 if missing or not texts else 0)' "$(rendered "$PAGES/$1")"
}

# the functions that the library exports, each with its page, which leads to the large one
functions_there() {
    local name result=0
    nm -D --defined-only "$BUILD/libuccl-engine.so" | sed -nE 's/.* T (uccl_\w+).*/\1/p' >"$WORK/exported"
    while read -r name; do
        [ "$(cat "$PAGES/$name.3")" = ".so man3/uccl-engine.3" ] || { echo "$name has no page" && result=1; }
    done <"$WORK/exported"
    sed 's/$/(/' "$WORK/exported" | has_all uccl-engine.3 && [ "$result" = 0 ]
}

# each sentence of the header's comments
comments_there() {
    python3 - "$HEADER" >"$WORK/comments" <<'EOF'
import re, sys
header = open(sys.argv[1]).read()
for comment in re.findall(r"^/\*(?! -{3}| SPDX)(.*?)\*/", header, re.DOTALL | re.MULTILINE):
    if "Errors, grouped" not in comment: # about the rows themselves
        for line in comment.split("\n"):
            text = re.sub(r"^ *\*? *(- )?", "", line).strip().replace("`", "")
            if text:
                print(text)
EOF
    has_all uccl-engine.3 <"$WORK/comments"
}

# each parameter and each counter that the library has, with what it means
rows_there() {
    "$BUILD/bench/uccl_info" --params-markdown | sed '1,/^## All parameters/d; s/^- //; s/[`*]//g' | has_all uccl-engine.conf.5 &&
        "$BUILD/bench/uccl_info" --counters | tail -n +2 | sed -E 's/ {2,}/\n/' | has_all uccl-engine.3
}

# each option of the tools that are installed, with its text
options_there() {
    local tool
    for tool in transport_test p2p_bench uccl_info; do
        ARGP_HELP_FMT=rmargin=20000,opt-doc-col=100 "$BUILD/bench/$tool" --help | tail -n +2 | sed -E 's/ {2,}/\n/g; s/:$//' |
            has_all "$tool.1" || return 1
    done
}

# groff warns of nothing
no_warnings() {
    local page
    for page in "$PAGES"/*.1 "$PAGES/uccl-engine.3" "$PAGES"/*.5; do
        groff -man -ww -z -Tutf8 "$page" 2>&1
    done >"$WORK/warnings"
    ! [ -s "$WORK/warnings" ] || { head "$WORK/warnings" && return 1; }
}

# what is built is what the sources make now
fresh() {
    local tool
    mkdir -p "$WORK/new"
    python3 "$MAN" --library "$HEADER" "$SOURCE/engine/defs/counters.def" "$1" "$WORK/new" &&
        python3 "$MAN" --parameters "$SOURCE/docs/parameters.md" "$1" "$WORK/new/uccl-engine.conf.5" || return 1
    for tool in transport_test p2p_bench uccl_info; do
        python3 "$MAN" --tool "$BUILD/bench/$tool" "$1" "$WORK/new/$tool.1" || return 1
    done
    diff <(cd "$PAGES" && cat ./*.[1-9]) <(cd "$WORK/new" && cat ./*.[1-9])
}

# refused NAME SED: a header with that change is refused, and the message names the function
refused() {
    sed "$2" "$HEADER" >"$WORK/engine.h"
    ! cmp -s "$HEADER" "$WORK/engine.h" || { echo "nothing was seeded" && return 1; }
    ! python3 "$MAN" --names "$WORK/engine.h" >"$WORK/said.log" 2>&1 && grep -q "^man.py: $1" "$WORK/said.log"
}

# misses TEXT PAGE SED CHECK: the check fails when that page is changed so, and names the text
misses() {
    mkdir -p "$WORK/bad"
    cp "$PAGES"/*.[1-9] "$WORK/bad"
    sed -i "$3" "$WORK/bad/$2"
    ! cmp -s "$PAGES/$2" "$WORK/bad/$2" || { echo "nothing was seeded" && return 1; }
    rm -f "$WORK/flat-$2"
    ! PAGES=$WORK/bad "$4" >"$WORK/said.log" || { echo "it passes" && return 1; }
    rm -f "$WORK/flat-$2"
    grep -q "lacks: .*$1" "$WORK/said.log"
}

VERSION=$(sed -nE "s/^  version: '([^']*)'.*/\1/p" "$SOURCE/meson.build")
check "each exported function is in uccl-engine(3), and has a page that leads there" functions_there
check "each line of the header's comments is in it" comments_there
check "each parameter is in uccl-engine.conf(5), and each counter in uccl-engine(3), with its meaning" rows_there
check "each option of the tools is in their pages, with its text" options_there
check "groff warns of nothing" no_warnings
check "the built pages are what the sources make now" fresh "$VERSION"
check "a public function without a comment is refused" refused uccl_cancel 's/^int uccl_cancel/\n&/'
check "a page without one of its counters is seen" misses rto_fired uccl-engine.3 '/rto_fired/d' rows_there
check "a page without one of its options is seen" misses pinned p2p_bench.1 '/pinned/d' options_there
check "a page with an older text is seen" \
    misses 'Never blocks, takes no lock' uccl-engine.3 's/Never blocks, takes no lock/Blocks, takes a lock/' comments_there
finish
