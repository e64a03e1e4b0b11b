#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs guest_tests.sh in a guest with soft-RoCE and prints its TAP. A guest that dies, or says nothing for longer than any
# check may take, is booted again, twice at most, and goes on after the checks that it has made: a port that goes down amid
# a post can stop the driver of Linux 6.1 for ever, and a run takes ports down many times. Everything is kept below build/vm.
# See boot.sh for the environment; VM_ONLY='pattern' chooses checks by name, TEST_SHORT=1 leaves repetitions out.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${TEST_BUILD_DIR:-$(cd "$here/../.." && pwd)/build}
export VM_WORK=$build/vm VM_JOB=$build/vm/job VM_TIMEOUT=${VM_TIMEOUT:-2400}
export TEST_BUILD_DIR=$build
export VM_PASS="TEST_BUILD_DIR VM_ONLY TEST_SHORT ${VM_PASS:-}" VM_ONLY=${VM_ONLY:-*} TEST_SHORT=${TEST_SHORT:-0}

SILENCE_S=600 # a check that fails waits for several things, each at most PAIR_LIMIT_S
mkdir -p "$VM_JOB"
tap=$VM_WORK/tap.log
: >"$tap"
: >"$VM_JOB/done"
guest=
trap '[ -z "$guest" ] || kill "$guest" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for attempt in 1 2 3; do
    "$here/boot.sh" "$(printf %q "$here/guest_tests.sh")" >"$VM_WORK/guest.log" &
    guest=$!
    while sleep 1 && kill -0 $guest 2>/dev/null; do
        [ $(($(date +%s) - $(stat -c %Y "$VM_WORK/guest.log"))) -le $SILENCE_S ] || kill $guest 2>/dev/null
    done
    wait $guest
    status=$?
    guest=
    [ $status -ne 130 ] || status=125 # that was for its silence
    if [ $status -eq 77 ]; then
        echo "1..0 # SKIP $(tail -n 1 "$VM_WORK/guest.log")"
        exit 0
    fi
    [ $status -eq 125 ] && [ $attempt -lt 3 ] || break
    mv "$VM_WORK/console.log" "$VM_WORK/console.died.log"
    while read -r line; do # only whole lines: the last one may have been cut
        [[ ! $line =~ ^(not )?ok ]] || echo "$line"
    done <"$VM_WORK/guest.log" >>"$tap"
    sed 's/^\(not \)\{0,1\}ok [0-9]* - //; s/ # SKIP.*//' "$tap" >"$VM_JOB/done"
    echo "# the guest died after $(wc -l <"$VM_JOB/done") checks and is booted again; the end of $VM_WORK/console.died.log:"
    tail -n 80 "$VM_WORK/console.died.log" | cut -c 1-200 | sed 's/^/#   /'
done
cat "$tap" "$VM_WORK/guest.log"
[ "$status" -eq 0 ] && ! grep -q '^not ok' "$tap"
