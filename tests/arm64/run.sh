#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tree on arm64, by a cross compiler and under emulation (qemu-user): what is shipped builds, a seed of each
# scenario has the history that it has elsewhere, threads meet on rings and requests, the fuzz targets take their corpora, and the
# object code of copies that others watch has its barriers. The order of memory is that of the processor below, which
# is stronger than arm64's.
#
#   run.sh build BUILD   cross-compiles
#   run.sh plan          how many checks there are
#   run.sh test BUILD    makes them; the last line is "N passed, N failed"
set -u
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
passed=0 failed=0
watched=$source/engine/thread/watched.c
if [ "$1" = plan ]; then # the corpus of the simulator, two of stress, uccl_info
    targets=("$source"/tests/fuzz/fuzz_*.c)
    echo $((4 + ${#targets[@]} + $(test -e "$watched" && echo 1 || echo 0)))
    exit
fi
mkdir -p "$2"
build=$(cd "$2" && pwd) || exit 2
sysroot=$build/sysroot/root
libraries=$sysroot/usr/lib/aarch64-linux-gnu
emulated=(qemu-aarch64-static -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$libraries")

# result GOOD NAME
result() {
    if [ "$1" = 0 ]; then
        echo "ok $2"
        passed=$((passed + 1))
    else
        echo "not ok $2"
        tail -n 40 "$build/said.log"
        failed=$((failed + 1))
    fi
}

# ends_with PATTERN COMMAND...: it ends well, and its last line is this
ends_with() {
    local pattern=$1
    shift
    timeout 600 nice "$@" >"$build/said.log" 2>&1 && tail -n 1 "$build/said.log" | grep -qE "^$pattern\$"
}

cross_file() {
    cat <<EOF
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
[properties]
sys_root = '$sysroot'
pkg_config_libdir = '$libraries/pkgconfig'
needs_exe_wrapper = true
[built-in options]
c_args = ['-isystem', '$sysroot/usr/include', '-isystem', '$sysroot/usr/include/aarch64-linux-gnu']
c_link_args = ['-Wl,-rpath-link,$libraries']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
EOF
}

build_tree() {
    "$here/sysroot.sh" "$build/sysroot" || return 1
    cross_file >"$build/cross.new"
    local again=()
    if cmp -s "$build/cross.new" "$build/cross.ini" && [ -f "$build/build.ninja" ]; then
        again=(--reconfigure)
    else
        mv "$build/cross.new" "$build/cross.ini"
        rm -rf "$build/meson-private"
    fi
    (cd "$source" && meson setup "$build" "${again[@]}" --cross-file "$build/cross.ini" \
        -Ddebug=false -Dverbs=enabled -Dio_uring=enabled) &&
        nice ninja -C "$build" emulated
}

# replays NAME: each input of a corpus
replays() {
    local inputs=("$source/tests/fuzz/corpus/$1"/*)
    ends_with "${#inputs[@]} passed, 0 failed" "${emulated[@]}" "$build/tests/replay_$1" "${inputs[@]}"
}

# barriers: of the last two words of each 128 bytes that watched_copy() stores, a barrier stands between them; it
# stores general registers alone, calls nobody, and pairs no stores, of which either half may appear first
barriers() {
    local object=$1
    aarch64-linux-gnu-objdump -d --no-show-raw-insn "$object" | sed -n '/<watched_copy>:/,/^$/p' >"$build/said.log"
    python3 - "$build/said.log" <<'EOF'
import re, sys
lines = [l.split("\t", 1)[1].replace("\t", " ") for l in open(sys.argv[1]) if "\t" in l]
assert lines, "no watched_copy() in it"
bad = [l for l in lines if re.match(r"(stp|stnp|st[1-4]|bl|blr|str [qdsv]\d)\b", l) and "sp" not in l]
assert not bad, bad
run = best = 0
for i, line in enumerate(lines):
    if re.match(r"stu?r x", line) and "sp" not in line:
        run += 1
    elif re.match(r"dmb (o|i|)sh?(st)?|dmb sy", line):
        # 15 words in front of it, one behind it
        rest = [l for l in lines[i + 1:i + 40] if re.match(r"stu?r |dmb|b|ret", l)]
        best += run == 15 and bool(re.match(r"stu?r x", rest[0]))
        run = 0
    elif re.match(r"b|cb|tb|ret", line):
        run = 0
assert best, "no 15 words, a barrier and the last word"
EOF
}

case $1 in
build)
    build_tree
    exit
    ;;
test)
    awk '/^[^#]/ && !seen[$1]++' "$source/tests/sim/corpus.txt" >"$build/corpus.txt" # the first of each scenario
    seeds=$(wc -l <"$build/corpus.txt")
    ends_with "$seeds passed, 0 failed" "${emulated[@]}" "$build/tests/sim" --corpus "$build/corpus.txt"
    result $? "$seeds seeds of the corpus, with the same hashes"
    for name in ring requests; do
        ends_with 'ok - .*' "${emulated[@]}" "$build/tests/stress_$name"
        result $? "stress: $name"
    done
    for file in "$source"/tests/fuzz/fuzz_*.c; do
        name=$(basename "$file" .c)
        replays "${name#fuzz_}"
        result $? "corpus of $name"
    done
    ends_with '.*' "${emulated[@]}" "$build/bench/uccl_info"
    result $? "uccl_info"
    if [ -e "$watched" ]; then
        barriers "$build/libuccl-engine-all.a" >>"$build/said.log" 2>&1
        result $? "barriers of what others watch"
    fi
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    ;;
esac
