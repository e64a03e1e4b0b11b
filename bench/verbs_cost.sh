#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Instructions of the engine's own code per chunk of 64 KiB, both sides: send, receive, acks, completions. Counted
# by callgrind over verbs_cost, as the difference between a long run and a short one; the device and the
# C library are left out, but for their share in the last column of the total. BUILD needs debug information, which says whose
# an instruction is.
#
#   verbs_cost.sh [BUILD]
set -u
if [ $# -gt 1 ] || [ ! -x "${1:-.}" ]; then
    sed -n '3,/^set/s/^#\( \|$\)//p' "$0" >&2
    [ "$1" = --help ] && exit
    exit 64
fi
build=${1:-$(cd "$(dirname "$0")/.." && pwd)/build}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

# count KIND MESSAGES: "instructions FILE" lines, and "CHUNKS n"
count() {
    valgrind --tool=callgrind --callgrind-out-file="$work/out" "$build/bench/verbs_cost" "$1" "$2" >"$work/said" 2>"$work/log" ||
        { cat "$work/log" >&2 && return 1; }
    echo "CHUNKS $(sed 's/ chunks.*//' "$work/said")"
    callgrind_annotate --threshold=100 --auto=no "$work/out" | tr -d ',' |
        sed -n 's/^ *\([0-9]*\) ([^)]*) *\([^ ]*:[^ ]*\).*/\1 \2/p'
}
for kind in uc rc ud; do
    count $kind 100 >"$work/short" && count $kind 400 >"$work/long" || exit 1
    awk -v kind="$kind" '
        FNR == 1 { file++; chunks[file] = $2; next }
        {
            function_name = $2; sub(/.*:/, "", function_name)
            part = $2; sub(/:.*/, "", part); sub(/.*\/engine\//, "engine/", part)
            if (function_name ~ /^fake_/ || part ~ /fake_verbs/) part = "device"
            else if (part ~ /verbs_cost/) part = "driver"
            else if (part ~ /engine\/core\/|core\/[a-z_]*\.[ch]$/) part = "core"
            else if (part ~ /crc32c/) part = "crc"
            else if (part ~ /engine\/nic|infiniband/) part = "nic"
            else if (part ~ /data_qps\.c/) part = "thread"
            else part = "libc"
            sum[file, part] += $1
        }
        END {
            n = chunks[2] - chunks[1]
            split("core nic thread crc libc driver device", parts, " ")
            for (i = 1; i in parts; i++) {
                each[parts[i]] = (sum[2, parts[i]] - sum[1, parts[i]]) / n
                line = line sprintf("  %s %d", parts[i], each[parts[i]])
            }
            printf "%s: %d instructions per chunk (%s)\n", kind, each["core"] + each["nic"] + each["thread"] + each["crc"], substr(line, 3)
        }' "$work/short" "$work/long"
done
