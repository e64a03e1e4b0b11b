#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replays the corpus with every fuzz target, checks how much of wire.c it reaches, then fuzzes.
#
#   run.sh BUILD [--seconds N]     N in all, shared among the targets, of which each processor runs one
#
# BUILD is a build directory with -Dfuzz=true. What is found is kept in BUILD/findings, and the command
# that replays it is printed. The last line is "N passed, N failed".
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
seconds=15
[ "${2:-}" != --seconds ] || seconds=$3
LINES_PERCENT_MIN=95
passed=0 failed=0
findings=$build/findings
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$findings"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

# result GOOD NAME
result() {
    if [ "$1" = 0 ]; then
        echo "ok $2"
        passed=$((passed + 1))
    else
        echo "not ok $2"
        failed=$((failed + 1))
    fi
}

# fuzz TARGET LIBFUZZER_ARGUMENT...; false: it has found something, and says what
fuzz() {
    local target=$1 mark log status longest=4200
    shift
    [ "$target" = bootstrap ] && longest=17000 # an OFFER has up to 16 KiB
    mark=$work/$target.mark log=$work/$target.log
    touch "$mark"
    timeout $((seconds + 600)) "$build/tests/fuzz_$target" -max_len=$longest -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$findings/$target-" -print_final_stats=1 "$@" >"$log" 2>&1
    status=$?
    [ "$status" -ne 0 ] || return 0
    tail -n 60 "$log"
    find "$findings" -name "$target-*" -newer "$mark" | while read -r input; do
        echo "found by fuzz_$target: $input"
        echo "replay: $build/tests/fuzz_$target $input"
    done
    return "$status"
}

# units TARGET: how many inputs it says that it was given
units() { sed -n 's/^stat::number_of_executed_units: *//p' "$work/$1.log" | grep . || echo 0; }

# executed TARGET INPUTS: so many at least. A program that ran nothing has found nothing either
executed() {
    [ "$2" -gt 0 ] && [ "$(units "$1")" -ge "$2" ] && return 0
    echo "$(units "$1") inputs were executed, not $2"
    return 1
}

targets=$(cd "$here" && for file in fuzz_*.c; do name=${file#fuzz_} && echo "${name%.c}"; done)
count=$(wc -w <<<"$targets")
at_once=$(($(nproc) < count ? $(nproc) : count))

# of_each FUNCTION: calls it with each target, as many at once as there are processors; said and status in files
of_each() {
    local target
    for target in $targets; do
        while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
            wait -n
        done
        ("$1" "$target" >"$work/$target.said" 2>&1; echo $? >"$work/$target.status") &
    done
    wait
}

# told TARGET NAME: what came of a target
told() {
    local status
    status=$(cat "$work/$1.status")
    cat "$work/$1.said"
    result "${status:-1}" "$2"
}

inputs() { find "$here/corpus/$1" -type f | wc -l; }

replay() {
    LLVM_PROFILE_FILE=$work/$1.profraw fuzz "$1" -runs=0 "$here/corpus/$1" && executed "$1" "$(inputs "$1")"
}
of_each replay
for target in $targets; do
    told "$target" "$target: $(inputs "$target") inputs of the corpus"
done

# what the corpus reaches of the one file that reads peers' packets
llvm-profdata merge -o "$work/profile" "$work"/*.profraw
objects=()
for target in $targets; do
    objects+=(-object "$build/tests/fuzz_$target")
done
llvm-cov export -summary-only -instr-profile="$work/profile" "${objects[@]:1}" >"$work/coverage"
percent=$(python3 -c 'import json, sys
for file in json.load(sys.stdin)["data"][0]["files"]:
    if file["filename"].endswith("/engine/core/wire.c"):
        print("%.1f" % file["summary"]["lines"]["percent"])' <"$work/coverage")
[ "${percent%.*}" -ge "$LINES_PERCENT_MIN" ] 2>/dev/null
result $? "the corpus reaches ${percent:-?}% of the lines of wire.c, at least $LINES_PERCENT_MIN%"

each=$((seconds * at_once / count > 0 ? seconds * at_once / count : 1))
search() {
    mkdir "$work/$1"
    LLVM_PROFILE_FILE=/dev/null fuzz "$1" -max_total_time="$each" "$work/$1" "$here/corpus/$1" && executed "$1" 1
}
of_each search
for target in $targets; do
    told "$target" "$target: $(units "$target") executions in $each s"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
