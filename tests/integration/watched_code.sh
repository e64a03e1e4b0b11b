#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The object code of the copy into watched receives, as compilers make it: on x86-64 nothing but moves of at most 8 bytes,
# no call, no string instruction, no vector, no store past the cache; on arm64 single stores, and a barrier before the last one of each
# 128 bytes. The unit tests step through it on x86-64, where a vector's store would look as if it were whole.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 12

FILE=engine/thread/watched.c

# compile COMPILER OPTIMIZATION: instructions of watched_copy() in $WORK/code, one a line
compile() {
    local objdump=objdump source=${SOURCE_FILE:-$SOURCE/$FILE}
    case $1 in aarch64*) objdump=aarch64-linux-gnu-objdump ;; esac
    "$1" -std=c11 -D_GNU_SOURCE "-O$2" -fno-strict-aliasing -ffp-contract=off -I"$SOURCE/include" -I"$SOURCE/engine" \
        -c "$source" -o "$WORK/code.o" || return 1
    "$objdump" -d --no-show-raw-insn "$WORK/code.o" | sed -n 's/^ *[0-9a-f]*:\t//p' >"$WORK/code"
    [ "$(grep -c . "$WORK/code")" -gt 30 ]
}

# without PATTERN: no instruction is one of these
without() { ! grep -E "$1" "$WORK/code"; }

x86_64() {
    compile "$1" "$2" && without '^(call|rep|movs|stos|movnt|vmov|movap|movup|movdq|movq|jmp +\*)' || return 1
    without '%[xyz]mm' || return 1
    # a store names its register last but one: 16 words of 8 bytes one after the other, the last two of one unit among them
    grep -E '^mov +%r[a-z0-9]+,0x78\(' "$WORK/code"
}

# The order of stores and barriers: S for a store of 8 bytes, s of less, B.
arm64_order() {
    sed -nE 's/^dmb[[:space:]]+oshst.*/B/p; s/^st[lu]?r[[:space:]]+x.*/S/p; s/^str[bh]?[[:space:]]+w.*/s/p; s/^(stp|st1|stnp|dc)[[:space:]].*/X/p
        s/^(b|cbn?z|tbn?z|ret)(\.[a-z]+)?([[:space:]].*)?$/|/p' "$WORK/code" | tr -d '\n'
}

arm64() {
    local order
    compile "$1" "$2" && without '^(bl|blr|dmb +ish)[[:space:]]' || return 1
    order=$(arm64_order)
    echo "$order"
    # one unit: fifteen words, the barrier, the last word. No pair, no vector
    [[ $order =~ SSSSSSSSSSSSSSSBS ]] && ! [[ $order =~ SSSSSSSSSSSSSSSS || $order =~ X ]]
}

sees_memcpy() {
    sed 's/^            store_unit(to, from);/            memcpy(to, from, CORE_WATCHED_BYTES);/' "$SOURCE/$FILE" >"$WORK/wrong.c"
    ! cmp -s "$SOURCE/$FILE" "$WORK/wrong.c" && SOURCE_FILE=$WORK/wrong.c compile "$2" "$3" && ! SOURCE_FILE=$WORK/wrong.c "$@"
}

sees_no_barrier() {
    sed '/oshst/d' "$SOURCE/$FILE" >"$WORK/wrong.c"
    SOURCE_FILE=$WORK/wrong.c compile aarch64-linux-gnu-gcc 2 && ! SOURCE_FILE=$WORK/wrong.c arm64 aarch64-linux-gnu-gcc 2
}

if [ "$(uname -m)" = x86_64 ]; then
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null || { skip "$compiler, x86-64" "not installed" && continue; }
        for level in 1 2 3; do
            check "x86-64, $compiler -O$level" x86_64 "$compiler" "$level"
        done
    done
    check "x86-64: a memcpy() is seen" sees_memcpy x86_64 gcc 2
fi
if command -v aarch64-linux-gnu-gcc >/dev/null; then
    for level in 1 2 3; do
        check "arm64, gcc -O$level" arm64 aarch64-linux-gnu-gcc "$level"
    done
    check "arm64: a memcpy() is seen" sees_memcpy arm64 aarch64-linux-gnu-gcc 2
    check "arm64: a missing barrier is seen" sees_no_barrier
else
    skip "arm64" "no aarch64-linux-gnu-gcc (gcc-aarch64-linux-gnu)" 5
fi
finish
