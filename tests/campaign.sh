#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Campaigns: fresh simulator seeds and fuzzer inputs by the hundred thousand, on a machine with many processors. See
# usage() or --help.
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
TABLE=$ROOT/docs/testing.md

usage() {
    cat <<'END'
usage: tests/campaign.sh build DIR     builds here; gathers simulator, fuzzers, corpus and libraries in DIR
       DIR/run.sh --minutes N          runs there, on all processors; see DIR/run.sh --help
       tests/campaign.sh gather DIR PROGRAM...
                                       the same of programs that are built already
       tests/campaign.sh record FILE   adds the row that a run has printed (FILE is its output) to docs/testing.md

DIR can be carried to any x86-64 machine with Linux and bash. It needs no package there and no root.
Sanitizers check the fuzzers. SIM_OPTIONS holds options of Meson for the simulator's build.
END
}

# build_in FOLDER TARGET OPTION...
build_in() {
    local folder=$ROOT/build-campaign/$1 target=$2 log=$ROOT/build-campaign/$1.log
    shift 2
    mkdir -p "$folder"
    [ ! -f "$folder/build.ninja" ] || set -- --reconfigure "$@"
    meson setup "$folder" "$ROOT" "$@" >"$log" 2>&1 && nice ninja -C "$folder" "$target" >>"$log" 2>&1 && return
    tail -n 40 "$log"
    echo "the build failed; all of it is in $log"
    return 1
}

# What the programs load, the C library and its loader too: the other machine's may be older.
carry_libraries() {
    ldd "$1"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\/.*ld-linux/ {print $1}' | sort -u |
        while read -r file; do cp -L "$file" "$1/lib"; done
}

# gather DIR PROGRAM...: what is carried
gather() {
    local carry=$1
    shift
    if [ -e "$carry" ] && [ ! -f "$carry/commit" ] && [ -n "$(ls -A "$carry")" ]; then
        echo "$carry is there and holds something else"
        return 1
    fi
    rm -rf "$carry"
    mkdir -p "$carry"/{bin,lib,corpus}
    cp "$@" "$carry/bin"
    cp -r "$ROOT"/tests/fuzz/corpus/* "$carry/corpus"
    carry_libraries "$carry"
    strip "$carry"/bin/*
    cp "$ROOT/tests/campaign/run.sh" "$carry"
    git -C "$ROOT" describe --always --dirty --abbrev=8 >"$carry/commit" 2>/dev/null || echo unknown >"$carry/commit"
    echo "gathered $(cat "$carry/commit") in $carry: $(du -sh "$carry" | cut -f 1)"
}

build() {
    # shellcheck disable=SC2086 # several options
    build_in sim tests/sim -Doptimization=2 ${SIM_OPTIONS:-} &&
        CC=clang build_in fuzz fuzz -Dfuzz=true -Dfuzz_coverage=false -Doptimization=2 -Db_sanitize=address,undefined \
            -Db_lundef=false -Dc_args=-fno-sanitize-recover=all || return
    local fuzzers
    mapfile -t fuzzers < <(find "$ROOT/build-campaign/fuzz/tests" -maxdepth 1 -type f -name 'fuzz_*' -perm -u+x)
    gather "$1" "$ROOT/build-campaign/sim/tests/sim" "${fuzzers[@]}"
}

# record FILE: behind the last row of the table whose first column is the date
record() {
    local row
    row=$(grep -E '^\| [0-9]{4}-[0-9]{2}-[0-9]{2} \|' "$1" | tail -n 1)
    if [ -z "$row" ]; then
        echo "no row of a campaign in $1"
        return 1
    fi
    if grep -qxF "$row" "$TABLE"; then
        echo "the row is there already"
        return 0
    fi
    python3 - "$TABLE" "$row" <<'END'
import re, sys
path, row = sys.argv[1:]
lines = open(path).read().split("\n")
head = next(i for i, line in enumerate(lines) if line.startswith("| date | commit |"))
if row.count("|") != lines[head].count("|"):
    sys.exit("the row has other columns than the table")
end = head + 2
while re.match(r"\| \d{4}-", lines[end]):
    end += 1
lines.insert(end, row)
open(path, "w").write("\n".join(lines))
END
}

case ${1:-}${2:+ argument} in
"build argument") build "$2" ;;
"gather argument")
    shift
    gather "$@"
    ;;
"record argument") record "$2" ;;
-h | --help) usage ;;
*)
    usage >&2
    exit 64
    ;;
esac
