#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every line is as clang-format leaves it by .clang-format. Versions differ in what they make of the same settings, so
# that one of them decides.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 3

FOLDERS=(include engine api plugins bench tests docs)
VERSION=14 # of Debian 12
FORMATTER=
for name in clang-format-$VERSION clang-format; do
    "$name" --version 2>/dev/null | grep -q "version $VERSION\." && FORMATTER=$name && break
done
[ -n "$FORMATTER" ] || skip_all "no clang-format $VERSION"

# formatted ROOT: names the files that are not, and where
formatted() {
    (cd "$1" && find "${FOLDERS[@]}" \( -name '*.[ch]' -o -name '*.cpp' \) -print0 | sort -z |
        xargs -0 "$FORMATTER" --style=file --dry-run 2>&1) |
        awk -F: -v "run=$FORMATTER -i" '/: (error|warning): / {
            if (!($1 in lines)) file[++files] = $1
            if (!(seen[$1, $2]++)) lines[$1] = lines[$1] " " $2
        }
        END {
            for (i = 1; i <= files; i++) print file[i] ": run " run " on it; lines" lines[file[i]]
            exit files > 0
        }'
}

unformatted() {
    printf 'int wrong( int a )\n{\n    return a;\n}\n' >"$COPY/engine/base/wrong.c"
    finds '^engine/base/wrong\.c: run clang-format.* lines 1( |$)' formatted "$COPY"
}

unformatted_test() {
    printf '#ifndef WRONG_H\n#define WRONG_H\n\nenum {\n    WRONG=1\n};\n\n#endif\n' >"$COPY/tests/sim/wrong.h"
    finds '^tests/sim/wrong\.h: .* lines 4 5' formatted "$COPY"
}

check "every line is formatted" formatted "$SOURCE"
mkdir -p "${FOLDERS[@]/#/$COPY/}" "$COPY/engine/base" "$COPY/tests/sim"
cp "$SOURCE/.clang-format" "$COPY"
check "a line that is not formatted is found" unformatted
check "one in a header of the tests is found" unformatted_test
finish
