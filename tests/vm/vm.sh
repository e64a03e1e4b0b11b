#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs guest_tests.sh in a guest with soft-RoCE and prints its TAP. A guest that dies is booted once
# more and goes on after the checks that it has made. Everything is kept below build/vm.
# See boot.sh for the environment; VM_ONLY='pattern' chooses checks by name, TEST_SHORT=1 leaves repetitions out.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${TEST_BUILD_DIR:-$(cd "$here/../.." && pwd)/build}
export VM_WORK=$build/vm VM_JOB=$build/vm/job VM_TIMEOUT=${VM_TIMEOUT:-1500}
export TEST_BUILD_DIR=$build
export VM_PASS="TEST_BUILD_DIR VM_ONLY TEST_SHORT ${VM_PASS:-}" VM_ONLY=${VM_ONLY:-*} TEST_SHORT=${TEST_SHORT:-0}

mkdir -p "$VM_JOB"
tap=$VM_WORK/tap.log
: >"$tap"
: >"$VM_JOB/done"
for attempt in 1 2; do
    "$here/boot.sh" "$(printf %q "$here/guest_tests.sh")" >"$VM_WORK/guest.log"
    status=$?
    if [ $status -eq 77 ]; then
        echo "1..0 # SKIP $(tail -n 1 "$VM_WORK/guest.log")"
        exit 0
    fi
    [ $status -eq 125 ] && [ $attempt -eq 1 ] || break
    mv "$VM_WORK/console.log" "$VM_WORK/console.died.log"
    # only whole lines: the last one may have been cut
    sed -n '/^\(not \)\{0,1\}ok /p' "$VM_WORK/guest.log" >>"$tap"
    sed 's/^\(not \)\{0,1\}ok [0-9]* - //; s/ # SKIP.*//' "$tap" >"$VM_JOB/done"
    echo "# the guest died after $(wc -l <"$VM_JOB/done") checks ($VM_WORK/console.died.log) and is booted again"
done
cat "$tap" "$VM_WORK/guest.log"
[ "$status" -eq 0 ] && ! grep -q '^not ok' "$tap"
