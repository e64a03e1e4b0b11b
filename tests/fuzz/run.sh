#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replays the corpus with every fuzz target, checks how much of wire.c it reaches, then fuzzes.
#
#   run.sh BUILD [--seconds N]     N in all, shared among the targets
#
# BUILD is a build directory with -Dfuzz=true. What is found is kept in BUILD/findings, and the command
# that replays it is printed. The last line is "N passed, N failed".
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
seconds=30
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
    local target=$1 mark status longest=4200
    shift
    [ "$target" = bootstrap ] && longest=17000 # an OFFER has up to 16 KiB
    mark=$work/mark
    touch "$mark"
    timeout $((seconds + 600)) "$build/tests/fuzz_$target" -max_len=$longest -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$findings/$target-" "$@" >"$work/log" 2>&1
    status=$?
    [ "$status" -ne 0 ] || return 0
    tail -n 60 "$work/log"
    find "$findings" -name "$target-*" -newer "$mark" | while read -r input; do
        echo "found by fuzz_$target: $input"
        echo "replay: $build/tests/fuzz_$target $input"
    done
    return "$status"
}

# units: how many inputs the target says that it was given
units() { sed -n 's/^stat::number_of_executed_units: *//p' "$work/log" | grep . || echo 0; }

# executed INPUTS: so many at least. A program that ran nothing has found nothing either
executed() {
    [ "$1" -gt 0 ] && [ "$(units)" -ge "$1" ] && return 0
    echo "$(units) inputs were executed, not $1"
    return 1
}

targets=$(cd "$here" && for file in fuzz_*.c; do name=${file#fuzz_} && echo "${name%.c}"; done)

for target in $targets; do
    inputs=$(find "$here/corpus/$target" -type f | wc -l)
    LLVM_PROFILE_FILE=$work/$target.profraw fuzz "$target" -runs=0 -print_final_stats=1 "$here/corpus/$target" &&
        executed "$inputs"
    result $? "$target: $inputs inputs of the corpus"
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

count=$(wc -w <<<"$targets")
each=$((seconds / count > 0 ? seconds / count : 1))
for target in $targets; do
    mkdir "$work/$target"
    LLVM_PROFILE_FILE=/dev/null fuzz "$target" -max_total_time="$each" -print_final_stats=1 \
        "$work/$target" "$here/corpus/$target"
    status=$?
    [ "$status" -ne 0 ] || executed 1 || status=1
    result "$status" "$target: $(units) executions in $each s"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
