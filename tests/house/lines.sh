#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Functions and files are short enough to be read.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 5

lines() { python3 "$HOUSE/lines.py" "$@"; }

# function_of LINES: its head has two
function_of() {
    printf 'static int measured(int argument,\n                    int other)\n{\n'
    yes '    argument++;' | head -n $(($1 - 4))
    printf '}\n'
}

long_function() {
    function_of 80 >"$COPY/engine/base/short.c"
    lines "$COPY" lengths | grep short && return 1
    function_of 81 >"$COPY/engine/base/long.c"
    finds '^engine/base/long\.c:1: measured\(\) has 81 lines, at most 80' lines "$COPY" lengths
}

long_test() {
    {
        printf 'Test(suite, of_much, .timeout = 1)\n{\n'
        yes '    step();' | head -n 90
        echo '}'
    } >"$COPY/tests/unit/test_long.c"
    finds '^tests/unit/test_long\.c:1: of_much\(\) has 93 lines' lines "$COPY" lengths
}

long_file() {
    yes '/* a line */' | head -n 800 >"$COPY/plugins/nccl/full.h"
    lines "$COPY" lengths | grep full && return 1
    echo '/* and one */' >>"$COPY/plugins/nccl/full.h"
    finds '^plugins/nccl/full\.h: 801 lines, at most 800' lines "$COPY" lengths
}

needless() {
    printf 'file engine/base/ring.c\nfunction engine/base/ring.c ring_pop\n' >>"$COPY/tests/house/exceptions.txt"
    finds 'no longer needed: function engine/base/ring.c ring_pop' lines "$COPY" lengths
}

check "functions have at most 80 lines, files 800" lines "$SOURCE" lengths
fresh_copy
check "a function of 81 lines is found" long_function
fresh_copy
check "a test of more than 80 lines is found" long_test
fresh_copy
check "a file of 801 lines is found" long_file
fresh_copy
check "an exception that is no longer needed is found" needless
finish
