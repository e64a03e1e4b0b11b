#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the model of the sleep, wake and lend protocol (lend.pml): that it holds, and that it does not
# once it is broken on purpose, so that the check is known to bite. Prints TAP. Needs spin and gcc.
#
#   run.sh [deep]     two messages per application thread: many minutes, up to 8 GiB
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
number=0 failed=0
rounds=1 megabytes=2048
[ "${1:-}" = deep ] && rounds=2 megabytes=8192

if ! command -v spin >/dev/null; then
    echo "1..0 # SKIP no spin (Debian: spin)"
    exit 0
fi

# verify NAME EXPECTED KIND DEFINE...: EXPECTED is pass or fail; KIND is safety or served
verify() {
    local name=$1 expected=$2 kind=$3 define compile pan result=pass
    shift 3
    define="-DROUNDS=$rounds ${*/#/-D}"
    number=$((number + 1))
    if [ "$kind" = safety ]; then
        compile="-DSAFETY -DNOCLAIM" pan=""
    else
        compile="-DNFAIR=3" pan="-a -f -N served"
    fi
    # shellcheck disable=SC2086 # lists of words
    if ! { spin -a $define "$here/lend.pml" &&
        gcc -O2 -w -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM=$megabytes $compile -o pan pan.c &&
        ./pan -m1000000 $pan; } >log 2>&1; then
        result=broken
    elif grep -q "max search depth too small\|reached -DMEMLIM\|out of memory" log; then
        result="not finished"
    elif ! grep -q "errors: 0" log; then
        result=fail
    fi
    if [ "$result" = "$expected" ]; then
        echo "ok $number - $name ($(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log | head -1) states)"
    else
        echo "not ok $number - $name: $result"
        sed 's/^/# /' log | tail -30
        failed=1
    fi
}

echo "TAP version 13"
verify "one owner, one sleeper, no deadlock" pass safety
verify "both borrow: one owner, one sleeper, no deadlock" pass safety BOTH_BORROW
verify "whoever posts and waits is served" pass served
[ "$rounds" = 1 ] || verify "both borrow: whoever posts and waits is served" pass served BOTH_BORROW
verify "broken: no second look at the ring" fail safety NO_RECHECK
verify "broken: two sleepers in the NIC" fail safety TWO_IN_NIC
verify "broken: a resting engine thread is not woken" fail safety NO_REST_WAKE
echo "1..$number"
exit "$failed"
