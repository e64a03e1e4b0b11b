#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# No byte of a peer's comes to memory that was revoked, or whose registration has ended, while the peer writes and reads.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 9

PRELOAD= # a sanitizer's library comes first
[ "${TEST_SANITIZED:-0}" = 0 ] || PRELOAD=$(gcc -print-file-name=libasan.so):

rounds=8
[ "$SHORT" = 0 ] || rounds=3
revoker() { timeout 100 env "$@"; }
for mode in write read dereg; do
    check "$mode, engines that are lent" revoker UCCL_LEND=yes "$BUILD/tests/onesided/revoker" $mode $rounds
    check "$mode, threads, with loss" revoker UCCL_LEND=no UCCL_UDP_IO=mmsg LOSE=0.01 TWICE=0.01 LOSE_SEED=7 \
        LD_PRELOAD="$PRELOAD$BUILD/tests/lose.so" "$BUILD/tests/onesided/revoker" $mode $rounds
done
# stops target|initiator: it stops and continues again and again, also in the midst of a revocation
stops() {
    local pid child victim
    start revoker env UCCL_LEND=no "$BUILD/tests/onesided/revoker" write $rounds 100
    pid=$PID
    until_true 10 pgrep -P "$pid" >/dev/null || return 1
    child=$(pgrep -P "$pid")
    victim=$pid
    [ "$1" = target ] || victim=$child
    while kill -STOP "$victim" 2>/dev/null; do
        sleep 0.15
        kill -CONT "$victim" 2>/dev/null
        sleep 0.08
    done
    ended "$pid" 60 && [ "$STATUS" = 0 ]
}
check "the target stops and continues" stops target
check "the initiator stops and continues" stops initiator
under_way() { revoker UCCL_LEND=yes "$BUILD/tests/onesided/revoker" write 8 50 && grep -qE ': [1-9][0-9]* operations' "$WORK/check.log"; }
check "bytes had moved before" under_way
finish
